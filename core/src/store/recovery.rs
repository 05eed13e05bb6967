//! Recovery: from the files of a directory to a log that goes on where it stopped.
//!
//! [`survey`] looks and decides, and changes nothing; [`repair`] carries out what it decided. A read-only
//! handle stops after the first.
//!
//! Only the last segment is read: sealed ones are trusted for their footers, and verified when they are read.
//! Every bound in the log is proven by what was written later:
//!
//! - a block says up to where its segment was durable when it was written (`durable_upto`);
//! - a segment has a footer only after its successor has durably begun;
//! - a segment begins only after the one before is durable to its end.
//!
//! So where the chain of sound blocks breaks, the [`DECISIONS`] table tells a torn write, which nobody was
//! promised, from rot of what may have been acknowledged.
//!
//! The unproven end of a log (what was written in the last moments before a crash) is written again and
//! synced before anything else happens: after a failed sync and a restart of the process the page cache can
//! show bytes that the disk lacks, and they must not be served before they are durable.

use super::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use super::identity::{Identity, newer};
use super::layout::{FOOTER_BYTES, Footer, HeaderFault, IndexEntry, SEGMENT_HEADER_BYTES, SegmentHeader};
use super::scan::{Found, Later, Scanner};
use super::segment::{Base, Segment, file_name, file_number};
use crate::batch::Malformed;
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, ErrorKind, Result};
use crate::types::Index;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

/// Who learns the blocks of the last segment, in order, and knows what they mean.
pub(crate) trait Learn {
    /// Takes the next block; says what comes after it, or why it cannot follow.
    fn learn(&mut self, header: &BlockHeader, body: &[u8]) -> Result<Base, Malformed>;
    /// The log's first index as of the blocks learnt.
    fn first(&self) -> Index;
}

/// What is to be done where the chain of sound blocks ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All is there.
    Complete,
    /// A write that was never acknowledged: cut it off.
    Torn,
    /// Bytes that may have been acknowledged are damaged: refuse.
    Corrupt,
}

/// What can be known of the place where the chain of sound blocks ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Break {
    /// The chain ends at the segment's end, or at zeros behind which no block of this segment stands.
    pub(crate) clean: bool,
    /// A later block of the same segment says that bytes from the break on were durable.
    pub(crate) proven_later: bool,
    /// The segment's successor has begun, or the segment has a footer.
    pub(crate) successor: bool,
    /// The chain has reached the place where the successor begins.
    pub(crate) reached: bool,
}

/// One row: the conditions (`None`: does not matter) and the verdict. The first row that fits counts.
pub(crate) struct Row {
    pub(crate) clean: Option<bool>,
    pub(crate) proven_later: Option<bool>,
    pub(crate) successor: Option<bool>,
    pub(crate) reached: Option<bool>,
    pub(crate) verdict: Verdict,
    pub(crate) why: &'static str,
}

/// The decision table of recovery.
pub(crate) static DECISIONS: [Row; 5] = [
    Row {
        clean: None,
        proven_later: None,
        successor: Some(true),
        reached: Some(true),
        verdict: Verdict::Complete,
        why: "the next segment goes on where the sound blocks end",
    },
    Row {
        clean: None,
        proven_later: None,
        successor: Some(true),
        reached: Some(false),
        verdict: Verdict::Corrupt,
        why: "a segment begins only after the one before is durable to its end",
    },
    Row {
        clean: None,
        proven_later: Some(true),
        successor: Some(false),
        reached: None,
        verdict: Verdict::Corrupt,
        why: "a later block says that these bytes were durable",
    },
    Row {
        clean: Some(true),
        proven_later: Some(false),
        successor: Some(false),
        reached: None,
        verdict: Verdict::Complete,
        why: "nothing was ever written behind the sound blocks",
    },
    Row {
        clean: Some(false),
        proven_later: Some(false),
        successor: Some(false),
        reached: None,
        verdict: Verdict::Torn,
        why: "nothing says that these bytes were durable, so nobody was promised them",
    },
];

/// Looks a break up in [`DECISIONS`].
pub(crate) fn decide(b: Break) -> &'static Row {
    let fits = |want: Option<bool>, is: bool| want.is_none_or(|w| w == is);
    let row = DECISIONS.iter().find(|r| {
        fits(r.clean, b.clean)
            && fits(r.proven_later, b.proven_later)
            && fits(r.successor, b.successor)
            && fits(r.reached, b.reached)
    });
    match row {
        Some(row) => row,
        None => unreachable!("the table covers every case; a test tries them all"),
    }
}

