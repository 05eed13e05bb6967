//! Files of a running server that another program shortens.

use crate::harness::{PATIENCE, Server, fed, founded, leader, made, run, runtime, status, wait};
use chiplog_net::wire::proto::logspec::log_client::LogClient;
use chiplog_net::wire::proto::logspec::{ReadRequest, read_reply};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;
use tonic::Status;

const RECORDS: u64 = 3000;

/// Reads all records of one server.
fn read_all(server: &Server) -> Result<(), Status> {
    runtime().block_on(async {
        let mut client = LogClient::connect(format!("http://{}", server.client)).await.unwrap();
        let mut replies = client.read(ReadRequest { next_index: 1 }).await?.into_inner();
        let mut next = 1;
        while next <= RECORDS {
            let reply = tokio::time::timeout(PATIENCE, replies.message()).await.unwrap()?.unwrap();
            let Some(read_reply::Reply::Ok(ok)) = reply.reply else { panic!("{reply:?}") };
            for entry in ok.entries {
                assert_eq!((entry.index, entry.data.as_ref()), (next, line(next).as_bytes()));
                next += 1;
            }
        }
        Ok(())
    })
}

fn line(n: u64) -> String {
    let width = 1000 + n as usize % 50;
    format!("{n:0width$}")
}

/// A server that read through mappings was killed by SIGBUS. In read mode its readers get an error, the
/// server keeps running, and the missing blocks come from the others.
#[test]
fn server_in_read_mode_survives_a_shortened_segment() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<Server> = (1..=3).map(|node| Server::new(node, dir.path())).collect();
    let mut settings = vec!["--set", "log.read_mode=read", "--set", "cluster.scrub_bytes_per_second=0"];
    settings.extend(["--set", "cluster.election_timeout_millis=5000"]);
    servers.iter_mut().for_each(|server| server.start(&settings));
    run(&["member", "init", &servers[0].client]).ok();
    for server in &servers[1..] {
        made(&["member", "add", &server.client, "--cluster", &servers[0].client, "--promote"]);
    }
    let lines: String = (1..=RECORDS).map(|n| line(n) + "\n").collect();
    fed(&["append", &servers[0].client], &lines).ok();
    let all: Vec<&Server> = servers.iter().collect();
    let led = leader(&all);
    for server in &servers {
        wait("it has all records", || read_all(server).ok());
        // A segment of a follower, and one of the leader.
        let segment = server.data.join(format!("{:020}.seg", 1));
        fs::File::options().write(true).open(&segment).unwrap().set_len(10_000).unwrap();
        let error = read_all(server).unwrap_err();
        assert_eq!(error.code(), tonic::Code::DataLoss, "{error}");
        wait("it is repaired", || {
            std::thread::sleep(Duration::from_millis(100));
            read_all(server).ok()
        });
        assert_eq!(fs::metadata(&segment).unwrap().len(), 1 << 20);
    }
    let shown = status(&all);
    assert_eq!(shown["leader"].as_u64(), Some(led), "{shown}");
    for replica in shown["replicas"].as_array().unwrap() {
        assert_eq!((&replica["damaged"], &replica["repaired"]), (&1.into(), &1.into()), "{shown}");
    }
}

/// A server with a directory that others can list works, and logs a warning.
#[test]
fn data_directory_open_to_others_causes_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let servers = founded(vec![Server::new(1, dir.path())]);
    let mode = |server: &Server| fs::metadata(&server.data).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&servers[0]), 0o700);
    assert!(!servers[0].said().contains("others can look into"), "{}", servers[0].said());
    let mut open = Server::new(1, &dir.path().join("open"));
    fs::create_dir_all(&open.data).unwrap();
    fs::set_permissions(&open.data, fs::Permissions::from_mode(0o755)).unwrap();
    open.start(&["--init"]);
    assert!(open.said().contains("others can look into the log's directory"), "{}", open.said());
}
