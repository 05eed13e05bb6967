//! `chiplog info`: the bounds of a log, and its size.

use super::verify::NAMED;
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::locks;
use crate::common::locks::Holder;
use crate::common::output::Ui;
use crate::connect::cluster::Connect;
use crate::connect::open_log;
use crate::connect::remote::Remote;
use crate::connect::target::{Servers, Target};
use chiplog::{LogOption, ReadOnlyLog, Start};
use chiplog_net::client::ReaderOptions;
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

const HELP: &str = "\
Examples:
  chiplog info ./log
  chiplog info log1:7411
  chiplog info ./log --json | jq .last

JSON fields:
  log_id, first, last (an empty log has last = first - 1), records, durable, bytes_used
  directory       null for servers
  bytes_capacity  the most bytes that the log may hold; null: no capacity_bytes is set in the log
                  (`chiplog options`), and the writer of a directory can have one of its own
  full            whether appends are refused because it holds that much; null: no bytes_capacity,
                  or servers (`chiplog status` has it)
  segments        files with records; `chiplog verify` counts prepared ones too; null for servers
  sessions        null for servers
  last_timestamp  ms since 1970, of the newest block; null: none
  last_time       the same as text
  writer          {\"pid\", \"command\"}; null: not open for writing, or servers
  unproven        records after the last one that a killed writer left: sound, and durable once the
                  log is opened for writing; 0 while it is open
  in_object_store {\"first\", \"last\"}: records that are in an object store alone: of a directory those
                  before the first one here, of servers those before the first one in the files of the
                  server that answers, which fetches them for readers; null: none,
                  or the server did not know
  whole_objects   {\"objects\", \"bytes\"}: objects of an object store that are kept whole in the
                  directory (option fill_bytes); null for servers
  bytes_on_disk   size of the directory's files, prepared segments included, without those of named
                  logs; null for servers
  named_logs_bytes
                  size of the named logs' files below the directory, without those in further
                  directories; null: there are none, or servers
  replica         {\"node\" (null: not a member), \"members\" (their number), \"copy\" (whether it is a
                  copy, as of `chiplog follow`)}; null: a log without a cluster, or servers
  leader          {\"node\", \"address\"}; null for a directory
  store_failure   of a served copy (`chiplog follow --listen`), why its requests to the object store
                  fail now; null: they do not, or it is no such copy (`chiplog status`
                  has it of servers)
  store_failing_since
                  since when, as text";

/// Show a log's positions, size and state.
///
/// Works beside a running writer. Everything shown is durable.
///
/// Servers: shows what the leader knows, confirmed by a majority. With --stale no majority is asked: shows
/// what the leader knows, or else the replica with the newest record. `chiplog status` shows the replicas.
#[derive(Args, Debug)]
#[command(after_long_help = HELP)]
pub(crate) struct Info {
    /// The log's directory, or servers of a cluster: one that runs is enough; A,B,C are tried in turn. With
    /// /LOG after the servers: their log of this name (`chiplog logs`).
    #[arg(value_name = "DIR|HOST:PORT[/LOG]", env = "CHIPLOG_SERVERS")]
    target: Target,

    /// For servers: show what the answering replicas know, without a majority.
    #[arg(long)]
    stale: bool,

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
    full: Option<bool>,
    segments: Option<u64>,
    sessions: Option<u32>,
    last_timestamp: Option<u64>,
    last_time: Option<String>,
    writer: Option<Holder>,
    unproven: u64,
    in_object_store: Option<Stored>,
    whole_objects: Option<WholeObjects>,
    bytes_on_disk: Option<u64>,
    named_logs_bytes: Option<u64>,
    replica: Option<Replica>,
    leader: Option<Leader>,
    store_failure: Option<String>,
    store_failing_since: Option<String>,
}

/// Records that are in an object store alone.
#[derive(Clone, Copy, Serialize)]
struct Stored {
    first: u64,
    last: u64,
}

/// Objects that are kept whole in a directory.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct WholeObjects {
    objects: u64,
    bytes: u64,
}

/// The cluster according to a replica's directory.
#[derive(Serialize)]
struct Replica {
    /// None: it was not added yet, or was removed.
    node: Option<u64>,
    members: usize,
    /// It follows the log and is no member, as the copies of `chiplog follow` and of `chiplog backup`.
    copy: bool,
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
                0 => format!("none; the next index is {}", self.last + 1),
                n => format!("{}, index {} to {}", format::count(n), self.first, self.last),
            },
        );
        if let Some(Stored { first, last }) = self.in_object_store {
            line("objects", format!("records {first} to {last} are in an object store: servers read them"));
        }
        if let Some(time) = &self.last_time {
            line("last write", time.clone());
        }
        let room = self.bytes_capacity.map(|capacity| {
            format!(" of {} ({}%)", format::bytes(capacity), self.bytes_used * 100 / capacity.max(1))
        });
        let segments = self.segments.map(|n| format!(" in {}", format::many(n, "segment", "segments")));
        let (room, segments) = (room.unwrap_or_default(), segments.unwrap_or_default());
        line("used", format!("{}{room}{segments}", format::bytes(self.bytes_used)));
        if let (Some(full), Some(capacity)) = (self.full, self.bytes_capacity) {
            let left = capacity.saturating_sub(self.bytes_used + KEPT_BYTES);
            line("room", room_words(full, left));
        }
        if let Some(WholeObjects { objects, bytes }) = self.whole_objects.filter(|kept| kept.objects > 0) {
            let (many, bytes) = (format::many(objects, "object", "objects"), format::bytes(bytes));
            line("kept whole", format!("{many} of an object store, {bytes}"));
        }
        if let Some(bytes) = self.bytes_on_disk {
            line("on disk", format!("{}, prepared segments included", format::bytes(bytes)));
        }
        if let Some(bytes) = self.named_logs_bytes {
            line("named logs", format!("{} on disk beside that", format::bytes(bytes)));
        }
        if let Some(sessions) = self.sessions {
            line("sessions", format::count(sessions.into()));
        }
        match &self.leader {
            None => line("writer", self.writer.as_ref().map_or("none".into(), describe)),
            Some(Leader { node, address }) => {
                let node = node.map_or("none known".into(), |n| format!("node {n}"));
                line("leader", address.as_ref().map_or(node.clone(), |a| format!("{node} at {a}")));
            }
        }
        if let Some(replica) = &self.replica {
            line("replica", replica.words());
        }
        if let (Some(why), Some(since)) = (&self.store_failure, &self.store_failing_since) {
            line("object store", format!("its requests have failed since {since}: {why}"));
        }
        if self.unproven > 0 {
            line("unproven", unproven(self.unproven));
        }
        out
    }
}

