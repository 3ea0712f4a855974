//! The results on disk: a CSV file for each arm of a cell, with a row for each transaction.
//!
//! ```text
//! DIR/PLAN/run.json                plan, seed, number, shard and build
//! DIR/PLAN/CELL/0-tcp.csv          one row for each transaction
//! DIR/PLAN/CELL/0-tcp.svg          a diagram of the first one, if the plan requests it
//! DIR/PLAN/CELL.real.json          results of contestants in real time
//! DIR/PLAN/plan.toml               the plan of these results, in case nothing was run in virtual time
//! ```
//!
//! A file appears when it is complete, so a run can be interrupted and resumed. Transaction `i` of a seed is
//! the same in every shard and on every machine, so the rows of shards from different machines can be merged.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::plan::{Cell, Plan};
use crate::real::report::RealReport;
use crate::row::Row;

/// Shard `index` of `of`: the transactions whose number divided by `of` has the remainder `index - 1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shard {
    /// Index from 1 to `of`.
    pub index: u64,
    /// Number of shards.
    pub of: u64,
}

impl Shard {
    /// All transactions.
    pub const WHOLE: Shard = Shard { index: 1, of: 1 };

    /// True if the shard has this transaction.
    pub fn has(&self, transaction: u64) -> bool {
        transaction % self.of == self.index - 1
    }
}

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((index, of)) if (1..=of).contains(&index) => Ok(Shard { index, of }),
            _ => Err(format!("'{text}' is not a shard: use 1/4 to 4/4 for four of them")),
        }
    }
}

/// The identity of a run. Results of two runs are never mixed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunId {
    /// Name of the plan.
    pub plan: String,
    /// The plan's text, so that a report does not need its file.
    pub text: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Transactions of each arm in a cell, over all shards.
    pub n: u64,
    /// Digest of the pages in the options, empty without pages.
    #[serde(default)]
    pub pages: String,
    /// The stored shard.
    pub shard: Shard,
    /// Version of the program.
    pub version: String,
    /// Digest of the program, so that results of another build are not used.
    pub build: String,
}

/// Reason why results cannot be read, written or merged.
#[derive(Debug, Error)]
pub enum StoreError {
    /// An error of the file system.
    #[error("{path}: {error}")]
    Io {
        /// The file or directory.
        path: String,
        /// The error.
        error: std::io::Error,
    },
    /// A file has another format.
    #[error("{path}: {what}; remove the directory of the plan to run it again")]
    Damaged {
        /// The file.
        path: String,
        /// The error.
        what: String,
    },
    /// The directory contains another run.
    #[error("{path}: holds results of another {what}; use another --out, or remove it")]
    OtherRun {
        /// The directory.
        path: String,
        /// The part that differs.
        what: &'static str,
    },
    /// Shards overlap, or some are missing.
    #[error("plan {plan}: {what}")]
    Shards {
        /// Name of the plan.
        plan: String,
        /// The error.
        what: String,
    },
}

/// The results of one run of one plan.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
    /// The identity of the run.
    pub id: RunId,
}

impl Store {
    /// Opens or creates the results of `id` below `root`.
    ///
    /// # Errors
    /// [`StoreError`], for example if another run's results are there.
    pub fn open(root: &Path, id: RunId) -> Result<Store, StoreError> {
        let directory = root.join(&id.plan);
        let marker = directory.join("run.json");
        if marker.exists() {
            let there = read_id(&marker)?;
            let differs = [
                (there.text != id.text, "version of the plan"),
                (there.seed != id.seed, "seed"),
                (there.n != id.n, "number of transactions"),
                (there.pages != id.pages, "file of pages"),
                (there.shard != id.shard, "shard"),
                (there.version != id.version || there.build != id.build, "build of brisk"),
            ];
            if let Some((_, what)) = differs.into_iter().find(|(differs, _)| *differs) {
                return Err(StoreError::OtherRun { path: directory.display().to_string(), what });
            }
        } else {
            let text = serde_json::to_string_pretty(&id).map_err(|error| damaged(&marker, error))?;
            write_whole(&marker, (text + "\n").as_bytes())?;
        }
        Ok(Store { directory, id })
    }

