//! `chiplog tier verify`: downloads every object and checks every byte.
//!
//! An object is a sealed segment file (docs/format.md, section 18), so the inspector of segments reads it, one at a time in a
//! temporary directory. Two things that it cannot see are checked here: the objects are those of the log, and continue each other.

use super::named;
use super::objects::{Listed, Part, logs};
use super::payloads::tail_words;
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::{Ui, print};
use crate::common::scratch::Scratch;
use chiplog::backup::{Backup, Pin};
use chiplog::inspect::{Block, Content, Event, Inspector, Report, SegmentState, Severity};
use chiplog::internal::{object_name, root_name, root_text};
use chiplog::vault::Vault;
use chiplog::{EntryIndex, ErrorKind, Index, LogId, Term};
use chiplog_net::wire::ids::to_hex;
use indicatif::ProgressBar;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

/// How much is downloaded in one request.
const PIECE_BYTES: u64 = 8 << 20;
/// How many faults of a log are listed; further ones are only counted.
const FAULTS_SHOWN_MAX: usize = 10_000;
/// An object whose records are log by log begins with these bytes.
const SORTED_MAGIC: &[u8; 8] = b"CHIPSORT";
/// The file that a temporary directory lacks: the inspector misses it.
const IDENTITY_FILE: &str = "chiplog.id";

#[derive(Serialize)]
struct Fault {
    object: Option<u64>,
    offset: u64,
    bytes: u64,
    severity: &'static str,
    what: String,
}

/// The result for one log.
#[derive(Serialize)]
struct Checked {
    log_id: String,
    objects: u64,
    first_object: Option<u64>,
    last_object: Option<u64>,
    records: u64,
    bytes: u64,
    first: Option<u64>,
    last: Option<u64>,
    slices: u64,
    slice_bytes: u64,
    slices_used: u64,
    sliced_last: Option<u64>,
    tail_records: u64,
    tail_bytes: u64,
    corrupt: u64,
    harmless: u64,
    undecodable: u64,
    faults: Vec<Fault>,
    faults_left_out: u64,
    branch_of: Vec<Part>,
}

/// A log that cannot be checked where the command looks.
#[derive(Serialize)]
struct NotChecked {
    log_id: String,
    why: String,
}

#[derive(Serialize)]
struct Verified {
    ok: bool,
    seconds: f64,
    not_checked: Vec<NotChecked>,
    logs: Vec<Checked>,
}

impl Verified {
    /// The end of the report. The faults were printed when they were found.
    fn words(&self) -> String {
        let mut out = String::new();
        for log in &self.logs {
            for part in &log.branch_of {
                _ = writeln!(
                    out,
                    "log {} is a branch, and reads {}, which are checked with that log",
                    log.log_id,
                    part.words()
                );
            }
            let range = match (log.first, log.last) {
                (Some(first), Some(last)) => format!(", index {first} to {last}"),
                _ => String::new(),
            };
            let objects = match (log.first_object, log.last_object) {
                (Some(first), Some(last)) => format!(" (number {first} to {last})"),
                _ => String::new(),
            };
            _ = writeln!(
                out,
                "{}: log {}: {} in {}{objects}, {}{range}",
                if log.corrupt == 0 { "sound" } else { "CORRUPT" },
                log.log_id,
                format::many(log.records, "record", "records"),
                format::many(log.objects, "object", "objects"),
                format::bytes(log.bytes),
            );
            if log.slices > 0 {
                let upto = log.sliced_last.map_or(String::new(), |last| format!(" up to index {last}"));
                _ = writeln!(
                    out,
                    "{} behind them, {}: {} lead on{upto}",
                    format::many(log.slices, "slice", "slices"),
                    format::bytes(log.slice_bytes),
                    format::count(log.slices_used),
                );
            }
            if log.tail_records > 0 {
                out += &tail_words(log.tail_records, log.tail_bytes);
            }
            if log.corrupt > 0 {
                _ = writeln!(
                    out,
                    "{}: a server that has these records on its disk can store the objects again, but its files go as the log grows until it knows of the damage. Restart the servers now without local_bytes and local_age_seconds, and with object_scrub_seconds=600, then verify again: `chiplog tier verify --help` says more",
                    format::many(log.corrupt, "fault", "faults")
                );
            }
        }
        for NotChecked { log_id, why } in &self.not_checked {
            _ = writeln!(out, "NOT CHECKED: log {log_id}: {why}");
        }
        let bytes = self.logs.iter().map(|log| log.bytes).sum();
        let time = Duration::from_secs_f64(self.seconds);
        let rate = format::bytes(format::rate(bytes, time) as u64);
        _ = writeln!(out, "read {} in {}, {rate}/s", format::bytes(bytes), format::duration(time));
        out
    }
}

