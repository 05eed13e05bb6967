//! Planted bugs: mistakes that can be switched on one at a time, to see that the simulator finds each. Without the
//! feature `testing`, `planted!` is `false` and the program holds none of this code.
//!
//! Must not know: anything.

/// Whether this mistake is being made.
#[cfg(not(feature = "testing"))]
macro_rules! planted {
    ($number:literal) => {
        false
    };
}

/// Whether this mistake is being made.
#[cfg(feature = "testing")]
macro_rules! planted {
    ($number:literal) => {
        crate::testing::planted_bugs::is_planted($number)
    };
}

#[cfg(feature = "testing")]
pub(crate) use chosen::{is_planted, plant};

#[cfg(feature = "testing")]
mod chosen {
    use std::sync::atomic::{AtomicU32, Ordering};

    /// The number of the planted bug; 0: none. It applies to the whole process and only changes between runs.
    static PLANTED: AtomicU32 = AtomicU32::new(0);

    pub(crate) fn plant(number: u32) {
        PLANTED.store(number, Ordering::SeqCst);
    }

    pub(crate) fn is_planted(number: u32) -> bool {
        PLANTED.load(Ordering::Relaxed) == number
    }
}
