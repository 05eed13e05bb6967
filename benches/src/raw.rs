//! The limits of the machine itself, with which every figure is compared.
//!
//! All of it is plain system calls on plain files in the same directory as the log, in the same run.
//!
//! Must not know: chiplog.

use crate::data::Pool;
use crate::measure::Latencies;
use anyhow::{Context, Result, anyhow, ensure};
use rustix::fs::{Advice, fadvise};
use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::io::{ErrorKind, Read};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// A file filled with zeros and synced, so that writing to it allocates nothing. It is written repeatedly from the
/// start. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct ZeroFilled {
    file: File,
    path: PathBuf,
    bytes: u64,
    at: u64,
}

impl ZeroFilled {
    /// Makes the file in `dir`.
    ///
    /// # Errors
    /// Those of the file system, with the path.
    pub(crate) fn create(dir: &Path, bytes: u64) -> Result<Self> {
        let path = dir.join("raw.zeros");
        let context = || format!("making {}", path.display());
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.with_context(context)?;
        let zeros = vec![0; 4 << 20];
        let mut at = 0;
        while at < bytes {
            let piece = (bytes - at).min(zeros.len() as u64);
            file.write_all_at(&zeros[..piece as usize], at).with_context(context)?;
            at += piece;
        }
        file.sync_all().with_context(context)?;
        Ok(Self { file, path, bytes, at: 0 })
    }

    /// One `pwrite` after the last one and one `fdatasync`.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn write_and_sync(&mut self, block: &[u8]) -> Result<()> {
        if self.at + block.len() as u64 > self.bytes {
            self.at = 0;
        }
        self.file.write_all_at(block, self.at)?;
        self.file.sync_data()?;
        self.at += block.len() as u64;
        Ok(())
    }
}

impl Drop for ZeroFilled {
    fn drop(&mut self) {
        // The whole directory is removed later anyway.
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes blocks of `block_bytes`, each followed by `fdatasync`, for about `time`. The latencies are those
/// of `pwrite` and `fdatasync` together.
///
/// # Errors
/// Those of the file system.
pub(crate) fn sync_loop(
    file: &mut ZeroFilled,
    pool: &Pool,
    block_bytes: usize,
    time: Duration,
) -> Result<Syncs> {
    let mut latencies = Latencies::new()?;
    let block_bytes = block_bytes.clamp(1, 8 << 20);
    let start = Instant::now();
    let mut elapsed = Duration::ZERO;
    while elapsed < time {
        let block = pool.record(latencies.count(), block_bytes);
        let before = start.elapsed();
        file.write_and_sync(block)?;
        elapsed = start.elapsed();
        latencies.record(elapsed - before);
    }
    Ok(Syncs { per_second: latencies.count() as f64 / elapsed.as_secs_f64(), latencies })
}

/// A [`sync_loop`] on each file, concurrently; returns blocks a second of each, slowest first.
///
/// # Errors
/// Those of the file system.
pub(crate) fn sync_side_by_side(
    files: &mut [ZeroFilled],
    pool: &Pool,
    block_bytes: usize,
    time: Duration,
) -> Result<Vec<f64>> {
    let mut rates = thread::scope(|scope| {
        let run = |file| scope.spawn(move || sync_loop(file, pool, block_bytes, time));
        let loops: Vec<_> = files.iter_mut().map(run).collect();
        let rate = |l: thread::ScopedJoinHandle<'_, Result<Syncs>>| {
            Ok(l.join().map_err(|_| anyhow!("a raw loop panicked"))??.per_second)
        };
        loops.into_iter().map(rate).collect::<Result<Vec<f64>>>()
    })?;
    rates.sort_by(f64::total_cmp);
    Ok(rates)
}

/// The result of [`sync_loop`].
#[derive(Clone, Debug)]
pub(crate) struct Syncs {
    /// Blocks made durable a second.
    pub per_second: f64,
    /// Latency of each.
    pub latencies: Latencies,
}

/// How plain reading asks the kernel to read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readahead {
    /// Not at all: the kernel detects by itself that the reads are sequential.
    Kernel,
    /// `POSIX_FADV_SEQUENTIAL` on each file: twice the kernel's own window.
    Sequential,
    /// `POSIX_FADV_WILLNEED` for the next two pieces, continuously.
    Window,
}

impl Readahead {
    /// All of them, to find the best.
    pub(crate) const ALL: [Self; 3] = [Self::Kernel, Self::Sequential, Self::Window];
}

