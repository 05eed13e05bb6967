//! Branches that are interrupted while they are made: by failures, by deletions, by those who remove pins.

use crate::place::{Place, check, record, stored, upto};
use crate::support::Wrong;
use crate::support::explore::{Interrupted, whole_or_none};
use chiplog::backup::{Branch, Inventory, Pin};
use chiplog::disk::sim::SimDisk;
use chiplog::vault::{HookedVault, MemoryVault, Vault};
use chiplog::{Error, ErrorKind, Index, Log, LogId};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A copy of an object store.
fn copy_of(vault: &MemoryVault) -> Arc<MemoryVault> {
    let copy = MemoryVault::default();
    for object in vault.list("").unwrap() {
        let bytes = vault.get(&object.name, 0..object.bytes).unwrap();
        copy.put(&object.name, &[bytes]).unwrap();
    }
    Arc::new(copy)
}

/// Makes a branch of `log` with the end `to(n)` for each n, with `act` on the object store before call n of its maker, until all calls are
/// before. `afterwards`: once it is made, before it is opened. Each one is whole, or is not there: then `judge` gets the error. Returns how
/// many were made, and how many were not.
fn at_every_call(
    place: &Place,
    log: LogId,
    to: impl Fn(usize) -> u64,
    act: impl Fn(&MemoryVault) -> chiplog::Result<()> + Send + Sync + 'static,
    afterwards: impl Fn(&MemoryVault),
    judge: impl Fn(&MemoryVault, Option<Error>, &str),
) -> (usize, usize) {
    let act = Arc::new(act);
    let (mut made, mut refused) = (0, 0);
    for nth in 0.. {
        let vault = copy_of(&place.vault);
        let hooked = HookedVault::new(vault.clone());
        let calls = Arc::new(AtomicUsize::new(0));
        let (at, below, act) = (calls.clone(), vault.clone(), act.clone());
        hooked.set(move |_, _| if at.fetch_add(1, Ordering::Relaxed) == nth { act(&below) } else { Ok(()) });
        let (dir, to) = (tempfile::tempdir().unwrap(), to(nth));
        let dir = dir.path().join("branch");
        let branch = Branch::make(&hooked, log, &dir, &upto(to));
        afterwards(&vault);
        if calls.load(Ordering::Relaxed) <= nth {
            break;
        }
        let name = format!("call {nth}, up to {to}");
        match branch {
            Ok(branch) => {
                made += 1;
                let options = place.options().vault(vault.clone() as Arc<dyn Vault>);
                check(&Log::open(&dir, options).unwrap(), branch.first.get(), to, record);
                judge(&vault, None, &name);
            }
            Err(error) => {
                refused += 1;
                assert!(!dir.exists(), "{name}: {error}");
                judge(&vault, Some(error), &name);
            }
        }
    }
    println!("{made} branches were made, {refused} were refused");
    (made, refused)
}

/// Says that all records of a log's objects below `begin` are discarded.
fn discard(vault: &MemoryVault, log: LogId, begin: u64) -> chiplog::Result<()> {
    let folder = format!("{:032x}", log.get());
    let text = format!("chiplog objects\nlog {folder}\nbegin {begin}\n");
    vault.create(&format!("{folder}/begin/{begin:020}"), text.into()).map(drop)
}

fn delete(vault: &MemoryVault, log: LogId) -> chiplog::Result<()> {
    Inventory::take(vault, log)?.delete_unneeded(vault).map(drop)
}

/// A log that a branch was made of has its pin; one of which none was made has none.
fn has_pin(vault: &MemoryVault, log: LogId, error: Option<Error>, name: &str) {
    let pins = Pin::list(vault, log).unwrap();
    assert_eq!(pins.len(), usize::from(error.is_none()), "{name}: {error:?}, {pins:?}");
}

