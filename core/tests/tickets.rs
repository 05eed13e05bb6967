//! Tickets of a running log: every way of waiting, and the calls that are allowed on the writer thread.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use chiplog::{BatchBuilder, ErrorKind, Index, Log, Options, Result, Ticket};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

type Test = std::result::Result<(), Box<dyn std::error::Error>>;

/// Longer than any wait here takes, so that a hang fails the test.
const LONG: Duration = Duration::from_secs(60);

fn open() -> Result<(tempfile::TempDir, Log)> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
    Ok((dir, log))
}

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
            Poll::Pending => thread::park_timeout(LONG),
        }
    }
}

/// Each of many threads uses another way; every record gets its own index, in the thread's order.
#[test]
fn every_way_of_waiting_returns_each_append_its_own_index() -> Test {
    const THREADS: usize = 12;
    const EACH: usize = 100;
    let (_dir, log) = open()?;
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for way in 0..THREADS {
            let (log, sender) = (&log, sender.clone());
            scope.spawn(move || {
                for n in 0..EACH {
                    let ticket = log.submit(format!("{way} {n}").as_bytes()).expect("room");
                    let index = match way % 6 {
                        0 => ticket.wait().expect("durable"),
                        1 => ticket.wait_timeout(LONG).expect("durable"),
                        2 => block_on(ticket).expect("durable"),
                        3 => loop {
                            match ticket.poll() {
                                Some(result) => break result.expect("durable"),
                                None => thread::yield_now(),
                            }
                        },
                        4 => {
                            let (tx, rx) = mpsc::channel();
                            ticket.on_complete(move |result| drop(tx.send(result)));
                            rx.recv_timeout(LONG).expect("a call").expect("durable")
                        }
                        _ => loop {
                            match ticket.wait_timeout(Duration::from_micros(20)) {
                                Ok(index) => break index,
                                Err(e) => assert_eq!(e.kind(), ErrorKind::Timeout),
                            }
                        },
                    };
                    let record = log.read(index).expect("an acknowledged record can be read");
                    assert_eq!(record.data, format!("{way} {n}").as_bytes());
                    sender.send((way, index)).expect("receiver lives");
                }
            });
        }
    });
    drop(sender);
    let answers: Vec<(usize, Index)> = receiver.iter().collect();
    for way in 0..THREADS {
        let mine: Vec<_> = answers.iter().filter(|(w, _)| *w == way).map(|(_, index)| *index).collect();
        assert!(mine.is_sorted());
    }
    let mut all: Vec<_> = answers.iter().map(|(_, index)| index.get()).collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(1..=(THREADS * EACH) as u64));
    Ok(())
}

/// A callback runs on the writer thread. Submitting there does not wait for the writer.
#[test]
fn callback_can_submit_the_next_append() -> Test {
    fn next(log: &Log, left: u32, done: mpsc::Sender<Index>) {
        let ticket = log.submit(b"link").expect("room");
        let again = log.clone();
        ticket.on_complete(move |result| {
            let index = result.expect("durable");
            if left == 0 { done.send(index).expect("receiver lives") } else { next(&again, left - 1, done) }
        });
    }
    let (_dir, log) = open()?;
    let (sender, receiver) = mpsc::channel();
    next(&log, 99, sender);
    assert_eq!(receiver.recv_timeout(LONG)?, Index(100));
    Ok(())
}

/// Passes the log to `job` on the writer thread.
fn on_writer_thread(log: Log, job: impl FnOnce(Log) + Send + 'static) {
    let caller = thread::current().id();
    let ticket = log.submit(b"door").expect("room");
    ticket.on_complete(move |_| {
        // A callback that is set too late runs on the thread that sets it.
        if thread::current().id() == caller { on_writer_thread(log, job) } else { job(log) }
    });
}

