/* One thread for each rank or worker of a test. cmocka's assertions may not be used on them: there
 * CHECK_BY counts what does not hold, says it, and goes on; and the test looks at the count. */
#ifndef TESTS_SUPPORT_THREADS_H
#define TESTS_SUPPORT_THREADS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_THREADS = 16 };

static atomic_int failed_checks;

static inline void count_check(bool holds, const char *file, int line, const char *role, int number,
                               const char *condition) {
    if (!holds) {
        fprintf(stderr, "%s:%d: %s %d: %s\n", file, line, role, number, condition);
        atomic_fetch_add(&failed_checks, 1);
    }
}

#define CHECK_BY(role, number, condition)                                                          \
    count_check(condition, __FILE__, __LINE__, role, number, #condition)

struct numbered_thread {
    pthread_t thread;
    void (*body)(int number, void *context);
    int number;
    void *context;
};

struct threads {
    int count;
    struct numbered_thread each[MOST_THREADS];
};

static inline void *numbered_main(void *argument) {
    struct numbered_thread *self = argument;
    self->body(self->number, self->context);
    return NULL;
}

/* Runs `body(number, context)` for each number below `count`, each on a thread of its own. */
static inline void start_threads(struct threads *threads, int count,
                                 void (*body)(int number, void *context), void *context) {
    if (count > MOST_THREADS) {
        abort();
    }
    threads->count = count;
    for (int i = 0; i < count; i++) {
        struct numbered_thread *one = &threads->each[i];
        *one = (struct numbered_thread){.body = body, .number = i, .context = context};
        if (pthread_create(&one->thread, NULL, numbered_main, one) != 0) {
            abort();
        }
    }
}

static inline void join_threads(struct threads *threads) {
    for (int i = 0; i < threads->count; i++) {
        pthread_join(threads->each[i].thread, NULL);
    }
}

static inline void run_threads(int count, void (*body)(int number, void *context), void *context) {
    struct threads threads;

    start_threads(&threads, count, body, context);
    join_threads(&threads);
}

#endif
