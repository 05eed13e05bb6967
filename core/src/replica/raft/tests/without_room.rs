//! A replica whose disk is completely full.

use super::*;
use crate::error::Error;
use crate::options::log_options::{LogOption, LogOptions};
use crate::replica::queue::proposals::{Command, LogCommand, ObjectCommand};
use crate::replica::state::command::encode_command;
use crate::replica::state::sequencer::Decision;
use crate::replica::wire::raft_message::Arrived;
use crate::store::allocator::{Purpose, RETRY_DELAY};
use crate::store::block_bytes;
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::object_row::StoredObject;
use crate::store::format::segment::HARD_STATE_BYTES;
use crate::store::segment::Base;
use crate::types::LogNumber;

/// Node 2, the only voter, with node 3 as a learner that was never heard.
fn sole_voter(disk: &SimDisk) -> Node {
    let mut node = node_with(disk, Bootstrap::Init);
    let learner = Change::AddLearner { node: NodeId(3), directory: DirectoryId(13), address: String::new() };
    assert_eq!(change(&mut node, learner), Some(Ok(())));
    assert_eq!(node.replica.role(), Role::Leader);
    node
}

/// Requests a membership change; see [`answer`].
fn change(node: &mut Node, change: Change) -> Option<Result<(), ErrorKind>> {
    answer(node, AdminRequest::Change(vec![change], false))
}

/// Makes a request and the steps that follow, and returns the answer.
fn answer(node: &mut Node, ask: AdminRequest) -> Option<Result<(), ErrorKind>> {
    let completer = Completer::new();
    let ticket = completer.ticket(0, 0, 0);
    node.replica
        .handle_request(ask, Duration::from_secs(60), completer, Moment::START, &mut node.writer.plan)
        .unwrap();
    for _ in 0..3 {
        node.step(Moment::START, Work::default()).unwrap();
        sync(node);
    }
    ticket.poll().map(|outcome| outcome.map(drop).map_err(|error| error.kind()))
}

/// Raft got the change before there was room for it: the leader was held.
#[test]
fn change_without_room_is_refused() {
    let disk = SimDisk::default();
    let mut node = sole_voter(&disk);
    disk.limit_space(Some(0));
    let address = |n: usize| Change::SetAddress { node: NodeId(3), address: format!("{n:0>200}") };
    let answered = (0..2000).map(|n| change(&mut node, address(n))).find(|a| *a != Some(Ok(())));
    assert!(node.replica.is_held().is_none());
    assert_eq!(answered, Some(Some(Err(ErrorKind::Full))));
    assert_eq!(node.replica.role(), Role::Leader);
    disk.limit_space(None);
    let later = crate::store::allocator::RETRY_DELAY;
    node.step(Moment::START.plus(later), Work::default()).unwrap();
    assert_eq!(change(&mut node, address(0)), Some(Ok(())));
}

/// It is its own majority, so it never steps down. Each tick left a heartbeat in memory.
#[test]
fn held_sole_voter_keeps_no_messages() {
    let mut node = sole_voter(&SimDisk::default());
    let waits = |node: &Node| (node.replica.raw.raft.msgs.len(), node.replica.raw.raft.read_states.len());
    let before = waits(&node);
    let wait_limit = Duration::from_secs(60);
    let now = Moment::START;
    node.replica
        .handle_request(AdminRequest::Barrier, wait_limit, Completer::new(), now, &mut node.writer.plan)
        .unwrap();
    node.replica.short = Some(Some(Error::new(ErrorKind::Full, "no room")));
    for n in 0..200 {
        node.replica.tick();
        node.replica.retry_barriers(Moment::START.plus(Duration::from_millis(100 * n)));
    }
    assert_eq!(waits(&node), before);
}

/// Requests an option of the log; see [`answer`].
fn set_option(node: &mut Node, option: LogOption, value: u64) -> Option<Result<(), ErrorKind>> {
    answer(node, AdminRequest::SetOptions(LogNumber::OWN, vec![(option, Some(value))]))
}

