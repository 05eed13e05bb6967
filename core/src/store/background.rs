//! The work of the helper thread for one log: what waits, in which order it is done, and how results and failures change that.
//!
//! Must not know: how files are made.

use super::helper::Urgency;
use super::segment::{Segment, file_name};
use crate::disk::DiskFile;
use crate::error::Error;
use crate::sync::clock::Moment;
use crate::types::SegmentId;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of files kept ready.
pub(crate) const AHEAD: usize = 2;

/// No file is prepared for this long after a failure, unless one becomes free: each attempt on a full disk would fill
/// it up again.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(500);
/// How often a log that needs no file now looks whether the disk has room for the one that it could not have ahead.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// How often the same failure is logged.
const WARN_INTERVAL: Duration = Duration::from_secs(30);

/// A segment file that waits for its first block.
#[derive(Debug)]
pub(crate) struct PreparedSegment {
    pub(crate) number: u64,
    pub(crate) id: SegmentId,
    pub(crate) bytes: u32,
    pub(crate) file: Arc<dyn DiskFile>,
}

/// Other code's work that must not take the writer's time, such as reading a segment to check it.
pub(super) struct BackgroundJob(pub(super) Box<dyn FnOnce() + Send>);

impl fmt::Debug for BackgroundJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BackgroundJob")
    }
}

/// The prepared files and the waiting work.
#[derive(Debug, Default)]
pub(super) struct JobQueue {
    pub(super) ready: VecDeque<PreparedSegment>,
    pub(super) next_number: u64,
    /// Names of files that may be overwritten, of the right size.
    pub(super) spare: Vec<String>,
    pub(super) seal: VecDeque<Arc<Segment>>,
    pub(super) dropped: VecDeque<Arc<Segment>>,
    pub(super) jobs: VecDeque<BackgroundJob>,
    /// The last failure to prepare a file, and its time. Attempts pause until a caller needs a file or one becomes
    /// free.
    pub(super) failed: Option<Error>,
    pub(super) failed_at: Option<Moment>,
    /// Whether the last attempt to prepare a file failed: for lack of room, or because the disk or the process could not.
    pub(super) lacks_room: bool,
    /// When the disk was last asked whether it has room again.
    pub(super) looked_at: Option<Moment>,
    /// When a failure was logged, unless a file was prepared since.
    pub(super) warned_at: Option<Moment>,
    pub(super) busy: bool,
    /// Whether the log will need files: many logs never fill their first one.
    pub(super) wanted: bool,
    /// The log is being closed: no more files are prepared ahead.
    pub(super) ending: bool,
    /// A caller waits to be notified that a file is ready or cannot be made.
    pub(super) awaited: bool,
    /// Since when callers wait for a file. None: none does, one was taken since, or an attempt failed.
    pub(super) awaited_since: Option<Instant>,
    /// The number of threads that wait for a file.
    pub(super) blocked: usize,
    /// No thread does the work: a caller that needs a file makes it, and `Allocator::help` does the rest.
    pub(super) unaided: bool,
    /// Also delays work that can wait.
    pub(super) late: bool,
    pub(super) stop: bool,
}

/// The next job of the helper thread.
#[derive(Debug)]
pub(super) enum Job {
    Prepare(u64, Option<String>),
    Seal(Arc<Segment>),
    Drop(Arc<Segment>),
    Run(BackgroundJob),
}

/// The result of a job.
#[derive(Debug)]
pub(super) enum Outcome {
    Prepared(Result<PreparedSegment, (Error, Option<String>)>),
    Spare(String),
    Removed,
    Nothing,
}

impl JobQueue {
    /// Forgets a failure after [`RETRY_DELAY`].
    pub(super) fn try_again(&mut self, now: Moment) {
        if self.failed_at.is_none_or(|at| now.since(at) >= RETRY_DELAY) {
            self.failed = None;
        }
    }

