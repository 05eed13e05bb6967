//! The bytes of the files: blocks, segments, identity.

pub(crate) mod block;
mod digest;
pub(crate) mod geometry;
pub(crate) mod identity;
pub(crate) mod logs;
pub(crate) mod mixed;
pub(crate) mod object_row;
pub(crate) mod objects;
pub(crate) mod older_rows;
pub(crate) mod references;
pub(crate) mod segment;
pub(crate) mod slices;
pub(crate) mod sorted;
pub(crate) mod sorted_object;
