/* Through /proc/net/tcp{,6}: the port's listening socket has an inode; the process with a
 * descriptor that links to "socket:[inode]" holds it. */
#include "os/holder.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LISTEN = 0x0a };

static unsigned long inode_in(const char *table, int port) {
    char line[512];
    unsigned long inode = 0;
    FILE *file = fopen(table, "re");

    while (file && !inode && fgets(line, sizeof line, file)) {
        unsigned local = 0, state = 0;
        unsigned long found = 0;
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*s %*s %lu",
                   &local, &state, &found) == 3 &&
            local == (unsigned)port && state == LISTEN) {
            inode = found;
        }
    }
    if (file) {
        fclose(file);
    }
    return inode;
}

static bool process_has(const char *pid, const char *wanted) {
    char path[300], link[64];
    bool found = false;

    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    DIR *folder = opendir(path);
    const struct dirent *entry;
    while (folder && !found && (entry = readdir(folder))) {
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, link, sizeof link - 1);
        if (length > 0) {
            link[length] = 0;
            found = strcmp(link, wanted) == 0;
        }
    }
    if (folder) {
        closedir(folder);
    }
    return found;
}

static void describe(const char *pid, char *out, size_t bytes) {
    char path[300], name[32] = "?";

    snprintf(path, sizeof path, "/proc/%s/comm", pid);
    FILE *file = fopen(path, "re");
    if (file) {
        if (fgets(name, sizeof name, file)) {
            name[strcspn(name, "\n")] = 0;
        }
        fclose(file);
    }
    snprintf(out, bytes, "pid %s (%s)", pid, name);
}

bool rf__port_holder(int port, char *out, size_t bytes) {
    char wanted[64];
    bool found = false;

    unsigned long inode = inode_in("/proc/net/tcp", port);
    if (!inode) {
        inode = inode_in("/proc/net/tcp6", port);
    }
    if (!inode) {
        return false;
    }
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    DIR *folder = opendir("/proc");
    const struct dirent *entry;
    while (folder && !found && (entry = readdir(folder))) {
        if (isdigit((unsigned char)entry->d_name[0]) && process_has(entry->d_name, wanted)) {
            describe(entry->d_name, out, bytes);
            found = true;
        }
    }
    if (folder) {
        closedir(folder);
    }
    return found;
}
