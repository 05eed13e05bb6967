//! Pending: scenarios that are ready and wait for mends in the log. Each constant is set to `true` with the mend that it
//! names; when all are, this file goes.

/// Nodes stay away while all voters that they know leave, and learners that they know become voters. Waits for introductions
/// with any member, whoever speaks first.
pub(super) const LONG_ABSENCES: bool = false;

/// Clusters shrink to one voter, and the last one loses its power right after the change was told; a leader that removes
/// itself steps down before the others know. Waits for answers that come when the change is durable, and for removals that
/// leave no voter waiting.
pub(super) const SHRINKING_TO_ONE: bool = false;

/// Sessions expire and the table is full. Waits for a table that nothing but an entry changes.
pub(super) const SESSIONS_THAT_GO: bool = false;
