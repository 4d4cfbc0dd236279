/* test_units.c - single functions: against the vectors of the reference (reference/unit_vectors.txt), against the C
 * library in higher precision, and against each other on every kernel level this machine can run.
 *
 * Tolerances. The reference computes in float64 and prints 12 digits, so a difference is the library's rounding:
 *   - formats, codes of activations and integer sums are exact;
 *   - a sum of n products in float is off by at most n roundings (6e-8) of its largest terms; n is below 100 here, and
 *     16 partial sums make it much less: 2e-6, of the largest value where terms cancel, of the value itself where not;
 *   - what goes through exp() adds the rounding of its argument: 6e-8 times up to 100, hence 1e-5 of the value.
 */
#define SINKLESS_INTERNAL
#define SINKLESS_IMPLEMENTATION
#include "../sinkless.h"

#include "test.h"

#define UNIT_VECTORS "tests/reference/unit_vectors.txt"

/* --- levels --- */

/* Row i of the kernel table if this CPU can run it, otherwise NULL. */
static const skl__kernels *level_at(size_t i)
{
    return skl_isa_available() >> skl__kernel_table[i].isa & 1 ? &skl__kernel_table[i] : NULL;
}

static uint64_t random_state = 1;

static uint64_t random_bits(void) /* splitmix64 */
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Roughly normal, around 0. */
static float random_float(void)
{
    double sum = 0.0;
    int i;

    for (i = 0; i < 4; i++) sum += (double)(random_bits() >> 40) / 16777216.0 - 0.5;
    return (float)sum;
}

/* Uniform in [low, high). */
static double random_between(double low, double high)
{
    return low + (high - low) * (double)(random_bits() >> 11) / 9007199254740992.0;
}

/* --- records --- */

enum { MAX_ARRAYS = 24, MAX_VALUES = 1024 };

typedef struct array {
    char key[32];
    size_t n;
    double values[MAX_VALUES];
} array;

typedef struct record {
    char operation[32], name[64];
    array arrays[MAX_ARRAYS];
    size_t count;
} record;

/* The next record of the file; 0 at its end. */
static int read_record(FILE *file, record *r)
{
    char word[32];
    size_t i;

    if (fscanf(file, " record %31s %63s", r->operation, r->name) != 2) return 0;
    for (r->count = 0; fscanf(file, " %31s", word) == 1 && strcmp(word, "end") != 0; r->count++) {
        array *a = &r->arrays[r->count];
        unsigned long n;

        if (!CHECK(r->count + 1 < MAX_ARRAYS) || !CHECK(fscanf(file, " %31s %lu", a->key, &n) == 2)) return 0;
        if (!CHECK(n <= MAX_VALUES)) return 0;
        a->n = n;
        for (i = 0; i < a->n; i++)
            if (!CHECK(fscanf(file, "%lf", &a->values[i]) == 1)) return 0;
    }
    return 1;
}

static const array *find(const record *r, const char *key)
{
    static const array none;
    size_t i;

    for (i = 0; i < r->count; i++)
        if (strcmp(r->arrays[i].key, key) == 0) return &r->arrays[i];
    return &none;
}

static double number(const record *r, const char *key)
{
    return find(r, key)->values[0];
}

static size_t size_of(const record *r, const char *key)
{
    return (size_t)number(r, key);
}

typedef struct floats {
    float v[MAX_VALUES];
    size_t n;
} floats;

/* Inputs are exact floats, printed with enough digits. */
static floats get(const record *r, const char *key)
{
    const array *a = find(r, key);
    floats f;
    size_t i;

    memset(&f, 0, sizeof f);
    f.n = a->n;
    for (i = 0; i < a->n; i++) f.v[i] = (float)a->values[i];
    return f;
}

/* got [n] against an output of the record: within absolute + relative |wanted|. */
static void check_output(const record *r, const char *key, const float *got, double relative, double absolute,
                         const skl__kernels *kernels)
{
    const array *wanted = find(r, key);
    size_t i;

    CHECK(wanted->n > 0);
    for (i = 0; i < wanted->n; i++) {
        const double w = wanted->values[i];
        if (!CHECK_NEAR((double)got[i], w, absolute + relative * fabs(w)))
            printf("  %s %s, %s[%d], level %s\n", r->operation, r->name, key, (int)i, skl_isa_name(kernels->isa));
    }
}

/* --- a session of one token, as far as single steps of the forward pass need it --- */

typedef struct rig {
    skl_model model;
    skl_session session;
    skl__pass pass;
    float hidden[64], gate_rank[64];
    float sources[512], psi[16], inverse_rms[16], weights[16], null_mass[1], projected[128], cosine[64], sine[64];
} rig;

static void rig_make(rig *g, const skl__kernels *kernels, size_t width)
{
    memset(g, 0, sizeof *g);
    g->model.config.architecture = &skl__architectures[0];
    g->model.config.width = width;
    g->session.model = &g->model;
    g->session.kernels = kernels;
    g->session.hidden = g->hidden;
    g->session.gate_rank = g->gate_rank;
    g->session.cosine = g->cosine;
    g->session.sine = g->sine;
    g->session.depth.sources = g->sources;
    g->session.depth.psi = g->psi;
    g->session.depth.inverse_rms = g->inverse_rms;
    g->session.depth.weights = g->weights;
    g->session.depth.null_mass = g->null_mass;
    g->session.depth.projected = g->projected;
    g->pass.s = &g->session;
    g->pass.lanes = kernels->lanes;
    g->pass.n = 1;
}

static skl__matrix float_matrix(const float *values, size_t rows, size_t columns)
{
    skl__matrix w;

    memset(&w, 0, sizeof w);
    w.storage = SKL__ROWS_F32;
    w.rows = rows;
    w.columns = columns;
    w.stride = columns * sizeof *values;
    w.data = (const unsigned char *)values;
    return w;
}

/* --- norms and gates --- */

/* Brings w into columns that lie in memory [size]; whether they fit. */
static int by_columns(skl__matrix *w, unsigned char *memory, size_t size)
{
    skl__arena arena;

    memset(&arena, 0, sizeof arena);
    arena.base = memory;
    arena.capacity = size;
    skl__matrix_by_columns(&arena, w);
    return !arena.overflow;
}

static void check_norm(const record *r, const skl__kernels *kernels)
{
    const floats x = get(r, "x"), weight = get(r, "weight"), bias = get(r, "bias"), pre = get(r, "pre");
    const floats gate_a = get(r, "gate_a"), gate_b = get(r, "gate_b");
    const int gated = gate_a.n > 0, dyt = bias.n > 0;
    skl__norm norm;
    unsigned char columns[4096];
    float y[64];
    rig g;

    rig_make(&g, kernels, x.n);
    memset(&norm, 0, sizeof norm);
    g.model.config.eps = (float)number(r, "eps");
    g.model.config.dyt = dyt;
    norm.weight = weight.v;
    norm.bias = bias.v;
    norm.pre = pre.n ? pre.v : NULL;
    norm.alpha = (float)number(r, "alpha");
    if (gated) {
        g.model.gate_rank = size_of(r, "rank");
        norm.gate_a = float_matrix(gate_a.v, g.model.gate_rank, x.n);
        norm.gate_b = float_matrix(gate_b.v, x.n, g.model.gate_rank);
        CHECK(by_columns(&norm.gate_b, columns, sizeof columns));
    }
    skl__norm_tokens(&g.pass, &norm, 0, 1, x.v, y);
    check_output(r, "y", y, 2e-6, dyt || gated ? 5e-7 : 1e-12, kernels); /* DyT: tanh and bias may cancel */
}

/* --- the softmax family --- */

