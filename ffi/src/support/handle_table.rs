//! Handle: the objects behind the pointers that C holds. A handle is a number disguised as a pointer: its place in a
//! table, a generation, and a kind. It is never dereferenced. So a handle that was closed, closed twice, mixed up or
//! made up is detected and is an error.
//!
//! ```text
//! chiplog_log_t * = | place in the table: 28 bits | generation: 30 | kind: 6 |
//!                                 |
//! table of the kind ── chunk ── slot: word | generation: 30 | state: 2 | pins: 32 |, value
//! ```
//!
//! A call pins the slot of its handle. If the handle is closed meanwhile, the last pin frees the value. Nothing here
//! takes a lock, so that a forked child, whose other threads no longer exist, gets an error instead of waiting for
//! them.
//!
//! Invariants:
//! - A slot has its value from insertion to reclamation. The value is touched only by threads that pinned the slot
//!   while it was open under their generation, and by the thread that reclaims it.
//! - The thread that changes the word from (generation, closing, no pins) to (generation + 1, vacant, no pins)
//!   reclaims the slot. Exactly one thread does.
//! - Slots are never returned to the system, so that a stale handle can be looked up.

use crate::support::fork;
use crate::support::panic_guard::plain;
use chiplog::{Error, ErrorKind, Result};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A kind of handle: a type that the header shows, of which there are only pointers.
pub(crate) trait Handle: Sized + 'static {
    /// The type of the objects behind the handles.
    type Value: Send + Sync + 'static;
    /// From 1 to 63, different for each kind.
    const TAG: u64;
    /// The name in messages.
    const NAME: &'static str;
    /// The table of this kind.
    fn table() -> &'static Table<Self>;
}

const TAG_BITS: u32 = 6;
const GENERATION_BITS: u32 = 30;
const PLACE_BITS: u32 = 28;
const _: () = assert!(TAG_BITS + GENERATION_BITS + PLACE_BITS == usize::BITS, "handles need 64-bit pointers");

const PIN: u64 = 1;
const PINS: u64 = (1 << 32) - 1;
const STATE: u64 = 3 << 32;
const OPEN: u64 = 0;
/// Closed but still pinned.
const CLOSING: u64 = 1 << 32;
const VACANT: u64 = 2 << 32;
const GENERATION_SHIFT: u32 = 34;
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;

/// The first chunk has this number of slots; each further chunk has twice as many as the one before.
const CHUNK_FIRST: u64 = 64;
const CHUNKS: usize = 23;
const NONE: u32 = u32::MAX;

struct Slot<T> {
    word: AtomicU64,
    /// For a vacant slot: the next vacant one.
    next: AtomicU32,
    /// The process that filled the slot.
    process: AtomicUsize,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// All handles of one kind.
pub(crate) struct Table<H: Handle> {
    chunks: [AtomicPtr<Slot<H::Value>>; CHUNKS],
    /// The number of slots that were ever used.
    used: AtomicU32,
    /// The first vacant slot, in the low bits. The high bits count changes, to detect an outdated view.
    vacant: AtomicU64,
}

// SAFETY: values are shared between threads as references (`Handle::Value: Sync`) and dropped by whichever thread is last
// (`Send`).
unsafe impl<H: Handle> Sync for Table<H> {}

/// Keeps a value alive, even if its handle is closed meanwhile.
pub(crate) struct Pinned<H: Handle> {
    place: u32,
    slot: &'static Slot<H::Value>,
}

/// The parts of a handle.
#[derive(Clone, Copy)]
struct Parts {
    place: u32,
    generation: u64,
}

/// Returns the chunk and the place in it.
fn locate(place: u32) -> (usize, usize) {
    let shifted = u64::from(place) + CHUNK_FIRST;
    let chunk = shifted.ilog2() - CHUNK_FIRST.ilog2();
    (chunk as usize, (shifted - (CHUNK_FIRST << chunk)) as usize)
}

fn encode<H: Handle>(place: u32, word: u64) -> *mut H {
    let generation = (word >> GENERATION_SHIFT) & GENERATION_MASK;
    let bits = (u64::from(place) << (GENERATION_BITS + TAG_BITS)) | (generation << TAG_BITS) | H::TAG;
    ptr::without_provenance_mut(bits as usize)
}

fn decode<H: Handle>(handle: *const H) -> Result<Parts> {
    let bits = handle.addr() as u64;
    if bits == 0 {
        return Err(invalid(format!("{} is NULL", H::NAME)));
    }
    if bits & ((1 << TAG_BITS) - 1) != H::TAG {
        return Err(invalid(format!("this handle is not a {}", H::NAME)));
    }
    let generation = (bits >> TAG_BITS) & GENERATION_MASK;
    Ok(Parts { place: (bits >> (GENERATION_BITS + TAG_BITS)) as u32, generation })
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, what)
}

