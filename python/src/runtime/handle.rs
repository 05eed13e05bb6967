//! Handle: something that is closed while its object in Python lives on. What it was is still told then; nothing else.

use crate::convert::errors::raise;
use crate::runtime::close_flag::Ending;
use crate::runtime::fork::Kept;
use pyo3::prelude::*;
use std::sync::Arc;

/// Something that can be closed, of this process.
pub(crate) struct Handle<T: Send> {
    value: Kept<T>,
    ending: Arc<Ending>,
}

impl<T: Send + Clone> Handle<T> {
    /// `what` it is, for messages.
    pub(crate) fn new(value: T, what: &'static str) -> PyResult<Self> {
        Ok(Self { value: Kept::new(value).map_err(raise)?, ending: Ending::of(what) })
    }

    /// Also once it was closed.
    pub(crate) fn any(&self) -> PyResult<&T> {
        self.value.get().map_err(raise)
    }

    /// While it is open.
    pub(crate) fn get(&self) -> PyResult<&T> {
        let value = self.any()?;
        self.ending.check().map_err(raise)?;
        Ok(value)
    }

    /// To be closed: it counts as that from now on.
    pub(crate) fn to_be_closed(&self) -> PyResult<T> {
        let value = self.any()?.clone();
        self.ending.close();
        Ok(value)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.ending.is_closed()
    }
}
