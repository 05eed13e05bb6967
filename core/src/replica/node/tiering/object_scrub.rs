//! Scrub of objects: finds those that the object store has lost or damaged, and stores them again.
//!
//! ```text
//!   every hour, or pass        list all ──> missing, or of another size ──┐
//!   a reader met damage ──────────────────────────────────────────────────┼──> suspects ──when due──┐
//!   another replica found it, and has not its entries ────────────────────┘       ^                 ├──> examine
//!   evenly over a pass         the next object ───────────────────────────────────│─────────────────┘      │
//!                                              not sound, or not examined: later  └────────────────────────┘
//! ```
//!
//! The log says of each object how large it is and which checksum it has. So any replica can examine any object; those that have
//! its entries in their files can make it again, byte for byte. Each replica lists. A replica reads the objects that it could
//! make again, and the leader all. A replica that finds damage and cannot repair it tells the others. Where a pass is follows from the
//! log's time: restarts and new leaders go on in it.
//!
//! Invariants:
//! - one object that cannot be examined delays no other one: each has its own time, and suspects and the pass take turns;
//! - files that have all of a suspect stay (see `local`), also after a restart: suspects are in a file of their own, which is written
//!   when they change. Where it cannot be written, what is there is made unreadable. If that file is damaged, all objects that files have
//!   are suspects once all were listed. Until all objects were listed since the start, no file goes by this replica's own limits;
//! - a discard removes no file of a suspect of which it leaves records. Until all objects were listed, the object that it cuts in two
//!   counts as one, also at a restart (see `sequencer/replay.rs`, `Opened`): no file says so;
//! - files that recovery put aside for suspects stay until there are none, and all objects were listed;
//! - storing goes first: nothing is examined while there is something to store, to claim or to delete here, and an examination
//!   gives way to it, up to [`GIVES_WAY_MAX`] times. Then it does not: in a busy log there is always something, and files wait;
//! - a suspect is in the set of suspects, or under examination, until it was found to be sound: also if the job cannot be started;
//! - nothing is stored again while no leader is known: this replica may not know of discards.

use super::super::Node;
use super::examination::{Examination, Listing, OlderObject, Verdict};
use super::jobs::Job;
use super::unreadable::LOOK_AGAIN;
use crate::disk::Disk;
use crate::error::{ErrorKind, Result};
use crate::replica::state::object_table::ObjectTable;
use crate::store::format::older_rows::RowsRun;
use crate::store::objects::suspects;
use crate::store::segment::Base;
use crate::sync::clock::Moment;
use crate::types::{LogId, Timestamp};
use crate::vault::Vault;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often all objects are listed, and when they are listed first, at most.
const LIST_EVERY: Duration = Duration::from_secs(3600);
const LIST_FIRST: Duration = Duration::from_secs(60);
/// When a scrub that could not use the object store goes on.
const SCRUB_AGAIN: Duration = Duration::from_secs(60);
/// When an object is examined again: one whose examination gave way, failed for a reason that passes, or found damage that lasts.
const GAVE_WAY_AGAIN: Duration = Duration::from_secs(3);
const PASSING_AGAIN: Duration = Duration::from_secs(600);
const LASTING_AGAIN: Duration = Duration::from_secs(3600);
/// How long a pass takes without a scrub, as long as there are suspects.
const PASS_OF_SUSPECTS: Duration = Duration::from_secs(30 * 24 * 3600);
/// How often in a row examinations give way, at most: otherwise a busy log would have none.
const GIVES_WAY_MAX: u32 = 4;
/// The most objects that a pass makes up for, after a time without this replica.
const LATE_MAX: u64 = 8;

/// The state of the scrub.
#[derive(Debug, Default)]
pub(super) struct ObjectScrub {
    /// When all objects are listed next. None: not decided yet.
    list_at: Option<Moment>,
    /// The last turn in the pass, by the log's time, and the next one. None: not decided yet.
    last: Option<Turn>,
    next: Option<Turn>,
    /// Nothing is done before: the object store could not be used.
    rest_until: Option<Moment>,
    /// Objects that are to be examined, and when.
    pub(super) suspects: BTreeMap<u64, Suspect>,
    /// Objects that are known to be lost or damaged: all are suspects, too.
    damaged: BTreeSet<u64>,
    examining: Option<Examining>,
    /// Where suspects begin and end whose rows are not in the log's table, as their examinations have found.
    places: BTreeMap<u64, (Base, Base)>,
    /// How often in a row examinations gave way.
    gave_way: u32,
    /// Whether the last examination was of a suspect.
    was_suspect: bool,
    memory: Memory,
}

