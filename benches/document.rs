//! Documents with a part that a program writes: what lies between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.

use std::path::Path;

/// `document` with `table` between the marks of that name.
///
/// # Errors
/// A mark is missing.
pub fn between(document: &str, name: &str, table: &str) -> Result<String, String> {
    let (begin, end) = (format!("<!-- {name}:begin -->"), format!("<!-- {name}:end -->"));
    let (before, rest) = document.split_once(&begin).ok_or_else(|| format!("mark {begin} is missing"))?;
    let (_, after) = rest.split_once(&end).ok_or_else(|| format!("mark {end} is missing after {begin}"))?;
    Ok(format!("{before}{begin}\n\n{}\n\n{end}{after}", table.trim_end()))
}

/// Replaces what lies between the marks of a file.
///
/// # Errors
/// The file cannot be read or written, or has no such marks.
pub fn write_between(path: &Path, name: &str, table: &str) -> Result<(), String> {
    let tell = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let document = std::fs::read_to_string(path).map_err(|error| tell(&error))?;
    let document = between(&document, name, table).map_err(|error| tell(&error))?;
    std::fs::write(path, document).map_err(|error| tell(&error))
}

#[cfg(test)]
mod tests {
    use super::between;

    #[test]
    fn only_what_lies_between_the_marks_changes() {
        let document = "head\n<!-- a:begin -->\nold\n<!-- a:end -->\ntail";
        let wanted = "head\n<!-- a:begin -->\n\nnew\n\n<!-- a:end -->\ntail";
        assert_eq!(between(document, "a", "new\n").expect("marks"), wanted);
        assert!(between(document, "b", "new").is_err());
        assert!(between("<!-- a:end --><!-- a:begin -->", "a", "new").is_err());
    }
}
