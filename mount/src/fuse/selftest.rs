//! Does this kernel forget what it is told to? Answers are believed for years, so this is not taken on trust:
//! a small volume is mounted at a private place, changed behind the kernel's back, and looked at.
//!
//! It is not done on the real mount, because then the test's names would be visible in it.

use super::{Caching, Door, MountError, MountOptions, Mounted, memory::Memory, mount_at};
use crate::volume::{Tell, Teller};
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};
use tidefs_timeline::{Name, NodeId};
use tokio::{runtime::Handle, sync::oneshot};

/// The whole test takes some milliseconds; a kernel that blocks must not hold up the mount.
const TEST_MAX: Duration = Duration::from_secs(5);

/// Why answers must be believed for a second only.
#[derive(Debug, thiserror::Error)]
pub enum SelftestError {
    /// The test could not be run.
    #[error("self-test could not {what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The scratch mount failed.
    #[error("self-test could not mount: {0}")]
    Mount(#[from] MountError),
    /// The kernel asked again for what it may remember, or showed what it must have forgotten.
    #[error("self-test: {0}")]
    Unproven(&'static str),
    /// No end was seen.
    #[error("self-test did not end within {} s", TEST_MAX.as_secs())]
    TooSlow,
}

/// Runs the self-test in a directory of its own under `scratch`, which must exist; removes it again. Must be
/// called on a tokio runtime, which goes on running meanwhile.
pub async fn prove(scratch: &Path) -> Result<(), SelftestError> {
    prove_with(scratch, |mounted| Ok(Arc::new(mounted.teller()?))).await
}

/// How the scratch mount is told; a test passes one that is deaf.
type MakeTeller = fn(&Mounted) -> io::Result<Arc<dyn Teller>>;

pub(super) async fn prove_with(scratch: &Path, make_teller: MakeTeller) -> Result<(), SelftestError> {
    let dir = scratch.join(format!("selftest-{}", std::process::id()));
    let runtime = Handle::current();
    let (sender, receiver) = oneshot::channel();
    let left = scratch.to_path_buf();
    let run = move || {
        clear_leftovers(&left);
        // Whoever asked may have stopped waiting.
        let _ = sender.send(in_directory(&dir, runtime, make_teller));
    };
    let spawned = thread::Builder::new().name("tidefs-selftest".into()).spawn(run);
    spawned.map_err(|source| SelftestError::Io { what: "start a thread", source })?;
    match tokio::time::timeout(TEST_MAX, receiver).await {
        Ok(Ok(result)) => result,
        _ => Err(SelftestError::TooSlow),
    }
}

/// A process that was killed in its self-test leaves a dead mount. The folder is this process's alone, so whatever
/// has such a name is one.
fn clear_leftovers(scratch: &Path) {
    let Ok(entries) = fs::read_dir(scratch) else { return };
    for entry in
        entries.flatten().filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"selftest-"))
    {
        let dir = entry.path();
        // It may be a plain folder by now.
        let _ = super::unmount(&dir, true);
        if let Err(error) = fs::remove_dir(&dir) {
            tracing::warn!(dir = %dir.display(), %error, "what an earlier self-test left cannot be removed");
        }
    }
}

fn in_directory(dir: &Path, runtime: Handle, make_teller: MakeTeller) -> Result<(), SelftestError> {
    fs::create_dir(dir).map_err(|source| SelftestError::Io { what: "make its directory", source })?;
    let result = on_a_mount(dir, runtime, make_teller);
    if let Err(error) = fs::remove_dir(dir) {
        tracing::warn!(dir = %dir.display(), %error, "the self-test's directory was left behind");
    }
    result
}

