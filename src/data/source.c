/* Verified reads: one verdict a block, and a cache that is either the whole file or a table of
 * block-sized slots, block b in slot b mod slots. */
#include "data/source.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/text.h"

#include <stdio.h>
#include <string.h>

enum verdict { UNKNOWN, GOOD, MISMATCH, SHORT, UNREADABLE };
enum { NO_ERRNO = 0, LEAST_SLOTS = 4 };

struct source_block {
    unsigned char verdict; /* enum verdict */
    unsigned char reason;  /* errno of an unreadable one */
};

struct rf__source {
    struct rf__blobs *files; /* NULL: all is in memory */
    struct rf__blob *blob;
    char *path;
    bool has_index;
    struct rf__index index; /* without one only bytes and blocks are set */
    uint64_t found;         /* bytes that the file has */
    struct source_block *blocks;
    unsigned char *cache;
    bool is_whole;     /* the cache has a place for every byte */
    uint64_t slots;    /* else */
    uint64_t *in_slot; /* the block that is there, + 1; 0: none */
};

static int create(const char *path, uint64_t found, const struct rf__index *index,
                  struct rf__source **out, struct rf_error *err) {
    struct rf__source *source = rf__alloc(1, sizeof *source);

    if (!source) {
        goto no_memory;
    }
    source->found = found;
    source->index.bytes = index ? index->bytes : found;
    source->index.blocks = (source->index.bytes + RF__INDEX_BLOCK - 1) / RF__INDEX_BLOCK;
    source->has_index = index != NULL;
    source->path = rf__strdup(path);
    source->blocks = rf__alloc((size_t)source->index.blocks, sizeof *source->blocks);
    if (!source->path || !source->blocks) {
        goto no_memory;
    }
    if (index) {
        RF_ASSERT(index->blocks == source->index.blocks);
        source->index = *index;
        source->index.digests = rf__alloc((size_t)index->blocks, sizeof *index->digests);
        if (!source->index.digests) {
            goto no_memory;
        }
        memcpy(source->index.digests, index->digests,
               (size_t)index->blocks * sizeof *index->digests);
    }
    *out = source;
    return RF_OK;
no_memory:
    rf__source_close(source);
    return rf__fail(err, RF_ENOMEM, 0, "no memory to read '%s'", rf__path_tail(path));
}

int rf__source_open(struct rf__blobs *files, const char *path, const struct rf__index *index,
                    size_t cache_bytes, struct rf__source **out, struct rf_error *err) {
    struct rf__source *source = NULL;
    struct rf__blob *blob = NULL;
    uint64_t found = 0;

    int code = files->ops->open(files, path, &blob, &found, err);
    if (code) {
        goto out;
    }
    code = create(path, found, index, &source, err);
    if (code) {
        goto out;
    }
    source->files = files;
    source->blob = blob;
    blob = NULL;
    source->is_whole = source->index.bytes <= cache_bytes;
    source->slots = cache_bytes / RF__INDEX_BLOCK;
    if (source->slots < LEAST_SLOTS) {
        source->slots = LEAST_SLOTS;
    }
    if (source->is_whole) {
        source->cache = rf__alloc((size_t)source->index.bytes, 1);
    } else {
        source->cache = rf__alloc((size_t)source->slots, RF__INDEX_BLOCK);
        source->in_slot = rf__alloc((size_t)source->slots, sizeof *source->in_slot);
    }
    if (!source->cache || (!source->is_whole && !source->in_slot)) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory to read '%s'", rf__path_tail(path));
        goto out;
    }
    *out = source;
    source = NULL;
out:
    rf__source_close(source);
    if (blob) {
        files->ops->close(files, blob);
    }
    return code;
}

int rf__source_wrap(const char *path, unsigned char *bytes, size_t count,
                    const struct rf__index *index, struct rf__source **out, struct rf_error *err) {
    struct rf__source *source = NULL;

    int code = create(path, count, index, &source, err);
    if (code) {
        rf__free(bytes);
        return code;
    }
    source->is_whole = true;
    source->cache = bytes;
    *out = source;
    return RF_OK;
}

void rf__source_close(struct rf__source *source) {
    if (!source) {
        return;
    }
    if (source->blob) {
        source->files->ops->close(source->files, source->blob);
    }
    rf__index_free(&source->index);
    rf__free(source->path);
    rf__free(source->blocks);
    rf__free(source->cache);
    rf__free(source->in_slot);
    rf__free(source);
}

const char *rf__source_path(const struct rf__source *source) {
    return source->path;
}

uint64_t rf__source_bytes(const struct rf__source *source) {
    return source->index.bytes;
}

uint64_t rf__source_found(const struct rf__source *source) {
    return source->found;
}

uint64_t rf__source_blocks(const struct rf__source *source) {
    return source->index.blocks;
}

const uint64_t *rf__source_histogram(const struct rf__source *source) {
    return source->has_index ? source->index.histogram : NULL;
}

void rf__source_forget(struct rf__source *source, uint64_t block) {
    source->blocks[block] = (struct source_block){UNKNOWN, NO_ERRNO};
    if (!source->is_whole && source->in_slot[block % source->slots] == block + 1) {
        source->in_slot[block % source->slots] = 0;
    }
}

/* --- one block -------------------------------------------------------------------------------- */

static unsigned char *place_of(const struct rf__source *source, uint64_t block) {
    uint64_t slot = source->is_whole ? block : block % source->slots;
    return source->cache + slot * RF__INDEX_BLOCK;
}

