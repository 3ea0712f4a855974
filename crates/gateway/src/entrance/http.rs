//! Requests of browsers to an HTTP proxy: CONNECT (RFC 9110, section 9.3.6), and requests for plain `http://`
//! addresses with the complete address (absolute-form, RFC 9112, section 3.2.2).
//!
//! With users, both need `Proxy-Authorization` in the Basic scheme (RFC 9110, section 11.7; RFC 7617).
//!
//! A request in absolute-form is forwarded in origin-form with `Connection: close`. The client's next request
//! may be for another origin, and so needs another connection.

use tokio::io::AsyncWriteExt;

use super::{Denied, NO_LOGIN, ProxyRequest, Reply, WRONG_LOGIN, bad, until, usable};
use crate::hop::connection::Connection;
use crate::users::Users;

/// Maximum length of the request line and the headers, bytes.
const LONGEST_HEAD: usize = 32 << 10;
/// Maximum length of a method, bytes.
const LONGEST_METHOD: usize = 16;
const SCHEME: &[u8] = b"http://";
/// Fields that are not forwarded: those between the client and its proxy, and those that are rewritten (RFC
/// 9110, section 7.6.1). Fields that the client names in `Connection` are not forwarded either.
const HOP_BY_HOP: [&str; 6] =
    ["connection", "proxy-connection", "keep-alive", "proxy-authorization", "te", "host"];

/// Returns the destination; `None` if this is not a request to a proxy. Leaves in `buffer` the bytes for the
/// origin.
pub(super) async fn asked(
    client: &mut Connection,
    buffer: &mut Vec<u8>,
    users: Option<&Users>,
) -> Result<Option<ProxyRequest>, Denied> {
    let head = until(client, buffer, LONGEST_HEAD, |bytes| {
        if !may_be_for_a_proxy(bytes) {
            return Ok(Some(0));
        }
        Ok(bytes.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4))
    })
    .await?;
    if head == 0 {
        return Ok(None);
    }
    // Fields may hold any byte (RFC 9110, section 5.5), so each byte is converted to one character, and later
    // back.
    let text: String = buffer[..head].iter().copied().map(char::from).collect();
    let Some((origin, for_origin)) = understand(&text) else {
        client.write_all(&refusal("400 Bad Request")).await?;
        return Err(bad("the request to the proxy is malformed").into());
    };
    let user = match users {
        None => None,
        Some(users) => {
            let field = field(&text, "proxy-authorization");
            let user = field.and_then(|field| users.basic(field));
            if user.is_none() {
                client.write_all(UNAUTHORIZED).await?;
                let why = if field.is_some() { WRONG_LOGIN } else { NO_LOGIN };
                return Err(Denied::Unauthorized(why));
            }
            user
        }
    };
    buffer.splice(..head, for_origin.chars().filter_map(|byte| u8::try_from(byte).ok()));
    let awaits = for_origin.is_empty().then_some(Reply::Connect);
    Ok(Some(ProxyRequest { origin, awaits, user }))
}

/// The answer to a request without the name and password of a user.
const UNAUTHORIZED: &[u8] = b"HTTP/1.1 407 Proxy Authentication Required\r\n\
    Proxy-Authenticate: Basic realm=\"brisk\", charset=\"UTF-8\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// Returns the value of the first field with this name.
fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    fields.into_iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// Returns a response without a body, after which the connection ends.
pub(super) fn refusal(status: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").into_bytes()
}

/// True if the bytes may be the beginning of `CONNECT ` or of `METHOD http://`.
fn may_be_for_a_proxy(bytes: &[u8]) -> bool {
    let method = bytes.iter().take(LONGEST_METHOD + 1).take_while(|byte| byte.is_ascii_uppercase()).count();
    match bytes.get(method..) {
        None | Some([]) => method <= LONGEST_METHOD,
        Some([b' ', target @ ..]) => {
            let seen = target.len().min(SCHEME.len());
            &bytes[..method] == b"CONNECT" || target[..seen].eq_ignore_ascii_case(&SCHEME[..seen])
        }
        Some(_) => false,
    }
}

/// Parses a head; returns the origin, and the head to send to it: empty for CONNECT.
fn understand(head: &str) -> Option<(String, String)> {
    let (line, fields) = head.split_once("\r\n")?;
    let [method, target, version] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
    if !version.starts_with("HTTP/1.") {
        return None;
    }
    if method == "CONNECT" {
        return usable(target).then(|| (target.to_owned(), String::new()));
    }
    let address = target.get(SCHEME.len()..)?;
    let end = address.find(['/', '?']).unwrap_or(address.len());
    let (authority, path) = address.split_at(end);
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let origin = if has_port { authority.to_owned() } else { format!("{authority}:80") };
    if !usable(&origin) {
        return None;
    }
    let target = match (method, path) {
        // The request is for the server itself, not for a resource (RFC 9112, section 3.2.4).
        ("OPTIONS", "") => "*".to_owned(),
        (_, path) if path.starts_with('/') => path.to_owned(),
        (_, query) => format!("/{query}"),
    };
    let mut for_origin = format!("{method} {target} {version}\r\nHost: {authority}\r\n");
    for field in end_to_end(fields)? {
        for_origin.push_str(field);
        for_origin.push_str("\r\n");
    }
    for_origin.push_str("Via: 1.1 brisk\r\nConnection: close\r\n\r\n");
    Some((origin, for_origin))
}

