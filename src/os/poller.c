/* epoll behind os/poller.h.
 *
 * What the kernel hands back is not a pointer but (descriptor, registration number): `collect` may
 * run without the caller's lock while a source is removed, so each event is looked up again, under
 * the lock, when it is dispatched. The doorbell is an eventfd that is never read: edge-triggered,
 * each write to it is an event of its own. */
#include "os/poller.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/status.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS_AT_ONCE = 256, NS_PER_S = 1000000000, NS_PER_MS = 1000000 };

#define DOORBELL UINT64_MAX

struct slot {
    struct rf__poll_source *source; /* NULL: not registered */
    uint32_t registration;
};

struct rf__poller {
    int epoll, doorbell;
    struct slot *slots; /* by descriptor */
    size_t slot_count;
    uint32_t registrations;
    bool no_pwait2; /* the kernel has no epoll_pwait2; the collecting thread's */

    /* The collecting thread's, until it dispatches. */
    struct epoll_event events[EVENTS_AT_ONCE];
    int event_count;
};

int rf__poller_create(struct rf__poller **out, struct rf_error *err) {
    int rc = 0;
    struct rf__poller *poller = rf__alloc(1, sizeof *poller);

    *out = NULL;
    if (!poller) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for the poller");
    }
    poller->doorbell = -1;
    poller->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (poller->epoll < 0) {
        rc = rf__fail(err, RF_EIO, errno, "creating an epoll descriptor");
        goto out;
    }
    poller->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (poller->doorbell < 0) {
        rc = rf__fail(err, RF_EIO, errno, "creating an event descriptor");
        goto out;
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = DOORBELL};
    if (epoll_ctl(poller->epoll, EPOLL_CTL_ADD, poller->doorbell, &event)) {
        rc = rf__fail(err, RF_EIO, errno, "watching the event descriptor");
        goto out;
    }
    *out = poller;
    poller = NULL;
out:
    rf__poller_destroy(poller);
    return rc;
}

void rf__poller_destroy(struct rf__poller *poller) {
    if (!poller) {
        return;
    }
    if (poller->doorbell >= 0) {
        close(poller->doorbell);
    }
    if (poller->epoll >= 0) {
        close(poller->epoll);
    }
    rf__free(poller->slots);
    rf__free(poller);
}

/* Makes slots[fd] exist. */
static int make_room(struct rf__poller *poller, size_t fd) {
    if (fd < poller->slot_count) {
        return 0;
    }
    size_t count = poller->slot_count ? poller->slot_count : 64;
    while (count <= fd) {
        count *= 2;
    }
    struct slot *slots = rf__grow(poller->slots, count, sizeof *slots);
    if (!slots) {
        return RF_ENOMEM;
    }
    memset(slots + poller->slot_count, 0, (count - poller->slot_count) * sizeof *slots);
    poller->slots = slots;
    poller->slot_count = count;
    return 0;
}

int rf__poller_add(struct rf__poller *poller, struct rf__poll_source *source,
                   struct rf_error *err) {
    RF_ASSERT(source->fd >= 0 && source->ready);
    if (make_room(poller, (size_t)source->fd)) {
        return rf__fail(err, RF_ENOMEM, 0, "no memory for descriptor %d", source->fd);
    }
    struct slot *slot = &poller->slots[source->fd];
    RF_ASSERT(!slot->source);
    uint32_t registration = ++poller->registrations;
    struct epoll_event event = {
        .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
        .data.u64 = (uint64_t)registration << 32 | (uint32_t)source->fd,
    };
    /* First the slot, then the kernel: an event may be collected at once. */
    *slot = (struct slot){.source = source, .registration = registration};
    if (epoll_ctl(poller->epoll, EPOLL_CTL_ADD, source->fd, &event)) {
        int sys_errno = errno;
        slot->source = NULL;
        return rf__fail(err, RF_EIO, sys_errno, "watching descriptor %d", source->fd);
    }
    return 0;
}

void rf__poller_remove(struct rf__poller *poller, struct rf__poll_source *source) {
    size_t fd = (size_t)source->fd;
    if (source->fd < 0 || fd >= poller->slot_count || poller->slots[fd].source != source) {
        return;
    }
    poller->slots[fd].source = NULL;
    (void)epoll_ctl(poller->epoll, EPOLL_CTL_DEL, source->fd, NULL);
}

static int timeout_in_ms(int64_t timeout_ns) {
    if (timeout_ns < 0) {
        return -1;
    }
    int64_t ms = timeout_ns / NS_PER_MS + (timeout_ns % NS_PER_MS != 0);
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

int rf__poller_collect(struct rf__poller *poller, int64_t timeout_ns) {
    int count = -1;

    errno = ENOSYS;
    if (!poller->no_pwait2) {
        struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / NS_PER_S),
                                   .tv_nsec = (long)(timeout_ns % NS_PER_S)};
        count = epoll_pwait2(poller->epoll, poller->events, EVENTS_AT_ONCE,
                             timeout_ns < 0 ? NULL : &timeout, NULL);
    }
    if (count < 0 && errno == ENOSYS) {
        poller->no_pwait2 = true;
        count =
            epoll_wait(poller->epoll, poller->events, EVENTS_AT_ONCE, timeout_in_ms(timeout_ns));
    }
    RF_ASSERT(count >= 0 || errno == EINTR);
    poller->event_count = count < 0 ? 0 : count;
    return poller->event_count;
}

void rf__poller_dispatch(struct rf__poller *poller) {
    for (int i = 0; i < poller->event_count; i++) {
        uint64_t tag = poller->events[i].data.u64;
        size_t fd = (uint32_t)tag;
        if (tag == DOORBELL || fd >= poller->slot_count) {
            continue;
        }
        const struct slot *slot = &poller->slots[fd];
        if (slot->source && slot->registration == (uint32_t)(tag >> 32)) {
            slot->source->ready(slot->source, poller->events[i].events);
        }
    }
    poller->event_count = 0;
}

void rf__poller_wake(struct rf__poller *poller) {
    int saved = errno;
    uint64_t one = 1;
    ssize_t written = write(poller->doorbell, &one, sizeof one);
    (void)written; /* a counter that is full has rung already */
    errno = saved;
}
