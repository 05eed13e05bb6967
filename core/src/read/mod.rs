//! Reading: how far a log may be read, the readers, and the records that they return.

pub(crate) mod canceller;
pub(crate) mod finder;
pub(crate) mod log_set;
pub(crate) mod patience;
pub(crate) mod positions;
pub(crate) mod reader;
pub(crate) mod records;
pub(crate) mod view;
