//! Packs the scenes under testdata/ into the library, so that `fathom` can show them without this repository.
//! Out: `scenes.rs`, one static table per scene: its NVML answers, and its files and links in path order; and the client of
//! the kubelet's API (with its server, for tests), compiled by protox: no protoc is needed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    compile_kubelet_api()?;
    pack_scenes()?;
    Ok(())
}

fn compile_kubelet_api() -> Result<(), Box<dyn std::error::Error>> {
    const FILE: &str = "kubelet/podresources.proto";
    println!("cargo:rerun-if-changed={FILE}");
    tonic_prost_build::configure().compile_fds(protox::compile([FILE], ["kubelet"])?)?;
    Ok(())
}

fn pack_scenes() -> io::Result<()> {
    println!("cargo:rerun-if-changed=testdata");
    let testdata = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?).join("testdata");
    let mut code = String::from("static SHIPPED: &[Shipped] = &[\n");
    for folder in sorted_entries(&testdata)? {
        let nvml = folder.join("nvml.yaml");
        if !nvml.is_file() {
            continue;
        }
        let root = folder.join("root");
        let mut entries = Vec::new();
        collect(&root, &root, &mut entries)?;
        // The reader searches this table by halving: the order is that of whole paths, not of a folder walk.
        entries.sort();
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let _ = writeln!(code, "Shipped {{ name: {name:?}, nvml: include_str!({nvml:?}), entries: &[");
        for (path, packed) in entries {
            let _ = writeln!(code, "({path:?}, {packed}),");
        }
        code.push_str("] },\n");
    }
    code.push_str("];\n");
    fs::write(Path::new(&env::var("OUT_DIR").map_err(io::Error::other)?).join("scenes.rs"), code)
}

fn collect(root: &Path, folder: &Path, entries: &mut Vec<(String, String)>) -> io::Result<()> {
    for path in sorted_entries(folder)? {
        let kind = fs::symlink_metadata(&path)?.file_type();
        if kind.is_dir() {
            collect(root, &path, entries)?;
            continue;
        }
        let packed = if kind.is_symlink() {
            format!("Packed::Link({:?})", fs::read_link(&path)?)
        } else {
            format!("Packed::File(include_bytes!({path:?}))")
        };
        let relative = path.strip_prefix(root).map_err(io::Error::other)?;
        entries.push((relative.to_string_lossy().into_owned(), packed));
    }
    Ok(())
}

fn sorted_entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    Ok(entries)
}