/// The parent deletes what it has discarded, at every call of a branch's maker to the object store. A deletion that has read the pins
/// before the branch's was there, and deletes the objects after the branch is made, is the worst case.
#[test]
fn deletion_by_the_parent_at_every_call_takes_nothing_from_a_branch() {
    let (place, id, objects) = stored();
    let begin = objects - 3;
    // It ends with a record that the parent discards, or with one that it keeps.
    let to = |nth: usize| if nth.is_multiple_of(2) { 1000 } else { 1950 };
    let judge = |vault: &MemoryVault, error: Option<Error>, name: &str| {
        let kinds = [ErrorKind::Discarded, ErrorKind::NotFound, ErrorKind::Busy, ErrorKind::Corrupt];
        assert!(error.iter().all(|error| kinds.contains(&error.kind())), "{name}: {error:?}");
        has_pin(vault, id, error, name);
    };
    let at_once = move |vault: &MemoryVault| discard(vault, id, begin).and_then(|()| delete(vault, id));
    let (made, refused) = at_every_call(&place, id, to, at_once, |_| {}, judge);
    let going = Arc::new(Mutex::new(Vec::new()));
    let gone = going.clone();
    let begins = move |vault: &MemoryVault| {
        discard(vault, id, begin)?;
        let pins = Pin::list(vault, id)?;
        let is_kept = |n: u64| pins.iter().any(|pin| (pin.first_object..=pin.last_object).contains(&n));
        gone.lock().unwrap().extend((0..begin).filter(|n| !is_kept(*n)));
        Ok(())
    };
    let ends = |vault: &MemoryVault| {
        let names = going
            .lock()
            .unwrap()
            .drain(..)
            .map(|n| format!("{:032x}/o/{n:020}", id.get()))
            .collect::<Vec<_>>();
        names.iter().for_each(|name| vault.delete(name).unwrap());
    };
    let (made_late, refused_late) = at_every_call(&place, id, to, begins, ends, judge);
    assert!(made + made_late > 20 && refused + refused_late > 4);
}

/// The branch's pin is removed at every call of its maker to the object store, before the parent deletes what it has discarded.
/// Afterwards there is a whole branch with its pin, or none.
#[test]
fn removal_of_the_pin_at_every_call_takes_nothing_from_a_branch() {
    let (place, id, objects) = stored();
    let removed = Arc::new(AtomicUsize::new(0));
    let count = removed.clone();
    let act = move |vault: &MemoryVault| {
        for pin in Pin::list(vault, id)? {
            count.fetch_add(usize::from(Pin::remove(vault, id, &pin.name).is_ok()), Ordering::Relaxed);
        }
        discard(vault, id, objects - 3)?;
        delete(vault, id)
    };
    let judge = |vault: &MemoryVault, error: Option<Error>, name: &str| has_pin(vault, id, error, name);
    let (made, _) = at_every_call(&place, id, |_| 1950, act, |_| {}, judge);
    assert!(made > 2 && removed.load(Ordering::Relaxed) > 4, "{made} {removed:?}");
}

/// A branch lets go what it has discarded, and its parent deletes it, at every call of the maker of a branch of that branch.
#[test]
fn release_by_a_branch_at_every_call_takes_nothing_from_a_branch_of_it() {
    let (place, id, objects) = stored();
    let middle = Branch::make(&*place.vault, id, place.path("middle"), &upto(1950)).unwrap().log_id;
    // With a record that goes, or with one that stays.
    let to = |nth: usize| if nth.is_multiple_of(2) { 1000 } else { 1700 };
    let act = move |vault: &MemoryVault| {
        discard(vault, middle, objects - 3)?;
        discard(vault, id, objects - 3)?;
        // As the branch's leader: only if no pin of the branch itself needs these objects.
        if Pin::list(vault, middle)?.is_empty() {
            Pin::remove_by_force(vault, id, &format!("branch-{:032x}", middle.get()))?;
        }
        delete(vault, id)
    };
    let judge = |vault: &MemoryVault, error: Option<Error>, name: &str| {
        let left = Pin::list(vault, middle).unwrap();
        assert!(error.is_none() || left.is_empty(), "{name}: {error:?}: {left:?}");
    };
    let (made, refused) = at_every_call(&place, middle, to, act, |_| {}, judge);
    assert!(made > 4 && refused > 4, "{made} {refused}");
}

