/* The topology of the machine, by hwloc. Loading it takes tens of milliseconds (hwloc looks for its
 * plugins), so a machine with one node, which most are, is not loaded: it has nothing to tell. */
#include "os/topology.h"

#include "base/status.h"
#include "os/endpoint.h"

#include <errno.h>
#include <hwloc.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Where it cannot be read, perhaps. */
static bool has_several_nodes(void) {
    FILE *file = fopen("/sys/devices/system/node/online", "re");
    char line[64] = "";
    bool out = true;

    if (file) {
        out = !fgets(line, sizeof line, file) || strpbrk(line, ",-");
        fclose(file);
    }
    return out;
}

static int load(hwloc_topology_t topology, const char *made_up, struct rf_error *err) {
    bool is_file = made_up && strchr(made_up, '/');
    int rc = 0, failed = 0;

    if (made_up) {
        failed = is_file ? hwloc_topology_set_xml(topology, made_up)
                         : hwloc_topology_set_synthetic(topology, made_up);
    }
    failed = failed || hwloc_topology_load(topology);
    if (failed && is_file) {
        rc = rf__fail(err, RF_EINVAL, errno,
                      "the topology '%.80s' (RINGFOLD_TOPOLOGY) cannot be used: it must be a file "
                      "that 'lstopo --of xml' has written",
                      made_up);
    } else if (failed) {
        rc = rf__fail(err, RF_EINVAL, 0,
                      "the topology '%.80s' (RINGFOLD_TOPOLOGY) cannot be used: it must be one of "
                      "hwloc's synthetic ones, such as 'numa:2 core:4 pu:1', or the path, with a "
                      "'/', of an XML file",
                      made_up ? made_up : "");
    }
    return rc;
}

/* The cores that this thread may run on, by the numbers that the system gives them. */
static hwloc_bitmap_t allowed_cores(void) {
    hwloc_bitmap_t out = hwloc_bitmap_alloc();
    cpu_set_t set;

    if (out && sched_getaffinity(0, sizeof set, &set) == 0) {
        for (unsigned core = 0; core < CPU_SETSIZE; core++) {
            if (CPU_ISSET(core, &set)) {
                (void)hwloc_bitmap_set(out, core);
            }
        }
    }
    return out;
}

/* Memory that has no cores of its own is told to be at those of all that it hangs on. */
static bool has_own_cores(hwloc_topology_t topology, hwloc_obj_t node) {
    hwloc_obj_t other = NULL;
    bool has = !hwloc_bitmap_iszero(node->cpuset);

    while (has && (other = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, other))) {
        has = hwloc_bitmap_iszero(other->cpuset) ||
              hwloc_bitmap_isequal(other->cpuset, node->cpuset) ||
              !hwloc_bitmap_isincluded(other->cpuset, node->cpuset);
    }
    return has;
}

/* Further kinds of memory of the same cores come behind. */
static int find_node(hwloc_topology_t topology) {
    hwloc_bitmap_t cores = allowed_cores();
    hwloc_obj_t node = NULL;
    int out = -1;

    while (cores && !hwloc_bitmap_iszero(cores) && out < 0 &&
           (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node))) {
        if (hwloc_bitmap_isincluded(cores, node->cpuset) && node->os_index < RF__NODES &&
            has_own_cores(topology, node)) {
            out = (int)node->os_index;
        }
    }
    hwloc_bitmap_free(cores);
    return out;
}

int rf__topology_node(const char *made_up, int *node, struct rf_error *err) {
    bool is_made_up = made_up && made_up[0];
    hwloc_topology_t topology;
    int rc = 0;

    *node = -1;
    if ((!is_made_up && !has_several_nodes()) || hwloc_topology_init(&topology)) {
        return 0;
    }
    rc = load(topology, is_made_up ? made_up : NULL, is_made_up ? err : NULL);
    if (rc == 0) {
        *node = find_node(topology);
    }
    hwloc_topology_destroy(topology);
    return is_made_up ? rc : 0;
}
