/* test_session.c - sessions and samplers: the same bits whatever the level, threads, chunks and history; memory; wrong
 * arguments; the caller's floating-point environment; sampling. */
#if !defined(_WIN32)
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#endif
#include <fenv.h>

#define SINKLESS_INTERNAL
#define SINKLESS_IMPLEMENTATION
#include "../sinkless.h"
#include "test.h"
#include "support.h"

static const char *const models[] = {"everything", "oasis_block", "oasis_router", "k_quants", "mixed_weights",
                                     "sliding_window", "qwen3", "llama"};

enum { MODELS = sizeof models / sizeof *models, LENGTH = 100, VOCAB = 128 };

/* A timeline longer than a block of attention (64), for a model; logits of all of it, computed once. */
typedef struct timeline {
    const char *name;
    skl_model *model;
    size_t vocab, layers;
    int32_t tokens[LENGTH];
    float logits[LENGTH * VOCAB];        /* [LENGTH][vocab] of the format being tested */
} timeline;

static timeline *timeline_open(const char *name)
{
    timeline *line = (timeline *)calloc(1, sizeof *line);
    uint64_t state = 3;
    size_t i;

    line->name = name;
    line->model = open_golden(name);
    line->vocab = skl_model_vocab(line->model);
    line->layers = skl_model_layers(line->model);
    CHECK(line->vocab > 0 && line->vocab <= VOCAB);
    for (i = 0; i < LENGTH; i++) line->tokens[i] = (int32_t)(i ? random_bits(&state) % line->vocab : 1);
    return line;
}

static void timeline_close(timeline *line)
{
    skl_model_close(line->model);
    free(line);
}

static skl_session_desc default_desc(void)
{
    skl_session_desc desc;

    memset(&desc, 0, sizeof desc);
    desc.context = LENGTH;
    desc.threads = 1;
    return desc;
}

/* Every place that something can happen at; fewer where that is slow: at the scalar level alone, and under emulation. */
static size_t step(void)
{
    return skl_isa_available() == 1u << SKL_ISA_SCALAR || getenv("EMULATOR") ? 11 : 1;
}

static size_t logits_size(const timeline *line)
{
    return LENGTH * line->vocab * sizeof(float);
}

/* One uncut pass by one thread: what everything else is compared with. */
static void timeline_run(timeline *line, const skl_session_desc *desc)
{
    skl_session *session = open_session(line->model, desc);

    if (!CHECK_EQ_INT(skl_eval_rows(session, line->tokens, LENGTH, NULL, LENGTH, line->logits), SKL_OK))
        printf("  %s: %s\n", line->name, skl_session_error(session)->message);
    skl_session_close(session);
}

static int same_logits(const timeline *line, const float *logits, const char *what, long detail)
{
    const int good = CHECK(memcmp(logits, line->logits, logits_size(line)) == 0);

    if (!good) printf("  %s, %s %ld\n", line->name, what, detail);
    return good;
}

/* Logits [vocab] of a single position. */
static int same_row(const timeline *line, size_t row, const float *logits, const char *what, long detail)
{
    const int good = CHECK(memcmp(logits, line->logits + row * line->vocab, line->vocab * sizeof(float)) == 0);

    if (!good) printf("  %s, row %ld, %s %ld\n", line->name, (long)row, what, detail);
    return good;
}

static void check_run(const timeline *line, const skl_session_desc *desc, const char *what, long detail)
{
    static float logits[LENGTH * VOCAB];
    skl_session *session = open_session(line->model, desc);

    CHECK_EQ_INT(skl_eval_rows(session, line->tokens, LENGTH, NULL, LENGTH, logits), SKL_OK);
    same_logits(line, logits, what, detail);
    skl_session_close(session);
}

/* --- determinism --- */

/* Every level in every format of activations and cache. */
static void check_levels(timeline *line)
{
    static const struct { skl_activation activation; skl_group group; skl_kv kv; } formats[] = {
        {SKL_ACT_F32, SKL_GROUP_32, SKL_KV_F32}, {SKL_ACT_A8, SKL_GROUP_32, SKL_KV_F16},
        {SKL_ACT_A8, SKL_GROUP_ROW, SKL_KV_I8}, {SKL_ACT_A4, SKL_GROUP_32, SKL_KV_I4},
        {SKL_ACT_A4, SKL_GROUP_ROW, SKL_KV_F16}
    };
    uint64_t before = 0;
    size_t i;
    int isa;

    for (i = 0; i < sizeof formats / sizeof *formats; i++) {
        skl_session_desc desc = default_desc();
        desc.activation = formats[i].activation;
        desc.group = formats[i].group;
        desc.kv = formats[i].kv;
        desc.isa = SKL_ISA_SCALAR;
        timeline_run(line, &desc);
        CHECK(hash_bytes(line->logits, logits_size(line)) != before); /* the option does something */
        before = hash_bytes(line->logits, logits_size(line));
        for (isa = SKL_ISA_SCALAR + 1; isa < SKL_ISA_COUNT; isa++) {
            if (!level_available(isa)) continue;
            desc.isa = (skl_isa)isa;
            check_run(line, &desc, "level", isa);
            desc.chunk = 1;
            check_run(line, &desc, "token by token, level", isa);
            desc.chunk = 0;
        }
    }
}

/* Last item first, on the calling thread. */
static void backwards(void *user, size_t count, void (*task)(void *arg, size_t index), void *arg)
{
    (void)user;
    while (count-- > 0) task(arg, count);
}

#if !defined(_WIN32)
typedef struct share { size_t count, step, first; void (*task)(void *arg, size_t index); void *arg; } share;

/* A thread of the caller's with its own idea of rounding. */
static void *share_run(void *arg)
{
    const share *s = (const share *)arg;
    size_t i;

    fesetround(FE_UPWARD);
    for (i = s->first; i < s->count; i += s->step) s->task(s->arg, i);
    return NULL;
}

static void two_threads(void *user, size_t count, void (*task)(void *arg, size_t index), void *arg)
{
    share shares[2];
    pthread_t other;
    int i;

    (void)user;
    for (i = 0; i < 2; i++) {
        shares[i].count = count;
        shares[i].step = 2;
        shares[i].first = (size_t)i;
        shares[i].task = task;
        shares[i].arg = arg;
    }
    if (pthread_create(&other, NULL, share_run, &shares[1]) != 0) {
        backwards(user, count, task, arg);
        return;
    }
    for (i = 0; (size_t)i < count; i += 2) task(arg, (size_t)i);
    pthread_join(other, NULL);
}
#endif

static void check_threads_and_chunks(const timeline *line)
{
    static const size_t chunks[] = {1, 2, 3, 7, 16, 64, LENGTH};
    skl_session_desc desc;
    size_t threads, i;

    for (threads = 1; threads <= 8; threads += (step() + 3) / 4) {
        desc = default_desc();
        desc.threads = threads;
        desc.chunk = chunks[6 - threads % 4];
        check_run(line, &desc, "threads", (long)threads);
    }
    for (threads = 1; threads <= 3; threads += 2)
        for (i = 0; i < sizeof chunks / sizeof *chunks; i += (step() + 3) / 4) {
            desc = default_desc();
            desc.threads = threads;
            desc.chunk = chunks[i];
            check_run(line, &desc, "chunk", (long)chunks[i]);
        }
    desc = default_desc();
    desc.threads = 4;
    desc.parallel_for = backwards;
    check_run(line, &desc, "the caller's loop", 0);
#if !defined(_WIN32)
    desc.chunk = 32; /* few calls: each one starts a thread */
    desc.parallel_for = two_threads;
    check_run(line, &desc, "the caller's threads", 0);
#endif
}

/* Cut into two calls at every point; then truncated and filled again at every point, and diverted at every point. */
static void check_histories(const timeline *line)
{
    static float logits[LENGTH * VOCAB];
    float last[VOCAB];
    const skl_session_desc desc = default_desc();
    skl_session *session = open_session(line->model, &desc);
    int32_t diverted[LENGTH];
    size_t split, reused;

    for (split = 0; split <= LENGTH; split += step()) {
        CHECK_EQ_INT(skl_session_truncate(session, 0), SKL_OK);
        CHECK_EQ_INT(skl_eval_rows(session, line->tokens, split, NULL, split, logits), SKL_OK);
        CHECK_EQ_INT(skl_session_position(session), split);
        CHECK_EQ_INT(skl_eval_rows(session, line->tokens + split, LENGTH - split, NULL, LENGTH - split,
                                   logits + split * line->vocab), SKL_OK);
        same_logits(line, logits, "cut at", (long)split);
    }
    for (split = 0; split <= LENGTH; split += step()) {
        CHECK_EQ_INT(skl_session_truncate(session, split), SKL_OK);
        reused = 12345;
        CHECK_EQ_INT(skl_session_sync(session, line->tokens, LENGTH, &reused, last), SKL_OK);
        CHECK_EQ_INT(reused, split < LENGTH ? split : LENGTH - 1); /* with logits, the last token is evaluated */
        same_row(line, LENGTH - 1, last, "truncated at", (long)split);
        CHECK_EQ_INT(skl_session_position(session), LENGTH);
        CHECK(memcmp(skl_session_tokens(session), line->tokens, sizeof line->tokens) == 0);
    }
    for (split = 0; split < LENGTH; split += 3 * step()) {
        memcpy(diverted, line->tokens, sizeof diverted);
        diverted[split] = (diverted[split] + 1) % (int32_t)line->vocab;
        CHECK_EQ_INT(skl_session_sync(session, diverted, LENGTH, &reused, NULL), SKL_OK);
        CHECK_EQ_INT(reused, split);
        CHECK_EQ_INT(skl_session_sync(session, line->tokens, LENGTH, &reused, last), SKL_OK);
        CHECK_EQ_INT(reused, split);
        same_row(line, LENGTH - 1, last, "diverted at", (long)split);
    }
    CHECK_EQ_INT(skl_session_sync(session, line->tokens, LENGTH, &reused, NULL), SKL_OK);
    CHECK_EQ_INT(reused, LENGTH); /* nothing to do */
    CHECK_EQ_INT(skl_session_sync(session, line->tokens, 10, NULL, last), SKL_OK); /* shorter */
    CHECK_EQ_INT(skl_session_position(session), 10);
    same_row(line, 9, last, "shortened to", 10);
    CHECK_EQ_INT(skl_session_sync(session, NULL, 0, &reused, NULL), SKL_OK);
    CHECK_EQ_INT(reused, 0);
    CHECK_EQ_INT(skl_session_position(session), 0);
    skl_session_close(session);
}

