/* Shared memory between processes of one host. Each link has an abstract unix socket: it carries
 * the handshake, then the descriptors of each side's arena and doorbell, and afterwards nothing but
 * its own end, which is how a process's death is noticed. The bytes go through one ring for each
 * direction, which lies in its writer's arena:
 *
 *     arena at `control`:  sleeping flag (its own page) | board | padding to 64 KiB
 *     arena at `ring`:     head line | tail line | waiting line | padding to 64 KiB | data
 *
 * Positions count bytes since the start and never wrap; each side keeps its own in private memory
 * and only publishes it, so what a misbehaving peer writes into shared memory can be wrong but
 * never leads outside the mapping.
 *
 * Waking, two protocols, each a store followed by a load on both sides with a full fence between
 * (so that at least one of the two sees the other's store):
 *
 *     (1) reader:  sleeping = 1;  fence;  looks at everything once more, then waits [rf__shm_sleep]
 *         writer:  head = …;      fence;  if sleeping: rings                    [rf__shm_notify]
 *     (2) writer:  waiting = 1;   fence;  looks at tail once more, waits as in (1) [rf__shm_write]
 *         reader:  tail = …;      fence;  if waiting: as the writer in (1)        [publish_tail]
 */
#include "base/assert.h"
#include "base/cursor.h"
#include "base/mem.h"
#include "base/status.h"
#include "os/host.h"
#include "os/net_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <unistd.h>

enum { BOARD_AT = 4096, RING_DATA = RF__SHM_HEADER, CHUNK = 128 << 10 };

struct control {
    _Atomic uint32_t sleeping;
};

struct ring_header {
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) _Atomic uint32_t waiting;
};

static const unsigned char info_magic[4] = {'R', 'F', 'S', '1'};
static const char farewell = 'Q';

/* ThreadSanitizer knows no fences; a sequentially consistent exchange is as strong on the machines
 * it runs on. */
