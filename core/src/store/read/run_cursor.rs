//! Run cursor: finds the runs of one log of a shared group, for readers: in the sorted copy of a segment if there is one, else in the
//! segment. It keeps the file that it reads, so that returned bytes stay valid even if the segment is dropped. At the tail it keeps none.
//!
//! Invariants:
//! - it reads only below `Segment::readable`;
//! - objects that cannot be read are passed over only if the record was found in another one; else their error is returned;
//! - a record that cannot be read from a copy is read from the segment: a copy that is damaged, or lacks it, costs time only;
//! - only damage in a copy's own bytes is blamed on it: the slice of a record can be damaged, too.

use super::block_reader::{Blocks, Slice, WINDOW_BYTES};
use super::opening_search::Found;
use super::run_directory::{
    Holding, RunDirectories, RunDirectory, RunPlace, in_opening, not_here, unknown_object,
};
use super::sorted_copies::SortedCopy;
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::Malformed;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader};
use crate::store::format::logs::state_of;
use crate::store::objects::cache::SORTED_CHUNK_BYTES;
use crate::store::segment::objects::{is_sorted_object, object_of};
use crate::store::segment::{Segment, SegmentData, Source};
use crate::types::{EntryIndex, Index, LogNumber, Timestamp};
use std::sync::{Arc, Weak};

/// The batches of one run. Their list is checked, their payloads are not.
#[derive(Debug)]
pub(crate) struct FoundRun {
    pub(crate) bytes: Slice,
    /// Their offset in the segment's file.
    pub(crate) offset: usize,
    /// The index of the first record.
    pub(crate) first: Index,
    pub(crate) timestamp: Timestamp,
}

/// In how many further segments a reader looks for the next record of its log before it searches all of them.
const NEXT_MAX: usize = 2;

/// How far a sequential reader of an object reads ahead: as many chunks as are fetched at a time.
const OBJECT_AHEAD_BYTES: usize = 8 * SORTED_CHUNK_BYTES;

/// Where a cursor reads.
#[derive(Debug)]
enum Position {
    Segment {
        directory: Arc<RunDirectory>,
        blocks: Blocks,
    },
    /// The blocks of the log in a sorted copy end at `end`; the one that was looked at last begins at `block`.
    Copy {
        copy: Arc<SortedCopy>,
        blocks: Blocks,
        end: usize,
        block: usize,
    },
    /// At the tail, in this segment. The next record can be long in coming, and the segment can be dropped before: nothing keeps its
    /// file, or its place in memory.
    Tail {
        data: Weak<SegmentData>,
    },
}

impl Position {
    fn of_copy(copy: Arc<SortedCopy>, blocks: Blocks, end: usize) -> Self {
        let block = blocks.at();
        Self::Copy { copy, blocks, end, block }
    }

    fn in_segment(directory: Arc<RunDirectory>, data: Arc<SegmentData>) -> Self {
        Self::Segment { directory, blocks: Blocks::new(data, 0, WINDOW_BYTES) }
    }
}

/// A search for the first record since a time.
#[derive(Clone, Copy)]
struct Since {
    time: Timestamp,
    /// The log's first record that is not discarded.
    first: Index,
}

/// The result of a look for the first record since a time.
enum Look {
    Done(Option<Index>),
    /// It is in these objects, or behind them.
    In(Vec<Arc<Segment>>),
}

/// Reads the runs of one log.
#[derive(Debug)]
pub(crate) struct RunCursor {
    directories: Arc<RunDirectories>,
    log: LogNumber,
    position: Option<Position>,
    /// How many runs were found. A single look-up needs no read-ahead.
    found: u32,
    /// The [name](SortedCopy::name) of the copy that it has left, because of damage or a hole: it reads the segment.
    left: Option<(u64, u64)>,
}

impl RunCursor {
    pub(crate) fn new(directories: Arc<RunDirectories>, log: LogNumber) -> Self {
        Self { directories, log, position: None, found: 0, left: None }
    }

