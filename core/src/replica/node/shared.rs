//! Shared: the state that a log's handle and its threads share: the queue, the positions, the published state.

use super::{Published, counted_capacity};
use crate::cluster::options::ClusterOptions;
use crate::options::Options;
use crate::read::view::LogView;
use crate::replica::open::RecoveredLog;
use crate::replica::queue::proposals::{ProposalQueue, QueueLimits};
use crate::store::format::identity::Identity;
use crate::store::segment::Segments;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The state that a log's handle and its threads share.
pub(crate) struct Shared {
    /// The log's directory.
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
    /// The options that it was opened with.
    pub(crate) options: Options,
    pub(crate) queue: Arc<ProposalQueue>,
    /// Its segments and positions.
    pub(crate) view: LogView,
    pub(crate) published: Arc<Published>,
}

impl Shared {
    /// For a log of which nothing is known yet but its directory.
    pub(crate) fn new(
        path: &Path,
        identity: Identity,
        options: Options,
        segments: Arc<Segments>,
        limits: QueueLimits,
    ) -> Self {
        let view = LogView::new(segments, options.prefetch_bytes as usize, false);
        let queue = Arc::new(ProposalQueue::new(limits, 0));
        Self { path: path.to_path_buf(), identity, options, queue, view, published: Arc::default() }
    }

    /// For a log that was just opened.
    pub(crate) fn of(path: &Path, options: Options, opened: &RecoveredLog) -> Self {
        let limits = limits(&options, &opened.cluster);
        let shared = Self::new(path, opened.identity, options, opened.segments.clone(), limits);
        shared.begin(opened);
        shared
    }

    /// Moves the positions to the end of the log that was opened: all its records are durable, and those known to be
    /// committed are.
    pub(crate) fn begin(&self, opened: &RecoveredLog) {
        let committed = opened.sequencer.committed();
        let last = opened.sequencer.end().next.previous();
        let positions = &self.view.positions;
        positions.discarded(opened.sequencer.readable_from());
        positions.written(last);
        positions.durable_to(last);
        positions.commit_to(committed.next.previous().min(last));
        if opened.sequencer.logs().is_shared() {
            let logs = committed.logs.iter().map(|(log, state)| (log, Some(state)));
            self.view.logs.show(committed.logs.opened(), logs);
            committed
                .logs
                .with_options()
                .for_each(|(log, options)| self.view.logs.show_options(log, *options));
        }
        self.queue.recount(self.view.segments.bytes_from(committed.first));
    }
}

/// The queue's limits.
pub(crate) fn limits(options: &Options, cluster: &ClusterOptions) -> QueueLimits {
    QueueLimits {
        block_bytes: options.block_bytes_max as usize,
        bytes: options.queue_bytes_max,
        appends: options.queue_appends_max,
        capacity: counted_capacity(options),
        inbox_bytes: cluster.inbox_bytes_max,
    }
}
