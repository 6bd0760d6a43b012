//! `maru-shell`: a region from the command line. One JSON object a line in, one out.
//!
//! The shell is a participant like any engine: it opens a region, joins as a session, stores, looks and loads. Whoever
//! wants several processes starts several shells. It has no state beyond what the library gives it, except the names
//! (`n0`, `r0`, `l0`) under which it keeps namespaces, reservations and leases for the next line.
//!
//! | file | does |
//! | --- | --- |
//! | `args.rs` | the command line: how regions are opened unless a line says otherwise |
//! | `ops.rs` | the one table of operations and their fields; `--help` and the check of a line come from it |
//! | `line.rs` | a line as typed fields; what is wrong with it, by name |
//! | `outside.rs` | operations that need no session |
//! | `inside.rs` | operations of a session |
//! | `forked.rs` | the operations again, in a forked child |
//! | `objects.rs` | keys, namespaces, payload bytes |
//! | `codes.rs` | a short word for each error |
//! | `maps.rs` | what this process has mapped to share |
//! | `repeat.rs` | one block read many times in a row |
//!
//! Two programs are made of it: `maru-shell`, and with the feature `steps` also `maru-shell-steps`, which can be stopped
//! at a step, so that tests have both side by side.
//!
//! The flow is three nested loops that borrow from each other, so that a lease can never outlive its session, nor a
//! session its region: no operation has to be trusted to keep that order.

mod args;
mod codes;
mod forked;
mod inside;
mod line;
mod maps;
mod objects;
mod ops;
mod outside;
mod repeat;

use std::io::{self, BufRead, Write};

use clap::Parser;
use serde_json::{Map, Value, json};

use crate::args::Args;
use crate::inside::After;
use crate::line::{Refusal, Request};
use crate::outside::{Next, Outside};

/// Where lines come from and answers go.
pub(crate) struct Talk {
    input: io::StdinLock<'static>,
}

impl Talk {
    /// The next line that is a request of a known operation; others are answered on the spot. `None` at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Request>> {
        loop {
            let mut line = Vec::new();
            if self.input.read_until(b'\n', &mut line)? == 0 {
                return Ok(None);
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            match Request::parse(&line) {
                Ok(request) => return Ok(Some(request)),
                Err((id, refusal)) => self.answer(id.as_ref(), Err(refusal))?,
            }
        }
    }

    /// Writes one answer and flushes it.
    pub(crate) fn answer(&mut self, id: Option<&Value>, answer: Result<Value, Refusal>) -> io::Result<()> {
        let mut object = Map::new();
        if let Some(id) = id {
            object.insert("id".to_owned(), id.clone());
        }
        match answer {
            Ok(Value::Object(fields)) => {
                object.insert("ok".to_owned(), true.into());
                object.extend(fields);
            }
            Ok(other) => {
                object.insert("ok".to_owned(), true.into());
                object.insert("value".to_owned(), other);
            }
            Err(refusal) => {
                object.insert("ok".to_owned(), false.into());
                object.insert("error".to_owned(), refusal.text.into());
                object.insert("code".to_owned(), refusal.code.into());
            }
        }
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &object)?;
        out.write_all(b"\n")?;
        out.flush()
    }
}

/// Reads lines from standard input until they end or one says quit.
///
/// # Errors
/// Standard input or output cannot be used any more, or the fault handler cannot be installed.
pub fn run() -> anyhow::Result<()> {
    let args = Args::parse();
    if args.fault_handler {
        maru::os::fault::install()?;
    }
    let mut talk = Talk { input: io::stdin().lock() };
    let mut outside = Outside::new(args);
    'shell: loop {
        let mut session = match outside.run(&mut talk)? {
            Next::Quit => break,
            Next::Joined(session) => session,
        };
        loop {
            match inside::run(&mut outside, &session, &mut talk)? {
                After::Close(id) => match session.close() {
                    Ok(()) => {
                        talk.answer(id.as_ref(), Ok(json!({})))?;
                        continue 'shell;
                    }
                    Err((held, back)) => {
                        talk.answer(id.as_ref(), Err(Refusal::new("still_held", held.to_string())))?;
                        session = Box::new(*back);
                    }
                },
                After::Quit => break 'shell,
                After::Forked(child) => {
                    // Everything made by the parent goes out of scope here as it would anywhere.
                    drop(session);
                    drop(outside);
                    child.report_and_exit();
                }
            }
        }
    }
    Ok(())
}
