/* test_kernels.c - the integer matmuls: the scalar definition against sums in long double over codes that the test
 * unpacks by itself, and every other kernel level of this machine against the scalar one, bit for bit. Shapes are odd,
 * codes and scales extreme, and everything a kernel touches ends at a page it must not touch.
 *
 * Tolerance. A chain of u fused multiply-adds is off by at most u roundings (6e-8) of the largest partial sum, and the
 * scales multiply with one more; shapes here have at most 400 units, so 3e-5 of the sum of magnitudes bounds it.
 */
#if !defined(_WIN32) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#define SINKLESS_INTERNAL
#define SINKLESS_IMPLEMENTATION
#include "../sinkless.h"

#include "test.h"

#define ROUNDS 1200

static uint64_t random_state = 7;

static uint32_t random_bits(void) /* splitmix64, the upper half */
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

static size_t random_below(size_t n)
{
    return random_bits() % n;
}

/* --- memory that ends where access ends --- */

typedef struct guarded {
    unsigned char *base;
    size_t bytes;              /* mapped, guard included */
    unsigned char *data;       /* as many bytes as asked for, up to the guard */
} guarded;

static guarded guarded_alloc(size_t size)
{
    guarded g;
#if defined(_WIN32)
    g.bytes = size;
    g.base = g.data = (unsigned char *)calloc(size + 1, 1);
#else
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (size + page - 1) / page * page;
    void *base;

    g.bytes = used + page;
    base = mmap(NULL, g.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    g.base = base == MAP_FAILED ? NULL : (unsigned char *)base;
    if (g.base && mprotect(g.base + used, page, PROT_NONE) != 0) g.base = NULL;
    g.data = g.base ? g.base + (used - size) : NULL;
#endif
    if (!g.base) {
        puts("test_kernels: out of memory");
        exit(1);
    }
    return g;
}

static void guarded_free(guarded *g)
{
#if defined(_WIN32)
    free(g->base);
#else
    munmap(g->base, g->bytes);
#endif
    memset(g, 0, sizeof *g);
}

/* --- one case --- */

typedef struct kernel_case {
    int bits, small;           /* small: activation codes in [-7, 7] */
    size_t tokens, tile_begin, tile_end, y_stride, y_size;
    skl__matrix w;
    skl__acts x;
    guarded weights, codes, scales, sums, y;
} kernel_case;

static float half_value(uint16_t half) /* exact, by the definition of the format */
{
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    const double magnitude = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);

    return (float)(half & 0x8000u ? -magnitude : magnitude);
}

static uint16_t random_half(void)
{
    switch (random_below(8)) {
    case 0: return 0;
    case 1: return (uint16_t)(random_bits() & 0x83ffu);                                       /* a subnormal */
    case 2: return 0x7bff;                                                                    /* 65504, the largest */
    default: return (uint16_t)((random_bits() & 0x83ffu) | (uint32_t)(8 + random_below(10)) << 10);
    }
}

static unsigned char *code_bytes(const kernel_case *c, size_t row)
{
    return c->weights.data + row / 16 * c->w.stride;
}

/* Where a scale (or, after all scales, a minimum) lies in its tile. */
static unsigned char *scale_place(const kernel_case *c, size_t row, size_t index)
{
    return code_bytes(c, row) + c->w.columns * (c->bits == 4 ? 8 : 16) + (index * 16 + row % 16) * (c->w.wide ? 4 : 2);
}

static float scale_value(const kernel_case *c, size_t row, size_t index)
{
    const unsigned char *place = scale_place(c, row, index);
    uint16_t half;
    float wide;

    memcpy(&half, place, sizeof half);
    if (!c->w.wide) return half_value(half);
    memcpy(&wide, place, sizeof wide);
    return wide;
}

/* The stored code: lines of 64 bytes, 4 columns of 16 rows each. */
static int code_value(const kernel_case *c, size_t row, size_t k)
{
    const unsigned char *tile = code_bytes(c, row);

    if (c->bits == 8) return (int)(signed char)tile[k / 4 * 64 + row % 16 * 4 + k % 4];
    tile += k / 32 * 256 + k % 16 / 4 * 64 + row % 16 * 4 + k % 4;
    return k % 32 < 16 ? *tile & 15 : *tile >> 4;
}

