/* Checkpoints for people, as a table and as a page, and for programs, as JSON. Only printing: what
 * is printed was read before. */
#include "ckpt_show.h"

#include "format.h"
#include "report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ANCESTORS_SHOWN = 8, CONFIG_SHOWN = 400, SHAPE_MAX = 100, HEX_MAX = 17 };

const char *ckpt_time(char out[CKPT_TIME_MAX], int64_t time_s) {
    time_t seconds = (time_t)time_s;
    struct tm local;

    if (time_s <= 0 || !localtime_r(&seconds, &local) ||
        !strftime(out, CKPT_TIME_MAX, "%Y-%m-%d %H:%M:%S", &local)) {
        memcpy(out, "-", 2);
    }
    return out;
}

static const char *colour_of(enum rf_ckpt_condition condition) {
    if (!report_colour(stdout)) {
        return "";
    }
    switch (condition) {
    case RF_CKPT_WHOLE:
        return "\033[32m";
    case RF_CKPT_INCOMPLETE:
        return "\033[33m";
    case RF_CKPT_BAD:
        return "\033[31m";
    }
    return "";
}

static const char *colour_end(void) {
    return report_colour(stdout) ? "\033[0m" : "";
}

/* ---- list ---- */

void ckpt_list_head(void) {
    printf("%10s  %-22s  %-10s  %5s  %10s  %s\n", "step", "checkpoint", "state", "parts", "size",
           "written");
}

void ckpt_list_line(const struct rf_ckpt_info *info) {
    char size[FORMAT_MAX], when[CKPT_TIME_MAX];

    printf("%10" PRIu64 "  %-22s  %s%-10s%s  %5d  %10s  %s", info->step, info->name,
           colour_of(info->condition), rf_ckpt_condition_name(info->condition), colour_end(),
           info->parts, format_bytes(size, info->bytes), ckpt_time(when, info->time_s));
    printf(info->reason[0] ? "  %s\n" : "%s\n", info->reason);
}

void ckpt_list_foot(const int counts[3], const char *newest,
                    const struct rf_ckpt_parting *parting) {
    printf("\n  %d whole, %d incomplete, %d bad", counts[RF_CKPT_WHOLE], counts[RF_CKPT_INCOMPLETE],
           counts[RF_CKPT_BAD]);
    printf(newest[0] ? "; the newest whole one is %s\n" : "%s\n", newest);
    if (parting->histories < 2) {
        return;
    }
    printf("  %d histories: %s and %s", parting->histories, parting->newest[0], parting->newest[1]);
    if (parting->has_common) {
        printf(" have step %" PRIu64 " in common and", parting->common_step);
    }
    if (parting->first == parting->last) {
        printf(" part at step %" PRIu64 "\n", parting->first);
    } else {
        printf(" part at a step from %" PRIu64 " to %" PRIu64 "\n", parting->first, parting->last);
    }
}

/* ---- show ---- */

static const char *shape_text(char out[SHAPE_MAX], const struct rf_ckpt_tensor *tensor) {
    int at = snprintf(out, SHAPE_MAX, "[");

    for (int i = 0; i < tensor->dims; i++) {
        at += snprintf(out + at, SHAPE_MAX - (size_t)at, i ? ", %" PRIu64 : "%" PRIu64,
                       tensor->shape[i]);
    }
    snprintf(out + at, SHAPE_MAX - (size_t)at, "]");
    return out;
}

static void show_ancestors(const struct rf_ckpt *ckpt) {
    uint64_t step, chain;
    int i = 0;

    for (; i < ANCESTORS_SHOWN && rf_ckpt_get_ancestor(ckpt, i, &step, &chain); i++) {
        printf(i ? ", %" PRIu64 : "  after       step %" PRIu64, step);
    }
    if (i) {
        puts(rf_ckpt_get_ancestor(ckpt, i, &step, &chain) ? ", ..." : "");
    }
}

static void show_tensors(const struct rf_ckpt *ckpt) {
    struct rf_ckpt_tensor tensor;
    char shape[SHAPE_MAX], size[FORMAT_MAX];
    int widest = 6;

    for (int i = 0; rf_ckpt_get_tensor(ckpt, i, &tensor); i++) {
        int length = (int)strlen(tensor.name);
        widest = length > widest && length <= 48 ? length : widest;
    }
    printf("\n  %-*s  type  %-22s  %10s\n", widest, "tensor", "shape", "size");
    for (int i = 0; rf_ckpt_get_tensor(ckpt, i, &tensor); i++) {
        printf("  %-*s  %-4s  %-22s  %10s  %s\n", widest, tensor.name, rf_type_name(tensor.type),
               shape_text(shape, &tensor), format_bytes(size, tensor.bytes),
               tensor.trained ? "parameter" : "state");
    }
}

static void show_parts(const struct rf_ckpt *ckpt) {
    struct rf_ckpt_part part;
    char size[FORMAT_MAX];

    printf("\n  part        size  digest\n");
    for (int i = 0; rf_ckpt_get_part(ckpt, i, &part); i++) {
        printf("  %4d  %10s  %016" PRIx64 "\n", i, format_bytes(size, part.bytes), part.digest);
    }
}

