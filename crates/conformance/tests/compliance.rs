//! Checks the compliance record (`compliance.toml`) against the sources. Every function, test and script that
//! it names exists. Every quotation in it is in one of them, and every quotation of these RFCs in the sources
//! is in the record. `docs/compliance.md` has the same content. `BRISK_WRITE=1 cargo test -p
//! brisk-conformance --test compliance` rewrites that page.
//!
//! The numbered sentences of `docs/wire` have a table of their own with the same checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    requirement: Vec<Requirement>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirement {
    rfc: u32,
    section: String,
    level: String,
    /// A quotation, a paraphrase, or both: a quotation that the paraphrase introduces.
    text: Option<String>,
    paraphrase: Option<String>,
    #[serde(default)]
    code: Vec<String>,
    #[serde(default)]
    test: Vec<String>,
    exception: Option<String>,
}

impl Requirement {
    fn words(&self) -> &str {
        self.text.as_deref().or(self.paraphrase.as_deref()).unwrap_or("")
    }

    /// Returns the parts of the quotation between omissions.
    fn fragments(&self) -> Vec<String> {
        fragments(self.text.as_deref().unwrap_or(""))
    }

    fn status(&self) -> &'static str {
        match (&self.exception, self.code.is_empty()) {
            (None, _) => "met and tested",
            (Some(_), false) => "partly met",
            (Some(_), true) => "not met",
        }
    }
}

fn fragments(text: &str) -> Vec<String> {
    text.split("[...]").map(spaced).filter(|part| !part.is_empty()).collect()
}

