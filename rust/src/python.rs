//! Methods of Python's values that chat templates call.

use minijinja::value::{from_args, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

pub fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// `str.isspace` of one character: Unicode's white space and four separators that Python adds.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.strip`, `lstrip` and `rstrip`: of white space, or of any of `chars`.
pub fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let drop = |c: char| chars.map_or_else(|| is_space(c), |set| set.contains(c));
    let mut text = text;
    if left {
        text = text.trim_start_matches(drop);
    }
    if right {
        text = text.trim_end_matches(drop);
    }
    text
}

/// Methods on values that Python has and the engine lacks: a few here, the others in pycompat.
pub fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        bound_method(state, text, method)?;
        if let Some(result) = string_method(text, method, args) {
            return result;
        }
    }
    if value.kind() == ValueKind::Map && method == "copy" {
        let () = from_args(args)?;
        return Ok(value.clone());
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// The widest field that `str.format` may pad to, in digits.
const WIDTH_DIGITS: usize = 4;

/// Pays or refuses beforehand where a method makes much out of little: the engine counts results only
/// once they are there.
fn bound_method(state: &State, text: &str, method: &str) -> Result<(), Error> {
    match method {
        // A fuel for 64 bytes; up to one value for each byte, of half that size.
        "split" | "rsplit" | "splitlines" => state.consume_fuel(text.len() as u64 / 2),
        "format" => {
            let mut digits = 0;
            let mut depth = 0;
            for c in text.chars() {
                digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
                depth = match c {
                    '{' => depth + 1,
                    '}' => 0,
                    _ => depth,
                };
                if depth > 0 && digits > WIDTH_DIGITS {
                    return Err(invalid("format: a field is too wide"));
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let with_chars = |left, right| {
        let (chars,): (Option<&str>,) = from_args(args)?;
        Ok(Value::from(strip(text, chars, left, right)))
    };
    let with_affix = |cut: fn(&'_ str, &'_ str) -> Option<usize>, suffix: bool| {
        let (affix,): (&str,) = from_args(args)?;
        Ok(Value::from(match cut(text, affix) {
            Some(n) if suffix => &text[..n],
            Some(n) => &text[n..],
            None => text,
        }))
    };
    Some(match method {
        "strip" => with_chars(true, true),
        "lstrip" => with_chars(true, false),
        "rstrip" => with_chars(false, true),
        "removeprefix" => with_affix(|s, p| s.starts_with(p).then_some(p.len()), false),
        "removesuffix" => with_affix(|s, p| s.ends_with(p).then(|| s.len() - p.len()), true),
        "partition" => partition(text, args, false),
        "rpartition" => partition(text, args, true),
        "rsplit" => rsplit(text, args),
        _ => return None,
    })
}

fn partition(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    let at = if from_right {
        text.rfind(separator)
    } else {
        text.find(separator)
    };
    let parts = match at {
        Some(at) => [&text[..at], separator, &text[at + separator.len()..]],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from(parts.map(Value::from).to_vec()))
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
    let limit = usize::try_from(limit.unwrap_or(-1)).unwrap_or(usize::MAX);
    let mut parts: Vec<Value> = Vec::new();
    let mut rest = text;
    match separator {
        Some("") => return Err(invalid("empty separator")),
        Some(separator) => {
            while parts.len() < limit {
                let Some(at) = rest.rfind(separator) else {
                    break;
                };
                parts.push(Value::from(&rest[at + separator.len()..]));
                rest = &rest[..at];
            }
            parts.push(Value::from(rest));
        }
        None => {
            rest = rest.trim_end_matches(is_space);
            while parts.len() < limit && !rest.is_empty() {
                let begin = rest
                    .char_indices()
                    .rev()
                    .find(|&(_, c)| is_space(c))
                    .map_or(0, |(at, c)| at + c.len_utf8());
                parts.push(Value::from(&rest[begin..]));
                rest = rest[..begin].trim_end_matches(is_space);
            }
            if !rest.is_empty() {
                parts.push(Value::from(rest));
            }
        }
    }
    parts.reverse();
    Ok(Value::from(parts))
}
