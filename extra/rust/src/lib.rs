//! hugepin for Rust: large buffers in hugepages, and pins of memory that devices use.
//!
//! [`Hugepin`] is a global allocator, whose buffers of 32 KiB and more lie in hugepages. A [`Domain`] registers memory
//! with a ring of io_uring, or locks it. Each is of use without the other.
//!
//! To start a request is unsafe in every crate for io_uring, because the buffer has to live until the completion. A
//! [`Pinned`] buffer does, whatever safe code does with it, so one promise is left to the program: that of
//! [`Pinned::done`].
#![warn(missing_docs)]

mod alloc;
mod domain;
mod error;
mod pin;
pub mod sys;

pub use crate::alloc::{kind_of, stats, Hugepin, Kind};
pub use crate::domain::{Domain, Scope};
pub use crate::error::{Error, Refused};
pub use crate::pin::{Buffer, BufferMut, Piece, Pinned, Plain};

/// What the compiler accepts and refuses.
#[cfg(doctest)]
#[doc = include_str!("../tests/lifetimes.md")]
#[doc = include_str!("../README.md")]
struct Pages;
