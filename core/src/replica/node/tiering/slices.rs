//! Slices: the newest committed entries, which no object has yet, go to the object store every `slice_interval`. So the loss of all
//! replicas loses what was committed within about that time, not what is younger than an object.
//!
//! ```text
//!  objects in the store        slices                              committed        written
//!  | ... | k | k+1 | [ .. ][ ...... ][ .. ][ ... ]                 |                |
//!                  ^ stored          ^ some reach over the next    ^ upto here
//!                                      object's end                  with the next job
//! ```
//!
//! A slice is a stretch of the committed log, and nothing else: any replica may store one, two may store the same one, and slices that
//! overlap agree. So nothing has to be fenced. The leader stores them: it knows first what is committed. One job at a time stores all
//! that is new, as several slices at a time if it is much. Nothing waits for it: an append is confirmed as without slices.
//!
//! A log without a stored object has none that its slices could continue: the first slice begins with the log's state at the entry of
//! its first record, or at its last entry if it has no record. Of a shared group that is the first record that one of its logs still
//! has, and the state has all of its logs: each goes on behind the record with which it ends there.
//!
//! Invariants:
//! - a slice has committed entries only (S1);
//! - slices are deleted only if all their entries are in objects that the committed log says are stored, or are before the state with
//!   which a stored slice begins, and that only where the log has no stored object any more: everything before is discarded. The
//!   last objects are not deleted before there is such a slice (S2);
//! - a slice that begins with a state was read before it counts, and does not count if its state is before the end of an object that is
//!   discarded: payload up to there may be gone (S4);
//! - in a log with payload slices none is put before the one before it is stored: there is no gap between them, unless one is lost (S3);
//! - bytes that wait are read back from the log's files: an object store that is down takes no memory.
//!
//! Must not know: the network, which object store it is.

use super::super::Node;
use super::super::publish::Kept;
use super::object_access::ObjectMaker;
use super::placement::Sliced;
use super::slice_jobs::{FoundSlices, SliceBegin, SliceChain, SliceDone, SliceJob, StoredSlices, Storing};
use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::LogOption;
use crate::random::SplitMix;
use crate::replica::queue::inbox::InboxEvent;
use crate::store::segment::Base;
use crate::sync::clock::Moment;
use crate::sync::threads::spawn;
use crate::types::EntryIndex;
use crate::vault::Vault;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The delay after a failure: the initial and the maximum one. A random part is added, so that not all logs try at the same time.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// A slice that begins with a state gets another name after this number of failures: the object store may refuse only that one.
const STATE_TRIES: u32 = 8;
/// How often slices are looked for that a replica has left behind.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);
/// How soon a failed deletion is tried again.
const SWEEP_RETRY: Duration = Duration::from_secs(60);

/// The state of a log's slices at one replica.
#[derive(Debug)]
pub(in crate::replica::node) struct Slices {
    /// Where jobs go; the thread starts with the first one.
    worker: Option<Sender<Box<dyn FnOnce() + Send>>>,
    is_busy: bool,
    /// The result of the job that was running.
    done: Arc<Mutex<Option<SliceDone>>>,
    /// Whether it is known which slices the object store has.
    is_found: bool,
    /// The slices there. None: none that lead to an entry that no object has.
    chain: Option<SliceChain>,
    /// Up to this entry the object store has slices of another history, which are ahead: nothing counts as being in the object store alone
    /// until objects have overtaken them.
    ahead: Option<EntryIndex>,
    /// All entries behind this one, up to the end of the chain, are in slices that this leader has stored.
    stored_behind: EntryIndex,
    /// Bytes that were committed since the last job began.
    new_bytes: u64,
    /// The next job begins then, or sooner if there is enough for a slice.
    next_at: Moment,
    /// Nothing is tried before, and how long that was after the last failure.
    again: Moment,
    waited: Duration,
    failed: Option<ErrorKind>,
    random: SplitMix,
    /// Whether the object store is known to be this log's.
    is_checked: bool,
    /// Slices without an entry behind this one were deleted, and when they are looked for again.
    swept: EntryIndex,
    sweep_at: Option<Moment>,
    /// None is there without an entry behind this one.
    deleted: EntryIndex,
    /// How far the slice reaches that was made last to begin with a state. Until it counts, it is made again as it was: with another end it
    /// would have another name, and one more would be left each time.
    state_upto: Option<EntryIndex>,
    state_tries: u32,
}

