//! Every kind of difference from a script is found and reported with the line, the expectation and the event.

use brisk_script::{Options, run, run_traced};

const OPEN: &str = "\
0   socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0  bind(3, ..., ...) = 0
+0  listen(3, 1) = 0
+0  < S 0:0(0) win 65535 <mss 1000>
+0  > S. 0:0(0) ack 1 <mss 1460>
+.1 < . 1:1(0) ack 1 win 30000
+0  accept(3, ..., ...) = 4
";

fn message(rest: &str) -> String {
    message_with(rest, &Options::default())
}

fn message_with(rest: &str, options: &Options) -> String {
    match run("t.pkt", &format!("{OPEN}{rest}"), options) {
        Ok(_) => "passes".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn each_field_of_a_packet_is_compared() {
    for (packet, field) in [
        (". 1:1001(1000) ack 1", "flags"),
        ("P. 2:1002(1000) ack 1", "sequence number"),
        ("P. 1:901(900) ack 1", "length"),
        ("P. 1:1001(1000) ack 2", "acknowledgement number"),
        ("P. 1:1001(1000) ack 1 win 7", "window"),
        ("P. 1:1001(1000) ack 1 urg 7", "urgent pointer"),
        ("P. 1:1001(1000) ack 1 <nop,nop,TS val 1 ecr 2>", "options"),
        ("[ect0] P. 1:1001(1000) ack 1", "ECN field"),
        ("[flow b] P. 1:1001(1000) ack 1", "flow"),
    ] {
        let script = format!("+0 write(4, ..., 1000) = 1000\n+0 > {packet}\n");
        let message = message(&script);
        assert!(message.starts_with(&format!("t.pkt:9: a packet differs: {field}\n")), "{packet}: {message}");
        let lines: Vec<&str> = message.lines().collect();
        assert!(lines[1].starts_with("  expected: 0.100000 > "), "{message}");
        assert_eq!(lines[2], "  actual:   0.100000 > P. 1:1001(1000) ack 1 win 65535");
    }
}

#[test]
fn the_time_of_a_packet_has_a_tolerance() {
    let at =
        |time: &str| message(&format!("+0 write(4, ..., 1000) = 1000\n{time} > P. 1:1001(1000) ack 1\n"));
    for time in ["+0", "+.003", "*", "+0~+.5", "0.1~0.2"] {
        assert_eq!(at(time), "passes", "{time}");
    }
    for time in ["+.005", "+.1~+.2"] {
        assert!(at(time).contains("a packet differs: time"), "{time}: {}", at(time));
    }
}

#[test]
fn missing_packet_is_reported() {
    let message = message("+0 > . 1:1(0) ack 1\n");
    let expected = "t.pkt:8: no packet was sent\n  expected: 0.100000 > . 1:1(0) ack 1\n  \
                    actual:   nothing up to 0.104000";
    assert_eq!(message, expected);
}

#[test]
fn unlisted_packet_is_reported() {
    for surplus in [
        "+0 write(4, ..., 1000) = 1000\n",
        "+0 write(4, ..., 1000) = 1000\n+.1 close(4) = 0\n+0 > F. 1001:1001(0) ack 1\n",
        // The retransmission at 0.4 s is not listed.
        "+0 write(4, ..., 1000) = 1000\n+0 > P. 1:1001(1000) ack 1\n+.5 %{ assert 1 }%\n",
    ] {
        assert_ne!(message(surplus), "passes", "{surplus}");
    }
    let lenient = Options { lenient: true, ..Options::default() };
    assert_eq!(message_with("+0 write(4, ..., 1000) = 1000\n", &lenient), "passes");
}

#[test]
fn segments_are_merged_unless_compared_one_by_one() {
    let script = "+0 write(4, ..., 2500) = 2500\n+0 > P. 1:2501(2500) ack 1\n";
    assert_eq!(message(script), "passes");
    let strict = Options { flags: vec![("strict_segments".to_owned(), String::new())], ..Options::default() };
    assert!(message_with(script, &strict).contains("differs: flags, length"));
    let smaller = "+0 write(4, ..., 2000) = 2000\n+0 > . 1:501(500) ack 1\n";
    assert!(message(smaller).contains("differs: length"));
}

#[test]
fn results_of_calls_are_compared() {
    for (script, part) in [
        ("+0 write(4, ..., 1000) = 999\n", "write: expected 999, the stack gives 1000"),
        ("+0 read(4, ..., 10) = 10\n", "read blocks; write when it returns"),
        ("+0 read(7, ..., 10) = 10\n", "read: expected 10, the stack gives -1 EBADF"),
        ("+0 recv(4, ..., 10, MSG_ERRQUEUE) = 10\n", "recv: expected 10, the stack gives -1 EAGAIN"),
        ("+0...0.1 read(4, ..., 10) = 10\n", "has not returned at the end"),
        ("+0...0.1 write(4, ..., 10) = 10\n", "write returns at once instead of at 0.200000"),
        ("+0 write(4, ..., 90006666666666666) = 3000\n", "a call of a script moves 268435456 at most"),
        ("+0 frobnicate(4) = 0\n", "the system call frobnicate is not supported"),
        ("+0 ioctl(4, SIOCINQ, [5]) = 0\n", "ioctl: expected [5], it is [0]"),
    ] {
        let message = message(script);
        assert!(message.starts_with("t.pkt:8: ") && message.contains(part), "{script}: {message}");
    }
}

#[test]
fn call_that_returns_at_the_wrong_time_is_reported() {
    let message =
        message("+0...0.2 read(4, ..., 10) = 10\n+.1 < P. 1:11(10) ack 1 win 30000\n+0 > . 1:1(0) ack 11\n");
    assert!(message.contains("read returns at 0.200000 instead of 0.300000"), "{message}");
}

#[test]
fn failed_assertion_reports_the_values() {
    let message = message("+0 %{ assert tcpi_snd_cwnd == 11, tcpi_snd_cwnd }%\n");
    assert_eq!(
        message,
        "t.pkt:8: assert tcpi_snd_cwnd == 11, tcpi_snd_cwnd does not hold: tcpi_snd_cwnd = 10"
    );
}

#[test]
fn times_do_not_go_back() {
    assert!(message("0.05 close(4) = 0\n").contains("lies before 0.100000"));
    assert!(message("0.5~0.2 > . 1:1(0) ack 1\n").contains("time"));
}

#[test]
fn invalid_settings_are_refused_with_the_valid_ones() {
    for (flag, part) in [
        ("--set initial_window=many", "it takes a number of segments"),
        ("--set initial_window=0", "1 to 64 segments"),
        ("--set colour=red", "no such key"),
        ("--speling=1", "--speling is not known"),
    ] {
        let message = run("t.pkt", &format!("{flag}\n{OPEN}"), &Options::default()).unwrap_err().to_string();
        assert!(message.starts_with("t.pkt:1: ") && message.contains(part), "{message}");
    }
}

#[test]
fn trace_has_every_packet_even_of_a_failed_run() {
    let mut lines = Vec::new();
    let script = format!("{OPEN}+0 write(4, ..., 10) = 10\n+0 > P. 1:12(11) ack 1\n");
    run_traced("t.pkt", &script, &Options::default(), &mut |line| lines.push(line.to_owned())).unwrap_err();
    assert!(lines.contains(&"0.000000 > S. 0:0(0) ack 1 win 65535 <mss 1460>".to_owned()), "{lines:?}");
    assert_eq!(lines.last().map(String::as_str), Some("0.100000 > P. 1:11(10) ack 1 win 65535"));
}

#[test]
fn any_text_gives_a_verdict_and_no_panic() {
    // Every prefix of a script, and the script without each of its lines.
    let script = format!(
        "--set ecn=on\n`sysctl -q net.ipv4.tcp_sack=0`\n{OPEN}+0 < [ect0] P. 1:11(10) ack 1 win 9 \
         <nop,nop,TS val 1 ecr 2>\n+0 %{{ assert tcpi_state == 1 and 7 // 2 == 3 }}%\n+0 sendmsg(4, \
         {{msg_name(...)=..., msg_iov(1)=[{{..., 10}}]}}, 0) = 10\n+0 < icmp unreachable frag_needed mtu 600 \
         [1:11(10)]\n"
    );
    for end in 0..script.len() {
        let _ = run("t.pkt", script.get(..end).unwrap_or(""), &Options::default());
    }
    let lines: Vec<&str> = script.lines().collect();
    for left_out in 0..lines.len() {
        let rest: Vec<&str> =
            lines.iter().enumerate().filter(|(n, _)| *n != left_out).map(|(_, line)| *line).collect();
        let _ = run("t.pkt", &rest.join("\n"), &Options::default());
    }
}
