//! Where keys can be kept: a file, a directory in the layout of a mounted Kubernetes Secret, a systemd credential, etcd.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often files are looked at. A mounted Secret changes by exchanging links, which no notification of a file shows.
const INTERVAL: Duration = Duration::from_secs(2);
/// More than any key or secret has.
pub(super) const MAX_BYTES: u64 = 64 << 10;

/// A place for keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// A file or a directory.
    Path(PathBuf),
    /// A key of etcd.
    #[cfg(feature = "etcd")]
    Etcd(super::etcd::Etcd),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Path(path) => write!(f, "{}", path.display()),
            #[cfg(feature = "etcd")]
            Place::Etcd(etcd) => write!(f, "{etcd}"),
        }
    }
}

impl Place {
    /// Reads `PATH`, `credential:NAME` or `etcd://HOST:PORT/KEY`.
    pub(super) fn parse(text: &str) -> Result<Place, String> {
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY");
        Place::parse_beside(text, credentials.as_deref().map(Path::new))
    }

    fn parse_beside(text: &str, credentials: Option<&Path>) -> Result<Place, String> {
        if let Some(name) = text.strip_prefix("credential:") {
            let directory = credentials.ok_or(
                "no credentials: run as a systemd unit with LoadCredential=NAME:PATH, or name the file",
            )?;
            // One component: a name cannot lead out of the directory.
            return match Path::new(name).components().collect::<Vec<_>>()[..] {
                [std::path::Component::Normal(_)] => Ok(Place::Path(directory.join(name))),
                _ => Err("write credential:NAME with the name that LoadCredential= gives".to_owned()),
            };
        }
        match text.strip_prefix("etcd://") {
            #[cfg(feature = "etcd")]
            Some(rest) => super::etcd::Etcd::parse(rest).map(Place::Etcd),
            #[cfg(not(feature = "etcd"))]
            Some(_) => Err("this program was built without etcd: cargo build --features etcd".to_owned()),
            None => Ok(Place::Path(PathBuf::from(text))),
        }
    }

    /// The line with one key or two.
    pub(super) async fn keys(&self) -> Result<String, String> {
        let text = match self {
            Place::Path(path) if path.is_dir() => return pair(&current(path)),
            Place::Path(path) => contents(path)?,
            #[cfg(feature = "etcd")]
            Place::Etcd(etcd) => etcd.get().await?,
        };
        String::from_utf8(text).map_err(|_| "this is no text; a key is written in hexadecimal".to_owned())
    }

    /// The bytes of a secret, without the end of a line.
    pub(super) async fn secret(&self) -> Result<Vec<u8>, String> {
        let mut secret = match self {
            Place::Path(path) if path.is_dir() => contents(&current(path).join("master"))?,
            Place::Path(path) => contents(path)?,
            #[cfg(feature = "etcd")]
            Place::Etcd(etcd) => etcd.get().await?,
        };
        while secret.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            secret.pop();
        }
        Ok(secret)
    }

    /// Tells when it is worth reading again.
    pub(super) fn watch(&self) -> Watch {
        match self {
            Place::Path(_) => Watch::Files,
            #[cfg(feature = "etcd")]
            Place::Etcd(etcd) => Watch::Etcd(super::etcd::Watch::new(etcd.clone())),
        }
    }
}

/// Waits for a change.
pub(super) enum Watch {
    /// Files are looked at from time to time.
    Files,
    /// etcd says so.
    #[cfg(feature = "etcd")]
    Etcd(super::etcd::Watch),
}

impl Watch {
    /// Returns when something may have changed.
    pub(super) async fn changed(&mut self) {
        match self {
            Watch::Files => tokio::time::sleep(INTERVAL).await,
            #[cfg(feature = "etcd")]
            Watch::Etcd(watch) => watch.changed().await,
        }
    }
}

