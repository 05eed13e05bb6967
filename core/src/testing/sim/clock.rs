//! Virtual time, and the queue of events.
//!
//! Invariant: events are returned by time, and events of one moment in the order in which they were added. So the
//! order is total and depends on nothing else.

use crate::sync::clock::Moment;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

#[derive(Debug)]
struct Entry<E> {
    at: Moment,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// Reversed, because the heap returns the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// The queue of future events.
#[derive(Debug)]
pub(super) struct Schedule<E> {
    heap: BinaryHeap<Entry<E>>,
    now: Moment,
    next: u64,
}

impl<E> Schedule<E> {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::new(), now: Moment::START, next: 0 }
    }

    pub(super) fn now(&self) -> Moment {
        self.now
    }

    /// How many events have been returned.
    pub(super) fn count(&self) -> u64 {
        self.next - self.heap.len() as u64
    }

    /// Adds an event; an event in the past is returned next.
    pub(super) fn at(&mut self, at: Moment, event: E) {
        self.heap.push(Entry { at: at.max(self.now), number: self.next, event });
        self.next += 1;
    }

    pub(super) fn after(&mut self, time: Duration, event: E) {
        self.at(self.now.plus(time), event);
    }

    /// The time of the next event.
    pub(super) fn next_at(&self) -> Option<Moment> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Returns the next event and moves the time to it.
    pub(super) fn next(&mut self) -> Option<E> {
        let entry = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_ordered_by_time_and_then_by_insertion() {
        let mut schedule = Schedule::new();
        for (at, name) in [(5, "c"), (1, "a"), (5, "d"), (2, "b"), (5, "e")] {
            schedule.at(Moment(at), name);
        }
        let order: String = std::iter::from_fn(|| schedule.next()).collect();
        assert_eq!((order.as_str(), schedule.now(), schedule.count()), ("abcde", Moment(5), 5));
        schedule.at(Moment(1), "late");
        assert_eq!((schedule.next(), schedule.now()), (Some("late"), Moment(5)));
    }
}
