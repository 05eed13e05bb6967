//! Every interleaving of callers and the writer at the queue. A lost wake-up is a deadlock here: time does not pass in
//! a model, so a thread that waits is woken by another thread or never. (A model that fails can end in an abort,
//! because the completers in the queue still answer while it is torn down.)

use super::*;
use crate::error::ErrorKind;
use crate::record::batch::{BATCH_HEADER_BYTES, RECORD_OVERHEAD_BYTES, Stamp};
use crate::sync::completion::Ticket;
use loom::thread::{self, JoinHandle};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const FOREVER: WaitLimit = WaitLimit::For(Duration::MAX);
/// The bytes that a record of one byte takes.
const ONE: usize = BATCH_HEADER_BYTES + 1 + RECORD_OVERHEAD_BYTES;

/// A queue that lets `appends` appends wait.
fn queue(appends: usize) -> Arc<ProposalQueue> {
    let limits = QueueLimits { block_bytes: 1000, bytes: 1000, appends, capacity: None, inbox_bytes: 0 };
    Arc::new(ProposalQueue::new(limits, 0))
}

fn push(queue: &ProposalQueue, record: u8, wait_limit: WaitLimit) -> Result<Ticket> {
    queue.push_record(LogNumber::OWN, &[record], Stamp::default(), wait_limit)
}

/// A caller on a thread of its own.
fn caller<T: 'static>(
    queue: &Arc<ProposalQueue>,
    run: impl FnOnce(&ProposalQueue) -> T + 'static,
) -> JoinHandle<T> {
    let queue = queue.clone();
    thread::spawn(move || run(&queue))
}

/// The records of the items, in order; a command counts as a 0.
fn records(items: VecDeque<Proposal>) -> Vec<u8> {
    let mut records = Vec::new();
    for item in items {
        match item {
            Proposal::Command(..) => records.push(0),
            Proposal::Data(gathered) => {
                let bytes: Vec<u8> = gathered.into_pieces(None).0.concat();
                records.extend(bytes.chunks(ONE).map(|frame| frame[BATCH_HEADER_BYTES]));
            }
        }
    }
    records
}

/// The items that the writer takes, once there are some. None: the queue is closed and empty.
fn next(queue: &ProposalQueue) -> Option<Work> {
    loop {
        let work = queue.take(true);
        match (work.items.is_empty(), work.closed) {
            (false, _) => return Some(work),
            (true, true) => return None,
            (true, false) => queue.wait(None),
        }
    }
}

/// Takes as the writer does until `count` items were taken. Never takes more at once than may wait.
fn take(queue: &ProposalQueue, count: usize) -> Vec<u8> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let came = records(next(queue).expect("the queue is open").items);
        assert!(came.iter().filter(|n| **n != 0).count() <= queue.limits.appends, "{came:?} waited");
        taken.extend(came);
    }
    taken
}

/// Takes as the writer does until the queue is closed and empty.
fn drain(queue: &ProposalQueue) -> Vec<u8> {
    let mut taken = Vec::new();
    while let Some(work) = next(queue) {
        taken.extend(records(work.items));
    }
    taken
}

/// Answers what is still in the queue as a poisoned writer does.
fn fail_the_rest(queue: &ProposalQueue, why: &Error) {
    for item in queue.take(true).items {
        crate::replica::node::fail(item, why);
    }
}

fn refusal(result: Result<Ticket>) -> ErrorKind {
    result.map(drop).unwrap_err().kind()
}

/// The second append may find the writer asleep, awake, or about to sleep.
#[test]
fn loom_append_and_take() {
    loom::model(|| {
        let queue = queue(10);
        let caller = caller(&queue, |queue| [1, 2].map(|n| push(queue, n, WaitLimit::None).unwrap()));
        assert_eq!(take(&queue, 2), [1, 2]);
        drop(caller.join().unwrap());
    });
}

