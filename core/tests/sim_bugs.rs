//! The simulator is shown to judge: each planted bug is found by the seeds of one run. Feature `planted-bugs`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use chiplog::sim::bugs::{BUGS, plant};
use chiplog::sim::run;

/// Seeds that have to find every bug.
const SEEDS: u64 = 300;

/// One test: the bug that is planted is that of the whole process.
#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    for bug in BUGS {
        plant(bug.number);
        let found = (0..SEEDS).find_map(|seed| run(seed).violation);
        match found {
            Some(violation) => {
                let what: String = violation.what.chars().take(120).collect();
                println!("{:>3} {:<60} seed {:>4}: {what}", bug.number, bug.what, violation.seed);
            }
            None => missed.push(bug.what),
        }
    }
    plant(0);
    assert!(missed.is_empty(), "not found by {SEEDS} seeds: {missed:#?}");
    assert!(BUGS.len() >= 25);
}
