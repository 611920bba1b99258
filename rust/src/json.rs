//! `json.dumps` of Python, which the `tojson` filter of chat templates is.

use minijinja::value::{Value, ValueKind};
use minijinja::Error;

use crate::python::invalid;

/// `json.dumps`, with transformers' default of writing non-ASCII characters as they are.
pub fn dumps(
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<Value>,
    separators: Option<Value>,
    sort_keys: Option<bool>,
) -> Result<String, Error> {
    let indent = match indent {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_string(),
            None => {
                let n = usize::try_from(value).map_err(|_| invalid("indent must be a number"))?;
                " ".repeat(n.min(64))
            }
        }),
    };
    let item_separator = if indent.is_some() { "," } else { ", " };
    let (item, key) = match separators {
        Some(pair) if !pair.is_none() => {
            let parts: Vec<Value> = pair.try_iter()?.collect();
            match parts.as_slice() {
                [a, b] => (a.to_string(), b.to_string()),
                _ => return Err(invalid("separators must be a pair")),
            }
        }
        _ => (item_separator.to_string(), ": ".to_string()),
    };
    let mut writer = JsonWriter {
        out: String::new(),
        ensure_ascii: ensure_ascii.unwrap_or(false),
        sort_keys: sort_keys.unwrap_or(false),
        indent,
        item,
        key,
    };
    writer.write(value, 0)?;
    Ok(writer.out)
}

/// Values nested deeper than this are refused: each level takes native stack.
const JSON_DEPTH: usize = 128;

struct JsonWriter {
    out: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

impl JsonWriter {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > JSON_DEPTH {
            return Err(invalid("tojson: the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.write_number(value),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_items('[', ']', items.len(), depth, |writer, i| {
                    writer.write(&items[i], depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
                }
                self.write_items('{', '}', keys.len(), depth, |writer, i| {
                    writer.write_key(&keys[i])?;
                    let separator = writer.key.clone();
                    writer.out.push_str(&separator);
                    writer.write(&value.get_item(&keys[i])?, depth + 1)
                })?;
            }
            kind => {
                return Err(invalid(format!(
                    "tojson: a value of type {kind} has no JSON"
                )))
            }
        }
        Ok(())
    }

    fn write_items(
        &mut self,
        open: char,
        close: char,
        count: usize,
        depth: usize,
        mut write_one: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for i in 0..count {
            if i > 0 {
                let separator = self.item.clone();
                self.out.push_str(&separator);
            }
            self.new_line(depth + 1);
            write_one(self, i)?;
        }
        if count > 0 {
            self.new_line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn write_key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.write_text(key.as_str().unwrap_or_default()),
            ValueKind::Number | ValueKind::Bool | ValueKind::None => {
                self.out.push('"');
                self.write(key, 0)?;
                self.out.push('"');
            }
            kind => return Err(invalid(format!("tojson: a key cannot be of type {kind}"))),
        }
        Ok(())
    }

    fn write_number(&mut self, value: &Value) {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
        } else {
            self.out.push_str(&float_repr(
                f64::try_from(value.clone()).unwrap_or(f64::NAN),
            ));
        }
    }

    fn write_text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' => self.write_escape(c as u16),
                c if !c.is_ascii() && self.ensure_ascii => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        self.write_escape(*unit);
                    }
                }
                // Python escapes DEL only where it escapes all that is not ASCII, which DEL is.
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn write_escape(&mut self, unit: u16) {
        self.out.push_str(&format!("\\u{unit:04x}"));
    }
}

/// `repr` of a Python float: the shortest digits that read back the same, with an exponent where it is
/// below -4 or at least 16.
pub fn float_repr(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_string();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}
