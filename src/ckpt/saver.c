/* See saver.h. The thread that trains hands one job at a time to a thread of the saver's own; what
 * both look at is under one lock. The job's stages:
 *
 *     IDLE -> COPYING (the state is borrowed) -> WRITING (own part, then, for who leads, the rest)
 *
 * While it writes, the training thread says whether the members agreed, and every job waits for
 * that word before it is over: it comes with the unit's commit, or with the end of its attempt. */
#include "ckpt/saver_inner.h"

#include "base/mem.h"
#include "base/status.h"
#include "ckpt/history.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* ---- what both threads use */

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits for a change; false once `until_ms` is over. With the lock held. */
static bool wait_change(struct rf__saver *s, int64_t until_ms) {
    struct timespec at = {.tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000};
    return pthread_cond_timedwait(&s->changed, &s->lock, &at) != ETIMEDOUT;
}

static void tell(struct rf__saver *s, struct rf__saver_news news) {
    pthread_mutex_lock(&s->lock);
    if (s->news_count == NEWS) { /* nobody reads: the oldest goes */
        s->news_first++;
        s->news_count--;
    }
    s->news[(s->news_first + s->news_count) % NEWS] = news;
    s->news_count++;
    pthread_mutex_unlock(&s->lock);
}

void rf__saver_tell(struct rf__saver *s, enum rf__saver_news_kind kind,
                    const struct rf__ckpt_id *id, const char *text) {
    struct rf__saver_news news = {.kind = kind, .step = id->step};

    rf__ckpt_folder(news.folder, id);
    snprintf(news.text, sizeof news.text, "%s", text);
    tell(s, news);
}

bool rf__saver_news(struct rf__saver *s, struct rf__saver_news *out) {
    pthread_mutex_lock(&s->lock);
    bool some = s->news_count > 0;
    if (some) {
        *out = s->news[s->news_first % NEWS];
        s->news_first++;
        s->news_count--;
    }
    pthread_mutex_unlock(&s->lock);
    return some;
}

static enum word word_of(struct rf__saver *s) {
    pthread_mutex_lock(&s->lock);
    enum word word = s->ends ? DROPPED : s->word;
    pthread_mutex_unlock(&s->lock);
    return word;
}

/* ---- the past, on the training thread */

void rf__saver_past_reset(struct rf__saver_past *past, const struct rf__ckpt_manifest *from) {
    *past = (struct rf__saver_past){.is_known = true};
    if (!from) {
        return;
    }
    past->ancestors[past->ancestor_count++] = from->id;
    for (int i = 0; i < from->ancestor_count && past->ancestor_count < RF__CKPT_ANCESTORS; i++) {
        past->ancestors[past->ancestor_count++] = from->ancestors[i];
    }
    past->first_step = from->id.step;
    if (from->digest_count) { /* not its own chain, which may have a measurement more */
        past->digests[past->digest_count++] = from->digests[from->digest_count - 1];
    }
}

static void past_add(struct rf__saver_past *past, uint64_t step, uint64_t chain) {
    uint64_t next = 1;

    if (past->digest_count) {
        next = past->first_step + (uint64_t)past->digest_count;
    } else if (past->ancestor_count) {
        next = past->ancestors[0].step + 1;
    }
    if (step != next) { /* it was healed past some steps, and maybe some checkpoints */
        past->is_known = false;
        past->digest_count = 0;
    }
    if (past->digest_count == 0) {
        past->first_step = step;
    }
    if (past->digest_count == RF__CKPT_DIGESTS) {
        past->first_step++;
        past->digest_count--;
        memmove(past->digests, past->digests + 1,
                (size_t)past->digest_count * sizeof *past->digests);
    }
    past->digests[past->digest_count++] = chain;
}

/* A checkpoint was agreed upon. What its manifest needs are the digests since its parent; those
 * since the one before are kept too, for the parent may not have become whole. */
