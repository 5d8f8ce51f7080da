/* What must hold, whatever goes wrong. The checkers see what workers and the store do and share no
 * code with how they do it; all but the reading of generation records is computed here anew.
 *
 *     history       a unit has one digest and one content, whoever committed it, the dead included
 *     content       each shard went into its average exactly once, in whatever groups it was
 * computed parameters    after each step they are what one worker alone would have, bit for bit
 *     order         a worker's units follow each other, unless it was healed in between
 *     generations   each record is swapped in once, has the next number, and takes nothing back
 *     waits         none lasts longer than a bound, and the world becomes whole again once it heals
 */
#include "sim.h"

#include "base/assert.h"
#include "base/digest.h"
#include "member/record.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SAFETY (300 * 1000 * RF__MS) /* of virtual time under faults */
#define MOST_HEAL   (300 * 1000 * RF__MS)
#define MOST_WAIT   (120 * 1000 * RF__MS) /* for an operation */

enum { WHOLE_COMMITS = 3, STEP_TAKEN_APART = 3, MOST_FAULTS = 80 };

/* Where everybody stands, for who reads the trace. */
static void trace_workers(struct sim *sim) {
    static const char *const waits[] = {"nothing", "time",    "an operation",
                                        "a place", "a group", "leaving"};

    for (int id = 0; id < SIM_IDS; id++) {
        const struct sim_worker *worker = &sim->workers[id];
        if (worker->alive) {
            sim_trace(sim, id, "is in state %d of generation %llu, waits for %s since %lld ms",
                      (int)rf__group_state(worker->group),
                      (unsigned long long)worker->runner.generation, waits[worker->waits],
                      (long long)(worker->wait_since / RF__MS));
        }
    }
}

void sim_violate(struct sim *sim, const char *format, ...) {
    va_list arguments;
    char text[sizeof sim->outcome.text];

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    sim_trace(sim, -1, "VIOLATION: %s", text);
    trace_workers(sim);
    if (!sim->outcome.violated) {
        sim->outcome.violated = true;
        memcpy(sim->outcome.text, text, sizeof text);
    }
}

/* ---- What the averages must be ---- */

static uint64_t all_samples(uint64_t step, bool measure) {
    uint64_t samples = 0;
    for (uint32_t shard = 0; shard < SIM_SHARDS; shard++) {
        samples += sim_samples(step, shard, measure);
    }
    return samples;
}

static float average_of(uint64_t step, int tensor, int element) {
    uint64_t samples = all_samples(step, false);
    float sum = 0;

    for (uint32_t shard = 0; shard < SIM_SHARDS; shard++) {
        sum += sim_gradient(step, shard, tensor, element);
    }
    return samples ? (float)((double)sum / (double)samples) : 0;
}

static void check_averages(struct sim_worker *worker, const struct rf_ddp *ddp, uint64_t step) {
    for (int t = 0; t < SIM_TENSORS; t++) {
        const float *average = rf__ddp_average(ddp, t);
        for (int i = 0; i < sim_elements(t); i++) {
            float expected = average_of(step, t, i);
            if (!average || memcmp(&average[i], &expected, sizeof expected) != 0) {
                sim_violate(worker->sim,
                            "worker %d: step %llu, tensor %d, element %d: average %.9g, and one "
                            "worker alone has %.9g",
                            worker->id, (unsigned long long)step, t, i,
                            average ? (double)average[i] : 0, (double)expected);
                return;
            }
        }
    }
}

static uint64_t digest_of(const float param[SIM_TENSORS][64], const float *moment) {
    uint64_t digest = 0;
    for (int t = 0; t < SIM_TENSORS; t++) {
        digest = rf__digest(param[t], (size_t)sim_elements(t) * sizeof(float), digest);
    }
    return rf__digest(moment, 64 * sizeof(float), digest);
}

