//! The programs that append, as threads: each with a session of its own, so that it can resend unanswered records to
//! the next leader, and each is in the log once.

use crate::text::Text;
use crate::trio::{IN_FLIGHT, PATIENCE, Trio};
use chiplog::{ErrorKind, Index, NodeId, Sequence, Ticket};
use std::collections::VecDeque;
use std::error::Error;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The confirmations that the producers received. They outlive any replica.
#[derive(Debug)]
pub(crate) struct Promises {
    /// By record number: the index at which it was confirmed; 0 is "not yet".
    places: Vec<AtomicU64>,
    confirmed: AtomicU64,
    repeated: AtomicU64,
    failed: AtomicBool,
    first_by: [OnceLock<Instant>; 4],
}

impl Promises {
    pub(crate) fn new(total: u64) -> Self {
        let places = (0..total).map(|_| AtomicU64::new(0)).collect();
        let first_by = Default::default();
        Self {
            places,
            confirmed: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            first_by,
        }
    }

    /// The total number of records.
    pub(crate) fn total(&self) -> u64 {
        self.places.len() as u64
    }

    /// Records confirmed so far.
    pub(crate) fn confirmed(&self) -> u64 {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Resent records that were in the log already.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeated.load(Ordering::Relaxed)
    }

    /// Whether a thread has failed; its error says why. Waiting is useless then.
    pub(crate) fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Returns an outcome and remembers if it is an error.
    pub(crate) fn heed<T>(&self, outcome: Result<T>) -> Result<T> {
        self.failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
        outcome
    }

    /// The time when this leader confirmed its first record.
    pub(crate) fn first_by(&self, node: NodeId) -> Option<Instant> {
        self.first_by[node.get() as usize].get().copied()
    }

    /// The index at which record `number` was confirmed.
    pub(crate) fn place(&self, number: u64) -> Option<Index> {
        let place = self.places.get(number as usize)?.load(Ordering::Acquire);
        (place > 0).then_some(Index(place))
    }

    fn note(&self, number: u64, index: Index, by: NodeId, repeated: bool) {
        self.places[number as usize].store(index.get(), Ordering::Release);
        self.repeated.fetch_add(u64::from(repeated), Ordering::Relaxed);
        self.first_by[by.get() as usize].get_or_init(Instant::now);
        self.confirmed.fetch_add(1, Ordering::Release);
    }
}

/// Appends every record whose number leaves `worker` when divided by `workers`, in order, each exactly once, even while
/// leaders change.
pub(crate) fn produce(
    trio: &Trio,
    text: &Text,
    promises: &Promises,
    worker: u64,
    workers: u64,
) -> Result<()> {
    let mine = (promises.total() + workers - 1 - worker) / workers;
    let number = |n: u64| n * workers + worker;
    let mut session_id = None;
    let mut confirmed = 0;
    'leader: while confirmed < mine {
        let leader = trio.leader()?;
        let by = leader.status().replica.node;
        // A leader can be lost between any two calls: then the next one is asked.
        let id = match session_id.map_or_else(|| leader.open_session().map(|s| s.id()), Ok) {
            Ok(id) => *session_id.insert(id),
            Err(error) => {
                pause(error)?;
                continue;
            }
        };
        // Only to know afterwards what was in the log before it was resent.
        let before = match leader.barrier(PATIENCE) {
            Ok(last) => last,
            Err(error) => {
                pause(error)?;
                continue;
            }
        };
        let mut session = leader.resume_session(id, Sequence(confirmed + 1));
        let mut sent = confirmed;
        let mut waiting: VecDeque<Ticket> = VecDeque::with_capacity(IN_FLIGHT.into());
        while confirmed < mine {
            while waiting.len() < usize::from(IN_FLIGHT) && sent < mine {
                match session.submit(&text.record(number(sent))) {
                    Ok(ticket) => waiting.push_back(ticket),
                    Err(error) => {
                        pause(error)?;
                        continue 'leader;
                    }
                }
                sent += 1;
            }
            let Some(ticket) = waiting.pop_front() else { break };
            match ticket.wait() {
                Ok(at) => promises.note(number(confirmed), at.first, by, at.first <= before),
                Err(error) => {
                    pause(error)?;
                    continue 'leader;
                }
            }
            confirmed += 1;
        }
    }
    Ok(())
}

/// Continues if the error is one of a lost leader: in a session everything may be resent.
fn pause(error: chiplog::Error) -> Result<()> {
    use ErrorKind::{Busy, Closed, NotLeader, Poisoned, SequenceGap, Timeout, Unavailable};
    match error.kind() {
        // Poisoned: the outcome is unknown. A gap: the batches before this one were refused with their leader.
        NotLeader | Unavailable | Closed | Poisoned | Timeout | Busy | SequenceGap => {
            thread::sleep(Duration::from_millis(5));
            Ok(())
        }
        _ => Err(error.into()),
    }
}
