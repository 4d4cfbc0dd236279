/* limits.h - what this machine can do at best: bytes read per second, operations per second. Part of bench.c
 *
 * Every measurement of a kernel or model is set against a limit that was taken within the same fraction of a second, on
 * the same threads: on a shared machine, yesterday's limit says nothing about today's kernel.
 *
 *     reading      a buffer much larger than any cache, in pieces that threads take in turn, in the best of a few ways
 *     operations   what a kernel level multiplies with, on registers only, in sixteen independent chains
 */
#ifndef BENCH_LIMITS_H
#define BENCH_LIMITS_H

#define BENCH_BUFFER ((size_t)512 << 20) /* bytes */
#define BENCH_PIECE ((size_t)2 << 20)    /* bytes that a thread takes at a time */
#define BENCH_CHAINS 16                  /* independent accumulators: enough for any latency and number of ports */

typedef struct limits {
    skl__pool *pool;                     /* threads that measure: those of a session, or own */
    skl__pool *own;                      /* of malloc, or NULL */
    unsigned char *memory;               /* of malloc; owns buffer */
    unsigned char *buffer;               /* [BENCH_BUFFER], 64-byte aligned; a piece behind it is only hinted at */
    int way;                             /* best way of reading on this machine */
} limits;

/* Written by every measurement, read by nobody: keeps the compiler from leaving the work out. */
static volatile uint64_t bench_sink;

/* =====================================================================================================================
 * Reading
 *
 * A way of reading: four loads a step, side by side or from four streams, with a hint about what comes later or
 * without. Which one wins differs between machines.
 * ================================================================================================================== */

typedef struct read_way {
    size_t streams;                      /* 1 or 4 */
    size_t ahead;                        /* bytes from a load to what is hinted at; 0 = leave it to the hardware */
} read_way;

static const read_way read_ways[] = {{1, 0}, {4, 0}, {1, 4096}, {4, 1024}};
#define BENCH_WAYS ((int)(sizeof read_ways / sizeof *read_ways))

/* Body of the readers: step over piece [BENCH_PIECE] and add up. A hint at what is loaded anyway is free. */
#define BENCH_READ(vector, size, zero, load, add)                                                                      \
    const size_t apart = way->streams == 1 ? (size) : BENCH_PIECE / 4, step = way->streams == 1 ? 4 * (size) : (size); \
    const unsigned char *p = piece;                                                                                    \
    vector a = zero, b = zero, c = zero, d = zero;                                                                     \
    size_t left = BENCH_PIECE / (4 * (size));                                                                          \
    uint64_t sum;                                                                                                      \
                                                                                                                       \
    for (; left > 0; left--, p += step) {                                                                              \
        BENCH_PREFETCH(p + way->ahead);                                                                                \
        BENCH_PREFETCH(p + way->ahead + apart);                                                                        \
        BENCH_PREFETCH(p + way->ahead + 2 * apart);                                                                    \
        BENCH_PREFETCH(p + way->ahead + 3 * apart);                                                                    \
        a = add(a, load(p));                                                                                           \
        b = add(b, load(p + apart));                                                                                   \
        c = add(c, load(p + 2 * apart));                                                                               \
        d = add(d, load(p + 3 * apart));                                                                               \
    }                                                                                                                  \
    a = add(add(a, b), add(c, d));                                                                                     \
    memcpy(&sum, &a, sizeof sum);                                                                                      \
    return sum;

static inline uint64_t load_u64(const unsigned char *p)
{
    uint64_t value;

    memcpy(&value, p, sizeof value);
    return value;
}

#if defined(__GNUC__)
#define BENCH_PREFETCH(p) __builtin_prefetch((p), 0, 3)
#else
#define BENCH_PREFETCH(p) (void)(p)
#endif
#define BENCH_ADD_U64(a, b) ((a) + (b))

static uint64_t read_plain(const unsigned char *piece, const read_way *way)
{
    BENCH_READ(uint64_t, sizeof(uint64_t), 0, load_u64, BENCH_ADD_U64)
}

#if SKL__X86_KERNELS
#define BENCH_LOAD_256(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define BENCH_LOAD_512(p) _mm512_loadu_si512((const void *)(p))

