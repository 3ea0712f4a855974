//! A page as the tree of its objects: what a browser needs in order to load it again, which the graph of
//! [`brisk_sim::page`] has no use for.

use std::time::Duration;

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
    /// Kind by which the browser treats it.
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

/// Treatment of an object by a browser.
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
