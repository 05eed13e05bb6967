//! The programs that append, each with a session and a connection of its own. When the leader dies, the client resends
//! unanswered records to the next one; each is in the log once.

use crate::text::Text;
use chiplog::{Appended, Index};
use chiplog_net::client::ProducerOptions;
use chiplog_net::client::blocking::Client;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The confirmations that the producers received. They outlive any server.
#[derive(Debug)]
pub(crate) struct Promises {
    /// By record number: the index at which it was confirmed; 0 is "not yet".
    places: Vec<AtomicU64>,
    given: AtomicU64,
    confirmed: AtomicU64,
    failed: AtomicBool,
    began: Instant,
    /// The time when a record was last confirmed, in microseconds from `began`.
    last_confirmed: AtomicU64,
    /// The longest time without any confirmation, in microseconds.
    silence: AtomicU64,
}

impl Promises {
    pub(crate) fn new(total: u64) -> Self {
        Self {
            places: (0..total).map(|_| AtomicU64::new(0)).collect(),
            given: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            began: Instant::now(),
            last_confirmed: AtomicU64::new(0),
            silence: AtomicU64::new(0),
        }
    }

    /// The total number of records.
    pub(crate) fn total(&self) -> u64 {
        self.places.len() as u64
    }

    pub(crate) fn confirmed(&self) -> u64 {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Records that the producers have and that are not confirmed.
    pub(crate) fn under_way(&self) -> u64 {
        let confirmed = self.confirmed();
        self.given.load(Ordering::Acquire).saturating_sub(confirmed)
    }

    /// Starts measuring the longest time without a confirmation.
    pub(crate) fn watch_silence(&self) {
        self.silence.store(0, Ordering::Relaxed);
    }

    pub(crate) fn silence(&self) -> Duration {
        Duration::from_micros(self.silence.load(Ordering::Relaxed))
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

    /// The index at which record `number` was confirmed.
    pub(crate) fn place(&self, number: u64) -> Option<Index> {
        let place = self.places.get(number as usize)?.load(Ordering::Acquire);
        (place > 0).then_some(Index(place))
    }

    fn note(&self, number: u64, confirmed: chiplog::Result<Appended>) {
        let Ok(appended) = confirmed else {
            // `produce` gets the reason from the flush.
            return self.failed.store(true, Ordering::Relaxed);
        };
        self.places[number as usize].store(appended.first.get(), Ordering::Release);
        self.confirmed.fetch_add(1, Ordering::Release);
        let now = self.began.elapsed().as_micros() as u64;
        let before = self.last_confirmed.fetch_max(now, Ordering::Relaxed);
        self.silence.fetch_max(now.saturating_sub(before), Ordering::Relaxed);
    }
}

/// Appends every record whose number leaves `worker` when divided by `workers`, in order, each exactly once, even while
/// servers die.
pub(crate) fn produce(
    servers: &[String],
    text: &Text,
    promises: &Arc<Promises>,
    worker: u64,
    workers: u64,
) -> Result<()> {
    let client = Client::connect(servers, Default::default())?;
    let mut options = ProducerOptions::default();
    options.batch_bytes = 16 << 10;
    options.inflight_max = 8;
    options.buffer_bytes = 256 << 10; // small, so that it waits for the log, and the kill happens during the work
    let producer = client.producer(options)?;
    for number in (worker..promises.total()).step_by(workers as usize) {
        let to = promises.clone();
        producer.send_with(&text.record(number), move |confirmed| to.note(number, confirmed))?;
        promises.given.fetch_add(1, Ordering::Release);
        if promises.failed() {
            break;
        }
    }
    producer.flush(super::servers::PATIENCE)?;
    let closed = producer.close(Duration::from_secs(10));
    if closed.all_acknowledged() {
        return Ok(());
    }
    Err(format!("{} records were not confirmed: {:?}", closed.left.len(), closed.failed).into())
}
