/* The integrity index. As bytes, all numbers little-endian:
 *
 *      0      8   "RFINDEX" and a version, 1
 *      8      4   block size, 65,536
 *     12      4   0
 *     16      8   bytes of the file
 *     24   2048   how often each byte value occurs in the file, 256 x 8
 *   2072  8 x n   the digest of each block (XXH3, 64 bits, seeded with the block's number)
 *   then      8   the digest of all bytes before it
 *
 * Nothing of it is believed before the last digest holds, and then the counts are still held
 * against each other. */
#include "data/index.h"

#include "base/assert.h"
#include "base/cursor.h"
#include "base/digest.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/text.h"

#include <stdio.h>
#include <string.h>

enum { HEAD_BYTES = 8 + 4 + 4 + 8 + 256 * 8, SEAL_BYTES = 8, READ_BYTES = 1 << 20 };

static const unsigned char MAGIC[8] = {'R', 'F', 'I', 'N', 'D', 'E', 'X', 1};
static const char ENDING[] = ".rfindex";

static uint64_t blocks_of(uint64_t bytes) {
    return (bytes + RF__INDEX_BLOCK - 1) / RF__INDEX_BLOCK;
}

size_t rf__index_block_bytes(const struct rf__index *index, uint64_t block) {
    uint64_t left = index->bytes - block * RF__INDEX_BLOCK;
    return left < RF__INDEX_BLOCK ? (size_t)left : RF__INDEX_BLOCK;
}

uint64_t rf__index_digest(uint64_t block, const void *bytes, size_t count) {
    return rf__digest(bytes, count, block);
}

void rf__index_free(struct rf__index *index) {
    rf__free(index->digests);
    *index = (struct rf__index){0};
}

/* --- making one ------------------------------------------------------------------------------- */

int rf__index_begin(struct rf__index_maker *maker, uint64_t bytes, struct rf_error *err) {
    *maker = (struct rf__index_maker){.room = blocks_of(bytes)};
    if (bytes > RF__INDEX_MAX_BYTES) {
        return rf__fail(err, RF_ELIMIT, 0, "a file of %s bytes is larger than can be indexed, %s",
                        rf__number(bytes).text, rf__number(RF__INDEX_MAX_BYTES).text);
    }
    maker->index.digests = rf__alloc(maker->room, sizeof *maker->index.digests);
    maker->block = rf__alloc(RF__INDEX_BLOCK, 1);
    if (!maker->index.digests || !maker->block) {
        rf__index_drop(maker);
        return rf__fail(err, RF_ENOMEM, 0, "no memory for an index");
    }
    return RF_OK;
}

static int block_add(struct rf__index_maker *maker, const unsigned char *bytes, size_t count,
                     struct rf_error *err) {
    struct rf__index *index = &maker->index;

    if (index->blocks == maker->room) {
        uint64_t room = maker->room ? 2 * maker->room : 16;
        uint64_t *grown = rf__grow(index->digests, room, sizeof *grown);
        if (!grown) {
            return rf__fail(err, RF_ENOMEM, 0, "no memory for an index of %s blocks",
                            rf__number(room).text);
        }
        index->digests = grown;
        maker->room = room;
    }
    for (size_t i = 0; i < count; i++) {
        index->histogram[bytes[i]]++;
    }
    index->digests[index->blocks] = rf__index_digest(index->blocks, bytes, count);
    index->blocks++;
    index->bytes += count;
    return RF_OK;
}

int rf__index_feed(struct rf__index_maker *maker, const void *bytes, size_t count,
                   struct rf_error *err) {
    const unsigned char *at = bytes;

    if (count > RF__INDEX_MAX_BYTES - maker->index.bytes) {
        return rf__fail(err, RF_ELIMIT, 0, "more than %s bytes cannot be indexed",
                        rf__number(RF__INDEX_MAX_BYTES).text);
    }
    while (count) {
        bool whole = !maker->filled && count >= RF__INDEX_BLOCK;
        size_t n = RF__INDEX_BLOCK - maker->filled;
        n = n < count ? n : count;
        if (!whole) {
            memcpy(maker->block + maker->filled, at, n);
            maker->filled += n;
        }
        if (whole || maker->filled == RF__INDEX_BLOCK) {
            int code = block_add(maker, whole ? at : maker->block, RF__INDEX_BLOCK, err);
            if (code) {
                return code;
            }
            maker->filled = 0;
        }
        at += n;
        count -= n;
    }
    return RF_OK;
}

