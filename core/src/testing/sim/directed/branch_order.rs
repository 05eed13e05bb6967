//! A branch is made while its parent deletes objects: the calls of both to the object store, in all orders with two switches between
//! them.

use super::Check;
use super::turns::{Order, Turns};
use crate::backup::{Branch, BranchOptions, BranchPart, Pin, Restored};
use crate::disk::sim::SimDisk;
use crate::error::{Error, ErrorKind, Result};
use crate::replica::state::session_table::Sessions;
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::objects::Ancestor;
use crate::store::format::segment::Opening;
use crate::store::object_file::{Stretch, segment_file};
use crate::store::objects::deletion::delete_below;
use crate::store::objects::names::{Lineage, folder, object_name, root_name, root_text};
use crate::store::segment::Base;
use crate::sync::threads::in_parallel;
use crate::types::{EntryIndex, Index, LogId, Term, Timestamp};
use crate::vault::{MemoryVault, Vault};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;

const PARENT: LogId = LogId(7);
/// The objects are 0 to this number, and those below the second one are deleted.
const OBJECTS: u64 = 4;
const BELOW: u64 = 2;
/// The most calls of the maker that matter, and of the deletion.
const MAKER_CALLS: u32 = 44;
const DELETER_CALLS: u32 = 9;
/// The calls of one that removes a pin.
const REMOVER_CALLS: u32 = 14;

fn block(kind: Kind, raft: u64, body: &[u8]) -> BlockHeader {
    BlockHeader::without_records(kind, (EntryIndex(raft), Term(1)), Index(1), Timestamp(1), body)
}

/// The root, and objects of two entries without records each.
fn objects() -> Result<Vec<(String, Vec<Bytes>)>> {
    let base = |raft| Base { raft: EntryIndex(raft), term: Term(1), next: Index(1) };
    let object = |number: u64| {
        let (begin, end) = (base(number * 2), base(number * 2 + 2));
        let opening = Opening {
            base_raft: begin.raft,
            base_term: begin.term,
            log_first: Index(1),
            sessions: Sessions::new(1, 1).encode(),
            ..Opening::default()
        };
        let body = opening.encode();
        let mut blocks = vec![(block(Kind::Opening, begin.raft.0, &body), Bytes::from(body))];
        blocks.extend([1, 2].map(|n| (block(Kind::NoOp, begin.raft.0 + n, &[]), Bytes::new())));
        let made = segment_file(&Stretch { log: PARENT, number, begin, end }, &blocks)?;
        Ok((object_name(PARENT, number), made.pieces))
    };
    let root = (root_name(PARENT), vec![Bytes::from(root_text(PARENT))]);
    std::iter::once(Ok(root)).chain((0..=OBJECTS).map(object)).collect()
}

/// The result of a side.
enum Done {
    Made(Result<Restored>),
    Deleted(Result<u64>),
}

