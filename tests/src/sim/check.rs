//! The checkers that look at whole trees: two that must be equal, and one that must hold what its owner wrote.

use super::{model::Model, packing::BlockMap, server::Server, shell::Running};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use std::{collections::BTreeMap, sync::Arc};
use tidefs_proto::{PlacedLine, manifest};
use tidefs_timeline::{Content, FileMap, Head, Node, NodeId, SessionNo, Source};

/// A node at a path, with its bytes where it has some.
pub type Leaf = (NodeId, Arc<Node>, Option<Vec<u8>>);

/// Gives a node's bytes.
type BytesOf<'a> = dyn FnMut(NodeId, &Node) -> Result<Option<Vec<u8>>> + 'a;

/// A whole tree by path.
pub type Walk = BTreeMap<String, Leaf>;

fn walk<H: Head>(tree: &H, top: (NodeId, &str), bytes: &mut BytesOf<'_>) -> Result<Walk>
where
    H::Error: std::fmt::Debug,
{
    let failed = |error: H::Error| anyhow!("walking: {error:?}");
    let mut out = Walk::new();
    let mut todo = vec![(top.0, top.1.to_owned())];
    while let Some((id, path)) = todo.pop() {
        let node = tree
            .node(id)
            .map_err(failed)?
            .with_context(|| format!("{path} names {id}, which is not there"))?;
        if node.is_dir() {
            for (name, entry) in tree.entries(id, None, usize::MAX).map_err(failed)? {
                todo.push((entry.node, format!("{path}/{}", String::from_utf8_lossy(name.as_bytes()))));
            }
        }
        let content = bytes(id, &node)?;
        ensure!(out.insert(path.clone(), (id, node, content)).is_none(), "{path} is there twice");
        ensure!(out.len() < 100_000, "the tree has no end");
    }
    Ok(out)
}

/// The server's tree.
///
/// # Errors
/// When it is not a tree, or bytes are missing.
pub fn walk_head(server: &Server) -> Result<Walk> {
    let mut blocks = BlockMap::new();
    walk(server.head()?, (NodeId::ROOT, ""), &mut |_, node| stored_bytes(server, &mut blocks, node))
}

fn stored_bytes(server: &Server, blocks: &mut BlockMap, node: &Node) -> Result<Option<Vec<u8>>> {
    let Content::File(file) = &node.content.value else { return Ok(None) };
    let mut get = |hash| -> Result<Vec<u8>> {
        if !blocks.contains_key(&hash) {
            server.fetch(hash, blocks)?;
        }
        Ok(blocks[&hash].clone())
    };
    let map = match &file.map {
        FileMap::Extents(map) => map.clone(),
        FileMap::Stored(root) => {
            let leaves = manifest::decode_root(&get(*root)?)?;
            let leaves = leaves.into_iter().map(&mut get).collect::<Result<Vec<_>>>()?;
            manifest::decode_leaves(leaves.iter().map(Vec::as_slice), file.size)?
        }
    };
    let mut bytes = vec![0; file.size as usize];
    for (at, piece) in map.iter() {
        let Source::Block { hash, offset } = piece.source else {
            bail!("the server's tree names a mount's log")
        };
        let block = get(hash)?;
        let part =
            block.get(offset as usize..offset as usize + piece.len as usize).context("a short block")?;
        bytes[at as usize..at as usize + part.len()].copy_from_slice(part);
    }
    Ok(Some(bytes))
}

/// A mount's tree; every directory of it is loaded first.
///
/// # Errors
/// When it is not a tree, or bytes cannot be had.
pub fn walk_mount(running: &mut Running, server: &Server) -> Result<Walk> {
    loop {
        let found = running.session.view().with(|view| {
            let mut todo = vec![NodeId::ROOT];
            while let Some(dir) = todo.pop() {
                match view.entries(dir, None, usize::MAX) {
                    Err(missing) => return Some(missing.0),
                    Ok(entries) => {
                        let is_dir = |id| view.node(id).ok().flatten().is_some_and(|node| node.is_dir());
                        todo.extend(
                            entries.into_iter().map(|(_, entry)| entry.node).filter(|id| is_dir(*id)),
                        );
                    }
                }
            }
            None
        });
        let Some(dir) = found else { break };
        running.session.load_began();
        server.list(dir, 0)?.into_iter().for_each(|directory| running.session.loaded(directory));
        running.session.load_ended();
        ensure!(running.session.is_loaded(dir), "directory {dir} was fetched and is not loaded");
    }
    let mut files = BTreeMap::new();
    let ids = running.session.view().with(|view| -> Result<Vec<NodeId>> {
        Ok(walk(view, (NodeId::ROOT, ""), &mut |_, _| Ok(None))?.values().map(|leaf| leaf.0).collect())
    })?;
    for id in ids {
        let node = running.session.view().node(id).context("a node went")?;
        if matches!(node.content.value, Content::File(_)) {
            files.insert(id, running.bytes(id, server)?.context("bytes cannot be had")?);
        }
    }
    running
        .session
        .view()
        .with(|view| walk(view, (NodeId::ROOT, ""), &mut |id, _| Ok(files.get(&id).cloned())))
}

/// Fails where two trees differ.
///
/// # Errors
/// The first difference.
pub fn equal(what: &str, a: &Walk, b: &Walk) -> Result<()> {
    for path in a.keys().chain(b.keys()) {
        let (Some(one), Some(two)) = (a.get(path), b.get(path)) else {
            bail!(
                "{what}: {path} is in one only ({:?}, {:?})",
                a.get(path).map(|l| l.0),
                b.get(path).map(|l| l.0)
            );
        };
        ensure!(one.0 == two.0, "{what}: {path} is node {} and node {}", one.0, two.0);
        ensure!(one.2 == two.2, "{what}: {path} has other bytes");
        ensure!(one.1 == two.1, "{what}: {path} differs:\n  {:?}\n  {:?}", one.1, two.1);
    }
    Ok(())
}

fn own<'a>(walk: &'a Walk, top: &str) -> BTreeMap<String, &'a Leaf> {
    let below = format!("/{top}/");
    let mine = |path: &&String| **path == below[..below.len() - 1] || path.starts_with(&below);
    walk.iter().filter(|(path, _)| mine(path)).map(|(path, leaf)| (path[1..].to_owned(), leaf)).collect()
}

