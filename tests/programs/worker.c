/* A worker for the system tests: joins the job that its environment describes, does what its
 * arguments say, and tells what came of it in JSON lines on stdout. Nothing but the public
 * interface.
 *
 *     worker collectives                       every collective, type and odd count, against
 * formulas worker mismatch KIND ODD COUNT [private] rank ODD calls something else than the others
 *     worker huge allreduce|broadcast          more than 2^31 elements
 *     worker requests COUNT                    several in flight, deadlines, then a ring of
 * messages worker loop COUNT shared|private [FILE]  all-reduces until something fails, or FILE is
 * there worker exit RANK COUNT shared|private    rank RANK ends in the middle of an all-reduce
 *     worker once COUNT shared|private         one all-reduce, checked
 *     worker quiet CALLS COUNT                 CALLS all-reduces, getppid after every 10, for who
 *                                              counts system calls
 *
 * Exit status: 0 as planned, 69 a peer was lost, 1 anything else. */
#include <ringfold/ringfold.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

enum { MAX_SIZE = 16, MAX_COUNT = 70001, STATUS_LOST = 69 };

static struct rf_comm *comm;
static int rank, size;

/* One line: what the call gave, and what the group says of it. */
static void tell(const char *event, int code, const struct rf_error *err) {
    printf("{\"event\": \"%s\", \"rank\": %d, \"pid\": %d, \"code\": \"%s\", \"culprit\": %d, "
           "\"transport\": \"%s\", \"text\": \"",
           event, rank, (int)getpid(), code ? rf_error_name(code) : "", err ? err->rank : -1,
           comm ? rf_comm_transport(comm) : "");
    for (const char *at = err ? err->text : ""; *at; at++) {
        bool is_plain = (unsigned char)*at >= 0x20 && *at != '"' && *at != '\\';
        putchar(is_plain ? *at : '?');
    }
    printf("\"}\n");
    fflush(stdout);
}

static int tell_failure(int code) {
    struct rf_error err;
    rf_comm_error(comm, &err);
    tell("failed", code, &err);
    return code == RF_ELOST ? STATUS_LOST : EXIT_FAILURE;
}

static int complain(const char *what) {
    fprintf(stderr, "worker: rank %d of %d: %s\n", rank, size, what);
    return EXIT_FAILURE;
}

/* Private blocks live until the end, as those of the communicator do. */
static void *taken[32];
static size_t taken_count;

static void *memory(size_t bytes, bool shared) {
    void *block = NULL;
    struct rf_error err;

    if (!shared && taken_count < sizeof taken / sizeof *taken) {
        return taken[taken_count++] = calloc(bytes ? bytes : 1, 1);
    }
    if (rf_mem_alloc(comm, bytes ? bytes : 1, &block, &err)) {
        fprintf(stderr, "worker: %s\n", err.text);
        return NULL;
    }
    return block;
}

/* Small whole numbers, so that every type holds every sum exactly. */
static int value_of(int from, size_t index) {
    return (int)((index * 3 + (size_t)from * 5) % 7);
}

static uint16_t half_bits(int value, enum rf_type type) {
    float f = (float)value;
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    if (type == RF_BF16) {
        return (uint16_t)(bits >> 16);
    }
    return value ? (uint16_t)(((bits >> 23) - 112) << 10 | (bits >> 13 & 0x3ff)) : 0;
}

static void put(void *buffer, enum rf_type type, size_t index, int value) {
    switch (type) {
    case RF_F32:
        ((float *)buffer)[index] = (float)value;
        break;
    case RF_F64:
        ((double *)buffer)[index] = value;
        break;
    case RF_F16:
    case RF_BF16:
        ((uint16_t *)buffer)[index] = half_bits(value, type);
        break;
    case RF_I8:
    case RF_U8:
        ((uint8_t *)buffer)[index] = (uint8_t)value;
        break;
    case RF_I32:
    case RF_U32:
        ((uint32_t *)buffer)[index] = (uint32_t)value;
        break;
    case RF_I64:
    case RF_U64:
        ((uint64_t *)buffer)[index] = (uint64_t)value;
        break;
    case RF_TYPE_COUNT:
        break;
    }
}

static bool holds(const void *buffer, enum rf_type type, size_t index, int value) {
    unsigned char wanted[8];
    size_t bytes = rf_type_size(type);
    put(wanted, type, 0, value);
    return memcmp((const unsigned char *)buffer + index * bytes, wanted, bytes) == 0;
}