/* One query of one dimension: its logits are the keys, its values 1, 2, 3, ...; a context of one block. */
static skl__attend_job one_query(unsigned char *memory, const skl__kernels *kernels, const float *logits, size_t n,
                                 float null_logit, const float *q, float *out)
{
    const skl__kv_shape shape = skl__kv_shape_of(SKL_KV_F32, 1, 64);
    skl__attend_job job;
    size_t i;

    memset(&job, 0, sizeof job);
    memset(memory, 0, (size_t)shape.head);
    job.head = skl__kv_head_at(&shape, memory);
    job.kv = SKL_KV_F32;
    job.head_dim = 1;
    job.queries = 1;
    job.q[0] = q;
    job.out[0] = out;
    job.last[0] = n - 1;
    job.null_logit[0] = null_logit;
    for (i = 0; i < n; i++) {
        const float value = (float)(i + 1);
        kernels->lanes->store_kv(&job.head, SKL_KV_F32, 1, i, 1, &logits[i], &value, 1);
    }
    return job;
}

/* Over sources (a softmax in memory) and over tokens (a running one that never keeps its weights). */
static void check_softmax(const record *r, const skl__kernels *kernels)
{
    const floats logits = get(r, "logits");
    const int sink = find(r, "sink")->n > 0, null_class = find(r, "null")->n > 0;
    const float null_logit = sink ? (float)number(r, "sink") : null_class ? 0.0f : SKL__NO_NULL, one = 1.0f;
    static unsigned char memory[8192];
    floats p = logits;
    float null_mass = kernels->lanes->softmax(p.v, p.n, null_logit), mix;
    skl__attend_job job = one_query(memory, kernels, logits.v, logits.n, null_logit, &one, &mix);
    double wanted = 0.0;
    size_t i;

    check_output(r, "p", p.v, 1e-5, 2e-38, kernels); /* below that, exp() may be subnormal */
    if (null_class) check_output(r, "null", &null_mass, 1e-5, 2e-38, kernels);
    else CHECK(null_mass == 0.0f);
    kernels->lanes->attend(&job);
    for (i = 0; i < logits.n; i++) wanted += find(r, "p")->values[i] * (double)(i + 1);
    if (!CHECK_NEAR((double)mix, wanted, 1e-36 + 1e-5 * wanted)) printf("  mix of %s %s\n", r->operation, r->name);
    if (null_class) check_output(r, "null", job.null_mass, 1e-5, 2e-38, kernels);
    else CHECK(job.null_mass[0] == 0.0f);
}

/* A single key of value 1 and probability p: p = 1 / (1 + exp(null logit)). */
static void check_clip(const record *r, const skl__kernels *kernels)
{
    const array *p = find(r, "p");
    static unsigned char memory[8192];
    const float zero = 0.0f, one = 1.0f;
    float out[MAX_VALUES];
    size_t i;

    for (i = 0; i < p->n; i++) {
        const double odds = p->values[i] > 0.0 ? log((1.0 - p->values[i]) / p->values[i]) : 1000.0;
        const float null_logit = p->values[i] < 1.0 ? (float)odds : SKL__NO_NULL;
        skl__attend_job job = one_query(memory, kernels, &zero, 1, null_logit, &one, &out[i]);
        job.clipped = 1;
        job.gamma = (float)number(r, "gamma");
        job.zeta = (float)number(r, "zeta");
        kernels->lanes->attend(&job);
    }
    CHECK_EQ_INT(p->n, 6);
    for (i = 0; i < p->n; i++) /* the record has two arrays called p: what goes in, and last what comes out */
        if (!CHECK_NEAR((double)out[i], r->arrays[r->count - 1].values[i], 1e-6)) printf("  clip %s\n", r->name);
}

/* --- depth reads --- */

static void check_read(const record *r, const skl__kernels *kernels)
{
    const floats candidates = get(r, "candidates"), score = get(r, "score"), psi = get(r, "psi");
    const floats read_q = get(r, "read_q"), read_k = get(r, "read_k");
    const size_t n = size_of(r, "n"), width = size_of(r, "d"), rank = size_of(r, "width");
    skl__config *c;
    skl__read read;
    float logits[16];
    size_t i;
    rig g;

    rig_make(&g, kernels, width);
    memset(&read, 0, sizeof read);
    c = &g.model.config;
    c->residual = rank ? SKL__ROUTER : SKL__ATTNRES;
    c->coupling = (skl__coupling)number(r, "coupling");
    c->depth_softmax1 = (int)number(r, "softmax1");
    c->eps = (float)number(r, "eps");
    g.model.read_rank = rank;
    g.session.depth.slots = n;
    read.score = score.v;
    read.q = float_matrix(read_q.v, rank, width);
    read.k = float_matrix(read_k.v, rank, width);
    read.recency = (float)number(r, "recency");
    read.beta = (float)number(r, "beta");
    for (i = 0; i < n; i++) {
        skl__deposit_token(&g.pass, 0, i, SKL__SET, candidates.v + i * width);
        skl__deposit_psi(&g.pass, i, &psi.v[i]);
    }
    if (rank) skl__route_sources(&g.pass, &read, 0, n, logits);
    else skl__score_sources(&g.pass, &read, 0, n, logits);
    skl__couple(logits, g.psi, n, read.beta, c->coupling);
    for (i = 0; rank && i < n; i++) logits[i] = fminf(fmaxf(logits[i], -50.0f), 50.0f);
    check_output(r, "g", logits, 2e-6, 2e-6, kernels);
    skl__read_token(&g.pass, &read, 0, n);
    check_output(r, "alpha", g.weights, 1e-5, 1e-12, kernels);
    if (c->depth_softmax1) check_output(r, "null", g.null_mass, 1e-5, 1e-12, kernels);
    check_output(r, "read", g.hidden, 1e-5, 5e-6, kernels);
}

/* --- rope and activations --- */

static void check_rope(const record *r, const skl__kernels *kernels)
{
    floats x = get(r, "x");
    double frequencies[64];
    skl__config *c;
    rig g;

    rig_make(&g, kernels, x.n);
    c = &g.model.config;
    c->architecture = &skl__architectures[number(r, "adjacent") != 0.0]; /* sinkless halves, llama neighbours */
    c->head_dim = x.n;
    c->n_rot = size_of(r, "n_rot");
    c->rope_base = number(r, "base");
    c->rope_scaling = (skl__rope_scaling)number(r, "type");
    c->rope_factor = number(r, "factor");
    c->rope_original = number(r, "original_context_length");
    c->rope_attention = number(r, "attn_factor");
    c->rope_beta_fast = number(r, "yarn_beta_fast");
    c->rope_beta_slow = number(r, "yarn_beta_slow");
    g.model.rope_magnitude = 1.0f;
    skl__rope_frequencies(&g.model, NULL, frequencies);
    g.model.frequencies = frequencies;
    g.pass.start = size_of(r, "position");
    skl__angles(&g.pass, 0);
    skl__turn_head(&g.pass, 0, NULL, x.v);
    check_output(r, "y", x.v, 0.0, 1e-6, kernels); /* two products of values below 4, which may cancel */
}

static void check_activation(const record *r, const skl__kernels *kernels)
{
    const floats x = get(r, "x");
    floats y = x, one;
    size_t i;

    for (i = 0; i < x.n; i++) one.v[i] = 1.0f;
    if (strcmp(r->operation, "sigmoid") == 0) {
        y = one;
        kernels->lanes->gate(y.v, x.v, x.n, 1);
    } else if (strcmp(r->operation, "silu") == 0) {
        kernels->lanes->silu(y.v, x.n);
    } else if (strcmp(r->operation, "gelu") == 0) {
        kernels->lanes->gated_unit(y.v, one.v, x.n, SKL__UNIT_GELU);
    } else {
        for (i = 0; i < x.n; i++) y.v[i] = (float)skl__softplus((double)x.v[i]);
    }
    check_output(r, "y", y.v, 1e-5, 3e-45, kernels);
}

/* --- formats: exact, and the same for all levels --- */

static size_t get_bytes(const record *r, unsigned char *bytes)
{
    const array *a = find(r, "bytes");
    size_t i;

    for (i = 0; i < a->n; i++) bytes[i] = (unsigned char)a->values[i];
    return a->n;
}

