//! Operations that need no session: opening, looking without joining, waiting.

use std::fs::OpenOptions as FileOptions;
use std::time::Duration;

use maru::{
    Backing, ClassSpec, Evict, Mode, NamespaceId, ObjectId, OpenOptions, Outcome, Probe, ReadError, Reader, Region,
    Session, SessionOptions, Usage, Wish,
};
use maru_layout::word::SlotState;
use serde_json::{Map, Value, json};

use crate::Talk;
use crate::args::Args;
use crate::line::{Refusal, Request, missing, to_hex, wrong};
use crate::{maps, objects};

/// The open region and what its lines have named.
pub(crate) struct Outside {
    args: Args,
    opened: Option<Opened>,
    /// Registered namespaces: `n0`, `n1`, ...
    pub(crate) namespaces: Vec<NamespaceId>,
}

struct Opened {
    region: Region,
    reader: Reader,
}

/// Why the loop without a session ended.
pub(crate) enum Next {
    Joined(Box<Session>),
    Quit,
}

impl Outside {
    pub(crate) fn new(args: Args) -> Self {
        Self { args, opened: None, namespaces: Vec::new() }
    }

    /// Answers lines until one joins or quits.
    pub(crate) fn run(&mut self, talk: &mut Talk) -> std::io::Result<Next> {
        while let Some(request) = talk.next()? {
            let answer = match request.op {
                "quit" => {
                    talk.answer(request.id.as_ref(), Ok(json!({})))?;
                    return Ok(Next::Quit);
                }
                "session" => match self.join(&request) {
                    Ok(session) => {
                        let joined = json!({ "index": session.index(), "epoch": session.epoch() });
                        talk.answer(request.id.as_ref(), Ok(joined))?;
                        return Ok(Next::Joined(Box::new(session)));
                    }
                    Err(refusal) => Err(refusal),
                },
                "open" => self.open(&request),
                _ => self.common(&request).unwrap_or_else(|| self.look(&request)),
            };
            talk.answer(request.id.as_ref(), answer)?;
        }
        Ok(Next::Quit)
    }

    /// Operations that are the same with and without a session.
    pub(crate) fn common(&mut self, request: &Request) -> Option<Result<Value, Refusal>> {
        Some(match request.op {
            "region" => self.opened().and_then(describe),
            "usage" => self.opened().map(|opened| usage(&opened.region.usage())),
            "maps" => mapped().map(|items| json!({ "items": items })),
            "sessions" => self.opened().and_then(|opened| {
                let entry = |index| -> Result<Value, Refusal> {
                    let liveness = format!("{:?}", opened.region.liveness(index)?).to_lowercase();
                    Ok(json!({ "index": index, "liveness": liveness }))
                };
                let items: Result<Vec<_>, _> = (0..opened.region.geometry().session_count).map(entry).collect();
                Ok(json!({ "items": items? }))
            }),
            "sleep_ms" => request.number("ms").and_then(|ms| {
                std::thread::sleep(Duration::from_millis(ms.ok_or_else(|| missing("ms", "a number"))?));
                Ok(json!({}))
            }),
            _ => return None,
        })
    }

    /// Looking without joining.
    fn look(&mut self, request: &Request) -> Result<Value, Refusal> {
        let reader = &self.opened()?.reader;
        match request.op {
            "namespace" => {
                let found = reader.namespace(&objects::namespace(request)?)?;
                let id = found.ok_or_else(|| Refusal::new("absent", "nobody has registered this namespace"))?;
                Ok(self.remember(id))
            }
            "probe" => self.each(request, |object, _| Ok(probed(reader.probe(object)?))),
            "probe_prefix" => Ok(json!({ "run": reader.probe_prefix(&self.objects(request)?)? })),
            "get" => self.each(request, |object, item| match reader.read(object) {
                Ok(bytes) => Ok(hit(&bytes, item.seed)),
                Err(ReadError::Miss(why)) => Ok(json!({ "hit": false, "miss": why.code() })),
                Err(error) => Err(error.into()),
            }),
            op => Err(Refusal::new("no_session", format!("{op} needs a session: say {{\"op\":\"session\"}} first"))),
        }
    }

