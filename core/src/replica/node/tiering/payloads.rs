//! Payloads: with the durability class `object` a leader stores appends in the object store, and replicates references to them.
//!
//! ```text
//!   queue ──> gathered for slice_interval, or up to slice_bytes ──> a payload slice ──put──> stored
//!                                                                                              │
//!   callers <── acknowledged <── committed <── raft <── blocks of references, in the order of the queue
//! ```
//!
//! A block of appends that the queue has gathered keeps its batches' headers and its callers; only its bytes go another way. So sessions,
//! indexes and answers are those of any block. Commands wait behind the appends before them, except for one that opens a named log: it
//! goes before them.
//!
//! Invariants:
//! - a reference is proposed only once the object store has confirmed its slice (P1);
//! - references are proposed in the order of their slices, by the leader that stored them and in the term in which it did. So in the log
//!   they are in the order of term and sequence, and an entry's references are of the entry's own term (P2);
//! - appends whose slice is not stored, or whose leader was deposed before it proposed them, are surely not in the log;
//! - appends to several logs that belong together go there only if each of these logs takes them: a log that is made of the object store
//!   takes what it finds there, and would take one without the other (P8);
//! - a slice is put only once an entry of its term is committed: so the term is durable, and no later process puts other bytes under its
//!   name (P4);
//! - before the first put and the first deletion of a term the object store has no slice of it, and none of a later one (P5). Otherwise
//!   this directory is an old copy of the log: it was restored from an image of the disk, or runs twice. Its terms are not its own then;
//! - all that waits here, commands and blocks that do not go to the object store too, is bounded by `queue_bytes_max` and
//!   `queue_appends_max`, and one turn of the queue. Appends that were committed and wait for slices of entries are up to
//!   `queue_appends_max` more, and wait up to 10 s: see `confirmation`.
//!
//! Must not know: the network, which object store it is.

use super::super::Node;
use super::super::publish::Kept;
use super::awaited_logs::AwaitedLogs;
use super::commits::Commits;
use super::payload_jobs::{Begun, PUTS_AT_A_TIME, Put, PutDone, PutThreads};
use super::placement::Placement;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::options::log_options::LogOption;
use crate::random::SplitMix;
use crate::record::reference::{PAYLOAD_HEADER_BYTES, PayloadId, Reference};
use crate::replica::node::fail;
use crate::replica::queue::inbox::{AdminRequest, InboxEvent};
use crate::replica::queue::proposals::{BlockBuilder, Command, LogCommand, Proposal, StoredAt};
use crate::store::objects::payloads::PayloadHead;
use crate::sync::clock::Moment;
use crate::sync::completer::Completer;
use crate::sync::completion::Ticket;
use crate::types::{EntryIndex, LogNumber, Term, Timestamp};
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a slice is tried again before its appends fail.
const PUT_LIMIT: Duration = Duration::from_secs(10);
/// The delay after a failure: the initial and the maximum one.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// How long the change that lets a log refer may wait for the other members.
const OPTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that an append, or a command, counts for in addition to its own.
const HELD_BYTES_EACH: usize = 128;
/// Without threads, the result of a put arrives so much later.
const UNAIDED: Range<Duration> = Duration::ZERO..Duration::from_millis(40);

