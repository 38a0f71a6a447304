//! Answers from the view. Nothing here changes anything but the count of what the kernel was given.

use super::{Session, before::At};
use crate::volume::{Answer, Found, Line, Load, Stop};
use std::sync::Arc;
use tidefs_timeline::{AttrName, Content, Head, Name, Node, NodeId, Piece, limits::LINKS_MAX};

/// The cookie of `.`; `..` follows, then entries.
const COOKIE_DOT: u64 = 1;
const COOKIE_DOTDOT: u64 = 2;

impl Session {
    /// A node in view, or one that the kernel still holds after it left.
    pub(super) fn find(&self, id: NodeId) -> Answer<(NodeId, Arc<Node>)> {
        if let Some(node) = self.view.node(id) {
            return Ok((id, node));
        }
        let real = self.view.resolve(id);
        if let Some(node) = self.view.node(real) {
            return Ok((real, node));
        }
        self.kernel.get_orphan(id).map(|node| (id, node)).ok_or(Stop::Errno(libc::ESTALE))
    }

    /// A directory that names may be looked up in.
    pub(super) fn dir(&self, id: NodeId) -> Answer<(NodeId, Arc<Node>)> {
        let (id, node) = self.find(id)?;
        if node.is_dir() { Ok((id, node)) } else { Err(Stop::Errno(libc::ENOTDIR)) }
    }

    /// A name, as the kernel gave it.
    pub(super) fn name(name: &[u8]) -> Answer<Name> {
        Name::new(name).map_err(|error| {
            Stop::Errno(match error {
                tidefs_timeline::NameError::TooLong => libc::ENAMETOOLONG,
                tidefs_timeline::NameError::Illegal => libc::EINVAL,
                tidefs_timeline::NameError::Reserved => libc::EPERM,
            })
        })
    }

    /// What is bound to a name.
    pub(super) fn bound(&self, at: &At) -> Answer<Option<(NodeId, Arc<Node>)>> {
        let Some(entry) = self.view.entry(at.0, &at.1)? else { return Ok(None) };
        Ok(self.view.node(entry.node).map(|node| (entry.node, node)))
    }

    /// Finds a name and counts the lookup.
    pub fn lookup(&mut self, parent: NodeId, name: &[u8]) -> Answer<Option<Found>> {
        if name == Name::FENCE {
            return Ok(None);
        }
        let (dir, dir_node) = self.dir(parent)?;
        if name == b"." || name == b".." {
            let up = self.view.spot(dir).map_or(dir, |spot| spot.parent);
            let id = if name == b"." { dir } else { up };
            let node = self.view.node(id).unwrap_or(dir_node);
            self.kernel.looked_up(id);
            return Ok(Some(self.found(id, node)));
        }
        let Ok(name) = Name::new(name) else {
            return Err(Self::name(name).err().unwrap_or(Stop::Errno(libc::EINVAL)));
        };
        if dir_node.nlink() == 0 || self.view.node(dir).is_none() {
            return Ok(None);
        }
        let Some((id, node)) = self.bound(&(dir, name))? else { return Ok(None) };
        self.kernel.looked_up(id);
        Ok(Some(self.found(id, node)))
    }

    fn found(&self, id: NodeId, node: Arc<Node>) -> Found {
        Found { id, node, atime: self.kernel.atime(id) }
    }

    /// atime was set: it is remembered while the kernel holds the node.
    pub fn set_atime(&mut self, id: NodeId, atime: tidefs_timeline::Timestamp) {
        self.kernel.set_atime(id, atime);
    }

    /// A node by id.
    pub fn getattr(&self, id: NodeId) -> Answer<Found> {
        let (id, node) = self.find(id)?;
        Ok(self.found(id, node))
    }

    /// The kernel was given a node.
    pub fn count_lookup(&mut self, id: NodeId) {
        self.kernel.looked_up(id);
    }

    /// The kernel gives lookups back.
    pub fn forget(&mut self, id: NodeId, count: u64) {
        self.kernel.forget(id, count);
    }

    /// Nodes that left the tree and are still held.
    pub fn orphans(&self) -> usize {
        self.kernel.orphans()
    }

    /// A symlink's target.
    pub fn readlink(&self, id: NodeId) -> Answer<Vec<u8>> {
        match &self.find(id)?.1.content.value {
            Content::Symlink(target) => Ok(target.to_vec()),
            _ => Err(Stop::Errno(libc::EINVAL)),
        }
    }

