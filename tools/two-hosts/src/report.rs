//! What was looked at and what was found: one row a claim, on the way and again at the end.

use serde_json::{Value, json};

/// One claim, tried.
pub(crate) struct Row {
    point: &'static str,
    claim: String,
    ok: bool,
    found: String,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Notes a claim, whether it held, and what was found. True if it held.
    pub(crate) fn check(&mut self, point: &'static str, claim: &str, ok: bool, found: impl Into<String>) -> bool {
        let row = Row { point, claim: claim.to_owned(), ok, found: found.into() };
        eprintln!("{}", row.line());
        self.rows.push(row);
        ok
    }

    pub(crate) fn failed(&self) -> usize {
        self.rows.iter().filter(|row| !row.ok).count()
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn print(&self) {
        for row in &self.rows {
            println!("{}", row.line());
        }
    }

    pub(crate) fn json(&self) -> Value {
        let row = |row: &Row| json!({ "point": row.point, "claim": row.claim, "ok": row.ok, "found": row.found });
        self.rows.iter().map(row).collect()
    }
}

impl Row {
    fn line(&self) -> String {
        let verdict = if self.ok { "ok    " } else { "FAILED" };
        format!("{verdict} {:<9} {:<66} {}", self.point, self.claim, self.found)
    }
}
