//! Comparing configurations field by field, so that a mismatch is named and not merely noticed.

use serde_json::Value;

/// Reads a configuration: a JSON object, or an explanation of what it is instead.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    match serde_json::from_str::<Value>(text) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(other) => Err(format!("found {}", kind(&other))),
        Err(error) => Err(error.to_string()),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The first field in which two configurations differ: its dotted path, the region's value, the caller's.
pub(crate) fn difference(region: &Value, yours: &Value) -> Option<(String, String, String)> {
    walk(region, yours, String::new())
}

fn walk(region: &Value, yours: &Value, path: String) -> Option<(String, String, String)> {
    if let (Value::Object(left), Value::Object(right)) = (region, yours) {
        let mut keys: Vec<&String> = left.keys().chain(right.keys()).collect();
        keys.sort_unstable();
        keys.dedup();
        return keys.into_iter().find_map(|key| {
            let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            match (left.get(key), right.get(key)) {
                (Some(left), Some(right)) => walk(left, right, below),
                (left, right) => Some((below, shown(left), shown(right))),
            }
        });
    }
    (region != yours).then(|| (path, shown(Some(region)), shown(Some(yours))))
}

fn shown(value: Option<&Value>) -> String {
    match value {
        None => "absent".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differ(left: &str, right: &str) -> Option<(String, String, String)> {
        difference(&parse(left).expect("left"), &parse(right).expect("right"))
    }

    #[test]
    fn the_first_differing_field_is_named() {
        assert_eq!(
            differ(r#"{"dtype":"bf16"}"#, r#"{"dtype":"fp8"}"#),
            Some(("dtype".into(), "bf16".into(), "fp8".into()))
        );
        assert_eq!(differ(r#"{"a":{"b":1}}"#, r#"{"a":{"b":2}}"#), Some(("a.b".into(), "1".into(), "2".into())));
        assert_eq!(differ(r#"{"a":1}"#, r#"{"b":1}"#), Some(("a".into(), "1".into(), "absent".into())));
        assert_eq!(differ(r#"{"a":[1,2],"b":1}"#, r#"{"b":1,"a":[1,2]}"#), None);
        assert!(parse("[1]").expect_err("array").contains("an array"));
        assert!(parse("{").is_err());
    }
}
