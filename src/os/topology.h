/* Where on the machine this process is. */
#ifndef RF_OS_TOPOLOGY_H
#define RF_OS_TOPOLOGY_H

#include <ringfold/error.h>

/* The number of the NUMA node in which all cores are that the calling thread may run on; -1 where
 * they are in several, where the machine has one only, or where that cannot be found out, which is
 * no error. `made_up`: a machine for tests, instead of this one, as a synthetic topology of hwloc's
 * or, with a '/' in it, the path of an XML file; NULL or "": this machine. RF_EINVAL where that
 * cannot be read. */
int rf__topology_node(const char *made_up, int *node, struct rf_error *err);

#endif