static void check_quantise(const record *r, const skl__kernels *kernels)
{
    const floats x = get(r, "x");
    unsigned char wanted[MAX_VALUES], got[MAX_VALUES];
    const size_t n = get_bytes(r, wanted);

    (void)kernels;
    CHECK_EQ_INT(skl_quantize((int)number(r, "type"), x.v, x.n, got), SKL_OK);
    if (!CHECK(memcmp(got, wanted, n) == 0)) printf("  quantise %s\n", r->name);
}

static void check_dequantise(const record *r, const skl__kernels *kernels)
{
    const floats wanted = get(r, "x");
    unsigned char bytes[MAX_VALUES];
    float got[MAX_VALUES];
    size_t i;

    (void)kernels;
    get_bytes(r, bytes);
    CHECK_EQ_INT(skl_dequantize((int)number(r, "type"), bytes, wanted.n, got), SKL_OK);
    for (i = 0; i < wanted.n; i++)
        if (!CHECK(got[i] == wanted.v[i])) printf("  dequantise %s, value %d\n", r->name, (int)i);
}

typedef struct activations {
    int8_t codes[MAX_VALUES];
    float scales[64];
    int32_t sums[64];
} activations;

static void quantise_row(const record *r, const skl__kernels *kernels, const floats *x, activations *a)
{
    const float levels = number(r, "bits") == 4.0 ? 7.0f : 127.0f;

    kernels->lanes->quantise(x->v, x->n, levels, number(r, "group") == 0.0, a->codes, a->scales, a->sums);
}

static void check_activations(const record *r, const skl__kernels *kernels)
{
    const floats x = get(r, "x"), scale = get(r, "scale");
    const array *q = find(r, "q");
    activations a;
    int32_t sum = 0;
    size_t i;

    quantise_row(r, kernels, &x, &a);
    for (i = 0; i < x.n; i++) {
        if (!CHECK_EQ_INT(a.codes[i], q->values[i])) printf("  quantise_activations %s\n", r->name);
        sum += a.codes[i];
        if (i % 32 == 31 || i + 1 == x.n) {
            CHECK_EQ_INT(a.sums[i / 32], sum);
            sum = 0;
        }
    }
    for (i = 0; i < scale.n; i++) CHECK(a.scales[i] == scale.v[i]);
}

/* y = W x through the kernels of a level. */
static void check_matmul(const record *r, const skl__kernels *kernels)
{
    const floats x = get(r, "x");
    const array *acc = find(r, "acc");
    const size_t rows = size_of(r, "n_out"), columns = size_of(r, "n_in"), blocks = columns / 32;
    unsigned char bytes[MAX_VALUES];
    static unsigned char packed[8192 + 64];
    unsigned char *aligned = packed + (64 - ((uintptr_t)packed & 63));
    activations a, alone;
    float y[16], scale;
    size_t block, row;
    skl_layout layout;
    skl__matrix w;
    skl__acts acts;
    skl__matmul *matmul = number(r, "bits") == 4.0 ? kernels->matmul_q4_a4 : kernels->matmul_q4_a8;

    get_bytes(r, bytes);
    CHECK_EQ_INT(skl_layout_of(&layout, SKL_TYPE_Q4_0, rows, columns), SKL_OK);
    CHECK(skl_packed_bytes(&layout) <= 8192);
    CHECK_EQ_INT(skl_pack(&layout, SKL_TYPE_Q4_0, bytes, aligned), SKL_OK);
    memset(&w, 0, sizeof w);
    w.storage = SKL__TILES_4;
    w.rows = rows;
    w.columns = columns;
    w.group = 32;
    w.stride = (size_t)skl_packed_tile_bytes(&layout);
    w.data = aligned;
    memset(&a, 0, sizeof a);
    quantise_row(r, kernels, &x, &a);
    memset(&acts, 0, sizeof acts);
    acts.columns = columns;
    acts.stride = 128;
    acts.row = number(r, "group") == 0.0;
    acts.codes = a.codes;
    acts.scales = a.scales;
    acts.sums = a.sums;
    acts.values = x.v;
    matmul(y, 16, &w, 0, 1, &acts, 1);
    for (row = 0; row < rows; row++) { /* from the sums of the record; scales are a division and a lookup */
        double sum = 0.0, size = 0.0;
        for (block = 0; block < blocks; block++) {
            const double term = acc->values[row * blocks + block] * (double)a.scales[acts.row ? 0 : block] *
                                (double)skl__f16_to_f32(skl__le16(bytes + (row * blocks + block) * 18));
            sum += term;
            size += fabs(term);
        }
        CHECK_NEAR((double)y[row], sum, 1e-6 * size);
    }
    kernels->lanes->matmul_q4_f32(y, 16, &w, 0, 1, &acts, 1);
    check_output(r, "y", y, 2e-6, 2e-6, kernels); /* the record has the product with the float activations */
    for (block = 0; block < blocks; block++) { /* one block alone, of scale 1: scale * acc is exact in float */
        memset(&alone, 0, sizeof alone);
        memcpy(alone.codes + 32 * block, a.codes + 32 * block, 32);
        alone.sums[block] = a.sums[block];
        for (row = 0; row < 3; row++) alone.scales[row] = 1.0f;
        acts.codes = alone.codes;
        acts.scales = alone.scales;
        acts.sums = alone.sums;
        matmul(y, 16, &w, 0, 1, &acts, 1);
        for (row = 0; row < rows; row++) {
            scale = skl__f16_to_f32(skl__le16(bytes + (row * blocks + block) * 18));
            CHECK(y[row] == scale * (float)acc->values[row * blocks + block]);
        }
    }
}

static void test_vectors(void)
{
    static const struct {
        const char *operation;
        void (*check)(const record *r, const skl__kernels *kernels);
    } checks[] = {
        {"rms_norm", check_norm}, {"preaffine", check_norm}, {"gated_norm", check_norm}, {"dyt", check_norm},
        {"gated_dyt", check_norm}, {"softmax", check_softmax}, {"softmax1", check_softmax},
        {"sink_softmax", check_softmax}, {"clip", check_clip}, {"depth_read", check_read}, {"router_read", check_read},
        {"rope", check_rope}, {"sigmoid", check_activation}, {"silu", check_activation}, {"gelu", check_activation},
        {"softplus", check_activation}, {"quantise", check_quantise}, {"dequantise", check_dequantise},
        {"quantise_activations", check_activations}, {"matmul_q4_0", check_matmul}
    };
    FILE *file = fopen(UNIT_VECTORS, "r");
    static record r;
    size_t records = 0, i, k;

    if (!CHECK(file != NULL)) return;
    while (read_record(file, &r)) {
        int known = 0;
        records++;
        for (k = 0; k < sizeof checks / sizeof *checks; k++) {
            if (strcmp(checks[k].operation, r.operation) != 0) continue;
            known = 1;
            for (i = 0; i < SKL__KERNEL_ROWS; i++)
                if (level_at(i)) checks[k].check(&r, level_at(i));
        }
        if (!CHECK(known)) printf("  no test for %s\n", r.operation);
    }
    CHECK(feof(file));
    CHECK_EQ_INT(records, 250);
    fclose(file);
}

/* --- elementary functions in float --- */

typedef enum function { EXP, SIGMOID, SILU, GELU, TANH, FUNCTIONS } function;

static const char *const function_names[FUNCTIONS] = {"exp", "sigmoid", "silu", "gelu", "tanh"};

enum { BATCH = 4096, STEP = 4099 }; /* every 4099th of the 2^32 floats */

static void apply(const skl__lane_kernels *lanes, function f, const float *x, float *y)
{
    static float ones[BATCH], zeros[BATCH];
    size_t i;

    for (i = 0; i < BATCH; i++) ones[i] = 1.0f;
    memcpy(y, x, BATCH * sizeof *y);
    switch (f) {
    case EXP: lanes->exp(y, BATCH); break;
    case SIGMOID:
        memcpy(y, ones, sizeof ones);
        lanes->gate(y, x, BATCH, 1);
        break;
    case SILU: lanes->silu(y, BATCH); break;
    case GELU: lanes->gated_unit(y, ones, BATCH, SKL__UNIT_GELU); break;
    default: lanes->dyt(y, x, ones, zeros, 1.0f, BATCH); break;
    }
}