static void past_save(struct rf__saver_past *past, const struct rf__ckpt_id *id) {
    if (past->ancestor_count && past->ancestors[0].step >= id->step) {
        return;
    }
    if (past->ancestor_count) {
        uint64_t keep_from = past->ancestors[0].step;
        if (keep_from > past->first_step &&
            keep_from < past->first_step + (uint64_t)past->digest_count) {
            int gone = (int)(keep_from - past->first_step);
            past->digest_count -= gone;
            past->first_step = keep_from;
            memmove(past->digests, past->digests + gone,
                    (size_t)past->digest_count * sizeof *past->digests);
        }
    }
    if (past->ancestor_count == RF__CKPT_ANCESTORS) {
        past->ancestor_count--;
    }
    memmove(past->ancestors + 1, past->ancestors,
            (size_t)past->ancestor_count * sizeof *past->ancestors);
    past->ancestors[0] = *id;
    past->ancestor_count++;
}

void rf__saver_forget(struct rf__saver *s) {
    s->past = (struct rf__saver_past){.is_known = false};
}

void rf__saver_step(struct rf__saver *s, uint64_t step, uint64_t chain) {
    past_add(&s->past, step, chain);
}

/* ---- the saver's thread */

static void fail_job(struct rf__saver *s, const struct rf_error *why) {
    pthread_mutex_lock(&s->lock);
    s->failed = true;
    pthread_mutex_unlock(&s->lock);
    rf__saver_tell(s, RF__SAVER_FAILED, &s->job.id, why->text);
}

/* How many parts stand there in the right size. */
struct arrived {
    const struct rf__saver *saver;
    char folder[RF__CKPT_FOLDER];
    bool is_there[RF__CKPT_PARTS];
};

static int see_part(void *context, const struct rf__blob_entry *entry) {
    struct arrived *arrived = context;
    const struct rf__saver *s = arrived->saver;
    size_t length = strlen(arrived->folder);
    int part, parts, end = 0;

    if (strncmp(entry->name, arrived->folder, length) != 0 || entry->name[length] != '/' ||
        sscanf(entry->name + length, "/part-%d-of-%d.safetensors%n", &part, &parts, &end) != 2 ||
        entry->name[length + (size_t)end] || end == 0) {
        return 0;
    }
    if (parts == s->job.parts && part >= 0 && part < parts &&
        entry->bytes == s->parts[part].bytes) {
        arrived->is_there[part] = true;
    }
    return 0;
}

static int first_missing(const struct arrived *arrived, int parts) {
    int part = 0;
    while (part < parts && arrived->is_there[part]) {
        part++;
    }
    return part == parts ? -1 : part;
}

/* Waits for the others' parts. */
static int await_parts(struct rf__saver *s, int64_t own_ms, struct rf_error *err) {
    int64_t began = now_ms(), pause = POLL_LEAST_MS;
    int64_t patience = 10 * own_ms > PART_PATIENCE_MS ? 10 * own_ms : PART_PATIENCE_MS;

    for (;;) {
        struct arrived arrived = {.saver = s};
        rf__ckpt_folder(arrived.folder, &s->job.id);
        int rc = s->blobs->ops->list(s->blobs, arrived.folder, see_part, &arrived, err);
        int missing = rc ? -1 : first_missing(&arrived, s->job.parts);
        if (rc || missing < 0) {
            return rc;
        }
        pthread_mutex_lock(&s->lock);
        int64_t now = now_ms(), waited = now - began;
        int64_t from = s->lost_at > began ? s->lost_at : began;
        bool is_late = waited >= patience || (s->lost_at && now - from >= LOST_PATIENCE_MS);
        bool goes_on = !s->ends && !is_late;
        if (goes_on) {
            (void)wait_change(s, now_ms() + pause);
        }
        pthread_mutex_unlock(&s->lock);
        if (!goes_on) {
            return rf__fail(err, RF_ETIMEDOUT, 0, "part %d of %d has not come within %.1f s",
                            missing, s->job.parts, (double)waited * 1e-3);
        }
        pause = 2 * pause < POLL_MOST_MS ? 2 * pause : POLL_MOST_MS;
    }
}

/* Whether our own steps show that it is of another history: the chain after its step is neither its
 * own nor, where a measurement came in between, that of its step. */
