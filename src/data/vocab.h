/* Tokenizers beside a model: GPT-2's byte pairs in the form of Hugging Face's tools (vocab.json,
 * merges.txt), and where in a folder a tokenizer is looked for.
 *
 * In vocab.json each byte of a token stands as one character: those that can be seen as
 * themselves, the others, in their order, as U+0100 and on. Numbers are ranks, and <|endoftext|>
 * is behind them. merges.txt tells which two tokens each of more than a byte is made of, in the
 * order of ranks; so the ranks alone say all of it. */
#ifndef RF_DATA_VOCAB_H
#define RF_DATA_VOCAB_H

#include "data/tokenizer.h"
#include "io/blob.h"

#define RF__VOCAB_FILE  "vocab.json"
#define RF__MERGES_FILE "merges.txt"
#define RF__VOCAB_OWN   "ringfold" /* the folder within, of a tokenizer that these cannot tell */

/* The content of both; `merges` NULL: it is not known. `name` is vocab.json's, for the report.
 * RF_EDATA; RF_EUNSUPPORTED: numbers are not ranks, or there are further tokens. */
int rf__vocab_parse(const char *json, size_t bytes, const char *merges, size_t merges_bytes,
                    const char *name, struct rf__tokenizer **out, struct rf_error *err);

/* Both, given back by rf__free, of a gpt2 one. RF_EUNSUPPORTED: its ranks are not those of merges.
 */
int rf__vocab_texts(const struct rf__tokenizer *tokenizer, char **json, char **merges,
                    struct rf_error *err);

/* The tokenizer of a folder: that of a model, or one of tokens. RF_ENOTFOUND where there is none.
 */
int rf__vocab_load(struct rf__blobs *files, const char *folder, struct rf__tokenizer **out,
                   struct rf_error *err);

/* Writes it for rf__vocab_load; names in `to` are relative to the folder, and are some of
 * RF__VOCAB_SAVED. RF_ECONFLICT where one of these is there; on any error nothing is left of those
 * that were made here. */
#define RF__VOCAB_SAVED                                                                            \
    { RF__VOCAB_FILE, RF__MERGES_FILE, RF__VOCAB_OWN "/tokenizer.json" }
int rf__vocab_save(const struct rf__tokenizer *tokenizer, struct rf__blobs *to,
                   struct rf_error *err);

/* Removes what rf__vocab_save has written. */
void rf__vocab_remove(const struct rf__tokenizer *tokenizer, struct rf__blobs *to);

#endif
