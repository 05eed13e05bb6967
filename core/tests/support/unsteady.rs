//! An object store whose puts can hang, and whose answers can come damaged.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "test support")]

use bytes::Bytes;
use chiplog::vault::{MemoryVault, Vault};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Puts of payload hang while `hangs` is set, until they are let go. The first `damages` answers to a get of each slice, of
/// payload or of entries, come damaged.
#[derive(Debug, Default)]
pub struct Unsteady {
    pub below: MemoryVault,
    pub hangs: AtomicBool,
    pub hung: AtomicU64,
    pub lets_go: AtomicBool,
    /// The next put of an object hangs until it is let go, and then arrives damaged.
    pub holds_object: AtomicBool,
    pub held: AtomicBool,
    pub lets_object_go: AtomicBool,
    pub has_landed: AtomicBool,
    pub damages: AtomicU64,
    pub gets: Mutex<BTreeMap<String, u64>>,
}

impl Unsteady {
    fn wait(&self) {
        if self.hangs.load(Ordering::SeqCst) {
            self.hung.fetch_add(1, Ordering::SeqCst);
            while !self.lets_go.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

impl Unsteady {
    /// An object that hangs first: what arrives. None: it does not hang.
    fn damaged_later(&self, name: &str, bytes: &[u8]) -> Option<Bytes> {
        if !name.contains("/o/") || !self.holds_object.swap(false, Ordering::SeqCst) {
            return None;
        }
        self.held.store(true, Ordering::SeqCst);
        while !self.lets_object_go.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut bytes = bytes.to_vec();
        let middle = bytes.len() / 3;
        bytes[middle] ^= 1;
        Some(bytes.into())
    }
}

impl Vault for Unsteady {
    chiplog::vault::pass_on!(below: size, list, delete);

    fn put(&self, name: &str, pieces: &[Bytes]) -> chiplog::Result<()> {
        if name.contains("/p/") {
            self.wait();
        }
        let Some(damaged) = self.damaged_later(name, &pieces.concat()) else {
            return self.below.put(name, pieces);
        };
        let put = self.below.put(name, &[damaged]);
        self.has_landed.store(true, Ordering::SeqCst);
        put
    }

    fn create(&self, name: &str, bytes: Bytes) -> chiplog::Result<bool> {
        let Some(damaged) = self.damaged_later(name, &bytes) else {
            return self.below.create(name, bytes);
        };
        let created = self.below.create(name, damaged);
        self.has_landed.store(true, Ordering::SeqCst);
        created
    }

    fn get(&self, name: &str, range: std::ops::Range<u64>) -> chiplog::Result<Bytes> {
        let found = self.below.get(name, range)?;
        let mut gets = self.gets.lock().unwrap();
        let count = gets.entry(name.to_owned()).or_default();
        *count += 1;
        let damages = self.damages.load(Ordering::SeqCst);
        // Where one fetch is not enough, they are of one slice alone.
        let is_slice = match damages {
            0..=3 => name.contains("/p/") || name.contains("/s/"),
            _ => name.ends_with("/p/00000000000000000001.00000000000000000001"),
        };
        if !is_slice || *count > damages {
            return Ok(found);
        }
        let mut damaged = found.to_vec();
        damaged[found.len() - 6] ^= 16;
        Ok(damaged.into())
    }
}
