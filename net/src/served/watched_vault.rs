//! WatchedVault: an object store whose requests are noted, so that the server's status shows that the store fails.

use crate::served::store_health::StoreHealth;
use crate::served::store_health::StoreRequest::{self, Read, Write};
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

    fn noted<T>(&self, request: StoreRequest, result: Result<T>) -> Result<T> {
        self.health.note(request, &result);
        result
    }
}

impl Vault for WatchedVault {
    fn put(&self, name: &str, pieces: &[Bytes]) -> Result<()> {
        self.noted(Write, self.store.put(name, pieces))
    }

    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        self.noted(Write, self.store.create(name, bytes))
    }

    fn create_of(&self, name: &str, pieces: &[Bytes]) -> Result<bool> {
        self.noted(Write, self.store.create_of(name, pieces))
    }

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.noted(Read, self.store.get(name, range))
    }

    fn get_pieces(
        &self,
        name: &str,
        range: Range<u64>,
        take: &mut dyn FnMut(Bytes) -> Result<()>,
    ) -> Result<()> {
        let mut is_taken = true;
        let result = self.store.get_pieces(name, range, &mut |piece| {
            let taken = take(piece);
            is_taken = taken.is_ok();
            taken
        });
        // An error of the one that takes the pieces says nothing about the store.
        if is_taken { self.noted(Read, result) } else { result }
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        self.noted(Read, self.store.size(name))
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.noted(Read, self.store.list(prefix))
    }

    fn modified(&self, name: &str) -> Result<Option<Timestamp>> {
        self.noted(Read, self.store.modified(name))
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.noted(Write, self.store.delete(name))
    }
}
