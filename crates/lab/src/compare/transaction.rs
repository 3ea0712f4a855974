//! One transaction of a comparison: its random values, the arm's knowledge of the path, and the run in its
//! scenario.

use brisk_link::LinkSpec;
use brisk_runtime::profile::Profile;
use brisk_sim::application::Exchange;
use brisk_sim::fast_open::PriorKnowledge;
use brisk_sim::neighbours::{self, NeighbourSpec};
use brisk_sim::page::{self, LoadSpec};
use brisk_sim::seeds;
use brisk_sim::transaction::{
    Records, TransactionError, TransactionResult, TransactionSpec, transaction_in, transaction_recorded,
};
use brisk_sim::world::Arena;
use rand_core::RngCore;
use rayon::prelude::*;
use thiserror::Error;

use super::Comparison;
use crate::diagram;
use crate::scenario::Scenario;

/// Maximum number of earlier transactions over a path.
const EARLIER: usize = 300;
/// Bytes of earlier transactions that suffice: a large transaction tells as much about the path as many small
/// ones.
const EARLIER_BYTES: u64 = 100_000_000;
/// Minimum number of earlier transactions, even if they exceed [`EARLIER_BYTES`].
const EARLIER_MIN: usize = 4;

/// State of both ends after earlier connections: for each arm, for each path.
pub(crate) type KnowledgeOfArms = Vec<Vec<Option<PriorKnowledge>>>;

/// Random values that are drawn before a transaction; the same in every arm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drawn {
    seed: u64,
    path: usize,
    response: u64,
}

impl Comparison {
    /// Returns the paths; a transaction uses one of them.
    fn paths(&self) -> &[LinkSpec] {
        match &self.scenario.paths[..] {
            [] => std::slice::from_ref(&self.link),
            paths => paths,
        }
    }

    /// Returns the state of both ends after earlier connections, for every arm.
    ///
    /// # Errors
    /// The reason why a transaction cannot be simulated.
    pub(crate) fn knowledge_of_arms(&self) -> Result<KnowledgeOfArms, TransactionError> {
        let of_arm = |arm| self.paths().iter().map(|path| self.prior_knowledge(arm, path)).collect();
        self.arms.par_iter().map(of_arm).collect()
    }

    /// Returns the state of both ends of an arm after earlier connections; `None` for an arm without memory.
    /// It comes from many earlier transactions over the same path, like those that are compared.
    /// The planner needs the loss rate of the path, and an arm that starts from path memory needs its
    /// capacity.
    fn prior_knowledge(
        &self,
        arm: &Profile,
        path: &LinkSpec,
    ) -> Result<Option<PriorKnowledge>, TransactionError> {
        let prior_knowledge = match (arm.memory, arm.fast_open) {
            (true, _) => self.known(arm, path)?,
            (false, true) => self.known(arm, path)?.forget_paths(),
            (false, false) => return Ok(None),
        };
        Ok(Some(prior_knowledge))
    }

    fn known(&self, arm: &Profile, path: &LinkSpec) -> Result<PriorKnowledge, TransactionError> {
        if let Some(page) = &self.page {
            return page::prior_knowledge(path, page);
        }
        if arm.tcp.mechanisms.planner.is_none() && !arm.starts_from_path() {
            return Ok(PriorKnowledge::over(path)?);
        }
        let seed = seeds::of_transaction(self.seed, u64::MAX);
        let mut chance = brisk_link::seeds::rng(seed, "size");
        let exchange = |response| Exchange { request: self.request, ..Exchange::of(response) };
        let (mut exchanges, mut bytes) = (Vec::new(), 0);
        while exchanges.len() < EARLIER_MIN || exchanges.len() < EARLIER && bytes < EARLIER_BYTES {
            let response = self.sizes.draw(&mut chance);
            bytes += response;
            exchanges.push(exchange(response));
        }
        Ok(PriorKnowledge::after(path, seed, &arm.tcp, &exchanges)?)
    }

