//! Marker: a file in the server's data directory that tells whether this server can know of a system log.
//!
//! | contents | meaning |
//! |---|---|
//! | (no file) | it made its cluster, and never heard of a system log |
//! | `joined` | it joined a cluster, and has not heard of a system log |
//! | `let TERM` | it let the leader of the default log in this term make the system log |
//! | (empty) | it had a replica of a system log |
//!
//! Invariant: once the file is empty it stays so.

use chiplog::{Error, ErrorKind, Result, Term};
use std::io::Write as _;
use std::path::{Path, PathBuf};

const NAME: &str = "chiplog.named";
const JOINED: &str = "joined";
const LET: &str = "let ";

/// The contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    Nothing,
    Joined,
    Let(Term),
    Had,
}

impl Marker {
    /// The file of a data directory.
    pub(super) fn path(data: &Path) -> PathBuf {
        data.join(NAME)
    }

    /// Reads the file. Anything that is not understood counts as [`Marker::Had`].
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn read(data: &Path) -> Result<Self> {
        let path = Self::path(data);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(match text.trim_end() {
                JOINED => Self::Joined,
                text => {
                    let term = text.strip_prefix(LET).and_then(|term| term.parse().ok());
                    term.map_or(Self::Had, |term| Self::Let(Term(term)))
                }
            }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Self::Nothing),
            Err(e) if e.kind() == std::io::ErrorKind::InvalidData => Ok(Self::Had),
            Err(e) => Err(Error::new(ErrorKind::Io, format!("cannot read {}: {e}", path.display()))),
        }
    }

    /// Writes the file, and returns once that is durable. A file that says that there was a system log stays.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn write(self, data: &Path) -> Result<()> {
        if Self::read(data)? == Self::Had {
            return Ok(());
        }
        let text = match self {
            Self::Nothing | Self::Had => String::new(),
            Self::Joined => format!("{JOINED}\n"),
            Self::Let(term) => format!("{LET}{}\n", term.get()),
        };
        let path = Self::path(data);
        let replace = || {
            let new = path.with_extension("named.new");
            let mut file = std::fs::File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            std::fs::File::open(data)?.sync_all()
        };
        replace().map_err(|e| Error::new(ErrorKind::Io, format!("cannot write {}: {e}", path.display())))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn contents_survive_and_a_system_log_is_never_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path();
        assert_eq!(Marker::read(data).unwrap(), Marker::Nothing);
        for marker in [Marker::Joined, Marker::Let(Term(7)), Marker::Let(Term(u64::MAX)), Marker::Had] {
            marker.write(data).unwrap();
            assert_eq!(Marker::read(data).unwrap(), marker);
        }
        Marker::Joined.write(data).unwrap();
        assert_eq!(Marker::read(data).unwrap(), Marker::Had);
        assert_eq!(std::fs::read_dir(data).unwrap().count(), 1, "no other file is left");
        for other in ["let x", "let", "later\n"] {
            std::fs::write(Marker::path(data), other).unwrap();
            assert_eq!(Marker::read(data).unwrap(), Marker::Had, "{other}");
        }
        std::fs::write(Marker::path(data), [0xff]).unwrap();
        assert_eq!(Marker::read(data).unwrap(), Marker::Had);
    }
}
