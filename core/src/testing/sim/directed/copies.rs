//! Copies with an object store, whose files go once their records are stored.

use super::Check;
use crate::api::follower::FollowerLog;
use crate::api::log::Log;
use crate::disk::Disk;
use crate::disk::sim::SimDisk;
use crate::error::Result;
use crate::follower::message::{FollowFrom, FollowMessage};
use crate::options::Options;
use crate::read::view::Start;
use crate::types::Index;
use crate::vault::{FaultOptions, FaultyVault, MemoryVault, Vault};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SEGMENT_BYTES: u32 = 256 << 10;
const RECORD_BYTES: usize = 1000;
/// How long the copy is read, so that its thread has removed files, if it does: also on a busy machine.
const FILES_GO_WITHIN: Duration = Duration::from_secs(6);

fn disk() -> Arc<dyn Disk> {
    let disk = SimDisk::default();
    disk.forget_history();
    Arc::new(disk)
}

fn append(log: &Log, count: u64) -> Result<()> {
    let tickets: Vec<_> = (0..count).map(|n| log.submit(&[n as u8; RECORD_BYTES])).collect::<Result<_>>()?;
    tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))
}

/// A source stores some objects, then the object store refuses it. Its copy, which may keep two segments, keeps all records that are in no
/// object.
pub(super) fn copy_keeps_files_that_are_not_stored() -> Check {
    let all = || -> Result<Result<(), String>> {
        let vault = Arc::new(MemoryVault::default());
        let down = Arc::new(FaultyVault::new(vault.clone(), 7, FaultOptions::default()));
        let options = Options::with_segment_bytes(SEGMENT_BYTES).local_bytes(2 * u64::from(SEGMENT_BYTES));
        let of_source = options.clone().vault(down.clone() as Arc<dyn Vault>).object_bytes(128 << 10);
        let source = Log::open_on(disk(), of_source)?;
        append(&source, 1000)?;
        let begun = Instant::now();
        while source.metrics().stored_objects < 4 {
            if begun.elapsed() > Duration::from_secs(60) {
                return Ok(Err("no object is stored".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut feed = source.follow(FollowFrom::First)?.skip_stored();
        let Some(FollowMessage::State(state)) = feed.next(0)? else {
            return Ok(Err("a feed begins with a state".to_owned()));
        };
        let copy = FollowerLog::create_on(disk(), options.vault(vault as Arc<dyn Vault>), &state)?;
        down.set_faults(FaultOptions::default().refused(1_000));
        append(&source, 2000)?;
        while let Some(fed) = feed.next(64 << 10)? {
            copy.apply(fed)?;
        }
        let (stored, last) = (copy.log().metrics().stored_index, source.last_index());
        if stored == 0 || stored + 1500 > last.get() {
            return Ok(Err(format!("records up to {stored} of {last} are stored")));
        }
        // Files go on a thread of the copy.
        let applied = Instant::now();
        while applied.elapsed() < FILES_GO_WITHIN {
            let mut reader = copy.log().reader_that_fails_at_once(Start::Index(Index(stored + 1)))?;
            while reader.position() <= last {
                if let Err(error) = reader.next_record() {
                    let at = reader.position();
                    return Ok(Err(format!(
                        "the copy lacks record {at}; records up to {stored} are stored: {error}"
                    )));
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Ok(()))
    };
    all().unwrap_or_else(|error| Err(error.to_string()))
}