#[test]
fn loom_two_callers_and_take() {
    loom::model(|| {
        let queue = queue(2);
        let first = caller(&queue, |queue| [1, 2].map(|n| push(queue, n, FOREVER).unwrap()));
        let second = caller(&queue, |queue| push(queue, 3, FOREVER).unwrap());
        let taken = take(&queue, 3);
        let position = |n| taken.iter().position(|t| *t == n);
        assert!(position(1) < position(2) && position(1).is_some() && position(3).is_some(), "{taken:?}");
        drop(first.join().unwrap());
        drop(second.join().unwrap());
    });
}

/// A command keeps its order with appends, and wakes the writer as an append does.
#[test]
fn loom_commands_between_appends_and_take() {
    loom::model(|| {
        let queue = queue(10);
        let caller = caller(&queue, |queue| {
            let discard =
                || queue.push_command(LogNumber::OWN, Command::Discard { first: Index(1) }).unwrap();
            let append = |n| push(queue, n, WaitLimit::None).unwrap();
            [append(1), discard(), append(2), discard()]
        });
        assert_eq!(take(&queue, 4), [1, 0, 2, 0]);
        drop(caller.join().unwrap());
    });
}

#[test]
fn loom_append_waits_for_room_and_take() {
    loom::model(|| {
        let queue = queue(2);
        let caller = caller(&queue, |queue| [1, 2, 3, 4].map(|n| push(queue, n, FOREVER).unwrap()));
        assert_eq!(take(&queue, 4), [1, 2, 3, 4]);
        drop(caller.join().unwrap());
    });
}

/// Both may wait at once. One finds the room taken by the other and waits again.
#[test]
fn loom_two_appends_wait_for_room_and_take() {
    loom::model(|| {
        let queue = queue(1);
        let _first = push(&queue, 1, FOREVER).unwrap();
        let callers = [2, 3].map(|n| caller(&queue, move |queue| push(queue, n, FOREVER).unwrap()));
        let mut taken = take(&queue, 3);
        assert_eq!(taken[0], 1);
        taken.sort_unstable();
        assert_eq!(taken, [1, 2, 3]);
        for caller in callers {
            drop(caller.join().unwrap());
        }
    });
}

/// The room that one `take` makes is for all that wait: no other call will wake them.
#[test]
fn loom_one_take_makes_room_for_all() {
    loom::model(|| {
        let queue = queue(2);
        let _waiting = [1, 2].map(|n| push(&queue, n, FOREVER).unwrap());
        let callers = [3, 4].map(|n| caller(&queue, move |queue| push(queue, n, FOREVER).unwrap()));
        assert_eq!(take(&queue, 2), [1, 2]);
        for caller in callers {
            drop(caller.join().unwrap());
        }
    });
}

#[test]
fn loom_close_and_take() {
    loom::model(|| {
        let queue = queue(10);
        let closer = caller(&queue, |queue| {
            let ticket = push(queue, 1, WaitLimit::None).unwrap();
            queue.close();
            ticket
        });
        assert_eq!(drain(&queue), [1]);
        drop(closer.join().unwrap());
    });
}

#[test]
fn loom_close_and_append_that_waits_for_room() {
    loom::model(|| {
        let queue = queue(1);
        let _first = push(&queue, 1, FOREVER).unwrap();
        let caller = caller(&queue, |queue| refusal(push(queue, 2, FOREVER)));
        queue.close();
        assert_eq!(caller.join().unwrap(), ErrorKind::Closed);
        assert_eq!(drain(&queue), [1]);
    });
}

/// The writer poisons the log, answers what is left and ends. An append is refused, or admitted and then answered. An
/// append admitted after that would wait forever.
#[test]
fn loom_refuse_and_append() {
    loom::model(|| {
        let queue = queue(10);
        let caller = caller(&queue, |queue| match push(queue, 1, WaitLimit::None) {
            Ok(ticket) => ticket.wait().unwrap_err().kind(),
            Err(error) => error.kind(),
        });
        let poisoned = Error::new(ErrorKind::Poisoned, "a write failed");
        queue.refuse(poisoned.clone());
        fail_the_rest(&queue, &poisoned);
        assert_eq!(caller.join().unwrap(), ErrorKind::Poisoned);
        assert!(queue.take(true).closed);
    });
}

