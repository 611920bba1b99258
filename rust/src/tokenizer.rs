//! Tokenizers from `tokenizer.json`.

use serde_json::json;

/// A tokenizer that neither truncates nor pads, whatever its file says: both are the caller's business,
/// and a truncation buried in a file would lose text in silence.
pub struct Tokenizer(tokenizers::Tokenizer);

type Tokens = (Vec<i32>, Vec<usize>);

impl Tokenizer {
    pub fn from_json(json: &[u8]) -> Result<Tokenizer, String> {
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(json).map_err(|e| e.to_string())?;
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        let largest = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
        if largest > i32::MAX as u32 {
            return Err(format!("token id {largest} does not fit in 31 bits"));
        }
        Ok(Tokenizer(tokenizer))
    }

    /// Ids, and (where asked for) two byte offsets a token; a token made by the post-processor covers
    /// no text.
    pub fn encode(&self, text: &str, special: bool, offsets: bool) -> Result<Tokens, String> {
        let encoding = if offsets {
            self.0.encode(text, special)
        } else {
            self.0.encode_fast(text, special)
        };
        let encoding = encoding.map_err(|e| e.to_string())?;
        let ids = encoding.get_ids().iter().map(|&id| id as i32).collect();
        let flat = if offsets {
            encoding
                .get_offsets()
                .iter()
                .flat_map(|&(begin, end)| [begin, end])
                .collect()
        } else {
            Vec::new()
        };
        Ok((ids, flat))
    }

    pub fn decode(&self, ids: &[i32], skip_special: bool) -> Result<String, String> {
        let ids: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
        self.0.decode(&ids, skip_special).map_err(|e| e.to_string())
    }

    pub fn token_to_id(&self, token: &str) -> Option<i32> {
        self.0.token_to_id(token).map(|id| id as i32)
    }

    pub fn id_to_token(&self, id: i32) -> Option<String> {
        self.0.id_to_token(u32::try_from(id).ok()?)
    }

    /// `{"vocabulary_size", "largest_id", "added": [{"id", "content", "special"}]}`, added tokens in
    /// the order of their ids.
    pub fn describe(&self) -> Result<String, String> {
        let mut added: Vec<_> = self.0.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        let added: Vec<_> = added
            .iter()
            .map(|(id, t)| json!({"id": id, "content": t.content, "special": t.special}))
            .collect();
        let largest = self
            .0
            .get_vocab(true)
            .into_values()
            .max()
            .map_or(-1, i64::from);
        let size = self.0.get_vocab_size(true);
        Ok(json!({"vocabulary_size": size, "largest_id": largest, "added": added}).to_string())
    }
}
