//! A replica of a log in this process. A short pause of the machine deposes no leader.
#![allow(unreachable_pub, reason = "each test file uses it in its own module")]

use chiplog::cluster::{Bootstrap, ClusterOptions};
use chiplog::transport::Transport;
use chiplog::{Log, NodeId, Options};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub fn replica_over(
    dir: &Path,
    node: u64,
    bootstrap: Bootstrap,
    transport: Arc<dyn Transport>,
    options: Options,
) -> Log {
    let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, transport);
    cluster.election_timeout = Duration::from_secs(1);
    cluster.heartbeat = Duration::from_millis(30);
    cluster.slow_disk_sync = None;
    Log::open(dir, options.cluster(cluster)).unwrap()
}
