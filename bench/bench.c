/* bench.c - how fast this machine, the kernels and whole models are, each set against what the machine could do.
 *
 * A measurement is repeated, each time with its limit right beside it, and rows say the median, the range, and the
 * median share of the limit. README.md explains the method. */
#define SINKLESS_INTERNAL
#define SINKLESS_IMPLEMENTATION
#include "../examples/cli.h"
#include "limits.h"
#include "synth.h"

#if !defined(_WIN32)
#include <sys/resource.h>
#endif

static const char help[] =
    "usage: bench limits  [--threads N] [-r N] [--json]\n"
    "       bench kernels [--isa NAME] [--threads N] [-r N] [--json]\n"
    "       bench model (-m MODEL | --synth SHAPE) [options]\n"
    "\n"
    "  limits              read bandwidth and peak operations of this machine\n"
    "  kernels             the kernels that decide, of every level this CPU can run, beside these limits\n"
    "  model               prompt and decode speed of a whole model, memory, time to open\n"
    "\n"
    "  -m MODEL            GGUF file\n"
    "  --synth SHAPE       random int4 weights: qwen3-0.6b or llama-3.2-1b; +oasis, +gated or +all behind the name\n"
    "                      turns mechanisms on\n"
    "  --beside MODEL      another one (a file with -m, a shape with --synth), measured in turn; rows of its speed\n"
    "                      divided by that of the first\n"
    "  --write FILE        only write the model of --synth to a file\n"
    "  -p N                tokens of the prompt (default 512; 0 = none)\n"
    "  -n N                tokens that are decoded (default 128; 0 = none)\n"
    "  -d N                tokens that are there before decoding (default 0)\n"
    "  -r N                repeats (default 5)\n"
    "\n"
    "  --act f32|a8|a4     activations that meet quantised weights (default a8)\n"
    "  --group 32|row      values that share an activation scale (default 32)\n"
    "  --kv f32|f16|i8|i4  KV cache (default f16)\n"
    "  --isa NAME|list     force a kernel level; list prints those this CPU can run\n"
    "  --threads N         threads that work (default: physical cores)\n"
    "  --json              one JSON object a line\n"
    "\n"
    "Exit code: 0 done, 1 failed, 2 wrong usage.\n";

#define BENCH_REPEATS 64
#define BENCH_NOT_GIVEN SIZE_MAX

static struct {
    const char *model, *synth, *beside, *write;
    int json, activation, group, kv, isa;
    size_t prompt, decode, depth, repeats, threads;
} arguments = {NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, BENCH_NOT_GIVEN, BENCH_NOT_GIVEN, BENCH_NOT_GIVEN, 5, 0};

static const cli_option options[] = {
    {"-m", CLI_TEXT, &arguments.model, 0, 0, NULL},
    {"--synth", CLI_TEXT, &arguments.synth, 0, 0, NULL},
    {"--beside", CLI_TEXT, &arguments.beside, 0, 0, NULL},
    {"--write", CLI_TEXT, &arguments.write, 0, 0, NULL},
    {"-p", CLI_SIZE, &arguments.prompt, 0, CLI_MOST_TOKENS, NULL},
    {"-n", CLI_SIZE, &arguments.decode, 0, CLI_MOST_TOKENS, NULL},
    {"-d", CLI_SIZE, &arguments.depth, 0, CLI_MOST_TOKENS, NULL},
    {"-r", CLI_SIZE, &arguments.repeats, 1, BENCH_REPEATS, NULL},
    {"--act", CLI_CHOICE, &arguments.activation, 0, 0, cli_activations},
    {"--group", CLI_CHOICE, &arguments.group, 0, 0, cli_groups},
    {"--kv", CLI_CHOICE, &arguments.kv, 0, 0, cli_kvs},
    {"--isa", CLI_ISA, &arguments.isa, 0, 0, NULL},
    {"--threads", CLI_SIZE, &arguments.threads, 1, CLI_MOST_THREADS, NULL},
    {"--json", CLI_FLAG, &arguments.json, 0, 0, NULL},
    {NULL, CLI_FLAG, NULL, 0, 0, NULL}};

/* =====================================================================================================================
 * Rows
 * ================================================================================================================== */

/* Repeats of one measurement. */
typedef struct series {
    double value[BENCH_REPEATS];
    double limit[BENCH_REPEATS];      /* taken beside it; 0 = no limit is defined */
    size_t count;
} series;

/* What a row says besides its series. */
typedef struct row {
    const char *name;
    const char *isa;
    size_t threads;
    const char *unit;
    const char *limit_unit;
    double work;                      /* limit units that one value unit uses: value * work is a share of limit */
    const char *model;                /* a path or a shape, or NULL */
    const char *first;                /* the model that it is divided by, or NULL */
    const char *more;                 /* further JSON fields, each with a comma before it, or "" */
    const char *note;                 /* the same for people, or "" */
} row;

static void series_add(series *s, double value, double limit)
{
    s->value[s->count] = value;
    s->limit[s->count++] = limit;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts values [n], n > 0. */
static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* A string of JSON: a path may have anything in it. */
static void print_string(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') printf("\\%c", c);
        else if (c < 32) printf("\\u%04x", c);
        else putchar(c);
    }
    putchar('"');
}

static void print_json(const row *r, const double *value, double middle, double limit, double fraction, size_t n)
{
    printf("{\"name\":\"%s\",\"isa\":\"%s\",\"threads\":%lu,", r->name, r->isa, (unsigned long)r->threads);
    printf("\"value\":%.6g,\"unit\":\"%s\",\"spread\":[%.6g,%.6g]", middle, r->unit, value[0], value[n - 1]);
    if (limit > 0.0) printf(",\"limit\":%.6g,\"limit_unit\":\"%s\",\"fraction\":%.4f", limit, r->limit_unit, fraction);
    else printf(",\"limit\":null,\"limit_unit\":null,\"fraction\":null");
    if (r->model) {
        printf(",\"model\":");
        print_string(r->model);
    }
    if (r->first) {
        printf(",\"first\":");
        print_string(r->first);
    }
    printf("%s}\n", r->more);
}

