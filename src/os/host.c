/* Host identity and addresses, from /proc and the interface list. */
#include "os/host.h"

#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static int read_boot_id(char out[37], struct rf_error *err) {
    static const char path[] = "/proc/sys/kernel/random/boot_id";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, out, 36);
    int saved = errno;

    if (fd >= 0) {
        close(fd);
    }
    if (got < 0) {
        return rf__fail(err, RF_EIO, saved, "reading %s", path);
    }
    out[got] = 0;
    for (ssize_t i = 0; i < got; i++) {
        bool hex = (out[i] >= '0' && out[i] <= '9') || (out[i] >= 'a' && out[i] <= 'f');
        if (!hex && out[i] != '-') {
            return rf__fail(err, RF_EIO, 0, "%s holds something else than an id", path);
        }
    }
    return got ? 0 : rf__fail(err, RF_EIO, 0, "%s is empty", path);
}

int rf__host_identity(char out[RF__HOST_MAX], struct rf_error *err) {
    char boot[37];
    struct stat netns;
    int rc = read_boot_id(boot, err);

    if (rc) {
        return rc;
    }
    if (stat("/proc/self/ns/net", &netns)) {
        return rf__fail(err, RF_EIO, errno, "looking at /proc/self/ns/net");
    }
    snprintf(out, RF__HOST_MAX, "%s/%llu/%lu", boot, (unsigned long long)netns.st_ino,
             (unsigned long)getuid());
    return 0;
}

/* Whether peers elsewhere can use the address as it stands: link-local ones need an interface that
 * only this host knows. */
static bool usable(const struct sockaddr *address, struct rf__address *out) {
    *out = (struct rf__address){0};
    if (address->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, address, sizeof v4);
        memcpy(out->bytes, &v4.sin_addr, 4);
        return !(out->bytes[0] == 169 && out->bytes[1] == 254);
    }
    if (address->sa_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, address, sizeof v6);
        out->v6 = true;
        memcpy(out->bytes, &v6.sin6_addr, 16);
        return !(out->bytes[0] == 0xfe && (out->bytes[1] & 0xc0) == 0x80);
    }
    return false;
}

int rf__host_addresses(struct rf__address out[], bool v6, uint16_t port, struct rf_error *err) {
    struct ifaddrs *list = NULL;
    int count = 0;

    if (getifaddrs(&list)) {
        return rf__fail(err, RF_EADDR, errno, "listing the network interfaces");
    }
    for (int pass = 0; pass < (v6 ? 2 : 1); pass++) {
        for (struct ifaddrs *i = list; i && count < RF__CANDIDATES; i = i->ifa_next) {
            struct rf__address address;
            if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || !usable(i->ifa_addr, &address) ||
                address.v6 != (pass == 1)) {
                continue;
            }
            address.port = port;
            out[count++] = address;
        }
    }
    freeifaddrs(list);
    return count;
}

int rf__host_random(void *out, size_t bytes, struct rf_error *err) {
    size_t got = 0;

    while (got < bytes) {
        ssize_t n = getrandom((char *)out + got, bytes - got, 0);
        if (n < 0 && errno != EINTR) {
            return rf__fail(err, RF_EIO, errno, "asking the kernel for random bytes");
        }
        got += n > 0 ? (size_t)n : 0;
    }
    return 0;
}
