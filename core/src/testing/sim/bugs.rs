//! The planted bugs: a description of each, the way to switch it on, and the scenario that finds it. The number of a
//! bug leads to its code: `planted!(7)`.
//!
//! Seeds find most of them. A bug that seeds meet too rarely has a directed scenario, which is named beside it. The
//! scenario fails while the bug is planted and holds otherwise.

use super::directed::SCENARIOS;

/// A mistake that can be switched on.
///
/// ```
/// assert!(chiplog::sim::bugs::BUGS.iter().all(|bug| !bug.what.is_empty()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bug {
    /// Its number.
    pub number: u32,
    /// The mistake, in words.
    pub what: &'static str,
    /// The directed scenario that finds it; `None`: seeds find it.
    pub scenario: Option<&'static str>,
}

/// Bugs from this number on are in the code of named logs: runs without any cannot find them.
///
/// ```
/// use chiplog::sim::bugs::{BUGS, NAMED_LOGS_FROM};
/// assert!(BUGS.iter().any(|bug| bug.number >= NAMED_LOGS_FROM));
/// ```
pub const NAMED_LOGS_FROM: u32 = 75;

/// Bugs from this number on are in the code of objects: runs without an object store cannot find them.
///
/// ```
/// use chiplog::sim::bugs::{BUGS, OBJECTS_FROM};
/// assert!(BUGS.iter().any(|bug| bug.number >= OBJECTS_FROM));
/// ```
pub const OBJECTS_FROM: u32 = 90;

/// Bugs from this number on are in the code of objects of named logs: runs without both cannot find them.
///
/// ```
/// use chiplog::sim::bugs::{BUGS, GROUP_OBJECTS_FROM};
/// assert!(BUGS.iter().any(|bug| bug.number >= GROUP_OBJECTS_FROM));
/// ```
pub const GROUP_OBJECTS_FROM: u32 = 114;

/// Makes this mistake from now on, in the whole process; 0: none.
///
/// ```
/// chiplog::sim::bugs::plant(0);
/// ```
pub fn plant(number: u32) {
    crate::testing::planted_bugs::plant(number);
}

/// Plays the directed scenario of this name.
///
/// ```
/// use chiplog::sim::bugs::{BUGS, play};
/// let scenario = BUGS.iter().find_map(|bug| bug.scenario).unwrap();
/// assert_eq!(play(scenario), Ok(()));
/// ```
///
/// # Errors
/// The condition that does not hold, or that the scenario panics or does not exist.
pub fn play(scenario: &str) -> Result<(), String> {
    match SCENARIOS.iter().find(|(name, _)| *name == scenario) {
        Some((_, play)) => {
            std::panic::catch_unwind(play).unwrap_or_else(|_| Err("the scenario panics".to_owned()))
        }
        None => Err(format!("there is no scenario {scenario}")),
    }
}

macro_rules! bugs {
    ($($number:literal $what:literal $(by $scenario:literal)?,)*) => {
        /// All planted bugs.
        pub const BUGS: &[Bug] = &[$(Bug { number: $number, what: $what, scenario: bugs!(@ $($scenario)?) },)*];
    };
    (@) => { None };
    (@ $scenario:literal) => { Some($scenario) };
}

