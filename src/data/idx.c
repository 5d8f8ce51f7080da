/* The IDX reader. Bytes come from a `stream`, which reads a blob front to back through a window of
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

#include <string.h>

#define ZLIB_CONST
#include <zlib.h>

enum {
    WINDOW_BYTES = 64 << 10,
    FIRST_BLOCK_BYTES = 256 << 10,
    HEADER_BYTES_MAX = 4 + 4 * RF__IDX_DIMS
};

struct stream {
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

static void *stream_z_alloc(void *context, unsigned count, unsigned bytes) {
    (void)context;
    return rf__alloc(count, bytes);
}

static void stream_z_free(void *context, void *block) {
    (void)context;
    rf__free(block);
}

static void stream_close(struct stream *stream) {
    if (!stream) {
        return;
    }
    if (stream->inflating) {
        inflateEnd(&stream->z);
    }
    if (stream->blob) {
        stream->blobs->ops->close(stream->blobs, stream->blob);
    }
    rf__free(stream);
}

size_t rf__idx_header_bytes(int dims) {
    return 4 + 4 * (size_t)dims;
}

static bool ends_in_gz(const char *path) {
    size_t length = strlen(path);
    return length >= 3 && !strcmp(path + length - 3, ".gz");
}

static int stream_open(struct rf__blobs *blobs, const char *path, struct stream **out,
                       struct rf_error *err) {
    int code = RF_OK;
    struct stream *stream = rf__alloc(1, sizeof *stream);

    if (!stream) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to read '%s'", rf__path_tail(path));
    }
    stream->blobs = blobs;
    stream->path = path;
    stream->gzip = ends_in_gz(path);
    code = blobs->ops->open(blobs, path, &stream->blob, &stream->blob_bytes, err);
    if (code) {
        goto out;
    }
    if (stream->gzip) {
        stream->z.zalloc = stream_z_alloc;
        stream->z.zfree = stream_z_free;
        if (inflateInit2(&stream->z, 16 + MAX_WBITS) != Z_OK) {
            code = rf__fail(err, RF_ENOMEM, 0, "no memory to unpack '%s'", rf__path_tail(path));
            goto out;
        }
        stream->inflating = true;
    }
    *out = stream;
    stream = NULL;
out:
    stream_close(stream);
    return code;
}

/* The blob's next bytes; fewer than asked only at its end. */
static int blob_read(struct stream *stream, void *buffer, size_t bytes, size_t *got,
                     struct rf_error *err) {
    ssize_t n =
        stream->blobs->ops->read(stream->blobs, stream->blob, stream->offset, buffer, bytes, err);
    if (n < 0) {
        return (int)n;
    }
    stream->offset += (uint64_t)n;
    *got = (size_t)n;
    return RF_OK;
}

/* Where the inflater stands in the file. */
static uint64_t gzip_offset(const struct stream *stream) {
    return stream->offset - stream->z.avail_in;
}

static int gzip_corrupt(const struct stream *stream, struct rf_error *err) {
    const char *reason = stream->z.msg ? stream->z.msg : "not gzip data";
    struct rf__number at = rf__number(gzip_offset(stream));

    if (stream->between) {
        return rf__fail(err, RF_EDATA, 0,
                        "'%s' has trailing garbage near byte %s, expected its end there",
                        rf__path_tail(stream->path), at.text);
    }
    return rf__fail(err, RF_EDATA, 0, "'%s' is corrupt near byte %s, expected gzip data: %s",
                    rf__path_tail(stream->path), at.text, reason);
}

/* Inflates into the buffer; fewer bytes than asked only at the end of the file. */
static int gzip_read(struct stream *stream, unsigned char *buffer, size_t bytes, size_t *got,
                     struct rf_error *err) {
    z_stream *z = &stream->z;

    RF_ASSERT(bytes <= RF__IDX_MAX_BYTES);
    z->next_out = buffer;
    z->avail_out = (unsigned)bytes;
    while (z->avail_out) {
        if (!z->avail_in) {
            size_t arrived = 0;
            int code = blob_read(stream, stream->window, sizeof stream->window, &arrived, err);
            if (code) {
                return code;
            }
            if (!arrived) {
                break;
            }
            z->next_in = stream->window;
            z->avail_in = (unsigned)arrived;
        }
        int status = inflate(z, Z_NO_FLUSH);
        if (status == Z_MEM_ERROR) {
            return rf__fail(err, RF_ENOMEM, 0, "no memory to unpack '%s'",
                            rf__path_tail(stream->path));
        }
        if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
            return gzip_corrupt(stream, err);
        }
        if (status == Z_STREAM_END) {
            /* Another member may follow. What follows and is not one fails as a bad header. */
            stream->between = true;
            inflateReset(z);
        } else if (z->total_in) {
            stream->between = false;
        }
    }
    *got = bytes - z->avail_out;
    return RF_OK;
}

