//! Promise: the duty to answer those who wait for a block, a command or a question.
//!
//! Must not know: what the answer is about.

use crate::error::{Error, ErrorKind};
use crate::sync::completion::{Completion, Outcome, Ticket};
use std::sync::Arc;

/// The duty to answer. Dropped unanswered it answers that the outcome is unknown: nobody waits for ever. By a writer
/// thread that panics, the log is poisoned; else it has merely ended.
#[derive(Debug)]
pub(crate) struct Completer(Option<Arc<Completion>>);

impl Completer {
    pub(crate) fn new() -> Self {
        Self(Some(Completion::new()))
    }

    /// A place in the line of those who wait: number `ordinal` of the block, with `offset` records before it.
    pub(crate) fn ticket(&self, ordinal: u32, offset: u32, count: u32) -> Ticket {
        match &self.0 {
            Some(completion) => Ticket::new(completion.clone(), ordinal, offset, count),
            None => unreachable!("a completer is answered by giving it away"),
        }
    }

    /// Answers, and wakes all who wait.
    pub(crate) fn answer(mut self, outcome: Outcome) {
        if let Some(completion) = self.0.take() {
            completion.complete(outcome);
        }
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        if let Some(completion) = self.0.take() {
            let what = "outcome unknown: the log stopped before there was an answer";
            let kind = if std::thread::panicking() { ErrorKind::Poisoned } else { ErrorKind::Unavailable };
            completion.complete(Outcome::Failed(Error::new(kind, what)));
        }
    }
}
