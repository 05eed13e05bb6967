//! Reading: how far a log may be read, the readers, and the records that they return.

pub(crate) mod canceller;
pub(crate) mod log_set;
pub(crate) mod positions;
pub(crate) mod reader;
pub(crate) mod records;
