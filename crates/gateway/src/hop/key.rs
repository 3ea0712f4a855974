//! The key of a hop: 32 random bytes that both gateways hold, as 64 hexadecimal digits in a file.
//!
//! The file has a key on each line, the newest first. A frontend uses the first; a backend accepts all of
//! them. To change the key without an interruption, put the new key at the top of the backends' files, then
//! of the frontends' files, and remove the old key last.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use zeroize::Zeroizing;

/// Limit of keys that a backend accepts at the same time. Each costs one attempt for each first message.
pub const MAX_KEYS: usize = 4;

/// One key.
#[derive(Clone)]
pub struct HopKey(Arc<Zeroizing<[u8; 32]>>);

/// The keys of a hop, the newest first. Never empty.
#[derive(Clone, Debug)]
pub struct KeyRing(Arc<[HopKey]>);

/// Reason why there is no key, in one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("{path}: the key cannot be read: {error}{}", to_read(error, path))]
    Unreadable {
        /// The file.
        path: String,
        /// Error of the system.
        error: io::Error,
    },
    /// Others may read or change the file.
    #[error("permissions {mode:04o} are too open: {path} (run: chmod 600 {path})")]
    Open {
        /// The file.
        path: String,
        /// Its permission bits.
        mode: u32,
    },
    /// Others may change the file.
    #[error("permissions {mode:04o} are too open: {path} (run: chmod 644 {path})")]
    Writable {
        /// The file.
        path: String,
        /// Its permission bits.
        mode: u32,
    },
    /// There is a private key, but no public key of the other side.
    #[error(
        "{place}: {problem}; the public keys of the other side go there, a line each, as brisk keygen --public prints them"
    )]
    NoPeers {
        /// File and line.
        place: String,
        /// Problem with it.
        problem: String,
    },
    /// There are public keys of the other side, but no pair on this side.
    #[error(
        "{place}: this is not a key pair, and --peer-keys needs one; create one with: brisk keygen --static > {place}"
    )]
    NoPair {
        /// The file of the key.
        place: String,
    },
    /// There is a pair on this side, but no public keys of the other side.
    #[error(
        "{place}: this is a private key; name the file with the other side's public keys: --peer-keys FILE"
    )]
    Alone {
        /// The file of the key.
        place: String,
    },
    /// The content is not a key.
    #[error("{place}: {problem}; write one key on each line, as brisk keygen prints it")]
    Malformed {
        /// File and line, or the variable.
        place: String,
        /// Problem with it.
        problem: &'static str,
    },
}

/// Returns the remedy for a file that cannot be read. The remedy must not overwrite an existing file.
fn to_read(error: &io::Error, path: &str) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("; create one with: brisk keygen > {path}"),
        io::ErrorKind::PermissionDenied => format!(
            "; change its owner to the user that runs this program (for the units of systemd: \
             chgrp brisk {path} && chmod 640 {path})"
        ),
        _ => String::new(),
    }
}

impl HopKey {
    /// Returns a key of these bytes.
    pub fn new(bytes: [u8; 32]) -> HopKey {
        HopKey(Arc::new(Zeroizing::new(bytes)))
    }

    /// Generates a key from the randomness of the operating system.
    ///
    /// # Errors
    /// If the system has none.
    pub fn generate() -> io::Result<HopKey> {
        let mut bytes = Zeroizing::new([0; 32]);
        let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
        match filled == bytes.len() {
            true => Ok(HopKey(Arc::new(bytes))),
            false => Err(io::Error::other("the operating system gave too little randomness")),
        }
    }

    /// Returns 64 hexadecimal digits. Keep them secret: anyone who reads them can impersonate either gateway.
    pub fn reveal(&self) -> Zeroizing<String> {
        hexadecimal(self.bytes())
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn parse(text: &str) -> Result<HopKey, &'static str> {
        digits(text).map(|bytes| HopKey(Arc::new(bytes)))
    }
}

/// Returns 64 hexadecimal digits.
pub(super) fn hexadecimal(bytes: &[u8; 32]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(64));
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(digit.into(), 16));
        }
    }
    text
}

/// Parses 64 hexadecimal digits; the error says what is wrong.
pub(super) fn digits(text: &str) -> Result<Zeroizing<[u8; 32]>, &'static str> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return Err("expected 64 hexadecimal digits");
    }
    let mut bytes = Zeroizing::new([0; 32]);
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        for digit in pair {
            let value = char::from(*digit).to_digit(16).ok_or("this line has other characters")?;
            // A hexadecimal digit is below 16.
            *byte = *byte << 4 | value as u8;
        }
    }
    if bytes.iter().all(|byte| *byte == 0) {
        return Err("a key must not be all zeros");
    }
    Ok(bytes)
}

/// Returns the lines that are not empty and do not begin with `#`, each with its place.
pub(crate) fn lines<'a>(text: &'a str, place: &'a str) -> impl Iterator<Item = (String, &'a str)> {
    let numbered = text.lines().map(str::trim).enumerate();
    let content = numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    content.map(move |(number, line)| (format!("{place}: line {}", number + 1), line))
}

