//! Scrub of objects: finds those that the object store has lost or damaged, and stores them again.
//!
//! ```text
//!   every hour, or pass      list all ──> missing, or of another size ──┐
//!   a reader met damage ────────────────────────────────────────────────┼──> examine: read it whole, compare its checksum
//!   evenly over a pass       the next object ───────────────────────────┘        │ not as it was stored
//!                                                            make it again from the files here, put
//! ```
//!
//! The log says of each object how large it is and which checksum it has. So any replica can examine any object; those that have
//! its entries in their files can make it again, byte for byte. Each replica lists. A replica reads the objects that it could
//! make again, and the leader all.
//!
//! Invariants:
//! - what is put is what the log says of the object, to the last byte;
//! - an object that is another history's stays as it is;
//! - storing goes first: nothing is examined while there is something to cut, store or delete.

use super::super::Node;
use super::jobs::{Job, ObjectMaker, check, check_there, newest_begin};
use crate::error::{Error, ErrorKind, Result};
use crate::record::crc::Crc;
use crate::replica::state::object_table::StoredAt;
use crate::store::format::geometry::FOOTER_BYTES;
use crate::store::format::objects::StoredObject;
use crate::store::format::segment::Footer;
use crate::store::object_maker::Stretch;
use crate::store::objects::cache::CHUNK_BYTES;
use crate::store::objects::names::{folder, object_name, object_number, salt};
use crate::sync::clock::Moment;
use crate::types::LogId;
use crate::vault::Vault;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often all objects are listed, at most.
const LIST_EVERY: Duration = Duration::from_secs(3600);
/// When a scrub that could not use the object store goes on.
const SCRUB_AGAIN: Duration = Duration::from_secs(60);

/// The state of the scrub.
#[derive(Debug, Default)]
pub(super) struct ObjectScrub {
    /// When all objects are listed next, and when the next one is read; None: not decided yet.
    list_at: Option<Moment>,
    read_at: Option<Moment>,
    /// Nothing is done before: the object store could not be used.
    rest_until: Option<Moment>,
    /// The number of the object that is read next.
    next: u64,
    /// Objects that are to be examined at once.
    suspects: BTreeSet<u64>,
    /// Objects that are known to be lost or damaged.
    damaged: BTreeSet<u64>,
}

/// All objects of a log, to be looked for.
pub(super) struct Listing {
    vault: Arc<dyn Vault>,
    log: LogId,
    stored: Vec<(u64, u32)>,
}

/// An object to be examined.
pub(super) struct Examination {
    vault: Arc<dyn Vault>,
    log: LogId,
    at: StoredAt,
    /// Makes it again from the files here. None: they do not have it.
    maker: Option<ObjectMaker>,
}

/// What an examination has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is as it was stored; or its records are discarded, and it is no longer needed.
    Sound,
    /// It was not, and was stored again.
    Repaired,
    /// It is not, and cannot be made again here.
    Damaged(&'static str),
}

impl Listing {
    /// The numbers of the objects that are not there as they were stored, by their names and sizes.
    pub(super) fn run(&self) -> Result<BTreeSet<u64>> {
        check_there(&*self.vault, self.log)?;
        let there = self.vault.list(&folder(self.log))?;
        let there: BTreeMap<u64, u64> =
            there.iter().filter_map(|o| Some((object_number(self.log, &o.name)?, o.bytes))).collect();
        let wrong =
            self.stored.iter().filter(|(number, bytes)| there.get(number) != Some(&u64::from(*bytes)));
        Ok(wrong.map(|(number, _)| *number).collect())
    }
}

impl Examination {
    pub(super) fn number(&self) -> u64 {
        self.at.number
    }