/// Reads all `files`, one after the other, in pieces of `piece` bytes, and returns bytes a second. It reuses its one
/// buffer, as `cat` does, so that it measures the kernel's copy (and the device).
///
/// # Errors
/// Those of the file system, with the path.
pub(crate) fn read_files(files: &[PathBuf], piece: usize, ahead: Readahead) -> Result<f64> {
    let mut buffer = vec![0; piece];
    let mut total = 0u64;
    let start = Instant::now();
    for path in files {
        let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        if ahead == Readahead::Sequential {
            fadvise(&file, 0, None, Advice::Sequential)?;
        }
        let window = NonZeroU64::new(2 * piece as u64);
        let mut at = 0;
        loop {
            if ahead == Readahead::Window {
                fadvise(&file, at, window, Advice::WillNeed)?;
            }
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => at += n as u64,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e).with_context(|| format!("reading {}", path.display())),
            }
            black_box(&buffer);
        }
        total += at;
    }
    ensure!(total > 0, "there is nothing to read");
    Ok(total as f64 / start.elapsed().as_secs_f64())
}

/// Reads `count` random places of `len` bytes each of the files with `pread`.
///
/// # Errors
/// Those of the file system, with the path.
pub(crate) fn read_random(
    files: &[PathBuf],
    len: usize,
    time: Duration,
    latencies: &mut Latencies,
) -> Result<f64> {
    let open = |path: &PathBuf| File::open(path).with_context(|| format!("opening {}", path.display()));
    let files: Vec<File> = files.iter().map(open).collect::<Result<_>>()?;
    let sizes: Vec<u64> = files.iter().map(|f| Ok(f.metadata()?.len())).collect::<Result<_>>()?;
    ensure!(sizes.iter().any(|size| *size > len as u64), "there is nothing to read");
    let mut random = fastrand::Rng::with_seed(7);
    let mut buffer = vec![0; len];
    let start = Instant::now();
    let mut elapsed = Duration::ZERO;
    let mut count = 0;
    while elapsed < time {
        let n = random.usize(..files.len());
        if sizes[n] <= len as u64 {
            continue;
        }
        let at = random.u64(..sizes[n] - len as u64);
        let before = start.elapsed();
        files[n].read_exact_at(&mut buffer, at)?;
        black_box(&buffer);
        elapsed = start.elapsed();
        latencies.record(elapsed - before);
        count += 1;
    }
    Ok(f64::from(count) / elapsed.as_secs_f64())
}

/// Copies 8 MiB back and forth in memory; bytes a second.
pub(crate) fn memory_copy(time: Duration) -> f64 {
    let from = vec![1u8; 8 << 20];
    let mut to = vec![0u8; 8 << 20];
    let start = Instant::now();
    let mut copied = 0u64;
    while start.elapsed() < time {
        to.copy_from_slice(black_box(&from));
        black_box(&to);
        copied += to.len() as u64;
    }
    copied as f64 / start.elapsed().as_secs_f64()
}

/// Drops the files from the page cache, and leaves all other files there. No process may have them mapped: such pages
/// stay.
///
/// # Errors
/// Those of the file system, with the path.
pub(crate) fn drop_caches(files: &[PathBuf]) -> Result<()> {
    for path in files {
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zero_filled_file_goes_round_and_keeps_its_size() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = ZeroFilled::create(dir.path(), 10_000).unwrap();
        for _ in 0..7 {
            file.write_and_sync(&[1; 4096]).unwrap();
        }
        let path = dir.path().join("raw.zeros");
        assert_eq!(fs::metadata(&path).unwrap().len(), 10_000);
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn raw_loops_count_what_they_do() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::new(1);
        let mut file = ZeroFilled::create(dir.path(), 1 << 20).unwrap();
        let syncs = sync_loop(&mut file, &pool, 2048, Duration::from_millis(20)).unwrap();
        assert!(syncs.latencies.count() > 0 && syncs.per_second > 0.0);

        let sub = dir.path().join("another");
        fs::create_dir(&sub).unwrap();
        let mut both = [file, ZeroFilled::create(&sub, 1 << 20).unwrap()];
        let rates = sync_side_by_side(&mut both, &pool, 2048, Duration::from_millis(20)).unwrap();
        assert!(rates.len() == 2 && rates[0] > 0.0 && rates[0] <= rates[1]);

        let files = [dir.path().join("raw.zeros")];
        drop_caches(&files).unwrap();
        for ahead in Readahead::ALL {
            assert!(read_files(&files, 1 << 16, ahead).unwrap() > 0.0);
        }
        let mut latencies = Latencies::new().unwrap();
        assert!(read_random(&files, 2048, Duration::from_millis(5), &mut latencies).unwrap() > 0.0);
        assert!(latencies.count() > 0);
        assert!(read_files(&[dir.path().join("none")], 1, Readahead::Kernel).is_err());
    }
}
