//! A leader is stopped for longer than an election, and then continued; a server dies under a client.

use crate::harness::{Server, ended, leader, one, run, started, status, three, wait};
use crate::notary::{Load, Notary, by_strangers};
use crate::stranger::Stranger;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::time::Duration;

/// When it wakes, its sockets hold requests of clients that believe that it leads, and by its own clock
/// hardly any time has passed. It must not accept an append, nor return an end of the log that is older than
/// the query.
#[test]
fn leader_that_was_stopped_returns_nothing_stale() {
    let dir = tempfile::tempdir().unwrap();
    let servers = three(dir.path());
    let all: Vec<&Server> = servers.iter().collect();
    let notary = Notary::start(&all, Load::LIGHT);
    let mut said_yes = BTreeMap::new();
    let mut asked = 0_u64;
    for round in 1..=4 {
        notary.goes_on("the last round", 100);
        let old = leader(&all);
        let (old, left): (Vec<&Server>, Vec<&Server>) = all.iter().partition(|s| s.node == old);
        let strangers: Vec<Stranger> = (0..6).map(|_| Stranger::meet(old[0])).collect();
        notary.gap();
        old[0].signal(Signal::STOP);
        let next = wait("another server leads", || {
            status(&left)["leader"].as_u64().filter(|next| *next != old[0].node)
        });
        notary.goes_on("the leader was stopped", 200);

        let known = notary.end();
        let waiting: Vec<_> = strangers
            .into_iter()
            .map(|stranger| {
                asked += 1;
                let record = by_strangers(asked);
                (stranger.ask(record.clone()), record)
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200)); // lets the queries reach its sockets
        old[0].signal(Signal::CONT);
        for (answers, record) in waiting {
            let told = answers.join().unwrap();
            let end = told.end.index();
            assert!(end.is_none_or(|end| end >= known), "{told:?}, but {known} was acknowledged before");
            if let Some(index) = told.appended.index() {
                said_yes.insert(index, record);
            }
        }
        println!(
            "round {round}: node {} stopped, {next} led; {:?} without an acknowledgement",
            old[0].node,
            notary.gap()
        );
    }
    println!("{asked} queries, {} appends by strangers accepted", said_yes.len());
    let theirs = notary.check(&all);
    for (index, record) in said_yes {
        assert_eq!(theirs.get(&index), Some(&record), "acknowledged at {index}");
    }
}

/// It said nothing for a minute.
#[test]
fn append_reports_that_its_server_died() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = one(dir.path());
    let at = server.client.clone();
    let session = dir.path().join("session");
    for more in [&[][..], &["--session-file", session.to_str().unwrap()]] {
        let mut child = started(&[&["append", &at][..], more].concat());
        let mut input = child.stdin.take().unwrap();
        let before = run(&["info", &at, "--json"]).ok().json()["last"].as_u64().unwrap();
        input.write_all(b"before\n").unwrap();
        wait("it is in the log", || {
            (run(&["info", &at, "--json"]).json()["last"].as_u64()? > before).then_some(())
        });
        // The client has the answer, too: of two records it may confirm the second one late, which is another stall.
        std::thread::sleep(Duration::from_secs(1));
        server.kill();
        input.write_all(b"after\n").unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let told = said.next().unwrap();
        assert!(told.contains("confirm nothing; waiting up to 5") && told.contains("s, until 20"), "{told}");
        assert!(told.contains(&at) && told.contains("refused"), "{told}");
        server.start(&[]);
        drop(input);
        let rest: Vec<String> = said.collect();
        assert!(!rest.iter().any(|line| line.contains("confirm nothing")), "{rest:?}");
        assert_eq!(ended(child).code, 0, "{rest:?}");
        let read = run(&["read", &at, "--last", "2"]).ok().out;
        assert_eq!(read, "before\nafter\n");
    }
}
