//! The parent: starts the children, deals the requests, listens, notices deaths.
//!
//! * P1: time counts from the first request dealt (everybody has joined by then) to the last worker's "done".
//! * P2: one thread deals, one thread listens to each child, and this one adds up.
//! * P3: a child that ends without "done", or ends badly, fails the run and is told with its exit status. The others
//!   finish what is in the queue; nobody waits for the dead.
//! * P4: a child from which nothing is heard for a minute while nothing else moves is killed and counted as dead.
//! * P5: whatever happens here, no child is left running.
//! * P6: with `--kill-every` workers are killed here and started again until the queue is empty. Such a worker says how far
//!   it is after each request, so what it served counts; the request that it had in its hands is lost, and counted as lost.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender as EventSender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::Signal;

use crate::histogram::Histogram;
use crate::kill::Killer;
use crate::model::EndlessCache;
use crate::plan::{Plan, Source};
use crate::progress::Progress;
use crate::protocol::{ChildKind, ChildOrder, Message, command};
use crate::queue::{Sender, Sent, queue};
use crate::tally::Tally;
use crate::timeline::Timeline;

/// Silence after which a child is taken for stuck (P4).
const PATIENCE: Duration = Duration::from_secs(60);

/// What came of it.
#[derive(Debug)]
pub(crate) struct Replayed {
    /// Sums over all workers.
    pub(crate) tally: Tally,
    /// Look-ups of whole requests by workers; what a killed one had timed is gone with it.
    pub(crate) lookups: Histogram,
    /// The scheduler's own counts, if there was one.
    pub(crate) scheduler: Option<(Tally, Histogram)>,
    /// What was dealt, and what an endless cache would have answered.
    pub(crate) endless: EndlessCache,
    /// Wall time (P1).
    pub(crate) seconds: f64,
    /// How it went.
    pub(crate) timeline: Timeline,
    /// Index and epoch of the sessions of killed workers.
    pub(crate) deaths: Vec<(u32, u32)>,
    /// Requests that were dealt and that nobody served: they died with a worker.
    pub(crate) killed_requests: u64,
}

/// A child and what is known of it.
struct Member {
    name: String,
    kind: ChildKind,
    number: u32,
    /// Session and epoch, once it has joined.
    joined: Option<(u32, u32)>,
    /// Whether it was killed here (P6).
    killed: bool,
    child: Child,
    latest: Tally,
    done: Option<Histogram>,
    ended: bool,
}

impl Drop for Member {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Something heard from a child.
enum Heard {
    Said(Message),
    /// Not a message; the text says what.
    Garbled(String),
    /// Its output has ended.
    End,
}

/// Replays the plan's requests.
pub(crate) fn run(plan: &Plan) -> Result<Replayed> {
    let (workers_queue, workers_end) = queue()?;
    let mut ends = vec![(ChildKind::Worker, plan.workers, workers_end)];
    let mut scheduler_queue = None;
    if matches!(plan.source, Source::Chat { .. }) {
        let (sender, end) = queue()?;
        scheduler_queue = Some(sender);
        ends.push((ChildKind::Scheduler, 1, end));
    }
    let (events, heard) = channel();
    let mut crew = Crew {
        members: Vec::new(),
        heard,
        failures: Vec::new(),
        deaths: Vec::new(),
        workers: plan.workers,
        killing: None,
    };
    for (kind, count, end) in ends {
        for number in 0..count {
            crew.start(plan, kind, number, &end, &events)?;
        }
        if kind == ChildKind::Worker
            && let Some(every) = plan.kill_every
        {
            let killer = Killer::new(every, plan.seed);
            crew.killing = Some(Killing { killer, plan, queue: end, events: events.clone() });
        }
        // Otherwise our copy of the children's end goes here: once they are gone, dealing fails instead of waiting.
    }
    drop(events);
    crew.await_ready()?;
    if let (Some(killing), Some(every)) = (&mut crew.killing, plan.kill_every) {
        killing.killer = Killer::new(every, plan.seed);
    }

    let stop = Arc::new(AtomicBool::new(!crew.failures.is_empty()));
    let start = Instant::now();
    let dealer = deal(plan, workers_queue, scheduler_queue, stop.clone())?;
    let mut progress = Progress::new(plan.requests);
    let mut timeline = Timeline::default();
    let mut seconds = 0.0;
    while crew.listen()? {
        let tally = crew.sum();
        if !crew.failures.is_empty() {
            stop.store(true, Ordering::Relaxed);
        }
        if !crew.failures.is_empty() || !crew.is_working() {
            crew.killing = None;
        }
        if crew.is_working() || seconds == 0.0 {
            let now = start.elapsed().as_secs_f64();
            timeline.push(now, &tally);
            if !crew.is_working() {
                seconds = now;
            }
        }
        progress.show(&tally);
    }
    progress.finish();
    let endless = dealer.join().map_err(|_| anyhow!("the dealing thread panicked"))?;
    if !crew.failures.is_empty() {
        bail!("{}", crew.failures.join("; "));
    }
    let endless = endless?;

    let mut lookups = Histogram::default();
    let mut scheduler = None;
    for member in &mut crew.members {
        let done = member.done.take().unwrap_or_default();
        match member.kind {
            ChildKind::Scheduler => scheduler = Some((member.latest.clone(), done)),
            _ => lookups.merge(&done),
        }
    }
    let tally = crew.sum();
    let killed_requests = endless.requests.saturating_sub(tally.requests);
    Ok(Replayed { tally, lookups, scheduler, endless, seconds, timeline, deaths: crew.deaths, killed_requests })
}

/// What it takes to kill workers and to start them again (P6).
struct Killing<'p> {
    killer: Killer,
    plan: &'p Plan,
    /// The end of the queue that is their standard input.
    queue: OwnedFd,
    events: EventSender<(usize, Heard)>,
}

