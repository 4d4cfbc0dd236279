#!/bin/sh
# The wide checks: every compiler, option and instruction set that is here. Run from the root of the repository, all of
# them or by name:
#
#     sh tests/check_all.sh [test] [warnings] [header] [hashes] [cross] [sanitize] [fuzz] [oracle] [data]
#
# What needs a tool, the network or a file that is not there is skipped, and counted. Last line: N passed, N failed,
# with the number skipped behind it if there are any.
#
#     OUT           where everything is made (default build/check)
#     JOBS          compilers at a time (default: number of CPUs)
#     FUZZ_SECONDS  for each fuzz target (default 20)
#     SHARED        a folder with models and corpora that are too large to be here (default ../shared)

OUT=${OUT:-build/check}
JOBS=${JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)}
FUZZ_SECONDS=${FUZZ_SECONDS:-20}
SHARED=${SHARED:-../shared}

STRICT="-pedantic -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wcast-align -Wdouble-promotion -Wundef -Werror"
C99="-std=c99 -Wstrict-prototypes -Wmissing-prototypes"
CXX11="-x c++ -std=c++11"
ADDRESS="-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
LIBS="-lm -lpthread"
# A 32-bit build finds the headers of the C library here, where gcc-multilib and its links cannot be installed.
M32="-m32 -idirafter /usr/include/x86_64-linux-gnu"

passed=0
failed=0
skipped=0

# --- Counting --------------------------------------------------------------------------------------------------------

have() { command -v "$1" >/dev/null 2>&1; }

pass() { passed=$((passed + ${1:-1})); }

skip()
{
    skipped=$((skipped + 1))
    echo "  skipped: $1"
}

fail()
{
    failed=$((failed + 1))
    echo "  FAILED: $1"
    if [ -n "$2" ] && [ -f "$2" ]; then tail -n "${LINES_SHOWN:-12}" "$2" | sed 's/^/    | /'; fi
}

# check NAME COMMAND...: passes if the command does.
check()
{
    name=$1
    shift
    if "$@" >"$OUT/log" 2>&1; then pass; else fail "$name" "$OUT/log"; fi
}

# check_empty NAME FILE: passes if the file has no line; shows it otherwise.
check_empty() { if [ -s "$2" ]; then fail "$1" "$2"; else pass; fi; }

