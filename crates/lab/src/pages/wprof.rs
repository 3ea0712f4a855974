//! Dependency graphs with computation times, measured by WProf, one JSON object per line.
//!
//! `objs` are arrays: host number, kind, when computation begins (1: with the first bytes, -1: when the
//! object has arrived), computation times in ms, bytes. `deps` are triples: an activity, an activity that
//! waits for it, and a time: -1 if it waits for the end, otherwise ms after the beginning. `3d` is the
//! download of object 3, `3c1` its second computation. `start` is the activity that begins the page. The
//! computation times are those of a computer of 2013.

use std::collections::BTreeMap;
use std::time::Duration;

use brisk_sim::page::{Activity, Page, Wait, Work};
use serde::Deserialize;

use super::{PagesError, USUAL_REQUEST};

#[derive(Deserialize)]
struct Graph {
    label: String,
    start: String,
    objs: Vec<Object>,
    deps: Vec<(String, String, f64)>,
}

/// host, kind, when computation begins, computation times, bytes
#[derive(Deserialize)]
struct Object(
    usize,
    #[allow(dead_code, reason = "all kinds are downloaded in the same way")] String,
    i64,
    Vec<f64>,
    f64,
);

/// Share of an object in its first chunk, thousandths.
const FIRST_CHUNK: u16 = 1;

/// Reads the page of one line.
///
/// # Errors
/// [`PagesError`] with the line's number.
pub fn read(text: &str, line: usize) -> Result<Page, PagesError> {
    let Graph { label, start, objs, deps } =
        serde_json::from_str(text).map_err(|error| PagesError::of_json(line, &error))?;
    let mut names = BTreeMap::new();
    let mut activities = Vec::new();
    for (number, Object(host, _, begins, computations, bytes)) in objs.into_iter().enumerate() {
        let download = activities.len();
        names.insert(format!("{number}d"), download);
        let response = (bytes.max(1.0)) as u64;
        let work = Work::Download { host, request: USUAL_REQUEST, response, think: Duration::ZERO };
        activities.push(Activity { work, waits: Vec::new() });
        for (nth, ms) in computations.into_iter().enumerate() {
            names.insert(format!("{number}c{nth}"), activities.len());
            let with_first_bytes = begins == 1 && nth == 0;
            let wait =
                if with_first_bytes { Wait::Share(download, FIRST_CHUNK) } else { Wait::End(download) };
            // `deps` lists the predecessors of later computations; the first computation waits for its
            // object.
            let waits = if nth == 0 { vec![wait] } else { Vec::new() };
            activities.push(Activity { work: Work::Compute(milliseconds(ms)), waits });
        }
    }
    let find = |name: &String| {
        let unknown =
            || PagesError::Shape { line, what: format!("'{name}' is not an activity of an object") };
        names.get(name).copied().ok_or_else(unknown)
    };
    find(&start)?;
    for (first, then, after) in &deps {
        let (first, then) = (find(first)?, find(then)?);
        let wait = if *after < 0.0 { Wait::End(first) } else { Wait::Begun(first, milliseconds(*after)) };
        activities[then].waits.push(wait);
    }
    Ok(Page::new(&label, activities)?)
}

fn milliseconds(ms: f64) -> Duration {
    Duration::from_micros((ms.max(0.0) * 1000.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_becomes_activities() {
        let line = r#"{"label":"a","start":"0d","objs":[[0,"html",1,[10.5,3],2000],[1,"js",-1,[7],300]],"deps":[["0c0","1d",-1],["1c0","0c1",2.5]]}"#;
        let page = read(line, 1).unwrap();
        let waits: Vec<&[Wait]> = page.activities().iter().map(|activity| &activity.waits[..]).collect();
        let begun = Wait::Begun(4, Duration::from_micros(2500));
        assert_eq!(waits, [&[][..], &[Wait::Share(0, 1)], &[begun], &[Wait::End(1)], &[Wait::End(3)]]);
        assert_eq!(page.activities()[1].work, Work::Compute(Duration::from_micros(10_500)));
    }

    #[test]
    fn missing_activity_is_named() {
        let line = r#"{"label":"a","start":"0d","objs":[[0,"html",1,[],2000]],"deps":[["0d","1d",-1]]}"#;
        assert_eq!(read(line, 3).unwrap_err().to_string(), "line 3: '1d' is not an activity of an object");
    }
}
