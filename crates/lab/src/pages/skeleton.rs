//! Page skeletons: recorded page loads without their content, one JSON object per line.
//!
//! `res` is a list of objects, each an array: host number, kind, number of the parent (-1: none), how the
//! parent loaded it, start in ms, request bytes, response header bytes, body bytes, status, connection,
//! waiting time in ms. An object that an HTML parser found begins to load while its parent arrives; an object
//! that a script loads, after its parent has arrived. Waiting times include a round trip of the recording, so
//! the simulated server does not use them as think time.

use std::time::Duration;

use brisk_sim::page::{Activity, Page, Wait, Work};
use serde::Deserialize;

use super::outline::{self, Kind, Outline};
use super::{MIN_REQUEST, PagesError, USUAL_REQUEST};

#[derive(Deserialize)]
struct Skeleton {
    label: String,
    res: Vec<Object>,
}

/// host, kind, parent, by, start, request, response headers, body, status, connection, wait
#[derive(Deserialize)]
struct Object(
    usize,
    String,
    i64,
    String,
    #[allow(dead_code, reason = "times of the recording's network")] Option<f64>,
    Option<f64>,
    Option<f64>,
    Option<f64>,
    #[allow(dead_code, reason = "the simulated server always answers")] i64,
    #[allow(dead_code, reason = "connections are the browser's business")] i64,
    #[allow(dead_code, reason = "contains a round trip of the recording")] Option<f64>,
);

/// Reads the page of one line.
///
/// # Errors
/// [`PagesError`] with the line's number.
pub fn read(text: &str, line: usize) -> Result<Page, PagesError> {
    let Skeleton { label, res } =
        serde_json::from_str(text).map_err(|error| PagesError::of_json(line, &error))?;
    let parents: Vec<Option<usize>> =
        res.iter().enumerate().map(|(index, object)| parent_of(index, object.2)).collect();
    let activities = res.iter().zip(&parents).enumerate().map(|(index, (object, parent))| Activity {
        work: Work::Download {
            host: object.0,
            request: bytes(object.5).map_or(USUAL_REQUEST, |bytes| bytes.clamp(MIN_REQUEST, 1 << 16)),
            response: u64::from(bytes(object.6).unwrap_or(0))
                + u64::from(bytes(object.7).unwrap_or(0)).max(1),
            think: Duration::ZERO,
        },
        waits: parent.map(|parent| found_in(parent, index, &res[parent].1, &parents)).into_iter().collect(),
    });
    Ok(Page::new(&label, activities.collect())?)
}

/// Reads the tree of objects of one line.
///
/// # Errors
/// [`PagesError`] with the line's number.
pub fn outline(text: &str, line: usize) -> Result<Outline, PagesError> {
    let Skeleton { label, res } =
        serde_json::from_str(text).map_err(|error| PagesError::of_json(line, &error))?;
    let object = |(index, object): (usize, &Object)| outline::Object {
        host: object.0,
        kind: match object.1.as_str() {
            "html" => Kind::Document,
            "js" => Kind::Script,
            "css" => Kind::Style,
            _ => Kind::Image,
        },
        parent: parent_of(index, object.2),
        redirected: object.3 == "redirect",
        head: bytes(object.6).unwrap_or(0),
        body: u64::from(bytes(object.7).unwrap_or(0)),
        compute: Duration::ZERO,
    };
    Ok(Outline { label, objects: res.iter().enumerate().map(object).collect() })
}

/// Returns the parent if its index is smaller, and the page itself for objects with an unknown parent.
fn parent_of(index: usize, parent: i64) -> Option<usize> {
    match usize::try_from(parent) {
        Ok(parent) if parent < index => Some(parent),
        _ => (index > 0).then_some(0),
    }
}

/// Returns when a child begins to load. A parser finds the children of an HTML object one after the other,
/// while the object arrives.
fn found_in(parent: usize, index: usize, kind: &str, parents: &[Option<usize>]) -> Wait {
    if kind != "html" {
        return Wait::End(parent);
    }
    let siblings = || parents.iter().enumerate().filter(|(_, of)| **of == Some(parent));
    let before = siblings().filter(|(other, _)| *other < index).count();
    Wait::Share(parent, (1000 * (before + 1) / (siblings().count() + 1)) as u16)
}

fn bytes(value: Option<f64>) -> Option<u32> {
    value.filter(|value| *value >= 0.0).map(|value| value as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_of_a_document_are_found_while_it_arrives() {
        let line = r#"{"label":"a","res":[
            [0,"html",-1,"nav",0,300,200,9000,200,0,50],
            [0,"js",0,"parser",10,null,100,5000,200,0,50],
            [1,"img",0,"parser",11,250,100,400,200,1,50],
            [1,"img",1,"script",90,250,100,400,200,1,50]]}"#;
        let page = read(&line.replace('\n', " "), 1).unwrap();
        let waits: Vec<&[Wait]> = page.activities().iter().map(|activity| &activity.waits[..]).collect();
        assert_eq!(waits, [&[][..], &[Wait::Share(0, 333)], &[Wait::Share(0, 666)], &[Wait::End(1)]]);
        assert_eq!((page.hosts(), page.bytes()), (2, 9200 + 5100 + 500 + 500));
    }

    #[test]
    fn invalid_skeleton_is_reported_with_its_line() {
        assert!(
            read("{\"label\":\"a\"}", 7).unwrap_err().to_string().starts_with("line 7: missing field `res`")
        );
        assert!(read("{\"label\":\"a\",\"res\":[[0]]}", 7).is_err());
    }
}