    fn opened(&self) -> Result<&Opened, Refusal> {
        self.opened.as_ref().ok_or_else(|| Refusal::new("not_open", "nothing is open: say {\"op\":\"open\"} first"))
    }

    pub(crate) fn region(&self) -> Result<&Region, Refusal> {
        Ok(&self.opened()?.region)
    }

    pub(crate) fn reader(&self) -> Result<&Reader, Refusal> {
        Ok(&self.opened()?.reader)
    }

    fn join(&mut self, request: &Request) -> Result<Session, Refusal> {
        let engine = request.text("engine")?.unwrap_or(&self.args.engine).to_owned();
        let role = request.word("role")?.unwrap_or(self.args.role);
        if self.opened.is_none() {
            self.open_with(self.args.clone(), false)?;
        }
        let mut options = SessionOptions::default();
        if request.get("evict").is_some() && !request.flag("evict")? {
            options.evict = Evict::Never;
        }
        if let Some(pins) = request.bounded("most_pins")? {
            options.most_pins = pins;
        }
        options.most_reservations = request.bounded("most_reservations")?;
        Ok(self.opened()?.region.session_with(&engine, role.into(), options)?)
    }

    fn open(&mut self, request: &Request) -> Result<Value, Refusal> {
        let mut args = self.args.clone();
        if let Some(path) = request.text("region")? {
            args = Args { region: Some(path.into()), env: false, fd: None, ..args };
        }
        if let Some(fd) = request.bounded("fd")? {
            args = Args { region: None, env: false, fd: Some(fd), ..args };
        }
        if request.flag("env")? {
            args = Args { region: None, env: true, fd: None, ..args };
        }
        args.offset = request.size("offset")?.unwrap_or(args.offset);
        args.length = request.size("length")?.or(args.length);
        args.mode = request.word("mode")?.unwrap_or(args.mode);
        args.format = request.word("format")?.unwrap_or(args.format);
        args.size = request.size("size")?.or(args.size);
        args.slot_bytes = request.size("slot_bytes")?.or(args.slot_bytes);
        args.slots = request.bounded("slots")?.or(args.slots);
        args.align = request.size("align")?.or(args.align);
        args.sessions = request.bounded("sessions")?.or(args.sessions);
        args.namespaces = request.bounded("namespaces")?.or(args.namespaces);
        args.hosts = request.word("hosts")?.or(args.hosts);
        args.copy_lease_ms = request.bounded("copy_lease_ms")?.or(args.copy_lease_ms);
        args.stalled_writer_ms = request.bounded("stalled_writer_ms")?.or(args.stalled_writer_ms);
        args.attach_wait_ms = request.bounded("attach_wait_ms")?.or(args.attach_wait_ms);
        args.lock_file = request.text("lock_file")?.map(Into::into).or(args.lock_file);
        args.config = match request.get("config") {
            None => args.config,
            Some(Value::String(text)) => Some(text.clone()),
            Some(other) => Some(other.to_string()),
        };
        self.open_with(args, request.flag("prefault")?)?;
        describe(self.opened()?)
    }

    fn open_with(&mut self, args: Args, prefault: bool) -> Result<(), Refusal> {
        self.opened = None;
        self.namespaces.clear();
        let mode = Mode::from(args.mode);
        let backing = backing_of(&args, mode)?;
        let mut wish = Wish { size_bytes: args.size, align_bytes: args.align, ..Wish::default() };
        let slot_bytes = args.slot_bytes.unwrap_or(wish.classes[0].slot_bytes);
        wish.classes = vec![ClassSpec { slot_bytes, slots: args.slots }];
        wish.sessions = args.sessions;
        wish.namespaces = args.namespaces;
        wish.hosts = args.hosts.map(Into::into);
        wish.copy_lease_ms = args.copy_lease_ms.unwrap_or(wish.copy_lease_ms);
        wish.stalled_writer_ms = args.stalled_writer_ms.unwrap_or(wish.stalled_writer_ms);
        wish.attach_wait_ms = args.attach_wait_ms.unwrap_or(wish.attach_wait_ms);
        let mut options = OpenOptions::new(backing)
            .partition(args.offset, args.length)
            .mode(mode)
            .format(args.format.into())
            .wish(wish)
            .prefault(prefault);
        options.config = args.config;
        options.lock_file = args.lock_file;
        let region = Region::open(options)?;
        self.opened = Some(Opened { reader: region.reader(), region });
        Ok(())
    }

