//! An object store with objects of two histories of one log, and one with objects that a discard has parted.

use crate::place::{Place, SEGMENT, append, check, eventually, record, record_of};
use bytes::Bytes;
use chiplog::backup::{Backup, Branch, BranchOptions, Pin};
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{ErrorKind, Index, Log, LogId, Options};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The objects of a log, by their names.
fn objects(vault: &MemoryVault, log: LogId) -> BTreeMap<String, Bytes> {
    let all = vault.list(&format!("{:032x}/o/", log.get())).unwrap();
    all.into_iter()
        .map(|object| (object.name.clone(), vault.get(&object.name, 0..object.bytes).unwrap()))
        .collect()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// One object of another history lies among those of a log. It does not continue the one before, and that one is not discarded: the
/// log was made of the objects behind it alone, without a word.
#[test]
fn object_of_another_history_is_no_discard() {
    let place = Place::new();
    let parent = place.parent();
    let id = parent.log_id();
    parent.close().unwrap();
    let common = place.objects(id).len() as u64;
    copy(&place.path("parent"), &place.path("other"));
    let goes_on = |name: &str, record: &dyn Fn(u64) -> Vec<u8>| {
        let log = place.open(name);
        append(&log, 1000, record);
        place.store(&log);
        log.close().unwrap();
        objects(&place.vault, id)
    };
    let right = goes_on("parent", &record);
    right.keys().skip(common as usize).for_each(|name| place.vault.delete(name).unwrap());
    let wrong = goes_on("other", &|n| [record_of(1, n), record(n)].concat());
    let restore = || {
        wrong.keys().for_each(|name| place.vault.delete(name).unwrap());
        right.iter().for_each(|(name, bytes)| place.vault.put(name, std::slice::from_ref(bytes)).unwrap());
    };
    restore();
    check(&place.fetched(id, "whole"), 1, 3000, record);
    Pin::make(&*place.vault, id, "all", None).unwrap();

    let last = right.len() as u64 - 1;
    for middle in common + 1..last {
        let [before, other, behind] =
            [middle - 1, middle, middle + 1].map(|number| format!("{:032x}/o/{number:020}", id.get()));
        place.vault.put(&other, std::slice::from_ref(&wrong[&other])).unwrap();
        let dir = place.path("none");
        let fetched = Backup::fetch(&*place.vault, id, &dir, &mut |_, _| {});
        let pinned = Backup::fetch_pin(&*place.vault, id, "all", &dir, &mut |_, _| {});
        let mut results = vec![fetched.map(drop), pinned.map(drop)];
        // A branch reads only the object with its end, and how the one before that ends.
        if middle + 1 == last {
            results.push(Branch::make(&*place.vault, id, &dir, &BranchOptions::default()).map(drop));
        }
        for result in results {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            let names = |name: &str| error.to_string().contains(name);
            assert!(names(&other) && (names(&before) || names(&behind)), "{error}");
        }
        assert!(!dir.exists());
        restore();
    }
}

/// Records go before they are in an object. The next object does not continue the one before, and the store says that this one is discarded.
#[test]
fn objects_behind_a_discard_need_none_before_it() {
    let place = Place::new();
    let parent = place.parent();
    let id = parent.log_id();
    let parted = place.objects(id).len() as u64;
    parent.close().unwrap();
    let log = Log::open(place.path("parent"), Options::with_segment_bytes(SEGMENT)).unwrap();
    append(&log, 1000, record);
    log.discard(Index(2500)).unwrap();
    log.close().unwrap();
    // A pin keeps the objects before it.
    Pin::make(&*place.vault, id, "early", None).unwrap();
    let log = place.open("parent");
    append(&log, 500, record);
    place.store(&log);
    log.close().unwrap();
    eventually("both are there", || place.objects(id).len() as u64 > parted + 1);
    let check_fetched = |name: &str| {
        let fetched = place.fetched(id, name);
        assert!(fetched.first_index() > Index(2000) && fetched.first_index() <= Index(2500));
        assert_eq!(fetched.last_index(), Index(3500));
        assert_eq!(fetched.read(Index(2500)).unwrap().data, record(2500));
    };
    check_fetched("now");
    let branch = Branch::make(&*place.vault, id, place.path("branch"), &BranchOptions::default()).unwrap();
    assert!(branch.first > Index(2000) && branch.last == Index(3500), "{branch:?}");
    // All of it is discarded: then the objects say only how far it was, those before the discard among them.
    let newest = *place.objects(id).last().unwrap();
    let begin = format!("{:032x}/begin/{:020}", id.get(), newest + 1);
    place.vault.create(&begin, Bytes::from_static(b"begin")).unwrap();
    assert_eq!(place.objects(id).len() as u64, newest + 1);
    check_fetched("all");
}
