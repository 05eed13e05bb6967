#![allow(clippy::unwrap_used, reason = "a test")]

use super::admit::COMMANDS_MAX;
use super::block_builder::Parts;
use super::*;
use crate::cluster::transport::Envelope;
use crate::error::ErrorKind;
use crate::record::batch::{BatchBuilder, BatchHeader, SingleFrame, Stamp};
use crate::types::{DirectoryId, LogId, NodeId, Sequence};
use proptest::prelude::*;
use std::collections::HashMap;

fn queue(capacity: Option<u64>) -> ProposalQueue {
    ProposalQueue::new(
        QueueLimits { block_bytes: 1000, bytes: 2000, appends: 10, capacity, inbox_bytes: 0 },
        0,
    )
}

fn take(queue: &ProposalQueue) -> Vec<Proposal> {
    queue.take(true).items.into()
}

#[test]
fn appends_fill_blocks_of_bounded_size_in_order() {
    let q = queue(None);
    for i in 0..8u8 {
        let _ticket = q.push_record(LogNumber::OWN, &[i; 200], Stamp::default(), WaitLimit::None).unwrap();
    }
    let items = take(&q);
    let mut seen = Vec::new();
    for item in items {
        let Proposal::Data(g) = item else { panic!() };
        assert!(g.bytes <= 1000);
        let lengths: usize = g.batches.iter().map(|e| e.length as usize).sum();
        assert_eq!(lengths, g.bytes);
        let bytes: Vec<u8> = g.into_pieces(None).0.concat();
        seen.extend(bytes.chunks(244).map(|b| b[50]));
    }
    assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(take(&q).is_empty());
}

/// They counted as one: a queue had up to 4,095 appends more than it may.
#[test]
fn appends_that_belong_together_count_each() {
    let record = |log, q: &ProposalQueue| {
        drop(q.push_record(LogNumber(log), &[0; 60], Stamp::default(), WaitLimit::None).unwrap());
    };
    let built = || BatchBuilder::new().push(b"x").unwrap().build().unwrap();
    let (a, b) = (built(), built());
    let pair = [(LogNumber(1), &a), (LogNumber(2), &b)];
    for (before, fits) in [(8, true), (9, false)] {
        let q = queue(None);
        (0..before).for_each(|n| record(1 + n % 2, &q));
        let pushed = q.push_together(&pair, WaitLimit::None).map(|tickets| tickets.len());
        assert_eq!(pushed.map_err(|e| e.kind()), if fits { Ok(2) } else { Err(ErrorKind::Busy) });
    }
}

#[test]
fn full_queue_returns_busy_and_full_log_returns_full() {
    let q = queue(None);
    for _ in 0..8 {
        let _ticket = q.push_record(LogNumber::OWN, &[0; 200], Stamp::default(), WaitLimit::None).unwrap();
    }
    let busy =
        q.push_record(LogNumber::OWN, &[0; 200], Stamp::default(), WaitLimit::For(Duration::from_millis(1)));
    assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
    take(&q);
    let _ticket = q.push_record(LogNumber::OWN, &[0; 200], Stamp::default(), WaitLimit::None).unwrap();

    let q = queue(Some(500));
    let _ticket = q.push_record(LogNumber::OWN, &[0; 400], Stamp::default(), WaitLimit::None).unwrap();
    let full = q.push_record(LogNumber::OWN, &[0; 400], Stamp::default(), WaitLimit::None);
    assert_eq!(full.unwrap_err().kind(), ErrorKind::Full);
}