pub(super) fn run(vault: &dyn Vault, only: Option<LogId>, ui: &Ui) -> Result<Exit> {
    let started = Instant::now();
    let found = logs(vault, only)?;
    if found.is_empty() {
        let which = only.map_or("no log has".to_owned(), |log| format!("log {} has no", to_hex(log.get())));
        let what = format!("{which} objects there: `chiplog tier list` shows the logs of a location");
        return Err(Failure::new(ErrorKind::NotFound, what));
    }
    let bar = ui.progress(Some(found.values().map(|log| log.bytes() + log.slices.1).sum()), "verifying");
    let scratch = Scratch::make(&std::env::temp_dir(), "chiplog-tier-")?;
    let checking =
        |(log, listed): (&u128, &Listed)| Check::new(vault, *log, scratch.dir(), &bar, ui).run(listed);
    let is_served = |found: &(&u128, &Listed)| found.1.refused().is_none();
    let logs = found.iter().filter(is_served).map(checking).collect::<Result<Vec<_>>>()?;
    let not_checked: Vec<_> = found
        .iter()
        .filter_map(|(log, listed)| {
            Some(NotChecked { log_id: to_hex(*log), why: listed.refused()?.to_owned() })
        })
        .collect();
    bar.finish_and_clear();
    let (ok, is_all) = (logs.iter().all(|log| log.corrupt == 0), not_checked.is_empty());
    let verified = Verified { ok: ok && is_all, seconds: started.elapsed().as_secs_f64(), not_checked, logs };
    ui.result(&verified, Verified::words)?;
    Ok(match (ok, is_all) {
        (false, _) => Exit::Corrupt,
        (true, false) => Exit::Unsupported,
        (true, true) => Exit::Ok,
    })
}

impl Checked {
    fn new(log: u128) -> Self {
        Self {
            log_id: to_hex(log),
            objects: 0,
            first_object: None,
            last_object: None,
            records: 0,
            bytes: 0,
            first: None,
            last: None,
            slices: 0,
            slice_bytes: 0,
            slices_used: 0,
            sliced_last: None,
            tail_records: 0,
            tail_bytes: 0,
            corrupt: 0,
            harmless: 0,
            undecodable: 0,
            faults: Vec::new(),
            faults_left_out: 0,
            branch_of: Vec::new(),
        }
    }
}

/// Where an object ends: its last entry and the record behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    raft: EntryIndex,
    term: Term,
    next: Index,
}

/// Where an object begins: the entry before it, and the log's first index then.
#[derive(Clone, Copy, Debug)]
struct Begin {
    raft: EntryIndex,
    term: Term,
    next: Index,
    log_first: Index,
}

impl Begin {
    /// Whether it continues an object with this end. Behind records that were discarded before they were stored, an object
    /// begins anywhere.
    fn continues(&self, end: End) -> bool {
        let is_next = (self.raft, self.term, self.next) == (end.raft, end.term, end.next);
        is_next || (self.raft > end.raft && self.log_first >= self.next)
    }
}

/// The offset of the first byte of an object that no record depends on and that was changed.
struct Changed(Option<u64>);

