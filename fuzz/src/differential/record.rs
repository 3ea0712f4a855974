//! The trace of a run as values: the packets that left between two events of the script.

/// A segment that a stack sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Microseconds of script time.
    pub at: i64,
    /// The ECN field in the script's notation; empty for Not-ECT.
    pub ecn: String,
    /// Flags in the script's notation.
    pub flags: String,
    /// First sequence number, relative to the initial one.
    pub seq: i64,
    /// Bytes of payload.
    pub len: i64,
    /// Acknowledgement number.
    pub ack: Option<i64>,
    /// The window field, unscaled.
    pub win: i64,
    /// Options in order, in the script's notation; a time stamp without its own value.
    pub options: Vec<String>,
    /// The line of the trace.
    pub line: String,
}

impl Packet {
    /// True if it has this flag, given as a letter.
    pub fn has(&self, flag: char) -> bool {
        self.flags.contains(flag)
    }

    /// True if it has no data and neither SYN, FIN nor RST.
    pub fn is_pure_ack(&self) -> bool {
        self.len == 0 && !self.flags.contains(['S', 'F', 'R'])
    }
}

/// The reaction of a stack to an event of the script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reaction {
    /// It sent a segment.
    Sent(Packet),
    /// A call returned this.
    Returned(String),
    /// The values of names at a mark; `None` if there is no connection.
    Values(Vec<(String, Option<i64>)>),
}

/// An event of the script and the reactions up to the next.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// Time of the event, microseconds of script time.
    pub at: i64,
    /// The event without its time; a mark is `mark`.
    pub event: String,
    /// The reactions of the stack, in order.
    pub reactions: Vec<Reaction>,
}

/// The record of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// The settings of the script: its lines before the first event.
    pub settings: Vec<String>,
    /// The events in order.
    pub steps: Vec<Step>,
}

impl Record {
    /// Parses a trace of `brisk_script` for the script `text`.
    pub fn read(text: &str, trace: &[String]) -> Record {
        let settings = text.lines().take_while(|line| line.starts_with(['-', '`'])).map(str::to_owned);
        let mut record = Record { settings: settings.collect(), steps: Vec::new() };
        for line in trace {
            let Some((at, rest)) = line.split_once(' ') else { continue };
            let at = micros(at);
            let mut step =
                |event: &str| record.steps.push(Step { at, event: event.to_owned(), reactions: Vec::new() });
            let reaction = if let Some(packet) = rest.strip_prefix("> ") {
                read_packet(at, packet, line).map(Reaction::Sent)
            } else if let Some(values) = rest.strip_prefix("print ") {
                step("mark");
                Some(Reaction::Values(values.split(' ').filter_map(read_value).collect()))
            } else if let Some((_, value)) = rest.split_once(" = ") {
                Some(Reaction::Returned(value.to_owned()))
            } else {
                step(rest);
                None
            };
            if let (Some(reaction), Some(step)) = (reaction, record.steps.last_mut()) {
                step.reactions.push(reaction);
            }
        }
        record
    }

    /// Returns the segments that were sent.
    pub fn packets(&self) -> impl Iterator<Item = &Packet> {
        self.steps.iter().flat_map(|step| &step.reactions).filter_map(|reaction| match reaction {
            Reaction::Sent(packet) => Some(packet),
            Reaction::Returned(_) | Reaction::Values(_) => None,
        })
    }
}

fn read_value(text: &str) -> Option<(String, Option<i64>)> {
    let (name, value) = text.split_once('=')?;
    Some((name.trim_start_matches("tcpi_").to_owned(), value.parse().ok()))
}

/// Parses `[ect0] P. 1:11(10) ack 1 win 1024 <nop,nop,TS val 7 ecr 8>`.
fn read_packet(at: i64, text: &str, line: &str) -> Option<Packet> {
    let (ecn, text) = match text.strip_prefix('[') {
        Some(prefixed) => prefixed.split_once("] ")?,
        None => ("", text),
    };
    let (head, options) = text.split_once(" <").unwrap_or((text, ""));
    let mut words = head.split(' ');
    let flags = words.next()?.to_owned();
    let (seq, end) = words.next()?.split_once(':')?;
    let len = end.split_once('(')?.1.trim_end_matches(')').parse().ok()?;
    let words: Vec<&str> = words.collect();
    let number = |name: &str| {
        let at = words.iter().position(|word| *word == name)?;
        words.get(at + 1)?.parse().ok()
    };
    let options = options.trim_end_matches('>').split(',').filter(|option| !option.is_empty());
    let without_value = |option: &str| match option.split_once(" ecr ") {
        Some((_, echo)) => format!("TS ecr {echo}"),
        None => option.to_owned(),
    };
    Some(Packet {
        at,
        ecn: ecn.to_owned(),
        flags,
        seq: seq.parse().ok()?,
        len,
        ack: number("ack"),
        win: number("win").unwrap_or(0),
        options: options.map(without_value).collect(),
        line: line.to_owned(),
    })
}

/// Parses seconds with six decimals; returns microseconds.
fn micros(text: &str) -> i64 {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let number = |text: &str| text.parse::<i64>().unwrap_or(0);
    number(whole.trim_start_matches('-')) * 1_000_000 + number(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_as_events_and_what_followed_them() {
        let trace = [
            "0.000000 socket",
            "0.050000 < S 0:0(0) win 65535 <mss 1000>",
            "0.050100 > S. 0:0(0) ack 1 win 65535 <mss 1460,TS val 9 ecr 4>",
            "0.060000 write",
            "0.060001 write = 10",
            "0.060002 > [ect0] P. 1:11(10) ack 1 win 1024 <nop,nop,sack 5:6 7:8>",
            "0.070000 print tcpi_snd_cwnd=10 tcpi_rtt=none",
        ];
        let record = Record::read("--set congestion=reno\n0 socket", &trace.map(str::to_owned));
        assert_eq!(record.settings, ["--set congestion=reno"]);
        assert_eq!(record.steps.iter().map(|step| step.reactions.len()).collect::<Vec<_>>(), [0, 1, 2, 1]);
        let packets: Vec<&Packet> = record.packets().collect();
        assert_eq!(packets[0].options, ["mss 1460", "TS ecr 4"]);
        assert_eq!((packets[1].at, packets[1].seq, packets[1].len, packets[1].ack), (60_002, 1, 10, Some(1)));
        assert_eq!(
            (packets[1].ecn.as_str(), packets[1].flags.as_str(), packets[1].win),
            ("ect0", "P.", 1024)
        );
        assert_eq!(packets[1].options, ["nop", "nop", "sack 5:6 7:8"]);
        let values = Reaction::Values(vec![("snd_cwnd".to_owned(), Some(10)), ("rtt".to_owned(), None)]);
        assert_eq!(record.steps[3].reactions, [values]);
    }
}
