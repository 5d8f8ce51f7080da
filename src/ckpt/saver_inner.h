/* What the files of the saver share.
 *
 *     saver.c        taking checkpoints: the thread, its job, what a manifest says of the past
 *     saver_find.c   finding one again: which to go back to, histories, loading */
#ifndef RF_CKPT_SAVER_INNER_H
#define RF_CKPT_SAVER_INNER_H

#include "ckpt/saver.h"

#include <pthread.h>

enum {
    NEWS = 16,
    LEAST_PRIORITY = 19,
    REFUSED = 32,
    PART_PATIENCE_MS = 30000, /* for the others' parts, after ours; or ten times what ours took */
    LOST_PATIENCE_MS = 2000,  /* ... once members were lost */
    POLL_LEAST_MS = 20,
    POLL_MOST_MS = 1000
};

enum stage { IDLE, COPYING, WRITING };
enum word { WAITING, AGREED, DROPPED };

struct rf__saver_past {
    struct rf__ckpt_id ancestors[RF__CKPT_ANCESTORS]; /* newest first */
    int ancestor_count;
    bool is_known; /* all of it: from the beginning, or from a checkpoint */
    uint64_t first_step;
    uint64_t digests[RF__CKPT_DIGESTS]; /* the chain after first_step + i steps */
    int digest_count;
};

struct rf__saver {
    struct rf__blobs *blobs;
    struct rf__saver_options options;
    char *where, *other_where, *job_name, *config;
    struct rf__saver_past past; /* of the training thread */

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ends;
    enum stage stage;
    enum word word;
    bool failed;     /* the job */
    int64_t lost_at; /* members, since the job was begun, for the last time; 0: none */
    uint64_t state_digest;
    struct rf__saver_job job;
    struct rf__saver_past job_past; /* as of the job */
    struct rf__ckpt_tensor *shapes; /* of the job's state, without its memory */
    size_t shapes_room;
    struct rf__ckpt_part parts[RF__CKPT_PARTS]; /* what they must be; the leader's */
    unsigned char *staged;
    uint64_t staged_room;
    struct rf__saver_news news[NEWS];
    unsigned news_first, news_count;

    struct rf__ckpt_id refused[REFUSED]; /* by this process */
    int refused_count;
};

/* Puts news into the queue; from either thread. */
void rf__saver_tell(struct rf__saver *saver, enum rf__saver_news_kind kind,
                    const struct rf__ckpt_id *id, const char *text);

/* From now on the past is the checkpoint's and what led to it; NULL: the training begins here. */
void rf__saver_past_reset(struct rf__saver_past *past, const struct rf__ckpt_manifest *from);

#endif
