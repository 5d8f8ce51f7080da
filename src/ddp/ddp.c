/* Data-parallel training: shards dealt, buckets averaged while the backward pass runs, and the
 * agreement that ends a step.
 *
 * Every member issues the same sequence of operations, which is what keeps the group together:
 *
 *     seal     all_gather of digests
 *     step     allreduce of the sample count, allreduce of bucket 0, 1, …, all_gather of step
 * reports and after the first committed step a broadcast of the order in which gradients became
 * ready
 *
 * The sample count's sum is written where the buckets' divisor is read, and an operation starts to
 * run only after those before it: so the weight of every member may be different and is known in
 * time, without a wait. Buckets start strictly in their order, from within `ready` as far as they
 * are complete and from `commit` for the rest. Gradients are averaged out of place: the local ones
 * live until the next step begins.
 *
 * An operation that fails, or a failure of this member between two of them, ends the group
 * (`break_group`), so that nobody waits for a part that will not come; then this object's own
 * operations are waited for, and only its memory may be freed. */
#include "ddp/ddp.h"

#include "base/assert.h"
#include "base/digest.h"
#include "base/mem.h"
#include "base/status.h"
#include "ddp/buckets.h"
#include "member/step.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    MOST_IN_FLIGHT = 256, /* buckets; the rest starts as these complete */
    DIGESTS = 2,          /* gathered at the seal: what was registered, and its contents */
    CONTEXT_MAX = 96
};

struct tensor {
    char *name;
    float *param; /* the caller's */
    bool ready;
    uint64_t digest; /* of this step's average */
};

struct extra {
    char *name;
    const void *bytes; /* the caller's */
    size_t length;
};

enum stage {
    STAGE_OPEN,  /* being registered */
    STAGE_IDLE,  /* between steps */
    STAGE_STEP,  /* from begin to commit */
    STAGE_BROKEN /* the group has failed; `error` says why */
};

/* What operations other than the buckets' read and write; in the runner's memory, each on its own
 * cache lines. */
struct control {
    double *count, *divisor;         /* samples of this member, and of all */
    unsigned char *report, *reports; /* encoded */
    uint64_t *digests, *all_digests;
    uint32_t *order; /* the observed one, by position */
};

/* One step's state; cleared by begin. */
struct step {
    uint32_t next, end;  /* shards: the next to hand out, the end of this member's */
    bool in_shard, told; /* between next_shard and shard_done; the samples of the shard are known */
    uint64_t shard_samples, samples, skipped;
    double loss_sum;
    bool late_samples;     /* told after the count had gone out */
    bool counted;          /* the count has gone out */
    int started, finished; /* buckets: operations started, and of them complete and freed */
    int64_t began, in_ready, busy, blocked, blocked_in_buckets, compute;
    uint64_t state_digest;
};

struct rf_ddp {
    struct rf__runner *runner;
    struct rf_ddp_options options;
    uint32_t shards;
    enum stage stage;
    struct rf_error error;

    int tensors, tensors_room, extras, extras_room;
    struct tensor *tensor;
    size_t *count; /* elements, by tensor */
    struct extra *extra;
    size_t floats; /* of the gradient block, as far as registered */

    /* From seal on. */
    int *order;
    struct rf__bucket *bucket;
    struct rf__slot *slot;
    int *missing; /* tensors of the bucket that are not ready */
    struct rf__op **op;
    int buckets;
    float *gradients, *averages;
    void *control_memory;
    struct control control;
    struct rf__step_report *reports; /* decoded */
    struct rf__op *count_op;

    uint64_t steps; /* committed */
    uint64_t chain;
    bool averaged; /* the averages are valid */
    bool reorder;  /* a new order waits for the next begin */
    bool learned;
    bool stop;
    int observed; /* entries of control.order */
    struct step step;
};

/* ---- failure
 * ------------------------------------------------------------------------------------------------------
 */

static int64_t now(const struct rf_ddp *ddp) {
    return ddp->runner->ops->now(ddp->runner);
}

static double seconds(int64_t ns) {
    return ns > 0 ? (double)ns / 1e9 : 0;
}

/* Waits for one operation of a group that has failed: the only thing to learn is that its memory is
 * free again. */
static void drain(struct rf_ddp *ddp, struct rf__op **op) {
    if (*op) {
        (void)ddp->runner->ops->wait(ddp->runner, *op, -1, NULL);
        *op = NULL;
    }
}

static void drain_all(struct rf_ddp *ddp) {
    drain(ddp, &ddp->count_op);
    for (int k = ddp->step.finished; k < ddp->step.started; k++) {
        drain(ddp, &ddp->op[k]);
    }
    ddp->step.finished = ddp->step.started;
}

/* Ends the group with `cause`, or with what has ended it already, and this object with it. Returns
 * the cause's code. */
static int break_with(struct rf_ddp *ddp, const struct rf_error *cause, struct rf_error *err) {
    if (ddp->stage != STAGE_BROKEN) {
        ddp->stage = STAGE_BROKEN;
        ddp->averaged = false;
        ddp->error = *cause;
        ddp->runner->ops->fail(ddp->runner, cause);
        drain_all(ddp);
    }
    if (err) {
        *err = ddp->error;
    }
    return ddp->error.code;
}

/* The same for an operation's error `code`: the group's first cause where there is one, with what
 * was being done. */