/* The parameters after so many steps, of one worker that trains alone. */
static uint64_t reference(struct sim *sim, uint64_t steps) {
    if (!sim->reference_digests[0]) {
        struct rf__rng rng = rf__rng(SIM_INITIAL, 0, 3);
        for (int t = 0; t < SIM_TENSORS; t++) {
            for (int i = 0; i < sim_elements(t); i++) {
                sim->reference[t][i] = (float)(rf__rng_below(&rng, 2001)) - 1000;
            }
        }
        sim->reference_digests[0] = digest_of(sim->reference, sim->reference_moment);
    }
    while (sim->reference_steps < steps) {
        uint64_t step = sim->reference_steps++;
        for (int t = 0; t < SIM_TENSORS; t++) {
            for (int i = 0; i < sim_elements(t); i++) {
                float change = average_of(step, t, i);
                if (t == 1) {
                    sim->reference_moment[i] = 0.5f * sim->reference_moment[i] + change;
                    change = sim->reference_moment[i];
                }
                sim->reference[t][i] -= sim_rate(step) * change;
            }
        }
        sim->reference_digests[step + 1] = digest_of(sim->reference, sim->reference_moment);
    }
    return sim->reference_digests[steps];
}

/* ---- Units ---- */

void sim_check_begin(struct sim_worker *worker, const struct rf_step *step) {
    struct sim *sim = worker->sim;

    sim_trace(sim, worker->id, "begins %s %llu in generation %llu%s%s",
              step->measure ? "measurement before step" : "step", (unsigned long long)step->step,
              (unsigned long long)step->generation, step->resumed ? ", resumed" : "",
              step->healing ? ", healing" : "");
    worker->healing = step->healing;
    worker->holds = !step->healing;
    if (!step->measure && step->step == STEP_TAKEN_APART && !sim->outcome.first_event) {
        sim->outcome.first_event = sim->index;
    }
}

static void check_membership(struct sim_worker *worker, const struct rf_step_report *report) {
    struct sim *sim = worker->sim;
    const struct sim_record *record = NULL;
    bool is_in = false;

    for (uint64_t i = 0; i < sim->record_count && !record; i++) {
        record = sim->records[i].number == report->generation ? &sim->records[i] : NULL;
    }
    for (int i = 0; record && i < record->count; i++) {
        is_in = is_in || record->ids[i] == worker->id;
    }
    if (!sim->options.fixed && (!is_in || record->count != report->size)) {
        sim_violate(sim, "worker %d commits in generation %llu of %d, which is without it",
                    worker->id, (unsigned long long)report->generation, report->size);
    }
    if (record && record + 1 < sim->records + sim->record_count && !sim->options.fixed &&
        worker->units > record[1].units) {
        sim_violate(sim,
                    "worker %d commits unit %llu in generation %llu, and the next begins before",
                    worker->id, (unsigned long long)worker->units - 1,
                    (unsigned long long)report->generation);
    }
}

static uint64_t content_of(const struct rf_ddp *ddp, const struct rf_step *step,
                           const struct rf_step_report *report) {
    uint64_t content = rf__digest_mix(step->measure, step->step);

    content = rf__digest_mix(content, report->samples);
    content = rf__digest(&report->tally, sizeof report->tally, content);
    for (int t = 0; t < SIM_TENSORS && !step->measure; t++) {
        content =
            rf__digest(rf__ddp_average(ddp, t), (size_t)sim_elements(t) * sizeof(float), content);
    }
    return content;
}

static void check_history(struct sim_worker *worker, uint64_t number, const struct rf_step *step,
                          const struct rf_step_report *report, uint64_t content) {
    struct sim *sim = worker->sim;
    struct sim_unit *unit = &sim->units[number];

    if (!unit->known) {
        *unit = (struct sim_unit){.known = true,
                                  .measure = step->measure,
                                  .step = step->step,
                                  .digest = report->digest,
                                  .content = content,
                                  .state = report->state_digest,
                                  .by = worker->id};
        sim->unit_count = number + 1 > sim->unit_count ? number + 1 : sim->unit_count;
        return;
    }
    if (unit->digest != report->digest || unit->content != content ||
        unit->measure != step->measure || unit->step != step->step) {
        sim_violate(sim,
                    "unit %llu has two contents: digest %016llx by worker %d, %016llx by worker %d",
                    (unsigned long long)number, (unsigned long long)unit->digest, unit->by,
                    (unsigned long long)report->digest, worker->id);
    }
}

