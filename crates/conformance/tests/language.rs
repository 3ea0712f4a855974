//! The wording of comments and of `docs/`: the share of lines that open a sentence with a clause in place of
//! a subject ("What …", "Who …", "So long …"), and words that have a plainer equivalent.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum share of lines with a headless opening in comments and in pages, percent.
const SHARE: f64 = 0.1;
/// Words that have a plainer equivalent.
const WORDS: &[(&str, &str)] = &[("anew", "again"), ("own up", "report")];

/// Maximum width of a comment line, as in `rustfmt.toml`.
const WIDTH: usize = 110;

const OPENINGS: &[&str] = &["What", "Who", "Whoever", "Whom", "Whatever", "That which", "So long"];

#[test]
fn few_comments_open_with_a_headless_clause() {
    check("comments", &comments());
}

#[test]
fn comments_fit_the_width() {
    let files = files(&root().join("crates"), "rs");
    let wide: Vec<Line> = files.iter().flat_map(|file| read(file, wide_comments)).collect();
    assert!(wide.is_empty(), "wider than {WIDTH} columns:\n{}", list(&wide.iter().collect::<Vec<_>>()));
}

#[test]
fn few_pages_open_a_sentence_with_a_headless_clause() {
    check("pages", &pages());
}

#[test]
fn replaced_words_do_not_occur() {
    let mut lines = comments();
    lines.extend(pages());
    for (word, plain) in WORDS {
        let found: Vec<&Line> = lines.iter().filter(|line| contains_word(&line.text, word)).collect();
        assert!(found.is_empty(), "write {plain:?}, not {word:?}:\n{}", list(&found));
    }
}

#[test]
fn links_between_pages_lead_to_a_file() {
    let mut broken = String::new();
    for file in page_files() {
        let text = fs::read_to_string(&file).unwrap();
        for target in links(&text) {
            let path = target.split('#').next().unwrap();
            if !target.contains("://") && !file.parent().unwrap().join(path).exists() {
                writeln!(broken, "{}: {target}", file.display()).unwrap();
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{broken}");
}

#[test]
fn summary_of_the_site_has_every_page() {
    let folder = root().join("docs");
    let summary = fs::read_to_string(folder.join("SUMMARY.md")).unwrap();
    let listed = links(&summary);
    for file in files(&folder, "md") {
        let name = file.strip_prefix(&folder).unwrap().display().to_string();
        assert!(name == "SUMMARY.md" || listed.contains(&name), "docs/SUMMARY.md lacks {name}");
    }
}

#[test]
fn pages_have_at_most_300_lines() {
    for file in files(&root().join("docs"), "md") {
        let name = file.strip_prefix(root().join("docs")).unwrap().display().to_string();
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= 300, "{name} has {lines} lines, more than 300");
    }
}

#[test]
fn links_are_found_outside_of_code() {
    let text = "see [a](b.md#c) and `[x](y)`\n```\n[d](e)\n```\n[f](https://g)";
    assert_eq!(links(text), ["b.md#c", "https://g"]);
}

#[test]
fn headless_opening_is_distinguished_from_questions_and_names() {
    for bad in [
        "What the connection did so far.",
        "Who does not hold the key is reset.",
        "Whoever holds the key may connect.",
        "Sends it. What is lost stays lost.",
        "So long a peer is silent, nothing leaves.",
        "That which is lost comes again.",
        "(What follows is sealed.)",
        "Whatever arrives is counted.",
    ] {
        assert!(is_headless(bad), "{bad}");
    }
    for good in [
        "Returns what the connection did so far.",
        "Peers without the key are reset.",
        "What must hold? The sum.",
        "So long as a peer is silent, nothing leaves.",
        "Whole segments are sent.",
        "The client asks who is there.",
        "`What` is the kind of event.",
        "Whatsoever",
    ] {
        assert!(!is_headless(good), "{good}");
    }
}

#[test]
fn a_wide_comment_is_found_unless_it_is_a_row_of_a_table() {
    let long = "x".repeat(WIDTH);
    let rust = format!("// short\n    // {long}\n//! | {long} |\nlet a = \"{long}\";\n");
    assert_eq!(texts(wide_comments("a.rs", &rust)), [format!("// {long}")]);
}

#[test]
fn text_is_taken_from_comments_and_outside_code_blocks() {
    let rust = "//! Head.\nlet a = 1; // no line of its own\n    /// Doc.\n//\n";
    assert_eq!(texts(comment_lines("a.rs", rust)), ["Head.", "Doc."]);
    let page = "# What is on\n\n```sh\nWhat\n```\n- Who asks\n| What | cell |\n";
    assert_eq!(texts(page_lines("a.md", page)), ["What is on", "Who asks", "What | cell |"]);
}

struct Line {
    place: String,
    text: String,
}

fn texts(lines: Vec<Line>) -> Vec<String> {
    lines.into_iter().map(|line| line.text).collect()
}

/// Prints the share of `lines` with a headless opening; panics with the lines if it exceeds [`SHARE`].
fn check(name: &str, lines: &[Line]) {
    let found: Vec<&Line> = lines.iter().filter(|line| is_headless(&line.text)).collect();
    let share = found.len() as f64 * 100.0 / lines.len() as f64;
    println!("{name}: {} of {} lines, {share:.2} %", found.len(), lines.len());
    assert!(
        share <= SHARE,
        "{share:.3} % of the lines open a sentence with a headless clause, above {SHARE} %:\n{}",
        list(&found)
    );
}

fn list(lines: &[&Line]) -> String {
    let mut text = String::new();
    for line in lines {
        writeln!(text, "{}: {}", line.place, line.text).unwrap();
    }
    text
}

/// True if a sentence begins on this line with a clause as its subject and is not a question.
fn is_headless(text: &str) -> bool {
    let starts = text.match_indices([' ', '(']).filter_map(|(at, _)| {
        let before = text[..at].trim_end();
        (before.is_empty() || before.ends_with(['.', '!', '?', ')']) || text[at..].starts_with('('))
            .then(|| &text[at + 1..])
    });
    std::iter::once(text).chain(starts).any(|sentence| {
        let opens = OPENINGS.iter().any(|opening| {
            sentence.strip_prefix(opening).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        });
        let end = sentence.find(['.', '?']).map(|at| &sentence[at..]);
        opens && !sentence.starts_with("So long as") && !end.is_some_and(|end| end.starts_with('?'))
    })
}

fn contains_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let is_letter = |c: char| c.is_alphanumeric() || c == '_';
        !text[..at].ends_with(is_letter) && !text[at + word.len()..].starts_with(is_letter)
    })
}