int rf__index_end(struct rf__index_maker *maker, struct rf__index *out, struct rf_error *err) {
    int code = RF_OK;

    if (maker->filled) {
        code = block_add(maker, maker->block, maker->filled, err);
    }
    if (!code) {
        *out = maker->index;
        maker->index = (struct rf__index){0};
    }
    rf__index_drop(maker);
    return code;
}

void rf__index_drop(struct rf__index_maker *maker) {
    rf__free(maker->block);
    rf__index_free(&maker->index);
    *maker = (struct rf__index_maker){0};
}

int rf__index_make(struct rf__blobs *files, const char *path, struct rf__index *out,
                   struct rf_error *err) {
    struct rf__index_maker maker = {0};
    struct rf__blob *blob = NULL;
    unsigned char *buffer = NULL;
    uint64_t bytes = 0;

    int code = files->ops->open(files, path, &blob, &bytes, err);
    if (code) {
        goto out;
    }
    code = rf__index_begin(&maker, bytes, err);
    if (code) {
        goto out;
    }
    buffer = rf__alloc(READ_BYTES, 1);
    if (!buffer) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory to index '%s'", rf__path_tail(path));
        goto out;
    }
    for (uint64_t offset = 0; offset < bytes && !code;) {
        size_t wanted = bytes - offset < READ_BYTES ? (size_t)(bytes - offset) : READ_BYTES;
        ssize_t got = files->ops->read(files, blob, offset, buffer, wanted, err);
        if (got < 0) {
            code = (int)got;
        } else if ((size_t)got < wanted) {
            code = rf__fail(err, RF_EDATA, 0, "'%s' became shorter while it was indexed: %s bytes",
                            rf__path_tail(path), rf__number(offset + (uint64_t)got).text);
        } else {
            code = rf__index_feed(&maker, buffer, wanted, err);
        }
        offset += wanted;
    }
    if (!code) {
        code = rf__index_end(&maker, out, err);
    } else if (code == RF_EIO && err) {
        rf__detail(err->why, "an index tells what a file is like while it is whole");
        rf__detail(err->next, "put a whole copy in its place, then:  ringfold data index %s",
                   rf__path_tail(path));
    }
out:
    rf__free(buffer);
    rf__index_drop(&maker);
    if (blob) {
        files->ops->close(files, blob);
    }
    return code;
}

/* --- as bytes --------------------------------------------------------------------------------- */

size_t rf__index_encoded_bytes(const struct rf__index *index) {
    return HEAD_BYTES + (size_t)index->blocks * 8 + SEAL_BYTES;
}

void rf__index_encode(const struct rf__index *index, unsigned char *out) {
    size_t bytes = rf__index_encoded_bytes(index);
    struct rf__writer w = rf__writer(out, bytes);

    rf__write_bytes(&w, MAGIC, sizeof MAGIC);
    rf__write_u32(&w, RF__INDEX_BLOCK);
    rf__write_u32(&w, 0);
    rf__write_u64(&w, index->bytes);
    for (int v = 0; v < 256; v++) {
        rf__write_u64(&w, index->histogram[v]);
    }
    for (uint64_t b = 0; b < index->blocks; b++) {
        rf__write_u64(&w, index->digests[b]);
    }
    rf__write_u64(&w, rf__digest(out, bytes - SEAL_BYTES, 0));
    RF_ASSERT(!w.failed && !w.left);
}

static int refuse(const char *name, const char *what, struct rf_error *err) {
    int code = rf__fail(err, RF_EDATA, 0, "the index '%s' %s", rf__path_tail(name), what);
    if (err) {
        rf__detail(err->next, "where the file itself is known to be whole:  ringfold data index "
                              "--force FILE");
    }
    return code;
}

