/* test_gguf.c - the sections >>checked and >>gguf: what good files say, and what bad files cannot do.
 *
 * Files are written here, value by value, by a writer that shares nothing with the reader. Facts about the format (the
 * bytes of the minimal file, block sizes) are taken from its description. Run it under AddressSanitizer too: every file
 * in memory lies in a block of exactly its size, so that one byte too many is seen.
 */
#if !defined(_WIN32)
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

/* Stand between the library and the system: mappings can be refused, and pages can be as large as on other machines. */
static long fake_page; /* 0 = the real one */
static int refuse_maps;

static long fake_sysconf(int name)
{
    return name == _SC_PAGESIZE && fake_page ? fake_page : sysconf(name);
}

static void *fake_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    errno = EINVAL;
    if (refuse_maps || offset % fake_sysconf(_SC_PAGESIZE)) return MAP_FAILED;
    return mmap(address, size, protection, flags, fd, offset);
}

#define sysconf fake_sysconf
#define mmap fake_mmap
#endif

#define SINKLESS_IMPLEMENTATION
#include "../sinkless.h"
#include "gguf_writer.h"
#include "test.h"

/* Pads to the alignment and adds that many bytes of data, each different from its neighbours. */
static void put_data(writer *w, size_t alignment, size_t bytes)
{
    size_t i;

    while (w->size % alignment) put_uint(w, 0, 1);
    for (i = 0; i < bytes; i++) put_uint(w, 7 * i + 1, 1);
}

/* A valid file with a key of every type, arrays of them, and tensors of several types and ranks; no byte of it is
 * superfluous. */
static void put_sample(writer *w)
{
    static const uint64_t matrix[] = {3, 2}, blocks[] = {64, 2}, four[] = {2, 3, 4, 5}, row[] = {32}, bytes[] = {5};

    put_header(w, 5, 17);
    put_key(w, "general.architecture", SKL_VALUE_STRING), put_string(w, "sinkless");
    put_key(w, "a.u8", SKL_VALUE_U8), put_uint(w, 200, 1);
    put_key(w, "a.i8", SKL_VALUE_I8), put_uint(w, 0x80, 1);
    put_key(w, "a.u16", SKL_VALUE_U16), put_uint(w, 0xfedc, 2);
    put_key(w, "a.i16", SKL_VALUE_I16), put_uint(w, 0xfffe, 2);
    put_key(w, "a.u32", SKL_VALUE_U32), put_uint(w, 0xfffffffeu, 4);
    put_key(w, "a.i32", SKL_VALUE_I32), put_uint(w, 0x80000000u, 4);
    put_key(w, "a.f32", SKL_VALUE_F32), put_uint(w, 0x3e200000u, 4); /* 1.25 * 2^-3 = 0.15625 */
    put_key(w, "a.bool", SKL_VALUE_BOOL), put_uint(w, 1, 1);
    put_u32_key(w, "general.alignment", 64);
    put_key(w, "a.u64", SKL_VALUE_U64), put_uint(w, UINT64_C(0x8000000000000000), 8);
    put_key(w, "a.i64", SKL_VALUE_I64), put_uint(w, UINT64_C(0xfffffffffffffffd), 8);
    put_key(w, "a.f64", SKL_VALUE_F64), put_uint(w, UINT64_C(0xc004000000000000), 8); /* -1.25 * 2^1 = -2.5 */
    put_array(w, "b.strings", SKL_VALUE_STRING, 3), put_string(w, "one"), put_string(w, ""), put_text(w, "t\0e", 3);
    put_array(w, "b.u16", SKL_VALUE_U16, 3), put_uint(w, 1, 2), put_uint(w, 2, 2), put_uint(w, 65535, 2);
    put_array(w, "b.bool", SKL_VALUE_BOOL, 2), put_uint(w, 0, 1), put_uint(w, 1, 1);
    put_array(w, "b.nested", SKL_VALUE_ARRAY, 2);
    put_uint(w, SKL_VALUE_U8, 4), put_count(w, 1), put_uint(w, 9, 1);
    put_uint(w, SKL_VALUE_STRING, 4), put_count(w, 1), put_string(w, "deep");

    put_tensor(w, "matrix", 2, matrix, SKL_TYPE_F32, 0);        /* 24 bytes */
    put_tensor(w, "blocks", 2, blocks, SKL_TYPE_Q4_0, 64);      /* 4 blocks of 18 = 72 */
    put_tensor(w, "four", 4, four, SKL_TYPE_F16, 192);          /* 240 */
    put_tensor(w, "listed", 1, row, 6, 448);                    /* one block of Q5_0: 22 */
    put_tensor(w, "bytes", 1, bytes, SKL_TYPE_I8, 512);         /* 5 */
    put_data(w, 64, 517);
}

/* --- opening --- */

/* An allocator that counts, limits, and fails on demand. */
typedef struct ledger {
    long blocks;   /* alive */
    size_t bytes;  /* asked for, in total */
    long calls;
    long fail_at;  /* this call, counted from 1, returns NULL; 0 = none */
} ledger;

static void *ledger_alloc(void *user, size_t size)
{
    ledger *l = (ledger *)user;

    l->calls++;
    l->bytes += size;
    if (l->calls == l->fail_at) return NULL;
    l->blocks++;
    return malloc(size);
}

static void ledger_free(void *user, void *memory)
{
    ((ledger *)user)->blocks--;
    free(memory);
}

static skl_allocator ledger_allocator(ledger *l)
{
    skl_allocator allocator;

    memset(l, 0, sizeof(*l));
    allocator.alloc = ledger_alloc;
    allocator.free = ledger_free;
    allocator.user = l;
    return allocator;
}

/* A zeroed desc; the caller sets a source. */
static skl_gguf_desc desc_zero(void)
{
    skl_gguf_desc desc;

    memset(&desc, 0, sizeof(desc));
    return desc;
}

static skl_status open_memory(skl_gguf **gguf, const void *data, size_t size, skl_error *error)
{
    skl_gguf_desc desc = desc_zero();

    *gguf = NULL;
    desc.source.data = data;
    desc.source.data_size = size;
    return skl_gguf_open(gguf, &desc, error);
}

/* A block of exactly size bytes. */
static unsigned char *exact_copy(const unsigned char *data, size_t size)
{
    unsigned char *copy = (unsigned char *)malloc(size ? size : 1);

    if (size) memcpy(copy, data, size);
    return copy;
}

/* An error must be complete: a status, a place within the file if any, one terminated printable sentence. */
static void check_error(const skl_error *error, skl_status status, size_t size)
{
    const char *c;
    int printable = 1;

    CHECK_EQ_INT(error->status, status);
    CHECK(error->offset == SKL_NO_OFFSET || error->offset <= size);
    CHECK(memchr(error->message, 0, sizeof(error->message)) != NULL);
    CHECK(memchr(error->where, 0, sizeof(error->where)) != NULL);
    CHECK(error->message[0] != 0);
    for (c = error->message; *c; c++) printable &= (unsigned char)*c >= 32 && *c != 127;
    CHECK(printable);
}

/* Opens hostile bytes with the counting allocator: nothing leaks, nothing large is asked for. */
static skl_status try_bytes(const unsigned char *data, size_t size, skl_gguf **gguf, skl_error *error, ledger *l)
{
    skl_gguf_desc desc = desc_zero();
    skl_status status;

    desc.allocator = ledger_allocator(l);
    desc.source.data = data;
    desc.source.data_size = size;
    *gguf = NULL;
    memset(error, 0x55, sizeof(*error));
    status = skl_gguf_open(gguf, &desc, error);
    CHECK(l->bytes <= 8 * size + 4096);
    if (status) {
        CHECK(*gguf == NULL);
        CHECK_EQ_INT(l->blocks, 0);
        if (size) check_error(error, status, size);
    }
    return status;
}

/* The file in w must be refused, for that reason (a part of the message), about that key or tensor, at that byte. */
static void check_refused(const char *attack, const writer *w, const char *reason, const char *where, uint64_t offset)
{
    unsigned char *data = exact_copy(w->data, w->size);
    skl_gguf *gguf;
    skl_error error;
    ledger l;
    const skl_status status = try_bytes(data, w->size, &gguf, &error, &l);
    int good = CHECK_EQ_INT(status, SKL_BAD_FILE);

    if (status) {
        good &= CHECK(strstr(error.message, reason) != NULL);
        good &= CHECK_STR(error.where, where);
        good &= CHECK_EQ_INT(error.offset, offset);
    }
    if (!good) printf("  in \"%s\": %s\n", attack, status ? error.message : "opened");
    skl_gguf_close(gguf);
    CHECK_EQ_INT(open_memory(&gguf, data, w->size, NULL), status); /* an error struct is optional */
    skl_gguf_close(gguf);
    free(data);
}

