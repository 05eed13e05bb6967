//! The bare reference loop: the least that makes an append durable for many threads at once.
//!
//! A buffer behind a mutex. A writer thread swaps it for an empty one, writes it with one `pwrite`, makes it durable
//! with one `fdatasync`, and wakes all waiting threads with one futex broadcast. No format, no checksum, no positions,
//! no reader, no recovery: these are what a log adds, and what it costs.
//!
//! Must not know: chiplog.

use crate::raw::ZeroFilled;
use crate::workload::Appender;
use anyhow::{Result, anyhow};
use rustix::thread::futex;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The running loop. Dropping it stops the thread and removes the file.
#[derive(Debug)]
pub(crate) struct Bare {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    gathering: Mutex<Gathering>,
    arrived: Condvar,
    /// Number of the last durable block, one word for odd and one for even blocks so that a broadcast wakes no thread
    /// that waits for the next block.
    done: [AtomicU32; 2],
    failed: AtomicU32,
}

#[derive(Debug)]
struct Gathering {
    bytes: Vec<u8>,
    /// Number of the block that collects appends.
    block: u32,
    stop: bool,
}

impl Bare {
    /// Makes the zero-filled file in `dir`, which is written repeatedly from the start, and starts the writer.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn start(dir: &Path, file_bytes: u64) -> Result<Self> {
        let file = ZeroFilled::create(dir, file_bytes)?;
        let shared = Arc::new(Shared {
            gathering: Mutex::new(Gathering { bytes: Vec::new(), block: 1, stop: false }),
            arrived: Condvar::new(),
            done: [AtomicU32::new(0), AtomicU32::new(0)],
            failed: AtomicU32::new(0),
        });
        let theirs = shared.clone();
        let writer =
            std::thread::Builder::new().name("bare-writer".into()).spawn(move || theirs.write(file))?;
        Ok(Self { shared, writer: Some(writer) })
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.shared.gathering.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.shared.arrived.notify_all();
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has printed the reason itself.
            let _ = writer.join();
        }
    }
}

impl Shared {
    fn write(&self, mut file: ZeroFilled) {
        let mut spare = Vec::new();
        loop {
            let mut gathering = self.gathering.lock().unwrap_or_else(PoisonError::into_inner);
            while gathering.bytes.is_empty() {
                if gathering.stop {
                    return;
                }
                gathering = self.arrived.wait(gathering).unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::swap(&mut gathering.bytes, &mut spare);
            let block = gathering.block;
            gathering.block = block.wrapping_add(1);
            drop(gathering);
            if file.write_and_sync(&spare).is_err() {
                self.failed.store(1, Ordering::Release);
            }
            spare.clear();
            let done = &self.done[block as usize % 2];
            done.store(block, Ordering::Release);
            // Fails only for a bad address.
            let _ = futex::wake(done, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }
}

impl Appender for Bare {
    fn append(&self, record: &[u8]) -> Result<()> {
        let shared = &*self.shared;
        let mut gathering = shared.gathering.lock().map_err(|_| anyhow!("the writer panicked"))?;
        let first = gathering.bytes.is_empty();
        gathering.bytes.extend_from_slice(record);
        let block = gathering.block;
        drop(gathering);
        if first {
            shared.arrived.notify_one();
        }
        let done = &shared.done[block as usize % 2];
        loop {
            let seen = done.load(Ordering::Acquire);
            if block.wrapping_sub(seen) as i32 <= 0 {
                break;
            }
            // Returns immediately if the word has changed; after any error the loop checks again.
            let _ = futex::wait(done, futex::Flags::PRIVATE, seen, None);
        }
        if shared.failed.load(Ordering::Acquire) != 0 {
            return Err(anyhow!("the bare loop's write failed"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_of_many_threads_return() {
        let dir = tempfile::tempdir().unwrap();
        let bare = Bare::start(dir.path(), 1 << 20).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..50).for_each(|_| bare.append(&[7; 100]).unwrap()));
            }
        });
        let blocks = bare.shared.gathering.lock().unwrap().block - 1;
        assert!((1..=400).contains(&blocks), "{blocks}");
    }
}
