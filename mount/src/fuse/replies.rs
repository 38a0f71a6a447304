//! Answers put into replies.

use super::attributes::attr;
use crate::volume::Found;
use fuser::{Errno, Generation, INodeNo, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyXattr};
use std::time::Duration;
use tidefs_timeline::NodeId;

/// The node that an inode number is.
pub(super) fn node(ino: INodeNo) -> NodeId {
    NodeId(ino.0)
}

pub(super) fn errno(errno: i32) -> Errno {
    Errno::from_i32(errno)
}

pub(super) fn entry(reply: ReplyEntry, ttl: Duration, answer: Result<Found, i32>) {
    match answer {
        Ok(found) => reply.entry(&ttl, &attr(&found), Generation(0)),
        Err(code) => reply.error(errno(code)),
    }
}

pub(super) fn attributes(reply: ReplyAttr, ttl: Duration, answer: Result<Found, i32>) {
    match answer {
        Ok(found) => reply.attr(&ttl, &attr(&found)),
        Err(code) => reply.error(errno(code)),
    }
}

pub(super) fn empty(reply: ReplyEmpty, answer: Result<(), i32>) {
    match answer {
        Ok(()) => reply.ok(),
        Err(code) => reply.error(errno(code)),
    }
}

pub(super) fn data(reply: ReplyData, answer: Result<Vec<u8>, i32>) {
    match answer {
        Ok(bytes) => reply.data(&bytes),
        Err(code) => reply.error(errno(code)),
    }
}

/// The size rules of attributes: size 0 asks for the length, a value that is longer than asked is ERANGE.
pub(super) fn sized(reply: ReplyXattr, size: u32, answer: Result<Vec<u8>, i32>) {
    match answer {
        Err(code) => reply.error(errno(code)),
        Ok(value) => match u32::try_from(value.len()) {
            Ok(len) if size == 0 => reply.size(len),
            Ok(len) if len <= size => reply.data(&value),
            _ => reply.error(Errno::ERANGE),
        },
    }
}
