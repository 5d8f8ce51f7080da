/* vocab.json and merges.txt, both ways. The first is turned into a file of ranks, which data/bpe
 * reads and checks; of the second it is only checked that it says the same. */
#include "data/vocab.h"

#include "base/mem.h"
#include "base/status.h"
#include "ckpt/inner.h"
#include "data/bpe.h"
#include "data/text.h"
#include "data/tokenizer_file.h"
#include "data/utf8.h"

#include <jansson.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    JSON_BYTES = 64 << 20,
    PATH_BYTES = 4096,
    KEY_BYTES = 2 * RF__BPE_TOKEN_BYTES, /* each byte of a token is at most two here */
    POINTS = 324,                        /* characters that bytes stand as are below */
    LINE_BYTES = (RF__BPE_TOKEN_BYTES + 2) / 3 * 4 + 16
};

static const char END[] = "<|endoftext|>";

/* --- bytes as characters ---------------------------------------------------------------------- */

struct alphabet {
    uint16_t point[256];  /* of a byte */
    int16_t byte[POINTS]; /* of a character; -1: none */
};

static struct alphabet alphabet_make(void) {
    struct alphabet a;
    uint16_t next = 256;

    for (int i = 0; i < POINTS; i++) {
        a.byte[i] = -1;
    }
    for (int b = 0; b < 256; b++) {
        bool seen = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        a.point[b] = seen ? (uint16_t)b : next++;
        a.byte[a.point[b]] = (int16_t)b;
    }
    return a;
}

/* The text of a token, ended by a zero: at most KEY_BYTES and that. */
static size_t key_put(const struct alphabet *a, const unsigned char *bytes, size_t count,
                      char out[KEY_BYTES + 1]) {
    size_t at = 0;

    for (size_t i = 0; i < count; i++) {
        unsigned char point[RF__UTF8_MAX];
        int length = rf__utf8_put(a->point[bytes[i]], point);
        memcpy(out + at, point, (size_t)length);
        at += (size_t)length;
    }
    out[at] = '\0';
    return at;
}

/* The bytes of such a text, or 0 where it is none. */
static size_t key_take(const struct alphabet *a, const char *key,
                       unsigned char out[RF__BPE_TOKEN_BYTES]) {
    const unsigned char *at = (const unsigned char *)key;
    size_t left = strlen(key), count = 0;

    while (left) {
        uint32_t point = 0;
        int length = rf__utf8_next(at, left, &point);
        if (length < 1 || point >= POINTS || a->byte[point] < 0 || count == RF__BPE_TOKEN_BYTES) {
            return 0;
        }
        out[count++] = (unsigned char)a->byte[point];
        at += length;
        left -= (size_t)length;
    }
    return count;
}

/* --- reading ---------------------------------------------------------------------------------- */

static int refuse(const char *name, int code, struct rf_error *err, const char *what) {
    rf__fail(err, code, 0, "'%s' is not usable as GPT-2's vocabulary: %s", rf__path_tail(name),
             what);
    return code;
}

/* The ranks' text; *out by rf__free. */
static int ranks_write(json_t *object, const char *name, char **out, size_t *bytes,
                       struct rf_error *err) {
    struct alphabet a = alphabet_make();
    size_t count = json_object_size(object), room = 1;
    const char *key;
    json_t *value;
    char *text;

    json_object_foreach(object, key, value) {
        room += strlen(key) / 3 * 4 + 4 + 16;
    }
    text = rf__alloc(room, 1);
    if (!text) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the vocabulary of '%s'",
                        rf__path_tail(name));
    }
    size_t at = 0;
    json_object_foreach(object, key, value) {
        unsigned char token[RF__BPE_TOKEN_BYTES], line[LINE_BYTES];
        json_int_t number = json_integer_value(value);
        size_t length = key_take(&a, key, token);
        const char *wrong = NULL;
        if (!json_is_integer(value) || number < 0 || (size_t)number >= count) {
            wrong = "its numbers are not 0 to one less than its size";
        } else if (!strcmp(key, END)) {
            if ((size_t)number == count - 1) {
                continue;
            }
            wrong = "<|endoftext|> is not its last one";
        } else if (!length) {
            wrong = "a token is not made of the characters that bytes stand as";
        }
        if (wrong) {
            rf__free(text);
            return refuse(name, RF_EUNSUPPORTED, err, wrong);
        }
        (void)EVP_EncodeBlock(line, token, (int)length);
        at += (size_t)snprintf(text + at, room - at, "%s %d\n", (const char *)line, (int)number);
    }
    *out = text;
    *bytes = at;
    return RF_OK;
}

