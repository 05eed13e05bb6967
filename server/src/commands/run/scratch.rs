//! A temporary directory of a command. A killed process removes nothing; the next one removes its directory.
//!
//! Invariant: a directory is removed only by the process that has locked it.

use crate::common::failure::{Failure, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A new directory, removed with its contents when dropped.
pub(super) struct Scratch {
    dir: PathBuf,
    /// Locked while the directory is in use.
    _lock: File,
}

const LOCK: &str = "lock";

impl Scratch {
    /// Makes a directory below `parent`, whose name begins with `prefix`.
    pub(super) fn make(parent: &Path, prefix: &str) -> Result<Self> {
        clear(parent, prefix);
        let dir = parent.join(format!("{prefix}{}", std::process::id()));
        let lock = dir.join(LOCK);
        loop {
            fs::create_dir_all(&dir).map_err(|e| Failure::io("make", &dir, &e))?;
            let file = File::create(&lock).map_err(|e| Failure::io("make", &lock, &e))?;
            file.lock().map_err(|e| Failure::io("lock", &lock, &e))?;
            // Another process may have removed it as left behind before it was locked.
            if lock.exists() {
                return Ok(Self { dir, _lock: file });
            }
        }
    }

    /// Its path.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Removes the directories that killed processes left behind.
fn clear(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_scratch = entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix));
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if is_scratch && lock.try_lock().is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_process_removes_the_data_of_a_killed_one() {
        let parent = tempfile::tempdir().unwrap();
        let left = |name: &str| {
            let dir = parent.path().join(name);
            fs::create_dir_all(dir.join("node1")).unwrap();
            File::create(dir.join(LOCK)).unwrap();
            dir
        };
        let (killed, other) = (left("chiplog-dev-1"), left("something-else"));
        let running = left("chiplog-dev-2");
        let lock = File::open(running.join(LOCK)).unwrap();
        lock.lock().unwrap();
        let scratch = Scratch::make(parent.path(), "chiplog-dev-").unwrap();
        assert!(!killed.exists() && other.exists() && running.exists());
        let mine = scratch.dir.clone();
        assert!(mine.exists());
        drop(scratch);
        assert!(!mine.exists());
    }
}
