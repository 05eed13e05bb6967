//! The kernel's facts about a directory's file system and device, our limits, and the machine.
//!
//! Everything except the file system and its space is optional: it is left out if `/proc` or `/sys` does not
//! show it.

use crate::common::failure::{Failure, Result};
use crate::common::format;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The mount that a directory is on.
#[derive(Debug, Default, Serialize)]
pub(super) struct FileSystem {
    /// Its type, such as `ext4`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// The mounted device, or another source.
    pub(super) source: String,
    pub(super) mount_point: PathBuf,
    /// The options of the mount and of the file system, sorted.
    pub(super) options: Vec<String>,
    pub(super) read_only: bool,
}

impl FileSystem {
    pub(super) fn of(dir: &Path) -> Result<Self> {
        let path = dir.canonicalize().map_err(|e| Failure::io("look at", dir, &e))?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let found = parse_mounts(&mounts, &path);
        Ok(found.unwrap_or_else(|| Self { kind: "unknown".into(), source: "?".into(), ..Self::default() }))
    }

    pub(super) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|o| o == option)
    }
}

/// Finds the mount of `path` in the text of `/proc/self/mountinfo` (proc_pid_mountinfo(5)):
/// `36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue`.
fn parse_mounts(mounts: &str, path: &Path) -> Option<FileSystem> {
    let mut best: Option<FileSystem> = None;
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let mut left = left.split(' ').skip(4);
        let mut right = right.split(' ');
        let (Some(point), Some(mount), Some(kind), Some(source)) =
            (left.next(), left.next(), right.next(), right.next())
        else {
            continue;
        };
        let point = PathBuf::from(unescape(point));
        // A later mount at the same place hides the earlier one.
        let closer = best.as_ref().is_none_or(|b| point.as_os_str().len() >= b.mount_point.as_os_str().len());
        if path.starts_with(&point) && closer {
            let mut options: Vec<String> = mount
                .split(',')
                .chain(right.next().unwrap_or_default().split(','))
                .map(String::from)
                .collect();
            let read_only = options.iter().any(|o| o == "ro");
            options.retain(|o| !(o.is_empty() || read_only && o == "rw"));
            options.sort();
            options.dedup();
            let (kind, source) = (kind.to_string(), unescape(source));
            best = Some(FileSystem { kind, source, mount_point: point, options, read_only });
        }
    }
    best
}

/// Decodes octal escapes of spaces and similar characters: `\040`.
fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let octal = (*first == b'\\')
            .then(|| tail.get(..3).and_then(|d| std::str::from_utf8(d).ok()))
            .flatten()
            .and_then(|d| u8::from_str_radix(d, 8).ok());
        match octal {
            Some(byte) => (out, rest) = ([out, vec![byte]].concat(), &tail[3..]),
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The block device under the file system.
#[derive(Debug, Serialize)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) model: Option<String>,
    /// Whether the device is a spinning disk.
    pub(super) rotational: Option<bool>,
    /// `write back`: a volatile cache that a sync has to flush; `write through`: no flush needed.
    pub(super) write_cache: Option<String>,
}

impl Device {
    pub(super) fn of(dir: &Path) -> Option<Self> {
        let device = fs::metadata(dir).ok()?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let mut at = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        if at.join("partition").exists() {
            at.pop();
        }
        let read = |name: &str| {
            let text = fs::read_to_string(at.join(name)).ok()?;
            Some(text.trim().to_string()).filter(|t| !t.is_empty())
        };
        Some(Self {
            name: at.file_name()?.to_string_lossy().into_owned(),
            model: read("device/model"),
            rotational: read("queue/rotational").map(|r| r == "1"),
            write_cache: read("queue/write_cache"),
        })
    }

    pub(super) fn words(&self) -> String {
        let mut words = vec![self.name.clone()];
        words.extend(self.model.clone());
        if let Some(rotational) = self.rotational {
            words.push(if rotational {
                "spinning (or a virtual disk)".into()
            } else {
                "solid state or virtual".into()
            });
        }
        words.extend(self.write_cache.as_ref().map(|cache| format!("write cache: {cache}")));
        words.join(", ")
    }
}

