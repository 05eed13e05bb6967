//! The files in `golden/`, which are never made again.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "test support")]

use chiplog::fuzzing;
use std::fs;
use std::path::{Path, PathBuf};

pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

pub fn golden(name: &str) -> Vec<u8> {
    fs::read(path(name)).unwrap()
}

/// A writable copy of a golden directory.
pub fn copy_of(log: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_files(&path(log), dir.path());
    dir
}

/// Copies all files of a directory, and none of its directories.
pub fn copy_files(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// The blocks of a segment file, up to the first that is none: the kind of each and its bytes. Each is encoded the same.
pub fn blocks(file: &[u8]) -> Vec<(u8, &[u8])> {
    let id = u64::from_le_bytes(file[48..56].try_into().unwrap());
    let (mut found, mut at) = (Vec::new(), 4096);
    while let Some((header, sound)) = fuzzing::block(&file[at..], id) {
        assert!(sound && header == file[at..at + 64], "offset {at}");
        let length = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        found.push((header[60], &file[at + 64..at + length]));
        at += length.next_multiple_of(64);
    }
    found
}
