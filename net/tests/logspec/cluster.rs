//! Three served replicas: redirects, held requests, reads from any of them.

use crate::support::{Appender, PATIENCE, Served, info, serve, serve_at_port_of};
use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::transport::MemoryNetwork;
use chiplog::{Log, NodeId, Options};
use chiplog_net::service::logspec::Limits;
use chiplog_net::wire::proto::logspec::append_reply::Reply;
use chiplog_net::wire::proto::logspec::{
    DiscardRequest, InfoRequest, ReadRequest, discard_reply, read_reply,
};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tonic::Code;

struct Trio {
    network: MemoryNetwork,
    served: Vec<Served>,
    _dirs: Vec<TempDir>,
}

fn options(node: u64, bootstrap: Bootstrap, network: &MemoryNetwork, client: &str) -> Options {
    let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, network.transport());
    cluster.heartbeat = Duration::from_millis(50);
    cluster.election_timeout = Duration::from_secs(2); // no busy machine is silent for that long
    cluster.address = format!("127.0.0.1:{node} {client}");
    let capacity_bytes = Some(24 << 20);
    Options::with_segment_bytes(4 << 20).cluster(cluster).capacity_bytes(capacity_bytes)
}

impl Trio {
    /// Three replicas on hosts of their own.
    async fn new() -> Self {
        Self::on(["127.0.0.1", "127.0.0.2", "127.0.0.3"]).await
    }

    async fn on(hosts: [&str; 3]) -> Self {
        let network = MemoryNetwork::new();
        let (mut served, mut dirs): (Vec<Served>, Vec<TempDir>) = (Vec::new(), Vec::new());
        for (node, host) in (1..).zip(hosts) {
            let listener = TcpListener::bind((host, 0)).await.unwrap();
            let client = listener.local_addr().unwrap().to_string();
            let bootstrap = match served.first() {
                None => Bootstrap::Init,
                Some(first) => Bootstrap::Join(first.log.log_id()),
            };
            let dir = tempfile::tempdir().unwrap();
            let options = options(node, bootstrap, &network, &client);
            let address = options.cluster.as_ref().unwrap().address.clone();
            let log = Log::open(dir.path(), options).unwrap();
            if let Some(Served { log: leader, .. }) = served.first() {
                let directory = log.directory_id();
                let add = Change::AddLearner { node: NodeId(node), directory, address };
                let leader = leader.clone();
                tokio::task::spawn_blocking(move || {
                    leader.change_members(&[add], PATIENCE)?;
                    leader.change_members(&[Change::Promote(NodeId(node))], PATIENCE)
                })
                .await
                .unwrap()
                .unwrap();
            }
            served.push(serve(listener, log, Limits::default()));
            dirs.push(dir);
        }
        let trio = Self { network, served, _dirs: dirs };
        trio.await_all(|log| log.leader().is_some()).await;
        trio
    }

