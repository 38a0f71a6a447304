//! State folders in a temporary base, and made-up mount tables.

use super::{
    MountFile, SessionFile, StateError, StateFolder,
    find::{find_all_in, pick},
    folder::{self, folder_name, holder},
    mountinfo::{self, MountLine},
    text::{absolute, drive_path},
};
use crate::{control::api::Left, exit::Exit};
use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

fn line(mount_point: &str, fs_type: &str, source: &str) -> MountLine {
    MountLine { mount_point: PathBuf::from(mount_point), fs_type: fs_type.into(), source: source.into() }
}

fn mount_file(drive: &str, mount_point: &str, started_unix_ms: u64) -> MountFile {
    MountFile {
        pid: 1,
        drive: drive.into(),
        mount_point: PathBuf::from(mount_point),
        named: PathBuf::from(mount_point),
        server: "http://127.0.0.1:7440".into(),
        session: "a".into(),
        started_unix_ms,
        control_socket: PathBuf::from("/s/control.sock"),
        ready: true,
        left: None,
        config: serde_json::Value::Null,
    }
}

fn put(base: &Path, file: &MountFile) -> PathBuf {
    let folder = base.join(folder_name(&file.drive, &file.mount_point));
    std::fs::create_dir_all(&folder).unwrap();
    file.store(&folder).unwrap();
    folder
}

/// Paths are taken apart by text alone.
#[test]
fn paths_by_text() {
    let cwd = Path::new("/home/u");
    for (given, is) in [
        ("a/b", "/home/u/a/b"),
        ("./a/../b/", "/home/u/b"),
        ("/x//y/.", "/x/y"),
        ("../../../..", "/"),
        (".", "/home/u"),
    ] {
        assert_eq!(absolute(Path::new(given), cwd), Path::new(is), "{given}");
    }
    assert_eq!(drive_path("main:/a/b"), Some(("main", "/a/b")));
    for plain in ["main", "main:a", "./main:/a", "/x:/y", ":/a", ""] {
        assert_eq!(drive_path(plain), None, "{plain}");
    }
}

/// The kernel's table, its escapes, optional fields and nonsense.
#[test]
fn a_mount_table_is_read() {
    let table = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
        40 22 0:50 / /mnt/two\\040words rw shared:2 master:1 - fuse.tidefs tidefs:main rw\n\
        41 22 0:51 / /mnt/b\\134s rw - fuse tidefs rw\nnonsense\n\n42 22 0:52 / /no-dash rw\n";
    let lines = mountinfo::parse(table);
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[1], line("/mnt/two words", "fuse.tidefs", "tidefs:main"));
    assert_eq!(lines[2].mount_point, Path::new("/mnt/b\\s"));
    assert!(lines[1].is_tidefs() && lines[2].is_tidefs() && !lines[0].is_tidefs());
    let covering = |path: &str| mountinfo::covering(&lines, Path::new(path)).unwrap().mount_point.clone();
    assert_eq!(covering("/mnt/two words/x"), Path::new("/mnt/two words"));
    assert_eq!(covering("/mnt/two wordsx"), Path::new("/"));
    assert!(!mountinfo::read().unwrap().is_empty());
}

/// What lies on top of a mount point counts.
#[test]
fn what_is_on_top_counts() {
    let mut lines = vec![line("/m", "fuse.tidefs", "tidefs:main")];
    assert!(mountinfo::tidefs_at(&lines, Path::new("/m")));
    lines.push(line("/m", "tmpfs", "tmpfs"));
    assert!(!mountinfo::tidefs_at(&lines, Path::new("/m")));
}

/// A path finds the innermost mount, not one whose name begins alike, and not across another file system.
#[test]
fn a_path_finds_its_mount() {
    let base = tempfile::tempdir().unwrap();
    for file in
        [mount_file("outer", "/m", 1), mount_file("inner", "/m/sub", 1), mount_file("late", "/m/sub", 9)]
    {
        put(base.path(), &file);
    }
    std::fs::write(base.path().join("up-server.log"), "x").unwrap();
    std::fs::create_dir(base.path().join("up-data")).unwrap();
    let lines =
        [line("/", "ext4", "/dev/sda1"), line("/m", "fuse.tidefs", "t"), line("/m/tmp", "tmpfs", "t")];
    let find = |path: &str| {
        let found = find_all_in(base.path(), &lines).unwrap();
        assert_eq!(found.len(), 3);
        pick(found, &lines, Path::new(path)).map(|(found, inner)| (found.file.drive, found.mounted, inner))
    };
    assert_eq!(find("/m"), Some(("outer".into(), true, "/".into())));
    assert_eq!(find("/m/a/b"), Some(("outer".into(), true, "/a/b".into())));
    assert_eq!(find("/m/sub/x"), Some(("late".into(), false, "/x".into())));
    assert_eq!(find("/mm"), None);
    assert_eq!(find("/m/tmp/x"), None);
    assert!(find_all_in(&base.path().join("none"), &lines).unwrap().is_empty());
}

