//! Network namespaces: open one by name or path, create one, run a closure inside.
//!
//! A thread belongs to one namespace, and cannot always return to it after a change, because a user namespace
//! may forbid that. So [`Namespace::run`] starts a scoped thread, and the caller's thread never changes.
//! Descriptors that are opened inside belong to that namespace wherever they are used, so one process can
//! serve several namespaces. Names are in `/run/netns`, as `ip-netns(8)` specifies, so `ip netns` and this
//! module see each other's namespaces. Calls fail with the kernel's error, for example if CAP_SYS_ADMIN is
//! missing.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::interface::Interface;
use crate::privileges::OpenError;

/// Directory of the names of `ip netns`.
const NAMES: &str = "/run/netns";
/// The namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// An open network namespace. It exists at least as long as this value or a clone of it.
#[derive(Clone, Debug)]
pub struct Namespace {
    fd: Arc<OwnedFd>,
    label: String,
}

impl Namespace {
    /// Returns the namespace of the calling thread.
    pub fn current() -> Result<Namespace, OpenError> {
        Namespace::open(OWN)
    }

    /// Opens an existing namespace: a name of `ip netns list`, or a path such as `/proc/PID/ns/net`.
    pub fn open(name_or_path: &str) -> Result<Namespace, OpenError> {
        let path =
            if name_or_path.contains('/') { PathBuf::from(name_or_path) } else { named(name_or_path)? };
        let file = fs::File::open(&path)
            .map_err(|error| OpenError::namespace(name_or_path, "cannot be opened", error))?;
        Ok(Namespace { fd: Arc::new(file.into()), label: name_or_path.to_owned() })
    }

    /// Creates a namespace without a name, with its loopback interface up. The kernel removes it with its
    /// last user, even after a crash.
    pub fn anonymous() -> Result<Namespace, OpenError> {
        in_thread(|| {
            enter_fresh()?;
            Interface::named("lo")?.set_up()?;
            Ok(Namespace { label: "(anonymous)".to_owned(), ..Namespace::current()? })
        })
        .map_err(|error| OpenError::namespace("(anonymous)", "cannot be created", error))?
    }

    /// Creates a namespace that exists until [`Namespace::delete`], as `ip netns add` does, with its loopback
    /// interface up. An existing name is an error.
    pub fn create(name: &str) -> Result<Namespace, OpenError> {
        let path = named(name)?;
        let failed = |error: io::Error| OpenError::namespace(name, "cannot be created", error);
        share_names_directory().map_err(failed)?;
        fs::OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
        let made = in_thread(|| -> Result<(), OpenError> {
            enter_fresh()?;
            Interface::named("lo")?.set_up()?;
            rustix::mount::mount_bind(OWN, &path).map_err(|error| failed(error.into()))
        });
        match made.map_err(failed).and_then(|inner| inner) {
            Ok(()) => Namespace::open(name),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    /// Removes the name of a namespace; the kernel removes the namespace with its last user.
    pub fn delete(name: &str) -> Result<(), OpenError> {
        let path = named(name)?;
        let failed = |error| OpenError::namespace(name, "cannot be deleted", error);
        match rustix::mount::unmount(&path, UnmountFlags::DETACH) {
            // EINVAL: the name has no mount, because its creation was interrupted.
            Ok(()) | Err(rustix::io::Errno::INVAL) => fs::remove_file(&path).map_err(failed),
            Err(error) => Err(failed(error.into())),
        }
    }

    /// Runs `body` inside this namespace, on a thread of its own, and waits for it. A panic of `body`
    /// continues in the caller.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T, OpenError> {
        in_thread(|| {
            self.enter()?;
            Ok(body())
        })
        .map_err(|error| OpenError::namespace(&self.label, "cannot be entered", error))?
    }

    /// Moves the calling thread into this namespace permanently. Call it only on a thread that was started
    /// for this purpose.
    pub fn enter(&self) -> Result<(), OpenError> {
        rustix::thread::move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| OpenError::namespace(&self.label, "cannot be entered", error.into()))
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Moves the calling process into new user and network namespaces, with the loopback interface up. The
/// process keeps its user and gets every capability inside. It needs no privilege if the system permits such
/// namespaces. The process must have a single thread; otherwise the kernel refuses (`EINVAL`).
///
/// # Errors
/// The system refuses.
pub fn enter_private() -> Result<(), OpenError> {
    let failed = |error: io::Error| OpenError::namespace("(private)", "cannot be created", error);
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    // SAFETY: unshare(2) is unsafe only with CLONE_FILES, which is not set.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }
        .map_err(|error| failed(error.into()))?;
    // user_namespaces(7): a group can be mapped only after setgroups(2) is denied.
    fs::write("/proc/self/setgroups", "deny").map_err(failed)?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1")).map_err(failed)?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1")).map_err(failed)?;
    Interface::named("lo")?.set_up()
}

