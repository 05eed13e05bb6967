//! WatchedVault: an object store whose requests are noted, so that the server's status shows that the store fails.

use crate::served::store_health::StoreHealth;
use crate::served::store_health::StoreRequest::{self, Look, Read, Write};
use bytes::Bytes;
use chiplog::Result;
use chiplog::Timestamp;
use chiplog::vault::{ObjectInfo, Vault};
use std::ops::Range;
use std::sync::Arc;

/// An object store whose requests are noted.
///
/// ```
/// use chiplog::vault::{MemoryVault, Vault};
/// use chiplog_net::served::{store_health::StoreHealth, watched_vault::WatchedVault};
/// use std::sync::Arc;
/// let health: Arc<StoreHealth> = Arc::default();
/// let store = WatchedVault::new(Arc::new(MemoryVault::default()), health.clone());
/// store.list("")?;
/// assert!(health.failure().is_none());
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Debug)]
pub struct WatchedVault {
    store: Arc<dyn Vault>,
    health: Arc<StoreHealth>,
}

impl WatchedVault {
    /// The same store; `health` notes how its requests end.
    pub fn new(store: Arc<dyn Vault>, health: Arc<StoreHealth>) -> Self {
        Self { store, health }
    }

    fn noted<T>(
        &self,
        request: StoreRequest,
        name: &str,
        call: impl FnOnce(&dyn Vault) -> Result<T>,
    ) -> Result<T> {
        let begun = self.health.begin(request, name);
        let result = call(&*self.store);
        begun.end(&result);
        result
    }
}

impl Vault for WatchedVault {
    fn put(&self, name: &str, pieces: &[Bytes]) -> Result<()> {
        self.noted(Write, name, |store| store.put(name, pieces))
    }

    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        self.noted(Write, name, |store| store.create(name, bytes))
    }

    fn create_of(&self, name: &str, pieces: &[Bytes]) -> Result<bool> {
        self.noted(Write, name, |store| store.create_of(name, pieces))
    }

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.noted(Read, name, |store| store.get(name, range))
    }

    fn get_pieces(
        &self,
        name: &str,
        range: Range<u64>,
        take: &mut dyn FnMut(Bytes) -> Result<()>,
    ) -> Result<()> {
        let begun = self.health.begin(Read, name);
        let mut is_taken = true;
        let result = self.store.get_pieces(name, range, &mut |piece| {
            let taken = take(piece);
            is_taken = taken.is_ok();
            taken
        });
        // An error of the one that takes the pieces says nothing about the store.
        if is_taken {
            begun.end(&result);
        }
        result
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        let size = self.noted(Look, name, |store| store.size(name))?;
        self.health.note_there(name, size.is_some());
        Ok(size)
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.noted(Look, prefix, |store| store.list(prefix))
    }

    fn modified(&self, name: &str) -> Result<Option<Timestamp>> {
        self.noted(Look, name, |store| store.modified(name))
    }

    fn delete(&self, name: &str) -> Result<()> {
        // The store may forbid deletion alone: then records are stored and read nevertheless.
        self.store.delete(name)
    }
}