static void print_row(const row *r, const series *s)
{
    double value[BENCH_REPEATS], limit[BENCH_REPEATS], fraction[BENCH_REPEATS], middle, middle_limit, middle_fraction;
    size_t i;

    for (i = 0; i < s->count; i++) {
        value[i] = s->value[i];
        limit[i] = s->limit[i];
        fraction[i] = s->limit[i] > 0.0 ? s->value[i] * r->work / s->limit[i] : 0.0;
    }
    middle = median(value, s->count);
    middle_limit = median(limit, s->count);
    middle_fraction = median(fraction, s->count);
    if (arguments.json) {
        print_json(r, value, middle, middle_limit, middle_fraction, s->count);
    } else {
        printf("%-28s %-12s %4lu %10.4g %-6s", r->name, r->isa, (unsigned long)r->threads, middle, r->unit);
        if (s->count > 1) printf(" (%.4g .. %.4g)", value[0], value[s->count - 1]);
        if (middle_limit > 0.0) printf("  %.1f %% of %.4g %s", 100 * middle_fraction, middle_limit, r->limit_unit);
        printf("%s\n", r->note);
    }
    fflush(stdout);
}

static row row_of(const char *name, const char *isa, size_t threads, const char *unit)
{
    row r;

    memset(&r, 0, sizeof r);
    r.name = name;
    r.isa = isa;
    r.threads = threads;
    r.unit = unit;
    r.limit_unit = "";
    r.work = 1.0;
    r.more = r.note = "";
    return r;
}

/* Name of the CPU, or "unknown CPU":  name  [size] */
static void cpu_name(char *name, size_t size)
{
    FILE *file = cli_open("/proc/cpuinfo", "r");
    char line[256];

    snprintf(name, size, "unknown CPU");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');

        if (strncmp(line, "model name", 10) != 0 || !colon || colon[1] == '\0') continue;
        snprintf(name, size, "%s", colon + 2);
        name[strcspn(name, "\n")] = '\0';
        break;
    }
    if (file) fclose(file);
}

static void print_machine(size_t threads, const char *isa)
{
    char name[128];

    if (arguments.json) return;
    cpu_name(name, sizeof name);
    printf("%s; %lu of %lu cores; level %s\n\n", name, (unsigned long)threads, (unsigned long)skl_default_threads(),
           isa);
    printf("%-28s %-12s %4s %10s %-6s\n", "name", "level", "thr", "median", "unit");
}

/* =====================================================================================================================
 * bench limits
 * ================================================================================================================== */

static void limits_print_peak(const limits *limit, const char *kind, skl_isa isa, peak p)
{
    char name[64], note[64], more[64];
    row r = row_of(name, skl_isa_name(isa), limit->pool->threads, "Gop/s");
    series s;
    size_t i;

    if (!p.loop) return;
    snprintf(name, sizeof name, "peak %s", kind);
    snprintf(note, sizeof note, "  %s", p.name);
    snprintf(more, sizeof more, ",\"instruction\":\"%s\"", p.name);
    r.note = note;
    r.more = more;
    s.count = 0;
    for (i = 0; i < arguments.repeats; i++) series_add(&s, peak_rate(limit, p) * 1e-9, 0.0);
    print_row(&r, &s);
}

static int limits_of(size_t threads)
{
    const uint32_t available = skl_isa_available();
    limits limit;
    series s;
    row r;
    size_t i;
    int isa;
    const int code = limits_open(&limit, NULL, threads);

    if (code != CLI_GO_ON) {
        limits_close(&limit);
        return code;
    }
    r = row_of("read", "-", limit.pool->threads, "GB/s");
    s.count = 0;
    for (i = 0; i < arguments.repeats; i++) series_add(&s, read_bandwidth(&limit) * 1e-9, 0.0);
    print_row(&r, &s);
    for (isa = SKL_ISA_SCALAR; isa < SKL_ISA_COUNT; isa++)
        if (available >> isa & 1) limits_print_peak(&limit, "integer", (skl_isa)isa, integer_peak((skl_isa)isa));
    for (isa = SKL_ISA_SCALAR; isa < SKL_ISA_COUNT; isa++)
        if ((available >> isa & 1) && (isa == SKL_ISA_AVX2 || isa == SKL_ISA_AVX512 || isa == SKL_ISA_NEON))
            limits_print_peak(&limit, "float", (skl_isa)isa, float_peak((skl_isa)isa));
    limits_close(&limit);
    return CLI_GO_ON;
}

static int run_limits(void)
{
    const size_t threads = arguments.threads ? arguments.threads : skl_default_threads();
    int code = CLI_GO_ON;

    print_machine(threads, skl_isa_name(skl__kernels_for(SKL_ISA_DEFAULT, 0)->isa));
    if (threads > 1) code = limits_of(1);
    if (code == CLI_GO_ON) code = limits_of(threads);
    return code == CLI_GO_ON ? cli_finish() : code;
}

/* =====================================================================================================================
 * bench kernels: matrices
 *
 * A single token streams through a matrix as large as the buffer, many tokens meet one that stays in cache.
 * ================================================================================================================== */

#define KERNEL_COLUMNS ((size_t)2048)
#define KERNEL_ROWS ((size_t)1024)    /* of the matrix that many tokens meet */
#define KERNEL_TOKENS ((size_t)256)   /* at most */
#define KERNEL_TILES ((size_t)8)      /* per item */
#define KERNEL_SECONDS 0.02           /* a repeat takes at least that long */

