//! Append with a session file: an interrupted command continues where it stopped when it is run again.
//!
//! One worker, one session. Each batch is written to the [`Journal`] before it is sent and again when it is
//! acknowledged; the journal explains why that is enough.

use super::journal::{Cut, Journal, Sum};
use super::pump::{Plan, Shared, Sink, Work};
use super::stall;
use super::stall::{DELIVERY, FULL_MAX, STOP_CHECK};
use crate::common::failure::{Failure, Result};
use crate::connect::remote::{Remote, failure};
use chiplog::{Batch, ErrorKind, Sequence};
use chiplog_net::client::{Producer, ProducerOptions};
use crossbeam_channel::Receiver;
use indicatif::ProgressBar;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::remote::{LAST_WORDS, begin, flush, source};

/// The servers that the records go to, and the journal of earlier records.
pub(super) struct Resuming {
    remote: Remote,
    options: ProducerOptions,
    journal: Arc<Mutex<Journal>>,
    /// The state of the only worker.
    place: Mutex<Option<Place>>,
    doubt: Arc<Doubt>,
}

/// Records that may be in the log although they were not confirmed.
#[derive(Default)]
struct Doubt {
    /// Batches of earlier runs without an answer.
    earlier: AtomicUsize,
    /// The servers refused what this run has sent, because the log is full or a quota is used up.
    is_refused: AtomicBool,
}

impl Doubt {
    /// A batch of an earlier run has an answer.
    fn has_answer(&self) {
        // It may be one that an earlier run knew to be refused.
        let _ = self.earlier.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
    }

    /// Whether a batch that was not confirmed may be in the log.
    fn is_left(&self) -> bool {
        !self.is_refused.load(Relaxed) || self.earlier.load(Relaxed) > 0
    }
}

/// The worker's position in the input.
struct Place {
    sum: Sum,
    /// Batches that were cut in an earlier run and are sent again.
    again: VecDeque<Cut>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Resuming {
    /// `sum`: the checksum of the input up to [`Journal::done`], which was read and skipped.
    ///
    /// # Errors
    /// The file belongs to another input or another log. Errors of the servers.
    pub(super) fn new(remote: Remote, mut journal: Journal, sum: Sum, plan: &mut Plan) -> Result<Self> {
        if !journal.is_done_as_before(&sum) {
            return Err(other_input(journal.done()));
        }
        let log = remote.info(false)?.log_id;
        let (session, next) = match journal.session(log)? {
            Some(goes_on) => goes_on,
            None => {
                let session = remote.wait_for_leader(remote.client.open_session()).map_err(failure)?;
                journal.begin(session, log)?;
                (session, 1)
            }
        };
        let mut options = ProducerOptions::default();
        options.session = Some((session, Sequence(next)));
        options.codec = plan.codec;
        options.batch_bytes = chiplog::limits::BATCH_BYTES_MAX;
        options.inflight_max = plan.in_flight.min(1024) as u16;
        (options.delivery_timeout, options.full_max) = (DELIVERY, FULL_MAX);
        options.block_max = STOP_CHECK;
        options.ends_at_failure = true;
        plan.batch_bytes = plan.batch_bytes.min(remote.client.batch_bytes_max());
        let again: VecDeque<Cut> = journal.open_cuts().into();
        let mut from = sum.records;
        for cut in &again {
            plan.cuts.push_back(cut.records - from);
            from = cut.records;
        }
        let doubt = Arc::new(Doubt { earlier: journal.send_again()?.into(), ..Doubt::default() });
        let place = Mutex::new(Some(Place { sum, again }));
        Ok(Self { remote, options, journal: Arc::new(Mutex::new(journal)), place, doubt })
    }

    /// Sends a batch as the next one of the session. False: the run was stopped meanwhile.
    async fn send(
        &self,
        producer: &Producer,
        batch: &Batch,
        place: &mut Place,
        shared: &Arc<Shared>,
        bar: &ProgressBar,
    ) -> Result<bool> {
        let records = batch.records()?;
        records.iter().for_each(|record| place.sum.add(record));
        let again = place.again.pop_front();
        let is_earlier = again.is_some();
        match again {
            Some(cut) if Journal::is_as_before(&cut, &place.sum) => {}
            Some(cut) => return Err(other_input(cut.records)),
            None => lock(&self.journal).cut(&place.sum)?,
        }
        let bytes: u64 = records.iter().map(|r| r.len() as u64).sum();
        let count = records.len() as u32;
        loop {
            let (to, bar, journal) = (shared.clone(), bar.clone(), self.journal.clone());
            let doubt = self.doubt.clone();
            let settled = move |result: chiplog::Result<_>| {
                to.settle();
                let there = match result {
                    Ok(appended) => {
                        to.tally.add(appended, bytes, true);
                        true
                    }
                    // In the log since an earlier run; its index is no longer known.
                    Err(error) if error.kind() == ErrorKind::SequenceForgotten => {
                        to.tally.add_forgotten(count.into(), bytes, true);
                        true
                    }
                    Err(error) => {
                        doubt.is_refused.fetch_or(is_refusal(&error), Relaxed);
                        if doubt.is_left() {
                            to.doubt();
                        }
                        to.fail(doubtful(error));
                        false
                    }
                };
                if there {
                    if is_earlier {
                        doubt.has_answer();
                    }
                    bar.inc(bytes + u64::from(count)); // one newline each
                    if let Err(failed) = lock(&journal).acked() {
                        to.fail(failed);
                    }
                }
            };
            shared.take();
            match producer.send_batch(&records, settled).await {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    shared.untake();
                    if shared.stopped() {
                        return Ok(false);
                    }
                }
                Err(error) => {
                    shared.untake();
                    self.doubt.is_refused.fetch_or(is_refusal(&error), Relaxed);
                    return Err(doubtful(error));
                }
                Ok(()) => return Ok(true),
            }
        }
    }
}

