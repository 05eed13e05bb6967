//! Commands that run something: servers, followers, demonstrations, measurements.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod dev;
pub(crate) mod doctor;
pub(crate) mod follow;
pub(crate) mod serve;
pub(crate) mod witness;
