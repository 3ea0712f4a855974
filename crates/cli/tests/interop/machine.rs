//! Rights that the tests need, and the tests that are skipped without them.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// Skips the test, with the reason, unless network namespaces and these programs are available.
macro_rules! require {
    ($($program:literal),* $(,)?) => {
        if let Err(why) = $crate::machine::has(&[$($program),*]) {
            $crate::machine::skipped(&why);
            return;
        }
    };
}

/// Checks for network namespaces with TUN devices and for `programs`. The error is what is missing.
pub(crate) fn has(programs: &[&str]) -> Result<(), String> {
    static RIGHTS: OnceLock<Result<(), String>> = OnceLock::new();
    RIGHTS.get_or_init(rights).clone()?;
    match programs.iter().find(|program| !is_installed(program)) {
        Some(missing) => Err(format!("needs the program {missing}")),
        None => Ok(()),
    }
}

/// Prints the reason directly to stderr, because the capture of test output would hide it.
pub(crate) fn skipped(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // In one write, since other tests write too. If stderr is closed, nobody reads the line.
    let _ = std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes());
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Creates a namespace and a TUN device in it, as every test does.
fn rights() -> Result<(), String> {
    if !is_installed("ip") {
        return Err("needs the program ip".to_owned());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err("needs the device /dev/net/tun".to_owned());
    }
    let name = format!("brisk-it-{}-probe", std::process::id());
    let ip = |words: &[&str]| Command::new("ip").args(words).output().is_ok_and(|out| out.status.success());
    let made = ip(&["netns", "add", &name]);
    let works = made && ip(&["-n", &name, "tuntap", "add", "dev", "probe", "mode", "tun"]);
    if made {
        ip(&["netns", "delete", &name]);
    }
    match works {
        true => Ok(()),
        false => {
            Err("needs root, or a user namespace and access to /dev/net/tun, for namespaces with TUN devices"
                .to_owned())
        }
    }
}
