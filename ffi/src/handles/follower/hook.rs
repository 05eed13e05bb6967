//! The hook of a follower: it raises a descriptor, or runs a callback. The later call decides which.
//!
//! Invariants:
//! - A change of what the hook does, and the registration of that hook, are one step under one lock: the hook that is
//!   registered is the one that the state names.
//! - No callback runs under the lock, and no thread waits under it for a callback that runs.
//! - A callback that was replaced does not run any more once the call that replaced it has returned.

use crate::abi::descriptor::Descriptor;
use crate::abi::once_callback::{Gate, later};
use crate::support::panic_guard::lock;
use chiplog::{Result, Signal};
use std::sync::Mutex;

/// A hook to register with the follower, in the place of the last one.
pub(super) type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(super) struct EventHook(Mutex<State>);

#[derive(Default)]
struct State {
    descriptor: Descriptor,
    /// The current callback. None: there was none, or a descriptor replaced it.
    gate: Option<Gate>,
}

impl EventHook {
    /// Arms the descriptor, if there is one that the hook raises. Call it when there was no event.
    pub(super) fn rearm(&self, register: impl FnOnce(Hook)) {
        if let Some(signal) = lock(&self.0).descriptor.watched() {
            arm(signal, register);
        }
    }

    /// Replaces the callback, and calls the new one once there is an event.
    pub(super) fn set_callback(&self, gate: Gate, register: impl FnOnce(Hook)) {
        let last = lock(&self.0).gate.take();
        drop(last); // so that it does not run beside the new one; without the lock, which the running callback may need
        let (hook, held) = later(gate.hook());
        let mut state = lock(&self.0);
        state.descriptor.yield_hook();
        let last = state.gate.replace(gate);
        register(Box::new(hook));
        drop(state);
        drop(last);
        held.go();
    }

    /// Returns the descriptor, whose hook is set.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn descriptor(&self, register: impl FnOnce(Hook)) -> Result<i32> {
        let mut state = lock(&self.0);
        let mut last = None;
        if state.descriptor.claim_hook()? {
            last = state.gate.take();
            if let Some(signal) = state.descriptor.watched() {
                arm(signal, register);
            }
        }
        let number = state.descriptor.number();
        drop(state);
        drop(last); // as above
        Ok(number)
    }
}

fn arm(signal: &Signal, register: impl FnOnce(Hook)) {
    signal.lower();
    let signal = signal.clone();
    register(Box::new(move || signal.raise()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_void;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::Duration;

    /// The one hook of a follower.
    #[derive(Default)]
    struct Registered(Mutex<Option<Hook>>);

    impl Registered {
        fn put(&self, hook: Hook) {
            *lock(&self.0) = Some(hook);
        }

        fn take(&self) -> Hook {
            lock(&self.0).take().unwrap()
        }
    }

    /// The context of a callback.
    struct Story {
        /// The callback is inside between two meetings.
        inside: Barrier,
        calls: AtomicU32,
    }

    impl Story {
        fn new() -> Self {
            Self { inside: Barrier::new(2), calls: AtomicU32::new(0) }
        }

        fn gate(&self, callback: unsafe extern "C" fn(*mut c_void)) -> Gate {
            // SAFETY: the tests keep the story longer than the gate.
            unsafe { Gate::new(Some(callback), (&raw const *self).cast_mut().cast()) }.unwrap()
        }
    }

    unsafe extern "C" fn stays(context: *mut c_void) {
        // SAFETY: by `Story::gate`.
        let story = unsafe { &*context.cast::<Story>() };
        story.inside.wait();
        story.inside.wait();
    }

    unsafe extern "C" fn counts(context: *mut c_void) {
        // SAFETY: by `Story::gate`.
        let story = unsafe { &*context.cast::<Story>() };
        story.calls.fetch_add(1, Ordering::SeqCst);
    }

    fn is_raised(descriptor: i32) -> bool {
        let mut polled = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives during the call.
        unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
    }

    /// One thread replaced a callback while it ran, and another one got the descriptor meanwhile: the callback was registered, while
    /// the descriptor seemed to have the hook. It was not raised any more, whatever was called.
    #[test]
    fn registered_hook_is_the_one_that_the_state_names() {
        let (story, hook, registered) = (Story::new(), EventHook::default(), Registered::default());
        hook.set_callback(story.gate(stays), |hook| registered.put(hook));
        let running = registered.take();
        thread::scope(|scope| {
            scope.spawn(running);
            story.inside.wait();
            scope.spawn(|| hook.set_callback(story.gate(counts), |hook| registered.put(hook)));
            thread::sleep(Duration::from_millis(20)); // likely it waits for the callback now
            scope.spawn(|| hook.descriptor(|hook| registered.put(hook)).unwrap());
            thread::sleep(Duration::from_millis(20));
            story.inside.wait();
        });
        let descriptor = hook.descriptor(|hook| registered.put(hook)).unwrap();
        assert!(!is_raised(descriptor));
        registered.take()();
        assert!(is_raised(descriptor));
        assert_eq!(story.calls.load(Ordering::SeqCst), 0);
    }

    /// The context of a callback that a descriptor replaced may be freed.
    #[test]
    fn callback_that_a_descriptor_replaced_does_not_run() {
        let (story, hook, registered) = (Story::new(), EventHook::default(), Registered::default());
        hook.set_callback(story.gate(counts), |hook| registered.put(hook));
        let due = registered.take(); // the follower's thread is about to call it
        hook.descriptor(|hook| registered.put(hook)).unwrap();
        due();
        assert_eq!(story.calls.load(Ordering::SeqCst), 0);
    }

    /// An event that is there already is told on this thread, which may call back in.
    #[test]
    fn callback_that_is_due_at_once_runs_without_the_lock() {
        let (story, hook) = (Story::new(), EventHook::default());
        let mut free = false;
        let gate = story.gate(counts);
        hook.set_callback(gate, |due| {
            due();
            free = story.calls.load(Ordering::SeqCst) == 0;
        });
        assert!(free, "it waits until the lock is free");
        assert_eq!(story.calls.load(Ordering::SeqCst), 1);
    }
}
