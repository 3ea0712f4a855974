//! The bytes before a client's payload: the client's identity, and the origin that it requests.
//!
//! They arrive in this order, each only if it is enabled: a PROXY header from a trusted proxy; a SOCKS5
//! greeting; an HTTP CONNECT or another request to a proxy (`http`). If there are users, a client must log in
//! with a name and a password, by SOCKS5 (RFC 1929) or by the Basic scheme of HTTP (RFC 7617); other clients
//! are rejected.
//!
//! SOCKS5 and CONNECT are answered when the backend has accepted or refused the connection. If a backend has
//! accepted the same origin before, success is reported at once, so that the client's first bytes travel with
//! the opening of the hop. If the origin then cannot be reached, the client is reset.

mod http;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::client_hello::{self, Hello};
use crate::end::End;
use crate::hop::connection::Connection;
use crate::hop::opening::{ClientAddresses, plain};
use crate::io::CHUNK;
use crate::logins::FailedLogins;
use crate::network::Network;
use crate::outgoing::Direct;
use crate::proxy::{self, Parsed};
use crate::timeouts::Timeout;
use crate::users::Users;

/// The enabled protocols.
#[derive(Clone, Debug, Default)]
pub struct Entrance {
    /// Proxies whose PROXY header is trusted and required. Default none.
    pub proxy_from: Vec<Network>,
    /// True to accept SOCKS5 (RFC 1928). Default false.
    pub socks5: bool,
    /// True to act as an HTTP proxy: CONNECT (RFC 9110, section 9.3.6), and requests for `http://` addresses.
    /// Default false.
    pub connect: bool,
    /// The users that may log in with SOCKS5 or at the HTTP proxy. Default `None`: every client is served.
    pub users: Option<Users>,
    /// Failed logins of all clients. Default none.
    pub failed_logins: FailedLogins,
    /// True if a firewall rule redirects clients (REDIRECT or TPROXY). The destination before the redirection
    /// is then the origin. Default false.
    pub transparent: bool,
}

/// The request of an admitted client.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) addresses: ClientAddresses,
    /// `HOST:PORT` or a name; `None`: the backend's own origin.
    pub(crate) origin: Option<String>,
    /// True if the client has named the origin in a request to a proxy.
    pub(crate) has_named: bool,
    /// The direct destination, for the time when no backend is up.
    pub(crate) direct: Option<Direct>,
    /// The client's first bytes that have been read.
    pub(crate) first: Vec<u8>,
    /// The protocol whose answer the client waits for.
    pub(crate) awaits: Option<Reply>,
    /// The user that has logged in.
    pub(crate) user: Option<Arc<str>>,
}

/// The request of a client to a proxy.
#[derive(Debug)]
struct ProxyRequest {
    origin: String,
    awaits: Option<Reply>,
    user: Option<Arc<str>>,
}

/// Reason why a client is not admitted.
#[derive(Debug)]
enum Denied {
    /// The connection failed, or the request was invalid.
    Failed(io::Error),
    /// The client has not logged in.
    Unauthorized(&'static str),
}

impl From<io::Error> for Denied {
    fn from(error: io::Error) -> Denied {
        Denied::Failed(error)
    }
}

impl From<Denied> for End {
    fn from(denied: Denied) -> End {
        match denied {
            Denied::Failed(error) => End::ClientFailed(error.to_string()),
            Denied::Unauthorized(why) => End::Unauthorized(why),
        }
    }
}

/// The client has named no user.
const NO_LOGIN: &str = "no user name and password";
/// The user does not exist, or the password is wrong.
const WRONG_LOGIN: &str = "wrong user name or password";
/// Logins from the network of the client have failed too often.
const TOO_MANY: &str = "too many failed logins";

/// Protocol of the answer that reports whether the requested connection is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Socks5,
    Connect,
}

impl Reply {
    /// Reports success to the client.
    pub(crate) async fn grant(self, client: &mut Connection) -> io::Result<()> {
        match self {
            Reply::Socks5 => client.write_all(&socks5_reply(0)).await,
            Reply::Connect => client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await,
        }
    }

