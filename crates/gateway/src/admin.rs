//! The admin listener of a gateway or edge: `/metrics`, `/healthz`, `/readyz`, `/status`.
//!
//! It has a socket of its own, on loopback unless a token protects it. It accepts at most `MAX` connections
//! at a time, each for a few seconds.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::frontend::FrontendControl;
use crate::hop::KeyError;
use crate::hop::key::read_secret;
use crate::listeners::{accept, listen_at};
use crate::log::Log;
use crate::metrics::Metrics;
use crate::status::{Facts, Status};

/// Limit of simultaneous connections.
const MAX: usize = 64;
/// Time limit for a request to arrive, and for a connection.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// The HTML page; it requests `/status.json` every second.
const PAGE: &str = include_str!("status.html");

/// Reason why there is no admin listener.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address is not loopback, and there is no token.
    #[error(
        "admin listener {0} is not loopback: give it a token with --admin-token-file, or listen on 127.0.0.1"
    )]
    Open(SocketAddr),
    /// The file of the token cannot be read.
    #[error("--admin-token-file {path} (token_file of [admin]): it cannot be read: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// Error of the system.
        error: io::Error,
    },
    /// The token is not valid.
    #[error(
        "--admin-token-file {0} (token_file of [admin]): a token needs at least 16 characters, on one line, in a file that only its owner can read"
    )]
    Token(String),
    /// The system cannot listen on the address.
    #[error("--admin (listen of [admin]): {0}")]
    Io(#[from] io::Error),
}

/// The listener.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
    token: Option<String>,
}

/// The state that the status page shows.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Fixed facts of the side.
    pub facts: Facts,
    /// Counters of the side.
    pub metrics: Arc<Metrics>,
    /// A frontend, with its backends.
    pub frontend: Option<FrontendControl>,
}

impl Admin {
    /// Binds the listener.
    ///
    /// # Errors
    /// If other hosts can reach the address and there is no token; if the token is not valid; if the system
    /// refuses.
    pub fn bind(listen: SocketAddr, token_file: Option<&Path>) -> Result<Admin, AdminError> {
        let token = token_for(listen, token_file)?;
        Ok(Admin { listener: listen_at(listen)?, token })
    }

    /// Makes the checks of [`bind`](Admin::bind), but does not listen.
    ///
    /// # Errors
    /// If other hosts can reach the address and there is no token; if the token is not valid.
    pub fn check(listen: SocketAddr, token_file: Option<&Path>) -> Result<(), AdminError> {
        token_for(listen, token_file).map(drop)
    }

    /// Returns the address and port of the listener.
    ///
    /// # Errors
    /// If the kernel does not report it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves requests until the future is dropped.
    pub async fn run(self, shown: Shown, log: Log) {
        let places = Arc::new(Semaphore::new(MAX));
        let shared = Arc::new((shown, self.token));
        loop {
            // The semaphore is never closed.
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let (stream, _) = accept(&self.listener, &log).await;
            let shared = shared.clone();
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |request| answer(shared.clone(), request));
                let serving = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(TIME_LIMIT)
                    .keep_alive(false)
                    .max_buf_size(16 << 10)
                    .serve_connection(TokioIo::new(stream), service);
                // The limit cuts off slow readers.
                let _ = tokio::time::timeout(TIME_LIMIT, serving).await;
                drop(place);
            });
        }
    }
}

/// Reads the token. Only a listener on a loopback address may have none.
fn token_for(listen: SocketAddr, token_file: Option<&Path>) -> Result<Option<String>, AdminError> {
    let token = token_file.map(read_token).transpose()?;
    match token.is_none() && !listen.ip().to_canonical().is_loopback() {
        true => Err(AdminError::Open(listen)),
        false => Ok(token),
    }
}

fn read_token(path: &Path) -> Result<String, AdminError> {
    let wrong = || AdminError::Token(path.display().to_string());
    let text = read_secret(path).map_err(|error| match error {
        KeyError::Unreadable { path, error } => AdminError::Unreadable { path, error },
        _ => wrong(),
    })?;
    let token = text.trim();
    let good = token.len() >= 16 && !token.contains(char::is_whitespace);
    good.then(|| token.to_owned()).ok_or_else(wrong)
}

