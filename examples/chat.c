/* chat.c - conversations and completions, with a small model built into the program
 *
 * The conversation is a list of messages. Before every answer it is encoded as a whole and handed to skl_session_sync,
 * which evaluates only what is new; so old messages can be forgotten and answers cut without any bookkeeping.
 */
#include "cli.h"

#define SINKLESS_IMPLEMENTATION
#include "../sinkless.h"
#define TOKENIZER_IMPLEMENTATION
#include "tokenizer.h"

#include <signal.h>
#if !defined(_WIN32)
#include <sys/select.h>
#endif

#if defined(CHAT_EMBEDDED)  /* the Makefile links the default model into the program, see embed.c */
extern const unsigned char chat_model[];
extern const uint64_t chat_model_size;
#endif

#define DEFAULT_CONTEXT 4096 /* at most, without --ctx: models made for more would take gigabytes of KV cache */

static const char help[] =
    "usage: chat [-m MODEL] [-p PROMPT] [options]\n"
    "\n"
    "Without -p: a conversation, a message a line, until the input ends. Ctrl-C cuts an answer, a second one leaves.\n"
    "When the conversation outgrows the context, its oldest messages are forgotten. With -p: one answer, then exit.\n"
    "\n"
    "  -m MODEL            GGUF file (default: the small model built into this program)\n"
    "  -p PROMPT           answer this\n"
    "  -n TOKENS           most tokens per answer (default: as many as the context has room for)\n"
    "  --temp T            temperature (default 0.7); 0 always takes the likeliest token\n"
    "  --top-k K           draw from the K likeliest tokens (default 40); 0 = all\n"
    "  --top-p P           draw from the likeliest tokens that hold P of the probability (default 1)\n"
    "  --min-p P           drop what is less likely than P times the likeliest (default 0)\n"
    "  --seed S            same seed, same text, on every machine (default: from the clock)\n"
    "  --system TEXT       instructions before the first message (default: none)\n"
    "  --raw               plain completion of every prompt on its own, no chat template\n"
    "  --ids               print token ids instead of text, the one that ended the answer included\n"
    "  --ctx N             context in tokens (default: the model's, at most 4096)\n"
    "  --threads N         threads that work (default: physical cores)\n"
    "  --act f32|a8|a4     activations that meet quantised weights (default a8)\n"
    "  --kv f32|f16|i8|i4  KV cache (default f16)\n"
    "  --stats             tokens per second, memory, kernel level and seed on stderr\n"
    "\n"
    "Exit code: 0 done, 1 failed, 2 wrong usage.\n";

static struct {
    const char *model, *prompt, *system;
    size_t most, top_k, context, threads;
    float temperature, top_p, min_p;
    uint64_t seed;
    int raw, ids, stats, activation, kv;
} arguments;

static const cli_option options[] = {
    {"-m", CLI_TEXT, &arguments.model, 0, 0, NULL},
    {"-p", CLI_TEXT, &arguments.prompt, 0, 0, NULL},
    {"-n", CLI_SIZE, &arguments.most, 1, CLI_MOST_TOKENS, NULL},
    {"--temp", CLI_REAL, &arguments.temperature, 0, 1000, NULL},
    {"--top-p", CLI_REAL, &arguments.top_p, 0, 1, NULL},
    {"--top-k", CLI_SIZE, &arguments.top_k, 0, CLI_MOST_TOKENS, NULL},
    {"--min-p", CLI_REAL, &arguments.min_p, 0, 1, NULL},
    {"--seed", CLI_SEED, &arguments.seed, 0, 0, NULL},
    {"--system", CLI_TEXT, &arguments.system, 0, 0, NULL},
    {"--raw", CLI_FLAG, &arguments.raw, 0, 0, NULL},
    {"--ids", CLI_FLAG, &arguments.ids, 0, 0, NULL},
    {"--threads", CLI_SIZE, &arguments.threads, 1, CLI_MOST_THREADS, NULL},
    {"--ctx", CLI_SIZE, &arguments.context, 2, CLI_MOST_TOKENS, NULL},
    {"--act", CLI_CHOICE, &arguments.activation, 0, 0, cli_activations},
    {"--kv", CLI_CHOICE, &arguments.kv, 0, 0, cli_kvs},
    {"--stats", CLI_FLAG, &arguments.stats, 0, 0, NULL},
    {NULL, CLI_FLAG, NULL, 0, 0, NULL}};