static long double logistic(long double x)
{
    return 1.0L / (1.0L + expl(-x));
}

static long double reference(function f, long double x)
{
    const long double two_root = 1.5957691216057307117597842397375L; /* 2 sqrt(2 / pi) */

    switch (f) {
    case EXP: return expl(x);
    case SIGMOID: return logistic(x);
    case SILU: return x * logistic(x);
    case GELU: return x * logistic(two_root * (x + 0.044715L * x * x * x));
    default: return tanhl(x);
    }
}

/* |got - wanted| in units of the last place of a float near wanted; infinity counts as 2^128. */
static double float_error(float got, long double wanted)
{
    const long double end = ldexpl(1.0L, 128);
    const long double g = isinf(got) ? (got > 0.0f ? end : -end) : (long double)got;
    const long double w = wanted > end ? end : wanted < -end ? -end : wanted;
    const int exponent = w == 0.0L || ilogbl(w) < -126 ? -126 : ilogbl(w);

    if (isnan(wanted)) return isnan(got) ? 0.0 : HUGE_VAL;
    if (isnan(got)) return HUGE_VAL;
    return (double)ldexpl(fabsl(g - w), 23 - exponent);
}

/* The argument of the exponential inside GELU; its rounding is what its error consists of. */
static double gelu_argument(double x)
{
    return fabs(1.5957691216057308 * (x + 0.044715 * x * x * x));
}

/* Bounds as the header states them, in units of the last place. */
static double error_bound(function f, float x)
{
    static const double bounds[FUNCTIONS] = {1.1, 2.5, 3.0, 3.0, 1.5};

    if (f == GELU && x < 0.0f) return bounds[f] + 2.0 * gelu_argument((double)x);
    if (f == SILU && x < -87.0f) return bounds[f] + fabs((double)x); /* x times a subnormal */
    return bounds[f];
}

