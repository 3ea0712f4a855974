//! A gateway pair on two cores, each with a stack of its own, over TCP in UDP.

mod roaming;

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use brisk_gateway::{
    Access, Backend, BackendConfig, Frontend, FrontendConfig, Hop, HopKey, KeyRing, Log, Role, ServiceConfig,
};
use brisk_runtime::attach::{AttachConfig, Attached, Queues};
use brisk_runtime::{Cores, Endpoint};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

const REQUESTS: usize = 60;
/// Time limit of each step, sufficient on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// A host with a stack for each of `cores`.
fn host(cores: &Cores) -> (Endpoint, Attached) {
    let queues = Queues::Exactly(cores.count());
    let attach = AttachConfig { queues, ..AttachConfig::new("udp:127.0.0.1:0".parse().unwrap()) };
    let (builder, attached) = attach.open().unwrap();
    (builder.cores(cores).build().unwrap(), attached)
}

/// Sends every connection its own bytes back.
async fn mirror(listener: TcpListener) -> io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (mut read, mut write) = stream.split();
            tokio::io::copy(&mut read, &mut write).await?;
            write.shutdown().await
        });
    }
}

async fn ask(to: SocketAddr, n: usize) {
    let request: Vec<u8> = (0..20_000).map(|i| (i * n) as u8).collect();
    let mut client = TcpStream::connect(to).await.unwrap();
    client.write_all(&request).await.unwrap();
    client.shutdown().await.unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert!(answer == request, "request {n}");
}

/// The source of the frontend's listener.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listener {
    /// The frontend binds it, and a second one for the other core.
    Own,
    /// The caller has bound the only one.
    Given,
}

#[tokio::test]
async fn a_pair_on_two_cores_carries_requests_on_both() {
    requests_on_both(Listener::Own).await;
}

#[tokio::test]
async fn clients_of_the_only_listener_are_served_on_both_cores_in_turn() {
    requests_on_both(Listener::Given).await;
}

async fn requests_on_both(listener: Listener) {
    let cores = Cores::start(NonZeroUsize::new(2).unwrap()).unwrap();
    let seen = Arc::new(Mutex::new(Vec::<(Role, ThreadId)>::new()));
    let seeing = seen.clone();
    let see = move |access: &Access| {
        seeing.lock().unwrap().push((access.role, std::thread::current().id()));
    };
    let service = ServiceConfig {
        log: Log::silent(),
        drain_timeout: Duration::from_secs(10),
        on_access: Some(Arc::new(see)),
        cores: cores.handles().to_vec(),
        ..ServiceConfig::default()
    };
    let hop = || Hop::Sealed(KeyRing::of(HopKey::new([7; 32])));
    let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let origin = TcpListener::bind(loopback).await.unwrap();
    let origin_at = origin.local_addr().unwrap().to_string();
    tokio::spawn(mirror(origin));

    let ((far, served), (near, attached)) = (host(&cores), host(&cores));
    let inside = SocketAddr::new("::".parse().unwrap(), served.service_port(1));
    let config = BackendConfig { service: service.clone(), ..BackendConfig::new(inside, origin_at, hop()) };
    let backend = Backend::bind(config, &far).unwrap();
    let to = attached.destination(served.outside(backend.local_addr())).unwrap();
    let config = FrontendConfig { service, ..FrontendConfig::new(loopback, to, hop()) };
    let frontend = match listener {
        Listener::Own => Frontend::bind(config.clone(), near.clone()).await,
        Listener::Given => {
            Frontend::on(vec![TcpListener::bind(loopback).await.unwrap()], config.clone(), near.clone())
        }
    }
    .unwrap();
    let client_side = frontend.local_addr().unwrap();
    let second = Frontend::bind(FrontendConfig { listen: Some(client_side), ..config }, near).await;
    assert_eq!(second.unwrap_err().kind(), io::ErrorKind::AddrInUse, "the port is not shared with others");
    let (stop, stopped) = oneshot::channel::<()>();
    let (stop_backend, backend_stopped) = oneshot::channel::<()>();
    let frontend = tokio::spawn(frontend.run(async move { drop(stopped.await) }));
    let backend = tokio::spawn(backend.run(async move { drop(backend_stopped.await) }));

    let mut clients = JoinSet::new();
    (0..REQUESTS).for_each(|n| drop(clients.spawn(ask(client_side, n))));
    timeout(LIMIT, clients.join_all()).await.unwrap();
    drop((stop, stop_backend));
    let (frontend, backend) = (frontend.await.unwrap(), backend.await.unwrap());
    assert_eq!((frontend.accepted, frontend.cut, backend.cut), (REQUESTS as u64, 0, 0));

    let seen = seen.lock().unwrap();
    for role in [Role::Frontend, Role::Backend] {
        let threads: Vec<_> = seen.iter().filter(|(of, _)| *of == role).map(|(_, thread)| thread).collect();
        assert_eq!(threads.len(), REQUESTS, "{role:?}");
        assert_eq!(threads.iter().collect::<HashSet<_>>().len(), 2, "{role:?} served on one core alone");
    }
}
