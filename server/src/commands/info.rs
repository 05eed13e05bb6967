//! `chiplog info`: where a log begins and ends, and what room it takes.

use crate::engine;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::human;
use crate::locks::{self, Holder};
use crate::target::Target;
use crate::ui::Ui;
use chiplog::Viewer;
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  chiplog info ./log
  chiplog info ./log --json | jq .last";

/// Show a log's positions, size and state.
///
/// Works beside a running writer; what is shown is durable. Fields of --json: directory, log_id, first, last,
/// records, durable, bytes_used, bytes_capacity (null: not known here, it is the writer's option), segments, sessions,
/// last_timestamp (ms) and last_time of the newest block (null: none), writer ({"pid", "command"}, null: not open for
/// writing), unproven (records that a killed writer left behind the last one shown: sound, and durable once the log is
/// opened for writing; 0 while it is), bytes_on_disk (what the directory's files take, prepared segments included),
/// replica ({"node" (null: not a member), "members" (how many)}, null: a log on its own). An empty log has last =
/// first - 1.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Info {
    /// The log's directory.
    #[arg(value_name = "DIR")]
    target: Target,
}

#[derive(Serialize)]
struct Shown {
    directory: PathBuf,
    log_id: String,
    first: u64,
    last: u64,
    records: u64,
    durable: u64,
    bytes_used: u64,
    bytes_capacity: Option<u64>,
    segments: u64,
    sessions: u32,
    last_timestamp: Option<u64>,
    last_time: Option<String>,
    writer: Option<Holder>,
    unproven: u64,
    bytes_on_disk: u64,
    replica: Option<Replica>,
}

/// What a replica's directory says of its cluster.
#[derive(Serialize)]
struct Replica {
    /// None: it was not added yet, or was removed.
    node: Option<u64>,
    members: usize,
}

impl Shown {
    fn words(&self) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: String| _ = writeln!(out, "{name:<12} {value}");
        line("directory", self.directory.display().to_string());
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
        let segments = human::many(self.segments, "segment", "segments");
        line("used", format!("{}{} in {segments}", human::bytes(self.bytes_used), room.unwrap_or_default()));
        line("on disk", format!("{}, prepared segments included", human::bytes(self.bytes_on_disk)));
        line("sessions", human::count(self.sessions.into()));
        line("writer", self.writer.as_ref().map_or("none".into(), describe));
        if let Some(replica) = &self.replica {
            line("replica", replica.words());
        }
        if self.unproven > 0 {
            line("unproven", unproven(self.unproven));
        }
        out
    }
}

impl Replica {
    fn words(&self) -> String {
        let cluster = format!("a cluster of {}", human::many(self.members as u64, "member", "members"));
        match self.node {
            Some(node) => format!("node {node} of {cluster}"),
            None if self.members == 0 => "of a cluster that it was not added to yet".into(),
            None => format!("of {cluster}, and none of them"),
        }
    }
}

/// What the files of a directory take on the disk.
fn bytes_on_disk(dir: &Path) -> Result<u64> {
    let failed = |e| Failure::io("list", dir, &e);
    let mut bytes = 0;
    for entry in fs::read_dir(dir).map_err(failed)? {
        // A file can be discarded meanwhile.
        if let Ok(file) = entry.map_err(failed)?.metadata() {
            bytes += file.blocks() * 512;
        }
    }
    Ok(bytes)
}

/// Records at the end that a killed writer left, in words.
pub(super) fn unproven(records: u64) -> String {
    format!(
        "{} in the files and not proven yet; opening the log for writing recovers {}",
        human::many(records, "more record is", "more records are"),
        if records == 1 { "it" } else { "them" }
    )
}

/// How many they are. While somebody writes they are under way.
pub(super) fn unproven_in(viewer: &Viewer, dir: &Path) -> u64 {
    if locks::holder(dir).is_none() { viewer.unproven() } else { 0 }
}

/// A writer in words.
pub(super) fn describe(holder: &Holder) -> String {
    match (holder.pid, &holder.command) {
        (0, _) => "a process of another container".into(),
        (pid, None) => format!("process {pid}"),
        (pid, Some(command)) => format!("process {pid} ({command})"),
    }
}

pub(crate) fn run(args: &Info, ui: &Ui) -> Result<Exit> {
    let dir = args.target.directory()?;
    let viewer = engine::view(dir)?;
    let info = viewer.info();
    let records = (info.last.get() + 1).saturating_sub(info.first.get());
    let newest = (info.last_timestamp.get() > 0).then_some(info.last_timestamp);
    let shown = Shown {
        directory: dir.to_path_buf(),
        log_id: format!("{:032x}", info.log_id.get()),
        first: info.first.get(),
        last: info.last.get(),
        records,
        durable: info.durable.get(),
        bytes_used: info.bytes_used,
        bytes_capacity: info.bytes_capacity,
        segments: info.segments,
        sessions: info.sessions,
        last_timestamp: newest.map(chiplog::Timestamp::get),
        last_time: newest.map(human::time),
        writer: locks::holder(dir),
        unproven: unproven_in(&viewer, dir),
        bytes_on_disk: bytes_on_disk(dir)?,
        replica: viewer.members().map(|members| Replica {
            node: members.iter().find(|m| m.directory == info.directory).map(|m| m.node.get()),
            members: members.len(),
        }),
    };
    // What was asked for is shown even when quiet.
    Ui { quiet: false, ..*ui }.result(&shown, Shown::words)?;
    Ok(Exit::Ok)
}
