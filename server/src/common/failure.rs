//! The error type of the command line: the library's kinds, with a message for a person and an exit code.
//!
//! A closed pipe is not an error. The reader of our output may stop at any time; the command then ends
//! quietly ([`Failure::quiet`]).

use crate::common::exit::Exit;
use chiplog::ErrorKind;
use serde_json::{Map, Value, json};
use std::fmt;
use std::io;
use std::path::Path;

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: ErrorKind,
    message: String,
    exit: Exit,
    /// Named values that go with the error, such as how much was appended before it. Only in JSON; the
    /// message says the same in words.
    details: Map<String, Value>,
    quiet: bool,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), exit: Exit::of(kind), details: Map::new(), quiet: false }
    }

    /// An error of the library, with advice after its message.
    pub(crate) fn of(error: &chiplog::Error, advice: &str) -> Self {
        let failure = Self::new(error.kind(), format!("{error}{advice}"));
        match error.is_lasting() && error.is_retryable() {
            true => failure.with_exit(Exit::Failure), // waiting does not help
            false => failure,
        }
    }

    /// The input or the command line is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// The system failed `doing` something to `path`.
    pub(crate) fn io(doing: &str, path: &Path, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::StorageFull => ErrorKind::Full,
            _ => ErrorKind::Io,
        };
        Self::new(kind, format!("cannot {doing} {}: {error}", path.display()))
    }

    /// A file that the option or configuration key `by` names cannot be read. A missing file is a usage
    /// error, not a missing log.
    pub(crate) fn option_file(by: &str, path: &Path, error: &io::Error) -> Self {
        let mut failure = Self::io("read", path, error);
        failure.message = format!("{by}: {}", failure.message);
        if failure.kind == ErrorKind::NotFound {
            return Self::usage(failure.message);
        }
        failure
    }

    /// Standard output cannot be written to. A closed pipe is not reported.
    pub(crate) fn output(error: &io::Error) -> Self {
        let quiet = error.kind() == io::ErrorKind::BrokenPipe;
        let mut failure = Self::new(ErrorKind::Io, format!("cannot write to standard output: {error}"));
        if quiet {
            failure.exit = Exit::Ok;
        }
        Self { quiet, ..failure }
    }

    /// The same failure, with `place` before the message.
    pub(crate) fn at(mut self, place: &str) -> Self {
        self.message.insert_str(0, &format!("{place}: "));
        self
    }

    /// The same failure, with words after the message.
    pub(crate) fn with_words(mut self, words: &str) -> Self {
        self.message.push_str("; ");
        self.message.push_str(words);
        self
    }

    /// The same failure, with words after the message and a named value in the JSON.
    pub(crate) fn with_detail(self, words: &str, name: &str, value: Value) -> Self {
        let mut failure = self.with_words(words);
        failure.detail(name, value);
        failure
    }

    /// The same failure, with another exit code.
    pub(crate) fn with_exit(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }

    /// Adds a named value to the JSON.
    pub(crate) fn detail(&mut self, name: &str, value: Value) {
        self.details.insert(name.to_string(), value);
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// Whether the failure is not reported.
    pub(crate) fn quiet(&self) -> bool {
        self.quiet
    }

    pub(crate) fn json(&self) -> Value {
        let error = json!({ "kind": self.kind.name(), "code": self.kind.code(), "message": self.message });
        let mut all = self.details.clone();
        all.insert("error".to_string(), error);
        Value::Object(all)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The advice for a log that another, known program has open for writing.
pub(crate) const LOCKED_ADVICE: &str = "; stop it, or use `read` and `info`, which work beside it";

impl From<chiplog::Error> for Failure {
    /// The library reports what and where; the command line adds what to do.
    fn from(error: chiplog::Error) -> Self {
        let advice = match error.kind() {
            ErrorKind::Locked => " (`read` and `info` can)",
            ErrorKind::Corrupt => {
                "; `chiplog verify` lists the damage, `chiplog read --salvage` prints every sound record"
            }
            ErrorKind::Full => "; make room by `chiplog discard` of records that are not needed",
            ErrorKind::Poisoned => {
                "; check the disk and the kernel's log, then run the command again: opening the log keeps every confirmed record"
            }
            _ => "",
        };
        Self::of(&error, advice)
    }
}
