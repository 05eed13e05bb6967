//! Changes of a cluster's members, as a server checks them by the groups of named logs.
#![allow(clippy::unwrap_used, reason = "a test")]

mod served;

use chiplog::cluster::{Bootstrap, Change as Changed, ClusterOptions, Role};
use chiplog::transport::MemoryNetwork;
use chiplog::{DirectoryId, Log, Logs, LogsOptions, NodeId, Options};
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::service::log::NativeOptions;
use chiplog_net::wire::proto::v1::admin_client::AdminClient;
use chiplog_net::wire::proto::v1::member_change::Change;
use chiplog_net::wire::proto::v1::{ChangeMembersRequest, MemberChange};
use served::{PATIENCE, Server};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tonic::Code;

fn cluster(node: u64, bootstrap: Bootstrap, network: &MemoryNetwork) -> ClusterOptions {
    let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, network.transport());
    cluster.heartbeat = Duration::from_millis(30);
    cluster.election_timeout = Duration::from_secs(1);
    cluster
}

fn small() -> Options {
    Options::with_segment_bytes(256 << 10).sessions_max(16)
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// The networks of the default log, the system log, and the group.
struct Networks([MemoryNetwork; 3]);

impl Networks {
    fn default_log(&self, node: u64, bootstrap: Bootstrap, dir: &Path) -> Log {
        Log::open(dir.join("default"), small().cluster(cluster(node, bootstrap, &self.0[0]))).unwrap()
    }

    fn named(&self, node: u64, bootstraps: [Bootstrap; 2], dir: &Path) -> Logs {
        let networks = [self.0[1].clone(), self.0[2].clone()];
        let options = LogsOptions::default().groups(1).options(small()).cluster(move |group| {
            let n = group as usize;
            cluster(node, bootstraps[n], &networks[n])
        });
        Logs::open(dir.join("named"), options).unwrap()
    }
}

/// Node 1, the only voter of its cluster and of its groups, with its server.
struct First {
    networks: Networks,
    dir: TempDir,
    default: Log,
    logs: Logs,
    server: Server,
}

impl First {
    fn new() -> Self {
        let (networks, dir) =
            (Networks(std::array::from_fn(|_| MemoryNetwork::new())), tempfile::tempdir().unwrap());
        let first = dir.path().join("1");
        std::fs::create_dir(&first).unwrap();
        let default = networks.default_log(1, Bootstrap::Init, &first);
        let logs = networks.named(1, [Bootstrap::Init, Bootstrap::Init], &first);
        let host = LogSlot::new();
        host.open(default.clone());
        host.open_named(logs.clone());
        let server = Server::serve(host, 0, NativeOptions::default());
        let first = Self { networks, dir, default, logs, server };
        until("it leads", || first.default.role() == Role::Leader && first.group().role() == Role::Leader);
        first
    }

    fn group(&self) -> Log {
        self.logs.groups()[&1].clone()
    }

    /// A directory for another node.
    fn directory(&self, node: u64) -> std::path::PathBuf {
        let directory = self.dir.path().join(node.to_string());
        std::fs::create_dir(&directory).unwrap();
        directory
    }

    /// Asks the server for these changes at once, and returns the refusal.
    async fn refusal(&self, changes: Vec<Change>) -> tonic::Status {
        let mut admin = AdminClient::connect(format!("http://{}", self.server.address)).await.unwrap();
        let changes = changes.into_iter().map(|change| MemberChange { change: Some(change) }).collect();
        let request =
            ChangeMembersRequest { log: String::new(), changes, timeout_millis: 5_000, force: false };
        admin.change_members(request).await.unwrap_err()
    }
}

fn learner(node: u64, directory: DirectoryId) -> Changed {
    Changed::AddLearner { node: NodeId(node), directory, address: String::new() }
}

/// The check was left out if no voter stays, although another server gets its vote in the same change: the groups of the removed server
/// were lost.
#[tokio::test(flavor = "multi_thread")]
async fn groups_are_checked_also_if_one_change_replaces_all_voters() {
    let first = First::new();
    let second = first.networks.default_log(2, Bootstrap::Join(first.default.log_id()), &first.directory(2));
    first.default.change_members(&[learner(2, second.directory_id())], PATIENCE).unwrap();
    until("the learner has everything", || {
        second.status().replica.committed_entry >= first.default.status().replica.committed_entry
    });
    let refused = first.refusal(vec![Change::Promote(2), Change::Remove(1)]).await;
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("has no voter that stays"), "{refused}");
    assert_eq!(first.default.status().replica.voters(), [NodeId(1)]);
    // Without one that comes the log itself refuses it.
    let refused = first.refusal(vec![Change::Remove(1)]).await;
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(!refused.message().contains("group"), "{refused}");
}

/// A replica that was removed from its group knows no more who votes there: a server is removed only if a leader of the group says that
/// others do.
#[tokio::test(flavor = "multi_thread")]
async fn group_whose_replica_here_was_removed_counts_as_unseen() {
    let first = First::new();
    let ids = [first.logs.system().log_id(), first.group().log_id()];
    let second = first.networks.named(2, ids.map(Bootstrap::Join), &first.directory(2));
    let group = second.groups()[&1].clone();
    first.group().change_members(&[learner(2, group.directory_id())], PATIENCE).unwrap();
    first.group().change_members(&[Changed::Promote(NodeId(2))], PATIENCE).unwrap();
    // A learner that never runs: only its removal is asked for.
    first.default.change_members(&[learner(3, DirectoryId(77))], PATIENCE).unwrap();
    until("node 2 leads the group", || {
        let _ = first.group().transfer_leader(NodeId(2), Duration::from_secs(2));
        group.role() == Role::Leader
    });
    until("node 1 was removed from the group", || {
        let removed = group.change_members(&[Changed::Remove(NodeId(1))], Duration::from_secs(2));
        removed.is_ok() || !group.status().replica.voters().contains(&NodeId(1))
    });
    until("it knows that", || first.group().role() == Role::Removed);
    let refused = first.refusal(vec![Change::Remove(3)]).await;
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("the replica of group 1 here was removed from it"), "{refused}");
    let members = first.default.status().replica.members;
    assert!(members.iter().any(|member| member.node == NodeId(3)), "{members:?}");
}
