//! Checks of the structure of the sources: modules of a crate do not depend on each other in a circle, and
//! `ARCHITECTURE.md` names nothing that does not exist.
//!
//! A dependency is a path that starts with `crate::`, `super::` or `self::` (in a `use` line or in other
//! code) outside tests. Dependencies between a module and its own parents or children do not count, because
//! such modules are one subject in several files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

#[test]
fn modules_of_a_crate_do_not_depend_on_each_other_in_a_circle() {
    let mut complaint = String::new();
    for name in crate_names() {
        let graph = dependencies(&sources(&name));
        for circle in circles(&graph) {
            writeln!(complaint, "{name}: these modules need each other: {}", join(&circle)).unwrap();
            for from in &circle {
                let within: BTreeSet<_> = graph[from].intersection(&circle).cloned().collect();
                writeln!(complaint, "    {from} -> {}", join(&within)).unwrap();
            }
        }
    }
    assert!(complaint.is_empty(), "\n{complaint}");
}

#[test]
fn architecture_names_only_existing_things() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let defined = definitions();
    let missing: BTreeSet<String> =
        quoted(&text).into_iter().filter(|name| !exists(name, &defined)).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md has names that do not exist: {missing:#?}");
}

#[test]
fn circle_is_found_and_a_parent_is_not_one() {
    let graph = |edges: &[(&str, &str)]| {
        let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in edges {
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        graph
    };
    assert!(circles(&graph(&[("a", "b"), ("b", "c")])).is_empty());
    assert_eq!(circles(&graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")])).len(), 1);
    assert!(is_family("a", "a::b") && is_family("a::b", "a") && !is_family("ab", "a"));
}

#[test]
fn names_in_backticks_are_extracted() {
    let names =
        quoted("`send/{rto,rack}.rs` and `Room::permits(origin, len)`, not ```x_y```, `--flag`, `tcp`");
    assert_eq!(names, ["send/rto.rs", "send/rack.rs", "Room::permits"]);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn crate_names() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| root().join("crates").join(name).join("src").is_dir())
        .collect();
    names.sort();
    names
}

/// Returns the modules of a crate by path (`""` is its root), each with its syntax tree, without test
/// modules.
fn sources(name: &str) -> BTreeMap<String, syn::File> {
    let src = root().join("crates").join(name).join("src");
    let mut modules = BTreeMap::new();
    let entry = ["lib.rs", "main.rs"].iter().map(|file| src.join(file)).find(|file| file.exists()).unwrap();
    load(&entry, &src, String::new(), &mut modules);
    modules
}

fn load(file: &Path, children: &Path, module: String, modules: &mut BTreeMap<String, syn::File>) {
    let text = fs::read_to_string(file).unwrap();
    let tree = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    for item in &tree.items {
        let syn::Item::Mod(child) = item else { continue };
        if child.content.is_some() || is_test(&child.attrs) {
            continue;
        }
        let name = child.ident.to_string();
        let path = if module.is_empty() { name.clone() } else { format!("{module}::{name}") };
        let flat = children.join(format!("{name}.rs"));
        let nested = children.join(&name).join("mod.rs");
        let found = if flat.exists() { flat } else { nested };
        load(&found, &children.join(&name), path, modules);
    }
    modules.insert(module, tree);
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        list.path.is_ident("cfg") && list.tokens.to_string() == "test"
    })
}

/// Returns, for each module, the modules of the crate that it depends on, except its parents and children.
fn dependencies(modules: &BTreeMap<String, syn::File>) -> BTreeMap<String, BTreeSet<String>> {
    let mut graph = BTreeMap::new();
    for (module, tree) in modules {
        let mut paths = Paths { inner: module.split("::").map(str::to_owned).collect(), found: Vec::new() };
        paths.inner.retain(|part| !part.is_empty());
        paths.visit_file(tree);
        let targets = paths.found.iter().map(|path| owner(path, modules));
        graph.insert(module.clone(), targets.filter(|target| !is_family(module, target)).collect());
    }
    graph
}

/// Returns the module of a path: its longest prefix that is a module.
fn owner(path: &[String], modules: &BTreeMap<String, syn::File>) -> String {
    (0..=path.len())
        .rev()
        .map(|len| path[..len].join("::"))
        .find(|start| modules.contains_key(start))
        .unwrap()
}

/// True if the two are equal, or one is a parent of the other.
fn is_family(one: &str, other: &str) -> bool {
    let is_above = |above: &str, below: &str| {
        above.is_empty()
            || below == above
            || below.strip_prefix(above).is_some_and(|rest| rest.starts_with("::"))
    };
    is_above(one, other) || is_above(other, one)
}