/// Changes of options that free nothing used the room of the discard that would have freed some.
#[test]
fn options_that_free_nothing_do_not_use_the_reserve() {
    let disk = SimDisk::default();
    let mut node = node_with(&disk, Bootstrap::Init);
    disk.limit_space(Some(0));
    let mut answers = (0..2000).map(|n| set_option(&mut node, LogOption::SessionsMax, 1 + n % 2));
    assert_eq!(answers.find(|answer| *answer != Some(Ok(()))), Some(Some(Err(ErrorKind::Full))));
    drop(answers);
    assert_eq!(set_option(&mut node, LogOption::RetentionBytes, 1 << 30), Some(Ok(())));
}

/// The change was refused as `Full` although its file was only being prepared.
#[test]
fn change_of_options_waits_for_the_file_of_a_ready() {
    let mut node = node_with(&SimDisk::default(), Bootstrap::Init);
    node.replica.short = Some(None);
    let completer = Completer::new();
    let ticket = completer.ticket(0, 0, 0);
    let ask = AdminRequest::SetOptions(LogNumber::OWN, vec![(LogOption::SessionsMax, Some(3))]);
    node.replica
        .handle_request(ask, Duration::from_secs(60), completer, Moment::START, &mut node.writer.plan)
        .unwrap();
    assert!(ticket.poll().is_none());
    node.replica.short = None;
    for _ in 0..3 {
        node.step(Moment::START, Work::default()).unwrap();
        sync(&mut node);
    }
    assert!(ticket.poll().unwrap().is_ok());
}

/// Node 2 in term 1 with one entry, on a disk without room for more files.
fn follower() -> Node {
    let disk = SimDisk::default();
    let mut node = node_with(&disk, Bootstrap::Join(LOG));
    step(&mut node, &append(0, vec![entry_at(1)]));
    disk.limit_space(Some(0));
    node
}

/// Plans blocks until there is no room for `bytes` more bytes.
fn fill(node: &mut Node, bytes: usize) {
    while node.writer.plan.has_space(bytes) {
        let marker = node.replica.sequencer.marker(0);
        node.writer.plan.push(marker);
    }
}

fn last(node: &Node) -> u64 {
    node.replica.raw.raft.raft_log.last_index()
}

const DISCARD: u64 = 1;
const SESSION: u64 = 2;

fn command(raft: u64, op: u64) -> Arrived {
    let body = [op, 1].map(u64::to_le_bytes).concat();
    let header = BlockHeader::without_records(
        Kind::Command,
        (EntryIndex(raft), Term(1)),
        Index(1),
        Timestamp(1),
        &body,
    );
    (header, vec![Bytes::from(body)])
}

/// Sends a follower these commands after its last entry. Returns the number that it accepts.
fn commands_taken(node: &mut Node, ops: &[u64]) -> u64 {
    let before = last(node);
    let arrived: Vec<_> = (before + 1..).zip(ops).map(|(raft, op)| command(raft, *op)).collect();
    let entries = arrived.iter().map(|(header, _)| raft_message::entry(header, Bytes::new)).collect();
    node.replica.step((append(before, entries), arrived), Moment::START, &mut node.writer.plan).unwrap();
    node.replica.advance(Moment::START, &mut node.writer.plan).unwrap();
    assert!(node.replica.is_held().is_none());
    last(node) - before
}

/// As [`commands_taken`].
fn taken(node: &mut Node, commands: &[Command]) -> u64 {
    let (before, next) = (last(node), node.replica.sequencer.end().next);
    let arrived: Vec<Arrived> = (before + 1..)
        .zip(commands)
        .map(|(raft, command)| {
            let (body, at) = (encode_command(*command), (EntryIndex(raft), Term(1)));
            let header = BlockHeader::without_records(Kind::Command, at, next, Timestamp(1), &body);
            (header, vec![Bytes::from(body)])
        })
        .collect();
    let entries = arrived.iter().map(|(header, _)| raft_message::entry(header, Bytes::new)).collect();
    node.replica.step((append(before, entries), arrived), Moment::START, &mut node.writer.plan).unwrap();
    node.replica.advance(Moment::START, &mut node.writer.plan).unwrap();
    assert!(node.replica.is_held().is_none());
    last(node) - before
}

