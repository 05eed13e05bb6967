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
    /// The seed that is tried first: it has found the bug. A change of the code can change its run.
    pub seed: Option<u64>,
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

/// Bugs from this number on are in the code of payload slices: runs without an object store cannot find them. They are looked for in runs
/// without named logs, except for [`GROUP_PAYLOADS`].
///
/// ```
/// use chiplog::sim::bugs::{BUGS, PAYLOADS_FROM};
/// assert!(BUGS.iter().any(|bug| bug.number >= PAYLOADS_FROM));
/// ```
pub const PAYLOADS_FROM: u32 = 121;

/// Bugs of these numbers are in the creation and deletion of named logs: runs without named logs cannot find them.
///
/// ```
/// use chiplog::sim::bugs::{BUGS, NAMES};
/// assert!(BUGS.iter().any(|bug| NAMES.contains(&bug.number)));
/// ```
pub const NAMES: std::ops::Range<u32> = 138..139;

/// Bugs of these numbers are in the code of copies of one named log: runs without named logs or without copies cannot find them.
///
/// ```
/// use chiplog::sim::bugs::{BUGS, COPIES_OF_ONE_LOG};
/// assert!(BUGS.iter().any(|bug| COPIES_OF_ONE_LOG.contains(&bug.number)));
/// ```
pub const COPIES_OF_ONE_LOG: std::ops::Range<u32> = 141..142;

/// Bugs of these numbers are in the code of copies of one named log that read objects: runs without an object store, named logs or copies
/// cannot find them.
///
/// ```
/// use chiplog::sim::bugs::{BUGS, COPIES_WITH_OBJECTS};
/// assert!(BUGS.iter().any(|bug| COPIES_WITH_OBJECTS.contains(&bug.number)));
/// ```
pub const COPIES_WITH_OBJECTS: std::ops::Range<u32> = 160..162;

/// Bugs of these numbers are in the code of slices of named logs: runs without an object store, or without named logs, cannot find
/// them.
///
/// ```
/// use chiplog::sim::bugs::{BUGS, GROUP_SLICES};
/// assert!(BUGS.iter().any(|bug| GROUP_SLICES.contains(&bug.number)));
/// ```
pub const GROUP_SLICES: std::ops::Range<u32> = 136..138;

/// Bugs of these numbers are in the code of payload slices of named logs: runs without an object store, or without named logs, cannot find
/// them.
///
/// ```
/// use chiplog::sim::bugs::{BUGS, GROUP_PAYLOADS};
/// assert!(BUGS.iter().any(|bug| GROUP_PAYLOADS.contains(&bug.number)));
/// ```
pub const GROUP_PAYLOADS: std::ops::Range<u32> = 156..160;

/// Bugs of these numbers are in the quotas of named logs: runs without any cannot find them.
///
/// ```
/// use chiplog::sim::bugs::{BUGS, QUOTAS};
/// assert!(BUGS.iter().any(|bug| QUOTAS.contains(&bug.number)));
/// ```
pub const QUOTAS: std::ops::Range<u32> = 183..185;

/// The bugs of leaders that refuse for ever: all seeds can find them.
///
/// ```
/// use chiplog::sim::bugs::{BUGS, REFUSALS};
/// assert!(BUGS.iter().any(|bug| REFUSALS.contains(&bug.number)));
/// ```
pub const REFUSALS: std::ops::Range<u32> = 186..188;

/// Bugs of these numbers are in replicas that were copies: runs where no new server begins with a copy cannot find them.
///
/// ```
/// use chiplog::sim::bugs::{BUGS, JOINED_COPIES};
/// assert!(BUGS.iter().any(|bug| JOINED_COPIES.contains(&bug.number)));
/// ```
pub const JOINED_COPIES: std::ops::Range<u32> = 185..186;

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
    ($($number:literal $what:literal $(by $scenario:literal)? $(at $seed:literal)?,)*) => {
        /// All planted bugs.
        pub const BUGS: &[Bug] = &[$(Bug {
            number: $number,
            what: $what,
            scenario: bugs!(@ $($scenario)?),
            seed: bugs!(@ $($seed)?),
        },)*];
    };
    (@) => { None };
    (@ $value:literal) => { Some($value) };
}

