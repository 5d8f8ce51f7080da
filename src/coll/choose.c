/* Rules, and the choice by them: the library's own table, finding the rule that counts, saying why.
 *
 * Each border of the own table states where it comes from. "promise": sums in rank order for groups
 * of up to 16. "links": how many connections a rank should have. "model": what `ringfold plan` says
 * for its standard network (20 us, 10 Gbit/s). "measured": docs/NUMBERS.md. */
#include "coll/choose.h"

#include "base/assert.h"
#include "base/digest.h"
#include "base/status.h"
#include "coll/schedule.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define KIB UINT64_C(1024)
#define ANY RF_TUNING_ANY_BYTES
#define RULE(coll_, link_, ranks_, bytes_, algorithm_)                                             \
    {                                                                                              \
        .coll = RF_COLL_##coll_, .link = RF_LINK_##link_, .ranks = (ranks_), .bytes = (bytes_),    \
        .algorithm = RF_ALGORITHM_##algorithm_                                                     \
    }

enum { MANY = RF_TUNING_ANY_RANKS, MOST_SECONDS = 1000000 };

static const struct rf_tuning_rule own[] = {
    /* promise, links: both fold in rank order, and up to 16 ranks each has room for a connection
     * with every other. model: the naive exchange is ahead up to 24 KiB on 16 and 8 ranks, 40 KiB
     * on 4; with a tenth of the latency up to a tenth of that. 8 KiB lies between. */
    RULE(ALLREDUCE, TCP, 16, 8 * KIB, NAIVE),
    /* measured, 2 ranks over loopback: both send the same bytes, and one latency less is ahead up
     * to 512 KiB (15 against 33 us at 8 KiB, 29 against 48 at 64 KiB, 130 against 172 at 512 KiB).
     */
    RULE(ALLREDUCE, TCP, 2, 512 * KIB, NAIVE),
    RULE(ALLREDUCE, TCP, 2, ANY, DIRECT),
    RULE(ALLREDUCE, TCP, 16, ANY, DIRECT),
    /* model: they cross at 32 KiB on 32 ranks, a little earlier on more. links: to the ring, which
     * has two, from 1 MiB on, though the model has it level at 16 MiB (32 ranks) only. */
    RULE(ALLREDUCE, TCP, MANY, 32 * KIB, RECURSIVE_DOUBLING),
    RULE(ALLREDUCE, TCP, MANY, 1024 * KIB, RABENSEIFNER),
    RULE(ALLREDUCE, TCP, MANY, ANY, RING),
    /* promise, links */
    RULE(REDUCE_SCATTER, TCP, 16, ANY, DIRECT),
    RULE(REDUCE_SCATTER, TCP, MANY, ANY, RING),
    /* links */
    RULE(ALL_GATHER, TCP, 16, ANY, DIRECT),
    RULE(ALL_GATHER, TCP, MANY, ANY, RING),
    /* model: log2 n latencies, and the root sends log2 n times the data instead of n - 1 times. */
    RULE(BROADCAST, TCP, MANY, ANY, TREE),
    RULE(REDUCE, TCP, MANY, ANY, TREE),
    /* a judgement: the tree saves the root latencies (by the model from 4 ranks on), and has the
     * data travel more than once, through ranks that may be busy. */
    RULE(GATHER, TCP, 8, ANY, NAIVE),
    RULE(GATHER, TCP, MANY, ANY, TREE),
    RULE(SCATTER, TCP, 8, ANY, NAIVE),
    RULE(SCATTER, TCP, MANY, ANY, TREE),
    /* there is no other */
    RULE(ALL_TO_ALL, TCP, MANY, ANY, NAIVE),
    RULE(BARRIER, TCP, MANY, ANY, RECURSIVE_DOUBLING),
    /* measured: the host's memory before any message. */
    RULE(ALLREDUCE, SHM, MANY, ANY, SHARED),
    RULE(REDUCE_SCATTER, SHM, MANY, ANY, SHARED),
    RULE(ALL_GATHER, SHM, MANY, ANY, SHARED),
    RULE(BROADCAST, SHM, MANY, ANY, SHARED),
    RULE(REDUCE, SHM, MANY, ANY, SHARED),
    RULE(GATHER, SHM, MANY, ANY, SHARED),
    RULE(SCATTER, SHM, MANY, ANY, SHARED),
    RULE(ALL_TO_ALL, SHM, MANY, ANY, SHARED),
    RULE(BARRIER, SHM, MANY, ANY, SHARED),
};