/// The directory that a mounted Secret shows now: its files are links into `..data`, which is a link that is exchanged
/// at one stroke. Read through it once, so that the two keys are of one moment: a step of a rotation exchanges them.
fn current(directory: &Path) -> PathBuf {
    std::fs::canonicalize(directory.join("..data")).unwrap_or_else(|_| directory.to_owned())
}

fn pair(directory: &Path) -> Result<String, String> {
    let text = |name: &str| {
        let text = String::from_utf8(contents(&directory.join(name))?);
        text.map(|text| text.trim().to_owned()).map_err(|_| format!("{name} is no text"))
    };
    let primary = text("primary")?;
    match directory.join("backup").exists() {
        true => Ok(format!("{primary},{}", text("backup")?)),
        false => Ok(primary),
    }
}

fn contents(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: &dyn std::fmt::Display| match path.file_name() {
        // Of a directory the file in it matters.
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

    #[tokio::test]
    async fn a_file_and_a_directory_hold_the_same_keys() {
        let at = Directory::new("keys");
        at.write("file", "1-2-3-4,5-6-7-8\n");
        at.write("secret/primary", "1-2-3-4\n");
        let file = Place::Path(at.0.join("file"));
        let secret = Place::Path(at.0.join("secret"));
        assert_eq!(secret.keys().await.as_deref(), Ok("1-2-3-4"));
        at.write("secret/backup", "5-6-7-8");
        assert_eq!(secret.keys().await.as_deref(), Ok("1-2-3-4,5-6-7-8"));
        assert_eq!(file.keys().await.as_deref(), Ok("1-2-3-4,5-6-7-8\n"));
        at.write("secret/master", "0123456789abcdef\n");
        assert_eq!(secret.secret().await.as_deref(), Ok(&b"0123456789abcdef"[..]));
        let missing = Place::Path(at.0.join("nothing")).keys().await.expect_err("missing");
        assert!(missing.contains("cannot be read") && missing.contains("nothing"), "{missing}");
    }

    /// As the kubelet does it: a new directory, a new link beside it, and the link renamed over the old one.
    #[tokio::test]
    async fn a_mounted_secret_is_read_as_of_one_moment() {
        let at = Directory::new("mounted");
        at.write("..one/primary", "1-1-1-1");
        at.write("..one/backup", "2-2-2-2");
        at.write("..two/primary", "2-2-2-2");
        at.write("..two/backup", "1-1-1-1");
        symlink("..one", at.0.join("..data")).expect("a link");
        for name in ["primary", "backup"] {
            symlink(format!("..data/{name}"), at.0.join(name)).expect("a link");
        }
        let mounted = Place::Path(at.0.clone());
        assert_eq!(mounted.keys().await.as_deref(), Ok("1-1-1-1,2-2-2-2"));
        let seen = current(&at.0);
        symlink("..two", at.0.join("..data_tmp")).expect("a link");
        std::fs::rename(at.0.join("..data_tmp"), at.0.join("..data")).expect("exchanged");
        assert_eq!(pair(&seen).as_deref(), Ok("1-1-1-1,2-2-2-2"), "whoever was reading has the old pair");
        assert_eq!(mounted.keys().await.as_deref(), Ok("2-2-2-2,1-1-1-1"));
    }

    #[test]
    fn a_credential_is_a_file_of_its_directory() {
        let directory = Path::new("/run/credentials/brisk.service");
        let parse = |text| Place::parse_beside(text, Some(directory));
        assert_eq!(parse("credential:key"), Ok(Place::Path(directory.join("key"))));
        for bad in
            ["credential:", "credential:../key", "credential:a/b", "credential:/etc/passwd", "credential:.."]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let error = Place::parse_beside("credential:key", None).expect_err("no unit");
        assert!(error.contains("LoadCredential="), "{error}");
        assert_eq!(parse("keys"), Ok(Place::Path(PathBuf::from("keys"))));
    }

    #[cfg(not(feature = "etcd"))]
    #[test]
    fn without_the_feature_etcd_is_named() {
        assert!(
            Place::parse("etcd://127.0.0.1:2379/keys").expect_err("not built").contains("--features etcd")
        );
    }
}
