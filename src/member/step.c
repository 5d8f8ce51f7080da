/* The step report's bytes and the decision from all of them.
 *
 *     offset  bytes
 *          0      4  magic "RFSR"
 *          4      4  flags: 1 prepared, 2 stop, 4 measurement, 8 healed; the others 0
 *          8     72  generation, unit, step, samples, skipped, digest, state digest, configuration,
 *                    0
 *         80     32  loss sum, compute seconds, communication seconds, bytes per second of the
 *                    slowest link: IEEE 754 binary64
 *        112     12  shards, the link's peer, the rank to put out; 0xffffffff for no rank
 *        124     12  0
 *        136      8  digest of the bytes before it
 *
 * The digest at the end is there because the report decides about everybody's step: a bit that
 * flipped on the way must not pass for divergence of a healthy member. */
#include "member/step.h"

#include "base/assert.h"
#include "base/cursor.h"
#include "base/digest.h"
#include "base/status.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { FLAG_PREPARED = 1, FLAG_STOP = 2, FLAG_MEASURE = 4, FLAG_HEALED = 8, FLAGS_ALL = 15 };
enum { SEALED_BYTES = RF__STEP_REPORT_BYTES - 8 };
enum { LISTED_RANKS = 6, LISTED_SIDES = 4, LIST_MAX = 160 };

static const uint32_t magic = 0x52534652; /* "RFSR", little-endian */
static const uint64_t most_samples = (uint64_t)1
                                     << 53; /* counts are exact in a double up to here */
static const double most_seconds = 1e9;
static const double most_bytes_s = 1e15;
static const uint32_t no_rank = 0xffffffff;

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t flags_of(const struct rf__step_report *report) {
    return (report->prepared ? FLAG_PREPARED : 0u) | (report->stop ? FLAG_STOP : 0u) |
           (report->measure ? FLAG_MEASURE : 0u) | (report->healed ? FLAG_HEALED : 0u);
}

void rf__step_report_encode(const struct rf__step_report *report,
                            unsigned char bytes[RF__STEP_REPORT_BYTES]) {
    struct rf__writer w = rf__writer(bytes, RF__STEP_REPORT_BYTES);

    rf__write_u32(&w, magic);
    rf__write_u32(&w, flags_of(report));
    rf__write_u64(&w, report->generation);
    rf__write_u64(&w, report->unit);
    rf__write_u64(&w, report->step);
    rf__write_u64(&w, report->samples);
    rf__write_u64(&w, report->skipped);
    rf__write_u64(&w, report->digest);
    rf__write_u64(&w, report->state_digest);
    rf__write_u64(&w, report->config);
    rf__write_u64(&w, 0);
    rf__write_u64(&w, bits_of(report->loss_sum));
    rf__write_u64(&w, bits_of(report->compute_s));
    rf__write_u64(&w, bits_of(report->comm_s));
    rf__write_u64(&w, bits_of(report->link_bytes_s));
    rf__write_u32(&w, report->shards);
    rf__write_u32(&w, report->link_peer < 0 ? no_rank : (uint32_t)report->link_peer);
    rf__write_u32(&w, report->put_out < 0 ? no_rank : (uint32_t)report->put_out);
    rf__write_u32(&w, 0);
    rf__write_u64(&w, 0);
    rf__write_u64(&w, rf__digest(bytes, SEALED_BYTES, 0));
    RF_ASSERT(!w.failed && w.left == 0);
}

static bool in_range(double value, double most) {
    return isfinite(value) && !signbit(value) && value <= most;
}

/* Whether it is a rank or none. */
static bool is_rank(uint32_t value) {
    return value == no_rank || value < RF_MAX_RANKS;
}

static int rank_of(uint32_t value) {
    return value == no_rank ? -1 : (int)value;
}

int rf__step_report_decode(const unsigned char bytes[RF__STEP_REPORT_BYTES],
                           struct rf__step_report *out) {
    struct rf__reader r = rf__reader(bytes, RF__STEP_REPORT_BYTES);
    struct rf__step_report report;

    uint32_t found_magic = rf__read_u32(&r);
    uint32_t flags = rf__read_u32(&r);
    report.prepared = flags & FLAG_PREPARED;
    report.stop = flags & FLAG_STOP;
    report.measure = flags & FLAG_MEASURE;
    report.healed = flags & FLAG_HEALED;
    report.generation = rf__read_u64(&r);
    report.unit = rf__read_u64(&r);
    report.step = rf__read_u64(&r);
    report.samples = rf__read_u64(&r);
    report.skipped = rf__read_u64(&r);
    report.digest = rf__read_u64(&r);
    report.state_digest = rf__read_u64(&r);
    report.config = rf__read_u64(&r);
    uint64_t reserved = rf__read_u64(&r);
    report.loss_sum = double_of(
        rf__read_u64(&r)); /* any value: a loss that is not a number is news, not an error */
    report.compute_s = double_of(rf__read_u64(&r));
    report.comm_s = double_of(rf__read_u64(&r));
    report.link_bytes_s = double_of(rf__read_u64(&r));
    report.shards = rf__read_u32(&r);
    uint32_t link_peer = rf__read_u32(&r);
    uint32_t put_out = rf__read_u32(&r);
    reserved |= rf__read_u32(&r);
    reserved |= rf__read_u64(&r);
    uint64_t seal = rf__read_u64(&r);
    report.link_peer = rank_of(link_peer);
    report.put_out = rank_of(put_out);

    bool valid =
        !r.failed && found_magic == magic && !(flags & ~(uint32_t)FLAGS_ALL) && reserved == 0 &&
        seal == rf__digest(bytes, SEALED_BYTES, 0) && report.samples <= most_samples &&
        report.skipped <= most_samples && report.shards <= RF_MAX_SHARDS && is_rank(link_peer) &&
        is_rank(put_out) && in_range(report.compute_s, most_seconds) &&
        in_range(report.comm_s, most_seconds) && in_range(report.link_bytes_s, most_bytes_s);
    if (!valid) {
        return RF_EPROTO;
    }
    *out = report;
    return 0;
}

