/* The rate of one large product of float32 matrices by oneDNN on one thread: what a step of
 * training is held against.
 *
 *   sgemm [SECONDS]     for so long (1); prints {"flops": operations a second of the best} */
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SIDE = 1024 };

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    double until = now_s() + (argc > 1 ? atof(argv[1]) : 1), best = 0;
    float *square[3];

    for (int i = 0; i < 3; i++) {
        square[i] = aligned_alloc(64, sizeof(float) * SIDE * SIDE);
        if (!square[i]) {
            fprintf(stderr, "sgemm: no memory for three matrices of %d x %d\n", SIDE, SIDE);
            return 1;
        }
        for (int k = 0; k < SIDE * SIDE; k++) {
            square[i][k] = (float)(k % 7);
        }
    }
    do {
        double began = now_s();
        if (dnnl_sgemm('N', 'N', SIDE, SIDE, SIDE, 1.0f, square[0], SIDE, square[1], SIDE, 0.0f,
                       square[2], SIDE)) {
            fprintf(stderr, "sgemm: oneDNN could not multiply\n");
            return 1;
        }
        double rate = 2.0 * SIDE * SIDE * SIDE / (now_s() - began);
        best = rate > best ? rate : best;
    } while (now_s() < until);
    printf("{\"flops\": %.0f}\n", best);
    for (int i = 0; i < 3; i++) {
        free(square[i]);
    }
    return 0;
}
