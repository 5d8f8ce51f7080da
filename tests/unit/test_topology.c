/* os/topology.c: the NUMA node of this process on made-up machines, as text and as files; what can
 * be no machine; and this one. */
#include "os/topology.h"

#include <ringfold/error.h>

#include <hwloc.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static cpu_set_t before;

static int bind_to_one(void **state) {
    cpu_set_t one;
    int core = 0;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    while (!CPU_ISSET(core, &before)) {
        core++;
    }
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    return sched_setaffinity(0, sizeof one, &one);
}

static int unbind(void **state) {
    (void)state;
    return sched_setaffinity(0, sizeof before, &before);
}

static int core_of(const cpu_set_t *set, int skip) {
    int core = 0;
    while (!CPU_ISSET(core, set) || skip--) {
        core++;
    }
    return core;
}

static int node_on(const char *made_up) {
    struct rf_error err = {0};
    int node = -2;
    if (rf__topology_node(made_up, &node, &err)) {
        fail_msg("%s", err.text);
    }
    return node;
}

static void nodes_are_found(void **state) {
    char text[200];
    int core = core_of(&before, 0);
    (void)state;
    snprintf(text, sizeof text, "numa:2 pu:%d", core + 1);
    assert_int_equal(node_on(text), 0);
    snprintf(text, sizeof text, "numa:3(indexes=7,1,2) core:%d pu:1", core + 1);
    assert_int_equal(node_on(text), 7);
    snprintf(text, sizeof text, "numa:%d pu:1", core + 2);
    assert_int_equal(node_on(text), core);
    snprintf(text, sizeof text, "pack:2 [numa] l3:1 core:%d pu:1", core + 1);
    assert_int_equal(node_on(text), 0);
    snprintf(text, sizeof text, "numa:1 pu:%d", core + 1);
    assert_int_equal(node_on(text), 0);
}

/* Of a machine that is smaller than this one; or cores in several nodes. */
static void some_are_in_none(void **state) {
    char text[200];
    (void)state;
    if (core_of(&before, 0) > 0) {
        assert_int_equal(node_on("numa:1 pu:1"), -1);
    }
    assert_int_equal(unbind(NULL), 0);
    if (CPU_COUNT(&before) > 1) {
        int second = core_of(&before, 1);
        snprintf(text, sizeof text, "numa:%d pu:1", second + 1);
        assert_int_equal(node_on(text), -1);
        assert_int_equal(node_on("numa:2 pu:1"), -1);
        snprintf(text, sizeof text, "[numa] pack:%d [numa] pu:1", second + 1); /* all's memory */
        assert_int_equal(node_on(text), -1);
    }
    assert_int_equal(bind_to_one(NULL), 0);
}

static void a_file_is_as_good(void **state) {
    char path[] = "/tmp/ringfold-topology-XXXXXX", text[64];
    hwloc_topology_t topology;
    struct rf_error err;
    int fd = mkstemp(path), node = -2;
    (void)state;
    assert_true(fd >= 0);
    snprintf(text, sizeof text, "numa:2(indexes=5,6) pu:%d", core_of(&before, 0) + 1);
    assert_int_equal(hwloc_topology_init(&topology), 0);
    assert_int_equal(hwloc_topology_set_synthetic(topology, text), 0);
    assert_int_equal(hwloc_topology_load(topology), 0);
    assert_int_equal(hwloc_topology_export_xml(topology, path, 0), 0);
    hwloc_topology_destroy(topology);
    assert_int_equal(node_on(path), 5);

    assert_int_equal(ftruncate(fd, 100), 0); /* cut off */
    assert_int_equal(rf__topology_node(path, &node, &err), RF_EINVAL);
    assert_int_equal(node, -1);
    assert_non_null(strstr(err.text, path));
    close(fd);
    unlink(path);
}

static void what_is_no_machine_is_refused(void **state) {
    static const char *const bad[] = {"nonsense", "numa:0", "numa:2 pu", "2 nodes",
                                      "/no/such/file.xml"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct rf_error err = {0};
        int node = -2;
        if (rf__topology_node(bad[i], &node, &err) != RF_EINVAL) {
            fail_msg("'%s' was taken", bad[i]);
        }
        assert_int_equal(node, -1);
        assert_non_null(strstr(err.text, bad[i]));
        assert_non_null(strstr(err.text, "RINGFOLD_TOPOLOGY"));
    }
}

/* Whatever it is, that is no error, and no number that makes no sense. */
static void this_machine_is_fine(void **state) {
    (void)state;
    assert_in_range(node_on(NULL) + 1, 0, 65536);
    assert_int_equal(node_on(""), node_on(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_found),      cmocka_unit_test(some_are_in_none),
        cmocka_unit_test(a_file_is_as_good),    cmocka_unit_test(what_is_no_machine_is_refused),
        cmocka_unit_test(this_machine_is_fine),
    };
    return cmocka_run_group_tests(tests, bind_to_one, unbind);
}