const struct rf_tuning_rule *rf__default_rules(size_t *count) {
    *count = sizeof own / sizeof own[0];
    return own;
}

const char *rf_link_name(enum rf_link link) {
    return link == RF_LINK_SHM ? "shm" : link == RF_LINK_TCP ? "tcp" : "?";
}

static bool is_message(enum rf_coll coll) {
    return coll == RF_COLL_SEND || coll == RF_COLL_RECV || (unsigned)coll >= RF_COLL_COUNT;
}

bool rf_algorithm_covers(enum rf_coll coll, enum rf_algorithm algorithm) {
    if (algorithm == RF_ALGORITHM_HIERARCHICAL) {
        return coll == RF_COLL_ALLREDUCE;
    }
    return algorithm == RF_ALGORITHM_SHARED ? !is_message(coll)
                                            : rf__schedule_covers(coll, algorithm);
}

const char *rf_algorithms_covering(enum rf_coll coll, char out[RF_ALGORITHMS_TEXT]) {
    int left = 0;
    size_t at = 0;

    for (int a = 0; a < RF_ALGORITHM_COUNT; a++) {
        left += rf__schedule_covers(coll, (enum rf_algorithm)a);
    }
    snprintf(out, RF_ALGORITHMS_TEXT, left ? "" : "none");
    for (int a = 0; a < RF_ALGORITHM_COUNT && at < RF_ALGORITHMS_TEXT; a++) {
        if (rf__schedule_covers(coll, (enum rf_algorithm)a)) {
            left--;
            at += (size_t)snprintf(out + at, RF_ALGORITHMS_TEXT - at, "%s%s",
                                   rf_algorithm_name((enum rf_algorithm)a),
                                   left > 1    ? ", "
                                   : left == 1 ? " and "
                                               : "");
        }
    }
    return out;
}

bool rf_algorithm_keeps_order(enum rf_coll coll, enum rf_algorithm algorithm) {
    switch (algorithm) {
    case RF_ALGORITHM_NAIVE:
    case RF_ALGORITHM_DIRECT:
    case RF_ALGORITHM_REDUCE_BROADCAST:
    case RF_ALGORITHM_SHARED:
    case RF_ALGORITHM_HIERARCHICAL:
        return true;
    case RF_ALGORITHM_RING:
    case RF_ALGORITHM_RECURSIVE_DOUBLING:
    case RF_ALGORITHM_RABENSEIFNER:
    case RF_ALGORITHM_TREE:
    case RF_ALGORITHM_AUTO:
    case RF_ALGORITHM_COUNT:
        break;
    }
    return coll != RF_COLL_ALLREDUCE && coll != RF_COLL_REDUCE && coll != RF_COLL_REDUCE_SCATTER;
}

/* The rule that counts, or NULL. */
static const struct rf_tuning_rule *find(const struct rf_tuning_rule *rules, size_t count,
                                         enum rf_link link, enum rf_coll coll, int size,
                                         uint64_t bytes) {
    const struct rf_tuning_rule *best = NULL;

    for (size_t i = 0; i < count; i++) {
        const struct rf_tuning_rule *rule = &rules[i];
        if (rule->coll != coll || rule->link != link || rule->ranks < size || rule->bytes < bytes) {
            continue;
        }
        if (!best || rule->ranks < best->ranks ||
            (rule->ranks == best->ranks && rule->bytes < best->bytes)) {
            best = rule;
        }
    }
    return best;
}