/* One line of merges: the number of the token that it makes, or -1. */
static json_int_t merged(const json_t *object, const char *line, size_t length) {
    char key[2 * KEY_BYTES + 1];
    const char *space = memchr(line, ' ', length);
    json_t *value = NULL;

    if (space && length <= sizeof key) {
        size_t first = (size_t)(space - line);
        memcpy(key, line, first);
        memcpy(key + first, space + 1, length - first - 1);
        value = json_object_getn(object, key, length - 1);
    }
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

/* Merges are in the order of ranks, one for each token of more than a byte. */
static int merges_check(const json_t *object, const char *merges, size_t bytes, const char *name,
                        struct rf_error *err) {
    const size_t expected = json_object_size(object) - 257;
    json_int_t last = -1;
    size_t count = 0;

    while (bytes) {
        const char *end = memchr(merges, '\n', bytes);
        size_t length = end ? (size_t)(end - merges) : bytes;
        size_t taken = length + (end != NULL);
        length -= length && merges[length - 1] == '\r';
        bool comment = count == 0 && length >= 9 && !memcmp(merges, "#version:", 9);
        if (length && !comment) {
            json_int_t token = merged(object, merges, length);
            if (token <= last) {
                return refuse(name, RF_EUNSUPPORTED, err,
                              "'" RF__MERGES_FILE "' is not in the order of its numbers");
            }
            last = token;
            count++;
        }
        merges += taken;
        bytes -= taken;
    }
    return count == expected
               ? RF_OK
               : refuse(name, RF_EUNSUPPORTED, err,
                        "'" RF__MERGES_FILE "' does not have a line for each of its pairs");
}

int rf__vocab_parse(const char *json, size_t bytes, const char *merges, size_t merges_bytes,
                    const char *name, struct rf__tokenizer **out, struct rf_error *err) {
    struct rf__tokenizer *tokenizer = NULL;
    json_error_t problem;
    size_t length = 0;
    char *ranks = NULL;

    json_t *object =
        bytes > JSON_BYTES ? NULL : json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &problem);
    size_t count = json_object_size(object);
    int code = RF_OK;
    if (!json_is_object(object)) {
        code = refuse(name, RF_EDATA, err, "it is not a JSON object");
    } else if (!json_object_get(object, END)) {
        code = refuse(name, RF_EUNSUPPORTED, err, "it has no <|endoftext|>");
    } else if (count < 257 || count > RF__BPE_TOKENS + 1) {
        code = refuse(name, RF_EDATA, err, "it does not have a token for each byte");
    }
    code = code ? code : ranks_write(object, name, &ranks, &length, err);
    code = code ? code
                : rf__tokenizer_gpt2((const unsigned char *)ranks, length, name, &tokenizer, err);
    if (!code && merges) {
        code = merges_check(object, merges, merges_bytes, name, err);
    }
    if (!code) {
        *out = tokenizer;
        tokenizer = NULL;
    }
    rf__tokenizer_destroy(tokenizer);
    rf__free(ranks);
    json_decref(object);
    return code;
}

/* --- writing ---------------------------------------------------------------------------------- */

struct writing {
    const struct rf__tokenizer *tokenizer;
    struct alphabet alphabet;
    json_t *object; /* vocab.json */
    char *merges;
    size_t used, room;
};

static int no_memory(struct rf_error *err) {
    return rf__fail(err, RF_ENOMEM, 0, "no memory to write a vocabulary");
}

/* The token of these bytes, where it comes before `below`; else -1. */
static json_int_t rank_of(const struct writing *w, const unsigned char *bytes, size_t count,
                          uint32_t below) {
    char key[KEY_BYTES + 1];
    size_t length = key_put(&w->alphabet, bytes, count, key);
    const json_t *value = json_object_getn(w->object, key, length);
    json_int_t rank = json_integer_value(value);

    return json_is_integer(value) && rank < (json_int_t)below ? rank : -1;
}