/// The state of a log's payload slices at one replica.
#[derive(Debug)]
pub(in crate::replica::node) struct PayloadGate {
    /// Proposals that wait, in the order of the queue.
    held: VecDeque<Held>,
    /// The slices of what waits, in order. The last one may still take appends.
    slices: VecDeque<Slice>,
    /// The weight of all that waits.
    weight: Weight,
    /// How many of the commands that wait end a log.
    ending: usize,
    /// The term and the number of the next slice.
    next: PayloadId,
    /// Whether something else than payload was taken from the queue since the last batches that go to a slice.
    breaks: bool,
    threads: PutThreads,
    /// The term in which this replica leads, and the number of times that this has changed.
    leads: Option<Term>,
    leadership: u64,
    under_way: usize,
    /// Puts of earlier leaderships that have not ended.
    outdated: usize,
    done: Arc<Mutex<Vec<PutDone>>>,
    /// Results that arrive later, without threads.
    later: Vec<(Moment, PutDone)>,
    unaided_takes: Range<Duration>,
    random: SplitMix,
    /// Whether the object store is known to be this log's.
    is_checked: bool,
    /// Whether it is known to have no slices of the present term but those of this leader, and none of a later one.
    is_term_checked: bool,
    /// The last failure, until a slice is stored whose put began after one.
    failed: Option<Error>,
    /// The log is being closed: nothing is gathered any longer.
    hurries: bool,
    /// Which entries of this leader's the object store has.
    pub(super) placement: Placement,
    /// When those entries were committed whose appends wait for the object store.
    pub(super) commits: Commits,
    /// The blocks of named logs among these.
    pub(super) awaited_logs: AwaitedLogs,
    /// Appends do not wait as long as the object store has the log up to this entry: some have waited too long.
    pub(super) gave_up: Option<EntryIndex>,
    /// Whether this was reported.
    pub(super) is_reported: bool,
    /// Until then a change that lets the log refer may be waiting.
    asked_until: Moment,
    /// The answer to it, and the last refusal that was reported.
    asked: Option<Ticket>,
    refused: Option<String>,
    /// The blocks of which the queue knows that this leader puts their payload into the object store.
    tells: Option<Mixed>,
    /// Bytes by which blocks that were released are smaller than their appends.
    referred: u64,
    /// Slices were deleted as far as this entry, and when they are looked for again.
    pub(super) swept: Option<EntryIndex>,
    pub(super) sweep_at: Moment,
}

/// A proposal that waits.
#[derive(Debug)]
enum Held {
    /// A block of appends: its slice, its offset there, and whether something else was in the queue before it.
    Block { slice: PayloadId, offset: u32, breaks: bool, gathered: BlockBuilder },
    /// A command, or a block that does not go to the object store.
    Other(Proposal),
}

impl Held {
    /// The memory that this takes: of a block the payload, a header and a caller for each append; a command counts as an append.
    fn weight(&self) -> Weight {
        let (bytes, appends) = match self {
            Self::Block { gathered, .. } | Self::Other(Proposal::Data(gathered)) => {
                (gathered.bytes, gathered.batches.len())
            }
            Self::Other(Proposal::Command(..)) => (0, 1),
        };
        Weight { bytes: bytes + appends * HELD_BYTES_EACH, appends }
    }

    fn ends_log(&self) -> bool {
        matches!(self, Self::Other(item) if ends_log(item))
    }
}

/// The weight of proposals that wait, as it is bounded.
#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    bytes: usize,
    appends: usize,
}

/// Whether blocks of appends are those of a group that named logs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mixed(bool);

/// A payload slice.
#[derive(Debug)]
struct Slice {
    id: PayloadId,
    /// The bytes of its batches, until it is stored.
    pieces: Vec<Bytes>,
    /// The header, and the batches.
    bytes: u32,
    batches: u32,
    /// The offsets of batches before which something else was in the queue.
    breaks: Vec<u32>,
    /// Of a shared group: the logs of its batches, each up to an offset.
    logs: Vec<(LogNumber, u32)>,
    /// When it was put first.
    time: Option<Timestamp>,
    began: Moment,
    state: State,
    /// After a failure: when it is tried again.
    again: Moment,
    waited: Duration,
}

#[derive(Debug)]
enum State {
    Gathering,
    Waiting,
    UnderWay,
    Stored,
    Failed(Error),
}

impl Slice {
    fn new(id: PayloadId, now: Moment) -> Self {
        Self {
            id,
            pieces: Vec::new(),
            bytes: PAYLOAD_HEADER_BYTES as u32,
            batches: 0,
            breaks: Vec::new(),
            logs: Vec::new(),
            time: None,
            began: now,
            state: State::Gathering,
            again: now,
            waited: Duration::ZERO,
        }
    }

