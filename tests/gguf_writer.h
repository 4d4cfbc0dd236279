/* gguf_writer.h - writes GGUF files value by value, sharing nothing with the reader, and changes existing ones:
 *
 *     draft d;                          keys and tensors of an open file, as lists that may be changed
 *     draft_take(&d, gguf);
 *     draft_key(&d, "llama.block_count")->type = SKL_VALUE_STRING;
 *     draft_write(&d, &w);              w.data, w.size
 *
 * Include it after sinkless.h.
 */
#ifndef SINKLESS_GGUF_WRITER_H
#define SINKLESS_GGUF_WRITER_H

#include <stdlib.h>
#include <string.h>

enum { MAX_COUNTS = 128 };

typedef struct writer {
    unsigned char *data;       /* [capacity], size used */
    size_t size, capacity;
    size_t counts[MAX_COUNTS]; /* where the u64 counts and lengths lie */
    size_t n_counts;
} writer;

static inline void put(writer *w, const void *bytes, size_t n)
{
    if (w->size + n > w->capacity) {
        w->capacity = 2 * (w->size + n);
        w->data = (unsigned char *)realloc(w->data, w->capacity);
    }
    if (n) memcpy(w->data + w->size, bytes, n);
    w->size += n;
}

static inline void put_uint(writer *w, uint64_t value, int bytes)
{
    int i;

    for (i = 0; i < bytes; i++) {
        const unsigned char byte = (unsigned char)(i < 8 ? value >> (8 * i) : 0);
        put(w, &byte, 1);
    }
}

static inline void put_count(writer *w, uint64_t value)
{
    if (w->n_counts < MAX_COUNTS) w->counts[w->n_counts++] = w->size;
    put_uint(w, value, 8);
}

static inline void put_text(writer *w, const char *text, size_t length)
{
    put_count(w, length);
    put(w, text, length);
}

static inline void put_string(writer *w, const char *text)
{
    put_text(w, text, strlen(text));
}

static inline void put_header(writer *w, uint64_t tensors, uint64_t keys)
{
    w->size = w->n_counts = 0;
    put(w, "GGUF", 4);
    put_uint(w, 3, 4);
    put_count(w, tensors);
    put_count(w, keys);
}

/* A key up to its value, which follows. */
static inline void put_key(writer *w, const char *name, uint32_t type)
{
    put_string(w, name);
    put_uint(w, type, 4);
}

static inline void put_array(writer *w, const char *name, uint32_t element_type, uint64_t count)
{
    put_key(w, name, SKL_VALUE_ARRAY);
    put_uint(w, element_type, 4);
    put_count(w, count);
}

static inline void put_u32_key(writer *w, const char *name, uint32_t value)
{
    put_key(w, name, SKL_VALUE_U32);
    put_uint(w, value, 4);
}

/* shape [dims] */
static inline void put_tensor(writer *w, const char *name, uint32_t dims, const uint64_t *shape, uint32_t type,
                       uint64_t offset)
{
    uint32_t i;

    put_string(w, name);
    put_uint(w, dims, 4);
    for (i = 0; i < dims; i++) put_count(w, shape[i]);
    put_uint(w, type, 4);
    put_uint(w, offset, 8);
}

static inline void patch(writer *w, size_t at, uint64_t value, int bytes)
{
    int i;

    for (i = 0; i < bytes; i++) w->data[at + (size_t)i] = (unsigned char)(value >> (8 * i));
}

/* --- changing a file --- */

enum { DRAFT_KEYS = 96, DRAFT_TENSORS = 256 };

typedef struct draft_entry {
    char name[128];
    skl_value value;           /* as in the file: data is the encoded value */
} draft_entry;

typedef struct draft {
    draft_entry keys[DRAFT_KEYS];
    skl_tensor tensors[DRAFT_TENSORS];
    size_t key_count, tensor_count;
} draft;

