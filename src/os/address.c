/* getaddrinfo and getnameinfo behind os/address.h. */
#include "os/address.h"

#include "base/status.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int split(const char *text, char *host, size_t host_bytes, char *port, size_t port_bytes) {
    static const char scheme[] = "tcp://";
    if (strncmp(text, scheme, sizeof scheme - 1) == 0) {
        text += sizeof scheme - 1;
    }
    const char *colon = strrchr(text, ':');
    if (!colon) {
        return RF_EINVAL;
    }
    const char *from = text, *to = colon;
    if (*from == '[') {
        from++;
        to--;
        if (to < from || *to != ']') {
            return RF_EINVAL;
        }
    } else if (memchr(from, ':', (size_t)(to - from))) {
        return RF_EINVAL; /* IPv6 without brackets: which colon is the port's? */
    }
    size_t digits = strspn(colon + 1, "0123456789");
    if ((size_t)(to - from) >= host_bytes || !digits || digits > 5 || colon[1 + digits] ||
        digits >= port_bytes || atoi(colon + 1) > 65535) {
        return RF_EINVAL;
    }
    memcpy(host, from, (size_t)(to - from));
    host[to - from] = 0;
    memcpy(port, colon + 1, digits + 1);
    return 0;
}

int rf__address_resolve(const char *text, int passive, struct rf__address out[RF__ADDRESSES],
                        int *count, struct rf_error *err) {
    char host[256], port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0)};
    struct addrinfo *list = NULL;

    *count = 0;
    if (split(text, host, sizeof host, port, sizeof port)) {
        return rf__fail(err, RF_EINVAL, 0, "'%s' is not an address: HOST:PORT or [V6]:PORT", text);
    }
    int failed = getaddrinfo(host[0] ? host : NULL, port, &hints, &list);
    if (failed) {
        return rf__fail(err, RF_EADDR, 0, "host '%s' of '%s' cannot be resolved: %s", host, text,
                        gai_strerror(failed));
    }
    for (const struct addrinfo *entry = list; entry && *count < RF__ADDRESSES;
         entry = entry->ai_next) {
        if (entry->ai_addrlen <= sizeof out->at) {
            memcpy(&out[*count].at, entry->ai_addr, entry->ai_addrlen);
            out[*count].bytes = entry->ai_addrlen;
            ++*count;
        }
    }
    freeaddrinfo(list);
    return *count ? 0 : rf__fail(err, RF_EADDR, 0, "host '%s' has no address", host);
}

void rf__address_text(const struct rf__address *address, char out[RF__ADDRESS_TEXT]) {
    char host[48], port[8];
    bool v6 = address->at.ss_family == AF_INET6;

    if (getnameinfo((const struct sockaddr *)&address->at, address->bytes, host, sizeof host, port,
                    sizeof port, NI_NUMERICHOST | NI_NUMERICSERV)) {
        snprintf(out, RF__ADDRESS_TEXT, "?");
        return;
    }
    if (v6) {
        snprintf(out, RF__ADDRESS_TEXT, "[%s]:%s", host, port);
    } else {
        snprintf(out, RF__ADDRESS_TEXT, "%s:%s", host, port);
    }
}

int rf__address_port(const struct rf__address *address) {
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (address->at.ss_family == AF_INET6) {
        memcpy(&v6, &address->at, sizeof v6);
        return ntohs(v6.sin6_port);
    }
    memcpy(&v4, &address->at, sizeof v4);
    return ntohs(v4.sin_port);
}

void rf__address_set_port(struct rf__address *address, int port) {
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (address->at.ss_family == AF_INET6) {
        memcpy(&v6, &address->at, sizeof v6);
        v6.sin6_port = htons((uint16_t)port);
        memcpy(&address->at, &v6, sizeof v6);
    } else {
        memcpy(&v4, &address->at, sizeof v4);
        v4.sin_port = htons((uint16_t)port);
        memcpy(&address->at, &v4, sizeof v4);
    }
}
