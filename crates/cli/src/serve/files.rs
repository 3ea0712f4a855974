//! A directory as HTTP/1.1 resources: GET and HEAD, content length, single ranges, a plain listing of
//! directories.
//!
//! Nothing outside the directory is ever answered: `..` is refused, and a symbolic link that leads out is not
//! found.

use std::io;
use std::path::{Component, Path, PathBuf};

use hyper::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderValue, LOCATION, RANGE,
};
use hyper::{Method, Request, Response, StatusCode};
use tokio::io::AsyncSeekExt;

use super::content::Content;

/// The largest body that `--synthetic` makes up: 1 TB.
const MAX_SYNTHETIC: u64 = 1_000_000_000_000;

/// The content served.
#[derive(Debug)]
pub(crate) struct Files {
    root: PathBuf,
    synthetic: bool,
}

impl Files {
    /// The directory `root`; with `synthetic`, `/N` is N bytes made up on the way unless there is a file of
    /// that name.
    pub(crate) fn open(root: &Path, synthetic: bool) -> io::Result<Files> {
        let root = root.canonicalize()?;
        if !root.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is no directory"));
        }
        Ok(Files { root, synthetic })
    }

    /// The answer to one request.
    pub(crate) async fn answer<B>(&self, request: &Request<B>) -> Response<Content> {
        let range = request.headers().get(RANGE).and_then(|range| range.to_str().ok());
        let result = match *request.method() {
            Method::GET | Method::HEAD => self.find(request.uri().path(), range).await,
            _ => Err(StatusCode::METHOD_NOT_ALLOWED),
        };
        let mut response = result.unwrap_or_else(plain);
        if request.method() == Method::HEAD {
            *response.body_mut() = Content::empty();
        }
        response
    }

    async fn find(&self, path: &str, range: Option<&str>) -> Result<Response<Content>, StatusCode> {
        let relative = relative(path).ok_or(StatusCode::BAD_REQUEST)?;
        let found = match tokio::fs::canonicalize(self.root.join(&relative)).await {
            Ok(found) if found.starts_with(&self.root) => found,
            Err(_) if self.synthetic => return synthetic(&relative, range),
            Ok(_) | Err(_) => return Err(StatusCode::NOT_FOUND),
        };
        if !tokio::fs::metadata(&found).await.map_err(status)?.is_dir() {
            return file(&found, range).await;
        }
        if !path.ends_with('/') {
            let mut response = plain(StatusCode::MOVED_PERMANENTLY);
            let location = HeaderValue::from_str(&format!("{path}/")).map_err(|_| StatusCode::BAD_REQUEST)?;
            response.headers_mut().insert(LOCATION, location);
            return Ok(response);
        }
        match file(&found.join("index.html"), range).await {
            Err(StatusCode::NOT_FOUND) => listing(&found).await,
            answer => answer,
        }
    }
}

/// The path below the root that a URL path names; `None` if it is no such path.
fn relative(path: &str) -> Option<PathBuf> {
    let decoded = percent_decoded(path.strip_prefix('/')?)?;
    let relative = PathBuf::from(decoded);
    let inside = |part: Component<'_>| match part {
        Component::Normal(_) | Component::CurDir => true,
        Component::ParentDir | Component::RootDir | Component::Prefix(_) => false,
    };
    relative.components().all(inside).then_some(relative)
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let (high, low) = (hex(bytes.next()?)?, hex(bytes.next()?)?);
                high << 4 | low
            }
            other => other,
        });
    }
    String::from_utf8(decoded).ok().filter(|decoded| !decoded.contains('\0'))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

fn percent_encoded(name: &str) -> String {
    let mut encoded = String::new();
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

async fn file(path: &Path, range: Option<&str>) -> Result<Response<Content>, StatusCode> {
    let mut file = tokio::fs::File::open(path).await.map_err(status)?;
    let metadata = file.metadata().await.map_err(status)?;
    if !metadata.is_file() {
        return Err(StatusCode::NOT_FOUND);
    }
    let (mut response, start, len) = ranged(metadata.len(), range)?;
    if start > 0 {
        file.seek(io::SeekFrom::Start(start)).await.map_err(status)?;
    }
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type(path)));
    *response.body_mut() = Content::file(file, len);
    Ok(response)
}

fn synthetic(relative: &Path, range: Option<&str>) -> Result<Response<Content>, StatusCode> {
    let size = relative.to_str().and_then(|name| name.parse().ok());
    let size = size.filter(|size| *size <= MAX_SYNTHETIC).ok_or(StatusCode::NOT_FOUND)?;
    let (mut response, start, len) = ranged(size, range)?;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    *response.body_mut() = Content::synthetic(start, len);
    Ok(response)
}

/// Head of the answer with the part of a resource of `size` bytes that was asked for: where it starts, how
/// long it is.
fn ranged(size: u64, range: Option<&str>) -> Result<(Response<Content>, u64, u64), StatusCode> {
    let mut response = Response::new(Content::empty());
    response.headers_mut().insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let (start, len) = match range.and_then(|range| parse_range(range, size)) {
        None => (0, size),
        Some(None) => return Err(StatusCode::RANGE_NOT_SATISFIABLE),
        Some(Some((start, end))) => {
            let value = HeaderValue::from_str(&format!("bytes {start}-{end}/{size}"));
            response.headers_mut().insert(CONTENT_RANGE, value.map_err(|_| StatusCode::BAD_REQUEST)?);
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            (start, end - start + 1)
        }
    };
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(len));
    Ok((response, start, len))
}