impl Replica {
    fn words(&self) -> String {
        if self.copy {
            return "a copy that follows the log, not a member of its cluster".into();
        }
        let cluster = format!("a cluster of {}", format::many(self.members as u64, "member", "members"));
        match self.node {
            Some(node) => format!("node {node} of {cluster}"),
            None if self.members == 0 => "of a cluster to which it was not added yet".into(),
            None => format!("of {cluster}, but not a member"),
        }
    }
}

/// The disk space that the files of a directory use, and the objects among them that are kept whole.
fn on_disk(dir: &Path) -> Result<(u64, WholeObjects)> {
    sizes(dir).map_err(|e| Failure::io("list", dir, &e))
}

fn sizes(dir: &Path) -> io::Result<(u64, WholeObjects)> {
    let (mut bytes, mut whole) = (0, WholeObjects::default());
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // A file can be discarded meanwhile.
        let Ok(file) = entry.metadata() else { continue };
        bytes += file.blocks() * 512;
        if entry.file_name().to_str().is_some_and(is_whole_object) {
            whole = WholeObjects { objects: whole.objects + 1, bytes: whole.bytes + file.len() };
        }
    }
    Ok((bytes, whole))
}

/// The disk space that the groups of named logs and their catalogue use below a server's directory. None: there are none.
fn named_on_disk(dir: &Path) -> Result<Option<u64>> {
    let named = dir.join(NAMED);
    let failed = |e| Failure::io("list", &named, &e);
    let entries = match fs::read_dir(&named) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        entries => entries.map_err(failed)?,
    };
    let mut bytes = 0;
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            bytes += group_on_disk(&entry.path())?;
        }
    }
    Ok(Some(bytes))
}

/// As [`on_disk`] of a group's directory: 0 bytes of one that its server has renamed or removed meanwhile.
fn group_on_disk(dir: &Path) -> Result<u64> {
    match sizes(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        sizes => sizes.map(|(bytes, _)| bytes).map_err(|e| Failure::io("list", dir, &e)),
    }
}

/// Whether this is the name of an object that is kept whole: its number and the id of its log. Names of the cache are shorter.
fn is_whole_object(name: &str) -> bool {
    let parts = name.strip_suffix(".object").and_then(|name| name.split_once('-'));
    parts.is_some_and(|(number, log)| number.len() == 20 && log.len() == 32)
}

/// The bytes of its capacity that the log keeps for itself.
const KEPT_BYTES: u64 = 1024;

/// Says how much room a log with a capacity has.
fn room_words(full: bool, left: u64) -> String {
    if full {
        return "none: the log is full; `chiplog discard` makes room, `chiplog options --set capacity_bytes=SIZE` allows more".into();
    }
    format!("{}: larger appends are refused, as the log would be full", format::bytes(left))
}

/// The capacity that is set in a log. A copy has its own.
fn capacity_in(log: &ReadOnlyLog) -> Option<u64> {
    let set = log.log_options().get(LogOption::CapacityBytes)?;
    (set < u64::MAX && !log.status().follows).then_some(set)
}

/// The error of `--stale` with a directory.
pub(crate) const STALE_DIRECTORY: &str = "--stale works only with servers: a directory is read as it is";

/// Describes the records at the end that a killed writer left.
pub(crate) fn unproven(records: u64) -> String {
    format!(
        "{} in the files but not proven durable yet; opening the log for writing recovers {}",
        format::many(records, "more record is", "more records are"),
        if records == 1 { "it" } else { "them" }
    )
}

