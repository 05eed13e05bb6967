#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;
use crate::store::format::geometry::{TABLE_HEADER_BYTES, session_table_bytes_max};
use proptest::prelude::*;
use std::collections::BTreeMap;

const IDLE: u64 = 1000;

fn stamp(session: u64, sequence: u64, inflight: u16) -> Stamp {
    Stamp { session: SessionId(session), sequence: Sequence(sequence), inflight }
}

fn at(first: u64, count: u32) -> Appended {
    Appended::new(Index(first), count)
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// Session 1 with `n` batches of two records, at 10, 20, 30 …, all without an answer so far.
fn table(n: u64, window: u16) -> Sessions {
    let mut table = Sessions::new(2, window);
    table.open(SessionId(1), LogNumber::OWN, IDLE, Timestamp(0)).unwrap();
    for s in 1..=n {
        let stamp = stamp(1, s, u16::MAX);
        assert_eq!(table.check(&stamp, Timestamp(s)).unwrap(), None);
        table.apply(&stamp, Index(10 * s), 2, Timestamp(s)).unwrap();
    }
    table
}

#[test]
fn retry_returns_the_original_indexes_and_a_gap_is_refused() {
    let table = table(3, 8);
    let now = Timestamp(5);
    for s in 1..=3 {
        assert_eq!(table.check(&stamp(1, s, 0), now).unwrap(), Some(at(10 * s, 2)));
    }
    assert_eq!(table.check(&stamp(1, 4, 0), now).unwrap(), None);
    let error = table.check(&stamp(1, 6, 0), now).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SequenceGap);
    assert!(error.to_string().contains("expected at most 4, got 6"), "{error}");
    assert_eq!(kind(table.check(&stamp(2, 1, 0), now)), ErrorKind::SessionExpired);
    assert_eq!(table.check(&Stamp::default(), now).unwrap(), None);
    assert_eq!(table.get(SessionId(1)), Some(Sequence(3)));
    assert_eq!(table.get(SessionId(2)), None);
}

#[test]
fn answered_batches_and_those_beyond_the_window_are_forgotten() {
    let mut table = table(6, 4);
    let now = Timestamp(9);
    assert_eq!(kind(table.check(&stamp(1, 2, 0), now)), ErrorKind::SequenceForgotten);
    assert_eq!(table.check(&stamp(1, 3, 0), now).unwrap(), Some(at(30, 2)));
    // The client had the answers up to 5, but not the answer for 6.
    table.apply(&stamp(1, 7, 1), Index(70), 1, now).unwrap();
    assert_eq!(kind(table.check(&stamp(1, 5, 0), now)), ErrorKind::SequenceForgotten);
    assert_eq!(table.check(&stamp(1, 6, 0), now).unwrap(), Some(at(60, 2)));
    assert_eq!(table.check(&stamp(1, 7, 0), now).unwrap(), Some(at(70, 1)));
}

#[test]
fn session_expires_by_log_time_and_only_appends_extend_it() {
    let mut table = table(1, 4);
    let last = Timestamp(1 + IDLE);
    assert_eq!(table.check(&stamp(1, 1, 0), last).unwrap(), Some(at(10, 2)), "a retry on the last moment");
    assert_eq!(kind(table.check(&stamp(1, 2, 0), Timestamp(last.0 + 1))), ErrorKind::SessionExpired);
    table.apply(&stamp(1, 2, 0), Index(20), 1, last).unwrap();
    table.expire(Timestamp(last.0 + IDLE));
    assert_eq!(table.len(), 1);
    assert_eq!(table.good_until_min, Timestamp(last.0 + IDLE), "no search before a session can expire");
    table.expire(Timestamp(last.0 + IDLE + 1));
    assert_eq!(table.len(), 0);
    assert_eq!(table.encoded_bytes(), TABLE_HEADER_BYTES);
}

#[test]
fn session_without_an_idle_limit_never_expires() {
    let mut table = Sessions::new(1, 1);
    table.open(SessionId(1), LogNumber::OWN, u64::MAX, Timestamp(5)).unwrap();
    table.expire(Timestamp(u64::MAX));
    assert_eq!(table.check(&stamp(1, 1, 0), Timestamp(u64::MAX)).unwrap(), None);
}