/// The suspects as they are known over restarts.
#[derive(Debug, Default)]
struct Memory {
    /// The suspects whose files stay, as the file has them. None: it is not known.
    saved: Option<BTreeSet<u64>>,
    /// They may have changed since.
    is_changed: bool,
    /// The file could not be replaced: it is tried again then.
    save_at: Moment,
    /// The file could not be read: any object that the files here have can be a suspect.
    is_lost: bool,
    /// All objects were listed since the start.
    is_listed: bool,
    /// Files wait for the first listing.
    is_awaited: bool,
}

/// The object that is being examined.
#[derive(Debug)]
struct Examining {
    number: u64,
    is_suspect: bool,
    /// It could not be read for long before.
    has_lasted: bool,
    /// Ends it early.
    gives_way: Arc<AtomicBool>,
}

/// An object that is to be examined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect {
    pub(super) at: Moment,
    /// Whether there is a reason to think that it is lost or damaged: files with its entries stay.
    pub(super) holds: bool,
}

/// When an object is read in a pass: at a time in milliseconds. Of two at the same time the one with the lower number comes first.
type Turn = (u64, u64);

/// The first turn of one of these objects after another turn. Each object has a turn in every pass, at a time of its own: which other
/// objects there are does not matter, and all together are spread evenly.
fn next_turn(objects: impl Iterator<Item = u64>, every: Duration, last: Turn) -> Option<Turn> {
    let every = (every.as_millis() as u64).max(1);
    let turn = |number: u64| {
        // Multiples of the golden ratio: wherever they end, they divide a pass about evenly.
        let part = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let phase = ((u128::from(part) * u128::from(every)) >> 64) as u64;
        let in_this_pass = (last.0 - last.0 % every + phase, number);
        if in_this_pass > last { in_this_pass } else { (in_this_pass.0 + every, number) }
    };
    objects.map(turn).min()
}

impl ObjectScrub {
    /// The scrub of a replica that starts: the suspects that it knew are examined soon.
    pub(super) fn load(disk: &dyn Disk, log: LogId) -> Self {
        let mut scrub = Self::default();
        match suspects::read(disk, log) {
            Ok(saved) => {
                let suspect = Suspect { at: Moment::default(), holds: true };
                scrub.suspects = saved.iter().map(|number| (*number, suspect)).collect();
                scrub.memory.saved = Some(saved);
            }
            Err(error) => {
                let what = "it is not known which objects are lost or damaged: no file goes until the scrub of objects has listed all";
                tracing::warn!(path = %disk.path().display(), %error, "{what}");
                (scrub.memory.is_lost, scrub.memory.is_changed) = (true, true);
            }
        }
        scrub
    }

    /// The suspects whose files stay, with the one that is being examined.
    pub(super) fn known_suspects(&self) -> BTreeSet<u64> {
        let examining = self.examining.iter().filter(|examining| examining.is_suspect);
        let suspects = self.suspects.iter().filter(|(_, suspect)| suspect.holds);
        suspects.map(|(number, _)| *number).chain(examining.map(|examining| examining.number)).collect()
    }

    /// Those of them whose rows are not in the log's table: where they begin and end, as their examinations have found.
    pub(super) fn suspects_of_runs(&self, objects: &ObjectTable) -> Vec<(u64, (Base, Base))> {
        let suspects = self.known_suspects();
        let places = self.places.iter().map(|(number, place)| (*number, *place));
        places.filter(|(number, _)| suspects.contains(number) && objects.run_of(*number).is_some()).collect()
    }

    /// Whether all objects were listed since the start.
    #[cfg(feature = "testing")]
    pub(super) fn has_listed(&self) -> bool {
        self.memory.is_listed
    }

    /// Has an object examined at once, unless it has a time already.
    fn suspect(&mut self, number: u64, now: Moment) {
        if let Some(examining) = self.examining.as_mut().filter(|examining| examining.number == number) {
            self.memory.is_changed |= !std::mem::replace(&mut examining.is_suspect, true);
            return;
        }
        let suspect = self.suspects.entry(number).or_insert(Suspect { at: now, holds: true });
        self.memory.is_changed |= !std::mem::replace(&mut suspect.holds, true) || suspect.at == now;
    }

