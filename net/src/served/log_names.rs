//! The names of logs that a server has by itself. Clients cannot create logs with these names.

/// The name of the log that every server has.
pub const DEFAULT_LOG: &str = "default";
/// The name of the system log, whose records are the catalogue of the named logs. For calls about its replicas.
pub const SYSTEM_LOG: &str = "_system";
/// The name of a group begins with this; its number follows. For calls about its replicas.
pub const GROUP: &str = "_group-";
