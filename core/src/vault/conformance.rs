//! One test over any vault: all that the documentation of `Vault` promises.
//!
//! Must not know: which vault it tests.

#![allow(clippy::unwrap_used, reason = "a test")]

use super::{NAME_BYTES_MAX, NAME_PART_BYTES_MAX, ObjectInfo, Vault};
use crate::error::{Error, ErrorKind, Result};
use bytes::Bytes;
use std::fmt::Debug;

/// Bytes above the size that stores take in one request: they go up in parts.
const LARGE_BYTES: usize = (20 << 20) + 4_321;

/// Checks that an empty vault does what the documentation of [`Vault`] says: sizes up to 20 MiB, ranges, names, lists, and errors.
/// Leaves the vault empty. For tests of implementations; blocks as the vault does.
///
/// # Panics
/// The vault does something else.
///
/// ```
/// chiplog::vault::check_conformance(&chiplog::vault::MemoryVault::default());
/// ```
pub fn check_conformance(vault: &dyn Vault) {
    assert_eq!(vault.list("").unwrap(), []);
    puts_replace_objects(vault);
    creates_replace_none(vault);
    gets_return_exact_ranges(vault);
    large_objects_are_whole(vault);
    lists_are_sorted_and_recursive(vault);
    impossible_arguments_are_refused(vault);
    assert_eq!(vault.list("").unwrap(), []);
}

fn puts_replace_objects(vault: &dyn Vault) {
    assert_eq!(vault.size("a").unwrap(), None);
    vault.put("a", &[]).unwrap();
    assert_eq!(vault.size("a").unwrap(), Some(0));
    vault.put("a", &["one".into(), Bytes::new(), " and two".into()]).unwrap();
    assert_eq!(vault.size("a").unwrap(), Some(11));
    assert_eq!(vault.get("a", 0..11).unwrap(), &b"one and two"[..]);
    vault.put("a", &["short".into()]).unwrap();
    assert_eq!(vault.get("a", 0..5).unwrap(), &b"short"[..]);
    assert_eq!(vault.size("a").unwrap(), Some(5));
    vault.delete("a").unwrap();
    assert_eq!(vault.size("a").unwrap(), None);
    vault.delete("a").unwrap();
}

fn creates_replace_none(vault: &dyn Vault) {
    assert!(vault.create("deep/er/root", "first".into()).unwrap());
    assert!(!vault.create("deep/er/root", "second".into()).unwrap());
    assert!(!vault.create("deep/er/root", "other".into()).unwrap());
    assert_eq!(vault.get("deep/er/root", 0..5).unwrap(), &b"first"[..]);
    assert!(vault.create("empty", Bytes::new()).unwrap());
    assert!(!vault.create("empty", "full".into()).unwrap());
    for name in ["deep/er/root", "empty"] {
        vault.delete(name).unwrap();
    }
    assert!(vault.create("empty", "full".into()).unwrap());
    vault.delete("empty").unwrap();
    assert!(vault.create_of("pieces", &["of ".into(), "several".into()]).unwrap());
    assert!(!vault.create_of("pieces", &["of ".into(), "another".into()]).unwrap());
    assert!(!vault.create_of("pieces", &["of ".into(), "several".into(), " more".into()]).unwrap());
    assert_eq!(vault.get("pieces", 0..10).unwrap(), &b"of several"[..]);
    vault.delete("pieces").unwrap();
    assert!(vault.create_of("pieces", &[]).unwrap());
    assert_eq!(vault.size("pieces").unwrap(), Some(0));
    vault.delete("pieces").unwrap();
}

fn gets_return_exact_ranges(vault: &dyn Vault) {
    vault.put("o/7", &["0123456789".into()]).unwrap();
    assert_eq!(vault.get("o/7", 0..10).unwrap(), &b"0123456789"[..]);
    assert_eq!(vault.get("o/7", 3..7).unwrap(), &b"3456"[..]);
    assert_eq!(vault.get("o/7", 9..10).unwrap(), &b"9"[..]);
    for at in [0, 4, 10] {
        assert_eq!(vault.get("o/7", at..at).unwrap(), Bytes::new());
    }
    for range in [0..11, 9..11, 10..11, 11..12, 11..11, 0..u64::MAX] {
        fails(vault.get("o/7", range.clone()), ErrorKind::OutOfRange);
        fails(vault.get_pieces("o/7", range, &mut |_| Ok(())), ErrorKind::OutOfRange);
    }
    for range in [0..0, 0..1, 5..5] {
        fails(vault.get("o/8", range.clone()), ErrorKind::NotFound);
        fails(vault.get_pieces("o/8", range, &mut |_| Ok(())), ErrorKind::NotFound);
    }
    vault.delete("o/7").unwrap();
    fails(vault.get("o/7", 0..1), ErrorKind::NotFound);
}