/* Chosen rows are rows of all; and eval gives the last one. */
static void check_rows(const timeline *line)
{
    static const size_t rows[] = {0, 1, 5, 6, 7, 20, 21, 22, 23, 24, 25, 26, 27,
                                  28, 29, 30, 31, 32, 33, 34, 35, 36, 64, 99};
    enum { ROWS = sizeof rows / sizeof *rows };
    static float logits[ROWS * VOCAB];
    skl_session_desc desc = default_desc();
    size_t i, chunk;

    for (chunk = 0; chunk < 40; chunk += 13) {
        skl_session *session;
        desc.chunk = chunk;
        session = open_session(line->model, &desc);
        CHECK_EQ_INT(skl_eval_rows(session, line->tokens, LENGTH, rows, ROWS, logits), SKL_OK);
        for (i = 0; i < ROWS; i++) same_row(line, rows[i], logits + i * line->vocab, "chosen rows, chunk", (long)chunk);
        CHECK_EQ_INT(skl_session_truncate(session, 0), SKL_OK);
        CHECK_EQ_INT(skl_eval(session, line->tokens, 50, logits), SKL_OK);
        same_row(line, 49, logits, "the last row, chunk", (long)chunk);
        CHECK_EQ_INT(skl_eval(session, line->tokens + 50, 49, NULL), SKL_OK);
        CHECK_EQ_INT(skl_eval(session, line->tokens + 99, 1, logits), SKL_OK);
        same_row(line, 99, logits, "without logits in between, chunk", (long)chunk);
        skl_session_close(session);
    }
}

typedef struct stopper { long asked, stop_at; } stopper;

static int stop(void *user)
{
    stopper *s = (stopper *)user;

    return ++s->asked == s->stop_at;
}

/* Cancelled at every layer of every chunk, then continued. */
static void check_cancel(const timeline *line)
{
    static float last[VOCAB];
    stopper s = {0, 0};
    skl_session_desc desc = default_desc();
    skl_session *session;
    const long chunks = (LENGTH + 15) / 16, asks = (long)line->layers * chunks;
    long at;

    desc.chunk = 16;
    desc.cancel.stop = stop;
    desc.cancel.user = &s;
    session = open_session(line->model, &desc);
    for (at = 1; at <= asks; at += (long)step()) {
        size_t held;
        s.asked = 0;
        s.stop_at = at;
        CHECK_EQ_INT(skl_session_truncate(session, 0), SKL_OK);
        CHECK_EQ_INT(skl_eval(session, line->tokens, LENGTH, last), SKL_CANCELLED);
        CHECK_EQ_INT(s.asked, at);
        held = skl_session_position(session);
        CHECK_EQ_INT(held, (at - 1) / (long)line->layers * 16);
        CHECK_EQ_INT(skl_session_error(session)->status, SKL_CANCELLED);
        s.stop_at = 0;
        CHECK_EQ_INT(skl_eval(session, line->tokens + held, LENGTH - held, last), SKL_OK);
        same_row(line, LENGTH - 1, last, "cancelled at layer", at);
    }
    CHECK(s.asked >= asks / chunks); /* at least once per layer */
    skl_session_close(session);
}

static void test_determinism(void)
{
    size_t i;

    for (i = 0; i < MODELS; i++) {
        timeline *line = timeline_open(models[i]);
        skl_session_desc desc = default_desc();
        check_levels(line);
        timeline_run(line, &desc);
        check_threads_and_chunks(line);
        check_histories(line);
        check_rows(line);
        check_cancel(line);
        timeline_close(line);
    }
}

/* Tiles and tokens of a step: every pair belongs to one item. Tiles of a thread's items fall from half of its share to a few, and
 * only what ends a share or all tiles is no multiple of 4. */
static void check_cut(size_t threads, size_t tiles, size_t tokens)
{
    static unsigned char covered[300 * 200];
    const skl__cut cut = skl__cut_of(threads, tiles, tokens);
    size_t item, i, t, missing = 0, last = 0;
    int wrong = 0;

    memset(covered, 0, sizeof covered);
    for (item = 0; item < cut.items * cut.parts * cut.blocks; item++) {
        const skl__range range = skl__cut_tiles(&cut, item);
        const skl__range block = skl__token_block(tokens, cut.blocks, item / cut.items / cut.parts);
        const size_t count = range.end - range.begin;
        wrong |= range.end < range.begin || block.end <= block.begin || block.end > tokens || range.end > tiles;
        wrong |= item % cut.items > 0 && count > last;
        wrong |= count % 4 != 0 && range.end != tiles;
        wrong |= count > 0 && count < 8 && range.end != tiles && range.end % cut.part != 0;
        if (item % cut.items == 0 && threads > 1 && count > 8 && range.end < tiles) {
            CHECK_EQ_INT(count, (cut.part / 2 + 3) / 4 * 4);
        }
        for (t = block.begin; t < block.end && !wrong; t++)
            for (i = range.begin; i < range.end; i++) covered[i * 200 + t]++;
        last = count;
    }
    for (i = 0; i < tiles; i++)
        for (t = 0; t < tokens; t++) missing += covered[i * 200 + t] != 1;
    CHECK(!wrong);
    CHECK_EQ_INT(missing, 0);
    CHECK_EQ_INT(threads % cut.blocks, 0);
    CHECK(cut.blocks == 1 || tokens / cut.blocks >= 48); /* fewer do not make use of a panel */
    CHECK(cut.parts * cut.blocks <= threads);
    CHECK(threads > 1 && (tiles > 8 || cut.blocks > 1) ? cut.items * cut.parts * cut.blocks > 1 || tiles == 0
                                                       : cut.items * cut.parts <= 1); /* one item wakes nobody */
}

static void test_items(void)
{
    static const size_t all_tiles[] = {0, 1, 2, 7, 8, 9, 63, 64, 65, 256, 300};
    static const size_t all_tokens[] = {1, 2, 95, 96, 97, 104, 150, 192, 200};
    /* threads, tokens, blocks */
    static const size_t blocks[][3] = {{1, 192, 1}, {2, 95, 1}, {2, 96, 2}, {2, 192, 2}, {3, 192, 3}, {4, 191, 2},
                                       {4, 192, 4}, {6, 192, 3}, {7, 192, 1}, {8, 192, 4}, {16, 1, 1}};
    size_t i, j, threads;

    for (i = 0; i < sizeof all_tiles / sizeof *all_tiles; i++)
        for (j = 0; j < sizeof all_tokens / sizeof *all_tokens; j++)
            for (threads = 1; threads <= 70; threads += threads < 9 ? 1 : 20) check_cut(threads, all_tiles[i], all_tokens[j]);
    for (i = 0; i < sizeof blocks / sizeof *blocks; i++) CHECK_EQ_INT(skl__token_blocks(blocks[i][0], blocks[i][1]), blocks[i][2]);
}

/* A window that slides: the tokens to hold are the session's own, all but the first. */
static void test_own_tokens(void)
{
    timeline *line = timeline_open("everything");
    const skl_session_desc desc = default_desc();
    skl_session *slid = open_session(line->model, &desc), *fresh = open_session(line->model, &desc);
    float got[VOCAB], wanted[VOCAB];
    size_t reused = 1;

    CHECK_EQ_INT(skl_eval(slid, line->tokens, 50, NULL), SKL_OK);
    CHECK_EQ_INT(skl_session_sync(slid, skl_session_tokens(slid) + 1, 49, &reused, got), SKL_OK);
    CHECK_EQ_INT(reused, 0);
    CHECK_EQ_INT(skl_eval(fresh, line->tokens + 1, 49, wanted), SKL_OK);
    CHECK(memcmp(skl_session_tokens(slid), line->tokens + 1, 49 * sizeof *line->tokens) == 0);
    CHECK(memcmp(got, wanted, line->vocab * sizeof *got) == 0);
    skl_session_close(slid);
    skl_session_close(fresh);
    timeline_close(line);
}

/* Two sessions of one model do not see each other. */
static void test_shared_model(void)
{
    timeline *line = timeline_open("oasis_block");
    skl_session_desc desc = default_desc();
    skl_session *a, *b;
    float logits[VOCAB];
    size_t i;

    timeline_run(line, &desc);
    a = open_session(line->model, &desc);
    b = open_session(line->model, &desc);
    for (i = 0; i < 70; i++) {
        CHECK_EQ_INT(skl_eval(a, line->tokens + i, 1, logits), SKL_OK);
        same_row(line, i, logits, "beside another session, token", (long)i);
        CHECK_EQ_INT(skl_eval(b, line->tokens + (i * 7 + 3) % LENGTH, 1, NULL), SKL_OK);
    }
    skl_session_close(a);
    skl_session_close(b);
    timeline_close(line);
}

