//! Scrubber: keeps full segments sound. A scrub reads them at a set pace and checks every byte. Where it finds damage,
//! the missing entries are fetched from other replicas and written in place. Damage that a reader, `verify` or the
//! archive has found is examined at once, whatever the scrub's pace and position. The scrub then resumes where it was.
//!
//! ```text
//!   due, or suspected ──> look (job) ──> sound: next piece
//!                           ^   │
//!                           │   └─> gap ──> ask others, one by one ──> fill ──> repair (job) ──┐
//!                           └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A repair that fails is retried later, after a delay that grows from [`AGAIN_MIN`] to [`AGAIN_MAX`]. If every other
//! voter has reported the same entries as damaged, readers get the error that no replica can repair them.
//!
//! The replica continues meanwhile: its acknowledgements hold, and only bytes of committed entries are missing. It
//! cannot send them, because the archive checks what it reads.
//!
//! All reading and syncing is done in background jobs of the helper thread. The node only decides. Without that thread
//! (in a simulation) a job runs at once.
//!
//! Invariants:
//! - the growing segment is not repaired: a node that finds damage in it first rolls to another one;
//! - uncommitted entries are not repaired: they may be truncated at any time;
//! - a segment is held while it is examined, so that its file is not reused.
//!
//! Must not know: elections, the network.

use crate::cluster::membership::Membership;
use crate::cluster::options::ClusterOptions;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::metrics::Counters;
use crate::options::Options;
use crate::replica::queue::inbox::InboxEvent;
use crate::replica::queue::proposals::ProposalQueue;
use crate::replica::raft::Replica;
use crate::replica::repair::fetcher::Fetcher;
use crate::replica::state::sequencer::{Owner, Replayed, Sequencer};
use crate::store::Store;
use crate::store::allocator::Allocator;
use crate::store::read::entry_lookup::Archive;
use crate::store::recovery::gap::{BlockCopy, Gap, Look, Place, Probe};
use crate::store::segment::damage::Helpers;
use crate::store::segment::{Segment, Segments};
use crate::sync::clock::Moment;
use crate::types::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The bytes after which a job ends, at the end of a block. At a slow pace a job reads less.
const PIECE_BYTES: usize = 256 << 10;
/// The time between the end of one pass over all segments and the start of the next.
const REST: Duration = Duration::from_secs(60);
/// The number of requests to each peer before a repair is postponed.
const ROUNDS_MAX: u32 = 20;
/// The delay before a repair is retried: the initial and the maximum one.
const AGAIN_MIN: Duration = Duration::from_secs(5);
const AGAIN_MAX: Duration = Duration::from_secs(60);

/// The state of scrub and repair.
#[derive(Debug)]
pub(crate) struct Scrubber {
    disk: Arc<dyn Disk>,
    segments: Arc<Segments>,
    allocator: Arc<Allocator>,
    queue: Arc<ProposalQueue>,
    options: Options,
    cluster: ClusterOptions,
    state: ScrubState,
    /// The result of the job that was running.
    done: Arc<Mutex<Option<JobResult>>>,
    /// Segments to be examined first.
    suspects: BTreeSet<u64>,
    /// Segments in which a repair failed, and when it is retried.
    given_up: BTreeMap<u64, GivenUp>,
    /// The last segment that this pass has examined.
    passed: u64,
    due: Moment,
}

/// When the repair of a segment is retried, and the delay before that.
#[derive(Clone, Copy, Debug)]
struct GivenUp {
    at: Moment,
    waited: Duration,
}

#[derive(Debug)]
enum ScrubState {
    Idle,
    Examining(Box<Examination>),
    /// A job is running.
    JobRunning,
    Fetching(Box<PendingFetch>),
}

/// The examination of one segment.
#[derive(Debug)]
struct Examination {
    probe: Probe,
    segment: Arc<Segment>,
    /// Damage was found here: the scrub's pace does not apply.
    urgent: bool,
    /// Where the last gap was repaired.
    repaired_at: Option<usize>,
}

#[derive(Debug)]
struct PendingFetch {
    examination: Box<Examination>,
    fetcher: Fetcher,
    opening: Option<BlockCopy>,
    requests: u32,
}

