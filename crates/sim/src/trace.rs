//! Events and their reasons, one JSON object per line.
//!
//! Every line has `t` (virtual microseconds). An event of a connection also has `host`, `conn`, `what` and
//! the fields of its [`Observation`]. A packet that a link refused has `link`, `way`, `bytes`, `what`. A note
//! of an application has `host`, `app`, `what`.

use std::io::{self, Write};

use brisk_link::{Direction, Offered};
use brisk_tcp::event::Observation;
use brisk_wire::Instant;
use serde_json::{Value, json};

use crate::host::Host;

pub(crate) struct Trace {
    to: Box<dyn Write>,
    failed: Option<io::Error>,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl Trace {
    pub(crate) fn new(to: Box<dyn Write>) -> Trace {
        Trace { to, failed: None }
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.failed.map_or(Ok(()), Err)?;
        self.to.flush()
    }

    /// Writes why a link did not accept a packet.
    pub(crate) fn offered(
        &mut self,
        now: Instant,
        link: usize,
        direction: Direction,
        bytes: usize,
        offered: &Offered,
    ) {
        let what = match offered {
            Offered::Queued => return,
            Offered::DroppedQueue => "dropped: queue full",
            Offered::DroppedLoss => "dropped: lost",
            Offered::DroppedMiddlebox { .. } => "dropped: middlebox",
            Offered::DroppedMtu { .. } => "dropped: larger than the MTU",
        };
        let direction = match direction {
            Direction::Up => "up",
            Direction::Down => "down",
        };
        self.line(
            json!({"t": now.as_micros(), "link": link, "way": direction, "bytes": bytes, "what": what}),
        );
    }

    /// Writes the observations of a host's connections and the notes of its applications since the last call.
    pub(crate) fn host(&mut self, now: Instant, host: &mut Host) {
        while let Some((conn, at, observation)) = host.stack.poll_observation() {
            let mut line = json!({"t": at.as_micros(), "host": host.name, "conn": conn.to_string()});
            merge(&mut line, observed(&observation));
            self.line(line);
        }
        for (app, what) in host.notes.iter_mut().flat_map(|notes| notes.drain(..)) {
            self.line(json!({"t": now.as_micros(), "host": host.name, "app": app, "what": what}));
        }
    }

    fn line(&mut self, line: Value) {
        if self.failed.is_none() {
            self.failed = writeln!(self.to, "{line}").err();
        }
    }
}

fn merge(line: &mut Value, fields: Value) {
    if let (Value::Object(line), Value::Object(fields)) = (line, fields) {
        line.extend(fields);
    }
}

fn observed(observation: &Observation) -> Value {
    match observation {
        Observation::State(state) => json!({"what": "state", "state": format!("{state:?}")}),
        Observation::Sent { range, origin } => json!({
            "what": "sent",
            "seq": range.start.0,
            "end": range.end.0,
            "origin": format!("{origin:?}"),
        }),
        Observation::LossDeclared { bytes, by } => {
            json!({"what": "loss declared", "bytes": bytes, "by": format!("{by:?}")})
        }
        Observation::ProbeSent { range, new_data } => json!({
            "what": "probe sent",
            "seq": range.start.0,
            "len": range.len(),
            "new_data": new_data,
        }),
        Observation::MaskedLoss { by } => json!({"what": "masked loss", "by": format!("{by:?}")}),
        Observation::CopyUsed { segments } => json!({"what": "copy used", "segments": segments}),
        Observation::Planned { flight, losses, plan } => json!({
            "what": "planned",
            "bytes": flight.bytes,
            "followed": flight.followed,
            "loss_per_million": losses.per_million,
            "segment": plan.segment,
            "protection": format!("{:?}", plan.protection),
            "reason": format!("{:?}", plan.reason),
            "cost": plan.cost,
        }),
        Observation::CopiesOff { why } => json!({"what": "copies off", "why": format!("{why:?}")}),
        Observation::Repaired { range, runs } => json!({
            "what": "repaired",
            "seq": range.start.0,
            "end": range.end.0,
            "runs": runs,
        }),
        Observation::RepairFailed { lost_len, why } => {
            json!({"what": "repair failed", "lost_len": lost_len, "why": format!("{why:?}")})
        }
        Observation::ParityOff { sending, why } => {
            json!({"what": "parity off", "sending": sending, "why": format!("{why:?}")})
        }
        Observation::Timeout { rto } => json!({"what": "timeout", "rto_us": micros(*rto)}),
        Observation::Recovery { state, cwnd, ssthresh } => json!({
            "what": "recovery",
            "state": format!("{state:?}"),
            "cwnd": cwnd,
            "ssthresh": ssthresh,
        }),
        Observation::RttSample { rtt, srtt } => {
            json!({"what": "rtt", "rtt_us": micros(*rtt), "srtt_us": micros(*srtt)})
        }
        Observation::WindowProbe => json!({"what": "window probe"}),
        Observation::KeepaliveProbe => json!({"what": "keepalive probe"}),
        Observation::Undone { why } => json!({"what": "undone", "why": format!("{why:?}")}),
        Observation::MssChanged { mss } => json!({"what": "mss", "mss": mss}),
        other => json!({"what": format!("{other:?}")}),
    }
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