static int stream_read(struct stream *stream, void *buffer, size_t bytes, size_t *got,
                       struct rf_error *err) {
    *got = 0;
    int code = stream->gzip ? gzip_read(stream, buffer, bytes, got, err)
                            : blob_read(stream, buffer, bytes, got, err);
    stream->produced += *got;
    return code;
}

/* The file ended too soon: it has `produced` plain bytes of `expected`. */
static int too_short(const struct stream *stream, uint64_t expected, struct rf_error *err) {
    int code = rf__fail(err, RF_EDATA, 0, "'%s' ends after %s of %s bytes%s",
                        rf__path_tail(stream->path), rf__number(stream->produced).text,
                        rf__number(expected).text, stream->gzip ? " of its unpacked content" : "");
    if (err && stream->gzip) {
        rf__detail(err->why, "the file is cut short at byte %s",
                   rf__number(stream->blob_bytes).text);
    }
    return code;
}

static uint32_t big_endian_32(const unsigned char bytes[4]) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* The header's bytes are fewer than it needs: so many are there. */
static int header_short(const char *path, size_t count, int dims, bool gzip, struct rf_error *err) {
    return rf__fail(err, RF_EDATA, 0, "'%s' ends after %zu of %d bytes%s", rf__path_tail(path),
                    count, 4 + 4 * dims, gzip ? " of its unpacked content" : "");
}

int rf__idx_header(const unsigned char *bytes, size_t count, const char *name, int dims,
                   struct rf__idx *out, struct rf_error *err) {
    const char *path = rf__path_tail(name);
    size_t expected = rf__idx_header_bytes(dims);
    uint64_t elements = 1;

    RF_ASSERT(dims >= 1 && dims <= RF__IDX_DIMS);
    if (count < 4) {
        return header_short(path, count, dims, ends_in_gz(path), err);
    }
    uint32_t magic = big_endian_32(bytes);
    if (magic >> 8 != 0x000008) {
        return rf__fail(err, RF_EDATA, 0,
                        "'%s' begins with 0x%08x at byte 0, expected 0x%08x (IDX, unsigned bytes)",
                        path, magic, 0x0800u + (unsigned)dims);
    }
    if ((int)(magic & 0xff) != dims) {
        return rf__fail(err, RF_EDATA, 0, "'%s' has %u dimensions (byte 3), expected %d", path,
                        magic & 0xff, dims);
    }
    if (count < expected) {
        return header_short(path, count, dims, ends_in_gz(path), err);
    }
    *out = (struct rf__idx){.dims = dims};
    for (int i = 0; i < dims; i++) {
        uint32_t size = big_endian_32(bytes + 4 + 4 * i);
        if (!size || size > RF__IDX_MAX_SIDE) {
            return rf__fail(
                err, RF_EDATA, 0, "'%s' gives dimension %d as %s (byte %d), expected 1 to %s", path,
                i + 1, rf__number(size).text, 4 + 4 * i, rf__number(RF__IDX_MAX_SIDE).text);
        }
        out->sizes[i] = size;
        elements *= size; /* no overflow: at most 2^30 x 2^24 */
        if (elements > RF__IDX_MAX_BYTES) {
            return rf__fail(
                err, RF_EDATA, 0, "'%s' claims at least %s bytes (byte %d), expected at most %s",
                path, rf__number(elements).text, 4 + 4 * i, rf__number(RF__IDX_MAX_BYTES).text);
        }
    }
    out->bytes = (size_t)elements;
    return RF_OK;
}

static int header_read(struct stream *stream, int dims, struct rf__idx *out, struct rf_error *err) {
    unsigned char header[HEADER_BYTES_MAX];
    size_t got;

    int code = stream_read(stream, header, rf__idx_header_bytes(dims), &got, err);
    if (code) {
        return code;
    }
    code = rf__idx_header(header, got, stream->path, dims, out, err);
    if (code && got < rf__idx_header_bytes(dims) && stream->gzip && err) {
        rf__detail(err->why, "the file is cut short at byte %s",
                   rf__number(stream->blob_bytes).text);
    }
    return code;
}

/* A plain file tells its size beforehand. */
int rf__idx_size_check(const char *name, uint64_t bytes, const struct rf__idx *idx,
                       struct rf_error *err) {
    const char *path = rf__path_tail(name);
    uint64_t expected = rf__idx_header_bytes(idx->dims) + idx->bytes;

    if (bytes == expected) {
        return RF_OK;
    }
    if (bytes < expected) {
        return rf__fail(err, RF_EDATA, 0, "'%s' ends after %s of %s bytes", path,
                        rf__number(bytes).text, rf__number(expected).text);
    }
    return rf__fail(err, RF_EDATA, 0,
                    "'%s' has %s bytes of trailing garbage from byte %s, expected its end", path,
                    rf__number(bytes - expected).text, rf__number(expected).text);
}

