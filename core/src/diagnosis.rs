//! Diagnosis: what is wrong with a log that does not open, where recovery says that something is, and what the files beside
//! the damage tell of it. It repairs at once what needs no other replica.
//!
//! Recovery alone decides what is damage; this only looks where it points. A file that is missing or too short counts as
//! absent: its neighbours are the nearest files that open.
//!
//! Must not know: other replicas, time.

use crate::batch::Malformed;
use crate::config::SEGMENT_BYTES_MAX;
use crate::error::{Error, ErrorKind, Result};
use crate::membership::Membership;
use crate::open::{Damaged, Opened};
use crate::raft_codec::{self, header_of};
use crate::sequence::{Me, Replayed, Sequencer};
use crate::store::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::files::{self, Files};
use crate::store::layout::{HardState, Opening, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::store::restore::{make_whole, mend_header};
use crate::store::scan::{Found, Scanner};
use crate::store::segment::{Base, file_name, file_number};
use crate::store::walk::{Learn, Walk};
use crate::store::wound::{Look, Place, Probe, Spare, Wound};
use crate::types::{Index, RaftIndex, SegmentId};
use std::collections::{BTreeMap, BTreeSet};

/// Read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// The outcome of a diagnosis.
pub(crate) enum Diagnosis {
    /// Nothing: the log is open.
    Opened(Box<Opened>),
    Found(Box<Finding>),
}

/// Damage that other replicas have to help with.
pub(crate) struct Finding {
    pub(crate) wound: Wound,
    /// The segment's opening block, if that is gone.
    pub(crate) opening: Option<Spare>,
    /// Whether a hard state can have stood here that nothing later supersedes, if there is room for one.
    pub(crate) state_lost: bool,
}

/// Finds what is wrong where recovery says that something is. It repairs at once what needs no other replica.
///
/// # Errors
/// The error of recovery, if nothing can be repaired; `Io`.
pub(crate) fn diagnose(damaged: &mut Damaged) -> Result<Diagnosis> {
    loop {
        let why = damaged.why.clone();
        let place = why.place().and_then(|(path, at)| Some((file_number(path.file_name()?.to_str()?)?, at)));
        let Some((number, at)) = place else { return Err(why) };
        let Some(opened) = open_file(damaged, number) else {
            let is_mended = at < SEGMENT_HEADER_BYTES as u64
                && mend_header(&*damaged.disk, damaged.identity.log, number).is_ok();
            if !is_mended {
                restore(damaged, number)?;
            }
            match damaged.open_again()? {
                Some(opened) => return Ok(Diagnosis::Opened(Box::new(opened))),
                None => continue,
            }
        };
        let end = following(damaged, number)?.map(|base| (None, base));
        let mut place = Place { number, id: opened.header.id, bytes: opened.header.bytes, base: None, end };
        let Some((mut wound, mut probe)) = examine(damaged, &place)? else { return Err(why) };
        let mut last = end.is_none();
        if wound.is_opening()
            && let Some((before, base)) = end_before(damaged, number)?
        {
            // The opening is made of what stands before it, so that has to be sound first.
            match examine(damaged, &before)? {
                Some(found) => {
                    (wound, probe) = found;
                    last = false;
                }
                None => {
                    place.base = Some(base);
                    let Some(found) = examine(damaged, &place)? else { return Err(why) };
                    (wound, probe) = found;
                }
            }
        }
        let state_lost = last && !probe.state_follows(wound.to.unwrap_or(wound.from))?;
        let opening = match wound.is_opening() {
            true => {
                let block = state_before(damaged, &wound)?.ok_or(why)?.opening();
                Some((header_of(&block), block.body))
            }
            false => None,
        };
        return Ok(Diagnosis::Found(Box::new(Finding { wound, opening, state_lost })));
    }
}

/// Gives a segment file that is missing or too short its length again: what it lacks is fetched then. Only of one that
/// another segment follows: that one begins where this one ended, and holds a later hard state. Nothing tells what this
/// replica acknowledged in the last one, nor how it voted there.
///
/// Of files next to each other that are missing, the last one takes the place of all, with their bytes together. It
/// begins where the sound blocks before it end.
///
/// # Errors
/// `Corrupt`: it is the last one, or something else is wrong with the file; `Io`.
fn restore(damaged: &Damaged, number: u64) -> Result<()> {
    let why = &damaged.why;
    let refuse = |what: &str| {
        let what = format!(
            "{why}; {what}: remove this node from the cluster, and add a new one with an empty directory"
        );
        Err(Error::caused(ErrorKind::Corrupt, what, why))
    };
    let all = numbers(damaged)?;
    let begun = alive_behind(damaged, number)?.into_iter().find(|(_, base)| base.is_some());
    let Some((next, next_bytes)) = begun.map(|(file, _)| (file.header.number, file.header.bytes)) else {
        return refuse(
            "no segment follows it, so nothing tells what this replica acknowledged and voted there",
        );
    };
    let is_there = all.contains(&number);
    let number = if is_there { number } else { next - 1 };
    let before = end_before(damaged, number)?.map(|(place, _)| place);
    let (disk, log) = (&*damaged.disk, damaged.identity.log);
    let one = next_bytes.max(damaged.options.segment_bytes).max(before.as_ref().map_or(0, |b| b.bytes));
    if is_there && !make_whole(disk, log, number, one)? {
        return refuse("nothing tells what stood there");
    }
    let begins = open_file(damaged, number).is_some_and(|file| base_of(&file).is_some());
    // Of one without a footer nothing tells how much of it is missing.
    let missing = before.as_ref().map_or(1, |b| number - b.number + u64::from(b.end.is_none()));
    if !is_there || missing > 1 && !begins {
        if before.is_none() {
            return refuse("the segments before it do not tell where it began");
        }
        let bytes = u64::from(one) * missing;
        let Some(bytes) = u32::try_from(bytes).ok().filter(|b| missing == 1 || *b <= SEGMENT_BYTES_MAX)
        else {
            let what =
                format!("{missing} segments are missing next to each other, more than one file can hold");
            return refuse(&what);
        };
        remove(damaged, number)?;
        make_whole(disk, log, number, bytes)?;
    }
    tracing::warn!(
        segment = number,
        missing,
        "a segment file was missing or too short: it is filled with what others have"
    );
    Ok(())
}

fn remove(damaged: &Damaged, number: u64) -> Result<()> {
    let name = file_name(number);
    match damaged.disk.remove(&name) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove", &damaged.disk.path().join(&name), e))
        }
        _ => Ok(()),
    }
}

