//! Simulated clusters: thousands of seeds, each a run with its own faults. Invariants are checked after every event,
//! and the whole history at the end.
//!
//! `CHIPLOG_SIM_SEEDS=n` runs `n` seeds, `CHIPLOG_SIM_FROM=n` begins at seed `n`. `make sim SEED=n` prints the story
//! of one.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use chiplog::sim::{Counts, Fault, Plan, Report, Simulation, run};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

/// How many seeds the tests run by default.
const SEEDS: u64 = 300;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect(variable))
}

/// Runs seeds on all processors; passes each report to `take`.
fn each(from: u64, to: u64, mut take: impl FnMut(Report)) {
    let next = AtomicU64::new(from);
    std::thread::scope(|scope| {
        let (tx, rx) = channel();
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let (tx, next) = (tx.clone(), &next);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= to || tx.send(run(seed)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tx);
        rx.iter().for_each(&mut take);
    });
}

#[test]
fn no_violation_happens_and_every_fault_does() {
    let (from, seeds) = (number("CHIPLOG_SIM_FROM", 0), number("CHIPLOG_SIM_SEEDS", SEEDS));
    let began = Instant::now();
    let (mut counts, mut violations, mut simulated) = (Counts::default(), Vec::new(), 0.0);
    let (mut in_time, mut failovers, mut worst) = (0, 0, 0f64);
    each(from, from + seeds, |report| {
        counts.add_all(&report.counts);
        simulated += report.simulated.as_secs_f64();
        for failover in &report.failovers {
            failovers += 1;
            in_time += u64::from(failover.is_in_time());
            worst = worst.max(failover.took.as_secs_f64() / failover.election_timeout.as_secs_f64());
        }
        if let Some(violation) = report.violation {
            if violations.len() < 5 {
                println!("VIOLATION: {violation}\n");
            }
            violations.push(violation);
        }
    });
    println!(
        "{seeds} seeds: {simulated:.0} s simulated in {:.1} s; {in_time} of {failovers} fail-overs within two election \
         time-outs, the worst {worst:.2}",
        began.elapsed().as_secs_f64()
    );
    violations.sort_by_key(|v| v.seed);
    let seen: Vec<u64> = violations.iter().map(|v| v.seed).collect();
    assert!(seen.is_empty(), "seeds {seen:?}");
    if seeds >= 300 {
        assert!(counts.missing().is_empty(), "never happened: {:?}", counts.missing());
    }
}

/// A seed determines one run, on every machine and every time.
#[test]
fn seed_runs_the_same_twice() {
    for seed in 0..20 {
        let (a, b) = (run(seed), run(seed));
        assert_eq!(
            (a.fingerprint, a.events, a.simulated, a.counts, a.history),
            (b.fingerprint, b.events, b.simulated, b.counts, b.history),
            "seed {seed}"
        );
    }
}

/// Without faults everything goes well: one leader, and every call is answered.
#[test]
fn without_faults_nothing_is_lost_and_every_call_returns() {
    for seed in 0..30 {
        let report = Simulation::new(Plan::calm(seed)).run();
        assert!(report.violation.is_none(), "{}", report.violation.unwrap());
        assert_eq!(report.leaders, 1, "seed {seed}");
        assert!(report.acknowledged > 50, "seed {seed}: {} appends", report.acknowledged);
        let refused =
            report.history.calls.iter().filter(|c| matches!(c.reply, chiplog::sim::Reply::Nothing)).count();
        assert_eq!(refused, 0, "seed {seed}");
    }
}

/// A leader was closed 30 ms after a partition, before any other replica could answer it. It gives up appends that it
/// cannot see a majority commit, as documented. The check treated it as a leader whose majority answers.
#[test]
fn seed_2446_closes_a_leader_that_nobody_has_answered_yet() {
    let report = run(2446);
    assert!(report.violation.is_none(), "{}", report.violation.unwrap());
}

/// A replica jumped while a reader was in its last segment, which then no longer told where it ended: the reader looked for the next
/// record in an object, and not in the file that had it.
#[test]
fn seed_288_reader_goes_on_in_the_file_behind_a_jump() {
    let report = run(288);
    assert!(report.violation.is_none(), "{}", report.violation.unwrap());
}

/// A copy without an object store began before the log had objects. The first cut moved the log's beginning back to records that
/// the copy has no files of, and once it was opened again readers looked for them.
#[test]
fn seed_1173_copy_without_an_object_store_begins_with_its_files() {
    let report = run(1173);
    assert!(report.violation.is_none(), "{}", report.violation.unwrap());
}

/// The object store listed a pin, and said that it is not there when it was read. So a deletion took the pin for removed, and deleted an
/// object that it keeps.
#[test]
fn seed_442_pin_that_is_listed_and_not_found_keeps_its_objects() {
    let report = run(442);
    assert!(report.violation.is_none(), "{}", report.violation.unwrap());
}

