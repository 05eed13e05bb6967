#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;
use crate::error::ErrorKind;
use crate::record::batch::Stamp;
use crate::replica::queue::proposals::{Proposal, ProposalQueue, QueueLimits, WaitLimit};
use crate::replica::state::command::{COMMAND_BYTES, SET_OPTIONS_BYTES, parse_command};
use crate::store::format::geometry::{LOG_OPTION_BYTES, REMEMBERED_BYTES, opening_room};
use crate::types::Sequence;
use proptest::prelude::*;

const FULL_AT: u32 = 3;

fn queue() -> ProposalQueue {
    let limits = QueueLimits {
        block_bytes: 1 << 12,
        bytes: 1 << 20,
        appends: 16,
        capacity: None,
        inbox_bytes: 1 << 20,
    };
    ProposalQueue::new(limits, 0)
}

fn membership() -> Membership {
    let member = |n| crate::cluster::membership::Member::voter(NodeId(n), DirectoryId(u128::from(n)), "");
    Membership::of([member(1), member(2)])
}

fn replica(node: u64, sessions_max: u32) -> (Sequencer, Options) {
    let options = Options { sessions_max, ..Options::with_segment_bytes(1 << 20) };
    (Sequencer::new(Owner::Node(NodeId(node)), membership(), &options), options)
}

fn body_of(block: &NewBlock) -> Vec<u8> {
    block.body.concat()
}

/// A leader; a replica that receives its blocks and has other limits; and a replica that restarts from an opening.
struct Three {
    leader: Sequencer,
    follower: Sequencer,
    restarted: Sequencer,
    options: Options,
    queue: ProposalQueue,
}

impl Three {
    fn new() -> Self {
        let (leader, options) = replica(1, FULL_AT);
        Self { leader, follower: replica(2, 1).0, restarted: replica(2, 64).0, options, queue: queue() }
    }

    fn spread(&mut self, block: &NewBlock) {
        let header = block.header;
        self.follower.follow(&header, block.body.clone()).unwrap();
        self.restarted.replay(&header, &body_of(block), &self.options).unwrap();
    }

    fn command(&mut self, command: Command, at: u64) -> Option<Index> {
        match self.leader.command(command, Timestamp(at)) {
            Decision::Write(block, result) => {
                self.spread(&block);
                Some(result)
            }
            Decision::Done(result) => Some(result),
            Decision::Refused(error) => {
                assert_eq!(error.kind(), crate::ErrorKind::TooManySessions);
                None
            }
        }
    }

    fn append(&mut self, stamps: &[Stamp], at: u64) {
        let tickets: Vec<_> = stamps
            .iter()
            .map(|s| self.queue.push_record(LogNumber::OWN, b"x", *s, WaitLimit::None).unwrap())
            .collect();
        for item in self.queue.take(true).items {
            let Proposal::Data(gathered) = item else { unreachable!() };
            let SequencedBlock { block, completer, outcome } = self.leader.data(gathered, Timestamp(at));
            completer.answer(outcome);
            if let Some(block) = block {
                self.spread(&block);
            }
        }
        drop(tickets);
    }

    /// Replaces the third replica by one that starts from an opening that is written now.
    fn restart(&mut self) {
        let opening = self.leader.opening();
        self.restarted = replica(2, 64).0;
        self.restarted.replay(&opening.header, &body_of(&opening), &self.options).unwrap();
    }

    fn tables_are_equal(&self) {
        let table = self.leader.sessions.encode();
        assert_eq!(self.follower.sessions.encode(), table, "the follower's");
        assert_eq!(self.restarted.sessions.encode(), table, "the restarted replica's");
        let options = self.leader.options_at_end();
        assert_eq!(self.follower.options_at_end(), options, "the follower's");
        assert_eq!(self.restarted.options_at_end(), options, "the restarted replica's");
    }
}

/// The last voter of a cluster had voted in term 3. Then a leader that left sent it an entry of term 2. The log did not
/// open again: recovery took the entry for damage.
#[test]
fn last_voter_opens_with_entries_of_an_older_term() {
    let options = Options::with_segment_bytes(1 << 20);
    let alone = Membership::of([crate::cluster::membership::Member::voter(NodeId(1), DirectoryId(1), "")]);
    let sole = || Sequencer::new(Owner::Node(NodeId(1)), alone.clone(), &options);
    let mut log = sole();
    log.hard_state_block(Term(3), 1);
    let opening = log.opening();
    let entry = log.raft_entry(Kind::NoOp, Term(2), bytes::Bytes::new()).unwrap();
    let mut restarted = sole();
    for block in [opening, entry] {
        restarted.replay(&block.header, &body_of(&block), &options).unwrap();
    }
    assert_eq!((restarted.end().raft, restarted.hard_state().term), (EntryIndex(1), Term(3)));
}