    fn head(&self) -> PayloadHead {
        let (batches, breaks, logs) = (self.batches, self.breaks.clone(), self.logs.clone());
        PayloadHead { batches, time: self.time.unwrap_or_default(), end: self.bytes, breaks, logs }
    }

    /// Adds the batches of a block, without their bytes.
    fn add(&mut self, gathered: &BlockBuilder) {
        for (log, bytes) in gathered.bytes_by_log() {
            self.bytes += bytes as u32;
            let of = if planted!(156) { self.logs.first().map_or(log, |(first, _)| *first) } else { log };
            match self.logs.last_mut().filter(|(last, _)| *last == of) {
                Some((_, end)) => *end = self.bytes,
                None => self.logs.push((of, self.bytes)),
            }
        }
        if !gathered.is_mixed() {
            self.bytes += gathered.bytes as u32;
        }
        self.batches += gathered.batches.len() as u32;
    }
}

impl PayloadGate {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            held: VecDeque::new(),
            slices: VecDeque::new(),
            weight: Weight::default(),
            ending: 0,
            next: PayloadId::default(),
            breaks: false,
            threads: PutThreads::new(),
            leads: None,
            leadership: 0,
            under_way: 0,
            outdated: 0,
            done: Arc::default(),
            later: Vec::new(),
            unaided_takes: UNAIDED,
            random: SplitMix(seed ^ 0x7061_796c_6f61_6473),
            is_checked: false,
            is_term_checked: false,
            failed: None,
            hurries: false,
            placement: Placement::default(),
            commits: Commits::default(),
            awaited_logs: AwaitedLogs::default(),
            gave_up: None,
            is_reported: false,
            asked_until: Moment::default(),
            asked: None,
            refused: None,
            tells: None,
            referred: 0,
            swept: None,
            sweep_at: Moment::default(),
        }
    }

    /// Whether nothing waits here.
    pub(in crate::replica::node) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether more may be taken from a queue with these limits.
    pub(in crate::replica::node) fn has_room(&self, options: &Options) -> bool {
        let is_bounded =
            self.weight.bytes < options.queue_bytes_max && self.weight.appends < options.queue_appends_max;
        is_bounded || planted!(131)
    }

    fn hold(&mut self, held: Held) {
        let more = held.weight();
        self.weight.bytes += more.bytes;
        self.weight.appends += more.appends;
        self.ending += usize::from(held.ends_log());
        self.held.push_back(held);
    }

    fn let_go(&mut self, at: usize) -> Option<Held> {
        let held = self.held.remove(at)?;
        let less = held.weight();
        self.weight.bytes -= less.bytes;
        self.weight.appends -= less.appends;
        self.ending -= usize::from(held.ends_log());
        Some(held)
    }

    /// This replica leads in this term, or does not lead. The rest of an earlier leadership does not count in a later one: neither its
    /// failure, nor its puts that have not ended, nor the threads that these occupy. Returns whether this is new.
    fn lead(&mut self, term: Option<Term>) -> bool {
        if self.leads == term {
            return false;
        }
        (self.leads, self.failed, self.swept, self.is_term_checked) = (term, None, None, false);
        (self.commits, self.gave_up, self.is_reported) = (Commits::default(), None, false);
        self.awaited_logs.clear();
        self.leadership += 1;
        if self.under_way > 0 {
            self.outdated += std::mem::take(&mut self.under_way);
            self.threads = PutThreads::new();
        }
        true
    }

    /// How many puts may be under way: the first one of a term looks for slices of another history, before there are any of its own.
    fn puts_max(&self) -> usize {
        if self.is_term_checked { PUTS_AT_A_TIME } else { 1 }
    }

    /// Bytes by which the log's blocks are smaller than the appends that this replica has referred to.
    pub(super) fn referred(&self) -> u64 {
        self.referred
    }

    /// The log is being closed.
    pub(in crate::replica::node) fn hurry(&mut self) {
        self.hurries = true;
    }

    /// Whether it is.
    pub(super) fn hurries(&self) -> bool {
        self.hurries
    }

    /// Without threads, the results of puts arrive so much later from now on.
    #[cfg(feature = "testing")]
    pub(in crate::replica::node) fn puts_take(&mut self, time: Range<Duration>) {
        self.unaided_takes = time;
    }

    /// Fails all that waits: none of it was proposed.
    pub(in crate::replica::node) fn fail_all(&mut self, error: &Error) {
        for held in self.held.drain(..) {
            match held {
                Held::Block { gathered, .. } => fail(Proposal::Data(gathered), error),
                Held::Other(item) => fail(item, error),
            }
        }
        self.slices.clear();
        (self.weight, self.ending) = (Weight::default(), 0);
    }

    /// Takes a proposal from the queue. `refers`: its bytes go to the object store, if it is a block of a shared group, or of none.
    /// Returns how many of its bytes do not come into the log.
    fn take(
        &mut self,
        item: Proposal,
        refers: Option<Mixed>,
        slice_bytes: u32,
        term: Term,
        now: Moment,
    ) -> usize {
        // Where references would take more room than what they stand for, it stays: a block only becomes smaller.
        let more = match (&item, refers) {
            (Proposal::Data(gathered), Some(Mixed(of_mixed))) => gathered.beyond_references(of_mixed),
            _ => None,
        };
        let (mut gathered, more) = match (item, more) {
            (Proposal::Data(gathered), Some(more)) => (gathered, more),
            (other, _) => {
                self.breaks = true;
                self.hold(Held::Other(other));
                return 0;
            }
        };
        if self.next.term != term {
            self.next = PayloadId { term, sequence: 1 };
        }
        let (id, bytes) = (self.next, gathered.payload_bytes() as u32);
        let fits = |slice: &&mut Slice| {
            matches!(slice.state, State::Gathering)
                && (slice.batches == 0 || slice.bytes.saturating_add(bytes) <= slice_bytes)
        };
        if self.slices.back_mut().filter(fits).is_none() {
            self.seal();
            self.slices.push_back(Slice::new(id, now));
            self.next.sequence += 1;
        }
        let Some(slice) = self.slices.back_mut() else { return 0 };
        let (offset, breaks) = (slice.bytes, std::mem::take(&mut self.breaks));
        if breaks {
            slice.breaks.push(offset);
        }
        slice.pieces.extend(gathered.take_payload());
        slice.add(&gathered);
        let slice = slice.id;
        self.hold(Held::Block { slice, offset, breaks, gathered });
        more
    }

    /// The slice that is being gathered can be put at once: none waits for its turn.
    fn is_free(&self) -> bool {
        self.under_way < self.puts_max() && !self.slices.iter().any(|s| matches!(s.state, State::Waiting))
    }

    /// Gives up slices that are not stored after [`PUT_LIMIT`], if the object store fails now.
    fn expire(&mut self, now: Moment) {
        let Some(error) = self.failed.as_ref().filter(|_| !planted!(130)) else { return };
        for slice in &mut self.slices {
            let waits = matches!(slice.state, State::Gathering | State::Waiting);
            if waits && now.since(slice.began) >= PUT_LIMIT {
                slice.pieces = Vec::new();
                slice.state = State::Failed(not_stored(error));
            }
        }
    }

    /// The slice that is being gathered takes nothing more.
    fn seal(&mut self) {
        if let Some(slice) = self.slices.back_mut().filter(|slice| matches!(slice.state, State::Gathering)) {
            slice.state = State::Waiting;
        }
    }

    fn take_done(&mut self, now: Moment) -> Vec<PutDone> {
        let mut done = std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner));
        let is_due = |(at, _): &mut (Moment, PutDone)| *at <= now;
        done.extend(self.later.extract_if(.., is_due).map(|(_, done)| done));
        let current: Vec<_> = done.extract_if(.., |done| done.leadership == self.leadership).collect();
        (self.under_way, self.outdated) = (self.under_way - current.len(), self.outdated - done.len());
        current
    }

    fn find(&mut self, id: PayloadId) -> Option<&mut Slice> {
        self.slices.iter_mut().find(|slice| slice.id == id)
    }

    /// Whether the slices of this term in the object store are those of this leader alone, for certain, or it has none under way.
    pub(super) fn has_clear_term(&self) -> bool {
        self.is_term_checked || self.slices.is_empty()
    }

    /// Whether the object store is known to have no slices of the present term of another leader.
    pub(super) fn has_checked_term(&self) -> bool {
        self.is_term_checked
    }

    /// The first slice to which this leader may still refer.
    pub(super) fn next_referred(&self, term: Term) -> PayloadId {
        let first = PayloadId { term, sequence: if self.next.term == term { self.next.sequence } else { 1 } };
        self.slices.front().map_or(first, |slice| slice.id.min(first))
    }

    /// When something is due. `can_put`: slices can be put now.
    fn deadline(&self, interval: Duration, can_put: bool) -> Option<Moment> {
        let (is_free, failed) = (self.is_free(), self.failed.is_some());
        let of = |slice: &Slice| {
            let expires = failed.then(|| slice.began.plus(PUT_LIMIT));
            let put = match slice.state {
                State::Gathering if can_put && self.hurries => Some(slice.began),
                State::Gathering if can_put && is_free => Some(slice.began.plus(interval)),
                State::Waiting if can_put && self.under_way < self.puts_max() => Some(slice.again),
                State::Gathering | State::Waiting => None,
                _ => return None,
            };
            put.into_iter().chain(expires).min()
        };
        let slices = self.slices.iter().filter_map(of);
        slices.chain(self.later.iter().map(|(at, _)| *at)).min()
    }
}