/* Bytes that grow. */
typedef struct buffer {
    char *bytes; /* [room], length used */
    size_t length, room;
} buffer;

typedef struct chat {
    const char *name;         /* of the model, for messages */
    skl_model *model;
    skl_session *session;
    skl_sampler *sampler;
    tok_tokenizer *tokenizer;
    size_t context;           /* tokens the session has room for */
    float *logits;            /* [vocab] after the last token */
    int32_t *tokens;          /* [context] the prompt and the answer so far */
    int32_t *answer;          /* [context] answer_count tokens of the answer so far */
    size_t answer_count;
    tok_message *messages;    /* [message_count] the conversation; texts are of malloc. With --raw: the prompt alone */
    size_t message_count, message_room;
    buffer line;              /* of input */
    buffer text;              /* bytes of the answer so far */
    buffer shown;             /* whole characters on their way to stdout */
    tok_stream stream;
} chat;

/* =====================================================================================================================
 * Ctrl-C. The handler counts; the library and the loops below ask.
 * ================================================================================================================== */

static volatile sig_atomic_t interrupts;  /* since the last line of input; 2 means leave */

static void on_interrupt(int number)
{
#if defined(_WIN32)
    signal(number, on_interrupt);  /* Windows forgets the handler when it calls it */
#else
    (void)number;
#endif
    if (interrupts < 2) interrupts = interrupts + 1;
}

static void catch_interrupts(void)
{
#if defined(_WIN32)
    signal(SIGINT, on_interrupt);
#else
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;  /* without SA_RESTART: a read from the terminal ends too */
    sigaction(SIGINT, &action, NULL);
#endif
}

#if !defined(_WIN32)
static void block_interrupts(sigset_t *before)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, before);
}
#endif

static int stop_requested(void *user)
{
    (void)user;
    return interrupts != 0;
}

/* =====================================================================================================================
 * Memory
 * ================================================================================================================== */

/* Room for more bytes behind those that are used. */
static int buffer_reserve(buffer *b, size_t more)
{
    size_t room = b->room ? b->room : 256;
    char *bytes;

    if (more > SIZE_MAX / 2 - b->length) return 0;
    while (room < b->length + more) room *= 2;
    bytes = room == b->room ? b->bytes : (char *)realloc(b->bytes, room);
    if (!bytes) return 0;
    b->bytes = bytes;
    b->room = room;
    return 1;
}

static int buffer_append(buffer *b, const char *bytes, size_t length)
{
    if (!buffer_reserve(b, length)) return 0;
    if (length) memcpy(b->bytes + b->length, bytes, length);
    b->length += length;
    return 1;
}

static int add_message(chat *c, const char *role, const char *text, size_t length)
{
    char *copy;

    if (c->message_count == c->message_room) {
        const size_t room = c->message_room ? 2 * c->message_room : 16;
        tok_message *messages = (tok_message *)realloc(c->messages, room * sizeof *messages);

        if (!messages) return 0;
        c->messages = messages;
        c->message_room = room;
    }
    copy = (char *)malloc(length + 1);
    if (!copy) return 0;
    if (length) memcpy(copy, text, length);
    c->messages[c->message_count].role = role;
    c->messages[c->message_count].text = copy;
    c->messages[c->message_count].length = length;
    c->message_count++;
    return 1;
}

static void remove_messages(chat *c, size_t first, size_t count)
{
    size_t i;

    for (i = first; i < first + count; i++) free((void *)(uintptr_t)c->messages[i].text);
    memmove(c->messages + first, c->messages + first + count, (c->message_count - first - count) * sizeof *c->messages);
    c->message_count -= count;
}

/* Forgets the oldest question and its answer; the system message and the last question stay. 0: nothing to forget. */
static int forget_oldest(chat *c)
{
    const size_t first = arguments.system && !arguments.raw ? 1 : 0;

    if (c->message_count < first + 3) return 0;
    remove_messages(c, first, 2);
    return 1;
}