static bool is_of_others(const struct rf__saver_past *past, const struct rf__ckpt_entry *entry) {
    const struct rf__ckpt_manifest *m = entry->manifest;
    uint64_t step = entry->id.step;

    if (step < past->first_step || step - past->first_step >= (uint64_t)past->digest_count) {
        return false;
    }
    uint64_t ours = past->digests[step - past->first_step];
    return ours != m->id.chain && !(m->digest_count && ours == m->digests[m->digest_count - 1]);
}

/* Who leads now and did not from the beginning takes the newest checkpoint there is for the parent.
 */
static int learn_past(struct rf__saver *s, struct rf_error *err) {
    struct rf__saver_past *past = &s->job_past;
    struct rf__ckpt_list list;

    if (past->is_known) {
        return 0;
    }
    int rc = rf__ckpt_list(s->blobs, &list, err);
    if (rc) {
        return rc;
    }
    int parent = rf__ckpt_newest(&list, list.count);
    while (parent >= 0 && (list.entries[parent].id.step >= s->job.id.step ||
                           is_of_others(past, &list.entries[parent]))) {
        parent = rf__ckpt_newest(&list, parent);
    }
    if (parent >= 0) {
        struct rf__saver_past own = *past;
        rf__saver_past_reset(past, list.entries[parent].manifest);
        past->digest_count = 0;
        for (int i = 0; i < own.digest_count; i++) {
            past_add(past, own.first_step + (uint64_t)i, own.digests[i]);
        }
    }
    rf__ckpt_list_free(&list);
    return 0;
}

/* Whether somebody else has taken a checkpoint after a step of ours, and found something else. Our
 * own may have another chain than their step, as it counts measurements too. */
struct strangers {
    const struct rf__saver_past *past;
    struct rf__ckpt_id own, found;
    bool some;
};

/* Of the other only what its folder's name tells is known. */
static bool is_named_as(const struct rf__ckpt_id *own, const struct rf__ckpt_id *other) {
    return own->step == other->step && own->chain >> 32 == other->chain >> 32;
}

static bool is_ours(const struct strangers *strangers, const struct rf__ckpt_id *id) {
    bool ours = is_named_as(&strangers->own, id);
    for (int i = 0; i < strangers->past->ancestor_count && !ours; i++) {
        ours = is_named_as(&strangers->past->ancestors[i], id);
    }
    return ours;
}

static int see_stranger(void *context, const struct rf__blob_entry *entry) {
    struct strangers *strangers = context;
    const struct rf__saver_past *past = strangers->past;
    char folder[RF__CKPT_FOLDER];
    struct rf__ckpt_id id;
    const char *slash = strchr(entry->name, '/');
    size_t length = slash ? (size_t)(slash - entry->name) : 0;

    if (!slash || length >= sizeof folder || strcmp(slash, "/manifest.json") != 0) {
        return 0;
    }
    memcpy(folder, entry->name, length);
    folder[length] = 0;
    if (!rf__ckpt_folder_parse(folder, &id) || id.step < past->first_step ||
        id.step >= past->first_step + (uint64_t)past->digest_count) {
        return 0;
    }
    if (past->digests[id.step - past->first_step] >> 32 != id.chain >> 32 &&
        !is_ours(strangers, &id)) {
        strangers->found = id;
        strangers->some = true;
    }
    return 0;
}

