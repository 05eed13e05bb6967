//! Files that a killed server leaves in a directory with objects: an object is written as `NAME#NUMBER`, and renamed when it is
//! complete. Buckets keep such parts out of sight; a rule of the bucket removes them.

use crate::common::failure::{Failure, Result};
use chiplog::{LogId, Timestamp};
use chiplog_net::wire::ids::to_hex;
use chiplog_tier::local_directory;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// The directory of an object store, if it is one.
#[derive(Debug)]
pub(super) struct HalfWritten {
    dir: Option<PathBuf>,
}

impl HalfWritten {
    /// For the store at a location.
    pub(super) fn at(location: &str) -> Self {
        Self { dir: local_directory(location).filter(|path| path.is_dir()) }
    }

    /// Those of a log that nobody wrote to for this many seconds before `now`.
    pub(super) fn of(&self, log: LogId, after: u64, now: Timestamp) -> Result<Vec<PathBuf>> {
        let Some(dir) = &self.dir else { return Ok(Vec::new()) };
        let log = dir.join(to_hex(log.get()));
        let mut found = Vec::new();
        let folders = ["o", "begin", "pin", "s", "p", "set"].map(|name| log.join(name));
        for folder in [log].into_iter().chain(folders) {
            let read = |e| Failure::io("read", &folder, &e);
            let files = match fs::read_dir(&folder) {
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                files => files.map_err(read)?,
            };
            for file in files {
                let path = file.map_err(read)?.path();
                if is_half_written(&path) && is_older(&path, after, now) {
                    found.push(path);
                }
            }
        }
        Ok(found)
    }

    pub(super) fn remove(&self, files: &[PathBuf]) -> Result<()> {
        files.iter().try_for_each(|file| match fs::remove_file(file) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Failure::io("remove", file, &e)),
            _ => Ok(()),
        })
    }
}

fn is_half_written(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let parts = name.rsplit_once('#');
    parts.is_some_and(|(name, number)| {
        !name.is_empty() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    })
}

/// Whether a file was last written this many seconds before `now`, or earlier.
fn is_older(path: &Path, seconds: u64, now: Timestamp) -> bool {
    let written = fs::symlink_metadata(path).and_then(|meta| meta.modified()).ok();
    let written = written.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    written.is_some_and(|at| Duration::from_millis(now.0).saturating_sub(at) >= Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The directory with `%20` in its name was looked for.
    #[test]
    fn directory_is_that_of_the_objects() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("the store").join(to_hex(7)).join("o");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("00000000000000000000#3"), "half").unwrap();
        let path = dir.path().join("the store").display().to_string();
        for location in [format!("file://{}", path.replace(' ', "%20")), path] {
            let found = HalfWritten::at(&location).of(LogId(7), 0, Timestamp(0)).unwrap();
            assert_eq!(found.len(), 1, "{location}");
        }
    }
}