impl Node {
    /// Takes proposals from the queue, and makes a step of the payload slices: gathered ones are put, and what is stored is proposed next,
    /// in the order of the queue.
    pub(in crate::replica::node) fn refer(&mut self, taken: VecDeque<Proposal>, now: Moment) -> Result<()> {
        let refers = self.refers().then(|| Mixed(self.replica.sequencer.logs().is_shared()));
        let leads = self.replica.is_leader().then(|| self.replica.term());
        if self.tiering.payloads.lead(leads) {
            self.tiering.lacking = None; // it counts the payload that this replica has referred to, and not that of others
        }
        self.tiering.payloads.placement.lead(leads);
        let may_have_referred =
            self.replica.sequencer.committed().options.get(LogOption::PayloadSlices).is_some();
        if let Some((term, first)) = leads.zip(self.replica.first_of_its_term()).filter(|_| may_have_referred)
        {
            self.tiering.payloads.placement.begin(term, first);
        }
        if self.tiering.payloads.tells != refers {
            self.tiering.payloads.tells = refers;
            self.queue.tells_elsewhere(refers.map(|Mixed(of_mixed)| of_mixed));
        }
        let gate = &self.tiering.payloads;
        if refers.is_none() && gate.is_empty() && gate.under_way == 0 && gate.outdated == 0 {
            self.tiering.payloads.breaks |= !taken.is_empty();
            self.items.extend(taken);
            return Ok(());
        }
        let (term, slice_bytes) = (self.replica.term(), self.options.slice_bytes);
        let mut elsewhere = 0;
        for item in taken {
            // It overtakes what waits, as thousands of logs are opened at once. No append that waits is of its log. A deletion that
            // waits may have to make room for it in a full group: then it is refused as `Full`, and made again. Payload behind it begins with
            // a break.
            if matches!(
                item,
                Proposal::Command(_, Command::Log(LogCommand::Open { .. }) | Command::OpenAfter { .. }, _)
            ) {
                self.tiering.payloads.breaks = true;
                self.items.push_back(item);
                continue;
            }
            let refers = refers.filter(|_| !self.may_refuse_together(&item) || planted!(182));
            elsewhere += self.tiering.payloads.take(item, refers, slice_bytes, term, now);
        }
        self.queue.goes_elsewhere(elsewhere);
        for done in self.tiering.payloads.take_done(now) {
            self.end_put(done, now);
        }
        self.tiering.payloads.expire(now);
        // Until then a slice of this term could be put again, after a crash, with other bytes: the term may not be durable.
        if self.replica.has_committed_in_its_term() || planted!(126) {
            self.start_puts(now);
        }
        self.release();
        Ok(())
    }

