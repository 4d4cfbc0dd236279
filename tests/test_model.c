/* test_model.c - whole models: the golden cases on every kernel level, what a bad model is refused for, and that
 * damaged files harm nobody.
 *
 *     build/test_model [--mutations N]        N damaged files; 3000 unless said otherwise
 */
#define SINKLESS_IMPLEMENTATION
#include "../sinkless.h"
#include "gguf_writer.h"
#include "test.h"
#include "support.h"

static const char *const golden[] = {
    "aos", "attnres_block", "attnres_full", "attnres_softmax1", "baseline_add", "clip_softmax1", "dyt_gated",
    "element_gate", "everything", "gated_norm_all", "gated_norm_some", "geglu_rope_linear", "glu_sigmoid", "head_gate",
    "k_quants", "llama", "mixed_weights", "oasis_block", "oasis_full", "oasis_router", "odd_sizes", "preaffine",
    "qwen3", "router_clamp", "sink", "sliding_window", "softmax1", "w4_blocks"
};

enum { GOLDEN_CASES = sizeof golden / sizeof *golden };

/* --- what the probe saw, to be compared with the trace --- */

enum { LAYERS = 8, TOKENS = 64, READS = 16, CANDIDATES = 16, INPUTS = 2 * LAYERS + 1 };

typedef struct seen {
    float psi[LAYERS][TOKENS];
    float alpha[READS][TOKENS][CANDIDATES], null_mass[READS][TOKENS];
    size_t candidates[READS], reads;
    double kurtosis[INPUTS][TOKENS], max_abs[INPUTS][TOKENS];
    size_t inputs;
} seen;

static void see_input(seen *s, const skl_probe_view *view)
{
    size_t t, i;

    for (t = 0; t < view->tokens && s->inputs < INPUTS; t++) {
        const float *x = view->data + t * view->width;
        double mean = 0.0, second = 0.0, fourth = 0.0, most = 0.0;
        for (i = 0; i < view->width; i++) mean += (double)x[i] / (double)view->width;
        for (i = 0; i < view->width; i++) {
            const double square = ((double)x[i] - mean) * ((double)x[i] - mean);
            second += square / (double)view->width;
            fourth += square * square / (double)view->width;
            if (fabs((double)x[i]) > most) most = fabs((double)x[i]);
        }
        s->kurtosis[s->inputs][t] = fourth / (second * second);
        s->max_abs[s->inputs][t] = most;
    }
    s->inputs++;
}

static void probe(void *user, const skl_probe_view *view)
{
    seen *s = (seen *)user;
    size_t t;

    if (strcmp(view->name, "psi") == 0) {
        CHECK(view->width == 1 && view->tokens <= TOKENS && view->layer < LAYERS);
        for (t = 0; t < view->tokens; t++) s->psi[view->layer][t] = view->data[t];
    } else if (strcmp(view->name, "depth_weights") == 0) {
        CHECK(view->tokens == 1 && view->position < TOKENS && s->reads < READS && view->width <= CANDIDATES);
        memcpy(s->alpha[s->reads][view->position], view->data, view->width * sizeof(float));
        s->candidates[s->reads] = view->width;
    } else if (strcmp(view->name, "depth_null") == 0) {
        for (t = 0; t < view->tokens; t++) s->null_mass[s->reads][t] = view->data[t];
        s->reads++;
    } else if (strstr(view->name, "_input")) {
        see_input(s, view);
    }
}

static double trace_number(const char *trace, const char *name)
{
    char line[96];
    const char *at;

    snprintf(line, sizeof line, "number %s ", name);
    at = strstr(trace, line);
    CHECK(at != NULL);
    return at ? strtod(at + strlen(line), NULL) : 0.0;
}

/* Masses and depth weights lie in 0 .. 1 and are read off the same states as the logits, whose noise in float is 1e-5
 * to 1e-4 (trace.txt): 1e-4. Kurtosis has fourth powers: 1e-3 of its value; maxima 1e-4 of theirs. */
static void check_trace(const char *trace, const seen *s, const char *label)
{
    size_t masses = 0, reads = 0, inputs = 0;
    const char *line;

    for (line = trace; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        unsigned long index, token, n, i;
        char name[64], *rest;
        double value, other;
        int good = 1, length = 0;
        if (sscanf(line, "psi %lu %lu %lf", &index, &token, &value) == 3 && index < LAYERS && token < TOKENS) {
            good = CHECK_NEAR((double)s->psi[index][token], value, 1e-4);
            masses++;
        } else if (sscanf(line, "depth %lu %63s %lu %lf %lu%n", &index, name, &token, &value, &n, &length) == 5 &&
                   index < READS && token < TOKENS) {
            good &= CHECK_NEAR((double)s->null_mass[index][token], value, 1e-4);
            good &= CHECK_EQ_INT(s->candidates[index], n);
            rest = (char *)(uintptr_t)line + length;
            for (i = 0; i < n && i < CANDIDATES; i++)
                good &= CHECK_NEAR((double)s->alpha[index][token][i], strtod(rest, &rest), 1e-4);
            reads++;
        } else if (sscanf(line, "input %lu %63s %lu %lf %lf", &index, name, &token, &value, &other) == 5 &&
                   index < INPUTS && token < TOKENS) {
            good &= CHECK_NEAR(s->kurtosis[index][token], value, 1e-3 * value);
            good &= CHECK_NEAR(s->max_abs[index][token], other, 1e-4 * other);
            inputs++;
        } else {
            CHECK(strncmp(line, "number ", 7) == 0 || strncmp(line, "attention ", 10) == 0);
        }
        if (!good) printf("  %s: %.*s\n", label, (int)strcspn(line, "\n"), line);
    }
    CHECK(masses > 0 && inputs > 0);
    CHECK((reads > 0) == (s->reads > 0));
}

