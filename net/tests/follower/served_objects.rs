//! Copies that read the log's objects through servers: they need no way to the object store.

use crate::served::{One, Server};
use crate::support::{LONG, append, quick, same, until};
use bytes::Bytes;
use chiplog::cluster::{Bootstrap, Change, ClusterOptions};
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{DirectoryId, ErrorKind, Index, Log, LogOption, NodeId, Options, ReadOnlyLog, Start};
use chiplog_net::client::blocking::ServedObjects;
use chiplog_net::client::{ClientOptions, Secret};
use chiplog_net::follower::{Follower, FollowerOptions};
use chiplog_net::service::log::NativeOptions;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SEGMENT: u32 = 256 << 10;

/// A server whose log is mostly in the object store alone.
fn tiered() -> (One, Arc<MemoryVault>) {
    let vault = Arc::new(MemoryVault::default());
    let options = Options::with_segment_bytes(SEGMENT)
        .vault(vault.clone() as Arc<dyn Vault>)
        .object_bytes(128 << 10)
        .local_bytes(2 * u64::from(SEGMENT));
    let one = One::with(options, NativeOptions::default());
    append(&one.log, 3000, 1000);
    until("files go", || {
        append(&one.log, 50, 1000);
        let names = std::fs::read_dir(one.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".seg")).count() <= 8
    });
    (one, vault)
}

fn through_servers() -> FollowerOptions {
    quick().served_objects(true)
}

fn folder(log: &Log) -> String {
    format!("{:032x}/", log.log_id().get())
}

#[test]
fn copy_has_all_records_and_no_way_to_the_store() {
    let (one, _vault) = tiered();
    let dir = tempfile::tempdir().unwrap();
    let copy = Follower::open(dir.path(), [one.address()], Start::Next, through_servers()).unwrap();
    let last = append(&one.log, 10, 1000);
    copy.wait_for(last, LONG).unwrap();
    let copied = one.server.host.copies();
    assert!(copied.bytes < 2_000_000 && copied.objects_bytes == 0, "{copied:?}: nothing is read yet");
    assert_eq!(copy.log().first_index(), Index(1));
    same(copy.log(), &one.log, last);
    let read = one.server.host.copies().objects_bytes;
    assert!(read > 1_000_000, "{read} bytes of objects");

    // It serves none itself: two copies that name each other would ask in a circle.
    let server = Server::serve(copy.host().clone(), 0, NativeOptions::default());
    let name = format!("{}root", folder(&one.log));
    let through =
        |servers: &[&str]| ServedObjects::new(servers.iter().copied(), ClientOptions::default()).unwrap();
    let refused = through(&[&server.address]).size(&name).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    for _ in 0..5 {
        let either = through(&[&server.address, &one.address()]);
        assert!(either.size(&name).unwrap().is_some(), "the server is asked if the copy refuses");
    }

    // After a restart it has all records as well.
    copy.close().unwrap();
    let copy = Follower::open(dir.path(), [one.address()], Start::Next, through_servers()).unwrap();
    same(copy.log(), &one.log, last);
    copy.close().unwrap();
}

/// With the durability class `object` a copy gets the batches themselves: what is in no object yet from its source, which reads payload
/// slices for it, and the rest in objects. Its own files refer to nothing.
#[test]
fn copy_of_a_log_with_payload_in_the_store_has_the_payload() {
    let vault = Arc::new(MemoryVault::default());
    let options = Options::with_segment_bytes(SEGMENT)
        .vault(vault.clone() as Arc<dyn Vault>)
        .object_bytes(128 << 10)
        .slice_interval(Some(Duration::from_millis(10)))
        .payload_slices(true);
    let one = One::with(options, NativeOptions::default());
    until("the class is on", || one.log.log_options().get(LogOption::PayloadSlices) == Some(1));
    append(&one.log, 1500, 1000);
    until("objects are stored", || one.log.metrics().stored_index > 1000);
    let dir = tempfile::tempdir().unwrap();
    let copy = Follower::open(dir.path(), [one.address()], Start::Next, through_servers()).unwrap();
    let last = append(&one.log, 50, 1000);
    copy.wait_for(last, LONG).unwrap();
    assert_eq!(copy.log().first_index(), Index(1));
    same(copy.log(), &one.log, last);
    assert!(one.log.metrics().stored_payloads > 0);
    copy.close().unwrap();
    let files = ReadOnlyLog::open(dir.path()).unwrap();
    let mut reader = files.reader(Start::Index(last)).unwrap();
    assert_eq!(reader.next_record().unwrap().unwrap().data.len(), 1000, "no object store is needed for it");
}

