//! Chat templates, rendered as transformers renders them, within limits.

use std::error::Error as StdError;
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{context, Environment, Error, ErrorKind, State};

use crate::date::Date;
use crate::{generation, json, python};

const NAME: &str = "chat template";
const DATE: &str = "graft_template_date";

/// Instructions a rendering may take; creating 64 bytes of text costs one as well. The longest stock
/// templates take some thousands for a conversation of a hundred turns.
const BASE_FUEL: u64 = 8_000_000;
/// A rendered text may be this long, or eight times as long as the conversation if that is more.
const BASE_OUTPUT: usize = 16 << 20;
/// A template's source, and one tag or expression in it, may be this long. Stock templates stay below 20
/// KB and 2 KB. The engine's parser descends once for each operator, or each branch of an if.
const SOURCE_LIMIT: usize = 1 << 20;
const CONSTRUCT_LIMIT: usize = 16 << 10;
/// Enough for the deepest source within these limits; only what is used is ever touched.
const COMPILE_STACK: usize = 256 << 20;
/// Bounds the depth of macros and includes; each level takes native stack.
const RECURSION_LIMIT: usize = 100;

/// What a template says with `raise_exception`.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Raised {}

pub struct Template {
    environment: Environment<'static>,
    source: String,
    has_generation: bool,
}

impl Template {
    pub fn compile(source: &str) -> Result<Template, String> {
        if source.len() > SOURCE_LIMIT {
            return Err(format!("the template is longer than {SOURCE_LIMIT} bytes"));
        }
        let (rewritten, has_generation) = generation::rewrite(source, CONSTRUCT_LIMIT)?;
        let environment = std::thread::scope(|scope| {
            std::thread::Builder::new()
                .stack_size(COMPILE_STACK)
                .spawn_scoped(scope, || -> Result<Environment<'static>, String> {
                    let mut environment = new_environment()?;
                    environment
                        .add_template_owned(NAME, rewritten)
                        .map_err(|e| describe(&e))?;
                    Ok(environment)
                })
                .map_err(|e| format!("no thread to compile the template: {e}"))?
                .join()
                .unwrap_or_else(|payload| std::panic::resume_unwind(payload))
        })?;
        Ok(Template {
            environment,
            source: source.to_string(),
            has_generation,
        })
    }

    pub fn has_generation(&self) -> bool {
        self.has_generation
    }

    /// Renders with the given variables (a JSON object) and the clock at `date` (YYYY-MM-DD): the text
    /// and the byte ranges of its generation blocks.
    pub fn render(
        &self,
        variables: &str,
        date: &str,
    ) -> Result<(String, Vec<Range<usize>>), String> {
        let values: serde_json::Map<String, serde_json::Value> = serde_json::from_str(variables)
            .map_err(|e| format!("the conversation is not valid JSON: {e}"))?;
        Date::parse(date)?;
        let (open, close) = self.choose_marks(variables);
        let context = context! {
            graft_generation_open => Value::from(open.clone()),
            graft_generation_close => Value::from(close.clone()),
            graft_template_date => date,
            ..to_value(serde_json::Value::Object(values))
        };
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(BASE_FUEL + 4 * variables.len() as u64));
        let limit = BASE_OUTPUT.max(variables.len().saturating_mul(8));
        let mut output = Limited {
            text: Vec::new(),
            limit,
        };
        let template = environment.get_template(NAME).map_err(|e| describe(&e))?;
        if let Err(error) = template.render_captured_to(context, &mut output) {
            if output.text.len() >= limit {
                return Err(format!("the chat template writes more than {limit} bytes"));
            }
            return Err(describe(&error));
        }
        let text = String::from_utf8(output.text).map_err(|e| e.to_string())?;
        if !self.has_generation {
            return Ok((text, Vec::new()));
        }
        Ok(generation::split_marks(&text, &open, &close))
    }

    /// Two marks that occur in no input, so that what they enclose is certain. They are made of
    /// noncharacters, which no text should hold; where one does, the number between them grows.
    fn choose_marks(&self, variables: &str) -> (String, String) {
        let mut number = 0;
        loop {
            let body = format!("\u{fdd0}{number}\u{fdd1}");
            if !variables.contains(&body) && !self.source.contains(&body) {
                return (format!("{body}<"), format!("{body}>"));
            }
            number += 1;
        }
    }
}