/// A follower on a full disk refused what is said about objects, and never learnt that its files could go. Entries before it do not use the
/// last file for that.
#[test]
fn commands_about_objects_use_the_reserve_and_entries_before_them_no_file() {
    let base = |raft| Base { raft: EntryIndex(raft), term: Term(1), next: Index(raft * 10 + 1) };
    let (timestamp, first) = (Timestamp(1), Index(1));
    let cut = |number| {
        let (begin, end) = (base(number), base(number + 1));
        Command::Object(ObjectCommand::Cut { number, begin, end, timestamp, first })
    };
    let object = StoredObject { bytes: 1 << 16, data_end: 8192, index_count: 1, index_crc: 2, crc: 3 };
    let stored = Command::Object(ObjectCommand::Stored { number: 0, object });
    let session = Command::OpenSession { log: LogNumber::OWN, idle_max_ms: 1000 };
    for (files, frees, discards) in [(0, true, false), (1, true, false), (0, false, false), (0, false, true)]
    {
        let disk = SimDisk::default();
        let cluster = ClusterOptions::new(NodeId(2), Bootstrap::Join(LOG), MemoryNetwork::new().transport());
        let vault: Option<Arc<dyn crate::vault::Vault>> =
            Some(Arc::new(crate::vault::MemoryVault::default()));
        let local_bytes = frees.then_some(1);
        let segments = Options::with_segment_bytes(64 << 10);
        let mut node = node_on(&disk, Options { cluster: Some(cluster), vault, local_bytes, ..segments });
        step(&mut node, &append(0, vec![entry_at(1)]));
        assert_eq!(taken(&mut node, &[cut(0)]), 1);
        // Files stay after a discard of some of its records, until the object is stored.
        if discards {
            assert_eq!(taken(&mut node, &[Command::Discard { first: Index(5) }]), 1);
            let end = last(&node);
            for _ in 0..2 {
                sync(&mut node);
                let mut committed = append(end, Vec::new());
                committed.commit = end;
                step(&mut node, &committed);
            }
            assert_eq!(node.replica.sequencer.committed().first, Index(5));
        }
        disk.limit_space(Some(disk.space_used() + (files << 16)));
        assert_eq!(node.writer.store.allocator.keep_one_ready().is_ok(), files == 1);
        while node.writer.plan.is_roomy(block_bytes(16)) {
            let marker = node.replica.sequencer.marker(0);
            node.writer.plan.push(marker);
        }
        // With a file behind it, records use all of a segment.
        fill(&mut node, if files == 1 { block_bytes(16) } else { 3 << 10 });
        assert_eq!(taken(&mut node, &[session, session, cut(1)]), 0, "{files} files");
        assert!(node.replica.is_short());
        let stored = taken(&mut node, &[session, session, stored]);
        let wanted = if files == 0 && (frees || discards) { 3 } else { 0 };
        assert_eq!(stored, wanted, "{files} files, {frees}, {discards}");
        assert_eq!(node.writer.store.allocator.has_one_ready(), files == 1, "records took the last file");
    }
}

/// The discard makes room, and cannot be in the log without the entries before it.
#[test]
fn entries_before_a_discard_may_use_the_reserve() {
    for fitting in [0, 2] {
        let mut node = follower();
        while node.writer.plan.is_roomy((fitting + 1) * block_bytes(16)) {
            let marker = node.replica.sequencer.marker(0);
            node.writer.plan.push(marker);
        }
        assert_eq!(commands_taken(&mut node, &[SESSION; 4]), fitting as u64);
        assert!(node.replica.is_short());
        assert_eq!(commands_taken(&mut node, &[SESSION, SESSION, SESSION, DISCARD, SESSION]), 4);
    }
}

#[test]
fn no_entry_is_accepted_without_room_for_the_commit_record() {
    let mut node = follower();
    fill(&mut node, block_bytes(HARD_STATE_BYTES));
    assert_eq!(commands_taken(&mut node, &[SESSION, DISCARD]), 0);
    assert!(node.replica.is_short());
}

