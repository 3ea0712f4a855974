//! Long-lived and unusual traffic through a pair; both sides reload their configuration in the middle of it.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use brisk_gateway::{
    Backend, BackendConfig, BackendControl, Frontend, FrontendConfig, FrontendControl, Hop, HopKey, KeyRing,
    Log, ServiceConfig,
};
use brisk_link::LinkSpec;
use brisk_runtime::memory;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONNECTION, UPGRADE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Time limit of each step, sufficient on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

struct Pair {
    client_side: SocketAddr,
    frontend: (FrontendControl, FrontendConfig),
    backend: (BackendControl, BackendConfig),
}

impl Pair {
    async fn before(origin: SocketAddr) -> Pair {
        let (a, b) = memory::network(&LinkSpec::parse("--rtt 4ms").unwrap(), 3).unwrap();
        let key = || Hop::Sealed(KeyRing::of(HopKey::new([9; 32])));
        let hop = "10.0.0.2:7443".parse().unwrap();
        let service = ServiceConfig { log: Log::silent(), ..ServiceConfig::default() };
        let config =
            BackendConfig { service: service.clone(), ..BackendConfig::new(hop, origin.to_string(), key()) };
        let backend = Backend::bind(config.clone(), &b).unwrap();
        let backend_side = (backend.control(), config);
        let config = FrontendConfig { service, watch: true, ..FrontendConfig::new(loopback(), hop, key()) };
        let frontend = Frontend::bind(config.clone(), a).await.unwrap();
        let client_side = frontend.local_addr().unwrap();
        // The port that the kernel chose stays.
        let frontend_side = (frontend.control(), config);
        tokio::spawn(backend.run(std::future::pending()));
        tokio::spawn(frontend.run(std::future::pending()));
        Pair { client_side, frontend: frontend_side, backend: backend_side }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.client_side).await.unwrap()
    }

    /// Both sides read their configuration again: another key pair and other timeouts for new connections.
    fn reload(&self) {
        let (control, config) = &self.frontend;
        control.reload(FrontendConfig { ephemeral_lifetime: Duration::ZERO, ..config.clone() }).unwrap();
        let (control, config) = &self.backend;
        control.reload(BackendConfig { ephemeral_lifetime: Duration::ZERO, ..config.clone() });
    }
}

/// Starts an origin that serves each connection with `serve`.
async fn origin<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// Returns `len` bytes of a stream from offset `from`; each byte depends on its offset.
fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| (at * 7 + (at >> 8)) as u8).collect()
}

async fn limited<T>(future: impl Future<Output = T>) -> T {
    timeout(LIMIT, future).await.expect("in time")
}

/// A body whose parts arrive through a channel.
struct Parts(mpsc::Receiver<Bytes>);

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|part| part.map(|part| Ok(Frame::data(part))))
    }
}

/// Writes a frame of RFC 6455, section 5.2; only clients use a mask.
async fn write_frame(to: &mut (impl AsyncWrite + Unpin), opcode: u8, data: &[u8], mask: Option<[u8; 4]>) {
    let masked = if mask.is_some() { 0x80 } else { 0 };
    let mut frame = vec![0x80 | opcode];
    match data.len() {
        len @ 0..=125 => frame.push(masked | len as u8),
        len @ 126..=0xffff => {
            frame.push(masked | 126);
            frame.extend((len as u16).to_be_bytes());
        }
        len => {
            frame.push(masked | 127);
            frame.extend((len as u64).to_be_bytes());
        }
    }
    let mask = mask.inspect(|mask| frame.extend(mask)).unwrap_or_default();
    frame.extend(data.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    to.write_all(&frame).await.unwrap();
}

async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> (u8, Vec<u8>) {
    let (first, second) = (from.read_u8().await.unwrap(), from.read_u8().await.unwrap());
    let len = match second & 0x7f {
        126 => u64::from(from.read_u16().await.unwrap()),
        127 => from.read_u64().await.unwrap(),
        len => u64::from(len),
    };
    let mut mask = [0; 4];
    if second & 0x80 != 0 {
        from.read_exact(&mut mask).await.unwrap();
    }
    let mut data = vec![0; len as usize];
    from.read_exact(&mut data).await.unwrap();
    data.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    (first & 15, data)
}

const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Answers text with the same text and a ping with a pong, until the client closes.
async fn websocket(stream: TcpStream) {
    let upgrade = service_fn(|mut request: Request<Incoming>| {
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut socket = TokioIo::new(upgraded.await.unwrap());
            loop {
                match read_frame(&mut socket).await {
                    (TEXT, text) => write_frame(&mut socket, TEXT, &text, None).await,
                    (PING, data) => write_frame(&mut socket, PONG, &data, None).await,
                    (opcode, data) => {
                        assert_eq!(opcode, CLOSE);
                        return write_frame(&mut socket, CLOSE, &data, None).await;
                    }
                }
            }
        });
        let switching = Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            // The answer to the key below (RFC 6455, section 1.3).
            .header("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
            .body(Full::<Bytes>::default());
        ready(switching)
    });
    let http = hyper::server::conn::http1::Builder::new();
    http.serve_connection(TokioIo::new(stream), upgrade).with_upgrades().await.unwrap();
}

