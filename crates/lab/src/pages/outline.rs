//! A page as the tree of its objects: what a browser needs in order to load it again, which the graph of
//! [`brisk_sim::page`] has no use for.

use std::time::Duration;

use super::PagesError;
use super::{har, skeleton};

/// A page: its objects, each after the one that brought it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outline {
    /// Its name.
    pub label: String,
    /// The document first.
    pub objects: Vec<Object>,
}

/// Something that is fetched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// From which host, counted from 0.
    pub host: usize,
    /// What the browser takes it for.
    pub kind: Kind,
    /// The object that brought it; it stands before.
    pub parent: Option<usize>,
    /// It is where a redirect of its parent leads.
    pub redirected: bool,
    /// Bytes of the response's head.
    pub head: u32,
    /// Bytes of the response's body.
    pub body: u64,
    /// How long a script computes when it is there.
    pub compute: Duration,
}

/// What a browser does with an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Parses it, and what it finds.
    Document,
    /// Executes it.
    Script,
    /// Waits for it before it paints.
    Style,
    /// Loads it beside everything else: images, fonts, data.
    Image,
}

/// Reads the outlines of a file of page skeletons, one a line, or of a HAR. Dependency graphs are passed over: they
/// say what waits for what, not what is part of what.
///
/// # Errors
/// [`PagesError`]: the first line that cannot be meant.
pub fn read(text: &str, label: &str) -> Result<Vec<Outline>, PagesError> {
    if har::looks_like(text) {
        return Ok(vec![har::outline(text, label)?]);
    }
    let lines = text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty());
    let skeletons = lines.filter(|(_, text)| !text.contains("\"deps\""));
    let outlines: Vec<Outline> =
        skeletons.map(|(index, text)| skeleton::outline(text, index + 1)).collect::<Result<_, _>>()?;
    if outlines.is_empty() { Err(PagesError::Nothing) } else { Ok(outlines) }
}

impl Outline {
    /// Hosts that objects come from.
    pub fn hosts(&self) -> usize {
        self.objects.iter().map(|object| object.host + 1).max().unwrap_or(0)
    }

    /// Bytes of all responses.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| u64::from(object.head) + object.body).sum()
    }
}
