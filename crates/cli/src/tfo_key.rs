//! `brisk tfo-key`: Fast Open keys, and their rotation in three steps.
//!
//! A key file holds `PRIMARY` or `PRIMARY,BACKUP`, the line that Linux takes as `net.ipv4.tcp_fastopen_key`.
//! A rotation has three steps. The servers of a farm do not change at the same time, and every server must
//! accept a cookie before any server issues it.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use brisk_runtime::KeySource;

use crate::failure::Failure;
use crate::{Common, output, private_file};

const EXAMPLES: &str = "\
Examples:
  brisk tfo-key                      print a new key
  brisk tfo-key keys                 write a new key into the file, or show what it holds
  brisk tfo-key keys --stage         step 1: add a new key as the backup; then distribute the file
  brisk tfo-key keys --swap          step 2: when all servers have it, make it the primary; then distribute
  brisk tfo-key keys --retire        step 3: after the overlap, remove the old key; then distribute
  sysctl -w net.ipv4.tcp_fastopen_key=$(cat keys)";

/// The flags of `tfo-key`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file with the keys; without it a new key is printed
    #[arg(value_name = "FILE", required_if_eq_any([("stage", "true"), ("swap", "true"), ("retire", "true")]))]
    file: Option<PathBuf>,
    /// Step 1 of a rotation: add a new key as the backup
    #[arg(long, conflicts_with_all = ["swap", "retire"])]
    stage: bool,
    /// Step 2: exchange primary and backup
    #[arg(long, conflicts_with = "retire")]
    swap: bool,
    /// Step 3: remove the backup
    #[arg(long)]
    retire: bool,
}

/// Prints or changes keys.
pub(crate) fn run(args: Args, _common: &Common) -> Result<(), Failure> {
    let Some(path) = &args.file else { return output::print_line(&fresh_key()?) };
    let line = match held(path)? {
        Some(line) if !(args.stage || args.swap || args.retire) => return output::print_line(&line),
        None if args.swap || args.retire => {
            return Err(refused(path, "the file does not exist; create it by the command without a flag"));
        }
        None => fresh_key()?,
        Some(line) => rotated(&line, &args, fresh_key).map_err(|why| refused(path, why))??,
    };
    store(path, &line)
}

/// Returns the line after a step, or the reason why the step is impossible now.
fn rotated(
    line: &str,
    args: &Args,
    fresh: impl FnOnce() -> Result<String, Failure>,
) -> Result<Result<String, Failure>, &'static str> {
    match (line.split_once(','), args.stage, args.swap) {
        (None, true, _) => Ok(fresh().map(|fresh| format!("{line},{fresh}"))),
        (Some(_), true, _) => Err("a rotation is under way: finish it with --swap and --retire"),
        (Some((primary, backup)), _, true) => Ok(Ok(format!("{backup},{primary}"))),
        (Some((primary, _)), _, false) => Ok(Ok(primary.to_owned())),
        (None, _, _) => Err("there is no backup key: add one with --stage first"),
    }
}

fn refused(path: &Path, why: &str) -> Failure {
    Failure::failed(format!("{}: {why}", path.display()))
}

/// Returns the line of the file, if the file exists.
fn held(path: &Path) -> Result<Option<String>, Failure> {
    let line = match std::fs::read_to_string(path) {
        Ok(text) => text.trim().to_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(path, &format!("cannot be read: {error}"))),
    };
    KeySource::parse(&line).map_err(|error| refused(path, &error.to_string()))?;
    Ok(Some(line))
}

/// Returns sixteen random bytes in Linux's format.
fn fresh_key() -> Result<String, Failure> {
    let mut words = [[0; 4]; 4];
    let drawn = File::open("/dev/urandom")
        .and_then(|mut source| words.iter_mut().try_for_each(|word| source.read_exact(word)));
    drawn.map_err(|error| Failure::failed(format!("cannot get random bytes from the system: {error}")))?;
    Ok(words.map(|word| format!("{:08x}", u32::from_le_bytes(word))).join("-"))
}

fn store(path: &Path, line: &str) -> Result<(), Failure> {
    private_file::replace(path, &format!("{line}\n"))
        .map_err(|error| refused(path, &format!("cannot be written: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(line: &str, stage: bool, swap: bool, retire: bool) -> Result<String, &'static str> {
        let args = Args { file: None, stage, swap, retire };
        let rotated = rotated(line, &args, || Ok("new".to_owned()))?;
        Ok(rotated.unwrap_or_else(|failure| panic!("{}", failure.message)))
    }

    #[test]
    fn a_rotation_takes_three_steps_in_this_order() {
        assert_eq!(step("old", true, false, false).as_deref(), Ok("old,new"));
        assert_eq!(step("old,new", false, true, false).as_deref(), Ok("new,old"));
        assert_eq!(step("new,old", false, false, true).as_deref(), Ok("new"));
        assert!(step("old,new", true, false, false).is_err(), "one rotation at a time");
        assert!(step("old", false, true, false).is_err() && step("old", false, false, true).is_err());
    }

    #[test]
    fn a_new_key_is_one_that_can_be_read_and_no_other() {
        let [one, other] =
            [(); 2].map(|()| fresh_key().unwrap_or_else(|failure| panic!("{}", failure.message)));
        assert!(KeySource::parse(&one).is_ok() && one != other, "{one}");
    }

    #[test]
    fn a_file_is_made_once_and_shown_afterwards() {
        let path = std::env::temp_dir().join(format!("brisk-tfo-key-{}", std::process::id()));
        let line = "1-2-3-4,5-6-7-8";
        store(&path, line).unwrap_or_else(|failure| panic!("{}", failure.message));
        let read = held(&path).unwrap_or_else(|failure| panic!("{}", failure.message));
        std::fs::remove_file(&path).expect("it was made");
        assert_eq!(read.as_deref(), Some(line));
        assert!(matches!(held(&path), Ok(None)));
    }
}
