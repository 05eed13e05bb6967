//! Contents: everything that was ever committed, log by log, and the named logs of a group as their entries left them.
//!
//! Invariants, checked as entries come:
//! - a log is opened once, under a number above all earlier ones, and nothing happens to it before or after its life;
//! - a named log has no holes except those of its own discards beyond the end; it takes nothing while it is sealed;
//! - a record was proposed for this log, and is in one log, once;
//! - batches that were appended together are all in one entry, or none of them is anywhere;
//! - records of a named log are discarded on request, or because they are older than the log's retention allows.
//!
//! Must not know: hosts, clients.

use super::history::number_of;
use crate::options::log_options::{LogOption, LogOptions};
use crate::record::crc::crc32c;
use crate::replica::queue::proposals::LogCommand;
use crate::store::format::logs::LogState;
use crate::types::{EntryIndex, Index, LogNumber, Timestamp};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The state of a named log, as far as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogSummary {
    pub(super) first: Index,
    pub(super) next: Index,
    pub(super) sealed: bool,
}

impl From<&LogState> for LogSummary {
    fn from(state: &LogState) -> Self {
        Self { first: state.first, next: state.next, sealed: state.sealed }
    }
}

/// The named logs of a group.
pub(super) type LogSummaries = BTreeMap<LogNumber, LogSummary>;

/// The records that were ever committed to a log, by their indexes.
pub(super) type Records = BTreeMap<Index, u64>;

#[derive(Debug, Default)]
pub(super) struct Contents {
    logs: BTreeMap<LogNumber, Records>,
    /// The entry of each record, and its time.
    places: BTreeMap<(LogNumber, Index), (EntryIndex, Timestamp)>,
    /// The options of the named logs that have any.
    options: BTreeMap<LogNumber, LogOptions>,
    /// How many discards retention has made.
    retained: u64,
    /// The named logs after the last entry.
    summaries: Rc<LogSummaries>,
    /// The newest named log that was opened.
    opened: LogNumber,
    /// The log that each record was to be appended to.
    proposed: BTreeMap<u64, LogNumber>,
    committed: BTreeMap<u64, EntryIndex>,
    /// Records that are appended together with each of these.
    tied: BTreeMap<u64, Rc<[u64]>>,
    /// The largest index of a requested discard of each log.
    discard_max: BTreeMap<LogNumber, Index>,
    /// Records of any bytes may be appended by anybody: these are the ones that were committed. None: they may not.
    foreign: Option<BTreeMap<(LogNumber, Index), Vec<u8>>>,
}

impl Contents {
    /// From now on records of any bytes may be appended by anybody.
    pub(super) fn allow_foreign(&mut self) {
        self.foreign = Some(BTreeMap::new());
    }

    /// The records of any bytes that were committed to a log, from one on.
    pub(super) fn foreign(&self, log: LogNumber, from: Index) -> impl Iterator<Item = (Index, &[u8])> {
        let all = self.foreign.iter().flat_map(move |all| all.range((log, from)..=(log, Index(u64::MAX))));
        all.map(|((_, index), record)| (*index, record.as_slice()))
    }

    /// The number of a record; of any bytes, a digest of them.
    fn number(&self, record: &[u8]) -> Option<u64> {
        if self.foreign.is_some() { Some(crc32c(record).into()) } else { number_of(record) }
    }

    /// All records that were ever committed to a log.
    pub(super) fn of(&self, log: LogNumber) -> &Records {
        static NONE: Records = Records::new();
        self.logs.get(&log).unwrap_or(&NONE)
    }

    /// The logs that ever had records.
    pub(super) fn logs(&self) -> impl Iterator<Item = (LogNumber, &Records)> {
        self.logs.iter().map(|(log, records)| (*log, records))
    }

    /// The last record of a log.
    pub(super) fn last(&self, log: LogNumber) -> Index {
        self.of(log).last_key_value().map_or(Index(0), |(index, _)| *index)
    }

    /// How many records were ever committed.
    pub(super) fn count(&self) -> usize {
        self.committed.len()
    }

    /// The named logs after the last entry.
    pub(super) fn summaries(&self) -> &Rc<LogSummaries> {
        &self.summaries
    }

    /// The entry of the last record up to this one.
    pub(super) fn entry_of(&self, log: LogNumber, last: Index) -> Option<EntryIndex> {
        self.places.range((log, Index(0))..=(log, last)).next_back().map(|(_, (raft, _))| *raft)
    }

    /// The entry of the first record that was ever committed to a log.
    pub(super) fn first_entry_of(&self, log: LogNumber) -> Option<EntryIndex> {
        self.places.range((log, Index(0))..=(log, Index(u64::MAX))).next().map(|(_, (raft, _))| *raft)
    }

    pub(super) fn proposed(&mut self, log: LogNumber, records: &[u64]) {
        self.proposed.extend(records.iter().map(|record| (*record, log)));
    }

    /// These records, which were proposed before, are appended together.
    pub(super) fn tie(&mut self, records: &[u64]) {
        let all: Rc<[u64]> = records.into();
        self.tied.extend(records.iter().map(|record| (*record, all.clone())));
    }

