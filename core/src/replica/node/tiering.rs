//! Tiering: the leader cuts the log into objects, has them stored, and deletes what was discarded. Every replica removes files
//! whose records are stored.
//!
//! ```text
//!   committed entries for an object ──> find its end (job) ──> cut ──committed──> make, put (job) ──> stored ──committed──> files may go
//! ```
//!
//! The leader has another replica make and put an object if it can, so that it loses no time: see `delegation`.
//!
//! Where an object ends is decided once, by a command; what is in it follows from the log. So a leader that is deposed between
//! two steps, or two replicas that store the same object, do no harm: they write the same bytes under the same name.
//!
//! Jobs run on a thread of their own, because the object store may take seconds. The node only decides. Without threads (in a
//! simulation) a job runs at once.
//!
//! Invariants:
//! - an object is cut only from committed entries, and said to be stored only after the object store has confirmed it;
//! - a file is removed only if every record in it is in objects that are durably known here to be stored (T1);
//! - an object is deleted only if a durably committed discard has passed all of it, and not before `object_delete_delay` after that (T2).
//!   A replica that was not running then goes by the log's time, in which the discard was committed when its entry was made.
//!
//! Must not know: the network, which object store it is.

mod awaited_logs;
mod commits;
mod confirmation;
mod delegation;
mod deletion;
mod examination;
mod jobs;
mod local;
mod object_access;
mod object_look;
mod object_root;
mod object_scrub;
mod older_rows;
mod payload_jobs;
mod payload_sweep;
pub(super) mod payloads;
mod placement;
mod rows_jobs;
mod slice_jobs;
mod slices;
mod storing;
mod unreadable;

use super::Node;
use super::publish::{Kept, Published};
use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::LogOption;
use crate::options::{Clock, Options};
use crate::replica::queue::inbox::{AdminRequest, InboxEvent};
use crate::replica::queue::proposals::{Command, ObjectCommand, ProposalQueue};
use crate::replica::state::object_table::Shown;
use crate::store::Store;
use crate::store::filling::{self, FillLimits};
use crate::store::object_file::Stretch;
use crate::store::objects::cache::ObjectCache;
use crate::store::objects::payloads::Payloads;
use crate::store::segment::{Base, ReadMode};
use crate::sync::clock::Moment;
use crate::sync::completer::Completer;
use crate::sync::threads::spawn;
use crate::types::{EntryIndex, Index, LogId, LogNumber, Timestamp};
use crate::vault::Vault;
use delegation::Delegation;
use deletion::Deletion;
use jobs::{Found, Job, JobDone, ObjectBegin, Search};
use local::Released;
pub(crate) use object_access::ObjectMaker;
#[cfg(any(test, feature = "testing"))]
pub(crate) use object_access::put_and_look;
use object_scrub::ObjectScrub;
use older_rows::OldestRows;
use payloads::PayloadGate;
use slices::Slices;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use storing::Claim;
use unreadable::Unreadable;

