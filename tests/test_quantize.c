/* test_quantize.c - what build/quantize writes, read back by the library and run by build/eval; packed matrices against
 * hand calculation; and packing lists that do not fit their tensors. */
#define _XOPEN_SOURCE 700
#define SINKLESS_IMPLEMENTATION
#include "../sinkless.h"
#include "gguf_writer.h"
#include "process.h"
#include "test.h"
#include "support.h"

#include <sys/stat.h>

#define QUANTIZE(...) process_run("", 0, "quantize", __VA_ARGS__, (char *)NULL)

/* A file of this test, in the build folder. */
static const char *made(const char *name)
{
    static char paths[8][1100];
    static int next;
    char *file = paths[next++ % 8];

    snprintf(file, sizeof paths[0], "%s/test_quantize.%s", process_build(), name);
    return file;
}

static int exists(const char *file)
{
    return access(file, F_OK) == 0;
}

static long long file_size(const char *file)
{
    struct stat status;

    return stat(file, &status) ? -1 : (long long)status.st_size;
}

static void write_file(const char *name, const void *bytes, size_t size)
{
    FILE *file = fopen(name, "wb");

    CHECK(file && fwrite(bytes, 1, size, file) == size);
    if (file) fclose(file);
}

/* Runs quantize, which has to succeed; the caller frees the result. */
static process_result convert(const char *in, const char *out, const char *option, const char *value, const char *more)
{
    process_result r = QUANTIZE(in, out, option, value, more);

    if (!CHECK(r.code == 0)) printf("    %s", r.err.bytes);
    CHECK_STR(r.err.bytes, "");
    return r;
}

/* The last number of the report that follows the word. */
static double reported(const process_result *r, const char *word)
{
    const char *found = strstr(r->out.bytes, word), *end = found ? strchr(found, '\n') : NULL;

    if (!CHECK(end != NULL)) return -1.0;
    while (end > found && end[-1] != ' ') end--;
    return strtod(end, NULL);
}

/* --- packing by hand --- */

/* The example of the format's description: x_i = 0.1 (i - 16) has scale bits 3266 and these codes in Q4_0. */
static void test_worked_example(void)
{
    static const unsigned char nibbles[16] = {0x80, 0x91, 0x91, 0xa2, 0xa2, 0xb3, 0xb3, 0xc4,
                                              0xc4, 0xd5, 0xd5, 0xe6, 0xe6, 0xf7, 0xf7, 0xf8};
    const double scale = 0.199951171875; /* 0x3266: 1.599609375 / 8 */
    skl_layout layout;
    float x[32], got[32];
    unsigned char packed[1024];
    int i;

    memset(&layout, 0, sizeof layout);
    layout.bits = 4;
    layout.rows = 1;
    layout.columns = layout.group = 32;
    CHECK_EQ_INT(skl_packed_bytes(&layout), 320); /* 16 x 32 codes of 4 bits, 16 scales of 2 bytes, padded to 64 */
    for (i = 0; i < 32; i++) x[i] = (float)(0.1 * (i - 16));
    CHECK_EQ_INT(skl_pack_values(&layout, x, packed), SKL_OK);
    CHECK_EQ_INT(skl_unpack_row(&layout, packed, 0, got), SKL_OK);
    for (i = 0; i < 32; i++) {
        const int code = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;

        CHECK_NEAR((double)got[i], scale * (code - 8), 1e-7);
    }
    CHECK_NEAR((double)got[0], -1.599609, 1e-6);
    CHECK_EQ_INT(packed[256] | packed[257] << 8, 0x3266);
    /* row 0 has the first four bytes of every line of 64: columns 4 c + j low, 16 + 4 c + j high */
    for (i = 0; i < 16; i++) CHECK_EQ_INT(packed[i / 4 * 64 + i % 4], nibbles[i]);
    /* the other fifteen rows are zero in everything */
    for (i = 4; i < 64; i++) CHECK_EQ_INT(packed[i], 0);
    for (i = 258; i < 320; i++) CHECK_EQ_INT(packed[i], 0);
}

/* Rounding costs half a scale, cutting 4-bit codes off at 15 another half, narrowing the scale to f16 2^-11 of the
 * value; and what came out of packing goes in unchanged. */
