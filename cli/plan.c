/* ringfold plan: what a collective would send, counted from its schedule, without sending it.
 *
 * With an algorithm: its messages, bytes, steps and predicted time, each for one rank and for all
 * together, beside the other algorithms'; without one: the table of all. Nothing is connected to;
 * only --svg writes a file. */
#include "commands.h"
#include "format.h"
#include "report.h"

#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <ringfold/plan.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum {
    COMPARED_RANKS = 256, /* up to here the other algorithms are planned too: it is quick */
    LIST_MAX = 160        /* bytes of a list of names */
};

struct arguments {
    struct rf_plan_options plan;
    bool has_coll, has_count, has_bytes, json, alone;
    uint64_t bytes;
    const char *svg;
};

enum key {
    KEY_BYTES = 256,
    KEY_COUNT,
    KEY_TYPE,
    KEY_ROOT,
    KEY_LATENCY,
    KEY_BANDWIDTH,
    KEY_FOLD,
    KEY_SVG,
    KEY_JSON
};

static const struct argp_option options[] = {
    {"algorithm", 'a', "NAME", 0,
     "naive, reduce_broadcast, ring, direct, recursive_doubling, rabenseifner or tree; without it "
     "all that there are",
     0},
    {"workers", 'n', "N", 0, "ranks (default 4)", 0},
    {"bytes", KEY_BYTES, "SIZE", 0,
     "data, such as 256M or 1KiB (default 64M): each rank's vector; where parts are sent, one part",
     1},
    {"count", KEY_COUNT, "N", 0, "the same in elements", 1},
    {"type", KEY_TYPE, "TYPE", 0, "of the elements: f32 (default), f64, f16, bf16, i8 ...", 1},
    {"root", KEY_ROOT, "RANK", 0, "of broadcast, reduce, gather, scatter (default 0)", 1},
    {"latency", KEY_LATENCY, "US", 0, "of one message, in microseconds (default 20)", 2},
    {"bandwidth", KEY_BANDWIDTH, "GBPS", 0,
     "of one link and direction, in gigabits a second (default 10)", 2},
    {"fold", KEY_FOLD, "GB", 0,
     "how fast a rank adds up, in gigabytes a second; 0: at once (default 5)", 2},
    {"svg", KEY_SVG, "FILE", 0, "draw the plan: needs --algorithm", 3},
    {"json", KEY_JSON, NULL, 0, "print JSON", 3},
    {0},
};

/* ---- arguments ---- */

static bool covers(enum rf_coll coll, enum rf_algorithm algorithm) {
    struct rf_plan_options one;
    struct rf_plan *plan = NULL;

    rf_plan_options_init(&one);
    one.coll = coll;
    one.algorithm = algorithm;
    one.size = 1;
    one.count = 1;
    bool covered = rf_plan_create(&one, &plan, NULL) == 0;
    rf_plan_destroy(plan);
    return covered;
}

/* Appends "name, name, name" to a bounded text. */
static void list_name(char *text, size_t bytes, const char *name) {
    size_t length = strlen(text);
    snprintf(text + length, bytes - length, "%s%s", length ? ", " : "", name);
}

static void list_algorithms(enum rf_coll coll, char *text, size_t bytes) {
    text[0] = '\0';
    for (int a = 0; a < RF_ALGORITHM_COUNT; a++) {
        if (covers(coll, (enum rf_algorithm)a)) {
            list_name(text, bytes, rf_algorithm_name((enum rf_algorithm)a));
        }
    }
}

static int wrong(const char *what, const char *text, const char *next) {
    struct rf_error err;

    report_fail(&err, RF_EUSAGE, 0, "%s '%s'", what, text);
    snprintf(err.next, sizeof err.next, "%s", next);
    report_error(&err);
    return EINVAL;
}

