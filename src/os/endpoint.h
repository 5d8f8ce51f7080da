/* What a worker publishes so that its peers find it, and the strict reading of what they published:
 *
 *     rf1 host=BOOT/NETNS/UID unix=NAME tcp=ADDRESS:PORT,[ADDRESS]:PORT node=NUMBER
 *
 * NAME is that of an abstract unix socket; "-" stands for "none" in either list. The NUMA node is
 * left out where there is none to tell. */
#ifndef RF_OS_ENDPOINT_H
#define RF_OS_ENDPOINT_H

#include <netinet/in.h>
#include <ringfold/error.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum { RF__NODES = 65536 }; /* numbers of nodes are below */
enum { RF__CANDIDATES = 16, RF__HOST_MAX = 96, RF__UNIX_MAX = 48, RF__ADDRESS_TEXT = 64 };

struct rf__address {
    bool v6;
    unsigned char bytes[16]; /* network order; IPv4: the first four */
    uint16_t port;
};

struct rf__endpoint {
    char host[RF__HOST_MAX];
    char name[RF__UNIX_MAX]; /* empty: no shared memory */
    struct rf__address addresses[RF__CANDIDATES];
    int count;
    int node; /* -1: none */
};

/* RF_ELIMIT where it does not fit. */
int rf__endpoint_format(const struct rf__endpoint *endpoint, char *out, size_t bytes,
                        struct rf_error *err);

/* RF_EPROTO, with the reason, for anything but what format writes. */
int rf__endpoint_parse(const char *text, struct rf__endpoint *out, struct rf_error *err);

/* An address without port, "192.0.2.1" or "2001:db8::1"; false where it is none. */
bool rf__address_parse(const char *text, struct rf__address *out);
bool rf__address_is_loopback(const struct rf__address *address);
void rf__address_format(const struct rf__address *address, char out[RF__ADDRESS_TEXT]);
socklen_t rf__address_to_socket(const struct rf__address *address, struct sockaddr_storage *out);

/* Any socket's address as text: "192.0.2.1:80", "[::1]:80", "unix". IPv4 in IPv6 is shown as IPv4.
 */
void rf__socket_format(const struct sockaddr_storage *address, char out[RF__ADDRESS_TEXT]);

#endif