    /// Returns every run below `root`, sorted by name.
    ///
    /// # Errors
    /// [`StoreError`]; a directory without a run is skipped.
    pub fn all(root: &Path) -> Result<Vec<Store>, StoreError> {
        let refused = |error| StoreError::Io { path: root.display().to_string(), error };
        let mut found = Vec::new();
        for entry in fs::read_dir(root).map_err(refused)? {
            let directory = entry.map_err(refused)?.path();
            let marker = directory.join("run.json");
            let id = if marker.exists() { Some(read_id(&marker)?) } else { only_real(&directory)? };
            found.extend(id.map(|id| Store { directory, id }));
        }
        found.sort_by(|a, b| a.id.plan.cmp(&b.id.plan));
        Ok(found)
    }

    /// Returns the plan of the run.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the stored text of the plan was changed.
    pub fn plan(&self) -> Result<Plan, StoreError> {
        let marker = self.directory.join("run.json");
        Plan::parse(&self.id.plan, &self.id.text).map_err(|error| damaged(&marker, error))
    }

    /// Returns the results of a cell, arm by arm; `None` if they are not complete.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] with the file and the line.
    pub fn read(&self, cell: &Cell) -> Result<Option<Vec<Vec<Row>>>, StoreError> {
        let mut arms = Vec::new();
        for file in self.files(cell) {
            if !file.exists() {
                return Ok(None);
            }
            let mut reader = csv::Reader::from_path(&file).map_err(|error| damaged(&file, error))?;
            let rows: Vec<Row> =
                reader.deserialize().collect::<Result<_, _>>().map_err(|error| damaged(&file, error))?;
            let wanted = (0..self.id.n).filter(|index| self.id.shard.has(*index));
            if !rows.iter().map(|row| row.index).eq(wanted) {
                return Err(damaged(&file, "rows are missing, or out of order"));
            }
            arms.push(rows);
        }
        Ok(Some(arms))
    }

    /// Stores the results of a cell, arm by arm.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn write(&self, cell: &Cell, arms: &[Vec<Row>]) -> Result<(), StoreError> {
        for (file, rows) in self.files(cell).iter().zip(arms) {
            let mut writer = csv::Writer::from_writer(Vec::new());
            for row in rows {
                writer.serialize(row).map_err(|error| damaged(file, error))?;
            }
            let bytes = writer.into_inner().map_err(|error| damaged(file, error))?;
            write_whole(file, &bytes)?;
        }
        Ok(())
    }

    /// Stores a diagram for each arm of a cell.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn write_drawings(&self, cell: &Cell, drawings: &[String]) -> Result<(), StoreError> {
        let files = self.files(cell).into_iter().map(|file| file.with_extension("svg"));
        files.zip(drawings).try_for_each(|(file, drawing)| write_whole(&file, drawing.as_bytes()))
    }

    /// Returns the diagrams of a cell, arm by arm; empty if there are none.
    pub fn drawings(&self, cell: &Cell) -> Vec<String> {
        let read = |file: PathBuf| fs::read_to_string(file.with_extension("svg")).ok();
        self.files(cell).into_iter().map(read).collect::<Option<_>>().unwrap_or_default()
    }

    /// Returns the results of contestants on the cell in real time, if any.
    ///
    /// # Errors
    /// [`StoreError`] if they cannot be read.
    pub fn real(&self, cell: &Cell) -> Result<Option<RealReport>, StoreError> {
        let file = real_file(&self.directory, cell);
        match fs::read_to_string(&file) {
            Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| damaged(&file, error)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::Io { path: file.display().to_string(), error }),
        }
    }

    fn files(&self, cell: &Cell) -> Vec<PathBuf> {
        let name = |(index, arm): (usize, &String)| {
            let plain = |c: char| if c.is_ascii_alphanumeric() || c == '+' || c == '=' { c } else { '-' };
            format!("{index}-{}.csv", arm.chars().map(plain).collect::<String>())
        };
        let directory = self.directory.join(&cell.name);
        cell.arms.iter().enumerate().map(|arm| directory.join(name(arm))).collect()
    }
}

/// Stores the results of contestants on a cell in real time; `text` is the text of the plan.
///
/// # Errors
/// [`StoreError`].
pub fn write_real(
    root: &Path,
    plan: &Plan,
    text: &str,
    cell: &Cell,
    real: &RealReport,
) -> Result<(), StoreError> {
    let directory = root.join(&plan.name);
    let file = real_file(&directory, cell);
    let json = serde_json::to_string(real).map_err(|error| damaged(&file, error))?;
    write_whole(&directory.join(PLAN_FILE), text.as_bytes())?;
    write_whole(&file, (json + "\n").as_bytes())
}

