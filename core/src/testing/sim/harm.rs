//! Harm: damage to the newest files of a replica that is down, of the kind that a log is specified to survive while a
//! majority is sound.
//!
//! A block is damaged only if a sound block after it proves that it was durable. Otherwise recovery would treat it as
//! a torn write, and the replica would have lost entries that it acknowledged. An opening is damaged only where an
//! older segment shows its contents, and no file between both is missing: a segment whose entries were all truncated
//! is removed, and without the opening nothing shows that it held no others. Nor if it alone says where the files of a log with objects
//! begin: files are removed once their records are in objects and an opening says so, and without that opening they count as lost.
//! Behind a jump no older segment shows its contents, also if files of before the jump are there again after a power cut. It is damaged only
//! where the segment itself shows that all before it is discarded, and where the old files end in committed entries: then the contents follow
//! from these and from entries of others.
//!
//! Hard states are damaged only where the remaining blocks show that each committed command is committed. The reason:
//! files are removed once a durable block says that their discard is committed. Without that block they count as lost,
//! and a replica refuses to repair them if they were its oldest. Nor all at once that say where the files of a directory begin: there are two,
//! in different sectors.
//!
//! Must not know: who else has what is lost, what a replica does about it.

use super::fault::Fault;
use crate::disk::sim::{Image, Rng};
use crate::replica::queue::proposals::Command;
use crate::replica::state::command::parse_command;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, check_body};
use crate::store::format::geometry::{FOOTER_BYTES, SEGMENT_HEADER_BYTES};
use crate::store::format::objects;
use crate::store::format::segment::{HardState, Opening, SegmentHeader};
use crate::store::segment::{file_name, file_number};
use crate::types::{EntryIndex, Index, Term};

/// How many of the newest segment's last entries can be damaged.
const LAST_ENTRIES: usize = 4;

/// A set of bits to flip.
#[derive(Debug)]
pub(super) struct Harm {
    pub(super) kind: Fault,
    /// The name of the file of each bit, and the bit's number in it.
    pub(super) bits: Vec<(String, u64)>,
    /// Whether no sound block shows the newest term and vote any more.
    pub(super) loses_state: bool,
    /// The entry before a segment whose opening is lost, and its term.
    pub(super) begins_behind: Option<(EntryIndex, Term)>,
}

/// Chooses harm of this kind to the newest files, if they allow it.
pub(super) fn find(image: &Image, kind: Fault, rng: &mut Rng) -> Option<Harm> {
    let mut segments = begun(image);
    let last = segments.next()?;
    // A segment that begins where the newest does, or after it, is dead.
    let before = segments.find(|segment| segment.base().0 < last.base().0);
    let mut older = Vec::new();
    let hurt: Vec<&Block> = match kind {
        Fault::DamagedState => {
            let states: Vec<_> = last.proven().filter(|b| b.header.kind == Kind::HardState).collect();
            let from = if rng.permille(500) { states.len().saturating_sub(1) } else { 0 };
            states.get(from..)?.to_vec()
        }
        Fault::DamagedEnd => {
            let entries: Vec<_> = last.proven().filter(|b| b.header.kind.is_entry()).collect();
            let from = entries.len().saturating_sub(LAST_ENTRIES);
            rng.pick(entries.get(from..)?).copied().into_iter().collect()
        }
        Fault::DamagedOpening => {
            before.as_ref().filter(|before| {
                let shows_opening = before.leads_to(last.base()) || last.needs_nothing_of(before);
                shows_opening && is_without_gap(image, before, &last) && shows_begin(image, before, &last)
            })?;
            last.proven().take(1).collect()
        }
        Fault::DamagedCut => {
            let goes_on = |before: &&Segment| {
                let is_cut = before.leads_to(last.base()) && before.goes_on_behind(last.base().0);
                is_cut && shows_begin(image, before, &last)
            };
            let before = before.as_ref().filter(goes_on)?;
            // Without its footer nothing in it shows where it was truncated.
            older.push((before.name.clone(), (before.bytes - FOOTER_BYTES) as u64 * 8));
            if rng.permille(500) {
                last.proven().take(1).collect()
            } else {
                let cut = last.base().0..=last.base().0.next();
                let is_at_cut = |b: &&Block| b.header.kind.is_entry() && cut.contains(&b.header.raft_index);
                older.extend(before.blocks.iter().filter(is_at_cut).map(|b| before.bit(b, rng)));
                Vec::new()
            }
        }
        _ => return None,
    };
    let is_hurt = |b: &Block| hurt.iter().any(|h| h.at == b.at);
    let states = || last.blocks.iter().filter_map(|b| b.state.map(|state| (state, is_hurt(b))));
    let newest = states().map(|(state, _)| (state.term, state.vote)).max();
    let left = states().filter(|(_, hurt)| !hurt).map(|(state, _)| (state.term, state.vote)).max();
    let committed = states().map(|(state, _)| state.commit).max().unwrap_or_default();
    let known = states().filter(|(_, hurt)| !hurt).map(|(state, _)| state.commit).max().unwrap_or_default();
    let forgets = |b: &Block| {
        b.header.kind == Kind::Command && b.header.raft_index > known && b.header.raft_index <= committed
    };
    if kind == Fault::DamagedState && begun(image).any(|segment| segment.blocks.iter().any(forgets)) {
        return None;
    }
    let begins = |is_left: &dyn Fn(&Block) -> bool| {
        last.blocks.iter().filter(|b| is_left(b)).filter_map(|b| b.kept).max()
    };
    if begins(&|b| !is_hurt(b)) < begins(&|_| true) {
        return None;
    }
    let begins_behind = hurt.iter().any(|b| b.header.kind == Kind::Opening).then(|| last.base());
    let bits: Vec<_> = older.into_iter().chain(hurt.iter().map(|b| last.bit(b, rng))).collect();
    (!bits.is_empty()).then_some(Harm { kind, bits, loses_state: left < newest, begins_behind })
}

