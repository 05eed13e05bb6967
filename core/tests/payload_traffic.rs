//! The durability class `object`: what replicas send each other, and ask of the object store.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/payload_log.rs"]
mod payload_log;

use bytes::Bytes;
use chiplog::transport::{Envelope, Inbox, MemoryNetwork, Transport};
use chiplog::vault::{HookedVault, MemoryVault, Vault};
use chiplog::{Index, NodeId, Options};
use payload_log::{Cluster, append, eventually, is_on, options};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Counts the bytes that replicas send each other.
#[derive(Debug)]
struct Counted {
    below: Arc<dyn Transport>,
    bytes: Arc<AtomicU64>,
}

impl Transport for Counted {
    fn attach(&self, node: NodeId, inbox: Inbox) {
        self.below.attach(node, inbox);
    }

    fn detach(&self, node: NodeId) {
        self.below.detach(node);
    }

    fn send(&self, envelope: Envelope) {
        self.bytes.fetch_add(envelope.bytes() as u64, Ordering::Relaxed);
        self.below.send(envelope);
    }
}

/// An object store whose puts of payload take 20 ms, with the time that each took.
#[derive(Debug, Default)]
struct Slow {
    below: MemoryVault,
    puts: Mutex<Vec<Duration>>,
}

impl Vault for Slow {
    chiplog::vault::pass_on!(below: create, get, size, list, delete);

    fn put(&self, name: &str, pieces: &[Bytes]) -> chiplog::Result<()> {
        let begun = Instant::now();
        if name.contains("/p/") {
            std::thread::sleep(Duration::from_millis(20));
        }
        let result = self.below.put(name, pieces);
        if name.contains("/p/") {
            self.puts.lock().unwrap().push(begun.elapsed());
        }
        result
    }
}

/// Appends records of 16 KiB from eight threads, each with `window` of them in flight. Returns the bytes that were sent and appended, the
/// time of all, and the median of a confirmation.
fn load(vault: &Arc<Slow>, refers: bool, window: usize) -> (u64, u64, Duration, Duration) {
    let (network, dir, bytes) =
        (MemoryNetwork::new(), tempfile::tempdir().unwrap(), Arc::new(AtomicU64::new(0)));
    let transport =
        || Arc::new(Counted { below: network.transport(), bytes: bytes.clone() }) as Arc<dyn Transport>;
    let cluster = Cluster::over(dir.path(), transport, || {
        let options = Options::with_segment_bytes(16 << 20).vault(vault.clone() as Arc<dyn Vault>);
        options.slice_interval(refers.then_some(Duration::from_millis(10))).payload_slices(refers)
    });
    eventually("the class is on", || cluster.logs.iter().all(|log| is_on(log) == refers));
    let log = &cluster.logs[cluster.leader().unwrap()];
    let (before, begun) = (bytes.load(Ordering::Relaxed), Instant::now());
    let mut took = Vec::new();
    let mut appended = 0;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let (mut took, mut appended) = (Vec::new(), 0);
                    let mut waiting = std::collections::VecDeque::new();
                    for n in 0..window * 4 {
                        if waiting.len() == window {
                            let (at, ticket): (Instant, chiplog::Ticket<Index>) =
                                waiting.pop_front().unwrap();
                            ticket.wait().unwrap();
                            took.push(at.elapsed());
                        }
                        let record = vec![n as u8; 16 << 10];
                        appended += record.len() as u64;
                        waiting.push_back((Instant::now(), log.submit(&record).unwrap()));
                    }
                    for (at, ticket) in waiting {
                        ticket.wait().unwrap();
                        took.push(at.elapsed());
                    }
                    (took, appended)
                })
            })
            .collect();
        for thread in threads {
            let (more, bytes) = thread.join().unwrap();
            took.extend(more);
            appended += bytes;
        }
    });
    let all = begun.elapsed();
    took.sort_unstable();
    (bytes.load(Ordering::Relaxed) - before, appended, all, took[took.len() / 2])
}

/// Payload passes between replicas through the object store alone.
#[test]
fn replicas_send_each_other_references_alone() {
    let vault = Arc::new(Slow::default());
    let (whole, appended, whole_time, _) = load(&vault, false, 128);
    let (sent, _, time, _) = load(&vault, true, 128);
    vault.puts.lock().unwrap().clear();
    let (_, _, _, confirmed) = load(&vault, true, 8);
    let mut puts = std::mem::take(&mut *vault.puts.lock().unwrap());
    puts.sort_unstable();
    let ratio = |bytes: u64| bytes as f64 / appended as f64;
    println!(
        "bytes between replicas for each appended one: {:.4}, whole {:.4}; all took {time:?}, whole {whole_time:?}; the median \
         confirmation {confirmed:?}, and that of {} puts {:?}",
        ratio(sent),
        ratio(whole),
        puts.len(),
        puts[puts.len() / 2]
    );
    assert!(ratio(whole) > 1.9, "{whole} bytes for {appended}");
    assert!(ratio(sent) < 0.05, "{sent} bytes for {appended}");
}

/// The requests of a log are those with which `chiplog cost` computes: see docs/cost.md.
#[test]
fn requests_are_those_of_the_cost_model() {
    const ROUNDS: u64 = 60;
    let (network, dir) = (MemoryNetwork::new(), tempfile::tempdir().unwrap());
    let vault = Arc::new(HookedVault::new(Arc::new(MemoryVault::default())));
    let counts = Arc::new(Mutex::new(BTreeMap::new()));
    let counting = counts.clone();
    vault.set(move |call, name| {
        let kind = ["/p/", "/s/", "/o/", "/root"].into_iter().find(|part| name.contains(part)).unwrap_or("");
        *counting.lock().unwrap().entry((call.to_owned(), kind)).or_default() += 1;
        Ok(())
    });
    let cluster = Cluster::new(dir.path(), &network, || options(&vault).object_bytes(128 << 10));
    let log = &cluster.logs[cluster.leader().unwrap()];
    let count = |call: &str, kind| -> u64 {
        counts.lock().unwrap().get(&(call.to_owned(), kind)).copied().unwrap_or_default()
    };
    // In the class `object` an object is put only if none is there.
    let put = || count("put", "/o/") + count("create", "/o/");
    (0..ROUNDS).for_each(|_| append(log, 10));
    log.cut_objects(log.last_index()).unwrap();
    eventually("all is in objects, and each was read", || {
        let stored = log.metrics().stored_index == log.last_index().get();
        stored && count("get", "/o/") >= put()
    });
    let ([payloads, slices], objects) = (["/p/", "/s/"].map(|kind| count("put", kind)), put());
    println!("{:?}", counts.lock().unwrap());
    assert!(payloads >= ROUNDS && objects >= 4, "{payloads} {objects}");
    // At most one for what one payload slice has brought, and for the commands about an object.
    assert!(
        slices <= 2 * payloads + 4 * objects + 50,
        "{slices} slices of entries for {payloads} of payload"
    );
    // Is the store still the log's? Behind each slice, and a few times for an object.
    let heads = count("size", "/root");
    assert!(heads >= payloads && heads <= payloads + slices + 8 * objects + 50, "{heads} HEADs");
    // The replica that makes an object gets its payload, and the leader reads it.
    let [gets, read] = ["/p/", "/o/"].map(|kind| count("get", kind));
    assert!(gets <= 2 * payloads, "{gets} GETs of payload");
    assert!(read <= objects + 2, "{read} GETs of {objects} objects");
}
