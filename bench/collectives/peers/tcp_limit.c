/* What plain sockets exchange on loopback, timed as measure.h says: two processes, one connection,
 * each way the bytes that an allreduce of two ranks sends, both ways at once. Nothing is folded,
 * and nothing depends on what arrives: a reference, not a bound; who polls before sleeping can be
 * ahead of it at small sizes.
 *
 * Usage: tcp_limit MIN MAX FACTOR */
#include "measure.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_AT_ONCE = 1 << 20 };

static int connection;
static float *arriving; /* the measured buffer is what goes out */

/* Bytes moved by one call of send or recv; 0 where it would have to wait. */
static size_t moved(ssize_t n) {
    if (n > 0) {
        return (size_t)n;
    }
    if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
        measure_fail("the other process closed its socket");
    }
    return 0;
}

static size_t part(size_t left) {
    return left < MOST_AT_ONCE ? left : MOST_AT_ONCE;
}

static void exchange(const void *out, void *in, size_t bytes) {
    size_t sent = 0, received = 0;
    while (sent < bytes || received < bytes) {
        size_t before = sent + received;
        if (sent < bytes) {
            sent += moved(send(connection, (const char *)out + sent, part(bytes - sent),
                               MSG_DONTWAIT | MSG_NOSIGNAL));
        }
        if (received < bytes) {
            received += moved(
                recv(connection, (char *)in + received, part(bytes - received), MSG_DONTWAIT));
        }
        if (sent + received == before) {
            struct pollfd wait = {
                .fd = connection,
                .events = (short)((sent < bytes ? POLLOUT : 0) | (received < bytes ? POLLIN : 0))};
            poll(&wait, 1, -1);
        }
    }
}

static void barrier(struct measure *m) {
    char mine = 0, theirs;
    (void)m;
    exchange(&mine, &theirs, 1);
}

static void largest(struct measure *m, double *values, int count) {
    size_t bytes = (size_t)count * sizeof *values;
    double *theirs = (double *)(void *)measure_memory(bytes);
    (void)m;
    exchange(values, theirs, bytes);
    for (int i = 0; i < count; i++) {
        values[i] = theirs[i] > values[i] ? theirs[i] : values[i];
    }
    free(theirs);
}

/* The written buffer goes out. Nothing is folded, so that no result can be checked. */
static void call(struct measure *m, size_t count) {
    exchange(m->memory, arriving, count * sizeof(float));
}

static int listen_on_loopback(struct sockaddr_in *address) {
    socklen_t length = sizeof *address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    if (listener < 0 || bind(listener, (struct sockaddr *)address, sizeof *address) ||
        listen(listener, 1) || getsockname(listener, (struct sockaddr *)address, &length)) {
        measure_fail("no socket on 127.0.0.1");
    }
    return listener;
}

int main(int argc, char **argv) {
    struct measure m = {
        .size = 2, .unchecked = 1, .barrier = barrier, .call = call, .largest = largest};
    struct sockaddr_in address;
    int one = 1;

    if (argc != 4) {
        measure_fail("usage: tcp_limit MIN MAX FACTOR");
    }
    measure_parse(&m, "allreduce", argv[1], argv[2], argv[3]);
    int listener = listen_on_loopback(&address);
    pid_t child = fork();
    if (child < 0) {
        measure_fail("no second process could be started");
    } else if (child == 0) {
        m.rank = 1;
        connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(connection, (struct sockaddr *)&address, sizeof address)) {
            measure_fail("no connection on 127.0.0.1");
        }
    } else {
        connection = accept(listener, NULL, NULL);
        if (connection < 0) {
            measure_fail("no connection on 127.0.0.1");
        }
    }
    close(listener);
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    measure_open(&m);
    arriving = measure_memory(m.max_bytes);
    measure_all(&m);
    free(arriving);
    measure_close(&m);
    if (child) {
        waitpid(child, NULL, 0);
    }
    return EXIT_SUCCESS;
}
