/* test_sharing.c - the worker pool when threads sleep at once instead of spinning: between the last look and the sleep is where
 * a wake-up can be lost, and one that is lost ends the test by never ending it. Emulated machines reorder what they should not,
 * and did. */
#define SKL__SPIN_ALL 1
#define SINKLESS_INTERNAL
#define SINKLESS_IMPLEMENTATION
#include "../sinkless.h"

#include "test.h"

#define CALLS 100000
#define ITEMS 3

static void count_item(void *arg, size_t index)
{
    volatile size_t delay = index * 37;

    while (delay > 0) delay--;
    skl__atomic_add((skl__count *)arg, 1);
}

int main(void)
{
    size_t threads, i;

    for (threads = 2; threads <= 3; threads++) {
        void *memory = malloc(skl__pool_size(threads));
        skl__pool *pool = skl__pool_open(memory, threads, NULL, NULL);
        skl__count done = 0;

        for (i = 0; i < CALLS; i++) skl__parallel(pool, ITEMS, count_item, &done);
        CHECK_EQ_INT(done, CALLS * ITEMS);
        skl__pool_close(pool);
        free(memory);
    }
    return test_finish();
}