static void check_accepted(const char *what, const writer *w)
{
    unsigned char *data = exact_copy(w->data, w->size);
    skl_gguf *gguf;
    skl_error error;

    if (!CHECK_EQ_INT(open_memory(&gguf, data, w->size, &error), SKL_OK)) {
        printf("  in \"%s\": %s\n", what, error.message);
    }
    skl_gguf_close(gguf);
    free(data);
}

/* --- what good files say --- */

static void test_minimal_file(void)
{
    static const unsigned char header[102] = {
        0x47, 0x47, 0x55, 0x46, 0x03, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x67, 0x65, 0x6e, 0x65, 0x72, 0x61, 0x6c, 0x2e, 0x61, 0x72, 0x63, 0x68, 0x69, 0x74, 0x65, 0x63,
        0x74, 0x75, 0x72, 0x65, 0x08, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x6c, 0x6c, 0x61, 0x6d, 0x61, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x74, 0x01, 0x00,
        0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
    unsigned char file[144];
    skl_gguf *gguf;
    skl_error error;
    skl_value value;
    skl_tensor tensor;
    const char *text;
    size_t length;

    memset(file, 0, sizeof(file));
    memcpy(file, header, sizeof(header));
    if (!CHECK_EQ_INT(open_memory(&gguf, file, sizeof(file), &error), SKL_OK)) {
        puts(error.message);
        return;
    }
    CHECK_EQ_INT(skl_gguf_key_count(gguf), 1);
    CHECK_EQ_INT(skl_gguf_tensor_count(gguf), 1);
    CHECK_EQ_INT(skl_gguf_find(gguf, "general.architecture", &value), SKL_OK);
    CHECK_EQ_INT(value.type, SKL_VALUE_STRING);
    CHECK_EQ_INT(skl_value_string(&value, &text, &length), SKL_OK);
    CHECK(length == 5 && memcmp(text, "llama", 5) == 0);
    CHECK_EQ_INT(skl_gguf_tensor(gguf, 0, &tensor), SKL_OK);
    CHECK_STR(tensor.name, "t");
    CHECK(tensor.type == SKL_TYPE_F32 && tensor.dims == 1);
    CHECK(tensor.shape[0] == 4 && tensor.shape[1] == 1 && tensor.shape[2] == 1 && tensor.shape[3] == 1);
    CHECK_EQ_INT(tensor.data - file, 128);
    CHECK_EQ_INT(tensor.size, 16);
    skl_gguf_close(gguf);

    file[4] = 2; /* version 2 is the same layout */
    CHECK_EQ_INT(open_memory(&gguf, file, sizeof(file), &error), SKL_OK);
    skl_gguf_close(gguf);
}

typedef struct scalar_case {
    const char *key;
    skl_status as_int, as_float;
    int64_t integer;
    double real;
} scalar_case;

static void test_scalar_getters(const skl_gguf *gguf)
{
    static const scalar_case cases[] = {
        {"a.u8", SKL_OK, SKL_OK, 200, 200.0},
        {"a.i8", SKL_OK, SKL_OK, -128, -128.0},
        {"a.u16", SKL_OK, SKL_OK, 65244, 65244.0},
        {"a.i16", SKL_OK, SKL_OK, -2, -2.0},
        {"a.u32", SKL_OK, SKL_OK, 4294967294, 4294967294.0},
        {"a.i32", SKL_OK, SKL_OK, -INT64_C(2147483648), -2147483648.0},
        {"a.f32", SKL_BAD_ARGUMENT, SKL_OK, 0, 0.15625},
        {"a.bool", SKL_OK, SKL_BAD_ARGUMENT, 1, 0.0},
        {"a.u64", SKL_BAD_ARGUMENT, SKL_OK, 0, 9223372036854775808.0},
        {"a.i64", SKL_OK, SKL_OK, -3, -3.0},
        {"a.f64", SKL_BAD_ARGUMENT, SKL_OK, 0, -2.5},
        {"general.architecture", SKL_BAD_ARGUMENT, SKL_BAD_ARGUMENT, 0, 0.0},
        {"b.strings", SKL_BAD_ARGUMENT, SKL_BAD_ARGUMENT, 0, 0.0},
        {"b.nested", SKL_BAD_ARGUMENT, SKL_BAD_ARGUMENT, 0, 0.0},
    };
    size_t i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const scalar_case *c = &cases[i];
        int64_t integer = 42;
        double real = 42.0;
        skl_value value;

        CHECK_EQ_INT(skl_gguf_find(gguf, c->key, &value), SKL_OK);
        CHECK_EQ_INT(skl_value_int(&value, 0, &integer), c->as_int);
        CHECK_EQ_INT(integer, c->as_int ? 42 : c->integer); /* written on success only */
        CHECK_EQ_INT(skl_value_float(&value, 0, &real), c->as_float);
        CHECK_NEAR(real, c->as_float ? 42.0 : c->real, 0.0);
        if (c->as_int == SKL_OK) CHECK_EQ_INT(skl_value_int(&value, 1, &integer), SKL_NOT_FOUND);
        if (c->as_float == SKL_OK) CHECK_EQ_INT(skl_value_float(&value, 1, &real), SKL_NOT_FOUND);
    }
}

static void test_array_getters(const skl_gguf *gguf)
{
    const char *text = NULL;
    size_t length = 0;
    int64_t integer = 0;
    double real = 0.0;
    skl_value value;

    CHECK_EQ_INT(skl_gguf_find(gguf, "b.u16", &value), SKL_OK);
    CHECK(value.type == SKL_VALUE_ARRAY && value.element_type == SKL_VALUE_U16 && value.count == 3 && value.size == 6);
    CHECK(skl_value_int(&value, 2, &integer) == SKL_OK && integer == 65535);
    CHECK(skl_value_float(&value, 1, &real) == SKL_OK && real == 2.0);
    CHECK_EQ_INT(skl_value_int(&value, 3, &integer), SKL_NOT_FOUND);
    CHECK_EQ_INT(skl_value_int(&value, UINT64_MAX, &integer), SKL_NOT_FOUND);
    CHECK_EQ_INT(skl_value_next_string(&value, &text, &length), SKL_BAD_ARGUMENT);

    CHECK_EQ_INT(skl_gguf_find(gguf, "b.bool", &value), SKL_OK);
    CHECK(skl_value_int(&value, 0, &integer) == SKL_OK && integer == 0);
    CHECK(skl_value_int(&value, 1, &integer) == SKL_OK && integer == 1);

    CHECK_EQ_INT(skl_gguf_find(gguf, "b.strings", &value), SKL_OK);
    CHECK_EQ_INT(skl_value_string(&value, &text, &length), SKL_BAD_ARGUMENT);
    CHECK(skl_value_next_string(&value, &text, &length) == SKL_OK && length == 3 && memcmp(text, "one", 3) == 0);
    CHECK(skl_value_next_string(&value, &text, &length) == SKL_OK && length == 0);
    CHECK(skl_value_next_string(&value, &text, &length) == SKL_OK && length == 3 && memcmp(text, "t\0e", 3) == 0);
    CHECK_EQ_INT(skl_value_next_string(&value, &text, &length), SKL_NOT_FOUND);
    CHECK(value.count == 0 && value.size == 0);

    /* A value that its owner has damaged is still read within its size. */
    CHECK_EQ_INT(skl_gguf_find(gguf, "b.strings", &value), SKL_OK);
    value.size = 9;
    CHECK_EQ_INT(skl_value_next_string(&value, &text, &length), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_gguf_find(gguf, "b.u16", &value), SKL_OK);
    value.count = 1000;
    CHECK_EQ_INT(skl_value_int(&value, 3, &integer), SKL_NOT_FOUND);
    value.element_type = 99;
    CHECK_EQ_INT(skl_value_int(&value, 0, &integer), SKL_BAD_ARGUMENT);

    /* Arrays of arrays are validated and passed on as they are. */
    CHECK_EQ_INT(skl_gguf_find(gguf, "b.nested", &value), SKL_OK);
    CHECK(value.type == SKL_VALUE_ARRAY && value.element_type == SKL_VALUE_ARRAY && value.count == 2);
    CHECK_EQ_INT(value.size, 12 + 1 + 12 + 8 + 4);
}

