//! A pack that lies in a file, alone or inside a checkpoint's file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tidefs_proto::pack::{PackError, PackIndex};

/// Where a pack's bytes are. It holds no file open: a cache has thousands of packs, a process few descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackFile {
    path: PathBuf,
    base: u64,
    length: u64,
}

impl PackFile {
    /// A file that is one pack.
    ///
    /// # Errors
    /// When the file's length cannot be read.
    pub fn whole(path: &Path) -> io::Result<PackFile> {
        Ok(PackFile { path: path.to_path_buf(), base: 0, length: std::fs::metadata(path)?.len() })
    }

    /// A pack of `length` bytes from byte `base` of a file on.
    pub(crate) fn inside(path: &Path, base: u64, length: u64) -> PackFile {
        PackFile { path: path.to_path_buf(), base, length }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the pack, in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// `len` bytes from byte `offset` of the pack on.
    ///
    /// # Errors
    /// `UnexpectedEof` outside the pack, before anything is allocated; else what the system says.
    pub fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.length);
        if !inside {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let file = File::open(&self.path)?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, self.base + offset)?;
        Ok(bytes)
    }

    /// The pack's table of blocks.
    ///
    /// # Errors
    /// As [`PackIndex::load`].
    pub fn load_index(&self) -> Result<PackIndex, PackError> {
        PackIndex::load(self.length, |offset, len| self.read(offset, len))
    }
}
