//! The watches of an epoll descriptor: level-triggered, edge-triggered, one-shot and exclusive.

use std::collections::BTreeMap;

use crate::errno::{Answer, Errno};

/// Events of a descriptor; `poll` and `epoll` use the same numbers.
pub(crate) type Flags = u32;

/// Events that are reported even if the watch does not request them.
pub(crate) const ALWAYS: Flags = (libc::EPOLLERR | libc::EPOLLHUP) as Flags;
const ET: Flags = libc::EPOLLET as Flags;
pub(crate) const ONESHOT: Flags = libc::EPOLLONESHOT as Flags;
const EXCLUSIVE: Flags = libc::EPOLLEXCLUSIVE as Flags;
/// Flags that are allowed with EPOLLEXCLUSIVE.
const WITH_EXCLUSIVE: Flags =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLWAKEUP) as Flags
        | ET
        | EXCLUSIVE;

/// Counters of changes at a descriptor. An edge is reported again when a counter grows, even if the ready
/// events are the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Happened {
    /// Arrivals of data and of connections to accept, which wake readers.
    pub(crate) arrivals: u64,
    /// Errors and closed directions, which wake every watcher.
    pub(crate) changes: u64,
}

/// Events for which an arrival is an edge.
const READS: Flags = (libc::EPOLLIN | libc::EPOLLRDNORM) as Flags;

/// A watched descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Watch {
    pub(crate) events: Flags,
    pub(crate) data: u64,
    /// Events and counters at the last report. A change of either is an edge.
    pub(crate) reported: Option<(Flags, Happened)>,
    /// EPOLLONESHOT: the event was reported, and the watch is disabled until it is changed.
    pub(crate) spent: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Epoll {
    pub(crate) watches: BTreeMap<i32, Watch>,
}

/// An operation of epoll_ctl().
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// Watch a descriptor.
    Add {
        /// `EPOLLIN` and other events.
        events: Flags,
        /// User data that epoll_wait() returns.
        data: u64,
    },
    /// Change the events of a watch.
    Change {
        /// `EPOLLIN` and other events.
        events: Flags,
        /// User data that epoll_wait() returns.
        data: u64,
    },
    /// Remove a watch.
    Remove,
}

impl Epoll {
    /// epoll_ctl() for an existing descriptor.
    pub(crate) fn control(&mut self, fd: i32, control: Control) -> Answer<()> {
        let known = self.watches.get(&fd).copied();
        let watch = |events, data| Watch { events, data, reported: None, spent: false };
        match (control, known) {
            (Control::Add { .. }, Some(_)) => Err(Errno(libc::EEXIST)),
            (Control::Change { events, .. }, _) if events & EXCLUSIVE != 0 => Err(Errno(libc::EINVAL)),
            (Control::Change { .. } | Control::Remove, None) => Err(Errno(libc::ENOENT)),
            (Control::Add { events, .. }, None)
                if events & EXCLUSIVE != 0 && events & !WITH_EXCLUSIVE != 0 =>
            {
                Err(Errno(libc::EINVAL))
            }
            (Control::Change { events, .. }, Some(known)) if (events | known.events) & EXCLUSIVE != 0 => {
                Err(Errno(libc::EINVAL))
            }
            (Control::Add { events, data } | Control::Change { events, data }, _) => {
                self.watches.insert(fd, watch(events, data));
                Ok(())
            }
            (Control::Remove, Some(_)) => {
                self.watches.remove(&fd);
                Ok(())
            }
        }
    }

    /// Returns the watched descriptors.
    pub(crate) fn watched(&self) -> impl Iterator<Item = i32> + '_ {
        self.watches.keys().copied()
    }

    pub(crate) fn forget(&mut self, fd: i32) {
        self.watches.remove(&fd);
    }
}

/// Returns the events to report for a watch; `None` if there is nothing new.
pub(crate) fn pending_events(watch: &Watch, ready: Flags, happened: Happened) -> Option<Flags> {
    let found = ready & (watch.events | ALWAYS);
    if found == 0 || watch.spent {
        return None;
    }
    let edge = match watch.reported {
        None => true,
        Some((before, then)) => {
            let more_to_read = watch.events & READS != 0 && happened.arrivals > then.arrivals;
            found & !before != 0 || happened.changes > then.changes || more_to_read
        }
    };
    (watch.events & ET == 0 || edge).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN: Flags = libc::EPOLLIN as Flags;
    const OUT: Flags = libc::EPOLLOUT as Flags;

    fn watch(events: Flags) -> Watch {
        Watch { events, data: 7, reported: None, spent: false }
    }

    #[test]
    fn level_triggers_while_ready_and_edge_triggers_on_change() {
        let at = |arrivals, changes| Happened { arrivals, changes };
        assert_eq!(pending_events(&watch(IN), IN, at(1, 0)), Some(IN));
        let reported = |events| Watch { reported: Some((IN | OUT, at(1, 0))), ..watch(events) };
        assert_eq!(pending_events(&reported(IN), IN, at(1, 0)), Some(IN));
        assert_eq!(pending_events(&reported(IN | ET), IN, at(1, 0)), None);
        assert_eq!(pending_events(&reported(IN | ET), IN, at(2, 0)), Some(IN), "more has arrived");
        assert_eq!(
            pending_events(&reported(OUT | ET), OUT, at(2, 0)),
            None,
            "an arrival is not reported to a writer"
        );
        assert_eq!(
            pending_events(&reported(OUT | ET), OUT, at(2, 1)),
            Some(OUT),
            "an error is reported to every watcher"
        );
    }

    #[test]
    fn one_shot_is_silent_until_it_is_changed() {
        let mut epoll = Epoll::default();
        epoll.control(9, Control::Add { events: IN | ONESHOT, data: 1 }).unwrap();
        let spent = Watch { spent: true, ..epoll.watches[&9] };
        assert_eq!(pending_events(&spent, IN, Happened::default()), None);
        epoll.control(9, Control::Change { events: IN | ONESHOT, data: 1 }).unwrap();
        assert_eq!(pending_events(&epoll.watches[&9], IN, Happened::default()), Some(IN));
    }

    #[test]
    fn exclusive_is_only_for_new_watches_of_few_events() {
        let mut epoll = Epoll::default();
        let add = |events| Control::Add { events, data: 1 };
        assert_eq!(epoll.control(9, add(EXCLUSIVE | ONESHOT | IN)), Err(Errno(libc::EINVAL)));
        epoll.control(9, add(EXCLUSIVE | IN)).unwrap();
        assert_eq!(epoll.control(9, add(IN)), Err(Errno(libc::EEXIST)));
        assert_eq!(epoll.control(9, Control::Change { events: IN, data: 1 }), Err(Errno(libc::EINVAL)));
        assert_eq!(epoll.control(8, Control::Remove), Err(Errno(libc::ENOENT)));
    }
}