/// A log on one voter syncs the last block of a segment, answers its append, rolls, and the sync of the next segment fails: all in
/// one step. The checks took the record for not durable, which it was.
#[test]
fn seed_995_acknowledges_before_a_later_sync_of_the_same_step_fails() {
    let report = run(995);
    assert!(report.violation.is_none(), "{}", report.violation.unwrap());
}

/// A segment was removed after all its entries had been truncated, and the opening of the next one was damaged: nothing
/// was left that shows what the removed one held, and the replica refused to start, as documented. The simulator took
/// that for damage which a log survives.
#[test]
fn seed_2229_damages_no_opening_behind_a_removed_segment() {
    let report = run(2229);
    assert!(report.violation.is_none(), "{}", report.violation.unwrap());
}

/// The files of a log with objects were removed because an opening said that their records are in objects. Then that opening was damaged,
/// the files counted as lost, and the replica refused to start, as documented. The simulator took that for damage which a log survives.
#[test]
fn seed_97_damages_no_opening_that_alone_says_where_files_begin() {
    let report = run(97);
    assert!(report.violation.is_none(), "{}", report.violation.unwrap());
}

/// Records were discarded, and so were their objects and their payload slices. The entries were in the files all the same, in a segment
/// that was still growing, and referred to the payload. A copy that lacked them was fed nothing any more.
#[test]
fn seed_808_copy_is_led_past_entries_whose_payload_is_gone() {
    let report = run(808);
    assert!(report.violation.is_none(), "{}", report.violation.unwrap());
}

/// A replica jumped to where the log of named logs had no objects yet, and learnt of the first object before it learnt of the discard
/// that had let it jump. The checks expected its named logs to begin where the discard had not come yet.
#[test]
fn seed_1286_jumps_before_the_first_object_and_learns_of_the_discard_later() {
    let report = run(1286);
    assert!(report.violation.is_none(), "{}", report.violation.unwrap());
}

/// A leader was demoted by a joint change, alone knew that this was committed, had written more, and started again as a learner. The
/// others still counted it as a voter, in a later term, and ignored its refusals of the earlier one: there was no leader any more.
#[test]
fn seed_1048_demoted_leader_reports_the_commit_to_a_later_term() {
    let report = run(1048);
    assert!(report.violation.is_none(), "{}", report.violation.unwrap());
}

/// A replica jumped, its first file was there again after a power cut, and the opening behind the jump was damaged. The repair took the old
/// file for the one before, and ended because the entries between had no room in the gap.
#[test]
fn seed_2033_repairs_an_opening_behind_a_jump() {
    let report = run(2033);
    assert!(report.violation.is_none(), "{}", report.violation.unwrap());
    assert!(report.counts.of(Fault::Repair) > 0);
}

/// The story that `make sim SEED=n` prints is that of the very run.
#[test]
fn listening_changes_nothing() {
    let quiet = run(5);
    let lines = std::rc::Rc::new(std::cell::Cell::new(0));
    let counter = lines.clone();
    let told = Simulation::new(Plan::of(5)).tell(move |_| counter.set(counter.get() + 1)).run();
    assert_eq!((quiet.fingerprint, quiet.events), (told.fingerprint, told.events));
    assert!(lines.get() > 100);
}

/// Copies of logs in the class `object` became replicas: they have the payload where replicas have references.
#[test]
fn seeds_680_and_756_no_copy_of_a_log_with_a_store_becomes_a_replica() {
    for seed in [680, 756] {
        let report = run(seed);
        assert!(report.violation.is_none(), "{}", report.violation.unwrap());
    }
}

/// A failed write left half of a header that was raised in place: within a sector, which no write leaves in part.
#[test]
fn seed_1198_raised_header_is_whole_after_a_failed_write() {
    let report = run(1198);
    assert!(report.violation.is_none(), "{}", report.violation.unwrap());
}

/// A part of an object came damaged, and stayed in the cache: copies of a group in the class `object` failed at it for ever.
#[test]
fn seed_1304_object_that_came_damaged_leaves_the_cache() {
    let report = run(1304);
    assert!(report.violation.is_none(), "{}", report.violation.unwrap());
}

/// A bit rotted in a replica that was removed and went on running. Then another of its files was damaged and repaired, and the checks
/// took the whole disk for sound.
#[test]
fn seed_1727_rot_outlasts_the_repair_of_another_file() {
    let report = run(1727);
    assert!(report.violation.is_none(), "{}", report.violation.unwrap());
    assert!(report.counts.of(Fault::Rot) > 0 && report.counts.of(Fault::Repair) > 0);
}
