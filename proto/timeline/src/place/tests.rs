//! Placing, tested three ways: stories with a known end (`stories`, `directed`), random histories of sessions in
//! miniature against the promises (`random`), and checkpoints that no session would make (`garbage`).

mod check;
mod directed;
mod garbage;
mod mini;
mod overlay;
mod random;
mod stories;