static void full_fence(void) {
#if defined(__SANITIZE_THREAD__)
    static _Atomic int anything;
    (void)atomic_exchange_explicit(&anything, 0, memory_order_seq_cst);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

static struct control *control_of(char *page) {
    return (struct control *)(void *)page;
}

static struct ring_header *header_of(const struct rf__ring *ring) {
    return (struct ring_header *)(void *)ring->base;
}

void *rf__shm_board(char *control) {
    return control + BOARD_AT;
}

/* ---- Sockets ---- */

static socklen_t abstract_name(const char *name, struct sockaddr_un *out) {
    size_t length = strlen(name);

    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(out->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

int rf__shm_listen(struct rf__os_net *net, struct rf_error *err) {
    unsigned char random[16];
    struct sockaddr_un address;
    char name[RF__UNIX_MAX] = "ringfold-";
    size_t used = strlen(name);

    int rc = rf__host_random(random, sizeof random, err);
    if (rc) {
        return rc;
    }
    for (size_t i = 0; i < sizeof random; i++) {
        snprintf(name + used + 2 * i, 3, "%02x", random[i]);
    }
    socklen_t length = abstract_name(name, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return rf__fail(err, RF_EADDR, errno, "making a unix socket");
    }
    if (bind(fd, (struct sockaddr *)&address, length) || listen(fd, SOMAXCONN)) {
        rc = rf__fail(err, RF_EADDR, errno, "listening at the abstract unix socket %s", name);
        close(fd);
        return rc;
    }
    net->unix_listener.source.fd = fd;
    memcpy(net->endpoint.name, name, sizeof name);
    snprintf(net->unix_listener.local, RF__ADDRESS_TEXT, "unix:%.40s", name);
    return 0;
}

int rf__shm_dial(const char *name) {
    struct sockaddr_un address;
    socklen_t length = abstract_name(name, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return -errno;
    }
    if (connect(fd, (struct sockaddr *)&address, length)) {
        int saved = errno;
        close(fd);
        return -saved;
    }
    return fd;
}

/* ---- Mappings ---- */

static int map_ring(struct rf__ring *ring, int fd, uint64_t offset, uint64_t capacity) {
    size_t bytes = (size_t)(RING_DATA + 2 * capacity);
    int prot = PROT_READ | PROT_WRITE;
    char *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (base == MAP_FAILED) {
        return errno;
    }
    if (mmap(base, (size_t)(RING_DATA + capacity), prot, MAP_SHARED | MAP_FIXED, fd,
             (off_t)offset) == MAP_FAILED ||
        mmap(base + RING_DATA + capacity, (size_t)capacity, prot, MAP_SHARED | MAP_FIXED, fd,
             (off_t)(offset + RING_DATA)) == MAP_FAILED) {
        int saved = errno;
        munmap(base, bytes);
        return saved;
    }
    *ring = (struct rf__ring){.base = base, .capacity = capacity};
    return 0;
}

static void unmap_ring(struct rf__ring *ring) {
    if (ring->base) {
        munmap(ring->base, (size_t)(RING_DATA + 2 * ring->capacity));
    }
    *ring = (struct rf__ring){0};
}

/* A ring for each of `peers` links: one size for all, a power of two, so that many peers share a
 * bounded sum. */
static uint64_t ring_capacity(int peers) {
    uint64_t capacity = RF__RING_MAX;
    while (capacity > RF__RING_MIN && capacity * (uint64_t)peers > RF__RINGS_TOTAL) {
        capacity /= 2;
    }
    return capacity;
}

int rf__shm_open(struct rf__os_net *net, struct rf_error *err) {
    int peers = 0;

    for (int i = 0; i < net->size; i++) {
        peers += net->links[i].kind == RF__LINK_SHM;
    }
    if (net->arena.fd < 0) {
        return 0;
    }
    uint64_t capacity = ring_capacity(peers), each = RING_DATA + capacity;
    net->region_bytes = RF__SHM_HEADER + (uint64_t)peers * each;
    int rc = rf__arena_extend(&net->arena, net->region_bytes, RF__ARENA_ALIGN, &net->region, err);
    if (rc) {
        net->region_bytes = 0;
        return rc;
    }
    net->control = rf__map(net->arena.fd, net->region, RF__SHM_HEADER);
    if (!net->control) {
        return rf__fail(err, RF_ENOMEM, errno, "mapping the board");
    }
    uint64_t offset = net->region + RF__SHM_HEADER;
    for (int i = 0; i < net->size; i++) {
        struct rf__link *link = &net->links[i];
        if (link->kind == RF__LINK_SHM) {
            int error = map_ring(&link->out, net->arena.fd, offset, capacity);
            if (error) {
                return rf__fail(err, RF_ENOMEM, error, "mapping a ring of %llu bytes for worker %d",
                                (unsigned long long)capacity, i);
            }
            link->out_offset = offset;
            offset += each;
        }
    }
    return 0;
}

/* The memory itself is kept until the next close: a peer may still be reading what was written
 * last. */
void rf__shm_close(struct rf__os_net *net) {
    if (net->control) {
        munmap(net->control, RF__SHM_HEADER);
        net->control = NULL;
    }
    if (net->arena.fd >= 0) {
        rf__arena_punch(&net->arena, net->retired, net->retired_bytes);
    }
    net->retired = net->region;
    net->retired_bytes = net->region_bytes;
    net->region_bytes = 0;
}

/* ---- Who holds the own file ---- */

/* Its place in the list, or the list's end. */
static int find_holder(const struct rf__os_net *net, const char *name) {
    int i = 0;

    while (i < net->holder_count && strcmp(net->holders[i], name) != 0) {
        i++;
    }
    return i;
}

static int add_holder(struct rf__os_net *net, const char *name, struct rf_error *err) {
    int at = find_holder(net, name);

    if (at < net->holder_count) {
        return 0;
    }
    void *grown = rf__grow(net->holders, (size_t)at + 1, sizeof *net->holders);
    if (!grown) {
        return rf__fail(err, RF_ENOMEM, 0, "the list of those who share memory");
    }
    net->holders = grown;
    memcpy(net->holders[at], name, strlen(name) + 1);
    net->holder_count++;
    return 0;
}

static void drop_holder(struct rf__os_net *net, const char *name) {
    int at = find_holder(net, name);

    if (at < net->holder_count) {
        memmove(net->holders + at, net->holders + at + 1,
                (size_t)(net->holder_count - at - 1) * sizeof *net->holders);
        net->holder_count--;
    }
}

/* Whether the peer has hung up: that is done by its driver, which at that time writes into nobody's
 * memory and afterwards has no view left of it, or by its end. Takes what is there. */
static bool has_ended(struct rf__conn *conn) {
    char bytes[16];

    while (!conn->over) {
        ssize_t got = recv(conn->source.fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 && errno == EAGAIN) {
            break;
        }
        conn->over = got <= 0;
    }
    return conn->over;
}

void rf__shm_let_go(struct rf__os_net *net, struct rf__conn *conn) {
    if (conn->kind == RF__LINK_SHM && conn->info_sent && has_ended(conn)) {
        drop_holder(net, net->links[conn->peer].endpoint.name);
    }
}

static bool is_member(const struct rf__os_net *net, const char *name) {
    for (int peer = 0; peer < net->size; peer++) {
        if (net->links[peer].kind == RF__LINK_SHM &&
            !strcmp(net->links[peer].endpoint.name, name)) {
            return true;
        }
    }
    return false;
}

int rf__shm_renew(struct rf__os_net *net, struct rf_error *err) {
    int rc = 0, members = 0;

    while (members < net->holder_count && is_member(net, net->holders[members])) {
        members++;
    }
    if (members < net->holder_count) {
        rc = rf__arena_renew(&net->arena, err);
        if (!rc) {
            net->holder_count = 0;
            net->retired_bytes = 0; /* of the file of before */
        }
    }
    return rc;
}

static void forget_peer(struct rf__link *link) {
    unmap_ring(&link->in);
    if (link->control) {
        munmap(link->control, RF__SHM_HEADER);
        link->control = NULL;
    }
    if (link->bell >= 0) {
        close(link->bell);
        link->bell = -1;
    }
    rf__views_destroy(&link->views);
}

void rf__shm_unlink(struct rf__link *link) {
    forget_peer(link);
    unmap_ring(&link->out);
}

/* ---- Introduction ---- */

static int send_info(struct rf__os_net *net, struct rf__conn *conn, struct rf__link *link,
                     struct rf_error *err) {
    unsigned char info[RF__SHM_INFO] = {0};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } ancillary = {0};
    int fds[2] = {net->arena.fd, net->bell.source.fd};
    struct iovec part = {info, sizeof info};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &ancillary,
                             .msg_controllen = sizeof ancillary.room};

    int rc = add_holder(net, link->endpoint.name, err);
    if (rc) {
        return rc;
    }
    struct rf__writer w = rf__writer(info, sizeof info);
    rf__write_bytes(&w, info_magic, sizeof info_magic);
    rf__write_u32(&w, 0);
    rf__write_u64(&w, net->region);
    rf__write_u64(&w, link->out_offset);
    rf__write_u64(&w, link->out.capacity);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(header), fds, sizeof fds);
    ssize_t sent = sendmsg(conn->source.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
        conn->writable = errno == EINTR;
        return 0;
    }
    if (sent != RF__SHM_INFO) {
        return rf__fail(err, RF_ECONNECT, sent < 0 ? errno : 0,
                        "passing shared memory to worker %d", conn->peer);
    }
    conn->info_sent = true;
    return 0;
}

