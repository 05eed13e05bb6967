//! Signal: a descriptor that wakes an event loop (`poll`, `epoll`, `select`). An eventfd.
//!
//! How an event loop waits for a reader with it, without a thread:
//!
//! ```text
//! event loop: readable ──> read all records ──> none left: lower(), on_more(raise) ──> event loop
//! ```
//!
//! No wake-up is lost: if there is a record already, the hook is called at once. A log without a signal pays nothing
//! for it.
//!
//! Must not know: the events that it signals.

use crate::error::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// A descriptor that is readable while it is raised. Cheap to clone, `Send + Sync`. All clones share one descriptor,
/// which is closed with the last of them and on `exec`.
///
/// ```
/// use chiplog::{Log, Options, Signal, Start};
/// # let dir = tempfile::tempdir()?;
/// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
/// let mut reader = log.reader(Start::First)?;
/// let signal = Signal::new()?; // the event loop watches its descriptor
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
/// reader.on_more(move || raise.raise()); // wakes the event loop again
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Signal {
    event: Arc<OwnedFd>,
}

impl Signal {
    /// Creates a signal that is not raised.
    ///
    /// # Errors
    /// `Io`: the system gave no descriptor.
    pub fn new() -> Result<Self> {
        match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
            Ok(event) => Ok(Self { event: Arc::new(event) }),
            Err(e) => Err(Error::new(ErrorKind::Io, format!("cannot make an eventfd: {e}"))),
        }
    }

    /// Makes the descriptor readable. Never blocks; raising it twice is harmless.
    pub fn raise(&self) {
        // Fails only after 2^64 raises without a lower.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor not readable. Never blocks.
    pub fn lower(&self) {
        // Fails only if it is not raised.
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
    fn signal_is_raised_and_lowered() {
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