/* =====================================================================================================================
 * One answer
 * ================================================================================================================== */

typedef enum outcome {
    OUTCOME_DONE,
    OUTCOME_TOO_LONG, /* the message alone fills the context: said so, forgotten */
    OUTCOME_FAILED    /* said so */
} outcome;

typedef struct stats {
    size_t prompt_tokens, reused_tokens, answer_tokens;
    double prompt_seconds, answer_seconds;
} stats;

static tok_status encode(const chat *c, size_t *count)
{
    const tok_message *first = c->messages;

    if (arguments.raw)
        return tok_encode_text(c->tokenizer, first->text, first->length, TOK_BEGIN, c->tokens, c->context, count);
    return tok_encode_chat(c->tokenizer, first, c->message_count, TOK_BEGIN | TOK_ANSWER, c->tokens, c->context, count);
}

/* Writes the conversation and the answer so far into tokens, forgetting what it must so that the answer has room to go
 * on: for a quarter of the context if that can be had, for one token at least. *n = 0 if not even that. */
static outcome fit(chat *c, size_t *n)
{
    const size_t quarter = c->context / 4, room = arguments.most && arguments.most < quarter ? arguments.most : quarter;
    size_t count;

    for (;;) {
        const tok_status status = encode(c, &count);

        if (status && status != TOK_NO_ROOM)
            return cli_fail("%s: %s", c->name, tok_status_string(status)), OUTCOME_FAILED;
        count += c->answer_count;
        if (count + room <= c->context) break;
        if (!forget_oldest(c)) break;
    }
    *n = count < c->context ? count : 0;
    if (*n) memcpy(c->tokens + count - c->answer_count, c->answer, c->answer_count * sizeof *c->answer);
    if (count == 0) return cli_fail("the prompt is empty, and the model has no token to begin with"), OUTCOME_FAILED;
    return OUTCOME_DONE;
}

/* Ctrl-C waits meanwhile: stdio takes a write that a signal interrupts for one that failed. */
static int write_now(const char *bytes, size_t count)
{
    int done;
#if !defined(_WIN32)
    sigset_t before;

    block_interrupts(&before);
#endif
    done = fwrite(bytes, 1, count, stdout) == count && !fflush(stdout);
#if !defined(_WIN32)
    pthread_sigmask(SIG_SETMASK, &before, NULL);
#endif
    return done;
}

/* Puts bytes on the screen as soon as they make whole characters; with end, also what was never finished. */
static int show(chat *c, const char *bytes, size_t length, int end)
{
    size_t count = 0;

    if (!buffer_reserve(&c->shown, TOK_STREAM_ROOM(length))) return 0;
    if (end) tok_stream_flush(&c->stream, c->shown.bytes, c->shown.room, &count);
    else tok_stream_push(&c->stream, bytes, length, c->shown.bytes, c->shown.room, &count);
    return write_now(c->shown.bytes, count);
}

/* Takes a token of the answer into its text, and shows it. */
static int take_token(chat *c, int32_t token)
{
    const char *bytes = "";
    size_t length = 0;
    char id[24];

    tok_token_bytes(c->tokenizer, token, 0, &bytes, &length);  /* ids beyond the vocabulary stand for nothing */
    if (!buffer_append(&c->text, bytes, length)) return 0;
    if (!arguments.ids) return show(c, bytes, length, 0);
    sprintf(id, "%s%ld", c->answer_count ? " " : "", (long)token);
    return write_now(id, strlen(id));
}

static outcome fail_session(const chat *c)
{
    return cli_fail_skl(c->name, skl_session_error(c->session)), OUTCOME_FAILED;
}

/* Evaluates the prompt. *n = 0: it does not fit. */
static outcome prefill(chat *c, size_t *n, stats *s)
{
    const double start = cli_seconds();
    const outcome result = fit(c, n);
    size_t reused = 0;
    skl_status status;

    if (result != OUTCOME_DONE || *n == 0) return result;
    status = skl_session_sync(c->session, c->tokens, *n, &reused, c->logits);
    if (status && status != SKL_CANCELLED) return fail_session(c);
    s->prompt_tokens += *n - reused;
    s->reused_tokens += reused;
    s->prompt_seconds += cli_seconds() - start;
    return OUTCOME_DONE;
}

