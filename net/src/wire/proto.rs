//! Messages and services, generated from `proto/`.

#![allow(missing_docs, clippy::all, reason = "generated; the protos are the documentation")]

/// The service of existing clients.
#[cfg(feature = "server")]
pub mod logspec {
    tonic::include_proto!("logspec");
}

/// The native services.
pub mod v1 {
    tonic::include_proto!("chiplog.v1");
}

/// All protos, compiled, for server reflection.
#[cfg(feature = "server")]
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
