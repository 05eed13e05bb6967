//! Recovery: turns the files of a directory into a log that continues where it stopped.
//!
//! [`survey`] examines the files and decides, and changes nothing; [`repair`] carries out its decisions. A read-only
//! handle stops after the survey.
//!
//! Only the last segment is read: sealed segments are trusted because of their footers, and verified when they are
//! read. (With replication, the segment that contains the last entry known to be committed is read too, if the last
//! segment begins after it.) Later writes prove every bound in the log:
//!
//! - a block says up to which offset its segment was durable when the block was written (`durable_upto`);
//! - a segment has a footer only after its successor has durably begun;
//! - a segment begins only after the previous one is durable to its end.
//!
//! The log continues where a segment begins. Blocks of older segments after that position are dead, and so are older
//! segments that begin at or after it. They can still exist, whole or in part, after a crash. A footer is trusted only
//! if its segment ends where the next one begins.
//!
//! Where the chain of sound blocks breaks, the [`DECISIONS`] table distinguishes a write that nothing proves from
//! damage to durable bytes. The unproven write was torn by a crash, or damaged before anything was written after it.
//!
//! One case cannot be detected: the last segment's file is removed by hand while the next one is prepared and has not
//! begun. The segment before it has no footer yet, so nothing shows that it had a successor. Recovery warns about the
//! gap in the numbers and continues, because a crash can leave the same gap.
//!
//! The unproven end of a log (the writes just before a crash) is written again and synced before anything else happens.
//! After a failed sync and a restart of the process, the page cache can show bytes that are not on the disk, and
//! readers must not see them before they are durable.

pub(crate) mod decision_table;
pub(crate) mod gap;
pub(crate) mod tail;

use super::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use super::format::geometry::SEGMENT_HEADER_BYTES;
use super::format::identity::Identity;
use super::format::segment::{Footer, Opening};
use super::read::chain::{KeptForSuspects, Learn, Proven, Walk};
use super::read::scanner::Scanner;
use super::read::segment_files::{Begun, Files, Leftover, PutAside, SegmentFile};
use super::recovery::decision_table::{Break, Verdict, decide};
use super::recovery::tail::Follow;
use super::segment::{Base, Segment, file_name, file_number};
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::Malformed;
use crate::types::{EntryIndex, Index};
use std::collections::{BTreeSet, VecDeque};
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;

/// The result of a survey.
#[derive(Debug)]
pub(crate) struct Survey {
    /// The log's segments, oldest first; the log continues in the last one.
    pub(crate) segments: VecDeque<Arc<Segment>>,
    /// The position at which the walk stopped.
    scanner: Scanner,
    walk: Walk,
    /// The offset of the first block that nothing proves; the last marker is always such a block.
    unproven_from: Option<usize>,
    /// Whether any of these blocks is not a marker.
    unproven: bool,
    /// Bytes after the last block that must be cleared.
    remnants: Option<std::ops::Range<usize>>,
    /// Full segments without a footer.
    pub(crate) unsealed: Vec<Arc<Segment>>,
    /// Files that contain nothing of the log any more: prepared and not begun, or discarded.
    pub(crate) leftovers: Vec<Leftover>,
    /// Files that may have entries of an object that is to be made again, and cannot be read now.
    pub(crate) put_aside: PutAside,
    /// Where an unfinished or damaged write was truncated, and the reason, for the program's log.
    pub(crate) torn: Option<(PathBuf, usize, Malformed)>,
}

impl Survey {
    /// Returns the segments, and the position at which a read-only handle continues.
    pub(crate) fn follow(self) -> (VecDeque<Arc<Segment>>, Follow) {
        (self.segments, Follow::new(self.scanner, self.walk))
    }
}

/// Examines all files, reads the last segment to `learner`, and decides. Changes nothing.
///
/// # Errors
/// `Corrupt`, with file and offset; `Unsupported` for a newer format; `Io`.
pub(crate) fn survey(disk: &dyn Disk, identity: Identity, learner: &mut dyn Learn) -> Result<Survey> {
    let names = disk.list().map_err(|e| Error::io("list", disk.path(), e))?;
    let names = names.into_iter().filter_map(|n| file_number(&n).map(|number| (number, n))).collect();
    let mut files = Files { disk, identity, names };
    let mut leftovers = Vec::new();
    let (last, opened) = last_begun(&mut files, &mut leftovers)?;
    let mut survey = read_last(&opened, learner)?;
    files.names.remove(&last);
    walk_back(&mut files, &mut survey, learner, &mut leftovers)?;
    for number in files.names.keys().copied().collect::<Vec<_>>() {
        leftovers.push(files.leave(number)?);
    }
    survey.leftovers = leftovers;
    Ok(survey)
}

