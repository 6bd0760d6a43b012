//! Operations of a session. Leases and reservations borrow the session and live here, under the names that lines use.

use std::collections::BTreeMap;
use std::time::Duration;

use maru::{
    Batch, Budget, HostName, Lead, Lease, LeaseHandle, Pin, Release, Reservation, Reserve, ReserveOptions, Retire,
    Session, StillHeld, Token, Verify, Writer,
};
use maru_layout::word::SlotState;
use serde_json::{Map, Value, json};

use crate::Talk;
use crate::forked::{self, Child, Forked};
use crate::line::{Refusal, Request, from_hex, missing, to_hex, wrong};
use crate::objects;
use crate::outside::{Item, Outside, hit, probed, usage};
use crate::repeat;

/// Why the loop with a session ended.
pub(crate) enum After {
    /// Nothing is held by name; the id of the line.
    Close(Option<Value>),
    Quit,
    /// This is a forked child, and it has tried its calls.
    Forked(Child),
}

/// What lines have named.
struct Held<'s> {
    session: &'s Session,
    leases: BTreeMap<String, Lease<'s>>,
    reservations: BTreeMap<String, Kept<'s>>,
    next_lease: u64,
    next_reservation: u64,
}

struct Kept<'s> {
    reservation: Reservation<'s>,
    /// Committed for good or bad.
    ended: bool,
}

/// Answers lines until one leaves.
pub(crate) fn run(outside: &mut Outside, session: &Session, talk: &mut Talk) -> std::io::Result<After> {
    let mut held =
        Held { session, leases: BTreeMap::new(), reservations: BTreeMap::new(), next_lease: 0, next_reservation: 0 };
    while let Some(request) = talk.next()? {
        let answer = match request.op {
            "quit" => {
                talk.answer(request.id.as_ref(), Ok(json!({})))?;
                return Ok(After::Quit);
            }
            "close" => match held.close(&request) {
                Ok(()) => return Ok(After::Close(request.id)),
                Err(refusal) => Err(refusal),
            },
            "fork" => match held.fork(outside, &request) {
                Ok(Forked::Child(child)) => return Ok(After::Forked(child)),
                Ok(Forked::Parent(answer)) => Ok(answer),
                Err(refusal) => Err(refusal),
            },
            "open" | "session" => Err(Refusal::new("session_open", "a session is open: say {\"op\":\"close\"} first")),
            "usage" => session.usage().map(|counted| usage(&counted)).map_err(Into::into),
            _ => outside.common(&request).unwrap_or_else(|| held.call(outside, &request)),
        };
        talk.answer(request.id.as_ref(), answer)?;
    }
    Ok(After::Quit)
}

