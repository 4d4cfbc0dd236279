/* test.h - what every test program needs: checks that count, and a last line that says how it went.
 *
 *     CHECK(condition);  CHECK_EQ_INT(got, wanted);  CHECK_NEAR(got, wanted, tolerance);  CHECK_STR(got, wanted);
 *     return test_finish();
 *
 * A failed check prints its place and both values, and the program goes on. Only the first failures are printed.
 */
#ifndef SINKLESS_TEST_H
#define SINKLESS_TEST_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TEST_SHOWN 40 /* failures that are printed; the rest is only counted */

#define CHECK(condition) test_true(!!(condition), #condition, __FILE__, __LINE__)
#define CHECK_EQ_INT(got, wanted) test_int((long long)(got), (long long)(wanted), #got, __FILE__, __LINE__)
#define CHECK_NEAR(got, wanted, tolerance) test_near((got), (wanted), (tolerance), #got, __FILE__, __LINE__)
#define CHECK_STR(got, wanted) test_str((got), (wanted), #got, __FILE__, __LINE__)

static unsigned long test_passed, test_failed;

/* Counts one check; true if it failed and is to be shown. */
static inline int test_count(int good)
{
    if (good) {
        test_passed++;
        return 0;
    }
    return ++test_failed <= TEST_SHOWN;
}

static inline int test_true(int good, const char *what, const char *file, int line)
{
    if (test_count(good)) printf("%s:%d: failed: %s\n", file, line, what);
    return good;
}

static inline int test_int(long long got, long long wanted, const char *what, const char *file, int line)
{
    const int good = got == wanted;

    if (test_count(good)) printf("%s:%d: %s is %lld, not %lld\n", file, line, what, got, wanted);
    return good;
}

/* NaN is near nothing. */
static inline int test_near(double got, double wanted, double tolerance, const char *what, const char *file, int line)
{
    const int good = got == wanted || fabs(got - wanted) <= tolerance;

    if (test_count(good)) printf("%s:%d: %s is %.9g, not %.9g (+- %.3g)\n", file, line, what, got, wanted, tolerance);
    return good;
}

static inline int test_str(const char *got, const char *wanted, const char *what, const char *file, int line)
{
    const int good = got && wanted && strcmp(got, wanted) == 0;

    if (test_count(good)) {
        printf("%s:%d: %s is \"%s\", not \"%s\"\n", file, line, what, got ? got : "(null)", wanted ? wanted : "(null)");
    }
    return good;
}

/* Prints the result; returns the exit code of the program. */
static inline int test_finish(void)
{
    printf("%lu passed, %lu failed\n", test_passed, test_failed);
    return test_failed != 0;
}

#endif /* SINKLESS_TEST_H */