static int same_float(float a, float b)
{
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

/* x [BATCH] through a function on every level: the scalar one within the bound, the others with its bits. */
static void check_batch(function f, const float *x, double *worst, double *worst_near_zero)
{
    static float first[BATCH], other[BATCH];
    size_t i, level;

    apply(level_at(0)->lanes, f, x, first);
    for (i = 0; i < BATCH; i++) {
        const double error = float_error(first[i], reference(f, (long double)x[i]));
        if (isinf(x[i]) && x[i] < 0.0f && (f == SILU || f == GELU)) continue; /* -infinity times 0 */
        if (!CHECK(error <= error_bound(f, x[i])))
            printf("  %s(%.9g) = %.9g is off by %.3g ulp\n", function_names[f], (double)x[i], (double)first[i], error);
        if (error > *worst) *worst = error;
        if (fabsf(x[i]) < 1.0f && error > *worst_near_zero) *worst_near_zero = error;
    }
    for (level = 1; level < SKL__KERNEL_ROWS; level++) {
        if (!level_at(level)) continue;
        apply(level_at(level)->lanes, f, x, other);
        for (i = 0; i < BATCH; i++)
            if (!CHECK(same_float(first[i], other[i])))
                printf("  %s(%.9g), level %s\n", function_names[f], (double)x[i],
                       skl_isa_name(level_at(level)->isa));
    }
}

static void test_float_functions(void)
{
    static const uint32_t special[] = {
        0, 0x80000000u, 1, 0x80000001u, 0x007fffffu, 0x00800000u, 0x7f7fffffu, 0xff7fffffu, 0x7f800000u, 0xff800000u,
        0x7fc00000u, 0xffc00000u, 0x7f800001u, 0x42b17217u, 0x42b17218u, 0x42b17219u, 0xc2aeac50u, 0xc2ce8ed0u,
        0xc2cff1b5u, 0xc2d20000u, 0xc2d20001u, 0x3f1fffffu, 0x3f200000u, 0xbf200000u, 0x41100000u,
        0x41102cb4u, 0x33800000u
    };
    static float x[BATCH];
    uint64_t bits;
    size_t i;
    int f;

    for (f = 0; f < FUNCTIONS; f++) {
        double worst = 0.0, near_zero = 0.0;
        for (i = 0; i < BATCH; i++) x[i] = skl__f32_from_bits(special[i % (sizeof special / sizeof *special)]);
        check_batch((function)f, x, &worst, &near_zero);
        for (bits = 0; bits < (uint64_t)1 << 32; bits += (uint64_t)BATCH * STEP) {
            for (i = 0; i < BATCH; i++) x[i] = skl__f32_from_bits((uint32_t)(bits + i * STEP));
            check_batch((function)f, x, &worst, &near_zero);
        }
        for (bits = 0; bits < 16; bits++) { /* denser where the functions bend */
            for (i = 0; i < BATCH; i++) x[i] = (float)random_between(-112.0, 112.0);
            check_batch((function)f, x, &worst, &near_zero);
        }
        printf("%-8s at most %.2f ulp, %.2f within +-1\n", function_names[f], worst, near_zero);
    }
}

/* --- elementary functions in double --- */

static double double_error(double got, long double wanted)
{
    const int exponent = wanted == 0.0L || ilogbl(wanted) < -1022 ? -1022 : ilogbl(wanted);

    return (double)ldexpl(fabsl((long double)got - wanted), 52 - exponent);
}

/* A positive finite double, subnormal ones included. */
static double random_double(void)
{
    const uint64_t bits = random_bits() % UINT64_C(0x7ff0000000000000);
    double value;

    memcpy(&value, &bits, sizeof value);
    return value > 0.0 ? value : 1.0;
}

static void larger(double *worst, double error)
{
    if (!(error <= *worst)) *worst = error;
}

static void test_double_functions(void)
{
    static const double edges[] = {4.9406564584124654e-324, 2.2250738585072014e-308, 0.5, 0.70710678118654746,
                                   0.70710678118654757, 1.0, 1.4142135623730949, 2.0, 1.7976931348623157e308};
    const double slack = LDBL_MANT_DIG > 60 ? 0.0 : 1.0; /* where long double is double, the reference is rounded too */
    double worst_log = 0.0, worst_exp = 0.0, worst_pow = 0.0, worst_sin = 0.0, worst_plus = 0.0, sine, cosine;
    int i;

    for (i = 0; i < 400000; i++) {
        const double x = i < 9 ? edges[i] : i % 2 ? random_double() : 1.0 + ldexp(random_between(-1.0, 1.0), -(i % 50));
        if (x > 0.0) larger(&worst_log, double_error(skl__log(x), logl((long double)x)));
    }
    for (i = 0; i < 400000; i++) {
        const double x = i % 2 ? random_between(-708.0, 709.0) : ldexp(random_between(-1.0, 1.0), -(i % 60));
        larger(&worst_exp, double_error(skl__exp64(x), expl((long double)x)));
    }
    for (i = 0; i < 200000; i++) { /* as rotary frequencies use it */
        const double base = exp(random_between(-13.8, 88.0)), exponent = random_between(-1.0, 0.0);
        const double scale = 1.0 + fabs(exponent * log(base));
        const long double wanted = powl((long double)base, (long double)exponent);
        larger(&worst_pow, double_error(skl__pow(base, exponent), wanted) / scale);
    }
    for (i = 0; i < 500000; i++) {
        const double quarter = 1.5707963267948966 * floor(random_between(-1e6, 1e6));
        const int kind = i % 5;
        const double x = kind == 0   ? quarter
                         : kind == 1 ? random_between(-1.6e6, 1.6e6)
                         : kind == 2 ? random_between(-1e9, 1e9)
                         : kind == 3 ? random_between(-10.0, 10.0)
                                     : ldexp(random_between(-1.0, 1.0), -(i % 300));
        const double unit = fabs(x) < 1.6e6 ? 4e-16 : 1.2e-16 * fabs(x);
        skl__sincos(x, &sine, &cosine);
        larger(&worst_sin, (double)fabsl((long double)sine - sinl((long double)x)) / unit);
        larger(&worst_sin, (double)fabsl((long double)cosine - cosl((long double)x)) / unit);
    }
    for (i = 0; i < 200000; i++) {
        const double x = random_between(-700.0, 100.0);
        const long double wanted = log1pl(expl((long double)x));
        larger(&worst_plus, (double)(fabsl((long double)skl__softplus(x) - wanted) / wanted));
    }
    printf("double   log %.2f ulp, exp %.2f, pow %.2f per 1 + |y log x|; ", worst_log, worst_exp, worst_pow);
    printf("sin, cos %.2f of the bound; softplus %.2g relative\n", worst_sin, worst_plus);
    CHECK(worst_log <= 3.0 + slack);
    CHECK(worst_exp <= 1.5 + slack);
    CHECK(worst_pow <= 1.5 + slack);
    CHECK(worst_sin <= 1.0 + slack);
    CHECK(worst_plus <= 6e-8);
    CHECK(isnan(skl__exp64((double)NAN)));
    CHECK(isnan(skl__softplus((double)NAN)));
    CHECK(skl__exp64(0.0) == 1.0 && skl__exp64(-HUGE_VAL) == 0.0 && skl__exp64(HUGE_VAL) > 8e307);
    CHECK(skl__log(1.0) == 0.0);
    skl__sincos(-0.0, &sine, &cosine);
    CHECK(sine == 0.0 && cosine == 1.0);
}

/* --- half precision --- */

static void test_halves(void)
{
    static float values[65536], x[16 * 16], y[16][4096];
    static uint16_t halves[65536];
    skl__matrix w = float_matrix(values, 4096, 16);
    size_t i, level, t;
    skl__acts acts;

    for (i = 0; i < 65536; i++) {
        const int exponent = (int)(i >> 10 & 31), fraction = (int)(i & 1023);
        const double magnitude = exponent ? ldexp(1024.0 + fraction, exponent - 25) : ldexp(fraction, -24);
        const double wanted = i & 0x8000u ? -magnitude : magnitude;
        const float got = skl__f16_to_f32((uint16_t)i);
        halves[i] = exponent == 31 ? 0 : (uint16_t)i;
        if (exponent == 31) CHECK(fraction ? isnan(got) : isinf(got));
        else CHECK((double)got == wanted);
        if (exponent < 31) CHECK_EQ_INT(skl__f32_to_f16(got), i);
    }
    for (i = 0; i < 200000; i++) { /* narrowing: rint() to the grid of the half */
        const float value = i % 2 ? skl__f32_from_bits((uint32_t)random_bits()) : random_float() * 64.0f;
        const int exponent = value != 0.0f ? ilogb((double)value) : 0;
        const int grid = (exponent < -14 ? -14 : exponent) - 10;
        const double rounded = ldexp(rint(ldexp((double)value, -grid)), grid);
        const uint16_t half = skl__f32_to_f16(value);
        if (isnan(value)) CHECK(isnan(skl__f16_to_f32(half)));
        else if (fabs(rounded) > 65504.0) CHECK(isinf(skl__f16_to_f32(half)) && (half >> 15) == (value < 0.0f));
        else CHECK((double)skl__f16_to_f32(half) == rounded);
    }
    w.storage = SKL__ROWS_F16;
    w.stride = 32;
    w.data = (const unsigned char *)halves;
    memset(&acts, 0, sizeof acts);
    acts.columns = 16;
    acts.values = x;
    for (i = 0; i < 16; i++) x[i * 16 + i] = 1.0f; /* token t picks column t */
    for (level = 0; level < SKL__KERNEL_ROWS; level++) {
        if (!level_at(level)) continue;
        level_at(level)->lanes->matmul_f16_f32(y[0], 4096, &w, 0, 256, &acts, 16);
        for (i = 0; i < 4096; i++)
            for (t = 0; t < 16; t++)
                CHECK(y[t][i] == skl__f16_to_f32(halves[i * 16 + t]));
    }
}

/* --- what is not finite is found wherever it stands --- */

static void test_all_finite(void)
{
    static const uint32_t bits[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u, 0xffffffffu}; /* infinities, NaNs */
    enum { MOST = 200 };
    float x[MOST];
    size_t n, i;

    for (n = 0; n <= MOST; n++) {
        for (i = 0; i < MOST; i++) x[i] = i % 3 ? FLT_MAX : -1e-45f;
        if (n < MOST) memcpy(&x[n], &bits[n % 5], sizeof *x); /* behind the end */
        CHECK(skl__all_finite(x, n));
        for (i = 0; i < n; i++) {
            const float kept = x[i];
            memcpy(&x[i], &bits[i % 5], sizeof *x);
            CHECK(!skl__all_finite(x, n));
            x[i] = kept;
        }
    }
}

/* --- a gate by columns: the bits of the product by rows and of the gate --- */

static void test_gate_product(void)
{
    enum { TOKENS = 3, MOST = 300, MOST_RANK = 40 };
    static const size_t widths[] = {1, 15, 16, 100, 256, 300}, ranks[] = {1, 5, 16, 17, 40};
    static float values[MOST * MOST_RANK], x[TOKENS * MOST_RANK], y[TOKENS * MOST], wanted[TOKENS * MOST], u[TOKENS * MOST];
    static unsigned char data[MOST * MOST_RANK * 4], columns[(MOST + 15) * MOST_RANK * 4 + 64];
    const int storages[] = {SKL__ROWS_F32, SKL__ROWS_F16, SKL__ROWS_BF16};
    size_t i, s, level, width, rank;
    skl__acts acts;

    memset(&acts, 0, sizeof acts);
    acts.values = x;
    for (i = 0; i < MOST * MOST_RANK; i++) values[i] = random_float();
    for (i = 0; i < TOKENS * MOST_RANK; i++) x[i] = random_float();
    for (s = 0; s < 3; s++)
        for (width = 0; width < sizeof widths / sizeof *widths; width++)
            for (rank = 0; rank < sizeof ranks / sizeof *ranks; rank++) {
                skl__matrix w = float_matrix(values, widths[width], ranks[rank]);
                const size_t n = w.rows * w.columns;
                w.storage = (skl__storage)storages[s];
                for (i = 0; i < n && s; i++) {
                    const uint16_t half = s == 1 ? skl__f32_to_f16(values[i]) : skl__f32_to_bf16(values[i]);
                    memcpy(data + 2 * i, &half, 2);
                }
                if (!s) memcpy(data, values, n * sizeof *values);
                w.stride = w.columns * (s ? 2 : 4);
                w.data = data;
                acts.columns = w.columns;
                for (i = 0; i < TOKENS * w.rows; i++) wanted[i] = values[i];
                skl__matmul_for(level_at(0), &w, SKL_ACT_F32)(u, w.rows, &w, 0, (w.rows + 15) / 16, &acts, TOKENS);
                level_at(0)->lanes->gate(wanted, u, TOKENS * w.rows, 1);
                CHECK(by_columns(&w, columns, sizeof columns));
                for (level = 0; level < SKL__KERNEL_ROWS; level++) {
                    if (!level_at(level)) continue;
                    memcpy(y, values, sizeof y);
                    level_at(level)->lanes->gate_product(y, &w, x, TOKENS);
                    CHECK(memcmp(y, wanted, TOKENS * w.rows * sizeof *y) == 0);
                }
                w.rows = 1; /* a hostile width and rank: sixteen such rows are 0 bytes, if a product wraps */
                w.stride = SIZE_MAX / 16 + 1;
                w.data = data;
                CHECK(!by_columns(&w, columns, sizeof columns) && w.data == data);
            }
}

/* --- packing loses nothing --- */

/* --- quantisation of activations --- */

/* A value that makes the scale, then values within some steps of the middle between two codes: there, a quotient that is off by a
 * last bit would give another code.        x  [n] */
static void near_middles(float *x, size_t n, int exponent, float levels)
{
    const float largest = (float)ldexp(random_between(1.0, 2.0), exponent), scale = (float)((double)largest / (double)levels);
    size_t i;
    int step;

    for (i = 0; i < n; i++) {
        const double middle = floor(random_between(0.0, (double)levels)) + 0.5;
        x[i] = (float)(middle * (double)scale);
        for (step = (int)random_between(0.0, 5.0); step > 0; step--) x[i] = nextafterf(x[i], random_bits() & 1 ? largest : 0.0f);
        if (x[i] > largest) x[i] = largest;
        if (random_bits() & 1) x[i] = -x[i];
    }
    x[(size_t)random_between(0.0, (double)n)] = largest;
}

/* As the format defines it. A quotient of floats is rounded once more by way of double, which changes nothing.
 *   x, codes  [n] */
static float quantise_by_definition(const float *x, size_t n, float largest, float levels, int *codes)
{
    const float scale = (float)((double)largest / (double)levels);
    size_t i;

    for (i = 0; i < n; i++) {
        const double quotient = scale > 0.0f ? (double)(float)((double)x[i] / (double)scale) : 0.0;
        codes[i] = (int)rint(quotient < -(double)levels ? -(double)levels : quotient > (double)levels ? (double)levels : quotient);
    }
    return scale;
}

static float largest_of(const float *x, size_t n)
{
    float largest = 0.0f;
    size_t i;

    for (i = 0; i < n; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    return largest;
}

enum { MOST_VALUES = 1100 };

static void check_codes(const skl__lane_kernels *lanes, const float *x, size_t n, float levels, int row)
{
    static int8_t codes[MOST_VALUES + 1];
    static int wanted[MOST_VALUES];
    float scales[MOST_VALUES / 32 + 2];
    int32_t sums[MOST_VALUES / 32 + 2];
    const float largest = largest_of(x, n);
    size_t begin, i, wrong = 0;

    memset(codes, 99, sizeof codes);
    memset(scales, 0, sizeof scales);
    memset(sums, 0x55, sizeof sums);
    lanes->quantise(x, n, levels, row, codes, scales, sums);
    for (begin = 0; begin < n; begin += 32) {
        const size_t count = n - begin < 32 ? n - begin : 32;
        const float scale = quantise_by_definition(x + begin, count, row ? largest : largest_of(x + begin, count), levels,
                                                   wanted + begin);
        int32_t sum = 0;
        for (i = begin; i < begin + count; i++) {
            wrong += codes[i] != wanted[i];
            sum += wanted[i];
        }
        CHECK(scales[row ? 0 : begin / 32] == scale);
        CHECK_EQ_INT(sums[begin / 32], sum);
    }
    CHECK_EQ_INT(wrong, 0);
    CHECK_EQ_INT(codes[n], 99);
    CHECK(sums[(n + 31) / 32] == 0x55555555 && scales[row ? 1 : (n + 31) / 32] == 0.0f);
}

static void test_codes(void)
{
    static const size_t sizes[] = {1, 15, 16, 17, 31, 32, 33, 64, 511, 512, 513, 1024, 1057};
    static const int exponents[] = {-149, -130, -126, -101, -94, -93, -92, -60, -1, 0, 1, 40, 126};
    static float x[MOST_VALUES];
    size_t s, e, level, begin;
    int round;

    for (round = 0; round < 4; round++) /* 127 or 7 levels, groups or rows */
        for (s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (e = 0; e < sizeof exponents / sizeof *exponents; e++) {
                const float levels = round & 1 ? 7.0f : 127.0f;
                const size_t run = round & 2 ? sizes[s] : 32;
                for (begin = 0; begin < sizes[s]; begin += run)
                    near_middles(x + begin, sizes[s] - begin < run ? sizes[s] - begin : run, exponents[e], levels);
                if (begin > 64 && run == 32) memset(x + 32, 0, 32 * sizeof *x); /* and a group of zeros */
                for (level = 0; level < SKL__KERNEL_ROWS; level++)
                    if (level_at(level)) check_codes(level_at(level)->lanes, x, sizes[s], levels, round & 2);
            }
}

static void test_packing(void)
{
    static const int types[] = {SKL_TYPE_Q4_0, SKL_TYPE_Q4_1, SKL_TYPE_Q8_0, SKL_TYPE_Q4_K,
                                SKL_TYPE_Q5_K, SKL_TYPE_Q6_K, SKL_TYPE_MXFP4};
    enum { ROWS = 19, COLUMNS = 256 };
    static unsigned char rows[ROWS * 1024], packed[32 * 2048];
    static float values[ROWS * COLUMNS], wanted[COLUMNS], got[COLUMNS];
    unsigned char *p;
    skl_layout layout;
    size_t i, r, t, bytes, block;

    for (t = 0; t < sizeof types / sizeof *types; t++) {
        bytes = COLUMNS / skl_type_block(types[t]) * skl_type_bytes(types[t]);
        for (i = 0; i < ROWS * bytes; i++) rows[i] = (unsigned char)random_bits();
        for (p = rows, block = skl_type_bytes(types[t]); p < rows + ROWS * bytes; p += block) { /* finite scales */
            if (types[t] == SKL_TYPE_MXFP4) p[0] = (unsigned char)(100 + p[0] % 50);
            else if (types[t] == SKL_TYPE_Q6_K) p[209] = (unsigned char)(p[209] & 0xbb);
            else p[1] = (unsigned char)(p[1] & 0xbb), p[3] = (unsigned char)(p[3] & 0xbb);
        }
        CHECK_EQ_INT(skl_layout_of(&layout, types[t], ROWS, COLUMNS), SKL_OK);
        CHECK(skl_packed_bytes(&layout) <= sizeof packed);
        CHECK_EQ_INT(skl_pack(&layout, types[t], rows, packed), SKL_OK);
        for (r = 0; r < ROWS; r++) {
            CHECK_EQ_INT(skl_dequantize(types[t], rows + r * bytes, COLUMNS, wanted), SKL_OK);
            CHECK_EQ_INT(skl_unpack_row(&layout, packed, r, got), SKL_OK);
            if (!CHECK(memcmp(got, wanted, sizeof got) == 0)) printf("  %s, row %d\n", skl_type_name(types[t]), (int)r);
        }
        layout.wide = -1; /* anything but zero is wide, and holds the same */
        CHECK(skl_packed_bytes(&layout) <= sizeof packed);
        CHECK_EQ_INT(skl_pack(&layout, types[t], rows, packed), SKL_OK);
        CHECK_EQ_INT(skl_unpack_row(&layout, packed, ROWS - 1, got), SKL_OK);
        CHECK(memcmp(got, wanted, sizeof got) == 0); /* of the last row */
    }
    for (i = 0; i < ROWS * COLUMNS; i++) values[i] = random_float();
    for (t = 0; t < 3; t += 2) { /* Q4_0, Q8_0: quantising into the layout is quantising to the type */
        CHECK_EQ_INT(skl_layout_of(&layout, types[t], ROWS, COLUMNS), SKL_OK);
        CHECK_EQ_INT(skl_pack_values(&layout, values, packed), SKL_OK);
        for (r = 0; r < ROWS; r++) {
            CHECK_EQ_INT(skl_quantize(types[t], values + r * COLUMNS, COLUMNS, rows), SKL_OK);
            CHECK_EQ_INT(skl_dequantize(types[t], rows, COLUMNS, wanted), SKL_OK);
            CHECK_EQ_INT(skl_unpack_row(&layout, packed, r, got), SKL_OK);
            for (i = 0; i < COLUMNS; i++) CHECK(got[i] == wanted[i]);
        }
    }
}

/* --- packing at load: by several threads, in several items, to the bytes that skl_pack makes --- */

enum { PACKED_ROWS = 700, PACKED_COLUMNS = 2048 };

/* How many threads the process has: asked whenever loading asks whether to stop. */
static int count_threads(void *user)
{
    int *most = (int *)user, threads = 0;
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Threads: %d", &threads) == 1 && threads > *most) *most = threads;
    if (file) fclose(file);
    return 0;
}

static void check_repacking(const unsigned char *rows, const unsigned char *wanted, unsigned char *out, size_t threads)
{
    static skl_allocator standard;
    static skl_model model;
    static skl_gguf gguf;
    skl__repack repack;
    skl__binder binder;
    skl_error error;
    int most = 0;

    memset(&binder, 0, sizeof binder);
    memset(&repack, 0, sizeof repack);
    memset(&model, 0, sizeof model);
    CHECK_EQ_INT(skl_layout_of(&repack.layout, SKL_TYPE_Q4_0, PACKED_ROWS, PACKED_COLUMNS), SKL_OK);
    CHECK_EQ_INT(skl__take_allocator(&model.allocator, &standard, &error), SKL_OK);
    repack.type = SKL_TYPE_Q4_0;
    repack.rows = rows;
    repack.out = out;
    repack.size = (size_t)PACKED_ROWS * PACKED_COLUMNS / 32 * 18;
    model.gguf = &gguf;
    model.cancel.stop = count_threads;
    model.cancel.user = &most;
    binder.model = &model;
    binder.error = &error;
    binder.repacks = &repack;
    binder.repack_count = 1;
    memset(out, 0xcd, (size_t)skl_packed_bytes(&repack.layout) + 1);
    CHECK_EQ_INT(skl__repack_with_threads(&binder, threads), SKL_OK);
    CHECK(memcmp(out, wanted, (size_t)skl_packed_bytes(&repack.layout)) == 0);
    CHECK_EQ_INT(out[skl_packed_bytes(&repack.layout)], 0xcd);
#if !defined(SINKLESS_NO_THREADS)
    if (most > 0) CHECK(most >= (int)threads); /* unless the system grants fewer */
#endif
}

static void test_repacking(void)
{
    static const size_t threads[] = {1, 2, 5};
    const size_t bytes = (size_t)PACKED_ROWS * PACKED_COLUMNS / 32 * 18;
    unsigned char *rows = (unsigned char *)malloc(bytes), *wanted, *out;
    skl_layout layout;
    size_t i;

    CHECK_EQ_INT(skl_layout_of(&layout, SKL_TYPE_Q4_0, PACKED_ROWS, PACKED_COLUMNS), SKL_OK);
    CHECK(skl_packed_bytes(&layout) > 4 * SKL__REPACK_BYTES); /* several items */
    wanted = (unsigned char *)malloc((size_t)skl_packed_bytes(&layout));
    out = (unsigned char *)malloc((size_t)skl_packed_bytes(&layout) + 1);
    if (CHECK(rows && wanted && out)) {
        for (i = 0; i < bytes; i++) rows[i] = (unsigned char)(random_bits() & (i % 18 == 1 ? 0x3b : 0xff)); /* finite scales */
        CHECK_EQ_INT(skl_pack(&layout, SKL_TYPE_Q4_0, rows, wanted), SKL_OK);
        for (i = 0; i < sizeof threads / sizeof *threads; i++) check_repacking(rows, wanted, out, threads[i]);
    }
    free(rows);
    free(wanted);
    free(out);
}

/* --- matrices that take floats: every level has the bits of the scalar one, which is near the exact product --- */

enum { MOST_COLUMNS = 384, MOST_ROWS = 48, MOST_TOKENS = 5 };

static unsigned char tiles[MOST_ROWS * MOST_COLUMNS * 4 + 64];
static float activation_values[MOST_TOKENS * MOST_COLUMNS];

/* Random codes; scales and minima around 1. */
static skl__matrix random_tiles(const skl_layout *layout)
{
    unsigned char *data = tiles + (64 - ((uintptr_t)tiles & 63));
    const size_t bytes = (size_t)skl_packed_bytes(layout), tile = (size_t)skl_packed_tile_bytes(layout);
    size_t i, list, group, r;

    CHECK(bytes > 0 && bytes + 64 <= sizeof tiles);
    for (i = 0; i < bytes; i++) data[i] = (unsigned char)random_bits();
    for (i = 0; i < bytes / tile; i++)
        for (list = 0; list < (layout->minimum ? 2u : 1u); list++)
            for (group = 0; group < layout->columns / layout->group; group++)
                for (r = 0; r < 16; r++)
                    skl__scale_write(skl__scale_place(layout, data + i * tile, list, group, r), layout->wide, random_float());
    return skl__matrix_of(layout, data);
}

/* Random rows at an odd address. */
static skl__matrix random_rows(skl__storage storage, size_t rows, size_t columns)
{
    unsigned char *data = tiles + 1, *p = data;
    skl__matrix w = float_matrix(NULL, rows, columns);
    size_t i;

    w.storage = storage;
    w.stride = columns * (storage == SKL__ROWS_F32 ? 4 : 2);
    w.data = data;
    for (i = 0; i < rows * columns; i++) {
        const float value = random_float();
        if (storage == SKL__ROWS_F32) skl__le32_write(p, skl__f32_to_bits(value));
        else skl__le16_write(p, storage == SKL__ROWS_F16 ? skl__f32_to_f16(value) : skl__f32_to_bf16(value));
        p += storage == SKL__ROWS_F32 ? 4 : 2;
    }
    return w;
}

static void fill(float *y, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) y[i] = -12345.0f;
}

/* All levels and numbers of tokens; nothing is written beside the rows. */
static void check_product(const skl__matrix *w)
{
    static float wanted[MOST_TOKENS * (MOST_ROWS + 3)], got[MOST_TOKENS * (MOST_ROWS + 3)], weights[MOST_COLUMNS];
    const size_t stride = w->rows + 3, n_tiles = (w->rows + 15) / 16;
    size_t tokens, level, r, k;
    skl__acts acts;

    memset(&acts, 0, sizeof acts);
    acts.columns = w->columns;
    acts.values = activation_values;
    for (k = 0; k < MOST_TOKENS * w->columns; k++) activation_values[k] = random_float();
    for (tokens = 1; tokens <= MOST_TOKENS; tokens++) {
        fill(wanted, MOST_TOKENS * stride);
        skl__matmul_for(level_at(0), w, SKL_ACT_F32)(wanted, stride, w, 0, n_tiles, &acts, tokens);
        for (level = 1; level < SKL__KERNEL_ROWS; level++) {
            if (!level_at(level)) continue;
            fill(got, MOST_TOKENS * stride);
            skl__matmul_for(level_at(level), w, SKL_ACT_F32)(got, stride, w, 0, n_tiles / 2, &acts, tokens);
            skl__matmul_for(level_at(level), w, SKL_ACT_F32)(got, stride, w, n_tiles / 2, n_tiles, &acts, tokens);
            if (!CHECK(memcmp(got, wanted, MOST_TOKENS * stride * sizeof *got) == 0))
                printf("  level %s, storage %d, minimum %d, wide %d, group %d of %d, %d tokens\n",
                       skl_isa_name(level_at(level)->isa), (int)w->storage, w->minimum, w->wide, (int)w->group,
                       (int)w->columns, (int)tokens);
        }
    }
    for (r = 0; r < w->rows; r++) { /* the first token */
        double sum = 0.0, size = 0.0;
        skl__lane_kernels_scalar.unpack_row(weights, w, r);
        for (k = 0; k < w->columns; k++) {
            sum += (double)weights[k] * (double)activation_values[k];
            size += fabs((double)weights[k] * (double)activation_values[k]);
        }
        CHECK_NEAR((double)wanted[r], sum, 4e-6 * size); /* some dozens of roundings of partial sums below size */
    }
}

static void test_products(void)
{
    static const uint64_t shapes[][2] = {{1, 32}, {17, 128}, {48, 384}}, groups[] = {16, 32, 64, 128, 384};
    static const size_t rows_shapes[][2] = {{1, 1}, {3, 16}, {16, 31}, {17, 33}, {48, 100}};
    size_t s, g;
    int kind;

    for (s = 0; s < 3; s++)
        for (g = 0; g < 5; g++)
            for (kind = 0; kind < 8; kind++) {
                skl_layout layout;
                skl__matrix w;
                layout.bits = kind & 1 ? 8 : 4;
                layout.minimum = kind >> 1 & 1;
                layout.wide = kind >> 2 & 1;
                layout.rows = shapes[s][0];
                layout.columns = shapes[s][1];
                layout.group = groups[g];
                if (skl_packed_bytes(&layout) == 0) continue;
                w = random_tiles(&layout);
                check_product(&w);
            }
    for (s = 0; s < 5; s++)
        for (kind = SKL__ROWS_F32; kind <= SKL__ROWS_BF16; kind++) {
            const skl__matrix w = random_rows((skl__storage)kind, rows_shapes[s][0], rows_shapes[s][1]);
            check_product(&w);
        }
}

/* --- attention over several blocks of keys --- */

enum { CONTEXT = 200, MOST_DIM = 128 };

/* What the cache keeps of a key or value: itself, its half, or codes with a scale of max|x| / levels. */
static void stored(const float *x, size_t dim, skl_kv kv, double *kept)
{
    const float levels = kv == SKL_KV_I8 ? 127.0f : 7.0f;
    float most = 0.0f;
    size_t d;

    for (d = 0; d < dim; d++) most = fmaxf(most, fabsf(x[d]));
    for (d = 0; d < dim; d++)
        kept[d] = kv == SKL_KV_F32 ? (double)x[d] : kv == SKL_KV_F16 ? (double)skl__f16_to_f32(skl__f32_to_f16(x[d]))
                  : (double)rintf(x[d] / (most / levels)) * (double)(most / levels);
}

/* One query by the definition, in double. -> probability of the null class */
static double attend_double(const skl__attend_job *job, size_t query, double (*keys)[MOST_DIM],
                            double (*values)[MOST_DIM], double *mix)
{
    const int null_class = job->null_logit[query] != SKL__NO_NULL;
    double logits[CONTEXT], most = null_class ? (double)job->null_logit[query] : -HUGE_VAL, sum;
    size_t j, d;

    for (d = 0; d < job->head_dim; d++) mix[d] = 0.0;
    for (j = job->first[query]; j <= job->last[query]; j++) {
        logits[j] = 0.0;
        for (d = 0; d < job->head_dim; d++) logits[j] += (double)job->q[query][d] * keys[j][d];
        most = fmax(most, logits[j]);
    }
    sum = null_class ? exp((double)job->null_logit[query] - most) : 0.0;
    for (j = job->first[query]; j <= job->last[query]; j++) sum += exp(logits[j] - most);
    for (j = job->first[query]; j <= job->last[query]; j++) {
        double p = exp(logits[j] - most) / sum;
        if (job->clipped) p = fmin(1.0, fmax(0.0, ((double)job->zeta - (double)job->gamma) * p + (double)job->gamma));
        for (d = 0; d < job->head_dim; d++) mix[d] += p * values[j][d];
    }
    return null_class ? exp((double)job->null_logit[query] - most) / sum : 0.0;
}

static void check_attention(skl_kv kv, size_t dim, int clipped, size_t queries)
{
    static unsigned char first_cache[1 << 18], cache[1 << 18];
    static double keys[CONTEXT][MOST_DIM], values[CONTEXT][MOST_DIM];
    static const size_t first[] = {0, 10, 130, 0}, last[] = {199, 64, 199, 63};
    static const float nulls[] = {SKL__NO_NULL, 0.0f, 1.5f, -3.0f};
    const skl__kv_shape shape = skl__kv_shape_of(kv, dim, CONTEXT);
    float q[SKL__QUERIES][MOST_DIM], out[SKL__QUERIES][MOST_DIM], wanted[SKL__QUERIES][MOST_DIM], wanted_null[SKL__QUERIES];
    float key[16][MOST_DIM], value[16][MOST_DIM];
    const uint64_t seed = random_state;
    size_t level, i, j, d, count;

    CHECK(shape.head <= sizeof cache);
    for (level = 0; level < SKL__KERNEL_ROWS; level++) {
        const skl__kernels *kernels = level_at(level);
        skl__attend_job job;
        if (!kernels) continue;
        random_state = seed;
        memset(&job, 0, sizeof job);
        memset(cache, 0, (size_t)shape.head);
        job.head = skl__kv_head_at(&shape, cache);
        job.kv = kv;
        job.head_dim = dim;
        job.queries = queries;
        job.clipped = clipped;
        job.cold = (int)(queries % 2);
        job.gamma = -0.02f;
        job.zeta = 1.05f;
        for (i = 0; i < CONTEXT; i += count) { /* runs of 16, and parts of them: 5, 1 and 10 */
            const size_t parts[] = {5, 1, 10};
            count = i / 16 % 2 ? parts[i % 16 / 5 + (i % 16 > 5)] : i + 16 <= CONTEXT ? 16 : CONTEXT - i;
            for (j = 0; j < count; j++) {
                for (d = 0; d < dim; d++) key[j][d] = random_float(), value[j][d] = random_float();
                stored(key[j], dim, kv, keys[i + j]);
                stored(value[j], dim, kv, values[i + j]);
            }
            kernels->lanes->store_kv(&job.head, kv, dim, i, count, key[0], value[0], MOST_DIM);
        }
        for (i = 0; i < queries; i++) {
            for (d = 0; d < dim; d++) q[i][d] = (dim > 64 ? 1.0f : 2.0f) * random_float();
            job.q[i] = q[i];
            job.out[i] = out[i];
            job.first[i] = first[(i + dim) % 4];
            job.last[i] = last[(i + dim) % 4];
            job.null_logit[i] = nulls[i % 4];
        }
        kernels->lanes->attend(&job);
        for (i = 0; i < queries && level == 0; i++) {
            double mix[MOST_DIM];
            const double null_mass = attend_double(&job, i, keys, values, mix);
            CHECK_NEAR((double)job.null_mass[i], null_mass, 2e-6); /* logits below 10 in size, 6e-8 each */
            for (d = 0; d < dim; d++) CHECK_NEAR((double)out[i][d], mix[d], 4e-6); /* 200 terms of sum 1 */
        }
        if (level == 0) {
            memcpy(first_cache, cache, (size_t)shape.head);
            memcpy(wanted, out, sizeof out);
            memcpy(wanted_null, job.null_mass, sizeof wanted_null);
            continue;
        }
        CHECK(memcmp(cache, first_cache, (size_t)shape.head) == 0);
        for (i = 0; i < queries; i++) {
            const int good = memcmp(wanted[i], out[i], dim * sizeof(float)) == 0 &&
                             memcmp(&wanted_null[i], &job.null_mass[i], sizeof(float)) == 0;
            if (!CHECK(good))
                printf("  attention, level %s, kv %d, %d dimensions\n", skl_isa_name(kernels->isa), (int)kv, (int)dim);
        }
    }
}

static void test_attention(void)
{
    static const size_t dims[] = {7, 16, 40, 64, 96, 128};
    size_t i, queries;
    int kv;

    for (kv = SKL_KV_F32; kv <= SKL_KV_I4; kv++)
        for (i = 0; i < sizeof dims / sizeof *dims; i++)
            for (queries = 1; queries <= SKL__QUERIES; queries += queries < 5 ? 1 : 11) {
                check_attention((skl_kv)kv, dims[i], 0, queries);
                check_attention((skl_kv)kv, dims[i], 1, queries);
            }
}

int main(void)
{
    test_vectors();
    test_float_functions();
    test_double_functions();
    test_halves();
    test_all_finite();
    test_gate_product();
    test_codes();
    test_packing();
    test_repacking();
    test_products();
    test_attention();
    return test_finish();
}