/// An append was refused as full while the writer passed on what it had taken: most of that goes to the object store. The rest did not
/// count then, and the log grew beyond its capacity.
#[test]
fn bytes_count_as_the_writer_will_say_while_it_has_not_said_so() {
    let push = |q: &ProposalQueue, log, bytes| {
        let pushed = q.push_record(LogNumber(log), &vec![0; bytes], Stamp::default(), WaitLimit::None);
        pushed.map(drop).map_err(|error| error.kind())
    };
    // One large batch, and many that are smaller than references to them.
    let (large, small) = ((1, 600), (10, 16));
    let full = Err(ErrorKind::Full);
    for (tells, log, (count, bytes), second) in [
        (None, 0, large, full),
        (Some(false), 0, large, Ok(())),
        (Some(false), 0, small, full),
        // Blocks of a group that stay while those of one log go, and the other way round.
        (Some(false), 1, large, full),
        (Some(true), 1, large, Ok(())),
        (Some(true), 0, large, full),
    ] {
        let q = queue(Some(1000));
        q.tells_elsewhere(tells);
        for _ in 0..count {
            assert_eq!(push(&q, log, bytes), Ok(()));
        }
        let items = take(&q);
        assert_eq!(push(&q, log, 500), second, "{tells:?} {log} {count} {bytes}");
        let is_mixed = tells.unwrap_or_default();
        let elsewhere = items.iter().map(|item| match (item, tells) {
            (Proposal::Data(block), Some(_)) => block.beyond_references(is_mixed).unwrap_or(0),
            _ => 0,
        });
        q.goes_elsewhere(elsewhere.sum());
        // It is the same once that was said.
        let third = if second.is_ok() { Ok(()) } else { push(&q, log, 500) };
        assert_eq!(third, second, "{tells:?} {log} {count} {bytes}");
    }
    let q = queue(Some(1000));
    q.tells_elsewhere(Some(false));
    assert_eq!(push(&q, 0, 600), Ok(()));
    take(&q);
    q.tells_elsewhere(None);
    assert_eq!(push(&q, 0, 500), full, "it does not lead any more");
}

/// Before, a replica that did not lead counted what it refused, and was busy for its callers, and as the next leader.
#[test]
fn rate_holds_for_the_leader_alone() {
    let q = queue(None);
    let push = || q.push_record(LogNumber(1), &[0; 200], Stamp::default(), WaitLimit::None);
    q.set_rate(LogNumber(1), Some(10));
    q.set_leads(false);
    for _ in 0..3 {
        drop(push().unwrap());
    }
    take(&q);
    q.set_leads(true);
    drop(push().unwrap());
    let limited = push().unwrap_err();
    assert!(limited.retry_after().is_some(), "{limited}");
    q.set_leads(false);
    q.set_leads(true);
    drop(push().unwrap());
}

/// A caller can give up its wait, so the number of callers does not bound what it left in the queue.
#[test]
fn commands_and_messages_are_bounded() {
    let q = queue(None);
    for _ in 0..COMMANDS_MAX {
        drop(q.push_command(LogNumber::OWN, Command::Discard { first: Index(1) }).unwrap());
    }
    let busy = q.push_command(LogNumber::OWN, Command::Discard { first: Index(1) });
    assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(take(&q).len(), COMMANDS_MAX);
    drop(q.push_command(LogNumber::OWN, Command::Discard { first: Index(1) }).unwrap());

    let limits = QueueLimits { block_bytes: 1, bytes: 1, appends: 1, capacity: None, inbox_bytes: 10_000 };
    let q = ProposalQueue::new(limits, 0);
    let message = |bodies, urgent| {
        InboxEvent::Message(Envelope {
            log: LogId(1),
            from: NodeId(1),
            from_directory: DirectoryId(1),
            to: NodeId(2),
            to_directory: DirectoryId(0),
            head: Bytes::new(),
            bodies: vec![Bytes::new(); bodies],
            urgent,
        })
    };
    let wait = || q.lock().events.len();
    q.push_event(message(300, false));
    assert_eq!(wait(), 1);
    for _ in 0..1000 {
        q.push_event(message(0, false));
    }
    assert!((2..100).contains(&wait()), "empty messages are bounded: {}", wait());
    let before = wait();
    q.push_event(message(0, true));
    assert_eq!(wait(), before + 1, "an urgent message is not kept out");
}

