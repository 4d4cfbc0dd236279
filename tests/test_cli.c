/* The command lines of eval and minimal, and the manners that all programs share. Logits are compared with the golden
 * files of the reference implementation; hash and perplexity with what their definitions make of those. */
#define _XOPEN_SOURCE 700
#include "process.h"
#include "test.h"

#include <stdint.h>

#define LLAMA "tests/golden/llama/"
#define EVAL(...) process_run("", 0, "eval", __VA_ARGS__, (char *)NULL)
#define EVAL_LLAMA(...) EVAL("-m", LLAMA "model.gguf", "--ids", LLAMA "tokens.i32", __VA_ARGS__)

/* A failure is one line on stderr that contains what, and nothing on stdout. */
static void check_complaint(process_result r, int code, const char *what)
{
    CHECK_EQ_INT(r.code, code);
    CHECK_STR(r.out.bytes, "");
    CHECK_EQ_INT(process_lines(&r.err), 1);
    if (!CHECK(strstr(r.err.bytes, what) != NULL)) printf("    no \"%s\" in: %s\n", what, r.err.bytes);
    process_free(&r);
}

static process_text read_path(const char *path)
{
    FILE *file = fopen(path, "rb");
    process_text none = {NULL, 0};

    return file ? process_read(file) : none;
}

static void write_path(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");

    CHECK(file && fwrite(bytes, 1, size, file) == size);
    if (file) fclose(file);
}

static const char *output_path(void)
{
    static char path[1100];

    snprintf(path, sizeof path, "%s/test_cli.out", process_build());
    return path;
}

static float float_at(const process_text *text, size_t i)
{
    const unsigned char *b = (const unsigned char *)text->bytes + 4 * i;
    const uint32_t bits = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static int32_t id_at(const process_text *text, size_t i)
{
    const unsigned char *b = (const unsigned char *)text->bytes + 4 * i;

    return (int32_t)(b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24);
}

/* The number of a line "number NAME VALUE" of trace.txt. */
static double trace_number(const process_text *trace, const char *name)
{
    char pattern[64];
    const char *found;

    snprintf(pattern, sizeof pattern, "number %s ", name);
    found = trace->bytes ? strstr(trace->bytes, pattern) : NULL;
    CHECK(found != NULL);
    return found ? strtod(found + strlen(pattern), NULL) : 0.0;
}

/* FNV-1a, 64 bits, as its authors define it. */
static uint64_t fnv1a(const char *bytes, size_t n)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    size_t i;

    for (i = 0; i < n; i++) hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(1099511628211);
    return hash;
}

static void test_manners(void)
{
    static const char *const programs[] = {"eval", "chat", "quantize", "bench"};
    size_t i;

    for (i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        char path[1100], usage[32];
        process_result r;

        snprintf(path, sizeof path, "%s/%s", process_build(), programs[i]);
        snprintf(usage, sizeof usage, "usage: %s", programs[i]);
        if (access(path, X_OK)) continue;  /* not built */
        r = process_run("", 0, programs[i], "--help", (char *)NULL);
        CHECK_EQ_INT(r.code, 0);
        CHECK(strncmp(r.out.bytes, usage, strlen(usage)) == 0);
        CHECK_STR(r.err.bytes, "");
        process_free(&r);
        check_complaint(process_run("", 0, programs[i], "--no-such-option", (char *)NULL), 2, "--no-such-option");
        if (strcmp(programs[i], "bench") != 0) continue; /* an option that a command does not read */
        check_complaint(process_run("", 0, "bench", "limits", "--kv", "i4", (char *)NULL), 2, "limits");
        check_complaint(process_run("", 0, "bench", "limits", "--isa", "scalar", (char *)NULL), 2, "--isa");
        check_complaint(process_run("", 0, "bench", "kernels", "-p", "512", (char *)NULL), 2, "kernels");
        check_complaint(process_run("", 0, "bench", "kernels", "--beside", "x", (char *)NULL), 2, "kernels");
        check_complaint(process_run("", 0, "bench", "model", "-m", LLAMA "model.gguf", "--beside", "no/such/file",
                                    (char *)NULL), 1, "no/such/file");
        check_complaint(process_run("", 0, "bench", "model", "--synth", "qwen3-0.6b", "--write", "x", "--beside", "y",
                                    (char *)NULL), 2, "--write");
    }
}