/// What a survey found.
#[derive(Debug)]
pub(crate) struct Survey {
    /// The log's segments, oldest first; the last one goes on.
    pub(crate) segments: VecDeque<Arc<Segment>>,
    /// What comes after the last block that is proven durable.
    pub(crate) proven: Base,
    /// The place where the last segment stopped, for a read-only handle to go on from.
    pub(crate) follow: Follow,
    /// Where the blocks begin that nothing proves; the last marker is always one of them.
    unproven_from: Option<usize>,
    /// Whether any of them is more than a marker.
    unproven: bool,
    /// Bytes behind the last block that must not stay.
    remnants: Option<std::ops::Range<usize>>,
    /// Full segments without a footer.
    pub(crate) unsealed: Vec<Arc<Segment>>,
    /// Files that hold nothing of the log any more: prepared and not begun, or discarded.
    pub(crate) leftovers: Vec<Leftover>,
    /// Bytes of a torn write that were cut, for the log of the program.
    pub(crate) torn: Option<(PathBuf, usize, Malformed)>,
}

/// A file that can be used again or removed.
#[derive(Debug)]
pub(crate) struct Leftover {
    pub(crate) name: String,
    /// Its size if it can be reused; 0 if it is only to be removed.
    pub(crate) bytes: u64,
}

/// An opened segment file with its header checked.
struct Opened {
    file: Arc<dyn DiskFile>,
    header: SegmentHeader,
    path: PathBuf,
    footer: Option<Footer>,
}

/// The files of a directory.
struct Files<'a> {
    disk: &'a dyn Disk,
    identity: Identity,
    /// Segment files that are still to be looked at, by number.
    names: BTreeMap<u64, String>,
}

impl Files<'_> {
    /// Opens segment `number` and checks its header. `None`: an exact copy of another segment, to be ignored.
    fn open(&self, number: u64, write: bool) -> Result<Option<Opened>> {
        let name = file_name(number);
        let path = self.disk.path().join(&name);
        let io = |doing: &'static str| {
            let path = path.clone();
            move |e: io::Error| Error::io(doing, &path, e)
        };
        let file = self.disk.open(&name, write).map_err(io("open"))?;
        let length = file.len().map_err(io("measure"))?;
        if length < (SEGMENT_HEADER_BYTES + FOOTER_BYTES) as u64 {
            return Err(Error::corrupt(&path, length, "the file is cut off"));
        }
        let mut head = vec![0; SEGMENT_HEADER_BYTES];
        file.read_at(0, &mut head).map_err(io("read"))?;
        let header = SegmentHeader::parse(&head).map_err(|fault| match fault {
            HeaderFault::Malformed(why) => Error::corrupt(&path, 0, why),
            HeaderFault::Newer(reader_min) => newer(&path, reader_min),
        })?;
        if u64::from(header.bytes) != length {
            let what = format!("the file has {length} bytes and was made with {}", header.bytes);
            return Err(Error::corrupt(&path, length.min(header.bytes.into()), what));
        }
        if header.log != self.identity.log {
            return Err(Error::corrupt(&path, 24, "the segment belongs to another log"));
        }
        if header.number != number {
            if self.is_copy(&*file, header.number, length)? {
                tracing::warn!(file = %path.display(), original = header.number, "ignored: a copy of another segment");
                return Ok(None);
            }
            return Err(Error::corrupt(
                &path,
                40,
                format!("the file says that it is segment {}", header.number),
            ));
        }
        let mut tail = [0; FOOTER_BYTES];
        file.read_at(length - FOOTER_BYTES as u64, &mut tail).map_err(io("read"))?;
        let footer = Footer::parse(&tail, number, header.id).ok();
        Ok(Some(Opened { file, header, path, footer }))
    }

    /// Whether `file` has the same bytes as segment `number`.
    fn is_copy(&self, file: &dyn DiskFile, number: u64, length: u64) -> Result<bool> {
        let name = file_name(number);
        let path = self.disk.path().join(&name);
        let Ok(original) = self.disk.open(&name, false) else { return Ok(false) };
        if original.len().ok() != Some(length) {
            return Ok(false);
        }
        let (mut a, mut b) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut at = 0;
        while at < length {
            let n = a.len().min((length - at) as usize);
            file.read_at(at, &mut a[..n]).map_err(|e| Error::io("read", &path, e))?;
            original.read_at(at, &mut b[..n]).map_err(|e| Error::io("read", &path, e))?;
            if a[..n] != b[..n] {
                return Ok(false);
            }
            at += n as u64;
        }
        Ok(true)
    }

    /// Takes a file that holds nothing of the log out of the picture.
    fn leave(&mut self, number: u64) -> Result<Leftover> {
        let name = self.names.remove(&number).unwrap_or_else(|| file_name(number));
        let path = self.disk.path().join(&name);
        let length = self.disk.open(&name, false).and_then(|f| f.len());
        Ok(Leftover { bytes: length.map_err(|e| Error::io("measure", &path, e))?, name })
    }
}

