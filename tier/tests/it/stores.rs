//! The conformance suite over each store, and what is particular to one.

use crate::s3_server::S3Server;
use bytes::Bytes;
use chiplog::vault::{
    FaultOptions, FaultyVault, MemoryVault, NAME_BYTES_MAX, NAME_PART_BYTES_MAX, ObjectInfo, Vault,
    check_conformance,
};
use chiplog::{ErrorKind, Timestamp};
use chiplog_tier::{ObjectVault, VaultOptions};
use std::fs;
use std::sync::Arc;

fn directory(path: &std::path::Path) -> ObjectVault {
    ObjectVault::open(path.to_str().unwrap(), VaultOptions::default()).unwrap()
}

#[test]
fn memory_conforms() {
    check_conformance(&MemoryVault::default());
}

#[test]
fn directory_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made/with its/parents");
    check_conformance(&directory(&path));
    let url = format!("file://{}", path.display()).replace(' ', "%20");
    check_conformance(&ObjectVault::open(&url, VaultOptions::default()).unwrap());
}

#[test]
fn s3_conforms_with_and_without_a_prefix() {
    let server = S3Server::start();
    check_conformance(&server.vault("s3://bucket"));
    server.vault("s3://bucket").put("clusters/other/o/1", &["x".into()]).unwrap();
    check_conformance(&server.vault("s3://bucket/clusters/blue/"));
}

#[test]
fn s3_conforms_behind_a_wrapper() {
    let server = S3Server::start();
    let vault = Arc::new(server.vault("s3://bucket/p"));
    check_conformance(&FaultyVault::new(vault, 1, FaultOptions::default()));
}

#[test]
fn names_are_without_the_locations_prefix() {
    let server = S3Server::start();
    let vault = server.vault("s3://bucket/a/b");
    assert_eq!(vault.location(), "s3://bucket/a/b");
    vault.put("o/7", &["seven".into()]).unwrap();
    server.vault("s3://bucket/a/bc").put("o/8", &["eight".into()]).unwrap();
    assert!(server.bucket().join("a/b/o/7").exists());
    assert_eq!(vault.list("").unwrap(), [ObjectInfo::new("o/7", 5)]);
    assert_eq!(vault.list("o/").unwrap(), [ObjectInfo::new("o/7", 5)]);
    assert!(vault.modified("o/7").unwrap() > Some(Timestamp(1_700_000_000_000)));
    assert_eq!(vault.modified("o/9").unwrap(), None);
    assert_eq!(server.vault("s3://bucket/a").list("").unwrap().len(), 2);
}

#[test]
fn large_objects_go_up_in_parts_and_small_ones_do_not() {
    let server = S3Server::start();
    let vault = server.vault("s3://bucket/p");
    let bytes = Bytes::from(vec![7; (16 << 20) + 1]);
    vault.put("small", &[bytes.slice(..8 << 20)]).unwrap();
    assert_eq!(server.requests(), ["PUT /bucket/p/small"]);
    vault.put("large", std::slice::from_ref(&bytes)).unwrap();
    let requests = server.requests();
    let with = |text: &str| requests.iter().filter(|line| line.contains(text)).count();
    assert_eq!(
        (with("?uploads"), with("partNumber="), with("POST /bucket/p/large?uploadId=")),
        (1, 3, 1),
        "{requests:?}"
    );
    assert_eq!(vault.size("large").unwrap(), Some((16 << 20) + 1));
    vault.delete("large").unwrap();
    assert_eq!(server.requests()[1..], ["DELETE /bucket/p/large"]);
}

#[test]
fn lists_of_several_pages_are_whole() {
    let server = S3Server::start();
    let vault = server.vault("s3://bucket/p");
    let folder = server.bucket().join("p/o");
    fs::create_dir_all(&folder).unwrap();
    for n in 0..2_345 {
        fs::write(folder.join(format!("{n:05}")), "x").unwrap();
    }
    let found = vault.list("o/").unwrap();
    assert_eq!(found.len(), 2_345);
    assert!(found.is_sorted_by(|a, b| a.name < b.name));
    assert!(server.requests().len() >= 3);
}