static int break_group(struct rf_ddp *ddp, struct rf_error *err, int code, const char *context) {
    struct rf_error cause = {.code = 0};

    ddp->runner->ops->error(ddp->runner, &cause);
    if (cause.code == 0) {
        (void)rf__fail(&cause, code, 0, "rank %d of %d: %s", ddp->runner->rank, ddp->runner->size,
                       rf_error_text(code));
        cause.rank = ddp->runner->rank;
    }
    (void)rf__wrap(&cause, code, "%s: ", context);
    return break_with(ddp, &cause, err);
}

static int report_broken(const struct rf_ddp *ddp, struct rf_error *err) {
    if (err) {
        *err = ddp->error;
    }
    return ddp->error.code;
}

struct context {
    char text[CONTEXT_MAX];
};

static struct context context_of_step(const struct rf_ddp *ddp, const char *doing) {
    struct context context;
    snprintf(context.text, sizeof context.text, "step %" PRIu64 ", %s", ddp->steps, doing);
    return context;
}

static struct context context_of_bucket(const struct rf_ddp *ddp, int k) {
    struct context context;
    snprintf(context.text, sizeof context.text, "step %" PRIu64 ", averaging bucket %d of %d",
             ddp->steps, k + 1, ddp->buckets);
    return context;
}

/* Carries one operation out. */
static int run(struct rf_ddp *ddp, const struct rf_call *call, const char *context,
               struct rf_error *err) {
    const struct rf__runner_ops *ops = ddp->runner->ops;
    struct rf__op *op = NULL;

    int rc = ops->start(ddp->runner, &(struct rf__op_params){.call = *call}, &op);
    if (rc == 0) {
        rc = ops->wait(ddp->runner, op, -1, NULL);
    }
    return rc ? break_group(ddp, err, rc, context) : 0;
}

/* ---- creation and registration
 * ------------------------------------------------------------------------------------ */

void rf__ddp_options_init(struct rf_ddp_options *options) {
    *options = (struct rf_ddp_options){
        .first_bucket_bytes = (size_t)1 << 20,
        .bucket_bytes = (size_t)25 << 20,
        .algorithm = RF_ALGORITHM_AUTO,
    };
}

static int check_options(const struct rf_ddp_options *options, struct rf_error *err) {
    if (options->first_bucket_bytes == 0 || options->bucket_bytes == 0) {
        return rf__fail(err, RF_EINVAL, 0, "'%s' must not be 0",
                        options->first_bucket_bytes ? "bucket_bytes" : "first_bucket_bytes");
    }
    if (options->shards > RF_MAX_SHARDS) {
        return rf__fail(err, RF_ELIMIT, 0, "%" PRIu32 " shards, but at most %d are possible",
                        options->shards, RF_MAX_SHARDS);
    }
    if ((unsigned)options->algorithm >= RF_ALGORITHM_COUNT) {
        return rf__fail(err, RF_EINVAL, 0, "'algorithm' has no value %d", (int)options->algorithm);
    }
    return 0;
}

int rf__ddp_create(struct rf__runner *runner, const struct rf_ddp_options *options,
                   struct rf_ddp **out, struct rf_error *err) {
    struct rf_ddp_options defaults;

    RF_ASSERT(runner && out);
    rf__ddp_options_init(&defaults);
    if (!options) {
        options = &defaults;
    }
    int rc = check_options(options, err);
    if (rc) {
        return rc;
    }
    struct rf_ddp *ddp = rf__alloc(1, sizeof *ddp);
    if (!ddp) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for data-parallel training");
    }
    ddp->runner = runner;
    ddp->options = *options;
    ddp->shards = options->shards ? options->shards : (uint32_t)runner->size;
    *out = ddp;
    return 0;
}

/* What seal has allocated. */
static void unseal(struct rf_ddp *ddp) {
    struct rf__runner *runner = ddp->runner;

    if (ddp->control_memory) {
        runner->ops->release(runner, ddp->control_memory);
    }
    if (ddp->averages) {
        runner->ops->release(runner, ddp->averages);
    }
    if (ddp->gradients) {
        runner->ops->release(runner, ddp->gradients);
    }
    ddp->control_memory = NULL;
    ddp->averages = ddp->gradients = NULL;
    rf__free(ddp->reports);
    rf__free(ddp->op);
    rf__free(ddp->missing);
    rf__free(ddp->slot);
    rf__free(ddp->bucket);
    rf__free(ddp->order);
    ddp->reports = NULL;
    ddp->op = NULL;
    ddp->missing = NULL;
    ddp->slot = NULL;
    ddp->bucket = NULL;
    ddp->order = NULL;
    ddp->buckets = 0;
}

void rf__ddp_destroy(struct rf_ddp *ddp) {
    if (!ddp) {
        return;
    }
    if (ddp->stage == STAGE_STEP) {
        struct rf_error cause;
        (void)rf__fail(&cause, RF_EREVOKED, 0, "rank %d of %d left in the middle of step %" PRIu64,
                       ddp->runner->rank, ddp->runner->size, ddp->steps);
        cause.rank = ddp->runner->rank;
        (void)break_with(ddp, &cause, NULL);
    }
    unseal(ddp);
    for (int i = 0; i < ddp->extras; i++) {
        rf__free(ddp->extra[i].name);
    }
    for (int i = 0; i < ddp->tensors; i++) {
        rf__free(ddp->tensor[i].name);
    }
    rf__free(ddp->extra);
    rf__free(ddp->count);
    rf__free(ddp->tensor);
    rf__free(ddp);
}