/// Plays one order. Returns the first object that the branch reads; None: it was not made.
fn play(
    sound: &[(String, Vec<Bytes>)],
    first: usize,
    switches: Vec<u32>,
) -> std::result::Result<Option<u64>, String> {
    let memory = Arc::new(MemoryVault::default());
    for (name, pieces) in sound {
        memory.put(name, pieces).map_err(|e| e.to_string())?;
    }
    let order = Order::new(first, switches.clone());
    let (maker, deleter) = (Turns::new(&memory, &order, 0), Turns::new(&memory, &order, 1));
    let (mut made, mut deleted) = (None, None);
    let side = |me: &usize| {
        let done = match me {
            0 => {
                let disk = Arc::new(SimDisk::default());
                Done::Made(Branch::make_on(&maker, PARENT, disk, &BranchOptions::default()))
            }
            _ => Done::Deleted(delete_below(&deleter, &Lineage::of(PARENT), BELOW)),
        };
        order.end(*me);
        Ok::<_, Error>(done)
    };
    let ended = in_parallel(2, &[0, 1], side, |done| match done {
        Done::Made(branch) => made = Some(branch),
        Done::Deleted(count) => deleted = Some(count),
    });
    ended.map_err(|e| e.to_string())?;
    let (Some(made), Some(deleted)) = (made, deleted) else { return Err("a side did not end".to_owned()) };
    let what = format!("caller {first} first, switches after {switches:?}");
    deleted.map_err(|e| format!("{what}: the deletion fails: {e}"))?;
    let check = || {
        let branch = match made {
            Ok(branch) => branch,
            Err(error) if error.kind() == ErrorKind::Busy => return Ok(None),
            Err(error) => return Err(error),
        };
        let of = Branch::of(&*memory, branch.log_id)?;
        let missing = of.as_ref().map_or(Ok(0), |of| of.missing(&*memory))?;
        let pins = Pin::list(&*memory, PARENT)?;
        if missing > 0 || pins.len() != 1 || pins[0].branch() != Some(branch.log_id) {
            let what = format!("{missing} objects of a branch are missing, and the pins are {pins:?}");
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        Ok(of.and_then(|of| of.parts.first().map(|part| part.first_object.max(pins[0].first_object))))
    };
    check().map_err(|e| format!("{what}: {e}"))
}

/// Plays one order of a branch's maker and of a caller that removes the pins of the parent. True: the branch was made.
fn play_removal(
    sound: &[(String, Vec<Bytes>)],
    first: usize,
    switches: Vec<u32>,
) -> std::result::Result<bool, String> {
    let memory = Arc::new(MemoryVault::default());
    for (name, pieces) in sound {
        memory.put(name, pieces).map_err(|e| e.to_string())?;
    }
    let order = Order::new(first, switches.clone());
    let (maker, remover) = (Turns::new(&memory, &order, 0), Turns::new(&memory, &order, 1));
    let mut made = None;
    let side = |me: &usize| {
        let done = match me {
            0 => {
                let disk = Arc::new(SimDisk::default());
                Some(Branch::make_on(&maker, PARENT, disk, &BranchOptions::default()))
            }
            _ => {
                for pin in Pin::list(&remover, PARENT)? {
                    drop(Pin::remove(&remover, PARENT, &pin.name));
                }
                None
            }
        };
        order.end(*me);
        Ok::<_, Error>(done)
    };
    let what = format!("a removal: caller {first} first, switches after {switches:?}");
    in_parallel(2, &[0, 1], side, |done| made = made.take().or(done)).map_err(|e| format!("{what}: {e}"))?;
    match made {
        Some(Ok(branch)) => {
            let pins = Pin::list(&*memory, PARENT).map_err(|e| e.to_string())?;
            let keeps = pins.len() == 1 && pins[0].branch() == Some(branch.log_id);
            if keeps {
                Ok(true)
            } else {
                Err(format!("{what}: the branch is made, and its parent has the pins {pins:?}"))
            }
        }
        Some(Err(error)) if error.kind() == ErrorKind::Busy => Ok(false),
        Some(Err(error)) => Err(format!("{what}: {error}")),
        None => Err(format!("{what}: the maker did not end")),
    }
}

/// A branch that is made has its pin, whenever that is removed: its maker looks for the pin at the end, and who removes it looks for
/// the branch afterwards.
pub(super) fn branch_keeps_its_pin_in_any_order_with_a_removal() -> Check {
    let sound = objects().map_err(|e| e.to_string())?;
    let mut outcomes = BTreeSet::new();
    for a in 0..MAKER_CALLS + 12 {
        for b in a..=a + REMOVER_CALLS {
            for c in [b, b + 1, b + 2, b + 4, b + 8] {
                outcomes.insert(play_removal(&sound, 0, vec![a, b, c])?);
            }
        }
    }
    if outcomes.len() == 2 { Ok(()) } else { Err(format!("all orders end alike: {outcomes:?}")) }
}

/// A branch deletes what it has discarded: its own objects. Those of its parent stay, and the parent may delete them once none is needed by
/// the branch, or by a pin of the branch.
pub(super) fn branch_deletes_nothing_of_its_parent() -> Check {
    let check = || {
        let memory = MemoryVault::default();
        for (name, pieces) in objects()? {
            memory.put(&name, &pieces)?;
        }
        let disk = Arc::new(SimDisk::default());
        let branch = Branch::make_on(&memory, PARENT, disk, &BranchOptions::default())?.log_id;
        let parts = Branch::of(&memory, branch)?.map(|of| of.parts).unwrap_or_default();
        let ancestor = |part: &BranchPart| Ancestor { log: part.log_id, below: part.last_object + 1 };
        let lineage = Lineage { log: branch, ancestors: parts.iter().map(ancestor).collect() };
        let own = lineage.own_from();
        let parents = |memory: &MemoryVault| Ok::<_, Error>(memory.list(&folder(PARENT))?.len() as u64);
        let wrong = |what: &str| Err(Error::new(ErrorKind::Corrupt, what));
        let pin = Pin::make_as(&memory, branch, "kept", None, Timestamp(0), 1)?;
        for below in 0..=own + 1 {
            delete_below(&memory, &lineage, below)?;
            if parents(&memory)? != OBJECTS + 1 {
                return wrong("a branch has deleted objects of its parent");
            }
            if Pin::list(&memory, PARENT)?.len() != 1 || pin.missing(&memory, branch)? > 0 {
                return wrong("a branch has let go objects that a pin of it keeps");
            }
        }
        Pin::remove(&memory, branch, &pin.name)?;
        delete_below(&memory, &lineage, own + 2)?;
        if !Pin::list(&memory, PARENT)?.is_empty() || parents(&memory)? != OBJECTS + 1 {
            return wrong("a branch that needs nothing of its parent keeps its objects, or deletes them");
        }
        Ok(())
    };
    check().map_err(|e| e.to_string())
}

/// A deletion that has not seen a branch's pin is seen by the maker of the branch.
pub(super) fn branch_keeps_its_objects_in_any_order_with_a_deletion() -> Check {
    let sound = objects().map_err(|e| e.to_string())?;
    let mut outcomes = BTreeSet::new();
    for a in 0..MAKER_CALLS {
        for b in a..=a + DELETER_CALLS {
            outcomes.insert(play(&sound, 0, vec![a, b])?);
        }
    }
    for a in 0..DELETER_CALLS {
        for b in (a..MAKER_CALLS).step_by(2) {
            outcomes.insert(play(&sound, 1, vec![a, b])?);
        }
    }
    match outcomes.contains(&Some(0)) && outcomes.contains(&Some(BELOW)) {
        true => Ok(()),
        false => Err(format!("all orders end alike: {outcomes:?}")),
    }
}