static bool is_whole(const struct sim *sim, int size) {
    int expected = 0;
    for (int id = 0; id < SIM_IDS; id++) {
        const struct sim_worker *worker = &sim->workers[id];
        expected += worker->start && !worker->finished;
    }
    return expected == size && sim_alive(sim) == size;
}

void sim_check_commit(struct sim_worker *worker, const struct rf_ddp *ddp,
                      const struct rf_step *step, const struct rf_step_report *report) {
    struct sim *sim = worker->sim;
    bool had = worker->has_units;
    uint64_t last = worker->units;

    if (sim->options.fixed) { /* nobody tells */
        worker->units = report->step + 1;
        worker->told_units = worker->units;
    }
    worker->units = worker->told_units;
    worker->has_units = true;
    uint64_t number = worker->units - 1;
    if (worker->units == 0 || number >= SIM_UNITS - 1) {
        sim_violate(sim, "worker %d commits unit %llu, and nothing has an end", worker->id,
                    (unsigned long long)number);
        return;
    }
    sim->outcome.commits++;
    sim_trace(sim, worker->id, "commits unit %llu, digest %016llx, of %d in generation %llu",
              (unsigned long long)number, (unsigned long long)report->digest, report->size,
              (unsigned long long)report->generation);
    if (had && !worker->healing && worker->units != last + 1) {
        sim_violate(sim, "worker %d commits unit %llu after unit %llu, and was not healed",
                    worker->id, (unsigned long long)number, (unsigned long long)last - 1);
    }
    uint64_t samples = all_samples(step->step, step->measure);
    double tally = 0;
    for (uint32_t shard = 0; shard < SIM_SHARDS; shard++) {
        tally += sim_score(shard);
    }
    if (report->samples != samples || report->measure != step->measure ||
        report->step != step->step) {
        sim_violate(sim,
                    "worker %d: unit %llu has %llu samples of step %llu, not %llu of step %llu",
                    worker->id, (unsigned long long)number, (unsigned long long)report->samples,
                    (unsigned long long)report->step, (unsigned long long)samples,
                    (unsigned long long)step->step);
    }
    if (step->measure && (report->tally < tally || report->tally > tally)) {
        sim_violate(sim, "worker %d: the measurement of unit %llu counts %.0f, not %.0f",
                    worker->id, (unsigned long long)number, report->tally, tally);
    }
    if (!step->measure) {
        check_averages(worker, ddp, step->step);
    }
    check_membership(worker, report);
    check_history(worker, number, step, report, content_of(ddp, step, report));
    if (worker->healing) {
        worker->tainted = false;
    }
    worker->holds = true;
    if (!step->measure && step->step == STEP_TAKEN_APART) {
        sim->outcome.last_event = sim->index;
    }
    if (!sim->is_healing && step->step >= sim->options.steps && !sim->options.fixed) {
        sim_fault_heal(sim);
    }
    if (sim->options.fixed && step->step >= sim->options.steps) {
        sim->may_stop = true;
    }
    if (sim->is_healing && number + 1 == sim->unit_count) {
        sim->whole_commits = is_whole(sim, report->size) ? sim->whole_commits + 1 : 0;
        if (sim->whole_commits == WHOLE_COMMITS * report->size) {
            sim->may_stop = true;
            sim->outcome.healed_after = sim->now - sim->heal_begun;
        }
    }
}

void sim_check_update(struct sim_worker *worker, uint64_t steps) {
    struct sim *sim = worker->sim;

    if (sim->outcome.violated) {
        return;
    }
    if (digest_of(worker->param, worker->moment) != reference(sim, steps) ||
        worker->applied != steps) {
        sim_violate(sim,
                    "worker %d: its parameters after step %llu are not what one worker alone has",
                    worker->id, (unsigned long long)steps - 1);
    }
}