static void fill_weights(kernel_case *c)
{
    static const unsigned char extremes[3][2] = {{0x0f, 0xf0}, {0xff, 0x80}, {0x7f, 0x80}};
    const size_t kind = random_below(4), rows = (c->w.rows + 15) / 16 * 16;
    const size_t scales = c->w.columns / c->w.group * (c->w.minimum ? 2 : 1);
    const size_t codes = c->w.columns * (c->bits == 4 ? 8 : 16);
    size_t tile, i, row;

    for (tile = 0; tile < rows / 16; tile++) {
        unsigned char *data = c->weights.data + tile * c->w.stride;
        for (i = 0; i < codes; i++) {
            data[i] = kind < 3 ? extremes[kind][random_below(2)] : (unsigned char)random_bits();
            if (tile * 16 + i % 64 / 4 >= c->w.rows) data[i] = 0;
        }
    }
    for (row = 0; row < c->w.rows; row++) {
        for (i = 0; i < scales; i++) {
            const uint16_t half = random_half();
            const float wide = half_value(half) * (1.0f + (float)random_below(1000) * 1.1e-6f);

            memcpy(scale_place(c, row, i), c->w.wide ? (const void *)&wide : (const void *)&half, c->w.wide ? 4 : 2);
        }
    }
}

static void fill_activations(kernel_case *c)
{
    const size_t runs = c->x.columns / 32, kind = random_below(4);
    const int limit = c->small ? 7 : 127;
    int8_t *codes = (int8_t *)c->codes.data;
    float *scales = (float *)(void *)c->scales.data;
    int32_t *sums = (int32_t *)(void *)c->sums.data;
    size_t i, t;

    for (i = 0; i < c->tokens * c->x.stride; i++) {
        codes[i] = (int8_t)(kind == 0 ? limit : kind == 1 ? -limit : kind == 2 ? (random_below(2) ? limit : -limit)
                                      : (int)random_below(2 * (size_t)limit + 1) - limit);
    }
    for (i = 0; i < (c->x.row ? c->tokens : c->tokens * runs); i++) {
        scales[i] = random_below(9) == 0 ? 0.0f : (float)random_below(100000) * 1e-6f;
    }
    memset(sums, 0, c->tokens * runs * sizeof *sums);
    for (t = 0; t < c->tokens; t++) {
        for (i = 0; i < c->x.columns; i++) sums[t * runs + i / 32] += codes[t * c->x.stride + i];
    }
    c->x.codes = codes;
    c->x.scales = scales;
    c->x.sums = sums;
}

/* decoding: one token and the format that decoding is tuned for, which chance alone would hardly ever draw. */
static kernel_case case_make(int decoding)
{
    static const size_t groups[] = {16, 32, 64, 128, 0};
    kernel_case c;
    size_t group, columns, tiles, scales;

    memset(&c, 0, sizeof c);
    c.bits = decoding || random_below(2) ? 4 : 8;
    c.small = c.bits == 4 && random_below(2);
    c.tokens = decoding ? 1 : random_below(8) == 0 ? 33 + random_below(80) : 1 + random_below(13);
    c.x.row = !decoding && random_below(2);
    group = decoding ? 32 : groups[random_below(5)];
    if (group == 16 && c.bits == 4) group = 32;
    columns = 32 * (1 + random_below(random_below(4) ? 9 : random_below(8) ? 48 : 320));
    if (group > 32) columns = (columns + group - 1) / group * group;

    c.w.storage = c.bits == 4 ? SKL__TILES_4 : SKL__TILES_8;
    c.w.rows = 1 + random_below(decoding || random_below(8) == 0 ? 300 : 50);
    c.w.columns = columns;
    c.w.group = group ? group : columns;
    c.w.wide = !decoding && random_below(2);
    c.w.minimum = !decoding && random_below(2);
    scales = columns / c.w.group * 16 * (c.w.wide ? 4 : 2) * (c.w.minimum ? 2 : 1);
    c.w.stride = (columns * (c.bits == 4 ? 8 : 16) + scales + 63) / 64 * 64;
    tiles = (c.w.rows + 15) / 16;
    c.tile_begin = random_below(tiles);
    c.tile_end = c.tile_begin + 1 + random_below(tiles - c.tile_begin);

    /* the last tile may end with zeros that no kernel needs: without them the data is also misaligned */
    c.weights = guarded_alloc(tiles * c.w.stride + (random_below(2) ? 1 + random_below(63) : 0));
    c.w.data = c.weights.data;
    c.x.columns = columns;
    c.x.stride = (columns + 63) / 64 * 64 + 64 * random_below(2);
    c.codes = guarded_alloc(c.tokens * c.x.stride);
    c.scales = guarded_alloc(c.tokens * (c.x.row ? 1 : columns / 32) * sizeof(float));
    c.sums = guarded_alloc(c.tokens * (columns / 32) * sizeof(int32_t));
    c.y_stride = c.w.rows + random_below(3);
    c.y_size = (c.tokens - 1) * c.y_stride + c.w.rows;
    c.y = guarded_alloc(c.y_size * sizeof(float));
    fill_weights(&c);
    fill_activations(&c);
    return c;
}

