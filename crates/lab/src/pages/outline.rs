//! A page as the tree of its objects, from which a browser can load it again. (The graph of
//! [`brisk_sim::page`] lacks what a browser needs.)

use std::time::Duration;

/// A page: its objects, each after its parent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outline {
    /// Name of the page.
    pub label: String,
    /// The objects, the document first.
    pub objects: Vec<Object>,
}

/// An object that is fetched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// Host, counted from 0.
    pub host: usize,
    /// How a browser treats the object.
    pub kind: Kind,
    /// The object that loads this one; it has a smaller index.
    pub parent: Option<usize>,
    /// True if the object is the target of a redirect of its parent.
    pub redirected: bool,
    /// Length of the response's head, bytes.
    pub head: u32,
    /// Length of the response's body, bytes.
    pub body: u64,
    /// Computation time of a script after it has arrived.
    pub compute: Duration,
}

/// How a browser treats an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The browser parses the object and loads the objects that it finds.
    Document,
    /// The browser executes the object.
    Script,
    /// The browser waits for the object before it paints.
    Style,
    /// The browser loads the object in parallel with all others: images, fonts, data.
    Image,
}

impl Outline {
    /// Returns the number of hosts.
    pub fn hosts(&self) -> usize {
        self.objects.iter().map(|object| object.host + 1).max().unwrap_or(0)
    }

    /// Returns the bytes of all responses.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| u64::from(object.head) + object.body).sum()
    }
}