/// The first wound of a segment, if there is any about which something can be told.
fn examine(damaged: &Damaged, place: &Place) -> Result<Option<(Wound, Probe)>> {
    let mut probe = Probe::new(&*damaged.disk, place.clone(), PIECE_BYTES)?;
    let wound = match probe.look_on()? {
        Look::Broken(cause) => probe.wound(cause)?,
        Look::More | Look::Sound => None,
    };
    Ok(wound.map(|wound| (wound, probe)))
}

/// The numbers of all segment files.
pub(crate) fn numbers(damaged: &Damaged) -> Result<BTreeSet<u64>> {
    let names = damaged.disk.list().map_err(|e| Error::io("list", damaged.disk.path(), e))?;
    Ok(names.iter().filter_map(|n| file_number(n)).collect())
}

/// Where the segment behind `number` begins, if its opening is sound. Files that do not open are passed over.
fn following(damaged: &Damaged, number: u64) -> Result<Option<Base>> {
    Ok(alive_behind(damaged, number)?.first().and_then(|file| file.1))
}

/// The files behind `number` that open, in order, and where they begin, if their opening is sound. Without those that are
/// dead: a conflict cut them off, so a later one begins where they do, or before.
fn alive_behind(damaged: &Damaged, number: u64) -> Result<Vec<(files::Opened, Option<Base>)>> {
    let mut alive = Vec::new();
    let mut next: Option<Base> = None;
    for file in
        numbers(damaged)?.into_iter().rev().filter(|n| *n > number).filter_map(|n| open_file(damaged, n))
    {
        let base = base_of(&file);
        if next.is_some_and(|next| base.is_some_and(|base| base.raft >= next.raft)) {
            continue;
        }
        next = base.or(next);
        alive.push((file, base));
    }
    alive.reverse();
    Ok(alive)
}

