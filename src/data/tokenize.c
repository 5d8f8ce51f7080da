/* Three passes over the texts: which characters there are (chars only), how many tokens, and the
 * tokens. The second makes sure that all can be encoded before anything is written. */
#include "data/tokenize.h"

#include "base/assert.h"
#include "base/cursor.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/bpe.h"
#include "data/text.h"
#include "data/tokenizer_file.h"
#include "data/tokens.h"
#include "data/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 1 << 20, TRAIN = 0, TEST = 1, PARTS = 2, PACK_TOKENS = 16 << 10 };

/* What is written: each has a writer until it is finished. */
enum { OUT_TRAIN = TRAIN, OUT_TEST = TEST, OUT_RANKS, OUT_DESCRIPTION, OUTPUTS };
static const char *const NAMES[OUTPUTS] = {RF__TOKENS_TRAIN, RF__TOKENS_TEST, RF__TOKENIZER_RANKS,
                                           RF__TOKENIZER_FILE};
static const char INDEX_ENDING[] = ".rfindex";

struct output {
    struct rf__blob_writer *writer;
    struct rf__index_maker maker; /* of the parts */
    struct rf__index index;
    bool stands, index_stands;
};

struct text {
    uint64_t bytes, cut; /* the validation part begins at `cut` */
};

struct work {
    const struct rf__tokenize *order;
    struct rf__tokenizer *tokenizer;
    struct text *texts;
    unsigned char *buffer; /* READ_BYTES */
    unsigned char *ranks;
    size_t ranks_count;
    uint64_t done, total; /* bytes of all passes */
    uint64_t tokens[PARTS], text_bytes[PARTS];
    int width;
    struct output outputs[OUTPUTS];
};

/* --- reading texts ---------------------------------------------------------------------------- */

static int cut_find(struct rf__blobs *files, struct rf__blob *blob, double share, struct text *text,
                    struct rf_error *err) {
    unsigned char around[RF__UTF8_MAX - 1];

    text->cut = (uint64_t)((double)text->bytes * (1 - share));
    text->cut = text->cut < text->bytes ? text->cut : text->bytes;
    if (share == 0) {
        text->cut = text->bytes;
    }
    ssize_t got = files->ops->read(files, blob, text->cut, around, sizeof around, err);
    if (got < 0) {
        return (int)got;
    }
    for (ssize_t i = 0; i < got && (around[i] & 0xC0) == 0x80; i++) {
        text->cut++;
    }
    return RF_OK;
}

/* Sizes and cuts. */
static int texts_measure(struct work *w, struct rf_error *err) {
    const struct rf__tokenize *order = w->order;
    struct rf__blobs *files = order->io->files;
    int code = RF_OK;

    for (size_t i = 0; i < order->count && !code; i++) {
        struct rf__blob *blob = NULL;
        code = files->ops->open(files, order->texts[i], &blob, &w->texts[i].bytes, err);
        if (!code) {
            code = cut_find(files, blob, order->validation, &w->texts[i], err);
            files->ops->close(files, blob);
        }
        w->text_bytes[TRAIN] += w->texts[i].cut;
        w->text_bytes[TEST] += w->texts[i].bytes - w->texts[i].cut;
    }
    return code;
}

/* Where a stretch of a text goes. */
typedef int taker(void *context, const unsigned char *bytes, size_t count, struct rf_error *err);

static int stretch_read(struct work *w, size_t which, uint64_t begin, uint64_t end, taker *take,
                        void *context, struct rf_error *err) {
    const struct rf__tokenize *order = w->order;
    struct rf__blobs *files = order->io->files;
    const char *path = order->texts[which];
    struct rf__blob *blob = NULL;
    uint64_t bytes = 0;

    int code = files->ops->open(files, path, &blob, &bytes, err);
    if (code) {
        return code;
    }
    if (bytes != w->texts[which].bytes) {
        code = rf__fail(err, RF_EDATA, 0, "'%s' changed while it was read: %s bytes, then %s",
                        rf__path_tail(path), rf__number(w->texts[which].bytes).text,
                        rf__number(bytes).text);
    }
    for (uint64_t at = begin; at < end && !code;) {
        size_t n = end - at < READ_BYTES ? (size_t)(end - at) : READ_BYTES;
        if (order->go_on && !order->go_on(order->context, w->done, w->total)) {
            code = rf__fail(err, RF_ESTOPPED, 0,
                            "stopped on request after %s of %s bytes; nothing was kept",
                            rf__number(w->done).text, rf__number(w->total).text);
            break;
        }
        ssize_t got = files->ops->read(files, blob, at, w->buffer, n, err);
        if (got < 0) {
            code = (int)got;
        } else if ((size_t)got < n) {
            code = rf__fail(err, RF_EDATA, 0, "'%s' became shorter while it was read",
                            rf__path_tail(path));
        } else {
            code = take(context, w->buffer, n, err);
        }
        at += n;
        w->done += n;
    }
    files->ops->close(files, blob);
    return code;
}