/// Nothing of a branch goes as long as it cannot be read of which logs it is one.
#[test]
fn branch_that_cannot_be_read_is_not_removed() {
    let (place, id, _) = stored();
    let branch = Branch::make(&*place.vault, id, place.path("branch"), &upto(1950)).unwrap().log_id;
    let name = format!("{:032x}/branch", branch.get());
    let sound = place.vault.get(&name, 0..place.vault.size(&name).unwrap().unwrap()).unwrap();
    place.vault.put(&name, &["damaged".into()]).unwrap();
    let before = place.vault.list("").unwrap();
    let error = Inventory::delete_log(&*place.vault, branch).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(place.vault.list("").unwrap(), before);
    place.vault.put(&name, &[sound]).unwrap();
    Inventory::delete_log(&*place.vault, branch).unwrap();
    assert!(Pin::list(&*place.vault, id).unwrap().is_empty());
}

/// A call to the object store fails, or the maker is killed at it: afterwards there is a whole branch or none, and what is left can be
/// removed by the branch's id.
#[test]
fn failure_at_every_call_to_the_object_store_leaves_the_whole_branch_or_none() {
    let (place, id, _) = stored();
    let before = place.vault.list("").unwrap();
    for is_killed in [false, true] {
        let mut failures = 0;
        for nth in 0.. {
            let vault = copy_of(&place.vault);
            let hooked = HookedVault::new(vault.clone());
            let calls = Arc::new(AtomicUsize::new(0));
            let at = calls.clone();
            hooked.set(move |_, _| {
                let now = at.fetch_add(1, Ordering::Relaxed);
                let fails = if is_killed { now >= nth } else { now == nth };
                if fails { Err(Error::new(ErrorKind::Unavailable, "the store is away")) } else { Ok(()) }
            });
            let dir = place.path(&format!("{is_killed}-{nth}"));
            let made = Branch::make(&hooked, id, &dir, &upto(1000));
            if calls.load(Ordering::Relaxed) <= nth {
                assert!(made.is_ok());
                break;
            }
            failures += 1;
            let error = made.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(!dir.exists(), "{nth}");
            let left = Pin::list(&*vault, id).unwrap();
            if !is_killed {
                assert_eq!(vault.list("").unwrap(), before, "call {nth}");
                continue;
            }
            for pin in left {
                assert!(error.to_string().contains(&pin.name), "{error}");
                // By the branch's id, with all that it has, or by the pin's name.
                let branch = pin.branch().unwrap();
                Inventory::delete_log(&*vault, branch).unwrap();
                match Pin::remove(&*vault, id, &pin.name) {
                    Ok(()) => {}
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
                }
            }
            assert_eq!(vault.list("").unwrap(), before, "call {nth}");
        }
        println!("{failures} calls failed");
        assert!(failures > 15, "{failures}");
    }
}

/// The power is cut, or a call to the disk fails, at every point: afterwards there is the whole branch, or none.
#[test]
fn power_cut_at_every_call_to_the_disk_leaves_the_whole_branch_or_none() {
    let (place, id, _) = stored();
    let make = |disk: &SimDisk| Branch::make_on(&*place.vault, id, Arc::new(disk.clone()), &upto(1000));
    let open = |disk: &SimDisk| {
        let options = place.options().read_mode(chiplog::ReadMode::Read).create(false);
        Log::open_on(Arc::new(disk.clone()), options)
    };
    let judge = |disk: &SimDisk, complete: bool| match open(disk) {
        Ok(log) => {
            let is_whole =
                (1..=1000).step_by(37).all(|n| log.read(Index(n)).is_ok_and(|read| read.data == record(n)));
            let next =
                log.append(b"next").map_err(|e| Wrong(format!("the branch accepts no append: {e}")))?;
            match is_whole && log.first_index() == Index(1) && next == Index(1001) {
                true => Ok(true),
                false => Err(Wrong(format!("a part of the branch opens: {:?}", log.status()))),
            }
        }
        Err(error) if complete => Err(Wrong(format!("the branch was made but does not open: {error}"))),
        Err(_) => Ok(false),
    };
    let Interrupted { none, failures, .. } = whole_or_none("branch", 4, make, judge);
    assert!(none > 10, "both outcomes occur");
    assert!(failures > 5, "{failures}");
}
