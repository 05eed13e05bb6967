//! Tenant: named logs of the group that are opened, used for a while, sealed or not, and dropped, one after the other. It
//! sends requests to the current leader, one at a time, whatever else happens.
//!
//! Checked here: a log that was sealed, or dropped, takes no record after that was answered; appends that belong together
//! are not answered differently.

use super::{Asker, Check, Event, World};
use crate::disk::sim::Rng;
use crate::error::{ErrorKind, Result as LogResult};
use crate::options::log_options::LogOption;
use crate::record::batch::{Batch, BatchBuilder};
use crate::replica::queue::proposals::LogCommand;
use crate::sync::completion::{Appended, Ticket};
use crate::testing::sim::fault::Fault;
use crate::testing::sim::history::{LARGE, Reply, What, record_of};
use crate::testing::sim::machine::Request;
use crate::testing::sim::plan::Plan;
use crate::types::{Index, LogNumber, NodeId};
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of the client that it is in the history.
const TENANT: u32 = 903;
/// How long a request waits for its answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The bounds of the retention of a log.
const RETENTION_MS: (u64, u64) = (20, 3_000);
/// Records of a batch, at most: the second one in runs with quotas, whose logs become full.
const BATCH_RECORDS: (u64, u64) = (3, 8);
/// How long opening the first named logs may take.
const OPENING_MAX: Duration = Duration::from_secs(60);

/// The part of its life that a log is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    /// It takes this many more requests.
    Used(u64),
    Sealing,
    /// The seal was answered.
    Sealed,
    Dropping,
    /// The drop was answered.
    Dropped,
}

#[derive(Debug)]
pub(in crate::testing::sim) struct Tenant {
    rng: Rng,
    heavy: bool,
    /// Its logs are to become full: they have more records, and keep them.
    has_quotas: bool,
    phase: Phase,
    log: LogNumber,
    /// The index of the log's first record.
    start: Index,
    records: u64,
    /// The discards that retention had made when it was last counted.
    retained: u64,
    /// The parts of the running request, and their places in the history if they append.
    attempts: BTreeMap<u64, Option<usize>>,
    /// The answers to other parts of it.
    answers: Vec<Answer>,
}

/// The answering node, the place in the history, and the answer, if there is one.
type Answer = (NodeId, Option<usize>, Option<LogResult<Appended>>);

impl Tenant {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            rng: Rng::new(plan.seed ^ 0x7e_4a47),
            heavy: plan.heavy || plan.quotas,
            has_quotas: plan.quotas,
            phase: Phase::Opening,
            log: LogNumber(plan.logs + 1),
            start: Index(1),
            records: 0,
            retained: 0,
            attempts: BTreeMap::new(),
            answers: Vec::new(),
        }
    }

    /// Whether it waits for no answer.
    pub(in crate::testing::sim) fn is_idle(&self) -> bool {
        self.attempts.is_empty()
    }

    /// A batch of new records.
    fn batch(&mut self) -> LogResult<(Batch, Vec<u64>)> {
        let mut builder = BatchBuilder::new();
        let most = if self.has_quotas { BATCH_RECORDS.1 } else { BATCH_RECORDS.0 };
        let records: Vec<u64> = (0..self.rng.between(1, most)).map(|_| self.next_record()).collect();
        records.iter().try_for_each(|record| builder.push(&record_of(*record)).map(drop))?;
        Ok((builder.build()?, records))
    }

    fn next_record(&mut self) -> u64 {
        self.records += 1;
        u64::from(TENANT) << 40 | self.records | if self.heavy { LARGE } else { 0 }
    }

    /// The next log, once this one is gone.
    fn next_log(&mut self) {
        self.log = LogNumber(self.log.0 + self.rng.between(1, 2) as u32);
        self.start = Index(if self.rng.permille(700) { 1 } else { self.rng.between(2, 1_000) });
        self.phase = Phase::Opening;
    }
}

impl World {
    /// The log that probes and appends before a close use: it is never dropped.
    pub(in crate::testing::sim) fn main_log(&self) -> LogNumber {
        if self.plan.logs == 0 { LogNumber::OWN } else { LogNumber(1) }
    }

    /// Opens the logs that exist during the whole run. Returns when all members have them.
    pub(in crate::testing::sim) fn open_named_logs(&mut self) -> Check {
        let Some(leader) = self.leader().filter(|_| self.plan.logs > 0) else { return Ok(()) };
        let mut tickets = Vec::new();
        for number in 1..=self.plan.logs {
            let command = LogCommand::Open { log: LogNumber(number), start: Index(1) };
            tickets.push(self.hand(leader, Request::Log(command))?);
        }
        let limit = self.now().plus(OPENING_MAX);
        let named = self.plan.logs as usize;
        while self.oracle.contents.summaries().len() < named
            || self.stragglers().is_none_or(|s| !s.is_empty())
        {
            if self.now() > limit || !self.step()? {
                let answers: Vec<_> = tickets.iter().map(Ticket::poll).collect();
                return Err(format!("{named} named logs were not opened in {OPENING_MAX:?}: {answers:?}"));
            }
        }
        Ok(())
    }