void sim_check_told(struct sim_worker *worker, const struct rf_event *event) {
    struct sim *sim = worker->sim;

    switch (event->kind) {
    case RF_EVENT_COMMIT:
        worker->told_units = event->unit + 1;
        return;
    case RF_EVENT_FORM:
        sim_trace(sim, worker->id, "tells: generation %llu runs: %s",
                  (unsigned long long)event->generation, event->text);
        return;
    case RF_EVENT_REVOKE:
        sim_trace(sim, worker->id, "tells: generation %llu is over: %s",
                  (unsigned long long)event->generation, event->text);
        return;
    case RF_EVENT_PAUSE:
        sim_trace(sim, worker->id, "tells: waits: %s", event->text);
        return;
    case RF_EVENT_OUT:
        sim_trace(sim, worker->id, "tells: out: %s", event->text);
        return;
    case RF_EVENT_HEAL:
        sim_trace(sim, worker->id, "tells: healed");
        return;
    case RF_EVENT_RETRY:
        sim_trace(sim, worker->id, "tells: retry: %s", event->text);
        return;
    case RF_EVENT_SLOW:
        sim_trace(sim, worker->id, "tells: worker %d is slow", event->peer);
        return;
    case RF_EVENT_CHECKPOINT:
        sim_violate(sim, "worker %d tells of a checkpoint, and none are kept", worker->id);
        return;
    case RF_EVENT_FLIP:
        sim_trace(sim, worker->id, "tells: a bit is flipped");
        return;
    case RF_EVENT_DIVERGED:
        sim_trace(sim, worker->id, "tells: worker %d diverged: %s", event->peer, event->text);
        if (!sim->flipped) {
            sim_violate(sim, "worker %d is said to diverge, and no bit was flipped: %s",
                        event->peer, event->text);
        }
        return;
    }
}

void sim_check_note(struct sim_worker *worker, const struct rf__progress *progress) {
    sim_trace(worker->sim, worker->id, "notes %llu units%s", (unsigned long long)progress->units,
              progress->prepared ? ", and one prepared" : "");
}

/* Whether a program may end like this. */
void sim_check_end(struct sim_worker *worker, const struct rf_error *err) {
    struct sim *sim = worker->sim;
    static const int usual[] = {RF_ETIMEDOUT, RF_ETOOFEW, RF_ESTORE, RF_ECONFLICT, RF_EENDED};
    static const int fixed[] = {RF_ETIMEDOUT, RF_ELOST,    RF_ESTORE,
                                RF_ECONFLICT, RF_EREVOKED, RF_ECONNECT};
    bool is_usual = worker->code >= 0;

    for (size_t i = 0; i < sizeof usual / sizeof usual[0] && !sim->options.fixed; i++) {
        is_usual = is_usual || worker->code == usual[i];
    }
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0] && sim->options.fixed; i++) {
        is_usual = is_usual || worker->code == fixed[i];
    }
    if (worker->code == RF_EENDED && sim->may_stop) {
        worker->finished = true;
    }
    if (worker->code == RF_ESTATELESS || (worker->code == RF_EDIVERGED && sim->flipped)) {
        sim->outcome.lost = true;
        return;
    }
    int64_t patience = (sim->start_timeout_ms + 5000) * RF__MS; /* what had begun before may end */
    bool is_well = sim->is_healing && sim->now - sim->heal_begun > patience;
    if (!is_usual || (is_well && worker->code < 0 && !worker->finished)) {
        sim_violate(sim, "worker %d ends with %s: %s", worker->id, rf_error_name(worker->code),
                    err->text);
    }
}

/* ---- Generations ---- */

