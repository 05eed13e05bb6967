//! A pin is made while objects are deleted: the calls of both to the object store, in all orders with two
//! switches between them, and many with three.

use super::Check;
use super::turns::{Order, Turns};
use crate::backup::{Inventory, Pin};
use crate::error::{ErrorKind, Result};
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::segment::{Footer, Opening};
use crate::store::objects::deletion::delete_below;
use crate::store::objects::names::{Lineage, object_name, root_name, root_text, salt};
use crate::store::objects::pins;
use crate::sync::threads::in_parallel;
use crate::types::{EntryIndex, Index, LogId, Term, Timestamp};
use crate::vault::{MemoryVault, Vault};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;

const LOG: LogId = LogId(7);
/// The objects are 0 to this number, and those below the second one are deleted.
const OBJECTS: u64 = 5;
const BELOW: u64 = 3;
/// The most calls of one side.
const CALLS_MAX: u32 = 24;

/// The root, and objects without entries: what a maker of pins reads of them.
fn objects() -> Vec<(String, Bytes)> {
    let object = |number: u64| {
        let (id, raft, term) = (salt(LOG, number), EntryIndex(number * 10), Term(1));
        let (first, next) = (Index(raft.0 + 1), Index(raft.0 + 11));
        let body =
            Opening { base_raft: raft, base_term: term, log_first: Index(1), ..Opening::default() }.encode();
        let opening = BlockHeader::without_records(Kind::Opening, (raft, term), first, Timestamp(0), &body);
        let footer = Footer {
            number: number + 1,
            id,
            base_raft: raft,
            base_term: term,
            first,
            next,
            last_raft: EntryIndex(raft.0 + 10),
            last_term: term,
            first_timestamp: Timestamp(0),
            last_timestamp: Timestamp(0),
            data_end: 0,
            index_offset: 0,
            index_count: 0,
            index_crc: 0,
        };
        let bytes = [&[0; SEGMENT_HEADER_BYTES][..], &opening.encode(id), &body, &footer.encode()].concat();
        (object_name(LOG, number), bytes.into())
    };
    let root = (root_name(LOG), root_text(LOG).into());
    std::iter::once(root).chain((0..=OBJECTS).map(object)).collect()
}

/// The deletion that runs meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deleted {
    /// Objects of discarded records.
    Below,
    /// The whole log.
    Log,
}

/// The result of a side.
enum Done {
    Made(Result<Pin>),
    Deleted(Result<u64>),
}

/// Plays one order. True: the pin was made before anything was deleted, and holds.
fn play(
    sound: &[(String, Bytes)],
    what: Deleted,
    first: usize,
    switches: Vec<u32>,
) -> std::result::Result<bool, String> {
    let memory = Arc::new(MemoryVault::default());
    for (name, bytes) in sound {
        memory.put(name, std::slice::from_ref(bytes)).map_err(|e| e.to_string())?;
    }
    let order = Order::new(first, switches.clone());
    let vault = |me| Turns::new(&memory, &order, me);
    let (maker, deleter) = (vault(0), vault(1));
    let (mut made, mut deleted) = (None, None);
    let side = |me: &usize| {
        let done = match (me, what) {
            (0, _) => Done::Made(Pin::make_as(&maker, LOG, "p", None, Timestamp(0), 1)),
            (_, Deleted::Below) => Done::Deleted(delete_below(&deleter, &Lineage::of(LOG), BELOW)),
            (_, Deleted::Log) => Done::Deleted(Inventory::delete_log(&deleter, LOG)),
        };
        order.end(*me);
        Ok(done)
    };
    let ended = in_parallel(2, &[0, 1], side, |done| match done {
        Done::Made(pin) => made = Some(pin),
        Done::Deleted(count) => deleted = Some(count),
    });
    ended.map_err(|e| e.to_string())?;
    let (Some(made), Some(deleted)) = (made, deleted) else { return Err("a side did not end".to_owned()) };
    let of_log = what == Deleted::Log;
    let what = format!("{what:?}, caller {first} first, switches after {switches:?}");
    match deleted {
        Err(e) if of_log && e.kind() == ErrorKind::Busy => {}
        deleted => drop(deleted.map_err(|e| format!("{what}: the deletion fails: {e}"))?),
    }
    let pinned = pins::all(&*memory, LOG).map_err(|e| e.to_string())?;
    match made {
        Ok(pin) => {
            let missing = pin.missing(&*memory, LOG).map_err(|e| e.to_string())?;
            match missing {
                0 if pinned == [pin.clone()] => Ok(pin.first_object == 0),
                _ => Err(format!("{what}: {pin:?} was made, and {missing} of its objects are missing")),
            }
        }
        Err(e) if of_log && pinned.is_empty() => match e.kind() {
            ErrorKind::NotFound | ErrorKind::Busy | ErrorKind::Corrupt => Ok(false),
            kind => Err(format!("{what}: {kind:?} {e}")),
        },
        Err(e) => Err(format!("{what}: {:?} {e}, and the pins are {pinned:?}", e.kind())),
    }
}

/// A deletion that has not seen a pin is seen by the maker of the pin.
pub(super) fn pin_holds_in_any_order_with_a_deletion() -> Check {
    let sound = objects();
    let mut outcomes = BTreeSet::new();
    for (first, deleted) in [0, 1].into_iter().flat_map(|n| [(n, Deleted::Below), (n, Deleted::Log)]) {
        for a in 0..CALLS_MAX {
            for b in a..CALLS_MAX {
                for c in [b, b + 1, b + 2, b + 4, b + 8] {
                    outcomes.insert(play(&sound, deleted, first, vec![a, b, c])?);
                }
            }
        }
    }
    match outcomes.len() {
        2 => Ok(()),
        _ => Err(format!("all orders end alike: {outcomes:?}")),
    }
}