impl Slices {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            worker: None,
            is_busy: false,
            done: Arc::default(),
            is_found: false,
            chain: None,
            ahead: None,
            stored_behind: EntryIndex(0),
            new_bytes: 0,
            next_at: Moment::default(),
            again: Moment::default(),
            waited: Duration::ZERO,
            failed: None,
            random: SplitMix(seed),
            is_checked: false,
            swept: EntryIndex(0),
            sweep_at: None,
            deleted: EntryIndex(0),
            state_upto: None,
            state_tries: 0,
        }
    }

    /// Bytes of blocks were committed.
    pub(in crate::replica::node) fn committed(&mut self, bytes: u64) {
        self.new_bytes = self.new_bytes.saturating_add(bytes);
    }

    /// How far entries are in the object store, by slices. None: it is not known yet, or none are.
    pub(super) fn sliced(&self) -> Option<Sliced> {
        let chain = self.chain.filter(|_| self.is_found)?;
        Some(Sliced { behind: self.stored_behind, end: chain.end })
    }

    /// Whether a log that is made of the object store could follow slices of another history.
    pub(super) fn are_behind_others(&self) -> bool {
        self.ahead.is_some()
    }

    /// Another replica leads.
    fn forget(&mut self) {
        (self.is_found, self.chain, self.ahead, self.sweep_at) = (false, None, None, None);
        (self.swept, self.deleted) = (EntryIndex(0), EntryIndex(0));
        (self.state_upto, self.state_tries) = (None, 0);
    }

    fn take_done(&mut self) -> Option<SliceDone> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.is_busy &= done.is_none();
        done
    }

    /// Whether no slice was stored since the last attempt to store one failed.
    pub(super) fn are_failing(&self) -> bool {
        self.failed.is_some()
    }

    fn has_failed(&mut self, path: &Path, error: &Error, now: Moment) {
        if self.failed != Some(error.kind()) {
            tracing::warn!(path = %path.display(), %error, "slices cannot be stored; it is tried again");
        }
        self.failed = Some(error.kind());
        self.waited = (self.waited * 2).clamp(RETRY_MIN, RETRY_MAX);
        let more = self.random.below(self.waited.as_micros() as usize / 4 + 1);
        self.again = now.plus(self.waited + Duration::from_micros(more as u64));
    }

    fn has_succeeded(&mut self, path: &Path) {
        if self.failed.take().is_some() {
            tracing::info!(path = %path.display(), "slices are stored again");
        }
        self.waited = Duration::ZERO;
    }
}

impl Node {
    /// Makes a step of the slices.
    pub(in crate::replica::node) fn slice(&mut self, now: Moment) -> Result<()> {
        if self.options.slice_interval.is_none() {
            return Ok(());
        }
        let done = self.tiering.slices.take_done();
        let has_ended = done.is_some();
        if let Some(done) = done {
            self.end_slice_job(done, now);
        }
        if !self.stores_slices() {
            self.tiering.slices.forget();
            return Ok(());
        }
        self.follow_stored();
        if has_ended && self.replica.has_waiting() {
            self.publish(now)?; // appends may have waited for these slices
        }
        let Some(vault) = self.tiering.vault.clone() else { return Ok(()) };
        if self.slices_due(now).is_none_or(|due| now < due) {
            return Ok(());
        }
        let Some(job) = self.next_slice_job(vault) else { return Ok(()) };
        if let SliceJob::Store(storing) = &job {
            let begins = !matches!(storing.begin, SliceBegin::Behind(_));
            self.tiering.slices.state_upto = begins.then_some(storing.upto);
            self.tiering.slices.new_bytes = 0;
            self.tiering.slices.next_at = now.plus(self.options.slice_interval.unwrap_or_default());
        }
        if let Err(error) = self.start_slice_job(job) {
            self.tiering.slices.is_busy = false;
            self.tiering.slices.has_failed(&self.tiering.path, &error, now);
        }
        Ok(())
    }

