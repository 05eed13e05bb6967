//! Exactly once, end to end: clients that lose answers and retry, over rolls, discards and restarts.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use chiplog::{
    BatchBuilder, Clock, ErrorKind, Index, Log, Options, Sequence, Session, SessionId, Start, Timestamp,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The smallest segments: a roll after some dozens of records.
fn small() -> Options {
    Options::with_segment_bytes(64 << 10)
}

/// A fixed sequence of numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// The state of a client after a crash: its session, and the first append without an answer.
struct Client {
    id: SessionId,
    unanswered: u64,
    session: Session,
}

fn payload(client: usize, sequence: u64, length: usize) -> Vec<u8> {
    let mut bytes = [client as u64, sequence].map(u64::to_le_bytes).concat();
    bytes.resize(16 + length, 0);
    bytes
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Reads the retained records. Each client's sequences must be ascending, without a gap and once each, and every
/// answered one must be at the index of its answer.
fn check_stream(log: &Log, placed: &BTreeMap<(usize, u64), Index>) {
    let (mut newest, mut answers) = (BTreeMap::new(), 0);
    let mut reader = log.reader(Start::First).unwrap();
    while let Some(record) = reader.next_record().unwrap() {
        let (client, sequence) = (number(record.data, 0) as usize, number(record.data, 8));
        if let Some(before) = newest.insert(client, sequence) {
            assert_eq!(sequence, before + 1, "client {client}: once each, in order");
        }
        if let Some(answer) = placed.get(&(client, sequence)) {
            assert_eq!(*answer, record.index, "client {client} got the index of {sequence}");
            answers += 1;
        }
    }
    let first = log.first_index();
    assert_eq!(
        answers,
        placed.values().filter(|index| **index >= first).count(),
        "an answered append is missing"
    );
}

#[test]
fn clients_that_lose_answers_append_exactly_once() {
    for seed in 1..=6 {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::open(dir.path(), small()).unwrap();
        let mut placed: BTreeMap<(usize, u64), Index> = BTreeMap::new();
        let mut clients: Vec<Client> = (0..3)
            .map(|_| log.open_session().unwrap())
            .map(|session| Client { id: session.id(), unanswered: 1, session })
            .collect();
        let (mut retries, mut repeated, mut restarts) = (0, 0, 0);
        for _ in 0..150 {
            let n = dice.below(clients.len() as u64) as usize;
            let client = &mut clients[n];
            let last = log.last_index();
            // Several appends in flight; the client crashes before it has seen all answers, or sees them all.
            let tickets: Vec<_> = (0..=dice.below(8))
                .map(|_| {
                    let sequence = client.session.next_sequence().get();
                    let length = dice.below(900) as usize;
                    (sequence, client.session.submit(&payload(n, sequence, length)).unwrap())
                })
                .collect();
            let crashes = dice.below(3) == 0;
            let seen = if crashes { dice.below(tickets.len() as u64) as usize } else { tickets.len() };
            for (i, (sequence, ticket)) in tickets.iter().enumerate() {
                match ticket.wait() {
                    Ok(index) if i < seen => {
                        repeated += usize::from(index <= last);
                        let first_time = *placed.entry((n, *sequence)).or_insert(index);
                        assert_eq!(index, first_time, "a retry gets the first answer");
                        client.unanswered = client.unanswered.max(sequence + 1);
                    }
                    Ok(_) => {}
                    Err(e) => {
                        // The error means that the record is in the log, which is all that a retry needs.
                        assert_eq!(e.kind(), ErrorKind::SequenceForgotten, "{e}");
                        repeated += 1;
                    }
                }
            }
            if crashes {
                retries += 1;
                client.session = log.resume_session(client.id, Sequence(client.unanswered));
            }
            match dice.below(12) {
                0 => {
                    restarts += 1;
                    log.close().unwrap();
                    log = Log::open(dir.path(), small()).unwrap();
                    for client in &mut clients {
                        client.session = log.resume_session(client.id, Sequence(client.unanswered));
                    }
                }
                1 => {
                    let status = log.status();
                    log.discard(Index(
                        status.first_index.get()
                            + dice.below(status.last_index.get() + 2 - status.first_index.get()),
                    ))
                    .unwrap();
                }
                _ => {}
            }
        }
        check_stream(&log, &placed);
        let fired = [retries, repeated, restarts];
        assert!(
            fired.into_iter().all(|n| n > 2),
            "seed {seed}: {fired:?} crashes, repeated appends, restarts"
        );
    }
}

/// A batch is one number, however many records it has.
#[test]
fn batch_is_appended_once_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let mut session = log.open_session().unwrap();
    let mut first_try = BatchBuilder::new();
    first_try.push(b"a").unwrap().push(b"b").unwrap().push(b"c").unwrap();
    let first = session.append(&mut first_try).unwrap();
    assert_eq!((first.first, first.last()), (Index(1), Index(3)));
    assert_eq!(session.append(b"d").unwrap(), Index(4));
    // All in flight at once, so that duplicates and new batches share blocks.
    let mut again = log.resume_session(session.id(), Sequence(2));
    let tickets: Vec<_> = (0..3).map(|_| again.submit(b"e").unwrap()).collect();
    let got: Vec<_> = tickets.iter().map(|t| t.wait().unwrap()).collect();
    assert_eq!(got, [Index(4), Index(5), Index(6)]);
    assert_eq!(log.last_index(), Index(6));
}

