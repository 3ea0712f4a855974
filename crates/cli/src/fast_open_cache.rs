//! The file in which a client stores Fast Open cookies and facts about paths between runs of the program.

use std::io::ErrorKind;
use std::path::PathBuf;

use brisk_runtime::{Endpoint, ImportError};

use crate::failure::Failure;
use crate::private_file;

/// The file, and its content.
pub(crate) struct Cache {
    path: PathBuf,
}

impl Cache {
    /// Returns the cache in this file, which need not exist.
    pub(crate) fn new(path: PathBuf) -> Cache {
        Cache { path }
    }

    /// Passes the stored entries to the endpoint. Unusable cookies are reported and ignored.
    ///
    /// Fails if the file has other content or cannot be read, because storing would overwrite it.
    pub(crate) fn load(&self, endpoint: &Endpoint) -> Result<(), Failure> {
        let path = self.path.display();
        let text = match std::fs::read(&self.path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                return Err(Failure::failed(format!(
                    "{path}: the cookies cannot be read: {error}; name a file that you own"
                )));
            }
        };
        match endpoint.import_fast_open_cache(&text).and_then(|()| endpoint.import_paths(&text)) {
            Err(ImportError::NotACache) if !text.is_empty() => Err(Failure::failed(format!(
                "{path}: the file has no cookies and would be overwritten; name another file, or delete this one"
            ))),
            Err(error) if !text.is_empty() => {
                eprintln!("brisk: warning: {path}: {error}");
                Ok(())
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Stores the endpoint's memory, readable by the file's owner alone; an interrupted program leaves the
    /// old file.
    pub(crate) fn store(&self, endpoint: &Endpoint) -> Result<(), Failure> {
        let content = endpoint.export_fast_open_cache() + &endpoint.export_paths();
        private_file::replace(&self.path, &content).map_err(|error| {
            Failure::failed(format!("{}: the cookies cannot be stored: {error}", self.path.display()))
        })
    }
}
