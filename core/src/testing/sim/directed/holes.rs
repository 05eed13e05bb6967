//! Holes in sorted copies of many shapes, beside what the logs need.
//!
//! Must not know: a cluster.

use crate::disk::sim::Rng;
use crate::store::format::sorted::{SORTED_HEADER_BYTES, SortedDirectory};
use crate::store::read::copy_holes::{Needed, holes_in};
use crate::testing::sim::oracle::Check;
use crate::types::{Index, LogNumber};
use std::collections::BTreeMap;
use std::ops::Range;

const COPIES: u64 = 400;
const PAGE: usize = 4096;

/// A log of a copy.
struct Part {
    /// Where its blocks are, and the first record and the end of each.
    range: Range<usize>,
    begin: Index,
    end: Index,
    /// None: it was deleted.
    first: Option<Index>,
    /// It was opened after what the logs need was noted.
    is_newer: bool,
}

/// No hole has a byte that a reader of a log can meet, and each whole page that no log needs is in one.
pub(super) fn holes_have_nothing_that_a_log_needs() -> Check {
    (0..COPIES)
        .try_for_each(|seed| check_one(&mut Rng::new(seed)).map_err(|why| format!("copy {seed}: {why}")))
}

fn check_one(rng: &mut Rng) -> Check {
    let (mut directory, mut parts) = (SortedDirectory::default(), BTreeMap::new());
    let (mut at, mut log) = (SORTED_HEADER_BYTES as u32, 0);
    for _ in 0..rng.between(1, 12) {
        log += rng.between(1, 3) as u32;
        let begin = rng.between(1, 50);
        let (from, mut next) = (at, begin);
        for _ in 0..rng.between(1, 8) {
            let most = if rng.permille(500) { 30 } else { 1_500 };
            let bytes = 64 * rng.between(2, most) as u32;
            directory.add(LogNumber(log), Index(next), at, at + bytes);
            at += bytes;
            next += rng.between(1, 9);
        }
        let first = rng.permille(700).then(|| Index(rng.between(1, next + 3)));
        let range = from as usize..at as usize;
        let part = Part { range, begin: Index(begin), end: Index(next), first, is_newer: false };
        parts.insert(LogNumber(log), part);
    }
    let opened = LogNumber(rng.between(1, u64::from(log)) as u32);
    parts.range_mut(LogNumber(opened.0 + 1)..).for_each(|(_, part)| part.is_newer = true);
    // A log that was deleted before the next opening is not in that.
    let ends = parts.iter().filter(|(_, part)| part.first.is_some() || rng.permille(500));
    let ends = ends.map(|(log, part)| (*log, part.end)).collect();
    let firsts = parts.iter().filter(|(_, part)| !part.is_newer);
    let needed = Needed::new(opened, firsts.filter_map(|(log, part)| Some((*log, part.first?))));
    let holes = holes_in(&directory, &ends, &needed);
    let mut dead: Vec<Range<usize>> = Vec::new();
    for (log, part) in &parts {
        let first = match part.first {
            _ if part.is_newer => Some(part.begin),
            first => first.filter(|first| *first < part.end).map(|first| first.max(part.begin)),
        };
        let upto = match first {
            None => part.range.end,
            Some(first) => {
                check_readers(&directory, &holes, *log, first, part)?;
                let from = directory.seek(*log, first).map_or(part.range.start, |(at, _)| at);
                if part.is_newer { part.range.start } else { from }
            }
        };
        match dead.last_mut() {
            Some(before) if before.end == part.range.start => before.end = upto,
            _ => dead.push(part.range.start..upto),
        }
    }
    let missed = dead.iter().find_map(|part| {
        let mut pages = (part.start.next_multiple_of(PAGE)..part.end / PAGE * PAGE).step_by(PAGE);
        pages.find(|page| !holes.iter().any(|hole| (hole.start as usize..hole.end as usize).contains(page)))
    });
    missed.map_or(Ok(()), |page| {
        Err(format!("no log needs the page at {page}, and it is in no hole: {holes:?}"))
    })
}

/// Follows readers of all records of a log from its first one on.
fn check_readers(
    directory: &SortedDirectory,
    holes: &[Range<u32>],
    log: LogNumber,
    first: Index,
    part: &Part,
) -> Check {
    for next in first.0..part.end.0 {
        let Some((at, end)) = directory.seek(log, Index(next)) else {
            return Err(format!("record {next} of log {log} is not found"));
        };
        if let Some(hole) = holes.iter().find(|hole| (hole.start as usize) < end && at < hole.end as usize) {
            return Err(format!(
                "a reader of record {next} of log {log} reads {at}..{end}, and meets hole {hole:?}"
            ));
        }
    }
    Ok(())
}