/// Whether the files of all segments between these two are there.
fn is_without_gap(image: &Image, before: &Segment, last: &Segment) -> bool {
    let (Some(from), Some(to)) = (file_number(&before.name), file_number(&last.name)) else { return false };
    (from..to).all(|number| image.file(&file_name(number)).is_some())
}

/// Whether a log without its last opening knows where its files begin. Those of a log with objects begin where its newest opening says.
fn shows_begin(image: &Image, before: &Segment, last: &Segment) -> bool {
    let of_log = match objects::decode(&last.opening.objects) {
        Ok((_, first)) if !last.opening.objects.is_empty() => first,
        _ => return true,
    };
    let begins = begun(image).last().and_then(|oldest| oldest.blocks.first().map(|block| block.header.first));
    last.opening.log_first <= of_log || begins.is_none_or(|begins| begins <= before.opening.log_first)
}

/// The segments that have begun, newest first.
pub(super) fn begun(image: &Image) -> impl Iterator<Item = Segment> {
    let mut names: Vec<&str> = image.names().filter(|name| name.ends_with(".seg")).collect();
    names.sort_unstable();
    names.into_iter().rev().filter_map(|name| Segment::read(image, name))
}

/// A segment that has begun, with its sound blocks.
pub(super) struct Segment {
    pub(super) name: String,
    opening: Opening,
    bytes: usize,
    pub(super) blocks: Vec<Block>,
}

pub(super) struct Block {
    pub(super) at: usize,
    pub(super) header: BlockHeader,
    /// Its term, vote and commit index, if it holds a hard state.
    state: Option<HardState>,
    /// The first record of the files, if it is a hard state that says so.
    pub(super) kept: Option<Index>,
    /// The log's first record, if it is a command that discards those before it.
    discards: Option<Index>,
}

impl Segment {
    fn read(image: &Image, name: &str) -> Option<Self> {
        let file = image.file(name)?;
        let id = SegmentHeader::parse(&file).ok()?.id;
        let mut blocks = Vec::new();
        let mut at = SEGMENT_HEADER_BYTES;
        while let Ok(header) = BlockHeader::parse(file.get(at..)?, id)
            && let Some(block) = file.get(at..at + header.length as usize)
            && check_body(&header, block, true).is_ok()
        {
            let body = &block[BLOCK_HEADER_BYTES..];
            let state = match header.kind {
                Kind::Opening => Opening::parse(body).ok().map(|opening| opening.hard_state),
                Kind::HardState => HardState::parse(body).ok(),
                _ => None,
            };
            let kept = if header.kind == Kind::HardState { HardState::kept_from(body) } else { None };
            let discards = match header.kind {
                Kind::Command => match parse_command(body) {
                    Ok(Command::Discard { first }) => Some(first),
                    _ => None,
                },
                _ => None,
            };
            blocks.push(Block { at, header, state, kept, discards });
            at += header.stride();
        }
        let first = blocks.first().filter(|b| b.header.kind == Kind::Opening)?;
        let body = &file[first.at + BLOCK_HEADER_BYTES..first.at + first.header.length as usize];
        let opening = Opening::parse(body).ok()?;
        Some(Self { name: name.to_owned(), opening, bytes: file.len(), blocks })
    }

    /// The entry before it, and its term.
    fn base(&self) -> (EntryIndex, Term) {
        self.blocks.first().map_or_else(Default::default, |b| (b.header.raft_index, b.header.term))
    }

    /// The blocks that a later block says were durable.
    fn proven(&self) -> impl Iterator<Item = &Block> {
        let durable = self.blocks.iter().map(|b| b.header.durable_upto as usize).max().unwrap_or_default();
        self.blocks.iter().filter(move |b| b.at < durable)
    }

    /// Whether it holds this entry, or begins behind it.
    fn leads_to(&self, base: (EntryIndex, Term)) -> bool {
        let is_it = |b: &Block| (b.header.raft_index, b.header.term) == base;
        self.blocks.iter().any(is_it)
    }

    /// The last entry that is committed according to these blocks.
    fn committed<'a>(blocks: impl Iterator<Item = &'a Block>) -> EntryIndex {
        blocks.filter_map(|b| b.state).map(|state| state.commit).max().unwrap_or_default()
    }

    /// Whether it shows without its opening that everything before it is committed and discarded, as this older segment is as far as it goes.
    fn needs_nothing_of(&self, before: &Self) -> bool {
        let committed = Self::committed(self.blocks.iter().skip(1));
        let commands = self.blocks.iter().filter(|b| b.header.raft_index <= committed);
        let begins = self.blocks.first().map(|b| b.header.first);
        let ends = before.blocks.last().map(|b| b.header.raft_index);
        self.opening.objects.is_empty()
            && self.base().0 <= committed
            && commands.filter_map(|b| b.discards).max() >= begins
            && ends.is_some_and(|end| end <= Self::committed(before.blocks.iter()))
    }

    /// Whether it holds entries after this one.
    fn goes_on_behind(&self, entry: EntryIndex) -> bool {
        self.blocks.iter().any(|b| b.header.kind.is_entry() && b.header.raft_index > entry)
    }

    /// A random bit of a block.
    fn bit(&self, block: &Block, rng: &mut Rng) -> (String, u64) {
        let bit = rng.below(block.header.length as usize * 8);
        (self.name.clone(), (block.at * 8 + bit) as u64)
    }
}
