//! The language that a tidefs mount and a tidefs server speak.
pub mod pack;