/* What a file holds; data stays where it is. */
static inline void draft_take(draft *d, const skl_gguf *gguf)
{
    const char *name;
    size_t length;

    memset(d, 0, sizeof *d);
    while (d->key_count < DRAFT_KEYS &&
           skl_gguf_key(gguf, d->key_count, &name, &length, &d->keys[d->key_count].value) == SKL_OK) {
        memcpy(d->keys[d->key_count].name, name, length < 127 ? length : 127);
        d->key_count++;
    }
    while (d->tensor_count < DRAFT_TENSORS &&
           skl_gguf_tensor(gguf, d->tensor_count, &d->tensors[d->tensor_count]) == SKL_OK) d->tensor_count++;
}

/* The entry of a key; a new one, empty, if there is none. */
static inline skl_value *draft_key(draft *d, const char *name)
{
    size_t i;

    for (i = 0; i < d->key_count; i++)
        if (strcmp(d->keys[i].name, name) == 0) return &d->keys[i].value;
    memset(&d->keys[i], 0, sizeof d->keys[i]);
    strncpy(d->keys[i].name, name, sizeof d->keys[i].name - 1);
    d->key_count++;
    return &d->keys[i].value;
}

static inline void draft_drop_key(draft *d, const char *name)
{
    size_t i;

    for (i = 0; i < d->key_count; i++)
        if (strcmp(d->keys[i].name, name) == 0) d->keys[i] = d->keys[--d->key_count];
}

/* NULL if there is none. */
static inline skl_tensor *draft_tensor(draft *d, const char *name)
{
    size_t i;

    for (i = 0; i < d->tensor_count; i++)
        if (strcmp(d->tensors[i].name, name) == 0) return &d->tensors[i];
    return NULL;
}

/* data [size], encoded; arrays need element_type and count besides. */
static inline void draft_set(draft *d, const char *name, int type, const void *data, size_t size)
{
    skl_value *value = draft_key(d, name);

    value->type = value->element_type = type;
    value->count = 1;
    value->data = (const unsigned char *)data;
    value->size = size;
}

/* bytes [8 + strlen(text)] keeps the encoded string. */
static inline void draft_set_string(draft *d, const char *name, const char *text, unsigned char *bytes)
{
    const uint64_t length = strlen(text);

    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, text, (size_t)length);
    draft_set(d, name, SKL_VALUE_STRING, bytes, 8 + (size_t)length);
}

/* general.alignment of the draft; 32 unless it says otherwise. */
static inline size_t draft_alignment(const draft *d)
{
    uint32_t alignment = 32;
    size_t i;

    for (i = 0; i < d->key_count; i++)
        if (strcmp(d->keys[i].name, "general.alignment") == 0 && d->keys[i].value.size == 4)
            memcpy(&alignment, d->keys[i].value.data, 4);
    return alignment;
}

static inline void draft_write(const draft *d, writer *w)
{
    const size_t alignment = draft_alignment(d);
    uint64_t offset = 0;
    size_t i;

    put_header(w, d->tensor_count, d->key_count);
    for (i = 0; i < d->key_count; i++) {
        const skl_value *value = &d->keys[i].value;
        put_key(w, d->keys[i].name, (uint32_t)value->type);
        if (value->type == SKL_VALUE_ARRAY) {
            put_uint(w, (uint64_t)value->element_type, 4);
            put_count(w, value->count);
        }
        put(w, value->data, value->size);
    }
    for (i = 0; i < d->tensor_count; i++) {
        const skl_tensor *t = &d->tensors[i];
        put_tensor(w, t->name, (uint32_t)t->dims, t->shape, (uint32_t)t->type, offset);
        offset = (offset + t->size + alignment - 1) / alignment * alignment;
    }
    for (i = 0; i < d->tensor_count; i++) {
        while (w->size % alignment) put_uint(w, 0, 1);
        put(w, d->tensors[i].data, (size_t)d->tensors[i].size);
    }
}

#endif /* SINKLESS_GGUF_WRITER_H */