impl<'s> Held<'s> {
    fn call(&mut self, outside: &mut Outside, request: &Request) -> Result<Value, Refusal> {
        let session = self.session;
        match request.op {
            "namespace" => {
                let namespace = objects::namespace(request)?;
                let id = match request.bounded("budget_slots")? {
                    None => session.namespace(&namespace)?,
                    Some(slots) => session.namespace_with_budget(&namespace, Budget::Slots(slots))?,
                };
                Ok(outside.remember(id))
            }
            "namespace_usage" => {
                let usage = session.namespace_usage(&outside.namespace(request.text("namespace")?)?)?;
                let slots: Map<String, Value> = SlotState::ALL
                    .iter()
                    .zip(usage.slots)
                    .map(|(state, count)| (state.name().to_owned(), count.into()))
                    .collect();
                Ok(json!({
                    "budget_slots": usage.budget_slots,
                    "spent_tokens": usage.spent_tokens,
                    "slots": slots,
                    "allocated_bytes": usage.allocated_bytes,
                    "ready_bytes": usage.ready_bytes,
                }))
            }
            "pin" => {
                let lifetime =
                    request.bounded("milliseconds")?.ok_or_else(|| missing("milliseconds", "a length of time"))?;
                let pins = session.pin(&outside.objects(request)?, Duration::from_millis(lifetime))?;
                let items = pins.into_iter().map(|pin| match pin {
                    Pin::Pinned(handle) => json!({ "handle": to_hex(&handle.to_bytes()) }),
                    Pin::Refused(why) => json!({ "miss": why.code() }),
                });
                Ok(one_or_items(request, "key", items.collect()))
            }
            "unpin" => {
                let handle = request.get("handle").ok_or_else(|| missing("handle", "what pin answered"))?;
                let ended = session.unpin(handle_of("handle", handle)?)?;
                Ok(json!({ "outcome": if ended == Release::Released { "released" } else { "not_held" } }))
            }
            "invalidate" => {
                let id = outside.namespace(request.text("namespace")?)?;
                Ok(json!({ "ended": session.invalidate(id)? }))
            }
            "heartbeat" => Ok(json!({ "beat": session.heartbeat()? })),
            "probe" => {
                if request.get("keys").is_none() {
                    return outside.each(request, |object, _| Ok(probed(session.probe(object)?)));
                }
                let probes = session.probe_batch(&outside.objects(request)?)?;
                Ok(json!({ "items": probes.into_iter().map(probed).collect::<Vec<_>>() }))
            }
            "probe_prefix" => {
                request.need("keys", "a list of keys")?;
                Ok(json!({ "run": session.probe_prefix(&outside.objects(request)?)? }))
            }
            "store" => {
                let hex = literal(request)?;
                let options = reserve_options(request)?;
                outside.each(request, |object, item| {
                    let bytes = match &hex {
                        Some(bytes) => bytes.clone(),
                        None => seeded(item)?,
                    };
                    store(session.reserve(object, bytes.len() as u64, options)?, &bytes)
                })
            }
            "get" => {
                let verify = verify(request)?;
                outside.each(request, |object, item| match session.acquire(&[*object], Batch::Each)?.pop() {
                    Some(Ok(lease)) => Ok(hit(&lease.read(verify)?, item.seed)),
                    Some(Err(why)) => Ok(json!({ "hit": false, "miss": why.code() })),
                    None => Err(Refusal::new("acquire", "no answer for one object")),
                })
            }
            "reserve" => self.reserve(outside, request),
            "write" => self.write(request),
            "commit" => {
                let kept = self.reservation(request)?;
                let outcome = kept.reservation.commit()?;
                kept.ended = !matches!(outcome, maru::Commit::Incomplete { .. } | maru::Commit::Unknown(_));
                Ok(committed(outcome))
            }
            "abort" => {
                let name = request.need_text("reservation")?;
                let kept = self.reservations.remove(name).ok_or_else(|| unknown("reservation", name))?;
                Ok(json!({ "given_back": kept.reservation.abort()? }))
            }
            "resolve" => {
                let token = Token::from_bytes(&request.hex::<{ Token::BYTES }>("token")?);
                Ok(committed(session.resolve(&token)?))
            }
            "acquire" => self.acquire(outside, request),
            "load" => {
                if let Some(times) = request.number("times")? {
                    let seed = request.number("seed")?.ok_or_else(|| missing("seed", "a number, to compare with"))?;
                    return Ok(repeat::copies(self.lease(request)?, verify(request)?, seed, times));
                }
                let bytes = self.lease(request)?.read(verify(request)?)?;
                Ok(hit(&bytes, request.number("seed")?))
            }
            "view" => {
                let lease = self.lease(request)?;
                let view = lease.view()?;
                if let Some(times) = request.number("times")? {
                    let seed = request.number("seed")?.ok_or_else(|| missing("seed", "a number, to compare with"))?;
                    return Ok(repeat::looks(&view, seed, times));
                }
                let bytes = view.to_vec()?;
                Ok(hit(&bytes, request.number("seed")?))
            }
            "detach" => {
                let name = request.need_text("lease")?;
                let lease = self.leases.remove(name).ok_or_else(|| unknown("lease", name))?;
                Ok(json!({ "handle": to_hex(&lease.into_handle().to_bytes()) }))
            }
            "release" => self.release(request),
            "retire" => {
                let retired = session.retire_batch(&outside.objects(request)?)?;
                let words = retired.into_iter().map(|retired| match retired {
                    Retire::Retired => "retired",
                    Retire::Draining => "draining",
                    Retire::Gone => "gone",
                });
                Ok(one_or_items(request, "key", words.map(|word| json!({ "outcome": word })).collect()))
            }
            "reclaim" => {
                let report = session.reclaim()?;
                Ok(json!({
                    "freed_slots": report.freed_slots,
                    "draining_slots": report.draining_slots,
                    "recovered_sessions": report.recovered_sessions,
                    "recovered_slots": report.recovered_slots,
                }))
            }
            "fence" => {
                let index = request.bounded("index")?.ok_or_else(|| missing("index", "a session index"))?;
                let epoch = request.bounded("epoch")?.ok_or_else(|| missing("epoch", "that session's epoch"))?;
                Ok(json!({ "fenced": session.fence(index, epoch)? }))
            }
            "lead" => Ok(match session.lead()? {
                Lead::Leading => json!({ "leading": true }),
                Lead::Follows { index, epoch } => json!({ "leading": false, "index": index, "epoch": epoch }),
            }),
            "recover_dead" => {
                let report = session.recover_dead()?;
                Ok(json!({ "sessions": report.recovered_sessions, "slots": report.recovered_slots }))
            }
            "recover_vouched" => {
                let index = request.bounded("index")?.ok_or_else(|| missing("index", "a session index"))?;
                let epoch = request.bounded("epoch")?.ok_or_else(|| missing("epoch", "that session's epoch"))?;
                let slots = session.recover_vouched(index, epoch)?;
                Ok(json!({ "recovered": slots.is_some(), "slots": slots.unwrap_or(0) }))
            }
            "recover_host" => {
                let host: HostName =
                    request.need_text("host")?.parse().map_err(|error| Refusal::new("field", format!("{error}")))?;
                let report = session
                    .recover_host(&host, &mut |_, _| {})
                    .map_err(|error| Refusal::new("vouch", error.to_string()))?;
                Ok(json!({
                    "sessions": report.sessions,
                    "slots": report.slots,
                    "here": report.here,
                    "scrubbed": report.scrubbed,
                    "damaged": report.damaged,
                }))
            }
            "devices_drained" => Ok(json!({ "slots": session.devices_drained()? })),
            "counters" => {
                let fields: Map<String, Value> =
                    session.counters().into_iter().map(|(counter, n)| (counter.name().to_owned(), n.into())).collect();
                Ok(Value::Object(fields))
            }
            "held" => Ok(json!({ "leases": session.leases(), "reservations": self.open_reservations() })),
            op => Err(Refusal::new("unknown_op", format!("{op} is not an operation of a session"))),
        }
    }

