//! Directory listings in the order of their cookies.
//!
//! No handle tells one reader of a directory from another (`opendir` never reaches us), so a cookie must mean the
//! same to all of them, for ever, while names come and go. It is a hash of the name: entries are listed in its
//! order, and going on behind a cookie needs nothing remembered.

use super::{before::At, view::View};
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};
use tidefs_timeline::{Head, Name, NodeId, NotLoaded};

/// Cookies below this one are `.` and `..`.
const FIRST: u64 = 16;
/// Listings kept in order.
const KEPT_MAX: usize = 64;

/// Listings that were asked for lately.
#[derive(Debug, Default)]
pub struct Listings {
    kept: BTreeMap<NodeId, BTreeMap<u64, Name>>,
}

fn cookie(name: &Name, taken: &BTreeMap<u64, Name>) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.as_bytes().hash(&mut hasher);
    // 62 bits: kernels and programs that see cookies as signed offsets never see a negative one.
    let mut cookie = (hasher.finish() >> 2).max(FIRST);
    while taken.get(&cookie).is_some_and(|other| other != name) {
        cookie += 1;
    }
    cookie
}

impl Listings {
    /// The names of a directory behind `after`, with their cookies, at most `limit`.
    pub fn behind(
        &mut self,
        dir: NodeId,
        view: &View,
        from: (u64, usize),
    ) -> Result<Vec<(u64, Name)>, NotLoaded> {
        if !self.kept.contains_key(&dir) {
            let mut listing = BTreeMap::new();
            for (name, _) in view.with(|view| view.entries(dir, None, usize::MAX))? {
                listing.insert(cookie(&name, &listing), name);
            }
            if self.kept.len() >= KEPT_MAX {
                self.kept.pop_first();
            }
            self.kept.insert(dir, listing);
        }
        let (after, limit) = from;
        let listing = self.kept.get(&dir).map(|listing| listing.range(after + 1..).take(limit));
        Ok(listing.map(|lines| lines.map(|(at, name)| (*at, name.clone())).collect()).unwrap_or_default())
    }

    /// A name came or went.
    pub fn name_changed(&mut self, at: &At, there: bool) {
        let Some(listing) = self.kept.get_mut(&at.0) else { return };
        let cookie = cookie(&at.1, listing);
        if there {
            listing.insert(cookie, at.1.clone());
        } else if listing.get(&cookie) == Some(&at.1) {
            listing.remove(&cookie);
        }
    }

    /// A directory was loaded anew or left.
    pub fn forget(&mut self, dir: NodeId) {
        self.kept.remove(&dir);
    }
}