    /// Whether a log can refuse one of the appends of a block that belong together. Otherwise none will: what ends a log is in the queue, and
    /// keeps its place there.
    fn may_refuse_together(&self, item: &Proposal) -> bool {
        let Proposal::Data(gathered) = item else { return false };
        if !gathered.has_together() {
            return false;
        }
        let logs = self.replica.sequencer.logs();
        let is_ending = self.tiering.payloads.ending > 0 || self.items.iter().any(ends_log);
        is_ending || gathered.with_logs().any(|(log, _)| logs.check_append(log).is_err())
    }

    /// Tells whether the object store has to have something of this log.
    pub(super) fn begun(&self) -> Begun {
        let (committed, archive) = (self.replica.sequencer.committed(), self.writer.archive.clone());
        let (behind, upto) = (archive.first().raft, self.writer.written().end.raft);
        let refers = committed.options.get(LogOption::PayloadSlices).is_some();
        Begun { has_objects: committed.objects.has_begun(), refers, archive, behind, upto }
    }

    /// Whether appends go to the object store now.
    pub(in crate::replica::node) fn refers(&self) -> bool {
        let is_set = self.replica.sequencer.committed().options.get(LogOption::PayloadSlices) == Some(1);
        let can = self.tiering.vault.is_some() && self.options.slice_interval.is_some();
        is_set && can && self.replica.is_leader()
    }