#[test]
fn number_of_sessions_is_bounded_and_expired_ones_make_room() {
    let mut table = Sessions::new(2, 4);
    table.open(SessionId(1), LogNumber::OWN, IDLE, Timestamp(0)).unwrap();
    table.open(SessionId(2), LogNumber::OWN, IDLE, Timestamp(1)).unwrap();
    let before = table.encode();
    assert_eq!(kind(table.check_open(LogNumber::OWN, None, Timestamp(IDLE))), ErrorKind::TooManySessions);
    table.check_open(LogNumber::OWN, None, Timestamp(IDLE + 1)).unwrap();
    assert_eq!(table.encode(), before, "a check changes nothing");
    table.open(SessionId(4), LogNumber::OWN, IDLE, Timestamp(IDLE + 1)).unwrap();
    assert_eq!((table.len(), table.get(SessionId(1))), (2, None));
    table.close(SessionId(2));
    table.close(SessionId(2));
    table.open(SessionId(5), LogNumber::OWN, IDLE, Timestamp(IDLE + 1)).unwrap();
    assert_eq!(
        kind(table.open(SessionId(5), LogNumber::OWN, IDLE, Timestamp(IDLE + 1))),
        ErrorKind::InvalidArgument
    );
    table.open(SessionId(6), LogNumber::OWN, IDLE, Timestamp(IDLE + 1)).unwrap();
    assert_eq!(table.len(), 3, "an entry in the log is not refused");
}

#[test]
fn contradicting_log_changes_nothing() {
    let mut table = table(3, 4);
    let before = table.encode();
    let now = Timestamp(9);
    assert_eq!(kind(table.apply(&stamp(1, 3, 0), Index(40), 1, now)), ErrorKind::InvalidArgument);
    assert_eq!(kind(table.apply(&stamp(1, 4, 0), Index(31), 1, now)), ErrorKind::InvalidArgument);
    assert_eq!(kind(table.apply(&stamp(1, 4, 0), Index(40), 0, now)), ErrorKind::InvalidArgument);
    assert_eq!(kind(table.apply(&stamp(1, 5, 0), Index(40), 1, now)), ErrorKind::SequenceGap);
    assert_eq!(kind(table.apply(&stamp(8, 1, 0), Index(40), 1, now)), ErrorKind::SessionExpired);
    assert_eq!(table.encode(), before);
    table.apply(&Stamp::default(), Index(40), 1, now).unwrap();
    assert_eq!(table.encode(), before, "batches without a session do not change the table");
}

/// The encoding of version 1, which never changes.
#[test]
fn golden_bytes() {
    let mut table = table(2, 4);
    table.open(SessionId(0x0102), LogNumber::OWN, 0x0304, Timestamp(0x0106)).unwrap();
    let words = |w: &[u64]| w.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let want = [
        vec![2, 0, 0, 0, 0, 0, 0, 0],
        words(&[1, 2, 2, IDLE, 2, 10]),
        vec![2, 0, 0, 0],
        words(&[20]),
        vec![2, 0, 0, 0],
        words(&[0x0102, 0, 0x0106, 0x0304, 0]),
    ];
    assert_eq!(table.encode(), want.concat());
}

#[test]
fn smaller_limits_refuse_nothing_and_a_smaller_window_forgets() {
    let mut big = table(6, 8);
    big.open(SessionId(2), LogNumber::OWN, IDLE, Timestamp(6)).unwrap();
    let small = Sessions::decode(&big.encode(), 1, 3).unwrap();
    assert_eq!(small.len(), 2);
    assert_eq!(small.check(&stamp(1, 4, 0), Timestamp(6)).unwrap(), Some(at(40, 2)));
    assert_eq!(kind(small.check(&stamp(1, 3, 0), Timestamp(6))), ErrorKind::SequenceForgotten);
    assert_eq!(small.encoded_bytes(), small.encode().len());
    // As if the window had been that size from the start.
    let mut from_start = table(6, 3);
    from_start.open(SessionId(2), LogNumber::OWN, IDLE, Timestamp(6)).unwrap();
    assert_eq!(small.encode(), from_start.encode());
}

