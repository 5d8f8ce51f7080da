/* os/memory: what is free, in trees of files as the kernel has them. */
#include "os/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char root[64];

/* ROOT/PATH with this text, and the folders it is in. */
static void put(const char *path, const char *text) {
    char name[512];
    snprintf(name, sizeof name, "%s%s", root, path);
    for (char *slash = strchr(name + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(name, 0777);
        *slash = '/';
    }
    FILE *out = fopen(name, "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
}

static int setup(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/ringfold-memory-XXXXXX");
    assert_non_null(mkdtemp(root));
    put("/proc/meminfo", "MemTotal:        8000 kB\nMemFree:  100 kB\nMemAvailable:    6000 kB\n");
    return 0;
}

static int teardown(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static void assert_memory(uint64_t available, uint64_t total) {
    struct rf__memory memory = rf__memory_read(root);
    assert_int_equal(memory.available, available);
    assert_int_equal(memory.total, total);
}

static void without_groups_it_is_the_hosts(void **state) {
    (void)state;
    assert_memory(6000 << 10, 8000 << 10);
    put("/proc/self/cgroup", "0::/\n");
    assert_memory(6000 << 10, 8000 << 10);
}

static void the_lowest_limit_above_counts(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/a/b/c\n");
    put("/sys/fs/cgroup/a/b/c/memory.max", "max\n");
    put("/sys/fs/cgroup/a/b/c/memory.current", "1000\n");
    assert_memory(6000 << 10, 8000 << 10);
    put("/sys/fs/cgroup/a/b/memory.max", "4096000\n");
    put("/sys/fs/cgroup/a/b/memory.current", "1096000\n");
    assert_memory(3000000, 4096000);
    put("/sys/fs/cgroup/a/memory.max", "5000000\n");
    put("/sys/fs/cgroup/a/memory.current", "4500000\n");
    assert_memory(500000, 4096000);
    put("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 300000\nactive_file 5\n");
    assert_memory(800000, 4096000);
    put("/sys/fs/cgroup/a/memory.current", "6000000\n"); /* over its limit for a moment */
    put("/sys/fs/cgroup/a/memory.stat", "inactive_file 0\n");
    assert_memory(0, 4096000);
}

static void a_container_sees_its_own_at_the_mount(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/docker/0123456789\n");
    put("/sys/fs/cgroup/memory.max", "3000000\n");
    assert_memory(3000000, 3000000); /* what is used is not told */
    put("/sys/fs/cgroup/memory.current", "2000000\n");
    assert_memory(1000000, 3000000);
}

static void the_first_version_has_other_names(void **state) {
    (void)state;
    put("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n");
    put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2000000\n");
    put("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "1500000\n");
    put("/sys/fs/cgroup/memory/x/memory.stat", "inactive_file 7\ntotal_inactive_file 500000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5000000\n");
    assert_memory(1000000, 2000000);
}

static void what_is_not_there_is_not_known(void **state) {
    (void)state;
    put("/proc/meminfo", "nothing of it\n");
    assert_memory(UINT64_MAX, UINT64_MAX);
    put("/proc/self/cgroup", "no colon\n0:one\n:::\n0::/../..\n");
    assert_memory(UINT64_MAX, UINT64_MAX);
    struct rf__memory here = rf__memory_read("");
    assert_true(here.available > 0 && here.available <= here.total);
}

int main(void) {
#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(without_groups_it_is_the_hosts),        TEST(the_lowest_limit_above_counts),
        TEST(a_container_sees_its_own_at_the_mount), TEST(the_first_version_has_other_names),
        TEST(what_is_not_there_is_not_known),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