/* The counts must be what one pass over the file's bytes can give. */
static bool counts_hold(const struct rf__index *index) {
    uint64_t sum = 0;

    for (int v = 0; v < 256; v++) {
        if (index->histogram[v] > index->bytes - sum) {
            return false;
        }
        sum += index->histogram[v];
    }
    return sum == index->bytes;
}

int rf__index_decode(const unsigned char *bytes, size_t count, const char *name,
                     struct rf__index *out, struct rf_error *err) {
    struct rf__reader r = rf__reader(bytes, count);
    struct rf__index index = {0};
    int code = RF_OK;

    const unsigned char *magic = rf__read_view(&r, sizeof MAGIC);
    uint32_t block_bytes = rf__read_u32(&r);
    uint32_t reserved = rf__read_u32(&r);
    index.bytes = rf__read_u64(&r);
    for (int v = 0; v < 256; v++) {
        index.histogram[v] = rf__read_u64(&r);
    }
    if (r.failed) {
        code = refuse(name, "is cut short", err);
        goto out;
    }
    if (memcmp(magic, MAGIC, sizeof MAGIC) || block_bytes != RF__INDEX_BLOCK || reserved) {
        code = refuse(name, "is none, or of another version", err);
        goto out;
    }
    if (index.bytes > RF__INDEX_MAX_BYTES ||
        r.left != (size_t)blocks_of(index.bytes) * 8 + SEAL_BYTES) {
        code = refuse(name, "does not have the size that it claims", err);
        goto out;
    }
    struct rf__reader seal = rf__reader(bytes + count - SEAL_BYTES, SEAL_BYTES);
    if (rf__read_u64(&seal) != rf__digest(bytes, count - SEAL_BYTES, 0) || !counts_hold(&index)) {
        code = refuse(name, "is damaged: its digest does not hold", err);
        goto out;
    }
    index.blocks = blocks_of(index.bytes);
    index.digests = rf__alloc((size_t)index.blocks, sizeof *index.digests);
    if (!index.digests) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory for the index '%s'", rf__path_tail(name));
        goto out;
    }
    for (uint64_t b = 0; b < index.blocks; b++) {
        index.digests[b] = rf__read_u64(&r);
    }
    *out = index;
    index = (struct rf__index){0};
out:
    rf__index_free(&index);
    return code;
}

/* --- where they are kept ---------------------------------------------------------------------- */

/* NAME.rfindex, and for the cache the digest of ROOT/NAME in its place. */
static int beside_name(const char *name, char out[RF__INDEX_NAME], struct rf_error *err) {
    int length = snprintf(out, RF__INDEX_NAME, "%s%s", name, ENDING);
    if (length < 0 || length >= RF__INDEX_NAME) {
        return rf__fail(err, RF_ELIMIT, 0, "the file name '%s' is too long to be indexed",
                        rf__path_tail(name));
    }
    return RF_OK;
}

static void cache_name(const struct rf__data_io *io, const char *name, char out[RF__INDEX_NAME]) {
    uint64_t digest = rf__digest(io->root, strlen(io->root), 0);
    digest = rf__digest(name, strlen(name), digest);
    snprintf(out, RF__INDEX_NAME, "%016llx%s", (unsigned long long)digest, ENDING);
}

/* One that stands under `name`. */
static int load(struct rf__blobs *blobs, const char *name, struct rf__index *out,
                struct rf_error *err) {
    struct rf__blob *blob = NULL;
    unsigned char *content = NULL;
    uint64_t bytes = 0;
    const uint64_t most = HEAD_BYTES + RF__INDEX_MAX_BYTES / RF__INDEX_BLOCK * 8 + SEAL_BYTES;

    int code = blobs->ops->open(blobs, name, &blob, &bytes, err);
    if (code) {
        goto out;
    }
    if (bytes > most) {
        code = refuse(name, "is larger than any can be", err);
        goto out;
    }
    content = rf__alloc((size_t)bytes, 1);
    if (!content) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory for the index '%s'", rf__path_tail(name));
        goto out;
    }
    ssize_t got = blobs->ops->read(blobs, blob, 0, content, (size_t)bytes, err);
    code =
        got < 0 ? (int)got : rf__index_decode(content, (size_t)got, rf__path_tail(name), out, err);
