/* quantize.c - converts the weights of a GGUF file, tensor by tensor, and says what that costs. */
#include "cli.h"

#define SINKLESS_IMPLEMENTATION
#include "../sinkless.h"

#include <math.h>
#include <signal.h>
#if !defined(_WIN32)
#include <sys/stat.h>
#endif

static const char help[] =
    "usage: quantize IN OUT [options]\n"
    "\n"
    "  IN                   GGUF file\n"
    "  OUT                  GGUF file, written beside and renamed at the end\n"
    "\n"
    "  --type TYPE          of the matrices (default q4, with --plain Q4_0)\n"
    "  --embed TYPE         of token_embd.weight and output.weight (default: as the others)\n"
    "  --keep PATTERN=TYPE  of the tensors whose names match: * any characters, ? any one. May be given often; the\n"
    "                       last match counts, also before --embed\n"
    "  --packed             GGUF types are packed: their codes are put into the order that kernels read, so that the\n"
    "                       file is used where it lies; no value changes, but Q4_K takes 6 bits per weight then, MXFP4 9,\n"
    "                       Q5_K and Q6_K 10\n"
    "  --plain              GGUF types are stored as every other program expects them (default)\n"
    "\n"
    "Types, by bits per weight:\n"
    "  q4g128 q4g64 q4 q8   4.125, 4.25, 4.5, 8.5: symmetric, an f16 scale per 128, 64, 32, 32 columns, always\n"
    "                       packed. A group that does not divide the columns is halved until it does\n"
    "  MXFP4 Q4_0 Q4_1 Q8_0 4.25, 4.5, 5, 8.5: block formats of GGUF, rounded as its reference implementation does\n"
    "  Q4_K Q5_K Q6_K       only of tensors that have this type already\n"
    "  f16 bf16 f32         16, 16, 32\n"
    "  same                 the type that the tensor has; with --packed, integer types are packed without loss\n"
    "\n"
    "Integer types apply to the matrices that meet quantised activations: attn_q, attn_k, attn_v, attn_gate,\n"
    "attn_output, ffn_gate, ffn_up, ffn_down, token_embd and output. Those whose columns are no multiple of 32 become\n"
    "f16 instead. All else stays as it is, unless --keep gives it a float type. From one integer type to another the\n"
    "way leads through floats.\n"
    "\n"
    "Prints, per tensor, its bytes, bits per weight and error: the root of sum((new - old)^2) / sum(old^2).\n"
    "\n"
    "Exit code: 0 done, 1 failed, 2 wrong usage.\n";

static struct {
    const char *operands[2]; /* IN, OUT */
    const char *type, *embed;
    cli_list keep;
    int packed, plain;
} arguments;

static const cli_option options[] = {
    {"--type", CLI_TEXT, &arguments.type, 0, 0, NULL},
    {"--embed", CLI_TEXT, &arguments.embed, 0, 0, NULL},
    {"--keep", CLI_LIST, &arguments.keep, 0, 0, NULL},
    {"--packed", CLI_FLAG, &arguments.packed, 0, 0, NULL},
    {"--plain", CLI_FLAG, &arguments.plain, 0, 0, NULL},
    {NULL, CLI_FLAG, NULL, 0, 0, NULL}};

/* =====================================================================================================================
 * Types
 * ================================================================================================================== */

#define SAME (-1)

/* A word of --type: a GGUF type, or bits and group of a packed layout. */
typedef struct format {
    const char *name;
    int type;      /* skl_type; SKL_TYPE_I8 for packed layouts; SAME */
    int bits;      /* packed layouts only, as the group */
    uint64_t group;
    int file_type; /* general.file_type of a file that is mostly of this type; -1 = it has no number */
} format;

static const format formats[] = {
    {"q4", SKL_TYPE_I8, 4, 32, -1},     {"q4g64", SKL_TYPE_I8, 4, 64, -1}, {"q4g128", SKL_TYPE_I8, 4, 128, -1},
    {"q8", SKL_TYPE_I8, 8, 32, -1},     {"MXFP4", SKL_TYPE_MXFP4, 0, 0, 38}, {"Q4_0", SKL_TYPE_Q4_0, 0, 0, 2},
    {"Q4_1", SKL_TYPE_Q4_1, 0, 0, 3},   {"Q8_0", SKL_TYPE_Q8_0, 0, 0, 7},  {"Q4_K", SKL_TYPE_Q4_K, 0, 0, 15},
    {"Q5_K", SKL_TYPE_Q5_K, 0, 0, 17},  {"Q6_K", SKL_TYPE_Q6_K, 0, 0, 18}, {"f16", SKL_TYPE_F16, 0, 0, 1},
    {"bf16", SKL_TYPE_BF16, 0, 0, 32},  {"f32", SKL_TYPE_F32, 0, 0, 0},    {"same", SAME, 0, 0, -1}};