    fn end_put(&mut self, done: PutDone, now: Moment) {
        let (counters, path) = (&self.published.counters, &self.tiering.path);
        let gate = &mut self.tiering.payloads;
        gate.is_term_checked |= done.is_term_checked;
        let result = match done.result {
            Ok(()) => {
                gate.is_checked = true;
                // One that was under way says nothing of a failure since.
                if gate.failed.is_none() || done.checks_there {
                    self.published.store_works(Kept::Payloads);
                    if gate.failed.take().is_some() {
                        tracing::info!(path = %path.display(), "payload slices are stored again");
                    }
                }
                Ok(())
            }
            Err(error) => {
                counters.payload_failures.fetch_add(1, Ordering::Relaxed);
                self.published.store_fails(Kept::Payloads, &error, self.options.clock.now());
                if gate.failed.as_ref().map(Error::kind) != Some(error.kind()) {
                    tracing::warn!(path = %path.display(), %error, "a payload slice cannot be stored; it is tried again");
                }
                gate.failed = Some(error.clone());
                Err(error)
            }
        };
        // The appends of a slice that is not here any more were refused.
        let Some(slice) = gate.find(done.id) else { return };
        slice.state = match result {
            Ok(()) => {
                counters.stored_payload(slice.bytes.into());
                slice.pieces = Vec::new();
                State::Stored
            }
            Err(error) if now.since(slice.began) >= PUT_LIMIT => {
                slice.pieces = Vec::new();
                State::Failed(not_stored(&error))
            }
            Err(_) => {
                slice.waited = (slice.waited * 2).clamp(RETRY_MIN, RETRY_MAX);
                slice.again = now.plus(slice.waited);
                State::Waiting
            }
        };
    }