    /// How many objects are known to be lost or damaged.
    pub(super) fn damaged(&self) -> usize {
        self.damaged.len()
    }

    /// Ends an examination early, because something waits that goes first.
    pub(super) fn give_way(&self) {
        if let Some(Examining { gives_way, .. }) = &self.examining
            && self.gave_way < GIVES_WAY_MAX
        {
            gives_way.store(true, Ordering::Relaxed);
        }
    }

    /// Whether nothing is done now, because the object store could not be used.
    fn rests(&self, now: Moment) -> bool {
        self.rest_until.is_some_and(|until| now < until)
    }

    /// The suspect that is due longest.
    fn due_suspect(&self, now: Moment) -> Option<u64> {
        let due = self.suspects.iter().filter(|(_, suspect)| suspect.at <= now);
        due.min_by_key(|(_, suspect)| suspect.at).map(|(number, _)| *number)
    }

    /// The next object to be examined: suspects and the pass take turns.
    fn next(&mut self, time: Timestamp, now: Moment) -> Option<(u64, bool)> {
        let turn = self.next.filter(|turn| turn.0 <= time.0);
        let suspect = self.due_suspect(now);
        let suspect = suspect.filter(|_| turn.is_none() || !self.was_suspect);
        self.was_suspect = suspect.is_some();
        if let Some(number) = suspect {
            let holds = self.suspects.remove(&number).is_some_and(|suspect| suspect.holds);
            return Some((number, holds));
        }
        let turn = turn?;
        (self.last, self.next) = (Some(turn), None);
        // A suspect has a time of its own.
        (!self.suspects.contains_key(&turn.1)).then_some((turn.1, false))
    }

    /// The objects have changed: forgets those below `oldest`, and decides again whose turn comes next.
    fn prune(&mut self, oldest: u64) {
        self.suspects.retain(|number, _| *number >= oldest);
        self.damaged.retain(|number| *number >= oldest);
        let first = self.memory.saved.as_ref().and_then(|saved| saved.first());
        self.memory.is_changed |= first.is_some_and(|number| *number < oldest);
        self.next = None;
    }
}

impl Node {
    /// The next job of the scrub, if one is due.
    pub(super) fn scrub_job(&mut self, vault: &Arc<dyn Vault>, now: Moment) -> Option<Job> {
        let every = self.scrub_pass()?;
        let time = self.replica.time(now);
        let (vault, log, node) = (vault.clone(), self.tiering.log, self.cluster.node.0);
        let objects = &self.replica.sequencer.committed().objects;
        let scrub = &mut self.tiering.scrub;
        if scrub.rests(now) {
            return None;
        }
        // Not all replicas at the same time.
        let first = || now.plus(every.min(LIST_FIRST) * (node % 8 + 1) as u32 / 8);
        if *scrub.list_at.get_or_insert_with(first) <= now {
            scrub.list_at = Some(now.plus(every.min(LIST_EVERY)));
            let stored = objects.stored().map(|at| (at.number, at.object.bytes)).collect();
            let runs = objects.runs().collect();
            return Some(Job::List(Listing { vault, lineage: objects.lineage(log), runs, stored }));
        }
        if scrub.next.is_none() {
            let all = objects.number()..objects.next_to_show();
            let late = every.as_millis() as u64 * LATE_MAX / (all.end - all.start).max(1);
            let last = scrub.last.unwrap_or((time.0, u64::MAX)).max((time.0.saturating_sub(late), 0));
            scrub.last = Some(last);
            scrub.next = next_turn(all, every, last);
        }
        let (number, is_suspect) = scrub.next(time, now)?;
        if self.is_going(number) {
            self.examine_later(number, GAVE_WAY_AGAIN, is_suspect, now);
            return None;
        }
        self.examine(vault, number, is_suspect, now)
    }

