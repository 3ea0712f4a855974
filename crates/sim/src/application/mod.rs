//! Applications on a host: small state machines that react to events and act on the stack.

use std::any::Any;
use std::fmt::Debug;

use brisk_tcp::Event;
use brisk_wire::Instant;

use view::HostView;

pub mod browser;
pub mod bulk;
pub mod client;
pub mod exchange;
pub mod server;
pub(crate) mod view;

pub use browser::Browser;
pub use bulk::{Amount, BulkSender, Sink};
pub use client::{Client, ClientPlan, Connections, Outcome};
pub use exchange::Exchange;
pub use server::Server;

/// A program on a host of the simulation.
pub trait Application: Any + Debug {
    /// Starts the application.
    fn start(&mut self, host: &mut HostView<'_>);

    /// Handles an event of a connection or listener that the application opened or accepted.
    fn on_event(&mut self, event: Event, host: &mut HostView<'_>);

    /// Returns when [`Application::on_wake`] must be called.
    fn next_wake(&self) -> Option<Instant> {
        None
    }

    /// Handles the time of [`Application::next_wake`].
    fn on_wake(&mut self, host: &mut HostView<'_>) {
        let _ = host;
    }

    /// True once the application does nothing more by itself. Servers are always done.
    fn is_done(&self) -> bool;
}
