//! What one writer's directory must hold, from the calls that completed.
//!
//! A call that returned is a promise; the one call in flight when a process was killed may have
//! happened or not, but not by half. So a directory is right when it equals the model, or the model
//! with the call in flight applied.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use rand::Rng;
use rand::rngs::SmallRng;

/// Names that a writer uses in one directory; few, so that names are used again.
const NAMES: u32 = 12;
/// Size at which a file is truncated rather than grown.
const FILE_BYTES_MAX: usize = 64 << 10;
/// Size of one write; the kernel sends it as one request.
const WRITE_BYTES_MAX: usize = 8 << 10;

/// The kernel's page, in bytes.
const PAGE: usize = 4096;

/// One system call (or open, call, close).
#[derive(Clone)]
pub enum Call {
    /// Make an empty file; the name is free.
    Create(String),
    /// Write at an offset of an existing file.
    Write(String, usize, Vec<u8>),
    /// Append to an existing file.
    Append(String, Vec<u8>),
    /// Set the size of an existing file.
    Truncate(String, usize),
    /// Rename a file over a file or to a free name, or a directory to a free name.
    Rename(String, String),
    /// Remove a file.
    Unlink(String),
    /// Make a directory.
    Mkdir(String),
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Call::Create(name) => write!(f, "create {name}"),
            Call::Write(name, at, bytes) => write!(f, "write {} bytes at {at} of {name}", bytes.len()),
            Call::Append(name, bytes) => write!(f, "append {} bytes to {name}", bytes.len()),
            Call::Truncate(name, size) => write!(f, "truncate {name} to {size}"),
            Call::Rename(from, to) => write!(f, "rename {from} to {to}"),
            Call::Unlink(name) => write!(f, "unlink {name}"),
            Call::Mkdir(name) => write!(f, "mkdir {name}"),
        }
    }
}

/// Contents by path relative to the writer's directory; a directory has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model(BTreeMap<String, Option<Vec<u8>>>);

impl Call {
    /// Makes the call below `dir`.
    ///
    /// # Errors
    /// That of the system call.
    pub fn perform(&self, dir: &Path) -> io::Result<()> {
        match self {
            Self::Create(path) => {
                fs::File::options().write(true).create_new(true).open(dir.join(path)).map(drop)
            }
            Self::Write(path, offset, data) => {
                let file = fs::File::options().write(true).open(dir.join(path))?;
                whole(file.write_at(data, *offset as u64)?, data)
            }
            Self::Append(path, data) => {
                let mut file = fs::File::options().append(true).open(dir.join(path))?;
                whole(file.write(data)?, data)
            }
            Self::Truncate(path, size) => {
                fs::File::options().write(true).open(dir.join(path))?.set_len(*size as u64)
            }
            Self::Rename(from, to) => fs::rename(dir.join(from), dir.join(to)),
            Self::Unlink(path) => fs::remove_file(dir.join(path)),
            Self::Mkdir(path) => fs::create_dir(dir.join(path)),
        }
    }
}