/* Draws the answer and shows it as it comes, until it ends, is long enough, or somebody presses Ctrl-C. */
static outcome decode(chat *c, stats *s)
{
    const double start = cli_seconds(), prompt_seconds = s->prompt_seconds;
    int32_t token;
    size_t n;

    while (!interrupts && (arguments.most == 0 || c->answer_count < arguments.most)) {
        skl_status status = skl_sample(c->sampler, c->logits, NULL, 0, &token);
        int ended;

        if (status) return cli_fail("%s: %s", c->name, skl_status_string(status)), OUTCOME_FAILED;
        ended = tok_is_stop(c->tokenizer, token);
        if (!take_token(c, token)) return cli_fail("cannot write to standard output"), OUTCOME_FAILED;
        if (ended) break;
        c->answer[c->answer_count++] = token;
        s->answer_tokens++;

        if (skl_session_position(c->session) < c->context) {
            status = skl_eval(c->session, &token, 1, c->logits);
            if (status && status != SKL_CANCELLED) return fail_session(c);
        } else {
            const outcome result = prefill(c, &n, s);

            if (result != OUTCOME_DONE) return result;
            if (n == 0) {
                cli_say("the context of %zu tokens is full, the answer ends here", c->context);
                break;
            }
        }
    }
    s->answer_seconds = cli_seconds() - start - (s->prompt_seconds - prompt_seconds);
    return OUTCOME_DONE;
}

static double per_second(size_t count, double seconds)
{
    return seconds > 0.0 ? (double)count / seconds : 0.0;
}

static skl_session_desc describe_session(const chat *c)
{
    skl_session_desc desc = {0};
    const size_t made_for = skl_model_context(c->model);

    desc.context = arguments.context ? arguments.context : made_for < DEFAULT_CONTEXT ? made_for : DEFAULT_CONTEXT;
    desc.activation = (skl_activation)arguments.activation;
    desc.kv = (skl_kv)arguments.kv;
    desc.threads = arguments.threads;
    desc.cancel.stop = stop_requested;
    return desc;
}

static void print_stats(const chat *c, const stats *s)
{
    const skl_session_desc desc = describe_session(c);
    const double mib = 1024.0 * 1024.0;
    skl_memory m = {0};
    skl_error error;

    skl_model_memory(c->model, &desc, &m, &error);
    cli_say("prompt %zu tokens (%zu more reused) %.1f tok/s, decode %zu tokens %.1f tok/s, "
            "memory %.1f MiB mapped + %.1f weights and tables + %.1f KV + %.1f scratch, %s, %zu threads, seed %llu",
            s->prompt_tokens, s->reused_tokens, per_second(s->prompt_tokens, s->prompt_seconds),
            s->answer_tokens, per_second(s->answer_tokens, s->answer_seconds),
            (double)m.mapped / mib, (double)(m.weights + m.tables) / mib, (double)m.kv / mib, (double)m.scratch / mib,
            skl_isa_name(skl_session_isa(c->session)), skl_session_threads(c->session),
            (unsigned long long)arguments.seed);
}

/* Answers a message [length] and keeps both in the conversation. */
static outcome answer(chat *c, const char *text, size_t length)
{
    stats s = {0, 0, 0, 0.0, 0.0};
    outcome result;
    size_t n, open_line;

    c->answer_count = 0;
    c->text.length = 0;
    if (!add_message(c, "user", text, length)) return cli_fail("out of memory"), OUTCOME_FAILED;
    result = prefill(c, &n, &s);
    if (result == OUTCOME_DONE && n == 0) {
        remove_messages(c, c->message_count - 1, 1);
        cli_say("a message of %zu bytes is too long for the context of %zu tokens", length, c->context);
        return OUTCOME_TOO_LONG;
    }
    if (result == OUTCOME_DONE) result = decode(c, &s);
    if (result != OUTCOME_DONE) return result;

    open_line = arguments.ids || c->text.length == 0 || c->text.bytes[c->text.length - 1] != '\n';
    if (!show(c, "", 0, 1) || !write_now("\n", open_line))
        return cli_fail("cannot write to standard output"), OUTCOME_FAILED;
    if (arguments.stats) print_stats(c, &s);

    if (arguments.raw) {
        remove_messages(c, 0, c->message_count);
        return OUTCOME_DONE;
    }
    if (!add_message(c, "assistant", c->text.bytes, c->text.length)) return cli_fail("out of memory"), OUTCOME_FAILED;
    return OUTCOME_DONE;
}