static int check_open(const struct rf_ddp *ddp, const char *name, int used, struct rf_error *err) {
    if (ddp->stage == STAGE_BROKEN) {
        return report_broken(ddp, err);
    }
    if (ddp->stage != STAGE_OPEN) {
        return rf__fail(err, RF_EINVAL, 0, "'%s' is registered after the seal", name ? name : "");
    }
    if (!name || !name[0]) {
        return rf__fail(err, RF_EINVAL, 0, "a registered tensor needs a name");
    }
    if (used == RF_MAX_TENSORS) {
        return rf__fail(err, RF_ELIMIT, 0, "'%s' is one more than the %d tensors that are possible",
                        name, RF_MAX_TENSORS);
    }
    return 0;
}

static int no_memory_for(const char *name, struct rf_error *err) {
    return rf__fail(err, RF_ENOMEM, 0, "no memory to register '%s'", name);
}

/* Room for one more tensor. The two arrays may differ in size after a failure; `tensors_room` is
 * what both have. */
static int make_room(struct rf_ddp *ddp) {
    if (ddp->tensors < ddp->tensors_room) {
        return 0;
    }
    size_t room = ddp->tensors_room ? 2 * (size_t)ddp->tensors_room : 64;
    struct tensor *tensor = rf__grow(ddp->tensor, room, sizeof *tensor);
    if (!tensor) {
        return RF_ENOMEM;
    }
    ddp->tensor = tensor;
    size_t *count = rf__grow(ddp->count, room, sizeof *count);
    if (!count) {
        return RF_ENOMEM;
    }
    ddp->count = count;
    ddp->tensors_room = (int)room;
    return 0;
}

int rf__ddp_register(struct rf_ddp *ddp, const char *name, float *param, size_t count,
                     struct rf_error *err) {
    int rc = check_open(ddp, name, ddp->tensors, err);
    if (rc) {
        return rc;
    }
    size_t floats = rf__buckets_floats(&count, 1);
    if (!param || count == 0) {
        return rf__fail(err, RF_EINVAL, 0, "parameter '%s' has no elements", name);
    }
    if (floats == 0 || floats > PTRDIFF_MAX / sizeof(float) / 2 - ddp->floats) {
        return rf__fail(err, RF_ELIMIT, 0, "parameter '%s' of %zu elements does not fit", name,
                        count);
    }
    char *copy = make_room(ddp) == 0 ? rf__strdup(name) : NULL;
    if (!copy) {
        return no_memory_for(name, err);
    }
    ddp->tensor[ddp->tensors] = (struct tensor){.name = copy, .param = param};
    ddp->count[ddp->tensors] = count;
    ddp->tensors++;
    ddp->floats += floats;
    return 0;
}

int rf__ddp_register_state(struct rf_ddp *ddp, const char *name, void *state, size_t bytes,
                           struct rf_error *err) {
    int rc = check_open(ddp, name, ddp->extras, err);
    if (rc) {
        return rc;
    }
    if (!state && bytes) {
        return rf__fail(err, RF_EINVAL, 0, "state '%s' has no address", name);
    }
    if (ddp->extras == ddp->extras_room) {
        size_t room = ddp->extras_room ? 2 * (size_t)ddp->extras_room : 8;
        struct extra *extra = rf__grow(ddp->extra, room, sizeof *extra);
        if (!extra) {
            return no_memory_for(name, err);
        }
        ddp->extra = extra;
        ddp->extras_room = (int)room;
    }
    char *copy = rf__strdup(name);
    if (!copy) {
        return no_memory_for(name, err);
    }
    ddp->extra[ddp->extras++] = (struct extra){.name = copy, .bytes = state, .length = bytes};
    return 0;
}

/* ---- digests
 * ------------------------------------------------------------------------------------------------------
 */

/* What all members must have in common for their operations to match. */
static uint64_t hash_registration(const struct rf_ddp *ddp) {
    const struct rf_ddp_options *options = &ddp->options;
    uint64_t digest = rf__digest_mix((uint64_t)ddp->tensors, (uint64_t)ddp->extras);

    for (int i = 0; i < ddp->tensors; i++) {
        digest = rf__digest(ddp->tensor[i].name, strlen(ddp->tensor[i].name), digest);
        digest = rf__digest_mix(digest, ddp->count[i]);
    }
    for (int i = 0; i < ddp->extras; i++) {
        digest = rf__digest(ddp->extra[i].name, strlen(ddp->extra[i].name), digest);
        digest = rf__digest_mix(digest, ddp->extra[i].length);
    }
    digest = rf__digest_mix(digest, options->first_bucket_bytes);
    digest = rf__digest_mix(digest, options->bucket_bytes);
    digest = rf__digest_mix(digest, ddp->shards);
    digest = rf__digest_mix(digest, options->hash_every);
    return rf__digest_mix(digest, (uint64_t)options->algorithm);
}