/* --- golden cases --- */

typedef struct format {
    const char *file, *name;
    skl_activation activation;
    skl_group group;
} format;

static const format formats[] = {
    {"logits.f32", "", SKL_ACT_F32, SKL_GROUP_32}, {"logits_a8g32.f32", "a8g32", SKL_ACT_A8, SKL_GROUP_32},
    {"logits_a8tok.f32", "a8tok", SKL_ACT_A8, SKL_GROUP_ROW}, {"logits_a4g32.f32", "a4g32", SKL_ACT_A4, SKL_GROUP_32},
    {"logits_a4tok.f32", "a4tok", SKL_ACT_A4, SKL_GROUP_ROW}
};

/* Within the tolerances of the case: largest difference for float activations, root mean square for others. */
static void check_logits(const char *trace, const format *f, const float *got, const float *wanted, size_t n,
                         const char *label)
{
    char name[64];
    double most = 0.0, sum = 0.0;
    size_t i;

    for (i = 0; i < n; i++) {
        const double difference = fabs((double)got[i] - (double)wanted[i]);
        if (!(difference <= most)) most = difference;
        sum += difference * difference;
    }
    if (f->activation == SKL_ACT_F32) {
        if (!CHECK(most <= trace_number(trace, "tolerance_max"))) printf("  %s is off by %.3g\n", label, most);
        return;
    }
    snprintf(name, sizeof name, "%s_tolerance_rms", f->name);
    sum = sqrt(sum / (double)n) / trace_number(trace, "logits_std");
    if (!CHECK(sum <= trace_number(trace, name))) printf("  %s is off by %.3g of the deviation\n", label, sum);
}

static void check_case(const char *name, const skl_model *model, const char *trace, const int32_t *tokens, size_t n,
                       const format *f)
{
    const size_t vocab = skl_model_vocab(model);
    size_t size;
    float *wanted = (float *)golden_file(name, f->file, &size), *got;
    skl_session_desc desc = plain_desc();
    static seen s;
    char label[128];
    int isa;

    if (!wanted) return; /* quantised activations: for models with codes only */
    CHECK_EQ_INT(size, n * vocab * sizeof(float));
    got = (float *)malloc(size);
    desc.activation = f->activation;
    desc.group = f->group;
    desc.probe = probe;
    desc.probe_user = &s;
    for (isa = SKL_ISA_SCALAR; isa < SKL_ISA_COUNT; isa++) {
        skl_session *session;
        if (!level_available(isa)) continue;
        snprintf(label, sizeof label, "%s, %s, level %s", name, f->file, skl_isa_name((skl_isa)isa));
        memset(&s, 0, sizeof s);
        desc.isa = (skl_isa)isa;
        session = open_session(model, &desc);
        CHECK_EQ_INT(skl_eval_rows(session, tokens, n, NULL, n, got), SKL_OK);
        check_logits(trace, f, got, wanted, n * vocab, label);
        if (f->activation == SKL_ACT_F32) check_trace(trace, &s, label);
        skl_session_close(session);
    }
    free(got);
    free(wanted);
}

static void test_golden(void)
{
    size_t i, k, size;

    for (i = 0; i < GOLDEN_CASES; i++) {
        char *trace = (char *)golden_file(golden[i], "trace.txt", &size);
        int32_t *tokens = (int32_t *)golden_file(golden[i], "tokens.i32", &size);
        skl_model *model = open_golden(golden[i]);
        const size_t n = size / sizeof *tokens;
        if (CHECK(trace && tokens && model && n > 0)) {
            CHECK_EQ_INT(n, trace_number(trace, "n_tokens"));
            CHECK_EQ_INT(skl_model_vocab(model), trace_number(trace, "n_vocab"));
            for (k = 0; k < sizeof formats / sizeof *formats; k++)
                check_case(golden[i], model, trace, tokens, n, &formats[k]);
        }
        skl_model_close(model);
        free(tokens);
        free(trace);
    }
}

/* --- bad models --- */

/* A golden file, and a draft of it to be changed. */
typedef struct base {
    unsigned char *data;
    size_t size;
    skl_gguf *gguf;
    draft original;
} base;

static base *base_open(const char *name)
{
    base *b = (base *)calloc(1, sizeof *b);
    skl_gguf_desc desc;

    b->data = (unsigned char *)golden_file(name, "model.gguf", &b->size);
    memset(&desc, 0, sizeof desc);
    desc.source.data = b->data;
    desc.source.data_size = b->size;
    CHECK_EQ_INT(skl_gguf_open(&b->gguf, &desc, NULL), SKL_OK);
    draft_take(&b->original, b->gguf);
    return b;
}

static void base_close(base *b)
{
    skl_gguf_close(b->gguf);
    free(b->data);
    free(b);
}

/* The draft as a fresh copy of the original; one at a time. */
static draft *fresh(const base *b)
{
    static draft d;

    d = b->original;
    return &d;
}