static void check_tensor(const skl_gguf *gguf, const char *name, int type, int dims, const uint64_t *shape,
                         size_t offset, size_t size)
{
    skl_tensor tensor;
    int i;

    if (!CHECK_EQ_INT(skl_gguf_find_tensor(gguf, name, &tensor), SKL_OK)) return;
    CHECK_STR(tensor.name, name);
    CHECK_EQ_INT(tensor.type, type);
    CHECK_EQ_INT(tensor.dims, dims);
    for (i = 0; i < 4; i++) CHECK_EQ_INT(tensor.shape[i], i < dims ? shape[i] : 1);
    CHECK_EQ_INT(tensor.size, size);
    CHECK_EQ_INT(tensor.data[0], (7 * offset + 1) & 255);
    CHECK_EQ_INT(tensor.data[4], (7 * (offset + 4) + 1) & 255);
}

static void test_sample(void)
{
    static const uint64_t matrix[] = {3, 2}, blocks[] = {64, 2}, four[] = {2, 3, 4, 5}, row[] = {32}, bytes[] = {5};
    writer w = {NULL, 0, 0, {0}, 0};
    skl_gguf *gguf;
    skl_error error;
    skl_value value = {0, 0, 0, NULL, 0};
    skl_tensor tensor;
    const char *name = NULL;
    size_t length = 0;

    put_sample(&w);
    if (!CHECK_EQ_INT(open_memory(&gguf, w.data, w.size, &error), SKL_OK)) {
        puts(error.message);
        return;
    }
    test_scalar_getters(gguf);
    test_array_getters(gguf);
    check_tensor(gguf, "matrix", SKL_TYPE_F32, 2, matrix, 0, 24);
    check_tensor(gguf, "blocks", SKL_TYPE_Q4_0, 2, blocks, 64, 72);
    check_tensor(gguf, "four", SKL_TYPE_F16, 4, four, 192, 240);
    check_tensor(gguf, "listed", 6, 1, row, 448, 0);
    check_tensor(gguf, "bytes", SKL_TYPE_I8, 1, bytes, 512, 5);

    CHECK_EQ_INT(skl_gguf_key_count(gguf), 17);
    CHECK_EQ_INT(skl_gguf_key(gguf, 1, &name, &length, &value), SKL_OK);
    CHECK(length == 4 && memcmp(name, "a.u8", 4) == 0);
    CHECK(value.type == SKL_VALUE_U8 && value.element_type == SKL_VALUE_U8 && value.count == 1 && value.size == 1);
    CHECK_EQ_INT(skl_gguf_key(gguf, 17, &name, &length, &value), SKL_NOT_FOUND);
    CHECK_EQ_INT(skl_gguf_tensor(gguf, 4, &tensor), SKL_OK);
    CHECK_STR(tensor.name, "bytes");
    CHECK_EQ_INT(skl_gguf_tensor(gguf, 5, &tensor), SKL_NOT_FOUND);
    CHECK_EQ_INT(skl_gguf_find(gguf, "a.u", &value), SKL_NOT_FOUND); /* a prefix is not a name */
    CHECK_EQ_INT(skl_gguf_find(gguf, "a.u88", &value), SKL_NOT_FOUND);
    CHECK_EQ_INT(skl_gguf_find(gguf, "", &value), SKL_NOT_FOUND);
    CHECK_EQ_INT(skl_gguf_find_tensor(gguf, "matrix.", &tensor), SKL_NOT_FOUND);
    skl_gguf_close(gguf);
    free(w.data);
}

static void test_null_arguments(void)
{
    skl_gguf_desc desc = desc_zero();
    skl_gguf *gguf = NULL;
    skl_value value;
    skl_tensor tensor;
    const char *text;
    size_t length;
    int64_t integer;
    double real;

    CHECK_EQ_INT(skl_gguf_open(NULL, &desc, NULL), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_gguf_open(&gguf, NULL, NULL), SKL_BAD_ARGUMENT);
    skl_gguf_close(NULL);
    CHECK_EQ_INT(skl_gguf_key_count(NULL), 0);
    CHECK_EQ_INT(skl_gguf_tensor_count(NULL), 0);
    CHECK_EQ_INT(skl_gguf_key(NULL, 0, &text, &length, &value), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_gguf_find(NULL, "a", &value), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_gguf_tensor(NULL, 0, &tensor), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_gguf_find_tensor(NULL, "a", &tensor), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_value_int(NULL, 0, &integer), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_value_float(NULL, 0, &real), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_value_string(NULL, &text, &length), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_value_next_string(NULL, &text, &length), SKL_BAD_ARGUMENT);
}

/* Names, values per block and bytes per block as the format describes them; 0 bytes for types that are only listed. */
static void test_types(void)
{
    static const struct {
        int id;
        const char *name;
        size_t block, bytes;
    } types[] = {
        {0, "F32", 1, 4},        {1, "F16", 1, 2},        {2, "Q4_0", 32, 18},     {3, "Q4_1", 32, 20},
        {6, "Q5_0", 32, 0},      {7, "Q5_1", 32, 0},      {8, "Q8_0", 32, 34},     {9, "Q8_1", 32, 0},
        {10, "Q2_K", 256, 0},    {11, "Q3_K", 256, 0},    {12, "Q4_K", 256, 144},  {13, "Q5_K", 256, 176},
        {14, "Q6_K", 256, 210},  {15, "Q8_K", 256, 0},    {16, "IQ2_XXS", 256, 0}, {23, "IQ4_XS", 256, 0},
        {24, "I8", 1, 1},        {25, "I16", 1, 0},       {26, "I32", 1, 0},       {27, "I64", 1, 0},
        {28, "F64", 1, 0},       {29, "IQ1_M", 256, 0},   {30, "BF16", 1, 2},      {34, "TQ1_0", 256, 0},
        {35, "TQ2_0", 256, 0},   {39, "MXFP4", 32, 17},   {40, "NVFP4", 64, 0},    {41, "Q1_0", 128, 0},
        {42, "Q2_0", 64, 0},     {4, "?", 0, 0},          {5, "?", 0, 0},          {31, "?", 0, 0},
        {33, "?", 0, 0},         {36, "?", 0, 0},         {38, "?", 0, 0},         {43, "?", 0, 0},
        {-1, "?", 0, 0},         {INT_MAX, "?", 0, 0},    {INT_MIN, "?", 0, 0},
    };
    size_t i;

    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        CHECK_STR(skl_type_name(types[i].id), types[i].name);
        CHECK_EQ_INT(skl_type_block(types[i].id), types[i].block);
        CHECK_EQ_INT(skl_type_bytes(types[i].id), types[i].bytes);
    }
}

/* --- what bad files cannot do --- */

/* A file with one tensor "t" and data_bytes of data. */
static void put_one_tensor(writer *w, uint32_t dims, const uint64_t *shape, uint32_t type, uint64_t offset,
                           size_t data_bytes)
{
    put_header(w, 1, 0);
    put_tensor(w, "t", dims, shape, type, offset);
    put_data(w, 32, data_bytes);
}

static void put_alignment(writer *w, uint32_t type, uint64_t value, int bytes)
{
    static const uint64_t shape[] = {4};

    put_header(w, 1, 1);
    put_key(w, "general.alignment", type);
    put_uint(w, value, bytes);
    put_tensor(w, "t", 1, shape, SKL_TYPE_F32, 0);
    put_data(w, 65536, 16);
}

static void attack_header(writer *w)
{
    put_sample(w);
    w->data[0] = 'g';
    check_refused("wrong magic", w, "does not begin with the letters GGUF", "", 0);
    put_sample(w), patch(w, 4, 1, 4);
    check_refused("version 1", w, "version 1", "", 4);
    put_sample(w), patch(w, 4, 4, 4);
    check_refused("a version of the future", w, "version 4 is not known", "", 4);
    put_sample(w), patch(w, 4, 0, 4);
    check_refused("version 0", w, "version 0 is not known", "", 4);
    put_sample(w), patch(w, 4, 0x03000000, 4);
    check_refused("big-endian file", w, "big-endian", "", 4);
    put_sample(w), patch(w, 8, UINT64_C(1) << 63, 8);
    check_refused("tensor count times record size overflows", w, "9223372036854775808 tensors", "", 24);
    put_sample(w), patch(w, 16, UINT64_MAX, 8);
    check_refused("key count times record size overflows", w, "18446744073709551615 keys", "", 24);

    put_header(w, 0, 0);
    check_accepted("nothing but a header", w);
}

