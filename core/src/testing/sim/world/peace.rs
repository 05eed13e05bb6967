//! Peace: once all faults have ended and the cluster has recovered, it accepts something new: an append to each log, and a session.
//!
//! Clients make no new requests then. Without this check a cluster would look well that refuses every request from now on.

use super::{Check, World};
use crate::error::{Error, ErrorKind, Result as LogResult};
use crate::record::batch::BatchBuilder;
use crate::sync::clock::Moment;
use crate::sync::completion::Appended;
use crate::testing::sim::excuse;
use crate::testing::sim::history::{Reply, What, record_of};
use crate::testing::sim::machine::Request;
use crate::types::{LogNumber, NodeId};
use std::time::Duration;

/// The number of the client that sends the requests.
const VISITOR: u32 = 907;
/// The pause between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(30);
/// How long an attempt waits for its answer, at least.
const ANSWER_MIN: Duration = Duration::from_secs(1);

impl World {
    /// Checks that the cluster accepts something new, and waits until all members have it.
    pub(in crate::testing::sim) fn accepts_new(&mut self) -> Check {
        let mut logs: Vec<LogNumber> = self.oracle.contents.summaries().keys().copied().collect();
        if self.plan.logs == 0 {
            logs.push(LogNumber::OWN);
        }
        for (n, log) in logs.into_iter().enumerate() {
            self.accepts_append(log, (u64::from(VISITOR) << 40) + ((n as u64) << 20))?;
        }
        self.opens_session()?;
        self.recovers()
    }

    /// Checks that an append to a log is acknowledged. The records of the attempts have numbers from `record` on.
    fn accepts_append(&mut self, log: LogNumber, mut record: u64) -> Check {
        let since = self.now();
        loop {
            let is_sealed = self.oracle.contents.summaries().get(&log).is_some_and(|log| log.sealed);
            if is_sealed {
                return Ok(());
            }
            let mut builder = BatchBuilder::new();
            let built = builder.push(&record_of(record)).and_then(BatchBuilder::build);
            let batch = built.map_err(|e| format!("cannot build a batch: {e}"))?;
            self.oracle.contents.proposed(log, &[record]);
            let what = What::Append { records: vec![record], session: None };
            let call = self.history.invoke(self.now(), VISITOR, log, what);
            let answer = self.try_once(Request::Append(log, batch))?;
            let reply = match &answer {
                Some((_, Ok(appended))) => Reply::Appended(Some(appended.first)),
                _ => Reply::Nothing,
            };
            self.history.answer(self.now(), call, reply);
            let refusal = match answer {
                Some((node, Ok(appended))) => return self.acknowledged(node, log, appended, &[record]),
                Some((node, Err(error))) if error.kind() == ErrorKind::Full && error.is_of_one_log() => {
                    return self.quota_refuses(node, log, &error);
                }
                Some((_, Err(error))) => Some(error),
                None => None,
            };
            record += 1;
            self.tries_again(since, &format!("append to log {log}"), refusal)?;
        }
    }

    /// Checks that a session is opened.
    fn opens_session(&mut self) -> Check {
        let (since, log) = (self.now(), self.main_log());
        loop {
            let refusal = match self.try_once(Request::OpenSession(log))? {
                Some((_, Ok(_))) => return Ok(()),
                Some((_, Err(error))) => Some(error),
                None => None,
            };
            let is_crowded = refusal.as_ref().is_some_and(|e| e.kind() == ErrorKind::TooManySessions);
            if is_crowded && self.may_be_crowded() {
                self.oracle.excuse(excuse::CROWDED);
                return Ok(());
            }
            self.tries_again(since, &format!("session of log {log}"), refusal)?;
        }
    }

    /// Waits before another attempt.
    ///
    /// # Errors
    /// There was enough time since `since`.
    fn tries_again(&mut self, since: Moment, what: &str, refusal: Option<Error>) -> Check {
        let most = self.plan.election_timeout * 20;
        if self.now().since(since) > most {
            let ails = self.ails();
            return Err(format!(
                "after all faults have ended no {what} is accepted within {most:?}; last answer: {refusal:?}; {ails}"
            ));
        }
        let until = self.now().plus(RETRY_DELAY);
        while self.now() < until && self.step()? {}
        Ok(())
    }

    /// Sends a request to the leader and waits for the answer. None: there is no leader, or no answer in time.
    fn try_once(&mut self, request: Request) -> Check<Option<(NodeId, LogResult<Appended>)>> {
        let wait = ANSWER_MIN.max(self.plan.election_timeout * 2);
        let until = self.now().plus(wait);
        let idle_max_ms = self.plan.session_idle_max.as_millis() as u64;
        let Some(leader) = self.leader() else { return Ok(None) };
        let Some(machine) = self.machine(leader) else { return Ok(None) };
        let ticket = match machine.submit(request, wait, idle_max_ms) {
            Ok(ticket) => ticket,
            Err(error) => return Ok(Some((leader, Err(error)))),
        };
        self.wake_called(leader);
        while self.now() < until && self.step()? {
            if let Some(answer) = ticket.poll() {
                return Ok(Some((leader, answer)));
            }
        }
        Ok(None)
    }
}
