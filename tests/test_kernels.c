/* test_kernels.c - every kernel of every level of this machine against the scalar one, bit for bit. Shapes are odd, codes,
 * scales and values extreme, and everything a kernel touches ends at a page it must not touch. The scalar integer matmul
 * itself is held against sums in long double over codes that the test unpacks by itself; what the other scalar kernels
 * compute is the matter of test_units.c.
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
    guarded weights, codes, scales, sums, values, y;
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
    for (i = 0; i < c->tokens * c->x.columns; i++) {
        const float value = (float)random_below(100000) * 1e-4f - 5.0f;
        memcpy(c->values.data + i * sizeof value, &value, sizeof value);
    }
    c->x.codes = codes;
    c->x.scales = scales;
    c->x.sums = sums;
    c->x.values = (const float *)(const void *)c->values.data;
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
    if (!decoding && random_below(8) == 0) {
        c.tokens = 15 + random_below(19); /* tile registers take 16 */
        if (random_below(4) == 0) {       /* and sums of one unit go through several panels */
            c.x.row = 1;
            group = 0;
            columns = 32 * (65 + random_below(40));
        }
    }
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
    c.values = guarded_alloc(c.tokens * columns * sizeof(float));
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
    guarded_free(&c->values);
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

/* --- rows as floats --- */

/* Every level makes these values of a row, and nothing behind them. */
static void check_unpacked(const skl__matrix *w, size_t row, const float *wanted)
{
    guarded g = guarded_alloc(w->columns * sizeof(float));
    int isa;

    for (isa = SKL_ISA_SCALAR; isa < SKL_ISA_COUNT; isa++) {
        const skl__kernels *kernels = skl__kernels_for((skl_isa)isa, 0);
        if (!kernels) continue;
        memset(g.data, 0xcd, w->columns * sizeof(float));
        kernels->lanes->unpack_row((float *)(void *)g.data, w, row);
        if (!CHECK(memcmp(g.data, wanted, w->columns * sizeof(float)) == 0))
            printf("  %s unpack_row %zu: storage %d, columns %zu group %zu%s%s\n", skl_isa_name((skl_isa)isa), row,
                   (int)w->storage, w->columns, w->group, w->wide ? " wide" : "", w->minimum ? " minimum" : "");
    }
    guarded_free(&g);
}

/* Scale times code, rounded to float, and then plus the minimum, rounded again. A double holds the product, and of the sum so
 * many bits (53, more than 2 * 24 + 1) that rounding twice is rounding once. */