    /// When [`Self::slice`] has to be called. None: when something else happens.
    pub(in crate::replica::node) fn slices_due(&self, now: Moment) -> Option<Moment> {
        let slices = &self.tiering.slices;
        // Before that a leader may not know what was discarded, and with which state the slices of the one before begin.
        let knows = self.replica.has_committed_in_its_term();
        if slices.is_busy || !self.stores_slices() || !knows {
            return None;
        }
        if !slices.is_found {
            return Some(slices.again);
        }
        self.next_slice()?;
        // A log that is being closed answers its appends soon.
        let is_last = self.tiering.payloads.hurries() && self.replica.has_waiting();
        let is_full = slices.new_bytes >= u64::from(self.options.slice_bytes) || is_last;
        Some(if is_full { now } else { slices.next_at }.max(slices.again))
    }

    /// Whether this replica stores slices now.
    fn stores_slices(&self) -> bool {
        let is_on = self.options.slice_interval.is_some() && self.tiering.vault.is_some();
        is_on && self.replica.is_leader()
    }

    /// Objects may have overtaken the slices.
    fn follow_stored(&mut self) {
        let stored = self.replica.sequencer.committed().objects.stored_end();
        let slices = &mut self.tiering.slices;
        if let Some(end) = stored.filter(|_| slices.is_found) {
            slices.ahead = slices.ahead.filter(|last| end.raft < *last);
            if slices.chain.is_none_or(|chain| chain.end.raft < end.raft) {
                slices.stored_behind = end.raft;
            }
            let chain = slices.chain.get_or_insert(SliceChain { begin: None, end });
            // From now on it continues the objects: its first slices are deleted.
            chain.begin = None;
            if chain.end.raft < end.raft {
                chain.end = end;
            }
        }
        self.show_slices();
    }

    /// Publishes how far the slices are.
    fn show_slices(&self) {
        let slices = &self.tiering.slices;
        if let Some(chain) = slices.chain.filter(|_| !slices.are_behind_others()) {
            let counters = &self.published.counters;
            counters.sliced_index.store(chain.end.next.previous().0, Ordering::Relaxed);
            counters.sliced_upto.store(chain.end.raft.0, Ordering::Relaxed);
        }
    }

    /// Where the next slice begins. None: everything that is committed is in the object store.
    fn next_slice(&self) -> Option<SliceBegin> {
        let committed = self.replica.sequencer.committed();
        let (chain, oldest) = (self.tiering.slices.chain, self.writer.archive.first().raft);
        let led_from = self.led_from();
        // Without an object that is stored, only a slice that begins with a state leads to others. It has to be one of entries that
        // are still here: else a log that discards before it has objects would keep all its slices.
        let has_stored = committed.objects.stored_end().is_some();
        let leads = has_stored || led_from.is_some_and(|begin| begin >= oldest);
        match chain.filter(|chain| leads && chain.end.raft >= oldest) {
            Some(chain) => {
                let upto = self.sliceable();
                (chain.end.raft < upto).then_some(SliceBegin::Behind(chain.end.raft))
            }
            None => {
                let has_records = committed.first < committed.next && !planted!(136);
                let begin =
                    if has_records { SliceBegin::WithRecord(committed.first) } else { SliceBegin::WithLast };
                (committed.raft > EntryIndex(0)).then_some(begin)
            }
        }
    }

    /// The entry with whose state the slices begin that lead to the end of the log. None: they continue objects; or their state is before
    /// the end of an object that was discarded since. Payload up to there may have been deleted while that object counted as stored.
    fn led_from(&self) -> Option<EntryIndex> {
        let objects = &self.replica.sequencer.committed().objects;
        let begin = self.tiering.slices.chain?.begin?;
        // Object 0 is the first one: before it none was discarded.
        (objects.number() == 0 || begin >= objects.base().raft || planted!(164)).then_some(begin)
    }

    /// Whether slices begin with the state of the log at this entry or a later one, and none from before are left.
    pub(super) fn slices_lead_from(&self, oldest: EntryIndex) -> bool {
        self.led_from().is_some_and(|begin| begin >= oldest && self.tiering.slices.deleted >= begin)
    }

    /// Whether slices still continue an object whose records are discarded: all objects stay until a slice begins with a state (S2).
    pub(super) fn slices_need_objects(&self) -> bool {
        let has_begun = self.led_from().is_some();
        let has_stored = self.replica.sequencer.committed().objects.stored_end().is_some();
        self.stores_slices() && !has_stored && !has_begun
    }