static bool is_cached(const struct rf__source *source, uint64_t block) {
    return source->is_whole || source->in_slot[block % source->slots] == block + 1;
}

static void cause_tell(const struct rf__source *source, uint64_t block, char cause[RF__BAD_CAUSE]) {
    char text[64];
    const struct source_block *state = &source->blocks[block];

    switch ((enum verdict)state->verdict) {
    case MISMATCH:
        snprintf(cause, RF__BAD_CAUSE, "mismatch: its digest is not the one in the index");
        return;
    case SHORT:
        snprintf(cause, RF__BAD_CAUSE, "short: the file ends after %s of %s bytes",
                 rf__number(source->found).text, rf__number(source->index.bytes).text);
        return;
    case UNREADABLE:
        snprintf(cause, RF__BAD_CAUSE, "unreadable: %s",
                 state->reason ? strerror_r(state->reason, text, sizeof text) : "reading failed");
        return;
    case UNKNOWN:
    case GOOD:
        break;
    }
    RF_ASSERT(!"a block that is good has no cause");
}

static int bad_tell(const struct rf__source *source, uint64_t block, struct rf__bad *bad,
                    struct rf_error *err) {
    struct rf__bad found = {
        .file = source->path, .block = block, .offset = block * RF__INDEX_BLOCK};
    bool is_io = source->blocks[block].verdict == UNREADABLE;

    cause_tell(source, block, found.cause);
    if (bad) {
        *bad = found;
    }
    int code =
        rf__fail(err, is_io ? RF_EIO : RF_EDATA, 0,
                 "block %s of '%s' (from byte %s) cannot be used: %s", rf__number(block).text,
                 rf__path_tail(source->path), rf__number(found.offset).text, found.cause);
    if (err) {
        rf__detail(err->next, "put a whole copy in its place; after a change on purpose:  ringfold "
                              "data index --force FILE");
    }
    return code;
}

/* Reads what the file has of the block. 0, also where it cannot be used. */
static int block_read(struct rf__source *source, uint64_t block, size_t count,
                      struct rf_error *err) {
    struct source_block *state = &source->blocks[block];
    struct rf_error own = {0};

    if (!source->files) {
        return RF_OK;
    }
    if (!source->is_whole) {
        source->in_slot[block % source->slots] = 0;
    }
    ssize_t got = source->files->ops->read(source->files, source->blob, block * RF__INDEX_BLOCK,
                                           place_of(source, block), count, &own);
    if (got == RF_EIO) {
        *state = (struct source_block){UNREADABLE, own.sys_errno > 0 && own.sys_errno < 256
                                                       ? (unsigned char)own.sys_errno
                                                       : NO_ERRNO};
    } else if (got < 0) {
        if (err) {
            *err = own;
        }
        return (int)got;
    } else if ((size_t)got < count) { /* it was cut while it was open */
        source->found = block * RF__INDEX_BLOCK + (uint64_t)got;
        state->verdict = SHORT;
    }
    return RF_OK;
}

/* Makes sure that the block's verdict is known and, where it is good, that its bytes are there. */
static int block_touch(struct rf__source *source, uint64_t block, struct rf_error *err) {
    struct source_block *state = &source->blocks[block];
    size_t count = rf__index_block_bytes(&source->index, block);

    if (state->verdict > GOOD || (state->verdict == GOOD && is_cached(source, block))) {
        return RF_OK;
    }
    state->verdict = UNKNOWN;
    if (block * RF__INDEX_BLOCK + count > source->found) {
        state->verdict = SHORT;
        return RF_OK;
    }
    int code = block_read(source, block, count, err);
    if (code || state->verdict != UNKNOWN) {
        return code;
    }
    bool holds = !source->has_index || rf__index_digest(block, place_of(source, block), count) ==
                                           source->index.digests[block];
    state->verdict = holds ? GOOD : MISMATCH;
    if (!source->is_whole && holds) {
        source->in_slot[block % source->slots] = block + 1;
    }
    return RF_OK;
}

/* --- stretches of bytes ----------------------------------------------------------------------- */

/* `buffer` may be NULL. */
static int walk(struct rf__source *source, uint64_t offset, unsigned char *buffer, size_t count,
                struct rf__bad *bad, struct rf_error *err) {
    RF_ASSERT(offset <= source->index.bytes && count <= source->index.bytes - offset);
    while (count) {
        uint64_t block = offset / RF__INDEX_BLOCK;
        size_t within = (size_t)(offset % RF__INDEX_BLOCK);
        size_t n = RF__INDEX_BLOCK - within < count ? RF__INDEX_BLOCK - within : count;

        int code = block_touch(source, block, err);
        if (code) {
            return code;
        }
        if (source->blocks[block].verdict != GOOD) {
            return bad_tell(source, block, bad, err);
        }
        if (buffer) {
            memcpy(buffer, place_of(source, block) + within, n);
            buffer += n;
        }
        offset += n;
        count -= n;
    }
    return RF_OK;
}

int rf__source_touch(struct rf__source *source, uint64_t offset, size_t count, struct rf__bad *bad,
                     struct rf_error *err) {
    return walk(source, offset, NULL, count, bad, err);
}

int rf__source_read(struct rf__source *source, uint64_t offset, void *buffer, size_t count,
                    struct rf__bad *bad, struct rf_error *err) {
    return walk(source, offset, buffer, count, bad, err);
}

const unsigned char *rf__source_view(const struct rf__source *source, uint64_t offset,
                                     size_t count) {
    RF_ASSERT(source->is_whole && offset <= source->index.bytes &&
              count <= source->index.bytes - offset);
    return source->cache + offset;
}
