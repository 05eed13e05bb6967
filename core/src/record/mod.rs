//! Records in batches, with their checksums and their compression. Bytes only.

pub(crate) mod batch;
pub(crate) mod compression;
#[cfg_attr(
    not(feature = "testing"),
    allow(unreachable_pub, reason = "tests and benchmarks use it from outside")
)]
pub(crate) mod crc;
pub(crate) mod reference;
