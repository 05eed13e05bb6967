//! Log table: the logs of a shared group, how far each is, and the options that are set for it. A log is opened,
//! appended to, discarded from the front, sealed and dropped by entries alone. Pure: no clock, no I/O, no threads.
//!
//! Every segment's opening block holds the table: its bytes are in `store/format/logs.rs`.
//!
//! Invariants:
//! - the indexes of a log are dense: each run begins at the log's next index;
//! - options are those of logs that exist;
//! - numbers are opened in ascending order, and each once: a segment never holds records of two logs with one number.
//!   A log's record in the table goes when it is dropped.
//!
//! Must not know: blocks, segments.

use crate::error::Result;
use crate::options::log_options::LogOptions;
use crate::read::log_set::{sealed, unknown};
use crate::record::batch::Malformed;
use crate::replica::queue::proposals::LogCommand;
use crate::store::format::geometry::{LOG_BYTES, LOGS_HEADER_BYTES};
use crate::store::format::logs::{self, LogState};
use crate::store::format::mixed::Run;
use crate::types::{Index, LogNumber, Timestamp};
use std::collections::BTreeMap;

const UNKNOWN: Malformed = "entry names a log that does not exist";

/// The logs of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogTable {
    /// The newest log that was ever opened. 0: the directory holds one log, without a number.
    opened: LogNumber,
    logs: BTreeMap<LogNumber, LogState>,
    /// Of the logs that have any.
    options: BTreeMap<LogNumber, LogOptions>,
}

impl LogTable {
    /// Whether the group is shared by named logs, or was, if all of them were dropped.
    pub(crate) fn is_shared(&self) -> bool {
        !self.opened.is_none()
    }

    /// The newest log that was ever opened; 0 if none was.
    pub(crate) fn opened(&self) -> LogNumber {
        self.opened
    }

    pub(crate) fn len(&self) -> usize {
        self.logs.len()
    }

    pub(crate) fn get(&self, log: LogNumber) -> Option<&LogState> {
        self.logs.get(&log)
    }

    /// The options that are set for a log.
    pub(crate) fn options(&self, log: LogNumber) -> LogOptions {
        self.options.get(&log).copied().unwrap_or_default()
    }

    /// The logs for which options are set, ascending by number.
    pub(crate) fn with_options(&self) -> impl Iterator<Item = (LogNumber, &LogOptions)> {
        self.options.iter().map(|(log, options)| (*log, options))
    }