    /// The job that examines an object. None: it cannot be now, or another replica does.
    pub(super) fn examine(
        &mut self,
        vault: Arc<dyn Vault>,
        number: u64,
        is_suspect: bool,
        now: Moment,
    ) -> Option<Job> {
        let log = self.tiering.log;
        let objects = &self.replica.sequencer.committed().objects;
        if let Some(run) = objects.run_of(number) {
            return self.examine_older(vault, run, (number, is_suspect), now);
        }
        let Some(at) = objects.stored().find(|at| at.number == number) else {
            // Known from before a restart: this replica has not learnt yet that the object is stored.
            if is_suspect {
                self.examine_later(number, GAVE_WAY_AGAIN, true, now);
            }
            return None;
        };
        let is_here = self.has_all_behind(at.begin);
        if !is_suspect && !is_here && !self.replica.is_leader() {
            return None;
        }
        let owner = objects.lineage(log).owner(number);
        let (has_lasted, gives_way) = self.begin_examination(number, is_suspect, now);
        // An ancestor's object is not this log's to store.
        let maker = (is_here && owner == log).then(|| self.object_maker());
        Some(Job::Examine(Box::new(Examination { vault, log, owner, at, maker, has_lasted, gives_way })))
    }

    /// Notes which object is examined. Returns whether it could not be read for long, and what makes the examination give way.
    fn begin_examination(&mut self, number: u64, is_suspect: bool, now: Moment) -> (bool, Arc<AtomicBool>) {
        let gives_way = Arc::new(AtomicBool::new(false));
        let has_lasted = self.has_lasted(number, now);
        debug_assert!(self.tiering.scrub.examining.is_none(), "an examination would be forgotten");
        self.tiering.scrub.examining =
            Some(Examining { number, is_suspect, has_lasted, gives_way: gives_way.clone() });
        (has_lasted, gives_way)
    }

    /// The same of an object whose row is not in the log's table: where it begins is known once its row was read.
    fn examine_older(
        &mut self,
        vault: Arc<dyn Vault>,
        run: RowsRun,
        (number, is_suspect): (u64, bool),
        now: Moment,
    ) -> Option<Job> {
        let lineage = self.replica.sequencer.committed().objects.lineage(self.tiering.log);
        let can_be_here = self.writer.archive.first().raft < run.rows.end.raft;
        if !is_suspect && !can_be_here && !self.replica.is_leader() {
            return None;
        }
        let (has_lasted, gives_way) = self.begin_examination(number, is_suspect, now);
        let is_own = lineage.owner(number) == lineage.log;
        let maker = (can_be_here && is_own).then(|| self.object_maker());
        Some(Job::ExamineOlder(Box::new(OlderObject {
            vault,
            lineage,
            run,
            number,
            maker,
            has_lasted,
            gives_way,
        })))
    }

    /// When the scrub has something to do. None: nothing, until something else happens.
    pub(super) fn scrub_due(&self, now: Moment) -> Option<Moment> {
        self.scrub_pass()?;
        let scrub = &self.tiering.scrub;
        let list = scrub.list_at.unwrap_or(now);
        let left = scrub.next.map_or(0, |turn| turn.0.saturating_sub(self.replica.time(now).0));
        let read = now.plus(Duration::from_millis(left));
        let at = scrub.suspects.values().map(|suspect| suspect.at).chain([list, read]).min()?;
        Some(scrub.rest_until.map_or(at, |until| at.max(until)))
    }

    /// How long a pass takes. None: nothing can be examined now. Suspects of a time with a scrub are examined without one, too: else their
    /// files would stay for ever.
    fn scrub_pass(&self) -> Option<Duration> {
        let has_objects = self.replica.sequencer.committed().objects.stored_upto().is_some();
        let scrub = &self.tiering.scrub;
        let has_suspects = !scrub.suspects.is_empty() || scrub.memory.is_lost;
        let for_suspects = has_suspects.then_some(PASS_OF_SUSPECTS);
        let pass = self.options.object_scrub.or(for_suspects);
        pass.filter(|_| has_objects && self.replica.leader().is_some())
    }

    /// Whether a block says that files with entries of this object go, and they are there yet: a suspect would be one too late.
    pub(super) fn is_going(&self, number: u64) -> bool {
        let Some(first) = self.going_now() else { return false };
        let objects = &self.replica.sequencer.committed().objects;
        let run = objects.run_of(number).map(|run| run.begin);
        let row = || objects.stored().find(|at| at.number == number).map(|at| at.begin);
        run.or_else(row).is_some_and(|begin| begin.next < first)
    }

