/* test_platform.c - what the header knows about machines: exact multiply-add, the FP environment, CPU levels, thread
 * counts, and the worker pool. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#define SINKLESS_INTERNAL
#define SINKLESS_IMPLEMENTATION
#include "../sinkless.h"

#include "test.h"

#if defined(__linux__)
#include <signal.h>
#include <sys/syscall.h>
#endif
#include <sys/stat.h>
#include <time.h>

/* --- Multiply-add --- */

static uint64_t random_state = 1;

static uint32_t random_bits(void) /* splitmix64 */
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

typedef float fma_function(float a, float b, float c);

#if SKL__X86
SKL__TARGET("fma") SKL__NOINLINE static float fma_instruction(float a, float b, float c)
{
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}
#endif

static float fma_library(float a, float b, float c)
{
    static fma_function *volatile library = fmaf; /* called as it is: Clang with -ffast-math knows a "faster" one */

    return library(a, b, c);
}

/* The instruction if there is one, otherwise the C library. */
static fma_function *fma_reference(void)
{
#if SKL__X86
    if ((skl__cpu_levels(0) & 1u << SKL_ISA_AVX2) != 0) return fma_instruction;
#endif
    return fma_library;
}

static uint32_t is_nan_bits(uint32_t bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

static int same_fma(fma_function *reference, uint32_t a, uint32_t b, uint32_t c)
{
    const uint32_t wanted = skl__f32_to_bits(reference(skl__f32_from_bits(a), skl__f32_from_bits(b), skl__f32_from_bits(c)));
    const uint32_t exact = skl__f32_to_bits(skl__fma_exact(skl__f32_from_bits(a), skl__f32_from_bits(b), skl__f32_from_bits(c)));
    const uint32_t used = skl__f32_to_bits(skl__fma(skl__f32_from_bits(a), skl__f32_from_bits(b), skl__f32_from_bits(c)));

    if (is_nan_bits(wanted)) return is_nan_bits(exact) && is_nan_bits(used);
    return exact == wanted && used == wanted;
}

/* A factor pair whose product, and an addend, whose exponents are so close that every kind of rounding happens. */
static void random_close(uint32_t *a, uint32_t *b, uint32_t *c)
{
    const int ea = (int)(random_bits() % 254) + 1, eb = (int)(random_bits() % 254) + 1;
    int ec = ea + eb - 127 + (int)(random_bits() % 60) - 30;

    ec = ec < 0 ? 0 : ec > 254 ? 254 : ec;
    *a = (random_bits() & 0x807fffffu) | (uint32_t)ea << 23;
    *b = (random_bits() & 0x807fffffu) | (uint32_t)eb << 23;
    *c = (random_bits() & 0x807fffffu) | (uint32_t)ec << 23;
    if (random_bits() % 4 == 0) *a &= 0xfffff000u; /* short mantissas make ties */
    if (random_bits() % 4 == 0) *b &= 0xfffff000u;
    if (random_bits() % 4 == 0) *c &= 0xffff8000u;
}

static void test_fma(unsigned long rounds)
{
    static const uint32_t edges[] = {
        0x00000000u, 0x80000000u, 0x00000001u, 0x80000001u, 0x00000002u, 0x007fffffu, 0x807fffffu, 0x00800000u,
        0x80800000u, 0x00800001u, 0x3f800000u, 0xbf800000u, 0x3f800001u, 0x3f7fffffu, 0x33800000u, 0x34000000u,
        0xb3800000u, 0x3f000000u, 0x40000000u, 0x1a000000u, 0x20000000u, 0x5f800000u, 0x7f7fffffu, 0xff7fffffu,
        0x7f000000u, 0x72ffffffu, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00001u, 0x4b7fffffu, 0x4b800001u
    };
    const size_t n = sizeof edges / sizeof edges[0];
    fma_function *reference = fma_reference();
    unsigned long i, wrong = 0;
    size_t a, b, c;
    uint32_t x, y, z;

    for (a = 0; a < n; a++) {
        for (b = 0; b < n; b++) {
            for (c = 0; c < n; c++) wrong += !same_fma(reference, edges[a], edges[b], edges[c]);
        }
    }
    CHECK_EQ_INT(wrong, 0);
    for (i = 0; i < rounds; i++) wrong += !same_fma(reference, random_bits(), random_bits(), random_bits());
    CHECK_EQ_INT(wrong, 0);
    for (i = 0; i < rounds; i++) {
        random_close(&x, &y, &z);
        wrong += !same_fma(reference, x, y, z);
    }
    CHECK_EQ_INT(wrong, 0);

    /* By hand. (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: the last term is lost in a product, and kept in a fused one. */
    CHECK(skl__fma_exact(1.000244140625f, 1.000244140625f, -1.00048828125f) == 5.9604644775390625e-08f);
    CHECK(skl__mul(1.000244140625f, 1.000244140625f) == 1.00048828125f);
    /* 2^-24 (1 + 2^-18) (1 - 2^-18) = 2^-24 - 2^-60, and 1 + 2^-23 + that is just below the middle of two floats.
     * Rounded to double first, it is the middle, and goes to the even one, which is wrong. */
    CHECK_EQ_INT(skl__f32_to_bits(skl__fma_exact(skl__f32_from_bits(0x33800020u), skl__f32_from_bits(0x3f7fffc0u),
                                                skl__f32_from_bits(0x3f800001u))), 0x3f800001);
}

static void test_finite(void)
{
    CHECK(skl__is_finite(0.0f) && skl__is_finite(skl__f32_from_bits(0x7f7fffffu)));
    CHECK(skl__is_finite(skl__f32_from_bits(0x80000001u)));
    CHECK(!skl__is_finite(skl__f32_from_bits(0x7f800000u)) && !skl__is_finite(skl__f32_from_bits(0xff800000u)));
    CHECK(!skl__is_finite(skl__f32_from_bits(0x7fc00000u)) && !skl__is_finite(skl__f32_from_bits(0xff800001u)));
}

/* --- The FP environment --- */

static SKL__NOINLINE SKL__UNUSED float quotient(volatile float *a, volatile float *b)
{
    return *a / *b;
}

static void test_fp_env(void)
{
#if SKL__X86
    const uint32_t settings[] = {0x1f80u, 0x1f80u | 0x8040u, 0x1f80u | 0x6000u, 0x1f80u | 0xe040u, 0x1f80u | 0x2000u};
    const uint32_t before = _mm_getcsr();
    volatile float tiny = skl__f32_from_bits(0x00800000u), four = 4.0f, one = 1.0f, three = 3.0f;
    size_t i;

    for (i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        skl__fp_env env;
        uint32_t inside, subnormal, third;

        _mm_setcsr(settings[i]);
        env = skl__fp_begin();
        inside = _mm_getcsr();
        subnormal = skl__f32_to_bits(quotient(&tiny, &four));
        third = skl__f32_to_bits(quotient(&one, &three));
        skl__fp_end(env);
        CHECK_EQ_INT(_mm_getcsr(), settings[i]);
        CHECK_EQ_INT(inside & 0xffc0u, 0x1f80);
        CHECK_EQ_INT(subnormal, 0x00200000);
        CHECK_EQ_INT(third, 0x3eaaaaab);
    }
    _mm_setcsr(before);
#elif SKL__ARM
    volatile float tiny = skl__f32_from_bits(0x00800000u), four = 4.0f;
    const uint64_t flush = (uint64_t)1 << 24, up = (uint64_t)1 << 22;
    uint64_t after;
    skl__fp_env env;

    __asm__ volatile("msr fpcr, %0" : : "r"(flush | up) : "memory");
    env = skl__fp_begin();
    CHECK_EQ_INT(skl__f32_to_bits(quotient(&tiny, &four)), 0x00200000);
    skl__fp_end(env);
    __asm__ volatile("mrs %0, fpcr" : "=r"(after) : : "memory");
    CHECK_EQ_INT(after, flush | up);
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
#endif
}

/* --- CPU levels --- */

static uint32_t x86_levels(uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint32_t leaf7_ecx, uint32_t leaf7_1_eax,
                           uint64_t xcr0)
{
    skl__x86_registers r;

    r.leaf1_ecx = leaf1_ecx;
    r.leaf7_ebx = leaf7_ebx;
    r.leaf7_ecx = leaf7_ecx;
    r.leaf7_edx = 0;
    r.leaf7_1_eax = leaf7_1_eax;
    r.xcr0 = xcr0;
    return skl__x86_levels(&r);
}

/* A Sapphire Rapids, as far as matters here. */
static uint32_t x86_tile_levels(uint32_t leaf7_ecx, uint32_t leaf7_edx, uint64_t xcr0)
{
    skl__x86_registers r;

    r.leaf1_ecx = 0x7ffafbffu;
    r.leaf7_ebx = 0xf1bf07abu;
    r.leaf7_ecx = leaf7_ecx;
    r.leaf7_edx = leaf7_edx;
    r.leaf7_1_eax = 1u << 4;
    r.xcr0 = xcr0;
    return skl__x86_levels(&r);
}

#if SKL__X86_KERNELS && SKL__HAS_AMX
static int tiles_permitted(void)
{
    uint64_t features = 0;

    return syscall(SYS_arch_prctl, 0x1022 /* ARCH_GET_XCOMP_PERM */, &features) == 0 && (features >> 18 & 1);
}

/* The right to tile registers is asked for by those who may use them, and not had beside a small signal stack. Goes first: what
 * the process has once, it keeps. */
static void test_tiles(void)
{
    static char memory[8192];
    const uint32_t amx = 1u << SKL_ISA_AMX;
    skl__x86_registers registers;
    stack_t small, before;
    uint32_t available;

    skl__x86_read(&registers);
    if (!(skl__x86_levels(&registers) & amx) || tiles_permitted()) return;
    CHECK(skl__kernels_for(SKL_ISA_DEFAULT, ~amx) != NULL);
    CHECK(skl__kernels_for(SKL_ISA_AVX512VNNI, 0) != NULL);
    CHECK(!tiles_permitted());
    memset(&small, 0, sizeof small);
    small.ss_sp = memory;
    small.ss_size = sizeof memory;
    CHECK(sigaltstack(&small, &before) == 0);
    CHECK_EQ_INT(skl_isa_available() & amx, 0);
    CHECK(!tiles_permitted());
    CHECK(sigaltstack(&before, NULL) == 0);
    available = skl_isa_available();
    CHECK_EQ_INT((available & amx) != 0, tiles_permitted());
}
#endif

static void test_levels(void)
{
    const uint32_t scalar = 1u << SKL_ISA_SCALAR, avx2 = scalar | 1u << SKL_ISA_AVX2;
    const uint32_t vnni = avx2 | 1u << SKL_ISA_AVXVNNI, avx512 = avx2 | 1u << SKL_ISA_AVX512;
    const uint32_t avx512vnni = 1u << SKL_ISA_AVX512VNNI;
    const uint32_t neon = scalar | 1u << SKL_ISA_NEON, dot = neon | 1u << SKL_ISA_NEON_DOTPROD;
    const uint32_t haswell = 0x7ffafbffu, nehalem = 0x0098e3fdu; /* leaf 1 ecx as these report it */
    const uint32_t skx = 0xd19ffffbu;                            /* leaf 7 ebx of a Skylake server */

    CHECK_EQ_INT(x86_levels(nehalem, 0, 0, 0, 0), scalar);
    CHECK_EQ_INT(x86_levels(haswell, 0x000027abu, 0, 0, 0x7), avx2);
    CHECK_EQ_INT(x86_levels(haswell, 0x000027abu, 0, 0, 0x3), scalar);               /* the system does not save YMM */
    CHECK_EQ_INT(x86_levels(haswell & ~(1u << 27), 0x000027abu, 0, 0, 0), scalar);     /* no OSXSAVE */
    CHECK_EQ_INT(x86_levels(haswell & ~(1u << 12), 0x000027abu, 0, 0, 0x7), scalar);   /* no FMA */
    CHECK_EQ_INT(x86_levels(haswell & ~(1u << 29), 0x000027abu, 0, 0, 0x7), scalar);   /* no F16C */
    CHECK_EQ_INT(x86_levels(haswell, 0x000027abu & ~(1u << 5), 0, 0, 0x7), scalar);    /* no AVX2 */
    CHECK_EQ_INT(x86_levels(haswell, 0x219c07abu, 0, 1u << 4, 0x7), vnni);             /* Alder Lake */
    CHECK_EQ_INT(x86_levels(haswell, skx, 0, 0, 0xe7), avx512);
    CHECK_EQ_INT(x86_levels(haswell, skx, 1u << 11, 0, 0xe7), avx512 | 1u << SKL_ISA_AVX512VNNI);
    CHECK_EQ_INT(x86_levels(haswell, skx, 1u << 11, 1u << 4, 0xe7), avx512 | vnni | 1u << SKL_ISA_AVX512VNNI);
    CHECK_EQ_INT(x86_levels(haswell, skx, 1u << 11, 1u << 4, 0x7), vnni);              /* ZMM not saved */
    CHECK_EQ_INT(x86_levels(haswell, skx, 1u << 11, 0, 0x67), avx2);                   /* upper ZMM not saved */
    CHECK_EQ_INT(x86_levels(haswell, skx & ~(1u << 30), 1u << 11, 0, 0xe7), avx2);     /* no BW */
    CHECK_EQ_INT(x86_levels(haswell, skx & ~(1u << 31), 1u << 11, 0, 0xe7), avx2);
    CHECK_EQ_INT(x86_levels(0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, ~(uint64_t)0),
                 avx512 | vnni | 1u << SKL_ISA_AVX512VNNI);

    CHECK_EQ_INT(x86_tile_levels(1u << 11, 1u << 24 | 1u << 25, 0x602e7), avx512 | vnni | avx512vnni | 1u << SKL_ISA_AMX);
    CHECK_EQ_INT(x86_tile_levels(1u << 11, 1u << 24 | 1u << 25, 0x202e7), avx512 | vnni | avx512vnni); /* tiles not saved */
    CHECK_EQ_INT(x86_tile_levels(1u << 11, 1u << 24 | 1u << 25, 0x402e7), avx512 | vnni | avx512vnni);
    CHECK_EQ_INT(x86_tile_levels(1u << 11, 1u << 24, 0x602e7), avx512 | vnni | avx512vnni);            /* no int8 */
    CHECK_EQ_INT(x86_tile_levels(1u << 11, 1u << 25, 0x602e7), avx512 | vnni | avx512vnni);            /* no tiles */
    CHECK_EQ_INT(x86_tile_levels(0, 1u << 24 | 1u << 25, 0x602e7), avx512 | vnni);                     /* its streams want VNNI */

    CHECK_EQ_INT(skl__arm_levels(0, 0), neon);
    CHECK_EQ_INT(skl__arm_levels(0x1fb | 1u << 20, 0), dot);
    CHECK_EQ_INT(skl__arm_levels(1u << 20, 1u << 13), dot | 1u << SKL_ISA_NEON_I8MM);
    CHECK_EQ_INT(skl__arm_levels(0, 1u << 13), neon);

    CHECK((skl__cpu_levels(UINT32_MAX) & scalar) != 0);
    CHECK_EQ_INT(skl__cpu_levels(UINT32_MAX) >> SKL_ISA_COUNT, 0);

    CHECK_STR(skl_isa_name(SKL_ISA_SCALAR), "scalar");
    CHECK_STR(skl_isa_name(SKL_ISA_AVX2), "avx2");
    CHECK_STR(skl_isa_name(SKL_ISA_AVXVNNI), "avxvnni");
    CHECK_STR(skl_isa_name(SKL_ISA_AVX512), "avx512");
    CHECK_STR(skl_isa_name(SKL_ISA_AVX512VNNI), "avx512vnni");
    CHECK_STR(skl_isa_name(SKL_ISA_AMX), "amx");
    CHECK_STR(skl_isa_name(SKL_ISA_NEON), "neon");
    CHECK_STR(skl_isa_name(SKL_ISA_NEON_DOTPROD), "neon-dotprod");
    CHECK_STR(skl_isa_name(SKL_ISA_NEON_I8MM), "neon-i8mm");
    CHECK_STR(skl_isa_name(SKL_ISA_DEFAULT), "?");
    CHECK_STR(skl_isa_name(SKL_ISA_COUNT), "?");
}

/* --- Thread counts, on made-up machines --- */

#if defined(__linux__)

static char fake_root[64];
static char made[1000][256]; /* files and directories, in the order they were made */
static size_t made_count;

static void note_made(const char *name)
{
    if (made_count < sizeof made / sizeof made[0]) snprintf(made[made_count++], sizeof made[0], "%s", name);
}

static void remove_machines(void)
{
    while (made_count > 0) remove(made[--made_count]);
}

/* Writes a file below the made-up root, with the directories it needs. */
static void put_file(const char *path, const char *text)
{
    char name[256];
    size_t i;
    FILE *file;

    snprintf(name, sizeof name, "%s%s", fake_root, path);
    for (i = 1; name[i] != '\0'; i++) {
        if (name[i] != '/') continue;
        name[i] = '\0';
        if (mkdir(name, 0777) == 0) note_made(name);
        name[i] = '/';
    }
    file = fopen(name, "wb");
    CHECK(file != NULL);
    if (file == NULL) return;
    note_made(name);
    fputs(text, file);
    fclose(file);
}

static void next_machine(void)
{
    static int number;

    snprintf(fake_root, sizeof fake_root, "platform_root.%ld/%d", (long)getpid(), number++);
}

static void put_siblings(int cpu, const char *file, const char *list)
{
    char path[128];

    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, file);
    put_file(path, list);
}