static int is_float(int type)
{
    return type == SKL_TYPE_F32 || type == SKL_TYPE_F16 || type == SKL_TYPE_BF16;
}

static int is_k_format(int type)
{
    return type == SKL_TYPE_Q4_K || type == SKL_TYPE_Q5_K || type == SKL_TYPE_Q6_K;
}

/* Upper and lower case make no difference: people write both. */
static int same_word(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((*a | 32) != (*b | 32)) return 0;
    return *a == *b;
}

/* The type that option names -> CLI_GO_ON, or an exit code. */
static int find_format(const char *option, const char *name, const format **found)
{
    size_t i;

    for (i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (!same_word(formats[i].name, name)) continue;
        if (arguments.plain && formats[i].type == SKL_TYPE_I8)
            return cli_usage("%s: %s is a packed type and cannot go with --plain", option, name);
        *found = &formats[i];
        return CLI_GO_ON;
    }
    return cli_usage("%s: there is no type %.80s", option, name);
}

/* =====================================================================================================================
 * Plan: what becomes of each tensor
 * ================================================================================================================== */

typedef struct plan {
    skl_tensor source;
    skl_layout source_layout; /* how the source is packed; bits = 0: it is not */
    uint64_t columns, rows;   /* as a matrix; a vector has one row */
    int type;                 /* skl_type in OUT; SKL_TYPE_I8: packed */
    skl_layout layout;        /* how it is packed; bits = 0: it is not */
    int blocks;               /* packed: the GGUF type whose blocks are packed; SKL_TYPE_I8: none, but values */
    const char *name;         /* of the type, as the options call it */
    uint64_t offset, size;    /* in the data section of OUT */
    double difference, norm;  /* sums of squares: of new - old, and of old */
} plan;

typedef struct rule {
    char pattern[128];
    const format *to;
    int used;
} rule;

typedef struct work {
    skl_gguf *gguf;
    plan *plans; /* [count] */
    size_t count;
    const format *type, *embed;
    rule rules[CLI_LIST_ROOM]; /* [arguments.keep.count] */
    uint64_t alignment, data_size;
    int any_packed, any_codes;
    char *partial; /* path of the file that becomes OUT */
    FILE *file;
    uint64_t written;
    int failure; /* errno of the first write that failed */
} work;