/* Keeps two descriptors, closes whatever else came. */
static void take_fds(struct msghdr *message, int fds[2]) {
    for (struct cmsghdr *h = CMSG_FIRSTHDR(message); h; h = CMSG_NXTHDR(message, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
            int *slot = fds[0] < 0 ? &fds[0] : fds[1] < 0 ? &fds[1] : NULL;
            if (slot) {
                *slot = fd;
            } else {
                close(fd);
            }
        }
    }
}

static int receive_info(struct rf__conn *conn, struct rf_error *err) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } ancillary;
    struct iovec part = {conn->info + conn->info_bytes, RF__SHM_INFO - conn->info_bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &ancillary,
                             .msg_controllen = sizeof ancillary.room};

    ssize_t got = recvmsg(conn->source.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        conn->readable = errno == EINTR;
        return 0;
    }
    if (got <= 0) {
        return rf__fail(err, RF_ECONNECT, got < 0 ? errno : 0,
                        "worker %d ended while it passed its shared memory", conn->peer);
    }
    take_fds(&message, conn->fds);
    conn->info_bytes += (size_t)got;
    if (message.msg_flags & MSG_CTRUNC) {
        return rf__fail(err, RF_ECONNECT, EMFILE, "taking the shared memory of worker %d",
                        conn->peer);
    }
    return 0;
}

static bool inside(uint64_t offset, uint64_t bytes, uint64_t length) {
    return offset % RF__ARENA_ALIGN == 0 && offset <= length && bytes <= length - offset;
}

