//! The batches of a block: which index each gets, and which are retries or refused.
//!
//! Invariant: a batch of a session is applied once. Its retry gets the indexes of the first time, also from a log that was sealed since.
//!
//! Must not know: disks, threads, raft's types.

use super::{Effect, SequencedBlock, Sequencer};
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::{BatchHeader, Stamp};
use crate::record::crc::crc32c;
use crate::replica::queue::proposals::BlockBuilder;
use crate::store::format::block::{Kind, digest_of_batches};
use crate::store::format::mixed::{Run, TableBuilder};
use crate::sync::completion::{Appended, Outcome};
use crate::types::{Index, LogNumber, Timestamp};
use bytes::Bytes;

impl Sequencer {
    /// At the leader: makes a block of the batches, and the answers for when it is committed. `now` is the leader's
    /// clock.
    pub(crate) fn data(&mut self, gathered: BlockBuilder, now: Timestamp) -> SequencedBlock {
        if gathered.is_mixed() {
            return self.mixed(gathered, now);
        }
        let timestamp = now.max(self.last_timestamp);
        let first = self.end.next;
        if !gathered.has_sessions {
            let digest = digest_of_batches(gathered.batches.iter().map(|e| e.crc));
            let counts = (gathered.batches.len() as u32, gathered.records);
            let (pieces, completer) = gathered.into_pieces(None);
            let block = self.entry(Kind::Data, timestamp, counts, digest, pieces);
            self.pend(None);
            return SequencedBlock { block: Some(block), completer, outcome: Outcome::Placed { first } };
        }
        let mut next = first;
        let results: Vec<(bool, Result<Appended>)> = gathered
            .batches
            .iter()
            .map(|e| {
                let here = Appended::new(next, e.count);
                let placed = self.place(LogNumber::OWN, &e.stamp, next, e.count, timestamp);
                let fresh = matches!(placed, Ok(None));
                if fresh {
                    next = next.plus(u64::from(e.count));
                }
                (fresh, placed.map(|earlier| earlier.filter(|_| !planted!(23)).unwrap_or(here)))
            })
            .collect();
        let kept = || gathered.batches.iter().zip(&results).filter(|(_, (fresh, _))| *fresh).map(|(e, _)| e);
        let counts = (kept().count() as u32, kept().map(|e| e.count).sum());
        let digest = digest_of_batches(kept().map(|e| e.crc));
        let (pieces, completer) = gathered.into_pieces(Some(&mut |n| results[n].0));
        let block = (counts.0 > 0).then(|| {
            let block = self.entry(Kind::Data, timestamp, counts, digest, pieces);
            self.pend(None);
            block
        });
        let outcome = Outcome::Each(results.into_iter().map(|(_, result)| result).collect());
        SequencedBlock { block, completer, outcome }
    }

    /// Assigns a batch its index. `None`: it takes the next one. Some: it is a retry, with these original indexes.
    fn place(
        &mut self,
        log: LogNumber,
        stamp: &Stamp,
        next: Index,
        count: u32,
        at: Timestamp,
    ) -> Result<Option<Appended>> {
        if stamp.session.is_none() {
            return Ok(None);
        }
        self.sessions.check_log(stamp, log)?;
        let earlier = self.sessions.check(stamp, at)?;
        if planted!(10) && earlier.is_some() {
            return Ok(None);
        }
        if earlier.is_none() {
            self.sessions.apply(stamp, next, count, at)?;
        }
        Ok(earlier)
    }

    /// As [`Self::data`], for batches of logs of a shared group. Each is decided by itself.
    fn mixed(&mut self, gathered: BlockBuilder, now: Timestamp) -> SequencedBlock {
        let timestamp = now.max(self.last_timestamp);
        let mut table = TableBuilder::default();
        let (mut results, mut lengths) = (Vec::with_capacity(gathered.batches.len()), Vec::new());
        let mut other = LogNumber(1);
        // The end of the batches that are appended together, and the reason why none of them can be.
        let mut refused: Option<(usize, Error)> = None;
        for (n, (log, batch)) in gathered.with_logs().enumerate() {
            if let Some(together) = gathered.together_from(n).filter(|_| !planted!(83)) {
                let mut logs = gathered.with_logs().skip(n).take(together.len());
                let checked = logs.try_for_each(|(log, _)| self.logs.check_append(log).map(drop));
                refused = checked.err().map(|error| (together.end, error));
            }
            let placed = match &refused {
                Some((end, error)) if n < *end => Err(error.clone()),
                _ => self.place_in_log(log, batch, gathered.whole_length(n), timestamp),
            };
            if let Ok((here, true)) = &placed {
                table.push(if planted!(75) { other } else { log }, here.first, batch);
                lengths.push(gathered.whole_length(n));
            }
            other = log;
            results.push(placed);
        }
        let (mut runs, table) = table.build();
        let mut lengths = lengths.into_iter();
        for run in &mut runs {
            // A log has as many bytes as its readers get.
            let of_run = lengths.by_ref().take(run.batches as usize);
            run.bytes = of_run.fold(0, u32::saturating_add);
        }
        let counts = runs.iter().fold((0, 0), |(b, r), run| (b + run.batches, r + run.records));
        let (pieces, completer) = gathered.into_pieces(Some(&mut |n| matches!(results[n], Ok((_, true)))));
        let block = (!runs.is_empty()).then(|| {
            let digest = crc32c(&table);
            let body = std::iter::once(Bytes::from(table)).chain(pieces).collect();
            let block = self.entry(Kind::Mixed, timestamp, counts, digest, body);
            self.pend(Some(Effect::Runs(runs, timestamp)));
            block
        });
        let outcome = Outcome::Each(results.into_iter().map(|placed| placed.map(|(here, _)| here)).collect());
        SequencedBlock { block, completer, outcome }
    }

    /// Assigns a batch its index in a log. True: it takes the next one; false: it is a retry, with its original index. `length`: with its
    /// payload.
    fn place_in_log(
        &mut self,
        log: LogNumber,
        batch: &BatchHeader,
        length: u32,
        at: Timestamp,
    ) -> Result<(Appended, bool)> {
        // A retry gets its answer even if the log was sealed since.
        if !batch.stamp.session.is_none() && self.sessions.check_log(&batch.stamp, log).is_ok() {
            match self.sessions.check(&batch.stamp, at) {
                Ok(Some(earlier)) => return Ok((earlier, false)),
                Err(error) if error.kind() == ErrorKind::SequenceForgotten => return Err(error),
                _ => {}
            }
        }
        let first = self.logs.check_append(log)?.next;
        if let Some(earlier) = self.place(log, &batch.stamp, first, batch.count, at)? {
            return Ok((earlier, false));
        }
        let run = Run { log, batches: 1, first, records: batch.count, bytes: length, digest: 0 };
        let appended = self.logs.append(&run, at);
        debug_assert_eq!(appended, Ok(()), "the log was checked above");
        Ok((Appended::new(first, batch.count), true))
    }
}