/// The delay after a failure: the initial and the maximum one.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// How often a leader looks whether there is enough for another object, at most.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the change that makes a log have objects may wait for the other members.
const OPTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The state of a replica's objects.
pub(super) struct Tiering {
    /// None: this replica has no object store.
    vault: Option<Arc<dyn Vault>>,
    log: LogId,
    path: PathBuf,
    queue: Arc<ProposalQueue>,
    published: Arc<Published>,
    clock: Arc<dyn Clock>,
    /// Without threads jobs run at once.
    unaided: bool,
    /// Where jobs go; the thread starts with the first one.
    worker: Option<Sender<Box<dyn FnOnce() + Send>>>,
    is_busy: bool,
    /// The result of the job that was running.
    done: Arc<Mutex<Option<JobDone>>>,
    /// Nothing is tried before, and how long that was after the last failure.
    again: Moment,
    waited: Duration,
    /// After a failure the scrub goes first, once: what fails all the time must not keep it out.
    yields: bool,
    /// The last failure, and of what, until something succeeds.
    failed: Option<(ErrorKind, &'static str)>,
    /// Why this replica could not leave records to the object store at the last look, and what it said about that.
    lacks_store: Option<(ErrorKind, &'static str)>,
    /// Until then a change that makes the log have objects may be waiting.
    asked_until: Moment,
    /// Up to this entry there was not enough for another object.
    looked_upto: EntryIndex,
    /// The bytes that are needed behind this entry for another object, as the last look has shown. An estimate from the segments
    /// alone can be too high by most of a segment.
    lacking: Option<Lacking>,
    /// Shown to readers.
    shown: Shown,
    deletion: Deletion,
    /// Whether the object store is known to be this log's.
    is_checked: bool,
    released: Released,
    /// Files of discarded records stay for an object that may have to be made again.
    pub(super) holds_discarded: bool,
    delegation: Delegation,
    scrub: ObjectScrub,
    pub(super) slices: Slices,
    pub(super) payloads: PayloadGate,
    oldest_rows: OldestRows,
    /// An object that was put, and is not yet said in the log to be stored.
    claimed: Option<Claim>,
    unreadable: Unreadable,
}

/// The bytes that an object needs.
#[derive(Clone, Copy, Debug)]
struct Lacking {
    behind: EntryIndex,
    bytes: u64,
    /// The size of objects then.
    object_bytes: u64,
    /// See [`PayloadGate::referred`], then.
    referred: u64,
}

/// Lets readers read objects, through a cache of files in the log's directory, if the options name an object store.
pub(crate) fn read_objects(store: &Store, log: LogId, options: &Options) {
    let Some(vault) = options.vault.clone() else { return };
    let maps = options.read_mode == ReadMode::Map;
    let keeps = options.fill_bytes.is_some();
    let cache = ObjectCache::new(vault.clone(), store.disk.clone(), maps, options.cache_bytes, keeps);
    let cache = Arc::new(cache);
    let is_unaided = store.allocator.is_unaided();
    if !is_unaided {
        cache.start_fetching();
    }
    let payloads = Payloads::new(vault, log, options.cache_bytes);
    store.segments.objects().set_cache(cache.clone(), Arc::new(payloads));
    cache.give_way();
    if let Some(limits) = fill_limits(options).filter(|_| !is_unaided) {
        filling::start(&store.segments, limits, store.disk.path());
    }
}

/// How many objects are kept whole. None: the options ask for none.
pub(crate) fn fill_limits(options: &Options) -> Option<FillLimits> {
    let local_bytes = [options.local_bytes, options.capacity_bytes].into_iter().flatten().min();
    let (local_age, segment_bytes) = (options.local_age, options.segment_bytes);
    let limits = |fill_bytes| FillLimits { fill_bytes, local_bytes, local_age, segment_bytes };
    options.fill_bytes.map(limits)
}

fn in_millis(age: Duration) -> u64 {
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}

/// The error of a job that has panicked, in the program's own vault.
fn panicked() -> Error {
    Error::new(ErrorKind::Io, "a call of the object store panicked")
}

impl Tiering {
    pub(super) fn new(
        store: &Store,
        log: LogId,
        options: &Options,
        queue: Arc<ProposalQueue>,
        published: Arc<Published>,
        seed: u64,
    ) -> Self {
        let unaided = store.allocator.is_unaided();
        read_objects(store, log, options);
        if options.object_scrub.is_some()
            && let Some(cache) = store.segments.objects().cache()
        {
            let queue = queue.clone();
            cache.on_damage(move || queue.push_event(InboxEvent::JobEnded));
        }
        Self {
            vault: options.vault.clone(),
            log,
            path: store.disk.path().to_path_buf(),
            queue,
            published,
            clock: options.clock.clone(),
            unaided,
            worker: None,
            is_busy: false,
            done: Arc::default(),
            again: Moment::default(),
            waited: Duration::ZERO,
            yields: false,
            failed: None,
            lacks_store: None,
            asked_until: Moment::default(),
            looked_upto: EntryIndex(0),
            lacking: None,
            shown: Shown::default(),
            deletion: Deletion::default(),
            is_checked: false,
            released: Released::default(),
            holds_discarded: false,
            delegation: Delegation::default(),
            scrub: ObjectScrub::load(&*store.disk, log),
            slices: Slices::new(seed),
            payloads: PayloadGate::new(seed),
            claimed: None,
            oldest_rows: OldestRows::default(),
            unreadable: Unreadable::default(),
        }
    }

    /// Runs a job. Its result arrives with [`InboxEvent::JobEnded`].
    fn start(&mut self, job: Job) -> Result<()> {
        #[cfg(any(test, feature = "testing"))]
        if matches!(job, Job::Examine(_)) && crate::sync::start_faults::fails() {
            return Err(Error::new(ErrorKind::Io, "no thread can be started"));
        }
        let (done, queue) = (self.done.clone(), self.queue.clone());
        let panicked = match job {
            Job::List(_) => JobDone::Listed(Err(panicked())),
            _ => JobDone::Panicked,
        };
        let run = move || {
            // Without this a panic in the program's own vault would stop everything here without a word.
            let result = catch_unwind(AssertUnwindSafe(|| job.run())).unwrap_or(panicked);
            *done.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            queue.push_event(InboxEvent::JobEnded);
        };
        self.is_busy = true;
        if self.unaided {
            run();
            return Ok(());
        }
        let worker = match &self.worker {
            Some(worker) => worker,
            None => {
                let (worker, jobs) = channel::<Box<dyn FnOnce() + Send>>();
                // It ends with the node, after the job that it runs.
                spawn("chiplog-objects", &self.path, move || jobs.into_iter().for_each(|job| job()))?;
                self.worker.insert(worker)
            }
        };
        worker.send(Box::new(run)).map_err(|_| Error::new(ErrorKind::Io, "the thread of objects has ended"))
    }

    fn take_done(&mut self) -> Option<JobDone> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.is_busy &= done.is_none();
        done
    }

    /// A request to the object store has failed.
    fn has_failed(&mut self, error: &Error, what: &'static str, now: Moment) {
        self.published.store_fails(Kept::Objects, error, self.clock.now());
        self.put_off(error, what, now);
    }

    /// The same if the error says nothing about the object store.
    fn put_off(&mut self, error: &Error, what: &'static str, now: Moment) {
        // Each object that arrives damaged is told; what only lasts is told once.
        let failed = Some((error.kind(), what));
        if self.failed != failed || error.kind() == ErrorKind::Corrupt {
            tracing::warn!(path = %self.path.display(), %error, "{what}; it is tried again");
        }
        self.failed = failed;
        self.yields = true;
        self.waited = (self.waited * 2).clamp(RETRY_MIN, RETRY_MAX);
        self.again = now.plus(self.waited);
    }

    fn has_succeeded(&mut self, what: &str) {
        if self.failed.take().is_some() {
            tracing::info!(path = %self.path.display(), "{what} works again");
        }
        self.published.store_works(Kept::Objects);
        self.waited = Duration::ZERO;
    }
}

/// The outcome of the proposal of a command about objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proposed {
    Taken,
    /// It cannot be proposed now.
    Waits,
    /// The log does not take it.
    Refused,
}

