/* The choice of an algorithm from a table of rules, and tables as text. What tables are is told in
 * <ringfold/tuning.h>. Pure: depends only on what all ranks agree on. */
#ifndef RF_COLL_CHOOSE_H
#define RF_COLL_CHOOSE_H

#include <ringfold/tuning.h>

/* Why it is the one. */
struct rf__choice {
    enum rf_algorithm algorithm; /* AUTO: no collective */
    const struct rf_tuning_rule *rule;
    bool is_default; /* the rule is the library's own */
    uint64_t above;  /* the border of the rule below it, of the same table and ranks; 0: none */
};

/* `tuning` NULL: the library's own table. */
struct rf__choice rf__choose(const struct rf_tuning *tuning, enum rf_link link, enum rf_coll coll,
                             int size, uint64_t bytes);

/* The library's own rules. */
const struct rf_tuning_rule *rf__default_rules(size_t *count);

/* Equal for tables that choose by the same rules, whoever measured them and in whatever order they
 * stand; 0 for NULL and for a table without rules. */
uint64_t rf__tuning_digest(const struct rf_tuning *tuning);

/* "allreduce of 64 KiB on 4 ranks over tcp: direct (table: default, up to 16 ranks, above 8 KiB)".
 * `used` is what the call used, `asked` what was asked for (AUTO: nothing), `table` the name of the
 * table, `levels` says why a group takes HIERARCHICAL by itself. Cut where it does not fit. */
void rf__choice_text(char *out, size_t room, const struct rf_tuning *tuning, const char *table,
                     enum rf_link link, enum rf_coll coll, int size, uint64_t bytes,
                     enum rf_algorithm asked, enum rf_algorithm used, const char *levels);

/* JSON (docs/TUNING.md). Decoding: RF_EINVAL says what is wrong, RF_ENOMEM; *out is unspecified
 * then. Encoding: *text is the caller's, for rf__free. */
int rf__tuning_decode(const void *bytes, size_t count, struct rf_tuning *out, struct rf_error *err);
int rf__tuning_encode(const struct rf_tuning *tuning, char **text, size_t *length,
                      struct rf_error *err);

#endif
