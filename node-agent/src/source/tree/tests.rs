use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

static PACKED: &[(&str, Packed)] = &[
    ("sys/bus/dev0", Packed::Link("../devices/pci0/dev0")),
    ("sys/bus/outside", Packed::Link("/../../sys/devices/pci0/dev0")),
    ("sys/devices/pci0-other", Packed::File(b"sorts before pci0/\n")),
    ("sys/devices/pci0/dev0/class", Packed::File(b"0x0302\n")),
    ("sys/devices/pci0/dev0/raw", Packed::File(b"\xff")),
    ("sys/loop", Packed::Link("loop/again")),
    ("sys/nowhere", Packed::Link("../../gone")),
];

/// The same tree on disk.
fn on_disk(entries: &[(&str, Packed)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, packed) in entries {
        let place = folder.path().join(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        match packed {
            Packed::File(bytes) => fs::write(place, bytes).unwrap(),
            Packed::Link(target) => symlink(target, place).unwrap(),
        }
    }
    folder
}

/// Both kinds of tree answer alike.
#[track_caller]
fn check(path: &str, expect: Result<&str, &str>) {
    let folder = on_disk(PACKED);
    for tree in [Tree::Packed(PACKED), Tree::disk(folder.path())] {
        let answer = tree.text(path).map_err(|error| error.to_string());
        assert_eq!(answer.as_deref().map_err(String::as_str), expect, "{tree:?}");
    }
}

#[test]
fn text_is_read_through_relative_links() {
    check("sys/bus/dev0/class", Ok("0x0302\n"));
    check("sys/devices/pci0/dev0/class", Ok("0x0302\n"));
}

#[test]
fn links_never_leave_the_root() {
    check("sys/bus/outside/class", Ok("0x0302\n"));
    check("../../sys/bus/dev0/class", Ok("0x0302\n"));
}

#[test]
fn what_is_no_text_file_is_an_error_that_names_the_path() {
    check("sys/devices/pci0", Err("cannot read /sys/devices/pci0: expected a file"));
    check("sys/devices/pci0/dev0/raw", Err("cannot read /sys/devices/pci0/dev0/raw: not UTF-8"));
    check("sys/nothing", Err("/sys/nothing does not exist"));
    check("sys/nowhere", Err("/sys/nowhere does not exist"));
    check("sys/devices/pci0-other/below", Err("/sys/devices/pci0-other/below does not exist"));
    check("sys/loop", Err("cannot read /sys/loop: more than 40 links"));
    check("", Err("cannot read /: expected a file"));
}

#[test]
fn names_are_those_of_the_folder_alone() {
    let folder = on_disk(PACKED);
    for tree in [Tree::Packed(PACKED), Tree::disk(folder.path())] {
        let names = |path| tree.names(path).map(|names| names.into_iter().collect::<Vec<_>>().join(" "));
        assert_eq!(names("sys/devices").unwrap(), "pci0 pci0-other");
        assert_eq!(names("sys/bus/dev0").unwrap(), "class raw");
        assert_eq!(names("").unwrap(), "sys");
        assert!(matches!(names("sys/bus/dev0/class"), Err(TreeError::WrongKind { .. })));
        assert!(matches!(names("sys/gone"), Err(TreeError::NotFound { .. })));
    }
}

#[test]
fn a_link_is_read_as_it_is_written() {
    let folder = on_disk(PACKED);
    for tree in [Tree::Packed(PACKED), Tree::disk(folder.path())] {
        assert_eq!(tree.link("sys/bus/dev0").unwrap(), "../devices/pci0/dev0");
        assert!(matches!(tree.link("sys/bus"), Err(TreeError::WrongKind { .. })));
        assert!(matches!(tree.link("sys/gone"), Err(TreeError::NotFound { .. })));
    }
}

#[test]
fn an_endless_file_is_read_up_to_the_bound_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = fs::File::create(folder.path().join("huge")).unwrap();
    file.set_len(1 << 40).unwrap();
    let error = Tree::disk(folder.path()).text("huge").unwrap_err();
    assert_eq!(error.to_string(), "cannot read /huge: more than 65536 bytes");
}

#[test]
fn a_socket_is_no_file_and_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
    let error = Tree::disk(folder.path()).text("socket").unwrap_err();
    assert_eq!(error.to_string(), "cannot read /socket: expected a file");
}

#[test]
fn any_path_has_the_same_answer_packed_and_on_disk() {
    let steps = [
        "sys", "bus", "devices", "dev0", "pci0", "class", "raw", "outside", "loop", "nowhere", "..", ".", "",
    ];
    let paths =
        prop::collection::vec(prop::sample::select(steps.to_vec()), 0..8).prop_map(|steps| steps.join("/"));
    let folder = on_disk(PACKED);
    let (packed, disk) = (Tree::Packed(PACKED), Tree::disk(folder.path()));
    let check = |path: String| {
        prop_assert_eq!(packed.text(&path), disk.text(&path));
        prop_assert_eq!(packed.names(&path), disk.names(&path));
        Ok(())
    };
    TestRunner::new(Config::with_cases(2_000)).run(&paths, check).unwrap();
}
