/* eval.c - what a model computes: logits, their hash, perplexity. The measuring instrument of tests and comparisons. */
#include "cli.h"

#define SINKLESS_IMPLEMENTATION
#include "../sinkless.h"
#define TOKENIZER_IMPLEMENTATION
#include "tokenizer.h"

#include <math.h>

static const char help[] =
    "usage: eval -m MODEL (--ids FILE | --text FILE | -p TEXT) (--logits OUT | --hash | --ppl)... [options]\n"
    "\n"
    "  -m MODEL            GGUF file\n"
    "  --ids FILE          token ids, little-endian int32\n"
    "  --text FILE         text, tokenised; control tokens such as <|endoftext|> are recognised in it, and BOS comes first\n"
    "                      if the model expects it and the text does not begin with it\n"
    "  -p TEXT             the same with a text on the command line\n"
    "\n"
    "  --logits OUT        write float32 logits, little-endian, [tokens][vocabulary]: row t follows token t\n"
    "  --hash              print `hash XXXXXXXXXXXXXXXX`: FNV-1a 64 over those bytes\n"
    "  --ppl               print `ppl VALUE tokens N`\n"
    "  --window W          tokens per window of --ppl (default: the model's context)\n"
    "\n"
    "  --act f32|a8|a4     activations that meet quantised weights (default a8)\n"
    "  --group 32|row      values that share an activation scale (default 32)\n"
    "  --kv f32|f16|i8|i4  KV cache (default f16)\n"
    "  --isa NAME|list     force a kernel level; list prints those this CPU can run\n"
    "  --threads N         threads that work (default: physical cores)\n"
    "  --chunk N           tokens per forward call (default: the library's choice)\n"
    "\n"
    "Perplexity: the tokens, with BOS first if the model expects it, are cut into windows of W that do not overlap; a\n"
    "rest shorter than W is left out, and fewer than W tokens are one window. If the model expects BOS, it replaces\n"
    "the first token of every window. The second half of a window is scored: tokens W/2 + 1 .. W - 1, counted from 0,\n"
    "each predicted from all before it in its window. VALUE is exp(mean of -ln p) over the N tokens scored. The\n"
    "perplexity tool of llama.cpp defines it the same way.\n"
    "\n"
    "Exit code: 0 done, 1 failed, 2 wrong usage.\n";

static struct {
    const char *model, *ids, *text, *prompt, *logits;
    int hash, ppl, activation, group, kv, isa;
    size_t window, threads, chunk;
} arguments;

static const cli_option options[] = {
    {"-m", CLI_TEXT, &arguments.model, 0, 0, NULL},
    {"--ids", CLI_TEXT, &arguments.ids, 0, 0, NULL},
    {"--text", CLI_TEXT, &arguments.text, 0, 0, NULL},
    {"-p", CLI_TEXT, &arguments.prompt, 0, 0, NULL},
    {"--logits", CLI_TEXT, &arguments.logits, 0, 0, NULL},
    {"--hash", CLI_FLAG, &arguments.hash, 0, 0, NULL},
    {"--ppl", CLI_FLAG, &arguments.ppl, 0, 0, NULL},
    {"--window", CLI_SIZE, &arguments.window, 3, CLI_MOST_TOKENS, NULL},
    {"--act", CLI_CHOICE, &arguments.activation, 0, 0, cli_activations},
    {"--group", CLI_CHOICE, &arguments.group, 0, 0, cli_groups},
    {"--kv", CLI_CHOICE, &arguments.kv, 0, 0, cli_kvs},
    {"--isa", CLI_ISA, &arguments.isa, 0, 0, NULL},
    {"--threads", CLI_SIZE, &arguments.threads, 1, CLI_MOST_THREADS, NULL},
    {"--chunk", CLI_SIZE, &arguments.chunk, 1, CLI_MOST_TOKENS, NULL},
    {NULL, CLI_FLAG, NULL, 0, 0, NULL}};

typedef struct eval {
    skl_model *model;
    skl_session *session;
    tok_tokenizer *tokenizer; /* NULL for --ids with a model that has none */
    int32_t *tokens;          /* [n] */
    size_t n;
    size_t vocab;
    size_t piece;             /* most tokens per call, so that the logits of one call stay small */
    float *logits;            /* [piece][vocab] */
} eval;

/* =====================================================================================================================
 * Input
 * ================================================================================================================== */

static int read_ids(eval *e, const char *path)
{
    size_t size, i;
    unsigned char *bytes = cli_read_file(path, &size);

    if (!bytes) return cli_fail("%s: %s", path, strerror(errno));
    e->n = size / 4;
    e->tokens = (int32_t *)malloc((e->n + 1) * sizeof *e->tokens);
    for (i = 0; e->tokens && i < e->n; i++) {
        const unsigned char *b = bytes + 4 * i;
        const uint32_t bits = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;

        memcpy(&e->tokens[i], &bits, sizeof bits);
    }
    free(bytes);
    if (size % 4) return cli_fail("%s: %zu bytes are no int32 token ids", path, size);
    return e->tokens ? CLI_GO_ON : cli_fail("%s: out of memory", path);
}

