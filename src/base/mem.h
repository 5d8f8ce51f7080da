/* Memory: checked sizes, zeroed blocks, and a way for tests to let the k-th allocation fail. */
#ifndef RF_BASE_MEM_H
#define RF_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

/* count x bytes, zeroed; NULL when it does not fit or there is none. Free with rf__free. */
void *rf__alloc(size_t count, size_t bytes);

/* 64-byte aligned, zeroed. Free with rf__free. */
void *rf__alloc_aligned(size_t bytes);

/* Grows a block to count x bytes, the new part undefined; on NULL the old block lives on. */
void *rf__grow(void *block, size_t count, size_t bytes);
char *rf__strdup(const char *text);
void rf__free(void *block);

/* Tests only: the allocation after `successes` more fails, once; negative: none does. */
void rf__alloc_fail_after(long successes);

#endif
