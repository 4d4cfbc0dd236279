/* cli.h - what the programs of this folder share: options, numbers, files, terminals, messages
 *
 * Include it before every other header, in one .c file per program: it asks the C library for POSIX. A program
 * describes its options in a table and gets values that are checked. Results go to stdout, everything else to stderr; a
 * failure is one line on stderr. Exit codes: 0 done, 1 failed, 2 wrong usage.
 *
 *     static const cli_option options[] = {
 *         {"-m", CLI_TEXT, &arguments.model, 0, 0, NULL},
 *         {"--threads", CLI_SIZE, &arguments.threads, 1, 1024, NULL},
 *         {NULL, CLI_FLAG, NULL, 0, 0, NULL}};
 *
 *     cli_begin("program", &argc, &argv);
 *     code = cli_parse(argc, argv, help, options, operands, 1);
 *     if (code >= 0) return code;                          // --help, --isa list, or wrong usage
 */
#ifndef CLI_H
#define CLI_H

#if defined(__STRICT_ANSI__) && !defined(__APPLE__) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif

#include "../sinkless.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(_WIN32)
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <fcntl.h>
#include <io.h>
#include <windows.h>
#include <shellapi.h>
#else
#include <unistd.h>
#endif

#if defined(__GNUC__)
#define CLI_API static __attribute__((unused))
#define CLI_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define CLI_API static
#define CLI_PRINTF(text, first)
#endif

enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_GO_ON = -1 };

/* =====================================================================================================================
 * Messages: one line each, whatever a file or an argument put into them
 * ================================================================================================================== */

static const char *cli_program = "program";

CLI_API void cli_say_list(const char *format, va_list arguments)
{
    char line[1024];
    unsigned char *c;

    vsnprintf(line, sizeof line, format, arguments);
    for (c = (unsigned char *)line; *c; c++)
        if (*c < 32 || *c == 127) *c = '?';  /* names come from files: no control sequences to the terminal */
    fprintf(stderr, "%s: %s\n", cli_program, line);
}

/* A remark on stderr. */
CLI_API void CLI_PRINTF(1, 2) cli_say(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    cli_say_list(format, arguments);
    va_end(arguments);
}

/* return cli_fail("what went wrong, and where"); */
CLI_API int CLI_PRINTF(1, 2) cli_fail(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    cli_say_list(format, arguments);
    va_end(arguments);
    return CLI_FAILED;
}

/* return cli_usage("what is wrong with the arguments"); */
CLI_API int CLI_PRINTF(1, 2) cli_usage(const char *format, ...)
{
    char line[768];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    cli_say("%s (--help lists the options)", line);
    return CLI_USAGE;
}

/* The failure of a library call; subject is the file or action it is about. */
CLI_API int cli_fail_skl(const char *subject, const skl_error *error)
{
    const char *message = error->message[0] ? error->message : skl_status_string(error->status);

    if (strncmp(message, subject, strlen(subject)) == 0) return cli_fail("%s", message); /* it names the file itself */
    return cli_fail("%s: %s", subject, message);
}

/* Flushes stdout: a full disk or a closed reader is a failure too. */
CLI_API int cli_finish(void)
{
    if (fflush(stdout) || ferror(stdout)) return cli_fail("cannot write to standard output");
    return CLI_DONE;
}

/* =====================================================================================================================
 * Options
 * ================================================================================================================== */

typedef enum cli_kind {
    CLI_FLAG,   /* int: 1 when given; takes no value */
    CLI_TEXT,   /* const char * */
    CLI_SIZE,   /* size_t in [low, high] */
    CLI_SEED,   /* uint64_t, decimal or 0x hexadecimal */
    CLI_REAL,   /* float in [low, high] */
    CLI_CHOICE, /* int: value of the choice of that name */
    CLI_ISA,    /* int: skl_isa; "list" prints the levels this CPU can run and ends the program */
    CLI_LIST    /* cli_list: every value, in order of appearance */
} cli_kind;

typedef struct cli_choice {
    const char *name;
    int value;
} cli_choice;

#define CLI_LIST_ROOM 64

typedef struct cli_list {
    const char *items[CLI_LIST_ROOM]; /* [count] used */
    size_t count;
} cli_list;

/* An option is given as "NAME VALUE" or "NAME=VALUE"; the last one counts. Tables end with a NULL name. */
typedef struct cli_option {
    const char *name;
    cli_kind kind;
    void *value;               /* of the type that the kind names */
    double low, high;          /* CLI_SIZE, CLI_REAL */
    const cli_choice *choices; /* CLI_CHOICE: ends with a NULL name */
} cli_option;

CLI_API const cli_choice cli_activations[] = {{"f32", SKL_ACT_F32}, {"a8", SKL_ACT_A8}, {"a4", SKL_ACT_A4}, {NULL, 0}};
CLI_API const cli_choice cli_groups[] = {{"32", SKL_GROUP_32}, {"row", SKL_GROUP_ROW}, {NULL, 0}};
CLI_API const cli_choice cli_kvs[] = {
    {"f32", SKL_KV_F32}, {"f16", SKL_KV_F16}, {"i8", SKL_KV_I8}, {"i4", SKL_KV_I4}, {NULL, 0}};

