//! Room: where an entry has none, what is discarded, too old or too much, or stored as objects, is removed from the files first.
//!
//! Invariant: the log begins later only with an opening that says so; files go once that is durable.
//!
//! Must not know: who feeds, threads.

use super::{Applier, is_command};
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::FollowEntry;
use crate::options::Options;
use crate::replica::queue::proposals::Command;
use crate::store::allocator::Purpose;
use crate::store::block_bytes;
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::read::run_directory::has_objects;
use crate::store::segment::Segment;
use crate::types::{EntryIndex, Index, Timestamp};
use std::time::Duration;

/// Checks that the options of a copy fit its table of objects; `of_one_log`: it has that of a group. Retention removes files of records
/// that no object has, and what is before its files counts as stored, for its readers and its own copies.
///
/// # Errors
/// `InvalidArgument`: it keeps less than the log, and knows objects that it does not read.
pub(crate) fn check_retention(options: &Options, of_one_log: bool) -> Result<()> {
    let retains = options.retention_bytes.is_some() || options.retention_age.is_some();
    if !of_one_log || !retains || options.vault.is_some() {
        return Ok(());
    }
    let what = "this copy of one named log has its older records in the objects of the group, and would lose newer ones: leave out \
                retention_bytes and retention_age; or open it with the object store, and use local_bytes and local_age; or make a new \
                copy without the object store";
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

impl Applier {
    /// Makes room for an entry. Where there is none, files of records that were discarded or jumped over are removed
    /// first: of records discarded here, once that is durable; or of records before `kept`, which the source has
    /// discarded far ahead of the entries that are fed now.
    pub(super) fn find_room(
        &mut self,
        entry: &FollowEntry,
        reserve: Option<Purpose>,
        kept: Index,
    ) -> Result<Result<()>> {
        loop {
            let Err(refusal) = self.make_room(entry, reserve) else { return Ok(Ok(())) };
            if self.to_drop.is_empty() && self.is_settled() {
                let first = kept.min(self.sequencer.end().next);
                // A file of a shared group holds records of many logs: the source alone discards them.
                if self.sequencer.logs().is_shared()
                    || !self.frees_files(first)
                    || self.roll_from(first, entry.bytes()).is_err()
                {
                    return Ok(Err(refusal));
                }
            }
            self.settle()?;
        }
    }

    /// Whether files can be removed if the log begins at `first` and continues in another file.
    fn frees_files(&self, first: Index) -> bool {
        let list = self.writer.store.segments.snapshot();
        first > self.sequencer.readable_from()
            && (first >= self.sequencer.end().next || list.iter().skip(1).any(|s| s.base.next <= first))
    }

    /// Makes room for an entry. It may use the `reserve` for this purpose: it makes room itself, or may lead to it, or is followed by one
    /// that does.
    fn make_room(&mut self, entry: &FollowEntry, reserve: Option<Purpose>) -> Result<()> {
        let body = entry.bytes();
        let bytes = block_bytes(body) as u64;
        let is_data = entry.header.kind.has_records();
        let is_full = is_data && reserve.is_none() && self.is_beyond_capacity(bytes);
        if is_full || !self.writer.plan.fits(body) {
            if let Some(first) = self.retained(bytes).or_else(|| self.released(bytes)) {
                return self.roll_from(first, body);
            }
            if is_full {
                let capacity = self.options.capacity_bytes.unwrap_or_default();
                let what = format!(
                    "the follower's log is full: its capacity is {capacity} bytes. It continues when the log that it follows \
                     discards records, or when it is opened with a larger capacity_bytes, or with retention_bytes"
                );
                return Err(Error::new(ErrorKind::Full, what));
            }
        }
        let purpose = match () {
            () if is_data => Purpose::Data,
            () if is_command(entry, Command::may_lead_to_room) => Purpose::OneLog,
            () => Purpose::Metadata,
        };
        let room = self.writer.plan.make_room(body, purpose, &mut self.sequencer);
        match (room, reserve.filter(|_| purpose != Purpose::Metadata)) {
            (Err(_), Some(reserve)) => {
                self.writer.plan.make_room(body, reserve, &mut self.sequencer).map(drop)
            }
            (room, _) => room.map(drop),
        }
    }

    /// Whether the capacity has no room for `more` bytes in addition to those that are planned.
    fn is_beyond_capacity(&self, more: u64) -> bool {
        let used = self.queue.used() + self.planned + more;
        self.options.capacity_bytes.is_some_and(|capacity| used > capacity)
    }

    /// Plans to continue in the next file, whose opening says that the log begins at `first`. A body of `body` bytes
    /// has to follow. The reserve may be used, because this makes room.
    fn roll_from(&mut self, first: Index, body: usize) -> Result<()> {
        self.writer.store.allocator.keep_one_ready()?;
        let opening = self.sequencer.opening_from(first);
        self.writer.plan.roll(opening, body, Purpose::Metadata)?;
        self.sequencer.keep_from(first);
        self.mark();
        Ok(())
    }

    /// The first record that stays in files by this follower's own limits, if that is after the current one: all before it
    /// are stored as objects. `more`: bytes to come in addition to those that are planned.
    fn released(&self, more: u64) -> Option<Index> {
        let Options { vault, local_bytes, local_age, capacity_bytes, .. } = &self.options;
        vault.as_ref()?;
        let bytes_max = [*local_bytes, *capacity_bytes].into_iter().flatten().min();
        let too_old = local_age.map(|age| Timestamp(self.time.0.saturating_sub(millis(age))));
        let committed = self.sequencer.committed();
        let stored = committed.objects.stored_upto().unwrap_or(EntryIndex(0));
        let group = committed.objects.group().and_then(|_| self.older.get());
        let list = self.writer.store.segments.snapshot();
        let mut left = self.planned + more + list.iter().map(|s| bytes_of(s)).sum::<u64>();
        let mut kept = None;
        for (segment, next) in list.iter().zip(list.iter().skip(1)) {
            let is_too_much = bytes_max.is_some_and(|max| left > max);
            let is_too_old = too_old.is_some_and(|time| segment.last_timestamp() < time);
            let is_stored = match group {
                Some(_) => next.base.next <= self.stored_below || planted!(161),
                None => next.base.raft <= stored || planted!(100),
            };
            if !(is_too_much || is_too_old) || !is_stored {
                break;
            }
            left -= bytes_of(segment);
            kept = Some(next);
        }
        let oldest = kept.filter(|kept| kept.base.next > committed.local_first)?;
        // The location, or the rights, could be wrong: readers would have nothing.
        if let Some(group) = group {
            return group.objects().are_there().then_some(oldest.base.next);
        }
        if !self.writer.store.segments.objects().are_there() {
            return None;
        }
        // A copy of this one that skips entries begins with the oldest opening here, and has to learn from it that there are
        // objects.
        let data = self.writer.store.segments.open(oldest).ok()?;
        has_objects(&data).ok()?.then_some(oldest.base.next)
    }

    /// The first record by this follower's own retention, if it is after the current one. `more`: bytes to come in
    /// addition to those that are planned.
    fn retained(&self, more: u64) -> Option<Index> {
        let Options { retention_bytes, retention_age, capacity_bytes, .. } = &self.options;
        // Records of a log of a shared group are discarded by the source alone: a file holds records of many logs.
        if (retention_bytes.is_none() && retention_age.is_none()) || self.sequencer.logs().is_shared() {
            return None;
        }
        let bytes_max = retention_bytes.map(|max| max.min(capacity_bytes.unwrap_or(u64::MAX)));
        let too_old = retention_age.map(|age| self.time.0.saturating_sub(millis(age)));
        let today = self.sequencer.readable_from();
        let list = self.writer.store.segments.snapshot();
        let mut left = self.planned + more + list.iter().map(|s| bytes_of(s)).sum::<u64>();
        let mut first = today;
        for (segment, next) in list.iter().zip(list.iter().skip(1)) {
            // Segments before that are discarded already and only wait for a sync.
            if next.base.next > today {
                let too_many = bytes_max.is_some_and(|max| left > max);
                let too_old = too_old.is_some_and(|time| segment.last_timestamp() < Timestamp(time));
                if !too_many && !too_old {
                    break;
                }
                first = next.base.next;
            }
            left -= bytes_of(segment);
        }
        (first > today).then_some(first)
    }

    /// How long until the oldest segment with records is too old. `None`: no segment can be removed.
    pub(crate) fn retains_in(&self) -> Option<Duration> {
        let age = self.options.retention_age.filter(|_| !self.sequencer.logs().is_shared())?;
        let list = self.writer.store.segments.snapshot();
        let today = self.sequencer.readable_from();
        // A segment without records is removed with the next one that has records.
        let (oldest, _) = list.iter().zip(list.iter().skip(1)).find(|(_, next)| next.base.next > today)?;
        let due = oldest.last_timestamp().0.saturating_add(millis(age)).saturating_add(1);
        Some(Duration::from_millis(due.saturating_sub(self.time.0)))
    }

    /// Discards what is older or larger than retention allows. This wastes the rest of a file.
    pub(crate) fn retain(&mut self) -> Result<Result<()>> {
        let Some(first) = self.retained(0) else { return Ok(Ok(())) };
        if let Err(refusal) = self.roll_from(first, 0) {
            return Ok(Err(refusal));
        }
        self.carry_out()?;
        self.publish();
        Ok(Ok(()))
    }
}

/// The bytes of blocks in a file.
fn bytes_of(segment: &Segment) -> u64 {
    (segment.data_end() - SEGMENT_HEADER_BYTES) as u64
}

fn millis(age: Duration) -> u64 {
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}
