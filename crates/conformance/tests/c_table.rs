//! The library through its C table, from Rust: each test loads it and controls one world and its clock.
#![allow(unsafe_code)]

mod driver;

use driver::{ACK, Driver, FIN, PSH, RST, SYN, Segment};

/// Linux's numbers that the C library's headers lack.
const SO_ZEROCOPY: i32 = 60;
const MSG_ZEROCOPY: i32 = 0x400_0000;
const TCP_NOTSENT_LOWAT: i32 = 25;

#[test]
fn msg_eor_separates_records_and_other_writes_are_joined() {
    let (driver, fd, _) = established("sysctls=off");
    driver.set_int(fd, libc::SOL_TCP, libc::TCP_NODELAY, 1);
    // The data fills the window; the writes below must wait, and the stack could join them.
    assert_eq!(driver.send(fd, &[0; 14_600], 0), 14_600);
    let sent = driver.drain_payload(14_600);
    for (len, flags) in [(400, libc::MSG_EOR), (300, 0), (200, 0)] {
        assert_eq!(driver.send(fd, &vec![0; len], flags), len as isize);
    }
    driver.arrive(Segment { seq: 1, ack: sent, flags: ACK, ..Segment::default() }, &[]);
    assert_eq!(driver.lengths(2), [400, 500]);
}

#[test]
fn msg_more_holds_back_partial_segments() {
    let (driver, fd, _) = established("sysctls=off");
    assert_eq!(driver.send(fd, &[0; 1000], libc::MSG_MORE), 1000);
    assert_eq!(driver.send(fd, &[0; 460], 0), 460);
    assert_eq!(driver.lengths(1), [1460]);
}

#[test]
fn tcp_inq_reports_the_remaining_bytes() {
    let (driver, fd, _) = established("sysctls=off");
    driver.set_int(fd, libc::SOL_TCP, libc::TCP_INQ, 1);
    driver.arrive(Segment { seq: 1, ack: 1, flags: ACK | PSH, ..Segment::default() }, &[7; 100]);
    let (count, control, _) = driver.recvmsg(fd, 40, 0);
    assert_eq!(count, 40);
    assert_eq!(control, [(libc::SOL_TCP, libc::TCP_INQ, 60i32.to_ne_bytes().to_vec())]);
}

#[test]
fn error_queue_reports_time_stamps_and_completions() {
    let (driver, fd, _) = established("sysctls=off");
    // The flags are TX_SOFTWARE, SOFTWARE, OPT_ID, TX_ACK and OPT_TSONLY.
    driver.set_int(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 1 << 1 | 1 << 4 | 1 << 7 | 1 << 9 | 1 << 11);
    driver.set_int(fd, libc::SOL_SOCKET, SO_ZEROCOPY, 1);
    assert_eq!(driver.send(fd, &[0; 1000], MSG_ZEROCOPY), 1000);
    let sent_at = driver.receive().expect("the data").at;
    driver.sleep(50_000);
    driver.arrive(Segment { seq: 1, ack: 1001, flags: ACK, ..Segment::default() }, &[]);
    let mut stamps = Vec::new();
    while let (0, control, flags) = driver.recvmsg(fd, 0, libc::MSG_ERRQUEUE) {
        assert_eq!(flags, libc::MSG_ERRQUEUE);
        let (level, kind, error) = control.last().expect("an extended error").clone();
        assert_eq!((level, kind), (libc::SOL_IP, libc::IP_RECVERR));
        let word = |at: usize| u32::from_ne_bytes([error[at], error[at + 1], error[at + 2], error[at + 3]]);
        let stamp = control.first().filter(|first| first.1 == libc::SCM_TIMESTAMPING).map(|first| {
            let number = |at: usize| i64::from_ne_bytes(first.2[at..at + 8].try_into().unwrap());
            number(0) * 1_000_000 + number(8) / 1000
        });
        stamps.push((error[4], word(8), word(12), stamp.map(|stamp| (stamp - sent_at) / 1000)));
    }
    // The data was sent, it was acknowledged 50 ms later, and the first zero-copy write is complete.
    assert_eq!(stamps, [(4, 0, 999, Some(0)), (4, 2, 999, Some(50)), (5, 0, 0, None)]);
    assert_eq!(driver.errno(), libc::EAGAIN);
}

/// Returns the content of the error queue: origin, code, info, data.
fn error_queue(driver: &Driver, fd: i32) -> Vec<(u8, u8, u32, u32)> {
    let mut stamps = Vec::new();
    while let (0, control, _) = driver.recvmsg(fd, 0, libc::MSG_ERRQUEUE) {
        let (_, _, error) = control.last().expect("an extended error").clone();
        let word = |at: usize| u32::from_ne_bytes(error[at..at + 4].try_into().unwrap());
        stamps.push((error[4], error[6], word(8), word(12)));
    }
    assert_eq!(driver.errno(), libc::EAGAIN);
    stamps
}