    /// Runs a transaction of the arm with this index.
    ///
    /// # Errors
    /// The reason why the transaction cannot be simulated.
    pub(crate) fn run_one(
        &self,
        arm: usize,
        known: &KnowledgeOfArms,
        drawn: Drawn,
        arena: &mut Arena,
    ) -> Result<TransactionResult, TransactionError> {
        let Drawn { seed, path, response } = drawn;
        let (tcp, link) = (&self.arms[arm].tcp, &self.paths()[path]);
        let fast_open = self.arms[arm].fast_open;
        let known = known[arm][path].as_ref();
        if let Some(burst) = &self.scenario.burst {
            return Ok(burst.run(link, seed));
        }
        if let Some(page) = &self.page {
            let spec = LoadSpec {
                client: tcp.clone(),
                server: tcp.clone(),
                known,
                fast_open,
                spread: self.scenario.spread,
                ..LoadSpec::new(link, page)
            };
            return Ok(page::load(&spec, seed, arena)?.as_transaction(page));
        }
        if let Some(beside) = &self.scenario.beside {
            let exchange = |pause| Exchange { request: self.request, pause, ..Exchange::of(response) };
            let spec = NeighbourSpec {
                link,
                plain: beside.plain,
                others: beside.others,
                tcp: tcp.clone(),
                short: beside.pause.map(exchange),
                takes: beside.takes,
            };
            return neighbours::run(&spec, seed, arena);
        }
        let fetched = match &self.scenario.backend {
            None => TransactionResult::default(),
            Some(backend) => backend.fetch(arm, self.request, response, seed, arena)?,
        };
        if self.scenario.backend.is_some() && fetched.completion.is_none() {
            return Ok(fetched);
        }
        let think = self.scenario.think + fetched.completion.unwrap_or_default();
        let spec = TransactionSpec { think, known, fast_open, ..self.spec(arm, link, response) };
        let answered = transaction_in(&spec, seed, arena)?;
        Ok(both_hops(answered, &fetched))
    }

    /// Returns the specification of an arm's transaction over a link.
    fn spec<'a>(&self, arm: usize, link: &'a LinkSpec, response: u64) -> TransactionSpec<'a> {
        TransactionSpec {
            request: self.request,
            think: self.scenario.think,
            established: self.established,
            earlier: self.scenario.earlier,
            client: self.arms[arm].tcp.clone(),
            server: self.arms[arm].tcp.clone(),
            ..TransactionSpec::new(link, response)
        }
    }

    /// Draws the random values of a transaction.
    pub(crate) fn drawn(&self, index: u64) -> Drawn {
        let seed = seeds::of_transaction(self.seed, index);
        let path = match self.paths().len() {
            1 => 0,
            more => brisk_link::seeds::rng(seed, "path").next_u32() as usize % more,
        };
        Drawn { seed, path, response: self.sizes.draw(&mut brisk_link::seeds::rng(seed, "size")) }
    }

    /// Runs transaction `index` of one arm again and records the packets at both ends and the events inside.
    ///
    /// # Errors
    /// The reason why the transaction cannot be simulated, or an error of the records. Pages, neighbours,
    /// bursts and second hops cannot be recorded ([`RecordError::Kind`]).
    pub fn record(&self, arm: usize, index: u64, records: Records) -> Result<TransactionResult, RecordError> {
        let Scenario { backend, beside, burst, .. } = &self.scenario;
        if self.page.is_some() || backend.is_some() || beside.is_some() || burst.is_some() {
            return Err(RecordError::Kind);
        }
        let Drawn { seed, path, response } = self.drawn(index);
        let link = &self.paths()[path];
        let known = self.prior_knowledge(&self.arms[arm], link)?;
        let spec = TransactionSpec {
            known: known.as_ref(),
            fast_open: self.arms[arm].fast_open,
            ..self.spec(arm, link, response)
        };
        Ok(transaction_recorded(&spec, seed, records)?)
    }

    /// Draws transaction `index` of one arm as a time-sequence diagram.
    ///
    /// # Errors
    /// Those of [`Comparison::record`].
    pub fn draw(&self, arm: usize, index: u64) -> Result<String, RecordError> {
        let buffer = diagram::Buffer::default();
        let records = Records { capture: Some(Box::new(buffer.clone())), trace: None };
        self.record(arm, index, records)?;
        Ok(diagram::svg(&buffer.bytes(), &format!("transaction {index} with {}", self.arms[arm].name)))
    }
}

/// Why a transaction cannot be recorded.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The transaction is more than one connection over one path.
    #[error("only single transactions can be recorded: no pages, neighbours, bursts or second hops")]
    Kind,
    /// An error of the simulation or of the records.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
}

/// Adds the cost of the second hop to the client's transaction; the payload counts once.
fn both_hops(answered: TransactionResult, fetched: &TransactionResult) -> TransactionResult {
    TransactionResult {
        retransmits: answered.retransmits + fetched.retransmits,
        timeouts: answered.timeouts + fetched.timeouts,
        recoveries: answered.recoveries + fetched.recoveries,
        undos: answered.undos + fetched.undos,
        masked_losses: answered.masked_losses + fetched.masked_losses,
        segments: answered.segments + fetched.segments,
        probes: answered.probes + fetched.probes,
        repaired_by_probe: answered.repaired_by_probe + fetched.repaired_by_probe,
        repaired_by_parity: answered.repaired_by_parity + fetched.repaired_by_parity,
        repaired_by_copy: answered.repaired_by_copy + fetched.repaired_by_copy,
        wire_bytes_up: answered.wire_bytes_up + fetched.wire_bytes_up,
        wire_bytes_down: answered.wire_bytes_down + fetched.wire_bytes_down,
        dropped: answered.dropped + fetched.dropped,
        ..answered
    }
}
