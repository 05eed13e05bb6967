//! A vault with faults, for tests: what an object store and a network do to a caller, from a seed.
//!
//! Invariant: the fault of a call follows from the seed, the call, the object's name and how often this call was made for this
//! name. Other threads and other objects do not change it.

use super::{ObjectInfo, Vault};
use crate::error::{Error, ErrorKind, Result};
use crate::random::SplitMix;
use crate::types::Timestamp;
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

options! {
    /// How often a [`FaultyVault`] has each fault, in thousandths of the calls that can have it. By default it has none.
    ///
    /// ```
    /// let store_is_down = chiplog::vault::FaultOptions::default().refused(1_000);
    /// ```
    #[derive(Clone, Debug, Default)]
    pub struct FaultOptions {
        /// Any call: nothing is done, and the call fails as `Unavailable`.
        pub refused: u32,
        /// Any call: all is done, and the call fails as `Unavailable` all the same, like a time-out after success.
        pub unanswered: u32,
        /// Any call: it takes [`delay`](Self::delay) longer.
        pub slow: u32,
        /// `get`, `size` and `list`: the object is not found, and is not in the list, although it is there.
        pub missing: u32,
        /// `get`: one bit of the answer is wrong.
        pub flipped: u32,
        /// `get`: the answer ends early. A vault must not do this; a program must not rely on it.
        pub short: u32,
        /// How long a slow call sleeps. Zero, the default, only counts it.
        pub delay: Duration,
    }
}

/// How many calls of a [`FaultyVault`] had each fault; the fields are named as in [`FaultOptions`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are those of the options")]
pub struct FaultCounts {
    pub refused: u64,
    pub unanswered: u64,
    pub slow: u64,
    pub missing: u64,
    pub flipped: u64,
    pub short: u64,
}

/// A [`Vault`] over another one that fails in the ways of object stores, as often as [`FaultOptions`] say. The same seed gives
/// the same faults. `Send + Sync`; blocks as the vault below does, and sleeps only with [`FaultOptions::delay`]. Feature
/// `testing`.
///
/// ```
/// use chiplog::vault::{FaultOptions, FaultyVault, MemoryVault, Vault};
/// use std::sync::Arc;
/// let vault = FaultyVault::new(Arc::new(MemoryVault::default()), 7, FaultOptions::default().unanswered(1_000));
/// assert!(vault.put("o/1", &["stored".into()]).is_err()); // and it is there:
/// vault.set_faults(FaultOptions::default());
/// assert_eq!(vault.get("o/1", 0..6)?, &b"stored"[..]);
/// assert_eq!(vault.counts().unanswered, 1);
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Debug)]
pub struct FaultyVault {
    below: Arc<dyn Vault>,
    seed: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    faults: FaultOptions,
    counts: FaultCounts,
    /// How often each call was made for each name.
    calls: HashMap<(Call, String), u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Call {
    Put,
    Create,
    Get,
    Size,
    List,
    Delete,
}

/// The fault of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Refused,
    Unanswered,
    Missing,
    Flipped,
    Short,
}

impl FaultyVault {
    /// Puts faults before a vault.
    pub fn new(below: Arc<dyn Vault>, seed: u64, faults: FaultOptions) -> Self {
        let state = State { faults, counts: FaultCounts::default(), calls: HashMap::new() };
        Self { below, seed, state: Mutex::new(state) }
    }

    /// Other faults from the next call on: a store that comes back, for example.
    pub fn set_faults(&self, faults: FaultOptions) {
        self.state().faults = faults;
    }