    /// The logs, ascending by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LogNumber, &LogState)> {
        self.logs.iter().map(|(log, state)| (*log, state))
    }

    /// The log, if it takes appends.
    ///
    /// # Errors
    /// `NotFound`: it was never opened, or was dropped. `Sealed`.
    pub(crate) fn check_append(&self, log: LogNumber) -> Result<&LogState> {
        match self.logs.get(&log) {
            Some(state) if state.sealed && !planted!(80) => Err(sealed(log, state.next)),
            Some(state) => Ok(state),
            None => Err(unknown(log)),
        }
    }

    /// Applies a command that is in the log.
    ///
    /// # Errors
    /// The command contradicts the table: at replay, the log contradicts itself. Nothing was changed.
    pub(crate) fn apply(&mut self, command: LogCommand) -> Result<(), Malformed> {
        match command {
            LogCommand::Open { log, start } => {
                if log <= self.opened || start == Index(0) {
                    return Err("log opened after a newer one, or with an impossible number or start");
                }
                self.opened = log;
                self.logs.insert(
                    log,
                    LogState {
                        first: start,
                        next: start,
                        bytes: 0,
                        last_timestamp: Timestamp(0),
                        sealed: false,
                    },
                );
            }
            LogCommand::Seal { log } => self.logs.get_mut(&log).ok_or(UNKNOWN)?.sealed = true,
            LogCommand::Drop { log } => {
                self.logs.remove(&log).ok_or(UNKNOWN)?;
                self.options.remove(&log);
            }
            LogCommand::SetOptions { log, options } => {
                self.logs.get(&log).ok_or(UNKNOWN)?;
                match options.is_empty() {
                    true => drop(self.options.remove(&log)),
                    false => drop(self.options.insert(log, options)),
                }
            }
            LogCommand::Discard { log, first } => {
                let state = self.logs.get_mut(&log).ok_or(UNKNOWN)?;
                state.first = state.first.max(first);
                state.next = state.next.max(first);
            }
        }
        Ok(())
    }

    /// Applies records that were appended to a log at this time.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub(crate) fn append(&mut self, run: &Run, at: Timestamp) -> Result<(), Malformed> {
        let state = self.logs.get_mut(&run.log).ok_or(UNKNOWN)?;
        if run.first != state.next || state.sealed {
            return Err("run does not follow the one before in its log");
        }
        state.next = run.next();
        state.bytes = state.bytes.saturating_add(run.bytes.into());
        state.last_timestamp = state.last_timestamp.max(at);
        Ok(())
    }

    /// No record before the end of any log is here: a copy of the group begins at this state.
    pub(crate) fn begin_at_ends(&mut self) {
        self.logs.values_mut().for_each(|state| state.first = state.next);
    }

    /// Each log begins with the record that it begins with in `other`.
    pub(crate) fn begin_as(&mut self, other: &Self) {
        for (log, state) in &mut self.logs {
            if let Some(known) = other.get(*log) {
                state.first = known.first.min(state.next);
            }
        }
    }

    /// The number of bytes that `encode` returns; 0 for a group that is not shared.
    pub(crate) fn encoded_bytes(&self) -> usize {
        if !self.is_shared() {
            return 0;
        }
        LOGS_HEADER_BYTES + self.logs.len() * LOG_BYTES + self.options_bytes()
    }

    /// The bytes of the options in what `encode` returns.
    pub(crate) fn options_bytes(&self) -> usize {
        self.options.values().map(LogOptions::encoded_bytes).sum()
    }

    /// The table as bytes; none for a group that is not shared. Equal tables have equal bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        if !self.is_shared() {
            return Vec::new();
        }
        let options = self.options.iter().filter(|_| !planted!(86));
        logs::encode(self.opened, self.logs.iter(), options.map(|(log, options)| (log, options.encode())))
    }

    /// The reverse of [`Self::encode`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let logs::Decoded { opened, logs, options } = logs::decode(bytes)?;
        let opened = if planted!(85) { logs.last().map_or(LogNumber::OWN, |(log, _)| *log) } else { opened };
        let options = options.iter().map(|(log, bytes)| Ok((*log, LogOptions::decode(bytes)?)));
        Ok(Self {
            opened,
            logs: logs.into_iter().collect(),
            options: options.collect::<Result<_, Malformed>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::log_options::LogOption;
    use crate::store::format::logs::has_passed;

    fn run(log: u32, first: u64) -> Run {
        Run { log: LogNumber(log), batches: 1, first: Index(first), records: 3, bytes: 90, digest: 0 }
    }

    fn table() -> LogTable {
        let mut table = LogTable::default();
        table.apply(LogCommand::Open { log: LogNumber(2), start: Index(100) }).unwrap();
        table.apply(LogCommand::Open { log: LogNumber(7), start: Index(1) }).unwrap();
        table.append(&run(7, 1), Timestamp(5)).unwrap();
        table.apply(LogCommand::Discard { log: LogNumber(7), first: Index(2) }).unwrap();
        table.apply(LogCommand::Seal { log: LogNumber(2) }).unwrap();
        table.apply(LogCommand::SetOptions { log: LogNumber(7), options: options(3) }).unwrap();
        table
    }

    fn options(age: u64) -> LogOptions {
        let mut options = LogOptions::default();
        options.set(LogOption::RetentionAge, Some(age));
        options.set(LogOption::AppendBytesPerSecond, Some(1000));
        options
    }

    #[test]
    fn table_survives_encoding_and_every_cut_is_an_error() {
        let bytes = table().encode();
        assert_eq!(bytes.len(), table().encoded_bytes());
        assert_eq!(LogTable::decode(&bytes), Ok(table()));
        assert_eq!(LogTable::decode(&[]), Ok(LogTable::default()));
        // The opening has the length of the table: between two options it is whole again.
        for cut in (1..bytes.len()).filter(|cut| ![120, 136].contains(cut)) {
            assert!(LogTable::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        // Flags, reserved words, the tag of an option, the number of its log.
        for at in (13..16).chain(48..64).chain([121, 125]) {
            let mut newer = bytes.clone();
            newer[at] |= 2;
            assert!(LogTable::decode(&newer).is_err(), "byte {at}");
        }
    }

    #[test]
    fn one_log_is_found_without_decoding_the_table() {
        let bytes = table().encode();
        let has_passed = |log, index| has_passed(&bytes, LogNumber(log), Index(index)).unwrap();
        assert!(has_passed(7, 3) && !has_passed(7, 4));
        assert!(has_passed(2, 99) && !has_passed(2, 100));
        assert!(has_passed(3, 1), "it was dropped");
        assert!(!has_passed(8, 1), "it is opened later");
    }

    #[test]
    fn contradictions_change_nothing() {
        let before = table();
        let commands = [
            LogCommand::Open { log: LogNumber(7), start: Index(1) },
            LogCommand::Open { log: LogNumber::OWN, start: Index(1) },
            LogCommand::Open { log: LogNumber(9), start: Index(0) },
            LogCommand::Open { log: LogNumber(3), start: Index(1) },
            LogCommand::Seal { log: LogNumber(3) },
            LogCommand::Drop { log: LogNumber(3) },
            LogCommand::Discard { log: LogNumber(3), first: Index(1) },
            LogCommand::SetOptions { log: LogNumber(3), options: options(3) },
        ];
        for command in commands {
            let mut after = before.clone();
            assert!(after.apply(command).is_err(), "{command:?}");
            assert_eq!(after, before, "{command:?}");
        }
        // An index before and after the end, an unknown log, a sealed one.
        for run in [run(7, 3), run(7, 5), run(3, 1), run(2, 100)] {
            let mut after = before.clone();
            assert!(after.append(&run, Timestamp(6)).is_err(), "{run:?}");
            assert_eq!(after, before, "{run:?}");
        }
    }

    #[test]
    fn group_stays_shared_after_its_last_log_was_dropped() {
        let mut table = LogTable::default();
        table.apply(LogCommand::Open { log: LogNumber(1), start: Index(1) }).unwrap();
        table.apply(LogCommand::Drop { log: LogNumber(1) }).unwrap();
        assert_eq!(LogTable::decode(&table.encode()), Ok(table.clone()));
        assert!(table.is_shared());
    }

    /// Records of a dropped log can still be in the segments. Before, its number could be opened again.
    #[test]
    fn number_of_a_dropped_log_is_not_opened_again() {
        let mut table = table();
        table.apply(LogCommand::Drop { log: LogNumber(7) }).unwrap();
        let mut table = LogTable::decode(&table.encode()).unwrap();
        assert!(table.apply(LogCommand::Open { log: LogNumber(7), start: Index(1) }).is_err());
        table.apply(LogCommand::Open { log: LogNumber(8), start: Index(1) }).unwrap();
    }

    #[test]
    fn options_go_with_their_log() {
        let mut table = table();
        assert_eq!(table.options(LogNumber(7)), options(3));
        table.apply(LogCommand::SetOptions { log: LogNumber(2), options: options(4) }).unwrap();
        let (bytes, count) = (table.encode(), table.with_options().count());
        assert_eq!((bytes.len(), count), (table.encoded_bytes(), 2));
        assert_eq!(LogTable::decode(&bytes).unwrap().options(LogNumber(2)), options(4));
        table.apply(LogCommand::Drop { log: LogNumber(7) }).unwrap();
        table.apply(LogCommand::SetOptions { log: LogNumber(2), options: LogOptions::default() }).unwrap();
        assert_eq!(table.with_options().count(), 0);
        assert_eq!(table.options(LogNumber(7)), LogOptions::default());
    }

    #[test]
    fn discard_beyond_the_end_moves_the_end() {
        let mut table = table();
        table.apply(LogCommand::Discard { log: LogNumber(7), first: Index(50) }).unwrap();
        let state = table.get(LogNumber(7)).unwrap();
        assert_eq!((state.first, state.next), (Index(50), Index(50)));
    }
}
