//! Records packets with dumpcap, which works with the rights of a user namespace, and reads them with tshark.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::namespace::Namespace;
use crate::process::{Process, eventually, run, text};

/// A recording of one device that continues until it is stopped.
pub(crate) struct Capture {
    dumpcap: Process,
    file: PathBuf,
}

/// Filter for packets that no TCP should send: undecodable, or with a wrong checksum. 0xFFFF in place of 0 is
/// permitted: Linux writes it when it completes a checksum in software for a device without offload
/// (`skb_checksum_help`), once in 65,536 packets, and every receiver accepts it (RFC 1624).
const WRONG: &str = "_ws.malformed || (tcp.checksum.status == 0 && !tcp.checksum.ffff) || ip.checksum.status == 0 \
                     || tcp.option.len.invalid || tcp.bogus_header_length";

impl Capture {
    pub(crate) fn start(namespace: &Namespace, device: &str, file: PathBuf) -> Capture {
        let mut command = namespace.command("dumpcap");
        let dumpcap = Process::start("dumpcap", command.args(["-q", "-i", device, "-w"]).arg(&file));
        dumpcap.until_it_says("File:");
        Capture { dumpcap, file }
    }

    /// Stops when the file contains the end of this many connections.
    pub(crate) fn stop(self, connections: usize) -> PathBuf {
        eventually("the end of every connection is recorded", || {
            // The last packet may be incomplete; tshark still reports those before it.
            let mut ends = reading(&self.file, "tcp.flags.fin == 1 || tcp.flags.reset == 1", &["tcp.stream"]);
            let ends = text(&ends.output().expect("tshark starts").stdout);
            (ends.lines().collect::<BTreeSet<_>>().len() >= connections).then_some(())
        });
        assert_eq!(self.dumpcap.stop().status, Some(0));
        self.file
    }
}

/// Returns the `fields` of the packets that match `filter`, one line each, separated by tabs.
pub(crate) fn tshark(file: &Path, filter: &str, fields: &[&str]) -> Vec<String> {
    text(&run(&mut reading(file, filter, fields)).stdout).lines().map(str::to_owned).collect()
}

fn reading(file: &Path, filter: &str, fields: &[&str]) -> Command {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(file);
    command.args(["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]);
    // A retransmission must not count as malformed HTTP.
    command.args(["-o", "tcp.desegment_tcp_streams:FALSE", "--disable-protocol", "http"]);
    command.args(["-Y", filter, "-T", "fields"]);
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    command
}

/// Checks that every packet can be decoded and has correct checksums.
pub(crate) fn assert_sound(file: &Path) {
    let wrong = tshark(file, WRONG, &["frame.number", "_ws.col.Info"]);
    assert!(wrong.is_empty(), "{} packets, the first: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    assert!(
        !tshark(file, "tcp.checksum.status == 1", &["frame.number"]).is_empty(),
        "tshark has verified checksums"
    );
}
