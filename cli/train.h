/* What the files of `ringfold train` share: its settings, its screen and its files.
 *
 * Only rank 0, whoever that is at the moment, has a screen and files. A screen writes to stdout and
 * knows nothing of files; files know nothing of the screen. */
#ifndef RF_CLI_TRAIN_H
#define RF_CLI_TRAIN_H

#include <limits.h>
#include <ringfold/ringfold.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

enum train_source { TRAIN_DEFAULT, TRAIN_ENVIRONMENT, TRAIN_FLAG };
enum { TRAIN_SETTINGS = 42 };

struct train_settings {
    struct rf_train_options train;
    const char *transport, *algorithm;
    int streams;                                       /* 0: not given */
    const char *log, *save, *save_gradients, *run_dir; /* NULL: not given */
    const char *on_divergence, *compress;
    bool quiet, verbose;
    char cache[PATH_MAX]; /* of train.index_cache */
    enum train_source sources[TRAIN_SETTINGS];
};

/* Reads flags, then what RINGFOLD_* variables say about the rest. 0; an exit status, reported
 * already; or -1 where `quiet_errors` kept the report back. */
int train_settings_read(struct train_settings *settings, int argc, char **argv, bool quiet_errors);

/* Calls `each` for every setting: its name, its value as text, and where it came from. */
void train_settings_each(const struct train_settings *settings,
                         void (*each)(void *context, const char *name, const char *value,
                                      const char *source),
                         void *context);

/* --- the screen ---------------------------------------------------------------------------------
 */

struct train_screen {
    FILE *out;
    bool live;  /* a last line that is written over */
    bool drawn; /* it stands there now */
    bool quiet;
    bool header; /* the table's head has been printed, here or by who was rank 0 before */
    int size;    /* workers at the start */
    double began, printed, redrawn; /* seconds, monotonic */
    uint64_t first;                 /* steps that were committed before this worker's first */
    bool counts;                    /* ... which is known */

    /* Since the last line of the table. */
    uint64_t steps, samples;
    double loss_sum, step_s, data_s, exposed_s;

    int failed_checkpoints; /* since the last that was written; the first is told */
    double best;            /* accuracy, or of tokens the test loss; NAN: none yet */
    uint64_t best_at;       /* its epoch, or of tokens its step */
};

/* What happened to the group, as this worker saw it. */
struct train_history {
    uint64_t failures;        /* survived: workers lost, or links */
    uint64_t joined;          /* workers */
    uint64_t retried, redone; /* steps that were begun again; shards computed for lost workers */
};

void screen_init(struct train_screen *screen, const struct train_settings *settings, int size);

/* These are for every worker, so that whoever becomes rank 0 knows them. */
void screen_begin(struct train_screen *screen);
void screen_count(struct train_screen *screen, const struct rf_train_step *step);
void screen_best(struct train_screen *screen, const struct rf_train_epoch *epoch);

/* The rest is for rank 0. `workers` is how many there are now. */
void screen_start(struct train_screen *screen, const struct train_settings *settings,
                  const struct rf_train_start *start, const char *transport, const char *folder);
void screen_step(struct train_screen *screen, const struct rf_train_step *step, int workers);
void screen_epoch(struct train_screen *screen, const struct rf_train_epoch *epoch);
void screen_stopping(struct train_screen *screen);
void screen_checkpoint(struct train_screen *screen, const struct train_settings *settings,
                       const struct rf_checkpoint_news *news);

/* Takes the live line away, so that something else can be printed. */
void screen_clear(struct train_screen *screen);
void screen_receipt(struct train_screen *screen, const struct train_settings *settings,
                    const struct rf_train_result *result, const struct train_history *history,
                    int workers, const char *folder, const char *weights);

/* --- files --------------------------------------------------------------------------------------
 */

/* Tensors to be written to one file; the data is copied. */
struct train_tensors {
    struct train_tensor *list;
    size_t count, capacity;
};

/* A file of one object a line, to which others that were rank 0 before may have written, or still
 * do: a step is never in it twice. */
struct train_log {
    int fd; /* -1: not open */
    const char *path;
    bool is_regular; /* its end can be looked at */
    off_t end;       /* as we know it */
    uint64_t last;   /* the place of the line before it: twice its step, and one more where it tells
                        of a measurement after it */
};

struct train_files {
    char folder[PATH_MAX];
    char metrics_path[PATH_MAX];
    char weights_path[PATH_MAX];
    bool is_open;
    struct train_log metrics, log;
    const char *gradients_path;
    struct train_tensors gradients, weights;
    struct rf_error err; /* the first failure; later calls do nothing */
};

/* Makes the run folder and opens the logs: empty where this is the job's begin (`is_first`), else
 * as they are. On an error files_close is still due, and files->err has it too. */
int files_open(struct train_files *files, const struct train_settings *settings, bool is_first,
               struct rf_error *err);
void files_close(struct train_files *files);

/* These leave a failure in files->err. */
void files_start(struct train_files *files, const struct train_settings *settings,
                 const struct rf_train_start *start, const char *transport);
void files_step(struct train_files *files, const struct rf_train_step *step); /* if it is later */

/* A measurement of tokens goes into metrics.jsonl, where it is later than what is there. */
void files_measurement(struct train_files *files, const struct rf_train_epoch *epoch);

/* The steps after `step` are undone: their lines go. */
void files_go_back(struct train_files *files, uint64_t step);
void files_tensor(struct train_files *files, bool gradient, const char *name, const float *data,
                  const size_t *shape, int dims);
void files_gradients_write(struct train_files *files);

/* The log's last object, the weights and SUMMARY.md. Where `others` may have been rank 0 in the
 * end, only who comes first does it: false for the rest. */
bool files_finish(struct train_files *files, const struct train_settings *settings,
                  const struct rf_train_result *result, int size, bool others);

/* The most memory that this process ever held. */
uint64_t train_peak_bytes(void);

#endif