fn closed<H: Handle>() -> Error {
    Error::new(ErrorKind::Closed, format!("the {} was closed", H::NAME))
}

fn forked<H: Handle>() -> Error {
    let what = format!(
        "the {} was made before fork() and belongs to the parent: open another one in the child",
        H::NAME
    );
    Error::new(ErrorKind::Forked, what)
}

impl<H: Handle> Table<H> {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
            used: AtomicU32::new(0),
            vacant: AtomicU64::new(NONE as u64),
        }
    }

    /// Returns the slot at a place that was used before.
    fn slot(&'static self, place: u32) -> &'static Slot<H::Value> {
        let (chunk, at) = locate(place);
        let base = self.chunks[chunk].load(Ordering::Acquire);
        assert!(!base.is_null(), "a used place must have a chunk");
        // SAFETY: `chunk` made it with more than `at` slots (see `locate`), and it is never freed.
        unsafe { &*base.add(at) }
    }

    /// Allocates the chunk of this place if it does not exist.
    fn make_chunk(&self, place: u32) {
        let (chunk, _) = locate(place);
        if !self.chunks[chunk].load(Ordering::Acquire).is_null() {
            return;
        }
        let slots: Box<[Slot<H::Value>]> = (0..CHUNK_FIRST << chunk)
            .map(|_| Slot {
                word: AtomicU64::new(VACANT),
                next: AtomicU32::new(NONE),
                process: AtomicUsize::new(0),
                value: UnsafeCell::new(MaybeUninit::uninit()),
            })
            .collect();
        let made = Box::into_raw(slots);
        let (null, new) = (ptr::null_mut(), made.cast::<Slot<H::Value>>());
        if self.chunks[chunk].compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: another thread's chunk was stored; this one was allocated just now and no other thread has its
            // address.
            drop(unsafe { Box::from_raw(made) });
        }
    }

    /// Returns a vacant slot that no other caller gets.
    fn take_vacant(&'static self) -> Result<u32> {
        let mut seen = self.vacant.load(Ordering::Acquire);
        loop {
            let place = seen as u32;
            if place == NONE {
                break;
            }
            let next = self.slot(place).next.load(Ordering::Relaxed);
            let new = ((seen >> 32).wrapping_add(1) << 32) | u64::from(next);
            match self.vacant.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(place),
                Err(now) => seen = now,
            }
        }
        let one_more = |used: u32| (used < 1 << PLACE_BITS).then_some(used + 1);
        match self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more) {
            Ok(place) => {
                self.make_chunk(place);
                Ok(place)
            }
            Err(_) => Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "the limit of {} open handles of type {} is reached: close some first",
                    1u64 << PLACE_BITS,
                    H::NAME
                ),
            )),
        }
    }

    fn give_back(&self, place: u32, slot: &Slot<H::Value>) {
        let mut seen = self.vacant.load(Ordering::Acquire);
        loop {
            slot.next.store(seen as u32, Ordering::Relaxed);
            let new = ((seen >> 32).wrapping_add(1) << 32) | u64::from(place);
            match self.vacant.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Returns whether this place was ever used: a made-up handle can hold any place.
    fn is_used(&self, place: u32) -> bool {
        place < self.used.load(Ordering::Acquire) && {
            let (chunk, _) = locate(place);
            !self.chunks[chunk].load(Ordering::Acquire).is_null()
        }
    }
}

/// Inserts a value and returns its handle.
///
/// # Errors
/// `Busy`: the limit of open handles is reached.
pub(crate) fn insert<H: Handle>(value: H::Value) -> Result<*mut H> {
    let table = H::table();
    let place = table.take_vacant()?;
    let slot = table.slot(place);
    // SAFETY: the slot is vacant and only this call has it. A thread that pins it with a stale handle sees that it is
    // not open and does not touch the value.
    unsafe { (*slot.value.get()).write(value) };
    slot.process.store(fork::process(), Ordering::Relaxed);
    // Stale pins may be added and removed meanwhile: they are kept. Release: a thread that sees the slot open sees
    // the value.
    let word = slot.word.fetch_and(!STATE, Ordering::Release);
    Ok(encode::<H>(place, word))
}

/// Returns the value behind a handle.
///
/// # Errors
/// `InvalidArgument`: NULL, or a handle of another kind. `Closed`. `Forked`.
pub(crate) fn get<H: Handle>(handle: *const H) -> Result<Pinned<H>> {
    let parts = decode(handle)?;
    let table = H::table();
    if !table.is_used(parts.place) {
        return Err(invalid(format!("this handle is not a {}", H::NAME)));
    }
    let slot = table.slot(parts.place);
    let word = slot.word.fetch_add(PIN, Ordering::Acquire);
    let pinned = Pinned { place: parts.place, slot };
    if (word >> GENERATION_SHIFT) != parts.generation || word & STATE != OPEN {
        return Err(closed::<H>());
    }
    if slot.process.load(Ordering::Relaxed) != fork::process() {
        return Err(forked::<H>());
    }
    Ok(pinned)
}

/// Closes a handle: later calls do not find it. The value is dropped when the last call that uses it returns.
///
/// # Errors
/// As [`get`]. In a forked child the handle is closed as well, and nothing else is touched.
pub(crate) fn close<H: Handle>(handle: *const H) -> Result<Pinned<H>> {
    let pinned = match get(handle) {
        Err(error) if error.kind() == ErrorKind::Forked => {
            // The pin in this process is never removed: nothing is dropped.
            let parts = decode(handle)?;
            let slot = H::table().slot(parts.place);
            slot.word.fetch_add(PIN, Ordering::Relaxed);
            let _ = mark(slot, parts.generation);
            return Err(error);
        }
        pinned => pinned?,
    };
    let parts = decode(handle)?;
    // Only one of two threads that close at once succeeds.
    if mark(pinned.slot, parts.generation) { Ok(pinned) } else { Err(closed::<H>()) }
}

/// Returns what `ask` returns for an open handle, else `otherwise`; also after a panic.
pub(crate) fn query<H: Handle, T: Copy>(
    handle: *const H,
    otherwise: T,
    ask: impl FnOnce(Pinned<H>) -> T,
) -> T {
    plain(otherwise, || get(handle).map_or(otherwise, ask))
}

/// Closes a handle. Does nothing if it is not open.
pub(crate) fn release<H: Handle>(handle: *const H) {
    plain((), || drop(close(handle)));
}

/// Changes a slot from open to closing. Returns whether this call did it.
fn mark<T>(slot: &Slot<T>, generation: u64) -> bool {
    let mut word = slot.word.load(Ordering::Relaxed);
    loop {
        if word >> GENERATION_SHIFT != generation || word & STATE != OPEN {
            return false;
        }
        match slot.word.compare_exchange_weak(word, word | CLOSING, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => word = now,
        }
    }
}

impl<H: Handle> Deref for Pinned<H> {
    type Target = H::Value;

    fn deref(&self) -> &H::Value {
        // SAFETY: `get` made this while the slot was open under the handle's generation, so the value was written
        // before. The pin, which lives as long as `self`, keeps the value: reclaiming needs a word without pins.
        unsafe { (*self.slot.value.get()).assume_init_ref() }
    }
}

impl<H: Handle> Drop for Pinned<H> {
    fn drop(&mut self) {
        // Release: uses of the value happen before its end. Acquire: the thread that ends it sees all of them.
        let word = self.slot.word.fetch_sub(PIN, Ordering::AcqRel) - PIN;
        if word & STATE != CLOSING || word & PINS != 0 {
            return;
        }
        let generation = ((word >> GENERATION_SHIFT) + 1) & GENERATION_MASK;
        let vacant = (generation << GENERATION_SHIFT) | VACANT;
        if self.slot.word.compare_exchange(word, vacant, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return; // another thread pinned it meanwhile and will reclaim it
        }
        // SAFETY: only this call made the slot vacant, no thread had it pinned, and no handle of its generation can
        // pin it any more. So the value belongs to this call. The slot is in no list yet, so no thread fills it.
        let value = unsafe { (*self.slot.value.get()).assume_init_read() };
        H::table().give_back(self.place, self.slot);
        drop(value);
    }
}

/// Defines the table of a handle type. The type in the header is written out because cbindgen does not expand macros.
macro_rules! handle {
    ($handle:ident is $value:ty, $tag:literal, $name:literal) => {
        impl $crate::support::handle_table::Handle for $handle {
            type Value = $value;
            const TAG: u64 = $tag;
            const NAME: &'static str = $name;

            fn table() -> &'static $crate::support::handle_table::Table<Self> {
                static TABLE: $crate::support::handle_table::Table<$handle> =
                    $crate::support::handle_table::Table::new();
                &TABLE
            }
        }
    };
}
pub(crate) use handle;