/// Returns the fields for the origin; `None` if a line is not a field.
fn end_to_end(fields: &str) -> Option<Vec<&str>> {
    let lines = fields.split("\r\n").filter(|field| !field.is_empty());
    let named: Option<Vec<(&str, &str, &str)>> =
        lines.map(|field| field.split_once(':').map(|(name, value)| (name, value, field))).collect();
    let named = named?;
    let connection = named.iter().filter(|(name, ..)| name.eq_ignore_ascii_case("connection"));
    let mut dropped = HOP_BY_HOP.to_vec();
    dropped.extend(connection.flat_map(|(_, value, _)| value.split(',').map(str::trim)));
    let kept = |name: &str| !dropped.iter().any(|hop| name.eq_ignore_ascii_case(hop));
    Some(named.iter().filter(|(name, ..)| kept(name)).map(|(.., field)| *field).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_an_http_address_reaches_the_origin_as_it_expects_it() {
        let head = "GET http://origin.example/a?b=1 HTTP/1.1\r\nHost: other.example\r\nAccept: */*\r\n\
            Proxy-Connection: keep-alive\r\nConnection: keep-alive\r\nCookie: a=b\r\n\r\n";
        let (origin, for_origin) = understand(head).unwrap();
        assert_eq!(origin, "origin.example:80");
        assert_eq!(
            for_origin,
            "GET /a?b=1 HTTP/1.1\r\nHost: origin.example\r\nAccept: */*\r\nCookie: a=b\r\n\
             Via: 1.1 brisk\r\nConnection: close\r\n\r\n"
        );
    }

    #[test]
    fn hop_by_hop_fields_stay_at_the_proxy() {
        let head = "GET http://a.example/ HTTP/1.1\r\nX-Hop: 1\r\nConnection: close, x-hop\r\nX-Kept: 2\r\n\
            connection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
        let (_, for_origin) = understand(head).unwrap();
        assert_eq!(
            for_origin,
            "GET / HTTP/1.1\r\nHost: a.example\r\nX-Kept: 2\r\nVia: 1.1 brisk\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(understand("GET http://a.example/ HTTP/1.1\r\nno field\r\n\r\n"), None);
    }

    #[test]
    fn options_of_a_server_are_no_options_of_its_root() {
        let line = |target: &str| {
            let (_, for_origin) = understand(&format!("OPTIONS {target} HTTP/1.1\r\n\r\n")).unwrap();
            for_origin.lines().next().unwrap().to_owned()
        };
        assert_eq!(line("http://a.example"), "OPTIONS * HTTP/1.1");
        assert_eq!(line("http://a.example:81/"), "OPTIONS / HTTP/1.1");
        assert_eq!(line("http://a.example?x"), "OPTIONS /?x HTTP/1.1");
    }

    #[test]
    fn the_origin_is_the_authority_of_the_address() {
        let origin =
            |target: &str| understand(&format!("POST {target} HTTP/1.1\r\n\r\n")).map(|(origin, _)| origin);
        assert_eq!(origin("http://a.example:8080/").as_deref(), Some("a.example:8080"));
        assert_eq!(origin("HTTP://[2001:db8::1]").as_deref(), Some("[2001:db8::1]:80"));
        assert_eq!(origin("http://[2001:db8::1]:81?x").as_deref(), Some("[2001:db8::1]:81"));
        for bad in
            ["http://", "http:///path", "http://user@a.example/", "http://a.example:0/", "http://a b/", "/"]
        {
            assert_eq!(origin(bad), None, "{bad}");
        }
    }

    #[test]
    fn request_that_is_for_no_proxy_passes_at_once() {
        for proxy in ["C", "CONN", "CONNECT ", "CONNECT a", "GET", "GET ", "GET ht", "PROPFIND http://a"] {
            assert!(may_be_for_a_proxy(proxy.as_bytes()), "{proxy}");
        }
        for origin in
            ["GET /", "CONNECTED a", "SSH-", "EHLO example.org", "GET https", "ABCDEFGHIJKLMNOPQ", "COPY /x"]
        {
            assert!(!may_be_for_a_proxy(origin.as_bytes()), "{origin}");
        }
    }
}
