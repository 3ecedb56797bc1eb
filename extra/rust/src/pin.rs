//! Buffers, and pins of them.
use crate::{sys, Domain, Error, Refused};
use std::iter::once;
use std::mem::{size_of_val, take, ManuallyDrop, MaybeUninit};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Numbers, and arrays of them.
///
/// # Safety
/// All bytes of a value are set, and any bytes are a value.
pub unsafe trait Plain: Copy + 'static {}
macro_rules! plain {
    ($($t:ty)*) => { $(unsafe impl Plain for $t {})* };
}
plain! { u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64 }
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Memory that a device may read. Of a `Vec` it is the part that has elements.
///
/// # Safety
/// Until the value is dropped, the memory is there, also when the value is moved, and nobody writes to it.
pub unsafe trait Buffer {
    /// The address, and the number of bytes.
    fn bytes(&mut self) -> (*mut u8, usize);
}

/// Memory that a device may write to.
///
/// # Safety
/// As for [`Buffer`]. In addition, nobody else reads the memory, and any bytes may be written.
pub unsafe trait BufferMut: Buffer {}

macro_rules! buffers {
    ($($t:ty: $pointer:ident,)*) => { $(unsafe impl<T: Plain> Buffer for $t {
        fn bytes(&mut self) -> (*mut u8, usize) {
            (self.$pointer() as *mut u8, size_of_val(&self[..]))
        }
    })* };
}
buffers! { Vec<T>: as_mut_ptr, Box<[T]>: as_mut_ptr, &mut [T]: as_mut_ptr, &[T]: as_ptr, }
unsafe impl<T: Plain> BufferMut for Vec<T> {}
unsafe impl<T: Plain> BufferMut for Box<[T]> {}
unsafe impl<T: Plain> BufferMut for &mut [T] {}

/// What a request to the device is made of.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Where it begins.
    pub addr: *mut u8,
    /// To the end of the buffer, or of the registration, since one of io_uring has at most 1 GiB.
    pub len: usize,
    /// The index of the fixed buffer.
    pub key: u32,
}

/// A buffer that is registered and stays where it is. The program cannot reach it meanwhile.
///
/// Once [`piece`](Pinned::piece) has told the address, a device may have the buffer, and only [`done`](Pinned::done)
/// ends the pin: dropping it leaks pin and buffer. Before that, dropping it gives the pin back.
///
/// A pin of a [`Domain`] owns its buffer, so `std::mem::forget` leaks that, too, and no memory that a device writes to
/// is freed. [`Scope`](crate::Scope) has pins of borrowed memory.
///
/// ```
/// let domain = hugepin::Domain::mlock()?;
/// let mut pinned = domain.incoming(vec![0u8; 1 << 20])?;
/// let piece = pinned.piece(0);
/// // ... READ_FIXED to piece.addr, piece.len bytes, buffer index piece.key; the request has completed ...
/// let data: Vec<u8> = unsafe { pinned.done() };
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping a pin gives it back"]
pub struct Pinned<'scope, B> {
    domain: &'scope Domain,
    at: *mut u8,
    first: sys::hugepin_pin,
    /// What is beyond the longest registration of the device.
    more: Vec<sys::hugepin_pin>,
    told: bool,
    out: Option<&'scope AtomicUsize>,
    /// Not dropped by itself, and no promise to the compiler that nobody but this `&mut` or `Box` writes the memory.
    buffer: MaybeUninit<B>,
}

// SAFETY: any thread may give a pin back.
unsafe impl<B: Send> Send for Pinned<'_, B> {}

impl<'scope, B: Buffer> Pinned<'scope, B> {
    #[inline(always)]
    pub(crate) fn new(
        domain: &'scope Domain,
        buffer: B,
        access: u32,
        out: Option<&'scope AtomicUsize>,
    ) -> Result<Self, Refused<B>> {
        let mut buffer = MaybeUninit::new(buffer);
        // SAFETY: the buffer is there.
        let (at, len) = unsafe { &mut *buffer.as_mut_ptr() }.bytes();
        let mut pinned = Pinned { domain, at, first: Default::default(), more: Vec::new(), told: false, out, buffer };
        // SAFETY: the memory is the buffer's, which is there while the pin is out.
        let mut ret = unsafe { sys::hugepin_pin(domain.as_raw(), at.cast(), len, access, &mut pinned.first) };
        let mut covered = pinned.first.len as usize;
        while ret == 0 && covered < len {
            let mut pin = sys::hugepin_pin::default();
            // SAFETY: as above.
            ret = unsafe { sys::hugepin_pin(domain.as_raw(), at.add(covered).cast(), len - covered, access, &mut pin) };
            covered += pin.len as usize;
            pinned.more.push(pin);
        }
        match Error::check(ret) {
            Ok(()) => Ok(pinned),
            Err(error) => Err(Refused { error, buffer: pinned.end() }),
        }
    }
}

impl<B> Pinned<'_, B> {
    /// What to tell the device, from this byte of the buffer on. From now on it may have the buffer.
    pub fn piece(&mut self, offset: usize) -> Piece {
        let at = self.at as u64 + offset as u64;
        let mut pins = once(&self.first).chain(&self.more);
        let pin = pins.find(|p| at >= p.base && at - p.base < p.len).expect("an offset beyond the buffer");
        if let (false, Some(out)) = (self.told, self.out) {
            out.fetch_add(1, Ordering::Relaxed); // relaxed: the scope cannot end meanwhile
        }
        self.told = true;
        // SAFETY: it lies in the buffer.
        Piece { addr: unsafe { self.at.add(offset) }, len: (pin.base + pin.len - at) as usize, key: pin.lkey }
    }

    /// Give the pin and the buffer back.
    ///
    /// # Safety
    /// All requests with an address of this buffer have completed, and no more will be made.
    pub unsafe fn done(self) -> B {
        self.end()
    }

    fn end(self) -> B {
        let mut this = ManuallyDrop::new(self);
        this.unpin();
        // SAFETY: the buffer is there, and is not used again.
        unsafe { this.buffer.assume_init_read() }
    }

    fn unpin(&mut self) {
        // SAFETY: the domain is open. In a child of fork the calls fail.
        unsafe { sys::hugepin_unpin(self.domain.as_raw(), &mut self.first) };
        for mut pin in take(&mut self.more) {
            unsafe { sys::hugepin_unpin(self.domain.as_raw(), &mut pin) };
        }
        if let (true, Some(out)) = (self.told, self.out) {
            out.fetch_sub(1, Ordering::Release); // pairs with the end of the scope
        }
    }
}

impl<B> Drop for Pinned<'_, B> {
    fn drop(&mut self) {
        if !self.told {
            self.unpin();
            // SAFETY: the buffer is there, and nobody was told of it.
            unsafe { self.buffer.assume_init_drop() };
        }
    }
}
