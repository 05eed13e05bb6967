//! Calls: the open calls of one connection, and how its client reads their answers.
//!
//! ```text
//! service ──> Answer (a body) ──> pieces ──> HTTP/2, which drops each once it is sent
//!                │ since … a piece is pending, and none was dropped
//!                └────────────> Calls: checked by the connection's timer
//! ```
//!
//! A check ends answers that are pending for too long ([`answer`]). It tells the connection whether it is idle, or must
//! end because an answer that was cut is still not read.
//!
//! Invariants:
//! - A call is open until its answer has ended and HTTP/2 holds no piece of it. The last piece can also be pending in a
//!   window that its client never opens, and meanwhile it holds its source, such as a segment's mapping.
//! - A check never waits for an answer that is being polled: that one is not stuck.
//!
//! Must not know: sockets, services.

mod answer;

use crate::listener::auth::tokens::Resource;
use crate::listener::bill::Bill;
use answer::{Cut, Handed, PRESSED_PART};
use http::Response;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::time::Instant;
use tonic::body::Body;

/// The number of checks within the shortest limit.
const LOOKS: u32 = 4;
/// The idle limit of a connection on which no call was ever let in.
const UNUSED: Duration = Duration::from_secs(60);
/// Without limits no check is needed.
const NEVER: Duration = Duration::from_secs(3600);

/// The calls of one connection.
#[derive(Debug)]
pub(crate) struct Calls {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    open: usize,
    /// Open calls that do not keep the connection's place.
    light: usize,
    /// Since when no call is open, if none is. A rejected call changes nothing.
    idle_since: Instant,
    /// A call was let in.
    used: bool,
    /// Open calls that were rejected.
    refused: usize,
    /// Weak: an answer holds its call, which removes it from here.
    answers: BTreeMap<u64, Weak<Handed>>,
    next: u64,
}

/// The result of a check.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// The number of answers that were cut.
    pub(crate) cut: usize,
    /// How the connection continues.
    pub(crate) verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Continue; the next check is due at this time.
    On(Instant),
    /// There was no call for too long.
    Idle,
    /// An answer that was cut is still not read.
    Stuck,
}

impl Calls {
    pub(crate) fn new() -> Arc<Self> {
        let state = State {
            open: 0,
            light: 0,
            idle_since: Instant::now(),
            used: false,
            refused: 0,
            answers: BTreeMap::new(),
            next: 0,
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    // Nothing panics under the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more call, until the returned value is dropped.
    pub(crate) fn begin(self: &Arc<Self>, bill: Bill, weight: Weight) -> Call {
        let mut state = self.state();
        state.open += usize::from(weight != Weight::Quiet);
        state.light += usize::from(weight == Weight::Light);
        drop(state);
        Call { calls: self.clone(), weight, bill }
    }

    /// Whether an open call was let in and keeps the connection's place.
    pub(crate) fn has_one_let_in(&self) -> bool {
        let state = self.state();
        state.open > state.refused + state.light
    }

    /// An open call of full weight was rejected.
    pub(crate) fn refused(&self) {
        self.state().refused += 1;
    }

    /// Checks the calls. `idle`: the time without a call; `slow`: how long an answer may be pending. None: without
    /// limit.
    pub(crate) fn look(&self, now: Instant, idle: Option<Duration>, slow: Option<Duration>) -> Look {
        let idle = idle.map(|idle| if self.state().used { idle } else { idle.min(UNUSED) });
        let shortest = idle.into_iter().chain(slow).min().unwrap_or(NEVER);
        let mut next = now + (shortest.min(NEVER) / LOOKS).max(Duration::from_millis(1));
        let answers: Vec<_> = {
            let state = self.state();
            if state.open == 0
                && let Some(until) = idle.and_then(|idle| state.idle_since.checked_add(idle))
            {
                if now >= until {
                    return Look { cut: 0, verdict: Verdict::Idle };
                }
                next = next.min(until);
            }
            state.answers.values().filter_map(Weak::upgrade).collect()
        };
        // Not under the lock: the references above may be the last ones.
        let (mut cut, mut stuck) = (0, false);
        for answer in answers {
            let Some(slow) = slow else { continue };
            let payer = answer.payer();
            if payer.is_some() {
                next = next.min(now + (slow / PRESSED_PART / 2).max(Duration::from_millis(1)));
            }
            let [requests, answers] = [Resource::Requests, Resource::Answers]
                .map(|resource| payer.and_then(|p| p.pressure(resource)));
            match answer.look(now, slow, answers, requests.is_some()) {
                Cut::Now => cut += 1,
                Cut::Before { is_stuck } => stuck |= is_stuck,
                Cut::Not => {}
            }
        }
        let verdict = if stuck { Verdict::Stuck } else { Verdict::On(next) };
        Look { cut, verdict }
    }
}

/// How an open call counts for its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// The connection is not idle, and keeps its place.
    Full,
    /// The connection is not idle, and does not keep its place.
    Light,
    /// It does not count.
    Quiet,
}

/// An open call.
#[derive(Debug)]
pub(crate) struct Call {
    calls: Arc<Calls>,
    weight: Weight,
    bill: Bill,
}

/// In an answer's extensions: its memory is paid for where it is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaidFor;

impl Call {
    /// Returns its answer, tracked, and paid for unless that is done where it is made.
    pub(crate) fn answer(self, response: Response<Body>) -> Response<Body> {
        let is_paid_for = response.extensions().get::<PaidFor>().is_some();
        response.map(|body| self.watched(body, is_paid_for))
    }

    fn watched(self, body: Body, is_paid_for: bool) -> Body {
        if http_body::Body::is_end_stream(&body) {
            return body;
        }
        let calls = self.calls.clone();
        let mut state = calls.state();
        state.next += 1;
        let id = state.next;
        let handed = Handed::new(id, self, body, is_paid_for);
        state.answers.insert(id, Arc::downgrade(&handed));
        drop(state);
        handed.into_body()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.calls.state();
        if self.weight == Weight::Quiet {
            return;
        }
        state.open -= 1;
        state.light -= usize::from(self.weight == Weight::Light);
        if self.weight == Weight::Full && state.refused > 0 {
            state.refused -= 1;
        } else {
            state.used = true;
            if state.open == 0 {
                state.idle_since = Instant::now();
            }
        }
    }
}

#[cfg(test)]
mod tests;