static void test_rounding(int bits, uint64_t group)
{
    enum { ROWS = 18, COLUMNS = 256 };
    static float x[ROWS * COLUMNS], once[COLUMNS], again[ROWS * COLUMNS];
    static unsigned char packed[32 * COLUMNS * 2];
    skl_layout layout;
    uint64_t state = group + (uint64_t)bits;
    size_t r, i, g;

    memset(&layout, 0, sizeof layout);
    layout.bits = bits;
    layout.rows = ROWS;
    layout.columns = COLUMNS;
    layout.group = group;
    for (i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)(int64_t)(random_bits(&state) >> 20) * 1e-12f - 8.0f;
    CHECK_EQ_INT(skl_pack_values(&layout, x, packed), SKL_OK);
    for (r = 0; r < ROWS; r++) {
        CHECK_EQ_INT(skl_unpack_row(&layout, packed, r, again + r * COLUMNS), SKL_OK);
        for (g = 0; g < COLUMNS; g += (size_t)group) {
            double most = 0.0, bound;

            for (i = g; i < g + (size_t)group; i++)
                if (fabs((double)x[r * COLUMNS + i]) > most) most = fabs((double)x[r * COLUMNS + i]);
            bound = bits == 4 ? most / 8.0 : most / 127.0 / 2.0;
            bound += most / 2048.0 + 1e-6;
            for (i = g; i < g + (size_t)group; i++)
                CHECK_NEAR((double)again[r * COLUMNS + i], (double)x[r * COLUMNS + i], bound);
        }
    }
    CHECK_EQ_INT(skl_pack_values(&layout, again, packed), SKL_OK);
    for (r = 0; r < ROWS; r++) {
        CHECK_EQ_INT(skl_unpack_row(&layout, packed, r, once), SKL_OK);
        CHECK(memcmp(once, again + r * COLUMNS, sizeof once) == 0);
    }
}

static void test_pack_values(void)
{
    float x[64];
    unsigned char packed[1024];
    skl_layout layout;
    size_t i;

    test_worked_example();
    test_rounding(4, 32);
    test_rounding(4, 64);
    test_rounding(4, 128);
    test_rounding(4, 256);
    test_rounding(8, 16);
    test_rounding(8, 32);
    test_rounding(8, 128);

    memset(&layout, 0, sizeof layout);
    layout.bits = 4;
    layout.rows = 1;
    layout.columns = layout.group = 64;
    for (i = 0; i < 64; i++) x[i] = 0.0f;
    CHECK_EQ_INT(skl_pack_values(&layout, x, packed), SKL_OK); /* zeros: scale 0, no division */
    CHECK_EQ_INT(skl_unpack_row(&layout, packed, 0, x), SKL_OK);
    for (i = 0; i < 64; i++) CHECK(x[i] == 0.0f);
    x[7] = 1e9f; /* the scale 1.25e8 is beyond f16 */
    CHECK_EQ_INT(skl_pack_values(&layout, x, packed), SKL_NOT_FINITE);
    layout.wide = 1;
    CHECK_EQ_INT(skl_pack_values(&layout, x, packed), SKL_OK);
    x[7] = (float)NAN;
    CHECK_EQ_INT(skl_pack_values(&layout, x, packed), SKL_NOT_FINITE);
    layout.minimum = 1;
    CHECK_EQ_INT(skl_pack_values(&layout, x, packed), SKL_BAD_ARGUMENT);
}

/* --- the program --- */

/* The hash of the logits, with the default activations. */
static process_text hash_of(const char *model, const char *ids, const char *isa)
{
    process_result r = process_run("", 0, "eval", "-m", model, "--ids", ids, "--hash", "--isa", isa, (char *)NULL);

    if (!CHECK(r.code == 0)) printf("    %s", r.err.bytes);
    free(r.err.bytes);
    return r.out;
}

static double perplexity_of(const char *model, const char *ids)
{
    process_result r = process_run("", 0, "eval", "-m", model, "--ids", ids, "--ppl", (char *)NULL);
    double value = -1.0;

    CHECK_EQ_INT(r.code, 0);
    CHECK_EQ_INT(sscanf(r.out.bytes, "ppl %lf", &value), 1);
    process_free(&r);
    return value;
}

