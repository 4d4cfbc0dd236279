/* The chat program, as people and scripts meet it: pipes, terminals, Ctrl-C, odd input. Expected results are those of
 * its --help and of ordinary command line manners. */
#define _XOPEN_SOURCE 700
#include "process.h"
#include "test.h"

#include <unistd.h>

#define RUN(input, ...) process_run(input, strlen(input), "chat", __VA_ARGS__, (char *)NULL)
#define STORY "Tell me a story about a cat."

/* Whether text is UTF-8 (overlong forms and surrogates are not looked for). */
static int is_utf8(const process_text *text)
{
    size_t i = 0, follow;

    while (i < text->length) {
        const unsigned char c = (unsigned char)text->bytes[i++];

        follow = c < 0x80 ? 0 : c >= 0xC2 && c < 0xE0 ? 1 : (c & 0xF0) == 0xE0 ? 2 : c >= 0xF0 && c < 0xF5 ? 3 : 9;
        for (; follow; follow--)
            if (follow > 3 || i == text->length || ((unsigned char)text->bytes[i++] & 0xC0) != 0x80) return 0;
    }
    return 1;
}

static int same(const process_result *a, const process_result *b)
{
    return a->out.length == b->out.length && memcmp(a->out.bytes, b->out.bytes, a->out.length) == 0;
}

/* Exit 0, an answer on stdout and nothing on stderr. */
static void check_answer(const process_result *r)
{
    CHECK_EQ_INT(r->code, 0);
    CHECK(r->out.length > 1 && r->out.bytes[r->out.length - 1] == '\n');
    CHECK(is_utf8(&r->out));
    CHECK_STR(r->err.bytes, "");
}

/* Nothing on stdout, one line on stderr that contains what. */
static void check_complaint(const process_result *r, int code, const char *what)
{
    CHECK_EQ_INT(r->code, code);
    CHECK_STR(r->out.bytes, "");
    CHECK_EQ_INT(process_lines(&r->err), 1);
    if (!CHECK(strstr(r->err.bytes, what) != NULL)) printf("    no \"%s\" in: %s\n", what, r->err.bytes);
}

static void test_usage(void)
{
    process_result r = RUN("", "--help");

    CHECK_EQ_INT(r.code, 0);
    CHECK(strncmp(r.out.bytes, "usage: chat", 11) == 0);
    CHECK_STR(r.err.bytes, "");
    process_free(&r);
    r = RUN("", "--no-such-option");
    check_complaint(&r, 2, "--no-such-option");
    process_free(&r);
    r = RUN("", "stray");
    check_complaint(&r, 2, "stray");
    process_free(&r);
    r = RUN("", "--temp", "warm");
    check_complaint(&r, 2, "--temp");
    process_free(&r);
    r = RUN("", "--top-p", "1.5");
    check_complaint(&r, 2, "--top-p");
    process_free(&r);
    r = RUN("", "-n", "-1");
    check_complaint(&r, 2, "-n");
    process_free(&r);
    r = RUN("", "--seed", "18446744073709551616");
    check_complaint(&r, 2, "--seed");
    process_free(&r);
    r = RUN("", "-p");
    check_complaint(&r, 2, "-p");
    process_free(&r);
    r = RUN("", "-m", "no/such/model.gguf", "-p", "hi");
    check_complaint(&r, 1, "no/such/model.gguf");
    process_free(&r);
    r = RUN("", "-m", "Makefile", "-p", "hi");
    check_complaint(&r, 1, "Makefile");
    process_free(&r);
    r = RUN("", "-m", "tests/golden/llama/model.gguf", "-p", "hi");  /* has no tokenizer */
    check_complaint(&r, 1, "tests/golden/llama/model.gguf");
    process_free(&r);
}

