/* See plant.h. */
#include "sim.h"

#include "member/decide.h"

#include <string.h>

static enum sim_plant planted;

void sim_plant_set(enum sim_plant plant) {
    planted = plant;
}

/* The library's own functions, and those that stand before them. */
enum rf__verdict __real_rf__decide(const struct rf__facts *facts, struct rf__generation *next);
enum rf__verdict __wrap_rf__decide(const struct rf__facts *facts, struct rf__generation *next);
size_t __real_rf__report_encode(const struct rf__report *report, unsigned char *out, size_t room);
size_t __wrap_rf__report_encode(const struct rf__report *report, unsigned char *out, size_t room);
int __real_rf__generation_find(const struct rf__generation *generation, int id, uint64_t nonce);
int __wrap_rf__generation_find(const struct rf__generation *generation, int id, uint64_t nonce);
bool __real_rf__kv_change(struct rf__kv *kv, uint64_t client, const struct rf__kv_request *request,
                          int64_t now, struct rf__kv_result *result);
bool __wrap_rf__kv_change(struct rf__kv *kv, uint64_t client, const struct rf__kv_request *request,
                          int64_t now, struct rf__kv_result *result);

/* The history without the unit that was decided upon. */
static void take_back(const struct rf__facts *facts, struct rf__generation *next) {
    for (int rank = 0; rank < facts->current->count; rank++) {
        const struct rf__report *report = facts->reports[rank];
        if (report && report->progress.healed && report->progress.units + 1 == next->units) {
            next->commit = false;
            next->units--;
            next->chain = report->progress.chain;
            return;
        }
    }
}

enum rf__verdict __wrap_rf__decide(const struct rf__facts *facts, struct rf__generation *next) {
    enum rf__verdict verdict = __real_rf__decide(facts, next);

    if (planted == SIM_PLANT_retry && next->commit) {
        take_back(facts, next);
    }
    if (planted == SIM_PLANT_whole) {
        for (int rank = 0; rank < next->count; rank++) {
            next->members[rank].healed = true;
        }
    }
    return verdict;
}

size_t __wrap_rf__report_encode(const struct rf__report *report, unsigned char *out, size_t room) {
    struct rf__report changed = *report;

    if (planted == SIM_PLANT_forget) {
        changed.progress.prepared = false;
    }
    return __real_rf__report_encode(&changed, out, room);
}

int __wrap_rf__generation_find(const struct rf__generation *generation, int id, uint64_t nonce) {
    return __real_rf__generation_find(generation, id, planted == SIM_PLANT_nonce ? 0 : nonce);
}

bool __wrap_rf__kv_change(struct rf__kv *kv, uint64_t client, const struct rf__kv_request *request,
                          int64_t now, struct rf__kv_result *result) {
    struct rf__kv_request changed = *request;
    const struct rf__kv_item *item =
        request->op == RF__KV_CAS ? rf__kv_get(kv, request->key, request->key_bytes) : NULL;

    if (planted == SIM_PLANT_swap && item) {
        changed.revision = item->revision;
    }
    return __real_rf__kv_change(kv, client, &changed, now, result);
}
