//! Reading `/proc/self/mountinfo`: what is mounted where, learned without touching any mount point. A mount
//! whose process died answers every touch with an error, and one whose process hangs does not answer at all.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountLine {
    /// Where.
    pub point: PathBuf,
    /// Type with its subtype, such as `fuse.tidefs`.
    pub fstype: String,
    /// Source, such as `tidefs:main`.
    pub source: OsString,
}

/// All mounts of this process's namespace, in the kernel's order: of two at one place the later covers the
/// earlier. Errors: `/proc` is not there.
pub fn mounts() -> io::Result<Vec<MountLine>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

/// The mount exactly at `point`, which must be absolute and free of symlinks.
pub fn mounted_at(point: &Path) -> io::Result<Option<MountLine>> {
    Ok(mounts()?.into_iter().rev().find(|line| line.point == point))
}

/// Makes `dir` absolute without touching it: only what is above it is resolved.
pub fn absolute(dir: &Path) -> io::Result<PathBuf> {
    match (dir.parent(), dir.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Ok(parent.canonicalize()?.join(name))
        }
        _ => dir.canonicalize(),
    }
}

fn parse(text: &[u8]) -> Vec<MountLine> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /point options optional… - type source super`: the optional fields end at the dash.
fn parse_line(line: &[u8]) -> Option<MountLine> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    Some(MountLine {
        point: OsString::from_vec(unescape(fields.get(4)?)).into(),
        fstype: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        source: OsString::from_vec(unescape(fields.get(dash + 2)?)),
    })
}

/// Blank, tab, newline and backslash are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| byte == b'\\').and_then(|digits| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        });
        match code {
            Some(code) => {
                out.push(code);
                rest = &after[3..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

impl MountLine {
    /// The drive, if this is a mount of a drive.
    pub fn drive(&self) -> Option<&str> {
        if self.fstype != super::mounting::FSTYPE {
            return None;
        }
        std::str::from_utf8(self.source.as_bytes()).ok()?.strip_prefix("tidefs:")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_blanks_and_optional_fields() {
        let text =
            b"36 35 0:50 / /tmp/a\\040b\\134 rw,nosuid shared:1 master:2 - fuse.tidefs tidefs:main rw\nbad\n";
        let lines = parse(text);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].point, Path::new("/tmp/a b\\"));
        assert_eq!(lines[0].drive(), Some("main"));
    }

    #[test]
    fn the_root_is_a_mount() {
        assert!(mounted_at(Path::new("/")).unwrap().is_some());
        assert_eq!(mounted_at(Path::new("/proc/self/no such place")).unwrap(), None);
    }
}