#define CLI_MOST_THREADS 1024
#define CLI_MOST_TOKENS 1e9

/* Whole text as a non-negative integer. */
CLI_API int cli_read_u64(const char *text, uint64_t *out)
{
    const int hexadecimal = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    unsigned long long value;
    char *end;

    if (text[0] < '0' || text[0] > '9') return 0;  /* strtoull would take blanks and signs */
    errno = 0;
    value = strtoull(text, &end, hexadecimal ? 16 : 10);
    if (errno || *end) return 0;
    *out = value;
    return 1;
}

/* Whole text as a finite number. */
CLI_API int cli_read_real(const char *text, double *out)
{
    char *end;

    if (!strchr("+-.0123456789", text[0]) || strpbrk(text, "xXnN")) return 0;  /* no blanks, hexadecimal, inf, nan */
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out >= -1e300 && *out <= 1e300;
}

CLI_API int cli_isa_list(void)
{
    const uint32_t available = skl_isa_available();
    int isa;

    for (isa = SKL_ISA_SCALAR; isa < SKL_ISA_COUNT; isa++)
        if (available >> isa & 1) printf("%s\n", skl_isa_name((skl_isa)isa));
    return cli_finish();
}

CLI_API int cli_store_isa(const char *name, const char *text, int *out)
{
    int isa;

    if (!strcmp(text, "list")) return cli_isa_list();
    for (isa = SKL_ISA_SCALAR; isa < SKL_ISA_COUNT; isa++)
        if (!strcmp(text, skl_isa_name((skl_isa)isa))) {
            *out = isa;
            return CLI_GO_ON;
        }
    return cli_usage("%s: there is no kernel level %.40s (%s list prints those this CPU can run)", name, text, name);
}

CLI_API int cli_store_choice(const cli_option *option, const char *text)
{
    const cli_choice *choice;
    char names[256];
    size_t used = 0;

    names[0] = '\0';
    for (choice = option->choices; choice->name; choice++) {
        if (!strcmp(text, choice->name)) {
            *(int *)option->value = choice->value;
            return CLI_GO_ON;
        }
        if (used < sizeof names) used += (size_t)snprintf(names + used, sizeof names - used, " %s", choice->name);
    }
    return cli_usage("%s takes one of%s, not %.80s", option->name, names, text);
}

CLI_API int cli_store(const cli_option *option, const char *text)
{
    uint64_t integer;
    double real;
    cli_list *list;

    switch (option->kind) {
    case CLI_FLAG: break;
    case CLI_TEXT: *(const char **)option->value = text; break;
    case CLI_SIZE:
        if (!cli_read_u64(text, &integer) || (double)integer < option->low || (double)integer > option->high)
            return cli_usage("%s takes an integer from %.0f to %.0f, not %.80s", option->name, option->low,
                             option->high, text);
        *(size_t *)option->value = (size_t)integer;
        break;
    case CLI_SEED:
        if (!cli_read_u64(text, (uint64_t *)option->value))
            return cli_usage("%s takes an integer from 0 to 18446744073709551615, not %.80s", option->name, text);
        break;
    case CLI_REAL:
        if (!cli_read_real(text, &real) || real < option->low || real > option->high)
            return cli_usage("%s takes a number from %g to %g, not %.80s", option->name, option->low, option->high,
                             text);
        *(float *)option->value = (float)real;
        break;
    case CLI_CHOICE: return cli_store_choice(option, text);
    case CLI_ISA: return cli_store_isa(option->name, text, (int *)option->value);
    case CLI_LIST:
        list = (cli_list *)option->value;
        if (list->count == CLI_LIST_ROOM) return cli_usage("%s is given too often", option->name);
        list->items[list->count++] = text;
        break;
    }
    return CLI_GO_ON;
}

/* The option that argument names, or NULL; *value is what follows "NAME=", or NULL. */
CLI_API const cli_option *cli_find(const cli_option *options, const char *argument, const char **value)
{
    const size_t length = strcspn(argument, "=");

    for (; options->name; options++)
        if (strlen(options->name) == length && !strncmp(options->name, argument, length)) {
            *value = argument[length] ? argument + length + 1 : NULL;
            return options;
        }
    return NULL;
}

/* Reads the arguments. Those that are no options go to operands [most]; the others stay NULL. "--" ends the options.
 * -> CLI_GO_ON, or the exit code of a program that has nothing left to do. */
