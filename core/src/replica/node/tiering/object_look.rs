//! A look at an object in the object store: whether it is as the log says, to the last byte.
//!
//! Must not know: who leads, who looks.

use crate::error::{ErrorKind, Result};
use crate::record::crc::Crc;
use crate::store::format::objects::StoredObject;
use crate::store::objects::cache::CHUNK_BYTES;
use crate::vault::Vault;
use std::sync::atomic::{AtomicBool, Ordering};

/// The result.
#[derive(Debug)]
pub(super) enum Look {
    Sound,
    /// It is not as it was stored: the reason.
    Wrong(String),
    Interrupted,
}

/// Reads an object, and compares its checksum. `gives_way`, once it is set, ends that early.
///
/// # Errors
/// Those of [`Vault::get`] that say nothing of the object.
pub(super) fn look(
    vault: &dyn Vault,
    name: &str,
    object: &StoredObject,
    gives_way: &AtomicBool,
) -> Result<Look> {
    let looked = vault.size(name).and_then(|size| match size {
        None => Ok(Look::Wrong("it is missing".to_owned())),
        Some(bytes) if bytes == u64::from(object.bytes) => read(vault, name, object, gives_way),
        Some(bytes) => Ok(Look::Wrong(format!("it has {bytes} bytes"))),
    });
    match looked {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::OutOfRange | ErrorKind::Io) => {
            Ok(Look::Wrong(error.to_string()))
        }
        looked => looked,
    }
}

fn read(vault: &dyn Vault, name: &str, object: &StoredObject, gives_way: &AtomicBool) -> Result<Look> {
    let (mut sum, mut at, bytes) = (Crc::new(), 0, u64::from(object.bytes));
    while at < bytes {
        if gives_way.load(Ordering::Relaxed) {
            return Ok(Look::Interrupted);
        }
        let end = (at + CHUNK_BYTES as u64).min(bytes);
        let got = vault.get(name, at..end)?;
        if got.len() as u64 != end - at {
            return Ok(Look::Wrong("it ends early".to_owned()));
        }
        (sum, at) = (sum.add(&got), end);
    }
    let wrong = || Look::Wrong("its bytes are others than those that were stored".to_owned());
    Ok(if sum.sum() == object.crc { Look::Sound } else { wrong() })
}
