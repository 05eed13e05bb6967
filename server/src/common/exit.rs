//! The exit codes, once: the table that the help shows, and which error leads to which.

use chiplog::ErrorKind;

/// How a command ended, as the shell sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// All done.
    Ok = 0,
    /// The system, or the disk, refused something.
    Failure = 1,
    /// The command line, a file that it names for its options, the input or the token is wrong: trying again changes nothing.
    Usage = 2,
    /// Stored bytes are wrong, or were appended so that no reader can unpack them.
    Corrupt = 3,
    /// There is no such log, segment or record; or no such file to read from.
    NotFound = 4,
    /// Locked, full, busy or out of time: the same command can work later.
    Retry = 5,
    /// A write or sync failed under way: what was not confirmed may or may not be in the log.
    Unknown = 6,
    /// Written by, or only understood by, another version.
    Unsupported = 7,
    /// Ctrl-C or SIGTERM came before the work was done.
    Interrupted = 130,
}

impl Exit {
    /// The code that an error of the library leads to.
    pub(crate) fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidArgument
            | ErrorKind::TooLarge
            | ErrorKind::Unauthenticated
            | ErrorKind::PermissionDenied
            // No such member, one too few: it is the command that is not for this cluster.
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

/// Stands at the end of every command's long help and manual page.
pub(crate) const TABLE: &str = "\
Exit status:
    0  success
    1  the system or the disk refused something
    2  the command line, a file of options, the input or the token is wrong
    3  corruption was found
    4  there is no such log, segment or record, or no such input
    5  locked, full, busy or out of time: the same command can work later
    6  a write failed under way: what was not confirmed may or may not be in the log
    7  needs another version of chiplog
  130  interrupted; what was confirmed is in the log

Errors:
  They go to standard error as \"chiplog: what, where, what to do\", and with --json as one object:
    {\"error\": {\"kind\": \"locked\", \"code\": 11, \"message\": \"...\"}}
  The kinds and their numbers are those of the library and never change.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_stands_in_the_table() {
        use Exit::*;
        for exit in [Ok, Failure, Usage, Corrupt, NotFound, Retry, Unknown, Unsupported, Interrupted] {
            let row = format!("{:>5}  ", exit as u8);
            assert!(TABLE.lines().any(|line| line.starts_with(&row)), "{exit:?}");
        }
        assert_eq!(Exit::of(ErrorKind::Locked), Retry);
        assert_eq!(Exit::of(ErrorKind::Full), Retry);
        assert_eq!(Exit::of(ErrorKind::Membership), Usage);
        assert_eq!(Exit::of(ErrorKind::Io), Failure);
    }
}