#if !defined(_WIN32) && defined(__OPTIMIZE__) /* the promise is for such builds */
/* A whole timeline on one thread, of which the interface says how much stack it needs. */
static void *small_stack_run(void *arg)
{
    timeline *line = timeline_open((const char *)arg);
    skl_session_desc desc = default_desc();

    desc.threads = 1;
    timeline_run(line, &desc);
    check_run(line, &desc, "on a small stack", 0);
    timeline_close(line);
    return NULL;
}

static void test_small_stack(void)
{
    static char names[][16] = {"everything", "w4_blocks", "k_quants"};
    pthread_attr_t attr;
    pthread_t thread;
    size_t i;
    int code;

    for (i = 0; i < sizeof names / sizeof *names; i++) {
        CHECK_EQ_INT(pthread_attr_init(&attr), 0);
        CHECK_EQ_INT(pthread_attr_setstacksize(&attr, 128 * 1024), 0);
        code = pthread_create(&thread, &attr, small_stack_run, names[i]);
        if (code == 0) code = pthread_join(thread, NULL); /* that thread counts checks too: no others meanwhile */
        CHECK_EQ_INT(code, 0);
        pthread_attr_destroy(&attr);
    }
}
#endif

/* --- memory --- */

typedef struct origin { const char *name; int read, given; } origin;

/* Where the model comes from: mapped, read, or in memory already. *data is to be freed. */
static skl_model_desc model_desc_of(const origin *from, path *place, unsigned char **data)
{
    skl_model_desc desc;
    size_t size;

    *place = golden_path(from->name, "model.gguf");
    *data = NULL;
    memset(&desc, 0, sizeof desc);
    desc.threads = 2;
    desc.source.read = from->read;
    if (from->given) {
        *data = read_file(place->text, &size);
        desc.source.data = *data;
        desc.source.data_size = size;
    } else {
        desc.source.path = place->text;
    }
    return desc;
}

/* What is announced, what an open model says, and what the allocator saw. The allocator sees besides: the model's own
 * struct, the index of the file, and 64 bytes to align by. */
static void check_memory(const origin *from)
{
    unsigned char *data;
    path place;
    ledger files, models_ledger, sessions;
    skl_model_desc desc = model_desc_of(from, &place, &data);
    skl_gguf_desc gguf_desc;
    skl_session_desc session_desc = default_desc();
    skl_memory announced, told;
    skl_gguf *gguf = NULL;
    skl_model *model = NULL;
    skl_session *session = NULL;
    skl_value value;
    int64_t heads = 1, kv_heads;
    size_t size, head_dim, padded;
    skl_tensor q;
    char key[64];
    int kv;

    free(read_file(place.text, &size));
    memset(&gguf_desc, 0, sizeof gguf_desc);
    gguf_desc.source = desc.source;
    gguf_desc.allocator = ledger_allocator(&files);
    CHECK_EQ_INT(skl_gguf_open(&gguf, &gguf_desc, NULL), SKL_OK);
    desc.allocator = ledger_allocator(&models_ledger);
    CHECK_EQ_INT(skl_model_open(&model, &desc, NULL), SKL_OK);
    for (kv = SKL_KV_F32; kv <= SKL_KV_I4; kv++) {
        desc.allocator = ledger_allocator(&sessions);
        session_desc.kv = (skl_kv)kv;
        session_desc.allocator = desc.allocator;
        memset(&announced, 0xff, sizeof announced);
        CHECK_EQ_INT(skl_memory_needed(&announced, &desc, &session_desc, NULL), SKL_OK);
        CHECK_EQ_INT(sessions.blocks, 0);
        CHECK_EQ_INT(skl_model_memory(model, &session_desc, &told, NULL), SKL_OK);
        CHECK(memcmp(&announced, &told, sizeof told) == 0);
        CHECK_EQ_INT(skl_session_open(&session, model, &session_desc, NULL), SKL_OK);
        CHECK_EQ_INT(sessions.bytes, told.kv + told.scratch);
        skl_session_close(session);
        CHECK_EQ_INT(sessions.blocks, 0);
    }
    CHECK_EQ_INT(models_ledger.bytes, told.weights + told.tables);
    CHECK(from->given || from->read ? told.mapped == 0 : told.mapped >= size);
    session_desc.kv = SKL_KV_F32; /* the cache, by hand: keys and values, whole blocks of 64 positions */
    CHECK_EQ_INT(skl_model_memory(model, &session_desc, &told, NULL), SKL_OK);
    CHECK_EQ_INT(skl_gguf_find_tensor(skl_model_gguf(model), "blk.0.attn_q.weight", &q), SKL_OK);
    CHECK(skl_gguf_find(skl_model_gguf(model), "general.architecture", &value) == SKL_OK);
    snprintf(key, sizeof key, "%.*s.attention.head_count", (int)value.data[0], (const char *)value.data + 8);
    CHECK_EQ_INT(skl_gguf_find(skl_model_gguf(model), key, &value), SKL_OK);
    skl_value_int(&value, 0, &heads);
    kv_heads = heads;
    strcat(key, "_kv");
    if (skl_gguf_find(skl_model_gguf(model), key, &value) == SKL_OK) skl_value_int(&value, 0, &kv_heads);
    head_dim = (size_t)q.shape[1] / (size_t)heads;
    padded = (head_dim + 15) / 16 * 16;
    CHECK_EQ_INT(told.kv, skl_model_layers(model) * (size_t)kv_heads * 128 * (head_dim + padded) * 4);
    skl_model_close(model);
    CHECK_EQ_INT(models_ledger.blocks, 0);
    skl_gguf_close(gguf);
    CHECK_EQ_INT(files.blocks, 0);
    free(data);
}

/* Nothing is allocated between open and close. */
static void check_no_allocation(const char *name)
{
    const origin from = {name, 0, 0};
    unsigned char *data;
    path place;
    ledger l;
    timeline *line = timeline_open(name);
    skl_model_desc desc = model_desc_of(&from, &place, &data);
    skl_session_desc session_desc = default_desc();
    skl_sampler_desc sampler_desc;
    skl_model *model = NULL;
    skl_session *session = NULL;
    skl_sampler *sampler = NULL;
    float logits[VOCAB];
    int32_t token;
    long calls;
    size_t i;

    desc.allocator = ledger_allocator(&l);
    session_desc.allocator = desc.allocator;
    session_desc.threads = 3;
    memset(&sampler_desc, 0, sizeof sampler_desc);
    sampler_desc.vocab = line->vocab;
    sampler_desc.temperature = 1.0f;
    sampler_desc.top_p = 0.9f;
    sampler_desc.repetition_penalty = 1.1f;
    sampler_desc.allocator = desc.allocator;
    CHECK_EQ_INT(skl_model_open(&model, &desc, NULL), SKL_OK);
    CHECK_EQ_INT(skl_session_open(&session, model, &session_desc, NULL), SKL_OK);
    CHECK_EQ_INT(skl_sampler_open(&sampler, &sampler_desc, NULL), SKL_OK);
    calls = l.calls;
    CHECK(calls > 0);
    CHECK_EQ_INT(skl_eval(session, line->tokens, 70, logits), SKL_OK);
    for (i = 0; i < 20; i++) {
        CHECK_EQ_INT(skl_sample(sampler, logits, line->tokens, 10, &token), SKL_OK);
        CHECK_EQ_INT(skl_eval(session, &token, 1, logits), SKL_OK);
    }
    CHECK_EQ_INT(skl_session_sync(session, line->tokens, LENGTH, NULL, logits), SKL_OK);
    CHECK_EQ_INT(skl_session_truncate(session, 5), SKL_OK);
    CHECK_EQ_INT(skl_eval(session, line->tokens, LENGTH, logits), SKL_CONTEXT_FULL);
    CHECK_EQ_INT(l.calls, calls);
    skl_session_close(session);
    skl_sampler_close(sampler);
    skl_model_close(model);
    CHECK_EQ_INT(l.blocks, 0);
    CHECK_EQ_INT(l.bytes, 0);
    timeline_close(line);
}

enum { FAIL_GGUF, FAIL_MODEL, FAIL_MEASURE, FAIL_SESSION, FAIL_SAMPLER, FAIL_KINDS };

/* Opens something with a ledger; closes it again. */
static skl_status open_kind(int kind, const skl_model *model, const skl_source *source, ledger *l, skl_error *error)
{
    skl_gguf *gguf = NULL;
    skl_model *opened = NULL;
    skl_session *session = NULL;
    skl_sampler *sampler = NULL;
    skl_gguf_desc gguf_desc;
    skl_model_desc model_desc;
    skl_session_desc session_desc = default_desc();
    skl_sampler_desc sampler_desc;
    skl_memory memory;
    skl_allocator allocator;
    skl_status status;

    allocator.alloc = ledger_alloc;
    allocator.free = ledger_free;
    allocator.user = l;
    memset(&gguf_desc, 0, sizeof gguf_desc);
    memset(&model_desc, 0, sizeof model_desc);
    memset(&sampler_desc, 0, sizeof sampler_desc);
    gguf_desc.allocator = model_desc.allocator = session_desc.allocator = sampler_desc.allocator = allocator;
    gguf_desc.source = model_desc.source = *source;
    model_desc.threads = 2;
    sampler_desc.vocab = 1000;
    switch (kind) {
    case FAIL_GGUF: status = skl_gguf_open(&gguf, &gguf_desc, error); break;
    case FAIL_MODEL: status = skl_model_open(&opened, &model_desc, error); break;
    case FAIL_MEASURE: status = skl_memory_needed(&memory, &model_desc, &session_desc, error); break;
    case FAIL_SESSION: status = skl_session_open(&session, model, &session_desc, error); break;
    default: status = skl_sampler_open(&sampler, &sampler_desc, error); break;
    }
    CHECK(status == SKL_OK || (!gguf && !opened && !session && !sampler));
    skl_gguf_close(gguf);
    skl_model_close(opened);
    skl_session_close(session);
    skl_sampler_close(sampler);
    return status;
}