    /// Keeps a namespace under a name.
    pub(crate) fn remember(&mut self, id: NamespaceId) -> Value {
        let at = self.namespaces.iter().position(|known| *known == id).unwrap_or(self.namespaces.len());
        if at == self.namespaces.len() {
            self.namespaces.push(id);
        }
        json!({
            "namespace": format!("n{at}"),
            "row": id.row(),
            "generation": id.generation(),
            "digest": to_hex(&id.digest()),
        })
    }

    /// The namespace that a field names, or the latest.
    pub(crate) fn namespace(&self, name: Option<&str>) -> Result<NamespaceId, Refusal> {
        let Some(name) = name else {
            return self.namespaces.last().copied().ok_or_else(|| {
                missing("namespace", "a name such as \"n0\", from {\"op\":\"namespace\",\"example\":true}")
            });
        };
        let at = name.strip_prefix('n').and_then(|number| number.parse::<usize>().ok());
        at.and_then(|at| self.namespaces.get(at)).copied().ok_or_else(|| {
            let known = self.namespaces.len();
            wrong("namespace", &name.into(), &format!("one of the {known} names given so far: \"n0\", ..."))
        })
    }

    /// The objects of a line: one `key`, or `keys`.
    pub(crate) fn items(&self, request: &Request) -> Result<Vec<(ObjectId, Item)>, Refusal> {
        let shared = Item::of(request)?;
        let list = match (request.get("key"), request.get("keys")) {
            (Some(key), None) => vec![key],
            (None, Some(Value::Array(keys))) => keys.iter().collect(),
            (None, Some(other)) => return Err(wrong("keys", other, "a list of keys")),
            (Some(_), Some(_)) => {
                return Err(Refusal::new("bad_field", "key and keys are both said, wanted one of them"));
            }
            (None, None) => return Err(missing("key", "64 hexadecimal digits, any other text, or a number")),
        };
        list.into_iter().map(|key| self.item(key, &shared)).collect()
    }

    fn item(&self, key: &Value, shared: &Item) -> Result<(ObjectId, Item), Refusal> {
        let mut item = shared.clone();
        let key = match key {
            Value::Object(fields) => {
                item.override_by(fields)?;
                fields.get("key").ok_or_else(|| missing("keys[].key", "a key"))?
            }
            key => key,
        };
        let namespace = self.namespace(item.namespace.as_deref())?;
        let object = ObjectId { namespace, prefix: objects::prefix("key", key)?, shard: item.shard, part: item.part };
        Ok((object, item))
    }

    pub(crate) fn objects(&self, request: &Request) -> Result<Vec<ObjectId>, Refusal> {
        Ok(self.items(request)?.into_iter().map(|(object, _)| object).collect())
    }

    /// One answer for `key`, or `items` for `keys`.
    pub(crate) fn each(
        &self,
        request: &Request,
        mut call: impl FnMut(&ObjectId, &Item) -> Result<Value, Refusal>,
    ) -> Result<Value, Refusal> {
        let items = self.items(request)?;
        if request.get("key").is_some()
            && let [(object, item)] = &items[..]
        {
            return call(object, item);
        }
        let answers: Result<Vec<_>, _> = items.iter().map(|(object, item)| call(object, item)).collect();
        Ok(json!({ "items": answers? }))
    }
}

/// Fields that the members of a batch may have of their own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Item {
    namespace: Option<String>,
    shard: u16,
    part: u16,
    pub(crate) len: Option<u64>,
    pub(crate) seed: Option<u64>,
}

impl Item {
    fn of(request: &Request) -> Result<Self, Refusal> {
        Ok(Self {
            namespace: request.text("namespace")?.map(str::to_owned),
            shard: request.bounded("shard")?.unwrap_or(0),
            part: request.bounded("part")?.unwrap_or(0),
            len: request.number("len")?,
            seed: request.number("seed")?,
        })
    }

