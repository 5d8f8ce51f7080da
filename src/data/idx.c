/* The IDX reader. Bytes come from a `source`, which reads a blob front to back through a window of
 * fixed size and inflates on the way where the file is gzip; the reader above it sees plain bytes
 * only.
 *
 * How sizes are trusted: a plain file must be exactly as long as its header says before anything is
 * allocated. How long a gzip file unpacks to is known only at its end, so there the block grows
 * with what has arrived, never to more than twice that, up to what the header says. */
#include "data/idx.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/text.h"

#include <stdbool.h>
#include <string.h>

#define ZLIB_CONST
#include <zlib.h>

enum {
    WINDOW_BYTES = 64 << 10,
    FIRST_BLOCK_BYTES = 256 << 10,
    HEADER_BYTES_MAX = 4 + 4 * RF__IDX_DIMS
};

struct source {
    struct rf__blobs *blobs;
    struct rf__blob *blob;
    const char *path;
    uint64_t blob_bytes;
    uint64_t offset;   /* of the next byte to be read from the blob */
    uint64_t produced; /* plain bytes handed out so far */
    bool gzip, inflating;
    bool between; /* gzip: at a place where the file may end, after a member */
    z_stream z;
    unsigned char window[WINDOW_BYTES];
};

static void *source_z_alloc(void *context, unsigned count, unsigned bytes) {
    (void)context;
    return rf__alloc(count, bytes);
}

static void source_z_free(void *context, void *block) {
    (void)context;
    rf__free(block);
}

static void source_close(struct source *source) {
    if (!source) {
        return;
    }
    if (source->inflating) {
        inflateEnd(&source->z);
    }
    if (source->blob) {
        source->blobs->ops->close(source->blobs, source->blob);
    }
    rf__free(source);
}

static bool ends_in_gz(const char *path) {
    size_t length = strlen(path);
    return length >= 3 && !strcmp(path + length - 3, ".gz");
}

static int source_open(struct rf__blobs *blobs, const char *path, struct source **out,
                       struct rf_error *err) {
    int code = RF_OK;
    struct source *source = rf__alloc(1, sizeof *source);

    if (!source) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to read '%s'", rf__path_tail(path));
    }
    source->blobs = blobs;
    source->path = path;
    source->gzip = ends_in_gz(path);
    code = blobs->ops->open(blobs, path, &source->blob, &source->blob_bytes, err);
    if (code) {
        goto out;
    }
    if (source->gzip) {
        source->z.zalloc = source_z_alloc;
        source->z.zfree = source_z_free;
        if (inflateInit2(&source->z, 16 + MAX_WBITS) != Z_OK) {
            code = rf__fail(err, RF_ENOMEM, 0, "no memory to unpack '%s'", rf__path_tail(path));
            goto out;
        }
        source->inflating = true;
    }
    *out = source;
    source = NULL;
out:
    source_close(source);
    return code;
}

/* The blob's next bytes; fewer than asked only at its end. */
static int blob_read(struct source *source, void *buffer, size_t bytes, size_t *got,
                     struct rf_error *err) {
    ssize_t n =
        source->blobs->ops->read(source->blobs, source->blob, source->offset, buffer, bytes, err);
    if (n < 0) {
        return (int)n;
    }
    source->offset += (uint64_t)n;
    *got = (size_t)n;
    return RF_OK;
}

/* Where the inflater stands in the file. */
static uint64_t gzip_offset(const struct source *source) {
    return source->offset - source->z.avail_in;
}

static int gzip_corrupt(const struct source *source, struct rf_error *err) {
    const char *reason = source->z.msg ? source->z.msg : "not gzip data";
    struct rf__number at = rf__number(gzip_offset(source));

    if (source->between) {
        return rf__fail(err, RF_EDATA, 0,
                        "'%s' has trailing garbage near byte %s, expected its end there",
                        rf__path_tail(source->path), at.text);
    }
    return rf__fail(err, RF_EDATA, 0, "'%s' is corrupt near byte %s, expected gzip data: %s",
                    rf__path_tail(source->path), at.text, reason);
}