typedef struct bench {
    limits limit;
    float *values;                    /* [KERNEL_TOKENS][KERNEL_COLUMNS] activations */
    int8_t *codes;                    /* [KERNEL_TOKENS][KERNEL_COLUMNS], 64-byte aligned */
    float *scales;                    /* [KERNEL_TOKENS][KERNEL_COLUMNS / 32] */
    int32_t *sums;                    /* [KERNEL_TOKENS][KERNEL_COLUMNS / 32] */
    float *y;                         /* [rows of the largest matrix], or [KERNEL_TOKENS][KERNEL_ROWS] */
    size_t y_count;
    unsigned char *memory;            /* of malloc; owns codes */
    uint64_t random;
} bench;

static uint32_t bench_random(bench *b)
{
    b->random = b->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(b->random >> 32);
}

/* One way to store and meet a matrix. */
typedef struct matrix_case {
    const char *name;
    skl__storage storage;
    size_t group;                     /* columns per weight scale */
    int row;                          /* one activation scale per token */
    skl_activation activation;
} matrix_case;

static const matrix_case matrix_cases[] = {
    {"q4 g32 x a8 g32", SKL__TILES_4, 32, 0, SKL_ACT_A8},
    {"q4 g128 x a8 row", SKL__TILES_4, 128, 1, SKL_ACT_A8},
    {"q4 g32 x a4 g32", SKL__TILES_4, 32, 0, SKL_ACT_A4},
    {"q8 g32 x a8 g32", SKL__TILES_8, 32, 0, SKL_ACT_A8},
    {"f16 x f32", SKL__ROWS_F16, 0, 0, SKL_ACT_F32}};

/* A matrix in the buffer; rows = 0: as many as fit. */
static skl__matrix matrix_of(const bench *b, const matrix_case *c, size_t rows)
{
    skl__matrix w;
    skl_layout layout;

    memset(&w, 0, sizeof w);
    w.storage = c->storage;
    w.columns = KERNEL_COLUMNS;
    w.group = c->group;
    w.data = b->limit.buffer;
    w.stride = 2 * KERNEL_COLUMNS;
    if (c->storage == SKL__TILES_4 || c->storage == SKL__TILES_8) {
        layout.bits = c->storage == SKL__TILES_4 ? 4 : 8;
        layout.minimum = layout.wide = 0;
        layout.rows = SKL__TILE;
        layout.columns = KERNEL_COLUMNS;
        layout.group = c->group;
        w.stride = (size_t)skl_packed_tile_bytes(&layout);
        w.rows = rows ? rows : BENCH_BUFFER / w.stride * SKL__TILE;
    } else {
        w.rows = rows ? rows : BENCH_BUFFER / w.stride / SKL__TILE * SKL__TILE;
    }
    return w;
}

/* The levels that a measurement goes through: repeat by repeat in turn, so that what the machine does meanwhile meets all. */
typedef struct level_list {
    const skl__kernels *rows[SKL__KERNEL_ROWS];
    size_t count;
} level_list;

/* Those that were asked for. Levels may share their float kernels: the first one speaks for them then. */
static level_list levels_chosen(int only_lanes)
{
    const uint32_t available = skl_isa_available();
    level_list chosen;
    size_t i, j;

    chosen.count = 0;
    for (i = 0; i < SKL__KERNEL_ROWS; i++) {
        const skl__kernels *kernels = &skl__kernel_table[i];

        if (!(available >> kernels->isa & 1)) continue;
        if (arguments.isa != SKL_ISA_DEFAULT && arguments.isa != (int)kernels->isa) continue;
        for (j = 0; j < chosen.count && !(only_lanes && chosen.rows[j]->lanes == kernels->lanes); j++) {}
        if (j == chosen.count) chosen.rows[chosen.count++] = kernels;
    }
    return chosen;
}

/* Any bytes are codes; f16 values and scales get exponents that keep everything in range. */
static void matrix_fill(bench *b, const skl__matrix *w)
{
    const size_t codes = w->storage == SKL__TILES_4 ? 8 * w->columns : w->storage == SKL__TILES_8 ? 16 * w->columns : 0;
    const size_t units = codes ? w->rows / SKL__TILE : w->rows;
    unsigned char *data = b->limit.buffer;
    size_t i, j;

    for (i = 0; i < units; i++, data += w->stride) {
        for (j = 0; j < w->stride; j += 4) {
            uint32_t word = bench_random(b);

            if (j >= codes) word = (word & 0x83ff83ffu) | 0x20002000u;
            memcpy(data + j, &word, 4);
        }
    }
}

typedef struct matrix_call {
    skl__matmul *kernel;
    skl__matrix w;
    skl__acts acts;
    float *y;                         /* [tokens][w.rows] */
    size_t tokens;
    size_t items;
    size_t next;                      /* item that the next repeat begins with */
} matrix_call;

static void matrix_task(void *arg, size_t item)
{
    const matrix_call *call = (const matrix_call *)arg;
    const size_t begin = (call->next + item) % call->items * KERNEL_TILES;

    call->kernel(call->y, call->w.rows, &call->w, begin, begin + KERNEL_TILES, &call->acts, call->tokens);
}

/* Items per second, over KERNEL_SECONDS or a batch. */
static double matrix_rate(bench *b, matrix_call *call)
{
    const size_t batch = b->limit.pool->threads * (call->tokens == 1 ? 64 : 4);
    const double begin = cli_seconds();
    size_t done = 0;
    double now;

    do {
        skl__parallel(b->limit.pool, batch, matrix_task, call);
        call->next += batch;
        done += batch;
        now = cli_seconds();
    } while (now - begin < KERNEL_SECONDS);
    return (double)done / (now - begin);
}

