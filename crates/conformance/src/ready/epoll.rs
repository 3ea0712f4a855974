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

/// A descriptor that is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Watch {
    events: Flags,
    data: u64,
    /// What was ready when it was told last, and how much had arrived: an edge is a change.
    told: Option<(Flags, u64)>,
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
pub(crate) enum Control {
    Add { events: Flags, data: u64 },
    Change { events: Flags, data: u64 },
    Remove,
}

impl Epoll {
    /// epoll_ctl() for a descriptor that exists.
    pub(crate) fn control(&mut self, fd: i32, control: Control) -> Answer<()> {
        let known = self.watches.get(&fd).copied();
        let watch = |events, data| Watch { events, data, told: None, spent: false };
        match (control, known) {
            (Control::Add { .. }, Some(_)) => Err(Errno(libc::EEXIST)),
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

    /// A descriptor was closed.
    pub(crate) fn forget(&mut self, fd: i32) {
        self.watches.remove(&fd);
    }
}

/// What is to be told of a watch.
fn news(watch: &Watch, ready: Flags, arrivals: u64) -> Option<Flags> {
    let found = ready & (watch.events | ALWAYS);
    if found == 0 || watch.spent {
        return None;
    }
    let edge = match watch.told {
        None => true,
        Some((before, arrived)) => found & !before != 0 || arrivals > arrived,
    };
    (watch.events & ET == 0 || edge).then_some(found)
}

fn arrivals(host: &mut Host, fd: i32) -> u64 {
    host.socket(fd).map_or(0, |socket| socket.usage.arrivals() + u64::from(socket.waiting))
}

/// One pass of epoll_wait(): at most `most` pairs of events and data.
pub(crate) fn wait(host: &mut Host, epfd: i32, most: usize) -> Answer<Vec<(Flags, u64)>> {
    let watches = host.epoll(epfd)?.watches.clone();
    let mut told = Vec::new();
    for (fd, mut watch) in watches {
        let ready = of(host, fd);
        let arrived = arrivals(host, fd);
        match news(&watch, ready, arrived) {
            Some(found) if told.len() < most => {
                told.push((found, watch.data));
                watch.told = Some((found, arrived));
                watch.spent = watch.events & ONESHOT != 0;
            }
            Some(_) => continue,
            // What is no longer ready makes an edge when it is ready again.
            None => watch.told = watch.told.map(|(before, arrived)| (before & ready, arrived)),
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
            let arrived = arrivals(host, fd);
            news(&watch, ready, arrived).is_some()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN: Flags = libc::EPOLLIN as Flags;

    fn watch(events: Flags) -> Watch {
        Watch { events, data: 7, told: None, spent: false }
    }

    #[test]
    fn level_tells_as_long_as_it_holds_and_edge_tells_a_change() {
        assert_eq!(news(&watch(IN), IN, 1), Some(IN));
        let told = |events| Watch { told: Some((IN, 1)), ..watch(events) };
        assert_eq!(news(&told(IN), IN, 1), Some(IN));
        assert_eq!(news(&told(IN | ET), IN, 1), None);
        assert_eq!(news(&told(IN | ET), IN, 2), Some(IN), "more has arrived");
    }

    #[test]
    fn one_shot_is_silent_until_it_is_changed() {
        let mut epoll = Epoll::default();
        epoll.control(9, Control::Add { events: IN | ONESHOT, data: 1 }).unwrap();
        let spent = Watch { spent: true, ..epoll.watches[&9] };
        assert_eq!(news(&spent, IN, 1), None);
        epoll.control(9, Control::Change { events: IN | ONESHOT, data: 1 }).unwrap();
        assert_eq!(news(&epoll.watches[&9], IN, 1), Some(IN));
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