static uint64_t border_below(const struct rf_tuning_rule *rules, size_t count,
                             const struct rf_tuning_rule *rule) {
    uint64_t above = 0;

    for (size_t i = 0; i < count; i++) {
        const struct rf_tuning_rule *other = &rules[i];
        if (other->coll == rule->coll && other->link == rule->link && other->ranks == rule->ranks &&
            other->bytes < rule->bytes && other->bytes > above) {
            above = other->bytes;
        }
    }
    return above;
}

/* Only sums over all ranks are promised to be the same bits; a reduce to one rank is not. */
static bool breaks_promise(const struct rf_tuning *tuning, const struct rf_tuning_rule *rule,
                           int size) {
    return !tuning->any_order && size <= RF_TUNING_ORDERED_RANKS && rule->coll != RF_COLL_REDUCE &&
           !rf_algorithm_keeps_order(rule->coll, rule->algorithm);
}

struct rf__choice rf__choose(const struct rf_tuning *tuning, enum rf_link link, enum rf_coll coll,
                             int size, uint64_t bytes) {
    struct rf__choice choice = {.algorithm = RF_ALGORITHM_AUTO};
    const struct rf_tuning_rule *rules = tuning ? tuning->rules : NULL;
    size_t count = tuning ? (size_t)tuning->count : 0;

    if (is_message(coll)) {
        return choice;
    }
    choice.rule = find(rules, count, link, coll, size, bytes);
    if (!choice.rule || breaks_promise(tuning, choice.rule, size)) {
        rules = rf__default_rules(&count);
        choice.rule = find(rules, count, link, coll, size, bytes);
        choice.is_default = true;
    }
    RF_ASSERT(choice.rule);
    choice.algorithm = choice.rule->algorithm;
    choice.above = border_below(rules, count, choice.rule);
    return choice;
}

enum rf_algorithm rf_tuning_choose(const struct rf_tuning *tuning, enum rf_link link,
                                   enum rf_coll coll, int size, uint64_t bytes) {
    return rf__choose(tuning, link, coll, size, bytes).algorithm;
}

enum rf_algorithm rf__schedule_choose(enum rf_coll coll, int size, size_t bytes) {
    return rf__choose(NULL, RF_LINK_TCP, coll, size, bytes).algorithm;
}

/* -------- tables -------- */

int rf_tuning_add(struct rf_tuning *tuning, const struct rf_tuning_rule *rule,
                  struct rf_error *err) {
    char names[RF_ALGORITHMS_TEXT];

    if (is_message(rule->coll) || (unsigned)rule->link >= RF_LINK_COUNT) {
        return rf__fail(err, RF_EINVAL, 0, "a rule for a collective or a link that does not exist");
    }
    if (rule->ranks < 1) {
        return rf__fail(err, RF_EINVAL, 0, "a rule for %d ranks", rule->ranks);
    }
    if ((rule->bytes > INT64_MAX && rule->bytes != ANY) || rule->measured_bytes > INT64_MAX ||
        (unsigned)rule->second >= RF_ALGORITHM_COUNT ||
        !(rule->seconds >= 0 && rule->seconds < MOST_SECONDS) ||
        !(rule->second_seconds >= 0 && rule->second_seconds < MOST_SECONDS)) {
        return rf__fail(err, RF_EINVAL, 0, "a rule with a size or a time that cannot be");
    }
    if (rule->algorithm == RF_ALGORITHM_SHARED && rule->link != RF_LINK_SHM) {
        return rf__fail(err, RF_EINVAL, 0, "shared needs one host's memory, not %s",
                        rf_link_name(rule->link));
    }
    if (rule->algorithm == RF_ALGORITHM_HIERARCHICAL && rule->link != RF_LINK_TCP) {
        return rf__fail(err, RF_EINVAL, 0, "hierarchical is for several hosts, not %s",
                        rf_link_name(rule->link));
    }
    if (!rf_algorithm_covers(rule->coll, rule->algorithm)) {
        return rf__fail(err, RF_EINVAL, 0, "algorithm %s does not cover %s: %s can",
                        rf_algorithm_name(rule->algorithm), rf_coll_name(rule->coll),
                        rf_algorithms_covering(rule->coll, names));
    }
    for (int i = 0; i < tuning->count; i++) {
        const struct rf_tuning_rule *other = &tuning->rules[i];
        if (other->coll == rule->coll && other->link == rule->link && other->ranks == rule->ranks &&
            other->bytes == rule->bytes) {
            return rf__fail(err, RF_EINVAL, 0, "two rules for the same ranks and bytes of %s",
                            rf_coll_name(rule->coll));
        }
    }
    if (tuning->count >= RF_MAX_TUNING_RULES) {
        return rf__fail(err, RF_ELIMIT, 0, "a table of more than %d rules", RF_MAX_TUNING_RULES);
    }
    tuning->rules[tuning->count++] = *rule;
    return 0;
}

