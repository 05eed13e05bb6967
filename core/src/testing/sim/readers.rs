//! Readers: read the logs of a directory on: its own log, or each named log of a shared group.
//!
//! Must not know: what is in the records.

use super::contents::LogSummaries;
use super::store_faults::StoreFaults;
use super::threads::Records;
use crate::error::{Error, ErrorKind, Result};
use crate::read::reader::Reader;
use crate::read::view::{LogView, Start};
use crate::types::{Index, LogNumber};
use std::collections::BTreeMap;

pub(super) struct Readers {
    view: LogView,
    each: BTreeMap<LogNumber, Reader>,
    faults: StoreFaults,
}

impl Readers {
    /// Readers that begin at the first record of each log.
    pub(super) fn new(view: LogView, faults: StoreFaults) -> Self {
        Self { view: LogView { prefetch: 0, ..view }, each: BTreeMap::new(), faults }
    }

    /// The faults of the object store, as far as they explain errors here.
    pub(super) fn faults(&mut self) -> &mut StoreFaults {
        &mut self.faults
    }

    /// The view of all logs together.
    pub(super) fn group(&self) -> &LogView {
        &self.view
    }

    /// The logs that can be read, ascending.
    pub(super) fn logs(&self) -> Vec<LogNumber> {
        if !self.view.logs.is_shared() {
            return vec![LogNumber::OWN];
        }
        let mut numbers = self.view.logs.numbers();
        numbers.sort_unstable();
        numbers
    }

    /// The named logs as readers see them.
    pub(super) fn published(&self) -> LogSummaries {
        let logs = &self.view.logs;
        logs.numbers().into_iter().filter_map(|log| Some((log, (&logs.get(log)?).into()))).collect()
    }

    /// # Errors
    /// `NotFound`: there is no such log here.
    pub(super) fn of_log(&self, log: LogNumber) -> Result<LogView> {
        if log.is_none() { Ok(self.view.clone()) } else { self.view.of_log(log) }
    }

    /// The records that became readable since the last call.
    ///
    /// # Errors
    /// Those of `Reader::next_record`.
    ///
    /// Unless `strict`, records that are in the object store alone may not be readable now, as far as [`StoreFaults`] says.
    pub(super) fn fresh(&mut self, strict: bool) -> Result<Records> {
        let logs = self.logs();
        let mut fresh = Vec::new();
        let gone = self.each.extract_if(.., |log, _| !log.is_none() && !logs.contains(log));
        for (log, mut reader) in gone {
            end_of_dropped(log, &mut reader, &mut fresh)?;
        }
        self.each.retain(|log, _| logs.contains(log));
        for log in logs {
            let view = self.of_log(log)?;
            let mut reader = match self.each.remove(&log) {
                Some(reader) => reader,
                None => view.reader(Start::First)?,
            };
            let faults = (!strict).then_some(&mut self.faults);
            read_on(&view, &mut reader, &mut fresh, faults)?;
            self.each.insert(log, reader);
        }
        Ok(fresh)
    }

    /// Every record that can be read.
    ///
    /// # Errors
    /// Those of `Reader::next_record`.
    pub(super) fn all(&mut self) -> Result<Records> {
        self.each.clear();
        self.fresh(true)
    }
}

/// All records that a reader has not returned yet; from the first record, if that is beyond the reader's position. Up to the first one
/// that the object store does not give, if its `faults` explain that.
fn read_on(
    view: &LogView,
    reader: &mut Reader,
    fresh: &mut Records,
    mut faults: Option<&mut StoreFaults>,
) -> Result<()> {
    loop {
        if let Some(faults) = &mut faults {
            faults.begin();
        }
        let at = reader.position();
        match reader.next_record() {
            Ok(Some(record)) => fresh.push((view.log, record.index, record.data.to_vec())),
            Ok(None) => return Ok(()),
            Err(e) if e.kind() == ErrorKind::Discarded => *reader = view.reader(Start::First)?,
            Err(e) if faults.as_mut().is_some_and(|faults| faults.explain(&e, Some((view.log, at)))) => {
                return Ok(());
            }
            Err(e) => return Err(e),
        }
    }
}

/// Reads a log that was dropped: what its files still have, and then that it is gone.
fn end_of_dropped(log: LogNumber, reader: &mut Reader, fresh: &mut Records) -> Result<()> {
    loop {
        match reader.next_record() {
            Ok(Some(record)) => fresh.push((log, record.index, record.data.to_vec())),
            Ok(None) => {
                let what = format!("a reader of log {log} waits for more, and the log was dropped");
                return Err(Error::new(ErrorKind::Diverged, what));
            }
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Discarded) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
}

/// The first and the last record of a log that can be read.
pub(super) fn range_of(view: &LogView) -> (Index, Index) {
    view.positions.range()
}
