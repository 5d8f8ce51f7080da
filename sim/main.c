/* ringfold-sim: the shipped driver, membership, training and store in one process, on a virtual
 * clock, under faults that follow from a seed. docs/SIMULATOR.md tells what for. */
#include "sim.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plan {
    struct sim_options options;
    uint64_t seeds;
    bool exhaustive, quiet;
};

struct totals {
    uint64_t runs, violated, lost, commits, generations, faults;
    int64_t longest_heal;
};

static const char *const plant_names[SIM_PLANTS] = {"none",
#define SIM_X(name, text) #name,
                                                    SIM_PLANT_LIST(SIM_X)
#undef SIM_X
};

static void usage(FILE *to) {
    static const char *const texts[SIM_PLANTS] = {"",
#define SIM_X(name, text) text,
                                                  SIM_PLANT_LIST(SIM_X)
#undef SIM_X
    };
    fprintf(to, "Usage: ringfold-sim [--seed S] [--seeds N] [--workers N] [--steps K] [--fixed] "
                "[--silly]\n"
                "                    [--faults MASK] [--plant BUG] [--trace] [--exhaustive] "
                "[--strike E,A,B]\n\n"
                "  --seed S        the first seed (1)\n"
                "  --seeds N       so many seeds in a row (1)\n"
                "  --workers N     workers at the start, 2 to 10 (of the seed)\n"
                "  --steps K       steps under faults, before the world heals (of the seed)\n"
                "  --fixed         a fixed group, which its first failure ends\n"
                "  --silly         clocks at wrong speeds, and leases that last too short\n"
                "  --faults MASK   the kinds of faults, as bits; 0: none (of the seed)\n"
                "  --trace         one line for each thing that happens\n"
                "  --exhaustive    three workers; a crash of each, and a cut of each link, before\n"
                "                  each event of one step\n"
                "  --strike E,A,B  one of these: before event E, A crashes (B -1) or the link is "
                "cut\n"
                "  --plant BUG     a bug that the checkers must find:\n");
    for (int plant = 1; plant < SIM_PLANTS; plant++) {
        fprintf(to, "      %-10s  %s\n", plant_names[plant], texts[plant]);
    }
}

static bool read_number(const char *text, uint64_t most, uint64_t *out) {
    char *end = NULL;
    unsigned long long value = text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 0) : 0;

    *out = value;
    return end && *end == 0 && value <= most;
}

static bool read_plant(const char *text, enum sim_plant *out) {
    for (int plant = 0; plant < SIM_PLANTS; plant++) {
        if (strcmp(text, plant_names[plant]) == 0) {
            *out = (enum sim_plant)plant;
            return true;
        }
    }
    return false;
}

static bool read_strike(const char *text, struct sim_options *options) {
    unsigned long long at;
    int a, b, used = 0;
    bool fits = sscanf(text, "%llu,%d,%d%n", &at, &a, &b, &used) == 3 && !text[used] && a >= 0 &&
                a < SIM_IDS && b >= -1 && b < SIM_IDS && at > 0;

    if (fits) {
        options->strike_at = at;
        options->strike_a = a;
        options->strike_b = b;
    }
    return fits;
}