/// Finds the last segment that has begun; those above it are leftovers.
///
/// Invariant: no file above it ever had a durable opening. A segment takes a higher number than all that began before it, and its opening
/// is durable before files are removed because of it. So a file that was removed, and is there again after a crash, is below the last
/// segment. The removals of several files can become durable in any order: of the files between two numbers, any can be missing. A file
/// above whose blocks show that its opening was durable is therefore the last segment, or an earlier one, with a damaged opening.
fn last_begun(files: &mut Files<'_>, leftovers: &mut Vec<Leftover>) -> Result<(u64, SegmentFile)> {
    let mut above: Option<(u64, SegmentFile, Malformed)> = None;
    let mut damaged: Option<Error> = None;
    while let Some(number) = files.names.last_key_value().map(|(n, _)| *n) {
        let Some(opened) = files.open(number)? else {
            // The copy would contradict its original once that grows.
            let name = files.names.remove(&number).unwrap_or_else(|| file_name(number));
            leftovers.push(Leftover { name, bytes: 0 });
            continue;
        };
        match opened.begins()? {
            Begun::Damaged(why) => return Err(opened.corrupt(SEGMENT_HEADER_BYTES, why)),
            Begun::No(why) => {
                leftovers.push(files.leave(number)?);
                // Of several, the lowest is reported: those above it can be repaired only after it.
                damaged = had_begun(&opened, why)?.or(damaged);
                above = Some((number, opened, why));
            }
            Begun::Yes(_) => {
                check_successor(number, &opened, above)?;
                if let Some(damaged) = damaged {
                    return Err(damaged);
                }
                warn_of_gap(files.disk, number, leftovers);
                return Ok((number, opened));
            }
        }
    }
    // When a log is made, its first segment begins before the identity is written.
    Err(Error::corrupt(
        files.disk.path(),
        0,
        "no segment contains the log's beginning: its files are missing or damaged",
    ))
}

/// The damage to the opening of a segment, if a later block shows that the opening was durable.
fn had_begun(opened: &SegmentFile, why: Malformed) -> Result<Option<Error>> {
    let at = SEGMENT_HEADER_BYTES;
    let proven_later = opened.scanner().later(at)?.durable_upto > at;
    let row = decide(Break { clean: false, proven_later, successor: false, reached: false });
    let is_damaged = row.verdict == Verdict::Corrupt;
    Ok(is_damaged.then(|| opened.corrupt(at, format!("{why}; {}", row.why))))
}

/// Warns of a gap in the numbers of prepared files. They follow the last segment without a gap, except after a crash
/// (or a check from another process) while the lowest one is being made from an old file. So a gap proves nothing, and
/// recovery cannot refuse it.
fn warn_of_gap(disk: &dyn Disk, last: u64, leftovers: &[Leftover]) {
    if let Some(missing) = first_missing(last, leftovers) {
        tracing::warn!(
            path = %disk.path().display(), missing, last,
            "a segment file is missing above the last one in use; harmless after a crash while it was prepared, \
             but if it was removed by hand, the records in it are gone"
        );
    }
}

/// The lowest number above `last` without a file, if a higher one has a file.
fn first_missing(last: u64, leftovers: &[Leftover]) -> Option<u64> {
    let prepared: BTreeSet<u64> =
        leftovers.iter().filter(|l| l.bytes > 0).filter_map(|l| file_number(&l.name)).collect();
    (last + 1..).zip(prepared).find(|(expected, number)| expected != number).map(|(expected, _)| expected)
}

/// Checks that the last segment that has begun is not one whose successor is missing or damaged.
fn check_successor(
    number: u64,
    last: &SegmentFile,
    above: Option<(u64, SegmentFile, Malformed)>,
) -> Result<()> {
    if last.footer.is_none() {
        return Ok(());
    }
    let what =
        format!("segment {number} is sealed, so segment {} had begun: it is missing or damaged", number + 1);
    Err(match above.filter(|(n, ..)| *n == number + 1) {
        Some((_, opened, why)) => opened.corrupt(SEGMENT_HEADER_BYTES, format!("{why}; {what}")),
        None => {
            let path = last.path.with_file_name(file_name(number + 1));
            Error::corrupt(&path, 0, format!("the file is missing; {what}"))
        }
    })
}

