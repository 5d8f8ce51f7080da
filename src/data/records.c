/* TFRecord files as samples: one scan over each file finds its records. One whose data does not
 * match its check sum is a sample that cannot be used; what follows a length that does not match is
 * lost, and counts as one more. */
#include "data/records.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/idx.h"
#include "data/text.h"
#include "data/tfrecord.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES_MAX = 4096, NAME_BYTES = 256, PATH_BYTES = 4096 };

static const char ENDING[] = ".tfrecord";

/* --- names ------------------------------------------------------------------------------------ */

struct names {
    const char *prefix;
    char (*list)[NAME_BYTES];
    uint32_t count, room;
    bool no_memory, too_many;
};

static bool is_wanted(const char *name) {
    size_t length = strlen(name);
    size_t ending = sizeof ENDING - 1;
    return length > ending && length < NAME_BYTES && !strchr(name, '/') &&
           !strcmp(name + length - ending, ENDING);
}

static int name_add(void *context, const struct rf__blob_entry *entry) {
    struct names *names = context;

    if (!is_wanted(entry->name)) {
        return 0;
    }
    names->too_many = names->count == FILES_MAX;
    if (!names->too_many && names->count == names->room) {
        uint32_t room = names->room ? 2 * names->room : 16;
        char(*grown)[NAME_BYTES] = rf__grow(names->list, room, sizeof *grown);
        names->no_memory = !grown;
        names->list = grown ? grown : names->list;
        names->room = grown ? room : names->room;
    }
    if (names->too_many || names->no_memory) {
        return RF_ELIMIT;
    }
    snprintf(names->list[names->count++], NAME_BYTES, "%s", entry->name);
    return 0;
}

/* The folder's TFRecord files whose names begin with `prefix`, in the order of their names. */
static int names_read(const struct rf__data_io *io, const char *prefix, struct names *out,
                      struct rf_error *err) {
    *out = (struct names){.prefix = prefix};
    if (!io->beside || !io->beside->ops->list) {
        return RF_OK;
    }
    int code = io->beside->ops->list(io->beside, prefix, name_add, out, err);
    if (out->no_memory) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory for the names of TFRecord files");
    } else if (out->too_many) {
        code = rf__fail(err, RF_ELIMIT, 0, "more than %d files '%s*%s' in the data folder",
                        FILES_MAX, prefix, ENDING);
    }
    return code == RF_ENOTFOUND ? RF_OK : code;
}

/* --- files ------------------------------------------------------------------------------------ */

struct reading {
    struct rf__dataset *dataset;
    struct rf__samples *part;
    uint32_t room; /* of records */
    uint64_t bytes;
};

static int record_add(struct reading *reading, const struct rf__image_record *record,
                      struct rf_error *err) {
    struct rf__samples *part = reading->part;

    if (part->count == reading->room) {
        uint32_t room = reading->room ? 2 * reading->room : 1024;
        struct rf__image_record *grown = rf__grow(part->records, room, sizeof *grown);
        if (!grown || part->count >= RF__IDX_MAX_SIDE) {
            part->records = grown ? grown : part->records;
            return rf__fail(err, grown ? RF_ELIMIT : RF_ENOMEM, 0, "%s records are too many",
                            rf__number(part->count).text);
        }
        part->records = grown;
        reading->room = room;
    }
    part->records[part->count++] = *record;
    return RF_OK;
}

static uint64_t square_side(uint64_t bytes) {
    uint64_t side = 0;

    while (side <= RF__DATA_MAX_SIDE && side * side < bytes) {
        side++;
    }
    return side;
}