/// Whether all segments behind a hole go with its end, which these committed entries contradict. A file without a sound
/// opening does if it holds no sound blocks.
///
/// # Errors
/// `Io`.
pub(crate) fn all_behind_goes(damaged: &Damaged, wound: &Wound, committed: &[BlockHeader]) -> Result<bool> {
    for (file, base) in alive_behind(damaged, wound.place.number)? {
        let SegmentHeader { number, id, bytes, .. } = file.header;
        let goes = match base {
            Some(base) => wound.goes_with(base, committed),
            None => examine(damaged, &Place { number, id, bytes, base: None, end: None })?.is_none(),
        };
        if !goes {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The nearest file before `number` that opens and has begun. One that begins where the segment behind `number` does, or
/// later, is left of segments that a conflict cut off.
fn file_before(damaged: &Damaged, number: u64) -> Result<Option<files::Opened>> {
    let next = following(damaged, number)?;
    let is_alive = |base: Base| next.is_none_or(|next| base.raft < next.raft);
    let before = numbers(damaged)?.into_iter().rev().filter(|n| *n < number);
    Ok(before.filter_map(|n| open_file(damaged, n)).find(|file| base_of(file).is_some_and(is_alive)))
}

/// The segment before `number`, and what comes after it: by its footer, or else behind its last sound block.
fn end_before(damaged: &Damaged, number: u64) -> Result<Option<(Place, Base)>> {
    let Some(before) = file_before(damaged, number)? else { return Ok(None) };
    let (number, id, bytes) = (before.header.number, before.header.id, before.header.bytes);
    let place = Place { number, id, bytes, base: None, end: None };
    if let Some(footer) = before.footer {
        let base = Base { raft: footer.last_raft, term: footer.last_term, next: footer.next };
        return Ok(Some((Place { end: Some((Some(footer.data_end as usize), base)), ..place }, base)));
    }
    let mut replayed = Replayed { sequencer: unlearnt(damaged), options: &damaged.options };
    let mut walk = Walk::new(&before);
    walk.run(&mut before.scanner(), &mut replayed)?;
    Ok(walk.segment.is_some().then_some((place, walk.end)))
}

fn unlearnt(damaged: &Damaged) -> Sequencer {
    Sequencer::new(Me::Node(damaged.cluster.node), Membership::default(), &damaged.options)
}

/// A segment file whose fixed parts are sound.
fn open_file(damaged: &Damaged, number: u64) -> Option<files::Opened> {
    let files = Files { disk: &*damaged.disk, identity: damaged.identity, names: BTreeMap::new() };
    files.open(number, false).ok().flatten()
}

/// Where a segment begins, if its opening block is sound.
fn base_of(file: &files::Opened) -> Option<Base> {
    match file.scanner().block(SEGMENT_HEADER_BYTES) {
        Ok(Found::Block(h, _)) if h.kind == Kind::Opening => {
            Some(Base { raft: h.raft_index, term: h.term, next: h.first })
        }
        _ => None,
    }
}

/// The state behind the last entry before a hole, from the opening of the segment that holds that entry.
///
/// # Errors
/// `Io`.
pub(crate) fn state_before(damaged: &Damaged, wound: &Wound) -> Result<Option<Sequencer>> {
    let number = wound.place.number;
    let holding = match wound.is_opening() {
        true => file_before(damaged, number)?,
        false => open_file(damaged, number),
    };
    let Some(holding) = holding else { return Ok(None) };
    let sequencer = unlearnt(damaged);
    let to = RaftIndex(wound.first().0 - 1);
    let mut until = Until { replayed: Replayed { sequencer, options: &damaged.options }, to };
    Walk::new(&holding).run(&mut holding.scanner(), &mut until)?;
    let sequencer = until.replayed.sequencer;
    Ok((sequencer.end().raft == to).then_some(sequencer))
}

/// The hard state of the highest term that the segments from `number` on tell of, the last one written of that term.
///
/// # Errors
/// `Io`.
pub(crate) fn newest_state(damaged: &Damaged, number: u64) -> Result<Option<HardState>> {
    let mut newest = None;
    for number in numbers(damaged)?.into_iter().filter(|n| *n >= number) {
        let Some(file) = open_file(damaged, number) else { continue };
        let place = Place { number, id: file.header.id, bytes: file.header.bytes, base: None, end: None };
        let states = Probe::new(&*damaged.disk, place, PIECE_BYTES)?.states(SEGMENT_HEADER_BYTES)?;
        newest = newest.into_iter().chain(states).max_by_key(|state| state.term);
    }
    Ok(newest)
}

/// Learns no further than an entry.
struct Until<'a> {
    replayed: Replayed<'a>,
    to: RaftIndex,
}

impl Learn for Until<'_> {
    fn learn(&mut self, header: &BlockHeader, body: &[u8]) -> std::result::Result<Base, Malformed> {
        if header.raft_index > self.to {
            return Err("the log goes on in the next segment from before this block");
        }
        self.replayed.learn(header, body)
    }

    fn first(&self) -> Index {
        self.replayed.first()
    }

    fn commit_to(&mut self, raft: RaftIndex) {
        self.replayed.commit_to(raft);
    }

    fn commit(&self) -> RaftIndex {
        self.replayed.commit()
    }

    fn anew(&self) -> Box<dyn Learn + '_> {
        self.replayed.anew()
    }
}