/* Text that is cut at its end, never overrun. */
struct list {
    char text[LIST_MAX];
    size_t length;
};

static void add(struct list *list, const char *format, ...) RF__PRINTF(2, 3);
static void add(struct list *list, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    int length =
        vsnprintf(list->text + list->length, sizeof list->text - list->length, format, arguments);
    va_end(arguments);
    if (length > 0) {
        size_t left = sizeof list->text - 1 - list->length;
        list->length += (size_t)length < left ? (size_t)length : left;
    }
}

/* "rank 3", "ranks 0, 1 and 4", "ranks 0, 1, 2, 3, 4, 5 and 7 more": those whose digest is
 * (`equal`) or is not `digest`. */
static void add_ranks(struct list *list, const uint64_t *digests, int count, uint64_t digest,
                      bool equal) {
    int total = 0, listed = 0;

    for (int i = 0; i < count; i++) {
        total += (digests[i] == digest) == equal;
    }
    add(list, total == 1 ? "rank" : "ranks");
    for (int i = 0; i < count && listed < LISTED_RANKS; i++) {
        if ((digests[i] == digest) == equal) {
            bool last = listed + 1 == total;
            add(list, "%s%d", listed == 0 ? " " : last ? " and " : ", ", i);
            listed++;
        }
    }
    if (listed < total) {
        add(list, " and %d more", total - listed);
    }
}

static int first_of(const uint64_t *digests, int count, uint64_t digest, bool equal) {
    int i = 0;
    while (i < count && (digests[i] == digest) != equal) {
        i++;
    }
    return i;
}

static int share_of(const uint64_t *digests, int count, uint64_t digest) {
    int share = 0;
    for (int i = 0; i < count; i++) {
        share += digests[i] == digest;
    }
    return share;
}

/* The only value that can be a majority's (Boyer and Moore 1981): pairs of unequal votes cancel
 * each other. */
static uint64_t candidate_of(const uint64_t *digests, int count) {
    uint64_t candidate = digests[0];
    int lead = 0;

    for (int i = 0; i < count; i++) {
        if (lead == 0) {
            candidate = digests[i];
        }
        lead += digests[i] == candidate ? 1 : -1;
    }
    return candidate;
}

static int name_minority(const uint64_t *digests, int count, uint64_t common, int code,
                         const char *what, const char *when, struct rf_error *err) {
    struct list ranks = {.length = 0}, found = {.length = 0};
    int agreeing = share_of(digests, count, common);
    int odd = count - agreeing;
    int first = first_of(digests, count, common, false);
    bool same = share_of(digests, count, digests[first]) == odd;

    add_ranks(&ranks, digests, count, common, false);
    if (same) {
        add(&found, "digest 0x%016" PRIx64, digests[first]);
    } else {
        add(&found, "different digests, rank %d 0x%016" PRIx64, first, digests[first]);
    }
    (void)rf__fail(err, code, 0,
                   "%s of %d %s another %s %s: %s against 0x%016" PRIx64 " on the %d other%s",
                   ranks.text, count, odd == 1 ? "holds" : "hold", what, when, found.text, common,
                   agreeing, agreeing == 1 ? "" : "s");
    if (err) {
        err->rank = first;
    }
    return code;
}

static int name_sides(const uint64_t *digests, int count, int code, const char *what,
                      const char *when, struct rf_error *err) {
    struct list sides = {.length = 0};
    int listed = 0, total = 0;

    for (int i = 0; i < count; i++) {
        if (first_of(digests, count, digests[i], true) != i) {
            continue;
        }
        total++;
        if (listed < LISTED_SIDES) {
            add(&sides, "%s0x%016" PRIx64 " on ", listed ? "; " : "", digests[i]);
            add_ranks(&sides, digests, count, digests[i], true);
            listed++;
        }
    }
    (void)rf__fail(err, code, 0,
                   "no majority of the %d ranks holds the same %s %s, there are %d: %s", count,
                   what, when, total, sides.text);
    return code;
}