static void test_unpacking_tiles(const kernel_case *c)
{
    const size_t groups = c->w.columns / c->w.group, row = random_below(c->w.rows);
    const int offset = c->bits == 4 && !c->w.minimum ? 8 : 0;
    float *wanted = (float *)malloc(c->w.columns * sizeof *wanted);
    skl_layout layout;
    size_t k;

    if (!CHECK(wanted != NULL)) return;
    for (k = 0; k < c->w.columns; k++) {
        wanted[k] = (float)((double)scale_value(c, row, k / c->w.group) * (code_value(c, row, k) - offset));
        if (c->w.minimum) wanted[k] = (float)((double)wanted[k] + (double)scale_value(c, row, groups + k / c->w.group));
    }
    check_unpacked(&c->w, row, wanted);
    layout.bits = c->bits;
    layout.minimum = c->w.minimum;
    layout.wide = c->w.wide;
    layout.rows = c->w.rows;
    layout.columns = c->w.columns;
    layout.group = c->w.group;
    if (skl_packed_bytes(&layout) && CHECK_EQ_INT(skl_unpack_row(&layout, c->w.data, row, (float *)(void *)c->values.data), SKL_OK))
        CHECK(memcmp(c->values.data, wanted, c->w.columns * sizeof *wanted) == 0);
    free(wanted);
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

static skl__matmul *matmul_f32(const kernel_case *c, const skl__kernels *kernels)
{
    return c->bits == 8 ? kernels->lanes->matmul_q8_f32 : kernels->lanes->matmul_q4_f32;
}

static void test_levels(kernel_case *c, float *wanted)
{
    int isa;

    if (c->w.columns <= 512 && c->tokens < 16) { /* the reference format is slow */
        memcpy(wanted, case_run(c, matmul_f32(c, skl__kernels_for(SKL_ISA_SCALAR, 0))), c->y_size * sizeof *wanted);
        for (isa = SKL_ISA_SCALAR + 1; isa < SKL_ISA_COUNT; isa++) {
            const skl__kernels *kernels = skl__kernels_for((skl_isa)isa, 0);
            if (kernels) check_kernel(c, skl_isa_name((skl_isa)isa), "codes by f32", matmul_f32(c, kernels), wanted);
        }
    }
    memcpy(wanted, case_run(c, skl__matmul_scalar), c->y_size * sizeof *wanted);
    for (isa = SKL_ISA_DEFAULT + 1; isa < SKL_ISA_COUNT; isa++) {
        const skl__kernels *kernels = skl__kernels_for((skl_isa)isa, 0);
        const char *level = skl_isa_name((skl_isa)isa);

        if (!kernels) continue;
        if (c->bits == 8) check_kernel(c, level, "q8_a8", kernels->matmul_q8_a8, wanted);
        else check_kernel(c, level, "q4_a8", kernels->matmul_q4_a8, wanted);
        if (c->small) check_kernel(c, level, "q4_a4", kernels->matmul_q4_a4, wanted);
    }
}

/* --- kernels of floats --- */

/* What they read and write: arrays whose last n values are meant, and codes as quantisation makes them. */
enum { MOST_VALUES = 1057, ARRAYS = 4, ARRAY_VALUES = 9 * MOST_VALUES, RUNS = (MOST_VALUES + 31) / 32 };

typedef struct row_case {
    const skl__lane_kernels *lanes;
    size_t n;
    guarded arrays[ARRAYS];            /* [ARRAY_VALUES] floats each */
    guarded codes, scales, sums;       /* [MOST_VALUES] bytes, [RUNS], [RUNS] */
} row_case;

static float *last_floats(const row_case *r, size_t array, size_t n)
{
    return (float *)(void *)(r->arrays[array].data + (ARRAY_VALUES - n) * sizeof(float));
}

/* Of every size that has a square and whose sums are finite; zeros of both signs and subnormal values among them. */
static float random_value(void)
{
    static const float few[] = {0.0f, -0.0f, 1e-45f, -3e-39f, 1e15f, -1e15f, 1e-20f, 88.8f, -104.0f};
    const float value = (float)random_below(1u << 24) * 9.5367431640625e-7f - 8.0f;

    return random_below(8) ? value : few[random_below(sizeof few / sizeof *few)];
}

static void row_fill(row_case *r, uint64_t seed)
{
    size_t array, i;

    random_state = seed;
    for (array = 0; array < ARRAYS; array++) {
        float *values = last_floats(r, array, 9 * r->n); /* no kernel is given more */
        memset(r->arrays[array].data, 0, ARRAY_VALUES * sizeof *values);
        for (i = 0; i < 9 * r->n; i++) values[i] = random_value();
    }
    memset(r->codes.data, 99, MOST_VALUES);
    memset(r->scales.data, 99, RUNS * sizeof(float));
    memset(r->sums.data, 99, RUNS * sizeof(int32_t));
}

/* One run of a kernel; a result that is no array goes to the end of the last array. */
static void run_exp(row_case *r) { r->lanes->exp(last_floats(r, 0, r->n), r->n); }
static void run_silu(row_case *r) { r->lanes->silu(last_floats(r, 0, r->n), r->n); }
static void run_gate(row_case *r) { r->lanes->gate(last_floats(r, 0, r->n), last_floats(r, 1, r->n), r->n, 1); }
static void run_gate_heads(row_case *r) { r->lanes->gate(last_floats(r, 0, 3 * r->n), last_floats(r, 1, 3), 3 * r->n, r->n); }

static void run_units(row_case *r)
{
    r->lanes->gated_unit(last_floats(r, 0, r->n), last_floats(r, 3, r->n), r->n, SKL__UNIT_SILU);
    r->lanes->gated_unit(last_floats(r, 1, r->n), last_floats(r, 3, r->n), r->n, SKL__UNIT_GELU);
    r->lanes->gated_unit(last_floats(r, 2, r->n), last_floats(r, 3, r->n), r->n, SKL__UNIT_SIGMOID);
}

static void run_scale(row_case *r) { r->lanes->scale(last_floats(r, 0, r->n), 0.3f, r->n); }
static void run_add(row_case *r) { r->lanes->add(last_floats(r, 0, r->n), last_floats(r, 1, r->n), r->n); }

static void run_dot(row_case *r)
{
    *last_floats(r, 3, 1) = r->lanes->dot(last_floats(r, 0, r->n), last_floats(r, 1, r->n), r->n);
}

static void run_rms_norm(row_case *r)
{
    float *x = last_floats(r, 0, r->n), *weight = last_floats(r, 1, r->n);

    r->lanes->rms_norm(last_floats(r, 2, r->n), x, NULL, weight, r->n, 1e-6f);
    r->lanes->rms_norm(last_floats(r, 3, r->n), x, weight, NULL, r->n, 1e-6f);
    r->lanes->rms_norm(x, x, NULL, NULL, r->n, 1e-6f);
}

static void run_dyt(row_case *r)
{
    r->lanes->dyt(last_floats(r, 3, r->n), last_floats(r, 0, r->n), last_floats(r, 1, r->n), last_floats(r, 2, r->n), 0.7f, r->n);
}

static void run_rope(row_case *r)
{
    const size_t half = (r->n + 1) / 2;

    r->lanes->rope(last_floats(r, 0, 2 * half), last_floats(r, 2, half), last_floats(r, 3, half), 2 * half, 0);
    r->lanes->rope(last_floats(r, 1, 2 * half), last_floats(r, 2, 2 * half), last_floats(r, 3, 2 * half), 2 * half, 1);
}

static void run_softmax(row_case *r)
{
    float null_mass[2];

    null_mass[0] = r->lanes->softmax(last_floats(r, 0, r->n), r->n, SKL__NO_NULL);
    null_mass[1] = r->lanes->softmax(last_floats(r, 1, r->n), r->n, 0.5f);
    memcpy(last_floats(r, 3, 2), null_mass, sizeof null_mass);
}

static void run_mix(row_case *r)
{
    const size_t count = 1 + r->n % 9;

    r->lanes->mix(last_floats(r, 3, r->n), last_floats(r, 0, count * r->n), r->n, last_floats(r, 1, count), count, r->n);
}

static void run_quantise(row_case *r, float levels, int row)
{
    const size_t runs = (r->n + 31) / 32;
    int8_t *codes = (int8_t *)r->codes.data + (MOST_VALUES - r->n);
    float *scales = (float *)(void *)r->scales.data + (RUNS - (row ? 1 : runs));
    int32_t *sums = (int32_t *)(void *)r->sums.data + (RUNS - runs);

    r->lanes->quantise(last_floats(r, 0, r->n), r->n, levels, row, codes, scales, sums);
}

static void run_quantise_a8(row_case *r) { run_quantise(r, 127.0f, 0); }
static void run_quantise_a4(row_case *r) { run_quantise(r, 7.0f, 0); }
static void run_quantise_row(row_case *r) { run_quantise(r, 127.0f, 1); }

static const struct {
    const char *name;
    void (*run)(row_case *r);
} row_kernels[] = {
    {"exp", run_exp}, {"silu", run_silu}, {"gate", run_gate}, {"gate of heads", run_gate_heads}, {"gated units", run_units},
    {"scale", run_scale}, {"add", run_add}, {"dot", run_dot}, {"rms_norm", run_rms_norm}, {"dyt", run_dyt}, {"rope", run_rope},
    {"softmax", run_softmax}, {"mix", run_mix}, {"quantise a8", run_quantise_a8}, {"quantise a4", run_quantise_a4},
    {"quantise row", run_quantise_row},
};

static int same_rows(const row_case *a, const row_case *b)
{
    size_t i;

    for (i = 0; i < ARRAYS; i++)
        if (memcmp(a->arrays[i].data, b->arrays[i].data, ARRAY_VALUES * sizeof(float)) != 0) return 0;
    return memcmp(a->codes.data, b->codes.data, MOST_VALUES) == 0 &&
           memcmp(a->scales.data, b->scales.data, RUNS * sizeof(float)) == 0 &&
           memcmp(a->sums.data, b->sums.data, RUNS * sizeof(int32_t)) == 0;
}

static row_case row_make(void)
{
    row_case r;
    size_t i;

    r.lanes = skl__kernels_for(SKL_ISA_SCALAR, 0)->lanes;
    r.n = 0;
    for (i = 0; i < ARRAYS; i++) r.arrays[i] = guarded_alloc(ARRAY_VALUES * sizeof(float));
    r.codes = guarded_alloc(MOST_VALUES);
    r.scales = guarded_alloc(RUNS * sizeof(float));
    r.sums = guarded_alloc(RUNS * sizeof(int32_t));
    return r;
}

static void row_free(row_case *r)
{
    size_t i;

    for (i = 0; i < ARRAYS; i++) guarded_free(&r->arrays[i]);
    guarded_free(&r->codes);
    guarded_free(&r->scales);
    guarded_free(&r->sums);
}

/* Whatever a kernel leaves in its arrays, and beside what it was given, is the same for all levels. */
static void test_rows(void)
{
    static const size_t long_rows[] = {256, 300, 511, 512, 513, 1024, MOST_VALUES};
    row_case wanted = row_make(), got = row_make();
    size_t kernel, i;
    int isa;

    for (kernel = 0; kernel < sizeof row_kernels / sizeof *row_kernels; kernel++)
        for (i = 1; i < 140 + sizeof long_rows / sizeof *long_rows; i++) {
            const uint64_t seed = i * 1000 + kernel;
            wanted.n = i < 140 ? i : long_rows[i - 140];
            row_fill(&wanted, seed);
            row_kernels[kernel].run(&wanted);
            for (isa = SKL_ISA_SCALAR + 1; isa < SKL_ISA_COUNT; isa++) {
                if (!skl__kernels_for((skl_isa)isa, 0)) continue;
                got.lanes = skl__kernels_for((skl_isa)isa, 0)->lanes;
                got.n = wanted.n;
                row_fill(&got, seed);
                row_kernels[kernel].run(&got);
                if (!CHECK(same_rows(&got, &wanted)))
                    printf("  %s %s, %zu values\n", skl_isa_name((skl_isa)isa), row_kernels[kernel].name, got.n);
            }
        }
    row_free(&wanted);
    row_free(&got);
}

/* --- matrices of floats, by rows and by columns --- */

/* A sum that is not finite is no matter here: what is left of a NaN is for the compiler to say. */
static void fill_floats(guarded *g, size_t n, float largest)
{
    size_t i;

    for (i = 0; i < n; i++) {
        const float any = random_value(), value = any > largest ? largest : any < -largest ? -largest : any;
        memcpy(g->data + i * sizeof value, &value, sizeof value);
    }
}

static void fill_weights_of(guarded *g, skl__storage storage, size_t n)
{
    size_t i;

    if (storage == SKL__ROWS_F32) fill_floats(g, n, FLT_MAX);
    for (i = 0; i < n && storage != SKL__ROWS_F32; i++) {
        const uint16_t half = storage == SKL__ROWS_F16 ? random_half() : skl__f32_to_bf16(random_value());
        memcpy(g->data + 2 * i, &half, sizeof half);
    }
}

static float stored_value(skl__storage storage, const unsigned char *p)
{
    uint32_t bits = 0;
    float value;

    memcpy(&bits, p, storage == SKL__ROWS_F32 ? 4 : 2);
    if (storage == SKL__ROWS_F16) return half_value((uint16_t)bits);
    bits <<= storage == SKL__ROWS_BF16 ? 16 : 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void test_unpacking_floats(void)
{
    float wanted[70];
    guarded weights;
    skl__matrix w;
    size_t k;

    memset(&w, 0, sizeof w);
    w.rows = 3;
    for (w.columns = 1; w.columns <= sizeof wanted / sizeof *wanted; w.columns++)
        for (w.storage = SKL__ROWS_F32; w.storage <= SKL__ROWS_BF16; w.storage = (skl__storage)(w.storage + 1)) {
            w.stride = w.columns * (w.storage == SKL__ROWS_F32 ? 4 : 2);
            weights = guarded_alloc(w.rows * w.stride);
            fill_weights_of(&weights, w.storage, w.rows * w.columns);
            w.data = weights.data;
            for (k = 0; k < w.columns; k++) wanted[k] = stored_value(w.storage, w.data + 2 * w.stride + k * (w.stride / w.columns));
            check_unpacked(&w, 2, wanted);
            guarded_free(&weights);
        }
}

static void check_float_matrix(skl__storage storage, size_t rows, size_t columns, size_t tokens, int by_columns)
{
    const size_t size = storage == SKL__ROWS_F32 ? 4 : 2, stored = by_columns ? (rows + 15) / 16 * 16 : rows;
    guarded weights = guarded_alloc(stored * columns * size), x = guarded_alloc(tokens * columns * sizeof(float));
    guarded y = guarded_alloc(tokens * rows * sizeof(float));
    float *wanted = (float *)malloc(tokens * rows * sizeof *wanted), *values = (float *)(void *)y.data;
    skl__matrix w;
    skl__acts acts;
    int isa;

    memset(&w, 0, sizeof w);
    memset(&acts, 0, sizeof acts);
    fill_weights_of(&weights, storage, stored * columns);
    fill_floats(&x, tokens * columns, FLT_MAX);
    w.storage = storage;
    w.rows = rows;
    w.columns = columns;
    w.stride = columns * size;
    w.data = weights.data;
    acts.columns = columns;
    acts.values = (const float *)(const void *)x.data;
    for (isa = SKL_ISA_SCALAR; isa < SKL_ISA_COUNT && wanted; isa++) {
        const skl__kernels *kernels = skl__kernels_for((skl_isa)isa, 0);
        size_t i;
        if (!kernels) continue;
        for (i = 0; i < tokens * rows; i++) values[i] = 1.25f;
        if (by_columns) kernels->lanes->gate_product(values, &w, acts.values, tokens);
        else skl__matmul_for(kernels, &w, SKL_ACT_F32)(values, rows, &w, 0, (rows + 15) / 16, &acts, tokens);
        if (isa == SKL_ISA_SCALAR) memcpy(wanted, values, tokens * rows * sizeof *wanted);
        else if (!CHECK(memcmp(values, wanted, tokens * rows * sizeof *wanted) == 0))
            printf("  %s storage %d%s: %zu x %zu, %zu tokens\n", skl_isa_name((skl_isa)isa), (int)storage,
                   by_columns ? " by columns" : "", rows, columns, tokens);
    }
    CHECK(wanted != NULL);
    free(wanted);
    guarded_free(&weights);
    guarded_free(&x);
    guarded_free(&y);
}

static void test_float_matrices(void)
{
    static const size_t rows[] = {1, 4, 15, 16, 17, 33}, columns[] = {1, 7, 15, 16, 17, 31, 32, 33, 100, 256};
    static const size_t tokens[] = {1, 2, 4, 5};
    size_t r, c, t;
    int kind;

    for (kind = SKL__ROWS_F32; kind <= SKL__ROWS_BF16; kind++)
        for (r = 0; r < sizeof rows / sizeof *rows; r++)
            for (c = 0; c < sizeof columns / sizeof *columns; c++)
                for (t = 0; t < sizeof tokens / sizeof *tokens; t++) {
                    check_float_matrix((skl__storage)kind, rows[r], columns[c], tokens[t], 0);
                    check_float_matrix((skl__storage)kind, rows[r], columns[c], tokens[t], 1);
                }
}

/* --- attention: a cache of exactly the size that a session gives it --- */

enum { MOST_POSITIONS = 130, MOST_DIM = SKL__HEAD_DIM_MAX };

typedef struct attention_case {
    skl_kv kv;
    size_t dim, positions, queries;
    int clipped;
    guarded cache, rows, q, out;       /* rows: keys, then values, of 16 positions */
    size_t cache_bytes;
} attention_case;

static void attention_run(attention_case *a, const skl__lane_kernels *lanes, uint64_t seed, float *null_mass)
{
    static const float nulls[] = {SKL__NO_NULL, 0.0f, 3.5f, -2.0f, 1e30f, -1e30f};
    const skl__kv_shape shape = skl__kv_shape_of(a->kv, a->dim, a->positions);
    float *keys = (float *)(void *)a->rows.data, *values = keys + 16 * a->dim;
    skl__attend_job job;
    size_t i, count;

    memset(&job, 0, sizeof job);
    memset(a->cache.data, 0, a->cache_bytes);
    memset(a->out.data, 0, a->queries * a->dim * sizeof(float));
    random_state = seed;
    job.head = skl__kv_head_at(&shape, a->cache.data);
    job.kv = a->kv;
    job.head_dim = a->dim;
    job.cold = (int)random_below(2);
    job.clipped = a->clipped;
    job.gamma = -0.03f;
    job.zeta = 1.02f;
    for (i = 0; i < a->positions; i += count) { /* a run of 16 at once, the next one in two parts */
        const size_t left = a->positions - i, most = i / 16 % 2 == 0 ? 16 : i % 16 == 0 ? 3 : 13;
        count = left < most ? left : most;
        fill_floats(&a->rows, 32 * a->dim, 65504.0f); /* the largest half */
        lanes->store_kv(&job.head, a->kv, a->dim, i, count, keys + (16 - count) * a->dim, values + (16 - count) * a->dim, a->dim);
    }
    for (i = 0; i < a->queries * a->dim; i++) {
        const float value = ((float)random_below(2001) * 1e-3f - 1.0f) * 1e-3f;
        memcpy(a->q.data + i * sizeof value, &value, sizeof value);
    }
    for (i = 0; i < a->queries; i++) {
        const size_t place = i * a->dim;
        job.q[i] = (const float *)(const void *)a->q.data + place;
        job.out[i] = (float *)(void *)a->out.data + place;
        job.last[i] = random_below(a->positions);
        job.first[i] = random_below(job.last[i] + 1);
        job.null_logit[i] = nulls[random_below(6)];
    }
    job.queries = a->queries;
    lanes->attend(&job);
    memcpy(null_mass, job.null_mass, a->queries * sizeof *null_mass);
}

static void check_attention(attention_case *a, uint64_t seed)
{
    static float wanted[SKL__QUERIES * MOST_DIM], wanted_null[SKL__QUERIES], null_mass[SKL__QUERIES];
    const size_t out_bytes = a->queries * a->dim * sizeof(float);
    unsigned char *cache;
    int isa;

    a->cache_bytes = (size_t)skl__kv_shape_of(a->kv, a->dim, a->positions).head;
    a->cache = guarded_alloc(a->cache_bytes);
    a->rows = guarded_alloc(32 * a->dim * sizeof(float));
    a->q = guarded_alloc(out_bytes);
    a->out = guarded_alloc(out_bytes);
    cache = (unsigned char *)malloc(a->cache_bytes);
    for (isa = SKL_ISA_SCALAR; isa < SKL_ISA_COUNT && cache; isa++) {
        const skl__kernels *kernels = skl__kernels_for((skl_isa)isa, 0);
        if (!kernels) continue;
        attention_run(a, kernels->lanes, seed, isa == SKL_ISA_SCALAR ? wanted_null : null_mass);
        if (isa == SKL_ISA_SCALAR) {
            memcpy(cache, a->cache.data, a->cache_bytes);
            memcpy(wanted, a->out.data, out_bytes);
        } else if (!CHECK(memcmp(cache, a->cache.data, a->cache_bytes) == 0 && memcmp(wanted, a->out.data, out_bytes) == 0 &&
                          memcmp(wanted_null, null_mass, a->queries * sizeof *null_mass) == 0)) {
            printf("  %s attention, kv %d, %zu dimensions, %zu positions, %zu queries%s\n", skl_isa_name((skl_isa)isa), (int)a->kv,
                   a->dim, a->positions, a->queries, a->clipped ? ", clipped" : "");
        }
    }
    CHECK(cache != NULL);
    free(cache);
    guarded_free(&a->cache);
    guarded_free(&a->rows);
    guarded_free(&a->q);
    guarded_free(&a->out);
}

static void test_attention(void)
{
    static const size_t dims[] = {1, 2, 15, 16, 33, 64, 90, 96, 128, MOST_DIM};
    static const size_t positions[] = {1, 16, 17, 63, 64, 65, MOST_POSITIONS};
    size_t d, p;
    attention_case a;
    int kv;

    for (kv = SKL_KV_F32; kv <= SKL_KV_I4; kv++)
        for (d = 0; d < sizeof dims / sizeof *dims; d++)
            for (p = 0; p < sizeof positions / sizeof *positions; p++)
                for (a.queries = 1; a.queries <= SKL__QUERIES; a.queries += a.queries < 5 ? 1 : 11) {
                    if (dims[d] > 96 && positions[p] < MOST_POSITIONS) continue;
                    a.kv = (skl_kv)kv;
                    a.dim = dims[d];
                    a.positions = positions[p];
                    a.clipped = (int)(a.queries & 1);
                    check_attention(&a, d * 100 + p);
                }
}

int main(void)
{
    float *wanted;
    kernel_case c;
    int i;

    skl__fp_begin(); /* as every call of the library does: -ffast-math may have told the processor to flush small values */
    for (i = 0; i < ROUNDS; i++) {
        c = case_make(i % 4 == 3);
        wanted = (float *)malloc(c.y_size * sizeof *wanted);
        if (!wanted) return 1;
        if (i < ROUNDS / 4) CHECK(scalar_is_right(&c));
        test_levels(&c, wanted);
        test_unpacking_tiles(&c);
        free(wanted);
        case_free(&c);
    }
    test_rows();
    test_float_matrices();
    test_unpacking_floats();
    test_attention();
    return test_finish();
}
