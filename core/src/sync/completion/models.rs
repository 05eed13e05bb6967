//! Explores every interleaving of a few threads, and every value that the memory orderings let a load see:
//! `make loom`. A lost wake-up shows as a deadlock.

use super::*;
use loom::sync::Notify;
use loom::sync::atomic::AtomicUsize;
use loom::thread;
use std::task::Wake;

const PLACED: Outcome = Outcome::Placed { first: Index(100) };

fn ticket(completion: &Arc<Completion>, n: u32) -> Ticket {
    Ticket::new(completion.clone(), n, n, 1)
}

fn check(result: Result<Appended>, n: u64) {
    assert_eq!(result.unwrap(), Appended::new(Index(100 + n), 1));
}

/// A task's waker: the executor sleeps on it.
struct Task(Notify);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

fn task() -> (Arc<Task>, Waker) {
    let task = Arc::new(Task(Notify::new()));
    (task.clone(), Waker::from(task))
}

fn poll_with(ticket: &mut Ticket, waker: &Waker) -> Poll<Result<Appended>> {
    Pin::new(ticket).poll(&mut Context::from_waker(waker))
}

#[test]
fn loom_wait_and_complete() {
    loom::model(|| {
        let completion = Completion::new();
        let ticket = ticket(&completion, 0);
        let waiter = thread::spawn(move || check(ticket.wait(), 0));
        completion.complete(PLACED, None);
        waiter.join().unwrap();
    });
}

#[test]
fn loom_two_waiters_and_complete() {
    loom::model(|| {
        let completion = Completion::new();
        let waiters = [0, 1].map(|n| {
            let ticket = ticket(&completion, n);
            thread::spawn(move || check(ticket.wait(), n.into()))
        });
        completion.complete(PLACED, None);
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

#[test]
fn loom_poll_and_complete() {
    loom::model(|| {
        let completion = Completion::new();
        let ticket = ticket(&completion, 0);
        let writer = thread::spawn(move || completion.complete(PLACED, None));
        // Both are correct; a result without a visible outcome would be wrong.
        if let Some(result) = ticket.poll() {
            check(result, 0);
        }
        writer.join().unwrap();
        check(ticket.poll().unwrap(), 0);
    });
}

#[test]
fn loom_on_complete_and_complete() {
    loom::model(|| {
        let completion = Completion::new();
        let calls = Arc::new(AtomicUsize::new(0));
        let registrars = [0, 1].map(|n| {
            let (ticket, calls) = (ticket(&completion, n), calls.clone());
            thread::spawn(move || {
                ticket.on_complete(move |result| {
                    check(result, n.into());
                    calls.fetch_add(1, Ordering::Relaxed);
                });
            })
        });
        completion.complete(PLACED, None);
        for registrar in registrars {
            registrar.join().unwrap();
        }
        assert_eq!(calls.load(Ordering::Relaxed), 2, "each exactly once");
    });
}

#[test]
fn loom_future_and_complete() {
    loom::model(|| {
        let completion = Completion::new();
        let mut ticket = ticket(&completion, 0);
        let writer = thread::spawn(move || completion.complete(PLACED, None));
        let (task, waker) = task();
        let result = loop {
            match poll_with(&mut ticket, &waker) {
                Poll::Ready(result) => break result,
                Poll::Pending => task.0.wait(),
            }
        };
        check(result, 0);
        writer.join().unwrap();
    });
}

/// The future moves to another task between two polls: the task of the newest poll is woken.
#[test]
fn loom_future_polled_again_by_another_task() {
    loom::model(|| {
        let completion = Completion::new();
        let mut ticket = ticket(&completion, 0);
        let writer = thread::spawn(move || completion.complete(PLACED, None));
        let ((_, first), (newest, second)) = (task(), task());
        if poll_with(&mut ticket, &first).is_pending() {
            while poll_with(&mut ticket, &second).is_pending() {
                newest.0.wait();
            }
        }
        check(ticket.poll().unwrap(), 0);
        writer.join().unwrap();
    });
}

/// A ticket of a block is dropped after a poll, while the task of another ticket waits and a thread sleeps.
#[test]
fn loom_dropping_a_ticket_does_not_affect_others() {
    loom::model(|| {
        let completion = Completion::new();
        let [mut dropped, mut awaited] = [0, 1].map(|n| ticket(&completion, n));
        let writer = thread::spawn(move || completion.complete(PLACED, None));
        let ((_, other), (task, waker)) = (task(), task());
        let _ = poll_with(&mut dropped, &other);
        let first = poll_with(&mut awaited, &waker);
        drop(dropped);
        if first.is_pending() {
            while poll_with(&mut awaited, &waker).is_pending() {
                task.0.wait();
            }
        }
        check(awaited.wait(), 1);
        writer.join().unwrap();
    });
}