/// Returns the comment lines of all crates, without their marks.
fn comments() -> Vec<Line> {
    let files = files(&root().join("crates"), "rs");
    files
        .iter()
        .filter(|file| !file.ends_with("tests/language.rs"))
        .flat_map(|file| read(file, comment_lines))
        .collect()
}

/// Returns the lines of text of `docs/` and of the pages at the root.
fn pages() -> Vec<Line> {
    page_files().iter().flat_map(|file| read(file, page_lines)).collect()
}

fn page_files() -> Vec<PathBuf> {
    let mut files = files(&root().join("docs"), "md");
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"] {
        files.push(root().join(name));
    }
    files
}

/// Returns the targets of the links in a page, except those in code.
fn links(text: &str) -> Vec<String> {
    let outside = text.split("```").step_by(2).collect::<String>();
    let prose = outside.split('`').step_by(2).collect::<String>();
    prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

fn read(file: &Path, lines: fn(&str, &str) -> Vec<Line>) -> Vec<Line> {
    let name = file.strip_prefix(root()).unwrap().display().to_string();
    lines(&name, &fs::read_to_string(file).unwrap())
}

fn comment_lines(name: &str, text: &str) -> Vec<Line> {
    numbered(name, text)
        .filter(|line| line.text.starts_with("//"))
        .map(|line| Line { text: line.text.trim_start_matches(['/', '!']).trim().to_owned(), ..line })
        .filter(|line| !line.text.is_empty())
        .collect()
}

/// Returns the comments that exceed [`WIDTH`], except rows of tables and code, which cannot be wrapped.
fn wide_comments(name: &str, text: &str) -> Vec<Line> {
    let is_wide = text.lines().map(|line| line.chars().count() > WIDTH).collect::<Vec<_>>();
    let mut in_code = false;
    numbered(name, text)
        .zip(is_wide)
        .filter(|(line, _)| line.text.starts_with("//"))
        .filter(|(line, is_wide)| {
            let words = line.text.trim_start_matches(['/', '!', ' ']);
            in_code ^= words.starts_with("```");
            *is_wide && !in_code && !words.starts_with('|')
        })
        .map(|(line, _)| line)
        .collect()
}

fn page_lines(name: &str, text: &str) -> Vec<Line> {
    let mut in_code = false;
    numbered(name, text)
        .filter(|line| {
            let is_fence = line.text.starts_with("```");
            in_code ^= is_fence;
            !in_code && !is_fence
        })
        .map(|line| Line {
            text: line.text.trim_start_matches(['#', '-', '*', '>', '|', ' ']).to_owned(),
            ..line
        })
        .filter(|line| !line.text.is_empty())
        .collect()
}

fn numbered(name: &str, text: &str) -> impl Iterator<Item = Line> {
    text.lines().enumerate().map(move |(index, line)| Line {
        place: format!("{name}:{}", index + 1),
        text: line.trim().to_owned(),
    })
}

/// Returns all files below `folder` with this extension, sorted by name.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}
