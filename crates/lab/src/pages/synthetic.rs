//! A page created from a seed, with the sizes and the structure of real ones.
//!
//! Kinds and sizes follow page archives: a third are scripts, half images, a tenth style sheets, the rest
//! fonts. Sizes are log-normal with the medians and 90th percentiles below (bytes on the wire). The
//! document's parser finds most objects while the document arrives; scripts load the others after their
//! computation. Scripts compute one after the other, in the order of the page.

use std::time::Duration;

use brisk_sim::page::{Activity, Page, PageError, Wait, Work};
use rand_core::RngCore;
use serde::Deserialize;

use super::outline::{self, Outline};

/// Parameters of a page.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Its name.
    pub label: String,
    /// Number of objects, the document included.
    pub objects: usize,
    /// Number of hosts.
    pub hosts: usize,
    /// Total length of all responses, bytes.
    pub bytes: u64,
    /// Seed of its structure: the same seed creates the same page.
    #[serde(default)]
    pub seed: u64,
    /// Median computation time of a script, ms; 0 disables computation.
    #[serde(default)]
    pub compute_ms: u64,
}

/// Kind, share of the objects in thousandths, median and 90th percentile of the size.
const KINDS: [(Kind, u32, f64, f64); 4] = [
    (Kind::Script, 340, 5_400.0, 57_000.0),
    (Kind::Style, 110, 4_200.0, 57_000.0),
    (Kind::Font, 50, 24_000.0, 52_000.0),
    (Kind::Image, 500, 3_900.0, 31_000.0),
];

/// Length of the document, bytes: median and 90th percentile of home pages.
const DOCUMENT: (f64, f64) = (20_000.0, 60_000.0);
/// Share of the objects that scripts load instead of the parser, thousandths.
const BY_SCRIPT: u32 = 250;
/// Share of the objects on the document's own host, thousandths.
const OWN_HOST: u32 = 450;
/// The 90th percentile of the standard normal distribution.
const Z90: f64 = 1.2816;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Script,
    Style,
    Font,
    Image,
}

struct SyntheticObject {
    host: usize,
    kind: Kind,
    parent: Option<usize>,
    bytes: u64,
    compute: Duration,
}

impl Recipe {
    /// Creates the page.
    ///
    /// # Errors
    /// [`PageError`] if it has too many objects or hosts, or none.
    pub fn page(&self) -> Result<Page, PageError> {
        let made = self.make();
        let by_parser = made.iter().filter(|object| object.parent == Some(0)).count();
        let mut activities: Vec<Activity> = Vec::new();
        // For each object, the activity that completes it: the computation of a script, otherwise the
        // download. Also the last computation.
        let mut computed: Vec<usize> = Vec::new();
        let mut last: Option<usize> = None;
        let mut seen = 0;
        for object in &made {
            let wait = object.parent.map(|parent| match parent {
                0 => {
                    seen += 1;
                    Wait::Share(0, (1000 * seen / (by_parser + 1)).min(1000) as u16)
                }
                script => Wait::End(computed[script]),
            });
            let index = activities.len();
            let work = Work::Download {
                host: object.host,
                request: 300 + 20 * (object.host as u32 % 8),
                response: object.bytes,
                think: Duration::ZERO,
            };
            activities.push(Activity { work, waits: wait.into_iter().collect() });
            computed.push(index);
            if object.kind == Kind::Script {
                // A page has one thread, so a script waits for its file and for the previous script.
                let waits = std::iter::once(Wait::End(index)).chain(last.map(Wait::End)).collect();
                last = Some(activities.len());
                computed.pop();
                computed.push(activities.len());
                activities.push(Activity { work: Work::Compute(object.compute), waits });
            }
        }
        Page::new(&self.label, activities)
    }

    /// Returns the tree of the page's objects.
    pub fn outline(&self) -> Outline {
        let object = |made: SyntheticObject| outline::Object {
            host: made.host,
            kind: match (made.parent, made.kind) {
                (None, _) => outline::Kind::Document,
                (_, Kind::Script) => outline::Kind::Script,
                (_, Kind::Style) => outline::Kind::Style,
                (_, Kind::Font | Kind::Image) => outline::Kind::Image,
            },
            parent: made.parent,
            redirected: false,
            head: 0,
            body: made.bytes,
            compute: made.compute,
        };
        Outline { label: self.label.clone(), objects: self.make().into_iter().map(object).collect() }
    }

