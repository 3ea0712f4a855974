//! Runs a plan: every cell that is missing in the store.

use std::sync::atomic::{AtomicBool, Ordering};

use brisk_sim::page::Page;
use brisk_sim::transaction::TransactionError;
use thiserror::Error;

use crate::compare::transaction::RecordError;
use crate::compare::{Comparison, transactions};
use crate::plan::store::{RunId, Shard, Store, StoreError};
use crate::plan::{Cell, Plan, PlanError, Workload};
use crate::row::Row;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// True to run fewer transactions: the plan's `quick_n`.
    pub quick: bool,
    /// Seed of all random numbers.
    pub seed: u64,
    /// The shard to run.
    pub shard: Shard,
    /// Digest of the pages in the options, empty without pages.
    pub pages: String,
    /// Version of the program.
    pub version: String,
    /// Digest of the program.
    pub build: String,
}

/// Reason why a plan did not run to its end.
#[derive(Debug, Error)]
pub enum RunError {
    /// The plan is not valid.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The results could not be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A transaction could not be simulated.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// A transaction could not be drawn.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The run was interrupted; complete cells are stored.
    #[error("interrupted; the same command continues here")]
    Interrupted,
}

impl RunOptions {
    /// Returns the identity of the run.
    pub fn id(&self, plan: &Plan, text: &str) -> RunId {
        RunId {
            plan: plan.name.clone(),
            text: text.to_owned(),
            seed: self.seed,
            n: if self.quick { plan.quick_n } else { plan.n },
            pages: self.pages.clone(),
            shard: self.shard,
            version: self.version.clone(),
            build: self.build.clone(),
        }
    }
}

/// Returns the number of transactions that are missing in `store`, over all arms.
///
/// # Errors
/// [`StoreError`] if the store cannot be read.
pub fn remaining(plan: &Plan, store: &Store) -> Result<u64, StoreError> {
    let each = (0..store.id.n).filter(|index| store.id.shard.has(*index)).count() as u64;
    let mut remaining = 0;
    for cell in &plan.cells {
        if store.read(cell)?.is_none() {
            remaining += each * cell.arms.len() as u64;
        }
    }
    Ok(remaining)
}

/// Runs every cell of the plan that is missing in the store; `pages` replace pages with the same label. Calls
/// `progress` with the number of completed transactions.
///
/// # Errors
/// [`RunError`]; [`RunError::Interrupted`] once `stop` is set.
pub fn run(
    plan: &Plan,
    store: &Store,
    pages: &[Page],
    progress: &(dyn Fn(u64) + Sync),
    stop: &AtomicBool,
) -> Result<(), RunError> {
    for cell in &plan.cells {
        if store.read(cell)?.is_none() {
            let arms = run_cell(plan, cell, store, pages, progress, stop)?;
            draw(plan, cell, store)?;
            store.write(cell, &arms)?;
        }
    }
    Ok(())
}

/// Draws the first transaction of each arm, if the cell requests it.
fn draw(plan: &Plan, cell: &Cell, store: &Store) -> Result<(), RunError> {
    if !cell.draw {
        return Ok(());
    }
    let comparison = comparison(plan, cell, &store.id, &[])?;
    let drawings = (0..cell.arms.len()).map(|arm| comparison.draw(arm, 0));
    let drawings = drawings.collect::<Result<Vec<String>, RecordError>>()?;
    Ok(store.write_drawings(cell, &drawings)?)
}

fn run_cell(
    plan: &Plan,
    cell: &Cell,
    store: &Store,
    pages: &[Page],
    progress: &(dyn Fn(u64) + Sync),
    stop: &AtomicBool,
) -> Result<Vec<Vec<Row>>, RunError> {
    let comparison = comparison(plan, cell, &store.id, pages)?;
    let shard = store.id.shard;
    let results = transactions(&comparison, &|index| shard.has(index), progress, stop)?;
    if stop.load(Ordering::Relaxed) {
        return Err(RunError::Interrupted);
    }
    let rows = |arm: Vec<_>| arm.iter().map(|(index, result)| Row::of(*index, result)).collect();
    Ok(results.into_iter().map(rows).collect())
}

