/* Errors: every fallible call returns 0 or one of the negative codes below.
 *
 * A code has one number for ever: RF_EMISMATCH is -301 in the API and `RF0301` on the screen. Calls
 * that set something up, or talk to a file or a peer, also fill a `struct rf_error` with the line a
 * person should read and, where they are known, the details of a full report (what, where, why,
 * next).
 *
 * Thread safety: everything here works on the caller's memory only. */
#ifndef RINGFOLD_ERROR_H
#define RINGFOLD_ERROR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(RF_BUILDING)
#define RF_API __attribute__((visibility("default")))
#else
#define RF_API
#endif
#define RF_MUST_CHECK __attribute__((warn_unused_result))

/* X(name, number, short text, what a user can do about it) */
#define RF_ERROR_LIST(X)                                                                           \
    X(EINVAL, 101, "invalid argument", "check the value named in the first line")                  \
    X(ENOMEM, 102, "out of memory", "use a smaller model or batch, or fewer workers on this host") \
    X(ELIMIT, 103, "a limit was exceeded", "the first line names the limit and the value")         \
    X(EIO, 104, "input or output failed", "check the disk and the permissions of the path")        \
    X(EINTERNAL, 105, "internal error", "report it with the run folder's logs")                    \
    X(EUNSUPPORTED, 106, "not supported", "see the documentation of the call")                     \
    X(EUSAGE, 107, "wrong usage", "see --help")                                                    \
    X(EADDR, 201, "address cannot be used",                                                        \
      "choose another port, or stop the process that has it")                                      \
    X(ECONNECT, 202, "cannot connect", "check that the peer runs and that no firewall is between") \
    X(EAUTH, 203, "the job key was refused", "give every process of the job the same key file")    \
    X(EPROTO, 204, "protocol violation", "check that every process runs the same version")         \
    X(ESTORE, 205, "the store failed", "check the store's own log and its journal")                \
    X(EJOURNAL, 206, "the store's journal cannot be used", "give it a writable path with space")   \
    X(ETIMEDOUT, 207, "timed out", "the first line names who was waited for")                      \
    X(ECONFLICT, 208, "changed by somebody else", "read the value again and retry")                \
    X(EMISMATCH, 301, "ranks called different collectives",                                        \
      "make every rank issue the same calls")                                                      \
    X(ELOST, 302, "a worker was lost", "look at the lost worker's own log")                        \
    X(EREVOKED, 303, "the generation was revoked", "the first cause is in the error of the group") \
    X(EDIVERGED, 304, "workers do not hold the same state",                                        \
      "check for faulty memory, or unseeded initial state")                                        \
    X(ETOOFEW, 305, "too few workers", "start more workers, or lower the minimum")                 \
    X(EREFUSED, 306, "the running job refused this worker",                                        \
      "start it with the same model, data and options as the others")                              \
    X(EENDED, 307, "the job has ended", "start it under another name, or from its checkpoint")     \
    X(ESTATELESS, 308, "no worker that is left holds the state",                                   \
      "start again from the newest checkpoint")                                                    \
    X(ECHECKPOINT, 309, "a checkpoint cannot be used",                                             \
      "use an older one: ringfold ckpt list shows them")                                           \
    X(EEXISTS, 310, "there is something already", "choose another place")                          \
    X(EDATA, 401, "data cannot be used", "check the file named in the first line")                 \
    X(ENOTFOUND, 402, "not found", "check the name or path")                                       \
    X(EWORKER, 501, "a worker failed", "look at its last lines and its log")                       \
    X(ESTOPPED, 502, "stopped on request", "start again to go on")

enum {
    RF_OK = 0,
#define RF_X(name, number, text, next) RF_##name = -(number),
    RF_ERROR_LIST(RF_X)
#undef RF_X
};

enum { RF_ERROR_TEXT_MAX = 320, RF_ERROR_DETAIL_MAX = 256 };

/* The report of one failure. `text` alone is enough in a list; the details are empty where nothing
 * is known. */
struct rf_error {
    int code;      /* RF_E…, or 0 when nothing was reported */
    int sys_errno; /* errno of the failing system call, or 0 */
    int rank;      /* the culprit's rank, or -1 */
    char text[RF_ERROR_TEXT_MAX];
    char what[RF_ERROR_DETAIL_MAX];
    char where[RF_ERROR_DETAIL_MAX];
    char why[RF_ERROR_DETAIL_MAX];
    char next[RF_ERROR_DETAIL_MAX];
};

/* A static string: the code's short text, its name ("RF_EMISMATCH"), or what to do about it.
 * Unknown codes give "unknown error", "RF_E?" and "". */
RF_API const char *rf_error_text(int code);
RF_API const char *rf_error_name(int code);
RF_API const char *rf_error_next(int code);

#ifdef __cplusplus
}
#endif
#endif
