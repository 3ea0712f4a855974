//! Routes of TLS clients to origins by server name.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::AsyncWriteExt;

use crate::client_hello::{Hello, UNRECOGNIZED_NAME};
use crate::end::End;
use crate::entrance::client_hello;
use crate::hop::connection::Connection;
use crate::origins::OriginName;
use crate::outgoing::Direct;
use crate::timeouts::Timeout;

/// A route of a listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The server names of the route.
    pub sni: ServerName,
    /// The name of the origin to request.
    pub origin: OriginName,
    /// The destination over the kernel's TCP while no backend is up.
    pub direct: Option<Direct>,
}

/// The name of a server, `shop.example`, or of all servers below a domain, `*.example`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct ServerName {
    /// Lower case, with a leading dot for a domain.
    text: String,
}

impl ServerName {
    fn matches(&self, name: &str) -> bool {
        match self.text.starts_with('.') {
            true => name.len() > self.text.len() && name.ends_with(&self.text),
            false => name == self.text,
        }
    }
}

/// Returns the route for the server name `name`, in lower case: the route with this name, or else with the
/// longest domain that contains it.
pub(crate) fn choose<'a>(routes: &'a [Route], name: &str) -> Option<&'a Route> {
    let matching = routes.iter().filter(|route| route.sni.matches(name));
    matching.max_by_key(|route| (!route.sni.text.starts_with('.'), route.sni.text.len()))
}

/// Reads a TLS client's first bytes for at most `limit`, and returns its route. Without a route, returns
/// `None` if the listener has an origin of its own, and otherwise refuses the client.
pub(crate) async fn of_client<'a>(
    routes: &'a [Route],
    has_origin: bool,
    client: &mut Connection,
    first: &mut Vec<u8>,
    limit: Duration,
) -> Result<Option<&'a Route>, End> {
    let hello = tokio::time::timeout(limit, client_hello(client, first)).await;
    let hello = hello.map_err(|_| End::TimedOut(Timeout::Header))?;
    let hello = hello.map_err(|error| End::ClientFailed(error.to_string()))?;
    let route = match &hello {
        Hello::Named(name) => choose(routes, name),
        Hello::Nameless | Hello::NotTls | Hello::More(_) => None,
    };
    if route.is_some() || has_origin {
        return Ok(route);
    }
    let why = match hello {
        Hello::Named(name) => format!("no route for the server name {name}"),
        Hello::Nameless => "no route for a client hello without a server name".to_owned(),
        Hello::NotTls | Hello::More(_) => {
            client.reset();
            return Err(End::ClientFailed("no route for a client that sends no TLS client hello".to_owned()));
        }
    };
    // The client may have gone.
    let _ = client.write_all(&UNRECOGNIZED_NAME).await;
    let _ = client.shutdown().await;
    Err(End::ClientFailed(why))
}

impl FromStr for ServerName {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerName, String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let bare = text.strip_prefix("*.").unwrap_or(text);
        let is_usual = !bare.is_empty() && bare.len() <= 253 && bare.chars().all(is_name);
        match is_usual && !bare.starts_with('.') && !bare.ends_with('.') {
            true => Ok(ServerName { text: text.strip_prefix('*').unwrap_or(text).to_ascii_lowercase() }),
            false => {
                Err(format!("'{text}' is not a server name: write for instance shop.example or *.example"))
            }
        }
    }
}

impl TryFrom<String> for ServerName {
    type Error = String;

    fn try_from(text: String) -> Result<ServerName, String> {
        text.parse()
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.text.starts_with('.') { "*" } else { "" };
        write!(f, "{star}{}", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_exact_route_is_chosen() {
        let route = |(sni, origin): (&str, &str)| Route {
            sni: sni.parse().unwrap(),
            origin: origin.parse().unwrap(),
            direct: None,
        };
        let routes = [("*.example", "any"), ("Shop.Example", "shop"), ("*.b.example", "b")].map(route);
        for (name, origin) in [
            ("shop.example", Some("shop")),
            ("a.example", Some("any")),
            ("x.b.example", Some("b")),
            ("y.x.b.example", Some("b")),
            ("b.example", Some("any")),
            ("example", None),
            ("badexample", None),
            ("shop.example.org", None),
        ] {
            assert_eq!(choose(&routes, name).map(|route| route.origin.as_str()), origin, "{name}");
        }
        for bad in ["", "*", "*.", ".example", "a b", "*.*.example", "a*.example", "shop.example."] {
            assert!(bad.parse::<ServerName>().is_err(), "{bad}");
        }
    }
}
