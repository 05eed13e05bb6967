//! Power cuts at every point of a workload, with every outcome that a disk allows.
//!
//! A workload runs on a simulated disk that records its operations. For each prefix of them, and each subset of the
//! unsynced writes (all subsets up to 12 sectors, a sample above), the shipped engine recovers and is checked. No
//! acknowledged record is lost, no record is duplicated, reordered or partly there, sessions still know their
//! batches, and the log accepts appends. A second crash during the recovery changes none of this.
//!
//! `CHIPLOG_CRASH_STATES` sets how many different states are explored (default 20,000; `make nightly` explores a
//! million), `CHIPLOG_SEED` the first workload's seed.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use chiplog::disk::sim::{Call, Fault, History, Op, SimDisk, Trouble};
use chiplog::{Codec, LogOption, fuzzing};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::explore::{Effort, Tally, explore};
use support::{Mix, Step, record, run, script};

const THOROUGH: Effort = Effort { exhaustive: 4096, samples: 60, second_crashes: 2, kills: true };

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |v| v.parse().unwrap())
}

/// Workload number `n`: from small and calm to large and busy.
fn workload(n: u64) -> Vec<Step> {
    let mix = match n % 4 {
        0 => Mix { steps: 60, record_bytes: 600, in_flight: 2, sessions: true, discards: true },
        1 => Mix { steps: 150, record_bytes: 3000, in_flight: 4, sessions: false, discards: true },
        2 => Mix { steps: 120, record_bytes: 12_000, in_flight: 6, sessions: true, discards: true },
        _ => Mix { steps: 100, record_bytes: 1500, in_flight: 1, sessions: true, discards: true },
    };
    script(n, mix)
}

/// The simplest life of a log: create, append, idle, append, discard, close.
fn plain_script() -> Vec<Step> {
    let append = |n: u64, bytes: usize| Step::Append {
        session: None,
        records: vec![record(n, bytes)],
        codec: Codec::None,
    };
    vec![
        append(1, 10),
        Step::Wait,
        append(2, 700),
        append(3, 20),
        Step::Wait,
        Step::Idle,
        append(4, 0),
        Step::Discard { records: 2 },
    ]
}

/// Options of the log are set in the first segment, and after a roll, and unset. The header of a segment requires
/// newer readers before the block that needs them is written.
fn options_script() -> Vec<Step> {
    let append = |n: u64, bytes: usize| Step::Append {
        session: None,
        records: vec![record(n, bytes)],
        codec: Codec::None,
    };
    let set = |option, value| Step::SetOption { option, value };
    vec![
        append(1, 10),
        set(LogOption::RetentionBytes, Some(1 << 40)),
        append(2, 30_000),
        append(3, 30_000),
        Step::Wait,
        set(LogOption::SessionWindow, Some(8)),
        Step::OpenSession,
        append(4, 20_000),
        Step::Reopen { segment_kib: 64 },
        append(5, 30_000),
        set(LogOption::RetentionBytes, None),
        set(LogOption::SessionWindow, None),
        append(6, 30_000),
        Step::Discard { records: 4 },
        append(7, 10),
    ]
}

#[test]
fn every_power_cut_leaves_the_acknowledged_records() {
    let wanted = number("CHIPLOG_CRASH_STATES", 20_000) as usize;
    let first = number("CHIPLOG_SEED", 1);
    let tally = Tally::default();
    let mut happened = Happened::default();
    let mut workloads = 0;
    // No workload takes more than this part: a short run meets workloads of all kinds.
    let part = wanted.div_ceil(10);
    let mut scripts = [plain_script(), options_script()].into_iter().chain((first..).map(workload));
    while tally.states() < wanted {
        let steps = scripts.next().unwrap();
        let disk = SimDisk::default();
        // Every other workload has a device with slow syncs, so that appends gather.
        disk.set_sync_time(Duration::from_micros(if workloads % 2 == 0 { 0 } else { 300 }));
        let trace = run(&disk, &steps).unwrap();
        assert!(trace.error.is_none(), "{:?}", trace.error);
        let name = format!("workload {workloads} from seed {first}");
        let enough = wanted.min(tally.states() + part);
        if let Err(wrong) = explore(&name, &disk.history(), &trace, THOROUGH, &tally, enough) {
            panic!("{wrong}");
        }
        happened.add(&disk.history());
        workloads += 1;
    }
    let count = |n: &AtomicUsize| n.load(Ordering::Relaxed);
    println!(
        "crash: {} different states, {} recoveries at {} points ({} of them completely) of {workloads} workloads, \
         {} second crashes, {} kills, {happened:?}",
        tally.states(),
        count(&tally.recoveries),
        count(&tally.points),
        count(&tally.exhaustive),
        count(&tally.second_crashes),
        count(&tally.kills),
    );
    assert!(tally.states() >= wanted);
    // A situation that never occurred was not tested. (A short run does not reach the larger workloads.)
    let Happened { rolls, reuses, removals, shared_writes } = happened;
    let ways = [&tally.exhaustive, &tally.sampled, &tally.second_crashes, &tally.kills].map(count);
    let all = ways.iter().chain(&[rolls, reuses, removals, shared_writes]).all(|n| *n > 0);
    assert!(all || wanted < 20_000, "a situation never occurred: {ways:?}, {happened:?}");
}

