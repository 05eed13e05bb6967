//! Objects: an object, or a range of it, from the store.
//!
//! Invariants:
//! - The checksum of an answer is the one that the log has. A range is passed on as the store returned it, unless it is all of the object:
//!   its reader has the checksum of the whole.
//! - An object that the log has and the store has not is lost, which is no 404: that is the answer about an object that the log does not
//!   have.
//!
//! Must not know: what is in an object.

use super::Wanted;
use super::answer::{Origin, Whole};
use crate::listener::auth::methods::OBJECTS;
use crate::listener::auth::tokens::Payer;
use crate::served::log_slot::{LogSlot, status_of};
use crate::service::store_access::{Stage, StoreAccess};
use crate::service::zero_copy::Memory;
use crate::wire::status::from_status;
use bytes::Bytes;
use chiplog::internal::LogObject;
use chiplog::{Error, ErrorKind, Log};
use http::Response;
use std::ops::Range;
use std::sync::Arc;
use tonic::Status;
use tonic::body::Body;

/// Answers a request for an object of a log.
///
/// # Errors
/// NOT_FOUND: the log has no such object. DATA_LOSS: it is damaged or lost in the store. UNIMPLEMENTED: there is no object store
/// here. RESOURCE_EXHAUSTED: there are too many requests. Those of the store, and of another object than the log's.
pub(super) async fn respond(
    host: Arc<LogSlot>,
    log: Log,
    wanted: Wanted<'_>,
    payer: Arc<Payer>,
) -> Result<Response<Body>, Status> {
    let Wanted { headers, is_head, number } = wanted;
    if !log.has_stored_object(number) {
        return Err(missing(&log, number));
    }
    let access = StoreAccess::new(host, log, payer)?;
    // Its row can be in the object store alone.
    let found = access.places().objects(Stage::New, number, 1).await?;
    let object = found.into_iter().find(|object| object.number == number);
    let object = object.ok_or_else(|| missing(access.log(), number))?;
    let whole = Whole { bytes: object.bytes, crc32c: object.crc32c };
    let origin = FromStore { access, object };
    whole.respond(headers, is_head, origin).await
}

/// An object in the store.
struct FromStore {
    access: StoreAccess,
    object: LogObject,
}

impl Origin for FromStore {
    async fn read(&self, stage: Stage, range: Range<u64>) -> Result<(Bytes, Memory), Status> {
        self.access.read(stage, &self.object.name, range).await.map_err(|status| self.of_store(status))
    }

    fn differs(&self, sum: u32) -> Status {
        let LogObject { name, crc32c, .. } = &self.object;
        let what = format!(
            "object {name} is damaged in the object store: its checksum is {sum:08x}, and that of the log's object {crc32c:08x}; a \
             replica with its records repairs it, or read the records from the log"
        );
        tracing::warn!(name, "an object that was read over HTTP is damaged in the object store");
        self.access.status(&Error::new(ErrorKind::Corrupt, what))
    }
}

impl FromStore {
    /// The status of a failed request to the store. The caller's token is not what the store refuses, and an object that the log
    /// still has is not one that there is not.
    fn of_store(&self, status: Status) -> Status {
        let error = from_status(&status);
        let LogObject { number, name, .. } = &self.object;
        let (kind, what) = match error.kind() {
            ErrorKind::PermissionDenied => {
                (ErrorKind::Unavailable, format!("the object store refuses this server: {error}"))
            }
            ErrorKind::NotFound | ErrorKind::OutOfRange if self.access.log().has_stored_object(*number) => {
                tracing::warn!(name, %error, "an object that was read over HTTP is lost or cut off in the object store");
                let what = format!(
                    "object {name} is lost or cut off in the object store: {error}; a replica with its records repairs it, or read the \
                     records from the log"
                );
                (ErrorKind::Corrupt, what)
            }
            ErrorKind::NotFound | ErrorKind::OutOfRange => return missing(self.access.log(), *number),
            _ => return status,
        };
        self.access.status(&Error::new(kind, what))
    }
}

/// The status of a request for an object that the log does not have.
fn missing(log: &Log, number: u64) -> Status {
    let what = format!(
        "log {:032x} has no stored object {number}: it is not stored yet, or all its records are discarded; GET {OBJECTS} lists those \
         there are",
        log.log_id().get()
    );
    status_of(log, &Error::new(ErrorKind::NotFound, what))
}