    /// The last entry that may be in a slice.
    fn sliceable(&self) -> EntryIndex {
        match planted!(111) {
            true => self.replica.sequencer.end().raft.min(self.writer.written().end.raft),
            false => self.replica.sequencer.committed().raft,
        }
    }

    fn next_slice_job(&self, vault: Arc<dyn Vault>) -> Option<SliceJob> {
        let (slices, log, archive) = (&self.tiering.slices, self.tiering.log, self.writer.archive.clone());
        if !slices.is_found {
            let stored = self.replica.sequencer.committed().objects.stored_end();
            let term = self.replica.term();
            return Some(SliceJob::Find { vault, log, archive, stored, term });
        }
        let begin = self.next_slice()?;
        let maker = Box::new(ObjectMaker { archive, options: self.options.clone(), node: self.cluster.node });
        let upto = match begin {
            SliceBegin::Behind(_) => self.sliceable(),
            SliceBegin::WithRecord(_) | SliceBegin::WithLast => {
                slices.state_upto.unwrap_or_else(|| self.sliceable())
            }
        };
        Some(SliceJob::Store(Storing {
            vault,
            log,
            maker,
            begin,
            upto,
            bytes_max: self.options.slice_bytes.into(),
            // Slices that are there continue one with which they are to begin.
            one: slices.chain.is_some() && !matches!(begin, SliceBegin::Behind(_)),
            is_first: !slices.is_checked,
            checks_there: slices.failed.is_some(),
            begun: self.begun(),
            unaided: self.tiering.unaided,
        }))
    }

    /// Runs a job. Its result arrives with [`InboxEvent::JobEnded`].
    fn start_slice_job(&mut self, job: SliceJob) -> Result<()> {
        let (slices, queue) = (&mut self.tiering.slices, self.tiering.queue.clone());
        let done = slices.done.clone();
        let run = move || {
            // Without this a panic in the program's own vault would stop slices without a word.
            let result = catch_unwind(AssertUnwindSafe(|| job.run())).unwrap_or(SliceDone::Panicked);
            *done.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            queue.push_event(InboxEvent::JobEnded);
        };
        slices.is_busy = true;
        if self.tiering.unaided {
            run();
            return Ok(());
        }
        let worker = match &slices.worker {
            Some(worker) => worker,
            None => {
                let (worker, jobs) = channel::<Box<dyn FnOnce() + Send>>();
                // It ends with the node, after the job that it runs.
                spawn("chiplog-slices", &self.tiering.path, move || jobs.into_iter().for_each(|job| job()))?;
                slices.worker.insert(worker)
            }
        };
        worker.send(Box::new(run)).map_err(|_| Error::new(ErrorKind::Io, "the thread of slices has ended"))
    }

    fn end_slice_job(&mut self, done: SliceDone, now: Moment) {
        let failed = match done {
            // Slices that a later leader stored meanwhile would count as those of another history.
            SliceDone::Found(term, Ok(_)) if term != self.replica.term() => None,
            SliceDone::Found(_, Ok(FoundSlices { chain, ahead })) => {
                let slices = &mut self.tiering.slices;
                (slices.is_found, slices.chain, slices.ahead) = (true, chain, ahead);
                if let Some(last) = ahead {
                    tracing::warn!(
                        path = %self.tiering.path.display(), %last,
                        "the object store has slices of another history of this log, of a later term: nothing is confirmed as being in the \
                         object store alone until objects have overtaken them"
                    );
                }
                slices.stored_behind = chain.map_or(EntryIndex(0), |chain| chain.end.raft);
                slices.has_succeeded(&self.tiering.path);
                None
            }
            SliceDone::Found(_, Err(error)) => Some(error),
            SliceDone::Stored(stored) => self.end_storing(stored),
            SliceDone::Panicked => Some(Error::new(ErrorKind::Io, "a call of the object store panicked")),
        };
        if let Some(error) = failed {
            self.published.counters.slice_failures.fetch_add(1, Ordering::Relaxed);
            self.published.store_fails(Kept::Slices, &error, self.options.clock.now());
            self.tiering.slices.has_failed(&self.tiering.path, &error, now);
        } else {
            self.published.store_works(Kept::Slices);
        }
        self.show_slices();
    }