# check_counts NAME CODE LOG: adds what a program counted itself, in its last line "N passed, N failed".
check_counts()
{
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$3" | tail -n 1)
    good=${line%% *}
    bad=${line#*, }
    bad=${bad%% *}
    if [ -z "$line" ]; then
        fail "$1 (exit code $2, no result)" "$3"
        return
    fi
    pass "$good"
    if [ "$bad" -eq 0 ] && [ "$2" -eq 0 ]; then return; fi
    LINES_SHOWN=60 fail "$1: $line, exit code $2" "$3"
    if [ "$bad" -gt 1 ]; then failed=$((failed + bad - 1)); fi
}

# --- Compiling, several at a time ------------------------------------------------------------------------------------
# plan adds a command, named; compile and test_planned run all that were planned and leave NAME.rc and NAME.log in OUT.

: "${PLAN:=$OUT/plan}"

plan()
{
    name=$1
    shift
    echo "($*) >$OUT/$name.log 2>&1; echo \$? >$OUT/$name.rc" >>"$PLAN"
    planned="$planned $name"
}

run_planned()
{
    [ -s "$PLAN" ] && tr '\n' '\0' <"$PLAN" | xargs -0 -n 1 -P "$JOBS" sh -c
    : >"$PLAN"
}

compile()
{
    run_planned
    for name in $planned; do
        if [ "$(cat "$OUT/$name.rc" 2>/dev/null)" = 0 ]; then pass; else fail "compile $name" "$OUT/$name.log"; fi
    done
    planned=
}

# The same for programs that count their checks.
test_planned()
{
    run_planned
    for name in $planned; do check_counts "$name" "$(cat "$OUT/$name.rc" 2>/dev/null)" "$OUT/$name.log"; done
    planned=
}

# --- test: the ordinary tests, from nothing --------------------------------------------------------------------------

step_test()
{
    make test BUILD="$OUT/test" >"$OUT/test.log" 2>&1
    check_counts "make test" $? "$OUT/test.log"
}

# --- warnings: compilers x languages x options -----------------------------------------------------------------------

step_warnings()
{
    printf '#define SINKLESS_IMPLEMENTATION\n#include "sinkless.h"\n#include "sinkless.h"\n' >"$OUT/twice.c"
    printf '#include "sinkless.h"\n#define SINKLESS_IMPLEMENTATION\n#include "sinkless.h"\n' >"$OUT/later.c"
    printf '#include "sinkless.h"\n#include "sinkless.h"\n%s\n' \
        'int main(void) { return skl_isa_name(SKL_ISA_SCALAR) == 0; }' >"$OUT/user.c"
    for cc in gcc clang clang-16; do # the last one is the first Clang that has all Arm levels
        if ! have $cc; then
            skip "$cc is not here"
            continue
        fi
        for option in NORMAL STATIC NO_THREADS NO_SIMD; do
            plan "$cc-c99-$option" $cc -fsyntax-only $C99 $STRICT -DSINKLESS_$option -I. "$OUT/twice.c"
            plan "$cc-c++11-$option" $cc -fsyntax-only $CXX11 $STRICT -DSINKLESS_$option -I. "$OUT/twice.c"
        done
        plan "$cc-later" $cc -fsyntax-only $C99 $STRICT -I. "$OUT/later.c"
        plan "$cc-all-options" $cc -fsyntax-only $C99 $STRICT -DSINKLESS_STATIC -DSINKLESS_NO_THREADS \
            -DSINKLESS_NO_SIMD -I. "$OUT/twice.c"
        plan "$cc-user-c89" $cc -fsyntax-only -std=c89 $STRICT -I. "$OUT/user.c"
        plan "$cc-user-c99" $cc -fsyntax-only $C99 $STRICT -I. "$OUT/user.c"
        plan "$cc-user-c++11" $cc -fsyntax-only $CXX11 $STRICT -I. "$OUT/user.c"
        for program in examples/*.c bench/*.c; do
            [ -f "$program" ] || continue
            plan "$cc-$(basename "$program")" $cc -fsyntax-only -std=c99 $STRICT "$program"
        done
        for program in tests/test_*.c tests/fuzz/fuzz_*.c; do
            [ -f "$program" ] || continue
            plan "$cc-$(basename "$program")" $cc -fsyntax-only -std=gnu99 -Wall -Wextra -Werror -I. "$program"
        done
    done
    # A compiler that lacks the instructions of a level: the row goes, and nothing else.
    for cc in gcc clang aarch64-linux-gnu-gcc "clang --target=aarch64-linux-gnu" "clang-16 --target=aarch64-linux-gnu"; do
        have ${cc%% *} || continue
        case $cc in *--target=aarch64-linux-gnu) [ -d /usr/aarch64-linux-gnu/include ] || continue ;; esac
        case $cc in *aarch64*) family=NEON; lacks="DOTPROD I8MM" ;; *) family=; lacks="AVXVNNI AVX512VNNI AMX" ;; esac
        for lack in none $lacks; do
            for program in examples/eval.c bench/bench.c; do
                plan "$(echo "$cc" | tr -c 'a-z0-9\n' -)-without-$lack-$(basename "$program")" \
                    $cc -fsyntax-only $C99 $STRICT -DSKL__HAS_${family:+${family}_}$lack=0 "$program"
            done
        done
    done
    # GCC tells of unused functions only when it makes code.
    have gcc && plan gcc-static-unused gcc -O0 -c $C99 $STRICT -DSINKLESS_STATIC -I. "$OUT/twice.c" -o "$OUT/unused.o"
    # As C++, some of its versions doubt their own intrinsics, and only when they optimise.
    have gcc && plan gcc-c++11-O2 gcc -O2 -c $CXX11 $STRICT -I. "$OUT/twice.c" -o "$OUT/optimised.o"
    compile
}

# --- header: what a program that uses it gets ------------------------------------------------------------------------

# Macros that a compiler knows after $1 on standard input.
macros() { "$@" -I. -dM -E -x c - | sed 's/^#define //; s/[ (].*//' | sort -u; }

step_header()
{
    cc=$(have gcc && echo gcc || echo clang)
    printf '#define SINKLESS_IMPLEMENTATION\n#include "sinkless.h"\n' >"$OUT/implementation.c"
    printf '#include "sinkless.h"\nconst char *user(void);\n%s\n' \
        'const char *user(void) { return skl_isa_name(SKL_ISA_SCALAR); }' >"$OUT/user.c"
    printf '#include "sinkless.h"\n%s\nint main() { return user()[0] != skl_isa_name(SKL_ISA_SCALAR)[0]; }\n' \
        'extern "C" const char *user(void);' >"$OUT/main.cpp"
    for n in 1 2; do
        printf '#define SINKLESS_STATIC\n#define SINKLESS_IMPLEMENTATION\n#include "sinkless.h"\n' >"$OUT/static$n.c"
    done
    echo 'const char *user(void); const char *user(void) { return skl_isa_name(SKL_ISA_SCALAR); }' >>"$OUT/static1.c"
    echo 'const char *user(void); int main(void) { return user()[0] != skl_isa_name(SKL_ISA_SCALAR)[0]; }' \
        >>"$OUT/static2.c"
    grep -nE '^ *# *define +' sinkless.h | sed -E 's/.*define +([A-Za-z_0-9]+).*/\1/' |
        grep -vE '^(SKL_|skl__|SINKLESS_|WIN32_LEAN_AND_MEAN$|NOMINMAX$)' >"$OUT/foreign"
    check_empty "macros have the prefix of the library" "$OUT/foreign"
    for mode in gcc clang "gcc -DSINKLESS_NO_SIMD" "gcc -DSINKLESS_NO_THREADS" "gcc $M32" aarch64-linux-gnu-gcc; do
        have ${mode%% *} || continue
        macros $mode <"$OUT/implementation.c" >"$OUT/macros" 2>/dev/null
        grep -qx SKL_VERSION "$OUT/macros" || continue  # a compiler without a C library
        grep -E '^(SKL__|skl__)' "$OUT/macros" >"$OUT/leftover"
        check_empty "private macros are gone after the header ($mode)" "$OUT/leftover"
    done
    macros $cc <"$OUT/user.c" | grep -E '^(SKL__|skl__)' >"$OUT/leftover"
    check_empty "the interface alone defines no private macros" "$OUT/leftover"

    plan implementation $cc -O2 -c $C99 $STRICT -I. "$OUT/implementation.c" -o "$OUT/implementation.o"
    plan user $cc -c $C99 $STRICT -I. "$OUT/user.c" -o "$OUT/user.o"
    plan main "$cc" -x c++ -std=c++11 -c -I. "$OUT/main.cpp" -o "$OUT/main.o"
    plan static1 $cc -c -I. "$OUT/static1.c" -o "$OUT/static1.o"
    plan static2 $cc -c -I. "$OUT/static2.c" -o "$OUT/static2.o"
    compile

    [ -f "$OUT/implementation.o" ] || return
    check "implementation in C, users in C and C++" \
        sh -c "$cc $OUT/implementation.o $OUT/user.o $OUT/main.o -o $OUT/linked $LIBS && $OUT/linked"
    check "two static copies in one program" \
        sh -c "$cc $OUT/static1.o $OUT/static2.o -o $OUT/linked-static $LIBS && $OUT/linked-static"

    nm -g --defined-only "$OUT/implementation.o" | awk '$3 !~ /^skl_[a-z]/' >"$OUT/exported"
    check_empty "exported names begin with skl_" "$OUT/exported"
    nm -g --defined-only "$OUT/static1.o" | awk '$3 != "user"' >"$OUT/exported-static"
    check_empty "SINKLESS_STATIC exports nothing" "$OUT/exported-static"
    size -A "$OUT/implementation.o" | awk '($1 == ".data" || $1 == ".bss") && $2 > 0' >"$OUT/mutable"
    check_empty "no mutable globals" "$OUT/mutable"
    nm -u "$OUT/implementation.o" | awk '{print $2}' | grep -E "^(abort|_?exit|_Exit|quick_exit|atexit|__assert.*|\
printf|vprintf|fprintf|vfprintf|puts|putchar|putc|fputs|fputc|fwrite|perror|std(in|out|err)|__.*printf_chk|\
getenv|setenv|setlocale|\
localeconv|strto[dfl].*|atof|atoi|signal|sigaction|raise|kill|system|rand|srand|random|time|clock|longjmp|\
_longjmp|exp|expf|log|logf|pow|powf|sin|sinf|cos|cosf|tanh|tanhf|fma|fmaf)\$" >"$OUT/forbidden"
    check_empty "nothing is called that ends, prints, or differs between C libraries" "$OUT/forbidden"
}

# Optimisers see more than the front ends of step_warnings do.
no_warnings()
{
    for build in $builds; do
        grep -h 'warning:' "$OUT/eval-$build.log" >"$OUT/warned"
        check_empty "warnings of the build $build" "$OUT/warned"
    done
}

# --- hashes: the same bits from every build --------------------------------------------------------------------------

GOLDEN="llama qwen3 everything w4_blocks k_quants mixed_weights oasis_block attnres_block odd_sizes sliding_window \
dyt_gated"

# hashes FILE OPTIONS... -- COMMAND...: a line for each golden model and format, so that files can be compared.
hashes()
{
    file=$1
    shift
    extra=
    while [ "$1" != -- ]; do
        extra="$extra $1"
        shift
    done
    shift
    : >"$file"
    for model in ${MODELS:-$GOLDEN}; do
        for formats in "f32 32 f32" "a8 32 f16" "a8 row i4" "a4 row i8"; do
            set -f
            set -- "$@" -- $formats
            set +f
            formats=$*
            formats=${formats##* -- }
            command=$*
            command=${command%% -- *}
            act=${formats%% *}
            kv=${formats##* }
            group=${formats#* }
            group=${group% *}
            case=tests/golden/$model
            echo "$model $act $group $kv $($command -m $case/model.gguf --ids $case/tokens.i32 --hash \
                --act $act --group $group --kv $kv $extra 2>&1)" >>"$file"
            set -- $command
        done
    done
}

# same NAME FILE: compares such a file with the reference; each line counts.
same()
{
    if [ "$(wc -l <"$2")" -eq 0 ]; then
        fail "$1: nothing to compare"
        return
    fi
    grep -xvFf "$OUT/reference.hashes" "$2" >"$OUT/different"
    bad=$(wc -l <"$OUT/different")
    pass $(($(wc -l <"$2") - bad))
    if [ "$bad" -gt 0 ]; then
        fail "other bits: $1, $bad lines" "$OUT/different"
        failed=$((failed + bad - 1))
    fi
}

# The build that others are compared with.
need_reference()
{
    [ -s "$OUT/reference.hashes" ] && return
    make eval BUILD="$OUT/test" >"$OUT/eval.log" 2>&1 || fail "make eval" "$OUT/eval.log"
    hashes "$OUT/reference.hashes" -- "$OUT/test/eval"
    if grep -qv ' hash [0-9A-F]*$' "$OUT/reference.hashes"; then fail "reference build" "$OUT/reference.hashes"; fi
}

# eval_plan NAME COMPILER FLAGS...: plans a build of examples/eval.c.
eval_plan()
{
    build=$1
    shift
    plan "eval-$build" "$@" -Wall -Wextra examples/eval.c -o "$OUT/eval-$build" $LIBS
    builds="$builds $build"
}

step_hashes()
{
    need_reference
    eval=$OUT/test/eval
    for isa in $("$eval" --isa list); do
        hashes "$OUT/isa.hashes" --isa "$isa" -- "$eval"
        same "--isa $isa" "$OUT/isa.hashes"
    done
    for option in "--threads 1" "--threads 3" "--chunk 1" "--chunk 7" "--threads 2 --chunk 5"; do
        hashes "$OUT/option.hashes" $option -- "$eval"
        same "$option" "$OUT/option.hashes"
    done

    builds=
    native=
    case $(uname -m) in x86_64) native=-march=native ;; esac
    if have gcc; then
        eval_plan gcc-O0 gcc -O0
        eval_plan gcc-O3 gcc -O3
        eval_plan gcc-Ofast gcc -Ofast $native
        eval_plan gcc-scalar gcc -O2 -DSINKLESS_NO_SIMD -DSINKLESS_NO_THREADS
    fi
    if have clang; then
        eval_plan clang-O0 clang -O0
        eval_plan clang-O2 clang -O2
        eval_plan clang-Ofast clang -Ofast $native
        eval_plan clang-contract clang -O2 -ffp-contract=fast $native -DSINKLESS_NO_SIMD
    fi
    # Products that a compiler fuses into sums: kernels, and what only tests and tools call.
    have clang && plan kernels-contract clang -O2 -ffp-contract=fast $native -I. tests/test_kernels.c -o "$OUT/kernels-contract" $LIBS
    compile
    no_warnings
    if [ -x "$OUT/kernels-contract" ]; then
        "$OUT/kernels-contract" >"$OUT/kernels.log" 2>&1
        check_counts "kernels with -ffp-contract=fast" $? "$OUT/kernels.log"
    fi
    for build in $builds; do
        [ -x "$OUT/eval-$build" ] || continue
        hashes "$OUT/$build.hashes" -- "$OUT/eval-$build"
        same "$build" "$OUT/$build.hashes"
    done
}

# --- cross: other instruction sets, under emulation ------------------------------------------------------------------

step_cross()
{
    need_reference
    builds=
    arm=aarch64-linux-gnu-gcc
    arm_tests=
    echo 'int main(void) { return 0; }' >"$OUT/empty.c"

    run32=
    if [ "$(uname -m)" = x86_64 ] && have gcc && gcc $M32 "$OUT/empty.c" -o "$OUT/empty32" >/dev/null 2>&1; then
        if "$OUT/empty32" 2>/dev/null; then run32=env
        elif have qemu-i386; then run32="qemu-i386 -cpu max"; fi
    fi
    if [ -n "$run32" ]; then
        eval_plan gcc-m32 gcc -O2 $M32
        eval_plan gcc-m32-sse2 gcc -O2 $M32 -msse2 -mfpmath=sse
    else
        skip "32-bit x86: needs a 32-bit C library, and a system or qemu-i386 that runs it"
    fi
    if have $arm && have qemu-aarch64; then
        eval_plan arm-gcc $arm -O2 -static
        eval_plan arm-gcc-Ofast $arm -Ofast -static
        eval_plan arm-scalar $arm -O2 -static -DSINKLESS_NO_SIMD
        have clang && eval_plan arm-clang clang --target=aarch64-linux-gnu -O2 -ffast-math -static
        have clang-16 && eval_plan arm-clang-16 clang-16 --target=aarch64-linux-gnu -O2 -static
        for program in tests/test_*.c; do
            name=$(basename "$program" .c)
            arm_tests="$arm_tests $name"
            plan "arm-$name" $arm -O2 -static -I. "$program" -o "$OUT/arm-$name" $LIBS
        done
        plan arm-programs make minimal eval chat quantize BUILD="$OUT/arm" CC=$arm HOSTCC=cc "CFLAGS='-std=c99 -O2 -static'"
    else
        skip "aarch64: needs aarch64-linux-gnu-gcc and qemu-aarch64"
    fi
    compile
    no_warnings

    MODELS="everything w4_blocks k_quants mixed_weights odd_sizes"
    for build in $builds; do
        [ -x "$OUT/eval-$build" ] || continue
        case $build in
        gcc-m32*)
            hashes "$OUT/$build.hashes" -- $run32 "$OUT/eval-$build"
            same "$build" "$OUT/$build.hashes" ;;
        arm-scalar)
            hashes "$OUT/$build.hashes" -- qemu-aarch64 "$OUT/eval-$build"
            same "$build" "$OUT/$build.hashes" ;;
        arm-*)
            for cpu in cortex-a53 neoverse-n1 max; do
                emulator="qemu-aarch64 -cpu $cpu"
                $emulator "$OUT/eval-$build" --isa list >"$OUT/levels" 2>&1
                if ! qemu-aarch64 -cpu $cpu "$OUT/eval-$build" --help >/dev/null 2>&1; then
                    skip "this qemu-aarch64 has no $cpu"
                    continue
                fi
                # On a CPU only its best level: the others ran on the CPU before.
                hashes "$OUT/$build.hashes" -- $emulator "$OUT/eval-$build"
                same "$build on $cpu ($(tr '\n' ' ' <"$OUT/levels"))" "$OUT/$build.hashes"
            done
            case $build in arm-gcc | arm-clang-16)
                for level in neon neon-dotprod neon-i8mm; do
                    check "$build has $level" grep -qx "$level" "$OUT/levels"
                done ;;
            esac ;;
        esac
    done
    MODELS=

    for cpu in cortex-a53 neoverse-n1 max; do
        [ -n "$arm_tests" ] && qemu-aarch64 -cpu $cpu "$OUT/eval-arm-gcc" --help >/dev/null 2>&1 || continue
        for name in $arm_tests; do
            # The CPU with all levels runs every test, also of what programs do; the others those of kernels and models.
            case $cpu-$name in max-* | *-test_kernels | *-test_units | *-test_model | *-test_platform) ;; *) continue ;; esac
            plan "$name-on-$cpu" env BUILD="$OUT/arm" EMULATOR=qemu-aarch64 qemu-aarch64 -cpu $cpu "$OUT/arm-$name"
        done
    done
    test_planned

    # Files are little-endian and used in place, so other machines have to say that they cannot.
    # What only rearranges bytes works there, too: rows packed and unpacked are rows dequantised.
    big=s390x-linux-gnu-gcc
    cat >"$OUT/rows.c" <<'EOF'
