//! `{% generation %}` blocks, which mark the text a model is to learn.
//!
//! The template engine has no such tag. It is rewritten here into tags that it has: a scope, as the
//! block is one, with a print of a mark before and after its body. The rewritten tag begins and ends with
//! a block tag as the original does, so that the rules for whitespace around block tags still hold; and
//! it adds no line, so that line numbers in messages still hold. `split_marks` then takes the marks out
//! of the rendered text again.

use std::ops::Range;

pub const OPEN: &str = "graft_generation_open";
pub const CLOSE: &str = "graft_generation_close";

/// The source with its generation tags rewritten, and whether there were any. A tag or expression longer
/// than `limit` bytes is refused.
pub fn rewrite(source: &str, limit: usize) -> Result<(String, bool), String> {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut depth = 0usize;
    let mut found = false;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = construct_length(rest);
        let construct = &rest[..length];
        if length > limit && !construct.starts_with("{#") {
            return Err(format!(
                "a tag or expression of the template is longer than {limit} bytes"
            ));
        }
        rest = &rest[length..];
        let Some((left, name, right)) = parse_tag(construct) else {
            out.push_str(construct);
            continue;
        };
        match name {
            "generation" => {
                if depth > 0 {
                    return Err("a {% generation %} block stands inside another one".to_string());
                }
                depth += 1;
                found = true;
                out.push_str(&format!(
                    "{{%{left} with %}}{{{{ {OPEN} }}}}{{% if true {right}%}}"
                ));
            }
            "endgeneration" => {
                depth = depth
                    .checked_sub(1)
                    .ok_or("{% endgeneration %} without a beginning")?;
                out.push_str(&format!(
                    "{{%{left} endif %}}{{{{ {CLOSE} }}}}{{% endwith {right}%}}"
                ));
            }
            "raw" => {
                // Nothing inside is a tag; the engine itself complains if it does not end.
                out.push_str(construct);
                let end = end_of_raw(rest);
                out.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            _ => out.push_str(construct),
        }
    }
    out.push_str(rest);
    if depth > 0 {
        return Err("{% generation %} without an {% endgeneration %}".to_string());
    }
    Ok((out, found))
}

/// The length of the tag, expression or comment that `text` begins with; 1 where it is a plain brace.
fn construct_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let close: &[u8] = match bytes.get(1) {
        Some(b'%') => b"%}",
        Some(b'{') => b"}}",
        Some(b'#') => return text[2..].find("#}").map_or(text.len(), |end| end + 4),
        _ => return 1,
    };
    let mut i = 2;
    let mut quote = None;
    while i < bytes.len() {
        match quote {
            Some(_) if bytes[i] == b'\\' => i += 1,
            Some(q) if bytes[i] == q => quote = None,
            Some(_) => {}
            None if bytes[i..].starts_with(close) => return i + 2,
            None if bytes[i] == b'"' || bytes[i] == b'\'' => quote = Some(bytes[i]),
            None => {}
        }
        i += 1;
    }
    text.len()
}

/// Splits `{%- name +%}` into its whitespace signs and its name. None for what is no such tag.
fn parse_tag(construct: &str) -> Option<(&str, &str, &str)> {
    let inner = construct.strip_prefix("{%")?.strip_suffix("%}")?;
    let after = inner.trim_start_matches(['-', '+']);
    let left = &inner[..inner.len() - after.len()];
    let name = after.trim_end_matches(['-', '+']);
    let right = &after[name.len()..];
    Some((left, name.trim(), right))
}

/// Where the `{% endraw %}` of a raw block begins in `text`, the rest after `{% raw %}`.
fn end_of_raw(text: &str) -> usize {
    let mut from = 0;
    while let Some(at) = text[from..].find("{%") {
        let begin = from + at;
        let tag = &text[begin..];
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        if matches!(parse_tag(&tag[..end]), Some((_, "endraw", _))) {
            return begin;
        }
        from = begin + 2;
    }
    text.len()
}

/// The text without its marks, and the byte ranges that they enclosed, in order.
pub fn split_marks(text: &str, open: &str, close: &str) -> (String, Vec<Range<usize>>) {
    let mut out = String::with_capacity(text.len());
    let mut ranges = Vec::new();
    let mut rest = text;
    let mut begin = None;
    loop {
        let next_open = rest.find(open).unwrap_or(usize::MAX);
        let next_close = rest.find(close).unwrap_or(usize::MAX);
        let at = next_open.min(next_close);
        if at == usize::MAX {
            out.push_str(rest);
            return (out, ranges);
        }
        out.push_str(&rest[..at]);
        if next_open < next_close {
            begin = Some(out.len());
            rest = &rest[at + open.len()..];
        } else {
            // A template that prints a block twice, or cuts a piece out of it, loses only that block.
            if let Some(begin) = begin.take() {
                ranges.push(begin..out.len());
            }
            rest = &rest[at + close.len()..];
        }
    }
}
