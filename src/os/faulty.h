/* Blobs that fail when told to, over any others: for rehearsals of a server that is down and of a
 * disk that is full. */
#ifndef RF_OS_FAULTY_H
#define RF_OS_FAULTY_H

#include "io/blob.h"
#include "io/clock.h"

struct rf__faulty_blobs;

/* Takes `inner`, which is destroyed with it, also where this fails; the clock (NULL: the system's)
 * is borrowed. RF_ENOMEM. `rf__faulty_blobs_base` is what to use, and to destroy. */
int rf__faulty_blobs_create(struct rf__blobs *inner, struct rf__clock *clock,
                            struct rf__faulty_blobs **out, struct rf_error *err);
struct rf__blobs *rf__faulty_blobs_base(struct rf__faulty_blobs *faulty);

/* From any thread, until that time of the clock (0: over now; RF__NEVER: for good).
 *
 * Down: every call fails as with a server that refuses connections, RF_ECONNECT. What is being
 * written is lost: its writer fails from then on, and `finish` leaves nothing. */
void rf__faulty_blobs_down(struct rf__faulty_blobs *faulty, int64_t until_ns);

/* Full: `write` and `finish` fail as on a full disk, RF_EIO with ENOSPC; all else goes on. */
void rf__faulty_blobs_full(struct rf__faulty_blobs *faulty, int64_t until_ns);

/* The process is ended by SIGKILL at the next `finish`, in the middle of what it writes. */
void rf__faulty_blobs_kill(struct rf__faulty_blobs *faulty);

#endif
