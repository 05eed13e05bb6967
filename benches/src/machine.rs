//! The machine a figure was measured on, and the directory it was measured in.

use anyhow::{Context, Result};
use rustix::fs::{StatVfs, statfs, statvfs};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::path::{Path, PathBuf};
use std::{fs, io, thread};

/// The properties of the machine that a figure depends on. They head every report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// The processor's name.
    pub processor: String,
    /// How many of them this process may use.
    pub cores: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// Type of the file system the logs were on.
    pub file_system: String,
    /// Processes ready to run in the last minute, when the run began; near 0 on a quiet machine.
    pub load: f64,
    /// chiplog's version.
    pub version: String,
}

impl Machine {
    /// Reads the properties of this machine and the file system of `dir`.
    ///
    /// # Errors
    /// `dir` cannot be read.
    pub(crate) fn look(dir: &Path) -> Result<Self> {
        let first = |path: &str, name: &str| -> Option<String> {
            let text = fs::read_to_string(path).ok()?;
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':').map_or(line, |(_, value)| value).trim().to_owned())
        };
        let memory =
            first("/proc/meminfo", "MemTotal").and_then(|m| m.split(' ').next()?.parse::<u64>().ok());
        let load = fs::read_to_string("/proc/loadavg").ok().and_then(|l| l.split(' ').next()?.parse().ok());
        Ok(Self {
            processor: first("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory.unwrap_or(0) * 1024,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            file_system: file_system(dir)?,
            load: load.unwrap_or(0.0),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { processor, cores, memory_bytes, kernel, file_system, load, .. } = self;
        let gib = *memory_bytes as f64 / f64::from(1 << 30);
        write!(f, "{processor}, {cores} cores, {gib:.0} GiB, Linux {kernel}, {file_system}, load {load:.2}")
    }
}

/// The type of the file system that `dir` is on: the longest mount point that is a prefix of it.
fn file_system(dir: &Path) -> Result<String> {
    let dir = dir.canonicalize().with_context(|| format!("looking at {}", dir.display()))?;
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut best = (0, "unknown");
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        if let (Some(_), Some(point), Some(kind)) = (fields.next(), fields.next(), fields.next())
            && dir.starts_with(point)
            && point.len() >= best.0
        {
            best = (point.len(), kind);
        }
    }
    Ok(best.1.to_owned())
}

/// Whether `dir` is in memory: a sync costs nothing there, and no ratio to it is meaningful.
pub(crate) fn is_memory(dir: &Path) -> Result<bool> {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    let kind = statfs(dir)?.f_type;
    Ok(kind == TMPFS_MAGIC || kind == RAMFS_MAGIC)
}

/// Bytes that may still be written below `dir`.
pub(crate) fn free_bytes(dir: &Path) -> Result<u64> {
    let StatVfs { f_bavail, f_frsize, .. } = statvfs(dir)?;
    Ok(f_bavail * f_frsize)
}

/// A directory of this run's own; dropping it removes it with its contents.
#[derive(Debug)]
pub(crate) struct WorkDir {
    path: PathBuf,
}

const PREFIX: &str = "run-";

impl WorkDir {
    /// Makes `base/run-PID`, and removes the directories that killed runs left in `base`.
    pub(crate) fn create(base: &Path) -> Result<Self> {
        let context = || format!("making a directory in {}", base.display());
        fs::create_dir_all(base).with_context(context)?;
        for entry in fs::read_dir(base).with_context(context)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let owner = name.strip_prefix(PREFIX).and_then(|pid| pid.parse::<u32>().ok());
            if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                fs::remove_dir_all(entry.path()).with_context(context)?;
            }
        }
        let path = base.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir_all(&path).with_context(context)?;
        remove_when_stopped(path.clone()).context("waiting for signals")?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// On Ctrl-C or SIGTERM: removes the directory, then ends the process as the signal would have.
fn remove_when_stopped(path: PathBuf) -> io::Result<()> {
    const ATTEMPTS: usize = 100;
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            // The measurement continues meanwhile and makes files: the next run removes them.
            let _ = (0..ATTEMPTS).find(|_| fs::remove_dir_all(&path).is_ok() || !path.exists());
            let _ = emulate_default_handler(signal);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.path) {
            eprintln!("could not remove {}: {e}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_runs_directory_is_removed_and_no_other() {
        let base = tempfile::tempdir().unwrap();
        for name in ["run-4294967294", "run-1", "other"] {
            fs::create_dir(base.path().join(name)).unwrap();
        }
        let dir = WorkDir::create(base.path()).unwrap();
        let path = dir.path().to_owned();
        assert!(path.is_dir());
        assert!(!base.path().join("run-4294967294").exists());
        assert!(base.path().join("run-1").exists() && base.path().join("other").exists());
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn the_machine_is_described() {
        let machine = Machine::look(Path::new(".")).unwrap();
        assert!(
            machine.cores > 0 && machine.memory_bytes > 0 && machine.file_system != "unknown",
            "{machine}"
        );
        assert!(free_bytes(Path::new(".")).unwrap() > 0);
        assert!(is_memory(Path::new("/dev/shm")).unwrap() || !Path::new("/dev/shm").exists());
    }
}
