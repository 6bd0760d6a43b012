//! What is shown while it runs: a bar where there is a terminal, a line now and then where there is none. On stderr.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::tally::Tally;

/// Between two plain lines.
const EVERY: Duration = Duration::from_secs(2);

/// Shows how far it is.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    total: u64,
    start: Instant,
    said: Instant,
}

impl Progress {
    /// Of so many requests.
    pub(crate) fn new(total: u64) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let template = "{bar:20.cyan/black.bright} {pos}/{len} requests  {wide_msg}";
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total).with_style(style)
        });
        Self { bar, total, start: Instant::now(), said: Instant::now() }
    }

    /// This much is done.
    pub(crate) fn show(&mut self, tally: &Tally) {
        let rate = tally.bytes_moved() as f64 / 1e9 / self.start.elapsed().as_secs_f64().max(1e-3);
        let text =
            format!("{:.2} % hits  {rate:.2} GB/s  {} wrong bytes", tally.hit_ratio() * 100.0, tally.wrong_bytes);
        match &self.bar {
            Some(bar) => {
                bar.set_message(text);
                bar.set_position(tally.requests);
            }
            None if self.said.elapsed() >= EVERY => {
                self.said = Instant::now();
                eprintln!(
                    "{:>6.1} s  {}/{} requests  {text}",
                    self.start.elapsed().as_secs_f64(),
                    tally.requests,
                    self.total
                );
            }
            None => {}
        }
    }

    /// No more is to come.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}
