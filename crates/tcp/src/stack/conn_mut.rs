//! Options of an open connection.

use super::{ConnId, Stack};
use crate::config::{KeepaliveConfig, PacingConfig, RtoConfig, WindowRules};
use crate::connection::Connection;
use crate::error::ConfigError;
use crate::time::Duration;

/// The options of one connection ([`Stack::conn_mut`]).
///
/// A change takes effect at the most recent time that was passed to the stack.
///
/// ```
/// # use brisk_tcp::stack::Rx;
/// # use brisk_tcp::time::{Duration, Instant};
/// # use brisk_tcp::{ConnectConfig, ListenConfig, Stack, StackConfig};
/// # fn pass(from: &mut Stack, to: &mut Stack) {
/// #     let mut packet = Vec::new();
/// #     while from.poll_transmit(Instant::ZERO, &mut packet).is_some() {
/// #         to.on_packet(&packet, Rx::default(), Instant::ZERO);
/// #     }
/// # }
/// # let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
/// # let (mut client, mut server) = (Stack::new(at("10.0.0.1"), 1)?, Stack::new(at("10.0.0.2"), 2)?);
/// # let (address, now) = ("10.0.0.2:80".parse()?, Instant::ZERO);
/// # let listener = server.listen(address, ListenConfig::default())?;
/// # let id = client.connect(address, &ConnectConfig::default(), now)?;
/// # pass(&mut client, &mut server);
/// # pass(&mut server, &mut client);
/// # pass(&mut client, &mut server);
/// # let (peer, _) = server.accept(listener).expect("the handshake is complete");
/// use brisk_tcp::config::{KeepaliveConfig, PacingConfig, RtoConfig, WindowRules};
///
/// let mut conn = client.conn_mut(id).expect("the connection is ours");
/// conn.set_nodelay(true);
/// conn.set_cork(false);
/// conn.set_more(false);
/// conn.set_dscp(46);
/// conn.set_hop_limit(32);
/// conn.set_keepalive(Some(KeepaliveConfig::default()));
/// conn.set_user_timeout(Some(Duration::from_secs(30)));
/// conn.set_fin_wait_2_timeout(Duration::from_secs(10));
/// conn.set_delack_max(Duration::from_millis(10));
/// conn.set_rto(RtoConfig::RFC6298)?;
/// conn.set_pacing(Some(PacingConfig::default()));
/// conn.set_window_rules(WindowRules::default());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ConnMut<'a> {
    stack: &'a mut Stack,
    /// Handle of a connection of the application.
    id: ConnId,
}

impl<'a> ConnMut<'a> {
    pub(super) fn of(stack: &'a mut Stack, id: ConnId) -> Option<Self> {
        stack.owned_mut(id)?;
        Some(ConnMut { stack, id })
    }

    /// Holds a partial segment back because more data is about to be written (Linux: MSG_MORE). An
    /// acknowledgement releases it, and so does the end of a cork's time: a retransmission timeout, at least
    /// 200 ms.
    pub fn set_more(&mut self, more: bool) {
        self.act(|connection| connection.tx.nagle.set_more(more));
    }

    /// Switches Nagle's algorithm off (`true`) or on.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.act(|connection| connection.tx.set_nodelay(nodelay));
    }

    /// Holds back partial segments (`true`), or releases them.
    pub fn set_cork(&mut self, cork: bool) {
        self.act(|connection| connection.tx.nagle.set_cork(cork));
    }

    /// Changes the DSCP of packets sent from now on. 0..=63.
    pub fn set_dscp(&mut self, dscp: u8) {
        self.change(|connection| connection.config_mut().dscp = dscp & 63);
    }

    /// Changes the IP hop limit of packets sent from now on. 1..=255.
    pub fn set_hop_limit(&mut self, hops: u8) {
        self.change(|connection| connection.config_mut().hop_limit = hops.max(1));
    }

    /// Changes the bounds of the receive window. The scale of the SYN remains.
    pub fn set_window_rules(&mut self, rules: WindowRules) {
        self.change(|connection| {
            connection.config_mut().window = rules;
            connection.rx.window.set_rules(rules);
        });
    }

    /// Changes the pacing, or ends it.
    pub fn set_pacing(&mut self, pacing: Option<PacingConfig>) {
        self.act(|connection| {
            connection.config_mut().pacing = pacing;
            connection.tx.set_pacing(pacing);
        });
    }

    /// Changes or ends keepalive. Silence is counted from the most recent time that was passed to the stack.
    pub fn set_keepalive(&mut self, keepalive: Option<KeepaliveConfig>) {
        let clock = self.stack.clock;
        self.act(|connection| connection.set_keepalive(keepalive, clock));
    }

    /// Changes the duration of FIN-WAIT-2 after a release (TCP_LINGER2). A running timer is not changed.
    pub fn set_fin_wait_2_timeout(&mut self, timeout: Duration) {
        self.change(|connection| connection.config_mut().fin_wait_2_timeout = timeout);
    }

    /// Changes the bounds of the retransmission timeout. A running timer keeps its deadline.
    ///
    /// # Errors
    /// A value out of its range; then nothing changes.
    pub fn set_rto(&mut self, rto: RtoConfig) -> Result<(), ConfigError> {
        rto.validate()?;
        self.change(|connection| {
            connection.config_mut().rto = rto;
            connection.tx.rtt.set_bounds(&rto);
            connection.tx.rto.set_max(rto.max);
        });
        Ok(())
    }

    /// Sets the maximum delay of an acknowledgement.
    pub fn set_delack_max(&mut self, longest: Duration) {
        self.change(|connection| {
            connection.config_mut().delack_max = longest;
            connection.rx.ack.set_delack_max(longest);
        });
    }

    /// Changes or removes the user timeout.
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.act(|connection| connection.user_timeout = timeout);
    }

    /// Applies a change that may permit a transmission or move a timer.
    fn act(&mut self, change: impl FnOnce(&mut Connection)) {
        self.stack.act(self.id, self.stack.clock, change);
    }

    /// Applies a change without immediate effects.
    fn change(&mut self, change: impl FnOnce(&mut Connection)) {
        if let Some(slot) = self.stack.owned_mut(self.id) {
            change(&mut slot.connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;
    use crate::{ConnectConfig, StackConfig};

    #[test]
    fn options_of_a_released_or_foreign_connection_are_out_of_reach() {
        let addresses = alloc::vec!["10.0.0.1".parse().unwrap()];
        let config = StackConfig { addresses, ..StackConfig::default() };
        let [mut stack, mut other] = [1, 2].map(|seed| Stack::new(config.clone(), seed).unwrap());
        let remote = "10.0.0.2:80".parse().unwrap();
        let id = stack.connect(remote, &ConnectConfig::default(), Instant::ZERO).unwrap();
        assert!(stack.conn_mut(id).is_some());
        assert!(other.conn_mut(id).is_none());
        stack.release(id, Instant::ZERO);
        assert!(stack.conn_mut(id).is_none());
    }
}