/// A callback that held the last handle of its log dropped it on the writer thread, which then waited for its own end
/// ("Resource deadlock avoided"); helper thread and lock were left behind.
#[test]
fn last_handle_can_be_closed_or_dropped_by_a_callback() -> Test {
    for close in [false, true] {
        let (dir, log) = open()?;
        let (sender, receiver) = mpsc::channel();
        on_writer_thread(log, move |log| {
            // Appends in flight are still settled.
            let ticket = log.submit(b"the last record").expect("room");
            if close {
                log.close().expect("closed");
            }
            drop(log);
            ticket.on_complete(move |result| drop(sender.send(result)));
        });
        let last = receiver.recv_timeout(LONG)??;
        let deadline = Instant::now() + LONG;
        let log = loop {
            match Log::open(dir.path(), Options::with_segment_bytes(1 << 20)) {
                Err(e) if e.kind() == ErrorKind::Locked && Instant::now() < deadline => thread::yield_now(),
                opened => break opened?,
            }
        };
        assert_eq!(log.read(last)?.data, &b"the last record"[..]);
    }
    Ok(())
}

/// Each of two callbacks dropped the last handle of the other one's log, or closed that log, and waited for its threads: for ever.
#[test]
fn callbacks_of_two_logs_may_close_each_other() -> Test {
    [false, true].into_iter().try_for_each(each_other_s_last_handle)
}

fn each_other_s_last_handle(closes: bool) -> Test {
    let ((_one, one), (_two, two)) = (open()?, open()?);
    let (sender, receiver) = mpsc::channel();
    let all = Arc::new(Barrier::new(3));
    for (own, other) in [(one.clone(), two.clone()), (two.clone(), one.clone())] {
        let (sender, all) = (sender.clone(), all.clone());
        on_writer_thread(own, move |own| {
            drop(own);
            all.wait();
            if closes {
                other.close().expect("closed");
            }
            drop(other); // the last one
            sender.send(()).expect("receiver lives");
        });
    }
    drop((one, two));
    all.wait();
    receiver.recv_timeout(LONG)?;
    receiver.recv_timeout(LONG)?;
    Ok(())
}

/// Blocking calls are refused on the thread that does the work: an append there hung the log for ever.
#[test]
fn blocking_calls_are_refused_in_a_callback() -> Test {
    let (_dir, log) = open()?;
    let (sender, receiver) = mpsc::channel();
    let mut session = log.open_session()?;
    on_writer_thread(log.clone(), move |log| {
        let batch = BatchBuilder::new().push(b"x").expect("small").build().expect("one record");
        let next = log.last_index().next();
        let refused = [
            log.append(b"x").map(drop),
            log.append(&batch).map(drop),
            log.discard(Index(1)),
            log.barrier(LONG).map(drop),
            log.wait_for(next, LONG),
            log.open_session().map(drop),
            session.append(b"x").map(drop),
            session.close(),
        ];
        log.wait_for(Index(1), LONG).expect("the record exists");
        drop(sender.send((next, refused, session)));
    });
    let (next, refused, mut session) = receiver.recv_timeout(LONG)?;
    for result in refused {
        assert_eq!(result.map_err(|e| e.kind()), Err(ErrorKind::InvalidArgument));
    }
    assert_eq!(log.append(b"behind")?, next, "the refused appends are not in the log");
    assert_eq!(log.status().sessions, 1, "its close was refused");
    session.close()?;
    assert_eq!(log.status().sessions, 0);
    session.close()?;
    Ok(())
}

/// Closing the log settles everything that was submitted before, in every way of waiting.
#[test]
fn closing_settles_every_ticket() -> Test {
    for _ in 0..20 {
        let (_dir, log) = open()?;
        let tickets = (0..50).map(|_| log.submit(b"x")).collect::<Result<Vec<Ticket<Index>>>>()?;
        log.close()?;
        for (n, ticket) in tickets.iter().enumerate() {
            assert_eq!(ticket.poll().ok_or("unsettled")??, Index(n as u64 + 1));
        }
        assert_eq!(log.submit(b"y").map(drop).map_err(|e| e.kind()), Err(ErrorKind::Closed));
    }
    Ok(())
}

/// Dropping tickets, polled or not, cancels no append.
#[test]
fn dropped_tickets_still_append() -> Test {
    let (_dir, log) = open()?;
    for n in 0..100 {
        let mut ticket = log.submit(b"x")?;
        if n % 2 == 0 {
            let _ = Pin::new(&mut ticket).poll(&mut Context::from_waker(Waker::noop()));
        }
        drop(ticket);
    }
    assert_eq!(log.append(b"last")?, Index(101));
    Ok(())
}