/* Every line of bench --json is one object with the fields of a row; `names` are those of some of them. */
static void check_rows(process_result r, const char *const *names)
{
    static const char *const fields[] = {"\"isa\":\"", "\"threads\":", "\"value\":", "\"unit\":\"", "\"spread\":[", "\"limit\":",
                                         "\"fraction\":"};
    char *line = strtok(r.out.bytes, "\n"), name[64];
    unsigned seen = 0;
    size_t i;

    CHECK_EQ_INT(r.code, 0);
    CHECK_STR(r.err.bytes, "");
    for (; line; line = strtok(NULL, "\n")) {
        CHECK(strncmp(line, "{\"name\":\"", 9) == 0 && line[strlen(line) - 1] == '}');
        for (i = 0; i < sizeof fields / sizeof *fields; i++) CHECK(strstr(line, fields[i]) != NULL);
        for (i = 0; names[i]; i++) {
            snprintf(name, sizeof name, "{\"name\":\"%s\",", names[i]);
            if (strncmp(line, name, strlen(name)) == 0) seen |= 1u << i;
        }
    }
    for (i = 0; names[i]; i++)
        if (!CHECK(seen >> i & 1)) printf("    no row \"%s\"\n", names[i]);
    process_free(&r);
}

/* What bench prints is for people and scripts; that it runs and prints it is checked here, no speed is. */
static void test_bench(void)
{
    static const char *const limits[] = {"read", NULL}; /* peaks are those of levels that this build has */
    static const char *const model[] = {"prefill", "decode", "open", "memory kv", "memory scratch", NULL};
    static const char *const both[] = {"prefill", "decode", "prefill, second to first", "decode, second to first", NULL};
#define SAME "./././././././././././././././././././././././././././././././././././././././././"
    static const char odd[] = "\"model\":\"" LLAMA SAME SAME SAME SAME "model.gguf\",";
    char path[sizeof odd], build[1100];
    process_result r;

    snprintf(build, sizeof build, "%s/bench", process_build());
    if (access(build, X_OK)) return; /* not built */
#if defined(_SC_PHYS_PAGES)
    if ((double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) < 2e9) {
        puts("test_cli: bench is not run, its limits take 512 MiB");
        return;
    }
#endif
    check_rows(process_run("", 0, "bench", "limits", "-r", "1", "--threads", "1", "--json", (char *)NULL), limits);
    check_rows(process_run("", 0, "bench", "model", "-m", LLAMA "model.gguf", "-p", "16", "-n", "4", "-r", "2", "--threads", "1",
                           "--kv", "i8", "--json", (char *)NULL), model);
    check_rows(process_run("", 0, "bench", "model", "-m", LLAMA "model.gguf", "--beside", LLAMA "model.gguf", "-p", "4", "-n", "2",
                           "-r", "2", "--threads", "1", "--json", (char *)NULL), both);
    snprintf(path, sizeof path, "%s", odd + 9); /* without quotes and what is around them */
    path[strlen(path) - 2] = '\0';
    r = process_run("", 0, "bench", "model", "-m", path, "-p", "4", "-n", "2", "-r", "1", "--threads", "1", "--json", (char *)NULL);
    CHECK(strstr(r.out.bytes, odd) != NULL); /* however long */
    check_rows(r, model);
}

static void test_usage(void)
{
    check_complaint(EVAL("--hash"), 2, "-m");
    check_complaint(EVAL("-m", LLAMA "model.gguf", "--hash"), 2, "--ids");
    check_complaint(EVAL("-m", LLAMA "model.gguf", "--ids", "a", "-p", "b", "--hash"), 2, "--ids");
    check_complaint(EVAL("-m", LLAMA "model.gguf", "--ids", "a"), 2, "--hash");
    check_complaint(EVAL("-m"), 2, "-m");
    check_complaint(EVAL_LLAMA("--hash", "--act", "f16"), 2, "f16");
    check_complaint(EVAL_LLAMA("--hash", "--threads", "0"), 2, "--threads");
    check_complaint(EVAL_LLAMA("--hash", "--threads", "2x"), 2, "--threads");
    check_complaint(EVAL_LLAMA("--hash", "--chunk", " 2"), 2, "--chunk");
    check_complaint(EVAL_LLAMA("--hash", "--isa", "mmx"), 2, "mmx");
    check_complaint(EVAL_LLAMA("--hash=1"), 2, "--hash");
    check_complaint(EVAL_LLAMA("--ppl", "--window", "2"), 2, "--window");
}