/* Everything the peer says is held against the length of its sealed file before it is mapped. */
static int map_peer(struct rf__conn *conn, struct rf__link *link, struct rf_error *err) {
    struct rf__reader r = rf__reader(conn->info, sizeof conn->info);
    uint64_t length = 0;

    bool known = !memcmp(rf__read_view(&r, sizeof info_magic), info_magic, sizeof info_magic);
    (void)rf__read_u32(&r);
    uint64_t control = rf__read_u64(&r), ring = rf__read_u64(&r), capacity = rf__read_u64(&r);
    bool power = capacity && (capacity & (capacity - 1)) == 0;
    if (!known || conn->fds[0] < 0 || conn->fds[1] < 0 || !rf__arena_check(conn->fds[0], &length) ||
        !power || capacity < RF__RING_MIN || capacity > RF__RING_MAX ||
        !inside(control, RF__SHM_HEADER, length) || !inside(ring, RING_DATA + capacity, length)) {
        return rf__fail(err, RF_EPROTO, 0, "worker %d passed shared memory that cannot be used",
                        conn->peer);
    }
    link->control = rf__map(conn->fds[0], control, RF__SHM_HEADER);
    int error = link->control ? map_ring(&link->in, conn->fds[0], ring, capacity) : errno;
    if (error) {
        forget_peer(link);
        return rf__fail(err, RF_ENOMEM, error, "mapping the shared memory of worker %d",
                        conn->peer);
    }
    link->views.fd = conn->fds[0];
    link->bell = conn->fds[1];
    conn->fds[0] = conn->fds[1] = -1;
    return 0;
}

int rf__shm_introduce(struct rf__os_net *net, struct rf__conn *conn, struct rf__link *link,
                      struct rf_error *err) {
    int rc = 0;

    if (!conn->info_sent && conn->writable) {
        rc = send_info(net, conn, link, err);
    }
    while (!rc && conn->info_bytes < RF__SHM_INFO && conn->readable) {
        rc = receive_info(conn, err);
    }
    if (rc || !conn->info_sent || conn->info_bytes < RF__SHM_INFO) {
        return rc;
    }
    rc = map_peer(conn, link, err);
    return rc ? rc : 1;
}

/* ---- Bytes ---- */

static int violated(struct rf__os_net *net, struct rf__link *link) {
    struct rf_error why;

    (void)rf__fail(&why, RF_EPROTO, 0, "worker %d wrote nonsense into shared memory",
                   rf__link_rank(net, link));
    link->no_read = link->no_write = true;
    rf__link_ends(net, link, &why);
    rf__link_drained(net, link);
    return RF_ELOST;
}

void rf__shm_notify(struct rf__link *link) {
    struct control *peer = control_of(link->control);
    uint64_t one = 1;

    /* Protocol (1), the writer's side; its partner is the fence of rf__shm_sleep. */
    full_fence();
    if (atomic_load_explicit(&peer->sleeping, memory_order_relaxed) &&
        atomic_exchange_explicit(&peer->sleeping, 0, memory_order_relaxed)) {
        (void)!write(link->bell, &one, sizeof one);
    }
}

void rf__shm_sleep(struct rf__os_net *net, bool sleeping) {
    if (net->control) {
        atomic_store_explicit(&control_of(net->control)->sleeping, sleeping, memory_order_relaxed);
        /* Protocol (1), the sleeper's side; its partner is the fence of rf__shm_notify. */
        full_fence();
    }
}

/* Free bytes of an outbound ring, or -1 where the reader's position cannot be. */
static int64_t free_bytes(struct rf__ring *out) {
    uint64_t used = out->at - out->seen;

    if (used == out->capacity) {
        /* Acquire: the reader is done with the bytes that we now overwrite; partner: publish_tail's
         * release. */
        out->seen = atomic_load_explicit(&header_of(out)->tail, memory_order_acquire);
        used = out->at - out->seen;
    }
    return used > out->capacity ? -1 : (int64_t)(out->capacity - used);
}

static size_t put(struct rf__ring *out, const char *bytes, size_t count, size_t room) {
    size_t n = count < room ? count : room;

    n = n < CHUNK ? n : CHUNK;
    if (n) { /* an empty part may have no address */
        memcpy(out->base + RING_DATA + (out->at & (out->capacity - 1)), bytes, n);
    }
    out->at += n;
    return n;
}

ssize_t rf__shm_write(struct rf__os_net *net, struct rf__link *link, const struct iovec *parts,
                      int count) {
    struct rf__ring *out = &link->out;
    struct ring_header *header = header_of(out);
    size_t total = 0, done = 0;
    bool waited = false;

    for (int i = 0; i < count;) {
        int64_t room = free_bytes(out);
        if (room < 0) {
            return violated(net, link);
        }
        if (!room && waited) {
            break;
        }
        if (!room) {
            /* Protocol (2), the writer's side; its partner is the fence of publish_tail. */
            atomic_store_explicit(&header->waiting, 1, memory_order_relaxed);
            full_fence();
            waited = true;
            continue;
        }
        size_t n =
            put(out, (const char *)parts[i].iov_base + done, parts[i].iov_len - done, (size_t)room);
        total += n;
        done += n;
        /* Release: the bytes before their count; partner: available's acquire. Chunk by chunk, so
         * that the reader starts early. */
        atomic_store_explicit(&header->head, out->at, memory_order_release);
        if (done == parts[i].iov_len) {
            done = 0;
            i++;
        }
    }
    if (total) {
        rf__shm_notify(link);
    }
    return (ssize_t)total;
}