    /// Takes what was stored. Returns the failure of the rest.
    fn end_storing(&mut self, stored: StoredSlices) -> Option<Error> {
        let StoredSlices { count, bytes, chain: new, is_checked, failed } = stored;
        self.published.counters.stored_slices(count, bytes);
        let slices = &mut self.tiering.slices;
        slices.is_checked |= is_checked;
        if new.is_some() {
            slices.waited = Duration::ZERO; // it goes on
        }
        // Another replica may lead since then, or again: then the slices are looked for.
        if let Some(new) = new.filter(|_| slices.is_found) {
            let known = slices.chain.filter(|known| new.end.raft < known.end.raft);
            let begin = new.begin.or(slices.chain.and_then(|known| known.begin));
            slices.stored_behind = match new.begin {
                Some(begin) if known.is_none() => begin,
                Some(begin) if new.end.raft >= slices.stored_behind => begin.min(slices.stored_behind),
                _ => slices.stored_behind,
            };
            slices.chain = Some(SliceChain { begin, end: known.map_or(new.end, |known| known.end) });
        }
        let is_gone = failed.as_ref().is_some_and(|error| error.kind() == ErrorKind::NotFound);
        slices.state_tries += u32::from(slices.state_upto.is_some());
        if failed.is_none() || is_gone || slices.state_tries >= STATE_TRIES {
            (slices.state_upto, slices.state_tries) = (None, 0);
        }
        if failed.is_none() {
            slices.has_succeeded(&self.tiering.path);
        }
        failed
    }

    /// Slices without an entry behind this one are not needed any more. None: nothing is to be deleted now.
    pub(super) fn slices_to_delete(&self, now: Moment) -> Option<EntryIndex> {
        let slices = &self.tiering.slices;
        if !self.stores_slices() || !slices.is_found {
            return None;
        }
        let objects = &self.replica.sequencer.committed().objects;
        let stored = match planted!(112) {
            true => objects.end().map(|(_, end)| end),
            false => objects.stored_end(),
        };
        let begun = || match planted!(137) {
            true => slices.chain.map(|chain| chain.end.raft),
            false => self.led_from(),
        };
        let upto = stored.map(|end: Base| end.raft).or_else(begun)?;
        // Those stay that say where payload goes on (P7).
        let refers = self.replica.sequencer.committed().options.get(LogOption::PayloadSlices).is_some();
        let upto = match slices.chain.filter(|_| refers && !planted!(135)) {
            Some(chain) => {
                let kept = self.tiering.payloads.placement.keeps_slices_from(chain.end.raft)?;
                upto.min(EntryIndex(kept.0 - 1))
            }
            None => upto,
        };
        let is_due = slices.sweep_at.is_none_or(|at| at <= now);
        (is_due || (upto > slices.swept && slices.failed.is_none())).then_some(upto)
    }

    /// Slices are deleted now that have no entry behind this one. No entry in them says any more where payload goes on.
    pub(super) fn lets_slices_go(&mut self, upto: EntryIndex) {
        let behind = &mut self.tiering.slices.stored_behind;
        *behind = if planted!(154) { *behind } else { upto.max(*behind) };
    }

    /// Slices up to an entry were deleted; all of them, or some.
    pub(super) fn end_sweep(&mut self, upto: EntryIndex, result: Result<bool>, now: Moment) {
        let slices = &mut self.tiering.slices;
        let again = match result {
            Ok(true) => {
                (slices.swept, slices.deleted) = (upto, upto);
                SWEEP_EVERY
            }
            Ok(false) => Duration::ZERO,
            Err(error) => {
                let path = self.tiering.path.display();
                tracing::warn!(%path, %error, "slices that are in objects cannot be deleted; it is tried again");
                slices.swept = upto;
                SWEEP_RETRY
            }
        };
        slices.sweep_at = Some(now.plus(again));
    }

    /// When slices are to be deleted.
    pub(super) fn sweep_due(&self, now: Moment) -> Option<Moment> {
        let slices = &self.tiering.slices;
        match self.slices_to_delete(now) {
            Some(_) => Some(now),
            None => slices.sweep_at.filter(|at| *at > now && self.stores_slices() && slices.is_found),
        }
    }
}