    /// Whether the files here have all entries of an object that begins there.
    fn has_all_behind(&self, begin: Base) -> bool {
        self.writer.archive.first().raft <= begin.raft
    }

    /// The same, also of entries in files that recovery could not read: a later start can.
    pub(super) fn may_have_all_behind(&self, begin: Base) -> bool {
        let put_aside = &self.writer.store.put_aside;
        self.has_all_behind(begin) || !put_aside.names.is_empty() && put_aside.from <= begin.raft
    }

    /// Removes the files that recovery put aside for suspects, once there are none. Those that an object needs which is not stored yet
    /// stay.
    pub(super) fn remove_put_aside(&mut self, now: Moment) {
        let put_aside = &self.writer.store.put_aside;
        if put_aside.names.is_empty()
            || put_aside.are_unstored
            || self.may_have_last_copy()
            || !self.knows_suspects(now)
        {
            return;
        }
        let names = std::mem::take(&mut self.writer.store.put_aside).names;
        let disk = self.writer.store.disk.clone();
        self.writer.store.allocator.run_in_background(move || {
            for name in names {
                if let Err(error) = disk.remove(&name) {
                    tracing::warn!(name, %error, "a file that nothing needs any more could not be removed; a restart does it");
                }
            }
        });
    }

    /// Has a stored object examined, because a reader or another replica has met damage in it.
    pub(super) fn suspect_object(&mut self, number: u64, now: Moment) {
        let objects = &self.replica.sequencer.committed().objects;
        let is_stored = (objects.number()..objects.next_to_show()).contains(&number);
        if is_stored && self.options.object_scrub.is_some() {
            self.tiering.scrub.suspect(number, now);
        }
    }

    /// Learns of objects in which readers have met damage.
    pub(super) fn learn_suspects(&mut self, now: Moment) {
        let met = self.writer.store.segments.objects().cache().map(|cache| cache.take_suspects());
        for number in met.unwrap_or_default() {
            self.suspect_object(number, now);
        }
    }

    /// Learns of which objects that could not be read a part was fetched since, for a reader.
    pub(super) fn learn_fetched(&mut self) {
        let unreadable = &mut self.tiering.unreadable;
        if unreadable.is_empty() {
            return;
        }
        if let Some(cache) = self.writer.store.segments.objects().cache() {
            cache.take_fetched().into_iter().for_each(|number| unreadable.was_fetched(number));
            cache.watch(&unreadable.lasting());
        }
    }

    /// Where the first object begins that may have to be made again from the files here, and can be: now, or once files are readable again.
    pub(in super::super) fn held_by_scrub(&self) -> Option<Base> {
        let scrub = &self.tiering.scrub;
        let objects = &self.replica.sequencer.committed().objects;
        let mut held = scrub.known_suspects();
        held.extend(scrub.examining.iter().map(|examining| examining.number));
        // No replica of this log makes objects of its ancestors.
        let own_from = objects.lineage(self.tiering.log).own_from();
        held.retain(|number| *number >= own_from);
        // Until all objects were listed any can be one: a discard cuts the oldest one in two. No other file goes before.
        let is_unlisted =
            self.options.object_scrub.is_some() && self.tiering.vault.is_some() && !scrub.memory.is_listed;
        let oldest = (scrub.memory.is_lost || is_unlisted).then(|| self.held_of_oldest(own_from)).flatten();
        let older = held.iter().filter_map(|number| self.held_of_run(*number));
        let rows = objects.stored().filter(|at| held.contains(&at.number)).map(|at| at.begin);
        let row = rows.filter(|begin| self.may_have_all_behind(*begin)).take(1);
        older.chain(row).chain(oldest).min_by_key(|begin| begin.raft)
    }

    /// Where the oldest object begins that has records which are not discarded, if it may have to be made again from the files here. In a
    /// run its row says which one that is. Until the row was read it can be any object of the run, and this begins where the run does, or
    /// the files here.
    fn held_of_oldest(&self, own_from: u64) -> Option<Base> {
        let objects = &self.replica.sequencer.committed().objects;
        let run = objects.runs().next();
        let oldest = match &run {
            Some(_) => self.first_of_run().map(|(at, _)| at),
            None => objects.stored().next(),
        };
        match (oldest, run) {
            (Some(at), _) if at.number < own_from => None,
            (Some(at), _) => Some(at.begin).filter(|begin| self.may_have_all_behind(*begin)),
            (None, Some(run)) if run.rows.below > own_from => self.held_of_any(&run),
            (None, _) => None,
        }
    }

