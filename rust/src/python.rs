//! Pieces of Python that chat templates rely on: string methods, `json.dumps`, `strftime`.

use minijinja::value::{from_args, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

fn invalid(message: impl Into<String>) -> Error {
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
    let at = if from_right { text.rfind(separator) } else { text.find(separator) };
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
                let Some(at) = rest.rfind(separator) else { break };
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

/// `json.dumps`, with transformers' default of writing non-ASCII characters as they are.
pub fn json_dumps(
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
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
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
            kind => return Err(invalid(format!("tojson: a value of type {kind} has no JSON"))),
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
            self.out.push_str(&float_repr(f64::try_from(value.clone()).unwrap_or(f64::NAN)));
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

/// A day, whose midnight is the time that templates see.
pub struct Date {
    year: i32,
    month: usize,
    day: usize,
}

const MONTHS: [&str; 12] = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl Date {
    /// Reads YYYY-MM-DD.
    pub fn parse(text: &str) -> Result<Date, String> {
        let wrong = || format!("the date \"{text}\" is not of the form YYYY-MM-DD");
        let bytes = text.as_bytes();
        if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
            return Err(wrong());
        }
        let digits = |from: usize, to: usize| -> Result<usize, String> {
            let part = text.get(from..to).ok_or_else(wrong)?;
            if !part.bytes().all(|b| b.is_ascii_digit()) {
                return Err(wrong());
            }
            part.parse().map_err(|_| wrong())
        };
        let date =
            Date { year: digits(0, 4)? as i32, month: digits(5, 7)?, day: digits(8, 10)? };
        if !(1..=12).contains(&date.month) || !(1..=date.days_in_month(date.month)).contains(&date.day)
        {
            return Err(format!("the date \"{text}\" does not exist"));
        }
        Ok(date)
    }

    fn days_in_month(&self, month: usize) -> usize {
        let leap = (self.year % 4 == 0 && self.year % 100 != 0) || self.year % 400 == 0;
        match month {
            2 => 28 + usize::from(leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    fn day_of_year(&self) -> usize {
        (1..self.month).map(|m| self.days_in_month(m)).sum::<usize>() + self.day
    }

    /// 0 for Sunday (Sakamoto's rule).
    fn day_of_week(&self) -> usize {
        const OFFSETS: [i32; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
        let year = if self.month < 3 { self.year - 1 } else { self.year };
        let sum = year + year / 4 - year / 100 + year / 400;
        (sum + OFFSETS[self.month - 1] + self.day as i32).rem_euclid(7) as usize
    }

    /// `strftime` in the C locale, the time being midnight and without a zone.
    pub fn strftime(&self, format: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut code = chars.next().unwrap_or('%');
            let unpadded = code == '-';
            if unpadded {
                code = chars.next().unwrap_or('%');
            }
            let field = self.field(code)?;
            let bare = field.trim_start_matches('0');
            match (unpadded, bare) {
                (false, _) => out.push_str(&field),
                (true, "") => out.push('0'),
                (true, bare) => out.push_str(bare),
            }
        }
        Ok(out)
    }

    fn field(&self, code: char) -> Result<String, String> {
        let (year, month, day) = (self.year, self.month, self.day);
        let month_name = MONTHS[month - 1];
        let day_name = DAYS[self.day_of_week()];
        Ok(match code {
            'Y' => format!("{year}"),
            'y' => format!("{:02}", year % 100),
            'm' => format!("{month:02}"),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'B' => month_name.to_string(),
            'b' | 'h' => month_name[..3].to_string(),
            'A' => day_name.to_string(),
            'a' => day_name[..3].to_string(),
            'j' => format!("{:03}", self.day_of_year()),
            'u' => format!("{}", (self.day_of_week() + 6) % 7 + 1),
            'w' => format!("{}", self.day_of_week()),
            'H' | 'M' | 'S' => "00".to_string(),
            'I' => "12".to_string(),
            'f' => "000000".to_string(),
            'p' => "AM".to_string(),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'D' | 'x' => format!("{month:02}/{day:02}/{:02}", year % 100),
            'T' | 'X' => "00:00:00".to_string(),
            'R' => "00:00".to_string(),
            'c' => format!("{} {} {day:2} 00:00:00 {year}", &day_name[..3], &month_name[..3]),
            'Z' | 'z' => String::new(),
            'n' => "\n".to_string(),
            't' => "\t".to_string(),
            '%' => "%".to_string(),
            other => return Err(format!("strftime_now: %{other} is not supported")),
        })
    }
}
