//! Clients: they append, read, discard and read the log's end, at any replica, and record their requests and the
//! answers.
//!
//! A client without a session sends each request once: without an answer its outcome stays unknown. A client with a
//! session sends its appends in order, several at a time. It retries an append under its number, at any replica that
//! may lead, until it gets the index.
//!
//! The promise of each error is checked here: see [`verdict`].

use super::{Asker, Check, Event, World};
use crate::disk::sim::Rng;
use crate::error::{Error, ErrorKind, Result as LogResult};
use crate::record::batch::{Batch, BatchBuilder};
use crate::record::compression::Codec;
use crate::sync::clock::Moment;
use crate::sync::completion::Appended;
use crate::testing::sim::excuse;
use crate::testing::sim::fault::Fault;
use crate::testing::sim::history::{LARGE, Reply, Seen, What, number_of, record_of};
use crate::testing::sim::machine::Request;
use crate::testing::sim::plan::Plan;
use crate::testing::sim::store_faults::StoreFaults;
use crate::types::{Index, LogNumber, NodeId, Sequence, SessionId};
use std::collections::VecDeque;
use std::time::Duration;

/// The largest number of records in a batch.
const BATCH_MAX: u64 = 6;
/// How long a client waits before it retries.
const RETRY_DELAY: Duration = Duration::from_millis(30);

/// A client.
#[derive(Debug)]
pub(in crate::testing::sim) struct Client {
    id: u32,
    /// The log that it uses.
    log: LogNumber,
    rng: Rng,
    think: Duration,
    /// How many appends may be unanswered at a time.
    window: usize,
    /// The replica that it sends to.
    target: NodeId,
    in_session: bool,
    session: Option<Session>,
    ops: VecDeque<Op>,
    next_record: u64,
    next_new: Moment,
    /// It does nothing new for this long, from its next step on.
    nap: Option<Duration>,
    /// When the oldest was requested of its appends without a session, or requests for a session, that have failed since the last
    /// one that succeeded.
    failing_since: Option<Moment>,
}

#[derive(Debug)]
struct Session {
    id: SessionId,
    next: u64,
    /// When the newest append that was acknowledged in it was requested.
    active: Option<Moment>,
}

/// Clocks are wrong by at most 100 ms, and the log's time is the latest that a leader's clock has shown.
const CLOCKS_APART: Duration = Duration::from_millis(300);

/// A request of a client without an answer.
#[derive(Debug)]
struct Op {
    /// Its position in the history; `None` for opening and closing a session.
    call: Option<usize>,
    want: Want,
    /// The running attempt.
    attempt: Option<u64>,
    /// Whether any earlier attempt may have had an effect.
    in_doubt: bool,
    not_before: Moment,
    /// The time of the request.
    since: Moment,
}

#[derive(Clone, Debug)]
enum Want {
    Append { batch: Batch, records: Vec<u64>, sequence: Option<Sequence> },
    Look { index: Option<Index> },
    Discard(Index),
    Open,
    Close(SessionId),
}

/// The meaning of an error for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It did not happen and never will.
    Refused,
    /// It may have happened, or may happen later.
    Unknown,
    /// It had happened before.
    Done,
    /// No correct log returns this error here.
    Wrong,
}

/// The promise of each error.
fn verdict(kind: ErrorKind) -> Verdict {
    match kind {
        ErrorKind::NotLeader
        | ErrorKind::Busy
        | ErrorKind::Full
        | ErrorKind::SequenceGap
        | ErrorKind::TooManySessions => Verdict::Refused,
        ErrorKind::Timeout
        | ErrorKind::Unavailable
        | ErrorKind::Poisoned
        | ErrorKind::Closed
        | ErrorKind::Removed
        | ErrorKind::Io => Verdict::Unknown,
        ErrorKind::SequenceForgotten => Verdict::Done,
        _ => Verdict::Wrong,
    }
}