/* =====================================================================================================================
 * The conversation
 * ================================================================================================================== */

typedef enum input { INPUT_LINE, INPUT_END, INPUT_INTERRUPTED } input;

#if defined(_WIN32)
/* A line typed into a console: only the wide call gives characters beyond the code page. */
static input read_console(buffer *line)
{
    HANDLE console = GetStdHandle(STD_INPUT_HANDLE);
    wchar_t wide[1024];
    char narrow[4096];
    DWORD count;

    do {
        int length;

        if (!ReadConsoleW(console, wide, 1024, &count, NULL) || count == 0)
            return interrupts ? INPUT_INTERRUPTED : INPUT_END;
        if (line->length == 0 && wide[0] == 26) return INPUT_END;  /* Ctrl-Z */
        length = WideCharToMultiByte(CP_UTF8, 0, wide, (int)count, narrow, (int)sizeof narrow, NULL, NULL);
        if (!buffer_append(line, narrow, (size_t)length)) return INPUT_END;
    } while (wide[count - 1] != L'\n');
    return INPUT_LINE;
}
#endif

/* Shows the prompt sign and waits for something to read. Ctrl-C is let in only while waiting: none slips in between. */
static input prompt(void)
{
#if !defined(_WIN32)
    sigset_t before;
    fd_set in;
    int ready;

    block_interrupts(&before);
    fputs("> ", stderr);
    FD_ZERO(&in);
    FD_SET(STDIN_FILENO, &in);
    ready = pselect(STDIN_FILENO + 1, &in, NULL, NULL, NULL, &before);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (ready < 0) return INPUT_INTERRUPTED;
#else
    fputs("> ", stderr);
#endif
    return INPUT_LINE;
}

/* The next line, of any length, without its end. The last one need not have any. */
static input read_line(buffer *line)
{
    int c = 0;

    line->length = 0;
#if defined(_WIN32)
    if (cli_is_terminal(stdin)) {
        const input result = read_console(line);

        if (result != INPUT_LINE) return result;
    } else
#endif
    while (c != '\n' && (c = getchar()) != EOF) {
        const char byte = (char)c;

        if (!buffer_append(line, &byte, 1)) return INPUT_END;
    }
    if (c == EOF && interrupts) {
        clearerr(stdin);
        return INPUT_INTERRUPTED;
    }
    if (line->length == 0) return INPUT_END;
    if (line->bytes[line->length - 1] == '\n') line->length--;
    if (line->length && line->bytes[line->length - 1] == '\r') line->length--;
    return INPUT_LINE;
}

static int converse(chat *c)
{
    const int terminal = cli_is_terminal(stdin);

    if (terminal) fputs("Ctrl-C cuts an answer, Ctrl-D leaves.\n", stderr);
    while (interrupts < 2) {
        input got = terminal ? prompt() : INPUT_LINE;

        if (got == INPUT_LINE) got = read_line(&c->line);
        if (got == INPUT_END || (got == INPUT_INTERRUPTED && !terminal)) break;
        if (got == INPUT_INTERRUPTED) {
            fputs(interrupts == 1 ? "\nCtrl-C again leaves.\n" : "\n", stderr);
            continue;
        }
        interrupts = 0;
        if (c->line.length && answer(c, c->line.bytes, c->line.length) == OUTCOME_FAILED) return CLI_FAILED;
    }
    if (terminal) fputc('\n', stderr);
    return cli_finish();
}