static void attack_keys(writer *w)
{
    char *name = (char *)malloc(70000);

    memset(name, 'k', 70000);
    put_header(w, 0, 1), put_u32_key(w, "", 1);
    check_refused("empty key", w, "is empty", "", 24);
    put_header(w, 0, 1), put_text(w, "a\0b", 3), put_uint(w, SKL_VALUE_U32, 4), put_uint(w, 1, 4);
    check_refused("zero byte in a key", w, "zero byte", "a?b", 24);
    put_header(w, 0, 1), put_text(w, name, 65535), put_uint(w, SKL_VALUE_U8, 4), put_uint(w, 1, 1);
    check_accepted("longest key", w);
    put_header(w, 0, 1), put_text(w, name, 65536), put_uint(w, SKL_VALUE_U8, 4), put_uint(w, 1, 1);
    name[79] = '\0';
    check_refused("key longer than the format allows", w, "65536 bytes; 65535 are allowed", name, 24);

    put_header(w, 0, 3), put_u32_key(w, "same", 1), put_u32_key(w, "other", 1), put_u32_key(w, "same", 1);
    check_refused("duplicate key", w, "two keys have the same name", "same", 24 + (8 + 4 + 8) + (8 + 5 + 8) + 8);
    put_header(w, 0, 1), put_key(w, "x", 13), put_uint(w, 0, 8);
    check_refused("value type that does not exist", w, "value type 13 does not exist", "x", 37);
    put_header(w, 0, 1), put_key(w, "x", UINT32_MAX), put_uint(w, 0, 8);
    check_refused("negative value type", w, "does not exist", "x", 37);
    put_header(w, 0, 1), put_key(w, "x", SKL_VALUE_BOOL), put_uint(w, 2, 1);
    check_refused("bool that is neither", w, "a bool is 2", "x", 37);
    put_header(w, 0, 1), put_array(w, "x", SKL_VALUE_BOOL, 3), put_uint(w, 0xff0100, 3);
    check_refused("bool that is neither, in an array", w, "a bool is 255", "x", 51);
    put_header(w, 0, 1), put_key(w, "\033[2J", SKL_VALUE_BOOL), put_uint(w, 2, 1);
    check_refused("terminal commands in a name", w, "(?[2J, byte 40)", "?[2J", 40);
    free(name);
}

static void attack_strings_and_arrays(writer *w)
{
    static const uint64_t lengths[] = {UINT64_C(1) << 31, UINT64_C(1) << 32, UINT64_C(1) << 63, UINT64_MAX - 1,
                                       UINT64_MAX};
    size_t i;

    for (i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        put_header(w, 0, 1), put_key(w, "x", SKL_VALUE_STRING), put_uint(w, lengths[i], 8), put_uint(w, 0, 8);
        check_refused("string length that wraps", w, "the file ends inside a string", "x", 45);
        put_header(w, 0, 1), put_uint(w, lengths[i], 8), put_uint(w, 0, 8);
        check_refused("key length that wraps", w, "the file ends inside the name of a key", "", 32);
        put_header(w, 0, 1), put_array(w, "x", SKL_VALUE_F64, lengths[i]), put_uint(w, 0, 8);
        check_refused("array count times element size overflows", w, "more than its remaining 8 bytes", "x", 49);
        put_header(w, 0, 1), put_array(w, "x", SKL_VALUE_STRING, lengths[i]), put_uint(w, 0, 8);
        check_refused("count of strings", w, "more than its remaining 8 bytes", "x", 49);
        put_header(w, 0, 1), put_array(w, "x", SKL_VALUE_ARRAY, lengths[i]), put_uint(w, 0, 8);
        check_refused("count of arrays", w, "more than its remaining 8 bytes", "x", 49);
    }
    /* 2^61 + 1 elements of 8 bytes are 8 bytes, modulo 2^64 */
    put_header(w, 0, 1), put_array(w, "x", SKL_VALUE_U64, (UINT64_C(1) << 61) + 1), put_uint(w, 0, 8);
    check_refused("array count that wraps to fit", w, "more than its remaining 8 bytes", "x", 49);
    put_header(w, 0, 1), put_array(w, "x", SKL_VALUE_U8, 0);
    check_accepted("empty array", w);
    put_header(w, 0, 1), put_array(w, "x", 77, 0);
    check_refused("empty array of a type that does not exist", w, "value type 77", "x", 49);

    put_header(w, 0, 1), put_array(w, "x", SKL_VALUE_ARRAY, 1);
    for (i = 0; i < 2; i++) put_uint(w, SKL_VALUE_ARRAY, 4), put_uint(w, 1, 8);
    put_uint(w, SKL_VALUE_U8, 4), put_uint(w, 1, 8), put_uint(w, 5, 1);
    check_accepted("arrays nested four deep", w);
    put_header(w, 0, 1), put_array(w, "x", SKL_VALUE_ARRAY, 1);
    for (i = 0; i < 50000; i++) put_uint(w, SKL_VALUE_ARRAY, 4), put_uint(w, 1, 8);
    check_refused("arrays nested to exhaust the stack", w, "nested more than 4 deep", "x", 49 + 3 * 12);
}

static void attack_alignment(writer *w)
{
    static const struct {
        uint32_t value;
        int good;
    } values[] = {{0, 0}, {1, 0}, {3, 0}, {4, 0}, {8, 1}, {24, 0}, {32, 1}, {4096, 1}, {65536, 1}, {131072, 0},
                  {0x80000000u, 0}, {0xffffffffu, 0}};
    size_t i;

    for (i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        put_alignment(w, SKL_VALUE_U32, values[i].value, 4);
        if (values[i].good) check_accepted("alignment", w);
        else check_refused("alignment", w, "it must be a power of two from 8 to 65536", "general.alignment", 53);
    }
    put_alignment(w, SKL_VALUE_U64, 32, 8);
    check_refused("alignment of the wrong type", w, "must be a u32", "general.alignment", 53);
    put_alignment(w, SKL_VALUE_I32, 32, 4);
    check_refused("signed alignment", w, "must be a u32", "general.alignment", 53);
    put_alignment(w, SKL_VALUE_STRING, 0, 8);
    check_refused("alignment that is a string", w, "must be a u32", "general.alignment", 53);
    put_alignment(w, SKL_VALUE_ARRAY, 0, 12);
    check_refused("alignment that is an empty array", w, "must be a u32", "general.alignment", 65);
}

static void attack_shapes(writer *w)
{
    static const uint64_t shapes[][4] = {
        {UINT64_C(1) << 63, 2, 1, 1},                                       /* products that wrap to 0 */
        {UINT64_C(1) << 32, UINT64_C(1) << 32, 1, 1},
        {UINT64_C(1) << 16, UINT64_C(1) << 16, UINT64_C(1) << 16, UINT64_C(1) << 16},
        {UINT64_C(0x5555555555555556), 3, 1, 1},                            /* to 2 */
        {UINT64_MAX, UINT64_MAX, 1, 1},                                     /* to 1 */
        {(UINT64_C(1) << 42) + 1, UINT64_C(1) << 22, 1, 1},                 /* to 2^22, past a guard that divides */
    };
    static const uint64_t whole[] = {4, 1, 1, 1}, wide[] = {UINT64_C(1) << 62}, negative[] = {UINT64_MAX};
    static const uint32_t bad_dims[] = {0, 5, 6, 0x80000000u, UINT32_MAX};
    static const uint32_t bad_types[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, 1000, 0x80000000u, UINT32_MAX};
    uint64_t shape[4];
    size_t i;

    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        put_one_tensor(w, 4, shapes[i], SKL_TYPE_I8, 0, 4096);
        check_refused("product of dimensions wraps", w, "more values than can be counted", "t", 24);
    }
    for (i = 0; i < 4; i++) {
        memcpy(shape, whole, sizeof(shape));
        shape[i] = 0;
        put_one_tensor(w, 4, shape, SKL_TYPE_F32, 0, 4096);
        check_refused("dimension of zero", w, "is zero", "t", 24);
    }
    shape[0] = UINT64_MAX, shape[1] = 0;
    put_one_tensor(w, 2, shape, SKL_TYPE_F32, 0, 4096);
    check_refused("dimension of zero in the overflow check", w, "is zero", "t", 24);
    put_one_tensor(w, 1, wide, SKL_TYPE_F32, 0, 4096);
    check_refused("bytes of a shape wrap", w, "more bytes than can be counted", "t", 24);
    put_one_tensor(w, 1, negative, SKL_TYPE_I8, 0, 4096);
    check_refused("dimension of minus one", w, "beyond the end of the file", "t", 32);

    for (i = 0; i < sizeof(bad_dims) / sizeof(bad_dims[0]); i++) {
        put_one_tensor(w, 1, whole, SKL_TYPE_F32, 0, 4096);
        patch(w, 33, bad_dims[i], 4);
        check_refused("number of dimensions", w, "1 to 4 are possible", "t", 24);
    }
    for (i = 0; i < sizeof(bad_types) / sizeof(bad_types[0]); i++) {
        put_one_tensor(w, 1, whole, bad_types[i], 0, 4096);
        check_refused("tensor type as a table index", w, "is not known", "t", 24);
    }
    shape[0] = 33, shape[1] = 32;
    put_one_tensor(w, 2, shape, SKL_TYPE_Q4_0, 0, 4096);
    check_refused("rows that blocks do not divide", w, "cannot be cut into Q4_0 blocks of 32", "t", 24);
    shape[0] = 128, shape[1] = 2;
    put_one_tensor(w, 2, shape, 10, 0, 4096);
    check_refused("the same for a type that is only listed", w, "cannot be cut into Q2_K blocks of 256", "t", 24);
}

