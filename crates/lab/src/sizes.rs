//! Response sizes: one size for all, or a cumulative distribution.
//!
//! A distribution is a CSV file with one point per line, `bytes,cumulative share`. Sizes and shares must not
//! decrease, and the last share must be 1. Between two points sizes are evenly distributed. A first line that
//! is not a number is a heading. Empty lines and lines that begin with `#` are skipped.

use rand_core::RngCore;
use thiserror::Error;

/// Sizes of responses.
#[derive(Clone, PartialEq, Debug)]
pub enum Sizes {
    /// Every response has this many bytes.
    Fixed(u64),
    /// Drawn from a distribution: points of (bytes, cumulative share).
    Distribution(Vec<(f64, f64)>),
}

/// Reason why a text is not a distribution of sizes.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SizesError {
    /// A line cannot be read.
    #[error("line {line}: '{text}' is not 'bytes,cumulative share' such as 10000,0.15")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// Text of the line.
        text: String,
    },
    /// Sizes or shares decrease from one line to the next.
    #[error("line {line}: sizes and shares must not fall from line to line")]
    Falls {
        /// Line number, from 1.
        line: usize,
    },
    /// There is no line with numbers.
    #[error("no sizes: give lines of 'bytes,cumulative share'")]
    Empty,
    /// The shares end below or above 1.
    #[error("the last cumulative share must be 1, not {0}")]
    Open(String),
}

impl Sizes {
    /// Parses a distribution from CSV.
    ///
    /// # Errors
    /// The first invalid line.
    pub fn parse_csv(text: &str) -> Result<Sizes, SizesError> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let mut heading_allowed = true;
        for (index, text) in text.lines().enumerate() {
            let (line, text) = (index + 1, text.trim());
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let heading = std::mem::take(&mut heading_allowed);
            let Some((bytes, share)) = point(text) else {
                if heading && !text.starts_with(|first: char| first.is_ascii_digit() || first == '-') {
                    continue;
                }
                return Err(SizesError::Line { line, text: text.to_owned() });
            };
            let (last_bytes, last_share) = points.last().copied().unwrap_or((0.0, 0.0));
            if bytes < last_bytes || share < last_share {
                return Err(SizesError::Falls { line });
            }
            points.push((bytes, share));
        }
        match points.last() {
            None => Err(SizesError::Empty),
            Some((_, share)) if (share - 1.0).abs() > 1e-6 => Err(SizesError::Open(share.to_string())),
            Some(_) => Ok(Sizes::Distribution(points)),
        }
    }

    /// Returns the distribution of a sample, with each size as often as it occurs. `None` for an empty
    /// sample.
    pub fn of_sample(mut sizes: Vec<u64>) -> Option<Sizes> {
        sizes.sort_unstable();
        let count = sizes.len() as f64;
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (index, bytes) in sizes.iter().enumerate() {
            let (bytes, below, here) = (*bytes as f64, index as f64 / count, (index + 1) as f64 / count);
            match points.last_mut() {
                Some((last, share)) if *last == bytes => *share = here,
                // Two points of equal size make a step, so that no size between two sizes of the sample is
                // drawn.
                _ => points.extend([(bytes, below), (bytes, here)]),
            }
        }
        (!points.is_empty()).then_some(Sizes::Distribution(points))
    }

    /// Draws the size of one response in bytes, at least 1.
    pub fn draw(&self, rng: &mut impl RngCore) -> u64 {
        match self {
            Sizes::Fixed(bytes) => (*bytes).max(1),
            Sizes::Distribution(points) => {
                let share = rng.next_u32() as f64 / f64::from(u32::MAX);
                (at_share(points, share).round() as u64).max(1)
            }
        }
    }
}

fn point(line: &str) -> Option<(f64, f64)> {
    let (bytes, share) = line.split_once([',', ';', '\t'])?;
    let number =
        |text: &str| text.trim().parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
    Some((number(bytes)?, number(share)?))
}

/// Returns the size below which `share` of the responses are.
fn at_share(points: &[(f64, f64)], share: f64) -> f64 {
    let above = points.partition_point(|(_, cumulative)| *cumulative < share);
    let Some((high, high_share)) = points.get(above).copied() else {
        return points.last().map_or(0.0, |(bytes, _)| *bytes);
    };
    let Some((low, low_share)) = above.checked_sub(1).and_then(|below| points.get(below)).copied() else {
        return high;
    };
    if high_share > low_share {
        low + (high - low) * (share - low_share) / (high_share - low_share)
    } else {
        high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_read_with_heading_and_comments() {
        let sizes =
            Sizes::parse_csv("bytes,cum_fraction\n# from a paper\n0,0\n\n10000,0.15\n20000,1\n").unwrap();
        assert_eq!(sizes, Sizes::Distribution(vec![(0.0, 0.0), (10_000.0, 0.15), (20_000.0, 1.0)]));
    }

    #[test]
    fn error_in_sizes_names_the_line() {
        let error = |text| Sizes::parse_csv(text).unwrap_err();
        assert_eq!(error("1,0.5\n2,x"), SizesError::Line { line: 2, text: "2,x".to_owned() });
        assert_eq!(error("2,0.5\n1,1"), SizesError::Falls { line: 2 });
        assert_eq!(error("h\nh2"), SizesError::Line { line: 2, text: "h2".to_owned() });
        assert_eq!(error("h\n"), SizesError::Empty);
        assert_eq!(error("1,0.5"), SizesError::Open("0.5".to_owned()));
    }

    #[test]
    fn sizes_are_drawn_as_often_as_they_occur_in_the_sample() {
        assert_eq!(Sizes::of_sample(vec![]), None);
        let sizes = Sizes::of_sample(vec![700, 100, 100, 700, 9]).unwrap();
        let mut rng = brisk_link::seeds::rng(2, "sizes");
        let drawn: Vec<u64> = (0..10_000).map(|_| sizes.draw(&mut rng)).collect();
        for (size, expected) in [(9, 2_000), (100, 4_000), (700, 4_000)] {
            let found = drawn.iter().filter(|drawn| **drawn == size).count();
            assert!(found.abs_diff(expected) < 200, "{size}: {found}");
        }
    }

    #[test]
    fn draws_follow_the_distribution() {
        let sizes = Sizes::parse_csv("100,0.5\n200,0.5\n400,1").unwrap();
        let mut rng = brisk_link::seeds::rng(1, "sizes");
        let drawn: Vec<u64> = (0..10_000).map(|_| sizes.draw(&mut rng)).collect();
        let small = drawn.iter().filter(|size| **size == 100).count();
        assert!((4_800..5_200).contains(&small), "{small}");
        assert!(drawn.iter().all(|size| *size == 100 || (200..=400).contains(size)));
        assert_eq!(Sizes::Fixed(0).draw(&mut rng), 1);
    }
}
