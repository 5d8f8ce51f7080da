/* tokenizer.json, both ways, by jansson:
 *
 *   {"version": 1, "tokenizer": "chars", "vocabulary": 65, "characters": [10, 32, 33, …]}
 *   {"version": 1, "tokenizer": "bytes", "vocabulary": 256}
 *   {"version": 1, "tokenizer": "gpt2", "vocabulary": 50257, "end_of_text": 50256,
 *    "ranks": "tokenizer.tiktoken", "ranks_xxh3": "0123456789abcdef"} */
#include "data/tokenizer_file.h"

#include "base/digest.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/bpe.h"
#include "data/text.h"
#include "data/utf8.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, JSON_BYTES = 16 << 20, PATH_BYTES = 4096, DIGITS = 16 };

int rf__whole_read(struct rf__blobs *files, const char *path, size_t most, unsigned char **bytes,
                   size_t *count, struct rf_error *err) {
    struct rf__blob *blob = NULL;
    unsigned char *content = NULL;
    uint64_t size = 0;

    int code = files->ops->open(files, path, &blob, &size, err);
    if (code) {
        return code;
    }
    if (size > most) {
        code = rf__fail(err, RF_ELIMIT, 0, "'%s' has %s bytes, expected at most %s",
                        rf__path_tail(path), rf__number(size).text, rf__number(most).text);
        goto out;
    }
    content = rf__alloc((size_t)size, 1);
    if (!content) {
        code = rf__fail(err, RF_ENOMEM, 0, "no memory to read '%s'", rf__path_tail(path));
        goto out;
    }
    ssize_t got = files->ops->read(files, blob, 0, content, (size_t)size, err);
    if (got < 0) {
        code = (int)got;
        goto out;
    }
    *bytes = content;
    *count = (size_t)got;
    content = NULL;
out:
    rf__free(content);
    files->ops->close(files, blob);
    return code;
}

/* --- writing ---------------------------------------------------------------------------------- */

static bool points_put(json_t *object, const struct rf__tokenizer *tokenizer) {
    json_t *list = json_array();
    const uint32_t *points = rf__tokenizer_points(tokenizer);
    bool good = list != NULL;

    for (uint32_t i = 0; i < rf__tokenizer_vocabulary(tokenizer) && good; i++) {
        good = !json_array_append_new(list, json_integer((json_int_t)points[i]));
    }
    /* The list is taken, also on an error. */
    return !json_object_set_new(object, "characters", list) && good;
}

char *rf__tokenizer_describe(const struct rf__tokenizer *tokenizer, const unsigned char *ranks,
                             size_t count) {
    enum rf__tokenizer_kind kind = rf__tokenizer_kind(tokenizer);
    json_t *object =
        json_pack("{s:i, s:s, s:I}", "version", VERSION, "tokenizer", rf__tokenizer_name(kind),
                  "vocabulary", (json_int_t)rf__tokenizer_vocabulary(tokenizer));
    bool good = object != NULL;
    char digest[DIGITS + 1];

    switch (kind) {
    case RF__TOKENIZER_CHARS:
        good = good && points_put(object, tokenizer);
        break;
    case RF__TOKENIZER_BYTES:
        break;
    case RF__TOKENIZER_GPT2:
        snprintf(digest, sizeof digest, "%016" PRIx64, rf__digest(ranks, count, 0));
        good = good &&
               !json_object_set_new(object, "end_of_text",
                                    json_integer(rf__tokenizer_end(tokenizer))) &&
               !json_object_set_new(object, "ranks", json_string(RF__TOKENIZER_RANKS)) &&
               !json_object_set_new(object, "ranks_xxh3", json_string(digest));
        break;
    }
    char *text = good ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    return text;
}

/* --- reading ---------------------------------------------------------------------------------- */

static int refuse(const char *name, const char *what, struct rf_error *err) {
    return rf__fail(err, RF_EDATA, 0, "'%s' is no tokenizer's file: %s", rf__path_tail(name), what);
}

static int points_take(json_t *list, const char *name, struct rf__described *out,
                       struct rf_error *err) {
    size_t count = json_array_size(list); /* 0 where it is none */

    if (count != out->vocabulary) {
        return refuse(name, "'characters' does not have as many as 'vocabulary' says", err);
    }
    out->points = rf__alloc(count, sizeof *out->points);
    if (!out->points) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the vocabulary of '%s'",
                        rf__path_tail(name));
    }
    for (size_t i = 0; i < count; i++) {
        json_int_t point = json_integer_value(json_array_get(list, i));
        if (!json_is_integer(json_array_get(list, i)) || point < 0 || point >= RF__UTF8_POINTS) {
            return refuse(name, "'characters' holds what is not the number of one", err);
        }
        out->points[i] = (uint32_t)point;
    }
    return RF_OK;
}

static int ranks_take(json_t *object, const char *name, struct rf__described *out,
                      struct rf_error *err) {
    const char *file = json_string_value(json_object_get(object, "ranks"));
    const char *digest = json_string_value(json_object_get(object, "ranks_xxh3"));

    if (!file || strcmp(file, RF__TOKENIZER_RANKS)) {
        return refuse(name, "'ranks' is not \"" RF__TOKENIZER_RANKS "\"", err);
    }
    if (!digest || strlen(digest) != DIGITS || strspn(digest, "0123456789abcdef") != DIGITS) {
        return refuse(name, "'ranks_xxh3' is not 16 hexadecimal digits", err);
    }
    out->ranks = strtoull(digest, NULL, 16);
    return RF_OK;
}

