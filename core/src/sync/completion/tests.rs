//! Unit tests of the completion and its tickets, with real threads.

use super::*;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::mpsc;
use std::task::Wake;
use std::thread;

const PLACED: Outcome = Outcome::Placed { first: Index(100) };

fn ticket(completion: &Arc<Completion>, n: u32) -> Ticket {
    Ticket::new(completion.clone(), n, n, 1)
}

fn at(first: u64, count: u32) -> Appended {
    Appended::new(Index(first), count)
}

/// A waker that counts.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll_with(ticket: &mut Ticket, count: &Arc<Count>) -> Poll<Result<Appended>> {
    Pin::new(ticket).poll(&mut Context::from_waker(&Waker::from(count.clone())))
}

#[test]
fn each_ticket_gets_its_own_result() {
    let completion = Completion::new();
    let tickets = [(0, 0, 2), (1, 2, 1), (2, 3, 7)].map(|(o, f, c)| Ticket::new(completion.clone(), o, f, c));
    assert!(tickets.iter().all(|t| t.poll().is_none()));
    completion.complete(PLACED, None);
    let got = tickets.map(|t| t.wait().unwrap());
    assert_eq!(got, [at(100, 2), at(102, 1), at(103, 7)]);

    let completion = Completion::new();
    let tickets = [0, 1].map(|n| ticket(&completion, n));
    let refused = Error::new(ErrorKind::SequenceGap, "gap");
    completion.complete(Outcome::Each(vec![Err(refused), Ok(at(7, 1))]), None);
    assert_eq!(tickets[0].wait().unwrap_err().kind(), ErrorKind::SequenceGap);
    assert_eq!(tickets[1].wait().unwrap(), at(7, 1));

    let completion = Completion::new();
    let ticket = ticket(&completion, 0);
    completion.complete(Outcome::Failed(Error::new(ErrorKind::Poisoned, "sync failed")), None);
    assert_eq!(ticket.poll().unwrap().unwrap_err().kind(), ErrorKind::Poisoned);
}

#[test]
fn acknowledged_append_says_how_durable_it_is() {
    let completion = Completion::new();
    let tickets = [(0, 0, 2), (1, 2, 0)].map(|(o, f, c)| Ticket::new(completion.clone(), o, f, c));
    assert_eq!(tickets[0].durability(), None);
    completion.complete(PLACED, Some(Durability::Object));
    assert_eq!(tickets[0].durability(), Some(Durability::Object));
    assert_eq!(tickets[0].wait().unwrap().durability, Some(Durability::Object));
    assert_eq!(tickets[1].durability(), None, "an answer to a request");

    let completion = Completion::new();
    let tickets = [0, 1].map(|n| ticket(&completion, n));
    let refused = Error::new(ErrorKind::SequenceGap, "gap");
    completion.complete(Outcome::Each(vec![Err(refused), Ok(at(7, 1))]), Some(Durability::Majority));
    assert_eq!(tickets[0].durability(), None);
    assert_eq!(tickets[1].durability(), Some(Durability::Majority), "a retry, too");
}

#[test]
fn timed_out_ticket_can_be_waited_for_again() {
    let completion = Completion::new();
    let ticket = ticket(&completion, 0);
    for timeout in [Duration::ZERO, Duration::from_millis(1)] {
        let error = ticket.wait_timeout(timeout).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("may still become durable"), "{error}");
    }
    completion.complete(PLACED, None);
    assert_eq!(ticket.wait_timeout(Duration::ZERO).unwrap(), at(100, 1));
    assert_eq!(ticket.wait_timeout(Duration::MAX).unwrap(), at(100, 1));
}

#[test]
#[should_panic(expected = "completed once")]
fn completing_twice_panics() {
    let completion = Completion::new();
    completion.complete(PLACED, None);
    completion.complete(PLACED, None);
}

#[test]
fn panicking_hook_stops_no_other_hook() {
    struct Bad;
    impl Wake for Bad {
        fn wake(self: Arc<Self>) {
            panic!("waker");
        }
    }
    let completion = Completion::new();
    let (sender, receiver) = mpsc::channel();
    let mut awaited = ticket(&completion, 0);
    assert!(Pin::new(&mut awaited).poll(&mut Context::from_waker(&Arc::new(Bad).into())).is_pending());
    ticket(&completion, 1).on_complete(|_| panic!("callback"));
    ticket(&completion, 2).on_complete(move |r| sender.send(r).unwrap());
    completion.complete(PLACED, None);
    assert_eq!(receiver.try_recv().unwrap().unwrap(), at(102, 1));
}

#[test]
fn callback_on_a_settled_ticket_runs_at_once() {
    let completion = Completion::new();
    completion.complete(PLACED, None);
    let (sender, receiver) = mpsc::channel();
    ticket(&completion, 0).on_complete(move |r| sender.send((thread::current().id(), r)).unwrap());
    let (thread, result) = receiver.try_recv().unwrap();
    assert_eq!((thread, result.unwrap()), (thread::current().id(), at(100, 1)));
}

