//! Chromium through chromedriver's plain HTTP interface (W3C WebDriver): starts it, loads pages, measures,
//! takes screenshots.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::BrowseError;

/// Time limit until chromedriver listens, and for each of its answers except page loads.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// Size of the window, CSS pixels.
const WINDOW: &str = "1280,900";

/// Flags of every browser. Without the disabled features at the end, the browser would try https first for
/// `http://`.
const FLAGS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable",
];

/// Script that returns the browser's measurements of a load: page-load time and first contentful paint, ms; 0
/// if there was no paint.
const MEASURE: &str = "const t=performance.timing,p=performance.getEntriesByName('first-contentful-paint')[0];\
return [t.loadEventEnd?t.loadEventEnd-t.navigationStart:0,p?p.startTime:0]";

#[derive(Debug)]
pub(super) struct Driver {
    child: Child,
    port: u16,
    profiles: PathBuf,
    sessions: u32,
}

/// Times of a load, ms.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Timing {
    /// `loadEventEnd - navigationStart`.
    pub(super) load: f64,
    /// First contentful paint; `None` if nothing was painted.
    pub(super) paint: Option<f64>,
}

/// A browser with a profile of its own.
#[derive(Debug)]
pub(super) struct Session {
    id: String,
    profile: PathBuf,
}

impl Driver {
    /// Starts chromedriver in the namespace of the calling thread, in its own process group; profiles are
    /// stored below `profiles`.
    pub(super) async fn start(program: &Path, profiles: &Path) -> Result<Driver, BrowseError> {
        let said = profiles.join("chromedriver.log");
        let output = std::fs::File::create(&said)?;
        let child = Command::new(program)
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| BrowseError::Missing { program: program.display().to_string(), error })?;
        let mut driver = Driver { child, port: 0, profiles: profiles.to_owned(), sessions: 0 };
        for _ in 0..TIME_LIMIT.as_millis() / 50 {
            let text = std::fs::read_to_string(&said)?;
            if let Some(port) = port_of(&text) {
                driver.port = port;
                return Ok(driver);
            }
            if driver.child.try_wait()?.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(BrowseError::Driver("chromedriver does not listen".to_owned()))
    }

    /// Starts a browser that resolves hosts by `rules`.
    pub(super) async fn open(&mut self, browser: &Path, rules: &str) -> Result<Session, BrowseError> {
        self.sessions += 1;
        let profile = self.profiles.join(format!("profile-{}", self.sessions));
        let mut flags: Vec<String> = FLAGS.iter().map(|flag| (*flag).to_owned()).collect();
        flags.push(format!("--window-size={WINDOW}"));
        flags.push(format!("--user-data-dir={}", profile.display()));
        flags.push(format!("--host-resolver-rules={rules}"));
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": browser, "args": flags},
        }}});
        let value = self.call(Method::POST, "/session", Some(wanted), TIME_LIMIT).await?;
        match value["sessionId"].as_str() {
            Some(id) => Ok(Session { id: id.to_owned(), profile }),
            None => Err(BrowseError::Driver(format!("no session in {value}"))),
        }
    }

    /// Loads a page and waits for its load event, `within` at most.
    pub(super) async fn load(
        &self,
        session: &Session,
        url: &str,
        within: Duration,
    ) -> Result<Timing, BrowseError> {
        let path = |what: &str| format!("/session/{}/{what}", session.id);
        let limit = json!({"pageLoad": within.as_millis() as u64});
        self.call(Method::POST, &path("timeouts"), Some(limit), TIME_LIMIT).await?;
        self.call(Method::POST, &path("url"), Some(json!({"url": url})), within + TIME_LIMIT).await?;
        let script = json!({"script": MEASURE, "args": []});
        // chromedriver answers when the document is complete; handlers of the load event may still run.
        for _ in 0..40 {
            let value =
                self.call(Method::POST, &path("execute/sync"), Some(script.clone()), TIME_LIMIT).await?;
            let at = |index: usize| value[index].as_f64().filter(|ms| *ms > 0.0);
            if let Some(load) = at(0) {
                return Ok(Timing { load, paint: at(1) });
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        Err(BrowseError::Driver("the page has no load event".to_owned()))
    }

    /// Returns a screenshot of the window as PNG.
    pub(super) async fn photograph(&self, session: &Session) -> Result<Vec<u8>, BrowseError> {
        let path = format!("/session/{}/screenshot", session.id);
        let value = self.call(Method::GET, &path, None, TIME_LIMIT).await?;
        let text = value.as_str().unwrap_or_default();
        STANDARD.decode(text).map_err(|error| BrowseError::Driver(format!("no picture: {error}")))
    }

    /// Ends a browser and deletes its profile.
    pub(super) async fn close(&self, session: Session) {
        let path = format!("/session/{}", session.id);
        // The browser may have ended already. `drop` ends remaining processes.
        let _ = self.call(Method::DELETE, &path, None, TIME_LIMIT).await;
        let _ = std::fs::remove_dir_all(&session.profile);
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        within: Duration,
    ) -> Result<Value, BrowseError> {
        let exchange = self.exchange(method, path, body);
        match tokio::time::timeout(within, exchange).await {
            Ok(result) => result,
            Err(_) => Err(BrowseError::Driver(format!("no answer to {path} in {} s", within.as_secs()))),
        }
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, BrowseError> {
        let refused = |error: hyper::Error| BrowseError::Driver(error.to_string());
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(refused)?;
        tokio::spawn(connection);
        let body = body.map(|value| value.to_string()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, format!("127.0.0.1:{}", self.port))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| BrowseError::Driver(error.to_string()))?;
        let response = sender.send_request(request).await.map_err(refused)?;
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(refused)?.to_bytes();
        let mut answer: Value = serde_json::from_slice(&bytes)
            .map_err(|error| BrowseError::Driver(format!("{path}: {error}")))?;
        let value = answer["value"].take();
        match status.is_success() {
            true => Ok(value),
            false => {
                Err(BrowseError::Driver(first_line(value["message"].as_str().unwrap_or("no reason given"))))
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Ends the process group: chromedriver, and the browsers that are still running.
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// Returns the port in `ChromeDriver was started successfully on port 38473.`
fn port_of(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("started successfully on port ")?;
    rest.split_once(|c: char| !c.is_ascii_digit())?.0.parse().ok()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// Returns the path of `program`, or an error that says how to install it.
pub(super) fn find(program: &str) -> Result<PathBuf, BrowseError> {
    let missing = || BrowseError::Missing {
        program: program.to_owned(),
        error: io::Error::new(io::ErrorKind::NotFound, "not found in PATH"),
    };
    let path = std::env::var_os("PATH").ok_or_else(missing)?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file()).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_read_from_the_output_of_chromedriver() {
        let said =
            "Starting ChromeDriver 1 on port 0\nChromeDriver was started successfully on port 38473.\n";
        assert_eq!(port_of(said), Some(38473));
        assert_eq!(
            port_of("ChromeDriver was started successfully on port 38"),
            None,
            "the line is not complete"
        );
    }
}
