//! The blocking client in a forked child: the thread that works for it is in the parent. The only test in its file,
//! because a fork needs a process without other tests' threads.
#![allow(unsafe_code, reason = "fork, _exit, alarm and waitpid have no safe form")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod served;

use chiplog::{ErrorKind, Index, Result, Start};
use chiplog_net::client::{ProducerOptions, ReadFrom, blocking};
use served::client::quick;
use served::{One, PATIENCE};

/// In the child every call waited forever, with or without a deadline, because the parent's thread also runs the
/// timers. `send` accepted records until the buffer was full, and no thread sent them.
#[test]
fn forked_child_is_rejected_and_the_parent_unaffected() {
    let one = One::new();
    let client = blocking::Client::connect([one.address()], quick()).unwrap();
    let producer = client.producer(ProducerOptions::default()).unwrap();
    let mut reader = client.reader(Start::First, ReadFrom::Any);
    assert_eq!(producer.append(b"before the fork").unwrap(), Index(1));
    let mut waits = client.reader(Start::Next, ReadFrom::Any);
    waits.on_more(|| ()).unwrap();
    // SAFETY: fork has no conditions on memory. The child uses nothing that another thread may have locked: its calls
    // are rejected before that.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: sets a timer of this process: a child that hangs is killed, and the test fails.
        unsafe { libc::alarm(20) };
        let forked = |r: Result<()>| u8::from(matches!(r, Err(e) if e.kind() == ErrorKind::Forked));
        let mut refused = 0;
        refused += forked(producer.send(b"from the child"));
        refused += forked(producer.append(b"from the child").map(drop));
        refused += forked(producer.flush(PATIENCE));
        refused += forked(producer.close(PATIENCE).failed.map_or(Ok(()), Err));
        refused += forked(reader.next_batch_within(PATIENCE).map(drop));
        refused += forked(waits.next_batch_within(PATIENCE).map(drop));
        drop(waits);
        refused += forked(producer.try_send(b"from the child"));
        refused += forked(producer.submit(b"from the child").map(drop));
        refused += forked(client.info().map(drop));
        refused += forked(client.producer(ProducerOptions::default()).map(drop));
        // SAFETY: ends the child at once, without the exit handlers that belong to the parent.
        unsafe { libc::_exit(refused.into()) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call, and `pid` is our child, not yet waited for.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child died of signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 10, "calls refused as Forked, of 10");
    assert_eq!(producer.append(b"after the fork").unwrap(), Index(2));
    assert_eq!(reader.next_record().unwrap().unwrap().data, "before the fork");
    assert!(producer.close(PATIENCE).all_acknowledged());
}
