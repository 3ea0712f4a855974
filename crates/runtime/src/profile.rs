//! Sets of mechanisms as text: a name (`tcp`, `all`), a list of mechanisms (`fast_open,corrective=f2`), or a
//! name followed by changes (`tcp2012,proactive=all`).
//!
//! The profiles `tcp2012` and `reactive` and the values `paper` and `f1` stand for the TCP and the mechanisms
//! of 2012. They need the feature `historical`.

use brisk_link::units::{parse_duration, parse_proportion};
use brisk_tcp::TcpConfig;
use brisk_tcp::config::{
    CongestionAlgorithm, CopyScope, CorrectiveConfig, FecCode, HandshakeCopies, PlannerConfig,
    ProactiveConfig, Reactive,
};

/// A set of mechanisms with the text that it was parsed from.
///
/// ```
/// use brisk_runtime::profile::{DEFAULT_MAX_OVERHEAD, Profile, ProfileError, parse_max_overhead};
///
/// let mut all = Profile::parse("all")?;
/// all.allow(parse_max_overhead(DEFAULT_MAX_OVERHEAD).unwrap());
/// assert!(all.fast_open && all.tcp.mechanisms.planner.is_some());
/// assert!(!Profile::parse("tcp")?.starts_from_path());
/// assert_eq!(Profile::parse_list("tcp; fast_open,corrective=f2")?.len(), 2);
/// # Ok::<(), ProfileError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    /// The parsed text.
    pub name: String,
    /// Settings of the TCP at both ends.
    pub tcp: TcpConfig,
    /// True if both ends use Fast Open and the client has a cookie of the server.
    pub fast_open: bool,
    /// True if both ends know the path from an earlier connection: its round-trip time (for the handshake's
    /// timers) and its loss.
    pub memory: bool,
}

impl Profile {
    /// Parses one profile.
    ///
    /// # Errors
    /// `text` is empty, or a word of it is unknown, has a wrong value or lacks another word that it needs.
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        let name = text.trim();
        if name.is_empty() {
            return Err(ProfileError::Empty);
        }
        let mut words = name.split(',').map(str::trim).peekable();
        let mut asked = match words.peek().and_then(|word| named(word)) {
            Some(profile) => {
                words.next();
                Profile { name: name.to_owned(), ..profile }
            }
            None => {
                Profile { name: name.to_owned(), tcp: TcpConfig::default(), fast_open: false, memory: false }
            }
        };
        words.try_for_each(|word| mechanism(word, &mut asked))?;
        if asked.tcp.share_path && asked.tcp.congestion != CongestionAlgorithm::Bbr {
            if name.split(',').any(|word| word.trim() == "path=shared") {
                return Err(ProfileError::SharedWithoutBbr { profile: name.to_owned() });
            }
            asked.tcp.share_path = false;
        }
        Ok(asked)
    }

    /// Parses profiles separated by semicolons: `tcp; reactive; fast_open,corrective=f2`.
    ///
    /// # Errors
    /// As [`Profile::parse`], for the first text that is not a profile.
    pub fn parse_list(text: &str) -> Result<Vec<Profile>, ProfileError> {
        text.split(';').map(Profile::parse).collect()
    }

    /// Sets the planner's allowance in percent, if the profile has a planner; 0 switches the planner and all
    /// redundancy off.
    pub fn allow(&mut self, max_overhead: u32) {
        let TcpConfig { mechanisms, handshake_copies, .. } = &mut self.tcp;
        match &mut mechanisms.planner {
            None => {}
            Some(_) if max_overhead == 0 => {
                (mechanisms.corrective, mechanisms.proactive, mechanisms.planner) = (None, None, None);
                *handshake_copies = None;
            }
            Some(planner) => planner.max_overhead = max_overhead,
        }
    }

    /// True if connections of the profile begin with facts that earlier connections learnt about the path:
    /// `path_start` or `handshake_timers` is on.
    pub fn starts_from_path(&self) -> bool {
        self.tcp.path_start || self.tcp.handshake_timers
    }
}