impl Client {
    pub(in crate::testing::sim) fn new(id: u32, in_session: bool, plan: &Plan, mut rng: Rng) -> Self {
        let window = if in_session { rng.between(1, 4) } else { rng.between(1, 2) };
        Self {
            id,
            log: if plan.logs == 0 { LogNumber::OWN } else { LogNumber(1 + id % plan.logs) },
            think: plan.think,
            window: window as usize,
            target: NodeId(1),
            in_session,
            session: None,
            ops: VecDeque::new(),
            next_record: (u64::from(id + 1) << 40) | if plan.heavy { LARGE } else { 0 },
            next_new: Moment::START,
            nap: None,
            failing_since: None,
            rng,
        }
    }

    /// Whether it waits for no answer.
    pub(in crate::testing::sim) fn is_idle(&self) -> bool {
        self.ops.is_empty()
    }

    /// A description of the requests without an answer.
    pub(in crate::testing::sim) fn waits_for(&self) -> String {
        format!("client {} (session {:?}) waits for {:?}", self.id, self.session, self.ops)
    }

    /// Since when it wants records appended, or a session opened, without success: the time of the oldest request that has no answer,
    /// or of the first of those that have failed. These count only if it `tries_again`.
    pub(in crate::testing::sim) fn waits_since(&self, tries_again: bool) -> Option<Moment> {
        let waits = |op: &&Op| matches!(op.want, Want::Append { .. } | Want::Open);
        let oldest = self.ops.iter().filter(waits).map(|op| op.since).min();
        oldest.into_iter().chain(self.failing_since.filter(|_| tries_again)).min()
    }

    fn op_of(&self, attempt: u64) -> Option<usize> {
        self.ops.iter().position(|op| op.attempt == Some(attempt))
    }

    fn appends(&self) -> usize {
        self.ops.iter().filter(|op| matches!(op.want, Want::Append { .. })).count()
    }

    /// A batch of new records.
    fn new_batch(&mut self) -> LogResult<(Batch, Vec<u64>)> {
        let count = if self.rng.permille(600) { 1 } else { self.rng.between(1, BATCH_MAX) };
        let records: Vec<u64> = (self.next_record..self.next_record + count).collect();
        self.next_record += count;
        let mut builder = BatchBuilder::new();
        if self.rng.permille(100) {
            builder.codec(Codec::Lz4);
        }
        for record in &records {
            builder.push(&record_of(*record))?;
        }
        if let Some(session) = &self.session {
            let before = self.appends();
            builder.session(session.id, Sequence(session.next), before as u16);
        }
        Ok((builder.build()?, records))
    }
}

impl World {
    /// A client's step: retries first, then new requests.
    pub(in crate::testing::sim) fn client_wakes(&mut self, n: usize) -> Check {
        self.send_again(n)?;
        let now = self.now();
        if !self.quiet && now >= self.clients[n].next_new {
            self.something_new(n)?;
            let client = &mut self.clients[n];
            let mean = client.think.as_nanos() as u64;
            let pause = Duration::from_nanos(client.rng.between(mean / 4, mean * 7 / 4));
            client.next_new = now.plus(client.nap.take().unwrap_or(pause));
        }
        let client = &self.clients[n];
        let retry = client.ops.iter().filter(|op| op.attempt.is_none()).map(|op| op.not_before).min();
        let next = retry.map_or(client.next_new, |r| r.min(client.next_new));
        let next = if self.quiet { retry.unwrap_or(now.plus(RETRY_DELAY)) } else { next };
        self.schedule.at(next.max(now.plus(Duration::from_millis(1))), Event::Client(n));
        Ok(())
    }

    /// Sends the requests that have no running attempt, in order.
    fn send_again(&mut self, n: usize) -> Check {
        let now = self.now();
        let mut place = 0;
        while let Some(op) = self.clients[n].ops.get(place) {
            let waits = op.attempt.is_none() && now >= op.not_before;
            let before = self.clients[n].ops.len();
            if waits {
                self.attempt(n, place)?;
            }
            if self.clients[n].ops.len() == before {
                place += 1; // else it was answered at once and removed
            }
        }
        Ok(())
    }