static int encode(eval *e, const char *name, const char *text, size_t length)
{
    tok_segment segment;
    tok_status status;
    size_t capacity;

    segment.text = text;
    segment.length = length;
    segment.scaffold = 1; /* a text to measure is the operator's, in the form the model was trained on */
    tok_encode(e->tokenizer, &segment, 1, TOK_BEGIN, NULL, 0, &e->n);
    capacity = e->n;
    e->tokens = (int32_t *)malloc((capacity + 1) * sizeof *e->tokens);
    if (!e->tokens) return cli_fail("%s: out of memory", name);
    status = tok_encode(e->tokenizer, &segment, 1, TOK_BEGIN, e->tokens, capacity, &e->n);
    return status ? cli_fail("%s: %s", name, tok_status_string(status)) : CLI_GO_ON;
}

static int read_text(eval *e, const char *path)
{
    size_t length;
    char *text = (char *)cli_read_file(path, &length);
    int code;

    if (!text) return cli_fail("%s: %s", path, strerror(errno));
    code = encode(e, path, text, length);
    free(text);
    return code;
}

static int read_tokens(eval *e)
{
    char message[256];
    int code;

    if (tok_open(&e->tokenizer, skl_model_gguf(e->model), message, sizeof message) && !arguments.ids)
        return cli_fail("%s: %s", arguments.model, message);
    if (arguments.ids) code = read_ids(e, arguments.ids);
    else if (arguments.text) code = read_text(e, arguments.text);
    else code = encode(e, "-p", arguments.prompt, strlen(arguments.prompt));
    return code == CLI_GO_ON && e->n == 0 ? cli_fail("no tokens in the input") : code;
}

/* =====================================================================================================================
 * Evaluation
 * ================================================================================================================== */

/* Receives logits [rows][vocab] of consecutive tokens from number first on; returns CLI_GO_ON or an exit code. */
typedef int visit(eval *e, void *result, const float *logits, size_t first, size_t rows);

/* Evaluates tokens [n] as a timeline of their own; the logits from token number begin on are visited in pieces. */
static int evaluate(eval *e, const int32_t *tokens, size_t n, size_t begin, visit *visitor, void *result)
{
    size_t first = 0;

    skl_session_truncate(e->session, 0);
    while (first < n) {
        const size_t end = first < begin ? begin : n, left = end - first;
        const size_t rows = left < e->piece ? left : e->piece;
        const int wanted = first >= begin;
        int code;

        if (wanted ? skl_eval_rows(e->session, tokens + first, rows, NULL, rows, e->logits)
                   : skl_eval(e->session, tokens + first, rows, NULL))
            return cli_fail_skl(arguments.model, skl_session_error(e->session));
        if (wanted && (code = visitor(e, result, e->logits, first, rows)) != CLI_GO_ON) return code;
        first += rows;
    }
    return CLI_GO_ON;
}

typedef struct logits_result {
    FILE *file;    /* NULL = not wanted */
    uint64_t hash; /* FNV-1a 64 */
} logits_result;

static int visit_logits(eval *e, void *user, const float *logits, size_t first, size_t rows)
{
    logits_result *result = (logits_result *)user;
    const size_t n = rows * e->vocab;
    unsigned char bytes[4096];
    size_t i, j;

    (void)first;
    for (i = 0; i < n;) {
        const size_t values = n - i < sizeof bytes / 4 ? n - i : sizeof bytes / 4;

        for (j = 0; j < values; j++) {
            uint32_t bits;

            memcpy(&bits, &logits[i + j], sizeof bits);
            bytes[4 * j] = (unsigned char)(bits & 255);
            bytes[4 * j + 1] = (unsigned char)(bits >> 8 & 255);
            bytes[4 * j + 2] = (unsigned char)(bits >> 16 & 255);
            bytes[4 * j + 3] = (unsigned char)(bits >> 24);
        }
        for (j = 0; j < 4 * values; j++) result->hash = (result->hash ^ bytes[j]) * UINT64_C(0x100000001B3);
        if (result->file && fwrite(bytes, 4, values, result->file) != values)
            return cli_fail("%s: %s", arguments.logits, strerror(errno));
        i += values;
    }
    return CLI_GO_ON;
}