const TX_SOFTWARE: i32 = 1 << 1;
const SOFTWARE: i32 = 1 << 4;
const OPT_ID: i32 = 1 << 7;
const TX_SCHED: i32 = 1 << 8;
const TX_ACK: i32 = 1 << 9;
const OPT_ID_TCP: i32 = 1 << 16;

#[test]
fn control_message_requests_time_stamps_of_one_write() {
    let (driver, fd, _) = established("sysctls=off");
    driver.set_int(fd, libc::SOL_TCP, libc::TCP_NODELAY, 1);
    driver.set_int(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, SOFTWARE | OPT_ID);
    assert_eq!(driver.send(fd, &[0; 500], 0), 500);
    let asked = (TX_SCHED | TX_SOFTWARE).to_ne_bytes().to_vec();
    let control = (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, asked);
    assert_eq!(driver.sendmsg(fd, &[0; 300], 0, &control), 300);
    assert_eq!(driver.send(fd, &[0; 200], 0), 200);
    driver.drain_payload(1000);
    driver.arrive(Segment { seq: 1, ack: 1001, flags: ACK, ..Segment::default() }, &[]);
    // The data was queued and sent. Its acknowledgement is not reported, because that was not requested. The
    // last byte has number 799.
    assert_eq!(error_queue(&driver, fd), [(4, 0, 1, 799), (4, 0, 0, 799)]);
}

#[test]
fn a_stamp_waits_for_the_last_byte_of_its_write() {
    let (driver, fd, _) = established("sysctls=off");
    driver.set_int(fd, libc::SOL_TCP, libc::TCP_NODELAY, 1);
    driver.set_int(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, SOFTWARE | OPT_ID | TX_ACK);
    assert_eq!(driver.send(fd, &[0; 3000], 0), 3000);
    assert_eq!(driver.send(fd, &[0; 1000], 0), 1000);
    driver.drain_payload(4000);
    for (ack, stamps) in [(2921, vec![]), (3001, vec![(4, 0, 2, 2999)]), (4001, vec![(4, 0, 2, 3999)])] {
        driver.arrive(Segment { seq: 1, ack, flags: ACK, ..Segment::default() }, &[]);
        assert_eq!(driver.poll(fd, 0), if stamps.is_empty() { 0 } else { libc::POLLERR }, "ack {ack}");
        assert_eq!(error_queue(&driver, fd), stamps, "ack {ack}");
    }
}

#[test]
fn keys_of_stamps_count_from_acknowledged_or_written_bytes() {
    for (flags, key) in [(0, 1099), (OPT_ID_TCP, 99)] {
        let (driver, fd, listener) = established("sysctls=off");
        driver.set_int(fd, libc::SOL_TCP, libc::TCP_NODELAY, 1);
        assert_eq!(driver.send(fd, &[0; 1000], 0), 1000);
        let stamping = SOFTWARE | OPT_ID | TX_ACK | flags;
        driver.set_int(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, stamping);
        assert_eq!(driver.send(fd, &[0; 100], 0), 100);
        driver.drain_payload(1100);
        driver.arrive(Segment { seq: 1, ack: 1101, flags: ACK, ..Segment::default() }, &[]);
        assert_eq!(error_queue(&driver, fd), [(4, 0, 2, key)]);
        // Without a connection there is no offset to count from; OPT_ID_TCP alone is not valid.
        for (fd, flags) in [(listener, stamping), (fd, OPT_ID_TCP)] {
            let refused = driver.try_set_int(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags);
            assert_eq!((refused, driver.errno()), (-1, libc::EINVAL));
        }
    }
}

#[test]
fn arrivals_are_stamped_on_request() {
    const RX_SOFTWARE: i32 = 1 << 3;
    let (driver, fd, _) = established("sysctls=off");
    driver.set_int(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, RX_SOFTWARE | SOFTWARE);
    driver.sleep(70_000);
    let arrived = driver.now();
    driver.arrive(Segment { seq: 1, ack: 1, flags: ACK | PSH, ..Segment::default() }, &[7; 100]);
    driver.sleep(50_000);
    let (count, control, _) = driver.recvmsg(fd, 200, 0);
    let [(libc::SOL_SOCKET, libc::SCM_TIMESTAMPING, stamp)] = control.as_slice() else {
        panic!("{control:?}")
    };
    let number = |at: usize| i64::from_ne_bytes(stamp[at..at + 8].try_into().unwrap());
    let at = number(0) * 1_000_000 + number(8) / 1000;
    assert!(count == 100 && (arrived..arrived + 10).contains(&at), "{at} {arrived}");
}