fn on_a_mount(dir: &Path, runtime: Handle, make_teller: MakeTeller) -> Result<(), SelftestError> {
    let volume = Arc::new(Memory::new());
    let file = volume.put(NodeId::ROOT, "file", b"old");
    let door = Door::new(volume.clone(), runtime.clone(), Caching::new(true));
    let options = MountOptions {
        fsname: "tidefs-selftest".into(),
        allow_other: false,
        read_only: false,
        threads: Some(2),
    };
    // Dropped at the end, in every case, which unmounts.
    let mounted: Mounted = mount_at(dir, &options, door)?;
    let teller =
        make_teller(&mounted).map_err(|source| SelftestError::Io { what: "start threads", source })?;
    let probe = Probe { dir: mounted.point().to_path_buf(), volume, teller, runtime };
    probe.attributes_and_content(file)?;
    probe.names()?;
    probe.listing()
}

struct Probe {
    dir: PathBuf,
    volume: Arc<Memory>,
    teller: Arc<dyn Teller>,
    runtime: Handle,
}

impl Probe {
    fn io<T>(what: &'static str, result: io::Result<T>) -> Result<T, SelftestError> {
        result.map_err(|source| SelftestError::Io { what, source })
    }

    fn requests(&self) -> u64 {
        self.volume.counts().values().sum()
    }

    /// `look` twice: the second time the kernel must ask nothing.
    fn remembered<T>(
        &self,
        why: &'static str,
        look: impl Fn() -> Result<T, SelftestError>,
    ) -> Result<T, SelftestError> {
        look()?;
        // Reading makes the kernel ask for the time of access once more.
        look()?;
        let before = self.requests();
        let seen = look()?;
        if self.requests() == before { Ok(seen) } else { Err(SelftestError::Unproven(why)) }
    }

    fn tell(&self, what: Vec<Tell>) {
        self.runtime.block_on(self.teller.tell(what));
    }

    fn content(&self) -> Result<(u64, Vec<u8>), SelftestError> {
        let path = self.dir.join("file");
        let size = Self::io("look at a file", fs::metadata(&path))?.size();
        Ok((size, Self::io("read a file", fs::read(&path))?))
    }

    fn names_seen(&self) -> Result<Vec<String>, SelftestError> {
        let mut names = Vec::new();
        for entry in Self::io("list", fs::read_dir(&self.dir))? {
            names.push(Self::io("list", entry)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    /// Content of the same length first, which only forgetting the pages can show; then another length.
    fn attributes_and_content(&self, file: NodeId) -> Result<(), SelftestError> {
        self.remembered("attributes or content of a file are not remembered", || self.content())?;
        for bytes in [&b"new"[..], b"longer"] {
            self.volume.replace(file, bytes);
            self.tell(vec![Tell::Node { id: file, parents: vec![NodeId::ROOT], content: true }]);
            if self.content()? != (bytes.len() as u64, bytes.to_vec()) {
                return Err(SelftestError::Unproven("an old content is shown after it was invalidated"));
            }
        }
        Ok(())
    }

    fn names(&self) -> Result<(), SelftestError> {
        let exists = |name: &str| Self::io("look for a name", self.dir.join(name).try_exists());
        self.remembered("a missing name is not remembered", || exists("later"))?;
        self.volume.put(NodeId::ROOT, "later", b"");
        self.tell_entry("later");
        if !exists("later")? {
            return Err(SelftestError::Unproven("a new name is missing after it was invalidated"));
        }
        self.volume.put(NodeId::ROOT, "file", b"another");
        self.tell_entry("file");
        if self.content()?.1 != b"another" {
            return Err(SelftestError::Unproven("a name shows its old file after it was invalidated"));
        }
        Ok(())
    }

    fn listing(&self) -> Result<(), SelftestError> {
        self.remembered("a listing is not remembered", || self.names_seen())?;
        self.volume.put(NodeId::ROOT, "third", b"");
        self.tell_entry("third");
        if self.names_seen()? != ["file", "later", "third"] {
            return Err(SelftestError::Unproven("an old listing is shown after it was invalidated"));
        }
        Ok(())
    }

    fn tell_entry(&self, name: &'static str) {
        if let Ok(name) = Name::new(name.as_bytes()) {
            self.tell(vec![Tell::Entry { parent: NodeId::ROOT, name }, Tell::Listing(NodeId::ROOT)]);
        }
    }
}