static void look_for_strangers(struct rf__saver *s, const struct rf__ckpt_manifest *ours) {
    struct strangers strangers = {.past = &s->job_past, .own = s->job.id};
    struct rf__ckpt_manifest theirs;
    struct rf__ckpt_relation relation;
    char folder[RF__CKPT_FOLDER], text[RF_ERROR_TEXT_MAX];
    struct rf__ckpt_list list;
    struct rf_error ignored;

    if (s->blobs->ops->list(s->blobs, "step-", see_stranger, &strangers, &ignored) ||
        !strangers.some) {
        return;
    }
    rf__ckpt_folder(folder, &strangers.found);
    if (rf__ckpt_list(s->blobs, &list, &ignored)) {
        return;
    }
    bool is_bad = false;
    for (int i = 0; i < list.count; i++) {
        is_bad = is_bad || (strcmp(list.entries[i].folder, folder) == 0 &&
                            list.entries[i].condition != RF__CKPT_WHOLE);
    }
    rf__ckpt_list_free(&list);
    if (is_bad || rf__ckpt_read_manifest(s->blobs, folder, &theirs, &ignored)) {
        return;
    }
    rf__ckpt_relate(ours, &theirs, &relation);
    if (relation.kind == RF__CKPT_PARTED || relation.kind == RF__CKPT_UNKNOWN) {
        uint64_t first = relation.kind == RF__CKPT_PARTED ? relation.first : s->job_past.first_step;
        snprintf(text, sizeof text,
                 "another group trains on from the same past and writes to %.100s: it parted from "
                 "this one at step %" PRIu64 "%s (its checkpoint is %s)",
                 s->where, first,
                 relation.kind == RF__CKPT_PARTED && relation.first == relation.last ? ""
                                                                                     : " or later",
                 folder);
        rf__saver_tell(s, RF__SAVER_PARTED, &s->job.id, text);
    }
    rf__ckpt_manifest_free(&theirs);
}

static void lead(struct rf__saver *s, int64_t began_ms, int64_t own_ms) {
    struct rf_error err = {.code = 0};
    char folder[RF__CKPT_FOLDER];
    struct rf__saver_news news = {.kind = RF__SAVER_SAVED, .step = s->job.id.step};

    int rc = await_parts(s, own_ms, &err);
    if (rc == 0) {
        rc = learn_past(s, &err);
    }
    struct rf__ckpt_manifest manifest = {
        .id = s->job.id,
        .units = s->job.units,
        .generation = s->job.generation,
        .state_digest = s->state_digest,
        .samples = s->job.samples,
        .skipped = s->job.skipped,
        .time_s = (int64_t)time(NULL),
        .config = s->config,
        .state = {.tensors = s->shapes, .count = s->job.state ? s->job.state->count : 0},
        .parts = s->parts,
        .part_count = s->job.parts,
        .ancestors = s->job_past.ancestors,
        .ancestor_count = s->job_past.ancestor_count,
        .digests = s->job_past.digests,
        .first_step = s->job_past.first_step,
        .digest_count = s->job_past.digest_count,
    };
    snprintf(manifest.job, sizeof manifest.job, "%s", s->job_name);
    if (rc == 0) {
        rc = rf__ckpt_write_manifest(s->blobs, &manifest, &err);
    }
    if (rc) {
        fail_job(s, &err);
        return;
    }
    rf__ckpt_folder(folder, &s->job.id);
    memcpy(news.folder, folder, sizeof news.folder);
    for (int part = 0; part < s->job.parts; part++) {
        news.bytes += s->parts[part].bytes;
    }
    news.seconds = (double)(now_ms() - began_ms) * 1e-3;
    tell(s, news);
    look_for_strangers(s, &manifest);
    struct rf__ckpt_pruned pruned;
    if (s->options.keep && rf__ckpt_prune(s->blobs, s->options.keep, &pruned, &err)) {
        (void)rf__wrap(&err, err.code, "older checkpoints are still there: ");
        rf__saver_tell(s, RF__SAVER_MARKED, &s->job.id, err.text);
    }
}

/* The part of the state that is this member's, and what the others' must be. */
static int copy_state(struct rf__saver *s, struct rf_error *err) {
    const struct rf__saver_job *job = &s->job;
    int rc = 0;

    rf__ckpt_stage(job->state, job->part, job->parts, s->staged);
    for (int part = 0; part < job->parts && job->leads && rc == 0; part++) {
        rc = rf__ckpt_part_digest(job->state, &job->id, part, job->parts, &s->parts[part], err);
    }
    return rc;
}

/* Waits for the members' word; false: there is nothing to complete. */
static bool is_agreed(struct rf__saver *s) {
    pthread_mutex_lock(&s->lock);
    while (s->word == WAITING && !s->ends) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    bool agreed = s->word == AGREED && !s->ends;
    pthread_mutex_unlock(&s->lock);
    return agreed;
}