/* Never 0, which in a step report stands for "none". */
static uint64_t hash_state(const struct rf_ddp *ddp) {
    uint64_t digest = 0;

    for (int i = 0; i < ddp->tensors; i++) {
        digest = rf__digest(ddp->tensor[i].param, ddp->count[i] * sizeof(float), digest);
    }
    for (int i = 0; i < ddp->extras; i++) {
        digest = rf__digest(ddp->extra[i].bytes, ddp->extra[i].length, digest);
    }
    return digest ? digest : 1;
}

/* Exchanges both digests and compares them, those of the registration first. A difference ends the
 * group: all should see it, but a member that sees it alone (its copy of the digests was damaged)
 * must not leave the others waiting. */
static int compare_states(struct rf_ddp *ddp, uint64_t state, const char *context, const char *when,
                          struct rf_error *err) {
    int size = ddp->runner->size, rc;
    struct rf_error cause;
    uint64_t column[RF_MAX_RANKS] = {0};

    ddp->control.digests[0] = hash_registration(ddp);
    ddp->control.digests[1] = state;
    struct rf_call call = {.coll = RF_COLL_ALL_GATHER,
                           .type = RF_U64,
                           .send = ddp->control.digests,
                           .recv = ddp->control.all_digests,
                           .count = DIGESTS};
    rc = run(ddp, &call, context, err);
    if (rc) {
        return rc;
    }
    for (int which = 0; which < DIGESTS && rc == 0; which++) {
        for (int r = 0; r < size; r++) {
            column[r] = ddp->control.all_digests[r * DIGESTS + which];
        }
        rc = which == 0 ? rf__step_compare(column, size, RF_EMISMATCH,
                                           "set of registered tensors or options", when, &cause)
                        : rf__step_compare(column, size, RF_EDIVERGED, "state", when, &cause);
    }
    return rc ? break_with(ddp, &cause, err) : 0;
}

/* ---- seal
 * ---------------------------------------------------------------------------------------------------------
 */

static size_t padded(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

static void *take(char **at, size_t bytes) {
    void *part = *at;
    *at += padded(bytes);
    return part;
}

static int allocate_control(struct rf_ddp *ddp, struct rf_error *err) {
    const struct rf__runner_ops *ops = ddp->runner->ops;
    struct control *c = &ddp->control;
    size_t size = (size_t)ddp->runner->size;
    size_t digest_bytes = DIGESTS * sizeof(uint64_t);
    size_t order_bytes = (size_t)ddp->tensors * sizeof(uint32_t);

    int rc = ops->alloc(ddp->runner,
                        2 * padded(sizeof(double)) + padded(RF__STEP_REPORT_BYTES) +
                            padded(size * RF__STEP_REPORT_BYTES) + padded(digest_bytes) +
                            padded(size * digest_bytes) + padded(order_bytes),
                        &ddp->control_memory, err);
    if (rc) {
        ddp->control_memory = NULL;
        return rc;
    }
    char *at = ddp->control_memory;
    c->count = take(&at, sizeof(double));
    c->divisor = take(&at, sizeof(double));
    c->report = take(&at, RF__STEP_REPORT_BYTES);
    c->reports = take(&at, size * RF__STEP_REPORT_BYTES);
    c->digests = take(&at, digest_bytes);
    c->all_digests = take(&at, size * digest_bytes);
    c->order = take(&at, order_bytes);
    return 0;
}

static int allocate_blocks(struct rf_ddp *ddp, struct rf_error *err) {
    const struct rf__runner_ops *ops = ddp->runner->ops;
    size_t bytes = ddp->floats * sizeof(float);
    void *gradients = NULL, *averages = NULL;

    int rc = ops->alloc(ddp->runner, bytes, &gradients, err);
    if (rc == 0) {
        ddp->gradients = gradients;
        rc = ops->alloc(ddp->runner, bytes, &averages, err);
    }
    if (rc == 0) {
        ddp->averages = averages;
    }
    return rc;
}

static int allocate(struct rf_ddp *ddp, struct rf_error *err) {
    size_t tensors = (size_t)ddp->tensors;

    ddp->order = rf__alloc(tensors, sizeof *ddp->order);
    ddp->bucket = rf__alloc(tensors, sizeof *ddp->bucket);
    ddp->slot = rf__alloc(tensors, sizeof *ddp->slot);
    ddp->missing = rf__alloc(tensors, sizeof *ddp->missing);
    ddp->op = rf__alloc(tensors, sizeof *ddp->op);
    ddp->reports = rf__alloc((size_t)ddp->runner->size, sizeof *ddp->reports);
    if (!ddp->order || !ddp->bucket || !ddp->slot || !ddp->missing || !ddp->op || !ddp->reports) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the buckets of %d tensors", ddp->tensors);
    }
    int rc = allocate_control(ddp, err);
    return rc ? rc : allocate_blocks(ddp, err);
}

static void lay_out(struct rf_ddp *ddp) {
    ddp->buckets =
        rf__buckets_layout(ddp->count, ddp->order, ddp->tensors, ddp->options.first_bucket_bytes,
                           ddp->options.bucket_bytes, ddp->bucket, ddp->slot);
}

