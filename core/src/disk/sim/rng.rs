//! The random generator for all sampling: a seed gives the same numbers on every machine.

use crate::random::SplitMix;

/// A small seeded random generator (splitmix64): the same seed gives the same numbers on every machine.
///
/// ```
/// use chiplog::disk::sim::Rng;
/// assert_eq!(Rng::new(7).next_u64(), Rng::new(7).next_u64());
/// assert!(Rng::new(7).below(10) < 10);
/// ```
#[derive(Clone, Debug)]
pub struct Rng(SplitMix);

impl Rng {
    /// Creates a generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix(seed))
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next()
    }

    /// Returns a number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "there is no number below 0");
        self.0.below(bound)
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "there is no number from {low} to {high}");
        match (high - low).checked_add(1) {
            Some(span) => low + self.next_u64() % span,
            None => self.next_u64(),
        }
    }

    /// Returns true in `of_thousand` of a thousand cases.
    pub fn permille(&mut self, of_thousand: u32) -> bool {
        self.next_u64() % 1000 < u64::from(of_thousand)
    }

    /// Returns one of the elements; None if there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { from.get(self.below(from.len())) }
    }

    /// Returns a separate generator, so that one part's draws do not change those of others.
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}