/* Opens a file in memory that has exactly the size of the draft's. */
static skl_status open_draft(const draft *d, skl_model **model, skl_error *error)
{
    static writer w;
    static unsigned char *exact;
    skl_model_desc desc;
    ledger l;
    skl_status status;

    draft_write(d, &w);
    free(exact);
    exact = (unsigned char *)malloc(w.size);
    memcpy(exact, w.data, w.size);
    memset(&desc, 0, sizeof desc);
    desc.source.data = exact;
    desc.source.data_size = w.size;
    desc.threads = 1;
    desc.allocator = ledger_allocator(&l);
    *model = NULL;
    memset(error, 0x55, sizeof *error);
    status = skl_model_open(model, &desc, error);
    if (status) {
        CHECK(*model == NULL);
        CHECK_EQ_INT(l.blocks, 0);
        CHECK_EQ_INT(error->status, status);
        CHECK(memchr(error->message, 0, sizeof error->message) != NULL && error->message[0]);
    } else {
        skl_model_close(*model);
        CHECK_EQ_INT(l.blocks, 0);
    }
    return status;
}

/* It must be refused with this status and a message that holds both words. */
static void expect(const draft *d, skl_status wanted, const char *word, const char *another)
{
    skl_model *model;
    skl_error error;
    const skl_status status = open_draft(d, &model, &error);

    if (!CHECK_EQ_INT(status, wanted) || (wanted && (!CHECK(strstr(error.message, word)) ||
                                                     !CHECK(strstr(error.message, another)))))
        printf("  wanted \"%s\" and \"%s\": %s\n", word, another, status ? error.message : "it opened");
}

static int ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Every tensor missing, in turn: only the optional ones may go without a word. */
static void test_missing_tensors(const char *name)
{
    base *b = base_open(name);
    size_t i;

    for (i = 0; i < b->original.tensor_count; i++) {
        draft *d = fresh(b);
        const skl_tensor gone = d->tensors[i];
        const int optional = ends_with(gone.name, "_pre.weight") || ends_with(gone.name, "attn_gate.weight") ||
                             strcmp(gone.name, "output.weight") == 0 || strstr(gone.name, ".attn_q.bias") ||
                             strstr(gone.name, ".attn_k.bias") || strstr(gone.name, ".attn_v.bias") ||
                             strstr(gone.name, ".attn_output.bias") || strcmp(gone.name, "rope_freqs.weight") == 0;
        const int pair = strstr(gone.name, "_gate_a") || strstr(gone.name, "_gate_b") ||
                         strstr(gone.name, "attn_q_norm") || strstr(gone.name, "attn_k_norm");
        char stem[128];
        snprintf(stem, sizeof stem, "%s", gone.name);
        if (pair) stem[strcspn(stem, "_") + 1] = '\0'; /* the other one may be named: "blk.0.attn_" */
        d->tensors[i] = d->tensors[--d->tensor_count];
        expect(d, optional ? SKL_OK : SKL_BAD_MODEL, stem, pair ? "" : "missing");
    }
    base_close(b);
}

static void test_superfluous_tensors(void)
{
    static const char *const names[] = {"blk.0.extra.weight", "blk.99.attn_q.weight", "blk.0.attn_norm.bias",
                                        "blk.0.attn_norm.alpha", "attn_sinks.weight", "blk.0.attn_res_score.weight",
                                        "output_res_theta", "blk.00.attn_q.weight", "rope_freqs.weight", "x"};
    static const float values[64] = {0};
    base *b = base_open("baseline_add");
    size_t i;

    for (i = 0; i < sizeof names / sizeof *names; i++) {
        draft *d = fresh(b);
        skl_tensor *extra = &d->tensors[d->tensor_count++];
        memset(extra, 0, sizeof *extra);
        strcpy(extra->name, names[i]);
        extra->type = SKL_TYPE_F32;
        extra->dims = 1;
        extra->shape[0] = 64;
        extra->shape[1] = extra->shape[2] = extra->shape[3] = 1;
        extra->data = (const unsigned char *)values;
        extra->size = sizeof values;
        expect(d, SKL_BAD_MODEL, names[i], "reads this tensor");
    }
    base_close(b);
}

/* Every dimension of every tensor doubled, in turn. */
static void test_wrong_shapes(const char *name)
{
    static unsigned char zeros[1 << 20];
    base *b = base_open(name);
    size_t i, axis;

    for (i = 0; i < b->original.tensor_count; i++)
        for (axis = 0; axis < 3; axis++) {
            draft *d = fresh(b);
            skl_tensor *t = &d->tensors[i];
            char stem[128];
            if (axis == 1 && (strcmp(t->name, "token_embd.weight") == 0)) continue; /* a larger vocabulary is none */
            snprintf(stem, sizeof stem, "%s", t->name);
            if (strstr(stem, "_gate_a") || strstr(stem, "_q.weight")) stem[strcspn(stem, "_") + 1] = '\0';
            t->shape[axis] *= 2;
            t->size *= 2;
            t->dims = t->dims > (int)axis + 1 ? t->dims : (int)axis + 1;
            t->data = zeros;
            CHECK(t->size <= sizeof zeros);
            expect(d, SKL_BAD_MODEL, stem, "");
        }
    base_close(b);
}

/* --- keys --- */

static const char *const size_keys[] = {
    "block_count", "embedding_length", "feed_forward_length", "context_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.sliding_window",
    "attn_res.block_size", "rope.dimension_count"
};
static const char *const number_keys[] = {
    "attention.layer_norm_rms_epsilon", "depth.beta_max", "rope.freq_base", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow"
};
static const char *const word_keys[] = {"attention.softmax", "norm", "ffn.activation", "residual", "depth.softmax",
                                        "depth.coupling", "rope.scaling.type"};
