//! Reads a log's files block by block, for `verify` and `dump`.
//!
//! Owns: the walk over a directory's segments, and the description of each fault. It uses the [`Disk`] trait and the
//! format's own functions, never the engine. So it continues after a bad block, reads a log that the engine refuses
//! to open, and finds faults that the engine would not notice.
//!
//! Must not: write, lock, repair, or panic on any bytes.
//!
//! Invariants:
//! - Safe beside a live writer. The walk reads the proof that a block is durable before the block itself, so it never
//!   reports a block that is still being written as corrupt; a segment that is discarded meanwhile is left out.
//! - Memory is bounded by one block (at most one segment) and a read window, whatever the log's size.
//!
//! ```text
//! survey: every segment's header and opening -> order, gaps, segments that a successor proves
//! then, segment by segment:   prove (last one only: headers, for durable_upto) -> blocks -> index and footer
//! ```

use crate::disk::linux::RealDisk;
use crate::disk::{Disk, SECTOR_BYTES};
use crate::error::{Error, ErrorKind, Result};
use crate::replica::open::{cannot_open, check_name, check_not_named};
use crate::store::format::identity::{IDENTITY_FILE, Identity};
use crate::store::segment::{file_name, file_number};
use crate::types::{Index, LogId};
use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

mod batches;
mod chain;
mod header;
mod report;
mod segment;
mod window;

pub use report::{
    Block, Content, Event, Fault, LogBatches, Report, Segment, SegmentEnd, SegmentState, Severity, Tail,
};

use chain::Chain;
use header::Found;
use report::Sink;
use segment::Outcome;