fn answer(
    shared: Arc<(Shown, Option<String>)>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Full<Bytes>>, Infallible>> {
    let (shown, token) = &*shared;
    std::future::ready(Ok(respond(shown, token.as_deref(), &request)))
}

fn respond<B>(shown: &Shown, token: Option<&str>, request: &Request<B>) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let path = request.uri().path();
    // Health is not secret: Kubernetes probes request it without a token.
    let is_open = path == "/healthz" || path == "/readyz";
    if !is_open && !token.is_none_or(|token| bears(request, token)) {
        let mut refused = text(StatusCode::UNAUTHORIZED, TEXT, "this request needs the admin token\n");
        refused.headers_mut().insert(WWW_AUTHENTICATE, hyper::header::HeaderValue::from_static("Bearer"));
        return refused;
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n");
        refused.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    let Shown { facts, metrics, frontend } = shown;
    let status = || Status::of(facts, metrics, frontend.as_ref()).json();
    match path {
        "/healthz" => text(StatusCode::OK, TEXT, "alive\n"),
        "/readyz" => match unready(metrics, frontend.as_ref()) {
            None => text(StatusCode::OK, TEXT, "ready\n"),
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, TEXT, why),
        },
        "/metrics" => {
            let upstreams = frontend.as_ref().map(FrontendControl::upstreams);
            text(StatusCode::OK, OPEN_METRICS, metrics.text(upstreams.as_deref()))
        }
        "/status" | "/" if wants_a_page(request) => text(StatusCode::OK, "text/html; charset=utf-8", PAGE),
        "/status" | "/status.json" => text(StatusCode::OK, "application/json", status()),
        _ => text(StatusCode::NOT_FOUND, TEXT, "the paths are /status, /metrics, /healthz and /readyz\n"),
    }
}

/// Returns the reason why this side is not ready for new connections; `None` if it is ready.
fn unready(metrics: &Metrics, frontend: Option<&FrontendControl>) -> Option<&'static str> {
    if metrics.draining() {
        return Some("draining\n");
    }
    let upstreams = frontend.map(FrontendControl::upstreams);
    upstreams.is_some_and(|upstreams| !upstreams.any_up()).then_some("no backend is up\n")
}

fn bears<B>(request: &Request<B>, token: &str) -> bool {
    let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    given.as_bytes().ct_eq(token.as_bytes()).into()
}

fn wants_a_page<B>(request: &Request<B>) -> bool {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

fn text(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, hyper::header::HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;

    fn shown() -> Shown {
        let facts = Facts {
            role: Role::Backend,
            listen: "127.0.0.1:7443".into(),
            origin: Some("127.0.0.1:80".into()),
            hop: "tcp-in-udp",
            security: "sealed",
            clients: None,
            share: None,
        };
        Shown { facts, metrics: Arc::default(), frontend: None }
    }

    fn ask(shown: &Shown, token: Option<&str>, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = respond(shown, token, &request.body(()).unwrap());
        let kind = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
        (response.status().as_u16(), kind)
    }

    #[test]
    fn every_path_answers_in_its_kind() {
        let shown = shown();
        for (path, status, kind) in [
            ("/healthz", 200, "text/plain; charset=utf-8"),
            ("/readyz", 200, "text/plain; charset=utf-8"),
            ("/metrics", 200, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
            ("/status", 200, "application/json"),
            ("/nothing", 404, "text/plain; charset=utf-8"),
        ] {
            assert_eq!(ask(&shown, None, path, &[]), (status, kind.to_owned()), "{path}");
        }
        let page = ask(&shown, None, "/status", &[("accept", "text/html,*/*")]);
        assert_eq!(page, (200, "text/html; charset=utf-8".to_owned()));
    }

    #[test]
    fn draining_side_is_alive_but_not_ready() {
        let shown = shown();
        shown.metrics.drain();
        assert_eq!(ask(&shown, None, "/readyz", &[]).0, 503);
        assert_eq!(ask(&shown, None, "/healthz", &[]).0, 200);
    }

    #[test]
    fn token_is_needed_for_everything_but_health() {
        let (shown, token) = (shown(), Some("0123456789abcdef"));
        assert_eq!(ask(&shown, token, "/healthz", &[]).0, 200);
        assert_eq!(ask(&shown, token, "/readyz", &[]).0, 200);
        for path in ["/metrics", "/status", "/nothing"] {
            assert_eq!(ask(&shown, token, path, &[]).0, 401, "{path}");
            let wrong = [("authorization", "Bearer 0123456789abcdeX")];
            assert_eq!(ask(&shown, token, path, &wrong).0, 401, "{path}");
        }
        assert_eq!(ask(&shown, token, "/metrics", &[("authorization", "Bearer 0123456789abcdef")]).0, 200);
    }

    #[tokio::test]
    async fn an_address_that_others_reach_needs_a_token() {
        let refused = Admin::bind("0.0.0.0:0".parse().unwrap(), None).unwrap_err().to_string();
        assert!(refused.contains("--admin-token-file"), "{refused}");
        assert!(Admin::bind("127.0.0.1:0".parse().unwrap(), None).is_ok());
    }
}