int rf__ddp_seal(struct rf_ddp *ddp, struct rf_error *err) {
    struct rf_error cause = {.code = 0};

    if (ddp->stage == STAGE_BROKEN) {
        return report_broken(ddp, err);
    }
    if (ddp->stage != STAGE_OPEN) {
        return rf__fail(err, RF_EINVAL, 0, "already sealed");
    }
    int rc = allocate(ddp, &cause);
    if (rc) { /* the others wait for this member's digest */
        (void)rf__wrap(&cause, rc, "rank %d of %d, allocating the gradients: ", ddp->runner->rank,
                       ddp->runner->size);
        cause.rank = ddp->runner->rank;
        rc = break_with(ddp, &cause, err);
        goto out;
    }
    for (int i = 0; i < ddp->tensors; i++) {
        ddp->order[i] = ddp->tensors - 1 - i;
    }
    lay_out(ddp);
    ddp->chain = hash_state(ddp);
    rc = compare_states(ddp, ddp->chain, "comparing the initial state", "at the start", err);
    if (rc == 0 && ddp->tensors == 0) {
        rc = rf__fail(err, RF_EINVAL, 0, "no parameter is registered");
    }
    if (rc == 0) {
        ddp->stage = STAGE_IDLE;
    }

out:
    if (rc) {
        unseal(ddp);
    }
    return rc;
}

/* ---- a step
 * -------------------------------------------------------------------------------------------------------
 */

static uint32_t first_shard(const struct rf_ddp *ddp, int rank) {
    return (uint32_t)((uint64_t)rank * ddp->shards / (uint64_t)ddp->runner->size);
}

static void adopt_order(struct rf_ddp *ddp) {
    for (int k = 0; k < ddp->tensors; k++) {
        ddp->order[k] = (int)ddp->control.order[k];
    }
    lay_out(ddp);
    ddp->reorder = false;
}

static int check_idle(const struct rf_ddp *ddp, struct rf_error *err) {
    if (ddp->stage == STAGE_BROKEN) {
        return report_broken(ddp, err);
    }
    if (ddp->stage != STAGE_IDLE) {
        return rf__fail(err, RF_EINVAL, 0,
                        ddp->stage == STAGE_OPEN ? "not sealed yet"
                                                 : "a step is not committed yet");
    }
    return 0;
}

int rf__ddp_begin(struct rf_ddp *ddp, struct rf_step *out, struct rf_error *err) {
    struct rf__runner *runner = ddp->runner;

    int rc = check_idle(ddp, err);
    if (rc) {
        return rc;
    }
    if (ddp->reorder) {
        adopt_order(ddp);
    }
    memset(ddp->gradients, 0, ddp->floats * sizeof(float));
    for (int i = 0; i < ddp->tensors; i++) {
        ddp->tensor[i].ready = false;
    }
    for (int k = 0; k < ddp->buckets; k++) {
        ddp->missing[k] = ddp->bucket[k].tensors;
    }
    ddp->averaged = false;
    ddp->observed = 0;
    ddp->step = (struct step){.next = first_shard(ddp, runner->rank),
                              .end = first_shard(ddp, runner->rank + 1)};
    ddp->stage = STAGE_STEP;
    if (out) {
        *out = (struct rf_step){.step = ddp->steps,
                                .generation = runner->generation,
                                .rank = runner->rank,
                                .size = runner->size,
                                .shards = ddp->shards};
    }
    ddp->step.began = now(ddp);
    return 0;
}

int rf__ddp_next_shard(struct rf_ddp *ddp, struct rf_shard *out) {
    struct step *step = &ddp->step;

    if (ddp->stage == STAGE_BROKEN) {
        return ddp->error.code;
    }
    if (ddp->stage != STAGE_STEP || step->in_shard) {
        return RF_EINVAL;
    }
    if (step->next == step->end) {
        return 0;
    }
    *out = (struct rf_shard){.step = ddp->steps, .index = step->next, .shards = ddp->shards};
    step->in_shard = true;
    step->told = false;
    step->shard_samples = 0;
    step->next++;
    return 1;
}

static bool in_range(const struct rf_ddp *ddp, int index) {
    return index >= 0 && index < ddp->tensors;
}

float *rf__ddp_grad(struct rf_ddp *ddp, int index) {
    if (ddp->stage != STAGE_STEP || !in_range(ddp, index)) {
        return NULL;
    }
    return ddp->gradients + ddp->slot[index].offset;
}

void rf__ddp_shard_samples(struct rf_ddp *ddp, uint64_t samples) {
    struct step *step = &ddp->step;

    if (step->counted && !(step->told && samples == step->shard_samples)) {
        step->late_samples = true; /* shard_done says so */
        return;
    }
    step->told = true;
    step->shard_samples = samples;
}

/* Sends the sample count out, ahead of all buckets: its sum is their divisor. */
static int start_count(struct rf_ddp *ddp, struct rf_error *err) {
    struct step *step = &ddp->step;
    struct rf__op_params params = {.call = {.coll = RF_COLL_ALLREDUCE,
                                            .type = RF_F64,
                                            .redop = RF_SUM,
                                            .send = ddp->control.count,
                                            .recv = ddp->control.divisor,
                                            .count = 1}};

    *ddp->control.count = (double)(step->samples + (step->in_shard ? step->shard_samples : 0));
    int rc = ddp->runner->ops->start(ddp->runner, &params, &ddp->count_op);
    if (rc) {
        ddp->count_op = NULL;
        return break_group(ddp, err, rc, context_of_step(ddp, "counting samples").text);
    }
    step->counted = true;
    return 0;
}

