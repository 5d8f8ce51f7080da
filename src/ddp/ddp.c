/* Data-parallel training: shards dealt, buckets averaged while the backward pass runs, and the
 * agreement that ends a unit. This file: an object's life, registration and the seal.
 *
 * Every member issues the same sequence of operations, which is what keeps the group together:
 *
 *     return   fixed: in the seal, elastic: in the begin, where checkpoints are kept and no unit is
 *              committed yet: broadcast of which one to take, all_gather of who could load it, and
 *              both again where somebody could not
 *     seal     fixed: all_gather of digests
 *     begin    elastic, in the first unit of a generation: all_gather of the shards that are done
 *     step     allreduce of the sample count, allreduce of bucket 0, 1, …; in the first step a
 *              broadcast of the order in which gradients became ready; allreduce of the totals,
 *              all_gather of step reports
 *     measure  allreduce of the totals, all_gather of step reports
 *
 * (where gradients are compressed, compress.c makes several operations of a bucket)
 *
 * and beside them, while a unit lasts, messages from those that hold the state to those that copy
 * it.
 *
 * The sample count's sum is written where the buckets' divisor is read, and an operation starts to
 * run only after those before it: so the weight of every member may be different and is known in
 * time, without a wait. Buckets start strictly in their order, from within `ready` as far as they
 * are complete and from `commit` for the rest. Gradients are averaged out of place: the local ones
 * live until the next unit is begun, through any number of retries. */
#include "base/assert.h"
#include "base/digest.h"
#include "base/mem.h"
#include "base/status.h"
#include "ddp/inner.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- creation and registration
 * ---------------------------------------------------------------- */