static SKL__TARGET(SKL__AVX2) uint64_t read_avx2(const unsigned char *piece, const read_way *way)
{
    BENCH_READ(__m256i, sizeof(__m256i), _mm256_setzero_si256(), BENCH_LOAD_256, _mm256_add_epi64)
}

static SKL__TARGET(SKL__AVX512) uint64_t read_avx512(const unsigned char *piece, const read_way *way)
{
    BENCH_READ(__m512i, sizeof(__m512i), _mm512_setzero_si512(), BENCH_LOAD_512, _mm512_add_epi64)
}
#endif

#if SKL__ARM_KERNELS
static uint64_t read_neon(const unsigned char *piece, const read_way *way)
{
    BENCH_READ(uint8x16_t, sizeof(uint8x16_t), vdupq_n_u8(0), vld1q_u8, vaddq_u8)
}
#endif

typedef uint64_t read_loop(const unsigned char *piece, const read_way *way);

/* The widest loads that this CPU has. */
static read_loop *reader(void)
{
    const uint32_t available = skl_isa_available();

    (void)available;
#if SKL__X86_KERNELS
    if (available >> SKL_ISA_AVX512 & 1) return read_avx512;
    if (available >> SKL_ISA_AVX2 & 1) return read_avx2;
#endif
#if SKL__ARM_KERNELS
    if (available >> SKL_ISA_NEON & 1) return read_neon;
#endif
    return read_plain;
}

typedef struct read_call {
    const unsigned char *buffer;
    read_loop *loop;
    const read_way *way;
} read_call;

static void read_task(void *arg, size_t item)
{
    const read_call *call = (const read_call *)arg;

    bench_sink = call->loop(call->buffer + item * BENCH_PIECE, call->way);
}

/* Bytes per second of all threads in one way. The buffer is read twice, and the second time counts: page tables may
 * have to be made anew after other memory was in use, above all by a hypervisor. */
static double read_bandwidth_of(const limits *limit, int way)
{
    const size_t pieces = BENCH_BUFFER / BENCH_PIECE;
    read_call call;
    double begin;

    call.buffer = limit->buffer;
    call.loop = reader();
    call.way = &read_ways[way];
    skl__parallel(limit->pool, pieces, read_task, &call);
    begin = cli_seconds();
    skl__parallel(limit->pool, pieces, read_task, &call);
    return (double)(pieces * BENCH_PIECE) / (cli_seconds() - begin);
}

static double read_bandwidth(const limits *limit)
{
    return read_bandwidth_of(limit, limit->way);
}

/* =====================================================================================================================
 * Operations
 *
 * One multiply-add counts two. BENCH_KEEP makes a register unknown to the compiler at no cost, so that equal products
 * are not computed only once.
 * ================================================================================================================== */

/* rounds times BENCH_CHAINS instructions */
typedef void peak_loop(size_t rounds);

typedef struct peak {
    peak_loop *loop;
    double operations;                   /* per instruction (chain step) */
    const char *name;
} peak;

#define BENCH_KEEP(x) __asm__ volatile("" : "+" BENCH_REGISTER(x))

#if SKL__X86_KERNELS
#define BENCH_REGISTER(x) "v"(x)

