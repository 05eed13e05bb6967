//! Diagnosis: finds the damage in a log that does not open, starting where recovery reports it, and what the files
//! around it tell. It repairs at once damage that needs no other replica.
//!
//! Only recovery decides what is damage; the diagnosis looks where it points. A file that is missing or too short
//! counts as absent: its neighbors are the nearest files that open.
//!
//! Must not know: other replicas, time.

use crate::cluster::membership::Membership;
use crate::error::{Error, ErrorKind, Result};
use crate::replica::open::{DamagedLog, RecoveredLog};
use crate::replica::state::sequencer::{Owner, Replayed, Sequencer};
use crate::replica::wire::raft_message;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::geometry::SEGMENT_BYTES_MAX;
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::segment::{HardState, Opening, SegmentHeader};
use crate::store::read::chain::{Learn as _, Walk};
use crate::store::read::scanner::Scanner;
use crate::store::read::segment_files::{Files, SegmentFile};
use crate::store::recovery::Past;
use crate::store::recovery::gap::{BlockCopy, Gap, Look, Place, Probe};
use crate::store::segment::{Base, file_number};
use crate::store::whole_segments::{make_whole, restore_header, set_aside};
use crate::types::EntryIndex;
use std::collections::{BTreeMap, BTreeSet};

/// The bytes that are read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// The outcome of a diagnosis.
pub(crate) enum Diagnosis {
    /// Nothing is wrong any more: the log is open.
    Repaired(Box<RecoveredLog>),
    Found(Box<Finding>),
}

/// Damage whose repair needs other replicas.
pub(crate) struct Finding {
    pub(crate) gap: Gap,
    /// The segment's opening block, rebuilt, if it is lost.
    pub(crate) opening: Option<BlockCopy>,
    /// Whether the gap may have held a hard state that no later one replaces, if there is room for one.
    pub(crate) state_lost: bool,
}

/// Finds the damage that recovery reports. Repairs at once damage that needs no other replica.
///
/// # Errors
/// The error of recovery, if nothing can be repaired; `Io`.
pub(crate) fn diagnose(damaged: &mut DamagedLog) -> Result<Diagnosis> {
    loop {
        let why = damaged.why.clone();
        let place =
            why.location().and_then(|(path, at)| Some((file_number(path.file_name()?.to_str()?)?, at)));
        let Some((number, at)) = place else { return Err(why) };
        let Some(opened) = find_file(damaged, number)? else {
            let is_in_header = at < SEGMENT_HEADER_BYTES as u64;
            if !is_in_header || !is_header_restored(damaged, number)? {
                restore(damaged, number)?;
            }
            match damaged.open_again()? {
                Some(opened) => return Ok(Diagnosis::Repaired(Box::new(opened))),
                None => continue,
            }
        };
        let end = next_base(damaged, number)?.map(|base| (None, base));
        let mut place = Place { number, id: opened.header.id, bytes: opened.header.bytes, base: None, end };
        let Some((mut gap, mut probe)) = examine(damaged, &place)? else { return Err(why) };
        let mut last = end.is_none();
        let upto = if planted!(73) { EntryIndex(u64::MAX) } else { gap.latest_beginning() };
        if gap.is_opening()
            && let Some(before) = end_before(damaged, number, upto)?
        {
            // The opening is rebuilt from the entries before it, so they have to be sound first.
            match examine(damaged, &before.place)? {
                Some(found) => {
                    (gap, probe) = found;
                    last = false;
                }
                None => {
                    place.base = Some(before.base);
                    // The gap keeps its extent: sound blocks after it never count as lost.
                    let found =
                        examine(damaged, &place)?.filter(|(found, _)| found.to == gap.to || planted!(73));
                    let Some(found) = found else { return Err(why) };
                    (gap, probe) = found;
                    gap.begin_behind(before.place.number, before.committed, before.is_sure || planted!(73));
                }
            }
        }
        let state_lost = last && !probe.state_follows(gap.to.unwrap_or(gap.from))?;
        let opening = match gap.is_opening() {
            true => {
                let block = state_before(damaged, &gap)?.ok_or(why)?.opening();
                Some((block.header, block.body))
            }
            false => None,
        };
        return Ok(Diagnosis::Found(Box::new(Finding { gap, opening, state_lost })));
    }
}

