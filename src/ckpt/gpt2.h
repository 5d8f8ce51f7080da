/* Weights in the form in which Hugging Face's tools keep GPT-2: a folder with
 *
 *     config.json          the shape, among much else
 *     model.safetensors    the tensors, under GPT-2's own names, with or without "transformer."
 *
 * What the tensors of a shape are the caller says (a state: names, shapes, memory); nothing here
 * knows a model. Folders come from anywhere: they are read through bounded cursors, and everything
 * in them is held against the shape before a byte of weights is taken. */
#ifndef RF_CKPT_GPT2_H
#define RF_CKPT_GPT2_H

#include "ckpt/manifest.h"
#include "io/blob.h"

#define RF__GPT2_CONFIG  "config.json"
#define RF__GPT2_WEIGHTS "model.safetensors"

enum { RF__GPT2_CONFIG_MAX = 1 << 20 /* bytes */, RF__GPT2_NO_END = -1 };

struct rf__gpt2_shape {
    int depth, heads, width, context, vocabulary;
    int end; /* the token between two texts, or RF__GPT2_NO_END */
};

/* The content of a config.json; `name` for the report. RF_EDATA: it is none, or lacks something;
 * RF_EUNSUPPORTED names what the model here cannot do. */
int rf__gpt2_shape_parse(const char *json, size_t bytes, const char *name,
                         struct rf__gpt2_shape *out, struct rf_error *err);

/* The other way round: given back by free(), not rf__free; NULL where there is no memory. */
char *rf__gpt2_shape_text(const struct rf__gpt2_shape *shape);

/* Of a checkpoint of training: the number of heads as its configuration records it, the rest from
 * its tensors; no end. RF_EUNSUPPORTED: it is of another model. */
int rf__gpt2_shape_of(const struct rf__ckpt_manifest *manifest, struct rf__gpt2_shape *out,
                      struct rf_error *err);

/* Whether the folder has a config.json: 1, 0, or an error. Names in `files` are paths. */
int rf__gpt2_is_folder(struct rf__blobs *files, const char *folder, struct rf_error *err);
/* Also the bytes of its weights, which bound what the shape may claim; 0 where there are none. */
int rf__gpt2_read_shape(struct rf__blobs *files, const char *folder, struct rf__gpt2_shape *out,
                        uint64_t *weight_bytes, struct rf_error *err);

/* Fills the state's memory, float32, from the folder's weights in float32, float16 or bfloat16.
 * Every tensor must be there in its shape, and no other, but for the masks of attention that older
 * programs keep and a head that equals the token embedding. RF_ENOTFOUND, RF_EDATA, RF_EIO. On an
 * error the memory may hold anything. */
int rf__gpt2_read(struct rf__blobs *files, const char *folder, const struct rf__ckpt_state *state,
                  struct rf_error *err);

/* A folder of a checkpoint's trained parameters, which must be those of `state` (its memory is not
 * looked at). The names in `to` are relative to the folder. config.json comes last: without it the
 * folder is none; `further` (may be NULL) writes what else belongs to it before that. RF_EEXISTS
 * where one of the two files, or of `others`, is there; what was begun of the two is removed on an
 * error. *bytes is that of the weights. */
struct rf__gpt2_export {
    struct rf__blobs *from, *to;
    const struct rf__ckpt_manifest *manifest;
    const struct rf__ckpt_state *state;
    const struct rf__gpt2_shape *shape;
    const char *const *others; /* names */
    size_t others_count;
    int (*further)(void *context, struct rf__blobs *to, struct rf_error *err);
    void *context;
};
int rf__gpt2_export(const struct rf__gpt2_export *order, uint64_t *bytes, struct rf_error *err);

#endif
