//! The sweep: find out which steps each scenario hits, then end a process at each of them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::case::{self, CaseKey, Outcome};
use crate::child::{Child, End, Event};
use crate::cli::SweepArgs;
use crate::random::Random;
use crate::scenario::{self, Scenario, Set, is_formatting};
use crate::steps::Step;

/// How long a runner may be silent: longer than any case can take.
const SILENCE: Duration = Duration::from_secs(120);

/// Runs the sweep and reports. True when nothing was wrong.
pub(crate) fn run(args: &SweepArgs, formatting_only: bool) -> Result<bool> {
    let start = Instant::now();
    let scenarios: Vec<Scenario> = scenario::all()
        .into_iter()
        .filter(|scenario| args.operation.as_ref().is_none_or(|name| scenario.name == name))
        .filter(|scenario| !formatting_only || is_formatting(scenario))
        .collect();
    if scenarios.is_empty() {
        bail!("no operation of that name; `maru-torture sweep --list` names them");
    }
    if args.list {
        for scenario in &scenarios {
            println!("{:<26} {}", scenario.name, scenario.about);
        }
        return Ok(true);
    }
    let (step, nth) = args.step()?;
    let sets: Vec<Set> = args.sets()?;
    case::set_patience(args.seconds_per_case);
    let scratch = Scratch::new()?;
    let mut report = Report::new(&scenarios, args.seed);

    // Which steps are there to end at?
    let plays: Vec<CaseKey> = scenarios
        .iter()
        .enumerate()
        .flat_map(|(scenario, what)| {
            [Set::None, Set::Reading]
                .into_iter()
                .filter(|set| *set == Set::None || what.sets.contains(set))
                .map(move |set| CaseKey { scenario, at: None, set })
        })
        .collect();
    let played = play_all(&scenarios, &plays, args, &scratch.path, "find steps")?;
    let mut hits: BTreeMap<(usize, bool), Vec<(Step, u64)>> = BTreeMap::new();
    for (case, outcome) in plays.iter().zip(played) {
        hits.insert((case.scenario, case.set == Set::Reading), outcome.counts.clone());
        report.hit(&outcome);
        report.take(&scenarios, *case, &outcome);
    }

    let mut cases = Vec::new();
    for (scenario, what) in scenarios.iter().enumerate() {
        for set in what.sets.iter().copied().filter(|set| sets.contains(set)) {
            let reading = set == Set::Reading;
            for (at, count) in hits.get(&(scenario, reading)).into_iter().flatten() {
                for n in 1..=(*count).min(args.nth_cap.max(nth.unwrap_or(0))) {
                    let wanted = step.is_none_or(|step| step == *at) && nth.is_none_or(|nth| nth == n);
                    if wanted {
                        cases.push(CaseKey { scenario, at: Some((*at, n)), set });
                    }
                }
            }
        }
    }
    report.possible = cases.len();
    Random::new(args.seed).shuffle(&mut cases);
    let (share, of) = args.share()?;
    let mut at = 0;
    cases.retain(|_| {
        at += 1;
        at % of == share % of
    });
    if let Some(seconds) = args.seconds {
        report.deadline = Some(start + Duration::from_secs(seconds));
    }
    let mut begun = 0;
    // In portions, so that a limit of time ends between cases.
    for portion in cases.chunks(400) {
        if report.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break;
        }
        let label = format!("case {} of {}", begun + 1, cases.len());
        let outcomes = play_all(&scenarios, portion, args, &scratch.path, &label)?;
        let mut missed = Vec::new();
        for (case, outcome) in portion.iter().zip(outcomes) {
            if outcome.reached || !outcome.violations.is_empty() {
                report.take(&scenarios, *case, &outcome);
            } else {
                missed.push(*case);
            }
        }
        // How often a step is hit can depend on a race; such a case is played again.
        for _ in 0..3 {
            if missed.is_empty() {
                break;
            }
            let outcomes = play_all(&scenarios, &missed, args, &scratch.path, "again")?;
            let again: Vec<CaseKey> = missed
                .iter()
                .zip(outcomes)
                .filter_map(|(case, outcome)| {
                    if outcome.reached || !outcome.violations.is_empty() {
                        report.take(&scenarios, *case, &outcome);
                        None
                    } else {
                        Some(*case)
                    }
                })
                .collect();
            missed = again;
        }
        report.missed.extend(missed);
        begun += portion.len();
    }
    let whole = args.operation.is_none() && step.is_none() && !formatting_only;
    report.seconds = start.elapsed().as_secs_f64();
    report.print(&scenarios, args, whole, of == 1 && begun == cases.len() && sets.len() == Set::ALL.len());
    Ok(report.is_clean(whole))
}