/* Two files that hold the same weights give the same bits on every kernel level. */
static void check_same_logits(const char *a, const char *b, const char *ids)
{
    int isa;

    for (isa = SKL_ISA_SCALAR; isa < SKL_ISA_COUNT; isa++) {
        process_text wanted, got;

        if (!level_available(isa)) continue;
        wanted = hash_of(a, ids, skl_isa_name((skl_isa)isa));
        got = hash_of(b, ids, skl_isa_name((skl_isa)isa));
        CHECK_STR(got.bytes, wanted.bytes);
        free(wanted.bytes);
        free(got.bytes);
    }
}

static skl_memory memory_of(const char *file)
{
    skl_memory memory;
    skl_model_desc desc;
    skl_error error;

    memset(&memory, 0, sizeof memory);
    memset(&desc, 0, sizeof desc);
    desc.source.path = file;
    if (!CHECK(skl_memory_needed(&memory, &desc, NULL, &error) == SKL_OK)) printf("    %s\n", error.message);
    return memory;
}

static skl_gguf *open_file(const char *file)
{
    skl_gguf *gguf = NULL;
    skl_gguf_desc desc;
    skl_error error;

    memset(&desc, 0, sizeof desc);
    desc.source.path = file;
    if (!CHECK(skl_gguf_open(&gguf, &desc, &error) == SKL_OK)) printf("    %s: %s\n", file, error.message);
    return gguf;
}

/* Bytes of the I8 tensors, each of which has to begin on a cache line. */
static uint64_t packed_bytes(const char *file)
{
    skl_gguf *gguf = open_file(file);
    skl_tensor tensor;
    uint64_t sum = 0;
    size_t i;

    for (i = 0; gguf && skl_gguf_tensor(gguf, i, &tensor) == SKL_OK; i++) {
        if (tensor.type != SKL_TYPE_I8) continue;
        sum += tensor.size;
        CHECK_EQ_INT((uintptr_t)tensor.data % 64, 0);
        CHECK_EQ_INT(tensor.dims, 2);
        CHECK_EQ_INT(tensor.shape[0] * tensor.shape[1], tensor.size);
    }
    skl_gguf_close(gguf);
    return sum;
}

static int is_storage_key(const char *name, size_t length)
{
    static const char *const keys[] = {"general.alignment", "general.file_type", "general.quantization_version"};
    size_t i;

    for (i = 0; i < 3; i++)
        if (strlen(keys[i]) == length && !memcmp(keys[i], name, length)) return 1;
    return length > 8 && !memcmp(name, "packing.", 8);
}

/* Every key that says nothing about storage is in the other file too, byte for byte. */
static void check_metadata(const char *from, const char *to)
{
    skl_gguf *a = open_file(from), *b = open_file(to);
    const char *name;
    char key[256];
    size_t length, i;
    skl_value wanted, got;

    for (i = 0; a && b && skl_gguf_key(a, i, &name, &length, &wanted) == SKL_OK; i++) {
        if (is_storage_key(name, length) || length >= sizeof key) continue;
        memcpy(key, name, length);
        key[length] = '\0';
        if (!CHECK(skl_gguf_find(b, key, &got) == SKL_OK)) continue;
        CHECK_EQ_INT(got.type, wanted.type);
        CHECK_EQ_INT(got.element_type, wanted.element_type);
        CHECK_EQ_INT(got.count, wanted.count);
        CHECK(got.size == wanted.size && memcmp(got.data, wanted.data, got.size) == 0);
    }
    CHECK(i > 0);
    skl_gguf_close(a);
    skl_gguf_close(b);
}