/// A caller that waits for room without a thread is notified by the take that makes room, or by the close.
#[test]
fn callers_that_cannot_block_are_notified_of_room() {
    let mut builder = crate::record::batch::BatchBuilder::new();
    let batch = builder.push(&[0; 1500]).unwrap().build().unwrap();
    let q = queue(None);
    let _ticket = q.push_batch_or_wait(LogNumber::OWN, &batch).unwrap().unwrap();
    let room = q.push_batch_or_wait(LogNumber::OWN, &batch).unwrap().unwrap_err();
    let another = q.push_batch_or_wait(LogNumber::OWN, &batch).unwrap().unwrap_err();
    assert!(room.poll().is_none());
    take(&q);
    assert!(room.poll().unwrap().is_ok() && another.poll().unwrap().is_ok());
    let _ticket = q.push_batch_or_wait(LogNumber::OWN, &batch).unwrap().unwrap();
    let room = q.push_batch_or_wait(LogNumber::OWN, &batch).unwrap().unwrap_err();
    q.close();
    assert_eq!(room.wait().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(q.push_batch_or_wait(LogNumber::OWN, &batch).unwrap_err().kind(), ErrorKind::Closed);

    let q = queue(Some(1600));
    q.check_room(LogNumber::OWN, 1600).unwrap();
    let _ticket = q.push_batch_or_wait(LogNumber::OWN, &batch).unwrap().unwrap();
    assert_eq!(q.check_room(LogNumber::OWN, 100).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(q.push_batch_or_wait(LogNumber::OWN, &batch).unwrap_err().kind(), ErrorKind::Full);
}

/// 2^20 empty records take a few hundred bytes. A block of such batches overflowed its record count: it was
/// acknowledged and could not be read.
#[test]
fn block_never_overflows_its_record_count() {
    let limits = QueueLimits {
        block_bytes: 1 << 30,
        bytes: 1 << 30,
        appends: 1 << 20,
        capacity: None,
        inbox_bytes: 0,
    };
    let q = ProposalQueue::new(limits, 0);
    let header = BatchHeader { length: 40, count: 1 << 20, ..SingleFrame::new(&[], Stamp::default()).header };
    for _ in 0..4097 {
        let _ticket =
            q.push(LogNumber::OWN, &Parts::Copy([&[0; 40], &[], &[]]), &header, WaitLimit::None).unwrap();
    }
    let counts: Vec<usize> =
        take(&q).iter().map(|item| if let Proposal::Data(g) = item { g.batches.len() } else { 0 }).collect();
    assert_eq!(counts, [4095, 2]);
}

/// Bytes on their way to the disk were counted twice: as waiting and as used.
#[test]
fn taken_bytes_count_once() {
    let q = queue(Some(1000));
    let _ticket = q.push_record(LogNumber::OWN, &[0; 400], Stamp::default(), WaitLimit::None).unwrap();
    take(&q);
    assert_eq!(
        q.push_record(LogNumber::OWN, &[0; 600], Stamp::default(), WaitLimit::None).unwrap_err().kind(),
        ErrorKind::Full
    );
    q.account(444, 512);
    let _ticket = q.push_record(LogNumber::OWN, &[0; 400], Stamp::default(), WaitLimit::None).unwrap();
}

#[test]
fn batches_can_be_left_out() {
    let q = queue(None);
    for i in 0..4u8 {
        let _ticket = q.push_record(LogNumber::OWN, &[i; 10], Stamp::default(), WaitLimit::None).unwrap();
    }
    let Some(Proposal::Data(g)) = take(&q).pop() else { panic!() };
    let kept = g.into_pieces(Some(&mut |n| n % 2 == 1)).0.concat();
    assert_eq!(kept.len(), 2 * 54);
    assert_eq!((kept[45], kept[54 + 45]), (1, 3));
}

#[test]
fn closed_queue_returns_the_rest_and_admits_nothing() {
    let q = queue(None);
    let _ticket = q.push_record(LogNumber::OWN, b"x", Stamp::default(), WaitLimit::None).unwrap();
    q.close();
    assert_eq!(take(&q).len(), 1);
    assert!(q.take(true).closed);
    let refused = q.push_record(LogNumber::OWN, b"x", Stamp::default(), WaitLimit::None);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Closed);
}

/// The logs of the batches of each block, in order; an empty list is a command.
fn logs_of(items: impl IntoIterator<Item = Proposal>) -> Vec<Vec<u32>> {
    let of = |item| match item {
        Proposal::Data(block) => BlockBuilder::with_logs(&block).map(|(log, _)| log.0).collect(),
        Proposal::Command(..) => Vec::new(),
    };
    items.into_iter().map(of).collect()
}

fn push(queue: &ProposalQueue, log: u32) -> Result<crate::sync::completion::Ticket> {
    push_sized(queue, log, 200)
}

fn push_sized(queue: &ProposalQueue, log: u32, bytes: usize) -> Result<crate::sync::completion::Ticket> {
    queue.push_record(LogNumber(log), &vec![1; bytes], Stamp::default(), WaitLimit::None)
}

#[test]
fn log_with_nothing_in_the_queue_gets_into_the_first_block() {
    let q = queue(None);
    let mut tickets: Vec<_> = (0..5).map(|_| push(&q, 1).unwrap()).collect();
    tickets.extend([2, 3, 2].map(|log| push_sized(&q, log, 100).unwrap()));
    // Three of log 1 fill seven eighths of a block. Log 2 gets into the rest of the first one, log 3 into the next.
    assert_eq!(logs_of(take(&q)), [[1, 1, 1, 2]]);
    tickets.push(push_sized(&q, 2, 100).unwrap());
    assert_eq!(logs_of(take(&q)), [[1, 1, 3]]);
    assert_eq!(logs_of(take(&q)), [[2, 2]], "within a log nothing overtakes");
    assert!(take(&q).is_empty());
    assert_eq!(q.waiting().0, 0);
}

#[test]
fn no_append_overtakes_a_command_of_its_log_or_of_the_group() {
    let q = queue(None);
    let seal = |log| Command::Log(LogCommand::Seal { log });
    let _ticket = push(&q, 1).unwrap();
    let _command = q.push_command(LogNumber(2), seal(LogNumber(2))).unwrap();
    let _others = [2, 3].map(|log| push(&q, log).unwrap());
    assert_eq!(logs_of(take(&q)), [vec![1, 3], vec![], vec![2]], "log 3 has nothing to do with it");
    let _ticket = push(&q, 1).unwrap();
    let _command = q.push_command(LogNumber::OWN, Command::Discard { first: Index(1) }).unwrap();
    let _other = push(&q, 3).unwrap();
    assert_eq!(logs_of(take(&q)), [vec![1], vec![], vec![3]]);
    assert!(q.lock().turns.is_empty());
}

/// One tenant's discard put every append of all others behind a whole backlog.
#[test]
fn command_of_a_log_keeps_no_other_log_behind_a_backlog() {
    let q = large_queue();
    while push_sized(&q, 1, 956).is_ok() {}
    let log = LogNumber(1);
    let _command = q.push_command(log, Command::Log(LogCommand::Discard { log, first: Index(1) })).unwrap();
    drop(push_sized(&q, 2, 10).unwrap());
    assert!(logs_of(take(&q)).concat().contains(&2), "it has a turn in the first block");
}

#[test]
fn full_queue_has_room_for_a_log_with_nothing_in_it() {
    let q = queue(None);
    let tickets: Vec<_> = (0..20).map_while(|_| push(&q, 1).ok()).collect();
    assert_eq!(tickets.len(), 7, "2,000 bytes");
    let _quiet = push(&q, 2).unwrap();
    assert_eq!(push(&q, 2).unwrap_err().kind(), ErrorKind::Busy, "now it has something in the queue");
    assert_eq!(push(&q, 3).unwrap_err().kind(), ErrorKind::Busy, "an eighth is kept, no more");
}

#[test]
fn batches_that_are_appended_together_are_in_one_block() {
    let q = queue(None);
    let batch = BatchBuilder::new().push(&[1; 200]).unwrap().build().unwrap();
    let _one: Vec<_> = (0..2).map(|_| push(&q, 1).unwrap()).collect();
    let pair = [(LogNumber(1), &batch), (LogNumber(2), &batch), (LogNumber(3), &batch)];
    let tickets = q.push_together(&pair, WaitLimit::None).unwrap();
    assert_eq!(tickets.len(), 3);
    let items = take(&q);
    assert_eq!(logs_of(items), [[1, 1]]);
    let items = take(&q);
    let Some(Proposal::Data(block)) = items.first() else { panic!() };
    assert_eq!((block.together_from(0), block.together_from(1)), (Some(0..3), None));
    assert_eq!(logs_of(items), [[1, 2, 3]]);
}

#[test]
fn plain_and_mixed_batches_are_in_blocks_of_their_own() {
    let q = queue(None);
    let _tickets = [0, 1, 0].map(|log| push(&q, log).unwrap());
    let items: Vec<Proposal> =
        std::iter::from_fn(|| Some(take(&q)).filter(|items| !items.is_empty())).flatten().collect();
    let kinds: Vec<bool> =
        items.iter().map(|item| matches!(item, Proposal::Data(b) if b.is_mixed())).collect();
    assert_eq!(kinds, [false, true, false]);
}

/// As [`push`], by a session that numbers its batches.
fn push_numbered(queue: &ProposalQueue, log: u32, number: u64, bytes: usize) -> Result<()> {
    let stamp = Stamp { session: SessionId(u64::from(log)), sequence: Sequence(number), inflight: 0 };
    queue.push_record(LogNumber(log), &vec![1; bytes], stamp, WaitLimit::None).map(drop)
}

/// A queue of many blocks, in which a share of a block is some small batches.
fn large_queue() -> ProposalQueue {
    let limits =
        QueueLimits { block_bytes: 16_000, bytes: 160_000, appends: 10_000, capacity: None, inbox_bytes: 0 };
    ProposalQueue::new(limits, 0)
}

/// Only a log with nothing in the queue overtook the backlog: a second append to a quiet log went behind all of it.
#[test]
fn second_append_of_a_quiet_log_overtakes_a_backlog() {
    let q = large_queue();
    let flood = (0..).take_while(|_| push_sized(&q, 1, 956).is_ok()).count();
    assert_eq!(flood, 159, "the queue is full");
    for log in [2, 3, 2, 3] {
        drop(push_sized(&q, log, 10).unwrap());
    }
    let first = logs_of(take(&q));
    assert_eq!(first[0][first[0].len() - 4..], [2, 3, 2, 3]);
    drop(push_sized(&q, 2, 10).unwrap());
    assert_eq!(logs_of(take(&q))[0].last(), Some(&2), "the first block that was not taken yet");
}

/// A second log that floods uses a share of what each block keeps: a third log still has a turn in the first block.
#[test]
fn logs_that_flood_leave_room_for_a_quiet_one_in_each_block() {
    let q = large_queue();
    // Ten of these are seven eighths of a block.
    for _ in 0..100 {
        drop(push_sized(&q, 1, 1352).unwrap());
    }
    for _ in 0..200 {
        drop(push_sized(&q, 2, 40).unwrap());
    }
    drop(push_sized(&q, 3, 1000).unwrap());
    let turns = std::iter::from_fn(|| Some(logs_of(take(&q))).filter(|blocks| !blocks.is_empty()));
    let blocks: Vec<Vec<u32>> = turns.flatten().collect();
    let count = |block: &[u32], log| block.iter().filter(|of| **of == log).count();
    assert_eq!(count(&blocks[0], 3), 1);
    assert!(blocks[..10].iter().all(|block| (count(block, 1), count(block, 2)) == (10, 2)), "{blocks:?}");
    assert_eq!(blocks.iter().map(|block| count(block, 2)).sum::<usize>(), 200);
}

/// Later appends go into blocks that wait, and never before one. So a large batch has its turn.
#[test]
fn large_batch_is_taken_after_the_blocks_that_were_before_it() {
    let q = large_queue();
    for _ in 0..30 {
        drop(push_sized(&q, 1, 956).unwrap());
    }
    drop(push_sized(&q, 2, 15_900).unwrap());
    let batch = BatchBuilder::new().push(&[1; 1000]).unwrap().build().unwrap();
    let pair = [(LogNumber(1), &batch), (LogNumber(3), &batch)];
    drop(q.push_together(&pair, WaitLimit::None).unwrap());
    let mut turns = Vec::new();
    for turn in 0..20u32 {
        (100..120).for_each(|log| drop(push_sized(&q, log, 10)));
        while push_sized(&q, 1, 956).is_ok() {}
        let logs = logs_of(take(&q)).concat();
        turns.extend([2, 3].into_iter().filter(|log| logs.contains(log)).map(|log| (log, turn)));
    }
    // Three blocks of log 1 were before the batch. The last of them had room for the pair.
    assert_eq!(turns, [(3, 2), (2, 3)]);
}

/// A quiet log waits for the turn before its own: while it appends, a flood has short turns. A flood alone has long ones.
#[test]
fn turns_are_short_while_several_logs_append() {
    const MIB: usize = 1 << 20;
    let limits = QueueLimits {
        block_bytes: 4 * MIB,
        bytes: 16 * MIB,
        appends: 10_000,
        capacity: None,
        inbox_bytes: 0,
    };
    let q = ProposalQueue::new(limits, 0);
    let turn = || {
        let items = take(&q);
        let bytes = |item| if let Proposal::Data(block) = item { block.bytes } else { 0 };
        items.into_iter().map(bytes).sum::<usize>()
    };
    let flood = |records| (0..records).for_each(|_| drop(push_sized(&q, 1, 2000).unwrap()));
    flood(4000);
    assert!((3 * MIB..4 * MIB).contains(&turn()));
    drop(push_sized(&q, 2, 10).unwrap());
    while turn() > 0 {}
    flood(1000);
    drop(push_sized(&q, 2, 10).unwrap());
    let turns: Vec<usize> = std::iter::from_fn(|| Some(turn()).filter(|bytes| *bytes > 0)).collect();
    assert!(turns.len() >= 8 && turns.iter().all(|bytes| *bytes <= 256 << 10), "{turns:?}");
    for _ in 0..40 {
        flood(4000);
        while turn() > 0 {}
    }
    flood(4000);
    assert!((3 * MIB..4 * MIB).contains(&turn()), "the other log is gone");
}

#[derive(Clone, Debug)]
enum Step {
    Push { log: u32, bytes: usize },
    Together(Vec<u32>),
    Command,
    CommandOf(u32),
    Take,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![8 => 0..100usize, 4 => 100..2000usize, 1 => 2000..20_000usize];
    // Log 1 floods.
    let log = prop_oneof![3 => Just(1u32), 2 => 1..12u32];
    let together = proptest::sample::subsequence((1..8u32).collect::<Vec<_>>(), 1..4);
    let step = prop_oneof![
        40 => (log, bytes).prop_map(|(log, bytes)| Step::Push { log, bytes }),
        3 => together.prop_map(Step::Together),
        1 => Just(Step::Command),
        2 => (1..12u32).prop_map(Step::CommandOf),
        2 => Just(Step::Take),
    ];
    proptest::collection::vec(step, 1..500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// After any pushes and takes: each log's batches come out in its order and in a turn that was known when they
    /// came, blocks keep their bounds, and what is appended together is in one block. Commands keep their place.
    #[test]
    fn batches_of_each_log_come_out_in_order(steps in steps()) {
        let q = large_queue();
        let mut next = HashMap::<LogNumber, u64>::new();
        // For each log the number of its next batch at each of its commands that wait.
        let mut asked = HashMap::<LogNumber, VecDeque<u64>>::new();
        let mut came = HashMap::<LogNumber, u64>::new();
        // By log and number: the last block or command that may be before it, and the last command before it.
        let mut latest = HashMap::new();
        let (mut commands, mut commands_taken, mut ties, mut ties_taken) = (0, 0, 0, 0);
        for step in steps.into_iter().chain(vec![Step::Take; 500]) {
            let end = {
                let inner = q.lock();
                inner.front + inner.items.len() as u64
            };
            match step {
                Step::Push { log, bytes } => {
                    let number = next.get(&LogNumber(log)).copied().unwrap_or(1);
                    if push_numbered(&q, log, number, bytes).is_ok() {
                        next.insert(LogNumber(log), number + 1);
                        latest.insert((LogNumber(log), number), (end, commands));
                    }
                }
                Step::Together(logs) => {
                    let build = |log: &u32| {
                        let number = next.get(&LogNumber(*log)).copied().unwrap_or(1);
                        let mut builder = BatchBuilder::new();
                        builder.session(SessionId(u64::from(*log)), Sequence(number), 0);
                        (LogNumber(*log), number, builder.push(&[1; 300]).unwrap().build().unwrap())
                    };
                    let batches: Vec<_> = logs.iter().map(build).collect();
                    let refs: Vec<_> = batches.iter().map(|(log, _, batch)| (*log, batch)).collect();
                    if q.push_together(&refs, WaitLimit::None).is_ok() {
                        ties += 1;
                        for (log, number, _) in batches {
                            next.insert(log, number + 1);
                            latest.insert((log, number), (end, commands));
                        }
                    }
                }
                Step::Command => {
                    drop(q.push_command(LogNumber::OWN, Command::Discard { first: Index(1) }).unwrap());
                    commands += 1;
                }
                Step::CommandOf(log) => {
                    let log = LogNumber(log);
                    drop(q.push_command(log, Command::Log(LogCommand::Seal { log })).unwrap());
                    asked.entry(log).or_default().push_back(next.get(&log).copied().unwrap_or(1));
                }
                Step::Take => {
                    let front = q.lock().front;
                    for (at, item) in (front..).zip(take(&q)) {
                        match item {
                            Proposal::Command(log, ..) if !log.is_none() => {
                                let after = asked.get_mut(&log).and_then(VecDeque::pop_front);
                                prop_assert_eq!(after, Some(came.get(&log).copied().unwrap_or(1)));
                            }
                            Proposal::Command(..) => commands_taken += 1,
                            Proposal::Data(block) => {
                                let bytes = block.bytes;
                                prop_assert!(bytes <= 16_000 || block.batches.len() == 1, "{bytes}");
                                for (log, batch) in block.with_logs() {
                                    let number = came.entry(log).or_insert(1);
                                    prop_assert_eq!(batch.stamp.sequence, Sequence(*number));
                                    let (end, before) = latest[&(log, *number)];
                                    prop_assert!(at <= end, "it waits for block {at}, not {end}");
                                    prop_assert!(commands_taken >= before, "it overtook a command");
                                    *number += 1;
                                }
                                ties_taken += (0..block.batches.len())
                                    .filter(|n| block.together_from(*n).is_some())
                                    .count();
                            }
                        }
                    }
                }
            }
        }
        prop_assert_eq!(came, next);
        prop_assert_eq!((commands_taken, ties_taken), (commands, ties));
        let inner = q.lock();
        prop_assert_eq!((inner.bytes, inner.appends, inner.commands), (0, 0, 0));
        prop_assert!(inner.turns.is_empty());
    }
}
