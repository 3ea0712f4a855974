use std::time::{Duration, Instant};

use brisk_conformance_dut::messages::*;

use crate::bench::{over_both, over_v4};
use crate::peer::{ACK, FIN, MSS_1460, PSH, RST};

#[test]
fn a_passive_connection_from_its_first_call_to_its_last() {
    over_both(&[], async |mut bench| {
        let (listener, at) = bench.dut.listener(bench.dut_ip(), 1).await;
        // accept() blocks while the test makes other calls.
        let dut = bench.dut.clone();
        let waiting = tokio::spawn(async move { dut.accept(listener).await });
        let own = bench.peer_addr();
        let (mut end, syn_ack) = bench.peer.open(own, at, MSS_1460).await;
        let mss = if own.is_ipv4() { 1460u16 } else { 1440 };
        assert_eq!(syn_ack.option(2), Some(mss.to_be_bytes().to_vec()));
        let (fd, from) = waiting.await.unwrap().unwrap();
        assert_eq!((from, bench.dut.getsockname(fd).await), (own, Ok(at)));
        bench.peer.say(&mut end, PSH | ACK, b"question");
        assert_eq!(bench.dut.recv(fd, 100, 0).await.unwrap(), b"question");
        assert_eq!(bench.dut.send(fd, b"answer", 0).await, Ok(6));
        let data = bench.peer.expect("the answer", |segment| segment.payload == b"answer").await;
        assert_eq!((data.seq, data.ack, data.has(PSH)), (end.ack, end.seq, true));
        end.take(&data);
        bench.peer.put(&end.segment(ACK, &[]));
        assert_eq!(bench.dut.shutdown(fd, libc::SHUT_WR).await, Ok(0));
        let fin = bench.peer.expect("the FIN", |segment| segment.has(FIN)).await;
        end.take(&fin);
        bench.peer.say(&mut end, FIN | ACK, &[]);
        bench.peer.expect("the ACK of the FIN", |segment| segment.ack == end.seq).await;
        assert_eq!(bench.dut.recv(fd, 100, 0).await.unwrap(), b"");
        assert_eq!(bench.dut.send(fd, b"late", libc::MSG_NOSIGNAL).await, Err(libc::EPIPE));
        assert_eq!(bench.dut.close(fd).await, Ok(0));
        assert_eq!(bench.dut.close(listener).await, Ok(0));
        assert_eq!(bench.dut.recv(fd, 1, 0).await, Err(libc::EBADF));
    });
}

#[test]
fn an_active_connection_and_data_both_ways() {
    over_both(&[], async |mut bench| {
        let (fd, mut end) = bench.connected().await;
        assert_eq!(bench.dut.getsockname(fd).await, Ok(end.other));
        let long = vec![7; 4000];
        assert_eq!(bench.dut.send_to(fd, &long, 0, end.own).await, Ok(4000));
        let mut read = 0;
        while read < 4000 {
            let data = bench.peer.expect("data", |segment| !segment.payload.is_empty()).await;
            read += data.payload.len();
            end.take(&data);
            bench.peer.put(&end.segment(ACK, &[]));
        }
        bench.peer.say(&mut end, PSH | ACK, &[9; 1000]);
        // MSG_PEEK leaves the bytes, MSG_WAITALL waits for all of them.
        assert_eq!(bench.dut.recv(fd, 10, libc::MSG_PEEK).await.unwrap(), [9; 10]);
        assert_eq!(bench.dut.recv(fd, 1000, libc::MSG_WAITALL).await.unwrap(), [9; 1000]);
        assert_eq!(bench.dut.close(fd).await, Ok(0));
        bench.peer.expect("the FIN", |segment| segment.has(FIN)).await;
    });
}

