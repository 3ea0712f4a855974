//! A client that loads a page. An activity begins when the events that it waits for have happened. Downloads
//! from one host share a few connections.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use brisk_tcp::config::ConnectConfig;
use brisk_tcp::error::{ReadError, WriteError};
use brisk_tcp::{ConnId, Event};
use brisk_wire::Instant;

use super::Application;
use super::exchange::Exchange;
use super::view::HostView;
use crate::content;
use crate::page::{Activity, Page, Wait, Work};

/// Maximum number of connections to one host, as in browsers with HTTP/1.1.
const CONNECTIONS_PER_HOST: usize = 6;

/// A browser that loads a [`Page`].
#[derive(Debug)]
pub struct Browser {
    page: Page,
    servers: Vec<SocketAddr>,
    connect: ConnectConfig,
    started: Instant,
    progress: Vec<ActivityProgress>,
    /// Downloads that wait for a connection, for each host.
    queues: Vec<VecDeque<usize>>,
    connections: BTreeMap<ConnId, Connection>,
    opened: u64,
    finished: usize,
    ended: Option<Instant>,
    /// True if a connection failed or a byte was wrong. The page is then never complete.
    broken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct ActivityProgress {
    began: Option<Instant>,
    ended: Option<Instant>,
    /// Received bytes of the response.
    received: u64,
}

#[derive(Debug)]
struct Connection {
    host: usize,
    /// The activity whose URL the connection fetches, if any.
    fetches: Option<usize>,
    request: Vec<u8>,
    written: usize,
}

impl Browser {
    /// Returns a browser that has not started; `servers` are the hosts of the page.
    pub fn new(page: Page, servers: Vec<SocketAddr>, connect: ConnectConfig) -> Browser {
        Browser {
            progress: vec![ActivityProgress::default(); page.activities().len()],
            queues: vec![VecDeque::new(); servers.len()],
            page,
            servers,
            connect,
            started: Instant::ZERO,
            connections: BTreeMap::new(),
            opened: 0,
            finished: 0,
            ended: None,
            broken: false,
        }
    }

    /// True once the page is loaded or has failed.
    pub fn is_over(&self) -> bool {
        self.ended.is_some() || self.broken
    }

    /// Returns the time from the start to the end of the last activity; `None` if the page was not loaded.
    pub fn load_time(&self) -> Option<std::time::Duration> {
        self.ended.map(|ended| ended - self.started)
    }

    /// Returns the time from the start to the end of the first download.
    pub fn first_object(&self) -> Option<std::time::Duration> {
        let download =
            |(activity, _): &(&Activity, &ActivityProgress)| matches!(activity.work, Work::Download { .. });
        let ends = self.page.activities().iter().zip(&self.progress).filter(download);
        ends.filter_map(|(_, progress)| progress.ended).min().map(|ended| ended - self.started)
    }

    /// Returns the number of connections that were opened.
    pub fn connections(&self) -> u64 {
        self.opened
    }

    /// Returns the open connections.
    pub fn open(&self) -> impl Iterator<Item = ConnId> {
        self.connections.keys().copied()
    }

    /// Begins activities until none can begin.
    fn advance(&mut self, host: &mut HostView<'_>) {
        loop {
            let now = host.now;
            let ready: Vec<usize> = (0..self.progress.len())
                .filter(|index| self.progress[*index].began.is_none())
                .filter(|index| self.begins(*index).is_some_and(|at| at <= now))
                .collect();
            for index in &ready {
                self.progress[*index].began = Some(now);
                if let Work::Download { host: server, .. } = self.page.activities()[*index].work {
                    self.queues[server].push_back(*index);
                    self.fetch(server, host);
                }
            }
            let done = self.finish_computations(now);
            if ready.is_empty() && !done {
                return;
            }
        }
    }

    /// Returns when an activity can begin; `None` if an event that it waits for has not happened.
    fn begins(&self, index: usize) -> Option<Instant> {
        let waits = self.page.activities()[index].waits.iter();
        waits.map(|wait| self.happens(wait)).try_fold(self.started, |latest, at| Some(latest.max(at?)))
    }

    fn happens(&self, wait: &Wait) -> Option<Instant> {
        let progress = self.progress[wait.on()];
        match wait {
            Wait::End(_) => progress.ended,
            Wait::Begun(_, after) => progress.began.map(|began| began + *after),
            Wait::Share(index, thousandths) => match self.page.activities()[*index].work {
                // This is called as soon as bytes arrive, so the event has happened now.
                Work::Download { response, .. } => {
                    let there = progress.received * 1000 >= response * u64::from(*thousandths);
                    progress.began.filter(|_| there)
                }
                Work::Compute(_) => progress.ended,
            },
        }
    }

