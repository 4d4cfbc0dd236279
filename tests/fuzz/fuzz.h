/* fuzz.h - what the fuzz targets share. Each is a libFuzzer entry point (make fuzz). Compiled with FUZZ_REPLAY it is a
 * program instead that runs the files named on its command line once, with any compiler. */
#ifndef SINKLESS_FUZZ_H
#define SINKLESS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUZZ_MOST_FILE ((size_t)1 << 26)

/* For what must hold whatever the input is: the fuzzer reports a trap as a crash. */
#define FUZZ_REQUIRE(condition) do { if (!(condition)) __builtin_trap(); } while (0)

#ifdef __cplusplus
extern "C"
#endif
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A whole file in memory of malloc, or NULL. */
static inline uint8_t *fuzz_read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = file ? (uint8_t *)malloc(FUZZ_MOST_FILE) : NULL;
    uint8_t *exact = NULL;

    *size = data ? fread(data, 1, FUZZ_MOST_FILE, file) : 0;
    if (data) exact = (uint8_t *)realloc(data, *size ? *size : 1);  /* so that reading beyond its end is noticed */
    if (file) fclose(file);
    return exact ? exact : data;
}

#if defined(FUZZ_REPLAY)
int main(int argc, char **argv)
{
    int i;

    for (i = 1; i < argc; i++) {
        size_t size;
        uint8_t *data = fuzz_read_file(argv[i], &size);

        if (!data) {
            fprintf(stderr, "%s: cannot be read\n", argv[i]);
            return 1;
        }
        LLVMFuzzerTestOneInput(data, size);
        free(data);
    }
    printf("%d passed, 0 failed\n", argc - 1);
    return 0;
}
#endif

#endif /* SINKLESS_FUZZ_H */