/// The largest number of sessions, each with a full window: the table still fits the start of the next segments, and
/// is restored completely.
#[test]
fn largest_table_survives_rolls_and_restarts() {
    let options = small();
    let (sessions, window) = (options.sessions_max, u64::from(options.session_window));
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options.clone()).unwrap();
    let mut open: Vec<Session> = (0..sessions).map(|_| log.open_session().unwrap()).collect();
    let mut placed = BTreeMap::new();
    for n in 0..window {
        for session in &mut open {
            let mut batch = BatchBuilder::new();
            batch.session(session.id(), Sequence(n + 1), u16::MAX).push(b"x").unwrap();
            let answer = log.append(&batch.build().unwrap()).unwrap();
            placed.insert((session.id(), n + 1), answer.first);
        }
    }
    assert_eq!(log.open_session().unwrap_err().kind(), ErrorKind::TooManySessions);
    // The largest batches: they need all the room that the table leaves.
    for _ in 0..4 {
        log.append(&vec![7; options.record_bytes_max as usize]).unwrap();
    }
    assert!(log.metrics().rolls >= 4);
    log.discard(log.last_index()).unwrap();
    log.close().unwrap();
    for _ in 0..2 {
        let log = Log::open(dir.path(), options.clone()).unwrap();
        assert_eq!(log.status().sessions, sessions);
        for ((id, sequence), first) in &placed {
            let mut session = log.resume_session(*id, Sequence(*sequence));
            assert_eq!(session.append(b"again").unwrap(), *first);
        }
        log.close().unwrap();
    }
    // Fewer are allowed from now on: existing sessions stay, new ones are refused.
    let log = Log::open(dir.path(), options.sessions_max(1)).unwrap();
    assert_eq!(log.status().sessions, sessions);
    assert_eq!(log.open_session().unwrap_err().kind(), ErrorKind::TooManySessions);
    let mut session = log.resume_session(open[1].id(), Sequence(window + 1));
    session.append(b"y").unwrap();
}

/// A client that opened the largest number of sessions without using them kept all others out for a day.
#[test]
fn oldest_unused_session_is_closed_for_a_new_one() {
    let options = small().sessions_max(4);
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options.clone()).unwrap();
    let mut open: Vec<Session> = (0..4).map(|_| log.open_session().unwrap()).collect();
    for n in [0, 2] {
        open[n].append(b"x").unwrap();
    }
    open.push(log.open_session().unwrap());
    assert_eq!(log.status().sessions, 4);
    // The client whose session was closed gets the error, and has lost nothing.
    assert_eq!(open[1].append(b"late").unwrap_err().kind(), ErrorKind::SessionExpired);
    // The remaining sessions can append, and are kept from then on.
    open[3].append(b"x").unwrap();
    open[4].append(b"x").unwrap();
    assert_eq!(log.open_session().unwrap_err().kind(), ErrorKind::TooManySessions);
    assert_eq!(log.status().sessions, 4);
    log.resume_session(open[0].id(), Sequence(2)).close().unwrap();
    open.push(log.open_session().unwrap());
    log.close().unwrap();
    // The log holds all of that, also for a program that allows more sessions.
    let log = Log::open(dir.path(), options.sessions_max(5)).unwrap();
    assert_eq!(log.status().sessions, 4);
    let ids: Vec<_> = open.iter().map(Session::id).collect();
    for (n, id) in ids.into_iter().enumerate() {
        let next = if n == 5 { Sequence(1) } else { Sequence(2) };
        let appended = log.resume_session(id, next).append(b"y");
        assert_eq!(appended.is_ok(), n > 1, "session {n}: {appended:?}");
    }
}

