//! `chiplog tier gc`: what nothing needs in an object store, and its deletion.
//!
//! Invariant: what is not known to be unneeded stays.

use super::half_written::HalfWritten;
use super::named::{Place, Places, others};
use super::objects::logs;
use super::payloads::Payloads;
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::Ui;
use chiplog::backup::{ClusterPins, Inventory};
use chiplog::internal::time_name;
use chiplog::vault::Vault;
use chiplog::{ErrorKind, LogId, Options, Timestamp};
use chiplog_net::wire::ids::to_hex;
use serde::Serialize;
use std::fmt::Write as _;

/// The user's choice.
pub(super) struct Wanted {
    pub(super) log: Option<LogId>,
    /// Delete; otherwise only list.
    pub(super) delete: bool,
    /// Everything of the log.
    pub(super) all: bool,
    /// Discarded records stay this many seconds.
    pub(super) after: u64,
}

/// A log as it is shown.
#[derive(Serialize)]
struct Shown {
    log_id: String,
    #[serde(flatten)]
    place: Place,
    begin: u64,
    begin_age_seconds: Option<u64>,
    needed_objects: u64,
    needed_bytes: u64,
    pins: Vec<String>,
    pinned_objects: u64,
    pinned_bytes: u64,
    unneeded_objects: u64,
    unneeded_bytes: u64,
    due_objects: u64,
    due_bytes: u64,
    slices: u64,
    slice_bytes: u64,
    #[serde(flatten)]
    payloads: Payloads,
    old_begins: u64,
    half_written: u64,
    unknown: u64,
    due: bool,
    deleted: u64,
    deleted_payloads: u64,
}

impl Shown {
    fn words(&self, wanted: &Wanted) -> String {
        let mut out = format!("log {}{}:\n", self.log_id, self.place.words());
        let objects =
            |count, bytes| format!("{}, {}", format::many(count, "object", "objects"), format::bytes(bytes));
        if wanted.all {
            let there = objects(
                self.needed_objects + self.pinned_objects + self.unneeded_objects,
                self.needed_bytes + self.pinned_bytes + self.unneeded_bytes,
            );
            let (slices, bytes) = self.payloads.with_slices(self.slices, self.slice_bytes);
            let there = match slices {
                0 => there,
                _ => format!(
                    "{there}, and {}, {}",
                    format::many(slices, "slice", "slices"),
                    format::bytes(bytes)
                ),
            };
            _ = match wanted.delete {
                true => writeln!(out, "  deleted, with all that it had there: {there}"),
                false => writeln!(out, "  would be deleted, with all that it has there: {there}"),
            };
            return out;
        }
        let needed = objects(self.needed_objects, self.needed_bytes);
        if self.needed_objects > 0 || self.slices == 0 {
            _ = writeln!(out, "  kept: {needed}: the log is made of them");
        }
        if self.slices > 0 {
            let slices = format::many(self.slices, "slice", "slices");
            let bytes = format::bytes(self.slice_bytes);
            _ = writeln!(out, "  kept: {slices}, {bytes}: its newest records");
        }
        if self.pinned_objects > 0 {
            let kept = objects(self.pinned_objects, self.pinned_bytes);
            _ = writeln!(out, "  kept: {kept}, of discarded records: under pins ({})", self.pins.join(", "));
        }
        let fate = if wanted.delete { "deleted" } else { "can be deleted with --delete" };
        out += &self.payloads.words("kept: ", fate);
        if self.unknown > 0 {
            let unknown = format::many(self.unknown, "object", "objects");
            _ = writeln!(out, "  kept: {unknown} that this version does not know");
        }
        if self.due_objects > 0 {
            let due = objects(self.due_objects, self.due_bytes);
            let what = if self.deleted > 0 { "deleted" } else { "can be deleted with --delete" };
            _ = writeln!(out, "  not needed: {due}: {what}");
        }
        let (others, bytes) =
            (self.unneeded_objects - self.due_objects, self.unneeded_bytes - self.due_bytes);
        if others > 0 {
            let others = objects(others, bytes);
            let why = match self.begin_age_seconds {
                Some(age) => format!("discarded {} ago; --after has the delay", format::span(age)),
                None => "the store does not say when they were discarded; --after 0 deletes them".to_owned(),
            };
            _ = writeln!(out, "  not needed: {others}: kept: {why}");
        }
        if self.old_begins + self.half_written > 0 {
            let small = self.old_begins + self.half_written;
            _ = writeln!(
                out,
                "  not needed: {}",
                format::many(small, "small or half-written file", "small or half-written files")
            );
        }
        if self.unneeded_objects + self.old_begins + self.half_written + self.payloads.unneeded() == 0 {
            out += "  nothing to remove\n";
        }
        out
    }
}

