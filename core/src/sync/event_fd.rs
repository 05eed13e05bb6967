//! Signal: a descriptor that tells an event loop that there is something, for `poll`, `epoll`, `select`. An eventfd.
//!
//! How a reader is waited for with it, without a thread:
//!
//! ```text
//! event loop: readable ──> take what is there ──> nothing left: lower(), on_more(raise) ──> event loop
//! ```
//!
//! Nothing is lost: a hook is called at once when there is something already. Nobody pays who does not ask for one.
//!
//! Must not know: what it tells of.

use crate::error::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// A descriptor that is readable while it is raised. Cheap to clone, `Send + Sync`: clones are one descriptor, which is
/// closed with the last of them, and closed when a program is executed.
///
/// ```
/// use chiplog::{Log, Options, Signal, Start};
/// # let dir = tempfile::tempdir()?;
/// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
/// let mut reader = log.reader(Start::First)?;
/// let signal = Signal::new()?; // its descriptor goes to an event loop
/// let raise = signal.clone();
/// reader.on_more(move || raise.raise());
/// assert!(!signal.is_raised());
/// log.append(b"x")?;
/// while !signal.is_raised() {} // the event loop
/// while let Some(record) = reader.next_record()? {
///     println!("{}", record.index);
/// }
/// signal.lower();
/// let raise = signal.clone();
/// reader.on_more(move || raise.raise()); // and back to the event loop
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Signal {
    event: Arc<OwnedFd>,
}

impl Signal {
    /// One that is not raised.
    ///
    /// # Errors
    /// `Io`: no descriptor could be had.
    pub fn new() -> Result<Self> {
        match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
            Ok(event) => Ok(Self { event: Arc::new(event) }),
            Err(e) => Err(Error::new(ErrorKind::Io, format!("cannot make an eventfd: {e}"))),
        }
    }

    /// Makes the descriptor readable. Never blocks; again does no harm.
    pub fn raise(&self) {
        // Fails only when it is raised 2^64 times over.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor not readable. Never blocks.
    pub fn lower(&self) {
        // Fails only when it is not raised.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// Whether the descriptor is readable. Never blocks.
    pub fn is_raised(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
        loop {
            match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
                Err(rustix::io::Errno::INTR) => {}
                ready => return ready.is_ok_and(|n| n > 0),
            }
        }
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl AsRawFd for Signal {
    fn as_raw_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_raised_and_lowered() {
        let signal = Signal::new().unwrap();
        let same = signal.clone();
        assert!(!signal.is_raised());
        for _ in 0..3 {
            same.raise();
        }
        assert!(signal.is_raised());
        signal.lower();
        assert!(!same.is_raised());
        signal.lower();
        assert!(!signal.is_raised());
    }
}
