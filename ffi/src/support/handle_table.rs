//! Handle: what stands behind the pointers that C holds. A handle is a number in a pointer's clothes: place in a table,
//! generation, kind. It is never followed as a pointer, so that one that was closed, closed twice, mixed up or made up is
//! told from one that is open, and is an error.
//!
//! ```text
//! chiplog_log_t * = | place in the table: 28 bits | generation: 30 | kind: 6 |
//!                                 |
//! table of the kind ── chunk ── slot: word | generation: 30 | state: 2 | pins: 32 |, value
//! ```
//!
//! A call pins its handle's slot: closing the handle meanwhile leaves the value to the last pin. Nothing here takes a lock,
//! so that a forked child, whose other threads are gone, is told so instead of waiting for them.
//!
//! Invariants:
//! - A slot's value is there from insertion to reclamation; it is touched by those who pinned the slot while it was open
//!   under their generation, and by the one who reclaims it.
//! - Who changes the word from (generation, closing, no pins) to (generation + 1, vacant, no pins) reclaims: one does.
//! - Slots are never given back to the system, so a stale handle can be looked up.

use crate::support::fork;
use chiplog::{Error, ErrorKind, Result};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// What a handle is of: the type of the value and the name for messages.
pub(crate) trait Kind: Send + Sync + Sized + 'static {
    /// The type that the header shows.
    type Opaque;
    /// From 1 to 63, another one for each kind.
    const TAG: u64;
    /// For messages.
    const NAME: &'static str;
    /// Where they are kept.
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
/// Closed; pinned still.
const CLOSING: u64 = 1 << 32;
const VACANT: u64 = 2 << 32;
const GENERATION_SHIFT: u32 = 34;
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;

/// The first chunk has so many slots, each further one twice as many as the one before.
const CHUNK_FIRST: u64 = 64;
const CHUNKS: usize = 23;
const NONE: u32 = u32::MAX;

struct Slot<T> {
    word: AtomicU64,
    /// Of a vacant slot: the next vacant one.
    next: AtomicU32,
    /// In which process it was filled.
    process: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// All handles of one kind.
pub(crate) struct Table<T> {
    chunks: [AtomicPtr<Slot<T>>; CHUNKS],
    /// Slots that were ever used.
    used: AtomicU32,
    /// The first vacant slot, below a count of changes that tells an old view from a new one.
    vacant: AtomicU64,
}

// SAFETY: values are shared between threads as `&T` (`T: Sync` by `Kind`) and dropped by whichever thread is last (`Send`).
unsafe impl<T: Send + Sync> Sync for Table<T> {}

/// A value that stays as long as this lives, closed or not.
pub(crate) struct Pinned<T: Kind> {
    place: u32,
    slot: &'static Slot<T>,
}

/// A handle taken apart.
#[derive(Clone, Copy)]
struct Parts {
    place: u32,
    generation: u64,
}

/// Chunk and place in it.
fn locate(place: u32) -> (usize, usize) {
    let shifted = u64::from(place) + CHUNK_FIRST;
    let chunk = shifted.ilog2() - CHUNK_FIRST.ilog2();
    (chunk as usize, (shifted - (CHUNK_FIRST << chunk)) as usize)
}

fn encode<T: Kind>(place: u32, word: u64) -> *mut T::Opaque {
    let generation = (word >> GENERATION_SHIFT) & GENERATION_MASK;
    let bits = (u64::from(place) << (GENERATION_BITS + TAG_BITS)) | (generation << TAG_BITS) | T::TAG;
    ptr::without_provenance_mut(bits as usize)
}

fn decode<T: Kind>(handle: *const T::Opaque) -> Result<Parts> {
    let bits = handle.addr() as u64;
    if bits == 0 {
        return Err(invalid(format!("{} is NULL", T::NAME)));
    }
    if bits & ((1 << TAG_BITS) - 1) != T::TAG {
        return Err(invalid(format!("this is no {}", T::NAME)));
    }
    let generation = (bits >> TAG_BITS) & GENERATION_MASK;
    Ok(Parts { place: (bits >> (GENERATION_BITS + TAG_BITS)) as u32, generation })
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, what)
}

fn closed<T: Kind>() -> Error {
    Error::new(ErrorKind::Closed, format!("the {} was closed", T::NAME))
}