    fn reserve(&mut self, outside: &Outside, request: &Request) -> Result<Value, Refusal> {
        let [(object, item)] = &outside.items(request)?[..] else { return Err(missing("key", "one key")) };
        let len = item.len.ok_or_else(|| missing("len", "a number of bytes"))?;
        Ok(match self.session.reserve(object, len, reserve_options(request)?)? {
            Reserve::Granted(reservation) => {
                let name = format!("r{}", self.next_reservation);
                self.next_reservation += 1;
                let answer = json!({
                    "outcome": "granted",
                    "reservation": name,
                    "token": to_hex(&reservation.token().to_bytes()),
                    "slot": reservation.slot(),
                });
                self.reservations.insert(name, Kept { reservation, ended: false });
                answer
            }
            other => refused(&other),
        })
    }

    fn write(&mut self, request: &Request) -> Result<Value, Refusal> {
        let offset: u32 = request.bounded("offset")?.unwrap_or(0);
        let hex = literal(request)?;
        let (seed, len) = (request.number("seed")?, request.bounded::<u32>("len")?);
        let reservation = &mut self.reservation(request)?.reservation;
        let bytes = match (hex, seed) {
            (Some(bytes), None) => bytes,
            (None, Some(seed)) => {
                let rest = reservation.len().saturating_sub(offset);
                // One byte too many is enough to be refused; a line must not be able to ask for gigabytes.
                let mut bytes = vec![0; len.unwrap_or(rest).min(rest.saturating_add(1)) as usize];
                objects::fill(seed, offset.into(), &mut bytes);
                bytes
            }
            (Some(_), Some(_)) => {
                return Err(Refusal::new("bad_field", "seed and hex are both said, wanted one of them"));
            }
            (None, None) => return Err(missing("seed", "a number (or hex)")),
        };
        reservation.write_at(offset, &bytes)?;
        Ok(json!({ "written": bytes.len() }))
    }