/// Default of `--max-overhead`: the planner's allowance in `whatif`, in the demonstration and in a gateway
/// pair.
pub const DEFAULT_MAX_OVERHEAD: &str = "25%";

/// One percent in parts per billion.
const PERCENT: u32 = 10_000_000;

/// Parses a share such as `5%` or `0.05`; returns the percentage for [`Profile::allow`].
///
/// # Errors
/// The error in the text: it is not a share, or exceeds 200 %.
pub fn parse_max_overhead(text: &str) -> Result<u32, String> {
    let max = parse_proportion(text).map_err(|error| format!("{text}: {error}"))?.ppb() / PERCENT;
    match max {
        0..=200 => Ok(max),
        _ => Err(format!("{text}: use 0% to 200%")),
    }
}

/// Reason why a text is not a profile.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ProfileError {
    /// A text between two semicolons, or the whole text, is empty.
    Empty,
    /// The word is neither a profile nor a mechanism.
    Unknown {
        /// The profile.
        profile: String,
        /// The word.
        word: String,
    },
    /// `loss_cap` needs a preceding word that switches Proactive on.
    WithoutProactive {
        /// The profile.
        profile: String,
    },
    /// `path=shared` needs BBR.
    SharedWithoutBbr {
        /// The profile.
        profile: String,
    },
    /// The mechanism does not permit this value.
    Value {
        /// The profile.
        profile: String,
        /// The mechanism.
        mechanism: &'static str,
        /// The refused value.
        value: String,
        /// The permitted values.
        allowed: &'static str,
    },
}

brisk_wire::impl_error! {
    ProfileError {
        Self::Empty => "an empty set of mechanisms; write them like \"tcp; all\"; profiles: {}", names();
        Self::Unknown { profile, word } =>
            "unknown mechanism '{word}'{}; {}", in_profile(word, profile), instead_of(word);
        Self::WithoutProactive { profile } =>
            "profile '{profile}': loss_cap belongs to Proactive, which is not on yet; put 'proactive' \
             before it";
        Self::SharedWithoutBbr { profile } => "profile '{profile}': path=shared needs congestion=bbr";
        Self::Value { profile, mechanism, value, allowed } =>
            "profile '{profile}': {mechanism} cannot be '{value}'; use {allowed}";
    }
}

/// The TCP that a profile's name means.
#[derive(Clone, Copy)]
enum Named {
    Tcp(fn() -> TcpConfig),
    FastOpen(fn() -> TcpConfig),
}

const NAMED: &[(&str, Named)] = &[
    ("tcp", Named::Tcp(TcpConfig::default)),
    ("tcp+tfo", Named::FastOpen(TcpConfig::default)),
    #[cfg(feature = "historical")]
    ("tcp2012", Named::Tcp(TcpConfig::of_2012)),
    #[cfg(feature = "historical")]
    ("reactive", Named::Tcp(TcpConfig::of_2012_with_reactive)),
    ("corrective", Named::Tcp(corrective)),
    ("proactive", Named::Tcp(proactive)),
    ("all", Named::FastOpen(all)),
];

/// Returns today's TCP with Corrective.
fn corrective() -> TcpConfig {
    let mut tcp = TcpConfig::default();
    tcp.mechanisms.corrective = Some(CorrectiveConfig::default());
    tcp
}

/// Returns today's TCP with every segment sent twice.
fn proactive() -> TcpConfig {
    let mut tcp = TcpConfig::default();
    tcp.mechanisms.proactive = Some(copies(CopyScope::All));
    tcp
}