/// Reads the last segment and decides where it ends.
fn read_last(opened: &SegmentFile, learner: &mut dyn Learn) -> Result<Survey> {
    let mut scanner = opened.scanner();
    let mut walk = Walk::new(opened);
    let mut why = walk.run(&mut scanner, learner)?;
    // Another process may be writing: a position that had no block before, and that a later block now proves, is read
    // again. Real damage remains.
    let mut later = scanner.later(walk.at)?;
    while later.durable_upto > walk.at {
        let before = walk.at;
        scanner.refresh();
        why = walk.run(&mut scanner, learner)?;
        if walk.at == before {
            break;
        }
        later = scanner.later(walk.at)?;
    }
    let at = walk.at;
    let zeros = why.is_none() || scanner.bytes(at, BLOCK_HEADER_BYTES)?.iter().all(|b| *b == 0);
    let clean = zeros && later.end <= at;
    let row =
        decide(Break { clean, proven_later: later.durable_upto > at, successor: false, reached: false });
    let why = why.unwrap_or("no block begins here");
    if row.verdict == Verdict::Corrupt {
        let what =
            format!("raft index {}, record {}: {why}; {}", walk.end.raft.next(), walk.end.next, row.why);
        return Err(opened.corrupt(at, what));
    }
    let Some(segment) = walk.segment.clone() else {
        return Err(opened.corrupt(SEGMENT_HEADER_BYTES, why));
    };
    // In a recycled file the rest is usually from an earlier use: harmless because of the salt, but cheap to clear.
    let end = later.end.max(at + BLOCK_HEADER_BYTES).min(scanner.limit());
    Ok(Survey {
        segments: VecDeque::from([segment]),
        unproven_from: walk.unproven.front().map(|u| u.from),
        unproven: walk.unproven.iter().any(|u| !u.marker),
        remnants: (!clean && at < end).then_some(at..end),
        unsealed: Vec::new(),
        leftovers: Vec::new(),
        put_aside: PutAside::default(),
        torn: (later.end > at).then(|| (opened.path.clone(), at, why)),
        scanner,
        walk,
    })
}

/// Adds the segments before the last one, back to the one that contains the log's first record. The first record is
/// taken as of the last entry known to be committed: a later discard can still be truncated, so older records may be
/// needed.
fn walk_back(
    files: &mut Files<'_>,
    survey: &mut Survey,
    learner: &dyn Learn,
    leftovers: &mut Vec<Leftover>,
) -> Result<()> {
    let commit = survey.walk.commit;
    let mut first = survey.walk.first_at(commit);
    let mut suspects = learner.kept_for_suspects();
    while let Some(next) =
        survey.segments.front().cloned().filter(|s| first.is_none_or(|first| s.base.next > first))
    {
        let opened = before(files, &next, leftovers)?;
        let segment = match opened.footer.filter(|footer| links(footer, &next)) {
            Some(footer) => Arc::new(Segment::sealed(&footer, opened.header.bytes)),
            None => {
                let segment = match scan_whole(&opened, next.base) {
                    // It is not the segment that should be here.
                    Err(error)
                        if error.kind() == ErrorKind::Corrupt && opened.header.number + 1 < next.number =>
                    {
                        return Err(missing(files, &next));
                    }
                    scanned => scanned?,
                };
                survey.unsealed.push(segment.clone());
                segment
            }
        };
        if first.is_none() && segment.base.raft <= commit {
            let (then, at, of_then) = as_of(&opened, commit, learner)?;
            segment.publish(at);
            // Entries that are not committed may have discarded an object.
            suspects = KeptForSuspects::both(suspects, of_then);
            survey.walk.proven = then;
            first = Some(then.first);
        } else if segment.end().raft <= commit {
            segment.publish(segment.data_end());
        }
        survey.segments.push_front(segment);
    }
    // A discard that is not committed can be truncated.
    let is_committed = survey.segments.back().is_some_and(|last| last.base.raft <= survey.walk.commit);
    keep_for_object(files, survey, learner, is_committed);
    keep_for_suspect(files, survey, suspects, is_committed);
    Ok(())
}

