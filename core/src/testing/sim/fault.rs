//! The faults of a simulation, by name, and how often each happened.

use std::fmt;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A kind of fault, or of planned change. Each is counted when it has happened.
        ///
        /// ```
        /// use chiplog::sim::Fault;
        /// assert_eq!(Fault::PowerCut.name(), "power_cut");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        #[repr(usize)]
        pub enum Fault { $($(#[$doc])* $name,)* }

        impl Fault {
            /// All faults.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name in statistics and on command lines.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

faults! {
    /// A message was lost.
    Loss = "loss",
    /// A message arrived twice, the second time perhaps much later.
    Replay = "replay",
    /// A message overtook an earlier one.
    Reorder = "reorder",
    /// A bit of a message's head was flipped.
    CorruptHead = "corrupt_head",
    /// A bit of the blocks in a message was flipped.
    CorruptBody = "corrupt_body",
    /// A message was dropped because the queue was full.
    QueueFull = "queue_full",
    /// Few messages passed from one replica to the others for a while.
    SlowLink = "slow_link",
    /// The leader sent a lagging follower nothing more until it answered.
    Paced = "paced",
    /// No message passed from one replica to another one.
    PartitionOneWay = "partition_one_way",
    /// The replicas were split into two groups.
    PartitionTwoWay = "partition_two_way",
    /// One replica was isolated from all others.
    Isolate = "isolate",
    /// The power of one replica failed.
    PowerCut = "power_cut",
    /// The power failed during a call to the disk.
    PowerCutInside = "power_cut_inside",
    /// The power failed while a replica recovered.
    PowerCutInRecovery = "power_cut_in_recovery",
    /// The power of all replicas failed.
    PowerCutOfAll = "power_cut_of_all",
    /// A replica was killed; everything that it wrote stays visible.
    Kill = "kill",
    /// The power of a healthy cluster's leader was cut, to measure how long the election of another one takes.
    LeaderKilled = "leader_killed",
    /// A replica did nothing for a while.
    Pause = "pause",
    /// A replica was closed properly, with appends in flight.
    Close = "close",
    /// A disk was slow for a while.
    Limp = "limp",
    /// A sync failed.
    SyncError = "sync_error",
    /// A write failed.
    WriteError = "write_error",
    /// A disk was full.
    DiskFull = "disk_full",
    /// Segment files were prepared late for a while.
    SlowFiles = "slow_files",
    /// Appends waited for a file that was being prepared.
    AppendsWait = "appends_wait",
    /// The entries that a leader sent waited for a file that was being prepared.
    RoomLater = "room_later",
    /// There was no room for the entries that a leader sent.
    NoRoom = "no_room",
    /// There was no room for a term, a vote or a change.
    NoRoomForTerms = "no_room_for_terms",
    /// Bits flipped in stored blocks.
    Rot = "rot",
    /// A file was lost, truncated or changed while its replica was down.
    Damage = "damage",
    /// Hard states of the newest segment were damaged while the replica was down.
    DamagedState = "damaged_state",
    /// The newest segment's opening was damaged while the replica was down.
    DamagedOpening = "damaged_opening",
    /// An older segment was damaged where a conflict had truncated it, or the opening of the newest segment, which
    /// follows.
    DamagedCut = "damaged_cut",
    /// One of the newest entries was damaged while the replica was down.
    DamagedEnd = "damaged_end",
    /// A replica whose log did not open repaired it from other replicas.
    Repair = "repair",
    /// A voter restarted without its data.
    Wipe = "wipe",
    /// A voter restarted with an old copy of its disk.
    Rollback = "rollback",
    /// A replica's clock jumped ahead.
    ClockAhead = "clock_ahead",
    /// A replica's clock jumped back.
    ClockBack = "clock_back",
    /// A replica was added.
    Add = "add",
    /// A learner became a voter.
    Promote = "promote",
    /// A voter became a learner.
    Demote = "demote",
    /// A replica was removed.
    Remove = "remove",
    /// Several members changed at once.
    Joint = "joint",
    /// The leader was asked to transfer leadership.
    Transfer = "transfer",
    /// A replica that lagged behind a discard jumped over it.
    Jump = "jump",
    /// A client's session expired.
    SessionExpired = "session_expired",
    /// A session that never appended was closed for another one.
    SessionEvicted = "session_evicted",
    /// No more sessions could be opened.
    SessionsFull = "sessions_full",
    /// A cluster shrank to two voters.
    ShrinkToTwo = "shrink_to_two",
    /// A cluster shrank to one voter.
    ShrinkToOne = "shrink_to_one",
    /// A replica restarted after all voters that it knew had left.
    LongAbsence = "long_absence",
    /// A follower's power failed, or it was killed.
    FollowerCrash = "follower_crash",
    /// A follower had no room for the entries that it was fed.
    FollowerFull = "follower_full",
    /// A follower switched to another source.
    FollowerSwitch = "follower_switch",
    /// A follower was fed by another one.
    FollowerChain = "follower_chain",
    /// A follower jumped over discarded entries.
    FollowerJump = "follower_jump",
    /// A named log was opened, filled and dropped.
    LogDropped = "log_dropped",
    /// A named log was sealed.
    LogSealed = "log_sealed",
    /// Retention of a named log has discarded records.
    LogRetained = "log_retained",
    /// A named log was full: an append to it was refused.
    LogFull = "log_full",
    /// A branch of the log was made.
    BranchMade = "branch_made",
    /// The log's options were changed.
    SetOptions = "set_options",
    /// Rows of older objects have left the log's table.
    MovedRows = "moved_rows",
    /// A new server began with a follower's copy.
    CopyJoined = "copy_joined",
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How often each fault happened.
///
/// ```
/// use chiplog::sim::{Counts, Fault};
/// let mut counts = Counts::default();
/// counts.add(Fault::Loss);
/// assert_eq!((counts.of(Fault::Loss), counts.of(Fault::Wipe)), (1, 0));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts([u64; Fault::ALL.len()]);

impl Default for Counts {
    fn default() -> Self {
        Self([0; Fault::ALL.len()])
    }
}

impl Counts {
    /// Counts one more.
    pub fn add(&mut self, fault: Fault) {
        self.0[fault as usize] += 1;
    }

    /// Adds the counts of another run.
    pub fn add_all(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }

    /// How often the fault happened.
    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    /// All counts, in the order of [`Fault::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        Fault::ALL.iter().map(|f| (*f, self.of(*f)))
    }

    /// The faults that never happened. A few thousand seeds meet [`Fault::NoRoomForTerms`] and [`Fault::DamagedCut`]
    /// rarely or never; directed scenarios cover them.
    pub fn missing(&self) -> Vec<Fault> {
        self.iter()
            .filter(|(f, n)| *n == 0 && !matches!(f, Fault::NoRoomForTerms | Fault::DamagedCut))
            .map(|(f, _)| f)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_that_never_happened_are_listed() {
        let mut counts = Counts::default();
        for fault in &Fault::ALL[1..] {
            counts.add(*fault);
        }
        assert_eq!(counts.missing(), [Fault::ALL[0]]);
        let mut sum = counts.clone();
        sum.add_all(&counts);
        assert_eq!(sum.of(Fault::Wipe), 2);
    }
}