/// Returns the TCP of an installed gateway pair. The planner chooses among all mechanisms, because both ends
/// know the path and each other. For a response within one round trip, the initial window must hold all of it
/// and the SYN must carry the request; the network may deliver such a request twice. BBR is used because
/// random loss does not slow it down.
fn all() -> TcpConfig {
    TcpConfig {
        initial_window: 32,
        path_start: true,
        handshake_timers: true,
        handshake_copies: Some(HandshakeCopies { with_data: true, ..HandshakeCopies::default() }),
        congestion: CongestionAlgorithm::Bbr,
        share_path: true,
        ..planned()
    }
}

fn planned() -> TcpConfig {
    TcpConfig::planned(PlannerConfig::default().max_overhead)
}

fn copies(scope: CopyScope) -> ProactiveConfig {
    ProactiveConfig { scope, ..ProactiveConfig::default() }
}

/// The mechanisms and the permitted values of each.
const MECHANISMS: &[(&str, &str)] = &[
    ("fast_open", "on or off"),
    ("memory", "on or off"),
    #[cfg(feature = "historical")]
    ("reactive", "off, paper or rack_tlp"),
    #[cfg(not(feature = "historical"))]
    ("reactive", "off or rack_tlp"),
    #[cfg(feature = "historical")]
    ("corrective", "off, f1, f2, rs1, rs2, rs3, rs4, rs5, rs6, rs7 or rs8"),
    #[cfg(not(feature = "historical"))]
    ("corrective", "off, f2, rs1, rs2, rs3, rs4, rs5, rs6, rs7 or rs8"),
    ("proactive", "off, short or all"),
    ("loss_cap", "25, 50 or 100"),
    ("path", "on, off or shared"),
    ("copy_syn", "on, off, 1ms, 5ms or 20ms"),
    ("planner", "on, off or one_sided"),
    ("rto_floor", "200ms or 400ms"),
    ("delack_max", "1ms or 40ms"),
    ("congestion", "cubic, reno or bbr"),
];

fn named(name: &str) -> Option<Profile> {
    let (_, named) = NAMED.iter().find(|(named, _)| *named == name)?;
    let (tcp, fast_open) = match named {
        Named::Tcp(tcp) => (tcp(), false),
        Named::FastOpen(tcp) => (tcp(), true),
    };
    Some(Profile { name: name.to_owned(), tcp, fast_open, memory: fast_open })
}

/// Returns the mechanism and the value that a word names, and the values that are permitted.
fn known<'a>(word: &'a str, profile: &str) -> Result<(&'static str, &'a str, &'static str), ProfileError> {
    let (key, value) = word.split_once('=').map_or((word, "on"), |(key, value)| (key.trim(), value.trim()));
    let found = MECHANISMS.iter().find(|(mechanism, _)| *mechanism == key);
    let Some((mechanism, allowed)) = found else {
        return Err(ProfileError::Unknown { profile: profile.to_owned(), word: word.to_owned() });
    };
    if !allowed.split([',', ' ']).any(|choice| choice == value) || value == "or" || value.is_empty() {
        return Err(ProfileError::Value {
            profile: profile.to_owned(),
            mechanism,
            value: value.to_owned(),
            allowed,
        });
    }
    Ok((mechanism, value, allowed))
}