impl Node {
    /// Makes a step of the objects.
    pub(super) fn tier(&mut self, now: Moment) -> Result<()> {
        if let Some(done) = self.tiering.take_done() {
            self.learn_fetched();
            self.end_job(done, now)?;
            if self.tiering.holds_discarded {
                self.drop_discarded(self.known_commit());
            }
        }
        self.learn_fetched();
        self.take_requests(now);
        self.learn_suspects(now);
        self.save_suspects(now);
        self.release_files(now)?;
        self.remove_put_aside(now);
        self.let_skip(now);
        self.take_answer(now);
        if !self.replica.is_leader() {
            self.tiering.delegation.forget();
            self.tiering.claimed = None;
            self.published.cut_upto.store(0, Ordering::Relaxed);
        }
        if self.tiering.is_busy && self.has_to_store(now) {
            self.tiering.scrub.give_way();
        }
        if self.tiering.is_busy || now < self.tiering.again {
            return Ok(());
        }
        let Some(vault) = self.tiering.vault.clone() else { return Ok(()) };
        let scrub = match std::mem::take(&mut self.tiering.yields) {
            true => self.scrub_job(&vault, now),
            false => None,
        };
        let job = match self.replica.is_leader() {
            _ if scrub.is_some() => scrub,
            _ if self.replica.asks_for_store() && self.knows_own_suspects(now) => {
                Some(Job::FindStore { vault: vault.clone(), log: self.tiering.log })
            }
            true => self.leaders_job(&vault, now)?,
            false => self.requested_job(&vault, now),
        };
        let Some(job) = job.or_else(|| self.scrub_job(&vault, now)) else { return Ok(()) };
        let is_listing = matches!(job, Job::List(_));
        if let Err(error) = self.tiering.start(job) {
            self.tiering.is_busy = false;
            self.tiering.delegation.end_job();
            self.put_off_scrub(is_listing, now);
            self.tiering.put_off(&error, "objects cannot be stored", now);
        }
        Ok(())
    }