bugs! {
    1 "the send gate is off: a leader sends before its term is durable" by "sole_voter_sends_after_its_term_is_durable",
    2 "a follower acknowledges before its sync",
    3 "the vote is not written",
    4 "the sync is skipped",
    5 "the directory is not synced after a segment was prepared",
    6 "a truncated suffix reappears",
    7 "sessions are forgotten at a roll",
    8 "uncommitted records are published",
    9 "an append is answered before it is committed",
    10 "a retry within a session is appended twice",
    11 "files are removed before their discard is committed",
    12 "a barrier passes without asking the other replicas",
    13 "a barrier passes before this replica has caught up",
    14 "received bodies are not checked",
    15 "received heads are not checked",
    16 "the directory id of a sender is not checked" by "message_from_another_directory_is_dropped",
    17 "sessions are forgotten at a jump",
    18 "a jump keeps the first index of the old opening",
    19 "commit moves ahead of a jump",
    20 "recovery looks for files that a discard removed",
    21 "the term is lost at a roll",
    22 "a failed sync counts as a successful one",
    23 "a retry gets the wrong index",
    24 "a gap in a session is not detected",
    25 "entries that a new leader truncated are acknowledged",
    26 "a removed leader keeps leading",
    27 "an append of unknown outcome is reported as refused",
    28 "the vote is forgotten at a restart",
    30 "a discard is forgotten at a roll",
    31 "bytes written during a sync count as synced",
    32 "a starting replica does not wait for introductions" by "set_back_disk_stays_out",
    33 "a disk that was set back is not detected" by "set_back_disk_stays_out",
    34 "a leader applies a change of membership at once" by "leader_waits_until_its_removal_is_known",
    35 "a membership that came into force is not written down" by "last_voter_remembers_that_it_is_alone",
    36 "a commit is not written down before the second change" by "second_change_carries_the_commit_of_the_first",
    37 "the vote is lost at a rollback",
    38 "the vote is lost at a jump",
    39 "a barrier is not retried after a jump" by "barrier_is_retried_after_a_jump",
    40 "a body of another term is sent" by "body_of_another_term_is_not_sent",
    41 "followers remember another time of a session's last append",
    42 "introductions are ignored",
    43 "a removed replica does not report the last commit" by "removed_leader_reports_the_last_commit",
    44 "heartbeats do not carry the leader's durable index" by "set_back_disk_of_a_leader_stays_out",
    60 "a log that is closed ends at once, with appends in flight",
    61 "the end of a sync on the other thread is not recorded",
    62 "a feed returns uncommitted entries",
    63 "a follower does not jump",
    64 "records use the room reserved for discards and votes" by "full_cluster_accepts_a_discard",
    65 "a term is written without a check for room" by "replica_without_room_is_silent_and_recovers",
    66 "appends that wait for a file are never written",
    67 "a follower on a slow link gets the same entries again" by "follower_on_a_slow_link_gets_nothing_twice",
    68 "a full queue drops its oldest message",
    69 "entries fetched to repair a log are not written",
    70 "existing entries are reported as discarded",
    71 "a request for committed entries gets uncommitted ones" by "only_committed_entries_are_sent_as_committed",
    72 "a repair gives a vote again that the disk still holds" by "vote_on_the_disk_is_not_cast_again",
    73 "a damaged opening is repaired for a dead end" by "opening_after_a_truncation_is_repaired_for_that_index",
    74 "the options of the log are forgotten at a roll",
    75 "a run of a mixed block is attributed to another log",
    76 "the logs of a group are forgotten at a roll",
    77 "runs are looked for one block late",
    78 "a segment is removed once one log has discarded its records",
    79 "logs that were dropped stay after a jump",
    80 "a sealed log takes records",
    81 "a dropped log stays readable",
    82 "records of a named log are published before they are committed",
    83 "appends that belong together are decided one by one",
    84 "a log that an opening does not have counts as opened later",
    85 "the number of a dropped log is forgotten at a restart",
    86 "the options of named logs are forgotten at a roll",
    87 "retention of a named log discards records that are not old enough",
    88 "retention obeys options that are about to change",
    89 "the sorted copy of a segment mixes its logs",
    90 "files are removed before their records are stored",
    91 "an object begins with the first record that its replica keeps",
    92 "the log's first record moves at a jump, although objects have older ones",
    93 "an object lacks its last entry",
    94 "an object too many is deleted",
    95 "files are removed before the opening that says so is known to be committed",
    96 "the objects are forgotten at a roll",
    97 "an object whose upload failed counts as stored",
    98 "a discard, or a restart, removes files of an object that is not stored yet",
    99 "objects are deleted, and the object store does not say so",
    100 "a copy removes files before their records are stored",
    101 "objects are deleted although a pin keeps them",
    102 "a pin is made without a look for a deletion that has begun" by "pin_holds_in_any_order_with_a_deletion",
    111 "a slice has entries that are not committed",
    112 "slices are deleted once an object with them was cut",
    113 "a slice whose upload failed counts as stored",
    114 "the first records of logs move at a jump, although objects have older ones",
    115 "the records of a log in an object are joined across discarded ones",
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_scenario_exists_and_finds_a_bug() {
        let named: BTreeSet<&str> = BUGS.iter().filter_map(|bug| bug.scenario).collect();
        assert_eq!(named, SCENARIOS.iter().map(|(name, _)| *name).collect());
        let numbers: BTreeSet<u32> = BUGS.iter().map(|bug| bug.number).collect();
        assert_eq!(numbers.len(), BUGS.len(), "a number is used twice");
    }
}