static void case_free(kernel_case *c)
{
    guarded_free(&c->weights);
    guarded_free(&c->codes);
    guarded_free(&c->scales);
    guarded_free(&c->sums);
    guarded_free(&c->y);
}

/* y of one kernel; what it must leave alone is set to a pattern first. */
static float *case_run(kernel_case *c, skl__matmul *kernel)
{
    float *y = (float *)(void *)c->y.data;

    memset(y, 0xcd, c->y_size * sizeof *y);
    kernel(y, c->y_stride, &c->w, c->tile_begin, c->tile_end, &c->x, c->tokens);
    return y;
}

/* --- scalar against long double --- */

static int output_is_near(const kernel_case *c, size_t row, size_t token, float got)
{
    const size_t groups = c->w.columns / c->w.group;
    const int offset = c->bits == 4 && !c->w.minimum ? 8 : 0;
    long double sum = 0.0L, magnitude = 0.0L;
    size_t k;

    for (k = 0; k < c->w.columns; k++) {
        const long double x_scale = (long double)c->x.scales[c->x.row ? token : token * (c->x.columns / 32) + k / 32];
        const long double x = x_scale * c->x.codes[token * c->x.stride + k];
        const long double scale = (long double)scale_value(c, row, k / c->w.group);
        const long double scaled = scale * (code_value(c, row, k) - offset);
        const long double minimum = c->w.minimum ? (long double)scale_value(c, row, groups + k / c->w.group) : 0.0L;

        sum += x * scaled + x * minimum;
        magnitude += fabsl(x * scaled) + fabsl(x * minimum);
    }
    return fabsl((long double)got - sum) <= 3e-5L * magnitude + 1e-38L;
}

static int scalar_is_right(kernel_case *c)
{
    const float *y = case_run(c, skl__matmul_scalar);
    float untouched;
    size_t row, token;
    int good = 1;

    memset(&untouched, 0xcd, sizeof untouched);
    for (token = 0; token < c->tokens; token++) {
        for (row = 0; row < c->w.rows; row++) {
            const float got = y[token * c->y_stride + row];
            if (row / 16 >= c->tile_begin && row / 16 < c->tile_end) good = good && output_is_near(c, row, token, got);
            else good = good && memcmp(&got, &untouched, sizeof got) == 0;
        }
    }
    return good;
}

/* --- every level against scalar --- */

static void check_kernel(kernel_case *c, const char *level, const char *name, skl__matmul *kernel, const float *wanted)
{
    const float *y = case_run(c, kernel);
    size_t i = 0;

    if (CHECK(memcmp(y, wanted, c->y_size * sizeof *y) == 0)) return;
    while (memcmp(&y[i], &wanted[i], sizeof *y) == 0) i++;
    printf("  %s %s: token %zu row %zu is %.9g, not %.9g;", level, name, i / c->y_stride, i % c->y_stride, (double)y[i],
           (double)wanted[i]);
    printf(" rows %zu columns %zu group %zu tiles %zu..%zu tokens %zu%s%s%s\n", c->w.rows, c->w.columns, c->w.group,
           c->tile_begin, c->tile_end, c->tokens, c->x.row ? " row" : "", c->w.wide ? " wide" : "",
           c->w.minimum ? " minimum" : "");
}

static void test_levels(kernel_case *c, float *wanted)
{
    int isa;

    memcpy(wanted, case_run(c, skl__matmul_scalar), c->y_size * sizeof *wanted);
    for (isa = SKL_ISA_DEFAULT + 1; isa < SKL_ISA_COUNT; isa++) {
        const skl__kernels *kernels = skl__kernels_for((skl_isa)isa);
        const char *level = skl_isa_name((skl_isa)isa);

        if (!kernels) continue;
        if (c->bits == 8) check_kernel(c, level, "q8_a8", kernels->matmul_q8_a8, wanted);
        else check_kernel(c, level, "q4_a8", kernels->matmul_q4_a8, wanted);
        if (c->small) check_kernel(c, level, "q4_a4", kernels->matmul_q4_a4, wanted);
    }
}

int main(void)
{
    float *wanted;
    kernel_case c;
    int i;

    for (i = 0; i < ROUNDS; i++) {
        c = case_make(i % 4 == 3);
        wanted = (float *)malloc(c.y_size * sizeof *wanted);
        if (!wanted) return 1;
        if (i < ROUNDS / 4) CHECK(scalar_is_right(&c));
        test_levels(&c, wanted);
        free(wanted);
        case_free(&c);
    }
    return test_finish();
}