    /// The faults so far.
    pub fn counts(&self) -> FaultCounts {
        self.state().counts
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses what happens to a call, and sleeps if the call is slow. The random numbers come back for the fault's details.
    fn choose(&self, call: Call, name: &str) -> (Option<Fault>, SplitMix) {
        let mut state = self.state();
        let State { faults, counts, calls } = &mut *state;
        let nth = calls.entry((call, name.to_owned())).or_default();
        let mut random = SplitMix(self.seed ^ hash(call, name, *nth));
        *nth += 1;
        let mut happens = |thousandths: u32| random.below(1_000) < thousandths as usize;
        let is_slow = happens(faults.slow);
        let asks = matches!(call, Call::Get | Call::Size | Call::List);
        // All chances are drawn, so that one fault's rate does not change when another one happens.
        let drawn = [
            (happens(faults.refused), Fault::Refused, &mut counts.refused),
            (happens(faults.unanswered), Fault::Unanswered, &mut counts.unanswered),
            (happens(faults.missing) && asks, Fault::Missing, &mut counts.missing),
            (happens(faults.flipped) && call == Call::Get, Fault::Flipped, &mut counts.flipped),
            (happens(faults.short) && call == Call::Get, Fault::Short, &mut counts.short),
        ];
        let chosen = drawn.into_iter().find(|(happens, ..)| *happens).map(|(_, fault, count)| {
            *count += 1;
            fault
        });
        counts.slow += u64::from(is_slow);
        let delay = faults.delay;
        drop(state);
        if is_slow && !delay.is_zero() {
            std::thread::sleep(delay);
        }
        (chosen, random)
    }

    /// A call that only fails before or after it is done.
    fn write<T>(&self, call: Call, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.choose(call, name).0 {
            Some(Fault::Refused) => Err(refused(name)),
            Some(Fault::Unanswered) => {
                work()?;
                Err(unanswered(name))
            }
            _ => work(),
        }
    }
}

impl Vault for FaultyVault {
    fn put(&self, name: &str, pieces: &[Bytes]) -> Result<()> {
        self.write(Call::Put, name, || self.below.put(name, pieces))
    }

    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        self.write(Call::Create, name, || self.below.create(name, bytes))
    }

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        let (fault, mut random) = self.choose(Call::Get, name);
        match fault {
            Some(Fault::Refused) => return Err(refused(name)),
            Some(Fault::Unanswered) => return Err(unanswered(name)),
            Some(Fault::Missing) => {
                return Err(Error::new(ErrorKind::NotFound, format!("there is no object {name} (injected)")));
            }
            _ => {}
        }
        let bytes = self.below.get(name, range)?;
        Ok(match fault {
            Some(Fault::Flipped) if !bytes.is_empty() => {
                let mut wrong = bytes.to_vec();
                let at = random.below(wrong.len());
                wrong[at] ^= 1 << random.below(8);
                wrong.into()
            }
            Some(Fault::Short) if !bytes.is_empty() => bytes.slice(..random.below(bytes.len())),
            _ => bytes,
        })
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        match self.choose(Call::Size, name).0 {
            Some(Fault::Refused) => Err(refused(name)),
            Some(Fault::Unanswered) => Err(unanswered(name)),
            Some(Fault::Missing) => Ok(None),
            _ => self.below.size(name),
        }
    }

    fn modified(&self, name: &str) -> Result<Option<Timestamp>> {
        self.below.modified(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let (fault, mut random) = self.choose(Call::List, prefix);
        match fault {
            Some(Fault::Refused) => return Err(refused(prefix)),
            Some(Fault::Unanswered) => return Err(unanswered(prefix)),
            _ => {}
        }
        let mut found = self.below.list(prefix)?;
        if fault == Some(Fault::Missing) && !found.is_empty() {
            found.remove(random.below(found.len()));
        }
        Ok(found)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.write(Call::Delete, name, || self.below.delete(name))
    }
}

fn refused(name: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the store refused a call for {name:?} (injected)"))
}

fn unanswered(name: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the store did not answer in time for {name:?} (injected)"))
}