/// The number of these records. While a writer has the log open they are in flight, not left behind.
pub(crate) fn unproven_in(read_only: &ReadOnlyLog, dir: &Path) -> u64 {
    if locks::holder(dir).is_none() { read_only.unproven() } else { 0 }
}

/// Describes a writer.
pub(crate) fn describe(holder: &Holder) -> String {
    match (holder.pid, &holder.command) {
        (0, _) => "a process of another container".into(),
        (pid, None) => format!("process {pid}"),
        (pid, Some(command)) => format!("process {pid} ({command})"),
    }
}

fn local(dir: &Path) -> Result<Shown> {
    let read_only = open_log::view(dir)?;
    let status = read_only.status();
    let newest = (status.last_timestamp.get() > 0).then_some(status.last_timestamp);
    let (bytes_on_disk, whole_objects) = on_disk(dir)?;
    let bytes_capacity = capacity_in(&read_only);
    Ok(Shown {
        directory: Some(dir.to_path_buf()),
        log_id: format!("{:032x}", status.log_id.get()),
        first: status.first_index.get(),
        last: status.last_index.get(),
        records: status.last_index.next().get().saturating_sub(status.first_index.get()),
        durable: status.durable_index.get(),
        bytes_used: status.bytes_used,
        bytes_capacity,
        full: bytes_capacity.map(|capacity| status.bytes_used + KEPT_BYTES >= capacity),
        segments: Some(status.segments),
        sessions: Some(status.sessions),
        last_timestamp: newest.map(chiplog::Timestamp::get),
        last_time: newest.map(format::time),
        writer: locks::holder(dir),
        unproven: unproven_in(&read_only, dir),
        in_object_store: read_only
            .in_object_store()
            .map(|(first, last)| Stored { first: first.get(), last: last.get() }),
        whole_objects: Some(whole_objects),
        bytes_on_disk: Some(bytes_on_disk),
        named_logs_bytes: named_on_disk(dir)?,
        replica: read_only.members().map(|members| Replica {
            node: members.iter().find(|m| m.directory == status.directory_id).map(|m| m.node.get()),
            members: members.len(),
            copy: status.follows,
        }),
        leader: None,
        store_failure: None,
        store_failing_since: None,
    })
}

fn remote(servers: &Servers, connect: &Connect, stale: bool, ui: &Ui) -> Result<Shown> {
    let remote = Remote::connect(servers, connect, ui)?;
    let info = remote.info(stale)?;
    let in_object_store = info.first_local.filter(|first_local| *first_local > info.first);
    let in_object_store = in_object_store
        .map(|first_local| Stored { first: info.first.get(), last: first_local.previous().get() });
    let records = info.last.next().get().saturating_sub(info.first.get());
    let mut newest = None;
    if records > 0 {
        let mut options = ReaderOptions::default();
        (options.follow, options.min_index) = (false, info.last);
        let mut reader = remote.client.reader_with(Start::Index(info.last), options);
        // It went away meanwhile: then there is none.
        newest = remote.wait(reader.next_batch()).ok().flatten().map(|batch| batch.timestamp());
    }
    Ok(Shown {
        directory: None,
        log_id: chiplog_net::wire::ids::to_hex(info.log_id.get()),
        first: info.first.get(),
        last: info.last.get(),
        records,
        durable: info.last.get(),
        bytes_used: info.bytes_used,
        bytes_capacity: info.bytes_capacity,
        full: None,
        segments: None,
        sessions: None,
        last_timestamp: newest.map(chiplog::Timestamp::get),
        last_time: newest.map(format::time),
        writer: None,
        unproven: 0,
        in_object_store,
        whole_objects: None,
        bytes_on_disk: None,
        named_logs_bytes: None,
        replica: None,
        store_failing_since: info.store_failing_since.map(format::time),
        store_failure: info.store_failure,
        leader: Some(Leader { node: info.leader.map(chiplog::NodeId::get), address: info.leader_address }),
    })
}

pub(crate) fn run(args: &Info, ui: &Ui) -> Result<Exit> {
    let shown = match &args.target {
        Target::Directory(_) if args.stale => return Err(Failure::usage(STALE_DIRECTORY)),
        Target::Directory(dir) => local(dir)?,
        Target::Servers(servers) => remote(servers, &args.connect, args.stale, ui)?,
    };
    // The result is shown even with --quiet.
    Ui { quiet: false, ..*ui }.result(&shown, Shown::words)?;
    Ok(Exit::Ok)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    /// The command failed on a running server which left a group meanwhile.
    #[test]
    fn directory_of_a_group_that_is_gone_uses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("group-1.moved-1");
        assert_eq!(group_on_disk(&group).unwrap(), 0);
        assert!(on_disk(&group).is_err(), "of the log itself it is an error");
        fs::create_dir(&group).unwrap();
        fs::write(group.join("file"), [1; 5000]).unwrap();
        assert!(group_on_disk(&group).unwrap() > 0);
    }
}
