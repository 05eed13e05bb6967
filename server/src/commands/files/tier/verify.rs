//! `chiplog tier verify`: downloads every object and checks every byte.
//!
//! An object is a sealed segment file (docs/format.md, section 18), so the inspector of segments reads it, one at a time in a
//! temporary directory. Two things that it cannot see are checked here: the objects are those of the log, and continue each other.

use super::objects::{Listed, logs, object_name, root};
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::{Ui, print};
use crate::common::scratch::Scratch;
use chiplog::backup::{Backup, Pin};
use chiplog::inspect::{Block, Content, Event, Inspector, Report, SegmentState, Severity};
use chiplog::vault::Vault;
use chiplog::{EntryIndex, ErrorKind, Index, LogId, Term};
use chiplog_net::wire::ids::to_hex;
use indicatif::ProgressBar;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
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
    corrupt: u64,
    harmless: u64,
    undecodable: u64,
    faults: Vec<Fault>,
    faults_left_out: u64,
}

#[derive(Serialize)]
struct Verified {
    ok: bool,
    seconds: f64,
    logs: Vec<Checked>,
}

impl Verified {
    /// The end of the report. The faults were printed when they were found.
    fn words(&self) -> String {
        let mut out = String::new();
        for log in &self.logs {
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
            if log.corrupt > 0 {
                _ = writeln!(
                    out,
                    "{}: if a replica has these records on its disk, it still serves them: do not shorten its local_bytes or local_age_seconds",
                    format::many(log.corrupt, "fault", "faults")
                );
            }
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
    let checking = |(log, listed): (&u128, &Listed)| {
        Check { vault, log: *log, dir: scratch.dir(), bar: &bar, ui, end: None, checked: Checked::new(*log) }
            .run(listed)
    };
    let logs = found.iter().map(checking).collect::<Result<Vec<_>>>()?;
    bar.finish_and_clear();
    let ok = logs.iter().all(|log| log.corrupt == 0);
    let verified = Verified { ok, seconds: started.elapsed().as_secs_f64(), logs };
    ui.result(&verified, Verified::words)?;
    Ok(if ok { Exit::Ok } else { Exit::Corrupt })
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
            corrupt: 0,
            harmless: 0,
            undecodable: 0,
            faults: Vec::new(),
            faults_left_out: 0,
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

impl Check<'_> {
    fn run(mut self, listed: &Listed) -> Result<Checked> {
        self.check_root(listed)?;
        self.checked.first_object = listed.first();
        self.checked.last_object = listed.last();
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
                    if self.unsort(*number, *bytes, &file)? {
                        self.inspect(*number, *bytes)?;
                    }
                }
                // Its records were discarded meanwhile.
                Err(failure)
                    if failure.kind() == ErrorKind::NotFound
                        && (*number < from || self.checked.objects == 0) =>
                {
                    self.checked.first_object =
                        listed.objects.range(*number + 1..).next().map(|(number, _)| *number);
                }
                Err(failure) if matches!(failure.kind(), ErrorKind::NotFound | ErrorKind::OutOfRange) => {
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
        self.check_slices()?;
        self.check_pins()?;
        Ok(self.checked)
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
        for (name, why) in &found.faults {
            self.fault(None, (0, 0), Severity::Corrupt, &format!("slice {name}: {why}"))?;
        }
        if found.is_cut_off {
            let end = found.last.map_or("the newest object".to_owned(), |last| format!("record {last}"));
            let what = format!("slices behind {end} are missing or damaged: those after them lead nowhere");
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
            if missing > 0 {
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
        let (name, text) = root(self.log);
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
        let name = object_name(self.log, number);
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

    /// Makes the segment file of an object that was downloaded, if its records are log by log. False: it is damaged, which was
    /// reported.
    fn unsort(&mut self, number: u64, bytes: u64, file: &Path) -> Result<bool> {
        let mut head = [0; SORTED_MAGIC.len()];
        let read = File::open(file).and_then(|mut file| file.read_exact(&mut head));
        if read.is_err() || head != *SORTED_MAGIC {
            return Ok(true); // the inspector reads it as it is
        }
        let object = std::fs::read(file).map_err(|e| Failure::io("read", file, &e))?;
        match Backup::segment_file(LogId(self.log), number, object) {
            Ok(segment) => {
                std::fs::write(file, segment).map_err(|e| Failure::io("write", file, &e))?;
                Ok(true)
            }
            Err(error) => {
                self.end = None;
                self.checked.objects += 1;
                self.checked.bytes += bytes;
                self.fault(Some(number), (0, bytes), Severity::Corrupt, &error.to_string())?;
                Ok(false)
            }
        }
    }

    /// Checks an object that was downloaded.
    fn inspect(&mut self, number: u64, bytes: u64) -> Result<()> {
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