fn whole(count: usize, data: &[u8]) -> io::Result<()> {
    if count == data.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

impl Model {
    /// Reads what a directory holds.
    ///
    /// # Errors
    /// Those of the file system, with the path.
    pub fn read(dir: &Path) -> Result<Self> {
        let mut model = Self::default();
        let mut todo = vec![String::new()];
        while let Some(below) = todo.pop() {
            for name in super::files::names(&dir.join(&below))? {
                let path = if below.is_empty() { name } else { format!("{below}/{name}") };
                let full = dir.join(&path);
                let meta = fs::symlink_metadata(&full).with_context(|| format!("stat {}", full.display()))?;
                if meta.is_dir() {
                    todo.push(path.clone());
                    model.0.insert(path, None);
                } else {
                    model.0.insert(path, Some(super::files::read(&full)?));
                }
            }
        }
        Ok(model)
    }

    /// The next call of a random writer, one that must succeed.
    pub fn propose(&self, random: &mut SmallRng) -> Call {
        let files: Vec<&String> =
            self.0.iter().filter(|(_, node)| node.is_some()).map(|(path, _)| path).collect();
        let free = self.free_name(random);
        if files.len() < 3 {
            return Call::Create(free);
        }
        let path = files[random.random_range(0..files.len())].clone();
        let size = self.0[&path].as_ref().map_or(0, Vec::len);
        let data = vec![random.random_range(1..=255); random.random_range(1..=WRITE_BYTES_MAX)];
        match random.random_range(0..100) {
            _ if size > FILE_BYTES_MAX => Call::Truncate(path, random.random_range(0..size)),
            0..20 if files.len() < NAMES as usize => Call::Create(free),
            0..45 => Call::Write(path, random.random_range(0..=size), data),
            45..65 => Call::Append(path, data),
            65..70 => Call::Truncate(path, random.random_range(0..=size)),
            70..80 => Call::Rename(path, files[random.random_range(0..files.len())].clone()),
            80..87 => Call::Rename(path, free),
            87..95 => Call::Unlink(path),
            _ => self.propose_directory(free, random),
        }
    }

    fn propose_directory(&self, free: String, random: &mut SmallRng) -> Call {
        let directories: Vec<&String> =
            self.0.iter().filter(|(_, node)| node.is_none()).map(|(path, _)| path).collect();
        match directories.len() {
            0..4 => Call::Mkdir(self.free_in("", random)),
            count => {
                let from = directories[random.random_range(0..count)].clone();
                let to = self.free_in("", random);
                if free.starts_with(&format!("{from}/")) { Call::Mkdir(to) } else { Call::Rename(from, to) }
            }
        }
    }

    fn free_name(&self, random: &mut SmallRng) -> String {
        let directories: Vec<&String> =
            self.0.iter().filter(|(_, node)| node.is_none()).map(|(path, _)| path).collect();
        match random.random_range(0..=directories.len()) {
            0 => self.free_in("", random),
            chosen => self.free_in(&format!("{}/", directories[chosen - 1]), random),
        }
    }

    fn free_in(&self, prefix: &str, random: &mut SmallRng) -> String {
        let mut range = NAMES;
        loop {
            let path = format!("{prefix}n{}", random.random_range(0..range));
            if !self.0.contains_key(&path) {
                return path;
            }
            range += 1;
        }
    }

    /// Takes in a call that completed.
    ///
    /// # Errors
    /// The call does not fit: the writer is broken, not the file system.
    pub fn apply(&mut self, call: &Call) -> Result<()> {
        match call {
            Call::Create(path) => drop(self.0.insert(path.clone(), Some(Vec::new()))),
            Call::Mkdir(path) => drop(self.0.insert(path.clone(), None)),
            Call::Unlink(path) => drop(self.0.remove(path)),
            Call::Write(path, offset, data) => {
                let file = self.file(path)?;
                let end = offset + data.len();
                file.resize(file.len().max(end), 0);
                file[*offset..end].copy_from_slice(data);
            }
            Call::Append(path, data) => self.file(path)?.extend_from_slice(data),
            Call::Truncate(path, size) => self.file(path)?.resize(*size, 0),
            Call::Rename(from, to) => self.rename(from, to),
        }
        Ok(())
    }

    fn file(&mut self, path: &str) -> Result<&mut Vec<u8>> {
        self.0.get_mut(path).and_then(Option::as_mut).with_context(|| format!("no file {path} in the model"))
    }

    fn rename(&mut self, from: &str, to: &str) {
        if from == to {
            return;
        }
        let below = format!("{from}/");
        let moved: Vec<String> =
            self.0.keys().filter(|path| *path == from || path.starts_with(&below)).cloned().collect();
        for path in moved {
            if let Some(node) = self.0.remove(&path) {
                self.0.insert(format!("{to}{}", &path[from.len()..]), node);
            }
        }
    }

    /// Checks a directory against the model; returns what it holds.
    ///
    /// # Errors
    /// It differs from the model, and from the model with `in_flight` applied, whole or as far as a page's end:
    /// the kernel hands a write that does not begin at a page on in parts.
    pub fn check(&self, dir: &Path, in_flight: Option<&Call>) -> Result<Self> {
        let found = Self::read(dir)?;
        let mut with = self.clone();
        if let Some(call) = in_flight {
            with.apply(call)?;
        }
        if found == *self || found == with {
            return Ok(found);
        }
        for part in in_flight.map(|call| self.parts(call)).unwrap_or_default() {
            let mut with = self.clone();
            with.apply(&part)?;
            if found == with {
                return Ok(found);
            }
        }
        bail!("{}: {}; in flight: {in_flight:.80?}", dir.display(), self.difference(&found))
    }

    /// The beginnings of a write that end where a page does.
    fn parts(&self, call: &Call) -> Vec<Call> {
        let (name, at, bytes) = match call {
            Call::Write(name, at, bytes) => (name, *at, bytes),
            Call::Append(name, bytes) => {
                let size = self.0.get(name).and_then(Option::as_ref).map_or(0, Vec::len);
                (name, size, bytes)
            }
            _ => return Vec::new(),
        };
        let ends = (1..bytes.len()).filter(|len| (at + len) % PAGE == 0);
        ends.map(|len| Call::Write(name.clone(), at, bytes[..len].to_vec())).collect()
    }

    fn difference(&self, found: &Self) -> String {
        let paths: std::collections::BTreeSet<&String> = self.0.keys().chain(found.0.keys()).collect();
        let lines = paths.into_iter().filter(|path| self.0.get(*path) != found.0.get(*path)).map(|path| {
            format!("{path} is {}, expected {}", outline(found.0.get(path)), outline(self.0.get(path)))
        });
        lines.take(5).collect::<Vec<_>>().join("; ")
    }
}

/// A content in few words: its runs of equal bytes.
fn outline(node: Option<&Option<Vec<u8>>>) -> String {
    match node {
        None => "absent".to_owned(),
        Some(None) => "a directory".to_owned(),
        Some(Some(content)) => {
            let runs = content.chunk_by(|left, right| left == right).take(6);
            let text: Vec<String> = runs.map(|run| format!("{}x{:02x}", run.len(), run[0])).collect();
            format!("{} bytes ({})", content.len(), text.join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    /// On a plain directory the model and the calls agree, call by call.
    #[test]
    fn the_model_equals_a_local_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let mut random = SmallRng::seed_from_u64(7);
        let mut model = Model::default();
        for step in 0..600 {
            let call = model.propose(&mut random);
            call.perform(dir.path()).unwrap_or_else(|error| panic!("{call:?}: {error}"));
            model.apply(&call).unwrap();
            if step % 20 == 0 {
                model.check(dir.path(), None).unwrap();
            }
        }
    }

    /// A lost call and a half-written call are both noticed; a call in flight is let pass.
    #[test]
    fn a_lost_call_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let mut model = Model::default();
        model.apply(&Call::Create("f".into())).unwrap();
        assert!(model.check(dir.path(), None).is_err());
        fs::write(dir.path().join("f"), b"ab").unwrap();
        let append = Call::Append("f".into(), b"abcd".to_vec());
        assert!(model.check(dir.path(), Some(&append)).is_err());
        fs::write(dir.path().join("f"), b"abcd").unwrap();
        assert!(model.check(dir.path(), Some(&append)).is_ok());
    }
}
