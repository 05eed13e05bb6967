//! Which errors are worth another try, when, and until when.

pub(crate) mod backoff;
pub(crate) mod class;
pub(crate) mod deadline;