/* * stands for any characters, ? for one. */
static int matches(const char *pattern, const char *name)
{
    const char *star = NULL, *resume = NULL;

    while (*name) { /* on a mismatch only the last star takes one more: no pattern is slow */
        if (*pattern == '*') {
            star = ++pattern;
            resume = name;
        } else if (*pattern && (*pattern == '?' || *pattern == *name)) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star;
            name = ++resume;
        } else {
            return 0;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == '\0';
}

static int is_embedding(const char *name)
{
    return !strcmp(name, "token_embd.weight") || !strcmp(name, "output.weight");
}

/* Whether it is one of the matrices that meet quantised activations. */
static int is_matrix(const char *name)
{
    static const char *const matrices[] = {"attn_q",   "attn_k", "attn_v",   "attn_gate", "attn_output",
                                           "ffn_gate", "ffn_up", "ffn_down", NULL};
    size_t i;

    if (is_embedding(name)) return 1;
    if (strncmp(name, "blk.", 4)) return 0;
    name += 4 + strspn(name + 4, "0123456789");
    if (*name++ != '.') return 0;
    for (i = 0; matrices[i]; i++) {
        const size_t length = strlen(matrices[i]);

        if (!strncmp(name, matrices[i], length) && !strcmp(name + length, ".weight")) return 1;
    }
    return 0;
}

/* The type that the options ask for. */
static const format *wanted_format(work *w, const char *name)
{
    static const format same = {"same", SAME, 0, 0, -1};
    const format *to = is_embedding(name) ? w->embed : is_matrix(name) ? w->type : &same;
    size_t i;

    for (i = 0; i < arguments.keep.count; i++) {
        if (!matches(w->rules[i].pattern, name)) continue;
        if (!is_matrix(name) && !is_float(w->rules[i].to->type)) continue;
        w->rules[i].used = 1;
        to = w->rules[i].to;
    }
    return to;
}

static int same_layout(const skl_layout *a, const skl_layout *b)
{
    return a->bits == b->bits && !a->minimum == !b->minimum && !a->wide == !b->wide && a->group == b->group;
}

static int has_blocks(const plan *p)
{
    return p->columns % 32 == 0;
}

static int plan_layout(plan *p, const format *to)
{
    p->blocks = p->type;
    if (to->bits) {
        p->layout.bits = to->bits;
        p->layout.rows = p->rows;
        p->layout.columns = p->columns;
        p->layout.group = to->group;
        while (p->columns % p->layout.group) p->layout.group /= 2;
    } else if (skl_layout_of(&p->layout, p->type, p->rows, p->columns)) {
        return cli_fail("%s: %s: it cannot be packed as %s", arguments.operands[0], p->source.name, p->name);
    }
    if (!skl_packed_bytes(&p->layout))
        return cli_fail("%s: %s: it is too large to be packed", arguments.operands[0], p->source.name);
    p->type = SKL_TYPE_I8;
    return CLI_GO_ON;
}

static int plan_tensor(work *w, plan *p)
{
    const format *to = wanted_format(w, p->source.name);
    const int packed_source = p->source_layout.bits != 0;

    p->columns = packed_source ? p->source_layout.columns : p->source.shape[0];
    p->rows = packed_source ? p->source_layout.rows
                            : p->source.shape[1] * p->source.shape[2] * p->source.shape[3];
    p->type = to->type == SAME ? p->source.type : to->type;
    p->name = to->type == SAME ? skl_type_name(p->type) : to->name;
    if (to->type == SAME && packed_source) {
        if (arguments.plain)
            return cli_usage("%s is packed already: for --plain, --type has to name a GGUF type", p->source.name);
        p->layout = p->source_layout;
        p->blocks = SKL_TYPE_I8;
        p->name = p->layout.bits == 4 ? "4-bit" : "8-bit";
        return CLI_GO_ON;
    }
    if (to->type != SAME && !is_float(p->type) && !has_blocks(p)) {
        p->type = SKL_TYPE_F16;
        p->name = "f16";
    }
    if (is_k_format(p->type) && p->type != p->source.type)
        return cli_fail("%s: %s: it is of type %s; %s can only be kept, not made", arguments.operands[0],
                        p->source.name, skl_type_name(p->source.type), p->name);
    if (p->type == SKL_TYPE_I8 || (arguments.packed && !is_float(p->type) && is_matrix(p->source.name)))
        return plan_layout(p, to);
    return CLI_GO_ON;
}

static uint64_t row_bytes(int type, uint64_t columns)
{
    return columns / skl_type_block(type) * skl_type_bytes(type);
}

static uint64_t aligned(const work *w, uint64_t offset)
{
    return (offset + w->alignment - 1) / w->alignment * w->alignment;
}

/* The packing lists of IN. They are sound: the library has checked IN before. */
static void read_packing(work *w)
{
    static const char *const keys[] = {"packing.formats", "packing.columns", "packing.rows", "packing.groups"};
    skl_value names, lists[4];
    const char *text;
    size_t length, i;
    uint64_t place;

    if (skl_gguf_find(w->gguf, "packing.names", &names)) return;
    for (i = 0; i < 4; i++)
        if (skl_gguf_find(w->gguf, keys[i], &lists[i])) return;
    for (place = 0; skl_value_next_string(&names, &text, &length) == SKL_OK; place++) {
        int64_t numbers[4];

        for (i = 0; i < 4; i++)
            if (skl_value_int(&lists[i], place, &numbers[i])) return;
        for (i = 0; i < w->count; i++) {
            skl_layout *layout = &w->plans[i].source_layout;

            if (strlen(w->plans[i].source.name) != length || memcmp(w->plans[i].source.name, text, length)) continue;
            layout->bits = (int)(numbers[0] & 255);
            layout->minimum = (int)(numbers[0] >> 8 & 1);
            layout->wide = (int)(numbers[0] >> 9 & 1);
            layout->columns = (uint64_t)numbers[1];
            layout->rows = (uint64_t)numbers[2];
            layout->group = (uint64_t)numbers[3];
        }
    }
}

static int make_plans(work *w)
{
    size_t i;
    int code;

    w->count = skl_gguf_tensor_count(w->gguf);
    w->plans = (plan *)calloc(w->count + 1, sizeof *w->plans);
    if (!w->plans) return cli_fail("%s: out of memory", arguments.operands[0]);
    for (i = 0; i < w->count; i++) skl_gguf_tensor(w->gguf, i, &w->plans[i].source);
    read_packing(w);
    for (i = 0; i < w->count; i++) {
        plan *p = &w->plans[i];

        if ((code = plan_tensor(w, p)) != CLI_GO_ON) return code;
        w->any_packed |= p->layout.bits != 0;
        w->any_codes |= !is_float(p->type);
    }
    for (i = 0; i < arguments.keep.count; i++)
        if (!w->rules[i].used)
            return cli_fail("--keep %s: there is no tensor that it can apply to", arguments.keep.items[i]);

    w->alignment = w->any_packed ? 64 : 32;
    for (i = 0; i < w->count; i++) {
        plan *p = &w->plans[i];

        p->offset = aligned(w, w->data_size);
        p->size = p->layout.bits ? skl_packed_bytes(&p->layout) : p->rows * row_bytes(p->type, p->columns);
        w->data_size = p->offset + p->size;
    }
    return CLI_GO_ON;
}

/* =====================================================================================================================
 * The header of OUT
 * ================================================================================================================== */

/* A failed write shows in ferror(w->file), which is asked once per tensor. */
static void put(work *w, const void *bytes, size_t size)
{
    size_t done;

    errno = 0;
    done = fwrite(bytes, 1, size, w->file);
    if (done < size && !w->failure) w->failure = errno ? errno : EIO;
    w->written += done;
}

static void put_number(work *w, uint64_t number, size_t size)
{
    unsigned char bytes[8];
    size_t i;

    for (i = 0; i < size; i++) bytes[i] = (unsigned char)(number >> (8 * i) & 255);
    put(w, bytes, size);
}

static void put_text(work *w, const char *text, size_t length)
{
    put_number(w, length, 8);
    put(w, text, length);
}

static void put_padding(work *w, uint64_t until)
{
    static const char zeros[64];

    while (w->written < until && !ferror(w->file))
        put(w, zeros, until - w->written < sizeof zeros ? (size_t)(until - w->written) : sizeof zeros);
}

static void put_key_u32(work *w, const char *key, uint32_t value)
{
    put_text(w, key, strlen(key));
    put_number(w, SKL_VALUE_U32, 4);
    put_number(w, value, 4);
}

static size_t packed_count(const work *w)
{
    size_t i, count = 0;

    for (i = 0; i < w->count; i++) count += w->plans[i].layout.bits != 0;
    return count;
}

static void put_list_head(work *w, const char *key, int type)
{
    put_text(w, key, strlen(key));
    put_number(w, SKL_VALUE_ARRAY, 4);
    put_number(w, (uint64_t)type, 4);
    put_number(w, packed_count(w), 8);
}

static uint64_t packing_number(const skl_layout *layout, int list)
{
    switch (list) {
    case 0: return (uint64_t)layout->bits | (layout->minimum ? 1u << 8 : 0u) | (layout->wide ? 1u << 9 : 0u);
    case 1: return layout->columns;
    case 2: return layout->rows;
    default: return layout->group;
    }
}

/* What the I8 tensors hold, one entry each in every list. */
static void put_packing(work *w)
{
    static const char *const keys[] = {"packing.formats", "packing.columns", "packing.rows", "packing.groups"};
    size_t i;
    int list;

    put_key_u32(w, "packing.version", 1);
    put_list_head(w, "packing.names", SKL_VALUE_STRING);
    for (i = 0; i < w->count; i++)
        if (w->plans[i].layout.bits) put_text(w, w->plans[i].source.name, strlen(w->plans[i].source.name));
    for (list = 0; list < 4; list++) {
        put_list_head(w, keys[list], list == 0 ? SKL_VALUE_U32 : SKL_VALUE_U64);
        for (i = 0; i < w->count; i++)
            if (w->plans[i].layout.bits)
                put_number(w, packing_number(&w->plans[i].layout, list), list == 0 ? 4 : 8);
    }
}

/* Keys that describe how the tensors are stored, which is what changes. */
static int is_replaced(const work *w, const char *name, size_t length)
{
    static const char *const keys[] = {"general.alignment", "general.quantization_version", "general.file_type"};
    size_t i;

    if (length > 8 && !memcmp(name, "packing.", 8)) return 1;
    for (i = 0; i < (w->type->type == SAME && !w->any_packed ? 2u : 3u); i++)
        if (strlen(keys[i]) == length && !memcmp(name, keys[i], length)) return 1;
    return 0;
}

static size_t put_source_keys(work *w, int count_only)
{
    size_t i, count = 0;

    for (i = 0; i < skl_gguf_key_count(w->gguf); i++) {
        const char *name;
        size_t length;
        skl_value value;

        if (skl_gguf_key(w->gguf, i, &name, &length, &value) || is_replaced(w, name, length)) continue;
        count++;
        if (count_only) continue;
        put_text(w, name, length);
        put_number(w, (uint64_t)value.type, 4);
        if (value.type == SKL_VALUE_ARRAY) {
            put_number(w, (uint64_t)value.element_type, 4);
            put_number(w, value.count, 8);
        }
        put(w, value.data, value.size);
    }
    return count;
}

static void put_tensor_record(work *w, const plan *p)
{
    const int changed = p->layout.bits || p->source_layout.bits, dims = changed ? 2 : p->source.dims;
    uint64_t shape[4];
    int i;

    memcpy(shape, p->source.shape, sizeof shape);
    if (changed) {
        shape[0] = p->layout.bits ? skl_packed_tile_bytes(&p->layout) : p->columns;
        shape[1] = p->layout.bits ? p->size / shape[0] : p->rows;
    }
    put_text(w, p->source.name, strlen(p->source.name));
    put_number(w, (uint64_t)dims, 4);
    for (i = 0; i < dims; i++) put_number(w, shape[i], 8);
    put_number(w, (uint64_t)p->type, 4);
    put_number(w, p->offset, 8);
}

static void put_header(work *w)
{
    const int file_type = w->any_packed ? -1 : w->type->file_type;
    const size_t own = (w->any_packed ? 7u : 0u) + (w->any_codes ? 1u : 0u) + (file_type >= 0 ? 1u : 0u);
    size_t i;

    put(w, "GGUF", 4);
    put_number(w, 3, 4);
    put_number(w, w->count, 8);
    put_number(w, put_source_keys(w, 1) + own, 8);
    put_source_keys(w, 0);
    if (w->any_codes) put_key_u32(w, "general.quantization_version", 2);
    if (file_type >= 0) put_key_u32(w, "general.file_type", (uint32_t)file_type);
    if (w->any_packed) {
        put_key_u32(w, "general.alignment", (uint32_t)w->alignment);
        put_packing(w);
    }
    for (i = 0; i < w->count; i++) put_tensor_record(w, &w->plans[i]);
    put_padding(w, aligned(w, w->written));
}

/* =====================================================================================================================
 * The data of OUT, some tiles of rows at a time
 * ================================================================================================================== */

#define TILE ((uint64_t)16)              /* rows that are packed together */
#define CHUNK_VALUES ((uint64_t)1 << 20) /* at most, unless a tile has more */

typedef struct chunk {
    uint64_t first, rows;
    float *before, *after; /* [rows][columns] */
    unsigned char *blocks; /* what is packed, where it has to be made first */
    unsigned char *bytes;  /* [size] what goes to the file */
    size_t size;
} chunk;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static int chunk_open(chunk *c, const plan *p)
{
    const uint64_t tiles = CHUNK_VALUES / p->columns / TILE;
    const uint64_t most = tiles ? tiles * TILE : TILE, rows = p->rows < most ? p->rows : most;
    const size_t values = (size_t)(rows * p->columns);
    skl_layout layout = p->layout;

    memset(c, 0, sizeof *c);
    c->rows = layout.rows = rows;
    c->before = (float *)malloc(values * sizeof *c->before);
    c->after = (float *)malloc(values * sizeof *c->after);
    c->blocks = (unsigned char *)malloc(values * sizeof(float));
    c->bytes = (unsigned char *)malloc(layout.bits ? (size_t)skl_packed_bytes(&layout) : values * sizeof(float));
    return c->before && c->after && c->blocks && c->bytes;
}

static void chunk_close(chunk *c)
{
    free(c->before);
    free(c->after);
    free(c->blocks);
    free(c->bytes);
}

static const unsigned char *source_rows(const plan *p, uint64_t first)
{
    return p->source.data + (size_t)(first * row_bytes(p->source.type, p->columns));
}

static void unpack_rows(const skl_layout *layout, const unsigned char *packed, uint64_t first, uint64_t rows,
                        float *values)
{
    uint64_t i;

    for (i = 0; i < rows; i++) skl_unpack_row(layout, packed, first + i, values + (size_t)(i * layout->columns));
}

static void read_chunk(const plan *p, chunk *c)
{
    if (p->source_layout.bits) unpack_rows(&p->source_layout, p->source.data, c->first, c->rows, c->before);
    else skl_dequantize(p->source.type, source_rows(p, c->first), (size_t)(c->rows * p->columns), c->before);
}

/* Packs values; if the source has just these codes, it is their order alone that changes. */
static skl_status pack_values(const plan *p, chunk *c, const skl_layout *layout)
{
    skl_layout exact;

    if (!p->source_layout.bits && skl_layout_of(&exact, p->source.type, c->rows, p->columns) == SKL_OK &&
        same_layout(&exact, layout))
        return skl_pack(layout, p->source.type, source_rows(p, c->first), c->bytes);
    return skl_pack_values(layout, c->before, c->bytes);
}

static skl_status pack_blocks(const plan *p, chunk *c, const skl_layout *layout)
{
    skl_status status;

    if (p->blocks == p->source.type) return skl_pack(layout, p->blocks, source_rows(p, c->first), c->bytes);
    status = skl_quantize(p->blocks, c->before, (size_t)(c->rows * p->columns), c->blocks);
    return status ? status : skl_pack(layout, p->blocks, c->blocks, c->bytes);
}

/* Makes the bytes of a chunk from its values, and reads them back. */
static skl_status convert_chunk(const plan *p, chunk *c)
{
    skl_layout layout = p->layout;
    skl_status status = SKL_OK;

    if (!layout.bits) {
        c->size = (size_t)(c->rows * row_bytes(p->type, p->columns));
        status = skl_quantize(p->type, c->before, (size_t)(c->rows * p->columns), c->bytes);
        return status ? status : skl_dequantize(p->type, c->bytes, (size_t)(c->rows * p->columns), c->after);
    }
    layout.rows = c->rows;
    c->size = (size_t)skl_packed_bytes(&layout);
    if (p->source_layout.bits && same_layout(&p->source_layout, &layout))
        memcpy(c->bytes, p->source.data + (size_t)(c->first / TILE * skl_packed_tile_bytes(&layout)), c->size);
    else status = p->blocks == SKL_TYPE_I8 ? pack_values(p, c, &layout) : pack_blocks(p, c, &layout);
    if (status == SKL_OK) unpack_rows(&layout, c->bytes, 0, c->rows, c->after);
    return status;
}

static void measure_chunk(plan *p, const chunk *c)
{
    const size_t n = (size_t)(c->rows * p->columns);
    size_t i;

    for (i = 0; i < n; i++) {
        const double before = (double)c->before[i], difference = (double)c->after[i] - before;

        p->difference += difference * difference;
        p->norm += before * before;
    }
}

static int write_converted(work *w, plan *p)
{
    const uint64_t begin = w->written;
    chunk c;
    uint64_t most;
    int code = CLI_GO_ON;

    if (!chunk_open(&c, p)) code = cli_fail("%s: %s: out of memory", arguments.operands[0], p->source.name);
    for (most = c.rows; code == CLI_GO_ON && c.first < p->rows && !ferror(w->file) && !interrupted; c.first += c.rows) {
        c.rows = p->rows - c.first < most ? p->rows - c.first : most;
        read_chunk(p, &c);
        if (convert_chunk(p, &c))
            code = cli_fail("%s: %s: a value is not finite, or too large for %s", arguments.operands[0],
                            p->source.name, p->name);
        measure_chunk(p, &c);
        put(w, c.bytes, c.size);
        cli_progress(p->offset + (w->written - begin), w->data_size + 1);
    }
    chunk_close(&c);
    return code;
}

static int write_data(work *w)
{
    const uint64_t begin = w->written;
    size_t i;
    int code = CLI_GO_ON;

    for (i = 0; i < w->count && code == CLI_GO_ON; i++) {
        plan *p = &w->plans[i];

        put_padding(w, begin + p->offset);
        if (p->type == p->source.type && p->type != SKL_TYPE_I8) put(w, p->source.data, (size_t)p->size);
        else code = write_converted(w, p);
        if (code == CLI_GO_ON && interrupted) code = cli_fail("%s: interrupted", arguments.operands[1]);
        if (code == CLI_GO_ON && ferror(w->file))
            code = cli_fail("%s: %s", w->partial, strerror(w->failure));
    }
    cli_progress(1, 1);
    return code;
}

/* =====================================================================================================================
 * Files
 * ================================================================================================================== */

typedef enum path_kind { PATH_NOTHING, PATH_FILE, PATH_FOLDER, PATH_OTHER } path_kind;

#if defined(_WIN32)
#define PATH_ROOM 1024

static int wide_path(const char *path, wchar_t *wide)
{
    wchar_t relative[PATH_ROOM];

    return MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, relative, PATH_ROOM) > 0 &&
           _wfullpath(wide, relative, PATH_ROOM) != NULL;
}

