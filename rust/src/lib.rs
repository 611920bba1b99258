//! The Rust side of graft's text and data layers: tokenizers, chat templates and Parquet files, behind
//! the C interface of `include/graft_rust.h`.
//!
//! Nothing here prints, reads the clock or opens a file it was not told to open, and no panic crosses
//! the C interface: `ffi.rs` turns every failure into a message.

mod date;
mod ffi;
mod generation;
mod json;
mod parquet;
mod python;
mod template;
mod tokenizer;