static const char *const list_keys[] = {"attention.clip", "attention.sliding_window_pattern"};

typedef struct key_name { char text[128]; } key_name;

static key_name key_of(const char *architecture, const char *name)
{
    key_name key;

    snprintf(key.text, sizeof key.text, "%s.%s", architecture, name);
    return key;
}

/* A value of each GGUF type: 1, "1" or a list of a single 1. */
static void set_typed(draft *d, const char *key, int type)
{
    static const unsigned char one[16] = {1}, text[9] = {1, 0, 0, 0, 0, 0, 0, 0, '1'};
    static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 9, 4, 8, 8, 8};
    static const float single = 1.0f;
    static const double wide = 1.0;
    const void *data = type == SKL_VALUE_STRING ? (const void *)text : type == SKL_VALUE_F32 ? (const void *)&single
                       : type == SKL_VALUE_F64 ? (const void *)&wide : (const void *)one;

    draft_set(d, key, type, data, sizes[type]);
    if (type == SKL_VALUE_ARRAY) draft_key(d, key)->element_type = SKL_VALUE_U32;
}

static int is_integer(int type)
{
    return type != SKL_VALUE_F32 && type != SKL_VALUE_F64 && type != SKL_VALUE_STRING && type != SKL_VALUE_ARRAY;
}

/* Each key with each type: what cannot be right is refused and named; nothing crashes. */
static void test_key_types(const base *b)
{
    const struct { const char *const *names; size_t n; int kind; } groups[] = {
        {size_keys, sizeof size_keys / sizeof *size_keys, 0},
        {number_keys, sizeof number_keys / sizeof *number_keys, 1},
        {word_keys, sizeof word_keys / sizeof *word_keys, 2}, {list_keys, sizeof list_keys / sizeof *list_keys, 3}
    };
    skl_model *model;
    skl_error error;
    size_t g, i;
    int type;

    for (g = 0; g < 4; g++)
        for (i = 0; i < groups[g].n; i++)
            for (type = SKL_VALUE_U8; type <= SKL_VALUE_F64; type++) {
                const key_name key = key_of("sinkless", groups[g].names[i]);
                draft *d = fresh(b);
                const int possible = groups[g].kind == 0 ? is_integer(type)
                                     : groups[g].kind == 1 ? type != SKL_VALUE_STRING && type != SKL_VALUE_ARRAY
                                     : groups[g].kind == 2 ? type == SKL_VALUE_STRING : type == SKL_VALUE_ARRAY;
                set_typed(d, key.text, type);
                if (!possible) expect(d, SKL_BAD_MODEL, key.text, "must hold");
                else if (groups[g].kind == 2) expect(d, SKL_UNSUPPORTED, key.text, "\"1\"");
                else if (groups[g].kind == 3) expect(d, SKL_BAD_MODEL, key.text, "must hold");
                else open_draft(d, &model, &error); /* 1 may be right or wrong */
            }
}

static void set_u32(draft *d, const char *name, uint64_t value)
{
    static unsigned char bytes[8][8];
    static int next;
    unsigned char *place = bytes[next++ % 8];

    memcpy(place, &value, 8);
    if (value > UINT32_MAX) draft_set(d, key_of("sinkless", name).text, SKL_VALUE_U64, place, 8);
    else draft_set(d, key_of("sinkless", name).text, SKL_VALUE_U32, place, 4);
}

static void set_f64(draft *d, const char *name, double value)
{
    static double place;

    place = value;
    draft_set(d, key_of("sinkless", name).text, SKL_VALUE_F64, &place, 8);
}

static void expect_size(const base *b, const char *name, uint64_t value, const char *word)
{
    draft *d = fresh(b);

    set_u32(d, name, value);
    expect(d, SKL_BAD_MODEL, word, "");
}

static void expect_number(const base *b, const char *name, double value, const char *word)
{
    draft *d = fresh(b);

    set_f64(d, name, value);
    expect(d, SKL_BAD_MODEL, word, "");
}

