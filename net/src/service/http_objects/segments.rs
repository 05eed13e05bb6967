//! Segments: the file of a sealed segment, or a range of it, from the server's own disk.
//!
//! Invariants:
//! - The tag of an answer is the checksum of all bytes of the file, every block of which was checked for it. The bytes under one tag
//!   never change: a segment that is repaired, or is another one of the same number, has another tag.
//! - Bytes leave once their blocks are checked, again: an answer breaks off before damage.
//! - The file stays while it is sent, also if the log discards it meanwhile. The next request for it is answered with 404.
//! - The checksum of a file that was not summed before is computed in a place that rests: a HEAD request costs its client nothing.
//!
//! Must not know: what is in a block.

use super::Wanted;
use super::answer::{Origin, Whole};
use crate::listener::auth::methods::SEGMENTS;
use crate::listener::auth::tokens::Payer;
use crate::served::log_slot::{LogSlot, abandoned, status_of};
use crate::service::blocking_work::{run_blocking, run_paced};
use crate::service::store_access::{Stage, gone};
use crate::service::zero_copy::{Memory, ahead, settle};
use bytes::Bytes;
use chiplog::internal::SealedFile;
use chiplog::{Error, ErrorKind, Log};
use http::Response;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tonic::body::Body;
use tonic::{Code, Status};

/// How long a request waits for memory and its turn at the disk before it is answered.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// About how long a checksum is computed in one place, which rests afterwards.
const SUM_TIME: Duration = Duration::from_secs(1);
/// How long it waits once its answer has begun.
const BEGUN_WAIT_MAX: Duration = Duration::from_secs(60);

/// Answers a request for the file of a segment.
///
/// # Errors
/// NOT_FOUND: the log has no such segment. DATA_LOSS: it is damaged. RESOURCE_EXHAUSTED: there are too many requests. UNAVAILABLE: it is
/// being repaired, or the server is shutting down.
pub(super) async fn respond(
    host: Arc<LogSlot>,
    log: Log,
    wanted: Wanted<'_>,
    payer: Arc<Payer>,
) -> Result<Response<Body>, Status> {
    let Wanted { headers, is_head, number } = wanted;
    let access = Access { host, log, payer };
    let (file, crc32c) = access.open(number).await?;
    let whole = Whole { bytes: file.bytes(), crc32c };
    whole.respond(headers, is_head, FromDisk { access, file, crc32c }).await
}

/// The disk of one log, for one request.
struct Access {
    host: Arc<LogSlot>,
    log: Log,
    payer: Arc<Payer>,
}

impl Access {
    /// Opens the file of a segment. Returns its checksum, too.
    async fn open(&self, number: u64) -> Result<(Arc<SealedFile>, u32), Status> {
        let log = self.log.clone();
        let opening = run_blocking(&self.payer, move || log.sealed_segment(number));
        let opened = self.wait(Stage::New, opening).await?.map_err(|_| abandoned())?;
        let file = opened.map_err(|error| self.status(&error))?.ok_or_else(|| self.missing(number))?;
        let file = Arc::new(file);
        if let Some(sum) = file.known_sum() {
            return Ok((file, sum));
        }
        let summed = self.wait(Stage::New, self.sum(&file)).await;
        let sum = summed.map_err(|status| match status.code() {
            Code::ResourceExhausted => {
                let what = "the checksum of this file is still being computed; ask here again";
                self.status(&Error::new(ErrorKind::Busy, what))
            }
            _ => status,
        })?;
        Ok((file, sum?))
    }

    /// Computes the checksum of a file, step by step: each takes a place, and leaves it to others. The next request for the file goes on
    /// where this one gives up.
    async fn sum(&self, file: &Arc<SealedFile>) -> Result<u32, Status> {
        loop {
            let file = file.clone();
            let steps = move || {
                let begun = Instant::now();
                loop {
                    let summed = file.sum_next();
                    if !matches!(summed, Ok(None)) || begun.elapsed() > SUM_TIME {
                        return summed;
                    }
                }
            };
            let summed = run_paced(&self.payer, steps).await.map_err(|_| abandoned())?;
            if let Some(sum) = summed.map_err(|error| self.status(&error))? {
                return Ok(sum);
            }
        }
    }

    /// Waits for work at the disk.
    async fn wait<T>(&self, stage: Stage, work: impl Future<Output = T>) -> Result<T, Status> {
        if self.host.is_draining() {
            return Err(self.status(&gone()));
        }
        let longest = match stage {
            Stage::New => WAIT_MAX,
            Stage::Begun => BEGUN_WAIT_MAX,
        };
        tokio::select! {
            done = timeout(longest, work) => done.map_err(|_| {
                let what = "too many requests are under way here; ask another server, or later";
                self.status(&Error::new(ErrorKind::Busy, what))
            }),
            () = self.host.drained() => Err(self.status(&gone())),
        }
    }

    fn status(&self, error: &Error) -> Status {
        status_of(&self.log, error)
    }

    /// The status of a request for a segment that the log does not have.
    fn missing(&self, number: u64) -> Status {
        let what = format!(
            "log {:032x} has no sealed segment {number}: it is not there yet, still written, or all its records are discarded; GET {SEGMENTS} \
             lists those there are",
            self.log.log_id().get()
        );
        self.status(&Error::new(ErrorKind::NotFound, what))
    }
}

/// A file of a segment.
struct FromDisk {
    access: Access,
    file: Arc<SealedFile>,
    crc32c: u32,
}

impl Origin for FromDisk {
    /// Memory comes before the turn at the disk, as for all readers.
    async fn read(&self, stage: Stage, range: Range<u64>) -> Result<(Bytes, Memory), Status> {
        let count = (range.end - range.start) as usize;
        let (file, payer) = (self.file.clone(), self.access.payer.clone());
        let working = async move {
            let memory = ahead(&payer, count).await;
            run_blocking(&payer, move || (file.read(range), memory)).await
        };
        let done = self.access.wait(stage, working).await?;
        let (read, memory) = done.map_err(|_| abandoned())?;
        let read = Bytes::from(read.map_err(|error| self.failed(&error))?);
        // These are exactly as many bytes, so the share suffices.
        let memory = settle(memory, read.len()).unwrap_or_default();
        self.access.host.sent_of_segments(read.len());
        Ok((read, memory))
    }

    fn differs(&self, sum: u32) -> Status {
        let what = format!(
            "the file has another checksum, {sum:08x}, than when it was read before, {:08x}: it was changed",
            self.crc32c
        );
        self.failed(&Error::new(ErrorKind::Corrupt, what))
    }
}

impl FromDisk {
    fn failed(&self, error: &Error) -> Status {
        tracing::warn!(%error, "a segment that was read over HTTP cannot be sent");
        self.access.status(error)
    }
}
