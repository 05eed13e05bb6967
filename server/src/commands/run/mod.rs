//! Commands that run something: servers, followers, measurements.

pub(crate) mod bench;
pub(crate) mod dev;
pub(crate) mod doctor;
pub(crate) mod follow;
pub(crate) mod serve;