static path_kind kind_of(const char *path)
{
    wchar_t wide[PATH_ROOM];
    const DWORD attributes = wide_path(path, wide) ? GetFileAttributesW(wide) : INVALID_FILE_ATTRIBUTES;

    if (attributes == INVALID_FILE_ATTRIBUTES) return PATH_NOTHING;
    return attributes & FILE_ATTRIBUTE_DIRECTORY ? PATH_FOLDER : PATH_FILE;
}

static int same_file(const char *a, const char *b)
{
    wchar_t wide_a[PATH_ROOM], wide_b[PATH_ROOM];

    return wide_path(a, wide_a) && wide_path(b, wide_b) && _wcsicmp(wide_a, wide_b) == 0;
}

static int replace_file(const char *from, const char *to)
{
    wchar_t wide_from[PATH_ROOM], wide_to[PATH_ROOM];

    return wide_path(from, wide_from) && wide_path(to, wide_to) &&
           MoveFileExW(wide_from, wide_to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH);
}

static void remove_file(const char *path)
{
    wchar_t wide[PATH_ROOM];

    if (wide_path(path, wide)) DeleteFileW(wide);
}

static int flush_to_disk(FILE *file)
{
    return fflush(file) == 0 && _commit(_fileno(file)) == 0;
}
#else
static path_kind kind_of(const char *path)
{
    struct stat status;

    if (stat(path, &status)) return PATH_NOTHING;
    return S_ISREG(status.st_mode) ? PATH_FILE : S_ISDIR(status.st_mode) ? PATH_FOLDER : PATH_OTHER;
}