/// The check of one log.
struct Check<'a> {
    vault: &'a dyn Vault,
    log: u128,
    dir: &'a Path,
    bar: &'a ProgressBar,
    ui: &'a Ui,
    /// The end of the object before; None: it is not known.
    end: Option<End>,
    checked: Checked,
}

impl<'a> Check<'a> {
    /// The check of this log in `vault`; `dir` is for what is downloaded.
    fn new(vault: &'a dyn Vault, log: u128, dir: &'a Path, bar: &'a ProgressBar, ui: &'a Ui) -> Self {
        Self { vault, log, dir, bar, ui, end: None, checked: Checked::new(log) }
    }
}

impl Check<'_> {
    fn run(mut self, listed: &Listed) -> Result<Checked> {
        self.check_root(listed)?;
        self.checked.first_object = listed.first();
        self.checked.last_object = listed.last();
        self.checked.branch_of = listed.parts();
        let from = listed.needed_from();
        let mut next = from;
        for (number, bytes) in &listed.objects {
            if *number <= from {
                self.end = None; // the records of older ones are discarded, and some of them may be gone
            } else if *number > next {
                self.missing(next, *number - 1)?;
            }
            next = next.max(*number + 1);
            let file = self.dir.join(format!("{:020}.seg", *number + 1));
            match self.download(*number, *bytes, &file) {
                Ok(()) => {
                    if let Some(changed) = self.unsort(*number, *bytes, &file)? {
                        self.inspect(*number, *bytes, changed)?;
                    }
                }
                Err(failure)
                    if failure.kind() == ErrorKind::NotFound
                        && (*number < from || self.is_discarded_since(*number)?) =>
                {
                    self.end = None;
                    if self.checked.objects == 0 {
                        let next = listed.objects.range(*number + 1..).next();
                        self.checked.first_object = next.map(|(number, _)| *number);
                    }
                }
                // A server says Corrupt of an object that is lost or damaged in the store.
                Err(failure)
                    if matches!(
                        failure.kind(),
                        ErrorKind::NotFound | ErrorKind::OutOfRange | ErrorKind::Corrupt
                    ) =>
                {
                    self.end = None;
                    self.fault(Some(*number), (0, 0), Severity::Corrupt, &failure.to_string())?;
                }
                Err(failure) => return Err(failure),
            }
            std::fs::remove_file(&file).or_else(|e| match e.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(Failure::io("remove", &file, &e)),
            })?;
        }
        self.check_branch(listed)?;
        self.check_slices()?;
        self.check_pins()?;
        for what in named::faults(self.vault, LogId(self.log), listed)? {
            self.fault(None, (0, 0), Severity::Corrupt, &what)?;
        }
        Ok(self.checked)
    }

    /// The objects that a branch reads from other logs have to be there. Their bytes are checked with the others of their log.
    fn check_branch(&mut self, listed: &Listed) -> Result<()> {
        if let Some((_, fault)) = &listed.branch_fault {
            return self.fault(None, (0, 0), Severity::Corrupt, fault);
        }
        let Some(branch) = &listed.branch else { return Ok(()) };
        let missing = branch.missing(self.vault)?;
        if missing == 0 {
            return Ok(());
        }
        let parts: Vec<_> = listed.parts().iter().map(Part::words).collect();
        let what = format!(
            "{} missing that this branch reads: {}",
            format::many(missing, "object is", "objects are"),
            parts.join(", ")
        );
        self.fault(None, (0, 0), Severity::Corrupt, &what)
    }

    /// Whether all records of an object were discarded since the objects were listed: the store or the server says so now. That the
    /// object is not there says nothing.
    ///
    /// # Errors
    /// `NotFound`: nothing of the log is there any more. Those of the object store.
    fn is_discarded_since(&self, number: u64) -> Result<bool> {
        let now = logs(self.vault, Some(LogId(self.log)))?.remove(&self.log);
        let now = now.ok_or_else(|| {
            let what = format!(
                "log {} has no objects there any more: all its records were discarded while it was checked, or all objects are lost; \
                 `chiplog tier list` shows what is there now",
                to_hex(self.log)
            );
            Failure::new(ErrorKind::NotFound, what)
        })?;
        Ok(now.is_discarded(number))
    }

    /// Checks every slice, and that those behind the newest object lead as far as there are any.
    fn check_slices(&mut self) -> Result<()> {
        let bar = self.bar;
        let found = match Backup::slices_in(self.vault, LogId(self.log), &mut |bytes| bar.inc(bytes)) {
            Ok(found) => found,
            // The end of the newest object is damaged, which was found above: no slice can be shown to continue it.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::OutOfRange
                ) =>
            {
                return self.fault(
                    None,
                    (0, 0),
                    Severity::Corrupt,
                    &format!("slices cannot be checked: {error}"),
                );
            }
            Err(error) => return Err(error.into()),
        };
        let checked = &mut self.checked;
        (checked.slices, checked.slice_bytes, checked.slices_used) = (found.slices, found.bytes, found.used);
        checked.sliced_last = found.last.map(Index::get);
        (checked.tail_records, checked.tail_bytes) = (found.tail_records, found.tail_bytes);
        for (name, why) in &found.faults {
            self.fault(None, (0, 0), Severity::Corrupt, &format!("slice {name}: {why}"))?;
        }
        if found.is_cut_off {
            let end = found.last.map_or("the newest object".to_owned(), |last| format!("record {last}"));
            let what = format!("slices behind {end} are missing or damaged: those after them lead nowhere");
            self.fault(None, (0, 0), Severity::Corrupt, &what)?;
        }
        if let Some(why) = &found.tail_fault {
            let what = format!("the payload behind the slices cannot be read: {why}");
            self.fault(None, (0, 0), Severity::Corrupt, &what)?;
        }
        Ok(())
    }

    /// Objects under a pin have to be there, also below the log's begin.
    fn check_pins(&mut self) -> Result<()> {
        let pins = match Pin::list(self.vault, LogId(self.log)) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return self.fault(None, (0, 0), Severity::Corrupt, &error.to_string());
            }
            pins => pins?,
        };
        for pin in pins {
            let missing = pin.missing(self.vault, LogId(self.log))?;
            // One that was removed meanwhile keeps nothing.
            if missing > 0 && Pin::list(self.vault, LogId(self.log))?.contains(&pin) {
                let missing = format::many(missing, "object is", "objects are");
                let what = format!(
                    "{missing} missing under pin {}: lost, or the command that made it was interrupted",
                    pin.name
                );
                self.fault(None, (0, 0), Severity::Corrupt, &what)?;
            }
        }
        Ok(())
    }

    fn check_root(&mut self, listed: &Listed) -> Result<()> {
        let log = LogId(self.log);
        let (name, text) = (root_name(log), root_text(log));
        let there = match self.vault.size(&name)? {
            Some(bytes) if bytes == text.len() as u64 => self.vault.get(&name, 0..bytes)? == text,
            Some(_) => false,
            None if listed.has_root || !listed.objects.is_empty() => {
                return self.fault(None, (0, 0), Severity::Corrupt, &format!("{name} is missing"));
            }
            None => true,
        };
        match there {
            true => Ok(()),
            false => self.fault(None, (0, 0), Severity::Corrupt, &format!("{name} is not of this log")),
        }
    }

    fn missing(&mut self, first: u64, last: u64) -> Result<()> {
        self.end = None;
        let what = match last - first {
            0 => "the object is missing".to_owned(),
            more => format!("the object and the {more} after it are missing"),
        };
        self.fault(Some(first), (0, 0), Severity::Corrupt, &what)
    }

    /// Writes an object to a file.
    fn download(&self, number: u64, bytes: u64, file: &Path) -> Result<()> {
        let name = object_name(LogId(self.log), number);
        let mut to = File::create_new(file).map_err(|e| Failure::io("make", file, &e))?;
        let mut at = 0;
        while at < bytes {
            let end = (at + PIECE_BYTES).min(bytes);
            let piece = self.vault.get(&name, at..end)?;
            to.write_all(&piece).map_err(|e| Failure::io("write", file, &e))?;
            self.bar.inc(end - at);
            at = end;
        }
        Ok(())
    }

    /// Makes the segment file of an object that was downloaded. Returns what it found between the blocks. None: the object is damaged, which
    /// was reported.
    fn unsort(&mut self, number: u64, bytes: u64, file: &Path) -> Result<Option<Changed>> {
        let object = std::fs::read(file).map_err(|e| Failure::io("read", file, &e))?;
        let is_sorted = object.starts_with(SORTED_MAGIC);
        match Backup::segment_file(LogId(self.log), number, object) {
            Ok((segment, changed)) => {
                if is_sorted {
                    std::fs::write(file, segment).map_err(|e| Failure::io("write", file, &e))?;
                }
                Ok(Some(Changed(changed)))
            }
            Err(error) => {
                self.end = None;
                self.checked.objects += 1;
                self.checked.bytes += bytes;
                self.fault(Some(number), (0, bytes), Severity::Corrupt, &error.to_string())?;
                Ok(None)
            }
        }
    }

    /// Checks an object that was downloaded.
    fn inspect(&mut self, number: u64, bytes: u64, Changed(changed): Changed) -> Result<()> {
        let (mut faults, mut begin, mut end, mut is_right) = (Vec::new(), None, None, false);
        let walked = Inspector::open(self.dir)?.walk(&mut |event| {
            match event {
                Event::Segment(segment) => {
                    let is_named = (segment.log.get(), segment.number) == (self.log, number + 1);
                    is_right = is_named && segment.state == SegmentState::Sealed;
                }
                Event::Block(block) => {
                    begin = begin.or_else(|| begin_of(block));
                    end = Some(end_of(block, end));
                }
                Event::Fault(fault) if fault.file != IDENTITY_FILE => faults.push(fault.clone()),
                _ => {}
            }
            ControlFlow::Continue(())
        });
        let report = match walked {
            Ok(report) => report,
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error.into()),
            Err(error) => {
                self.end = None;
                return self.fault(Some(number), (0, bytes), Severity::Corrupt, &error.to_string());
            }
        };
        self.count(&report, bytes);
        let is_damaged = faults.iter().any(|fault| fault.severity == Severity::Corrupt);
        if let Some(at) = changed.filter(|_| faults.is_empty()) {
            let what = "bytes between the blocks were changed, this one first: no record depends on them";
            self.fault(Some(number), (at, 1), Severity::Harmless, what)?;
        }
        for fault in faults {
            self.fault(Some(number), (fault.offset, fault.bytes), fault.severity, &fault.what)?;
        }
        if !is_right && !is_damaged {
            let what = "it is no sealed segment of this log with the number of this object";
            self.fault(Some(number), (0, bytes), Severity::Corrupt, what)?;
        }
        if let (Some(before), Some(begin)) = (self.end, begin)
            && !begin.continues(before)
        {
            let what = format!(
                "it begins behind entry {}, record {}, and the object before ends with entry {}, record {}",
                begin.raft,
                begin.next.get() - 1,
                before.raft,
                before.next.get() - 1
            );
            self.fault(Some(number), (0, 0), Severity::Corrupt, &what)?;
        }
        self.end = end.filter(|_| is_right && !is_damaged);
        Ok(())
    }

    fn count(&mut self, report: &Report, bytes: u64) {
        let checked = &mut self.checked;
        checked.objects += 1;
        checked.records += report.records;
        checked.bytes += bytes;
        checked.first = checked.first.or(report.first.map(Index::get));
        checked.last = report.last.map(Index::get).or(checked.last);
    }

    /// Counts, prints and keeps a fault. `place`: offset and bytes.
    fn fault(
        &mut self,
        object: Option<u64>,
        place: (u64, u64),
        severity: Severity,
        what: &str,
    ) -> Result<()> {
        let checked = &mut self.checked;
        match severity {
            Severity::Corrupt => checked.corrupt += 1,
            Severity::Undecodable => checked.undecodable += 1,
            _ => checked.harmless += 1,
        }
        if checked.faults.len() >= FAULTS_SHOWN_MAX {
            checked.faults_left_out += 1;
            return Ok(());
        }
        let (offset, bytes) = place;
        if !self.ui.json {
            let at = object.map_or(String::new(), |number| format!(", object {number} at offset {offset}"));
            let line = format!("{}: log {}{at}: {what}\n", severity.name(), checked.log_id);
            self.bar.suspend(|| print(line.as_bytes()))?;
        }
        checked.faults.push(Fault {
            object,
            offset,
            bytes,
            severity: severity.name(),
            what: what.to_owned(),
        });
        Ok(())
    }
}

