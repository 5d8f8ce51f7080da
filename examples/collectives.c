/* Two collectives, with numbers small enough to follow by hand. Rank r holds [2r+1, 2r+2]:
 *
 *     all-reduce (sum)   every rank gets the sum over the ranks
 *     all-gather         every rank gets everybody's numbers, in the order of the ranks
 *
 * Run it with as many workers as you like:   ringfold run -n 3 -- build/bin/example_collectives */
#include <ringfold/ringfold.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 2, TEXT_MAX = 4096 };

/* "[9, 12]", cut short where there is no room for more. */
static const char *list(char text[TEXT_MAX], const float *values, int count) {
    size_t at = 0;
    for (int i = 0; i < count && at < TEXT_MAX - 32; i++) {
        at += (size_t)snprintf(text + at, TEXT_MAX - at, "%s%g", i ? ", " : "[", (double)values[i]);
    }
    snprintf(text + at, TEXT_MAX - at, "]");
    return text;
}

int main(int argc, char **argv, char **environ_) {
    struct rf_options options;
    struct rf_comm *comm = NULL;
    struct rf_error err = {0};
    float *everything = NULL;
    char text[TEXT_MAX];
    (void)argc;
    (void)argv;

    /* `ringfold run` leaves in the environment who we are and where to meet; without it this is a
     * group of one. */
    rf_options_init(&options);
    int rc = rf_options_from_environ(&options, environ_, &err);
    if (!rc) {
        rc = rf_comm_create(&options, &comm, &err);
    }
    if (rc) {
        goto out;
    }

    int rank = rf_rank(comm), size = rf_size(comm);
    float mine[COUNT] = {(float)(2 * rank + 1), (float)(2 * rank + 2)}, sum[COUNT];
    printf("rank %d of %d holds      %s\n", rank, size, list(text, mine, COUNT));

    rc = rf_allreduce(comm, mine, sum, COUNT, RF_F32, RF_SUM);
    if (rc) {
        goto out;
    }
    printf("rank %d of %d all-reduce %s\n", rank, size, list(text, sum, COUNT));

    everything = calloc((size_t)size * COUNT, sizeof *everything);
    rc = everything ? rf_all_gather(comm, mine, everything, COUNT, RF_F32) : RF_ENOMEM;
    if (rc) {
        goto out;
    }
    printf("rank %d of %d all-gather %s\n", rank, size, list(text, everything, size * COUNT));

out:
    if (rc) {
        if (comm && !err.code) {
            rf_comm_error(comm,
                          &err); /* what happened to the group, if it was not this call alone */
        }
        fprintf(stderr, "collectives: %s\n", err.text[0] ? err.text : rf_error_text(rc));
    }
    free(everything);
    rf_comm_destroy(comm);
    return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
