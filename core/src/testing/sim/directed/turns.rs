//! Two callers of one object store, whose calls come in a given order.

use crate::error::Result;
use crate::vault::{MemoryVault, ObjectInfo, Vault};
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Decides which of two callers goes on, call by call.
#[derive(Default)]
pub(super) struct Order {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// After how many calls in all the turn passes to the other one, each.
    switches: Vec<u32>,
    calls: u32,
    turn: usize,
    ended: [bool; 2],
}

impl Order {
    /// The caller `first` goes on first, and the turn passes after each of these numbers of calls.
    pub(super) fn new(first: usize, switches: Vec<u32>) -> Arc<Self> {
        let state = State { switches, turn: first, ..State::default() };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `me` may make its next call.
    fn wait(&self, me: usize) {
        let mut state = self.lock();
        while state.turn != me && !state.ended[1 - me] {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A call of `me` was made.
    fn made(&self, me: usize) {
        let mut state = self.lock();
        state.calls += 1;
        if state.switches.contains(&state.calls) {
            state.turn = 1 - me;
        }
        self.changed.notify_all();
    }

    /// `me` makes no more calls.
    pub(super) fn end(&self, me: usize) {
        let mut state = self.lock();
        state.ended[me] = true;
        state.turn = 1 - me;
        self.changed.notify_all();
    }
}

/// The object store as one of the two callers sees it.
pub(super) struct Turns {
    memory: Arc<MemoryVault>,
    order: Arc<Order>,
    me: usize,
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turns")
    }
}

impl Turns {
    /// The object store as the caller `me` sees it, 0 or 1.
    pub(super) fn new(memory: &Arc<MemoryVault>, order: &Arc<Order>, me: usize) -> Self {
        Self { memory: memory.clone(), order: order.clone(), me }
    }

    fn call<T>(&self, call: impl FnOnce(&MemoryVault) -> Result<T>) -> Result<T> {
        self.order.wait(self.me);
        let result = call(&self.memory);
        self.order.made(self.me);
        result
    }
}

impl Vault for Turns {
    fn put(&self, name: &str, pieces: &[Bytes]) -> Result<()> {
        self.call(|memory| memory.put(name, pieces))
    }

    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        self.call(|memory| memory.create(name, bytes))
    }

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.call(|memory| memory.get(name, range))
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        self.call(|memory| memory.size(name))
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.call(|memory| memory.list(prefix))
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.call(|memory| memory.delete(name))
    }
}
