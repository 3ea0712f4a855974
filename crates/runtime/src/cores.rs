//! [`Cores`]: a thread with its own tokio runtime for each core, so that one core does all work for a
//! connection.
//!
//! A runtime with several threads moves tasks to any idle thread. At some microseconds of work per packet,
//! such a move costs more than it gains. Here a stack, the tasks that serve its connections, and their timers
//! stay on one thread.

use std::cell::Cell;
use std::io;
use std::num::NonZeroUsize;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio::sync::watch;

/// Time limit at shutdown for threads that a file access or a name lookup blocks.
const SHUTDOWN_LIMIT: Duration = Duration::from_millis(100);

thread_local! {
    /// Index of this thread in its [`Cores`].
    static CORE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Tokio runtimes with one thread each: the caller's own for the first core, and one for each further core.
///
/// Dropping the value ends the threads and every task on them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use brisk_runtime::Cores;
///
/// let cores = Cores::start(Cores::available())?;
/// assert_eq!(cores.count(), cores.handles().len());
/// let last = cores.handles().last().expect("at least one core");
/// assert_eq!(last.spawn(async { 7 }).await?, 7);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Cores {
    handles: Vec<Handle>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Cores {
    /// Returns the number of cores that this process may use; 1 if the system does not report it.
    pub fn available() -> NonZeroUsize {
        std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
    }

    /// Takes the current runtime as the first core, and starts threads for the others.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(count: NonZeroUsize) -> io::Result<Cores> {
        let first = Handle::current();
        // A runtime with several threads has no thread that could be the first core.
        if first.runtime_flavor() == RuntimeFlavor::CurrentThread {
            CORE.set(Some(0));
        }
        let (stop, _) = watch::channel(false);
        let mut cores = Cores { handles: vec![first], stop, threads: Vec::new() };
        for index in 1..count.get() {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            cores.handles.push(runtime.handle().clone());
            let mut stopped = cores.stop.subscribe();
            let body = move || {
                CORE.set(Some(index));
                // An error means that the `Cores` was dropped, which also ends the thread.
                let _ = runtime.block_on(stopped.wait_for(|stop| *stop));
                runtime.shutdown_timeout(SHUTDOWN_LIMIT);
            };
            let name = format!("brisk-core-{index}");
            cores.threads.push(std::thread::Builder::new().name(name).spawn(body)?);
        }
        Ok(cores)
    }

    /// Returns the number of cores, including the first.
    pub fn count(&self) -> usize {
        self.handles.len()
    }

    /// Returns the runtime of each core, in order.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Returns the index of the core on which the caller runs; `None` on any other thread.
    pub(crate) fn current() -> Option<usize> {
        CORE.get()
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed a message.
            let _ = thread.join();
        }
        if CORE.get() == Some(0) {
            CORE.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_core_is_a_thread_of_its_own_and_knows_its_number() {
        let cores = Cores::start(NonZeroUsize::new(3).unwrap()).unwrap();
        assert_eq!((cores.count(), Cores::current()), (3, Some(0)));
        let mut threads = vec![std::thread::current().id()];
        for (index, handle) in cores.handles().iter().enumerate().skip(1) {
            let task = async { (Cores::current(), std::thread::current().id()) };
            let (core, thread) = handle.spawn(task).await.unwrap();
            assert_eq!(core, Some(index));
            assert!(!threads.contains(&thread));
            threads.push(thread);
        }
        let endless = cores.handles()[1].spawn(std::future::pending::<()>());
        drop(cores);
        assert!(endless.await.unwrap_err().is_cancelled());
        assert_eq!(Cores::current(), None);
    }
}
