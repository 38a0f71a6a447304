//! How often each fault, rule and checker had a part: a simulation that never crashes proves nothing about crashes.

use std::collections::BTreeMap;

/// Counters by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// Counts one.
    pub fn add(&mut self, name: &str) {
        self.add_many(name, 1);
    }

    /// Counts several.
    pub fn add_many(&mut self, name: &str, n: u64) {
        match self.0.get_mut(name) {
            Some(count) => *count += n,
            None => drop(self.0.insert(name.to_owned(), n)),
        }
    }

    /// The count of a name.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Adds those of another run.
    pub fn merge(&mut self, other: &Counts) {
        other.0.iter().for_each(|(name, n)| self.add_many(name, *n));
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|(name, n)| writeln!(f, "{n:>10}  {name}"))
    }
}
