/* Bugs that can be planted, to see that the checkers find them. The linker puts a function of ours
 * before one of the library's (--wrap), so that the library itself knows nothing of this. */
#ifndef SIM_PLANT_H
#define SIM_PLANT_H

#include <stdbool.h>

/* X(name, what the bug does) */
#define SIM_PLANT_LIST(X)                                                                          \
    X(retry, "a unit that all survivors had prepared is taken back")                               \
    X(forget, "the report of a member that leaves does not say that it was prepared")              \
    X(whole, "every member of a new generation is taken for whole, whatever it holds")             \
    X(swap, "the store swaps whatever the expected revision was")                                  \
    X(barrier, "a member that is prepared does not wait for the others' reports")                  \
    X(hash, "nobody looks at the hash of the state")

enum sim_plant {
    SIM_PLANT_NONE,
#define SIM_X(name, text) SIM_PLANT_##name,
    SIM_PLANT_LIST(SIM_X)
#undef SIM_X
        SIM_PLANTS
};

void sim_plant_set(enum sim_plant plant);

struct rf__op;
struct rf__op_params;
struct sim_worker;

/* What the runner starts, and has started; whether the wait for it is skipped, its result being
 * made up. */
void sim_plant_starts(struct sim_worker *worker, struct rf__op_params *params);
void sim_plant_started(struct sim_worker *worker, const struct rf__op_params *params,
                       const struct rf__op *op);
bool sim_plant_skips(struct sim_worker *worker, const struct rf__op *op);

#endif
