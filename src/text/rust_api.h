#ifndef GRAFT_TEXT_RUST_API_H_
#define GRAFT_TEXT_RUST_API_H_
/* The C interface of the Rust library in rust/: tokenizers, chat templates, Parquet.
 *
 * Every call that can fail returns 0, or 1 with a message in *error, and then writes nothing else.
 * What a call gives is owned by the library and given back with the matching _free, a message
 * included. Texts are UTF-8 with a length, without a terminating zero. Handles are immutable: any
 * number of threads may use one at a time. No call prints, and none lets a panic out. C++ code uses
 * rust_call.h instead. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct graft_tokenizer graft_tokenizer;
typedef struct graft_template graft_template;

typedef struct {
  char* data;
  size_t size;
} graft_bytes;

/* `size` token ids; `offsets` is null, or holds two numbers a token: the bytes [begin, end) it
 * covers. */
typedef struct {
  int32_t* ids;
  size_t* offsets;
  size_t size;
} graft_encoding;

/* `ranges` holds two numbers a generation block: the bytes [begin, end) of the text that it wrote.
 */
typedef struct {
  graft_bytes text;
  size_t* ranges;
  size_t range_count;
} graft_rendering;

void graft_bytes_free(graft_bytes bytes);
void graft_encoding_free(graft_encoding encoding);
void graft_rendering_free(graft_rendering rendering);

/* From the text of a tokenizer.json. Its truncation and padding are switched off. */
int graft_tokenizer_create(const char* json, size_t size, graft_tokenizer** out,
                           graft_bytes* error);
void graft_tokenizer_free(graft_tokenizer* tokenizer);
int graft_tokenizer_encode(const graft_tokenizer* tokenizer, const char* text, size_t size,
                           bool add_special_tokens, bool with_offsets, graft_encoding* out,
                           graft_bytes* error);
int graft_tokenizer_decode(const graft_tokenizer* tokenizer, const int32_t* ids, size_t size,
                           bool skip_special_tokens, graft_bytes* out, graft_bytes* error);
/* JSON: {"vocabulary_size", "largest_id", "added": [{"id", "content", "special"}]}. */
int graft_tokenizer_describe(const graft_tokenizer* tokenizer, graft_bytes* out,
                             graft_bytes* error);
/* *out is -1 where there is no such token. */
int graft_tokenizer_token_to_id(const graft_tokenizer* tokenizer, const char* token, size_t size,
                                int32_t* out, graft_bytes* error);
int graft_tokenizer_id_to_token(const graft_tokenizer* tokenizer, int32_t id, graft_bytes* out,
                                bool* found, graft_bytes* error);

/* *has_generation tells whether the template has {% generation %} blocks. */
int graft_template_create(const char* source, size_t size, graft_template** out,
                          bool* has_generation, graft_bytes* error);
void graft_template_free(graft_template* chat_template);
/* `variables` is a JSON object, `date` (YYYY-MM-DD) the day that strftime_now tells. Work, depth
 * and output are limited; there is no access to files. */
int graft_template_render(const graft_template* chat_template, const char* variables,
                          size_t variables_size, const char* date, size_t date_size,
                          graft_rendering* out, graft_bytes* error);

/* The rows of a Parquet file in order, each a JSON object on a line of its own. */
int graft_parquet_to_jsonl(const char* path, size_t size, graft_bytes* out, graft_bytes* error);

#ifdef __cplusplus
}
#endif

#endif /* GRAFT_TEXT_RUST_API_H_ */