/* --- which characters there are --------------------------------------------------------------- */

struct seeing {
    unsigned char *seen; /* one for each code point */
    unsigned char rest[RF__UTF8_MAX];
    size_t rest_count;
    uint64_t at; /* of the next byte in its text */
};

static int byte_refuse(uint64_t at, unsigned char byte, struct rf_error *err) {
    int code = rf__fail(err, RF_EDATA, 0, "byte %s (0x%02X) is not UTF-8, which chars needs",
                        rf__number(at).text, byte);
    if (err) {
        rf__detail(err->next, "convert it (iconv -t UTF-8), or use --tokenizer bytes, which takes "
                              "any");
    }
    return code;
}

static int points_see(void *context, const unsigned char *bytes, size_t count,
                      struct rf_error *err) {
    struct seeing *s = context;
    uint32_t point;

    while (count) {
        /* A character that the last stretch ended within is completed byte by byte. */
        bool pieced = s->rest_count > 0;
        if (pieced) {
            s->rest[s->rest_count++] = *bytes++;
            count--;
            s->at++;
        }
        const unsigned char *from = pieced ? s->rest : bytes;
        size_t left = pieced ? s->rest_count : count;
        int length = rf__utf8_next(from, left, &point);
        if (length == RF__UTF8_INVALID) {
            return byte_refuse(pieced ? s->at - s->rest_count : s->at, *from, err);
        }
        if (length == RF__UTF8_CUT) {
            if (!pieced) {
                memcpy(s->rest, bytes, count);
                s->rest_count = count;
                s->at += count;
                count = 0;
            }
            continue;
        }
        s->seen[point] = 1;
        if (pieced) {
            s->rest_count = 0;
        } else {
            bytes += length;
            count -= (size_t)length;
            s->at += (uint64_t)length;
        }
    }
    return RF_OK;
}

static int points_make(struct work *w, const unsigned char *seen, struct rf_error *err) {
    uint32_t count = 0;

    uint32_t *points = rf__alloc(RF__UTF8_POINTS, sizeof *points);
    if (!points) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for a vocabulary");
    }
    for (uint32_t p = 0; p < RF__UTF8_POINTS; p++) {
        if (seen[p]) {
            points[count++] = p;
        }
    }
    int code = count ? rf__tokenizer_chars(points, count, &w->tokenizer, err)
                     : rf__fail(err, RF_EDATA, 0, "there is no character in '%s'",
                                rf__path_tail(w->order->texts[0]));
    rf__free(points);
    return code;
}

static int vocabulary_see(struct work *w, struct rf_error *err) {
    struct seeing seeing = {.seen = rf__alloc(RF__UTF8_POINTS, 1)};
    int code = RF_OK;

    if (!seeing.seen) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for a vocabulary");
    }
    for (size_t i = 0; i < w->order->count && !code; i++) {
        seeing.rest_count = 0;
        seeing.at = 0;
        code = stretch_read(w, i, 0, w->texts[i].bytes, points_see, &seeing, err);
        if (!code && seeing.rest_count) {
            code = byte_refuse(seeing.at - seeing.rest_count, seeing.rest[0], err);
        }
        if (code == RF_EDATA) {
            code = rf__wrap(err, code, "'%s': ", rf__path_tail(w->order->texts[i]));
        }
    }
    if (!code) {
        code = points_make(w, seeing.seen, err);
    }
    rf__free(seeing.seen);
    return code;
}

static int tokenizer_make(struct work *w, struct rf_error *err) {
    const struct rf__tokenize *order = w->order;
    int code = RF_OK;

    switch (order->kind) {
    case RF__TOKENIZER_CHARS:
        code = vocabulary_see(w, err);
        break;
    case RF__TOKENIZER_BYTES:
        code = rf__tokenizer_bytes(&w->tokenizer, err);
        break;
    case RF__TOKENIZER_GPT2:
        code = rf__whole_read(order->io->files, order->ranks, RF__BPE_FILE_BYTES, &w->ranks,
                              &w->ranks_count, err);
        if (!code) {
            code = rf__tokenizer_gpt2(w->ranks, w->ranks_count, order->ranks, &w->tokenizer, err);
        }
        break;
    }
    if (!code) {
        w->width = rf__tokenizer_vocabulary(w->tokenizer) <= 1 << 16 ? 2 : 4;
    }
    return code;
}

