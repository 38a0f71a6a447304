//! Bytes of files that have left the tree and that the kernel still holds: a program reads and writes them for as
//! long as it likes, while the log goes on without them.

use parking_lot::Mutex;
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

/// Marks an address as one in this file, not in the log.
pub const ORPHAN_BIT: u64 = 1 << 62;

/// A file without a name in the state folder; gone with the process, as the files that it serves are.
#[derive(Debug)]
pub struct OrphanFile {
    file: File,
    end: Mutex<u64>,
}

impl OrphanFile {
    /// An empty one in `dir`.
    pub fn create(dir: &Path) -> io::Result<Self> {
        let path = dir.join("orphans");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Self { file, end: Mutex::new(0) })
    }

    /// Keeps bytes; returns their address.
    pub fn append(&self, data: &[u8]) -> io::Result<u64> {
        let mut end = self.end.lock();
        self.file.write_all_at(data, *end)?;
        let at = *end;
        *end += data.len() as u64;
        Ok(at | ORPHAN_BIT)
    }

    /// Reads at an address that `append` returned, or within.
    pub fn read_into(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, address & !ORPHAN_BIT)
    }

    /// Nothing is held any more: the room is given back.
    pub fn clear(&self) {
        let mut end = self.end.lock();
        if *end > 0 && self.file.set_len(0).is_ok() {
            *end = 0;
        }
    }
}
