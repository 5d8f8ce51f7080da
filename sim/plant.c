/* See plant.h. */
#include "sim.h"

#include "member/decide.h"
#include "member/step.h"

#include <string.h>

_Static_assert(RF__STEP_REPORT_BYTES <= sizeof((struct sim_worker *)0)->barrier_own,
               "a report fits");

static enum sim_plant planted;

void sim_plant_set(enum sim_plant plant) {
    planted = plant;
}

/* The library's own functions, and those that stand before them. */
enum rf__verdict __real_rf__decide(const struct rf__facts *facts, struct rf__generation *next);
enum rf__verdict __wrap_rf__decide(const struct rf__facts *facts, struct rf__generation *next);
size_t __real_rf__report_encode(const struct rf__report *report, unsigned char *out, size_t room);
size_t __wrap_rf__report_encode(const struct rf__report *report, unsigned char *out, size_t room);
uint64_t __real_rf__ddp_hash_state(const struct rf_ddp *ddp);
uint64_t __wrap_rf__ddp_hash_state(const struct rf_ddp *ddp);
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

uint64_t __wrap_rf__ddp_hash_state(const struct rf_ddp *ddp) {
    return planted == SIM_PLANT_hash ? 1 : __real_rf__ddp_hash_state(ddp);
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

/* The operation runs on when nobody waits for it: so it works on memory that stays. */
void sim_plant_starts(struct sim_worker *worker, struct rf__op_params *params) {
    bool is_barrier = params->call.coll == RF_COLL_ALL_GATHER &&
                      params->call.count == RF__STEP_REPORT_BYTES && params->call.type == RF_U8;

    if (planted == SIM_PLANT_barrier && is_barrier) {
        worker->barrier_reports = params->call.recv;
        memcpy(worker->barrier_own, params->call.send, RF__STEP_REPORT_BYTES);
        params->call.send = worker->barrier_own;
        params->call.recv = worker->barrier_scratch;
    }
}

void sim_plant_started(struct sim_worker *worker, const struct rf__op_params *params,
                       const struct rf__op *op) {
    if (params->call.recv == worker->barrier_scratch) {
        worker->barrier = op;
    }
}

/* The others' reports are made up: they agree, and have no samples of their own. */
bool sim_plant_skips(struct sim_worker *worker, const struct rf__op *op) {
    struct rf__step_report own, other;

    if (planted != SIM_PLANT_barrier || op != worker->barrier) {
        return false;
    }
    worker->barrier = NULL;
    if (rf__step_report_decode(worker->barrier_own, &own)) {
        return false;
    }
    other = own;
    other.samples = other.skipped = 0;
    other.shards = 0;
    own.samples = 0;
    for (uint32_t shard = 0; shard < SIM_SHARDS; shard++) {
        own.samples += sim_samples(own.step, shard, own.measure);
    }
    for (int rank = 0; rank < worker->runner.size; rank++) {
        unsigned char *slot = worker->barrier_reports + rank * RF__STEP_REPORT_BYTES;
        other.healed = worker->healed_of[rank];
        rf__step_report_encode(rank == worker->runner.rank ? &own : &other, slot);
    }
    return true;
}
