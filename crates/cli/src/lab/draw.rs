//! `brisk lab draw`: one transaction of a plan, recorded.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use brisk_lab::plan::Cell;
use brisk_lab::plan::run::{RunOptions, comparison};
use brisk_lab::plan::store::Shard;
use brisk_sim::transaction::Records;

use super::read_plan;
use crate::failure::Failure;
use crate::output::print_line;

/// The flags of `lab draw`.
#[derive(Debug, clap::Args)]
pub(super) struct Draw {
    /// A name from `brisk lab list`, or a file that ends in .toml
    #[arg(value_name = "PLAN")]
    plan: String,
    /// The cell; default: the first one
    #[arg(long, value_name = "NAME")]
    cell: Option<String>,
    /// The arm; default: the first one of the cell
    #[arg(long, value_name = "NAME")]
    arm: Option<String>,
    /// Number of the transaction, from 0 as in the results
    #[arg(short = 'n', long = "number", value_name = "N", default_value_t = 0)]
    index: u64,
    /// Seed of all random numbers, the same as in the run of the plan
    #[arg(long, value_name = "N", default_value_t = 1, env = "BRISK_SEED")]
    seed: u64,
    /// File for the diagram, SVG
    #[arg(short, long, value_name = "FILE", default_value = "brisk-draw.svg")]
    output: PathBuf,
    /// Write a capture of both ends to this file, pcapng
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Write the events inside the stack and their reasons to this file, JSON lines
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
}

impl Draw {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let (plan, text) = read_plan(&self.plan)?;
        let names = |names: Vec<&str>| names.join(", ");
        let cell: &Cell = match &self.cell {
            None => plan.cells.first(),
            Some(name) => plan.cells.iter().find(|cell| cell.name == *name),
        }
        .ok_or_else(|| {
            let cells = names(plan.cells.iter().map(|cell| cell.name.as_str()).collect());
            Failure::usage(format!("plan {} has no such cell; it has: {cells}", plan.name))
        })?;
        let arm = match &self.arm {
            None => Some(0),
            Some(name) => cell.arms.iter().position(|arm| arm == name),
        };
        let arm = arm.ok_or_else(|| {
            Failure::usage(format!("cell {} has no such arm; it has: {}", cell.name, cell.arms.join(", ")))
        })?;
        let options = RunOptions {
            quick: false,
            seed: self.seed,
            shard: Shard::WHOLE,
            pages: String::new(),
            version: String::new(),
            build: String::new(),
        };
        let comparison = comparison(&plan, cell, &options.id(&plan, &text), &[]).map_err(Failure::usage)?;
        let records = Records { capture: writer(&self.pcap)?, trace: writer(&self.events)? };
        comparison.record(arm, self.index, records).map_err(Failure::failed)?;
        let drawing = comparison.draw(arm, self.index).map_err(Failure::failed)?;
        std::fs::write(&self.output, drawing)
            .map_err(|error| Failure::failed(format!("{}: {error}", self.output.display())))?;
        print_line(&format!(
            "{}: transaction {} of {}, {} with {}",
            self.output.display(),
            self.index,
            plan.name,
            cell.name,
            cell.arms[arm]
        ))
    }
}

fn writer(file: &Option<PathBuf>) -> Result<Option<Box<dyn Write>>, Failure> {
    let create = |path: &PathBuf| {
        let file =
            File::create(path).map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
        Ok(Box::new(BufWriter::new(file)) as Box<dyn Write>)
    };
    file.as_ref().map(create).transpose()
}