CLI_API int cli_parse(int argc, char **argv, const char *help, const cli_option *options, const char **operands,
                      size_t most)
{
    size_t count = 0;
    int i, code, literal = 0;

    for (i = 1; i < argc; i++) {
        const char *argument = argv[i], *value = NULL;
        const cli_option *option;

        if (!literal && !strcmp(argument, "--")) {
            literal = 1;
        } else if (literal || argument[0] != '-' || argument[1] == '\0') {
            if (count == most) return cli_usage("unexpected argument %.200s", argument);
            operands[count++] = argument;
        } else if (!strcmp(argument, "--help") || !strcmp(argument, "-h")) {
            fputs(help, stdout);
            return cli_finish();
        } else if (!(option = cli_find(options, argument, &value))) {
            return cli_usage("unknown option %.200s", argument);
        } else if (option->kind == CLI_FLAG) {
            if (value) return cli_usage("%s takes no value", option->name);
            *(int *)option->value = 1;
        } else {
            if (!value && i + 1 == argc) return cli_usage("%s needs a value", option->name);
            if (!value) value = argv[++i];
            code = cli_store(option, value);
            if (code != CLI_GO_ON) return code;
        }
    }
    return CLI_GO_ON;
}

/* =====================================================================================================================
 * Files, terminals, time
 * ================================================================================================================== */

/* fopen for UTF-8 paths. */
CLI_API FILE *cli_open(const char *path, const char *mode)
{
#if defined(_WIN32)
    wchar_t wide_path[1024], wide_mode[8];

    if (!MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide_path, 1024) ||
        !MultiByteToWideChar(CP_UTF8, 0, mode, -1, wide_mode, 8)) {
        errno = EINVAL;
        return NULL;
    }
    return _wfopen(wide_path, wide_mode);
#else
    return fopen(path, mode);
#endif
}

/* A whole file, pipes included, in memory of malloc; a NUL that does not count follows the last byte. NULL, with errno
 * set, if that is not possible. */
CLI_API unsigned char *cli_read_file(const char *path, size_t *size)
{
    FILE *file = cli_open(path, "rb");
    unsigned char *bytes = NULL;
    size_t used = 0, room = 0;
    int failure = 0;

    if (!file) return NULL;
    do {
        if (room - used < 2) {
            unsigned char *larger;

            room = room ? room * 2 : 1 << 16;
            larger = room > used ? (unsigned char *)realloc(bytes, room) : NULL;
            if (!larger) {
                failure = ENOMEM;
                break;
            }
            bytes = larger;
        }
        errno = 0;
        used += fread(bytes + used, 1, room - used - 1, file);
    } while (!feof(file) && !ferror(file));
    if (ferror(file)) failure = errno ? errno : EIO;
    fclose(file);
    if (failure) {
        free(bytes);
        errno = failure;
        return NULL;
    }
    bytes[used] = '\0';
    *size = used;
    return bytes;
}

CLI_API int cli_is_terminal(FILE *file)
{
#if defined(_WIN32)
    return _isatty(_fileno(file));
#else
    return isatty(fileno(file));
#endif
}

/* Seconds of a clock that only goes forward. */
CLI_API double cli_seconds(void)
{
#if defined(_WIN32)
    LARGE_INTEGER now, frequency;

    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&frequency);
    return (double)now.QuadPart / (double)frequency.QuadPart;
#else
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
#endif
}

/* A progress bar, if stderr is a terminal; done == total removes it. */
CLI_API void cli_progress(uint64_t done, uint64_t total)
{
    static const char bar[] = "########################################";
    const int width = (int)sizeof bar - 1, full = total ? (int)((double)done / (double)total * width) : width;

    if (!cli_is_terminal(stderr)) return;
    if (done >= total) fprintf(stderr, "\r%*s\r", width + 7, "");
    else fprintf(stderr, "\r[%-*.*s] %3d%%", width, full, bar, (int)((double)done / (double)total * 100));
    fflush(stderr);
}

#if defined(_WIN32)
/* The arguments as UTF-8: those of main are in the code page of the system, which most characters do not survive. */
CLI_API void cli_windows_arguments(int *argc, char ***argv)
{
    int count, i;
    wchar_t **wide = CommandLineToArgvW(GetCommandLineW(), &count);
    char **narrow = wide ? (char **)calloc((size_t)count + 1, sizeof *narrow) : NULL;

    for (i = 0; narrow && i < count; i++) {
        const int length = WideCharToMultiByte(CP_UTF8, 0, wide[i], -1, NULL, 0, NULL, NULL);

        narrow[i] = (char *)malloc((size_t)length + 1);
        if (!narrow[i]) return;
        WideCharToMultiByte(CP_UTF8, 0, wide[i], -1, narrow[i], length, NULL, NULL);
    }
    if (!narrow) return;
    *argc = count;
    *argv = narrow;
}
#endif

/* First call of main: names the program in messages; on Windows, UTF-8 arguments and console, and bytes as they are in
 * pipes. */
CLI_API void cli_begin(const char *program, int *argc, char ***argv)
{
    cli_program = program;
#if defined(_WIN32)
    cli_windows_arguments(argc, argv);
    SetConsoleOutputCP(CP_UTF8);
    _setmode(_fileno(stdin), _O_BINARY);
    _setmode(_fileno(stdout), _O_BINARY);
#else
    (void)argc;
    (void)argv;
#endif
}

#endif /* CLI_H */