#[test]
fn objects_are_read_from_any_server_that_has_the_store() {
    let (one, vault) = tiered();
    let folder = folder(&one.log);
    let wanted = vault.list(&folder).unwrap();
    assert!(wanted.len() > 10);
    // A server that is down, a copy without an object store, and a server with one.
    let down = format!("127.0.0.1:{}", crate::served::free_port());
    let dir = tempfile::tempdir().unwrap();
    let copy = Follower::open(dir.path(), [one.address()], Start::Next, quick()).unwrap();
    let without = Server::serve(copy.host().clone(), 0, NativeOptions::default());
    let options = ClientOptions::default().timeout(LONG);
    let objects =
        ServedObjects::new([down, without.address.clone(), one.address()], options.clone()).unwrap();
    for object in &wanted {
        assert_eq!(objects.size(&object.name).unwrap(), Some(object.bytes));
        let all = vault.get(&object.name, 0..object.bytes).unwrap();
        assert_eq!(objects.get(&object.name, 0..object.bytes).unwrap(), all);
        let part = object.bytes / 3..object.bytes / 2;
        let expected = &all[part.start as usize..part.end as usize];
        assert_eq!(objects.get(&object.name, part).unwrap(), expected);
        assert_eq!(objects.get(&object.name, 5..5).unwrap().len(), 0);
    }
    let first = &wanted[0];
    let beyond = objects.get(&first.name, 0..first.bytes + 1).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::OutOfRange, "{beyond}");
    let objects = ServedObjects::new([one.address()], options.clone()).unwrap();
    let missing = format!("{folder}o/00000000000000099999");
    assert_eq!(objects.size(&missing).unwrap(), None);
    assert_eq!(objects.get(&missing, 0..1).unwrap_err().kind(), ErrorKind::NotFound);

    // Other logs of the same store are out of reach, and so are lists and writing.
    let other = format!("{:032x}/root", one.log.log_id().get() ^ 1);
    vault.put(&other, &["secret".into()]).unwrap();
    for name in [other.as_str(), "root"] {
        assert_eq!(objects.get(name, 0..1).unwrap_err().kind(), ErrorKind::Diverged, "{name}");
        assert_eq!(objects.size(name).unwrap_err().kind(), ErrorKind::Diverged, "{name}");
    }
    assert_eq!(objects.list(&folder).unwrap_err().kind(), ErrorKind::Unsupported);
    for refused in [
        objects.put(&first.name, &["x".into()]).unwrap_err(),
        objects.create(&missing, "x".into()).unwrap_err(),
        objects.delete(&first.name).unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!((vault.size(&first.name).unwrap(), vault.size(&missing).unwrap()), (Some(first.bytes), None));

    let objects = ServedObjects::new([without.address.clone()], options).unwrap();
    let error = objects.get(&first.name, 0..1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("no object store"), "{error}");
}

#[test]
fn object_larger_than_one_request_arrives_whole() {
    let (one, vault) = tiered();
    let name = format!("{}large", folder(&one.log));
    let bytes: Vec<u8> = (0..9_000_001_u32).map(|n| (n % 251) as u8).collect();
    vault.put(&name, &[bytes.clone().into()]).unwrap();
    let objects = ServedObjects::new([one.address()], ClientOptions::default()).unwrap();
    assert_eq!(objects.get(&name, 0..9_000_001).unwrap(), bytes);
    assert_eq!(objects.get(&name, 1..8_999_999).unwrap(), bytes[1..8_999_999]);
}

