//! HAR files, the export format of browsers' developer tools.
//!
//! The format records what was fetched and when, but not why. The parent of an object is the object in
//! `_initiator`; if that is unknown, the page in the `Referer` header; otherwise the first object. A child of
//! a document begins to load while the document arrives, any other child after its parent has arrived.

use std::collections::HashMap;
use std::time::Duration;

use brisk_sim::page::{Activity, Page, Wait, Work};
use serde::Deserialize;

use super::outline::{self, Kind, Outline};
use super::{MIN_REQUEST, PagesError, USUAL_REQUEST};

#[derive(Deserialize)]
struct Har {
    log: Log,
}

#[derive(Deserialize)]
struct Log {
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    started_date_time: String,
    request: Request,
    response: Response,
    #[serde(rename = "_initiator")]
    initiator: Option<Initiator>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    url: String,
    #[serde(default)]
    headers: Vec<Header>,
    headers_size: Option<i64>,
    body_size: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    headers_size: Option<i64>,
    body_size: Option<i64>,
    content: Option<Content>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    size: Option<i64>,
    mime_type: Option<String>,
}

#[derive(Deserialize)]
struct Header {
    name: String,
    value: String,
}

#[derive(Deserialize)]
struct Initiator {
    url: Option<String>,
}

/// True if the text is a JSON object with a `log`.
pub fn looks_like(text: &str) -> bool {
    let beginning: String = text.chars().filter(|c| !c.is_whitespace()).take(8).collect();
    beginning.starts_with("{\"log\":")
}

/// Requests in order, with their host and their parent.
struct Recording {
    entries: Vec<Entry>,
    hosts: Vec<usize>,
    parents: Vec<Option<usize>>,
}

/// Reads the page of a HAR.
///
/// # Errors
/// [`PagesError`].
pub fn read(text: &str, label: &str) -> Result<Page, PagesError> {
    let Recording { entries, hosts, parents } = recording(text)?;
    let activities = entries.iter().enumerate().map(|(index, entry)| {
        let wait = parents[index].map(|parent| found_in(parent, index, &entries[parent], &parents));
        Activity { work: entry.download(hosts[index]), waits: wait.into_iter().collect() }
    });
    Ok(Page::new(label, activities.collect())?)
}

/// Reads the tree of objects of a HAR.
///
/// # Errors
/// [`PagesError`].
pub fn outline(text: &str, label: &str) -> Result<Outline, PagesError> {
    let Recording { entries, hosts, parents } = recording(text)?;
    let objects = entries.iter().enumerate().map(|(index, entry)| outline::Object {
        host: hosts[index],
        kind: entry.kind(),
        parent: parents[index],
        redirected: false,
        head: entry.response_head() as u32,
        body: entry.response_body(),
        compute: Duration::ZERO,
    });
    Ok(Outline { label: label.to_owned(), objects: objects.collect() })
}

fn recording(text: &str) -> Result<Recording, PagesError> {
    let Har { log: Log { mut entries } } =
        serde_json::from_str(text).map_err(|error| PagesError::of_json(0, &error))?;
    entries.retain(|entry| entry.request.url.starts_with("http"));
    // RFC 3339 times of one recording sort correctly as text.
    entries.sort_by(|a, b| a.started_date_time.cmp(&b.started_date_time));
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    let mut parents: Vec<Option<usize>> = Vec::new();
    let mut hosts = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let next = numbers.len();
        hosts.push(*numbers.entry(host_of(&entry.request.url)).or_insert(next));
        let named =
            [entry.initiator.as_ref().and_then(|initiator| initiator.url.as_deref()), entry.referer()];
        let parent = named.into_iter().flatten().find_map(|url| known.get(url).copied());
        parents.push(parent.or_else(|| (index > 0).then_some(0)));
        known.entry(&entry.request.url).or_insert(index);
    }
    Ok(Recording { entries, hosts, parents })
}

impl Entry {
    fn referer(&self) -> Option<&str> {
        let referer = |header: &&Header| header.name.eq_ignore_ascii_case("referer");
        self.request.headers.iter().find(referer).map(|header| header.value.as_str())
    }