/* Merges a token's bytes by the ranks before its own, until no pair is left: how many parts that
 * leaves. `ends` are where they end. */
static size_t parts_of(const struct writing *w, const unsigned char *bytes, size_t count,
                       uint32_t token, uint16_t ends[RF__BPE_TOKEN_BYTES]) {
    size_t parts = count;

    for (size_t i = 0; i < count; i++) {
        ends[i] = (uint16_t)(i + 1);
    }
    while (parts > 2) {
        json_int_t best = -1;
        size_t where = 0;
        for (size_t i = 0; i + 1 < parts; i++) {
            size_t begin = i ? ends[i - 1] : 0;
            json_int_t rank = rank_of(w, bytes + begin, ends[i + 1] - begin, token);
            if (rank >= 0 && (best < 0 || rank < best)) {
                best = rank;
                where = i;
            }
        }
        if (best < 0) {
            break;
        }
        memmove(ends + where, ends + where + 1, (parts - where - 1) * sizeof *ends);
        parts--;
    }
    return parts;
}

static int merges_add(struct writing *w, const unsigned char *bytes, size_t count, size_t cut,
                      struct rf_error *err) {
    char left[KEY_BYTES + 1], right[KEY_BYTES + 1];
    size_t length = key_put(&w->alphabet, bytes, cut, left) +
                    key_put(&w->alphabet, bytes + cut, count - cut, right) + 2;

    if (w->room - w->used <= length) {
        size_t room = 2 * w->room + length;
        char *grown = rf__grow(w->merges, room, 1);
        if (!grown) {
            return no_memory(err);
        }
        w->merges = grown;
        w->room = room;
    }
    w->used += (size_t)snprintf(w->merges + w->used, w->room - w->used, "%s %s\n", left, right);
    return RF_OK;
}

static int tokens_put(struct writing *w, struct rf_error *err) {
    uint32_t end = (uint32_t)rf__tokenizer_end(w->tokenizer);
    unsigned char bytes[RF__TOKEN_BYTES];
    char key[KEY_BYTES + 1];

    for (uint32_t token = 0; token < end; token++) {
        size_t count = rf__tokenizer_token(w->tokenizer, token, bytes);
        size_t length = key_put(&w->alphabet, bytes, count, key);
        if (json_object_setn_new(w->object, key, length, json_integer(token))) {
            return no_memory(err);
        }
    }
    return json_object_set_new(w->object, END, json_integer(end)) ? no_memory(err) : RF_OK;
}

static int merges_put(struct writing *w, struct rf_error *err) {
    static const char head[] = "#version: 0.2\n";
    uint32_t end = (uint32_t)rf__tokenizer_end(w->tokenizer);
    unsigned char bytes[RF__TOKEN_BYTES];
    uint16_t ends[RF__BPE_TOKEN_BYTES];
    int code = RF_OK;

    w->room = 1 << 20;
    w->merges = rf__alloc(w->room, 1);
    if (!w->merges) {
        return no_memory(err);
    }
    memcpy(w->merges, head, sizeof head);
    w->used = sizeof head - 1;
    for (uint32_t token = 0; token < end && !code; token++) {
        size_t count = rf__tokenizer_token(w->tokenizer, token, bytes);
        if (count < 2) {
            continue;
        }
        if (parts_of(w, bytes, count, token, ends) != 2) {
            return rf__fail(err, RF_EUNSUPPORTED, 0,
                            "token %u is not made of two that come before it: these ranks cannot "
                            "be told as '" RF__MERGES_FILE "'",
                            (unsigned)token);
        }
        code = merges_add(w, bytes, count, ends[0], err);
    }
    return code;
}

int rf__vocab_texts(const struct rf__tokenizer *tokenizer, char **json, char **merges,
                    struct rf_error *err) {
    struct writing w = {
        .tokenizer = tokenizer, .alphabet = alphabet_make(), .object = json_object()};
    char *text = NULL;

    int code = w.object ? tokens_put(&w, err) : no_memory(err);
    code = code ? code : merges_put(&w, err);
    if (!code) {
        char *dumped = json_dumps(w.object, JSON_COMPACT);
        text = dumped ? rf__strdup(dumped) : NULL;
        free(dumped);
        code = text ? RF_OK : no_memory(err);
    }
    if (!code) {
        *json = text;
        *merges = w.merges;
        w.merges = NULL;
    }
    rf__free(w.merges);
    json_decref(w.object);
    return code;
}