    /// Returns the run that contains record `next`, which is committed.
    ///
    /// # Errors
    /// `Corrupt`: the run or its block's table is damaged, or no block contains the record; `Io`.
    pub(crate) fn find(&mut self, next: Index) -> Result<FoundRun> {
        let found = self.look_for(next)?;
        self.found = self.found.saturating_add(1);
        self.read_ahead();
        Ok(found)
    }

    /// Has what comes next of an object fetched by other threads, if this reads on.
    fn read_ahead(&self) {
        if let Some(Position::Copy { blocks, end, .. }) = &self.position
            && let Source::Object(object) = &blocks.data().source
            && self.found > 1
        {
            object.will_need(blocks.at()..(*end).min(blocks.at() + OBJECT_AHEAD_BYTES));
        }
    }

    fn look_for(&mut self, next: Index) -> Result<FoundRun> {
        if let Some(found) = self.find_here(next)? {
            return Ok(found);
        }
        if let Some(found) = self.find_in_next_copies(next)? {
            return Ok(found);
        }
        self.position = None; // an error from here on is not of the copy
        let holding = self.directories.holding(self.log, next)?;
        let segment = holding.segment.clone();
        match self.find_in_any(holding, next)? {
            Some(found) => Ok(found),
            None => self.find_surely(segment, next),
        }
    }