static void matrix_quantise(bench *b, const skl__kernels *kernels, const matrix_case *c, skl__acts *acts)
{
    const size_t runs = KERNEL_COLUMNS / 32;
    const float levels = c->activation == SKL_ACT_A4 ? 7.0f : 127.0f;
    size_t t;

    acts->columns = acts->stride = KERNEL_COLUMNS;
    acts->row = c->row;
    acts->codes = b->codes;
    acts->scales = b->scales;
    acts->sums = b->sums;
    acts->values = b->values;
    for (t = 0; t < KERNEL_TOKENS; t++)
        kernels->lanes->quantise(b->values + t * KERNEL_COLUMNS, KERNEL_COLUMNS, levels, c->row,
                                 b->codes + t * KERNEL_COLUMNS, b->scales + t * (c->row ? 1 : runs),
                                 b->sums + t * runs);
}

static void matrix_bench(bench *b, const matrix_case *c, size_t tokens)
{
    const int streams = tokens == 1, floats = c->activation == SKL_ACT_F32;
    const level_list chosen = levels_chosen(floats);
    series all[SKL__KERNEL_ROWS];
    matrix_call call;
    char name[64];
    double work;
    size_t repeat, i;

    memset(&call, 0, sizeof call);
    call.w = matrix_of(b, c, streams ? 0 : KERNEL_ROWS);
    call.y = b->y;
    call.tokens = tokens;
    call.items = call.w.rows / SKL__TILE / KERNEL_TILES;
    matrix_quantise(b, chosen.rows[0], c, &call.acts);
    work = streams ? (double)(KERNEL_TILES * call.w.stride * (c->storage >= SKL__TILES_4 ? 1 : SKL__TILE))
                   : 2.0 * (double)(KERNEL_TILES * SKL__TILE * KERNEL_COLUMNS * tokens);
    for (i = 0; i < chosen.count; i++) all[i].count = 0;
    for (repeat = 0; repeat < arguments.repeats; repeat++)
        for (i = 0; i < chosen.count; i++) {
            const skl_isa isa = chosen.rows[i]->isa;
            double rate, limit;

            call.kernel = skl__matmul_for(chosen.rows[i], &call.w, c->activation);
            rate = matrix_rate(b, &call) * work;
            limit = streams ? read_bandwidth(&b->limit) : peak_rate(&b->limit, floats ? float_peak(isa) : integer_peak(isa));
            series_add(&all[i], rate * 1e-9, limit * 1e-9);
        }
    snprintf(name, sizeof name, "%s, n=%lu", c->name, (unsigned long)tokens);
    for (i = 0; i < chosen.count; i++) {
        row r = row_of(name, skl_isa_name(chosen.rows[i]->isa), b->limit.pool->threads, streams ? "GB/s" : "Gop/s");

        r.limit_unit = r.unit;
        print_row(&r, &all[i]);
    }
}

/* =====================================================================================================================
 * bench kernels: attention
 * ================================================================================================================== */

#define ATTEND_DIM ((size_t)128)
#define ATTEND_KEYS ((size_t)2048)

typedef struct attend_call {
    const bench *b;
    const skl__lane_kernels *lanes;
    skl__kv_shape shape;
    skl_kv kv;
    size_t queries, heads, next;
    int cold;
} attend_call;

static skl__kv_head attend_head(const attend_call *call, size_t head)
{
    return skl__kv_head_at(&call->shape, call->b->limit.buffer + head * (size_t)call->shape.head);
}

static void attend_fill(void *arg, size_t item)
{
    const attend_call *call = (const attend_call *)arg;
    const skl__kv_head head = attend_head(call, item);
    size_t position;

    for (position = 0; position < ATTEND_KEYS; position++)
        call->lanes->store_kv(&head, call->kv, ATTEND_DIM, position, 1, call->b->values + position % 64 * ATTEND_DIM,
                              call->b->values + (position % 64 + 64) * ATTEND_DIM, ATTEND_DIM);
}

static void attend_task(void *arg, size_t item)
{
    const attend_call *call = (const attend_call *)arg;
    float out[SKL__QUERIES][ATTEND_DIM];
    skl__attend_job job;
    size_t i;

    memset(&job, 0, sizeof job);
    job.head = attend_head(call, (call->next + item) % call->heads);
    job.kv = call->kv;
    job.head_dim = ATTEND_DIM;
    job.queries = call->queries;
    job.cold = call->cold;
    for (i = 0; i < call->queries; i++) {
        job.q[i] = call->b->values + i * ATTEND_DIM;
        job.out[i] = out[i];
        job.last[i] = ATTEND_KEYS - 1;
        job.null_logit[i] = 0.0f;
    }
    call->lanes->attend(&job);
}

/* Heads per second, over KERNEL_SECONDS or a batch. */
static double attend_rate(bench *b, attend_call *call)
{
    const size_t batch = b->limit.pool->threads * 8;
    const double begin = cli_seconds();
    double now, done = 0.0;

    do {
        skl__parallel(b->limit.pool, batch, attend_task, call);
        call->next += batch;
        done += (double)batch;
        now = cli_seconds();
    } while (now - begin < KERNEL_SECONDS);
    return done / (now - begin);
}

/* Decoding: two queries a head, over caches that no level of the hierarchy holds. Prompt: as many as a call takes. */
static void attend_bench(bench *b, int kv, const char *kv_name, int prompt)
{
    const level_list chosen = levels_chosen(1);
    series all[SKL__KERNEL_ROWS];
    attend_call call;
    char name[64];
    double work;
    size_t repeat, i;

    memset(&call, 0, sizeof call);
    call.b = b;
    call.lanes = chosen.rows[0]->lanes;
    call.kv = (skl_kv)kv;
    call.shape = skl__kv_shape_of(call.kv, ATTEND_DIM, ATTEND_KEYS);
    call.queries = prompt ? SKL__QUERIES : 2;
    call.cold = !prompt;
    call.heads = prompt ? b->limit.pool->threads : BENCH_BUFFER / (size_t)call.shape.head;
    work = prompt ? 4.0 * (double)(call.queries * ATTEND_KEYS * ATTEND_DIM) : (double)call.shape.head;
    skl__parallel(b->limit.pool, call.heads, attend_fill, &call);
    for (i = 0; i < chosen.count; i++) all[i].count = 0;
    for (repeat = 0; repeat < arguments.repeats; repeat++)
        for (i = 0; i < chosen.count; i++) {
            double rate, limit;

            call.lanes = chosen.rows[i]->lanes;
            rate = attend_rate(b, &call) * work;
            limit = prompt ? peak_rate(&b->limit, float_peak(chosen.rows[i]->isa)) : read_bandwidth(&b->limit);
            series_add(&all[i], rate * 1e-9, limit * 1e-9);
        }
    snprintf(name, sizeof name, "attention %s, %s", kv_name, prompt ? "prompt" : "decode");
    for (i = 0; i < chosen.count; i++) {
        row r = row_of(name, skl_isa_name(chosen.rows[i]->isa), b->limit.pool->threads, prompt ? "Gop/s" : "GB/s");

        r.limit_unit = r.unit;
        print_row(&r, &all[i]);
    }
}