static int parse(int argc, char **argv, struct plan *plan) {
    static const struct option longs[] = {{"seed", required_argument, NULL, 's'},
                                          {"seeds", required_argument, NULL, 'n'},
                                          {"workers", required_argument, NULL, 'w'},
                                          {"steps", required_argument, NULL, 'k'},
                                          {"fixed", no_argument, NULL, 'f'},
                                          {"silly", no_argument, NULL, 'y'},
                                          {"faults", required_argument, NULL, 'm'},
                                          {"trace", no_argument, NULL, 't'},
                                          {"exhaustive", no_argument, NULL, 'x'},
                                          {"strike", required_argument, NULL, 'e'},
                                          {"plant", required_argument, NULL, 'p'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    struct sim_options *o = &plan->options;
    uint64_t value = 0;
    int letter;

    while ((letter = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        bool fits = true;
        switch (letter) {
        case 's':
            fits = read_number(optarg, UINT64_MAX, &o->seed);
            break;
        case 'n':
            fits = read_number(optarg, 1u << 30, &plan->seeds);
            break;
        case 'w':
            fits = read_number(optarg, SIM_IDS - 2, &value) && value > 1;
            o->workers = (int)value;
            break;
        case 'k':
            fits = read_number(optarg, 500, &o->steps);
            break;
        case 'm':
            fits = read_number(optarg, (1u << SIM_FAULTS) - 1, &value);
            o->faults = (unsigned)value;
            break;
        case 'e':
            fits = read_strike(optarg, o);
            break;
        case 'p':
            fits = read_plant(optarg, &o->plant);
            break;
        case 'f':
            o->fixed = true;
            break;
        case 'y':
            o->silly = true;
            break;
        case 't':
            o->trace = true;
            break;
        case 'x':
            plan->exhaustive = true;
            break;
        case 'h':
            usage(stdout);
            exit(0);
        default:
            return 64;
        }
        if (!fits) {
            fprintf(stderr, "ringfold-sim: '%s' does not fit\n", optarg);
            return 64;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "ringfold-sim: what is '%s'?\n", argv[optind]);
        return 64;
    }
    return 0;
}

/* The command that does the same once more. */
static void print_replay(const struct sim_options *o) {
    printf("  replay: ringfold-sim --seed %llu", (unsigned long long)o->seed);
    if (o->workers) {
        printf(" --workers %d", o->workers);
    }
    if (o->steps) {
        printf(" --steps %llu", (unsigned long long)o->steps);
    }
    if (o->faults != ~0u) {
        printf(" --faults %u", o->faults);
    }
    if (o->strike_at) {
        printf(" --strike %llu,%d,%d", (unsigned long long)o->strike_at, o->strike_a, o->strike_b);
    }
    printf("%s%s", o->fixed ? " --fixed" : "", o->silly ? " --silly" : "");
    if (o->plant) {
        printf(" --plant %s", plant_names[o->plant]);
    }
    printf(" --trace\n");
}

static void run_one(const struct sim_options *options, struct totals *totals,
                    struct sim_outcome *outcome) {
    sim_run(options, outcome);
    totals->runs++;
    totals->violated += outcome->violated;
    totals->lost += !outcome->violated && outcome->lost;
    totals->commits += outcome->commits;
    totals->generations += outcome->generations;
    totals->faults += outcome->faults;
    if (outcome->healed_after > totals->longest_heal) {
        totals->longest_heal = outcome->healed_after;
    }
    if (!outcome->violated && outcome->lost) {
        printf("seed %llu, event %llu, %lld ms: the newest state is lost\n",
               (unsigned long long)options->seed, (unsigned long long)outcome->events,
               (long long)(outcome->now / 1000000));
        print_replay(options);
    }
    if (outcome->violated) {
        printf("seed %llu, event %llu, %lld ms: %s\n", (unsigned long long)options->seed,
               (unsigned long long)outcome->events, (long long)(outcome->now / 1000000),
               outcome->text);
        print_replay(options);
        fflush(stdout);
    }
}

static void run_seeds(const struct plan *plan, struct totals *totals) {
    for (uint64_t i = 0; i < plan->seeds; i++) {
        struct sim_options options = plan->options;
        struct sim_outcome outcome;
        options.seed += i;
        run_one(&options, totals, &outcome);
        if (outcome.violated && options.plant) {
            return; /* found */
        }
    }
}

/* One step of a run without faults, and a strike before each of its events. */
static void run_exhaustive(const struct plan *plan, struct totals *totals) {
    struct sim_options options = plan->options;
    struct sim_outcome calm, outcome;

    options.workers = 3;
    options.faults = 0;
    options.steps = options.steps ? options.steps : 5;
    run_one(&options, totals, &calm);
    for (uint64_t at = calm.first_event; at <= calm.last_event && !calm.violated; at++) {
        for (int a = 0; a < 3; a++) {
            for (int b = -1; b < a; b++) {
                options.strike_at = at;
                options.strike_a = a;
                options.strike_b = b;
                run_one(&options, totals, &outcome);
            }
        }
    }
}

int main(int argc, char **argv) {
    struct plan plan = {.options = {.seed = 1, .faults = ~0u}, .seeds = 1};
    struct totals totals = {.runs = 0};

    int rc = parse(argc, argv, &plan);
    if (rc) {
        return rc;
    }
    sim_plant_set(plan.options.plant);
    if (plan.exhaustive) {
        run_exhaustive(&plan, &totals);
    } else {
        run_seeds(&plan, &totals);
    }
    printf("%llu runs, %llu violated, %llu lost their state; %llu commits, %llu generations, %llu "
           "faults; whole again within %lld ms\n",
           (unsigned long long)totals.runs, (unsigned long long)totals.violated,
           (unsigned long long)totals.lost, (unsigned long long)totals.commits,
           (unsigned long long)totals.generations, (unsigned long long)totals.faults,
           (long long)(totals.longest_heal / 1000000));
    return totals.violated ? 1 : 0;
}