/// Parses one `mechanism` or `mechanism=value` and changes the profile accordingly.
fn mechanism(word: &str, asked: &mut Profile) -> Result<(), ProfileError> {
    let Profile { name: profile, tcp, fast_open, memory } = asked;
    let (mechanism, value, allowed) = known(word, profile)?;
    match (mechanism, value) {
        ("fast_open", "on") => (*fast_open, *memory) = (true, true),
        ("fast_open", _) => *fast_open = false,
        ("memory", value) => *memory = value == "on",
        ("reactive", "off") => tcp.mechanisms.reactive = Reactive::Off,
        ("reactive", "rack_tlp") => tcp.mechanisms.reactive = Reactive::default(),
        #[cfg(feature = "historical")]
        ("reactive", "paper") => {
            // The paper's probes need the loss detection of 2012.
            let TcpConfig { loss_detection, mechanisms, .. } = TcpConfig::of_2012_with_reactive();
            tcp.loss_detection = loss_detection;
            tcp.mechanisms.reactive = mechanisms.reactive;
        }
        ("planner", "on") => {
            let TcpConfig { mechanisms, handshake_copies, .. } = planned();
            (tcp.mechanisms, tcp.handshake_copies) = (mechanisms, handshake_copies);
            *memory = true;
        }
        ("planner", "one_sided") => {
            tcp.mechanisms.planner = Some(PlannerConfig::ONE_SIDED);
            tcp.handshake_copies = Some(HandshakeCopies::default());
            *memory = true;
        }
        ("planner", "off") => tcp.mechanisms.planner = None,
        ("path", value) => {
            let on = value != "off";
            tcp.share_path = value == "shared";
            tcp.path_start = on;
            tcp.handshake_timers = on;
            *memory |= on;
        }
        ("copy_syn", "off") => tcp.handshake_copies = None,
        ("copy_syn", value) => {
            let gap = parse_duration(value).unwrap_or_default();
            tcp.handshake_copies = Some(HandshakeCopies { gap, ..HandshakeCopies::default() });
        }
        ("rto_floor", value) => {
            tcp.rto.var_floor = parse_duration(value).unwrap_or(tcp.rto.var_floor);
        }
        ("delack_max", value) => tcp.delack_max = parse_duration(value).unwrap_or(tcp.delack_max),
        ("congestion", value) => tcp.congestion = value.parse().unwrap_or_default(),
        ("corrective", "off") => tcp.mechanisms.corrective = None,
        #[cfg(feature = "historical")]
        ("corrective", "f1") => tcp.mechanisms.corrective = Some(CorrectiveConfig::of_the_paper()),
        ("corrective", "f2") => tcp.mechanisms.corrective = Some(CorrectiveConfig::default()),
        ("corrective", value) => {
            let wrong = || ProfileError::Value {
                profile: profile.to_owned(),
                mechanism,
                value: value.to_owned(),
                allowed,
            };
            tcp.mechanisms.corrective = Some(reed_solomon(value).ok_or_else(wrong)?);
        }
        ("proactive", "off") => tcp.mechanisms.proactive = None,
        ("proactive", "short") => tcp.mechanisms.proactive = Some(copies(CopyScope::Short)),
        ("proactive", "all") => tcp.mechanisms.proactive = Some(copies(CopyScope::All)),
        ("loss_cap", percent) => {
            let missing = || ProfileError::WithoutProactive { profile: profile.to_owned() };
            let proactive = tcp.mechanisms.proactive.as_mut().ok_or_else(missing)?;
            proactive.loss_cap = percent.parse().unwrap_or(proactive.loss_cap);
        }
        _ => {
            return Err(ProfileError::Value {
                profile: profile.to_owned(),
                mechanism,
                value: value.to_owned(),
                allowed,
            });
        }
    }
    Ok(())
}

/// Returns the configuration of Corrective with N parities for `rsN`.
fn reed_solomon(value: &str) -> Option<CorrectiveConfig> {
    let parities = value.strip_prefix("rs")?.parse().ok()?;
    let code = FecCode::ReedSolomon;
    let config = CorrectiveConfig { code, parities, blocks: 32, ..CorrectiveConfig::default() };
    config.validate().is_ok().then_some(config)
}

