//! Copies that read the log's objects through servers: they need no way to the object store.

use crate::served::{One, Server};
use crate::support::{LONG, append, quick, same, until};
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{ErrorKind, Index, Log, Options, Start};
use chiplog_net::client::ClientOptions;
use chiplog_net::client::blocking::ServedObjects;
use chiplog_net::follower::{Follower, FollowerOptions};
use chiplog_net::service::log::NativeOptions;
use std::sync::Arc;
use std::time::Duration;

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

    // A copy of the copy reads through it.
    let host = copy.host().clone();
    let server = Server::serve(host.clone(), 0, NativeOptions::default());
    let second = tempfile::tempdir().unwrap();
    let next =
        Follower::open(second.path(), [server.address.clone()], Start::First, through_servers()).unwrap();
    next.wait_for(last, LONG).unwrap();
    same(next.log(), &one.log, last);
    assert!(host.copies().objects_bytes > 1_000_000);
    next.close().unwrap();

    // After a restart it has all records as well.
    copy.close().unwrap();
    let copy = Follower::open(dir.path(), [one.address()], Start::Next, through_servers()).unwrap();
    same(copy.log(), &one.log, last);
    copy.close().unwrap();
}

#[test]
fn objects_are_read_from_any_server_that_has_the_store() {
    let (one, vault) = tiered();
    let folder = folder(&one.log);
    let wanted = vault.list(&folder).unwrap();
    assert!(wanted.len() > 10);
    // A server that is down, one without an object store, and one with it.
    let plain = One::with(Options::with_segment_bytes(SEGMENT), NativeOptions::default());
    let down = format!("127.0.0.1:{}", crate::served::free_port());
    let options = ClientOptions::default().timeout(LONG);
    let objects = ServedObjects::new([down, one.address()], options.clone()).unwrap();
    let listed = objects.list(&folder).unwrap();
    assert!(wanted.iter().all(|object| listed.contains(object)), "{listed:?}"); // there can be more by now
    for object in &wanted {
        assert_eq!(objects.size(&object.name).unwrap(), Some(object.bytes));
        let all = vault.get(&object.name, 0..object.bytes).unwrap();
        assert_eq!(objects.get(&object.name, 0..object.bytes).unwrap(), all);
        let part = object.bytes / 3..object.bytes / 2;
        assert_eq!(
            objects.get(&object.name, part.clone()).unwrap(),
            all[part.start as usize..part.end as usize]
        );
        assert_eq!(objects.get(&object.name, 5..5).unwrap().len(), 0);
    }
    let first = &wanted[0];
    let beyond = objects.get(&first.name, 0..first.bytes + 1).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::OutOfRange, "{beyond}");
    let objects = ServedObjects::new([one.address()], options.clone()).unwrap();
    let missing = format!("{folder}o/00000000000000099999");
    assert_eq!(objects.size(&missing).unwrap(), None);
    assert_eq!(objects.get(&missing, 0..1).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(objects.list(&format!("{folder}nothing/")).unwrap(), []);

    // Other logs of the same store are out of reach, and so is writing.
    let other = format!("{:032x}/root", one.log.log_id().get() ^ 1);
    vault.put(&other, &["secret".into()]).unwrap();
    for name in [other.as_str(), "root"] {
        assert_eq!(objects.get(name, 0..1).unwrap_err().kind(), ErrorKind::InvalidArgument, "{name}");
        assert_eq!(objects.size(name).unwrap_err().kind(), ErrorKind::InvalidArgument, "{name}");
    }
    for refused in [
        objects.put(&first.name, &["x".into()]).unwrap_err(),
        objects.create(&missing, "x".into()).unwrap_err(),
        objects.delete(&first.name).unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!((vault.size(&first.name).unwrap(), vault.size(&missing).unwrap()), (Some(first.bytes), None));

    let without = ServedObjects::new([plain.address()], options).unwrap();
    let name = format!("{:032x}/root", plain.log.log_id().get());
    let error = without.get(&name, 0..1).unwrap_err();
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
    let named = through_servers().log("orders".to_owned());
    let error = Follower::open(dir.path(), ["127.0.0.1:1"], Start::First, named).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}