static int parse_collective(const char *text, struct arguments *a) {
    char next[LIST_MAX] = "";

    if (rf_coll_parse(text, &a->plan.coll) == 0 && a->plan.coll != RF_COLL_SEND &&
        a->plan.coll != RF_COLL_RECV) {
        a->has_coll = true;
        return 0;
    }
    for (int c = 0; c < RF_COLL_SEND; c++) {
        list_name(next, sizeof next, rf_coll_name((enum rf_coll)c));
    }
    char line[LIST_MAX + 16];
    snprintf(line, sizeof line, "there are: %s", next);
    return wrong("there is no collective", text, line);
}

static int parse_algorithm(const char *text, struct arguments *a) {
    char next[LIST_MAX] = "there are: naive";

    if (rf_algorithm_parse(text, &a->plan.algorithm) == 0 &&
        a->plan.algorithm != RF_ALGORITHM_AUTO && a->plan.algorithm < RF_ALGORITHM_SHARED) {
        a->alone = true;
        return 0;
    }
    for (int i = RF_ALGORITHM_NAIVE + 1; i < RF_ALGORITHM_SHARED; i++) {
        list_name(next, sizeof next, rf_algorithm_name((enum rf_algorithm)i));
    }
    return wrong("there is no algorithm", text, next);
}

/* A plain number of at least `least`, times `unit`. */
static int parse_number(const char *what, const char *text, double unit, bool zero, double *out) {
    char *end;
    errno = 0;
    double value = strtod(text, &end);

    if (end == text || *end || errno || !isfinite(value) || value < 0 || (value == 0 && !zero)) {
        return wrong(what, text, zero ? "give a number, 0 or more" : "give a number above 0");
    }
    *out = value * unit;
    return 0;
}