/* =====================================================================================================================
 * bench kernels: rows of values, on one thread, in cache
 * ================================================================================================================== */

typedef enum row_kernel {
    ROW_NORM, ROW_QUANTISE_8, ROW_QUANTISE_ROW, ROW_UNIT, ROW_ROPE, ROW_UNPACK, ROW_KERNELS
} row_kernel;

static void row_run(bench *b, const skl__lane_kernels *lanes, row_kernel kernel)
{
    const size_t n = KERNEL_COLUMNS;
    float *x = b->values, *y = b->y;

    switch (kernel) {
    case ROW_NORM: lanes->rms_norm(y, x, NULL, x + n, n, 1e-6f); break;
    case ROW_QUANTISE_8: lanes->quantise(x, n, 127.0f, 0, b->codes, b->scales, b->sums); break;
    case ROW_QUANTISE_ROW: lanes->quantise(x, n, 127.0f, 1, b->codes, b->scales, b->sums); break;
    case ROW_UNIT:
        memcpy(y, x, n * sizeof *y);  /* it works in place */
        lanes->gated_unit(y, x + n, n, SKL__UNIT_SILU);
        break;
    case ROW_ROPE: lanes->rope(y, x, x + n, n, 0); break;
    default: {
        const skl__matrix w = matrix_of(b, &matrix_cases[0], SKL__TILE);

        lanes->unpack_row(y, &w, 5);
        break;
    }
    }
}

/* Nanoseconds per value. */
static double row_time(bench *b, const skl__lane_kernels *lanes, row_kernel kernel)
{
    const double begin = cli_seconds();
    double now, done = 0.0;
    int i;

    do {
        for (i = 0; i < 64; i++) row_run(b, lanes, kernel);
        done += (double)(64 * KERNEL_COLUMNS);
        now = cli_seconds();
    } while (now - begin < KERNEL_SECONDS / 4);
    return (now - begin) * 1e9 / done;
}

static void row_bench(bench *b, row_kernel kernel)
{
    static const char *const names[ROW_KERNELS] = {"rms_norm", "quantise a8 g32", "quantise a8 row",
                                                   "silu(gate) * up", "rope", "unpack q4 g32"};
    const level_list chosen = levels_chosen(1);
    series all[SKL__KERNEL_ROWS];
    size_t repeat, i;

    memset(b->y, 0, KERNEL_COLUMNS * sizeof *b->y);
    for (i = 0; i < chosen.count; i++) all[i].count = 0;
    for (repeat = 0; repeat < arguments.repeats; repeat++)
        for (i = 0; i < chosen.count; i++) series_add(&all[i], row_time(b, chosen.rows[i]->lanes, kernel), 0.0);
    for (i = 0; i < chosen.count; i++) {
        const row r = row_of(names[kernel], skl_isa_name(chosen.rows[i]->isa), 1, "ns/val");

        print_row(&r, &all[i]);
    }
}

/* =====================================================================================================================
 * bench kernels: all of them
 * ================================================================================================================== */

static void bench_matrices(bench *b)
{
    static const size_t tokens[] = {1, 64, KERNEL_TOKENS};
    size_t c, n;

    for (c = 0; c < sizeof matrix_cases / sizeof *matrix_cases; c++) {
        const skl__matrix largest = matrix_of(b, &matrix_cases[c], 0);

        matrix_fill(b, &largest);
        for (n = 0; n < sizeof tokens / sizeof *tokens; n++) matrix_bench(b, &matrix_cases[c], tokens[n]);
    }
}

static void bench_rest(bench *b)
{
    const skl__matrix unpacked = matrix_of(b, &matrix_cases[0], SKL__TILE);
    const cli_choice *kv;
    int prompt, kernel;

    for (prompt = 0; prompt < 2; prompt++)
        for (kv = cli_kvs; kv->name; kv++) attend_bench(b, kv->value, kv->name, prompt);
    matrix_fill(b, &unpacked);
    for (kernel = 0; kernel < ROW_KERNELS; kernel++) row_bench(b, (row_kernel)kernel);
}

static void bench_close(bench *b)
{
    limits_close(&b->limit);
    free(b->values);
    free(b->memory);
    free(b->scales);
    free(b->sums);
    free(b->y);
}

static int bench_open(bench *b, size_t threads)
{
    const size_t n = KERNEL_TOKENS * KERNEL_COLUMNS;
    size_t i;
    int code;

    memset(b, 0, sizeof *b);
    b->random = 1;
    code = limits_open(&b->limit, NULL, threads);
    if (code != CLI_GO_ON) return code;
    b->y_count = BENCH_BUFFER / (KERNEL_COLUMNS / 2);
    b->values = (float *)malloc(n * sizeof *b->values);
    b->memory = (unsigned char *)malloc(n + 64);
    b->scales = (float *)malloc(n / 32 * sizeof *b->scales);
    b->sums = (int32_t *)malloc(n / 32 * sizeof *b->sums);
    b->y = (float *)malloc(b->y_count * sizeof *b->y);
    if (!b->values || !b->memory || !b->scales || !b->sums || !b->y) return cli_fail("no memory for activations");
    b->codes = (int8_t *)(b->memory + (64 - ((uintptr_t)b->memory & 63)));
    for (i = 0; i < n; i++) b->values[i] = (float)((double)bench_random(b) / 2147483648.0 - 1.0);
    memset(b->y, 0, b->y_count * sizeof *b->y);
    return CLI_GO_ON;
}