/// First and last byte of a single range (RFC 9110 section 14.1.2). `None`: not of a kind that is honoured,
/// so the whole is sent; `Some(None)`: outside the resource.
fn parse_range(range: &str, size: u64) -> Option<Option<(u64, u64)>> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        let suffix: u64 = last.parse().ok()?;
        return Some((suffix > 0 && size > 0).then(|| (size - suffix.min(size), size - 1)));
    }
    let first: u64 = first.parse().ok()?;
    let last = if last.is_empty() { u64::MAX } else { last.parse().ok()? };
    if last < first {
        return None;
    }
    Some((first < size).then(|| (first, last.min(size - 1))))
}

async fn listing(directory: &Path) -> Result<Response<Content>, StatusCode> {
    let mut entries = tokio::fs::read_dir(directory).await.map_err(status)?;
    let mut names = Vec::new();
    while let Some(entry) = entries.next_entry().await.map_err(status)? {
        let slash = if entry.file_type().await.is_ok_and(|kind| kind.is_dir()) { "/" } else { "" };
        // A name that is not UTF-8 cannot be asked for.
        if let Ok(name) = entry.file_name().into_string() {
            names.push((name, slash));
        }
    }
    names.sort();
    let mut page =
        String::from("<!doctype html>\n<meta charset=\"utf-8\">\n<title>Directory</title>\n<ul>\n");
    for (name, slash) in names {
        let (link, text) = (percent_encoded(&name), html(&name));
        page.push_str(&format!("<li><a href=\"{link}{slash}\">{text}{slash}</a></li>\n"));
    }
    page.push_str("</ul>\n");
    let mut response = Response::new(Content::text(page));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    with_length(&mut response);
    Ok(response)
}

fn html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// An answer that is only its status.
fn plain(status: StatusCode) -> Response<Content> {
    let mut response = Response::new(Content::text(format!("{status}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    with_length(&mut response);
    response
}

/// Says the length of the body, also in the answer to HEAD, which has none.
fn with_length(response: &mut Response<Content>) {
    let len = response.body().len();
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(len));
}

fn status(error: io::Error) -> StatusCode {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StatusCode::NOT_FOUND,
        io::ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn content_type(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()).unwrap_or_default() {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "txt" | "md" => "text/plain; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "wasm" => "application/wasm",
        "pdf" => "application/pdf",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn ask(
        files: &Files,
        method: &str,
        path: &str,
        range: Option<&str>,
    ) -> (StatusCode, String, String) {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(range) = range {
            request = request.header(RANGE, range);
        }
        let response = files.answer(&request.body(()).unwrap()).await;
        let status = response.status();
        let length = response.headers()[CONTENT_LENGTH].to_str().unwrap().to_owned();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, length, String::from_utf8_lossy(&body).into_owned())
    }

    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("brisk-files-{}-{name}", std::process::id()));
        std::fs::create_dir_all(directory.join("root/sub")).unwrap();
        std::fs::write(directory.join("secret"), "outside").unwrap();
        std::fs::write(directory.join("root/a file.txt"), "0123456789").unwrap();
        std::os::unix::fs::symlink("../secret", directory.join("root/link")).unwrap();
        directory
    }

    #[tokio::test]
    async fn files_ranges_heads_and_listings_are_answered() {
        let directory = directory("answers");
        let files = Files::open(&directory.join("root"), true).unwrap();
        let all = (StatusCode::OK, "10".into(), "0123456789".into());
        assert_eq!(ask(&files, "GET", "/a%20file.txt", None).await, all);
        let head = (StatusCode::OK, "10".into(), String::new());
        assert_eq!(ask(&files, "HEAD", "/a%20file.txt", None).await, head);
        let part = (StatusCode::PARTIAL_CONTENT, "3".into(), "234".into());
        assert_eq!(ask(&files, "GET", "/a%20file.txt", Some("bytes=2-4")).await, part);
        let tail = (StatusCode::PARTIAL_CONTENT, "2".into(), "89".into());
        assert_eq!(ask(&files, "GET", "/a%20file.txt", Some("bytes=-2")).await, tail);
        let beyond = ask(&files, "GET", "/a%20file.txt", Some("bytes=10-")).await;
        assert_eq!(beyond.0, StatusCode::RANGE_NOT_SATISFIABLE);
        assert!(ask(&files, "GET", "/", None).await.2.contains("<a href=\"a%20file.txt\">a file.txt</a>"));
        assert_eq!(ask(&files, "GET", "/sub", None).await.0, StatusCode::MOVED_PERMANENTLY);
        assert_eq!(ask(&files, "GET", "/3000", None).await.1, "3000");
        assert_eq!(ask(&files, "POST", "/", None).await.0, StatusCode::METHOD_NOT_ALLOWED);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[tokio::test]
    async fn nothing_outside_the_directory_is_answered() {
        let directory = directory("outside");
        let files = Files::open(&directory.join("root"), false).unwrap();
        for path in
            ["/../secret", "/sub/../../secret", "/%2e%2e/secret", "/..%2fsecret", "//etc/passwd", "/%00"]
        {
            let (status, _, body) = ask(&files, "GET", path, None).await;
            assert!(status.is_client_error() && !body.contains("outside"), "{path}: {status}");
        }
        assert_eq!(ask(&files, "GET", "/link", None).await.0, StatusCode::NOT_FOUND);
        assert_eq!(ask(&files, "GET", "/3000", None).await.0, StatusCode::NOT_FOUND);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