/* Integer tensors as they are, in the order of kernels: the same logits, from memory that is the file's. */
static void test_pack_exactly(const char *name)
{
    const path in = golden_path(name, "model.gguf"), ids = golden_path(name, "tokens.i32");
    const char *out = made("packed");
    skl_memory plain, packed;
    process_result r = convert(in.text, out, "--type", "same", "--packed");

    CHECK_NEAR(reported(&r, "total"), 0.0, 0.0);
    process_free(&r);
    check_same_logits(in.text, out, ids.text);
    check_metadata(in.text, out);
    plain = memory_of(in.text);
    packed = memory_of(out);
    CHECK_EQ_INT(packed.weights + packed_bytes(out), plain.weights);
    CHECK_EQ_INT(packed.mapped, file_size(out));

    r = convert(out, made("again"), "--type", "same", "--packed"); /* packing twice changes nothing */
    process_free(&r);
    check_same_logits(out, made("again"), ids.text);
}

/* One type, plain and packed. */
static void test_plain_and_packed(const char *type)
{
    const path in = golden_path("mixed_weights", "model.gguf"), ids = golden_path("mixed_weights", "tokens.i32");
    const char *plain = made("plain"), *packed = made("packed");
    process_result a = convert(in.text, plain, "--type", type, "--plain");
    process_result b = convert(in.text, packed, "--type", type, "--packed");

    CHECK_NEAR(reported(&a, "total"), reported(&b, "total"), 1e-12);
    check_same_logits(plain, packed, ids.text);
    CHECK_EQ_INT(packed_bytes(plain), 0);
    CHECK(packed_bytes(packed) > 0);
    process_free(&a);
    process_free(&b);
}

/* The error that is printed, against the definition; the tensor is f16 in the source. */
static void check_error(const char *from, const char *to, const char *name, double printed)
{
    skl_gguf *a = open_file(from), *b = open_file(to);
    skl_tensor before, after;
    double difference = 0.0, norm = 0.0;
    float x[64], y[64];
    uint64_t i;
    int j;

    if (CHECK(a && b && !skl_gguf_find_tensor(a, name, &before) && !skl_gguf_find_tensor(b, name, &after))) {
        for (i = 0; i < before.shape[1]; i++) {
            skl_dequantize(before.type, before.data + i * 64 * skl_type_bytes(before.type), 64, x);
            skl_dequantize(after.type, after.data + i * 2 * skl_type_bytes(after.type), 64, y);
            for (j = 0; j < 64; j++) {
                difference += ((double)x[j] - (double)y[j]) * ((double)x[j] - (double)y[j]);
                norm += (double)x[j] * (double)x[j];
            }
        }
        CHECK_NEAR(printed, sqrt(difference / norm), 6e-6);
    }
    skl_gguf_close(a);
    skl_gguf_close(b);
}

static void test_types(void)
{
    const path in = golden_path("mixed_weights", "model.gguf"), ids = golden_path("mixed_weights", "tokens.i32");
    const double wanted = perplexity_of(in.text, ids.text);
    static const struct {
        const char *type;
        double room; /* of the logarithm of the perplexity: random weights, so that rounding shows; still, not more */
    } cases[] = {{"f32", 0.01}, {"f16", 0.01},   {"q8", 0.05},  {"q4", 0.6},
                 {"q4g64", 0.6}, {"q4g128", 0.6}, {"MXFP4", 0.8}};
    size_t i;

    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *out = made("type");
        process_result r = convert(in.text, out, "--type", cases[i].type, "--keep=*_gate_?.weight=f16");
        char size[64];

        CHECK_NEAR(log(perplexity_of(out, ids.text)), log(wanted), cases[i].room);
        snprintf(size, sizeof size, "file %lld bytes", file_size(out));
        CHECK(strstr(r.out.bytes, size) != NULL);
        check_metadata(in.text, out);
        process_free(&r);
    }
    {
        process_result r = convert(in.text, made("type"), "--type", "Q8_0", "--keep=blk.0.attn_gate.weight=Q4_0");

        check_error(in.text, made("type"), "blk.0.attn_output.weight", reported(&r, "blk.0.attn_output.weight"));
        check_error(in.text, made("type"), "blk.0.attn_gate.weight", reported(&r, "blk.0.attn_gate.weight"));
        process_free(&r);
    }
}

