//! Objects: stretches of the log in an object store, each as a sealed segment file. Made from the log's own files, read through
//! a cache of files beside these.
//!
//! ```text
//!  archive ── maker ──> segment file ──> vault ──> cache ──> SegmentData: readers see a segment like any other
//! ```
//!
//! Must not know: which stretches are objects, who decides that.

pub(crate) mod cache;
mod fetch;
pub(crate) mod list;
pub(crate) mod maker;
pub(crate) mod names;