void rf__ddp_options_init(struct rf_ddp_options *options) {
    *options = (struct rf_ddp_options){
        .first_bucket_bytes = (size_t)1 << 20,
        .bucket_bytes = (size_t)25 << 20,
        .algorithm = RF_ALGORITHM_AUTO,
        .wire = RF_WIRE_NONE,
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
    if ((unsigned)options->wire >= RF_WIRE_COUNT) {
        return rf__fail(err, RF_EINVAL, 0, "'wire' has no value %d", (int)options->wire);
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
    ddp->target = RF__NEWEST_STEP;
    ddp->capacity = runner->elastic ? runner->max_size : runner->size;
    ddp->shards = options->shards ? options->shards : (uint32_t)ddp->capacity;
    ddp->slow_id = -1;
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
    rf__compress_destroy(ddp->compress);
    ddp->compress = NULL;
    rf__free(ddp->carried);
    rf__free(ddp->image);
    ddp->carried = NULL;
    ddp->image = NULL;
    rf__free(ddp->slow.scratch);
    rf__free(ddp->slow.record);
    rf__free(ddp->joiner);
    rf__free(ddp->donor);
    rf__free(ddp->agrees);
    rf__free(ddp->healed);
    rf__free(ddp->id);
    rf__free(ddp->reports);
    rf__free(ddp->deal);
    rf__free(ddp->region_end);
    rf__free(ddp->op);
    rf__free(ddp->missing);
    rf__free(ddp->slot);
    rf__free(ddp->bucket);
    rf__free(ddp->order);
    ddp->slow = (struct rf__slow){.record = NULL};
    ddp->joiner = ddp->donor = ddp->id = NULL;
    ddp->agrees = ddp->healed = NULL;
    ddp->reports = NULL;
    ddp->deal = NULL;
    ddp->region_end = NULL;
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
    if (ddp->stage == RF__DDP_UNIT) {
        struct rf_error cause;
        (void)rf__fail(&cause, RF_EREVOKED, 0, "rank %d of %d left in the middle of step %" PRIu64,
                       ddp->runner->rank, ddp->runner->size, ddp->steps);
        cause.rank = ddp->runner->rank;
        (void)rf__ddp_break(ddp, &cause, NULL);
    }
    rf__ddp_drain(ddp);
    rf__ddp_save_settle(ddp, false);
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
    if (ddp->stage == RF__DDP_BROKEN) {
        return rf__ddp_broken(ddp, err);
    }
    if (ddp->stage != RF__DDP_OPEN) {
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
    struct rf__ddp_tensor *tensor = rf__grow(ddp->tensor, room, sizeof *tensor);
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
    ddp->tensor[ddp->tensors] = (struct rf__ddp_tensor){.name = copy, .param = param};
    ddp->count[ddp->tensors] = count;
    ddp->tensors++;
    ddp->floats += floats;
    return 0;
}

int rf__ddp_shape(struct rf_ddp *ddp, int index, const size_t *shape, int dims,
                  struct rf_error *err) {
    size_t count = 1;

    if (ddp->stage != RF__DDP_OPEN || !rf__ddp_in_range(ddp, index)) {
        return rf__fail(err, RF_EINVAL, 0, "parameter %d is not one that waits for the seal",
                        index);
    }
    if (dims < 1 || dims > RF__CKPT_DIMS) {
        return rf__fail(err, RF_EINVAL, 0, "'%s' has %d dimensions, expected 1 to %d",
                        ddp->tensor[index].name, dims, RF__CKPT_DIMS);
    }
    for (int i = 0; i < dims && count; i++) {
        bool fits = shape[i] > 0 && shape[i] <= ddp->count[index] / count;
        count = fits ? count * shape[i] : 0;
    }
    if (count != ddp->count[index]) {
        return rf__fail(err, RF_EINVAL, 0, "the shape of '%s' is not that of its %zu elements",
                        ddp->tensor[index].name, ddp->count[index]);
    }
    for (int i = 0; i < dims; i++) {
        ddp->tensor[index].shape[i] = shape[i];
    }
    ddp->tensor[index].dims = dims;
    return 0;
}

int rf__ddp_may_keep(const struct rf_ddp *ddp, struct rf_error *err) {
    if (ddp->stage != RF__DDP_OPEN || ddp->saver) {
        return rf__fail(err, RF_EINVAL, 0, "checkpoints are asked for %s",
                        ddp->saver ? "twice" : "after the seal");
    }
    return 0;
}

struct rf__runner *rf__ddp_runner(const struct rf_ddp *ddp) {
    return ddp->runner;
}

void rf__ddp_keep(struct rf_ddp *ddp, struct rf__saver *saver, rf_ddp_told_fn *told,
                  void *context) {
    RF_ASSERT(ddp->stage == RF__DDP_OPEN && !ddp->saver);
    ddp->saver = saver;
    ddp->told = told;
    ddp->told_context = context;
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
        struct rf__ddp_extra *extra = rf__grow(ddp->extra, room, sizeof *extra);
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
    ddp->extra[ddp->extras++] =
        (struct rf__ddp_extra){.name = copy, .bytes = state, .length = bytes};
    return 0;
}

void rf__ddp_also(struct rf_ddp *ddp, uint64_t digest) {
    ddp->also = digest;
}

/* ---- seal
 * ------------------------------------------------------------------------------------- */

/* What the gradients of all members travel as. It is part of the registration too, but here its two
 * values can be told. */
static int compare_wires(const struct rf_ddp *ddp, struct rf_error *err) {
    const uint64_t *digests = ddp->control.all_digests;
    int odd = 1;

    while (odd < ddp->runner->size && digests[odd * RF__DDP_DIGESTS] == digests[0]) {
        odd++;
    }
    if (odd >= ddp->runner->size) {
        return 0;
    }
    rf__ddp_fail_wires(ddp, odd, digests[odd * RF__DDP_DIGESTS], digests[0], err);
    return RF_EMISMATCH;
}

/* Exchanges the digests and compares them, those of the registration first. A difference ends the
 * group: all should see it, but a member that sees it alone (its copy of the digests was damaged)
 * must not leave the others waiting. */
static int compare_states(struct rf_ddp *ddp, uint64_t state, const char *context, const char *when,
                          struct rf_error *err) {
    int size = ddp->runner->size, rc;
    struct rf_error cause;
    uint64_t column[RF_MAX_RANKS] = {0};

    ddp->control.digests[0] = (uint64_t)ddp->options.wire;
    ddp->control.digests[1] = ddp->config;
    ddp->control.digests[2] = state;
    struct rf_call call = {.coll = RF_COLL_ALL_GATHER,
                           .type = RF_U64,
                           .send = ddp->control.digests,
                           .recv = ddp->control.all_digests,
                           .count = RF__DDP_DIGESTS};
    rc = rf__ddp_run(ddp, &call, context, err);
    if (rc) {
        return rc;
    }
    rc = compare_wires(ddp, &cause);
    for (int which = 1; which < RF__DDP_DIGESTS && rc == 0; which++) {
        for (int r = 0; r < size; r++) {
            column[r] = ddp->control.all_digests[r * RF__DDP_DIGESTS + which];
        }
        rc = which == 1 ? rf__step_compare(column, size, RF_EMISMATCH,
                                           "set of registered tensors or options", when, &cause)
                        : rf__step_compare(column, size, RF_EDIVERGED, "state", when, &cause);
    }
    return rc ? rf__ddp_break(ddp, &cause, err) : 0;
}

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
    struct rf__ddp_control *c = &ddp->control;
    size_t size = (size_t)ddp->capacity;
    size_t digest_bytes = RF__DDP_DIGESTS * sizeof(uint64_t);
    size_t totals_bytes = RF__TOTAL_COUNT * sizeof(double);
    size_t order_bytes = (size_t)ddp->tensors * sizeof(uint32_t);
    size_t done_bytes = rf__ddp_map_bytes(ddp);
    size_t header_bytes = rf__ddp_header_bytes(ddp->tensors);
    size_t choice_bytes = ddp->saver ? RF__DDP_CHOICE_BYTES : 0;
    size_t verdict_bytes = ddp->saver ? RF__DDP_VERDICT_BYTES : 0;

    int rc =
        ops->alloc(ddp->runner,
                   2 * padded(sizeof(double)) + 2 * padded(totals_bytes) +
                       padded(RF__STEP_REPORT_BYTES) + padded(size * RF__STEP_REPORT_BYTES) +
                       padded(digest_bytes) + padded(size * digest_bytes) + padded(order_bytes) +
                       padded(done_bytes) + padded(size * done_bytes) + padded(header_bytes) +
                       padded(choice_bytes) + padded(verdict_bytes) + padded(size * verdict_bytes),
                   &ddp->control_memory, err);
    if (rc) {
        ddp->control_memory = NULL;
        return rc;
    }
    char *at = ddp->control_memory;
    c->count = take(&at, sizeof(double));
    c->divisor = take(&at, sizeof(double));
    c->total = take(&at, totals_bytes);
    c->totals = take(&at, totals_bytes);
    c->report = take(&at, RF__STEP_REPORT_BYTES);
    c->reports = take(&at, size * RF__STEP_REPORT_BYTES);
    c->digests = take(&at, digest_bytes);
    c->all_digests = take(&at, size * digest_bytes);
    c->order = take(&at, order_bytes);
    c->done = take(&at, done_bytes);
    c->alldone = take(&at, size * done_bytes);
    c->header = take(&at, header_bytes);
    c->choice = take(&at, choice_bytes);
    c->verdict = take(&at, verdict_bytes);
    c->verdicts = take(&at, size * verdict_bytes);
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
    if (rc == 0 && ddp->options.wire != RF_WIRE_NONE && ddp->tensors > 0) {
        struct rf__compress_options compress = {.wire = ddp->options.wire,
                                                .algorithm = ddp->options.algorithm,
                                                .floats = ddp->floats,
                                                .runs = ddp->tensors};
        rc = rf__compress_create(ddp->runner, &compress, &ddp->compress, err);
    }
    return rc;
}

static int allocate_members(struct rf_ddp *ddp, struct rf_error *err) {
    size_t size = (size_t)ddp->capacity;

    ddp->reports = rf__alloc(size, sizeof *ddp->reports);
    ddp->id = rf__alloc(size, sizeof *ddp->id);
    ddp->healed = rf__alloc(size, sizeof *ddp->healed);
    ddp->agrees = rf__alloc(size, sizeof *ddp->agrees);
    ddp->donor = rf__alloc(size, sizeof *ddp->donor);
    ddp->joiner = rf__alloc(size, sizeof *ddp->joiner);
    ddp->slow.record = rf__alloc(2 * size, sizeof *ddp->slow.record);
    ddp->slow.scratch = rf__alloc(size, sizeof *ddp->slow.scratch);
    ddp->slow.capacity = ddp->capacity;
    ddp->slow.evict = ddp->runner->slow_evict;
    ddp->slow.window = ddp->runner->slow_window;
    if (!ddp->reports || !ddp->id || !ddp->healed || !ddp->agrees || !ddp->donor || !ddp->joiner ||
        !ddp->slow.record || !ddp->slow.scratch) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the reports of %d members",
                        ddp->capacity);
    }
    return 0;
}

