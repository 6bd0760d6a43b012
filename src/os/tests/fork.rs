//! Tags tell the child, the hold keeps fork away, and no child inherits a closed gate.

use std::path::Path;
use std::time::Duration;

use super::{child, in_fork, part};
use crate::os::fork::{ProcessTag, hold_off_fork};
use crate::sync::process::{AtomicBool, Ordering};

const HERE: &str = module_path!();

fn run(name: &str) {
    let status = child(&format!("{HERE}::{name}"), Path::new("/")).status().expect("start a copy");
    assert!(status.success(), "{name}: {status}");
}

#[test]
fn child_sees_a_foreign_tag() {
    run("child_tag");
}

#[test]
fn child_tag() {
    if part().is_none() {
        return;
    }
    let tag = ProcessTag::current();
    assert!(!tag.is_foreign());
    let code = in_fork(|| {
        let foreign_before_asking = tag.is_foreign();
        let own = ProcessTag::current();
        let grandchild = in_fork(|| i32::from(!(own.is_foreign() && tag.is_foreign())));
        i32::from(!(foreign_before_asking && tag.is_foreign() && own != tag && !own.is_foreign())) + 10 * grandchild
    });
    assert_eq!(code, 0);
    assert!(!tag.is_foreign());
    assert_eq!(tag, ProcessTag::current());
}

#[test]
fn a_hold_makes_fork_wait() {
    run("child_hold");
}

#[test]
fn child_hold() {
    if part().is_none() {
        return;
    }
    let released = AtomicBool::new(false);
    let started = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let hold = hold_off_fork();
        let again = hold_off_fork();
        let forker = scope.spawn(|| {
            started.store(true, Ordering::SeqCst);
            // The child finds the gate open, and can hold and fork itself.
            in_fork(|| {
                let waited = released.load(Ordering::SeqCst);
                drop(hold_off_fork());
                i32::from(!waited) + 2 * in_fork(|| 0)
            })
        });
        while !started.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(100));
        drop(again);
        std::thread::sleep(Duration::from_millis(100));
        released.store(true, Ordering::SeqCst);
        drop(hold);
        assert_eq!(forker.join().expect("forker"), 0);
    });
}

#[test]
fn the_holder_may_fork_itself() {
    run("child_holder_forks");
}

#[test]
fn child_holder_forks() {
    if part().is_none() {
        return;
    }
    let mut hold = Some(hold_off_fork());
    let code = in_fork(|| {
        drop(hold_off_fork());
        drop(hold.take());
        drop(hold_off_fork());
        in_fork(|| 0)
    });
    assert_eq!(code, 0);
    drop(hold.take());
    assert_eq!(in_fork(|| 0), 0);
    // The gate is open again for other threads.
    std::thread::spawn(|| drop(hold_off_fork())).join().expect("thread");
}