static int same_file(const char *a, const char *b)
{
    struct stat status_a, status_b;

    return !stat(a, &status_a) && !stat(b, &status_b) && status_a.st_dev == status_b.st_dev &&
           status_a.st_ino == status_b.st_ino;
}

static int replace_file(const char *from, const char *to)
{
    return rename(from, to) == 0;
}

static void remove_file(const char *path)
{
    remove(path);
}

/* Without it a crash soon after could leave the new name with the data not there yet. */
static int flush_to_disk(FILE *file)
{
    return fflush(file) == 0 && fsync(fileno(file)) == 0;
}
#endif

static int check_paths(work *w)
{
    const char *in = arguments.operands[0], *out = arguments.operands[1];
    const size_t length = strlen(out);

    if (kind_of(in) == PATH_FOLDER) return cli_fail("%s: folders are not supported yet, only GGUF files are", in);
    if (same_file(in, out)) return cli_fail("%s: this is the input; the output has to be another file", out);
    if (kind_of(out) == PATH_FOLDER || kind_of(out) == PATH_OTHER) return cli_fail("%s: this is not a file", out);
    w->partial = (char *)malloc(length + sizeof ".partial");
    if (!w->partial) return cli_fail("%s: out of memory", out);
    memcpy(w->partial, out, length);
    memcpy(w->partial + length, ".partial", sizeof ".partial");
    if (same_file(in, w->partial)) return cli_fail("%s: this is the input, and needed for the output", w->partial);
    return CLI_GO_ON;
}

