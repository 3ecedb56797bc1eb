//! Errors of domains and pins.
use crate::sys;
use std::{error, fmt, io};

macro_rules! errors {
    ($($name:ident = $errno:ident: $text:literal,)*) => {
        /// Why memory could not be pinned, or a domain not be opened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Error {
            $(#[doc = concat!(stringify!($errno), ": ", $text)] $name,)*
            /// Another error of the system.
            Os(i32),
        }

        impl Error {
            /// Of what a function of the library returned.
            pub(crate) fn check(ret: i32) -> Result<(), Error> {
                match -ret {
                    i32::MIN..=0 => Ok(()),
                    $(sys::$errno => Err(Error::$name),)*
                    errno => Err(Error::Os(errno)),
                }
            }

            /// The error number of the system.
            pub fn errno(self) -> i32 {
                match self {
                    $(Error::$name => sys::$errno,)*
                    Error::Os(errno) => errno,
                }
            }
        }

        impl fmt::Display for Error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Error::$name => f.write_str($text),)*
                    Error::Os(errno) => io::Error::from_raw_os_error(*errno).fmt(f),
                }
            }
        }
    };
}
errors! {
    NoRoom = ENOBUFS: "no room to pin: the budget, `ulimit -l` or the slots of the ring are all in use",
    NoMemory = ENOMEM: "no memory to register with, or `ulimit -l` is reached",
    NotThere = EFAULT: "the memory is not there, or it is read-only and the device registers for writing",
    Unsupported = EOPNOTSUPP: "the kernel or the device cannot register this memory",
    NotPermitted = EPERM: "only the thread that owns the ring may register, or `ulimit -l` is 0",
    ParentsDomain = ESTALE: "the domain is the parent process's",
    Invalid = EINVAL: "the buffer is empty, or the ring has no such slots",
}

impl error::Error for Error {}

/// Memory could not be pinned. `?` makes an [`Error`] of it, an [`io::Error`], or, where the buffer is owned, a
/// `Box<dyn std::error::Error>`.
pub struct Refused<B> {
    /// Why.
    pub error: Error,
    /// What was to be pinned.
    pub buffer: B,
}

impl<B> fmt::Debug for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refused({:?})", self.error)
    }
}

impl<B> fmt::Display for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> error::Error for Refused<B> {}

impl<B> From<Refused<B>> for Error {
    fn from(refused: Refused<B>) -> Error {
        refused.error
    }
}

impl<B> From<Refused<B>> for io::Error {
    fn from(refused: Refused<B>) -> io::Error {
        refused.error.into()
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(io::Error::from_raw_os_error(error.errno()).kind(), error)
    }
}
