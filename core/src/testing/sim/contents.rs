//! Contents: everything that was ever committed, log by log, and the named logs of a group as their entries left them.
//!
//! Invariants, checked as entries come:
//! - a log is opened once, under a number above all earlier ones, and nothing happens to it before or after its life;
//! - a named log has no holes except those of its own discards beyond the end; it takes nothing while it is sealed;
//! - a record was proposed for this log, and is in one log, once;
//! - batches that were appended together are all in one entry, or none of them is anywhere.
//!
//! Must not know: hosts, clients.

use super::history::number_of;
use crate::replica::queue::proposals::LogCommand;
use crate::store::format::logs::LogState;
use crate::types::{EntryIndex, Index, LogNumber};
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
    /// The entry of each record.
    places: BTreeMap<(LogNumber, Index), EntryIndex>,
    /// The named logs after the last entry.
    summaries: Rc<LogSummaries>,
    /// The newest named log that was opened.
    opened: LogNumber,
    /// The log that each record was to be appended to.
    proposed: BTreeMap<u64, LogNumber>,
    committed: BTreeMap<u64, EntryIndex>,
    /// Records that are appended together with each of these.
    tied: BTreeMap<u64, Rc<[u64]>>,
    /// The largest index of a requested discard of the own log.
    discard_max: Index,
}

impl Contents {
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
        self.places.range((log, Index(0))..=(log, last)).next_back().map(|(_, raft)| *raft)
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

    pub(super) fn note_discard(&mut self, first: Index) {
        self.discard_max = self.discard_max.max(first);
    }

    /// A command of a named log is committed.
    pub(super) fn apply_command(&mut self, command: LogCommand) -> Result<(), String> {
        let log = command.log();
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
            LogCommand::Drop { .. } => drop(Rc::make_mut(&mut self.summaries).remove(&log)),
            LogCommand::Discard { first, .. } => {
                (end.first, end.next) = (end.first.max(first), end.next.max(first));
            }
            LogCommand::Open { .. } => {}
        }
        Ok(())
    }

    /// A record is committed for the first time, by entry `raft`.
    pub(super) fn add_record(
        &mut self,
        raft: EntryIndex,
        log: LogNumber,
        index: Index,
        record: &[u8],
    ) -> Result<(), String> {
        let Some(number) = number_of(record) else {
            return Err(format!("bytes that were never appended are committed at {index} of log {log}"));
        };
        let wrong = |why: String| Err(format!("record {number} is committed at {index} of log {log}; {why}"));
        if log.is_none() {
            let expected = self.last(log).next();
            if index < expected || (index > expected && index > self.discard_max) {
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
            None => return wrong("it was never appended".to_owned()),
            Some(other) if *other != log => return wrong(format!("it was appended to log {other}")),
            Some(_) => {}
        }
        if self.committed.insert(number, raft).is_some() {
            return wrong("it is committed already".to_owned());
        }
        self.logs.entry(log).or_default().insert(index, number);
        self.places.insert((log, index), raft);
        Ok(())
    }

    /// Checks a record that a replica returns.
    pub(super) fn check_read(&self, log: LogNumber, index: Index, record: &[u8]) -> Result<(), String> {
        match (number_of(record), self.of(log).get(&index)) {
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
