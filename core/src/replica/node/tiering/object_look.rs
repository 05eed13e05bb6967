//! A look at an object in the object store: whether it is as the log says, to the last byte; and whose it is.
//!
//! ```text
//!   its error ──> NotFound, OutOfRange ──────────────────────────────────────> Wrong
//!            └──> Unavailable, Io ──> the root can be read: the store works ─> Unreadable ──(see `unreadable`)──> Wrong
//!                                └──> it cannot ──> the store's error: says nothing of the object
//! ```
//!
//! Invariants:
//! - an error counts as an object's own only if the object store answered for the log's root right after it;
//! - an object is nobody's only if its footer was read, and is not sound, or is not there: an error of reading it says nothing of whose it is.
//!
//! Must not know: who leads, who looks.

use super::object_root::check_usable;
use crate::error::{Error, ErrorKind, Result};
use crate::record::crc::Crc;
use crate::store::format::geometry::FOOTER_BYTES;
use crate::store::format::objects::StoredObject;
use crate::store::format::segment::Footer;
use crate::store::object_file::MadeObject;
use crate::store::objects::cache::CHUNK_BYTES;
use crate::store::objects::names::{object_name, salt};
use crate::types::LogId;
use crate::vault::Vault;
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};

/// An object in the object store.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectAt<'a> {
    pub(super) vault: &'a dyn Vault,
    /// The log whose root says whether the store works.
    pub(super) log: LogId,
    /// The log of which the object is: this one, or an ancestor.
    pub(super) owner: LogId,
    pub(super) number: u64,
}

/// The result.
#[derive(Debug)]
pub(super) enum Look {
    Sound,
    /// It is not as it was stored: the reason.
    Wrong(String),
    /// It could not be read, although the object store works. That may pass.
    Unreadable(Error),
    Interrupted,
}

/// The owner of an object, as its footer says.
#[derive(Debug)]
pub(super) enum Whose {
    /// There is none.
    Missing,
    /// Nobody's, as far as its end says: that was read and is no sound footer, or has gone meanwhile.
    Nobodys,
    Footer(Box<Footer>),
    /// The footer could not be read, although the object store works.
    Unreadable(Error),
}

impl Whose {
    /// Why it is not known whose the object is.
    pub(super) fn why(&self) -> String {
        match self {
            Self::Unreadable(error) => error.to_string(),
            Self::Nobodys => "its end is damaged".to_owned(),
            Self::Missing | Self::Footer(_) => String::new(),
        }
    }
}