/* Four cores of two threads, numbered 0-3 and 4-7, all allowed unless said otherwise. */
static void put_machine(const char *allowed)
{
    char text[256], list[16];
    int cpu;

    next_machine();
    snprintf(text, sizeof text, "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t%s\nMems_allowed:\t1\n", allowed);
    put_file("/proc/self/status", text);
    for (cpu = 0; cpu < 8; cpu++) {
        snprintf(list, sizeof list, "%d,%d\n", cpu % 4, cpu % 4 + 4);
        put_siblings(cpu, cpu % 2 ? "core_cpus_list" : "thread_siblings_list", list);
    }
}

static void test_threads(void)
{
    next_machine();
    CHECK_EQ_INT(skl__linux_threads(fake_root, 6), 6); /* nothing to read */

    put_machine("0-7");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 4);
    put_machine("4-7");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 4); /* the second threads of all cores */
    put_machine("1,5");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 1);
    put_machine("0-1,3,5");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 3);
    put_machine("0-3,4000-4001"); /* CPUs without topology are cores of their own */
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 6);
    put_machine("nonsense");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 3), 3);
    put_machine("99999999999999999999-3,0");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 3), 1);
    put_machine("0-");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 3), 3);
    put_machine("0-7");
    put_siblings(1, "core_cpus_list", "");
    put_siblings(3, "core_cpus_list", "-,x\n");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 3), 4); /* 5 and 7 still name 1 and 3 */

    /* A thread may be allowed less than its process. */
    put_file("/proc/thread-self/status", "Name:\tx\nCpus_allowed_list:\t2-3\n");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 2);
}

