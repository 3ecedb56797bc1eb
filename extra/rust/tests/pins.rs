//! Pins: what they give, and what is left when they are dropped, forgotten, refused or outlived.
use hugepin::{sys, Buffer, Domain, Error, Hugepin, Pinned, Refused};
use std::any::Any;
use std::mem::{forget, size_of};
use std::os::raw::{c_char, c_int, c_void};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::Arc;
use std::{env, io, process, ptr, thread};

#[global_allocator]
static HEAP: Hugepin = Hugepin;

/// A device that pins nothing, and takes `len_max` bytes and `regs_max` registrations.
#[derive(Default)]
struct Device {
    len_max: usize,
    regs_max: AtomicU32,
    registrations: AtomicU32,
    keys: AtomicU32,
    closed: AtomicBool,
}

#[repr(C)]
struct Backend {
    size: usize,
    name: *const c_char,
    reg: unsafe extern "C" fn(*const Device, *mut c_void, usize, u32, *mut Reg) -> c_int,
    dereg: unsafe extern "C" fn(*const Device, *mut Reg) -> c_int,
    prefetch: usize,
    limits: unsafe extern "C" fn(*const Device, *mut Limits) -> c_int,
    now_ns: usize,
    close: unsafe extern "C" fn(*const Device),
    paging: usize,
    terms: usize,
}
#[repr(C)]
struct Reg {
    lkey: u32,
    rkey: u32,
    cookie: u64,
}
#[repr(C)]
struct Limits {
    len_max: usize,
    bytes_max: usize,
    regs_max: u32,
    access: u32,
    flags: u32,
    pad: u32,
}

unsafe extern "C" fn reg(d: *const Device, _: *mut c_void, _: usize, _: u32, ret: *mut Reg) -> c_int {
    if (*d).registrations.load(SeqCst) >= (*d).regs_max.load(SeqCst) {
        return -sys::EFAULT;
    }
    (*d).registrations.fetch_add(1, SeqCst);
    ret.write(Reg { lkey: (*d).keys.fetch_add(1, SeqCst), rkey: 0, cookie: 0 });
    0
}
unsafe extern "C" fn dereg(d: *const Device, _: *mut Reg) -> c_int {
    (*d).registrations.fetch_sub(1, SeqCst);
    0
}
unsafe extern "C" fn limits(d: *const Device, ret: *mut Limits) -> c_int {
    ret.write(Limits { len_max: (*d).len_max, bytes_max: 0, regs_max: 0, access: 31, flags: 0, pad: 0 });
    0
}
unsafe extern "C" fn close(d: *const Device) {
    (*d).closed.store(true, SeqCst);
}

fn device(len_max: usize) -> (Arc<Device>, Domain) {
    let device = Arc::new(Device { len_max, regs_max: u32::MAX.into(), ..Default::default() });
    let name = b"none\0".as_ptr().cast();
    let size = size_of::<Backend>();
    let backend = Backend { size, name, reg, dereg, prefetch: 0, limits, now_ns: 0, close, paging: 0, terms: 0 };
    let mut raw = ptr::null_mut();
    unsafe {
        let ctx = Arc::as_ptr(&device) as *mut c_void;
        assert_eq!(sys::hugepin_domain_open(ptr::addr_of!(backend).cast(), ctx, ptr::null(), &mut raw), 0);
        let keep: Arc<dyn Any + Send + Sync> = device.clone();
        (device, Domain::from_raw(raw, keep))
    }
}

#[test]
fn a_pin_has_the_address_and_gives_the_buffer_back() {
    let domain = Domain::mlock().unwrap();
    let data: Vec<u32> = (0..100_000).collect();
    let at = data.as_ptr();
    let mut pinned = match domain.outgoing(data) {
        Err(Refused { error: Error::NoRoom | Error::NotPermitted | Error::NoMemory, .. }) => return, // ulimit -l
        other => other.unwrap(),
    };
    let piece = pinned.piece(0);
    assert!(piece.addr as *const u32 == at && piece.len == 400_000);
    let data = unsafe { pinned.done() };
    assert!(data.as_ptr() == at && data.into_iter().eq(0..100_000));
    assert!(domain.stats().pinned_bytes >= 400_000);
}

#[test]
fn a_buffer_is_registered_once() {
    let (device, domain) = device(0);
    let mut data = vec![0u8; 1 << 20].into_boxed_slice();
    for _ in 0..1000 {
        let mut pinned = domain.incoming(data).unwrap();
        pinned.piece(0);
        data = unsafe { pinned.done() };
    }
    // More than one, when an extent changes because other tests allocate.
    assert!(domain.stats().misses < 20, "{:?}", domain.stats());
    drop(domain);
    assert!(device.closed.load(SeqCst) && device.registrations.load(SeqCst) == 0);
}