impl ObjectAt<'_> {
    pub(super) fn name(&self) -> String {
        object_name(self.owner, self.number)
    }

    /// Reads the object, and compares its checksum. `gives_way`, once it is set, ends that early.
    ///
    /// # Errors
    /// Those of [`Vault::get`] that say nothing of the object.
    pub(super) fn look(&self, object: &StoredObject, gives_way: &AtomicBool) -> Result<Look> {
        let name = self.name();
        let looked = self.vault.size(&name).and_then(|size| match size {
            None => Ok(Look::Wrong("it is missing".to_owned())),
            Some(bytes) if bytes == u64::from(object.bytes) => self.read(&name, object, gives_way),
            Some(bytes) => Ok(Look::Wrong(format!("it has {bytes} bytes, and not {}", object.bytes))),
        });
        match looked {
            Err(error) if is_damage(&error) => Ok(Look::Wrong(error.to_string())),
            Err(error) => self.own(error).map(Look::Unreadable),
            looked => looked,
        }
    }

    /// Its size; or its own error.
    ///
    /// # Errors
    /// Those of [`Vault::size`] that say nothing of the object.
    pub(super) fn size(&self) -> Result<Result<Option<u64>>> {
        self.vault.size(&self.name()).map(Ok).or_else(|error| self.own(error).map(Err))
    }

    /// The same as [`Self::look`], and a second time if it is not sound: one bad answer decides nothing.
    pub(super) fn look_twice(&self, object: &StoredObject, gives_way: &AtomicBool) -> Result<Look> {
        match self.look(object, gives_way)? {
            Look::Wrong(_) | Look::Unreadable(_) => self.look(object, gives_way),
            first => Ok(first),
        }
    }

    fn read(&self, name: &str, object: &StoredObject, gives_way: &AtomicBool) -> Result<Look> {
        let (mut sum, mut at, bytes) = (Crc::new(), 0, u64::from(object.bytes));
        while at < bytes {
            if gives_way.load(Ordering::Relaxed) {
                return Ok(Look::Interrupted);
            }
            let end = (at + CHUNK_BYTES as u64).min(bytes);
            let got = self.vault.get(name, at..end)?;
            if got.len() as u64 != end - at {
                return Ok(Look::Wrong("it ends early".to_owned()));
            }
            (sum, at) = (sum.add(&got), end);
        }
        let wrong = || Look::Wrong("its bytes are others than those that were stored".to_owned());
        Ok(if sum.sum() == object.crc { Look::Sound } else { wrong() })
    }

    /// Reads the footer.
    ///
    /// # Errors
    /// Those of [`Vault::get`] that say nothing of the object.
    pub(super) fn whose(&self) -> Result<Whose> {
        let name = self.name();
        let footer = match self.vault.size(&name) {
            Ok(None) => return Ok(Whose::Missing),
            Ok(Some(bytes)) if bytes < FOOTER_BYTES as u64 => return Ok(Whose::Nobodys),
            Ok(Some(bytes)) => self.vault.get(&name, bytes - FOOTER_BYTES as u64..bytes),
            Err(error) => Err(error),
        };
        match footer {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Whose::Nobodys),
            Err(error) if planted!(170) && error.kind() == ErrorKind::Io => Ok(Whose::Nobodys),
            // It was cut off meanwhile: what it is now is not known.
            Err(error) if error.kind() == ErrorKind::OutOfRange => Ok(Whose::Unreadable(error)),
            Err(error) => self.own(error).map(Whose::Unreadable),
            Ok(footer) => {
                Ok(self.parse(&footer).map_or(Whose::Nobodys, |footer| Whose::Footer(Box::new(footer))))
            }
        }
    }

    /// The footer of this object in these bytes. None: it is not sound.
    fn parse(&self, footer: &[u8]) -> Option<Footer> {
        let footer = <[u8; FOOTER_BYTES]>::try_from(footer).ok()?;
        Footer::parse(&footer, self.number + 1, salt(self.owner, self.number)).ok()
    }

    /// Whether this is the footer of what was made.
    pub(super) fn is_footer_of(&self, footer: &Footer, made: &MadeObject) -> bool {
        made.pieces.last().and_then(|made| self.parse(made)).as_ref() == Some(footer)
    }

    /// Whether it may be this log's, as far as that can be seen: nothing that can be read of it, from its begin to the first error, is
    /// another than what was made. For an object that does not say whose it is. If its end could not be read, it has the same size, too; if
    /// that was read, and is no footer, it may be cut off.
    ///
    /// # Errors
    /// Those of [`Vault::get`] that say nothing of the object.
    pub(super) fn agrees_with(&self, made: &MadeObject, whose: &Whose) -> Result<bool> {
        let (name, mut bytes) = (self.name(), u64::from(made.object.bytes));
        let is_nobodys = matches!(whose, Whose::Nobodys);
        match self.vault.size(&name) {
            Err(error) if !is_damage(&error) => _ = self.own(error)?,
            Ok(Some(size)) if size != bytes && !is_nobodys => return Ok(false),
            // The footer is known to be damaged: that it is another says nothing.
            Ok(Some(size)) if size == bytes && is_nobodys => bytes -= FOOTER_BYTES as u64,
            Ok(Some(size)) => bytes = bytes.min(size),
            _ => {}
        }
        let mut made = Parts { pieces: &made.pieces, at: 0 };
        let mut at = 0;
        while at < bytes {
            let end = (at + CHUNK_BYTES as u64).min(bytes);
            match self.vault.get(&name, at..end) {
                Err(error) if is_damage(&error) => break,
                Err(error) => return self.own(error).map(|_| true),
                Ok(got) if !made.begin_with(&got) => return Ok(false),
                Ok(got) if got.len() as u64 != end - at => break,
                Ok(_) => at = end,
            }
        }
        Ok(true)
    }

    /// Returns this error if it is the object's own: the store can be used.
    ///
    /// # Errors
    /// It is not: the store's error.
    fn own(&self, error: Error) -> Result<Error> {
        if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Io) {
            return Err(error); // credentials, an impossible name: another attempt, or another object there, would change nothing
        }
        check_usable(self.vault, self.log).map(|()| error)
    }
}

/// Whether an error shows that an object is not as it was stored. `Io` does not: a store that has no descriptor left, or a mount that is
/// stale for a moment, answers that, too.
fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::OutOfRange)
}

/// The unit in which zeros stand for bytes that are lost.
const LOST_BYTES: usize = 4096;

/// The rest of some pieces.
struct Parts<'a> {
    pieces: &'a [Bytes],
    /// How much of the first one is gone.
    at: usize,
}

impl Parts<'_> {
    /// Takes as many bytes as these. Whether they are the same. Zeros say nothing: a file system that has lost a block returns these.
    fn begin_with(&mut self, bytes: &[u8]) -> bool {
        bytes.chunks(LOST_BYTES).all(|block| {
            let is_lost = block.iter().all(|byte| *byte == 0) && !planted!(176);
            self.take(block, is_lost)
        })
    }

    /// Takes as many bytes as these. Whether they are the same, or lost.
    fn take(&mut self, bytes: &[u8], is_lost: bool) -> bool {
        let mut bytes = bytes;
        while !bytes.is_empty() {
            let Some((piece, rest)) = self.pieces.split_first() else { return false };
            let left = &piece[self.at..];
            let length = left.len().min(bytes.len());
            if left[..length] != bytes[..length] && !is_lost {
                return false;
            }
            bytes = &bytes[length..];
            self.at += length;
            if self.at == piece.len() {
                (self.pieces, self.at) = (rest, 0);
            }
        }
        true
    }
}