static void test_key_values(const base *b)
{
    static const char *const required[] = {"block_count", "embedding_length", "feed_forward_length", "context_length",
                                           "attention.head_count", "attention.layer_norm_rms_epsilon"};
    static const uint64_t beyond[] = {UINT64_C(0x80000000), UINT64_C(0xffffffff), UINT64_C(0x100000000), UINT64_MAX};
    static const double bad[] = {(double)NAN, HUGE_VAL, -HUGE_VAL, 1e300};
    skl_model *model;
    skl_error error;
    size_t i, k;
    draft *d;

    for (i = 0; i < sizeof required / sizeof *required; i++) {
        d = fresh(b);
        draft_drop_key(d, key_of("sinkless", required[i]).text);
        expect(d, SKL_BAD_MODEL, key_of("sinkless", required[i]).text, "missing");
    }
    for (i = 0; i < sizeof size_keys / sizeof *size_keys; i++)
        for (k = 0; k < 4; k++) expect_size(b, size_keys[i], beyond[k], key_of("sinkless", size_keys[i]).text);
    for (i = 0; i < sizeof number_keys / sizeof *number_keys; i++)
        for (k = 0; k < 4; k++) expect_number(b, number_keys[i], bad[k], key_of("sinkless", number_keys[i]).text);
    for (i = 0; i < sizeof size_keys / sizeof *size_keys; i++)
        for (k = 0; k < 3; k++) { /* as large as a value may be: refused by something, or harmless */
            d = fresh(b);
            set_u32(d, size_keys[i], k == 0 ? INT32_MAX : k == 1 ? 65536 : 7);
            open_draft(d, &model, &error);
        }
    expect_size(b, "block_count", 0, "must not be zero");
    expect_size(b, "block_count", INT32_MAX, "sinkless.block_count");
    expect_size(b, "block_count", 4, "blk.3.attn_norm.weight");
    d = fresh(b);
    set_u32(d, "block_count", 2);
    draft_drop_key(d, "sinkless.attention.sliding_window_pattern");
    expect(d, SKL_BAD_MODEL, "blk.2.", "reads this tensor");
    expect_size(b, "embedding_length", 0, "must not be zero");
    expect_size(b, "embedding_length", INT32_MAX, "shape");
    expect_size(b, "feed_forward_length", 0, "must not be zero");
    expect_size(b, "context_length", 0, "must not be zero");
    expect_size(b, "attention.head_count", 0, "must not be zero");
    expect_size(b, "attention.head_count_kv", 0, "must not be zero");
    expect_size(b, "attention.head_count_kv", 3, "head_count_kv");
    expect_size(b, "attention.value_length", 32, "value_length");
    expect_size(b, "attention.key_length", 0, "_length");
    expect_size(b, "rope.dimension_count", 3, "dimension_count");
    expect_size(b, "rope.dimension_count", 18, "dimension_count");
    d = fresh(b);
    set_u32(d, "attention.key_length", 1024);
    set_u32(d, "attention.value_length", 1024);
    expect(d, SKL_UNSUPPORTED, "key_length", "not supported");
    expect_number(b, "attention.layer_norm_rms_epsilon", -1e-6, "epsilon");
    expect_number(b, "rope.freq_base", 0.0, "positive");
    expect_number(b, "rope.freq_base", -10000.0, "positive");
    expect_number(b, "rope.scaling.factor", 0.0, "positive");
    expect_number(b, "rope.scaling.original_context_length", 0.0, "positive");
    expect_number(b, "rope.scaling.yarn_beta_fast", 0.0, "positive");
    expect_number(b, "rope.scaling.yarn_beta_slow", -1.0, "positive");
}

static void test_architectures(const base *b)
{
    unsigned char text[64];
    draft *d;

    d = fresh(b);
    draft_set_string(d, "general.architecture", "gpt2", text);
    expect(d, SKL_UNSUPPORTED, "general.architecture", "\"gpt2\"");
    draft_set_string(d, "general.architecture", "sinkless ", text);
    expect(d, SKL_UNSUPPORTED, "general.architecture", "\"sinkless \"");
    draft_set_string(d, "general.architecture", "\033[2J\n", text);
    expect(d, SKL_UNSUPPORTED, "general.architecture", "\"?[2J?\""); /* nothing that a terminal would act on */
    draft_set_string(d, "general.architecture", "", text);
    expect(d, SKL_UNSUPPORTED, "general.architecture", "\"\"");
    set_typed(d, "general.architecture", SKL_VALUE_U32);
    expect(d, SKL_BAD_MODEL, "general.architecture", "name its architecture");
    draft_drop_key(d, "general.architecture");
    expect(d, SKL_BAD_MODEL, "general.architecture", "name its architecture");
    d = fresh(b);
    draft_set_string(d, "general.architecture", "llama", text); /* its keys are not there under that name */
    expect(d, SKL_BAD_MODEL, "llama.block_count", "missing");
}

/* Two of three lists of bool or numbers. */
static void test_list_keys(const base *b)
{
    static const unsigned char bools[8] = {1, 0, 1, 0, 1, 0, 1, 0};
    static const float numbers[3] = {-0.1f, 1.1f, 0.0f};
    const float not_finite[2] = {0.0f, (float)NAN};
    draft *d = fresh(b);
    skl_value *value;
    uint64_t n;

    for (n = 0; n < 5; n++) { /* the model has three layers */
        draft_set(d, "sinkless.attention.sliding_window_pattern", SKL_VALUE_ARRAY, bools, (size_t)n);
        value = draft_key(d, "sinkless.attention.sliding_window_pattern");
        value->element_type = SKL_VALUE_BOOL;
        value->count = n;
        expect(d, n == 3 ? SKL_OK : SKL_BAD_MODEL, "sliding_window_pattern", "one bool per layer");
    }
    draft_key(d, "sinkless.attention.sliding_window_pattern")->element_type = SKL_VALUE_U8;
    expect(d, SKL_BAD_MODEL, "sliding_window_pattern", "one bool per layer");
    d = fresh(b);
    for (n = 0; n < 4; n++) {
        draft_set(d, "sinkless.attention.clip", SKL_VALUE_ARRAY, numbers, (size_t)n * 4);
        value = draft_key(d, "sinkless.attention.clip");
        value->element_type = SKL_VALUE_F32;
        value->count = n;
        expect(d, n == 2 ? SKL_OK : SKL_BAD_MODEL, "attention.clip", "two finite numbers");
    }
    draft_set(d, "sinkless.attention.clip", SKL_VALUE_ARRAY, not_finite, 8);
    value = draft_key(d, "sinkless.attention.clip");
    value->element_type = SKL_VALUE_F32;
    value->count = 2;
    expect(d, SKL_BAD_MODEL, "attention.clip", "two finite numbers");
}

