//! `chiplog info`: where a log begins and ends, and what room it takes.

use crate::cluster::Connect;
use crate::exit::Exit;
use crate::failure::Result;
use crate::human;
use crate::locks::{self, Holder};
use crate::remote::{Remote, failure};
use crate::target::Target;
use crate::ui::Ui;
use chiplog::{Start, Viewer};
use chiplog_net::client::ReaderOptions;
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  chiplog info ./log
  chiplog info log1:7411
  chiplog info ./log --json | jq .last";

/// Show a log's positions, size and state.
///
/// Works beside a running writer; what is shown is durable. Fields of --json: directory, log_id, first, last,
/// records, durable, bytes_used, bytes_capacity (null: not known here, it is the writer's option), segments, sessions,
/// last_timestamp (ms) and last_time of the newest block (null: none), writer ({"pid", "command"}, null: not open for
/// writing). An empty log has last = first - 1.
///
/// Of servers: what a majority confirms that the leader knows; directory, segments, sessions and writer are null, leader
/// is {"node", "address"} (null for a directory). `chiplog status` shows the replicas.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Info {
    /// The log's directory, or servers of a cluster; one is enough.
    #[arg(value_name = "DIR|HOST:PORT", env = "CHIPLOG_SERVERS")]
    target: Target,

    #[command(flatten)]
    connect: Connect,
}

#[derive(Serialize)]
struct Leader {
    node: Option<u64>,
    address: Option<String>,
}

#[derive(Serialize)]
struct Shown {
    directory: Option<PathBuf>,
    log_id: String,
    first: u64,
    last: u64,
    records: u64,
    durable: u64,
    bytes_used: u64,
    bytes_capacity: Option<u64>,
    segments: Option<u64>,
    sessions: Option<u32>,
    last_timestamp: Option<u64>,
    last_time: Option<String>,
    writer: Option<Holder>,
    leader: Option<Leader>,
}

impl Shown {
    fn words(&self) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: String| _ = writeln!(out, "{name:<12} {value}");
        if let Some(directory) = &self.directory {
            line("directory", directory.display().to_string());
        }
        line("log id", self.log_id.clone());
        line(
            "records",
            match self.records {
                0 => format!("none; the next one is {}", self.last + 1),
                n => format!("{}, index {} to {}", human::count(n), self.first, self.last),
            },
        );
        if let Some(time) = &self.last_time {
            line("last write", time.clone());
        }
        let room = self.bytes_capacity.map(|capacity| {
            format!(" of {} ({}%)", human::bytes(capacity), self.bytes_used * 100 / capacity.max(1))
        });
        let segments = self.segments.map(|n| format!(" in {}", human::many(n, "segment", "segments")));
        let (room, segments) = (room.unwrap_or_default(), segments.unwrap_or_default());
        line("used", format!("{}{room}{segments}", human::bytes(self.bytes_used)));
        if let Some(sessions) = self.sessions {
            line("sessions", human::count(sessions.into()));
        }
        match &self.leader {
            None => line("writer", self.writer.as_ref().map_or("none".into(), describe)),
            Some(Leader { node, address }) => {
                let node = node.map_or("nobody known".into(), |n| format!("node {n}"));
                line("leader", address.as_ref().map_or(node.clone(), |a| format!("{node} at {a}")));
            }
        }
        out
    }
}

/// A writer in words.
pub(super) fn describe(holder: &Holder) -> String {
    match (holder.pid, &holder.command) {
        (0, _) => "a process of another container".into(),
        (pid, None) => format!("process {pid}"),
        (pid, Some(command)) => format!("process {pid} ({command})"),
    }
}

fn local(dir: &Path) -> Result<Shown> {
    let info = Viewer::open(dir)?.info();
    let newest = (info.last_timestamp.get() > 0).then_some(info.last_timestamp);
    Ok(Shown {
        directory: Some(dir.to_path_buf()),
        log_id: format!("{:032x}", info.log_id.get()),
        first: info.first.get(),
        last: info.last.get(),
        records: info.last.next().get().saturating_sub(info.first.get()),
        durable: info.durable.get(),
        bytes_used: info.bytes_used,
        bytes_capacity: info.bytes_capacity,
        segments: Some(info.segments),
        sessions: Some(info.sessions),
        last_timestamp: newest.map(chiplog::Timestamp::get),
        last_time: newest.map(human::time),
        writer: locks::holder(dir),
        leader: None,
    })
}

fn remote(servers: &[String], connect: &Connect) -> Result<Shown> {
    let remote = Remote::connect(servers, connect)?;
    let info = remote.wait(remote.client.info()).map_err(failure)?;
    let records = info.last.next().get().saturating_sub(info.first.get());
    let mut newest = None;
    if records > 0 {
        let mut options = ReaderOptions::default();
        (options.follow, options.min_index) = (false, info.last);
        let mut reader = remote.client.reader_with(Start::Index(info.last), options);
        // Gone in the meantime: then there is none.
        newest = remote.wait(reader.next_batch()).ok().flatten().map(|batch| batch.timestamp());
    }
    Ok(Shown {
        directory: None,
        log_id: chiplog_net::ids::to_hex(info.log_id.get()),
        first: info.first.get(),
        last: info.last.get(),
        records,
        durable: info.last.get(),
        bytes_used: info.bytes_used,
        bytes_capacity: info.bytes_capacity,
        segments: None,
        sessions: None,
        last_timestamp: newest.map(chiplog::Timestamp::get),
        last_time: newest.map(human::time),
        writer: None,
        leader: Some(Leader { node: info.leader.map(chiplog::NodeId::get), address: info.leader_address }),
    })
}

pub(crate) fn run(args: &Info, ui: &Ui) -> Result<Exit> {
    let shown = match &args.target {
        Target::Directory(dir) => local(dir)?,
        Target::Servers(servers) => remote(servers, &args.connect)?,
    };
    // What was asked for is shown even when quiet.
    Ui { quiet: false, ..*ui }.result(&shown, Shown::words)?;
    Ok(Exit::Ok)
}
