//! Closing a copy, and dropping it in unusual places.

use crate::served::One;
use crate::support::{LONG, append, follow, quick, until};
use chiplog::vault::{HookedVault, MemoryVault, Vault};
use chiplog::{ErrorKind, Index, Options, Start};
use chiplog_net::follower::Follower;
use chiplog_net::service::log::NativeOptions;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Closing waits for no server, from any thread; also not for a silent one.
#[test]
fn closing_waits_for_no_server() {
    let one = One::new();
    let last = append(&one.log, 10, 100);
    let dir = tempfile::tempdir().unwrap();
    follow(dir.path(), &[one.address()], Start::First).wait_for(last, LONG).unwrap();
    // It accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = quick();
    (options.probe_timeout, options.attempt_timeout) = (10 * LONG, 10 * LONG);
    let servers = [silent.local_addr().unwrap().to_string()];
    let copy = Follower::open(dir.path(), servers, Start::First, options).unwrap();
    let waiting = std::thread::spawn({
        let copy = copy.clone();
        move || copy.wait_for(last.next(), 10 * LONG)
    });
    let events = std::thread::spawn({
        let copy = copy.clone();
        move || copy.next_event(10 * LONG).map(drop)
    });
    let closing = std::thread::spawn({
        let copy = copy.clone();
        move || copy.close()
    });
    closing.join().unwrap().unwrap();
    assert_eq!(waiting.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(events.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    // The directory is unlocked.
    follow(dir.path(), &[one.address()], Start::First).close().unwrap();
}

/// The last handle is dropped in a reader's hook, on the thread that stores blocks.
#[test]
fn last_handle_may_be_dropped_in_a_hook() {
    let one = One::new();
    let dir = tempfile::tempdir().unwrap();
    let copy = follow(dir.path(), &[one.address()], Start::First);
    let reader = copy.reader(Start::Next).unwrap();
    let (done, came) = std::sync::mpsc::channel();
    reader.on_more(move || {
        drop(copy);
        done.send(()).unwrap();
    });
    one.log.append(b"x").unwrap();
    came.recv_timeout(LONG).unwrap();
    until("the directory is free", || {
        Follower::open(dir.path(), [one.address()], Start::First, quick()).is_ok()
    });
}

/// The same in an event hook, which runs on the follower's own thread: the thread waited for its own end.
#[test]
fn last_handle_may_be_dropped_in_an_event_hook() {
    let one = One::new();
    let dir = tempfile::tempdir().unwrap();
    let last = append(&one.log, 10, 100);
    let copy = follow(dir.path(), &[one.address()], Start::First);
    copy.wait_for(last, LONG).unwrap();
    while copy.next_event(Duration::from_secs(1)).is_ok() {}
    let (done, came) = std::sync::mpsc::channel();
    let held = copy.clone();
    copy.on_event(move || {
        drop(held);
        done.send(()).unwrap();
    });
    drop(copy);
    one.log.discard(last).unwrap();
    came.recv_timeout(LONG).unwrap();
    until("the directory is free", || {
        Follower::open(dir.path(), [one.address()], Start::First, quick()).is_ok()
    });
}

/// A hook closes, or reads the follower's status, while another thread closes: each waited for the other.
#[test]
fn event_hook_may_close_while_another_thread_does() {
    let one = One::new();
    let dir = tempfile::tempdir().unwrap();
    let copy = follow(dir.path(), &[one.address()], Start::First);
    copy.wait_for(append(&one.log, 10, 100), LONG).unwrap();
    while copy.next_event(Duration::from_secs(1)).is_ok() {}
    let (done, came) = std::sync::mpsc::channel();
    let held = copy.clone();
    copy.on_event({
        let done = done.clone();
        move || {
            let closed = held.close();
            held.status();
            done.send(closed).unwrap();
        }
    });
    std::thread::spawn(move || {
        done.send(copy.close()).unwrap();
    });
    for _ in 0..2 {
        came.recv_timeout(LONG).unwrap().unwrap();
    }
}

/// The same when the follower stops by itself: hooks then run on a thread of the log.
#[test]
fn last_handle_may_be_dropped_when_a_follower_stops_by_itself() {
    let (one, wrong) = (One::new(), One::new());
    let last = append(&one.log, 10, 100);
    let dir = tempfile::tempdir().unwrap();
    follow(dir.path(), &[one.address()], Start::First).wait_for(last, LONG).unwrap();
    let copy = follow(dir.path(), &[wrong.address()], Start::First);
    if let Ok(reader) = copy.reader(Start::Next) {
        let (done, came) = std::sync::mpsc::channel();
        reader.on_more(move || {
            drop(copy);
            done.send(()).unwrap();
        });
        came.recv_timeout(LONG).unwrap();
    }
    until("the directory is free", || {
        Follower::open(dir.path(), [one.address()], Start::First, quick()).is_ok()
    });
}

/// A copy that is to be led past stored entries asks its object store first. While the store was silent, closing the copy waited for it.
#[test]
fn closing_waits_for_no_object_store() {
    let vault: Arc<dyn Vault> = Arc::new(MemoryVault::default());
    let options = Options::with_segment_bytes(256 << 10).vault(vault.clone()).object_bytes(128 << 10);
    let one = One::with(options, NativeOptions::default());
    let silent = Arc::new(HookedVault::new(vault));
    let mut following = quick();
    following.files = following.files.vault(silent.clone() as Arc<dyn Vault>);
    let dir = tempfile::tempdir().unwrap();
    let open = || Follower::open(dir.path(), [one.address()], Start::First, following.clone()).unwrap();
    let copy = open();
    copy.wait_for(append(&one.log, 100, 1000), LONG).unwrap();
    copy.close().unwrap();
    let last = append(&one.log, 9000, 1000);
    until("it is stored", || one.log.metrics().stored_index + 1000 > last.get());

    let (asks, asked) = channel();
    let (answer, answered) = channel::<()>();
    silent.set(move |call, _| {
        if matches!(call, "get" | "size") {
            asks.send(()).unwrap();
            let _ = answered.recv();
        }
        Ok(())
    });
    let copy = open();
    asked.recv_timeout(LONG).unwrap();
    let (closed, ended) = channel();
    std::thread::spawn(move || closed.send(copy.close()));
    ended.recv_timeout(LONG).expect("it waits for the object store").unwrap();
    drop(answer);
    // The directory is unlocked, and nothing is lost.
    let copy = open();
    copy.wait_for(last, LONG).unwrap();
    assert_eq!(copy.log().first_index(), Index(1));
    copy.close().unwrap();
}
