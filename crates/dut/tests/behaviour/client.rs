//! A gRPC client for the device under test.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use brisk_conformance_dut::messages::*;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tonic::body::Body;
use tonic_prost::ProstCodec;

/// An HTTP/2 connection in the form that tonic's client needs.
#[derive(Clone)]
struct Channel(http2::SendRequest<Body>);

impl tonic::client::GrpcService<Body> for Channel {
    type ResponseBody = Incoming;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// A device under test. Clones make concurrent calls.
#[derive(Clone)]
pub(crate) struct Dut {
    channel: Channel,
    origin: Uri,
}

/// The result of a call, or its error number.
pub(crate) type Answer<T> = Result<T, i32>;

fn answer(ret: i32, errno: i32) -> Answer<i32> {
    // The error number must be set exactly if the call failed.
    assert_eq!(ret < 0, errno != 0, "ret {ret}, errno {errno}");
    if ret < 0 { Err(errno) } else { Ok(ret) }
}

impl Dut {
    pub(crate) async fn connect(at: SocketAddr) -> Dut {
        let stream = tokio::net::TcpStream::connect(at).await.unwrap();
        let http = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (sender, connection) = http.await.unwrap();
        tokio::spawn(connection);
        Dut { channel: Channel(sender), origin: format!("http://{at}").parse().unwrap() }
    }

    pub(crate) async fn call<Q, R>(&self, name: &str, request: Q) -> Result<R, tonic::Status>
    where
        Q: Message + Default + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = tonic::client::Grpc::with_origin(self.channel.clone(), self.origin.clone());
        grpc.ready().await.unwrap();
        let path = format!("/posix_server.Posix/{name}").parse().unwrap();
        let codec = ProstCodec::<Q, R>::default();
        grpc.unary(tonic::Request::new(request), path, codec).await.map(tonic::Response::into_inner)
    }