    /// Examines the object, and stores it again if it has to be and can be.
    ///
    /// # Errors
    /// The object store cannot be used now. `Corrupt`, `Io`: files here.
    pub(super) fn run(&self) -> Result<Verdict> {
        let (vault, number) = (&*self.vault, self.at.number);
        check_there(vault, self.log)?;
        let name = object_name(self.log, number);
        let why = match vault.size(&name)? {
            None => "it is missing",
            Some(bytes) if bytes == u64::from(self.at.object.bytes) && self.is_sound(&name)? => {
                return Ok(Verdict::Sound);
            }
            Some(bytes) if self.is_of_another_history(&name, bytes)? => {
                return Ok(Verdict::Damaged("it is of another history of this log"));
            }
            Some(_) => "its bytes are others than those that were stored",
        };
        // Deleted by a leader that knows of more discards than this replica.
        if newest_begin(vault, self.log)?.is_some_and(|begin| number < begin) {
            return Ok(Verdict::Sound);
        }
        let Some(maker) = &self.maker else { return Ok(Verdict::Damaged(why)) };
        let StoredAt { begin, state, object, .. } = self.at;
        let made = match maker.make(&Stretch { log: self.log, number, begin, end: state.end }) {
            Ok(made) if made.object == object => made,
            Ok(made) => return Err(other_bytes(&name, &made.object, &object)),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Verdict::Damaged(why)),
            Err(error) => return Err(error),
        };
        vault.put(&name, &made.pieces)?;
        check(vault, &name, object.bytes.into())?;
        Ok(Verdict::Repaired)
    }

    /// Whether the object's bytes are those that were stored.
    fn is_sound(&self, name: &str) -> Result<bool> {
        let StoredObject { bytes, crc, .. } = self.at.object;
        let (mut sum, mut at) = (Crc::new(), 0);
        while at < u64::from(bytes) {
            let end = (at + CHUNK_BYTES as u64).min(bytes.into());
            let got = match self.vault.get(name, at..end) {
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::OutOfRange) => {
                    return Ok(false);
                }
                got => got?,
            };
            if got.len() as u64 != end - at {
                return Ok(false);
            }
            (sum, at) = (sum.add(&got), end);
        }
        Ok(sum.sum() == crc)
    }

    /// Whether the object has a sound footer that says something else than the log: two clusters continue one log, and store its
    /// objects in one place.
    fn is_of_another_history(&self, name: &str, bytes: u64) -> Result<bool> {
        let Some(at) = bytes.checked_sub(FOOTER_BYTES as u64) else { return Ok(false) };
        let Ok(footer) = <[u8; FOOTER_BYTES]>::try_from(&*self.vault.get(name, at..bytes)?) else {
            return Ok(false);
        };
        let (number, state) = (self.at.number, self.at.state);
        let is_other = |footer: Footer| {
            (footer.last_raft, footer.last_term, footer.next)
                != (state.end.raft, state.end.term, state.end.next)
                || (footer.last_timestamp, footer.index_crc) != (state.timestamp, self.at.object.index_crc)
        };
        Ok(Footer::parse(&footer, number + 1, salt(self.log, number)).is_ok_and(is_other))
    }
}

impl Node {
    /// The next job of the scrub, if one is due.
    pub(super) fn scrub_job(&mut self, vault: &Arc<dyn Vault>, now: Moment) -> Option<Job> {
        let pass = self.options.object_scrub?;
        self.learn_suspects();
        if self.tiering.scrub.rest_until.is_some_and(|until| now < until) {
            return None;
        }
        let (vault, log) = (vault.clone(), self.tiering.log);
        let objects = &self.replica.sequencer.committed().objects;
        let (oldest, count) = (objects.number(), objects.stored().count() as u32);
        if count == 0 {
            return None;
        }
        let scrub = &mut self.tiering.scrub;
        let every = pass.min(LIST_EVERY);
        if *scrub.list_at.get_or_insert(now.plus(every)) <= now {
            scrub.list_at = Some(now.plus(every));
            let stored = objects.stored().map(|at| (at.number, at.object.bytes)).collect();
            return Some(Job::List(Listing { vault, log, stored }));
        }
        let is_due = *scrub.read_at.get_or_insert(now.plus(pass / count)) <= now;
        let suspect = scrub.suspects.pop_first();
        let number = match suspect {
            Some(number) => number,
            None if is_due => {
                scrub.read_at = Some(now.plus(pass / count));
                scrub.next.max(oldest)
            }
            None => return None,
        };
        let at = objects.stored().find(|at| at.number >= number);
        if suspect.is_none() {
            self.tiering.scrub.next = at.map_or(0, |at| at.number + 1); // behind the last one the next pass begins
        }
        let at = at.filter(|at| suspect.is_none() || at.number == number)?;
        let is_here = self.writer.archive.first().raft <= at.begin.raft;
        if suspect.is_none() && !is_here && !self.replica.is_leader() {
            return None;
        }
        let maker = is_here.then(|| self.object_maker());
        Some(Job::Examine(Examination { vault, log, at, maker }))
    }

