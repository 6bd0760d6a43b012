//! What a coordinator says: text on stderr for journals and people, or one JSON object a line on stdout.

use std::io::Write;

use serde_json::{Value, json};

/// The teller.
pub(crate) struct Tell {
    json: bool,
}

impl Tell {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Something happened: what kind, in a sentence, and in fields.
    pub(crate) fn event(&self, kind: &str, sentence: &str, fields: Value) {
        if !self.json {
            // A reader of these lines that is gone does not end the coordinator.
            let _ = writeln!(std::io::stderr(), "{sentence}");
            return;
        }
        let mut object = json!({ "kind": kind, "text": sentence });
        if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
            object.extend(fields);
        }
        let _ = writeln!(std::io::stdout(), "{object}");
    }
}
