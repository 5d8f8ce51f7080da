/* member/step: the report's bytes, and the decision that all members take from all reports. */
#include "base/digest.h"
#include "member/step.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = RF__STEP_REPORT_BYTES, SEAL_AT = BYTES - 8 };

static struct rf__step_report sample(void) {
    return (struct rf__step_report){
        .generation = 4,
        .unit = 20,
        .step = 17,
        .healed = true,
        .prepared = true,
        .samples = 1000,
        .skipped = 3,
        .digest = 0x0123456789abcdef,
        .state_digest = 0xfedcba9876543210,
        .loss_sum = 1.5,
        .compute_s = 0.25,
        .comm_s = 0.125,
        .config = 0x1122334455667788,
        .shards = 5,
        .link_bytes_s = 1e9,
        .link_peer = 2,
        .put_out = -1,
    };
}

static void assert_same(const struct rf__step_report *a, const struct rf__step_report *b) {
    assert_int_equal(a->generation, b->generation);
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->prepared, b->prepared);
    assert_int_equal(a->stop, b->stop);
    assert_int_equal(a->unit, b->unit);
    assert_int_equal(a->measure, b->measure);
    assert_int_equal(a->healed, b->healed);
    assert_int_equal(a->config, b->config);
    assert_int_equal(a->shards, b->shards);
    assert_int_equal(a->link_peer, b->link_peer);
    assert_int_equal(a->put_out, b->put_out);
    assert_memory_equal(&a->link_bytes_s, &b->link_bytes_s, sizeof a->link_bytes_s);
    assert_int_equal(a->samples, b->samples);
    assert_int_equal(a->skipped, b->skipped);
    assert_int_equal(a->digest, b->digest);
    assert_int_equal(a->state_digest, b->state_digest);
    assert_memory_equal(&a->loss_sum, &b->loss_sum, sizeof a->loss_sum);
    assert_memory_equal(&a->compute_s, &b->compute_s, sizeof a->compute_s);
    assert_memory_equal(&a->comm_s, &b->comm_s, sizeof a->comm_s);
}

static void reseal(unsigned char bytes[BYTES]) {
    uint64_t seal = rf__digest(bytes, SEAL_AT, 0);
    for (int i = 0; i < 8; i++) {
        bytes[SEAL_AT + i] = (unsigned char)(seal >> (8 * i));
    }
}

static void reports_survive_the_wire(void **state) {
    (void)state;
    for (int flags = 0; flags < 16; flags++) {
        unsigned char bytes[BYTES];
        struct rf__step_report report = sample(), back;
        report.prepared = flags & 1;
        report.stop = flags & 2;
        report.measure = flags & 4;
        report.healed = flags & 8;
        report.link_peer = flags & 4 ? -1 : RF_MAX_RANKS - 1;
        report.put_out = flags & 8 ? -1 : 3;
        report.loss_sum = flags == 3 ? (double)NAN : flags == 2 ? (double)-INFINITY : -0.0;
        rf__step_report_encode(&report, bytes);
        assert_int_equal(rf__step_report_decode(bytes, &back), 0);
        assert_same(&report, &back);
    }
}

static void the_layout_is_fixed(void **state) {
    unsigned char bytes[BYTES];
    struct rf__step_report report = sample();
    (void)state;
    report.stop = true;
    rf__step_report_encode(&report, bytes);
    assert_memory_equal(bytes, "RFSR\13\0\0\0\4\0\0\0\0\0\0\0\24\0\0\0\0\0\0\0", 24);
    assert_memory_equal(bytes + 24, "\21\0\0\0\0\0\0\0", 8);
    assert_int_equal(bytes[48], 0xef);
    assert_int_equal(bytes[55], 0x01);
    assert_memory_equal(bytes + 80, "\0\0\0\0\0\0\370\77", 8); /* 1.5 */
    assert_memory_equal(bytes + 112, "\5\0\0\0\2\0\0\0\377\377\377\377", 12);
}

/* Any changed byte is noticed; and where the seal is put right again, what is decoded is in range.
 */