    /// Ends computations that are due. Returns true if any ended.
    fn finish_computations(&mut self, now: Instant) -> bool {
        let mut any = false;
        for (activity, progress) in self.page.activities().iter().zip(&mut self.progress) {
            let (Work::Compute(takes), Some(began), None) = (activity.work, progress.began, progress.ended)
            else {
                continue;
            };
            if began + takes <= now {
                progress.ended = Some(now);
                self.finished += 1;
                any = true;
            }
        }
        if any {
            self.note_end(now);
        }
        any
    }

    /// Assigns the downloads of a host to its connections, and opens connections up to the maximum.
    fn fetch(&mut self, server: usize, host: &mut HostView<'_>) {
        while let Some(index) = self.queues[server].front().copied() {
            let Work::Download { request, response, think, .. } = self.page.activities()[index].work else {
                return;
            };
            let mut bytes = Vec::new();
            Exchange { request, response, think, pause: std::time::Duration::ZERO }.encode(&mut bytes);
            let of_host = |connection: &Connection| connection.host == server;
            let open = self.connections.values().filter(|connection| of_host(connection)).count();
            let mut idle = self.connections.iter_mut().filter(|(_, connection)| of_host(connection));
            if let Some((id, connection)) = idle.find(|(_, connection)| connection.fetches.is_none()) {
                let id = *id;
                (connection.fetches, connection.request, connection.written) = (Some(index), bytes, 0);
                self.write(id, host);
            } else if open < CONNECTIONS_PER_HOST {
                match host.connect(self.servers[server], &bytes, &self.connect) {
                    Ok((id, written)) => {
                        let fetches = Some(index);
                        self.connections
                            .insert(id, Connection { host: server, fetches, request: bytes, written });
                        self.opened += 1;
                    }
                    Err(_) => self.broken = true,
                }
            } else {
                return;
            }
            self.queues[server].pop_front();
        }
    }

    fn write(&mut self, id: ConnId, host: &mut HostView<'_>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        while connection.written < connection.request.len() {
            match host.stack.write(id, &connection.request[connection.written..], host.now) {
                Ok(taken) => connection.written += taken,
                // An event of the connection reports its end.
                Err(WriteError::WouldBlock | WriteError::NoConnection) => return,
                Err(WriteError::AfterClose | WriteError::Closed(_)) => return,
            }
        }
    }

    fn read(&mut self, id: ConnId, host: &mut HostView<'_>) {
        while let Some(Connection { host: server, fetches: Some(index), .. }) = self.connections.get(&id) {
            let (server, index) = (*server, *index);
            let received = self.progress[index].received;
            let (len, intact) = match host.read(id) {
                Ok([]) => return self.broken = true,
                Ok(bytes) => (bytes.len() as u64, content::matches(received, bytes)),
                Err(ReadError::WouldBlock | ReadError::NoConnection) => return,
                Err(ReadError::Closed(_)) => return self.broken = true,
            };
            self.broken |= !intact;
            self.progress[index].received += len;
            let Work::Download { response, .. } = self.page.activities()[index].work else { return };
            if self.progress[index].received >= response {
                self.progress[index].ended = Some(host.now);
                self.finished += 1;
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.fetches = None;
                }
                self.fetch(server, host);
                self.note_end(host.now);
            }
            self.advance(host);
        }
    }

    fn note_end(&mut self, now: Instant) {
        if self.finished == self.progress.len() {
            self.ended.get_or_insert(now);
        }
    }
}

impl Application for Browser {
    fn start(&mut self, host: &mut HostView<'_>) {
        self.started = host.now;
        self.advance(host);
    }

    fn on_event(&mut self, event: Event, host: &mut HostView<'_>) {
        match event {
            Event::Connected(id) | Event::Writable(id) => self.write(id, host),
            Event::Readable(id) => self.read(id, host),
            Event::Closed(id, _) => {
                self.read(id, host);
                if let Some(connection) = self.connections.remove(&id) {
                    self.broken |= connection.fetches.is_some();
                    host.release(id);
                }
            }
            _ => {}
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        if self.is_over() {
            return None;
        }
        let activities = self.page.activities().iter().zip(&self.progress).enumerate();
        activities
            .filter_map(|(index, (activity, progress))| {
                match (activity.work, progress.began, progress.ended) {
                    (Work::Compute(takes), Some(began), None) => Some(began + takes),
                    (_, None, _) => self.begins(index),
                    (Work::Download { .. }, Some(_), _) | (_, Some(_), Some(_)) => None,
                }
            })
            .min()
    }

    fn on_wake(&mut self, host: &mut HostView<'_>) {
        self.advance(host);
    }

    fn is_done(&self) -> bool {
        self.is_over()
    }
}