static int run_kernels(void)
{
    const size_t threads = arguments.threads ? arguments.threads : skl_default_threads();
    const skl__kernels *kernels = skl__kernels_for((skl_isa)arguments.isa, 0);
    bench b;
    int code;

    if (!kernels) return cli_fail("this CPU or build cannot run level %s", skl_isa_name((skl_isa)arguments.isa));
    code = bench_open(&b, threads);
    if (code == CLI_GO_ON) {
        print_machine(threads, arguments.isa ? skl_isa_name(kernels->isa) : "all");
        bench_matrices(&b);
        bench_rest(&b);
        code = cli_finish();
    }
    bench_close(&b);
    return code;
}

/* =====================================================================================================================
 * bench model
 * ================================================================================================================== */

typedef struct model_bench {
    synth made;
    limits *limit;                    /* of the first model's threads */
    skl_model *model;
    skl_session *session;
    const char *name;
    double open_seconds, seconds;     /* seconds: of the tokens that are being decoded */
    int32_t *tokens;                  /* [context] */
    float *logits;                    /* [vocab] */
    size_t context;
    series prefill, decode;
} model_bench;

/* High-water mark of resident memory in bytes; 0 if the system does not tell. */
static double peak_resident(void)
{
#if defined(_WIN32)
    return 0.0;
#else
    struct rusage usage;

    if (getrusage(RUSAGE_SELF, &usage)) return 0.0;
#if defined(__APPLE__)
    return (double)usage.ru_maxrss;
#else
    return (double)usage.ru_maxrss * 1024.0;
#endif
#endif
}

static skl_session_desc model_session_desc(const model_bench *m)
{
    skl_session_desc desc;

    memset(&desc, 0, sizeof desc);
    desc.context = m->context;
    desc.activation = (skl_activation)arguments.activation;
    desc.group = (skl_group)arguments.group;
    desc.kv = (skl_kv)arguments.kv;
    desc.isa = (skl_isa)arguments.isa;
    desc.threads = arguments.threads;
    return desc;
}

static int model_open(model_bench *m)
{
    const size_t decoded = arguments.depth + arguments.decode;
    skl_model_desc model_desc;
    skl_session_desc desc;
    skl_error error;
    uint64_t random = 1;
    double begin;
    size_t i;

    memset(&model_desc, 0, sizeof model_desc);
    model_desc.source.path = arguments.model ? m->name : NULL;
    model_desc.source.data = m->made.data;
    model_desc.source.data_size = (size_t)m->made.size;
    model_desc.threads = arguments.threads;
    begin = cli_seconds();
    if (skl_model_open(&m->model, &model_desc, &error)) return cli_fail_skl(m->name, &error);
    m->open_seconds = cli_seconds() - begin;

    m->context = arguments.prompt > decoded ? arguments.prompt : decoded;
    if (m->context == 0) return cli_usage("-p, -n and -d leave nothing to do");
    desc = model_session_desc(m);
    if (skl_session_open(&m->session, m->model, &desc, &error)) return cli_fail_skl(m->name, &error);
    m->tokens = (int32_t *)malloc(m->context * sizeof *m->tokens);
    m->logits = (float *)malloc(skl_model_vocab(m->model) * sizeof *m->logits);
    if (!m->tokens || !m->logits) return cli_fail("%s: out of memory", m->name);
    for (i = 0; i < m->context; i++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        m->tokens[i] = (int32_t)((random >> 33) % skl_model_vocab(m->model));
    }
    return CLI_GO_ON;
}

/* Evaluates tokens [begin, end), `step` a call. logits NULL = none. */
static int model_eval(model_bench *m, size_t begin, size_t end, size_t step, float *logits)
{
    size_t n;

    for (; begin < end; begin += n) {
        n = end - begin < step ? end - begin : step;
        if (skl_eval(m->session, m->tokens + begin, n, logits))
            return cli_fail_skl(m->name, skl_session_error(m->session));
    }
    return CLI_GO_ON;
}

static size_t matrix_weights(const skl__matrix *w)
{
    return w->rows * w->columns;
}

/* Operations of a prompt from position 0: matrices of every token, causal attention, the head once. */
static double prompt_operations(const model_bench *m, size_t n)
{
    const skl__config *c = &m->model->config;
    double weights = 0.0, seen = 0.0;
    size_t i, t;

    for (i = 0; i < c->layers; i++) {
        const skl__layer *l = &m->model->layers[i];

        weights += (double)(matrix_weights(&l->q) + matrix_weights(&l->k) + matrix_weights(&l->v) +
                            matrix_weights(&l->attn_gate) + matrix_weights(&l->output) + matrix_weights(&l->ffn_gate) +
                            matrix_weights(&l->ffn_up) + matrix_weights(&l->ffn_down));
        for (t = 0; t < n; t++) seen += (double)(l->window && l->window < t + 1 ? l->window : t + 1);
    }
    return 2.0 * (weights * (double)n + (double)matrix_weights(&m->model->head)) +
           4.0 * seen * (double)(c->heads * c->head_dim);
}

/* KV bytes that a token at a position reads. */
static double kv_bytes(const model_bench *m, double position)
{
    const skl__config *c = &m->model->config;
    const skl__kv_shape *shape = &m->session->kv_shape;
    const double each = (double)(shape->keys + shape->values + 2 * shape->scales) / (double)SKL__BLOCK;
    double positions = 0.0;
    size_t i;

    for (i = 0; i < c->layers; i++) {
        const double window = (double)m->model->layers[i].window;

        positions += window > 0.0 && window < position + 1.0 ? window : position + 1.0;
    }
    return positions * (double)c->kv_heads * each;
}