    /// Returns the run that contains record `next`, from the segment that begins before it, or from a file behind that whose opening cannot
    /// be read.
    fn find_in_any(&mut self, holding: Holding, next: Index) -> Result<Option<FoundRun>> {
        let Holding { segment, behind, mut unreadable } = holding;
        let found = self.find_in_segment(&segment, next);
        if matches!(found, Ok(Some(_))) {
            return found;
        }
        for file in &behind {
            match self.find_in_segment(file, next) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(error) => unreadable = Some(error), // nearer to the record than that of an opening
            }
        }
        match (found, unreadable) {
            (found, None) => found,
            (Ok(_), Some(error)) => Err(error), // the record is in it
            (Err(error), Some(other)) => {
                let what = format!("{error}; the record may also be in what cannot be read either: {other}");
                Err(error.with_message(what))
            }
        }
    }

    /// Returns the run that contains record `next`, which is not in the segment that seems to have it: an opening can be damaged.
    fn find_surely(&mut self, seemed: Arc<Segment>, next: Index) -> Result<FoundRun> {
        let holding = self.directories.surely_holding(self.log, next)?;
        let segment = holding.segment.clone();
        let is_new = holding.unreadable.is_some() || !Arc::ptr_eq(&segment, &seemed);
        let found = if is_new { self.find_in_any(holding, next)? } else { None };
        found.ok_or_else(|| self.lacks(&segment, next))
    }

    /// Returns the run that contains record `next`, if it is in this segment or object.
    fn find_in_segment(&mut self, segment: &Arc<Segment>, next: Index) -> Result<Option<FoundRun>> {
        if let Some(found) = self.find_in_copy(segment, next)? {
            return Ok(Some(found));
        }
        self.enter(segment, next)?;
        if let Some(found) = self.find_here(next)? {
            return Ok(Some(found));
        }
        if let Some(Position::Segment { directory, blocks }) = &self.position {
            directory.read_gaps(blocks.data())?;
        }
        self.find_here(next)
    }

    /// The error of a segment or an object that lacks a record, although openings say that it contains it.
    fn lacks(&self, segment: &Arc<Segment>, next: Index) -> Error {
        let is_last_object = object_of(segment).is_some()
            && self.directories.segments().objects().after(segment).is_ok_and(|next| next.is_none());
        if is_last_object {
            return not_here(self.log, next);
        }
        let what = format!("record {next} of log {} is committed, but no block contains it", self.log);
        Error::new(ErrorKind::Corrupt, what)
    }

    /// Goes to the records of a segment or an object from about `next` on.
    fn enter(&mut self, segment: &Arc<Segment>, next: Index) -> Result<()> {
        if is_sorted_object(segment) {
            let copy = self.directories.sorted_object(segment)?;
            let blocks = copy.blocks(self.log, next, WINDOW_BYTES);
            self.position = blocks.map(|(blocks, end)| Position::of_copy(copy, blocks, end));
            return Ok(());
        }
        let directory = self.directories.of(segment);
        let data = self.directories.segments().open(segment)?;
        self.position = Some(Position::in_segment(directory, data));
        Ok(())
    }

    /// Goes on in the object that contains record `next`, if there is one: what is here is damaged. An object that came damaged is
    /// fetched once more. False: no object is known to contain it.
    ///
    /// # Errors
    /// Those of reading an object.
    pub(crate) fn go_to_object(&mut self, next: Index) -> Result<bool> {
        self.position = None;
        let Some(found) = self.directories.object_holding(self.log, next)? else { return Ok(false) };
        let Holding { segment: object, unreadable, .. } = found;
        self.enter(&object, next)?;
        let is_there = self.find_here(next)?.is_some();
        self.position = None;
        if is_there {
            self.enter(&object, next)?; // the look has passed it
            return Ok(true);
        }
        unreadable.map_or(Ok(false), Err)
    }

    /// Returns the run that contains record `next`, in this object, whatever the log has discarded since.
    ///
    /// # Errors
    /// `Corrupt`: it does not contain the record, or is damaged. Those of reading an object.
    pub(crate) fn find_in(&mut self, object: &Arc<Segment>, next: Index) -> Result<FoundRun> {
        self.enter(object, next)?;
        self.find_here(next)?.ok_or_else(|| {
            let number = object_of(object).unwrap_or(object.number);
            let what = format!("object {number} lacks record {next} of log {}", self.log);
            Error::new(ErrorKind::Corrupt, what)
        })
    }

    /// From one sorted copy to the next: returns the run that contains record `next`, if it is in the copy of one of the next
    /// segments. This is much faster than a search for the segment.
    fn find_in_next_copies(&mut self, next: Index) -> Result<Option<FoundRun>> {
        let Some(Position::Copy { copy, .. }) = &self.position else { return Ok(None) };
        if let Some(object) = copy.object() {
            let objects = self.directories.segments().objects();
            // Of an object that is not sorted, the general search knows more.
            let Some(object) = objects.after(object)?.filter(|object| is_sorted_object(object)) else {
                return Ok(None);
            };
            // If it cannot be read, the record may be in a later one all the same.
            return Ok(self.enter(&object, next).and_then(|()| self.find_here(next)).unwrap_or_default());
        }
        let mut number = copy.number();
        for _ in 0..NEXT_MAX {
            let Some(segment) = self.directories.segments().after(number) else { return Ok(None) };
            let Some(copy) = self.copy_of(&segment) else { return Ok(None) };
            if let Some((blocks, end)) = copy.blocks(self.log, next, WINDOW_BYTES) {
                self.position = Some(Position::of_copy(copy, blocks, end));
                return self.find_here(next);
            }
            number = segment.number;
        }
        Ok(None)
    }

    /// The sorted copy of a segment, if this can be read from it.
    fn copy_of(&self, segment: &Segment) -> Option<Arc<SortedCopy>> {
        self.not_left(self.directories.copies().of(segment))
    }

    /// The same for a segment that is damaged: it awaits the end of a change of the copy.
    fn needed_copy_of(&self, segment: &Segment) -> Option<Arc<SortedCopy>> {
        self.not_left(self.directories.copies().needed_of(segment))
    }

    fn not_left(&self, copy: Option<Arc<SortedCopy>>) -> Option<Arc<SortedCopy>> {
        copy.filter(|copy| self.left != Some(copy.name()))
    }

    /// Returns the run that contains record `next`, if it is in the sorted copy of its segment.
    fn find_in_copy(&mut self, segment: &Segment, next: Index) -> Result<Option<FoundRun>> {
        if self.enter_copy(self.copy_of(segment), next) { self.find_here(next) } else { Ok(None) }
    }

    /// Goes to this sorted copy, from about record `next` on. False: there is none, or it lacks the record.
    fn enter_copy(&mut self, copy: Option<Arc<SortedCopy>>, next: Index) -> bool {
        let Some(copy) = copy else { return false };
        let Some((blocks, end)) = copy.blocks(self.log, next, WINDOW_BYTES) else { return false };
        self.position = Some(Position::of_copy(copy, blocks, end));
        true
    }

    /// Returns the run that contains record `next`, if it is in the file where the cursor is.
    fn find_here(&mut self, next: Index) -> Result<Option<FoundRun>> {
        match &mut self.position {
            None => Ok(None),
            Some(Position::Tail { data }) => {
                // Its directory counts as used: readers at the tail alone keep it among the recent ones.
                let entered =
                    data.upgrade().map(|data| Position::in_segment(self.directories.of(&data.segment), data));
                self.position = entered;
                // It is in a segment now, or nowhere.
                if self.position.is_some() { self.find_here(next) } else { Ok(None) }
            }
            Some(Position::Segment { directory, blocks }) => {
                run_in_segment(directory, blocks, self.log, next)
            }
            Some(Position::Copy { copy, blocks, end, block }) => match run_in_copy(blocks, *end, next, block)
            {
                Err(error) if copy.object().is_none() => {
                    self.leave_copy(&error);
                    Ok(None)
                }
                found => found,
            },
        }
    }

    /// If `why` is damage in the file that the cursor reads: goes on in the other one that has record `next`, the segment or its sorted copy.
    /// False: the damage is elsewhere, as in what a record refers to, or there is no other file.
    pub(crate) fn go_to_other_file(&mut self, next: Index, why: &Error) -> bool {
        let Some(Position::Segment { blocks, .. } | Position::Copy { blocks, .. }) = &self.position else {
            return false;
        };
        let data = blocks.data().clone();
        if why.location().is_none_or(|(path, _)| path != data.path) {
            return false;
        }
        match &self.position {
            Some(Position::Segment { .. }) if object_of(&data.segment).is_none() => {
                self.enter_copy(self.needed_copy_of(&data.segment), next)
            }
            Some(Position::Copy { .. }) => self.leave_copy(why),
            _ => false,
        }
    }

    /// If the cursor reads a sorted copy: reports that it cannot be read, for this reason, and goes on in the segment. False: it reads
    /// none.
    fn leave_copy(&mut self, why: &Error) -> bool {
        let Some(Position::Copy { copy, blocks, block, .. }) = &self.position else { return false };
        if copy.object().is_some() {
            return false;
        }
        let looked_at = *block..blocks.at().max(*block + BLOCK_HEADER_BYTES);
        let name = copy.name();
        self.directories.copies().cannot_read(copy, &looked_at, why);
        self.left = Some(name);
        self.position = None;
        true
    }

    /// Drops the bytes that were read without a mapping.
    pub(crate) fn release(&mut self) {
        if let Some(Position::Segment { blocks, .. } | Position::Copy { blocks, .. }) = &mut self.position {
            blocks.release();
        }
    }

    /// At the tail: lets go of the file that it reads, a segment or a sorted copy. False: it has none.
    pub(crate) fn rest(&mut self) -> bool {
        let position = self.position.take();
        let is_open = matches!(position, Some(Position::Segment { .. } | Position::Copy { .. }));
        self.position = match position {
            Some(Position::Segment { blocks, .. }) => {
                Some(Position::Tail { data: Arc::downgrade(blocks.data()) })
            }
            Some(Position::Copy { .. }) => None, // the next record is in no copy
            position => position,
        };
        is_open
    }

    /// The first record of the log in a block of this time or later. `None`: no block is. `first`: the log's first record that is not
    /// discarded.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(crate) fn first_since(&mut self, time: Timestamp, first: Index) -> Result<Option<Index>> {
        let since = Since { time, first };
        // Objects up to this entry have no such block.
        let mut passed = EntryIndex(0);
        loop {
            let stretch =
                match self.directories.segments().undisturbed(|| self.look_in_files(since, passed))? {
                    Look::Done(found) => return Ok(found),
                    Look::In(stretch) => stretch,
                };
            // Files that go meanwhile do not matter here: what was in them is looked for again.
            let found = match self.look_in(since, &stretch, passed) {
                Err(error) if error.kind() == ErrorKind::Corrupt && self.directories.can_lag() => {
                    self.look_behind_deleted(since, &stretch, error)
                }
                found => found,
            };
            if let Some(found) = found? {
                return Ok(Some(found));
            }
            passed = stretch.last().map_or(passed, |object| object.end().raft);
        }
    }

    /// Looks in the files, unless there are objects behind `passed` to look in before.
    fn look_in_files(&self, since: Since, passed: EntryIndex) -> Result<Look> {
        let time = since.time;
        let mut list = self.directories.segments().with_objects();
        let from = list.partition_point(|segment| segment.first_timestamp < time).saturating_sub(1);
        let mut list = list.split_off(from.min(list.len()));
        let objects = list.partition_point(|segment| object_of(segment).is_some());
        if objects.checked_sub(1).and_then(|n| list.get(n)).is_some_and(|last| last.end().raft > passed) {
            list.truncate(objects);
            return Ok(Look::In(list));
        }
        let Found { at, unreadable, .. } =
            self.directories.file_at_time(list.get(objects..).unwrap_or_default(), self.log, time)?;
        // The log can be silent in all files between: only openings say so without a look at their blocks.
        match (at, list.get(objects)) {
            (Some(at), _) => self.look_in(since, &list[objects + at..], passed),
            (None, Some(oldest)) if unreadable.is_none() && oldest.first_timestamp >= time => {
                self.first_of(list.get(..objects).and_then(<[_]>::last), oldest, time)
            }
            (None, _) => self.look_in(since, &list, passed),
        }
        .map(Look::Done)
    }

    /// The first record of the log in the oldest file or behind it, where blocks before that file are of this time already: they are
    /// discarded, or in none of the objects that are known here, of which `before` is the last one.
    fn first_of(
        &self,
        before: Option<&Arc<Segment>>,
        oldest: &Arc<Segment>,
        time: Timestamp,
    ) -> Result<Option<Index>> {
        if before.is_some_and(|before| before.end().raft < oldest.base.raft) {
            return Err(unknown_since(time));
        }
        let data = self.directories.segments().open(oldest)?;
        Ok(in_opening(&data, |logs| state_of(logs, self.log))?.map(|state| state.next))
    }

    /// As [`Self::look_in`], where that met an object that is deleted or damaged, which is what `error` says: without the objects before
    /// the one with the log's first record. All records in these are discarded, so they may be deleted.
    fn look_behind_deleted(
        &self,
        since: Since,
        list: &[Arc<Segment>],
        error: Error,
    ) -> Result<Option<Index>> {
        let Some(found) = self.directories.object_holding(self.log, since.first)? else { return Err(error) };
        let before = list.partition_point(|segment| segment.number < found.segment.number);
        self.look_in(since, list.get(before..).unwrap_or_default(), EntryIndex(0))
    }

    /// The first record of the log in a block of this time or later, in these segments without the objects up to entry `passed`.
    fn look_in(&self, since: Since, list: &[Arc<Segment>], passed: EntryIndex) -> Result<Option<Index>> {
        let is_passed = |segment: &Segment| object_of(segment).is_some() && segment.end().raft <= passed;
        for (n, segment) in list.iter().enumerate().filter(|(_, segment)| !is_passed(segment)) {
            let before = n.checked_sub(1).and_then(|n| list.get(n));
            if before.is_some_and(|before| before.end().raft < segment.base.raft) {
                // The next object is not known here yet.
                return Err(unknown_since(since.time));
            }
            let found = match is_sorted_object(segment) {
                true => self.look_in_object(segment, since.time)?,
                false => self.look_in_segment(segment, since.time).or_else(|error| match error.kind() {
                    ErrorKind::Corrupt => self.look_in_copy(segment, since).ok_or(error),
                    _ => Err(error),
                })?,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The first record of the log in a block of this time or later, in a segment.
    fn look_in_segment(&self, segment: &Arc<Segment>, time: Timestamp) -> Result<Option<Index>> {
        let data = self.directories.segments().open(segment)?;
        let places = self.directories.of(segment).places(&data, self.log)?;
        let upto = segment.readable();
        let mut blocks = Blocks::new(data, 0, WINDOW_BYTES);
        let mut is_before = |place: &RunPlace| {
            blocks.seek(place.block as usize);
            let block = blocks.next(upto)?;
            Ok::<_, Error>(block.is_some_and(|block| block.header.timestamp < time))
        };
        // A binary search whose steps can fail.
        let (mut low, mut high) = (0, places.len());
        while low < high {
            let middle = low.midpoint(high);
            match is_before(&places[middle])? {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Ok(places.get(low).map(|place| place.first))
    }

    /// The same in the sorted copy of a segment that is damaged, which can be the damage of another log. None: there is none that can be
    /// read.
    fn look_in_copy(&self, segment: &Segment, since: Since) -> Option<Option<Index>> {
        let copy = self.needed_copy_of(segment)?;
        // Records that the log has discarded can be a hole.
        let blocks = copy.blocks(self.log, since.first, WINDOW_BYTES);
        let found = match blocks.or_else(|| copy.all_blocks(self.log, WINDOW_BYTES)) {
            Some((blocks, end)) => first_block_since(blocks, end, since.time),
            None => Ok(None),
        };
        found.ok()
    }

    /// The first record of the log in a block of this time or later, in a sorted object.
    fn look_in_object(&self, object: &Arc<Segment>, time: Timestamp) -> Result<Option<Index>> {
        let object = self.directories.sorted_object(object)?;
        let Some((blocks, end)) = object.all_blocks(self.log, WINDOW_BYTES) else { return Ok(None) };
        first_block_since(blocks, end, time)
    }

    /// An error at an offset of the cursor's segment.
    pub(crate) fn corrupt(&self, offset: usize, why: Malformed) -> Error {
        match &self.position {
            Some(Position::Segment { blocks, .. } | Position::Copy { blocks, .. }) => {
                blocks.corrupt(offset, why)
            }
            Some(Position::Tail { .. }) | None => Error::new(ErrorKind::Corrupt, why),
        }
    }
}

/// The first record in a block of this time or later, among the blocks of one log up to `end`.
fn first_block_since(mut blocks: Blocks, end: usize, time: Timestamp) -> Result<Option<Index>> {
    while let Some(block) = blocks.next(end)? {
        if block.header.timestamp >= time {
            return Ok(Some(block.header.first));
        }
    }
    Ok(None)
}

fn unknown_since(time: Timestamp) -> Error {
    unknown_object(format_args!("the first record since time {}", time.0))
}

/// Returns the run of `log` that contains record `next`, if it is in this segment.
fn run_in_segment(
    directory: &RunDirectory,
    blocks: &mut Blocks,
    log: LogNumber,
    next: Index,
) -> Result<Option<FoundRun>> {
    let Some((place, behind)) = directory.place(blocks.data(), log, next)? else { return Ok(None) };
    if let Some(RunPlace { block, number, at, .. }) = behind {
        blocks.load_run_soon(block as usize, number as usize, block as usize + at as usize);
    }
    let RunPlace { first, block, number, at } = place;
    let upto = blocks.data().segment.readable();
    blocks.seek(block as usize);
    let Some(block) = blocks.next(upto)? else { return Ok(None) };
    let (run, offset) = (blocks.run_at(&block, number as usize, upto)?, block.offset + at as usize);
    if (run.log, run.first) != (log, first) {
        return Err(blocks.corrupt(block.offset, "table of a mixed block has changed"));
    }
    if run.next() <= next {
        return Ok(None);
    }
    let bytes = blocks.load_run(&run, offset, upto)?;
    let BlockHeader { timestamp, .. } = block.header;
    Ok(Some(FoundRun { bytes, offset, first, timestamp }))
}

/// Returns the batches of the block that contains record `next`, if it is among these of a sorted copy. `at`: the block that was
/// looked at last.
fn run_in_copy(blocks: &mut Blocks, end: usize, next: Index, at: &mut usize) -> Result<Option<FoundRun>> {
    loop {
        *at = blocks.at();
        let Some(block) = blocks.next(end)? else { return Ok(None) };
        let BlockHeader { first, timestamp, .. } = block.header;
        if first > next {
            return Ok(None);
        }
        if block.header.next_record() > next {
            let bytes = blocks.load_list(&block, end, |_| {})?;
            let (bytes, offset) =
                (bytes.slice(BLOCK_HEADER_BYTES..bytes.len()), block.offset + BLOCK_HEADER_BYTES);
            return Ok(Some(FoundRun { bytes, offset, first, timestamp }));
        }
    }
}
