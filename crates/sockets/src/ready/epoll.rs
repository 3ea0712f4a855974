//! epoll_wait(): the events of the descriptors that an epoll descriptor watches.

use super::of;
use crate::epoll::{Flags, Happened, ONESHOT, pending_events};
use crate::errno::Answer;
use crate::host::Host;

fn happened(host: &mut Host, fd: i32) -> Happened {
    host.socket(fd).map_or(Happened::default(), |socket| Happened {
        arrivals: socket.usage.arrivals() + u64::from(socket.waiting),
        changes: socket.changes(),
    })
}

/// True if `from` is an epoll descriptor that watches `to`, directly or through others.
pub(crate) fn reaches(host: &mut Host, from: i32, to: i32) -> bool {
    let Ok(watched) = host.epoll(from).map(|epoll| epoll.watched().collect::<Vec<i32>>()) else {
        return false;
    };
    watched.into_iter().any(|fd| fd == to || reaches(host, fd, to))
}

/// Makes one pass of epoll_wait(): returns at most `max` pairs of events and user data.
pub(crate) fn wait(host: &mut Host, epfd: i32, max: usize) -> Answer<Vec<(Flags, u64)>> {
    let watches = host.epoll(epfd)?.watches.clone();
    let mut reported = Vec::new();
    for (fd, mut watch) in watches {
        let ready = of(host, fd);
        let now = happened(host, fd);
        match pending_events(&watch, ready, now) {
            Some(found) if reported.len() < max => {
                reported.push((found, watch.data));
                watch.reported = Some((found, now));
                watch.spent = watch.events & ONESHOT != 0;
            }
            Some(_) => continue,
            // An event that ceases and returns is an edge.
            None => watch.reported = watch.reported.map(|(before, then)| (before & ready, then)),
        }
        host.epoll(epfd)?.watches.insert(fd, watch);
    }
    Ok(reported)
}

/// True if epoll_wait() would return an event, which makes the epoll descriptor itself readable.
pub(crate) fn any(host: &mut Host, epfd: i32) -> bool {
    let Ok(watches) = host.epoll(epfd).map(|epoll| epoll.watches.clone()) else { return false };
    watches.into_iter().any(|(fd, watch)| {
        fd != epfd && {
            let ready = of(host, fd);
            let now = happened(host, fd);
            pending_events(&watch, ready, now).is_some()
        }
    })
}
