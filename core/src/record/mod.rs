//! Records in batches, with their checksums and their compression. Bytes only.

pub(crate) mod batch;
pub(crate) mod compression;
pub(crate) mod crc;