static int start_bucket(struct rf_ddp *ddp, struct rf_error *err) {
    int k = ddp->step.started;
    const struct rf__bucket *bucket = &ddp->bucket[k];
    struct rf__op_params params = {.call = {.coll = RF_COLL_ALLREDUCE,
                                            .type = RF_F32,
                                            .redop = RF_SUM,
                                            .send = ddp->gradients + bucket->offset,
                                            .recv = ddp->averages + bucket->offset,
                                            .count = bucket->count,
                                            .algorithm = ddp->options.algorithm},
                                   .divisor = ddp->control.divisor};

    int rc = ddp->runner->ops->start(ddp->runner, &params, &ddp->op[k]);
    if (rc) {
        ddp->op[k] = NULL;
        return break_group(ddp, err, rc, context_of_bucket(ddp, k).text);
    }
    ddp->step.started++;
    return 0;
}

/* Starts, in order, the buckets that are complete, as far as the limit of operations in flight
 * allows. */
static int start_complete(struct rf_ddp *ddp, struct rf_error *err) {
    struct step *step = &ddp->step;
    int rc = 0;

    while (rc == 0 && step->started < ddp->buckets && ddp->missing[step->started] == 0 &&
           step->started - step->finished < MOST_IN_FLIGHT) {
        rc = start_bucket(ddp, err);
    }
    return rc;
}

static void mark_ready(struct rf_ddp *ddp, int index) {
    ddp->tensor[index].ready = true;
    ddp->missing[ddp->slot[index].bucket]--;
    ddp->control.order[ddp->observed++] = (uint32_t)index;
}

int rf__ddp_ready(struct rf_ddp *ddp, int index) {
    struct step *step = &ddp->step;
    int rc = 0;

    if (ddp->stage == STAGE_BROKEN) {
        return ddp->error.code;
    }
    if (ddp->stage != STAGE_STEP || !step->in_shard || !in_range(ddp, index)) {
        return RF_EINVAL;
    }
    if (step->next < step->end) {
        return 0; /* further shards will add to it */
    }
    if (!step->told || ddp->tensor[index].ready) {
        return RF_EINVAL;
    }
    mark_ready(ddp, index);
    if (ddp->options.no_overlap) {
        return 0;
    }
    int64_t entered = now(ddp);
    if (!step->counted) {
        rc = start_count(ddp, NULL);
    }
    if (rc == 0) {
        rc = start_complete(ddp, NULL);
    }
    step->in_ready += now(ddp) - entered;
    return rc;
}

int rf__ddp_shard_done(struct rf_ddp *ddp, double loss_sum) {
    struct step *step = &ddp->step;

    if (ddp->stage == STAGE_BROKEN) {
        return ddp->error.code;
    }
    if (ddp->stage != STAGE_STEP || !step->in_shard || !step->told || step->late_samples) {
        return RF_EINVAL;
    }
    step->in_shard = false;
    step->samples += step->shard_samples;
    step->loss_sum += loss_sum;
    return 0;
}

void rf__ddp_request_stop(struct rf_ddp *ddp) {
    ddp->stop = true;
}

/* ---- commit
 * -------------------------------------------------------------------------------------------------------
 */

static int check_finished(const struct rf_ddp *ddp, struct rf_error *err) {
    const struct step *step = &ddp->step;

    if (ddp->stage == STAGE_BROKEN) {
        return report_broken(ddp, err);
    }
    if (ddp->stage != STAGE_STEP) {
        return rf__fail(err, RF_EINVAL, 0, "no step has begun");
    }
    if (step->in_shard || step->next < step->end) {
        return rf__fail(
            err, RF_EINVAL, 0, "step %" PRIu64 ": shard %" PRIu32 " of %" PRIu32 " is not done%s",
            ddp->steps, step->in_shard ? step->next - 1 : step->next, ddp->shards,
            step->late_samples ? ", its samples were told after its first gradient was ready" : "");
    }
    return 0;
}

/* What was never called ready has its gradient all the same: as it is now. */
static int start_rest(struct rf_ddp *ddp, struct rf_error *err) {
    int rc = ddp->step.counted ? 0 : start_count(ddp, err);

    for (int k = 0; k < ddp->buckets; k++) {
        ddp->missing[k] = 0;
    }
    return rc ? rc : start_complete(ddp, err);
}

static bool hash_is_due(const struct rf_ddp *ddp) {
    return ddp->options.hash_every && ddp->steps && ddp->steps % ddp->options.hash_every == 0;
}

/* Waits for one operation of the step, which frees it. */
static int finish(struct rf_ddp *ddp, struct rf__op **op, int64_t *busy) {
    int64_t entered = now(ddp);
    int rc = ddp->runner->ops->wait(ddp->runner, *op, -1, busy);

    *op = NULL;
    ddp->step.blocked += now(ddp) - entered;
    ddp->step.blocked_in_buckets += now(ddp) - entered;
    return rc;
}

/* The total of samples, which is then final. */
static int finish_count(struct rf_ddp *ddp, struct rf_error *err) {
    int rc = finish(ddp, &ddp->count_op, NULL);
    return rc ? break_group(ddp, err, rc, context_of_step(ddp, "counting samples").text) : 0;
}

/* One bucket: waits for it, lets the next start that the limit held back, and hashes its averages
 * while others still run. */
