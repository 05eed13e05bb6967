//! Made: the log that would be made of the object store alone: with which state it ends, and where it begins.
//!
//! Must not know: hosts, clients.

use crate::backup::found::{Found, end_of, find};
use crate::backup::slices::{longest, read};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::replica::state::sequencer::Sequencer;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::sorted_object::is_sorted;
use crate::store::objects::names::salt;
use crate::store::sorted_object::unsort;
use crate::types::{EntryIndex, Index, LogId};
use crate::vault::Vault;
use bytes::Bytes;

/// A log that was made.
pub(super) struct Made {
    /// The record with whose entry it begins, if it is made of slices alone. None: it begins with its objects.
    pub(super) begin: Option<Index>,
    /// The state behind its last entry.
    pub(super) sequencer: Sequencer,
}

/// A block with its body.
type Block = (BlockHeader, Bytes);

/// Makes the log, as far as its state. `sequencer`: an empty one.
///
/// # Errors
/// Those of [`Backup::fetch`](crate::backup::Backup::fetch).
pub(super) fn made(vault: &dyn Vault, log: LogId, sequencer: Sequencer, options: &Options) -> Result<Made> {
    let Found { lineage, slices: names, objects, .. } = find(vault, log)?;
    let newest = objects.last();
    let end = newest.map(|newest| end_of(vault, lineage.owner(newest.0), newest)).transpose()?;
    let chain = longest(vault, &names, end, &mut |_| {})?;
    let mut made = Made { begin: None, sequencer };
    if let Some((number, object)) = newest.filter(|_| !chain.begins) {
        let owner = lineage.owner(*number);
        let bytes = vault.get(&object.name, 0..object.bytes)?;
        let file = match is_sorted(&bytes) {
            true => unsort(owner, *number, &bytes, &object.name)?.pieces.concat().into(),
            false => bytes,
        };
        let upto = end.map_or(EntryIndex(0), |(raft, _)| raft);
        let mut blocks = blocks_of(&file, owner, *number, upto)?.into_iter();
        let opening = blocks.next().ok_or_else(|| wrong("object is empty"))?;
        made.begin_with(&opening, options)?;
        blocks.try_for_each(|entry| made.follow(entry))?;
    }
    for name in &chain.slices {
        let bytes = names.iter().find(|(there, _)| there == name).map_or(0, |(_, bytes)| *bytes);
        let slice = read(vault, name, bytes)?;
        if let Some(opening) = slice.opening.filter(|_| chain.begins && chain.slices.first() == Some(name)) {
            made.begin_with(&opening, options)?;
            made.begin = Some(slice.base.next);
        }
        let end = made.sequencer.end().raft;
        let new = slice.entries.into_iter().filter(|(header, _)| header.raft_index > end);
        new.into_iter().try_for_each(|entry| made.follow(entry))?;
    }
    Ok(made)
}

impl Made {
    fn begin_with(&mut self, (header, body): &Block, options: &Options) -> Result<()> {
        self.sequencer.jump(header, body, options).map_err(wrong)
    }

    fn follow(&mut self, (header, body): Block) -> Result<()> {
        let body = Some(body).filter(|body| !body.is_empty()).into_iter().collect();
        self.sequencer.follow(&header, body).map_err(wrong)?;
        self.sequencer.commit_to(header.raft_index);
        Ok(())
    }
}

/// The blocks of the segment file of an object, up to an entry.
fn blocks_of(file: &Bytes, log: LogId, number: u64, upto: EntryIndex) -> Result<Vec<Block>> {
    let (mut at, mut blocks) = (SEGMENT_HEADER_BYTES, Vec::new());
    while blocks.last().is_none_or(|(header, _): &Block| header.raft_index < upto) {
        let head = file.get(at..at + BLOCK_HEADER_BYTES).ok_or_else(|| wrong("object is cut off"))?;
        let header = BlockHeader::parse(head, salt(log, number)).map_err(wrong)?;
        let body = at + BLOCK_HEADER_BYTES..at + header.length as usize;
        if body.end > file.len() {
            return Err(wrong("block is cut off"));
        }
        blocks.push((header, file.slice(body)));
        at += header.stride();
    }
    Ok(blocks)
}

fn wrong(why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, why.to_owned())
}