/// Reads a log's files without opening the log. Read-only, takes no lock, safe beside a live writer.
///
/// ```
/// use chiplog::inspect::{Event, Inspector};
/// use std::ops::ControlFlow;
///
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// # log.append(b"ahoy")?;
/// # log.close()?;
/// let report = Inspector::open(dir.path())?.walk(&mut |event| {
///     if let Event::Fault(fault) = event {
///         eprintln!("{fault}");
///     }
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!((report.corrupt, report.records), (0, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Inspector {
    disk: Arc<dyn Disk>,
    only: Option<u64>,
}

impl Inspector {
    /// Makes an inspector of a directory.
    ///
    /// # Errors
    /// `NotFound`: the directory does not exist. `InvalidArgument`: it holds many named logs, each group of which has a
    /// directory of its own. `Io`: it cannot be read.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        check_name(dir)?;
        check_not_named(dir)?;
        let disk = RealDisk::open(dir, false).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                Error::new(ErrorKind::NotFound, format!("there is no directory {}", dir.display()))
            }
            _ => cannot_open(dir, e),
        })?;
        Ok(Self::open_on(Arc::new(disk)))
    }

    /// Makes an inspector of any disk.
    pub fn open_on(disk: Arc<dyn Disk>) -> Self {
        Self { disk, only: None }
    }

    /// Restricts the walk to one segment.
    #[must_use]
    pub fn only(mut self, number: u64) -> Self {
        self.only = Some(number);
        self
    }

    /// The length of all segment files that a walk would read, in bytes: the final value of [`Report::bytes`].
    ///
    /// # Errors
    /// As [`walk`](Self::walk).
    pub fn bytes(&self) -> Result<u64> {
        let mut total = 0;
        for number in self.numbers()? {
            match self.disk.open(&file_name(number), false).and_then(|f| f.len()) {
                Ok(bytes) => total += bytes,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {} // discarded just now
                Err(e) => return Err(self.io("open", number, e)),
            }
        }
        Ok(total)
    }

    /// Reads every byte of every segment, checks everything that can be checked, and calls `visit` with each event.
    /// `visit` ends the walk early with `Break`.
    ///
    /// Blocks until everything is read. A fault is an event, not an error, even if a file cannot be read.
    ///
    /// # Errors
    /// `NotFound`: there is no segment, or not the requested one. `Unsupported`: a newer version wrote the files.
    /// `Io`: the directory cannot be listed.
    pub fn walk(&self, visit: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>) -> Result<Report> {
        self.walk_over(&self.survey()?, visit)
    }

    /// As [`Self::walk`], over the segments of a survey.
    fn walk_over(
        &self,
        found: &[Found],
        visit: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Report> {
        let mut sink = Sink { visit, report: Report::default(), discarded: Index(0) };
        let mut gaps = Vec::new();
        let mut chain = Chain::default();
        let mut before: Option<u64> = None;
        let (named, identity_fault) = self.identity()?;
        let log = named.or_else(|| found.iter().find_map(|f| Some(f.header?.log)));
        let dead = dead(found);
        for (i, this) in found.iter().enumerate() {
            if self.only.is_some_and(|n| n != this.number) {
                continue;
            }
            let goes_on = |(n, f): &(usize, &Found)| *n > i && f.opening.is_some() && !dead[*n];
            let successor = found.iter().enumerate().find(goes_on).map(|(_, f)| f);
            let skips =
                |last: &u64| this.number != last + 1 && !dead[i] && !chain.leads_to(this.opening.as_ref());
            if let Some(last) = before.filter(skips) {
                if self.is_gap(last)? {
                    gaps.push((this, missing(last + 1, this, &chain)));
                }
                chain = Chain::default();
            }
            if !dead[i]
                && this.follows_discard(this.log_first.unwrap_or_default())
                && !chain.leads_to(this.opening.as_ref())
            {
                chain = Chain::default();
            }
            match segment::walk(&*self.disk, this, log, (successor, dead[i]), &mut chain, &mut sink) {
                Outcome::Done if dead[i] => {}
                Outcome::Done => before = Some(this.number),
                Outcome::Vanished => (before, chain) = (None, Chain::default()),
                Outcome::Stop => return Ok(sink.report),
            }
        }
        // After a crash any of the discarded segments can be left.
        let discarded = sink.discarded;
        for (_, gap) in gaps.into_iter().filter(|(next, _)| !next.follows_discard(discarded)) {
            if sink.fault(gap).is_break() {
                return Ok(sink.report);
            }
        }
        // A log that a crash left half made has no identity yet, and nothing but an opening block.
        if let Some(fault) = identity_fault.filter(|f| f.bytes > 0 || sink.report.blocks > 1) {
            let _ = sink.fault(fault);
        }
        Ok(sink.report)
    }

    /// Whether segment `last` exists and the next one does not. This looks again, because a live log's files can
    /// appear and disappear while they are listed and opened one by one.
    fn is_gap(&self, last: u64) -> Result<bool> {
        let names = self.disk.list().map_err(|e| Error::io("list", self.disk.path(), e))?;
        let has = |number| names.contains(&file_name(number));
        Ok(has(last) && !has(last + 1))
    }

    /// The log's id from the identity file, or the fault of that file.
    fn identity(&self) -> Result<(Option<LogId>, Option<Fault>)> {
        let fault = |bytes, what: String| {
            let file = IDENTITY_FILE.to_string();
            Fault { file, offset: 0, bytes, what, severity: Severity::Corrupt, raft: None, records: None }
        };
        match Identity::read(&*self.disk) {
            Ok(Some(identity)) => Ok((Some(identity.log), None)),
            Ok(None) => Ok((
                None,
                Some(fault(0, "the log's identity is missing; restore the file from a copy".into())),
            )),
            Err(e) if e.kind() == ErrorKind::Unsupported => Err(e),
            Err(_) => Ok((
                None,
                Some(fault(
                    SECTOR_BYTES as u64,
                    "the log's identity cannot be read; restore the file from a copy".into(),
                )),
            )),
        }
    }

    fn numbers(&self) -> Result<Vec<u64>> {
        let names = self.disk.list().map_err(|e| Error::io("list", self.disk.path(), e))?;
        let listed: BTreeSet<u64> = names.iter().filter_map(|n| file_number(n)).collect();
        let mut numbers: Vec<u64> = listed.iter().copied().collect();
        // A directory listing is not atomic: it can miss a file that was renamed meanwhile and still contain the one
        // made after it.
        for (before, after) in listed.iter().zip(listed.iter().skip(1)) {
            let there = |n: &u64| self.disk.open(&file_name(*n), false).is_ok();
            numbers.extend((before + 1..*after).take(GAP_MAX).filter(there));
        }
        numbers.sort_unstable();
        if let Some(only) = self.only
            && !numbers.contains(&only)
        {
            let why = format!("{} has no segment {only}", self.disk.path().display());
            return Err(Error::new(ErrorKind::NotFound, why));
        }
        if numbers.is_empty() {
            let why = format!("{} holds no log: it has no segment files", self.disk.path().display());
            return Err(Error::new(ErrorKind::NotFound, why));
        }
        numbers.retain(|n| self.only.is_none_or(|only| *n >= only));
        Ok(numbers)
    }

    /// Reads all headers and openings before any block: a segment that has begun proves those before it.
    fn survey(&self) -> Result<Vec<Found>> {
        let mut all = Vec::new();
        for number in self.numbers()? {
            if let Some(found) = Found::read(&*self.disk, number)? {
                all.push(found);
            }
        }
        Ok(all)
    }

    fn io(&self, doing: &str, number: u64, e: io::Error) -> Error {
        Error::io(doing, &self.disk.path().join(file_name(number)), e)
    }
}

/// Which segments are dead: the log continued in a later segment, at or before the entry at which they begin.
fn dead(found: &[Found]) -> Vec<bool> {
    let mut goes_on = None;
    let mut dead: Vec<bool> = found
        .iter()
        .rev()
        .map(|f| {
            let Some(begins) = f.opening.map(|h| h.raft_index) else { return false };
            let dead = goes_on.is_some_and(|base| begins >= base);
            if !dead {
                goes_on = Some(begins);
            }
            dead
        })
        .collect();
    dead.reverse();
    dead
}

/// How many missing names in a gap are looked for: fewer files are made while a directory is being listed.
const GAP_MAX: usize = 16;

/// The fault of segments that are missing between two others.
fn missing(from: u64, next: &Found, chain: &Chain) -> Fault {
    let count = next.number - from;
    let what = match count {
        1 => "the segment is missing".to_string(),
        _ => format!("the segment and the {} after it are missing", count - 1),
    };
    let (raft, records) = chain.gap_to(next.opening.as_ref());
    Fault { file: file_name(from), offset: 0, bytes: 0, what, severity: Severity::Corrupt, raft, records }
}

#[cfg(test)]
mod tests;
