/* TCP: sockets, and byte streams over them that cost a system call only when the kernel has said
 * that there is something to do. Readiness is edge-triggered, so a flag is cleared when a call came
 * back short and set by the poller.
 *
 * A host that vanished is found in two ways: by the kernel's keep-alive while nothing is in flight,
 * and by looking at what is not acknowledged. TCP_USER_TIMEOUT is not used: it also ends
 * connections whose living peer is slow to read. */
#include "base/mem.h"
#include "base/status.h"
#include "io/clock.h"
#include "os/host.h"
#include "os/net_internal.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

/* UNSENT: of several streams each is given little more than what is on the wire, so that the next
 * bytes go to whichever is free first. */
enum { PARTS = 64, NS_PER_SECOND = 1000000000, UNSENT = 128 << 10 };

static int set_option(int fd, int level, int name, int value) {
    return setsockopt(fd, level, name, &value, sizeof value);
}

static int bound_socket(const struct rf__address *address) {
    struct sockaddr_storage socket_address;
    socklen_t length = rf__address_to_socket(address, &socket_address);
    int family = address->v6 ? AF_INET6 : AF_INET;
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return -errno;
    }
    if ((address->port && set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1)) ||
        (address->v6 && set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0)) ||
        bind(fd, (struct sockaddr *)&socket_address, length) || listen(fd, SOMAXCONN)) {
        int saved = errno;
        close(fd);
        return -saved;
    }
    return fd;
}

static bool is_any(const struct rf__address *address) {
    static const unsigned char zeros[16];
    return !memcmp(address->bytes, zeros, sizeof zeros);
}

int rf__tcp_listen(struct rf__os_net *net, const char *bind_address, int port,
                   struct rf_error *err) {
    struct rf__address address = {.v6 = true};
    bool all = !bind_address || !bind_address[0];
    char text[RF__ADDRESS_TEXT];

    if (!all && !rf__address_parse(bind_address, &address)) {
        return rf__fail(err, RF_EINVAL, 0, "'%.60s' is no address to bind to", bind_address);
    }
    address.port = (uint16_t)port;
    int fd = bound_socket(&address);
    if (fd < 0 && all && (fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL)) {
        address.v6 = false;
        fd = bound_socket(&address);
    }
    if (fd < 0) {
        rf__address_format(&address, text);
        return rf__fail(err, RF_EADDR, -fd, "listening at %s", text);
    }
    net->tcp_listener.source.fd = fd;
    net->is_paced = rf__tcp_unpaced(fd);
    struct sockaddr_storage name = {0};
    socklen_t length = sizeof name;
    if (getsockname(fd, (struct sockaddr *)&name, &length)) {
        return rf__fail(err, RF_EADDR, errno, "asking for the listener's port");
    }
    rf__socket_format(&name, net->tcp_listener.local);
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    memcpy(&v4, &name, sizeof v4);
    memcpy(&v6, &name, sizeof v6);
    address.port = ntohs(name.ss_family == AF_INET6 ? v6.sin6_port : v4.sin_port);
    if (is_any(&address)) {
        int count = rf__host_addresses(net->endpoint.addresses, address.v6, address.port, err);
        net->endpoint.count = count < 0 ? 0 : count;
        return count < 0 ? count : 0;
    }
    net->endpoint.addresses[0] = address;
    net->endpoint.count = 1;
    return 0;
}

int rf__tcp_dial(const struct rf__address *address) {
    struct sockaddr_storage socket_address;
    socklen_t length = rf__address_to_socket(address, &socket_address);
    int family = address->v6 ? AF_INET6 : AF_INET;
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return -errno;
    }
    (void)rf__tcp_unpaced(fd);
    if (connect(fd, (struct sockaddr *)&socket_address, length) && errno != EINPROGRESS) {
        int saved = errno;
        close(fd);
        return -saved;
    }
    return fd;
}

int rf__tcp_accept(int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int rf__tcp_connected(struct rf__conn *conn) {
    struct sockaddr_storage local = {0}, remote = {0};
    socklen_t local_bytes = sizeof local, remote_bytes = sizeof remote, length = sizeof(int);
    int fd = conn->source.fd, error = 0;

    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length)) {
        return errno;
    }
    if (error) {
        return error;
    }
    if (getsockname(fd, (struct sockaddr *)&local, &local_bytes) ||
        getpeername(fd, (struct sockaddr *)&remote, &remote_bytes)) {
        return errno;
    }
    rf__socket_format(&local, conn->local);
    rf__socket_format(&remote, conn->remote);
    /* A connection to a port of this host where nobody listens can, by chance, be made to itself.
     */
    return conn->role == RF__CONN_DIAL && !strcmp(conn->local, conn->remote) ? ECONNREFUSED : 0;
}

void rf__tcp_tune(const struct rf__os_net *net, int fd) {
    int seconds = (int)(net->detect_ns / 3 / NS_PER_SECOND);

    seconds = seconds < 1 ? 1 : seconds;
    /* All of these only make things better: where one is refused the link still works. */
    (void)set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (net->is_paced) {
        rf__tcp_pace_if_far(fd);
    }
    (void)set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    (void)set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
    (void)set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
    (void)set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    if (net->streams > 1) {
        (void)set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT);
    }
}

