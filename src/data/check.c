/* Indexing and checking one file. Packed files are unpacked first, as everything about them counts
 * in unpacked bytes. */
#include "data/check.h"

#include "base/mem.h"
#include "base/status.h"
#include "data/idx.h"
#include "data/text.h"

#include <string.h>

enum { UNPACKED_MAX = RF__IDX_MAX_BYTES + 4 + 4 * RF__IDX_DIMS };

static bool is_packed(const char *name) {
    size_t length = strlen(name);
    return length >= 3 && !strcmp(name + length - 3, ".gz");
}

/* Of a packed file that is whole by its own check sum. */
static int packed_index(const struct rf__data_io *io, const char *path, struct rf__index *out,
                        struct rf_error *err) {
    struct rf__index_maker maker = {0};
    struct rf_error damage;
    unsigned char *bytes = NULL;
    size_t count = 0;

    int code = rf__idx_unpack(io->files, path, UNPACKED_MAX, &bytes, &count, &damage, err);
    if (!code && damage.code) {
        code = damage.code;
        if (err) {
            *err = damage;
        }
    }
    if (!code) {
        code = rf__index_begin(&maker, count, err);
    }
    if (!code) {
        code = rf__index_feed(&maker, bytes, count, err);
    }
    if (!code) {
        code = rf__index_end(&maker, out, err);
    }
    rf__index_drop(&maker);
    rf__free(bytes);
    return code;
}

static void indexed_tell(struct rf__indexed *out, const struct rf__index *index, bool is_new) {
    out->bytes = index->bytes;
    out->blocks = index->blocks;
    out->is_new = is_new;
}

int rf__data_index(const struct rf__data_io *io, const char *path, const char *name, bool anew,
                   struct rf__indexed *out, struct rf_error *err) {
    struct rf__index index = {0};

    *out = (struct rf__indexed){0};
    if (!anew) {
        int code = rf__index_find(io, name, &index, out->where, err);
        if (code != RF_ENOTFOUND) {
            indexed_tell(out, &index, false);
            rf__index_free(&index);
            return code;
        }
    }
    int code = is_packed(name) ? packed_index(io, path, &index, err)
                               : rf__index_make(io->files, path, &index, err);
    if (!code) {
        code = rf__index_keep(io, name, &index, anew, out->where, err);
        indexed_tell(out, &index, true);
    }
    rf__index_free(&index);
    if (code == RF_ECONFLICT) { /* somebody was faster */
        code = rf__index_find(io, name, &index, out->where, err);
        indexed_tell(out, &index, false);
        rf__index_free(&index);
    }
    if (!code) {
        rf__error_clear(err);
    }
    return code;
}

static int source_open(const struct rf__data_io *io, const char *path, const char *name,
                       const struct rf__index *index, struct rf__source **out,
                       struct rf_error *err) {
    struct rf_error damage;
    unsigned char *bytes = NULL;
    size_t count = 0;

    if (!is_packed(name)) {
        return rf__source_open(io->files, path, index, 0, out, err);
    }
    if (index->bytes > UNPACKED_MAX) {
        return rf__fail(err, RF_ELIMIT, 0, "the index of '%s' is of %s bytes, expected at most %s",
                        rf__path_tail(path), rf__number(index->bytes).text,
                        rf__number(UNPACKED_MAX).text);
    }
    int code = rf__idx_unpack(io->files, path, (size_t)index->bytes, &bytes, &count, &damage, err);
    return code ? code : rf__source_wrap(path, bytes, count, index, out, err);
}

/* What there is not: an index, or the file itself. */
static int no_index(const struct rf__data_io *io, const char *path, struct rf_error *err) {
    struct rf__blob *blob = NULL;
    uint64_t bytes;

    int code = io->files->ops->open(io->files, path, &blob, &bytes, err);
    if (!code) {
        io->files->ops->close(io->files, blob);
        code = rf__fail(err, RF_ENOTFOUND, 0, "'%s' has no index to be checked against",
                        rf__path_tail(path));
        if (err) {
            rf__detail(err->next, "where it is known to be whole:  ringfold data index %s",
                       rf__path_tail(path));
        }
    }
    return code;
}

int rf__data_check(const struct rf__data_io *io, const char *path, const char *name, int retries,
                   void (*each)(void *context, const struct rf__bad *bad), void *context,
                   struct rf__checked *out, struct rf_error *err) {
    struct rf__index index = {0};
    struct rf__source *source = NULL;

    *out = (struct rf__checked){0};
    int code = rf__index_find(io, name, &index, NULL, err);
    if (code == RF_ENOTFOUND) {
        code = no_index(io, path, err);
    }
    if (!code) {
        code = source_open(io, path, name, &index, &source, err);
    }
    if (code) {
        goto out;
    }
    out->bytes = rf__source_bytes(source);
    out->found = rf__source_found(source);
    out->blocks = index.blocks;
    for (uint64_t b = 0; b < index.blocks; b++) {
        struct rf__bad bad;
        size_t count = rf__index_block_bytes(&index, b);
        code = rf__source_touch(source, b * RF__INDEX_BLOCK, count, &bad, err);
        bool was_bad = code == RF_EDATA || code == RF_EIO;
        for (int again = 0; again < retries && (code == RF_EDATA || code == RF_EIO); again++) {
            rf__source_forget(source, b);
            code = rf__source_touch(source, b * RF__INDEX_BLOCK, count, &bad, err);
        }
        if (code == RF_EDATA || code == RF_EIO) {
            out->bad++;
            if (each) {
                each(context, &bad);
            }
        } else if (code) {
            goto out;
        } else {
            out->recovered += was_bad;
        }
    }
    code = RF_OK;
    if (out->bad) {
        code =
            rf__fail(err, RF_EDATA, 0, "%s of the %s blocks of '%s' cannot be used",
                     rf__number(out->bad).text, rf__number(out->blocks).text, rf__path_tail(path));
    } else if (out->found > out->bytes) {
        code =
            rf__fail(err, RF_EDATA, 0, "'%s' is longer than its index: %s bytes, expected %s",
                     rf__path_tail(path), rf__number(out->found).text, rf__number(out->bytes).text);
    } else {
        rf__error_clear(err);
    }
    if (code && err) {
        rf__detail(err->next,
                   "put a whole copy in its place; after a change on purpose:  ringfold "
                   "data index --force %s",
                   rf__path_tail(path));
    }
out:
    rf__index_free(&index);
    rf__source_close(source);
    return code;
}
