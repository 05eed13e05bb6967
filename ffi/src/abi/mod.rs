//! The types that cross the boundary: entries, errors, values, records, callbacks.

pub(crate) mod descriptor;
pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod growing;
pub(crate) mod once_callback;
pub(crate) mod pointers;
pub(crate) mod records;
pub(crate) mod trace;
pub(crate) mod values;
pub(crate) mod version;