#[derive(Debug)]
enum JobResult {
    Examined { examination: Box<Examination>, bytes: usize, found: Result<Option<ScrubResult>> },
    Repaired { examination: Box<Examination>, gap: Box<Gap>, result: Result<()> },
}

/// The result of an examination.
#[derive(Debug)]
enum ScrubResult {
    /// No damage, up to the segment's end.
    Sound,
    Gap(Box<Gap>, Option<BlockCopy>),
    /// Damage whose extent cannot be determined.
    UnknownExtent(Error),
}

impl Scrubber {
    pub(crate) fn new(
        store: &Store,
        queue: Arc<ProposalQueue>,
        options: Options,
        cluster: ClusterOptions,
        now: Moment,
    ) -> Self {
        Self {
            disk: store.disk.clone(),
            segments: store.segments.clone(),
            allocator: store.allocator.clone(),
            queue,
            options,
            cluster,
            state: ScrubState::Idle,
            done: Arc::default(),
            suspects: BTreeSet::new(),
            given_up: BTreeMap::new(),
            passed: 0,
            due: now,
        }
    }

    /// Whether there is no scrub. A log on its own has no replica to ask; it is verified on demand.
    fn is_off(&self) -> bool {
        self.options.cluster.is_none()
    }

    /// When [`Self::step`] has to be called. None: when there is an event.
    pub(crate) fn deadline(&self, now: Moment) -> Option<Moment> {
        match &self.state {
            _ if self.is_off() => None,
            ScrubState::JobRunning => None,
            ScrubState::Fetching(pending) => Some(pending.fetcher.deadline(now)),
            ScrubState::Examining(examination) if examination.urgent => Some(now),
            ScrubState::Idle | ScrubState::Examining(_) if self.has_suspect() => Some(now),
            ScrubState::Idle | ScrubState::Examining(_) => {
                let again = self.given_up.values().map(|g| g.at).min();
                let again = again.filter(|_| self.segments.damage().is_repaired());
                again.into_iter().chain((self.pace() > 0).then_some(self.due)).min()
            }
        }
    }

    /// Whether damage was found in a segment that can be repaired now.
    fn has_suspect(&self) -> bool {
        self.suspects.iter().any(|n| self.is_full(*n))
    }

    /// Records whether other replicas could repair damage here.
    pub(crate) fn learn(&self, replica: &Replica) {
        let alone = self.is_off() || replica.others().is_empty();
        let helpers = if alone { Helpers::Nobody } else { Helpers::Replicas };
        self.segments.damage().set_helpers(helpers);
    }

    fn pace(&self) -> u64 {
        self.cluster.scrub_bytes_per_second
    }

    fn last(&self) -> Option<u64> {
        self.segments.newest().map(|s| s.number)
    }

    fn is_full(&self, number: u64) -> bool {
        self.last().is_some_and(|last| number < last)
    }

    /// Whether damage was found in the growing segment: the log should roll to the next one.
    pub(crate) fn wants_roll(&self) -> bool {
        self.last().is_some_and(|last| self.suspects.contains(&last))
    }

    /// There is no file to roll to: the damage stays until the segment is full.
    pub(crate) fn cannot_roll(&mut self, error: &Error) {
        if let Some(last) = self.last() {
            tracing::warn!(%error, segment = last, "damage in the growing segment: it is repaired once that segment is full");
            self.suspects.remove(&last);
        }
    }

    /// Makes one step.
    pub(crate) fn step(&mut self, now: Moment, replica: &mut Replica, counters: &Counters) {
        self.learn(replica);
        if self.is_off() {
            return;
        }
        let suspects = self.segments.damage().take_suspects();
        self.suspects.extend(suspects.into_iter().filter(|n| !self.given_up.contains_key(n)));
        let is_repaired = self.segments.damage().is_repaired();
        for (number, given_up) in &mut self.given_up {
            if is_repaired && given_up.at <= now {
                given_up.at = now.plus(given_up.waited); // in case this attempt has no result
                self.suspects.insert(*number);
            }
        }
        loop {
            let before = std::mem::replace(&mut self.state, ScrubState::Idle);
            let continues = match before {
                ScrubState::Idle => self.begin(now),
                ScrubState::Examining(examination) => self.examine_piece(now, examination),
                ScrubState::JobRunning => self.collect_result(now, counters),
                ScrubState::Fetching(pending) => self.fetch(now, pending, replica),
            };
            if !continues {
                return;
            }
        }
    }

