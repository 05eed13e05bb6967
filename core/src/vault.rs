//! Vault: the interface to an object store, in which a log keeps objects: copies of stretches of its entries.
//!
//! ```text
//! PREFIX/<log id>/root                            which log this is
//!                 o/00000000000000000000          the objects, numbered from 0
//!                 p/00000000000000000001.00000000000000000001   payload slices, by term and number
//!                 begin/00000000000000000000      the records of all objects below this number are discarded
//!                 s/FIRST.LAST.TERM               slices: the newest entries, until an object has them
//!                 pin/before-upgrade              keeps objects from deletion
//!                 named                           which logs have the named logs of a cluster's servers
//! ```
//!
//! Implementations know names and bytes, and nothing of logs. They are called on threads of their own, never on a thread
//! that writes the log. The bytes that a vault returns are checked like those from a disk before anything is done with them.
//!
//! Must not know: segments, entries.

use crate::error::{Error, ErrorKind, Result};
use crate::types::Timestamp;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;

/// An object store, or a part of one: named objects of bytes, each written and replaced as a whole.
///
/// Calls block, also for the network, and can be made from several threads at a time. They end: an implementation has
/// time-outs, and tries again by itself what is worth it. A name is 1 to 512 of the characters `a-z 0-9 . _ - /`, with no part
/// between slashes that is empty, `.`, `..` or longer than 200: see [`check_name`]. No name continues another one after a slash:
/// with an object `o/7` there is none `o/7/a`, because a directory cannot keep both.
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

    /// Stores an object unless there is one of that name. False: there is one, and it stays as it is. An implementation may
    /// also return true for an object that has exactly these bytes: after a lost answer it cannot know whose they are. Two
    /// callers that must not both get true store different bytes.
    fn create(&self, name: &str, bytes: Bytes) -> Result<bool>;

    /// As [`Self::create`], of an object whose bytes are these pieces, back to back. By default they are copied into one: an
    /// implementation that takes pieces spares the memory.
    fn create_of(&self, name: &str, pieces: &[Bytes]) -> Result<bool> {
        self.create(name, pieces.concat().into())
    }

    /// Returns exactly these bytes of an object.
    ///
    /// # Errors
    /// Also [`NotFound`](crate::ErrorKind::NotFound): there is no such object;
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange): it ends before the range does.
    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes>;

    /// Passes exactly these bytes of an object to `take`, piece by piece in their order, as they arrive. By default as one piece.
    ///
    /// # Errors
    /// Those of [`Self::get`], also after some pieces; and those of `take`, after which it is not called again.
    fn get_pieces(
        &self,
        name: &str,
        range: Range<u64>,
        take: &mut dyn FnMut(Bytes) -> Result<()>,
    ) -> Result<()> {
        take(self.get(name, range)?)
    }

    /// The size of an object in bytes; None if there is no such object.
    fn size(&self, name: &str) -> Result<Option<u64>>;

    /// The objects whose names begin with `prefix`, which is empty or ends with a slash; in the order of their names.
    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>>;

    /// When an object was written, by the store's clock; None if there is no such object, or the store does not say.
    fn modified(&self, name: &str) -> Result<Option<Timestamp>> {
        check_name(name)?;
        Ok(None)
    }

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

/// Checks an object's name. For implementations of [`Vault`].
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument): no object can have this name.
///
/// ```
/// use chiplog::vault::check_name;
/// assert!(check_name("o/00000000000000000007").is_ok());
/// assert!(check_name("o/../root").is_err());
/// ```
pub fn check_name(name: &str) -> Result<()> {
    let is_usable = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'/');
    let wrong = if name.is_empty() || name.len() > NAME_BYTES_MAX {
        format!("it has {} bytes, and may have 1 to {NAME_BYTES_MAX}", name.len())
    } else if !name.bytes().all(is_usable) {
        "it may have the characters a-z 0-9 . _ - / only".to_owned()
    } else if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        "a part between its slashes is empty, . or ..".to_owned()
    } else if name.split('/').any(|part| part.len() > NAME_PART_BYTES_MAX) {
        format!("a part between its slashes has more than {NAME_PART_BYTES_MAX} bytes")
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidArgument, format!("{name:?} is no name of an object: {wrong}")))
}

/// Checks a prefix of [`Vault::list`]. For implementations of [`Vault`].
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument): it is not empty and does not end with a slash, or no name can
/// begin with it.
pub fn check_prefix(prefix: &str) -> Result<()> {
    match prefix.strip_suffix('/') {
        Some(folder) => check_name(folder),
        None if prefix.is_empty() => Ok(()),
        None => {
            let what = format!("the prefix {prefix:?} of objects must be empty or end with a slash");
            Err(Error::new(ErrorKind::InvalidArgument, what))
        }
    }
}

/// Checks a range of [`Vault::get`]. For implementations of [`Vault`].
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument): it ends before it begins.
pub fn check_range(name: &str, range: &Range<u64>) -> Result<()> {
    if range.start > range.end {
        let what = format!("the range {range:?} of object {name} ends before it begins");
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    Ok(())
}

/// The length of the longest name.
pub const NAME_BYTES_MAX: usize = 512;

/// The length of the longest part of a name between slashes. A file's name has up to 255 bytes, and some stores keep a file for
/// their own use beside it.
pub const NAME_PART_BYTES_MAX: usize = 200;

#[cfg(any(test, feature = "testing"))]
mod conformance;
#[cfg(any(test, feature = "testing"))]
mod faulty;
#[cfg(any(test, feature = "testing"))]
mod hooked;
mod memory;

#[cfg(any(test, feature = "testing"))]
pub use conformance::check_conformance;
#[cfg(any(test, feature = "testing"))]
pub use faulty::{FaultCounts, FaultOptions, FaultyVault};
#[cfg(any(test, feature = "testing"))]
pub use hooked::{HookedVault, pass_on};
pub use memory::MemoryVault;
