//! Pending: scenarios that are ready and wait for mends in the log. Each constant is set to `true` with the mend that it
//! names; when all are, this file goes.

/// Nodes stay away while all voters that they know leave, and learners that they know become voters. Waits for introductions
/// with any member, whoever speaks first.
pub(super) const LONG_ABSENCES: bool = false;

/// Clusters shrink to one voter, the leader, which loses its power right after the change was told. Waits for answers that
/// come when the change is durable.
pub(super) const SHRINKING_TO_ONE: bool = false;

/// Of two voters the leader leaves. Waits for two mends: the answer has to wait until a majority of the voters that are left
/// has the commit durably, not only in memory; and a leader that steps down before they know must go on voting.
pub(super) const LEADERS_THAT_LEAVE: bool = false;

/// Sessions expire and the table is full. Waits for a table that nothing but an entry changes.
pub(super) const SESSIONS_THAT_GO: bool = false;

/// No replica dies of a full disk. Waits for a reserve that is there from the opening on, and lasts: a log that opens on a
/// full disk has none behind its last file, and each roll at a conflict takes one file of it.
pub(super) const FULL_DISKS: bool = false;