static void test_failing_allocator(void)
{
    const path place = golden_path("k_quants", "model.gguf");
    skl_model *model = open_golden("k_quants");
    int kind, read;

    for (kind = 0; kind < FAIL_KINDS; kind++)
        for (read = 0; read < 2; read++) {
            skl_source from;
            long at = 1;
            memset(&from, 0, sizeof from);
            from.path = place.text;
            from.read = read;
            for (;; at++) {
                ledger l;
                skl_error error;
                skl_status status;
                memset(&l, 0, sizeof l);
                l.fail_at = at;
                memset(&error, 0x55, sizeof error);
                status = open_kind(kind, model, &from, &l, &error);
                CHECK_EQ_INT(l.blocks, 0);
                if (status == SKL_OK || at > 100) break;
                CHECK_EQ_INT(status, SKL_OUT_OF_MEMORY);
                CHECK_EQ_INT(error.status, SKL_OUT_OF_MEMORY);
                CHECK(strstr(error.message, "memory") != NULL);
            }
            CHECK(at > 1 && at < 100); /* it allocates, and succeeds once nothing fails */
        }
    skl_model_close(model);
}

/* Loading is cancelled between tensors. */
static void test_cancelled_loading(void)
{
    const origin from = {"k_quants", 0, 0};
    unsigned char *data;
    path place;
    skl_model_desc desc = model_desc_of(&from, &place, &data);
    ledger l;
    long at;

    desc.allocator = ledger_allocator(&l);
    desc.cancel.stop = stop;
    for (at = 1; at < 1000; at++) {
        stopper s = {0, 0};
        skl_model *model = NULL;
        skl_error error;
        skl_status status;
        s.stop_at = at;
        desc.cancel.user = &s;
        status = skl_model_open(&model, &desc, &error);
        if (status == SKL_OK) {
            skl_model_close(model);
            break;
        }
        CHECK_EQ_INT(status, SKL_CANCELLED);
        CHECK(model == NULL);
        CHECK_EQ_INT(l.blocks, 0);
    }
    CHECK(at > 3 && at < 1000);
    CHECK_EQ_INT(l.blocks, 0);
}

#if !defined(_WIN32)
static long page_faults(void)
{
    struct rusage usage;

    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_minflt : 0;
}

/* What a call touches follows the tokens that the session holds, not those it has room for: some 20 pages of 4 KB, and all
 * keys and values are thousands. */
static void test_large_context(void)
{
    enum { ROOM = 1 << 17 };
    skl_model *model = open_golden("llama");
    skl_session_desc desc = default_desc();
    skl_session *session;
    skl_memory memory;
    long before, pages;
    int32_t i;

    desc.context = ROOM;
    CHECK_EQ_INT(skl_model_memory(model, &desc, &memory, NULL), SKL_OK);
    pages = (long)memory.kv / sysconf(_SC_PAGESIZE);
    before = page_faults();
    session = open_session(model, &desc);
    for (i = 0; i < 40; i++) CHECK_EQ_INT(skl_eval(session, &i, 1, NULL), SKL_OK);
    CHECK(page_faults() - before < pages / 4);
    skl_session_close(session);
    skl_model_close(model);
}
#endif

static void test_memory(void)
{
    static const origin sources[] = {{"k_quants", 0, 0}, {"k_quants", 1, 0}, {"k_quants", 0, 1}, {"everything", 0, 0},
                                     {"oasis_router", 1, 0}, {"odd_sizes", 0, 1}};
    size_t i;

    for (i = 0; i < sizeof sources / sizeof *sources; i++) check_memory(&sources[i]);
    for (i = 0; i < MODELS; i++) check_no_allocation(models[i]);
    test_failing_allocator();
    test_cancelled_loading();
#if !defined(_WIN32)
    test_large_context();
#endif
}

/* --- wrong arguments --- */

static void test_null_arguments(void)
{
    timeline *line = timeline_open("llama");
    const skl_session_desc desc = default_desc();
    skl_session *session = open_session(line->model, &desc);
    skl_gguf *gguf = NULL;
    skl_model *model = NULL;
    skl_session *none = NULL;
    skl_sampler *sampler = NULL;
    skl_sampler_desc sampler_desc;
    skl_memory memory;
    skl_error error;
    float x[32] = {0}, logits[VOCAB];
    unsigned char bytes[256] = {0};
    skl_layout layout;
    int32_t token = 1;
    size_t reused;

    CHECK_EQ_INT(skl_gguf_open(NULL, NULL, &error), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_gguf_open(&gguf, NULL, NULL), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_model_open(NULL, NULL, NULL), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_model_open(&model, NULL, &error), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_memory_needed(&memory, NULL, NULL, &error), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_model_memory(NULL, NULL, &memory, &error), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_model_memory(line->model, NULL, NULL, &error), SKL_BAD_ARGUMENT);
    CHECK(skl_model_gguf(NULL) == NULL && skl_model_vocab(NULL) == 0 && skl_model_context(NULL) == 0);
    CHECK(skl_model_layers(NULL) == 0 && skl_model_width(NULL) == 0 && skl_model_bytes_per_token(NULL) == 0);
    CHECK_EQ_INT(skl_session_open(NULL, line->model, NULL, &error), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_session_open(&none, NULL, NULL, &error), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_eval(NULL, &token, 1, logits), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_eval(session, NULL, 1, logits), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_eval_rows(NULL, &token, 1, NULL, 1, logits), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_eval_rows(session, &token, 1, NULL, 1, NULL), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_session_sync(NULL, &token, 1, NULL, NULL), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_session_sync(session, NULL, 1, &reused, NULL), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_session_truncate(NULL, 0), SKL_BAD_ARGUMENT);
    CHECK(skl_session_position(NULL) == 0 && skl_session_context(NULL) == 0 && skl_session_tokens(NULL) == NULL);
    CHECK(skl_session_threads(NULL) == 0 && skl_session_isa(NULL) == SKL_ISA_DEFAULT);
    skl_session_close(open_session(line->model, NULL)); /* all defaults: see there */
    CHECK(skl_session_error(NULL) != NULL);
    CHECK_EQ_INT(skl_sampler_open(NULL, NULL, &error), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_sampler_open(&sampler, NULL, NULL), SKL_BAD_ARGUMENT);
    memset(&sampler_desc, 0, sizeof sampler_desc);
    sampler_desc.vocab = 4;
    CHECK_EQ_INT(skl_sampler_open(&sampler, &sampler_desc, NULL), SKL_OK);
    CHECK_EQ_INT(skl_sample(NULL, x, NULL, 0, &token), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_sample(sampler, NULL, NULL, 0, &token), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_sample(sampler, x, NULL, 0, NULL), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_sample(sampler, x, NULL, 1, &token), SKL_BAD_ARGUMENT);
    skl_sampler_close(sampler);
    CHECK_EQ_INT(skl_quantize(SKL_TYPE_Q4_0, NULL, 32, bytes), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_quantize(SKL_TYPE_Q4_0, x, 32, NULL), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_quantize(SKL_TYPE_Q4_0, x, 31, bytes), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_quantize(SKL_TYPE_Q4_K, x, 32, bytes), SKL_UNSUPPORTED);
    CHECK_EQ_INT(skl_quantize(99, x, 32, bytes), SKL_UNSUPPORTED);
    CHECK_EQ_INT(skl_quantize(-1, x, 32, bytes), SKL_UNSUPPORTED);
    CHECK_EQ_INT(skl_quantize(SKL_TYPE_Q4_0, NULL, 0, NULL), SKL_OK);
    CHECK_EQ_INT(skl_dequantize(SKL_TYPE_Q4_0, NULL, 32, x), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_dequantize(SKL_TYPE_Q4_0, bytes, 32, NULL), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_dequantize(SKL_TYPE_Q4_0, bytes, 33, x), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_dequantize(99, bytes, 32, x), SKL_UNSUPPORTED);
    x[5] = (float)NAN;
    CHECK_EQ_INT(skl_quantize(SKL_TYPE_Q4_0, x, 32, bytes), SKL_NOT_FINITE);
    x[5] = 1e10f;
    CHECK_EQ_INT(skl_quantize(SKL_TYPE_Q4_0, x, 32, bytes), SKL_NOT_FINITE); /* its scale does not fit f16 */
    CHECK_EQ_INT(skl_quantize(SKL_TYPE_F16, x, 32, bytes), SKL_NOT_FINITE);
    x[5] = 3e38f;
    x[6] = -3e38f;
    CHECK_EQ_INT(skl_quantize(SKL_TYPE_Q4_1, x, 32, bytes), SKL_NOT_FINITE); /* nor does the range fit a float */
    CHECK_EQ_INT(skl_quantize(SKL_TYPE_Q8_0, x, 32, bytes), SKL_NOT_FINITE);
    CHECK_EQ_INT(skl_layout_of(NULL, SKL_TYPE_Q4_0, 1, 32), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_layout_of(&layout, SKL_TYPE_Q4_0, 0, 32), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_layout_of(&layout, SKL_TYPE_Q4_0, 1, 33), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_layout_of(&layout, SKL_TYPE_Q4_0, UINT64_MAX, 32), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_layout_of(&layout, SKL_TYPE_Q4_0, 1, UINT64_MAX), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_layout_of(&layout, SKL_TYPE_F32, 1, 32), SKL_UNSUPPORTED);
    CHECK_EQ_INT(skl_layout_of(&layout, SKL_TYPE_Q4_0, 1, 32), SKL_OK);
    CHECK(skl_packed_bytes(NULL) == 0 && skl_packed_tile_bytes(NULL) == 0);
    CHECK_EQ_INT(skl_pack(NULL, SKL_TYPE_Q4_0, bytes, bytes), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_pack(&layout, SKL_TYPE_Q4_0, NULL, bytes), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_pack(&layout, SKL_TYPE_Q4_0, bytes, NULL), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_pack(&layout, SKL_TYPE_Q8_0, bytes, bytes), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_pack_values(&layout, NULL, bytes), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_unpack_row(&layout, bytes, 1, x), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_unpack_row(NULL, bytes, 0, x), SKL_BAD_ARGUMENT);
    CHECK_STR(skl_type_name(99), "?");
    CHECK(skl_type_bytes(99) == 0 && skl_type_bytes(-1) == 0 && skl_type_block(-1) == 0);
    CHECK_STR(skl_isa_name((skl_isa)99), "?");
    CHECK_STR(skl_isa_name((skl_isa)-1), "?");
    CHECK_STR(skl_status_string((skl_status)99), "unknown status");
    skl_gguf_close(NULL);
    skl_model_close(NULL);
    skl_session_close(NULL);
    skl_sampler_close(NULL);
    skl_session_close(session);
    timeline_close(line);
}