    fn make(&self) -> Vec<SyntheticObject> {
        let Recipe { objects, hosts, bytes, seed, compute_ms, .. } = self;
        if *objects == 0 {
            return Vec::new();
        }
        let mut rng = brisk_link::seeds::rng(*seed, "page");
        let kinds: Vec<Kind> = (1..*objects).map(|_| draw_kind(&mut rng)).collect();
        let mut sizes = vec![log_normal(DOCUMENT.0, DOCUMENT.1, &mut rng)];
        sizes.extend(kinds.iter().map(|kind| draw_size(*kind, &mut rng)));
        let scale = *bytes as f64 / sizes.iter().sum::<f64>();
        let scaled = |size: f64| ((size * scale) as u64).max(50);
        let found: Vec<bool> = kinds.iter().map(|_| rng.next_u32() % 1000 >= BY_SCRIPT).collect();
        let document = SyntheticObject {
            host: 0,
            kind: Kind::Image,
            parent: None,
            bytes: scaled(sizes[0]),
            compute: Duration::ZERO,
        };
        let mut made = vec![document];
        let mut scripts: Vec<usize> = Vec::new();
        for ((kind, size), found) in kinds.iter().zip(&sizes[1..]).zip(&found) {
            let host = if *hosts < 2 || rng.next_u32() % 1000 < OWN_HOST {
                0
            } else {
                1 + rng.next_u32() as usize % (hosts - 1)
            };
            let script = scripts.get(rng.next_u32() as usize % scripts.len().max(1)).copied();
            let mut compute = Duration::ZERO;
            if *kind == Kind::Script {
                scripts.push(made.len());
                let median = *compute_ms as f64;
                let ms = if *compute_ms == 0 { 0.0 } else { log_normal(median, 8.0 * median, &mut rng) };
                compute = Duration::from_micros((ms * 1000.0) as u64);
            }
            let parent = script.filter(|_| !found).unwrap_or(0);
            made.push(SyntheticObject {
                host,
                kind: *kind,
                parent: Some(parent),
                bytes: scaled(*size),
                compute,
            });
        }
        made
    }
}

fn draw_kind(rng: &mut impl RngCore) -> Kind {
    let mut left = rng.next_u32() % 1000;
    for (kind, share, ..) in KINDS {
        if left < share {
            return kind;
        }
        left -= share;
    }
    Kind::Image
}

fn draw_size(kind: Kind, rng: &mut impl RngCore) -> f64 {
    let of = KINDS.iter().find(|(known, ..)| *known == kind);
    of.map_or(1.0, |(_, _, p50, p90)| log_normal(*p50, *p90, rng))
}

/// Draws from the log-normal distribution with this median and 90th percentile (Box and Muller 1958); larger
/// values become twenty times the percentile.
fn log_normal(p50: f64, p90: f64, rng: &mut impl RngCore) -> f64 {
    let uniform = |rng: &mut dyn RngCore| (f64::from(rng.next_u32()) + 1.0) / (f64::from(u32::MAX) + 2.0);
    let (u, v) = (uniform(rng), uniform(rng));
    let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    let sigma = (p90 / p50).ln() / Z90;
    (p50.ln() + sigma * normal).exp().min(20.0 * p90)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe() -> Recipe {
        Recipe { label: "page".to_owned(), objects: 200, hosts: 20, bytes: 2_000_000, seed: 1, compute_ms: 5 }
    }

    #[test]
    fn page_has_the_requested_objects_hosts_and_bytes() {
        let page = recipe().page().unwrap();
        assert_eq!((page.objects(), page.hosts()), (200, 20));
        assert!(page.bytes().abs_diff(2_000_000) < 20_000, "{}", page.bytes());
        assert_eq!(recipe().page(), recipe().page());
        assert_ne!(recipe().page(), Recipe { seed: 2, ..recipe() }.page());
    }

    #[test]
    fn sizes_have_the_given_median_and_percentile() {
        let mut rng = brisk_link::seeds::rng(1, "test");
        let sample = crate::statistics::Sample::new(
            (0..20_000).map(|_| log_normal(4_000.0, 50_000.0, &mut rng)).collect(),
        );
        assert!((sample.quantile(0.5) / 4_000.0 - 1.0).abs() < 0.05);
        assert!((sample.quantile(0.9) / 50_000.0 - 1.0).abs() < 0.1);
    }

    #[test]
    fn page_without_objects_is_refused() {
        assert!(Recipe { objects: 0, ..recipe() }.page().is_err());
        assert_eq!(Recipe { objects: 1, hosts: 1, ..recipe() }.page().unwrap().objects(), 1);
    }
}
