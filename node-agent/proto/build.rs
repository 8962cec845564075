//! Generates the stubs of `proto/` and the descriptors for reflection. protox compiles the files: no protoc is needed.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const ROOT: &str = "proto";
    const FILE: &str = "proto/fathom/node/v1/node_facts.proto";
    println!("cargo::rerun-if-changed={ROOT}");
    let descriptors = PathBuf::from(std::env::var("OUT_DIR")?).join("descriptors.bin");
    let files = protox::compile([FILE], [ROOT])?;
    tonic_prost_build::configure().file_descriptor_set_path(descriptors).compile_fds(files)?;
    Ok(())
}
