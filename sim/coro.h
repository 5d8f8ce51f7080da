/* Coroutines: each simulated worker's program runs on a stack of its own, one at a time, until it
 * waits. Not for use by threads. */
#ifndef SIM_CORO_H
#define SIM_CORO_H

#include <stdbool.h>

struct sim_coro;

/* NULL: no memory. `body` begins with the first resume. */
struct sim_coro *sim_coro_create(void (*body)(void *argument), void *argument);

/* Runs it until it yields or ends; not from within another. True when it has ended. */
bool sim_coro_resume(struct sim_coro *coro);

/* From within one: back to who resumed it. */
void sim_coro_yield(void);

/* It has ended, or was never resumed. NULL is fine. */
void sim_coro_destroy(struct sim_coro *coro);

/* Whether the caller runs within one. */
bool sim_coro_inside(void);

#endif