static int reduced(enum rf_redop redop, size_t index) {
    int result = value_of(0, index);

    for (int from = 1; from < size; from++) {
        int value = value_of(from, index);
        result = redop == RF_MAX   ? (value > result ? value : result)
                 : redop == RF_MIN ? (value < result ? value : result)
                                   : result + value;
    }
    return result;
}

/* What element `index` of this rank's result must be, by the definition of the collective; -1 where
 * it gets none. */
static int wanted_of(const struct rf_call *call, size_t index) {
    size_t part = index / (call->count ? call->count : 1);
    size_t inside = index % (call->count ? call->count : 1);

    switch (call->coll) {
    case RF_COLL_ALLREDUCE:
        return reduced(call->redop, index);
    case RF_COLL_REDUCE:
        return rank == call->root ? reduced(call->redop, index) : -1;
    case RF_COLL_REDUCE_SCATTER:
        return reduced(call->redop, (size_t)rank * call->count + index);
    case RF_COLL_ALL_GATHER:
        return value_of((int)part, inside);
    case RF_COLL_GATHER:
        return rank == call->root ? value_of((int)part, inside) : -1;
    case RF_COLL_BROADCAST:
        return value_of(call->root, index);
    case RF_COLL_SCATTER:
        return value_of(call->root, (size_t)rank * call->count + index);
    case RF_COLL_ALL_TO_ALL:
        return value_of((int)part, (size_t)rank * call->count + inside);
    case RF_COLL_BARRIER:
    case RF_COLL_SEND:
    case RF_COLL_RECV:
    case RF_COLL_COUNT:
        break;
    }
    return -1;
}

static bool has_many_out(enum rf_coll coll) {
    return coll == RF_COLL_ALL_GATHER || coll == RF_COLL_GATHER || coll == RF_COLL_ALL_TO_ALL;
}

static int check_call(struct rf_call *call, void *send, void *recv) {
    size_t all = call->count * (size_t)size;
    size_t out = has_many_out(call->coll) ? all : call->count;

    for (size_t i = 0; i < all; i++) {
        put(send, call->type, i, value_of(rank, i));
        put(recv, call->type, i, 0);
    }
    call->send = send;
    call->recv = recv;
    int code = rf_run(comm, call);
    if (code) {
        return tell_failure(code);
    }
    for (size_t i = 0; i < out; i++) {
        int wanted = wanted_of(call, i);
        if (wanted >= 0 && !holds(recv, call->type, i, wanted)) {
            fprintf(stderr, "worker: rank %d of %d: %s of %zu %s, root %d: element %zu is not %d\n",
                    rank, size, rf_coll_name(call->coll), call->count, rf_type_name(call->type),
                    call->root, i, wanted);
            return EXIT_FAILURE;
        }
    }
    return 0;
}

static int check_everything(bool shared) {
    static const size_t counts[] = {0, 1, 2, 3, 7, 127, 1023, 8193, MAX_COUNT};
    static const enum rf_redop redops[] = {RF_SUM, RF_MIN, RF_MAX};
    void *send = memory((size_t)MAX_COUNT * 8 * (size_t)size, shared);
    void *recv = memory((size_t)MAX_COUNT * 8 * (size_t)size, shared);
    int calls = 0, status = send && recv ? 0 : complain("no memory");

    for (int coll = 0; !status && coll <= RF_COLL_BARRIER; coll++) {
        for (int type = 0; !status && type < RF_TYPE_COUNT; type++) {
            for (size_t i = 0; !status && i < sizeof counts / sizeof *counts; i++, calls++) {
                struct rf_call call = {.coll = (enum rf_coll)coll,
                                       .type = (enum rf_type)type,
                                       .redop = redops[calls % 3],
                                       .root = calls % size,
                                       .count = counts[i]};
                status = check_call(&call, send, recv);
            }
        }
    }
    return status;
}

static int collectives(void) {
    int status = check_everything(false);
    if (!status) {
        status = check_everything(true);
    }
    if (!status) {
        tell("done", 0, NULL);
    }
    return status;
}