#[test]
fn reader_gets_an_error_while_no_server_answers() {
    let (one, _vault) = tiered();
    let dir = tempfile::tempdir().unwrap();
    let options = through_servers().backoff_max(Duration::from_millis(50));
    let copy = Follower::open(dir.path(), [one.address()], Start::Next, options).unwrap();
    let host = one.server.host.clone();
    host.drain();
    let mut reader = copy.reader(Start::First).unwrap();
    let error = reader.next_record().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    copy.close().unwrap();
}

#[test]
fn store_of_its_own_and_served_objects_exclude_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = through_servers();
    options.files = options.files.vault(Arc::new(MemoryVault::default()) as Arc<dyn Vault>);
    let error = Follower::open(dir.path(), ["127.0.0.1:1"], Start::First, options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

/// Each call has its own time limit: calls do not wait for each other's.
#[test]
fn calls_end_in_time_while_no_server_is_there() {
    let down = format!("127.0.0.1:{}", crate::served::free_port());
    let limit = Duration::from_millis(1500);
    let objects = ServedObjects::new([down], ClientOptions::default().timeout(limit)).unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let error = objects.size("00000000000000000000000000000007/root").unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            });
        }
    });
    assert!(begun.elapsed() < limit * 12, "one after the other: {:?}", begun.elapsed());
}

/// A member's address can be taken by a server with another log. It is passed over.
#[test]
fn server_of_another_log_is_passed_over() {
    let (one, _vault) = tiered();
    let other = One::with(Options::with_segment_bytes(SEGMENT), NativeOptions::default());
    let name = format!("{}root", folder(&one.log));
    for _ in 0..8 {
        let objects = ServedObjects::new([other.address(), one.address()], ClientOptions::default()).unwrap();
        assert!(objects.size(&name).unwrap().is_some());
    }
}

/// Passes bytes on slowly: this many in a second, back to the client.
fn slow_way(to: String, bytes_per_second: u64) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&to).unwrap());
            let (mut from, mut up) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || _ = std::io::copy(&mut from, &mut up));
            std::thread::spawn(move || {
                let mut buffer = vec![0; 16 << 10];
                while let Ok(n @ 1..) = server.read(&mut buffer) {
                    if client.write_all(&buffer[..n]).is_err() {
                        break;
                    }
                    std::thread::sleep(Duration::from_micros(n as u64 * 1_000_000 / bytes_per_second));
                }
            });
        }
    });
    address
}

/// A read takes as long as it needs, while bytes arrive.
#[test]
fn object_arrives_over_a_slow_way() {
    let (one, vault) = tiered();
    let name = format!("{}large", folder(&one.log));
    vault.put(&name, &[vec![7; 4 << 20].into()]).unwrap();
    let options = ClientOptions::default().timeout(Duration::from_secs(3));
    let objects = ServedObjects::new([slow_way(one.address(), 1 << 20)], options).unwrap();
    assert_eq!(objects.get(&name, 0..4 << 20).unwrap(), vec![7; 4 << 20]);
}

/// Answers nothing about large objects before it is let go on.
#[derive(Debug, Default)]
struct SlowVault {
    objects: MemoryVault,
    goes_on: (Mutex<bool>, Condvar),
}

impl Vault for SlowVault {
    chiplog::vault::pass_on!(objects: put, create, size, list, delete);

    fn get(&self, name: &str, range: Range<u64>) -> chiplog::Result<Bytes> {
        if name.ends_with("large") {
            let (goes_on, changed) = &self.goes_on;
            drop(changed.wait_while(goes_on.lock().unwrap(), |goes_on| !*goes_on).unwrap());
        }
        self.objects.get(name, range)
    }
}