static void test_bad_input(void)
{
    static const unsigned char odd[5] = {1, 0, 0, 0, 2};
    static const unsigned char huge[8] = {1, 0, 0, 0, 255, 255, 255, 127}, minus[4] = {255, 255, 255, 255};

    check_complaint(EVAL("-m", "no/model.gguf", "--ids", LLAMA "tokens.i32", "--hash"), 1, "no/model.gguf");
    check_complaint(EVAL("-m", "Makefile", "--ids", LLAMA "tokens.i32", "--hash"), 1, "Makefile");
    check_complaint(EVAL("-m", LLAMA "model.gguf", "--ids", "no/tokens.i32", "--hash"), 1, "no/tokens.i32");
    check_complaint(EVAL("-m", LLAMA "model.gguf", "-p", "text", "--hash"), 1, LLAMA "model.gguf");  /* no tokenizer */
    check_complaint(EVAL_LLAMA("--logits", "no/such/folder/out"), 1, "no/such/folder/out");
    write_path(output_path(), odd, 5);
    check_complaint(EVAL("-m", LLAMA "model.gguf", "--ids", output_path(), "--hash"), 1, "5 bytes");
    write_path(output_path(), odd, 0);
    check_complaint(EVAL("-m", LLAMA "model.gguf", "--ids", output_path(), "--hash"), 1, "no tokens");
    write_path(output_path(), huge, 8);
    check_complaint(EVAL("-m", LLAMA "model.gguf", "--ids", output_path(), "--hash"), 1, "model.gguf");
    write_path(output_path(), minus, 4);
    check_complaint(EVAL("-m", LLAMA "model.gguf", "--ids", output_path(), "--hash"), 1, "model.gguf");
    write_path(output_path(), odd, 4);
    check_complaint(EVAL("-m", LLAMA "model.gguf", "--ids", output_path(), "--ppl"), 1, "--ppl");
}

/* --logits of a golden case within its tolerance, and --hash of just these bytes. */
static void test_logits(const char *name)
{
    char folder[64], model[96], ids[96], path[96], hash[32];
    process_text trace, wanted, got;
    process_result r;
    double worst = 0.0;
    size_t i;

    snprintf(folder, sizeof folder, "tests/golden/%s", name);
    snprintf(model, sizeof model, "%s/model.gguf", folder);
    snprintf(ids, sizeof ids, "%s/tokens.i32", folder);
    r = EVAL("-m", model, "--ids", ids, "--kv", "f32", "--act", "f32", "--logits", output_path(), "--hash");
    CHECK_EQ_INT(r.code, 0);
    CHECK_STR(r.err.bytes, "");
    got = read_path(output_path());
    snprintf(path, sizeof path, "%s/logits.f32", folder);
    wanted = read_path(path);
    snprintf(path, sizeof path, "%s/trace.txt", folder);
    trace = read_path(path);
    if (CHECK(wanted.bytes && got.bytes && trace.bytes && wanted.length > 0 && got.length == wanted.length)) {
        for (i = 0; i < wanted.length / 4; i++) {
            const double difference = fabs((double)float_at(&got, i) - (double)float_at(&wanted, i));

            if (!(difference <= worst)) worst = difference;
        }
        CHECK_NEAR(worst, 0.0, trace_number(&trace, "tolerance_max"));
        snprintf(hash, sizeof hash, "hash %016llX\n", (unsigned long long)fnv1a(got.bytes, got.length));
        CHECK_STR(r.out.bytes, hash);
    }
    process_free(&r);
    free(trace.bytes);
    free(wanted.bytes);
    free(got.bytes);
}

static void check_same_hash(process_result wanted, process_result r)
{
    CHECK_EQ_INT(r.code, 0);
    CHECK_STR(r.out.bytes, wanted.out.bytes);
    process_free(&r);
}