fn names() -> String {
    NAMED.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// Returns the text that names the profile of an unknown word; empty if the word is the whole profile.
fn in_profile(word: &str, profile: &str) -> String {
    if word == profile { String::new() } else { format!(" in '{profile}'") }
}

/// Suggests the name that is nearest to `word`, or lists all names.
fn instead_of(word: &str) -> String {
    let wanted = word.split('=').next().unwrap_or(word).trim();
    let mut known: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
    for (mechanism, _) in MECHANISMS {
        if !known.contains(mechanism) {
            known.push(mechanism);
        }
    }
    brisk_link::suggest("", wanted, &known)
}

#[cfg(test)]
mod tests {
    use brisk_tcp::config::CongestionAlgorithm;

    use super::*;

    #[test]
    fn loss_cap_must_follow_proactive() {
        let cap = |name| {
            Profile::parse(name).map(|profile| profile.tcp.mechanisms.proactive.map(|config| config.loss_cap))
        };
        assert_eq!(cap("proactive,loss_cap=100").unwrap(), Some(100));
        assert_eq!(cap("proactive").unwrap(), Some(25));
        for early in ["loss_cap=100", "loss_cap=100,proactive"] {
            let error = cap(early).unwrap_err().to_string();
            assert!(error.contains("put 'proactive' before it"), "{error}");
        }
    }

    #[test]
    fn profile_keeps_the_text_that_it_was_parsed_from() {
        let profiles = Profile::parse_list(" tcp ;corrective=off, proactive=off").unwrap();
        let names: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
        assert_eq!(names, ["tcp", "corrective=off, proactive=off"]);
        assert_eq!(profiles[0].tcp, profiles[1].tcp);
    }

    #[test]
    fn allowance_of_0_switches_redundancy_off_and_nothing_else() {
        let profile = |max_overhead| {
            let mut profile = Profile::parse("all,reactive=off").unwrap();
            profile.allow(max_overhead);
            profile
        };
        let [without, with] = [profile(0), profile(25)];
        assert_eq!(with.tcp.mechanisms.planner.map(|planner| planner.max_overhead), Some(25));
        assert!(with.tcp.handshake_copies.is_some_and(|copies| copies.with_data));
        let mechanisms = &without.tcp.mechanisms;
        let redundancy = [mechanisms.corrective.is_some(), mechanisms.proactive.is_some()];
        assert_eq!((redundancy, mechanisms.planner.is_some()), ([false; 2], false));
        assert!(without.fast_open && without.tcp.handshake_copies.is_none());
        assert_eq!(mechanisms.reactive, with.tcp.mechanisms.reactive);
    }

    #[cfg(feature = "historical")]
    #[test]
    fn differences_may_follow_a_name() {
        let profile = Profile::parse("tcp2012,proactive=all").unwrap();
        assert_eq!(profile.name, "tcp2012,proactive=all");
        assert_eq!(profile.tcp.loss_detection, Profile::parse("tcp2012").unwrap().tcp.loss_detection);
        assert!(profile.tcp.mechanisms.proactive.is_some());
        assert!(Profile::parse("proactive=all,tcp2012").is_err(), "the name comes first");
    }

    #[cfg(feature = "historical")]
    #[test]
    fn reactive_comes_in_three_forms() {
        let of = |text| Profile::parse(text).unwrap().tcp;
        assert_eq!(of("reactive=rack_tlp"), of("tcp"));
        assert_eq!(of("reactive=off").mechanisms.reactive, Reactive::Off);
        assert_eq!(of("reactive=off").loss_detection, of("tcp").loss_detection);
        assert_eq!(of("reactive=paper"), of("reactive"));
        assert_eq!(of("tcp2012").mechanisms.reactive, Reactive::Off);
        assert_ne!(of("tcp2012").loss_detection, of("tcp").loss_detection);
    }

    #[test]
    fn path_and_copy_syn_are_words_of_a_profile() {
        let profile = Profile::parse("fast_open,path,copy_syn").unwrap();
        assert!(
            profile.fast_open
                && profile.memory
                && profile.starts_from_path()
                && profile.tcp.handshake_copies.is_some()
        );
        assert_eq!(Profile::parse("path=off,copy_syn=off").unwrap().tcp, Profile::parse("tcp").unwrap().tcp);
    }

    #[test]
    fn client_with_a_cookie_knows_the_path_by_default() {
        let of = |text| Profile::parse(text).map(|profile| (profile.fast_open, profile.memory)).unwrap();
        assert_eq!([of("tcp"), of("tcp+tfo"), of("fast_open")], [(false, false), (true, true), (true, true)]);
        assert_eq!([of("tcp,memory"), of("path"), of("planner")], [(false, true); 3]);
        assert_eq!([of("tcp+tfo,memory=off"), of("fast_open,memory=off")], [(true, false); 2]);
    }

    #[test]
    fn distance_of_the_syn_copy_and_minimum_timeout_can_be_set() {
        let of = |text| Profile::parse(text).unwrap().tcp;
        let gap = |text| of(text).handshake_copies.unwrap().gap.as_millis();
        assert_eq!((gap("copy_syn"), gap("copy_syn=on"), gap("copy_syn=5ms")), (0, 0, 5));
        assert_eq!(of("rto_floor=400ms").rto.var_floor.as_millis(), 400);
        assert_eq!(of("rto_floor=200ms"), of("tcp"));
        assert!(Profile::parse("rto_floor=on").is_err() && Profile::parse("copy_syn=2ms").is_err());
    }

    #[test]
    fn delay_of_acknowledgements_can_be_short() {
        assert_eq!(Profile::parse("delack_max=1ms").unwrap().tcp.delack_max.as_millis(), 1);
        assert_eq!(Profile::parse("delack_max=40ms").unwrap().tcp, Profile::parse("tcp").unwrap().tcp);
    }

    #[test]
    fn congestion_control_is_chosen_by_name() {
        assert_eq!(Profile::parse("tcp,congestion=reno").unwrap().tcp.congestion, CongestionAlgorithm::Reno);
        assert_eq!(Profile::parse("congestion=cubic").unwrap().tcp, Profile::parse("tcp").unwrap().tcp);
        assert!(Profile::parse("congestion=vegas").is_err() && Profile::parse("congestion").is_err());
        // Only BBR can be shared, and `all` includes it.
        assert!(
            Profile::parse("all").unwrap().tcp.share_path
                && !Profile::parse("all,path=on").unwrap().tcp.share_path
        );
        assert!(!Profile::parse("all,congestion=cubic").unwrap().tcp.share_path);
        assert!(
            Profile::parse("path=shared").is_err() && Profile::parse("path=shared,congestion=bbr").is_ok()
        );
    }

    #[test]
    fn corrective_comes_in_both_profiles_and_with_several_parities() {
        let of = |text| Profile::parse(text).unwrap().tcp.mechanisms.corrective;
        assert_eq!(of("corrective"), of("corrective=f2"));
        #[cfg(feature = "historical")]
        assert_eq!(of("corrective=f1"), Some(CorrectiveConfig::of_the_paper()));
        assert_eq!(
            of("corrective=rs3").map(|config| (config.code, config.parities)),
            Some((FecCode::ReedSolomon, 3))
        );
    }

    #[test]
    fn invalid_word_or_value_reports_the_permitted_ones() {
        let error = Profile::parse("tpc").unwrap_err().to_string();
        assert_eq!(error, "unknown mechanism 'tpc'; did you mean tcp?");
        let error = Profile::parse("fast_open,corective=f2").unwrap_err().to_string();
        let meant = "did you mean corrective?";
        assert!(
            error.starts_with("unknown mechanism 'corective=f2' in ") && error.ends_with(meant),
            "{error}"
        );
        assert!(Profile::parse("quick").unwrap_err().to_string().contains("use tcp, tcp+tfo, "));
        let error = Profile::parse("corrective=f3").unwrap_err().to_string();
        let f1 = if cfg!(feature = "historical") { "f1, " } else { "" };
        let codes = format!("off, {f1}f2, rs1, rs2, rs3, rs4, rs5, rs6, rs7 or rs8");
        assert_eq!(error, format!("profile 'corrective=f3': corrective cannot be 'f3'; use {codes}"));
        assert!(matches!(Profile::parse("corrective=or"), Err(ProfileError::Value { .. })));
        assert_eq!(Profile::parse_list("tcp;"), Err(ProfileError::Empty));
    }
}
