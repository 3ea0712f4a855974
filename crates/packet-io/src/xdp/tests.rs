use brisk_device::{ChecksumState, Counters, RxMeta, SharedSink, TxMeta};

use super::device::{PAUSE, deliver};
use super::merge::Merge;
use super::*;
use crate::headers::Headers;
use crate::netns::Namespace;
use crate::privileges::{has_net_admin, has_sys_admin};
use crate::testing::{Tcp, checksum_is_right, pattern};
use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

const OURS: [&str; 2] = ["10.77.0.2", "fd00:77::2"];
const THEIRS: [&str; 2] = ["10.77.0.1", "fd00:77::1"];
const PORT: u16 = 80;

fn ip(words: &str) {
    let done = Command::new("ip").args(words.split_whitespace()).output().unwrap();
    assert!(done.status.success(), "ip {words}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Runs `body` in the namespace of a host with a veth pair to another host, or prints why it cannot. Both
/// know each other's addresses.
fn on_a_cable(body: impl AsyncFnOnce(Namespace) + Send) {
    if !has_sys_admin() || !has_net_admin() {
        return println!("skipped: a veth pair between namespaces needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
    }
    let (near, far) = (Namespace::anonymous().unwrap(), Namespace::anonymous().unwrap());
    let far_file = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsFd::as_fd(&far).as_raw_fd());
    let set_up = |name: &str, addresses: [&str; 2]| {
        ip("link set lo up");
        ip(&format!("addr add {}/24 dev {name}", addresses[0]));
        ip(&format!("addr add {}/64 dev {name} nodad", addresses[1]));
        ip(&format!("link set {name} up"));
    };
    let run = move || {
        // The interface has more than one queue, so that one device has to serve several.
        let queues = "numrxqueues 2 numtxqueues 2";
        ip(&format!("link add eth0 {queues} type veth peer name eth1 netns {far_file} {queues}"));
        set_up("eth0", OURS);
        far.run(|| set_up("eth1", THEIRS)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ended = tokio::time::timeout(Duration::from_secs(30), body(far)).await;
            ended.expect("the test ends in time");
        });
    };
    near.run(run).unwrap();
}

fn addresses() -> [IpAddr; 2] {
    OURS.map(|address| address.parse().unwrap())
}

/// Waits until `holds` is true. A process that another test has just forked holds our descriptors for a
/// moment.
fn soon(mut holds: impl FnMut() -> bool) -> bool {
    (0..200).any(|_| holds() || (std::thread::sleep(Duration::from_millis(5)), false).1)
}

/// Returns options with little memory, so that both queues fit into a user's limit of locked memory.
fn small() -> XdpOptions {
    XdpOptions { receive_frames: 512, send_frames: 512, ..XdpOptions::default() }
}

/// Returns the device on the near end, or prints why it cannot be opened.
fn opened(options: XdpOptions) -> Option<Opened> {
    let options = XdpOptions { serve: Some("[::]:80".parse().unwrap()), local_ports: 64, ..options };
    let mut answer = open("eth0", &addresses(), options, 1);
    soon(|| match &answer {
        Err(error) if matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::ResourceBusy) => {
            answer = open("eth0", &addresses(), options, 1);
            false
        }
        _ => true,
    });
    match answer {
        Ok(opened) => Some(opened),
        Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied) => {
            println!("skipped: {error}");
            None
        }
        Err(error) if error.to_string().contains("CONFIG_XDP_SOCKETS") => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

async fn next_tcp(device: &mut dyn Device, port: u16) -> (Tcp, Vec<u8>, RxMeta) {
    loop {
        poll_fn(|cx| device.poll_readable(cx)).await.unwrap();
        let mut found = None;
        device.receive(1, &mut |packet, meta| found = Some((packet.to_vec(), meta))).unwrap();
        if let Some((packet, meta)) = found.filter(|(packet, _)| Headers::of(packet).is_some()) {
            let segment = Tcp::parse(&packet);
            if segment.ports.1 == port {
                return (segment, packet, meta);
            }
        }
    }
}

fn send(device: &mut dyn Device, packet: &[u8], tx: TxMeta) {
    device.send(packet, tx).unwrap();
    device.flush().unwrap();
}

/// Returns a segment that the device sends in response to `to`.
fn answer(to: &Tcp, flags: u8, seq: u32) -> Tcp {
    let ack = to.seq.wrapping_add(u32::from(to.flags & 2 != 0) + to.payload.len() as u32);
    let ports = (to.ports.1, to.ports.0);
    Tcp { src: to.dst, dst: to.src, ports, flags, seq, ack, ..Tcp::v4() }
}

/// A kernel client connects, receives 30 kB and answers.
async fn serves(device: &mut dyn Device, far: &Namespace, family: usize) {
    let client = far
        .run(|| {
            let to = SocketAddr::new(OURS[family].parse().unwrap(), PORT);
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(to).unwrap();
                let mut got = vec![0; 30_000];
                stream.read_exact(&mut got).unwrap();
                stream.write_all(b"thanks").unwrap();
                got
            })
        })
        .unwrap();
    let (syn, packet, meta) = next_tcp(device, PORT).await;
    assert_eq!((syn.flags & 0x3F, syn.ports.1, syn.dst.to_string().as_str()), (2, PORT, OURS[family]));
    // A kernel on the same host leaves the checksum to the interface, and a veth does not finish it.
    assert_eq!(meta.checksum, ChecksumState::Trusted);
    assert!(!checksum_is_right(&packet));
    let acknowledgement = Tcp { options: vec![2, 4, 5, 0x78], ..answer(&syn, 0x12, 1000) };
    send(
        device,
        &acknowledgement.with_partial_checksum(),
        TxMeta { partial_checksum: true, ..TxMeta::default() },
    );
    let (opened, ..) = next_tcp(device, PORT).await;
    let mut sent = 0;
    let data = pattern(30_000);
    while sent < data.len() {
        let more = (data.len() - sent).min(14_000);
        let segment =
            Tcp { payload: data[sent..sent + more].to_vec(), ..answer(&opened, 0x18, 1001 + sent as u32) };
        let tx = TxMeta { segment_size: Some(1400), partial_checksum: true, twice: false };
        send(device, &segment.with_partial_checksum(), tx);
        sent += more;
    }
    loop {
        let (segment, ..) = next_tcp(device, PORT).await;
        if segment.payload == b"thanks" {
            break send(device, &answer(&segment, 0x14, segment.ack).packet(), TxMeta::default());
        }
    }
    assert_eq!(client.join().unwrap(), data);
}