    /// Makes the next request, unless one is running.
    pub(in crate::testing::sim) fn tenant_wakes(&mut self) -> Check {
        if self.quiet {
            return Ok(());
        }
        let retained = self.oracle.contents.retained();
        for _ in std::mem::replace(&mut self.tenant.retained, retained)..retained {
            self.counts.add(Fault::LogRetained);
        }
        if let Some(leader) = self.leader().filter(|_| self.tenant.is_idle()) {
            self.submit_for_tenant(leader)?;
        }
        let pause = self.plan.think.as_nanos() as u64;
        let pause = self.tenant.rng.between(pause / 4, pause * 7 / 4);
        self.schedule.after(Duration::from_nanos(pause), Event::Tenant);
        Ok(())
    }

    fn submit_for_tenant(&mut self, leader: NodeId) -> Check {
        let (log, start) = (self.tenant.log, self.tenant.start);
        let is_used = matches!(self.tenant.phase, Phase::Used(_));
        if let Some(request) = is_used.then(|| self.quota_request(log)).flatten() {
            return self.hand_for_tenant(leader, request);
        }
        let sparing = if self.tenant.has_quotas { 8 } else { 1 }; // few discards: logs become full
        let request = match self.tenant.phase {
            Phase::Opening => Request::Log(LogCommand::Open { log, start }),
            Phase::Sealing => Request::Log(LogCommand::Seal { log }),
            Phase::Dropping => Request::Log(LogCommand::Drop { log }),
            Phase::Used(_) if self.tenant.rng.permille(150 / sparing) => {
                let last = self.oracle.contents.last(log).0.max(start.0);
                let first = Index(self.tenant.rng.between(start.0, last + 2));
                self.oracle.contents.note_discard(log, first);
                Request::Discard(log, first)
            }
            Phase::Used(_) if self.tenant.rng.permille(120 / sparing) => {
                let age = self.tenant.rng.between(RETENTION_MS.0, RETENTION_MS.1);
                let age = self.tenant.rng.permille(850).then_some(age);
                Request::SetOptions(log, vec![(LogOption::RetentionAge, age)])
            }
            Phase::Dropped if self.tenant.rng.permille(500) => Request::Log(LogCommand::Open { log, start }),
            Phase::Used(_) | Phase::Sealed | Phase::Dropped => return self.append_for_tenant(leader),
        };
        self.hand_for_tenant(leader, request)
    }

    fn hand_for_tenant(&mut self, leader: NodeId, request: Request) -> Check {
        match self.submit(Asker::Tenant, leader, request, PATIENCE) {
            Some(Ok(attempt)) => _ = self.tenant.attempts.insert(attempt, None),
            Some(Err(error)) => {
                self.tenant.answers.push((leader, None, Some(Err(error))));
                self.on_tenant_answers()?;
            }
            None => {}
        }
        Ok(())
    }

