/* The addresses a store's server listens on: one port on all of them, and a report that names who
 * holds a port that is taken. */
#include "base/status.h"
#include "os/holder.h"
#include "os/store_server_internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BIND_TRIES = 16 };

static int listen_failed(const struct rf__address *address, int sys_errno, struct rf_error *err) {
    char text[RF__ADDRESS_TEXT], holder[96];
    int port = rf__address_port(address);

    rf__address_text(address, text);
    (void)rf__fail(err, RF_EADDR, sys_errno, "cannot listen on %s", text);
    if (err) {
        rf__detail(err->where, "%s", text);
        if (sys_errno == EADDRINUSE && rf__port_holder(port, holder, sizeof holder)) {
            rf__detail(err->why, "certain: %s listens on port %d", holder, port);
        }
    }
    return RF_EADDR;
}

/* An errno, or 0 and the descriptor. */
static int listen_on(const struct rf__address *address, bool alone, int *out) {
    int yes = 1, only = !alone, failed = 0;
    int fd = socket(address->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return errno;
    }
    failed = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) ? errno : 0;
    if (!failed && address->at.ss_family == AF_INET6) {
        failed = setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only) ? errno : 0;
    }
    if (!failed && bind(fd, (const struct sockaddr *)&address->at, address->bytes)) {
        failed = errno;
    }
    failed = !failed && listen(fd, SOMAXCONN) ? errno : failed;
    if (failed) {
        close(fd);
        return failed;
    }
    *out = fd;
    return 0;
}

static int bound_port(int fd) {
    struct rf__address address = {.bytes = sizeof address.at};
    return getsockname(fd, (struct sockaddr *)&address.at, &address.bytes)
               ? 0
               : rf__address_port(&address);
}

void rf__server_stop_listening(struct rf__store_server *server) {
    while (server->listener_count > 0) {
        close(server->listeners[--server->listener_count]);
    }
}

/* Listens on all addresses with one port; an errno and the address, or 0. */
static int listen_on_all(struct rf__store_server *server, struct rf__address *addresses, int count,
                         const struct rf__address **bad) {
    int missing = 0;

    server->port = rf__address_port(&addresses[0]);
    for (int i = 0; i < count; i++) {
        struct rf__address address = addresses[i];
        rf__address_set_port(&address, server->port);
        int *fd = &server->listeners[server->listener_count];
        int failed = listen_on(&address, count == 1, fd);
        if (failed == EAFNOSUPPORT || failed == EADDRNOTAVAIL) {
            missing = failed; /* the host has only the other kind of address */
            *bad = &addresses[i];
            continue;
        }
        if (failed) {
            *bad = &addresses[i];
            return failed;
        }
        server->listener_count++;
        server->port = server->port ? server->port : bound_port(*fd);
    }
    return server->listener_count ? 0 : missing;
}

int rf__server_listen(struct rf__store_server *server, const char *bind_to, struct rf_error *err) {
    struct rf__address addresses[RF__ADDRESSES];
    const struct rf__address *bad = NULL;
    int count, failed = 0;

    int rc = rf__address_resolve(bind_to, 1, addresses, &count, err);
    if (rc) {
        return rc;
    }
    bool any_port = rf__address_port(&addresses[0]) == 0;
    for (int i = 0; i < (any_port ? BIND_TRIES : 1); i++) {
        failed = listen_on_all(server, addresses, count, &bad);
        if (failed != EADDRINUSE) {
            break;
        }
        if (i + 1 < BIND_TRIES && any_port) {
            rf__server_stop_listening(server);
        }
    }
    return failed ? listen_failed(bad, failed, err) : 0;
}

int rf__server_watch_listeners(struct rf__store_server *server, bool on) {
    if (server->listening == on) {
        return 0;
    }
    for (int i = 0; i < server->listener_count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
        if (epoll_ctl(server->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, server->listeners[i],
                      &event)) {
            return errno;
        }
    }
    server->listening = on;
    return 0;
}
