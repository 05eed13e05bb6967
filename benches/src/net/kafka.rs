//! Kafka, for comparison over the network: brokers that sync before they acknowledge, and a client of its own for the
//! load.
//!
//! Both are in the directory that an environment variable names: `kafka.cp`, the class path of Kafka 4, and `bin/load`,
//! a program that takes `kafka w1 -addrs … -nodes … -conns … -secs … -warm … [-parts …]` and prints a line of JSON: 128
//! appenders of 2 KiB, each waiting for its acknowledgement, spread over connections of the Go client franz-go. It appends
//! to a topic that it makes first, each record to one of the partitions at random.

use super::process::{Own, Running, free_addresses};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The variable that names the directory.
pub(crate) const PEERS: &str = "CHIPLOG_PEERS";
/// The warm-up: Java compiles its machine code while it runs.
const WARM_UP: Duration = Duration::from_secs(8);
/// The warm-up of a topic with many partitions, once their files are made.
const PARTITIONS_WARM_UP: Duration = Duration::from_secs(35);
/// A broker makes the files of a partition at the first append to it, of about this number of partitions a second.
const MADE_A_SECOND: f64 = 100.0;
const HEAP: &str = "-Xmx1g";
const CLUSTER: &str = "Y2hpcGxvZy1iZW5jaC0wMQ";

/// Running brokers. Dropping them ends them and removes what they wrote.
#[derive(Debug)]
pub(crate) struct Kafka {
    load: PathBuf,
    dir: PathBuf,
    addresses: String,
    brokers: Vec<Running>,
}

#[derive(Deserialize)]
struct Line {
    ops_s: f64,
}

impl Kafka {
    /// Starts this number of brokers, which are controllers as well, if the environment names a Kafka. Each appends to
    /// stable storage before it acknowledges; with three, all in-sync ones do, at least two.
    ///
    /// # Errors
    /// The brokers do not start.
    pub(crate) fn at_hand(own: &Own, dir: &Path, nodes: usize) -> Result<Option<Self>> {
        let Some(peers) = std::env::var_os(PEERS).filter(|dir| !dir.is_empty()).map(PathBuf::from) else {
            return Ok(None);
        };
        let classes = fs::read_to_string(peers.join("kafka.cp"))
            .with_context(|| format!("{PEERS}={} has no kafka.cp", peers.display()))?;
        let dir = dir.join("kafka");
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let free = free_addresses(2 * nodes)?;
        let (clients, controllers) = free.split_at(nodes);
        let voters: Vec<String> = controllers.iter().enumerate().map(|(n, at)| format!("{n}@{at}")).collect();
        let mut all =
            Self { load: peers.join("bin/load"), dir, addresses: clients.join(","), brokers: Vec::new() };
        for (node, (client, controller)) in clients.iter().zip(controllers).enumerate() {
            let file = all.dir.join(format!("{node}.properties"));
            let data = all.dir.join(format!("node-{node}"));
            let settings = [
                "process.roles=broker,controller".to_owned(),
                format!("node.id={node}"),
                format!("controller.quorum.voters={}", voters.join(",")),
                "controller.listener.names=CONTROLLER".into(),
                format!("listeners=PLAINTEXT://{client},CONTROLLER://{controller}"),
                format!("log.dirs={}", data.display()),
                "log.flush.interval.messages=1".into(),
                format!("offsets.topic.replication.factor={nodes}"),
                format!("transaction.state.log.replication.factor={nodes}"),
                "transaction.state.log.min.isr=1".into(),
                format!("share.coordinator.state.topic.replication.factor={nodes}"),
                "share.coordinator.state.topic.min.isr=1".into(),
            ];
            fs::write(&file, settings.join("\n"))?;
            let file = file.to_string_lossy().into_owned();
            let java = ["-cp", classes.trim(), HEAP, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"];
            let format = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", &file];
            let formatted = Command::new("java").args(java).args(format).output().context("running java")?;
            let said = String::from_utf8_lossy(&formatted.stderr);
            ensure!(formatted.status.success(), "Kafka's directory could not be made: {said}");
            let arguments = java.into_iter().chain(["kafka.Kafka", &file]);
            let said = all.dir.join(format!("said-{node}"));
            all.brokers.push(Running::start(own, Path::new("java"), arguments, said)?);
        }
        for (broker, client) in all.brokers.iter_mut().zip(clients) {
            broker.listens(client)?;
        }
        std::thread::sleep(Duration::from_secs(3)); // requests before the brokers know each other take long
        all.appends(1, 8, Duration::from_secs(1), WARM_UP)?;
        Ok(Some(all))
    }

    /// The warm-up in which the files of all partitions are made, and each gets some appends. The brokers share a disk.
    pub(crate) fn warm_up(&self, partitions: usize) -> Duration {
        let files = partitions * self.brokers.len();
        PARTITIONS_WARM_UP + Duration::from_secs_f64(files as f64 / MADE_A_SECOND)
    }

    /// Appends a second of 128 appenders to a new topic with this number of partitions, over this number of connections.
    ///
    /// # Errors
    /// The load fails.
    pub(crate) fn appends(
        &self,
        partitions: usize,
        connections: usize,
        measured: Duration,
        warm_up: Duration,
    ) -> Result<f64> {
        let mut command = Command::new(&self.load);
        command.args(["kafka", "w1", "-addrs", &self.addresses, "-nodes", &self.brokers.len().to_string()]);
        if partitions > 1 {
            command.args(["-parts", &partitions.to_string()]);
        }
        command.args(["-conns", &connections.to_string(), "-secs", &measured.as_secs_f64().to_string()]);
        command.args(["-warm", &warm_up.as_secs_f64().to_string()]).stderr(Stdio::inherit());
        let output = command.output().with_context(|| format!("running {}", self.load.display()))?;
        ensure!(output.status.success(), "Kafka's load failed: {}", output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().find_map(|line| serde_json::from_str::<Line>(line).ok());
        Ok(line.context("Kafka's load printed no figure")?.ops_s)
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.brokers.clear();
        // The whole work directory is removed later.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
