//! Socket calls as values: requests, replies, and the thread that makes the calls.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brisk_sockets::{Answer, Control, EpollControl, Errno};

/// A call with its arguments. Each descriptor is a number of the [`System`]; -1 stands for one that is not
/// open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Request {
    Socket {
        domain: i32,
        kind: i32,
        protocol: i32,
    },
    Bind {
        fd: i32,
        addr: SocketAddr,
    },
    Listen {
        fd: i32,
        backlog: i32,
    },
    /// accept4().
    Accept {
        fd: i32,
        flags: i32,
    },
    /// `None` stands for `AF_UNSPEC`.
    Connect {
        fd: i32,
        addr: Option<SocketAddr>,
    },
    Name {
        fd: i32,
    },
    /// recvmsg(), with a buffer for control messages.
    Receive {
        fd: i32,
        len: usize,
        flags: i32,
    },
    /// sendmsg().
    Send {
        fd: i32,
        data: Vec<u8>,
        flags: i32,
        to: Option<SocketAddr>,
        control: Vec<Control>,
    },
    Shutdown {
        fd: i32,
        how: i32,
    },
    Close {
        fd: i32,
    },
    SetOption {
        fd: i32,
        level: i32,
        name: i32,
        value: Vec<u8>,
    },
    GetOption {
        fd: i32,
        level: i32,
        name: i32,
        capacity: usize,
    },
    Fcntl {
        fd: i32,
        command: i32,
        argument: i32,
    },
    Ioctl {
        fd: i32,
        request: u64,
    },
    /// Descriptors with the requested events.
    Poll {
        entries: Vec<(i32, i16)>,
        timeout: i32,
    },
    EpollCreate {
        size: i32,
    },
    EpollControl {
        epfd: i32,
        fd: i32,
        control: EpollControl,
    },
    EpollWait {
        epfd: i32,
        max: i32,
        timeout: i32,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Reply {
    pub(super) value: i64,
    pub(super) bytes: Vec<u8>,
    pub(super) control: Vec<Control>,
    pub(super) flags: i32,
    pub(super) addr: Option<SocketAddr>,
    /// The `revents` of poll(), one for each entry.
    pub(super) ready: Vec<i16>,
    /// Events and data of epoll_wait().
    pub(super) events: Vec<(u32, u64)>,
}

impl Reply {
    pub(super) fn of(value: impl Into<i64>) -> Reply {
        Reply { value: value.into(), ..Reply::default() }
    }
}

/// Sockets on which calls are made: brisk's or the kernel's.
pub(super) trait System: Send + Sync {
    /// Makes a call, and blocks while the call blocks.
    fn call(&self, request: Request) -> Answer<Reply>;

    /// Handles the end of a call, after its result was stored.
    fn returned(&self) {}

    /// Ends a blocked call.
    fn hang_up(&self);
}

/// Result of the current call.
#[derive(Default)]
pub(super) struct Slot {
    answer: Mutex<Option<Answer<Reply>>>,
    filled: Condvar,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Option<Answer<Reply>>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_filled(&self) -> bool {
        self.lock().is_some()
    }

    pub(super) fn wait(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut answer = self.lock();
        while answer.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            answer = self.filled.wait_timeout(answer, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn fill(&self, answer: Answer<Reply>) {
        *self.lock() = Some(answer);
        self.filled.notify_all();
    }
}

/// A thread that makes the calls of a script, one after another.
pub(super) struct Caller {
    system: Arc<dyn System>,
    requests: Sender<Request>,
    slot: Arc<Slot>,
}

impl Caller {
    pub(super) fn new(system: Arc<dyn System>) -> Caller {
        let (requests, received) = channel();
        let slot = Arc::new(Slot::default());
        let caller = Caller { system: Arc::clone(&system), requests, slot: Arc::clone(&slot) };
        // The thread ends with the last sender, unless it is blocked in the kernel.
        std::thread::spawn(move || make_calls(system.as_ref(), &received, &slot));
        caller
    }

    /// Begins a call. Its result is stored in the slot.
    pub(super) fn begin(&self, request: Request) {
        // The receiver exists as long as this sender.
        let _ = self.requests.send(request);
    }

    pub(super) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// Returns the result of the call; `None` before it has returned.
    pub(super) fn take(&self) -> Option<Answer<Reply>> {
        self.slot.lock().take()
    }

    pub(super) fn call_at_once(&self, request: Request) -> Answer<Reply> {
        self.system.call(request)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.system.hang_up();
    }
}

fn make_calls(system: &dyn System, requests: &Receiver<Request>, slot: &Slot) {
    for request in requests {
        let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| system.call(request)));
        slot.fill(called.unwrap_or(Err(Errno(libc::EIO))));
        system.returned();
    }
}