/// File with the plan of results in real time.
const PLAN_FILE: &str = "plan.toml";

fn real_file(directory: &Path, cell: &Cell) -> PathBuf {
    directory.join(format!("{}.real.json", cell.name))
}

/// Returns a plan that was run in real time only, without stored transactions.
fn only_real(directory: &Path) -> Result<Option<RunId>, StoreError> {
    let file = directory.join(PLAN_FILE);
    let Some(name) = directory.file_name().filter(|_| file.exists()) else { return Ok(None) };
    let text = fs::read_to_string(&file)
        .map_err(|error| StoreError::Io { path: file.display().to_string(), error })?;
    let plan = name.to_string_lossy().into_owned();
    let (version, build) = (env!("CARGO_PKG_VERSION").to_owned(), String::new());
    Ok(Some(RunId { plan, text, seed: 1, n: 0, pages: String::new(), shard: Shard::WHOLE, version, build }))
}

/// Merges the shards of each plan.
///
/// # Errors
/// [`StoreError`] if shards belong to different runs, are missing or occur twice.
pub fn merge(from: &[PathBuf], to: &Path) -> Result<Vec<Store>, StoreError> {
    let mut shards: Vec<Store> = Vec::new();
    for root in from {
        shards.extend(Store::all(root)?);
    }
    shards.sort_by(|a, b| (&a.id.plan, a.id.shard.index).cmp(&(&b.id.plan, b.id.shard.index)));
    shards.chunk_by(|a, b| a.id.plan == b.id.plan).map(|shards| merge_plan(shards, to)).collect()
}

fn merge_plan(shards: &[Store], to: &Path) -> Result<Store, StoreError> {
    let first = &shards[0];
    let refused = |what: String| StoreError::Shards { plan: first.id.plan.clone(), what };
    let whole = RunId { shard: Shard::WHOLE, ..first.id.clone() };
    for other in shards {
        if (RunId { shard: Shard::WHOLE, ..other.id.clone() }) != whole
            || other.id.shard.of != first.id.shard.of
        {
            let (a, b) = (first.directory.display(), other.directory.display());
            return Err(refused(format!("{a} and {b} are of different runs")));
        }
    }
    let have: Vec<u64> = shards.iter().map(|store| store.id.shard.index).collect();
    let all: Vec<u64> = (1..=first.id.shard.of).collect();
    if have != all {
        return Err(refused(format!("needs each of the shards {all:?} once, has {have:?}")));
    }
    let merged = Store::open(to, whole)?;
    for cell in &first.plan()?.cells {
        let mut arms: Vec<Vec<Row>> = vec![Vec::new(); cell.arms.len()];
        for shard in shards {
            let there = shard.read(cell)?.ok_or_else(|| {
                refused(format!("shard {} has not run cell {}", shard.id.shard.index, cell.name))
            })?;
            arms.iter_mut().zip(there).for_each(|(arm, rows)| arm.extend(rows));
        }
        arms.iter_mut().for_each(|rows| rows.sort_by_key(|row| row.index));
        merged.write(cell, &arms)?;
        // Every shard has drawn the same transactions.
        merged.write_drawings(cell, &first.drawings(cell))?;
    }
    Ok(merged)
}

fn read_id(marker: &Path) -> Result<RunId, StoreError> {
    let text = fs::read_to_string(marker)
        .map_err(|error| StoreError::Io { path: marker.display().to_string(), error })?;
    serde_json::from_str(&text).map_err(|error| damaged(marker, error))
}

/// Writes a file atomically.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let refused = |error| StoreError::Io { path: path.display().to_string(), error };
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(refused)?;
    }
    let unfinished = path.with_extension("unfinished");
    let mut file = fs::File::create(&unfinished).map_err(refused)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(refused)?;
    fs::rename(&unfinished, path).map_err(refused)
}

fn damaged(path: &Path, what: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged { path: path.display().to_string(), what: what.to_string().replace('\n', " ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_every_transaction_once() {
        let shards: Vec<Shard> = ["1/3", "2/3", "3/3"].iter().map(|text| text.parse().unwrap()).collect();
        for index in 0..100 {
            assert_eq!(shards.iter().filter(|shard| shard.has(index)).count(), 1);
        }
        for wrong in ["0/3", "4/3", "1", "a/b", "1/0"] {
            assert!(wrong.parse::<Shard>().unwrap_err().contains("is not a shard"), "{wrong}");
        }
    }
}