#define SINKLESS_IMPLEMENTATION
#include "sinkless.h"
int main(void)
{
    static const int types[] = {SKL_TYPE_Q4_0, SKL_TYPE_Q4_1, SKL_TYPE_Q8_0, SKL_TYPE_Q4_K, SKL_TYPE_Q5_K, SKL_TYPE_Q6_K};
    unsigned char block[512], packed[32768];
    float wanted[256], got[256];
    skl_layout layout;
    size_t t, i;
    for (i = 0; i < sizeof block; i++) block[i] = (unsigned char)(i * 53 % 251 & 0x3b); /* finite scales, wherever they are */
    for (t = 0; t < sizeof types / sizeof *types; t++)
        if (skl_layout_of(&layout, types[t], 1, 256) || skl_packed_bytes(&layout) > sizeof packed ||
            skl_pack(&layout, types[t], block, packed) || skl_unpack_row(&layout, packed, 0, got) ||
            skl_dequantize(types[t], block, 256, wanted) || memcmp(got, wanted, sizeof got)) return (int)t + 1;
    return 0;
}
EOF
    printf '#include <errno.h>\nint main(void) { return errno; }\n' >"$OUT/errno.c"
    if have qemu-s390x && $big -static "$OUT/errno.c" -o "$OUT/errno-s390x" >/dev/null 2>&1; then
        check "rows on a big-endian machine" sh -c "$big -O1 -static -w -I. $OUT/rows.c -o $OUT/rows-s390x $LIBS &&
            qemu-s390x $OUT/rows-s390x"
        check "compile for s390x" $big -O1 -static -w examples/eval.c -o "$OUT/eval-s390x" $LIBS
        qemu-s390x "$OUT/eval-s390x" -m tests/golden/llama/model.gguf --ids tests/golden/llama/tokens.i32 --hash \
            >"$OUT/log" 2>&1
        code=$?
        if [ $code -eq 1 ] && grep -qi endian "$OUT/log"; then pass
        else fail "big-endian machines are refused, with a message (exit code $code)" "$OUT/log"; fi
    else
        skip "big-endian: needs s390x-linux-gnu-gcc with a C library, and qemu-s390x"
    fi
}