void ckpt_show(const struct rf_ckpt *ckpt) {
    char text[5][FORMAT_MAX], when[CKPT_TIME_MAX];
    struct rf_ckpt_info info;
    const char *config = rf_ckpt_config(ckpt);

    rf_ckpt_get_info(ckpt, &info);
    printf("%s  %s%s%s%s%s\n", info.name, colour_of(info.condition),
           rf_ckpt_condition_name(info.condition), colour_end(), info.reason[0] ? ": " : "",
           info.reason);
    printf("  job         %s, generation %" PRIu64 ", written %s by ringfold %s\n", info.job,
           info.generation, ckpt_time(when, info.time_s), info.version);
    printf("  step        %s, %s units, %s samples used, %s skipped\n",
           format_count(text[0], info.step), format_count(text[1], info.units),
           format_count(text[2], info.samples), format_count(text[3], info.skipped));
    printf("  chain       %016" PRIx64 "\n  state       %016" PRIx64 "\n", info.chain,
           info.state_digest);
    printf("  size        %s, parts %d, tensors %d\n", format_bytes(text[4], info.bytes),
           info.parts, info.tensors);
    printf("  config      %.*s%s\n", CONFIG_SHOWN, config,
           strlen(config) > CONFIG_SHOWN ? " ..." : "");
    show_ancestors(ckpt);
    show_tensors(ckpt);
    show_parts(ckpt);
}

/* ---- JSON ---- */

static const char *hex(char out[HEX_MAX], uint64_t value) {
    snprintf(out, HEX_MAX, "%016" PRIx64, value);
    return out;
}

json_t *ckpt_info_json(const struct rf_ckpt_info *info) {
    char chain[HEX_MAX], state[HEX_MAX];

    return json_pack(
        "{s:s, s:s, s:s, s:b, s:s, s:s, s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:i, "
        "s:i}",
        "name", info->name, "state", rf_ckpt_condition_name(info->condition), "reason",
        info->reason, "marked", info->marked, "job", info->job, "library", info->version, "step",
        (json_int_t)info->step, "units", (json_int_t)info->units, "generation",
        (json_int_t)info->generation, "chain", hex(chain, info->chain), "state_digest",
        hex(state, info->state_digest), "samples", (json_int_t)info->samples, "skipped",
        (json_int_t)info->skipped, "bytes", (json_int_t)info->bytes, "time_s",
        (json_int_t)info->time_s, "parts", info->parts, "tensors", info->tensors);
}

json_t *ckpt_parting_json(const struct rf_ckpt_parting *parting) {
    json_t *newest = json_array();

    for (int i = 0; i < 2 && i < parting->histories; i++) {
        json_array_append_new(newest, json_string(parting->newest[i]));
    }
    json_t *object = json_pack("{s:i, s:o}", "histories", parting->histories, "newest", newest);
    if (parting->histories > 1) {
        json_object_set_new(object, "common_step",
                            parting->has_common ? json_integer((json_int_t)parting->common_step)
                                                : json_null());
        json_object_set_new(
            object, "first_different_step",
            json_pack("[I, I]", (json_int_t)parting->first, (json_int_t)parting->last));
    }
    return object;
}

static json_t *tensors_json(const struct rf_ckpt *ckpt) {
    struct rf_ckpt_tensor tensor;
    json_t *all = json_array();

    for (int i = 0; rf_ckpt_get_tensor(ckpt, i, &tensor); i++) {
        json_t *shape = json_array();
        for (int k = 0; k < tensor.dims; k++) {
            json_array_append_new(shape, json_integer((json_int_t)tensor.shape[k]));
        }
        json_array_append_new(all,
                              json_pack("{s:s, s:s, s:o, s:I, s:b}", "name", tensor.name, "type",
                                        rf_type_name(tensor.type), "shape", shape, "bytes",
                                        (json_int_t)tensor.bytes, "trained", tensor.trained));
    }
    return all;
}

static json_t *parts_json(const struct rf_ckpt *ckpt) {
    struct rf_ckpt_part part;
    json_t *all = json_array();
    char digest[HEX_MAX];

    for (int i = 0; rf_ckpt_get_part(ckpt, i, &part); i++) {
        json_array_append_new(all, json_pack("{s:I, s:s}", "bytes", (json_int_t)part.bytes,
                                             "digest", hex(digest, part.digest)));
    }
    return all;
}

static json_t *ancestors_json(const struct rf_ckpt *ckpt) {
    json_t *all = json_array();
    uint64_t step, chain;
    char text[HEX_MAX];

    for (int i = 0; rf_ckpt_get_ancestor(ckpt, i, &step, &chain); i++) {
        json_array_append_new(
            all, json_pack("{s:I, s:s}", "step", (json_int_t)step, "chain", hex(text, chain)));
    }
    return all;
}

json_t *ckpt_json(const struct rf_ckpt *ckpt) {
    struct rf_ckpt_info info;

    rf_ckpt_get_info(ckpt, &info);
    json_t *object = ckpt_info_json(&info);
    json_object_set_new(object, "config", json_loads(rf_ckpt_config(ckpt), 0, NULL));
    json_object_set_new(object, "tensor_list", tensors_json(ckpt));
    json_object_set_new(object, "part_list", parts_json(ckpt));
    json_object_set_new(object, "ancestors", ancestors_json(ckpt));
    return object;
}
