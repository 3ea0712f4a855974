//! Pages to load: read from a file, or created from a seed.
//!
//! | module | content |
//! |---|---|
//! | [`synthetic`] | a page with the sizes and the structure of real ones, created from a seed |
//! | [`har`] | HAR files, the export format of browsers' developer tools |
//! | [`skeleton`] | pages without their content: objects with sizes, parents and waiting times, JSON lines |
//! | [`outline`] | the tree of a page's objects, for a browser to load again |
//! | [`wprof`] | dependency graphs with computation times, measured by WProf, JSON lines |

use brisk_sim::page::{Page, PageError};
use thiserror::Error;

pub mod har;
pub mod outline;
pub mod skeleton;
pub mod synthetic;
pub mod wprof;

const USUAL_REQUEST: u32 = 400;
/// Minimum length of a request for the simulated server, bytes.
const MIN_REQUEST: u32 = 16;

/// Reason why a file is not a page.
#[derive(Debug, Error)]
pub enum PagesError {
    /// The text is not JSON, or does not have the expected structure.
    #[error("line {line}: {what}")]
    Shape {
        /// Line number, from 1.
        line: usize,
        /// The error.
        what: String,
    },
    /// The described page cannot be loaded.
    #[error(transparent)]
    Page(#[from] PageError),
    /// There is no page in the file.
    #[error("no page in it: give a HAR file, or JSON lines of page skeletons or WProf graphs")]
    Nothing,
}

impl PagesError {
    fn of_json(line: usize, error: &serde_json::Error) -> PagesError {
        let line = line.max(error.line());
        PagesError::Shape { line, what: error.to_string() }
    }
}

/// Reads the pages of a file: a HAR, or one page per line in one of two formats.
///
/// # Errors
/// [`PagesError`]: the first invalid line.
pub fn read(text: &str, label: &str) -> Result<Vec<Page>, PagesError> {
    if har::looks_like(text) {
        return Ok(vec![har::read(text, label)?]);
    }
    let mut pages = Vec::new();
    for (index, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        pages.push(match text.contains("\"deps\"") {
            true => wprof::read(text, index + 1)?,
            false => skeleton::read(text, index + 1)?,
        });
    }
    if pages.is_empty() { Err(PagesError::Nothing) } else { Ok(pages) }
}

/// Reads the outlines of a file of page skeletons, one per line, or of a HAR. Dependency graphs are skipped:
/// they have no tree of objects.
///
/// # Errors
/// [`PagesError`]: the first invalid line.
pub fn outlines(text: &str, label: &str) -> Result<Vec<outline::Outline>, PagesError> {
    if har::looks_like(text) {
        return Ok(vec![har::outline(text, label)?]);
    }
    let lines = text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty());
    let skeletons = lines.filter(|(_, text)| !text.contains("\"deps\""));
    let outlines: Vec<_> =
        skeletons.map(|(index, text)| skeleton::outline(text, index + 1)).collect::<Result<_, _>>()?;
    if outlines.is_empty() { Err(PagesError::Nothing) } else { Ok(outlines) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_in_a_page_names_its_line() {
        let error = |text: &str| read(text, "x").unwrap_err().to_string();
        assert_eq!(
            error("\n\n"),
            "no page in it: give a HAR file, or JSON lines of page skeletons or WProf graphs"
        );
        assert!(error("{\"label\":\"a\",\"res\":[]}\nnonsense").contains("nothing to download"));
        assert!(error("\nnonsense").starts_with("line 2: "));
    }
}