static void test_quota(void)
{
    char path[600];

    put_machine("0-7"); /* version 2: the smallest on the way up, rounded down */
    put_file("/proc/self/cgroup", "0::/a/b\n");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 4);
    put_file("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 4);
    put_file("/sys/fs/cgroup/a/cpu.max", "370000 100000\n");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 3);
    put_file("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 2);
    put_file("/sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 1);

    put_machine("0-7"); /* a container that sees its own group as the root */
    put_file("/proc/self/cgroup", "0::/\n");
    put_file("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 2);
    put_file("/proc/self/cgroup", "0::/docker/not/mounted");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 2);

    put_machine("0-7"); /* nonsense is no limit */
    put_file("/proc/self/cgroup", "\n:\n::\n0::/a\n7\n0::relative\n0:cpu\n");
    put_file("/sys/fs/cgroup/a/cpu.max", "100000 0\n");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 4);
    put_file("/sys/fs/cgroup/a/cpu.max", "100000\n");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 4);
    put_file("/sys/fs/cgroup/a/cpu.max", "99999999999999999999999999 1\n");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 4);
    put_file("/sys/fs/cgroup/a/cpu.max", "\n");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 4);
    memset(path, 'x', sizeof path);
    memcpy(path, "0::/", 4);
    path[sizeof path - 1] = '\0';
    put_file("/proc/self/cgroup", path);
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 4);

    put_machine("0-7"); /* version 1 */
    put_file("/proc/self/cgroup", "12:cpuset:/s\n3:cpuacct,cpu:/g/h\n1:name=systemd:/cpu\n");
    put_file("/sys/fs/cgroup/cpu/g/h/cpu.cfs_quota_us", "-1\n");
    put_file("/sys/fs/cgroup/cpu/g/h/cpu.cfs_period_us", "100000\n");
    put_file("/sys/fs/cgroup/cpu/s/cpu.cfs_quota_us", "100000\n"); /* not the cpu controller's path */
    put_file("/sys/fs/cgroup/cpu/s/cpu.cfs_period_us", "100000\n");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 4);
    put_file("/sys/fs/cgroup/cpu/g/cpu.cfs_quota_us", "150000\n");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 4); /* a quota without a period says nothing */
    put_file("/sys/fs/cgroup/cpu/g/cpu.cfs_period_us", "50000\n");
    CHECK_EQ_INT(skl__linux_threads(fake_root, 1), 3);
}
#endif

