//! Futex: one 32-bit word that threads can sleep on. Used where many threads wait: for a block, and at the tail. (The
//! writer's queue and the helper thread have few waiters and use condition variables.)
//!
//! Owns: the system calls, their interruptions and time-outs. Must not know: the meaning of the word.
//!
//! The reason for it instead of a mutex with a condition variable: one block can wake more than 128 threads. With a
//! condition variable each of them would then queue for the mutex; here they return from one system call and run on.
//!
//! No wake-up is lost if it is used like this: the waker **first** changes the word, **then** wakes; the waiter sleeps
//! only **while** the word has the value it last saw. The kernel compares and puts the thread to sleep in one step with
//! respect to wakers, so a change in between makes [`Futex::wait`] return at once.
//!
//! Under `cfg(loom)` a mutex and a condition variable of loom model the kernel.

pub(crate) use imp::Futex;

#[cfg(not(loom))]
mod imp {
    use rustix::io::Errno;
    use rustix::thread::futex::{self, Flags};
    use rustix::time::Timespec;
    use std::ops::Deref;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    /// The number that means all waiters: the kernel counts in `int`.
    const ALL: u32 = i32::MAX as u32;

    /// The word. Reads and changes use `AtomicU32`'s own methods, with the caller's orderings: sleeping and waking do
    /// not order memory.
    #[derive(Debug)]
    pub(crate) struct Futex(AtomicU32);

    impl Futex {
        pub(crate) fn new(value: u32) -> Self {
            Self(AtomicU32::new(value))
        }

        /// Sleeps while the word is `expected`, until woken, for up to `timeout` (None: no limit).
        ///
        /// Returns false if the time-out passed. Returns true after a wake-up, if the word had another value, or
        /// spuriously: the caller reads the word again in every case. Signals are not reported and do not prolong the
        /// time-out.
        pub(crate) fn wait(&self, expected: u32, timeout: Option<Duration>) -> bool {
            #[cfg(feature = "testing")]
            if self.load(Ordering::Relaxed) == expected && crate::sync::pause::played::pause(None) {
                return true;
            }
            // A time-out that no clock can represent means no limit.
            let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
            loop {
                let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
                if left == Some(Duration::ZERO) {
                    return self.load(Ordering::Relaxed) != expected;
                }
                let left = left.and_then(|d| Timespec::try_from(d).ok());
                match futex::wait(&self.0, Flags::PRIVATE, expected, left.as_ref()) {
                    Err(Errno::INTR) => {}
                    Err(Errno::TIMEDOUT) => return false,
                    // AGAIN: the word already has another value. No other error is possible for a valid address and a
                    // valid time. If one occurred, the caller would read the word again, which is correct too.
                    Ok(()) | Err(_) => return true,
                }
            }
        }

        /// Wakes every thread that sleeps on the word, with one system call.
        pub(crate) fn wake_all(&self) {
            // Waking a valid address cannot fail.
            let _ = futex::wake(&self.0, Flags::PRIVATE, ALL);
        }

        /// Wakes one thread that sleeps on the word, if there is one.
        #[allow(dead_code, reason = "the other half of the primitive; used where one waiter is enough")]
        pub(crate) fn wake_one(&self) {
            let _ = futex::wake(&self.0, Flags::PRIVATE, 1);
        }
    }

    impl Deref for Futex {
        type Target = AtomicU32;

        fn deref(&self) -> &AtomicU32 {
            &self.0
        }
    }
}

#[cfg(loom)]
mod imp {
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};
    use std::ops::Deref;
    use std::sync::PoisonError;
    use std::time::Duration;

    /// The model: `kernel` is the kernel's lock over the word's sleepers.
    #[derive(Debug)]
    pub(crate) struct Futex {
        word: AtomicU32,
        kernel: Mutex<()>,
        sleepers: Condvar,
    }

    impl Futex {
        pub(crate) fn new(value: u32) -> Self {
            Self { word: AtomicU32::new(value), kernel: Mutex::new(()), sleepers: Condvar::new() }
        }

        /// Time does not pass in a model: no time-out ever passes.
        pub(crate) fn wait(&self, expected: u32, _timeout: Option<Duration>) -> bool {
            let guard = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
            if self.word.load(Ordering::Relaxed) == expected {
                drop(self.sleepers.wait(guard));
            }
            true
        }

        pub(crate) fn wake_all(&self) {
            let _kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
            self.sleepers.notify_all();
        }

        #[allow(dead_code, reason = "see the real one")]
        pub(crate) fn wake_one(&self) {
            let _kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
            self.sleepers.notify_one();
        }
    }

    impl Deref for Futex {
        type Target = AtomicU32;

        fn deref(&self) -> &AtomicU32 {
            &self.word
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Futex;
    use std::sync::atomic::Ordering::SeqCst;
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn wait_returns_at_once_if_the_word_differs() {
        let word = Futex::new(1);
        assert!(word.wait(0, None));
        assert!(word.wait(0, Some(Duration::MAX)));
        assert!(word.wait(0, Some(Duration::ZERO)));
    }

    #[test]
    fn time_out_sleeps_its_full_time_and_returns_false() {
        let word = Futex::new(0);
        let (began, timeout) = (Instant::now(), Duration::from_millis(20));
        while word.wait(0, Some(timeout.saturating_sub(began.elapsed()))) {}
        assert!(began.elapsed() >= timeout);
        assert!(!word.wait(0, Some(Duration::ZERO)));
    }

    /// Two threads take turns to increase a number: a lost wake-up would hang.
    #[test]
    fn every_change_wakes_the_other_thread() {
        const TURNS: u32 = 20_000;
        let word = Futex::new(0);
        let turns = |mine: u32| {
            for turn in (mine..TURNS).step_by(2) {
                loop {
                    match word.load(SeqCst) {
                        now if now == turn => break,
                        // Also with a time-out that no clock can represent.
                        now => word.wait(now, (turn % 3 == 0).then_some(Duration::MAX)),
                    };
                }
                word.store(turn + 1, SeqCst);
                if turn % 2 == 0 { word.wake_one() } else { word.wake_all() }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| turns(0));
            turns(1);
        });
        assert_eq!(word.load(SeqCst), TURNS);
    }

    #[test]
    fn wake_all_wakes_every_sleeper() {
        let word = Futex::new(0);
        thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| while word.load(SeqCst) == 0 && word.wait(0, None) {});
            }
            // Most threads are asleep by then; the others must not fall asleep afterwards.
            thread::sleep(Duration::from_millis(20));
            word.store(1, SeqCst);
            word.wake_all();
        });
    }
}