/// Adds the segments before those that the log needs, as far as they follow each other, which hold an object that is not stored
/// yet. A discard leaves them, and nothing but this object needs them. If one cannot be read now, they stay on the disk: a later start can
/// need them. Damaged ones go: the object is made by another replica.
fn keep_for_object(
    files: &mut Files<'_>,
    survey: &mut Survey,
    learner: &dyn Learn,
    is_first_committed: bool,
) {
    let kept = learner.kept_for_object(is_first_committed);
    let Some(begin) = kept.filter(|_| !planted!(98)) else { return };
    while let Some(next) = survey.segments.front().cloned().filter(|next| next.base.raft > begin) {
        match segment_before(files, &next) {
            Ok(Some(found)) => keep(survey, found),
            Err(error) if error.kind() == ErrorKind::Io => {
                tracing::warn!(%error, "this file stays, with those before it: an object is to be made of them, and cannot be now");
                put_aside(files, survey);
                survey.put_aside.are_unstored = true;
                return;
            }
            Ok(None) | Err(_) => return,
        }
    }
}

/// The same of an object that may have to be stored again: its files may be the last copy. Adds also those before it up to one whose
/// opening has objects, or which has the log's first record: a replica that begins there has to learn that there are objects, unless it
/// lacks nothing. Without such a segment a crash has left some of the files that were to go, and nothing needs them. The log opens without
/// these files: those that cannot be read stay on the disk with all before them, and so do those that have all of the object and nothing to
/// begin with. A later start can need them.
fn keep_for_suspect(
    files: &mut Files<'_>,
    survey: &mut Survey,
    suspects: Option<KeptForSuspects>,
    is_first_committed: bool,
) {
    let Some(KeptForSuspects { from: begin, last, first }) = suspects else { return };
    let first = if is_first_committed { first } else { Index(1) };
    let mut kept = Vec::new();
    let mut front = survey.segments.front().cloned();
    let (mut ends_well, mut stay) = (true, false);
    while let Some(next) = front.filter(|next| next.base.raft > begin || !ends_well) {
        let found = match segment_before(files, &next) {
            Ok(Some(found)) => found,
            Ok(None) => {
                stay = next.base.raft <= last;
                break;
            }
            Err(error) => {
                tracing::warn!(%error, "this file stays, with those before it: an object with their records may be lost, and cannot be made of them now");
                stay = true;
                break;
            }
        };
        ends_well = found.segment.base.next <= first || found.has_objects;
        front = Some(found.segment.clone());
        kept.push((found, ends_well));
    }
    while let Some((found, _)) = kept.pop_if(|(_, ends_well)| !*ends_well) {
        files.names.insert(found.segment.number, file_name(found.segment.number));
    }
    if stay {
        put_aside(files, survey);
    }
    kept.into_iter().for_each(|(found, _)| keep(survey, found));
}

/// Puts all files aside that are left.
fn put_aside(files: &mut Files<'_>, survey: &mut Survey) {
    // Of those without entries of the log the lowest number need not begin first. One that cannot be read can begin anywhere.
    let begins = |number: &u64| files.open(*number).ok().flatten()?.may_begin_at();
    let Some(from) = files.names.keys().map(|number| begins(number).unwrap_or_default()).min() else {
        return;
    };
    let aside = &mut survey.put_aside;
    aside.from = if aside.names.is_empty() { from } else { aside.from.min(from) };
    aside.names.extend(std::mem::take(&mut files.names).into_values());
}

/// Puts a segment before all others. All its entries are committed.
fn keep(survey: &mut Survey, Found { segment, is_sealed, .. }: Found) {
    segment.publish(segment.data_end());
    if !is_sealed {
        survey.unsealed.push(segment.clone());
    }
    survey.segments.push_front(segment);
}

/// A segment that ends where another one begins.
struct Found {
    segment: Arc<Segment>,
    is_sealed: bool,
    /// Whether its opening has objects.
    has_objects: bool,
}