/// FNV-1a of what identifies a call, the same on every machine.
fn hash(call: Call, name: &str, nth: u64) -> u64 {
    let bytes = [call as u8].into_iter().chain(name.bytes()).chain(nth.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vault::{MemoryVault, check_conformance};
    use std::time::Instant;

    fn faulty(seed: u64, faults: FaultOptions) -> (Arc<MemoryVault>, FaultyVault) {
        let below = Arc::new(MemoryVault::default());
        (below.clone(), FaultyVault::new(below, seed, faults))
    }

    #[test]
    fn without_faults_it_conforms() {
        let (_, vault) = faulty(1, FaultOptions::default());
        check_conformance(&vault);
        assert_eq!(vault.counts(), FaultCounts::default());
    }

    #[test]
    fn refused_calls_do_nothing() {
        let (below, vault) = faulty(1, FaultOptions::default().refused(1_000));
        below.put("a", &["before".into()]).unwrap();
        let is_unavailable = |error: Error| error.kind() == ErrorKind::Unavailable;
        assert!(is_unavailable(vault.put("a", &["after".into()]).unwrap_err()));
        assert!(is_unavailable(vault.create("b", "new".into()).unwrap_err()));
        assert!(is_unavailable(vault.delete("a").unwrap_err()));
        assert!(is_unavailable(vault.get("a", 0..1).unwrap_err()));
        assert!(is_unavailable(vault.size("a").unwrap_err()));
        assert!(is_unavailable(vault.list("").unwrap_err()));
        assert_eq!(below.get("a", 0..6).unwrap(), &b"before"[..]);
        assert_eq!(below.size("b").unwrap(), None);
        assert_eq!(vault.counts(), FaultCounts { refused: 6, ..FaultCounts::default() });
    }

    #[test]
    fn unanswered_writes_are_done() {
        let (below, vault) = faulty(1, FaultOptions::default().unanswered(1_000));
        assert!(vault.put("a", &["x".into()]).is_err());
        assert!(vault.create("b", "y".into()).is_err());
        assert_eq!(below.list("").unwrap().len(), 2);
        assert!(vault.delete("a").is_err());
        assert_eq!(below.size("a").unwrap(), None);
    }

    #[test]
    fn missing_objects_come_back() {
        let (below, vault) = faulty(1, FaultOptions::default().missing(1_000));
        below.put("a", &["x".into()]).unwrap();
        assert_eq!(vault.get("a", 0..1).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(vault.size("a").unwrap(), None);
        assert_eq!(vault.list("").unwrap(), []);
        vault.set_faults(FaultOptions::default());
        assert_eq!(vault.get("a", 0..1).unwrap(), &b"x"[..]);
    }

    #[test]
    fn flipped_answers_differ_in_one_bit_and_short_ones_end_early() {
        let (below, vault) = faulty(1, FaultOptions::default().flipped(1_000));
        let bytes = Bytes::from(vec![0; 100]);
        below.put("a", &[bytes]).unwrap();
        let ones: u32 = vault.get("a", 0..100).unwrap().iter().map(|byte| byte.count_ones()).sum();
        assert_eq!(ones, 1);
        vault.set_faults(FaultOptions::default().short(1_000));
        assert!(vault.get("a", 0..100).unwrap().len() < 100);
        assert_eq!(below.get("a", 0..100).unwrap().len(), 100);
    }

    #[test]
    fn slow_calls_sleep_if_asked() {
        let (_, vault) = faulty(1, FaultOptions::default().slow(1_000));
        vault.put("a", &[]).unwrap();
        vault.set_faults(FaultOptions::default().slow(1_000).delay(Duration::from_millis(20)));
        let start = Instant::now();
        vault.size("a").unwrap();
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert_eq!(vault.counts(), FaultCounts { slow: 2, ..FaultCounts::default() });
    }

    /// Which of a hundred calls fail.
    fn story(vault: &FaultyVault, name: &str) -> Vec<bool> {
        (0..100).map(|_| vault.put(name, &[]).is_err()).collect()
    }

    #[test]
    fn faults_follow_from_the_seed_and_the_name_alone() {
        let faults = FaultOptions::default().refused(300).unanswered(100);
        let (_, first) = faulty(7, faults.clone());
        let (_, second) = faulty(7, faults.clone());
        let (_, third) = faulty(8, faults);
        let (a, b) = (story(&first, "a"), story(&first, "b"));
        assert_ne!(a, b);
        assert_eq!(story(&second, "b"), b); // the other order
        assert_eq!(story(&second, "a"), a);
        assert_ne!(story(&third, "a"), a);
        let failed = a.iter().chain(&b).filter(|failed| **failed).count();
        assert!((50..110).contains(&failed), "{failed} of 200");
    }
}
