//! Store access: requests to the object store of a log, for calls that read objects through this server.
//!
//! ```text
//! call ── a place among the requests ── memory ──> Vault::get, up to 4 MiB, on a thread that may block ──> pieces of 256 KiB
//! ```
//!
//! Invariants:
//! - A call takes memory only once it has a place, and places are few: a slow store holds little of the memory for answers. It holds no
//!   turn at the disk. So it delays nobody who reads files.
//! - A request to the store that nobody waits for any more keeps its place and its memory until it ends.
//!
//! Must not know: what is in an object, which names a caller may use.

use crate::listener::auth::tokens::{Payer, Resource, Share};
use crate::served::log_slot::{LogSlot, status_of};
use crate::service::zero_copy::{Memory, ahead, settle};
use bytes::Bytes;
use chiplog::vault::Vault;
use chiplog::{Error, ErrorKind, Log};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Status;

/// The most bytes of one request to the store: as many as a copy's cache fetches at a time.
pub(crate) const READ_BYTES_MAX: u64 = 4 << 20;
/// The bytes of a piece. A client sees by each piece that bytes still arrive: over a slow connection a larger one takes long.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
/// How long a call waits for a place and memory before it is answered; and for memory with a place, which others want, too.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long it waits once its answer has begun. Its client did nothing wrong, and a download that starts over makes a queue longer.
const BEGUN_WAIT_MAX: Duration = Duration::from_secs(60);

/// How far the answer of a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The call can still be answered with an error.
    New,
    /// An error breaks the answer off.
    Begun,
}

/// The object store of one log, for one call.
pub(crate) struct StoreAccess {
    host: Arc<LogSlot>,
    log: Log,
    vault: Arc<dyn Vault>,
    payer: Arc<Payer>,
}

impl StoreAccess {
    /// The store of a log, for a call that this payer pays for.
    ///
    /// # Errors
    /// UNIMPLEMENTED: there is no object store here.
    pub(crate) fn new(host: Arc<LogSlot>, log: Log, payer: Arc<Payer>) -> Result<Self, Status> {
        let fail = |what: &str| Err(status_of(&log, &Error::new(ErrorKind::Unsupported, what)));
        if host.reads_through_servers() {
            return fail(
                "this copy reads objects through servers itself: ask them, or give it the object store",
            );
        }
        let Some(vault) = log.options().vault.clone() else {
            return fail(
                "this server has no object store: ask another one, or give the copy the store itself",
            );
        };
        Ok(Self { host, log, vault, payer })
    }

    pub(crate) fn payer(&self) -> &Arc<Payer> {
        &self.payer
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    pub(crate) fn status(&self, error: &Error) -> Status {
        status_of(&self.log, error)
    }

    /// Waits for a place among the requests to the store, and then for memory. Without memory the place is given to others.
    async fn place(&self, stage: Stage, bytes: usize) -> Result<(Share, Share), Status> {
        let end = Instant::now()
            + match stage {
                Stage::New => WAIT_MAX,
                Stage::Begun => BEGUN_WAIT_MAX,
            };
        let waiting = async {
            loop {
                let place = self.payer.take(Resource::Objects, 1).await;
                if let Ok(memory) = timeout(WAIT_MAX, ahead(&self.payer, bytes)).await {
                    return (place, memory);
                }
            }
        };
        tokio::select! {
            waited = timeout_at(end, waiting) => waited.map_err(|_| {
                let what =
                    "too many requests to the object store are under way here; ask another server, or later";
                self.status(&Error::new(ErrorKind::Busy, what))
            }),
            () = self.host.drained() => Err(self.status(&gone())),
        }
    }

    /// Makes one request to the store, whose answer has up to this number of bytes. Returns the memory with it.
    ///
    /// # Errors
    /// Those of the work, and of [`Self::read`].
    pub(crate) async fn request<T: Send + 'static>(
        &self,
        stage: Stage,
        bytes: usize,
        work: impl FnOnce(&dyn Vault) -> chiplog::Result<T> + Send + 'static,
    ) -> Result<(T, Share), Status> {
        if self.host.is_draining() {
            return Err(self.status(&gone()));
        }
        let (place, memory) = self.place(stage, bytes).await?;
        let vault = self.vault.clone();
        let working = spawn_blocking(move || {
            let done = work(&*vault);
            drop(place);
            (done, memory)
        });
        match working.await {
            Ok((done, memory)) => done.map(|done| (done, memory)).map_err(|error| self.status(&error)),
            Err(_) => Err(self.status(&gone())),
        }
    }

    /// Reads these bytes of an object, which are at most [`READ_BYTES_MAX`]. Returns the memory with them.
    ///
    /// # Errors
    /// Those of [`Vault::get`]. RESOURCE_EXHAUSTED: there are too many requests. UNAVAILABLE: the server is shutting down.
    pub(crate) async fn read(
        &self,
        stage: Stage,
        name: &str,
        range: Range<u64>,
    ) -> Result<(Bytes, Memory), Status> {
        let bytes = (range.end - range.start) as usize;
        let name = name.to_owned();
        let (read, memory) = self.request(stage, bytes, move |vault| vault.get(&name, range)).await?;
        // The vault returns exactly these bytes, so the share suffices.
        let memory = settle(memory, read.len()).unwrap_or_default();
        self.host.sent_of_objects(read.len());
        Ok((read, memory))
    }
}

/// Bytes that were read, in the pieces in which they are sent.
pub(crate) fn pieces(read: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    (0..read.len()).step_by(PIECE_BYTES).map(|at| read.slice(at..read.len().min(at + PIECE_BYTES)))
}

pub(crate) fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "this server is shutting down")
}
