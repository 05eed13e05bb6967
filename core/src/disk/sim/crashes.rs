//! Iterates over what a power cut can leave: every legal image if there are few, a sample if there are many.

use super::rng::Rng;
use super::state::{DiskState, Image};

/// The images that a power cut at one moment can leave; made by [`DiskState::crashes`].
///
/// ```
/// use chiplog::disk::Disk;
/// use chiplog::disk::sim::SimDisk;
/// let disk = SimDisk::default();
/// disk.create("a")?;
/// disk.create("b")?;
/// let state = disk.state();
/// let crashes = state.crashes(4096, 100, 1);
/// assert!(crashes.is_exhaustive());
/// assert_eq!(crashes.count(), 4);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Crashes<'a> {
    state: &'a DiskState,
    plan: Plan,
}

#[derive(Debug)]
enum Plan {
    /// A counter with one digit per unit; `None` after it overflowed.
    All { radix: Vec<usize>, digits: Option<Vec<usize>> },
    /// First nothing, then everything, each unit alone, all but each unit; then random choices.
    Sample { radix: Vec<usize>, corner: usize, left: usize, rng: Rng },
}

impl DiskState {
    /// The images that a power cut can leave now. All legal images if there are at most `exhaustive` (4096 covers 12
    /// dirty units of two versions each); otherwise `samples` of them, the same for the same seed. The corner cases
    /// (nothing kept, everything kept, one unit kept or lost) come first. Images can repeat.
    pub fn crashes(&self, exhaustive: usize, samples: usize, seed: u64) -> Crashes<'_> {
        let mut radix = Vec::new();
        self.crash(|versions| {
            radix.push(versions);
            0
        });
        let all = radix.iter().try_fold(1usize, |n, r| n.checked_mul(*r)).filter(|n| *n <= exhaustive);
        let plan = match all {
            Some(_) => Plan::All { digits: Some(vec![0; radix.len()]), radix },
            None => Plan::Sample { radix, corner: 0, left: samples, rng: Rng::new(seed) },
        };
        Crashes { state: self, plan }
    }
}

impl Crashes<'_> {
    /// Whether every legal image is returned.
    pub fn is_exhaustive(&self) -> bool {
        matches!(self.plan, Plan::All { .. })
    }
}

impl Iterator for Crashes<'_> {
    type Item = Image;

    fn next(&mut self) -> Option<Image> {
        let digits = self.plan.next()?;
        let mut digits = digits.into_iter();
        Some(self.state.crash(|_| digits.next().unwrap_or(0)))
    }
}

impl Plan {
    /// Returns the next choice, a version for each unit.
    fn next(&mut self) -> Option<Vec<usize>> {
        match self {
            Self::All { radix, digits } => {
                let now = digits.take()?;
                let mut next = now.clone();
                // Count up: increase the first digit that is not at its maximum, and reset all before it to 0.
                if let Some(n) = (0..next.len()).find(|n| next[*n] + 1 < radix[*n]) {
                    next[..n].fill(0);
                    next[n] += 1;
                    *digits = Some(next);
                }
                Some(now)
            }
            Self::Sample { radix, corner, left, rng } => {
                *left = left.checked_sub(1)?;
                let n = *corner;
                *corner += 1;
                let units = radix.len();
                let newest = radix.iter().map(|r| r - 1);
                Some(match n {
                    0 => vec![0; units],
                    1 => newest.collect(),
                    _ if n < 2 + units => {
                        newest.enumerate().map(|(i, v)| if i == n - 2 { v } else { 0 }).collect()
                    }
                    _ if n < 2 + 2 * units => {
                        newest.enumerate().map(|(i, v)| if i == n - 2 - units { 0 } else { v }).collect()
                    }
                    _ => {
                        // From nearly nothing kept to nearly everything: a fair coin would hardly ever try those.
                        let odds = rng.below(9) + 1;
                        radix
                            .iter()
                            .map(|r| if rng.below(10) < odds { 1 + rng.below(r - 1) } else { 0 })
                            .collect()
                    }
                })
            }
        }
    }
}
