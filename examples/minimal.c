/* minimal.c - the smallest useful program: a model, some token ids, and what the model makes of them
 *
 *     cc -O2 minimal.c -o minimal -lm -lpthread
 *     ./minimal model.gguf 1 403 407          prints up to 64 token ids that follow, the likeliest each time
 */
#define SINKLESS_IMPLEMENTATION
#include "../sinkless.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    skl_model_desc model_desc = {0};
    skl_session_desc session_desc = {0};
    skl_model *model = NULL;
    skl_session *session = NULL;
    skl_error error;
    size_t vocab = 0, i, n = argc > 2 ? (size_t)argc - 2 : 0;
    int32_t *tokens;
    float *logits = NULL;
    skl_status status;

    if (n == 0) return fprintf(stderr, "usage: minimal MODEL ID...\n"), 2;
    tokens = calloc(n, sizeof *tokens);
    if (!tokens) return fprintf(stderr, "minimal: out of memory\n"), 1;
    for (i = 0; i < n; i++) tokens[i] = (int32_t)strtol(argv[i + 2], NULL, 10);

    model_desc.source.path = argv[1];
    status = skl_model_open(&model, &model_desc, &error);
    if (!status && n + 64 < skl_model_context(model)) session_desc.context = n + 64;  /* its memory is taken at once */
    if (!status) status = skl_session_open(&session, model, &session_desc, &error);
    if (!status) {
        vocab = skl_model_vocab(model);
        logits = calloc(vocab, sizeof *logits);
        if (logits) status = skl_eval(session, tokens, n, logits);  /* the prompt */
        else fprintf(stderr, "minimal: out of memory\n");
    }
    for (n = 0; n < 64 && !status && logits; n++) {
        int32_t best = 0;

        for (i = 1; i < vocab; i++) best = logits[i] > logits[best] ? (int32_t)i : best;
        printf("%d\n", (int)best);
        status = skl_eval(session, &best, 1, logits);  /* then one token at a time */
    }
    if (status == SKL_CONTEXT_FULL) status = SKL_OK;  /* a good place to end */
    if (status) fprintf(stderr, "minimal: %s\n", session ? skl_session_error(session)->message : error.message);

    skl_session_close(session);
    skl_model_close(model);
    free(logits);
    free(tokens);
    return status != SKL_OK || !logits;
}
