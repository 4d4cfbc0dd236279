/* process.h - runs the programs that users run: with a pipe, or on a terminal of their own. POSIX.
 *
 * Programs are found in the folder that BUILD names in the environment, "build" without it; EMULATOR, if it is there, is the
 * command that runs them. One that hangs is killed, which shows as a code above 128.
 */
#ifndef SINKLESS_PROCESS_H
#define SINKLESS_PROCESS_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESS_SECONDS 120 /* until a program is taken for hanging */
#define PROCESS_ARGUMENTS 32

typedef struct process_text {
    char *bytes; /* [length], and a NUL; of malloc */
    size_t length;
} process_text;

typedef struct process_result {
    int code;    /* exit code, or 128 + signal */
    process_text out, err;
} process_result;

static inline const char *process_build(void)
{
    const char *build = getenv("BUILD");

    return build && *build ? build : "build";
}

static inline void process_free(process_result *result)
{
    free(result->out.bytes);
    free(result->err.bytes);
}

static inline size_t process_lines(const process_text *text)
{
    size_t i, lines = 0;

    for (i = 0; i < text->length; i++) lines += text->bytes[i] == '\n';
    return lines;
}

static inline int process_code(pid_t pid)
{
    int status = 0;

    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline process_text process_read(FILE *file)
{
    process_text text;
    long length;

    fseek(file, 0, SEEK_END);
    length = ftell(file);
    rewind(file);
    text.length = length > 0 ? (size_t)length : 0;
    text.bytes = (char *)calloc(text.length + 1, 1);
    if (text.bytes) text.length = fread(text.bytes, 1, text.length, file);
    fclose(file);
    return text;
}

/* In a child: becomes the program. */
static inline void process_become(const char *program, char **arguments)
{
    char path[1024], *emulator = getenv("EMULATOR");

    snprintf(path, sizeof path, "%s/%s", process_build(), program);
    arguments[0] = path;
    alarm(PROCESS_SECONDS);
    signal(SIGPIPE, SIG_DFL);
    if (emulator && *emulator) { /* EMULATOR PROGRAM ARGUMENTS */
        memmove(arguments + 1, arguments, PROCESS_ARGUMENTS * sizeof *arguments);
        arguments[0] = emulator;
        arguments[PROCESS_ARGUMENTS] = NULL;
        execvp(emulator, arguments);
    } else {
        execv(path, arguments);
    }
    _exit(127);
}

static inline void process_collect(char **arguments, va_list list)
{
    size_t n = 1;

    while (n < PROCESS_ARGUMENTS && (arguments[n] = va_arg(list, char *)) != NULL) n++;
    arguments[PROCESS_ARGUMENTS] = NULL;
}

/* Runs a program with input [length] in a pipe (NULL: standard input is closed) and the arguments up to NULL. */
static inline process_result process_run(const char *input, size_t length, const char *program, ...)
{
    char *arguments[PROCESS_ARGUMENTS + 1];
    process_result result;
    FILE *out = tmpfile(), *err = tmpfile();
    int ends[2];
    pid_t feeder, pid;
    va_list list;

    va_start(list, program);
    process_collect(arguments, list);
    va_end(list);
    memset(&result, 0, sizeof result);
    result.code = 127;
    if (!out || !err || pipe(ends)) return result;
    fflush(NULL);

    feeder = fork();
    if (feeder == 0) {  /* a process of its own, so that neither side waits for the other */
        size_t done = 0;

        close(ends[0]);
        while (input && done < length) {
            const ssize_t n = write(ends[1], input + done, length - done);

            if (n <= 0) break;
            done += (size_t)n;
        }
        _exit(0);
    }
    pid = fork();
    if (pid == 0) {
        if (input) dup2(ends[0], 0);
        else close(0);
        dup2(fileno(out), 1);
        dup2(fileno(err), 2);
        close(ends[0]);
        close(ends[1]);
        process_become(program, arguments);
    }
    close(ends[0]);
    close(ends[1]);
    result.code = process_code(pid);
    process_code(feeder);
    result.out = process_read(out);
    result.err = process_read(err);
    return result;
}

/* A program on a pseudo-terminal. */
typedef struct process_terminal {
    int master;
    pid_t pid;
    char seen[1 << 16]; /* [length], NUL-terminated: what it showed since the last process_type */
    size_t length;
} process_terminal;

static inline int process_open_terminal(process_terminal *t, const char *program, ...)
{
    char *arguments[PROCESS_ARGUMENTS + 1];
    va_list list;

    va_start(list, program);
    process_collect(arguments, list);
    va_end(list);
    memset(t, 0, sizeof *t);
    t->master = posix_openpt(O_RDWR | O_NOCTTY);
    if (t->master < 0 || grantpt(t->master) || unlockpt(t->master)) return 0;
    fflush(NULL);
    t->pid = fork();
    if (t->pid == 0) {
        const char *name = ptsname(t->master);
        int slave;

        setsid();
        slave = name ? open(name, O_RDWR) : -1;
        if (slave < 0) _exit(127);
#if defined(TIOCSCTTY)
        ioctl(slave, TIOCSCTTY, 0);  /* so that Ctrl-C becomes a signal */
#endif
        dup2(slave, 0);
        dup2(slave, 1);
        dup2(slave, 2);
        if (slave > 2) close(slave);
        close(t->master);
        process_become(program, arguments);
    }
    return t->pid > 0;
}

/* Reads on until the text and at least so many bytes more have been seen (1), or the program has ended or says nothing
 * for a while (0). */
static inline int process_expect(process_terminal *t, const char *text, size_t more)
{
    for (;;) {
        const char *found = strstr(t->seen, text);
        struct pollfd wait;
        ssize_t n;

        if (found && (size_t)(t->seen + t->length - found) >= strlen(text) + more) return 1;
        wait.fd = t->master;
        wait.events = POLLIN;
        if (poll(&wait, 1, 20000) <= 0 || t->length + 1 >= sizeof t->seen) return 0;
        n = read(t->master, t->seen + t->length, sizeof t->seen - 1 - t->length);
        if (n <= 0) return 0;
        t->length += (size_t)n;
        t->seen[t->length] = '\0';
    }
}

/* Types keys; what was seen so far is forgotten. */
static inline int process_type(process_terminal *t, const char *keys)
{
    const size_t length = strlen(keys);

    t->length = 0;
    t->seen[0] = '\0';
    return write(t->master, keys, length) == (ssize_t)length;
}

/* Waits for the end; returns the exit code. */
static inline int process_close_terminal(process_terminal *t)
{
    int code;

    while (process_expect(t, "\377", 0)) {}  /* never shown: reads until the program has closed its side */
    code = process_code(t->pid);
    close(t->master);
    return code;
}

#endif /* SINKLESS_PROCESS_H */