pub(super) fn run(vault: &dyn Vault, half_written: &HalfWritten, wanted: &Wanted, ui: &Ui) -> Result<Exit> {
    let found = logs(vault, wanted.log)?;
    if let Some(log) = wanted.log.filter(|_| found.is_empty()) {
        let what = format!("log {} has no objects there", to_hex(log.get()));
        return Err(Failure::new(ErrorKind::NotFound, what));
    }
    if found.is_empty() {
        ui.note("no log has objects there");
    }
    let places = Places::of_one(vault, wanted.log, &found);
    let mut first_failure = None;
    for log in found.into_keys().map(LogId) {
        match collect(vault, half_written, log, wanted, places.get(log)) {
            Ok(shown) => ui.result(&shown, |shown| shown.words(wanted))?,
            // A failure of one log must not keep others from freeing room.
            Err(failure) if first_failure.is_none() => first_failure = Some(failure),
            Err(failure) => ui.warn(&failure.at(&format!("log {}", to_hex(log.get()))).to_string()),
        }
    }
    first_failure.map_or(Ok(Exit::Ok), Err)
}

fn collect(
    vault: &dyn Vault,
    half_written: &HalfWritten,
    log: LogId,
    wanted: &Wanted,
    place: Place,
) -> Result<Shown> {
    let there = Inventory::take(vault, log)?;
    if wanted.all && !there.pins.is_empty() {
        let what = format!(
            "log {} has pins: remove them first, with `chiplog tier unpin`: {}",
            to_hex(log.get()),
            there.pins.iter().map(|pin| &*pin.name).collect::<Vec<_>>().join(", ")
        );
        return Err(Failure::new(ErrorKind::Busy, what));
    }
    let sets = if wanted.all { ClusterPins::names(vault, log)? } else { Vec::new() };
    if !sets.is_empty() {
        let what = format!(
            "log {} is the default log of backups of a cluster: remove them first, with `chiplog tier unpin`: {}",
            to_hex(log.get()),
            sets.join(", ")
        );
        return Err(Failure::new(ErrorKind::Busy, what));
    }
    let others = if wanted.all { others(vault, log)? } else { Vec::new() };
    if !others.is_empty() {
        let shown = |(role, id): &(String, LogId)| format!("{} ({role})", to_hex(id.get()));
        let what = format!(
            "log {} is the default log of a cluster, and its list alone says which logs the others are: remove those first, each with \
             `chiplog tier gc --log-id ID --all --delete`, and this one at last: {}",
            to_hex(log.get()),
            others.iter().map(shown).collect::<Vec<_>>().join(", ")
        );
        return Err(Failure::new(ErrorKind::Busy, what));
    }
    let here = Options::default().clock.now();
    let (mut deleted, mut deleted_payloads) = (0, 0);
    // A log that is removed whole writes nothing more: its half-written files go at any age.
    let after = if wanted.all { 0 } else { wanted.after };
    // A store that is only looked at is not written to. Of a branch pins in its ancestors can go, too.
    let has_old = (!wanted.all && there.begin > 0) || !half_written.of(log, 0, here)?.is_empty();
    let now = match wanted.delete && after > 0 && has_old {
        true => time_of_store(vault, log)?,
        false => Some(here),
    };
    let age = there.begin_made.zip(now).map(|(made, now)| now.0.saturating_sub(made.0) / 1000);
    let due = match now.and_then(|now| now.0.checked_sub(after.saturating_mul(1000))) {
        _ if after == 0 => Some(there.begin).filter(|begin| *begin > 0),
        Some(by) => there.begin_made_by(vault, Timestamp(by))?,
        None => None,
    };
    let of_due = there.unneeded_below(due.unwrap_or(0));
    let left = now.map_or_else(|| Ok(Vec::new()), |now| half_written.of(log, after, now))?;
    if wanted.delete && wanted.all {
        deleted = Inventory::delete_log(vault, log)?;
    } else if let Some(begin) = due.filter(|_| wanted.delete) {
        deleted = there.delete_unneeded_below(vault, begin)?;
    }
    if wanted.delete {
        half_written.remove(&left)?;
    }
    // The last thing: it can be refused.
    if wanted.delete && !wanted.all && there.unneeded_payloads.objects > 0 {
        deleted_payloads = there.delete_unneeded_payloads(vault)?;
    }
    Ok(Shown {
        log_id: to_hex(log.get()),
        place,
        begin: there.begin,
        begin_age_seconds: age,
        needed_objects: there.needed.objects,
        needed_bytes: there.needed.bytes,
        pins: there.pins.iter().map(|pin| pin.name.clone()).collect(),
        pinned_objects: there.pinned.objects,
        pinned_bytes: there.pinned.bytes,
        unneeded_objects: there.unneeded.objects,
        unneeded_bytes: there.unneeded.bytes,
        due_objects: of_due.objects,
        due_bytes: of_due.bytes,
        slices: there.slices.objects,
        slice_bytes: there.slices.bytes,
        payloads: Payloads::new(&there),
        old_begins: there.old_begins,
        half_written: left.len() as u64,
        unknown: there.unknown.objects,
        due: due.is_some(),
        deleted,
        deleted_payloads,
    })
}

