//! Payload: the content of one append. A record or a batch for a log; a record or an unfinished batch for a session.

use crate::record::batch::{Batch, BatchBuilder};
use crate::sync::completion::{Appended, TicketValue};
use crate::types::Index;

/// The content of one append to a [`Log`](crate::Log): a record (`b"bytes"`, `&vec`, `"text"`) or a [`&Batch`](Batch).
/// Only chiplog implements it.
///
/// ```
/// use chiplog::{BatchBuilder, Log, Options};
/// let dir = tempfile::tempdir()?;
/// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
/// let index = log.append("a record")?;
/// let batch = log.append(&BatchBuilder::new().push(b"two")?.push(b"three")?.build()?)?;
/// assert_eq!((batch.first, batch.count), (index.next(), 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Payload: sealed::Contents {
    /// The result of the append: the [`Index`] of a record, the [`Appended`] indexes of a batch.
    type Output: TicketValue;
}

/// The content of one append of a [`Session`](crate::Session): a record, or a [`&mut BatchBuilder`](BatchBuilder), whose
/// batch the session numbers and builds. Only chiplog implements it.
pub trait SessionPayload: sealed::Unnumbered {
    /// The result of the append: the [`Index`] of a record, the [`Appended`] indexes of a batch.
    type Output: TicketValue;
}

impl<T: AsRef<[u8]> + ?Sized> Payload for &T {
    type Output = Index;
}

impl Payload for &Batch {
    type Output = Appended;
}

impl<T: AsRef<[u8]> + ?Sized> SessionPayload for &T {
    type Output = Index;
}

impl SessionPayload for &mut BatchBuilder {
    type Output = Appended;
}

/// The payload as the log sees it.
#[derive(Debug)]
pub enum Content<'a> {
    Record(&'a [u8]),
    Batch(&'a Batch),
}

/// The payload as a session sees it.
#[derive(Debug)]
pub enum SessionContent<'a> {
    Record(&'a [u8]),
    Batch(&'a mut BatchBuilder),
}

mod sealed {
    use super::*;

    pub trait Contents {
        fn content(&self) -> Content<'_>;
    }

    pub trait Unnumbered {
        fn content(&mut self) -> SessionContent<'_>;
    }

    impl<T: AsRef<[u8]> + ?Sized> Contents for &T {
        fn content(&self) -> Content<'_> {
            Content::Record((**self).as_ref())
        }
    }

    impl Contents for &Batch {
        fn content(&self) -> Content<'_> {
            Content::Batch(self)
        }
    }

    impl<T: AsRef<[u8]> + ?Sized> Unnumbered for &T {
        fn content(&mut self) -> SessionContent<'_> {
            SessionContent::Record((**self).as_ref())
        }
    }

    impl Unnumbered for &mut BatchBuilder {
        fn content(&mut self) -> SessionContent<'_> {
            SessionContent::Batch(self)
        }
    }
}
