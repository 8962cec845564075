//! Generates the stubs of `proto/` and the descriptors for reflection. protox compiles the files: no protoc is needed.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const ROOT: &str = "proto";
    const FILE: &str = "fathom/node/v1/node_facts.proto";
    println!("cargo::rerun-if-changed={ROOT}");
    let mut compiler = protox::Compiler::new([ROOT])?;
    compiler.include_imports(true).open_file(FILE)?;
    let descriptors = PathBuf::from(std::env::var("OUT_DIR")?).join("descriptors.bin");
    std::fs::write(descriptors, compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure().btree_map(".").compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