#[test]
fn callback_may_use_its_own_completion() {
    let completion = Completion::new();
    let (sender, receiver) = mpsc::channel();
    let other = ticket(&completion, 1);
    ticket(&completion, 0).on_complete(move |_| {
        // Would hang if the lock were held.
        other.on_complete(move |r| sender.send(r).unwrap());
    });
    completion.complete(PLACED, None);
    assert_eq!(receiver.try_recv().unwrap().unwrap(), at(101, 1));
}

#[test]
fn polling_again_replaces_only_the_ticket_s_own_waker() {
    let completion = Completion::new();
    let [mut a, mut b, mut c] = [0, 1, 2].map(|n| ticket(&completion, n));
    let [old, new, of_b, of_c] = [(); 4].map(|()| Arc::new(Count::default()));
    for _ in 0..1000 {
        assert!(poll_with(&mut a, &old).is_pending());
    }
    assert!(poll_with(&mut b, &of_b).is_pending());
    assert!(poll_with(&mut c, &of_c).is_pending());
    assert!(poll_with(&mut a, &new).is_pending());
    assert_eq!(completion.hooks.lock().wakers.len(), 3);
    assert_eq!(Arc::strong_count(&old), 1, "the old waker is dropped");
    drop(b);
    assert_eq!(Arc::strong_count(&of_b), 1, "and so is a dropped ticket's");
    completion.complete(PLACED, None);
    let counts = [&old, &new, &of_b, &of_c].map(|c| c.0.load(Ordering::SeqCst));
    assert_eq!(counts, [0, 1, 0, 1]);
    assert!(matches!(poll_with(&mut a, &new), Poll::Ready(Ok(r)) if r == at(100, 1)));
    drop(a);
    assert!(matches!(poll_with(&mut c, &of_c), Poll::Ready(Ok(r)) if r == at(102, 1)));
}

/// A waker can own tickets (a task owns the futures it awaits), so dropping one can drop tickets of the same block.
/// Under the lock that would be a deadlock.
#[test]
fn a_waker_that_owns_tickets_of_the_same_block_can_be_dropped() {
    struct Task(#[allow(dead_code, reason = "held for its drop")] Ticket);
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let completion = Completion::new();
    let count = Arc::new(Count::default());
    let owner = || {
        let mut inner = ticket(&completion, 1);
        assert!(poll_with(&mut inner, &count).is_pending());
        Waker::from(Arc::new(Task(inner)))
    };
    let mut outer = ticket(&completion, 0);
    for _ in 0..3 {
        assert!(Pin::new(&mut outer).poll(&mut Context::from_waker(&owner())).is_pending());
    }
    drop(outer);
    assert_eq!(completion.hooks.lock().wakers.iter().flatten().count(), 0);
}

#[test]
fn any_executor_can_run_a_ticket() {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    }
    let completion = Completion::new();
    let tickets = [0, 1].map(|n| ticket(&completion, n));
    let writer = thread::spawn(move || completion.complete(PLACED, None));
    let both = Box::pin(async move {
        let [a, b] = tickets;
        (a.await.unwrap(), b.await.unwrap())
    });
    assert_eq!(block_on(both), (at(100, 1), at(101, 1)));
    writer.join().unwrap();
}

/// Many threads wait for one completion after the other; some sleep, some arrive late.
#[test]
fn no_waiter_stays_asleep() {
    const THREADS: u32 = 32;
    const BLOCKS: u64 = 300;
    let (done, waits) = (AtomicU32::new(0), AtomicU32::new(0));
    let blocks: Vec<_> = (0..BLOCKS).map(|_| Completion::new()).collect();
    thread::scope(|scope| {
        for n in 0..THREADS {
            let (blocks, done, waits) = (&blocks, &done, &waits);
            scope.spawn(move || {
                for (b, completion) in blocks.iter().enumerate() {
                    let ticket = ticket(completion, n);
                    let want = at(b as u64 * 1000 + u64::from(n), 1);
                    let got = if n % 4 == 0 {
                        loop {
                            match ticket.wait_timeout(Duration::from_micros(50)) {
                                Err(e) => assert_eq!(e.kind(), ErrorKind::Timeout),
                                Ok(got) => break got,
                            }
                        }
                    } else {
                        ticket.wait().unwrap()
                    };
                    assert_eq!(got, want);
                    waits.fetch_add(1, Ordering::SeqCst);
                    if n == 0 {
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        for (b, completion) in blocks.iter().enumerate() {
            // Sometimes lets all threads fall asleep first.
            if b % 8 == 0 {
                while (done.load(Ordering::SeqCst) as usize) < b {
                    thread::yield_now();
                }
            }
            completion.complete(Outcome::Placed { first: Index(b as u64 * 1000) }, None);
        }
    });
    assert_eq!(u64::from(waits.into_inner()), u64::from(THREADS) * BLOCKS);
}