/* --- The pool --- */

#define MAX_ITEMS 1000

typedef struct tally {
    size_t count;
    skl__count ran[MAX_ITEMS]; /* how often each index ran; an index out of range spoils the last */
} tally;

static void count_item(void *arg, size_t index)
{
    tally *t = (tally *)arg;

    skl__atomic_add(&t->ran[index < t->count ? index : MAX_ITEMS - 1], index < t->count ? 1 : 1000);
}

/* One call with count items; all must have run exactly once, and be visible here without atomics. */
static size_t run_once(skl__pool *pool, tally *t, size_t count)
{
    size_t i, wrong = 0;

    memset(t, 0, sizeof *t);
    t->count = count;
    skl__parallel(pool, count, count_item, t);
    for (i = 0; i < MAX_ITEMS; i++) wrong += t->ran[i] != (i < count);
    return wrong;
}

static void serial_for(void *user, size_t count, void (*task)(void *arg, size_t index), void *arg)
{
    size_t i;

    ++*(size_t *)user;
    for (i = count; i-- > 0;) task(arg, i);
}

static tally the_tally;

static void test_pool_counts(void)
{
    size_t threads, count, wrong, calls;

    for (threads = 1; threads <= 9; threads++) {
        void *memory = malloc(skl__pool_size(threads));
        skl__pool *pool = skl__pool_open(memory, threads, NULL, NULL);

        CHECK(pool->threads >= 1 && pool->threads <= threads);
        for (wrong = 0, count = 0; count <= 200; count++) wrong += run_once(pool, &the_tally, count);
        CHECK_EQ_INT(wrong, 0);
        skl__pool_close(pool);

        calls = 0;
        pool = skl__pool_open(memory, threads, serial_for, &calls);
        CHECK_EQ_INT(pool->threads, threads);
        for (wrong = 0, count = 0; count <= 200; count++) wrong += run_once(pool, &the_tally, count);
        CHECK_EQ_INT(wrong, 0);
        CHECK_EQ_INT(calls, threads > 1 ? 199 : 0); /* a single item needs no help */
        skl__pool_close(pool);
        free(memory);
    }
}