#[test]
fn full_table_takes_exactly_its_bound() {
    let (sessions, window) = (5, 1024);
    let mut table = Sessions::new(sessions, window);
    let mut next = 1;
    for id in 1..=u64::from(sessions) {
        table.open(SessionId(id), LogNumber::OWN, IDLE, Timestamp(0)).unwrap();
        for s in 1..=2 * u64::from(window) {
            table.apply(&stamp(id, s, u16::MAX), Index(next), 1, Timestamp(0)).unwrap();
            next += 1;
        }
    }
    assert_eq!(table.encode().len(), session_table_bytes_max(sessions, window));
    assert_eq!(table.encoded_bytes(), session_table_bytes_max(sessions, window));
    let again = Sessions::decode(&table.encode(), sessions, window).unwrap();
    assert_eq!(again.encode(), table.encode());
}

#[test]
fn impossible_count_allocates_nothing() {
    let mut bytes = u32::MAX.to_le_bytes().to_vec();
    bytes.extend_from_slice(&[0; 4]);
    assert_eq!(Sessions::decode(&bytes, 1, 1).unwrap_err(), "session table is cut off");
}

/// The encoding of one session: its words, then its remembered batches.
fn one_session(words: [u64; 5], batches: &[(u64, u32)]) -> Vec<u8> {
    let mut bytes = 1u64.to_le_bytes().to_vec();
    bytes.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    for (first, count) in batches {
        bytes.extend_from_slice(&first.to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
    }
    bytes
}

#[test]
fn impossible_tables_are_refused() {
    let decode = |words, batches: &[_]| Sessions::decode(&one_session(words, batches), 4, 1024).map(|_| ());
    assert_eq!(decode([1, 2, 0, 0, 2], &[(1, 1), (2, BATCH_RECORDS_MAX)]), Ok(()));
    assert!(decode([0, 2, 0, 0, 2], &[(1, 1), (2, 1)]).is_err(), "session 0");
    assert!(decode([1, 1, 0, 0, 2], &[(1, 1), (2, 1)]).is_err(), "more batches than sequences");
    assert!(decode([1, 2, 0, 0, 0], &[]).is_err(), "the newest batch is always remembered");
    assert!(decode([1, 0, 0, 0, 1], &[(1, 1)]).is_err(), "a batch of a session that appended nothing");
    assert!(decode([1, 2, 0, 0, 2], &[(1, 2), (2, 1)]).is_err(), "batches that overlap");
    assert!(decode([1, 2, 0, 0, 1], &[(0, 1)]).is_err(), "index 0");
    assert!(decode([1, 2, 0, 0, 1], &[(u64::MAX, 1)]).is_err(), "an index beyond the largest");
    assert!(decode([1, 2, 0, 0, 1], &[(1, 0)]).is_err(), "an empty batch");
    assert!(decode([1, 2, 0, 0, 1], &[(1, BATCH_RECORDS_MAX + 1)]).is_err(), "a batch beyond the largest");
    let many: Vec<_> = (1..=1025).map(|n| (n, 1)).collect();
    assert_eq!(decode([1, 2000, 0, 0, 1024], &many[..1024]), Ok(()));
    assert!(decode([1, 2000, 0, 0, 1025], &many).is_err(), "more than the format's bound");
}

/// No client counts this far, but damaged bytes can hold this number.
#[test]
fn largest_sequence_has_no_next_one() {
    let bytes = one_session([1, u64::MAX, 0, IDLE, 1], &[(5, 1)]);
    let table = Sessions::decode(&bytes, 1, 1).unwrap();
    assert_eq!(table.check(&stamp(1, u64::MAX, 0), Timestamp(0)).unwrap(), Some(at(5, 1)));
    assert_eq!(kind(table.check(&stamp(1, 1, 0), Timestamp(0))), ErrorKind::SequenceForgotten);
}

/// The specification: remembers everything and searches it.
#[derive(Debug, Default)]
struct Model {
    sessions: BTreeMap<u64, ModelSession>,
}

#[derive(Debug)]
struct ModelSession {
    placed: Vec<Appended>,
    remembered_from: u64,
    active: u64,
    idle: u64,
}

impl Model {
    fn live(&self, now: u64) -> usize {
        self.sessions.values().filter(|s| s.active.saturating_add(s.idle) >= now).count()
    }

    fn check(&self, stamp: &Stamp, now: u64) -> Result<Option<Appended>, ErrorKind> {
        let Some(s) = self.sessions.get(&stamp.session.0) else { return Err(ErrorKind::SessionExpired) };
        if s.active.saturating_add(s.idle) < now {
            return Err(ErrorKind::SessionExpired);
        }
        let (sequence, last) = (stamp.sequence.0, s.placed.len() as u64);
        match sequence {
            _ if sequence == last + 1 => Ok(None),
            _ if sequence > last => Err(ErrorKind::SequenceGap),
            _ if sequence >= s.remembered_from.max(1) => Ok(Some(s.placed[sequence as usize - 1])),
            _ => Err(ErrorKind::SequenceForgotten),
        }
    }

    fn apply(&mut self, stamp: &Stamp, placed: Appended, now: u64, window: u16) {
        let s = self.sessions.get_mut(&stamp.session.0).unwrap();
        s.placed.push(placed);
        s.active = now;
        let answered = stamp.sequence.0.saturating_sub(stamp.inflight.into());
        let window_from = (stamp.sequence.0 + 1).saturating_sub(window.into());
        s.remembered_from = s.remembered_from.max(answered).max(window_from);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Open {
        idle: u64,
    },
    Close {
        which: usize,
    },
    /// A batch whose sequence is the next one plus `step`.
    Append {
        which: usize,
        step: i64,
        inflight: u16,
        count: u32,
    },
    Pass {
        ms: u64,
    },
    Expire,
    /// Encodes and decodes the table, as a restart does.
    Restart,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let inflight = prop_oneof![0..6u16, Just(u16::MAX)];
    let step = prop_oneof![4 => Just(0i64), 3 => -8..0i64, 1 => 1..4i64];
    let op = prop_oneof![
        2 => (0..300u64).prop_map(|idle| Op::Open { idle }),
        1 => (0..8usize).prop_map(|which| Op::Close { which }),
        12 => (0..8usize, step, inflight, 1..5u32)
            .prop_map(|(which, step, inflight, count)| Op::Append { which, step, inflight, count }),
        3 => (0..80u64).prop_map(|ms| Op::Pass { ms }),
        1 => Just(Op::Expire),
        1 => Just(Op::Restart),
    ];
    proptest::collection::vec(op, 1..200)
}

/// A log with a limit of its own makes room among its own sessions, and takes none of another log's.
#[test]
fn log_with_a_limit_of_its_own_takes_no_session_of_another() {
    let (one, other) = (LogNumber(1), LogNumber(2));
    let mut table = Sessions::new(4, 4);
    let now = Timestamp(1);
    table.open(SessionId(1), other, IDLE, now).unwrap();
    table.open(SessionId(2), one, IDLE, now).unwrap();
    table.open(SessionId(3), one, IDLE, now).unwrap();
    assert_eq!(kind(table.check_open(one, Some(2), now)), ErrorKind::TooManySessions);
    table.check_open(one, Some(3), now).unwrap();
    table.check_open(other, None, now).unwrap();
    assert_eq!(table.next_to_go(one, Some(2), now), Some(SessionId(2)), "its own oldest");
    assert_eq!(table.next_to_go(one, Some(1), now), None, "one would not be enough");
    assert_eq!(table.next_to_go(one, Some(3), now), None, "there is room");
    assert_eq!(table.next_to_go(other, None, now), None);
    table.open(SessionId(4), one, IDLE, now).unwrap();
    assert_eq!(table.next_to_go(one, Some(3), now), Some(SessionId(2)), "this makes room in both");
    assert_eq!(table.next_to_go(one, Some(4), now), Some(SessionId(1)), "the table's limit alone is reached");
    assert_eq!(kind(table.check_open(one, Some(4), now)), ErrorKind::TooManySessions);
    // Those that have appended stay.
    for id in [2, 3, 4] {
        table.apply(&stamp(id, 1, 0), Index(id), 1, now).unwrap();
    }
    assert_eq!(table.next_to_go(one, Some(3), now), None);
    // Expired ones count no more.
    table.check_open(one, Some(1), Timestamp(IDLE + 2)).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Live use agrees with the specification at every step. A table that saw only the log (no retries, no refusals)
    /// has the same bytes at the end.
    #[test]
    fn table_agrees_with_the_model_and_with_its_own_replay(
        ops in ops(),
        sessions_max in 1..6u32,
        window in 1..6u16,
    ) {
        let mut table = Sessions::new(sessions_max, window);
        let mut replayed = Sessions::new(1, window);
        let mut model = Model::default();
        let (mut now, mut raft, mut next) = (0, 0, 1);
        for op in ops {
            match op {
                Op::Pass { ms } => now += ms,
                Op::Expire => table.expire(Timestamp(now)),
                Op::Restart => {
                    prop_assert_eq!(table.encoded_bytes(), table.encode().len());
                    prop_assert!(table.encoded_bytes() <= session_table_bytes_max(sessions_max, window));
                    table = Sessions::decode(&table.encode(), sessions_max, window).unwrap();
                }
                Op::Open { idle } => {
                    raft += 1;
                    let before = table.encode();
                    let may = table.check_open(LogNumber::OWN, None, Timestamp(now));
                    prop_assert_eq!(table.encode(), before);
                    if model.live(now) >= sessions_max as usize {
                        prop_assert_eq!(kind(may), ErrorKind::TooManySessions);
                    } else {
                        prop_assert!(may.is_ok());
                        table.open(SessionId(raft), LogNumber::OWN, idle, Timestamp(now)).unwrap();
                        prop_assert_eq!(table.len(), model.live(now) + 1);
                        replayed.open(SessionId(raft), LogNumber::OWN, idle, Timestamp(now)).unwrap();
                        let session = ModelSession { placed: vec![], remembered_from: 0, active: now, idle };
                        model.sessions.insert(raft, session);
                    }
                }
                Op::Close { which } => {
                    let id = raft.saturating_sub(which as u64);
                    table.close(SessionId(id));
                    replayed.close(SessionId(id));
                    model.sessions.remove(&id);
                }
                Op::Append { which, step, inflight, count } => {
                    let id = raft.saturating_sub(which as u64);
                    let last = model.sessions.get(&id).map_or(0, |s| s.placed.len() as i64);
                    let sequence = (last + 1 + step).max(1) as u64;
                    if id == 0 {
                        continue;
                    }
                    let stamp = stamp(id, sequence, inflight);
                    let got = table.check(&stamp, Timestamp(now)).map_err(|e| e.kind());
                    prop_assert_eq!(got, model.check(&stamp, now));
                    if got == Ok(None) {
                        table.apply(&stamp, Index(next), count, Timestamp(now)).unwrap();
                        replayed.apply(&stamp, Index(next), count, Timestamp(now)).unwrap();
                        model.apply(&stamp, at(next, count), now, window);
                        prop_assert_eq!(table.get(stamp.session), Some(stamp.sequence));
                        next += u64::from(count);
                    }
                }
            }
        }
        table.expire(Timestamp(now));
        replayed.expire(Timestamp(now));
        prop_assert_eq!(table.len(), model.live(now));
        prop_assert_eq!(table.encode(), replayed.encode());
    }

    /// No input panics. A table that decodes encodes to the same bytes.
    #[test]
    fn decoding_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(table) = Sessions::decode(&bytes, 4, 1024) {
            prop_assert_eq!(table.encode(), bytes);
        }
    }

    /// The same for bytes that are nearly right: one byte changed, cut off, or appended.
    #[test]
    fn decoding_damaged_tables_never_panics(
        n in 0..6u64,
        place in any::<proptest::sample::Index>(),
        xor in 1..=255u8,
        more in 0..16usize,
    ) {
        let mut good = table(n, 8);
        good.open(SessionId(7), LogNumber::OWN, IDLE, Timestamp(n)).unwrap();
        let good = good.encode();
        prop_assert_eq!(Sessions::decode(&good, 2, 8).unwrap().encode(), good.clone());
        let place = place.index(good.len());
        prop_assert!(Sessions::decode(&good[..place], 2, 8).is_err());
        let longer = [&good[..], &vec![xor; more + 1]].concat();
        prop_assert!(Sessions::decode(&longer, 2, 8).is_err());
        let mut bad = good;
        bad[place] ^= xor;
        if let Ok(mut table) = Sessions::decode(&bad, 2, 1024) {
            prop_assert_eq!(table.encode(), bad);
            // The decoded table works.
            let stamp = stamp(1, table.get(SessionId(1)).map_or(1, |s| s.0.saturating_add(1)), 0);
            let _ = table.apply(&stamp, Index(1000), 1, Timestamp(n));
            table.expire(Timestamp(u64::MAX));
        }
    }
}