    fn override_by(&mut self, fields: &Map<String, Value>) -> Result<(), Refusal> {
        for (name, value) in fields {
            let place = format!("keys[].{name}");
            let number = || value.as_u64().ok_or_else(|| wrong(&place, value, "a number of at least 0"));
            let half = || {
                number().and_then(|n| u16::try_from(n).map_err(|_| wrong(&place, value, "a number from 0 to 65535")))
            };
            match name.as_str() {
                "key" => {}
                "namespace" => {
                    let text = value.as_str().ok_or_else(|| wrong(&place, value, "a string"))?;
                    self.namespace = Some(text.to_owned());
                }
                "shard" => self.shard = half()?,
                "part" => self.part = half()?,
                "len" => self.len = Some(number()?),
                "seed" => self.seed = Some(number()?),
                _ => return Err(wrong(&place, value, "only key, namespace, shard, part, len, seed")),
            }
        }
        Ok(())
    }
}

fn backing_of(args: &Args, mode: Mode) -> Result<Backing, Refusal> {
    if let Some(path) = &args.region {
        return Ok(Backing::Path(path.clone()));
    }
    if args.env {
        return Ok(Backing::Env);
    }
    let Some(fd) = args.fd else { return Err(missing("region", "a path (or env, or fd)")) };
    let file = FileOptions::new()
        .read(true)
        .write(mode != Mode::ReadOnly)
        .open(format!("/proc/self/fd/{fd}"))
        .map_err(|error| Refusal::new("io", format!("fd {fd}: {error}")))?;
    Ok(Backing::Fd(file.into()))
}

fn mapped() -> Result<Vec<Value>, Refusal> {
    maps::shared().map_err(|error| Refusal::new("io", format!("/proc/self/maps: {error}")))
}

fn describe(opened: &Opened) -> Result<Value, Refusal> {
    let region = &opened.region;
    let geometry = region.geometry();
    let inode = mapped()?.first().map(|range| range["inode"].clone());
    Ok(json!({
        "outcome": match region.outcome() { Outcome::Formatted => "formatted", Outcome::Attached => "attached" },
        "region_id": to_hex(&region.id()),
        "inode": inode,
        "backing": region.backing().name(),
        "hosts": geometry.hosts.name(),
        "length": geometry.length_bytes,
        "align": geometry.align_bytes,
        "header": geometry.header_bytes,
        "slots": geometry.slot_count,
        "slot_bytes": geometry.max_payload_bytes(),
        "buckets": geometry.bucket_count,
        "hash_seed": geometry.hash_seed,
        "sessions": geometry.session_count,
        "lease_cells": geometry.lease_cells,
        "incarnation": geometry.incarnation,
        "copy_lease_ms": geometry.copy_lease_ms,
        "stalled_writer_ms": geometry.stalled_writer_ms,
    }))
}

pub(crate) fn probed(probe: Probe) -> Value {
    match probe {
        Probe::Hit { len } => json!({ "hit": true, "len": len }),
        Probe::Miss(why) => json!({ "hit": false, "miss": why.code() }),
    }
}

/// What is said about loaded bytes.
pub(crate) fn hit(bytes: &[u8], seed: Option<u64>) -> Value {
    let mut answer = json!({
        "hit": true,
        "len": bytes.len(),
        "crc32": crc32fast::hash(bytes),
        "head": to_hex(&bytes[..bytes.len().min(16)]),
    });
    if let Some(seed) = seed {
        let mut wanted = vec![0; bytes.len()];
        objects::fill(seed, 0, &mut wanted);
        answer["matches"] = (wanted == bytes).into();
    }
    answer
}

pub(crate) fn usage(usage: &Usage) -> Value {
    let slots: Map<String, Value> =
        SlotState::ALL.iter().zip(usage.slots).map(|(state, count)| (state.name().to_owned(), count.into())).collect();
    json!({
        "capacity_bytes": usage.capacity_bytes,
        "reserved_bytes": usage.reserved_bytes,
        "allocated_bytes": usage.allocated_bytes,
        "ready_bytes": usage.ready_bytes,
        "ready_allocated_bytes": usage.ready_allocated_bytes,
        "retiring_bytes": usage.retiring_bytes,
        "writing_bytes": usage.writing_bytes,
        "quarantined_bytes": usage.quarantined_bytes,
        "pinned_bytes": usage.pinned_bytes,
        "capacity_slots": usage.capacity_slots,
        "damaged_slots": usage.damaged_slots,
        "slots": slots,
    })
}