    fn something_new(&mut self, n: usize) -> Check {
        let client = &mut self.clients[n];
        if client.in_session && client.session.is_none() {
            if client.ops.is_empty() {
                return self.begin(n, None, Want::Open);
            }
            return Ok(());
        }
        if self.plan.sessions_expire() && client.session.is_some() && client.ops.is_empty() {
            match client.rng.below(1000) {
                // Idle, mostly for longer than a session lasts.
                0..25 => client.nap = Some(self.plan.session_idle_max.mul_f64(1.3)),
                // Drops its session and opens another one.
                25..60 => client.session = None,
                _ => {}
            }
        }
        let keeps_all = self.is_full_for_long();
        let client = &mut self.clients[n];
        if client.session.is_none() && client.in_session {
            return Ok(());
        }
        let dice = client.rng.below(1000);
        match dice {
            0..600 => {
                if client.appends() >= client.window {
                    return Ok(());
                }
                let burst = if client.rng.permille(300) { client.window - client.appends() } else { 1 };
                for _ in 0..burst {
                    self.new_append(n)?;
                }
                Ok(())
            }
            600..760 => self.stale_read(n),
            760..860 => {
                let index = self.some_index(n);
                let call = self.invoke(n, What::Read { index, linear: true });
                self.begin(n, Some(call), Want::Look { index: Some(index) })
            }
            860..960 => {
                let call = self.invoke(n, What::Info);
                self.begin(n, Some(call), Want::Look { index: None })
            }
            // A disk that is to stay full gets no room by discards.
            960..990 if keeps_all => Ok(()),
            960..990 => {
                let log = self.clients[n].log;
                let last = self.oracle.contents.last(log).0;
                let client = &mut self.clients[n];
                let first = if client.rng.permille(40) {
                    Index(last + client.rng.between(2, 9))
                } else {
                    Index(client.rng.between(1, last.max(1) * 9 / 10 + 1))
                };
                let call = self.invoke(n, What::Discard { first });
                self.oracle.contents.note_discard(log, first);
                self.begin(n, Some(call), Want::Discard(first))
            }
            _ => match client.session.take_if(|_| client.ops.is_empty()) {
                Some(session) => self.begin(n, None, Want::Close(session.id)),
                None => Ok(()),
            },
        }
    }

    fn invoke(&mut self, n: usize, what: What) -> usize {
        let (now, Client { id, log, .. }) = (self.now(), &self.clients[n]);
        self.history.invoke(now, *id, *log, what)
    }

    fn new_append(&mut self, n: usize) -> Check {
        let client = &mut self.clients[n];
        let (batch, records) = client.new_batch().map_err(|e| format!("cannot build a batch: {e}"))?;
        let session = client.session.as_mut().map(|s| {
            let sequence = Sequence(s.next);
            s.next += 1;
            (s.id, sequence)
        });
        self.oracle.contents.proposed(self.clients[n].log, &records);
        let call = self.invoke(n, What::Append { records: records.clone(), session });
        self.begin(n, Some(call), Want::Append { batch, records, sequence: session.map(|s| s.1) })
    }

    fn begin(&mut self, n: usize, call: Option<usize>, want: Want) -> Check {
        let not_before = self.now();
        let since = not_before;
        self.clients[n].ops.push_back(Op { call, want, attempt: None, in_doubt: false, not_before, since });
        self.send_again(n)
    }

    /// A random index in the log, or a little beyond.
    fn some_index(&mut self, n: usize) -> Index {
        let last = self.oracle.contents.last(self.clients[n].log).0;
        Index(self.clients[n].rng.between(1, last + 2))
    }

    /// Reads a replica's state without a barrier.
    fn stale_read(&mut self, n: usize) -> Check {
        let index = self.some_index(n);
        let node = self.choose_target(n);
        let call = self.invoke(n, What::Read { index, linear: false });
        match self.read_at(node, self.clients[n].log, index)? {
            Some(seen) => self.record_reply(call, Reply::Read(seen)),
            None => self.record_reply(call, Reply::Nothing),
        }
        Ok(())
    }