#[test]
fn zero_copy_writes_in_a_row_complete_as_one() {
    let (driver, fd, _) = established("sysctls=off");
    driver.set_int(fd, libc::SOL_TCP, libc::TCP_NODELAY, 1);
    // Without SO_ZEROCOPY the flag has no effect.
    assert_eq!(driver.send(fd, &[0; 100], MSG_ZEROCOPY), 100);
    driver.set_int(fd, libc::SOL_SOCKET, SO_ZEROCOPY, 1);
    for flags in [MSG_ZEROCOPY, 0, MSG_ZEROCOPY, MSG_ZEROCOPY] {
        assert_eq!(driver.send(fd, &[0; 100], flags), 100);
    }
    driver.drain_payload(500);
    driver.arrive(Segment { seq: 1, ack: 401, flags: ACK, ..Segment::default() }, &[]);
    assert_eq!(error_queue(&driver, fd), [(5, 1, 0, 1)], "the first two");
    driver.arrive(Segment { seq: 1, ack: 501, flags: ACK, ..Segment::default() }, &[]);
    assert_eq!(error_queue(&driver, fd), [(5, 1, 2, 2)]);
}

#[test]
fn tcp_inq_and_ioctl_report_the_end_of_the_stream() {
    const SIOCOUTQNSD: u64 = 0x894B;
    let (driver, fd, listener) = established("sysctls=off");
    driver.set_int(fd, libc::SOL_TCP, libc::TCP_INQ, 1);
    driver.arrive(Segment { seq: 1, ack: 1, flags: ACK | PSH, ..Segment::default() }, &[7; 100]);
    assert_eq!(driver.ioctl(fd, libc::FIONREAD), 100);
    driver.arrive(Segment { seq: 101, ack: 1, flags: FIN | ACK, ..Segment::default() }, &[]);
    assert_eq!(driver.ioctl(fd, libc::FIONREAD), 100, "a FIN does not count as a byte");
    let (_, control, _) = driver.recvmsg(fd, 100, 0);
    assert_eq!(control, [(libc::SOL_TCP, libc::TCP_INQ, 1i32.to_ne_bytes().to_vec())], "read on: the end");
    assert_eq!(driver.send(fd, &[0; 20_000], 0), 20_000);
    driver.drain_payload(14_600);
    assert_eq!((driver.ioctl(fd, libc::TIOCOUTQ), driver.ioctl(fd, SIOCOUTQNSD)), (20_000, 5400));
    driver.arrive(Segment { seq: 102, ack: 14_601, flags: ACK, ..Segment::default() }, &[]);
    driver.drain_payload(5400);
    assert_eq!((driver.ioctl(fd, libc::TIOCOUTQ), driver.ioctl(fd, SIOCOUTQNSD)), (5400, 0));
    driver.arrive(Segment { seq: 102, ack: 20_001, flags: ACK, ..Segment::default() }, &[]);
    driver.shutdown(fd, libc::SHUT_WR);
    assert_eq!(driver.ioctl(fd, libc::TIOCOUTQ), 1, "the FIN counts until it is acknowledged");
    assert_eq!((driver.ioctl(listener, libc::FIONREAD), driver.errno()), (-1, libc::EINVAL));
    assert_eq!((driver.ioctl(fd, 0x1234), driver.errno()), (-1, libc::ENOTTY));
}

#[test]
fn epoll_reports_by_level_edge_and_one_shot() {
    let (driver, fd, _) = established("sysctls=off");
    let input = libc::EPOLLIN;
    let [level, edge, once] =
        [0, libc::EPOLLET, libc::EPOLLONESHOT].map(|mode| driver.watch(fd, input | mode));
    let data = |seq| driver.arrive(Segment { seq, ack: 1, flags: ACK | PSH, ..Segment::default() }, &[1; 10]);
    assert_eq!(driver.epoll_wait(level), []);
    data(1);
    for epfd in [level, edge, once] {
        assert_eq!(driver.epoll_wait(epfd), [(fd, input)]);
    }
    assert_eq!(driver.epoll_wait(level), [(fd, input)], "the event is reported while it holds");
    assert_eq!((driver.epoll_wait(edge), driver.epoll_wait(once)), (vec![], vec![]));
    data(11);
    assert_eq!(driver.epoll_wait(edge), [(fd, input)], "more has arrived");
    assert_eq!(driver.epoll_wait(once), [], "spent");
    assert_eq!(driver.epoll_ctl(once, libc::EPOLL_CTL_MOD, fd, input | libc::EPOLLONESHOT), 0);
    assert_eq!(driver.epoll_wait(once), [(fd, input)], "armed again");
    assert_eq!(driver.recv(fd, 100, 0), 20);
    assert_eq!((driver.epoll_wait(level), driver.epoll_wait(edge)), (vec![], vec![]));
    let end = input | libc::EPOLLRDHUP;
    assert_eq!(driver.epoll_ctl(level, libc::EPOLL_CTL_MOD, fd, end), 0);
    driver.arrive(Segment { seq: 21, ack: 1, flags: FIN | ACK, ..Segment::default() }, &[]);
    assert_eq!((driver.epoll_wait(level), driver.epoll_wait(edge)), (vec![(fd, end)], vec![(fd, input)]));
    assert_eq!(driver.epoll_ctl(level, libc::EPOLL_CTL_DEL, fd, 0), 0);
    assert_eq!(driver.epoll_wait(level), []);
    assert_eq!((driver.epoll_ctl(level, libc::EPOLL_CTL_DEL, fd, 0), driver.errno()), (-1, libc::ENOENT));
}