static int run_logits(eval *e)
{
    logits_result result = {NULL, UINT64_C(0xCBF29CE484222325)};
    int code;

    if (arguments.logits && !(result.file = cli_open(arguments.logits, "wb")))
        return cli_fail("%s: %s", arguments.logits, strerror(errno));
    code = evaluate(e, e->tokens, e->n, 0, visit_logits, &result);
    if (result.file && fclose(result.file) && code == CLI_GO_ON)
        code = cli_fail("%s: %s", arguments.logits, strerror(errno));
    if (code == CLI_GO_ON && arguments.hash) printf("hash %016llX\n", (unsigned long long)result.hash);
    return code;
}

typedef struct ppl_result {
    const int32_t *window; /* tokens of the window */
    double sum;            /* of -ln p */
    size_t count;
} ppl_result;

static int visit_ppl(eval *e, void *user, const float *logits, size_t first, size_t rows)
{
    ppl_result *result = (ppl_result *)user;
    size_t t, i;

    for (t = 0; t < rows; t++, logits += e->vocab) {
        double largest = (double)logits[0], sum = 0.0;

        for (i = 1; i < e->vocab; i++) largest = (double)logits[i] > largest ? (double)logits[i] : largest;
        for (i = 0; i < e->vocab; i++) sum += exp((double)logits[i] - largest);
        result->sum += largest + log(sum) - (double)logits[result->window[first + t + 1]];
        result->count++;
    }
    return CLI_GO_ON;
}

static int run_ppl(eval *e, size_t window)
{
    const int32_t bos = e->tokenizer && tok_adds_bos(e->tokenizer) ? tok_bos(e->tokenizer) : -1;
    ppl_result result = {NULL, 0.0, 0};
    size_t start;

    for (start = 0; e->n - start >= window; start += window) {
        int32_t *tokens = e->tokens + start;
        int code;

        if (bos >= 0) tokens[0] = bos;
        result.window = tokens;
        code = evaluate(e, tokens, window - 1, window / 2, visit_ppl, &result);  /* the last token is only predicted */
        if (code != CLI_GO_ON) return code;
        cli_progress(start + window, e->n - e->n % window);
    }
    printf("ppl %.5f tokens %zu\n", exp(result.sum / (double)result.count), result.count);
    return CLI_GO_ON;
}

static int open_session(eval *e, size_t context)
{
    skl_session_desc desc = {0};
    skl_error error;

    e->vocab = skl_model_vocab(e->model);
    e->piece = ((size_t)1 << 22) / e->vocab;  /* 16 MiB of logits */
    if (e->piece < 1) e->piece = 1;
    if (arguments.chunk && arguments.chunk < e->piece) e->piece = arguments.chunk;
    if (e->piece > context) e->piece = context;
    e->logits = (float *)malloc(e->piece * e->vocab * sizeof *e->logits);
    if (!e->logits) return cli_fail("%s: out of memory", arguments.model);

    desc.context = context;
    desc.chunk = arguments.chunk;
    desc.activation = (skl_activation)arguments.activation;
    desc.group = (skl_group)arguments.group;
    desc.kv = (skl_kv)arguments.kv;
    desc.isa = (skl_isa)arguments.isa;
    desc.threads = arguments.threads;
    return skl_session_open(&e->session, e->model, &desc, &error) ? cli_fail_skl(arguments.model, &error) : CLI_GO_ON;
}

static int run(eval *e)
{
    const int whole = arguments.logits || arguments.hash;
    skl_model_desc desc = {0};
    skl_error error;
    size_t window;
    int code;

    desc.source.path = arguments.model;
    desc.threads = arguments.threads;
    if (skl_model_open(&e->model, &desc, &error)) return cli_fail_skl(arguments.model, &error);
    if ((code = read_tokens(e)) != CLI_GO_ON) return code;

    window = arguments.window ? arguments.window : skl_model_context(e->model);
    if (window > e->n) window = e->n;
    if (arguments.ppl && window < 3) return cli_fail("--ppl: a window of %zu tokens has nothing to score", window);

    if ((code = open_session(e, whole ? e->n : window)) != CLI_GO_ON) return code;
    if (whole && (code = run_logits(e)) != CLI_GO_ON) return code;
    if (arguments.ppl && (code = run_ppl(e, window)) != CLI_GO_ON) return code;
    return cli_finish();
}

int main(int argc, char **argv)
{
    eval e = {0};
    int code;

    cli_begin("eval", &argc, &argv);
    code = cli_parse(argc, argv, help, options, NULL, 0);
    if (code != CLI_GO_ON) return code;
    if (!arguments.model) return cli_usage("-m MODEL is missing");
    if (!!arguments.ids + !!arguments.text + !!arguments.prompt != 1)
        return cli_usage("give one of --ids, --text and -p");
    if (!arguments.logits && !arguments.hash && !arguments.ppl)
        return cli_usage("give at least one of --logits, --hash and --ppl");

    code = run(&e);
    skl_session_close(e.session);
    tok_close(e.tokenizer);
    skl_model_close(e.model);
    free(e.logits);
    free(e.tokens);
    return code;
}
