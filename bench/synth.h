/* synth.h - models of random weights, made in memory: the shapes that speed is compared on. Part of bench.c
 *
 * A shape becomes a GGUF file with packed int4 weights (a scale per 32), codes and scales drawn directly, so that 600
 * million weights take a fraction of a second. The file is walked twice by the same code: the first walk measures, the
 * second writes. Speed depends on shapes and types only; what such a model says is noise.
 */
#ifndef BENCH_SYNTH_H
#define BENCH_SYNTH_H

#define SYNTH_ALIGN 64

typedef struct synth_shape {
    const char *name;
    const char *architecture;                  /* of the plain model */
    size_t layers, width, heads, kv_heads, head_dim, ff, vocab, context;
    int qk_norm;
    double rope_base, eps;
} synth_shape;

static const synth_shape synth_shapes[] = {
    {"qwen3-0.6b", "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 40960, 1, 1e6, 1e-6},
    {"llama-3.2-1b", "llama", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 0, 5e5, 1e-5},
    {NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0}};

#define SYNTH_RANK 16                          /* of GatedNorm */
#define SYNTH_BLOCK 4                          /* layers per block of AttnRes */

/* What is drawn, and where it goes. With data = NULL sizes are only counted. */
typedef struct synth {
    const synth_shape *shape;
    int oasis;                                 /* AttnRes in blocks, Softmax1 over tokens and depth, coupled branches */
    int gated;                                 /* GatedNorm at every site, an attention gate per head */
    int affine;                                /* PreAffine at every site */
    unsigned char *memory;                     /* of malloc; owns data */
    unsigned char *data;                       /* [size], 64-byte aligned */
    uint64_t size;
    uint64_t at;                               /* next byte of the header */
    uint64_t tensor_data, tensor_at;           /* begin of the tensor data; next tensor, relative to it */
    uint64_t keys, tensors;                    /* counted so far */
    size_t list;                               /* pass over the tensors: 0 packing.names .. 4 groups, 5 tensor infos */
    uint64_t random;
} synth;

static uint64_t synth_random(synth *s)         /* xorshift64* (Marsaglia 2003, Vigna 2016) */
{
    s->random ^= s->random >> 12;
    s->random ^= s->random << 25;
    s->random ^= s->random >> 27;
    return s->random * UINT64_C(2685821657736338717);
}

/* Uniform in [-1, 1). */
static float synth_number(synth *s)
{
    return (float)((double)(synth_random(s) >> 40) / 8388608.0 - 1.0);
}

/* =====================================================================================================================
 * Header: keys
 * ================================================================================================================== */

static void synth_bytes(synth *s, const void *bytes, size_t n)
{
    if (s->data) memcpy(s->data + s->at, bytes, n);
    s->at += n;
}

static void synth_uint(synth *s, uint64_t value, int bytes)
{
    unsigned char out[8];
    int i;

    for (i = 0; i < bytes; i++) out[i] = (unsigned char)(value >> 8 * i & 255);
    synth_bytes(s, out, (size_t)bytes);
}

static void synth_text(synth *s, const char *text)
{
    synth_uint(s, strlen(text), 8);
    synth_bytes(s, text, strlen(text));
}

static void synth_key(synth *s, const char *name, skl_value_type type)
{
    synth_text(s, name);
    synth_uint(s, (uint64_t)type, 4);
    s->keys++;
}

static void synth_key_text(synth *s, const char *name, const char *value)
{
    synth_key(s, name, SKL_VALUE_STRING);
    synth_text(s, value);
}

static const char *synth_architecture(const synth *s)
{
    return s->oasis || s->gated || s->affine ? "sinkless" : s->shape->architecture;
}

/* Keys of the architecture. */
static void synth_own(synth *s, const char *name, skl_value_type type)
{
    char key[96];

    snprintf(key, sizeof key, "%s.%s", synth_architecture(s), name);
    synth_key(s, key, type);
}

static void synth_own_size(synth *s, const char *name, size_t value)
{
    synth_own(s, name, SKL_VALUE_U32);
    synth_uint(s, value, 4);
}

static void synth_own_real(synth *s, const char *name, double value)
{
    const float number = (float)value;
    uint32_t bits;

    memcpy(&bits, &number, sizeof bits);
    synth_own(s, name, SKL_VALUE_F32);
    synth_uint(s, bits, 4);
}

static void synth_own_text(synth *s, const char *name, const char *value)
{
    synth_own(s, name, SKL_VALUE_STRING);
    synth_text(s, value);
}

static void synth_configuration(synth *s)
{
    const synth_shape *shape = s->shape;

    synth_key_text(s, "general.architecture", synth_architecture(s));
    synth_key_text(s, "general.name", shape->name);
    synth_key(s, "general.alignment", SKL_VALUE_U32);
    synth_uint(s, SYNTH_ALIGN, 4);
    synth_own_size(s, "block_count", shape->layers);
    synth_own_size(s, "embedding_length", shape->width);
    synth_own_size(s, "feed_forward_length", shape->ff);
    synth_own_size(s, "context_length", shape->context);
    synth_own_size(s, "attention.head_count", shape->heads);
    synth_own_size(s, "attention.head_count_kv", shape->kv_heads);
    synth_own_size(s, "attention.key_length", shape->head_dim);
    synth_own_size(s, "attention.value_length", shape->head_dim);
    synth_own_real(s, "attention.layer_norm_rms_epsilon", shape->eps);
    synth_own_real(s, "rope.freq_base", shape->rope_base);
    if (!s->oasis) return;
    synth_own_text(s, "attention.softmax", "softmax1");
    synth_own_text(s, "residual", "attnres");
    synth_own_size(s, "attn_res.block_size", SYNTH_BLOCK);
    synth_own_text(s, "depth.softmax", "softmax1");
    synth_own_text(s, "depth.coupling", "branches");
}

/* =====================================================================================================================
 * Tensors
 * ================================================================================================================== */

static void synth_info(synth *s, const char *name, const uint64_t *shape, uint32_t dims, skl_type type, uint64_t bytes)
{
    uint32_t i;

    synth_text(s, name);
    synth_uint(s, dims, 4);
    for (i = 0; i < dims; i++) synth_uint(s, shape[i], 8);
    synth_uint(s, (uint64_t)type, 4);
    synth_uint(s, s->tensor_at, 8);
    s->tensors++;
    s->tensor_at += (bytes + SYNTH_ALIGN - 1) / SYNTH_ALIGN * SYNTH_ALIGN;
}

/* Where the tensor that was just listed goes; NULL while sizes are counted. */
static unsigned char *synth_place(const synth *s, uint64_t bytes)
{
    const uint64_t padded = (bytes + SYNTH_ALIGN - 1) / SYNTH_ALIGN * SYNTH_ALIGN;

    return s->data ? s->data + s->tensor_data + s->tensor_at - padded : NULL;
}

/* Scales [n] in f16, around one that makes outputs as large as inputs. */
static void synth_scales(synth *s, unsigned char *out, size_t n, uint64_t columns)
{
    float choice[64];
    uint16_t half[64];
    size_t i;

    for (i = 0; i < 64; i++) choice[i] = (1.0f + 0.3f * synth_number(s)) * 0.217f / sqrtf((float)columns); /* 1 / 4.6 */
    skl_quantize(SKL_TYPE_F16, choice, 64, half);
    for (i = 0; i < n; i++) memcpy(out + 2 * i, &half[synth_random(s) >> 58], 2);
}

static void synth_fill_packed(synth *s, unsigned char *out, const skl_layout *layout)
{
    const uint64_t tile = skl_packed_tile_bytes(layout), codes = layout->columns * 8, size = skl_packed_bytes(layout);
    uint64_t at, i;

    memset(out, 0, (size_t)size);
    for (at = 0; at < size; at += tile) {
        for (i = 0; i < codes; i += 8) {
            const uint64_t word = synth_random(s);

            memcpy(out + at + i, &word, 8);
        }
        synth_scales(s, out + at + codes, (size_t)(layout->columns / layout->group * 16), layout->columns);
    }
}

/* A matrix of packed int4. Rows beyond the matrix must be zero: all shapes have multiples of 16. */
static void synth_matrix(synth *s, const char *name, size_t columns, size_t rows)
{
    static const char *const lists[] = {NULL, "formats", "columns", "rows", "groups"};
    skl_layout layout;
    uint64_t bytes;

    layout.bits = 4;
    layout.minimum = 0;
    layout.wide = 0;
    layout.rows = rows;
    layout.columns = columns;
    layout.group = 32;
    bytes = skl_packed_bytes(&layout);
    if (s->list == 0) {
        synth_text(s, name);
        s->tensors++;
    } else if (s->list < sizeof lists / sizeof *lists) {
        const uint64_t value[] = {0, 4, columns, rows, layout.group};

        synth_uint(s, value[s->list], 4);
        s->tensors++;
    } else {
        unsigned char *out;

        synth_info(s, name, &bytes, 1, SKL_TYPE_I8, bytes);
        out = synth_place(s, bytes);
        if (out) synth_fill_packed(s, out, &layout);
    }
}

/* Floats: center plus up to spread.        shape  [dims] */
static void synth_floats(synth *s, const char *name, const uint64_t *shape, uint32_t dims, skl_type type, float center,
                         float spread)
{
    const uint64_t n = dims == 2 ? shape[0] * shape[1] : shape[0], size = type == SKL_TYPE_F16 ? 2 : 4;
    unsigned char *out;
    uint64_t i;

    if (s->list < 5) return;
    synth_info(s, name, shape, dims, type, n * size);
    out = synth_place(s, n * size);
    for (i = 0; out && i < n; i++) {
        const float value = center + spread * synth_number(s);

        skl_quantize((int)type, &value, 1, out + i * size);
    }
}

static void synth_vector(synth *s, const char *site, const char *suffix, size_t n, float center, float spread)
{
    const uint64_t shape = n;
    char name[128];

    snprintf(name, sizeof name, "%s%s", site, suffix);
    synth_floats(s, name, &shape, 1, SKL_TYPE_F32, center, spread);
}

static void synth_norm(synth *s, const char *site)
{
    const uint64_t down[2] = {s->shape->width, SYNTH_RANK}, up[2] = {SYNTH_RANK, s->shape->width};
    char name[96];

    synth_vector(s, site, ".weight", s->shape->width, 1.0f, 0.1f);
    if (s->affine) synth_vector(s, site, "_pre.weight", s->shape->width, 1.0f, 0.1f);
    if (!s->gated) return;
    snprintf(name, sizeof name, "%s_gate_a.weight", site);
    synth_floats(s, name, down, 2, SKL_TYPE_F16, 0.0f, 0.03f);
    snprintf(name, sizeof name, "%s_gate_b.weight", site);
    synth_floats(s, name, up, 2, SKL_TYPE_F16, 0.0f, 0.2f);
}

static void synth_read(synth *s, const char *site)
{
    if (!s->oasis) return;
    synth_vector(s, site, "_score.weight", s->shape->width, 0.0f, 0.05f);
    synth_vector(s, site, "_theta", 1, 0.5f, 0.0f);
}

static void synth_layer(synth *s, size_t layer)
{
    const synth_shape *shape = s->shape;
    const size_t q = shape->heads * shape->head_dim, kv = shape->kv_heads * shape->head_dim;
    const struct {
        const char *name;
        size_t columns, rows;
    } matrices[] = {{"attn_q", shape->width, q},          {"attn_k", shape->width, kv},
                    {"attn_v", shape->width, kv},         {"attn_output", q, shape->width},
                    {"ffn_gate", shape->width, shape->ff}, {"ffn_up", shape->width, shape->ff},
                    {"ffn_down", shape->ff, shape->width}, {"attn_gate", shape->width, s->gated ? shape->heads : 0}};
    char name[96];
    size_t i;

    for (i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        snprintf(name, sizeof name, "blk.%lu.%s.weight", (unsigned long)layer, matrices[i].name);
        if (matrices[i].rows) synth_matrix(s, name, matrices[i].columns, matrices[i].rows);
    }
    snprintf(name, sizeof name, "blk.%lu.attn_norm", (unsigned long)layer);
    synth_norm(s, name);
    snprintf(name, sizeof name, "blk.%lu.ffn_norm", (unsigned long)layer);
    synth_norm(s, name);
    snprintf(name, sizeof name, "blk.%lu.attn_", (unsigned long)layer);
    if (shape->qk_norm) synth_vector(s, name, "q_norm.weight", shape->head_dim, 1.0f, 0.1f);
    if (shape->qk_norm) synth_vector(s, name, "k_norm.weight", shape->head_dim, 1.0f, 0.1f);
    snprintf(name, sizeof name, "blk.%lu.attn_res", (unsigned long)layer);
    synth_read(s, name);
    snprintf(name, sizeof name, "blk.%lu.ffn_res", (unsigned long)layer);
    synth_read(s, name);
}

static void synth_tensors(synth *s)
{
    size_t layer;

    synth_matrix(s, "token_embd.weight", s->shape->width, s->shape->vocab);
    for (layer = 0; layer < s->shape->layers; layer++) synth_layer(s, layer);
    synth_norm(s, "output_norm");
    synth_read(s, "output_res");
}

/* =====================================================================================================================
 * The file
 * ================================================================================================================== */

/* packing.*: the names of the packed tensors, of which there are `matrices`, then what each holds. */
static void synth_packing(synth *s, uint64_t matrices)
{
    static const char *const names[] = {"packing.names", "packing.formats", "packing.columns", "packing.rows",
                                        "packing.groups"};

    synth_key(s, "packing.version", SKL_VALUE_U32);
    synth_uint(s, 1, 4);
    for (s->list = 0; s->list < 5; s->list++) {
        synth_key(s, names[s->list], SKL_VALUE_ARRAY);
        synth_uint(s, s->list ? SKL_VALUE_U32 : SKL_VALUE_STRING, 4);
        synth_uint(s, matrices, 8);
        s->tensors = 0;
        synth_tensors(s);
    }
}

static void synth_walk(synth *s)
{
    const uint64_t keys = s->keys, tensors = s->tensors;
    synth count = *s;

    count.data = NULL;
    count.list = 0;
    count.tensors = 0;
    synth_tensors(&count);                     /* names only: how many are packed */
    s->random = UINT64_C(0x9E3779B97F4A7C15);
    s->at = s->tensor_at = s->keys = 0;
    synth_bytes(s, "GGUF", 4);
    synth_uint(s, 3, 4);
    synth_uint(s, tensors, 8);
    synth_uint(s, keys, 8);
    synth_configuration(s);
    synth_packing(s, count.tensors);
    s->tensors = 0;
    s->list = 5;
    synth_tensors(s);
    s->tensor_data = (s->at + SYNTH_ALIGN - 1) / SYNTH_ALIGN * SYNTH_ALIGN;
    s->size = s->tensor_data + s->tensor_at;
}

/* NAME or NAME+oasis, NAME+gated, NAME+all. -> 0 if there is no such shape */
static int synth_choose(synth *s, const char *name)
{
    const size_t length = strcspn(name, "+");
    const char *option = name[length] ? name + length + 1 : "";
    const synth_shape *shape;

    memset(s, 0, sizeof *s);
    for (shape = synth_shapes; shape->name; shape++)
        if (strlen(shape->name) == length && !strncmp(shape->name, name, length)) s->shape = shape;
    s->affine = !strcmp(option, "all");
    s->oasis = s->affine || !strcmp(option, "oasis");
    s->gated = s->affine || !strcmp(option, "gated");
    return s->shape && (!name[length] || s->oasis || s->gated);
}

static void synth_free(synth *s)
{
    free(s->memory);
    s->memory = s->data = NULL;
}

/* Makes the file of the shape that was chosen. -> CLI_GO_ON or an exit code */
static int synth_make(synth *s)
{
    synth_walk(s);
    s->memory = (unsigned char *)malloc((size_t)s->size + SYNTH_ALIGN);
    if (!s->memory) return cli_fail("%s: no memory for %lu MiB", s->shape->name, (unsigned long)(s->size >> 20));
    s->data = s->memory + (SYNTH_ALIGN - ((uintptr_t)s->memory & (SYNTH_ALIGN - 1)));
    memset(s->data, 0, (size_t)s->tensor_data);
    synth_walk(s);
    return CLI_GO_ON;
}

#endif /* BENCH_SYNTH_H */
