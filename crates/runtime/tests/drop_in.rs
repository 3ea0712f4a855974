//! A server and a client compile and run unchanged with the types of tokio::net and with those of this crate.
//! Only opening a connection or a listener differs.

mod kernel {
    use tokio::net::{TcpListener, TcpStream};

    include!("drop_in/service.rs");
}

mod brisk {
    use brisk_runtime::{TcpListener, TcpStream};

    include!("drop_in/service.rs");
}

use brisk_runtime::memory::{self, LinkSpec};

const TEXT: &str = "a line\nand another\n";
const RESPONSE: &str = "A LINE\nAND ANOTHER\n";

#[tokio::test]
async fn service_runs_on_the_kernel() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(kernel::serve(listener));
    let connect = || async { tokio::net::TcpStream::connect(address).await.unwrap() };
    assert_eq!(kernel::ask(connect().await, TEXT).await.unwrap(), RESPONSE);
    kernel::ask(connect().await, "!").await.unwrap_err();
    assert!(serving.await.unwrap().unwrap().ip().is_loopback());
}

#[tokio::test(start_paused = true)]
async fn same_service_runs_on_brisk() {
    let (a, b) = memory::network(&LinkSpec::parse("--rtt 20ms --loss 2%").unwrap(), 1).unwrap();
    let listener = brisk_runtime::TcpListener::bind(&b, "10.0.0.2:80".parse().unwrap()).unwrap();
    let address = listener.local_addr();
    let serving = tokio::spawn(brisk::serve(listener));
    let connect = || async { a.connect(address).await.unwrap() };
    assert_eq!(brisk::ask(connect().await, TEXT).await.unwrap(), RESPONSE);
    brisk::ask(connect().await, "!").await.unwrap_err();
    assert_eq!(serving.await.unwrap().unwrap().ip(), memory::ADDRESSES[0][0]);
}
