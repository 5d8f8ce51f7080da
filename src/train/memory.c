/* The worker's need is parameters, gradients, their averages, the optimizer's state and
 * activations; what else it takes (its programs, files that it reads, a checkpoint on its way) is
 * small, or can be had back. */
#include "train/memory.h"

#include "base/status.h"

#include <stdio.h>
#include <string.h>

/* "1.20 GiB". */
struct size_text {
    char text[24];
};

static struct size_text size_text(double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    struct size_text out;
    size_t unit = 0;

    while (bytes >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out.text, sizeof out.text, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
    return out;
}

int rf__train_memory_check(const struct rf_train_options *options,
                           const struct rf__model_options *model, const struct rf__train_host *host,
                           struct rf_error *err) {
    static const struct rf__train_host unknown = {UINT64_MAX, UINT64_MAX, 1};
    struct rf__model_bytes bytes;

    int code = rf__model_estimate(model, &bytes, err);
    if (code || !bytes.parameters) {
        return code;
    }
    host = host ? host : &unknown;
    double moments = strcmp(options->optimizer, "adamw") != 0 ? 1 : 2;
    double parameters = (double)bytes.parameters, activations = (double)bytes.activations;
    double need = parameters * (3 + moments) + activations;
    double share = options->memory_bytes ? (double)options->memory_bytes
                                         : (double)host->available / host->workers;
    if (need <= share) {
        return RF_OK;
    }
    code = rf__fail(err, RF_ENOMEM, 0, "this worker would take %s of memory, and may take %s",
                    size_text(need).text, size_text(share).text);
    if (!err) {
        return code;
    }
    rf__detail(err->what,
               "parameters, gradients and their averages %s each, optimizer %s, activations %s",
               size_text(parameters).text, size_text(parameters * moments).text,
               size_text(activations).text);
    if (options->memory_bytes) {
        rf__detail(err->where, "--memory is %s", size_text(share).text);
    } else {
        rf__detail(err->where, "the host has %s available of %s, for %d worker%s of this job",
                   size_text((double)host->available).text, size_text((double)host->total).text,
                   host->workers, host->workers == 1 ? "" : "s");
    }
    if (activations > need / 2 && model->batch > 1) {
        rf__detail(err->next,
                   "a smaller --micro-batch (now %d) or --context, or fewer workers on this host",
                   model->batch);
    } else {
        rf__detail(err->next, "a smaller --width, --depth or --context, or fewer workers on this "
                              "host");
    }
    return code;
}
