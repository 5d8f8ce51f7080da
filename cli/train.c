/* `ringfold train`: reads the settings, joins the job, trains, and tells of it.
 *
 * Every worker runs this; rank 0 alone has a screen and files. In an elastic job that may be
 * another worker from one step to the next: each keeps the last steps in mind, so that whoever
 * takes over writes what its predecessor could not.
 *
 * What rank 0 cannot write ends the job for all. In a fixed job it says so in rf_comm_abort, and
 * after training all meet once more in a barrier, so that a failure while the results are being
 * written is everybody's failure too. In an elastic job it asks all to stop after the step, and
 * nobody waits for anybody at the end. */
#include "train.h"
#include "commands.h"
#include "format.h"
#include "report.h"
#include "train_bad.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

static volatile sig_atomic_t stop_asked;
static struct rf_comm *volatile waiting; /* who may have to be told of it */

/* The first signal asks for a stop after the step; a second interrupt or termination acts as it
 * always does. */
static void on_signal(int number) {
    (void)number;
    stop_asked = 1;
    if (waiting) {
        rf_comm_interrupt(waiting);
    }
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}

static void signals_catch(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        sigaction(numbers[i], &action, NULL);
    }
    signal(SIGPIPE, SIG_IGN); /* a reader that went away is an error of the write, told below */
}

enum { RECENT = 32 };

struct session {
    struct train_settings settings;
    struct rf_comm *comm;
    bool elastic;
    int least; /* workers that an elastic job has while it runs */
    bool launched;
    bool is_guest; /* of a job that another launcher has started */
    bool is_start; /* this worker was rank 0 when the job began: files are made anew */
    struct train_screen screen;
    struct train_files files;
    struct train_bad_log bad;
    struct train_history history;
    struct rf_train_step recent[RECENT]; /* the last steps, step s at s % RECENT */
    uint64_t steps;                      /* how many there will be */
    uint64_t oldest, newest;             /* of them; 0: none */
    uint64_t generation; /* as of the last callback: once training is over, others leave */
    int rank;
    int ids[RF_MAX_RANKS], id_count; /* its members */
    bool stop_told, aborted;
    bool has_finished; /* the results are this worker's to tell of */
};

static bool is_first(const struct session *session) {
    return session->rank == 0;
}

/* Rank 0 cannot go on: nobody shall wait for it. */
static void abort_on_failure(struct session *session) {
    if (session->files.err.code && !session->aborted && !session->elastic) {
        session->aborted = true;
        rf_comm_abort(session->comm, session->files.err.text);
    }
}

/* --- the group, from one step to the next ----------------------------------------------------- */

static bool has_id(const int *ids, int count, int id) {
    for (int i = 0; i < count; i++) {
        if (ids[i] == id) {
            return true;
        }
    }
    return false;
}

/* Who is lost and who has joined since the last look. */
static void group_look(struct session *session) {
    struct train_history *history = &session->history;
    int ids[RF_MAX_RANKS], size = rf_size(session->comm);
    uint64_t lost = 0, joined = 0, generation = rf_generation(session->comm);

    if (size < session->least) { /* training is over, and the others have left already */
        return;
    }
    session->rank = rf_rank(session->comm);
    if (generation == session->generation) {
        return;
    }
    for (int rank = 0; rank < size; rank++) {
        ids[rank] = rf_id_of(session->comm, rank);
        joined += !has_id(session->ids, session->id_count, ids[rank]);
    }
    for (int i = 0; i < session->id_count; i++) {
        lost += !has_id(ids, size, session->ids[i]);
    }
    if (session->generation) {
        bool is_same = !lost && !joined; /* who was lost is back already, or only a link was */
        history->failures += lost + is_same;
        history->joined += joined + is_same;
    }
    session->generation = generation;
    session->id_count = size;
    memcpy(session->ids, ids, (size_t)size * sizeof *ids);
}

static void remember(struct session *session, const struct rf_train_step *step) {
    if (!session->oldest || session->newest + 1 != step->step) { /* or it was out for a while */
        session->oldest = step->step;
    }
    session->newest = step->step;
    session->recent[step->step % RECENT] = *step;
    if (session->newest - session->oldest >= RECENT) {
        session->oldest = session->newest - RECENT + 1;
    }
}

/* Files are rank 0's: opened when this worker becomes it, with the steps that are missing there,
 * and left when it no longer is. */
static void files_keep(struct session *session) {
    struct rf_error ignored; /* kept in files.err too */

    if (!is_first(session)) {
        if (session->files.is_open) {
            files_close(&session->files);
        }
    } else if (!session->files.is_open &&
               !files_open(&session->files, &session->settings, false, &ignored)) {
        for (uint64_t step = session->oldest; step && step <= session->newest; step++) {
            files_step(&session->files, &session->recent[step % RECENT]);
        }
    }
}

/* --- callbacks -------------------------------------------------------------------------------- */