    /// Lists a directory. Cookies are made from the names, so they stay valid while others come and go: see
    /// `listing`.
    pub fn list(&mut self, dir: NodeId, cookie: u64, limit: usize, plus: bool) -> Answer<Vec<Line>> {
        let (id, node) = self.dir(dir)?;
        let mut lines = Vec::new();
        let up = self.view.spot(id).map_or(id, |spot| spot.parent);
        let up_node = self.view.node(up).unwrap_or_else(|| node.clone());
        for (own, name, id, node) in [(COOKIE_DOT, ".", id, node.clone()), (COOKIE_DOTDOT, "..", up, up_node)]
        {
            if cookie < own && lines.len() < limit {
                lines.push(Line { cookie: own, name: name.into(), found: self.found(id, node) });
            }
        }
        if self.view.node(id).is_none() {
            return Ok(lines);
        }
        let room = limit.saturating_sub(lines.len());
        let names = self.listings.behind(id, &self.view, (cookie.max(COOKIE_DOTDOT), room))?;
        for (rank, name) in names {
            if let Some((id, node)) = self.bound(&(id, name.clone()))? {
                if plus {
                    self.kernel.looked_up(id);
                }
                lines.push(Line {
                    cookie: rank,
                    name: name.as_bytes().to_vec(),
                    found: self.found(id, node),
                });
            }
        }
        Ok(lines)
    }

    /// An attribute's value.
    pub fn getxattr(&self, id: NodeId, name: &[u8]) -> Answer<Vec<u8>> {
        let (id, node) = self.find(id)?;
        if let Some(own) = name.strip_prefix(b"user.tidefs.") {
            return self.own_attr(id, &node, own);
        }
        let name = AttrName::new(name).map_err(|_| Stop::Errno(libc::ERANGE))?;
        node.attrs.get(&name).map(|value| value.value.to_vec()).ok_or(Stop::Errno(libc::ENODATA))
    }

    /// What `user.tidefs.*` tells of a node.
    fn own_attr(&self, id: NodeId, node: &Node, name: &[u8]) -> Answer<Vec<u8>> {
        match name {
            b"position" => Ok(self.view.position.to_string().into_bytes()),
            b"version" => Ok(node.content.version.to_string().into_bytes()),
            b"session" => Ok(self.identity.name.clone().into_bytes()),
            b"level" => {
                let unsent =
                    self.view.open.nodes.contains_key(&id) || self.view.sealed.nodes.contains_key(&id);
                Ok(if unsent { b"local".to_vec() } else { b"server".to_vec() })
            }
            _ => Err(Stop::Errno(libc::ENODATA)),
        }
    }

    /// Names of all attributes.
    pub fn listxattr(&self, id: NodeId) -> Answer<Vec<u8>> {
        let (_, node) = self.find(id)?;
        Ok(node.attrs.keys().flat_map(|name| name.as_bytes().iter().copied().chain([0])).collect())
    }

    /// The pieces of a file that a read needs, and the bytes it returns (fewer than asked only at the end).
    pub fn read_plan(&self, id: NodeId, offset: u64, len: u32) -> Answer<(Vec<(u64, Piece)>, u32)> {
        let (id, node) = self.find(id)?;
        let size = node.content.value.size();
        if !matches!(node.content.value, Content::File(_)) {
            return Err(Stop::Errno(if node.is_dir() { libc::EISDIR } else { libc::EINVAL }));
        }
        let len = size.saturating_sub(offset).min(u64::from(len));
        if len == 0 {
            return Ok((Vec::new(), 0));
        }
        let pieces = match &node.content.value {
            Content::File(file) => match &file.map {
                tidefs_timeline::FileMap::Extents(map) => map.slice(offset, len),
                tidefs_timeline::FileMap::Stored(_) => {
                    self.file_map(id, &node)?.map(|map| map.slice(offset, len)).unwrap_or_default()
                }
            },
            _ => Vec::new(),
        };
        Ok((pieces, len as u32))
    }

    /// The extent list of a file must be loaded for this; none if the node has none to load.
    pub fn missing_extents(&self, id: NodeId) -> Option<Load> {
        let (id, node) = self.find(id).ok()?;
        match self.file_map(id, &node) {
            Err(Stop::Load(load)) => Some(load),
            _ => None,
        }
    }

    /// Whether a directory in view is empty.
    pub(super) fn is_empty_dir(&self, dir: NodeId) -> Answer<bool> {
        Ok(self.view.with(|view| view.entries(dir, None, 1))?.is_empty())
    }

    /// Whether one more name may be bound to the node.
    pub(super) fn may_link(node: &Node) -> bool {
        node.links < LINKS_MAX
    }
}