typedef struct order {
    size_t thread;  /* that works alone */
    size_t items[16], count;
} order;

static void note_item(void *arg, size_t index)
{
    order *o = (order *)arg;

    o->items[o->count++ % 16] = index;
}

static void lone_for(void *user, size_t count, void (*task)(void *arg, size_t index), void *arg)
{
    (void)count;
    task(arg, ((order *)user)->thread);
}

/* A thread takes its own share in order, then those of the threads after it. Eight items of three threads are shares of 3, 3, 2;
 * two items of four threads are two of 1. */
static void test_pool_shares(void)
{
    static const size_t wanted[][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {3, 4, 5, 6, 7, 0, 1, 2}, {6, 7, 0, 1, 2, 3, 4, 5}};
    void *memory = malloc(skl__pool_size(4));
    order o;
    skl__pool *pool = skl__pool_open(memory, 3, lone_for, &o);

    for (o.thread = 0; o.thread < 3; o.thread++) {
        o.count = 0;
        skl__parallel(pool, 8, note_item, &o);
        CHECK_EQ_INT(o.count, 8);
        CHECK(memcmp(o.items, wanted[o.thread], sizeof wanted[0]) == 0);
    }
    skl__pool_close(pool);
    pool = skl__pool_open(memory, 4, lone_for, &o);
    o.thread = 1;
    o.count = 0;
    skl__parallel(pool, 2, note_item, &o);
    CHECK_EQ_INT(o.count, 2);
    CHECK_EQ_INT(o.items[0], 1);
    CHECK_EQ_INT(o.items[1], 0);
    skl__pool_close(pool);
    free(memory);
}