fn forked<T: Kind>() -> Error {
    let what = format!("the {} was made before fork(): it is the parent's", T::NAME);
    Error::new(ErrorKind::Forked, what)
}

impl<T: Kind> Table<T> {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
            used: AtomicU32::new(0),
            vacant: AtomicU64::new(NONE as u64),
        }
    }

    /// The slot at a place that was used.
    fn slot(&'static self, place: u32) -> &'static Slot<T> {
        let (chunk, at) = locate(place);
        let base = self.chunks[chunk].load(Ordering::Acquire);
        assert!(!base.is_null(), "a place that is used has a chunk");
        // SAFETY: `chunk` made it with more than `at` slots (see `locate`), and it is never freed.
        unsafe { &*base.add(at) }
    }

    /// Makes the chunk of this place, if there is none.
    fn make_chunk(&self, place: u32) {
        let (chunk, _) = locate(place);
        if !self.chunks[chunk].load(Ordering::Acquire).is_null() {
            return;
        }
        let slots: Box<[Slot<T>]> = (0..CHUNK_FIRST << chunk)
            .map(|_| Slot {
                word: AtomicU64::new(VACANT),
                next: AtomicU32::new(NONE),
                process: AtomicU64::new(0),
                value: UnsafeCell::new(MaybeUninit::uninit()),
            })
            .collect();
        let made = Box::into_raw(slots);
        let (null, new) = (ptr::null_mut(), made.cast::<Slot<T>>());
        if self.chunks[chunk].compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: another thread's was taken; this one was made just now and nobody saw it.
            drop(unsafe { Box::from_raw(made) });
        }
    }

    /// A vacant slot, for the caller alone.
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
            Err(_) => {
                Err(Error::new(ErrorKind::Busy, format!("{} of {} are open", 1u64 << PLACE_BITS, T::NAME)))
            }
        }
    }

    fn give_back(&self, place: u32, slot: &Slot<T>) {
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

    /// Whether this place was ever used: a made-up handle can name any.
    fn is_used(&self, place: u32) -> bool {
        place < self.used.load(Ordering::Acquire) && {
            let (chunk, _) = locate(place);
            !self.chunks[chunk].load(Ordering::Acquire).is_null()
        }
    }
}

/// Makes a handle.
///
/// # Errors
/// `Busy`: too many are open.
pub(crate) fn insert<T: Kind>(value: T) -> Result<*mut T::Opaque> {
    let table = T::table();
    let place = table.take_vacant()?;
    let slot = table.slot(place);
    // SAFETY: the slot is vacant and was taken for this call alone; who pins it meanwhile with a stale handle sees that it
    // is not open and does not touch the value.
    unsafe { (*slot.value.get()).write(value) };
    slot.process.store(fork::process(), Ordering::Relaxed);
    // Stale pins come and go meanwhile: they are kept. Release: who sees it open sees the value.
    let word = slot.word.fetch_and(!STATE, Ordering::Release);
    Ok(encode::<T>(place, word))
}

/// What stands behind a handle.
///
/// # Errors
/// `InvalidArgument`: NULL, or no handle of this kind. `Closed`. `Forked`.
pub(crate) fn get<T: Kind>(handle: *const T::Opaque) -> Result<Pinned<T>> {
    let parts = decode::<T>(handle)?;
    let table = T::table();
    if !table.is_used(parts.place) {
        return Err(invalid(format!("this is no {}", T::NAME)));
    }
    let slot = table.slot(parts.place);
    let word = slot.word.fetch_add(PIN, Ordering::Acquire);
    let pinned = Pinned { place: parts.place, slot };
    if (word >> GENERATION_SHIFT) != parts.generation || word & STATE != OPEN {
        return Err(closed::<T>());
    }
    if slot.process.load(Ordering::Relaxed) != fork::process() {
        return Err(forked::<T>());
    }
    Ok(pinned)
}