    async fn returned<Q: Message + Default + 'static>(&self, name: &str, request: Q) -> Answer<i32> {
        let Return { ret, errno } = self.call(name, request).await.unwrap();
        answer(ret, errno)
    }

    pub(crate) async fn try_socket(&self, domain: i32, kind: i32, protocol: i32) -> Answer<i32> {
        let request = SocketRequest { domain, kind, protocol };
        let SocketResponse { fd, errno } = self.call("Socket", request).await.unwrap();
        answer(fd, errno)
    }

    /// Returns a TCP socket that is bound to `ip` and a free port.
    pub(crate) async fn bound(&self, ip: IpAddr) -> (i32, SocketAddr) {
        let fd = self.socket(ip).await;
        self.bind(fd, SocketAddr::new(ip, 0)).await.unwrap();
        let own = self.getsockname(fd).await.unwrap();
        assert_eq!(own.ip(), ip);
        assert_ne!(own.port(), 0);
        (fd, own)
    }

    pub(crate) async fn socket(&self, ip: IpAddr) -> i32 {
        let domain = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        self.try_socket(domain, libc::SOCK_STREAM, libc::IPPROTO_TCP).await.unwrap()
    }

    pub(crate) async fn listener(&self, ip: IpAddr, backlog: i32) -> (i32, SocketAddr) {
        let (fd, own) = self.bound(ip).await;
        self.returned("Listen", ListenRequest { sockfd: fd, backlog }).await.unwrap();
        (fd, own)
    }

    pub(crate) async fn bind(&self, fd: i32, to: SocketAddr) -> Answer<i32> {
        self.returned("Bind", BindRequest { sockfd: fd, addr: Some(message(to)) }).await
    }

    pub(crate) async fn listen(&self, fd: i32, backlog: i32) -> Answer<i32> {
        self.returned("Listen", ListenRequest { sockfd: fd, backlog }).await
    }

    pub(crate) async fn accept(&self, fd: i32) -> Answer<(i32, SocketAddr)> {
        let AcceptResponse { fd, errno, addr } =
            self.call("Accept", AcceptRequest { sockfd: fd }).await.unwrap();
        answer(fd, errno).map(|fd| (fd, address(addr)))
    }

    pub(crate) async fn connect_to(&self, fd: i32, to: SocketAddr) -> Answer<i32> {
        self.returned("Connect", ConnectRequest { sockfd: fd, addr: Some(message(to)) }).await
    }

    pub(crate) async fn getsockname(&self, fd: i32) -> Answer<SocketAddr> {
        let request = GetSockNameRequest { sockfd: fd };
        let GetSockNameResponse { ret, errno, addr } = self.call("GetSockName", request).await.unwrap();
        answer(ret, errno).map(|_| address(addr))
    }

    pub(crate) async fn get(
        &self,
        fd: i32,
        level: i32,
        optname: i32,
        kind: OptionKind,
    ) -> Answer<OptionValue> {
        let request = GetSockOptRequest { sockfd: fd, level, optname, optlen: 512, kind: kind as i32 };
        let GetSockOptResponse { ret, errno, optval } = self.call("GetSockOpt", request).await.unwrap();
        answer(ret, errno).map(|_| optval.unwrap().val.unwrap())
    }

    pub(crate) async fn get_int(&self, fd: i32, level: i32, optname: i32) -> i32 {
        match self.get(fd, level, optname, OptionKind::Int).await {
            Ok(OptionValue::Int(number)) => number,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn info(&self, fd: i32) -> Vec<u8> {
        match self.get(fd, libc::SOL_TCP, libc::TCP_INFO, OptionKind::Bytes).await {
            Ok(OptionValue::Bytes(bytes)) => bytes,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn set(&self, fd: i32, level: i32, optname: i32, value: OptionValue) -> Answer<i32> {
        let optval = Some(SockOptVal { val: Some(value) });
        self.returned("SetSockOpt", SetSockOptRequest { sockfd: fd, level, optname, optval }).await
    }

    pub(crate) async fn set_int(&self, fd: i32, level: i32, optname: i32, value: i32) {
        self.set(fd, level, optname, OptionValue::Int(value)).await.unwrap();
    }

    pub(crate) async fn set_linger(&self, fd: i32, seconds: i32) {
        let value = [1i32.to_ne_bytes(), seconds.to_ne_bytes()].concat();
        self.set(fd, libc::SOL_SOCKET, libc::SO_LINGER, OptionValue::Bytes(value)).await.unwrap();
    }

    /// Returns the sockets that have events, with their events.
    pub(crate) async fn poll(&self, asked: &[(i32, i16)], timeout_millis: i32) -> Answer<Vec<(i32, i16)>> {
        let pfds = asked.iter().map(|&(fd, events)| PollFd { fd, events: events as u16 as u32 }).collect();
        let request = PollRequest { pfds, timeout_millis };
        let PollResponse { ret, errno, pfds } = self.call("Poll", request).await.unwrap();
        assert!(ret < 0 || pfds.len() == ret as usize);
        answer(ret, errno).map(|_| pfds.iter().map(|entry| (entry.fd, entry.events as i16)).collect())
    }

    pub(crate) async fn recv(&self, fd: i32, len: i32, flags: i32) -> Answer<Vec<u8>> {
        let request = RecvRequest { sockfd: fd, len, flags };
        let RecvResponse { ret, errno, buf } = self.call("Recv", request).await.unwrap();
        assert!(ret < 0 || ret as usize == buf.len());
        answer(ret, errno).map(|_| buf)
    }

    pub(crate) async fn send(&self, fd: i32, buf: &[u8], flags: i32) -> Answer<i32> {
        self.returned("Send", SendRequest { sockfd: fd, buf: buf.to_vec(), flags }).await
    }

    pub(crate) async fn send_to(&self, fd: i32, buf: &[u8], flags: i32, to: SocketAddr) -> Answer<i32> {
        let dest_addr = Some(message(to));
        self.returned("SendTo", SendToRequest { sockfd: fd, buf: buf.to_vec(), flags, dest_addr }).await
    }

    pub(crate) async fn set_nonblocking(&self, fd: i32, nonblocking: bool) -> Answer<i32> {
        let request = SetNonblockingRequest { fd, nonblocking };
        let SetNonblockingResponse { ret, errno, cmd } = self.call("SetNonblocking", request).await.unwrap();
        assert_eq!(ret < 0, !cmd.is_empty());
        answer(ret, errno)
    }

    pub(crate) async fn shutdown(&self, fd: i32, how: i32) -> Answer<i32> {
        let ShutdownResponse { errno } = self.call("Shutdown", ShutdownRequest { fd, how }).await.unwrap();
        if errno == 0 { Ok(0) } else { Err(errno) }
    }

    pub(crate) async fn close(&self, fd: i32) -> Answer<i32> {
        self.returned("Close", CloseRequest { fd }).await
    }
}

fn message(addr: SocketAddr) -> Sockaddr {
    let port = addr.port().into();
    let sockaddr = match addr.ip() {
        IpAddr::V4(ip) => Address::In(SockaddrIn { family: libc::AF_INET, port, addr: ip.octets().to_vec() }),
        IpAddr::V6(ip) => Address::In6(SockaddrIn6 {
            family: libc::AF_INET6 as u32,
            port,
            addr: ip.octets().to_vec(),
            ..SockaddrIn6::default()
        }),
    };
    Sockaddr { sockaddr: Some(sockaddr) }
}

fn address(addr: Option<Sockaddr>) -> SocketAddr {
    let octets = |bytes: &[u8]| match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap()),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()),
    };
    match addr.unwrap().sockaddr.unwrap() {
        Address::In(v4) => SocketAddr::new(octets(&v4.addr), v4.port as u16),
        Address::In6(v6) => SocketAddr::new(octets(&v6.addr), v6.port as u16),
    }
}