    /// The next job of a leader.
    fn leaders_job(&mut self, vault: &Arc<dyn Vault>, now: Moment) -> Result<Option<Job>> {
        if !self.may_propose_objects() {
            return Ok(None);
        }
        let (vault, log) = (vault.clone(), self.tiering.log);
        let committed = self.replica.sequencer.committed();
        let Some(object_bytes) = committed.options.get(LogOption::ObjectBytes) else {
            return self.begin_objects(now).map(|()| None);
        };
        self.begin_payloads(now)?;
        self.keep_object_age(now)?;
        self.keep_object_rows(now)?;
        let committed = self.replica.sequencer.committed();
        if !self.tiering.is_checked {
            let begun = Box::new(self.begun());
            return Ok(Some(Job::CheckRoot { vault, log, begun }));
        }
        if let Some(below) = self.due_for_deletion(now) {
            return Ok(Some(Job::Delete { vault, lineage: committed.objects.lineage(log), below }));
        }
        if let Some(job) = self.rows_job(&vault, now)? {
            return Ok(Some(job));
        }
        if let Some(upto) = self.slices_to_delete(now) {
            self.lets_slices_go(upto);
            return Ok(Some(Job::DeleteSlices { vault, log, upto, unaided: self.tiering.unaided }));
        }
        if let Some(sweep) = self.sweep_payloads(now)
            && self.knows_own_suspects(now)
        {
            return Ok(Some(sweep));
        }
        let committed = self.replica.sequencer.committed();
        if let Some((number, begin, end)) = committed.objects.next_to_store() {
            return self.job_to_store(vault, Stretch { log, number, begin, end }, now);
        }
        self.tiering.claimed = None;
        Ok(self.next_cut(object_bytes, now))
    }

    /// Makes objects from the files here.
    fn object_maker(&self) -> ObjectMaker {
        let (archive, options) = (self.writer.archive.clone(), self.options.clone());
        ObjectMaker { archive, options, node: self.cluster.node }
    }

    /// When [`Self::tier`] has to be called. None: when something else happens.
    pub(super) fn tiering_due(&self, now: Moment) -> Option<Moment> {
        self.tiering.vault.as_ref()?;
        let release = self.has_said_here().then_some(now);
        if self.tiering.is_busy {
            return release; // files go whatever job runs
        }
        let scrub = self.scrub_due(now).map(|at| at.max(self.tiering.again));
        [self.leaders_due(now), scrub, release].into_iter().flatten().min()
    }

    /// When a leader has to do something about objects.
    fn leaders_due(&self, now: Moment) -> Option<Moment> {
        if !self.replica.is_leader() || !self.may_propose_objects() {
            return None;
        }
        let committed = self.replica.sequencer.committed();
        if committed.options.get(LogOption::ObjectBytes).is_none() {
            return Some(self.tiering.asked_until);
        }
        let has_work = match committed.objects.next_to_store() {
            _ if !self.tiering.is_checked || self.tiering.claimed.is_some() => true,
            Some(_) => self.tiering.delegation.is_idle(),
            None => committed.raft > self.tiering.looked_upto || self.cut_is_wanted(),
        };
        let work = has_work.then_some(now).or(self.tiering.delegation.deadline());
        let (delete, age, sweep) = (self.deletion_due(now), self.age_due(now), self.sweep_due(now));
        let rows = self.rows_due(now);
        let lacks = self.lacks_object_age() || self.lacks_object_rows();
        let asked = lacks.then_some(self.tiering.asked_until);
        let payloads = [self.payloads_begin_due(), self.payload_sweep_due(now), asked];
        let payloads = payloads.into_iter().flatten().min();
        [work, delete, age, sweep, payloads, rows]
            .into_iter()
            .flatten()
            .min()
            .map(|at| at.max(self.tiering.again))
    }

    /// Whether there is something to store, to claim or to delete.
    fn has_to_store(&self, now: Moment) -> bool {
        let (tiering, next) = (&self.tiering, self.replica.sequencer.committed().objects.next_to_store());
        if !self.replica.is_leader() {
            return next.is_some_and(|(number, ..)| tiering.delegation.is_wanted(number));
        }
        let waits = tiering.claimed.is_some() || (next.is_some() && tiering.delegation.is_idle());
        (waits || self.due_for_deletion(now).is_some()) && self.may_propose_objects()
    }