static int parse_key(int key, char *text, struct arguments *a) {
    uint64_t count;

    switch (key) {
    case 'a':
        return parse_algorithm(text, a);
    case 'n':
        return parse_int(text, 1, RF_PLAN_MAX_RANKS, &a->plan.size)
                   ? wrong("cannot plan for a number of ranks of", text, "give 1 to 16384")
                   : 0;
    case KEY_BYTES:
        a->has_bytes = true;
        return parse_bytes(text, &a->bytes) ? wrong("not a size:", text, "such as 4096, 1KiB, 256M")
                                            : 0;
    case KEY_COUNT:
        a->has_count = true;
        if (parse_bytes(text, &count) || count > SIZE_MAX) {
            return wrong("not a count of elements:", text, "such as 1000 or 25M");
        }
        a->plan.count = (size_t)count;
        return 0;
    case KEY_TYPE:
        return rf_type_parse(text, &a->plan.type)
                   ? wrong("there is no element type", text,
                           "there are: f32, f64, f16, bf16, i8, u8, i32, u32, i64, u64")
                   : 0;
    case KEY_ROOT:
        return parse_int(text, 0, RF_PLAN_MAX_RANKS - 1, &a->plan.root)
                   ? wrong("not a rank:", text, "ranks are 0 to N-1")
                   : 0;
    case KEY_LATENCY:
        return parse_number("not a latency:", text, 1e-6, true, &a->plan.latency_s);
    case KEY_BANDWIDTH:
        return parse_number("not a bandwidth:", text, 1e9 / 8, false, &a->plan.bytes_per_s);
    case KEY_FOLD:
        return parse_number("not a rate:", text, 1e9, true, &a->plan.fold_bytes_per_s);
    case KEY_SVG:
        a->svg = text;
        return 0;
    case KEY_JSON:
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        return a->has_coll
                   ? wrong("one collective is enough; what is", text, "ringfold plan --help")
                   : parse_collective(text, a);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t on_option(int key, char *text, struct argp_state *state) {
    int rc = parse_key(key, text, state->input);

    if (rc && rc != ARGP_ERR_UNKNOWN) {
        exit(EX_USAGE); /* reported already; argp would print its own line */
    }
    return rc;
}

/* What only can be checked when all is read. */
static int check_arguments(struct arguments *a) {
    size_t each = rf_type_size(a->plan.type);
    char text[64], names[LIST_MAX], next[LIST_MAX + 16];

    if (!a->has_coll) {
        return wrong("a collective is needed, such as", "allreduce",
                     "ringfold plan allreduce -n 8 --algorithm ring");
    }
    if (a->has_bytes && a->has_count) {
        return wrong("give --bytes or --count, not", "both", "ringfold plan --help");
    }
    if (!a->has_count) {
        uint64_t bytes = a->has_bytes ? a->bytes : (uint64_t)64 << 20;
        snprintf(text, sizeof text, "%llu bytes", (unsigned long long)bytes);
        if (bytes % each) {
            snprintf(next, sizeof next, "one is %zu bytes", each);
            return wrong("not a whole number of elements:", text, next);
        }
        a->plan.count = (size_t)(bytes / each);
    }
    if (a->plan.coll == RF_COLL_BARRIER) {
        a->plan.count = 0;
    }
    if (a->alone && !covers(a->plan.coll, a->plan.algorithm)) {
        list_algorithms(a->plan.coll, names, sizeof names);
        snprintf(next, sizeof next, "there are: %s", names);
        snprintf(text, sizeof text, "there is no %s by", rf_coll_name(a->plan.coll));
        return wrong(text, rf_algorithm_name(a->plan.algorithm), next);
    }
    if (a->svg && !a->alone) {
        return wrong("a picture needs an algorithm:", a->svg, "add --algorithm NAME");
    }
    return 0;
}

/* ---- output ---- */

/* Three digits and a unit. */
static const char *time_text(char out[FORMAT_MAX], double seconds) {
    static const char *const units[] = {"s", "ms", "us", "ns"};
    int unit = 0;

    if (seconds < 0) {
        snprintf(out, FORMAT_MAX, "-");
        return out;
    }
    while (unit < 3 && seconds > 0 && seconds < 0.9995) {
        seconds *= 1000;
        unit++;
    }
    snprintf(out, FORMAT_MAX, "%.*f %s",
             seconds >= 99.95 || seconds == 0 ? 0
             : seconds >= 9.995               ? 1
                                              : 2,
             seconds, units[unit]);
    return out;
}

/* Whether the busiest rank's share is everybody's. */
static const char *whose(const struct rf_plan_options *o, uint64_t most, uint64_t all) {
    return all == most * (uint64_t)o->size ? "per rank" : "by the busiest rank";
}

static void print_head(const struct rf_plan_options *o) {
    char n[FORMAT_MAX], count[FORMAT_MAX], bytes[FORMAT_MAX];
    bool parts = o->coll == RF_COLL_REDUCE_SCATTER || o->coll == RF_COLL_ALL_GATHER ||
                 o->coll == RF_COLL_GATHER || o->coll == RF_COLL_SCATTER ||
                 o->coll == RF_COLL_ALL_TO_ALL;

    printf(", %s rank%s", format_count(n, (uint64_t)o->size), o->size == 1 ? "" : "s");
    if (o->coll != RF_COLL_BARRIER) {
        printf(", %s (%s %s) in each%s", format_bytes(bytes, o->count * rf_type_size(o->type)),
               format_count(count, o->count), rf_type_name(o->type), parts ? " part" : "");
    }
    puts("\n");
}

static void print_plan(const struct rf_plan_options *o, const struct rf_plan *plan) {
    struct rf_plan_totals t;
    char a[FORMAT_MAX], b[FORMAT_MAX];

    rf_plan_get_totals(plan, &t);
    printf("%s by %s", rf_coll_name(o->coll), rf_algorithm_name(o->algorithm));
    print_head(o);
    printf("  %s messages in all, in %s step%s\n\n", format_count(a, t.messages),
           format_count(b, t.steps), t.steps == 1 ? "" : "s");
    printf("  messages   %s %s, %s in all\n", format_count(a, t.max_messages),
           whose(o, t.max_messages, t.messages), format_count(b, t.messages));
    printf("  sent       %s %s, %s in all\n", format_bytes(a, t.max_bytes_sent),
           whose(o, t.max_bytes_sent, t.bytes), format_bytes(b, t.bytes));
    printf("  received   %s %s, %s in all\n", format_bytes(a, t.max_bytes_received),
           whose(o, t.max_bytes_received, t.bytes), format_bytes(b, t.bytes));
    if (t.time_s < 0) {
        printf("  time       not modelled: more than %s messages\n",
               format_count(a, RF_PLAN_MAX_MODELLED));
    } else if (t.lower_bound_s > 0) {
        printf("  time       %s predicted, %.2f times the lower bound of %s\n",
               time_text(a, t.time_s), t.time_s / t.lower_bound_s, time_text(b, t.lower_bound_s));
    } else {
        printf("  time       %s predicted\n", time_text(a, t.time_s));
    }
    printf("             with %s a message, %.4g Gbit/s a link and direction",
           time_text(a, o->latency_s), o->bytes_per_s * 8 / 1e9);
    if (o->fold_bytes_per_s > 0) {
        printf(", %.4g GB/s folded", o->fold_bytes_per_s / 1e9);
    }
    puts("");
}

static void print_row(const struct rf_plan_options *o, const struct rf_plan *plan, bool chosen) {
    struct rf_plan_totals t;
    char text[6][FORMAT_MAX];

    rf_plan_get_totals(plan, &t);
    printf("%c %-18s %7s %11s %15s %12s %12s %10s\n", chosen ? '>' : ' ',
           rf_algorithm_name(o->algorithm), format_count(text[0], t.steps),
           format_count(text[1], t.max_messages), format_count(text[2], t.messages),
           format_bytes(text[3], t.max_bytes_sent), format_bytes(text[4], t.bytes),
           time_text(text[5], t.time_s));
}

/* Every algorithm of the collective, one line each; the busiest rank where ranks differ. */
static int print_table(const struct arguments *a) {
    struct rf_plan_options o = a->plan;
    struct rf_error err = {0};
    int rc = 0;

    printf("  %-18s %7s %27s %25s\n", "", "", "messages", "bytes sent");
    printf("  %-18s %7s %11s %15s %12s %12s %10s\n", "algorithm", "steps", "per rank", "in all",
           "per rank", "in all", "time");
    for (int i = 0; i < RF_ALGORITHM_COUNT && rc == 0; i++) {
        struct rf_plan *plan = NULL;
        o.algorithm = (enum rf_algorithm)i;
        if (covers(o.coll, o.algorithm)) {
            rc = rf_plan_create(&o, &plan, &err);
            if (rc == 0) {
                print_row(&o, plan, a->alone && o.algorithm == a->plan.algorithm);
            }
            rf_plan_destroy(plan);
        }
    }
    if (rc) {
        report_error(&err);
        return exit_status(rc);
    }
    puts("\n  per rank: the busiest rank");
    return 0;
}

static json_t *json_of(const struct rf_plan_options *o, const struct rf_plan *plan) {
    struct rf_plan_totals t;

    rf_plan_get_totals(plan, &t);
    return json_pack(
        "{s:s, s:s, s:i, s:i, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:f}", "collective",
        rf_coll_name(o->coll), "algorithm", rf_algorithm_name(o->algorithm), "ranks", o->size,
        "root", o->root, "count", (json_int_t)o->count, "type", rf_type_name(o->type), "steps",
        (json_int_t)t.steps, "messages", (json_int_t)t.messages, "max_messages_per_rank",
        (json_int_t)t.max_messages, "bytes_sent", (json_int_t)t.bytes, "max_bytes_sent_per_rank",
        (json_int_t)t.max_bytes_sent, "max_bytes_received_per_rank",
        (json_int_t)t.max_bytes_received, "time_s",
        t.time_s < 0 ? json_null() : json_real(t.time_s), "lower_bound_s", t.lower_bound_s);
}

/* One object with an algorithm, an array of them without. */
static int print_json(const struct arguments *a) {
    struct rf_plan_options o = a->plan;
    struct rf_error err = {0};
    json_t *all = json_array(), *shown;
    int rc = 0;

    for (int i = 0; i < RF_ALGORITHM_COUNT && rc == 0; i++) {
        struct rf_plan *plan = NULL;
        o.algorithm = (enum rf_algorithm)i;
        if ((!a->alone || o.algorithm == a->plan.algorithm) && covers(o.coll, o.algorithm)) {
            rc = rf_plan_create(&o, &plan, &err);
            if (rc == 0) {
                json_array_append_new(all, json_of(&o, plan));
            }
            rf_plan_destroy(plan);
        }
    }
    if (rc) {
        report_error(&err);
    } else {
        shown = a->alone ? json_array_get(all, 0) : all;
        json_dumpf(shown, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
        puts("");
    }
    json_decref(all);
    return exit_status(rc);
}

static int write_svg(const struct rf_plan *plan, const char *path, struct rf_error *err) {
    char *svg = NULL;
    size_t bytes = 0;
    FILE *file = NULL;
    int rc = rf_plan_svg(plan, &svg, &bytes, err);

    if (rc) {
        return rc;
    }
    file = fopen(path, "we");
    if (!file || fwrite(svg, 1, bytes, file) != bytes) {
        rc = report_fail(err, RF_EIO, errno, "writing '%s'", path);
    }
    if (file && fclose(file) && rc == 0) {
        rc = report_fail(err, RF_EIO, errno, "writing '%s'", path);
    }
    rf_plan_svg_free(svg);
    return rc;
}

/* The one algorithm that was asked for. */
static int show_plan(const struct arguments *a) {
    struct rf_plan *plan = NULL;
    struct rf_error err = {0};
    int rc = rf_plan_create(&a->plan, &plan, &err);

    if (rc == 0 && a->svg) {
        rc = write_svg(plan, a->svg, &err);
    }
    if (rc == 0 && !a->json) {
        print_plan(&a->plan, plan);
        if (a->svg) {
            printf("  picture    %s\n", a->svg);
        }
    }
    rf_plan_destroy(plan);
    if (rc) {
        report_error(&err);
        return exit_status(rc);
    }
    if (a->json) {
        return print_json(a);
    }
    if (a->plan.size > 1 && a->plan.size <= COMPARED_RANKS) {
        puts("");
        return print_table(a);
    }
    return 0;
}

int cmd_plan(int argc, char **argv) {
    static const struct argp argp = {
        .options = options,
        .parser = on_option,
        .args_doc = "COLLECTIVE",
        .doc = "Show what a collective would send, without sending it: allreduce, reduce_scatter, "
               "all_gather, broadcast, reduce, gather, scatter, all_to_all or barrier."
               "\vThe counts come from the same schedules that the library runs. The time is a "
               "model's: each "
               "rank sends one message and receives one at a time."};
    struct arguments a = {0};
    int rc;

    rf_plan_options_init(&a.plan);
    argp_err_exit_status = EX_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &a) || check_arguments(&a)) {
        return EX_USAGE;
    }
    if (a.alone) {
        rc = show_plan(&a);
    } else if (a.json) {
        rc = print_json(&a);
    } else {
        printf("%s", rf_coll_name(a.plan.coll));
        print_head(&a.plan);
        rc = print_table(&a);
    }
    if (rc == 0 && (fflush(stdout) || ferror(stdout))) {
        struct rf_error err;
        rc = exit_status(report_fail(&err, RF_EIO, errno, "writing the plan"));
        report_error(&err);
    }
    return rc;
}