# --- sanitize --------------------------------------------------------------------------------------------------------

# SIMD kernels with instrumentation take long to compile, so they are compiled once, in eval, and run at every level.
step_sanitize()
{
    cc=$(have gcc && echo gcc || echo clang)
    make sanitize CC=$cc BUILD="$OUT" >"$OUT/sanitize.log" 2>&1
    check_counts "make sanitize" $? "$OUT/sanitize.log"

    need_reference
    builds=
    plan eval-address $cc $ADDRESS examples/eval.c -o "$OUT/eval-address" $LIBS
    # Optimised, the vector kernels take many minutes to compile with all checks; not so without.
    plan kernels-address $cc $ADDRESS -O0 -I. tests/test_kernels.c -o "$OUT/kernels-address" $LIBS
    arm=aarch64-linux-gnu-gcc
    printf 'int main(void) { return 0; }\n' >"$OUT/empty.c"
    if have qemu-aarch64 && $arm -fsanitize=address,undefined "$OUT/empty.c" -o "$OUT/arm-empty" >/dev/null 2>&1; then
        plan arm-kernels-address $arm $ADDRESS -O0 -I. tests/test_kernels.c -o "$OUT/arm-kernels-address" $LIBS
    else
        skip "sanitizers on Arm: need aarch64-linux-gnu-gcc with its sanitizers, and qemu-aarch64"
    fi
    plan eval-thread $cc -O1 -g -fsanitize=thread -DSINKLESS_NO_SIMD examples/eval.c -o "$OUT/eval-thread" $LIBS
    threaded=
    for program in tests/test_*.c; do
        # Programs that run threads, and no other programs.
        if grep -qE 'pthread_create|parallel_for|threads = ' "$program" && ! grep -q process.h "$program"; then
            name=$(basename "$program" .c)
            threaded="$threaded $name"
            plan "thread-$name" $cc -O1 -g -fsanitize=thread -DSINKLESS_NO_SIMD -I. "$program" \
                -o "$OUT/thread-$name" $LIBS
        fi
    done
    compile
    if [ -x "$OUT/kernels-address" ]; then
        "$OUT/kernels-address" >"$OUT/kernels.log" 2>&1
        check_counts "address sanitizer, all kernels" $? "$OUT/kernels.log"
    fi
    if [ -x "$OUT/arm-kernels-address" ]; then # leaks cannot be looked for under an emulator
        ASAN_OPTIONS=detect_leaks=0 qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu max "$OUT/arm-kernels-address" >"$OUT/kernels.log" 2>&1
        check_counts "address sanitizer, all kernels of Arm" $? "$OUT/kernels.log"
    fi
    if [ -x "$OUT/eval-address" ]; then
        for isa in $("$OUT/eval-address" --isa list); do
            hashes "$OUT/address.hashes" --isa "$isa" --threads 2 -- "$OUT/eval-address"
            same "address sanitizer, --isa $isa" "$OUT/address.hashes"
        done
    fi
    MODELS="everything w4_blocks"
    if [ -x "$OUT/eval-thread" ]; then
        hashes "$OUT/thread.hashes" --threads 3 --chunk 7 -- "$OUT/eval-thread"
        same "thread sanitizer, eval" "$OUT/thread.hashes"
    fi
    MODELS=
    for name in $threaded; do
        [ -x "$OUT/thread-$name" ] || continue
        BUILD="$OUT/test" "$OUT/thread-$name" >"$OUT/thread.log" 2>&1
        check_counts "thread sanitizer, $name" $? "$OUT/thread.log"
    done
}

