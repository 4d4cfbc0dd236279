/* fuzz_gguf.c - any bytes as a GGUF file: opened, and every view of what opened is read to its end. */
#define SINKLESS_IMPLEMENTATION
#include "../../sinkless.h"
#include "fuzz.h"

static volatile unsigned char sink;

/* Reads every byte of a view. */
static void touch(const void *bytes, uint64_t size)
{
    const unsigned char *b = (const unsigned char *)bytes;
    uint64_t i;

    for (i = 0; i < size; i++) sink = (unsigned char)(sink ^ b[i]);
}

static void read_value(skl_value value)
{
    const char *text;
    size_t length;
    int64_t integer;
    double number;
    uint64_t i;

    touch(value.data, value.size);
    for (i = 0; i < value.count && i < 64; i++) {
        skl_value_int(&value, i, &integer);
        skl_value_float(&value, i, &number);
    }
    FUZZ_REQUIRE(skl_value_int(&value, value.count, &integer) != SKL_OK);
    if (skl_value_string(&value, &text, &length) == SKL_OK) touch(text, length);
    while (skl_value_next_string(&value, &text, &length) == SKL_OK) touch(text, length);
}

static void read_keys(const skl_gguf *gguf)
{
    const size_t keys = skl_gguf_key_count(gguf);
    size_t i, length;

    for (i = 0; i < keys; i++) {
        const char *name;
        skl_value value;

        FUZZ_REQUIRE(skl_gguf_key(gguf, i, &name, &length, &value) == SKL_OK);
        touch(name, length);
        read_value(value);
    }
}

/* A block of every tensor through its conversion too. */
static void read_tensors(const skl_gguf *gguf)
{
    const size_t tensors = skl_gguf_tensor_count(gguf);
    size_t i;

    for (i = 0; i < tensors; i++) {
        skl_tensor tensor, found;
        float values[256];
        size_t block;

        FUZZ_REQUIRE(skl_gguf_tensor(gguf, i, &tensor) == SKL_OK);
        FUZZ_REQUIRE(skl_gguf_find_tensor(gguf, tensor.name, &found) == SKL_OK && found.data == tensor.data);
        touch(tensor.data, tensor.size);
        block = skl_type_block(tensor.type);
        if (tensor.size && tensor.size >= skl_type_bytes(tensor.type) && block <= 256)
            skl_dequantize(tensor.type, tensor.data, block, values);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    skl_gguf_desc desc = {0};
    skl_gguf *gguf = NULL;
    skl_error error;

    desc.source.data = data;
    desc.source.data_size = size;
    if (skl_gguf_open(&gguf, &desc, &error) != SKL_OK) {
        FUZZ_REQUIRE(memchr(error.message, 0, sizeof error.message) && error.message[0]);
        FUZZ_REQUIRE(error.offset == SKL_NO_OFFSET || error.offset <= size);
        return 0;
    }
    read_keys(gguf);
    read_tensors(gguf);
    skl_gguf_close(gguf);
    return 0;
}
