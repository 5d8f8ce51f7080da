/* Members must choose algorithms by tables that choose alike, or the first call that they carry out
 * in different ways would end the job. So each says in the record by which others find it which
 * table it has, and all compare before they connect.
 *
 * A record is the endpoint; where the member has a table of its own, a bar, the table's
 * digest and its name follow. */
#include "group/inner.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The end of a long name tells more than its begin. */
static const char *short_name(const char *name) {
    enum { SHOWN = RF__TABLE_LINE - 28 };
    size_t length = name ? strlen(name) : 0;
    return length > SHOWN ? name + length - SHOWN : length ? name : "?";
}

void rf__table_line(const struct rf__group *group, char out[RF__TABLE_LINE]) {
    out[0] = 0;
    if (group->tuning_digest) {
        snprintf(out, RF__TABLE_LINE, "|%016" PRIx64 " %s", group->tuning_digest,
                 short_name(group->options.tuning_name));
    }
}

size_t rf__table_endpoint(const char *record) {
    return strcspn(record, "|");
}

static void name_table(char out[RF__TABLE_LINE], uint64_t digest, const char *name) {
    if (digest) {
        snprintf(out, RF__TABLE_LINE, "%s (%016" PRIx64 ")", name, digest);
    } else {
        snprintf(out, RF__TABLE_LINE, "the default table");
    }
}

bool rf__table_differs(const struct rf__group *group, const char *record,
                       char theirs[RF__TABLE_LINE], char ours[RF__TABLE_LINE]) {
    const char *line = record + rf__table_endpoint(record);
    char name[RF__TABLE_LINE - 27] = "?";
    uint64_t digest = 0;

    if (line[0] && sscanf(line + 1, "%16" SCNx64 " %100[^\n]", &digest, name) < 1) {
        return false; /* of a version that says something else there */
    }
    name_table(theirs, digest, name);
    name_table(ours, group->tuning_digest, short_name(group->options.tuning_name));
    return digest != group->tuning_digest;
}
