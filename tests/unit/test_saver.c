/* ckpt/saver: the members of a group, each with a saver of its own, over one memory of blobs. What
 * becomes whole is the state of `begin`, whatever becomes of the state later; what does not says
 * so, and the next one does; and what is found again is the newest that is good. */
#include "base/mem.h"
#include "ckpt/saver.h"
#include "support/checkpoints.h"
#include "support/shared_blobs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 5, PATIENCE_MS = 60000, STEPS = 256 };

static const uint64_t AGREED = 0xfedcba9876543210;

/* ---- a group that trains */

struct group {
    struct shared_blobs *store;
    struct rf__saver *saver[MOST];
    int size;
    struct test_state state;
    uint64_t step, chain, units, branch;
    uint64_t chains[STEPS]; /* after so many steps */
};

static struct shared_blobs store, elsewhere;

static struct rf__saver_options options_of(uint64_t resume) {
    return (struct rf__saver_options){
        .where = "memory:/ckpt", .job = "job", .config = "{\"lr\":1}", .resume = resume};
}

static struct rf__saver *new_saver(const struct rf__saver_options *options) {
    struct rf_error err;
    struct rf__saver *saver = NULL;
    assert_int_equal(rf__saver_create(shared_handle(&store), options, &saver, &err), 0);
    return saver;
}

static int open_stores(void **state) {
    (void)state;
    alarm(240);
    shared_open(&store);
    shared_open(&elsewhere);
    return 0;
}

static int close_stores(void **state) {
    (void)state;
    alarm(0);
    rf__alloc_fail_after(-1);
    bool clean = store.handles == 0 && elsewhere.handles == 0 && store.memory->open_now == 0 &&
                 store.memory->writing_now == 0;
    shared_close(&store);
    shared_close(&elsewhere);
    return clean ? 0 : -1;
}

static void open_group_with(struct group *g, int size, const struct rf__saver_options *options) {
    *g = (struct group){.store = &store, .size = size};
    test_state_make(&g->state, 1);
    for (int i = 0; i < size; i++) {
        g->saver[i] = new_saver(options);
    }
}

static void open_group(struct group *g, int size) {
    struct rf__saver_options options = options_of(RF__NEWEST_STEP);
    open_group_with(g, size, &options);
}

static void close_group(struct group *g) {
    for (int i = 0; i < g->size; i++) {
        rf__saver_destroy(g->saver[i]);
    }
    test_state_free(&g->state);
}

/* Every byte of the state becomes another one. */
static void scribble(struct test_state *s) {
    for (int i = 0; i < STATE_TENSORS; i++) {
        unsigned char *bytes = s->tensors[i].bytes;
        for (uint64_t k = 0; k < s->tensors[i].length; k++) {
            bytes[k] = (unsigned char)(bytes[k] * 5 + 77);
        }
    }
}

static void copy_state(struct test_state *to, const struct test_state *from) {
    test_state_make(to, 9);
    for (int i = 0; i < STATE_TENSORS; i++) {
        memcpy(to->tensors[i].bytes, from->tensors[i].bytes, from->tensors[i].length);
    }
}

static void train(struct group *g, int steps) {
    for (int k = 0; k < steps; k++) {
        scribble(&g->state);
        g->units++;
        g->step++;
        g->chain = rf__digest_mix(g->chain, g->step * 1000 + g->branch);
        g->chains[g->step] = g->chain;
        for (int i = 0; i < g->size; i++) {
            rf__saver_step(g->saver[i], g->step, g->chain);
        }
    }
}

/* A unit that is no step. */
static void measure(struct group *g) {
    g->units++;
    g->chain = rf__digest_mix(g->chain, 999);
}

static struct rf__ckpt_id id_of(const struct group *g) {
    return (struct rf__ckpt_id){.step = g->step, .chain = g->chain};
}

static struct rf__saver_job job_of(const struct group *g, int member) {
    return (struct rf__saver_job){.id = id_of(g),
                                  .units = g->units,
                                  .generation = 4,
                                  .samples = 10 * g->step,
                                  .skipped = 3,
                                  .state = &g->state.state,
                                  .part = member,
                                  .parts = g->size,
                                  .leads = member == 0};
}

static void begin_one(struct group *g, int member) {
    struct rf__saver_job job = job_of(g, member);
    struct rf_error err = {.code = 0};
    int rc = rf__saver_begin(g->saver[member], &job, PATIENCE_MS, &err);
    if (rc) {
        print_error("begin: %s\n", err.text);
    }
    assert_int_equal(rc, 0);
}

/* Up to where the state may change again: and it does, before the members agree. */
static void begin_all(struct group *g) {
    for (int i = 0; i < g->size; i++) {
        begin_one(g, i);
    }
    for (int i = 0; i < g->size; i++) {
        rf__saver_copied(g->saver[i]);
    }
}

static void agree_all(struct group *g) {
    for (int i = 0; i < g->size; i++) {
        rf__saver_agreed(g->saver[i], AGREED);
    }
}

static void finish_all(struct group *g) {
    for (int i = 0; i < g->size; i++) {
        struct rf_error err = {.code = 0};
        int rc = rf__saver_finish(g->saver[i], PATIENCE_MS, &err);
        if (rc) {
            print_error("finish: %s\n", err.text);
        }
        assert_int_equal(rc, 0);
    }
}

static struct rf__saver_news next_news(struct rf__saver *saver) {
    struct rf__saver_news news;
    memset(&news, 0xff, sizeof news);
    assert_true(rf__saver_news(saver, &news));
    return news;
}

static void no_news(struct rf__saver *saver) {
    struct rf__saver_news news;
    bool some = rf__saver_news(saver, &news);
    if (some) {
        print_error("news %d: %s\n", (int)news.kind, news.text);
    }
    assert_false(some);
}

/* A whole one of what the group holds now. */
static struct rf__ckpt_id save(struct group *g) {
    struct rf__ckpt_id id = id_of(g);
    char folder[RF__CKPT_FOLDER];

