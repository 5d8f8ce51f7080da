/* Coroutines over ucontext. The address sanitizer is told of each change of the stack. */
#include "coro.h"

#include "base/assert.h"
#include "base/mem.h"

#include <stddef.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#ifndef HAS_ASAN
#define HAS_ASAN 0
#endif
#if HAS_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

enum { STACK_BYTES = 512 << 10 };

struct sim_coro {
    ucontext_t own, back;
    unsigned char *stack;
    void (*body)(void *argument);
    void *argument;
    bool ended;
    void *own_fake, *back_fake; /* the sanitizer's */
    const void *back_stack;
    size_t back_bytes;
};

static struct sim_coro *running;

static void leave_stack(void **fake, const void *stack, size_t bytes) {
#if HAS_ASAN
    __sanitizer_start_switch_fiber(fake, stack, bytes);
#else
    (void)fake;
    (void)stack;
    (void)bytes;
#endif
}

static void enter_stack(void *fake, const void **stack, size_t *bytes) {
#if HAS_ASAN
    __sanitizer_finish_switch_fiber(fake, stack, bytes);
#else
    (void)fake;
    (void)stack;
    (void)bytes;
#endif
}

static void begin(void) {
    struct sim_coro *coro = running;

    enter_stack(NULL, &coro->back_stack, &coro->back_bytes);
    coro->body(coro->argument);
    coro->ended = true;
    leave_stack(NULL, coro->back_stack, coro->back_bytes);
    (void)swapcontext(&coro->own, &coro->back);
}

struct sim_coro *sim_coro_create(void (*body)(void *argument), void *argument) {
    struct sim_coro *coro = rf__alloc(1, sizeof *coro);

    if (coro) {
        coro->stack = rf__alloc_aligned(STACK_BYTES);
    }
    if (!coro || !coro->stack) {
        rf__free(coro);
        return NULL;
    }
    coro->body = body;
    coro->argument = argument;
    (void)getcontext(&coro->own);
    coro->own.uc_stack.ss_sp = coro->stack;
    coro->own.uc_stack.ss_size = STACK_BYTES;
    coro->own.uc_link = NULL;
    makecontext(&coro->own, begin, 0);
    return coro;
}

bool sim_coro_resume(struct sim_coro *coro) {
    RF_ASSERT(!running && !coro->ended);
    running = coro;
    leave_stack(&coro->back_fake, coro->stack, STACK_BYTES);
    (void)swapcontext(&coro->back, &coro->own);
    enter_stack(coro->back_fake, NULL, NULL);
    running = NULL;
    return coro->ended;
}

void sim_coro_yield(void) {
    struct sim_coro *coro = running;

    RF_ASSERT(coro);
    leave_stack(&coro->own_fake, coro->back_stack, coro->back_bytes);
    (void)swapcontext(&coro->own, &coro->back);
    enter_stack(coro->own_fake, &coro->back_stack, &coro->back_bytes);
}

void sim_coro_destroy(struct sim_coro *coro) {
    if (coro) {
        RF_ASSERT(coro != running);
        rf__free(coro->stack);
        rf__free(coro);
    }
}

bool sim_coro_inside(void) {
    return running != NULL;
}