/// The free space of the file system.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Space {
    pub(super) free_bytes: u64,
    pub(super) total_bytes: u64,
    /// None: the file system does not count files.
    pub(super) free_files: Option<u64>,
}

impl Space {
    pub(super) fn of(dir: &Path) -> Result<Self> {
        let stat =
            rustix::fs::statvfs(dir).map_err(|e| Failure::io("measure the space of", dir, &e.into()))?;
        Ok(Self {
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            free_files: (stat.f_files > 0).then_some(stat.f_favail),
        })
    }
}

/// The limits of this process. None: no limit.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Limits {
    pub(super) open_files_soft: Option<u64>,
    pub(super) open_files_hard: Option<u64>,
    pub(super) file_bytes: Option<u64>,
    pub(super) address_space_bytes: Option<u64>,
}

impl Limits {
    pub(super) fn now() -> Self {
        let files = getrlimit(Resource::Nofile);
        Self {
            open_files_soft: files.current,
            open_files_hard: files.maximum,
            file_bytes: getrlimit(Resource::Fsize).current,
            address_space_bytes: getrlimit(Resource::As).current,
        }
    }

    pub(super) fn open_files_words(&self) -> String {
        let words = |limit: Option<u64>| limit.map_or("no limit".into(), format::count);
        format!("{} (up to {})", words(self.open_files_soft), words(self.open_files_hard))
    }
}

/// The machine.
#[derive(Debug, Serialize)]
pub(super) struct System {
    pub(super) kernel: String,
    pub(super) architecture: String,
    pub(super) page_bytes: u64,
    pub(super) cpus: u64,
    pub(super) memory_bytes: Option<u64>,
}

impl System {
    pub(super) fn now() -> Self {
        let name = rustix::system::uname();
        let memory = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
            line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
        });
        Self {
            kernel: format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()),
            architecture: name.machine().to_string_lossy().into_owned(),
            page_bytes: rustix::param::page_size() as u64,
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
            memory_bytes: memory.map(|kib| kib * 1024),
        }
    }

    pub(super) fn words(&self) -> String {
        let memory =
            self.memory_bytes.map_or(String::new(), |bytes| format!(", {} of memory", format::bytes(bytes)));
        format!(
            "{}, {}, {}{memory}, pages of {}",
            self.kernel,
            self.architecture,
            format::many(self.cpus, "processor", "processors"),
            format::bytes(self.page_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/root rw,errors=remount-ro
40 22 0:30 / /data rw,noatime shared:5 - xfs /dev/vdb rw,attr2,nobarrier
41 40 0:31 / /data/my\\040disk ro,noatime - btrfs /dev/vdc rw,space_cache
42 22 0:32 / /data rw - tmpfs tmpfs rw,size=1g
broken line
";

    #[test]
    fn closest_and_latest_mount_counts() {
        let of = |path: &str| parse_mounts(MOUNTS, Path::new(path)).unwrap();
        assert_eq!((of("/home").kind.as_str(), of("/home").source.as_str()), ("ext4", "/dev/root"));
        assert_eq!(of("/data/x").kind, "tmpfs");
        let disk = of("/data/my disk/log");
        assert_eq!((disk.kind.as_str(), disk.read_only), ("btrfs", true));
        assert_eq!(disk.options, ["noatime", "ro", "space_cache"]);
        assert!(of("/").has("errors=remount-ro"));
        assert!(parse_mounts("", Path::new("/")).is_none());
    }

    #[test]
    fn this_machine_is_described() {
        let dir = std::env::temp_dir();
        assert_ne!(FileSystem::of(&dir).unwrap().kind, "");
        assert!(Space::of(&dir).unwrap().total_bytes > 0);
        assert!(System::now().page_bytes >= 4096);
        assert!(System::now().words().contains("Linux"));
    }
}