/* Refuses what is too large to be meant, so that a test on a small machine does not take its memory. */
static void *modest_alloc(void *user, size_t size)
{
    (void)user;
    return size > (size_t)1 << 28 ? NULL : malloc(size);
}

static void modest_free(void *user, void *memory)
{
    (void)user;
    free(memory);
}

/* One field changed; the session must open or be refused, with the name of the field in the message. */
static void expect_session(const skl_model *model, const skl_session_desc *given, skl_status wanted, const char *word)
{
    skl_session_desc desc = *given;
    skl_session *session = NULL;
    skl_memory memory;
    skl_error error;
    skl_status status;

    if (!desc.allocator.alloc && !desc.allocator.free) {
        desc.allocator.alloc = modest_alloc;
        desc.allocator.free = modest_free;
    }
    memset(&error, 0, sizeof error);
    status = skl_session_open(&session, model, &desc, &error);
    if (!CHECK_EQ_INT(status, wanted) || (wanted && !CHECK(strstr(error.message, word))))
        printf("  %s: %s\n", word, error.message);
    CHECK((status == SKL_OK) == (session != NULL));
    if (status == SKL_BAD_ARGUMENT && !strstr(word, "allocator"))
        CHECK_EQ_INT(skl_model_memory(model, &desc, &memory, NULL), SKL_BAD_ARGUMENT);
    skl_session_close(session);
    session = NULL;
    CHECK_EQ_INT(skl_session_open(&session, model, &desc, NULL), wanted);
    skl_session_close(session);
}

static void test_session_desc(void)
{
    skl_model *model = open_golden("mixed_weights");
    skl_session_desc desc;
    int i;

#define SWEEP(field, value, wanted, word) \
    (desc = default_desc(), desc.field = (value), expect_session(model, &desc, (wanted), (word)))
    for (i = -2; i < 12; i++) {
        SWEEP(activation, (skl_activation)i, i < 0 || i > SKL_ACT_A4 ? SKL_BAD_ARGUMENT : SKL_OK, "activation");
        SWEEP(group, (skl_group)i, i < 0 || i > SKL_GROUP_ROW ? SKL_BAD_ARGUMENT : SKL_OK, "group");
        SWEEP(kv, (skl_kv)i, i < 0 || i > SKL_KV_I4 ? SKL_BAD_ARGUMENT : SKL_OK, "kv");
        SWEEP(isa, (skl_isa)i, i < 0 || i >= SKL_ISA_COUNT ? SKL_BAD_ARGUMENT
              : i == 0 || level_available(i) ? SKL_OK : SKL_UNSUPPORTED, "isa");
    }
    SWEEP(activation, (skl_activation)INT_MAX, SKL_BAD_ARGUMENT, "activation");
    SWEEP(context, 0, SKL_OK, "");
    SWEEP(context, 1, SKL_OK, "");
    SWEEP(context, INT32_MAX, SKL_OUT_OF_MEMORY, "memory");
    SWEEP(context, (size_t)INT32_MAX + 1, SKL_BAD_ARGUMENT, "context");
    SWEEP(context, SIZE_MAX, SKL_BAD_ARGUMENT, "context");
    SWEEP(chunk, 0, SKL_OK, "");
    SWEEP(chunk, 1, SKL_OK, "");
    SWEEP(chunk, INT32_MAX, SKL_OK, ""); /* no more than the context */
    SWEEP(chunk, SIZE_MAX, SKL_BAD_ARGUMENT, "");
    SWEEP(threads, 0, SKL_OK, "");
    SWEEP(threads, 7, SKL_OK, "");
    SWEEP(threads, 1025, SKL_BAD_ARGUMENT, "threads");
    SWEEP(threads, SIZE_MAX, SKL_BAD_ARGUMENT, "threads");
    SWEEP(allocator.alloc, modest_alloc, SKL_BAD_ARGUMENT, "allocator");
    SWEEP(allocator.free, modest_free, SKL_BAD_ARGUMENT, "allocator");
#undef SWEEP
    skl_model_close(model);
}

/* Of the levels that a mask leaves, the best one; a level by name must be among them. */
static void test_isa_masks(void)
{
    skl_model *model = open_golden("mixed_weights");
    skl_session_desc desc = default_desc();
    skl_sampler_desc sampler_desc;
    skl_sampler *sampler = NULL;
    skl_session *session = NULL;
    uint32_t mask;
    skl_error error;
    int isa;

    memset(&sampler_desc, 0, sizeof sampler_desc);
    sampler_desc.vocab = VOCAB;
    for (mask = 1; mask < 1u << SKL_ISA_COUNT; mask++) {
        const uint32_t left = mask & skl_isa_available();

        desc.isa_mask = sampler_desc.isa_mask = mask;
        desc.isa = SKL_ISA_DEFAULT;
        CHECK_EQ_INT(skl_session_open(&session, model, &desc, &error), left ? SKL_OK : SKL_UNSUPPORTED);
        if (left) CHECK_EQ_INT(left >> skl_session_isa(session), 1); /* it is the highest bit */
        else CHECK_STR(error.where, "isa_mask");
        skl_session_close(session);
        session = NULL;
        CHECK_EQ_INT(skl_sampler_open(&sampler, &sampler_desc, &error), left ? SKL_OK : SKL_UNSUPPORTED);
        skl_sampler_close(sampler);
        sampler = NULL;
        for (isa = SKL_ISA_SCALAR; isa < SKL_ISA_COUNT && mask % 7 == 0; isa++) { /* every seventh mask: each is a session */
            desc.isa = (skl_isa)isa;
            CHECK_EQ_INT(skl_session_open(&session, model, &desc, &error), left >> isa & 1 ? SKL_OK : SKL_UNSUPPORTED);
            if (!(left >> isa & 1)) CHECK_STR(error.where, level_available(isa) ? "isa_mask" : "isa");
            skl_session_close(session);
            session = NULL;
        }
    }
    skl_model_close(model);
}

static void test_sampler_desc(void)
{
    static const float bad[] = {-1.0f, (float)NAN, (float)HUGE_VAL, -(float)HUGE_VAL};
    static const char *const fields[] = {"temperature", "top_p", "min_p", "repetition_penalty"};
    static const size_t sizes[] = {0, (size_t)INT32_MAX + 1, SIZE_MAX};
    skl_sampler *sampler = NULL;
    skl_sampler_desc desc;
    skl_error error;
    size_t i, k;

    for (i = 0; i < 4; i++)
        for (k = 0; k < 4; k++) {
            memset(&desc, 0, sizeof desc);
            desc.vocab = 10;
            if (i == 0) desc.temperature = bad[k];
            if (i == 1) desc.top_p = bad[k];
            if (i == 2) desc.min_p = bad[k];
            if (i == 3) desc.repetition_penalty = bad[k];
            CHECK_EQ_INT(skl_sampler_open(&sampler, &desc, &error), SKL_BAD_ARGUMENT);
            CHECK_STR(error.where, fields[i]);
        }
    for (k = 0; k < 3; k++) {
        memset(&desc, 0, sizeof desc);
        desc.vocab = sizes[k];
        CHECK_EQ_INT(skl_sampler_open(&sampler, &desc, &error), SKL_BAD_ARGUMENT);
        CHECK_STR(error.where, "vocab");
    }
    memset(&desc, 0, sizeof desc);
    desc.vocab = 10;
    desc.top_p = 1.01f;
    CHECK_EQ_INT(skl_sampler_open(&sampler, &desc, &error), SKL_BAD_ARGUMENT);
    desc.top_p = 0.0f;
    desc.min_p = 1.01f;
    CHECK_EQ_INT(skl_sampler_open(&sampler, &desc, &error), SKL_BAD_ARGUMENT);
    desc.min_p = 1.0f;
    desc.top_p = 1.0f;
    desc.top_k = SIZE_MAX;
    CHECK_EQ_INT(skl_sampler_open(&sampler, &desc, &error), SKL_OK);
    skl_sampler_close(sampler);
    CHECK(sampler != NULL);
}

