//! Commands about the files of a log: positions, blocks, backups.

pub(crate) mod backup;
pub(crate) mod dump;
pub(crate) mod info;
pub(crate) mod object_store;
pub(crate) mod restore;
pub(crate) mod tier;
pub(crate) mod verify;