/// The time of the store, which it gives to an object that is written now, and removed again: the clock here may be another one, and what
/// is deleted too early is lost. None: it does not say.
fn time_of_store(vault: &dyn Vault, log: LogId) -> Result<Option<Timestamp>> {
    let name = time_name(log);
    // Without a byte it can be written on a full disk, too.
    vault.put(&name, &[])?;
    let now = vault.modified(&name);
    vault.delete(&name)?;
    Ok(now?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::Error;
    use chiplog::vault::{HookedVault, MemoryVault};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Discarded objects stay for the time of `--after`, however wrong the clock here is.
    #[test]
    fn delay_is_counted_by_the_clock_of_the_store() {
        let (vault, id) = (HookedVault::new(Arc::new(MemoryVault::default())), to_hex(7));
        // For the clock here that is long ago.
        let now = Arc::new(AtomicU64::new(1_000_000));
        vault.set_time(now.clone());
        let put = |name: &str| vault.put(&format!("{id}/{name}"), &["x".into()]).unwrap();
        ["root", "o/00000000000000000000", "o/00000000000000000001", "begin/00000000000000000001"]
            .into_iter()
            .for_each(put);
        let run = |delete| {
            let wanted = Wanted { log: Some(LogId(7)), delete, all: false, after: 3600 };
            run(&vault, &HalfWritten::at("memory"), &wanted, &Ui::new(true, true, false)).unwrap();
            vault.list("").unwrap().len()
        };
        assert_eq!((run(true), run(false)), (4, 4));
        now.fetch_add(3_599_000, Ordering::Relaxed);
        assert_eq!(run(true), 4);
        now.fetch_add(1_000, Ordering::Relaxed);
        assert_eq!((run(false), run(true)), (4, 3));
        assert!(vault.list("").unwrap().iter().all(|object| !object.name.ends_with("time")));
    }

    /// Servers that may not delete leave every begin. A log that discards more often than `--after` kept all of its objects.
    #[test]
    fn older_begins_say_what_was_discarded_long_ago() {
        let (vault, id) = (HookedVault::new(Arc::new(MemoryVault::default())), to_hex(7));
        let now = Arc::new(AtomicU64::new(1_000_000));
        vault.set_time(now.clone());
        let put = |name: &str| vault.put(&format!("{id}/{name}"), &["x".into()]).unwrap();
        (0..7).for_each(|number| put(&format!("o/{number:020}")));
        for begin in 1..=6 {
            put(&format!("begin/{begin:020}"));
            now.fetch_add(1_000_000, Ordering::Relaxed);
        }
        let wanted = Wanted { log: Some(LogId(7)), delete: true, all: false, after: 3600 };
        let left = |folder: &str| {
            let found = vault.list(&format!("{id}/{folder}/")).unwrap();
            found.iter().map(|at| at.name[at.name.len() - 1..].to_owned()).collect::<String>()
        };
        let half_written = HalfWritten::at("memory");
        let shown = collect(&vault, &half_written, LogId(7), &wanted, Place::default()).unwrap();
        // The third one is 4,000 s old, and the highest one 1,000 s.
        assert_eq!((shown.unneeded_objects, shown.due_objects, shown.deleted), (6, 3, 3));
        assert_eq!((left("o"), left("begin")), ("3456".to_owned(), "3456".to_owned()));
        let words = shown.words(&wanted);
        assert!(
            words.contains("3 objects, 3 B: deleted") && words.contains("3 objects, 3 B: kept"),
            "{words}"
        );
        now.fetch_add(10_000_000, Ordering::Relaxed);
        run(&vault, &half_written, &wanted, &Ui::new(true, true, false)).unwrap();
        assert_eq!((left("o"), left("begin")), ("6".to_owned(), "6".to_owned()));
    }

    /// A failure of one log left all logs behind it as they were.
    #[test]
    fn failure_of_one_log_stops_no_other() {
        let vault = HookedVault::new(Arc::new(MemoryVault::default()));
        for log in [7, 8, 9] {
            let put = |name: &str| vault.put(&format!("{}/{name}", to_hex(log)), &["x".into()]).unwrap();
            ["root", "o/00000000000000000000", "begin/00000000000000000001"].into_iter().for_each(put);
        }
        vault.set(|call, name| match call == "delete" && !name.starts_with(&to_hex(9)) {
            true => Err(Error::new(ErrorKind::PermissionDenied, name)),
            false => Ok(()),
        });
        let wanted = Wanted { log: None, delete: true, all: false, after: 0 };
        let failure =
            run(&vault, &HalfWritten::at("memory"), &wanted, &Ui::new(true, true, false)).unwrap_err();
        assert_eq!(failure.kind(), ErrorKind::PermissionDenied);
        assert!(failure.to_string().starts_with(&to_hex(7)), "{failure}");
        let left = |log| vault.list(&format!("{}/o/", to_hex(log))).unwrap().len();
        assert_eq!([7, 8, 9].map(left), [1, 1, 0]);
    }

    /// They stayed if they were younger than the delay of another command, and no later one found the log.
    #[test]
    fn half_written_files_go_with_the_log() {
        let (dir, vault) = (tempfile::tempdir().unwrap(), MemoryVault::default());
        vault.put(&format!("{}/root", to_hex(7)), &["x".into()]).unwrap();
        let folder = dir.path().join(to_hex(7)).join("o");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("00000000000000000000#3"), "half").unwrap();
        let wanted = Wanted { log: Some(LogId(7)), delete: true, all: true, after: 86_400 };
        let half_written = HalfWritten::at(&dir.path().display().to_string());
        run(&vault, &half_written, &wanted, &Ui::new(true, true, false)).unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    }

    /// Payload that a server has put after `root` was gone can be removed, too.
    #[test]
    fn rest_of_a_removed_log_is_removed() {
        let vault = MemoryVault::default();
        vault.put(&format!("{}/p/{:020}.{:020}", to_hex(7), 0, 1), &["payload".into()]).unwrap();
        let ui = Ui::new(true, true, false);
        let run = |log, delete| {
            let wanted = Wanted { log: Some(LogId(log)), delete, all: true, after: 0 };
            run(&vault, &HalfWritten::at("memory"), &wanted, &ui)
        };
        assert!(run(8, true).is_err());
        assert!(run(7, false).is_ok());
        assert_eq!(vault.list("").unwrap().len(), 1);
        assert!(run(7, true).is_ok());
        assert!(vault.list("").unwrap().is_empty());
        assert!(run(7, true).is_err());
    }
}
