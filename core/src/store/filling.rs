//! Filling: a copy or a replica downloads whole objects at leisure, the newest first, and keeps them on its disk, so that readers of older
//! records need no object store.
//!
//! ```text
//!   objects:  | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
//!   kept:                 | 3 | 4 | 5 | 6 |            one at a time, a chunk at a time
//!   files:                            | 6 | 7 ...      what is in files here is not fetched
//! ```
//!
//! Invariants:
//! - an object is kept only if the checksum over all its bytes is the one that the log has;
//! - files and kept objects together take no more than the log's own limits leave. Appends can exceed that while a chunk is
//!   fetched; then objects give way, the oldest first;
//! - nothing is fetched because files went by `local_bytes`: an object is begun only if two segments more have room;
//! - an append never waits for it, and no object is begun on a disk that is nearly full.
//!
//! Must not know: what is in an object, who reads.

use crate::error::{Error, ErrorKind, Result};
use crate::record::crc::Crc;
use crate::store::objects::cache::{KeptObject, ObjectCache, ObjectFile};
use crate::store::segment::{Segment, Segments};
use crate::sync::clock::Moment;
use crate::sync::threads::spawn;
use crate::types::{EntryIndex, Index, LogId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long it waits when there is nothing to fetch.
const LOOK: Duration = Duration::from_secs(2);
/// After a failure it waits this long, then twice as long, up to the maximum.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// An object that is missing or damaged is tried again after this time.
const DAMAGED_PAUSE: Duration = Duration::from_secs(3600);
/// The number of segments that have to fit the disk beside an object; else it is not fetched.
const RESERVE_SEGMENTS: u64 = 16;

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FillLimits {
    /// Bytes of objects.
    pub(crate) fill_bytes: u64,
    /// Bytes of objects and files together.
    pub(crate) local_bytes: Option<u64>,
    /// Objects that are older than this, by the log's time, are not kept.
    pub(crate) local_age: Option<Duration>,
    pub(crate) segment_bytes: u32,
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Something was done, and more may follow at once.
    More,
    /// A chunk was fetched while the log was written: appends need the disk and the network, too.
    GiveWay,
    Wait(Duration),
    /// The log is closed.
    End,
}

/// The filling of a log's disk. Its steps block for the object store and the disk.
pub(crate) struct Filling {
    segments: Weak<Segments>,
    limits: FillLimits,
    current: Option<Current>,
    /// Objects that are missing or damaged, and when they are tried again.
    damaged: BTreeMap<u64, Moment>,
    /// Nothing is fetched before.
    again: Moment,
    pause: Duration,
}

/// The object that is being fetched.
struct Current {
    number: u64,
    owner: LogId,
    file: Arc<ObjectFile>,
    /// The chunks that are still to be fetched, the next one last.
    left: Vec<Range<usize>>,
    /// The checksum over those before.
    crc: Crc,
    expected: u32,
}

/// The next step.
enum Plan {
    LetGo(u64),
    Fetch(u64, Arc<Segment>, u32),
    Nothing,
}

/// Fills the disk of a log on a thread of its own, until the log is closed.
pub(crate) fn start(segments: &Arc<Segments>, limits: FillLimits, path: &Path) {
    let mut filling = Filling::new(segments, limits);
    let run = move || {
        let started = Instant::now();
        let now = || Moment::default().plus(started.elapsed());
        loop {
            let began = Instant::now();
            // A program's object store may panic. Without this thread the log works all the same.
            let step = catch_unwind(AssertUnwindSafe(|| filling.step(now())));
            let wait = match step.unwrap_or(Step::Wait(PAUSE_MAX)) {
                Step::More => continue,
                Step::GiveWay => began.elapsed().min(PAUSE_MAX),
                Step::Wait(time) => time,
                Step::End => return,
            };
            if filling.cache().is_none_or(|cache| cache.wait(wait)) {
                return;
            }
        }
    };
    if let Err(error) = spawn("chiplog-fill", path, run) {
        tracing::warn!(path = %path.display(), %error, "no objects are kept on this disk: there is no thread for it");
    }
}

impl Filling {
    pub(crate) fn new(segments: &Arc<Segments>, limits: FillLimits) -> Self {
        Self {
            segments: Arc::downgrade(segments),
            limits,
            current: None,
            damaged: BTreeMap::new(),
            again: Moment::default(),
            pause: PAUSE,
        }
    }

    fn cache(&self) -> Option<Arc<ObjectCache>> {
        self.segments.upgrade()?.objects().cache()
    }

    /// Removes an object that is kept in excess, or fetches a chunk of the next one.
    pub(crate) fn step(&mut self, now: Moment) -> Step {
        let Some(segments) = self.segments.upgrade() else { return Step::End };
        let Some(cache) = segments.objects().cache().filter(|cache| !cache.is_closed()) else {
            return Step::End;
        };
        self.damaged.retain(|_, until| now < *until);
        let plan = match self.plan(&segments, &cache) {
            Ok(plan) => plan,
            Err(error) => {
                tracing::debug!(%error, "it is not known which objects are to be kept");
                return Step::Wait(LOOK);
            }
        };
        match plan {
            Plan::LetGo(number) => {
                self.current.take_if(|current| current.number == number);
                cache.let_go(number);
                Step::More
            }
            _ if now < self.again => Step::Wait(self.again.since(now)),
            Plan::Nothing => Step::Wait(LOOK),
            Plan::Fetch(number, object, crc) => {
                let before = end_of(&segments);
                match self.fetch(&segments, &cache, number, &object, crc) {
                    Ok(()) => {
                        self.pause = PAUSE;
                        if end_of(&segments) == before { Step::More } else { Step::GiveWay }
                    }
                    Err(error) => self.failed(&cache, number, &error, now),
                }
            }
        }
    }

    /// Decides the next step.
    fn plan(&self, segments: &Segments, cache: &ObjectCache) -> Result<Plan> {
        let FillLimits { fill_bytes, local_bytes, local_age, segment_bytes } = self.limits;
        let kept = cache.kept();
        let total: u64 = kept.iter().map(|kept| kept.bytes).sum();
        // The files first: an object is in its list before the files with its records leave theirs.
        let begin = segments.oldest().map_or(EntryIndex(u64::MAX), |oldest| oldest.base.raft);
        let newest = segments.newest().map_or(Timestamp(0), |newest| newest.last_timestamp());
        let too_old = local_age.map(|age| {
            Timestamp(newest.0.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)))
        });
        let objects = segments.objects();
        let mut wanted = objects.newest_before(begin, fill_bytes)?;
        wanted.retain(|(_, object, _)| too_old.is_none_or(|time| object.last_timestamp() >= time));
        // Newer ones may be known again soon: after a crash the log can lack its last entries.
        let known = objects.next().unwrap_or(0);
        let numbers: BTreeSet<_> = wanted.iter().map(|(number, _, _)| *number).collect();
        let is_surplus = |kept: &&KeptObject| kept.number < known && !numbers.contains(&kept.number);
        if let Some(surplus) = kept.iter().find(is_surplus) {
            return Ok(Plan::LetGo(surplus.number));
        }
        let room = local_bytes.map(|bytes| bytes.saturating_sub(segments.bytes_from(Index(0))));
        let room = room.filter(|_| !planted!(150));
        if let Some(oldest) = kept.first().filter(|_| total > fill_bytes.min(room.unwrap_or(u64::MAX))) {
            return Ok(Plan::LetGo(oldest.number));
        }
        let of = |number: u64| kept.binary_search_by_key(&number, |kept| kept.number).ok().map(|n| kept[n]);
        let is_here = |number: u64| of(number).is_some_and(|kept| kept.is_whole);
        let is_lacking = |number: u64| !is_here(number) && !self.damaged.contains_key(&number);
        // One at a time: a newer one waits.
        let current = self.current.as_ref().map(|current| current.number);
        let next = wanted.iter().find(|(number, _, _)| Some(*number) == current && is_lacking(*number));
        let next = next.or_else(|| wanted.iter().find(|(number, _, _)| is_lacking(*number)));
        let Some((number, object, crc)) = next.cloned() else { return Ok(Plan::Nothing) };
        let begun = of(number).map_or(0, |kept| kept.bytes);
        let needed = total - begun + u64::from(object.bytes);
        let spare = if begun > 0 { 0 } else { 2 * u64::from(segment_bytes) };
        if room.is_some_and(|room| needed + spare > room) {
            return Ok(Plan::Nothing);
        }
        Ok(match kept.first().filter(|_| needed > fill_bytes) {
            Some(oldest) if oldest.number < number => Plan::LetGo(oldest.number),
            Some(_) => Plan::Nothing,
            None => Plan::Fetch(number, object, crc),
        })
    }

    /// Fetches the next chunk of an object. The last one makes it whole.
    fn fetch(
        &mut self,
        segments: &Segments,
        cache: &ObjectCache,
        number: u64,
        object: &Segment,
        expected: u32,
    ) -> Result<()> {
        let needed = u64::from(object.bytes) + RESERVE_SEGMENTS * u64::from(self.limits.segment_bytes);
        if segments.disk().space().ok().flatten().is_some_and(|space| space.free < needed) {
            let what = format!("the disk has less than {needed} bytes free, for object {number} and the log");
            return Err(Error::new(ErrorKind::Full, what));
        }
        // It was let go because the disk is full, or a reader has met damage in it.
        self.current.take_if(|current| current.number != number || current.file.is_discarded());
        if self.current.is_none() {
            let Some((owner, file)) = segments.objects().keep(object)? else { return Ok(()) };
            let mut left: Vec<_> = file.chunk_ranges().collect();
            left.reverse();
            self.current = Some(Current { number, owner, file, left, crc: Crc::new(), expected });
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        if let Some(range) = current.left.last().cloned() {
            current.file.ensure(range.clone())?;
            let bytes = current.file.bytes_of(range)?;
            current.crc = std::mem::take(&mut current.crc).add(&bytes);
            current.left.pop();
        }
        if !current.left.is_empty() {
            return Ok(());
        }
        if std::mem::take(&mut current.crc).sum() != current.expected && !planted!(149) {
            let what = "its checksum is not the one that the log has of it";
            return Err(Error::corrupt(&current.file.path(), 0, what));
        }
        cache.make_whole(current.owner, &current.file)?;
        self.current = None;
        Ok(())
    }

    /// Decides how it goes on after a failure.
    fn failed(&mut self, cache: &ObjectCache, number: u64, error: &Error, now: Moment) -> Step {
        cache.count_fill_failure();
        let name = self.current.as_ref().map(|current| current.file.path().display().to_string());
        let name = name.unwrap_or_else(|| format!("object {number}"));
        match error.kind() {
            ErrorKind::Corrupt => {
                tracing::warn!(%name, %error, "an object cannot be kept here: it is missing or damaged; it is tried again in an hour");
                if let Some(current) = self.current.take() {
                    current.file.discard();
                }
                self.damaged.insert(number, now.plus(DAMAGED_PAUSE));
                return Step::More;
            }
            // The space is for the log.
            ErrorKind::Full | ErrorKind::Io => {
                self.current = None;
                cache.let_go_unfinished();
                self.pause = PAUSE_MAX;
            }
            // Chunks that were fetched stay.
            _ => {}
        }
        if self.pause == PAUSE || self.pause == PAUSE_MAX {
            tracing::warn!(%name, %error, "an object cannot be kept here now; it is tried again");
        }
        self.again = now.plus(self.pause);
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE_MAX);
        Step::Wait(pause)
    }
}

/// The last entry in files.
fn end_of(segments: &Segments) -> EntryIndex {
    segments.newest().map_or(EntryIndex(0), |newest| newest.end().raft)
}
