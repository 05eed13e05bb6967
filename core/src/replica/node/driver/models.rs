//! Every interleaving of a node's two threads, threads that append, and threads that close, over a stub of a node. A
//! lost wake-up is a deadlock here, and so is an append without an answer. Time does not pass.

use super::*;
use crate::cluster::options::Bootstrap;
use crate::cluster::transport::{Envelope, Inbox, Transport};
use crate::replica::queue::proposals::{Proposal, QueueLimits, WaitLimit};
use crate::sync::completer::Completer;
use crate::sync::completion::Ticket;
use crate::types::{Index, NodeId};
use loom::thread;

#[derive(Debug)]
struct Silence;

impl Transport for Silence {
    fn attach(&self, _: NodeId, _: Inbox) {}
    fn detach(&self, _: NodeId) {}
    fn send(&self, _: Envelope) {}
}

struct Still;

impl<N> Watch<N> for Still {
    fn now(&self) -> Moment {
        Moment(0)
    }
}

/// Writes its appends, and answers each once a sync that began later is recorded.
struct Stub {
    queue: Arc<ProposalQueue>,
    alone: bool,
    fails: bool,
    written: Vec<Completer>,
    syncing: bool,
    answered: u64,
}

impl DrivenNode for Stub {
    /// The number of written appends that it covers, and whether it fails.
    type Job = (usize, bool);

    fn run(job: &(usize, bool)) -> Result<()> {
        if job.1 { Err(Error::new(ErrorKind::Io, "the disk is broken")) } else { Ok(()) }
    }

    fn queue(&self) -> &Arc<ProposalQueue> {
        &self.queue
    }

    fn is_leader(&self) -> bool {
        true
    }

    fn is_alone(&self) -> bool {
        self.alone
    }

    fn accepts_proposals(&self) -> bool {
        true
    }

    fn committed(&self) -> EntryIndex {
        EntryIndex(self.answered)
    }

    fn is_busy(&self, _: Moment) -> bool {
        !self.written.is_empty()
    }

    fn awaits_commit(&self, _: Moment) -> bool {
        !self.written.is_empty()
    }

    fn step(&mut self, _: Moment, work: Work) -> Result<()> {
        for item in work.items {
            if let Proposal::Data(gathered) = item {
                self.written.push(gathered.into_pieces(None).1);
            }
        }
        Ok(())
    }

    fn begin_sync(&mut self, _: Moment) -> Option<(usize, bool)> {
        assert!(!self.syncing, "one sync at a time");
        self.syncing = !self.written.is_empty();
        self.syncing.then_some((self.written.len(), self.fails))
    }

    fn end_sync(&mut self, _: Moment, job: &(usize, bool)) -> Result<()> {
        assert!(std::mem::take(&mut self.syncing), "a sync is recorded once");
        self.answered += job.0 as u64;
        for completer in self.written.drain(..job.0) {
            completer.answer(Outcome::Placed { first: Index(1) });
        }
        Ok(())
    }

    fn deadline(&self, _: Moment) -> Option<Moment> {
        None
    }

    fn prove_now(&mut self, _: Moment) {}

    fn abdicate(&mut self) {}

    fn end(&mut self) {
        assert!(self.written.is_empty(), "all written appends are synced before the end");
    }

    fn poison(&mut self, cause: &Error) {
        self.queue.refuse(cause.clone());
        for completer in self.written.drain(..) {
            completer.answer(Outcome::Failed(cause.clone()));
        }
    }

    fn settle(&mut self) {}

    fn dismiss(&mut self) {}
}

/// Runs two threads until the queue is closed, in all combinations with a few callers.
fn model(alone: bool, fails: bool, callers: fn(&Arc<ProposalQueue>)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let limits =
            QueueLimits { block_bytes: 1000, bytes: 1000, appends: 10, capacity: None, inbox_bytes: 0 };
        let queue = Arc::new(ProposalQueue::new(limits, 0));
        let stub =
            Stub { queue: queue.clone(), alone, fails, written: Vec::new(), syncing: false, answered: 0 };
        let cluster = ClusterOptions::new(NodeId(1), Bootstrap::Init, Arc::new(Silence));
        let driver = Arc::new(Driver::new(stub, cluster, Still, true));
        let threads = [0, 1].map(|_| {
            let driver = driver.clone();
            thread::spawn(move || driver.run())
        });
        callers(&queue);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(driver.lock().silent && driver.lock().ended.is_some());
    });
}

fn append(queue: &ProposalQueue) -> Ticket {
    queue
        .push_record(
            crate::types::LogNumber::OWN,
            b"x",
            crate::record::batch::Stamp::default(),
            WaitLimit::None,
        )
        .unwrap()
}

/// The second append can be queued while the first one is synced: the other thread has to take it, or be woken for it.
#[test]
fn loom_appends_are_answered_whichever_thread_syncs() {
    model(false, false, |queue| {
        let tickets = [append(queue), append(queue)];
        tickets.into_iter().for_each(|ticket| _ = ticket.wait().unwrap());
        queue.close();
    });
}

/// Appends that were submitted before the close are committed, at any stage of a sync.
#[test]
fn loom_close_commits_submitted_appends() {
    model(false, false, |queue| {
        let ticket = append(queue);
        queue.close();
        ticket.wait().unwrap();
    });
}

#[test]
fn loom_close_of_a_log_on_its_own() {
    model(true, false, |queue| {
        let ticket = append(queue);
        queue.close();
        ticket.wait().unwrap();
    });
}

/// A failed sync ends both threads, and every caller is informed.
#[test]
fn loom_failed_sync_fails_every_caller() {
    model(false, true, |queue| {
        let first = append(queue);
        let second = queue.push_record(
            crate::types::LogNumber::OWN,
            b"y",
            crate::record::batch::Stamp::default(),
            WaitLimit::None,
        );
        assert!(first.wait().is_err());
        if let Ok(second) = second {
            assert!(second.wait().is_err());
        }
    });
}
