//! Joining a region: which entry of the session table a process takes. How it takes it is in `attach.rs`.

use std::sync::{Arc, Mutex};

use bytemuck::Zeroable;
use maru_layout::table::{Operation, RecordOutcome, Role, SessionEntry};

use super::{Dispatch, Liveness, Session, SessionOptions, check_region, liveness, on};
use crate::AttachError;
use crate::engine::Me;
use crate::os::identity::{ProcessIdentity, random_bytes, wall_ns};
use crate::os::lock::LifeLock;
use crate::region::{Inner, Mode};
use crate::step::step;
use crate::sync::{Ordering, fence, process};

impl Session {
    pub(crate) fn attach(
        inner: &Arc<Inner>,
        engine: &str,
        role: Role,
        options: SessionOptions,
    ) -> Result<Self, AttachError> {
        if inner.mode == Mode::ReadOnly {
            return Err(AttachError::ReadOnly);
        }
        if engine.is_empty() || engine.len() > 64 || engine.chars().any(char::is_control) {
            return Err(AttachError::EngineName { bytes: engine.len() });
        }
        options.check()?;
        let eviction = options.eviction();
        check_region(inner)?;
        let process = ProcessIdentity::current()?;
        let host_tag = liveness::host_tag(&process.host, inner.locks())?;
        let world = inner.world()?;
        let id: [u8; 16] = random_bytes();
        let id_low = u64::from_le_bytes(id[..8].try_into().expect("eight bytes"));
        let mut facts = SessionEntry::zeroed();
        facts.id = id;
        facts.host_id = process.host.host_id;
        facts.boot_id = process.host.boot_id;
        facts.pid = process.pid;
        facts.pid_ns = process.pid_ns;
        facts.start_time_ticks = process.start_time_ticks;
        facts.role = role as u16;
        facts.attached_ns = wall_ns();
        facts.engine[..engine.len()].copy_from_slice(engine.as_bytes());

        let entries = inner.geometry().session_count;
        let (mut live, mut unknown) = (0, 0);
        // Free entries first: what a dead session left, its flight record too, stays to be looked at as long as there is
        // room beside it.
        let free = (0..entries).filter(|index| idle(inner, *index));
        for (index, last_pass) in free.map(|index| (index, false)).chain((0..entries).map(|index| (index, true))) {
            // Asking first keeps the lock of a live session from being tried for.
            match world.liveness(index) {
                Liveness::Alive => {
                    live += u32::from(last_pass);
                    continue;
                }
                Liveness::Unknown if !idle(inner, index) => {
                    unknown += u32::from(last_pass);
                    continue;
                }
                _ => {}
            }
            let Some(lock) = LifeLock::take(inner.locks(), inner.offset + u64::from(index))? else {
                live += u32::from(last_pass);
                continue;
            };
            // From here on nobody else moves this entry forward; what it says belongs to the dead.
            let (found, judged) = world.judged(index);
            let me = Me::new(index, maru_layout::word::SessionWord(0), id_low);
            let attaching = Dispatch::new(inner, me, Box::new(inner.world()?), eviction);
            let Some(word) = on!(attaching, e => e.attach_entry(host_tag, found, judged, &facts)) else { continue };
            let me = Me::new(index, word, id_low);
            let dispatch = Dispatch::new(inner, me, Box::new(inner.world()?), eviction);
            // ORDERING: SeqCst fence: my lock and entry come before this look at the format word; a formatter claims the
            // word before it looks at locks and entries. One of us sees the other.
            step!(AttachFence);
            fence(Ordering::SeqCst);
            if let Err(error) = check_region(inner) {
                drop(lock);
                return Err(error.into());
            }
            // An engine that is back finds its old self's slots and leases given back. What the old self remembered of its
            // last moments stays, as long as there is another entry to take.
            for old in 0..entries {
                let same = inner.tables.session(old).holder().is_some_and(|(_, old)| old.engine == facts.engine);
                if same {
                    on!(dispatch, e => e.recover_if_dead(old));
                }
            }
            on!(dispatch, e => e.ended(Operation::Attach, RecordOutcome::Done, None, &[0; 32]));
            return Ok(Self {
                inner: inner.clone(),
                dispatch,
                lock: Some(lock),
                me,
                world,
                options,
                pins: Mutex::default(),
                loads: process::AtomicU64::new(0),
            });
        }
        Err(AttachError::Full { limit: entries, live, unknown })
    }
}

fn idle(inner: &Inner, index: u32) -> bool {
    inner.tables.session(index).word().is(maru_layout::word::SessionState::Free)
}