static void every_changed_byte_is_refused_or_in_range(void **state) {
    unsigned char good[BYTES];
    struct rf__step_report report = sample(), back;
    int refused = 0;
    (void)state;
    rf__step_report_encode(&report, good);
    for (int i = 0; i < BYTES; i++) {
        for (int value = 0; value < 256; value++) {
            unsigned char bytes[BYTES];
            if (value == good[i]) {
                continue;
            }
            memcpy(bytes, good, BYTES);
            bytes[i] = (unsigned char)value;
            assert_int_equal(rf__step_report_decode(bytes, &back), RF_EPROTO);
            if (i >= SEAL_AT) {
                continue;
            }
            reseal(bytes);
            if (rf__step_report_decode(bytes, &back) != 0) {
                refused++;
                continue;
            }
            unsigned char again[BYTES];
            assert_true(i == 4 || (i >= 8 && i < 72) || (i >= 80 && i < 124));
            assert_true(back.shards <= RF_MAX_SHARDS);
            assert_true(back.link_peer >= -1 && back.link_peer < RF_MAX_RANKS);
            assert_true(back.put_out >= -1 && back.put_out < RF_MAX_RANKS);
            assert_true(back.link_bytes_s >= 0 && back.link_bytes_s <= 1e15);
            assert_true(back.samples <= (uint64_t)1 << 53 && back.skipped <= (uint64_t)1 << 53);
            assert_true(back.compute_s >= 0 && back.compute_s <= 1e9);
            assert_true(back.comm_s >= 0 && back.comm_s <= 1e9);
            rf__step_report_encode(&back, again);
            assert_memory_equal(again, bytes, BYTES);
        }
    }
    assert_true(refused > 15 * 255); /* magic, unused flags, what must be 0 */
}

enum { MEMBERS = 8 };

static void eight(struct rf__step_report reports[MEMBERS]) {
    for (int i = 0; i < MEMBERS; i++) {
        reports[i] = sample();
        reports[i].samples = (uint64_t)i;
        reports[i].skipped = 1;
        reports[i].loss_sum = 0.1 * i;
        reports[i].compute_s = i == 5 ? 3 : 1;
    }
}

static void all_prepared_commit(void **state) {
    struct rf__step_report reports[MEMBERS];
    struct rf__step_decision decision;
    double sum = 0;
    (void)state;
    eight(reports);
    assert_int_equal(rf__step_decide(reports, MEMBERS, NULL, &decision, NULL), 0);
    assert_true(decision.commit);
    assert_false(decision.stop);
    assert_int_equal(decision.samples, 28);
    assert_int_equal(decision.skipped, 8);
    assert_int_equal(decision.slowest_rank, 5);
    assert_true(decision.slowest_compute_s == 3);
    for (int i = 0; i < MEMBERS; i++) {
        sum += 0.1 * i;
    }
    assert_memory_equal(&decision.loss_sum, &sum, sizeof sum); /* rank order, bit for bit */
    assert_int_equal(rf__step_decide(reports, 1, NULL, &decision, NULL), 0);
    assert_true(decision.commit);
}

static void one_unprepared_and_nobody_commits(void **state) {
    (void)state;
    for (int odd = 0; odd < MEMBERS; odd++) {
        struct rf__step_report reports[MEMBERS];
        struct rf__step_decision decision;
        eight(reports);
        reports[odd].prepared = false;
        reports[odd].digest = 0; /* it has none yet: no divergence */
        assert_int_equal(rf__step_decide(reports, MEMBERS, NULL, &decision, NULL), 0);
        assert_false(decision.commit);
    }
}

static void anyone_can_stop_all(void **state) {
    (void)state;
    for (int who = 0; who < MEMBERS; who++) {
        struct rf__step_report reports[MEMBERS];
        struct rf__step_decision decision;
        eight(reports);
        reports[who].stop = true;
        assert_int_equal(rf__step_decide(reports, MEMBERS, NULL, &decision, NULL), 0);
        assert_true(decision.stop && decision.commit);
    }
}