    /// Reports failure to the client; `forbidden` says that a rule caused it.
    pub(crate) async fn refuse(self, client: &mut Connection, forbidden: bool) -> io::Result<()> {
        match (self, forbidden) {
            (Reply::Socks5, true) => client.write_all(&socks5_reply(NOT_ALLOWED)).await?,
            (Reply::Socks5, false) => client.write_all(&socks5_reply(HOST_UNREACHABLE)).await?,
            (Reply::Connect, true) => client.write_all(&http::refusal("403 Forbidden")).await?,
            (Reply::Connect, false) => client.write_all(&http::refusal("502 Bad Gateway")).await?,
        }
        client.shutdown().await
    }
}

/// RFC 1928, section 6: a rule forbids the connection.
const NOT_ALLOWED: u8 = 2;
/// The host cannot be reached.
const HOST_UNREACHABLE: u8 = 4;

fn socks5_reply(code: u8) -> [u8; 10] {
    [5, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

impl Entrance {
    /// Reads the request that precedes the client's payload, for at most `limit`. Payload that arrives with
    /// it is returned too.
    pub(crate) async fn admit(
        &self,
        client: &mut Connection,
        peer: SocketAddr,
        limit: Duration,
    ) -> Result<Admitted, End> {
        let admitting = self.read(client, peer);
        match tokio::time::timeout(limit, admitting).await {
            Ok(admitted) => admitted.map_err(End::from),
            Err(_) => Err(End::TimedOut(Timeout::Header)),
        }
    }

    async fn read(&self, client: &mut Connection, peer: SocketAddr) -> Result<Admitted, Denied> {
        let local = plain(client.local_addr()?);
        let mut addresses = ClientAddresses { source: plain(peer), destination: local };
        let mut first = Vec::new();
        if self.trusts(peer.ip()) {
            addresses = proxied(client, &mut first).await?.unwrap_or(addresses);
        }
        let (mut origin, mut awaits, mut user) = (None, None, None);
        if self.socks5 || self.connect {
            let guesser = addresses.source.ip();
            if self.users.is_some() && self.failed_logins.refuses(guesser, Instant::now()) {
                return Err(Denied::Unauthorized(TOO_MANY));
            }
            let asked = self.asked(client, &mut first).await;
            if matches!(asked, Err(Denied::Unauthorized(WRONG_LOGIN))) {
                self.failed_logins.failed(guesser, Instant::now());
            }
            match asked? {
                Some(asked) => (origin, awaits, user) = (Some(asked.origin), asked.awaits, asked.user),
                None if self.users.is_some() => return Err(Denied::Unauthorized(NO_LOGIN)),
                None => {}
            }
        }
        let has_named = origin.is_some();
        if self.transparent && !has_named {
            let destination = intended(client, local);
            addresses.destination = destination;
            origin = Some(destination.to_string());
        }
        Ok(Admitted { addresses, origin, has_named, direct: None, first, awaits, user })
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.proxy_from.iter().any(|network| network.contains(address))
    }
}

/// Returns the original destination: REDIRECT keeps it in a socket option, TPROXY in the local address.
fn intended(client: &Connection, local: SocketAddr) -> SocketAddr {
    let Some(socket) = client.socket() else { return local };
    let socket = socket2::SockRef::from(socket);
    let redirected = match local {
        SocketAddr::V4(_) => socket.original_dst_v4(),
        SocketAddr::V6(_) => socket.original_dst_v6(),
    };
    redirected.ok().and_then(|address| address.as_socket()).map_or(local, plain)
}

/// Reads into `buffer` until `done` finds a result in it.
async fn until<T>(
    client: &mut Connection,
    buffer: &mut Vec<u8>,
    longest: usize,
    mut done: impl FnMut(&[u8]) -> io::Result<Option<T>>,
) -> io::Result<T> {
    loop {
        if let Some(found) = done(buffer)? {
            return Ok(found);
        }
        if buffer.len() >= longest {
            return Err(bad("the request is too long before it names a destination"));
        }
        buffer.reserve(CHUNK);
        if client.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Reads a client's first bytes until they are a TLS client hello or certainly something else.
pub(crate) async fn client_hello(client: &mut Connection, buffer: &mut Vec<u8>) -> io::Result<Hello> {
    let mut needed = 1;
    until(client, buffer, client_hello::MAX_LENGTH, |bytes| {
        if bytes.len() < needed {
            return Ok(None);
        }
        Ok(match client_hello::parse(bytes) {
            Hello::More(more) => {
                needed = more;
                None
            }
            hello @ (Hello::Named(_) | Hello::Nameless | Hello::NotTls) => Some(hello),
        })
    })
    .await
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Reads a PROXY header.
async fn proxied(client: &mut Connection, buffer: &mut Vec<u8>) -> io::Result<Option<ClientAddresses>> {
    let (addresses, length) = until(client, buffer, proxy::MAX_LENGTH, |bytes| match proxy::parse(bytes) {
        Parsed::Header(addresses, length) => Ok(Some((addresses, length))),
        Parsed::More => Ok(None),
        Parsed::Bad(why) => Err(bad(why)),
    })
    .await?;
    buffer.drain(..length);
    Ok(addresses)
}

impl Entrance {
    /// Reads a SOCKS5 greeting or a request to a proxy; `None` if the client uses neither.
    async fn asked(
        &self,
        client: &mut Connection,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<ProxyRequest>, Denied> {
        let begin = until(client, buffer, 1, |bytes| Ok(bytes.first().copied())).await?;
        match begin {
            5 if self.socks5 => socks5(client, buffer, self.users.as_ref()).await.map(Some),
            b'A'..=b'Z' if self.connect => http::asked(client, buffer, self.users.as_ref()).await,
            _ => Ok(None),
        }
    }
}

/// Authentication methods of SOCKS5: none, name and password, and "no method acceptable".
const OPEN: u8 = 0;
const PASSWORD: u8 = 2;
const NO_METHOD: u8 = 0xff;

/// Handles RFC 1928: greeting, choice of a method, request. With `users` the method is that of RFC 1929,
/// otherwise "no authentication".
async fn socks5(
    client: &mut Connection,
    buffer: &mut Vec<u8>,
    users: Option<&Users>,
) -> Result<ProxyRequest, Denied> {
    let method = if users.is_some() { PASSWORD } else { OPEN };
    let (length, offered) = until(client, buffer, 512, |bytes| match bytes {
        [_, count, methods @ ..] => {
            let methods = methods.get(..usize::from(*count));
            Ok(methods.map(|methods| (2 + methods.len(), methods.contains(&method))))
        }
        _ => Ok(None),
    })
    .await?;
    buffer.drain(..length);
    if !offered {
        client.write_all(&[5, NO_METHOD]).await?;
        return Err(match users {
            Some(_) => Denied::Unauthorized(NO_LOGIN),
            None => bad("the SOCKS5 client does not offer to connect without a login").into(),
        });
    }
    client.write_all(&[5, method]).await?;
    let user = match users {
        Some(users) => Some(socks5_login(client, buffer, users).await?),
        None => None,
    };
    let request = until(client, buffer, 512, socks5_request).await?;
    let (origin, length) = match request {
        Ok(asked) => asked,
        Err(code) => {
            client.write_all(&socks5_reply(code)).await?;
            return Err(bad("the SOCKS5 client asks for a command other than CONNECT").into());
        }
    };
    buffer.drain(..length);
    Ok(ProxyRequest { origin, awaits: Some(Reply::Socks5), user })
}

/// Handles RFC 1929: a name and a password; a failure ends the connection.
async fn socks5_login(
    client: &mut Connection,
    buffer: &mut Vec<u8>,
    users: &Users,
) -> Result<Arc<str>, Denied> {
    let (user, length) = until(client, buffer, 512, |bytes| {
        let [version, name_length, rest @ ..] = bytes else { return Ok(None) };
        if *version != 1 {
            return Err(bad("the SOCKS5 login has an unknown version"));
        }
        let Some((name, [password_length, rest @ ..])) = rest.split_at_checked(usize::from(*name_length))
        else {
            return Ok(None);
        };
        let password = rest.get(..usize::from(*password_length));
        Ok(password.map(|password| (users.login(name, password), 3 + name.len() + password.len())))
    })
    .await?;
    buffer.drain(..length);
    match user {
        Some(user) => {
            client.write_all(&[1, 0]).await?;
            Ok(user)
        }
        None => {
            client.write_all(&[1, 1]).await?;
            Err(Denied::Unauthorized(WRONG_LOGIN))
        }
    }
}

/// Parses a request; returns its origin and length. The inner `Err` is the code of the refusal.
fn socks5_request(bytes: &[u8]) -> io::Result<Option<Result<(String, usize), u8>>> {
    let [version, command, _, kind, rest @ ..] = bytes else { return Ok(None) };
    if *version != 5 {
        return Err(bad("the SOCKS5 request has an unknown version"));
    }
    if *command != 1 {
        return Ok(Some(Err(7)));
    }
    let (skip, length) = match kind {
        1 => (0, 4),
        4 => (0, 16),
        3 => match rest.first() {
            Some(length) => (1, usize::from(*length)),
            None => return Ok(None),
        },
        _ => return Ok(Some(Err(8))),
    };
    let Some((host, port)) = rest.get(skip..skip + length + 2).map(|asked| asked.split_at(length)) else {
        return Ok(None);
    };
    let port = u16::from_be_bytes([port[0], port[1]]);
    let origin = match kind {
        1 => host.try_into().ok().map(|v4: [u8; 4]| SocketAddr::from((v4, port)).to_string()),
        4 => host.try_into().ok().map(|v6: [u8; 16]| SocketAddr::from((v6, port)).to_string()),
        _ => std::str::from_utf8(host).ok().map(|host| format!("{host}:{port}")),
    };
    let origin =
        origin.filter(|origin| usable(origin)).ok_or_else(|| bad("the SOCKS5 request has no host"))?;
    Ok(Some(Ok((origin, 4 + skip + length + 2))))
}

/// True if `HOST:PORT` fits in an opening and can be resolved.
fn usable(origin: &str) -> bool {
    let parts = origin.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    matches!(parts, Some((host, Ok(1..))) if !host.is_empty() && origin.len() <= 255 && host.chars().all(plain))
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::service::first_bytes;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Returns the result for a client that sends `sent`, including its destination, and the bytes of the
    /// answer.
    async fn admitted(entrance: Entrance, sent: &[u8]) -> (Result<Admitted, End>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, peer) = listener.accept().await.unwrap();
        let mut accepted = Connection::Kernel(accepted);
        client.write_all(sent).await.unwrap();
        client.shutdown().await.unwrap();
        let mut admitted = entrance.admit(&mut accepted, peer, LIMIT).await;
        if let Ok(admitted) = &mut admitted
            && admitted.first.is_empty()
        {
            admitted.first = first_bytes(&mut accepted, LIMIT).await.unwrap();
        }
        drop(accepted);
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        (admitted, answer)
    }

    fn open() -> Entrance {
        Entrance { socks5: true, connect: true, ..Entrance::default() }
    }

    #[tokio::test]
    async fn a_trusted_proxy_names_the_client_and_nobody_else_does() {
        let sent = b"PROXY TCP4 192.0.2.1 198.51.100.1 5000 80\r\nGET /";
        let trusting = Entrance { proxy_from: vec!["127.0.0.0/8".parse().unwrap()], ..Entrance::default() };
        let client = admitted(trusting.clone(), sent).await.0.unwrap();
        assert_eq!(client.addresses.source, "192.0.2.1:5000".parse().unwrap());
        assert_eq!(client.first, b"GET /");
        let client = admitted(Entrance::default(), sent).await.0.unwrap();
        assert!(client.addresses.source.ip().is_loopback() && client.first == sent);
        assert!(admitted(trusting, b"GET / HTTP/1.1\r\n").await.0.is_err());
    }

    #[tokio::test]
    async fn socks5_and_connect_name_the_origin_and_wait_for_an_answer() {
        let socks = b"\x05\x01\x00\x05\x01\x00\x03\x0eorigin.example\x01\xbbhello";
        let (client, answer) = admitted(open(), socks).await;
        let client = client.unwrap();
        assert_eq!(
            (client.origin.as_deref(), &client.first[..]),
            (Some("origin.example:443"), &b"hello"[..])
        );
        assert_eq!((&answer[..], client.awaits), (&[5, 0][..], Some(Reply::Socks5)));
        let (client, _) = admitted(open(), b"\x05\x02\x02\x00\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50").await;
        assert_eq!(client.unwrap().origin.as_deref(), Some("192.0.2.1:80"));

        let connect = b"CONNECT origin.example:443 HTTP/1.1\r\nHost: origin.example:443\r\n\r\nhello";
        let (client, answer) = admitted(open(), connect).await;
        let client = client.unwrap();
        assert_eq!(
            (client.origin.as_deref(), &client.first[..]),
            (Some("origin.example:443"), &b"hello"[..])
        );
        assert!(answer.is_empty() && client.awaits == Some(Reply::Connect));
    }

    /// Returns an entrance for one user.
    fn for_alice() -> Entrance {
        Entrance { users: Users::parse("alice:secret", "users").ok(), ..open() }
    }

    #[tokio::test]
    async fn user_logs_in_over_socks5_and_connect_before_the_origin_is_named() {
        let entrance = for_alice();
        let socks = b"\x05\x02\x00\x02\x01\x05alice\x06secret\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50hello";
        let (client, answer) = admitted(entrance.clone(), socks).await;
        let client = client.unwrap();
        assert_eq!((client.origin.as_deref(), client.user.as_deref()), (Some("192.0.2.1:80"), Some("alice")));
        assert_eq!((&client.first[..], &answer[..]), (&b"hello"[..], &[5, 2, 1, 0][..]));
        for request in ["CONNECT origin.example:80 HTTP/1.1", "GET http://origin.example/ HTTP/1.1"] {
            let sent = format!("{request}\r\nproxy-authorization: basic YWxpY2U6c2VjcmV0\r\n\r\n");
            let client = admitted(entrance.clone(), sent.as_bytes()).await.0.unwrap();
            assert_eq!(
                (client.origin.as_deref(), client.user.as_deref()),
                (Some("origin.example:80"), Some("alice"))
            );
            assert!(
                !String::from_utf8_lossy(&client.first).contains("YWxp"),
                "the login is for this proxy alone"
            );
        }
    }

    #[tokio::test]
    async fn client_that_does_not_log_in_is_refused_as_its_protocol_says() {
        let entrance = for_alice();
        let required = &b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm="[..];
        for (sent, answer, why) in [
            (&b"\x05\x01\x00"[..], &[5, 0xff][..], NO_LOGIN),
            (b"\x05\x01\x02\x01\x05alice\x06Secret", &[5, 2, 1, 1], WRONG_LOGIN),
            (b"\x05\x01\x02\x01\x00\x00", &[5, 2, 1, 1], WRONG_LOGIN),
            (b"CONNECT a:1 HTTP/1.1\r\n\r\n", required, NO_LOGIN),
            (
                b"GET http://a/ HTTP/1.1\r\nProxy-Authorization: Basic YWxpY2U6eA==\r\n\r\n",
                required,
                WRONG_LOGIN,
            ),
            (b"CONNECT a:1 HTTP/1.1\r\nAuthorization: Basic YWxpY2U6c2VjcmV0\r\n\r\n", required, NO_LOGIN),
            (b"GET / HTTP/1.1\r\n", b"", NO_LOGIN),
            (b"\x16\x03\x01", b"", NO_LOGIN),
        ] {
            let (client, reply) = admitted(entrance.clone(), sent).await;
            assert_eq!(client.unwrap_err(), End::Unauthorized(why), "{sent:?}");
            assert!(
                reply.starts_with(answer) && reply.is_empty() == answer.is_empty(),
                "{sent:?}: {reply:?}"
            );
        }
        for cut in
            [&b"\x05\x01\x02\x01\x05ali"[..], b"\x05\x01\x02\x01\x05alice\x06se", b"\x05\x01\x02\x02\x01"]
        {
            let refused = admitted(entrance.clone(), cut).await.0.unwrap_err();
            assert!(matches!(refused, End::ClientFailed(_)), "{cut:?}");
        }
    }

    #[tokio::test]
    async fn a_request_for_an_http_address_goes_on_to_its_origin() {
        let sent = b"PUT http://origin.example/x HTTP/1.1\r\nX-Old: \xe9\r\nContent-Length: 4\r\n\r\nbody";
        let (client, answer) = admitted(open(), sent).await;
        let client = client.unwrap();
        assert_eq!(client.origin.as_deref(), Some("origin.example:80"));
        assert_eq!(
            client.first,
            b"PUT /x HTTP/1.1\r\nHost: origin.example\r\nX-Old: \xe9\r\nContent-Length: 4\r\n\
              Via: 1.1 brisk\r\nConnection: close\r\n\r\nbody"
        );
        assert!(answer.is_empty() && client.awaits.is_none(), "the origin answers");
    }

    #[tokio::test]
    async fn other_protocols_pass_untouched() {
        for sent in [&b"GET / HTTP/1.1\r\n"[..], b"COPY /x HTTP/1.1\r\n", b"\x16\x03\x01"] {
            let client = admitted(open(), sent).await.0.unwrap();
            assert_eq!((client.origin, &client.first[..]), (None, sent));
        }
        let client = admitted(Entrance::default(), b"\x05\x01\x00").await.0.unwrap();
        assert_eq!((client.origin, &client.first[..]), (None, &b"\x05\x01\x00"[..]));
    }

    #[tokio::test]
    async fn invalid_request_gets_the_answer_of_its_protocol() {
        for (sent, answer) in [
            (&b"\x05\x01\x02"[..], &[5, 0xff][..]),
            (b"\x05\x01\x00\x05\x02\x00\x01\0\0\0\0\0\x50", &[5, 0, 5, 7]),
            (b"\x05\x01\x00\x05\x01\x00\x09\0\0\0\0\0\x50", &[5, 0, 5, 8]),
            (b"CONNECT nowhere HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
            (b"CONNECT a\nb:1 HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
            (b"GET http://user@a/ HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
        ] {
            let (client, reply) = admitted(open(), sent).await;
            assert!(client.is_err() && reply.starts_with(answer), "{sent:?}: {reply:?}");
        }
        for cut in [&b""[..], b"\x05", b"\x05\x01\x00\x05\x01", b"CONNECT a:1"] {
            assert!(admitted(open(), cut).await.0.is_err(), "{cut:?}");
        }
    }

    #[tokio::test]
    async fn client_without_a_destination_in_time_has_its_own_result() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, peer) = listener.accept().await.unwrap();
        let mut accepted = Connection::Kernel(accepted);
        let slow = async {
            for byte in b"CONNECT origin.example:443 HTTP/1.1\r\nX-Slow: ".iter().cycle() {
                client.write_all(&[*byte]).await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let limit = Duration::from_millis(100);
        let entrance = open();
        let end = tokio::select! {
            admitted = entrance.admit(&mut accepted, peer, limit) => admitted.unwrap_err(),
            () = slow => unreachable!("it goes on for ever"),
        };
        assert_eq!(end, End::TimedOut(Timeout::Header), "an occasional byte does not extend the limit");
    }

    #[tokio::test]
    async fn client_that_guesses_is_refused_before_it_says_anything() {
        let entrance = for_alice();
        let login = |password: &[u8]| {
            [&[5, 1, PASSWORD, 1, 5][..], b"alice", &[password.len() as u8], password].concat()
        };
        for _ in 0..10 {
            let (client, answer) = admitted(entrance.clone(), &login(b"guess")).await;
            assert_eq!(client.unwrap_err(), End::Unauthorized(WRONG_LOGIN));
            assert_eq!(answer, [5, PASSWORD, 1, 1]);
        }
        for password in [&b"guess"[..], b"secret"] {
            let (client, answer) = admitted(entrance.clone(), &login(password)).await;
            assert_eq!(client.unwrap_err(), End::Unauthorized(TOO_MANY));
            assert!(answer.is_empty());
        }
    }
}