/* The library reads and checks the header of a model, and loads nothing. */
static int check_model(const char *path)
{
    skl_model_desc desc = {0};
    skl_memory memory;
    skl_error error;

    desc.source.path = path;
    return skl_memory_needed(&memory, &desc, NULL, &error) ? cli_fail_skl(path, &error) : CLI_GO_ON;
}

static int open_input(work *w)
{
    skl_gguf_desc desc = {0};
    skl_error error;
    int code = check_model(arguments.operands[0]);

    if (code != CLI_GO_ON) return code;
    desc.source.path = arguments.operands[0];
    if (skl_gguf_open(&w->gguf, &desc, &error)) return cli_fail_skl(arguments.operands[0], &error);
    return CLI_GO_ON;
}

/* Writes the file beside OUT and checks it, then gives it the name. */
static int write_output(work *w)
{
    int code;

    w->file = cli_open(w->partial, "wb");
    if (!w->file) return cli_fail("%s: %s", w->partial, strerror(errno));
    put_header(w);
    code = write_data(w);
    if (code == CLI_GO_ON && !flush_to_disk(w->file)) code = cli_fail("%s: %s", w->partial, strerror(errno));
    if (fclose(w->file) && code == CLI_GO_ON) code = cli_fail("%s: %s", w->partial, strerror(errno));
    if (code == CLI_GO_ON) code = check_model(w->partial);
    if (code == CLI_GO_ON && !replace_file(w->partial, arguments.operands[1]))
        code = cli_fail("%s: it cannot be given the name %s", w->partial, arguments.operands[1]);
    if (code != CLI_GO_ON) remove_file(w->partial);
    return code;
}