static void set_stage(struct rf__saver *s, enum stage stage) {
    pthread_mutex_lock(&s->lock);
    s->stage = stage;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void carry_out(struct rf__saver *s) {
    struct rf_error err = {.code = 0};
    struct rf__ckpt_part own;
    int64_t began = now_ms();

    int rc = copy_state(s, &err);
    /* From here on only the shapes are known; nobody looks at the memory any more. */
    struct rf__ckpt_state shapes = {.tensors = s->shapes, .count = s->job.state->count};
    s->job.state = &shapes;
    set_stage(s, WRITING);
    if (rc == 0 && word_of(s) != DROPPED) {
        rc = rf__ckpt_write_part(s->blobs, &shapes, &s->job.id, s->job.part, s->job.parts,
                                 s->staged, &own, &err);
    }
    bool agreed = is_agreed(s);
    if (rc && word_of(s) != DROPPED) {
        fail_job(s, &err);
    } else if (rc == 0 && agreed && s->job.leads) {
        lead(s, began, now_ms() - began);
    }
    s->job.state = NULL;
    set_stage(s, IDLE);
}

/* Training comes first: what is done here uses the processors while they wait, and where they never
 * do, a hundredth of one. Only the copy is waited for, and who waits gives his processor up. */
static void *run(void *context) {
    struct rf__saver *s = context;

    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), LEAST_PRIORITY);
    pthread_mutex_lock(&s->lock);
    while (!s->ends) {
        if (s->stage == COPYING) {
            pthread_mutex_unlock(&s->lock);
            carry_out(s);
            pthread_mutex_lock(&s->lock);
        } else {
            pthread_cond_wait(&s->changed, &s->lock);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- life */

static char *copy_text(const char *text) {
    return rf__strdup(text ? text : "");
}

int rf__saver_create(struct rf__blobs *blobs, const struct rf__saver_options *options,
                     struct rf__saver **out, struct rf_error *err) {
    pthread_condattr_t monotonic;
    struct rf__saver *s = rf__alloc(1, sizeof *s);

    if (!s) {
        blobs->ops->destroy(blobs);
        if (options->other) {
            options->other->ops->destroy(options->other);
        }
        return rf__fail(err, RF_ENOMEM, 0, "no memory for checkpoints");
    }
    s->blobs = blobs;
    s->options = *options;
    rf__saver_past_reset(&s->past, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    s->where = copy_text(options->where);
    s->other_where = copy_text(options->other_where);
    s->job_name = copy_text(options->job);
    s->config = copy_text(options->config ? options->config : "{}");
    int rc = 0;
    if (!s->where || !s->other_where || !s->job_name || !s->config) {
        rc = rf__fail(err, RF_ENOMEM, 0, "no memory for checkpoints");
    }
    if (rc == 0) {
        /* signals are for other threads: an interrupted sync counts as one that failed */
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        int failed = pthread_create(&s->thread, NULL, run, s);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        s->has_thread = failed == 0;
        rc = failed ? rf__fail(err, RF_ENOMEM, failed, "cannot start the thread that saves") : 0;
    }
    if (rc) {
        rf__saver_destroy(s);
        return rc;
    }
    *out = s;
    return 0;
}

void rf__saver_destroy(struct rf__saver *s) {
    if (!s) {
        return;
    }
    pthread_mutex_lock(&s->lock);
    s->ends = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->blobs->ops->interrupt) {
        s->blobs->ops->interrupt(s->blobs);
    }
    if (s->has_thread) {
        pthread_join(s->thread, NULL);
    }
    s->blobs->ops->destroy(s->blobs);
    if (s->options.other) {
        s->options.other->ops->destroy(s->options.other);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    rf__free(s->staged);
    rf__free(s->shapes);
    rf__free(s->config);
    rf__free(s->job_name);
    rf__free(s->other_where);
    rf__free(s->where);
    rf__free(s);
}

/* ---- saving, on the training thread */

bool rf__saver_is_busy(struct rf__saver *s) {
    pthread_mutex_lock(&s->lock);
    bool busy = s->stage != IDLE;
    pthread_mutex_unlock(&s->lock);
    return busy;
}

/* Room for the copy, and for the shapes. The thread is idle. */
static int make_room(struct rf__saver *s, const struct rf__saver_job *job, struct rf_error *err) {
    uint64_t bytes = rf__ckpt_part_bytes(job->state, job->part, job->parts);
    size_t count = (size_t)job->state->count;

    if (bytes > s->staged_room) {
        rf__free(s->staged);
        s->staged = rf__alloc_aligned(bytes);
        s->staged_room = s->staged ? bytes : 0;
    }
    if (count > s->shapes_room) {
        rf__free(s->shapes);
        s->shapes = rf__alloc(count, sizeof *s->shapes);
        s->shapes_room = s->shapes ? count : 0;
    }
    if ((bytes && !s->staged) || !s->shapes) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for a copy of %" PRIu64 " bytes of the state",
                        bytes);
    }
    for (size_t i = 0; i < count; i++) {
        s->shapes[i] = job->state->tensors[i];
        s->shapes[i].bytes = NULL;
    }
    return 0;
}

int rf__saver_begin(struct rf__saver *s, const struct rf__saver_job *job, int patience_ms,
                    struct rf_error *err) {
    int64_t until = now_ms() + patience_ms;
    int rc = 0;

    pthread_mutex_lock(&s->lock);
    while (s->stage != IDLE && now_ms() < until) {
        (void)wait_change(s, until);
    }
    if (s->stage != IDLE) {
        rc = rf__fail(err, RF_ETIMEDOUT, 0,
                      "the checkpoint of step %" PRIu64 " is still being written", s->job.id.step);
    }
    if (rc == 0) {
        rc = make_room(s, job, err);
    }
    if (rc == 0) {
        s->job = *job;
        s->job_past = s->past;
        s->word = WAITING;
        s->lost_at = 0;
        s->failed = false;
        s->stage = COPYING;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void rf__saver_copied(struct rf__saver *s) {
    pthread_mutex_lock(&s->lock);
    while (s->stage == COPYING) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

static void say(struct rf__saver *s, enum word word, uint64_t state_digest) {
    pthread_mutex_lock(&s->lock);
    s->word = word;
    s->state_digest = state_digest;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void rf__saver_agreed(struct rf__saver *s, uint64_t state_digest) {
    rf__saver_copied(s);
    past_save(&s->past, &s->job.id);
    say(s, AGREED, state_digest);
}

void rf__saver_drop(struct rf__saver *s) {
    say(s, DROPPED, 0);
    rf__saver_copied(s);
}

void rf__saver_regroup(struct rf__saver *s) {
    pthread_mutex_lock(&s->lock);
    s->lost_at = now_ms();
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

int rf__saver_finish(struct rf__saver *s, int timeout_ms, struct rf_error *err) {
    int64_t until = now_ms() + timeout_ms;
    int rc = 0;

    pthread_mutex_lock(&s->lock);
    while (s->stage != IDLE && s->word == AGREED && now_ms() < until) {
        (void)wait_change(s, until);
    }
    if (s->stage != IDLE && s->word == AGREED) {
        rc = rf__fail(err, RF_ETIMEDOUT, 0,
                      "the checkpoint of step %" PRIu64 " is not whole after %.0f s more",
                      s->job.id.step, (double)timeout_ms * 1e-3);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

bool rf__saver_failed(struct rf__saver *s) {
    pthread_mutex_lock(&s->lock);
    bool failed = s->failed && s->word == AGREED && s->job.leads && s->stage == IDLE;
    pthread_mutex_unlock(&s->lock);
    return failed;
}

void rf__saver_pause(struct rf__saver *s, int ms) {
    int64_t until = now_ms() + ms;

    pthread_mutex_lock(&s->lock);
    while (now_ms() < until) {
        (void)wait_change(s, until);
    }
    pthread_mutex_unlock(&s->lock);
}

bool rf__saver_begins(const struct rf__saver *s) {
    return s->options.resume == RF__RESUME_NONE;
}