#if SKL__HAS_AMX
/* One chain step in 32, because each takes as long as 32 of other levels. */
static SKL__TARGET(SKL__AMX) void peak_dpbssd_tiles(size_t rounds)
{
    skl__amx_configure(64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (rounds = rounds * BENCH_CHAINS / 64; rounds > 0; rounds--) {
        _tile_dpbssd(0, 1, 2);
        _tile_dpbssd(3, 4, 5);
    }
    _tile_release();
}
#endif

#if SKL__HAS_AVX512VNNI
static SKL__TARGET(SKL__AVX512VNNI) void peak_dpbusd_512(size_t rounds)
{
    __m512i sum[BENCH_CHAINS], w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(1);
    int i;

    SKL__UNROLL
    for (i = 0; i < BENCH_CHAINS; i++) sum[i] = _mm512_setzero_si512();
    for (; rounds > 0; rounds--) {
        SKL__UNROLL
        for (i = 0; i < BENCH_CHAINS; i++) {
            sum[i] = _mm512_dpbusd_epi32(sum[i], w, x);
            BENCH_KEEP(sum[i]);
        }
    }
}
#endif

#if SKL__HAS_AVXVNNI
static SKL__TARGET(SKL__AVXVNNI) void peak_dpbusd_256(size_t rounds)
{
    __m256i sum[BENCH_CHAINS - 4], w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(1); /* sixteen registers in all */
    int i;

    SKL__UNROLL
    for (i = 0; i < BENCH_CHAINS - 4; i++) sum[i] = _mm256_setzero_si256();
    for (rounds = rounds * BENCH_CHAINS / (BENCH_CHAINS - 4); rounds > 0; rounds--) {
        SKL__UNROLL
        for (i = 0; i < BENCH_CHAINS - 4; i++) {
            sum[i] = _mm256_dpbusd_avx_epi32(sum[i], w, x);
            __asm__ volatile("" : "+x"(sum[i]));
        }
    }
}
#endif

/* What a kernel for 4-bit codes does without VNNI: pairs of products added up in 16 bits. */
static SKL__TARGET(SKL__AVX512) void peak_maddubs_512(size_t rounds)
{
    __m512i sum[BENCH_CHAINS], w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(1);
    int i;

    SKL__UNROLL
    for (i = 0; i < BENCH_CHAINS; i++) sum[i] = _mm512_setzero_si512();
    for (; rounds > 0; rounds--) {
        SKL__UNROLL
        for (i = 0; i < BENCH_CHAINS; i++) {
            BENCH_KEEP(x);
            sum[i] = _mm512_add_epi16(sum[i], _mm512_maddubs_epi16(w, x));
            BENCH_KEEP(sum[i]);
        }
    }
}

static SKL__TARGET(SKL__AVX2) void peak_maddubs_256(size_t rounds)
{
    __m256i sum[BENCH_CHAINS - 4], w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(1);
    int i;

    SKL__UNROLL
    for (i = 0; i < BENCH_CHAINS - 4; i++) sum[i] = _mm256_setzero_si256();
    for (rounds = rounds * BENCH_CHAINS / (BENCH_CHAINS - 4); rounds > 0; rounds--) {
        SKL__UNROLL
        for (i = 0; i < BENCH_CHAINS - 4; i++) {
            __asm__ volatile("" : "+x"(x));
            sum[i] = _mm256_add_epi16(sum[i], _mm256_maddubs_epi16(w, x));
            __asm__ volatile("" : "+x"(sum[i]));
        }
    }
}

static SKL__TARGET(SKL__AVX512) void peak_fma_512(size_t rounds)
{
    __m512 sum[BENCH_CHAINS], w = _mm512_set1_ps(0.5f), x = _mm512_set1_ps(0.25f);
    int i;

    SKL__UNROLL
    for (i = 0; i < BENCH_CHAINS; i++) sum[i] = _mm512_setzero_ps();
    for (; rounds > 0; rounds--) {
        SKL__UNROLL
        for (i = 0; i < BENCH_CHAINS; i++) {
            sum[i] = _mm512_fmadd_ps(w, x, sum[i]);
            BENCH_KEEP(sum[i]);
        }
    }
}

static SKL__TARGET(SKL__AVX2) void peak_fma_256(size_t rounds)
{
    __m256 sum[BENCH_CHAINS - 4], w = _mm256_set1_ps(0.5f), x = _mm256_set1_ps(0.25f);
    int i;

    SKL__UNROLL
    for (i = 0; i < BENCH_CHAINS - 4; i++) sum[i] = _mm256_setzero_ps();
    for (rounds = rounds * BENCH_CHAINS / (BENCH_CHAINS - 4); rounds > 0; rounds--) {
        SKL__UNROLL
        for (i = 0; i < BENCH_CHAINS - 4; i++) {
            sum[i] = _mm256_fmadd_ps(w, x, sum[i]);
            __asm__ volatile("" : "+x"(sum[i]));
        }
    }
}
#endif

#if SKL__ARM_KERNELS
#define BENCH_REGISTER(x) "w"(x)

/* Without dot products: bytes multiplied to 16 bits, pairs added to 32. */
static void peak_mull_neon(size_t rounds)
{
    int32x4_t sum[BENCH_CHAINS];
    int8x8_t w = vdup_n_s8(3), x = vdup_n_s8(1);
    int i;

    SKL__UNROLL
    for (i = 0; i < BENCH_CHAINS; i++) sum[i] = vdupq_n_s32(0);
    for (; rounds > 0; rounds--) {
        SKL__UNROLL
        for (i = 0; i < BENCH_CHAINS; i++) {
            BENCH_KEEP(x);
            sum[i] = vpadalq_s16(sum[i], vmull_s8(w, x));
            BENCH_KEEP(sum[i]);
        }
    }
}

#if SKL__HAS_NEON_DOTPROD
static SKL__TARGET_DOTPROD void peak_dot_neon(size_t rounds)
{
    int32x4_t sum[BENCH_CHAINS];
    int8x16_t w = vdupq_n_s8(3), x = vdupq_n_s8(1);
    int i;

    SKL__UNROLL
    for (i = 0; i < BENCH_CHAINS; i++) sum[i] = vdupq_n_s32(0);
    for (; rounds > 0; rounds--) {
        SKL__UNROLL
        for (i = 0; i < BENCH_CHAINS; i++) {
            sum[i] = vdotq_s32(sum[i], w, x);
            BENCH_KEEP(sum[i]);
        }
    }
}
#endif

#if SKL__HAS_NEON_I8MM
static SKL__TARGET_I8MM void peak_mmla_neon(size_t rounds)
{
    int32x4_t sum[BENCH_CHAINS];
    int8x16_t w = vdupq_n_s8(3), x = vdupq_n_s8(1);
    int i;

    SKL__UNROLL
    for (i = 0; i < BENCH_CHAINS; i++) sum[i] = vdupq_n_s32(0);
    for (; rounds > 0; rounds--) {
        SKL__UNROLL
        for (i = 0; i < BENCH_CHAINS; i++) {
            sum[i] = vmmlaq_s32(sum[i], w, x);
            BENCH_KEEP(sum[i]);
        }
    }
}
#endif

static void peak_fma_neon(size_t rounds)
{
    float32x4_t sum[BENCH_CHAINS], w = vdupq_n_f32(0.5f), x = vdupq_n_f32(0.25f);
    int i;

    SKL__UNROLL
    for (i = 0; i < BENCH_CHAINS; i++) sum[i] = vdupq_n_f32(0.0f);
    for (; rounds > 0; rounds--) {
        SKL__UNROLL
        for (i = 0; i < BENCH_CHAINS; i++) {
            sum[i] = vfmaq_f32(sum[i], w, x);
            BENCH_KEEP(sum[i]);
        }
    }
}
#endif

/* Integer peak of a level; loop = NULL where none is defined (scalar). */
static peak integer_peak(skl_isa isa)
{
    peak p = {NULL, 0.0, ""};

    switch (isa) {
#if SKL__X86_KERNELS
    case SKL_ISA_AVX2: p.loop = peak_maddubs_256; p.operations = 64; p.name = "vpmaddubsw + vpaddw, 256 bits"; break;
#if SKL__HAS_AVXVNNI
    case SKL_ISA_AVXVNNI: p.loop = peak_dpbusd_256; p.operations = 64; p.name = "vpdpbusd, 256 bits"; break;
#endif
    case SKL_ISA_AVX512: p.loop = peak_maddubs_512; p.operations = 128; p.name = "vpmaddubsw + vpaddw, 512 bits"; break;
#if SKL__HAS_AVX512VNNI
    case SKL_ISA_AVX512VNNI: p.loop = peak_dpbusd_512; p.operations = 128; p.name = "vpdpbusd, 512 bits"; break;
#endif
#if SKL__HAS_AMX
    case SKL_ISA_AMX: p.loop = peak_dpbssd_tiles; p.operations = 1024; p.name = "tdpbssd"; break;
#endif
#endif
#if SKL__ARM_KERNELS
    case SKL_ISA_NEON: p.loop = peak_mull_neon; p.operations = 16; p.name = "smull + sadalp"; break;
#if SKL__HAS_NEON_DOTPROD
    case SKL_ISA_NEON_DOTPROD: p.loop = peak_dot_neon; p.operations = 32; p.name = "sdot"; break;
#endif
#if SKL__HAS_NEON_I8MM
    case SKL_ISA_NEON_I8MM: p.loop = peak_mmla_neon; p.operations = 64; p.name = "smmla"; break;
#endif
#endif
    default: break;
    }
    return p;
}

/* Peak of the floats that a level computes with. */
static peak float_peak(skl_isa isa)
{
    peak p = {NULL, 0.0, ""};

#if SKL__X86_KERNELS
    if (isa == SKL_ISA_AVX2 || isa == SKL_ISA_AVXVNNI) p.loop = peak_fma_256;
    if (isa == SKL_ISA_AVX512 || isa == SKL_ISA_AVX512VNNI || isa == SKL_ISA_AMX) p.loop = peak_fma_512;
    p.operations = p.loop == peak_fma_256 ? 16 : 32;
    p.name = p.loop == peak_fma_256 ? "vfmadd, 256 bits" : "vfmadd, 512 bits";
#endif
#if SKL__ARM_KERNELS
    if (isa >= SKL_ISA_NEON) p.loop = peak_fma_neon;
    p.operations = 8;
    p.name = "fmla";
#endif
    (void)isa;
    return p;
}

#define BENCH_PEAK_ROUNDS ((size_t)40000) /* a few tenths of a millisecond */

static void peak_task(void *arg, size_t item)
{
    (void)item;
    ((const peak *)arg)->loop(BENCH_PEAK_ROUNDS);
}

/* Operations per second of all threads; 0 if there is no such peak. */
static double peak_rate(const limits *limit, peak p)
{
    const size_t items = limit->pool->threads * 64;
    double begin;

    if (!p.loop) return 0.0;
    begin = cli_seconds();
    skl__parallel(limit->pool, items, peak_task, &p);
    begin = cli_seconds() - begin;
    return (double)(items * BENCH_PEAK_ROUNDS * BENCH_CHAINS) * p.operations / begin;
}

/* =====================================================================================================================
 * Opening
 * ================================================================================================================== */

static void limits_close(limits *limit)
{
    if (limit->own) skl__pool_close(limit->own);
    free(limit->own);
    free(limit->memory);
    memset(limit, 0, sizeof *limit);
}

/* Takes the buffer, writes it, so that every page is there, and finds the best way to read. Pages are ordinary ones, as those of
 * a mapped model are; besides, to hold huge ones can slow all that the process does (README, Method). pool NULL: starts threads,
 * the caller included. Close it whatever it returns. -> CLI_GO_ON or an exit code */
static int limits_open(limits *limit, skl__pool *pool, size_t threads)
{
    double best = 0.0;
    int way, round;

    memset(limit, 0, sizeof *limit);
    limit->pool = pool;
    limit->memory = (unsigned char *)malloc(BENCH_BUFFER + BENCH_PIECE + 64);
    if (!limit->memory) return cli_fail("no memory for a buffer of %lu MiB", (unsigned long)(BENCH_BUFFER >> 20));
    if (!pool) {
        void *memory = malloc(skl__pool_size(threads));

        if (!memory) return cli_fail("no memory for %lu threads", (unsigned long)threads);
        limit->pool = limit->own = skl__pool_open(memory, threads, NULL, NULL);
    }
    limit->buffer = limit->memory + (64 - ((uintptr_t)limit->memory & 63));
    memset(limit->buffer, 1, BENCH_BUFFER + BENCH_PIECE);
    for (round = 0; round < 3; round++) {
        for (way = 0; way < BENCH_WAYS; way++) {
            const double bandwidth = read_bandwidth_of(limit, way);

            if (bandwidth > best) limit->way = way;
            if (bandwidth > best) best = bandwidth;
        }
    }
    return CLI_GO_ON;
}

#endif /* BENCH_LIMITS_H */
