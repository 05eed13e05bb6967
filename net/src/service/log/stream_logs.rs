//! The logs of an append stream: those that its requests have named so far, and the one that the last request named.
//!
//! Invariant: a log that was found is used as long as the stream lives and the log exists. If another log gets its name, the
//! stream goes on with that only after the first one has refused a batch as deleted, or a request has given the other one's id.
//!
//! Must not know: how logs are found.

use crate::wire::ids::to_hex;
use crate::wire::proto::v1::AppendRequest;
use chiplog::{Error, ErrorKind, Log, Result};
use std::collections::HashMap;

/// The most logs of a stream.
pub(super) const STREAM_LOGS_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct StreamLogs {
    /// Each with its id in hexadecimal, by their numbers.
    logs: Vec<(Log, String)>,
    numbers: HashMap<String, usize>,
    /// The name in the last request that had one, and the number of that log if it was found.
    last: (String, Option<usize>),
}

impl StreamLogs {
    /// Whether no log was found yet.
    pub(super) fn is_empty(&self) -> bool {
        self.logs.is_empty()
    }

    /// The log of this number.
    pub(super) fn get(&self, number: usize) -> &Log {
        &self.logs[number].0
    }

    /// The number of the log of a request; None: it has to be found. Fills in its name if the request repeats the last one.
    pub(super) fn turn_to(&mut self, request: &mut AppendRequest) -> Option<usize> {
        if request.log.is_empty() {
            request.log.clone_from(&self.last.0);
        } else if request.log != self.last.0 {
            self.last.0.clone_from(&request.log);
            self.last.1 = self.numbers.get(&request.log).copied();
        }
        let is_meant = |number: &usize| request.log_id.is_empty() || request.log_id == self.logs[*number].1;
        self.last.1.filter(is_meant)
    }

    /// Adds the log of the last request, or replaces another one of its name. Returns its number.
    ///
    /// # Errors
    /// `TooLarge`: the stream has as many logs as it may have.
    pub(super) fn add(&mut self, name: &str, log: Log) -> Result<usize> {
        if self.logs.len() == STREAM_LOGS_MAX {
            let what = format!(
                "the stream has batches of {STREAM_LOGS_MAX} logs: open another one for log {name:?}"
            );
            return Err(Error::new(ErrorKind::TooLarge, what));
        }
        let id = to_hex(log.log_id().get());
        let number = self.logs.len();
        self.logs.push((log, id));
        self.numbers.insert(name.to_owned(), number);
        self.last.1 = Some(number);
        Ok(number)
    }

    /// The log of this number was deleted: another one can have its name.
    pub(super) fn forget(&mut self, number: usize) {
        self.numbers.retain(|_, known| *known != number);
        self.last.1.take_if(|last| *last == number);
    }
}
