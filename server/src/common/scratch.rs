//! A temporary directory of a command. A killed process removes nothing; the next one removes its directory.
//!
//! Invariant: a directory is removed only by the process that has locked it, and only if chiplog has made it: its lock
//! file says so.

use crate::common::failure::{Failure, Result};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// A new directory that only its owner may read, removed with its contents when dropped.
pub(crate) struct Scratch {
    dir: PathBuf,
    /// Locked while the directory is in use.
    _lock: File,
}

const LOCK: &str = "lock";

/// The contents of the lock file.
const MARK: &str = "chiplog made this temporary directory and removes it, or its next run does.\n";

impl Scratch {
    /// Makes a directory below `parent`, whose name begins with `prefix`. It never uses one that exists.
    pub(crate) fn make(parent: &Path, prefix: &str) -> Result<Self> {
        clear(parent, prefix);
        let pid = std::process::id();
        let mut dir = parent.join(format!("{prefix}{pid}"));
        let mut more = 0;
        while let Err(e) = fs::DirBuilder::new().mode(0o700).create(&dir) {
            if e.kind() != ErrorKind::AlreadyExists {
                return Err(Failure::io("make", &dir, &e));
            }
            more += 1;
            dir = parent.join(format!("{prefix}{pid}-{more}"));
        }
        match locked(&dir.join(LOCK)) {
            Ok(lock) => Ok(Self { dir, _lock: lock }),
            Err(failure) => {
                let _ = fs::remove_dir_all(&dir);
                Err(failure)
            }
        }
    }

    /// Its path.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Makes and locks the lock file. It is marked once it is locked, so that no other process removes the directory.
fn locked(path: &Path) -> Result<File> {
    let mut lock = File::create_new(path).map_err(|e| Failure::io("make", path, &e))?;
    lock.lock().map_err(|e| Failure::io("lock", path, &e))?;
    lock.write_all(MARK.as_bytes()).map_err(|e| Failure::io("write", path, &e))?;
    Ok(lock)
}

/// Removes the directories that killed processes left behind.
fn clear(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path().join(LOCK);
        let is_scratch = entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix));
        if !is_scratch || !fs::symlink_metadata(&path).is_ok_and(|m| m.is_file()) {
            continue;
        }
        let Ok(lock) = File::open(&path) else { continue };
        if lock.try_lock().is_ok() && fs::read_to_string(&path).is_ok_and(|text| text == MARK) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with something in it, and a lock file with these contents.
    fn left(parent: &Path, name: &str, mark: &str) -> PathBuf {
        let dir = parent.join(name);
        fs::create_dir_all(dir.join("node1")).unwrap();
        fs::write(dir.join(LOCK), mark).unwrap();
        dir
    }

    #[test]
    fn next_process_removes_the_data_of_a_killed_one() {
        let parent = tempfile::tempdir().unwrap();
        let left = |name| left(parent.path(), name, MARK);
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

    /// A user may have directories of such names.
    #[test]
    fn directories_of_others_are_neither_used_nor_removed() {
        let parent = tempfile::tempdir().unwrap();
        let own = format!("chiplog-bench-{}", std::process::id());
        let theirs = [left(parent.path(), &own, ""), left(parent.path(), "chiplog-bench-mine", "my lock")];
        let scratch = Scratch::make(parent.path(), "chiplog-bench-").unwrap();
        assert!(!theirs.contains(&scratch.dir));
        drop(scratch);
        assert!(theirs.iter().all(|dir| dir.join("node1").exists()));
    }
}
