//! `append --session-file`: a command that is killed and run again appends each record once.

use crate::harness::{Ran, Server, ended, fed, one, run, started, three, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Write;
use std::process::Child;

fn lines(from: u64, to: u64) -> String {
    (from..=to).map(|n| format!("line {n}\n")).collect()
}

fn kill(mut child: Child) {
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
}

fn count(at: &str) -> u64 {
    run(&["read", at, "--count"]).ok().out.trim().parse().unwrap()
}

fn appended(ran: &Ran) -> (u64, u64) {
    let summary = ran.json();
    (summary["records"].as_u64().unwrap(), summary["skipped"].as_u64().unwrap())
}

/// The client is killed several times, each time with more of the input read.
#[test]
fn killed_command_continues_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let server = one(dir.path());
    let at = server.client.as_str();
    let file = dir.path().join("session");
    let args = ["append", at, "--json", "--batch", "7", "--session-file", file.to_str().unwrap()];
    let all = lines(1, 5000);
    for n in 1..=5 {
        let mut child = started(&args);
        let mut input = child.stdin.take().unwrap();
        // The input stays open: it ends only when the command dies.
        input.write_all(lines(1, n * 900).as_bytes()).unwrap();
        wait("some records are in the log", || (count(at) > (n - 1) * 900 + 100).then_some(()));
        kill(child);
    }
    let last = fed(&args, &all).ok();
    let (records, skipped) = appended(&last);
    assert!(skipped > 3600 && records + skipped == 5000, "{}", last.out);
    assert!(run(&["read", at]).ok().out == all, "each line once, in order");

    // Run again: nothing is left to do. Then the input has grown.
    assert_eq!(appended(&fed(&args, &all).ok()), (0, 5000));
    assert_eq!(appended(&fed(&args, &lines(1, 5003)).ok()), (3, 5000));
    assert_eq!(run(&["read", at, "--last", "4"]).ok().out, lines(5000, 5003));
    let words = fed(&["append", at, "--session-file", file.to_str().unwrap()], &lines(1, 5003)).ok();
    assert!(words.out.contains("5,003 records of the input were in the log before"), "{}", words.out);
}

/// The help says that status 5 means that no other record is in the log; the command ended with 6.
#[test]
fn full_log_leaves_nothing_in_doubt() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init", "--set", "log.capacity_bytes=2MiB"]);
    let at = server.client.as_str();
    let file = dir.path().join("session");
    let args = ["append", at, "--batch", "10", "--session-file", file.to_str().unwrap()];
    let line = |n: u64| format!("{n} {}\n", "x".repeat(1000));
    let all: String = (1..=3_000).map(line).collect();
    // The second run knows that what the first one had sent was refused.
    let before = [(); 2].map(|()| {
        let ran = fed(&args, &all);
        assert_eq!(ran.code, 5, "{}", ran.err);
        assert!(
            ran.err.contains("the log is full") && ran.err.contains("run the same command again"),
            "{}",
            ran.err
        );
        assert!(!ran.err.contains("may be in the log"), "{}", ran.err);
        count(at)
    });
    assert!(before[0] > 1_000 && before[0] == before[1], "{before:?}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.ends_with("\nrefused\n") && text.contains("\nagain\n"), "{text}");
    run(&["discard", at, &(before[0] + 1).to_string()]).ok();
    let ran = fed(&args, &all).ok();
    assert!(ran.out.contains(&format!("index {} to 3000", before[0] + 1)), "{}", ran.out);
    let rest: String = (before[0] + 1..=3_000).map(line).collect();
    assert!(run(&["read", at]).ok().out == rest, "each line once, in order");
}

/// Records sent when the client died may or may not be in the log. Batches of the last run are cut in the
/// same places again.
#[test]
fn unconfirmed_records_are_in_the_log_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = one(dir.path());
    let at = server.client.as_str();
    let file = dir.path().join("session");
    let path = file.to_str().unwrap();
    let args = ["append", at, "--json", "--session-file", path, "--batch"];
    let cut = |n: usize| {
        let text = fs::read_to_string(&file).unwrap_or_default();
        (text.matches("\ncut ").count() >= n).then_some(())
    };
    fed(&[&args[..], &["10"]].concat(), &lines(1, 100)).ok();
    let mut child = started(&[&args[..], &["10"]].concat());
    let mut input = child.stdin.take().unwrap();
    input.write_all(lines(1, 100).as_bytes()).unwrap();
    input.write_all(lines(101, 105).as_bytes()).unwrap();
    wait("a line of a batch of its own is in the log", || (count(at) >= 101).then_some(()));
    server.signal(Signal::STOP);
    input.write_all(lines(106, 155).as_bytes()).unwrap();
    wait("more records are sent", || cut(15));
    kill(child);
    server.signal(Signal::CONT);
    // A different batch size: batches that were sent are cut as before.
    let ran = fed(&[&args[..], &["1000"]].concat(), &lines(1, 300)).ok();
    let (records, skipped) = appended(&ran);
    assert!((100..155).contains(&skipped) && records + skipped == 300, "{}", ran.out);
    assert!(run(&["read", at]).ok().out == lines(1, 300), "each line once, in order");
}

/// The servers fail instead: the command gives up, is run again, and so on.
#[test]
fn leader_is_lost_between_two_runs() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path());
    let cluster = servers.iter().map(|s| s.client.clone()).collect::<Vec<_>>().join(",");
    let file = dir.path().join("session");
    let args = ["append", &cluster, "--json", "--batch", "50", "--session-file", file.to_str().unwrap()];
    let mut child = started(&args);
    let mut input = child.stdin.take().unwrap();
    input.write_all(lines(1, 2000).as_bytes()).unwrap();
    wait("some records are in the log", || (count(&cluster) > 500).then_some(()));
    let leads = crate::harness::leader(&servers.iter().collect::<Vec<_>>()) as usize - 1;
    kill(child);
    servers[leads].kill();
    fed(&args, &lines(1, 4000)).ok();
    assert!(run(&["read", &cluster]).ok().out == lines(1, 4000), "each line once, in order");
}

#[test]
fn input_or_log_that_does_not_match_the_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = one(dir.path());
    let at = server.client.as_str();
    let file = dir.path().join("session");
    let args = ["append", at, "--session-file", file.to_str().unwrap()];
    let mut child = started(&args);
    let mut input = child.stdin.take().unwrap();
    input.write_all(lines(1, 100).as_bytes()).unwrap();
    wait("the records are in the log", || (count(at) == 100).then_some(()));
    let busy = fed(&args, &lines(1, 100));
    assert!(busy.code == 5 && busy.err.contains("another process"), "{}", busy.err);
    drop(input);
    assert_eq!(ended(child).code, 0);

    for other in [lines(1, 50), lines(2, 200), lines(1, 99) + "line 1OO\nmore\n"] {
        let refused = fed(&args, &other);
        assert!(refused.code == 2 && refused.err.contains("same input"), "{}", refused.err);
    }
    let mut another = crate::harness::Server::new(2, dir.path());
    another.start(&["--init"]);
    let refused = fed(&["append", &another.client, "--session-file", args[3]], &lines(1, 200));
    assert!(refused.code == 2 && refused.err.contains("belongs to log"), "{}", refused.err);
    for wrong in [&["append", dir.path().to_str().unwrap()][..], &["append", at, "--threads", "2"]] {
        let refused = fed(&[wrong, &args[2..]].concat(), "x\n");
        assert!(refused.code == 2 && refused.err.contains("--session-file"), "{}", refused.err);
    }
    assert_eq!(count(at), 100);
    assert_eq!(count(&another.client), 0);
}