    /// Chooses a segment to examine.
    fn begin(&mut self, now: Moment) -> bool {
        let list = self.segments.snapshot();
        let Some((last, full)) = list.split_last() else { return false };
        let is_there = |n: u64| n == last.number || full.iter().any(|s| s.number == n);
        self.suspects.retain(|n| is_there(*n));
        let gone: Vec<u64> = self.given_up.keys().copied().filter(|n| !is_there(*n)).collect();
        for number in gone {
            self.mark_sound(number);
        }
        let suspect = full.iter().find(|s| self.suspects.contains(&s.number));
        let scrubbed = || {
            let due = self.pace() > 0 && now >= self.due;
            full.iter().find(|s| due && s.number > self.passed)
        };
        let urgent = suspect.is_some();
        let Some(segment) = suspect.or_else(scrubbed).cloned() else {
            if self.pace() > 0 && now >= self.due {
                self.passed = 0;
                self.due = now.plus(REST);
            }
            return false;
        };
        let index = list.iter().position(|s| s.number == segment.number);
        if urgent {
            self.suspects.remove(&segment.number);
        } else {
            self.passed = segment.number;
        }
        let (end, data_end) = segment.written();
        let place = Place {
            number: segment.number,
            id: segment.id,
            bytes: segment.bytes,
            base: Some(segment.base),
            end: Some((Some(data_end), end)),
        };
        debug_assert!(index.is_some(), "the segment is in the list");
        let piece = PIECE_BYTES.min(usize::try_from(self.pace()).unwrap_or(usize::MAX)).max(4096);
        match Probe::new(&*self.disk, place, if urgent { PIECE_BYTES } else { piece }) {
            Ok(probe) => {
                self.state = ScrubState::Examining(Box::new(Examination {
                    probe,
                    segment,
                    urgent,
                    repaired_at: None,
                }));
            }
            Err(error) => self.give_up(segment.number, &error, now),
        }
        true
    }

    fn give_up(&mut self, number: u64, error: &Error, now: Moment) {
        let last = self.given_up.get(&number);
        let waited = last.map_or(AGAIN_MIN, |last| last.waited.saturating_mul(2).min(AGAIN_MAX));
        match last {
            None => {
                tracing::error!(%error, segment = number, "damage could not be repaired; the repair will be retried");
            }
            Some(_) => {
                tracing::debug!(%error, segment = number, ?waited, "damage still could not be repaired")
            }
        }
        self.given_up.insert(number, GivenUp { at: now.plus(waited), waited });
        self.suspects.remove(&number);
    }

    /// A segment is sound, or has left the log.
    fn mark_sound(&mut self, number: u64) {
        self.given_up.remove(&number);
        self.segments.damage().mark_sound(number);
    }

    /// Whether the segment still belongs to the log.
    fn is_there(&self, segment: &Arc<Segment>) -> bool {
        self.segments.contains(segment)
    }

    /// Examines a piece, if it is due.
    fn examine_piece(&mut self, now: Moment, mut examination: Box<Examination>) -> bool {
        if !self.is_there(&examination.segment) {
            return true;
        }
        if !examination.urgent && self.has_suspect() {
            self.passed = examination.segment.number.saturating_sub(1); // the scrub will examine it again
            return true;
        }
        if !examination.urgent && now < self.due {
            self.state = ScrubState::Examining(examination);
            return false;
        }
        if !examination.urgent {
            self.due = now; // the job's bytes are added once they are known
        }
        let maker =
            Maker { segments: self.segments.clone(), options: self.options.clone(), node: self.cluster.node };
        let allocator = self.allocator.clone();
        self.start_job(move || {
            let from = examination.probe.at;
            let found = examination.check_piece(&maker).or_else(|error| {
                // Bytes that are missing at the end of the file cannot be read.
                if !allocator.restore_length(&examination.segment)? {
                    return Err(error);
                }
                examination.probe.recheck();
                examination.check_piece(&maker)
            });
            let bytes = examination.probe.at - from;
            JobResult::Examined { examination, bytes, found }
        });
        true
    }