impl Sink for Resuming {
    fn begin(&self, shared: &Arc<Shared>) {
        self.remote.spawn(stall::report(shared.clone(), self.remote.given_servers()));
    }

    fn work(&self, shared: &Arc<Shared>, jobs: &Receiver<Work>, bar: &ProgressBar) {
        let Some(mut place) = lock(&self.place).take() else { return };
        let Some(producer) = begin(&self.remote, &self.options, shared) else { return };
        while let Ok(Work::Batch(batch, _)) = jobs.recv() {
            if shared.stopped() {
                break;
            }
            match self.remote.wait(self.send(&producer, &batch, &mut place, shared, bar)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    shared.fail(error);
                    break;
                }
            }
        }
        flush(&self.remote, &producer, shared);
        // A power cut could lose answers that arrive after the sync, although the session has ended by then.
        let begun = Instant::now();
        let _ = self.remote.wait(producer.flush(LAST_WORDS));
        // The producer ends the session when every batch is in the log. Until then the session has to stay,
        // so that batches can be sent again.
        if let Err(failed) = lock(&self.journal).sync() {
            shared.fail(failed);
            std::mem::forget(producer); // dropping it would end the session, which the next run needs
            return;
        }
        let closed = self.remote.wait(producer.close(LAST_WORDS.saturating_sub(begun.elapsed())));
        match closed.left.is_empty() {
            true => {}
            false if self.doubt.is_left() => shared.doubt(),
            false => {
                if let Err(failed) = lock(&self.journal).refused() {
                    shared.fail(failed);
                }
            }
        }
    }
}

/// The input is not the one that the session file belongs to.
pub(super) fn other_input(records: u64) -> Failure {
    let what = format!(
        "the first {records} records of the input are not those that were appended with this session file: give the same input again, or another file"
    );
    Failure::usage(what)
}

fn cause(error: &chiplog::Error) -> ErrorKind {
    source(error).kind()
}

fn is_refusal(error: &chiplog::Error) -> bool {
    matches!(cause(error), ErrorKind::Full | ErrorKind::Busy)
}

/// The error of a batch that was not confirmed, with advice.
fn doubtful(error: chiplog::Error) -> Failure {
    let advice = match cause(&error) {
        ErrorKind::Full => {
            let what = format!(
                "{}; make room by `chiplog discard`, then run the same command again: it continues where this one stopped",
                source(&error)
            );
            return Failure::new(ErrorKind::Full, what);
        }
        ErrorKind::Busy => {
            let what = format!(
                "{}; run the same command again: it continues where this one stopped",
                source(&error)
            );
            return Failure::new(ErrorKind::Busy, what);
        }
        ErrorKind::SessionExpired => {
            "; what was sent and not confirmed may or may not be in the log: look at the end of the log, then append the rest of the input with a new session file"
        }
        ErrorKind::Timeout | ErrorKind::Closed | ErrorKind::Unavailable => {
            "; run the same command again: it continues where this one stopped"
        }
        _ => "",
    };
    let failure = failure(error);
    Failure::new(failure.kind(), format!("{failure}{advice}"))
}
