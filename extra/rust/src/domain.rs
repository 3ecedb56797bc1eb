//! Domains, and scopes for borrowed memory.
use crate::{sys, Buffer, BufferMut, Error, Pinned, Refused};
use std::any::Any;
use std::marker::PhantomData;
use std::mem::{size_of, ManuallyDrop};
use std::ops::Range;
use std::os::unix::io::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{process, sync::Arc, thread};

/// A place to register memory with, and a cache of registrations: hugepin_domain(3). Threads may share it. A pin of
/// memory that is registered takes nanoseconds and no lock. The variables HUGEPIN_POLICY and HUGEPIN_PIN_BUDGET say how
/// long memory stays registered, and how much.
///
/// Pins borrow it, so a program that keeps them in its own structures makes it `&'static`, by `Box::leak`. It is closed
/// when it is dropped, unless pins were leaked, or another thread than the owner of its ring drops it.
#[derive(Debug)]
pub struct Domain {
    raw: NonNull<sys::hugepin_domain>,
    /// What the domain needs until it is closed.
    keep: ManuallyDrop<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: any thread may call the functions of a domain. Where a ring has an owner, other threads get errors.
unsafe impl Send for Domain {}
unsafe impl Sync for Domain {}

impl Domain {
    /// Memory is locked, as by mlock(2), and has no keys.
    pub fn mlock() -> Result<Domain, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the backend is the library's, and has no context.
        unsafe {
            Error::check(sys::hugepin_domain_open(sys::hugepin_mlock(), ptr::null_mut(), ptr::null(), &mut raw))?;
            Ok(Domain::from_raw(raw, Arc::new(())))
        }
    }

    /// Registrations are fixed buffers of a ring of io_uring, in these slots of its table, which the program leaves
    /// alone: hugepin_uring(3). The ring was set up with `flags`. If these include IORING_SETUP_SINGLE_ISSUER, the
    /// calling thread owns the ring, and other threads pin only what is registered. The ring may be closed before the
    /// domain, which has a duplicate of its descriptor.
    pub fn uring(ring: impl AsFd, flags: u32, slots: Range<u32>) -> Result<Domain, Error> {
        let (fd, mut raw) = (ring.as_fd().as_raw_fd(), ptr::null_mut());
        // SAFETY: the library duplicates the descriptor.
        unsafe {
            let slots = (slots.start, slots.len() as u32);
            Error::check(sys::hugepin_uring_open_fd(fd, flags, slots.0, slots.1, ptr::null(), &mut raw))?;
            Ok(Domain::from_raw(raw, Arc::new(())))
        }
    }

    /// A domain that C functions opened, such as hugepin_verbs_open(3). It is closed when this is dropped.
    ///
    /// # Safety
    /// The domain is open, and nobody else closes it. What its device needs is there as long as `keep`.
    pub unsafe fn from_raw(raw: *mut sys::hugepin_domain, keep: Arc<dyn Any + Send + Sync>) -> Domain {
        Domain { raw: NonNull::new_unchecked(raw), keep: ManuallyDrop::new(keep) }
    }

    /// For C functions that this crate lacks.
    pub fn as_raw(&self) -> *mut sys::hugepin_domain {
        self.raw.as_ptr()
    }

    /// The statistics of the domain: hugepin_domain(3).
    pub fn stats(&self) -> sys::hugepin_domain_stats {
        let mut stats = sys::hugepin_domain_stats::default();
        // SAFETY: the library writes at most so many bytes.
        unsafe { sys::hugepin_domain_stats(self.as_raw(), &mut stats, size_of::<sys::hugepin_domain_stats>()) };
        stats
    }

    /// Pin a buffer that the device reads: it is sent, or written to a file.
    #[inline(always)] // The library tells call sites apart by the address to which hugepin_pin() returns.
    pub fn outgoing<B: Buffer + 'static>(&self, buffer: B) -> Result<Pinned<'_, B>, Refused<B>> {
        Pinned::new(self, buffer, sys::HUGEPIN_READ, None)
    }

    /// Pin a buffer that the device writes to: it is received, or read from a file.
    #[inline(always)]
    pub fn incoming<B: BufferMut + 'static>(&self, buffer: B) -> Result<Pinned<'_, B>, Refused<B>> {
        Pinned::new(self, buffer, sys::HUGEPIN_WRITE, None)
    }

    /// Pin borrowed memory, which stays borrowed until the scope ends.
    ///
    /// A guard alone could not be sound: `std::mem::forget` of it would end the borrow while the device works on. Here
    /// forgetting changes nothing. If the scope ends, by a panic too, after [`Pinned::piece`] without [`Pinned::done`],
    /// the process is aborted: the program would get memory back that a device may have, and nobody can wait for it.
    ///
    /// ```
    /// let domain = hugepin::Domain::mlock()?;
    /// let mut grid = vec![0.0f64; 4096];
    /// let (edge, inner) = grid.split_at_mut(64);
    /// domain.scope(|s| -> Result<(), hugepin::Error> {
    ///     let mut received = s.incoming(edge)?;
    ///     let piece = received.piece(0);
    ///     // ... the device writes piece.len bytes to piece.addr, by the key piece.key; it has completed ...
    ///     let edge = unsafe { received.done() };
    ///     inner[0] += edge[0];
    ///     Ok(())
    /// })?;
    /// # Ok::<(), hugepin::Error>(())
    /// ```
    pub fn scope<'env, F, R>(&'env self, f: F) -> R
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    {
        struct Watch<'a>(&'a AtomicUsize);
        impl Drop for Watch<'_> {
            fn drop(&mut self) {
                // acquire: sees all that another thread did before done(); pairs with Pinned::unpin().
                if self.0.load(Ordering::Acquire) != 0 {
                    eprintln!("hugepin: a scope ends, and a device may still have its memory");
                    process::abort();
                }
            }
        }
        let scope = Scope { domain: self, out: AtomicUsize::new(0), scope: PhantomData, env: PhantomData };
        let _watch = Watch(&scope.out);
        f(&scope)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        for _ in 0..100 {
            // SAFETY: nobody else has the domain. With pins out nothing is closed.
            match unsafe { sys::hugepin_domain_close(self.as_raw()) } {
                // A pin of another domain may be counted here for a moment.
                ret if ret == -sys::EBUSY => thread::yield_now(),
                ret if ret < 0 => return,
                // SAFETY: it is not used again.
                _ => return unsafe { ManuallyDrop::drop(&mut self.keep) },
            }
        }
    }
}

/// Where borrowed memory is pinned: [`Domain::scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    domain: &'env Domain,
    /// Pins whose memory the device may have.
    out: AtomicUsize,
    // Invariant: neither passes for a shorter lifetime.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// As [`Domain::outgoing`].
    #[inline(always)]
    pub fn outgoing<B: Buffer + 'env>(&'scope self, buffer: B) -> Result<Pinned<'scope, B>, Refused<B>> {
        Pinned::new(self.domain, buffer, sys::HUGEPIN_READ, Some(&self.out))
    }

    /// As [`Domain::incoming`].
    #[inline(always)]
    pub fn incoming<B: BufferMut + 'env>(&'scope self, buffer: B) -> Result<Pinned<'scope, B>, Refused<B>> {
        Pinned::new(self.domain, buffer, sys::HUGEPIN_WRITE, Some(&self.out))
    }
}