/* What options choose, as types in the file. */
static void test_choices(void)
{
    const path in = golden_path("mixed_weights", "model.gguf"), llama = golden_path("llama", "model.gguf");
    static const struct {
        const char *name;
        int type;
    } wanted[] = {{"token_embd.weight", SKL_TYPE_BF16}, {"output.weight", SKL_TYPE_BF16},
                  {"blk.0.attn_q.weight", SKL_TYPE_I8}, {"blk.0.attn_v.weight", SKL_TYPE_Q8_0},
                  {"blk.1.attn_v.weight", SKL_TYPE_Q4_1}, {"blk.0.attn_norm.weight", SKL_TYPE_F32},
                  {"blk.0.attn_norm_gate_a.weight", SKL_TYPE_F32}, {"blk.0.ffn_norm_gate_a.weight", SKL_TYPE_BF16}};
    process_result r;
    skl_gguf *gguf;
    skl_tensor tensor;
    size_t i;

    unlink(made("choices"));
    r = QUANTIZE(in.text, made("choices"), "--keep", "*.attn_norm*=q8");
    CHECK_EQ_INT(r.code, 1); /* no matrix has a name like attn_norm*: that pattern applies to nothing */
    CHECK(strstr(r.err.bytes, "*.attn_norm*=q8") != NULL);
    CHECK(!exists(made("choices")));
    process_free(&r);
    r = QUANTIZE(in.text, made("choices"), "--embed", "bf16", "--keep", "*.attn_v.weight=q8_0", "--keep",
                 "blk.1.attn_?.weight=Q4_1", "--keep", "*.attn_norm_gate*=f32");
    CHECK_EQ_INT(r.code, 0);
    process_free(&r);
    gguf = open_file(made("choices"));
    for (i = 0; gguf && i < sizeof wanted / sizeof *wanted; i++)
        if (CHECK(skl_gguf_find_tensor(gguf, wanted[i].name, &tensor) == SKL_OK)) {
            if (!CHECK(tensor.type == wanted[i].type)) printf("    %s: %d\n", wanted[i].name, tensor.type);
        }
    skl_gguf_close(gguf);

    r = convert(llama.text, made("choices"), "--type", "q4", "--packed"); /* rows of 48 and 80 */
    process_free(&r);
    gguf = open_file(made("choices"));
    for (i = 0; gguf && skl_gguf_tensor(gguf, i, &tensor) == SKL_OK; i++)
        CHECK_EQ_INT(tensor.type, tensor.dims == 2 ? SKL_TYPE_F16 : SKL_TYPE_F32);
    skl_gguf_close(gguf);
}

/* A failure: the code, one line with this in it, nothing on stdout, and no file left behind. */
static void check_refused(process_result r, int code, const char *what)
{
    CHECK_EQ_INT(r.code, code);
    CHECK_STR(r.out.bytes, "");
    CHECK_EQ_INT(process_lines(&r.err), 1);
    if (!CHECK(strstr(r.err.bytes, what) != NULL)) printf("    no \"%s\" in: %s\n", what, r.err.bytes);
    CHECK(!exists(made("refused")));
    CHECK(!exists(made("refused.partial")));
    process_free(&r);
}

static void test_refusals(void)
{
    const path in = golden_path("mixed_weights", "model.gguf");
    const char *out = made("refused");
    size_t size, left;
    unsigned char *bytes = read_file(in.text, &size), *same;

    check_refused(QUANTIZE(in.text), 2, "OUT");
    check_refused(QUANTIZE(in.text, out, "--type", "Q4_9"), 2, "Q4_9");
    check_refused(QUANTIZE(in.text, out, "--keep", "q8"), 2, "PATTERN=TYPE");
    check_refused(QUANTIZE(in.text, out, "--keep", "*=Q9"), 2, "Q9");
    check_refused(QUANTIZE(in.text, out, "--plain", "--type", "q8"), 2, "q8");
    check_refused(QUANTIZE(in.text, out, "--plain", "--packed"), 2, "--plain");
    check_refused(QUANTIZE(in.text, out, "--type", "Q4_K"), 1, "Q4_K");
    check_refused(QUANTIZE(in.text, out, "--keep", "no.such.tensor=q8"), 1, "no.such.tensor");
    check_refused(QUANTIZE("tests/golden", out), 1, "not supported yet");
    check_refused(QUANTIZE("no/model.gguf", out), 1, "no/model.gguf");
    check_refused(QUANTIZE("Makefile", out), 1, "Makefile");
    check_refused(QUANTIZE(in.text, "no/such/folder/out.gguf"), 1, "no/such/folder");
    check_refused(QUANTIZE(in.text, process_build()), 1, process_build());

    /* the input is no output, under whatever name, and stays as it is */
    write_file(made("input"), bytes, size);
    check_refused(QUANTIZE(made("input"), made("input")), 1, "input");
    unlink(made("link"));
    CHECK_EQ_INT(link(made("input"), made("link")), 0);
    check_refused(QUANTIZE(made("input"), made("link")), 1, "input");
    unlink(made("link"));
    same = read_file(made("input"), &left);
    CHECK(same && left == size && memcmp(same, bytes, size) == 0);
    free(same);
    free(bytes);
}

