//! Gate: a callback of the caller's that runs at most once, on any thread. The caller gets its context back when the
//! gate is shut.
//!
//! Invariant: once [`Gate::shut`] has returned, the callback is not running and will not run any more. The exception
//! is a callback that shuts its own gate.

use crate::abi::error::invalid;
use crate::abi::values::{Context, chiplog_notify_fn};
use crate::support::panic_guard::lock;
use chiplog::Result;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

/// The caller's function.
type Callback = unsafe extern "C" fn(*mut c_void);

/// Dropping it shuts the gate.
pub(crate) struct Gate(Arc<Inner>);

struct Inner {
    /// Held while the callback runs, so that a thread that shuts the gate waits for it.
    callback: Mutex<Option<(Callback, Context)>>,
    /// The thread that runs the callback now.
    inside: Mutex<Option<ThreadId>>,
}

impl Gate {
    /// # Errors
    /// `InvalidArgument`: there is no callback.
    ///
    /// # Safety
    /// `callback` is NULL, or may be called with `context` once, on any thread, until the gate is shut.
    pub(crate) unsafe fn new(callback: chiplog_notify_fn, context: *mut c_void) -> Result<Self> {
        let callback = callback.ok_or_else(|| invalid("callback is NULL"))?;
        let callback = Mutex::new(Some((callback, Context(context))));
        Ok(Self(Arc::new(Inner { callback, inside: Mutex::default() })))
    }

    /// Returns the hook that runs the callback.
    pub(crate) fn hook(&self) -> impl FnOnce() + Send + 'static {
        let inner = self.0.clone();
        move || {
            let mut callback = lock(&inner.callback);
            let Some((callback, context)) = callback.take() else { return };
            inner.set_inside(Some(thread::current().id()));
            // SAFETY: by the condition of `new`: the gate is not shut, or the thread that shuts it waits for the lock
            // held here.
            unsafe { callback(context.0) };
            inner.set_inside(None);
        }
    }

    /// Blocks while the callback runs.
    fn shut(&self) {
        let inside = *lock(&self.0.inside);
        if inside != Some(thread::current().id()) {
            *lock(&self.0.callback) = None;
        }
    }
}

impl Inner {
    fn set_inside(&self, thread: Option<ThreadId>) {
        *lock(&self.inside) = thread;
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shut();
    }
}

type Hook = Box<dyn FnOnce() + Send>;

/// A hook that is registered under a lock which must not be held while the hook runs.
enum HookState {
    /// The lock is held: the hook is postponed.
    Held(Hook),
    /// The hook was called meanwhile.
    Due(Hook),
    Free(Hook),
    Over,
}

/// Postpones a hook: see [`later`].
pub(crate) struct Later(Arc<Mutex<HookState>>);

/// Returns a hook that calls `hook`, but not before [`Later::go`]. `go` calls it if it was due by then.
pub(crate) fn later(hook: impl FnOnce() + Send + 'static) -> (impl FnOnce() + Send + 'static, Later) {
    let state = Arc::new(Mutex::new(HookState::Held(Box::new(hook))));
    let held = Later(state.clone());
    let call = move || {
        let due = change(&state, |state| match state {
            HookState::Held(hook) => (HookState::Due(hook), None),
            HookState::Free(hook) => (HookState::Over, Some(hook)),
            other => (other, None),
        });
        due.into_iter().for_each(|hook| hook());
    };
    (call, held)
}

impl Later {
    /// Call this after the lock was released.
    pub(crate) fn go(self) {
        let due = change(&self.0, |state| match state {
            HookState::Held(hook) => (HookState::Free(hook), None),
            HookState::Due(hook) => (HookState::Over, Some(hook)),
            other => (other, None),
        });
        due.into_iter().for_each(|hook| hook());
    }
}

fn change(
    state: &Mutex<HookState>,
    next: impl FnOnce(HookState) -> (HookState, Option<Hook>),
) -> Option<Hook> {
    let mut state = lock(state);
    let (after, due) = next(std::mem::replace(&mut *state, HookState::Over));
    *state = after;
    due
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// The context of these callbacks.
    struct Story {
        inside: Barrier,
        over: AtomicBool,
        own: Mutex<Option<Gate>>,
    }

    fn story() -> Box<Story> {
        Box::new(Story { inside: Barrier::new(2), over: AtomicBool::new(false), own: Mutex::default() })
    }

    unsafe extern "C" fn slow(context: *mut c_void) {
        // SAFETY: the tests pass a `Story` that outlives the gate.
        let story = unsafe { &*context.cast::<Story>() };
        story.inside.wait();
        thread::sleep(Duration::from_millis(20));
        story.over.store(true, Ordering::SeqCst);
    }

    unsafe extern "C" fn ends_itself(context: *mut c_void) {
        // SAFETY: as above.
        let story = unsafe { &*context.cast::<Story>() };
        let own = lock(&story.own).take();
        drop(own);
        story.over.store(true, Ordering::SeqCst);
    }

    fn gate(callback: Callback, story: &Story) -> Gate {
        // SAFETY: the story outlives the gate.
        unsafe { Gate::new(Some(callback), (&raw const *story).cast_mut().cast()) }.unwrap()
    }

    /// A context that was freed after its reader was closed was passed to a callback that was still running.
    #[test]
    fn shutting_waits_for_a_running_callback() {
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
    fn a_shut_gate_calls_nothing() {
        let story = story();
        let gate = gate(ends_itself, &story);
        let hook = gate.hook();
        drop(gate);
        hook();
        assert!(!story.over.load(Ordering::SeqCst));
    }

    #[test]
    fn a_callback_may_shut_its_own_gate() {
        let story = story();
        let gate = gate(ends_itself, &story);
        let hook = gate.hook();
        *lock(&story.own) = Some(gate);
        hook();
        assert!(story.over.load(Ordering::SeqCst));
    }

    /// A callback that was due at once ran while its reader was locked.
    #[test]
    fn a_postponed_hook_runs_once_and_not_early() {
        let counted = Arc::new(Mutex::new(0));
        let count = || *lock(&counted);
        let hook = || {
            let counted = counted.clone();
            move || *lock(&counted) += 1
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