    /// Reads one record; `None` if no process runs there, or a fault explains that it cannot be read.
    fn read_at(&mut self, node: NodeId, log: LogNumber, index: Index) -> Check<Option<Seen>> {
        let before = self.store_faults();
        let Some(machine) = self.machine(node) else { return Ok(None) };
        let error = match machine.read(log, index) {
            Ok(record) => {
                return match number_of(&record) {
                    Some(number) => Ok(Some(Seen::Record(number))),
                    None => Err(format!("node {node} returned damaged bytes at {index} of log {log}")),
                };
            }
            Err(e) if e.kind() == ErrorKind::Discarded => return Ok(Some(Seen::Discarded)),
            Err(e) if e.kind() == ErrorKind::OutOfRange => return Ok(Some(Seen::Beyond)),
            Err(error) => error,
        };
        if self.may_not_read(node, log, before, &error) {
            return Ok(None);
        }
        Err(format!("node {node}, reading {index} of log {log}: {error:?}"))
    }

    /// Whether a fault explains that a replica cannot read a record. `before`: the faults of the object store before it tried.
    fn may_not_read(&mut self, node: NodeId, log: LogNumber, before: u64, error: &Error) -> bool {
        let Some(host) = self.hosts.get(&node) else { return true };
        match error.kind() {
            ErrorKind::Io | ErrorKind::Corrupt if host.maimed.is_some() || host.disk.faults_fired() > 0 => {
                self.oracle.excuse(excuse::DISK);
                true
            }
            ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Unavailable => {
                let mut faults = StoreFaults::since(self.vault.clone(), &host.disk, before);
                let is_explained = faults.explain(error, None);
                self.oracle.excuse_all(faults.take_excuses());
                is_explained
            }
            // It has not heard of the log yet.
            ErrorKind::NotFound if !log.is_none() => {
                let heard = host.machine.as_ref().map(|machine| machine.summary().committed_raft);
                let is_new = self.oracle.contents.first_entry_of(log).is_none_or(|first| heard < Some(first));
                if is_new {
                    self.oracle.excuse(excuse::NEW_LOG);
                }
                is_new
            }
            _ => false,
        }
    }

    fn record_reply(&mut self, call: usize, reply: Reply) {
        let now = self.now();
        self.history.answer(now, call, reply);
    }

    /// Mostly the replica of the last request, sometimes another one.
    fn choose_target(&mut self, n: usize) -> NodeId {
        let up = self.up();
        let client = &mut self.clients[n];
        let elsewhere = client.rng.permille(150) || !up.contains(&client.target);
        if elsewhere { client.rng.pick(&up).copied().unwrap_or(client.target) } else { client.target }
    }

    /// Makes one attempt at a request.
    fn attempt(&mut self, n: usize, place: usize) -> Check {
        let node = match self.clients[n].ops[place].want {
            Want::Append { .. } if self.clients[n].in_session => self.clients[n].target,
            _ => self.choose_target(n),
        };
        let log = self.clients[n].log;
        let request = match &self.clients[n].ops[place].want {
            Want::Append { batch, .. } => Request::Append(log, batch.clone()),
            Want::Look { .. } => Request::Barrier,
            Want::Discard(first) => Request::Discard(log, *first),
            Want::Open => Request::OpenSession(log),
            Want::Close(id) => Request::CloseSession(log, *id),
        };
        let wait_limit = Duration::from_millis(self.clients[n].rng.between(300, 3000));
        match self.submit(Asker::Client(n), node, request, wait_limit) {
            Some(Ok(attempt)) => {
                self.clients[n].ops[place].attempt = Some(attempt);
                Ok(())
            }
            Some(Err(error)) => self.on_result_at(n, place, Some((node, Err(error)))),
            None => {
                self.look_elsewhere(n);
                self.later(n, place);
                Ok(())
            }
        }
    }

    /// Retries this request after a while, and all later ones after it.
    fn later(&mut self, n: usize, place: usize) {
        let at = self.now().plus(RETRY_DELAY);
        let mut given_up = Vec::new();
        for op in self.clients[n].ops.iter_mut().skip(place) {
            if matches!(op.want, Want::Append { sequence: Some(_), .. }) || op.attempt.is_none() {
                op.not_before = op.not_before.max(at);
                if let Some(attempt) = op.attempt.take() {
                    op.in_doubt = true;
                    given_up.push(attempt);
                }
            }
        }
        for attempt in given_up {
            self.forget(attempt);
        }
    }