/// Takes the segment out of the names that ends where `next` begins. None: there is none.
///
/// # Errors
/// `Corrupt`: it is damaged, or the file that could be it; `Io`.
fn segment_before(files: &mut Files<'_>, next: &Segment) -> Result<Option<Found>> {
    for number in files.names.keys().rev().copied().collect::<Vec<_>>() {
        let Some(opened) = files.open(number)? else { continue };
        let (header, body) = match opened.scanner().block(SEGMENT_HEADER_BYTES)? {
            Ok((header, body)) if header.kind == Kind::Opening => (header, body.to_vec()),
            Ok(_) => {
                return Err(opened.corrupt(SEGMENT_HEADER_BYTES, "the first block is not an opening block"));
            }
            Err(why) => return Err(opened.corrupt(SEGMENT_HEADER_BYTES, why)),
        };
        if header.raft_index >= next.base.raft {
            continue; // dead
        }
        let has_objects =
            Opening::has_objects(&body).map_err(|why| opened.corrupt(SEGMENT_HEADER_BYTES, why))?;
        let footer = opened.footer.as_ref().filter(|footer| links(footer, next));
        let segment = match footer {
            Some(footer) => Arc::new(Segment::sealed(footer, opened.header.bytes)),
            None => scan_whole(&opened, next.base)?,
        };
        files.names.remove(&number);
        return Ok(Some(Found { segment, is_sealed: footer.is_some(), has_objects }));
    }
    Ok(None)
}

/// Whether a segment with this footer ends where `next` begins.
fn links(footer: &Footer, next: &Segment) -> bool {
    (footer.last_raft, footer.last_term, footer.next) == (next.base.raft, next.base.term, next.base.next)
}

/// Opens the segment that ends where `next` begins, or contains that position. Segments between them are dead.
fn before(files: &mut Files<'_>, next: &Segment, leftovers: &mut Vec<Leftover>) -> Result<SegmentFile> {
    let mut damaged = None;
    while let Some(number) = files.names.last_key_value().map(|(n, _)| *n) {
        let Some(opened) = files.open(number)? else {
            let name = files.names.remove(&number).unwrap_or_else(|| file_name(number));
            leftovers.push(Leftover { name, bytes: 0 });
            continue;
        };
        let begins = match &opened.footer {
            Some(footer) => Ok(footer.base_raft),
            None => opened.begins()?.base().map(|base| base.raft),
        };
        match begins {
            Ok(begins) if begins < next.base.raft => {
                files.names.remove(&number);
                return Ok(opened);
            }
            Ok(_) => {}
            // Dead if an older segment contains the position; an error only if none does.
            Err(why) => {
                damaged.get_or_insert_with(|| opened.corrupt(SEGMENT_HEADER_BYTES, why));
            }
        }
        leftovers.push(files.leave(number)?);
    }
    Err(damaged.unwrap_or_else(|| missing(files, next)))
}

fn missing(files: &Files<'_>, next: &Segment) -> Error {
    let number = next.number - 1;
    let what = format!("the file is missing; segment {number} contains records below {}", next.base.next);
    Error::corrupt(&files.disk.path().join(file_name(number)), 0, what)
}

/// The log's state after entry `index`, which is in this segment, the offset at which its blocks end, and what is kept for suspects then.
fn as_of(
    opened: &SegmentFile,
    index: EntryIndex,
    learner: &dyn Learn,
) -> Result<(Proven, usize, Option<KeptForSuspects>)> {
    let mut scanner = opened.scanner();
    let mut walk = Walk::new(opened);
    let mut learner = learner.fresh_learner();
    let mut past = Past { learner: &mut *learner, to: index };
    let why = walk.run(&mut scanner, &mut past)?.unwrap_or("the segment ends here");
    if walk.end.raft != index {
        let what =
            format!("raft index {}: {why}; a later block says that it is committed", walk.end.raft.next());
        return Err(opened.corrupt(walk.at, what));
    }
    past.learner.commit_to(index);
    let proven = Proven { end: walk.end, first: past.learner.first() };
    Ok((proven, walk.at, past.learner.kept_for_suspects()))
}

/// Learns only entries up to `to`.
pub(crate) struct Past<'a> {
    pub(crate) learner: &'a mut (dyn Learn + 'a),
    pub(crate) to: EntryIndex,
}

