/* Cutting a text into the pieces that GPT-2's byte pairs stay within: a contraction's ending, a
 * word, a number or other signs, each with at most one space before it, and white space
 * (Radford et al. 2019, section 2.2). The classes are Unicode's: letters L, numbers N, and the
 * property White_Space; of the version that PCRE2 has (14 with 10.42). Bytes that are not UTF-8 are
 * pieces of their own. */
#ifndef RF_DATA_PIECES_H
#define RF_DATA_PIECES_H

#include <ringfold/error.h>
#include <stdbool.h>
#include <stddef.h>

struct rf__pieces;

int rf__pieces_create(struct rf__pieces **out, struct rf_error *err);
void rf__pieces_destroy(struct rf__pieces *pieces);

/* Tells of the pieces of the text from the front: each byte is in exactly one. Where more of it
 * follows (`is_last` is not set) those are left that it could change; *used is how far it came.
 * What `each` returns other than 0 ends it and is returned. */
int rf__pieces_split(struct rf__pieces *pieces, const unsigned char *text, size_t count,
                     bool is_last, size_t *used,
                     int (*each)(void *context, const unsigned char *piece, size_t count,
                                 struct rf_error *err),
                     void *context, struct rf_error *err);

#endif
