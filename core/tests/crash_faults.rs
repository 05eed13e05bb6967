//! Every call to the disk fails once, with EIO and with ENOSPC, in every way that it can fail. No acknowledged record
//! is ever lost, every error has a kind, and the log works once the disk does.
//!
//! After each failure the log is opened again *on the same disk*. Its page cache shows the bytes that a failed sync
//! lost (the false `Ok`): everything that the reopened log shows has to survive the power cut that follows.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod support;

use chiplog::cluster::Role;
use chiplog::disk::sim::{Call, Fault, Image, Landed, Op, Rng, SimDisk, Trouble};
use chiplog::{Codec, ErrorKind, Index, Log, LogOption, Start};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use support::{Mix, Step, Trace, Wrong, bounds, open, options, record, run, script};

/// The ways in which a call can fail.
const TROUBLES: [Trouble; 5] = [
    Trouble::Eio(Landed::Nothing),
    Trouble::Eio(Landed::Some(1)),
    Trouble::Eio(Landed::All),
    Trouble::Enospc(Landed::Nothing),
    Trouble::Enospc(Landed::Some(2)),
];

fn append(n: u64, bytes: usize) -> Step {
    Step::Append { session: None, records: vec![record(n, bytes)], codec: Codec::None }
}

/// A life with every operation: two rolls, a proven and an unproven tail, sessions, discards, a reopening.
fn full_life() -> Vec<Step> {
    let mut steps = vec![Step::OpenSession, append(1, 10), append(2, 5000), Step::Wait];
    for n in 0..14 {
        steps.push(append(100 + n, 9000));
        steps.push(Step::Append {
            session: Some(0),
            records: vec![record(200 + n, 50), record(300 + n, 5)],
            codec: Codec::Lz4,
        });
        if n % 3 == 0 {
            steps.push(Step::Wait);
        }
        if n == 7 {
            let set = Step::SetOption { option: LogOption::SessionWindow, value: Some(12) };
            steps.extend([Step::Discard { records: 21 }, Step::Reopen { segment_kib: 64 }, set]);
        }
    }
    steps.extend([
        Step::Retry { session: 0 },
        Step::Idle,
        Step::CloseSession { session: 0 },
        append(3, 300),
        Step::Wait,
        append(4, 3),
    ]);
    steps
}

/// Continues after a failure: opens the log on the same disk, checks it, appends, cuts the power so that only the
/// synced bytes are left (or, by `luck`, some more), and checks again.
fn survives(disk: &SimDisk, trace: &Trace, legal: RangeInclusive<usize>, luck: u64) -> Result<(), Wrong> {
    disk.heal();
    let log = open(disk).map_err(|e| format!("the log does not open once the disk works: {e:?}"))?;
    let ks = trace.judge(&log, legal)?;
    let k = *ks.end();
    let mut after = trace.clone();
    after.forget_after(&ks);
    // As long as the lost block, so that an old block after it is found.
    let next = after.snapshots[k].next;
    let lost = |n: u64| trace.records.get(&next.plus(n)).map_or(30, Vec::len);
    after.extend(disk, &log, &[record(1_000_001, lost(0)), record(1_000_002, lost(1))])?;
    let mut rng = Rng::new(luck);
    let cut = disk.crash(|versions| if luck % 2 == 1 { rng.below(versions) } else { 0 });
    drop(log);
    let log = open(&cut).map_err(|e| format!("the log does not open after the power cut: {e:?}"))?;
    after
        .judge(&log, after.acknowledged..=after.submitted)
        .map_err(|e| format!("after the power cut: {e}"))?;
    Ok(log.close()?)
}

