//! A log's handle in a forked child: the child lacks the log's threads, and the file belongs to the parent.
//! Alone in its file, because a fork needs a process whose threads are known.
#![allow(unsafe_code, reason = "fork, _exit, alarm and waitpid have no safe form")]
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::{ErrorKind, Index, Log, Options, Result, Start};

/// Every change of the log is refused as `Forked`, dropping the handle returns, and the parent's log
/// continues.
#[test]
fn forked_child_is_refused_and_the_parent_unharmed() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
    log.append(b"before the fork").unwrap();
    let mut session = log.open_session().unwrap();

    // SAFETY: fork has no conditions on memory. No other thread of this process holds a lock that the
    // child needs: the thread of the test harness only waits, and idle threads of the log hold none.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: sets a timer of this process: a child that hangs is killed, which fails the test.
        unsafe { libc::alarm(20) };
        let forked = |r: Result<()>| matches!(r, Err(e) if e.kind() == ErrorKind::Forked && e.is_fatal());
        let mut refused = 0;
        refused += u8::from(forked(log.append(b"from the child").map(drop)));
        refused += u8::from(forked(log.submit(b"from the child").map(drop)));
        refused += u8::from(forked(log.discard(Index(2))));
        refused += u8::from(forked(log.open_session().map(drop)));
        refused += u8::from(forked(session.append(b"from the child").map(drop)));
        std::mem::forget(session);
        drop(log);
        // SAFETY: ends the child at once, without the exit handlers that belong to the parent.
        unsafe { libc::_exit(i32::from(refused)) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call, and `pid` is our child, not yet waited for.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child died of signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 5, "calls refused as Forked, of 5");

    assert_eq!(log.append(b"after the fork").unwrap(), Index(2));
    assert_eq!(session.append(b"in the session").unwrap(), Index(3));
    let mut reader = log.reader(Start::First).unwrap();
    for expected in [&b"before the fork"[..], b"after the fork", b"in the session"] {
        assert_eq!(reader.next_record().unwrap().unwrap().data, expected);
    }
    // The child's end did not release the lock.
    assert_eq!(Log::open(dir.path(), Options::default()).unwrap_err().kind(), ErrorKind::Locked);
}
