/* Checkpoints of a running job: the options of the public header, wired to storage and saver. */
#include "api/checkpoint.h"

#include "base/status.h"
#include "member/progress.h"
#include "os/faulty.h"
#include "os/storage.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void rf_checkpoint_options_init(struct rf_checkpoint_options *options) {
    *options = (struct rf_checkpoint_options){.keep = 3};
}

/* A step's number; false where the text is none. */
static bool parse_step(const char *text, uint64_t *out) {
    char *end;

    if (!isdigit((unsigned char)text[0])) {
        return false;
    }
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    *out = value;
    return !errno && !*end && value < RF__RESUME_NONE;
}

int rf__checkpoint_saver(const struct rf_checkpoint_options *options, const char *job,
                         struct rf__faulty_blobs **faulty, struct rf__saver **out,
                         struct rf_error *err) {
    struct rf__blobs *blobs = NULL, *other = NULL;
    struct rf__saver_options saver = {
        .where = options->uri,
        .job = job,
        .config = options->config,
        .keep = options->keep,
        .resume = RF__RESUME_NONE,
        .roll_back_parted = options->rollback_on_divergence != 0,
    };
    const char *resume = options->resume;

    if (!options->uri || !options->uri[0] || options->keep < 0) {
        return rf__fail(err, RF_EINVAL, 0, "checkpoints need a place, and 0 or more to keep");
    }
    int code = rf__storage_open(options->uri, NULL, &blobs, err);
    if (code) {
        goto out;
    }
    if (resume && !strcmp(resume, "auto")) {
        saver.resume = RF__NEWEST_STEP;
    } else if (resume && !parse_step(resume, &saver.resume)) {
        saver.resume = RF__NEWEST_STEP;
        saver.other_where = resume;
        code = rf__storage_open(resume, NULL, &other, err);
        saver.other = other;
    }
    if (code) {
        goto out;
    }
    if (faulty) {
        struct rf__blobs *inner = blobs;
        blobs = NULL; /* it is destroyed there, also on a failure */
        code = rf__faulty_blobs_create(inner, NULL, faulty, err);
        blobs = code ? NULL : rf__faulty_blobs_base(*faulty);
    }
    if (!code) {
        code = rf__saver_create(blobs, &saver, out, err);
        blobs = other = NULL;
    }

out:
    if (blobs) {
        blobs->ops->destroy(blobs);
    }
    if (other) {
        other->ops->destroy(other);
    }
    return code;
}
