//! Keys in etcd, through the JSON form of its version 3 interface (`POST /v3/kv/range`, `POST /v3/watch`; etcd 3.4 and
//! later): HTTP/1.1 and JSON, which this program speaks anyway, instead of gRPC.
//!
//! A watch begins behind the revision that was read, so that no change is missed between the two; when it breaks, the key
//! is read again. Silence is not trusted for ever: after a minute the key is read again in any case.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::place::MAX_BYTES;

/// How long a connection and an answer may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// After this long without an event the key is read again, and the watch set up anew.
const SILENCE: Duration = Duration::from_secs(60);
/// The pause before the watch is tried again, doubled up to the last.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(15)];

/// A key of an etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Etcd {
    /// `HOST:PORT`.
    authority: String,
    key: String,
}

impl fmt::Display for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}/{}", self.authority, self.key)
    }
}

impl Etcd {
    /// Reads `HOST:PORT/KEY`.
    pub(super) fn parse(text: &str) -> Result<Etcd, String> {
        let form = || "write etcd://HOST:PORT/KEY, for instance etcd://127.0.0.1:2379/brisk/keys".to_owned();
        let (authority, key) = text.split_once('/').filter(|(_, key)| !key.is_empty()).ok_or_else(form)?;
        if authority.contains('@') {
            return Err("a user and a password are not supported: use an etcd without, or a file".to_owned());
        }
        brisk_gateway::settings::name_and_port(authority).map_err(|_| form())?;
        Ok(Etcd { authority: authority.to_owned(), key: key.to_owned() })
    }

    /// The value of the key.
    pub(super) async fn get(&self) -> Result<Vec<u8>, String> {
        self.range().await.map(|(value, _)| value)
    }

    /// The value, and the revision of the store as of which it is.
    async fn range(&self) -> Result<(Vec<u8>, u64), String> {
        let asked = json!({ "key": STANDARD.encode(&self.key) });
        let answer = within(async {
            let response = self.post("/v3/kv/range", &asked).await?;
            let body = Limited::new(response.into_body(), MAX_BYTES as usize).collect().await;
            body.map(|body| body.to_bytes()).map_err(|error| format!("etcd broke off: {error}"))
        });
        let answer: Value = serde_json::from_slice(&answer.await?)
            .map_err(|_| "the answer is not etcd's (3.4 or later)".to_owned())?;
        let revision =
            number(&answer["header"]["revision"]).ok_or("the answer has no revision: not etcd's")?;
        let value = answer["kvs"][0]["value"].as_str().ok_or("there is no such key in etcd")?;
        let value = STANDARD.decode(value).map_err(|_| "the answer is not etcd's: no base64".to_owned())?;
        Ok((value, revision))
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Response<Incoming>, String> {
        let failed = |error: &dyn fmt::Display| format!("etcd does not answer: {error}");
        let stream = TcpStream::connect(&self.authority).await.map_err(|error| failed(&error))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| failed(&error))?;
        // It ends with the last of the sender and the body.
        tokio::spawn(connection);
        let request = Request::post(path)
            .header("host", &self.authority)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(|error| failed(&error))?;
        let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
        match response.status().as_u16() {
            200 => Ok(response),
            404 => Err("there is no /v3 interface here: etcd 3.4 or later is needed".to_owned()),
            status => Err(format!("etcd refuses with status {status}")),
        }
    }
}

/// Waits for changes of a key.
pub(super) struct Watch {
    etcd: Etcd,
    stream: Option<Events>,
    pause: Duration,
}

impl Watch {
    /// Not connected yet.
    pub(super) fn new(etcd: Etcd) -> Watch {
        Watch { etcd, stream: None, pause: PAUSES[0] }
    }

    /// Returns at an event, when the watch is set up (the key may have changed before), when it breaks, and after a
    /// minute of silence.
    pub(super) async fn changed(&mut self) {
        if let Some(events) = &mut self.stream {
            match tokio::time::timeout(SILENCE, events.next()).await {
                Ok(true) => return,
                Ok(false) | Err(_) => self.stream = None,
            }
        }
        match within(self.open()).await {
            Ok(events) => {
                self.stream = Some(events);
                self.pause = PAUSES[0];
            }
            Err(_) => {
                // The reading that follows says why.
                tokio::time::sleep(self.pause).await;
                self.pause = (self.pause * 2).min(PAUSES[1]);
            }
        }
    }

    /// A stream of the changes that come after now.
    async fn open(&self) -> Result<Events, String> {
        let etcd = &self.etcd;
        let revision = match etcd.range().await {
            Ok((_, revision)) => json!(revision + 1),
            // The key may not be there yet; from now on, then.
            Err(_) => json!(0),
        };
        let asked =
            json!({ "create_request": { "key": STANDARD.encode(&etcd.key), "start_revision": revision } });
        let response = etcd.post("/v3/watch", &asked).await?;
        let mut events = Events { body: response.into_body(), line: Vec::new() };
        let created = events.line().await.ok_or("etcd broke the watch off")?;
        match created["result"]["created"].as_bool() {
            Some(true) => Ok(events),
            Some(false) | None => Err("etcd does not watch".to_owned()),
        }
    }
}

/// The lines of a watch: one JSON value each.
struct Events {
    body: Incoming,
    line: Vec<u8>,
}

impl Events {
    /// True at a change of the key; false when the watch is over.
    async fn next(&mut self) -> bool {
        loop {
            let Some(line) = self.line().await else { return false };
            let result = &line["result"];
            if result["canceled"].as_bool() == Some(true) || !line["error"].is_null() {
                return false;
            }
            if result["events"].as_array().is_some_and(|events| !events.is_empty()) {
                return true;
            }
        }
    }

    /// The next line; none when there is no more, or it is not one of etcd's.
    async fn line(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.line.drain(..=end).collect();
                return serde_json::from_slice(&line).ok();
            }
            if self.line.len() as u64 > MAX_BYTES {
                return None;
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.line.extend_from_slice(&data);
            }
        }
    }
}

/// 64-bit numbers are strings in etcd's JSON.
fn number(value: &Value) -> Option<u64> {
    value.as_str().and_then(|text| text.parse().ok()).or_else(|| value.as_u64())
}

async fn within<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    tokio::time::timeout(TIMEOUT, work)
        .await
        .unwrap_or_else(|_| Err("etcd does not answer in time".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_a_port_and_a_key() {
        let etcd = Etcd::parse("127.0.0.1:2379/brisk/keys").expect("good");
        assert_eq!((etcd.authority.as_str(), etcd.key.as_str()), ("127.0.0.1:2379", "brisk/keys"));
        assert_eq!(etcd.to_string(), "etcd://127.0.0.1:2379/brisk/keys");
        for bad in
            ["127.0.0.1:2379", "127.0.0.1:2379/", "127.0.0.1/key", ":2379/key", "user:pw@127.0.0.1:2379/key"]
        {
            assert!(Etcd::parse(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn an_etcd_that_is_not_there_is_an_error_in_one_line() {
        let etcd = Etcd::parse("127.0.0.1:1/key").expect("good");
        let error = etcd.get().await.expect_err("nobody listens");
        assert!(error.starts_with("etcd does not answer") && !error.contains('\n'), "{error}");
    }
}