    /// Puts the slices that are due, up to [`PUTS_AT_A_TIME`] at a time.
    fn start_puts(&mut self, now: Moment) {
        let interval = self.options.slice_interval.unwrap_or_default();
        let (log, slice_bytes, unaided) = (self.tiering.log, self.options.slice_bytes, self.tiering.unaided);
        let (vault, readers) = (self.tiering.vault.clone(), self.writer.archive.payloads().ok());
        let time = self.replica.time(now);
        let begun = (!self.tiering.payloads.is_checked).then(|| self.begun());
        let gate = &mut self.tiering.payloads;
        // As long as others wait for their turn it would only be one more of them.
        let is_free = gate.is_free();
        let is_due =
            |slice: &Slice| slice.bytes >= slice_bytes || (is_free && now >= slice.began.plus(interval));
        if gate.slices.back().is_some_and(is_due) || gate.hurries {
            gate.seal();
        }
        let Some((vault, readers)) = vault.zip(readers) else { return };
        for n in 0..gate.slices.len() {
            let may = gate.under_way < gate.puts_max();
            let slice = &mut gate.slices[n];
            if !may || !matches!(slice.state, State::Waiting) || slice.again > now {
                continue;
            }
            slice.state = State::UnderWay;
            let (vault, readers, pieces) = (vault.clone(), readers.clone(), slice.pieces.clone());
            slice.time.get_or_insert(time);
            let (id, head) = (slice.id, slice.head());
            // Until the first one has checked it, each does.
            let first = begun.clone();
            let (leadership, checks_term) = (gate.leadership, !gate.is_term_checked);
            let checks_there = gate.failed.is_some();
            let put =
                Put { vault, log, id, leadership, head, pieces, first, checks_term, checks_there, readers };
            gate.under_way += 1;
            if unaided {
                let Range { start, end } = gate.unaided_takes;
                let more = gate.random.below((end - start).as_micros() as usize) as u64;
                gate.later.push((now.plus(start + Duration::from_micros(more)), put.run()));
                continue;
            }
            let (done, queue) = (gate.done.clone(), self.tiering.queue.clone());
            let run = move || {
                let result = put.run();
                done.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                queue.push_event(InboxEvent::JobEnded);
            };
            let under_way = gate.under_way;
            if let Err(error) = gate.threads.run(&self.tiering.path, under_way, Box::new(run)) {
                gate.done.lock().unwrap_or_else(PoisonError::into_inner).push(PutDone {
                    id,
                    leadership,
                    is_term_checked: false,
                    checks_there,
                    result: Err(error),
                });
                self.tiering.queue.push_event(InboxEvent::JobEnded);
            }
        }
    }

    /// Proposes next what waits for nothing any more. If this replica does not lead any more in the term of a slice, its appends are
    /// refused: nothing refers to them.
    fn release(&mut self) {
        let (leads, term) = (self.replica.is_leader(), self.replica.term());
        let gate = &mut self.tiering.payloads;
        let mut released = 0;
        while let Some(front) = gate.held.get(released) {
            let Held::Block { slice: id, offset, breaks, .. } = front else {
                if let Some(Held::Other(item)) = gate.let_go(released) {
                    self.items.push_back(item);
                }
                continue;
            };
            let (id, offset, breaks) = (*id, *offset, *breaks);
            let Some(slice) = gate.slices.iter().find(|slice| slice.id == id) else { return };
            let is_of_now = leads && slice.id.term == term;
            let failure = match &slice.state {
                _ if !is_of_now => Some(deposed()),
                State::Failed(error) => Some(error.clone()),
                State::Stored => None,
                _ if planted!(122) => {
                    released += 1;
                    continue;
                }
                _ => return,
            };
            let (slice_bytes, batches_end) = (slice.head().bytes(), slice.bytes);
            let Some(Held::Block { mut gathered, .. }) = gate.let_go(released) else { return };
            let is_left = |held: &Held| matches!(held, Held::Block { slice: of, .. } if *of == id);
            if !gate.held.iter().any(is_left) {
                gate.slices.retain(|slice| slice.id != id);
            }
            let more = gathered.beyond_references(gathered.is_mixed()).unwrap_or(0);
            self.queue.went_elsewhere(more);
            match failure {
                Some(error) => {
                    let rest = gathered.bytes - more;
                    fail(Proposal::Data(gathered), &error);
                    self.queue.account(rest, 0);
                }
                None => {
                    let (mut at, mut again) = (offset, Vec::new());
                    gathered.refer(|batch| {
                        let (offset, length, crc) = (at, batch.length, batch.crc);
                        at += length;
                        let made = Reference { slice: id, offset, length, crc, slice_bytes }.encode(batch);
                        if planted!(190) {
                            again.push((LogNumber::OWN, made.0, Bytes::copy_from_slice(&made.1)));
                        }
                        made
                    });
                    gate.referred += more as u64;
                    let is_last = at == batches_end;
                    gathered.stored = Some(StoredAt { slice: id, begin: offset, end: at, is_last, breaks });
                    self.items.push_back(Proposal::Data(gathered));
                    if !again.is_empty() {
                        self.items.push_back(Proposal::Data(BlockBuilder::of(&again)));
                    }
                }
            }
        }
    }

