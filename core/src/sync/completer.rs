//! Completer: the duty to answer the callers that wait for a block, a command or a request.
//!
//! Must not know: the contents of the answer.

use crate::error::{Error, ErrorKind};
use crate::sync::completion::{Completion, Durability, Outcome, Ticket};
use std::sync::Arc;

/// The duty to answer. A completer that is dropped without an answer reports that the outcome is unknown, so no caller
/// waits forever. If the writer thread panics, the error is `Poisoned`; otherwise the log has just closed.
#[derive(Debug)]
pub(crate) struct Completer {
    /// None once it has answered.
    completion: Option<Arc<Completion>>,
    /// How durable the appends are that it acknowledges.
    durability: Option<Durability>,
}

impl Completer {
    pub(crate) fn new() -> Self {
        Self { completion: Some(Completion::new()), durability: None }
    }

    /// The ticket of batch number `ordinal` of the block, with `offset` records before it.
    pub(crate) fn ticket(&self, ordinal: u32, offset: u32, count: u32) -> Ticket {
        match &self.completion {
            Some(completion) => Ticket::new(completion.clone(), ordinal, offset, count),
            None => unreachable!("answering consumes the completer"),
        }
    }

    /// Its answer says that appends are this durable.
    pub(crate) fn durable(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// Answers, and wakes all waiters.
    pub(crate) fn answer(mut self, outcome: Outcome) {
        if let Some(completion) = self.completion.take() {
            completion.complete(outcome, self.durability);
        }
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        if let Some(completion) = self.completion.take() {
            let what = "outcome unknown: the log stopped before it answered";
            let kind = if std::thread::panicking() { ErrorKind::Poisoned } else { ErrorKind::Unavailable };
            completion.complete(Outcome::Failed(Error::new(kind, what)), None);
        }
    }
}