#[test]
fn nonblocking_socket_is_polled() {
    over_v4(&[], async |mut bench| {
        let own = bench.peer_addr();
        let fd = bench.dut.socket(own.ip()).await;
        assert_eq!(bench.dut.set_nonblocking(fd, true).await, Ok(0));
        assert_eq!(bench.dut.connect_to(fd, own).await, Err(libc::EINPROGRESS));
        assert_eq!(bench.dut.connect_to(fd, own).await, Err(libc::EALREADY));
        assert_eq!(bench.dut.poll(&[(fd, libc::POLLOUT)], 0).await, Ok(vec![]));
        let dut = bench.dut.clone();
        let polled = tokio::spawn(async move { dut.poll(&[(fd, libc::POLLOUT | libc::POLLIN)], -1).await });
        let (mut end, _) = bench.peer.called(own).await;
        bench.peer.answer(&mut end, MSS_1460);
        assert_eq!(polled.await.unwrap(), Ok(vec![(fd, libc::POLLOUT)]));
        assert_eq!(bench.dut.get_int(fd, libc::SOL_SOCKET, libc::SO_ERROR).await, 0);
        assert_eq!(bench.dut.recv(fd, 10, 0).await, Err(libc::EAGAIN));
        bench.peer.say(&mut end, PSH | ACK, b"x");
        assert_eq!(bench.dut.poll(&[(fd, libc::POLLIN)], 20_000).await, Ok(vec![(fd, libc::POLLIN)]));
        bench.peer.say(&mut end, FIN | ACK, &[]);
        let hung_up = libc::POLLIN | libc::POLLRDHUP;
        let started = Instant::now();
        while bench.dut.poll(&[(fd, hung_up)], 1000).await != Ok(vec![(fd, hung_up)]) {
            assert!(started.elapsed() < Duration::from_secs(20), "the FIN is not reported");
        }
        assert_eq!(bench.dut.set_nonblocking(fd, false).await, Ok(0));
        assert_eq!(bench.dut.recv(fd, 10, 0).await.unwrap(), b"x");
    });
}

#[test]
fn poll_ends_with_its_timeout() {
    over_v4(&[], async |mut bench| {
        let (fd, _) = bench.accepted().await;
        let started = Instant::now();
        let asked = [(fd, libc::POLLIN), (12_345, libc::POLLIN), (fd, libc::POLLOUT)];
        let ready = vec![(12_345, libc::POLLNVAL), (fd, libc::POLLOUT)];
        assert_eq!(bench.dut.poll(&asked, 60_000).await, Ok(ready));
        assert_eq!(bench.dut.poll(&asked[..1], 200).await, Ok(vec![]));
        assert!((Duration::from_millis(200)..Duration::from_secs(30)).contains(&started.elapsed()));
    });
}

#[test]
fn calls_that_linux_refuses_fail_with_the_same_error() {
    over_v4(&[], async |bench| {
        let dut = &bench.dut;
        assert_eq!(dut.try_socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).await, Err(libc::EAFNOSUPPORT));
        assert_eq!(
            dut.try_socket(libc::AF_INET, libc::SOCK_DGRAM, 0).await,
            Err(libc::ESOCKTNOSUPPORT),
            "UDP is not supported"
        );
        let (fd, at) = dut.listener("192.0.2.2".parse().unwrap(), 1).await;
        assert_eq!(dut.bind(fd, at).await, Err(libc::EINVAL));
        assert_eq!(dut.recv(fd, 1, 0).await, Err(libc::ENOTCONN));
        assert_eq!(dut.connect_to(fd, at).await, Err(libc::EISCONN));
        let other = dut.socket(at.ip()).await;
        assert_eq!(dut.bind(other, "192.0.2.77:80".parse().unwrap()).await, Err(libc::EADDRNOTAVAIL));
        assert_eq!(dut.bind(other, at).await.and(dut.listen(other, 1).await), Err(libc::EADDRINUSE));
        assert_eq!(dut.accept(other).await.map(|_| ()), Err(libc::EINVAL));
        assert_eq!(dut.send(other, b"x", libc::MSG_NOSIGNAL).await, Err(libc::EPIPE));
        assert_eq!(dut.shutdown(other, libc::SHUT_WR).await, Err(libc::ENOTCONN));
        assert_eq!(dut.get(other, 6, 9999, OptionKind::Int).await, Err(libc::ENOPROTOOPT));
        assert_eq!(dut.get(other, 6, 1, OptionKind::Unspecified).await, Err(libc::EINVAL));
        assert_eq!(dut.set(other, 6, 9999, OptionValue::Int(1)).await, Err(libc::ENOPROTOOPT));
        assert_eq!(
            dut.set(other, libc::SOL_TCP, libc::TCP_MAXSEG, OptionValue::Int(1)).await,
            Err(libc::EINVAL)
        );
        for bad in [-1, 0, 99_999] {
            assert_eq!(dut.close(bad).await, Err(libc::EBADF));
            assert_eq!(dut.getsockname(bad).await, Err(libc::EBADF));
            assert_eq!(dut.set_nonblocking(bad, true).await, Err(libc::EBADF));
        }
        let missing: Return = dut.call("Bind", BindRequest { sockfd: other, addr: None }).await.unwrap();
        assert_eq!((missing.ret, missing.errno), (-1, libc::EFAULT));
        let unknown = dut.call::<CloseRequest, Return>("Fork", CloseRequest { fd }).await.unwrap_err();
        assert_eq!(unknown.code(), tonic::Code::Unimplemented);
    });
}