impl Opened {
    fn scanner(&self) -> Scanner {
        Scanner::new(self.file.clone(), self.path.clone(), self.header.id, self.header.bytes as usize)
    }

    /// Whether its opening block is there. If not: whether a later block proves that it was.
    fn has_begun(&self) -> Result<Begun> {
        let mut scanner = self.scanner();
        let opening = match scanner.block(SEGMENT_HEADER_BYTES)? {
            Found::Block(header, _) => Ok(header),
            Found::Nothing(why) => Err(why),
            Found::Limit => Err("segment has no room for blocks"),
        };
        match opening {
            Ok(header) if header.kind == Kind::Opening => Ok(Begun::Yes),
            Ok(_) => Ok(Begun::Damaged("the first block is no opening block")),
            Err(why) => Ok(Begun::No(why)),
        }
    }
}

enum Begun {
    Yes,
    No(Malformed),
    Damaged(Malformed),
}

/// Looks at all files, reads the last segment to `learner`, and decides. Changes nothing.
///
/// # Errors
/// `Corrupt`, naming file and offset; `Unsupported` for a newer format; `Io`.
pub(crate) fn survey(disk: &dyn Disk, identity: Identity, learner: &mut dyn Learn) -> Result<Survey> {
    let names = disk.list().map_err(|e| Error::io("list", disk.path(), e))?;
    let names = names.into_iter().filter_map(|n| file_number(&n).map(|number| (number, n))).collect();
    let mut files = Files { disk, identity, names };
    let mut leftovers = Vec::new();
    let (last, opened) = last_begun(&mut files, &mut leftovers)?;
    let mut survey = read_last(&opened, learner)?;
    files.names.remove(&last);
    walk_back(&mut files, &mut survey, learner.first())?;
    for number in files.names.keys().copied().collect::<Vec<_>>() {
        leftovers.push(files.leave(number)?);
    }
    survey.leftovers = leftovers;
    Ok(survey)
}

/// Finds the last segment that has begun; those above it are leftovers.
fn last_begun(files: &mut Files<'_>, leftovers: &mut Vec<Leftover>) -> Result<(u64, Opened)> {
    let mut above: Option<(u64, Opened, Malformed)> = None;
    while let Some(number) = files.names.last_key_value().map(|(n, _)| *n) {
        let Some(opened) = files.open(number, false)? else {
            // Once its original grows it would be a contradiction.
            let name = files.names.remove(&number).unwrap_or_else(|| file_name(number));
            leftovers.push(Leftover { name, bytes: 0 });
            continue;
        };
        match opened.has_begun()? {
            Begun::Damaged(why) => {
                return Err(Error::corrupt(&opened.path, SEGMENT_HEADER_BYTES as u64, why));
            }
            Begun::No(why) => {
                leftovers.push(files.leave(number)?);
                above = Some((number, opened, why));
            }
            Begun::Yes => {
                check_successor(number, &opened, above)?;
                return Ok((number, opened));
            }
        }
    }
    // A log is made with its first segment begun before it has an identity.
    Err(Error::corrupt(
        files.disk.path(),
        0,
        "no segment holds the log's beginning: its files are missing or damaged",
    ))
}