/// The leader dropped sessions that had expired by its clock, and then refused. The next opening lacked sessions that
/// the other replicas had.
#[test]
fn refused_open_session_changes_no_table() {
    let mut three = Three::new();
    three.command(Command::OpenSession { log: LogNumber::OWN, idle_max_ms: 50 }, 1000);
    for _ in 0..2 {
        three.command(Command::OpenSession { log: LogNumber::OWN, idle_max_ms: 1_000_000 }, 1000);
    }
    three.leader.sessions = Sessions::decode(&three.leader.sessions.encode(), 2, 16).unwrap();
    let before = three.leader.sessions.encode();
    let refused = three.command(Command::OpenSession { log: LogNumber::OWN, idle_max_ms: 1 }, 1051);
    assert_eq!(refused, None);
    // The leader may look for a session to close, and then find no room for the commands.
    assert_eq!(three.leader.session_to_go(LogNumber::OWN, Timestamp(1051)), Some(SessionId(2)));
    assert_eq!(three.leader.sessions.encode(), before);
    three.restart();
    three.tables_are_equal();
    assert_eq!(three.restarted.sessions.len(), 3);
    three.append(&[Stamp::default()], 1051);
    three.tables_are_equal();
    assert_eq!(three.restarted.sessions.len(), 2, "now an entry has advanced the time");
}

#[derive(Clone, Debug)]
enum Op {
    Open { idle: u64 },
    Close { which: u64 },
    Append(Vec<(u64, u64)>),
    Restart,
    Set { option: LogOption, value: Option<u64> },
    Pass { ms: i64 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (0..200u64).prop_map(|idle| Op::Open { idle }),
        1 => (0..8u64).prop_map(|which| Op::Close { which }),
        4 => proptest::collection::vec((0..8u64, 1..4u64), 1..4).prop_map(Op::Append),
        1 => Just(Op::Restart),
        1 => (any::<bool>(), proptest::option::of(1..5u64)).prop_map(|(window, value)| Op::Set {
            option: if window { LogOption::SessionWindow } else { LogOption::SessionsMax },
            value,
        }),
        3 => (-20..80i64).prop_map(|ms| Op::Pass { ms }),
    ];
    proptest::collection::vec(op, 1..100)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// After any requests to a leader, refusals included, and at any clock.
    #[test]
    fn replicas_have_equal_session_tables(ops in ops()) {
        let mut three = Three::new();
        let mut now = 1000i64;
        for op in ops {
            let at = now.max(0) as u64;
            match op {
                Op::Open { idle } => {
                    let may = three.leader.session_to_go(LogNumber::OWN, Timestamp(at));
                    three.tables_are_equal();
                    if let Some(id) = may.filter(|_| idle % 2 == 0) {
                        three.command(Command::CloseSession { id }, at);
                    }
                    three.command(Command::OpenSession { log: LogNumber::OWN, idle_max_ms: idle }, at);
                }
                Op::Close { which } => {
                    let id = SessionId(three.leader.end().raft.0.saturating_sub(which));
                    three.command(Command::CloseSession { id }, at);
                }
                Op::Append(batches) => {
                    let last = three.leader.end().raft.0.max(7) + 1;
                    let stamps: Vec<_> = batches.iter().map(|(which, sequence)| Stamp {
                        session: SessionId(last.saturating_sub(*which)),
                        sequence: Sequence(*sequence),
                        inflight: 1,
                    }).collect();
                    three.append(&stamps, at);
                }
                Op::Restart => three.restart(),
                Op::Set { option, value } => {
                    let set = three.leader.options_at_end().with(&[(option, value)]);
                    three.command(Command::SetOptions(set), at);
                }
                Op::Pass { ms } => now += ms,
            }
            three.tables_are_equal();
        }
    }
}