/// A buffer of the program's own, of which others can see whether it is there.
struct Counted {
    data: Vec<u8>,
    _there: Arc<()>,
}
unsafe impl Buffer for Counted {
    fn bytes(&mut self) -> (*mut u8, usize) {
        self.data.bytes()
    }
}

#[test]
fn a_pin_that_nobody_was_told_of_is_given_back_when_dropped() {
    let ((device, domain), count) = (device(0), Arc::new(()));
    let pinned = domain.outgoing(Counted { data: vec![0u8; 1 << 20], _there: count.clone() }).unwrap();
    assert_eq!(Arc::strong_count(&count), 2);
    drop(pinned);
    assert_eq!(Arc::strong_count(&count), 1);
    domain.scope(|s| drop(s.outgoing(&[1u64, 2, 3][..]).unwrap()));
    drop(domain);
    assert!(device.closed.load(SeqCst));
}

/// The device writes to memory of a pin that was lost, by `lose`, and nobody else has it.
fn lost(lose: fn(Pinned<'_, Vec<u8>>)) {
    let (device, domain) = device(0);
    let mut pinned = domain.incoming(vec![1u8; 1 << 20]).unwrap();
    let at = pinned.piece(0).addr;
    lose(pinned);
    drop(domain);
    assert!(!device.closed.load(SeqCst) && device.registrations.load(SeqCst) > 0);
    let others = vec![vec![2u8; 1 << 20]; 20];
    unsafe { at.write_bytes(3, 1 << 20) };
    assert!(others.iter().all(|other| *other == vec![2u8; 1 << 20]));
}

#[test]
fn a_forgotten_pin_keeps_its_buffer_and_the_domain() {
    lost(|pinned| forget(pinned));
}

#[test]
fn a_pin_that_the_device_may_have_is_not_given_back_when_dropped() {
    lost(|pinned| drop(pinned));
}

#[test]
fn a_buffer_longer_than_a_registration_has_several_pieces() {
    let (device, domain) = device(2 << 20);
    let mut pinned = domain.incoming(vec![0u64; (5 << 20) / 8]).unwrap();
    let at = pinned.piece(0).addr as usize;
    let (mut offset, mut keys) = (0, Vec::new());
    while offset < 5 << 20 {
        let (piece, inside) = (pinned.piece(offset), pinned.piece(offset + 100));
        assert!(piece.addr as usize == at + offset && piece.len <= 2 << 20);
        assert!(inside.addr as usize == at + offset + 100 && inside.len == piece.len - 100 && inside.key == piece.key);
        keys.push(piece.key);
        offset += piece.len;
    }
    keys.sort();
    keys.dedup();
    assert!(offset == 5 << 20 && keys.len() >= 3);
    unsafe { pinned.done() };
    drop(domain);
    assert!(device.closed.load(SeqCst));
}

#[test]
fn a_refused_buffer_comes_back_and_nothing_is_pinned() {
    let (device, domain) = device(2 << 20);
    let data = vec![5u8; 5 << 20];
    let at = data.as_ptr();
    device.regs_max.store(2, SeqCst);
    let refused = domain.incoming(data).unwrap_err();
    assert!(refused.error == Error::NotThere && refused.buffer.as_ptr() == at && refused.buffer.len() == 5 << 20);
    assert_eq!(domain.outgoing(Vec::<u8>::new()).unwrap_err().error, Error::Invalid);
    drop(domain);
    assert!(device.closed.load(SeqCst));
}

#[test]
#[should_panic = "an offset beyond the buffer"]
fn there_is_no_piece_beyond_the_buffer() {
    let (_device, domain) = device(0);
    domain.outgoing(vec![0u8; 100]).unwrap().piece(100);
}

#[test]
fn errors_have_a_number_a_kind_and_a_text() {
    let (_device, domain) = device(0);
    let error = domain.outgoing(Vec::<u8>::new()).unwrap_err();
    assert_eq!(format!("{error:?}"), "Refused(Invalid)");
    let any = || -> Result<(), Box<dyn std::error::Error>> {
        let _pin = domain.outgoing(Vec::<u8>::new())?;
        Ok(())
    };
    assert_eq!(any().unwrap_err().to_string(), error.to_string());
    let error: io::Error = error.into();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(error.to_string(), "the buffer is empty, or the ring has no such slots");
    assert_eq!((Error::NoRoom.errno(), Error::Os(28).errno()), (105, 28));
    assert!(Error::Os(28).to_string().starts_with("No space left on device"));
}

#[test]
fn what_is_handed_between_threads() {
    fn is_send<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Domain>();
    is_shared::<Error>();
    is_send::<Pinned<'static, Vec<u8>>>();
    is_send::<Pinned<'static, &mut [f64]>>();
}

#[test]
fn borrowed_memory_is_the_programs_again_after_the_scope() {
    let (device, domain) = device(0);
    let mut grid = vec![1.0f64; 1 << 18];
    let (first, second) = grid.split_at_mut(1 << 17);
    let sum: f64 = domain.scope(|s| {
        let (mut to, mut from) = (s.incoming(first).unwrap(), s.outgoing(&*second).unwrap());
        let (to_piece, from_piece) = (to.piece(0), from.piece(0));
        unsafe { to_piece.addr.copy_from(from_piece.addr, from_piece.len) };
        let first = unsafe { to.done() };
        first[0] = 5.0;
        unsafe { from.done() };
        first.iter().chain(second.iter()).sum()
    });
    grid[0] += sum;
    assert_eq!(grid[0], 5.0 + (1 << 18) as f64 + 4.0);
    drop(domain);
    assert!(device.closed.load(SeqCst));
}

/// The test, run again as a process of its own.
fn ends_by(test: &str, what: impl FnOnce()) -> Option<c_int> {
    if env::var_os("TEST_CHILD").is_some() {
        what();
        process::exit(0);
    }
    let program = env::current_exe().unwrap();
    let child = process::Command::new(program).args(["--exact", test, "--nocapture"]).env("TEST_CHILD", "1").output();
    child.unwrap().status.signal()
}

#[test]
fn a_scope_that_ends_while_a_pin_is_forgotten_aborts() {
    let test = "a_scope_that_ends_while_a_pin_is_forgotten_aborts";
    let aborted = ends_by(test, || {
        let mut data = vec![0u8; 1 << 20];
        device(0).1.scope(|s| {
            let mut pinned = s.incoming(&mut data[..]).unwrap();
            pinned.piece(0);
            forget(pinned);
        })
    });
    assert_eq!(aborted, Some(6));
}

#[test]
fn a_scope_that_a_panic_ends_while_a_pin_is_out_aborts() {
    let aborted = ends_by("a_scope_that_a_panic_ends_while_a_pin_is_out_aborts", || {
        let mut data = vec![0u8; 1 << 20];
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            device(0).1.scope(|s| {
                s.incoming(&mut data[..]).unwrap().piece(0);
                panic!("as it happens");
            })
        }));
    });
    assert_eq!(aborted, Some(6));
}

