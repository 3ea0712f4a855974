use brisk_device::ChecksumState;

use super::*;
use crate::headers::Headers;
use crate::netns::Namespace;
use crate::privileges::{has_net_admin, has_sys_admin};
use crate::testing::{Tcp, checksum_is_right, pattern};
use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

const KERNEL: [&str; 2] = ["10.77.0.1", "fd00:77::1"];
const OURS: [&str; 2] = ["10.77.0.2", "fd00:77::2"];
const ELSEWHERE: [&str; 2] = ["192.0.2.7", "2001:db8::7"];

fn options() -> EthernetOptions {
    let own = |address: &str, prefix| OwnAddress { address: address.parse().unwrap(), prefix };
    EthernetOptions {
        addresses: vec![own(OURS[0], 24), own(OURS[1], 64)],
        gateways: KERNEL.iter().map(|gateway| gateway.parse().unwrap()).collect(),
    }
}

/// Runs `body` with a device at one end of a veth pair whose other end belongs to the kernel, or prints why
/// it cannot.
fn on_a_cable(body: impl AsyncFnOnce(EthernetDevice) + Send) {
    if !has_sys_admin() || !has_net_admin() {
        println!("skipped: a veth pair in a network namespace needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
        return;
    }
    let namespace = Namespace::anonymous().unwrap();
    let run = move || {
        let mut ip = Command::new("ip");
        ip.args(["link", "add", "eth0", "type", "veth", "peer", "name", "eth1"]);
        match ip.output() {
            Ok(output) if output.status.success() => {}
            other => return println!("skipped: `ip link add type veth` fails: {other:?}"),
        }
        Interface::named("eth1").unwrap().set_up().unwrap();
        let kernel = Interface::named("eth0").unwrap();
        kernel.set_up().unwrap();
        for (address, prefix) in KERNEL.iter().zip([24, 64]) {
            kernel.add_address(address.parse().unwrap(), prefix).unwrap();
        }
        for (address, prefix) in ELSEWHERE.iter().zip([32, 128]) {
            Interface::named("lo").unwrap().add_address(address.parse().unwrap(), prefix).unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let device = EthernetDevice::open("eth1", options()).unwrap();
            let ended = tokio::time::timeout(Duration::from_secs(30), body(device)).await;
            ended.expect("the test ends in time");
        });
    };
    namespace.run(run).unwrap();
}

/// Returns the next TCP packet, after a check that it is for an address of the device.
async fn next_tcp(device: &mut EthernetDevice) -> (Tcp, Vec<u8>, RxMeta) {
    loop {
        poll_fn(|cx| device.poll_readable(cx)).await.unwrap();
        let mut found = None;
        device.receive(1, &mut |packet, meta| found = Some((packet.to_vec(), meta))).unwrap();
        if let Some((packet, meta)) = found.filter(|(packet, _)| Headers::of(packet).is_some()) {
            return (Tcp::parse(&packet), packet, meta);
        }
    }
}

fn template(family: usize, to: &str) -> Tcp {
    let base = if family == 0 { Tcp::v4() } else { Tcp::v6() };
    Tcp { src: OURS[family].parse().unwrap(), dst: to.parse().unwrap(), ..base }
}