/// Restores the length of a segment file that is missing or too short, so that its entries can be fetched. Only if
/// another segment follows: that one begins where this one ended, and holds a later hard state. Of the last segment it
/// is not known what this replica acknowledged and voted there.
///
/// If several consecutive files are missing, the last one replaces all of them, with the sum of their sizes. It begins
/// where the sound blocks before it end. A file that is too short and has no sound opening counts as missing: it has
/// lost where the previous ones ended, and in which term. The old file is kept under another name until the log
/// opens, because possibly no other replica has its entries.
///
/// # Errors
/// `Corrupt`: it is the last one, or something else is wrong with the file; `Io`.
fn restore(damaged: &DamagedLog, number: u64) -> Result<()> {
    let why = &damaged.why;
    let refuse = |what: &str| {
        let what = format!(
            "{why}; {what}: remove this node from the cluster, and add a new one with an empty directory"
        );
        Err(Error::with_source(ErrorKind::Corrupt, what, why))
    };
    let all = numbers(damaged)?;
    let behind = alive_behind(damaged, number)?;
    let begun = behind.iter().find_map(|(header, base)| base.map(|base| (*header, base)));
    let Some((SegmentHeader { number: next, bytes: next_bytes, .. }, begins)) = begun else {
        let mut none_begun = true;
        for file in open_files(damaged, behind.iter().map(|(header, _)| header.number)) {
            none_begun &= file?.scanner().later(SEGMENT_HEADER_BYTES)?.end == 0;
        }
        return refuse(match none_begun {
            true => {
                "no segment follows it, so it is not known what this replica acknowledged and voted there"
            }
            false => {
                "the opening of the segment after it is damaged too, so it is not known where this one ended"
            }
        });
    };
    let is_there = all.contains(&number);
    let number = if is_there { number } else { next - 1 };
    let before = end_before(damaged, number, begins.raft)?.map(|before| before.place);
    let (disk, log) = (&*damaged.disk, damaged.identity.log);
    let one = next_bytes.max(damaged.options.segment_bytes).max(before.as_ref().map_or(0, |b| b.bytes));
    if is_there && !make_whole(disk, log, number, one)? {
        return refuse("its contents cannot be determined");
    }
    let file = find_file(damaged, number)?;
    let begins = file.as_ref().map(SegmentFile::base).transpose()?.flatten().is_some();
    // If the segment before has no footer, it is not known how much of it is missing.
    let missing = before.as_ref().map_or(1, |b| number - b.number + u64::from(b.end.is_none()));
    if !is_there || missing > 1 && !begins {
        if before.is_none() {
            return refuse("the segments before it do not show where it began");
        }
        let bytes = u64::from(one) * missing;
        let Some(bytes) = u32::try_from(bytes).ok().filter(|b| missing == 1 || *b <= SEGMENT_BYTES_MAX)
        else {
            let what = format!("{missing} consecutive segments are missing, more than one file can hold");
            return refuse(&what);
        };
        set_aside(disk, number)?;
        make_whole(disk, log, number, bytes)?;
    }
    tracing::warn!(
        segment = number,
        missing,
        "a segment file was missing or too short: its entries are fetched from other replicas"
    );
    Ok(())
}

/// The first gap of a segment. None: the segment is sound, or the extent of its first gap cannot be determined.
fn examine(damaged: &DamagedLog, place: &Place) -> Result<Option<(Gap, Probe)>> {
    let mut probe = Probe::new(&*damaged.disk, place.clone(), PIECE_BYTES)?;
    let gap = match probe.look_on()? {
        Look::Broken(cause) => probe.gap(cause)?,
        Look::More | Look::Sound => None,
    };
    Ok(gap.map(|gap| (gap, probe)))
}

/// The numbers of all segment files.
pub(crate) fn numbers(damaged: &DamagedLog) -> Result<BTreeSet<u64>> {
    let names = damaged.disk.list().map_err(|e| Error::io("list", damaged.disk.path(), e))?;
    Ok(names.iter().filter_map(|n| file_number(n)).collect())
}

/// The position where the segment after `number` begins, if it can be determined. Files that do not open are skipped.
fn next_base(damaged: &DamagedLog, number: u64) -> Result<Option<Base>> {
    Ok(alive_behind(damaged, number)?.first().and_then(|file| file.1))
}