    fn look_elsewhere(&mut self, n: usize) {
        let up = self.up();
        let target = self.clients[n].target;
        let hint = self.machine(target).and_then(|m| m.summary().leader);
        let client = &mut self.clients[n];
        let any = client.rng.pick(&up).copied();
        let hint = hint.filter(|h| *h != target && client.rng.permille(800));
        client.target = hint.or(any).unwrap_or(target);
    }

    pub(in crate::testing::sim) fn on_client_result(
        &mut self,
        n: usize,
        attempt: u64,
        result: Option<(NodeId, LogResult<Appended>)>,
    ) -> Check {
        let Some(place) = self.clients[n].op_of(attempt) else { return Ok(()) };
        self.clients[n].ops[place].attempt = None;
        self.on_result_at(n, place, result)
    }

    /// The answer to an attempt; `None`: no answer came in time.
    fn on_result_at(
        &mut self,
        n: usize,
        place: usize,
        result: Option<(NodeId, LogResult<Appended>)>,
    ) -> Check {
        let (node, result) = match result {
            Some((node, Ok(appended))) => return self.succeeded(n, place, node, appended),
            Some((node, Err(error))) => (node, Some(error)),
            None => (self.clients[n].target, None),
        };
        let kind = result.as_ref().map(crate::error::Error::kind);
        let in_session = self.clients[n].in_session;
        let op = &mut self.clients[n].ops[place];
        let appends = matches!(op.want, Want::Append { .. });
        if kind == Some(ErrorKind::TooManySessions) {
            self.counts.add(Fault::SessionsFull);
        }
        let op = &mut self.clients[n].ops[place];
        if kind == Some(ErrorKind::SessionExpired) && in_session && appends {
            return self.session_gone(n, result.map_or_else(String::new, |e| e.to_string()));
        }
        match kind.map_or(Verdict::Unknown, verdict) {
            Verdict::Done => return self.finish(n, place, Reply::Appended(None)),
            Verdict::Wrong => {
                return Err(format!("node {node} answered client {n} {:?} with {result:?}", op.want));
            }
            Verdict::Unknown => op.in_doubt = true,
            Verdict::Refused => {}
        }
        if kind == Some(ErrorKind::SequenceGap) {
            self.gap(n, place, result.map_or_else(String::new, |e| e.to_string()))?;
        }
        self.look_elsewhere(n);
        if in_session && appends {
            self.later(n, place);
            return Ok(());
        }
        let is_crowded = kind == Some(ErrorKind::TooManySessions) && self.may_be_crowded();
        let client = &mut self.clients[n];
        let op = &client.ops[place];
        if is_crowded {
            client.failing_since = None;
        } else if appends || matches!(op.want, Want::Open) {
            client.failing_since.get_or_insert(op.since);
        }
        let reply = if op.in_doubt { Reply::Nothing } else { Reply::Refused };
        self.finish(n, place, reply)
    }

    /// Whether the sessions that are open can be as many as may be: there are few, or the log's time stands still while they should expire.
    pub(super) fn may_be_crowded(&self) -> bool {
        self.plan.sessions_max.is_some()
            || self.plan.logs > 0
            || (self.plan.sessions_expire() && !self.plan.clocks_are_right())
    }

    /// The oldest append without an answer comes right after acknowledged ones: there is no gap before it.
    fn gap(&self, n: usize, place: usize, error: String) -> Check {
        let oldest = self.clients[n].ops.iter().position(|op| matches!(op.want, Want::Append { .. }));
        if oldest == Some(place) {
            return Err(format!("client {n}: an acknowledged append of its session was forgotten: {error}"));
        }
        Ok(())
    }

