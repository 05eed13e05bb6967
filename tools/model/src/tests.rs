//! Small bounds, in the gate: the shipped rules hold, and each earlier rule shows the failure that its fix prevents.

use crate::checks::{BACK, LEADER, ONE_LEADER, ONE_LOG};
use crate::rules::{Bounds, Kind, Old, Rules};
use crate::run::{self, Outcome};

const SMALL: Bounds = Bounds {
    voters: 2,
    learners: 0,
    fresh: 0,
    terms: 2,
    changes: 1,
    kinds: Vec::new(),
    crashes: 1,
    late: 0,
    set_backs: 0,
    leaders_set_back: false,
    set_back_beside: false,
};

fn small(kinds: &[Kind]) -> Bounds {
    Bounds { kinds: kinds.to_vec(), ..SMALL }
}

fn holds(bounds: &Bounds) {
    let outcome = run::check(Rules::SHIPPED, bounds, 2);
    assert_eq!(outcome.exit_code(), 0, "{}", outcome.text());
}

fn breaks(old: Old, bounds: &Bounds, property: &str) -> Outcome {
    let outcome = run::check(Rules::without([old]), bounds, 2);
    assert_eq!(outcome.exit_code(), 1, "{}", outcome.text());
    let found = outcome.broken.as_ref().map(|(found, _)| *found);
    assert_eq!(found, Some(property), "{}", outcome.text());
    outcome
}

fn set_back() -> Bounds {
    Bounds { voters: 3, changes: 0, crashes: 0, set_backs: 1, ..small(&[]) }
}

/// Of three voters two become learners, one after the other. A demoted one still receives entries.
fn demoted() -> Bounds {
    Bounds { voters: 3, changes: 2, ..small(&[Kind::Demote]) }
}

/// Learner 3 is away while the only voter that it remembers leaves.
fn away() -> Bounds {
    Bounds { voters: 1, learners: 2, changes: 2, ..small(&[Kind::Promote, Kind::Remove]) }
}

#[test]
fn shipped_rules_hold_for_two_voters() {
    holds(&Bounds { terms: 3, ..small(&[Kind::Remove]) });
}

#[test]
fn shipped_rules_hold_for_a_joint_change_of_three_nodes() {
    holds(&Bounds { learners: 1, crashes: 0, ..small(&[Kind::Swap]) });
}

#[test]
fn shipped_rules_hold_for_three_voters_that_crash() {
    holds(&Bounds { voters: 3, ..small(&[Kind::Remove]) });
}

#[test]
fn shipped_rules_hold_for_four_voters_without_a_crash() {
    holds(&Bounds { voters: 4, crashes: 0, ..small(&[Kind::Remove]) });
}

#[test]
fn shipped_rules_hold_where_a_follower_gets_two_changes_at_once() {
    holds(&demoted());
}

#[test]
fn shipped_rules_notice_a_disk_that_was_set_back() {
    holds(&set_back());
}

#[test]
fn shipped_rules_hold_with_a_late_message() {
    holds(&Bounds { terms: 2, crashes: 0, late: 1, ..small(&[Kind::Remove]) });
}

#[test]
fn replica_that_greets_remembered_voters_alone_never_comes_back() {
    let outcome = breaks(Old::Greetings, &away(), BACK);
    assert!(outcome.text().contains("in the end node 3"), "{}", outcome.text());
}

#[test]
fn removal_answered_before_it_is_durable_leaves_no_leader() {
    let outcome = breaks(Old::Word, &small(&[Kind::Remove]), LEADER);
    assert!(outcome.text().contains("THE CHANGE IS ANSWERED"), "{}", outcome.text());
}

#[test]
fn removal_in_force_at_its_commit_leaves_no_leader() {
    breaks(Old::Known, &small(&[Kind::Remove]), LEADER);
}

#[test]
fn vote_of_a_removed_replica_elects_a_leader_that_cannot_commit() {
    breaks(Old::TellCommit, &small(&[Kind::Remove]), LEADER);
}

/// The demoted replica has both changes on its disk and has forgotten that the first is committed. It counts the voters
/// from before both, and wins an election without the only voter that is left.
#[test]
fn two_changes_without_a_word_of_the_first_make_two_leaders() {
    breaks(Old::Note, &demoted(), ONE_LEADER);
}

#[test]
fn removed_replica_that_is_silent_leaves_no_leader() {
    breaks(Old::AnswerOn, &small(&[Kind::Remove]), LEADER);
}

#[test]
fn set_back_disk_that_nobody_checks_makes_two_leaders() {
    breaks(Old::SetBack, &set_back(), ONE_LEADER);
}

#[test]
fn set_back_disk_that_nobody_checks_makes_two_entries_at_one_index() {
    let bounds = Bounds { changes: 1, kinds: vec![Kind::Remove], ..set_back() };
    let outcome = run::check_one(Rules::without([Old::SetBack]), &bounds, 2, ONE_LOG);
    assert_eq!(outcome.broken.as_ref().map(|(found, _)| *found), Some(ONE_LOG), "{}", outcome.text());
}

#[test]
fn set_back_disk_that_waits_for_a_majority_alone_is_not_noticed() {
    breaks(Old::HearAll, &set_back(), ONE_LEADER);
}

#[test]
fn set_back_disk_without_an_introduction_is_not_noticed() {
    breaks(Old::Introduction, &set_back(), ONE_LEADER);
}

#[test]
fn leader_that_speaks_before_its_term_is_durable_leads_it_twice() {
    let bounds = Bounds { voters: 1, learners: 1, changes: 2, ..small(&[Kind::Promote, Kind::Remove]) };
    let outcome = run::check_one(Rules::without([Old::Gate]), &bounds, 2, ONE_LOG);
    assert_eq!(outcome.broken.as_ref().map(|(found, _)| *found), Some(ONE_LOG), "{}", outcome.text());
}

/// The same bounds in two orders of exploration have the same states.
#[test]
fn number_of_states_does_not_depend_on_threads() {
    let bounds = small(&[Kind::Remove]);
    let states = [1, 2].map(|threads| run::check(Rules::SHIPPED, &bounds, threads).states);
    assert_eq!(states[0], states[1]);
}

#[test]
fn bounds_that_reach_nothing_are_told() {
    let outcome = run::check(Rules::SHIPPED, &Bounds { terms: 1, crashes: 0, ..small(&[Kind::Promote]) }, 1);
    assert_eq!(outcome.exit_code(), 2, "{}", outcome.text());
    assert!(outcome.text().contains("NOT REACHED"), "{}", outcome.text());
}