/* --- encoding a part -------------------------------------------------------------------------- */

static int encoder_take(void *context, const unsigned char *bytes, size_t count,
                        struct rf_error *err) {
    return rf__encoder_feed(context, bytes, count, err);
}

typedef int sinker(void *context, const uint32_t *tokens, size_t count, struct rf_error *err);

/* All tokens of a part to the sink. */
static int part_encode(struct work *w, int part, sinker *sink, void *context,
                       struct rf_error *err) {
    struct rf__encoder *encoder = NULL;
    int32_t end = rf__tokenizer_end(w->tokenizer);
    bool is_first = true;

    int code = rf__encoder_create(w->tokenizer, sink, context, &encoder, err);
    for (size_t i = 0; i < w->order->count && !code; i++) {
        const struct text *text = &w->texts[i];
        uint64_t begin = part == TRAIN ? 0 : text->cut;
        uint64_t stop = part == TRAIN ? text->cut : text->bytes;
        if (begin == stop) {
            continue;
        }
        if (!is_first && end != RF__NO_TOKEN) {
            const uint32_t token = (uint32_t)end;
            code = sink(context, &token, 1, err);
        }
        is_first = false;
        if (!code) {
            code = stretch_read(w, i, begin, stop, encoder_take, encoder, err);
        }
        if (!code) {
            code = rf__encoder_end(encoder, err);
        }
    }
    rf__encoder_destroy(encoder);
    return code;
}

static int tokens_count(void *context, const uint32_t *tokens, size_t count, struct rf_error *err) {
    (void)tokens;
    (void)err;
    *(uint64_t *)context += count;
    return RF_OK;
}

static uint64_t file_bytes(const struct work *w, int part) {
    return RF__TOKENS_HEADER + w->tokens[part] * (uint64_t)w->width;
}

static bool has_part(const struct work *w, int part) {
    return part == TRAIN || w->order->validation > 0;
}

static int parts_count(struct work *w, struct rf_error *err) {
    int code = RF_OK;

    for (int part = 0; part < PARTS && !code; part++) {
        code = has_part(w, part) ? part_encode(w, part, tokens_count, &w->tokens[part], err) : 0;
        if (!code && has_part(w, part) && w->tokens[part] < 2) {
            code = rf__fail(err, RF_EDATA, 0,
                            "the %s part has %s tokens, expected at least 2: the texts are too "
                            "short",
                            part == TRAIN ? "training" : "validation",
                            rf__number(w->tokens[part]).text);
        }
        if (!code && file_bytes(w, part) > RF__INDEX_MAX_BYTES) {
            code = rf__fail(err, RF_ELIMIT, 0, "'%s' would have %s bytes, more than %s",
                            NAMES[part], rf__number(file_bytes(w, part)).text,
                            rf__number(RF__INDEX_MAX_BYTES).text);
        }
    }
    return code;
}

/* --- writing ---------------------------------------------------------------------------------- */

static int output_begin(struct work *w, int which, struct rf_error *err) {
    struct rf__blobs *folder = w->order->io->beside;

    return folder->ops->create(folder, NAMES[which], &w->outputs[which].writer, err);
}

static int output_write(struct work *w, int which, const void *bytes, size_t count,
                        struct rf_error *err) {
    struct rf__blobs *folder = w->order->io->beside;

    return folder->ops->write(folder, w->outputs[which].writer, bytes, count, err);
}

struct packing {
    struct work *w;
    int part;
    uint64_t tokens;
    unsigned char bytes[4 * PACK_TOKENS];
};

static int part_write(struct packing *p, const void *bytes, size_t count, struct rf_error *err) {
    int code = rf__index_feed(&p->w->outputs[p->part].maker, bytes, count, err);

    return code ? code : output_write(p->w, p->part, bytes, count, err);
}