fn large_objects_are_whole(vault: &dyn Vault) {
    let bytes: Bytes = (0..LARGE_BYTES).map(|i| (i / 251 + i) as u8).collect();
    // Pieces of many sizes, none of which divides a part of an upload.
    let mut pieces = Vec::new();
    let mut at = 0;
    for n in 1.. {
        let end = (at + n * 99_991).min(bytes.len());
        pieces.push(bytes.slice(at..end));
        at = end;
        if at == bytes.len() {
            break;
        }
    }
    vault.put("large", &["replaced".into()]).unwrap();
    vault.put("large", &pieces).unwrap();
    assert_eq!(vault.size("large").unwrap(), Some(LARGE_BYTES as u64));
    assert!(vault.get("large", 0..LARGE_BYTES as u64).unwrap() == bytes);
    let middle = (8 << 20) - 7..(16 << 20) + 9;
    let part = vault.get("large", middle.start as u64..middle.end as u64).unwrap();
    assert!(part == bytes.slice(middle.clone()));
    let mut pieces = Vec::new();
    let mut take = |piece: Bytes| {
        pieces.extend_from_slice(&piece);
        Ok(())
    };
    vault.get_pieces("large", middle.start as u64..middle.end as u64, &mut take).unwrap();
    assert!(pieces == bytes[middle]);
    let mut count = 0;
    let mut refuse = |_| {
        count += 1;
        Err(Error::new(ErrorKind::Full, "no room"))
    };
    fails(vault.get_pieces("large", 0..LARGE_BYTES as u64, &mut refuse), ErrorKind::Full);
    assert_eq!(count, 1);
    vault.delete("large").unwrap();
}

fn lists_are_sorted_and_recursive(vault: &dyn Vault) {
    let names = ["i/0", "o/a/1.x", "o/a/10", "o/a/2", "o/a-b", "o/b_c", "oo/1", "root"];
    for name in names.iter().rev() {
        vault.put(name, &[(*name).into()]).unwrap();
    }
    let infos = |names: &[&str]| {
        let mut names = names.to_vec();
        names.sort_unstable();
        names.iter().map(|name| ObjectInfo::new(*name, name.len() as u64)).collect::<Vec<_>>()
    };
    assert_eq!(vault.list("").unwrap(), infos(&names));
    assert_eq!(vault.list("o/").unwrap(), infos(&names[1..6]));
    assert_eq!(vault.list("o/a/").unwrap(), infos(&names[1..4]));
    assert_eq!(vault.list("nothing/here/").unwrap(), []);
    for name in names {
        vault.delete(name).unwrap();
    }
}

fn impossible_arguments_are_refused(vault: &dyn Vault) {
    let long = "long/".repeat(NAME_BYTES_MAX / 5) + "name";
    let long_part = "n".repeat(NAME_PART_BYTES_MAX + 1);
    for name in [
        "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "A", "a b", "a%20b", "a#1", "ä", &long,
        &long_part,
    ] {
        fails(vault.put(name, &[]), ErrorKind::InvalidArgument);
        fails(vault.create(name, Bytes::new()), ErrorKind::InvalidArgument);
        fails(vault.get(name, 0..1), ErrorKind::InvalidArgument);
        fails(vault.size(name), ErrorKind::InvalidArgument);
        fails(vault.delete(name), ErrorKind::InvalidArgument);
    }
    for prefix in ["o", "/", "o//", "../", "O/"] {
        fails(vault.list(prefix), ErrorKind::InvalidArgument);
    }
    let (start, end) = (2, 1);
    fails(vault.get("a", start..end), ErrorKind::InvalidArgument);
    // A log's names have less than 100 bytes.
    let long = ["id".repeat(16), "o".into(), "7".repeat(60)].join("/");
    vault.put(&long, &["x".into()]).unwrap();
    assert_eq!(vault.list("").unwrap(), [ObjectInfo::new(&long, 1)]);
    vault.delete(&long).unwrap();
}

fn fails<T: Debug>(result: Result<T>, kind: ErrorKind) {
    assert_eq!(result.unwrap_err().kind(), kind);
}
