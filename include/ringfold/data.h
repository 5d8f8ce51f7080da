/* Data files and their integrity indices: a digest for each block of 64 KiB, made once, by which
 * damage is found before it is trained on. And texts, which become files of tokens. docs/DATA.md
 * has the formats.
 *
 * Of a file whose name ends in ".gz" the index is of the unpacked content.
 *
 * Thread safety: everything here works on the caller's memory and on files. */
#ifndef RINGFOLD_DATA_H
#define RINGFOLD_DATA_H

#include <ringfold/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { RF_DATA_BLOCK_BYTES = 65536, RF_DATA_PATH_MAX = 5000 };

struct rf_data_options {
    const char *cache;     /* folder for indices of files whose own folder cannot be written; NULL:
                              there is none. Borrowed, as is the next */
    const char *bad_reads; /* for rehearsals: "NAME:BEGIN-END" of a file that cannot be read; or
                              NULL */
    bool force;            /* index: make it anew, in place of the one that is there */
    int retries;           /* check: how often a bad block is read again */
};

struct rf_data_index {
    uint64_t bytes, blocks;       /* of the file, as the index has it */
    bool is_new;                  /* made by this call */
    char where[RF_DATA_PATH_MAX]; /* the index's own path */
};

/* A block that cannot be used. */
struct rf_data_bad {
    uint64_t block, offset, bytes;
    const char *cause; /* "mismatch: …", "short: …" or "unreadable: …"; borrowed for the call */
};

struct rf_data_check {
    uint64_t bytes, found; /* of the file, as the index has it and as it is */
    uint64_t blocks, bad;
    uint64_t recovered; /* blocks that were good only when they were read again */
};

RF_API void rf_data_options_init(struct rf_data_options *options);

/* Makes the index of the file, beside it as PATH.rfindex or else in the cache, unless there is one.
 * RF_EIO where the file cannot be read to its end or the index cannot be written. */
RF_API RF_MUST_CHECK int rf_data_index(const char *path, const struct rf_data_options *options,
                                       struct rf_data_index *out, struct rf_error *err);

/* Reads all of the file and tells of each bad block. RF_EDATA where there is one, or the file is
 * longer than it was; RF_ENOTFOUND where it has no index. `each` may be NULL. */
RF_API RF_MUST_CHECK int rf_data_check(const char *path, const struct rf_data_options *options,
                                       void (*each)(void *context, const struct rf_data_bad *bad),
                                       void *context, struct rf_data_check *out,
                                       struct rf_error *err);

/* --- texts ------------------------------------------------------------------------------------ */

struct rf_data_tokens_options {
    const char *tokenizer; /* "chars", "bytes" or "gpt2". Borrowed, as are the next two */
    const char *ranks;     /* gpt2: the path of its .tiktoken file */
    const char *bad_reads; /* as in struct rf_data_options */
    double validation;     /* the share of each text, its last part: 0, for none, to less than 1 */
    bool force;            /* replace a folder of tokens that is there */

    /* Called about once for each MiB with how much of all reading is done, in bytes; false ends the
     * call with RF_ESTOPPED. May be NULL. */
    bool (*go_on)(void *context, uint64_t done, uint64_t total);
    void *context;
};

struct rf_data_tokens_part {
    uint64_t tokens, text_bytes;
    uint64_t file_bytes; /* 0: there is no file */
};

struct rf_data_tokens {
    uint32_t vocabulary; /* tokens are less */
    int token_bytes;     /* in the files: 2 or 4 */
    struct rf_data_tokens_part train, validation;
};

/* chars, and 0.1 for validation. */
RF_API void rf_data_tokens_options_init(struct rf_data_tokens_options *options);

/* Encodes texts to a folder: train.bin, val.bin, their indices, tokenizer.json and for gpt2
 * tokenizer.tiktoken. All of it or nothing: RF_EEXISTS where some of these are there, RF_ENOTFOUND
 * where a text is not, RF_EDATA where one cannot be encoded, RF_EIO where the folder cannot be
 * written. Memory does not depend on the texts' size. */
RF_API RF_MUST_CHECK int rf_data_tokens(const char *const *texts, size_t count, const char *folder,
                                        const struct rf_data_tokens_options *options,
                                        struct rf_data_tokens *out, struct rf_error *err);

#ifdef __cplusplus
}
#endif
#endif
