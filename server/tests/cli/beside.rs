//! Commands beside a process that appends, and signals.

use crate::harness::{Place, Ran, command, finish, has_fields, is_error, numbered, run};
use crate::limited::Limited;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;
use std::time::{Duration, Instant};

/// A `chiplog append` whose input stays open.
struct Appender {
    child: Child,
}

impl Appender {
    /// Starts one and waits until it has the log open.
    fn start(place: &Place) -> Self {
        let child = command(&["append", &place.log(), "--segment-bytes", "64KiB"]).spawn().unwrap();
        let mut appender = Self { child };
        appender.write(b"opening\n");
        wait_until("the appender has the log open", || {
            place.run("read", &["--count"]).text().trim().parse::<u64>().is_ok_and(|n| n > 0)
        });
        appender
    }

    fn write(&mut self, bytes: &[u8]) {
        self.child.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn signal(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Ends the input and waits for the process.
    fn finish(mut self) -> Ran {
        drop(self.child.stdin.take());
        finish(self.child)
    }
}

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn second_appender_is_refused_and_readers_are_not() {
    let place = Place::empty();
    let appender = Appender::start(&place);
    is_error(&place.run("append", &["--json"]).fails(5), "locked", 11);
    is_error(&place.run("discard", &["1", "--json"]).fails(5), "locked", 11);
    let words = place.run("append", &[]).fails(5);
    assert_eq!(words.err.matches("open").count(), 1, "reported once: {}", words.err);
    assert!(words.err.contains("already open for writing, by process"), "{}", words.err);
    assert!(words.err.contains(&format!("process {} (chiplog)", appender.child.id())), "{}", words.err);
    let writer = &place.run("append", &["--json"]).fails(5).error()["writer"];
    assert_eq!(writer["pid"], appender.child.id());
    let info = place.run("info", &["--json"]).ok().json();
    has_fields(&info["writer"], &["pid", "command"]);
    assert_eq!(info["writer"]["pid"], appender.child.id());
    assert_eq!(place.run("read", &[]).ok().text(), "opening\n");
    place.run("verify", &[]).ok();
    place.run("dump", &[]).ok();
    assert!(appender.finish().ok().text().contains("appended 1 record"));
    assert_eq!(place.run("info", &["--json"]).ok().json()["writer"], Value::Null);
}

/// Each line becomes durable, and a follower sees it, while the appender's input stays open: a line does not
/// wait for further ones.
#[test]
fn follower_sees_new_records_and_ends_on_ctrl_c() {
    let place = Place::empty();
    let mut appender = Appender::start(&place);
    let mut follower = command(&["read", &place.log(), "--follow"]).spawn().unwrap();
    let _limited = Limited::new(&follower);
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "opening");
    for n in 0..20 {
        appender.write(format!("line {n}\n").as_bytes());
        assert_eq!(lines.next().unwrap().unwrap(), format!("line {n}"));
    }
    // Across several segments.
    appender.write(&numbered(1, 20_000));
    for n in 1..=20_000 {
        assert_eq!(lines.next().unwrap().unwrap(), format!("record {n}"));
    }
    kill_process(Pid::from_child(&follower), Signal::INT).unwrap();
    assert!(lines.next().is_none());
    let ran = finish(follower).ok();
    assert_eq!(ran.err, "");
    appender.finish().ok();
}

/// An idle follower never saw the error of a closed pipe, so `read -f | head` ran forever.
#[test]
fn idle_follower_ends_with_its_pipe() {
    let place = Place::with(3);
    let mut follower = command(&["read", &place.log(), "-f"]).spawn().unwrap();
    let _limited = Limited::new(&follower);
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().is_ok());
    drop(lines);
    assert_eq!(finish(follower).ok().err, "");
}