/// Whether a reader of format version 1 cannot decode a block: a command of a new operation, or an opening with a new
/// part.
fn is_newer(header: &[u8], body: &[u8]) -> bool {
    let length = |at: usize| at + 4 + u32::from_le_bytes(body[at..at + 4].try_into().unwrap()) as usize;
    match header[60] {
        4 => u64::from_le_bytes(body[..8].try_into().unwrap()) > 3,
        7 => length(length(48)) < body.len(),
        _ => false,
    }
}

/// A reader of version 1 would treat such a block as a torn write, and truncate it.
#[test]
fn no_power_cut_leaves_a_newer_block_in_a_segment_for_older_readers() {
    let disk = SimDisk::default();
    let trace = run(&disk, &options_script()).unwrap();
    assert!(trace.error.is_none(), "{:?}", trace.error);
    let (mut raised, mut newer) = (0, 0);
    for state in disk.history().states() {
        for image in state.crashes(256, 20, 1) {
            for number in 1..12 {
                let Some(file) = image.file(&format!("{number:020}.seg")) else { continue };
                let id = u64::from_le_bytes(file[48..56].try_into().unwrap());
                let asks = u32::from_le_bytes(file[16..20].try_into().unwrap());
                assert_eq!(fuzzing::segment_header(&file).unwrap(), file[..4096], "segment {number}");
                raised += usize::from(asks == 2);
                for at in (4096..file.len() - 64).step_by(64) {
                    if &file[at..at + 4] == b"CLB1"
                        && let Some((header, true)) = fuzzing::block(&file[at..], id)
                    {
                        let length = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
                        let is_newer = is_newer(&header, &file[at + 64..at + length]);
                        newer += usize::from(is_newer);
                        assert!(!is_newer || asks == 2, "segment {number}, offset {at}");
                    }
                }
            }
        }
    }
    assert!(raised > 0 && newer > 0, "{raised} raised headers, {newer} newer blocks");
}

/// The operations that the workloads caused.
#[derive(Clone, Copy, Debug, Default)]
struct Happened {
    rolls: usize,
    /// Files of discarded segments that were reused for new ones.
    reuses: usize,
    removals: usize,
    /// Writes of several blocks at once.
    shared_writes: usize,
}

impl Happened {
    fn add(&mut self, history: &History) {
        for op in &history.ops {
            match op {
                Op::Rename { to, .. } if to.ends_with(".seg") => self.rolls += 1,
                Op::Rename { from, .. } if from.ends_with(".seg") => self.reuses += 1,
                Op::Remove { .. } => self.removals += 1,
                // A block's header begins with these bytes, at a multiple of 64.
                Op::Write { data, .. } if data.chunks(64).filter(|c| c.starts_with(b"CLB1")).count() > 1 => {
                    self.shared_writes += 1;
                }
                _ => {}
            }
        }
    }
}

/// The checks themselves are tested: each of these faulty disks has to be detected.
#[test]
fn faulty_disk_is_detected() {
    let lie = |call, nth, lasting| Fault { call: Some(call), nth, lasting, trouble: Trouble::Lie };
    let lies = [
        ("ignores every sync", lie(Call::Sync, 1, true)),
        ("ignores every sync of the directory", lie(Call::SyncDir, 1, true)),
        ("ignores syncs from the 12th on", lie(Call::Sync, 12, true)),
        ("ignores the directory from the 3rd sync on", lie(Call::SyncDir, 3, true)),
        ("drops the 14th write", lie(Call::Write, 14, false)),
        ("drops every write from the 20th on", lie(Call::Write, 20, true)),
    ];
    for (what, fault) in lies {
        let found = (0..4).find_map(|seed| {
            let disk = SimDisk::default();
            disk.plan(fault);
            let mix = Mix { steps: 80, record_bytes: 6000, in_flight: 2, sessions: false, discards: true };
            let trace = match run(&disk, &script(seed, mix)) {
                Ok(trace) => trace,
                Err(wrong) => return Some(wrong),
            };
            assert!(disk.faults_fired() > 0, "{what}");
            let effort = Effort { exhaustive: 64, samples: 10, second_crashes: 0, kills: false };
            let found = explore(what, &disk.history(), &trace, effort, &Tally::default(), usize::MAX).err();
            found.or_else(|| trace.error.map(|e| format!("{e:?}")))
        });
        let found = found.unwrap_or_else(|| panic!("a disk that {what} was not detected"));
        println!("a disk that {what}: {found}");
    }
}