    /// Starts a background job.
    fn start_job(&mut self, job: impl FnOnce() -> JobResult + Send + 'static) {
        let (done, queue) = (self.done.clone(), self.queue.clone());
        self.state = ScrubState::JobRunning;
        self.allocator.run_in_background(move || {
            let outcome = job();
            *done.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            queue.push_event(InboxEvent::JobEnded);
        });
    }

    fn collect_result(&mut self, now: Moment, counters: &Counters) -> bool {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(done) = done else {
            self.state = ScrubState::JobRunning;
            return false;
        };
        match done {
            JobResult::Examined { examination, bytes, found } => {
                counters.scrubbed.fetch_add(bytes as u64, Ordering::Relaxed);
                if !examination.urgent {
                    let nanos = bytes as u128 * 1_000_000_000 / u128::from(self.pace().max(1));
                    self.due = self.due.plus(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
                }
                let number = examination.segment.number;
                match found {
                    Ok(None) => self.state = ScrubState::Examining(examination),
                    Ok(Some(ScrubResult::Sound)) => {
                        self.mark_sound(number);
                    }
                    // Uncommitted entries may have been truncated.
                    Ok(Some(ScrubResult::Gap(gap, _)))
                        if !self.is_there(&examination.segment)
                            || gap.to.is_none_or(|to| to > examination.segment.readable()) => {}
                    Ok(Some(ScrubResult::Gap(gap, opening))) => {
                        let error = gap.error(&*self.disk);
                        let Range { start, end } = gap.records();
                        if self.segments.damage().found(number, bytes_of(&gap), Some(start..end)) {
                            counters.damaged.fetch_add(1, Ordering::Relaxed);
                            tracing::error!(%error, from = %start, before = %end, "damage was found; it is being repaired");
                        }
                        if examination.repaired_at == Some(gap.from) {
                            self.give_up(number, &error, now);
                            return true;
                        }
                        let wait_limit = self.cluster.heartbeat * 4;
                        let fetcher = Fetcher::new(*gap, wait_limit, self.cluster.message_bytes_max);
                        let pending = PendingFetch { examination, fetcher, opening, requests: 0 };
                        self.state = ScrubState::Fetching(Box::new(pending));
                    }
                    Ok(Some(ScrubResult::UnknownExtent(error))) | Err(error) => {
                        let at = error.location().map_or(0, |(_, offset)| offset);
                        if self.segments.damage().found(number, at..at + 1, None) {
                            counters.damaged.fetch_add(1, Ordering::Relaxed);
                        }
                        self.give_up(number, &error, now);
                    }
                }
            }
            JobResult::Repaired { mut examination, gap, result } => match result {
                Ok(()) => {
                    counters.repaired.fetch_add(1, Ordering::Relaxed);
                    self.segments.damage().mark_repaired(
                        examination.segment.number,
                        &bytes_of(&gap),
                        &gap.records(),
                    );
                    tracing::warn!(
                        file = %gap.path(&*self.disk).display(), offset = gap.from, records = ?gap.records(),
                        "damage was repaired with entries of another replica"
                    );
                    examination.repaired_at = Some(gap.from);
                    examination.probe.recheck();
                    self.state = ScrubState::Examining(examination);
                }
                Err(error) => self.give_up(examination.segment.number, &error, now),
            },
        }
        true
    }

    /// Fetches the missing entries. Once all have arrived, starts the job that writes them.
    fn fetch(&mut self, now: Moment, mut pending: Box<PendingFetch>, replica: &mut Replica) -> bool {
        let number = pending.examination.segment.number;
        pending.fetcher.take(replica.take_received());
        for (peer, entry) in replica.take_damaged() {
            pending.fetcher.mark_damaged_at(peer, entry);
        }
        if !self.is_there(&pending.examination.segment) {
            return true;
        }
        if pending.fetcher.missing().is_none() {
            let PendingFetch { examination, fetcher, opening, .. } = *pending;
            match fetcher.gap.fill(opening.as_ref(), fetcher.spares(), None) {
                Ok(bytes) => {
                    let disk = self.disk.clone();
                    self.segments.damage().begin_repair();
                    self.start_job(move || {
                        let result = fetcher.gap.rewrite(&*disk, &bytes);
                        JobResult::Repaired { examination, gap: Box::new(fetcher.gap), result }
                    });
                }
                Err(why) => {
                    let error = Error::corrupt(&fetcher.gap.path(&*self.disk), fetcher.gap.from as u64, why);
                    self.give_up(number, &error, now);
                }
            }
            return true;
        }
        let others = replica.others();
        let rounds = pending.requests / u32::try_from(others.len().max(1)).unwrap_or(u32::MAX);
        // A learner that may have them whole is still asked. If there are no other voters, the learners decide.
        let fetcher = &pending.fetcher;
        let is_lost = fetcher.is_lost_to(&replica.other_voters()) || fetcher.is_lost_to(&others);
        if is_lost {
            let why = "all other voters have the same entries damaged";
            self.segments.damage().mark_unrepairable(number, pending.fetcher.gap.records(), why);
        }
        if others.is_empty() || rounds >= ROUNDS_MAX || pending.fetcher.is_lost_to(&others) {
            let gap = &pending.fetcher.gap;
            let error = gap.error(&*self.disk);
            if !is_lost {
                self.segments.damage().clear_unrepairable(number, &gap.records());
            }
            self.give_up(number, &error, now);
            return true;
        }
        if let Some((peer, fetch)) = pending.fetcher.next_request(now, &others) {
            pending.requests += 1;
            replica.request_blocks(peer, &fetch);
        }
        self.state = ScrubState::Fetching(pending);
        false
    }
}

/// The bytes of the segment that a gap covers.
fn bytes_of(gap: &Gap) -> Range<u64> {
    gap.from as u64..gap.to.unwrap_or(gap.place.bytes as usize) as u64
}

impl Examination {
    /// Examines a piece. None: it was sound, and there is more.
    fn check_piece(&mut self, maker: &Maker) -> Result<Option<ScrubResult>> {
        match self.probe.look()? {
            Look::More => Ok(None),
            Look::Sound => Ok(Some(ScrubResult::Sound)),
            Look::Broken(why) => self.examine(why, maker).map(Some),
        }
    }

