/* Inside the library: what an open checkpoint consists of, both borrowed until it is closed; and
 * its tokenizer. */
#ifndef RF_API_CKPT_H
#define RF_API_CKPT_H

#include "ckpt/checkpoint.h"

#include <ringfold/ckpt.h>

struct rf__tokenizer;

struct rf__blobs *rf__ckpt_blobs(const struct rf_ckpt *ckpt);
const struct rf__ckpt_manifest *rf__ckpt_manifest(const struct rf_ckpt *ckpt);

/* The tokenizer of the folder `data` or, where that is NULL, of the one that the checkpoint's
 * configuration names. RF_ENOTFOUND where there is none. */
int rf__ckpt_tokenizer(const struct rf_ckpt *ckpt, const char *data, struct rf__tokenizer **out,
                       struct rf_error *err);

/* Whether a model of so many tokens can take what the tokenizer makes: RF_EDATA where not. Byte
 * pairs may be fewer: some models round their vocabulary up. */
int rf__tokenizer_fits(const struct rf__tokenizer *tokenizer, int vocabulary, struct rf_error *err);

#endif
