//! Machine: one process of a simulation: a [`Node`] over a simulated disk, driven call by call. What the log's own driver
//! does with threads and clocks, this does when it is told.

use super::clock::Moment;
use crate::batch::Batch;
use crate::cluster::{Bootstrap, Role};
use crate::completion::{Appended, Ticket};
use crate::config::Clock;
use crate::disk::sim::SimDisk;
use crate::error::Result;
use crate::membership::Change;
use crate::transport::Envelope;
use crate::types::{DirectoryId, Index, LogId, NodeId, RaftIndex, SessionId, Term, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// When simulations begin, by the wall clock.
const EPOCH_MS: u64 = 1_700_000_000_000;

/// A wall clock that shows what it is told.
#[derive(Debug, Default)]
pub(super) struct SetClock(AtomicU64);

impl SetClock {
    /// Shows the time of `now`, wrong by so many milliseconds.
    pub(super) fn show(&self, now: Moment, wrong_by_ms: i64) {
        let right = EPOCH_MS + now.0 / 1_000_000;
        self.0.store(right.saturating_add_signed(wrong_by_ms), Ordering::Relaxed);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}

/// How a machine is started.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) node: NodeId,
    pub(super) bootstrap: Bootstrap,
    pub(super) clock: Arc<SetClock>,
    pub(super) heartbeat: Duration,
    pub(super) election_timeout: Duration,
    pub(super) session_idle_max: Duration,
    pub(super) seed: u64,
}

/// What can be asked of a machine.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Append(Batch),
    Discard(Index),
    OpenSession,
    CloseSession(SessionId),
    Barrier,
    Change(Vec<Change>),
    Transfer(NodeId),
}

/// How a machine stands, at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Glance {
    pub(super) role: Role,
    pub(super) term: Term,
    pub(super) leader: Option<NodeId>,
    pub(super) first: Index,
    pub(super) committed: Index,
    pub(super) committed_raft: RaftIndex,
    pub(super) last_raft: RaftIndex,
    /// The last record in the files, synced or not.
    pub(super) written: Index,
}

pub(super) struct Machine {}

impl Machine {
    pub(super) fn open(_disk: &SimDisk, _setup: &Setup, _now: Moment) -> Result<Self> {
        todo!()
    }
    pub(super) fn identity(&self) -> (LogId, DirectoryId) {
        todo!()
    }
    pub(super) fn deliver(&mut self, _envelope: Envelope) {
        todo!()
    }
    pub(super) fn ask(&mut self, _request: Request, _patience: Duration) -> Result<Ticket> {
        todo!()
    }
    pub(super) fn turn(&mut self, _now: Moment) -> Result<()> {
        todo!()
    }
    pub(super) fn begin_sync(&mut self, _now: Moment) -> bool {
        todo!()
    }
    pub(super) fn end_sync(&mut self, _now: Moment) -> Result<()> {
        todo!()
    }
    pub(super) fn deadline(&self, _now: Moment) -> Option<Moment> {
        todo!()
    }
    pub(super) fn take_outgoing(&mut self) -> Vec<Envelope> {
        todo!()
    }
    pub(super) fn glance(&self) -> Glance {
        todo!()
    }
    /// voters of both halves, learners
    pub(super) fn voters(&self) -> (Vec<NodeId>, Vec<NodeId>) {
        todo!()
    }
    pub(super) fn learners(&self) -> Vec<NodeId> {
        todo!()
    }
    pub(super) fn poison(&mut self, _cause: crate::error::Error) {
        todo!()
    }
    pub(super) fn read(&self, _index: Index) -> Result<Vec<u8>> {
        todo!()
    }
    pub(super) fn range(&self) -> (Index, Index) {
        todo!()
    }
    /// newly committed records
    pub(super) fn follow(&mut self) -> Result<Vec<(Index, Vec<u8>)>> {
        todo!()
    }
}
#[allow(unused)]
fn _x(_: Appended) {}