static void attack_extents(writer *w)
{
    static const uint64_t four[] = {4}, eight[] = {8}, row[] = {256}, lie[] = {4096, 4096};
    static const uint64_t bad_offsets[] = {1, 16, 31, 33};
    size_t i;

    put_one_tensor(w, 1, four, SKL_TYPE_F32, 0, 16);
    check_accepted("tensor that ends with the file", w);
    put_one_tensor(w, 1, four, SKL_TYPE_F32, 0, 17);
    check_accepted("bytes after the data", w);
    put_one_tensor(w, 1, four, SKL_TYPE_F32, 0, 15);
    check_refused("tensor one byte longer than the file", w, "beyond the end of the file", "t", 32);
    put_one_tensor(w, 2, lie, SKL_TYPE_F32, 0, 64);
    check_refused("dimensions that lie about the bytes present", w, "67108864 bytes at offset 0", "t", 32);
    put_one_tensor(w, 1, four, SKL_TYPE_F32, 32, 32);
    check_refused("offset at the end", w, "beyond the end of the file", "t", 32);
    put_one_tensor(w, 1, four, SKL_TYPE_F32, UINT64_MAX - 31, 32);
    check_refused("offset that wraps", w, "beyond the end of the file", "t", 32);
    put_one_tensor(w, 1, row, 10, 0, 84);
    check_accepted("listed type that ends with the file", w);
    put_one_tensor(w, 1, row, 10, 0, 83);
    check_refused("listed type one byte longer than the file", w, "beyond the end of the file", "t", 32);
    for (i = 0; i < sizeof(bad_offsets) / sizeof(bad_offsets[0]); i++) {
        put_one_tensor(w, 1, four, SKL_TYPE_F32, bad_offsets[i], 4096);
        check_refused("offset off the alignment", w, "is not a multiple of 32", "t", 32);
    }

    put_header(w, 3, 0);
    put_tensor(w, "second", 1, four, SKL_TYPE_F32, 64), put_tensor(w, "first", 1, eight, SKL_TYPE_F32, 32);
    put_tensor(w, "zero", 1, eight, SKL_TYPE_F32, 0), put_data(w, 32, 80);
    check_accepted("neighbours in any order", w);
    put_header(w, 2, 0);
    put_tensor(w, "late", 1, four, SKL_TYPE_F32, 32), put_tensor(w, "long", 1, row, SKL_TYPE_I8, 0);
    put_data(w, 32, 256);
    check_refused("overlapping tensors", w, "overlaps the tensor \"long\"", "late", 96 + 32);
    put_header(w, 2, 0), put_tensor(w, "a", 1, four, SKL_TYPE_F32, 0), put_tensor(w, "b", 1, four, SKL_TYPE_F32, 0);
    put_data(w, 32, 256);
    check_refused("the same bytes twice", w, "overlaps the tensor \"a\"", "b", 96);
    put_header(w, 2, 0), put_tensor(w, "a", 1, four, SKL_TYPE_F32, 32), put_tensor(w, "b", 1, row, 10, 0);
    put_data(w, 32, 256);
    check_refused("overlap with a type that is only listed", w, "overlaps the tensor \"b\"", "a", 96 + 32);
}

static void attack_tensor_names(writer *w)
{
    static const uint64_t shape[] = {4};
    char name[66];

    memset(name, 'n', sizeof(name));
    name[64] = '\0';
    put_header(w, 1, 0), put_tensor(w, name, 1, shape, SKL_TYPE_F32, 0), put_data(w, 32, 16);
    check_accepted("longest tensor name", w);
    name[64] = 'n', name[65] = '\0';
    put_header(w, 1, 0), put_tensor(w, name, 1, shape, SKL_TYPE_F32, 0), put_data(w, 32, 16);
    check_refused("tensor name that overflows its array", w, "65 bytes; 64 are allowed", name, 24);
    put_header(w, 1, 0), put_tensor(w, "", 1, shape, SKL_TYPE_F32, 0), put_data(w, 32, 32);
    check_refused("empty tensor name", w, "is empty", "", 24);
    put_header(w, 1, 0), put_text(w, "t\0t", 3), put_uint(w, 1, 4), put_uint(w, 4, 8), put_uint(w, 0, 12);
    put_data(w, 32, 16);
    check_refused("zero byte in a tensor name", w, "zero byte", "t?t", 24);
    put_header(w, 2, 0), put_tensor(w, "t", 1, shape, SKL_TYPE_F32, 0), put_tensor(w, "t", 1, shape, SKL_TYPE_F32, 32);
    put_data(w, 32, 48);
    check_refused("duplicate tensor", w, "two tensors have the same name", "t", 24 + 33 + 8);
}

/* Very many names: whatever their order, neither sorting nor the search for duplicates may be quadratic. */
static void test_many_names(void)
{
    enum { MANY = 200000 };
    writer w = {NULL, 0, 0, {0}, 0};
    int order, i;

    for (order = 0; order < 3; order++) {
        skl_gguf *gguf;
        skl_value value;
        int64_t number = 0;

        put_header(&w, 0, MANY);
        for (i = 0; i < MANY; i++) {
            const int shuffled = (int)((int64_t)i * 77773 % MANY); /* 77773 and 200000 have no common factor */
            const int n = order == 0 ? i : order == 1 ? MANY - 1 - i : shuffled;
            char name[32];

            snprintf(name, sizeof(name), "prefix.%09d", n);
            put_u32_key(&w, name, (uint32_t)n);
        }
        if (!CHECK_EQ_INT(open_memory(&gguf, w.data, w.size, NULL), SKL_OK)) continue;
        for (i = 0; i < MANY; i += 997) {
            char name[32];

            snprintf(name, sizeof(name), "prefix.%09d", i);
            CHECK_EQ_INT(skl_gguf_find(gguf, name, &value), SKL_OK);
            CHECK(skl_value_int(&value, 0, &number) == SKL_OK && number == i);
        }
        skl_gguf_close(gguf);
    }
    free(w.data);
}

static void test_truncations(void)
{
    writer w = {NULL, 0, 0, {0}, 0};
    size_t size;

    put_sample(&w);
    for (size = 0; size < w.size; size++) {
        unsigned char *data = exact_copy(w.data, size);
        skl_gguf *gguf;
        skl_error error;
        ledger l;

        CHECK_EQ_INT(try_bytes(data, size, &gguf, &error, &l), SKL_BAD_FILE);
        free(data);
    }
    check_accepted("the whole sample", &w);
    free(w.data);
}

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n) /* FNV-1a */
{
    const unsigned char *b = (const unsigned char *)bytes;
    size_t i;

    for (i = 0; i < n; i++) hash = (hash ^ b[i]) * UINT64_C(1099511628211);
    return hash;
}

