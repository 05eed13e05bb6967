//! A small file system for one test, so that a disk can be full or read-only without affecting others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A tmpfs, unmounted when dropped.
pub(crate) struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Mounts a tmpfs. Returns None, and prints why, if mounting is not allowed.
    pub(crate) fn mount(at: &Path, bytes: u64) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let size = format!("size={bytes}");
        match Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output() {
            Ok(output) if output.status.success() => Some(Self(at.to_owned())),
            Ok(output) => {
                println!("SKIPPED, cannot mount a tmpfs: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(e) => {
                println!("SKIPPED, cannot run mount: {e}");
                None
            }
        }
    }

    /// The mount point.
    #[allow(dead_code, reason = "not every test that has one asks")]
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Mounts it again with options: `ro`, `rw`, `size=…`.
    #[allow(dead_code, reason = "not every test that has one needs it")]
    pub(crate) fn remount(&self, how: &str) {
        let done =
            Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(&self.0).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Tmpfs {
    /// Unmounts, with retries: a process that another test is just starting holds copies of all open files
    /// until its exec.
    fn drop(&mut self) {
        let unmount = || Command::new("umount").arg(&self.0).output().is_ok_and(|ran| ran.status.success());
        let until = Instant::now() + Duration::from_secs(5);
        while !unmount() {
            if Instant::now() > until {
                assert!(std::thread::panicking(), "cannot unmount {}: what is open there?", self.0.display());
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
