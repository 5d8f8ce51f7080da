/* Which congestion control a connection gets. Apart from tcp.c because the kernel's own header,
 * which alone has the least round trip, and the C library's define the same names.
 *
 * BBR paces, and keeps no more in flight than the way is thought to hold: within a host 3.6 GB/s in
 * each direction became 1.4; and between hosts on one switch, where a connection of a direct
 * exchange works in its turn only, 16 MiB among 8 hosts took 1.1 times as long. So near peers get
 * "reno", which does neither, is always there, and over so short a way makes up for a loss at once.
 * Who is near is known once connected; but a connection that was ever paced stays so, hence each
 * begins with reno and far ones go back. Whatever else the host is set to stays. */
#include "os/net_internal.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

enum { NEAR_US = 1000, NAME_BYTES = 16 /* the kernel's TCP_CA_NAME_MAX */ };

static const char paced[] = "bbr", plain[] = "reno";

bool rf__tcp_unpaced(int fd) {
    char control[NAME_BYTES + 1] = "";
    socklen_t bytes = NAME_BYTES;

    return !getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, &bytes) &&
           !strcmp(control, paced) &&
           !setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, plain, strlen(plain));
}

void rf__tcp_pace_if_far(int fd) {
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;

    if (!getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) && info.tcpi_min_rtt > NEAR_US) {
        /* Where it is refused the link still works. */
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, paced, strlen(paced));
    }
}