/// Runs `body` on a new thread. `Err` if no thread could be started; a panic of `body` continues in the
/// caller.
fn in_thread<T: Send>(body: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, body)?;
        thread.join().map_err(|panic| std::panic::resume_unwind(panic))
    })
}

fn enter_fresh() -> Result<(), OpenError> {
    // SAFETY: unshare(2) is unsafe only with CLONE_FILES, because a thread could lose descriptors of another.
    // CLONE_NEWNET changes only the network namespace of this thread.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|error| OpenError::namespace("(new)", "cannot be created", error.into()))
}

fn named(name: &str) -> Result<PathBuf, OpenError> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        let error = io::Error::from(io::ErrorKind::InvalidInput);
        return Err(OpenError::namespace(&format!("'{name}'"), "is not a valid name", error));
    }
    Ok(Path::new(NAMES).join(name))
}

/// Makes the directory of names a shared mount, so that names appear in other mount namespaces, as `ip netns
/// add` does.
fn share_names_directory() -> io::Result<()> {
    fs::create_dir_all(NAMES)?;
    let share =
        || rustix::mount::mount_change(NAMES, MountPropagationFlags::SHARED | MountPropagationFlags::REC);
    match share() {
        // EINVAL: the directory is not a mount point yet.
        Err(rustix::io::Errno::INVAL) => {
            rustix::mount::mount_bind_recursive(NAMES, NAMES)?;
            Ok(share()?)
        }
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privileges::has_sys_admin;

    fn inode(namespace: &Namespace) -> u64 {
        rustix::fs::fstat(namespace).unwrap().st_ino
    }

    #[test]
    fn closure_runs_inside_and_the_caller_keeps_its_namespace() {
        if !has_sys_admin() {
            println!("skipped: needs CAP_SYS_ADMIN to create a network namespace");
            return;
        }
        let before = inode(&Namespace::current().unwrap());
        let fresh = Namespace::anonymous().unwrap();
        let inside = fresh.run(|| inode(&Namespace::current().unwrap())).unwrap();
        assert_eq!(inside, inode(&fresh));
        assert_ne!(inside, before);
        assert_eq!(inode(&Namespace::current().unwrap()), before);
    }

    #[test]
    fn a_named_namespace_can_be_created_opened_and_deleted() {
        if !has_sys_admin() {
            println!("skipped: needs CAP_SYS_ADMIN to create a network namespace");
            return;
        }
        let name = format!("pio-test-{}", std::process::id());
        let created = match Namespace::create(&name) {
            Ok(created) => created,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                println!("skipped: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(inode(&created), inode(&Namespace::open(&name).unwrap()));
        assert!(Namespace::create(&name).unwrap_err().to_string().contains("exists already"));
        Namespace::delete(&name).unwrap();
        let gone = Namespace::open(&name).unwrap_err().to_string();
        assert!(gone.contains("ip netns list"), "{gone}");
    }

    #[test]
    fn a_name_cannot_leave_the_directory_of_names() {
        for name in ["", "..", "a/b"] {
            assert!(Namespace::delete(name).is_err());
        }
    }
}