#[test]
fn writable_edge_is_reported_when_there_is_room_again() {
    let (driver, fd, _) = established("sysctls=off");
    driver.set_int(fd, libc::SOL_TCP, TCP_NOTSENT_LOWAT, 5000);
    driver.set_nonblocking(fd);
    let edge = driver.watch(fd, libc::EPOLLOUT | libc::EPOLLET);
    assert_eq!(driver.epoll_wait(edge), [(fd, libc::EPOLLOUT)]);
    assert_eq!(driver.send(fd, &[0; 20_000], 0), 20_000);
    assert_eq!((driver.send(fd, &[0; 1], 0), driver.errno()), (-1, libc::EAGAIN));
    assert_eq!(driver.epoll_wait(edge), []);
    let sent = driver.drain_payload(14_600);
    driver.arrive(Segment { seq: 1, ack: sent, flags: ACK, ..Segment::default() }, &[]);
    assert_eq!(driver.epoll_wait(edge), [(fd, libc::EPOLLOUT)], "less than 5000 bytes are unsent");
    assert_eq!(driver.epoll_wait(edge), []);
}

#[test]
fn exclusive_watches_are_refused_where_linux_refuses_them() {
    let (driver, fd, _) = established("sysctls=off");
    let epfd = driver.watch(fd, libc::EPOLLIN | libc::EPOLLEXCLUSIVE);
    let change = driver.epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, libc::EPOLLIN);
    assert_eq!((change, driver.errno()), (-1, libc::EINVAL));
    let again = driver.epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN);
    assert_eq!((again, driver.errno()), (-1, libc::EEXIST));
    driver.arrive(Segment { seq: 1, ack: 1, flags: ACK | PSH, ..Segment::default() }, &[1; 10]);
    assert_eq!(driver.epoll_wait(epfd), [(fd, libc::EPOLLIN)]);
}

#[test]
fn a_listener_may_have_cookie_keys_of_its_own() {
    const TCP_FASTOPEN_KEY: i32 = 33;
    let driver = Driver::new("sysctls=off fast_open_key=a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4");
    let listener = driver.listener(libc::AF_INET, Some(5));
    let cookie = || {
        driver.arrive(Segment { seq: 0, flags: SYN, options: &[34, 2, 1, 1], ..Segment::default() }, &[]);
        let granted = driver.receive().expect("a SYN-ACK");
        driver.follow(&granted);
        driver.arrive(Segment { seq: 1, flags: 4, ..Segment::default() }, &[]);
        let at = granted.options.windows(2).position(|pair| pair == [34, 10]).expect("a cookie");
        granted.options[at + 2..at + 10].to_vec()
    };
    let of_host = cookie();
    let keys: Vec<u8> = (0..32).collect();
    assert_eq!(driver.set_bytes(listener, libc::SOL_TCP, TCP_FASTOPEN_KEY, &keys[..16]), 0);
    let of_listener = cookie();
    assert_ne!(of_listener, of_host);
    assert_eq!(driver.set_bytes(listener, libc::SOL_TCP, TCP_FASTOPEN_KEY, &keys), 0);
    assert_eq!(cookie(), of_listener, "the first of two makes cookies");
    assert_eq!(driver.get(listener, libc::SOL_TCP, TCP_FASTOPEN_KEY, 64), keys);
    for wrong in [0, 8, 17, 48] {
        let long = [7; 48];
        let refused = driver.set_bytes(listener, libc::SOL_TCP, TCP_FASTOPEN_KEY, &long[..wrong]);
        assert_eq!((refused, driver.errno()), (-1, libc::EINVAL), "{wrong} bytes");
    }
}

