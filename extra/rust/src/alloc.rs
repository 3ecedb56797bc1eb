//! The heap as Rust's allocator, and what it tells.
use crate::sys;
use std::alloc::{GlobalAlloc, Layout};
use std::mem::{size_of, size_of_val};

/// The heap as global allocator. Requests of less than 32 KiB go to the C library's malloc.
///
/// `vec![0; n]` clears no memory that comes straight from the kernel, and a `Vec` grows in place where it can.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hugepin;

/// Whether functions that are not told the alignment have it anyway. A malloc may align small sizes to the size only.
/// Large buffers begin with a base page.
fn is_aligned_anyway(align: usize, size: usize) -> bool {
    align <= size.min(16) || (size >= sys::HUGEPIN_LARGE_MIN && align <= 4096)
}

// SAFETY: the C functions are an allocator, for any thread, also in destructors of threads. They do not unwind.
unsafe impl GlobalAlloc for Hugepin {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_aligned_anyway(layout.align(), layout.size()) {
            sys::hugepin_malloc(layout.size()).cast()
        } else {
            sys::hugepin_aligned_alloc(layout.align(), layout.size()).cast()
        }
    }

    #[inline]
    unsafe fn dealloc(&self, p: *mut u8, _: Layout) {
        sys::hugepin_free(p.cast())
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_aligned_anyway(layout.align(), layout.size()) {
            let p = sys::hugepin_calloc(1, layout.size());
            // When the heap has no more memory, a large one may be malloc's, which does not begin with a base page.
            if p as usize & (layout.align() - 1) == 0 {
                return p.cast();
            }
            sys::hugepin_free(p);
        }
        let p: *mut u8 = sys::hugepin_aligned_alloc(layout.align(), layout.size()).cast();
        if !p.is_null() {
            p.write_bytes(0, layout.size());
        }
        p
    }

    #[inline]
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if is_aligned_anyway(layout.align(), size) {
            return sys::hugepin_realloc(p.cast(), size).cast();
        }
        let to: *mut u8 = sys::hugepin_aligned_alloc(layout.align(), size).cast();
        if !to.is_null() {
            to.copy_from_nonoverlapping(p, size.min(layout.size()));
            sys::hugepin_free(p.cast());
        }
        to
    }
}

/// What memory of the heap lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Base pages: no hugepages were to be had, or the memory was not touched yet.
    Base,
    /// Transparent hugepages.
    Thp,
    /// Pages of the hugetlb pool.
    Hugetlb,
}

/// Where the data lie. `None`: not in the heap, as they are small, empty, or not of this allocator.
pub fn kind_of<T: ?Sized>(data: &T) -> Option<Kind> {
    let mut extent = sys::hugepin_extent::default();
    let at = data as *const T;
    // SAFETY: any address may be asked about. The library writes at most so many bytes.
    let known = unsafe { sys::hugepin_extent(at.cast(), &mut extent, size_of::<sys::hugepin_extent>()) };
    match extent.kind {
        _ if known < 0 || size_of_val(data) == 0 => None,
        sys::HUGEPIN_KIND_THP => Some(Kind::Thp),
        sys::HUGEPIN_KIND_HUGETLB => Some(Kind::Hugetlb),
        _ => Some(Kind::Base),
    }
}

/// The statistics of the heap: hugepin_stats(3).
pub fn stats() -> sys::hugepin_stats {
    let mut stats = sys::hugepin_stats::default();
    // SAFETY: the library writes at most so many bytes.
    unsafe { sys::hugepin_stats(&mut stats, size_of::<sys::hugepin_stats>()) };
    stats
}