/// The encoding of a command that sets options, and malformed variants of it.
#[test]
fn set_options_commands_round_trip_and_malformed_ones_are_refused() {
    let mut options = LogOptions::default();
    let mut bodies = vec![encode_command(Command::SetOptions(options))];
    for option in LogOption::ALL {
        options.set(option, Some(1 << 10));
        if option == LogOption::RetentionBytes || option == LogOption::CapacityBytes {
            options.set(option, Some(u64::MAX));
        }
        if option == LogOption::ObjectBytes {
            options.set(option, Some(1 << 20));
        }
        if option == LogOption::PayloadSlices {
            options.set(option, Some(1));
        }
        bodies.push(encode_command(Command::SetOptions(options)));
    }
    for (n, body) in bodies.iter().enumerate() {
        assert!(body.len() == SET_OPTIONS_BYTES + n * LOG_OPTION_BYTES && body.len() > COMMAND_BYTES);
        assert!(matches!(parse_command(body), Ok(Command::SetOptions(set)) if set.iter().count() == n));
        for cut in 0..body.len() {
            assert!(parse_command(&body[..cut]).is_err(), "{n} options cut at {cut}");
        }
        for at in (0..SET_OPTIONS_BYTES).chain((body.len() > SET_OPTIONS_BYTES).then_some(SET_OPTIONS_BYTES))
        {
            let mut other = body.clone();
            other[at] ^= 0x40;
            // The number of the log is a half of its word.
            match at {
                16..20 => assert!(matches!(
                    parse_command(&other),
                    Ok(Command::Log(LogCommand::SetOptions { log, .. })) if log.0 == 0x40 << (8 * (at - 16))
                )),
                _ => assert!(parse_command(&other).is_err(), "{n} options, byte {at}"),
            }
        }
        let longer = [&body[..], &[0; LOG_OPTION_BYTES]].concat();
        assert!(parse_command(&longer).is_err());
    }
}

/// Options take effect once their entry is committed. An opening holds them before that.
#[test]
fn options_take_effect_when_they_are_committed() {
    let mut three = Three::new();
    let set = LogOptions::default().with(&[(LogOption::RetentionAge, Some(5))]);
    three.command(Command::SetOptions(set), 1000);
    assert_eq!(
        (three.leader.options_at_end(), three.leader.committed().options),
        (set, LogOptions::default())
    );
    three.restart();
    three.tables_are_equal();
    assert_eq!(three.command(Command::SetOptions(set), 1000), Some(Index(0)), "they are set already");
    assert_eq!(three.leader.end().raft, EntryIndex(1));
    three.leader.commit_to(EntryIndex(1));
    assert_eq!(three.leader.committed().options, set);
}

#[test]
fn hard_state_cannot_commit_beyond_the_last_entry() {
    let mut three = Three::new();
    let block = three.leader.raft_entry(Kind::NoOp, Term(1), Bytes::new()).unwrap();
    three.spread(&block);
    let header = three.leader.hard_state_block(Term(1), 0).header;
    for (commit, is_taken) in [(0, true), (1, true), (2, false)] {
        let state = HardState { term: Term(1), vote: 0, commit: EntryIndex(commit) };
        let learnt = three.restarted.replay(&header, &state.encode(), &three.options);
        assert_eq!(learnt.is_ok(), is_taken, "entry {commit}");
    }
}

/// Applies a command at the leader, whatever comes of it. Returns its block, if it has one.
fn decide(leader: &mut Sequencer, command: LogCommand) -> Option<NewBlock> {
    match leader.command(Command::Log(command), Timestamp(5)) {
        Decision::Write(block, _) => Some(block),
        Decision::Done(_) | Decision::Refused(_) => None,
    }
}

/// A log was dropped by an entry that a replica had not applied when a conflict made it start over from a later
/// opening. Its readers were never told.
#[test]
fn logs_that_are_missing_in_an_opening_are_shown_as_dropped() {
    let (mut leader, options) = replica(1, FULL_AT);
    let shown = LogSet::default();
    for log in [1, 2, 3].map(LogNumber) {
        decide(&mut leader, LogCommand::Open { log, start: Index(1) }).unwrap();
    }
    leader.commit_to(leader.end().raft);
    let changed = leader.take_changed_logs(&shown);
    shown.show(
        leader.committed().logs.opened(),
        changed.states.into_iter().map(|log| (log, leader.committed().logs.get(log))),
    );
    decide(&mut leader, LogCommand::Drop { log: LogNumber(2) }).unwrap();
    let opening = leader.opening();
    let mut restarted = replica(2, FULL_AT).0;
    restarted.replay(&opening.header, &body_of(&opening), &options).unwrap();
    assert!(restarted.take_changed_logs(&shown).states.is_empty(), "nothing is known to be committed");
    restarted.commit_to(opening.header.raft_index);
    let changed = restarted.take_changed_logs(&shown);
    assert!((1..=3).all(|n| changed.states.contains(&LogNumber(n))), "{changed:?}");
    assert_eq!(restarted.committed().logs.get(LogNumber(2)), None);
}

