/* fuzz_model.c - any bytes as a model: opened, bound, and run for a few tokens. Which formats a session uses follows
 * from the bytes too. */
#define SINKLESS_IMPLEMENTATION
#include "../../sinkless.h"
#include "fuzz.h"

#define MOST_MEMORY ((uint64_t)1 << 28) /* a tiny file may well ask for much */
#define TOKENS 5                        /* more than one chunk of 2 */

static uint32_t hash(const uint8_t *data, size_t size)
{
    uint32_t h = 2166136261u;
    size_t i;

    for (i = 0; i < size; i++) h = (h ^ data[i]) * 16777619u;
    return h;
}

static void run(const skl_model *model, uint32_t choice)
{
    const size_t vocab = skl_model_vocab(model);
    skl_session_desc desc = {0};
    skl_session *session = NULL;
    skl_memory memory;
    skl_error error;
    int32_t tokens[TOKENS];
    float *logits;
    size_t i;

    desc.context = TOKENS;
    desc.chunk = 2;
    desc.threads = 1;
    desc.activation = (skl_activation)(choice % 4);
    desc.group = (skl_group)(choice / 4 % 3);
    desc.kv = (skl_kv)(choice / 12 % 5);
    if (skl_model_memory(model, &desc, &memory, &error) != SKL_OK) return;
    if (memory.kv > MOST_MEMORY || memory.scratch > MOST_MEMORY || vocab > MOST_MEMORY / 4) return;
    if (skl_session_open(&session, model, &desc, &error) != SKL_OK) return;
    logits = (float *)malloc(vocab * sizeof *logits);
    for (i = 0; i < TOKENS; i++) tokens[i] = (int32_t)(i * 7 % vocab);
    if (logits && skl_eval(session, tokens, TOKENS - 1, logits) == SKL_OK) {
        FUZZ_REQUIRE(skl_session_position(session) == TOKENS - 1);
        skl_eval(session, tokens + TOKENS - 1, 1, logits);
        skl_session_truncate(session, 2);
        skl_session_sync(session, tokens, 4, NULL, logits);
    }
    free(logits);
    skl_session_close(session);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    skl_session_desc session_desc = {0};
    skl_model_desc desc = {0};
    skl_model *model = NULL;
    skl_memory memory;
    skl_error error;

    desc.source.data = data;
    desc.source.data_size = size;
    desc.threads = 1;
    session_desc.context = TOKENS;
    if (skl_memory_needed(&memory, &desc, &session_desc, &error) != SKL_OK || memory.weights > MOST_MEMORY) return 0;
    if (skl_model_open(&model, &desc, &error) != SKL_OK) return 0;
    run(model, hash(data, size));
    skl_model_close(model);
    return 0;
}
