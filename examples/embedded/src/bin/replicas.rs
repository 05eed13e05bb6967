//! Three replicas of one log inside a program. docs/embedding.md shows exactly these lines.

use chiplog::transport::MemoryNetwork; // connects replicas of one process; chiplog_net::peer::PeerTransport, feature `server`, is over a network
use chiplog::{Bootstrap, Change, ClusterOptions, Log, NodeId, Options};
use std::time::Duration;

fn main() -> Result<(), chiplog::Error> {
    let (network, patience) = (MemoryNetwork::new(), Duration::from_secs(10));
    let replica = |node, bootstrap| {
        let cluster = ClusterOptions::new(NodeId(node), bootstrap, network.transport());
        Options::default().cluster(cluster)
    };
    let leader = Log::open("replica-1", replica(1, Bootstrap::Init))?; // on one node, once
    let mut followers = Vec::new();
    for node in [2, 3] {
        let log = Log::open(format!("replica-{node}"), replica(node, Bootstrap::Join(leader.log_id())))?;
        let directory = log.directory_id();
        leader.change_members(
            &[Change::AddLearner { node: NodeId(node), directory, address: String::new() }],
            patience,
        )?;
        leader.change_members(&[Change::Promote(NodeId(node))], patience)?;
        followers.push(log);
    }
    println!("record {} is on two disks of three", leader.append(b"3 lenses to Cambridge")?);
    Ok(())
}