static int tokens_pack(void *context, const uint32_t *tokens, size_t count, struct rf_error *err) {
    struct packing *p = context;
    size_t width = (size_t)p->w->width;
    int code = RF_OK;

    p->tokens += count;
    while (count && !code) {
        size_t n = count < PACK_TOKENS ? count : PACK_TOKENS;
        struct rf__writer writer = rf__writer(p->bytes, sizeof p->bytes);
        for (size_t i = 0; i < n; i++) {
            rf__write_unsigned(&writer, tokens[i], width);
        }
        code = part_write(p, p->bytes, n * width, err);
        tokens += n;
        count -= n;
    }
    return code;
}

static int part_make(struct work *w, int part, struct rf_error *err) {
    unsigned char header[RF__TOKENS_HEADER];
    struct output *output = &w->outputs[part];
    struct packing *packing = rf__alloc(1, sizeof *packing);

    if (!packing) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory to write tokens");
    }
    packing->w = w;
    packing->part = part;
    rf__tokens_header(w->width, w->tokens[part], rf__tokenizer_vocabulary(w->tokenizer),
                      rf__tokenizer_name(w->order->kind), header);
    int code = output_begin(w, part, err);
    if (!code) {
        code = rf__index_begin(&output->maker, file_bytes(w, part), err);
    }
    if (!code) {
        code = part_write(packing, header, sizeof header, err);
    }
    if (!code) {
        code = part_encode(w, part, tokens_pack, packing, err);
    }
    if (!code && packing->tokens != w->tokens[part]) {
        code = rf__fail(err, RF_EDATA, 0, "a text changed while it was read: %s tokens, then %s",
                        rf__number(w->tokens[part]).text, rf__number(packing->tokens).text);
    }
    if (!code) {
        code = rf__index_end(&output->maker, &output->index, err);
    }
    rf__free(packing);
    return code;
}

static int description_make(struct work *w, struct rf_error *err) {
    char *text = rf__tokenizer_describe(w->tokenizer, w->ranks, w->ranks_count);

    int code = text ? output_begin(w, OUT_DESCRIPTION, err)
                    : rf__fail(err, RF_ENOMEM, 0, "no memory for '%s'", RF__TOKENIZER_FILE);
    if (!code) {
        code = output_write(w, OUT_DESCRIPTION, text, strlen(text), err);
    }
    if (!code) {
        code = output_write(w, OUT_DESCRIPTION, "\n", 1, err);
    }
    free(text);
    return code;
}

static int outputs_make(struct work *w, struct rf_error *err) {
    int code = RF_OK;

    for (int part = 0; part < PARTS && !code; part++) {
        code = has_part(w, part) ? part_make(w, part, err) : RF_OK;
    }
    if (!code && w->order->kind == RF__TOKENIZER_GPT2) {
        code = output_begin(w, OUT_RANKS, err);
        if (!code) {
            code = output_write(w, OUT_RANKS, w->ranks, w->ranks_count, err);
        }
    }
    return code ? code : description_make(w, err);
}

/* --- everything into its place ---------------------------------------------------------------- */

static void index_name(int part, char out[64]) {
    struct rf__writer w = rf__writer(out, 63);

    rf__write_bytes(&w, NAMES[part], strlen(NAMES[part]));
    rf__write_bytes(&w, INDEX_ENDING, sizeof INDEX_ENDING - 1);
    *w.at = 0;
}

static int remove_any(struct rf__blobs *folder, const char *name, struct rf_error *err) {
    int code = folder->ops->remove(folder, name, err);
    return code == RF_ENOTFOUND ? RF_OK : code;
}

/* A folder of tokens that is there stops being one first: tokenizer.json goes before the rest. */
static int old_remove(struct work *w, struct rf_error *err) {
    struct rf__blobs *folder = w->order->io->beside;
    char name[64];
    int code = RF_OK;

    for (int i = OUTPUTS - 1; i >= 0 && !code; i--) {
        code = remove_any(folder, NAMES[i], err);
        if (!code && i < PARTS) {
            index_name(i, name);
            code = remove_any(folder, name, err);
        }
    }
    if (!code) {
        rf__error_clear(err);
    }
    return code;
}

static int output_finish(struct work *w, int which, struct rf_error *err) {
    const struct rf__data_io *io = w->order->io;
    struct output *output = &w->outputs[which];
    struct rf__blob_writer *writer = output->writer;

    if (!writer) {
        return RF_OK;
    }
    output->writer = NULL;
    int code = io->beside->ops->finish(io->beside, writer, true, err);
    output->stands = code != RF_ECONFLICT; /* after another error it may */
    if (code || which >= PARTS) {
        return code;
    }
    code = rf__index_keep(io, NAMES[which], &output->index, true, NULL, err);
    output->index_stands = !code;
    return code;
}