/* Reads everything that an opened file hands out; under a sanitizer this shows that it is all there. Returns a hash. */
static uint64_t read_everything(const skl_gguf *gguf)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    size_t i, j;

    for (i = 0; i < skl_gguf_key_count(gguf); i++) {
        const char *name, *text;
        size_t length, n;
        skl_value value, found;
        int64_t integer = 0;
        double real = 0.0;

        CHECK_EQ_INT(skl_gguf_key(gguf, i, &name, &length, &value), SKL_OK);
        hash = hash_bytes(hash, name, length);
        hash = hash_bytes(hash, value.data, value.size);
        hash = hash_bytes(hash, &value.count, sizeof(value.count));
        for (j = 0; j < value.count && j < 100; j++) {
            skl_value_int(&value, j, &integer);
            skl_value_float(&value, j, &real);
        }
        skl_value_string(&value, &text, &n);
        found = value;
        for (j = 0; skl_value_next_string(&found, &text, &n) == SKL_OK; j++) {
            hash = hash_bytes(hash, text, n);
        }
        if (value.type == SKL_VALUE_ARRAY && value.element_type == SKL_VALUE_STRING) CHECK_EQ_INT(j, value.count);
    }
    for (i = 0; i < skl_gguf_tensor_count(gguf); i++) {
        skl_tensor tensor, found;

        CHECK_EQ_INT(skl_gguf_tensor(gguf, i, &tensor), SKL_OK);
        CHECK(memchr(tensor.name, 0, sizeof(tensor.name)) != NULL);
        CHECK(skl_gguf_find_tensor(gguf, tensor.name, &found) == SKL_OK && found.data == tensor.data);
        hash = hash_bytes(hash, tensor.name, strlen(tensor.name));
        hash = hash_bytes(hash, tensor.shape, sizeof(tensor.shape));
        hash = hash_bytes(hash, tensor.data, (size_t)tensor.size);
    }
    return hash;
}

/* Hostile bytes in a block of their exact size: refused, or opened and wholly readable; never a leak. */
static skl_status survive(const unsigned char *bytes, size_t size)
{
    unsigned char *data = exact_copy(bytes, size);
    skl_gguf *gguf;
    skl_error error;
    ledger l;
    const skl_status status = try_bytes(data, size, &gguf, &error, &l);

    CHECK(status == SKL_OK || status == SKL_BAD_FILE);
    if (status == SKL_OK) read_everything(gguf);
    skl_gguf_close(gguf);
    CHECK_EQ_INT(l.blocks, 0);
    free(data);
    return status;
}

/* Every count and length of a valid file, replaced by every value that has broken a parser. */
static void test_length_fields(void)
{
    writer w = {NULL, 0, 0, {0}, 0};
    size_t i, j;

    put_sample(&w);
    CHECK_EQ_INT(w.n_counts, 2 + 17 + 1 + 4 + 3 + 3 + 5 + 10); /* header, keys, their values, tensors, dimensions */
    for (i = 0; i < w.n_counts; i++) {
        const uint64_t left = w.size - w.counts[i] - 8;
        const uint64_t values[] = {0, 1, left, left + 1, UINT64_C(1) << 31, UINT64_C(1) << 63, UINT64_MAX};

        for (j = 0; j < sizeof(values) / sizeof(values[0]); j++) {
            skl_status status;

            put_sample(&w);
            patch(&w, w.counts[i], values[j], 8);
            status = survive(w.data, w.size);
            if (values[j] > left) CHECK_EQ_INT(status, SKL_BAD_FILE);
        }
    }
    free(w.data);
}

static uint64_t random_next(uint64_t *state) /* xorshift64* */
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

static void test_random_file(void)
{
    const size_t size = 1 << 20;
    unsigned char *data = (unsigned char *)malloc(size);
    uint64_t state = 2601;
    size_t i;

    for (i = 0; i < size; i++) data[i] = (unsigned char)(random_next(&state) >> 56);
    CHECK_EQ_INT(survive(data, size), SKL_BAD_FILE);
    memcpy(data, "GGUF\3\0\0\0", 8); /* noise behind a good beginning */
    CHECK_EQ_INT(survive(data, size), SKL_BAD_FILE);
    memset(data + 8, 0, 16), data[9] = 16, data[17] = 16;
    CHECK_EQ_INT(survive(data, size), SKL_BAD_FILE);
    memset(data + 24, 0, size - 24); /* and a megabyte of empty records */
    CHECK_EQ_INT(survive(data, size), SKL_BAD_FILE);
    free(data);
}

static void test_mutations(void)
{
    enum { ROUNDS = 20000 };
    static const uint64_t favourites[] = {0, 1, 2, 4, 8, 9, 127, 128, 255, 256, 0x7fffffff, 0x80000000u, 0xffffffffu,
                                          UINT64_C(1) << 63, UINT64_MAX};
    writer w = {NULL, 0, 0, {0}, 0};
    uint64_t state = 17888;
    unsigned char *mutant;
    long opened = 0;
    int round;

    put_sample(&w);
    mutant = (unsigned char *)malloc(w.size);
    for (round = 0; round < ROUNDS; round++) {
        const size_t header = w.size - 517; /* most of the interest lies before the data */
        size_t size = w.size, edits = 1 + (size_t)(random_next(&state) % 4);

        memcpy(mutant, w.data, w.size);
        while (edits-- > 0) {
            const size_t at = (size_t)(random_next(&state) % header);
            const uint64_t pick = random_next(&state);

            if (pick % 4 == 0) mutant[at] = (unsigned char)(pick >> 32);
            else if (pick % 4 == 1) mutant[at] ^= (unsigned char)(1u << (pick >> 32) % 8);
            else if (pick % 4 == 2) mutant[at] = mutant[(pick >> 8) % header];
            else {
                const uint64_t value = favourites[(pick >> 8) % (sizeof(favourites) / sizeof(favourites[0]))];
                size_t i;

                for (i = 0; i < 8 && at + i < w.size; i++) mutant[at + i] = (unsigned char)(value >> (8 * i));
            }
        }
        if (round % 8 == 0) size = (size_t)(random_next(&state) % (w.size + 1));
        if (survive(mutant, size) == SKL_OK) opened++;
    }
    CHECK(opened > ROUNDS / 100 && opened < ROUNDS); /* the mutants are neither all alike nor all harmless */
    free(mutant);
    free(w.data);
}

/* --- memory --- */

/* Fails the first, second, ... allocation of an open call until it succeeds. */
static void fail_allocations(skl_gguf_desc *desc)
{
    ledger l;
    long n;

    for (n = 1;; n++) {
        skl_gguf *gguf = NULL;
        skl_error error;
        skl_status status;

        desc->allocator = ledger_allocator(&l);
        l.fail_at = n;
        status = skl_gguf_open(&gguf, desc, &error);
        if (l.calls < n) {
            CHECK_EQ_INT(status, SKL_OK);
            skl_gguf_close(gguf);
            CHECK_EQ_INT(l.blocks, 0);
            break;
        }
        CHECK_EQ_INT(status, SKL_OUT_OF_MEMORY);
        CHECK(gguf == NULL);
        CHECK_EQ_INT(l.blocks, 0);
        check_error(&error, SKL_OUT_OF_MEMORY, SIZE_MAX);
    }
    CHECK(n > 5);
}