#[tokio::test]
async fn websocket_carries_frames_of_all_lengths_and_pings_through_a_reload() {
    let pair = Pair::before(origin(websocket).await).await;
    let mut client = pair.connect().await;
    let request = "GET /chat HTTP/1.1\r\nHost: origin\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    limited(async {
        client.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        for (n, len) in [0, 125, 126, 65_535, 65_536, 300_000].into_iter().enumerate() {
            let text = pattern(n, len);
            write_frame(&mut client, TEXT, &text, Some([1, 2, 3, n as u8])).await;
            write_frame(&mut client, PING, b"alive", Some([9; 4])).await;
            assert!(read_frame(&mut client).await == (TEXT, text), "{len} bytes");
            assert_eq!(read_frame(&mut client).await, (PONG, b"alive".to_vec()));
            pair.reload();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        write_frame(&mut client, CLOSE, &[3, 232], Some([0; 4])).await;
        assert_eq!(read_frame(&mut client).await, (CLOSE, vec![3, 232]));
    })
    .await;
}

#[tokio::test]
async fn server_sent_events_arrive_one_by_one_through_a_reload() {
    let origin = origin(async |mut stream: TcpStream| {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        for n in 0..20 {
            stream.write_all(format!("id: {n}\ndata: event {n}\n\n").as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let pair = Pair::before(origin).await;
    let mut client = pair.connect().await;
    limited(async {
        client.write_all(b"GET /events HTTP/1.1\r\nAccept: text/event-stream\r\n\r\n").await.unwrap();
        let (mut got, mut reads) = (Vec::new(), 0);
        while client.read_buf(&mut got).await.unwrap() > 0 {
            reads += 1;
            if reads == 5 {
                pair.reload();
            }
        }
        let text = String::from_utf8(got).unwrap();
        assert_eq!(text.matches("data: event").count(), 20);
        assert!(reads >= 10, "events were put together: {reads} reads");
    })
    .await;
}

/// Answers each stream with its own body, in pieces.
async fn http2(stream: TcpStream) {
    let answer = service_fn(async |request: Request<Incoming>| {
        let (sender, parts) = mpsc::channel(1);
        let mut body = request.into_body();
        tokio::spawn(async move {
            while let Some(Ok(frame)) = body.frame().await {
                if let Ok(data) = frame.into_data() {
                    let _ = sender.send(data).await;
                }
            }
        });
        Ok::<_, Infallible>(Response::new(Parts(parts)))
    });
    let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let _ = http.serve_connection(TokioIo::new(stream), answer).await;
}

#[tokio::test]
async fn hundred_streams_of_http2_are_open_at_once_through_a_reload() {
    const STREAMS: usize = 100;
    let pair = Pair::before(origin(http2).await).await;
    let io = TokioIo::new(pair.connect().await);
    limited(async {
        let http = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (mut sender, connection) = http.handshake::<_, Parts>(io).await.unwrap();
        tokio::spawn(connection);
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let (body, parts) = mpsc::channel(1);
            let request = Request::post("http://origin/stream").body(Parts(parts)).unwrap();
            sender.ready().await.unwrap();
            let answer = sender.send_request(request).await.unwrap();
            streams.push((body, answer.into_body()));
        }
        // All streams are open, and each side writes at any time, as with gRPC.
        for round in 0..3 {
            for (n, (body, _)) in streams.iter().enumerate() {
                body.send(pattern(n + round, 5_000).into()).await.unwrap();
            }
            if round == 1 {
                pair.reload();
            }
            for (n, (_, answer)) in streams.iter_mut().enumerate() {
                let (expected, mut got) = (pattern(n + round, 5_000), Vec::new());
                while got.len() < expected.len() {
                    got.extend(answer.frame().await.unwrap().unwrap().into_data().unwrap());
                }
                assert!(got == expected, "stream {n}, round {round}");
            }
        }
        for (body, mut answer) in streams {
            drop(body);
            while let Some(frame) = answer.frame().await {
                assert!(frame.unwrap().into_data().unwrap().is_empty());
            }
        }
    })
    .await;
}

/// Reads to the end of the stream, and returns the bytes after a pause.
async fn echo_after_end(mut stream: TcpStream) {
    let mut said = Vec::new();
    stream.read_to_end(&mut said).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    stream.write_all(&said).await.unwrap();
}

#[tokio::test]
async fn half_closed_client_gets_its_answer_through_a_reload() {
    let pair = Pair::before(origin(echo_after_end).await).await;
    let mut client = pair.connect().await;
    limited(async {
        client.write_all(&pattern(0, 300_000)).await.unwrap();
        client.shutdown().await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        pair.reload();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert!(answer == pattern(0, 300_000));
    })
    .await;
}

#[tokio::test]
async fn headers_of_30_kb_arrive_whole_in_both_directions() {
    let origin = origin(async |stream: TcpStream| {
        let answer = service_fn(async |request: Request<Incoming>| {
            let mut response = Response::new(Full::<Bytes>::default());
            *response.headers_mut() = request.headers().clone();
            Ok::<_, Infallible>(response)
        });
        let mut http = hyper::server::conn::http1::Builder::new();
        let _ = http.max_buf_size(64 << 10).serve_connection(TokioIo::new(stream), answer).await;
    })
    .await;
    let pair = Pair::before(origin).await;
    let mut client = pair.connect().await;
    let cookie = "c".repeat(30_000);
    limited(async {
        let request =
            format!("GET / HTTP/1.1\r\nHost: origin\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(&cookie), "{} bytes", answer.len());
    })
    .await;
}

#[tokio::test]
async fn slow_reader_gets_every_byte_and_holds_the_origin_back() {
    const LEN: usize = 24 << 20;
    let (progress, mut written) = tokio::sync::watch::channel(0);
    let origin = origin(move |mut stream: TcpStream| {
        let progress = progress.clone();
        async move {
            stream.read_u8().await.unwrap();
            for from in (0..LEN).step_by(64 << 10) {
                stream.write_all(&pattern(from, 64 << 10)).await.unwrap();
                progress.send_replace(from + (64 << 10));
            }
        }
    })
    .await;
    let pair = Pair::before(origin).await;
    let mut client = pair.connect().await;
    limited(async {
        client.write_all(b"?").await.unwrap();
        let mut got = 0;
        let mut buffer = vec![0; 64 << 10];
        // The client reads nothing for a while, so the origin can send only as much as the buffers hold.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let ahead = *written.borrow_and_update();
        assert!(ahead < LEN, "the origin was not held back");
        pair.reload();
        while got < LEN {
            let len = client.read(&mut buffer).await.unwrap();
            assert!(len > 0, "it ends after {got} bytes");
            assert!(buffer[..len] == pattern(got, len));
            got += len;
        }
    })
    .await;
}

#[tokio::test]
async fn upload_of_100_mb_arrives_through_a_reload() {
    const LEN: usize = 100_000_000;
    const CHUNK: usize = 100_000;
    let origin = origin(async |mut stream: TcpStream| {
        let (mut got, mut buffer) = (0, vec![0; 256 << 10]);
        while got < LEN {
            let len = stream.read(&mut buffer).await.unwrap();
            let expected = CHUNK - got % CHUNK;
            let part = &buffer[..len.min(expected)];
            assert!(part == &pattern(got % CHUNK, part.len())[..], "at {got}");
            assert!(len > 0, "it ends after {got} bytes");
            got += len;
        }
        stream.write_all(&(got as u64).to_be_bytes()).await.unwrap();
    })
    .await;
    let pair = Pair::before(origin).await;
    let mut client = pair.connect().await;
    limited(async {
        let chunk = pattern(0, CHUNK);
        for n in 0..LEN / CHUNK {
            client.write_all(&chunk).await.unwrap();
            if n == 300 {
                pair.reload();
            }
        }
        client.shutdown().await.unwrap();
        assert_eq!(client.read_u64().await.unwrap(), LEN as u64);
    })
    .await;
}
