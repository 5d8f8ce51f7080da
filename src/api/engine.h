/* The engine: one thread that steps the driver whenever nobody else does.
 *
 * A caller that blocks steps the driver itself, so that small operations cost no hand-over; the
 * engine stands aside meanwhile and a moment longer, since callers tend to come back. All of it
 * under one lock. */
#ifndef RF_API_ENGINE_H
#define RF_API_ENGINE_H

#include "group/group.h"
#include "os/poller.h"

#include <stdbool.h>

struct rf__engine;

/* Objects are borrowed. `net` may be NULL (a group of one: there is nothing to serve, and no
 * thread). `crowded`: more ranks than cores on this host, so who waits gives way at once. */
int rf__engine_create(struct rf__group *group, struct rf__net *net, struct rf__poller *poller,
                      bool crowded, struct rf__engine **out, struct rf_error *err);

/* Joins the thread. */
void rf__engine_destroy(struct rf__engine *engine);

void rf__engine_lock(struct rf__engine *engine);
void rf__engine_unlock(struct rf__engine *engine);

/* With the lock held, after something was submitted that nobody waits for: the engine looks at it
 * soon. */
void rf__engine_kick(struct rf__engine *engine);

/* With the lock held: a small operation through shared memory is often over at once. Whether this
 * one is; else rf__engine_drive goes on. */
bool rf__engine_rush(struct rf__engine *engine, const struct rf__op *op, int64_t now);

/* With the lock held: steps the driver until done(context), at most until `deadline` (ns). 0, or
 * RF_ETIMEDOUT. */
int rf__engine_drive(struct rf__engine *engine, bool (*done)(void *context), void *context,
                     int64_t deadline);

#endif