    fn mime_type(&self) -> &str {
        let kind = self.response.content.as_ref().and_then(|content| content.mime_type.as_deref());
        kind.unwrap_or_default()
    }

    fn kind(&self) -> Kind {
        match self.mime_type() {
            kind if kind.starts_with("text/html") => Kind::Document,
            kind if kind.contains("javascript") => Kind::Script,
            kind if kind.starts_with("text/css") => Kind::Style,
            _ => Kind::Image,
        }
    }

    fn response_head(&self) -> u64 {
        known(self.response.headers_size).unwrap_or(0).min(1 << 16)
    }

    fn response_body(&self) -> u64 {
        let content = || known(self.response.content.as_ref().and_then(|content| content.size));
        known(self.response.body_size).or_else(content).unwrap_or(0)
    }

    fn download(&self, host: usize) -> Work {
        let Request { headers_size, body_size, .. } = &self.request;
        let request = known(*headers_size)
            .map_or(u64::from(USUAL_REQUEST), |headers| headers + known(*body_size).unwrap_or(0));
        Work::Download {
            host,
            request: request.clamp(MIN_REQUEST.into(), 1 << 16) as u32,
            response: (known(self.response.headers_size).unwrap_or(0) + self.response_body()).max(1),
            think: Duration::ZERO,
        }
    }
}

/// Returns a size; -1 means unknown.
fn known(size: Option<i64>) -> Option<u64> {
    size.and_then(|size| u64::try_from(size).ok())
}

/// Returns when a child begins to load. A parser finds the children of a document one after the other, while
/// the document arrives.
fn found_in(parent: usize, index: usize, of: &Entry, parents: &[Option<usize>]) -> Wait {
    if of.kind() != Kind::Document {
        return Wait::End(parent);
    }
    let siblings = || parents.iter().enumerate().filter(|(_, of)| **of == Some(parent));
    let before = siblings().filter(|(other, _)| *other < index).count();
    Wait::Share(parent, (1000 * (before + 1) / (siblings().count() + 1)) as u16)
}

/// Returns scheme, name and port, which identify a connection's host.
fn host_of(url: &str) -> &str {
    let authority = url.find("://").map_or(0, |at| at + 3);
    let end = url[authority..].find(['/', '?', '#']).map_or(url.len(), |at| authority + at);
    &url[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_becomes_a_page() {
        let entry = |time: &str, url: &str, body: i64, kind: &str, more: &str| {
            format!(
                r#"{{"startedDateTime":"2026-01-01T00:00:{time}Z","request":{{"url":"{url}","headersSize":300,"bodySize":0,"headers":[{{"name":"Referer","value":"http://a/"}}]}},
                "response":{{"headersSize":100,"bodySize":{body},"content":{{"size":77,"mimeType":"{kind}"}}}}{more}}}"#
            )
        };
        let text = format!(
            r#" {{ "log": {{ "entries": [{},{},{}] }} }}"#,
            entry("02.5", "http://b/i.png", -1, "image/png", r#","_initiator":{"url":"http://a/s.js"}"#),
            entry("00.0", "http://a/", 5000, "text/html; charset=utf-8", ""),
            entry("01.0", "http://a/s.js", 900, "text/javascript", "")
        );
        assert!(looks_like(&text));
        let page = read(&text, "mine").unwrap();
        let waits: Vec<&[Wait]> = page.activities().iter().map(|activity| &activity.waits[..]).collect();
        assert_eq!(waits, [&[][..], &[Wait::Share(0, 500)], &[Wait::End(1)]]);
        assert_eq!((page.hosts(), page.bytes()), (2, 5100 + 1000 + 177));
    }

    #[test]
    fn damage_is_an_error() {
        assert!(read("{\"log\":{\"entries\":[{}]}}", "x").unwrap_err().to_string().contains("missing field"));
        assert!(
            read("{\"log\":{\"entries\":[]}}", "x").unwrap_err().to_string().contains("nothing to download")
        );
    }
}
