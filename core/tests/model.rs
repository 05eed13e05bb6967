//! The log against a model: any sequence of appends, batches, retries, discards, fast-forwards, reopenings, crashes
//! and reads has the same results as a plain list.
//!
//! `PROPTEST_CASES` sets the number of sequences.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use chiplog::Codec;
use chiplog::disk::sim::{Call, Fault, Landed, SimDisk, Trouble};
use proptest::prelude::*;
use std::time::Duration;
use support::{Step, record, run};

/// A step before its records have their numbers and its sessions are known to exist.
#[derive(Clone, Debug)]
enum Wish {
    Append { session: Option<usize>, sizes: Vec<usize>, codec: Codec },
    Session(usize, bool),
    Plain(Step),
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..40usize, 4 => 0..1000usize, 2 => 0..9000usize, 1 => 20_000..30_000usize]
}

fn codec() -> impl Strategy<Value = Codec> {
    prop_oneof![3 => Just(Codec::None), 1 => Just(Codec::Lz4), 1 => Just(Codec::Zstd)]
}

fn wish() -> impl Strategy<Value = Wish> {
    let plain = |step: Step| Just(Wish::Plain(step));
    prop_oneof![
        24 => (proptest::option::weighted(0.3, 0..3usize), proptest::collection::vec(size(), 1..2), codec())
            .prop_map(|(session, sizes, codec)| Wish::Append { session, sizes, codec }),
        8 => (proptest::option::weighted(0.3, 0..3usize), proptest::collection::vec(0..300usize, 2..40), codec())
            .prop_map(|(session, sizes, codec)| Wish::Append { session, sizes, codec }),
        6 => (0..3usize).prop_map(|n| Wish::Session(n, false)),
        1 => (0..3usize).prop_map(|n| Wish::Session(n, true)),
        3 => plain(Step::OpenSession),
        3 => (0..40u64).prop_map(|records| Wish::Plain(Step::Discard { records })),
        1 => (100..10_000u64).prop_map(|records| Wish::Plain(Step::Discard { records })),
        4 => plain(Step::Wait),
        1 => plain(Step::Idle),
        2 => prop_oneof![Just(64), Just(64), Just(128)].prop_map(|segment_kib| Wish::Plain(Step::Reopen { segment_kib })),
        4 => plain(Step::Read),
        4 => (any::<u64>(), 0..=8usize).prop_map(|(seed, keep)| Wish::Plain(Step::Crash { seed, keep })),
    ]
}

/// Numbers the records.
fn steps(wishes: Vec<Wish>) -> Vec<Step> {
    let mut n = 0;
    let mut bytes = |size: &usize| {
        n += 1;
        record(n, *size)
    };
    let step = |wish| match wish {
        Wish::Plain(step) => step,
        Wish::Session(session, true) => Step::CloseSession { session },
        Wish::Session(session, false) => Step::Retry { session },
        Wish::Append { session, sizes, codec } => {
            Step::Append { session, records: sizes.iter().map(&mut bytes).collect(), codec }
        }
    };
    wishes.into_iter().map(step).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(
        std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(400)) })]

    #[test]
    fn the_log_is_a_list(wishes in proptest::collection::vec(wish(), 1..60), sync_micros in prop_oneof![Just(0), Just(200)]) {
        let disk = SimDisk::default();
        // With slow syncs appends gather.
        disk.set_sync_time(Duration::from_micros(sync_micros));
        match run(&disk, &steps(wishes)) {
            Err(wrong) => prop_assert!(false, "{}", wrong),
            Ok(trace) => prop_assert!(trace.error.is_none(), "{:?}", trace.error),
        }
    }
}

/// A retry is acknowledged although the append before it got no file, and was refused.
#[test]
fn an_append_is_refused_before_a_retry_and_a_crash() {
    let large = |n| Step::Append { session: None, records: vec![record(n, 28_000)], codec: Codec::None };
    let steps = [
        Step::OpenSession,
        Step::Append { session: Some(0), records: vec![record(1, 10)], codec: Codec::None },
        large(2),
        Step::Wait,
        large(3),
        Step::Retry { session: 0 },
        Step::Crash { seed: 1, keep: 1 },
        Step::Read,
    ];
    for nth in 1..20 {
        let disk = SimDisk::default();
        let trouble = Trouble::Eio(Landed::Nothing);
        disk.plan(Fault { call: Some(Call::Create), nth, lasting: true, trouble });
        run(&disk, &steps).unwrap_or_else(|wrong| panic!("the {nth}th file cannot be created: {wrong}"));
    }
}