    async fn await_all(&self, holds: impl Fn(&Log) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !self.served.iter().all(|s| holds(&s.log)) {
            assert!(
                Instant::now() < until,
                "{:?}",
                self.served.iter().map(|s| s.log.status()).collect::<Vec<_>>()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn leader(&self) -> &Served {
        self.served.iter().find(|s| s.log.role() == Role::Leader).unwrap()
    }

    fn follower(&self) -> &Served {
        self.served.iter().find(|s| s.log.role() == Role::Follower).unwrap()
    }
}

#[tokio::test]
async fn followers_redirect_to_the_leader_and_send_nothing_more() {
    let trio = Trio::new().await;
    let leader = trio.leader().address.clone();
    let follower = trio.follower();
    for probe in [true, false] {
        let mut appender = follower.appender().await;
        appender.send((0..if probe { 0 } else { 3 }).map(|_| "x")).await;
        appender.send(["y"]).await;
        let Some(Reply::Redirect(redirect)) = appender.reply().await.unwrap() else { panic!() };
        assert_eq!(redirect.host, leader);
        assert_eq!(appender.reply().await.unwrap(), None);
    }
    let reply = follower.client().await.discard(DiscardRequest { first_index: 1 }).await.unwrap();
    let Some(discard_reply::Reply::Redirect(redirect)) = reply.into_inner().reply else { panic!() };
    assert_eq!(redirect.host, leader);
    assert_eq!(trio.leader().appender().await.append(["first"]).await, [1]);
}

/// All servers have the same port for a log. Servers on one host cannot, and a redirect would lead back.
#[tokio::test]
async fn redirect_from_the_port_of_a_log_names_that_port_at_the_leader() {
    for (hosts, is_redirected) in [(["127.0.0.1", "127.0.0.2", "127.0.0.3"], true), (["127.0.0.1"; 3], false)]
    {
        let trio = Trio::on(hosts).await;
        let served = serve_at_port_of("default", trio.follower().log.clone(), None).await;
        let mut appender = served.appender().await;
        appender.send(["x"]).await;
        let (leader, _) = trio.leader().address.rsplit_once(':').unwrap();
        let (_, port) = served.address.rsplit_once(':').unwrap();
        match appender.reply().await {
            Ok(Some(Reply::Redirect(to))) if is_redirected => assert_eq!(to.host, format!("{leader}:{port}")),
            Err(status) if !is_redirected => assert_eq!(status.code(), Code::Unavailable),
            other => panic!("{hosts:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn any_replica_serves_acknowledged_records() {
    let trio = Trio::new().await;
    let mut appender = trio.leader().appender().await;
    let mut clients = Vec::new();
    for served in &trio.served {
        clients.push(served.client().await);
    }
    for n in 1..=20 {
        appender.append([format!("{n}")]).await;
        for client in &mut clients {
            assert!(info(client, false).await.last_index >= n);
        }
    }
    for client in &mut clients {
        let mut tail = client.read(ReadRequest { next_index: 1 }).await.unwrap().into_inner();
        let mut next = 1;
        while next <= 20 {
            let Some(read_reply::Reply::Ok(ok)) = tail.message().await.unwrap().unwrap().reply else {
                panic!()
            };
            for entry in ok.entries {
                assert_eq!((entry.index, entry.data), (next, format!("{next}").into()));
                next += 1;
            }
        }
    }
}

#[tokio::test]
async fn requests_without_a_leader_are_held_briefly() {
    let trio = Trio::new().await;
    let lonely = trio.follower();
    trio.network.disconnect(lonely.log.status().replica.node);
    let until = Instant::now() + PATIENCE;
    while lonely.log.leader().is_some() {
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut client = lonely.client().await;
    for probe in [false, true] {
        let began = Instant::now();
        let mut appender = Appender::new(&mut client).await;
        appender.send((0..if probe { 0 } else { 1 }).map(|_| "x")).await;
        let status = appender.reply().await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!((Duration::from_millis(500)..Duration::from_secs(5)).contains(&began.elapsed()));
    }
    let status = client.discard(DiscardRequest { first_index: 1 }).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let status = client.info(InfoRequest { allow_stale: false }).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(info(&mut client, true).await.last_index, 0, "a stale info needs no leader");
    // A leader that is elected while a request is held serves it, or the answer names the leader.
    let mut appender = Appender::new(&mut client).await;
    appender.send(["held"]).await;
    trio.network.heal();
    trio.network.connect(lonely.log.status().replica.node);
    let reply = appender.reply().await;
    match reply {
        Ok(Some(Reply::Redirect(redirect))) => {
            assert!(trio.served.iter().any(|s| s.address == redirect.host && s.address != lonely.address));
        }
        Ok(Some(Reply::Ok(ok))) => assert_eq!(ok.indexes, [1]),
        Err(status) => assert_eq!(status.code(), Code::Unavailable), // the election took longer
        other => panic!("{other:?}"),
    }
}

/// Only the leader knows whether there is room: a follower redirects even if it is full.
#[tokio::test]
async fn full_follower_redirects() {
    let trio = Trio::new().await;
    let leader = trio.leader();
    let mut appender = leader.appender().await;
    loop {
        appender.send([vec![0; 1 << 20]]).await;
        match appender.reply().await.unwrap() {
            Some(Reply::Ok(_)) => {}
            other => break assert_eq!(other, Some(Reply::Full(true))),
        }
    }
    trio.await_all(|log| log.last_index() == leader.log.last_index()).await;
    for proposals in [0, 1] {
        let mut appender = trio.follower().appender().await;
        appender.send(std::iter::repeat_n(vec![0; 1 << 20], proposals)).await;
        let Some(Reply::Redirect(redirect)) = appender.reply().await.unwrap() else { panic!() };
        assert_eq!(redirect.host, leader.address);
    }
}

/// Acknowledged records stay, other appends end in a redirect or an error; and the clients find the next leader.
#[tokio::test]
async fn leader_is_lost_during_an_append() {
    let trio = Trio::new().await;
    let old = trio.leader();
    let mut appender = old.appender().await;
    let mut acknowledged = appender.append(["a", "b", "c"]).await;
    trio.network.disconnect(old.log.status().replica.node);
    appender.send(["never acknowledged"]).await;
    match appender.reply().await {
        Ok(Some(Reply::Redirect(redirect))) => assert_ne!(redirect.host, old.address),
        Err(status) => assert_eq!(status.code(), Code::Unavailable),
        other => panic!("{other:?}"),
    }
    let until = Instant::now() + PATIENCE;
    let next = loop {
        assert!(Instant::now() < until);
        let leads = |s: &&Served| s.address != old.address && s.log.role() == Role::Leader;
        match trio.served.iter().find(leads) {
            Some(next) => break next,
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    acknowledged.extend(next.appender().await.append(["d"]).await);
    trio.network.connect(old.log.status().replica.node);
    trio.await_all(|log| log.last_index().get() >= *acknowledged.last().unwrap()).await;
    for served in &trio.served {
        let found: Vec<_> = acknowledged.iter().map(|n| served.log.read((*n).into()).unwrap().data).collect();
        assert_eq!(found, ["a", "b", "c", "d"]);
    }
}

/// A leader was cut off during an append, and rejoined under a new leader. It did not know the append's outcome, and
/// answered "redirect", which means that the append is not in the log.
#[tokio::test]
async fn unknown_outcome_is_not_a_redirect() {
    let trio = Trio::new().await;
    let old = trio.leader();
    let node = old.log.status().replica.node;
    let mut appender = old.appender().await;
    assert_eq!(appender.append(["before"]).await, [1]);
    trio.network.disconnect(node);
    appender.send(["cut off"]).await;
    let elected = |s: &&Served| s.address != old.address && s.log.role() == Role::Leader;
    let until = Instant::now() + PATIENCE;
    while !trio.served.iter().any(|s| elected(&s)) {
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    trio.network.connect(node);
    let status = appender.reply().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().contains("outcome unknown"), "{status:?}");
    trio.await_all(|log| log.leader().is_some_and(|leader| leader != node)).await;
    // The next append was never submitted: that is a redirect.
    let mut appender = old.appender().await;
    appender.send(["refused"]).await;
    let Some(Reply::Redirect(redirect)) = appender.reply().await.unwrap() else { panic!() };
    assert_ne!(redirect.host, old.address);
}

/// A leader that gets no messages from its only follower: it accepts little, and commits nothing. An append waits this
/// long for room.
async fn stalled(network: &MemoryNetwork, queue_timeout: Duration) -> ([TempDir; 2], Vec<Log>) {
    let (dirs, mut logs) = ([tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()], Vec::<Log>::new());
    for node in 1..=2u64 {
        let bootstrap = logs.first().map_or(Bootstrap::Init, |log| Bootstrap::Join(log.log_id()));
        let mut options = options(node, bootstrap, network, &format!("127.0.0.1:{node}"));
        options.queue_bytes_max = options.batch_bytes_max as usize;
        options.queue_timeout = queue_timeout;
        options.capacity_bytes = None;
        if let Some(cluster) = &mut options.cluster {
            cluster.election_timeout = Duration::from_secs(60); // a lead outlives the stall
            cluster.uncommitted_bytes_max = 1 << 20;
        }
        let log = Log::open(dirs[node as usize - 1].path(), options).unwrap();
        if let Some(leader) = logs.first().cloned() {
            let (node, directory) = (NodeId(node), log.directory_id());
            let address = "127.0.0.1:2 127.0.0.1:2".to_owned();
            let adding = tokio::task::spawn_blocking(move || {
                leader.change_members(&[Change::AddLearner { node, directory, address }], PATIENCE)?;
                leader.change_members(&[Change::Promote(node)], PATIENCE)
            });
            adding.await.unwrap().unwrap();
        }
        logs.push(log);
    }
    network.disconnect(NodeId(2));
    (dirs, logs)
}

/// An append that found no room in time is not in the log: it was reported as "outcome unknown".
#[tokio::test]
async fn append_without_room_is_reported_as_not_in_the_log() {
    let network = MemoryNetwork::new();
    let (_dirs, logs) = stalled(&network, Duration::from_millis(300)).await;
    let server = serve(TcpListener::bind("127.0.0.1:0").await.unwrap(), logs[0].clone(), Limits::default());
    // One stream fills the whole queue: much of it is in flight.
    let fill = tokio_stream::iter(
        (1..=100u64).map(|n| chiplog_net::service::logspec::AppendRequest::new(n, [vec![1; 256 << 10]])),
    );
    let _filling = server.client().await.append(fill).await.unwrap();
    let refused = tokio::time::timeout(PATIENCE, async {
        loop {
            let one = tokio_stream::iter([chiplog_net::service::logspec::AppendRequest::new(
                1,
                [vec![2; 256 << 10]],
            )]);
            let mut replies = server.client().await.append(one).await.unwrap().into_inner();
            // Before it is full, it accepts more, and does not answer.
            if let Ok(reply) = tokio::time::timeout(Duration::from_secs(3), replies.message()).await {
                break reply.unwrap_err();
            }
        }
    })
    .await
    .expect("the queue is full");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert_eq!(chiplog_net::wire::status::from_status(&refused).kind(), chiplog::ErrorKind::Busy);
    assert!(refused.message().contains("nothing of the request is in the log"), "{refused}");
}

/// A log that accepts nothing slows its clients down; their requests are answered once it continues.
#[tokio::test]
async fn stalled_log_slows_its_clients() {
    let network = MemoryNetwork::new();
    let (_dirs, logs) = stalled(&network, PATIENCE).await;
    let limits = Limits::default().stream_bytes_max(2 << 20);
    let server = serve(TcpListener::bind("127.0.0.1:0").await.unwrap(), logs[0].clone(), limits);
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counting = sent.clone();
    let requests = tokio_stream::iter((1..=400u64).map(move |n| {
        counting.store(n, std::sync::atomic::Ordering::Relaxed);
        chiplog_net::service::logspec::AppendRequest::new(n, [vec![n as u8; 256 << 10]])
    }));
    let mut replies = server.client().await.append(requests).await.unwrap().into_inner();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let stalled_at = sent.load(std::sync::atomic::Ordering::Relaxed);
    assert!(stalled_at < 100, "{stalled_at} requests of 256 KiB were accepted by a stalled log");
    let stale = info(&mut server.client().await, true).await;
    assert_eq!(stale.last_index, 0, "others are served meanwhile");
    network.connect(NodeId(2));
    for n in 1..=400 {
        let reply =
            tokio::time::timeout(PATIENCE, replies.message()).await.expect("no reply").unwrap().unwrap();
        let Some(Reply::Ok(ok)) = reply.reply else { panic!("{reply:?}") };
        assert_eq!((ok.sequence, ok.indexes), (n, vec![n]));
    }
}

/// During a leadership transfer the leader rejects appends, while its status still shows it as the leader. Clients were
/// redirected to the server that had just rejected them, and retried at once until the transfer ended.
#[tokio::test]
async fn leader_that_hands_over_does_not_redirect_to_itself() {
    let trio = Trio::new().await;
    let (leader, target) = (trio.leader(), trio.follower());
    let (log, to) = (leader.log.clone(), target.log.status().replica.node);
    trio.network.disconnect(to);
    let mut appender = leader.appender().await;
    appender.append(["before"]).await;
    let transfer = log.submit_transfer_leader(to, PATIENCE).unwrap();
    // The info call goes through the same queue as the append, before it.
    appender.send(["meanwhile"]).await;
    match appender.reply().await {
        Ok(Some(Reply::Redirect(redirect))) => assert_ne!(redirect.host, leader.address),
        Err(status) => assert_eq!(status.code(), Code::Unavailable),
        other => panic!("{other:?}"),
    }
    drop(transfer);
}
