//! Futex: one 32-bit word that threads can sleep on. What waits in crowds is built on it: the waiters of a block
//! and the readers at the tail. (The writer's queue and the helper thread have few waiters and use condition
//! variables.)
//!
//! Owns: the system calls, their interruptions and time-outs. Must not know: what the word means.
//!
//! Why not a mutex with a condition variable: one block wakes up to 128 threads and more. With a condition
//! variable each of them would then queue for the mutex; here they come out of one system call and run on.
//!
//! How it is used without losing a wake-up: the waker **first** changes the word, **then** wakes; the waiter
//! sleeps only **while** the word is what it last saw. The kernel compares and goes to sleep in one step with
//! respect to wakers, so a change in between makes [`Futex::wait`] return at once.
//!
//! Under `cfg(loom)` the kernel's part is played by a mutex and a condition variable that loom knows.

pub(crate) use imp::Futex;

#[cfg(not(loom))]
mod imp {
    use rustix::io::Errno;
    use rustix::thread::futex::{self, Flags};
    use rustix::time::Timespec;
    use std::ops::Deref;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    /// How many waiters "all" are: the kernel counts in `int`.
    const ALL: u32 = i32::MAX as u32;

    /// The word. Reads and changes go through `AtomicU32`'s own methods, with the caller's orderings: sleeping
    /// and waking order nothing themselves.
    #[derive(Debug)]
    pub(crate) struct Futex(AtomicU32);

    impl Futex {
        pub(crate) fn new(value: u32) -> Self {
            Self(AtomicU32::new(value))
        }

        /// Sleeps while the word is `expected`, until woken, for at most `timeout` (None: without limit).
        ///
        /// False: the time passed. True: woken, or the word was another, or for no reason: the caller looks at
        /// the word again in any case. Interruptions by signals do not show and do not prolong the time-out.
        pub(crate) fn wait(&self, expected: u32, timeout: Option<Duration>) -> bool {
            // A time-out that no clock can express is none.
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
                    // AGAIN: the word is another already. Nothing else can come back from a valid address and
                    // a valid time; were it to, callers would look at the word again, which is right too.
                    Ok(()) | Err(_) => return true,
                }
            }
        }

        /// Wakes every thread that sleeps on the word: one system call, however many there are.
        pub(crate) fn wake_all(&self) {
            // Waking a valid address cannot fail.
            let _ = futex::wake(&self.0, Flags::PRIVATE, ALL);
        }

        /// Wakes one of the threads that sleep on the word, if there is one.
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

    /// The model: `kernel` stands for the kernel's lock over the word's sleepers.
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

        /// Time does not pass in a model: a time-out never comes.
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
    fn another_value_does_not_sleep() {
        let word = Futex::new(1);
        assert!(word.wait(0, None));
        assert!(word.wait(0, Some(Duration::MAX)));
        assert!(word.wait(0, Some(Duration::ZERO)));
    }

    #[test]
    fn a_time_out_sleeps_its_time_and_is_told_from_a_wake_up() {
        let word = Futex::new(0);
        let (began, timeout) = (Instant::now(), Duration::from_millis(20));
        while word.wait(0, Some(timeout.saturating_sub(began.elapsed()))) {}
        assert!(began.elapsed() >= timeout);
        assert!(!word.wait(0, Some(Duration::ZERO)));
    }

    /// Two threads hand a number to and fro: a lost wake-up hangs.
    #[test]
    fn every_change_is_noticed() {
        const TURNS: u32 = 20_000;
        let word = Futex::new(0);
        let turns = |mine: u32| {
            for turn in (mine..TURNS).step_by(2) {
                loop {
                    match word.load(SeqCst) {
                        now if now == turn => break,
                        // With a time-out that no clock can express, too.
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
    fn all_means_all() {
        let word = Futex::new(0);
        thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| while word.load(SeqCst) == 0 && word.wait(0, None) {});
            }
            // Most are asleep by then; those who are not must not fall asleep any more.
            thread::sleep(Duration::from_millis(20));
            word.store(1, SeqCst);
            word.wake_all();
        });
    }
}
