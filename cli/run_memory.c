/* Reads memory.events (cgroup v2) or memory.oom_control (v1). In a container the path in
 * /proc/self/cgroup may belong to the host's view; then the files at the mount's root are this
 * group's. */
#include "run_memory.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number behind `word` (or the first one, where word is NULL) in a small file; -1 if there is
 * none. */
static int64_t read_number(const char *root, const char *group, const char *file,
                           const char *word) {
    char path[PATH_MAX + 64];
    char line[128];
    int64_t value = -1;

    snprintf(path, sizeof path, "%s%s/%s", root, group, file);
    FILE *in = fopen(path, "re");
    if (!in) {
        return -1;
    }
    while (value < 0 && fgets(line, sizeof line, in)) {
        size_t length = word ? strlen(word) : 0;
        if (word && (strncmp(line, word, length) || line[length] != ' ')) {
            continue;
        }
        char *end;
        long long number = strtoll(line + length, &end, 10);
        value = end != line + length && number >= 0 ? number : -1;
    }
    fclose(in);
    return value;
}

static void read_group(const char *root, const char *group, const char *events, const char *limit,
                       struct run_memory *out) {
    const char *where = group;

    out->oom_kills = read_number(root, where, events, "oom_kill");
    if (out->oom_kills < 0) {
        where = "";
        out->oom_kills = read_number(root, where, events, "oom_kill");
    }
    if (out->oom_kills >= 0) {
        out->limit_bytes = read_number(root, where, limit, NULL);
        if (out->limit_bytes > INT64_MAX / 2) { /* v1's way to say that there is none */
            out->limit_bytes = -1;
        }
    }
}

void run_memory_read(struct run_memory *out) {
    char line[PATH_MAX];

    *out = (struct run_memory){-1, -1};
    FILE *in = fopen("/proc/self/cgroup", "re");
    if (!in) {
        return;
    }
    while (out->oom_kills < 0 && fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) {
            continue;
        }
        *group++ = '\0';
        if (!strcmp(controllers + 1, "memory")) {
            read_group("/sys/fs/cgroup/memory", group, "memory.oom_control",
                       "memory.limit_in_bytes", out);
        } else if (!controllers[1]) {
            read_group("/sys/fs/cgroup", group, "memory.events", "memory.max", out);
        }
    }
    fclose(in);
}