    begin_all(g);
    agree_all(g);
    finish_all(g);
    struct rf__saver_news news = next_news(g->saver[0]);
    if (news.kind != RF__SAVER_SAVED) {
        print_error("news: %s\n", news.text);
    }
    assert_int_equal(news.kind, RF__SAVER_SAVED);
    assert_int_equal(news.step, id.step);
    rf__ckpt_folder(folder, &id);
    assert_string_equal(news.folder, folder);
    return id;
}

/* The group stands where a checkpoint was; its members load it, as after a restart. */
static void stand_at(struct group *g, const struct rf__saver_choice *choice) {
    struct rf_error err = {.code = 0};
    struct rf__ckpt_manifest m;

    for (int i = 0; i < g->size; i++) {
        int rc = rf__saver_load(g->saver[i], choice, &g->state.state, &m, &err);
        if (rc) {
            print_error("load: %s\n", err.text);
        }
        assert_int_equal(rc, 0);
        g->step = m.id.step;
        g->chain = m.id.chain;
        g->units = m.units;
        rf__ckpt_manifest_free(&m);
    }
}

/* ---- what is in the store */

static void read_manifest(const struct rf__ckpt_id *id, struct rf__ckpt_manifest *out) {
    struct rf__blobs *blobs = shared_handle(&store);
    char folder[RF__CKPT_FOLDER];
    struct rf_error err = {.code = 0};

    rf__ckpt_folder(folder, id);
    int rc = rf__ckpt_read_manifest(blobs, folder, out, &err);
    blobs->ops->destroy(blobs);
    if (rc) {
        print_error("%s: %s\n", folder, err.text);
    }
    assert_int_equal(rc, 0);
}

static bool stands(const struct rf__ckpt_id *id, const char *file) {
    char name[BLOB_NAME], folder[RF__CKPT_FOLDER];

    rf__ckpt_folder(folder, id);
    snprintf(name, sizeof name, "%s/%s", folder, file);
    pthread_mutex_lock(&store.lock);
    bool there = memory_get(store.memory, name) != NULL;
    pthread_mutex_unlock(&store.lock);
    return there;
}

static bool has_manifest(const struct rf__ckpt_id *id) {
    return stands(id, "manifest.json");
}

static bool is_marked(const struct rf__ckpt_id *id) {
    return stands(id, "bad.json");
}

/* A bit of one of its files changes. */
static void damage(const struct rf__ckpt_id *id, const char *file) {
    char name[BLOB_NAME], folder[RF__CKPT_FOLDER];

    rf__ckpt_folder(folder, id);
    snprintf(name, sizeof name, "%s/%s", folder, file);
    pthread_mutex_lock(&store.lock);
    struct blob_file *blob = memory_get(store.memory, name);
    assert_non_null(blob);
    blob->bytes[blob->length - 1] ^= 4;
    pthread_mutex_unlock(&store.lock);
}

static struct rf__ckpt_list list_all(void) {
    struct rf__blobs *blobs = shared_handle(&store);
    struct rf__ckpt_list list;
    struct rf_error err;
    assert_int_equal(rf__ckpt_list(blobs, &list, &err), 0);
    blobs->ops->destroy(blobs);
    return list;
}

static int count_whole(void) {
    struct rf__ckpt_list list = list_all();
    int whole = 0;
    for (int i = 0; i < list.count; i++) {
        whole += list.entries[i].condition == RF__CKPT_WHOLE;
    }
    rf__ckpt_list_free(&list);
    return whole;
}

/* What a new process with these options finds at its start. */
static int choose_as(const struct rf__saver_options *options, struct rf__saver_choice *choice,
                     struct rf_error *err) {
    struct rf__saver *saver = new_saver(options);
    int rc = rf__saver_choose(saver, RF__NEWEST_STEP, true, choice, err);
    rf__saver_destroy(saver);
    return rc;
}

static void assert_state_of(const struct rf__ckpt_id *id, const struct test_state *expected) {
    struct rf__saver_options options = options_of(RF__NEWEST_STEP);
    struct rf__saver *saver = new_saver(&options);
    struct rf__saver_choice choice = {.id = *id};
    struct rf__ckpt_manifest m;
    struct test_state loaded;
    struct rf_error err = {.code = 0};

    test_state_make(&loaded, 4711);
    assert_int_equal(rf__saver_load(saver, &choice, &loaded.state, &m, &err), 0);
    assert_true(test_state_equal(&loaded, expected));
    rf__ckpt_manifest_free(&m);
    test_state_free(&loaded);
    rf__saver_destroy(saver);
}

/* ---- saving */

static void what_becomes_whole_is_the_state_at_begin(void **state) {
    static const int sizes[] = {1, 2, 5};
    (void)state;

    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        struct group g;
        struct test_state then;
        struct rf__ckpt_manifest m;

        open_group(&g, sizes[k]);
        g.branch = k;
        train(&g, 3);
        copy_state(&then, &g.state);
        struct rf__ckpt_id id = id_of(&g);
        begin_all(&g);
        assert_false(has_manifest(&id)); /* not before the members agree */
        train(&g, 2);
        agree_all(&g);
        finish_all(&g);
        for (int i = 0; i < g.size; i++) {
            assert_false(rf__saver_is_busy(g.saver[i]));
        }
        assert_state_of(&id, &then);
        read_manifest(&id, &m);
        assert_int_equal(m.id.chain, g.chains[3]);
        assert_int_equal(m.units, 3);
        assert_int_equal(m.generation, 4);
        assert_int_equal(m.samples, 30);
        assert_int_equal(m.skipped, 3);
        assert_true(m.state_digest == AGREED);
        assert_int_equal(m.part_count, sizes[k]);
        assert_string_equal(m.job, "job");
        uint64_t bytes = 0;
        for (int i = 0; i < m.part_count; i++) {
            bytes += m.parts[i].bytes;
        }
        struct rf__saver_news news = next_news(g.saver[0]);
        assert_int_equal(news.kind, RF__SAVER_SAVED);
        assert_int_equal(news.step, 3);
        assert_int_equal(news.bytes, bytes);
        for (int i = 0; i < g.size; i++) { /* it is told once, by one */
            no_news(g.saver[i]);
        }
        rf__ckpt_manifest_free(&m);
        test_state_free(&then);
        close_group(&g);
        shared_empty(&store); /* the next is no stranger */
    }
}