static int outputs_finish(struct work *w, struct rf_error *err) {
    int code = w->order->replace ? old_remove(w, err) : RF_OK;

    for (int i = 0; i < OUTPUTS && !code; i++) {
        code = output_finish(w, i, err);
    }
    return code;
}

/* After a failure: what is in its place already goes too, the last first. */
static void outputs_drop(struct work *w) {
    struct rf__blobs *folder = w->order->io->beside;
    char name[64];

    for (int i = OUTPUTS - 1; i >= 0; i--) {
        struct output *output = &w->outputs[i];
        if (output->writer) {
            folder->ops->abandon(folder, output->writer);
        }
        if (output->stands) {
            (void)folder->ops->remove(folder, NAMES[i], NULL);
        }
        if (output->index_stands) {
            index_name(i, name);
            (void)folder->ops->remove(folder, name, NULL);
        }
    }
}

/* --- all of it -------------------------------------------------------------------------------- */

/* Names that must be free, so that nothing of somebody else's is replaced. */
static int place_check(const struct rf__tokenize *order, struct rf_error *err) {
    struct rf__blobs *folder = order->io->beside;
    struct rf__blob *blob = NULL;
    uint64_t bytes;

    for (int i = 0; i < OUTPUTS && !order->replace; i++) {
        int code = folder->ops->open(folder, NAMES[i], &blob, &bytes, err);
        if (code == RF_ENOTFOUND) {
            continue;
        }
        if (code) {
            return code;
        }
        folder->ops->close(folder, blob);
        code = rf__fail(err, RF_EEXISTS, 0, "there is a '%s' in '%s' already", NAMES[i],
                        rf__path_tail(order->io->root));
        if (err) {
            rf__detail(err->next, "choose another folder, or replace what is there with --force");
        }
        return code;
    }
    rf__error_clear(err);
    return RF_OK;
}

static int prepare(struct work *w, struct rf_error *err) {
    const struct rf__tokenize *order = w->order;
    int code = place_check(order, err);

    if (!code) {
        code = texts_measure(w, err);
    }
    if (!code && !(w->text_bytes[TRAIN] + w->text_bytes[TEST])) {
        code = rf__fail(err, RF_EDATA, 0, "'%s'%s empty", rf__path_tail(order->texts[0]),
                        order->count > 1 ? " and all other texts are" : " is");
    }
    uint64_t passes = order->kind == RF__TOKENIZER_CHARS ? 3 : 2;
    w->total = passes * (w->text_bytes[TRAIN] + w->text_bytes[TEST]);
    return code ? code : tokenizer_make(w, err);
}

int rf__tokenize(const struct rf__tokenize *tokenize, struct rf__tokenized *out,
                 struct rf_error *err) {
    struct work w = {.order = tokenize};
    int code = RF_OK;

    RF_ASSERT(tokenize->count && tokenize->io->beside && tokenize->validation >= 0 &&
              tokenize->validation < 1 &&
              (tokenize->ranks || tokenize->kind != RF__TOKENIZER_GPT2));
    w.texts = rf__alloc(tokenize->count, sizeof *w.texts);
    w.buffer = rf__alloc(READ_BYTES, 1);
    if (!w.texts || !w.buffer) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory to read texts");
    }
    if (!code) {
        code = prepare(&w, err);
    }
    if (!code) {
        code = parts_count(&w, err);
    }
    if (!code) {
        code = outputs_make(&w, err);
    }
    if (!code) {
        code = outputs_finish(&w, err);
    }
    if (!code) {
        struct rf__tokenized_part parts[PARTS];
        for (int part = 0; part < PARTS; part++) {
            parts[part] = (struct rf__tokenized_part){
                w.tokens[part], w.text_bytes[part], has_part(&w, part) ? file_bytes(&w, part) : 0};
        }
        *out = (struct rf__tokenized){rf__tokenizer_vocabulary(w.tokenizer), w.width, parts[TRAIN],
                                      parts[TEST]};
        rf__error_clear(err); /* of what was looked for on the way */
    } else {
        outputs_drop(&w);
    }
    for (int part = 0; part < PARTS; part++) {
        rf__index_drop(&w.outputs[part].maker);
        rf__index_free(&w.outputs[part].index);
    }
    rf__tokenizer_destroy(w.tokenizer);
    rf__free(w.ranks);
    rf__free(w.buffer);
    rf__free(w.texts);
    return code;
}