    /// When [`Self::refer`] has to be called. None: when something else happens.
    pub(in crate::replica::node) fn payloads_due(&self) -> Option<Moment> {
        let can_put = self.replica.has_committed_in_its_term();
        let gate = &self.tiering.payloads;
        let due = gate.deadline(self.options.slice_interval.unwrap_or_default(), can_put);
        due.into_iter().chain(gate.late_at()).min()
    }

    /// Sets the option that lets the log refer, if this leader was opened for that. It is in the log, so that a replica of an older version
    /// is found before the first reference.
    pub(super) fn begin_payloads(&mut self, now: Moment) -> Result<()> {
        self.report_refusal();
        if !self.wants_payloads() || now < self.tiering.payloads.asked_until {
            return Ok(());
        }
        self.tiering.payloads.asked_until = now.plus(OPTION_TIMEOUT * 2);
        let request = AdminRequest::SetOptions(LogNumber::OWN, vec![(LogOption::PayloadSlices, Some(1))]);
        let completer = Completer::new();
        self.tiering.payloads.asked = Some(completer.ticket(0, 0, 0));
        self.replica.handle_request(request, OPTION_TIMEOUT, completer, now, &mut self.writer.plan)?;
        self.finish(now)
    }

    /// Reports why the log cannot refer yet, for example because a member runs an older version: each reason once.
    fn report_refusal(&mut self) {
        let gate = &mut self.tiering.payloads;
        let Some(answer) = gate.asked.as_ref().and_then(Ticket::poll) else { return };
        gate.asked = None;
        let refusal = answer.err().map(|error| error.to_string());
        if let Some(why) = refusal.as_ref().filter(|why| gate.refused.as_ref() != Some(why)) {
            let path = self.tiering.path.display();
            let what = "payload_slices is set, and cannot be switched on: appends are replicated whole; it is tried again";
            tracing::warn!(%path, %why, "{what}");
        }
        gate.refused = refusal;
    }

    fn wants_payloads(&self) -> bool {
        let is_set = self.replica.sequencer.committed().options.get(LogOption::PayloadSlices).is_some();
        self.options.payload_slices && !is_set && self.replica.is_leader() && self.tiering.vault.is_some()
    }

    /// When [`Self::begin_payloads`] has to be called.
    pub(super) fn payloads_begin_due(&self) -> Option<Moment> {
        self.wants_payloads().then_some(self.tiering.payloads.asked_until)
    }
}

/// Whether it is a command after which a log takes no appends.
fn ends_log(item: &Proposal) -> bool {
    matches!(
        item,
        Proposal::Command(
            _,
            Command::Log(LogCommand::Seal { .. } | LogCommand::Drop { .. }) | Command::PassOver { .. },
            _
        )
    )
}

/// The error of appends whose slice could not be stored.
fn not_stored(error: &Error) -> Error {
    let what =
        format!("the object store did not take the append, and it is not in the log: {error}; try again");
    Error::with_source(ErrorKind::Unavailable, what, error)
}

/// The error of appends whose leader was deposed before it referred to them.
pub(in crate::replica::node) fn deposed() -> Error {
    let what = "this replica lost leadership before the append was in the log; it is not in the log; try again at the leader";
    Error::new(ErrorKind::NotLeader, what)
}