/* Gates of norms are read as floats; a packed one may have as many bytes, and must not be taken for rows. */
static void test_packed_gates(void)
{
    static const char *const names[] = {"blk.0.attn_norm_gate_a.weight", "blk.0.attn_norm_gate_b.weight",
                                        "output_norm_gate_b.weight"};
    base *b = base_open("gated_norm_all");
    size_t i;

    for (i = 0; i < sizeof names / sizeof *names; i++) {
        draft *d = fresh(b);
        skl_tensor *t = draft_tensor(d, names[i]);
        CHECK(t != NULL);
        if (!t) continue;
        t->type = SKL_TYPE_I8;
        t->size = t->shape[0] * t->shape[1];
        expect(d, SKL_BAD_MODEL, names[i], "must not be packed");
    }
    base_close(b);
}

/* Rotary factors of llama files; frequencies must stay within what the sine function takes. */
static void test_rope_factors(void)
{
    static float factors[64];
    static const float bad[] = {0.0f, -1.0f, (float)1e-40};
    base *b = base_open("llama");
    skl_tensor *t, *q = draft_tensor(&b->original, "blk.0.attn_q.weight");
    draft *d = fresh(b);
    size_t i, n = 0;
    int64_t number = 0;
    skl_value value;

    CHECK(q != NULL);
    if (skl_gguf_find(b->gguf, "llama.rope.dimension_count", &value) == SKL_OK) skl_value_int(&value, 0, &number);
    if (number == 0) {
        int64_t heads = 1;
        CHECK_EQ_INT(skl_gguf_find(b->gguf, "llama.attention.head_count", &value), SKL_OK);
        skl_value_int(&value, 0, &heads);
        number = (int64_t)q->shape[1] / heads;
    }
    n = (size_t)number / 2;
    for (i = 0; i < n; i++) factors[i] = 1.0f;
    t = draft_tensor(d, "rope_freqs.weight");
    if (!t) t = &d->tensors[d->tensor_count++];
    memset(t, 0, sizeof *t);
    strcpy(t->name, "rope_freqs.weight");
    t->type = SKL_TYPE_F32;
    t->dims = 1;
    t->shape[0] = n;
    t->shape[1] = t->shape[2] = t->shape[3] = 1;
    t->data = (const unsigned char *)factors;
    t->size = n * 4;
    expect(d, SKL_OK, "", "");
    for (i = 0; i < 3; i++) {
        factors[n - 1] = bad[i];
        expect(d, SKL_BAD_MODEL, "rope", "");
    }
    factors[n - 1] = (float)NAN;
    expect(d, SKL_BAD_MODEL, "rope_freqs.weight", "positive");
    base_close(b);
}

static void test_scales(void)
{
    base *b = base_open("w4_blocks");
    unsigned char *copy;
    size_t i, tried = 0;

    for (i = 0; i < b->original.tensor_count && tried < 3; i++) {
        draft *d = fresh(b);
        skl_tensor *t = &d->tensors[i];
        if (t->type != SKL_TYPE_Q4_0 && t->type != SKL_TYPE_Q4_1 && t->type != SKL_TYPE_Q8_0) continue;
        copy = (unsigned char *)malloc((size_t)t->size);
        memcpy(copy, t->data, (size_t)t->size);
        copy[t->size - skl_type_bytes(t->type) + 1] = 0x7e; /* the last block's scale: NaN */
        t->data = copy;
        expect(d, SKL_BAD_MODEL, t->name, "not finite");
        free(copy);
        tried++;
    }
    CHECK(tried > 0);
    base_close(b);
}

static void test_bad_models(void)
{
    base *b = base_open("everything");

    expect(fresh(b), SKL_OK, "", ""); /* the writer itself */
    test_key_types(b);
    test_key_values(b);
    test_architectures(b);
    test_list_keys(b);
    base_close(b);
    test_missing_tensors("everything");
    test_missing_tensors("oasis_router");
    test_missing_tensors("dyt_gated");
    test_missing_tensors("llama");
    test_missing_tensors("qwen3");
    test_superfluous_tensors();
    test_wrong_shapes("everything");
    test_wrong_shapes("oasis_router");
    test_rope_factors();
    test_scales();
}

/* --- packed files --- */

enum { PACKED = 64 };

typedef struct packing {
    unsigned char *memory[PACKED];
    unsigned char names[PACKED * 80];
    size_t names_size;
    int64_t formats[PACKED], columns[PACKED], rows[PACKED], groups[PACKED];
    uint64_t count;
    int64_t version;
} packing;

static void set_list(draft *d, const char *name, int type, uint64_t count, const void *data, size_t size)
{
    draft_set(d, name, SKL_VALUE_ARRAY, data, size);
    draft_key(d, name)->element_type = type;
    draft_key(d, name)->count = count;
}

static void set_packing(draft *d, const packing *p)
{
    draft_set(d, "packing.version", SKL_VALUE_I64, &p->version, 8);
    set_list(d, "packing.names", SKL_VALUE_STRING, p->count, p->names, p->names_size);
    set_list(d, "packing.formats", SKL_VALUE_I64, p->count, p->formats, (size_t)p->count * 8);
    set_list(d, "packing.columns", SKL_VALUE_I64, p->count, p->columns, (size_t)p->count * 8);
    set_list(d, "packing.rows", SKL_VALUE_I64, p->count, p->rows, (size_t)p->count * 8);
    set_list(d, "packing.groups", SKL_VALUE_I64, p->count, p->groups, (size_t)p->count * 8);
}