/// A damaged `mount.json` is an error for who names it and no obstacle for the others.
#[test]
fn damaged_files_are_errors() {
    let base = tempfile::tempdir().unwrap();
    put(base.path(), &mount_file("good", "/g", 1));
    let bad = put(base.path(), &mount_file("bad", "/b", 1));
    for content in [&b"{"[..], b"", b"{}", &[b' '; 70_000]] {
        std::fs::write(bad.join("mount.json"), content).unwrap();
        assert!(matches!(MountFile::load(&bad), Err(StateError::Damaged { .. })));
        assert_eq!(find_all_in(base.path(), &[]).unwrap().len(), 1);
    }
    for id in ["", "zz", "+1234567890123456789012345678901", "é"] {
        let text = format!(
            "{{\"session_id\":\"{id}\",\"session_name\":\"a\",\"session_no\":1,\"incarnation\":1,\
             \"drive_id\":\"{0}\",\"history\":\"{0}\"}}",
            "0".repeat(32)
        );
        std::fs::write(bad.join("session.json"), text).unwrap();
        assert!(matches!(SessionFile::load(&bad), Err(StateError::Damaged { .. })), "{id}");
    }
}

/// What is stored is loaded, is the owner's alone, and leaves no temporary file.
#[test]
fn files_are_replaced_whole() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(SessionFile::load(folder.path()).unwrap(), None);
    let mut session = SessionFile {
        session_id: *b"\x00\x01\xff4567890abcdef"[..16].first_chunk::<16>().unwrap(),
        session_name: "a".into(),
        session_no: 3,
        incarnation: u64::MAX,
        next_incarnation: 0,
        drive_id: [7; 16],
        history: [0; 16],
    };
    for incarnation in [u64::MAX, 4] {
        session.incarnation = incarnation;
        session.store(folder.path()).unwrap();
        assert_eq!(SessionFile::load(folder.path()).unwrap().as_ref(), Some(&session));
    }
    let mut file = mount_file("main", "/m", 5);
    file.left = Some(Left { unsent_checkpoints: 1, unsent_bytes: 2 });
    file.store(folder.path()).unwrap();
    assert_eq!(MountFile::load(folder.path()).unwrap(), Some(file));
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let mode = folder.path().join("session.json").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// One process has a state folder; another is told which, and a folder given back can be taken again.
#[test]
fn a_folder_has_one_owner() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("deep/main-a");
    let first = StateFolder::open(&path, Path::new("/m")).unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let error = StateFolder::open(&path, Path::new("/m")).unwrap_err();
    assert!(
        matches!(&error, StateError::Busy { pid: Some(pid), .. } if *pid == std::process::id()),
        "{error}"
    );
    assert_eq!(error.exit_code(), Exit::Refused);
    assert!(error.to_string().contains("tidefs unmount /m"), "{error}");
    assert_eq!(holder(&path).unwrap(), Some(std::process::id()));
    drop(first);
    assert_eq!(holder(&path).unwrap(), None);
    StateFolder::open(&path, Path::new("/m")).unwrap();
    assert_eq!(holder(base.path()).unwrap(), None);
}

/// A log is put aside when it has grown, and only then; one old one is kept.
#[test]
fn a_log_is_bounded() {
    let base = tempfile::tempdir().unwrap();
    let state = StateFolder::open(base.path(), Path::new("/m")).unwrap();
    let (log, old) = (base.path().join("mount.log"), base.path().join("mount.log.1"));
    std::fs::write(&log, "short").unwrap();
    assert_eq!(state.open_log().unwrap().metadata().unwrap().len(), 5);
    assert!(!old.exists());
    std::fs::File::options().write(true).open(&log).unwrap().set_len((10 << 20) + 1).unwrap();
    assert_eq!(state.open_log().unwrap().metadata().unwrap().len(), 0);
    assert_eq!(old.metadata().unwrap().len(), (10 << 20) + 1);
}

/// Folder names are apart for drives and mount points that read alike, and readable.
#[test]
fn folder_names_are_apart() {
    let names = [("main", "/a/x"), ("main", "/b/x"), ("mai", "/a/x"), ("main", "/a/x y"), ("main", "/a/x-y")]
        .map(|(drive, dir)| folder_name(drive, Path::new(dir)));
    let apart: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(apart.len(), names.len());
    assert!(names.iter().all(|name| name.starts_with("mai") && name.bytes().all(|b| b.is_ascii_graphic())));
}

/// Two spellings of a mount point are one; a place that cannot be mounted on is an error that names it.
#[test]
fn a_mount_point_is_found_by_its_real_name() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    std::fs::create_dir_all(root.join("real/m")).unwrap();
    std::fs::write(root.join("file"), "").unwrap();
    std::os::unix::fs::symlink(root.join("real"), root.join("alias")).unwrap();
    std::os::unix::fs::symlink(root.join("real/m"), root.join("direct")).unwrap();
    for spelling in ["real/m", "alias/m", "direct"] {
        assert_eq!(
            folder::real_mount_point(&root.join(spelling)).unwrap(),
            root.join("real/m"),
            "{spelling}"
        );
    }
    for (bad, exit) in [
        (root.join("none"), Exit::NotFound),
        (root.join("none/m"), Exit::NotFound),
        (root.join("file"), Exit::Usage),
        (PathBuf::from("/"), Exit::Usage),
    ] {
        let error = folder::real_mount_point(&bad).unwrap_err();
        assert_eq!(error.exit_code(), exit, "{error}");
        assert!(error.to_string().contains(&bad.display().to_string()), "{error}");
    }
}

/// A base given as a flag wins and is made absolute.
#[test]
fn the_base_of_all_state() {
    let cwd = std::env::current_dir().unwrap();
    assert_eq!(folder::base(Some(Path::new("s/../t"))).unwrap(), cwd.join("t"));
}
