/* The one place that asks the C library for memory. */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static atomic_long fail_after = -1;

static bool must_fail(void) {
    long left = atomic_load_explicit(&fail_after, memory_order_relaxed);
    if (left < 0) {
        return false;
    }
    return atomic_fetch_sub_explicit(&fail_after, 1, memory_order_relaxed) == 0;
}

void rf__alloc_fail_after(long successes) {
    atomic_store_explicit(&fail_after, successes, memory_order_relaxed);
}

void *rf__alloc(size_t count, size_t bytes) {
    if (must_fail() || (bytes && count > PTRDIFF_MAX / bytes)) {
        return NULL;
    }
    return calloc(count ? count : 1, bytes ? bytes : 1);
}

void *rf__alloc_aligned(size_t bytes) {
    if (must_fail() || bytes > SIZE_MAX - 64) {
        return NULL;
    }
    size_t rounded = (bytes + 63) / 64 * 64;
    void *block = aligned_alloc(64, rounded ? rounded : 64);
    if (block) {
        memset(block, 0, rounded ? rounded : 64);
    }
    return block;
}

void *rf__grow(void *block, size_t count, size_t bytes) {
    if (must_fail() || (bytes && count > SIZE_MAX / bytes)) {
        return NULL;
    }
    size_t total = count * bytes;
    return realloc(block, total ? total : 1);
}

char *rf__strdup(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = rf__alloc(bytes, 1);
    if (copy) {
        memcpy(copy, text, bytes);
    }
    return copy;
}

void rf__free(void *block) {
    free(block);
}