fn to_value(json: serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(b),
        Json::String(text) => Value::from(text),
        Json::Array(items) => items.into_iter().map(to_value).collect(),
        Json::Object(map) => Value::from_pairs(map.into_iter().map(|(k, v)| (k, to_value(v)))),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::from(i),
            (None, Some(u)) => Value::from(u),
            (None, None) => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
    }
}

/// Collects output up to a limit, and then fails.
struct Limited {
    text: Vec<u8>,
    limit: usize,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.limit - self.text.len();
        if room == 0 && !bytes.is_empty() {
            return Err(io::Error::other("output limit"));
        }
        let n = room.min(bytes.len());
        self.text.extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The environment of transformers' chat templates. It has no loader: a template reads no file.
fn new_environment() -> Result<Environment<'static>, String> {
    let mut env = Environment::new();
    env.set_debug(true);
    env.set_recursion_limit(RECURSION_LIMIT);
    env.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|e| e.to_string())?,
    );
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(python::call_method);
    env.set_formatter(|out, state, value| {
        refuse_python_text(value)?;
        if value.kind() == ValueKind::Number && !value.is_integer() {
            let text = json::float_repr(f64::try_from(value.clone())?);
            return out.write_str(&text).map_err(Error::from);
        }
        minijinja::escape_formatter(out, state, value)
    });
    env.remove_filter("pprint"); // it prints as Python does, or nearly
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env.add_filter("tojson", tojson);
    env.add_filter(
        "trim",
        |value: &Value, chars: Option<&str>| -> Result<String, Error> {
            let text = plain_text(value)?;
            Ok(python::strip(&text, chars, true, true).to_string())
        },
    );
    env.add_filter("string", |value: &Value| plain_text(value));
    Ok(env)
}

/// Python would print such a value in its own notation (`None`, `[{'a': 1}]`), which no one wants to
/// train on, and which another language can only imitate.
fn refuse_python_text(value: &Value) -> Result<(), Error> {
    let what = match value.kind() {
        ValueKind::None => "a null value, which Python would print as the word None",
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Bytes => {
            "a list or an object, which Python would print in its own notation"
        }
        _ => return Ok(()),
    };
    let message = format!("the template prints {what} (tojson would be unambiguous)");
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn plain_text(value: &Value) -> Result<String, Error> {
    refuse_python_text(value)?;
    Ok(value.to_string())
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn strftime_now(state: &State, format: &str) -> Result<String, Error> {
    let invalid = |message| Error::new(ErrorKind::InvalidOperation, message);
    let date = state.lookup(DATE).unwrap_or_default();
    let date = Date::parse(date.as_str().unwrap_or_default()).map_err(invalid)?;
    date.strftime(format).map_err(invalid)
}

/// `json.dumps(value, ensure_ascii=False, ...)`.
fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let indent: Option<Value> = options.get("indent")?;
    let separators: Option<Value> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    json::dumps(value, ensure_ascii, indent, separators, sort_keys)
}

/// One line for a person: the template's own words, or what the engine says with its line.
fn describe(error: &Error) -> String {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    let mut deepest = error;
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref::<Raised>() {
            return format!("the chat template says: {message}");
        }
        if let Some(inner) = current.downcast_ref::<Error>() {
            deepest = inner;
        }
        cause = current.source();
    }
    if deepest.kind() == ErrorKind::OutOfFuel {
        return "the chat template does not come to an end within its limits".to_string();
    }
    let mut message = deepest.kind().to_string();
    if let Some(detail) = deepest.detail() {
        message = format!("{message}: {detail}");
    }
    match deepest.line().or(error.line()) {
        Some(line) => format!("the chat template fails at its line {line}: {message}"),
        None => format!("the chat template fails: {message}"),
    }
}