/// The files after `number` that open, in order, with the positions where they begin, if their opening or footer is
/// sound. Without dead files: those that a conflict truncated, so that a later file begins at the same position or
/// earlier. The files are not kept open, because there can be more of them than a process may open.
fn alive_behind(damaged: &DamagedLog, number: u64) -> Result<Vec<(SegmentHeader, Option<Base>)>> {
    let mut alive = Vec::new();
    let mut next: Option<Base> = None;
    for file in open_files(damaged, numbers(damaged)?.into_iter().rev().filter(|n| *n > number)) {
        let file = file?;
        let base = file.base()?.or_else(|| file.footer.map(|f| Base::before(&f)));
        if next.is_some_and(|next| base.is_some_and(|base| base.raft >= next.raft)) {
            continue;
        }
        next = base.or(next);
        alive.push((file.header, base));
    }
    alive.reverse();
    Ok(alive)
}

/// Whether all segments after a gap are superseded together with its end, which these committed entries contradict. A
/// file whose beginning is not known counts as superseded if it holds no sound blocks.
///
/// # Errors
/// `Io`.
pub(crate) fn all_behind_goes(damaged: &DamagedLog, gap: &Gap, committed: &[BlockHeader]) -> Result<bool> {
    if !gap.is_founded(committed) {
        return Ok(false);
    }
    for (SegmentHeader { number, id, bytes, .. }, base) in alive_behind(damaged, gap.place.number)? {
        let goes = match base {
            Some(base) => gap.goes_with(base, committed),
            None => examine(damaged, &Place { number, id, bytes, base: None, end: None })?.is_none(),
        };
        if !goes {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The end of a segment, as the position where the next one begins.
struct End {
    place: Place,
    base: Base,
    /// The last entry that the segment records as committed.
    committed: EntryIndex,
    /// Whether the next segment certainly began there. Otherwise a conflict can have truncated the last entry.
    is_sure: bool,
}

/// The end of the segment before `number`, if `number` begins after entry `upto` or earlier. Taken from the footer, or
/// else from the last sound block. All blocks after entry `upto` in that segment are dead. It is the nearest segment
/// that opens and begins before `upto`: a segment that begins there or later was truncated because of a conflict.
fn end_before(damaged: &DamagedLog, number: u64, upto: EntryIndex) -> Result<Option<End>> {
    let files = numbers(damaged)?.into_iter().rev().filter(|n| *n < number);
    let alive = |file: SegmentFile| Ok(file.base()?.filter(|base| base.raft < upto).map(|_| file));
    let mut alive = open_files(damaged, files).filter_map(|file| file.and_then(alive).transpose());
    let Some(before) = alive.next().transpose()? else { return Ok(None) };
    let mut replayed = Replayed { sequencer: unlearnt(damaged), options: &damaged.options };
    let mut walk = Walk::new(&before);
    walk.run(&mut before.scanner(), &mut Past { learner: &mut replayed, to: upto })?;
    let SegmentHeader { number: its_own, id, bytes, .. } = before.header;
    let place = Place { number: its_own, id, bytes, base: None, end: None };
    let committed = walk.commit;
    if let Some(footer) = before.footer.filter(|footer| footer.last_raft <= upto) {
        let base = Base { raft: footer.last_raft, term: footer.last_term, next: footer.next };
        let place = Place { end: Some((Some(footer.data_end as usize), base)), ..place };
        // A segment gets its footer once the next number has begun at its end.
        return Ok(Some(End { place, base, committed, is_sure: its_own + 1 == number }));
    }
    let base = walk.end;
    let end = (base.raft == upto).then_some((None, base));
    Ok(Some(End { place: Place { end, ..place }, base, committed, is_sure: false }))
}

pub(crate) fn unlearnt(damaged: &DamagedLog) -> Sequencer {
    Sequencer::new(Owner::Node(damaged.cluster.node), Membership::default(), &damaged.options)
}

/// Repairs a segment's header, if the file exists and enough is left to determine the contents. Returns whether it did.
///
/// # Errors
/// `Io`: it is not known whether the header was repaired.
fn is_header_restored(damaged: &DamagedLog, number: u64) -> Result<bool> {
    if !numbers(damaged)?.contains(&number) {
        return Ok(false);
    }
    match restore_header(&*damaged.disk, damaged.identity.log, number) {
        Err(e) if e.kind() == ErrorKind::Corrupt => Ok(false),
        restored => restored.map(|()| true),
    }
}

/// Opens a segment file. None: it is missing, or its fixed parts are damaged.
///
/// # Errors
/// As [`open_file`].
fn find_file(damaged: &DamagedLog, number: u64) -> Result<Option<SegmentFile>> {
    if numbers(damaged)?.contains(&number) { open_file(damaged, number) } else { Ok(None) }
}

/// The segment file of this number, if its fixed parts are sound. A file that cannot be read is an error, because it
/// may hold the most important information.
///
/// # Errors
/// `Io`; `Unsupported`: a newer version wrote the file.
fn open_file(damaged: &DamagedLog, number: u64) -> Result<Option<SegmentFile>> {
    let files = Files { disk: &*damaged.disk, identity: damaged.identity, names: BTreeMap::new() };
    match files.open(number) {
        Err(e) if e.kind() == ErrorKind::Corrupt => Ok(None),
        opened => opened,
    }
}

/// The segment files of these numbers that [`open_file`] opens, one at a time.
fn open_files(
    damaged: &DamagedLog,
    numbers: impl Iterator<Item = u64>,
) -> impl Iterator<Item = Result<SegmentFile>> {
    numbers.filter_map(|number| open_file(damaged, number).transpose())
}

/// The state after the last entry before a gap, from the opening of the segment that holds that entry.
///
/// # Errors
/// `Io`.
pub(crate) fn state_before(damaged: &DamagedLog, gap: &Gap) -> Result<Option<Sequencer>> {
    let number = if gap.is_opening() { gap.made_of } else { Some(gap.place.number) };
    let Some(number) = number else { return Ok(None) };
    let Some(holding) = find_file(damaged, number)? else { return Ok(None) };
    let mut replayed = Replayed { sequencer: unlearnt(damaged), options: &damaged.options };
    let to = EntryIndex(gap.first().0 - 1);
    Walk::new(&holding).run(&mut holding.scanner(), &mut Past { learner: &mut replayed, to })?;
    let sequencer = replayed.sequencer;
    Ok((sequencer.end().raft == to).then_some(sequencer))
}

/// The state after the sound blocks that follow a gap in its segment. `before`: the state after its last entry.
///
/// # Errors
/// `Io`.
pub(crate) fn state_behind(damaged: &DamagedLog, gap: &Gap, before: Sequencer) -> Result<Sequencer> {
    let mut replayed = Replayed { sequencer: before, options: &damaged.options };
    let Some((file, mut at)) = find_file(damaged, gap.place.number)?.zip(gap.to) else {
        return Ok(replayed.sequencer);
    };
    let mut scanner = file.scanner();
    while at + BLOCK_HEADER_BYTES <= scanner.limit()
        && let Ok((header, body)) = scanner.block(at)?
        && header.kind != Kind::Opening // one that is misplaced would replace the state
        && replayed.learn(&header, body).is_ok()
    {
        at += header.stride();
    }
    Ok(replayed.sequencer)
}

/// The highest term in sound blocks, from the block before a gap on, and the vote in it, if one was cast; 0: the blocks
/// hold none. A segment's opening repeats the hard state, so earlier segments hold no more.
///
/// # Errors
/// `Io`.
pub(crate) fn newest_state(damaged: &DamagedLog, gap: &Gap) -> Result<Option<HardState>> {
    // The opening can be in the gap.
    let from = gap.made_of.unwrap_or(gap.place.number);
    let mut newest = None;
    for number in numbers(damaged)?.into_iter().filter(|n| *n >= from) {
        let Some(file) = open_file(damaged, number)? else { continue };
        let place = Place { number, id: file.header.id, bytes: file.header.bytes, base: None, end: None };
        let states = Probe::new(&*damaged.disk, place, PIECE_BYTES)?.states(SEGMENT_HEADER_BYTES)?;
        let states = states.into_iter().map(|(_, state)| state);
        newest = newest.into_iter().chain(states).max_by_key(|state| (state.term, state.vote != 0));
    }
    Ok(newest)
}

/// The last entry that the log's membership changes show to be committed, including the `entries` that are restored in
/// a gap. A change is written only after a record that the previous one is committed. A repair that loses such a record
/// keeps what it said.
///
/// # Errors
/// `Io`.
pub(crate) fn committed_by_changes(
    damaged: &DamagedLog,
    gap: &Gap,
    entries: &[BlockCopy],
) -> Result<EntryIndex> {
    let change = |h: &BlockHeader| (h.kind == Kind::Configuration).then_some(h.raft_index);
    let mut changes: BTreeSet<EntryIndex> = entries.iter().filter_map(|(header, _)| change(header)).collect();
    let from = gap.made_of.unwrap_or(gap.place.number);
    // Entries that a conflict truncated are after the position where a later segment begins.
    let mut upto = EntryIndex(u64::MAX);
    for file in open_files(damaged, numbers(damaged)?.into_iter().rev().filter(|n| *n >= from)) {
        let file = file?;
        let mut scanner = file.scanner();
        let mut at = SEGMENT_HEADER_BYTES;
        while let Some((found, header)) = scanner.seek(at, scanner.limit())? {
            changes.extend(change(&header).filter(|raft| *raft <= upto));
            at = found + BLOCK_HEADER_BYTES;
        }
        let is_lost = file.header.number == gap.place.number && gap.is_opening();
        let base = file.base()?.map(|base| base.raft).or(is_lost.then(|| EntryIndex(gap.first().0 - 1)));
        upto = base.map_or(upto, |base| base.min(upto));
    }
    Ok(changes.into_iter().rev().nth(1).unwrap_or_default())
}

/// The last membership in sound blocks, and its entry. If this replica is the only voter in it, the change need not be
/// committed. Then the membership before it counts, unless a sound block records that the change is committed.
///
/// # Errors
/// `Io`.
pub(crate) fn membership_on(damaged: &DamagedLog) -> Result<(Membership, EntryIndex)> {
    let last = last_membership(damaged)?;
    let node = damaged.cluster.node;
    if !last.0.is_alone(node) {
        return Ok(last);
    }
    let mut committed = EntryIndex(0);
    for file in open_files(damaged, numbers(damaged)?.into_iter().rev()) {
        let file = file?;
        let found = memberships_in(&mut file.scanner())?;
        committed = found.iter().map(|(_, _, commit)| *commit).fold(committed, EntryIndex::max);
        for (at, membership, _) in found.into_iter().rev() {
            match membership {
                Some(membership) if !membership.is_alone(node) => return Ok((membership, at)),
                Some(_) if at <= committed => return Ok(last),
                _ => {}
            }
        }
    }
    Ok(last)
}

/// The sound blocks of a segment that hold a membership or a commit index: the entry that each block is, or follows,
/// and both.
///
/// # Errors
/// `Io`.
fn memberships_in(scanner: &mut Scanner) -> Result<Vec<(EntryIndex, Option<Membership>, EntryIndex)>> {
    let mut found = Vec::new();
    let mut now: Option<Membership> = None;
    scanner.each_sound(&[Kind::Opening, Kind::Configuration, Kind::HardState], |header, body| {
        let mut commit = EntryIndex(0);
        match header.kind {
            Kind::HardState => commit = HardState::parse(body).map_or(commit, |state| state.commit),
            Kind::Configuration if body.is_empty() => now = now.as_ref().map(Membership::left),
            Kind::Configuration => now = raft_message::membership_of_change(body).ok(),
            _ => {
                let opening = Opening::parse(body).ok();
                commit = opening.as_ref().map_or(commit, |opening| opening.hard_state.commit);
                now = opening.and_then(|opening| Membership::decode(&opening.configuration).ok());
            }
        }
        let membership = if header.kind == Kind::HardState { None } else { now.clone() };
        found.push((header.raft_index, membership, commit));
    })?;
    Ok(found)
}

/// The last membership in any sound block, and its entry. Empty if there is none.
fn last_membership(damaged: &DamagedLog) -> Result<(Membership, EntryIndex)> {
    let mut later = Vec::new();
    for file in open_files(damaged, numbers(damaged)?.into_iter().rev()) {
        let file = file?;
        let mut scanner = file.scanner();
        let opening = match scanner.block(SEGMENT_HEADER_BYTES)? {
            Ok((h, body)) if h.kind == Kind::Opening => {
                Opening::parse(body).ok().map(|opening| (opening, h.raft_index))
            }
            _ => None,
        };
        later.push(file);
        let Some((opening, at)) = opening else { continue };
        let mut last = (Membership::decode(&opening.configuration).unwrap_or_default(), at);
        for file in later.iter().rev() {
            configurations(&mut file.scanner(), &mut last)?;
        }
        return Ok(last);
    }
    Ok((Membership::default(), EntryIndex(0)))
}

/// Reads the sound configuration blocks of a segment.
fn configurations(scanner: &mut Scanner, last: &mut (Membership, EntryIndex)) -> Result<()> {
    scanner.each_sound(&[Kind::Configuration], |header, body| {
        let membership = match body.is_empty() {
            true => last.0.left(),
            false => raft_message::membership_of_change(body).unwrap_or_else(|_| last.0.clone()),
        };
        *last = (membership, header.raft_index);
    })
}
