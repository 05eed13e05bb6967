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
use chiplog::internal::LogObject;
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

/// The memory for rows of a log's older objects, and for a list of them: a run of rows is smaller.
pub(crate) const ROWS_BYTES: usize = 256 << 10;

/// Places among the requests to the object store of one log, for one call.
pub(crate) struct StorePlaces {
    host: Arc<LogSlot>,
    log: Log,
    payer: Arc<Payer>,
}

/// The object store of one log, for one call.
pub(crate) struct StoreAccess {
    places: StorePlaces,
    vault: Arc<dyn Vault>,
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
        Ok(Self { places: StorePlaces::new(host, log, payer), vault })
    }

    pub(crate) fn payer(&self) -> &Arc<Payer> {
        &self.places.payer
    }

    pub(crate) fn log(&self) -> &Log {
        &self.places.log
    }

    pub(crate) fn places(&self) -> &StorePlaces {
        &self.places
    }

    pub(crate) fn status(&self, error: &Error) -> Status {
        self.places.status(error)
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
        let vault = self.vault.clone();
        self.places.request(stage, bytes, move || work(&*vault)).await
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
        self.places.host.sent_of_objects(read.len());
        Ok((read, memory))
    }
}

impl StorePlaces {
    /// Places for a call that this payer pays for.
    pub(crate) fn new(host: Arc<LogSlot>, log: Log, payer: Arc<Payer>) -> Self {
        Self { host, log, payer }
    }

    fn status(&self, error: &Error) -> Status {
        status_of(&self.log, error)
    }

    /// Up to `count` objects of the log from this number on. The store is asked only for rows that are not in memory.
    ///
    /// # Errors
    /// Those of [`Log::stored_objects`]. RESOURCE_EXHAUSTED: there are too many requests. UNAVAILABLE: the server is shutting down.
    pub(crate) async fn objects(
        &self,
        stage: Stage,
        number: u64,
        count: usize,
    ) -> Result<Vec<LogObject>, Status> {
        if let Some(known) = self.log.known_objects(number, count) {
            return Ok(known);
        }
        let log = self.log.clone();
        let reading = move || {
            log.stored_objects(number, count).map_err(|error| match error.kind() {
                // The caller's token is not what the store refuses.
                ErrorKind::PermissionDenied => {
                    let what = format!("the object store refuses this server: {error}");
                    Error::new(ErrorKind::Unavailable, what)
                }
                _ => error,
            })
        };
        self.request(stage, ROWS_BYTES, reading).await.map(|(objects, _)| objects)
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
    /// Those of the work. RESOURCE_EXHAUSTED: there are too many requests. UNAVAILABLE: the server is shutting down.
    async fn request<T: Send + 'static>(
        &self,
        stage: Stage,
        bytes: usize,
        work: impl FnOnce() -> chiplog::Result<T> + Send + 'static,
    ) -> Result<(T, Share), Status> {
        if self.host.is_draining() {
            return Err(self.status(&gone()));
        }
        let (place, memory) = self.place(stage, bytes).await?;
        let working = spawn_blocking(move || {
            let done = work();
            drop(place);
            (done, memory)
        });
        match working.await {
            Ok((done, memory)) => done.map(|done| (done, memory)).map_err(|error| self.status(&error)),
            Err(_) => Err(self.status(&gone())),
        }
    }
}

/// Bytes that were read, in the pieces in which they are sent.
pub(crate) fn pieces(read: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    (0..read.len()).step_by(PIECE_BYTES).map(|at| read.slice(at..read.len().min(at + PIECE_BYTES)))
}

pub(crate) fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "this server is shutting down")
}