    /// When the scrub has something to do. None: there are no objects, or it is off.
    pub(super) fn scrub_due(&self, now: Moment) -> Option<Moment> {
        self.options
            .object_scrub
            .filter(|_| self.replica.sequencer.committed().objects.stored_upto().is_some())?;
        let scrub = &self.tiering.scrub;
        let at = [scrub.list_at, scrub.read_at].into_iter().flatten().min();
        let at = if scrub.suspects.is_empty() { at.unwrap_or(now) } else { now };
        Some(scrub.rest_until.map_or(at, |until| at.max(until)))
    }

    /// Learns of objects in which readers have met damage.
    fn learn_suspects(&mut self) {
        let cache = self.writer.store.segments.objects().cache();
        let met = cache.map(|cache| cache.take_suspects()).unwrap_or_default();
        let ObjectScrub { suspects, damaged, .. } = &mut self.tiering.scrub;
        suspects.extend(met.difference(damaged));
    }

    pub(super) fn end_listing(&mut self, result: Result<BTreeSet<u64>>, now: Moment) {
        match result {
            Ok(wrong) => {
                let ObjectScrub { suspects, damaged, .. } = &mut self.tiering.scrub;
                suspects.extend(wrong.union(damaged)); // another replica may have stored one again
            }
            Err(error) => self.tiering.scrub.wait_for_store(&error, now),
        }
    }

    pub(super) fn end_examination(&mut self, number: u64, result: Result<Verdict>, now: Moment) {
        let path = self.tiering.path.display();
        let scrub = &mut self.tiering.scrub;
        match result {
            Ok(Verdict::Sound) => _ = scrub.damaged.remove(&number),
            Ok(Verdict::Repaired) => {
                tracing::warn!(%path, number, "an object was missing or damaged in the object store; it was stored again");
                scrub.damaged.remove(&number);
                self.published.counters.repaired_objects.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Verdict::Damaged(why)) => {
                if scrub.damaged.insert(number) {
                    tracing::error!(
                        %path, number, why,
                        "an object is damaged, and its records are not in the files here: another replica stores it again, if one \
                         has them"
                    );
                }
            }
            Err(error) => {
                scrub.suspects.insert(number);
                scrub.wait_for_store(&error, now);
            }
        }
        let oldest = self.replica.sequencer.committed().objects.number();
        scrub.damaged.retain(|number| *number >= oldest);
        self.published.counters.damaged_objects.store(scrub.damaged.len() as u64, Ordering::Relaxed);
    }
}

impl ObjectScrub {
    fn wait_for_store(&mut self, error: &Error, now: Moment) {
        tracing::debug!(%error, "the scrub of objects waits");
        self.rest_until = Some(now.plus(SCRUB_AGAIN));
    }
}

fn other_bytes(name: &str, made: &StoredObject, wanted: &StoredObject) -> Error {
    let what = format!(
        "{name} cannot be stored again: the files here lead to {made:?}, and the log says {wanted:?}"
    );
    Error::new(ErrorKind::Corrupt, what)
}
