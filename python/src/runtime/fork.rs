//! Objects that a forked child must not touch: it has none of the threads that its parent's handles rely on, and
//! shares their files and sockets.
//!
//! Invariant: a child neither uses nor drops anything made before the fork.

use chiplog::internal::ForkGuard;
use chiplog::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

static GUARD: Mutex<Option<Arc<ForkGuard>>> = Mutex::new(None);

/// Returns the guard of this process.
///
/// # Errors
/// `Io`: its page cannot be allocated.
pub(crate) fn guard() -> Result<Arc<ForkGuard>> {
    let mut current = GUARD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(guard) = current.as_ref().filter(|guard| !guard.is_child()) {
        return Ok(guard.clone());
    }
    let failed = |e| Error::new(ErrorKind::Io, format!("cannot guard against fork: {e}"));
    let guard = Arc::new(ForkGuard::new().map_err(failed)?);
    *current = Some(guard.clone());
    Ok(guard)
}

/// # Errors
/// `Forked`: this is a child of the process that made the guard.
pub(crate) fn check(guard: &ForkGuard) -> Result<()> {
    if guard.is_child() {
        let what = "this handle was made before fork(); open another one in the child";
        return Err(Error::new(ErrorKind::Forked, what));
    }
    Ok(())
}

/// A value that belongs to its process: refused and forgotten in a child.
pub(crate) struct Own<T> {
    /// None: it is being dropped.
    value: Option<T>,
    guard: Arc<ForkGuard>,
}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Result<Self> {
        Ok(Self { value: Some(value), guard: guard()? })
    }

    /// # Errors
    /// `Forked`.
    pub(crate) fn get(&self) -> Result<&T> {
        check(&self.guard)?;
        self.value.as_ref().ok_or_else(dropped)
    }

    /// # Errors
    /// `Forked`.
    pub(crate) fn get_mut(&mut self) -> Result<&mut T> {
        check(&self.guard)?;
        self.value.as_mut().ok_or_else(dropped)
    }

    /// Takes the value to drop it, in its own process.
    fn take(&mut self) -> Option<T> {
        let value = self.value.take()?;
        if self.guard.is_child() {
            std::mem::forget(value);
            return None;
        }
        Some(value)
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

fn dropped() -> Error {
    Error::new(ErrorKind::Closed, "the handle was dropped")
}

/// As [`Own`]. Dropping it releases the interpreter, because closing a log waits for the disk.
pub(crate) struct Kept<T: Send>(Own<T>);

impl<T: Send> Kept<T> {
    pub(crate) fn new(value: T) -> Result<Self> {
        Own::new(value).map(Self)
    }

    /// # Errors
    /// `Forked`.
    pub(crate) fn get(&self) -> Result<&T> {
        self.0.get()
    }
}

impl<T: Send> Drop for Kept<T> {
    fn drop(&mut self) {
        let mut value = self.0.take();
        if value.is_some() {
            // If the interpreter is ending, there is nothing to release.
            Python::try_attach(|py| py.detach(|| drop(value.take())));
        }
    }
}
