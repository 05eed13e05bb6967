//! The story of a run: a digest of everything that happened, and, if there is a listener, lines of text.

use crate::sync::clock::Moment;
use std::fmt;

/// Takes lines of a story.
pub(super) type Teller = Box<dyn FnMut(&str)>;

/// Sums up a run. Lines are only made when there is a listener.
pub(super) struct Story {
    hash: u64,
    teller: Option<Teller>,
    /// The last lines, for the report of a violation; a ring buffer.
    recent: Vec<String>,
    keep: usize,
}

impl Story {
    pub(super) fn new(teller: Option<Teller>) -> Self {
        let keep = if teller.is_some() { 0 } else { 40 };
        Self { hash: 0xcbf2_9ce4_8422_2325, teller, recent: Vec::new(), keep }
    }

    /// Adds numbers that describe an event: two runs of one seed have to add the same.
    pub(super) fn mix(&mut self, numbers: &[u64]) {
        for n in numbers {
            self.hash = (self.hash.rotate_left(23) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash ^ (self.hash >> 29)
    }

    /// Adds a line.
    pub(super) fn note(&mut self, now: Moment, line: impl FnOnce() -> String) {
        let line = || format!("{now:>12} {}", line());
        if let Some(teller) = &mut self.teller {
            teller(&line());
        } else if self.keep > 0 {
            if self.recent.len() >= 2 * self.keep {
                self.recent.drain(..self.keep);
            }
            self.recent.push(line());
        }
    }

    /// Whether every message is added as a line, too.
    pub(super) fn is_loud(&self) -> bool {
        self.teller.is_some()
    }

    /// The latest lines.
    pub(super) fn recent(&self) -> &[String] {
        &self.recent[self.recent.len().saturating_sub(self.keep)..]
    }
}

impl fmt::Debug for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Story").field("hash", &self.hash).finish_non_exhaustive()
    }
}