/* Many more threads than cores and than items, many calls one after the other, and open and close without a call. */
static void test_pool_crowd(void)
{
    void *memory = malloc(skl__pool_size(100));
    skl__pool *pool = skl__pool_open(memory, 100, NULL, NULL);
    size_t i, wrong = 0;

    for (i = 0; i < 300; i++) wrong += run_once(pool, &the_tally, i % 7);
    wrong += run_once(pool, &the_tally, MAX_ITEMS - 1);
    CHECK_EQ_INT(wrong, 0);
    skl__pool_close(pool);

    pool = skl__pool_open(memory, 3, NULL, NULL);
    for (i = 0; i < 20000; i++) wrong += run_once(pool, &the_tally, i % 5);
    CHECK_EQ_INT(wrong, 0);
    skl__pool_close(pool);

    for (i = 0; i < 1000; i++) {
        pool = skl__pool_open(memory, 1 + i % 4, NULL, NULL);
        if (i % 2) wrong += run_once(pool, &the_tally, i % 9);
        skl__pool_close(pool);
    }
    CHECK_EQ_INT(wrong, 0);
    free(memory);
}

/* Workers sleep between the calls: the wake-up must not get lost. */
static void test_pool_sleep(void)
{
    void *memory = malloc(skl__pool_size(4));
    skl__pool *pool = skl__pool_open(memory, 4, NULL, NULL);
    size_t i, wrong = 0;
    clock_t before;

    for (i = 0; i < 200; i++) {
        volatile unsigned delay = (unsigned)(random_bits() % 200000); /* around the length of the spinning */

        while (delay > 0) delay--;
        wrong += run_once(pool, &the_tally, 2 + i % 5);
    }
    CHECK_EQ_INT(wrong, 0);
#if !defined(_WIN32)
    before = clock();
    sleep(1);
    CHECK((double)(clock() - before) < 0.5 * (double)CLOCKS_PER_SEC); /* of processor time; one that spins takes all of it */
#else
    (void)before;
#endif
    skl__pool_close(pool);
    free(memory);
}