#[test]
fn settings_are_read_on_use() {
    let dir = std::env::temp_dir().join(format!("brisk-settings-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let set = |name: &str, value: &str| std::fs::write(dir.join(name), value).unwrap();
    set("tcp_timestamps", "1");
    set("tcp_fastopen", "5");
    let mut driver = Driver::new(&format!("sysctls={}", dir.display()));
    driver.listener(libc::AF_INET, None);
    let fd = driver.socket(libc::SOCK_NONBLOCK);
    let timestamps = [8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1];
    let mut stamped = || {
        driver.new_peer();
        driver.arrive(Segment { seq: 0, flags: SYN, options: &timestamps, ..Segment::default() }, &[]);
        let answer = driver.receive().expect("a SYN-ACK");
        driver.follow(&answer);
        driver.arrive(Segment { seq: 1, flags: RST, ..Segment::default() }, &[]);
        answer.options.windows(2).any(|pair| pair == [8, 10])
    };
    assert!(stamped());
    set("tcp_timestamps", "0");
    assert!(!stamped(), "the listener is older than the setting");
    set("tcp_fastopen", "0");
    assert_eq!((driver.send_fast(fd, b"request"), driver.errno()), (-1, libc::EOPNOTSUPP));
    set("tcp_fastopen", "5");
    assert_eq!(driver.send_fast(fd, b"request"), 7);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn notsent_lowat_bounds_unsent_bytes() {
    let (driver, fd, _) = established("sysctls=off");
    driver.set_int(fd, libc::SOL_TCP, TCP_NOTSENT_LOWAT, 1000);
    driver.set_nonblocking(fd);
    assert_eq!(driver.send(fd, &[0; 16_000], 0), 16_000);
    assert_eq!((driver.send(fd, &[0; 1000], 0), driver.errno()), (-1, libc::EAGAIN));
    assert_eq!(driver.poll(fd, libc::POLLOUT), 0);
    let sent = driver.drain_payload(14_600);
    driver.arrive(Segment { seq: 1, ack: sent, flags: ACK, ..Segment::default() }, &[]);
    assert_eq!(driver.poll(fd, libc::POLLOUT), libc::POLLOUT);
}

#[test]
fn linger_zero_resets_and_linger_waits_for_the_acknowledgement() {
    let (driver, fd, _) = established("sysctls=off");
    driver.set_linger(fd, 0);
    assert_eq!(driver.close(fd), 0);
    assert_eq!(driver.receive().map(|sent| sent.flags & 4), Some(4), "RST");
    let (driver, fd, _) = established("sysctls=off");
    driver.set_linger(fd, 3);
    let before = driver.now();
    assert_eq!(driver.send(fd, &[0; 100], 0), 100);
    assert_eq!(driver.close(fd), 0);
    assert!((3_000_000..3_000_100).contains(&(driver.now() - before)), "the peer has not acknowledged");
}

#[test]
fn reset_is_reported_once_and_a_later_write_is_a_broken_pipe() {
    let (driver, fd, _) = established("sysctls=off");
    driver.arrive(Segment { seq: 1, flags: 4, ..Segment::default() }, &[]);
    assert_eq!(driver.poll(fd, libc::POLLIN), libc::POLLIN | libc::POLLERR | libc::POLLHUP);
    assert_eq!((driver.recv(fd, 10, 0), driver.errno()), (-1, libc::ECONNRESET));
    assert_eq!(driver.recv(fd, 10, 0), 0);
    assert_eq!((driver.send(fd, &[0; 10], 0), driver.errno()), (-1, libc::EPIPE));
}

#[test]
fn a_reset_after_the_peers_fin_is_a_broken_pipe() {
    let (driver, fd, _) = established("sysctls=off");
    driver.arrive(Segment { seq: 1, ack: 1, flags: FIN | ACK, ..Segment::default() }, &[]);
    driver.arrive(Segment { seq: 2, flags: 4, ..Segment::default() }, &[]);
    assert_eq!(driver.get_int(fd, libc::SOL_SOCKET, libc::SO_ERROR), libc::EPIPE);
    assert_eq!(driver.get_int(fd, libc::SOL_SOCKET, libc::SO_ERROR), 0);
}

#[test]
fn fast_open_asks_for_a_cookie_and_uses_it() {
    let driver = Driver::new("sysctls=off");
    // Without a cookie the call accepts no data, and the SYN requests a cookie.
    let fd = driver.socket(libc::SOCK_NONBLOCK);
    assert_eq!((driver.send_fast(fd, &[1; 500]), driver.errno()), (-1, libc::EINPROGRESS));
    let syn = driver.receive().expect("a SYN");
    driver.follow(&syn);
    assert_eq!((syn.flags, syn.payload.len()), (SYN, 0));
    assert!(syn.options.ends_with(&[34, 2, 1, 1]) || syn.options.contains(&34), "{:?}", syn.options);
    let cookie = [2, 4, 5, 180, 34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1];
    let granted = Segment { seq: 0, ack: 1, flags: SYN | ACK, options: &cookie };
    driver.arrive(granted, &[]);
    assert_eq!(driver.receive().map(|ack| ack.flags), Some(ACK));
    driver.set_linger(fd, 0);
    assert_eq!(driver.close(fd), 0);
    driver.receive();

    // With a cookie the SYN carries the data that fits, and the call returns its length.
    let fd = driver.socket(libc::SOCK_NONBLOCK);
    assert_eq!(driver.send_fast(fd, &[1; 500]), 500);
    let syn = driver.receive().expect("a SYN");
    assert_eq!((syn.flags & SYN, syn.payload.len()), (SYN, 500));
    let fd = driver.socket(libc::SOCK_NONBLOCK);
    assert_eq!(driver.send_fast(fd, &[1; 5000]), 1460 - 40);

    // connect() is deferred until the first write.
    let fd = driver.socket(libc::SOCK_NONBLOCK);
    driver.set_int(fd, libc::SOL_TCP, libc::TCP_FASTOPEN_CONNECT, 1);
    assert_eq!(driver.connect(fd), 0);
    assert_eq!(driver.poll(fd, libc::POLLOUT), libc::POLLOUT);
    assert_eq!(driver.send(fd, &[1; 300], 0), 300);
}

#[test]
fn a_listener_takes_data_with_a_cookie_of_linux() {
    // The scripts' common set-up has this key. It gives the cookie for 192.0.2.1 as the client and
    // 192.168.0.1 as the server.
    let mut driver = Driver::new("sysctls=off fast_open_key=a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4");
    let listener = driver.listener(libc::AF_INET, Some(5));
    driver.arrive(Segment { seq: 0, flags: SYN, options: &[34, 2, 1, 1], ..Segment::default() }, &[]);
    let granted = driver.receive().expect("a SYN-ACK");
    driver.follow(&granted);
    let at = granted.options.windows(2).position(|pair| pair == [34, 10]).expect("a cookie");
    let mut option = granted.options[at..at + 10].to_vec();
    option.extend([1, 1]);
    driver.new_peer();
    driver.arrive(Segment { seq: 0, flags: SYN, options: &option, ..Segment::default() }, &[9; 1000]);
    let fd = driver.accept(listener);
    assert_eq!(driver.recv(fd, 2000, 0), 1000);
    assert_eq!(driver.tcp_info(fd)[0], 3, "SYN-RECEIVED");
    assert_eq!(driver.tcp_info(fd)[5] & 32, 32, "TCPI_OPT_SYN_DATA");
}

#[test]
fn an_ipv6_socket_sees_ipv4_mapped() {
    let driver = Driver::new("sysctls=off");
    let listener = driver.listener(libc::AF_INET6, None);
    driver.handshake();
    let fd = driver.accept(listener);
    assert!(fd > listener);
    assert_eq!(driver.last_peer(), "[::ffff:192.0.2.1]:33000".parse().unwrap());
}

#[test]
fn options_unknown_to_linux_fail_with_its_error() {
    let driver = Driver::new("sysctls=off");
    let fd = driver.socket(0);
    for (level, name, value, errno) in [
        (libc::SOL_TCP, 999, 1, libc::ENOPROTOOPT),
        (libc::SOL_SOCKET, 9999, 1, libc::ENOPROTOOPT),
        (libc::SOL_TCP, libc::TCP_MAXSEG, 10, libc::EINVAL),
        (libc::SOL_TCP, libc::TCP_SYNCNT, 128, libc::EINVAL),
        (libc::SOL_SOCKET, SO_ZEROCOPY, 2, libc::EINVAL),
        (libc::SOL_TCP, libc::TCP_USER_TIMEOUT, -1, libc::EINVAL),
    ] {
        let answer = (driver.try_set_int(fd, level, name, value), driver.errno());
        assert_eq!(answer, (-1, errno), "level {level} name {name}");
    }
    assert_eq!((driver.send(fd, &[0], 0), driver.errno()), (-1, libc::EPIPE));
    assert_eq!((driver.recv(fd, 1, 0), driver.errno()), (-1, libc::ENOTCONN));
    assert_eq!((driver.close(fd + 9), driver.errno()), (-1, libc::EBADF));
}

/// Linux reads the number as unsigned, which gives the maximum.
#[test]
fn a_negative_backlog_is_the_largest() {
    let mut driver = Driver::new("sysctls=off");
    let listener = driver.listener(libc::AF_INET, None);
    assert_eq!(driver.listen(listener, -1), 0);
    for _ in 0..3 {
        driver.handshake();
        driver.new_peer();
    }
    let accepted: Vec<i32> = (0..3).map(|_| driver.accept(listener)).collect();
    assert!(accepted.iter().all(|fd| *fd > 0), "{accepted:?}");
}

/// The results of Linux 6.18 for the same calls on its own socket.
#[test]
fn extreme_option_values_are_returned_as_by_linux() {
    let driver = Driver::new("sysctls=off");
    let fd = driver.socket(0);
    let tcp = |name| driver.get_int(fd, libc::SOL_TCP, name);
    assert_eq!((tcp(libc::TCP_LINGER2), tcp(TCP_NOTSENT_LOWAT), tcp(libc::TCP_MAXSEG)), (60, 0, 536));
    for (name, values) in [
        (libc::TCP_LINGER2, [(5, 5), (0, 60), (200, 120), (-5, -1), (120, 120)]),
        (TCP_NOTSENT_LOWAT, [(-1, -1), (0, 0), (1, 1), (500, 500), (40_000, 40_000)]),
        (libc::TCP_WINDOW_CLAMP, [(1, 1152), (0, 0), (-1, 1152), (1153, 1153), (40_000, 40_000)]),
        (libc::TCP_FASTOPEN, [(40_000, 4096), (0, 0), (5, 5), (4096, 4096), (200_000, 4096)]),
    ] {
        for (set, got) in values {
            driver.set_int(fd, libc::SOL_TCP, name, set);
            assert_eq!(tcp(name), got, "option {name}, {set}");
        }
    }
    for (name, value, got) in [
        (libc::SO_REUSEADDR, 7, 1),
        (libc::SO_MARK, 7, 7),
        (libc::SO_RCVBUF, 3000, 6000),
        (libc::SO_SNDBUF, 1, 4608),
    ] {
        driver.set_int(fd, libc::SOL_SOCKET, name, value);
        assert_eq!(driver.get_int(fd, libc::SOL_SOCKET, name), got, "option {name}, {value}");
    }
    // A negative number requests the maximum.
    for (name, min) in [(libc::SO_RCVBUF, 1 << 23), (libc::SO_SNDBUF, 1 << 23)] {
        let fd = driver.socket(0);
        driver.set_int(fd, libc::SOL_SOCKET, name, -1);
        assert!(driver.get_int(fd, libc::SOL_SOCKET, name) >= min, "option {name}");
    }
}

#[test]
fn shutdown_without_a_connection_is_refused_and_recorded() {
    let driver = Driver::new("sysctls=off");
    let fd = driver.socket(libc::SOCK_NONBLOCK);
    let wanted = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
    assert_eq!(driver.poll(fd, wanted), libc::POLLOUT | libc::POLLHUP);
    assert_eq!(driver.recv(fd, 10, 0), -1);
    assert_eq!(driver.errno(), libc::ENOTCONN);
    assert_eq!((driver.try_shutdown(fd, libc::SHUT_RD), driver.errno()), (-1, libc::ENOTCONN));
    assert_eq!(driver.poll(fd, wanted), wanted | libc::POLLHUP);
    assert_eq!(driver.recv(fd, 10, 0), 0);
}

#[test]
fn failed_connect_may_be_repeated() {
    let driver = Driver::new("sysctls=off");
    let fd = driver.socket(libc::SOCK_NONBLOCK);
    assert_eq!(driver.connect(fd), -1);
    driver.follow(&driver.receive().expect("a SYN"));
    driver.arrive(Segment { seq: 0, ack: 1, flags: ACK | RST, ..Segment::default() }, &[]);
    assert_eq!(driver.get_int(fd, libc::SOL_SOCKET, libc::SO_ERROR), libc::ECONNREFUSED);
    assert_eq!((driver.connect(fd), driver.errno()), (-1, libc::EINPROGRESS));
    assert_eq!(driver.receive().expect("another SYN").flags, SYN);
}

#[test]
fn shutdown_in_syn_sent_aborts_connect() {
    let driver = Driver::new("sysctls=off");
    let fd = driver.socket(libc::SOCK_NONBLOCK);
    driver.connect(fd);
    driver.shutdown(fd, libc::SHUT_WR);
    let wanted = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
    assert_eq!(driver.poll(fd, wanted), libc::POLLOUT | libc::POLLERR | libc::POLLHUP);
    assert_eq!(driver.get_int(fd, libc::SOL_SOCKET, libc::SO_ERROR), libc::ECONNRESET);
    assert_eq!((driver.recv(fd, 10, 0), driver.errno()), (-1, libc::ENOTCONN));
}

#[test]
fn a_reset_after_our_own_fin_is_no_broken_pipe() {
    let (driver, fd, _) = established("sysctls=off");
    driver.shutdown(fd, libc::SHUT_WR);
    driver.arrive(Segment { seq: 1, ack: 1, flags: ACK | FIN, ..Segment::default() }, &[]);
    driver.arrive(Segment { seq: 2, ack: 1, flags: ACK | RST, ..Segment::default() }, &[]);
    assert_eq!(driver.get_int(fd, libc::SOL_SOCKET, libc::SO_ERROR), libc::ECONNRESET);
}

#[test]
fn arrivals_cause_no_writable_edge() {
    let (driver, fd, _) = established("sysctls=off");
    let epfd = driver.watch(fd, libc::EPOLLOUT | libc::EPOLLET);
    assert_eq!(driver.epoll_wait(epfd).len(), 1);
    driver.arrive(Segment { seq: 1, ack: 1, flags: ACK | PSH, ..Segment::default() }, &[7; 60]);
    assert_eq!(driver.epoll_wait(epfd), []);
    driver.shutdown(fd, libc::SHUT_RD);
    assert_eq!(driver.epoll_wait(epfd).len(), 1, "a closed direction is reported to every watcher");
}

#[test]
fn a_reset_completes_zero_copy_writes() {
    let (driver, fd, _) = established("sysctls=off");
    driver.set_int(fd, libc::SOL_SOCKET, SO_ZEROCOPY, 1);
    assert_eq!(driver.send(fd, &[0; 1000], MSG_ZEROCOPY), 1000);
    driver.arrive(Segment { seq: 1, ack: 1, flags: ACK | RST, ..Segment::default() }, &[]);
    assert_eq!(error_queue(&driver, fd), [(5, 1, 0, 0)]);
}

#[test]
fn stamps_without_time_and_without_packet_are_distinguished() {
    let (driver, fd, _) = established("sysctls=off");
    driver.set_int(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, TX_ACK | OPT_ID);
    assert_eq!(driver.send(fd, &[0; 500], 0), 500);
    driver.drain_payload(500);
    driver.arrive(Segment { seq: 1, ack: 501, flags: ACK, ..Segment::default() }, &[]);
    let (count, control, flags) = driver.recvmsg(fd, 0, libc::MSG_ERRQUEUE);
    assert_eq!((count, control.len()), (0, 1), "no time was requested");
    assert_eq!(flags, libc::MSG_ERRQUEUE | libc::MSG_TRUNC, "the packet did not fit");
}

#[test]
fn tcp_info_counts_segments_as_linux_does() {
    let (driver, fd, _) = established("sysctls=off");
    let word = |info: &[u8], at: usize| u32::from_ne_bytes(info[at..at + 4].try_into().unwrap());
    assert_eq!(driver.send(fd, &[0; 4000], 0), 4000);
    driver.drain_payload(4000);
    let info = driver.tcp_info(fd);
    // state, ca_state; unacked, snd_mss, snd_cwnd, delivered (the SYN-ACK counts).
    assert_eq!((info[0], info[1]), (1, 0));
    assert_eq!((word(&info, 24), word(&info, 16), word(&info, 80), word(&info, 192)), (3, 1460, 10, 1));
    driver.sleep(100_000);
    driver.arrive(Segment { seq: 1, ack: 4001, flags: ACK, ..Segment::default() }, &[]);
    let info = driver.tcp_info(fd);
    let busy = u64::from_ne_bytes(info[168..176].try_into().unwrap());
    assert_eq!((word(&info, 24), word(&info, 192)), (0, 4));
    assert!((100_000..101_000).contains(&busy), "busy for {busy} us");
}

#[test]
fn packets_have_the_class_that_was_set_last() {
    let (driver, fd, _) = established("sysctls=off");
    driver.set_int(fd, libc::SOL_IP, libc::IP_TOS, 0x28);
    assert_eq!(driver.send(fd, &[0; 100], 0), 100);
    let sent = driver.receive().expect("the data");
    assert_eq!(sent.dscp, 10);
}

#[test]
fn options_out_of_their_range_are_refused_as_in_linux() {
    let driver = Driver::new("sysctls=off");
    let fd = driver.socket(0);
    for (level, name, value, errno) in [
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, -1, libc::EINVAL),
        (libc::SOL_IP, libc::IP_MTU_DISCOVER, 6, libc::EINVAL),
    ] {
        assert_eq!((driver.try_set_int(fd, level, name, value), driver.errno()), (-1, errno), "{name}");
    }
    driver.set_int(fd, libc::SOL_TCP, libc::TCP_DEFER_ACCEPT, 5);
    assert_eq!(driver.get_int(fd, libc::SOL_TCP, libc::TCP_DEFER_ACCEPT), 7, "in retransmissions");
    driver.set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, i32::MAX);
    assert_eq!(driver.get_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF), 2 * (4 << 20), "the maximum");
}

fn established(flags: &str) -> (Driver, i32, i32) {
    let driver = Driver::new(flags);
    let listener = driver.listener(libc::AF_INET, None);
    driver.handshake();
    let fd = driver.accept(listener);
    (driver, fd, listener)
}