/* --- folders ---------------------------------------------------------------------------------- */

static int join(const char *folder, const char *name, char out[PATH_BYTES], struct rf_error *err) {
    int length = snprintf(out, PATH_BYTES, "%s/%s", folder, name);

    return length > 0 && length < PATH_BYTES
               ? RF_OK
               : rf__fail(err, RF_ELIMIT, 0, "a folder's name is longer than %d bytes", PATH_BYTES);
}

static int read_in(struct rf__blobs *files, const char *folder, const char *name, char **text,
                   size_t *bytes, struct rf_error *err) {
    char path[PATH_BYTES];
    unsigned char *content = NULL;

    int code = join(folder, name, path, err);
    code = code ? code : rf__whole_read(files, path, JSON_BYTES, &content, bytes, err);
    *text = (char *)content;
    return code;
}

/* RF_ENOTFOUND where there is no vocab.json. */
static int load_pairs(struct rf__blobs *files, const char *folder, struct rf__tokenizer **out,
                      struct rf_error *err) {
    char path[PATH_BYTES], *json = NULL, *merges = NULL;
    size_t bytes = 0, merges_bytes = 0;

    int code = join(folder, RF__VOCAB_FILE, path, err);
    code = code ? code : read_in(files, folder, RF__VOCAB_FILE, &json, &bytes, err);
    if (!code) {
        code = read_in(files, folder, RF__MERGES_FILE, &merges, &merges_bytes, err);
        code = code == RF_ENOTFOUND ? RF_OK : code;
    }
    code = code ? code : rf__vocab_parse(json, bytes, merges, merges_bytes, path, out, err);
    rf__free(json);
    rf__free(merges);
    return code;
}

int rf__vocab_load(struct rf__blobs *files, const char *folder, struct rf__tokenizer **out,
                   struct rf_error *err) {
    char own[PATH_BYTES];

    int code = join(folder, RF__VOCAB_OWN, own, err);
    code = code ? code : rf__tokenizer_load(files, own, out, err);
    if (code == RF_ENOTFOUND) {
        code = load_pairs(files, folder, out, err);
    }
    return code == RF_ENOTFOUND ? rf__tokenizer_load(files, folder, out, err) : code;
}

static int save_own(const struct rf__tokenizer *tokenizer, struct rf__blobs *to,
                    struct rf_error *err) {
    char *text = rf__tokenizer_describe(tokenizer, NULL, 0);
    int code = text ? rf__ckpt_put_blob(to, RF__VOCAB_OWN "/" RF__TOKENIZER_FILE, text,
                                        strlen(text), true, err)
                    : no_memory(err);
    free(text);
    return code;
}

int rf__vocab_save(const struct rf__tokenizer *tokenizer, struct rf__blobs *to,
                   struct rf_error *err) {
    char *json = NULL, *merges = NULL;

    if (rf__tokenizer_kind(tokenizer) != RF__TOKENIZER_GPT2) {
        return save_own(tokenizer, to, err);
    }
    int code = rf__vocab_texts(tokenizer, &json, &merges, err);
    code = code ? code : rf__ckpt_put_blob(to, RF__MERGES_FILE, merges, strlen(merges), true, err);
    if (!code) {
        code = rf__ckpt_put_blob(to, RF__VOCAB_FILE, json, strlen(json), true, err);
        if (code) {
            (void)to->ops->remove(to, RF__MERGES_FILE, NULL);
        }
    }
    rf__free(json);
    rf__free(merges);
    return code;
}

void rf__vocab_remove(const struct rf__tokenizer *tokenizer, struct rf__blobs *to) {
    if (rf__tokenizer_kind(tokenizer) == RF__TOKENIZER_GPT2) {
        (void)to->ops->remove(to, RF__VOCAB_FILE, NULL);
        (void)to->ops->remove(to, RF__MERGES_FILE, NULL);
    } else {
        (void)to->ops->remove(to, RF__VOCAB_OWN "/" RF__TOKENIZER_FILE, NULL);
    }
}
