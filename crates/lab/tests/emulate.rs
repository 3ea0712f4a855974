//! The emulated link between two network namespaces with the kernel's TCP. Skipped without the capabilities.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use brisk_lab::emulate::{Between, Capture, Emulation};
use brisk_link::LinkSpec;
use brisk_packet_io::netns::Namespace;
use brisk_packet_io::privileges::{has_net_admin, has_sys_admin};

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Accepts one connection, reads four bytes, sends `bytes` bytes.
fn serve(listener: &TcpListener, bytes: usize) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    stream.write_all(&vec![7; bytes]).unwrap();
}

fn time_request(server: SocketAddr, bytes: usize) -> (Duration, Duration) {
    let began = Instant::now();
    let mut stream = TcpStream::connect(server).unwrap();
    let connected = began.elapsed();
    stream.write_all(b"give").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, vec![7; bytes]);
    (connected, began.elapsed() - connected)
}

#[test]
fn link_delays_and_limits_kernel_tcp_between_two_namespaces() {
    if !has_sys_admin() || !has_net_admin() {
        println!("skipped: needs CAP_SYS_ADMIN and CAP_NET_ADMIN for network namespaces and TUN devices");
        return;
    }
    let name = |side: &str| format!("sim-test-{side}-{}", std::process::id());
    let between = Between { a: name("a"), b: name("b") };
    let created = between.create_missing().unwrap();
    let (a, b) = between.ends(Vec::new(), Vec::new());
    let server: (IpAddr, u16) = (b.addresses[0].address, 8000);
    let spec = LinkSpec::parse("--rtt 40ms --rate 8mbit").unwrap();
    let mut emulation = Emulation::new(a.open().unwrap(), b.open().unwrap(), &spec, 1);
    let capture = Shared::default();
    emulation.capture(Capture::new(capture.clone()).unwrap());
    let stop = AtomicBool::new(false);
    let bytes = 100_000;
    let (outcome, (connect, transfer)) = std::thread::scope(|scope| {
        let link = scope.spawn(|| {
            emulation.prioritise();
            emulation.run(Some(Duration::from_secs(20)), &stop, &mut |_| {}).unwrap()
        });
        let inside_b = Namespace::open(&between.b).unwrap();
        let listener = inside_b.run(|| TcpListener::bind(server).unwrap()).unwrap();
        scope.spawn(move || serve(&listener, bytes));
        let took = Namespace::open(&between.a).unwrap().run(|| time_request(server.into(), bytes)).unwrap();
        stop.store(true, Ordering::Relaxed);
        (link.join().unwrap(), took)
    });
    drop(created);
    // The upper bound allows for a busy machine.
    assert!((40..300).contains(&connect.as_millis()), "a round trip: {connect:?}");
    // 100 kB at 8 Mbit/s take 100 ms in addition to the round trips of the handshake and of slow start.
    assert!((140..2000).contains(&transfer.as_millis()), "{transfer:?}");
    assert!(outcome.down.delivered_bytes > bytes as u64, "{outcome:?}");
    assert_eq!((outcome.send_errors, outcome.down.dropped_loss), (0, 0), "{outcome:?}");
    // The capture contains every packet twice: at the sending and at the receiving end.
    assert!(capture.0.lock().unwrap().len() > 2 * bytes);
}
