/* Addresses as people write them: "HOST:PORT", "[V6]:PORT", ":PORT", "tcp://HOST:PORT". */
#ifndef RF_OS_ADDRESS_H
#define RF_OS_ADDRESS_H

#include <ringfold/error.h>
#include <stddef.h>
#include <sys/socket.h>

enum { RF__ADDRESSES = 8, RF__ADDRESS_TEXT = 64 };

struct rf__address {
    struct sockaddr_storage at;
    socklen_t bytes;
};

/* Splits "HOST:PORT" (a "tcp://" in front is skipped) and resolves it. `passive`: to listen on; an
 * empty host is then every interface, else this host. Blocks while names are resolved. RF_EINVAL
 * for a malformed text, RF_EADDR for a name that cannot be resolved. */
int rf__address_resolve(const char *text, int passive, struct rf__address out[RF__ADDRESSES],
                        int *count, struct rf_error *err);

void rf__address_text(const struct rf__address *address, char out[RF__ADDRESS_TEXT]);
int rf__address_port(const struct rf__address *address);
void rf__address_set_port(struct rf__address *address, int port);

#endif
