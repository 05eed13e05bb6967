//! The planted bugs: what each is, and how to switch it on. Where each is made is found by its number: `planted!(7)`.

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
}

/// Makes this mistake from now on, in all of the process; 0: none.
///
/// ```
/// chiplog::sim::bugs::plant(0);
/// ```
pub fn plant(number: u32) {
    crate::planted::plant(number);
}

macro_rules! bugs {
    ($($number:literal $what:literal,)*) => {
        /// All of them.
        pub const BUGS: &[Bug] = &[$(Bug { number: $number, what: $what },)*];
    };
}

bugs! {
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
    30 "a discard is forgotten at a roll",
    60 "a log that is closed ends at once, whatever is under way",
    61 "a sync that has ended on the other thread is not noted",
}

/// Planted as well, and not found by 400 seeds, because something else stands behind them: they count for nothing until a
/// scenario reaches them.
///
/// ```
/// assert!(chiplog::sim::bugs::MASKED.iter().all(|bug| !bug.what.is_empty()));
/// ```
pub const MASKED: &[Bug] = &[
    // A sole voter has its term on the disk before it is opened; everybody else before it is elected.
    Bug { number: 1, what: "a leader speaks before its term is durable" },
    // A wiped voter that comes back under its name has to be introduced first.
    Bug { number: 16, what: "the directory of a sender is not looked at" },
    // Who restarts has to be introduced first, which takes longer than most terms.
    Bug { number: 28, what: "the vote is forgotten at a restart" },
];