/// A member with smaller segments than the others got a state that does not fit in one. It was poisoned, at each start.
#[test]
fn snapshot_that_fits_in_no_segment_is_not_taken() {
    let mut node = node_with(&SimDisk::default(), Bootstrap::Join(LOG));
    let mut table = LogTable::default();
    for n in 1..2000 {
        table.apply(LogCommand::Open { log: LogNumber(n), start: Index(1) }).unwrap();
    }
    step(&mut node, &snapshot_with(table.encode(), LEADER, DIRECTORY, NodeId(2)));
    assert_eq!(node.replica.shortage().map(Error::kind), Some(ErrorKind::TooLarge));
    assert_eq!(node.replica.sequencer.end().raft, EntryIndex(0));
    step(&mut node, &snapshot());
    assert_eq!(node.replica.sequencer.end().raft, EntryIndex(50));
}

const LOGS: [LogNumber; 2] = [LogNumber(1), LogNumber(2)];

fn open_logs() -> [Command; 2] {
    LOGS.map(|log| Command::Log(LogCommand::Open { log, start: Index(1) }))
}

fn discard_of_one(log: LogNumber, first: u64) -> Command {
    Command::Log(LogCommand::Discard { log, first: Index(first) })
}

/// Discards of one log of a shared group can follow each other without end, and remove no file: they used all of the reserve, and with it
/// the room of what removes files.
#[test]
fn discards_of_one_log_leave_room_for_what_removes_files() {
    let disk = SimDisk::default();
    let mut node = node_with(&disk, Bootstrap::Init);
    let mut put = |disk_is_full: bool, command| {
        disk.limit_space(disk_is_full.then_some(0));
        let completer = Completer::new();
        let ticket = completer.ticket(0, 0, 0);
        node.replica.command(command, Some(completer), Moment::START, &mut node.writer.plan).unwrap();
        for _ in 0..3 {
            node.step(Moment::START, Work::default()).unwrap();
            sync(&mut node);
        }
        (ticket.poll().unwrap().map(drop).map_err(|error| error.kind()), node.writer.plan.space())
    };
    for command in open_logs() {
        assert_eq!(put(false, command).0, Ok(()));
    }
    let mut discards = (2..10_000).map(|n| put(true, discard_of_one(LOGS[0], n)));
    let (refused, space) = discards.find(|(put, _)| put.is_err()).unwrap();
    drop(discards);
    assert_eq!(refused, Err(ErrorKind::Full));
    assert!(space > 1 << 10, "{space} bytes are left");
    assert_eq!(put(true, Command::Log(LogCommand::Drop { log: LOGS[1] })).0, Ok(()));
}

/// A follower took all records before a discard of one log into the reserve, and so on, until there was no room for a vote.
#[test]
fn entries_before_discards_of_one_log_leave_room_for_what_removes_files() {
    let mut node = follower();
    assert_eq!(taken(&mut node, &open_logs()), 2);
    while node.writer.plan.is_roomy(block_bytes(16)) {
        let marker = node.replica.sequencer.marker(0);
        node.writer.plan.push(marker);
    }
    let session = Command::OpenSession { log: LOGS[0], idle_max_ms: 1000 };
    let discards: Vec<_> =
        (2..100).map(|n| taken(&mut node, &[session, discard_of_one(LOGS[0], n)])).collect();
    assert_eq!(discards[0], 2, "one may lead to room");
    assert_eq!(discards.last(), Some(&0), "many do not");
    assert!(node.replica.is_short());
    let space = node.writer.plan.space();
    assert!(space > 1 << 10, "{space} bytes are left");
    assert_eq!(taken(&mut node, &[session, Command::Log(LogCommand::Drop { log: LOGS[1] })]), 2);
    assert_eq!(taken(&mut node, &[session, Command::Discard { first: Index(1) }]), 2);
}