/// Returns the cell as `brisk whatif` would run it: same seed, same transactions.
///
/// # Errors
/// The error in the cell.
pub fn comparison(plan: &Plan, cell: &Cell, id: &RunId, pages: &[Page]) -> Result<Comparison, PlanError> {
    let Workload { link, sizes, sizes_text, page, scenario, arms } = cell
        .workload()
        .map_err(|what| PlanError::Cell { plan: plan.name.clone(), cell: cell.name.clone(), what })?;
    let label = cell.page.as_ref().map(|recipe| recipe.label.as_str());
    let given = pages.iter().find(|page| Some(page.label.as_str()) == label).cloned();
    Ok(Comparison {
        link,
        request: cell.request,
        sizes,
        sizes_text,
        page: given.or(page),
        scenario,
        n: id.n,
        established: cell.established,
        seed: id.seed,
        arms,
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::plan::store::merge;

    const PLAN: &str = r#"
title = "t"
source = "s"
about = "a"
n = 60
quick_n = 20
[[cell]]
name = "lossy"
link = "--rtt 50ms --loss 5%"
flow = "5kB"
arms = ["tcp", "tcp+tfo"]
"#;

    fn options(shard: Shard) -> RunOptions {
        RunOptions {
            quick: false,
            seed: 3,
            shard,
            pages: String::new(),
            version: "1".to_owned(),
            build: "b".to_owned(),
        }
    }

    /// Returns an empty directory for a test.
    fn root(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("brisk-lab-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        root
    }

    fn run_into(root: &std::path::Path, shard: Shard) -> Store {
        let plan = Plan::parse("p", PLAN).unwrap();
        let store = Store::open(root, options(shard).id(&plan, PLAN)).unwrap();
        run(&plan, &store, &[], &|_| {}, &AtomicBool::new(false)).unwrap();
        store
    }

    #[test]
    fn merged_shards_are_the_whole_run() {
        let (whole, one, two, merged) = (root("whole"), root("one"), root("two"), root("merged"));
        let plan = Plan::parse("p", PLAN).unwrap();
        let expected = run_into(&whole, Shard::WHOLE).read(&plan.cells[0]).unwrap().unwrap();
        run_into(&one, Shard { index: 1, of: 2 });
        let error = merge(std::slice::from_ref(&one), &merged).unwrap_err().to_string();
        assert_eq!(error, "plan p: needs each of the shards [1, 2] once, has [1]");
        run_into(&two, Shard { index: 2, of: 2 });
        let stores = merge(&[two.clone(), one.clone()], &merged).unwrap();
        assert_eq!(stores[0].read(&plan.cells[0]).unwrap().unwrap(), expected);
        assert_eq!(expected[0].len(), 60);
        assert_ne!(expected[0], expected[1]);
        for directory in [whole, one, two, merged] {
            std::fs::remove_dir_all(directory).unwrap();
        }
    }

    #[test]
    fn stored_cells_are_not_run_again_and_another_run_is_refused() {
        let root = root("resume");
        let plan = Plan::parse("p", PLAN).unwrap();
        let stopped = AtomicBool::new(true);
        let store = Store::open(&root, options(Shard::WHOLE).id(&plan, PLAN)).unwrap();
        assert!(matches!(run(&plan, &store, &[], &|_| {}, &stopped), Err(RunError::Interrupted)));
        assert_eq!(remaining(&plan, &store).unwrap(), 120);
        run_into(&root, Shard::WHOLE);
        assert_eq!(remaining(&plan, &store).unwrap(), 0);
        run(&plan, &store, &[], &|_| panic!("nothing is left to run"), &stopped).unwrap();
        let other = RunOptions { seed: 4, ..options(Shard::WHOLE) }.id(&plan, PLAN);
        let error = Store::open(&root, other).unwrap_err().to_string();
        assert!(error.contains("holds results of another seed"), "{error}");
        std::fs::write(root.join("p/lossy/0-tcp.csv"), "index,x\n1,2\n").unwrap();
        let error = store.read(&plan.cells[0]).unwrap_err().to_string();
        assert!(error.contains("0-tcp.csv") && error.contains("remove the directory"), "{error}");
        std::fs::remove_dir_all(root).unwrap();
    }
}
