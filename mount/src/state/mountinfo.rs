//! What the kernel says is mounted, read from `/proc/self/mountinfo`, which never blocks on a mount.

use super::StateError;
use std::{
    ffi::OsString,
    fs::File,
    io::Read,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

const MOUNTINFO: &str = "/proc/self/mountinfo";
/// More of the table than this is not read, in bytes; a machine with a hundred thousand mounts is below it.
const BYTES_MAX: u64 = 32 << 20;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountLine {
    /// Where.
    pub mount_point: PathBuf,
    /// Type of file system.
    pub fs_type: String,
    /// What is mounted.
    pub source: String,
}

impl MountLine {
    /// Whether it is one of ours.
    pub fn is_tidefs(&self) -> bool {
        self.fs_type == "fuse.tidefs" || (self.fs_type == "fuse" && self.source.starts_with("tidefs"))
    }
}

/// All mounts that this process sees, the later ones on top of the earlier.
pub fn read() -> Result<Vec<MountLine>, StateError> {
    let mut bytes = Vec::new();
    let file = File::open(MOUNTINFO).map_err(|e| StateError::io("open", MOUNTINFO, e))?;
    file.take(BYTES_MAX).read_to_end(&mut bytes).map_err(|e| StateError::io("read", MOUNTINFO, e))?;
    Ok(parse(&bytes))
}

/// The lines of a mountinfo file; lines that make no sense are left out.
pub fn parse(bytes: &[u8]) -> Vec<MountLine> {
    bytes.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// The mount that `path` lies in, by text.
pub fn covering<'a>(lines: &'a [MountLine], path: &Path) -> Option<&'a MountLine> {
    lines
        .iter()
        .filter(|line| path.starts_with(&line.mount_point))
        // `max_by_key` gives the last of equals: the mount on top.
        .max_by_key(|line| line.mount_point.components().count())
}

/// Whether something of ours is mounted exactly at `path`, on top.
pub fn tidefs_at(lines: &[MountLine], path: &Path) -> bool {
    lines.iter().rev().find(|line| line.mount_point == path).is_some_and(MountLine::is_tidefs)
}

fn parse_line(line: &[u8]) -> Option<MountLine> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mount_point = unescape(fields.nth(4)?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let fs_type = String::from_utf8_lossy(&unescape(rest.next()?)).into_owned();
    let source = String::from_utf8_lossy(&unescape(rest.next()?)).into_owned();
    Some(MountLine { mount_point: PathBuf::from(OsString::from_vec(mount_point)), fs_type, source })
}

/// Space, tab, line end and backslash are written as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, behind)) = rest.split_first() {
        match (*byte, octal(behind)) {
            (b'\\', Some(value)) => {
                out.push(value);
                rest = behind.get(3..).unwrap_or_default();
            }
            _ => {
                out.push(*byte);
                rest = behind;
            }
        }
    }
    out
}

fn octal(behind: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(behind.get(..3)?).ok()?;
    u8::from_str_radix(digits, 8).ok()
}
