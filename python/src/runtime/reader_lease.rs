//! Reader lease: holds a reader's source between calls. A call that reads takes the source and puts it back.
//!
//! Invariants:
//! - One call reads at a time; none holds a lock while it waits for records.
//! - Closing wakes waiting calls. A source that is taken is dropped when it is put back.

use crate::runtime::close_flag::CloseFlag;
use crate::runtime::fork;
use crate::runtime::prefetch::Prefetch;
use chiplog::internal::ForkGuard;
use chiplog::{Error, ErrorKind, Index, RecordBatch, Result};
use chiplog_net::client::RemoteReader;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;

/// The source of a reader.
pub(crate) enum Source {
    /// Local files, and whether a reader waits at the end.
    Local(Box<Prefetch>, bool),
    /// Servers.
    Remote(Box<RemoteReader>),
}

impl Source {
    /// Index of the next record, if known.
    pub(crate) fn position(&self) -> Option<Index> {
        match self {
            Self::Local(reader, _) => reader.position(),
            Self::Remote(reader) => reader.position(),
        }
    }

    pub(crate) fn seek(&mut self, index: Index) -> Result<()> {
        match self {
            Self::Local(reader, _) => reader.seek(index),
            Self::Remote(reader) => {
                reader.seek(chiplog::Start::Index(index));
                Ok(())
            }
        }
    }

    /// The next batch, if it is known without waiting whether there is one.
    pub(crate) fn next_now(&mut self) -> Option<Result<Option<RecordBatch>>> {
        match self {
            Self::Local(reader, follow) => match reader.next_batch() {
                Ok(None) if *follow => None,
                known => Some(known),
            },
            Self::Remote(_) => None,
        }
    }

    /// The caller is not told of the error of the last [`next_now`](Self::next_now): it is met again, and allows no skip.
    pub(crate) fn forget_error(&mut self) {
        if let Self::Local(reader, _) = self {
            reader.forget_error();
        }
    }

    /// Skips an undecodable batch. Returns the next record; None: it is not known yet.
    async fn skip_batch(&mut self) -> Result<Option<Index>> {
        match self {
            Self::Local(reader, _) => reader.skip_batch().map(Some),
            Self::Remote(reader) => reader.skip_batch().await,
        }
    }

    /// The next batch; None at the end if it does not follow. It can be cancelled without losing records.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(known) = self.next_now() {
                return known;
            }
            match self {
                Self::Local(reader, _) => poll_fn(|context| reader.poll_more(context)).await?,
                Self::Remote(reader) => return reader.next_batch().await,
            }
        }
    }
}

/// A source and its lease.
pub(crate) struct SharedSource {
    slot: Mutex<Slot>,
    back: Condvar,
    close_flag: Arc<CloseFlag>,
    guard: Arc<ForkGuard>,
    /// The runtime in which the source must be polled.
    pub(crate) runtime: Option<Handle>,
}

struct Slot {
    /// None: it is taken, or was closed.
    source: Option<Source>,
}

impl SharedSource {
    pub(crate) fn new(source: Source, runtime: Option<Handle>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            slot: Mutex::new(Slot { source: Some(source) }),
            back: Condvar::new(),
            close_flag: CloseFlag::of("reader"),
            guard: fork::guard()?,
            runtime,
        }))
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the source; waits for it up to `patience`.
    ///
    /// # Errors
    /// `Timeout`: another call has it. `Closed`, `Forked`.
    pub(crate) fn take(self: &Arc<Self>, patience: Duration) -> Result<Lease> {
        fork::check(&self.guard)?;
        let wait = |slot: &mut Slot| slot.source.is_none() && !self.close_flag.is_closed();
        let (mut slot, _) =
            self.back.wait_timeout_while(self.slot(), patience, wait).unwrap_or_else(PoisonError::into_inner);
        self.close_flag.check()?;
        match slot.source.take() {
            Some(source) => Ok(Lease { shared: self.clone(), source: Some(source) }),
            None => Err(Error::new(ErrorKind::Timeout, "another thread reads")),
        }
    }

    /// Index of the next record of the source, if it is known and the source is not taken.
    pub(crate) fn position(&self) -> Option<Index> {
        self.slot().source.as_ref()?.position()
    }

    /// The server that it reads from, if there is one and the source is not taken.
    pub(crate) fn server(&self) -> Option<String> {
        match self.slot().source.as_ref()? {
            Source::Local(..) => None,
            Source::Remote(reader) => reader.server().map(str::to_owned),
        }
    }

    /// Closes the source; waiting calls return `Closed`.
    pub(crate) fn close(&self) {
        self.close_flag.close();
        let source = self.slot().source.take();
        self.back.notify_all();
        if !self.guard.is_child() {
            drop(source);
        } else {
            std::mem::forget(source);
        }
    }
}

impl Drop for SharedSource {
    fn drop(&mut self) {
        if self.guard.is_child() {
            std::mem::forget(self.slot().source.take());
        }
    }
}

/// A source that was taken. It is put back when dropped.
pub(crate) struct Lease {
    shared: Arc<SharedSource>,
    /// None: it is being dropped.
    source: Option<Source>,
}

impl Lease {
    /// # Errors
    /// Never in fact: it has its source until it is dropped.
    pub(crate) fn source(&mut self) -> Result<&mut Source> {
        self.source.as_mut().ok_or_else(|| self.shared.close_flag.error())
    }

    /// The next batch or an error; `Closed` if the reader is closed meanwhile.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let close_flag = &self.shared.close_flag;
        let source = self.source.as_mut().ok_or_else(|| close_flag.error())?;
        close_flag.or(source.next()).await
    }

    /// Skips an undecodable batch; `Closed` if the reader is closed meanwhile.
    pub(crate) async fn skip_batch(&mut self) -> Result<Option<Index>> {
        let close_flag = &self.shared.close_flag;
        let source = self.source.as_mut().ok_or_else(|| close_flag.error())?;
        close_flag.or(source.skip_batch()).await
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut slot = self.shared.slot();
        if !self.shared.close_flag.is_closed() {
            slot.source = self.source.take();
        }
        drop(slot);
        self.shared.back.notify_one();
    }
}
