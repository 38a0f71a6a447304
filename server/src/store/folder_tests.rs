use tempfile::TempDir;

use super::*;

fn record(name: &str, id: u8) -> DriveRecord {
    DriveRecord {
        name: name.into(),
        drive_id: [id; 16],
        history_id: [id + 100; 16],
        created_unix_ms: 1_700_000_000_000,
    }
}

fn open(dir: &Path) -> DataFolder {
    DataFolder::open(dir, [1; 16]).unwrap()
}

#[test]
fn the_catalogue_outlives_the_server() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("deep/data");
    let folder = open(&data);
    let main = folder.create_drive(record("main", 3)).unwrap();
    folder.create_drive(record("a.b_c-D9", 4)).unwrap();
    for part in [main.journal(), main.packs(), main.index()] {
        assert!(part.is_dir());
    }
    assert_eq!(main.path(), data.join("drives/03030303030303030303030303030303"));
    drop(folder);
    let folder = DataFolder::open(&data, [2; 16]).unwrap();
    assert_eq!(folder.server_id(), [1; 16]);
    assert_eq!(folder.drives(), [record("a.b_c-D9", 4), record("main", 3)]);
    assert_eq!(folder.drive("main").unwrap(), record("main", 3));
    assert_eq!(folder.drive("none"), None);
    folder.delete_drive("main").unwrap();
    assert!(matches!(folder.delete_drive("main"), Err(FolderError::NotFound { .. })));
    assert!(!main.path().exists());
    folder.create_drive(record("main", 5)).unwrap();
    drop(folder);
    assert_eq!(open(&data).drives(), [record("a.b_c-D9", 4), record("main", 5)]);
    assert_eq!(fs::read_dir(data.join("drives")).unwrap().count(), 2);
}

#[test]
fn names_and_ids_are_unique_and_checked() {
    let dir = TempDir::new().unwrap();
    let folder = open(dir.path());
    folder.create_drive(record("main", 3)).unwrap();
    assert!(matches!(folder.create_drive(record("main", 4)), Err(FolderError::Exists { .. })));
    assert!(matches!(folder.create_drive(record("other", 3)), Err(FolderError::Exists { .. })));
    let long = "x".repeat(65);
    for name in ["", ".", "..", ".a", "-a", "a/b", "a b", "ä", "a\n", "a\0", &long] {
        assert!(matches!(folder.create_drive(record(name, 9)), Err(FolderError::BadName { .. })), "{name:?}");
    }
    folder.create_drive(record(&"x".repeat(64), 9)).unwrap();
}

#[test]
fn a_second_server_is_told_who_has_it() {
    let dir = TempDir::new().unwrap();
    let folder = open(dir.path());
    let error = DataFolder::open(dir.path(), [2; 16]).unwrap_err();
    assert!(matches!(error, FolderError::InUse { pid: Some(pid), .. } if pid == std::process::id()));
    let text = error.to_string();
    assert!(text.starts_with(&format!("another tidefs-server uses {}", dir.path().display())), "{text}");
    drop(folder);
    open(dir.path());
}

/// A crash while a drive is made or removed leaves either the drive or nothing.
#[test]
fn what_a_crash_leaves_is_removed() {
    let dir = TempDir::new().unwrap();
    let folder = open(dir.path());
    folder.create_drive(record("main", 3)).unwrap();
    let drives = dir.path().join("drives");
    drop(folder);
    for name in ["new-05", "deleted-06"] {
        fs::create_dir_all(drives.join(name).join("journal")).unwrap();
        fs::write(drives.join(name).join("journal/x"), "y").unwrap();
    }
    fs::write(dir.path().join("tidefs-server.json.tmp"), "{").unwrap();
    assert_eq!(open(dir.path()).drives(), [record("main", 3)]);
    assert_eq!(fs::read_dir(&drives).unwrap().count(), 1);
}

#[test]
fn damage_is_named() {
    let dir = TempDir::new().unwrap();
    open(dir.path()).create_drive(record("main", 3)).unwrap();
    let server = dir.path().join("tidefs-server.json");
    let drive = dir.path().join("drives").join("03".repeat(16)).join("drive.json");
    let (good_server, good_drive) = (fs::read(&server).unwrap(), fs::read_to_string(&drive).unwrap());
    let damaged = |path: &Path| match DataFolder::open(dir.path(), [1; 16]) {
        Err(FolderError::Damaged { path: found, .. }) => assert_eq!(found, path),
        other => panic!("{other:?}"),
    };
    for text in ["", "{", "[]", "{\"version\": 1}", "{\"version\": 1, \"server_id\": \"zz\"}"] {
        fs::write(&server, text).unwrap();
        damaged(&server);
    }
    fs::write(&server, "{\"version\": 2, \"new\": true}").unwrap();
    assert!(matches!(DataFolder::open(dir.path(), [1; 16]), Err(FolderError::Version { found: 2, .. })));
    fs::remove_file(&server).unwrap();
    damaged(&server);
    fs::write(&server, &good_server).unwrap();
    for text in ["{}", "\0", &good_drive.replace("main", "../up"), &good_drive.replace("0303", "0404")] {
        fs::write(&drive, text).unwrap();
        damaged(&drive);
    }
    fs::write(&drive, vec![b' '; 100_000]).unwrap();
    assert!(matches!(DataFolder::open(dir.path(), [1; 16]), Err(FolderError::Disk(_))));
    fs::remove_file(&drive).unwrap();
    damaged(&drive);
    fs::write(&drive, good_drive).unwrap();
    assert_eq!(open(dir.path()).drives().len(), 1);
}
