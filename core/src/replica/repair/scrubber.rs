//! Tending: keeps full segments sound. A scrub goes through them at a set pace and checks every byte; where it finds
//! damage, what is missing is fetched from other replicas and put back in place. Damage that a reader, `verify` or the
//! archive has met is looked at at once, whatever the scrub's pace, and where it is; the scrub comes back to what it left.
//!
//! ```text
//!   due, or suspected ──> look (errand) ──> sound: on to the next piece
//!                           ^   │
//!                           │   └─> wound ──> ask others, one by one ──> fill ──> mend (errand) ──┐
//!                           └─────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! What nobody can repair now is tried again after a while, which grows from [`AGAIN_MIN`] to [`AGAIN_MAX`]. If every other
//! voter has said that it has the same entries damaged, readers are told that nobody can repair them.
//!
//! The replica goes on meanwhile: what it acknowledged it knows, only bytes of committed entries are missing. It
//! cannot ship them, for the archive checks what it reads.
//!
//! All reading and syncing is an errand of the helper thread; the node only decides. Without that thread (in a
//! simulation) errands are run where they are given.
//!
//! Invariants:
//! - the segment that grows is left alone: a node that meets damage in it goes on in another one first;
//! - what is not committed is left alone: it may be cut off at any time;
//! - a segment that is looked at is held, so that its file is not reused meanwhile.
//!
//! Must not know: elections, the network.

use crate::cluster::membership::Membership;
use crate::cluster::options::Cluster;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::replica::queue::inbox::InboxEvent;
use crate::replica::queue::proposals::ProposalQueue;
use crate::replica::raft::Replica;
use crate::replica::repair::fetcher::Fetcher;
use crate::replica::state::sequencer::{Owner, Replayed, Sequencer};
use crate::replica::wire::raft_message::header_of;
use crate::stats::Counters;
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

/// Read at a time.
const PIECE_BYTES: usize = 256 << 10;
/// Between the end of one pass over all segments and the beginning of the next.
const REST: Duration = Duration::from_secs(60);
/// Each peer is asked so often for an entry before it is put off.
const ROUNDS_MAX: u32 = 20;
/// Between two attempts to repair a segment: after the first, and at most.
const AGAIN_MIN: Duration = Duration::from_secs(5);
const AGAIN_MAX: Duration = Duration::from_secs(60);

/// The state of the log's health.
#[derive(Debug)]
pub(crate) struct Tending {
    disk: Arc<dyn Disk>,
    segments: Arc<Segments>,
    allocator: Arc<Allocator>,
    queue: Arc<ProposalQueue>,
    options: Options,
    cluster: Cluster,
    doing: Doing,
    /// What the errand under way has brought.
    done: Arc<Mutex<Option<Done>>>,
    /// Segments to be looked at first.
    suspects: BTreeSet<u64>,
    /// Segments in which something could not be repaired, and when that is tried again.
    given_up: BTreeMap<u64, GivenUp>,
    /// The last segment that this pass has looked at.
    passed: u64,
    due: Moment,
}

/// When a segment is looked at again, and how long was waited for that.
#[derive(Clone, Copy, Debug)]
struct GivenUp {
    at: Moment,
    waited: Duration,
}

#[derive(Debug)]
enum Doing {
    Nothing,
    Looking(Box<Looking>),
    /// An errand is under way.
    Away,
    Asking(Box<Asking>),
}

/// A look at one segment.
#[derive(Debug)]
struct Looking {
    probe: Probe,
    segment: Arc<Segment>,
    /// Damage was met here: not at the scrub's pace.
    urgent: bool,
    /// Where the last wound was mended.
    mended: Option<usize>,
}

#[derive(Debug)]
struct Asking {
    looking: Box<Looking>,
    fetcher: Fetcher,
    opening: Option<BlockCopy>,
    asked: u32,
}

#[derive(Debug)]
enum Done {
    Looked { looking: Box<Looking>, bytes: usize, found: Result<Option<Hurt>> },
    Mended { looking: Box<Looking>, gap: Box<Gap>, result: Result<()> },
}

/// What a look has found.
#[derive(Debug)]
enum Hurt {
    /// Nothing, to the segment's end.
    None,
    Gap(Box<Gap>, Option<BlockCopy>),
    /// Damage about which nothing can be told.
    Hopeless(Error),
}