    /// Where an object begins that may have to be made again from the files here, and whose row is not in the log's table. Until its row was
    /// read, the files here can have all of it if they have a part of its run.
    fn held_of_run(&self, number: u64) -> Option<Base> {
        let run = self.replica.sequencer.committed().objects.run_of(number)?;
        if let Some((begin, _)) = self.tiering.scrub.places.get(&number) {
            return Some(*begin).filter(|begin| self.may_have_all_behind(*begin));
        }
        self.held_of_any(&run)
    }

    /// Where a run begins, or the files here if they begin in it. None: they begin behind it.
    fn held_of_any(&self, run: &RowsRun) -> Option<Base> {
        let first = self.writer.archive.first();
        (first.raft < run.rows.end.raft).then_some(if first.raft < run.begin.raft {
            run.begin
        } else {
            first
        })
    }

    /// Whether the files here may be the last copy of an object that is to be made again. All suspects are known: see
    /// [`Self::knows_suspects`]. The log's table may not have them yet, after a restart.
    pub(super) fn may_have_last_copy(&self) -> bool {
        let scrub = &self.tiering.scrub;
        scrub.examining.is_some() || !scrub.known_suspects().is_empty()
    }

    /// Where the first object of this log's own begins that may be lost or damaged. Payload of this log is not in objects of ancestors.
    pub(super) fn first_suspect(&self) -> Option<Base> {
        let suspects = self.tiering.scrub.known_suspects();
        if suspects.is_empty() {
            return None;
        }
        let objects = &self.replica.sequencer.committed().objects;
        let own_from = objects.lineage(self.tiering.log).own_from();
        let of_run = |number: &u64| {
            let run = objects.run_of(*number)?;
            Some(self.tiering.scrub.places.get(number).map_or(run.begin, |(begin, _)| *begin))
        };
        if let Some(begin) = suspects.range(own_from..).find_map(of_run) {
            return Some(begin);
        }
        let mut own = objects.stored().filter(|at| at.number >= own_from);
        own.find(|at| suspects.contains(&at.number)).map(|at| at.begin)
    }

    /// Whether all suspects are known. If not, all objects are listed soon: no file may go before.
    pub(in super::super) fn knows_suspects(&mut self, now: Moment) -> bool {
        let scrub = &mut self.tiering.scrub;
        let is_off = self.options.object_scrub.is_none() && !scrub.memory.is_lost;
        if scrub.memory.is_listed || is_off {
            return true;
        }
        if !std::mem::replace(&mut scrub.memory.is_awaited, true) {
            scrub.list_at = Some(now);
        }
        false
    }

    /// The same of a replica that may not know of any object yet: then there is none to list.
    pub(super) fn knows_own_suspects(&mut self, now: Moment) -> bool {
        self.replica.sequencer.committed().objects.stored_upto().is_none() || self.knows_suspects(now)
    }

    /// Whether something waits for the list of all objects, to know all suspects. The end of the listing wakes it.
    pub(super) fn awaits_suspects(&self) -> bool {
        self.tiering.scrub.memory.is_awaited && !self.tiering.scrub.memory.is_listed
    }

    /// Writes down which objects are suspects, so that a restart does not forget it. Blocks on the disk: this is rare.
    pub(super) fn save_suspects(&mut self, now: Moment) {
        let scrub = &mut self.tiering.scrub;
        if !scrub.memory.is_changed || scrub.memory.is_lost || now < scrub.memory.save_at {
            return;
        }
        let known = scrub.known_suspects();
        let store = &self.writer.store;
        let saved = match scrub.memory.saved.as_ref() == Some(&known) {
            true => Ok(()),
            false => suspects::replace(&*store.disk, self.tiering.log, &known),
        };
        match saved {
            Ok(()) => (scrub.memory.saved, scrub.memory.is_changed) = (Some(known), false),
            Err(error) => {
                let path = self.tiering.path.display();
                // The disk may be full. Without a list a restart takes all objects for suspects.
                let is_forgotten = match &scrub.memory.saved {
                    Some(saved) if known.is_subset(saved) => false,
                    _ => suspects::forget(&*store.disk).is_err(),
                };
                let what = match is_forgotten {
                    true => "a restart would forget which objects are lost or damaged; it is tried again",
                    false => "which objects are lost or damaged could not be written down; it is tried again",
                };
                tracing::warn!(%path, %error, "{what}");
                (scrub.memory.saved, scrub.memory.save_at) = (None, now.plus(SCRUB_AGAIN));
            }
        }
    }