/// Opens a connection to a kernel listener at `to` and sends 30 kB. The address of the next hop must be
/// resolved first.
async fn talks_to(device: &mut EthernetDevice, family: usize, to: &str) {
    let listener = TcpListener::bind((to, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let syn = Tcp { ports: (40_000 + family as u16, port), flags: 0x02, ..template(family, to) };
    device.send(&syn.packet(), TxMeta::default()).unwrap();
    // The end of the previous connection may still arrive.
    let answer = loop {
        let (answer, _, _) = next_tcp(device).await;
        if (answer.src, answer.ports) == (syn.dst, (port, syn.ports.0)) {
            break answer;
        }
    };
    assert_eq!((answer.flags, answer.ack), (0x12, 2));
    let ack = Tcp { seq: 2, ack: answer.seq.wrapping_add(1), flags: 0x10, ..syn };
    device.send(&ack.packet(), TxMeta::default()).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let payload = pattern(30_000);
    let data = Tcp { flags: 0x18, payload: payload.clone(), ..ack };
    let tx = TxMeta { segment_size: Some(1000), partial_checksum: true, twice: false };
    device.send(&data.with_partial_checksum(), tx).unwrap();
    device.flush().unwrap();
    let mut read = vec![0; payload.len()];
    stream.read_exact(&mut read).unwrap();
    assert!(read == payload);
    // A packet that never was on a wire has an unfinished checksum and is marked as such.
    stream.write_all(&pattern(500)).unwrap();
    loop {
        let (segment, packet, meta) = next_tcp(device).await;
        assert!(meta.checksum == ChecksumState::Trusted || checksum_is_right(&packet));
        if !segment.payload.is_empty() && segment.ports.0 == port {
            assert_eq!(segment.payload, pattern(500));
            return;
        }
    }
}

#[test]
fn neighbours_and_hosts_behind_a_gateway_are_reached() {
    on_a_cable(async |mut device| {
        for family in 0..2 {
            talks_to(&mut device, family, KERNEL[family]).await;
            talks_to(&mut device, family, ELSEWHERE[family]).await;
        }
        assert_eq!(device.counters().send_refused, 0);
    });
}

#[test]
fn kernel_resolves_our_address() {
    on_a_cable(async |mut device| {
        for family in 0..2 {
            let to = (OURS[family].parse::<IpAddr>().unwrap(), 80).into();
            let namespace = Namespace::current().unwrap();
            let caller = std::thread::spawn(move || {
                namespace.run(move || TcpStream::connect_timeout(&to, Duration::from_secs(20)).map(drop))
            });
            let (syn, _, _) = next_tcp(&mut device).await;
            assert_eq!((syn.flags & 0x3F, syn.dst.to_string()), (0x02, OURS[family].to_owned()));
            // The test refuses the connection; it only checks that the SYN arrives.
            let reset = Tcp {
                ports: (syn.ports.1, syn.ports.0),
                seq: 0,
                ack: syn.seq.wrapping_add(1),
                flags: 0x14,
                ..template(family, KERNEL[family])
            };
            device.send(&reset.packet(), TxMeta::default()).unwrap();
            let refused = caller.join().unwrap().unwrap().unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        }
    });
}

#[test]
fn packets_without_route_are_counted_and_silent_neighbours_hold_few() {
    on_a_cable(async |mut device| {
        device.options.gateways.clear();
        device.send(&template(0, ELSEWHERE[0]).packet(), TxMeta::default()).unwrap();
        assert_eq!(device.counters().send_refused, 1);
        for _ in 0..100 {
            device.send(&template(0, "10.77.0.99").packet(), TxMeta::default()).unwrap();
        }
        assert_eq!(device.counters().send_refused, 1 + 36);
    });
}

#[test]
fn address_of_the_kernel_is_refused_with_the_remedy() {
    on_a_cable(async |_| {
        let taken = OwnAddress { address: KERNEL[0].parse().unwrap(), prefix: 24 };
        let taken = EthernetOptions { addresses: vec![taken], gateways: Vec::new() };
        let error = EthernetDevice::open("eth1", taken).unwrap_err().to_string();
        assert!(error.contains("ip addr del 10.77.0.1/24"), "{error}");
        let error = EthernetDevice::open("lo", EthernetOptions::default()).unwrap_err().to_string();
        assert!(error.contains("needs an address"), "{error}");
        let error = EthernetDevice::open("lo", options()).unwrap_err().to_string();
        assert!(error.contains("it is not an Ethernet"), "{error}");
        let error = EthernetDevice::open("nope0", options()).unwrap_err().to_string();
        assert!(error.contains("no interface of that name"), "{error}");
    });
}