/// A folder in memory that is removed at the end.
pub(crate) struct Scratch {
    pub(crate) path: PathBuf,
}

impl Scratch {
    pub(crate) fn new() -> Result<Self> {
        let path = PathBuf::from(format!("/dev/shm/maru-torture-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Plays cases in `args.jobs` processes. Outcomes keep the order.
fn play_all(
    scenarios: &[Scenario],
    cases: &[CaseKey],
    args: &SweepArgs,
    scratch: &Path,
    label: &str,
) -> Result<Vec<Outcome>> {
    let jobs = args.jobs.clamp(1, 64) as usize;
    let mut runners = Vec::new();
    for job in 0..jobs.min(cases.len()) {
        let directory = scratch.join(format!("runner-{job}"));
        runners.push(Child::fork(&format!("runner {job}"), |talk| {
            for (at, case) in cases.iter().enumerate().skip(job).step_by(jobs) {
                let outcome = case::play(&scenarios[case.scenario], *case, &directory);
                let counts: Vec<Value> = outcome.counts.iter().map(|(step, n)| json!([step.name(), n])).collect();
                talk.say(
                    &json!({
                        "at": at, "reached": outcome.reached, "ms": outcome.recovery_ms,
                        "violations": outcome.violations, "counts": counts,
                    })
                    .to_string(),
                );
            }
            Ok(())
        })?);
    }
    let mut outcomes: Vec<Outcome> = cases.iter().map(|_| Outcome::default()).collect();
    let mut done = 0;
    let mut told = Instant::now();
    let mut open: Vec<bool> = runners.iter().map(|_| true).collect();
    while open.contains(&true) {
        for (job, runner) in runners.iter_mut().enumerate() {
            if !open[job] {
                continue;
            }
            // Whoever has nothing to say is asked again after the others.
            match runner.event(Duration::from_millis(2)) {
                Event::Said(line) => {
                    done += 1;
                    take_outcome(&line, &mut outcomes)?;
                }
                Event::Ended { end: End::Exited(0), .. } => open[job] = false,
                Event::Ended { end, .. } => bail!("{} ended with {end:?}", runner.name()),
                Event::Stopped | Event::Silence => {}
            }
        }
        if told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            let _ = writeln!(std::io::stderr(), "{label}: {done}/{}", cases.len());
        }
        if told.elapsed() > SILENCE {
            bail!("the runners are silent");
        }
    }
    Ok(outcomes)
}

fn take_outcome(line: &str, outcomes: &mut [Outcome]) -> Result<()> {
    let Ok(value) = serde_json::from_str::<Value>(line) else { bail!("a runner said {line:?}") };
    let at = value["at"].as_u64().context("index of a case")? as usize;
    let outcome = outcomes.get_mut(at).context("index of a case")?;
    outcome.reached = value["reached"].as_bool().unwrap_or(false);
    outcome.recovery_ms = value["ms"].as_f64();
    for text in value["violations"].as_array().into_iter().flatten() {
        outcome.violations.push(text.as_str().unwrap_or_default().to_owned());
    }
    for pair in value["counts"].as_array().into_iter().flatten() {
        if let (Some(step), Some(count)) = (pair[0].as_str().and_then(Step::named), pair[1].as_u64()) {
            outcome.counts.push((step, count));
        }
    }
    Ok(())
}

/// What one scenario came to.
#[derive(Default, Clone)]
struct Line {
    steps: Vec<Step>,
    cases: usize,
    violations: usize,
    recovery_ms: Vec<f64>,
}

struct Report {
    lines: Vec<Line>,
    hit: Vec<bool>,
    ended_at: Vec<bool>,
    violations: Vec<String>,
    missed: Vec<CaseKey>,
    cases: usize,
    possible: usize,
    seconds: f64,
    seed: u64,
    deadline: Option<Instant>,
}

impl Report {
    fn new(scenarios: &[Scenario], seed: u64) -> Self {
        Self {
            lines: vec![Line::default(); scenarios.len()],
            hit: vec![false; Step::ALL.len()],
            ended_at: vec![false; Step::ALL.len()],
            violations: Vec::new(),
            missed: Vec::new(),
            cases: 0,
            possible: 0,
            seconds: 0.0,
            seed,
            deadline: None,
        }
    }

    fn hit(&mut self, outcome: &Outcome) {
        for (step, _) in &outcome.counts {
            self.hit[*step as usize] = true;
        }
    }

    fn take(&mut self, scenarios: &[Scenario], case: CaseKey, outcome: &Outcome) {
        let line = &mut self.lines[case.scenario];
        if let Some((step, _)) = case.at {
            self.cases += 1;
            line.cases += 1;
            if outcome.reached {
                self.hit[step as usize] = true;
                self.ended_at[step as usize] = true;
                if !line.steps.contains(&step) {
                    line.steps.push(step);
                }
            }
        }
        line.recovery_ms.extend(outcome.recovery_ms);
        line.violations += outcome.violations.len();
        for text in &outcome.violations {
            let name = scenarios[case.scenario].name;
            let (step, replay) = match case.at {
                None => ("(played through)".to_owned(), String::new()),
                Some((step, nth)) => (format!("{}:{nth}", step.name()), format!(" --step {}:{nth}", step.name())),
            };
            self.violations.push(format!(
                "seed {} · {name} · {step} · survivors {}: {text}\n    maru-torture sweep --seed {} --operation {name}{replay} --survivors {}",
                self.seed,
                case.set.name(),
                self.seed,
                case.set.name(),
            ));
        }
    }

    /// Steps that nothing hit. None is excused.
    fn uncovered(&self) -> Vec<&'static str> {
        Step::ALL.iter().filter(|step| !self.hit[**step as usize]).map(|step| step.name()).collect()
    }

    fn is_clean(&self, whole: bool) -> bool {
        self.violations.is_empty() && (!whole || self.uncovered().is_empty())
    }

    fn print(&self, scenarios: &[Scenario], args: &SweepArgs, whole: bool, complete: bool) {
        let mut err = std::io::stderr().lock();
        let mut all: Vec<f64> = self.lines.iter().flat_map(|line| line.recovery_ms.iter().copied()).collect();
        let (p50, max) = p50_and_max(&mut all);
        let steps = self.ended_at.iter().filter(|ended| **ended).count();
        let uncovered = if whole { self.uncovered() } else { Vec::new() };
        let mut out = String::new();
        out.push_str(&format!(
            "{:<26} {:>5} {:>6} {:>10} {:>10} {:>10}\n",
            "operation", "steps", "cases", "violations", "p50 ms", "max ms"
        ));
        for (line, scenario) in self.lines.iter().zip(scenarios) {
            let (p50, max) = p50_and_max(&mut line.recovery_ms.clone());
            out.push_str(&format!(
                "{:<26} {:>5} {:>6} {:>10} {p50:>10.2} {max:>10.2}\n",
                scenario.name,
                line.steps.len(),
                line.cases,
                line.violations
            ));
        }
        out.push_str(&format!(
            "\n{} cases (of {} in all) at {steps} of {} steps in {:.1} s: {} violation(s)\n",
            self.cases,
            self.possible,
            Step::ALL.len(),
            self.seconds,
            self.violations.len()
        ));
        out.push_str(&format!("survivors went on after {p50:.2} ms (median), {max:.2} ms at most; bound 1000 ms\n"));
        if !uncovered.is_empty() {
            out.push_str(&format!("steps that nothing hit: {}\n", uncovered.join(", ")));
        }
        if whole && complete {
            let unkilled: Vec<_> = Step::ALL.iter().filter(|step| !self.ended_at[**step as usize]).collect();
            if !unkilled.is_empty() {
                out.push_str(&format!("hit, but never the last one: {unkilled:?}\n"));
            }
        }
        if !self.missed.is_empty() {
            let names: Vec<String> = self
                .missed
                .iter()
                .map(|case| {
                    let at = case.at.map_or(String::new(), |(step, nth)| format!("{}:{nth}", step.name()));
                    format!("{} {at} {}", scenarios[case.scenario].name, case.set.name())
                })
                .collect();
            out.push_str(&format!("{} case(s) did not reach their step: {}\n", names.len(), names.join(", ")));
        }
        for violation in &self.violations {
            out.push_str(&format!("VIOLATION {violation}\n"));
        }
        out.push_str(&format!("seed {}\n", self.seed));
        if !args.json {
            print!("{out}");
            return;
        }
        let _ = err.write_all(out.as_bytes());
        println!(
            "{}",
            json!({
                "cases": self.cases,
                "cases_possible": self.possible,
                "cases_missed": self.missed.len(),
                "operations": scenarios.len(),
                "steps": steps,
                "uncovered_steps": uncovered,
                "violations": self.violations.len(),
                "violation_texts": self.violations,
                "recovery_ms": { "p50": p50, "max": max },
                "seconds": self.seconds,
                "seed": self.seed,
            })
        );
    }
}

/// Median and largest; zero of none.
pub(crate) fn p50_and_max(values: &mut [f64]) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values.get(values.len() / 2).copied().unwrap_or(0.0), values.last().copied().unwrap_or(0.0))
}