/* A weight that is not a number, late in the file: an error that names the tensor, and the old OUT stays. */
static void test_not_finite(void)
{
    const path in = golden_path("mixed_weights", "model.gguf");
    static draft d;
    skl_gguf *gguf = open_file(in.text);
    skl_tensor *tensor;
    unsigned char copy[64 * 80 * 2];
    writer w;
    size_t size;
    unsigned char *kept;

    memset(&w, 0, sizeof w);
    draft_take(&d, gguf);
    tensor = draft_tensor(&d, "blk.0.attn_gate.weight"); /* f16 */
    memcpy(copy, tensor->data, (size_t)tensor->size);
    copy[tensor->size - 1] = 0x7e;
    tensor->data = copy;
    draft_write(&d, &w);
    write_file(made("nan"), w.data, w.size);
    write_file(made("kept"), "old", 3);
    check_refused(QUANTIZE(made("nan"), made("kept")), 1, "blk.0.attn_gate.weight");
    CHECK(!exists(made("kept.partial")));
    kept = read_file(made("kept"), &size);
    CHECK(kept && size == 3 && memcmp(kept, "old", 3) == 0);
    free(kept);
    free(w.data);
    skl_gguf_close(gguf);
}

/* --- packing lists that do not fit --- */

/* A packed file, and lists that the cases change. */
typedef struct lists {
    skl_gguf *gguf;
    draft d;
    int64_t formats[256], columns[256], rows[256], groups[256];
    unsigned char names[256 * 72];
    size_t names_size;
    uint64_t count;
} lists;

static void take_numbers(const skl_gguf *gguf, const char *key, uint64_t count, int64_t *out)
{
    skl_value value;
    uint64_t i;

    CHECK_EQ_INT(skl_gguf_find(gguf, key, &value), SKL_OK);
    CHECK_EQ_INT(value.count, count);
    for (i = 0; i < count; i++) CHECK_EQ_INT(skl_value_int(&value, i, &out[i]), SKL_OK);
}

static void take_lists(lists *l)
{
    skl_value names;

    draft_take(&l->d, l->gguf);
    CHECK_EQ_INT(skl_gguf_find(l->gguf, "packing.names", &names), SKL_OK);
    l->count = names.count;
    l->names_size = names.size;
    if (!CHECK(names.count <= 256 && names.size <= sizeof l->names)) return;
    memcpy(l->names, names.data, names.size);
    take_numbers(l->gguf, "packing.formats", l->count, l->formats);
    take_numbers(l->gguf, "packing.columns", l->count, l->columns);
    take_numbers(l->gguf, "packing.rows", l->count, l->rows);
    take_numbers(l->gguf, "packing.groups", l->count, l->groups);
}

static void put_packing_list(draft *d, const char *name, int type, uint64_t count, const void *data, size_t size)
{
    draft_set(d, name, SKL_VALUE_ARRAY, data, size);
    draft_key(d, name)->element_type = type;
    draft_key(d, name)->count = count;
}

