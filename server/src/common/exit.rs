//! The exit codes: the table that the help shows, and the code of each kind of error.

use chiplog::ErrorKind;

/// How a command ended, as the shell sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// The command succeeded.
    Ok = 0,
    /// The system or the disk refused something.
    Failure = 1,
    /// The command line, a file of options, the input or the token is wrong. Trying again changes nothing.
    Usage = 2,
    /// Stored bytes are wrong, or a batch was appended in a form that no reader can unpack.
    Corrupt = 3,
    /// There is no such log, segment or record, or no such input file.
    NotFound = 4,
    /// Locked, full, busy or out of time: the same command can work later.
    Retry = 5,
    /// A write or sync failed midway: what was not confirmed may or may not be in the log.
    Unknown = 6,
    /// The data needs another version of chiplog.
    Unsupported = 7,
    /// A backup was made, or is sound, and it lacks records that the object store had.
    EndsEarly = 8,
    /// Ctrl-C or SIGTERM ended the command before its work was done.
    Interrupted = 130,
}

impl Exit {
    /// The exit code for an error kind of the library.
    pub(crate) fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidArgument
            | ErrorKind::TooLarge
            | ErrorKind::Unauthenticated
            | ErrorKind::PermissionDenied
            // The name is taken, or the log takes no appends any more.
            | ErrorKind::AlreadyExists
            | ErrorKind::Sealed
            // No such member, or one too few: the command does not fit this cluster.
            | ErrorKind::Membership => Self::Usage,
            ErrorKind::Corrupt | ErrorKind::Undecodable => Self::Corrupt,
            ErrorKind::NotFound | ErrorKind::Discarded | ErrorKind::OutOfRange => Self::NotFound,
            ErrorKind::Poisoned => Self::Unknown,
            ErrorKind::Unsupported => Self::Unsupported,
            kind if kind.is_retryable() => Self::Retry,
            _ => Self::Failure,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The end of every command's long help and manual page.
pub(crate) const TABLE: &str = "\
Exit status:
    0  success
    1  the system or the disk refused something
    2  the command line, a file of options, the input or the token is wrong
    3  corruption was found
    4  there is no such log, segment or record, or no such input
    5  locked, full, busy or out of time: the same command can work later
    6  a write failed midway: what was not confirmed may or may not be in the log
    7  needs another version of chiplog
    8  a backup was made, or is sound, and ends before records that the object store has, or had
  130  interrupted; what was confirmed is in the log

Errors:
  Errors go to standard error as \"chiplog: what, where, what to do\". With --json an error is
  one object:
    {\"error\": {\"kind\": \"locked\", \"code\": 11, \"message\": \"...\"}}
  The kinds and numbers are those of the library. They never change.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_code_is_in_the_table() {
        use Exit::*;
        for exit in
            [Ok, Failure, Usage, Corrupt, NotFound, Retry, Unknown, Unsupported, EndsEarly, Interrupted]
        {
            let row = format!("{:>5}  ", exit as u8);
            assert!(TABLE.lines().any(|line| line.starts_with(&row)), "{exit:?}");
        }
        assert_eq!(Exit::of(ErrorKind::Locked), Retry);
        assert_eq!(Exit::of(ErrorKind::Full), Retry);
        for kind in [ErrorKind::Membership, ErrorKind::AlreadyExists, ErrorKind::Sealed] {
            assert_eq!(Exit::of(kind), Usage);
        }
        assert_eq!(Exit::of(ErrorKind::Io), Failure);
    }
}