/// A lower limit of sessions closes none. Logs got the room of those that were open, and openings took more than their part of a segment.
#[test]
fn open_sessions_keep_their_room_when_their_limit_is_lowered() {
    let (mut leader, options) = replica(1, 300);
    let log = LogNumber(1);
    decide(&mut leader, LogCommand::Open { log, start: Index(1) }).unwrap();
    for _ in 0..300 {
        let opened = leader.command(Command::OpenSession { log, idle_max_ms: 1 << 30 }, Timestamp(5));
        assert!(matches!(opened, Decision::Write(..)), "{opened:?}");
    }
    let few = LogOptions::default().with(&[(LogOption::SessionsMax, Some(1))]);
    leader.command(Command::SetOptions(few), Timestamp(5));
    leader.commit_to(leader.end().raft);
    assert_eq!(leader.sessions().len(), 300);
    let beside = leader.opening_bytes_max();
    let opened = (2..).take_while(|n| {
        decide(&mut leader, LogCommand::Open { log: LogNumber(*n), start: Index(1) }).is_some()
    });
    assert!(opened.count() > 0);
    let window = usize::from(options.session_window) * REMEMBERED_BYTES;
    let grown = 300 * window + leader.opening_bytes_max();
    assert!(grown <= opening_room(options.segment_bytes), "{beside} bytes, then up to {grown}");
}

/// In a group whose openings are full, with objects too, a log that was deleted before it was open is passed over all the same.
#[test]
fn full_group_passes_over_a_deleted_log() {
    let mut leader = replica(1, FULL_AT).0;
    let open = |n: u32| LogCommand::Open { log: LogNumber(n), start: Index(1) };
    decide(&mut leader, open(1)).unwrap();
    let at = |raft: u64| Base { raft: EntryIndex(raft), term: Term(1), next: Index(1) };
    for number in 0.. {
        let (begin, end) = (at(number), at(number + 1));
        let cut = ObjectCommand::Cut { number, begin, end, timestamp: Timestamp(5), first: Index(1) };
        match leader.command(Command::Object(cut), Timestamp(5)) {
            Decision::Write(..) => {}
            refused => {
                assert!(
                    matches!(&refused, Decision::Refused(error) if error.kind() == ErrorKind::Full),
                    "{refused:?}"
                );
                break;
            }
        }
    }
    let full = leader.command(Command::Log(open(2)), Timestamp(5));
    assert!(matches!(&full, Decision::Refused(error) if error.kind() == ErrorKind::Full), "{full:?}");
    for n in [2, 3] {
        let passed = leader.command(Command::PassOver { log: LogNumber(n) }, Timestamp(5));
        assert!(matches!(passed, Decision::Write(..)), "{passed:?}");
        decide(&mut leader, LogCommand::Drop { log: LogNumber(n) }).unwrap();
        assert_eq!((leader.logs().opened(), leader.logs().len()), (LogNumber(n), 1));
    }
    // Its number cannot be opened any more.
    let again = leader.command(Command::PassOver { log: LogNumber(2) }, Timestamp(5));
    assert!(matches!(&again, Decision::Refused(error) if error.kind() == ErrorKind::NotFound), "{again:?}");
}

/// A replica jumped over entries before the log had objects: until their discard comes, it begins each log later than others do.
#[test]
fn replicas_that_jumped_make_the_same_objects() {
    let ((mut leader, options), log) = (replica(1, FULL_AT), LogNumber(1));
    decide(&mut leader, LogCommand::Open { log, start: Index(1) }).unwrap();
    let run = Run { log, batches: 1, first: Index(1), records: 3, bytes: 90, digest: 0 };
    leader.logs.append(&run, Timestamp(5)).unwrap();
    let opening = leader.opening();
    let mut jumped = replica(2, FULL_AT).0;
    jumped.jump(&opening.header, &body_of(&opening), &options).unwrap();
    assert_eq!(leader.object_opening(), jumped.object_opening());
    let (begin, end) = (Base { raft: EntryIndex(0), term: FIRST_TERM, next: Index(1) }, leader.end());
    let cut = ObjectCommand::Cut { number: 0, begin, end, timestamp: Timestamp(5), first: Index(1) };
    let Decision::Write(block, _) = leader.command(Command::Object(cut), Timestamp(5)) else {
        panic!("the object is cut")
    };
    jumped.follow(&block.header, block.body).unwrap();
    assert_ne!(leader.logs.get(log), jumped.logs.get(log), "else this tests nothing");
    assert_eq!(leader.object_opening(), jumped.object_opening());
}