static void test_pipes(void)
{
    process_result once = RUN("", "-p", "Hello", "--temp", "0"), r;

    check_answer(&once);
    r = RUN("Hello\n", "--temp", "0");
    check_answer(&r);
    CHECK(same(&r, &once));
    process_free(&r);
    r = RUN("Hello", "--temp", "0");  /* last line without an end */
    CHECK(same(&r, &once));
    process_free(&r);
    r = RUN("\r\n\nHello\r\n", "--temp", "0");  /* empty lines are no messages, CR is no part of one */
    CHECK(same(&r, &once));
    process_free(&r);
    r = RUN("", "--temp", "0");
    CHECK_EQ_INT(r.code, 0);
    CHECK_STR(r.out.bytes, "");
    CHECK_STR(r.err.bytes, "");
    process_free(&r);
    r = process_run(NULL, 0, "chat", "--temp", "0", (char *)NULL);  /* standard input closed */
    CHECK_EQ_INT(r.code, 0);
    CHECK_STR(r.out.bytes, "");
    process_free(&r);
    r = RUN("Gr\xC3\xBC\xC3\x9F Gott, \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80\n"
            "\xFF\xFE broken \xC3\n", "--seed", "3");
    check_answer(&r);
    process_free(&r);
    r = process_run("nul \0 byte\n", 11, "chat", "--seed", "3", (char *)NULL);
    check_answer(&r);
    process_free(&r);
    process_free(&once);
}

static void test_long_input(void)
{
    const size_t length = 1 << 20;
    char *input = (char *)malloc(length + 16);
    process_result once = RUN("", "-p", "Hello", "--temp", "0"), r;
    size_t i;

    if (!CHECK(input != NULL)) return;
    for (i = 0; i < length; i++) input[i] = "all work and no play "[i % 21];
    memcpy(input + length, "\nHello\n", 7);
    r = process_run(input, length + 7, "chat", "--temp", "0", (char *)NULL);
    CHECK_EQ_INT(r.code, 0);
    CHECK_EQ_INT(process_lines(&r.err), 1);  /* it does not fit, and that is said */
    CHECK(same(&r, &once));                  /* the next message is answered as if nothing had been */
    process_free(&r);

    input[4096] = '\0';
    r = RUN("", "-p", input, "--ctx", "64");
    check_complaint(&r, 1, "4096 bytes");
    process_free(&r);
    process_free(&once);
    free(input);
}

/* A conversation far longer than the context goes on: old messages are forgotten. */
static void test_full_context(void)
{
    char input[40 * 8];
    process_result r;
    size_t i;

    for (i = 0; i < 40; i++) memcpy(input + 8 * i, "Hello !\n", 8);
    r = process_run(input, sizeof input, "chat", "--ctx", "96", "-n", "20", "--temp", "0", (char *)NULL);
    check_answer(&r);
    CHECK(process_lines(&r.out) >= 40);
    process_free(&r);
    r = RUN("", "-p", STORY, "--ctx", "48", "--temp", "0");  /* an answer longer than the context ends */
    CHECK_EQ_INT(r.code, 0);
    CHECK_EQ_INT(process_lines(&r.err), 1);
    process_free(&r);
}

static void test_sampling(void)
{
    process_result first = RUN("", "-p", STORY, "-n", "40", "--seed", "7"), r;
    int seed, different = 0;

    check_answer(&first);
    r = RUN("", "-p", STORY, "-n", "40", "--seed=7", "--threads", "1");
    CHECK(same(&r, &first));
    process_free(&r);
    for (seed = 1; seed <= 5; seed++) {
        char text[8];

        snprintf(text, sizeof text, "%d", seed);
        r = RUN("", "-p", STORY, "-n", "40", "--seed", text);
        different += !same(&r, &first);
        process_free(&r);
    }
    CHECK(different > 0);
    process_free(&first);

    first = RUN("", "-p", STORY, "-n", "20", "--temp", "0");
    r = RUN("", "-p", STORY, "-n", "20", "--top-k", "1", "--seed", "9");  /* only the likeliest is left */
    CHECK(same(&r, &first));
    process_free(&r);
    r = RUN("", "-p", STORY, "-n", "20", "--min-p", "1", "--seed", "9");
    CHECK(same(&r, &first));
    process_free(&r);
    process_free(&first);
}

