/* What has to be there before the first step: data, model, the group's agreement on both. */
#include "train/inner.h"

#include "base/digest.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/tokenizer_file.h"
#include "train/weights.h"

#include <limits.h>
#include <string.h>

uint32_t rf__train_vocabulary(const struct rf__data_io *io,
                              const struct rf_train_options *options) {
    struct rf__tokenizer *tokenizer = NULL;
    uint32_t vocabulary = 0;

    if (rf__train_takes_tokens(options) && options->data &&
        !rf__tokenizer_load(io->files, options->data, &tokenizer, NULL)) {
        vocabulary = rf__tokenizer_vocabulary(tokenizer);
    }
    rf__tokenizer_destroy(tokenizer);
    return vocabulary;
}

/* What a folder lacks, and how to make it. */
static int tokens_open(struct trainer *t, const struct rf__data_io *io, struct rf_error *err) {
    const struct rf_train_options *o = &t->options;

    int code = rf__dataset_read_tokens(io, o->data, (uint32_t)o->context, &t->data, err);
    if (code == RF_ENOTFOUND) {
        rf__detail(err->next, "ringfold data tokens TEXT -o FOLDER  makes a folder for gpt");
    } else if (code == RF_EDATA && !err->next[0]) {
        rf__detail(err->next,
                   "a --context of fewer tokens than the data has, or more text; ringfold "
                   "data tokens makes such a folder anew");
    }
    return code;
}

/* How many steps there will be. */
static int steps_setup(struct trainer *t, struct rf_error *err) {
    struct rf_train_options *o = &t->options;

    int code =
        rf__sampler_create(o->seed, t->data.train.count, o->batch, o->shards, &t->sampler, err);
    if (code) {
        return code;
    }
    t->steps_per_epoch = rf__sampler_steps_per_epoch(t->sampler);
    t->steps = o->epochs ? o->epochs * t->steps_per_epoch : o->steps;
    if (o->steps && o->steps < t->steps) {
        t->steps = o->steps;
    }
    if (o->warmup_steps == RF_TRAIN_AUTO) {
        uint64_t tenth = t->steps / 10;
        o->warmup_steps = tenth < RF__TRAIN_GPT_WARMUP ? tenth : RF__TRAIN_GPT_WARMUP;
    }
    return RF_OK;
}

/* Which test samples a measurement is of: always the same ones, over all of the set. */
static void measured_setup(struct trainer *t) {
    for (uint32_t i = 0; i < t->measured_count; i++) {
        t->measured[i] = (uint32_t)((uint64_t)i * t->data.test.count / t->measured_count);
    }
}

int rf__train_data_setup(struct trainer *t, const struct rf__data_io *io, struct rf_error *err) {
    const struct rf_train_options *o = &t->options;
    bool tokens = rf__train_takes_tokens(o);
    uint32_t test = 0;

    int code = tokens ? tokens_open(t, io, err) : rf__dataset_read(io, o->data, &t->data, err);
    if (!code) {
        code = steps_setup(t, err);
    }
    if (code) {
        return code;
    }
    uint32_t largest = rf__sampler_shard_max(t->sampler);
    t->micro = largest < o->micro_batch ? largest : o->micro_batch;
    t->weight = tokens ? t->data.context : 1;
    test = t->data.test.count;
    t->measured_count = o->eval_samples && o->eval_samples < test ? o->eval_samples : test;
    uint32_t test_shard = t->measured_count / o->shards + 1; /* the largest */
    t->usable = rf__alloc(largest > test_shard ? largest : test_shard, sizeof *t->usable);
    t->measured = rf__alloc((size_t)t->measured_count + 1, sizeof *t->measured);
    bool has_room = t->usable && t->measured;
    if (tokens) {
        t->tokens = rf__alloc(t->micro, ((size_t)t->data.context + 1) * sizeof *t->tokens);
        t->numbers = rf__alloc(t->micro, sizeof *t->numbers);
        has_room = has_room && t->tokens && t->numbers;
    } else {
        size_t pixels = (size_t)(t->data.height * t->data.width);
        t->inputs = rf__alloc_aligned(t->micro * pixels * sizeof *t->inputs);
        t->labels = rf__alloc(t->micro, sizeof *t->labels);
        has_room = has_room && t->inputs && t->labels;
    }
    if (!has_room) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for a micro-batch of %u samples", t->micro);
    }
    measured_setup(t);
    return RF_OK;
}

struct rf__model_options rf__train_model_options_of(const struct trainer *t) {
    const struct rf_train_options *o = &t->options;
    bool bf16 = !strcmp(o->compute, "bf16");

    return (struct rf__model_options){
        .name = o->model,
        .channels = 1,
        .height = t->data.height,
        .width = t->data.width,
        .classes = RF__DATA_CLASSES,
        .batch = (int)t->micro,
        .hidden = o->hidden,
        .seed = o->seed,
        .gpt = {.depth = o->depth,
                .width = o->width,
                .heads = o->heads,
                .context = (int)t->data.context,
                .vocabulary = t->data.vocabulary <= INT_MAX ? (int)t->data.vocabulary : 0,
                .dropout = o->dropout,
                .compute = bf16 ? RF__COMPUTE_BF16 : RF__COMPUTE_F32}};
}

