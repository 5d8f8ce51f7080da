/* Endpoint texts. They come from the store, so from outside: every length is held against its
 * limit, every character against its set, and nothing is guessed. No I/O here. */
#include "os/endpoint.h"

#include "base/status.h"
#include "io/net.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

bool rf__address_parse(const char *text, struct rf__address *out) {
    *out = (struct rf__address){0};
    if (inet_pton(AF_INET, text, out->bytes) == 1) {
        return true;
    }
    out->v6 = true;
    return inet_pton(AF_INET6, text, out->bytes) == 1;
}

bool rf__address_is_loopback(const struct rf__address *address) {
    static const unsigned char v6_loopback[16] = {[15] = 1};
    return address->v6 ? !memcmp(address->bytes, v6_loopback, 16) : address->bytes[0] == 127;
}

socklen_t rf__address_to_socket(const struct rf__address *address, struct sockaddr_storage *out) {
    memset(out, 0, sizeof *out);
    if (address->v6) {
        struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(address->port)};
        memcpy(&v6.sin6_addr, address->bytes, 16);
        memcpy(out, &v6, sizeof v6);
        return sizeof v6;
    }
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(address->port)};
    memcpy(&v4.sin_addr, address->bytes, 4);
    memcpy(out, &v4, sizeof v4);
    return sizeof v4;
}

void rf__address_format(const struct rf__address *address, char out[RF__ADDRESS_TEXT]) {
    char text[INET6_ADDRSTRLEN] = "?";
    inet_ntop(address->v6 ? AF_INET6 : AF_INET, address->bytes, text, sizeof text);
    snprintf(out, RF__ADDRESS_TEXT, address->v6 ? "[%s]:%u" : "%s:%u", text,
             (unsigned)address->port);
}

void rf__socket_format(const struct sockaddr_storage *address, char out[RF__ADDRESS_TEXT]) {
    static const unsigned char v4_mapped[12] = {[10] = 0xff, [11] = 0xff};
    struct rf__address a = {0};

    if (address->ss_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, address, sizeof v4);
        memcpy(a.bytes, &v4.sin_addr, 4);
        a.port = ntohs(v4.sin_port);
    } else if (address->ss_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, address, sizeof v6);
        a.port = ntohs(v6.sin6_port);
        a.v6 = memcmp(&v6.sin6_addr, v4_mapped, sizeof v4_mapped) != 0;
        memcpy(a.bytes, (const char *)&v6.sin6_addr + (a.v6 ? 0 : 12), a.v6 ? 16 : 4);
    } else {
        snprintf(out, RF__ADDRESS_TEXT, "unix");
        return;
    }
    rf__address_format(&a, out);
}

int rf__endpoint_format(const struct rf__endpoint *endpoint, char *out, size_t bytes,
                        struct rf_error *err) {
    char list[RF__CANDIDATES * RF__ADDRESS_TEXT] = "", node[32] = "";
    size_t used = 0;

    if (endpoint->node >= 0) {
        snprintf(node, sizeof node, " node=%d", endpoint->node);
    }
    for (int i = 0; i < endpoint->count; i++) {
        char text[RF__ADDRESS_TEXT];
        rf__address_format(&endpoint->addresses[i], text);
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? "," : "", text);
    }
    int length = snprintf(out, bytes, "rf1 host=%s unix=%s tcp=%s%s", endpoint->host,
                          endpoint->name[0] ? endpoint->name : "-", used ? list : "-", node);
    if (length < 0 || (size_t)length >= bytes) {
        return rf__fail(err, RF_ELIMIT, 0, "the endpoint text needs %d bytes, and there are %zu",
                        length + 1, bytes);
    }
    return 0;
}

/* Takes `prefix` and then what stands before the next space (or the end) into out, if it is made of
 * letters, digits and the characters of `more`, and fits. */
static bool take_field(const char **at, const char *prefix, const char *more, char *out,
                       size_t room) {
    size_t skip = strlen(prefix), length = 0;

    if (strncmp(*at, prefix, skip) != 0) {
        return false;
    }
    const char *from = *at + skip;
    while (from[length] && from[length] != ' ') {
        char c = from[length];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if ((!plain && !strchr(more, c)) || length + 1 >= room) {
            return false;
        }
        out[length++] = c;
    }
    out[length] = 0;
    *at = from + length;
    return length > 0;
}

static bool parse_port(const char *text, uint16_t *out) {
    unsigned value = 0;
    size_t length = 0;

    for (; text[length]; length++) {
        if (text[length] < '0' || text[length] > '9' || length == 5) {
            return false;
        }
        value = value * 10 + (unsigned)(text[length] - '0');
    }
    *out = (uint16_t)value;
    return length > 0 && text[0] != '0' && value <= 65535;
}

/* One "ADDRESS:PORT" or "[ADDRESS]:PORT". Writes into `text`. */
static bool parse_candidate(char *text, struct rf__address *out) {
    bool v6 = text[0] == '[';
    char *host = text + (v6 ? 1 : 0), *colon = strrchr(text, ':');
    uint16_t port;

    if (!colon || colon == text || (v6 && colon[-1] != ']') || !parse_port(colon + 1, &port)) {
        return false;
    }
    *(v6 ? colon - 1 : colon) = 0;
    if (!rf__address_parse(host, out) || out->v6 != v6) {
        return false;
    }
    out->port = port;
    return true;
}

static bool parse_candidates(char *list, struct rf__endpoint *out) {
    char *at = list;

    if (!strcmp(list, "-")) {
        return true;
    }
    while (at) {
        char *comma = strchr(at, ',');
        if (comma) {
            *comma = 0;
        }
        if (out->count == RF__CANDIDATES || !parse_candidate(at, &out->addresses[out->count])) {
            return false;
        }
        out->count++;
        at = comma ? comma + 1 : NULL;
    }
    return true;
}

/* " node=N", or nothing. */
static bool take_node(const char **at, int *out) {
    char digits[6];
    int node = 0;

    *out = -1;
    if (!**at) {
        return true;
    }
    if (!take_field(at, " node=", "", digits, sizeof digits) ||
        strspn(digits, "0123456789") != strlen(digits) || (digits[0] == '0' && digits[1])) {
        return false;
    }
    for (const char *digit = digits; *digit; digit++) {
        node = node * 10 + (*digit - '0');
    }
    *out = node;
    return node < RF__NODES;
}

int rf__endpoint_parse(const char *text, struct rf__endpoint *out, struct rf_error *err) {
    char list[RF__CANDIDATES * RF__ADDRESS_TEXT];
    const char *at = text;

    *out = (struct rf__endpoint){0};
    if (strnlen(text, RF__ENDPOINT_MAX) == RF__ENDPOINT_MAX) {
        return rf__fail(err, RF_EPROTO, 0, "an endpoint text is longer than %d bytes",
                        RF__ENDPOINT_MAX - 1);
    }
    if (!take_field(&at, "rf1 host=", "-/", out->host, sizeof out->host) ||
        !take_field(&at, " unix=", "-", out->name, sizeof out->name) ||
        !take_field(&at, " tcp=", "-.:,[]", list, sizeof list) || !take_node(&at, &out->node) ||
        *at || !parse_candidates(list, out)) {
        *out = (struct rf__endpoint){0};
        return rf__fail(err, RF_EPROTO, 0, "'%.60s' is no endpoint text of this version", text);
    }
    if (!strcmp(out->name, "-")) {
        out->name[0] = 0;
    }
    if (!out->name[0] && !out->count) {
        *out = (struct rf__endpoint){0};
        return rf__fail(err, RF_EPROTO, 0, "'%.60s' names no address", text);
    }
    return 0;
}