static void what_is_not_agreed_is_no_checkpoint(void **state) {
    struct group g;
    (void)state;

    open_group(&g, 2);
    train(&g, 1);
    struct rf__ckpt_id id = id_of(&g);
    for (int i = 0; i < 2; i++) {
        begin_one(&g, i);
    }
    for (int i = 0; i < 2; i++) { /* without `copied`: it waits for that itself */
        rf__saver_drop(g.saver[i]);
    }
    finish_all(&g);
    train(&g, 1);
    struct rf__ckpt_id next = save(&g); /* waits for what is left of the one before */
    assert_false(has_manifest(&id));
    assert_true(has_manifest(&next));
    no_news(g.saver[0]);
    no_news(g.saver[1]);
    close_group(&g);
}

static void a_part_that_fails_is_told_and_the_next_works(void **state) {
    struct group g;
    (void)state;

    open_group(&g, 2);
    train(&g, 1);
    struct rf__ckpt_id id = id_of(&g);
    shared_fail(&store, "part-0-of-2"); /* of who leads */
    begin_all(&g);
    agree_all(&g);
    finish_all(&g);
    struct rf__saver_news news = next_news(g.saver[0]);
    assert_int_equal(news.kind, RF__SAVER_FAILED);
    assert_int_equal(news.step, 1);
    assert_non_null(strstr(news.text, "part-0-of-2"));
    assert_non_null(strstr(news.text, "cannot be made"));
    no_news(g.saver[1]); /* its own part stands */
    assert_false(has_manifest(&id));

    train(&g, 1);
    id = id_of(&g);
    shared_fail(&store, "part-1-of-2");
    begin_all(&g);
    agree_all(&g);
    struct rf_error err = {.code = 0};
    assert_int_equal(rf__saver_finish(g.saver[1], PATIENCE_MS, &err), 0);
    news = next_news(g.saver[1]);
    assert_int_equal(news.kind, RF__SAVER_FAILED);
    assert_non_null(strstr(news.text, "part-1-of-2"));
    assert_true(rf__saver_is_busy(g.saver[0])); /* it waits for that part */
    assert_int_equal(rf__saver_finish(g.saver[0], 0, &err), RF_ETIMEDOUT);
    assert_non_null(strstr(err.text, "step 2"));
    rf__saver_regroup(g.saver[0]); /* not for as long as it would have */
    assert_int_equal(rf__saver_finish(g.saver[0], 25000, &err), 0);
    news = next_news(g.saver[0]);
    assert_int_equal(news.kind, RF__SAVER_FAILED);
    assert_non_null(strstr(news.text, "part 1 of 2 has not come"));
    assert_false(has_manifest(&id));

    shared_fail(&store, "manifest");
    train(&g, 1);
    id = id_of(&g);
    begin_all(&g);
    agree_all(&g);
    finish_all(&g);
    assert_int_equal(next_news(g.saver[0]).kind, RF__SAVER_FAILED);
    assert_false(has_manifest(&id));
    shared_fail(&store, "");
    train(&g, 1);
    save(&g);
    assert_int_equal(count_whole(), 1);
    close_group(&g);
}

/* A member that was lost while all others had agreed, and comes back with its part all the same. */
static void a_part_that_comes_late_makes_it_whole(void **state) {
    struct group g;
    struct rf_error err = {.code = 0};
    (void)state;

    open_group(&g, 2);
    train(&g, 1);
    struct rf__ckpt_id id = id_of(&g);
    shared_hold(&store, "part-1-of-2");
    begin_all(&g);
    shared_await(&store, 1);
    agree_all(&g);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rf__saver_finish(g.saver[i], 0, &err), RF_ETIMEDOUT);
        assert_true(rf__saver_is_busy(g.saver[i]));
    }
    assert_false(has_manifest(&id));
    shared_hold(&store, "");
    finish_all(&g);
    assert_true(has_manifest(&id));
    assert_int_equal(next_news(g.saver[0]).kind, RF__SAVER_SAVED);
    close_group(&g);
}

struct beginner {
    struct group *g;
    int code;
};

static void *begins_with_patience(void *context) {
    struct beginner *self = context;
    struct rf__saver_job job = job_of(self->g, 0);
    struct rf_error err;
    self->code = rf__saver_begin(self->g->saver[0], &job, PATIENCE_MS, &err);
    return NULL;
}

static void one_is_written_at_a_time(void **state) {
    struct group g;
    struct rf_error err = {.code = 0};
    pthread_t thread;
    (void)state;

    open_group(&g, 1);
    train(&g, 1);
    struct rf__ckpt_id first = id_of(&g);
    assert_false(rf__saver_is_busy(g.saver[0]));
    shared_hold(&store, "part-0");
    begin_all(&g);
    assert_true(rf__saver_is_busy(g.saver[0]));
    shared_await(&store, 1);
    agree_all(&g);
    train(&g, 1);
    struct rf__saver_job job = job_of(&g, 0);
    assert_int_equal(rf__saver_begin(g.saver[0], &job, 0, &err), RF_ETIMEDOUT);
    assert_non_null(strstr(err.text, "step 1"));
    assert_int_equal(rf__saver_begin(g.saver[0], &job, 1, &err), RF_ETIMEDOUT);

    struct beginner beginner = {.g = &g, .code = 1};
    assert_int_equal(pthread_create(&thread, NULL, begins_with_patience, &beginner), 0);
    shared_hold(&store, "");
    pthread_join(thread, NULL);
    assert_int_equal(beginner.code, 0);
    struct rf__ckpt_id second = id_of(&g);
    rf__saver_copied(g.saver[0]);
    agree_all(&g);
    finish_all(&g);
    assert_true(has_manifest(&first) && has_manifest(&second));
    for (uint64_t step = 1; step <= 2; step++) {
        struct rf__saver_news news = next_news(g.saver[0]);
        assert_int_equal(news.kind, RF__SAVER_SAVED);
        assert_int_equal(news.step, step);
    }
    close_group(&g);
}