/// The last segment that has begun must really be the last one.
fn check_successor(number: u64, last: &Opened, above: Option<(u64, Opened, Malformed)>) -> Result<()> {
    let next = above.filter(|(n, ..)| *n == number + 1);
    if last.footer.is_some() {
        let what = format!("segment {number} is sealed, so the next one had begun");
        return Err(match next {
            Some((_, opened, why)) => {
                Error::corrupt(&opened.path, SEGMENT_HEADER_BYTES as u64, format!("{why}; {what}"))
            }
            None => Error::corrupt(
                &last.path,
                0,
                format!("{what}, and its file {} is missing", file_name(number + 1)),
            ),
        });
    }
    let Some((_, opened, why)) = next else { return Ok(()) };
    let later = opened.scanner().later(SEGMENT_HEADER_BYTES)?;
    let at = SEGMENT_HEADER_BYTES;
    let found =
        Break { clean: false, proven_later: later.durable_upto > at, successor: false, reached: false };
    match decide(found) {
        row if row.verdict == Verdict::Corrupt => {
            Err(Error::corrupt(&opened.path, at as u64, format!("{why}; {}", row.why)))
        }
        _ => Ok(()),
    }
}

/// Reads the last segment and decides where it ends.
fn read_last(opened: &Opened, learner: &mut dyn Learn) -> Result<Survey> {
    let mut scanner = opened.scanner();
    let mut walk = Walk::new(opened);
    let why = walk.run(&mut scanner, learner)?;
    let at = walk.at;
    let later = if at < scanner.limit() { scanner.later(at)? } else { Later::default() };
    let zeros = why.is_none() || scanner.bytes(at, BLOCK_HEADER_BYTES)?.iter().all(|b| *b == 0);
    let clean = zeros && later.end <= at;
    let row =
        decide(Break { clean, proven_later: later.durable_upto > at, successor: false, reached: false });
    let why = why.unwrap_or("no block begins here");
    if row.verdict == Verdict::Corrupt {
        let what =
            format!("raft index {}, record {}: {why}; {}", walk.end.raft.next(), walk.end.next, row.why);
        return Err(Error::corrupt(&opened.path, at as u64, what));
    }
    let Some(segment) = walk.segment.clone() else {
        return Err(Error::corrupt(&opened.path, SEGMENT_HEADER_BYTES as u64, why));
    };
    // Of a recycled file what follows is usually an older life's: salted, so harmless, but cheap to clear.
    let end = later.end.max(at + BLOCK_HEADER_BYTES).min(scanner.limit());
    Ok(Survey {
        segments: VecDeque::from([segment]),
        proven: walk.proven,
        unproven_from: walk.unproven.front().map(|u| u.from),
        unproven: walk.unproven.iter().any(|u| !u.marker),
        remnants: (!clean && at < end).then_some(at..end),
        unsealed: Vec::new(),
        leftovers: Vec::new(),
        torn: (later.end > at).then(|| (opened.path.clone(), at, why)),
        follow: Follow { scanner, walk },
    })
}

/// Walks a segment's blocks from its opening block on.
#[derive(Debug)]
struct Walk {
    header: SegmentHeader,
    segment: Option<Arc<Segment>>,
    at: usize,
    end: Base,
    /// What comes after the last block known durable.
    proven: Base,
    /// Blocks not known durable.
    unproven: VecDeque<Unproven>,
}

/// A block that nothing behind it says was durable.
#[derive(Clone, Copy, Debug)]
struct Unproven {
    from: usize,
    to: usize,
    /// What comes after it.
    end: Base,
    /// A marker needs no marker. But it has to stay if blocks are to follow it, so it is no less unproven.
    marker: bool,
}

impl Walk {
    fn new(opened: &Opened) -> Self {
        Self {
            header: opened.header,
            segment: None,
            at: SEGMENT_HEADER_BYTES,
            end: Base::default(),
            proven: Base::default(),
            unproven: VecDeque::new(),
        }
    }

    /// Goes as far as blocks are sound and follow each other. Returns why it stopped; `None` at the limit.
    fn run(&mut self, scanner: &mut Scanner, learner: &mut dyn Learn) -> Result<Option<Malformed>> {
        loop {
            let (header, end) = match scanner.block(self.at)? {
                Found::Block(header, _) if (header.kind == Kind::Opening) != self.segment.is_none() => {
                    return Ok(Some("opening block out of place"));
                }
                Found::Block(header, body) => match learner.learn(&header, body) {
                    Ok(end) => (header, end),
                    Err(why) => return Ok(Some(why)),
                },
                Found::Nothing(why) => return Ok(Some(why)),
                Found::Limit => return Ok(None),
            };
            self.take(&header, end);
        }
    }

    /// All that was walked is durable, as the next segment's beginning says.
    fn prove_all(&mut self) {
        self.unproven.clear();
        self.proven = self.end;
        if let Some(segment) = &self.segment {
            segment.publish(self.at);
        }
    }