static void on_start(void *context, const struct rf_train_start *start) {
    struct session *session = context;

    group_look(session);
    screen_begin(&session->screen);
    if (session->is_start) {
        screen_start(&session->screen, &session->settings, start, rf_comm_transport(session->comm),
                     session->files.folder);
        files_start(&session->files, &session->settings, start, rf_comm_transport(session->comm));
        abort_on_failure(session);
    }
}

static void on_step(void *context, const struct rf_train_step *step) {
    struct session *session = context;

    group_look(session);
    session->steps = step->steps;
    session->history.retried += step->retries > 0;
    session->history.redone += step->redone;
    remember(session, step);
    screen_count(&session->screen, step);
    files_keep(session);
    if (is_first(session)) {
        if (step->step == 1) {
            files_gradients_write(&session->files);
        }
        files_step(&session->files, step);
        screen_step(&session->screen, step, session->id_count);
        abort_on_failure(session);
    }
}

static void on_epoch(void *context, const struct rf_train_epoch *epoch) {
    struct session *session = context;
    bool was_first = is_first(session);

    if (epoch->step < session->steps) {
        was_first = true;
        group_look(session);
    } else if (rf_size(session->comm) >= session->least) { /* who is done leaves: no failure */
        session->rank = rf_rank(session->comm);
    }
    files_keep(session);
    screen_best(&session->screen, epoch);
    if (is_first(session) && was_first) {
        files_measurement(&session->files, epoch);
        screen_epoch(&session->screen, epoch);
    }
}

/* Under a launcher, in an elastic group, that tells of it. */
static void on_checkpoint(void *context, const struct rf_checkpoint_news *news) {
    struct session *session = context;

    if (news->kind == RF_CHECKPOINT_RETURNED) {
        session->oldest = session->newest = 0;
        if (is_first(session) && session->files.is_open) {
            files_go_back(&session->files, news->step);
        }
    }
    bool is_common = news->kind == RF_CHECKPOINT_RETURNED || news->kind == RF_CHECKPOINT_NONE;
    if (!(session->launched && session->elastic) && (is_first(session) || !is_common)) {
        screen_checkpoint(&session->screen, &session->settings, news);
    }
}

static void on_tensor(void *context, bool gradient, const char *name, const float *data,
                      const size_t *shape, int dims) {
    struct session *session = context;

    if (is_first(session) && (!gradient || session->files.is_open)) {
        files_tensor(&session->files, gradient, name, data, shape, dims);
    }
}

/* The launcher's or, where there is none, known to rank 0 alone: else NULL. */
static const char *folder_of(const struct session *session) {
    const char *given = session->settings.run_dir;
    return given ? given : session->files.folder[0] ? session->files.folder : NULL;
}

static void on_bad(void *context, const struct rf_train_bad *bad) {
    struct session *session = context;

    screen_clear(&session->screen);
    bad_log_take(&session->bad, folder_of(session), bad);
}

/* Too much was skipped. A worker that met no bad block itself learns of the first one from the log,
 * so that whoever reports can name it. */
static void bad_block_add(const struct session *session, struct rf_error *err) {
    char first[RF_ERROR_DETAIL_MAX];
    size_t length = strlen(err->text);

    if (!session->bad.count && err->rank < 0 && folder_of(session) &&
        bad_log_first(folder_of(session), first, sizeof first)) {
        snprintf(err->text + length, sizeof err->text - length, "; first %s", first);
        snprintf(err->what, sizeof err->what, "%s", first);
    }
}

/* Of a job that another launcher has started, a worker that is to stop takes only itself away. */
static bool on_leave(void *context) {
    return stop_asked && ((struct session *)context)->is_guest;
}

static bool on_stop(void *context) {
    struct session *session = context;
    if (session->is_guest) {
        return false;
    }
    if (stop_asked && is_first(session) && !session->stop_told) {
        session->stop_told = true;
        screen_stopping(&session->screen);
    }
    return stop_asked || (session->elastic && session->files.err.code);
}

/* Workers in the end: of an elastic job those that told their digest then. */
static int workers_in_the_end(const struct session *session, const struct rf_train_result *result) {
    int count = 0;

    while (session->elastic && count < session->id_count && count < RF_MAX_LOCAL_RANKS &&
           result->digests[count]) {
        count++;
    }
    return count ? count : session->id_count;
}

/* Training itself, and what rank 0 makes of it. */
static int train(struct session *session, struct rf_train_result *result, struct rf_error *err) {
    const struct rf_train_callbacks callbacks = {.start = on_start,
                                                 .step = on_step,
                                                 .epoch = on_epoch,
                                                 .tensor = on_tensor,
                                                 .checkpoint = on_checkpoint,
                                                 .stop = on_stop,
                                                 .leave = on_leave,
                                                 .bad = on_bad,
                                                 .context = session};
    int code;

    group_look(session);
    session->is_start = is_first(session);
    if (session->is_start) {
        code = files_open(&session->files, &session->settings, true, err);
        if (code) {
            if (session->elastic) {
                rf_comm_end(session->comm);
            } else {
                rf_comm_abort(session->comm, err->text);
            }
            return code;
        }
    }
    code = rf_train(session->comm, &session->settings.train, &callbacks, result, err);
    if (!code && is_first(session) && !result->left) {
        session->has_finished = files_finish(&session->files, &session->settings, result,
                                             workers_in_the_end(session, result), session->elastic);
        abort_on_failure(session);
    }
    if (session->files.err.code) {
        *err = session->files.err;
        code = err->code;
    } else if (!code && !session->elastic) {
        code = rf_barrier(session->comm);
        if (code) {
            rf_comm_error(session->comm, err);
        }
    }
    if (result->too_bad) {
        bad_block_add(session, err);
    }
    if ((!code && !result->left) || session->files.err.code || result->too_bad) {
        rf_comm_end(session->comm);
    }
    return code;
}

