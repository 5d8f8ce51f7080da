/* Reads /proc/meminfo and the limits of control groups, v2 and v1. A limit holds for all groups
 * below, so each up to the root is looked at. In a container the path in /proc/self/cgroup may
 * belong to the host's view; then the files at the mount's root are this group's, and the walk ends
 * there in any case. What a group holds of files that nobody has used for a while is given back
 * when memory is short, and counts as free. */
#include "os/memory.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What one version of control groups calls its files. */
struct names {
    const char *mount, *limit, *usage, *idle;
};

/* The number behind `word` in a small file, or the first one where word is NULL; UINT64_MAX if
 * there is none. */
static uint64_t read_number(const char *path, const char *word) {
    char line[256];
    uint64_t value = UINT64_MAX;
    bool found = false;

    FILE *in = fopen(path, "re");
    if (!in) {
        return value;
    }
    while (!found && fgets(line, sizeof line, in)) {
        size_t length = word ? strlen(word) : 0;
        if (word && (strncmp(line, word, length) || !strchr(" :\t", line[length]))) {
            continue;
        }
        const char *digits = line + length + strspn(line + length, " :\t");
        char *end;
        errno = 0;
        unsigned long long number = strtoull(digits, &end, 10);
        found = true; /* or "max", which is no number */
        value = end != digits && *digits != '-' && !errno ? number : UINT64_MAX;
    }
    fclose(in);
    return value;
}

static uint64_t group_number(const char *root, const struct names *names, const char *group,
                             const char *file, const char *word) {
    char path[3 * PATH_MAX];

    int length = snprintf(path, sizeof path, "%s%s%s/%s", root, names->mount, group, file);
    return length > 0 && (size_t)length < sizeof path ? read_number(path, word) : UINT64_MAX;
}

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* The limit of one group, in what is known so far. */
static void take_group(const char *root, const struct names *names, const char *group,
                       struct rf__memory *memory) {
    uint64_t limit = group_number(root, names, group, names->limit, NULL);
    uint64_t used = group_number(root, names, group, names->usage, NULL);
    uint64_t idle = group_number(root, names, group, "memory.stat", names->idle);

    if (limit >= INT64_MAX / 2) { /* v1's way to say that there is none */
        return;
    }
    used = used == UINT64_MAX ? 0 : used; /* not told: no more than the limit is known */
    used -= idle == UINT64_MAX ? 0 : least(idle, used);
    memory->total = least(memory->total, limit);
    memory->available = least(memory->available, limit - least(used, limit));
}

/* The group and all that it is in. */
static void take_groups(const char *root, const struct names *names, char *group,
                        struct rf__memory *memory) {
    char *slash = group + strlen(group);

    while (slash) {
        *slash = '\0';
        take_group(root, names, group, memory);
        slash = strrchr(group, '/');
    }
}

struct rf__memory rf__memory_read(const char *root) {
    static const struct names v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                    "memory.usage_in_bytes", "total_inactive_file"};
    static const struct names v2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                    "inactive_file"};
    struct rf__memory memory;
    char path[PATH_MAX + 64], line[PATH_MAX];

    snprintf(path, sizeof path, "%.*s/proc/meminfo", PATH_MAX - 1, root);
    memory.total = read_number(path, "MemTotal");
    memory.available = read_number(path, "MemAvailable");
    memory.total = memory.total > UINT64_MAX >> 10 ? UINT64_MAX : memory.total << 10; /* KiB */
    memory.available = memory.available > UINT64_MAX >> 10 ? UINT64_MAX : memory.available << 10;
    snprintf(path, sizeof path, "%.*s/proc/self/cgroup", PATH_MAX - 1, root);
    FILE *in = fopen(path, "re");
    if (!in) {
        return memory;
    }
    while (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) {
            continue;
        }
        *group++ = '\0';
        group += !strcmp(group, "/"); /* the root, whose files are those of the mount */
        if (!strcmp(controllers + 1, "memory")) {
            take_groups(root, &v1, group, &memory);
        } else if (!controllers[1]) {
            take_groups(root, &v2, group, &memory);
        }
    }
    fclose(in);
    return memory;
}