static void give_reason(const struct rf__conn *conn, int error, struct rf_error *why) {
    (void)rf__fail(why, RF_ELOST, error, "worker %d was lost: link %s -> %s%s", conn->peer,
                   conn->local, conn->remote, error ? "" : ": closed by peer");
}

static int broken(struct rf__os_net *net, struct rf__link *link, struct rf__conn *conn, int error) {
    struct rf_error why;

    if (error || !link->more_count) {
        give_reason(conn, error, &why);
        rf__link_ends(net, link, &why);
    } else {
        rf__stream_ends(net, link);
    }
    return RF_ELOST;
}

void rf__tcp_end_reason(const struct rf__conn *conn, struct rf_error *why) {
    int error = 0;
    socklen_t length = sizeof error;

    (void)getsockopt(conn->source.fd, SOL_SOCKET, SO_ERROR, &error, &length);
    give_reason(conn, error, why);
}

ssize_t rf__tcp_write(struct rf__os_net *net, struct rf__link *link, struct rf__conn *conn,
                      const struct iovec *parts, int count) {
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts,
                             .msg_iovlen = (size_t)(count < PARTS ? count : PARTS)};
    size_t wanted = 0;

    if (!conn->writable) {
        return 0;
    }
    for (size_t i = 0; i < message.msg_iovlen; i++) {
        wanted += parts[i].iov_len;
    }
    ssize_t sent = sendmsg(conn->source.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR && errno != ENOBUFS) {
        conn->no_write = true;
        return broken(net, link, conn, errno);
    }
    if (sent < 0) {
        conn->writable = errno == EINTR;
        return 0;
    }
    conn->writable = (size_t)sent == wanted;
    return sent;
}

static ssize_t from_ahead(struct rf__conn *conn, void *buffer, size_t bytes) {
    size_t have = conn->ahead_bytes - conn->ahead_at, n = have < bytes ? have : bytes;

    memcpy(buffer, conn->ahead + conn->ahead_at, n);
    conn->ahead_at += n;
    return (ssize_t)n;
}

/* Nothing to read now. Of a link that was given up without an end of its stream (its host is cut
 * off) nothing will ever come. */
static ssize_t nothing_more(const struct rf__link *link, struct rf__conn *conn) {
    conn->no_read = conn->no_read || link->state == RF__LINK_OVER;
    return conn->no_read ? RF_ELOST : 0;
}

ssize_t rf__tcp_read(struct rf__os_net *net, struct rf__link *link, struct rf__conn *conn,
                     void *buffer, size_t bytes) {
    if (conn->ahead_at < conn->ahead_bytes) {
        return from_ahead(conn, buffer, bytes);
    }
    if (conn->no_read || !conn->readable) {
        return nothing_more(link, conn);
    }
    if (!bytes) {
        return 0;
    }
    if (!conn->ahead && !(conn->ahead = rf__alloc(1, RF__AHEAD))) {
        return 0; /* tried again with the next call */
    }
    struct iovec parts[2] = {{buffer, bytes}, {conn->ahead, RF__AHEAD}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t got = recvmsg(conn->source.fd, &message, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        conn->readable = errno == EINTR;
        return conn->readable ? 0 : nothing_more(link, conn);
    }
    if (got <= 0) {
        conn->no_read = true;
        (void)broken(net, link, conn, got < 0 ? errno : 0);
        if (!link->more_count) {
            rf__link_drained(net, link);
        }
        return RF_ELOST;
    }
    /* Short: the kernel has no more, and more would be a new edge. But the end of the stream has
     * only one edge. */
    conn->readable = (size_t)got == bytes + RF__AHEAD || conn->hung_up;
    if (link->stream_end_by) {
        rf__stream_ends(net, link);
    }
    conn->ahead_at = 0;
    conn->ahead_bytes = (size_t)got > bytes ? (size_t)got - bytes : 0;
    return (size_t)got > bytes ? (ssize_t)bytes : got;
}

bool rf__tcp_silent(struct rf__os_net *net, const struct rf__conn *conn, struct rf_error *why) {
    struct tcp_info info = {0};
    socklen_t length = sizeof info;

    if (getsockopt(conn->source.fd, IPPROTO_TCP, TCP_INFO, &info, &length)) {
        return false;
    }
    /* A retransmission without answer, or probes of a closed window without answer. A living host
     * acknowledges either. */
    bool asked = (info.tcpi_unacked && info.tcpi_retransmits) || info.tcpi_probes > 3;
    int64_t silence = (int64_t)info.tcpi_last_ack_recv * RF__MS;
    if (!asked || silence < net->detect_ns) {
        return false;
    }
    (void)rf__fail(why, RF_ELOST, 0,
                   "worker %d was lost: link %s -> %s: no acknowledgement for %u ms", conn->peer,
                   conn->local, conn->remote, info.tcpi_last_ack_recv);
    return true;
}