/// Calls that wait for the store held all memory for answers, and copies that read no object got nothing.
#[test]
fn slow_store_delays_no_copy() {
    let vault = Arc::new(SlowVault::default());
    let options = Options::with_segment_bytes(SEGMENT).vault(vault.clone() as Arc<dyn Vault>);
    let one = One::with(options, NativeOptions::default());
    append(&one.log, 100, 1000);
    let dir = tempfile::tempdir().unwrap();
    let copy = Follower::open(dir.path(), [one.address()], Start::First, quick()).unwrap();
    let name = format!("{}large", folder(&one.log));
    vault.put(&name, &[vec![7; 4 << 20].into()]).unwrap();
    let before = one.server.calls.load(Ordering::Relaxed);
    let reads: Vec<_> = (0..150)
        .map(|n| {
            let options = ClientOptions::default().timeout(LONG);
            let objects =
                (n % 30 == 0).then(|| Arc::new(ServedObjects::new([one.address()], options).unwrap()));
            (objects, name.clone())
        })
        .scan(None, |last: &mut Option<Arc<ServedObjects>>, (objects, name)| {
            *last = objects.or(last.take());
            last.clone().map(|objects| std::thread::spawn(move || objects.get(&name, 0..4 << 20)))
        })
        .collect();
    until("the calls are there", || one.server.calls.load(Ordering::Relaxed) >= before + 150);
    let last = append(&one.log, 100, 10_000);
    copy.wait_for(last, LONG).unwrap();
    *vault.goes_on.0.lock().unwrap() = true;
    vault.goes_on.1.notify_all();
    for read in reads {
        assert_eq!(
            read.join().unwrap().unwrap().len(),
            4 << 20,
            "none is lost: a call that is refused is made again"
        );
    }
}

/// A replica that names this address to clients.
fn member(address: &str) -> (TempDir, Log) {
    let mut cluster = ClusterOptions::new(NodeId(1), Bootstrap::Init, MemoryNetwork::new().transport());
    cluster.heartbeat = Duration::from_millis(30);
    cluster.election_timeout = Duration::from_millis(300);
    cluster.address = format!("127.0.0.1:1 {address} east");
    let dir = tempfile::tempdir().unwrap();
    let vault: Arc<dyn Vault> = Arc::new(MemoryVault::default());
    let options = Options::with_segment_bytes(SEGMENT).vault(vault).object_bytes(128 << 10);
    let log = Log::open(dir.path(), options.cluster(cluster)).unwrap();
    until("it leads", || log.barrier(Duration::from_secs(1)).is_ok());
    append(&log, 600, 1000);
    until("an object is stored", || log.metrics().stored_bytes > 100_000);
    (dir, log)
}

/// A token is not sent to other machines without TLS. That a server names one ends no call.
#[test]
fn server_that_gets_no_token_is_passed_over() {
    let (_dir, log) = member("10.255.255.1:7411");
    let server = Server::start(log.clone());
    let options = ClientOptions::default().token(Secret::from("t"));
    let objects = ServedObjects::new([server.address.clone()], options).unwrap();
    let name = format!("{}root", folder(&log));
    let long = format!("{}o/00000000000000099999", folder(&log));
    assert!(objects.size(&name).unwrap().is_some());
    assert_eq!(objects.get(&long, 0..1).unwrap_err().kind(), ErrorKind::NotFound); // now it knows all servers
    for _ in 0..8 {
        assert!(objects.size(&name).unwrap().is_some());
    }
}

/// The servers that were given first are gone, and others have taken their place.
#[test]
fn servers_are_learned_again() {
    let (a, b) = (crate::served::free_port(), crate::served::free_port());
    let place = |port: u16| format!("127.0.0.1:{port}");
    let (_dir, log) = member(&place(a));
    let first = Server::start_at(log.clone(), a, NativeOptions::default());
    let objects =
        ServedObjects::new([place(a)], ClientOptions::default().timeout(Duration::from_secs(3))).unwrap();
    let root = format!("{}root", folder(&log));
    assert!(objects.size(&root).unwrap().is_some());
    let address = format!("127.0.0.1:2 {} east", place(b));
    let added = Change::AddLearner { node: NodeId(2), directory: DirectoryId(7), address };
    log.change_members(&[added], LONG).unwrap();
    drop(first);
    // It fails while no server is there, and learns of the second one when the first is back.
    std::thread::scope(|scope| {
        let size = scope.spawn(|| objects.size(&root));
        let _first = Server::start_at(log.clone(), a, NativeOptions::default());
        let _ = size.join().unwrap(); // there may have been no time for it
        let missing = format!("{}o/00000000000000099999", folder(&log));
        assert!(objects.get(&missing, 0..1).is_err()); // after this round it asks which servers there are
    });
    let _second = Server::start_at(log, b, NativeOptions::default());
    until("the second one answers", || objects.size(&root).is_ok_and(|size| size.is_some()));
}