    fn take(&mut self, header: &BlockHeader, end: Base) {
        let SegmentHeader { number, id, bytes, .. } = self.header;
        let segment = self.segment.get_or_insert_with(|| {
            // What lies before this segment is durable, or it would not have begun.
            self.proven = end;
            Arc::new(Segment::growing(number, id, bytes, end, header.timestamp))
        });
        let entry = IndexEntry {
            first: header.first,
            raft_index: header.raft_index,
            timestamp: header.timestamp,
            offset: self.at as u32,
        };
        segment.grow(entry, header.stride(), end);
        while let Some(block) = self.unproven.front().filter(|u| u.to <= header.durable_upto as usize) {
            self.proven = block.end;
            segment.publish(block.to);
            self.unproven.pop_front();
        }
        let from = self.at;
        self.at += header.stride();
        self.end = end;
        let marker = header.kind == Kind::Marker;
        self.unproven.push_back(Unproven { from, to: self.at, end, marker });
    }
}

/// The end of a log that another process writes.
#[derive(Debug)]
pub(crate) struct Follow {
    scanner: Scanner,
    walk: Walk,
}

impl Follow {
    /// What comes after the last block known durable.
    pub(crate) fn proven(&self) -> Base {
        self.walk.proven
    }

    /// Learns the blocks that were added since. Returns the segments that have begun meanwhile.
    ///
    /// # Errors
    /// `Corrupt` when a block is damaged that a later one proves; `Io`.
    pub(crate) fn advance(
        &mut self,
        disk: &dyn Disk,
        identity: Identity,
        learner: &mut dyn Learn,
    ) -> Result<Vec<Arc<Segment>>> {
        let mut begun = Vec::new();
        loop {
            self.scanner.refresh();
            let before = self.walk.at;
            let why = self.walk.run(&mut self.scanner, learner)?;
            if let Some(next) = self.successor(disk, identity)? {
                // It goes on where this one ends, which is durable then.
                self.walk.prove_all();
                let mut walk = Walk::new(&next);
                let mut scanner = next.scanner();
                walk.run(&mut scanner, learner)?;
                begun.extend(walk.segment.clone());
                (self.scanner, self.walk) = (scanner, walk);
                continue;
            }
            if self.walk.at > before {
                continue;
            }
            if let Some(why) = why {
                self.check_damage(why)?;
            }
            return Ok(begun);
        }
    }

    /// The next segment, if it has begun where this one ends now.
    fn successor(&self, disk: &dyn Disk, identity: Identity) -> Result<Option<Opened>> {
        let files = Files { disk, identity, names: BTreeMap::new() };
        let Ok(Some(opened)) = files.open(self.walk.header.number + 1, false) else { return Ok(None) };
        let mut scanner = opened.scanner();
        let begins_here = matches!(
            scanner.block(SEGMENT_HEADER_BYTES)?,
            Found::Block(h, _) if h.kind == Kind::Opening
                && (h.raft_index, h.term, h.first) == (self.walk.end.raft, self.walk.end.term, self.walk.end.next)
        );
        Ok(begins_here.then_some(opened))
    }

    /// Where nothing sound follows, there is either nothing yet or damage: a block that proves it tells.
    fn check_damage(&mut self, why: Malformed) -> Result<()> {
        let at = self.walk.at;
        self.scanner.refresh();
        let later = self.scanner.later_within(at, at + DAMAGE_SEARCH_BYTES)?;
        self.scanner.refresh();
        // The writer may have written it just now: only what is still unsound is damaged.
        if later.durable_upto > at && matches!(self.scanner.block(at)?, Found::Nothing(_)) {
            return Err(Error::corrupt(&self.scanner.path, at as u64, why));
        }
        Ok(())
    }
}

/// How far a read-only handle looks for proof of damage.
const DAMAGE_SEARCH_BYTES: usize = 1 << 20;

/// Adds the segments before the last one, back to the one that holds record `first`.
fn walk_back(files: &mut Files<'_>, survey: &mut Survey, first: Index) -> Result<()> {
    while let Some(after) =
        survey.segments.front().map(|s| (s.number, s.base)).filter(|(_, b)| b.next > first)
    {
        let (successor, base) = after;
        let number = successor - 1;
        let opened = match files.names.remove(&number) {
            Some(_) => files.open(number, false)?,
            None => None,
        };
        let Some(opened) = opened else {
            let what =
                format!("its file {} is missing; it holds records below {}", file_name(number), base.next);
            return Err(Error::corrupt(files.disk.path(), 0, format!("segment {number} is needed: {what}")));
        };
        let links = |f: &Footer| (f.last_raft, f.last_term, f.next) == (base.raft, base.term, base.next);
        let segment = match opened.footer.filter(links) {
            Some(footer) => Arc::new(Segment::sealed(&footer, opened.header.bytes)),
            None => {
                let segment = scan_whole(&opened, base)?;
                survey.unsealed.push(segment.clone());
                segment
            }
        };
        survey.segments.push_front(segment);
    }
    Ok(())
}