/* The peak that a session's matrices run against. */
static peak model_peak(const model_bench *m)
{
    const skl_isa isa = skl_session_isa(m->session);
    const int floats = m->session->desc.activation == SKL_ACT_F32 || !m->model->has_codes;

    return floats ? float_peak(isa) : integer_peak(isa);
}

/* A prompt from position 0, with the limit before and after it: the larger one counts. */
static int prefill_once(model_bench *m)
{
    const peak p = model_peak(m);
    const double before = peak_rate(m->limit, p), begin = cli_seconds();
    double seconds, after;
    int code;

    skl_session_truncate(m->session, 0);
    code = model_eval(m, 0, arguments.prompt, arguments.prompt, m->logits);
    seconds = cli_seconds() - begin;
    after = peak_rate(m->limit, p);
    series_add(&m->prefill, (double)arguments.prompt / seconds, (before > after ? before : after) * 1e-9);
    return code;
}

/* Brings a session to the depth. */
static int decode_begin(model_bench *m)
{
    const size_t held = skl_session_position(m->session), kept = held < arguments.depth ? held : arguments.depth;

    m->seconds = 0.0;
    skl_session_truncate(m->session, kept);
    return model_eval(m, kept, arguments.depth, m->context, NULL);
}

/* Token by token, of all models in turn: memory that is left alone for seconds may be slower when it is needed again. */
static int decode_once(model_bench *models, size_t count)
{
    double before, after, begin;
    size_t i, t;
    int code = CLI_GO_ON;

    for (i = 0; i < count && code == CLI_GO_ON; i++) code = decode_begin(&models[i]);
    if (code != CLI_GO_ON) return code;
    before = read_bandwidth(models->limit);
    for (t = arguments.depth; t < arguments.depth + arguments.decode; t++)
        for (i = 0; i < count && code == CLI_GO_ON; i++) {
            begin = cli_seconds();
            code = model_eval(&models[i], t, t + 1, 1, models[i].logits);
            models[i].seconds += cli_seconds() - begin;
        }
    after = read_bandwidth(models->limit);
    for (i = 0; i < count; i++)
        series_add(&models[i].decode, (double)arguments.decode / models[i].seconds, (before > after ? before : after) * 1e-9);
    return code;
}

static void model_print(const model_bench *m)
{
    const char *isa = skl_isa_name(skl_session_isa(m->session));
    const size_t threads = skl_session_threads(m->session);
    const double weights = (double)skl_model_bytes_per_token(m->model);
    const double kv = arguments.depth ? kv_bytes(m, (double)arguments.depth + (double)arguments.decode / 2) : 0.0;
    char more[256], note[128];
    row r;

    if (m->prefill.count) {
        const double operations = prompt_operations(m, arguments.prompt) / (double)arguments.prompt;
        const char *against = model_peak(m).name; /* "" where the level has no peak */

        r = row_of("prefill", isa, threads, "tok/s");
        r.limit_unit = "Gop/s";
        r.work = operations * 1e-9;
        snprintf(more, sizeof more, ",\"tokens\":%lu,\"depth\":0,\"bytes_per_token\":%.0f,"
                 "\"kv_bytes_per_token\":0,\"operations_per_token\":%.0f,\"instruction\":\"%s\"",
                 (unsigned long)arguments.prompt, weights, operations, against);
        snprintf(note, sizeof note, "%s%s%s  %lu tokens, %.3g Gop each", *against ? " (" : "", against, *against ? ")" : "",
                 (unsigned long)arguments.prompt, operations * 1e-9);
        r.model = m->name;
        r.more = more;
        r.note = note;
        print_row(&r, &m->prefill);
    }
    if (m->decode.count) {
        r = row_of("decode", isa, threads, "tok/s");
        r.limit_unit = "GB/s";
        r.work = (weights + kv) * 1e-9;
        snprintf(more, sizeof more, ",\"tokens\":%lu,\"depth\":%lu,\"bytes_per_token\":%.0f,"
                 "\"kv_bytes_per_token\":%.0f",
                 (unsigned long)arguments.decode, (unsigned long)arguments.depth, weights, kv);
        snprintf(note, sizeof note, "  %lu tokens at %lu, %.1f MB each", (unsigned long)arguments.decode,
                 (unsigned long)arguments.depth, (weights + kv) * 1e-6);
        r.model = m->name;
        r.more = more;
        r.note = note;
        print_row(&r, &m->decode);
    }
}

static void print_single(const char *name, const model_bench *m, double value, const char *unit)
{
    row r = row_of(name, skl_isa_name(skl_session_isa(m->session)), skl_session_threads(m->session), unit);
    series s;

    r.model = m->name;
    s.count = 0;
    series_add(&s, value, 0.0);
    print_row(&r, &s);
}

static int model_print_memory(const model_bench *m, double resident)
{
    const skl_session_desc desc = model_session_desc(m);
    skl_memory memory;
    skl_error error;

    if (skl_model_memory(m->model, &desc, &memory, &error)) return cli_fail_skl(m->name, &error);
    print_single("open", m, m->open_seconds * 1e3, "ms");
    print_single("memory mapped", m, (double)memory.mapped * 1e-6, "MB");
    print_single("memory weights", m, (double)memory.weights * 1e-6, "MB");
    print_single("memory tables", m, (double)memory.tables * 1e-6, "MB");
    print_single("memory kv", m, (double)memory.kv * 1e-6, "MB");
    print_single("memory scratch", m, (double)memory.scratch * 1e-6, "MB");
    if (resident > 0.0) print_single("peak resident", m, resident * 1e-6, "MB");
    return CLI_GO_ON;
}

