//! Followers.

pub(crate) mod calls;
pub(crate) mod events;
pub(crate) mod options;
pub(crate) mod status;