static void check_record(struct sim *sim, const void *value, size_t bytes, int64_t revision) {
    static struct rf__generation g; /* large; read and copied at once */
    const struct sim_record *last = sim->record_count ? &sim->records[sim->record_count - 1] : NULL;

    if (rf__generation_decode(value, bytes, &g)) {
        sim_violate(sim, "the generation record of revision %lld cannot be read",
                    (long long)revision);
        return;
    }
    RF_ASSERT(sim->record_count < SIM_GENERATIONS);
    struct sim_record *record = &sim->records[sim->record_count++];
    *record = (struct sim_record){.number = g.number, .units = g.units, .count = g.count};
    for (int i = 0; i < g.count && i < SIM_IDS; i++) {
        record->ids[i] = g.members[i].id;
        record->healed[i] = g.members[i].healed;
    }
    char members[8 * SIM_IDS] = "";
    int at = 0;
    for (int i = 0; i < g.count && i < SIM_IDS; i++) {
        at += snprintf(members + at, sizeof members - (size_t)at, " %d%s", record->ids[i],
                       record->healed[i] ? "" : "?");
    }
    sim_trace(sim, -1, "generation %llu:%s; units %llu%s%s; %s", (unsigned long long)g.number,
              members, (unsigned long long)g.units, g.commit ? ", commit" : "",
              g.ended ? ", ended" : "", g.cause);
    if (g.number != (last ? last->number + 1 : 1)) {
        sim_violate(sim, "generation %llu follows generation %llu", (unsigned long long)g.number,
                    (unsigned long long)(last ? last->number : 0));
    }
    if (g.units < sim->unit_count || (last && g.units < last->units)) {
        sim_violate(sim, "generation %llu begins with unit %llu, and unit %llu was committed",
                    (unsigned long long)g.number, (unsigned long long)g.units,
                    (unsigned long long)sim->unit_count - 1);
    }
    if (g.units && g.units <= SIM_UNITS && sim->units[g.units - 1].known &&
        sim->units[g.units - 1].digest != g.chain) {
        sim_violate(sim,
                    "generation %llu has digest %016llx after unit %llu, which was committed "
                    "with %016llx",
                    (unsigned long long)g.number, (unsigned long long)g.chain,
                    (unsigned long long)g.units - 1,
                    (unsigned long long)sim->units[g.units - 1].digest);
    }
}

void sim_check_change(struct sim *sim, const char *key, const void *value, size_t bytes,
                      int64_t revision) {
    if (strcmp(key, "rf/sim/generation") != 0) {
        return;
    }
    if (!value || revision <= sim->record_revision) {
        sim_violate(sim, "the generation record goes back, at revision %lld", (long long)revision);
        return;
    }
    sim->record_revision = revision;
    if (!sim->options.fixed) {
        check_record(sim, value, bytes, revision);
    }
}

/* ---- Time ---- */

/* The last that held the newest state is gone: there is nothing to go on with, and no way back but
 * a checkpoint. Faults avoid that, but for what they cannot see: a generation that is swapped in
 * behind the back of one that still seems to be a member. */
static bool is_lost(const struct sim *sim) {
    const struct sim_record *newest =
        sim->record_count ? &sim->records[sim->record_count - 1] : NULL;
    bool is_held = !newest || sim->options.fixed || newest->count == 0 || newest->units == 0;

    for (int i = 0; newest && i < newest->count; i++) {
        const struct sim_worker *worker = &sim->workers[newest->ids[i]];
        is_held = is_held || (worker->alive && worker->holds);
    }
    return !is_held;
}

void sim_check_tick(struct sim *sim) {
    for (int id = 0; id < SIM_IDS; id++) {
        const struct sim_worker *worker = &sim->workers[id];
        int64_t since =
            worker->wait_since > worker->thawed_at ? worker->wait_since : worker->thawed_at;
        if (worker->alive && worker->waits == SIM_WAIT_OP && sim->now - since > MOST_WAIT) {
            sim_violate(sim, "worker %d waits for an operation since %lld ms", id,
                        (long long)(since / RF__MS));
        }
    }
    if (sim->is_healing && is_lost(sim) && !sim->may_stop) {
        sim->outcome.lost = true;
    }
    bool is_enough = sim->now > MOST_SAFETY || sim->outcome.faults > MOST_FAULTS;
    if (!sim->is_healing && is_enough) {
        sim_fault_heal(sim);
    }
    if (sim->is_healing && sim->now - sim->heal_begun > MOST_HEAL) {
        sim_violate(sim,
                    "the world is well since %lld s, and its %d workers are not one group that "
                    "goes on",
                    (long long)((sim->now - sim->heal_begun) / 1000000000), sim_alive(sim));
    }
}