    /// All records of entry `raft` were passed to [`Self::add_record`].
    pub(super) fn is_whole(
        &self,
        raft: EntryIndex,
        records: impl Iterator<Item = u64>,
    ) -> Result<(), String> {
        for record in records {
            let together = self.tied.get(&record).map_or(&[][..], |all| all);
            if let Some(other) = together.iter().find(|other| self.committed.get(other) != Some(&raft)) {
                return Err(format!(
                    "record {record} is committed without {other}, with which it was appended"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn note_discard(&mut self, log: LogNumber, first: Index) {
        let max = self.discard_max.entry(log).or_default();
        *max = first.max(*max);
    }

    /// How many discards retention has made.
    pub(super) fn retained(&self) -> u64 {
        self.retained
    }

    /// A command of a named log is committed, at this time of the log.
    pub(super) fn apply_command(&mut self, command: LogCommand, at: Timestamp) -> Result<(), String> {
        let log = command.log();
        if let LogCommand::Discard { first, .. } = command {
            self.is_requested_or_old(log, first, at)?;
        }
        if let LogCommand::Open { start, .. } = command {
            if log <= self.opened {
                return Err(format!("log {log} is opened after log {}", self.opened));
            }
            self.opened = log;
            Rc::make_mut(&mut self.summaries)
                .insert(log, LogSummary { first: start, next: start, sealed: false });
            return Ok(());
        }
        let Some(end) = Rc::make_mut(&mut self.summaries).get_mut(&log) else {
            return Err(format!("{command:?} is committed, and there is no such log"));
        };
        match command {
            LogCommand::Seal { .. } => end.sealed = true,
            LogCommand::Drop { .. } => {
                Rc::make_mut(&mut self.summaries).remove(&log);
                self.options.remove(&log);
            }
            LogCommand::SetOptions { options, .. } => drop(self.options.insert(log, options)),
            LogCommand::Discard { first, .. } => {
                (end.first, end.next) = (end.first.max(first), end.next.max(first));
            }
            LogCommand::Open { .. } => {}
        }
        Ok(())
    }

    /// The options that are set for a named log after the last entry.
    pub(super) fn options(&self, log: LogNumber) -> LogOptions {
        self.options.get(&log).copied().unwrap_or_default()
    }

    /// Checks a discard: it was requested, or all that it removes is older than the log's retention.
    fn is_requested_or_old(&mut self, log: LogNumber, first: Index, at: Timestamp) -> Result<(), String> {
        if self.discard_max.get(&log).is_some_and(|max| first <= *max) {
            return Ok(());
        }
        let age = self.options(log).get(LogOption::RetentionAge);
        let newest = self.places.range((log, Index(0))..(log, first)).next_back();
        let newest = newest.map_or(Timestamp(0), |(_, (_, time))| *time);
        if age.is_some_and(|age| newest.0.saturating_add(age) < at.0) && first <= self.last(log).next() {
            self.retained += 1;
            return Ok(());
        }
        Err(format!(
            "log {log} is discarded up to {first} at {at:?}: nobody requested that, its retention is {age:?} ms, and the \
             newest of these records is of {newest:?}"
        ))
    }

    /// A record is committed for the first time, by entry `raft`.
    pub(super) fn add_record(
        &mut self,
        (raft, time): (EntryIndex, Timestamp),
        log: LogNumber,
        index: Index,
        record: &[u8],
    ) -> Result<(), String> {
        let Some(number) = self.number(record) else {
            return Err(format!("bytes that were never appended are committed at {index} of log {log}"));
        };
        let wrong = |why: String| Err(format!("record {number} is committed at {index} of log {log}; {why}"));
        if log.is_none() {
            let expected = self.last(log).next();
            let discard_max = self.discard_max.get(&log).copied().unwrap_or_default();
            if index < expected || (index > expected && index > discard_max) {
                return wrong(format!("the next is {expected}"));
            }
        } else {
            match Rc::make_mut(&mut self.summaries).get_mut(&log) {
                None => return wrong("there is no such log".to_owned()),
                Some(end) if end.sealed => return wrong("the log is sealed".to_owned()),
                Some(end) if end.next != index => return wrong(format!("the next is {}", end.next)),
                Some(end) => end.next = index.next(),
            }
        }
        match self.proposed.get(&number) {
            _ if self.foreign.is_some() => {}
            None => return wrong("it was never appended".to_owned()),
            Some(other) if *other != log => return wrong(format!("it was appended to log {other}")),
            Some(_) => {}
        }
        if let Some(foreign) = &mut self.foreign {
            foreign.insert((log, index), record.to_vec());
        } else if self.committed.insert(number, raft).is_some() {
            return wrong("it is committed already".to_owned());
        }
        self.logs.entry(log).or_default().insert(index, number);
        self.places.insert((log, index), (raft, time));
        Ok(())
    }

    /// Checks a record that a replica returns.
    pub(super) fn check_read(&self, log: LogNumber, index: Index, record: &[u8]) -> Result<(), String> {
        match (self.number(record), self.of(log).get(&index)) {
            (None, _) => Err(format!("returns bytes at {index} of log {log} that were never appended")),
            (Some(number), Some(known)) if *known == number => Ok(()),
            (Some(number), known) => {
                Err(format!("returns record {number} at {index} of log {log}; committed there: {known:?}"))
            }
        }
    }

    /// Checks records that were acknowledged.
    pub(super) fn check_acknowledged(
        &self,
        log: LogNumber,
        first: Index,
        records: &[u64],
    ) -> Result<(), String> {
        for (n, record) in records.iter().enumerate() {
            let index = first.plus(n as u64);
            let there = self.of(log).get(&index);
            if there != Some(record) {
                return Err(format!(
                    "acknowledged record {record} at {index} of log {log}; committed there: {there:?}"
                ));
            }
        }
        Ok(())
    }
}