/// All children.
struct Crew<'p> {
    members: Vec<Member>,
    heard: Receiver<(usize, Heard)>,
    failures: Vec<String>,
    deaths: Vec<(u32, u32)>,
    workers: u32,
    killing: Option<Killing<'p>>,
}

impl Crew<'_> {
    fn start(
        &mut self,
        plan: &Plan,
        kind: ChildKind,
        number: u32,
        queue: &OwnedFd,
        events: &EventSender<(usize, Heard)>,
    ) -> Result<()> {
        let name = if kind == ChildKind::Scheduler { "scheduler".to_owned() } else { format!("worker {number}") };
        let engine = format!("{}-{}", plan.engine_prefix, name.replace(' ', "-"));
        let says_all = plan.kill_every.is_some();
        let order = ChildOrder { engine, kind: plan.kind.clone(), says_all, block: None, region: plan.region.clone() };
        let mut child = command(kind, &order)?
            .stdin(queue.try_clone().context("the children's end of the queue")?)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let output = child.stdout.take();
        let index = self.members.len();
        self.members.push(Member {
            name,
            kind,
            number,
            joined: None,
            killed: false,
            child,
            latest: Tally::default(),
            done: None,
            ended: false,
        });
        let events = events.clone();
        std::thread::spawn(move || {
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()) {
                let heard = match line.map_err(anyhow::Error::from).and_then(|line| Ok(serde_json::from_str(&line)?)) {
                    Ok(message) => Heard::Said(message),
                    Err(error) => Heard::Garbled(error.to_string()),
                };
                let garbled = matches!(heard, Heard::Garbled(_));
                if events.send((index, heard)).is_err() || garbled {
                    break;
                }
            }
            let _ = events.send((index, Heard::End));
        });
        Ok(())
    }

    /// Waits until everybody has joined, or somebody has failed to.
    fn await_ready(&mut self) -> Result<()> {
        let mut ready = 0;
        while ready < self.members.len() && self.failures.is_empty() {
            let Some((index, heard)) = self.next()? else { break };
            ready += usize::from(matches!(heard, Heard::Said(Message::Ready { .. })));
            self.take(index, heard)?;
        }
        Ok(())
    }

    /// Takes one event; `false` when there are no more.
    fn listen(&mut self) -> Result<bool> {
        let Some((index, heard)) = self.next()? else { return Ok(false) };
        self.take(index, heard)?;
        Ok(true)
    }

    /// The next event; `None` when all children have ended.
    fn next(&mut self) -> Result<Option<(usize, Heard)>> {
        let mut quiet = Instant::now();
        while self.members.iter().any(|member| !member.ended) {
            self.kill_one_if_due()?;
            let patience = PATIENCE.saturating_sub(quiet.elapsed());
            let wait = self.killing.as_ref().map_or(patience, |killing| killing.killer.left().min(patience));
            match self.heard.recv_timeout(wait) {
                Ok(event) => return Ok(Some(event)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if quiet.elapsed() < PATIENCE => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.kill_the_silent()?;
                    quiet = Instant::now();
                }
            }
        }
        Ok(None)
    }

    /// Kills the worker whose turn it is, if it is time (P6).
    fn kill_one_if_due(&mut self) -> Result<()> {
        let Some(killing) = &mut self.killing else { return Ok(()) };
        let can_die = |member: &&Member| {
            let busy = member.joined.is_some() && member.done.is_none();
            member.kind == ChildKind::Worker && busy && !member.killed && !member.ended
        };
        let candidates: Vec<u32> = self.members.iter().filter(can_die).map(|member| member.number).collect();
        let Some(number) = killing.killer.victim(&candidates, self.workers) else { return Ok(()) };
        if let Some(at) = self.members.iter().position(|member| can_die(&member) && member.number == number) {
            let member = &mut self.members[at];
            member.child.kill().with_context(|| format!("killing {}", member.name))?;
            member.killed = true;
        }
        Ok(())
    }

    /// Nothing was heard from anybody for too long (P4).
    fn kill_the_silent(&mut self) -> Result<()> {
        for member in self.members.iter_mut().filter(|member| !member.ended) {
            eprintln!("{}: nothing heard for {} s, killed", member.name, PATIENCE.as_secs());
            member.child.kill().with_context(|| member.name.clone())?;
        }
        Ok(())
    }

    fn take(&mut self, index: usize, heard: Heard) -> Result<()> {
        let member = &mut self.members[index];
        match heard {
            Heard::Said(Message::Ready { session, epoch }) => {
                eprintln!("{}: pid {}, session {session}", member.name, member.child.id());
                member.joined = Some((session, epoch));
            }
            Heard::Said(Message::Progress(tally)) => member.latest = tally,
            Heard::Said(Message::Done { tally, lookups }) => {
                member.latest = tally;
                member.done = Some(lookups);
            }
            // It may have been killed in the middle of a word.
            Heard::Garbled(_) if member.killed => {}
            Heard::Garbled(problem) => {
                self.failures.push(format!("{} said something that is not understood: {problem}", member.name));
            }
            Heard::End => {
                let pid = member.child.id();
                let status = member.child.wait().with_context(|| member.name.clone())?;
                member.ended = true;
                if member.killed && status.signal() == Some(Signal::SIGKILL as i32) {
                    return self.start_again(index);
                }
                if member.done.is_none() || !status.success() {
                    let failure = format!("{} (pid {pid}) died: {status}", member.name);
                    eprintln!("{failure}");
                    self.failures.push(failure);
                }
            }
        }
        Ok(())
    }

    /// A killed worker has gone; unless it was done, the next one takes its place in the queue.
    fn start_again(&mut self, index: usize) -> Result<()> {
        let member = &self.members[index];
        let (Some(session), None) = (member.joined, &member.done) else { return Ok(()) };
        eprintln!("{} (pid {}, session {}) was killed", member.name, member.child.id(), session.0);
        let number = member.number;
        self.deaths.push(session);
        if let Some(killing) = self.killing.take() {
            self.start(killing.plan, ChildKind::Worker, number, &killing.queue, &killing.events)?;
            self.killing = Some(killing);
        }
        Ok(())
    }

    /// Sums over all workers.
    fn sum(&self) -> Tally {
        let mut sum = Tally::default();
        for member in self.members.iter().filter(|member| member.kind == ChildKind::Worker) {
            sum.add(&member.latest);
        }
        sum
    }

    /// Whether a worker has not said "done" yet.
    fn is_working(&self) -> bool {
        let mut workers = self.members.iter().filter(|member| member.kind == ChildKind::Worker);
        workers.any(|member| member.done.is_none() && !member.ended)
    }
}

/// Deals all requests, in order, in a thread of its own; gives back what an endless cache says about those dealt.
fn deal(
    plan: &Plan,
    mut workers: Sender,
    mut scheduler: Option<Sender>,
    stop: Arc<AtomicBool>,
) -> Result<JoinHandle<Result<EndlessCache>>> {
    let requests = plan.requests()?;
    let limit = plan.seconds.map(Duration::from_secs_f64);
    Ok(std::thread::spawn(move || {
        let start = Instant::now();
        let mut endless = EndlessCache::default();
        for request in requests {
            if stop.load(Ordering::Relaxed) || limit.is_some_and(|limit| start.elapsed() >= limit) {
                break;
            }
            let ids = request.inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
            // A scheduler that is behind misses one; it holds up nobody.
            if let Some(scheduler) = &mut scheduler {
                scheduler.offer(&ids)?;
            }
            if workers.send(&ids)? == Sent::NobodyListens {
                break;
            }
            endless.serve(&ids);
        }
        Ok(endless)
    }))
}