static void the_odd_one_out_is_named(void **state) {
    struct rf__step_report reports[MEMBERS];
    struct rf__step_decision decision = {.samples = 99};
    struct rf_error err;
    (void)state;
    for (int odd = 0; odd < MEMBERS; odd++) {
        char expected[200];
        eight(reports);
        reports[odd].digest = 0xbad;
        assert_int_equal(rf__step_decide(reports, MEMBERS, NULL, &decision, &err), RF_EDIVERGED);
        assert_int_equal(err.rank, odd);
        snprintf(
            expected, sizeof expected,
            "rank %d of 8 holds another state after step 17: digest 0x0000000000000bad against "
            "0x0123456789abcdef on the 7 others",
            odd);
        assert_string_equal(err.text, expected);
    }
    assert_int_equal(decision.samples, 99); /* untouched */

    eight(reports);
    reports[1].digest = reports[6].digest = 0xbad;
    assert_int_equal(rf__step_decide(reports, MEMBERS, NULL, &decision, &err), RF_EDIVERGED);
    assert_int_equal(err.rank, 1);
    assert_string_equal(err.text, "ranks 1 and 6 of 8 hold another state after step 17: digest "
                                  "0x0000000000000bad against 0x0123456789abcdef on the 6 others");
    reports[6].digest = 0xbee;
    assert_int_equal(rf__step_decide(reports, MEMBERS, NULL, &decision, &err), RF_EDIVERGED);
    assert_string_equal(err.text,
                        "ranks 1 and 6 of 8 hold another state after step 17: different digests, "
                        "rank 1 0x0000000000000bad against 0x0123456789abcdef on the 6 others");

    eight(reports);
    reports[2].state_digest = 0xbad;
    assert_int_equal(rf__step_decide(reports, MEMBERS, NULL, &decision, &err), RF_EDIVERGED);
    assert_int_equal(err.rank, 2);
    assert_non_null(strstr(err.text, "before the update of step 17"));
    assert_int_equal(rf__step_decide(reports, MEMBERS, NULL, &decision, NULL), RF_EDIVERGED);
}

static void without_a_majority_nobody_is_blamed(void **state) {
    uint64_t digests[] = {1, 2, 1, 2, 3};
    struct rf_error err;
    (void)state;
    assert_int_equal(rf__step_compare(digests, 2, RF_EDIVERGED, "state", "at the start", &err),
                     RF_EDIVERGED);
    assert_int_equal(err.rank, -1);
    assert_string_equal(err.text,
                        "no majority of the 2 ranks holds the same state at the start, there "
                        "are 2: 0x0000000000000001 on rank 0; 0x0000000000000002 on rank 1");
    assert_int_equal(rf__step_compare(digests, 4, RF_EDIVERGED, "state", "now", &err),
                     RF_EDIVERGED);
    assert_int_equal(err.rank, -1);
    assert_non_null(strstr(err.text, "on ranks 0 and 2; "));
    assert_int_equal(rf__step_compare(digests, 5, RF_EMISMATCH, "state", "now", &err),
                     RF_EMISMATCH);
    assert_non_null(strstr(err.text, "there are 3"));
}

/* Every assignment of up to 4 digests to 1 … 6 ranks, against counting. */
static void majorities_are_found(void **state) {
    (void)state;
    for (int n = 1; n <= 6; n++) {
        for (int code = 0; code < 1 << (2 * n); code++) {
            uint64_t digests[6];
            int votes[4] = {0}, winner = -1, first_odd = -1;
            struct rf_error err = {.rank = -7};
            for (int i = 0; i < n; i++) {
                digests[i] = (unsigned)code >> (2 * i) & 3;
                votes[digests[i]]++;
            }
            for (int d = 0; d < 4; d++) {
                winner = 2 * votes[d] > n ? d : winner;
            }
            for (int i = n - 1; i >= 0; i--) {
                first_odd = winner >= 0 && digests[i] != (uint64_t)winner ? i : first_odd;
            }
            int rc = rf__step_compare(digests, n, RF_EDIVERGED, "state", "now", &err);
            bool equal = winner >= 0 && votes[winner] == n;
            assert_int_equal(rc, equal ? 0 : RF_EDIVERGED);
            assert_int_equal(err.rank, equal ? -7 : first_odd);
        }
    }
}

static void many_ranks_fit_the_line(void **state) {
    static uint64_t digests[RF_MAX_RANKS];
    struct rf_error err;
    (void)state;
    for (int i = 0; i < RF_MAX_RANKS; i++) {
        digests[i] = i % 3 == 0 ? 7 : 8;
    }
    assert_int_equal(rf__step_compare(digests, RF_MAX_RANKS, RF_EDIVERGED, "state", "now", &err),
                     RF_EDIVERGED);
    assert_non_null(strstr(err.text, "ranks 0, 3, 6, 9, 12, 15 and 336 more of 1024 hold"));
    for (int i = 0; i < RF_MAX_RANKS; i++) {
        digests[i] = (uint64_t)i;
    }
    assert_int_equal(rf__step_compare(digests, RF_MAX_RANKS, RF_EDIVERGED, "state", "now", &err),
                     RF_EDIVERGED);
    assert_true(strlen(err.text) < RF_ERROR_TEXT_MAX);
}