/* The size tag of each desc: absent, right, of a newer program (zeros or a wish behind it), too small, nonsense. */
static void test_size_tags(void)
{
    union { skl_gguf_desc gguf; skl_model_desc model; skl_session_desc session; skl_sampler_desc sampler;
            unsigned char bytes[sizeof(skl_session_desc) + sizeof(skl_sampler_desc) + 256]; } u;
    const size_t sizes[] = {sizeof u.gguf, sizeof u.model, sizeof u.session, sizeof u.sampler};
    const path place = golden_path("llama", "model.gguf");
    skl_model *model = open_golden("llama");
    int kind, tag;

    for (kind = 0; kind < 4; kind++)
        for (tag = 0; tag < 8; tag++) {
            const size_t n = sizes[kind];
            const size_t tags[] = {0, n, n + 1, n + 200, n + 200, n - 1, 1, SIZE_MAX};
            const int good = tag < 4;
            skl_gguf *gguf = NULL;
            skl_model *opened = NULL;
            skl_session *session = NULL;
            skl_sampler *sampler = NULL;
            skl_error error;
            skl_status status;
            memset(&u, 0, sizeof u);
            if (tag == 4) u.bytes[n + 150] = 1;
            u.gguf.size = tags[tag]; /* first in every desc */
            if (kind == 0) u.gguf.source.path = place.text;
            if (kind == 1) u.model.source.path = place.text;
            if (kind == 2) u.session.threads = 1;
            if (kind == 3) u.sampler.vocab = 10;
            status = kind == 0   ? skl_gguf_open(&gguf, &u.gguf, &error)
                     : kind == 1 ? skl_model_open(&opened, &u.model, &error)
                     : kind == 2 ? skl_session_open(&session, model, &u.session, &error)
                                 : skl_sampler_open(&sampler, &u.sampler, &error);
            if (!CHECK_EQ_INT(status, good ? SKL_OK : SKL_BAD_ARGUMENT)) printf("  desc %d, tag %d\n", kind, tag);
            if (!good) CHECK(strstr(error.message, "size") != NULL);
            skl_gguf_close(gguf);
            skl_model_close(opened);
            skl_session_close(session);
            skl_sampler_close(sampler);
        }
    skl_model_close(model);
}

/* After a refused call the session is as it was: the next row has the bits it should have. */
static void expect_refused(const timeline *line, skl_session *session, skl_status got, skl_status wanted,
                           const char *word)
{
    const size_t position = skl_session_position(session);
    float logits[VOCAB];

    if (!CHECK_EQ_INT(got, wanted) || !CHECK(strstr(skl_session_error(session)->message, word) != NULL))
        printf("  %s: %s\n", word, skl_session_error(session)->message);
    CHECK_EQ_INT(skl_session_error(session)->status, wanted);
    CHECK_EQ_INT(position, 20);
    CHECK_EQ_INT(skl_eval(session, line->tokens + position, 1, logits), SKL_OK);
    same_row(line, position, logits, "after a refused call", (long)wanted);
    CHECK_EQ_INT(skl_session_truncate(session, 20), SKL_OK);
}

static void test_refused_calls(void)
{
    static const int32_t outside[] = {-1, INT32_MIN, INT32_MAX, VOCAB, 80};
    static const size_t descending[] = {2, 1}, twice[] = {1, 1}, beyond[] = {0, 3};
    static float many[LENGTH * VOCAB];
    timeline *line = timeline_open("everything");
    skl_session_desc desc = default_desc();
    skl_session *session;
    int32_t tokens[LENGTH];
    size_t i, place, reused = 77;

#define REFUSED(got, wanted, word) expect_refused(line, session, (got), (wanted), (word))
    CHECK_EQ_INT(line->vocab, 80);
    timeline_run(line, &desc);
    session = open_session(line->model, &desc);
    CHECK_EQ_INT(skl_eval(session, line->tokens, 20, NULL), SKL_OK);
    for (i = 0; i < sizeof outside / sizeof *outside; i++)
        for (place = 0; place < 3; place++) {
            const size_t at = place * 4;
            char word[48];
            memcpy(tokens, line->tokens, sizeof tokens);
            tokens[at] = outside[i];
            snprintf(word, sizeof word, "token %ld for position %lu", (long)outside[i], (unsigned long)(20 + at));
            REFUSED(skl_eval(session, tokens, 9, many), SKL_BAD_ARGUMENT, word);
            REFUSED(skl_session_sync(session, tokens, 9, &reused, many), SKL_BAD_ARGUMENT, "not in the vocab");
        }
    CHECK_EQ_INT(reused, 77);
    REFUSED(skl_eval(session, line->tokens, LENGTH - 19, many), SKL_CONTEXT_FULL, "context of 100");
    REFUSED(skl_eval(session, line->tokens, SIZE_MAX, many), SKL_CONTEXT_FULL, "context of 100");
    REFUSED(skl_session_sync(session, line->tokens, LENGTH + 1, NULL, many), SKL_CONTEXT_FULL, "context of 100");
    REFUSED(skl_eval(session, NULL, 3, many), SKL_BAD_ARGUMENT, "tokens");
    REFUSED(skl_eval_rows(session, line->tokens, 3, descending, 2, many), SKL_BAD_ARGUMENT, "ascend");
    REFUSED(skl_eval_rows(session, line->tokens, 3, twice, 2, many), SKL_BAD_ARGUMENT, "ascend");
    REFUSED(skl_eval_rows(session, line->tokens, 3, beyond, 2, many), SKL_BAD_ARGUMENT, "within");
    REFUSED(skl_eval_rows(session, line->tokens, 3, beyond, 4, many), SKL_BAD_ARGUMENT, "rows");
    REFUSED(skl_eval_rows(session, line->tokens, 3, NULL, 2, many), SKL_BAD_ARGUMENT, "rows");
    REFUSED(skl_eval_rows(session, line->tokens, 3, descending + 1, 1, NULL), SKL_BAD_ARGUMENT, "rows");
    REFUSED(skl_session_truncate(session, 21), SKL_BAD_ARGUMENT, "21 tokens of 20");
#undef REFUSED
    many[0] = 123.0f;
    CHECK_EQ_INT(skl_eval(session, line->tokens, 0, many), SKL_OK); /* nothing to do is no mistake */
    CHECK_EQ_INT(skl_eval(session, NULL, 0, NULL), SKL_OK);
    CHECK_EQ_INT(skl_eval_rows(session, NULL, 0, NULL, 0, NULL), SKL_OK);
    CHECK(many[0] == 123.0f);
    CHECK_EQ_INT(skl_session_position(session), 20);
    CHECK_EQ_INT(skl_eval(session, line->tokens + 20, LENGTH - 20, many), SKL_OK); /* up to the last place */
    same_row(line, LENGTH - 1, many, "at the end of the context", 0);
    CHECK_EQ_INT(skl_eval(session, line->tokens, 1, many), SKL_CONTEXT_FULL);
    CHECK_EQ_INT(skl_session_position(session), LENGTH);
    CHECK_EQ_INT(skl_session_context(session), LENGTH);
    skl_session_close(session);
    timeline_close(line);
}

/* --- the caller's world --- */

#if !defined(_WIN32)
/* What a program does in a day, good and bad. */
static int make_noise(void)
{
    const path place = golden_path("everything", "model.gguf");
    skl_model_desc desc;
    skl_model *model = NULL;
    skl_session *session = NULL;
    const int32_t tokens[] = {1, 2, 3, -4};
    float logits[VOCAB];
    int good;

    memset(&desc, 0, sizeof desc);
    desc.source.path = "no such file";
    good = skl_model_open(&model, &desc, NULL) == SKL_IO;
    desc.source.path = "tests/test.h";
    good &= skl_model_open(&model, &desc, NULL) == SKL_BAD_FILE;
    desc.source.path = place.text;
    good &= skl_model_open(&model, &desc, NULL) == SKL_OK && skl_session_open(&session, model, NULL, NULL) == SKL_OK;
    if (!good) return 0;
    good &= skl_eval(session, tokens, 3, logits) == SKL_OK && skl_eval(session, tokens, 4, logits) == SKL_BAD_ARGUMENT;
    skl_session_close(session);
    skl_model_close(model);
    return good;
}

