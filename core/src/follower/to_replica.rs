//! A copy becomes a replica: the directory of a follower is taken by a server that is to join the cluster of that log. So a new server
//! begins with files that came from any server, or with a view's own copy, and its leader sends it the rest alone.
//!
//! ```text
//!  copy ── no longer a follower's, but to be added ──> replica ── the leader adds it, durably known here ──> member
//! ```
//!
//! Its state is that of a learner to which a leader has sent these entries, and not yet the one that added it. All of them are committed,
//! which a block says in the end: a replica does not open with several changes of membership of which it does not know that. It has
//! neither voted nor confirmed anything. It differs from such a learner in one thing: it may not be added yet, and a leader then
//! answers its greeting that it is no member. It does not believe that before it was one, and its identity remembers this.
//!
//! Invariants:
//! - it has all records from the log's first on, so it lacks nothing that another replica may need from it. Its own state does not say so: a
//!   copy can begin later than its log. So the caller says where the leader has the log begin;
//! - its entries are those of the replicas, byte for byte. In the class `object` they are not: a copy has the payload where replicas refer
//!   to it. So no copy of a log with an object store becomes a replica; a new one reads the store instead;
//! - its directory has a new id, because the copy can have been copied to several servers;
//! - the last write is that of the identity, one sector: a directory is either a copy or a replica.
//!
//! Must not know: the network, how a leader adds a replica.

use super::applier::Applier;
use crate::disk::Disk;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::options::log_options::LogOption;
use crate::replica::node::shared::Shared;
use crate::replica::open::open_followed;
use crate::store::format::identity::Identity;
use crate::types::{Index, LogId, NodeId};
use std::sync::Arc;

/// Makes the closed copy on `disk` the replica of a node that the leader of log `log` is to add, which has the log begin with record `first`.
///
/// # Errors
/// `InvalidArgument`: it is no copy, one of another log, of one named log, of a part of the log or of one with an object store, or the node is a
/// member. `NotFound`: there is no
/// log. `Locked`: it is open. `Corrupt`, `Unsupported`, `Io`.
pub(crate) fn replica_of_copy(
    disk: &Arc<dyn Disk>,
    log: LogId,
    node: NodeId,
    first: Index,
    options: &Options,
) -> Result<()> {
    let mut opened = open_followed(disk.clone(), options)?;
    let committed = opened.sequencer.committed();
    let oldest = opened.segments.oldest().map_or(Index(u64::MAX), |oldest| oldest.base.next);
    let begins = oldest.max(committed.first);
    let options_of_log = opened.sequencer.options_at_end();
    let is_set = |option| options_of_log.get(option).is_some();
    let of_stores = [LogOption::ObjectBytes, LogOption::PayloadSlices];
    let has_store = opened.sequencer.objects().has_begun() || of_stores.into_iter().any(is_set);
    let refused = |what: String| {
        let what = format!("{}: {what}", disk.path().display());
        Err(Error::new(ErrorKind::InvalidArgument, what))
    };
    match &committed.membership {
        _ if opened.identity.log != log => {
            let there = opened.identity.log;
            return refused(format!("it holds a copy of log {:032x}, not of log {:032x}", there.0, log.0));
        }
        members if members.is_of_one_log() => {
            return refused("it holds a copy of one named log, not of its group".to_owned());
        }
        _ if has_store => {
            return refused(
                "the log of its copy has an object store: begin with an empty directory, as a new server reads the store itself"
                    .to_owned(),
            );
        }
        members if members.get(node).is_some() => {
            return refused(format!(
                "its copy knows node {node} as a member: give the server a number that was never used before"
            ));
        }
        _ if begins > first => {
            return refused(format!(
                "its copy begins with record {begins}, and the log with record {first}: begin with an empty directory"
            ));
        }
        _ => {}
    }
    let fresh = Identity::random(&**disk, options.clock.now());
    let fresh = fresh.map_err(|e| Error::io("make a replica in", disk.path(), e))?;
    let identity = Identity { log, joins: true, ..fresh };
    let _lock = opened.take_lock();
    opened.store.allocator.go_unaided();
    let shared = Shared::of(disk.path(), options.clone(), &opened);
    Applier::new(opened, &shared).conclude(0)??;
    identity.write(&**disk)
}