static int allocate(struct rf_ddp *ddp, struct rf_error *err) {
    size_t tensors = (size_t)ddp->tensors;

    ddp->order = rf__alloc(tensors, sizeof *ddp->order);
    ddp->bucket = rf__alloc(tensors, sizeof *ddp->bucket);
    ddp->slot = rf__alloc(tensors, sizeof *ddp->slot);
    ddp->missing = rf__alloc(tensors, sizeof *ddp->missing);
    ddp->op = rf__alloc(tensors, sizeof *ddp->op);
    ddp->region_end = rf__alloc(tensors + (size_t)ddp->extras, sizeof *ddp->region_end);
    ddp->deal = rf__alloc(ddp->shards, sizeof *ddp->deal);
    if (!ddp->order || !ddp->bucket || !ddp->slot || !ddp->missing || !ddp->op ||
        !ddp->region_end || !ddp->deal) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the buckets of %d tensors", ddp->tensors);
    }
    int rc = allocate_members(ddp, err);
    if (rc == 0) {
        rc = allocate_control(ddp, err);
    }
    return rc ? rc : allocate_blocks(ddp, err);
}

/* Elastic: nothing is asked of the others, for this worker may be outside of the group. All start
 * from the state of the seed, or copy it; the first unit's reports compare it. */
