//! Helper: one thread that does the background work of several logs on one disk. Groups of named logs share it.
//!
//! ```text
//!  logs of a disk:   urgency of what waits         the thread
//!  group 1           Ahead                          the most urgent job of any log, one after the other;
//!  group 2           Awaited   <── done first       of equal urgency each log has its turn
//!  group 3           Later
//! ```
//!
//! A file that is being filled ahead of need takes long. Between its pieces the thread does what other logs wait for:
//! [`Helper::give_way`].
//!
//! Invariants:
//! - work that an append waits for is done before all other work, of whichever log;
//! - work that can wait is done after at most [`PASSED_MAX`] other jobs that nobody waits for;
//! - a job that panics ends the work of its own log alone;
//! - a log that has left has no job running, and its directory's lock is released;
//! - a log that leaves waits for its own job at most, however long a job of another log takes;
//! - the thread ends with the last log.
//!
//! Must not know: what the work is.

use crate::disk::Lock;
use crate::disk::mmap::ForkGuard;
use crate::error::{Error, Result};
use crate::sync::threads::spawn;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{JoinHandle, ThreadId};

/// The most jobs that are preferred to work that can wait.
const PASSED_MAX: u32 = 16;

/// How urgent the next job of a log is; the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// A thread or an append waits for it.
    Awaited,
    /// Short, or it frees space.
    Short,
    /// Files ahead of need.
    Ahead,
    /// It can wait.
    Later,
}

/// The work of one log.
pub(crate) trait HelperWork: Send + Sync {
    /// None: there is nothing to do.
    fn urgency(&self) -> Option<Urgency>;
    /// Does the next job, if there is one.
    fn work(&self);
    /// No more work is to be done.
    fn is_stopped(&self) -> bool;
    /// Gives up the work that is not done yet. No call waits for that any more.
    fn stop(&self);
}

/// The helper threads of logs that share them, by disk.
#[derive(Clone, Default)]
pub(crate) struct Helpers(Arc<Mutex<BTreeMap<u64, Weak<Helper>>>>);

impl fmt::Debug for Helpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Helpers")
    }
}

impl Helpers {
    /// Has the thread of a disk do the work of the log at `path`, until that is stopped. It holds `hold` until then.
    ///
    /// # Errors
    /// `Io`: the thread could not be started.
    pub(crate) fn join(
        &self,
        device: u64,
        path: &Path,
        work: Arc<dyn HelperWork>,
        hold: Arc<dyn Lock>,
    ) -> Result<Share> {
        let mut helpers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let panicked = Arc::new(AtomicBool::new(false));
        let member = Member { id: 0, work, panicked: panicked.clone(), is_busy: false, _hold: hold };
        let running = helpers.get(&device).and_then(Weak::upgrade).filter(|helper| !helper.fork.is_child());
        let member = match running {
            Some(helper) => match helper.admit(member) {
                Ok(id) => return Ok(Share { helper, id, panicked }),
                Err(member) => *member,
            },
            None => member,
        };
        let fork = ForkGuard::new().map_err(|e| Error::io("guard against fork", path, e))?;
        let helper = Arc::new(Helper {
            fork,
            members: Mutex::default(),
            left: Condvar::new(),
            is_woken: Mutex::new(false),
            woken: Condvar::new(),
            own: OnceLock::new(),
            thread: Mutex::default(),
        });
        let Ok(id) = helper.admit(member) else { unreachable!("it has not ended") };
        let thread = spawn("chiplog-helper", path, {
            let helper = helper.clone();
            move || helper.run()
        })?;
        *helper.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        helpers.insert(device, Arc::downgrade(&helper));
        Ok(Share { helper, id, panicked })
    }
}

/// One log's share of a helper thread.
pub(crate) struct Share {
    helper: Arc<Helper>,
    id: u64,
    panicked: Arc<AtomicBool>,
}

impl Share {
    pub(crate) fn helper(&self) -> &Arc<Helper> {
        &self.helper
    }

    /// Waits until no job of the log runs any more, after its work was stopped. It does not wait for jobs of other logs. The last
    /// log also waits until the thread has ended. False: one of its jobs has panicked.
    pub(crate) fn leave(self) -> bool {
        let helper = &self.helper;
        let mut members = helper.members();
        let left = loop {
            let Some(at) = members.all.iter().position(|member| member.id == self.id) else { break None };
            let member = &members.all[at];
            if !member.is_busy && member.work.is_stopped() {
                let left = members.all.remove(at);
                members.has_ended |= members.all.is_empty();
                break Some(left);
            }
            members = helper.left.wait(members).unwrap_or_else(PoisonError::into_inner);
        };
        let has_ended = members.has_ended;
        drop(members);
        drop(left); // unlocks the directory
        helper.wake();
        let thread = helper.thread.lock().unwrap_or_else(PoisonError::into_inner).take_if(|_| has_ended);
        let is_sound = thread.is_none_or(|thread| thread.join().is_ok());
        is_sound && !self.panicked.load(Ordering::Relaxed)
    }
}

/// A log whose work is done.
struct Member {
    id: u64,
    work: Arc<dyn HelperWork>,
    panicked: Arc<AtomicBool>,
    is_busy: bool,
    _hold: Arc<dyn Lock>,
}