static int mismatch(const char *kind, int odd, size_t count, bool shared) {
    struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .type = RF_F32, .count = count};
    bool is_odd = rank == odd;
    int status = 0;

    if (!strcmp(kind, "collective")) {
        call.coll = is_odd ? RF_COLL_BROADCAST : RF_COLL_ALLREDUCE;
    } else if (!strcmp(kind, "type")) {
        call.type = is_odd ? RF_I32 : RF_F32;
    } else if (!strcmp(kind, "count")) {
        call.count = is_odd ? count + 1 : count;
    } else if (!strcmp(kind, "redop")) {
        call.redop = is_odd ? RF_MAX : RF_SUM;
    } else if (!strcmp(kind, "root")) {
        call.coll = RF_COLL_BROADCAST;
        call.root = is_odd;
    } else if (!strcmp(kind, "reduce_root")) {
        call.coll = RF_COLL_REDUCE;
        call.root = is_odd;
    } else {
        return complain("no such mismatch");
    }
    call.send = memory((count + 1) * 8, shared);
    call.recv = memory((count + 1) * 8, shared);
    if (!call.send || !call.recv) {
        return complain("no memory");
    }
    struct rf_call same = {.coll = RF_COLL_ALLREDUCE,
                           .type = RF_F32,
                           .count = count,
                           .send = call.send,
                           .recv = call.recv};
    int code = rf_run(comm, &same); /* so that links are warm and calls are counted */
    if (!code) {
        code = rf_run(comm, &call);
    }            /* else others have gone on and found out already */
    if (!code) { /* this rank's part may be over before the others have begun theirs */
        code = rf_barrier(comm);
    }
    if (code) {
        (void)tell_failure(code);
    } else {
        status = complain("nobody noticed");
    }
    if (rf_barrier(comm) != code) {
        status = complain("a later call has another code");
    }
    return status;
}

static int huge(const char *kind) {
    size_t count = ((size_t)1 << 31) + 12345;
    bool reduce = !strcmp(kind, "allreduce");
    uint8_t *data = memory(count, true);

    if (!data) {
        return complain("no memory");
    }
    memset(data, reduce || rank == 0 ? rank + 1 : 0, count);
    for (size_t i = 0; i < count; i += 4093) { /* marks all over it */
        data[i] = (uint8_t)(reduce || rank == 0 ? i / 4093 % 100 + (size_t)rank : 0);
    }
    int code = reduce ? rf_allreduce(comm, data, data, count, RF_U8, RF_SUM)
                      : rf_broadcast(comm, data, data, count, RF_U8, 0);
    if (code) {
        return tell_failure(code);
    }
    uint8_t plain = reduce ? (uint8_t)(size * (size + 1) / 2) : 1;
    for (size_t i = 0; i < count; i++) {
        size_t mark = i / 4093 % 100;
        uint8_t wanted = i % 4093 ? plain
                         : reduce ? (uint8_t)(mark * (size_t)size + (size_t)(size * (size - 1) / 2))
                                  : (uint8_t)mark;
        if (data[i] != wanted) {
            fprintf(stderr, "worker: rank %d: element %zu is %d, not %d\n", rank, i, data[i],
                    wanted);
            return EXIT_FAILURE;
        }
    }
    tell("done", 0, NULL);
    return 0;
}

/* Everybody sends to the next and receives from the one before, all at once. */
static int message_ring(size_t count) {
    uint32_t *out = memory(count * 4, false), *in = memory(count * 4, false);
    int next = (rank + 1) % size, before = (rank + size - 1) % size, status = 0;
    struct rf_request *requests[2] = {NULL, NULL};

    if (!out || !in) {
        return complain("no memory");
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = (uint32_t)(i * 2654435761u) + (uint32_t)rank;
    }
    struct rf_call send = {
        .coll = RF_COLL_SEND, .type = RF_U32, .root = next, .send = out, .count = count};
    struct rf_call recv = {
        .coll = RF_COLL_RECV, .type = RF_U32, .root = before, .recv = in, .count = count};
    int code = rf_start(comm, &send, &requests[0]);
    code = code ? code : rf_start(comm, &recv, &requests[1]);
    code = code ? code : rf_wait(requests[1], -1);
    code = code ? code : rf_wait(requests[0], -1);
    if (code) {
        return tell_failure(code);
    }
    for (size_t i = 0; i < count && !status; i++) {
        if (in[i] != (uint32_t)(i * 2654435761u) + (uint32_t)before) {
            status = complain("a message is not what was sent");
        }
    }
    return status;
}