/// Closes a handle: no call finds it any more. What stood behind it goes away with the last call that has it.
///
/// # Errors
/// As [`get`]. In a forked child the handle is closed all the same, and nothing else is touched.
pub(crate) fn close<T: Kind>(handle: *const T::Opaque) -> Result<Pinned<T>> {
    let pinned = match get::<T>(handle) {
        Err(error) if error.kind() == ErrorKind::Forked => {
            // Its pin in this process goes on for ever: nothing is dropped.
            let parts = decode::<T>(handle)?;
            let slot = T::table().slot(parts.place);
            slot.word.fetch_add(PIN, Ordering::Relaxed);
            let _ = mark(slot, parts.generation);
            return Err(error);
        }
        pinned => pinned?,
    };
    let parts = decode::<T>(handle)?;
    // Two threads closing at once: one of them comes second.
    if mark(pinned.slot, parts.generation) { Ok(pinned) } else { Err(closed::<T>()) }
}

/// From open to closing; whether this call did it.
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

impl<T: Kind> Deref for Pinned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: made by `get` with the slot open under the handle's generation, so the value was written before and its
        // pin, which lives as long as `self`, keeps it: who reclaims needs a word without pins.
        unsafe { (*self.slot.value.get()).assume_init_ref() }
    }
}

impl<T: Kind> Drop for Pinned<T> {
    fn drop(&mut self) {
        // Release: what was done with the value comes before its end. Acquire: who ends it sees all that.
        let word = self.slot.word.fetch_sub(PIN, Ordering::AcqRel) - PIN;
        if word & STATE != CLOSING || word & PINS != 0 {
            return;
        }
        let generation = ((word >> GENERATION_SHIFT) + 1) & GENERATION_MASK;
        let vacant = (generation << GENERATION_SHIFT) | VACANT;
        if self.slot.word.compare_exchange(word, vacant, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return; // somebody pinned it meanwhile, and will come by here
        }
        // SAFETY: this call alone made the slot vacant, nobody had it pinned, and no handle of its generation pins it any
        // more: the value is this call's. It is in no list yet, so nobody fills it.
        let value = unsafe { (*self.slot.value.get()).assume_init_read() };
        T::table().give_back(self.place, self.slot);
        drop(value);
    }
}

/// Makes the table of a type of handle. The type that the header shows is written out, for cbindgen looks into no macro.
macro_rules! handle {
    ($opaque:ident is $value:ty, $tag:literal, $name:literal) => {
        impl $crate::support::handle_table::Kind for $value {
            type Opaque = $opaque;
            const TAG: u64 = $tag;
            const NAME: &'static str = $name;

            fn table() -> &'static $crate::support::handle_table::Table<Self> {
                static TABLE: $crate::support::handle_table::Table<$value> =
                    $crate::support::handle_table::Table::new();
                &TABLE
            }
        }
    };
}
pub(crate) use handle;

/// What no program has one of.
#[allow(missing_debug_implementations, reason = "nobody has one")]
pub struct Opaque {
    _not_send: PhantomData<*mut ()>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    struct Counted(Arc<AtomicUsize>);

    /// For tests.
    #[allow(non_camel_case_types, missing_debug_implementations)]
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
    fn a_closed_handle_is_told_from_an_open_one_in_the_same_slot() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let mut old = Vec::new();
        for n in 0..1000 {
            let handle = insert(Counted(dropped.clone())).unwrap();
            assert!(get::<Counted>(handle).is_ok());
            let pin = get::<Counted>(handle).unwrap();
            drop(close::<Counted>(handle).unwrap());
            assert_eq!(dropped.load(Ordering::SeqCst), n, "pinned");
            assert_eq!(get::<Counted>(handle).err().unwrap().kind(), ErrorKind::Closed);
            drop(pin);
            assert_eq!(dropped.load(Ordering::SeqCst), n + 1);
            old.push(handle);
        }
        for handle in old {
            assert_eq!(close::<Counted>(handle).err().unwrap().kind(), ErrorKind::Closed);
        }
        for made_up in [0usize, 1, 62, usize::MAX, (5000 << 36) | 63] {
            let error = get::<Counted>(ptr::without_provenance(made_up)).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{made_up}");
        }
        assert_eq!(dropped.load(Ordering::SeqCst), 1000);
    }

    #[test]
    fn places_fill_chunks_without_a_hole() {
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
            let handle = insert(Counted(dropped.clone())).unwrap().addr();
            let closed = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for n in 0..3 {
                    let closed = &closed;
                    scope.spawn(move || {
                        let handle = ptr::without_provenance(handle);
                        let used = get::<Counted>(handle).is_ok();
                        if n > 0 && close::<Counted>(handle).is_ok() {
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