/// A full segment whose footer is missing or damaged, from its blocks, which must reach to `next`.
fn scan_whole(opened: &Opened, next: Base) -> Result<Arc<Segment>> {
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
            Err(Error::corrupt(&opened.path, walk.at as u64, what))
        }
    }
}

/// Follows blocks by their headers alone, up to where the next segment begins.
struct Chain {
    end: Base,
    to: Base,
}

impl Learn for Chain {
    fn learn(&mut self, header: &BlockHeader, _: &[u8]) -> Result<Base, Malformed> {
        if header.kind != Kind::Opening {
            let expected = if header.kind.is_entry() { self.end.raft.next() } else { self.end.raft };
            if header.raft_index != expected || header.first < self.end.next || header.term < self.end.term {
                return Err("block does not follow the one before");
            }
        }
        self.end = Base { raft: header.raft_index, term: header.term, next: header.next_record() };
        // A discard beyond the end moves the next index further than the block's records do; after the last
        // block the successor tells how far.
        if (self.end.raft, self.end.term) == (self.to.raft, self.to.term) && header.kind == Kind::Command {
            self.end.next = self.to.next;
        }
        Ok(self.end)
    }

    fn first(&self) -> Index {
        Index(0)
    }
}

/// Carries out what the survey decided for the last segment, durably. Returns its file, open for writing, and
/// whether its last block still is to be proven by a marker.
///
/// # Errors
/// `Io`; the directory is as sound as before.
pub(crate) fn repair(disk: &dyn Disk, survey: &Survey) -> Result<(Arc<dyn DiskFile>, bool)> {
    let Some(segment) = survey.segments.back() else {
        return Err(Error::new(ErrorKind::Corrupt, "a log without segments"));
    };
    let path = disk.path().join(file_name(segment.number));
    if let Some((path, at, why)) = &survey.torn {
        tracing::warn!(file = %path.display(), offset = at, why, "cut a torn write that was never acknowledged");
    }
    let work = || -> io::Result<Arc<dyn DiskFile>> {
        let file = disk.open(&file_name(segment.number), true)?;
        if let Some(from) = survey.unproven_from {
            copy_onto_itself(&*file, from, segment.data_end())?;
        }
        if let Some(range) = &survey.remnants {
            let zeros = vec![0; range.len()];
            file.write_at(range.start as u64, &[IoSlice::new(&zeros)])?;
        }
        if survey.unproven_from.is_some() || survey.remnants.is_some() {
            file.sync()?;
        }
        Ok(file)
    };
    let file = work().map_err(|e| Error::io("repair", &path, e))?;
    Ok((file, survey.unproven))
}

/// Writes a range again as it is, so that the next sync covers it.
fn copy_onto_itself(file: &dyn DiskFile, from: usize, to: usize) -> io::Result<()> {
    let mut at = from;
    let mut buffer = vec![0; (to - from).min(1 << 20)];
    while at < to {
        let n = buffer.len().min(to - at);
        file.read_at(at as u64, &mut buffer[..n])?;
        file.write_at(at as u64, &[IoSlice::new(&buffer[..n])])?;
        at += n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination has a row, and each row is some combination's.
    #[test]
    fn the_table_is_complete_and_every_row_is_needed() {
        let mut used = [0; DECISIONS.len()];
        for bits in 0..16u8 {
            let bit = |n: u8| bits >> n & 1 == 1;
            let row =
                decide(Break { clean: bit(0), proven_later: bit(1), successor: bit(2), reached: bit(3) });
            let n = DECISIONS.iter().position(|r| std::ptr::eq(r, row)).unwrap();
            used[n] += 1;
            if bit(1) && !bit(2) {
                assert_eq!(row.verdict, Verdict::Corrupt, "proven bytes are never cut");
            }
        }
        assert!(used.iter().all(|n| *n > 0), "{used:?}");
    }
}