impl Learn for Past<'_> {
    fn learn(&mut self, header: &BlockHeader, body: &[u8]) -> Result<Base, Malformed> {
        if header.raft_index > self.to {
            return Err("block is beyond the entry that was requested");
        }
        self.learner.learn(header, body)
    }

    fn first(&self) -> Index {
        self.learner.first()
    }

    fn commit_to(&mut self, raft: EntryIndex) {
        self.learner.commit_to(raft);
    }

    fn commit(&self) -> EntryIndex {
        self.learner.commit()
    }

    fn fresh_learner(&self) -> Box<dyn Learn + '_> {
        self.learner.fresh_learner()
    }
}

/// Scans a full segment whose footer is missing, damaged or out of date. Its blocks must reach `next`, where the next
/// segment begins; blocks after that are dead.
fn scan_whole(opened: &SegmentFile, next: Base) -> Result<Arc<Segment>> {
    let mut scanner = opened.scanner();
    let mut walk = Walk::new(opened);
    let mut chain = Chain { end: Base::default(), to: next };
    let why = walk.run(&mut scanner, &mut chain)?.unwrap_or("the segment ends here");
    let reached = (walk.end.raft, walk.end.term, walk.end.next) == (next.raft, next.term, next.next);
    let row = decide(Break { clean: false, proven_later: false, successor: true, reached });
    match walk.segment {
        Some(segment) if row.verdict == Verdict::Complete => Ok(segment),
        _ => {
            let what =
                format!("raft index {}, record {}: {why}; {}", walk.end.raft.next(), walk.end.next, row.why);
            Err(opened.corrupt(walk.at, what))
        }
    }
}

/// Follows blocks by their headers alone, up to where the next segment begins.
#[derive(Clone, Copy)]
struct Chain {
    end: Base,
    to: Base,
}

impl Learn for Chain {
    fn learn(&mut self, header: &BlockHeader, _: &[u8]) -> Result<Base, Malformed> {
        if header.raft_index > self.to.raft {
            return Err(
                "the next segment begins before this block, and not at the end of the previous block",
            );
        }
        if header.kind != Kind::Opening {
            let expected = if header.kind.is_entry() { self.end.raft.next() } else { self.end.raft };
            if header.raft_index != expected || header.first < self.end.next || header.term < self.end.term {
                return Err("block does not follow the previous one");
            }
        }
        self.end = Base { raft: header.raft_index, term: header.term, next: header.next_record() };
        // A discard beyond the end moves the next index further than the block's records do. For the last block, the
        // successor shows how far.
        if (self.end.raft, self.end.term) == (self.to.raft, self.to.term) && header.kind == Kind::Command {
            self.end.next = self.to.next;
        }
        Ok(self.end)
    }

    fn first(&self) -> Index {
        Index(0)
    }

    fn commit_to(&mut self, _: EntryIndex) {}

    fn commit(&self) -> EntryIndex {
        EntryIndex(0)
    }

    fn fresh_learner(&self) -> Box<dyn Learn + '_> {
        Box::new(*self)
    }
}

/// Carries out the survey's decisions for the last segment, durably. Returns its file, open for writing, and whether
/// its last block still has to be proven by a marker.
///
/// # Errors
/// `Io`; `Corrupt` if a block that was sound before is not sound any more: the page cache showed bytes that were not on
/// the disk. The directory is unchanged.
pub(crate) fn repair(disk: &dyn Disk, survey: &mut Survey) -> Result<(Arc<dyn DiskFile>, bool)> {
    let Some(segment) = survey.segments.back() else {
        return Err(Error::new(ErrorKind::Corrupt, "the log has no segments"));
    };
    let path = disk.path().join(file_name(segment.number));
    if let Some((path, at, why)) = &survey.torn {
        tracing::warn!(file = %path.display(), offset = at, why, "truncated an unfinished or damaged write: nothing proves that it was durable");
    }
    let io = |e| Error::io("repair", &path, e);
    let file = disk.open(&file_name(segment.number), true).map_err(io)?;
    if let Some(from) = survey.unproven_from {
        write_again(&*file, &mut survey.scanner, from, segment.data_end())?;
    }
    if let Some(range) = &survey.remnants {
        let zeros = vec![0; range.len()];
        file.write_at(range.start as u64, &[IoSlice::new(&zeros)]).map_err(io)?;
    }
    if survey.unproven_from.is_some() || survey.remnants.is_some() {
        file.sync().map_err(io)?;
    }
    Ok((file, survey.unproven))
}

