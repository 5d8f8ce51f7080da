/* Which algorithm carries out a collective where nobody asks for one: tables of rules, the one that
 * comes with the library and those that `ringfold tune` measures (docs/TUNING.md).
 *
 * A rule holds for one collective over one kind of links, in groups of up to `ranks` ranks and for
 * calls of up to `bytes` bytes. Of the rules that hold the one with the fewest ranks counts, and of
 * those the one with the fewest bytes. Where no rule of a table holds, the library's own decides.
 *
 * Sums are to be the same bits whatever the size of the message: in groups of up to
 * RF_TUNING_ORDERED_RANKS a rule whose algorithm does not fold in rank order is passed over, unless
 * its table says any_order. This concerns allreduce and reduce_scatter.
 *
 * Thread safety: pure functions but for rf_tuning_load and rf_tuning_save, which use files. */
#ifndef RINGFOLD_TUNING_H
#define RINGFOLD_TUNING_H

#include <ringfold/error.h>
#include <ringfold/limits.h>
#include <ringfold/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* SHM: all ranks share one host's memory. TCP: any other group. */
enum rf_link { RF_LINK_SHM, RF_LINK_TCP, RF_LINK_COUNT };

enum {
    RF_TUNING_ANY_RANKS = INT32_MAX,
    RF_TUNING_ORDERED_RANKS = 16,
    RF_TUNING_TEXT = 96,         /* bytes of a text in a table, with its end */
    RF_TUNING_PATH = 1024,       /* of a table's path */
    RF_ALGORITHMS_TEXT = 128,    /* holds the names of all algorithms */
    RF_MAX_TUNING_RULES = 1024,  /* of one table */
    RF_MAX_TUNING_FILE = 1 << 20 /* bytes */
};
#define RF_TUNING_ANY_BYTES UINT64_MAX

struct rf_tuning_rule {
    enum rf_coll coll; /* not SEND, RECV */
    enum rf_link link;
    int ranks;                   /* 1 …, or RF_TUNING_ANY_RANKS */
    uint64_t bytes;              /* of `count` elements of one call, or RF_TUNING_ANY_BYTES */
    enum rf_algorithm algorithm; /* one that covers the collective. SHARED over SHM only: through
                                    the host's memory wherever that can be. HIERARCHICAL over TCP
                                    only: where the group has such hosts, else by the own table.
                                    (Between the nodes of one host it is SHARED's to choose) */

    /* Why: medians of calls of `measured_bytes`. 0: not measured. `second` is the runner-up; AUTO:
     * there was none. */
    uint64_t measured_bytes;
    double seconds, second_seconds;
    enum rf_algorithm second;
};

struct rf_tuning {
    char machine[RF_TUNING_TEXT], when[RF_TUNING_TEXT]; /* for people */
    bool any_order;
    int count;
    struct rf_tuning_rule rules[RF_MAX_TUNING_RULES];
};

/* "shm", "tcp". */
RF_API const char *rf_link_name(enum rf_link link);

/* Whether the algorithm can carry out the collective, in groups that suit it (SHARED: all but send
 * and recv; HIERARCHICAL: allreduce). */
RF_API bool rf_algorithm_covers(enum rf_coll coll, enum rf_algorithm algorithm);

/* "naive, ring and direct": those that cover it in any group. Returns `out`. */
RF_API const char *rf_algorithms_covering(enum rf_coll coll, char out[RF_ALGORITHMS_TEXT]);

/* Whether sums come out as ((0 + 1) + 2) + …, rounded once, by rank. */
RF_API bool rf_algorithm_keeps_order(enum rf_coll coll, enum rf_algorithm algorithm);

/* NULL: the library's own table. AUTO for send and recv. */
RF_API enum rf_algorithm rf_tuning_choose(const struct rf_tuning *tuning, enum rf_link link,
                                          enum rf_coll coll, int size, uint64_t bytes);

/* Appends a rule. RF_EINVAL says what is wrong with it; RF_ELIMIT. */
RF_API RF_MUST_CHECK int rf_tuning_add(struct rf_tuning *tuning, const struct rf_tuning_rule *rule,
                                       struct rf_error *err);

/* RF_EINVAL names the file, and what is wrong with it, or why it cannot be read; RF_ENOMEM. */
RF_API RF_MUST_CHECK int rf_tuning_load(const char *path, struct rf_tuning *out,
                                        struct rf_error *err);

/* The file is there whole or as it was before; folders are made. RF_EINVAL, RF_ENOMEM, RF_EIO. */
RF_API RF_MUST_CHECK int rf_tuning_save(const struct rf_tuning *tuning, const char *path,
                                        struct rf_error *err);

/* The user's own table: ringfold/tuning.json in $XDG_CONFIG_HOME or in $HOME/.config. RF_ENOTFOUND
 * where neither is set to a full path, or the path is too long. */
RF_API RF_MUST_CHECK int rf_tuning_user_path(char **environ, char out[RF_TUNING_PATH]);

#ifdef __cplusplus
}
#endif
#endif