    fn acquire(&mut self, outside: &Outside, request: &Request) -> Result<Value, Refusal> {
        let objects = outside.objects(request)?;
        let batch = if request.flag("all_or_nothing")? { Batch::AllOrNothing } else { Batch::Each };
        let answers = match request.text("kind")? {
            None | Some("copy") => self.session.acquire(&objects, batch)?,
            Some("device") => self.session.acquire_for_device(&objects, batch)?,
            Some(other) => return Err(wrong("kind", &other.into(), "copy or device (a view is made by the op view)")),
        };
        let items: Vec<_> = answers
            .into_iter()
            .map(|answer| match answer {
                Err(why) => json!({ "miss": why.code() }),
                Ok(lease) => {
                    let name = format!("l{}", self.next_lease);
                    self.next_lease += 1;
                    let (slot, generation) = lease.replica();
                    let answer = json!({
                        "lease": name,
                        "handle": to_hex(&lease.handle().to_bytes()),
                        "len": lease.len(),
                        "slot": slot,
                        "generation": generation,
                    });
                    self.leases.insert(name, lease);
                    answer
                }
            })
            .collect();
        Ok(json!({ "items": items }))
    }

    fn release(&mut self, request: &Request) -> Result<Value, Refusal> {
        let word = |released| match released {
            Release::Released => "released",
            Release::NotHeld => "not_held",
            Release::Viewed => "viewed",
        };
        if let Some(handles) = request.get("handles") {
            let list = handles.as_array().ok_or_else(|| wrong("handles", handles, "a list of handles"))?;
            let handles: Result<Vec<_>, _> = list.iter().map(|text| handle_of("handles[]", text)).collect();
            let released = self.session.release_batch(&handles?)?;
            return Ok(json!({ "items": released.into_iter().map(word).collect::<Vec<_>>() }));
        }
        let handle = match (request.text("lease")?, request.get("handle")) {
            (Some(name), None) => self.leases.remove(name).ok_or_else(|| unknown("lease", name))?.into_handle(),
            (None, Some(text)) => handle_of("handle", text)?,
            (Some(_), Some(_)) => return Err(Refusal::new("bad_field", "lease and handle are both said, wanted one")),
            (None, None) => return Err(missing("lease", "a name such as \"l0\" (or handle)")),
        };
        let released = self.session.release(handle)?;
        if released == Release::Released {
            self.leases.retain(|_, lease| lease.handle() != handle);
        }
        Ok(json!({ "outcome": word(released) }))
    }

    fn lease(&self, request: &Request) -> Result<&Lease<'s>, Refusal> {
        let name = request.need_text("lease")?;
        self.leases.get(name).ok_or_else(|| unknown("lease", name))
    }

    fn reservation(&mut self, request: &Request) -> Result<&mut Kept<'s>, Refusal> {
        let name = request.need_text("reservation")?;
        self.reservations.get_mut(name).ok_or_else(|| unknown("reservation", name))
    }

    fn open_reservations(&self) -> u32 {
        self.reservations.values().filter(|kept| !kept.ended).count() as u32
    }

    /// Whether the session may be closed as far as named things go; the library says about the rest.
    fn close(&mut self, request: &Request) -> Result<(), Refusal> {
        if request.flag("drop")? {
            self.leases.clear();
            self.reservations.clear();
        }
        let (leases, reservations) = (self.session.leases(), self.open_reservations());
        // Leases that were given away as handles have no name here; the library counts them.
        if reservations == 0 && (leases == 0 || self.leases.is_empty()) {
            return Ok(());
        }
        let held = StillHeld { index: self.session.index(), leases, reservations };
        Err(Refusal::new("still_held", held.to_string()))
    }

    fn fork(&mut self, outside: &Outside, request: &Request) -> Result<Forked, Refusal> {
        let object = match request.get("key") {
            Some(_) => outside.objects(request)?.pop(),
            None => None,
        };
        let reservation = self.reservations.values_mut().find(|kept| !kept.ended).map(|kept| &mut kept.reservation);
        let inherited = forked::Inherited {
            region: outside.region()?,
            reader: outside.reader()?,
            session: self.session,
            object,
            lease: self.leases.values().next(),
            reservation,
        };
        forked::fork(inherited)
    }
}

