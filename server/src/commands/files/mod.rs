//! Commands about a log as files: how it stands, what its blocks say, backups.

pub(crate) mod backup;
pub(crate) mod dump;
pub(crate) mod info;
pub(crate) mod restore;
pub(crate) mod verify;
