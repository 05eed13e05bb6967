//! Group objects: what a copy of one log of a shared group reads of the objects of its group: the records that are before its own files.
//!
//! ```text
//!  group:  | object 0 | object 1 | object 2 |  entries of many logs ...       servers
//!  copy:        ...records of one log       |  its own files, with entries of its own
//! ```
//!
//! The objects are sorted by log, so a reader fetches the parts of its log, and what says where these are.
//!
//! Invariants:
//! - the list has no files: their entries and records are counted otherwise than those of the group;
//! - blocks of another log fail their checksum: each log's have a salt of their own.
//!
//! Must not know: which records are committed, what a record is.

use super::run_cursor::RunCursor;
use super::run_directory::RunDirectories;
use crate::disk::Disk;
use crate::store::segment::objects::ObjectList;
use crate::store::segment::{ReadMode, Segments};
use crate::types::LogNumber;
use std::collections::VecDeque;
use std::sync::Arc;

/// One log's part of the objects of a group.
#[derive(Debug)]
pub(crate) struct GroupObjects {
    runs: Arc<RunDirectories>,
    /// The number of the log in the group.
    log: LogNumber,
}

impl GroupObjects {
    /// The part of log `log`. The copy is in `disk`.
    pub(crate) fn new(disk: Arc<dyn Disk>, mode: ReadMode, log: LogNumber) -> Self {
        let segments = Arc::new(Segments::new(disk, mode, VecDeque::new()));
        Self { runs: Arc::new(RunDirectories::of_objects(segments)), log }
    }

    /// The number of the log in the group.
    pub(crate) fn log(&self) -> LogNumber {
        self.log
    }

    /// The objects of the group.
    pub(crate) fn objects(&self) -> &ObjectList {
        self.runs.segments().objects()
    }

    /// A cursor over the records of the log.
    pub(crate) fn cursor(&self) -> RunCursor {
        RunCursor::new(self.runs.clone(), self.log)
    }
}
