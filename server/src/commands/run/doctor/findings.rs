//! The meaning of the facts for a log, in plain words. Pure functions: facts in, findings out.

use super::Examination;
use crate::common::format;
use serde::Serialize;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// Information.
    Note,
    /// The log works, but not as well or as safely as it could.
    Warning,
    /// The place is not fit for a log.
    Problem,
}

impl Level {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "PROBLEM",
        }
    }
}

/// A fact that concerns a log.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) message: String,
}

fn note(message: impl Into<String>) -> Finding {
    Finding { level: Level::Note, message: message.into() }
}

fn warning(message: impl Into<String>) -> Finding {
    Finding { level: Level::Warning, message: message.into() }
}

fn problem(message: impl Into<String>) -> Finding {
    Finding { level: Level::Problem, message: message.into() }
}

/// A log with default options has one segment of 64 MiB at first, and two more that are made ahead once it grows.
const SPACE_MIN_BYTES: u64 = 3 * (64 << 20);
/// One segment of the largest size.
const FILE_MIN_BYTES: u64 = 1 << 30;
const OPEN_FILES_MIN: u64 = 256;

/// All findings, the worst first.
pub(super) fn findings(e: &Examination) -> Vec<Finding> {
    let mut all: Vec<Finding> = file_system(e).into_iter().collect();
    all.extend(options(e));
    all.extend(room(e));
    all.extend(sync(e));
    if e.writer.is_some() {
        all.push(note("a program has the log open for writing and used the disk during the measurement"));
    }
    all.sort_by_key(|f| match f.level {
        Level::Problem => 0,
        Level::Warning => 1,
        Level::Note => 2,
    });
    all
}

/// Whether this type of file system provides what a log needs: synced bytes, locks, mappings.
fn file_system(e: &Examination) -> Option<Finding> {
    let kind = e.file_system.kind.as_str();
    match kind {
        "ext4" | "xfs" | "ext3" => None,
        "tmpfs" | "ramfs" => Some(problem(format!(
            "{kind} is in memory: a log here is lost at the next restart. Use it for tests only"
        ))),
        "btrfs" | "zfs" | "bcachefs" => Some(warning(format!(
            "{kind} copies on write, so syncs cost more than on ext4 or xfs{}",
            if kind == "btrfs" { "; `chattr +C` on the empty directory helps" } else { "" }
        ))),
        "f2fs" | "ext2" => Some(note(format!("{kind} works, but is tested less than ext4 and xfs"))),
        "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "9p" | "virtiofs" | "afs" | "glusterfs" => {
            Some(warning(format!(
                "{kind} is a network or shared file system: its locks, mappings and syncs depend on the server. \
             Prefer a local disk, and never use one log from two machines"
            )))
        }
        "overlay" => Some(warning(
            "overlay is a container's temporary layer: mount a volume, so that the log outlives the container",
        )),
        "fuse" | "fuseblk" => {
            Some(warning(format!("{kind}: whether a sync reaches the disk depends on the program behind it")))
        }
        "vfat" | "exfat" | "msdos" => {
            Some(problem(format!("{kind} can lose synced data in a power cut: use ext4 or xfs")))
        }
        kind if kind.starts_with("fuse.") => {
            Some(warning(format!("{kind}: whether a sync reaches the disk depends on the program behind it")))
        }
        _ => Some(note(format!("{kind} is unknown to this command; chiplog is tested on ext4 and xfs"))),
    }
}

fn options(e: &Examination) -> Vec<Finding> {
    let fs = &e.file_system;
    let mut all = Vec::new();
    if fs.read_only {
        all.push(problem("the file system is mounted read-only: a log here can be read, not appended to"));
    }
    if fs.has("nobarrier") || fs.has("barrier=0") {
        all.push(problem(
            "mounted without barriers: a sync does not flush the device's cache, so a power cut loses confirmed records; remount with barriers",
        ));
    }
    if fs.has("sync") || fs.has("dirsync") {
        all.push(warning(
            "mounted with sync: every write waits for the disk twice, because a log syncs by itself",
        ));
    }
    let spins = e.device.as_ref().is_some_and(|d| d.rotational == Some(true));
    // Virtual disks often report a platter that they do not have; a fast sync shows that.
    if spins && e.sync.as_ref().is_none_or(|s| s.p50_micros > 2_000.0) {
        all.push(warning("the device is a spinning disk, or a virtual one that reports so: each sync takes a turn of the platter (about 8 ms); append in batches or from many threads"));
    }
    all
}

fn room(e: &Examination) -> Vec<Finding> {
    let mut all = Vec::new();
    let free = e.space.free_bytes;
    if free < SPACE_MIN_BYTES {
        let (is, least) = (format::bytes(free), format::bytes(SPACE_MIN_BYTES));
        all.push(problem(format!("{is} free: a log with default options takes 64 MiB when it is made and {least} once it grows; choose smaller segments by --segment-bytes")));
    } else if free < e.space.total_bytes / 20 {
        all.push(warning(format!(
            "{} free, less than a twentieth: discard records or set a capacity before the disk is full",
            format::bytes(free)
        )));
    }
    if e.space.free_files.is_some_and(|n| n < 1000) {
        all.push(warning("the file system is almost out of inodes"));
    }
    if let Some(n) = e.limits.open_files_soft
        && n < OPEN_FILES_MIN
    {
        all.push(warning(format!("only {n} files may be open at a time: raise it (`ulimit -n 4096`)")));
    }
    if let Some(bytes) = e.limits.file_bytes
        && bytes < FILE_MIN_BYTES
    {
        all.push(warning(format!(
            "files may have up to {} (`ulimit -f`): keep --segment-bytes below that",
            format::bytes(bytes)
        )));
    }
    if let Some(bytes) = e.limits.address_space_bytes
        && bytes < 16 << 30
    {
        all.push(warning(format!(
            "the address space is limited to {} (`ulimit -v`): segments are mapped, so a large log needs more",
            format::bytes(bytes)
        )));
    }
    if cfg!(target_pointer_width = "32") {
        all.push(warning("a 32-bit program cannot map a large log at once"));
    }
    all
}

fn sync(e: &Examination) -> Vec<Finding> {
    let Some(sync) = &e.sync else {
        return vec![note("syncs were not measured")];
    };
    let mut all = Vec::new();
    let in_memory = matches!(e.file_system.kind.as_str(), "tmpfs" | "ramfs");
    if sync.p50_micros < 10.0 && !in_memory {
        all.push(warning(format!(
            "a sync takes {:.1} µs: too fast for most disks. A virtual disk's cache or a RAID controller may confirm data that is not stored; \
             that is safe only if it has a battery",
            sync.p50_micros
        )));
    }
    if sync.p50_micros > 20_000.0 {
        all.push(warning(
            "a sync takes more than 20 ms: append in batches or from many threads, or use a faster disk",
        ));
    }
    if sync.p99_micros > 50.0 * sync.p50_micros && sync.p99_micros > 5_000.0 && sync.samples >= 100 {
        all.push(warning(format!(
            "one sync in a hundred takes over {:.0} ms: something else keeps this disk busy, and appends will wait for it",
            sync.p99_micros / 1000.0
        )));
    }
    if sync.max_micros > 1_000_000.0 {
        all.push(warning("one sync took longer than a second"));
    }
    all
}
