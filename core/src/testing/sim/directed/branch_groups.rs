//! Branches of groups of named logs: which records of each log they have.

use super::Check;
use crate::backup::still::Still;
use crate::backup::{Branch, BranchOptions};
use crate::disk::Disk;
use crate::disk::sim::SimDisk;
use crate::error::{Error, ErrorKind, Result};
use crate::replica::queue::proposals::{Command, LogCommand};
use crate::replica::state::command::encode_command;
use crate::replica::state::log_table::LogTable;
use crate::replica::state::session_table::Sessions;
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::mixed::Run;
use crate::store::format::segment::Opening;
use crate::store::object_file::{Stretch, segment_file};
use crate::store::objects::deletion::delete_below;
use crate::store::objects::names::{Lineage, object_name, root_name, root_text};
use crate::store::segment::Base;
use crate::types::{EntryIndex, Index, LogId, LogNumber, Term, Timestamp};
use crate::vault::{MemoryVault, Vault};
use bytes::Bytes;
use std::sync::Arc;

const GROUP: LogId = LogId(7);
const LOG: LogNumber = LogNumber(1);
/// The objects are 0 to this number.
const OBJECTS: u64 = 4;
/// The number of records in each of them, as the openings say.
const RECORDS: u64 = 10;

fn block(kind: Kind, raft: u64, body: &[u8]) -> BlockHeader {
    BlockHeader::without_records(kind, (EntryIndex(raft), Term(1)), Index(1), Timestamp(1), body)
}

/// In this object the records before this one are discarded.
const DISCARD: (u64, Index) = (2, Index(16));

/// An object of two entries. Where it begins, the log has all records before it, and no first one.
fn object(number: u64) -> Result<Vec<Bytes>> {
    let base = |raft| Base { raft: EntryIndex(raft), term: Term(1), next: Index(1) };
    let (begin, end) = (base(number * 2), base(number * 2 + 2));
    let mut logs = LogTable::default();
    let wrong = |why| Error::new(ErrorKind::Corrupt, why);
    logs.apply(LogCommand::Open { log: LOG, start: Index(1) }).map_err(wrong)?;
    let run = Run {
        log: LOG,
        batches: 1,
        first: Index(1),
        records: (number * RECORDS) as u32,
        bytes: 90,
        digest: 0,
    };
    if number > 0 {
        logs.append(&run, Timestamp(1)).map_err(wrong)?;
    }
    logs.begin_at_ends();
    let opening = Opening {
        base_raft: begin.raft,
        base_term: begin.term,
        log_first: Index(1),
        sessions: Sessions::new(1, 1).encode(),
        logs: logs.encode(),
        ..Opening::default()
    };
    let body = opening.encode();
    let mut blocks = vec![(block(Kind::Opening, begin.raft.0, &body), Bytes::from(body))];
    let command = match number == DISCARD.0 {
        true => Bytes::from(encode_command(Command::Log(LogCommand::Discard { log: LOG, first: DISCARD.1 }))),
        false => Bytes::new(),
    };
    let kind = if command.is_empty() { Kind::NoOp } else { Kind::Command };
    blocks.push((block(kind, begin.raft.0 + 1, &command), command));
    blocks.push((block(Kind::NoOp, begin.raft.0 + 2, &[]), Bytes::new()));
    Ok(segment_file(&Stretch { log: GROUP, number, begin, end }, &blocks)?.pieces)
}

/// No object of a group says with which record its logs begin. A log of a branch begins with the first one in the oldest object that is
/// left, or where a discard says: behind that, records would be missing, and before it, readers would look for records that are gone.
pub(super) fn logs_of_a_branch_begin_where_its_objects_do() -> Check {
    for below in 0..=OBJECTS {
        let play = || {
            let memory = MemoryVault::default();
            memory.create(&root_name(GROUP), root_text(GROUP).into())?;
            for number in 0..=OBJECTS {
                memory.put(&object_name(GROUP, number), &object(number)?)?;
            }
            delete_below(&memory, &Lineage::of(GROUP), below)?;
            let disk: Arc<dyn Disk> = Arc::new(SimDisk::default());
            Branch::make_part_on(&memory, GROUP, &disk, &BranchOptions::default())?;
            let logs = Still::look(&disk)?.logs;
            Ok::<_, Error>(logs.get(LOG).map(|log| (log.first, log.next)))
        };
        let found = play().map_err(|e| e.to_string())?;
        let discarded = if below <= DISCARD.0 { DISCARD.1 } else { Index(1) };
        let wanted = Some((Index(1 + below * RECORDS).max(discarded), Index(1 + OBJECTS * RECORDS)));
        if found != wanted {
            return Err(format!(
                "objects from {below} on are left, and the log of a branch has {found:?}, not {wanted:?}"
            ));
        }
    }
    Ok(())
}