impl Tending {
    pub(crate) fn new(
        store: &Store,
        queue: Arc<ProposalQueue>,
        options: Options,
        cluster: Cluster,
        now: Moment,
    ) -> Self {
        Self {
            disk: store.disk.clone(),
            segments: store.segments.clone(),
            allocator: store.allocator.clone(),
            queue,
            options,
            cluster,
            doing: Doing::Nothing,
            done: Arc::default(),
            suspects: BTreeSet::new(),
            given_up: BTreeMap::new(),
            passed: 0,
            due: now,
        }
    }

    /// A log on its own has nobody to ask; it is verified on demand.
    fn is_off(&self) -> bool {
        self.options.cluster.is_none()
    }

    /// When [`Self::turn`] wants to be called.
    pub(crate) fn deadline(&self, now: Moment) -> Option<Moment> {
        match &self.doing {
            _ if self.is_off() => None,
            Doing::Away => None,
            Doing::Asking(asking) => Some(asking.fetcher.deadline(now)),
            Doing::Looking(looking) if looking.urgent => Some(now),
            Doing::Nothing | Doing::Looking(_) if self.has_suspect() => Some(now),
            Doing::Nothing | Doing::Looking(_) => {
                let again = self.given_up.values().map(|g| g.at).min();
                let again = again.filter(|_| self.segments.damage().is_repaired());
                again.into_iter().chain((self.pace() > 0).then_some(self.due)).min()
            }
        }
    }

    /// Whether damage was met in a segment that can be repaired now.
    fn has_suspect(&self) -> bool {
        self.suspects.iter().any(|n| self.is_full(*n))
    }

    /// Takes note of who could repair what is damaged here.
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

    /// Whether damage was met in the segment that grows: the log should go on in the next one.
    pub(crate) fn wants_roll(&self) -> bool {
        self.last().is_some_and(|last| self.suspects.contains(&last))
    }

    /// There is no file to go on in: the damage stays until the segment is full.
    pub(crate) fn cannot_roll(&mut self, error: &Error) {
        if let Some(last) = self.last() {
            tracing::warn!(%error, segment = last, "damage in the segment that grows is repaired once that is full");
            self.suspects.remove(&last);
        }
    }