/// Where an object begins, if this is its opening.
fn begin_of(block: &Block<'_>) -> Option<Begin> {
    match block.content() {
        Ok(Content::Opening { base: (raft, term), log_first, .. }) => {
            Some(Begin { raft, term, next: block.first(), log_first })
        }
        _ => None,
    }
}

/// The end behind a block. A discard beyond the end moves the next record.
fn end_of(block: &Block<'_>, before: Option<End>) -> End {
    let own = block.first().get() + u64::from(block.record_count());
    let discarded = match block.kind() {
        "command" => match block.content() {
            Ok(Content::Discard { first }) => first.get(),
            _ => 0,
        },
        _ => 0,
    };
    let next = Index(own.max(discarded));
    match before {
        // The index block of a segment is no entry.
        Some(end) if block.raft_index() < end.raft => end,
        _ => End { raft: block.raft_index(), term: block.term(), next },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::vault::{HookedVault, MemoryVault};
    use std::sync::Arc;

    fn sealed(body: &str) -> String {
        format!("{body}sum {:08x}\n", chiplog::internal::Crc::default().add(body.as_bytes()).sum())
    }

    /// The list of a cluster's logs and its sets of pins: whatever bit of them flips, and whatever log or pin is missing, is a fault.
    #[test]
    fn everything_that_leads_to_named_logs_is_checked() {
        let vault = MemoryVault::default();
        let put = |name: &str, text: &[u8]| vault.put(name, &[text.to_vec().into()]).unwrap();
        let [default, catalogue, group] = [7, 8, 9].map(LogId);
        for log in [default, catalogue, group] {
            put(&root_name(log), root_text(log).as_bytes());
        }
        let id = |log: LogId| to_hex(log.get());
        let logs_of = |nothing: &str| {
            let of = |log: LogId| format!("{}{nothing}", id(log));
            format!("format 1\nlog {}\ncatalogue {}\ngroup 1 {}\n", of(default), of(catalogue), of(group))
        };
        let list =
            (format!("{}/named", id(default)), sealed(&format!("chiplog named logs\n{}", logs_of(""))));
        // A set whose logs had nothing has no pins.
        let body = format!("chiplog pins of a cluster\n{}by {:016x}\n", logs_of(" nothing"), 5);
        let set = (format!("{}/set/nightly", id(default)), sealed(&body));
        for (name, text) in [&list, &set] {
            put(name, text.as_bytes());
        }
        let dir = tempfile::tempdir().unwrap();
        let (ui, bar) = (Ui::new(true, true, false), ProgressBar::hidden());
        let faults = || {
            let listed = logs(&vault, Some(default)).unwrap().remove(&7).unwrap();
            let found = Check::new(&vault, 7, dir.path(), &bar, &ui).run(&listed).unwrap();
            assert_eq!(found.corrupt as usize, found.faults.len());
            found.faults.into_iter().map(|fault| fault.what).collect::<Vec<_>>()
        };
        assert_eq!(faults(), Vec::<String>::new());
        for (name, text) in [&list, &set] {
            for bit in 0..text.len() * 8 {
                let mut bad = text.clone().into_bytes();
                bad[bit / 8] ^= 1 << (bit % 8);
                put(name, &bad);
                let found = faults();
                assert!(found.len() == 1 && found[0].contains(name.as_str()), "{name}, bit {bit}: {found:?}");
            }
            put(name, text.as_bytes());
        }
        // A log of the list of which nothing is there.
        for (log, part) in [(catalogue, "system"), (group, "group-1")] {
            vault.delete(&root_name(log)).unwrap();
            let found = faults();
            assert!(
                found.len() == 1 && found[0].starts_with(&format!("{part}, log {}", id(log))),
                "{found:?}"
            );
            put(&root_name(log), root_text(log).as_bytes());
        }
        // A pin of the set that is missing.
        let body = body.replace(&format!("group 1 {} nothing", id(group)), &format!("group 1 {}", id(group)));
        put(&set.0, sealed(&body).as_bytes());
        let found = faults();
        assert!(found.len() == 1 && found[0].contains("group-1: pin nightly"), "{found:?}");
        // An object that no command has made is no set.
        vault.delete(&set.0).unwrap();
        put(&format!("{}/set/-no-name", id(default)), b"x");
        assert_eq!(faults(), Vec::<String>::new());
    }

    /// A pin goes while it is checked, and then its objects. One that stays and lacks objects is a fault.
    #[test]
    fn pin_that_goes_meanwhile_lacks_nothing() {
        let (log, memory) = (LogId(7), Arc::new(MemoryVault::default()));
        memory.put(&root_name(log), &[root_text(log).into()]).unwrap();
        let body = format!(
            "chiplog pin\nformat 1\nlog {}\nobjects 0 1\nrecords 1 9\nmade 5\nby {:016x}\n",
            to_hex(7),
            3
        );
        let pin = format!("{}/pin/early", to_hex(7));
        memory.put(&pin, &[sealed(&body).into()]).unwrap();
        let vault = HookedVault::new(memory.clone());
        let dir = tempfile::tempdir().unwrap();
        let (ui, bar) = (Ui::new(true, true, false), ProgressBar::hidden());
        let corrupt = || {
            let listed = logs(&vault, None).unwrap().remove(&7).unwrap();
            Check::new(&vault, 7, dir.path(), &bar, &ui).run(&listed).unwrap().corrupt
        };
        assert_eq!(corrupt(), 1);
        let mut is_known = false;
        vault.set(move |call, name| {
            is_known |= call == "get" && name == pin;
            match is_known && call == "list" && name.ends_with("/o/") {
                true => memory.delete(&pin),
                false => Ok(()),
            }
        });
        assert_eq!(corrupt(), 0);
    }

    /// An object that was listed is not there any more: lost, unless the store says that its records are discarded.
    #[test]
    fn object_that_goes_meanwhile_is_lost_or_discarded() {
        let vault = MemoryVault::default();
        vault.put(&root_name(LogId(7)), &[root_text(LogId(7)).into()]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (ui, bar) = (Ui::new(true, true, false), ProgressBar::hidden());
        let check = || Check::new(&vault, 7, dir.path(), &bar, &ui);
        vault.put(&object_name(LogId(7), 3), &["five5".into()]).unwrap();
        let listed = logs(&vault, None).unwrap().remove(&7).unwrap();
        vault.delete(&object_name(LogId(7), 3)).unwrap();
        let corrupt = || check().run(&listed).map(|checked| (checked.corrupt, checked.first_object));
        let lost = corrupt().unwrap().0;
        vault.put(&chiplog::internal::begin_name(LogId(7), 4), &["x".into()]).unwrap();
        let (discarded, first) = corrupt().unwrap();
        assert_eq!((discarded, first), (lost - 1, None));
        // All of the log went: nobody knows why.
        vault.list("").unwrap().iter().for_each(|object| vault.delete(&object.name).unwrap());
        assert_eq!(check().is_discarded_since(3).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
