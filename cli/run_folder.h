/* The run folder: run.json, events.jsonl, commits.jsonl on request, logs/g1/ID.{out,err}, for later
 * starts of a worker logs/g1/ID.rN.{out,err}, and error.json once there was trouble. */
#ifndef RF_CLI_RUN_FOLDER_H
#define RF_CLI_RUN_FOLDER_H

#include "run_options.h"

#include <jansson.h>
#include <limits.h>
#include <ringfold/error.h>

struct run_folder {
    char shown[PATH_MAX];    /* as the user gave it, or runs/NAME-TIME */
    char absolute[PATH_MAX]; /* for workers, which may change their folder */
    int fd;                  /* of the folder; -1 before it is made */
    int events_fd;
    int commits_fd;    /* -1: not kept */
    bool write_failed; /* an event or a file was lost */
};

/* Makes the folder, its logs/g1 and, for a name of its own choice, the link runs/latest. RF_EIO
 * with the path; RF_EUSAGE where --run-dir holds another run. */
RF_MUST_CHECK int run_folder_create(struct run_folder *folder, const struct run_options *options,
                                    struct rf_error *err);
void run_folder_close(struct run_folder *folder);

/* Every setting with its source, versions, host and command. */
RF_MUST_CHECK int run_folder_describe(struct run_folder *folder, const struct run_options *options,
                                      const char *store_uri, struct rf_error *err);

enum { RUN_LOG_NAME_MAX = 64 };

/* "logs/g1/007.out", "logs/g1/007.r1.out": of the worker's start number `restarts`, from 0. */
void run_folder_log_name(char out[RUN_LOG_NAME_MAX], int id, int restarts, const char *kind);

/* The report that a worker left, or NULL. The caller's. */
json_t *run_folder_take_report(const struct run_folder *folder, int id, int restarts);

/* A new, empty log; `kind` is "out" or "err". Returns the descriptor or RF_EIO. */
RF_MUST_CHECK int run_folder_open_log(const struct run_folder *folder, int id, int restarts,
                                      const char *kind, struct rf_error *err);

/* One line of events.jsonl: time and name are put in front of the members of `event`, which is
 * taken over. Returns the line, without its end, for the caller to free; NULL without memory. */
char *run_folder_event(struct run_folder *folder, const char *name, json_t *event);

/* A line that a worker wrote, with its end: into events.jsonl, or into commits.jsonl where that is
 * kept. */
void run_folder_line(struct run_folder *folder, bool is_commit, const char *line, size_t bytes);

/* error.json; `report` is borrowed. */
void run_folder_error(struct run_folder *folder, json_t *report);

#endif