fn store(reserve: Reserve<'_>, bytes: &[u8]) -> Result<Value, Refusal> {
    match reserve {
        Reserve::Granted(mut reservation) => {
            reservation.write_at(0, bytes)?;
            Ok(committed(reservation.commit()?))
        }
        other => Ok(refused(&other)),
    }
}

fn refused(reserve: &Reserve<'_>) -> Value {
    match reserve {
        Reserve::Refused(why) => json!({ "outcome": "refused", "why": why.code(), "text": why.to_string() }),
        other => json!({ "outcome": other.code() }),
    }
}

fn committed(commit: maru::Commit) -> Value {
    match commit {
        maru::Commit::Incomplete { written, len } => {
            json!({ "outcome": commit.code(), "written": written, "len": len })
        }
        maru::Commit::Unknown(token) => json!({ "outcome": commit.code(), "token": to_hex(&token.to_bytes()) }),
        _ => json!({ "outcome": commit.code() }),
    }
}

fn one_or_items(request: &Request, one: &str, mut answers: Vec<Value>) -> Value {
    if request.get(one).is_some()
        && answers.len() == 1
        && let Some(answer) = answers.pop()
    {
        return answer;
    }
    json!({ "items": answers })
}

fn seeded(item: &Item) -> Result<Vec<u8>, Refusal> {
    let len = item.len.ok_or_else(|| missing("len", "a number of bytes"))?;
    let seed = item.seed.ok_or_else(|| missing("seed", "a number"))?;
    // What no region holds is refused here, so that a line cannot ask for all of the memory.
    let len = usize::try_from(len).ok().filter(|len| *len < 1 << 32);
    let len = len.ok_or_else(|| Refusal::new("too_large", "len is 2^32 or more, which no slot holds"))?;
    let mut bytes = vec![0; len];
    objects::fill(seed, 0, &mut bytes);
    Ok(bytes)
}

fn literal(request: &Request) -> Result<Option<Vec<u8>>, Refusal> {
    let Some(text) = request.text("hex")? else { return Ok(None) };
    from_hex(text).map(Some).ok_or_else(|| wrong("hex", &text.into(), "an even number of hexadecimal digits"))
}

fn reserve_options(request: &Request) -> Result<ReserveOptions, Refusal> {
    Ok(ReserveOptions {
        writer: match request.text("writer")? {
            None | Some("cpu") => Writer::Cpu,
            Some("device") => Writer::Device,
            Some(other) => return Err(wrong("writer", &other.into(), "cpu or device")),
        },
        depth: request.bounded("depth")?.unwrap_or(0),
        after_hits: request.bounded("after_hits")?.unwrap_or(0),
        free_space_only: request.flag("free_space_only")?,
        parent: request.get("parent").map(|parent| objects::prefix("parent", parent)).transpose()?,
    })
}

fn verify(request: &Request) -> Result<Verify, Refusal> {
    match request.get("verify") {
        None => Ok(Verify::Always),
        Some(Value::String(word)) if word == "always" => Ok(Verify::Always),
        Some(Value::String(word)) if word == "never" => Ok(Verify::Never),
        Some(other) => {
            let one_in = other.as_u64().and_then(|n| u32::try_from(n).ok());
            one_in.map(Verify::Sampled).ok_or_else(|| wrong("verify", other, "always, never, or a number"))
        }
    }
}

fn handle_of(name: &str, text: &Value) -> Result<LeaseHandle, Refusal> {
    let bytes = text.as_str().and_then(from_hex).and_then(|bytes| <[u8; LeaseHandle::BYTES]>::try_from(bytes).ok());
    let bytes = bytes.ok_or_else(|| wrong(name, text, &format!("{} hexadecimal digits", 2 * LeaseHandle::BYTES)))?;
    Ok(LeaseHandle::from_bytes(&bytes))
}

fn unknown(what: &str, name: &str) -> Refusal {
    Refusal::new("unknown_name", format!("{what} {name:?} is not held; names come from the op that made them"))
}
