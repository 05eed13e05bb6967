//! Copies of a log that do not vote: the source that feeds them, the items that are fed, and the code that applies
//! them.

pub(crate) mod applier;
pub(crate) mod entry_feed;
pub(crate) mod message;
pub(crate) mod record_feed;
pub(crate) mod source;
mod stored_part;
pub(crate) mod to_replica;

pub use crate::replica::state::snapshot::FollowSnapshot;
pub use applier::Jumped;
pub use message::{FollowEntries, FollowEntry, FollowFrom, FollowMessage};
pub use source::FollowSource;