static void test_allocator_rules(void)
{
    writer w = {NULL, 0, 0, {0}, 0};
    skl_gguf_desc desc = desc_zero();
    skl_gguf *gguf = NULL;
    skl_error error;
    ledger l;

    put_sample(&w);
    desc.source.data = w.data;
    desc.source.data_size = w.size;
    fail_allocations(&desc);
    desc.allocator = ledger_allocator(&l);
    desc.allocator.free = NULL;
    CHECK_EQ_INT(skl_gguf_open(&gguf, &desc, &error), SKL_BAD_ARGUMENT);
    check_error(&error, SKL_BAD_ARGUMENT, 0);
    desc.allocator = ledger_allocator(&l);
    desc.allocator.alloc = NULL;
    CHECK_EQ_INT(skl_gguf_open(&gguf, &desc, &error), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(l.calls, 0);
    CHECK(gguf == NULL);
    free(w.data);
}

static void test_desc_rules(void)
{
    struct {
        skl_gguf_desc desc;
        unsigned char future[16]; /* fields that this version does not have */
    } grown;
    writer w = {NULL, 0, 0, {0}, 0};
    skl_gguf *gguf = NULL;
    skl_error error;

    put_sample(&w);
    memset(&grown, 0, sizeof(grown));
    grown.desc.source.data = w.data;
    grown.desc.source.data_size = w.size;
    grown.desc.size = sizeof(skl_gguf_desc);
    CHECK_EQ_INT(skl_gguf_open(&gguf, &grown.desc, &error), SKL_OK);
    skl_gguf_close(gguf);
    grown.desc.size = sizeof(grown);
    CHECK_EQ_INT(skl_gguf_open(&gguf, &grown.desc, &error), SKL_OK);
    skl_gguf_close(gguf);
    gguf = NULL;
    grown.future[15] = 1; /* asks for something unknown */
    CHECK_EQ_INT(skl_gguf_open(&gguf, &grown.desc, &error), SKL_BAD_ARGUMENT);
    grown.desc.size = sizeof(skl_gguf_desc) - 1;
    CHECK_EQ_INT(skl_gguf_open(&gguf, &grown.desc, &error), SKL_BAD_ARGUMENT);
    grown.desc.size = (size_t)-1; /* never initialised */
    CHECK_EQ_INT(skl_gguf_open(&gguf, &grown.desc, &error), SKL_BAD_ARGUMENT);
    grown.desc.size = 0;
    grown.desc.source.path = "also a path";
    CHECK_EQ_INT(skl_gguf_open(&gguf, &grown.desc, &error), SKL_BAD_ARGUMENT);
    memset(&grown, 0, sizeof(grown)); /* no source at all */
    CHECK_EQ_INT(skl_gguf_open(&gguf, &grown.desc, &error), SKL_BAD_ARGUMENT);
    check_error(&error, SKL_BAD_ARGUMENT, 0);
    grown.desc.source.data = w.data; /* nothing in it */
    CHECK_EQ_INT(skl_gguf_open(&gguf, &grown.desc, &error), SKL_BAD_FILE);
    CHECK(gguf == NULL);
    free(w.data);
}

/* --- helpers --- */

static void test_errors(void)
{
    char long_text[600];
    skl_error error;
    size_t i, j;

    CHECK_EQ_INT(skl__fail(NULL, SKL_IO, 0, "x", "no struct, no crash"), SKL_IO);
    CHECK_EQ_INT(skl__fail(&error, SKL_BAD_MODEL, 12, "blk.0", "%d heads", 3), SKL_BAD_MODEL);
    CHECK_STR(error.message, "3 heads (blk.0, byte 12)");
    CHECK_STR(error.where, "blk.0");
    CHECK_EQ_INT(error.offset, 12);
    skl__fail(&error, SKL_BAD_MODEL, SKL_NO_OFFSET, "context", "too long");
    CHECK_STR(error.message, "too long (context)");
    skl__fail(&error, SKL_BAD_MODEL, 0, NULL, "broken");
    CHECK_STR(error.message, "broken (byte 0)");
    skl__fail(&error, SKL_BAD_MODEL, SKL_NO_OFFSET, "", "broken");
    CHECK_STR(error.message, "broken");

    memset(long_text, 'm', sizeof(long_text));
    long_text[599] = '\0';
    skl__fail(&error, SKL_IO, UINT64_MAX - 1, long_text, "%s", long_text);
    CHECK_EQ_INT(strlen(error.message), 255);
    CHECK_EQ_INT(strlen(error.where), 79);
    CHECK(strstr(error.message, ", byte 18446744073709551614)") != NULL);
    for (i = 0; i < 4; i++) { /* cut at every place of a two-byte character: none is cut in half */
        memset(long_text, 'm', i);
        memset(long_text + i, 0xc3, sizeof(long_text) - i - 1);
        for (j = i + 1; j < 599; j += 2) long_text[j] = (char)0xa9;
        long_text[599] = '\0';
        long_text[100] = 'x';
        skl__fail(&error, SKL_IO, SKL_NO_OFFSET, NULL, "%s", long_text);
        CHECK_EQ_INT(strlen(error.message), 101);
    }
    CHECK_STR(skl_status_string(SKL_OK), "ok");
    CHECK_STR(skl_status_string(SKL_NOT_FINITE), "not finite");
    CHECK_STR(skl_status_string((skl_status)99), "unknown status");
}

static void test_arithmetic(void)
{
    uint64_t r = 0;

    CHECK(skl__add(UINT64_MAX - 1, 1, &r) && r == UINT64_MAX);
    CHECK(!skl__add(UINT64_MAX, 1, &r) && !skl__add(1, UINT64_MAX, &r));
    CHECK(skl__multiply(0, UINT64_MAX, &r) && r == 0);
    CHECK(skl__multiply(UINT64_MAX, 0, &r) && r == 0);
    CHECK(skl__multiply(0xffffffffu, UINT64_C(0x100000001), &r) && r == UINT64_MAX); /* (2^32 - 1)(2^32 + 1) */
    CHECK(!skl__multiply(UINT64_C(1) << 32, UINT64_C(1) << 32, &r));
    CHECK(skl__round_up(0, 32, &r) && r == 0);
    CHECK(skl__round_up(33, 32, &r) && r == 64);
    CHECK(skl__round_up(UINT64_MAX - 31, 32, &r) && r == UINT64_MAX - 31);
    CHECK(!skl__round_up(UINT64_MAX - 30, 32, &r));
}

static void test_cursor(void)
{
    static const unsigned char bytes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 0, 0};
    skl__cursor cursor;
    skl__name string;

    memset(&cursor, 0, sizeof(cursor));
    cursor.data = bytes;
    cursor.size = sizeof(bytes);
    CHECK_EQ_INT(skl__take_u32(&cursor), 0x04030201);
    CHECK_EQ_INT(skl__left(&cursor), 8);
    CHECK(skl__take_u64(&cursor) == UINT64_C(0x0000020908070605));
    CHECK(skl__left(&cursor) == 0 && !cursor.failed);
    CHECK(skl__take(&cursor, 0) == bytes + sizeof(bytes) && !cursor.failed);
    cursor.position = 9;
    CHECK_EQ_INT(skl__take_u32(&cursor), 0); /* three bytes are left */
    CHECK(cursor.failed && cursor.position == 9 && skl__left(&cursor) == 0);
    CHECK(skl__take(&cursor, 1) == NULL); /* one would be there, but failure stays */
    string = skl__take_string(&cursor);
    CHECK(string.text == NULL && string.length == 0);
}

/* --- files --- */

#if !defined(_WIN32)

typedef struct paths {
    char folder[64], file[96], window[96], empty[96], missing[96], fifo[96];
} paths;

/* lead bytes of something else, the file, and a tail. */
static void write_file(const char *path, const writer *w, size_t lead, size_t tail)
{
    FILE *f = fopen(path, "wb");
    size_t i;

    if (!CHECK(f != NULL)) return;
    for (i = 0; i < lead; i++) fputc('#', f);
    if (w) CHECK_EQ_INT(fwrite(w->data, 1, w->size, f), w->size);
    for (i = 0; i < tail; i++) fputc('!', f);
    fclose(f);
}

static uint64_t hash_of(const skl_gguf_desc *desc, const char *what)
{
    skl_gguf *gguf = NULL;
    skl_error error;
    uint64_t hash;

    if (!CHECK_EQ_INT(skl_gguf_open(&gguf, desc, &error), SKL_OK)) {
        printf("  in \"%s\": %s\n", what, error.message);
        return 0;
    }
    CHECK((gguf->copy != NULL) == (!desc->source.data && (desc->source.read || refuse_maps)));
    CHECK((gguf->mapping != NULL) == (!desc->source.data && !gguf->copy));
    if (gguf->copy) CHECK_EQ_INT((uintptr_t)gguf->base % 64, 0);
    hash = read_everything(gguf);
    skl__gguf_release_pages(gguf, gguf->base, gguf->length);
    CHECK(read_everything(gguf) == hash); /* released pages come back as they were */
    skl_gguf_close(gguf);
    return hash;
}

static void check_io(const skl_source *source, skl_status status, const char *reason)
{
    skl_gguf_desc desc = desc_zero();
    skl_gguf *gguf = NULL;
    skl_error error;
    ledger l;
    int read;

    for (read = 0; read < 2; read++) {
        desc.source = *source;
        desc.source.read = read;
        desc.allocator = ledger_allocator(&l);
        memset(&error, 0, sizeof(error));
        CHECK_EQ_INT(skl_gguf_open(&gguf, &desc, &error), status);
        if (!CHECK(strstr(error.message, reason) != NULL)) printf("  the message is: %s\n", error.message);
        CHECK(gguf == NULL);
        CHECK_EQ_INT(l.blocks, 0);
    }
}

