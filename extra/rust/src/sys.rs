//! What this crate uses of the C library, under the C names. Its man pages have the rules; tests/header.rs compares
//! this file with the headers.
#![allow(non_camel_case_types, missing_docs)]
use std::os::raw::{c_int, c_void};

pub const HUGEPIN_LARGE_MIN: usize = 32768;
pub const HUGEPIN_READ: u32 = 1;
pub const HUGEPIN_WRITE: u32 = 2;
pub const HUGEPIN_KIND_THP: u32 = 1;
pub const HUGEPIN_KIND_HUGETLB: u32 = 2;

pub const EPERM: i32 = 1;
pub const ENOMEM: i32 = 12;
pub const EFAULT: i32 = 14;
pub const EBUSY: i32 = 16;
pub const EINVAL: i32 = 22;
pub const EOPNOTSUPP: i32 = 95;
pub const ENOBUFS: i32 = 105;
pub const ESTALE: i32 = 116;

pub enum hugepin_domain {}
pub enum hugepin_backend {}
pub enum hugepin_attr {}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hugepin_pin {
    pub base: u64,
    pub len: u64,
    pub lkey: u32,
    pub rkey: u32,
    pub r#ref: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hugepin_extent {
    pub addr: usize,
    pub len: usize,
    pub gen: u64,
    pub page_shift: u32,
    pub kind: u32,
    pub node: i32,
    pub pad: u32,
}

macro_rules! counters {
    ($name:ident: $($member:ident)*) => {
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name {
            pub version: u64,
            $(pub $member: u64,)*
        }
    };
}
counters! { hugepin_stats: hugetlb_bytes thp_bytes base_bytes reserved_bytes taken_bytes taken_peak_bytes listed_bytes
    room_bytes extents threads mappings placed relisted cleared pool_short pool_denied thp_failed nomem decayed_bytes
    purged_bytes grown_in_place moved commit_waits stolen forks_copied forks_cow forks_uncovered forks_refused
    fork_copied_bytes bad_pointers small_bytes service_wakeups small_outside_bytes sparse_bytes repaired_bytes
    image_bytes image_left_bytes watched_ranges fork_longest_us deepbinds_ignored
}
counters! { hugepin_domain_stats: pinned_bytes pinned_peak_bytes regions extents retired bytes_max misses registered
    registered_bytes registered_ns deregistered deregistered_ns ahead evicted merged widened invalidated decayed
    uncached cut refused nobufs failed prefetched prefetched_otherwise released repinned late records_lost helper_ns
    sharers helper_delay_ns cost_fixed_ns cost_page_ns cost_error crowded brought_bytes prefetched_late
    hits uncached_policy uncached_asked uncached_changing uncached_shared uncached_unwatched uncached_discarded
    uncached_budget uncached_other
}

#[rustfmt::skip] // a function a line, or two
extern "C" {
    pub fn hugepin_malloc(size: usize) -> *mut c_void;
    pub fn hugepin_calloc(count: usize, size: usize) -> *mut c_void;
    pub fn hugepin_realloc(ptr: *mut c_void, size: usize) -> *mut c_void;
    pub fn hugepin_aligned_alloc(align: usize, size: usize) -> *mut c_void;
    pub fn hugepin_free(ptr: *mut c_void);
    pub fn hugepin_extent(ptr: *const c_void, ret: *mut hugepin_extent, size: usize) -> c_int;
    pub fn hugepin_stats(ret: *mut hugepin_stats, size: usize) -> c_int;

    pub fn hugepin_mlock() -> *const hugepin_backend;
    pub fn hugepin_domain_open(backend: *const hugepin_backend, ctx: *mut c_void, attr: *const hugepin_attr,
                               ret: *mut *mut hugepin_domain) -> c_int;
    pub fn hugepin_uring_open_fd(fd: c_int, flags: u32, slot0: u32, slots: u32, attr: *const hugepin_attr,
                                 ret: *mut *mut hugepin_domain) -> c_int;
    pub fn hugepin_domain_close(domain: *mut hugepin_domain) -> c_int;
    pub fn hugepin_domain_stats(domain: *mut hugepin_domain, ret: *mut hugepin_domain_stats, size: usize) -> c_int;
    pub fn hugepin_pin(domain: *mut hugepin_domain, addr: *const c_void, len: usize, access: u32,
                       ret: *mut hugepin_pin) -> c_int;
    pub fn hugepin_unpin(domain: *mut hugepin_domain, pin: *mut hugepin_pin) -> c_int;
}