/// However much room is left, the number of accepted entries leaves room for the commit record.
#[test]
fn entries_are_accepted_as_far_as_there_is_room() {
    let word = block_bytes(HARD_STATE_BYTES);
    let each = block_bytes(word); // an entry without data may be a membership change, with a commit record before it
    for left in (0..4 * each).step_by(block_bytes(0)) {
        let mut node = follower();
        fill(&mut node, left + block_bytes(0));
        assert!(node.writer.plan.has_space(left));
        let many = append(1, (2..22).map(entry_at).collect());
        node.replica.step((many, Vec::new()), Moment::START, &mut node.writer.plan).unwrap();
        node.replica.advance(Moment::START, &mut node.writer.plan).unwrap();
        assert!(node.replica.is_held().is_none(), "{left} bytes");
        assert_eq!(last(&node) - 1, (left.saturating_sub(word) / each) as u64, "{left} bytes");
    }
}

/// All messages before the next ready share the room.
#[test]
fn messages_of_one_step_share_the_room() {
    let mut node = follower();
    for index in 1..2000 {
        let message = append(index, vec![entry_at(index + 1)]);
        node.replica.step((message, Vec::new()), Moment::START, &mut node.writer.plan).unwrap();
    }
    node.replica.advance(Moment::START, &mut node.writer.plan).unwrap();
    assert!(node.replica.is_held().is_none());
    assert!((2..2000).contains(&last(&node)) && node.replica.is_short());
}

/// Raft refuses its entries, and answers that there is another leader.
#[test]
fn deposed_leader_needs_no_room() {
    let mut node = follower();
    step(&mut node, &message(MessageType::MsgHeartbeat, 3));
    fill(&mut node, block_bytes(HARD_STATE_BYTES));
    assert_eq!(commands_taken(&mut node, &[SESSION]), 0);
    assert!(!node.replica.is_short(), "it looks for no room");
}

/// A term, or entries that replace others, are written only if there is room for all of them.
#[test]
fn ready_without_room_is_not_taken() {
    let conflict = || {
        let mut other = append(1, vec![Entry { index: 2, term: 2, ..Entry::default() }]);
        other.term = 2;
        other
    };
    let word = block_bytes(HARD_STATE_BYTES);
    for (message, left) in [
        (message(MessageType::MsgHeartbeat, 2), 2 * word), // a term, and a commit record after it
        (conflict(), 60_000),
        (snapshot(), 60_000),
    ] {
        let mut node = follower();
        let held = append(1, vec![entry_at(2)]);
        step(&mut node, &held);
        fill(&mut node, left);
        let mut message = message;
        if message.get_msg_type() == MessageType::MsgSnapshot {
            node.replica.admit_self(&mut message);
        }
        let kind = message.get_msg_type();
        node.replica.raw.step(message).unwrap();
        node.replica.process(Moment::START, &mut node.writer.plan).unwrap();
        let why = node.replica.is_held().flatten().map(Error::kind);
        assert_eq!(why, Some(ErrorKind::Full), "{kind:?}");
    }
}

#[test]
fn message_that_needs_a_file_is_held_until_it_is_prepared() {
    let mut node = node_with(&SimDisk::default(), Bootstrap::Join(LOG));
    step(&mut node, &append(0, vec![entry_at(1)]));
    node.writer.store.allocator.go_late(true);
    fill(&mut node, block_bytes(HARD_STATE_BYTES));
    assert_eq!(commands_taken(&mut node, &[SESSION]), 0);
    for _ in 0..3 {
        assert!(node.replica.holds_messages());
        node.replica.advance(Moment::START, &mut node.writer.plan).unwrap();
    }
    node.writer.store.allocator.help();
    node.replica.advance(Moment::START, &mut node.writer.plan).unwrap();
    assert_eq!((last(&node), node.replica.holds_messages()), (2, false));
}

