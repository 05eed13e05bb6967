//! Generates Rust code from the protos, without protoc.

use prost::Message;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = [
        "logspec.proto",
        "chiplog/v1/log.proto",
        "chiplog/v1/peer.proto",
        "chiplog/v1/admin.proto",
        "chiplog/v1/follow.proto",
    ];
    let descriptors = protox::compile(files, ["proto"])?;
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out).join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".") // payloads are shared, not copied
        .extern_path(".logspec.AppendRequest", "crate::wire::logspec_request::AppendRequest") // hundreds of thousands of proposals
        .compile_fds(descriptors)?;
    Ok(())
}