/* Opens the file with the lists as they are now; the error has to name the tensor or key. Puts the lists back. */
static void expect_error(lists *l, skl_status status, const char *where)
{
    writer w;
    skl_model *model = NULL;
    skl_model_desc desc;
    skl_error error;
    const size_t size = (size_t)l->count * 8;

    memset(&w, 0, sizeof w);
    memset(&desc, 0, sizeof desc);
    put_packing_list(&l->d, "packing.names", SKL_VALUE_STRING, l->count, l->names, l->names_size);
    put_packing_list(&l->d, "packing.formats", SKL_VALUE_I64, l->count, l->formats, size);
    put_packing_list(&l->d, "packing.columns", SKL_VALUE_I64, l->count, l->columns, size);
    put_packing_list(&l->d, "packing.rows", SKL_VALUE_I64, l->count, l->rows, size);
    put_packing_list(&l->d, "packing.groups", SKL_VALUE_I64, l->count, l->groups, size);
    draft_write(&l->d, &w);
    desc.source.data = w.data;
    desc.source.data_size = w.size;
    memset(&error, 0, sizeof error);
    CHECK_EQ_INT(skl_model_open(&model, &desc, &error), status);
    if (status != SKL_OK && !CHECK(strstr(error.where, where) != NULL))
        printf("    %s: %s\n", error.where, error.message);
    skl_model_close(model);
    free(w.data);
    take_lists(l);
}

static void test_packing_lists(void)
{
    const path in = golden_path("mixed_weights", "model.gguf");
    process_result r = convert(in.text, made("lists"), "--type", "q4", "--packed");
    static const int64_t formats[] = {0, 1, 5, 7, 8, 16, 4 | 1 << 8, 4 | 1 << 9, 4 | 1 << 10, -1, INT64_MIN};
    static const int64_t groups[] = {0, 1, 16, 48, 96, 128, -32, INT64_MAX};
    static const int64_t sizes[] = {0, 1, 48, 63, 96, 65536, -64, INT64_MAX};
    static lists l;
    char first[80], second[80];
    uint64_t lengths[2];
    size_t i;

    process_free(&r);
    l.gguf = open_file(made("lists"));
    if (!l.gguf) return;
    take_lists(&l);
    memcpy(&lengths[0], l.names, 8);
    memcpy(first, l.names + 8, (size_t)lengths[0]);
    first[lengths[0]] = '\0';
    memcpy(&lengths[1], l.names + 8 + lengths[0], 8);
    memcpy(second, l.names + 16 + lengths[0], (size_t)lengths[1]);
    second[lengths[1]] = '\0';

    expect_error(&l, SKL_OK, "");
    for (i = 0; i < sizeof formats / sizeof *formats; i++) {
        l.formats[1] = formats[i];
        expect_error(&l, SKL_BAD_MODEL, second);
    }
    for (i = 0; i < sizeof groups / sizeof *groups; i++) {
        l.groups[1] = groups[i];
        expect_error(&l, SKL_BAD_MODEL, second);
    }
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        l.columns[1] = sizes[i];
        expect_error(&l, SKL_BAD_MODEL, second);
        l.rows[0] = sizes[i];
        expect_error(&l, SKL_BAD_MODEL, first);
    }
    l.columns[0] *= 2; /* the same number of bytes, in another shape */
    l.rows[0] /= 2;
    expect_error(&l, SKL_BAD_MODEL, first);
    l.rows[0]++;       /* 81 rows want another tile */
    expect_error(&l, SKL_BAD_MODEL, first);

    l.names[8] = 'x';
    expect_error(&l, SKL_BAD_MODEL, "xoken_embd.weight");
    memmove(l.names + 8 + lengths[1], l.names + 8 + lengths[0], l.names_size - 8 - (size_t)lengths[0]);
    memcpy(l.names, &lengths[1], 8); /* the second name, twice */
    memcpy(l.names + 8, second, (size_t)lengths[1]);
    l.names_size += (size_t)lengths[1] - (size_t)lengths[0];
    expect_error(&l, SKL_BAD_MODEL, second);
    skl_gguf_close(l.gguf);
}

int main(void)
{
    test_pack_values();
    test_pack_exactly("w4_blocks");
    test_pack_exactly("mixed_weights");
    test_pack_exactly("k_quants");
    test_plain_and_packed("Q4_0");
    test_plain_and_packed("Q8_0");
    test_plain_and_packed("Q4_1");
    test_plain_and_packed("MXFP4");
    test_types();
    test_choices();
    test_refusals();
    test_not_finite();
    test_packing_lists();
    return test_finish();
}