/// Writes the blocks of a range again unchanged, so that the next sync covers them. It writes the same bytes that it
/// checks, because a second read could return others.
fn write_again(file: &dyn DiskFile, scanner: &mut Scanner, from: usize, to: usize) -> Result<()> {
    let path = scanner.path.clone();
    let mut at = from;
    while at < to {
        let header = match scanner.block(at)? {
            Ok((header, _)) => header,
            Err(why) => return Err(scanner.corrupt(at, why)),
        };
        let length = header.length as usize;
        let padding = [0; BLOCK_HEADER_BYTES];
        let block = scanner.bytes(at, length)?;
        let pieces = [IoSlice::new(block), IoSlice::new(&padding[..header.stride() - length])];
        file.write_at(at as u64, &pieces).map_err(|e| Error::io("repair", &path, e))?;
        at += header.stride();
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::store::format::block::BLOCK_HEADER_BYTES;
    use crate::types::{Term, Timestamp};

    fn block(raft: u64, term: u64, first: u64, records: u32, kind: Kind) -> BlockHeader {
        BlockHeader {
            length: BLOCK_HEADER_BYTES as u32,
            batch_count: 0,
            raft_index: EntryIndex(raft),
            term: Term(term),
            first: Index(first),
            timestamp: Timestamp(1),
            record_count: records,
            durable_upto: 0,
            body_digest: 0,
            kind,
        }
    }

    fn base(raft: u64, term: u64, next: u64) -> Base {
        Base { raft: EntryIndex(raft), term: Term(term), next: Index(next) }
    }

    #[test]
    fn chain_takes_what_follows_and_nothing_else() {
        let at = Chain { end: base(5, 2, 30), to: base(7, 3, 90) };
        for (raft, term, first, kind, end) in [
            (6, 2, 30, Kind::Data, Some(base(6, 2, 33))),
            (6, 3, 31, Kind::Data, Some(base(6, 3, 34))),
            (5, 2, 30, Kind::HardState, Some(base(5, 2, 33))),
            (7, 2, 30, Kind::Data, None),
            (5, 2, 30, Kind::Data, None),
            (6, 2, 30, Kind::HardState, None),
            (6, 2, 29, Kind::Data, None),
            (6, 1, 30, Kind::Data, None),
            (7, 3, 30, Kind::Opening, Some(base(7, 3, 33))),
            (8, 3, 30, Kind::Opening, None),
        ] {
            let mut chain = at;
            let learnt = chain.learn(&block(raft, term, first, 3, kind), &[]).ok();
            assert_eq!(learnt, end, "{kind:?} {raft} of term {term} at {first}");
        }
    }

    /// A discard beyond the end moves the next index further than its block's records do.
    #[test]
    fn chain_ends_where_the_next_segment_begins() {
        for (term, kind, next) in [(3, Kind::Command, 90), (2, Kind::Command, 30), (3, Kind::NoOp, 30)] {
            let mut chain = Chain { end: base(6, 2, 30), to: base(7, 3, 90) };
            let end = chain.learn(&block(7, term, 30, 0, kind), &[]);
            assert_eq!(end, Ok(base(7, term, next)), "{kind:?} of term {term}");
        }
    }

    #[test]
    fn past_learns_up_to_its_entry() {
        let mut chain = Chain { end: base(5, 2, 30), to: base(9, 3, 90) };
        let mut past = Past { learner: &mut chain, to: EntryIndex(7) };
        for (raft, is_taken) in [(6, true), (7, true), (8, false)] {
            let learnt = past.learn(&block(raft, 2, 30, 0, Kind::NoOp), &[]);
            assert_eq!(learnt.is_ok(), is_taken, "entry {raft}");
        }
    }

    #[test]
    fn gap_among_prepared_files_is_found() {
        let missing = |last: u64, files: &[(u64, u64)]| {
            let one = |(number, bytes): &(u64, u64)| Leftover { name: file_name(*number), bytes: *bytes };
            first_missing(last, &files.iter().map(one).collect::<Vec<_>>())
        };
        assert_eq!(missing(4, &[]), None);
        assert_eq!(missing(4, &[(6, 9), (5, 9)]), None);
        assert_eq!(missing(4, &[(6, 9)]), Some(5));
        assert_eq!(missing(4, &[(5, 9), (7, 9)]), Some(6));
        assert_eq!(missing(4, &[(5, 0), (6, 9)]), Some(5), "an empty file contains nothing");
    }
}
