//! The operations again, in a forked child: each is to answer "handle of another process" and touch nothing.
//!
//! The child reports through a pipe and leaves by `_exit`, after everything it inherited has been dropped on the
//! ordinary way out. A child that dies instead is reported by its signal.

use std::io::{PipeWriter, Read, Write};

use maru::{Batch, Lease, ObjectId, Reader, Region, Reservation, ReserveOptions, Role, Session, Verify};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork as fork_process};
use serde_json::{Map, Value, json};

use crate::codes::Code;
use crate::line::Refusal;

/// Handles that the child finds.
pub(crate) struct Inherited<'a, 's> {
    pub(crate) region: &'a Region,
    pub(crate) reader: &'a Reader,
    pub(crate) session: &'s Session,
    pub(crate) object: Option<ObjectId>,
    pub(crate) lease: Option<&'a Lease<'s>>,
    pub(crate) reservation: Option<&'a mut Reservation<'s>>,
}

/// Which of the two this process is.
pub(crate) enum Forked {
    Child(Child),
    Parent(Value),
}

/// A child with its report.
pub(crate) struct Child {
    report: Map<String, Value>,
    writer: PipeWriter,
}

impl Child {
    /// The last thing the child does: by then it has dropped what it inherited.
    pub(crate) fn report_and_exit(mut self) -> ! {
        self.report.insert("dropped".to_owned(), "ok".into());
        let written = serde_json::to_writer(&mut self.writer, &self.report).is_ok() && self.writer.flush().is_ok();
        drop(self.writer);
        // SAFETY: `_exit` has no memory preconditions; it runs no handlers of the parent and flushes none of its buffers.
        unsafe { libc::_exit(i32::from(!written)) }
    }
}

pub(crate) fn fork(inherited: Inherited<'_, '_>) -> Result<Forked, Refusal> {
    let failed = |error: std::io::Error| Refusal::new("io", format!("fork: {error}"));
    let (mut reader, writer) = std::io::pipe().map_err(failed)?;
    // SAFETY: this process has one thread, so the child inherits no lock that a thread of the parent holds and may go
    // on like any process.
    match unsafe { fork_process() }.map_err(|error| failed(error.into()))? {
        ForkResult::Child => {
            drop(reader);
            Ok(Forked::Child(Child { report: try_all(inherited), writer }))
        }
        ForkResult::Parent { child } => {
            drop(writer);
            let mut text = Vec::new();
            reader.read_to_end(&mut text).map_err(failed)?;
            let exit = match waitpid(child, None).map_err(|error| failed(error.into()))? {
                WaitStatus::Exited(_, code) => json!({ "code": code }),
                WaitStatus::Signaled(_, signal, _) => json!({ "signal": signal.as_str() }),
                other => json!({ "status": format!("{other:?}") }),
            };
            let report: Value = serde_json::from_slice(&text).unwrap_or(Value::Null);
            Ok(Forked::Parent(json!({ "child": report, "exit": exit })))
        }
    }
}

fn try_all(inherited: Inherited<'_, '_>) -> Map<String, Value> {
    let Inherited { region, reader, session, object, lease, reservation } = inherited;
    let mut report = Map::new();
    let mut tell = |call: &str, answer: Value| {
        report.insert(call.to_owned(), answer);
    };
    tell("heartbeat", answer(session.heartbeat()));
    tell("usage", answer(session.usage()));
    tell("reclaim", answer(session.reclaim()));
    tell("fence", answer(session.fence(0, 1)));
    tell("region_session", answer(region.session("child", Role::Tool)));
    tell("reader_usage", answer(reader.usage()));
    // Calls that have no room for an error: they only must not touch what is not mapped here.
    tell("region_usage", json!(region.usage().capacity_slots));
    tell("counters", json!(session.counters().len()));
    tell("leases", json!(session.leases()));
    tell("liveness", json!(format!("{:?}", region.liveness(session.index()).ok())));
    if let Some(object) = object {
        tell("probe", answer(session.probe(&object)));
        tell("probe_prefix", answer(session.probe_prefix(&[object])));
        tell("reserve", answer(session.reserve(&object, 1, ReserveOptions::default())));
        tell("acquire", answer(session.acquire(&[object], Batch::Each)));
        tell("retire", answer(session.retire(&object)));
        tell("invalidate", answer(session.invalidate(object.namespace)));
        tell("reader_probe", answer(reader.probe(&object)));
        tell("reader_read", answer(reader.read(&object)));
    }
    if let Some(lease) = lease {
        tell("load", answer(lease.read(Verify::Always)));
        tell("view", answer(lease.view().map(|view| view.len())));
        tell("release", answer(session.release(lease.handle())));
    }
    if let Some(reservation) = reservation {
        tell("resolve", answer(session.resolve(&reservation.token())));
        tell("write", answer(reservation.write_at(0, &[1])));
        tell("expose", answer(reservation.expose()));
        tell("commit", answer(reservation.commit()));
    }
    report
}

fn answer<T, E: Code>(result: Result<T, E>) -> Value {
    match result {
        Ok(_) => "ok".into(),
        Err(error) => error.code().into(),
    }
}
