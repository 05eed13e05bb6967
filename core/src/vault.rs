//! Vault: the interface to an object store, in which a log keeps objects: copies of stretches of its entries.
//!
//! ```text
//! PREFIX/<log id>/root                            which log this is
//!                 o/00000000000000000000          the objects, numbered from 0
//! ```
//!
//! Implementations know names and bytes, and nothing of logs. They are called on threads of their own, never on a thread
//! that writes the log. The bytes that a vault returns are checked like those from a disk before anything is done with them.
//!
//! Must not know: segments, entries.

use crate::error::Result;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;

/// An object store, or a part of one: named objects of bytes, each written and replaced as a whole.
///
/// Calls block, also for the network, and can be made from several threads at a time. They end: an implementation has
/// time-outs, and tries again by itself what is worth it. A name is 1 to 512 of the characters `a-z 0-9 . _ - /`, without an
/// empty part between slashes.
///
/// # Errors
/// All calls:
///
/// - [`Unavailable`](crate::ErrorKind::Unavailable): the store did not answer in time, or is overloaded; what was to be
///   written may be there. Worth another attempt.
/// - [`PermissionDenied`](crate::ErrorKind::PermissionDenied): the store refuses these credentials.
/// - [`InvalidArgument`](crate::ErrorKind::InvalidArgument): an impossible name or range.
/// - [`Io`](crate::ErrorKind::Io): anything else.
///
/// ```
/// use bytes::Bytes;
/// use chiplog::vault::{MemoryVault, Vault};
/// let vault = MemoryVault::default();
/// vault.put("o/7", &[Bytes::from_static(b"seven ")][..])?;
/// assert_eq!(vault.get("o/7", 0..5)?, &b"seven"[..]);
/// assert_eq!(vault.size("o/8")?, None);
/// # Ok::<(), chiplog::Error>(())
/// ```
pub trait Vault: fmt::Debug + Send + Sync {
    /// Stores an object whose bytes are these pieces, back to back, and replaces one of that name. When it returns, the
    /// object is durable, and every reader gets it as a whole.
    fn put(&self, name: &str, pieces: &[Bytes]) -> Result<()>;

    /// Stores an object unless there is one of that name. False: there is one, and it stays as it is.
    fn create(&self, name: &str, bytes: Bytes) -> Result<bool>;

    /// Returns exactly these bytes of an object.
    ///
    /// # Errors
    /// Also [`NotFound`](crate::ErrorKind::NotFound): there is no such object;
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange): it ends before the range does.
    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes>;

    /// The size of an object in bytes; None if there is no such object.
    fn size(&self, name: &str) -> Result<Option<u64>>;

    /// The objects whose names begin with `prefix`, which is empty or ends with a slash; in the order of their names.
    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>>;

    /// Removes an object. Succeeds if there is none.
    fn delete(&self, name: &str) -> Result<()>;
}

/// An object that [`Vault::list`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectInfo {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
}

impl ObjectInfo {
    /// An object of this name and size, for implementations of [`Vault`].
    pub fn new(name: impl Into<String>, bytes: u64) -> Self {
        Self { name: name.into(), bytes }
    }
}

mod memory;

pub use memory::MemoryVault;