#[test]
fn follower_starts_before_the_end_and_stops_at_a_limit() {
    let place = Place::with(10);
    let mut follower = command(&["read", &place.log(), "-f", "--last", "1", "--limit", "3"]).spawn().unwrap();
    let _limited = Limited::new(&follower);
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    // Append only once it has begun: a follower that begins after the append counts back from the new end and
    // waits for more.
    assert!(lines.next().unwrap().is_ok());
    let appended = place.append(b"new 11\nnew 12\nnew 13\n").ok();
    assert_eq!(appended.json()["last"], 13);
    assert_eq!(lines.map(Result::unwrap).collect::<Vec<_>>(), ["new 11", "new 12"]);
    finish(follower).ok();
}

#[test]
fn ctrl_c_ends_an_append_in_order() {
    let place = Place::empty();
    let mut appender = Appender::start(&place);
    appender.write(b"more\n");
    wait_until("the second record", || place.run("read", &["--count"]).text() == "2\n");
    appender.signal();
    // The input is still open; the command ends nevertheless.
    let mut out = String::new();
    appender.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(out.contains("appended 2 records"), "{out}");
    assert_eq!(appender.child.wait().unwrap().code(), Some(130));
    assert_eq!(place.run("read", &[]).ok().text(), "opening\nmore\n");
}

#[test]
fn closed_pipe_ends_reading_quietly() {
    let place = Place::with(50_000);
    for args in [&["read"][..], &["read", "--json"], &["dump"], &["dump", "--records", "--json"]] {
        let log = place.log();
        let args = [&args[..1], &[log.as_str()], &args[1..]].concat();
        let mut child = command(&args).spawn().unwrap();
        let mut some = [0; 100];
        child.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
        drop(child.stdout.take());
        let ran = finish(child);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{args:?}");
    }
}

/// Verifying a log while it grows and is discarded from the front finds no fault.
#[test]
fn verify_beside_a_busy_writer_finds_nothing() {
    let place = Place::empty();
    let log = place.log();
    let options = chiplog::Options::with_segment_bytes(64 << 10);
    let writer = chiplog::Log::open(&log, options).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let verified: Vec<Ran> = std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1u64.. {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                let index = writer.append(&[n as u8; 3000]).unwrap();
                if n % 100 == 0 {
                    writer.discard(chiplog::Index(index.get().saturating_sub(150).max(1))).unwrap();
                }
            }
        });
        let verified = (0..20).map(|_| place.run("verify", &["--json"])).collect();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        verified
    });
    for ran in verified {
        assert_eq!(ran.ok().json()["faults"], serde_json::json!([]));
    }
}

#[test]
fn logging_goes_to_standard_error_at_the_chosen_level() {
    let place = Place::with(1);
    assert_eq!(
        place.run("append", &["-vv", "--json"]).ok().lines().len(),
        1,
        "standard output is for results"
    );
    let wrong = run(&["info", &place.log(), "--log", "loud", "--json"]).fails(2);
    assert_eq!(wrong.error()["error"]["kind"], "invalid_argument");
}

/// Error messages for mistakes of new users.
#[test]
fn mistakes_of_new_users_get_clear_errors() {
    let place = Place::with(3);
    let log = place.log();
    let told = |args: &[&str], code: i32, words: &[&str]| {
        let ran = run(args).fails(code);
        assert!(words.iter().all(|word| ran.err.contains(word)), "{args:?}: {}", ran.err);
    };
    told(&["discard", &log], 2, &["FIRST is missing"]);
    told(&["discard", &log, "two"], 2, &["give the index of the first record to keep"]);
    told(&["member", "remove", "three", "--cluster", "a:1"], 2, &["not a node number"]);
    told(&["transfer-leader", "three", "--cluster", "a:1"], 2, &["not a node number"]);
    let none = format!("{log}-none");
    for command in ["verify", "read"] {
        told(&[command, &none], 4, &["give a log's directory", "chiplog append"]);
    }
    let shown = run(&["options", &log]).ok();
    assert!(
        shown.text().contains("no option is set") && !shown.text().contains("leader"),
        "{}",
        shown.text()
    );
}