static void the_newest_are_kept(void **state) {
    struct rf__saver_options options = options_of(RF__NEWEST_STEP);
    struct rf__ckpt_id ids[5];
    struct group g;
    (void)state;

    options.keep = 2;
    open_group_with(&g, 2, &options);
    for (int k = 0; k < 5; k++) {
        train(&g, 2);
        ids[k] = save(&g);
        assert_int_equal(count_whole(), k < 1 ? 1 : 2);
    }
    for (int k = 0; k < 5; k++) {
        assert_int_equal(has_manifest(&ids[k]), k >= 3);
        assert_int_equal(stands(&ids[k], "part-1-of-2.safetensors"), k >= 3);
    }
    close_group(&g);
}

/* ---- what manifests say of the past */

static void assert_digests(const struct group *g, const struct rf__ckpt_manifest *m,
                           uint64_t parent) {
    assert_true(m->digest_count > 0 && m->first_step <= parent + 1);
    assert_int_equal(m->first_step + (uint64_t)m->digest_count - 1, m->id.step);
    for (int i = 0; i < m->digest_count; i++) {
        assert_true(m->digests[i] == g->chains[m->first_step + (uint64_t)i]);
    }
}

static void manifests_tell_the_past(void **state) {
    static const int steps[] = {3, 2, 4, 1, 7};
    struct rf__ckpt_id ids[5];
    struct rf__ckpt_manifest m;
    struct group g;
    (void)state;

    open_group(&g, 2);
    for (int k = 0; k < 5; k++) {
        train(&g, steps[k]);
        if (k == 2) {
            measure(&g); /* it has a chain of its own, and is no step */
        }
        ids[k] = save(&g);
    }
    for (int k = 0; k < 5; k++) {
        read_manifest(&ids[k], &m);
        assert_int_equal(m.ancestor_count, k);
        for (int i = 0; i < k; i++) {
            assert_true(m.ancestors[i].step == ids[k - 1 - i].step);
            assert_true(m.ancestors[i].chain == ids[k - 1 - i].chain);
        }
        assert_digests(&g, &m, k ? ids[k - 1].step : 0);
        rf__ckpt_manifest_free(&m);
    }
    no_news(g.saver[0]); /* none of them is another group's */

    /* after a restart it goes on as if there had been none */
    struct rf__saver_choice choice;
    struct rf_error err;
    assert_int_equal(rf__saver_choose(g.saver[0], RF__NEWEST_STEP, true, &choice, &err), 0);
    stand_at(&g, &choice);
    train(&g, 2);
    struct rf__ckpt_id last = save(&g);
    read_manifest(&last, &m);
    assert_int_equal(m.ancestor_count, 5);
    assert_true(m.ancestors[0].chain == ids[4].chain && m.ancestors[4].chain == ids[0].chain);
    assert_digests(&g, &m, ids[4].step);
    rf__ckpt_manifest_free(&m);
    close_group(&g);
}

/* One that could not become whole is in nobody's way. */
static void a_failed_one_leaves_no_gap(void **state) {
    struct rf__ckpt_manifest m;
    struct group g;
    (void)state;

    open_group(&g, 1);
    train(&g, 2);
    struct rf__ckpt_id first = save(&g);
    train(&g, 2);
    shared_fail(&store, "part-0");
    begin_all(&g);
    agree_all(&g);
    finish_all(&g);
    assert_int_equal(next_news(g.saver[0]).kind, RF__SAVER_FAILED);
    shared_fail(&store, "");
    train(&g, 2);
    struct rf__ckpt_id last = save(&g);
    read_manifest(&last, &m);
    bool has_first = false;
    for (int i = 0; i < m.ancestor_count; i++) {
        has_first = has_first || m.ancestors[i].chain == first.chain;
    }
    assert_true(has_first);
    assert_digests(&g, &m, first.step);
    rf__ckpt_manifest_free(&m);
    close_group(&g);
}

/* It was taken in late, has copied the state from the others, and then is the first of those left.
 */
static void who_comes_late_learns_the_past(void **state) {
    struct rf__saver_options options = options_of(RF__NEWEST_STEP);
    struct rf__ckpt_manifest m;
    struct group g;
    (void)state;

    open_group(&g, 2);
    train(&g, 3);
    struct rf__ckpt_id first = save(&g);
    train(&g, 2);
    struct rf__ckpt_id second = save(&g);
    train(&g, 1);
    rf__saver_destroy(g.saver[0]);
    rf__saver_destroy(g.saver[1]);
    g.saver[0] = new_saver(&options);
    g.size = 1;
    train(&g, 2);
    struct rf__ckpt_id third = save(&g);
    read_manifest(&third, &m);
    assert_int_equal(m.ancestor_count, 2);
    assert_true(m.ancestors[0].chain == second.chain && m.ancestors[1].chain == first.chain);
    assert_int_equal(m.first_step, 7); /* what it has seen itself */
    assert_digests(&g, &m, 6);
    rf__ckpt_manifest_free(&m);

    /* it knows of more of them, and then misses some */
    train(&g, 1);
    struct rf__ckpt_id fourth = save(&g);
    struct rf__saver *late = g.saver[0];
    g.saver[0] = new_saver(&options);
    train(&g, 3);
    struct rf__ckpt_id fifth = save(&g);
    rf__saver_destroy(g.saver[0]);
    g.saver[0] = late;
    train(&g, 1);
    struct rf__ckpt_id sixth = save(&g);
    read_manifest(&sixth, &m);
    assert_int_equal(m.ancestor_count, 5);
    assert_true(m.ancestors[0].chain == fifth.chain && m.ancestors[1].chain == fourth.chain);
    assert_digests(&g, &m, g.step - 1);
    rf__ckpt_manifest_free(&m);

    /* and all of that is one history */
    struct rf__saver_choice choice;
    struct rf_error err = {.code = 0};
    assert_int_equal(choose_as(&options, &choice, &err), 0);
    assert_true(choice.id.chain == sixth.chain);
    close_group(&g);
}