/* What the Example must be to be a sample of this set; the first one decides the size. */
static int example_check(struct reading *reading, const struct rf__example *e, const char *path,
                         uint64_t offset, struct rf_error *err) {
    struct rf__dataset *dataset = reading->dataset;
    bool has_size = e->height > 0 || e->width > 0;
    uint64_t height = has_size ? (uint64_t)e->height : square_side(e->image_bytes);
    uint64_t width = has_size ? (uint64_t)e->width : height;
    const char *tail = rf__path_tail(path);
    struct rf__number at = rf__number(offset);

    if (!e->image || e->label < 0) {
        return rf__fail(err, RF_EDATA, 0,
                        "the record at byte %s of '%s' has no '%s', expected image_raw (bytes) and "
                        "label (int64)",
                        at.text, tail, e->image ? "label" : "image_raw");
    }
    if (e->label >= RF__DATA_CLASSES) {
        return rf__fail(err, RF_EDATA, 0,
                        "the record at byte %s of '%s' has label %lld, expected 0 to %d", at.text,
                        tail, (long long)e->label, RF__DATA_CLASSES - 1);
    }
    if (!height || !width || height > RF__DATA_MAX_SIDE || width > RF__DATA_MAX_SIDE ||
        height * width != e->image_bytes) {
        return rf__fail(err, RF_EDATA, 0,
                        "the record at byte %s of '%s' has an image of %s bytes, expected height x "
                        "width (square without them) of at most %d x %d",
                        at.text, tail, rf__number(e->image_bytes).text, RF__DATA_MAX_SIDE,
                        RF__DATA_MAX_SIDE);
    }
    if (!dataset->height) {
        dataset->height = (int)height;
        dataset->width = (int)width;
    }
    if (dataset->height != (int)height || dataset->width != (int)width) {
        return rf__fail(err, RF_EDATA, 0,
                        "the record at byte %s of '%s' has an image of %d x %d, expected %d x %d "
                        "as before",
                        at.text, tail, (int)height, (int)width, dataset->height, dataset->width);
    }
    return RF_OK;
}

static int record_take(struct reading *reading, const unsigned char *content,
                       const struct rf__record *found, const char *path, struct rf_error *err) {
    struct rf__image_record record = {
        .offset = found->offset, .file = reading->part->file_count - 1, .label = -1};
    struct rf__example example;

    if (found->state == RF__RECORD_GOOD) {
        if (rf__example_parse(content + found->data, found->bytes, &example)) {
            return rf__fail(err, RF_EDATA, 0,
                            "the record at byte %s of '%s' is no tf.train.Example",
                            rf__number(found->offset).text, rf__path_tail(path));
        }
        int code = example_check(reading, &example, path, found->offset, err);
        if (code) {
            return code;
        }
        record.label = (signed char)example.label;
        record.image = (uint64_t)(example.image - content);
    }
    return record_add(reading, &record, err);
}

/* Reads the file whole; what cannot be read stays zero, and its records do not match. */
static int file_load(struct rf__source *source, struct rf_error *err) {
    for (uint64_t b = 0; b < rf__source_blocks(source); b++) {
        uint64_t at = b * RF__INDEX_BLOCK;
        uint64_t left = rf__source_bytes(source) - at;
        size_t n = left < RF__INDEX_BLOCK ? (size_t)left : RF__INDEX_BLOCK;
        int code = rf__source_touch(source, at, n, NULL, err);
        if (code && code != RF_EDATA && code != RF_EIO) {
            return code;
        }
    }
    return RF_OK;
}

static int file_scan(struct reading *reading, const struct rf__data_io *io, const char *folder,
                     const char *name, struct rf_error *err) {
    struct rf__samples *part = reading->part;
    struct rf__source *source = NULL;
    struct rf__record record;
    char path[PATH_BYTES];
    uint64_t at = 0;

    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length < 0 || length >= PATH_BYTES) {
        return rf__fail(err, RF_ELIMIT, 0, "the data folder's name is longer than %d bytes",
                        PATH_BYTES);
    }
    int code = rf__source_open(io->files, path, NULL, RF__IDX_MAX_BYTES, &source, err);
    if (code) {
        return code;
    }
    uint64_t bytes = rf__source_bytes(source);
    part->files[part->file_count++] = source; /* given back with the part */
    reading->bytes += bytes;
    if (reading->bytes > RF__IDX_MAX_BYTES) {
        return rf__fail(err, RF_ELIMIT, 0,
                        "the TFRecord files up to '%s' have %s bytes, more than %s",
                        rf__path_tail(path), rf__number(reading->bytes).text,
                        rf__number(RF__IDX_MAX_BYTES).text);
    }
    code = file_load(source, err);
    const unsigned char *content = rf__source_view(source, 0, (size_t)bytes);
    while (!code && rf__record_next(content, bytes, &at, &record)) {
        code = record_take(reading, content, &record, path, err);
    }
    return code;
}