/// A leader whose segment has room for one more block with a body of `body` bytes, and not for the commit record behind it. There is no
/// file.
fn almost_full(body: usize) -> (SimDisk, Node) {
    let disk = SimDisk::default();
    let mut node = node_with(&disk, Bootstrap::Init);
    disk.limit_space(Some(0));
    fill(&mut node, block_bytes(body) + block_bytes(0));
    node.step(Moment::START, Work::default()).unwrap();
    sync(&mut node);
    assert!(node.writer.plan.has_space(block_bytes(body)));
    assert!(!node.writer.plan.has_space(block_bytes(body) + block_bytes(HARD_STATE_BYTES)));
    (disk, node)
}

/// A command about an object, or one that sets options, was ordered where its block just fitted. Its ready then waited for room for the
/// commit record, and the leader was silent.
#[test]
fn command_without_room_for_the_commit_record_is_refused() {
    let mut all = LogOptions::default();
    LogOption::ALL.into_iter().for_each(|option| all.set(option, Some(1 << 20)));
    let base = |raft, next| Base { raft: EntryIndex(raft), term: Term(1), next: Index(next) };
    let (timestamp, first) = (Timestamp(1), Index(1));
    let cut = ObjectCommand::Cut { number: 0, begin: base(0, 1), end: base(1, 1), timestamp, first };
    for command in [Command::Object(cut), Command::SetOptions(all)] {
        let body = encode_command(command).len();
        let (_, mut node) = almost_full(body);
        let before = last(&node);
        assert_eq!(node.replica.purpose_of(&command), Purpose::Metadata);
        node.replica.command(command, None, Moment::START, &mut node.writer.plan).unwrap();
        assert!(node.replica.is_held().is_none() && last(&node) == before, "{command:?}");
        let (_, mut node) = almost_full(body + block_bytes(HARD_STATE_BYTES) + block_bytes(0));
        node.replica.command(command, None, Moment::START, &mut node.writer.plan).unwrap();
        assert!(node.replica.is_held().is_none() && last(&node) == before + 1, "{command:?}");
    }
}

/// An entry that was ordered waited for room. A file was ready by the time the log was to continue in the next one: its opening was behind
/// the entry, which was not in the files. All files were taken to be dead, and removed.
#[test]
fn log_does_not_continue_behind_an_entry_that_waits_for_room() {
    let (disk, mut node) = almost_full(16);
    let now = Moment::START.plus(RETRY_DELAY);
    let discard = node.replica.sequencer.command(Command::Discard { first: Index(9) }, Timestamp(1));
    let Decision::Write(block, _) = discard else { panic!("it changes something") };
    node.replica.order(block).unwrap();
    node.replica.process(Moment::START, &mut node.writer.plan).unwrap();
    assert!(node.replica.is_held().is_some() && node.writer.is_settled());
    let before = node.writer.written().end;
    disk.limit_space(None);
    node.writer.store.allocator.set_time(now);
    node.writer.store.allocator.keep_one_ready().unwrap();
    let newest = node.writer.store.segments.newest().unwrap().number;
    node.writer.store.segments.damage().suspect(newest);
    // The scrubber wants the next segment, and the node has a commit to record.
    for _ in 0..2 {
        node.scrub(now).unwrap();
        assert!(!node.keep_commit(EntryIndex(1)) && node.writer.plan.is_empty());
        assert_eq!(node.writer.store.segments.newest().unwrap().number, newest);
    }
    for _ in 0..3 {
        node.step(now, Work::default()).unwrap();
        sync(&mut node);
    }
    assert_eq!(node.writer.written().end.raft, before.raft.next());
    assert!(node.replica.is_held().is_none() && node.is_in_lockstep());
}

/// Files had gone, and a conflict made the replica forget that: the next opening said that they are there.
#[test]
fn conflict_does_not_bring_back_what_has_gone() {
    let mut node = node_with(&SimDisk::default(), Bootstrap::Join(LOG));
    step(&mut node, &append(0, vec![entry_at(1), entry_at(2)]));
    node.replica.sequencer.keep_from(Index(7));
    let mut other = append(1, vec![Entry { index: 2, term: 2, ..Entry::default() }]);
    other.term = 2;
    step(&mut node, &other);
    let sequencer = &node.replica.sequencer;
    assert_eq!((sequencer.end().term, sequencer.committed().local_first), (Term(2), Index(7)));
}