#[test]
fn option_values_are_numbers_times_or_bytes() {
    over_v4(&[], async |bench| {
        let fd = bench.dut.socket(bench.dut_ip()).await;
        for name in [libc::TCP_NODELAY, libc::TCP_CORK] {
            assert_eq!(bench.dut.get_int(fd, libc::SOL_TCP, name).await, 0);
            bench.dut.set_int(fd, libc::SOL_TCP, name, 1).await;
            assert_eq!(bench.dut.get_int(fd, libc::SOL_TCP, name).await, 1);
        }
        let time = OptionValue::Time(Timeval { seconds: 3, microseconds: 500_000 });
        bench.dut.set(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, time.clone()).await.unwrap();
        let told = bench.dut.get(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, OptionKind::Time).await;
        assert_eq!(told, Ok(time));
        bench.dut.set_linger(fd, 7).await;
        let told = bench.dut.get(fd, libc::SOL_SOCKET, libc::SO_LINGER, OptionKind::Bytes).await;
        assert_eq!(told, Ok(OptionValue::Bytes(vec![1, 0, 0, 0, 7, 0, 0, 0])));
        assert_eq!(bench.dut.info(fd).await[0], 7, "TCP_CLOSE");
    });
}

#[test]
fn blocked_call_ends_with_the_timeout_of_its_socket() {
    over_v4(&[], async |mut bench| {
        let (fd, _) = bench.accepted().await;
        let time = OptionValue::Time(Timeval { seconds: 0, microseconds: 200_000 });
        bench.dut.set(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, time).await.unwrap();
        let started = Instant::now();
        assert_eq!(bench.dut.recv(fd, 10, 0).await, Err(libc::EAGAIN));
        assert!(started.elapsed() >= Duration::from_millis(200));
    });
}

#[test]
fn cancelled_call_takes_no_data() {
    over_v4(&[], async |mut bench| {
        let (fd, mut end) = bench.accepted().await;
        let given_up = tokio::time::timeout(Duration::from_millis(100), bench.dut.recv(fd, 10, 0)).await;
        assert!(given_up.is_err());
        // The connection stays usable; this call follows the reset of the other call's stream.
        assert_eq!(bench.dut.get_int(fd, libc::SOL_SOCKET, libc::SO_ERROR).await, 0);
        bench.peer.say(&mut end, PSH | ACK, b"for the second");
        assert_eq!(bench.dut.recv(fd, 100, 0).await.unwrap(), b"for the second");
    });
}

#[test]
fn an_error_of_the_connection_ends_every_wait() {
    over_v4(&[], async |mut bench| {
        let (fd, end) = bench.accepted().await;
        let waits: Vec<_> = (0..3)
            .map(|_| {
                let dut = bench.dut.clone();
                tokio::spawn(async move { dut.recv(fd, 10, 0).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        bench.peer.put(&end.segment(RST | ACK, &[]));
        let mut told = 0;
        for wait in waits {
            match wait.await.unwrap() {
                Err(libc::ECONNRESET) => told += 1,
                // The error is reported once; the other calls return the end of the stream.
                Ok(bytes) => assert_eq!(bytes, b""),
                Err(other) => panic!("error {other}"),
            }
        }
        assert_eq!(told, 1);
        assert_eq!(bench.dut.info(fd).await[0], 7, "TCP_CLOSE");
    });
}