    /// Finds the gap at a break in the chain of blocks.
    fn examine(&mut self, why: crate::record::batch::Malformed, maker: &Maker) -> Result<ScrubResult> {
        let Some(mut gap) = self.probe.gap(why)? else {
            return Ok(ScrubResult::UnknownExtent(Error::corrupt(
                self.probe.path(),
                self.probe.at as u64,
                why,
            )));
        };
        gap.keep_index(maker.segments.open(&self.segment)?.index()?);
        let mut opening = None;
        if gap.is_opening() {
            opening = maker.opening(&self.segment)?;
            if opening.is_none() {
                return Ok(ScrubResult::UnknownExtent(Error::corrupt(
                    self.probe.path(),
                    self.probe.at as u64,
                    why,
                )));
            }
        }
        Ok(ScrubResult::Gap(Box::new(gap), opening))
    }
}

/// Rebuilds opening blocks.
struct Maker {
    segments: Arc<Segments>,
    options: Options,
    node: NodeId,
}

impl Maker {
    /// The opening block of `segment`, from the state after the segment before it. Its hard state can be older than the
    /// original's: recovery reads the hard state only of the last segment.
    fn opening(&self, segment: &Arc<Segment>) -> Result<Option<BlockCopy>> {
        let list = self.segments.snapshot();
        let before = list.iter().take_while(|s| s.number < segment.number).last();
        let Some(before) = before.filter(|b| b.base.raft < segment.base.raft) else { return Ok(None) };
        let sequencer = Sequencer::new(Owner::Node(self.node), Membership::default(), &self.options);
        let mut replayed = Replayed { sequencer, options: &self.options };
        let archive = Archive::new(self.segments.clone());
        if !archive.replay(before.base.raft, segment.base.raft, &mut replayed)? {
            return Ok(None);
        }
        let block = replayed.sequencer.opening();
        Ok((replayed.sequencer.end() == segment.base).then_some((block.header, block.body)))
    }
}
