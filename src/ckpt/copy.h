/* Checkpoints that leave their root: copies of them, and exports as one safetensors file. */
#ifndef RF_CKPT_COPY_H
#define RF_CKPT_COPY_H

#include "ckpt/checkpoint.h"

/* Parts first, the manifest last, each verified on its way: what is damaged is not copied. 0 also
 * where the same checkpoint is there already; RF_ECONFLICT where another one stands in its place.
 */
int rf__ckpt_copy(struct rf__blobs *from, struct rf__blobs *to, const char *folder,
                  struct rf_error *err);

/* Writes the trained parameters, and with `further` the other state too, as one safetensors blob
 * `name`, each under its name and shape. Everything that is read is verified; on an error nothing
 * stands under the name that did not before. */
int rf__ckpt_export(struct rf__blobs *from, const struct rf__ckpt_manifest *manifest, bool further,
                    struct rf__blobs *to, const char *name, uint64_t *bytes, struct rf_error *err);

#endif
