//! Generates the stubs of `proto/`. protox compiles the files: no protoc is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const ROOT: &str = "proto";
    const FILE: &str = "proto/fathom/engine/v1/prefill.proto";
    println!("cargo::rerun-if-changed={ROOT}");
    let descriptors = protox::compile([FILE], [ROOT])?;
    tonic_prost_build::configure().bytes(".fathom.engine.v1").compile_fds(descriptors)?;
    Ok(())
}