    /// Appends to the log, sometimes together with an append to the main log: both happen or none.
    fn append_for_tenant(&mut self, leader: NodeId) -> Check {
        let now = self.now();
        let mut logs = vec![self.tenant.log];
        if self.tenant.rng.permille(350) {
            logs.insert(self.tenant.rng.below(2), self.main_log());
        }
        let (mut batches, mut calls, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for log in logs {
            let (batch, records) = self.tenant.batch().map_err(|e| format!("cannot build a batch: {e}"))?;
            self.oracle.contents.proposed(log, &records);
            all.extend(&records);
            calls.push(self.history.invoke(now, TENANT, log, What::Append { records, session: None }));
            batches.push((log, batch));
        }
        self.oracle.contents.tie(&all);
        match self.submit_together(Asker::Tenant, leader, &batches, PATIENCE) {
            Some(Ok(attempts)) => {
                self.tenant.attempts = attempts.into_iter().zip(calls.into_iter().map(Some)).collect()
            }
            Some(Err(error)) => {
                self.quota_refuses(leader, self.tenant.log, &error)?;
                self.tenant.answers =
                    calls.iter().map(|call| (leader, Some(*call), Some(Err(error.clone())))).collect();
                self.on_tenant_answers()?;
            }
            None => calls.iter().for_each(|call| self.history.answer(now, *call, Reply::Refused)),
        }
        Ok(())
    }

    pub(in crate::testing::sim) fn on_tenant_result(
        &mut self,
        attempt: u64,
        result: Option<(NodeId, LogResult<Appended>)>,
    ) -> Check {
        let Some(call) = self.tenant.attempts.remove(&attempt) else { return Ok(()) };
        let (node, result) = result.map_or((NodeId(0), None), |(node, result)| (node, Some(result)));
        self.tenant.answers.push((node, call, result));
        if self.tenant.is_idle() { self.on_tenant_answers() } else { Ok(()) }
    }

    /// All parts of a request were answered.
    fn on_tenant_answers(&mut self) -> Check {
        let answers = std::mem::take(&mut self.tenant.answers);
        let is_ok = |answer: &Answer| matches!(answer.2, Some(Ok(_)));
        let is_refused = |answer: &Answer| matches!(&answer.2, Some(Err(e)) if is_refusal(e.kind()));
        if answers.iter().any(is_ok) && answers.iter().any(is_refused) {
            return Err(format!("appends that belong together were answered with {answers:?}"));
        }
        let is_done = answers.iter().all(is_ok);
        let ends = |kind| matches!(kind, ErrorKind::Sealed | ErrorKind::NotFound);
        let is_checked = answers.iter().any(|answer| matches!(&answer.2, Some(Err(e)) if ends(e.kind())));
        if is_done {
            self.is_carried_out()?;
        }
        for (node, call, result) in answers {
            self.record_tenant_answer(node, call, result)?;
        }
        let now = self.now();
        let Tenant { rng, phase, log, .. } = &mut self.tenant;
        *phase = match *phase {
            Phase::Opening if is_done => {
                let requests = rng.between(2, 30);
                Phase::Used(self.quotas.requests().unwrap_or(requests))
            }
            Phase::Used(0) if rng.permille(400) => Phase::Sealing,
            Phase::Used(0) => Phase::Dropping,
            Phase::Used(more) => Phase::Used(more - 1),
            Phase::Sealing if is_done => {
                self.counts.add(Fault::LogSealed);
                Phase::Sealed
            }
            Phase::Sealed if is_checked => Phase::Dropping,
            Phase::Dropping if is_done => {
                self.counts.add(Fault::LogDropped);
                let log = *log;
                self.story.note(now, || format!("log {log} was dropped"));
                Phase::Dropped
            }
            Phase::Dropped if is_checked => {
                self.tenant.next_log();
                return Ok(());
            }
            phase => phase,
        };
        Ok(())
    }

    /// Checks that a command was committed before it was answered.
    fn is_carried_out(&self) -> Check {
        let (log, phase) = (self.tenant.log, self.tenant.phase);
        let found = self.oracle.contents.summaries().get(&log);
        let is_right = match phase {
            Phase::Opening | Phase::Used(_) => found.is_some(),
            Phase::Sealing => found.is_some_and(|log| log.sealed),
            Phase::Dropping => found.is_none(),
            Phase::Sealed | Phase::Dropped => true, // nothing is accepted then
        };
        if is_right { Ok(()) } else { Err(format!("{phase:?} was acknowledged, and log {log} is {found:?}")) }
    }

    /// The answer to a part of a request; `None`: there is none.
    fn record_tenant_answer(
        &mut self,
        node: NodeId,
        call: Option<usize>,
        result: Option<LogResult<Appended>>,
    ) -> Check {
        let (now, phase) = (self.now(), self.tenant.phase);
        let kind = match &result {
            Some(Ok(_)) => None,
            Some(Err(error)) => Some(error.kind()),
            None => Some(ErrorKind::Timeout),
        };
        let may_be = match (kind, phase) {
            (Some(ErrorKind::Sealed), Phase::Sealed) | (Some(ErrorKind::NotFound), Phase::Dropped) => true,
            (Some(kind), _) => is_passing(kind),
            (None, Phase::Sealed | Phase::Dropped) => false,
            (None, _) => true,
        };
        if !may_be {
            let log = self.tenant.log;
            return Err(format!("node {node} answered a request of log {log}, {phase:?}, with {result:?}"));
        }
        let Some(call) = call else { return Ok(()) };
        let reply = match (&result, kind) {
            (Some(Ok(appended)), _) => Reply::Appended(Some(appended.first)),
            (_, Some(kind)) if is_refusal(kind) => Reply::Refused,
            _ => Reply::Nothing,
        };
        self.history.answer(now, call, reply);
        let (log, what) = (self.history.calls[call].log, self.history.calls[call].what.clone());
        if let (Some(Ok(appended)), What::Append { records, .. }) = (&result, what) {
            self.acknowledged(node, log, *appended, &records)?;
        }
        Ok(())
    }
}

/// Whether the request did not happen and never will.
fn is_refusal(kind: ErrorKind) -> bool {
    use ErrorKind::{Busy, Full, NotFound, NotLeader, Sealed, Unsupported};
    matches!(kind, NotLeader | Busy | Full | Sealed | NotFound | Unsupported)
}

/// Whether a later request can succeed.
fn is_passing(kind: ErrorKind) -> bool {
    use ErrorKind::{
        Busy, Closed, Full, Io, NotLeader, Poisoned, Removed, Timeout, Unavailable, Unsupported,
    };
    // Unsupported: a member has not said that it knows options.
    matches!(
        kind,
        NotLeader | Busy | Full | Timeout | Unavailable | Unsupported | Poisoned | Closed | Removed | Io
    )
}
