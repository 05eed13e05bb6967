//! Excuses: the reasons for which checks accept what they look for. Each is counted.
//!
//! Must not know: who checks.

/// An acknowledged entry counts for a disk that had it when it was emptied or set back.
pub(super) const WAS_LOST: &str = "acknowledged entry was on a disk that lost its data since";
/// A disk with a flipped bit cannot be read back.
pub(super) const ROTTEN: &str = "disk with a flipped bit does not open";
/// A disk that is off, or has a flipped bit, need not be readable.
pub(super) const UNREADABLE: &str = "committed entry is on a disk that cannot be read";
/// An acknowledged entry is on a majority of a membership that was in force when its leader ordered it.
pub(super) const EARLIER: &str = "acknowledged entry is durable on an earlier membership";
/// No replica has the entries that a damaged replica lacks, and it reports that.
pub(super) const DISCARDED: &str = "damaged replica says that all others have discarded what it lacks";
/// A conflict truncated a log after an entry that was superseded later, and the opening there is damaged.
pub(super) const SUPERSEDED: &str = "damaged opening came after an entry that was never committed";
/// The object store had a fault, or bytes that it flipped were kept.
pub(super) const STORE: &str = "reader failed because of a fault of the object store";
/// Bytes from the object store are kept on the disk.
pub(super) const CACHE: &str = "reader failed because the disk of its cache has a fault";
/// A replica learns of a discard, or that an object is stored, after its leader.
pub(super) const GONE: &str = "reader wanted an object that was deleted meanwhile";
/// A replica learns of objects after its leader.
pub(super) const LATE: &str = "reader wanted a record of an object that its replica does not know yet";
/// A payload slice is not judged that a replica has put in the step in which it failed.
pub(super) const FAILED: &str = "payload slice was put by a replica that has failed";
/// A leader without room takes a while to transfer leadership.
pub(super) const FULL_LEADER: &str = "appends wait for a leader whose disk became full a moment ago";
/// Few sessions may be open at once, and the open ones have not expired.
pub(super) const CROWDED: &str = "no session was opened, because as many are open as may be";
/// The disk of a replica has a fault.
pub(super) const DISK: &str = "reader failed because of a fault of the disk of its replica";
/// A replica that was added learns of the named logs one after the other.
pub(super) const NEW_LOG: &str = "reader asked a replica that has not learnt of its log yet";