/* Whether the failure is another worker's, and this one's end only follows from it. */
static bool is_consequence(const struct session *session, const struct rf_error *err) {
    bool by_others = err->code == RF_ELOST || err->code == RF_ETOOFEW || err->code == RF_EENDED ||
                     err->code == RF_ESTATELESS;
    return by_others || (err->rank >= 0 && err->rank != rf_rank(session->comm));
}

/* One incident, one report: under the launcher by the worker where it happened; what merely follows
 * is not told. That a worker was lost is the launcher's to report, for it knows why; here it is a
 * line. Returns the exit status. */
static int failure_tell(struct session *session, const struct rf_error *err) {
    bool consequence = is_consequence(session, err);

    screen_clear(&session->screen);
    if (!session->launched || !consequence) {
        report_error(err);
    } else if ((err->code == RF_ELOST || err->code == RF_ETIMEDOUT) &&
               rf_rank(session->comm) == (err->rank == 0)) {
        fprintf(stderr, "! stopped: %s\n", err->text);
    }
    return consequence ? EX_UNAVAILABLE : exit_status(err->code);
}

static int comm_options_read(const struct train_settings *settings, struct rf_options *options,
                             struct rf_error *err) {
    rf_options_init(options);
    int code = rf_options_from_environ(options, environ, err);
    options->streams = settings->streams ? settings->streams : options->streams;
    if (!code && settings->algorithm &&
        rf_algorithm_parse(settings->algorithm, &options->algorithm)) {
        char covering[RF_ALGORITHMS_TEXT];
        return report_fail(err, RF_EUSAGE, 0,
                           "there is no algorithm '%s'; there are auto, shared, hierarchical, %s",
                           settings->algorithm,
                           rf_algorithms_covering(RF_COLL_ALLREDUCE, covering));
    }
    if (code || !settings->transport) {
        return code;
    }
    if (parse_transport(settings->transport, &options->transport) == 0) {
        return RF_OK;
    }
    return report_fail(err, RF_EUSAGE, 0, "there is no transport '%s'; there are auto, shm and tcp",
                       settings->transport);
}

/* What was chosen is the same on all: rank 0 tells of it. */
static void on_choice(void *context, const char *line) {
    struct session *session = context;
    if (session->comm && rf_rank(session->comm) == 0) {
        fprintf(stderr, "%s\n", line);
    }
}

/* Whether the launcher started more than this one worker and this is not the first: then rank 0
 * makes the common complaints. */
static bool follower(void) {
    const char *rank = getenv("RINGFOLD_RANK");
    return rank && strcmp(rank, "0") != 0;
}

int cmd_train(int argc, char **argv) {
    static struct session session; /* its paths are too large for a stack */
    struct rf_options options;
    struct rf_train_result result = {0};
    struct rf_error err = {0};

    int status = train_settings_read(&session.settings, argc, argv, follower());
    if (status) {
        return status < 0 ? EX_USAGE : status;
    }
    session.launched = getenv("RINGFOLD_RUN_DIR") && getenv("RINGFOLD_STORE");
    int code = comm_options_read(&session.settings, &options, &err);
    if (code) {
        if (!follower() || getenv("RINGFOLD_REPORT")) { /* the launcher shows that of the first */
            report_error(&err);
        }
        return exit_status(code);
    }
    options.choice = session.settings.verbose ? on_choice : NULL;
    options.choice_context = &session;
    options.elastic = true;
    session.elastic = options.min_size > 0;
    session.is_guest = session.elastic && getenv("RINGFOLD_GUEST");
    session.least = options.min_size;
    session.rank = -1;
    session.files.metrics.fd = session.files.log.fd = -1;
    code = rf_comm_create(&options, &session.comm, &err);
    waiting = session.comm;
    signals_catch();
    if (code) {
        report_error(&err);
        return err.code == RF_EENDED ? EX_UNAVAILABLE : exit_status(code);
    }
    screen_init(&session.screen, &session.settings, options.size);
    code = train(&session, &result, &err);
    if (code) {
        status = failure_tell(&session, &err);
    } else {
        status = exit_status(result.stopped ? RF_ESTOPPED : RF_OK);
        if (session.has_finished) {
            screen_receipt(&session.screen, &session.settings, &result, &session.history,
                           workers_in_the_end(&session, &result), session.files.folder,
                           session.files.weights_path);
        }
    }
    files_close(&session.files);
    waiting = NULL;
    rf_comm_destroy(session.comm);
    return status;
}
