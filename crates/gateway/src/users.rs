//! The users of a frontend as a proxy: names and passwords from a file that only its owner may read.
//!
//! The file has a line `NAME:PASSWORD` for each user. Empty lines and lines that begin with `#` are ignored.
//! A name may have several lines, so that a password can be changed without an interruption. Only digests are
//! kept in memory.

use std::io;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::hop::KeyError;
use crate::hop::key::{lines, read_secret};

/// Limit of lines in a file. A login is compared with all of them.
const MAX_USERS: usize = 4096;
/// Longest name and longest password, bytes (RFC 1929).
const MAX_LENGTH: usize = 255;

/// Users with their passwords.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Users(Arc<[User]>);

#[derive(PartialEq, Eq, Debug)]
struct User {
    name: Arc<str>,
    digest: Digest,
}

/// A digest of name and password, of constant length.
#[derive(PartialEq, Eq)]
struct Digest([u8; 32]);

/// Reason why a file of users cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The file cannot be read.
    #[error("{path}: the users cannot be read: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// The error of the system.
        error: io::Error,
    },
    /// Others may read or change the file.
    #[error(transparent)]
    Open(KeyError),
    /// A line does not describe a user.
    #[error("{place}: {problem}; write a line NAME:PASSWORD for each user, both of 1 to 255 bytes")]
    Malformed {
        /// File and line.
        place: String,
        /// The mistake.
        problem: &'static str,
    },
}

impl Users {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, others may use it, or a line does not describe a user.
    pub fn load(path: &Path) -> Result<Users, UsersError> {
        let text = read_secret(path).map_err(|error| match error {
            KeyError::Unreadable { path, error } => UsersError::Unreadable { path, error },
            other => UsersError::Open(other),
        })?;
        Users::parse(&text, &path.display().to_string())
    }

    /// Parses users from a text that came from `place`.
    ///
    /// # Errors
    /// If a line does not describe a user, or there are more than 4096.
    pub fn parse(text: &str, place: &str) -> Result<Users, UsersError> {
        let mut users = Vec::new();
        for (place, line) in lines(text, place) {
            let malformed = |problem| UsersError::Malformed { place: place.clone(), problem };
            let (name, password) = line.split_once(':').ok_or_else(|| malformed("it has no colon"))?;
            if [name, password].iter().any(|part| part.is_empty() || part.len() > MAX_LENGTH) {
                return Err(malformed("its name or its password is empty or too long"));
            }
            let digest = Digest::of(name.as_bytes(), password.as_bytes());
            let digest = digest.ok_or_else(|| malformed("its hash cannot be computed"))?;
            users.push(User { name: name.into(), digest });
        }
        match users.len() {
            0..=MAX_USERS => Ok(Users(users.into())),
            _ => {
                Err(UsersError::Malformed { place: place.to_owned(), problem: "it has more than 4096 users" })
            }
        }
    }

    /// Returns the user with this name and password. The duration does not depend on which of the two is
    /// wrong, or on the position of the wrong byte.
    pub(crate) fn login(&self, name: &[u8], password: &[u8]) -> Option<Arc<str>> {
        let given = Digest::of(name, password)?;
        let mut found = None;
        for user in &*self.0 {
            if given.0.ct_eq(&user.digest.0).into() {
                found = Some(&user.name);
            }
        }
        found.cloned()
    }

    /// Returns the user of a `Proxy-Authorization` field (RFC 7617).
    pub(crate) fn basic(&self, field: &str) -> Option<Arc<str>> {
        let (scheme, given) = field.trim().split_once(' ')?;
        let given = Zeroizing::new(
            STANDARD.decode(given.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?,
        );
        let colon = given.iter().position(|byte| *byte == b':')?;
        self.login(&given[..colon], &given[colon + 1..])
    }

    /// Returns the number of users.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl Digest {
    fn of(name: &[u8], password: &[u8]) -> Option<Digest> {
        let mut hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s)?;
        let mut digest = [0; 32];
        // The length distinguishes `a:bc` from `ab:c`.
        hash.input(&(name.len() as u64).to_be_bytes());
        hash.input(name);
        hash.input(password);
        hash.result(&mut digest);
        Some(Digest(digest))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Digest(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn user_logs_in_with_any_password_of_the_name_and_no_other() {
        let users = Users::parse("# staff\nalice:old\nalice:new:er\n\nbob:\u{e4}\n", "users").unwrap();
        let login = |name: &str, password: &str| users.login(name.as_bytes(), password.as_bytes());
        for (name, password) in [("alice", "old"), ("alice", "new:er"), ("bob", "\u{e4}")] {
            assert_eq!(login(name, password).as_deref(), Some(name));
        }
        for (name, password) in
            [("alice", "\u{e4}"), ("bob", "old"), ("alic", "eold"), ("", ""), ("alice", ""), ("# staff", "")]
        {
            assert_eq!(login(name, password), None, "{name}:{password}");
        }
        assert!(!format!("{users:?}").contains("old"));
        assert_eq!(Users::parse("", "users").unwrap().login(b"", b""), None);
    }

    #[test]
    fn proxy_authorization_names_a_user_in_the_basic_scheme_only() {
        let users = Users::parse("Aladdin:open sesame", "users").unwrap();
        for good in ["Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", " basic  QWxhZGRpbjpvcGVuIHNlc2FtZQ== "] {
            assert_eq!(users.basic(good).as_deref(), Some("Aladdin"), "{good}");
        }
        for bad in ["Bearer QWxhZGRpbjpvcGVuIHNlc2FtZQ==", "Basic", "Basic QWxhZGRpbg==", "Basic \u{e4}", ""]
        {
            assert_eq!(users.basic(bad), None, "{bad}");
        }
    }

    #[test]
    fn line_that_is_no_user_and_file_of_others_are_refused() {
        let error = |text: &str| Users::parse(text, "users").unwrap_err().to_string();
        assert!(error("alice:a\nbob").starts_with("users: line 2: it has no colon; write a line NAME:"));
        for bad in [":a", "a:", &format!("a:{}", "b".repeat(256))] {
            assert!(error(bad).contains("empty or too long"), "{bad}");
        }
        assert!(error(&"a:b\n".repeat(4097)).contains("more than 4096"));
        let path = std::env::temp_dir().join(format!("brisk-users-{}", std::process::id()));
        std::fs::write(&path, "alice:secret").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let open = Users::load(&path).unwrap_err().to_string();
        assert!(open.contains("chmod 600") && !open.contains("secret"), "{open}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(Users::load(&path).map(|users| users.count()).ok(), Some(1));
        std::fs::remove_file(&path).unwrap();
        let gone = Users::load(&path).unwrap_err().to_string();
        assert!(gone.contains("users cannot be read") && !gone.contains("keygen"), "{gone}");
    }
}
