//! A key of the configuration, and the macro that declares the keys of a section.
//!
//! One declaration (`keys.rs`) is the source of the field, its TOML key, its range, its default, its flag and
//! environment variable with their help, the row of `docs/operating/settings.md`, and the line of the
//! examples.

use std::marker::PhantomData;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, Visitor};

use super::Settings;
use super::kinds::Kind;

/// A key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// `hop`.
    pub section: &'static str,
    /// `mtu`.
    pub name: &'static str,
    /// The name of its flag without the leading hyphens. A switch named `no-...` sets `false`.
    pub flag: Option<&'static str>,
    /// Flags that contradict this one.
    pub conflicts: &'static [&'static str],
    /// The placeholder for the value in the help of the flag; empty for a switch, which has no value.
    pub value_name: &'static str,
    /// True if the flag may be repeated.
    pub is_list: bool,
    /// The heading above the flag.
    pub heading: Option<&'static str>,
    /// The meaning.
    pub help: &'static str,
    /// The meaning of the flag if it differs.
    pub flag_help: Option<&'static str>,
    /// More about it for `docs/operating/settings.md`, in Markdown.
    pub more: &'static str,
    /// The behaviour without the key, in words, if the key has no default value.
    pub unset: &'static str,
    /// The default of an edge if it differs.
    pub edge_default: Option<&'static str>,
    /// True if an edge also has this key of `[hop]`.
    pub edge: bool,
    /// An example of the value.
    pub example: &'static str,
    /// True if the example files set the key.
    pub is_set: bool,
    /// The permitted values, in words; empty for a key with a range.
    pub permits: &'static str,
    /// Returns the range in words, if there is one.
    pub range: fn() -> Option<String>,
    /// Returns the default value, in quotes if a file needs them.
    pub default: fn() -> Option<String>,
    /// Sets the key to the value of a flag.
    pub set: fn(&mut Settings, &str) -> Result<(), String>,
    /// Returns the value, in words.
    pub written: fn(&Settings) -> Option<String>,
    /// True if the value is out of the range.
    pub is_out_of_range: fn(&Settings) -> bool,
}

impl Key {
    /// The key that declarations start from, without properties.
    pub(super) const NONE: Key = Key {
        section: "",
        name: "",
        flag: None,
        conflicts: &[],
        value_name: "",
        is_list: false,
        heading: None,
        help: "",
        flag_help: None,
        more: "",
        unset: "",
        edge_default: None,
        edge: false,
        example: "",
        is_set: false,
        permits: "",
        range: || None,
        default: || None,
        set: |_, _| Ok(()),
        written: |_| None,
        is_out_of_range: |_| false,
    };

    /// True if its flag is a switch, which takes no value.
    pub fn is_switch(&self) -> bool {
        self.value_name.is_empty()
    }

    /// Returns `SECTION.KEY`.
    pub fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// Returns the permitted values, in words.
    pub fn permitted(&self) -> String {
        (self.range)().unwrap_or_else(|| self.permits.to_owned())
    }

    /// Sets the key to the `text` of its flag.
    ///
    /// # Errors
    /// The permitted values, if `text` is not one of them.
    pub fn set_checked(&self, settings: &mut Settings, text: &str) -> Result<(), String> {
        let range = || (self.range)().map(|range| format!("write {}", range.replace('"', "")));
        (self.set)(settings, text).map_err(|why| range().unwrap_or(why))?;
        match range().filter(|_| (self.is_out_of_range)(settings)) {
            Some(range) => Err(range),
            None => Ok(()),
        }
    }
}

/// Reads a value of a kind.
pub(super) struct ValueOf<K>(pub(super) PhantomData<K>);

impl<'de, K: Kind> DeserializeSeed<'de> for ValueOf<K> {
    type Value = K::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<K::Value, D::Error> {
        K::read(deserializer)
    }
}

/// Reads the name of one of these keys.
#[derive(Clone, Copy)]
pub(super) struct NameOf(pub(super) &'static [&'static str]);

impl<'de> DeserializeSeed<'de> for NameOf {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for NameOf {
    type Value = &'static str;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the name of a key")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<&'static str, E> {
        let known = self.0.iter().find(|known| **known == name);
        known.copied().ok_or_else(|| E::unknown_field(name, self.0))
    }
}

/// Declares a section: its type, its field in [`Settings`] and its keys. A key has a kind, may have a default
/// and a range, and has the other properties of [`Key`].
macro_rules! section {
    (
        $(#[$doc:meta])*
        $type:ident, $section:ident, $keys:ident, $base:expr;
        $(
            $name:ident: $kind:ty $(, default $default:expr)? $(, range $first:expr => $last:expr)?,
            { $($property:ident: $value:expr),* $(,)? };
        )*
    ) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug, Default)]
        pub struct $type {
            $(#[doc = concat!("`", stringify!($name), "`.")]
            pub $name: Option<<$kind as Kind>::Value>,)*
        }

        impl $type {
            $($(
                #[doc = concat!("Returns `", stringify!($name), "` or its default.")]
                pub fn $name(&self) -> <$kind as Kind>::Value {
                    self.$name.clone().unwrap_or_else(|| $default)
                }
            )?)*

            /// Returns these settings; keys that are absent here are taken from `under`.
            pub(super) fn over(self, under: $type) -> $type {
                $type { $($name: self.$name.or(under.$name)),* }
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                struct Section;

                impl<'de> serde::de::Visitor<'de> for Section {
                    type Value = $type;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!("[", stringify!($section), "]"))
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$type, A::Error> {
                        let mut section = $type::default();
                        let names = NameOf(&[$(stringify!($name)),*]);
                        while let Some(name) = map.next_key_seed(names)? {
                            $(if name == stringify!($name) {
                                section.$name = Some(map.next_value_seed(ValueOf::<$kind>(PhantomData))?);
                            })*
                        }
                        Ok(section)
                    }
                }

                deserializer.deserialize_map(Section)
            }
        }

        pub(super) const $keys: &[Key] = &[$(Key {
            $($property: $value,)*
            ..Key {
                section: stringify!($section),
                name: stringify!($name),
                value_name: <$kind as Kind>::VALUE_NAME,
                is_list: <$kind as Kind>::IS_LIST,
                permits: <$kind as Kind>::PERMITTED,
                set: |settings, text| {
                    settings.$section.$name = Some(<$kind as Kind>::parse(text)?);
                    Ok(())
                },
                written: |settings| settings.$section.$name.as_ref().map(<$kind as Kind>::written),
                $(default: || Some(<$kind as Kind>::quoted(&<$kind as Kind>::written(&$default))),)?
                $(
                    range: || Some(<$kind as Kind>::range(&$first, &$last)),
                    is_out_of_range: |settings| {
                        settings.$section.$name.as_ref().is_some_and(|value| !($first..=$last).contains(value))
                    },
                )?
                ..$base
            }
        }),*];
    };
}

pub(super) use section;
