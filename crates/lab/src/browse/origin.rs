//! The web server for all hosts of a page, on the kernel's TCP.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::site::{Answer, Site};

/// Counters of requests and connections since the last [`Tally::take`].
#[derive(Debug, Default)]
pub(super) struct Tally {
    requests: AtomicU64,
    connections: AtomicU64,
}

impl Tally {
    /// Returns the numbers of requests and connections since the last call.
    pub(super) fn take(&self) -> (u64, u64) {
        (self.requests.swap(0, Ordering::Relaxed), self.connections.swap(0, Ordering::Relaxed))
    }
}

/// Serves a page on `port` of every address of this network namespace, without end.
pub(super) async fn serve(listener: TcpListener, site: Arc<Site>, tally: Arc<Tally>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor is free at the moment.
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        tally.connections.fetch_add(1, Ordering::Relaxed);
        let (site, tally) = (Arc::clone(&site), Arc::clone(&tally));
        let service = service_fn(move |request: Request<Incoming>| {
            tally.requests.fetch_add(1, Ordering::Relaxed);
            let response = respond(&site, request.uri().path());
            async { Ok::<_, Infallible>(response) }
        });
        let mut http = http1::Builder::new();
        http.auto_date_header(false);
        // Errors of a browser's connection need no handling.
        tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
    }
}

pub(super) async fn listen(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).await
}

fn respond(site: &Site, path: &str) -> Response<Full<Bytes>> {
    let index = path.trim_start_matches('/').parse::<usize>();
    match index.ok().and_then(|index| site.answers.get(index)) {
        Some(answer) => found(answer),
        None => {
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    }
}

fn found(answer: &Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::copy_from_slice(&answer.body)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(answer.body.len()));
    if let Some(location) = &answer.location
        && let Ok(location) = HeaderValue::try_from(format!("http:{location}"))
    {
        headers.insert(LOCATION, location);
        *response.status_mut() = StatusCode::FOUND;
    }
    let missing = (answer.head as usize).saturating_sub(head_len(&response) + "x: \r\n".len());
    if missing > 0
        && let Ok(filler) = HeaderValue::try_from("-".repeat(missing))
    {
        response.headers_mut().insert("x", filler);
    }
    response
}

/// Returns the length of the head in HTTP/1.1, bytes.
fn head_len(response: &Response<Full<Bytes>>) -> usize {
    let status = "HTTP/1.1 200 \r\n\r\n".len() + response.status().canonical_reason().map_or(0, str::len);
    response.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>()
        + status
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn responses_have_the_recorded_size_including_the_head() {
        let answer = |head, location: Option<&str>| Answer {
            content_type: "image/gif",
            location: location.map(str::to_owned),
            head,
            body: vec![b'x'; 1000],
        };
        let site = Site { answers: vec![answer(400, None), answer(0, Some("//h1.test/0"))], hosts: 1 };
        let tally = Arc::new(Tally::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, Arc::new(site), Arc::clone(&tally)));
        for (path, status, len) in
            [("0", "200 OK", Some(1400)), ("1", "302 Found", None), ("7", "404 Not", None)]
        {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let request = format!("GET /{path} HTTP/1.1\r\nHost: h0.test\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            // The client sends no further request, so the connection ends.
            stream.shutdown().await.unwrap();
            let mut response = Vec::new();
            stream.read_to_end(&mut response).await.unwrap();
            let text = String::from_utf8_lossy(&response);
            assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{text}");
            assert!(len.is_none_or(|len| response.len() == len), "{}: {text}", response.len());
            assert_eq!(text.contains("location: http://h1.test/0\r\n"), path == "1");
        }
        assert_eq!(tally.take(), (3, 3));
        assert_eq!(tally.take(), (0, 0));
    }
}