/* A message that is sent while an all-reduce waits for the one who is to receive it. */
static int message(size_t count) {
    enum { PATIENCE_MS = 3000 };
    float *data = memory(count * sizeof(float), false);
    int32_t word = 17;
    struct rf_request *reduction, *delivery;
    struct rf_call reduce = {
        .coll = RF_COLL_ALLREDUCE, .type = RF_F32, .send = data, .recv = data, .count = count};
    struct rf_call receive = {
        .coll = RF_COLL_RECV, .type = RF_I32, .root = 1, .recv = &word, .count = 1};

    if (!data) {
        return complain("no memory");
    }
    int code = 0;
    if (rank == 1) {
        code = rf_start(comm, &reduce, &reduction);
        code = code ? code : rf_send(comm, &word, 1, RF_I32, 0);
    } else {
        word = 0;
        code = rf_start(comm, &receive, &delivery);
        if (!code && rf_wait(delivery, PATIENCE_MS) == RF_ETIMEDOUT) {
            rf_comm_abort(comm, "the message is stuck behind the all-reduce");
            return complain("the message is stuck behind the all-reduce");
        }
        code = code ? code : rf_start(comm, &reduce, &reduction);
    }
    code = code ? code : rf_wait(reduction, -1);
    if (code) {
        return tell_failure(code);
    }
    tell("done", 0, NULL);
    return 0;
}

/* Whether the file "waited.RANK" is in the run folder; `make` makes it. */
static bool has_waited(int who, bool make) {
    char path[4096];
    const char *folder = getenv("RINGFOLD_RUN_DIR");

    snprintf(path, sizeof path, "%s/waited.%d", folder ? folder : ".", who);
    if (make) {
        FILE *file = fopen(path, "w");
        if (file) {
            fclose(file);
        }
    }
    return access(path, F_OK) == 0;
}

/* Three all-reduces in flight. Rank 0 starts only when all others have said, by a file, that their
 * waits ran out: so they must have. */
static int requests(size_t count) {
    enum { FLIGHTS = 3 };
    struct rf_request *flights[FLIGHTS];
    float *data[FLIGHTS];
    int code = 0;

    for (int i = 0; i < FLIGHTS; i++) {
        data[i] = memory(count * sizeof(float), i == 1);
        if (!data[i]) {
            return complain("no memory");
        }
        for (size_t k = 0; k < count; k++) {
            data[i][k] = (float)(rank + i + 1);
        }
    }
    for (int from = 1; rank == 0 && from < size; from++) {
        while (!has_waited(from, false)) {
            usleep(1000);
        }
    }
    for (int i = 0; i < FLIGHTS; i++) {
        struct rf_call call = {.coll = RF_COLL_ALLREDUCE,
                               .type = RF_F32,
                               .send = data[i],
                               .recv = data[i],
                               .count = count};
        code = rf_start(comm, &call, &flights[i]);
        if (code) {
            return tell_failure(code);
        }
    }
    if (rank > 0) {
        for (int i = FLIGHTS - 1; i >= 0; i--) {
            if (rf_test(flights[i]) != 0 || rf_wait(flights[i], 20) != RF_ETIMEDOUT) {
                return complain("complete before all have begun");
            }
        }
        if (!has_waited(rank, true)) {
            return complain("cannot make a file in the run folder");
        }
    }
    do { /* the first by asking, the others by waiting, the last one first */
        code = rf_test(flights[0]);
    } while (code == 0);
    if (code != 1) {
        return tell_failure(code);
    }
    for (int i = FLIGHTS - 1; i >= 0; i--) {
        code = rf_wait(flights[i], 60000);
        if (code) {
            return tell_failure(code);
        }
        float wanted = (float)(size * (size + 1) / 2 + i * size);
        for (size_t k = 0; k < count; k++) {
            if (data[i][k] != wanted) {
                return complain("a sum is wrong");
            }
        }
    }
    int status = message_ring(count);
    if (!status) {
        status = message_ring(1);
    }
    if (!status) {
        tell("done", 0, NULL);
    }
    return status;
}