static int part_read(const struct rf__data_io *io, const char *folder, const struct names *names,
                     struct rf__dataset *dataset, struct rf__samples *part, struct rf_error *err) {
    struct reading reading = {.dataset = dataset, .part = part};
    int code = RF_OK;

    part->files = rf__alloc(names->count, sizeof *part->files);
    if (!part->files) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for %u TFRecord files", names->count);
    }
    for (uint32_t i = 0; i < names->count && !code; i++) {
        code = file_scan(&reading, io, folder, names->list[i], err);
    }
    if (!code && !part->count) {
        code = rf__fail(err, RF_EDATA, 0, "no record in the %u files '%s*%s' of '%s'", names->count,
                        names->prefix, ENDING, rf__path_tail(folder));
    }
    return code;
}

int rf__records_open(const struct rf__data_io *io, const char *folder, bool *are_there,
                     struct rf__dataset *out, struct rf_error *err) {
    struct names train = {0};
    struct names test = {0};

    int code = names_read(io, "train", &train, err);
    *are_there = train.count > 0;
    if (!code && !*are_there) {
        code =
            rf__fail(err, RF_ENOTFOUND, 0, "no 'train*%s' in '%s'", ENDING, rf__path_tail(folder));
    }
    if (!code) {
        code = names_read(io, "test", &test, err);
    }
    if (!code && !test.count) {
        rf__free(test.list);
        code = names_read(io, "t10k", &test, err);
    }
    if (!code && !test.count) {
        code = rf__fail(err, RF_ENOTFOUND, 0, "no 'test*%s' or 't10k*%s' beside '%s' in '%s'",
                        ENDING, ENDING, train.list[0], rf__path_tail(folder));
    }
    if (!code) {
        code = part_read(io, folder, &train, out, &out->train, err);
    }
    if (!code) {
        code = part_read(io, folder, &test, out, &out->test, err);
    }
    if (!code && !out->height) {
        code = rf__fail(err, RF_EDATA, 0, "no record of the TFRecord files in '%s' can be used",
                        rf__path_tail(folder));
    }
    out->train.pixels = out->test.pixels = (uint32_t)(out->height * out->width);
    rf__free(train.list);
    rf__free(test.list);
    return code;
}

int rf__records_usable(const struct rf__samples *part, uint32_t sample, struct rf__bad *bad) {
    const struct rf__image_record *record = &part->records[sample];
    struct rf__source *source = part->files[record->file];
    uint64_t left = rf__source_bytes(source) - record->offset;
    bool is_last = sample + 1 == part->count || part->records[sample + 1].file != record->file;
    uint64_t bytes = is_last ? left : part->records[sample + 1].offset - record->offset;

    if (record->label >= 0) {
        return 1;
    }
    if (!rf__source_touch(source, record->offset, (size_t)bytes, bad, NULL) && bad) {
        *bad = (struct rf__bad){.file = rf__source_path(source),
                                .block = record->offset / RF__INDEX_BLOCK,
                                .offset = record->offset};
        snprintf(bad->cause, sizeof bad->cause,
                 "mismatch: a record's check sum is not that of its %s",
                 is_last ? "bytes, or it "
                           "is cut short"
                         : "data");
    }
    return 0;
}
