#pragma once
// Tokenizers from the metadata of GGUF files, written as the text of a tokenizer.json.
//
// Two kinds exist there. `gpt2` is byte-level BPE with merges, whose `pre` key names the rule by
// which a text is first split; the same merges with another rule give other ids, so an unknown name
// is refused. `llama` and the Gemma kinds are SentencePiece BPE: a score for each token instead of
// merges, and tokens for single bytes. Other kinds (WordPiece, Unigram, ...) are refused by name.
//
//   const GgufTokenizer description = read_gguf_tokenizer(GgufFile::open("model.gguf"));
//   const Tokenizer tokenizer = Tokenizer::from_json(tokenizer_json(description), "model.gguf");
//
// Source: the GGUF specification (ggml), `tokenizer.ggml.*`.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace graft {

class GgufFile;

struct GgufTokenizer {
  std::string model;                // "gpt2", "llama", ...
  std::string pre;                  // of gpt2: "smollm", "llama-bpe", ...
  std::vector<std::string> tokens;  // by id
  std::vector<int32_t>
      token_types;            // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  std::vector<float> scores;  // of SentencePiece
  std::vector<std::string> merges;  // of gpt2: "left right", in order
  std::optional<int32_t> bos_id, eos_id, eot_id, pad_id, unk_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
  std::string chat_template;  // empty if there is none
  std::string where;          // names the file in errors
};

GgufTokenizer read_gguf_tokenizer(const GgufFile& file);

// Whether encoding with special tokens puts a beginning of sequence first, as the metadata says or
// as is usual for the kind.
bool adds_bos(const GgufTokenizer& description);

// The `pre` under which files name a rule of splitting: these patterns one after the other, whether
// a word that is a token is taken whole, and whether Unicode NFC comes first.
std::optional<std::string> find_pre_tokenizer_name(const std::vector<std::string>& patterns,
                                                   bool whole_words_first, bool composes);
std::string_view gpt2_split_pattern();  // what a ByteLevel step of tokenizer.json splits by

// Raises Error, naming it, for an unknown kind or `pre`, and for tables that do not fit together.
std::string tokenizer_json(const GgufTokenizer& description);

}  // namespace graft