/* =====================================================================================================================
 * Report
 * ================================================================================================================== */

static double relative(double difference, double norm)
{
    return difference > 0.0 ? sqrt(difference / norm) : 0.0;
}

static void print_report(const work *w)
{
    double difference = 0.0, norm = 0.0, values = 0.0, bytes = 0.0;
    size_t i;

    printf("%-32s %13s  %-16s %10s %8s %9s\n", "tensor", "shape", "type", "bytes", "bits", "error");
    for (i = 0; i < w->count; i++) {
        const plan *p = &w->plans[i];
        const double n = (double)p->columns * (double)p->rows;
        char shape[48], type[48];

        snprintf(shape, sizeof shape, "%llu x %llu", (unsigned long long)p->columns, (unsigned long long)p->rows);
        if (p->layout.bits) snprintf(type, sizeof type, "%s packed g%llu", p->name, (unsigned long long)p->layout.group);
        else snprintf(type, sizeof type, "%s", p->name);
        printf("%-32s %13s  %-16s %10llu %8.3f %9.5f\n", p->source.name, shape, type, (unsigned long long)p->size,
               8.0 * (double)p->size / n, relative(p->difference, p->norm));
        difference += p->difference;
        if (p->difference > 0.0) norm += p->norm;
        values += n;
        bytes += (double)p->size;
    }
    printf("%-32s %13.0f  %-16s %10.0f %8.3f %9.5f\n", "total", values, "", bytes, 8.0 * bytes / values,
           relative(difference, norm));
    printf("file %llu bytes; the total error is that of the tensors that changed\n",
           (unsigned long long)w->written);
}