/// Returns the owner and the permission bits of a file.
pub(super) fn rights_of(path: &Path) -> Result<(u32, u32), KeyError> {
    let unreadable = |error| KeyError::Unreadable { path: path.display().to_string(), error };
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    Ok((metadata.uid(), metadata.mode() & 0o777))
}

/// Returns the text of a file that only its owner may read. Its group may read it too if root owns it (as
/// with Kubernetes) or if it is a systemd credential.
///
/// # Errors
/// If the file cannot be read, or others may read or change it.
pub fn read_secret(path: &Path) -> Result<Zeroizing<String>, KeyError> {
    const ROOT: u32 = 0;
    let name = path.display().to_string();
    let (owner, mode) = rights_of(path)?;
    // The group bits of a systemd credential with an access list are the mask of the list, not the rights of
    // the group.
    let credential = std::env::var_os("CREDENTIALS_DIRECTORY").is_some_and(|own| path.starts_with(own));
    let refused = if credential || owner == ROOT { 0o037 } else { 0o077 };
    if mode & refused != 0 {
        return Err(KeyError::Open { path: name, mode });
    }
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Zeroizing::new(text)),
        Err(error) => Err(KeyError::Unreadable { path: name, error }),
    }
}

impl fmt::Debug for HopKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HopKey(..)")
    }
}

impl KeyRing {
    /// Returns a ring with one key.
    pub fn of(key: HopKey) -> KeyRing {
        KeyRing([key].into())
    }

    /// Parses keys from a text that came from `place`. Empty lines and lines that begin with `#` are ignored.
    ///
    /// # Errors
    /// If the text holds no key, too many, or something else.
    pub fn parse(text: &str, place: &str) -> Result<KeyRing, KeyError> {
        let mut keys = Vec::new();
        for (place, line) in lines(text, place) {
            let key = HopKey::parse(line).map_err(|problem| KeyError::Malformed { place, problem })?;
            keys.push(key);
        }
        let malformed = |problem| Err(KeyError::Malformed { place: place.to_owned(), problem });
        match keys.len() {
            0 => malformed("it has no key"),
            1..=MAX_KEYS => Ok(KeyRing(keys.into())),
            _ => malformed("it has more than 4 keys"),
        }
    }

    /// Returns the newest key, with which a frontend seals.
    pub fn newest(&self) -> &HopKey {
        // A ring is never empty.
        &self.0[0]
    }

    /// Iterates over the accepted keys, the newest first.
    pub fn iter(&self) -> impl Iterator<Item = &HopKey> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_what_keygen_prints() {
        let key = HopKey::generate().unwrap();
        let text = key.reveal();
        assert_eq!(text.len(), 64);
        let ring = KeyRing::parse(&format!("# new\n{}\n\n", *text), "key").unwrap();
        assert_eq!(ring.newest().bytes(), key.bytes());
        assert_ne!(HopKey::generate().unwrap().bytes(), key.bytes());
        assert_eq!(format!("{key:?}"), "HopKey(..)");
    }

    #[test]
    fn invalid_key_is_refused_with_its_line() {
        let good = "ab".repeat(32);
        let error = |text: &str| KeyRing::parse(text, "key").unwrap_err().to_string();
        assert!(error("").starts_with("key: it has no key"));
        assert!(
            error(&format!("{good}\nsecret\n")).starts_with("key: line 2: expected 64 hexadecimal digits")
        );
        assert!(error(&"xy".repeat(32)).contains("other characters"));
        assert!(error(&"00".repeat(32)).contains("zeros"));
        assert!(error(&format!("{good}\n").repeat(5)).contains("more than 4"));
    }

    #[test]
    fn error_for_an_unreadable_key_names_the_remedy() {
        // The units run as a user that systemd creates, so no file can be given to that user in advance.
        let denied = to_read(&io::ErrorKind::PermissionDenied.into(), "/etc/brisk/key");
        assert!(denied.contains("chgrp brisk /etc/brisk/key && chmod 640 /etc/brisk/key"), "{denied}");
        let missing = to_read(&io::ErrorKind::NotFound.into(), "/etc/brisk/key");
        assert!(missing.contains("brisk keygen > /etc/brisk/key"), "{missing}");
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let path = std::env::temp_dir().join(format!("brisk-hop-key-{}", std::process::id()));
        std::fs::write(&path, "ab".repeat(32)).unwrap();
        // Tests may run as root.
        let of_root = std::fs::metadata(&path).unwrap().uid() == 0;
        let modes = [(0o600, true), (0o400, true), (0o640, of_root), (0o440, of_root)];
        for (mode, good) in [&modes[..], &[(0o604, false), (0o620, false), (0o650, false)]].concat() {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let loaded = read_secret(&path);
            assert_eq!(loaded.is_ok(), good, "{mode:o}");
            if let Err(error) = loaded {
                assert!(error.to_string().contains("chmod 600"), "{error}");
            }
        }
        std::fs::remove_file(&path).unwrap();
        assert!(read_secret(&path).unwrap_err().to_string().contains("brisk keygen >"));
    }
}