static int answer_once(chat *c)
{
    if (answer(c, arguments.prompt, strlen(arguments.prompt)) != OUTCOME_DONE) return CLI_FAILED;
    if (interrupts) {  /* tell the shell, so that its loops end too */
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    return cli_finish();
}

/* =====================================================================================================================
 * Opening
 * ================================================================================================================== */

static int open_model(chat *c)
{
    skl_model_desc desc = {0};
    skl_error error;
    char message[256];
    tok_template kind;

    c->name = arguments.model ? arguments.model : "built-in model";
    desc.threads = arguments.threads;
    desc.source.path = arguments.model;
#if defined(CHAT_EMBEDDED)
    if (!arguments.model) {
        desc.source.data = chat_model;
        desc.source.data_size = (size_t)chat_model_size;
    }
#endif
    if (skl_model_open(&c->model, &desc, &error)) return cli_fail_skl(c->name, &error);
    if (tok_open(&c->tokenizer, skl_model_gguf(c->model), message, sizeof message))
        return cli_fail("%s: %s", c->name, message);
    kind = tok_template_kind(c->tokenizer);
    if (!arguments.raw && (kind == TOK_TEMPLATE_NONE || kind == TOK_TEMPLATE_UNKNOWN)) {
        cli_say("%s: %s chat template; completing every prompt on its own, as with --raw", c->name,
                kind == TOK_TEMPLATE_NONE ? "no" : "unknown");
        arguments.raw = 1;
    }
    return CLI_GO_ON;
}

static int open_session(chat *c)
{
    const skl_session_desc session_desc = describe_session(c);
    skl_sampler_desc sampler_desc = {0};
    skl_error error;

    if (skl_session_open(&c->session, c->model, &session_desc, &error)) return cli_fail_skl(c->name, &error);
    sampler_desc.vocab = skl_model_vocab(c->model);
    sampler_desc.temperature = arguments.temperature;
    sampler_desc.top_k = arguments.top_k;
    sampler_desc.top_p = arguments.top_p;
    sampler_desc.min_p = arguments.min_p;
    sampler_desc.seed = arguments.seed;
    if (skl_sampler_open(&c->sampler, &sampler_desc, &error)) return cli_fail_skl(c->name, &error);

    c->context = skl_session_context(c->session);
    c->logits = (float *)malloc(skl_model_vocab(c->model) * sizeof *c->logits);
    c->tokens = (int32_t *)malloc(c->context * sizeof *c->tokens);
    c->answer = (int32_t *)malloc(c->context * sizeof *c->answer);
    if (!c->logits || !c->tokens || !c->answer) return cli_fail("out of memory");
    if (arguments.system && !arguments.raw && !add_message(c, "system", arguments.system, strlen(arguments.system)))
        return cli_fail("out of memory");
    return CLI_GO_ON;
}

static int run(chat *c)
{
    int code = open_model(c);
#if !defined(_WIN32)
    sigset_t before;

    block_interrupts(&before);  /* threads of the session inherit this: Ctrl-C is for the one that reads */
#endif
    if (code == CLI_GO_ON) code = open_session(c);
    if (code != CLI_GO_ON) return code;
    catch_interrupts();
#if !defined(_WIN32)
    pthread_sigmask(SIG_SETMASK, &before, NULL);
#endif
    return arguments.prompt ? answer_once(c) : converse(c);
}

int main(int argc, char **argv)
{
    chat c = {0};
    int code;

    cli_begin("chat", &argc, &argv);
    arguments.temperature = 0.7f;
    arguments.top_k = 40;
    arguments.seed = (uint64_t)time(NULL) * 1000003 ^ (uint64_t)(cli_seconds() * 1e6);
    code = cli_parse(argc, argv, help, options, NULL, 0);
    if (code != CLI_GO_ON) return code;
#if !defined(CHAT_EMBEDDED)
    if (!arguments.model) return cli_usage("-m MODEL is missing, and no model is built into this program");
#endif

    code = run(&c);
    if (c.messages) remove_messages(&c, 0, c.message_count);
    skl_sampler_close(c.sampler);
    skl_session_close(c.session);
    tok_close(c.tokenizer);
    skl_model_close(c.model);
    free(c.messages);
    free(c.logits);
    free(c.tokens);
    free(c.answer);
    free(c.line.bytes);
    free(c.text.bytes);
    free(c.shown.bytes);
    return code;
}