/* The newest there is may be that of a group that parted from this one. */
static void what_others_saved_is_not_the_past(void **state) {
    struct rf__saver_options options = options_of(RF__NEWEST_STEP);
    struct rf__ckpt_manifest m;
    struct group a, b;
    (void)state;

    open_group(&a, 1);
    train(&a, 2);
    struct rf__ckpt_id common = save(&a);
    struct rf__saver_choice choice = {.id = common};
    open_group(&b, 1);
    stand_at(&b, &choice);
    b.branch = 1;
    train(&b, 2);
    save(&b);
    train(&a, 1);
    rf__saver_destroy(a.saver[0]);
    a.saver[0] = new_saver(&options);
    train(&a, 2);
    struct rf__ckpt_id last = save(&a);
    assert_int_equal(next_news(a.saver[0]).kind, RF__SAVER_PARTED);
    read_manifest(&last, &m);
    assert_int_equal(m.ancestor_count, 1);
    assert_true(m.ancestors[0].chain == common.chain);
    rf__ckpt_manifest_free(&m);
    close_group(&a);
    close_group(&b);
}

/* ---- finding it again */

/* Checkpoints of the steps 2, 4, … by a group that has ended. */
static void save_every_second(struct rf__ckpt_id *ids, int count, struct test_state *states) {
    struct group g;

    open_group(&g, 1);
    for (int k = 0; k < count; k++) {
        train(&g, 2);
        if (states) {
            copy_state(&states[k], &g.state);
        }
        ids[k] = save(&g);
    }
    close_group(&g);
}

static void the_newest_or_the_one_that_was_named(void **state) {
    struct rf__saver_options options = options_of(RF__NEWEST_STEP);
    struct rf__saver_choice choice;
    struct rf__ckpt_id ids[4];
    struct rf_error err = {.code = 0};
    (void)state;

    assert_int_equal(choose_as(&options, &choice, &err), RF_ENOTFOUND); /* a beginning */
    options.resume = 4;
    assert_int_equal(choose_as(&options, &choice, &err), RF_EINVAL); /* and not step 4 */
    assert_int_equal(err.code, RF_EINVAL);
    save_every_second(ids, 4, NULL);
    options.resume = RF__NEWEST_STEP;
    assert_int_equal(choose_as(&options, &choice, &err), 0);
    assert_true(choice.id.step == 8 && choice.id.chain == ids[3].chain && !choice.is_other);
    for (int k = 0; k < 4; k++) {
        assert_false(is_marked(&ids[k]));
    }

    options.resume = 5;
    assert_int_equal(choose_as(&options, &choice, &err), RF_EINVAL);
    assert_non_null(strstr(err.text, "step 5"));
    for (int k = 0; k < 4; k++) { /* a wrong number costs nothing */
        assert_false(is_marked(&ids[k]));
    }
    options.resume = 6;
    struct rf__saver *saver = new_saver(&options);
    assert_int_equal(rf__saver_choose(saver, RF__NEWEST_STEP, true, &choice, &err), 0);
    assert_true(choice.id.chain == ids[2].chain);
    assert_true(is_marked(&ids[3]));
    struct rf__saver_news news = next_news(saver);
    assert_int_equal(news.kind, RF__SAVER_MARKED);
    assert_int_equal(news.step, 8);
    no_news(saver);

    /* an order, while the job runs: at most that step, whatever it was started from */
    assert_int_equal(rf__saver_choose(saver, 5, false, &choice, &err), 0);
    assert_true(choice.id.chain == ids[1].chain);
    assert_true(is_marked(&ids[2]) && !is_marked(&ids[1]) && !is_marked(&ids[0]));
    assert_int_equal(next_news(saver).step, 6);
    no_news(saver);
    assert_int_equal(rf__saver_choose(saver, 1, false, &choice, &err), RF_ENOTFOUND);
    assert_false(is_marked(&ids[1])); /* what there is nothing before stays */
    assert_int_equal(rf__saver_choose(saver, RF__NEWEST_STEP, false, &choice, &err), 0);
    assert_true(choice.id.chain == ids[1].chain);
    rf__saver_destroy(saver);
}

static void what_is_damaged_is_left_for_the_one_before(void **state) {
    struct rf__saver_options options = options_of(RF__NEWEST_STEP);
    struct rf__saver_choice choice;
    struct test_state states[3], loaded;
    struct rf__ckpt_manifest m;
    struct rf__ckpt_id ids[3];
    struct rf_error err = {.code = 0};
    (void)state;

    save_every_second(ids, 3, states);
    test_state_make(&loaded, 8);
    damage(&ids[2], "part-0-of-1.safetensors"); /* of its size, so that only reading tells */
    struct rf__saver *saver = new_saver(&options), *other = new_saver(&options);
    assert_int_equal(rf__saver_choose(saver, RF__NEWEST_STEP, true, &choice, &err), 0);
    assert_true(choice.id.chain == ids[2].chain);
    assert_int_equal(rf__saver_load(saver, &choice, &loaded.state, &m, &err), RF_ECHECKPOINT);
    rf__saver_refuse(saver, &choice, "a bit of it has changed");
    struct rf__saver_news news = next_news(saver);
    assert_int_equal(news.kind, RF__SAVER_MARKED);
    assert_int_equal(news.step, 6);
    assert_string_equal(news.text, "a bit of it has changed");
    assert_true(is_marked(&ids[2]) && !is_marked(&ids[1]));

    assert_int_equal(rf__saver_choose(saver, RF__NEWEST_STEP, true, &choice, &err), 0);
    assert_true(choice.id.chain == ids[1].chain);
    assert_int_equal(rf__saver_load(saver, &choice, &loaded.state, &m, &err), 0);
    assert_true(test_state_equal(&loaded, &states[1]));
    rf__ckpt_manifest_free(&m);
    /* a choice is of one checkpoint, and of no other that has its name's half of the chain */
    choice.id.chain ^= 1;
    assert_int_equal(rf__saver_load(other, &choice, &loaded.state, &m, &err), RF_ECHECKPOINT);

    /* where it cannot be marked it is left out here all the same, and that is told */
    shared_fail(&store, "bad.json");
    choice.id.chain ^= 1;
    rf__saver_refuse(saver, &choice, "because");
    assert_int_equal(next_news(saver).kind, RF__SAVER_FAILED);
    assert_false(is_marked(&ids[1]));
    assert_int_equal(rf__saver_choose(saver, RF__NEWEST_STEP, true, &choice, &err), 0);
    assert_true(choice.id.chain == ids[0].chain);
    rf__saver_destroy(saver);
    rf__saver_destroy(other);
    test_state_free(&loaded);
    for (int k = 0; k < 3; k++) {
        test_state_free(&states[k]);
    }
}