proptest! {
    /// Logs of a shared group: at the leader, at a replica that follows, and at one that starts from an opening, the
    /// same entries lead to the same logs.
    #[test]
    fn replicas_have_the_same_logs_after_the_same_entries(
        steps in proptest::collection::vec((0..12u8, 1..7u32, 1..20u64), 1..80),
    ) {
        let mut three = Three::new();
        for (kind, log, n) in steps {
            let log = LogNumber(log);
            let block = match kind {
                0 | 1 => decide(&mut three.leader, LogCommand::Open { log, start: Index(1) }),
                2 if n < 4 => decide(&mut three.leader, LogCommand::Drop { log }),
                2 if n < 6 => decide(&mut three.leader, LogCommand::Seal { log }),
                2 | 3 => decide(&mut three.leader, LogCommand::Discard { log, first: Index(n) }),
                4 => {
                    three.restart();
                    None
                }
                _ => {
                    let logs = [log, log, LogNumber(1 + n as u32 % 6), log];
                    let push = |log| three.queue.push_record(log, b"x", Stamp::default(), WaitLimit::None).unwrap();
                    let tickets = logs.map(push);
                    for item in three.queue.take(true).items {
                        let Proposal::Data(gathered) = item else { unreachable!() };
                        let SequencedBlock { block, completer, outcome } =
                            three.leader.data(gathered, Timestamp(n));
                        completer.answer(outcome);
                        if let Some(block) = block {
                            three.spread(&block);
                        }
                    }
                    drop(tickets);
                    None
                }
            };
            if let Some(block) = block {
                three.spread(&block);
            }
            let table = three.leader.logs.encode();
            prop_assert_eq!(&three.follower.logs.encode(), &table);
            prop_assert_eq!(&three.restarted.logs.encode(), &table);
            prop_assert_eq!(three.leader.end(), three.follower.end());
            prop_assert_eq!(three.leader.end(), three.restarted.end());
            if n % 5 == 0 {
                three.follower.commit_to(three.follower.end().raft);
                prop_assert_eq!(three.follower.committed().logs.encode(), table);
            }
        }
        let end = three.leader.end().raft;
        for replica in [&mut three.leader, &mut three.follower, &mut three.restarted] {
            replica.commit_to(end);
            prop_assert_eq!(&replica.committed().logs, &replica.logs);
        }
    }
}

/// A state and news of a group's objects have the same limit in a copy of one log: half of what a segment has room for.
#[test]
fn copies_refuse_states_with_more_objects_than_they_could_learn_of() {
    use crate::error::ErrorKind;
    use crate::store::format::geometry::SEGMENT_BYTES_MIN;
    use crate::store::format::objects::{Ancestor, ObjectState, Objects, StoredObject};
    let table = |objects: u64| {
        let stored = StoredObject { bytes: 1 << 16, data_end: 1 << 15, index_count: 0, index_crc: 0, crc: 0 };
        let end = |n| Base { raft: EntryIndex(10 * n), term: Term(1), next: Index(100 * n) };
        let state = |n| ObjectState { end: end(n + 1), timestamp: Timestamp(n), stored: Some(stored) };
        let ancestors = vec![Ancestor { log: crate::types::LogId(7), below: objects }];
        let list = (1..=objects).map(state).collect();
        ObjectTable::of(Objects {
            number: 0,
            base: end(1),
            older: Default::default(),
            list,
            ancestors,
            part: LogNumber(3),
        })
    };
    let copy = || {
        let options = Options::with_segment_bytes(SEGMENT_BYTES_MIN).sessions_max(1);
        Sequencer::new(Owner::Follower, Membership::default(), &options)
    };
    let mut sizes = [0, 0];
    for objects in (1..2000).step_by(7) {
        let (mut fed, mut state) = (copy(), copy());
        let taken = fed.take_group_objects(&table(objects));
        state.objects = table(objects);
        match (taken, state.check_group_objects()) {
            (TakenTable::New, Ok(())) => sizes[0] += 1,
            (TakenTable::TooLarge, Err(error)) => {
                sizes[1] += 1;
                assert_eq!(error.kind(), ErrorKind::TooLarge);
                let text = error.to_string();
                assert!(text.contains(TOO_SMALL_FOR_OBJECTS) && text.contains("segment_bytes"), "{text}");
            }
            both => panic!("{objects} objects: {both:?}"),
        }
    }
    assert!(sizes[0] > 10 && sizes[1] > 10, "{sizes:?}");
}