out:
    rf__free(content);
    if (blob) {
        blobs->ops->close(blobs, blob);
    }
    return code;
}

/* A path that does not fit is cut. */
static void place_tell(const char *folder, const char *name, char where[RF__INDEX_PATH]) {
    if (where) {
        struct rf__writer w = rf__writer(where, RF__INDEX_PATH - 1);
        size_t length = folder ? strnlen(folder, RF__INDEX_PATH - RF__INDEX_NAME - 2) : 0;
        rf__write_bytes(&w, folder, length);
        rf__write_bytes(&w, "/", length ? 1 : 0);
        rf__write_bytes(&w, name, strlen(name));
        *w.at = 0;
    }
}

int rf__index_find(const struct rf__data_io *io, const char *name, struct rf__index *out,
                   char where[RF__INDEX_PATH], struct rf_error *err) {
    char kept[RF__INDEX_NAME];
    int code = RF_ENOTFOUND;

    if (io->beside) {
        int failed = beside_name(name, kept, err);
        code = failed ? failed : load(io->beside, kept, out, err);
        place_tell(io->root, kept, where);
    }
    if (code == RF_ENOTFOUND && io->cache && io->root) {
        cache_name(io, name, kept);
        code = load(io->cache, kept, out, err);
        place_tell(io->cache_root, kept, where);
    }
    if (code == RF_ENOTFOUND) {
        code = rf__fail(err, RF_ENOTFOUND, 0, "'%s' has no index", rf__path_tail(name));
    }
    return code;
}

static int store(struct rf__blobs *blobs, const char *name, const unsigned char *bytes,
                 size_t count, bool replace, struct rf_error *err) {
    struct rf__blob_writer *writer = NULL;

    if (!blobs->ops->create) {
        return rf__fail(err, RF_EUNSUPPORTED, 0, "'%s' cannot be written here",
                        rf__path_tail(name));
    }
    int code = blobs->ops->create(blobs, name, &writer, err);
    if (code) {
        return code;
    }
    code = blobs->ops->write(blobs, writer, bytes, count, err);
    if (code) {
        blobs->ops->abandon(blobs, writer);
        return code;
    }
    return blobs->ops->finish(blobs, writer, !replace, err);
}

int rf__index_keep(const struct rf__data_io *io, const char *name, const struct rf__index *index,
                   bool replace, char where[RF__INDEX_PATH], struct rf_error *err) {
    char kept[RF__INDEX_NAME];
    size_t count = rf__index_encoded_bytes(index);
    unsigned char *bytes = rf__alloc(count, 1);

    if (!bytes) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the index of '%s'", rf__path_tail(name));
    }
    rf__index_encode(index, bytes);
    int code = rf__fail(err, RF_EUNSUPPORTED, 0, "there is no place for the index of '%s'",
                        rf__path_tail(name));
    if (io->beside) {
        int failed = beside_name(name, kept, err);
        code = failed ? failed : store(io->beside, kept, bytes, count, replace, err);
        place_tell(io->root, kept, where);
    }
    if (code && code != RF_ECONFLICT && code != RF_ENOMEM && io->cache && io->root) {
        cache_name(io, name, kept);
        code = store(io->cache, kept, bytes, count, replace, err);
        place_tell(io->cache_root, kept, where);
    }
    rf__free(bytes);
    return code;
}

int rf__index_of(const struct rf__data_io *io, const char *path, const char *name,
                 struct rf__index *out, struct rf_error *err) {
    struct rf__index made = {0};

    int code = rf__index_find(io, name, out, NULL, err);
    if (code != RF_ENOTFOUND) {
        return code;
    }
    code = rf__index_make(io->files, path, &made, err);
    if (code) {
        return code;
    }
    code = rf__index_keep(io, name, &made, false, NULL, err);
    if (code == RF_ECONFLICT) {
        code = rf__index_find(io, name, out, NULL, err);
    } else if (code != RF_ENOMEM) { /* not kept: good for this run */
        *out = made;
        made = (struct rf__index){0};
        code = RF_OK;
        rf__error_clear(err);
    }
    rf__index_free(&made);
    return code;
}