/* =====================================================================================================================
 * Program
 * ================================================================================================================== */

static int read_rules(work *w)
{
    size_t i;
    int code;

    if (!arguments.type) arguments.type = arguments.plain ? "Q4_0" : "q4";
    if ((code = find_format("--type", arguments.type, &w->type)) != CLI_GO_ON) return code;
    w->embed = w->type;
    if (arguments.embed && (code = find_format("--embed", arguments.embed, &w->embed)) != CLI_GO_ON) return code;
    for (i = 0; i < arguments.keep.count; i++) {
        const char *text = arguments.keep.items[i], *end = strchr(text, '=');
        const size_t length = end ? (size_t)(end - text) : 0;

        if (!length || length >= sizeof w->rules[i].pattern)
            return cli_usage("--keep takes PATTERN=TYPE, not %.80s", text);
        memcpy(w->rules[i].pattern, text, length);
        if ((code = find_format("--keep", end + 1, &w->rules[i].to)) != CLI_GO_ON) return code;
    }
    return CLI_GO_ON;
}

static int run(work *w)
{
    int code;

    if ((code = read_rules(w)) != CLI_GO_ON) return code;
    if ((code = check_paths(w)) != CLI_GO_ON) return code;
    if ((code = open_input(w)) != CLI_GO_ON) return code;
    if ((code = make_plans(w)) != CLI_GO_ON) return code;
    if ((code = write_output(w)) != CLI_GO_ON) return code;
    print_report(w);
    return cli_finish();
}

int main(int argc, char **argv)
{
    work w = {0};
    int code;

    cli_begin("quantize", &argc, &argv);
    code = cli_parse(argc, argv, help, options, arguments.operands, 2);
    if (code != CLI_GO_ON) return code;
    if (!arguments.operands[0]) return cli_usage("IN and OUT are missing");
    if (!arguments.operands[1] || !*arguments.operands[1]) return cli_usage("OUT is missing");
    if (arguments.packed && arguments.plain) return cli_usage("--packed and --plain exclude each other");

    signal(SIGINT, on_interrupt);
    signal(SIGTERM, on_interrupt);
    code = run(&w);
    skl_gguf_close(w.gguf);
    free(w.plans);
    free(w.partial);
    return code;
}
