//! The copy of the sources, and the build of its tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::embed::embed;
use crate::judge::Test;
use crate::list::Mutant;

/// The module that is added to the copy. It returns whether a mutant is selected.
const QUESTION: &str = "//! The selected mutant.\nextern crate std;\nuse std::sync::LazyLock;\n\
    static TURN: LazyLock<u32> = LazyLock::new(|| {\n\
    std::env::var(\"BRISK_MUTANT\").ok().and_then(|turn| turn.parse().ok()).unwrap_or(0) });\n\
    /// True if this mutant is selected.\npub(crate) fn is(id: u32) -> bool { *TURN == id }\n";
/// Maximum number of builds; each removes the mutants that did not compile.
const TRIES: u32 = 40;

/// A copy of the sources.
pub struct Tree {
    root: PathBuf,
    build: PathBuf,
    package: String,
}

impl Tree {
    /// Copies the files that git tracks in this directory to `directory`.
    pub fn copy(directory: &Path, package: &str) -> Result<Tree> {
        fs::create_dir_all(directory)?;
        let directory = directory.canonicalize()?;
        let root = directory.join("tree");
        if root.exists() {
            fs::remove_dir_all(&root)?;
        }
        let known = Command::new("git").arg("ls-files").output()?;
        ensure!(known.status.success(), "git ls-files: {}", String::from_utf8_lossy(&known.stderr));
        for file in String::from_utf8(known.stdout)?.lines() {
            let to = root.join(file);
            fs::create_dir_all(to.parent().context("a file in a folder")?)?;
            fs::copy(file, &to).with_context(|| file.to_owned())?;
        }
        Ok(Tree { root, build: directory.join("build"), package: package.to_owned() })
    }

    /// Embeds mutants in the copy and builds the tests of the package and of `others`. Returns the tests and the mutants that compile.
    pub fn build(&self, drawn: &[Mutant], others: &[String]) -> Result<(Vec<Test>, Vec<Mutant>)> {
        let mut left = drawn.to_vec();
        for _ in 0..TRIES {
            let lost = self.write(drawn, &left)?;
            left.retain(|mutant| !lost.contains(&mutant.id));
            println!("building with {} mutants", left.len());
            let (tests, broken) = self.compile(others)?;
            if broken.is_empty() {
                return Ok((tests, left));
            }
            for mutant in left.iter().filter(|mutant| broken.contains(&mutant.id)) {
                println!("  does not compile: {}", mutant.name);
            }
            left.retain(|mutant| !broken.contains(&mutant.id));
        }
        bail!("after {TRIES} builds there are still mutants that do not compile")
    }

    /// Writes every file that has a drawn mutant, with the mutants in `left`. Returns the numbers of those that cannot be embedded.
    fn write(&self, drawn: &[Mutant], left: &[Mutant]) -> Result<BTreeSet<u32>> {
        let mut files: BTreeMap<&Path, Vec<&Mutant>> = BTreeMap::new();
        for mutant in drawn {
            files.entry(&mutant.file).or_default();
        }
        for mutant in left {
            files.entry(&mutant.file).or_default().push(mutant);
        }
        let mut lost = BTreeSet::new();
        for (file, mutants) in files {
            let text = fs::read_to_string(file)?;
            let (text, not) = embed(&text, &mutants).with_context(|| file.display().to_string())?;
            lost.extend(not);
            fs::write(self.root.join(file), text)?;
        }
        self.add_question()?;
        Ok(lost)
    }

    fn add_question(&self) -> Result<()> {
        let name = self.package.strip_prefix("brisk-").unwrap_or(&self.package);
        let source = self.root.join("crates").join(name).join("src");
        fs::write(source.join("mutant.rs"), QUESTION)?;
        let lib = source.join("lib.rs");
        let text = fs::read_to_string(&lib).with_context(|| lib.display().to_string())?;
        if !text.contains("\nmod mutant;\n") {
            fs::write(&lib, text + "\nmod mutant;\n")?;
        }
        Ok(())
    }

    /// Builds the tests. Returns them, and the mutants in lines with errors.
    fn compile(&self, others: &[String]) -> Result<(Vec<Test>, BTreeSet<u32>)> {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&self.root).args([
            "test",
            "-q",
            "--no-run",
            "--message-format=json",
            "-p",
            &self.package,
        ]);
        for other in others {
            cargo.args(["-p", other]);
        }
        let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        cargo.env("CARGO_TARGET_DIR", &self.build).env("RUSTFLAGS", format!("{flags} -Awarnings"));
        let output = cargo.stderr(Stdio::null()).output()?;
        let (mut tests, mut broken, mut last) = (Vec::new(), BTreeSet::new(), String::new());
        for line in String::from_utf8(output.stdout)?.lines() {
            let message: Value = serde_json::from_str(line)?;
            tests.extend(Test::of(&message));
            if message["message"]["level"] == "error" {
                last = message["message"]["rendered"].to_string();
                broken.extend(self.guilty(&message["message"]));
            }
        }
        ensure!(output.status.success() || !broken.is_empty(), "the copy does not build: {last}");
        Ok((tests, broken))
    }

    /// Returns the mutants nearest to an error: above it, or below it if an arm of a `match` is missing.
    fn guilty(&self, message: &Value) -> Vec<u32> {
        let lacks_an_arm = message["code"]["code"] == "E0004";
        let mut guilty = Vec::new();
        for span in
            message["spans"].as_array().into_iter().flatten().filter(|span| span["is_primary"] == true)
        {
            let (Some(file), Some(line)) = (span["file_name"].as_str(), span["line_start"].as_u64()) else {
                continue;
            };
            let Ok(text) = fs::read_to_string(self.root.join(file)) else { continue };
            let line = line as usize;
            let nearest = match lacks_an_arm {
                true => text.lines().skip(line).map(asked).find(|asked| !asked.is_empty()),
                false => {
                    let above: Vec<&str> = text.lines().take(line).collect();
                    above.iter().rev().map(|line| asked(line)).find(|asked| !asked.is_empty())
                }
            };
            guilty.extend(nearest.unwrap_or_default());
        }
        guilty
    }
}

/// Returns the mutants that a line selects.
fn asked(line: &str) -> Vec<u32> {
    line.split("crate::mutant::is(").skip(1).filter_map(|rest| rest.split(')').next()?.parse().ok()).collect()
}
