//! Determines the commit of the program for `brisk --version`, from the variable BRISK_COMMIT or from git.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=BRISK_COMMIT");
    let given = std::env::var("BRISK_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(commit_of_git).unwrap_or_else(|| "unknown commit".to_owned());
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=BRISK_BUILD={commit}, {target}");
}

/// Returns the folder of this crate. It is read at run time, because a folder of build results that several
/// clones share may hold this script as compiled in another clone.
fn crate_folder() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it").into()
}

/// Returns the abbreviated hash and the date of the commit that is checked out; `None` outside a clone of the
/// repository.
fn commit_of_git() -> Option<String> {
    let root = crate_folder().join("../..").canonicalize().ok()?;
    // Sources may have been unpacked inside another repository.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root {
        return None;
    }
    let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["log", "-1", "--format=%h %cs", "--abbrev=12"])
}

/// Returns what git prints, without the end of the line.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).current_dir(crate_folder()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}
