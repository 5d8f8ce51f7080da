/* The fuzz targets of the store's codec and journal, driven by seeded mutations of good input, so
 * that they run everywhere. The sanitizers look on; RF_ASSERT in the targets checks. */
#define FUZZ_STORE_WIRE    fuzz_wire
#define FUZZ_STORE_JOURNAL fuzz_journal
#include "fuzz/fuzz_store_journal.c"
#include "fuzz/fuzz_store_wire.c"

#include "base/rng.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROUNDS = 30000, ROOM = 8192 };

/* Some of: bits turned over, bytes set, a piece cut out, a piece doubled, the end cut off. */
static size_t mutate(struct rf__rng *rng, unsigned char *bytes, size_t count, size_t room) {
    for (uint64_t i = rf__rng_below(rng, 4); i > 0 && count > 0; i--) {
        size_t at = rf__rng_below(rng, count);
        size_t piece = rf__rng_below(rng, count - at) + 1;
        switch (rf__rng_below(rng, 5)) {
        case 0:
            bytes[at] ^= (unsigned char)(1u << rf__rng_below(rng, 8));
            break;
        case 1:
            bytes[at] = (unsigned char)rf__rng_u64(rng);
            break;
        case 2:
            memmove(bytes + at, bytes + at + piece, count - at - piece);
            count -= piece;
            break;
        case 3:
            if (count + piece <= room) {
                memmove(bytes + at + piece, bytes + at, count - at);
                count += piece;
            }
            break;
        default:
            count = at;
            break;
        }
    }
    return count;
}

static struct rf__kv_request some_request(struct rf__rng *rng) {
    static char keys[32];
    static unsigned char values[64];
    struct rf__kv_request request = {
        .op = (enum rf__kv_op)(1 + rf__rng_below(rng, RF__KV_OP_END - 1)),
        .number = rf__rng_below(rng, 1000),
        .revision = (int64_t)rf__rng_below(rng, 3),
        .lease = rf__rng_below(rng, 3),
        .ttl_ms = (int64_t)rf__rng_below(rng, 5000),
        .key = keys,
        .key_bytes = rf__rng_below(rng, 4),
        .value = values,
        .value_bytes = rf__rng_below(rng, sizeof values),
    };
    memset(keys, 'a' + (int)rf__rng_below(rng, 3), sizeof keys);
    return request;
}

static void the_codec_survives_anything(void **state) {
    struct rf__rng rng = rf__rng(5, 1, 1);
    static unsigned char frame[ROOM];
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct rf__kv_request request = some_request(&rng);
        size_t count = rf__kv_request_frame(&request, frame, sizeof frame);
        if (round % 3 == 1) {
            struct rf__kv_event event = {.kind = (enum rf__kv_event_kind)(1 + round % 4),
                                         .number = 3,
                                         .code = -(int)rf__rng_below(&rng, 600),
                                         .key = request.key,
                                         .key_bytes = request.key_bytes,
                                         .value = request.value,
                                         .value_bytes = request.value_bytes};
            count = rf__kv_event_frame(&event, frame, sizeof frame);
        }
        assert_true(count > RF__KV_LENGTH_BYTES);
        count = mutate(&rng, frame, count, sizeof frame);
        (void)fuzz_wire(frame, count);
        if (count > RF__KV_LENGTH_BYTES) {
            /* A copy of just its size, so that a read past the end is seen. */
            unsigned char *exact = malloc(count - RF__KV_LENGTH_BYTES);
            memcpy(exact, frame + RF__KV_LENGTH_BYTES, count - RF__KV_LENGTH_BYTES);
            (void)fuzz_wire(exact, count - RF__KV_LENGTH_BYTES);
            free(exact);
        }
    }
}

static size_t snapshot_of(void *context, unsigned char *out, size_t room) {
    void **both = context;
    return rf__kv_snapshot_record(both[0], both[1], out, room);
}

/* A journal with a snapshot and commands behind it, as bytes. */
static size_t make_journal(struct rf__rng *rng, unsigned char *out, size_t room) {
    char path[] = "/tmp/ringfold-fuzz-XXXXXX";
    unsigned char record[4096];
    struct rf__kv *kv = rf__kv_create();
    struct rf__kv_result result;
    struct rf__journal *journal;
    struct rf__journal_options options = {
        .path = path, .record_max = RF__KV_RECORD_MAX, .record = replay_one, .context = kv};

    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(rf__journal_open(&options, &journal, NULL), 0);
    for (int i = 0; i < 24; i++) {
        struct rf__kv_request request = some_request(rng);
        request.number = (uint64_t)i + 1;
        if (rf__kv_is_change(request.op) && rf__kv_check_request(&request) == 0 &&
            rf__kv_change(kv, 1 + (uint64_t)i % 3, &request, 0, &result)) {
            size_t bytes =
                rf__kv_command_record(kv, 1 + (uint64_t)i % 3, &request, record, sizeof record);
            assert_int_equal(rf__journal_append(journal, record, bytes), 0);
            assert_int_equal(rf__journal_sync(journal, NULL), 0);
        }
        if (i == 12) {
            struct rf__kv_cursor cursor = {0};
            void *both[2] = {kv, &cursor};
            assert_int_equal(rf__journal_compact(journal, snapshot_of, both, NULL), 0);
        }
    }
    rf__journal_close(journal);
    close(fd);
    fd = open(path, O_RDONLY);
    ssize_t count = pread(fd, out, room, 0);
    close(fd);
    unlink(path);
    rf__kv_destroy(kv);
    assert_true(count > 0 && (size_t)count < room);
    return (size_t)count;
}

static void the_journal_survives_anything(void **state) {
    struct rf__rng rng = rf__rng(6, 1, 1);
    static unsigned char file[ROOM], copy[ROOM];
    (void)state;
    size_t count = 0;
    for (int round = 0; round < ROUNDS; round++) {
        if (round % 1000 == 0) {
            count = make_journal(&rng, file, sizeof file);
        }
        memcpy(copy, file, count);
        size_t mutated = mutate(&rng, copy, count, sizeof copy);
        (void)fuzz_journal(copy, mutated);
        /* One record alone, its checksum left out. */
        size_t at = RF__JOURNAL_HEADER + RF__JOURNAL_RECORD_HEADER;
        while (rf__rng_below(&rng, 4) != 0 && at + 4 < count) {
            const unsigned char *length = file + at - RF__JOURNAL_RECORD_HEADER;
            at += RF__JOURNAL_RECORD_HEADER + (size_t)(length[0] | length[1] << 8);
        }
        if (at < count) {
            memcpy(copy, file + at, count - at);
            const unsigned char *length = file + at - RF__JOURNAL_RECORD_HEADER;
            size_t bytes = (size_t)(length[0] | length[1] << 8);
            bytes = mutate(&rng, copy, bytes < count - at ? bytes : count - at, sizeof copy);
            (void)fuzz_journal(copy, bytes);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_codec_survives_anything),
        cmocka_unit_test(the_journal_survives_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