    /// Whether a command about objects can be proposed now. A leader that hands over, or has no room, proposes nothing. The one
    /// before has to be committed.
    fn may_propose_objects(&self) -> bool {
        let sequencer = &self.replica.sequencer;
        let committed = &sequencer.committed().objects;
        let is_settled = sequencer.objects().progress() == committed.progress();
        is_settled && self.replica.refusal().is_none()
    }

    /// Sets the option that makes a log have objects. It is in the log, so that every leader cuts alike, and so that a
    /// replica of an older version is found before the first object.
    fn begin_objects(&mut self, now: Moment) -> Result<()> {
        if now < self.tiering.asked_until {
            return Ok(());
        }
        self.tiering.asked_until = now.plus(OPTION_TIMEOUT * 2);
        let mut changes = vec![(LogOption::ObjectBytes, Some(u64::from(self.options.object_bytes)))];
        if let Some(age) = self.options.object_age {
            changes.push((LogOption::ObjectAge, Some(in_millis(age))));
        }
        self.set_options(changes, now)
    }

    /// Whether the log of a catalogue has no age of objects, or a higher one: an earlier version has opened it first, or a program has
    /// changed it.
    fn lacks_object_age(&self) -> bool {
        let age = self.replica.sequencer.committed().options.get(LogOption::ObjectAge);
        let is_too_high = |most| age.is_none_or(|age| age > in_millis(most));
        self.options.is_catalogue && self.options.object_age.is_some_and(is_too_high)
    }

    /// Sets the age of a catalogue's objects if it lacks it.
    fn keep_object_age(&mut self, now: Moment) -> Result<()> {
        if !self.lacks_object_age() || now < self.tiering.asked_until {
            return Ok(());
        }
        self.tiering.asked_until = now.plus(OPTION_TIMEOUT * 2);
        let age = self.options.object_age.map(in_millis);
        self.set_options(vec![(LogOption::ObjectAge, age)], now)
    }

    fn set_options(&mut self, changes: Vec<(LogOption, Option<u64>)>, now: Moment) -> Result<()> {
        let request = AdminRequest::SetOptions(LogNumber::OWN, changes);
        let completer = Completer::new();
        self.replica.handle_request(request, OPTION_TIMEOUT, completer, now, &mut self.writer.plan)?;
        self.finish(now)
    }

    /// The job that finds the end of the next object, if there is enough for one.
    fn next_cut(&mut self, object_bytes: u64, now: Moment) -> Option<Job> {
        let committed = self.replica.sequencer.committed();
        let Some(about) = self.about_next_begin() else {
            self.tiering.looked_upto = committed.raft;
            return None;
        };
        let is_due = self.age_due(now).is_some_and(|at| at <= now) || self.cut_is_wanted();
        if committed.raft <= self.tiering.looked_upto && !is_due {
            return None; // nothing is new since the last look, which found too little
        }
        let segments = &self.writer.store.segments;
        let is_of = |of: &Lacking| (of.behind, of.object_bytes) == (about.raft, object_bytes);
        let lacking = self.tiering.lacking.filter(is_of);
        let needed = lacking.map_or(object_bytes, |lacking| lacking.bytes);
        let refers = committed.options.get(LogOption::PayloadSlices).is_some();
        // An object has the batches that the log only refers to: only a look at the entries says how large they are.
        let referred = self.tiering.payloads.referred();
        let more = lacking.map_or(0, |lacking| referred - lacking.referred);
        let is_full = segments.bytes_behind(about.raft) + more >= needed || (refers && lacking.is_none());
        // It may have less than what is committed: that has to have a record, too. Else each object caused one of commands alone.
        let begins = about.next.max(self.replica.sequencer.first_at_end());
        let cuttable = self.cuttable().filter(|(upto, _)| *upto > about.raft);
        let all = is_due && cuttable.is_some_and(|(_, next)| next > begins);
        if !is_full && !all {
            self.tiering.again = now.plus(LOOK_EVERY);
            self.tiering.looked_upto = committed.raft;
            return None; // if it is due, it is looked at again
        }
        if let Err(full) = self.replica.sequencer.check_room_for_object() {
            self.tiering.looked_upto = committed.raft;
            self.tiering.put_off(&full, "no more objects can be stored", now);
            return None;
        }
        let archive = self.writer.archive.clone();
        let number = committed.objects.end().map_or(0, |(number, _)| number);
        let Some((upto, _)) = cuttable else {
            self.tiering.again = now.plus(LOOK_EVERY);
            return None;
        };
        let first = self.replica.sequencer.first_at_end();
        let begin = self.next_begin();
        Some(Job::FindEnd(Search { archive, number, begin, upto, object_bytes, all, first, refers }))
    }