/* Nothing is written to the standard streams, and nobody minds if they are closed. */
static void test_silence(void)
{
    char byte;
    int ends[2], closed, status = -1;
    pid_t child;

    fflush(stdout);
    for (closed = 0; closed < 2; closed++) {
        if (!CHECK(pipe(ends) == 0)) return;
        child = fork();
        if (child == 0) {
            int good;
            close(ends[0]);
            if (closed) close(1), close(2), close(0);
            else dup2(ends[1], 1), dup2(ends[1], 2);
            good = make_noise();
            if (!closed) fflush(NULL);
            _exit(good ? 0 : 1);
        }
        close(ends[1]);
        CHECK_EQ_INT(read(ends[0], &byte, 1), 0);
        close(ends[0]);
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}
#endif

/* Everything that computes, in one hash. */
static uint64_t work_hash(const timeline *line)
{
    static float logits[LENGTH * VOCAB], values[256], back[256];
    unsigned char bytes[1024];
    skl_session_desc desc = default_desc();
    skl_session *session;
    skl_model *model = open_golden(line->name);
    skl_sampler *sampler = NULL;
    skl_sampler_desc sampler_desc;
    uint64_t hash, state = 5;
    int32_t tokens[16];
    skl_layout layout;
    size_t i;

    desc.threads = 2;
    session = open_session(model, &desc);
    CHECK_EQ_INT(skl_eval_rows(session, line->tokens, 40, NULL, 40, logits), SKL_OK);
    CHECK_EQ_INT(skl_session_sync(session, line->tokens, 50, NULL, logits + 40 * line->vocab), SKL_OK);
    hash = hash_bytes(logits, 41 * line->vocab * sizeof(float));
    memset(&sampler_desc, 0, sizeof sampler_desc);
    sampler_desc.vocab = line->vocab;
    sampler_desc.temperature = 0.7f;
    sampler_desc.top_p = 0.9f;
    sampler_desc.repetition_penalty = 1.3f;
    CHECK_EQ_INT(skl_sampler_open(&sampler, &sampler_desc, NULL), SKL_OK);
    for (i = 0; i < 16; i++) CHECK_EQ_INT(skl_sample(sampler, logits, line->tokens, 9, &tokens[i]), SKL_OK);
    hash = hash * 31 + hash_bytes(tokens, sizeof tokens);
    for (i = 0; i < 256; i++) { /* from bits, so that nothing is computed here: below 1, the second half subnormal */
        const uint32_t bits = (uint32_t)random_bits(&state);
        values[i] = skl__f32_from_bits(i < 128 ? (bits & 0x83ffffffu) | 0x3c000000u : bits & 0x807fffffu);
    }
    CHECK_EQ_INT(skl_quantize(SKL_TYPE_Q8_0, values, 256, bytes), SKL_OK);
    hash = hash * 31 + hash_bytes(bytes, 272);
    CHECK_EQ_INT(skl_quantize(SKL_TYPE_Q4_1, values, 256, bytes), SKL_OK);
    CHECK_EQ_INT(skl_dequantize(SKL_TYPE_Q4_1, bytes, 256, back), SKL_OK);
    hash = hash * 31 + hash_bytes(back, sizeof back);
    CHECK_EQ_INT(skl_layout_of(&layout, SKL_TYPE_Q8_0, 1, 32), SKL_OK);
    layout.wide = 1;
    CHECK_EQ_INT(skl_packed_bytes(&layout), 576);
    CHECK_EQ_INT(skl_pack_values(&layout, values + 128, bytes), SKL_OK);
    CHECK_EQ_INT(skl_unpack_row(&layout, bytes, 0, back), SKL_OK);
    hash = (hash * 31 + hash_bytes(bytes, 576)) * 31 + hash_bytes(back, 128);
    skl_sampler_close(sampler);
    skl_session_close(session);
    skl_model_close(model);
    return hash;
}

static void test_float_environment(void)
{
    static const int directions[] = {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
    static const char *const names[] = {"everything", "oasis_router", "k_quants"};
    size_t i, k;

    for (k = 0; k < 3; k++) {
        timeline *line = timeline_open(names[k]);
        const uint64_t wanted = work_hash(line);
        for (i = 0; i < 3; i++) {
            CHECK(fesetround(directions[i]) == 0);
            CHECK(work_hash(line) == wanted);
            CHECK_EQ_INT(fegetround(), directions[i]);
            CHECK(fesetround(FE_TONEAREST) == 0);
        }
#if SKL__X86
        for (i = 0; i < 4; i++) { /* to zero, flush and denormals-are-zero; exceptions that would trap */
            static const unsigned states[] = {0xff80, 0x8040 | 0x1f80, 0x1f80 & ~0x0680u, 0x7fc0 & ~0x0680u};
            unsigned after;
            uint64_t hash;
            _mm_setcsr(states[i]);
            hash = work_hash(line);
            after = _mm_getcsr();
            _mm_setcsr(0x1f80);
            CHECK_EQ_INT(after & ~0x3fu, states[i] & ~0x3fu); /* the rest are flags, which libc may raise */
            CHECK(hash == wanted);
        }
#endif
        timeline_close(line);
    }
}

/* --- sampling --- */

static skl_sampler_desc sampler_desc_of(size_t vocab, float temperature)
{
    skl_sampler_desc desc;

    memset(&desc, 0, sizeof desc);
    desc.vocab = vocab;
    desc.temperature = temperature;
    desc.seed = 2024;
    return desc;
}

static skl_sampler *open_sampler(const skl_sampler_desc *desc)
{
    skl_sampler *sampler = NULL;

    CHECK_EQ_INT(skl_sampler_open(&sampler, desc, NULL), SKL_OK);
    return sampler;
}

static int32_t draw(skl_sampler *sampler, const float *logits)
{
    int32_t token = -1;

    CHECK_EQ_INT(skl_sample(sampler, logits, NULL, 0, &token), SKL_OK);
    return token;
}

static int32_t draw_once(const skl_sampler_desc *desc, const float *logits, const int32_t *recent, size_t n)
{
    skl_sampler *sampler = open_sampler(desc);
    int32_t token = -1;

    CHECK_EQ_INT(skl_sample(sampler, logits, recent, n, &token), SKL_OK);
    skl_sampler_close(sampler);
    return token;
}

static void test_greedy(void)
{
    static const float ties[] = {1.0f, 3.0f, 2.0f, 3.0f, 3.0f}, low[] = {-5.0f, -4.0f, -9.0f, -9.0f, -9.0f};
    const float excluded[] = {-(float)HUGE_VAL, -3e38f, -(float)HUGE_VAL, -3e38f, -(float)HUGE_VAL};
    static const float zeros[] = {-0.0f, 0.0f, 0.0f, -0.0f, 0.0f};
    const skl_sampler_desc desc = sampler_desc_of(5, 0.0f);

    CHECK_EQ_INT(draw_once(&desc, ties, NULL, 0), 1);
    CHECK_EQ_INT(draw_once(&desc, low, NULL, 0), 1);
    CHECK_EQ_INT(draw_once(&desc, excluded, NULL, 0), 1);
    CHECK_EQ_INT(draw_once(&desc, zeros, NULL, 0), 0);
}

/* The generator and its seeding, against published values: the demo of pcg-c-basic (seed 42, stream 54), and splitmix64
 * seeded with 1234567. Then whole draws, computed in double with the definition of the generator. */
static void test_generator(void)
{
    static const uint32_t pcg[] = {0xa15c02b7u, 0x7b47f409u, 0xba1d3330u, 0x83d2f293u, 0xbfa4784bu, 0xcbed606eu};
    static const uint64_t splitmix[] = {UINT64_C(6457827717110365317), UINT64_C(3203168211198807973),
                                        UINT64_C(9817491932198370423)};
    static const float logits[] = {0.5f, -1.25f, 2.0f, 1.0f, -3.0f, 0.25f, 1.75f, 0.0f};
    static const int32_t wanted[] = {6, 0, 3, 2, 7, 0, 2, 2, 2, 6, 3, 2, 2, 0, 2, 6, 3, 2, 2, 6,
                                     6, 2, 6, 2, 6, 6, 2, 2, 0, 6, 6, 6, 0, 6, 5, 2, 3, 0, 2, 6};
    skl_sampler_desc desc = sampler_desc_of(8, 0.9f);
    skl_sampler *sampler = open_sampler(&desc), *other;
    uint64_t seed = 1234567;
    size_t i, differ = 0;

    for (i = 0; i < 3; i++) CHECK(skl__splitmix(&seed) == splitmix[i]);
    for (i = 0; i < 40; i++) CHECK_EQ_INT(draw(sampler, logits), wanted[i]);
    desc.seed = 2025;
    other = open_sampler(&desc);
    for (i = 0; i < 40; i++) differ += draw(other, logits) != wanted[i];
    CHECK(differ > 10);
    sampler->stream = 54 << 1 | 1;
    sampler->state = (sampler->stream + 42) * UINT64_C(6364136223846793005) + sampler->stream;
    for (i = 0; i < 6; i++) CHECK(skl__pcg(sampler) == pcg[i]);
    skl_sampler_close(sampler);
    skl_sampler_close(other);
}

enum { DRAWS = 100000, CHOICES = 12 };

/* Counts against the probabilities of exp(logit / temperature) among the tokens kept: chi-square, which for up to
 * eleven degrees of freedom is above 31.3 once in a thousand seeds; the seed is fixed. */
static void check_distribution(const skl_sampler_desc *desc, const float *logits, const int *kept, const char *name)
{
    skl_sampler *sampler = open_sampler(desc);
    long counts[CHOICES] = {0};
    double total = 0.0, chi = 0.0, weights[CHOICES];
    float most = -(float)HUGE_VAL;
    int i;

    for (i = 0; i < DRAWS; i++) {
        const int32_t token = draw(sampler, logits);
        if (token >= 0 && token < CHOICES) counts[token]++;
    }
    for (i = 0; i < CHOICES; i++) most = logits[i] > most ? logits[i] : most;
    for (i = 0; i < CHOICES; i++) {
        weights[i] = exp(((double)logits[i] - (double)most) / (double)desc->temperature);
        total += kept[i] ? weights[i] : 0.0;
    }
    for (i = 0; i < CHOICES; i++) {
        const double expected = DRAWS * weights[i] / total;
        if (kept[i]) chi += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
        else if (!CHECK_EQ_INT(counts[i], 0)) printf("  %s, token %d\n", name, i);
    }
    if (!CHECK(chi < 31.3)) printf("  %s: chi-square %.1f\n", name, chi);
    skl_sampler_close(sampler);
}

static void test_distributions(void)
{
    /* at temperature 0.8 the weights are 1, .7, .5, .35, ... of the largest, in no order */
    static const double weights[CHOICES] = {0.12, 0.7, 0.03, 1.0, 0.24, 0.17, 0.5, 0.06, 0.35, 0.09, 0.045, 0.02};
    static const int all[CHOICES] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, two[CHOICES] = {0, 1, 0, 1},
                     three[CHOICES] = {0, 1, 0, 1, 0, 0, 1}, four[CHOICES] = {0, 1, 0, 1, 0, 0, 1, 0, 1};
    skl_sampler_desc desc = sampler_desc_of(CHOICES, 0.8f);
    float logits[CHOICES], shifted[CHOICES];
    int most[CHOICES];
    int i;

    for (i = 0; i < CHOICES; i++) {
        logits[i] = (float)(0.8 * log(weights[i]));
        shifted[i] = logits[i] + 1000.0f;
        most[i] = weights[i] > 0.021;
    }
    check_distribution(&desc, logits, all, "temperature 0.8");
    desc.temperature = 1.7f;
    check_distribution(&desc, logits, all, "temperature 1.7");
    desc.temperature = 0.8f;
    check_distribution(&desc, shifted, all, "large logits"); /* rounded by 3e-5, which chi-square cannot see */
    desc.top_k = 3;
    check_distribution(&desc, logits, three, "top-k 3");
    desc.top_k = CHOICES + 5;
    check_distribution(&desc, logits, all, "top-k above the vocabulary");
    desc.top_k = 0;
    desc.top_p = 0.6f; /* the sum is 3.285: 1.971 is reached by 1 + .7 + .5 */
    check_distribution(&desc, logits, three, "top-p 0.6");
    desc.top_p = 0.70f; /* 2.2995: one more */
    check_distribution(&desc, logits, four, "top-p 0.7");
    desc.top_k = 3; /* of 1 + .7 + .5, 0.7 is 1.54: reached by two */
    check_distribution(&desc, logits, two, "top-p 0.7 of top-k 3");
    desc.top_k = 0;
    desc.top_p = 0.0f;
    desc.min_p = 0.4f;
    check_distribution(&desc, logits, three, "min-p 0.4");
    desc.min_p = 0.021f;
    check_distribution(&desc, logits, most, "min-p 0.021");
    desc.min_p = 1.0f;
    CHECK_EQ_INT(draw_once(&desc, logits, NULL, 0), 3);
    desc.min_p = 0.0f;
    desc.top_p = 1e-9f; /* never nobody */
    CHECK_EQ_INT(draw_once(&desc, logits, NULL, 0), 3);
    desc.top_p = 0.0f;
    desc.top_k = 1;
    CHECK_EQ_INT(draw_once(&desc, logits, NULL, 0), 3);
}

/* Among equals the lower id is kept; -infinity is never drawn, however many draws; extreme temperatures. */
static void test_edges_of_sampling(void)
{
    float logits[CHOICES];
    static const int first[CHOICES] = {1, 1, 1}, every[CHOICES] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const int odd[CHOICES] = {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1};
    skl_sampler_desc desc = sampler_desc_of(CHOICES, 1.0f);
    int i;

    for (i = 0; i < CHOICES; i++) logits[i] = 2.0f;
    desc.top_k = 3;
    check_distribution(&desc, logits, first, "top-k among equals");
    desc.top_k = 0;
    for (i = 0; i < CHOICES; i += 2) logits[i] = -(float)HUGE_VAL;
    check_distribution(&desc, logits, odd, "-infinity");
    for (i = 0; i < CHOICES; i++) logits[i] = (float)(i == 7 ? 100 : i);
    desc.temperature = 1e-40f;
    CHECK_EQ_INT(draw_once(&desc, logits, NULL, 0), 7);
    logits[2] = 3.4e38f;
    logits[3] = -3.4e38f;
    CHECK_EQ_INT(draw_once(&desc, logits, NULL, 0), 2);
    desc.temperature = 1.0f;
    CHECK_EQ_INT(draw_once(&desc, logits, NULL, 0), 2);
    for (i = 0; i < CHOICES; i++) logits[i] = (float)i;
    desc.temperature = 3e38f;
    check_distribution(&desc, logits, every, "a huge temperature");
}

static void test_penalty(void)
{
    static const float positive[] = {2.0f, 1.5f, -1.0f}, near_by[] = {2.0f, 0.9f, -1.0f};
    static const float negative[] = {-1.0f, -1.5f, -9.0f};
    static const float huge[] = {2.0f, 1.5f, 3e38f};
    static const int32_t zero[] = {0, 0, 0}, both[] = {0, 1}, all[] = {2, 1, 0}, bad[] = {0, 3}, worse[] = {-1};
    skl_sampler_desc desc = sampler_desc_of(3, 0.0f);
    skl_sampler *sampler;
    int32_t token = 55;

    CHECK_EQ_INT(draw_once(&desc, positive, zero, 1), 0); /* no penalty asked for */
    desc.repetition_penalty = 1.0f;
    CHECK_EQ_INT(draw_once(&desc, positive, zero, 1), 0);
    desc.repetition_penalty = 2.0f;
    CHECK_EQ_INT(draw_once(&desc, positive, zero, 1), 1); /* 2 / 2 < 1.5 */
    CHECK_EQ_INT(draw_once(&desc, positive, NULL, 0), 0);
    CHECK_EQ_INT(draw_once(&desc, positive, both, 2), 0); /* 1 > 0.75 */
    CHECK_EQ_INT(draw_once(&desc, near_by, zero, 3), 0);    /* 2 / 2 > 0.9: three times is once */
    CHECK_EQ_INT(draw_once(&desc, negative, zero, 1), 1); /* -1 * 2 < -1.5 */
    CHECK_EQ_INT(draw_once(&desc, negative, both, 2), 0); /* -2 > -3 */
    CHECK_EQ_INT(draw_once(&desc, positive, all, 3), 0);
    desc.repetition_penalty = 0.5f; /* below one it rewards */
    CHECK_EQ_INT(draw_once(&desc, positive, both + 1, 1), 1);
    sampler = open_sampler(&desc);
    CHECK_EQ_INT(skl_sample(sampler, positive, bad, 2, &token), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_sample(sampler, positive, worse, 1, &token), SKL_BAD_ARGUMENT);
    CHECK_EQ_INT(skl_sample(sampler, huge, all, 1, &token), SKL_NOT_FINITE); /* 3e38 / 0.5 */
    skl_sampler_close(sampler);
    desc.repetition_penalty = 3e38f;
    desc.temperature = 1.0f;
    sampler = open_sampler(&desc);
    CHECK_EQ_INT(skl_sample(sampler, huge, all + 1, 2, &token), SKL_OK);
    CHECK_EQ_INT(token, 2);
    token = 55;
    CHECK_EQ_INT(skl_sample(sampler, negative, all, 3, &token), SKL_OK); /* the first, -3e38, is still a number */
    CHECK_EQ_INT(token, 0);
    skl_sampler_close(sampler);
}

static void test_not_finite(void)
{
    const float bad[] = {(float)NAN, -(float)NAN, (float)HUGE_VAL};
    static const size_t places[] = {0, 5, CHOICES - 1};
    float logits[CHOICES];
    size_t i, k;
    int mode;

    for (mode = 0; mode < 2; mode++) {
        const skl_sampler_desc desc = sampler_desc_of(CHOICES, mode ? 1.0f : 0.0f);
        skl_sampler *sampler = open_sampler(&desc);
        int32_t token = 55;
        for (i = 0; i < 3; i++)
            for (k = 0; k < 3; k++) {
                memset(logits, 0, sizeof logits);
                logits[places[k]] = bad[i];
                CHECK_EQ_INT(skl_sample(sampler, logits, NULL, 0, &token), SKL_NOT_FINITE);
            }
        for (k = 0; k < CHOICES; k++) logits[k] = -(float)HUGE_VAL;
        CHECK_EQ_INT(skl_sample(sampler, logits, NULL, 0, &token), SKL_NOT_FINITE);
        CHECK_EQ_INT(token, 55);
        logits[places[1]] = -1.0f;
        CHECK_EQ_INT(draw(sampler, logits), 5);
        skl_sampler_close(sampler);
    }
}

int main(void)
{
    test_determinism();
    test_items();
    test_own_tokens();
    test_shared_model();
#if !defined(_WIN32) && defined(__OPTIMIZE__)
    test_small_stack();
#endif
    test_memory();
    test_null_arguments();
    test_session_desc();
    test_isa_masks();
    test_sampler_desc();
    test_size_tags();
    test_refused_calls();
#if !defined(_WIN32)
    test_silence();
#endif
    test_float_environment();
    test_greedy();
    test_generator();
    test_distributions();
    test_edges_of_sampling();
    test_penalty();
    test_not_finite();
    return test_finish();
}