/* Speed of the second model divided by that of the first, repeat by repeat. */
static void model_print_ratio(const char *name, const model_bench *models, const series *a, const series *b)
{
    const model_bench *second = &models[1];
    row r = row_of(name, skl_isa_name(skl_session_isa(second->session)), skl_session_threads(second->session), "x");
    series ratio;
    size_t i;

    r.model = second->name;
    r.first = models[0].name;
    ratio.count = 0;
    for (i = 0; i < a->count; i++) series_add(&ratio, b->value[i] / a->value[i], 0.0);
    if (ratio.count) print_row(&r, &ratio);
}

/* Once untimed, then the repeats, prompt and decoding in turn, of all models in turn. */
static int model_measure(model_bench *models, size_t count, limits *limit)
{
    double resident;
    size_t i, repeat;
    int code = CLI_GO_ON;

    for (i = 0; i < count && code == CLI_GO_ON; i++)
        code = model_eval(&models[i], 0, models[i].context, models[i].context, models[i].logits);
    if (code != CLI_GO_ON) return code;
    resident = count == 1 ? peak_resident() : 0.0; /* before the buffer of the limits comes on top */
    code = limits_open(limit, models[0].session->pool, 0);
    for (repeat = 0; repeat < arguments.repeats && code == CLI_GO_ON; repeat++) {
        for (i = 0; i < count && arguments.prompt && code == CLI_GO_ON; i++) code = prefill_once(&models[i]);
        if (arguments.decode && code == CLI_GO_ON) code = decode_once(models, count);
    }
    if (code != CLI_GO_ON) return code;
    print_machine(skl_session_threads(models[0].session), skl_isa_name(skl_session_isa(models[0].session)));
    for (i = 0; i < count && code == CLI_GO_ON; i++) {
        if (count > 1 && !arguments.json) printf("%s\n", models[i].name);
        model_print(&models[i]);
        code = model_print_memory(&models[i], resident);
    }
    if (count == 1) return code;
    model_print_ratio("prefill, second to first", models, &models[0].prefill, &models[1].prefill);
    model_print_ratio("decode, second to first", models, &models[0].decode, &models[1].decode);
    return code;
}

static int write_synth(const synth *made)
{
    FILE *file = cli_open(arguments.write, "wb");

    if (!file) return cli_fail("%s: %s", arguments.write, strerror(errno));
    if (fwrite(made->data, 1, (size_t)made->size, file) != made->size) {
        fclose(file);
        return cli_fail("%s: %s", arguments.write, strerror(errno));
    }
    return fclose(file) ? cli_fail("%s: %s", arguments.write, strerror(errno)) : CLI_GO_ON;
}

static int model_make(model_bench *m, const char *name)
{
    m->name = name;
    if (arguments.model) return CLI_GO_ON;
    if (!synth_choose(&m->made, name)) return cli_usage("there is no shape %.60s", name);
    return synth_make(&m->made);
}

static void model_close(model_bench *m)
{
    skl_session_close(m->session);
    skl_model_close(m->model);
    synth_free(&m->made);
    free(m->tokens);
    free(m->logits);
}

static int run_model(void)
{
    const char *names[2];
    const size_t count = arguments.beside ? 2 : 1;
    model_bench models[2];
    limits limit;
    size_t i;
    int code = CLI_GO_ON;

    if (!arguments.model == !arguments.synth) return cli_usage("give one of -m and --synth");
    if (arguments.write && (!arguments.synth || arguments.beside)) return cli_usage("--write needs --synth, and that alone");
    if (arguments.prompt == BENCH_NOT_GIVEN) arguments.prompt = 512;
    if (arguments.decode == BENCH_NOT_GIVEN) arguments.decode = 128;
    if (arguments.depth == BENCH_NOT_GIVEN) arguments.depth = 0;
    names[0] = arguments.model ? arguments.model : arguments.synth;
    names[1] = arguments.beside;
    memset(models, 0, sizeof models);
    memset(&limit, 0, sizeof limit);
    for (i = 0; i < count && code == CLI_GO_ON; i++) {
        models[i].limit = &limit;
        code = model_make(&models[i], names[i]);
        if (code == CLI_GO_ON && !arguments.write) code = model_open(&models[i]);
    }
    if (code == CLI_GO_ON) code = arguments.write ? write_synth(&models[0].made) : model_measure(models, count, &limit);
    limits_close(&limit);
    for (i = 0; i < count; i++) model_close(&models[i]);
    return code == CLI_GO_ON ? cli_finish() : code;
}

/* An option that a command does not read is a mistake of whoever gave it. */
static int check_options(const char *command)
{
    const int tokens = arguments.prompt != BENCH_NOT_GIVEN || arguments.decode != BENCH_NOT_GIVEN ||
                       arguments.depth != BENCH_NOT_GIVEN;
    const int model = arguments.model || arguments.synth || arguments.beside || arguments.write;

    if (strcmp(command, "limits") && strcmp(command, "kernels")) return CLI_GO_ON;
    if (model || tokens || arguments.activation || arguments.group || arguments.kv)
        return cli_usage("%.60s takes no option of a model", command);
    if (!strcmp(command, "limits") && arguments.isa) return cli_usage("limits measures every level; it takes no --isa");
    return CLI_GO_ON;
}

int main(int argc, char **argv)
{
    const char *command = NULL;
    int code;

    cli_begin("bench", &argc, &argv);
    code = cli_parse(argc, argv, help, options, &command, 1);
    if (code != CLI_GO_ON) return code;
    if (!command) return cli_usage("say what to measure: limits, kernels or model");
    code = check_options(command);
    if (code != CLI_GO_ON) return code;
    if (!strcmp(command, "limits")) return run_limits();
    if (!strcmp(command, "kernels")) return run_kernels();
    if (!strcmp(command, "model")) return run_model();
    return cli_usage("there is nothing to measure called %.60s", command);
}