/* Inflates into the buffer; fewer bytes than asked only at the end of the file. */
static int gzip_read(struct source *source, unsigned char *buffer, size_t bytes, size_t *got,
                     struct rf_error *err) {
    z_stream *z = &source->z;

    RF_ASSERT(bytes <= RF__IDX_MAX_BYTES);
    z->next_out = buffer;
    z->avail_out = (unsigned)bytes;
    while (z->avail_out) {
        if (!z->avail_in) {
            size_t arrived = 0;
            int code = blob_read(source, source->window, sizeof source->window, &arrived, err);
            if (code) {
                return code;
            }
            if (!arrived) {
                break;
            }
            z->next_in = source->window;
            z->avail_in = (unsigned)arrived;
        }
        int status = inflate(z, Z_NO_FLUSH);
        if (status == Z_MEM_ERROR) {
            return rf__fail(err, RF_ENOMEM, 0, "no memory to unpack '%s'",
                            rf__path_tail(source->path));
        }
        if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
            return gzip_corrupt(source, err);
        }
        if (status == Z_STREAM_END) {
            /* Another member may follow. What follows and is not one fails as a bad header. */
            source->between = true;
            inflateReset(z);
        } else if (z->total_in) {
            source->between = false;
        }
    }
    *got = bytes - z->avail_out;
    return RF_OK;
}

static int source_read(struct source *source, void *buffer, size_t bytes, size_t *got,
                       struct rf_error *err) {
    *got = 0;
    int code = source->gzip ? gzip_read(source, buffer, bytes, got, err)
                            : blob_read(source, buffer, bytes, got, err);
    source->produced += *got;
    return code;
}

/* The file ended too soon: it has `produced` plain bytes of `expected`. */
static int too_short(const struct source *source, uint64_t expected, struct rf_error *err) {
    int code = rf__fail(err, RF_EDATA, 0, "'%s' ends after %s of %s bytes%s",
                        rf__path_tail(source->path), rf__number(source->produced).text,
                        rf__number(expected).text, source->gzip ? " of its unpacked content" : "");
    if (err && source->gzip) {
        rf__detail(err->why, "the file is cut short at byte %s",
                   rf__number(source->blob_bytes).text);
    }
    return code;
}

static uint32_t big_endian_32(const unsigned char bytes[4]) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* The magic number and the sizes; `out->bytes` is their product, within the limits. */
static int header_read(struct source *source, int dims, struct rf__idx *out, struct rf_error *err) {
    unsigned char header[HEADER_BYTES_MAX];
    const char *path = rf__path_tail(source->path);
    size_t expected = 4 + 4 * (size_t)dims;
    size_t got;
    uint64_t bytes = 1;

    int code = source_read(source, header, 4, &got, err);
    if (code) {
        return code;
    }
    if (got < 4) {
        return too_short(source, expected, err);
    }
    uint32_t magic = big_endian_32(header);
    if (magic >> 8 != 0x000008) {
        return rf__fail(err, RF_EDATA, 0,
                        "'%s' begins with 0x%08x at byte 0, expected 0x%08x (IDX, unsigned bytes)",
                        path, magic, 0x0800u + (unsigned)dims);
    }
    if ((int)(magic & 0xff) != dims) {
        return rf__fail(err, RF_EDATA, 0, "'%s' has %u dimensions (byte 3), expected %d", path,
                        magic & 0xff, dims);
    }
    code = source_read(source, header + 4, expected - 4, &got, err);
    if (code) {
        return code;
    }
    if (got < expected - 4) {
        return too_short(source, expected, err);
    }
    out->dims = dims;
    for (int i = 0; i < dims; i++) {
        uint32_t size = big_endian_32(header + 4 + 4 * i);
        if (!size || size > RF__IDX_MAX_SIDE) {
            return rf__fail(
                err, RF_EDATA, 0, "'%s' gives dimension %d as %s (byte %d), expected 1 to %s", path,
                i + 1, rf__number(size).text, 4 + 4 * i, rf__number(RF__IDX_MAX_SIDE).text);
        }
        out->sizes[i] = size;
        bytes *= size; /* no overflow: at most 2^30 x 2^24 */
        if (bytes > RF__IDX_MAX_BYTES) {
            return rf__fail(err, RF_EDATA, 0,
                            "'%s' claims at least %s bytes (byte %d), expected at most %s", path,
                            rf__number(bytes).text, 4 + 4 * i, rf__number(RF__IDX_MAX_BYTES).text);
        }
    }
    out->bytes = (size_t)bytes;
    return RF_OK;
}