/* How the work is cut and done makes no difference. */
static void test_same_hash(void)
{
    process_result wanted = EVAL_LLAMA("--hash"), levels = EVAL("--isa", "list");
    char *level;

    CHECK_EQ_INT(wanted.code, 0);
    CHECK_EQ_INT(fnv1a("a", 1), UINT64_C(0xAF63DC4C8601EC8C));  /* a published vector */
    check_same_hash(wanted, EVAL_LLAMA("--hash", "--chunk", "1"));
    check_same_hash(wanted, EVAL_LLAMA("--hash", "--chunk=7"));
    check_same_hash(wanted, EVAL_LLAMA("--hash", "--threads", "1"));
    check_same_hash(wanted, EVAL_LLAMA("--hash", "--threads", "3"));

    CHECK_EQ_INT(levels.code, 0);
    CHECK(strncmp(levels.out.bytes, "scalar\n", 7) == 0);
    for (level = strtok(levels.out.bytes, "\n"); level; level = strtok(NULL, "\n"))
        check_same_hash(wanted, EVAL_LLAMA("--hash", "--isa", level));
    process_free(&levels);
    process_free(&wanted);
}

/* Perplexity of the second half of one window, from the golden logits. The model has no tokenizer, hence no BOS. */
static void test_ppl(size_t window)
{
    process_text logits = read_path(LLAMA "logits.f32"), ids = read_path(LLAMA "tokens.i32");
    char text[16], path[1100];
    double got = 0.0, sum = 0.0;
    unsigned long count = 0;
    process_result r;
    size_t t, i, vocab;

    if (!CHECK(logits.length > 0 && ids.length >= 4 * window)) return;
    vocab = logits.length / ids.length;
    for (t = window / 2; t + 1 < window; t++) {
        double mass = 0.0;

        for (i = 0; i < vocab; i++) mass += exp((double)float_at(&logits, t * vocab + i));
        sum += log(mass) - (double)float_at(&logits, t * vocab + (size_t)id_at(&ids, t + 1));
        count++;
    }

    snprintf(text, sizeof text, "%lu", (unsigned long)window);
    snprintf(path, sizeof path, "%s/test_cli.ids", process_build());
    write_path(path, ids.bytes, 4 * (window + 1));  /* the rest, one token, is left out */
    r = EVAL("-m", LLAMA "model.gguf", "--ids", path, "--kv", "f32", "--ppl", "--window", text);
    CHECK_EQ_INT(r.code, 0);
    CHECK_EQ_INT(sscanf(r.out.bytes, "ppl %lf tokens %lu", &got, &count), 2);
    CHECK_EQ_INT(count, window - 1 - window / 2);
    CHECK_NEAR(got, exp(sum / (double)count), 1e-4 * got);
    process_free(&r);
    free(logits.bytes);
    free(ids.bytes);
}

/* Fed with the first tokens of the golden case, minimal begins with the largest logit of the last of them. */
static void test_minimal(void)
{
    process_text logits = read_path(LLAMA "logits.f32"), ids = read_path(LLAMA "tokens.i32");
    char text[3][16];
    size_t i, vocab, best = 0;
    process_result r;

    if (!CHECK(logits.length > 0 && ids.length >= 12)) return;
    vocab = logits.length / ids.length;
    for (i = 1; i < vocab; i++)
        if (float_at(&logits, 2 * vocab + i) > float_at(&logits, 2 * vocab + best)) best = i;
    for (i = 0; i < 3; i++) snprintf(text[i], sizeof text[i], "%d", (int)id_at(&ids, i));
    r = process_run("", 0, "minimal", LLAMA "model.gguf", text[0], text[1], text[2], (char *)NULL);
    CHECK_EQ_INT(r.code, 0);
    CHECK_EQ_INT(strtol(r.out.bytes, NULL, 10), best);
    CHECK_EQ_INT(process_lines(&r.out), 64);
    process_free(&r);
    check_complaint(process_run("", 0, "minimal", (char *)NULL), 2, "usage");
    check_complaint(process_run("", 0, "minimal", "no/model.gguf", "1", (char *)NULL), 1, "minimal: ");
    free(logits.bytes);
    free(ids.bytes);
}

int main(void)
{
    test_manners();
    test_usage();
    test_bench();
    test_bad_input();
    test_logits("llama");
    test_logits("everything");
    test_same_hash();
    test_ppl(47);
    test_ppl(16);
    test_minimal();
    return test_finish();
}