int rf__step_compare(const uint64_t *digests, int count, int code, const char *what,
                     const char *when, struct rf_error *err) {
    RF_ASSERT(count >= 1 && count <= RF_MAX_RANKS);
    uint64_t candidate = candidate_of(digests, count);
    int share = share_of(digests, count, candidate);

    if (share == count) {
        return 0;
    }
    if (2 * share > count) {
        return name_minority(digests, count, candidate, code, what, when, err);
    }
    return name_sides(digests, count, code, what, when, err);
}

static int check_place(const struct rf__step_report *reports, int count, struct rf_error *err) {
    for (int i = 1; i < count; i++) {
        const struct rf__step_report *a = &reports[i], *b = &reports[0];
        int rc = 0;
        if (a->generation != b->generation || a->unit != b->unit || a->step != b->step ||
            a->measure != b->measure) {
            rc = rf__fail(
                err, RF_EPROTO, 0,
                "rank %d of %d reports step %" PRIu64 " (unit %" PRIu64 ") of generation %" PRIu64
                ", rank 0 step %" PRIu64 " (unit %" PRIu64 ") of generation %" PRIu64,
                i, count, a->step, a->unit, a->generation, b->step, b->unit, b->generation);
        } else if (a->config != b->config) {
            rc =
                rf__fail(err, RF_EPROTO, 0,
                         "rank %d of %d registered other tensors or options than rank 0", i, count);
        }
        if (rc) {
            if (err) {
                err->rank = i;
            }
            return rc;
        }
    }
    return 0;
}

/* Holds the digests of all, or of those that are healed, against each other. */
static int check_digests(const struct rf__step_report *reports, int count, bool healed_only,
                         struct rf_error *err) {
    uint64_t chains[RF_MAX_RANKS] = {0}, states[RF_MAX_RANKS] = {0};
    char when[48];
    int asked = 0;

    for (int i = 0; i < count; i++) {
        if (!healed_only || reports[i].healed) {
            chains[asked] = reports[i].digest;
            states[asked++] = reports[i].state_digest;
        }
    }
    snprintf(when, sizeof when, "after %s %" PRIu64,
             reports[0].measure ? "a measurement at step" : "step", reports[0].step);
    int rc = rf__step_compare(chains, asked, RF_EDIVERGED, "state", when, err);
    if (rc == 0) {
        snprintf(when, sizeof when, "before the update of step %" PRIu64, reports[0].step);
        rc = rf__step_compare(states, asked, RF_EDIVERGED, "state", when, err);
    }
    return rc;
}

/* Who holds the same as the majority of those that are healed; false where there is none. */
static bool find_majority(const struct rf__step_report *reports, int count, bool *agrees,
                          int *common) {
    uint64_t votes[RF_MAX_RANKS] = {0};
    int voters = 0;

    for (int i = 0; i < count; i++) {
        if (reports[i].healed) {
            votes[voters++] = rf__digest_mix(reports[i].digest, reports[i].state_digest);
        }
    }
    uint64_t candidate = voters ? candidate_of(votes, voters) : 0;
    bool found = voters && 2 * share_of(votes, voters, candidate) > voters;
    *common = -1;
    for (int i = 0; i < count; i++) {
        agrees[i] =
            found && rf__digest_mix(reports[i].digest, reports[i].state_digest) == candidate;
        if (agrees[i] && reports[i].healed && *common < 0) {
            *common = i;
        }
    }
    return found;
}

static int judge(const struct rf__step_report *reports, int count, bool *agrees, int *common,
                 struct rf_error *err) {
    *common = 0;
    if (!agrees) {
        return check_digests(reports, count, false, err);
    }
    if (find_majority(reports, count, agrees, common)) {
        return 0;
    }
    int rc = check_digests(reports, count, true, err);
    if (rc == 0) { /* each of the two has a majority, and no member is in both */
        rc = rf__fail(err, RF_EDIVERGED, 0,
                      "no majority of the %d ranks holds the same state at step %" PRIu64, count,
                      reports[0].step);
    }
    if (err) {
        err->rank = -1;
    }
    return rc;
}

int rf__step_decide(const struct rf__step_report *reports, int count, bool *agrees,
                    struct rf__step_decision *out, struct rf_error *err) {
    struct rf__step_decision decision = {.commit = true};

    RF_ASSERT(count >= 1 && count <= RF_MAX_RANKS);
    int rc = check_place(reports, count, err);
    if (rc) {
        return rc;
    }
    for (int i = 0; i < count; i++) {
        decision.commit = decision.commit && reports[i].prepared;
        decision.stop = decision.stop || reports[i].stop;
        decision.samples += reports[i].samples;
        decision.skipped += reports[i].skipped;
        decision.loss_sum += reports[i].loss_sum;
        if (reports[i].compute_s > decision.slowest_compute_s) {
            decision.slowest_compute_s = reports[i].compute_s;
            decision.slowest_rank = i;
        }
    }
    if (decision.commit) { /* a digest of who is not prepared says nothing */
        rc = judge(reports, count, agrees, &decision.common, err);
    }
    if (rc == 0) {
        *out = decision;
    }
    return rc;
}