    /// The reason why no file is being made, if none is. A discarded file that is still being removed may free the
    /// missing space.
    pub(super) fn failure(&self) -> Option<&Error> {
        self.failed.as_ref().filter(|_| !self.busy && self.dropped.is_empty())
    }

    pub(super) fn wants_file(&self) -> bool {
        self.wanted && self.ready.len() < AHEAD && self.failed.is_none() && !self.ending
    }

    /// How urgent the next job of the helper thread is. None: there is none.
    pub(super) fn urgency(&self) -> Option<Urgency> {
        if self.unaided {
            return None;
        }
        let is_short = !self.seal.is_empty() || !self.dropped.is_empty();
        match is_short || self.wants_file() {
            true if self.awaited || self.blocked > 0 => Some(Urgency::Awaited),
            true if is_short => Some(Urgency::Short),
            true => Some(Urgency::Ahead),
            false => (!self.ending && !self.jobs.is_empty()).then_some(Urgency::Later),
        }
    }

    /// Footers first, because they are short. Then discarded files, which free space. Then files ahead. Then other jobs.
    pub(super) fn next_job(&mut self) -> Option<Job> {
        if let Some(segment) = self.seal.pop_front() {
            return Some(Job::Seal(segment));
        }
        if let Some(segment) = self.dropped.pop_front() {
            return Some(Job::Drop(segment));
        }
        if self.wants_file() {
            return Some(Job::Prepare(self.next_number, self.take_spare(self.next_number)));
        }
        if self.ending {
            return None;
        }
        self.jobs.pop_front().map(Job::Run)
    }

    /// Returns a file to make segment `number` from. Prefers the one that already has its name, so that no rename ever
    /// replaces a file.
    pub(super) fn take_spare(&mut self, number: u64) -> Option<String> {
        let name = file_name(number);
        match self.spare.iter().position(|s| *s == name) {
            Some(n) => Some(self.spare.swap_remove(n)),
            None => self.spare.pop(),
        }
    }

    pub(super) fn note(&mut self, outcome: Outcome, now: Moment) {
        match outcome {
            Outcome::Prepared(Ok(prepared)) => {
                self.next_number = prepared.number + 1;
                self.warned_at = None;
                self.lacks_room = false;
                self.ready.push_back(prepared);
            }
            Outcome::Prepared(Err((error, spare))) => {
                // A producer that tries again causes an attempt every second.
                if !self.ending && self.warned_at.is_none_or(|at| now.since(at) >= WARN_INTERVAL) {
                    self.warned_at = Some(now);
                    tracing::warn!(%error, "no segment could be prepared");
                }
                // First in the list, so last in line: one bad file does not block the others.
                self.spare.splice(..0, spare);
                self.lacks_room = true;
                self.awaited_since = None;
                self.failed = Some(error);
                self.failed_at = Some(now);
            }
            // An attempt that failed for lack of space may have started before the discard: try again.
            Outcome::Spare(name) => {
                self.spare.push(name);
                self.failed = None;
            }
            Outcome::Removed => self.failed = None,
            Outcome::Nothing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// On a full disk the helper was preparing a file when a discard came. The attempt failed afterwards and its
    /// failure stayed, so the next append was refused as `Full`, although the discarded file had freed space meanwhile.
    #[test]
    fn discard_during_a_failing_attempt_clears_the_failure() {
        for room in [Outcome::Removed, Outcome::Spare("00000000000000000001.seg".into())] {
            let mut state = JobQueue { next_number: 9, wanted: true, ..JobQueue::default() };
            state.awaited_since = Some(Instant::now());
            let failed = Err((Error::new(ErrorKind::Full, "no space"), None));
            state.note(Outcome::Prepared(failed), Moment::START);
            assert!(
                state.awaited_since.is_none(),
                "the append was refused: the next one has its own patience"
            );
            assert!(state.next_job().is_none(), "it tries again although nothing changed");
            state.note(room, Moment::START);
            assert!(matches!(state.next_job(), Some(Job::Prepare(9, _))));
        }
    }
}
