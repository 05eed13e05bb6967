#![allow(clippy::unwrap_used, reason = "a test")]

use super::admit::COMMANDS_MAX;
use super::block_builder::Parts;
use super::*;
use crate::cluster::transport::Envelope;
use crate::error::ErrorKind;
use crate::record::batch::{BatchBuilder, BatchHeader, SingleFrame, Stamp};
use crate::types::{DirectoryId, LogId, NodeId};

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

/// A caller can give up its wait, so the number of callers does not bound what it left in the queue.
#[test]
fn commands_and_messages_are_bounded() {
    let q = queue(None);
    for _ in 0..COMMANDS_MAX {
        drop(q.push_command(Command::Discard { first: Index(1) }).unwrap());
    }
    let busy = q.push_command(Command::Discard { first: Index(1) });
    assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(take(&q).len(), COMMANDS_MAX);
    drop(q.push_command(Command::Discard { first: Index(1) }).unwrap());

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
    q.check_room(1600).unwrap();
    let _ticket = q.push_batch_or_wait(LogNumber::OWN, &batch).unwrap().unwrap();
    assert_eq!(q.check_room(100).unwrap_err().kind(), ErrorKind::Full);
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
fn no_append_overtakes_a_command() {
    let q = queue(None);
    let _ticket = push(&q, 1).unwrap();
    let _command = q.push_command(Command::Log(LogCommand::Seal { log: LogNumber(2) })).unwrap();
    let _other = push(&q, 2).unwrap();
    assert_eq!(logs_of(take(&q)), [vec![1], vec![], vec![2]]);
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
