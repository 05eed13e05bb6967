//! The planted bugs: what each is, how to switch it on, and what finds it. Where each is made is found by its number:
//! `planted!(7)`.
//!
//! Seeds find most of them. One that seeds meet too rarely has a directed scenario, named beside it, which fails while the
//! bug is planted and holds otherwise.

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
    /// What is done wrong.
    pub what: &'static str,
    /// The directed scenario that finds it; none: seeds do.
    pub scenario: Option<&'static str>,
}

/// Makes this mistake from now on, in all of the process; 0: none.
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
/// What does not hold, or that it panics; or there is no such scenario.
pub fn play(scenario: &str) -> Result<(), String> {
    match SCENARIOS.iter().find(|(name, _)| *name == scenario) {
        Some((_, play)) => std::panic::catch_unwind(play).unwrap_or_else(|_| Err("it panics".to_owned())),
        None => Err(format!("there is no scenario {scenario}")),
    }
}

macro_rules! bugs {
    ($($number:literal $what:literal $(by $scenario:literal)?,)*) => {
        /// All of them.
        pub const BUGS: &[Bug] = &[$(Bug { number: $number, what: $what, scenario: bugs!(@ $($scenario)?) },)*];
    };
    (@) => { None };
    (@ $scenario:literal) => { Some($scenario) };
}

bugs! {
    1 "the send gate is off: a leader speaks before its term is durable" by "sole_voter_speaks_after_its_term_is_durable",
    2 "a follower acknowledges before its sync",
    3 "the vote is not written",
    4 "the sync is left out",
    5 "the directory is not synced after a segment was prepared",
    6 "a truncated suffix comes back",
    7 "sessions are forgotten at a roll",
    8 "what is not committed is shown",
    9 "an append is answered before it is committed",
    10 "what a session sent twice is taken twice",
    11 "files go before their discard is committed",
    12 "a barrier is passed without asking anybody",
    13 "a barrier is passed before this replica is as far",
    14 "bodies that arrive are not checked",
    15 "heads that arrive are not checked",
    16 "the directory of a sender is not looked at" by "another_directory_is_not_heard",
    17 "sessions are forgotten at a jump",
    18 "a jump keeps the first index of the old opening",
    19 "commit runs ahead of a jump",
    20 "recovery looks for files that a discard let go",
    21 "the term is lost at a roll",
    22 "a failed sync is taken for a good one",
    23 "what was sent again gets the wrong index",
    24 "a gap in a session is not noticed",
    25 "what a new leader cut off is acknowledged",
    26 "a leader that was removed goes on",
    27 "an append whose outcome is not known is said to be refused",
    28 "the vote is forgotten at a restart",
    30 "a discard is forgotten at a roll",
    31 "what is written while a sync runs is taken for synced",
    32 "a replica that starts waits for no introduction" by "set_back_disk_stays_out",
    33 "a disk that was set back is not noticed" by "set_back_disk_stays_out",
    34 "a leader brings a membership into force at once" by "leader_waits_until_its_removal_is_known",
    35 "no note of a membership that came into force" by "last_voter_remembers_that_it_is_alone",
    36 "no note of what is committed before a second change" by "second_change_comes_with_the_commit_of_the_first",
    37 "the vote is lost at a rollback",
    38 "the vote is lost at a jump",
    39 "a jump asks no barrier again" by "barrier_is_asked_again_after_a_jump",
    40 "a body of another term is sent" by "body_of_another_term_is_not_sent",
    41 "followers remember another time of a session's last append",
    42 "introductions are not heard",
    43 "a removed replica tells nobody what is committed" by "removed_leader_tells_what_is_committed",
    44 "heartbeats do not tell how far a leader's disk is" by "set_back_disk_of_a_leader_stays_out",
    60 "a log that is closed ends at once, whatever is under way",
    61 "a sync that has ended on the other thread is not noted",
    62 "a feed gives more than what is committed",
    63 "a follower does not jump",
    64 "records take the room that is kept for discards and votes" by "full_cluster_takes_a_discard",
    65 "a term is written without looking for room" by "replica_without_room_is_silent_and_goes_on",
    66 "what waits for a file is never handed on",
    67 "a follower on a slow link is sent the same again" by "follower_on_a_slow_link_gets_nothing_twice",
    68 "a full queue drops its oldest message",
    69 "what was fetched to repair a log is not written",
    70 "entries that are here are said to be discarded",
    71 "a question for committed entries is answered with others" by "committed_entries_alone_are_lent_as_committed",
    72 "a repair takes back a vote that the disk still tells of" by "vote_that_the_disk_tells_of_is_not_given_again",
    73 "a damaged opening is made for a dead end" by "opening_behind_an_old_cut_is_made_for_the_cut",
    74 "the options of the log are forgotten at a roll",
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_scenario_is_there_and_stands_for_a_bug() {
        let named: BTreeSet<&str> = BUGS.iter().filter_map(|bug| bug.scenario).collect();
        assert_eq!(named, SCENARIOS.iter().map(|(name, _)| *name).collect());
        let numbers: BTreeSet<u32> = BUGS.iter().map(|bug| bug.number).collect();
        assert_eq!(numbers.len(), BUGS.len(), "a number stands twice");
    }
}