static int elements_read(struct stream *stream, struct rf__idx *out, uint64_t expected,
                         struct rf_error *err) {
    size_t room = out->bytes;
    size_t filled = 0;
    size_t got;
    unsigned char beyond;

    if (stream->gzip && room > FIRST_BLOCK_BYTES) {
        room = FIRST_BLOCK_BYTES;
    }
    for (;;) {
        unsigned char *data = rf__grow(out->data, room, 1);
        if (!data) {
            return rf__fail(err, RF_ENOMEM, 0, "no memory for %s bytes of '%s'",
                            rf__number(room).text, rf__path_tail(stream->path));
        }
        out->data = data;
        int code = stream_read(stream, out->data + filled, room - filled, &got, err);
        if (code) {
            return code;
        }
        filled += got;
        if (filled < room) {
            return too_short(stream, expected, err);
        }
        if (room == out->bytes) {
            break;
        }
        room = out->bytes - room > room ? 2 * room : out->bytes;
    }
    /* Asking for one more byte also makes the inflater check the sums at the end. */
    int code = stream_read(stream, &beyond, 1, &got, err);
    if (code) {
        return code;
    }
    if (got) {
        return rf__fail(err, RF_EDATA, 0,
                        "'%s' has trailing garbage from byte %s of its content, expected its end",
                        rf__path_tail(stream->path), rf__number(expected).text);
    }
    if (stream->gzip && !stream->between) {
        return rf__fail(err, RF_EDATA, 0,
                        "'%s' ends at byte %s, expected gzip's check sum after it",
                        rf__path_tail(stream->path), rf__number(stream->blob_bytes).text);
    }
    return RF_OK;
}

int rf__idx_read(struct rf__blobs *blobs, const char *path, int dims, struct rf__idx *out,
                 struct rf_error *err) {
    struct stream *stream = NULL;
    struct rf__idx idx = {0};

    RF_ASSERT(dims >= 1 && dims <= RF__IDX_DIMS);
    int code = stream_open(blobs, path, &stream, err);
    if (code) {
        goto out;
    }
    code = header_read(stream, dims, &idx, err);
    if (code) {
        goto out;
    }
    if (!stream->gzip) {
        code = rf__idx_size_check(path, stream->blob_bytes, &idx, err);
        if (code) {
            goto out;
        }
    }
    code = elements_read(stream, &idx, rf__idx_header_bytes(dims) + idx.bytes, err);
    if (code) {
        goto out;
    }
    *out = idx;
    idx = (struct rf__idx){0};
out:
    rf__idx_free(&idx);
    stream_close(stream);
    return code;
}

/* Takes what comes out of the stream until it ends, breaks (`damage` says where), or has given
 * `most` bytes. */
static int unpack(struct stream *stream, size_t most, unsigned char **data, size_t *count,
                  struct rf_error *damage, struct rf_error *err) {
    size_t room = most < FIRST_BLOCK_BYTES ? most : FIRST_BLOCK_BYTES;
    size_t got = 1;

    while (got) {
        unsigned char *grown = rf__grow(*data, room, 1);
        if (!grown) {
            return rf__fail(err, RF_ENOMEM, 0, "no memory for %s bytes of '%s'",
                            rf__number(room).text, rf__path_tail(stream->path));
        }
        *data = grown;
        while (*count < room && got) {
            size_t wanted = room - *count < WINDOW_BYTES ? room - *count : WINDOW_BYTES;
            int code = stream_read(stream, *data + *count, wanted, &got, damage);
            if (code == RF_EDATA || code == RF_EIO) {
                *count += wanted - stream->z.avail_out; /* what came out before */
                return RF_OK;
            }
            if (code) {
                *err = *damage;
                return code;
            }
            *count += got;
        }
        if (room == most) {
            unsigned char beyond;
            int code = got ? stream_read(stream, &beyond, 1, &got, damage) : RF_OK;
            if (!code && got) {
                (void)rf__fail(damage, RF_ELIMIT, 0, "'%s' unpacks to more than %s bytes",
                               rf__path_tail(stream->path), rf__number(most).text);
            }
            return RF_OK;
        }
        room = most - room > room ? 2 * room : most;
    }
    if (!stream->between) {
        (void)rf__fail(damage, RF_EDATA, 0, "'%s' ends at byte %s, expected more gzip data",
                       rf__path_tail(stream->path), rf__number(stream->blob_bytes).text);
    }
    return RF_OK;
}

int rf__idx_unpack(struct rf__blobs *blobs, const char *path, size_t most, unsigned char **data,
                   size_t *count, struct rf_error *damage, struct rf_error *err) {
    struct stream *stream = NULL;
    struct rf_error local;

    err = err ? err : &local;
    rf__error_clear(damage);
    *data = NULL;
    *count = 0;
    int code = stream_open(blobs, path, &stream, err);
    if (!code) {
        code = unpack(stream, most, data, count, damage, err);
    }
    if (code) {
        rf__free(*data);
        *data = NULL;
    }
    stream_close(stream);
    return code;
}

void rf__idx_free(struct rf__idx *idx) {
    rf__free(idx->data);
    *idx = (struct rf__idx){0};
}