static void another_step_or_generation_is_refused(void **state) {
    struct rf__step_report reports[MEMBERS];
    struct rf__step_decision decision;
    struct rf_error err;
    (void)state;
    eight(reports);
    reports[3].step = 18;
    assert_int_equal(rf__step_decide(reports, MEMBERS, NULL, &decision, &err), RF_EPROTO);
    assert_int_equal(err.rank, 3);
    assert_string_equal(err.text, "rank 3 of 8 reports step 18 (unit 20) of generation 4, rank 0 "
                                  "step 17 (unit 20) of generation 4");
    eight(reports);
    reports[7].generation = 3;
    assert_int_equal(rf__step_decide(reports, MEMBERS, NULL, &decision, &err), RF_EPROTO);
    assert_int_equal(err.rank, 7);
    eight(reports);
    reports[2].unit = 21;
    assert_int_equal(rf__step_decide(reports, MEMBERS, NULL, &decision, &err), RF_EPROTO);
    assert_int_equal(err.rank, 2);
    eight(reports);
    reports[1].measure = true;
    assert_int_equal(rf__step_decide(reports, MEMBERS, NULL, &decision, &err), RF_EPROTO);
    assert_int_equal(err.rank, 1);
    eight(reports);
    reports[5].config++;
    assert_int_equal(rf__step_decide(reports, MEMBERS, NULL, &decision, &err), RF_EPROTO);
    assert_int_equal(err.rank, 5);
    assert_string_equal(err.text, "rank 5 of 8 registered other tensors or options than rank 0");
}

/* Those that hold the state vote; whoever differs, voter or not, does not agree. Every assignment
 * of three digests and of votes to five members, against counting. */
static void a_majority_of_the_healed_decides(void **state) {
    enum { N = 5 };
    (void)state;
    for (int code = 0; code < 243 * 32; code++) {
        struct rf__step_report reports[MEMBERS];
        struct rf__step_decision decision = {.common = -7};
        struct rf_error err;
        bool agrees[N];
        int votes[3] = {0}, voters = 0, winner = -1, digits = code / 32;
        eight(reports);
        for (int i = 0; i < N; i++, digits /= 3) {
            reports[i].healed = (unsigned)code >> i & 1;
            reports[i].digest = digits % 3 == 1 ? 0xbad : 0x900d;
            reports[i].state_digest = digits % 3 == 2 ? 0xbad : 0x900d;
            votes[digits % 3] += reports[i].healed;
            voters += reports[i].healed;
        }
        for (int d = 0; d < 3; d++) {
            winner = 2 * votes[d] > voters ? d : winner;
        }
        if (voters == 0) {
            continue; /* there is always one */
        }
        int rc = rf__step_decide(reports, N, agrees, &decision, &err);
        assert_int_equal(rc, winner < 0 ? RF_EDIVERGED : 0);
        assert_true(winner >= 0 || err.rank == -1);
        digits = code / 32;
        for (int i = 0; i < N; i++, digits /= 3) {
            assert_int_equal(agrees[i], digits % 3 == winner);
        }
        if (winner >= 0) {
            assert_true(decision.commit && agrees[decision.common]);
            assert_true(reports[decision.common].healed);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reports_survive_the_wire),
        cmocka_unit_test(the_layout_is_fixed),
        cmocka_unit_test(every_changed_byte_is_refused_or_in_range),
        cmocka_unit_test(all_prepared_commit),
        cmocka_unit_test(one_unprepared_and_nobody_commits),
        cmocka_unit_test(anyone_can_stop_all),
        cmocka_unit_test(the_odd_one_out_is_named),
        cmocka_unit_test(without_a_majority_nobody_is_blamed),
        cmocka_unit_test(majorities_are_found),
        cmocka_unit_test(many_ranks_fit_the_line),
        cmocka_unit_test(another_step_or_generation_is_refused),
        cmocka_unit_test(a_majority_of_the_healed_decides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