#[test]
fn a_scope_may_fail_before_anybody_was_told() {
    let (device, domain) = device(0);
    let mut data = vec![0u8; 1 << 20];
    let failed: Result<(), Error> = domain.scope(|s| {
        let _pinned = s.incoming(&mut data[..])?;
        drop(s.outgoing(&[0u8; 0][..])?);
        Ok(())
    });
    assert_eq!(failed, Err(Error::Invalid));
    drop(domain);
    assert!(device.closed.load(SeqCst));
}

#[test]
fn threads_pin_their_own_and_each_others_memory() {
    let (device, domain) = device(0);
    let mut grid = vec![0u64; 1 << 20];
    let rounds = AtomicUsize::new(0);
    let (domain_ref, rounds_ref) = (&domain, &rounds);
    domain.scope(|s| {
        thread::scope(|threads| {
            for (me, mine) in grid.chunks_mut(1 << 17).enumerate() {
                threads.spawn(move || {
                    let mut mine = mine;
                    for round in 0..2000u64 {
                        let mut pinned = s.incoming(mine).unwrap();
                        let piece = pinned.piece((round as usize % 100) * 4096);
                        unsafe { piece.addr.cast::<u64>().write(round) };
                        mine = unsafe { pinned.done() };
                        if round % 100 == me as u64 {
                            // Owned, made here, and given back by another thread.
                            let pinned = domain_ref.incoming(vec![me; 1 << (8 + me)]).unwrap();
                            threads.spawn(move || {
                                assert!(unsafe { pinned.done() }.into_iter().all(|n| n == me));
                                rounds_ref.fetch_add(1, SeqCst);
                            });
                        }
                    }
                });
            }
        })
    });
    assert_eq!(rounds.load(SeqCst), 8 * 20);
    assert_eq!(grid[0], 1900);
    drop(domain);
    assert!(device.closed.load(SeqCst) && device.registrations.load(SeqCst) == 0);
}