#[derive(Default)]
struct Members {
    all: Vec<Member>,
    last_id: u64,
    /// Where the search for the next job begins, so that each log has its turn.
    turn: usize,
    /// How many jobs were done since one that can wait.
    passed: u32,
    /// The thread does a job within another one.
    is_within: bool,
    has_ended: bool,
}

/// The thread of a disk.
pub(crate) struct Helper {
    fork: ForkGuard,
    members: Mutex<Members>,
    /// Notified when a log has left, or can leave.
    left: Condvar,
    /// Something may have changed since the last search. No other lock is taken while this one is held.
    is_woken: Mutex<bool>,
    woken: Condvar,
    own: OnceLock<ThreadId>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Helper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Helper")
    }
}

/// The next job: the log's number and its work.
type Next = (u64, Arc<dyn HelperWork>);

impl Helper {
    /// There may be work.
    pub(crate) fn wake(&self) {
        *self.is_woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.woken.notify_one();
    }

    /// Called between the pieces of a long job: does what other logs wait for. On another thread it does nothing.
    pub(crate) fn give_way(&self) {
        if self.own.get() != Some(&std::thread::current().id()) {
            return;
        }
        if std::mem::replace(&mut self.members().is_within, true) {
            return; // within a job that is itself awaited
        }
        // One job for each log at most: others that always have such a job must not hold up the log of this one.
        let turns = self.members().all.len();
        for _ in 0..turns {
            let next = self.members().next(Urgency::Awaited); // the lock ends here
            let Some(next) = next else { break };
            self.carry_out(next);
        }
        self.members().is_within = false;
    }

    /// Whether this thread does what another log waits for, within a long job.
    pub(crate) fn is_within_another(&self) -> bool {
        self.own.get() == Some(&std::thread::current().id()) && self.members().is_within
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a log, and returns its number; or the log, if the thread ends.
    fn admit(&self, mut member: Member) -> std::result::Result<u64, Box<Member>> {
        let mut members = self.members();
        if members.has_ended {
            return Err(Box::new(member));
        }
        members.last_id += 1;
        member.id = members.last_id;
        let id = member.id;
        members.all.push(member);
        drop(members);
        self.wake();
        Ok(id)
    }

    fn run(&self) {
        /// If this thread panics, no log waits for it.
        struct Ended<'a>(&'a Helper);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                let mut members = self.0.members();
                members.has_ended = true;
                let left = std::mem::take(&mut members.all);
                drop(members);
                left.iter().for_each(|member| member.work.stop());
                drop(left);
                self.0.left.notify_all();
            }
        }
        let _ = self.own.set(std::thread::current().id());
        let _ended = Ended(self);
        loop {
            *self.is_woken.lock().unwrap_or_else(PoisonError::into_inner) = false;
            if self.let_stopped_leave() {
                return;
            }
            let next = self.members().next(Urgency::Later);
            if let Some(next) = next {
                self.carry_out(next);
                continue;
            }
            let mut is_woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
            while !*is_woken {
                is_woken = self.woken.wait(is_woken).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Removes the logs whose work was stopped. True: none is left.
    fn let_stopped_leave(&self) -> bool {
        let mut members = self.members();
        let (left, all): (Vec<_>, Vec<_>) =
            std::mem::take(&mut members.all).into_iter().partition(|member| member.work.is_stopped());
        members.all = all;
        let is_empty = members.all.is_empty();
        members.has_ended |= is_empty;
        if !left.is_empty() {
            drop(left); // unlocks the directories, before those that wait go on
            self.left.notify_all();
        }
        is_empty
    }

    fn carry_out(&self, (id, work): Next) {
        let done = catch_unwind(AssertUnwindSafe(|| work.work()));
        if done.is_err() {
            work.stop();
        }
        let mut members = self.members();
        if let Some(member) = members.all.iter_mut().find(|member| member.id == id) {
            member.is_busy = false;
            member.panicked.fetch_or(done.is_err(), Ordering::Relaxed);
        }
        drop(members);
        self.left.notify_all(); // the log may wait to leave
    }
}

impl Members {
    /// The most urgent job, if it is at least this urgent, of the log whose turn it is.
    fn next(&mut self, least: Urgency) -> Option<Next> {
        let count = self.all.len();
        let order = (0..count).map(|n| (self.turn + n) % count);
        let waiting: Vec<(Urgency, usize)> = order
            .filter(|at| !self.all[*at].is_busy)
            .filter_map(|at| self.all[at].work.urgency().map(|urgency| (urgency, at)))
            .filter(|(urgency, _)| *urgency <= least)
            .collect();
        let of = |wanted: Urgency| waiting.iter().find(|(urgency, _)| *urgency == wanted).copied();
        let best = waiting.iter().map(|(urgency, _)| *urgency).min()?;
        let is_late = best != Urgency::Awaited && self.passed >= PASSED_MAX;
        let (urgency, at) = of(Urgency::Later).filter(|_| is_late).or_else(|| of(best))?;
        self.passed = if urgency == Urgency::Later { 0 } else { self.passed.saturating_add(1) };
        self.turn = at + 1;
        let member = &mut self.all[at];
        member.is_busy = true;
        Some((member.id, member.work.clone()))
    }
}

#[cfg(test)]
mod tests;
