//! Looks many logs of a shared group up at once in the openings of segments, by binary search.
//!
//! The opening of a segment has the end of each log where the segment begins. So how far a log was there is known without
//! reading blocks:
//!
//! ```text
//! segments     | 1      | 2      | 3      | 4 (growing)
//! log 7        |  aaaa  |  aa    |     aa |  aaa
//!                       ^ its next index and its bytes up to here are in the opening of segment 3
//! ```
//!
//! Objects before all files count as segments. Their openings are fetched by other threads: a part of the search that waits for one lets
//! the others go on.
//!
//! An opening has all logs, so all of them that are looked for there are judged by one reading of it. A step reads a few openings, so
//! that the writer is not kept from appends.
//!
//! Invariant: only openings count all of whose earlier entries are committed.
//!
//! Must not know: what is looked for.

use crate::error::Result;
use crate::replica::state::log_table::LogTable;
use crate::store::format::logs::state_of;
use crate::store::read::run_directory::in_opening_if_here;
use crate::store::segment::{Segment, Segments};
use crate::types::{EntryIndex, Index, LogNumber, Term, Timestamp};
use std::sync::Arc;

/// How many openings a step reads.
const OPENINGS_A_STEP: usize = 4;

/// The state that a search reads.
pub(super) struct Surroundings<'a> {
    pub(super) segments: &'a Segments,
    /// The logs after the last committed entry, and that entry.
    pub(super) logs: &'a LogTable,
    pub(super) committed: EntryIndex,
    pub(super) term: Term,
    pub(super) now: Timestamp,
}

/// The next index of a log, and its bytes up to there. None: it was opened later.
pub(super) type EndOfLog = Option<(Index, u64)>;

/// The opening of a segment, about one log.
pub(super) enum Opening<'a> {
    Of(&'a Segment, EndOfLog),
    /// It cannot be read.
    Unreadable,
}

/// Where the search for a log goes on.
pub(super) enum GoOn {
    /// In openings before this one.
    Before,
    /// In openings behind this one.
    Behind,
    /// The log is not looked for any more.
    Nowhere,
}

/// A search for logs; `T` is what is known of each.
#[derive(Debug)]
pub(super) struct LogSearch<T> {
    spans: Vec<Span<T>>,
    ended: Vec<(LogNumber, T)>,
}

/// Logs that are looked for in the openings behind entry `from` and before entry `to`.
#[derive(Debug)]
struct Span<T> {
    from: EntryIndex,
    to: EntryIndex,
    logs: Vec<(LogNumber, T)>,
}

impl<T> Default for LogSearch<T> {
    fn default() -> Self {
        Self { spans: Vec::new(), ended: Vec::new() }
    }
}

impl<T> LogSearch<T> {
    /// Begins to look for these logs in all openings.
    pub(super) fn begin(&mut self, logs: Vec<(LogNumber, T)>) {
        if !logs.is_empty() {
            self.spans.push(Span { from: EntryIndex(0), to: EntryIndex(u64::MAX), logs });
        }
    }

    pub(super) fn is_running(&self) -> bool {
        !self.spans.is_empty()
    }

    /// The log is not looked for any more.
    pub(super) fn forget(&mut self, log: LogNumber) {
        self.spans.retain_mut(|span| {
            span.logs.retain(|(other, _)| *other != log);
            !span.logs.is_empty()
        });
    }

    /// The logs whose search has ended since the last call.
    pub(super) fn take_ended(&mut self) -> Vec<(LogNumber, T)> {
        std::mem::take(&mut self.ended)
    }

    /// Reads a few of these openings. `judge` says for each log that is looked for there where to go on. Some: all that is left waits for
    /// openings of objects, which are being fetched, and the step has looked at that many others.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: an opening cannot be read. The next step goes on.
    pub(super) fn step(
        &mut self,
        openings: &[Arc<Segment>],
        around: &Surroundings<'_>,
        mut judge: impl FnMut(LogNumber, &mut T, Opening<'_>) -> GoOn,
    ) -> Result<Option<usize>> {
        if self.spans.is_empty() {
            return Ok(None);
        }
        let counts = openings.partition_point(|opening| opening.base.raft <= around.committed);
        let openings = &openings[..counts];
        let position = |entry: EntryIndex| openings.partition_point(|opening| opening.base.raft <= entry);
        let (mut looked_at, mut waiting) = (0, 0);
        while looked_at < OPENINGS_A_STEP
            && waiting < self.spans.len()
            && let Some(span) = self.spans.pop()
        {
            let (from, to) = (position(span.from), position(EntryIndex(span.to.0.saturating_sub(1))));
            if from >= to {
                self.ended.extend(span.logs);
                continue;
            }
            let opening = &openings[from.midpoint(to)];
            match ends_in(opening, &span.logs, around.segments) {
                Ok(Some(ends)) => {
                    let mut ends = ends.into_iter();
                    let at = opening.base.raft;
                    self.divide(span, at, |log, known| {
                        judge(log, known, Opening::Of(opening, ends.next().flatten()))
                    });
                }
                Ok(None) => {
                    self.spans.insert(0, span);
                    waiting += 1;
                    continue;
                }
                Err(error) => {
                    self.divide(span, opening.base.raft, |log, known| judge(log, known, Opening::Unreadable));
                    return Err(error);
                }
            }
            looked_at += 1;
        }
        Ok((waiting > 0 && waiting == self.spans.len()).then_some(looked_at))
    }

    /// Divides a span at an opening.
    fn divide(&mut self, span: Span<T>, at: EntryIndex, mut judge: impl FnMut(LogNumber, &mut T) -> GoOn) {
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        for (log, mut known) in span.logs {
            match judge(log, &mut known) {
                GoOn::Before => before.push((log, known)),
                GoOn::Behind => behind.push((log, known)),
                GoOn::Nowhere => {}
            }
        }
        for half in
            [Span { from: at, to: span.to, logs: behind }, Span { from: span.from, to: at, logs: before }]
        {
            if !half.logs.is_empty() {
                self.spans.push(half);
            }
        }
    }
}

/// Where each of these logs ends at an opening. None: it is the opening of an object, which is being fetched.
fn ends_in<T>(
    opening: &Arc<Segment>,
    logs: &[(LogNumber, T)],
    segments: &Segments,
) -> Result<Option<Vec<EndOfLog>>> {
    let data = segments.open(opening)?;
    in_opening_if_here(&data, |table| {
        let ends = logs.iter().map(|(log, _)| {
            let state = state_of(table, *log)?;
            Ok(state.map(|state| (state.next, state.bytes)))
        });
        ends.collect()
    })
}