    /// Where the next object begins.
    fn next_begin(&self) -> ObjectBegin {
        let first = self.replica.sequencer.first_at_end();
        match self.replica.sequencer.committed().objects.end() {
            Some((_, end)) if end.next > first => ObjectBegin::Behind(end),
            _ => ObjectBegin::WithRecord(first),
        }
    }

    /// A position at or before the begin of the next object, not before its segment. None: there is nothing for an object.
    fn about_next_begin(&self) -> Option<Base> {
        let committed = self.replica.sequencer.committed();
        let begin = match self.next_begin() {
            ObjectBegin::Behind(end) => Some(end),
            ObjectBegin::WithRecord(first) if first < committed.next => {
                self.writer.store.segments.file_holding(first).map(|segment| segment.base)
            }
            ObjectBegin::WithRecord(_) => None,
        };
        begin.filter(|begin| begin.raft < committed.raft)
    }

    /// Whether records that are in no object are to be in one now, however few they are, as the program has asked for.
    fn cut_is_wanted(&self) -> bool {
        let upto = Index(self.published.cut_upto.load(Ordering::Relaxed));
        let is_there = upto > Index(0) && self.replica.sequencer.first_at_end() <= upto;
        is_there && self.about_next_begin().is_some_and(|begin| begin.next <= upto)
    }

    /// When entries that are in no object are too old for that. None: there are none, or they have no limit.
    fn age_due(&self, now: Moment) -> Option<Moment> {
        let committed = self.replica.sequencer.committed();
        let age = committed.options.get(LogOption::ObjectAge).filter(|age| *age < u64::MAX)?;
        let begin = self.about_next_begin()?;
        // Records, not the commands about objects: else each object would cause the next one.
        if begin.next >= committed.next {
            return None;
        }
        let since = committed.objects.last_timestamp().max(self.tiering_since(begin));
        let due = Timestamp(since.0.saturating_add(age));
        Some(now.plus(Duration::from_millis(due.0.saturating_sub(self.replica.time(now).0))))
    }

    /// The time of the oldest entries behind `begin`, as far as the segments say.
    fn tiering_since(&self, begin: Base) -> Timestamp {
        let segment = self.writer.store.segments.beginning_before(begin.raft);
        segment.map_or(Timestamp(0), |segment| segment.first_timestamp)
    }

