/* support.h - what the tests of models and sessions share: golden cases, kernel levels, and an allocator that counts.
 * Include it after sinkless.h and test.h. */
#ifndef SINKLESS_TEST_SUPPORT_H
#define SINKLESS_TEST_SUPPORT_H

#include <stdlib.h>

#define GOLDEN "tests/golden/"

/* A whole file, or NULL; *size in bytes. Ends with a NUL that is not counted. */
static inline unsigned char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    unsigned char *data = NULL;
    long length;

    *size = 0;
    if (!file) return NULL;
    if (fseek(file, 0, SEEK_END) == 0 && (length = ftell(file)) >= 0 && fseek(file, 0, SEEK_SET) == 0) {
        data = (unsigned char *)calloc((size_t)length + 1, 1);
        *size = data ? fread(data, 1, (size_t)length, file) : 0;
    }
    fclose(file);
    return data;
}

typedef struct path { char text[256]; } path;

static inline path golden_path(const char *name, const char *file)
{
    path p;

    snprintf(p.text, sizeof p.text, GOLDEN "%s/%s", name, file);
    return p;
}

static inline void *golden_file(const char *name, const char *file, size_t *size)
{
    return read_file(golden_path(name, file).text, size);
}

static inline skl_model *open_golden(const char *name)
{
    const path p = golden_path(name, "model.gguf");
    skl_model *model = NULL;
    skl_model_desc desc;
    skl_error error;

    memset(&desc, 0, sizeof desc);
    desc.source.path = p.text;
    desc.threads = 1;
    if (!CHECK(skl_model_open(&model, &desc, &error) == SKL_OK)) printf("  %s: %s\n", name, error.message);
    return model;
}

/* Options of the golden cases: float activations and cache, one thread. */
static inline skl_session_desc plain_desc(void)
{
    skl_session_desc desc;

    memset(&desc, 0, sizeof desc);
    desc.activation = SKL_ACT_F32;
    desc.kv = SKL_KV_F32;
    desc.threads = 1;
    return desc;
}

static inline int level_available(int isa)
{
    return (int)(skl_isa_available() >> isa & 1);
}

static inline int best_level(void)
{
    int isa = SKL_ISA_COUNT - 1;

    while (isa > SKL_ISA_SCALAR && !level_available(isa)) isa--;
    return isa;
}

/* The session has the level and the threads that it was to have; or a test of levels might compare one with itself. */
static inline skl_session *open_session(const skl_model *model, const skl_session_desc *desc)
{
    skl_session *session = NULL;
    skl_error error;

    if (!CHECK(skl_session_open(&session, model, desc, &error) == SKL_OK)) {
        printf("  %s\n", error.message);
        return NULL;
    }
    CHECK_EQ_INT(skl_session_isa(session), desc && desc->isa ? (int)desc->isa : best_level());
#if !defined(SINKLESS_NO_THREADS)
    CHECK_EQ_INT(skl_session_threads(session), desc && desc->threads ? desc->threads : skl_default_threads());
#endif
    return session;
}

static inline uint64_t hash_bytes(const void *data, size_t size) /* FNV-1a */
{
    const unsigned char *bytes = (const unsigned char *)data;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    size_t i;

    for (i = 0; i < size; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static inline uint64_t random_bits(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* --- an allocator that counts, and fails on demand --- */

typedef struct ledger {
    long blocks;       /* alive */
    size_t bytes;      /* alive */
    long calls;
    long fail_at;      /* this call, counted from 1, returns NULL; 0 = none */
} ledger;

enum { LEDGER_HEAD = 64 }; /* room for the size in front of a block, and any alignment */

static inline void *ledger_alloc(void *user, size_t size)
{
    ledger *l = (ledger *)user;
    unsigned char *memory;

    if (++l->calls == l->fail_at || size > SIZE_MAX - LEDGER_HEAD) return NULL;
    memory = (unsigned char *)malloc(size + LEDGER_HEAD);
    if (!memory) return NULL;
    memcpy(memory, &size, sizeof size);
    memset(memory + LEDGER_HEAD, 0xa5, size); /* nobody may count on zeros */
    l->blocks++;
    l->bytes += size;
    return memory + LEDGER_HEAD;
}

static inline void ledger_free(void *user, void *memory)
{
    ledger *l = (ledger *)user;
    size_t size;

    memcpy(&size, (unsigned char *)memory - LEDGER_HEAD, sizeof size);
    memset(memory, 0x5a, size);
    l->blocks--;
    l->bytes -= size;
    free((unsigned char *)memory - LEDGER_HEAD);
}

static inline skl_allocator ledger_allocator(ledger *l)
{
    skl_allocator allocator;

    memset(l, 0, sizeof *l);
    allocator.alloc = ledger_alloc;
    allocator.free = ledger_free;
    allocator.user = l;
    return allocator;
}

#endif /* SINKLESS_TEST_SUPPORT_H */
