//! Objects: stretches of the log in an object store, each as a sealed segment file. Their names, the pins that keep them, their
//! deletion, the cache of files through which they are read, and the file that remembers those that are suspected to be lost or damaged.
//!
//! ```text
//!  archive ── object_maker ──> segment file ──> vault ──> cache ──> SegmentData: readers see a segment like any other
//! ```
//!
//! Must not know: which stretches are objects, who decides that.

pub(crate) mod cache;
pub(crate) mod cluster_logs;
pub(crate) mod deletion;
mod fetch;
#[cfg_attr(not(feature = "internal"), allow(unreachable_pub, reason = "other crates of chiplog use it"))]
pub(crate) mod names;
pub(crate) mod older_rows;
pub(crate) mod payloads;
pub(crate) mod pins;
pub(crate) mod slice_names;
pub(crate) mod suspects;