/* Every matrix of codes as a packed I8 tensor. */
static void pack_draft(draft *d, packing *p)
{
    size_t i;

    memset(p, 0, sizeof *p);
    p->version = 1;
    for (i = 0; i < d->tensor_count; i++) {
        skl_tensor *t = &d->tensors[i];
        const uint64_t length = strlen(t->name);
        skl_layout layout;
        if (t->dims != 2 || p->count == PACKED) continue;
        if (skl_layout_of(&layout, t->type, t->shape[1], t->shape[0]) != SKL_OK) continue;
        p->memory[p->count] = (unsigned char *)malloc((size_t)skl_packed_bytes(&layout));
        CHECK_EQ_INT(skl_pack(&layout, t->type, t->data, p->memory[p->count]), SKL_OK);
        memcpy(p->names + p->names_size, &length, 8);
        memcpy(p->names + p->names_size + 8, t->name, (size_t)length);
        p->names_size += 8 + (size_t)length;
        p->formats[p->count] = layout.bits | layout.minimum << 8 | layout.wide << 9;
        p->columns[p->count] = (int64_t)layout.columns;
        p->rows[p->count] = (int64_t)layout.rows;
        p->groups[p->count] = (int64_t)layout.group;
        t->type = SKL_TYPE_I8;
        t->dims = 1;
        t->shape[0] = t->size = skl_packed_bytes(&layout);
        t->shape[1] = 1;
        t->data = p->memory[p->count++];
    }
    set_packing(d, p);
}

static uint64_t hash_of_draft(const draft *d)
{
    static const int32_t tokens[] = {1, 5, 9, 2, 7, 7, 3};
    writer w;
    skl_model *model = NULL;
    skl_model_desc desc;
    skl_session_desc session_desc = plain_desc();
    skl_session *session;
    float logits[7 * 512];
    skl_memory memory;

    memset(&w, 0, sizeof w);
    draft_write(d, &w);
    memset(&desc, 0, sizeof desc);
    desc.source.data = w.data;
    desc.source.data_size = w.size;
    session_desc.activation = SKL_ACT_A8;
    memset(logits, 0, sizeof logits);
    CHECK_EQ_INT(skl_model_open(&model, &desc, NULL), SKL_OK);
    CHECK_EQ_INT(skl_model_memory(model, NULL, &memory, NULL), SKL_OK);
    if (draft_tensor((draft *)(uintptr_t)d, "blk.0.attn_q.weight")->type == SKL_TYPE_I8)
        CHECK(memory.weights < 16384); /* used where they lie: only vectors are copied */
    CHECK(skl_model_vocab(model) <= 512);
    session = open_session(model, &session_desc);
    CHECK_EQ_INT(skl_eval_rows(session, tokens, 7, NULL, 7, logits), SKL_OK);
    skl_session_close(session);
    skl_model_close(model);
    free(w.data);
    return hash_bytes(logits, sizeof logits);
}

static void test_packed_files(const char *name)
{
    base *b = base_open(name);
    draft *d = fresh(b);
    const uint64_t wanted = hash_of_draft(d);
    static packing p;
    packing changed;
    uint64_t i;

    pack_draft(d, &p);
    CHECK(p.count > 0);
    CHECK(hash_of_draft(d) == wanted);
    changed = p;
    changed.version = 2;
    set_packing(d, &changed);
    expect(d, SKL_UNSUPPORTED, "packing.version", "version 1");
    changed = p;
    changed.count--;
    draft_drop_key(d, "packing.formats");
    set_packing(d, &p);
    set_list(d, "packing.rows", SKL_VALUE_I64, changed.count, p.rows, (size_t)changed.count * 8);
    expect(d, SKL_BAD_MODEL, "packing.rows", "per packed tensor");
    for (i = 0; i < 7; i++) {
        static const int64_t formats_tried[] = {0, 5, -1, 4 | 1 << 10, 8, INT64_MAX, 256};
        changed = p;
        changed.formats[0] = formats_tried[i] == p.formats[0] ? 3 : formats_tried[i];
        set_packing(d, &changed);
        expect(d, SKL_BAD_MODEL, "layout", "");
    }
    for (i = 0; i < 5; i++) {
        static const int64_t sizes_tried[] = {0, -1, 1, INT64_MAX, 1 << 30};
        changed = p;
        changed.rows[0] = sizes_tried[i];
        set_packing(d, &changed);
        expect(d, SKL_BAD_MODEL, "pack", "");
        changed = p;
        changed.columns[0] = sizes_tried[i];
        set_packing(d, &changed);
        expect(d, SKL_BAD_MODEL, "pack", "");
        changed = p;
        changed.groups[0] = sizes_tried[i];
        set_packing(d, &changed);
        expect(d, SKL_BAD_MODEL, "pack", "");
    }
    changed = p;
    changed.rows[p.count - 1]--; /* the same number of tiles, but not the shape the model wants */
    set_packing(d, &changed);
    expect(d, SKL_BAD_MODEL, "shape", "");
    changed = p;
    changed.names[8] ^= 1;
    set_packing(d, &changed);
    expect(d, SKL_BAD_MODEL, "no such I8 tensor", "");
    set_packing(d, &p);
    draft_drop_key(d, "packing.names");
    expect(d, SKL_BAD_MODEL, "packing.names", "must hold");
    set_packing(d, &p);
    draft_drop_key(d, "packing.version");
    expect(d, SKL_BAD_MODEL, "not listed as packed", "");
    for (i = 0; i < p.count; i++) free(p.memory[i]);
    base_close(b);
}