# --- fuzz ------------------------------------------------------------------------------------------------------------

step_fuzz()
{
    echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n ? 0 : 0; }' >"$OUT/probe.c"
    if have clang && clang -fsanitize=fuzzer "$OUT/probe.c" -o "$OUT/probe" 2>/dev/null; then
        if make -j "$JOBS" fuzz BUILD="$OUT" FUZZ_SECONDS="$FUZZ_SECONDS" >"$OUT/fuzz.log" 2>&1; then
            pass "$(ls tests/fuzz/fuzz_*.c | wc -l)"
        else
            fail "make fuzz" "$OUT/fuzz.log"
        fi
    else
        skip "fuzzing: needs clang with libFuzzer; seeds are only run once"
        for target in gguf model tokenizer; do
            plan "replay-$target" cc $ADDRESS -DFUZZ_REPLAY -DSINKLESS_NO_SIMD tests/fuzz/fuzz_$target.c \
                -o "$OUT/replay-$target" $LIBS
        done
        compile
        for target in gguf model tokenizer; do
            "$OUT/replay-$target" tests/golden/*/model.gguf tests/data/* >"$OUT/replay.log" 2>&1
            check_counts "replay of $target" $? "$OUT/replay.log"
        done
    fi
    if [ -f tests/test_model.c ] && grep -q -e '--mutations' tests/test_model.c; then
        make "$OUT/test/test_model" BUILD="$OUT/test" >"$OUT/mutations.log" 2>&1
        timeout 600 "$OUT/test/test_model" --mutations 100000 >"$OUT/mutations.log" 2>&1
        check_counts "mutated models" $? "$OUT/mutations.log"
    else
        skip "mutated models: test_model has no --mutations"
    fi
}

# --- oracle: the same from another engine ----------------------------------------------------------------------------

step_oracle()
{
    if ! have npm || ! have node || ! have git; then
        skip "another engine: needs npm, node and git"
        return
    fi
    if ! sh tests/oracle/install.sh "$OUT/oracle" >"$OUT/oracle.log" 2>&1; then
        skip "another engine: it cannot be installed ($(tail -n 1 "$OUT/oracle.log"))"
        return
    fi
    make "$OUT/test/test_tokenizer" "$OUT/test/eval" BUILD="$OUT/test" >"$OUT/log" 2>&1
    "$OUT/test/test_tokenizer" --vectors "$OUT/oracle/llama.cpp/models" >"$OUT/vectors.log" 2>&1
    check_counts "tokenizer vectors" $? "$OUT/vectors.log"
    set --
    if [ -f "$SHARED/models/stories260k.gguf" ]; then set -- "$SHARED/models/stories260k.gguf"; fi
    node tests/oracle/compare.mjs "$OUT/oracle" "$OUT/test/eval" "$@" >"$OUT/compare.log" 2>&1
    check_counts "logits of another engine" $? "$OUT/compare.log"
    make "$OUT/test/quantize" BUILD="$OUT/test" >"$OUT/log" 2>&1
    set --
    for model in k_quants w4_blocks mixed_weights; do
        set -- "$@" "$OUT/packed-$model.gguf"
        "$OUT/test/quantize" "tests/golden/$model/model.gguf" "$OUT/packed-$model.gguf" --type same --packed >"$OUT/log" 2>&1
    done
    node tests/oracle/list.mjs "$OUT/oracle" "$@" >"$OUT/list.log" 2>&1
    check_counts "packed files, as another reader lists them" $? "$OUT/list.log"
}

# --- data: models and corpora that are not in the repository ---------------------------------------------------------

step_data()
{
    model=$SHARED/models/stories260k.gguf
    text=$SHARED/corpora/tinystories_val.txt
    if [ ! -f "$model" ] || [ ! -f "$text" ]; then
        skip "stories260k: $SHARED has no models/stories260k.gguf or corpora/tinystories_val.txt"
        return
    fi
    make "$OUT/test/eval" "$OUT/test/chat" BUILD="$OUT/test" >"$OUT/log" 2>&1
    # llama.cpp: 4.8753 over the same windows.
    value=$("$OUT/test/eval" -m "$model" --text "$text" --ppl --window 256 --act f32 2>"$OUT/log" |
        sed 's/^ppl //; s/ .*//')
    if awk -v got="$value" 'BEGIN { d = got / 4.8753 - 1; exit !(d > -0.005 && d < 0.005) }'; then pass
    else fail "perplexity of stories260k is '$value', not 4.8753" "$OUT/log"; fi
    # What llama2.c prints for this model at temperature 0.
    "$OUT/test/chat" -m "$model" --raw -p "Once upon a time" -n 40 --temp 0 --act f32 >"$OUT/story" 2>"$OUT/log"
    if grep -qF "there was a little girl named Lily. She loved to play outside in the park." "$OUT/story"; then pass
    else fail "greedy story of stories260k" "$OUT/story"; fi
}

# --- Everything, or what was asked for -------------------------------------------------------------------------------

steps=${*:-test warnings header hashes cross sanitize fuzz oracle data}
rm -rf "$OUT"
mkdir -p "$OUT"
: >"$PLAN"
planned=
MODELS=
for step in $steps; do
    case $step in
    test | warnings | header | hashes | cross | sanitize | fuzz | oracle | data) ;;
    *)
        echo "check_all.sh: there is no step $step" >&2
        exit 2 ;;
    esac
done
for step in $steps; do
    before=$(date +%s)
    counted="$passed $failed $skipped"
    echo "$step"
    step_$step
    set -- $counted
    echo "  $((passed - $1)) passed, $((failed - $2)) failed, $((skipped - $3)) skipped, $(($(date +%s) - before)) s"
done
if [ $skipped -gt 0 ]; then echo "$passed passed, $failed failed, $skipped skipped"
else echo "$passed passed, $failed failed"; fi
[ $failed -eq 0 ]
