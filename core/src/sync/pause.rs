//! Pauses: how a thread sleeps, and what time it is for it, where a program waits for something that other threads do. In a simulation such
//! a thread runs only while the simulation lets it, and its time is the simulation's.
//!
//! Must not know: what is waited for.

use std::time::{Duration, Instant};

/// Blocks this thread for so long.
pub(crate) fn sleep(time: Duration) {
    #[cfg(feature = "testing")]
    if played::pause(Some(time)) {
        return;
    }
    std::thread::sleep(time);
}

/// The time.
pub(crate) fn now() -> Instant {
    #[cfg(feature = "testing")]
    if let Some(now) = played::now() {
        return now;
    }
    Instant::now()
}

#[cfg(feature = "testing")]
pub(crate) use played::Played;

#[cfg(feature = "testing")]
pub(super) mod played {
    //! Threads that a simulation plays: one at a time, each from one pause to the next.

    use crate::error::Result;
    use crate::sync::clock::Moment;
    use crate::sync::threads::spawn;
    use std::cell::RefCell;
    use std::path::Path;
    use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
    use std::thread::JoinHandle;
    use std::time::{Duration, Instant};

    /// A thread that waits for something else than time looks again after this time.
    const LOOK: Duration = Duration::from_millis(2);

    /// In place of the time at which a thread goes on that has ended.
    const ENDED: Moment = Moment(u64::MAX);

    thread_local! {
        static ME: RefCell<Option<Arc<Baton>>> = const { RefCell::new(None) };
    }

    /// The simulation and a thread pass this to each other.
    #[derive(Debug)]
    struct Baton {
        turn: Mutex<Turn>,
        changed: Condvar,
        /// The origin of virtual time.
        epoch: Instant,
    }

    #[derive(Debug)]
    struct Turn {
        is_running: bool,
        /// It is to end at once.
        is_stopped: bool,
        now: Moment,
        wakes_at: Moment,
    }

    impl Baton {
        fn lock(&self) -> MutexGuard<'_, Turn> {
            self.turn.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn wait(&self, is_running: bool) -> MutexGuard<'_, Turn> {
            let goes_on = |turn: &mut Turn| turn.is_running != is_running;
            self.changed.wait_while(self.lock(), goes_on).unwrap_or_else(PoisonError::into_inner)
        }

        fn set_running(&self, mut turn: MutexGuard<'_, Turn>, is_running: bool) {
            turn.is_running = is_running;
            drop(turn);
            self.changed.notify_all();
        }
    }

    /// The thread of a process that ends.
    struct Stopped;

    /// Waits until the simulation lets this thread go on: after this time, if one is given, or in a while. False: it is no such thread.
    pub(in crate::sync) fn pause(time: Option<Duration>) -> bool {
        let Some(baton) = ME.with_borrow(Clone::clone) else { return false };
        let mut turn = baton.lock();
        turn.wakes_at = turn.now.plus(time.unwrap_or(LOOK));
        baton.set_running(turn, false);
        let is_stopped = baton.wait(true).is_stopped;
        if is_stopped {
            std::panic::resume_unwind(Box::new(Stopped));
        }
        true
    }

    pub(super) fn now() -> Option<Instant> {
        let baton = ME.with_borrow(Clone::clone)?;
        let now = baton.lock().now;
        Some(baton.epoch + Duration::from_nanos(now.0))
    }

    /// A call on a thread of its own, which a simulation plays.
    #[derive(Debug)]
    pub(crate) struct Played<T> {
        baton: Arc<Baton>,
        thread: Option<JoinHandle<()>>,
        result: Arc<Mutex<Option<T>>>,
    }

    impl<T: Send + 'static> Played<T> {
        /// A call that begins with the next [`Self::play`].
        pub(crate) fn new(call: impl FnOnce() -> T + Send + 'static) -> Result<Self> {
            let turn =
                Turn { is_running: false, is_stopped: false, now: Moment::START, wakes_at: Moment::START };
            let (turn, changed, epoch) = (Mutex::new(turn), Condvar::new(), Instant::now());
            let baton = Arc::new(Baton { turn, changed, epoch });
            let (own, result) = (baton.clone(), Arc::new(Mutex::new(None)));
            let there = result.clone();
            let run = move || {
                /// Gives the turn back, also after a panic.
                struct Ends(Arc<Baton>);
                impl Drop for Ends {
                    fn drop(&mut self) {
                        let mut turn = self.0.lock();
                        turn.wakes_at = ENDED;
                        self.0.set_running(turn, false);
                    }
                }
                let ends = Ends(own.clone());
                if own.wait(true).is_stopped {
                    std::panic::resume_unwind(Box::new(Stopped));
                }
                ME.set(Some(own));
                let result = call();
                *there.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                ME.set(None);
                drop(ends);
            };
            let thread = spawn("chiplog-played", Path::new("a simulation"), run)?;
            Ok(Self { baton, thread: Some(thread), result })
        }

        /// Lets it run up to its next pause, if it wants to run by now. The result, once it has one.
        pub(crate) fn play(&mut self, now: Moment) -> Option<T> {
            let mut turn = self.baton.lock();
            if turn.wakes_at > now {
                return None;
            }
            turn.now = now;
            self.baton.set_running(turn, true);
            drop(self.baton.wait(false));
            if self.baton.lock().wakes_at != ENDED {
                return None; // it pauses
            }
            if let Err(panic) = self.thread.take()?.join() {
                std::panic::resume_unwind(panic);
            }
            self.result.lock().unwrap_or_else(PoisonError::into_inner).take()
        }
    }

    impl<T> Drop for Played<T> {
        fn drop(&mut self) {
            let Some(thread) = self.thread.take() else { return };
            let mut turn = self.baton.lock();
            turn.is_stopped = true;
            self.baton.set_running(turn, true);
            drop(thread.join());
        }
    }
}
