//! The C interface: raw pointers in, owned buffers out, every failure as a message.
//!
//! Each function returns 0, or 1 with a message in `error`. A panic counts as a failure: it is caught
//! here, and its text becomes the message.

use std::any::Any;
use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};
use std::slice;
use std::sync::Once;

use crate::template::Template;
use crate::tokenizer::Tokenizer;

/// Bytes owned by this library; see `graft_bytes_free`.
#[repr(C)]
pub struct Bytes {
    data: *mut u8,
    size: usize,
}

/// Token ids, and for each the byte range [begin, end) it covers in the text (two numbers a token), or
/// null where offsets were not asked for.
#[repr(C)]
pub struct Encoding {
    ids: *mut i32,
    offsets: *mut usize,
    size: usize,
}

/// A rendered template: its text, and the byte ranges of its generation blocks (two numbers a block).
#[repr(C)]
pub struct Rendering {
    text: Bytes,
    ranges: *mut usize,
    range_count: usize,
}

fn leak<T>(values: Vec<T>) -> *mut T {
    Box::into_raw(values.into_boxed_slice()) as *mut T
}

/// # Safety
/// `data` came from `leak` of a vector of `size` values, or is null.
unsafe fn reclaim<T>(data: *mut T, size: usize) {
    if !data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
            data, size,
        )));
    }
}

fn to_bytes(text: Vec<u8>) -> Bytes {
    let size = text.len();
    Bytes {
        data: leak(text),
        size,
    }
}

/// # Safety
/// `data` points to `size` readable bytes, or `size` is 0.
unsafe fn input<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if size == 0 {
        &[]
    } else {
        slice::from_raw_parts(data, size)
    }
}

fn utf8<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, String> {
    std::str::from_utf8(bytes)
        .map_err(|e| format!("{what} is not valid UTF-8 (byte {})", e.valid_up_to()))
}

fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|s| s.to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_string());
    format!("internal failure: {text}")
}

/// Runs `body`, and turns an error or a panic into a message in `error`.
///
/// # Safety
/// `error` is writable.
unsafe fn guarded(error: *mut Bytes, body: impl FnOnce() -> Result<(), String>) -> i32 {
    // A panic's text goes into the message, not to stderr.
    static SILENCE: Once = Once::new();
    SILENCE.call_once(|| set_hook(Box::new(|_| {})));
    let message = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(message)) => message,
        Err(payload) => panic_message(payload),
    };
    *error = to_bytes(message.into_bytes());
    1
}

/// # Safety
/// `bytes` came from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn graft_bytes_free(bytes: Bytes) {
    reclaim(bytes.data, bytes.size);
}

/// # Safety
/// `encoding` came from `graft_tokenizer_encode` and is freed once.
#[no_mangle]
pub unsafe extern "C" fn graft_encoding_free(encoding: Encoding) {
    reclaim(encoding.ids, encoding.size);
    reclaim(encoding.offsets, 2 * encoding.size);
}

/// # Safety
/// `rendering` came from `graft_template_render` and is freed once.
#[no_mangle]
pub unsafe extern "C" fn graft_rendering_free(rendering: Rendering) {
    reclaim(rendering.text.data, rendering.text.size);
    reclaim(rendering.ranges, 2 * rendering.range_count);
}

/// # Safety
/// See the header: `json` has `size` bytes, `out` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn graft_tokenizer_create(
    json: *const u8,
    size: usize,
    out: *mut *mut Tokenizer,
    error: *mut Bytes,
) -> i32 {
    guarded(error, || {
        let tokenizer = Tokenizer::from_json(input(json, size))?;
        *out = Box::into_raw(Box::new(tokenizer));
        Ok(())
    })
}

/// # Safety
/// `tokenizer` came from `graft_tokenizer_create` and is freed once.
#[no_mangle]
pub unsafe extern "C" fn graft_tokenizer_free(tokenizer: *mut Tokenizer) {
    if !tokenizer.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(tokenizer))));
    }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn graft_tokenizer_encode(
    tokenizer: *const Tokenizer,
    text: *const u8,
    size: usize,
    add_special_tokens: bool,
    with_offsets: bool,
    out: *mut Encoding,
    error: *mut Bytes,
) -> i32 {
    guarded(error, || {
        let text = utf8(input(text, size), "the text")?;
        let (ids, offsets) = (*tokenizer).encode(text, add_special_tokens, with_offsets)?;
        let size = ids.len();
        let offsets = if with_offsets {
            leak(offsets)
        } else {
            std::ptr::null_mut()
        };
        *out = Encoding {
            ids: leak(ids),
            offsets,
            size,
        };
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn graft_tokenizer_decode(
    tokenizer: *const Tokenizer,
    ids: *const i32,
    size: usize,
    skip_special_tokens: bool,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guarded(error, || {
        let ids = if size == 0 {
            &[]
        } else {
            slice::from_raw_parts(ids, size)
        };
        *out = to_bytes((*tokenizer).decode(ids, skip_special_tokens)?.into_bytes());
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn graft_tokenizer_describe(
    tokenizer: *const Tokenizer,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guarded(error, || {
        *out = to_bytes((*tokenizer).describe()?.into_bytes());
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn graft_tokenizer_token_to_id(
    tokenizer: *const Tokenizer,
    token: *const u8,
    size: usize,
    out: *mut i32,
    error: *mut Bytes,
) -> i32 {
    guarded(error, || {
        let token = utf8(input(token, size), "the token")?;
        *out = (*tokenizer).token_to_id(token).unwrap_or(-1);
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn graft_tokenizer_id_to_token(
    tokenizer: *const Tokenizer,
    id: i32,
    out: *mut Bytes,
    found: *mut bool,
    error: *mut Bytes,
) -> i32 {
    guarded(error, || {
        let token = (*tokenizer).id_to_token(id);
        *found = token.is_some();
        *out = to_bytes(token.unwrap_or_default().into_bytes());
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn graft_template_create(
    source: *const u8,
    size: usize,
    out: *mut *mut Template,
    has_generation: *mut bool,
    error: *mut Bytes,
) -> i32 {
    guarded(error, || {
        let template = Template::compile(utf8(input(source, size), "the template")?)?;
        *has_generation = template.has_generation();
        *out = Box::into_raw(Box::new(template));
        Ok(())
    })
}

/// # Safety
/// `template` came from `graft_template_create` and is freed once.
#[no_mangle]
pub unsafe extern "C" fn graft_template_free(template: *mut Template) {
    if !template.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(template))));
    }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn graft_template_render(
    template: *const Template,
    variables: *const u8,
    variables_size: usize,
    date: *const u8,
    date_size: usize,
    out: *mut Rendering,
    error: *mut Bytes,
) -> i32 {
    guarded(error, || {
        let variables = utf8(input(variables, variables_size), "the conversation")?;
        let date = utf8(input(date, date_size), "the date")?;
        let (text, ranges) = (*template).render(variables, date)?;
        let flat: Vec<usize> = ranges.iter().flat_map(|r| [r.start, r.end]).collect();
        let range_count = ranges.len();
        *out = Rendering {
            text: to_bytes(text.into_bytes()),
            ranges: leak(flat),
            range_count,
        };
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn graft_parquet_to_jsonl(
    path: *const u8,
    size: usize,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guarded(error, || {
        *out = to_bytes(crate::parquet::to_jsonl(utf8(
            input(path, size),
            "the path",
        )?)?);
        Ok(())
    })
}