static void test_modes(void)
{
    process_result r = RUN("", "-p", "Once upon a time", "--raw", "--ids", "-n", "5", "--temp", "0"), text;
    long id[5];
    int used = 0;

    CHECK_EQ_INT(r.code, 0);
    CHECK_EQ_INT(sscanf(r.out.bytes, "%ld %ld %ld %ld %ld%n", &id[0], &id[1], &id[2], &id[3], &id[4], &used), 5);
    CHECK_STR(r.out.bytes + used, "\n");
    process_free(&r);
    text = RUN("", "-p", "Once upon a time", "--raw", "-n", "5", "--temp", "0");
    check_answer(&text);
    r = RUN("Once upon a time\nOnce upon a time\n", "--raw", "-n", "5", "--temp", "0");
    CHECK_EQ_INT(r.out.length, 2 * text.out.length);  /* completions know nothing of each other */
    CHECK(strncmp(r.out.bytes, text.out.bytes, text.out.length) == 0);
    CHECK_STR(r.out.bytes + text.out.length, text.out.bytes);
    process_free(&r);
    process_free(&text);

    text = RUN("", "-p", "Hello", "--temp", "0");
    r = RUN("", "-p", "Hello", "--temp", "0", "--stats");
    CHECK(same(&r, &text));
    CHECK_EQ_INT(process_lines(&r.err), 1);
    CHECK(strstr(r.err.bytes, "tok/s") != NULL);
    process_free(&r);
    process_free(&text);

    /* Control tokens in what a user writes are text: more tokens than the one that scaffold would make of it. */
    r = RUN("", "-p", "<|im_end|>", "--raw", "-n", "1", "--stats");
    CHECK(strstr(r.err.bytes, "prompt 2 tokens") == NULL);
    process_free(&r);
}

static void test_terminal(void)
{
    process_terminal t;

    if (!CHECK(process_open_terminal(&t, "chat", "--temp", "0", (char *)NULL))) return;
    CHECK(process_expect(&t, "> ", 0));
    process_type(&t, "Hello\n");
    CHECK(process_expect(&t, "Hello\r\n", 0));  /* echo */
    CHECK(process_expect(&t, "\n> ", 0));
    process_type(&t, "\003");
    CHECK(process_expect(&t, "> ", 0));         /* once at the prompt: still there */
    process_type(&t, "Hello\n");
    CHECK(process_expect(&t, "\n> ", 0));
    process_type(&t, "\004");
    CHECK_EQ_INT(process_close_terminal(&t), 0);

    if (!CHECK(process_open_terminal(&t, "chat", "--temp", "0", (char *)NULL))) return;
    CHECK(process_expect(&t, "> ", 0));
    process_type(&t, "\003");
    CHECK(process_expect(&t, "> ", 0));
    process_type(&t, "\003");
    CHECK_EQ_INT(process_close_terminal(&t), 0);
}

/* Ctrl-C during an answer. The model is quick, so a try may come too late; that every one does is a failure. */
static void test_interrupt(void)
{
    process_result full = RUN("", "-p", STORY, "--temp", "0", "--threads", "1");
    process_terminal t;
    int attempt, cut = 0;

    check_answer(&full);
    if (!CHECK(full.out.length > 80)) return;
    full.out.bytes[full.out.length - 1] = '\0';
    for (attempt = 0; attempt < 10 && !cut; attempt++) {
        if (!CHECK(process_open_terminal(&t, "chat", "--temp", "0", "--threads", "1", (char *)NULL))) break;
        CHECK(process_expect(&t, "> ", 0));
        process_type(&t, STORY "\n");
        CHECK(process_expect(&t, STORY "\r\n", 1));
        CHECK(write(t.master, "\003", 1) == 1);
        CHECK(process_expect(&t, "\n> ", 0));  /* the program lives */
        cut = strstr(t.seen, full.out.bytes + full.out.length - 41) == NULL;
        process_type(&t, "Hello\n");
        CHECK(process_expect(&t, "\n> ", 0));  /* and answers */
        process_type(&t, STORY "\n");
        CHECK(process_expect(&t, STORY "\r\n", 1));
        process_type(&t, "\003");
        CHECK(process_expect(&t, "\n> ", 0));
        process_type(&t, "\003");              /* the second one leaves */
        CHECK_EQ_INT(process_close_terminal(&t), 0);
    }
    CHECK(cut);
    process_free(&full);
}

int main(void)
{
    test_usage();
    test_pipes();
    test_long_input();
    test_full_context();
    test_sampling();
    test_modes();
    test_terminal();
    test_interrupt();
    return test_finish();
}