static int seal_elastic(struct rf_ddp *ddp, struct rf_error *err) {
    if (ddp->tensors == 0) {
        return rf__fail(err, RF_EINVAL, 0, "no parameter is registered");
    }
    ddp->holds = true;
    ddp->runner->ops->enter(ddp->runner, ddp->config, ddp->saver != NULL);
    return 0;
}

static int seal_fixed(struct rf_ddp *ddp, struct rf_error *err) {
    rf__ddp_adopt_fixed(ddp);
    if (ddp->tensors == 0) { /* what follows would have nothing to work on */
        ddp->is_behind = false;
    }
    int rc = ddp->is_behind ? rf__ddp_return(ddp, err) : 0;
    if (rc) {
        return rc;
    }
    if (ddp->units == 0) {
        ddp->chain = rf__ddp_hash_state(ddp);
    }
    rc = compare_states(ddp, rf__ddp_hash_state(ddp), "comparing the initial state", "at the start",
                        err);
    if (rc == 0 && ddp->tensors == 0) {
        rc = rf__fail(err, RF_EINVAL, 0, "no parameter is registered");
    }
    return rc;
}

int rf__ddp_seal(struct rf_ddp *ddp, struct rf_error *err) {
    struct rf_error cause = {.code = 0};

    if (ddp->stage == RF__DDP_BROKEN) {
        return rf__ddp_broken(ddp, err);
    }
    if (ddp->stage != RF__DDP_OPEN) {
        return rf__fail(err, RF_EINVAL, 0, "already sealed");
    }
    rf__ddp_alive(ddp);
    int rc = allocate(ddp, &cause);
    if (rc) { /* the others wait for this member's digest */
        (void)rf__wrap(&cause, rc, "rank %d of %d, allocating the gradients: ", ddp->runner->rank,
                       ddp->runner->size);
        cause.rank = ddp->runner->rank;
        rc = rf__ddp_break(ddp, &cause, err);
        goto out;
    }
    for (int i = 0; i < ddp->tensors; i++) {
        ddp->order[i] = ddp->tensors - 1 - i;
    }
    rf__ddp_lay_out(ddp);
    rf__ddp_measure_state(ddp);
    ddp->config = rf__ddp_hash_registration(ddp);
    ddp->is_behind = ddp->saver != NULL;
    rc = ddp->saver ? rf__ddp_describe(ddp, &cause) : 0;
    if (rc) {
        rc = rf__ddp_break(ddp, &cause, err);
        goto out;
    }
    rc = ddp->runner->elastic ? seal_elastic(ddp, err) : seal_fixed(ddp, err);
    if (rc == 0) {
        ddp->stage = RF__DDP_IDLE;
    }

out:
    if (rc) {
        unseal(ddp);
    }
    return rc;
}