/* Resident bytes of the mapping that holds an address, as the system counts them; -1 where it does not say. */
static long resident_bytes(const void *address)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    unsigned long begin, end, size;
    long resident = -1;
    char line[512];
    int inside = 0;

    while (file && resident < 0 && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) inside = (uintptr_t)address >= begin && (uintptr_t)address < end;
        else if (inside && sscanf(line, "Rss: %lu kB", &size) == 1) resident = (long)size * 1024;
    }
    if (file) fclose(file);
    return resident;
}

/* Pages that are released leave the process. */
static void test_release(const paths *p, const writer *w)
{
    skl_gguf_desc desc = desc_zero();
    skl_gguf *gguf = NULL;
    volatile unsigned char touched;
    long before;
    size_t i;

    write_file(p->window, w, 0, (size_t)1 << 20);
    desc.source.path = p->window;
    if (!CHECK_EQ_INT(skl_gguf_open(&gguf, &desc, NULL), SKL_OK)) return;
    for (i = 0; i < gguf->length; i += 4096) touched = gguf->base[i];
    (void)touched;
    before = resident_bytes(gguf->base);
    skl__gguf_release_pages(gguf, gguf->base, gguf->length);
    if (gguf->mapping && before >= 0) {
        CHECK(before >= 1L << 20);
        CHECK(resident_bytes(gguf->base) < before / 4);
    }
    skl_gguf_close(gguf);
}

/* Path, memory, descriptor with offset, mapped or read: the same views. */
static void test_sources(const paths *p, writer *w)
{
    static const size_t leads[] = {0, 1, 13, 4095, 4096, 4109, 65536, 70001};
    skl_gguf_desc desc = desc_zero();
    uint64_t wanted;
    size_t i;
    int read;

    desc.source.data = w->data;
    desc.source.data_size = w->size;
    wanted = hash_of(&desc, "memory");
    for (read = 0; read < 2; read++) {
        desc = desc_zero();
        desc.source.read = read;
        desc.source.path = p->file;
        CHECK(hash_of(&desc, "path") == wanted);
    }
    fail_allocations(&desc); /* of the read kind */
    for (i = 0; i < sizeof(leads) / sizeof(leads[0]); i++) {
        write_file(p->window, w, leads[i], 5000);
        for (read = 0; read < 2; read++) {
            const int fd = open(p->window, O_RDONLY);

            desc = desc_zero();
            desc.source.use_fd = 1;
            desc.source.fd = fd;
            desc.source.fd_offset = leads[i];
            desc.source.fd_length = w->size;
            desc.source.read = read;
            CHECK_EQ_INT(lseek(fd, 77, SEEK_SET), 77);
            CHECK(hash_of(&desc, "window of a descriptor") == wanted);
            CHECK_EQ_INT(lseek(fd, 0, SEEK_CUR), 77); /* the caller's position is his */
            desc.source.fd_length = 0;                /* up to the end, which has bytes after the data */
            CHECK(hash_of(&desc, "descriptor up to the end") == wanted);
            close(fd);
        }
    }
}

/* A descriptor may be closed, and a file unlinked, once it is open. */
static void test_lifetimes(const paths *p, const writer *w)
{
    skl_gguf_desc desc = desc_zero();
    skl_gguf *gguf = NULL;
    uint64_t before;

    write_file(p->window, w, 10, 0);
    desc.source.use_fd = 1;
    desc.source.fd = open(p->window, O_RDONLY);
    desc.source.fd_offset = 10;
    CHECK_EQ_INT(skl_gguf_open(&gguf, &desc, NULL), SKL_OK);
    before = read_everything(gguf);
    close(desc.source.fd);
    unlink(p->window);
    CHECK(read_everything(gguf) == before);
    skl_gguf_close(gguf);
}

static void test_bad_sources(const paths *p, const writer *w)
{
    skl_source source;

    memset(&source, 0, sizeof(source));
    source.path = p->missing;
    check_io(&source, SKL_IO, "there is no such file");
    source.path = p->folder;
    check_io(&source, SKL_IO, "is a directory");
    source.path = p->empty;
    check_io(&source, SKL_BAD_FILE, "is empty");
    source.path = p->fifo; /* nobody writes to it: must not wait */
    check_io(&source, SKL_IO, "is not a regular file");
    source.path = "";
    check_io(&source, SKL_IO, "there is no such file");

    memset(&source, 0, sizeof(source));
    source.use_fd = 1;
    source.fd = -1;
    check_io(&source, SKL_IO, "is not open for reading");
    source.fd = open(p->file, O_WRONLY);
    check_io(&source, SKL_IO, "cannot be read");
    close(source.fd);
    source.fd = open(p->file, O_RDONLY);
    source.fd_offset = w->size + 1;
    check_io(&source, SKL_BAD_ARGUMENT, "beyond the end");
    source.fd_offset = UINT64_MAX;
    check_io(&source, SKL_BAD_ARGUMENT, "beyond the end");
    source.fd_offset = w->size;
    check_io(&source, SKL_BAD_FILE, "is empty");
    source.fd_offset = 1;
    source.fd_length = w->size;
    check_io(&source, SKL_BAD_ARGUMENT, "beyond the end");
    source.fd_length = UINT64_MAX;
    check_io(&source, SKL_BAD_ARGUMENT, "beyond the end");
    source.fd_length = 0; /* not the start of a GGUF */
    check_io(&source, SKL_BAD_FILE, "does not begin with the letters GGUF");
    source.fd_offset = 0;
    source.fd_length = 100; /* only a part of one */
    check_io(&source, SKL_BAD_FILE, "");
    close(source.fd);
}

static void test_read_only(const paths *p)
{
    skl_gguf_desc desc = desc_zero();
    int read;

    CHECK_EQ_INT(chmod(p->file, 0444), 0);
    CHECK_EQ_INT(chmod(p->folder, 0555), 0);
    desc.source.path = p->file;
    for (read = 0; read < 2; read++) {
        desc.source.read = read;
        CHECK(hash_of(&desc, "read-only file in a read-only folder") != 0);
    }
    CHECK_EQ_INT(chmod(p->folder, 0755), 0);
}

static void test_files(void)
{
    writer w = {NULL, 0, 0, {0}, 0};
    const char *base = getenv("TMPDIR");
    paths p;

    snprintf(p.folder, sizeof(p.folder), "%.30s/test_gguf.%ld", base ? base : "/tmp", (long)getpid());
    snprintf(p.file, sizeof(p.file), "%s/sample.gguf", p.folder);
    snprintf(p.window, sizeof(p.window), "%s/window.bin", p.folder);
    snprintf(p.empty, sizeof(p.empty), "%s/empty.gguf", p.folder);
    snprintf(p.missing, sizeof(p.missing), "%s/missing.gguf", p.folder);
    snprintf(p.fifo, sizeof(p.fifo), "%s/fifo.gguf", p.folder);
    if (!CHECK_EQ_INT(mkdir(p.folder, 0755), 0)) return;

    put_sample(&w);
    write_file(p.file, &w, 0, 0);
    write_file(p.empty, NULL, 0, 0);
    CHECK_EQ_INT(mkfifo(p.fifo, 0644), 0);
    test_sources(&p, &w);
    test_release(&p, &w);
    for (fake_page = 16384; fake_page <= 65536; fake_page *= 4) test_sources(&p, &w);
    fake_page = 0;
    refuse_maps = 1;
    test_sources(&p, &w);
    refuse_maps = 0;
    test_lifetimes(&p, &w);
    test_bad_sources(&p, &w);
    test_read_only(&p);

    unlink(p.file), unlink(p.empty), unlink(p.fifo), unlink(p.window);
    CHECK_EQ_INT(rmdir(p.folder), 0);
    free(w.data);
}

#else

static void test_files(void)
{
}

#endif

int main(void)
{
    writer w = {NULL, 0, 0, {0}, 0};

    test_errors();
    test_arithmetic();
    test_cursor();
    test_types();
    test_minimal_file();
    test_sample();
    test_null_arguments();
    attack_header(&w);
    attack_keys(&w);
    attack_strings_and_arrays(&w);
    attack_alignment(&w);
    attack_shapes(&w);
    attack_extents(&w);
    attack_tensor_names(&w);
    free(w.data);
    test_many_names();
    test_truncations();
    test_length_fields();
    test_random_file();
    test_mutations();
    test_allocator_rules();
    test_desc_rules();
    test_files();
    return test_finish();
}
