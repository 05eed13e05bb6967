//! Appends to servers. Each worker has a producer, which is a session and a connection of its own: what is
//! unconfirmed after a failure is sent again, and is in the log once.

use super::pump::{Shared, Sink, Work};
use super::stall;
use super::stall::{DELIVERY, FULL_MAX, STOP_CHECK};
use crate::connect::remote::{Remote, failure};
use chiplog::{Batch, ErrorKind};
use chiplog_net::client::{Producer, ProducerOptions};
use crossbeam_channel::Receiver;
use indicatif::ProgressBar;
use std::sync::Arc;
use std::time::Duration;

/// How long batches in flight have when the command is to end.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(5);

/// The servers that the records go to.
pub(super) struct Servers {
    pub(super) remote: Remote,
    pub(super) options: ProducerOptions,
}

impl Servers {
    pub(super) fn new(remote: Remote, plan: &super::Plan) -> Self {
        let mut options = ProducerOptions::default();
        options.codec = plan.codec;
        options.batch_records = plan.batch_records;
        options.inflight_max = plan.in_flight.min(1024) as u16;
        (options.delivery_timeout, options.full_max) = (DELIVERY, FULL_MAX);
        options.block_max = STOP_CHECK;
        options.ends_at_failure = true; // what is in the log is the beginning of the input
        Self { remote, options }
    }
}

impl Sink for Servers {
    fn begin(&self, shared: &Arc<Shared>) {
        self.remote.spawn(stall::report(shared.clone(), self.remote.given_servers()));
    }

    fn work(&self, shared: &Arc<Shared>, jobs: &Receiver<Work>, bar: &ProgressBar) {
        let Some(producer) = begin(&self.remote, &self.options, shared) else { return };
        while let Ok(Work::Batch(batch, _)) = jobs.recv() {
            if shared.stopped() {
                break;
            }
            if let Err(error) = self.remote.wait(send(&producer, &batch, shared, bar)) {
                shared.fail(failure(source(&error).clone()));
                break;
            }
        }
        flush(&self.remote, &producer, shared);
        let closed = self.remote.wait(producer.close(LAST_WORDS));
        if closed.left.iter().any(|record| record.in_doubt) {
            shared.doubt();
        }
    }
}

/// A producer of one worker. None: it could not begin, and `shared` knows why.
pub(super) fn begin(remote: &Remote, options: &ProducerOptions, shared: &Shared) -> Option<Producer> {
    match remote.wait_for_leader(remote.client.producer(options.clone())) {
        Ok(producer) => Some(producer),
        Err(error) => {
            shared.fail(failure(error));
            None
        }
    }
}

/// The error that ended the producer.
pub(super) fn source(error: &chiplog::Error) -> &chiplog::Error {
    let source = std::error::Error::source(error).and_then(|e| e.downcast_ref::<chiplog::Error>());
    source.filter(|_| error.kind() == ErrorKind::Closed).unwrap_or(error)
}

/// Waits until everything that was sent is answered, or the command is to end.
pub(super) fn flush(remote: &Remote, producer: &Producer, shared: &Shared) {
    while producer.buffered_bytes() > 0 && !shared.stopped() {
        // Every failure is reported through the record or the batch that it concerns.
        let _ = remote.wait(producer.flush(STOP_CHECK));
    }
}

/// Passes a batch's records to the producer one by one. Waits while there is no room.
async fn send(
    producer: &Producer,
    batch: &Batch,
    shared: &Arc<Shared>,
    bar: &ProgressBar,
) -> chiplog::Result<()> {
    let records = batch.records()?;
    let count = records.iter().len();
    for (n, record) in records.iter().enumerate() {
        loop {
            let (to, bar, bytes, last) = (shared.clone(), bar.clone(), record.len() as u64, n + 1 == count);
            let settled = move |result: chiplog::Result<_>| {
                to.settle();
                match result {
                    Ok(appended) => {
                        to.tally.add(appended, bytes, last);
                        bar.inc(bytes + 1); // one newline
                    }
                    // It is in the log; its index is no longer known.
                    Err(error) if error.kind() == ErrorKind::SequenceForgotten => {
                        to.tally.add_forgotten(1, bytes, last);
                        bar.inc(bytes + 1);
                    }
                    Err(error) => {
                        // No answer arrived: the append may have been carried out.
                        if error.kind() == ErrorKind::Timeout {
                            to.doubt();
                        }
                        to.fail(failure(source(&error).clone()));
                    }
                }
            };
            shared.take();
            match producer.send_with(record, settled).await {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    shared.untake();
                    if shared.stopped() {
                        return Ok(());
                    }
                }
                Err(error) => {
                    shared.untake();
                    return Err(error);
                }
                Ok(()) => break,
            }
        }
    }
    Ok(())
}
