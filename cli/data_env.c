/* Variables that say where data's indices are kept and which reads are to fail. */
#include "data_env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *data_cache_folder(char out[PATH_MAX]) {
    static const struct {
        const char *variable, *below;
    } places[] = {
        {"RINGFOLD_CACHE", ""}, {"XDG_CACHE_HOME", "/ringfold"}, {"HOME", "/.cache/ringfold"}};

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = getenv(places[i].variable);
        if (value && value[0]) {
            int length = snprintf(out, PATH_MAX, "%s%s", value, places[i].below);
            return length > 0 && length < PATH_MAX ? out : NULL;
        }
    }
    return NULL;
}

const char *data_bad_reads(void) {
    const char *allowed = getenv("RINGFOLD_FAULTS");
    const char *order = getenv("RINGFOLD_FAULT_READ");

    return allowed && !strcmp(allowed, "1") && order && order[0] ? order : NULL;
}
