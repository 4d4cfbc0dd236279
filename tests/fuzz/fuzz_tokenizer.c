/* fuzz_tokenizer.c - two kinds of input: a GGUF file, as a vocabulary that meets a fixed text; and anything else, as a
 * text that meets the vocabulary of the default model. Run from the root of the repository. */
#define SINKLESS_IMPLEMENTATION
#include "../../sinkless.h"
#define TOKENIZER_IMPLEMENTATION
#include "../../examples/tokenizer.h"
#include "fuzz.h"

static const char sample[] =
    "Once upon a time, 12345 \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80!\n\n  <|im_start|>x\xFF";

/* Text to ids and back. */
static void encode(const tok_tokenizer *tokenizer, const char *text, size_t length)
{
    size_t count = 0, written = 0, again = 0, bytes = 0, i;
    int32_t *ids;
    char *back;

    tok_encode_text(tokenizer, text, length, TOK_BEGIN, NULL, 0, &count);
    ids = (int32_t *)malloc((count + 1) * sizeof *ids);
    if (!ids) return;
    if (tok_encode_text(tokenizer, text, length, TOK_BEGIN, ids, count, &written) == TOK_OK) {
        FUZZ_REQUIRE(written == count);
        for (i = 0; i < count; i++) FUZZ_REQUIRE(ids[i] >= 0 && (size_t)ids[i] < tok_vocab_size(tokenizer));
        tok_decode(tokenizer, ids, count, NULL, 0, &bytes);
        back = (char *)malloc(bytes + 1);
        if (back) tok_decode(tokenizer, ids, count, back, bytes, &again);
        if (back) FUZZ_REQUIRE(again == bytes);
        free(back);
    }
    free(ids);
}

static void vocabulary(const uint8_t *data, size_t size)
{
    tok_tokenizer *tokenizer = NULL;
    skl_gguf_desc desc = {0};
    skl_gguf *gguf = NULL;
    char message[256];

    desc.source.data = data;
    desc.source.data_size = size;
    if (skl_gguf_open(&gguf, &desc, NULL) != SKL_OK) return;
    if (tok_open(&tokenizer, gguf, message, sizeof message) == TOK_OK) encode(tokenizer, sample, sizeof sample - 1);
    tok_close(tokenizer);
    skl_gguf_close(gguf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static skl_gguf *gguf;
    static tok_tokenizer *tokenizer;
    char message[256];

    if (size >= 4 && memcmp(data, "GGUF", 4) == 0) {
        vocabulary(data, size);
        return 0;
    }
    if (!tokenizer) {
        skl_gguf_desc desc = {0};

        desc.source.path = "examples/models/tiny-chat.gguf";
        if (skl_gguf_open(&gguf, &desc, NULL) || tok_open(&tokenizer, gguf, message, sizeof message)) {
            fprintf(stderr, "%s: run this from the root of the repository\n", desc.source.path);
            exit(1);
        }
    }
    encode(tokenizer, (const char *)data, size);
    return 0;
}
