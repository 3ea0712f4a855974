//! The view that an application has of its host, and the owners of connections and listeners.

use std::net::SocketAddr;

use brisk_tcp::config::{ConnectConfig, ListenConfig};
use brisk_tcp::connection::State;
use brisk_tcp::error::{ConnectError, ListenError, ReadError};
use brisk_tcp::{ConnId, Event, ListenerId, Stack};
use brisk_wire::Instant;

use crate::by_connection::ByConnection;

/// The host of an application during a call of the application.
#[derive(Debug)]
pub struct HostView<'a> {
    /// The stack. Applications must open and accept connections through the methods of the view, so that
    /// events reach them.
    pub stack: &'a mut Stack,
    /// The virtual time.
    pub now: Instant,
    pub(crate) app: usize,
    pub(crate) owners: &'a mut Owners,
    pub(crate) scratch: &'a mut [u8],
    pub(crate) notes: Option<&'a mut Vec<(usize, String)>>,
}

impl HostView<'_> {
    /// Opens a connection with `data` queued behind the SYN. Returns the number of bytes that were queued.
    ///
    /// # Errors
    /// Those of [`Stack::connect_with_data`].
    pub fn connect(
        &mut self,
        remote: SocketAddr,
        data: &[u8],
        config: &ConnectConfig,
    ) -> Result<(ConnId, usize), ConnectError> {
        let (id, taken) = self.stack.connect_with_data(remote, data, config, self.now)?;
        self.owners.connections.insert(id, self.app);
        Ok((id, taken))
    }

    /// Opens a listener.
    ///
    /// # Errors
    /// Those of [`Stack::listen`].
    pub fn listen(&mut self, local: SocketAddr, config: ListenConfig) -> Result<ListenerId, ListenError> {
        let id = self.stack.listen(local, config)?;
        self.owners.listeners.push((id, self.app));
        Ok(id)
    }

    /// Accepts the next connection that waits at the listener.
    pub fn accept(&mut self, listener: ListenerId) -> Option<(ConnId, SocketAddr)> {
        let (id, remote) = self.stack.accept(listener)?;
        self.owners.connections.insert(id, self.app);
        Some((id, remote))
    }

    /// Releases a connection (see [`Stack::release`]).
    pub fn release(&mut self, id: ConnId) {
        self.owners.connections.remove(id);
        self.stack.release(id, self.now);
    }

    /// Reads received data. Returns the bytes; an empty slice at the end of the stream.
    ///
    /// # Errors
    /// Those of [`Stack::read`].
    pub fn read(&mut self, id: ConnId) -> Result<&[u8], ReadError> {
        if self.has_nothing_new(id) {
            return Err(ReadError::WouldBlock);
        }
        let len = self.stack.read(id, self.scratch, self.now)?;
        Ok(&self.scratch[..len])
    }

    /// True if there is nothing to read and the peer has not closed. Applications read until no data is left,
    /// and this check costs less than a read that returns nothing.
    fn has_nothing_new(&self, id: ConnId) -> bool {
        let is_open = matches!(
            self.stack.state(id),
            Some(State::SynReceived | State::Established | State::FinWait1 | State::FinWait2)
        );
        is_open && self.stack.readable(id) == 0
    }

    /// Writes a line about the application to the event trace, if there is one.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(notes) = &mut self.notes {
            notes.push((self.app, text()));
        }
    }
}

/// The application of each connection and listener.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    pub(crate) connections: ByConnection<usize>,
    pub(crate) listeners: Vec<(ListenerId, usize)>,
}

impl Owners {
    pub(crate) fn clear(&mut self) {
        let Owners { connections, listeners } = self;
        connections.clear();
        listeners.clear();
    }

    pub(crate) fn of(&self, event: Event) -> Option<usize> {
        match event {
            Event::Connected(id) | Event::Readable(id) | Event::Writable(id) | Event::Closed(id, _) => {
                self.connections.get(id).copied()
            }
            Event::Incoming(id) => self.listeners.iter().find(|(of, _)| *of == id).map(|(_, app)| *app),
            _ => None,
        }
    }
}
