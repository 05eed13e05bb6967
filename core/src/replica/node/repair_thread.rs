//! Repair thread: the writer thread of a log that opens damaged. It repairs the log, and then waits for the threads that
//! run it. The handle stays the same.
//!
//! Must not know: how damage is repaired, how a log is run.

use super::driver::Stopwatch;
use super::shared::Shared;
use super::{fail, poisoned};
use crate::cluster::transport::Envelope;
use crate::error::{Error, Result};
use crate::read::positions::closed;
use crate::replica::open::RecoveredLog;
use crate::replica::queue::inbox::InboxEvent;
use crate::replica::queue::proposals::Work;
use crate::replica::repair::offline::Repairing;
use crate::sync::completion::Outcome;
use std::sync::atomic::Ordering;

/// Repairs the log, and then runs it with `go_on`, which returns when the handle is closed. All callers are answered
/// when this returns.
pub(crate) fn run(
    shared: &Shared,
    watch: Stopwatch,
    mut repairing: Box<Repairing>,
    go_on: impl FnOnce(RecoveredLog) -> Result<()>,
) {
    let cluster = repairing.damaged().cluster.clone();
    let ended = match shared.repair(watch, &mut repairing) {
        Ok(Some(opened)) => {
            drop(repairing);
            go_on(opened)
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(cause) = ended {
        tracing::error!(%cause, "the log could not be repaired");
        let error = shared.published.poison.get_or_init(|| poisoned(&cause)).clone();
        shared.queue.refuse(error);
    }
    cluster.transport.detach(cluster.node);
    shared.refuse_the_rest();
    // The node's driver may have set the reason already.
    shared.view.close(shared.published.poison.get().cloned().unwrap_or_else(closed));
}

impl Shared {
    /// Repairs until the log opens (returns it), or the handle is closed (returns None).
    fn repair(&self, watch: Stopwatch, repairing: &mut Repairing) -> Result<Option<RecoveredLog>> {
        let transport = repairing.damaged().cluster.transport.clone();
        loop {
            let work = self.queue.take(true);
            let closed = work.closed;
            let messages = self.sort(work, &repairing.refusal());
            if closed {
                return Ok(None);
            }
            let now = watch.now();
            let opened = repairing.step(now, messages)?;
            self.published.counters.repaired.store(repairing.repaired, Ordering::Relaxed);
            self.published.counters.damaged.store(repairing.repaired + 1, Ordering::Relaxed);
            if let Some(opened) = opened {
                self.published.counters.damaged.store(repairing.repaired, Ordering::Relaxed);
                return Ok(Some(opened));
            }
            self.published.show(repairing.status());
            self.published.hold(Some(repairing.refusal()));
            repairing.take_outgoing().into_iter().for_each(|envelope| transport.send(envelope));
            let now = watch.now();
            self.queue.wait(repairing.deadline(now).map(|at| at.since(now)));
        }
    }

    /// Refuses everything that cannot be done during a repair. Returns the messages.
    fn sort(&self, work: Work, refusal: &Error) -> Vec<Envelope> {
        for item in work.items {
            fail(item, refusal);
        }
        let mut messages = Vec::new();
        for event in work.events {
            match event {
                InboxEvent::Message(envelope) => messages.push(envelope),
                InboxEvent::AdminRequest(_, _, completer) => {
                    completer.answer(Outcome::Failed(refusal.clone()))
                }
                InboxEvent::JobEnded => {}
            }
        }
        messages
    }

    fn refuse_the_rest(&self) {
        self.queue.stop_receiving();
        let why = self.published.poison.get().cloned().unwrap_or_else(closed);
        self.queue.refuse(why.clone());
        // Of a shared group each call takes a part.
        loop {
            let work = self.queue.take(true);
            if work.items.is_empty() && work.events.is_empty() {
                return;
            }
            self.sort(work, &why);
        }
    }
}
