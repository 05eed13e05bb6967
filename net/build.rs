//! Generates Rust code from the protos, without protoc.

use prost::Message;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let is_server = std::env::var_os("CARGO_FEATURE_SERVER").is_some();
    let mut files = vec!["chiplog/v1/log.proto", "chiplog/v1/admin.proto", "chiplog/v1/follow.proto"];
    if is_server {
        files.extend(["logspec.proto", "chiplog/v1/peer.proto"]);
    }
    let descriptors = protox::compile(files, ["proto"])?;
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out).join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_server(is_server)
        .bytes(".") // payloads are shared, not copied
        .extern_path(".logspec.AppendRequest", "crate::wire::logspec_request::AppendRequest") // hundreds of thousands of proposals
        .extern_path(".chiplog.v1.AppendTogetherRequest", "crate::wire::proto::v1::AppendTogetherRequest") // with few batches
        .compile_fds(descriptors)?;
    Ok(())
}