/* Every thread computes in the standard environment, and the caller keeps its own. */
static void note_env(void *arg, size_t index)
{
    uint32_t *control = (uint32_t *)arg;
    volatile unsigned i;

#if SKL__X86
    control[index] = _mm_getcsr() & 0xffc0u;
#else
    control[index] = 0x1f80;
#endif
    for (i = 0; i < 20000; i++) continue; /* long enough that other threads get some */
}

static void test_pool_env(void)
{
#if SKL__X86
    const uint32_t before = _mm_getcsr();
#endif
    uint32_t control[64];
    void *memory = malloc(skl__pool_size(4));
    skl__pool *pool;
    skl__fp_env env;
    size_t i, other = 0, calls = 0;

#if SKL__X86
    _mm_setcsr(0x1f80u | 0xe040u); /* workers inherit this from the thread that starts them */
#endif
    pool = skl__pool_open(memory, 4, NULL, NULL);
    env = skl__fp_begin();
    skl__parallel(pool, 64, note_env, control);
    skl__fp_end(env);
    skl__pool_close(pool);
    for (i = 0; i < 64; i++) other += control[i] != 0x1f80u;
    pool = skl__pool_open(memory, 4, serial_for, &calls);
    skl__parallel(pool, 64, note_env, control); /* the caller's threads may be in any environment */
    skl__pool_close(pool);
    for (i = 0; i < 64; i++) other += control[i] != 0x1f80u;
#if SKL__X86
    CHECK_EQ_INT(_mm_getcsr() & 0xffc0u, (0x1f80u | 0xe040u) & 0xffc0u);
    _mm_setcsr(before);
#endif
    CHECK_EQ_INT(other, 0);
    free(memory);
}

int main(int argc, char **argv)
{
    skl__fp_begin(); /* with -ffast-math, GCC starts programs in another environment */
#if SKL__X86_KERNELS && SKL__HAS_AMX
    test_tiles();
#endif
    test_fma(argc > 1 ? strtoul(argv[1], NULL, 10) : 500000);
    test_finite();
    test_fp_env();
    test_levels();
#if defined(__linux__)
    test_threads();
    test_quota();
    remove_machines();
#endif
    CHECK(skl_default_threads() >= 1);
    test_pool_counts();
    test_pool_shares();
    test_pool_crowd();
    test_pool_sleep();
    test_pool_env();
    return test_finish();
}