    pub(super) fn end_listing(&mut self, result: Result<BTreeSet<u64>>, now: Moment) {
        match result {
            Ok(wrong) => {
                wrong.into_iter().for_each(|number| self.suspect_object(number, now));
                if std::mem::take(&mut self.tiering.scrub.memory.is_lost) {
                    let objects = &self.replica.sequencer.committed().objects;
                    let here = objects.stored().filter(|at| self.may_have_all_behind(at.begin));
                    let put_aside = &self.writer.store.put_aside;
                    let aside = (!put_aside.names.is_empty()).then_some(put_aside.from);
                    let first = self.writer.archive.first().raft;
                    let first = aside.map_or(first, |from| first.min(from));
                    let runs = objects.runs().filter(|run| first < run.rows.end.raft);
                    let older = runs.flat_map(|run| run.number..run.rows.below);
                    let here: Vec<_> = here.map(|at| at.number).chain(older).collect();
                    here.into_iter().for_each(|number| self.tiering.scrub.suspect(number, now));
                }
                self.tiering.scrub.memory.is_listed = true;
            }
            Err(error) => {
                let memory = &self.tiering.scrub.memory;
                let again = match memory.is_awaited && !memory.is_listed {
                    true => {
                        let path = self.tiering.path.display();
                        tracing::warn!(%path, %error, "the objects could not be listed; no file goes until they are");
                        self.at_most_a_pass(SCRUB_AGAIN)
                    }
                    false => {
                        tracing::debug!(%error, "the objects could not be listed");
                        self.at_most_a_pass(PASSING_AGAIN)
                    }
                };
                self.tiering.scrub.list_at = Some(now.plus(again));
                if error.kind() == ErrorKind::Unavailable {
                    self.rest_scrub(now);
                }
            }
        }
    }

