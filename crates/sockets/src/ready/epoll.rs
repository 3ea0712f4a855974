//! epoll: level, edge, one-shot and exclusive.

use std::collections::BTreeMap;

use super::{ALWAYS, Flags, of};
use crate::errno::{Answer, Errno};
use crate::host::Host;

const ET: Flags = libc::EPOLLET as Flags;
const ONESHOT: Flags = libc::EPOLLONESHOT as Flags;
const EXCLUSIVE: Flags = libc::EPOLLEXCLUSIVE as Flags;
/// What may stand beside EPOLLEXCLUSIVE.
const WITH_EXCLUSIVE: Flags =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLWAKEUP) as Flags
        | ET
        | EXCLUSIVE;

/// What has happened at a descriptor so far, counted: an edge is told again when more of it happens, though what is
/// ready stays the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Happened {
    /// What wakes those that read.
    arrivals: u64,
    /// What wakes everybody: errors, and the closing of a direction.
    changes: u64,
}

/// What arrivals are news for.
const READS: Flags = (libc::EPOLLIN | libc::EPOLLRDNORM) as Flags;

/// A descriptor that is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Watch {
    events: Flags,
    data: u64,
    /// What was ready when it was told last, and what had happened: an edge is a change.
    told: Option<(Flags, Happened)>,
    /// EPOLLONESHOT: told once, silent until it is changed.
    spent: bool,
}

/// The watches of one epoll descriptor.
#[derive(Clone, Debug, Default)]
pub(crate) struct Epoll {
    watches: BTreeMap<i32, Watch>,
}

/// What epoll_ctl() asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// Watch a descriptor.
    Add {
        /// `EPOLLIN` and so on.
        events: Flags,
        /// What epoll_wait() gives back of it.
        data: u64,
    },
    /// Watch it for something else.
    Change {
        /// `EPOLLIN` and so on.
        events: Flags,
        /// What epoll_wait() gives back of it.
        data: u64,
    },
    /// Watch it no more.
    Remove,
}

impl Epoll {
    /// epoll_ctl() for a descriptor that exists.
    pub(crate) fn control(&mut self, fd: i32, control: Control) -> Answer<()> {
        let known = self.watches.get(&fd).copied();
        let watch = |events, data| Watch { events, data, told: None, spent: false };
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

    /// The descriptors that are watched.
    pub(crate) fn watched(&self) -> impl Iterator<Item = i32> + '_ {
        self.watches.keys().copied()
    }

    /// A descriptor was closed.
    pub(crate) fn forget(&mut self, fd: i32) {
        self.watches.remove(&fd);
    }
}

/// What is to be told of a watch.
fn news(watch: &Watch, ready: Flags, happened: Happened) -> Option<Flags> {
    let found = ready & (watch.events | ALWAYS);
    if found == 0 || watch.spent {
        return None;
    }
    let edge = match watch.told {
        None => true,
        Some((before, then)) => {
            let more_to_read = watch.events & READS != 0 && happened.arrivals > then.arrivals;
            found & !before != 0 || happened.changes > then.changes || more_to_read
        }
    };
    (watch.events & ET == 0 || edge).then_some(found)
}

fn happened(host: &mut Host, fd: i32) -> Happened {
    host.socket(fd).map_or(Happened::default(), |socket| Happened {
        arrivals: socket.usage.arrivals() + u64::from(socket.waiting),
        changes: socket.changes(),
    })
}

/// True if `from` is an epoll descriptor that watches `to`, at first hand or through others.
pub(crate) fn reaches(host: &mut Host, from: i32, to: i32) -> bool {
    let Ok(watched) = host.epoll(from).map(|epoll| epoll.watched().collect::<Vec<i32>>()) else {
        return false;
    };
    watched.into_iter().any(|fd| fd == to || reaches(host, fd, to))
}

/// One pass of epoll_wait(): at most `most` pairs of events and data.
pub(crate) fn wait(host: &mut Host, epfd: i32, most: usize) -> Answer<Vec<(Flags, u64)>> {
    let watches = host.epoll(epfd)?.watches.clone();
    let mut told = Vec::new();
    for (fd, mut watch) in watches {
        let ready = of(host, fd);
        let now = happened(host, fd);
        match news(&watch, ready, now) {
            Some(found) if told.len() < most => {
                told.push((found, watch.data));
                watch.told = Some((found, now));
                watch.spent = watch.events & ONESHOT != 0;
            }
            Some(_) => continue,
            // What is no longer ready makes an edge when it is ready again.
            None => watch.told = watch.told.map(|(before, then)| (before & ready, then)),
        }
        host.epoll(epfd)?.watches.insert(fd, watch);
    }
    Ok(told)
}

/// Whether epoll_wait() would tell anything: an epoll descriptor may itself be watched.
pub(crate) fn any(host: &mut Host, epfd: i32) -> bool {
    let Ok(watches) = host.epoll(epfd).map(|epoll| epoll.watches.clone()) else { return false };
    watches.into_iter().any(|(fd, watch)| {
        fd != epfd && {
            let ready = of(host, fd);
            let now = happened(host, fd);
            news(&watch, ready, now).is_some()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN: Flags = libc::EPOLLIN as Flags;
    const OUT: Flags = libc::EPOLLOUT as Flags;

    fn watch(events: Flags) -> Watch {
        Watch { events, data: 7, told: None, spent: false }
    }

    #[test]
    fn level_tells_as_long_as_it_holds_and_edge_tells_a_change() {
        let at = |arrivals, changes| Happened { arrivals, changes };
        assert_eq!(news(&watch(IN), IN, at(1, 0)), Some(IN));
        let told = |events| Watch { told: Some((IN | OUT, at(1, 0))), ..watch(events) };
        assert_eq!(news(&told(IN), IN, at(1, 0)), Some(IN));
        assert_eq!(news(&told(IN | ET), IN, at(1, 0)), None);
        assert_eq!(news(&told(IN | ET), IN, at(2, 0)), Some(IN), "more has arrived");
        assert_eq!(news(&told(OUT | ET), OUT, at(2, 0)), None, "what arrives is nothing to who writes");
        assert_eq!(news(&told(OUT | ET), OUT, at(2, 1)), Some(OUT), "an error is news to everybody");
    }

    #[test]
    fn one_shot_is_silent_until_it_is_changed() {
        let mut epoll = Epoll::default();
        epoll.control(9, Control::Add { events: IN | ONESHOT, data: 1 }).unwrap();
        let spent = Watch { spent: true, ..epoll.watches[&9] };
        assert_eq!(news(&spent, IN, Happened::default()), None);
        epoll.control(9, Control::Change { events: IN | ONESHOT, data: 1 }).unwrap();
        assert_eq!(news(&epoll.watches[&9], IN, Happened::default()), Some(IN));
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
