//! Repair: full segments are scrubbed while the replica runs. A log that does not open is repaired from other replicas
//! before it runs.

pub(crate) mod diagnosis;
pub(crate) mod fetcher;
pub(crate) mod offline;
pub(crate) mod scrubber;
