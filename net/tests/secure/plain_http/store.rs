//! An object store with faults, and servers whose logs have objects there.

use crate::support::{PATIENCE, Served};
use bytes::Bytes;
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{Error, ErrorKind, Index, Log};
use chiplog_net::listener::Settings;
use chiplog_net::listener::auth::roles::Tokens;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub(super) const SEGMENT: u32 = 256 << 10;

/// The behaviour of a [`Store`] when objects are requested.
pub(super) const WORKS: u8 = 0;
pub(super) const IS_DOWN: u8 = 1;
pub(super) const REFUSES: u8 = 2;
pub(super) const FLIPS: u8 = 3;
pub(super) const WAITS: u8 = 4;

/// A store with faults.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) objects: MemoryVault,
    fault: AtomicU8,
    pub(super) gets: AtomicUsize,
    /// Requests that wait.
    pub(super) waiting: AtomicUsize,
    goes_on: (Mutex<bool>, Condvar),
}

impl Store {
    pub(super) fn set(&self, fault: u8) {
        *self.goes_on.0.lock().unwrap() = fault != WAITS;
        self.fault.store(fault, Ordering::SeqCst);
    }

    pub(super) fn go_on(&self) {
        self.set(WORKS);
        self.goes_on.1.notify_all();
    }
}

impl Vault for Store {
    chiplog::vault::pass_on!(objects: put, create, size, list, delete);

    fn get(&self, name: &str, range: Range<u64>) -> chiplog::Result<Bytes> {
        self.gets.fetch_add(1, Ordering::SeqCst);
        let fault = self.fault.load(Ordering::SeqCst);
        match fault {
            IS_DOWN => return Err(Error::new(ErrorKind::Unavailable, "the store is down")),
            REFUSES => return Err(Error::new(ErrorKind::PermissionDenied, "the store says no")),
            WAITS => {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                let (goes_on, changed) = &self.goes_on;
                drop(changed.wait_while(goes_on.lock().unwrap(), |goes_on| !*goes_on).unwrap());
                self.waiting.fetch_sub(1, Ordering::SeqCst);
            }
            _ => {}
        }
        let is_end = range.end == self.objects.size(name)?.unwrap_or(0);
        let mut bytes = self.objects.get(name, range)?.to_vec();
        if fault == FLIPS && is_end {
            *bytes.last_mut().unwrap() ^= 1;
        }
        Ok(bytes.into())
    }
}

/// A server whose log has about `count` records of 1,000 bytes in objects.
pub(super) async fn served(
    settings: Settings,
    tokens: Option<Tokens>,
    sizes: (u32, u32),
    count: u64,
) -> (Served, Arc<Store>) {
    let store = Arc::new(Store::default());
    let server = Served::with_objects(settings, tokens, store.clone(), sizes).await;
    let log = server.log.clone();
    tokio::task::spawn_blocking(move || {
        let tickets: Vec<_> = (0..count).map(|n| log.submit(&[n as u8; 1000]).unwrap()).collect();
        let last = tickets.into_iter().map(|ticket| ticket.wait().unwrap()).max().unwrap();
        store_upto(&log, last);
    })
    .await
    .unwrap();
    (server, store)
}

/// Has the records up to this one put into objects, and waits until they are stored.
pub(super) fn store_upto(log: &Log, last: Index) {
    log.cut_objects(last).unwrap();
    let begun = Instant::now();
    while log.metrics().stored_index < last.get() {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(super) async fn small() -> (Served, Arc<Store>) {
    served(Settings::default(), None, (SEGMENT, 128 << 10), 3000).await
}