    /// Does what there is to do.
    pub(crate) fn turn(&mut self, now: Moment, replica: &mut Replica, counters: &Counters) {
        self.learn(replica);
        if self.is_off() {
            return;
        }
        let suspects = self.segments.damage().take_suspects();
        self.suspects.extend(suspects.into_iter().filter(|n| !self.given_up.contains_key(n)));
        let is_repaired = self.segments.damage().is_repaired();
        for (number, given_up) in &mut self.given_up {
            if is_repaired && given_up.at <= now {
                given_up.at = now.plus(given_up.waited); // if nothing comes of it
                self.suspects.insert(*number);
            }
        }
        loop {
            let before = std::mem::replace(&mut self.doing, Doing::Nothing);
            let goes_on = match before {
                Doing::Nothing => self.begin(now),
                Doing::Looking(looking) => self.look(now, looking),
                Doing::Away => self.come_back(now, counters),
                Doing::Asking(asking) => self.ask(now, asking, replica),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Chooses a segment to look at.
    fn begin(&mut self, now: Moment) -> bool {
        let list = self.segments.snapshot();
        let Some((last, full)) = list.split_last() else { return false };
        let is_there = |n: u64| n == last.number || full.iter().any(|s| s.number == n);
        self.suspects.retain(|n| is_there(*n));
        let gone: Vec<u64> = self.given_up.keys().copied().filter(|n| !is_there(*n)).collect();
        for number in gone {
            self.is_well(number);
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
        debug_assert!(index.is_some(), "it is one of them");
        let piece = PIECE_BYTES.min(usize::try_from(self.pace()).unwrap_or(usize::MAX)).max(4096);
        match Probe::new(&*self.disk, place, if urgent { PIECE_BYTES } else { piece }) {
            Ok(probe) => {
                self.doing = Doing::Looking(Box::new(Looking { probe, segment, urgent, mended: None }));
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
                tracing::error!(%error, segment = number, "damage that could not be repaired; it will be tried again");
            }
            Some(_) => {
                tracing::debug!(%error, segment = number, ?waited, "damage still could not be repaired")
            }
        }
        self.given_up.insert(number, GivenUp { at: now.plus(waited), waited });
        self.suspects.remove(&number);
    }

    /// A segment is sound, or left the log.
    fn is_well(&mut self, number: u64) {
        self.given_up.remove(&number);
        self.segments.damage().is_well(number);
    }

    /// Whether the segment is still the log's.
    fn is_there(&self, segment: &Arc<Segment>) -> bool {
        self.segments.contains(segment)
    }

    /// Looks at a piece, when it is time to.
    fn look(&mut self, now: Moment, mut looking: Box<Looking>) -> bool {
        if !self.is_there(&looking.segment) {
            return true;
        }
        if !looking.urgent && self.has_suspect() {
            self.passed = looking.segment.number.saturating_sub(1); // the scrub comes back to it
            return true;
        }
        if !looking.urgent && now < self.due {
            self.doing = Doing::Looking(looking);
            return false;
        }
        if !looking.urgent {
            let nanos = u128::from(PIECE_BYTES as u64) * 1_000_000_000 / u128::from(self.pace().max(1));
            self.due = now.plus(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
        }
        let maker =
            Maker { segments: self.segments.clone(), options: self.options.clone(), node: self.cluster.node };
        let allocator = self.allocator.clone();
        self.send_off(move || {
            let from = looking.probe.at;
            let found = looking.look(&maker).or_else(|error| {
                // Bytes that are missing at the file's end cannot be read.
                if !allocator.restore_length(&looking.segment)? {
                    return Err(error);
                }
                looking.probe.again();
                looking.look(&maker)
            });
            let bytes = looking.probe.at - from;
            Done::Looked { looking, bytes, found }
        });
        true
    }

    /// Has an errand run.
    fn send_off(&mut self, job: impl FnOnce() -> Done + Send + 'static) {
        let (done, queue) = (self.done.clone(), self.queue.clone());
        self.doing = Doing::Away;
        self.allocator.lend(move || {
            let outcome = job();
            *done.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            queue.push_event(InboxEvent::BackgroundJob);
        });
    }

    fn come_back(&mut self, now: Moment, counters: &Counters) -> bool {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(done) = done else {
            self.doing = Doing::Away;
            return false;
        };
        match done {
            Done::Looked { looking, bytes, found } => {
                counters.scrubbed.fetch_add(bytes as u64, Ordering::Relaxed);
                let number = looking.segment.number;
                match found {
                    Ok(None) => self.doing = Doing::Looking(looking),
                    Ok(Some(Hurt::None)) => {
                        self.is_well(number);
                    }
                    // What is not committed can be cut off at any time; and was cut off, perhaps.
                    Ok(Some(Hurt::Gap(gap, _)))
                        if !self.is_there(&looking.segment)
                            || gap.to.is_none_or(|to| to > looking.segment.readable()) => {}
                    Ok(Some(Hurt::Gap(gap, opening))) => {
                        let error = gap.error(&*self.disk);
                        let Range { start, end } = gap.records();
                        if self.segments.damage().found(number, bytes_of(&gap), Some(start..end)) {
                            counters.damaged.fetch_add(1, Ordering::Relaxed);
                            tracing::error!(%error, from = %start, before = %end, "damage was found; it is being repaired");
                        }
                        if looking.mended == Some(gap.from) {
                            self.give_up(number, &error, now);
                            return true;
                        }
                        let wait_limit = self.cluster.heartbeat * 4;
                        let fetcher = Fetcher::new(*gap, wait_limit, self.cluster.message_bytes_max);
                        let asking = Asking { looking, fetcher, opening, asked: 0 };
                        self.doing = Doing::Asking(Box::new(asking));
                    }
                    Ok(Some(Hurt::Hopeless(error))) | Err(error) => {
                        let at = error.location().map_or(0, |(_, offset)| offset);
                        if self.segments.damage().found(number, at..at + 1, None) {
                            counters.damaged.fetch_add(1, Ordering::Relaxed);
                        }
                        self.give_up(number, &error, now);
                    }
                }
            }
            Done::Mended { mut looking, gap, result } => match result {
                Ok(()) => {
                    counters.repaired.fetch_add(1, Ordering::Relaxed);
                    self.segments.damage().mended(looking.segment.number, &bytes_of(&gap), &gap.records());
                    tracing::warn!(
                        file = %gap.path(&*self.disk).display(), offset = gap.from, records = ?gap.records(),
                        "damage was repaired with what another replica has"
                    );
                    looking.mended = Some(gap.from);
                    looking.probe.again();
                    self.doing = Doing::Looking(looking);
                }
                Err(error) => self.give_up(looking.segment.number, &error, now),
            },
        }
        true
    }

    /// Fetches what is missing; once it is there, has it written.
    fn ask(&mut self, now: Moment, mut asking: Box<Asking>, replica: &mut Replica) -> bool {
        let number = asking.looking.segment.number;
        asking.fetcher.take(replica.take_brought());
        for (peer, entry) in replica.take_damaged() {
            asking.fetcher.has_it_damaged(peer, entry);
        }
        if !self.is_there(&asking.looking.segment) {
            return true;
        }
        if asking.fetcher.missing().is_none() {
            let Asking { looking, fetcher, opening, .. } = *asking;
            match fetcher.gap.fill(opening.as_ref(), fetcher.spares(), None) {
                Ok(bytes) => {
                    let disk = self.disk.clone();
                    self.send_off(move || {
                        let result = fetcher.gap.mend(&*disk, &bytes);
                        Done::Mended { looking, gap: Box::new(fetcher.gap), result }
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
        let rounds = asking.asked / u32::try_from(others.len().max(1)).unwrap_or(u32::MAX);
        // A learner that has them whole is asked on; where nobody else votes, learners are all there is.
        let fetcher = &asking.fetcher;
        let is_lost = fetcher.is_lost_to(&replica.other_voters()) || fetcher.is_lost_to(&others);
        if is_lost {
            let why = "all other voters have the same entries damaged";
            self.segments.damage().lose(number, asking.fetcher.gap.records(), why);
        }
        if others.is_empty() || rounds >= ROUNDS_MAX || asking.fetcher.is_lost_to(&others) {
            let gap = &asking.fetcher.gap;
            let error = gap.error(&*self.disk);
            if !is_lost {
                self.segments.damage().hope(number, &gap.records());
            }
            self.give_up(number, &error, now);
            return true;
        }
        if let Some((peer, fetch)) = asking.fetcher.ask(now, &others) {
            asking.asked += 1;
            replica.borrow(peer, &fetch);
        }
        self.doing = Doing::Asking(asking);
        false
    }
}

/// The bytes of its segment that a wound takes.
fn bytes_of(gap: &Gap) -> Range<u64> {
    gap.from as u64..gap.to.unwrap_or(gap.place.bytes as usize) as u64
}

impl Looking {
    /// Looks at a piece. None: it was sound, and there is more.
    fn look(&mut self, maker: &Maker) -> Result<Option<Hurt>> {
        match self.probe.look()? {
            Look::More => Ok(None),
            Look::Sound => Ok(Some(Hurt::None)),
            Look::Broken(why) => self.examine(why, maker).map(Some),
        }
    }

    /// What is to be done about a break in the chain.
    fn examine(&mut self, why: crate::record::batch::Malformed, maker: &Maker) -> Result<Hurt> {
        let Some(mut gap) = self.probe.gap(why)? else {
            return Ok(Hurt::Hopeless(Error::corrupt(self.probe.path(), self.probe.at as u64, why)));
        };
        gap.keep_index(maker.segments.open(&self.segment)?.index()?);
        let mut opening = None;
        if gap.is_opening() {
            opening = maker.opening(&self.segment)?;
            if opening.is_none() {
                return Ok(Hurt::Hopeless(Error::corrupt(self.probe.path(), self.probe.at as u64, why)));
            }
        }
        Ok(Hurt::Gap(Box::new(gap), opening))
    }
}

/// Makes opening blocks again.
struct Maker {
    segments: Arc<Segments>,
    options: Options,
    node: NodeId,
}

impl Maker {
    /// The opening block of `segment`, from what the segment before leads to. Its hard state can be an older one: a
    /// segment that another one follows is not asked for it.
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
        Ok((replayed.sequencer.end() == segment.base).then(|| (header_of(&block), block.body)))
    }
}