static int finish_bucket(struct rf_ddp *ddp, struct rf_error *err) {
    int k = ddp->step.finished;
    const struct rf__bucket *bucket = &ddp->bucket[k];
    int64_t busy = 0;

    int rc = finish(ddp, &ddp->op[k], &busy);
    ddp->step.finished++;
    if (rc) {
        return break_group(ddp, err, rc, context_of_bucket(ddp, k).text);
    }
    ddp->step.busy += busy;
    rc = start_complete(ddp, err);
    if (*ddp->control.divisor == 0) { /* nobody used a sample: 0 / 0 */
        memset(ddp->averages + bucket->offset, 0, bucket->count * sizeof(float));
    }
    for (int i = bucket->first; i < bucket->first + bucket->tensors; i++) {
        int t = ddp->order[i];
        ddp->tensor[t].digest =
            rf__digest(ddp->averages + ddp->slot[t].offset, ddp->count[t] * sizeof(float), 0);
    }
    return rc;
}

/* In the order of registration, so that it does not depend on how tensors were put into buckets. */
static uint64_t next_in_chain(const struct rf_ddp *ddp) {
    uint64_t digest = rf__digest_mix(ddp->chain, ddp->runner->generation);

    digest = rf__digest_mix(digest, ddp->steps);
    digest = rf__digest_mix(digest, (uint64_t)ddp->runner->size);
    for (int i = 0; i < ddp->tensors; i++) {
        digest = rf__digest_mix(digest, ddp->tensor[i].digest);
    }
    return digest;
}

static int decode_reports(struct rf_ddp *ddp, struct rf_error *err) {
    for (int r = 0; r < ddp->runner->size; r++) {
        const unsigned char *bytes = ddp->control.reports + (size_t)r * RF__STEP_REPORT_BYTES;
        if (rf__step_report_decode(bytes, &ddp->reports[r]) != 0) {
            (void)rf__fail(err, RF_EPROTO, 0, "the report of rank %d of %d cannot be read", r,
                           ddp->runner->size);
            err->rank = r;
            return RF_EPROTO;
        }
    }
    return 0;
}

/* What the decision must also satisfy for this step to count. */
static int check_decision(const struct rf_ddp *ddp, const struct rf__step_decision *decision,
                          struct rf_error *err) {
    if (ddp->reports[0].step != ddp->steps ||
        ddp->reports[0].generation != ddp->runner->generation) {
        return rf__fail(err, RF_EPROTO, 0, "all reports are of another step");
    }
    for (int r = 0; r < ddp->runner->size; r++) {
        if (!ddp->reports[r].prepared) {
            (void)rf__fail(err, RF_EPROTO, 0, "rank %d of %d is not prepared", r,
                           ddp->runner->size);
            err->rank = r;
            return RF_EPROTO;
        }
    }
    if ((double)decision->samples != *ddp->control.divisor) {
        return rf__fail(err, RF_EPROTO, 0,
                        "%" PRIu64 " samples were reported, but %.0f went into the averages",
                        decision->samples, *ddp->control.divisor);
    }
    return 0;
}

/* The commit barrier: all reports to all members, and the same decision from them on each. */
static int agree(struct rf_ddp *ddp, uint64_t chain, struct rf__step_decision *decision,
                 struct rf_error *err) {
    const struct step *step = &ddp->step;
    struct rf_error cause = {.code = 0};
    struct rf__step_report own = {
        .generation = ddp->runner->generation,
        .step = ddp->steps,
        .prepared = true,
        .stop = ddp->stop,
        .samples = step->samples,
        .digest = chain,
        .state_digest = step->state_digest,
        .loss_sum = step->loss_sum,
        .compute_s = seconds(step->compute),
        .comm_s = seconds(step->busy),
    };
    struct rf_call call = {.coll = RF_COLL_ALL_GATHER,
                           .type = RF_U8,
                           .send = ddp->control.report,
                           .recv = ddp->control.reports,
                           .count = RF__STEP_REPORT_BYTES};

    rf__step_report_encode(&own, ddp->control.report);
    int64_t entered = now(ddp);
    int rc = run(ddp, &call, context_of_step(ddp, "exchanging reports").text, err);
    ddp->step.blocked += now(ddp) - entered;
    if (rc) {
        return rc;
    }
    rc = decode_reports(ddp, &cause);
    if (rc == 0) {
        rc = rf__step_decide(ddp->reports, ddp->runner->size, decision, &cause);
    }
    if (rc == 0) {
        rc = check_decision(ddp, decision, &cause);
    }
    if (rc && rc != RF_EDIVERGED) { /* that line names the step itself */
        (void)rf__wrap(&cause, rc, "%s: ", context_of_step(ddp, "deciding").text);
    }
    return rc ? break_with(ddp, &cause, err) : 0;
}

static bool is_permutation(struct rf_ddp *ddp, const uint32_t *order) {
    bool valid = true;

    for (int i = 0; i < ddp->tensors; i++) {
        ddp->tensor[i].ready = false;
    }
    for (int k = 0; k < ddp->tensors && valid; k++) {
        valid = order[k] < (uint32_t)ddp->tensors && !ddp->tensor[order[k]].ready;
        if (valid) {
            ddp->tensor[order[k]].ready = true;
        }
    }
    return valid;
}

/* Takes over the order in which the first member with a shard saw its gradients become ready; the
 * buckets follow it from the next begin on, since until then the averages stay where they are. */