#[derive(Debug)]
struct ByHand(AtomicU64);

impl ByHand {
    /// Moves on by `ms`. So does the process's own clock, against which the log checks this one.
    fn pass(&self, ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ByHand {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

/// An idle session expires by the log's own clock, also over a restart, and its number is never given again.
#[test]
fn idle_session_expires_and_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ByHand(AtomicU64::new(1000)));
    let options = small().sessions_max(1).session_idle_max(Duration::from_millis(50)).clock(clock.clone());
    let log = Log::open(dir.path(), options.clone()).unwrap();
    let mut first = log.open_session().unwrap();
    clock.pass(50);
    first.append(b"in time").unwrap();
    log.close().unwrap();
    clock.0.store(1100, Ordering::SeqCst);
    let log = Log::open(dir.path(), options).unwrap();
    let mut first = log.resume_session(first.id(), first.next_sequence());
    first.append(b"in time again: the last append counts").unwrap();
    clock.pass(51);
    assert_eq!(first.append(b"late").unwrap_err().kind(), ErrorKind::SessionExpired);
    // A clock that is set back brings no session back.
    clock.0.store(1100, Ordering::SeqCst);
    assert_eq!(first.append(b"still late").unwrap_err().kind(), ErrorKind::SessionExpired);
    let second = log.open_session().unwrap();
    assert!(second.id() > first.id());
    assert_eq!((log.status().sessions, log.last_index()), (1, Index(2)));
}

/// A refusal removed sessions by the leader's clock, without an entry: the other replicas and the files kept them.
#[test]
fn refused_session_changes_no_table() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ByHand(AtomicU64::new(1000)));
    let with = |sessions_max, idle_ms| {
        small()
            .sessions_max(sessions_max)
            .session_idle_max(Duration::from_millis(idle_ms))
            .clock(clock.clone())
    };
    let open = |sessions_max, idle_ms| Log::open(dir.path(), with(sessions_max, idle_ms)).unwrap();
    let log = open(3, 50);
    let mut short = log.open_session().unwrap();
    short.append(b"short").unwrap();
    log.close().unwrap();
    let log = open(3, 3_600_000);
    for _ in 0..2 {
        log.open_session().unwrap().append(b"long").unwrap();
    }
    log.close().unwrap();
    // Lower than the number of open sessions: the end of one session makes no room.
    let log = open(2, 50);
    clock.pass(60);
    for _ in 0..2 {
        // The second answer proves that the step of the first one is over.
        assert_eq!(log.open_session().unwrap_err().kind(), ErrorKind::TooManySessions);
    }
    assert_eq!(log.status().sessions, 3, "no entry carries the time at which one is expired");
    log.append(b"carries it").unwrap();
    assert_eq!(log.status().sessions, 2);
}

/// One look at a clock that showed the far future expired all sessions and stamped all later entries.
#[test]
fn clock_that_jumps_ahead_expires_no_session() {
    const DAY_MS: u64 = 24 * 3_600_000;
    let dir = tempfile::tempdir().unwrap();
    let right = 1_700_000_000_000;
    let clock = Arc::new(ByHand(AtomicU64::new(right)));
    let options = small().clock(clock.clone());
    let log = Log::open(dir.path(), options).unwrap();
    let mut session = log.open_session().unwrap();
    session.append(b"before").unwrap();
    let began = std::time::Instant::now();
    clock.0.store(right + 400 * DAY_MS, Ordering::SeqCst);
    log.append(b"carries the leader's time").unwrap();
    session.append(b"meanwhile").unwrap();
    assert_eq!(log.status().sessions, 1);
    clock.0.store(right, Ordering::SeqCst);
    session.append(b"after").unwrap();
    let passed = began.elapsed().as_millis() as u64;
    let stamped = log.status().last_timestamp.get();
    assert!(stamped <= right + DAY_MS + 2 * passed, "{stamped}");
}