#[test]
fn create_of_the_same_bytes_counts_as_made() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    for vault in [server.vault("s3://bucket/p"), directory(dir.path())] {
        assert!(vault.create("root", "log 1".into()).unwrap());
        assert!(vault.create("root", "log 1".into()).unwrap()); // as after a lost answer
        assert!(!vault.create("root", "log 2".into()).unwrap());
        assert!(!vault.create("root", "longer than that".into()).unwrap());
        assert_eq!(vault.get("root", 0..5).unwrap(), &b"log 1"[..]);
    }
}

/// Larger than a part, and in pieces that are cut elsewhere than it is read.
#[test]
fn create_of_pieces_compares_every_byte() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    let bytes: Bytes = (0..20 << 20).map(|i: u32| (i >> 9) as u8).collect();
    let mut other = bytes.to_vec();
    *other.last_mut().unwrap() ^= 1;
    let other = Bytes::from(other);
    let cut = |bytes: &Bytes, at: usize| [bytes.slice(..at), Bytes::new(), bytes.slice(at..)];
    for vault in [server.vault("s3://bucket/p"), directory(dir.path())] {
        for at in [5, 9 << 20, 16 << 20] {
            assert!(vault.create_of("o/1", &cut(&bytes, at)).unwrap()); // as after a lost answer
            assert!(!vault.create_of("o/1", &cut(&other, at)).unwrap());
        }
        assert!(!vault.create("o/1", bytes.slice(1..)).unwrap());
        assert!(vault.get("o/1", 0..20 << 20).unwrap() == bytes);
    }
}

#[test]
fn foreign_files_are_not_listed() {
    let dir = tempfile::tempdir().unwrap();
    let vault = directory(dir.path());
    vault.put("o/7", &["x".into()]).unwrap();
    for name in ["README.TXT", "o/7#1", "o/with blank", "lost+found"] {
        fs::write(dir.path().join(name), "x").unwrap();
    }
    assert_eq!(vault.list("").unwrap(), [ObjectInfo::new("o/7", 1)]);
}

#[test]
fn directory_keeps_its_objects() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path()).put("o/7", &["x".into()]).unwrap();
    assert_eq!(directory(dir.path()).get("o/7", 0..1).unwrap(), &b"x"[..]);
    assert_eq!(fs::read(dir.path().join("o/7")).unwrap(), b"x");
}

#[test]
fn wrong_keys_are_refused() {
    let server = S3Server::start();
    let options = server.options.clone().secret_key("wrong".to_owned());
    let vault = ObjectVault::open("s3://bucket/p", options).unwrap();
    for error in [
        vault.put("o/7", &["x".into()]).unwrap_err(),
        vault.create("o/7", "x".into()).unwrap_err(),
        vault.get("o/7", 0..1).unwrap_err(),
        vault.size("o/7").unwrap_err(),
        vault.list("").unwrap_err(),
        vault.delete("o/7").unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("s3://bucket/p"), "{error}");
    }
}

/// Other calls: `faults::refusals_have_their_kinds`. This server makes a bucket that an object is put into.
#[test]
fn missing_bucket_is_no_empty_bucket() {
    let server = S3Server::start();
    let error = server.vault("s3://nowhere/p").list("").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("make the bucket"), "{error}");
}

/// The S3 server here answers 500 to that, because it keeps objects in directories, too.
#[test]
fn folders_are_no_objects() {
    let dir = tempfile::tempdir().unwrap();
    let vaults: [&dyn Vault; 2] = [&directory(dir.path()), &MemoryVault::default()];
    for vault in vaults {
        vault.put("o/a/1", &["x".into()]).unwrap();
        for folder in ["o", "o/a"] {
            assert_eq!(vault.size(folder).unwrap(), None);
            assert_eq!(vault.get(folder, 0..1).unwrap_err().kind(), ErrorKind::NotFound);
        }
    }
}

#[test]
fn directory_keeps_the_longest_names() {
    let dir = tempfile::tempdir().unwrap();
    let vault = directory(dir.path());
    let name = ["p".repeat(NAME_PART_BYTES_MAX), "q".repeat(NAME_PART_BYTES_MAX), "r".repeat(110)].join("/");
    assert_eq!(name.len(), NAME_BYTES_MAX);
    vault.put(&name, &["x".into()]).unwrap();
    assert_eq!(vault.get(&name, 0..1).unwrap(), &b"x"[..]);
}