    /// The log does not know the session any more.
    fn session_gone(&mut self, n: usize, error: String) -> Check {
        if !self.plan.sessions_expire() {
            return Err(format!("client {n}: its session was forgotten: {error}"));
        }
        let session = self.clients[n].session.take();
        let active = session.and_then(|s| s.active);
        if let Some(active) = active.filter(|_| self.plan.clocks_are_right()) {
            let idle = self.now().since(active) + CLOCKS_APART;
            if idle < self.plan.session_idle_max {
                return Err(format!("client {n}: its session was forgotten after {idle:?}: {error}"));
            }
        }
        // A session that never appended may have been closed for another one.
        let crowded = self.plan.sessions_max.is_some() && active.is_none();
        self.counts.add(if crowded { Fault::SessionEvicted } else { Fault::SessionExpired });
        while let Some(op) = self.clients[n].ops.front() {
            let reply = if op.in_doubt || op.attempt.is_some() { Reply::Nothing } else { Reply::Refused };
            if let Some(attempt) = op.attempt {
                self.forget(attempt);
            }
            self.finish(n, 0, reply)?;
        }
        Ok(())
    }

    fn succeeded(&mut self, n: usize, place: usize, node: NodeId, appended: Appended) -> Check {
        let log = self.clients[n].log;
        if matches!(self.clients[n].ops[place].want, Want::Append { .. } | Want::Open) {
            self.clients[n].failing_since = None;
        }
        match self.clients[n].ops[place].want.clone() {
            Want::Append { records, .. } => {
                self.acknowledged(node, log, appended, &records)?;
                let since = self.clients[n].ops[place].since;
                if let Some(session) = &mut self.clients[n].session {
                    session.active = session.active.max(Some(since));
                }
                self.clients[n].target = node;
                self.finish(n, place, Reply::Appended(Some(appended.first)))
            }
            Want::Look { index } => {
                let Some(machine) = self.machine(node) else { return self.finish(n, place, Reply::Nothing) };
                let (committed, barrier) = (machine.summary().committed, appended.first);
                if committed < barrier {
                    return Err(format!(
                        "node {node}: after a barrier at {barrier} its log ends at {committed}"
                    ));
                }
                let (first, last) =
                    machine.range(log).map_err(|e| format!("node {node}, after a barrier: {e:?}"))?;
                let reply = match index {
                    None => Reply::Info(first, last),
                    Some(index) => self.read_at(node, log, index)?.map_or(Reply::Nothing, Reply::Read),
                };
                self.finish(n, place, reply)
            }
            Want::Discard(_) => self.finish(n, place, Reply::Discarded),
            Want::Open => {
                self.clients[n].session =
                    Some(Session { id: SessionId(appended.first.0), next: 1, active: None });
                self.finish(n, place, Reply::Nothing)
            }
            Want::Close(_) => self.finish(n, place, Reply::Nothing),
        }
    }

    /// The append of a call in the history has ended. Returns the node that acknowledges it, if one does.
    ///
    /// # Errors
    /// The acknowledgement is wrong.
    pub(in crate::testing::sim) fn append_ended(
        &mut self,
        call: usize,
        result: Option<(NodeId, LogResult<Appended>)>,
    ) -> Check<Option<NodeId>> {
        let now = self.now();
        let Some((node, Ok(appended))) = result else {
            self.history.answer(now, call, Reply::Nothing);
            return Ok(None);
        };
        self.history.answer(now, call, Reply::Appended(Some(appended.first)));
        if let What::Append { records, .. } = self.history.calls[call].what.clone() {
            self.acknowledged(node, self.main_log(), appended, &records)?;
        }
        Ok(Some(node))
    }

    /// A leader has acknowledged that these records are committed.
    pub(in crate::testing::sim) fn acknowledged(
        &mut self,
        node: NodeId,
        log: LogNumber,
        appended: Appended,
        records: &[u64],
    ) -> Check {
        let now = self.now();
        self.story.note(now, || {
            let (count, first) = (records.len(), appended.first);
            format!("node {node}: acknowledges {count} records from {first} of log {log}")
        });
        self.oracle.acknowledged(node, log, appended, records)?;
        self.judge_durability(node, log, appended).map_err(|why| format!("node {node}: {why}"))?;
        let Some(leader) = self.hosts.get(&node) else { return Ok(()) };
        self.oracle.is_durable(log, appended.last(), leader, &self.hosts, &self.plan)
    }

    fn finish(&mut self, n: usize, place: usize, reply: Reply) -> Check {
        if let Some(call) = self.clients[n].ops.remove(place).and_then(|op| op.call) {
            self.record_reply(call, reply);
        }
        Ok(())
    }
}