static void who_begins_anew_is_told_of_what_is_there(void **state) {
    struct rf__saver_options options = options_of(RF__RESUME_NONE);
    struct rf__saver_choice choice;
    struct rf_error err = {.code = 0};
    struct group g;
    (void)state;

    assert_int_equal(choose_as(&options, &choice, &err), RF_ENOTFOUND);
    open_group(&g, 1);
    g.chain = 7;
    struct rf__ckpt_id first = save(&g); /* of step 0 */
    assert_int_equal(choose_as(&options, &choice, &err), 0);
    assert_true(choice.id.step == 0 && choice.id.chain == first.chain);
    train(&g, 3);
    save(&g);
    assert_int_equal(choose_as(&options, &choice, &err), RF_EEXISTS);
    assert_non_null(strstr(err.text, "step 3"));
    assert_non_null(strstr(err.text, "memory:/ckpt"));
    assert_int_equal(count_whole(), 2);
    close_group(&g);
}

/* Two groups train on from the checkpoint of step 2: `a` saves at 4 and 6, `b` at 5. */
static void part(struct group *a, struct group *b, struct rf__ckpt_id *common,
                 struct rf__ckpt_id *of_a, struct rf__ckpt_id *of_b) {
    open_group(a, 1);
    train(a, 2);
    *common = save(a);
    struct rf__saver_choice choice = {.id = *common};
    open_group(b, 1);
    stand_at(b, &choice);
    train(a, 2);
    of_a[0] = save(a);
    no_news(a->saver[0]);
    b->branch = 1;
    train(b, 3);
    *of_b = save(b);
    struct rf__saver_news news = next_news(b->saver[0]);
    assert_int_equal(news.kind, RF__SAVER_PARTED);
    assert_non_null(strstr(news.text, "parted from this one at step 3"));
    no_news(b->saver[0]);
    train(a, 2);
    of_a[1] = save(a);
    news = next_news(a->saver[0]);
    assert_int_equal(news.kind, RF__SAVER_PARTED);
    assert_non_null(strstr(news.text, "parted from this one at step 3"));
    assert_int_equal(news.step, 6);
    no_news(a->saver[0]);
}

static void two_histories_are_told_apart(void **state) {
    struct rf__saver_options options = options_of(RF__NEWEST_STEP);
    struct rf__ckpt_id common, of_a[2], of_b, last[2];
    struct rf__saver_choice choice;
    struct rf_error err = {.code = 0};
    struct group a, b;
    (void)state;

    part(&a, &b, &common, of_a, &of_b);
    assert_int_equal(choose_as(&options, &choice, &err), RF_EDIVERGED);
    assert_non_null(strstr(err.text, "parted at step 3"));
    assert_non_null(strstr(err.next, "step 2"));
    assert_false(is_marked(&of_a[0]) || is_marked(&of_a[1]) || is_marked(&of_b));

    train(&a, 1);
    last[0] = save(&a);
    train(&b, 2);
    last[1] = save(&b);
    assert_true(last[0].step == last[1].step && last[0].chain != last[1].chain);
    options.resume = 7; /* a number does not say which */
    assert_int_equal(choose_as(&options, &choice, &err), RF_EDIVERGED);
    assert_non_null(strstr(err.text, "two checkpoints of step 7"));
    options.resume = 5; /* it does */
    assert_int_equal(choose_as(&options, &choice, &err), 0);
    assert_true(choice.id.chain == of_b.chain);
    assert_true(is_marked(&of_a[1]) && is_marked(&last[0]) && is_marked(&last[1]));
    assert_false(is_marked(&of_a[0]) || is_marked(&of_b));
    close_group(&a);
    close_group(&b);
}

static void what_parted_goes_back_to_the_common_past(void **state) {
    struct rf__saver_options options = options_of(RF__NEWEST_STEP);
    struct rf__ckpt_id common, of_a[2], of_b;
    struct rf__saver_choice choice;
    struct rf_error err = {.code = 0};
    struct group a, b;
    (void)state;

    part(&a, &b, &common, of_a, &of_b);
    options.roll_back_parted = true;
    struct rf__saver *saver = new_saver(&options);
    assert_int_equal(rf__saver_choose(saver, RF__NEWEST_STEP, true, &choice, &err), 0);
    assert_true(choice.id.step == 2 && choice.id.chain == common.chain);
    assert_true(is_marked(&of_a[0]) && is_marked(&of_a[1]) && is_marked(&of_b));
    assert_false(is_marked(&common));
    for (int k = 0; k < 3; k++) {
        assert_int_equal(next_news(saver).kind, RF__SAVER_MARKED);
    }
    no_news(saver);
    rf__saver_destroy(saver);
    options.roll_back_parted = false; /* there is one history from now on */
    assert_int_equal(choose_as(&options, &choice, &err), 0);
    assert_true(choice.id.chain == common.chain);
    /* who trains on by itself is told of nobody whose checkpoints were marked */
    train(&a, 1);
    save(&a);
    no_news(a.saver[0]);
    close_group(&a);
    close_group(&b);
}

/* A measurement changes the chain and is no step: a checkpoint after it has another chain than its
 * step, which is no sign of another history. */
static void a_measurement_parts_nobody(void **state) {
    struct rf__saver_options options = options_of(RF__NEWEST_STEP);
    struct rf__saver_choice choice;
    struct rf_error err = {.code = 0};
    struct group a, b;
    (void)state;

    open_group(&a, 1);
    train(&a, 2);
    measure(&a);
    choice = (struct rf__saver_choice){.id = save(&a)};
    open_group(&b, 1);
    stand_at(&b, &choice);
    train(&b, 2); /* the same steps as `a` */
    b.branch = 1;
    train(&b, 1);
    save(&b);
    no_news(b.saver[0]);
    train(&a, 4);
    measure(&a);
    save(&a);
    struct rf__saver_news news = next_news(a.saver[0]);
    assert_int_equal(news.kind, RF__SAVER_PARTED);
    assert_non_null(strstr(news.text, "parted from this one at step 5"));
    assert_int_equal(choose_as(&options, &choice, &err), RF_EDIVERGED);
    assert_non_null(strstr(err.text, "parted at step 5"));
    close_group(&a);
    close_group(&b);
}