/// A session counted an append as answered as soon as it saw the answer itself. The log then forgot the indexes of
/// appends whose tickets the program had not polled, and a client that crashed there could not repeat them.
#[test]
fn append_with_an_unpolled_ticket_can_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
    let mut session = log.open_session().unwrap();
    let tickets: Vec<_> = (0..10).map(|n: u8| session.submit(&[n]).unwrap()).collect();
    tickets[9].wait().unwrap(); // so the others are durable too, but their tickets were not polled
    session.append(b"one more").unwrap();
    let (id, next) = (session.id(), session.next_sequence());
    for (n, ticket) in (1..).zip(&tickets) {
        let mut again = log.resume_session(id, Sequence(n));
        assert_eq!(again.append(&[0]).unwrap(), ticket.wait().unwrap());
    }
    assert_eq!((next, log.last_index()), (Sequence(12), Index(11)));
}

/// The answer was `SequenceForgotten`, which means that the record is in the log.
#[test]
fn sequence_number_0_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let id = log.open_session().unwrap().id();
    let mut session = log.resume_session(id, Sequence(0));
    assert_eq!(session.append(b"x").unwrap_err().kind(), ErrorKind::InvalidArgument);
    let batch = session.append(BatchBuilder::new().push(b"x").unwrap());
    assert_eq!(batch.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(log.last_index(), Index(0));
    assert_eq!(log.resume_session(id, Sequence(1)).append(b"x").unwrap(), Index(1));
}

/// A wait for room in the window lasted as long as a sync, whatever the caller's patience.
#[test]
fn wait_for_room_ends_within_the_patience() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small().session_window(4)).unwrap();
    let mut session = log.open_session().unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let (tell, stands) = std::sync::mpsc::channel();
    // The writer thread stops until it is released: there are no answers meanwhile. A callback that is set too late runs on this thread,
    // which then tries again.
    let (held, this) = (Arc::new(Mutex::new(held)), std::thread::current().id());
    let mut before = 0;
    loop {
        before += 1;
        assert!(before < 100, "each callback was set too late");
        let (tell, held) = (tell.clone(), held.clone());
        log.submit(b"held").unwrap().on_complete(move |_| {
            let is_held = std::thread::current().id() != this;
            tell.send(is_held).unwrap();
            if is_held {
                let _ = held.lock().unwrap().recv();
            }
        });
        if stands.recv().unwrap() {
            break;
        }
    }
    let tickets: Vec<_> = (0..4).map(|_| session.try_submit(b"x").unwrap()).collect();
    for patience in [Duration::ZERO, Duration::from_millis(20)] {
        assert_eq!(session.submit_within(b"y", patience).unwrap_err().kind(), ErrorKind::Busy);
    }
    let mut batch = BatchBuilder::new();
    batch.push(b"z").unwrap();
    let busy = session.submit_within(&mut batch, Duration::from_millis(1));
    assert_eq!((busy.unwrap_err().kind(), batch.count()), (ErrorKind::Busy, 1));
    assert_eq!(session.next_sequence(), Sequence(5));
    release.send(()).unwrap();
    let last = session.submit_within(&mut batch, Duration::MAX).unwrap();
    assert!(batch.is_empty());
    assert_eq!(last.wait().unwrap().first, Index(before + 5));
    assert_eq!(tickets[3].wait().unwrap(), Index(before + 4));
    assert_eq!(session.append(b"y").unwrap(), Index(before + 6));
}

/// All appends after a refused one are refused: its number is used again once they are all answered, not before.
#[test]
fn refused_number_is_used_again_once_all_later_ones_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let id = log.open_session().unwrap().id();
    let mut session = log.resume_session(id, Sequence(5)); // 1 to 4 are missing
    let tickets: Vec<_> = (0..3).map(|_| session.submit_within(b"x", Duration::MAX).unwrap()).collect();
    for ticket in &tickets {
        assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::SequenceGap);
    }
    // A program stores this number before it appends: a larger one would be another append's, or leave a gap for ever.
    assert_eq!(session.next_sequence(), Sequence(5));
    let again = session.try_submit(b"x").unwrap();
    assert_eq!(again.wait().unwrap_err().kind(), ErrorKind::SequenceGap);
    assert_eq!(session.next_sequence(), Sequence(5));
    assert_eq!(session.append(b"x").unwrap_err().kind(), ErrorKind::SequenceGap);
    assert_eq!(session.next_sequence(), Sequence(5));
}