/* ---- what can be asked
 * ------------------------------------------------------------------------ */

void rf__ddp_request_stop(struct rf_ddp *ddp) {
    ddp->stop = true;
}

void rf__ddp_request_measure(struct rf_ddp *ddp) {
    ddp->asked = true;
}

void rf__ddp_request_checkpoint(struct rf_ddp *ddp, bool is_last) {
    ddp->save_asked = true;
    ddp->save_must = ddp->save_must || is_last;
}

const float *rf__ddp_average(const struct rf_ddp *ddp, int index) {
    if (!ddp->averaged || !rf__ddp_in_range(ddp, index)) {
        return NULL;
    }
    return ddp->averages + ddp->slot[index].offset;
}

int rf__ddp_state_digest(struct rf_ddp *ddp, uint64_t *digest, struct rf_error *err) {
    char when[48];

    int rc = rf__ddp_check_idle(ddp, err);
    if (rc == 0 && ddp->runner->elastic) {
        rc = rf__fail(err, RF_EUNSUPPORTED, 0,
                      "an elastic group compares the state in its reports only");
    }
    if (rc) {
        return rc;
    }
    uint64_t state = rf__ddp_hash_state(ddp);
    snprintf(when, sizeof when, "before step %" PRIu64, ddp->steps);
    rc = compare_states(ddp, state, "comparing the state", when, err);
    if (rc == 0) {
        *digest = state;
    }
    return rc;
}

int rf__ddp_state_digests(const struct rf_ddp *ddp, uint64_t *digests, int room) {
    for (int r = 0; r < ddp->reported && r < room; r++) {
        digests[r] = ddp->reports[r].state_digest;
    }
    return ddp->reported;
}

void rf__ddp_memory(const struct rf_ddp *ddp, struct rf_ddp_memory *out) {
    size_t bytes = ddp->gradients ? ddp->floats * sizeof(float) : 0;
    *out = (struct rf_ddp_memory){.gradients = bytes,
                                  .averaged = bytes,
                                  .compression =
                                      ddp->compress ? rf__compress_bytes(ddp->compress) : 0};
}

int rf__ddp_buckets(const struct rf_ddp *ddp) {
    return ddp->buckets;
}

int rf__ddp_bucket_of(const struct rf_ddp *ddp, int index) {
    return ddp->buckets && rf__ddp_in_range(ddp, index) ? ddp->slot[index].bucket : -1;
}