/* A plain file tells its size beforehand. */
static int plain_size_check(const struct source *source, uint64_t expected, struct rf_error *err) {
    const char *path = rf__path_tail(source->path);
    if (source->gzip || source->blob_bytes == expected) {
        return RF_OK;
    }
    if (source->blob_bytes < expected) {
        return rf__fail(err, RF_EDATA, 0, "'%s' ends after %s of %s bytes", path,
                        rf__number(source->blob_bytes).text, rf__number(expected).text);
    }
    return rf__fail(err, RF_EDATA, 0,
                    "'%s' has %s bytes of trailing garbage from byte %s, expected its end", path,
                    rf__number(source->blob_bytes - expected).text, rf__number(expected).text);
}

static int elements_read(struct source *source, struct rf__idx *out, uint64_t expected,
                         struct rf_error *err) {
    size_t room = out->bytes;
    size_t filled = 0;
    size_t got;
    unsigned char beyond;

    if (source->gzip && room > FIRST_BLOCK_BYTES) {
        room = FIRST_BLOCK_BYTES;
    }
    for (;;) {
        unsigned char *data = rf__grow(out->data, room, 1);
        if (!data) {
            return rf__fail(err, RF_ENOMEM, 0, "no memory for %s bytes of '%s'",
                            rf__number(room).text, rf__path_tail(source->path));
        }
        out->data = data;
        int code = source_read(source, out->data + filled, room - filled, &got, err);
        if (code) {
            return code;
        }
        filled += got;
        if (filled < room) {
            return too_short(source, expected, err);
        }
        if (room == out->bytes) {
            break;
        }
        room = out->bytes - room > room ? 2 * room : out->bytes;
    }
    /* Asking for one more byte also makes the inflater check the sums at the end. */
    int code = source_read(source, &beyond, 1, &got, err);
    if (code) {
        return code;
    }
    if (got) {
        return rf__fail(err, RF_EDATA, 0,
                        "'%s' has trailing garbage from byte %s of its content, expected its end",
                        rf__path_tail(source->path), rf__number(expected).text);
    }
    if (source->gzip && !source->between) {
        return rf__fail(err, RF_EDATA, 0,
                        "'%s' ends at byte %s, expected gzip's check sum after it",
                        rf__path_tail(source->path), rf__number(source->blob_bytes).text);
    }
    return RF_OK;
}

int rf__idx_read(struct rf__blobs *blobs, const char *path, int dims, struct rf__idx *out,
                 struct rf_error *err) {
    struct source *source = NULL;
    struct rf__idx idx = {0};

    RF_ASSERT(dims >= 1 && dims <= RF__IDX_DIMS);
    int code = source_open(blobs, path, &source, err);
    if (code) {
        goto out;
    }
    code = header_read(source, dims, &idx, err);
    if (code) {
        goto out;
    }
    uint64_t expected = 4 + 4 * (uint64_t)dims + idx.bytes;
    code = plain_size_check(source, expected, err);
    if (code) {
        goto out;
    }
    code = elements_read(source, &idx, expected, err);
    if (code) {
        goto out;
    }
    *out = idx;
    idx = (struct rf__idx){0};
out:
    rf__idx_free(&idx);
    source_close(source);
    return code;
}

void rf__idx_free(struct rf__idx *idx) {
    rf__free(idx->data);
    *idx = (struct rf__idx){0};
}
