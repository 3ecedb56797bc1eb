//! The heap as global allocator: alignment, contents, and threads that free each other's memory.
use hugepin::{kind_of, stats, Hugepin};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::{slice, thread};

#[global_allocator]
static HEAP: Hugepin = Hugepin;

#[test]
fn a_vec_of_1_mib_is_in_the_heap() {
    let v = vec![7u8; 1 << 20];
    assert!(kind_of(&v[..]).is_some());
    assert!(stats().taken_bytes >= 1 << 20 && stats().placed + stats().relisted >= 1);
    let kinds = stats();
    assert!(kinds.hugetlb_bytes + kinds.thp_bytes + kinds.base_bytes >= 1 << 20);
}

#[test]
fn what_is_small_or_empty_or_static_is_not() {
    static TABLE: [u8; 1 << 16] = [0; 1 << 16];
    let v = vec![0u8; 1 << 20];
    assert_eq!(kind_of(&*Box::new([0u8; 100])), None);
    assert_eq!(kind_of(&v[..0]), None);
    assert_eq!(kind_of(&TABLE), None);
}

#[test]
fn a_vec_that_grows_keeps_its_contents() {
    let mut v = Vec::new();
    for i in 0..1_000_000u32 {
        v.push(i);
    }
    assert!(v.iter().copied().eq(0..1_000_000));
    v.truncate(10);
    v.shrink_to_fit();
    assert!(v.iter().copied().eq(0..10));
}

#[test]
fn alignment_zeros_and_contents_are_kept() {
    let (zeros, filled) = (vec![0u8; 300_000], vec![0xa5u8; 300_000]);
    let sizes = [1, 4, 7, 12, 24, 100, 4096, 32767, 32768, 40000, 300_000];
    for align in (0..=22).map(|n| 1usize << n) {
        for from in sizes {
            for to in sizes {
                let layout = Layout::from_size_align(from, align).unwrap();
                let last = Layout::from_size_align(to, align).unwrap();
                // So that free memory begins now at one place, now at another.
                let _before = vec![1u8; 32768 + 4096 * (from % 2 + to % 3)];
                unsafe {
                    let p = HEAP.alloc_zeroed(layout);
                    assert!(!p.is_null() && p as usize % align == 0, "{from} bytes aligned to {align}: {p:?}");
                    assert!(slice::from_raw_parts(p, from) == &zeros[..from]);
                    p.write_bytes(0xa5, from);
                    let p = HEAP.realloc(p, layout, to);
                    assert!(!p.is_null() && p as usize % align == 0, "{from} to {to} bytes aligned to {align}: {p:?}");
                    assert!(slice::from_raw_parts(p, from.min(to)) == &filled[..from.min(to)]);
                    p.write_bytes(0xa5, to);
                    HEAP.dealloc(p, last);
                    let p = HEAP.alloc(last);
                    assert!(!p.is_null() && p as usize % align == 0, "{to} bytes aligned to {align}: {p:?}");
                    p.write_bytes(0xa5, to);
                    HEAP.dealloc(p, last);
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_had_is_null_and_changes_nothing() {
    for align in [1, 64, 1 << 16] {
        let much = isize::MAX as usize & !0xfffff;
        let layout = Layout::from_size_align(100_000, align).unwrap();
        unsafe {
            assert!(HEAP.alloc(Layout::from_size_align(much, align).unwrap()).is_null());
            assert!(HEAP.alloc_zeroed(Layout::from_size_align(much, align).unwrap()).is_null());
            let p = HEAP.alloc(layout);
            p.write_bytes(3, 100_000);
            assert!(HEAP.realloc(p, layout, much).is_null());
            assert!(slice::from_raw_parts(p, 100_000).iter().all(|b| *b == 3));
            HEAP.dealloc(p, layout);
        }
    }
}

/// A number for each step.
fn next(random: &mut u64) -> usize {
    *random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*random >> 33) as usize
}

fn hand_on(me: usize, others: Vec<Sender<Vec<u64>>>, mine: Receiver<Vec<u64>>) {
    let mut random = me as u64;
    for step in 0..3000 {
        // Of 8 bytes to 1 MiB, as many short as long ones.
        let len = 1 << (next(&mut random) % 18);
        let mut v = vec![0u64; len];
        assert!(v[0] == 0 && v[len - 1] == 0 && v[len / 2] == 0);
        v[0] = len as u64;
        v[len - 1] = len as u64;
        // The other thread may have ended.
        let _ = others[next(&mut random) % others.len()].send(v);
        while let Ok(mut v) = mine.try_recv() {
            let len = v.len();
            assert!(v[0] == len as u64 && v[len - 1] == len as u64);
            if step % 3 == 0 {
                v.resize(len * 2, 9);
                v.shrink_to_fit();
                assert!(v[0] == len as u64 && v[len - 1] == len as u64 && v[2 * len - 1] == 9);
            }
        }
    }
}

#[test]
fn threads_free_and_grow_each_others_memory() {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..6).map(|_| channel()).unzip();
    let threads: Vec<_> = receivers
        .into_iter()
        .enumerate()
        .map(|(me, mine)| {
            let others = senders.clone();
            thread::spawn(move || hand_on(me, others, mine))
        })
        .collect();
    drop(senders);
    threads.into_iter().for_each(|t| t.join().unwrap());
}