/* --- damaged files --- */

/* Opens a model in a block of exactly its size, and evaluates three tokens, with formats that the seed chooses. */
static skl_status run_damaged(const unsigned char *data, size_t size, uint64_t seed)
{
    static const int32_t tokens[] = {1, 4, 2};
    unsigned char *exact = (unsigned char *)malloc(size ? size : 1);
    skl_model *model = NULL;
    skl_session *session = NULL;
    skl_model_desc desc;
    skl_session_desc session_desc;
    skl_error error;
    ledger l;
    skl_status status;

    memcpy(exact, data, size);
    memset(&desc, 0, sizeof desc);
    desc.source.data = exact;
    desc.source.data_size = size;
    desc.threads = 1;
    desc.allocator = ledger_allocator(&l);
    status = skl_model_open(&model, &desc, &error);
    if (status == SKL_OK) {
        float *logits = (float *)malloc(skl_model_vocab(model) * sizeof(float));
        memset(&session_desc, 0, sizeof session_desc);
        session_desc.allocator = desc.allocator;
        session_desc.context = 8;
        session_desc.chunk = 1 + seed % 3;
        session_desc.threads = 1;
        session_desc.activation = (skl_activation)(seed >> 8 & 3);
        session_desc.group = (skl_group)(seed >> 16 & 1);
        session_desc.kv = (skl_kv)((seed >> 24) % 5);
        if (skl_session_open(&session, model, &session_desc, &error) == SKL_OK) {
            const skl_status result = skl_eval(session, tokens, 3, logits);
            CHECK(result == SKL_OK || result == SKL_NOT_FINITE || result == SKL_BAD_ARGUMENT);
        }
        skl_session_close(session);
        free(logits);
    } else {
        CHECK(error.message[0] && memchr(error.message, 0, sizeof error.message));
    }
    skl_model_close(model);
    CHECK_EQ_INT(l.blocks, 0);
    free(exact);
    return status;
}

/* Where the bytes of the tensors begin: damage before it is worth more. */
static size_t header_size(const base *b)
{
    size_t i, first = b->size;

    for (i = 0; i < b->original.tensor_count; i++) {
        const size_t at = (size_t)(b->original.tensors[i].data - b->data);
        if (at < first) first = at;
    }
    return first;
}

static void test_mutations(unsigned long count)
{
    static const char *const names[] = {"everything", "w4_blocks", "oasis_router"};
    unsigned long i, opened = 0;
    uint64_t state = 20;
    size_t k;

    for (k = 0; k < 3; k++) {
        base *b = base_open(names[k]);
        const size_t header = header_size(b);
        unsigned char *data = (unsigned char *)malloc(b->size);
        memcpy(data, b->data, b->size);
        CHECK_EQ_INT(run_damaged(data, b->size, 0), SKL_OK);
        for (i = k; i < count; i += 3) {
            const uint64_t seed = random_bits(&state);
            size_t size = b->size, at[8], n = 1 + seed % 8, j;
            if (seed >> 32 & 7) {
                for (j = 0; j < n; j++) {
                    const uint64_t bits = random_bits(&state);
                    at[j] = (size_t)((bits >> 16) % (bits & 7 ? header : b->size));
                    if (seed >> 35 & 1) at[j] = header + at[j] * 7919 % (b->size - header); /* weights only */
                    data[at[j]] = (unsigned char)(bits & 8 ? bits >> 8 : data[at[j]] ^ (1u << (bits >> 8 & 7)));
                }
            } else {
                size = (size_t)(random_bits(&state) % (seed >> 40 & 1 ? header : b->size));
                n = 0;
            }
            opened += run_damaged(data, size, seed >> 3) == SKL_OK;
            for (j = 0; j < n; j++) data[at[j]] = b->data[at[j]];
        }
        free(data);
        base_close(b);
    }
    printf("%lu damaged files, of which %lu opened\n", count, opened);
}

static void test_random_bytes(void)
{
    static unsigned char noise[1 << 20];
    uint64_t state = 7;
    size_t i;

    for (i = 0; i < sizeof noise; i++) noise[i] = (unsigned char)random_bits(&state);
    CHECK_EQ_INT(run_damaged(noise, sizeof noise, 0), SKL_BAD_FILE);
    memcpy(noise, "GGUF\3\0\0\0", 8);
    CHECK_EQ_INT(run_damaged(noise, sizeof noise, 0), SKL_BAD_FILE);
    memset(noise + 8, 0, 16);
    noise[8] = noise[16] = 3; /* three tensors and three keys of noise */
    CHECK_EQ_INT(run_damaged(noise, sizeof noise, 0), SKL_BAD_FILE);
}

int main(int argc, char **argv)
{
    unsigned long mutations = 3000;

    if (argc == 3 && strcmp(argv[1], "--mutations") == 0) mutations = strtoul(argv[2], NULL, 10);
    test_golden();
    test_bad_models();
    test_packed_gates();
    test_packed_files("w4_blocks");
    test_packed_files("mixed_weights");
    test_packed_files("k_quants");
    test_random_bytes();
    test_mutations(mutations);
    return test_finish();
}
