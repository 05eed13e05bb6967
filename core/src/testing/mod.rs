//! Test support inside the shipped code: planted bugs, the simulator, entry points for fuzzing.

#[macro_use]
pub(crate) mod planted_bugs;

#[cfg(feature = "testing")]
pub mod fuzzing;
#[cfg(any(test, feature = "testing"))]
pub mod sim;
