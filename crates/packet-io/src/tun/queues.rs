//! A TUN device with several queues (`IFF_MULTI_QUEUE`), one for each core.
//!
//! The kernel spreads flows over the queues by a hash of its own, and follows the queue that a flow is sent from: after
//! the first answer its packets come where it is served, until nothing was sent for three seconds. What comes elsewhere
//! is the business of [`steering`](crate::steering).

use std::io;

use super::{BUSY_PAUSE, BUSY_RETRIES, TunDevice, TunOptions};
use crate::interface::Interface;
use crate::privileges::OpenError;

impl TunDevice {
    /// Opens so many queues of the TUN device `name`, which is created if there is none. One queue is the device as
    /// [`open`](TunDevice::open) has it; more work only on a device that was made for several.
    ///
    /// Other than a device with one queue, such a device takes queues from everybody who asks, so that a second process
    /// would take flows away from the first: if somebody has a queue already, it counts as busy.
    ///
    /// # Errors
    /// As [`open`](TunDevice::open).
    pub fn open_queues(name: &str, options: TunOptions, count: usize) -> Result<Vec<TunDevice>, OpenError> {
        if count <= 1 {
            return TunDevice::open(name, options).map(|device| vec![device]);
        }
        if is_held(name, BUSY_RETRIES) {
            let busy = io::Error::from_raw_os_error(libc::EBUSY);
            return Err(OpenError::tun(name, "cannot be attached", busy));
        }
        let options = TunOptions { multi_queue: true, ..options };
        (0..count).map(|_| TunDevice::open(name, options)).collect()
    }
}

/// Whether somebody has a queue of the interface, and goes on having one: it has a carrier for as long.
fn is_held(name: &str, retries: u32) -> bool {
    let held = || Interface::named(name).and_then(|interface| interface.has_carrier()).unwrap_or(false);
    for _ in 0..retries {
        if !held() {
            return false;
        }
        std::thread::sleep(BUSY_PAUSE);
    }
    held()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use crate::privileges::{has_net_admin, has_sys_admin};

    #[test]
    fn several_queues_belong_to_one_owner() {
        if !has_sys_admin() || !has_net_admin() {
            println!("skipped: a TUN in a network namespace needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
            return;
        }
        let open = |count| TunDevice::open_queues("pioq", TunOptions::default(), count);
        let opened = |count: usize| match open(count) {
            Ok(queues) => Some(queues),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => panic!("{error}"),
        };
        let work = || {
            let Some(mut queues) = opened(3) else {
                println!("skipped: there is no /dev/net/tun");
                return;
            };
            assert_eq!(queues.len(), 3);
            queues[0].configure("10.79.0.1".parse().unwrap(), 24, 1400).unwrap();
            let error = open(2).unwrap_err();
            assert!(error.to_string().contains("another process holds this device"), "{error}");
            drop(queues);
            // It was ours alone: with the last queue it has gone, and one of another kind can be made.
            let one = opened(1).unwrap();
            assert_eq!(one.len(), 1);
            assert!(open(2).is_err());
        };
        Namespace::anonymous().unwrap().run(work).unwrap();
    }
}
