//! The logs of an append stream: those that its requests have named so far, and the one that the last request named.
//!
//! Invariants:
//! - A log that was found is used as long as the stream lives and the log answers. If another log gets its name, the stream goes on
//!   with that only after the first one has refused a batch as deleted, or a request has given the other one's id.
//! - The log that the call's metadata means is found by that id, however often it is looked for.
//! - Names are looked up at most [`LOOK_UPS_MAX`] times, and none is kept beyond [`KEPT_BYTES_MAX`], so that a stream takes a bounded
//!   amount of memory.
//!
//! Must not know: how logs are found.

use crate::wire::ids::to_hex;
use crate::wire::proto::v1::AppendRequest;
use chiplog::{Error, ErrorKind, Log, LogId, Result};
use std::collections::HashMap;

/// How often a stream looks names up.
const LOOK_UPS_MAX: usize = 4096;
/// The most bytes of a log's name, with a partition's number and to spare.
const NAME_BYTES_MAX: usize = 300;
/// The most bytes that are kept of a name: too many for a log, so that a request which repeats the name is refused as well.
const KEPT_BYTES_MAX: usize = NAME_BYTES_MAX + 8;

pub(super) struct StreamLogs {
    /// Each with its id in hexadecimal, by their numbers.
    logs: Vec<(Log, String)>,
    /// Their numbers, by name.
    numbers: HashMap<String, usize>,
    /// The same, by id.
    known: HashMap<LogId, usize>,
    /// The name in the last request that had one, and the number of that log if it was found.
    last: (String, Option<usize>),
    /// The name in the first request.
    first: Option<String>,
    /// The id that the call's metadata gives for that log.
    meant: Option<Vec<u8>>,
    look_ups: usize,
}

impl StreamLogs {
    pub(super) fn new(meant: Option<Vec<u8>>) -> Self {
        let (logs, numbers, known) = (Vec::new(), HashMap::new(), HashMap::new());
        Self { logs, numbers, known, last: (String::new(), None), first: None, meant, look_ups: 0 }
    }

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
            let kept = &request.log[..request.log.floor_char_boundary(KEPT_BYTES_MAX)];
            kept.clone_into(&mut self.last.0);
            self.last.1 = self.numbers.get(&request.log).copied();
        }
        let is_meant = |number: &usize| {
            request.log_id.is_empty() || request.log_id.eq_ignore_ascii_case(&self.logs[*number].1)
        };
        self.last.1.filter(is_meant)
    }

    /// The id by which the log of a request is to be found; None: any log of the name.
    ///
    /// # Errors
    /// `InvalidArgument`: no log has a name of that length. `Unavailable`: the stream has looked up as many names as it may.
    pub(super) fn look_up(&mut self, request: &AppendRequest) -> Result<Option<Vec<u8>>> {
        if request.log.len() > NAME_BYTES_MAX {
            let what = format!("the name of a log has {} bytes: none is that long", request.log.len());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        if self.look_ups == LOOK_UPS_MAX {
            let what = format!("this stream has looked up {LOOK_UPS_MAX} names of logs: open another one");
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        self.look_ups += 1;
        let first = self.first.get_or_insert_with(|| request.log.clone());
        Ok(match request.log_id.is_empty() {
            true => self.meant.clone().filter(|_| *first == request.log),
            false => Some(request.log_id.clone().into_bytes()),
        })
    }

    /// Adds the log of the last request, or replaces another one of its name. Returns its number.
    pub(super) fn add(&mut self, name: &str, log: Log) -> usize {
        let (id, next) = (log.log_id(), self.logs.len());
        let number = *self.known.entry(id).or_insert(next);
        match self.logs.get_mut(number) {
            Some((known, _)) => *known = log,
            None => self.logs.push((log, to_hex(id.get()))),
        }
        self.numbers.insert(name.to_owned(), number);
        self.last.1 = Some(number);
        number
    }

    /// The log of this number was deleted, or is not served by its handle any more: it is looked for again.
    pub(super) fn forget(&mut self, number: usize) {
        self.numbers.retain(|_, known| *known != number);
        self.last.1.take_if(|last| *last == number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names up to the size of a message stayed with the stream, in no budget, after their requests were refused.
    #[test]
    fn name_that_is_too_long_is_not_kept() {
        let mut logs = StreamLogs::new(None);
        let naming = |log: String| AppendRequest { log, ..AppendRequest::default() };
        for long in ["n".repeat(1 << 20), "ü".repeat(1 << 19)] {
            let mut request = naming(long);
            assert_eq!(logs.turn_to(&mut request), None);
            assert_eq!(logs.look_up(&request).unwrap_err().kind(), ErrorKind::InvalidArgument);
            assert!(logs.last.0.capacity() <= KEPT_BYTES_MAX, "{}", logs.last.0.capacity());
            // No other log is meant by a request that repeats the name.
            let mut request = naming(String::new());
            assert_eq!(logs.turn_to(&mut request), None);
            assert_eq!(logs.look_up(&request).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }
}