    fn end_job(&mut self, done: JobDone, now: Moment) -> Result<()> {
        // A replica that leads now uses what it has stored for another leader.
        let asked = self.tiering.delegation.end_job().filter(|_| !self.replica.is_leader());
        if matches!(done, JobDone::Panicked) && self.end_panicked_examination(now) {
            return Ok(());
        }
        if done.is_failure() {
            self.published.counters.object_failures.fetch_add(1, Ordering::Relaxed);
        }
        match done {
            JobDone::Root(Ok(())) => {
                self.tiering.is_checked = true;
                self.tiering.has_succeeded("the object store");
            }
            JobDone::FoundStore(found) => {
                let can_skip = match found {
                    Ok(()) => {
                        self.tiering.lacks_store = None;
                        Some(!self.may_have_last_copy())
                    }
                    Err(error) => {
                        let path = self.tiering.path.display();
                        let is_lasting = error.kind() != ErrorKind::Unavailable;
                        let what = match is_lasting {
                            true => "this replica gets all records that it lacks from the others",
                            false => {
                                "this replica cannot see yet whether it can leave records to the object store; it looks again"
                            }
                        };
                        let failed = Some((error.kind(), what));
                        if std::mem::replace(&mut self.tiering.lacks_store, failed) != failed {
                            tracing::info!(%path, %error, "{what}");
                        }
                        self.tiering.again = now.plus(RETRY_MIN);
                        is_lasting.then_some(false)
                    }
                };
                self.replica.found_store(can_skip);
            }
            JobDone::Root(Err(error)) => {
                self.tiering.has_failed(&error, "the object store cannot be used", now)
            }
            // A discard may have moved its begin meanwhile: then replicas may lack what is before.
            JobDone::End(begin, _, Ok(Found::Cut(_))) if self.next_begin() != begin => {
                self.tiering.again = now.plus(LOOK_EVERY);
            }
            JobDone::End(_, _, Ok(Found::Cut(cut))) => _ = self.propose_object(cut, now)?,
            JobDone::End(_, upto, Ok(Found::Lacking(bytes))) => {
                self.tiering.looked_upto = upto;
                self.tiering.again = now.plus(LOOK_EVERY);
                let segments = &self.writer.store.segments;
                let options = self.replica.sequencer.committed().options;
                let object_bytes = options.get(LogOption::ObjectBytes).unwrap_or(0);
                self.tiering.lacking = self.about_next_begin().map(|about| {
                    let looked =
                        segments.bytes_behind(about.raft).saturating_sub(segments.bytes_behind(upto));
                    let referred = self.tiering.payloads.referred();
                    Lacking {
                        behind: about.raft,
                        bytes: looked.saturating_add(bytes),
                        object_bytes,
                        referred,
                    }
                });
            }
            JobDone::End(_, _, Err(error)) => {
                self.tiering.put_off(&error, "the end of an object cannot be found", now)
            }
            JobDone::Stored(number, result) => self.end_store(asked, number, result, now)?,
            JobDone::Checked(number, object, from, result) => {
                self.end_check(Claim { from, number, object, is_sound: false }, result, now)?;
            }
            done @ (JobDone::FoundRows(_) | JobDone::FetchedRun(..)) => self.end_rows_job(done, now)?,
            JobDone::Listed(result) => self.end_listing(result, now),
            JobDone::Examined(number, place, result) => self.end_examination(number, place, result, now),
            JobDone::Deleted(below, result) => self.end_deletion(below, result, now),
            JobDone::SlicesDeleted(upto, result) => self.end_sweep(upto, result, now),
            JobDone::PayloadsSwept(behind, result) => self.end_payload_sweep(behind, result, now),
            JobDone::Panicked => {
                let error = panicked();
                if let Some((_, number)) = asked {
                    self.answer(asked, number, Err(error.clone()));
                }
                if self.replica.asks_for_store() {
                    self.replica.found_store(Some(false));
                }
                self.tiering.has_failed(&error, "objects cannot be stored", now);
            }
        }
        Ok(())
    }

    /// Proposes a command about objects.
    fn propose_object(&mut self, command: ObjectCommand, now: Moment) -> Result<Proposed> {
        let command = Command::Object(command);
        if !self.replica.is_leader() || self.replica.refusal().is_some() {
            return Ok(Proposed::Waits);
        }
        let purpose = self.replica.purpose_of(&command);
        if !self.has_made_room(&command, purpose, now) {
            self.tiering.again = now.plus(RETRY_MIN); // no file is available
            return Ok(Proposed::Waits);
        }
        let before = self.replica.sequencer.objects().progress();
        let end = self.replica.sequencer.end().raft;
        self.replica.command(command, None, now, &mut self.writer.plan)?;
        // Exactly one more entry: it is this one.
        if self.replica.sequencer.end().raft == end.next() {
            self.tiering.payloads.placement.pass(end.next());
        }
        // A command that the log does not take is not tried at once: nothing would have changed.
        let is_taken = self.replica.sequencer.objects().progress() != before;
        self.tiering.again = if is_taken { now } else { now.plus(LOOK_EVERY) };
        self.finish(now)?;
        Ok(if is_taken { Proposed::Taken } else { Proposed::Refused })
    }

    /// Shows readers the objects that are stored.
    pub(super) fn publish_objects(&mut self, now: Moment) {
        let committed = self.replica.sequencer.committed();
        let shown = committed.objects.shown();
        if shown == self.tiering.shown {
            return;
        }
        committed.objects.show(self.tiering.log, self.writer.store.segments.objects());
        let before = std::mem::replace(&mut self.tiering.shown, shown);
        self.logs_shrank = true; // it may be known now that the oldest object has no records of any log
        self.prune_scrub();
        if !self.tiering.deletion.has_begun() {
            self.find_discards(now);
        } else if shown.number > before.number {
            self.see_discard(shown.number, now);
        }
        self.drop_discarded(self.known_commit());
    }
}