/// A type without values.
pub struct Opaque {
    _not_send: PhantomData<*mut ()>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    pub(crate) struct Counted(Arc<AtomicUsize>);

    /// A type for these tests.
    pub struct counted_t {
        _private: crate::support::handle_table::Opaque,
    }

    handle!(counted_t is Counted, 63, "counted");

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_closed_handle_differs_from_an_open_one_in_the_same_slot() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let mut old = Vec::new();
        for n in 0..1000 {
            let handle = insert::<counted_t>(Counted(dropped.clone())).unwrap();
            assert!(get::<counted_t>(handle).is_ok());
            let pin = get::<counted_t>(handle).unwrap();
            drop(close::<counted_t>(handle).unwrap());
            assert_eq!(dropped.load(Ordering::SeqCst), n, "pinned");
            assert_eq!(get::<counted_t>(handle).err().unwrap().kind(), ErrorKind::Closed);
            drop(pin);
            assert_eq!(dropped.load(Ordering::SeqCst), n + 1);
            old.push(handle);
        }
        for handle in old {
            assert_eq!(close::<counted_t>(handle).err().unwrap().kind(), ErrorKind::Closed);
        }
        for made_up in [0usize, 1, 62, usize::MAX, (5000 << 36) | 63] {
            let error = get::<counted_t>(ptr::without_provenance(made_up)).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{made_up}");
        }
        assert_eq!(dropped.load(Ordering::SeqCst), 1000);
    }

    #[test]
    fn places_fill_chunks_without_a_gap() {
        let mut last = None;
        for place in 0..100_000 {
            let at = locate(place);
            let next = match last {
                None => (0, 0),
                Some((chunk, n)) if n + 1 < (CHUNK_FIRST << chunk) as usize => (chunk, n + 1),
                Some((chunk, _)) => (chunk + 1, 0),
            };
            assert_eq!(at, next);
            last = Some(at);
        }
        assert_eq!(locate((1 << PLACE_BITS) - 1).0, CHUNKS - 1);
    }

    #[test]
    fn threads_that_use_and_close_the_same_handles_drop_each_value_once() {
        const ROUNDS: usize = 2000;
        let dropped = Arc::new(AtomicUsize::new(0));
        for _ in 0..ROUNDS {
            let handle = insert::<counted_t>(Counted(dropped.clone())).unwrap().addr();
            let closed = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for n in 0..3 {
                    let closed = &closed;
                    scope.spawn(move || {
                        let handle = ptr::without_provenance(handle);
                        let used = get::<counted_t>(handle).is_ok();
                        if n > 0 && close::<counted_t>(handle).is_ok() {
                            closed.fetch_add(1, Ordering::SeqCst);
                        }
                        used
                    });
                }
            });
            assert_eq!(closed.load(Ordering::SeqCst), 1);
        }
        assert_eq!(dropped.load(Ordering::SeqCst), ROUNDS);
    }
}
