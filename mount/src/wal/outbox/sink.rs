//! Where a pack grows: in memory while it may still lie inside its checkpoint's file, in a file beyond.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{EMBEDDED_PACK_BYTES_MAX, Temporary};

/// The sink of a pack for the outbox. Dropped, it removes its temporary file.
pub struct PackSink {
    temporary: Temporary,
    small: Vec<u8>,
    file: Option<File>,
}

impl std::fmt::Debug for PackSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackSink")
            .field("path", &self.temporary.0)
            .field("in_file", &self.file.is_some())
            .finish()
    }
}

impl PackSink {
    pub(super) fn new(path: PathBuf) -> PackSink {
        PackSink { temporary: Temporary(path), small: Vec::new(), file: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.temporary.0
    }

    /// The whole pack, if it is small.
    pub(super) fn embeddable(&self) -> Option<&[u8]> {
        self.file.is_none().then_some(&self.small)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }

    pub(super) fn persist(&self, path: &Path) -> io::Result<()> {
        std::fs::rename(self.path(), path)
    }
}

impl Write for PackSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.file.is_none() {
            if (self.small.len() + bytes.len()) as u64 <= EMBEDDED_PACK_BYTES_MAX {
                self.small.extend_from_slice(bytes);
                return Ok(bytes.len());
            }
            let mut file = File::create(self.path())?;
            file.write_all(&self.small)?;
            self.small = Vec::new();
            self.file = Some(file);
        }
        self.file.as_mut().map_or(Err(io::ErrorKind::NotFound.into()), |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
