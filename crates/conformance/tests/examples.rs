//! Checks that examples, which are compiled and run as tests, show the interface of the library.
//!
//! A public type or function has an example in its own documentation, or occurs in another example of its
//! crate or in the code of `docs/library`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

#[test]
fn public_items_of_the_library_occur_in_an_example() {
    let guide: String = files("docs/library", "md").iter().map(|page| code(&text(page))).collect();
    let mut missing = Vec::new();
    // The entry points of the core are those of its stack.
    for (sources, examples) in [
        ("runtime/src", Some("runtime/examples")),
        ("device/src", None),
        ("tcp/src/stack", Some("tcp/examples")),
    ] {
        let mut interface = Interface { examples: guide.clone(), items: Vec::new() };
        for file in
            files(&format!("crates/{sources}"), "rs").iter().filter(|file| !file.ends_with("tests.rs"))
        {
            let file = syn::parse_file(&text(file)).unwrap();
            interface.examples += &code(&doc(&file.attrs));
            interface.visit_file(&file);
        }
        for file in examples.iter().flat_map(|examples| files(&format!("crates/{examples}"), "rs")) {
            interface.examples += &text(&file);
        }
        let shown = words(&interface.examples);
        missing.extend(interface.items.iter().filter(|item| !shown.contains(item.as_str())).cloned());
    }
    assert!(missing.is_empty(), "no example shows {missing:?}");
}

#[test]
fn items_without_an_example_are_found() {
    let source = "/// Text.\n///\n/// ```\n/// shown();\n/// ```\npub fn documented() {}\n\
        /// Text.\npub fn shown() {}\n/// No `code`.\npub struct Hidden;\nfn private() {}\n\
        impl Hidden { /// Text.\n pub fn method() {} }\n#[cfg(test)] mod tests { pub fn ignored() {} }";
    let mut interface = Interface { examples: String::new(), items: Vec::new() };
    interface.visit_file(&syn::parse_file(source).unwrap());
    let shown = words(&interface.examples);
    let missing: Vec<_> = interface.items.iter().filter(|item| !shown.contains(item.as_str())).collect();
    assert_eq!(missing, ["Hidden", "method"]);
}

/// The public items without an example of their own, and the code of all examples.
struct Interface {
    examples: String,
    items: Vec<String>,
}

impl Interface {
    fn add(&mut self, visibility: &syn::Visibility, attributes: &[syn::Attribute], name: &syn::Ident) {
        let is_hidden = attributes.iter().any(|at| at.path().is_ident("doc") && list(at) == "hidden");
        let example = code(&doc(attributes));
        if matches!(visibility, syn::Visibility::Public(_)) && !is_hidden && example.is_empty() {
            self.items.push(name.to_string());
        }
        self.examples += &example;
    }
}

impl<'ast> Visit<'ast> for Interface {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Mod(module) if module.attrs.iter().any(|at| list(at) == "test") => return,
            syn::Item::Fn(item) => self.add(&item.vis, &item.attrs, &item.sig.ident),
            syn::Item::Struct(item) => self.add(&item.vis, &item.attrs, &item.ident),
            syn::Item::Enum(item) => self.add(&item.vis, &item.attrs, &item.ident),
            syn::Item::Trait(item) => self.add(&item.vis, &item.attrs, &item.ident),
            syn::Item::Const(item) => self.add(&item.vis, &item.attrs, &item.ident),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.vis, &item.attrs, &item.sig.ident);
    }
}

/// Returns the text of the documentation of an item.
fn doc(attributes: &[syn::Attribute]) -> String {
    let mut lines = String::new();
    for attribute in attributes {
        if let syn::Meta::NameValue(pair) = &attribute.meta
            && pair.path.is_ident("doc")
            && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(line), .. }) = &pair.value
        {
            lines += &line.value();
            lines.push('\n');
        }
    }
    lines
}

/// Returns the tokens in the parentheses of an attribute.
fn list(attribute: &syn::Attribute) -> String {
    match &attribute.meta {
        syn::Meta::List(list) => list.tokens.to_string(),
        _ => String::new(),
    }
}

/// Returns the lines inside code fences.
fn code(text: &str) -> String {
    let mut is_code = false;
    let mut code = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            code += line;
            code.push('\n');
        }
    }
    code
}

fn words(code: &str) -> BTreeSet<&str> {
    code.split(|at: char| !at.is_alphanumeric() && at != '_').collect()
}

/// Returns the files below a directory of the repository.
fn files(directory: &str, extension: &str) -> Vec<PathBuf> {
    fn collect(directory: &Path, extension: &str, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, extension, files);
            } else if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(directory), extension, &mut found);
    found
}

fn text(file: &Path) -> String {
    fs::read_to_string(file).unwrap()
}
