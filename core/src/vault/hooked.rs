//! A vault with a hook, for tests: a test sees each call, and can refuse it or do something before it.

use super::{ObjectInfo, Vault};
use crate::error::Result;
use crate::types::Timestamp;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Calls of a [`Vault`] that do what the vault in a field of its type does, in its `impl`: `pass_on!(below: size, list, delete);`. Feature
/// `testing`.
#[doc(hidden)]
#[macro_export]
macro_rules! __pass_on {
    ($below:tt: $($call:ident),+) => { $($crate::__pass_on!(@ $below $call);)+ };
    (@ $below:tt put) => {
        fn put(&self, name: &str, pieces: &[::bytes::Bytes]) -> $crate::Result<()> {
            self.$below.put(name, pieces)
        }
    };
    (@ $below:tt create) => {
        fn create(&self, name: &str, bytes: ::bytes::Bytes) -> $crate::Result<bool> {
            self.$below.create(name, bytes)
        }
    };
    (@ $below:tt get) => {
        fn get(&self, name: &str, range: ::std::ops::Range<u64>) -> $crate::Result<::bytes::Bytes> {
            self.$below.get(name, range)
        }
    };
    (@ $below:tt size) => {
        fn size(&self, name: &str) -> $crate::Result<Option<u64>> {
            self.$below.size(name)
        }
    };
    (@ $below:tt list) => {
        fn list(&self, prefix: &str) -> $crate::Result<Vec<$crate::vault::ObjectInfo>> {
            self.$below.list(prefix)
        }
    };
    (@ $below:tt delete) => {
        fn delete(&self, name: &str) -> $crate::Result<()> {
            self.$below.delete(name)
        }
    };
}

pub use __pass_on as pass_on;

/// Called with a call of a [`Vault`], `put` for example, and the object's name, or the prefix of a list. An error is the call's.
type Hook = Box<dyn FnMut(&str, &str) -> Result<()> + Send>;

/// A [`Vault`] over another one, with a hook that is called before each of its calls, one at a time. `Send + Sync`; blocks as the hook and
/// the vault below do. Feature `testing`.
///
/// ```
/// use chiplog::vault::{HookedVault, MemoryVault, Vault};
/// use chiplog::{Error, ErrorKind};
/// use std::sync::Arc;
/// let vault = HookedVault::new(Arc::new(MemoryVault::default()));
/// vault.set(|call, _name| match call {
///     "put" => Err(Error::new(ErrorKind::Unavailable, "no room")),
///     _ => Ok(()),
/// });
/// assert!(vault.put("o/1", &["stored".into()]).is_err());
/// assert_eq!(vault.size("o/1")?, None);
/// # Ok::<(), Error>(())
/// ```
pub struct HookedVault {
    below: Arc<dyn Vault>,
    hook: Mutex<Hook>,
    clock: Mutex<Option<Times>>,
}

/// The time of a store, and when its objects were written.
struct Times(Arc<AtomicU64>, BTreeMap<String, Timestamp>);

impl fmt::Debug for HookedVault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookedVault").field("below", &self.below).finish_non_exhaustive()
    }
}

impl HookedVault {
    /// Puts a hook that does nothing before a vault.
    pub fn new(below: Arc<dyn Vault>) -> Self {
        Self { below, hook: Mutex::new(Box::new(|_, _| Ok(()))), clock: Mutex::default() }
    }

    /// Another hook from the next call on.
    pub fn set(&self, hook: impl FnMut(&str, &str) -> Result<()> + Send + 'static) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(hook);
    }

    /// Gives the store a clock, in ms since 1970: [`Vault::modified`] says of objects that are written from now on when that was, and of no
    /// other one.
    pub fn set_time(&self, now: Arc<AtomicU64>) {
        *self.clock() = Some(Times(now, BTreeMap::new()));
    }

    fn call(&self, call: &str, name: &str) -> Result<()> {
        (self.hook.lock().unwrap_or_else(PoisonError::into_inner))(call, name)
    }

    fn clock(&self) -> MutexGuard<'_, Option<Times>> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_written(&self, name: &str) {
        if let Some(Times(now, written)) = &mut *self.clock() {
            written.insert(name.to_owned(), Timestamp(now.load(Ordering::Relaxed)));
        }
    }
}

impl Vault for HookedVault {
    fn put(&self, name: &str, pieces: &[Bytes]) -> Result<()> {
        self.call("put", name)?;
        self.below.put(name, pieces)?;
        self.note_written(name);
        Ok(())
    }

    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        self.call("create", name)?;
        let is_new = self.below.create(name, bytes)?;
        if is_new {
            self.note_written(name);
        }
        Ok(is_new)
    }

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.call("get", name)?;
        self.below.get(name, range)
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        self.call("size", name)?;
        self.below.size(name)
    }

    fn modified(&self, name: &str) -> Result<Option<Timestamp>> {
        self.call("modified", name)?;
        match &*self.clock() {
            Some(Times(_, written)) => Ok(written.get(name).copied()),
            None => self.below.modified(name),
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.call("list", prefix)?;
        self.below.list(prefix)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.call("delete", name)?;
        self.below.delete(name)
    }
}