/* The first weights. A folder that is gone is not missed where the state comes from a checkpoint,
 * or from the other members; which is only known later. */
static int init_read(struct trainer *t, const struct rf__data_io *io,
                     const struct rf__gpt_options *gpt, struct rf_error *err) {
    bool may_come = t->runner->elastic || (t->saver && !rf__saver_begins(t->saver));

    int code = rf__weights_read(io->files, t->options.init, gpt, t->model, err);
    if (code == RF_ENOTFOUND && may_come) {
        t->init_missing = *err;
        code = RF_OK;
    }
    return code;
}

int rf__train_model_setup(struct trainer *t, const struct rf__data_io *io, struct rf_error *err) {
    const struct rf_train_options *o = &t->options;
    const struct rf__model_options model = rf__train_model_options_of(t);
    struct rf__optimizer_options optimizer = {.name = o->optimizer,
                                              .momentum = o->momentum,
                                              .beta2 = o->beta2,
                                              .weight_decay = o->weight_decay};

    int code = rf__model_create(&model, &t->model, err);
    if (!code && o->init) {
        code = init_read(t, io, &model.gpt, err);
    }
    if (code) {
        return code;
    }
    t->tensors = rf__model_tensors(t->model);
    return rf__optimizer_create(&optimizer, t->model, &t->optimizer, err);
}

/* Of everything that decides what a step computes, but for the data's bytes: where it differs, the
 * average is of gradients of different functions. */
static uint64_t computing_digest(const struct trainer *t) {
    struct rf_train_options o = t->options;
    char config[RF__TRAIN_CONFIG];

    o.data = "";
    o.epochs = 0;
    o.steps = t->steps;
    o.micro_batch = t->micro;
    rf__train_config(&o, t->data.vocabulary, config);
    uint64_t digest = rf__digest(config, strlen(config), 0);
    digest = rf__digest(&o.max_bad, sizeof o.max_bad, digest);
    digest = rf__digest_mix(digest, t->data.train.count);
    digest = rf__digest_mix(digest, t->data.test.count);
    return rf__digest_mix(digest, t->measured_count);
}

int rf__train_ddp_setup(struct trainer *t, struct rf_error *err) {
    void *state;
    size_t bytes;

    int code = rf__ddp_create(t->runner, &t->options.ddp, &t->ddp, err);
    for (int i = 0; !code && i < t->tensors; i++) {
        const struct rf__tensor *tensor = rf__model_tensor(t->model, i);
        code = rf__ddp_register(t->ddp, tensor->name, tensor->data, tensor->count, err);
        if (!code) {
            code = rf__ddp_shape(t->ddp, i, tensor->shape, tensor->dims, err);
        }
    }
    if (code) {
        return code;
    }
    rf__optimizer_state(t->optimizer, &state, &bytes);
    if (bytes) {
        code = rf__ddp_register_state(t->ddp, "optimizer", state, bytes, err);
        if (code) {
            return code;
        }
    }
    if (t->saver) {
        rf__ddp_keep(t->ddp, t->saver, rf__train_checkpoint_told, t);
    }
    rf__ddp_also(t->ddp, computing_digest(t));
    code = rf__ddp_seal(t->ddp, err);
    if (code == RF_EDIVERGED && t->init_missing.code) { /* the others have the folder */
        *err = t->init_missing;
        code = err->code;
    }
    return code;
}

/* One collective of the trainer's own, carried out to its end. */
static int collective(struct trainer *t, enum rf_coll coll, enum rf_type type, const void *send,
                      void *recv, size_t count, struct rf_error *err) {
    struct rf__runner *runner = t->runner;
    struct rf__op_params params = {.call = {.coll = coll,
                                            .type = type,
                                            .redop = RF_SUM,
                                            .send = send,
                                            .recv = recv,
                                            .count = count}};
    struct rf__op *op = NULL;

    int code = runner->ops->start(runner, &params, &op);
    if (!code) {
        code = runner->ops->wait(runner, op, -1, NULL);
    }
    if (code && err) {
        runner->ops->error(runner, err);
    }
    return code;
}

int rf__train_agree(struct trainer *t, int code, struct rf_error *err) {
    size_t size = (size_t)t->runner->size;
    uint64_t mine = code ? 1 : 0;
    uint64_t *all = rf__alloc(size, sizeof *all);
    size_t first = 0;

    if (!all) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the reports of %zu members", size);
    }
    int rc = collective(t, RF_COLL_ALL_GATHER, RF_U64, &mine, all, 1, err);
    while (!rc && first < size && !all[first]) {
        first++;
    }
    if (!rc && first < size && first != (size_t)t->runner->rank) {
        /* Its report is on the way, and ends this. */
        rc = collective(t, RF_COLL_ALLREDUCE, RF_U64, &mine, &mine, 1, err);
        rc = rc ? rc : rf__fail(err, RF_EINTERNAL, 0, "rank %zu failed and went on", first);
    }
    rf__free(all);
    return rc ? rc : code;
}