/// Every caller gets the same reason, the first one.
#[test]
fn loom_refuse_close_and_append() {
    loom::model(|| {
        let queue = queue(10);
        let closer = caller(&queue, |queue| {
            queue.close();
            refusal(push(queue, 1, WaitLimit::None))
        });
        queue.refuse(Error::new(ErrorKind::Poisoned, "a write failed"));
        let seen = refusal(push(&queue, 2, WaitLimit::None));
        assert_eq!(closer.join().unwrap(), seen);
    });
}

/// Taken bytes become used bytes in one step. Otherwise a caller that looks in between would be refused (they count
/// twice) or admitted beyond the capacity (they do not count).
#[test]
fn loom_account_and_append() {
    for (capacity, fits) in [(2 * ONE, true), (2 * ONE - 1, false)] {
        loom::model(move || {
            let capacity = Some(capacity as u64);
            let limits =
                QueueLimits { block_bytes: 1000, bytes: 1000, appends: 10, capacity, inbox_bytes: 0 };
            let queue = Arc::new(ProposalQueue::new(limits, 0));
            let _first = push(&queue, 1, WaitLimit::None).unwrap();
            let caller = caller(&queue, |queue| push(queue, 2, WaitLimit::None));
            let taken = take(&queue, 1);
            queue.account(ONE, ONE as u64);
            let second = caller.join().unwrap();
            assert_eq!(second.is_ok(), fits);
            assert_eq!(second.err().map(|e| e.kind()), (!fits).then_some(ErrorKind::Full));
            assert_eq!(taken[0], 1);
        });
    }
}

/// A discard makes room for one append, whichever comes first.
#[test]
fn loom_recount_and_append() {
    loom::model(|| {
        let limits = QueueLimits {
            block_bytes: 1000,
            bytes: 1000,
            appends: 10,
            capacity: Some(ONE as u64),
            inbox_bytes: 0,
        };
        let queue = Arc::new(ProposalQueue::new(limits, ONE as u64));
        let caller = caller(&queue, |queue| push(queue, 1, WaitLimit::None).is_ok());
        queue.recount(0);
        let admitted = caller.join().unwrap();
        assert!(push(&queue, 2, WaitLimit::None).is_ok() != admitted, "room for one");
    });
}

/// The items that two writers took, one writer at a time. `take` is one step; returns how many they have taken then.
#[derive(Clone)]
struct Turns(Arc<loom::sync::Mutex<Vec<u8>>>);

impl Turns {
    fn new() -> Self {
        Self(Arc::new(loom::sync::Mutex::new(Vec::new())))
    }

    fn take(&self, queue: &ProposalQueue) -> usize {
        let mut taken = self.0.lock().unwrap();
        taken.extend(records(queue.take(true).items));
        taken.len()
    }
}

/// Two writers, as the driver has them: the one with the node lock takes the queue; then one sleeps and the other one
/// syncs. With the caller they see a push that finds one asleep and the other one about to sync, away, or back. (With
/// more preemptions than these there are too many interleavings.)
#[test]
fn loom_two_writers_take_turns() {
    let mut models = loom::model::Builder::new();
    models.preemption_bound = Some(3);
    models.check(|| {
        let (queue, turns) = (queue(10), Turns::new());
        let pushing = caller(&queue, |queue| [1, 2].map(|n| push(queue, n, WaitLimit::None).is_ok()));
        let second = caller(&queue, {
            let turns = turns.clone();
            move |queue| {
                while turns.take(queue) < 2 {
                    queue.wait(None);
                }
                queue.close(); // the first one may be asleep
            }
        });
        let mut away = true;
        while turns.take(&queue) < 2 {
            match std::mem::take(&mut away) {
                true => queue.leave(),
                false => queue.wait(None),
            }
        }
        queue.close();
        second.join().unwrap();
        assert_eq!(pushing.join().unwrap(), [true, true]);
        assert_eq!(*turns.0.lock().unwrap(), [1, 2]);
    });
}