/// The last membership that any sound block tells of, and the entry that it is of; empty when none does.
pub(crate) fn last_membership(damaged: &Damaged) -> Result<(Membership, RaftIndex)> {
    let mut later = Vec::new();
    for file in numbers(damaged)?.into_iter().rev().filter_map(|number| open_file(damaged, number)) {
        let mut scanner = file.scanner();
        let opening = match scanner.block(SEGMENT_HEADER_BYTES)? {
            Found::Block(h, body) if h.kind == Kind::Opening => {
                Opening::parse(body).ok().map(|opening| (opening, h.raft_index))
            }
            _ => None,
        };
        later.push(file);
        let Some((opening, at)) = opening else { continue };
        let mut last = (Membership::decode(&opening.configuration).unwrap_or_default(), at);
        for file in later.iter().rev() {
            configurations(&mut file.scanner(), file.header.id, &mut last)?;
        }
        return Ok(last);
    }
    Ok((Membership::default(), RaftIndex(0)))
}

/// Follows the sound configuration blocks of a segment.
fn configurations(scanner: &mut Scanner, id: SegmentId, last: &mut (Membership, RaftIndex)) -> Result<()> {
    let mut at = SEGMENT_HEADER_BYTES;
    while at + BLOCK_HEADER_BYTES <= scanner.limit() {
        let header = BlockHeader::parse(scanner.bytes(at, BLOCK_HEADER_BYTES)?, id);
        if header.is_ok_and(|h| h.kind == Kind::Configuration)
            && let Found::Block(header, body) = scanner.block(at)?
        {
            let membership = match body.is_empty() {
                true => last.0.left(),
                false => raft_codec::membership_of_change(body).unwrap_or_else(|_| last.0.clone()),
            };
            *last = (membership, header.raft_index);
        }
        at += BLOCK_HEADER_BYTES;
    }
    Ok(())
}
