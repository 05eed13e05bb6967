//! Setup: what a machine is started with: its place in the cluster, its clock, and the options of its log.
//!
//! Must not know: hosts, clients, what a replica does with its options.

use super::outbox::Outbox;
use super::vault::SimVault;
use crate::cluster::options::{Bootstrap, ClusterOptions};
use crate::options::{Clock, Options};
use crate::store::format::geometry::SEGMENT_BYTES_MIN;
use crate::sync::clock::Moment;
use crate::types::{NodeId, Timestamp};
use crate::vault::Vault;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often slices are stored.
const SLICE_INTERVAL: Duration = Duration::from_millis(50);

/// The size of blocks in some runs: two large records fit.
const BLOCK_BYTES_SMALL: u32 = 10 << 10;

/// The bytes of files and of objects that are kept whole, where these are kept.
const FILLED_BYTES: u64 = 6 * SEGMENT_BYTES_MIN as u64;

/// The smallest size of a segment, so that runs use many segments.
pub(super) const SEGMENT_BYTES: u32 = SEGMENT_BYTES_MIN;

/// The wall-clock time at which simulations begin, in milliseconds since 1970.
const EPOCH_MS: u64 = 1_700_000_000_000;

/// A wall clock that shows the time that was set.
#[derive(Debug, Default)]
pub(super) struct SetClock(AtomicU64);

impl SetClock {
    /// Shows the time of `now`, with an error of `wrong_by_ms` milliseconds.
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

/// The parameters for starting a machine.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) node: NodeId,
    pub(super) bootstrap: Bootstrap,
    pub(super) clock: Arc<SetClock>,
    pub(super) heartbeat: Duration,
    pub(super) election_timeout: Duration,
    pub(super) session_idle_max: Duration,
    pub(super) object_scrub: Duration,
    /// How many sessions may be open at once; `None`: as many as the options allow.
    pub(super) sessions_max: Option<u32>,
    /// How many bytes may wait for each of the other replicas.
    pub(super) queue_bytes_max: usize,
    /// The log is a group of named logs.
    pub(super) shared: bool,
    /// The object store.
    pub(super) vault: Option<Arc<SimVault>>,
    /// Its disk is filled with whole objects.
    pub(super) fills: bool,
    pub(super) seed: u64,
}

/// The options of the log that a machine opens.
pub(super) fn options_of(setup: &Setup, outbox: Arc<Outbox>) -> Options {
    let cluster = ClusterOptions {
        address: format!("host{}", setup.node),
        heartbeat: setup.heartbeat,
        election_timeout: setup.election_timeout,
        ..ClusterOptions::new(setup.node, setup.bootstrap, outbox)
    };
    let options = Options::with_segment_bytes(SEGMENT_BYTES);
    // Openings of these small segments have room for many sessions or for named logs.
    let (sessions_max, session_window) =
        if setup.shared { (16, 16) } else { (options.sessions_max, options.session_window) };
    // Small blocks, so that the queue often holds several: a block is a turn of the logs of a group.
    let block_bytes_max = if setup.shared && setup.seed.is_multiple_of(2) {
        BLOCK_BYTES_SMALL
    } else {
        options.block_bytes_max
    };
    Options {
        block_bytes_max,
        clock: setup.clock.clone(),
        session_idle_max: setup.session_idle_max,
        cluster: Some(cluster),
        sessions_max: setup.sessions_max.unwrap_or(sessions_max),
        vault: setup.vault.clone().map(|vault| vault as Arc<dyn Vault>),
        object_bytes: SEGMENT_BYTES,
        object_age: setup.seed.is_multiple_of(3).then_some(Duration::from_secs(2)),
        local_bytes: Some(if setup.fills { FILLED_BYTES } else { 2 * u64::from(SEGMENT_BYTES) }),
        fill_bytes: setup.fills.then_some(FILLED_BYTES),
        cache_bytes: 8 << 20,
        object_delete_delay: Duration::from_secs(1),
        object_scrub: Some(setup.object_scrub),
        slice_interval: setup.vault.as_ref().filter(|vault| vault.takes_slices).map(|_| SLICE_INTERVAL),
        slice_bytes: 512 << 10,
        payload_slices: setup.vault.as_ref().is_some_and(|vault| vault.takes_payloads),
        // Half of the nodes read named logs from the segments.
        sorted_copies: setup.node.0.is_multiple_of(2),
        session_window,
        ..options
    }
}
