//! The durability class `object` while leaders change.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/payload_log.rs"]
mod payload_log;
#[path = "support/unsteady.rs"]
mod unsteady;

use chiplog::transport::MemoryNetwork;
use chiplog::vault::{HookedVault, MemoryVault, Vault};
use chiplog::{Error, ErrorKind, Index, Log, NodeId, Sequence, Start};
use payload_log::{Cluster, again, eventually, options, payloads, read_all, record};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use unsteady::Unsteady;

/// Leaders change while slices are stored: followers read payload from the object store, sessions have each record once, and after the loss
/// of all replicas every record comes back.
#[test]
fn leaders_change_and_every_record_is_there_once() {
    let (network, vault, dir) =
        (MemoryNetwork::new(), Arc::new(MemoryVault::default()), tempfile::tempdir().unwrap());
    let cluster = Cluster::new(dir.path(), &network, || options(&vault).object_bytes(128 << 10));
    let id = cluster.session();
    let mut next = 1;
    for round in 0..6 {
        let from = cluster.leader();
        let upto = next + 80;
        eventually("they are appended", || {
            let Some(leader) = cluster.leader() else { return false };
            // In flight while leadership moves; of unknown outcome until the new leader answers.
            let mut session = cluster.logs[leader].resume_session(id, Sequence(next));
            let mut tickets = Vec::new();
            for n in next..upto {
                match session.submit(&record(n)) {
                    Ok(ticket) => tickets.push((n, ticket)),
                    Err(_) => break,
                }
            }
            if cluster.leader() == from && round < 5 {
                _ = cluster.logs[leader]
                    .transfer_leader(NodeId((leader as u64 + 1) % 3 + 1), Duration::from_secs(5));
            }
            for (n, ticket) in tickets {
                match ticket.wait() {
                    Ok(index) => assert_eq!(index, Index(n)),
                    Err(error) if error.kind() == ErrorKind::SequenceForgotten => {}
                    Err(_) => return false,
                }
                next = n + 1;
            }
            next == upto
        });
    }
    let last = next - 1;
    for log in &cluster.logs {
        eventually("it is committed there", || log.last_index() == Index(last));
        eventually("all can be read there", || {
            let mut reader = log.reader(Start::First).unwrap();
            (1..=last).all(|n| {
                reader.next_record().is_ok_and(|found| found.is_some_and(|found| found.data == record(n)))
            })
        });
    }
    eventually("all is in slices", || {
        cluster.leader().is_some_and(|n| cluster.logs[n].metrics().sliced_index >= last)
    });
    let id = cluster.id;
    drop(cluster);
    let (log, notes) = again(&*vault, id, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(&log, 1, last);
}

/// Moves leadership to this replica.
fn lead(cluster: &Cluster, to: usize) -> &Log {
    eventually("it leads", || {
        if let Some(leader) = cluster.leader().filter(|leader| *leader != to) {
            _ = cluster.logs[leader].transfer_leader(NodeId(to as u64 + 1), Duration::from_secs(2));
        }
        cluster.leader() == Some(to)
    });
    &cluster.logs[to]
}

/// The puts of an earlier leadership hang in the object store: those of the next one of the same replica wait for none of them.
#[test]
fn puts_of_an_earlier_leadership_hold_up_nothing() {
    let (network, vault, dir) =
        (MemoryNetwork::new(), Arc::new(Unsteady::default()), tempfile::tempdir().unwrap());
    let cluster = Cluster::new(dir.path(), &network, || options(&vault));
    let log = lead(&cluster, 0);
    log.append(&record(1)).unwrap();
    vault.hangs.store(true, Ordering::SeqCst);
    let mut tickets = Vec::new();
    eventually("all puts hang", || {
        tickets.push(log.submit(&record(2)).unwrap());
        std::thread::sleep(Duration::from_millis(15));
        vault.hung.load(Ordering::SeqCst) >= 8
    });
    lead(&cluster, 1);
    tickets.into_iter().for_each(|ticket| drop(ticket.wait().unwrap_err()));
    vault.hangs.store(false, Ordering::SeqCst);
    let log = lead(&cluster, 0);
    let appended = log.submit(&record(2)).unwrap().wait_timeout(Duration::from_secs(30));
    vault.lets_go.store(true, Ordering::SeqCst);
    assert_eq!(appended.unwrap(), Index(2));
    read_all(log, 1, 2);
}

/// Objects that cannot be read do not count as stored, whoever leads: their payload and all files stay, and they are put once. When they
/// can be read, both go.
#[test]
fn objects_count_as_stored_once_they_were_read() {
    let (network, dir) = (MemoryNetwork::new(), tempfile::tempdir().unwrap());
    let vault = Arc::new(HookedVault::new(Arc::new(MemoryVault::default())));
    let (refused, puts) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (refusals, counted) = (refused.clone(), puts.clone());
    vault.set(move |call, name| {
        let is_object = name.contains("/o/");
        counted.fetch_add(u64::from(matches!(call, "put" | "create") && is_object), Ordering::Relaxed);
        if call == "get" && is_object {
            refusals.fetch_add(1, Ordering::Relaxed);
            return Err(Error::new(ErrorKind::Unavailable, "objects cannot be read"));
        }
        Ok(())
    });
    let cluster = Cluster::new(dir.path(), &network, || {
        options(&vault).object_bytes(1 << 20).local_bytes(2 * u64::from(payload_log::SEGMENT))
    });
    let oldest = |node: usize| {
        let names = std::fs::read_dir(dir.path().join(node.to_string())).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".seg")).min().unwrap()
    };
    let begun = [1, 2, 3].map(oldest);
    let mut next = 1;
    let mut first = None;
    for leader in [0, 1] {
        let (log, before) = (lead(&cluster, leader), refused.load(Ordering::Relaxed));
        eventually("an object cannot be read, several times", || {
            append_from(log, next, 100);
            next += 100;
            refused.load(Ordering::Relaxed) >= before + 3
        });
        let oldest_payload = payloads(&*vault, cluster.id).remove(0);
        assert_eq!(first.get_or_insert(oldest_payload.clone()), &oldest_payload);
        assert_eq!((log.metrics().stored_index, [1, 2, 3].map(oldest)), (0, begun.clone()));
    }
    let tried = refused.load(Ordering::Relaxed);
    assert!(puts.load(Ordering::Relaxed) < tried, "{puts:?} puts, {tried} attempts to read");
    vault.set(|_, _| Ok(()));
    let log = lead(&cluster, 1);
    eventually("payload and files go", || {
        append_from(log, next, 100);
        next += 100;
        payloads(&*vault, cluster.id).first() != first.as_ref()
            && oldest(1) > begun[0]
            && oldest(2) > begun[1]
    });
}

