//! The door on a real mount, over a volume in memory that counts what the kernel asks.

mod mounts;
mod remembers;
mod requests;
mod waits;

use super::{Caching, Door, KernelTeller, MountOptions, Mounted, memory::Memory, mount_at};
use crate::volume::{Tell, Teller};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tidefs_timeline::{Name, NodeId};
use tokio::runtime::Runtime;

const ROOT: NodeId = NodeId::ROOT;

/// Whether this test can run; says so when it cannot, and fails when everything was required.
fn can_mount(name: &str) -> bool {
    if fs::File::options().read(true).write(true).open("/dev/fuse").is_ok() {
        return true;
    }
    assert_ne!(std::env::var("TIDEFS_REQUIRE").as_deref(), Ok("all"), "{name} needs /dev/fuse");
    eprintln!("not run: {name} needs /dev/fuse");
    false
}

/// One mount of one volume. Fields are dropped in order: unmounted, then the directory, then the runtime.
struct World {
    mounted: Mounted,
    volume: Arc<Memory>,
    teller: KernelTeller,
    dir: tempfile::TempDir,
    runtime: Runtime,
}

impl World {
    fn new(name: &str) -> Option<Self> {
        Self::waiting_at_most(name, Duration::from_secs(10))
    }

    fn waiting_at_most(name: &str, wait: Duration) -> Option<Self> {
        if !can_mount(name) {
            return None;
        }
        let runtime = Runtime::new().unwrap();
        let volume = Arc::new(Memory::new());
        let dir = tempfile::tempdir().unwrap();
        let caching = Caching::new(true);
        let door = Door::waiting_at_most(volume.clone(), runtime.handle().clone(), caching, wait);
        let mounted = mount_at(dir.path(), &MountOptions::of_drive("test", false), door).unwrap();
        let teller = mounted.teller().unwrap();
        Some(Self { mounted, volume, teller, dir, runtime })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn tell(&self, what: Vec<Tell>) {
        self.runtime.block_on(self.teller.tell(what));
    }

    fn tell_node(&self, id: NodeId, content: bool) {
        self.tell(vec![Tell::Node { id, parents: vec![ROOT], content }]);
    }

    fn tell_entry(&self, name: &str) {
        self.tell(vec![entry(ROOT, name), Tell::Listing(ROOT)]);
    }

    fn requests(&self) -> u64 {
        self.volume.counts().values().sum()
    }

    fn count(&self, operation: &str) -> u64 {
        self.volume.counts().get(operation).copied().unwrap_or(0)
    }

    /// `look` again and again costs no request once it has been done twice (reading makes the kernel ask for
    /// the time of access once more).
    fn warm<T>(&self, look: impl Fn() -> T) -> T {
        look();
        look();
        let before = self.volume.counts();
        look();
        let seen = look();
        assert_eq!(before, self.volume.counts(), "the kernel asked again");
        seen
    }
}

fn entry(parent: NodeId, name: &str) -> Tell {
    Tell::Entry { parent, name: Name::new(name.as_bytes()).unwrap() }
}

fn listed(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Waits for what the kernel does by and by.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < end, "{what} did not come true");
        std::thread::sleep(Duration::from_millis(2));
    }
}