    pub(super) fn end_examination(
        &mut self,
        number: u64,
        place: Option<(Base, Base)>,
        result: Result<Verdict>,
        now: Moment,
    ) {
        let scrub = &mut self.tiering.scrub;
        scrub.places.retain(|known, _| scrub.suspects.contains_key(known));
        scrub.places.extend(place.map(|place| (number, place)));
        let examined = scrub.examining.take();
        let was_suspect = examined.as_ref().is_some_and(|examining| examining.is_suspect);
        let has_lasted = examined.is_some_and(|examining| examining.has_lasted);
        scrub.memory.is_changed = true;
        let gave_way = matches!(result, Ok(Verdict::Interrupted));
        scrub.gave_way = if gave_way { scrub.gave_way + 1 } else { 0 };
        match result {
            Ok(Verdict::Sound) => {
                scrub.damaged.remove(&number);
                self.tiering.unreadable.is_sound(number);
            }
            Ok(Verdict::Repaired) => {
                let path = self.tiering.path.display();
                tracing::warn!(%path, number, "an object was missing or damaged in the object store; it was stored again");
                scrub.damaged.remove(&number);
                self.tiering.unreadable.is_sound(number);
                self.published.counters.repaired_objects.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Verdict::Damaged(why)) => self.is_damaged(number, &why, now),
            Ok(Verdict::Failed(why)) if has_lasted => {
                self.tiering.unreadable.meet(number, now);
                self.is_damaged(number, &why, now);
            }
            Ok(Verdict::Failed(why)) => {
                tracing::debug!(number, why, "an object fails, and the object store works");
                self.tiering.unreadable.meet(number, now);
                self.examine_later(number, LOOK_AGAIN, true, now);
            }
            Ok(Verdict::Interrupted) => self.examine_later(number, GAVE_WAY_AGAIN, was_suspect, now),
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tracing::debug!(number, %error, "the scrub of objects waits");
                self.tiering.unreadable.interrupt(number);
                self.examine_later(number, PASSING_AGAIN, true, now);
                self.rest_scrub(now);
            }
            Err(error) if error.is_retryable() => self.examine_later(number, PASSING_AGAIN, true, now),
            Err(error) => self.is_damaged(number, &error.to_string(), now),
        }
        self.prune_scrub();
    }

    /// A job of the scrub has panicked, in the program's vault. False: it was none of the scrub.
    pub(super) fn end_panicked_examination(&mut self, now: Moment) -> bool {
        let Some(Examining { number, .. }) = self.tiering.scrub.examining.take() else { return false };
        self.is_damaged(number, "a call of the object store panicked", now);
        self.prune_scrub();
        true
    }

    /// A job could not be started: if it was the scrub's, it is due again soon. A suspect that is in no set would be forgotten, and the
    /// last copy of it would go.
    pub(super) fn put_off_scrub(&mut self, is_listing: bool, now: Moment) {
        let again = now.plus(self.at_most_a_pass(GAVE_WAY_AGAIN));
        let scrub = &mut self.tiering.scrub;
        scrub.list_at = if is_listing { Some(again) } else { scrub.list_at };
        if let Some(Examining { number, is_suspect, .. }) = scrub.examining.take().filter(|_| !planted!(158))
        {
            self.examine_later(number, GAVE_WAY_AGAIN, is_suspect, now);
        }
    }

    /// Remembers that an object is damaged, and tells all other members: one may have its entries.
    fn is_damaged(&mut self, number: u64, why: &str, now: Moment) {
        if self.tiering.scrub.damaged.insert(number) {
            let path = self.tiering.path.display();
            tracing::warn!(%path, number, why, "an object is damaged, and cannot be stored again from here; the other members are told");
        }
        self.examine_later(number, LASTING_AGAIN, true, now);
        let members: Vec<_> = self.replica.membership().members().map(|member| member.node).collect();
        for node in members.into_iter().filter(|node| *node != self.cluster.node) {
            self.replica.request_object(node, number);
        }
        self.send();
    }

    fn examine_later(&mut self, number: u64, after: Duration, holds: bool, now: Moment) {
        let at = now.plus(self.at_most_a_pass(after));
        self.tiering.scrub.suspects.insert(number, Suspect { at, holds });
        self.tiering.scrub.memory.is_changed = true;
    }

    fn rest_scrub(&mut self, now: Moment) {
        self.tiering.scrub.rest_until = Some(now.plus(self.at_most_a_pass(SCRUB_AGAIN)));
    }

    pub(super) fn at_most_a_pass(&self, time: Duration) -> Duration {
        self.options.object_scrub.map_or(time, |pass| time.min(pass))
    }

    /// Forgets objects whose records are discarded, and shows how many are damaged.
    pub(super) fn prune_scrub(&mut self) {
        let objects = &self.replica.sequencer.committed().objects;
        let (oldest, next) = (objects.number(), objects.next_to_show());
        self.tiering.scrub.prune(oldest);
        self.tiering.unreadable.prune(oldest, next);
        self.show_damaged();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All objects are read once in a pass, evenly, also if some come and go meanwhile.
    #[test]
    fn pass_reads_every_object_once() {
        let (every, count) = (Duration::from_secs(100), 100);
        let mut last = (200_000, u64::MAX);
        let mut seen = Vec::new();
        while let Some(turn) =
            next_turn(5..5 + count + seen.len() as u64, every, last).filter(|t| t.0 < 300_000)
        {
            assert!(turn.0 - last.0 < 3_000, "{last:?} {turn:?}");
            seen.push(turn.1);
            last = turn;
        }
        seen.sort_unstable();
        assert!((5..105).all(|number| seen.binary_search(&number).is_ok()), "{seen:?}");
        assert!(seen.windows(2).all(|two| two[0] < two[1]), "{seen:?}");
        // The same turns in the next pass.
        let first = next_turn(5..105, every, (199_999, 0)).unwrap();
        assert_eq!(next_turn(5..105, every, (299_999, 0)), Some((first.0 + 100_000, first.1)));
    }

    /// A short pass has several objects at the same time.
    #[test]
    fn short_pass_reads_every_object() {
        let mut last = (7, u64::MAX);
        let turns = std::iter::from_fn(|| {
            last = next_turn(0..1000, Duration::from_millis(100), last)?;
            Some(last.1)
        });
        let mut seen: Vec<_> = turns.take(1000).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
    }
}