/// The device connects to a kernel listener.
async fn connects(device: &mut dyn Device, far: &Namespace, family: usize, port: u16) {
    let listener = far.run(|| TcpListener::bind((THEIRS[family], 0)).unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let template = if family == 0 { Tcp::v4() } else { Tcp::v6() };
    let (src, ports) = (OURS[family].parse().unwrap(), (port, to.port()));
    let syn = Tcp { src, dst: to.ip(), ports, flags: 2, ..template };
    send(device, &syn.packet(), TxMeta::default());
    let (answered, ..) = next_tcp(device, port).await;
    assert_eq!((answered.flags & 0x3F, answered.ack), (0x12, 2));
    send(device, &answer(&answered, 0x10, 2).packet(), TxMeta::default());
    drop(listener.accept().unwrap());
}

#[test]
fn both_roles_work_next_to_the_kernel_in_both_families_and_modes() {
    on_a_cable(async |far| {
        for native in [true, false] {
            let Some(Opened { mut queues, local_ports, path, .. }) = opened(XdpOptions { native, ..small() })
            else {
                return;
            };
            assert_eq!(path, if native { Path::Native } else { Path::Generic });
            let device = &mut *queues[0];
            assert_eq!(device.mtu(), 1500);
            for family in [0, 1] {
                serves(device, &far, family).await;
                connects(device, &far, family, *local_ports.clone().unwrap().start() + family as u16).await;
                // The kernel has its own service on the same address.
                let listener = TcpListener::bind((OURS[family], 0)).unwrap();
                let to = listener.local_addr().unwrap();
                far.run(|| TcpStream::connect(to).unwrap()).unwrap();
            }
            let counters = device.counters();
            assert!(counters.unfinished_checksums > 0 && counters.send_refused == 0, "{counters:?}");
        }
    });
}

#[test]
fn frames_beyond_the_ring_wait_and_arrive() {
    on_a_cable(async |far| {
        let few = XdpOptions { send_frames: 64, receive_frames: 64, ..small() };
        let Some(Opened { mut queues, .. }) = opened(few) else { return };
        let device = &mut *queues[0];
        // The neighbour must be known, otherwise the kernel sends the packet.
        serves(device, &far, 0).await;
        let before = far.run(|| received("eth1")).unwrap();
        let [src, dst] = [OURS[0], THEIRS[0]].map(|address| address.parse().unwrap());
        let super_packet = Tcp { src, dst, ports: (PORT, 9), payload: pattern(60_000), ..Tcp::v4() };
        let packet = super_packet.with_partial_checksum();
        let tx = TxMeta { segment_size: Some(100), partial_checksum: true, twice: false };
        for _ in 0..5 {
            send(device, &packet, tx);
        }
        ip("link set eth0 down");
        device.send(&packet, tx).unwrap();
        let refused = device.send(&packet, tx).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "one frame already waits");
        assert_eq!(device.flush().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        ip("link set eth0 up");
        while device.flush().is_err() {
            poll_fn(|cx| device.poll_writable(cx)).await.unwrap();
        }
        let arrived = || far.run(|| received("eth1")).unwrap() - before;
        while arrived() < 6 * 600 {
            tokio::time::sleep(PAUSE).await;
        }
        assert_eq!(device.counters().send_refused, 0);
        device.send(&Tcp { payload: pattern(2000), ..super_packet }.packet(), TxMeta::default()).unwrap();
        assert_eq!(device.counters().send_refused, 1, "the packet is longer than the MTU");
    });
}

/// Returns the number of packets that an interface has received.
fn received(name: &str) -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = table.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn unusable_interfaces_are_refused_unchanged_with_a_remedy() {
    on_a_cable(async |_far| {
        let Some(first) = opened(small()) else { return };
        let found = survey("eth0").unwrap();
        assert!(found.program.is_some() && found.refused.is_none() && found.fits(), "{found:?}");
        assert_eq!(found.kind.as_deref(), Some("veth"));
        let serve = Some("[::]:81".parse().unwrap());
        let options = XdpOptions { serve, local_ports: 0, ..small() };
        let refused = |result: Result<Opened, OpenError>| result.map(drop).unwrap_err().to_string();
        let busy = refused(open("eth0", &addresses(), options, 1));
        assert!(busy.contains("another program uses XDP") && busy.starts_with("xdp:eth0: "), "{busy}");
        drop(first);
        let program = || Interface::named("eth0").unwrap().xdp_program();
        assert!(soon(|| program().is_none()), "the program ends with the device");
        drop(opened(small()));

        assert!(refused(open("eth0", &[], options, 1)).contains("--addr"));
        assert!(refused(open("lo", &addresses(), options, 1)).contains("not an Ethernet"));
        assert!(refused(open("eth9", &addresses(), options, 1)).contains("no interface of that name"));
        ip("link set eth0 mtu 9000");
        let long = refused(open("eth0", &addresses(), options, 1));
        assert!(long.contains("its MTU is 9000") && long.contains("ip link set eth0 mtu 3822"), "{long}");
        ip("link set eth0 mtu 3500");
        drop(opened(small()));
    });
}

#[test]
fn removed_interface_is_reported_and_one_switched_off_is_not() {
    on_a_cable(async |_far| {
        let Some(Opened { mut queues, .. }) = opened(small()) else { return };
        let device = &mut *queues[0];
        let segment = Tcp {
            src: OURS[0].parse().unwrap(),
            dst: THEIRS[0].parse().unwrap(),
            ports: (PORT, 9),
            ..Tcp::v4()
        };
        let next = async |device: &mut dyn Device| {
            poll_fn(|cx| device.poll_readable(cx)).await.unwrap();
            device.receive(8, &mut |_, _| {})
        };
        ip("link set eth0 down");
        assert_eq!(next(device).await.unwrap(), 0, "it may be switched on again");
        let _ = device.send(&segment.packet(), TxMeta::default());
        let _ = device.flush();
        ip("link set eth0 up");
        ip("link del eth0");
        let error = loop {
            if let Err(error) = next(device).await {
                break error;
            }
        };
        assert_eq!(error.to_string(), "xdp:eth0: the interface was removed");
    });
}

#[test]
fn unfinished_checksum_is_trusted_only_if_permitted() {
    for template in [Tcp::v4(), Tcp::v6()] {
        let packet = Tcp { payload: pattern(99), ..template };
        let (open, finished) = (packet.with_partial_checksum(), packet.packet());
        for (bytes, trusts, expected) in [
            (&open, true, ChecksumState::Trusted),
            (&open, false, ChecksumState::Verify),
            (&finished, true, ChecksumState::Verify),
        ] {
            let frame = [&[0; ETHERNET_HEADER][..], bytes, &[0; 3]].concat();
            let (mut counters, mut seen) = (Counters::default(), None);
            let sink: &mut SharedSink<'_> =
                &mut |packet, _, meta| seen = Some((packet.to_vec(), meta.checksum));
            assert_eq!(deliver(&frame, trusts, &mut counters, &mut Merge::new(), sink), 1);
            assert_eq!(seen, Some((bytes.clone(), expected)), "without the bytes behind the packet");
            assert_eq!(counters.unfinished_checksums, u64::from(expected == ChecksumState::Trusted));
        }
        for len in 0..open.len() {
            deliver(&open[..len], true, &mut Counters::default(), &mut Merge::new(), &mut |_, _, _| {});
        }
    }
}

#[test]
fn each_queue_of_the_interface_can_have_a_stack_of_its_own() {
    on_a_cable(async |far| {
        let options = XdpOptions { serve: Some("[::]:80".parse().unwrap()), local_ports: 0, ..small() };
        if opened(options).is_none() {
            return;
        }
        assert!(Interface::named("eth0").unwrap().receive_queues() == 2);
        let mut queues = Vec::new();
        assert!(soon(|| match open("eth0", &addresses(), options, 5) {
            Ok(opened) => (queues = opened.queues, true).1,
            Err(_) => false,
        }));
        assert_eq!(queues.len(), 2, "the interface has only two queues");
        let socket = |to: SocketAddr| {
            let socket =
                socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM.nonblocking(), None)
                    .unwrap();
            // The attempt ends only by a timeout.
            let _ = socket.connect(&to.into());
            socket
        };
        let to = SocketAddr::new(addresses()[0], PORT);
        let _clients = far.run(|| (0..60).map(|_| socket(to)).collect::<Vec<_>>()).unwrap();
        let mut seen = std::collections::HashSet::new();
        for queue in &mut queues {
            let before = seen.len();
            let mut note = |packet: &[u8], _: RxMeta| {
                seen.insert(Tcp::parse(packet).ports.0);
            };
            while queue.receive(64, &mut note).unwrap() > 0 {}
            assert!(seen.len() > before, "a queue received nothing");
        }
        assert_eq!(seen.len(), 60);
    });
}

#[test]
fn coalesced_frames_are_lost_in_generic_mode_and_counted() {
    on_a_cable(async |far| {
        let generic = XdpOptions { native: false, ..small() };
        let Some(Opened { mut queues, .. }) = opened(generic) else { return };
        let device = &mut *queues[0];
        let to = SocketAddr::new(addresses()[0], PORT);
        let client = move || std::thread::spawn(move || TcpStream::connect(to)?.write_all(&pattern(30_000)));
        let client = far.run(client).unwrap();
        let (syn, ..) = next_tcp(device, PORT).await;
        let accepted = Tcp { options: vec![2, 4, 5, 0x78], ..answer(&syn, 0x12, 1000) };
        send(device, &accepted.packet(), TxMeta::default());
        client.join().unwrap().unwrap();
        while device.counters().receive_overflowed == 0 {
            tokio::time::sleep(PAUSE).await;
        }
    });
}
