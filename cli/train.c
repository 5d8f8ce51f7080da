/* `ringfold train`: reads the settings, joins the job, trains, and tells of it.
 *
 * Every worker runs this; rank 0 alone has a screen and files. What rank 0 cannot write ends the
 * job for all: it says so in rf_comm_abort, and after training all meet once more in a barrier, so
 * that a failure while the results are being written is everybody's failure too. */
#include "train.h"
#include "commands.h"
#include "report.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

static volatile sig_atomic_t stop_asked;

/* The first signal asks for a stop after the step; a second interrupt or termination acts as it
 * always does. */
static void on_signal(int number) {
    (void)number;
    stop_asked = 1;
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

struct session {
    struct train_settings settings;
    struct rf_comm *comm;
    bool first; /* rank 0 */
    bool launched;
    struct train_screen screen;
    struct train_files files;
    bool stop_told, aborted;
};

/* Rank 0 cannot go on: nobody shall wait for it. */
static void abort_on_failure(struct session *session) {
    if (session->files.err.code && !session->aborted) {
        session->aborted = true;
        rf_comm_abort(session->comm, session->files.err.text);
    }
}

static void on_start(void *context, const struct rf_train_start *start) {
    struct session *session = context;
    if (session->first) {
        screen_start(&session->screen, &session->settings, start, rf_comm_transport(session->comm),
                     session->files.folder);
        files_start(&session->files, &session->settings, start, rf_comm_transport(session->comm));
        abort_on_failure(session);
    }
}

static void on_step(void *context, const struct rf_train_step *step) {
    struct session *session = context;
    if (session->first) {
        if (step->step == 1) {
            files_gradients_write(&session->files);
        }
        files_step(&session->files, step);
        screen_step(&session->screen, step);
        abort_on_failure(session);
    }
}

static void on_epoch(void *context, const struct rf_train_epoch *epoch) {
    struct session *session = context;
    if (session->first) {
        screen_epoch(&session->screen, epoch);
    }
}

static void on_tensor(void *context, bool gradient, const char *name, const float *data,
                      const size_t *shape, int dims) {
    struct session *session = context;
    if (session->first) {
        files_tensor(&session->files, gradient, name, data, shape, dims);
    }
}

static bool on_stop(void *context) {
    struct session *session = context;
    if (stop_asked && session->first && !session->stop_told) {
        session->stop_told = true;
        screen_stopping(&session->screen);
    }
    return stop_asked;
}

/* Training itself, and what rank 0 makes of it. */
static int train(struct session *session, struct rf_train_result *result, struct rf_error *err) {
    const struct rf_train_callbacks callbacks = {.start = on_start,
                                                 .step = on_step,
                                                 .epoch = on_epoch,
                                                 .tensor = on_tensor,
                                                 .stop = on_stop,
                                                 .context = session};
    int code;

    if (session->first) {
        code = files_open(&session->files, &session->settings, err);
        if (code) {
            rf_comm_abort(session->comm, err->text);
            return code;
        }
    }
    code = rf_train(session->comm, &session->settings.train, &callbacks, result, err);
    if (!code && session->first) {
        files_finish(&session->files, &session->settings, result, rf_size(session->comm));
        abort_on_failure(session);
    }
    if (session->files.err.code) {
        *err = session->files.err;
        return err->code;
    }
    if (!code) {
        code = rf_barrier(session->comm);
        if (code) {
            rf_comm_error(session->comm, err);
        }
    }
    return code;
}

/* Whether the failure is another worker's, and this one's end only follows from it. */
static bool is_consequence(const struct session *session, const struct rf_error *err) {
    return err->code == RF_ELOST || (err->rank >= 0 && err->rank != rf_rank(session->comm));
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
    static const char *const names[] = {"auto", "shm", "tcp"};
    static const enum rf_transport values[] = {RF_TRANSPORT_AUTO, RF_TRANSPORT_SHM,
                                               RF_TRANSPORT_TCP};

    rf_options_init(options);
    int code = rf_options_from_environ(options, environ, err);
    if (code || !settings->transport) {
        return code;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!strcmp(settings->transport, names[i])) {
            options->transport = values[i];
            return RF_OK;
        }
    }
    return report_fail(err, RF_EUSAGE, 0, "there is no transport '%s'; there are auto, shm and tcp",
                       settings->transport);
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
    struct rf_train_result result;
    struct rf_error err = {0};

    int status = train_settings_read(&session.settings, argc, argv, follower());
    if (status) {
        return status < 0 ? EX_USAGE : status;
    }
    session.launched = getenv("RINGFOLD_RUN_DIR") && getenv("RINGFOLD_STORE");
    int code = comm_options_read(&session.settings, &options, &err);
    if (code) {
        if (!follower()) {
            report_error(&err);
        }
        return exit_status(code);
    }
    signals_catch();
    code = rf_comm_create(&options, &session.comm, &err);
    if (code) {
        report_error(&err);
        return exit_status(code);
    }
    session.first = rf_rank(session.comm) == 0;
    screen_init(&session.screen, &session.settings, rf_size(session.comm));
    code = train(&session, &result, &err);
    if (code) {
        status = failure_tell(&session, &err);
    } else {
        status = exit_status(result.stopped ? RF_ESTOPPED : RF_OK);
        if (session.first) {
            screen_receipt(&session.screen, &session.settings, &result, session.files.folder,
                           session.files.weights_path);
        }
    }
    files_close(&session.files);
    rf_comm_destroy(session.comm);
    return status;
}
