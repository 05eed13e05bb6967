//! Handle: a value that is closed while its Python object lives on. Its state can still be read then; nothing else.

use crate::convert::errors::raise;
use crate::runtime::close_flag::CloseFlag;
use crate::runtime::fork::Kept;
use pyo3::prelude::*;
use std::sync::Arc;

/// A closable value of this process.
pub(crate) struct Handle<T: Send> {
    value: Kept<T>,
    close_flag: Arc<CloseFlag>,
}

impl<T: Send + Clone> Handle<T> {
    /// `what` is its name in messages.
    pub(crate) fn new(value: T, what: &'static str) -> PyResult<Self> {
        Ok(Self { value: Kept::new(value).map_err(raise)?, close_flag: CloseFlag::of(what) })
    }

    /// Returns the value, even if it is closed.
    pub(crate) fn any(&self) -> PyResult<&T> {
        self.value.get().map_err(raise)
    }

    /// Returns the value while it is open.
    pub(crate) fn get(&self) -> PyResult<&T> {
        let value = self.any()?;
        self.close_flag.check().map_err(raise)?;
        Ok(value)
    }

    /// Returns the value to close it, and marks it as closed.
    pub(crate) fn to_be_closed(&self) -> PyResult<T> {
        let value = self.any()?.clone();
        self.close_flag.close();
        Ok(value)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.close_flag.is_closed()
    }
}
