//! Fixed buffers of io_uring: a file is written and read by the keys of pins. Where there is no io_uring, the tests say
//! "skipped:" and why.
use hugepin::{Domain, Error, Hugepin, Piece, Pinned};
use std::fs::{remove_file, File, OpenOptions};
use std::os::raw::{c_int, c_long, c_void};
use std::os::unix::io::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, io, process, ptr, thread};

#[global_allocator]
static HEAP: Hugepin = Hugepin;

extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn mmap(at: *mut c_void, len: usize, rights: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
}
const SETUP: c_long = 425;
const ENTER: c_long = 426;
const SINGLE_ISSUER: u32 = 1 << 12;
const READ_FIXED: u8 = 4;
const WRITE_FIXED: u8 = 5;

/// struct io_uring_params
#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    not_used: [u32; 7],
    sq: Offsets,
    cq: Offsets,
}
/// head, tail, mask, entries; flags, dropped, array of submissions, and overflow, cqes of completions.
#[repr(C)]
#[derive(Default)]
struct Offsets([u32; 10]);

/// struct io_uring_sqe
#[repr(C)]
struct Request {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    addr: u64,
    len: u32,
    more: u32,
    user_data: u64,
    key: u16,
    rest: [u16; 11],
}

/// A ring with one request under way at a time.
struct Ring {
    fd: OwnedFd,
    requests: *mut Request,
    rings: *mut u8,
    params: Params,
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Ring {
    fn new(flags: u32) -> io::Result<Ring> {
        let mut params = Params { flags, ..Default::default() };
        unsafe {
            let fd = syscall(SETUP, 1u32, &mut params as *mut Params) as c_int;
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            let map = |offset| mmap(ptr::null_mut(), 4096, 3, 0x8001, fd, offset);
            let (rings, requests) = (map(0), map(0x10000000));
            assert!(rings as isize != -1 && requests as isize != -1);
            Ok(Ring { fd: OwnedFd::from_raw_fd(fd), requests: requests.cast(), rings: rings.cast(), params })
        }
    }

    /// Make a request, and wait for its end.
    fn request(&mut self, opcode: u8, file: &File, piece: Piece, offset: u64) -> i32 {
        let (key, len) = (piece.key as u16, piece.len as u32);
        let (addr, fd) = (piece.addr as u64, file.as_raw_fd());
        let rest = [0; 11];
        let request =
            Request { opcode, flags: 0, priority: 0, fd, offset, addr, len, more: 0, user_data: 1, key, rest };
        unsafe {
            self.requests.write(request);
            let word = |at: u32| &*self.rings.add(at as usize).cast::<AtomicU32>();
            word(self.params.sq.0[6]).store(0, Ordering::Relaxed);
            word(self.params.sq.0[1]).fetch_add(1, Ordering::Release);
            let taken = syscall(ENTER, self.fd.as_raw_fd(), 1u32, 1u32, 1u32, ptr::null::<u8>(), 0usize);
            assert_eq!(taken, 1, "{}", io::Error::last_os_error());
            let head = word(self.params.cq.0[0]);
            assert_ne!(head.load(Ordering::Relaxed), word(self.params.cq.0[1]).load(Ordering::Acquire));
            let index = head.load(Ordering::Relaxed) & word(self.params.cq.0[2]).load(Ordering::Relaxed);
            // A completion has 16 bytes: the user's data, the result, flags.
            let completion = self.rings.add((self.params.cq.0[5] + index * 16) as usize);
            let result = completion.add(8).cast::<i32>().read();
            head.fetch_add(1, Ordering::Release);
            result
        }
    }
}

/// Run the test with a ring and its domain, where there are such.
fn with_ring(flags: u32, test: impl FnOnce(Ring, Domain)) {
    let ring = match Ring::new(flags) {
        Err(why) => return println!("skipped: no io_uring: {why}"),
        Ok(ring) => ring,
    };
    match Domain::uring(&ring, flags, 0..16) {
        Err(Error::Unsupported) => println!("skipped: no io_uring with sparse tables"),
        domain => test(ring, domain.unwrap()),
    }
}

fn file(name: &str) -> File {
    let path = env::temp_dir().join(format!("hugepin-rust-{name}-{}", process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    remove_file(path).unwrap();
    file
}

/// A pinned vector of numbers, unless `ulimit -l` is too low.
fn pin(domain: &Domain) -> Option<Pinned<'_, Vec<u32>>> {
    match domain.incoming((0..100_000).collect::<Vec<u32>>()) {
        Err(refused) if refused.error == Error::NoRoom => println!("skipped: no io_uring within ulimit -l"),
        pinned => return Some(pinned.unwrap()),
    }
    None
}

#[test]
fn a_file_is_written_and_read_by_registered_buffers() {
    with_ring(0, |mut ring, domain| {
        let (file, mut done) = (file("copy"), 0);
        let mut pinned = match pin(&domain) {
            None => return,
            Some(pinned) => pinned,
        };
        while done < 400_000 {
            let n = ring.request(WRITE_FIXED, &file, pinned.piece(done), done as u64);
            assert!(n > 0, "{n}");
            done += n as usize;
        }
        let data = unsafe { pinned.done() };

        let mut again = vec![0u32; 100_000];
        domain.scope(|s| {
            let (mut pinned, mut done) = (s.incoming(&mut again[..50_000]).unwrap(), 0);
            while done < 200_000 {
                let n = ring.request(READ_FIXED, &file, pinned.piece(done), done as u64);
                assert!(n > 0, "{n}");
                done += n as usize;
            }
            assert_eq!(unsafe { pinned.done() }[49_999], 49_999);
        });
        assert!(again[..50_000] == data[..50_000] && again[50_000..].iter().all(|n| *n == 0));
        assert_eq!(domain.stats().uncached, 0);
    });
}

#[test]
fn a_domain_outlives_the_programs_descriptor_of_the_ring() {
    with_ring(0, |ring, domain| {
        drop(ring);
        drop(pin(&domain));
        assert_eq!(domain.stats().failed, 0);
    });
}

#[test]
fn only_the_owner_of_a_ring_registers() {
    with_ring(SINGLE_ISSUER, |_ring, domain| {
        let other = |data| thread::scope(|s| s.spawn(|| domain.incoming(data)).join().unwrap());
        assert_eq!(other(vec![0u32; 100_000]).unwrap_err().error, Error::NotPermitted);
        // What is registered is for all threads.
        if let Some(pinned) = pin(&domain) {
            drop(other(unsafe { pinned.done() }).unwrap());
        }
    });
}

#[test]
fn slots_that_the_ring_cannot_have_are_refused() {
    with_ring(0, |ring, _domain| {
        assert_eq!(Domain::uring(&ring, 0, 16000..17000).unwrap_err(), Error::Invalid);
        assert_eq!(Domain::uring(&ring, 0, 3..3).unwrap_err(), Error::Invalid);
    });
}