/// Collects the absolute paths within the crate.
struct Paths {
    /// The current module, inline modules included.
    inner: Vec<String>,
    found: Vec<Vec<String>>,
}

impl Paths {
    fn add(&mut self, path: &[String]) {
        let mut parts = path.iter();
        let mut absolute = match path.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("self") => self.inner.clone(),
            Some("super") => self.inner[..self.inner.len().saturating_sub(1)].to_vec(),
            _ => return,
        };
        parts.next();
        for part in parts {
            if part == "super" {
                absolute.pop();
            } else {
                absolute.push(part.clone());
            }
        }
        self.found.push(absolute);
    }

    fn add_tree(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.add_tree(&path.tree, &with(&path.ident)),
            syn::UseTree::Name(name) => self.add(&with(&name.ident)),
            syn::UseTree::Rename(rename) => self.add(&with(&rename.ident)),
            syn::UseTree::Glob(_) => self.add(before),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.add_tree(item, before)),
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            self.inner.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.inner.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.add_tree(&item.tree, &[]);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.add(&path.segments.iter().map(|segment| segment.ident.to_string()).collect::<Vec<_>>());
        visit::visit_path(self, path);
    }
}

/// Returns the sets of modules that reach each other (strongly connected components of more than one).
fn circles(graph: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|from| (from, reach(graph, from))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (from, targets) in &reached {
        let mutual = targets.iter().filter(|to| reached.get(**to).is_some_and(|back| back.contains(from)));
        let circle: BTreeSet<String> = mutual.map(|module| (*module).clone()).collect();
        if !circle.is_empty() && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

fn reach<'a>(graph: &'a BTreeMap<String, BTreeSet<String>>, from: &String) -> BTreeSet<&'a String> {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&String> = graph[from].iter().collect();
    while let Some(module) = open.pop() {
        if seen.insert(module) {
            open.extend(graph.get(module).into_iter().flatten());
        }
    }
    seen
}

fn join(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Returns the names in backticks of a Markdown text that this test can look up: files, and names with `::`,
/// `_` or an inner capital letter. Braces are expanded, arguments are removed.
fn quoted(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    // Code blocks and file lists are between lines of three backticks.
    for (index, block) in text.split("```").enumerate() {
        if index % 2 == 1 {
            continue;
        }
        for span in block.split('`').skip(1).step_by(2) {
            let span = span.split('(').next().unwrap_or(span);
            let plain = span.chars().all(|c| c.is_alphanumeric() || "_:/.{},-".contains(c));
            let is_name = span.contains("::") || span.contains('_') || span.chars().any(char::is_uppercase);
            if plain && !span.starts_with('-') && (span.contains('/') || span.ends_with(".rs") || is_name) {
                names.extend(written_out(span));
            }
        }
    }
    names
}

fn written_out(span: &str) -> Vec<String> {
    match span
        .split_once('{')
        .and_then(|(before, rest)| rest.split_once('}').map(|(list, after)| (before, list, after)))
    {
        Some((before, list, after)) => {
            list.split(',').flat_map(|part| written_out(&format!("{before}{}{after}", part.trim()))).collect()
        }
        None => vec![span.to_owned()],
    }
}

fn exists(name: &str, defined: &BTreeSet<String>) -> bool {
    if name.contains('/') || name.ends_with(".rs") {
        return is_file(name);
    }
    name.split("::").last().is_some_and(|last| last.is_empty() || defined.contains(last) || is_file(last))
}

/// True for a path from the root, from `crates/`, or anywhere in the sources of a crate.
fn is_file(name: &str) -> bool {
    let name = name.trim_end_matches('/');
    fn below(folder: &Path, name: &str) -> bool {
        folder.join(name).exists()
            || fs::read_dir(folder).is_ok_and(|entries| {
                entries.flatten().map(|entry| entry.path()).any(|path| path.is_dir() && below(&path, name))
            })
    }
    root().join(name).exists() || below(&root().join("crates"), name)
}

/// Returns every name that the crates define: items, methods, fields, variants, features.
fn definitions() -> BTreeSet<String> {
    struct Names(BTreeSet<String>);
    impl<'ast> Visit<'ast> for Names {
        fn visit_ident(&mut self, ident: &'ast syn::Ident) {
            self.0.insert(ident.to_string());
        }
    }
    let mut names = Names(BTreeSet::new());
    for name in crate_names() {
        names.0.insert(name.clone());
        for tree in sources(&name).values() {
            names.visit_file(tree);
        }
    }
    names.0
}
