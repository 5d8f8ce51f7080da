/* The gpt model when it writes: one forward pass over what is new, position by position, with the
 * keys and values of what came before kept. It holds parameters and that memory, and none of what
 * training needs.
 *
 * Positions are counted from the beginning of a window of `context` tokens. When that is full, the
 * newest half of it becomes the beginning of the next one and is computed anew, so that a token
 * costs the same on average however long the text is.
 *
 * The same tokens, cut into the same calls, give the same bits, for a thread count and a set of
 * instructions. Thread safety: one thread a generator. */
#ifndef RF_NN_GENERATE_H
#define RF_NN_GENERATE_H

#include "base/rng.h"
#include "nn/gpt.h"

struct rf__generator;

/* Dropout and compute are not looked at. RF_EINVAL names a size that cannot be, RF_ENOMEM. */
int rf__generator_create(const struct rf__gpt_options *options, struct rf__generator **out,
                         struct rf_error *err);
void rf__generator_destroy(struct rf__generator *generator);

/* How many parameters the sizes make, without making them; RF_EINVAL as above. */
int rf__generator_parameters(const struct rf__gpt_options *options, uint64_t *out,
                             struct rf_error *err);

/* The tensors of gpt.h, all zero at first: to be filled before the first token. */
int rf__generator_tensors(const struct rf__generator *generator);
const struct rf__tensor *rf__generator_tensor(const struct rf__generator *generator, int index);

/* The text goes on with `count` >= 1 tokens. *logits: what the last of them makes of each token to
 * come, `vocabulary` numbers, the generator's, until the next call. RF_EDATA: a token is at or
 * above the vocabulary, and nothing was taken. */
int rf__generator_feed(struct rf__generator *generator, const uint32_t *tokens, size_t count,
                       const float **logits, struct rf_error *err);

/* The text ends; the next feed begins another. */
void rf__generator_reset(struct rf__generator *generator);

/* How a token is drawn. */
struct rf__draw {
    double temperature; /* 0: the likeliest one; among equals the first */
    size_t top_k;       /* of how many of the likeliest; 0: of all */
    uint32_t *room;     /* for top_k numbers, where that is not 0 */
};

/* One of `count` >= 1, or -1 where the logits are not all numbers. */
int64_t rf__draw(const struct rf__draw *draw, const float *logits, size_t count,
                 struct rf__rng *rng);

#endif