bugs! {
    1 "the send gate is off: a leader sends before its term is durable" by "sole_voter_sends_after_its_term_is_durable",
    2 "a follower acknowledges before its sync",
    3 "the vote is not written",
    4 "the sync is skipped",
    5 "the directory is not synced after a segment was prepared",
    6 "a truncated suffix reappears" at 5,
    7 "sessions are forgotten at a roll",
    8 "uncommitted records are published",
    9 "an append is answered before it is committed",
    10 "a retry within a session is appended twice",
    11 "files are removed before their discard is committed" at 108,
    12 "a barrier passes without asking the other replicas",
    13 "a barrier passes before this replica has caught up" at 2,
    14 "received bodies are not checked" at 24,
    15 "received heads are not checked" at 2,
    16 "the directory id of a sender is not checked" by "message_from_another_directory_is_dropped",
    17 "sessions are forgotten at a jump",
    18 "a jump keeps the first index of the old opening" at 2,
    19 "commit moves ahead of a jump" at 2,
    20 "recovery looks for files that a discard removed" at 115,
    21 "the term is lost at a roll" at 2,
    22 "a failed sync counts as a successful one",
    23 "a retry gets the wrong index",
    24 "a gap in a session is not detected" at 5,
    25 "entries that a new leader truncated are acknowledged" at 30,
    26 "a removed leader keeps leading" at 7,
    27 "an append of unknown outcome is reported as refused" at 3,
    28 "the vote is forgotten at a restart" at 3,
    30 "a discard is forgotten at a roll" at 2,
    31 "bytes written during a sync count as synced",
    32 "a starting replica does not wait for introductions" by "set_back_disk_stays_out",
    33 "a disk that was set back is not detected" by "set_back_disk_stays_out",
    34 "a leader applies a change of membership at once" by "leader_waits_until_its_removal_is_known",
    35 "a membership that came into force is not written down" by "last_voter_remembers_that_it_is_alone",
    36 "a commit is not written down before the second change" by "second_change_carries_the_commit_of_the_first",
    37 "the vote is lost at a rollback" at 17,
    38 "the vote is lost at a jump" at 79,
    39 "a barrier is not retried after a jump" by "barrier_is_retried_after_a_jump",
    40 "a body of another term is sent" by "body_of_another_term_is_not_sent",
    41 "followers remember another time of a session's last append",
    42 "introductions are ignored",
    43 "a removed replica does not report the last commit" by "removed_leader_reports_the_last_commit",
    44 "heartbeats do not carry the leader's durable index" by "set_back_disk_of_a_leader_stays_out",
    60 "a log that is closed ends at once, with appends in flight" at 27,
    61 "the end of a sync on the other thread is not recorded",
    62 "a feed returns uncommitted entries",
    63 "a follower does not jump" at 26,
    64 "records use the room reserved for discards and votes" by "full_cluster_accepts_a_discard",
    65 "a term is written without a check for room" by "replica_without_room_is_silent_and_recovers",
    66 "appends that wait for a file are never written" at 35,
    67 "a follower on a slow link gets the same entries again" by "follower_on_a_slow_link_gets_nothing_twice",
    68 "a full queue drops its oldest message" at 2,
    69 "entries fetched to repair a log are not written" at 19,
    70 "existing entries are reported as discarded" at 30,
    71 "a request for committed entries gets uncommitted ones" by "only_committed_entries_are_sent_as_committed",
    72 "a repair gives a vote again that the disk still holds" by "vote_on_the_disk_is_not_cast_again",
    73 "a damaged opening is repaired for a dead end" by "opening_after_a_truncation_is_repaired_for_that_index",
    74 "the options of the log are forgotten at a roll" at 2,
    75 "a run of a mixed block is attributed to another log",
    76 "the logs of a group are forgotten at a roll",
    77 "runs are looked for one block late",
    78 "a segment is removed once one log has discarded its records",
    79 "logs that were dropped stay after a jump" at 323,
    80 "a sealed log takes records" at 7,
    81 "a dropped log stays readable",
    82 "records of a named log are published before they are committed",
    83 "appends that belong together are decided one by one" at 7,
    84 "a log that an opening does not have counts as opened later" at 335,
    85 "the number of a dropped log is forgotten at a restart" at 14,
    86 "the options of named logs are forgotten at a roll" at 7,
    87 "retention of a named log discards records that are not old enough",
    88 "a voter that has taken a file ahead has no room for a leader's records" by "leadership_leaves_a_full_disk",
    89 "the sorted copy of a segment mixes its logs",
    90 "files are removed before their records are stored" at 469,
    91 "an object begins with the first record that its replica keeps",
    92 "the log's first record moves at a jump, although objects have older ones",
    93 "an object lacks its last entry",
    94 "an object too many is deleted" at 11,
    95 "files are removed before the opening that says so is known to be committed" at 7,
    96 "the objects are forgotten at a roll",
    97 "an object whose upload failed counts as stored" at 7,
    98 "a discard, or a restart, removes files of an object that is not stored yet" at 11,
    99 "objects are deleted, and the object store does not say so",
    100 "a copy removes files before their records are stored" by "copy_keeps_files_that_are_not_stored",
    101 "objects are deleted although a pin keeps them" at 13,
    102 "a pin is made without a look for a deletion that has begun" by "pin_holds_in_any_order_with_a_deletion",
    103 "a branch is made without a look for a deletion that has begun"
        by "branch_keeps_its_objects_in_any_order_with_a_deletion",
    104 "a branch deletes objects of its parent" by "branch_deletes_nothing_of_its_parent",
    106 "a branch's pin is removed without a look for the branch afterwards"
        by "branch_keeps_its_pin_in_any_order_with_a_removal",
    107 "a branch is made without a look for its pins at the end"
        by "branch_keeps_its_pin_in_any_order_with_a_removal",
    108 "a branch lets go objects of its parent that a pin of the branch keeps" by "branch_deletes_nothing_of_its_parent",
    109 "an object that was put counts as stored although the object store is another one now"
        by "nothing_goes_to_a_store_that_is_not_mounted",
    110 "a branch has records behind the one with which it is to end" at 29,
    111 "a slice has entries that are not committed" at 12,
    112 "slices are deleted once an object with them was cut",
    113 "a slice whose upload failed counts as stored",
    114 "the first records of logs move at a jump, although objects have older ones",
    115 "the records of a log in an object are joined across discarded ones" at 45,
    121 "a payload slice is deleted while the log refers to it",
    122 "references are proposed out of the order of their slices",
    123 "a payload slice whose upload failed counts as stored",
    124 "an object refers to payload instead of having it",
    125 "payload slices go while older slices still lead to the end of the log" by "payload_stays_until_a_state_leads",
    126 "payload slices are put before an entry of their term is committed" at 24,
    127 "a full disk keeps files that are beyond the limits of their replica and in the object store"
        by "files_make_room_once_they_are_stored",
    128 "a payload slice that was put counts as stored although the object store is another one now"
        by "nothing_goes_to_a_store_that_is_not_mounted",
    129 "the object store is taken for the log's, although it has nothing of the log"
        by "payload_waits_for_the_store_after_a_restart",
    130 "appends whose payload waits are not refused while the object store fails" by "payload_that_waits_is_refused_in_time",
    131 "what waits behind a payload slice is not bounded" by "what_waits_behind_a_payload_slice_is_bounded",
    132 "cached objects do not give way on a full disk" at 156,
    133 "payload counts as in its place whatever is in the log before it",
    134 "payload counts although no slice says where it goes on" at 436,
    135 "slices go that say where payload goes on",
    136 "the first slice begins behind records that a log of the group still has" at 60,
    137 "slices go once they are stored, if no object is before them",
    138 "a creation that comes second is acknowledged with the log of the first",
    139 "a log that was opened after the look counts as deleted: its part of a copy becomes a hole"
        by "holes_have_nothing_that_a_log_needs",
    140 "a hole in a copy goes on to the last blocks of a log that has discarded its first ones"
        by "holes_have_nothing_that_a_log_needs",
    141 "a copy of one named log lacks a record after it has changed its source",
    148 "an object counts as kept whole before its bytes are on the disk" by "whole_object_outlives_a_crash",
    149 "an object is kept whole although its checksum is wrong" by "damaged_object_is_not_kept",
    150 "objects are kept whole beyond the limit of the log's files" by "objects_make_room_for_files",
    143 "slices stay as long as no payload is appended" by "slices_go_while_no_payload_is_appended",
    144 "a reference that cannot be read counts as none" by "reference_that_cannot_be_read_is_damage",
    142 "an object that cannot be read is never put again" by "object_that_cannot_be_read_is_put_again",
    145 "an object that counts as stored once it was read is put over one that is there" by "object_that_was_read_stays_sound",
    158 "an object whose examination could not be started is forgotten" by "examination_that_cannot_start_is_put_off",
    146 "an object with payload counts as stored before it was read" by "object_counts_as_stored_once_it_was_read",
    147 "any entry without an effect counts as the first one of its term" by "payload_begins_behind_the_first_entry_of_its_term",
    151 "slices of entries are stored with a gap, although payload goes on before it" by "no_slice_is_stored_behind_a_gap",
    152 "payload counts before slices that do not say that the log has it" by "payload_fills_a_gap_if_slices_say_so",
    153 "slices of another history keep payload out, or payload counts before them" by "slices_of_another_history_hide_nothing",
    154 "payload counts behind an entry whose slice went before the log referred to payload"
        by "first_payload_counts_once_a_slice_refers_to_it",
    156 "a payload slice of a group says another log than its batches have" at 36,
    157 "references in blocks of named logs do not count" at 36,
    159 "a named log is said to be in the object store before the entry with its record is there" at 36,
    155 "a new replica begins behind entries that are in no object" at 17,
    160 "a copy of one named log begins behind records that are in no object",
    161 "files of a copy of one named log go before their records are in objects",
    162 "rows leave the table although the object that is to hold them does not have them" at 8,
    163 "a discard of some records forgets all objects whose rows are elsewhere" at 74,
    164 "slices lead from a state before the end of an object that is discarded"
        by "state_before_discarded_objects_leads_nowhere",
    165 "an object that cannot be read is passed over, although the record can be in it" by "unreadable_object_hides_no_other",
    166 "an object that cannot be read hides the records of others" by "unreadable_object_hides_no_other",
    167 "a log is made of objects whose records are discarded, and of slices whose payload may be gone"
        by "state_behind_objects_leads",
    168 "the logs of a branch of a group lack the records in its oldest object"
        by "logs_of_a_branch_begin_where_its_objects_do",
    169 "a leader without room for a session keeps leading" by "leadership_leaves_a_full_disk",
    170 "an object whose footer cannot be read counts as nobody's" by "object_that_may_be_of_another_history_stays",
    171 "a put whose answer was lost is forgotten" by "object_whose_put_had_no_answer_is_put_again",
    172 "cached objects do not give way for the file of another one" by "cached_files_give_way_in_order",
    173 "cached objects go although that makes no room" by "cached_files_give_way_in_order",
    174 "cached objects that readers have open go first" by "cached_files_give_way_in_order",
    175 "a slice that begins with a state counts although it arrived damaged" by "damaged_state_leads_nowhere",
    176 "zeros in place of lost bytes count as bytes of another history" by "object_that_may_be_of_another_history_stays",
    177 "a slice of a state that cannot be read ends each look for slices" by "unreadable_state_stops_nothing",
    178 "one block alone says where the files begin" by "where_files_begin_is_said_twice",
    179 "a restart removes files although one block alone says that they go" by "where_files_begin_is_said_twice",
    180 "files go before the block that says so is proven" by "where_files_begin_is_said_twice",
    181 "a repair trusts a hard state behind a torn write" by "hard_state_behind_a_torn_write_counts_for_nothing",
    182 "appends that belong together go to the object store although a log refuses one of them"
        by "refused_appends_leave_no_half_in_the_store",
    183 "a log that has no quota any more stays full" at 1,
    184 "a full log stays full although all its records are discarded" at 66,
    185 "a replica that was a copy believes before it is added that it was removed" at 52,
    186 "a leader without room for records keeps leading" at 26,
    187 "a leader of a later term opens no session" at 26,
    190 "a payload slice is referred to twice",
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
