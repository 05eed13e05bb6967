//! Records to append: incompressible, made once, returned as slices so that making them costs the measured loop
//! nothing.

use std::sync::Arc;

/// A pool of random bytes to cut records from. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Pool(Arc<[u8]>);

/// The record size of most figures.
pub(crate) const RECORD_BYTES: usize = 2048;

const POOL_BYTES: usize = 16 << 20;

impl Pool {
    /// 16 MiB of random bytes, the same for the same seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut bytes = vec![0; POOL_BYTES];
        fastrand::Rng::with_seed(seed).fill(&mut bytes);
        Self(bytes.into())
    }

    /// Record `n` of records of `len` bytes each (at most 8 MiB). Consecutive records are adjacent: reading them costs
    /// no more than reading memory in order.
    pub(crate) fn record(&self, n: u64, len: usize) -> &[u8] {
        let places = (POOL_BYTES - len) as u64;
        let at = n.wrapping_mul(len as u64) % places;
        &self.0[at as usize..at as usize + len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_differ_and_have_their_length() {
        let pool = Pool::new(1);
        assert_eq!(pool.record(5, 2048).len(), 2048);
        assert_ne!(pool.record(5, 100), pool.record(6, 100));
        assert_eq!(pool.record(5, 10), Pool::new(1).record(5, 10));
    }
}