fn leaf_is(model: &Model, path: &str, leaf: &Leaf) -> Result<()> {
    let id = model.names.get(path).with_context(|| format!("{path} is there and must not be"))?;
    let want = model.nodes.get(id).context("the model lost a node")?;
    ensure!(leaf.0 == *id, "{path} is node {}, must be {id}", leaf.0);
    ensure!(leaf.1.is_dir() == want.is_dir, "{path} is of another kind");
    ensure!(
        leaf.1.owner.value.mode == want.mode,
        "{path} has mode {:o}, must have {:o}",
        leaf.1.owner.value.mode,
        want.mode
    );
    let attrs: BTreeMap<Vec<u8>, Vec<u8>> =
        leaf.1.attrs.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.value.to_vec())).collect();
    ensure!(attrs == want.attrs, "{path} has attributes {attrs:?}, must have {:?}", want.attrs);
    if !want.is_dir {
        let mtime = leaf.1.times.value.mtime;
        ensure!(mtime == want.mtime, "{path} has mtime {mtime:?}, must have {:?}", want.mtime);
        if let Some(bytes) = &leaf.2 {
            ensure!(
                *bytes == want.bytes,
                "{path} has other bytes ({} and {})",
                bytes.len(),
                want.bytes.len()
            );
        } else {
            ensure!(leaf.1.content.value.size() == want.bytes.len() as u64, "{path} has another size");
        }
    }
    Ok(())
}

/// A session's own directory is what its model says.
///
/// # Errors
/// The first difference.
pub fn own_work(model: &Model, index: usize, tree: &Walk) -> Result<()> {
    let own = own(tree, &format!("p{index}"));
    own.iter().try_for_each(|(path, leaf)| leaf_is(model, path, leaf))?;
    for path in model.names.keys() {
        ensure!(own.contains_key(path), "{path} is lost");
    }
    Ok(())
}

/// The same in a mount's view, as far as it is loaded: right after recovery. Returns whether all of it was.
///
/// # Errors
/// The first difference.
pub fn own_view(model: &Model, running: &Running) -> Result<bool> {
    running.session.view().with(|view| {
        let mut whole = true;
        for (path, id) in &model.names {
            let mut at = Some(NodeId::ROOT);
            let mut loaded = true;
            for part in path.split('/') {
                let Some(dir) = at else { break };
                match view.entry(dir, &tidefs_timeline::Name::new(part.as_bytes())?) {
                    Ok(entry) => at = entry.map(|entry| entry.node),
                    Err(_) => {
                        (at, loaded) = (Some(*id), false);
                        break;
                    }
                }
            }
            ensure!(at == Some(*id), "{path} is {at:?} in view after recovery, must be {id}");
            whole &= loaded;
            if loaded && let Ok(Some(node)) = view.node(*id) {
                let bytes = if node.is_dir() { None } else { running.bytes_at_hand(*id)? };
                leaf_is(model, path, &(*id, node, bytes))?;
            }
        }
        Ok(whole)
    })
}

/// Numbers of each session are dense from 1, positions from 1.
///
/// # Errors
/// The first gap.
pub fn dense(lines: &[PlacedLine]) -> Result<()> {
    let mut last: BTreeMap<SessionNo, u64> = BTreeMap::new();
    for (i, line) in lines.iter().enumerate() {
        ensure!(line.position.0 == i as u64 + 1, "position {} is missing", i + 1);
        let number = last.entry(line.session).or_default();
        ensure!(
            line.number.0 == *number + 1,
            "session {} went from {number} to {}",
            line.session.0,
            line.number.0
        );
        *number = line.number.0;
    }
    Ok(())
}