/* The last element counts those who have seen FILE. */
static int loop(size_t count, bool shared, const char *file) {
    float *data = memory((count + 1) * sizeof *data, shared);
    float *sum = memory((count + 1) * sizeof *sum, shared);

    if (!data || !sum) {
        return complain("no memory");
    }
    for (size_t i = 0; i < count; i++) {
        data[i] = (float)(rank + 1);
    }
    for (uint64_t step = 1;; step++) {
        data[count] = file && access(file, F_OK) == 0 ? 1 : 0;
        int code = rf_allreduce(comm, data, sum, count + 1, RF_F32, RF_SUM);
        if (code) {
            return tell_failure(code);
        }
        if (sum[0] != (float)(size * (size + 1) / 2) || sum[count / 2] != sum[0]) {
            return complain("a sum is wrong");
        }
        if (step == 3) {
            tell("running", 0, NULL);
        }
        if (sum[count] > 0) {
            tell("done", 0, NULL);
            return 0;
        }
    }
}

static int exit_within(int victim, size_t count, bool shared) {
    float *data = memory(count * sizeof *data, shared);
    struct rf_request *request;
    struct rf_call call = {.coll = RF_COLL_ALLREDUCE, .type = RF_F32, .count = count};

    if (!data) {
        return complain("no memory");
    }
    call.send = call.recv = data;
    int code = rf_run(comm, &call);
    if (!code && rank == victim) {
        code = rf_start(comm, &call, &request);
        if (!code) {
            _exit(7);
        }
    }
    while (!code) {
        code = rf_run(comm, &call);
    }
    return tell_failure(code);
}

static int once(size_t count, bool shared) {
    float *data = memory(count * sizeof *data, shared);

    if (!data) {
        return complain("no memory");
    }
    for (size_t i = 0; i < count; i++) {
        data[i] = (float)(rank + 1 + (int)(i % 3));
    }
    int code = rf_allreduce(comm, data, data, count, RF_F32, RF_SUM);
    if (code) {
        return tell_failure(code);
    }
    for (size_t i = 0; i < count; i++) {
        if (data[i] != (float)(size * (size + 1) / 2 + size * (int)(i % 3))) {
            return complain("a sum is wrong");
        }
    }
    tell("done", 0, NULL);
    return 0;
}

static int quiet(long calls, size_t count) {
    float *data = memory(count * sizeof *data, true);
    int code = data ? 0 : RF_ENOMEM;

    for (long i = 0; i < calls && !code; i++) {
        if (i % 10 == 0) {
            (void)getppid();
        }
        code = rf_allreduce(comm, data, data, count, RF_F32, RF_MAX);
    }
    if (code) {
        return tell_failure(code);
    }
    tell("done", 0, NULL);
    return 0;
}

static bool is_shared(const char *word) {
    return strcmp(word, "private") != 0;
}

static int act(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";

    if (!strcmp(what, "collectives")) {
        return collectives();
    }
    if (!strcmp(what, "mismatch") && argc >= 5) {
        return mismatch(argv[2], atoi(argv[3]), strtoull(argv[4], NULL, 10), argc < 6);
    }
    if (!strcmp(what, "huge") && argc == 3) {
        return huge(argv[2]);
    }
    if (!strcmp(what, "requests") && argc == 3) {
        return requests(strtoull(argv[2], NULL, 10));
    }
    if (!strcmp(what, "message") && argc == 3 && size == 2) {
        return message(strtoull(argv[2], NULL, 10));
    }
    if (!strcmp(what, "loop") && argc >= 4) {
        return loop(strtoull(argv[2], NULL, 10), is_shared(argv[3]), argc > 4 ? argv[4] : NULL);
    }
    if (!strcmp(what, "exit") && argc == 5) {
        return exit_within(atoi(argv[2]), strtoull(argv[3], NULL, 10), is_shared(argv[4]));
    }
    if (!strcmp(what, "once") && argc == 4) {
        return once(strtoull(argv[2], NULL, 10), is_shared(argv[3]));
    }
    if (!strcmp(what, "quiet") && argc == 4) {
        return quiet(strtol(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    }
    return complain("no such order");
}

int main(int argc, char **argv) {
    struct rf_options options;
    struct rf_error err = {0};

    rf_options_init(&options);
    int code = rf_options_from_environ(&options, environ, &err);
    if (!code) {
        rank = options.rank;
        size = options.size;
        code = rf_comm_create(&options, &comm, &err);
    }
    if (code) {
        tell("refused", code, &err);
        return code == RF_ELOST ? STATUS_LOST : EXIT_FAILURE;
    }
    int status = act(argc, argv);
    rf_comm_destroy(comm);
    for (size_t i = 0; i < taken_count; i++) {
        free(taken[i]);
    }
    return status;
}