/// Normalises white space to single blanks.
fn spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn record() -> Record {
    let path = crates().join("conformance/compliance.toml");
    toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the comments of a file, one string for each run of lines.
fn comments(source: &str) -> Vec<String> {
    let mut runs = vec![String::new()];
    for line in source.lines() {
        match (line.trim_start().strip_prefix("//"), runs.last_mut()) {
            (Some(comment), Some(run)) => {
                run.push(' ');
                run.push_str(comment.trim_start_matches(['/', '!']));
            }
            (None, Some(run)) if !run.is_empty() => runs.push(String::new()),
            (_, _) => {}
        }
    }
    runs.iter().map(|run| spaced(run)).filter(|run| !run.is_empty()).collect()
}

/// True if `source` defines the function; with `test`, only if it is a test.
fn defines(source: &str, name: &str, test: bool) -> bool {
    source.match_indices(&format!("fn {name}")).any(|(at, found)| {
        let ends = source[at + found.len()..].starts_with(['(', '<']);
        let attributes = source[..at].rsplit("\n\n").next().unwrap_or("");
        ends && (!test || attributes.contains("#[test]"))
    })
}

/// Returns the error in a reference, if there is one.
fn wrong(place: &str, test: bool) -> Option<String> {
    let (file, name) = place.split_once("::").unwrap_or((place, ""));
    let Ok(source) = std::fs::read_to_string(crates().join(file)) else {
        return Some(format!("there is no {file}"));
    };
    let is_script = file.ends_with(".pkt");
    match (is_script, name) {
        (true, "") if test => None,
        (false, name) if !name.is_empty() && defines(&source, name, test) => None,
        _ => Some(format!("{place} is not a {}", if test { "test or script" } else { "function" })),
    }
}

#[test]
fn names_in_the_record_exist() {
    let mut faults = Vec::new();
    for requirement in &record().requirement {
        let at = format!("RFC {} section {}", requirement.rfc, requirement.section);
        if requirement.text.is_none() && requirement.paraphrase.is_none() {
            faults.push(format!("{at}: neither text nor paraphrase"));
        }
        if !["MUST", "MUST NOT", "SHOULD", "MAY", "RULE"].contains(&requirement.level.as_str()) {
            faults.push(format!("{at}: no level {}", requirement.level));
        }
        let covered = !requirement.code.is_empty() && !requirement.test.is_empty();
        let excused = requirement.exception.as_ref().is_some_and(|reason| reason.len() > 20);
        if !covered && !excused {
            faults.push(format!("{at}: neither code with a test nor an exception: {}", requirement.words()));
        }
        let code = requirement.code.iter().filter_map(|place| wrong(place, false));
        let test = requirement.test.iter().filter_map(|place| wrong(place, true));
        faults.extend(code.chain(test).map(|fault| format!("{at}: {fault}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn quotes_of_the_record_stand_at_the_code_or_test() {
    let mut faults = Vec::new();
    for requirement in &record().requirement {
        let files: BTreeSet<&str> = requirement
            .code
            .iter()
            .chain(&requirement.test)
            .map(|place| place.split_once("::").map_or(place.as_str(), |(file, _)| file))
            .collect();
        let said: Vec<String> = files
            .iter()
            .filter_map(|file| std::fs::read_to_string(crates().join(file)).ok())
            .flat_map(|source| comments(&source))
            .collect();
        for fragment in requirement.fragments() {
            if !said.iter().any(|run| run.contains(&fragment)) {
                faults.push(format!("RFC {} section {}: {fragment}", requirement.rfc, requirement.section));
            }
        }
    }
    assert!(faults.is_empty(), "quoted in none of the files named:\n{}", faults.join("\n"));
}

/// Returns the quotations in a comment that follow the name of a section: `RFC N section S: "..."`.
fn quotations(comment: &str) -> Vec<(u32, String)> {
    /// Maximum distance between the section and the quotation, bytes.
    const NEAR: usize = 40;
    let mut found = Vec::new();
    for (at, _) in comment.match_indices("RFC ") {
        let rest = &comment[at + 4..];
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (Ok(rfc), behind) = (rest[..digits].parse(), &rest[digits..]) else { continue };
        let Some(behind) = behind.strip_prefix(" section ") else { continue };
        let Some((before, quoted)) = behind.split_once('"') else { continue };
        let names_another = before.contains("RFC ") || before.contains(". ");
        if before.chars().count() <= NEAR
            && !names_another
            && let Some((text, _)) = quoted.split_once('"')
        {
            found.push((rfc, text.to_owned()));
        }
    }
    found
}

#[test]
fn quotations_are_found_in_comments() {
    let comment = "RFC 9293 section 3.1: \"one [...] two\". RFC 5681 section 4.2 asks for \"three\"; RFC 1 says \"no\".";
    let expected = [(9293, "one [...] two".to_owned()), (5681, "three".to_owned())];
    assert_eq!(quotations(comment), expected);
    assert_eq!(comments("a\n// one\n/// two\nb // c\n//! three"), ["one two", "three"]);
}

fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let is_source = path.extension().is_some_and(|extension| extension == "rs" || extension == "pkt");
        if path.is_dir() {
            sources(&path, into);
        } else if is_source {
            into.push(path);
        }
    }
}

#[test]
fn quotes_of_the_sources_are_in_the_record() {
    let record = record();
    let mut texts: BTreeMap<u32, String> = BTreeMap::new();
    for requirement in &record.requirement {
        let all = texts.entry(requirement.rfc).or_default();
        let _ = writeln!(all, "{}", spaced(requirement.words()));
    }
    let mut files = Vec::new();
    for name in ["tcp", "wire", "script"] {
        sources(&crates().join(name), &mut files);
    }
    let (mut faults, mut count) = (Vec::new(), 0);
    for file in files {
        let source = std::fs::read_to_string(&file).unwrap();
        for (rfc, quoted) in comments(&source).iter().flat_map(|comment| quotations(comment)) {
            let Some(known) = texts.get(&rfc) else { continue };
            count += 1;
            let missing =
                fragments(&quoted).into_iter().filter(|fragment| !known.contains(fragment.as_str()));
            faults.extend(missing.map(|fragment| format!("{}: RFC {rfc}: {fragment}", file.display())));
        }
    }
    assert!(faults.is_empty(), "not in the record:\n{}", faults.join("\n"));
    assert!(count > 100, "the quotations are found: {count}");
}

/// Returns the page: a count for each RFC, then every requirement.
fn page(record: &Record) -> String {
    let mut page = String::from(
        "# Compliance\n\n\
         This page lists requirements of TCP's RFCs, with the code that meets each and its tests. It is generated from\n\
         `crates/conformance/compliance.toml`; `cargo test -p brisk-conformance --test compliance` checks both against the\n\
         sources. Words in quotation marks are quotations, which also occur in comments of the named code or tests; other words\n\
         are paraphrases. The list contains the most important requirements; it is not complete.\n\n\
         *partly met*: by default the code deviates from the requirement in the way described. *not met*: the row gives the reason.\n\n\
         | RFC | met and tested | partly met | not met |\n|---|---:|---:|---:|\n",
    );
    let rfcs: BTreeSet<u32> = record.requirement.iter().map(|requirement| requirement.rfc).collect();
    for rfc in &rfcs {
        let count = |status| {
            let these = record.requirement.iter().filter(|one| one.rfc == *rfc && one.status() == status);
            these.count()
        };
        let (met, part, not) = (count("met and tested"), count("partly met"), count("not met"));
        let _ = writeln!(page, "| {rfc} | {met} | {part} | {not} |");
    }
    for rfc in rfcs {
        let _ = write!(
            page,
            "\n## RFC {rfc}\n\n| section | level | requirement | code | tests |\n|---|---|---|---|---|\n"
        );
        for one in record.requirement.iter().filter(|one| one.rfc == rfc) {
            let escaped = one.words().replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*");
            let words = match (&one.text, &one.paraphrase) {
                (Some(_), Some(context)) => format!("{context}: \"{escaped}\""),
                (Some(_), None) => format!("\"{escaped}\""),
                _ => escaped,
            };
            let words = match &one.exception {
                Some(reason) => format!("{words} **{}**: {reason}", one.status()),
                None => words,
            };
            let list = |places: &[String]| {
                let short =
                    places.iter().map(|place| format!("`{}`", place.trim_start_matches("script/scripts/")));
                short.collect::<Vec<_>>().join(" ")
            };
            let (code, test) = (list(&one.code), list(&one.test));
            let _ = writeln!(page, "| {} | {} | {words} | {code} | {test} |", one.section, one.level);
        }
    }
    page
}

#[test]
fn page_has_the_content_of_the_record() {
    let path = crates().parent().unwrap().join("docs/compliance.md");
    let expected = page(&record());
    if std::env::var_os("BRISK_WRITE").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "docs/compliance.md is not what compliance.toml says: rewrite it");
}

/// Maximum number of sentences of `docs/wire` without a test.
const WIRE_SENTENCES_WITHOUT_TEST: usize = 5;

/// Returns the pages of `docs/wire` except the table.
fn wire_pages() -> String {
    let directory = crates().parent().unwrap().join("docs/wire");
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let pages = files.filter(|path| is_page(path) && !path.ends_with("compliance.md"));
    pages.map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// Returns every `W-1.2` in a text.
fn wire_numbers(text: &str) -> Vec<String> {
    let found = text.match_indices("W-").map(|(at, _)| &text[at..]);
    let numbers = found.map(|rest| {
        let digits = |c: &char| c.is_ascii_digit() || matches!(c, 'W' | '-' | '.');
        rest.chars().take_while(digits).collect::<String>().trim_end_matches('.').to_owned()
    });
    numbers.filter(|number| number.contains('.')).collect()
}

/// Returns mismatches between the sentences and the rows of their table, and the number of untested
/// sentences.
fn wire_faults(pages: &str, table: &str) -> (Vec<String>, usize) {
    let mut faults = Vec::new();
    let mut sentences = BTreeSet::new();
    for part in pages.split("**W-").skip(1) {
        let number = format!("W-{}", part.split("**").next().unwrap_or(""));
        if !sentences.insert(number.clone()) {
            faults.push(format!("{number} stands for two sentences"));
        }
    }
    let referred = wire_numbers(pages).into_iter().filter(|number| !sentences.contains(number));
    faults.extend(referred.map(|number| format!("{number} is referred to but is not a sentence")));
    let (mut rows, mut without) = (BTreeSet::new(), 0);
    for row in table.lines().filter_map(|line| line.strip_prefix("| W-")) {
        let (number, tests) = row.split_once(" | ").unwrap_or((row, ""));
        let number = format!("W-{number}");
        if !sentences.contains(&number) || !rows.insert(number.clone()) {
            faults.push(format!("the row {number} has no sentence of its own"));
        }
        let tests = tests.trim_end_matches(" |");
        if tests == "none" {
            without += 1;
            continue;
        }
        let places: Vec<_> = tests.split(' ').map(|place| place.trim_matches('`')).collect();
        for place in places {
            let is_script = place.ends_with(".pkt");
            let place = if is_script { format!("script/scripts/{place}") } else { place.to_owned() };
            faults.extend(wrong(&place, true).map(|fault| format!("{number}: {fault}")));
        }
    }
    faults.extend(sentences.difference(&rows).map(|number| format!("{number} has no row")));
    (faults, without)
}

#[test]
fn each_sentence_of_the_wire_format_has_a_row_with_tests_that_exist() {
    let table = crates().parent().unwrap().join("docs/wire/compliance.md");
    let (faults, without) = wire_faults(&wire_pages(), &std::fs::read_to_string(table).unwrap());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    println!("sentences of docs/wire without a test: {without}");
    assert!(without <= WIRE_SENTENCES_WITHOUT_TEST, "{without} sentences have no test");
}

#[test]
fn faults_between_sentences_and_rows_are_found() {
    let pages = "- **W-1.1** One MUST (W-1.3).\n- **W-1.2** Two MUST. **W-1.1** Again.";
    let table = "| W-1.1 | none |\n| W-1.4 | `tcp/src/lib.rs::no_such_test` |\n";
    let (faults, without) = wire_faults(pages, table);
    let expected = [
        "W-1.1 stands for two sentences",
        "W-1.3 is referred to but is not a sentence",
        "the row W-1.4 has no sentence of its own",
        "W-1.4: tcp/src/lib.rs::no_such_test is not a test or script",
        "W-1.2 has no row",
    ];
    assert_eq!((faults.iter().map(String::as_str).collect::<Vec<_>>(), without), (expected.to_vec(), 1));
}