static void exchange_stores(void) {
    struct memory_blobs *memory = store.memory;
    store.memory = elsewhere.memory;
    elsewhere.memory = memory;
}

static void the_other_place_is_for_the_start(void **state) {
    struct rf__saver_options options = options_of(RF__NEWEST_STEP);
    struct rf__saver_choice choice;
    struct test_state states[2], loaded;
    struct rf__ckpt_id ids[2];
    struct rf__ckpt_manifest m;
    struct rf_error err = {.code = 0};
    struct group g;
    (void)state;

    options.other = shared_handle(&elsewhere);
    options.other_where = "memory:/other";
    assert_int_equal(choose_as(&options, &choice, &err), RF_EINVAL);
    assert_non_null(strstr(err.text, "memory:/other"));

    test_state_make(&loaded, 23);
    save_every_second(ids, 2, states);
    exchange_stores();
    options.other = shared_handle(&elsewhere);
    open_group_with(&g, 1, &options);
    assert_int_equal(rf__saver_choose(g.saver[0], RF__NEWEST_STEP, true, &choice, &err), 0);
    assert_true(choice.is_other && choice.id.chain == ids[1].chain);
    rf__saver_refuse(g.saver[0], &choice, "it is not liked");
    no_news(g.saver[0]); /* that place is not ours to write to */
    assert_int_equal(elsewhere.memory->count, 4);
    assert_int_equal(rf__saver_choose(g.saver[0], RF__NEWEST_STEP, true, &choice, &err), 0);
    assert_true(choice.is_other && choice.id.chain == ids[0].chain);
    assert_int_equal(rf__saver_load(g.saver[0], &choice, &loaded.state, &m, &err), 0);
    assert_true(test_state_equal(&loaded, &states[0]));
    g.step = m.id.step;
    g.chain = m.id.chain;
    rf__ckpt_manifest_free(&m);
    /* nor for an order later on: what this job has saved itself counts then */
    struct rf__saver_choice later;
    assert_int_equal(rf__saver_choose(g.saver[0], RF__NEWEST_STEP, false, &later, &err),
                     RF_ENOTFOUND);
    train(&g, 1);
    struct rf__ckpt_id own = save(&g);
    read_manifest(&own, &m);
    assert_true(m.ancestor_count == 1 && m.ancestors[0].chain == choice.id.chain);
    rf__ckpt_manifest_free(&m);
    assert_int_equal(rf__saver_choose(g.saver[0], RF__NEWEST_STEP, true, &choice, &err), 0);
    assert_true(!choice.is_other && choice.id.chain == own.chain);
    close_group(&g);

    /* a member that was told of no such place says so */
    struct rf__saver_options none = options_of(RF__NEWEST_STEP);
    struct rf__saver *saver = new_saver(&none);
    choice = (struct rf__saver_choice){.id = ids[0], .is_other = true};
    assert_int_equal(rf__saver_load(saver, &choice, &loaded.state, &m, &err), RF_EINVAL);
    rf__saver_destroy(saver);
    test_state_free(&states[0]);
    test_state_free(&states[1]);
    test_state_free(&loaded);
}

/* Whatever is found there, and whatever is to become of it. */
static void nothing_is_written_to_the_other_place(void **state) {
    struct rf__saver_options options = options_of(RF__NEWEST_STEP);
    struct rf__ckpt_id common, of_a[2], of_b;
    struct rf__saver_choice choice;
    struct rf_error err = {.code = 0};
    struct group a, b;
    (void)state;

    part(&a, &b, &common, of_a, &of_b);
    close_group(&a);
    close_group(&b);
    exchange_stores();
    int count = elsewhere.memory->count;
    options.other_where = "memory:/other";
    options.other = shared_handle(&elsewhere);
    assert_int_equal(choose_as(&options, &choice, &err), RF_EDIVERGED);
    assert_non_null(strstr(err.text, "memory:/other"));
    options.other = shared_handle(&elsewhere);
    options.roll_back_parted = true;
    assert_int_equal(choose_as(&options, &choice, &err), 0);
    assert_true(choice.is_other && choice.id.chain == common.chain);
    assert_int_equal(elsewhere.memory->count, count);
    assert_int_equal(store.memory->count, 0);
}

/* ---- what goes wrong */

static void news_that_nobody_reads_are_the_newest(void **state) {
    struct rf__saver_news news;
    struct rf_error err;
    struct group g;
    uint64_t step = 5;
    (void)state;

    open_group(&g, 1);
    for (int k = 0; k < 20; k++) {
        train(&g, 1);
        begin_all(&g);
        agree_all(&g);
        assert_int_equal(rf__saver_finish(g.saver[0], PATIENCE_MS, &err), 0);
    }
    while (rf__saver_news(g.saver[0], &news)) {
        assert_int_equal(news.step, step++);
    }
    assert_int_equal(step, 21);
    close_group(&g);
}

static void creation_without_memory_leaves_nothing(void **state) {
    struct rf__saver_options options = options_of(RF__NEWEST_STEP);
    struct rf__saver *saver = NULL;
    struct rf_error err;
    int failures = 0, rc = RF_ENOMEM;
    (void)state;

    options.other_where = "elsewhere";
    for (long k = 0; rc == RF_ENOMEM && k < 100; k++) {
        struct rf__blobs *blobs = shared_handle(&store);
        options.other = shared_handle(&elsewhere);
        rf__alloc_fail_after(k);
        rc = rf__saver_create(blobs, &options, &saver, &err);
        rf__alloc_fail_after(-1);
        if (rc) {
            failures++;
            assert_int_equal(store.handles, 0);
            assert_int_equal(elsewhere.handles, 0);
        }
    }
    assert_int_equal(rc, 0);
    assert_true(failures >= 3);
    rf__saver_destroy(saver);
    rf__saver_destroy(NULL);
}