/// One writer is asleep and one is about to sleep, or both are: a close ends both. (All interleavings take over a
/// minute.)
#[test]
fn loom_close_and_two_writers() {
    let mut models = loom::model::Builder::new();
    models.preemption_bound = Some(5);
    models.check(|| {
        let queue = queue(10);
        let second = caller(&queue, |queue| drain(queue));
        let closing = caller(&queue, |queue| {
            let pushed = push(queue, 1, WaitLimit::None).is_ok();
            queue.close();
            pushed
        });
        let mut taken = drain(&queue);
        taken.extend(second.join().unwrap());
        assert!(closing.join().unwrap());
        assert_eq!(taken, [1]);
    });
}

/// The first writer leaves an append in the queue that may be taken now, or leaves when the writer is due: the second
/// writer is woken in both cases.
#[test]
fn loom_one_writer_leaves_more_to_do() {
    for due in [false, true] {
        loom::model(move || {
            let queue = queue(10);
            let second = caller(&queue, move |queue| {
                queue.wait(None);
                records(queue.take(true).items)
            });
            assert!(queue.take(false).items.is_empty());
            let pushed = if due { None } else { Some(push(&queue, 1, WaitLimit::None).unwrap()) };
            queue.expect(true, due);
            queue.leave();
            let expected: &[u8] = if due { &[] } else { &[1] };
            assert_eq!(second.join().unwrap(), expected);
            drop(pushed);
        });
    }
}

/// A log of a shared group gets into blocks ahead of a backlog, while the writer takes them: its appends keep their order,
/// and each is taken once.
#[test]
fn loom_quiet_log_beside_a_backlog_and_take() {
    /// More than what a backlog may use of the first block.
    const BACKLOG: u8 = 17;
    static OVERTAKEN: AtomicBool = AtomicBool::new(false);
    loom::model(|| {
        let limits = QueueLimits {
            block_bytes: 20 * ONE,
            bytes: 100 * ONE,
            appends: 30,
            capacity: None,
            inbox_bytes: 0,
        };
        let queue = Arc::new(ProposalQueue::new(limits, 0));
        let push = |queue: &ProposalQueue, log, record: u8| {
            queue.push_record(LogNumber(log), &[record], Stamp::default(), WaitLimit::None).unwrap()
        };
        let _backlog: Vec<Ticket> = (1..=BACKLOG).map(|n| push(&queue, 1, n)).collect();
        let caller = caller(&queue, move |queue| [101, 102].map(|n| push(queue, 2, n)));
        let taken = take(&queue, usize::from(BACKLOG) + 2);
        let (quiet, backlog): (Vec<u8>, Vec<u8>) = taken.iter().partition(|record| **record > 100);
        assert_eq!((quiet, backlog), (vec![101, 102], (1..=BACKLOG).collect()));
        let at = |wanted| taken.iter().position(|record| *record == wanted);
        OVERTAKEN.fetch_or(at(101) < at(BACKLOG), Ordering::Relaxed);
        drop(caller.join().unwrap());
        assert_eq!(queue.waiting().0, 0);
    });
    assert!(OVERTAKEN.load(Ordering::Relaxed), "the quiet log never got ahead of the backlog");
}

/// During a long sync, the other writer, which was asleep, takes new appends.
#[test]
fn loom_one_writer_is_away() {
    loom::model(|| {
        let (queue, turns) = (queue(10), Turns::new());
        let second = caller(&queue, {
            let turns = turns.clone();
            move |queue| {
                while turns.take(queue) < 1 {
                    queue.wait(None);
                }
            }
        });
        let pushing = caller(&queue, |queue| push(queue, 1, WaitLimit::None).is_ok());
        if turns.take(&queue) == 1 {
            queue.close(); // nothing is left for the second one
        }
        queue.leave();
        second.join().unwrap();
        assert!(pushing.join().unwrap());
    });
}
