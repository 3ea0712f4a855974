//! The place of keys: a file, a directory in the layout of a mounted Kubernetes Secret, or a systemd
//! credential.

use std::fmt;
use std::path::{Path, PathBuf};

/// Maximum size of a file, bytes; it exceeds that of any key or secret.
const MAX_BYTES: u64 = 64 << 10;

/// A file, or a directory of files, that holds keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place(PathBuf);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.display())
    }
}

impl Place {
    /// Reads `PATH` or `credential:NAME`.
    pub(super) fn parse(text: &str) -> Result<Place, String> {
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY");
        Place::parse_beside(text, credentials.as_deref().map(Path::new))
    }

    fn parse_beside(text: &str, credentials: Option<&Path>) -> Result<Place, String> {
        let Some(name) = text.strip_prefix("credential:") else {
            return match text.split_once("://") {
                Some((scheme, _)) => Err(format!(
                    "{scheme}:// is not supported; write the keys to a file or directory and name it, or write credential:NAME"
                )),
                None => Ok(Place(PathBuf::from(text))),
            };
        };
        let directory = credentials.ok_or(
            "systemd passed no credentials: run as a unit with LoadCredential=NAME:PATH, or name the file",
        )?;
        // The name must be one component, so that it cannot lead out of the directory.
        match Path::new(name).components().collect::<Vec<_>>()[..] {
            [std::path::Component::Normal(_)] => Ok(Place(directory.join(name))),
            _ => Err("write credential:NAME with a NAME from LoadCredential=".to_owned()),
        }
    }

    /// Returns the line with one key or two.
    pub(super) fn keys(&self) -> Result<String, String> {
        if self.0.is_dir() {
            return pair(&current(&self.0));
        }
        String::from_utf8(contents(&self.0)?)
            .map_err(|_| "it is not text; write the key in hexadecimal".to_owned())
    }

    /// Returns the bytes of a secret, without the line end.
    pub(super) fn secret(&self) -> Result<Vec<u8>, String> {
        let mut secret = match self.0.is_dir() {
            true => contents(&current(&self.0).join("master"))?,
            false => contents(&self.0)?,
        };
        while secret.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            secret.pop();
        }
        Ok(secret)
    }
}

/// Returns the directory that a mounted Secret shows now. The files of the Secret are links into `..data`, a
/// link that is replaced atomically. It is read once, so both keys are from the same step of a rotation.
fn current(directory: &Path) -> PathBuf {
    std::fs::canonicalize(directory.join("..data")).unwrap_or_else(|_| directory.to_owned())
}

fn pair(directory: &Path) -> Result<String, String> {
    let text = |name: &str| {
        let text = String::from_utf8(contents(&directory.join(name))?);
        text.map(|text| text.trim().to_owned()).map_err(|_| format!("{name} is not text"))
    };
    let primary = text("primary")?;
    match directory.join("backup").exists() {
        true => Ok(format!("{primary},{}", text("backup")?)),
        false => Ok(primary),
    }
}

fn contents(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: &dyn std::fmt::Display| match path.file_name() {
        // For a key in a directory, the error names the file.
        Some(name) => format!("the key cannot be read: {error} ({})", name.display()),
        None => format!("the key cannot be read: {error}"),
    };
    let size = std::fs::metadata(path).map_err(|error| unreadable(&error))?.len();
    if size > MAX_BYTES {
        return Err(unreadable(&format!("it has {size} bytes")));
    }
    std::fs::read(path).map_err(|error| unreadable(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let at = std::env::temp_dir().join(format!("brisk-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&at).expect("a directory");
            Directory(at)
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.join(name);
            std::fs::create_dir_all(path.parent().expect("inside")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_and_a_directory_hold_the_same_keys() {
        let at = Directory::new("keys");
        at.write("file", "1-2-3-4,5-6-7-8\n");
        at.write("secret/primary", "1-2-3-4\n");
        let file = Place(at.0.join("file"));
        let secret = Place(at.0.join("secret"));
        assert_eq!(secret.keys().as_deref(), Ok("1-2-3-4"));
        at.write("secret/backup", "5-6-7-8");
        assert_eq!(secret.keys().as_deref(), Ok("1-2-3-4,5-6-7-8"));
        assert_eq!(file.keys().as_deref(), Ok("1-2-3-4,5-6-7-8\n"));
        at.write("secret/master", "0123456789abcdef\n");
        assert_eq!(secret.secret().as_deref(), Ok(&b"0123456789abcdef"[..]));
        let missing = Place(at.0.join("nothing")).keys().expect_err("missing");
        assert!(missing.contains("cannot be read") && missing.contains("nothing"), "{missing}");
    }

    /// Like the kubelet: creates a new directory and a new link next to it, and renames the link over the old
    /// one.
    #[test]
    fn a_mounted_secret_is_read_as_of_one_moment() {
        let at = Directory::new("mounted");
        at.write("..one/primary", "1-1-1-1");
        at.write("..one/backup", "2-2-2-2");
        at.write("..two/primary", "2-2-2-2");
        at.write("..two/backup", "1-1-1-1");
        symlink("..one", at.0.join("..data")).expect("a link");
        for name in ["primary", "backup"] {
            symlink(format!("..data/{name}"), at.0.join(name)).expect("a link");
        }
        let mounted = Place(at.0.clone());
        assert_eq!(mounted.keys().as_deref(), Ok("1-1-1-1,2-2-2-2"));
        let seen = current(&at.0);
        symlink("..two", at.0.join("..data_tmp")).expect("a link");
        std::fs::rename(at.0.join("..data_tmp"), at.0.join("..data")).expect("exchanged");
        assert_eq!(
            pair(&seen).as_deref(),
            Ok("1-1-1-1,2-2-2-2"),
            "a reader that had begun gets the old pair"
        );
        assert_eq!(mounted.keys().as_deref(), Ok("2-2-2-2,1-1-1-1"));
    }

    #[test]
    fn a_credential_is_a_file_of_its_directory() {
        let directory = Path::new("/run/credentials/brisk.service");
        let parse = |text| Place::parse_beside(text, Some(directory));
        assert_eq!(parse("credential:key"), Ok(Place(directory.join("key"))));
        for bad in
            ["credential:", "credential:../key", "credential:a/b", "credential:/etc/passwd", "credential:.."]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let error = Place::parse_beside("credential:key", None).expect_err("no unit");
        assert!(error.contains("LoadCredential="), "{error}");
        assert_eq!(parse("keys"), Ok(Place(PathBuf::from("keys"))));
    }

    #[test]
    fn a_url_is_refused_with_the_remedy() {
        let error = Place::parse("etcd://127.0.0.1:2379/keys").expect_err("a URL");
        assert!(error.contains("etcd://") && error.contains("write the keys to a file"), "{error}");
    }
}