/// Runs `check` for 1, 2, 3 … on all cores until it returns false: the fault no longer occurred.
fn for_every_call(check: impl Fn(u64) -> bool + Sync) -> u64 {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let (next, done) = (AtomicU64::new(1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if !check(next.fetch_add(1, Ordering::Relaxed)) {
                        done.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    next.into_inner()
}

#[test]
fn failure_of_any_call_loses_nothing() {
    let steps = full_life();
    let sound = SimDisk::default();
    let trace = run(&sound, &steps).unwrap();
    assert!(trace.error.is_none(), "{:?}", trace.error);
    let mut kinds = BTreeMap::new();
    for trouble in TROUBLES {
        for lasting in [false, true] {
            let seen = std::sync::Mutex::new(Vec::new());
            let calls = for_every_call(|nth| {
                let disk = SimDisk::default();
                disk.plan(Fault { call: None, nth, lasting, trouble });
                let what = format!("{trouble:?} at call {nth}, lasting {lasting}");
                let trace = run(&disk, &steps).unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
                if disk.faults_fired() == 0 {
                    return false;
                }
                if let Some(error) = &trace.error {
                    let named = [ErrorKind::Io, ErrorKind::Poisoned, ErrorKind::Full];
                    assert!(named.contains(&error.kind()), "{what}: {error:?}");
                    seen.lock().unwrap().push((error.kind().name(), trace.acknowledged));
                }
                if let Err(Wrong(wrong)) = survives(&disk, &trace, trace.acknowledged..=trace.submitted, nth)
                {
                    panic!("{what} ({:?}): {wrong}", trace.error);
                }
                true
            });
            assert!(calls > 100, "{calls} calls");
            for (name, _) in seen.into_inner().unwrap() {
                *kinds.entry(name).or_insert(0) += 1;
            }
        }
    }
    println!("faults: errors by kind {kinds:?}");
    assert!(kinds.len() >= 2, "{kinds:?}");
}

/// Logs after crashes are recovered on a disk that fails, at every call of the recovery.
#[test]
fn failure_of_any_call_of_recovery_loses_nothing() {
    let mix = Mix { steps: 60, record_bytes: 3000, in_flight: 8, sessions: false, discards: true };
    let mut tried = 0;
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let disk = SimDisk::default();
        // Single records only: a later append is then written exactly where a lost block was.
        let single = |s: &Step| !matches!(s, Step::Append { records, .. } if records.len() > 1);
        let steps: Vec<Step> = script(seed, mix).into_iter().filter(single).collect();
        let trace = run(&disk, &steps).unwrap();
        let history = disk.history();
        let bounds = bounds(&history);
        let states: Vec<_> = history.states().collect();
        let mut images: Vec<(Image, RangeInclusive<usize>)> = Vec::new();
        while images.len() < 25 {
            let point = rng.below(states.len());
            if states[point].dirty_units() > 0 {
                images.push((states[point].crash(|versions| rng.below(versions)), bounds[point].clone()));
            }
        }
        for (image, legal) in &images {
            for trouble in TROUBLES {
                tried += for_every_call(|nth| {
                    let disk = SimDisk::new(image.clone());
                    disk.plan(Fault { call: None, nth, lasting: false, trouble });
                    let what = format!("seed {seed}, {trouble:?} at call {nth} of recovery");
                    match open(&disk) {
                        Ok(log) => drop(log),
                        Err(e) if matches!(e.kind(), ErrorKind::Io | ErrorKind::Full) => {}
                        Err(e) => panic!("{what}: {e:?}"),
                    }
                    if let Err(Wrong(wrong)) = survives(&disk, &trace, legal.clone(), nth) {
                        panic!("{what}: {wrong}");
                    }
                    disk.faults_fired() > 0
                });
            }
        }
    }
    assert!(tried > 1000, "{tried}");
}

fn fault(call: Call, nth: u64, trouble: Trouble) -> Fault {
    Fault { call: Some(call), nth, lasting: false, trouble }
}

const FIRST_SEGMENT: &str = "00000000000000000001.seg";

/// Linux marks pages clean after a failed write-back. A log that retried the sync would get `Ok`.
#[test]
fn failed_sync_poisons_for_good_and_readers_continue() {
    let disk = SimDisk::default();
    let log = open(&disk).unwrap();
    log.append(b"safe").unwrap();
    let syncs = Fault { lasting: true, ..fault(Call::Sync, 1, Trouble::Eio(Landed::Nothing)) };
    assert!(disk.plan_on(FIRST_SEGMENT, syncs)); // only this file, not those that the helper prepares
    let first = log.append(b"unknown").unwrap_err();
    assert!(matches!(first.kind(), ErrorKind::Io | ErrorKind::Poisoned), "{first:?}");
    let cause = log.poison_cause().unwrap();
    assert_eq!(cause.os_error(), Some(5), "the cause is kept: {cause:?}");
    let status = log.status();
    assert_eq!(
        (status.replica.role, status.replica.leader),
        (Role::Follower, None),
        "it does not report to lead for ever"
    );
    for _ in 0..3 {
        assert_eq!(log.append(b"late").unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(log.discard(Index(2)).unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(log.open_session().unwrap_err().kind(), ErrorKind::Poisoned);
    }
    assert_eq!(disk.faults_fired(), 1, "a failed sync is never retried");
    let image = disk.visible();
    for name in image.names().filter(|name| name.ends_with(".seg") && *name != FIRST_SEGMENT) {
        let begun = image.file(name).unwrap()[4096..].iter().any(|b| *b != 0);
        assert!(!begun, "{name}: no later segment is begun either");
    }
    assert_eq!(&log.read(Index(1)).unwrap().data[..], b"safe");
    assert_eq!(log.last_index(), Index(1), "an unacknowledged record is not published");
    let mut reader = log.reader(Start::First).unwrap();
    assert!(reader.next_record().unwrap().is_some());
    assert!(reader.next_record().unwrap().is_none());
}

/// The reopened log can show the record whose sync failed; then that record is durable.
#[test]
fn record_shown_after_a_failed_sync_is_durable() {
    let disk = SimDisk::default();
    let log = open(&disk).unwrap();
    log.append(b"safe").unwrap();
    assert!(disk.plan_on(FIRST_SEGMENT, fault(Call::Sync, 1, Trouble::Eio(Landed::Nothing))));
    log.append(b"unknown").unwrap_err();
    drop(log);
    disk.heal();
    let log = open(&disk).unwrap();
    let shown = log.last_index();
    drop(log);
    let log = open(&disk.crash(|_| 0)).unwrap();
    assert_eq!(log.last_index(), shown);
    assert_eq!(&log.read(Index(1)).unwrap().data[..], b"safe");
}

/// A disk on which creating a log failed at this call for the identity file.
fn first_failure_at_identity(call: Call, trouble: Trouble) -> SimDisk {
    (1..20)
        .find_map(|nth| {
            let disk = SimDisk::default();
            disk.plan(fault(call, nth, trouble));
            let error = open(&disk).err()?;
            disk.heal();
            error.to_string().contains("chiplog.id").then_some(disk)
        })
        .expect("the identity is written and synced")
}

/// The identity of a new log was written, its sync failed, and the next opening saw it in the page cache and trusted
/// it. Records were acknowledged. A power cut removed the identity alone, and the log did not open.
#[test]
fn identity_that_was_visible_but_not_durable_is_written_again() {
    let disk = first_failure_at_identity(Call::Sync, Trouble::Eio(Landed::Nothing));
    assert!(disk.visible().file("chiplog.id").is_some_and(|f| f.starts_with(b"chiplogI")));
    let log = open(&disk).unwrap();
    log.append(b"acknowledged").unwrap();
    let after = disk.crash(|_| 0);
    drop(log);
    let log = open(&after).unwrap();
    assert_eq!(&log.read(Index(1)).unwrap().data[..], b"acknowledged");
}

/// A failed write left the first bytes of an identity, and the directory counted as a damaged log for ever, although
/// no log had been created.
#[test]
fn half_an_identity_is_no_log() {
    for part in 0..8 {
        let disk = first_failure_at_identity(Call::Write, Trouble::Enospc(Landed::Some(part)));
        open(&disk).unwrap().append(b"x").unwrap();
    }
}

/// The sync of the marker after the last record failed. After a restart the page cache still showed the marker.
/// Everything before it counted as proven, and new records were written after it. The power cut left a hole in its
/// place, with acknowledged records after it.
#[test]
fn marker_that_was_visible_but_not_durable_is_written_again() {
    // The threads decide which sync is the marker's.
    let disk = (0..20)
        .find_map(|_| {
            let disk = SimDisk::default();
            let log = open(&disk).unwrap();
            std::thread::sleep(Duration::from_millis(30)); // the opening's own marker is written
            assert!(disk.plan_on(FIRST_SEGMENT, fault(Call::Sync, 2, Trouble::Eio(Landed::Nothing))));
            log.append(&record(1, 250)).ok()?; // ends within a sector: the first marker fills that up
            (0..1000).find(|_| {
                std::thread::sleep(Duration::from_millis(1));
                log.poison_cause().is_some()
            })?;
            Some(disk)
        })
        .expect("an idle log writes its marker, and its sync fails");
    disk.heal();
    let log = open(&disk).unwrap();
    for n in 2..=8 {
        log.append(&record(n, 300)).unwrap();
    }
    let after = disk.crash(|_| 0);
    drop(log);
    let log = open(&after).unwrap();
    assert_eq!(log.last_index(), Index(8));
    assert_eq!(&log.read(Index(1)).unwrap().data[..], record(1, 250));
}

/// Three blocks were in one write; the power cut kept the first and lost the others. Recovery truncates them, but the
/// sync of its zeros fails, so the zeros are in the page cache only. The reopened log appends as many bytes as were
/// lost. On the disk the old blocks are now directly after the new ones, and fit.
#[test]
fn truncated_block_never_reappears_after_a_new_one() {
    const FRAME_BYTES: usize = 64 + 44; // the overhead of a block of one record
    const SHORT_BYTES: usize = 128; // a block of a few bytes, of a command, or of a new term
    let writes = |disk: &SimDisk| {
        let write = |op: &Op| if let Op::Write { offset, .. } = op { Some(*offset as usize) } else { None };
        disk.history().ops.iter().filter_map(write).collect::<Vec<_>>()
    };
    // The threads decide which appends share a write.
    let (state, offset, lost_bytes) = (0..20)
        .find_map(|_| {
            let disk = SimDisk::default();
            let log = open(&disk).unwrap();
            log.append(b"first").unwrap();
            std::thread::sleep(Duration::from_millis(50)); // the helper has finished, the marker is written
            disk.set_sync_time(Duration::from_millis(40));
            let before = writes(&disk).len();
            let busy = log.submit(b"busy").unwrap();
            while writes(&disk).len() == before && busy.poll().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            // The lost block ends at the end of a page: a write fills its last page with zeros.
            let offset = writes(&disk)[before] + SHORT_BYTES;
            let lost_bytes = (offset + 1000).next_multiple_of(4096) - offset;
            std::thread::scope(|scope| {
                let lost = log.submit(&record(1, lost_bytes - FRAME_BYTES)).unwrap();
                scope.spawn(|| log.open_session());
                std::thread::sleep(Duration::from_millis(10));
                let left = log.submit(b"left").unwrap();
                let _ = [busy, lost, left].map(|t| t.wait().unwrap());
            });
            let history = disk.history();
            let together = |op: &Op| {
                matches!(op, Op::Write { offset: at, data, .. } if *at == offset as u64 && data.len() > lost_bytes)
            };
            let n = history.ops.iter().position(together)?;
            history.states().nth(n + 1).map(|state| (state, offset, lost_bytes))
        })
        .expect("an append, a command and an append in one write");
    // Of the file's dirty sectors only those of the later blocks are kept.
    let mut sector = offset / 512;
    let image = state.crash(|versions| {
        let keep = sector >= (offset + lost_bytes) / 512;
        sector += 1;
        if keep { versions - 1 } else { 0 }
    });
    let disk = SimDisk::new(image);
    disk.plan(fault(Call::Sync, 1, Trouble::Eio(Landed::Nothing)));
    assert_eq!(open(&disk).unwrap_err().kind(), ErrorKind::Io, "the truncation cannot be made durable");
    disk.heal();
    let log = open(&disk).unwrap();
    let new = log.append(&record(77, lost_bytes - SHORT_BYTES - FRAME_BYTES)).unwrap();
    let before = log.status();
    assert_eq!((new, before.last_index, before.sessions), (Index(3), Index(3), 0));
    let after = disk.crash(|_| 0);
    drop(log);
    let log = open(&after).unwrap();
    let now = log.status();
    assert_eq!((now.last_index, now.sessions), (new, 0), "unacknowledged records that were gone are back");
    assert_eq!(log.append(b"on").unwrap(), new.next());
}

/// A full disk refuses appends as `Full` and loses nothing. A discard makes room, also after a restart on the full
/// disk.
#[test]
fn full_disk_refuses_appends_and_discard_makes_room() {
    for space_kib in [200, 256, 300, 333, 400] {
        let disk = SimDisk::default();
        disk.limit_space(Some(space_kib << 10));
        let mut log = match open(&disk) {
            Ok(log) => log,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Full, "{space_kib} KiB: {e:?}");
                assert!(space_kib < 256, "{space_kib} KiB hold three segments and more: {e:?}");
                continue;
            }
        };
        let mut next = 1;
        for round in 0..4 {
            let full = loop {
                match log.append(&record(next, 3000)) {
                    Ok(index) => assert_eq!(index, Index(next)),
                    Err(e) => break e,
                }
                next += 1;
            };
            assert_eq!(full.kind(), ErrorKind::Full, "{space_kib} KiB, round {round}: {full:?}");
            assert!(log.poison_cause().is_none(), "a refused append is clean: {:?}", log.poison_cause());
            if round % 2 == 1 {
                log.close().unwrap();
                log = open(&disk).unwrap_or_else(|e| panic!("{space_kib} KiB, a full log opens: {e:?}"));
            }
            let status = log.status();
            assert_eq!(status.last_index, Index(next - 1));
            let mut reader = log.reader(Start::First).unwrap();
            let mut read = 0;
            while let Some(r) = reader.next_record().unwrap() {
                assert_eq!(r.data, record(r.index.0, 3000));
                read += 1;
            }
            assert_eq!(read, status.last_index.0 + 1 - status.first_index.0);
            drop(reader);
            log.discard(Index(next)).unwrap_or_else(|e| panic!("{space_kib} KiB, a discard has room: {e:?}"));
        }
        log.append(b"after all").unwrap();
        log.close().unwrap();
    }
}

/// The capacity is a limit like the disk's, with the same error kind.
#[test]
fn log_at_its_capacity_refuses_appends_and_discard_makes_room() {
    let disk = SimDisk::default();
    let options = options().capacity_bytes(128 << 10);
    let log = Log::open_on(Arc::new(disk), options).unwrap();
    let mut n = 0;
    let full = loop {
        n += 1;
        match log.append(&record(n, 2000)) {
            Ok(_) => {}
            Err(e) => break e,
        }
    };
    assert_eq!(full.kind(), ErrorKind::Full);
    assert!((40..=64).contains(&n), "{n} records of 2000 bytes in 128 KiB");
    log.discard(Index(n / 2)).unwrap();
    log.append(&record(n, 2000)).unwrap();
}

/// Helper threads on a failing disk do not make the log fail.
#[test]
fn failed_footer_or_removal_is_made_up_for() {
    for call in [Call::Remove, Call::Open, Call::Rename] {
        let disk = SimDisk::default();
        let steps: Vec<Step> =
            (0..60).map(|n| append(n, 4000)).chain([Step::Discard { records: 50 }]).collect();
        disk.plan(Fault { call: Some(call), nth: 3, lasting: false, trouble: Trouble::Eio(Landed::Nothing) });
        let trace = run(&disk, &steps).unwrap();
        if let Err(Wrong(wrong)) = survives(&disk, &trace, trace.acknowledged..=trace.submitted, 0) {
            panic!("{call:?}: {wrong}");
        }
    }
}