int rf__tokenizer_described(const unsigned char *json, size_t count, const char *name,
                            struct rf__described *out, struct rf_error *err) {
    struct rf__described described = {0};
    json_error_t problem;
    json_int_t most = RF__BPE_TOKENS + 1;
    int code = RF_OK;

    json_t *object = count > JSON_BYTES ? NULL : json_loadb((const char *)json, count, 0, &problem);
    const char *kind = json_string_value(json_object_get(object, "tokenizer"));
    json_int_t vocabulary = json_integer_value(json_object_get(object, "vocabulary"));
    if (!json_is_object(object)) {
        code = refuse(name, "it is not a JSON object", err);
    } else if (json_integer_value(json_object_get(object, "version")) != VERSION) {
        code = refuse(name, "'version' is not 1", err);
    } else if (!kind || rf__tokenizer_parse(kind, &described.kind, NULL)) {
        code = refuse(name, "'tokenizer' is not chars, bytes or gpt2", err);
    } else if (vocabulary < 1 ||
               vocabulary > (described.kind == RF__TOKENIZER_CHARS ? RF__UTF8_POINTS : most) ||
               (described.kind == RF__TOKENIZER_BYTES && vocabulary != 256)) {
        code = refuse(name, "'vocabulary' is not one that this tokenizer can have", err);
    }
    if (!code) {
        described.vocabulary = (uint32_t)vocabulary;
        switch (described.kind) {
        case RF__TOKENIZER_CHARS:
            code = points_take(json_object_get(object, "characters"), name, &described, err);
            break;
        case RF__TOKENIZER_BYTES:
            break;
        case RF__TOKENIZER_GPT2:
            code = ranks_take(object, name, &described, err);
            break;
        }
    }
    json_decref(object);
    if (code) {
        rf__free(described.points);
    } else {
        *out = described;
    }
    return code;
}

static int path_join(const char *folder, const char *name, char out[PATH_BYTES],
                     struct rf_error *err) {
    int length = snprintf(out, PATH_BYTES, "%s/%s", folder, name);

    return length > 0 && length < PATH_BYTES
               ? RF_OK
               : rf__fail(err, RF_ELIMIT, 0, "the data folder's name is longer than %d bytes",
                          PATH_BYTES);
}

static int ranks_load(struct rf__blobs *files, const char *folder,
                      const struct rf__described *described, struct rf__tokenizer **out,
                      struct rf_error *err) {
    char path[PATH_BYTES];
    unsigned char *ranks = NULL;
    size_t count = 0;

    int code = path_join(folder, RF__TOKENIZER_RANKS, path, err);
    if (!code) {
        code = rf__whole_read(files, path, RF__BPE_FILE_BYTES, &ranks, &count, err);
    }
    if (!code && rf__digest(ranks, count, 0) != described->ranks) {
        code = rf__fail(err, RF_EDATA, 0,
                        "'%s' is damaged: its digest is not the one in '" RF__TOKENIZER_FILE "'",
                        rf__path_tail(path));
    }
    if (!code) {
        code = rf__tokenizer_gpt2(ranks, count, path, out, err);
    }
    rf__free(ranks);
    return code;
}

int rf__tokenizer_load(struct rf__blobs *files, const char *folder, struct rf__tokenizer **out,
                       struct rf_error *err) {
    struct rf__described described = {0};
    struct rf__tokenizer *tokenizer = NULL;
    char path[PATH_BYTES];
    unsigned char *json = NULL;
    size_t count = 0;

    int code = path_join(folder, RF__TOKENIZER_FILE, path, err);
    if (code) {
        return code;
    }
    code = rf__whole_read(files, path, JSON_BYTES, &json, &count, err);
    if (code == RF_ENOTFOUND) {
        code = rf__fail(err, RF_ENOTFOUND, 0, "no '%s' in '%s'", RF__TOKENIZER_FILE,
                        rf__path_tail(folder));
        if (err) {
            rf__detail(err->why, "a folder of tokens holds train.bin, val.bin and tokenizer.json");
            rf__detail(err->next, "ringfold data tokens --tokenizer chars TEXT -o FOLDER");
        }
    }
    if (!code) {
        code = rf__tokenizer_described(json, count, path, &described, err);
    }
    if (code) {
        goto out;
    }
    switch (described.kind) {
    case RF__TOKENIZER_CHARS:
        code = rf__tokenizer_chars(described.points, described.vocabulary, &tokenizer, err);
        code = code == RF_EDATA ? rf__wrap(err, code, "'%s': ", rf__path_tail(path)) : code;
        break;
    case RF__TOKENIZER_BYTES:
        code = rf__tokenizer_bytes(&tokenizer, err);
        break;
    case RF__TOKENIZER_GPT2:
        code = ranks_load(files, folder, &described, &tokenizer, err);
        break;
    }
    if (!code && rf__tokenizer_vocabulary(tokenizer) != described.vocabulary) {
        code = refuse(path, "'vocabulary' is not that of its ranks", err);
    }
    if (!code) {
        *out = tokenizer;
        tokenizer = NULL;
    }
out:
    rf__tokenizer_destroy(tokenizer);
    rf__free(described.points);
    rf__free(json);
    return code;
}
