//! Gate: a callback of the caller's that is called once at most, from whatever thread, and whose context the caller gets back.
//!
//! Invariant: once [`Gate::shut`] has returned, the callback is not running and will not be called any more, unless it is
//! the callback itself that shuts it.

use crate::abi::values::Context;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// What the caller gave to be called.
type Callback = unsafe extern "C" fn(*mut c_void);

/// Its end ends the callback.
pub(crate) struct Gate(Arc<Inner>);

struct Inner {
    /// Held while the callback runs, so that whoever shuts the gate waits for it.
    callback: Mutex<Option<(Callback, Context)>>,
    /// The thread that is in the callback.
    inside: Mutex<Option<ThreadId>>,
}

impl Gate {
    /// # Safety
    /// `callback` may be called with `context` once, on any thread, until the gate is shut.
    pub(crate) unsafe fn new(callback: Callback, context: Context) -> Self {
        Self(Arc::new(Inner { callback: Mutex::new(Some((callback, context))), inside: Mutex::default() }))
    }

    /// What calls it.
    pub(crate) fn hook(&self) -> impl FnOnce() + Send + 'static {
        let inner = self.0.clone();
        move || {
            let mut callback = inner.callback.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((callback, context)) = callback.take() else { return };
            inner.set_inside(Some(thread::current().id()));
            // SAFETY: by the condition of `new`: the gate is not shut, or who shuts it waits for the lock held here.
            unsafe { callback(context.0) };
            inner.set_inside(None);
        }
    }

    /// Waits for the callback, if it is running.
    fn shut(&self) {
        let inside = *self.0.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if inside != Some(thread::current().id()) {
            *self.0.callback.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

impl Inner {
    fn set_inside(&self, thread: Option<ThreadId>) {
        *self.inside.lock().unwrap_or_else(PoisonError::into_inner) = thread;
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shut();
    }
}

type Hook = Box<dyn FnOnce() + Send>;

/// A hook that is registered under a lock under which it must not run.
enum Turn {
    /// The lock is held: the hook waits.
    Held(Hook),
    /// It was called meanwhile.
    Due(Hook),
    Free(Hook),
    Over,
}

/// Holds a hook back: see [`later`].
pub(crate) struct Later(Arc<Mutex<Turn>>);

/// What calls `hook`, but not before [`Later::go`], which calls it if it came to be due until then.
pub(crate) fn later(hook: impl FnOnce() + Send + 'static) -> (impl FnOnce() + Send + 'static, Later) {
    let turn = Arc::new(Mutex::new(Turn::Held(Box::new(hook))));
    let held = Later(turn.clone());
    let call = move || {
        let due = change(&turn, |turn| match turn {
            Turn::Held(hook) => (Turn::Due(hook), None),
            Turn::Free(hook) => (Turn::Over, Some(hook)),
            other => (other, None),
        });
        due.into_iter().for_each(|hook| hook());
    };
    (call, held)
}

impl Later {
    /// The lock was let go.
    pub(crate) fn go(self) {
        let due = change(&self.0, |turn| match turn {
            Turn::Held(hook) => (Turn::Free(hook), None),
            Turn::Due(hook) => (Turn::Over, Some(hook)),
            other => (other, None),
        });
        due.into_iter().for_each(|hook| hook());
    }
}

fn change(turn: &Mutex<Turn>, next: impl FnOnce(Turn) -> (Turn, Option<Hook>)) -> Option<Hook> {
    let mut turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    let (after, due) = next(std::mem::replace(&mut *turn, Turn::Over));
    *turn = after;
    due
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// What a callback is given here.
    struct Story {
        inside: Barrier,
        over: AtomicBool,
        own: Mutex<Option<Gate>>,
    }

    fn story() -> Box<Story> {
        Box::new(Story { inside: Barrier::new(2), over: AtomicBool::new(false), own: Mutex::default() })
    }

    unsafe extern "C" fn slow(context: *mut c_void) {
        // SAFETY: the tests give a `Story` that outlives the gate.
        let story = unsafe { &*context.cast::<Story>() };
        story.inside.wait();
        thread::sleep(Duration::from_millis(20));
        story.over.store(true, Ordering::SeqCst);
    }

    unsafe extern "C" fn ends_itself(context: *mut c_void) {
        // SAFETY: as above.
        let story = unsafe { &*context.cast::<Story>() };
        let own = story.own.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(own);
        story.over.store(true, Ordering::SeqCst);
    }

    fn gate(callback: Callback, story: &Story) -> Gate {
        // SAFETY: the story outlives the gate.
        unsafe { Gate::new(callback, Context((&raw const *story).cast_mut().cast())) }
    }

    /// A context that was freed after its reader was closed was handed to a callback that ran on.
    #[test]
    fn who_shuts_waits_for_the_callback_that_runs() {
        let story = story();
        let gate = gate(slow, &story);
        let hook = gate.hook();
        let runs = thread::spawn(hook);
        story.inside.wait();
        drop(gate);
        assert!(story.over.load(Ordering::SeqCst));
        assert!(runs.join().is_ok());
    }

    #[test]
    fn what_was_shut_is_not_called() {
        let story = story();
        let gate = gate(ends_itself, &story);
        let hook = gate.hook();
        drop(gate);
        hook();
        assert!(!story.over.load(Ordering::SeqCst));
    }

    #[test]
    fn a_callback_may_end_itself() {
        let story = story();
        let gate = gate(ends_itself, &story);
        let hook = gate.hook();
        *story.own.lock().unwrap_or_else(PoisonError::into_inner) = Some(gate);
        hook();
        assert!(story.over.load(Ordering::SeqCst));
    }

    /// A callback that was due at once ran with its reader locked.
    #[test]
    fn what_is_held_back_runs_once_and_not_before_its_time() {
        let counted = Arc::new(Mutex::new(0));
        let count = || *counted.lock().unwrap_or_else(PoisonError::into_inner);
        let hook = || {
            let counted = counted.clone();
            move || *counted.lock().unwrap_or_else(PoisonError::into_inner) += 1
        };
        let (call, held) = later(hook());
        call();
        assert_eq!(count(), 0);
        held.go();
        assert_eq!(count(), 1);
        let (call, held) = later(hook());
        held.go();
        assert_eq!(count(), 1);
        call();
        assert_eq!(count(), 2);
    }
}