/// A put of an object hangs. The next leader has another replica store that object; it is read, counts as stored, and its payload goes. Then
/// the first put lands, damaged: it changes nothing.
#[test]
fn put_that_lands_late_replaces_no_object_that_was_read() {
    let (network, vault, dir) =
        (MemoryNetwork::new(), Arc::new(Unsteady::default()), tempfile::tempdir().unwrap());
    let cluster = Cluster::new(dir.path(), &network, || options(&vault).object_bytes(128 << 10));
    let log = lead(&cluster, 0);
    vault.holds_object.store(true, Ordering::SeqCst);
    let mut next = 1;
    let mut add = |log: &Log, count: u64| {
        for _ in 0..count {
            eventually("it is appended", || log.append(&record(next)).is_ok());
            next += 1;
        }
        next - 1
    };
    eventually("a put hangs", || {
        add(log, 20);
        vault.held.load(Ordering::SeqCst)
    });
    // Replica 2 hangs, as the one with the lowest number that did not lead.
    let first = payloads(&vault.below, cluster.id).remove(0);
    let log = lead(&cluster, 2);
    eventually("the object is stored, and its payload goes", || {
        add(log, 20);
        payloads(&vault.below, cluster.id).first() != Some(&first)
    });
    let objects = || {
        let all = vault.below.list(&format!("{:032x}/o/", cluster.id.get())).unwrap().into_iter();
        all.map(|object| vault.below.get(&object.name, 0..object.bytes).unwrap()).collect::<Vec<_>>()
    };
    let before = objects();
    assert!(!vault.has_landed.load(Ordering::SeqCst) && log.metrics().stored_index > 0);
    vault.lets_object_go.store(true, Ordering::SeqCst);
    eventually("the first put lands", || vault.has_landed.load(Ordering::SeqCst));
    assert!(objects().starts_with(&before), "an object was replaced");
    let last = add(log, 1);
    eventually("all is in slices", || log.metrics().sliced_index >= last);
    let id = cluster.id;
    drop(cluster);
    let (log, notes) = again(&vault.below, id, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(&log, 1, last);
}

/// Appends records from this one on.
fn append_from(log: &Log, next: u64, count: u64) {
    let tickets: Vec<_> = (next..next + count).map(|n| log.submit(&record(n)).unwrap()).collect();
    for (n, ticket) in (next..).zip(tickets) {
        assert_eq!(ticket.wait().unwrap(), Index(n));
    }
}

/// A replica that leads again does not count what another one referred to meanwhile: the next object comes in time.
#[test]
fn next_object_comes_in_time_after_changes_of_leader() {
    let (network, vault, dir) =
        (MemoryNetwork::new(), Arc::new(MemoryVault::default()), tempfile::tempdir().unwrap());
    let cluster = Cluster::new(dir.path(), &network, || options(&vault).object_bytes(128 << 10));
    let add = |to: usize, from: u64, count: u64| {
        let log = lead(&cluster, to);
        for n in from..from + count {
            eventually("it is appended", || log.append(&record(n)).is_ok());
        }
        // The leader looks whether there is enough for an object.
        std::thread::sleep(Duration::from_millis(1500));
    };
    add(0, 1, 30);
    add(1, 31, 60);
    add(0, 91, 20);
    eventually("an object is stored", || cluster.logs[0].metrics().stored_index > 0);
}