uint64_t rf__tuning_digest(const struct rf_tuning *tuning) {
    uint64_t sum = 0;

    if (!tuning || !tuning->count) {
        return 0;
    }
    for (int i = 0; i < tuning->count; i++) { /* a sum: rules are unlike each other, in any order */
        const struct rf_tuning_rule *rule = &tuning->rules[i];
        uint64_t digest = rf__digest_mix((uint64_t)rule->coll, (uint64_t)rule->link);
        digest = rf__digest_mix(digest, (uint64_t)rule->ranks);
        digest = rf__digest_mix(digest, rule->bytes);
        sum += rf__digest_mix(digest, (uint64_t)rule->algorithm);
    }
    sum = rf__digest_mix(sum, tuning->any_order);
    return sum ? sum : 1;
}

/* -------- for people -------- */

static const char *bytes_text(char out[32], uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;

    while (unit < 4 && bytes >= KIB && bytes % KIB == 0) {
        bytes /= KIB;
        unit++;
    }
    snprintf(out, 32, "%" PRIu64 " %s", bytes, units[unit]);
    return out;
}

static void rule_text(char *out, size_t room, const struct rf__choice *choice, const char *table) {
    char ranks[32] = "", above[48] = "", upto[48] = "", number[32];

    if (choice->rule->ranks != RF_TUNING_ANY_RANKS) {
        snprintf(ranks, sizeof ranks, ", up to %d ranks", choice->rule->ranks);
    }
    if (choice->above) {
        snprintf(above, sizeof above, ", above %s", bytes_text(number, choice->above));
    }
    if (choice->rule->bytes != ANY) {
        snprintf(upto, sizeof upto, ", up to %s", bytes_text(number, choice->rule->bytes));
    }
    snprintf(out, room, "table: %s%s%s%s", choice->is_default ? "default" : table, ranks, above,
             upto);
}

void rf__choice_text(char *out, size_t room, const struct rf_tuning *tuning, const char *table,
                     enum rf_link link, enum rf_coll coll, int size, uint64_t bytes,
                     enum rf_algorithm asked, enum rf_algorithm used, const char *levels) {
    struct rf__choice choice = rf__choose(tuning, link, coll, size, bytes);
    char why[RF_TUNING_PATH + 128] = "asked for", number[32], of[48] = "";

    if (coll != RF_COLL_BARRIER) {
        snprintf(of, sizeof of, " of %s", bytes_text(number, bytes));
    }
    if (asked != used) {
        if (choice.algorithm != used) { /* which this group, or these buffers, cannot have */
            choice = rf__choose(NULL, link, coll, size, bytes);
        }
        if (choice.rule && choice.algorithm == used) {
            rule_text(why, sizeof why, &choice, table);
        } else if (used == RF_ALGORITHM_HIERARCHICAL) {
            snprintf(why, sizeof why, "%s", levels);
        } else {
            snprintf(why, sizeof why, "by messages: shared memory cannot take it");
        }
    }
    snprintf(out, room, "%s%s on %d rank%s over %s: %s (%s)", rf_coll_name(coll), of, size,
             size == 1 ? "" : "s", rf_link_name(link), rf_algorithm_name(used), why);
}