static int learn_order(struct rf_ddp *ddp, struct rf_error *err) {
    struct control *c = &ddp->control;
    int root = 0;

    while (first_shard(ddp, root + 1) == first_shard(ddp, root)) {
        root++; /* the last member always has one */
    }
    for (int k = 0; k < ddp->tensors; k++) { /* what was never ready comes last */
        if (!ddp->tensor[ddp->order[k]].ready) {
            c->order[ddp->observed++] = (uint32_t)ddp->order[k];
        }
    }
    struct rf_call call = {.coll = RF_COLL_BROADCAST,
                           .type = RF_U32,
                           .root = root,
                           .send = c->order,
                           .recv = c->order,
                           .count = (size_t)ddp->tensors};
    const char *context = "sharing the order of gradients";
    int rc = run(ddp, &call, context_of_step(ddp, context).text, err);
    if (rc) {
        return rc;
    }
    if (!is_permutation(ddp, c->order)) {
        struct rf_error cause;
        (void)rf__fail(&cause, RF_EPROTO, 0, "step %" PRIu64 ": rank %d sent an order that is none",
                       ddp->steps, root);
        cause.rank = root;
        return break_with(ddp, &cause, err);
    }
    ddp->learned = true;
    ddp->reorder = true;
    return 0;
}

static void fill_report(const struct rf_ddp *ddp, const struct rf__step_decision *decision,
                        uint64_t chain, struct rf_step_report *report) {
    const struct step *step = &ddp->step;
    double own = seconds(step->compute), blocked = seconds(step->blocked);
    double behind = decision->slowest_compute_s - own;
    /* at most so long did this member wait for the slowest, and not for bytes */
    double waited = behind <= 0 ? 0 : behind < blocked ? behind : blocked;
    double in_buckets = seconds(step->blocked_in_buckets) - waited;
    double hidden = seconds(step->busy) - (in_buckets > 0 ? in_buckets : 0);

    *report = (struct rf_step_report){
        .step = ddp->steps,
        .generation = ddp->runner->generation,
        .samples = decision->samples,
        .loss = decision->samples ? decision->loss_sum / (double)decision->samples : 0,
        .digest = chain,
        .compute_s = own,
        .comm_s = seconds(step->busy),
        .hidden_s = hidden > 0 ? hidden : 0,
        .exposed_s = blocked - waited,
        .wait_s = waited,
        .slowest_compute_s = decision->slowest_compute_s,
        .slowest_rank = decision->slowest_rank,
        .stop = decision->stop,
    };
}

/* All buckets averaged and hashed: this member is prepared. */
static int prepare(struct rf_ddp *ddp, struct rf_error *err) {
    int rc = start_rest(ddp, err);

    if (rc == 0 && hash_is_due(ddp)) { /* while the buckets run */
        ddp->step.state_digest = hash_state(ddp);
    }
    if (rc == 0) {
        rc = finish_count(ddp, err);
    }
    while (rc == 0 && ddp->step.finished < ddp->buckets) {
        rc = finish_bucket(ddp, err);
    }
    return rc;
}

int rf__ddp_commit(struct rf_ddp *ddp, struct rf_step_report *report, struct rf_error *err) {
    struct rf__step_decision decision;
    int64_t entered = now(ddp);

    int rc = check_finished(ddp, err);
    if (rc) {
        return rc;
    }
    ddp->step.compute = entered - ddp->step.began - ddp->step.in_ready;
    rc = prepare(ddp, err);
    if (rc) {
        return rc;
    }
    uint64_t chain = next_in_chain(ddp);
    rc = agree(ddp, chain, &decision, err);
    if (rc == 0 && !ddp->learned) {
        rc = learn_order(ddp, err);
    }
    if (rc) {
        return rc;
    }
    if (report) {
        fill_report(ddp, &decision, chain, report);
    }
    ddp->chain = chain;
    ddp->steps++;
    ddp->stop = false;
    ddp->averaged = true;
    ddp->stage = STAGE_IDLE;
    return 0;
}

/* ---- between steps
 * ------------------------------------------------------------------------------------------------
 */

const float *rf__ddp_average(const struct rf_ddp *ddp, int index) {
    if (!ddp->averaged || !in_range(ddp, index)) {
        return NULL;
    }
    return ddp->averages + ddp->slot[index].offset;
}

int rf__ddp_state_digest(struct rf_ddp *ddp, uint64_t *digest, struct rf_error *err) {
    char when[48];

    int rc = check_idle(ddp, err);
    if (rc) {
        return rc;
    }
    uint64_t state = hash_state(ddp);
    snprintf(when, sizeof when, "before step %" PRIu64, ddp->steps);
    rc = compare_states(ddp, state, "comparing the state", when, err);
    if (rc == 0) {
        *digest = state;
    }
    return rc;
}

void rf__ddp_memory(const struct rf_ddp *ddp, struct rf_ddp_memory *out) {
    size_t bytes = ddp->gradients ? ddp->floats * sizeof(float) : 0;
    *out = (struct rf_ddp_memory){.gradients = bytes, .averaged = bytes};
}

int rf__ddp_buckets(const struct rf_ddp *ddp) {
    return ddp->buckets;
}

int rf__ddp_bucket_of(const struct rf_ddp *ddp, int index) {
    return ddp->buckets && in_range(ddp, index) ? ddp->slot[index].bucket : -1;
}
