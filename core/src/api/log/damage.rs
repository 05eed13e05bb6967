//! Reports of damage to a log's files, which start checks and repairs.

use super::Log;
use crate::error::{Error, ErrorKind, Result};
use crate::replica::node::shared::Shared;
use crate::replica::queue::inbox::InboxEvent;
use crate::store::segment::file_name;
use crate::types::Index;

impl Log {
    /// Reports that the bytes of a record in this directory are damaged, as a check of the files or a program that
    /// received the record has found. A replica of a cluster checks the record's segment at once and repairs what it
    /// finds from other replicas; [`metrics`](Self::metrics) and the program's log show it. A log without other replicas
    /// counts the damage and logs it. Reads of this handle, and copies that follow it, report damage by themselves.
    /// Reporting a sound record costs one check of its segment, or of the record alone while its segment is still
    /// being written. Blocks on the disk, never on the repair.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// let index = log.append(b"x")?;
    /// log.report_damage(index)?;
    /// assert_eq!(log.metrics().damaged, 0); // it is sound
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Discarded`, `OutOfRange`: there is no record at `index`. `Unavailable` while the whole log is being repaired;
    /// `Forked`.
    pub fn report_damage(&self, index: Index) -> Result<()> {
        self.check_fork()?;
        self.inner.published.check_held()?;
        let view = &self.view;
        view.check(index)?;
        // The page cache can differ from the disk: the segment is checked whatever the read returns. Where no repair
        // runs, the read counts the damage that it meets.
        match view.read(index) {
            Err(error) if matches!(error.kind(), ErrorKind::Discarded | ErrorKind::OutOfRange) => {
                return Err(error);
            }
            _ => {}
        }
        // The segment that is being written would have to end first.
        let growing = view.segments.snapshot().last().map(|last| last.number);
        if let Some(segment) = view.segment_holding(index)
            && Some(segment.number) != growing
        {
            view.segments.damage().suspect(segment.number);
        }
        self.look_at_damage();
        Ok(())
    }

    /// As [`report_damage`](Self::report_damage), by file: with the values of a [`Fault`](crate::inspect::Fault) that
    /// [`Inspector::walk`](crate::inspect::Inspector::walk) returned. `file` is the name of one of the log's
    /// segments, `offset` is where the damage begins in it, and `what` describes it for the program's log. A file
    /// that is not, or no longer, a segment of the log is ignored. Never blocks.
    ///
    /// # Errors
    /// `Forked`.
    pub fn report_damage_at(&self, file: &str, offset: u64, what: &str) -> Result<()> {
        self.check_fork()?;
        let Shared { view, path, .. } = &**self.inner;
        if view.segments.snapshot().iter().any(|segment| file_name(segment.number) == file) {
            view.segments.met(Error::corrupt(&path.join(file), offset, what), None);
            self.look_at_damage();
        }
        Ok(())
    }

    /// Reports that a segment of this log was read completely and is sound, as
    /// [`Inspector::walk`](crate::inspect::Inspector::walk) does: [`Log::damaged_places`] no longer counts damage
    /// that was found in it before. `file` is the segment's name; other files are ignored. Never blocks.
    ///
    /// # Errors
    /// `Forked`.
    pub fn report_sound_at(&self, file: &str) -> Result<()> {
        self.check_fork()?;
        let segments = &self.view.segments;
        if let Some(segment) = segments.snapshot().iter().find(|s| file_name(s.number) == file) {
            segments.damage().mark_sound(segment.number);
        }
        Ok(())
    }

    /// How many places in the log's files are known to be damaged now. Places that were repaired or found sound since
    /// are not counted. Places whose records are discarded are not counted either, where their records are known.
    /// [`Metrics::damaged`] counts all damage that was ever found.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// assert_eq!(log.damaged_places(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn damaged_places(&self) -> u64 {
        let Shared { view, published, .. } = &**self.inner;
        if published.check_held().is_err() {
            let metrics = published.counters.snapshot();
            return metrics.damaged.saturating_sub(metrics.repaired); // the log is being repaired before it opens
        }
        let there = view.segments.snapshot();
        let is_there = |number| there.iter().any(|segment| segment.number == number);
        // Records of a log of a shared group are not those that places of damage are counted by.
        let first = view.positions.first();
        view.segments.damage().places_now(first, is_there)
    }

    /// Wakes the node, so that the repair does not wait for the next heartbeat.
    fn look_at_damage(&self) {
        if self.view.segments.damage().is_repaired() {
            self.inner.queue.push_event(InboxEvent::JobEnded);
        }
    }
}