/* Whatever allocation fails: it is told, there is a checkpoint or none, and the next one works. */
static void saving_without_memory_costs_one_checkpoint(void **state) {
    int refused = 0, failed = 0, saved = 0;
    (void)state;

    for (long k = 0; k < 60; k++) {
        struct rf_error err = {.code = 0};
        struct rf__saver_news news;
        struct group g;
        bool told = false;

        open_group(&g, 1);
        g.branch = (uint64_t)k;
        train(&g, 1);
        struct rf__saver_job job = job_of(&g, 0);
        struct rf__ckpt_id id = id_of(&g);
        rf__alloc_fail_after(k);
        int rc = rf__saver_begin(g.saver[0], &job, 0, &err);
        if (rc == 0) {
            rf__saver_copied(g.saver[0]);
            rf__saver_agreed(g.saver[0], AGREED);
            assert_int_equal(rf__saver_finish(g.saver[0], PATIENCE_MS, &err), 0);
        }
        rf__alloc_fail_after(-1);
        assert_false(rf__saver_is_busy(g.saver[0]));
        while (rf__saver_news(g.saver[0], &news)) {
            told = told || news.kind == RF__SAVER_SAVED;
            failed += news.kind == RF__SAVER_FAILED;
        }
        if (rc) {
            assert_int_equal(rc, RF_ENOMEM);
            refused++;
        }
        saved += told;
        assert_int_equal(told, has_manifest(&id));
        train(&g, 1);
        save(&g);
        close_group(&g);
        shared_empty(&store);
    }
    assert_true(refused >= 2 && failed >= 3 && saved >= 1);
}

static void choosing_without_memory_chooses_nothing_else(void **state) {
    struct rf__saver_options options = options_of(RF__NEWEST_STEP);
    struct rf__saver_choice choice;
    struct rf__ckpt_id ids[3];
    struct rf_error err = {.code = 0};
    int failures = 0, rc = RF_ENOMEM;
    (void)state;

    save_every_second(ids, 3, NULL);
    struct rf__saver *saver = new_saver(&options);
    for (long k = 0; rc && k < 1000; k++) {
        rf__alloc_fail_after(k);
        rc = rf__saver_choose(saver, RF__NEWEST_STEP, true, &choice, &err);
        rf__alloc_fail_after(-1);
        assert_true(rc == 0 || rc == RF_ENOMEM);
        failures += rc != 0;
    }
    assert_int_equal(rc, 0);
    assert_true(failures > 5);
    assert_true(choice.id.chain == ids[2].chain); /* not an older one, for want of memory */
    assert_false(is_marked(&ids[2]));
    no_news(saver);
    rf__saver_destroy(saver);
}

static void storage_that_is_away_chooses_nothing_else(void **state) {
    struct rf__saver_options options = options_of(RF__NEWEST_STEP);
    struct rf__saver_choice choice;
    struct rf__ckpt_id ids[3];
    struct rf_error err = {.code = 0};
    int rc = RF_ETIMEDOUT, failures = 0;
    (void)state;

    save_every_second(ids, 3, NULL);
    struct rf__saver *saver = new_saver(&options);
    for (long k = 0; rc && k < 1000; k++) {
        memory_fail(store.memory, k, RF_ETIMEDOUT, false);
        rc = rf__saver_choose(saver, RF__NEWEST_STEP, true, &choice, &err);
        store.memory->fail_at = -1;
        assert_true(rc == 0 || rc == RF_ETIMEDOUT);
        failures += rc != 0;
    }
    assert_int_equal(rc, 0);
    assert_true(failures > 3);
    assert_true(choice.id.chain == ids[2].chain);
    rf__saver_destroy(saver);
}

/* It ends wherever it is, without a word of the members or of the storage. */
static void it_ends_in_the_middle_of_anything(void **state) {
    static const char *const held[] = {"part-0", "manifest", "part-1", ""};
    (void)state;

    for (int how = 0; how < 7; how++) {
        struct group g;

        open_group(&g, 2);
        train(&g, 1);
        struct rf__ckpt_id id = id_of(&g);
        if (how < 4) {
            shared_hold(&store, held[how]);
            begin_all(&g);
            agree_all(&g);
        }
        if (how < 3) {
            shared_await(&store, 1); /* blocked; `part-1`: who leads waits for that part */
        }
        if (how == 3) { /* it may have become whole or not */
            close_group(&g);
            shared_empty(&store);
            continue;
        }
        if (how == 4) { /* copied, and no word */
            begin_all(&g);
        }
        if (how == 5) { /* not even that */
            begin_one(&g, 0);
            begin_one(&g, 1);
        }
        close_group(&g); /* how 6: nothing was begun */
        shared_hold(&store, "");
        assert_int_equal(store.handles, 0);
        assert_false(has_manifest(&id));
        shared_empty(&store);
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_stores, close_stores)
    const struct CMUnitTest tests[] = {
        TEST(what_becomes_whole_is_the_state_at_begin),
        TEST(what_is_not_agreed_is_no_checkpoint),
        TEST(a_part_that_fails_is_told_and_the_next_works),
        TEST(a_part_that_comes_late_makes_it_whole),
        TEST(one_is_written_at_a_time),
        TEST(the_newest_are_kept),
        TEST(manifests_tell_the_past),
        TEST(a_failed_one_leaves_no_gap),
        TEST(who_comes_late_learns_the_past),
        TEST(what_others_saved_is_not_the_past),
        TEST(the_newest_or_the_one_that_was_named),
        TEST(what_is_damaged_is_left_for_the_one_before),
        TEST(who_begins_anew_is_told_of_what_is_there),
        TEST(two_histories_are_told_apart),
        TEST(what_parted_goes_back_to_the_common_past),
        TEST(a_measurement_parts_nobody),
        TEST(the_other_place_is_for_the_start),
        TEST(nothing_is_written_to_the_other_place),
        TEST(news_that_nobody_reads_are_the_newest),
        TEST(creation_without_memory_leaves_nothing),
        TEST(saving_without_memory_costs_one_checkpoint),
        TEST(choosing_without_memory_chooses_nothing_else),
        TEST(storage_that_is_away_chooses_nothing_else),
        TEST(it_ends_in_the_middle_of_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