/* Unread bytes of an inbound ring, looking again where fewer than `wanted` are known; -1 where the
 * count cannot be. */
static int64_t available(struct rf__ring *in, size_t wanted) {
    if (in->seen - in->at < wanted) {
        /* Acquire: the bytes that the count covers; partner: rf__shm_write's release. */
        in->seen = atomic_load_explicit(&header_of(in)->head, memory_order_acquire);
    }
    return in->seen - in->at > in->capacity ? -1 : (int64_t)(in->seen - in->at);
}

/* The writer learns of free space by quarters: with less than a quarter withheld a ring never looks
 * full to it when all is read, so it cannot be left waiting. */
static void publish_tail(struct rf__link *link) {
    struct rf__ring *in = &link->in;
    struct ring_header *header = header_of(in);

    if (in->at - in->published < in->capacity / 4) {
        return;
    }
    in->published = in->at;
    /* Release: our reads of the bytes before their release; partner: free_bytes' acquire. */
    atomic_store_explicit(&header->tail, in->at, memory_order_release);
    /* Protocol (2), the reader's side; its partner is the fence of rf__shm_write. */
    full_fence();
    if (atomic_load_explicit(&header->waiting, memory_order_relaxed)) {
        atomic_store_explicit(&header->waiting, 0, memory_order_relaxed);
        rf__shm_notify(link);
    }
}

bool rf__shm_empty(struct rf__link *link) {
    return !link->in.base || available(&link->in, 1) <= 0;
}

ssize_t rf__shm_peek(struct rf__os_net *net, struct rf__link *link, const void **view,
                     size_t bytes) {
    struct rf__ring *in = &link->in;
    int64_t have = link->no_read ? 0 : available(in, bytes ? bytes : 1);

    if (have < 0) {
        return violated(net, link);
    }
    if (!have && (link->no_read || link->no_write)) {
        /* The peer's end was seen after its last byte was published, so nothing can follow. */
        link->no_read = true;
        rf__link_drained(net, link);
        return RF_ELOST;
    }
    *view = in->base + RING_DATA + (in->at & (in->capacity - 1));
    return (ssize_t)((uint64_t)have < bytes ? (size_t)have : bytes);
}

void rf__shm_consume(struct rf__os_net *net, struct rf__link *link, size_t bytes) {
    struct rf__ring *in = &link->in;

    (void)net;
    RF_ASSERT(bytes <= in->seen - in->at);
    in->at += bytes;
    publish_tail(link);
}

ssize_t rf__shm_read(struct rf__os_net *net, struct rf__link *link, void *buffer, size_t bytes) {
    const void *view = NULL;
    ssize_t got = rf__shm_peek(net, link, &view, bytes);

    if (got > 0) {
        memcpy(buffer, view, (size_t)got);
        rf__shm_consume(net, link, (size_t)got);
    }
    return got;
}

/* ---- The end ---- */

void rf__shm_notice(struct rf__os_net *net, struct rf__link *link) {
    char bytes[16];
    bool polite = false;
    struct rf_error why;

    for (;;) {
        ssize_t got = recv(link->conn->source.fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got > 0) {
            polite = polite || memchr(bytes, farewell, (size_t)got);
            continue;
        }
        if (got < 0 && errno == EINTR) {
            continue;
        }
        link->conn->readable = false;
        if (got < 0 && errno == EAGAIN && !polite) {
            return;
        }
        link->conn->over = got == 0 || errno != EAGAIN;
        break;
    }
    int peer = rf__link_rank(net, link);
    (void)rf__fail(&why, RF_ELOST, 0, "worker %d was lost: link %s -> %s: %s", peer,
                   link->conn->local, link->conn->remote,
                   polite ? "closed by peer" : "its process ended");
    link->no_write = true;
    rf__link_ends(net, link, &why);
    if (rf__shm_empty(link)) {
        link->no_read = true;
        rf__link_drained(net, link);
    }
}

void rf__shm_goodbye(struct rf__link *link) {
    (void)!send(link->conn->source.fd, &farewell, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}
