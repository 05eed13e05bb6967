//! The calls of programs and of processes, as threads of their own carry them out.
//!
//! Must not know: what the answers should be.

use super::Wanted;
use crate::api::log::Log;
use crate::api::logs::Logs;
use crate::error::{Error, ErrorKind, Result};
use crate::types::LogId;
use std::time::Duration;

/// How long [`Logs::find`] may take.
const FIND_TIMEOUT: Duration = Duration::from_secs(3);

/// A call.
#[derive(Clone)]
pub(super) enum Call {
    /// Opens the named logs of a process, from the handles of its system log and its group.
    Open(Log, Log),
    /// Follows the catalogue.
    Settle(Logs),
    OfProgram(Wanted, Logs),
}

/// The answer to a call.
pub(super) enum Answer {
    Opened(Result<Logs>),
    Settled,
    /// The id of the log that was created, found or deleted. With it, whether an append through its handle was refused because there is
    /// no such log.
    OfProgram(Result<LogId>, Option<Error>),
}

/// Carries out a call.
pub(super) fn run(call: Call) -> Answer {
    match call {
        Call::Open(system, group) => {
            let logs = Logs::of(system);
            Answer::Opened(logs.add_group(1, group).map(|()| logs))
        }
        Call::Settle(logs) => {
            drop(logs.settle());
            Answer::Settled
        }
        Call::OfProgram(Wanted::Create(name), logs) => of_handle(logs.create(&name)),
        Call::OfProgram(Wanted::Find(name), logs) => of_handle(logs.find(&name, None, FIND_TIMEOUT)),
        Call::OfProgram(Wanted::Register(name), logs) => Answer::OfProgram(logs.register(&name), None),
        Call::OfProgram(Wanted::Delete(name), logs) => {
            Answer::OfProgram(logs.delete(&name).map(|()| LogId(0)), None)
        }
    }
}

/// Appends to a log that a call has returned.
fn of_handle(log: Result<Log>) -> Answer {
    let appended = log.as_ref().ok().and_then(|log| log.append(b"a record").err());
    let refused = appended.filter(|error| error.kind() == ErrorKind::NotFound);
    Answer::OfProgram(log.map(|log| log.log_id()), refused)
}
