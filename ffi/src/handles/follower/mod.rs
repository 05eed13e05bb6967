//! Followers.

pub(crate) mod calls;
pub(crate) mod events;
mod hook;
pub(crate) mod options;
pub(crate) mod status;
