/* sinkless.h - small language models on a CPU, in one header                                                    v0.1.0, MIT
 *
 * Runs transformers whose softmax and norms have a way out (Softmax1, learned sinks, GatedNorm, gated attention, Attention
 * Residuals, OASIS coupling), and the plain ones (llama, qwen3), from GGUF files. Works on token ids. Needs libc and libm;
 * pthreads are optional. Nothing is printed, nothing aborts, there is no global state, and nothing is allocated once a
 * session is open. The same file and tokens give the same bits on every machine, thread count and prompt chunking.
 *
 *     #define SINKLESS_IMPLEMENTATION                      // in one .c file of the program
 *     #include "sinkless.h"
 *
 *     skl_model *model = NULL;
 *     skl_session *session = NULL;
 *     skl_model_desc model_desc = {0};                     // zero means: sensible default, everywhere
 *     skl_session_desc session_desc = {0};
 *     model_desc.source.path = "model.gguf";
 *     status = skl_model_open(&model, &model_desc, &error);
 *     if (!status) status = skl_session_open(&session, model, &session_desc, &error);
 *     if (!status) status = skl_eval(session, tokens, n, logits); // float logits[skl_model_vocab(model)]; then one at a time
 *     if (status) fprintf(stderr, "%s\n", session ? skl_session_error(session)->message : error.message);
 *
 * Build:  cc -O2 program.c -lm -lpthread                   // no -m flags: kernels are chosen at run time
 *
 * CONTENTS - every section is found by its tag
 *
 *     interface                                            implementation
 *     >>options        build options                       >>platform      compilers, FP environment, atomics
 *     >>status         status codes and messages           >>checked       errors, memory, checked arithmetic, bounded cursor
 *     >>allocator      allocator and cancel                >>gguf          reading and validating GGUF
 *     >>gguf-api       files: metadata and tensors         >>half          half precision
 *     >>model-api      models                              >>formats       block formats and the packed layout
 *     >>session-api    sessions                            >>scalar        integer kernels, as they are defined
 *     >>sampling-api   sampling                            >>x86 >>arm     SIMD twins of >>scalar
 *     >>format-api     weight formats and packing          >>lanes         float kernels, written once for all vector units
 *     >>cpu-api        kernel levels and threads           >>kernels       the kernel table and CPU detection
 *                                                          >>sharing       work sharing between threads
 *                                                          >>math          logarithm, power, sine in double
 *                                                          >>model         model binding and validation
 *                                                          >>attention     the KV cache
 *                                                          >>session       session memory
 *                                                          >>forward       the forward pass
 *                                                          >>depth         depth routing
 *                                                          >>sampling      sampling
 *                                                          >>licence       licence
 */
#if !defined(SKL__LANES) /* the kernels of >>lanes are compiled by including this file again, once per instance */
#ifndef SINKLESS_H
#define SINKLESS_H

#include <stddef.h>
#include <stdint.h>

#define SKL_VERSION 100 /* major * 10000 + minor * 100 + patch */
#define SKL_VERSION_STRING "0.1.0"

/* =====================================================================================================================
 * >>options                                                                                                 Build options
 *
 *     SINKLESS_IMPLEMENTATION   compile the implementation here, in exactly one translation unit
 *     SINKLESS_STATIC           every function is static: private copies, nothing exported; needs IMPLEMENTATION everywhere
 *     SINKLESS_NO_THREADS       no pthreads; everything runs on the caller (or on its own parallel_for)
 *     SINKLESS_NO_SIMD          scalar kernels only; much slower, same results
 *     SINKLESS_FILE             the name of this file, in quotes, if it is not "sinkless.h": it includes itself (>>lanes)
 *     SINKLESS_INTERNAL         keeps the private macros defined, for tests and benches that look inside
 *
 * No option changes a struct of the interface, so translation units may differ in them.
 * ================================================================================================================== */

#if defined(SINKLESS_STATIC)
#if !defined(SINKLESS_IMPLEMENTATION)
#error "SINKLESS_STATIC needs SINKLESS_IMPLEMENTATION in every translation unit that includes sinkless.h"
#endif
#if defined(__GNUC__)
#define SKL_API static __attribute__((unused))
#else
#define SKL_API static
#endif
#else
#define SKL_API extern
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* =====================================================================================================================
 * >>status                                                                                     Status codes and messages
 *
 * Every call that can fail returns a status. Calls that open something also fill a caller's skl_error; a session keeps the
 * error of its last failed call (skl_session_error). Output parameters are written on success only, unless said otherwise, and
 * an skl_error on failure only. A desc carries its size so that later versions can add fields.
 * ================================================================================================================== */

typedef enum skl_status {
    SKL_OK = 0,
    SKL_NOT_FOUND,     /* a key, tensor or element that is not there */
    SKL_BAD_ARGUMENT,  /* a null pointer, a size or an option out of range, a token beyond the vocabulary */
    SKL_OUT_OF_MEMORY, /* the allocator returned NULL */
    SKL_IO,            /* the file cannot be opened, mapped or read */
    SKL_BAD_FILE,      /* not GGUF, or a GGUF that contradicts itself or its own length */
    SKL_BAD_MODEL,     /* a sound container, but not a model that its architecture allows */
    SKL_UNSUPPORTED,   /* an architecture, type, mechanism or kernel level that this build or CPU does not know */
    SKL_CONTEXT_FULL,  /* more tokens than the session has room for; nothing was evaluated */
    SKL_CANCELLED,     /* the cancel callback said stop; the session holds what was committed before */
    SKL_NOT_FINITE     /* NaN or infinite logits */
} skl_status;

#define SKL_NO_OFFSET UINT64_MAX

typedef struct skl_error {
    skl_status status;
    uint64_t offset;   /* byte of the file the message is about; SKL_NO_OFFSET if none */
    char where[80];    /* tensor, key or parameter the message is about; may be empty */
    char message[256]; /* one sentence, NUL-terminated; names where and offset itself, so it can be printed alone */
} skl_error;

/* Short English name of a status ("out of memory"); never NULL. Any thread. */
SKL_API const char *skl_status_string(skl_status status);

/* =====================================================================================================================
 * >>allocator                                                                                        Allocator and cancel
 * ================================================================================================================== */

/* Both functions or neither; all zero means malloc and free. alloc returns memory aligned for any type, or NULL.
 * Called by open and close calls and by skl_memory_needed only, on the thread that makes the call. */
typedef struct skl_allocator {
    void *(*alloc)(void *user, size_t size);
    void (*free)(void *user, void *memory);
    void *user;
} skl_allocator;

/* stop is asked between tensors while a model loads and at least once per layer while a session evaluates, always on the
 * calling thread; a non-zero answer ends the call with SKL_CANCELLED. */
typedef struct skl_cancel {
    int (*stop)(void *user);
    void *user;
} skl_cancel;

/* =====================================================================================================================
 * >>gguf-api                                                                              Files: metadata and tensors
 *
 * A GGUF file, validated as a whole before anything of it is handed out. Tokenizers and tools read it directly; a model
 * opens one itself. Immutable once open: any number of threads may read. All views point into the file and end with
 * skl_gguf_close.
 * ================================================================================================================== */

typedef struct skl_gguf skl_gguf;

/* Where the bytes are: set path, or data, or use_fd. */
typedef struct skl_source {
    const char *path;     /* a file, opened read-only */
    const void *data;     /* [data_size] a whole file in memory; the caller keeps it alive and unchanged */
    size_t data_size;
    int use_fd;           /* non-zero: read from fd, which stays open and the caller's; it may be closed after the open call */
    int fd;
    uint64_t fd_offset;   /* first byte of the GGUF within the file behind fd (an archive, an executable) */
    uint64_t fd_length;   /* its length; 0 = up to the end of that file */
    int read;             /* non-zero: read into private memory instead of mapping */
} skl_source;

typedef struct skl_gguf_desc {
    size_t size;          /* sizeof(skl_gguf_desc), or 0 */
    skl_source source;
    skl_allocator allocator;
} skl_gguf_desc;

/* GGUF value types, as in the file. */
typedef enum skl_value_type {
    SKL_VALUE_U8, SKL_VALUE_I8, SKL_VALUE_U16, SKL_VALUE_I16, SKL_VALUE_U32, SKL_VALUE_I32, SKL_VALUE_F32, SKL_VALUE_BOOL,
    SKL_VALUE_STRING, SKL_VALUE_ARRAY, SKL_VALUE_U64, SKL_VALUE_I64, SKL_VALUE_F64
} skl_value_type;

/* A metadata value: a view into the file. */
typedef struct skl_value {
    int type;                  /* skl_value_type */
    int element_type;          /* of an array; otherwise the same as type */
    uint64_t count;            /* elements of an array; otherwise 1 */
    const unsigned char *data; /* [size] encoded values, unaligned */
    size_t size;
} skl_value;

/* Tensor types, with their GGUF ids. */
typedef enum skl_type {
    SKL_TYPE_F32 = 0, SKL_TYPE_F16 = 1, SKL_TYPE_Q4_0 = 2, SKL_TYPE_Q4_1 = 3, SKL_TYPE_Q8_0 = 8, SKL_TYPE_Q4_K = 12,
    SKL_TYPE_Q5_K = 13, SKL_TYPE_Q6_K = 14, SKL_TYPE_I8 = 24, SKL_TYPE_BF16 = 30, SKL_TYPE_MXFP4 = 39
} skl_type;

typedef struct skl_tensor {
    char name[68];             /* NUL-terminated; 64 bytes at most in the file */
    int type;                  /* skl_type, or an id that this library only lists */
    int dims;                  /* 1 to 4 */
    uint64_t shape[4];         /* shape[0] is contiguous; unused ones are 1 */
    const unsigned char *data; /* [size] */
    uint64_t size;             /* 0 for types that this library only lists */
} skl_tensor;

/* Opens and validates a container: counts, lengths, types, names, shapes, offsets, alignment and overlap, all against the
 * bytes that are there. Errors: SKL_IO, SKL_BAD_FILE, SKL_OUT_OF_MEMORY, SKL_BAD_ARGUMENT. error may be NULL. */
SKL_API skl_status skl_gguf_open(skl_gguf **gguf, const skl_gguf_desc *desc, skl_error *error);
SKL_API void skl_gguf_close(skl_gguf *gguf); /* NULL is fine */

SKL_API size_t skl_gguf_key_count(const skl_gguf *gguf);
/* Key number index, in file order. The name is not NUL-terminated. */
SKL_API skl_status skl_gguf_key(const skl_gguf *gguf, size_t index, const char **name, size_t *length, skl_value *value);
/* Looks a key up by its NUL-terminated name; SKL_NOT_FOUND if absent. */
SKL_API skl_status skl_gguf_find(const skl_gguf *gguf, const char *key, skl_value *value);

SKL_API size_t skl_gguf_tensor_count(const skl_gguf *gguf);
SKL_API skl_status skl_gguf_tensor(const skl_gguf *gguf, size_t index, skl_tensor *tensor);
SKL_API skl_status skl_gguf_find_tensor(const skl_gguf *gguf, const char *name, skl_tensor *tensor);

/* Typed reads. SKL_NOT_FOUND: index beyond count; SKL_BAD_ARGUMENT: the value is of another kind. No conversion loses
 * anything, except that a u64 above INT64_MAX is SKL_BAD_ARGUMENT and 64-bit integers round to double. */
SKL_API skl_status skl_value_int(const skl_value *value, uint64_t index, int64_t *out);     /* integers and bool */
SKL_API skl_status skl_value_float(const skl_value *value, uint64_t index, double *out);    /* f32, f64 and integers */
SKL_API skl_status skl_value_string(const skl_value *value, const char **text, size_t *length); /* not NUL-terminated */
/* Takes the first string off an array of strings (value is advanced); SKL_NOT_FOUND when none is left. */
SKL_API skl_status skl_value_next_string(skl_value *array, const char **text, size_t *length);

/* =====================================================================================================================
 * >>model-api                                                                                                     Models
 *
 * A model is the weights of a file, bound and validated. It is immutable and may be shared by sessions on any threads;
 * it must outlive them. F32, F16, BF16 and packed matrices are used where they lie in the file; other quantised types are
 * rearranged once, at open, into private memory. Vectors and the second matrix of a norm's gate are copied.
 * ================================================================================================================== */

typedef struct skl_model skl_model;

typedef struct skl_model_desc {
    size_t size;          /* sizeof(skl_model_desc), or 0 */
    skl_source source;
    skl_allocator allocator;
    skl_cancel cancel;
    size_t threads;       /* for rearranging weights; 0 = skl_default_threads() */
} skl_model_desc;

typedef struct skl_session_desc skl_session_desc; /* >>session-api */

/* Bytes, by who pays for them. */
typedef struct skl_memory {
    uint64_t mapped;      /* file pages, shared with the page cache and other processes (0 when read or given in memory) */
    uint64_t weights;     /* private: weights that were rearranged or copied, and the file itself when it was read */
    uint64_t tables;      /* private: the lists of keys, tensors and layers that a model keeps */
    uint64_t kv;          /* private: keys and values of the session's whole context */
    uint64_t scratch;     /* private: everything else of the session; kv + scratch is one allocation of exactly that size */
} skl_memory;

/* Opens, validates and binds a model. A missing, superfluous or misshapen tensor, an unknown architecture or mechanism is an
 * error that names it. error may be NULL. */
SKL_API skl_status skl_model_open(skl_model **model, const skl_model_desc *desc, skl_error *error);
SKL_API void skl_model_close(skl_model *model); /* after its sessions; NULL is fine */

/* What a model and one session of it would take, before either is opened: reads the header and validates it. session_desc may be
 * NULL. Not counted: some hundred bytes per tensor that an open call takes and gives back, samplers, and the stacks of threads,
 * of which no call needs more than 128 KB if compiled with optimisation (at -O0 some 320 KB: every temporary has its place). */
SKL_API skl_status skl_memory_needed(skl_memory *memory, const skl_model_desc *model_desc, const skl_session_desc *session_desc,
                                     skl_error *error);
/* The same for a model that is open; desc may be NULL. */
SKL_API skl_status skl_model_memory(const skl_model *model, const skl_session_desc *desc, skl_memory *memory, skl_error *error);

SKL_API const skl_gguf *skl_model_gguf(const skl_model *model); /* the file: metadata, tensors; lives as long as the model */
SKL_API size_t skl_model_vocab(const skl_model *model);         /* ids are 0 .. vocab - 1 */
SKL_API size_t skl_model_context(const skl_model *model);       /* context length the model was made for */
SKL_API size_t skl_model_layers(const skl_model *model);
SKL_API size_t skl_model_width(const skl_model *model);         /* hidden size d */
/* Weight bytes that one decoded token reads (embedding rows and norms not counted). */
SKL_API uint64_t skl_model_bytes_per_token(const skl_model *model);

/* =====================================================================================================================
 * >>session-api                                                                                                 Sessions
 *
 * A session is one timeline of tokens on a model: KV cache, scratch memory and worker threads. One thread at a time may
 * call it; several sessions of one model may run at once. Everything is allocated by the open call, nothing later.
 *
 * Logits depend on the model, the tokens, and the activation and KV formats only: not on the kernel level, the number of
 * threads, how a prompt was cut into calls or chunks, or whether a prefix was reused.
 * ================================================================================================================== */

typedef struct skl_session skl_session;

/* Activations that enter a matrix of integer codes, default A8. Float matrices take float activations whatever this says. */
typedef enum skl_activation { SKL_ACT_DEFAULT, SKL_ACT_F32, SKL_ACT_A8, SKL_ACT_A4 } skl_activation;
/* Values that share an activation scale: 32 (the default), or the whole row of a token. */
typedef enum skl_group { SKL_GROUP_DEFAULT, SKL_GROUP_32, SKL_GROUP_ROW } skl_group;
/* Keys and values in the cache, default F16; I8 and I4 have a scale per head and position. */
typedef enum skl_kv { SKL_KV_DEFAULT, SKL_KV_F32, SKL_KV_F16, SKL_KV_I8, SKL_KV_I4 } skl_kv;

/* Kernel levels, see >>cpu-api. */
typedef enum skl_isa {
    SKL_ISA_DEFAULT, SKL_ISA_SCALAR, SKL_ISA_AVX2, SKL_ISA_AVXVNNI, SKL_ISA_AVX512, SKL_ISA_AVX512VNNI, SKL_ISA_AMX,
    SKL_ISA_NEON, SKL_ISA_NEON_DOTPROD, SKL_ISA_NEON_I8MM, SKL_ISA_COUNT
} skl_isa;

/* A named intermediate of the forward pass, as the probe sees it; the names are those of the format description. */
typedef struct skl_probe_view {
    const char *name;    /* "embedding", "attn_input", "attn_output", "ffn_input", "ffn_output", "psi", "depth_weights",
                            "depth_null", "output_input", "output_norm" */
    size_t layer;        /* layer it belongs to; the number of layers for what comes after the last */
    size_t position;     /* position of the first token */
    size_t tokens;       /* rows */
    size_t width;        /* values per row */
    const float *data;   /* [tokens][width], valid during the call */
} skl_probe_view;

struct skl_session_desc {
    size_t size;                /* sizeof(skl_session_desc), or 0 */
    size_t context;             /* most tokens the session holds, memory for which is taken at open; 0 =
                                   skl_model_context(model), which may be gigabytes. More is allowed; what a model makes of
                                   positions it was not made for is another matter */
    size_t chunk;               /* most tokens per pass through the layers; 0 = 192. Bounds scratch memory, and is what a
                                   cancelled call may lose */
    skl_activation activation;
    skl_group group;
    skl_kv kv;
    skl_isa isa;                /* force a kernel level; SKL_UNSUPPORTED if this CPU, this build or isa_mask lacks it */
    uint32_t isa_mask;          /* levels that may be used, bits as of skl_isa_available; 0 = all */
    size_t threads;             /* threads that work, the caller included, 1024 at most; 0 = skl_default_threads() */
    /* Instead of own threads: call task(arg, i) once for every i < count, on any threads, and return when all are done. */
    void (*parallel_for)(void *user, size_t count, void (*task)(void *arg, size_t index), void *arg);
    void *parallel_user;
    skl_cancel cancel;
    void (*probe)(void *user, const skl_probe_view *view); /* on the calling thread; costs nothing when NULL */
    void *probe_user;
    skl_allocator allocator;
};

/* Opens a session at position 0. desc may be NULL. Errors: SKL_BAD_ARGUMENT, SKL_UNSUPPORTED, SKL_OUT_OF_MEMORY. */
SKL_API skl_status skl_session_open(skl_session **session, const skl_model *model, const skl_session_desc *desc,
                                    skl_error *error);
SKL_API void skl_session_close(skl_session *session); /* NULL is fine */

/* Appends n tokens and evaluates them. logits [vocab] receives those after the last token; NULL = not wanted. n = 0 is fine, and
 * writes no logits.
 * SKL_CONTEXT_FULL and SKL_BAD_ARGUMENT leave the session as it was. After SKL_CANCELLED or SKL_NOT_FINITE it holds the
 * chunks that were completed: skl_session_position tells how many tokens that is. */
SKL_API skl_status skl_eval(skl_session *session, const int32_t *tokens, size_t n, float *logits);

/* The same with logits of chosen tokens: rows [n_rows] are ascending indices into tokens, logits is [n_rows][vocab];
 * rows = NULL with n_rows = n means all. */
SKL_API skl_status skl_eval_rows(skl_session *session, const int32_t *tokens, size_t n, const size_t *rows, size_t n_rows,
                                 float *logits);

/* Makes the session hold exactly these n tokens (which may be some of its own), keeping the longest common prefix. *reused (may be
 * NULL) receives the number of tokens that were not evaluated again. With logits [vocab] the last token is always evaluated, so
 * that there are some (unless n = 0). Errors as skl_eval; SKL_CONTEXT_FULL and SKL_BAD_ARGUMENT leave the session as it was. */
SKL_API skl_status skl_session_sync(skl_session *session, const int32_t *tokens, size_t n, size_t *reused, float *logits);

/* Forgets all but the first n tokens; 0 starts over. SKL_BAD_ARGUMENT if it holds fewer. */
SKL_API skl_status skl_session_truncate(skl_session *session, size_t n);

SKL_API size_t skl_session_position(const skl_session *session);       /* tokens held */
SKL_API size_t skl_session_context(const skl_session *session);        /* tokens it has room for */
SKL_API const int32_t *skl_session_tokens(const skl_session *session); /* [position] the tokens held */
SKL_API size_t skl_session_threads(const skl_session *session);        /* threads that work, the caller included */
SKL_API skl_isa skl_session_isa(const skl_session *session);           /* kernel level in use */
/* Of the last call that failed; empty before; never NULL. */
SKL_API const skl_error *skl_session_error(const skl_session *session);

/* =====================================================================================================================
 * >>sampling-api                                                                                                Sampling
 *
 * Picks a token from logits. Order: repetition penalty, then temperature 0 takes the largest (lowest id on a tie); otherwise
 * temperature, top-k, top-p, min-p, and one draw. The generator is the library's own: same seed and logits, same tokens on
 * every platform. One thread at a time.
 * ================================================================================================================== */

typedef struct skl_sampler skl_sampler;

typedef struct skl_sampler_desc {
    size_t size;              /* sizeof(skl_sampler_desc), or 0 */
    size_t vocab;             /* logits per row; required */
    float temperature;        /* 0 = greedy */
    size_t top_k;             /* keep the k largest; 0 = all */
    float top_p;              /* keep the smallest set that holds this mass; 0 or 1 = all */
    float min_p;              /* drop what is less likely than min_p times the likeliest; 0 = nothing */
    float repetition_penalty; /* positive logits of recent tokens are divided by it, negative ones multiplied; 0 or 1 = none */
    uint64_t seed;
    uint32_t isa_mask;        /* kernel levels that may be used, bits as of skl_isa_available; 0 = all */
    skl_allocator allocator;
} skl_sampler_desc;

/* Errors: SKL_BAD_ARGUMENT for a parameter out of range or not finite, SKL_UNSUPPORTED if isa_mask leaves no level,
 * SKL_OUT_OF_MEMORY. */
SKL_API skl_status skl_sampler_open(skl_sampler **sampler, const skl_sampler_desc *desc, skl_error *error);
SKL_API void skl_sampler_close(skl_sampler *sampler); /* NULL is fine */

/* Draws one token from logits [vocab]. recent [n_recent] are the tokens the repetition penalty applies to (may be NULL with 0).
 * -infinity excludes a token. NaN, +infinity, or nothing left: SKL_NOT_FINITE; a recent token beyond the vocabulary:
 * SKL_BAD_ARGUMENT; *token is untouched then. */
SKL_API skl_status skl_sample(skl_sampler *sampler, const float *logits, const int32_t *recent, size_t n_recent,
                              int32_t *token);

/* =====================================================================================================================
 * >>format-api                                                                             Weight formats and packing
 *
 * Conversion between float and the block formats of GGUF, and the packed layout (>>formats) that lies in a file as the
 * kernels read it. Stateless; any thread.
 * ================================================================================================================== */

/* Name ("Q4_0"; "?" if unknown), values per block, bytes per block (0 if this library only lists the type). */
SKL_API const char *skl_type_name(int type);
SKL_API size_t skl_type_block(int type);
SKL_API size_t skl_type_bytes(int type);

/* values [n] -> out; n a multiple of skl_type_block. SKL_UNSUPPORTED for types that cannot be written (the K formats, I8),
 * SKL_NOT_FINITE if a value is NaN or too large for the type. */
SKL_API skl_status skl_quantize(int type, const float *values, size_t n, void *out);
/* data -> values [n]; n a multiple of skl_type_block. SKL_UNSUPPORTED for types that cannot be read. */
SKL_API skl_status skl_dequantize(int type, const void *data, size_t n, float *values);

/* How a matrix lies in a packed file: tiles of 16 rows, each tile its codes, then its scales, then its minima, padded to 64
 * bytes. A weight is scale * (code - 8) for 4-bit codes without minimum, scale * code for 8-bit codes without minimum, and
 * scale * code + minimum with one.
 *
 * In the file such a matrix is an I8 tensor {skl_packed_tile_bytes, tiles}. Metadata say what it holds: packing.version = 1, and
 * five lists with an entry for each, packing.names (strings), .formats (bits | minimum << 8 | wide << 9), .columns, .rows and
 * .groups (columns per scale). */
typedef struct skl_layout {
    int bits;         /* 4 or 8 */
    int minimum;      /* non-zero: every group has a minimum */
    int wide;         /* non-zero: scales and minima are f32, otherwise f16 */
    uint64_t rows;
    uint64_t columns; /* a multiple of 32 */
    uint64_t group;   /* columns per scale: 16 (8-bit codes only), 32, 64, 128, or all columns; divides columns */
} skl_layout;

/* Bytes of a packed matrix (a multiple of 64), and of one tile of 16 rows; 0 if the layout is not possible. */
SKL_API uint64_t skl_packed_bytes(const skl_layout *layout);
SKL_API uint64_t skl_packed_tile_bytes(const skl_layout *layout);

/* The layout that holds tensors of a quantised GGUF type exactly: 4-bit codes for Q4_0, Q4_1 and Q4_K, 8-bit codes for Q8_0,
 * Q5_K, Q6_K and MXFP4 (doubled). SKL_UNSUPPORTED for other types, SKL_BAD_ARGUMENT for impossible shapes. */
SKL_API skl_status skl_layout_of(skl_layout *layout, int type, uint64_t rows, uint64_t columns);
/* Rearranges rows as a GGUF file stores them into that layout, or into the same with wide scales; nothing is rounded.
 * out [skl_packed_bytes]. SKL_BAD_ARGUMENT for any other layout, SKL_NOT_FINITE if a scale or a minimum is. */
SKL_API skl_status skl_pack(const skl_layout *layout, int type, const void *rows, void *out);
/* Quantises values [rows][columns], symmetric (layout->minimum must be 0), into a packed matrix. SKL_NOT_FINITE as above. */
SKL_API skl_status skl_pack_values(const skl_layout *layout, const float *values, void *out);
/* One row of a packed matrix as floats: values [columns]. SKL_BAD_ARGUMENT beyond the last one. */
SKL_API skl_status skl_unpack_row(const skl_layout *layout, const void *packed, uint64_t row, float *values);

/* =====================================================================================================================
 * >>cpu-api                                                                                   Kernel levels and threads
 * ================================================================================================================== */

/* "scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "amx", "neon", "neon-dotprod", "neon-i8mm"; "?" if there is no such
 * level. */
SKL_API const char *skl_isa_name(skl_isa isa);
/* Levels that this build has and this CPU and operating system can run: bit (1u << isa). Scalar is always there. Sessions and
 * samplers take the highest one that their isa_mask allows, a session the one that its isa names. On Linux and a CPU with AMX,
 * this and all sessions and samplers that may take "amx" ask the system for the process's right to tile registers, which makes
 * the least size of an alternate signal stack 12 KB; where it is refused, as for a smaller stack in use, the level is not
 * available. A mask without the level asks for nothing. */
SKL_API uint32_t skl_isa_available(void);
/* Physical cores this process may use: affinity mask and cgroup quota considered; at least 1. */
SKL_API size_t skl_default_threads(void);

#ifdef __cplusplus
}
#endif

#endif /* SINKLESS_H */

/* =====================================================================================================================
 *                                                    IMPLEMENTATION
 * ================================================================================================================== */
#if defined(SINKLESS_IMPLEMENTATION) && !defined(SINKLESS_IMPLEMENTED)
#define SINKLESS_IMPLEMENTED
#define SKL__IMPLEMENTING

/* =====================================================================================================================
 * >>platform                                                                      Compilers, atomics, the FP environment
 *
 * What differs between compilers and systems, named once. Results must not depend on how the caller compiles (-ffast-math,
 * -O0, -march=native) or on the FP environment of his thread, so this section also puts both into a known state.
 * ================================================================================================================== */

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <io.h>
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__) && !defined(MADV_DONTNEED) /* plain -std=c99 hides it, and the system has it all the same */
#define SKL__MADV_DONTNEED 4
#if defined(__cplusplus)
extern "C"
#endif
int madvise(void *data, size_t size, int advice);
#elif defined(MADV_DONTNEED)
#define SKL__MADV_DONTNEED MADV_DONTNEED
#endif
#if defined(__linux__)
#define SKL__MADV_POPULATE_WRITE 23 /* since 5.14; older systems refuse it and headers may not know it */
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif
#endif

/* Threads need pthreads and the __atomic builtins; MinGW has both, other Windows compilers leave it to the caller. */
#if !defined(SINKLESS_NO_THREADS) && defined(__GNUC__) && (!defined(_WIN32) || defined(__MINGW32__))
#define SKL__THREADS 1
#include <pthread.h>
#include <sched.h>
#else
#define SKL__THREADS 0
#endif

/* 32-bit x86 has SIMD kernels only if the build itself is for SSE2: without it, GCC cannot inline intrinsics into code
 * that does its scalar arithmetic in SSE registers, which is needed below. */
#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__) && defined(__SSE2_MATH__)
#define SKL__X86 1
#include <cpuid.h>
#if !defined(__clang__)
#include <immintrin.h>
#endif
#else
#define SKL__X86 0
#endif

#if defined(__aarch64__) && defined(__GNUC__)
#define SKL__ARM 1
#if !defined(__clang__)
#include <arm_neon.h>
#endif
#else
#define SKL__ARM 0
#endif

#if defined(SINKLESS_NO_SIMD)
#define SKL__X86_KERNELS 0
#define SKL__ARM_KERNELS 0
#else
#define SKL__X86_KERNELS SKL__X86
#define SKL__ARM_KERNELS SKL__ARM
#endif

/* Kernels carry their instruction set as an attribute, so that one translation unit holds them all without -m flags. */
#define SKL__TARGET(features) __attribute__((target(features)))
#if defined(__GNUC__)
#define SKL__INLINE static inline __attribute__((always_inline))
#define SKL__UNUSED __attribute__((unused))
#else
#define SKL__INLINE static inline
#define SKL__UNUSED
#endif
/* Unrolls the loop behind it, so that an array of vectors becomes registers. */
#if defined(__clang__)
#define SKL__UNROLL _Pragma("unroll")
#elif defined(__GNUC__) && __GNUC__ >= 8
#define SKL__UNROLL _Pragma("GCC unroll 16")
#else
#define SKL__UNROLL
#endif
#if defined(__GNUC__)
#define SKL__NOINLINE __attribute__((noinline))
#define SKL__FETCH(address) __builtin_prefetch(address) /* any address */
#else
#define SKL__NOINLINE
#define SKL__FETCH(address) ((void)(address))
#endif

/* --- Arithmetic as written -------------------------------------------------------------------------------------------
 * From here to the end of the header, float expressions are evaluated in their own type, in the order they are written,
 * and without contraction, whatever the command line says. 32-bit x86 computes in SSE registers, because x87 rounds
 * twice. */
#if defined(__i386__) && defined(__GNUC__) && !defined(__SSE2_MATH__)
#define SKL__I386 1
#else
#define SKL__I386 0
#endif
#if defined(__clang__)
#if SKL__I386
#pragma clang attribute push(__attribute__((target("sse2"))), apply_to = function)
#endif
#if defined(__x86_64__) || defined(__i386__) || __clang_major__ >= 15
#define SKL__CLANG_PRECISE 1
#pragma float_control(precise, on, push)
#else
#define SKL__CLANG_PRECISE 0 /* old Clang on Arm knows only what follows, and keeps it to the end of the file */
#pragma clang fp reassociate(off)
#endif
#pragma clang fp contract(off)
/* Here, because Clang's intrinsics are functions, and what they compute would follow the command line. */
#if SKL__X86
#include <immintrin.h>
#elif SKL__ARM
#include <arm_neon.h>
#endif
#elif defined(__GNUC__)
#pragma GCC push_options
#if SKL__I386
#pragma GCC target("sse2,fpmath=sse")
#endif
#pragma GCC optimize("no-fast-math", "no-unsafe-math-optimizations", "no-associative-math", "no-reciprocal-math")
#pragma GCC optimize("no-finite-math-only", "signed-zeros", "no-rounding-math", "no-trapping-math", "no-math-errno")
#pragma GCC optimize("fp-contract=off", "no-cx-limited-range")
/* As C++, GCC before 13 warns of registers that its own intrinsics leave undefined on purpose. */
#pragma GCC diagnostic push
#if defined(__cplusplus)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#elif defined(_MSC_VER)
#pragma float_control(precise, on, push)
#pragma fp_contract(off)
#endif

/* Clang with -ffp-contract=fast (part of -ffast-math) fuses a product into the sum that uses it, in spite of the
 * pragma. A product that is added to something without skl__fma must therefore pass through here first. And where the
 * same divisor occurs again, old Clang on Arm multiplies by one reciprocal; volatile, no two divisors are known to be the same.
 * value is an lvalue: a float or a vector register. */
#if defined(__clang__) && (defined(__x86_64__) || defined(__i386__))
#define SKL__ROUNDED(value) __asm__("" : "+x"(value))
#define SKL__DIVISOR(value) __asm__ volatile("" : "+x"(value))
#elif defined(__clang__) && defined(__aarch64__)
#define SKL__ROUNDED(value) __asm__("" : "+w"(value))
#define SKL__DIVISOR(value) __asm__ volatile("" : "+w"(value))
#elif defined(__clang__)
#define SKL__ROUNDED(value) __asm__("" : "+m"(value))
#define SKL__DIVISOR(value) __asm__ volatile("" : "+m"(value))
#else
#define SKL__ROUNDED(value) ((void)0)
#define SKL__DIVISOR(value) ((void)0)
#endif

/* The IEEE square root. Clang with -ffast-math takes an estimate for sqrtf, in spite of the pragma. */
SKL__INLINE SKL__UNUSED float skl__sqrt(float x)
{
#if defined(__clang__) && (SKL__X86 || SKL__I386)
    float root;

    __asm__("sqrtss %1, %0" : "=x"(root) : "x"(x));
    return root;
#elif defined(__clang__) && SKL__ARM
    float root;

    __asm__("fsqrt %s0, %s1" : "=w"(root) : "w"(x));
    return root;
#else
    return sqrtf(x);
#endif
}

/* a * b, rounded, never fused into a sum. */
SKL__INLINE SKL__UNUSED float skl__mul(float a, float b)
{
    float product = a * b;

    SKL__ROUNDED(product);
    return product;
}

/* a / b, never by a reciprocal. */
SKL__INLINE SKL__UNUSED float skl__div(float a, float b)
{
    SKL__DIVISOR(b);
    return a / b;
}

SKL__INLINE SKL__UNUSED uint32_t skl__f32_to_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SKL__INLINE SKL__UNUSED float skl__f32_from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Neither NaN nor infinite. On the bits: a compiler that was told there are no NaNs may fold isnan() away. */
SKL__INLINE SKL__UNUSED int skl__is_finite(float value)
{
    return (skl__f32_to_bits(value) & 0x7f800000u) != 0x7f800000u;
}

#if defined(__FMA__) || defined(__aarch64__) || defined(__FP_FAST_FMAF)
#define SKL__HAS_FMA 1
#else
#define SKL__HAS_FMA 0
#endif

/* The fused multiply-add without the instruction. The product of two floats is exact in double; the sum is rounded to
 * odd (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008), so that rounding it again, to float,
 * is rounding once: a double has more than the two spare bits this needs, also where the float is subnormal. */
static SKL__UNUSED float skl__fma_exact(float a, float b, float c)
{
    const double product = (double)a * (double)b;
    const double addend = (double)c;
    double sum = product + addend;
    const double part = sum - product;
    const double error = (product - (sum - part)) + (addend - part); /* exact (Knuth's TwoSum), or NaN at infinity */
    uint64_t bits, error_bits;

    memcpy(&bits, &sum, sizeof bits);
    memcpy(&error_bits, &error, sizeof error_bits);
    if ((error_bits << 1) != 0 && (bits & 1) == 0 && (bits & 0x7ff0000000000000u) != 0x7ff0000000000000u) {
        bits += ((bits ^ error_bits) >> 63) != 0 ? UINT64_MAX : 1u; /* a step towards the error: the last bit is odd */
        memcpy(&sum, &bits, sizeof sum);
    }
    return (float)sum;
}

/* a * b + c, rounded once; the same bits everywhere. */
SKL__INLINE SKL__UNUSED float skl__fma(float a, float b, float c)
{
#if SKL__HAS_FMA
    return __builtin_fmaf(a, b, c);
#else
    return skl__fma_exact(a, b, c);
#endif
}

/* --- The FP environment ----------------------------------------------------------------------------------------------
 * Rounding and flushing of subnormals belong to the thread. Entry points set the IEEE default and give the caller's
 * setting back. The arithmetic must be in a function of its own (SKL__NOINLINE): compilers move float operations across
 * this. */
typedef struct skl__fp_env {
    uint64_t control;
} skl__fp_env;

static SKL__UNUSED skl__fp_env skl__fp_begin(void)
{
    skl__fp_env saved;
#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
    uint32_t mxcsr;
    const uint32_t standard = 0x1f80; /* to nearest, all exceptions masked, no FTZ, no DAZ */

    __asm__ volatile("stmxcsr %0" : "=m"(mxcsr) : : "memory");
    __asm__ volatile("ldmxcsr %0" : : "m"(standard) : "memory");
    saved.control = mxcsr;
#elif defined(__aarch64__) && defined(__GNUC__)
    const uint64_t standard = 0; /* to nearest, no traps, no FZ, no default NaN */

    __asm__ volatile("mrs %0, fpcr" : "=r"(saved.control) : : "memory");
    if (saved.control != standard) __asm__ volatile("msr fpcr, %0" : : "r"(standard) : "memory");
#else
    saved.control = 0;
#endif
    return saved;
}

static SKL__UNUSED void skl__fp_end(skl__fp_env saved)
{
#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
    const uint32_t mxcsr = (uint32_t)saved.control;

    __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr) : "memory");
#elif defined(__aarch64__) && defined(__GNUC__)
    if (saved.control != 0) __asm__ volatile("msr fpcr, %0" : : "r"(saved.control) : "memory");
#else
    (void)saved;
#endif
}

/* --- Atomics ---------------------------------------------------------------------------------------------------------
 * Sequentially consistent: they are few, and the sleeping protocol of >>sharing needs that order. Other compilers than
 * GCC and Clang run everything on the caller and never get here. */
typedef ptrdiff_t skl__count;

#if defined(__GNUC__)
SKL__INLINE skl__count skl__atomic_load(const skl__count *object)
{
    return __atomic_load_n(object, __ATOMIC_SEQ_CST);
}

SKL__INLINE void skl__atomic_store(skl__count *object, skl__count value)
{
    __atomic_store_n(object, value, __ATOMIC_SEQ_CST);
}

/* Adds and returns the value before. */
SKL__INLINE skl__count skl__atomic_add(skl__count *object, skl__count value)
{
    return __atomic_fetch_add(object, value, __ATOMIC_SEQ_CST);
}
#endif

/* =====================================================================================================================
 * >>checked                                                     Errors, memory, checked arithmetic, the bounded cursor
 *
 * What every later section needs in order to refuse politely. Numbers from a file are added and multiplied only through
 * the functions here, and its bytes are read only through a cursor that cannot leave them.
 * ================================================================================================================== */

#if defined(__GNUC__)
#define SKL__PRINTF(format_index, first_argument) __attribute__((format(printf, format_index, first_argument)))
#else
#define SKL__PRINTF(format_index, first_argument)
#endif

enum { SKL__LABEL = sizeof(((skl_error *)0)->where) }; /* bytes of a name in a message, its NUL included */

SKL_API const char *skl_status_string(skl_status status)
{
    switch (status) {
    case SKL_OK: return "ok";
    case SKL_NOT_FOUND: return "not found";
    case SKL_BAD_ARGUMENT: return "bad argument";
    case SKL_OUT_OF_MEMORY: return "out of memory";
    case SKL_IO: return "input/output error";
    case SKL_BAD_FILE: return "bad file";
    case SKL_BAD_MODEL: return "bad model";
    case SKL_UNSUPPORTED: return "unsupported";
    case SKL_CONTEXT_FULL: return "context full";
    case SKL_CANCELLED: return "cancelled";
    case SKL_NOT_FINITE: return "not finite";
    }
    return "unknown status";
}

/* Text of a file, made fit for a message: anything that a terminal could act on becomes a question mark.
 *   label  [SKL__LABEL]        text  [length], may hold any byte */
static void skl__label(char *label, const char *text, size_t length)
{
    size_t i;

    if (length > SKL__LABEL - 1) length = SKL__LABEL - 1;
    for (i = 0; i < length; i++) label[i] = text[i] >= 32 && text[i] < 127 ? text[i] : '?';
    label[length] = '\0';
}

/* Where a message points to, appended to its sentence: " (name, byte 12)".
 *   suffix  [capacity]         where  NUL-terminated, may be empty */
static size_t skl__suffix(char *suffix, size_t capacity, const char *where, uint64_t offset)
{
    const unsigned long long byte = (unsigned long long)offset;

    suffix[0] = '\0';
    if (where[0] && offset != SKL_NO_OFFSET) snprintf(suffix, capacity, " (%s, byte %llu)", where, byte);
    else if (where[0]) snprintf(suffix, capacity, " (%s)", where);
    else if (offset != SKL_NO_OFFSET) snprintf(suffix, capacity, " (byte %llu)", byte);
    return strlen(suffix);
}

/* Fills *error. The message is the sentence followed by name and byte, which therefore need not be part of the
 * sentence; they survive when it has to be cut.
 *   where  NUL-terminated, may be NULL */
static SKL__PRINTF(5, 0) void skl__describe(skl_error *error, skl_status status, uint64_t offset, const char *where,
                                            const char *format, va_list arguments)
{
    char suffix[SKL__LABEL + 40];
    size_t room, length;

    error->status = status;
    error->offset = offset;
    skl__label(error->where, where ? where : "", where ? strlen(where) : 0);

    room = sizeof(error->message) - skl__suffix(suffix, sizeof(suffix), error->where, offset);
    vsnprintf(error->message, room, format, arguments);
    length = strlen(error->message);
    if (length == room - 1) { /* perhaps cut: do not end in half a UTF-8 character */
        while (length > 0 && (unsigned char)error->message[length - 1] >= 128) length--;
    }
    memcpy(error->message + length, suffix, strlen(suffix) + 1);
}

/* Returns status, after filling *error if there is one. The way every failure is reported.
 *   error  may be NULL         where  name of a tensor, key or parameter, NUL-terminated; NULL if none */
static SKL__PRINTF(5, 6) skl_status skl__fail(skl_error *error, skl_status status, uint64_t offset, const char *where,
                                              const char *format, ...)
{
    va_list arguments;

    if (!error) return status;
    va_start(arguments, format);
    skl__describe(error, status, offset, where, format, arguments);
    va_end(arguments);
    return status;
}

static void *skl__libc_alloc(void *user, size_t size)
{
    (void)user;
    return malloc(size);
}

static void skl__libc_free(void *user, void *memory)
{
    (void)user;
    free(memory);
}

/* The allocator to use from here on: the caller's, or libc's when he left it zero. */
static skl_status skl__take_allocator(skl_allocator *allocator, const skl_allocator *given, skl_error *error)
{
    *allocator = *given;
    if (given->alloc && given->free) return SKL_OK;
    if (given->alloc || given->free) {
        return skl__fail(error, SKL_BAD_ARGUMENT, SKL_NO_OFFSET, "allocator", "an allocator needs both alloc and free");
    }
    allocator->alloc = skl__libc_alloc;
    allocator->free = skl__libc_free;
    return SKL_OK;
}

/* NULL means failure, also for a size of zero. */
static void *skl__alloc(const skl_allocator *allocator, size_t size)
{
    return allocator->alloc(allocator->user, size ? size : 1);
}

static void skl__free(const skl_allocator *allocator, void *memory)
{
    if (memory) allocator->free(allocator->user, memory);
}

#define SKL__DESC_SLACK 4096 /* no version of a desc will be larger than ours by more; a tag beyond is not a size */

/* Copies a caller's desc of src_size bytes (its size tag; 0 = as large as ours) over zeros. A newer program may pass a
 * larger struct, as long as it asks for nothing that only a newer library could do: what lies beyond ours must be zero.
 * No desc has grown yet, so a smaller one is a mistake.
 *   dst  [dst_size]            src  [src_size], may be NULL: all defaults */
static skl_status skl__take_desc(void *dst, size_t dst_size, const void *src, size_t src_size)
{
    const unsigned char *bytes = (const unsigned char *)src;
    size_t i;

    memset(dst, 0, dst_size);
    if (!src) return SKL_OK;
    if (src_size == 0) src_size = dst_size;
    if (src_size < dst_size || src_size - dst_size > SKL__DESC_SLACK) return SKL_BAD_ARGUMENT;
    for (i = dst_size; i < src_size; i++) {
        if (bytes[i]) return SKL_BAD_ARGUMENT;
    }
    memcpy(dst, src, dst_size);
    return SKL_OK;
}

/* Each returns 1 and the result, or 0 if it does not fit. */
static int skl__add(uint64_t a, uint64_t b, uint64_t *sum)
{
    if (a > UINT64_MAX - b) return 0;
    *sum = a + b;
    return 1;
}

static int skl__multiply(uint64_t a, uint64_t b, uint64_t *product)
{
    if (a && b > UINT64_MAX / a) return 0;
    *product = a * b;
    return 1;
}

static int skl__round_up(uint64_t value, uint64_t unit, uint64_t *rounded) /* unit: a power of two */
{
    if (!skl__add(value, unit - 1, rounded)) return 0;
    *rounded &= ~(unit - 1);
    return 1;
}

static int skl__fits_size(uint64_t value) /* not a given on 32-bit systems */
{
    return (size_t)value == value;
}

/* count zeroed elements, or NULL. */
static void *skl__alloc_array(const skl_allocator *allocator, uint64_t count, size_t element)
{
    uint64_t size;
    void *memory;

    if (!skl__multiply(count, element, &size) || !skl__fits_size(size)) return NULL;
    memory = skl__alloc(allocator, (size_t)size);
    if (memory) memset(memory, 0, (size_t)size);
    return memory;
}

/* Little-endian values at any alignment, on any host.       p  [2], [4], [8] */
static uint16_t skl__le16(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t skl__le32(const unsigned char *p)
{
    return (uint32_t)skl__le16(p) | (uint32_t)skl__le16(p + 2) << 16;
}

static uint64_t skl__le64(const unsigned char *p)
{
    return (uint64_t)skl__le32(p) | (uint64_t)skl__le32(p + 4) << 32;
}

/* A cursor over bytes that are not trusted. A read that does not fit returns zeros, leaves position at its first byte,
 * and fails the cursor for good, so that a whole record may be read before failed is looked at once. */
typedef struct skl__cursor {
    const unsigned char *data; /* [size] */
    size_t size;
    size_t position;
    int failed;
} skl__cursor;

/* A name that lies in a file. */
typedef struct skl__name {
    const char *text; /* [length], not NUL-terminated */
    size_t length;
} skl__name;

static size_t skl__left(const skl__cursor *cursor)
{
    return cursor->failed ? 0 : cursor->size - cursor->position;
}

/* The next size bytes, or NULL. */
static const unsigned char *skl__take(skl__cursor *cursor, uint64_t size)
{
    const unsigned char *bytes = cursor->data + cursor->position;

    if (cursor->failed || size > cursor->size - cursor->position) {
        cursor->failed = 1;
        return NULL;
    }
    cursor->position += (size_t)size;
    return bytes;
}

static uint32_t skl__take_u32(skl__cursor *cursor)
{
    const unsigned char *bytes = skl__take(cursor, 4);

    return bytes ? skl__le32(bytes) : 0;
}

static uint64_t skl__take_u64(skl__cursor *cursor)
{
    const unsigned char *bytes = skl__take(cursor, 8);

    return bytes ? skl__le64(bytes) : 0;
}

/* A string as GGUF stores it: u64 length, then the bytes. */
static skl__name skl__take_string(skl__cursor *cursor)
{
    const uint64_t length = skl__take_u64(cursor);
    skl__name string;

    string.text = (const char *)skl__take(cursor, length);
    string.length = string.text ? (size_t)length : 0;
    return string;
}

/* =====================================================================================================================
 * >>gguf                                                                                   Reading and validating GGUF
 *
 * Owns the bytes of a file (a mapping, a private copy, or a view of the caller's memory) and the two lists that
 * describe them. A file is hostile until the last check has passed:
 *
 *     - a count is believed only if the bytes that are left could hold that many of the smallest record, so memory is
 *       bounded by the file and never by what it claims;
 *     - names are sorted once: duplicates show up as neighbours, and every look-up is a binary search;
 *     - extents are sorted once: overlaps show up the same way.
 *
 * Nothing is quadratic and nothing but arrays of arrays recurses. Versions 2 and 3 are the same layout. Values are
 * views: an array of a hundred thousand strings costs one walk at open and no memory.
 *
 * A mapped file must not be truncated by others while it is open: touching a page that is gone raises SIGBUS, which a
 * library cannot turn into an error. Replacing the file by renaming another over it is fine, and with source.read
 * nothing is mapped at all.
 * ================================================================================================================== */

enum {
    SKL__KEY_MIN = 8 + 1 + 4 + 1,            /* smallest key: name of one byte, type, value of one byte */
    SKL__TENSOR_MIN = 8 + 1 + 4 + 8 + 4 + 8, /* smallest tensor record: name of one byte, one dimension, type, offset */
    SKL__KEY_NAME_MAX = 65535,
    SKL__TENSOR_NAME_MAX = 64,
    SKL__ARRAY_DEPTH = 4,                    /* arrays of arrays are legal and unused; keeps recursion shallow */
    SKL__ALIGNMENT_DEFAULT = 32,
    SKL__ALIGNMENT_MIN = 8,                  /* as the GGUF specification has it */
    SKL__ALIGNMENT_MAX = 65536,
    SKL__LINE = 64                           /* private copies begin on a cache line, as what is aligned in the file
                                                shall be aligned in memory */
};

/* name comes first in both records: the sorted lists hold pointers that are read as either. */
typedef struct skl__key {
    skl__name name;
    skl_value value;
} skl__key;

typedef struct skl__record {
    skl__name name;
    skl_tensor tensor;
    uint64_t offset; /* of the data, from the start of the data section */
    uint64_t extent; /* bytes in the file, also of types that are only listed */
} skl__record;

struct skl_gguf {
    skl_allocator allocator;
    const unsigned char *base;     /* [length] the GGUF, wherever it lies */
    size_t length;
    void *mapping;                 /* [mapping_length] whole pages around base; NULL if not mapped */
    size_t mapping_length;
    void *copy;                    /* private memory around base; NULL unless the file was read */
    size_t key_count;
    size_t tensor_count;
    skl__key *keys;                /* [key_count] in file order */
    skl__record *records;          /* [tensor_count] in file order */
    const void **keys_by_name;     /* [key_count] into keys */
    const void **records_by_name;  /* [tensor_count] into records */
    uint64_t alignment;
    uint64_t data_offset;          /* first byte of the data section */
};

/* --- tensor types --- */

typedef struct skl__type_info {
    const char *name; /* NULL: no such type, or one that was removed from the format */
    unsigned block;   /* values per block */
    unsigned bytes;   /* per block */
    int readable;     /* otherwise only listed: extents are checked, contents are not looked at */
} skl__type_info;

static const skl__type_info skl__types[] = { /* by GGUF id */
    {"F32", 1, 4, 1},       {"F16", 1, 2, 1},       {"Q4_0", 32, 18, 1},    {"Q4_1", 32, 20, 1},    /*  0 */
    {NULL, 0, 0, 0},        {NULL, 0, 0, 0},        {"Q5_0", 32, 22, 0},    {"Q5_1", 32, 24, 0},    /*  4 */
    {"Q8_0", 32, 34, 1},    {"Q8_1", 32, 36, 0},    {"Q2_K", 256, 84, 0},   {"Q3_K", 256, 110, 0},  /*  8 */
    {"Q4_K", 256, 144, 1},  {"Q5_K", 256, 176, 1},  {"Q6_K", 256, 210, 1},  {"Q8_K", 256, 292, 0},  /* 12 */
    {"IQ2_XXS", 256, 66, 0}, {"IQ2_XS", 256, 74, 0}, {"IQ3_XXS", 256, 98, 0}, {"IQ1_S", 256, 50, 0}, /* 16 */
    {"IQ4_NL", 32, 18, 0},  {"IQ3_S", 256, 110, 0}, {"IQ2_S", 256, 82, 0},  {"IQ4_XS", 256, 136, 0}, /* 20 */
    {"I8", 1, 1, 1},        {"I16", 1, 2, 0},       {"I32", 1, 4, 0},       {"I64", 1, 8, 0},       /* 24 */
    {"F64", 1, 8, 0},       {"IQ1_M", 256, 56, 0},  {"BF16", 1, 2, 1},      {NULL, 0, 0, 0},        /* 28 */
    {NULL, 0, 0, 0},        {NULL, 0, 0, 0},        {"TQ1_0", 256, 54, 0},  {"TQ2_0", 256, 66, 0},  /* 32 */
    {NULL, 0, 0, 0},        {NULL, 0, 0, 0},        {NULL, 0, 0, 0},        {"MXFP4", 32, 17, 1},   /* 36 */
    {"NVFP4", 64, 36, 0},   {"Q1_0", 128, 18, 0},   {"Q2_0", 64, 18, 0}                             /* 40 */
};

/* NULL if unknown. A negative int, converted, is as unknown as any other large number. */
static const skl__type_info *skl__type_find(uint32_t id)
{
    return id < sizeof(skl__types) / sizeof(skl__types[0]) && skl__types[id].name ? &skl__types[id] : NULL;
}

SKL_API const char *skl_type_name(int type)
{
    const skl__type_info *info = skl__type_find((uint32_t)type);

    return info ? info->name : "?";
}

SKL_API size_t skl_type_block(int type)
{
    const skl__type_info *info = skl__type_find((uint32_t)type);

    return info ? info->block : 0;
}

SKL_API size_t skl_type_bytes(int type)
{
    const skl__type_info *info = skl__type_find((uint32_t)type);

    return info && info->readable ? info->bytes : 0;
}

/* --- sorted lists --- */

typedef int skl__compare(const void *a, const void *b);

/* Heap sort: in place, and n log n whatever the order. qsort may allocate, and may be quadratic if a file is made so.
 *   items  [n] pointers to records */
static void skl__sift(const void **items, size_t root, size_t n, skl__compare *compare)
{
    while (n > 1 && root <= (n - 2) / 2) {
        size_t child = 2 * root + 1;
        const void *item = items[root];

        if (child + 1 < n && compare(items[child], items[child + 1]) < 0) child++;
        if (compare(item, items[child]) >= 0) return;
        items[root] = items[child];
        items[child] = item;
        root = child;
    }
}

static void skl__sort(const void **items, size_t n, skl__compare *compare)
{
    size_t i;

    for (i = n / 2; i-- > 0;) skl__sift(items, i, n, compare);
    for (i = n; i-- > 1;) {
        const void *largest = items[0];
        items[0] = items[i];
        items[i] = largest;
        skl__sift(items, 0, i, compare);
    }
}

static int skl__compare_names(const void *a, const void *b)
{
    const skl__name *x = (const skl__name *)a, *y = (const skl__name *)b;
    const int order = memcmp(x->text, y->text, x->length < y->length ? x->length : y->length);

    if (order) return order;
    return (x->length > y->length) - (x->length < y->length);
}

static int skl__compare_offsets(const void *a, const void *b)
{
    const skl__record *x = (const skl__record *)a, *y = (const skl__record *)b;

    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->name.text > y->name.text) - (x->name.text < y->name.text); /* the same file, the same message */
}

/* The record of that name, or NULL.
 *   sorted  [n]                name  NUL-terminated */
static const void *skl__find_name(const void *const *sorted, size_t n, const char *name)
{
    size_t low = 0, high = n;
    skl__name wanted;

    wanted.text = name;
    wanted.length = strlen(name);
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = skl__compare_names(sorted[middle], &wanted);

        if (order == 0) return sorted[middle];
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

/* --- parsing --- */

typedef struct skl__reader {
    skl__cursor cursor;
    char where[SKL__LABEL]; /* the key or tensor at hand, for messages */
    skl_error *error;       /* may be NULL */
} skl__reader;

/* A failure about the key or tensor at hand. */
static SKL__PRINTF(3, 4) skl_status skl__refuse(const skl__reader *reader, uint64_t offset, const char *format, ...)
{
    va_list arguments;

    if (!reader->error) return SKL_BAD_FILE;
    va_start(arguments, format);
    skl__describe(reader->error, SKL_BAD_FILE, offset, reader->where, format, arguments);
    va_end(arguments);
    return SKL_BAD_FILE;
}

/* The cursor failed: the file is shorter than what it describes. */
static skl_status skl__refuse_short(const skl__reader *reader, const char *what)
{
    return skl__refuse(reader, reader->cursor.position, "the file ends inside %s", what);
}

/* count records of at least minimum bytes each must fit into what is left. */
static skl_status skl__check_count(const skl__reader *reader, uint64_t count, size_t minimum, const char *what)
{
    if (count <= skl__left(&reader->cursor) / minimum) return SKL_OK;
    return skl__refuse(reader, reader->cursor.position,
                       "the file declares %llu %s, more than its remaining %llu bytes can hold",
                       (unsigned long long)count, what, (unsigned long long)skl__left(&reader->cursor));
}

/* Takes the name of a key or tensor and makes it the one at hand. */
static skl_status skl__read_name(skl__reader *reader, skl__name *name, size_t longest, const char *what)
{
    const uint64_t begin = reader->cursor.position;

    reader->where[0] = '\0';
    *name = skl__take_string(&reader->cursor);
    if (reader->cursor.failed) return skl__refuse_short(reader, what);
    skl__label(reader->where, name->text, name->length);

    if (name->length == 0) return skl__refuse(reader, begin, "%s is empty", what);
    if (name->length > longest) {
        return skl__refuse(reader, begin, "%s has %llu bytes; %llu are allowed", what,
                           (unsigned long long)name->length, (unsigned long long)longest);
    }
    if (memchr(name->text, 0, name->length)) {
        return skl__refuse(reader, begin, "%s contains a zero byte", what);
    }
    return SKL_OK;
}

/* Bytes of a value of fixed size; 0 for strings, arrays, and types that do not exist. */
static size_t skl__value_width(uint32_t type)
{
    static const unsigned char widths[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}; /* by skl_value_type */

    return type < sizeof(widths) ? widths[type] : 0;
}

static skl_status skl__skip_fixed(skl__reader *reader, uint32_t type, uint64_t count)
{
    const size_t begin = reader->cursor.position, width = skl__value_width(type);
    const unsigned char *bytes;
    size_t i;

    if (skl__check_count(reader, count, width, "values")) return SKL_BAD_FILE;
    bytes = skl__take(&reader->cursor, count * width);
    for (i = 0; type == SKL_VALUE_BOOL && i < count; i++) {
        if (bytes[i] <= 1) continue;
        return skl__refuse(reader, begin + i, "a bool is %u; it must be 0 or 1", bytes[i]);
    }
    return SKL_OK;
}

static skl_status skl__skip_strings(skl__reader *reader, uint64_t count)
{
    if (skl__check_count(reader, count, 8, "strings")) return SKL_BAD_FILE;
    while (count-- > 0) skl__take_string(&reader->cursor);
    return reader->cursor.failed ? skl__refuse_short(reader, "a string") : SKL_OK;
}

/* Walks over count values of one type, depth arrays deep. */
static skl_status skl__skip_values(skl__reader *reader, uint32_t type, uint64_t count, int depth)
{
    const uint64_t begin = reader->cursor.position;

    if (skl__value_width(type)) return skl__skip_fixed(reader, type, count);
    if (type == SKL_VALUE_STRING) return skl__skip_strings(reader, count);
    if (type != SKL_VALUE_ARRAY) {
        return skl__refuse(reader, begin, "value type %lu does not exist", (unsigned long)type);
    }
    if (depth == SKL__ARRAY_DEPTH) {
        return skl__refuse(reader, begin, "arrays are nested more than %d deep", depth);
    }
    if (skl__check_count(reader, count, 12, "arrays")) return SKL_BAD_FILE;
    while (count-- > 0) {
        const uint32_t inner_type = skl__take_u32(&reader->cursor);
        const uint64_t inner_count = skl__take_u64(&reader->cursor);

        if (reader->cursor.failed) return skl__refuse_short(reader, "the head of an array");
        if (skl__skip_values(reader, inner_type, inner_count, depth + 1)) return SKL_BAD_FILE;
    }
    return SKL_OK;
}

static skl_status skl__read_key(skl__reader *reader, skl__key *key)
{
    skl__cursor *cursor = &reader->cursor;
    skl_value *value = &key->value;
    uint32_t type, element_type;
    size_t begin;

    if (skl__read_name(reader, &key->name, SKL__KEY_NAME_MAX, "the name of a key")) return SKL_BAD_FILE;
    type = element_type = skl__take_u32(cursor);
    value->count = 1;
    if (type == SKL_VALUE_ARRAY) {
        element_type = skl__take_u32(cursor);
        value->count = skl__take_u64(cursor);
    }
    if (cursor->failed) return skl__refuse_short(reader, "a key");

    begin = cursor->position;
    if (skl__skip_values(reader, element_type, value->count, type == SKL_VALUE_ARRAY)) return SKL_BAD_FILE;
    value->type = (int)type;
    value->element_type = (int)element_type;
    value->data = cursor->data + begin;
    value->size = cursor->position - begin;
    return SKL_OK;
}

/* Checks what the shape says about itself, and works out the bytes it takes in the file. */
static skl_status skl__check_shape(const skl__reader *reader, skl__record *record, uint64_t begin)
{
    const skl_tensor *tensor = &record->tensor;
    const skl__type_info *info = skl__type_find((uint32_t)tensor->type);
    uint64_t values = 1;
    int i;

    for (i = 0; i < tensor->dims; i++) {
        if (tensor->shape[i] == 0) {
            return skl__refuse(reader, begin, "dimension %d of the tensor is zero", i);
        }
        if (!skl__multiply(values, tensor->shape[i], &values)) {
            return skl__refuse(reader, begin, "the tensor has more values than can be counted");
        }
    }
    if (tensor->shape[0] % info->block) {
        return skl__refuse(reader, begin, "rows of %llu values cannot be cut into %s blocks of %u",
                           (unsigned long long)tensor->shape[0], info->name, info->block);
    }
    if (!skl__multiply(values / info->block, info->bytes, &record->extent)) {
        return skl__refuse(reader, begin, "the tensor has more bytes than can be counted");
    }
    return SKL_OK;
}

static skl_status skl__read_record(skl__reader *reader, skl__record *record)
{
    skl__cursor *cursor = &reader->cursor;
    skl_tensor *tensor = &record->tensor;
    const uint64_t begin = cursor->position;
    uint32_t dims, type, i;

    if (skl__read_name(reader, &record->name, SKL__TENSOR_NAME_MAX, "the name of a tensor")) return SKL_BAD_FILE;
    memcpy(tensor->name, record->name.text, record->name.length); /* the record is zeroed: NUL-terminated */
    dims = skl__take_u32(cursor);
    if (cursor->failed) return skl__refuse_short(reader, "the record of a tensor");
    if (dims < 1 || dims > 4) {
        return skl__refuse(reader, begin, "the tensor has %lu dimensions; 1 to 4 are possible", (unsigned long)dims);
    }
    for (i = 0; i < 4; i++) tensor->shape[i] = i < dims ? skl__take_u64(cursor) : 1;
    type = skl__take_u32(cursor);
    record->offset = skl__take_u64(cursor);
    if (cursor->failed) return skl__refuse_short(reader, "the record of a tensor");
    if (!skl__type_find(type)) {
        return skl__refuse(reader, begin, "tensor type %lu is not known", (unsigned long)type);
    }
    tensor->dims = (int)dims;
    tensor->type = (int)type;
    return skl__check_shape(reader, record, begin);
}

/* The fixed part of the file: magic, version, counts. */
static skl_status skl__read_header(skl_gguf *gguf, skl__reader *reader)
{
    skl__cursor *cursor = &reader->cursor;
    const unsigned char *magic = skl__take(cursor, 4);
    const uint32_t version = skl__take_u32(cursor);
    const uint64_t tensor_count = skl__take_u64(cursor);
    const uint64_t key_count = skl__take_u64(cursor);

    if (!magic || memcmp(magic, "GGUF", 4) != 0) {
        return skl__refuse(reader, 0, "not a GGUF file: it does not begin with the letters GGUF");
    }
    if (cursor->failed) return skl__refuse_short(reader, "the header");
    if (version != 0 && (version & 0xffff) == 0) {
        return skl__refuse(reader, 4, "this is a big-endian GGUF file; only little-endian ones are read");
    }
    if (version == 1) {
        return skl__refuse(reader, 4, "this is GGUF version 1, which is obsolete; convert it to version 3");
    }
    if (version != 2 && version != 3) {
        return skl__refuse(reader, 4, "GGUF version %lu is not known; versions 2 and 3 are", (unsigned long)version);
    }
    if (skl__check_count(reader, tensor_count, SKL__TENSOR_MIN, "tensors")) return SKL_BAD_FILE;
    if (skl__check_count(reader, key_count, SKL__KEY_MIN, "keys")) return SKL_BAD_FILE;
    gguf->tensor_count = (size_t)tensor_count;
    gguf->key_count = (size_t)key_count;
    return SKL_OK;
}

static uint64_t skl__list_bytes(const skl_gguf *gguf)
{
    return (uint64_t)gguf->key_count * (sizeof(skl__key) + sizeof(void *)) +
           (uint64_t)gguf->tensor_count * (sizeof(skl__record) + sizeof(void *));
}

static skl_status skl__allocate_lists(skl_gguf *gguf, skl_error *error)
{
    gguf->keys = (skl__key *)skl__alloc_array(&gguf->allocator, gguf->key_count, sizeof(skl__key));
    gguf->records = (skl__record *)skl__alloc_array(&gguf->allocator, gguf->tensor_count, sizeof(skl__record));
    gguf->keys_by_name = (const void **)skl__alloc_array(&gguf->allocator, gguf->key_count, sizeof(void *));
    gguf->records_by_name = (const void **)skl__alloc_array(&gguf->allocator, gguf->tensor_count, sizeof(void *));
    if (gguf->keys && gguf->records && gguf->keys_by_name && gguf->records_by_name) return SKL_OK;
    return skl__fail(error, SKL_OUT_OF_MEMORY, SKL_NO_OFFSET, NULL,
                     "no memory for the lists of %llu keys and %llu tensors", (unsigned long long)gguf->key_count,
                     (unsigned long long)gguf->tensor_count);
}

static uint64_t skl__offset_of(const skl_gguf *gguf, const void *inside)
{
    return (uint64_t)((const unsigned char *)inside - gguf->base);
}

/* Sorts a list by name and refuses duplicates.
 *   list  [n] pointers to records that begin with their name */
static skl_status skl__index_names(const skl_gguf *gguf, const void **list, size_t n, const char *what,
                                   skl_error *error)
{
    char where[SKL__LABEL];
    size_t i;

    skl__sort(list, n, skl__compare_names);
    for (i = 1; i < n; i++) {
        const skl__name *a = (const skl__name *)list[i - 1], *b = (const skl__name *)list[i];
        const char *second = a->text > b->text ? a->text : b->text;

        if (skl__compare_names(a, b) != 0) continue;
        skl__label(where, b->text, b->length);
        return skl__fail(error, SKL_BAD_FILE, skl__offset_of(gguf, second), where, "two %s have the same name", what);
    }
    return SKL_OK;
}

static skl_status skl__read_keys(skl_gguf *gguf, skl__reader *reader)
{
    size_t i;

    for (i = 0; i < gguf->key_count; i++) {
        if (skl__read_key(reader, &gguf->keys[i])) return SKL_BAD_FILE;
        gguf->keys_by_name[i] = &gguf->keys[i];
    }
    return skl__index_names(gguf, gguf->keys_by_name, gguf->key_count, "keys", reader->error);
}

static skl_status skl__read_alignment(skl_gguf *gguf, skl_error *error)
{
    static const char key[] = "general.alignment";
    const skl__key *found = (const skl__key *)skl__find_name(gguf->keys_by_name, gguf->key_count, key);
    uint64_t alignment, offset;

    gguf->alignment = SKL__ALIGNMENT_DEFAULT;
    if (!found) return SKL_OK;
    offset = skl__offset_of(gguf, found->value.data);
    if (found->value.type != SKL_VALUE_U32) {
        return skl__fail(error, SKL_BAD_FILE, offset, key, "the alignment must be a u32");
    }
    alignment = skl__le32(found->value.data);
    if (alignment < SKL__ALIGNMENT_MIN || alignment > SKL__ALIGNMENT_MAX || (alignment & (alignment - 1))) {
        return skl__fail(error, SKL_BAD_FILE, offset, key,
                         "the alignment is %llu; it must be a power of two from %d to %d",
                         (unsigned long long)alignment, (int)SKL__ALIGNMENT_MIN, (int)SKL__ALIGNMENT_MAX);
    }
    gguf->alignment = alignment;
    return SKL_OK;
}

/* Points a tensor at its bytes, if they are there. */
static skl_status skl__place(const skl_gguf *gguf, skl__record *record, skl_error *error)
{
    const uint64_t named_at = skl__offset_of(gguf, record->name.text);
    const char *name = record->tensor.name;
    uint64_t begin, end;

    if (record->offset % gguf->alignment) {
        return skl__fail(error, SKL_BAD_FILE, named_at, name, "the offset %llu of the tensor is not a multiple of %llu",
                         (unsigned long long)record->offset, (unsigned long long)gguf->alignment);
    }
    if (!skl__add(gguf->data_offset, record->offset, &begin) || !skl__add(begin, record->extent, &end)
        || end > gguf->length) {
        return skl__fail(error, SKL_BAD_FILE, named_at, name,
                         "the tensor (%llu bytes at offset %llu of the data) reaches beyond the end of the file",
                         (unsigned long long)record->extent, (unsigned long long)record->offset);
    }
    record->tensor.data = gguf->base + begin;
    record->tensor.size = skl_type_bytes(record->tensor.type) ? record->extent : 0;
    return SKL_OK;
}

/* list  [tensor_count] of records in any order; leaves it sorted by offset */
static skl_status skl__check_overlap(const skl_gguf *gguf, const void **list, skl_error *error)
{
    size_t i;

    skl__sort(list, gguf->tensor_count, skl__compare_offsets);
    for (i = 1; i < gguf->tensor_count; i++) {
        const skl__record *a = (const skl__record *)list[i - 1], *b = (const skl__record *)list[i];

        if (a->offset + a->extent <= b->offset) continue; /* within the file, so the sum cannot wrap */
        return skl__fail(error, SKL_BAD_FILE, skl__offset_of(gguf, b->tensor.data), b->tensor.name,
                         "the tensor overlaps the tensor \"%s\"", a->tensor.name);
    }
    return SKL_OK;
}

static skl_status skl__read_tensors(skl_gguf *gguf, skl__reader *reader)
{
    skl_status status = SKL_OK;
    size_t i;

    for (i = 0; i < gguf->tensor_count; i++) {
        if (skl__read_record(reader, &gguf->records[i])) return SKL_BAD_FILE;
        gguf->records_by_name[i] = &gguf->records[i];
    }
    reader->where[0] = '\0';
    if (!skl__round_up(reader->cursor.position, gguf->alignment, &gguf->data_offset)) {
        return skl__refuse_short(reader, "its padding");
    }
    for (i = 0; i < gguf->tensor_count && !status; i++) status = skl__place(gguf, &gguf->records[i], reader->error);
    if (!status) status = skl__check_overlap(gguf, gguf->records_by_name, reader->error);
    if (!status) status = skl__index_names(gguf, gguf->records_by_name, gguf->tensor_count, "tensors", reader->error);
    return status;
}

/* Everything from the first byte to the last tensor. Bytes after the data are nobody's business. */
static skl_status skl__gguf_parse(skl_gguf *gguf, skl_error *error)
{
    skl__reader reader;
    skl_status status;

    memset(&reader, 0, sizeof(reader));
    reader.cursor.data = gguf->base;
    reader.cursor.size = gguf->length;
    reader.error = error;

    status = skl__read_header(gguf, &reader);
    if (!status) status = skl__allocate_lists(gguf, error);
    if (!status) status = skl__read_keys(gguf, &reader);
    if (!status) status = skl__read_alignment(gguf, error);
    if (!status) status = skl__read_tensors(gguf, &reader);
    return status;
}

/* --- files ---
 *
 * The few things asked of an operating system, twice. Reading moves the position of a descriptor and puts it back:
 * pread is not declared under plain -std=c99. */

#define SKL__READ_MAX 0x40000000u /* bytes per read call; some systems refuse 2 GiB */

#if defined(_WIN32)

typedef HANDLE skl__file;

static uint64_t skl__map_unit(void)
{
    SYSTEM_INFO info;

    GetSystemInfo(&info);
    return info.dwAllocationGranularity;
}

static skl_status skl__file_fail(skl_error *error, const char *name, const char *what)
{
    const unsigned long code = GetLastError();

    return skl__fail(error, SKL_IO, SKL_NO_OFFSET, NULL, "%s %s (Windows error %lu)", name, what, code);
}

/* path is UTF-8, whatever the code page of the process. */
static skl_status skl__file_open(skl__file *file, const char *path, const skl_allocator *allocator, skl_error *error)
{
    const int units = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
    wchar_t *wide; /* [units], NUL-terminated */

    if (units <= 0) return skl__fail(error, SKL_BAD_ARGUMENT, SKL_NO_OFFSET, "source.path", "the path is not UTF-8");
    wide = (wchar_t *)skl__alloc_array(allocator, (uint64_t)units, sizeof(wchar_t));
    if (!wide) return skl__fail(error, SKL_OUT_OF_MEMORY, SKL_NO_OFFSET, "source.path", "no memory for the path");
    MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, units);
    *file = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL, OPEN_EXISTING,
                        FILE_ATTRIBUTE_NORMAL, NULL);
    skl__free(allocator, wide);
    return *file == INVALID_HANDLE_VALUE ? skl__file_fail(error, path, "cannot be opened") : SKL_OK;
}

static skl__file skl__file_of(int fd)
{
    return (HANDLE)_get_osfhandle(fd);
}

static void skl__file_close(skl__file file)
{
    CloseHandle(file);
}

static skl_status skl__file_length(skl__file file, const char *name, uint64_t *length, skl_error *error)
{
    LARGE_INTEGER size;

    if (GetFileType(file) != FILE_TYPE_DISK) {
        return skl__fail(error, SKL_IO, SKL_NO_OFFSET, NULL, "%s is not a regular file", name);
    }
    if (!GetFileSizeEx(file, &size)) return skl__file_fail(error, name, "cannot be examined");
    *length = (uint64_t)size.QuadPart;
    return SKL_OK;
}

static void *skl__file_map(skl__file file, uint64_t begin, size_t size)
{
    HANDLE section = CreateFileMappingW(file, NULL, PAGE_READONLY, 0, 0, NULL);
    void *mapping;

    if (!section) return NULL;
    mapping = MapViewOfFile(section, FILE_MAP_READ, (DWORD)(begin >> 32), (DWORD)(begin & 0xffffffffu), size);
    CloseHandle(section); /* the view keeps it */
    return mapping;
}

static void skl__file_unmap(void *mapping, size_t size)
{
    (void)size;
    UnmapViewOfFile(mapping);
}

/* Fewer than size bytes: the rest is not there, or not readable.       bytes  [size] */
static size_t skl__file_read(skl__file file, uint64_t begin, unsigned char *bytes, size_t size)
{
    LARGE_INTEGER position, nowhere, before;
    size_t done = 0;

    nowhere.QuadPart = 0;
    position.QuadPart = (LONGLONG)begin;
    if (!SetFilePointerEx(file, nowhere, &before, FILE_CURRENT)) return 0;
    if (!SetFilePointerEx(file, position, NULL, FILE_BEGIN)) return 0;
    while (done < size) {
        const DWORD part = size - done < SKL__READ_MAX ? (DWORD)(size - done) : SKL__READ_MAX;
        DWORD got = 0;

        if (!ReadFile(file, bytes + done, part, &got, NULL) || got == 0) break;
        done += got;
    }
    SetFilePointerEx(file, before, NULL, FILE_BEGIN);
    return done;
}

#else

typedef int skl__file;

static uint64_t skl__map_unit(void)
{
    const long size = sysconf(_SC_PAGESIZE);

    return size > 0 ? (uint64_t)size : 65536;
}

/* strerror may share a buffer between threads. */
static const char *skl__errno_text(int code)
{
    switch (code) {
    case ENOENT: return "there is no such file";
    case EACCES: return "permission denied";
    case ENOTDIR: return "a part of its path is not a directory";
    case ELOOP: return "too many symbolic links";
    case EMFILE:
    case ENFILE: return "too many open files";
    case ENAMETOOLONG: return "its name is too long";
    case EBADF: return "the descriptor is not open for reading";
    case EOVERFLOW: return "it is larger than this program's off_t can tell";
    }
    return "input/output error";
}

static skl_status skl__file_fail(skl_error *error, const char *name, const char *what)
{
    const int code = errno;

    return skl__fail(error, SKL_IO, SKL_NO_OFFSET, NULL, "%s %s: %s (errno %d)", name, what, skl__errno_text(code),
                     code);
}

static skl_status skl__file_open(skl__file *file, const char *path, const skl_allocator *allocator, skl_error *error)
{
    int flags = O_RDONLY | O_NONBLOCK; /* a FIFO without a writer would block; regular files do not care */

    (void)allocator;
#if defined(O_CLOEXEC)
    flags |= O_CLOEXEC;
#endif
    *file = open(path, flags);
    return *file < 0 ? skl__file_fail(error, path, "cannot be opened") : SKL_OK;
}

static skl__file skl__file_of(int fd)
{
    return fd;
}

static void skl__file_close(skl__file file)
{
    close(file);
}

static skl_status skl__file_length(skl__file file, const char *name, uint64_t *length, skl_error *error)
{
    struct stat status;

    if (fstat(file, &status) != 0) return skl__file_fail(error, name, "cannot be examined");
    if (S_ISDIR(status.st_mode)) return skl__fail(error, SKL_IO, SKL_NO_OFFSET, NULL, "%s is a directory", name);
    if (!S_ISREG(status.st_mode)) {
        return skl__fail(error, SKL_IO, SKL_NO_OFFSET, NULL, "%s is not a regular file", name);
    }
    *length = (uint64_t)status.st_size;
    return SKL_OK;
}

/* begin lies within the file, whose length came as an off_t: it fits one. */
static void *skl__file_map(skl__file file, uint64_t begin, size_t size)
{
    void *mapping = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, (off_t)begin);

    return mapping == MAP_FAILED ? NULL : mapping;
}

static void skl__file_unmap(void *mapping, size_t size)
{
    munmap(mapping, size);
}

/* Fewer than size bytes: the rest is not there, or not readable (see errno).       bytes  [size] */
static size_t skl__file_read(skl__file file, uint64_t begin, unsigned char *bytes, size_t size)
{
    const off_t before = lseek(file, 0, SEEK_CUR);
    size_t done = 0;

    errno = 0;
    if (before < 0 || lseek(file, (off_t)begin, SEEK_SET) < 0) return 0;
    while (done < size) {
        const size_t part = size - done < SKL__READ_MAX ? size - done : SKL__READ_MAX;
        const ssize_t got = read(file, bytes + done, part);

        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        done += (size_t)got;
    }
    lseek(file, before, SEEK_SET);
    return done;
}

#endif

/* Maps the window of a file; mappings begin on a page, so base may lie behind the start of this one. */
static int skl__gguf_map(skl_gguf *gguf, skl__file file, uint64_t begin)
{
    const size_t lead = (size_t)(begin % skl__map_unit());

    if (gguf->length > SIZE_MAX - lead) return 0;
    gguf->mapping_length = gguf->length + lead;
    gguf->mapping = skl__file_map(file, begin - lead, gguf->mapping_length);
    if (!gguf->mapping) return 0;
    gguf->base = (const unsigned char *)gguf->mapping + lead;
    return 1;
}

static skl_status skl__gguf_read(skl_gguf *gguf, skl__file file, uint64_t begin, const char *name, skl_error *error)
{
    unsigned char *bytes; /* [length], on a cache line */
    size_t got;

    gguf->copy = gguf->length > SIZE_MAX - SKL__LINE ? NULL : skl__alloc(&gguf->allocator, gguf->length + SKL__LINE);
    if (!gguf->copy) {
        return skl__fail(error, SKL_OUT_OF_MEMORY, SKL_NO_OFFSET, NULL, "no memory to read %llu bytes of %s",
                         (unsigned long long)gguf->length, name);
    }
    bytes = (unsigned char *)gguf->copy + (SKL__LINE - (uintptr_t)gguf->copy % SKL__LINE) % SKL__LINE;
    got = skl__file_read(file, begin, bytes, gguf->length);
    if (got < gguf->length) return skl__file_fail(error, name, "cannot be read to its end");
    gguf->base = bytes;
    return SKL_OK;
}

/* The part of the file that the source means: all of it behind a path, a window behind a descriptor. */
static skl_status skl__gguf_window(skl_gguf *gguf, const skl_source *source, uint64_t available, const char *name,
                                   skl_error *error)
{
    uint64_t length = source->fd_length;

    if (source->path) length = 0;
    else if (source->fd_offset > available) length = UINT64_MAX;
    else available -= source->fd_offset;
    if (length > available) {
        return skl__fail(error, SKL_BAD_ARGUMENT, SKL_NO_OFFSET, "source.fd_offset",
                         "the window reaches beyond the end of %s", name);
    }
    if (length == 0) length = available;
    if (length == 0) return skl__fail(error, SKL_BAD_FILE, 0, NULL, "%s is empty", name);
    if (!skl__fits_size(length)) {
        return skl__fail(error, SKL_OUT_OF_MEMORY, SKL_NO_OFFSET, NULL, "%s is larger than the address space", name);
    }
    gguf->length = (size_t)length;
    return SKL_OK;
}

/* Maps, or reads when asked to or when mapping is refused. */
static skl_status skl__gguf_load(skl_gguf *gguf, skl__file file, const skl_source *source, const char *name,
                                 skl_error *error)
{
    const uint64_t begin = source->path ? 0 : source->fd_offset;
    uint64_t available = 0;
    skl_status status = skl__file_length(file, name, &available, error);

    if (!status) status = skl__gguf_window(gguf, source, available, name, error);
    if (status) return status;
    if (!source->read && skl__gguf_map(gguf, file, begin)) return SKL_OK;
    return skl__gguf_read(gguf, file, begin, name, error);
}

/* Gets hold of the bytes. */
static skl_status skl__gguf_attach(skl_gguf *gguf, const skl_source *source, skl_error *error)
{
    skl__file file;
    skl_status status;

    if ((source->path != NULL) + (source->data != NULL) + (source->use_fd != 0) != 1) {
        return skl__fail(error, SKL_BAD_ARGUMENT, SKL_NO_OFFSET, "source", "set exactly one of path, data and use_fd");
    }
    if (source->data) {
        gguf->base = (const unsigned char *)source->data;
        gguf->length = source->data_size;
        return gguf->length ? SKL_OK : skl__fail(error, SKL_BAD_FILE, 0, NULL, "the data is empty");
    }
    if (source->use_fd) {
        return skl__gguf_load(gguf, skl__file_of(source->fd), source, "the file behind the descriptor", error);
    }
    status = skl__file_open(&file, source->path, &gguf->allocator, error);
    if (status) return status;
    status = skl__gguf_load(gguf, file, source, source->path, error);
    skl__file_close(file); /* a mapping outlives it */
    return status;
}

/* Tells the system that whole pages of a mapped file are not needed for now, so that weights which were rearranged into
 * private memory do not count twice. Without madvise (Windows) the pages stay until memory runs short.
 *   data  [size] within the file */
static void skl__gguf_release_pages(const skl_gguf *gguf, const void *data, size_t size)
{
#if defined(SKL__MADV_DONTNEED)
    const size_t page = (size_t)skl__map_unit();
    const size_t lead = (page - (uintptr_t)data % page) % page;

    if (!gguf->mapping || size < lead + page) return;
    madvise((char *)(uintptr_t)data + lead, (size - lead) / page * page, SKL__MADV_DONTNEED);
#else
    (void)gguf, (void)data, (void)size;
#endif
}

/* --- interface --- */

SKL_API skl_status skl_gguf_open(skl_gguf **gguf, const skl_gguf_desc *desc, skl_error *error)
{
    skl_gguf_desc taken;
    skl_allocator allocator;
    skl_status status;
    skl_gguf *opened;

    if (!gguf || !desc) {
        return skl__fail(error, SKL_BAD_ARGUMENT, SKL_NO_OFFSET, NULL, "gguf and desc must not be NULL");
    }
    if (skl__take_desc(&taken, sizeof(taken), desc, desc->size)) {
        return skl__fail(error, SKL_BAD_ARGUMENT, SKL_NO_OFFSET, "size",
                         "the desc has a size that this version does not know");
    }
    if (skl__take_allocator(&allocator, &taken.allocator, error)) return SKL_BAD_ARGUMENT;
    opened = (skl_gguf *)skl__alloc_array(&allocator, 1, sizeof(skl_gguf));
    if (!opened) return skl__fail(error, SKL_OUT_OF_MEMORY, SKL_NO_OFFSET, NULL, "no memory to open a file");

    opened->allocator = allocator;
    status = skl__gguf_attach(opened, &taken.source, error);
    if (!status) status = skl__gguf_parse(opened, error);
    if (status) skl_gguf_close(opened);
    else *gguf = opened;
    return status;
}

SKL_API void skl_gguf_close(skl_gguf *gguf)
{
    skl_allocator allocator;

    if (!gguf) return;
    allocator = gguf->allocator; /* it goes with the struct */
    if (gguf->mapping) skl__file_unmap(gguf->mapping, gguf->mapping_length);
    skl__free(&allocator, (void *)gguf->records_by_name);
    skl__free(&allocator, (void *)gguf->keys_by_name);
    skl__free(&allocator, gguf->records);
    skl__free(&allocator, gguf->keys);
    skl__free(&allocator, gguf->copy);
    skl__free(&allocator, gguf);
}

SKL_API size_t skl_gguf_key_count(const skl_gguf *gguf)
{
    return gguf ? gguf->key_count : 0;
}

SKL_API skl_status skl_gguf_key(const skl_gguf *gguf, size_t index, const char **name, size_t *length, skl_value *value)
{
    if (!gguf || !name || !length || !value) return SKL_BAD_ARGUMENT;
    if (index >= gguf->key_count) return SKL_NOT_FOUND;
    *name = gguf->keys[index].name.text;
    *length = gguf->keys[index].name.length;
    *value = gguf->keys[index].value;
    return SKL_OK;
}

SKL_API skl_status skl_gguf_find(const skl_gguf *gguf, const char *key, skl_value *value)
{
    const skl__key *found;

    if (!gguf || !key || !value) return SKL_BAD_ARGUMENT;
    found = (const skl__key *)skl__find_name(gguf->keys_by_name, gguf->key_count, key);
    if (!found) return SKL_NOT_FOUND;
    *value = found->value;
    return SKL_OK;
}

SKL_API size_t skl_gguf_tensor_count(const skl_gguf *gguf)
{
    return gguf ? gguf->tensor_count : 0;
}

SKL_API skl_status skl_gguf_tensor(const skl_gguf *gguf, size_t index, skl_tensor *tensor)
{
    if (!gguf || !tensor) return SKL_BAD_ARGUMENT;
    if (index >= gguf->tensor_count) return SKL_NOT_FOUND;
    *tensor = gguf->records[index].tensor;
    return SKL_OK;
}

SKL_API skl_status skl_gguf_find_tensor(const skl_gguf *gguf, const char *name, skl_tensor *tensor)
{
    const skl__record *found;

    if (!gguf || !name || !tensor) return SKL_BAD_ARGUMENT;
    found = (const skl__record *)skl__find_name(gguf->records_by_name, gguf->tensor_count, name);
    if (!found) return SKL_NOT_FOUND;
    *tensor = found->tensor;
    return SKL_OK;
}

/* Element index of a value whose elements have a fixed size. The value is the caller's to change, so that its size is
 * checked again. */
static skl_status skl__value_element(const skl_value *value, uint64_t index, const unsigned char **bytes)
{
    const size_t width = skl__value_width((uint32_t)value->element_type);

    if (!width) return SKL_BAD_ARGUMENT;
    if (index >= value->count || index >= value->size / width) return SKL_NOT_FOUND;
    *bytes = value->data + (size_t)index * width;
    return SKL_OK;
}

SKL_API skl_status skl_value_int(const skl_value *value, uint64_t index, int64_t *out)
{
    const unsigned char *bytes;
    skl_status status;

    if (!value || !out) return SKL_BAD_ARGUMENT;
    if (value->element_type == SKL_VALUE_F32 || value->element_type == SKL_VALUE_F64) return SKL_BAD_ARGUMENT;
    status = skl__value_element(value, index, &bytes);
    if (status) return status;
    switch (value->element_type) {
    case SKL_VALUE_U8:
    case SKL_VALUE_BOOL: *out = bytes[0]; break;
    case SKL_VALUE_I8: *out = (int8_t)bytes[0]; break;
    case SKL_VALUE_U16: *out = skl__le16(bytes); break;
    case SKL_VALUE_I16: *out = (int16_t)skl__le16(bytes); break;
    case SKL_VALUE_U32: *out = skl__le32(bytes); break;
    case SKL_VALUE_I32: *out = (int32_t)skl__le32(bytes); break;
    case SKL_VALUE_U64:
        if (skl__le64(bytes) > INT64_MAX) return SKL_BAD_ARGUMENT;
        *out = (int64_t)skl__le64(bytes);
        break;
    default: *out = (int64_t)skl__le64(bytes); break;
    }
    return SKL_OK;
}

SKL_API skl_status skl_value_float(const skl_value *value, uint64_t index, double *out)
{
    const unsigned char *bytes;
    skl_status status;
    int64_t integer;

    if (!value || !out || value->element_type == SKL_VALUE_BOOL) return SKL_BAD_ARGUMENT;
    status = skl__value_element(value, index, &bytes);
    if (status) return status;
    if (value->element_type == SKL_VALUE_F32) {
        const uint32_t bits = skl__le32(bytes);
        float single;

        memcpy(&single, &bits, sizeof(single));
        *out = (double)single;
    } else if (value->element_type == SKL_VALUE_F64) {
        const uint64_t bits = skl__le64(bytes);

        memcpy(out, &bits, sizeof(*out));
    } else if (value->element_type == SKL_VALUE_U64) {
        *out = (double)skl__le64(bytes);
    } else {
        status = skl_value_int(value, index, &integer);
        *out = (double)integer;
    }
    return status;
}

/* First string of a value.       text  [*length] */
static skl_status skl__value_text(const skl_value *value, const char **text, size_t *length)
{
    skl__cursor cursor;
    skl__name string;

    memset(&cursor, 0, sizeof(cursor));
    cursor.data = value->data;
    cursor.size = value->size;
    string = skl__take_string(&cursor);
    if (cursor.failed) return SKL_BAD_ARGUMENT;
    *text = string.text;
    *length = string.length;
    return SKL_OK;
}

SKL_API skl_status skl_value_string(const skl_value *value, const char **text, size_t *length)
{
    if (!value || !text || !length || value->type != SKL_VALUE_STRING) return SKL_BAD_ARGUMENT;
    return skl__value_text(value, text, length);
}

SKL_API skl_status skl_value_next_string(skl_value *array, const char **text, size_t *length)
{
    skl_status status;

    if (!array || !text || !length || array->type != SKL_VALUE_ARRAY) return SKL_BAD_ARGUMENT;
    if (array->element_type != SKL_VALUE_STRING) return SKL_BAD_ARGUMENT;
    if (array->count == 0) return SKL_NOT_FOUND;
    status = skl__value_text(array, text, length);
    if (status) return status;
    array->data += 8 + *length;
    array->size -= 8 + *length;
    array->count--;
    return SKL_OK;
}
/* =====================================================================================================================
 * >>half                                                                             Half precision, bit by bit
 *
 * Conversions between float and the two 16-bit formats of model files, without instructions or library calls that a target may
 * lack. Widening is exact. Narrowing rounds to nearest, ties to even; what is too large becomes infinity, a NaN stays one.
 * ================================================================================================================== */

/* The bits of a half as those of a float. */
static uint32_t skl__f16_widen(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 31u;
    uint32_t fraction = half & 0x3ffu;

    if (exponent == 31) return sign | 0x7f800000u | fraction << 13;
    if (exponent == 0) {
        if (fraction == 0) return sign;
        exponent = 1;
        while (!(fraction & 0x400u)) {  /* a subnormal half is a normal float: shift its leading one into place */
            fraction <<= 1;
            exponent--;                 /* may wrap below zero; the sum with 112 below does not */
        }
        fraction &= 0x3ffu;
    }
    return sign | (exponent + 112u) << 23 | fraction << 13;
}

/* Inline, because vector code calls it for single values, and to return a float from a function that was compiled for any CPU
 * costs a hundred cycles where the upper halves of registers are in use. */
SKL__INLINE float skl__f16_to_f32(uint16_t half)
{
    return skl__f32_from_bits(skl__f16_widen(half));
}

/* Drop the low `shift` bits of a magnitude, rounding to nearest even. A carry runs into the exponent, as it should. */
static uint32_t skl__round_bits(uint32_t magnitude, unsigned shift)
{
    const uint32_t half = (uint32_t)1 << (shift - 1);
    const uint32_t odd = (magnitude >> shift) & 1u;
    return (magnitude + half - 1u + odd) >> shift;
}

static uint16_t skl__f32_to_f16(float value)
{
    const uint32_t bits = skl__f32_to_bits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t exponent = magnitude >> 23;
    uint32_t result;

    if (magnitude > 0x7f800000u) {
        result = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    } else if (exponent >= 143) {       /* 65536 and above, infinity included */
        result = 0x7c00u;
    } else if (exponent >= 113) {       /* a normal half; 65520 and above round up to infinity by themselves */
        result = skl__round_bits(magnitude - (112u << 23), 13);
    } else if (exponent >= 102) {       /* a subnormal half, or what rounds up to the smallest one */
        result = skl__round_bits((magnitude & 0x7fffffu) | 0x800000u, 126u - exponent);
    } else {
        result = 0;
    }
    return (uint16_t)(sign | result);
}

static float skl__bf16_to_f32(uint16_t half)
{
    return skl__f32_from_bits((uint32_t)half << 16);
}

static uint16_t skl__f32_to_bf16(float value)
{
    const uint32_t bits = skl__f32_to_bits(value);

    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);  /* keep a NaN from rounding to infinity */
    return (uint16_t)skl__round_bits(bits, 16);
}
/* =====================================================================================================================
 * >>formats                                                                        Block formats and the packed layout
 *
 * Many storage formats, two compute formats. Every integer format of GGUF is read as runs: 32 codes with a scale (or two, of 16
 * codes each) and possibly a minimum; a run is what dequantising and packing share, so a format is described once.
 *
 * The packed layout is what integer kernels read and what may lie in a file. Sixteen rows form a tile; within a tile
 *
 *     codes | scales [groups][16] | minima [groups][16] | zeros up to a multiple of 64 bytes
 *
 * Codes of 4 bits, for each run of 32 columns, four lines of 64 bytes:
 *     line c (0..3), byte 4 r + j:  low nibble = column 4 c + j, high nibble = column 16 + 4 c + j, of row r
 * Codes of 8 bits, for each 4 columns, one line of 64 bytes:
 *     line c, byte 4 r + j:         column 4 c + j of row r
 *
 * One line is one AVX-512 register, two of AVX2, four of NEON; two masks turn it into operands of a four-way dot product whose
 * other side is four consecutive activations. Rows beyond the matrix are zero in everything.
 * ================================================================================================================== */

#define SKL__RUN 32       /* columns of a run */
#define SKL__TILE 16      /* rows of a tile */

/* One matrix, as kernels see it. */
typedef enum skl__storage { SKL__ROWS_F32, SKL__ROWS_F16, SKL__ROWS_BF16, SKL__TILES_4, SKL__TILES_8 } skl__storage;

typedef struct skl__matrix {
    skl__storage storage;      /* ROWS_*: rows as in the file, at any alignment; TILES_*: the packed layout              */
    size_t rows, columns;
    size_t group;              /* TILES: columns per scale                                                              */
    size_t stride;             /* bytes per row, or per tile                                                            */
    int wide;                  /* TILES: scales and minima are f32, otherwise f16                                       */
    int minimum;               /* TILES: w = scale * code + minimum; otherwise scale * (code - 8) or, 8 bits, scale * code */
    const unsigned char *data; /* [rows or tiles][stride]                                                               */
} skl__matrix;

/* Activations of some tokens, as kernels see them. Codes are in [-127, 127] (a8) or [-7, 7] (a4), one int8 each. */
typedef struct skl__acts {
    size_t columns;
    size_t stride;             /* bytes from one token's codes to the next, a multiple of 64                            */
    int row;                   /* one scale per token, otherwise one per 32 columns                                     */
    int8_t *codes;             /* [tokens][stride]                                                                      */
    float *scales;             /* [tokens][columns / 32], or [tokens] if row                                            */
    int32_t *sums;             /* [tokens][columns / 32]: sum of the codes of each run                                  */
    const float *values;       /* [tokens][columns]: what they were made from                                           */
} skl__acts;

/* Activations from token t on. */
static skl__acts skl__acts_from(const skl__acts *acts, size_t t)
{
    const size_t runs = (acts->columns + 31) / 32;
    skl__acts from = *acts;

    from.codes += t * acts->stride;
    from.scales += t * (acts->row ? 1 : runs);
    from.sums += t * runs;
    from.values += t * acts->columns;
    return from;
}

/* A matmul kernel: y[t][r] = row r times token t, for the rows of tiles [tile_begin, tile_end).        y  [tokens][y_stride] */
typedef void skl__matmul(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin, size_t tile_end,
                         const skl__acts *x, size_t tokens);

/* --- runs --- */

#define SKL__EACH_BYTE 0x0101010101010101u /* times a byte: eight of it */

/* Codes of 4 bits lie in a run as they lie in a tile, columns i and 16 + i in a byte, which is also how Q4_0 and Q4_1 store
 * them: to pack is to copy. */
typedef struct skl__run {
    unsigned char codes[SKL__RUN]; /* 8 bits: one signed code a byte; 4 bits: byte i < 16 = code i | code 16 + i << 4   */
    float scale[2];                /* of the first and the last 16 codes                                                */
    float minimum;                 /* 0 for formats without one                                                         */
} skl__run;

/* What the integer formats decode to. */
typedef struct skl__run_format {
    int type, bits, minimum, wide, group;
} skl__run_format;

static const skl__run_format skl__run_formats[] = {
    {SKL_TYPE_Q4_0, 4, 0, 0, 32}, {SKL_TYPE_Q4_1, 4, 1, 0, 32}, {SKL_TYPE_Q8_0, 8, 0, 0, 32}, {SKL_TYPE_Q4_K, 4, 1, 1, 32},
    {SKL_TYPE_Q5_K, 8, 1, 1, 32}, {SKL_TYPE_Q6_K, 8, 0, 1, 16}, {SKL_TYPE_MXFP4, 8, 0, 1, 32}
};

/* NULL if the type has no integer codes. */
static const skl__run_format *skl__run_format_of(int type)
{
    size_t i;

    for (i = 0; i < sizeof skl__run_formats / sizeof *skl__run_formats; i++)
        if (skl__run_formats[i].type == type) return &skl__run_formats[i];
    return NULL;
}

/* Eight bytes at once, each shifted right and masked. The shift and the bits of the mask are 8 at most together: what comes from
 * a neighbour is above the mask then, in any byte order. */
static uint64_t skl__eight(const unsigned char *bytes, unsigned shift, unsigned mask)
{
    uint64_t eight;

    memcpy(&eight, bytes, sizeof eight);
    return eight >> shift & mask * SKL__EACH_BYTE;
}

/* E2M1 values, doubled so that they are integers; the scale is halved instead. */
static void skl__run_mxfp4(skl__run *run, const unsigned char *block)
{
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    int i;

    for (i = 0; i < 16; i++) {
        run->codes[i] = (unsigned char)doubled[block[1 + i] & 15];
        run->codes[i + 16] = (unsigned char)doubled[block[1 + i] >> 4];
    }
    /* 2^(e - 128): a subnormal below e = 2, not a number at e = 255 */
    run->scale[0] = skl__f32_from_bits(block[0] < 2 ? 0x00200000u << block[0]
                                       : block[0] == 255 ? 0x7fc00000u : ((uint32_t)block[0] - 1u) << 23);
}

/* Six-bit scale and minimum of sub-block j of the K formats.        packed  [12] */
static void skl__k_scales(const unsigned char *packed, size_t j, unsigned *scale, unsigned *minimum)
{
    if (j < 4) {
        *scale = packed[j] & 63u;
        *minimum = packed[j + 4] & 63u;
    } else {
        *scale = (packed[j + 4] & 15u) | (unsigned)(packed[j - 4] >> 6) << 4;
        *minimum = (unsigned)(packed[j + 4] >> 4) | (unsigned)(packed[j] >> 6) << 4;
    }
}

/* Run j of a Q4_K or Q5_K block; high: the fifth bits [32], or NULL.        codes  [128] */
static void skl__run_k45(skl__run *run, const unsigned char *block, size_t j, const unsigned char *high,
                         const unsigned char *codes)
{
    const unsigned char *bytes = codes + j / 2 * 32;
    const unsigned nibble = (unsigned)j % 2 * 4;
    unsigned scale, minimum;
    uint64_t eight;
    size_t i;

    skl__k_scales(block + 4, j, &scale, &minimum);
    run->scale[0] = skl__f16_to_f32(skl__le16(block)) * (float)scale;
    run->minimum = -(skl__f16_to_f32(skl__le16(block + 2)) * (float)minimum);
    for (i = 0; i < (high ? 32u : 16u); i += 8) {
        eight = skl__eight(bytes + i, nibble, 15);
        eight |= (high ? skl__eight(high + i, (unsigned)j, 1) : skl__eight(bytes + 16 + i, nibble, 15)) << 4;
        memcpy(run->codes + i, &eight, sizeof eight);
    }
}

/* Run j of a Q6_K block: low nibbles [128], high pairs of bits [64], scales [16], f16. */
static void skl__run_q6_k(skl__run *run, const unsigned char *block, size_t j)
{
    const unsigned char *low = block + j / 4 * 64 + j % 2 * 32, *high = block + 128 + j / 4 * 32;
    const float scale = skl__f16_to_f32(skl__le16(block + 208));
    uint64_t eight;
    size_t i;

    for (i = 0; i < SKL__RUN; i += 8) {
        eight = skl__eight(low + i, (unsigned)j % 4 / 2 * 4, 15) | skl__eight(high + i, (unsigned)j % 4 * 2, 3) << 4;
        eight = ((eight | 128 * SKL__EACH_BYTE) - 32 * SKL__EACH_BYTE) ^ 128 * SKL__EACH_BYTE; /* each - 32, without a borrow */
        memcpy(run->codes + i, &eight, sizeof eight);
    }
    for (i = 0; i < 2; i++) run->scale[i] = scale * (float)(int8_t)block[192 + j * 2 + i];
}

/* Decodes run j of a block. */
static void skl__run_read(skl__run *run, int type, const unsigned char *block, size_t j)
{
    run->minimum = 0.0f;
    if (type == SKL_TYPE_Q6_K) {
        skl__run_q6_k(run, block, j);
        return;
    }
    switch (type) {
    case SKL_TYPE_Q4_0:
        memcpy(run->codes, block + 2, SKL__RUN / 2);
        run->scale[0] = skl__f16_to_f32(skl__le16(block));
        break;
    case SKL_TYPE_Q4_1:
        memcpy(run->codes, block + 4, SKL__RUN / 2);
        run->scale[0] = skl__f16_to_f32(skl__le16(block));
        run->minimum = skl__f16_to_f32(skl__le16(block + 2));
        break;
    case SKL_TYPE_Q8_0:
        memcpy(run->codes, block + 2, SKL__RUN);
        run->scale[0] = skl__f16_to_f32(skl__le16(block));
        break;
    case SKL_TYPE_Q4_K: skl__run_k45(run, block, j, NULL, block + 16); break;
    case SKL_TYPE_Q5_K: skl__run_k45(run, block, j, block + 16, block + 48); break;
    default: skl__run_mxfp4(run, block); break;
    }
    run->scale[1] = run->scale[0];
}

/* --- to and from floats --- */

/* The codes of a run as integers. */
static void skl__run_codes(int8_t codes[SKL__RUN], const skl__run *run, const skl__run_format *format)
{
    const int offset = format->minimum ? 0 : 8;
    int i;

    if (format->bits == 8) {
        memcpy(codes, run->codes, SKL__RUN);
        return;
    }
    for (i = 0; i < 16; i++) {
        codes[i] = (int8_t)((run->codes[i] & 15) - offset);
        codes[i + 16] = (int8_t)((run->codes[i] >> 4) - offset);
    }
}

/* One block of any readable type.        values  [skl_type_block(type)] */
static void skl__block_read(float *values, int type, const unsigned char *block)
{
    const skl__run_format *format = skl__run_format_of(type);
    const size_t n = skl_type_block(type);
    int8_t codes[SKL__RUN];
    skl__run run;
    size_t i, j;

    if (!format) {
        *values = type == SKL_TYPE_F32 ? skl__f32_from_bits(skl__le32(block))
                  : type == SKL_TYPE_F16 ? skl__f16_to_f32(skl__le16(block))
                  : type == SKL_TYPE_BF16 ? skl__bf16_to_f32(skl__le16(block)) : (float)(int8_t)block[0];
        return;
    }
    for (j = 0; j < n / SKL__RUN; j++) {
        skl__run_read(&run, type, block, j);
        skl__run_codes(codes, &run, format);
        for (i = 0; i < SKL__RUN; i++) {
            float *value = &values[j * SKL__RUN + i];
            *value = run.scale[i / 16] * (float)codes[i]; /* exact, so that a minimum rounds once */
            if (format->minimum) *value += run.minimum;   /* and zeros keep their sign without one */
        }
    }
}

static SKL__NOINLINE skl_status skl__dequantize(int type, const void *data, size_t n, float *values)
{
    const size_t block = skl_type_block(type), bytes = skl_type_bytes(type);
    size_t i;

    if (bytes == 0) return SKL_UNSUPPORTED;
    if (n % block || (n && (!data || !values))) return SKL_BAD_ARGUMENT;
    for (i = 0; i < n / block; i++) skl__block_read(values + i * block, type, (const unsigned char *)data + i * bytes);
    return SKL_OK;
}

SKL_API skl_status skl_dequantize(int type, const void *data, size_t n, float *values)
{
    const skl__fp_env env = skl__fp_begin();
    const skl_status status = skl__dequantize(type, data, n, values);

    skl__fp_end(env);
    return status;
}

/* The value of largest magnitude, the first of equals.        x  [n] */
static float skl__extreme(const float *x, size_t n)
{
    float extreme = x[0];
    size_t i;

    for (i = 1; i < n; i++)
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    return extreme;
}

static void skl__le16_write(unsigned char *p, uint16_t value)
{
    p[0] = (unsigned char)(value & 255);
    p[1] = (unsigned char)(value >> 8);
}

static void skl__le32_write(unsigned char *p, uint32_t value)
{
    skl__le16_write(p, (uint16_t)(value & 0xffffu));
    skl__le16_write(p + 2, (uint16_t)(value >> 16));
}

/* Symmetric scale and codes, as ggml's reference rows have them: 4 bits 0 .. 15 around 8, with the extreme value at code 0;
 * 8 bits rounded half away from zero. The scale is used before it is narrowed. */
static float skl__symmetric_scale(const float *x, size_t n, int bits)
{
    const float extreme = skl__extreme(x, n);

    return bits == 4 ? extreme / -8.0f : skl__div(fabsf(extreme), 127.0f);
}

static int8_t skl__symmetric_code(float scaled, int bits)
{
    int code;

    if (bits == 4) {
        code = (int)(scaled + 8.5f);
        return (int8_t)(code > 15 ? 15 : code);
    }
    code = (int)((double)fabsf(scaled) + 0.5);
    return (int8_t)(scaled < 0.0f ? -code : code);
}

/* 0 for a scale so small that its inverse is infinite: such values are zeros in every format. */
static float skl__inverse(float scale)
{
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;

    return skl__is_finite(inverse) ? inverse : 0.0f;
}

/*   codes, x  [SKL__RUN] */
static float skl__symmetric_codes(int8_t *codes, const float *x, int bits)
{
    const float scale = skl__symmetric_scale(x, SKL__RUN, bits), inverse = skl__inverse(scale);
    int i;

    for (i = 0; i < SKL__RUN; i++) codes[i] = skl__symmetric_code(x[i] * inverse, bits);
    return scale;
}

static float skl__affine_codes(int8_t *codes, const float *x, float *minimum)
{
    float low = x[0], high = x[0], scale, inverse;
    int i;

    for (i = 1; i < SKL__RUN; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    scale = skl__div(high - low, 15.0f);
    inverse = skl__inverse(scale);
    for (i = 0; i < SKL__RUN; i++) {
        const float scaled = (x[i] - low) * inverse; /* not a number if the range overflowed; the scale tells */
        codes[i] = (int8_t)(scaled < 15.0f ? (int)(scaled + 0.5f) : 15);
    }
    *minimum = low;
    return scale;
}

static void skl__nibbles_write(unsigned char *bytes, const int8_t *codes)
{
    int i;

    for (i = 0; i < 16; i++) bytes[i] = (unsigned char)(codes[i] | codes[i + 16] << 4);
}

/* Without an exit from the inner loop, whose length is known, so that compilers take vectors for it. */
static int skl__all_finite(const float *x, size_t n)
{
    size_t i = 0, k;

    for (; i + 64 <= n; i += 64) {
        int finite = 1;
        for (k = 0; k < 64; k++) finite &= skl__is_finite(x[i + k]);
        if (!finite) return 0;
    }
    for (; i < n; i++)
        if (!skl__is_finite(x[i])) return 0;
    return 1;
}

/* Block exponent floor(log2(max)) - 2, then the nearest code; the lowest wins a tie. */
static void skl__block_write_mxfp4(unsigned char *block, const float *x)
{
    skl__run grid;
    int8_t codes[SKL__RUN];
    int exponent = 0, i, code;

    frexpf(fabsf(skl__extreme(x, SKL__RUN)), &exponent);
    exponent += 124; /* frexp is floor(log2) + 1; less 2, because E2M1 reaches 4 to 6; plus the bias of E8M0, 127 */
    block[0] = (unsigned char)(skl__extreme(x, SKL__RUN) == 0.0f || exponent < 0 ? 0 : exponent > 254 ? 254 : exponent);
    for (i = 0; i < 16; i++) block[1 + i] = (unsigned char)i; /* the grid: every code once, in the low nibbles */
    skl__run_mxfp4(&grid, block);
    for (i = 0; i < SKL__RUN; i++) {
        float best = 0.0f;
        for (code = 0; code < 16; code++) {
            const float error = fabsf((float)(int8_t)grid.codes[code] * grid.scale[0] - x[i]);
            if (code && !(error < best)) continue;
            best = error;
            codes[i] = (int8_t)code;
        }
    }
    skl__nibbles_write(block + 1, codes);
}

/* One block of 32 values, or a single value.        Returns 0 if something is not finite or does not fit. */
static int skl__block_write(unsigned char *block, int type, const float *x)
{
    int8_t codes[SKL__RUN];
    float minimum = 0.0f, scale;

    if (!skl__all_finite(x, skl_type_block(type))) return 0;
    switch (type) {
    case SKL_TYPE_F32: skl__le32_write(block, skl__f32_to_bits(*x)); return 1;
    case SKL_TYPE_F16: skl__le16_write(block, skl__f32_to_f16(*x)); return skl__is_finite(skl__f16_to_f32(skl__le16(block)));
    case SKL_TYPE_BF16: skl__le16_write(block, skl__f32_to_bf16(*x)); return skl__is_finite(skl__bf16_to_f32(skl__le16(block)));
    case SKL_TYPE_MXFP4: skl__block_write_mxfp4(block, x); return 1;
    case SKL_TYPE_Q8_0:
        scale = skl__symmetric_codes(codes, x, 8);
        memcpy(block + 2, codes, SKL__RUN);
        break;
    case SKL_TYPE_Q4_1:
        scale = skl__affine_codes(codes, x, &minimum);
        skl__le16_write(block + 2, skl__f32_to_f16(minimum));
        skl__nibbles_write(block + 4, codes);
        break;
    default:
        scale = skl__symmetric_codes(codes, x, 4);
        skl__nibbles_write(block + 2, codes);
        break;
    }
    skl__le16_write(block, skl__f32_to_f16(scale));
    return skl__is_finite(skl__f16_to_f32(skl__f32_to_f16(scale))) && skl__is_finite(skl__f16_to_f32(skl__f32_to_f16(minimum)));
}

static SKL__NOINLINE skl_status skl__quantize(int type, const float *values, size_t n, void *out)
{
    const size_t block = skl_type_block(type), bytes = skl_type_bytes(type);
    size_t i;

    if (bytes == 0 || block > SKL__RUN || type == SKL_TYPE_I8) return SKL_UNSUPPORTED;
    if (n % block || (n && (!values || !out))) return SKL_BAD_ARGUMENT;
    for (i = 0; i < n / block; i++)
        if (!skl__block_write((unsigned char *)out + i * bytes, type, values + i * block)) return SKL_NOT_FINITE;
    return SKL_OK;
}

SKL_API skl_status skl_quantize(int type, const float *values, size_t n, void *out)
{
    const skl__fp_env env = skl__fp_begin();
    const skl_status status = skl__quantize(type, values, n, out);

    skl__fp_end(env);
    return status;
}

/* --- the packed layout --- */

static int skl__layout_valid(const skl_layout *layout)
{
    const uint64_t group = layout->group;

    if (!layout->rows || !layout->columns || layout->columns % SKL__RUN || layout->columns > INT32_MAX / (128 * 255)) return 0;
    if (layout->bits != 4 && layout->bits != 8) return 0;
    if (group == 16) return layout->bits == 8 && !layout->minimum;
    return (group == 32 || group == 64 || group == 128 || group == layout->columns) && layout->columns % group == 0;
}

SKL_API uint64_t skl_packed_tile_bytes(const skl_layout *layout)
{
    uint64_t lists;

    if (!layout || !skl__layout_valid(layout)) return 0;
    lists = layout->columns / layout->group * SKL__TILE * (layout->wide ? 4 : 2) * (layout->minimum ? 2 : 1);
    return (layout->columns * SKL__TILE * (uint64_t)layout->bits / 8 + lists + 63) / 64 * 64;
}

SKL_API uint64_t skl_packed_bytes(const skl_layout *layout)
{
    const uint64_t tile = skl_packed_tile_bytes(layout);
    uint64_t tiles, bytes;

    if (tile == 0 || !skl__add(layout->rows, SKL__TILE - 1, &tiles)) return 0;
    return skl__multiply(tiles / SKL__TILE, tile, &bytes) ? bytes : 0;
}

SKL_API skl_status skl_layout_of(skl_layout *layout, int type, uint64_t rows, uint64_t columns)
{
    const skl__run_format *format = skl__run_format_of(type);
    skl_layout made;

    if (!layout) return SKL_BAD_ARGUMENT;
    if (!format) return SKL_UNSUPPORTED;
    made.bits = format->bits;
    made.minimum = format->minimum;
    made.wide = format->wide;
    made.rows = rows;
    made.columns = columns;
    made.group = (uint64_t)format->group;
    if (columns % skl_type_block(type) || skl_packed_bytes(&made) == 0) return SKL_BAD_ARGUMENT;
    *layout = made;
    return SKL_OK;
}

/* The codes of one run into lane r of a tile: four bytes to a line.        codes  [4 * bits] bytes, see skl__run */
static void skl__run_write(unsigned char *tile, int bits, size_t run, size_t r, const unsigned char *codes)
{
    size_t c;

    for (c = 0; c < (size_t)bits; c++) memcpy(tile + (run * (size_t)bits + c) * 64 + r * 4, codes + 4 * c, 4);
}

/* Scale (list 0) or minimum (list 1) of a group and lane. */
static unsigned char *skl__scale_place(const skl_layout *layout, unsigned char *tile, size_t list, size_t group, size_t r)
{
    const size_t width = layout->wide ? 4 : 2, groups = (size_t)(layout->columns / layout->group);

    return tile + (size_t)layout->columns * 2 * (size_t)layout->bits + ((list * groups + group) * SKL__TILE + r) * width;
}

static void skl__scale_write(unsigned char *place, int wide, float value)
{
    if (wide) skl__le32_write(place, skl__f32_to_bits(value));
    else skl__le16_write(place, skl__f32_to_f16(value));
}

/* One row as the file has it into lane r of a zeroed tile. Returns 0 if a scale or minimum is not finite. */
static int skl__pack_row(const skl_layout *layout, int type, const unsigned char *row, unsigned char *tile, size_t r)
{
    const size_t runs = skl_type_block(type) / SKL__RUN, bytes = skl_type_bytes(type), count = (size_t)layout->columns / SKL__RUN;
    const size_t step = SKL__TILE * (layout->wide ? 4u : 2u); /* from one group to the next */
    unsigned char *scale = skl__scale_place(layout, tile, 0, 0, r);
    unsigned char *minimum = layout->minimum ? skl__scale_place(layout, tile, 1, 0, r) : NULL;
    size_t i, j;
    skl__run run;

    for (i = 0; i < count; row += bytes) {
        for (j = 0; j < runs; j++, i++) {
            skl__run_read(&run, type, row, j);
            if (!skl__is_finite(run.scale[0]) || !skl__is_finite(run.scale[1]) || !skl__is_finite(run.minimum)) return 0;
            skl__run_write(tile, layout->bits, i, r, run.codes);
            skl__scale_write(scale, layout->wide, run.scale[0]);
            scale += step;
            if (layout->group == 16) {
                skl__scale_write(scale, layout->wide, run.scale[1]);
                scale += step;
            }
            if (minimum) skl__scale_write(minimum + i * step, layout->wide, run.minimum);
        }
    }
    return 1;
}

/* One tile of rows as the file has them. Returns 0 if a scale is not finite.        tile  [skl_packed_tile_bytes] */
static int skl__pack_tile(const skl_layout *layout, int type, const unsigned char *rows, size_t index, unsigned char *tile)
{
    const size_t row_bytes = (size_t)layout->columns / skl_type_block(type) * skl_type_bytes(type);
    size_t r;

    memset(tile, 0, (size_t)skl_packed_tile_bytes(layout));
    for (r = 0; r < SKL__TILE && index * SKL__TILE + r < layout->rows; r++)
        if (!skl__pack_row(layout, type, rows + (index * SKL__TILE + r) * row_bytes, tile, r)) return 0;
    return 1;
}

static SKL__NOINLINE skl_status skl__pack(const skl_layout *layout, int type, const void *rows, void *out)
{
    const uint64_t tile_bytes = skl_packed_tile_bytes(layout);
    skl_layout exact;
    size_t i;

    if (!tile_bytes || !rows || !out || !skl__fits_size(skl_packed_bytes(layout))) return SKL_BAD_ARGUMENT;
    if (skl_layout_of(&exact, type, layout->rows, layout->columns)) return SKL_UNSUPPORTED;
    if (exact.bits != layout->bits || !exact.minimum != !layout->minimum || exact.group != layout->group ||
        (exact.wide && !layout->wide))
        return SKL_BAD_ARGUMENT;
    for (i = 0; i < skl_packed_bytes(layout) / tile_bytes; i++)
        if (!skl__pack_tile(layout, type, (const unsigned char *)rows, i, (unsigned char *)out + i * (size_t)tile_bytes))
            return SKL_NOT_FINITE;
    return SKL_OK;
}

SKL_API skl_status skl_pack(const skl_layout *layout, int type, const void *rows, void *out)
{
    const skl__fp_env env = skl__fp_begin();
    const skl_status status = skl__pack(layout, type, rows, out);

    skl__fp_end(env);
    return status;
}

/* One row into lane r of a zeroed tile. Returns 0 if a value or a scale is not finite.        x  [columns] */
static int skl__pack_values_row(const skl_layout *layout, const float *x, unsigned char *tile, size_t r)
{
    const size_t columns = (size_t)layout->columns, n = (size_t)layout->group;
    unsigned char bytes[SKL__RUN / 2];
    int8_t codes[SKL__RUN];
    float inverse = 0.0f;
    size_t k, i;

    if (!skl__all_finite(x, columns)) return 0;
    for (k = 0; k < columns; k += SKL__RUN) {
        for (i = 0; i < SKL__RUN; i++) {
            if ((k + i) % n == 0) {
                const float scale = skl__symmetric_scale(x + k + i, n, layout->bits);
                inverse = skl__inverse(scale);
                if (!skl__is_finite(layout->wide ? scale : skl__f16_to_f32(skl__f32_to_f16(scale)))) return 0;
                skl__scale_write(skl__scale_place(layout, tile, 0, (k + i) / n, r), layout->wide, scale);
            }
            codes[i] = skl__symmetric_code(x[k + i] * inverse, layout->bits);
        }
        if (layout->bits == 4) skl__nibbles_write(bytes, codes);
        skl__run_write(tile, layout->bits, k / SKL__RUN, r, layout->bits == 4 ? bytes : (const unsigned char *)codes);
    }
    return 1;
}

static SKL__NOINLINE skl_status skl__pack_values(const skl_layout *layout, const float *values, void *out)
{
    const uint64_t tile_bytes = skl_packed_tile_bytes(layout);
    size_t row;

    if (!tile_bytes || !values || !out || layout->minimum || !skl__fits_size(skl_packed_bytes(layout))) return SKL_BAD_ARGUMENT;
    memset(out, 0, (size_t)skl_packed_bytes(layout));
    for (row = 0; row < layout->rows; row++)
        if (!skl__pack_values_row(layout, values + row * (size_t)layout->columns,
                                  (unsigned char *)out + row / SKL__TILE * (size_t)tile_bytes, row % SKL__TILE))
            return SKL_NOT_FINITE;
    return SKL_OK;
}

SKL_API skl_status skl_pack_values(const skl_layout *layout, const float *values, void *out)
{
    const skl__fp_env env = skl__fp_begin();
    const skl_status status = skl__pack_values(layout, values, out);

    skl__fp_end(env);
    return status;
}

/* A packed matrix as kernels see it.        data  [skl_packed_bytes(layout)] */
static skl__matrix skl__matrix_of(const skl_layout *layout, const unsigned char *data)
{
    skl__matrix w;

    w.storage = layout->bits == 4 ? SKL__TILES_4 : SKL__TILES_8;
    w.rows = (size_t)layout->rows;
    w.columns = (size_t)layout->columns;
    w.group = (size_t)layout->group;
    w.stride = (size_t)skl_packed_tile_bytes(layout);
    w.wide = layout->wide;
    w.minimum = layout->minimum;
    w.data = data;
    return w;
}

/* =====================================================================================================================
 * >>scalar                                                                           Integer kernels, as they are defined
 *
 * The definition of every integer matmul in plain C: one output at a time, units in ascending columns, nothing clever. Every
 * other kernel must give the bits of these; they also run where there is no vector unit to speak of.
 * ================================================================================================================== */

/* A tile of 16 rows, cut into its parts:  codes  [columns][16] packed    scales, minima  [columns / group][16], f16 or f32 */
typedef struct skl__tile {
    const unsigned char *codes, *scales, *minima;
} skl__tile;

static size_t skl__tile_code_bytes(const skl__matrix *w)
{
    return w->storage == SKL__TILES_4 ? w->columns * 8 : w->columns * 16;
}

SKL__INLINE skl__tile skl__tile_at(const skl__matrix *w, size_t tile)
{
    skl__tile parts;
    parts.codes = w->data + tile * w->stride;
    parts.scales = parts.codes + skl__tile_code_bytes(w);
    parts.minima = parts.scales + w->columns / w->group * (w->wide ? 64u : 32u);
    return parts;
}

/* Columns over which the integer sums run before they meet a scale. */
SKL__INLINE size_t skl__matmul_unit(const skl__matrix *w, const skl__acts *x)
{
    return x->row || w->group < 32 ? w->group : 32;
}

SKL__INLINE float skl__scale_at(const skl__matrix *w, const unsigned char *scales, size_t group, size_t row)
{
    const size_t i = group * SKL__TILE + row;

    return w->wide ? skl__f32_from_bits(skl__le32(scales + i * 4)) : skl__f16_to_f32(skl__le16(scales + i * 2));
}

/* The integer that multiplies the scale; without a minimum the 16 codes of 4 bits stand for -8 .. 7. */
static int skl__code_at(const skl__matrix *w, const unsigned char *codes, size_t column, size_t row)
{
    const size_t quad = column / 4 * 64 + row * 4 + column % 4;
    const size_t in_run = column % 32;
    size_t at;
    int code;

    if (w->storage == SKL__TILES_8) return codes[quad] < 128 ? codes[quad] : codes[quad] - 256;
    at = column / 32 * 256 + in_run % 16 / 4 * 64 + row * 4 + column % 4;
    code = in_run < 16 ? codes[at] & 15 : codes[at] >> 4;
    return w->minimum ? code : code - 8;
}

static float skl__dot_scalar(const skl__matrix *w, const skl__tile *tile, size_t row, const skl__acts *x, size_t token)
{
    const size_t unit = skl__matmul_unit(w, x);
    const int8_t *codes = x->codes + token * x->stride;
    float acc = 0.0f, scale, minimum;
    int32_t isum, asum;
    size_t first, k;

    for (first = 0; first < w->columns; first += unit) {
        isum = 0;
        asum = 0;
        for (k = first; k < first + unit; k++) {
            isum += skl__code_at(w, tile->codes, k, row) * codes[k];
            asum += codes[k];
        }
        scale = skl__scale_at(w, tile->scales, first / w->group, row);
        minimum = w->minimum ? skl__scale_at(w, tile->minima, first / w->group, row) : 0.0f;
        if (!x->row) {
            scale *= x->scales[token * (x->columns / 32) + first / 32];
            minimum *= x->scales[token * (x->columns / 32) + first / 32];
        }
        acc = skl__fma(scale, (float)isum, acc);
        if (w->minimum) acc = skl__fma(minimum, (float)asum, acc);
    }
    return x->row ? acc * x->scales[token] : acc;
}

/* Serves q4_a8, q4_a4 and q8_a8 alike. */
static void skl__matmul_scalar(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin, size_t tile_end,
                               const skl__acts *x, size_t tokens)
{
    const size_t end = tile_end * 16 < w->rows ? tile_end * 16 : w->rows;
    size_t row, token;

    for (row = tile_begin * 16; row < end; row++) {
        const skl__tile tile = skl__tile_at(w, row / 16);
        for (token = 0; token < tokens; token++) y[token * y_stride + row] = skl__dot_scalar(w, &tile, row % 16, x, token);
    }
}

/* =====================================================================================================================
 * >>x86                                                                                        Integer kernels for x86
 *
 * One layout serves every vector width: a line of 64 bytes holds 4 columns of 16 rows, and 4 codes of one token,
 * broadcast, meet all of them in one dot step. Sums of integers are exact in any order, so the kernels are free in how
 * they walk a unit (the columns between two scales); the float chain per output is the one of >>scalar, and so are the
 * bits.
 *
 * Two ways through a matrix:
 *     stream   few tokens, memory-bound: up to four tiles, far apart, because a core reads several places at once faster
 *              than one. All codes of a tile come before its scales, in memory and here: integer sums wait in L1
 *     panel    many tokens, compute-bound: up to 1024 columns of a tile or two meet a strip of tokens, block by block.
 *              With 256 bits the codes are unpacked once into a buffer in L1; 512 bits have the registers, and some CPUs the
 *              ports, to do that on the way. Between two panels of a tile the accumulators rest in a buffer of their own:
 *              rows of y are often a multiple of 4 KB apart, and would share a few sets of L1. With AMX a block is 16 tokens,
 *              and its integer sums are products of tile registers, by way of memory
 *
 * Signs: vpdpbusd and vpmaddubsw multiply unsigned by signed bytes. Weights take the unsigned side with an offset (8
 * for 4 bits, 128 for 8 bits), and sums start at -offset * (sum of the activations), which is known beforehand and
 * costs nothing. Without VNNI, products meet in 16 bits:
 *     chain    codes of 4 bits: a pair is at most 2 * 15 * 127 = 3810, so 8 pairs (a run of 32 columns) make at most
 *              30480; with activations of 4 bits, 2 * 15 * 7 = 210, 128 pairs (512 columns) make at most 26880
 *     sign     codes of 8 bits: |w| * (x with the sign of w), a pair is at most 2 * 128 * 127 = 32512, widened at once
 * ================================================================================================================== */
#if SKL__X86_KERNELS

#if defined(__clang__)
#define SKL__UNROLL_4 _Pragma("unroll")
#define SKL__SINCE(clang, gcc) (__clang_major__ >= (clang))
#else
#define SKL__UNROLL_4 _Pragma("GCC unroll 4")
#define SKL__SINCE(clang, gcc) (__GNUC__ >= (gcc))
#endif

/* Levels that a compiler may lack; a test sets them to 0. */
#if !defined(SKL__HAS_AVXVNNI)
#define SKL__HAS_AVXVNNI SKL__SINCE(12, 11)
#endif
#if !defined(SKL__HAS_AVX512VNNI)
#define SKL__HAS_AVX512VNNI SKL__SINCE(6, 8)
#endif

#if !defined(SKL__HAS_AMX)
#if defined(__linux__) && defined(__x86_64__)
#define SKL__HAS_AMX (SKL__HAS_AVX512VNNI && SKL__SINCE(12, 11))
#else
#define SKL__HAS_AMX 0
#endif
#endif

/* Keeps sums of integers in the order they are written in. GCC would make a tree of a chain: all products first, and more of
 * them than there are registers. */
#define SKL__IN_ORDER(sum) __asm__("" : "+v"(sum))

#define SKL__AVX2 "avx2,fma,f16c"
#define SKL__AVXVNNI "avx2,fma,f16c,avxvnni"
#define SKL__AVX512 "avx2,fma,f16c,avx512f,avx512bw,avx512vl"
#define SKL__AVX512VNNI "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni"
#define SKL__AMX SKL__AVX512VNNI ",amx-tile,amx-int8"
#define SKL__BODY_256 SKL__INLINE SKL__TARGET(SKL__AVX2)
#define SKL__BODY_512 SKL__INLINE SKL__TARGET(SKL__AVX512)

#define SKL__PANEL_QUADS 256   /* a panel has up to 1024 columns */
#define SKL__PANEL_UNITS 32    /* and up to 32 units: 512 columns if a unit is 16 */
#define SKL__STRIP_TOKENS 96   /* tokens that meet one panel, at most */
#define SKL__STRIP_TILES 6     /* and tiles that meet one strip of tokens */
#define SKL__BLOCK_TOKENS 6    /* tokens in registers, at most */

/* Statements once per token t of a block, once per vector j of a line, or for all of both, with t and j as constants:
 * the arrays they index then live in registers, which with loops would be the compiler's choice. */
#define SKL__EACH_TOKEN(width, ...) \
    { enum { t = 0 }; __VA_ARGS__; } \
    { enum { t = 1 }; if (t < (width)) { __VA_ARGS__; } } \
    { enum { t = 2 }; if (t < (width)) { __VA_ARGS__; } } \
    { enum { t = 3 }; if (t < (width)) { __VA_ARGS__; } } \
    { enum { t = 4 }; if (t < (width)) { __VA_ARGS__; } } \
    { enum { t = 5 }; if (t < (width)) { __VA_ARGS__; } }
#define SKL__EACH_VECTOR(vectors, ...) \
    { enum { j = 0 }; __VA_ARGS__; } \
    { enum { j = 1 }; if (j < (vectors)) { __VA_ARGS__; } }
#define SKL__EACH_CELL(width, vectors, ...) SKL__EACH_TOKEN(width, SKL__EACH_VECTOR(vectors, __VA_ARGS__))

/* How integer sums are made. A dot step adds to each 32-bit lane the products of 4 codes of a row and of a token. */
typedef __m256i skl__dot_256(__m256i sum, __m256i w, __m256i x);
typedef __m512i skl__dot_512(__m512i sum, __m512i w, __m512i x);

/* What one matmul call shares. */
typedef struct skl__x86_job {
    float *y;                  /* [tokens][y_stride] */
    size_t y_stride;
    const skl__matrix *w;
    const skl__acts *x;
    size_t unit;               /* columns per unit */
    size_t panel;              /* columns per panel: whole units, or a part of one */
    int32_t offset;            /* what the codes as the dot step sees them exceed the true ones by */
    unsigned char flip;        /* xor on 8-bit codes: 128 makes them unsigned */
    unsigned char less;        /* taken off codes of 4 bits when they are unpacked */
} skl__x86_job;

/* A block of tokens against an unpacked panel. */
typedef struct skl__x86_block {
    const unsigned char *codes;                /* [quads][64], or, with 512 bits, as they are in memory */
    size_t far;                                /* bytes from there to the codes of the second tile */
    unsigned char flip;                        /* of the job */
    const float *scales, *minima;              /* [units][tiles][16] */
    const int8_t *x;                           /* [tokens][x_stride]: from the first column of the panel on */
    size_t x_stride, tokens;
    const int32_t *starts;                     /* [BLOCK_TOKENS][PANEL_UNITS]: -offset * sum of a unit's activations */
    const float *x_scales, *x_sums;            /* [BLOCK_TOKENS][PANEL_UNITS] */
    float *acc;                                /* [BLOCK_TOKENS][tiles][16]: what earlier panels made, and this one */
    size_t units, quads;                       /* quads per unit */
    size_t unit;                               /* columns per unit */
    int row, minimum;
    int first, last;                           /* first, last panel of the tiles */
    int split;                                 /* the only unit is longer than a panel: acc carries integers meanwhile */
} skl__x86_block;

typedef void skl__block_kernel(const skl__x86_block *block);

/* Activations of a token of a block; beyond the last one, those of that one again. */
SKL__INLINE const int8_t *skl__block_token(const skl__x86_block *b, size_t t)
{
    return b->x + (t < b->tokens ? t : b->tokens - 1) * b->x_stride;
}

#define SKL__STREAM_TILES 4                    /* tiles that are read at once, at most */
#define SKL__STREAM_TOKENS 4
#define SKL__STREAM_CELLS_512 8                /* tiles times tokens, at most, as registers allow */
#define SKL__STREAM_CELLS_256 4
#define SKL__STREAM_SUMS 512                   /* vectors of integer sums that wait in L1 for their scales */
#define SKL__STREAM_AHEAD 1536                 /* bytes from what is read to what is fetched */

/* A few tokens against tiles that lie apart. */
typedef struct skl__x86_stream {
    const skl__x86_job *job;
    size_t tokens;
    skl__tile tile[SKL__STREAM_TILES];
    float *y[SKL__STREAM_TILES];               /* first token, first row of the tile */
    size_t rows[SKL__STREAM_TILES];            /* of the matrix, from there on */
    const int8_t *x[SKL__STREAM_TOKENS];       /* [columns]; beyond the last token, that one again */
    const int32_t *sums[SKL__STREAM_TOKENS];   /* [columns / 32] */
    const float *x_scales[SKL__STREAM_TOKENS]; /* [columns / 32], or [1] */
} skl__x86_stream;

typedef void skl__stream_kernel(const skl__x86_stream *stream);

/* How the kernels of a level go through a matrix. */
typedef struct skl__x86_way {
    skl__block_kernel *block;
    size_t tiles, width;                       /* of a block: tiles of the panel, tokens */
    skl__stream_kernel *stream;
    size_t cells;                              /* of a stream: tiles times tokens */
    int32_t offset_8;                          /* added to codes of 8 bits for vpdpbusd, or 0: the kernel takes signs apart */
    int plain;                                 /* multiplies signed codes: there are no offsets, and nothing for sums to start at */
} skl__x86_way;

SKL__INLINE int skl__load_quad(const int8_t *x)
{
    int quad;
    memcpy(&quad, x, 4);
    return quad;
}

/* --- sums, scales and panels, for every width --- */

/* Sum of 16 codes: make them unsigned, add the bytes, take the offset back. */
SKL__BODY_256 int32_t skl__sum_16(const int8_t *x)
{
    const __m128i codes = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(const void *)x), _mm_set1_epi8(-128));
    const __m128i sums = _mm_sad_epu8(codes, _mm_setzero_si128());
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
}

/* Sum of the activations of the unit that begins at `column`:  codes  [columns]    sums  [columns / 32] */
SKL__BODY_256 int32_t skl__unit_sum(const int8_t *codes, const int32_t *sums, size_t column, size_t unit)
{
    int32_t sum;
    size_t i;

    if (unit == 16) return skl__sum_16(codes + column);
    sum = sums[column / 32];
    for (i = 1; i < unit / 32; i++) sum += sums[column / 32 + i];
    return sum;
}

SKL__BODY_256 __m256 skl__load_scales_256(const unsigned char *scales, int wide)
{
    if (wide) return _mm256_loadu_ps((const float *)(const void *)scales);
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)scales));
}

/* Codes of a column of a tile. */
SKL__INLINE size_t skl__column_bytes(const skl__matrix *w)
{
    return w->storage == SKL__TILES_4 ? 8 : 16;
}

/* Codes of one tile, `quads` lines from column `column` on, one byte each in ascending columns:  to  [quads][64] */
static SKL__TARGET(SKL__AVX2) void skl__unpack_codes(unsigned char *to, const skl__x86_job *job, const unsigned char *codes,
                                                     size_t column, size_t quads)
{
    const __m256i low = _mm256_set1_epi8(15), flip = _mm256_set1_epi8((char)job->flip), less = _mm256_set1_epi8((char)job->less);
    const unsigned char *from = codes + column * skl__column_bytes(job->w);
    size_t q, c, half;

    if (job->w->storage == SKL__TILES_8) {
        for (q = 0; q < quads; q++, from += 64, to += 64) {
            for (half = 0; half < 64; half += 32) {
                const __m256i line = _mm256_loadu_si256((const __m256i *)(const void *)(from + half));
                _mm256_store_si256((__m256i *)(void *)(to + half), _mm256_xor_si256(line, flip));
            }
        }
        return;
    }
    for (q = 0; q < quads; q += 8, from += 256, to += 8 * 64) {
        for (c = 0; c < 4; c++) {
            for (half = 0; half < 64; half += 32) {
                const __m256i line = _mm256_loadu_si256((const __m256i *)(const void *)(from + c * 64 + half));
                unsigned char *at = to + c * 64 + half;
                const __m256i high = _mm256_srli_epi16(line, 4);
                _mm256_store_si256((__m256i *)(void *)at, _mm256_sub_epi8(_mm256_and_si256(line, low), less));
                _mm256_store_si256((__m256i *)(void *)(at + 4 * 64), _mm256_sub_epi8(_mm256_and_si256(high, low), less));
            }
        }
    }
}

/* Scales (or minima) of `units` units of one tile, widened:  to  [units][step floats] */
static SKL__TARGET(SKL__AVX2) void skl__unpack_scales(float *to, size_t step, const skl__x86_job *job,
                                                      const unsigned char *scales, size_t column, size_t units)
{
    const size_t half = job->w->wide ? 32 : 16, share = job->w->group / job->unit;
    const unsigned char *from = scales + column / job->w->group * 2 * half;
    size_t left = share - column / job->unit % share, u;

    for (u = 0; u < units; u++, to += step) {
        _mm256_store_ps(to, skl__load_scales_256(from, job->w->wide));
        _mm256_store_ps(to + 8, skl__load_scales_256(from + half, job->w->wide));
        if (--left == 0) {
            left = share;
            from += 2 * half;
        }
    }
}

/* What a strip of tokens brings to a panel besides its codes, and what it takes from one panel to the next. */
typedef struct skl__x86_strip {
    float acc[SKL__STRIP_TILES * SKL__STRIP_TOKENS * 16];    /* [blocks of tiles][tokens][tiles][16] */
    int32_t starts[SKL__STRIP_TOKENS][SKL__PANEL_UNITS];
    float scales[SKL__STRIP_TOKENS][SKL__PANEL_UNITS];
    float sums[SKL__STRIP_TOKENS][SKL__PANEL_UNITS];
} skl__x86_strip;

static SKL__TARGET(SKL__AVX2) void skl__fill_strip(skl__x86_strip *strip, const skl__x86_job *job, size_t token,
                                                   size_t tokens, size_t column, size_t units)
{
    const skl__acts *x = job->x;
    const size_t runs = x->columns / 32;
    const __m256i offset = _mm256_set1_epi32(-job->offset);
    size_t t, u;

    for (t = 0; t < tokens; t++) {
        const float *scales = x->row ? NULL : x->scales + (token + t) * runs + column / 32;
        const int32_t *sums = x->sums + (token + t) * runs;
        const int8_t *codes = x->codes + (token + t) * x->stride;

        u = 0;
        for (; job->unit == 32 && !x->row && u + 8 <= units; u += 8) {    /* the common case, 8 units at once */
            const __m256i sum = _mm256_loadu_si256((const __m256i *)(const void *)(sums + column / 32 + u));
            _mm256_store_si256((__m256i *)(void *)&strip->starts[t][u], _mm256_mullo_epi32(sum, offset));
            _mm256_store_ps(&strip->scales[t][u], _mm256_loadu_ps(scales + u));
            if (job->w->minimum) _mm256_store_ps(&strip->sums[t][u], _mm256_cvtepi32_ps(sum));
        }
        for (; u < units; u++) {
            const int32_t sum = skl__unit_sum(codes, sums, column + u * job->unit, job->unit);
            strip->starts[t][u] = -job->offset * sum;
            if (!x->row) strip->scales[t][u] = scales[u * job->unit / 32];
            if (job->w->minimum) strip->sums[t][u] = (float)sum;
        }
    }
}

typedef struct skl__x86_panel {
    unsigned char codes[SKL__PANEL_QUADS * 64];        /* [quads][64]; unused with 512 bits */
    float scales[SKL__PANEL_UNITS * 2 * 16];           /* [units][tiles][16] */
    float minima[SKL__PANEL_UNITS * 2 * 16];
} skl__x86_panel;

/* The scales of one tile of a panel of `tiles`. */
static void skl__fill_scales(skl__x86_panel *panel, const skl__x86_job *job, const skl__tile *tile, size_t tiles, size_t j,
                             size_t column, size_t units)
{
    skl__unpack_scales(panel->scales + j * 16, tiles * 16, job, tile->scales, column, units);
    if (job->w->minimum) skl__unpack_scales(panel->minima + j * 16, tiles * 16, job, tile->minima, column, units);
}

/* Readies one tile, or two; where there is no second one, the first takes its place and the outputs go nowhere. */
static void skl__fill_panel(skl__x86_panel *panel, skl__x86_block *block, const skl__x86_job *job, size_t tile, size_t tiles,
                            size_t tiles_max, size_t column, size_t quads)
{
    const skl__tile first = skl__tile_at(job->w, tile), second = skl__tile_at(job->w, tile + tiles - 1);

    skl__fill_scales(panel, job, &first, tiles_max, 0, column, block->units);
    if (tiles_max == 1) {
        skl__unpack_codes(panel->codes, job, first.codes, column, quads);
        block->codes = panel->codes;
    } else {
        skl__fill_scales(panel, job, &second, tiles_max, 1, column, block->units);
        block->codes = first.codes + column * skl__column_bytes(job->w);
        block->far = (size_t)(second.codes - first.codes);
    }
}

/* The finished outputs of a block, as far as there are tiles and rows:  acc  [tokens][stride] */
static SKL__TARGET(SKL__AVX2) void skl__store_block(const skl__x86_job *job, const float *acc, size_t stride, size_t token,
                                                    size_t tokens, size_t tile, size_t tiles)
{
    const size_t left = job->w->rows - tile * 16, rows = left < tiles * 16 ? left : tiles * 16;
    size_t t, i;

    for (t = token; t < token + tokens; t++, acc += stride) {
        float *y = job->y + t * job->y_stride + tile * 16;
        const float scale = job->x->row ? job->x->scales[t] : 1.0f;
        for (i = 0; i + 8 <= rows; i += 8) {
            _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_load_ps(acc + i), _mm256_set1_ps(scale)));
        }
        for (; i < rows; i++) y[i] = acc[i] * scale;
    }
}

/* Asks for `count` pieces of `bytes`, `stride` bytes apart. Inline, as all that only asks for memory must be: to GCC it is a
 * function without effect, and it drops the calls. */
SKL__INLINE void skl__fetch(const void *from, size_t bytes, size_t count, size_t stride)
{
    const char *at = (const char *)from;
    size_t i;

    for (; count > 0; count--, at += stride) {
        for (i = 0; i < bytes; i += 64) _mm_prefetch(at + i, _MM_HINT_T0);
    }
}

/* Asks for the scales of the panel that comes next; returns where its codes are. */
static const unsigned char *skl__fetch_scales(const skl__x86_job *job, size_t tile, size_t column, size_t columns, size_t tiles)
{
    const skl__matrix *w = job->w;
    const skl__tile next = skl__tile_at(w, tile);
    const size_t list = w->wide ? 64 : 32, at = column / w->group * list, bytes = (columns + w->group - 1) / w->group * list;

    skl__fetch(next.scales + at, bytes, tiles, w->stride);
    if (w->minimum) skl__fetch(next.minima + at, bytes, tiles, w->stride);
    return next.codes + column * skl__column_bytes(w);
}

/* Tiles against one strip of tokens, panel by panel; if that is more than one, no more than STRIP_TILES. */
static void skl__matmul_strip(const skl__x86_job *job, size_t tile_begin, size_t tile_end, size_t token, size_t tokens,
                              const skl__x86_way *way)
{
    __attribute__((aligned(64))) skl__x86_panel panel;
    __attribute__((aligned(64))) skl__x86_strip strip;
    const skl__matrix *w = job->w;
    const size_t tiles_max = way->tiles, width = way->width;
    const size_t code_bytes = skl__column_bytes(w), blocks = (tokens + width - 1) / width;
    size_t column, columns, tile, tiles, t, burst;
    const unsigned char *ahead;
    skl__x86_block block;

    block.flip = job->flip;
    block.scales = panel.scales;
    block.minima = panel.minima;
    block.row = job->x->row;
    block.unit = job->unit;
    block.x_stride = job->x->stride;
    block.minimum = w->minimum;
    block.split = job->unit > job->panel;
    for (column = 0; column < w->columns; column += columns) {
        columns = w->columns - column < job->panel ? w->columns - column : job->panel;
        block.first = column == 0;
        block.last = column + columns == w->columns;
        block.units = block.split ? 1 : columns / job->unit;
        block.quads = columns / 4 / block.units;
        burst = (columns * code_bytes / blocks + 63) / 64 * 64;
        if ((!way->plain || !block.row || block.minimum) && (!block.split || block.first || block.last)) {
            skl__fill_strip(&strip, job, token, tokens, block.split ? 0 : column, block.units);
        }
        for (tile = tile_begin; tile < tile_end; tile += tiles) {
            tiles = tile_end - tile < tiles_max ? tile_end - tile : tiles_max;
            block.acc = strip.acc + (block.first && block.last ? 0 : tile - tile_begin) * SKL__STRIP_TOKENS * 16;
            skl__fill_panel(&panel, &block, job, tile, tiles, tiles_max, column, columns / 4);
            ahead = skl__fetch_scales(job, tile + tiles < tile_end ? tile + tiles : block.last ? tile_end : tile_begin,
                                      tile + tiles < tile_end ? column : block.last ? 0 : column + columns, columns, tiles);
            for (t = 0; t < tokens; t += width, block.acc += width * tiles_max * 16, ahead += burst) {
                const size_t n = tokens - t < width ? tokens - t : width;
                block.x = job->x->codes + (token + t) * job->x->stride + column;
                block.tokens = n;
                block.starts = strip.starts[t];
                block.x_scales = strip.scales[t];
                block.x_sums = strip.sums[t];
                skl__fetch(ahead, burst, tiles, w->stride);
                way->block(&block);
                if (block.last) skl__store_block(job, block.acc, tiles_max * 16, token + t, n, tile, tiles);
            }
        }
    }
}

/* Asks for what a stream reads next, some lines ahead. */
SKL__INLINE void skl__stream_fetch(const unsigned char *from, size_t bytes)
{
    size_t i;
    SKL__UNROLL for (i = 0; i < bytes; i += 64) _mm_prefetch((const char *)from + SKL__STREAM_AHEAD + i, _MM_HINT_T0);
}

static void skl__stream_tokens(skl__x86_stream *s, const skl__acts *acts, size_t token, size_t tokens)
{
    const size_t runs = acts->columns / 32;
    size_t t;

    s->tokens = tokens;
    for (t = 0; t < SKL__STREAM_TOKENS; t++) {
        const size_t at = token + (t < tokens ? t : tokens - 1);
        s->x[t] = acts->codes + at * acts->stride;
        s->sums[t] = acts->sums + at * runs;
        s->x_scales[t] = acts->scales + at * (acts->row ? 1 : runs);
    }
}

/* All tiles against a few tokens: a quarter of the tiles (or half of them) apart, so that memory is read in several places at
 * once. Where the tiles do not come out even, the last one is done again. */
static void skl__matmul_stream(const skl__x86_job *job, size_t tile_begin, size_t tile_end, size_t token, size_t tokens,
                               const skl__x86_way *way)
{
    const skl__matrix *w = job->w;
    const size_t fit = way->cells / (tokens < 3 ? tokens : 4), tiles = fit < SKL__STREAM_TILES ? fit : SKL__STREAM_TILES;
    const size_t far = (tile_end - tile_begin + tiles - 1) / tiles;
    size_t i, j;
    skl__x86_stream s;

    s.job = job;
    skl__stream_tokens(&s, job->x, token, tokens);
    for (i = 0; i < far; i++) {
        for (j = 0; j < SKL__STREAM_TILES; j++) {
            const size_t tile = tile_begin + i + j * far < tile_end ? tile_begin + i + j * far : tile_end - 1;
            s.tile[j] = skl__tile_at(w, tile);
            s.y[j] = job->y + token * job->y_stride + tile * 16;
            s.rows[j] = w->rows - tile * 16;
        }
        way->stream(&s);
    }
}

/* One matmul: strips of many tokens through panels, few tokens as streams. */
static void skl__matmul_x86(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin, size_t tile_end,
                            const skl__acts *x, size_t tokens, const skl__x86_way *way)
{
    const size_t last = (w->rows + 15) / 16, most = SKL__STRIP_TOKENS / way->width * way->width;
    size_t token = 0, tile, tiles, n;
    skl__x86_job job;

    job.y = y;
    job.y_stride = y_stride;
    job.w = w;
    job.x = x;
    job.unit = skl__matmul_unit(w, x);
    job.panel = job.unit == 16 ? SKL__PANEL_UNITS * 16 : SKL__PANEL_QUADS * 4;
    if (job.unit < job.panel) job.panel -= job.panel % job.unit;
    job.flip = (unsigned char)way->offset_8;
    job.offset = w->storage == SKL__TILES_8 ? way->offset_8 : w->minimum ? 0 : 8;
    job.less = 0;
    if (way->plain) {
        job.less = (unsigned char)job.offset;
        job.offset = 0;
    }
    if (tile_end > last) tile_end = last;
    while (token < tokens) {
        n = tokens - token;
        if (n > 4) {
            n = n < most ? n : most;
            for (tile = tile_begin; tile < tile_end; tile += tiles) {
                tiles = tile_end - tile;
                if (w->columns > job.panel && tiles > SKL__STRIP_TILES) tiles = SKL__STRIP_TILES;
                skl__matmul_strip(&job, tile, tile + tiles, token, n, way);
            }
        } else {
            skl__matmul_stream(&job, tile_begin, tile_end, token, n, way);
        }
        token += n;
    }
}

/* --- 256 bits --- */

#if SKL__HAS_AVXVNNI
SKL__INLINE SKL__TARGET(SKL__AVXVNNI) __m256i skl__dot_vnni_256(__m256i sum, __m256i w, __m256i x)
{
    return _mm256_dpbusd_avx_epi32(sum, w, x);
}
#endif

SKL__BODY_256 __m256i skl__dot_sign_256(__m256i sum, __m256i w, __m256i x)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i signed_x = _mm256_sign_epi8(x, w);
    const __m256i pair = _mm256_maddubs_epi16(_mm256_abs_epi8(w), signed_x);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pair, ones));
    SKL__IN_ORDER(sum);
    return sum;
}

SKL__BODY_256 __m256i skl__load_line_256(const unsigned char *codes)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)codes);
}

SKL__BODY_256 __m256i skl__broadcast_256(const int8_t *x)
{
    return _mm256_set1_epi32(skl__load_quad(x));
}

/* Products of a quad, added in pairs to sums of 16 bits; and such sums, added in pairs to sums of 32 bits. */
SKL__BODY_256 __m256i skl__pairs_256(__m256i pair, __m256i w, __m256i x)
{
    pair = _mm256_add_epi16(pair, _mm256_maddubs_epi16(w, x));
    SKL__IN_ORDER(pair);
    return pair;
}

SKL__BODY_256 __m256i skl__widen_256(__m256i sum, __m256i pair)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pair, _mm256_set1_epi16(1)));
}

SKL__BODY_256 __m256 skl__to_float_256(__m256i sum)
{
    return _mm256_cvtepi32_ps(sum);
}

SKL__BODY_256 __m256i skl__row_mask_256(size_t rows, size_t row)
{
    const int count = rows > row ? (int)(rows - row) : 0;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* Rows [row, row + 8) of one token's outputs, as far as the matrix has them:  y  [rows] */
SKL__BODY_256 void skl__store_rows_256(float *y, size_t rows, size_t row, __m256 value)
{
    if (rows < row + 8) _mm256_maskstore_ps(y + row, skl__row_mask_256(rows, row), value);
    else _mm256_storeu_ps(y + row, value);
}

/* acc + (scale_w * scale_x) * value, where a scale per token waits for the end of the row. */
SKL__BODY_256 __m256 skl__scale_add_256(__m256 acc, __m256 scale, const float *x_scale, __m256 value, int row)
{
    return _mm256_fmadd_ps(row ? scale : _mm256_mul_ps(scale, _mm256_set1_ps(*x_scale)), value, acc);
}

SKL__BODY_256 void skl__scale_into_256(float *acc, __m256 scale, const float *x_scale, __m256 value, int row)
{
    _mm256_store_ps(acc, skl__scale_add_256(_mm256_load_ps(acc), scale, x_scale, value, row));
}

/* The integers that an accumulator carries from panel to panel of a split unit; it is 0 again afterwards. */
SKL__BODY_256 __m256i skl__take_sum_256(float *acc)
{
    const __m256i sum = _mm256_castps_si256(_mm256_load_ps(acc));
    _mm256_store_ps(acc, _mm256_setzero_ps());
    return sum;
}

/* One unit of a block by dot steps, `turn` quads between two tests for the end:
 *     isum  [width][vectors]    codes  [quads][64]    x  [width][columns of the unit] */
SKL__BODY_256 void skl__unit_dot_256(__m256i (*isum)[2], const unsigned char *codes, size_t quads, const int8_t *const *x,
                                     size_t k, const int turn, const int width, const int vectors, skl__dot_256 *dot)
{
    const unsigned char *end = codes + quads * 64;
    __m256i line[2];
    int i;

    do {
        SKL__UNROLL
        for (i = 0; i < turn; i++, codes += 64, k += 4) {
            SKL__EACH_VECTOR(vectors, line[j] = skl__load_line_256(codes + j * 32))
            SKL__EACH_CELL(width, vectors, isum[t][j] = dot(isum[t][j], line[j], skl__broadcast_256(x[t] + k)))
        }
    } while (codes < end);
}

/* The same in 16 bits, up to `chain` quads at a time; units are whole runs of 8 quads. */
SKL__BODY_256 void skl__unit_chain_256(__m256i (*isum)[2], const unsigned char *codes, size_t quads, const int8_t *const *x,
                                       size_t k, const int width, const int vectors, const size_t chain)
{
    const unsigned char *end = codes + quads * 64, *stop;
    __m256i pair[SKL__BLOCK_TOKENS][2], line[2];
    int i;

    do {
        stop = chain == 8 || chain < (size_t)(end - codes) / 64 ? codes + chain * 64 : end;
        SKL__EACH_CELL(width, vectors, pair[t][j] = _mm256_setzero_si256())
        do {
            SKL__UNROLL
            for (i = 0; i < 8; i++, codes += 64, k += 4) {
                SKL__EACH_VECTOR(vectors, line[j] = skl__load_line_256(codes + j * 32))
                SKL__EACH_CELL(width, vectors, const __m256i quad = skl__broadcast_256(x[t] + k);
                               pair[t][j] = skl__pairs_256(pair[t][j], line[j], quad))
            }
        } while (codes < stop);
        SKL__EACH_CELL(width, vectors, isum[t][j] = skl__widen_256(isum[t][j], pair[t][j]))
    } while (codes < end);
}

/* Body of the block kernels: `width` tokens x the two halves of one tile. 16 registers do not hold two kinds of sums:
 * the float accumulators are in memory, touched once per unit. With 6 x 2, 12 integer sums, 2 lines and a broadcast
 * take 15 registers; chains and signs also need some for products and take 4 x 2.
 *     unit     16 or 32 columns, so that there is no loop over them; 0 if there is one activation scale per token
 *     chain    quads whose products add up in 16 bits before they are widened; 0 where dot makes the sums */
SKL__BODY_256 void skl__block_256(const skl__x86_block *b, const int bits, const int width, const int vectors,
                                  const size_t unit, skl__dot_256 *dot, const size_t chain)
{
    const unsigned char *codes = b->codes;
    const float *scales = b->scales, *minima = b->minima, *x_scales = b->x_scales, *x_sums = b->x_sums;
    const int32_t *starts = b->starts;
    const int row = !unit;
    const size_t quads = unit ? unit / 4 : b->quads;
    const int turn = bits == 4 || unit == 32 ? 8 : 4;
    const int8_t *x[SKL__BLOCK_TOKENS];
    float *acc = b->acc;
    __m256i isum[SKL__BLOCK_TOKENS][2];
    __m256 scale[2];
    size_t u, k = 0;

    SKL__EACH_TOKEN(width, x[t] = skl__block_token(b, t))
    if (b->first) {
        SKL__EACH_CELL(width, vectors, _mm256_store_ps(acc + (t * vectors + j) * 8, _mm256_setzero_ps()))
    }
    for (u = 0; u < b->units; u++) {
        SKL__EACH_CELL(width, vectors, isum[t][j] = _mm256_set1_epi32(starts[t * SKL__PANEL_UNITS + u]))
        if (row && b->split && !b->first) {
            SKL__EACH_CELL(width, vectors, isum[t][j] = skl__take_sum_256(acc + (t * vectors + j) * 8))
        }
        if (chain) skl__unit_chain_256(isum, codes, quads, x, k, width, vectors, chain);
        else skl__unit_dot_256(isum, codes, quads, x, k, turn, width, vectors, dot);
        codes += quads * 64;
        k += quads * 4;
        if (row && b->split && !b->last) {
            SKL__EACH_CELL(width, vectors, _mm256_store_ps(acc + (t * vectors + j) * 8, _mm256_castsi256_ps(isum[t][j])))
            break;
        }
        SKL__EACH_VECTOR(vectors, scale[j] = _mm256_load_ps(scales + 8 * j))
        SKL__EACH_CELL(width, vectors, skl__scale_into_256(
            acc + (t * vectors + j) * 8, scale[j], x_scales + t * SKL__PANEL_UNITS + u, skl__to_float_256(isum[t][j]), row))
        if (b->minimum) {
            SKL__EACH_VECTOR(vectors, scale[j] = _mm256_load_ps(minima + 8 * j))
            SKL__EACH_CELL(width, vectors, skl__scale_into_256(
                acc + (t * vectors + j) * 8, scale[j], x_scales + t * SKL__PANEL_UNITS + u,
                _mm256_set1_ps(x_sums[t * SKL__PANEL_UNITS + u]), row))
        }
        scales += 16;
        minima += 16;
    }
}

/* What inner loops must not ask for becomes a constant here. */
SKL__BODY_256 void skl__block_each_256(const skl__x86_block *b, const int bits, const int width, skl__dot_256 *dot,
                                       const size_t chain)
{
    if (b->row) skl__block_256(b, bits, width, 2, 0, dot, chain);
    else if (bits == 4 || b->quads == 8) skl__block_256(b, bits, width, 2, 32, dot, chain);
    else skl__block_256(b, bits, width, 2, 16, dot, chain);
}

/* A run of 32 columns of 4-bit codes of a stream, added to isum.        isum  [width][tiles][2 halves of a tile] */
SKL__BODY_256 void skl__stream_run_256(__m256i *isum, const skl__x86_stream *s, size_t k, const int width, const int tiles,
                                       skl__dot_256 *dot, const int chain)
{
    const __m256i mask = _mm256_set1_epi8(15);
    __m256i pair[2 * SKL__STREAM_CELLS_256];
    size_t c;
    int j, t;

    if (chain) SKL__UNROLL for (j = 0; j < 2 * width * tiles; j++) pair[j] = _mm256_setzero_si256();
    SKL__UNROLL for (c = 0; c < 4; c++) {
        SKL__UNROLL for (j = 0; j < 2 * tiles; j++) {
            const __m256i line = skl__load_line_256(s->tile[j / 2].codes + k * 8 + 64 * c + 32 * (size_t)(j % 2));
            const __m256i low = _mm256_and_si256(line, mask), high = _mm256_and_si256(_mm256_srli_epi16(line, 4), mask);
            SKL__UNROLL for (t = 0; t < width; t++) {
                const __m256i x_low = skl__broadcast_256(s->x[t] + k + 4 * c);
                const __m256i x_high = skl__broadcast_256(s->x[t] + k + 4 * c + 16);
                const int cell = t * 2 * tiles + j;
                if (chain) pair[cell] = skl__pairs_256(skl__pairs_256(pair[cell], low, x_low), high, x_high);
                else isum[cell] = dot(dot(isum[cell], low, x_low), high, x_high);
            }
        }
    }
    if (chain) SKL__UNROLL for (j = 0; j < 2 * width * tiles; j++) isum[j] = skl__widen_256(isum[j], pair[j]);
}

/* 4 columns of 8-bit codes. */
SKL__BODY_256 void skl__stream_quad_256(__m256i *isum, const skl__x86_stream *s, size_t k, const int width, const int tiles,
                                        skl__dot_256 *dot)
{
    const __m256i flip = _mm256_set1_epi8((char)s->job->flip);
    int j, t;

    SKL__UNROLL for (j = 0; j < 2 * tiles; j++) {
        const __m256i line = _mm256_xor_si256(skl__load_line_256(s->tile[j / 2].codes + k * 16 + 32 * (size_t)(j % 2)), flip);
        SKL__UNROLL for (t = 0; t < width; t++) {
            isum[t * 2 * tiles + j] = dot(isum[t * 2 * tiles + j], line, skl__broadcast_256(s->x[t] + k));
        }
    }
}

/* First phase: integer sums of units.        isums  [units][width][tiles][2] */
SKL__BODY_256 void skl__stream_sums_256(__m256i *isums, const skl__x86_stream *s, size_t column, size_t units, const int bits,
                                        const int width, const int tiles, skl__dot_256 *dot, const int chain)
{
    const size_t unit = s->job->unit, step = bits == 4 ? 32 : 4, line = bits == 4 ? 8 : 16;
    __m256i isum[2 * SKL__STREAM_CELLS_256];
    size_t u, k, end;
    int j, t;

    for (u = 0, k = column; u < units; u++, isums += 2 * width * tiles) {
        SKL__UNROLL for (t = 0; t < width; t++) {
            const __m256i start = _mm256_set1_epi32(-s->job->offset * skl__unit_sum(s->x[t], s->sums[t], k, unit));
            SKL__UNROLL for (j = 0; j < 2 * tiles; j++) isum[t * 2 * tiles + j] = start;
        }
        for (end = k + unit; k < end; k += step) {
            SKL__UNROLL for (j = 0; j < tiles; j++) skl__stream_fetch(s->tile[j].codes + k * line, step * line);
            if (bits == 4) skl__stream_run_256(isum, s, k, width, tiles, dot, chain);
            else skl__stream_quad_256(isum, s, k, width, tiles, dot);
        }
        SKL__UNROLL for (j = 0; j < 2 * width * tiles; j++) isums[j] = isum[j];
    }
}

/* Second phase: the sums meet their scales. The flags are those of the matrix and the activations.        acc  [width][tiles][2] */
SKL__BODY_256 void skl__stream_scales_256(__m256 *acc, const __m256i *isum, const skl__x86_stream *s, size_t column, size_t units,
                                          const int width, const int tiles, const int wide, const int minimum, const int row)
{
    const size_t unit = s->job->unit, units_per_group = s->job->w->group / unit, half = wide ? 32 : 16;
    size_t u, k, at = column / s->job->w->group * 2 * half, left = units_per_group - column % s->job->w->group / unit;
    int j, t;

    for (u = 0, k = column; u < units; u++, k += unit, isum += 2 * width * tiles) {
        SKL__UNROLL for (j = 0; j < 2 * tiles; j++) {
            const unsigned char *from = s->tile[j / 2].scales + at + (size_t)(j % 2) * half;
            const __m256 scale = skl__load_scales_256(from, wide);
            if (j % 2 == 0) skl__stream_fetch(from, 64);
            SKL__UNROLL for (t = 0; t < width; t++) {
                const int cell = t * 2 * tiles + j;
                const float *x_scale = s->x_scales[t] + (row ? 0 : k / 32);
                acc[cell] = skl__scale_add_256(acc[cell], scale, x_scale, skl__to_float_256(isum[cell]), row);
                if (minimum) {
                    const __m256 least = skl__load_scales_256(s->tile[j / 2].minima + at + (size_t)(j % 2) * half, wide);
                    const __m256 sum = _mm256_set1_ps((float)skl__unit_sum(s->x[t], s->sums[t], k, unit));
                    acc[cell] = skl__scale_add_256(acc[cell], least, x_scale, sum, row);
                }
            }
        }
        if (--left == 0) {
            left = units_per_group;
            at += 2 * half;
        }
    }
}

/* Body of the stream kernels: up to `tiles` tiles x up to `width` tokens.        bits  4 or 8    chain  products of a run add
 * up in 16 bits */
SKL__BODY_256 void skl__stream_256(const skl__x86_stream *s, const int bits, const int width, const int tiles, skl__dot_256 *dot,
                                   const int chain)
{
    const skl__x86_job *job = s->job;
    const skl__matrix *w = job->w;
    const size_t units_all = w->columns / job->unit, units_most = (size_t)(SKL__STREAM_SUMS / (width * tiles));
    __m256i isum[2 * SKL__STREAM_SUMS];
    __m256 acc[2 * SKL__STREAM_CELLS_256];
    size_t first, units;
    int j, t;

    SKL__UNROLL for (j = 0; j < 2 * width * tiles; j++) acc[j] = _mm256_setzero_ps();
    for (first = 0; first < units_all; first += units) {
        units = units_all - first < units_most ? units_all - first : units_most;
        skl__stream_sums_256(isum, s, first * job->unit, units, bits, width, tiles, dot, chain);
        if (!w->wide && !w->minimum && !job->x->row) {
            skl__stream_scales_256(acc, isum, s, first * job->unit, units, width, tiles, 0, 0, 0);
        } else {
            skl__stream_scales_256(acc, isum, s, first * job->unit, units, width, tiles, w->wide, w->minimum, job->x->row);
        }
    }
    SKL__UNROLL for (t = 0; t < width; t++) {
        SKL__UNROLL for (j = 0; j < 2 * tiles; j++) {
            __m256 y = acc[t * 2 * tiles + j];
            if (job->x->row) y = _mm256_mul_ps(y, _mm256_set1_ps(s->x_scales[t][0]));
            if ((size_t)t < s->tokens) {
                skl__store_rows_256(s->y[j / 2] + (size_t)t * job->y_stride, s->rows[j / 2], 8 * (size_t)(j % 2), y);
            }
        }
    }
}

SKL__BODY_256 void skl__stream_each_256(const skl__x86_stream *s, const int bits, skl__dot_256 *dot, const int chain)
{
    if (s->tokens == 1) skl__stream_256(s, bits, 1, 4, dot, chain);
    else if (s->tokens == 2) skl__stream_256(s, bits, 2, 2, dot, chain);
    else skl__stream_256(s, bits, 4, 1, dot, chain);
}

static SKL__TARGET(SKL__AVX2) void skl__block_q4_a8_avx2(const skl__x86_block *b)
{
    skl__block_each_256(b, 4, 4, skl__dot_sign_256, 8);
}

static SKL__TARGET(SKL__AVX2) void skl__stream_q4_a8_avx2(const skl__x86_stream *s)
{
    skl__stream_each_256(s, 4, skl__dot_sign_256, 1);
}

static SKL__TARGET(SKL__AVX2) void skl__block_q4_a4_avx2(const skl__x86_block *b)
{
    skl__block_each_256(b, 4, 4, skl__dot_sign_256, 128);
}

static SKL__TARGET(SKL__AVX2) void skl__block_q8_a8_avx2(const skl__x86_block *b)
{
    skl__block_each_256(b, 8, 4, skl__dot_sign_256, 0);
}

static SKL__TARGET(SKL__AVX2) void skl__stream_q8_a8_avx2(const skl__x86_stream *s)
{
    skl__stream_each_256(s, 8, skl__dot_sign_256, 0);
}

static void skl__matmul_q4_a8_avx2(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin, size_t tile_end,
                                   const skl__acts *x, size_t tokens)
{
    static const skl__x86_way way = {skl__block_q4_a8_avx2, 1, 4, skl__stream_q4_a8_avx2, SKL__STREAM_CELLS_256, 0, 0};
    skl__matmul_x86(y, y_stride, w, tile_begin, tile_end, x, tokens, &way);
}

static void skl__matmul_q4_a4_avx2(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin, size_t tile_end,
                                   const skl__acts *x, size_t tokens)
{
    static const skl__x86_way way = {skl__block_q4_a4_avx2, 1, 4, skl__stream_q4_a8_avx2, SKL__STREAM_CELLS_256, 0, 0};
    skl__matmul_x86(y, y_stride, w, tile_begin, tile_end, x, tokens, &way);
}

static void skl__matmul_q8_a8_avx2(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin, size_t tile_end,
                                   const skl__acts *x, size_t tokens)
{
    static const skl__x86_way way = {skl__block_q8_a8_avx2, 1, 4, skl__stream_q8_a8_avx2, SKL__STREAM_CELLS_256, 0, 0};
    skl__matmul_x86(y, y_stride, w, tile_begin, tile_end, x, tokens, &way);
}

#if SKL__HAS_AVXVNNI
static SKL__TARGET(SKL__AVXVNNI) void skl__block_q4_avxvnni(const skl__x86_block *b)
{
    skl__block_each_256(b, 4, 6, skl__dot_vnni_256, 0);
}

static SKL__TARGET(SKL__AVXVNNI) void skl__block_q8_avxvnni(const skl__x86_block *b)
{
    skl__block_each_256(b, 8, 6, skl__dot_vnni_256, 0);
}

static SKL__TARGET(SKL__AVXVNNI) void skl__stream_avxvnni(const skl__x86_stream *s)
{
    if (s->job->w->storage == SKL__TILES_4) skl__stream_each_256(s, 4, skl__dot_vnni_256, 0);
    else skl__stream_each_256(s, 8, skl__dot_vnni_256, 0);
}

static void skl__matmul_avxvnni(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin, size_t tile_end,
                                const skl__acts *x, size_t tokens)
{
    skl__x86_way way = {skl__block_q4_avxvnni, 1, 6, skl__stream_avxvnni, SKL__STREAM_CELLS_256, 128, 0};
    if (w->storage == SKL__TILES_8) way.block = skl__block_q8_avxvnni;
    skl__matmul_x86(y, y_stride, w, tile_begin, tile_end, x, tokens, &way);
}

#endif

/* --- 512 bits --- */

#if SKL__HAS_AVX512VNNI
SKL__INLINE SKL__TARGET(SKL__AVX512VNNI) __m512i skl__dot_vnni_512(__m512i sum, __m512i w, __m512i x)
{
    return _mm512_dpbusd_epi32(sum, w, x);
}
#endif

SKL__BODY_512 __m512i skl__dot_sign_512(__m512i sum, __m512i w, __m512i x)
{
    const __m512i ones = _mm512_set1_epi16(1);
    const __m512i signed_x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
    const __m512i pair = _mm512_maddubs_epi16(_mm512_abs_epi8(w), signed_x);
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pair, ones));
    SKL__IN_ORDER(sum);
    return sum;
}

SKL__BODY_512 __m512i skl__load_line_512(const unsigned char *codes)
{
    return _mm512_loadu_si512((const void *)codes);
}

/* The plain forms of two intrinsics make GCC 12 warn of an uninitialised register of its own; these have none. */
SKL__BODY_512 __m512 skl__load_scales_512(const unsigned char *scales, int wide)
{
    if (wide) return _mm512_loadu_ps((const void *)scales);
    return _mm512_maskz_cvtph_ps((__mmask16)-1, _mm256_loadu_si256((const __m256i *)(const void *)scales));
}

SKL__BODY_512 __m512i skl__broadcast_512(const int8_t *x)
{
    return _mm512_set1_epi32(skl__load_quad(x));
}

/* Products of a quad, added in pairs to sums of 16 bits; and such sums, added in pairs to sums of 32 bits. */
SKL__BODY_512 __m512i skl__pairs_512(__m512i pair, __m512i w, __m512i x)
{
    pair = _mm512_add_epi16(pair, _mm512_maddubs_epi16(w, x));
    SKL__IN_ORDER(pair);
    return pair;
}

SKL__BODY_512 __m512i skl__widen_512(__m512i sum, __m512i pair)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pair, _mm512_set1_epi16(1)));
}

SKL__BODY_512 __m512 skl__to_float_512(__m512i sum)
{
    return _mm512_maskz_cvtepi32_ps((__mmask16)-1, sum);
}

SKL__BODY_512 __mmask16 skl__row_mask_512(size_t rows, size_t row)
{
    return (__mmask16)((1u << (rows - row)) - 1u);
}

/* Rows [row, row + 16) of one token's outputs, as far as the matrix has them:  y  [rows] */
SKL__BODY_512 void skl__store_rows_512(float *y, size_t rows, size_t row, __m512 value)
{
    if (rows < row + 16) _mm512_mask_storeu_ps(y + row, skl__row_mask_512(rows, row), value);
    else _mm512_storeu_ps(y + row, value);
}

/* acc + (scale_w * scale_x) * value, where a scale per token waits for the end of the row. */
SKL__BODY_512 __m512 skl__scale_add_512(__m512 acc, __m512 scale, const float *x_scale, __m512 value, int row)
{
    return _mm512_fmadd_ps(row ? scale : _mm512_mul_ps(scale, _mm512_set1_ps(*x_scale)), value, acc);
}

/* The two quads, 16 columns apart, of a line of 4-bit codes. */
SKL__BODY_512 void skl__split_line_512(__m512i *low, __m512i *high, const unsigned char *codes)
{
    const __m512i line = skl__load_line_512(codes), mask = _mm512_set1_epi8(15);
    *low = _mm512_and_si512(line, mask);
    *high = _mm512_and_si512(_mm512_srli_epi16(line, 4), mask);
}

/* One unit of a block by dot steps:  isum  [width][2]    codes  of two tiles    x  [width][columns of the unit] */
SKL__BODY_512 void skl__unit_dot_512(__m512i (*isum)[2], const unsigned char *codes, const skl__x86_block *b,
                                     const int8_t *const *x, size_t k, const size_t columns, const int bits, const int width,
                                     skl__dot_512 *dot)
{
    const __m512i flip = _mm512_set1_epi8((char)b->flip);
    const size_t end = k + columns, far = b->far;
    __m512i line[2], high[2];
    int i;

    do {
        SKL__UNROLL_4
        for (i = 0; i < 4; i++, codes += 64, k += 4) {
            if (bits == 4) {
                SKL__EACH_VECTOR(2, skl__split_line_512(&line[j], &high[j], codes + j * far))
                SKL__EACH_CELL(width, 2, isum[t][j] = dot(isum[t][j], line[j], skl__broadcast_512(x[t] + k)))
                SKL__EACH_CELL(width, 2, isum[t][j] = dot(isum[t][j], high[j], skl__broadcast_512(x[t] + k + 16)))
            } else {
                SKL__EACH_VECTOR(2, line[j] = _mm512_xor_si512(skl__load_line_512(codes + j * far), flip))
                SKL__EACH_CELL(width, 2, isum[t][j] = dot(isum[t][j], line[j], skl__broadcast_512(x[t] + k)))
            }
        }
        if (bits == 4) k += 16;
    } while (k < end);
}

/* The same in 16 bits, up to `chain` columns at a time. */
SKL__BODY_512 void skl__unit_chain_512(__m512i (*isum)[2], const unsigned char *codes, const skl__x86_block *b,
                                       const int8_t *const *x, size_t k, const size_t columns, const int width,
                                       const size_t chain)
{
    const size_t end = k + columns, far = b->far;
    __m512i pair[SKL__BLOCK_TOKENS][2], low[2], high[2];
    size_t stop;
    int i;

    while (k < end) {
        stop = chain == 32 || chain < end - k ? k + chain : end;
        SKL__EACH_CELL(width, 2, pair[t][j] = _mm512_setzero_si512())
        do {
            SKL__UNROLL_4
            for (i = 0; i < 4; i++, codes += 64, k += 4) {
                SKL__EACH_VECTOR(2, skl__split_line_512(&low[j], &high[j], codes + j * far))
                SKL__EACH_CELL(width, 2, const __m512i quad = skl__broadcast_512(x[t] + k);
                               pair[t][j] = skl__pairs_512(pair[t][j], low[j], quad))
                SKL__EACH_CELL(width, 2, const __m512i quad = skl__broadcast_512(x[t] + k + 16);
                               pair[t][j] = skl__pairs_512(pair[t][j], high[j], quad))
            }
            k += 16;
        } while (k < stop);
        SKL__EACH_CELL(width, 2, isum[t][j] = skl__widen_512(isum[t][j], pair[t][j]))
    }
}

/* Body of the block kernels: `width` tokens x 2 tiles. With 4 x 2, 8 integer and 8 float accumulators, 4 lines, a mask
 * and a broadcast take 22 of 32 registers; 8 columns cost at most 12 loads and 16 dot steps, so the two multiplying ports
 * set the pace, not the two that load. Where scales are rare, float accumulators may be spilled, and 6 x 2 is faster.
 *     bits     4 or 8
 *     unit     16 or 32 columns, so that there is no loop over them; 0 if there is one activation scale per token
 *     chain    columns whose products add up in 16 bits before they are widened; 0 where dot makes the sums */
SKL__BODY_512 void skl__block_512(const skl__x86_block *b, const int bits, const int width, const size_t unit,
                                  skl__dot_512 *dot, const size_t chain)
{
    const unsigned char *codes = b->codes;
    const float *scales = b->scales, *minima = b->minima, *x_scales = b->x_scales, *x_sums = b->x_sums;
    const int32_t *starts = b->starts;
    const int row = !unit;
    const size_t columns = unit ? unit : b->quads * 4;
    const int8_t *x[SKL__BLOCK_TOKENS];
    __m512i isum[SKL__BLOCK_TOKENS][2];
    __m512 acc[SKL__BLOCK_TOKENS][2], scale[2];
    size_t u, k = 0;

    SKL__EACH_TOKEN(width, x[t] = skl__block_token(b, t))
    SKL__EACH_CELL(width, 2, acc[t][j] = b->first ? _mm512_setzero_ps() : _mm512_load_ps(b->acc + (t * 2 + j) * 16))
    for (u = 0; u < b->units; u++) {
        SKL__EACH_CELL(width, 2, isum[t][j] = _mm512_set1_epi32(starts[t * SKL__PANEL_UNITS + u]))
        if (row && b->split && !b->first) {
            SKL__EACH_CELL(width, 2, isum[t][j] = _mm512_castps_si512(acc[t][j]); acc[t][j] = _mm512_setzero_ps())
        }
        if (chain) skl__unit_chain_512(isum, codes, b, x, k, columns, width, chain);
        else skl__unit_dot_512(isum, codes, b, x, k, columns, bits, width, dot);
        codes += columns * (bits == 4 ? 8 : 16);
        k += columns;
        if (row && b->split && !b->last) {
            SKL__EACH_CELL(width, 2, acc[t][j] = _mm512_castsi512_ps(isum[t][j]))
            break;
        }
        SKL__EACH_VECTOR(2, scale[j] = _mm512_load_ps(scales + 16 * j))
        SKL__EACH_CELL(width, 2, acc[t][j] = skl__scale_add_512(
            acc[t][j], scale[j], x_scales + t * SKL__PANEL_UNITS + u, skl__to_float_512(isum[t][j]), row))
        if (b->minimum) {
            SKL__EACH_VECTOR(2, scale[j] = _mm512_load_ps(minima + 16 * j))
            SKL__EACH_CELL(width, 2, acc[t][j] = skl__scale_add_512(
                acc[t][j], scale[j], x_scales + t * SKL__PANEL_UNITS + u,
                _mm512_set1_ps(x_sums[t * SKL__PANEL_UNITS + u]), row))
        }
        scales += 2 * 16;
        minima += 2 * 16;
    }
    SKL__EACH_CELL(width, 2, _mm512_store_ps(b->acc + (t * 2 + j) * 16, acc[t][j]))
}

/* What inner loops must not ask for becomes a constant here; `row_width` tokens if there is one scale per token. */
SKL__BODY_512 void skl__block_each_512(const skl__x86_block *b, const int bits, const int width, const int row_width,
                                       skl__dot_512 *dot, const size_t chain)
{
    if (b->row) skl__block_512(b, bits, row_width, 0, dot, chain);
    else if (bits == 4 || b->quads == 8) skl__block_512(b, bits, width, 32, dot, chain);
    else skl__block_512(b, bits, width, 16, dot, chain);
}

/* A run of 32 columns of 4-bit codes of a stream: adds to the sums of its low and its high nibbles. By dot steps, high nibbles
 * stay where they are, and their sums are 16 times too large.        low, high  [width][tiles] */
SKL__BODY_512 void skl__stream_run_512(__m512i *low, __m512i *high, const skl__x86_stream *s, size_t k, const int width,
                                       const int tiles, skl__dot_512 *dot, const int chain)
{
    const __m512i mask = _mm512_set1_epi8(15), high_mask = _mm512_set1_epi8((char)0xf0);
    __m512i pair[SKL__STREAM_CELLS_512], x_low[SKL__STREAM_TOKENS], x_high[SKL__STREAM_TOKENS];
    size_t c;
    int j, t;

    if (chain) SKL__UNROLL for (j = 0; j < width * tiles; j++) pair[j] = _mm512_setzero_si512();
    SKL__UNROLL for (c = 0; c < 4; c++) {
        SKL__UNROLL for (t = 0; t < width; t++) {
            x_low[t] = skl__broadcast_512(s->x[t] + k + 4 * c);
            x_high[t] = skl__broadcast_512(s->x[t] + k + 4 * c + 16);
        }
        SKL__UNROLL for (j = 0; j < tiles; j++) {
            const __m512i line = skl__load_line_512(s->tile[j].codes + k * 8 + 64 * c), nibble = _mm512_and_si512(line, mask);
            const __m512i top = chain ? _mm512_and_si512(_mm512_srli_epi16(line, 4), mask) : _mm512_and_si512(line, high_mask);
            SKL__UNROLL for (t = 0; t < width; t++) {
                const int cell = t * tiles + j;
                if (chain) pair[cell] = skl__pairs_512(skl__pairs_512(pair[cell], nibble, x_low[t]), top, x_high[t]);
                else {
                    low[cell] = dot(low[cell], nibble, x_low[t]);
                    high[cell] = dot(high[cell], top, x_high[t]);
                }
            }
        }
    }
    if (chain) SKL__UNROLL for (j = 0; j < width * tiles; j++) low[j] = skl__widen_512(low[j], pair[j]);
}

/* 8 columns of 8-bit codes, the first four to `low`. */
SKL__BODY_512 void skl__stream_pair_512(__m512i *low, __m512i *high, const skl__x86_stream *s, size_t k, const int width,
                                        const int tiles, skl__dot_512 *dot)
{
    const __m512i flip = _mm512_set1_epi8((char)s->job->flip);
    int j, t;

    SKL__UNROLL for (j = 0; j < tiles; j++) {
        const unsigned char *from = s->tile[j].codes + k * 16;
        const __m512i first = _mm512_xor_si512(skl__load_line_512(from), flip);
        const __m512i second = _mm512_xor_si512(skl__load_line_512(from + 64), flip);
        SKL__UNROLL for (t = 0; t < width; t++) {
            const int cell = t * tiles + j;
            low[cell] = dot(low[cell], first, skl__broadcast_512(s->x[t] + k));
            high[cell] = dot(high[cell], second, skl__broadcast_512(s->x[t] + k + 4));
        }
    }
}

/* First phase: integer sums of units.        isum  [units][width][tiles] */
SKL__BODY_512 void skl__stream_sums_512(__m512i *isum, const skl__x86_stream *s, size_t column, size_t units, const int bits,
                                        const int width, const int tiles, skl__dot_512 *dot, const int chain)
{
    const size_t unit = s->job->unit, step = bits == 4 ? 32 : 8, line = bits == 4 ? 8 : 16;
    __m512i low[SKL__STREAM_CELLS_512], high[SKL__STREAM_CELLS_512];
    size_t u, k, end;
    int j, t;

    for (u = 0, k = column; u < units; u++, isum += width * tiles) {
        SKL__UNROLL for (t = 0; t < width; t++) {
            const __m512i start = _mm512_set1_epi32(-s->job->offset * skl__unit_sum(s->x[t], s->sums[t], k, unit));
            SKL__UNROLL for (j = 0; j < tiles; j++) {
                low[t * tiles + j] = start;
                high[t * tiles + j] = _mm512_setzero_si512();
            }
        }
        for (end = k + unit; k < end; k += step) {
            SKL__UNROLL for (j = 0; j < tiles; j++) skl__stream_fetch(s->tile[j].codes + k * line, step * line);
            if (bits == 4) skl__stream_run_512(low, high, s, k, width, tiles, dot, chain);
            else skl__stream_pair_512(low, high, s, k, width, tiles, dot);
        }
        SKL__UNROLL for (j = 0; j < width * tiles; j++) {
            if (bits == 4) high[j] = _mm512_srai_epi32(high[j], 4);
            isum[j] = _mm512_add_epi32(low[j], high[j]);
        }
    }
}

/* Second phase: the sums meet their scales. The flags are those of the matrix and the activations.        acc  [width][tiles] */
SKL__BODY_512 void skl__stream_scales_512(__m512 *acc, const __m512i *isum, const skl__x86_stream *s, size_t column, size_t units,
                                          const int width, const int tiles, const int wide, const int minimum, const int row)
{
    const size_t unit = s->job->unit, units_per_group = s->job->w->group / unit, line = wide ? 64 : 32;
    size_t u, k, at = column / s->job->w->group * line, left = units_per_group - column % s->job->w->group / unit;
    int j, t;

    for (u = 0, k = column; u < units; u++, k += unit, isum += width * tiles) {
        SKL__UNROLL for (j = 0; j < tiles; j++) {
            const __m512 scale = skl__load_scales_512(s->tile[j].scales + at, wide);
            skl__stream_fetch(s->tile[j].scales + at, 64);
            SKL__UNROLL for (t = 0; t < width; t++) {
                const int cell = t * tiles + j;
                const float *x_scale = s->x_scales[t] + (row ? 0 : k / 32);
                acc[cell] = skl__scale_add_512(acc[cell], scale, x_scale, skl__to_float_512(isum[cell]), row);
                if (minimum) {
                    const __m512 least = skl__load_scales_512(s->tile[j].minima + at, wide);
                    const __m512 sum = _mm512_set1_ps((float)skl__unit_sum(s->x[t], s->sums[t], k, unit));
                    acc[cell] = skl__scale_add_512(acc[cell], least, x_scale, sum, row);
                }
            }
        }
        if (--left == 0) {
            left = units_per_group;
            at += line;
        }
    }
}

/* Body of the stream kernels: up to `tiles` tiles x up to `width` tokens.        bits  4 or 8    chain  products of a run add
 * up in 16 bits */
SKL__BODY_512 void skl__stream_512(const skl__x86_stream *s, const int bits, const int width, const int tiles, skl__dot_512 *dot,
                                   const int chain)
{
    const skl__x86_job *job = s->job;
    const skl__matrix *w = job->w;
    const size_t units_all = w->columns / job->unit, units_most = (size_t)(SKL__STREAM_SUMS / (width * tiles));
    __m512i isum[SKL__STREAM_SUMS];
    __m512 acc[SKL__STREAM_CELLS_512];
    size_t first, units;
    int j, t;

    SKL__UNROLL for (j = 0; j < width * tiles; j++) acc[j] = _mm512_setzero_ps();
    for (first = 0; first < units_all; first += units) {
        units = units_all - first < units_most ? units_all - first : units_most;
        skl__stream_sums_512(isum, s, first * job->unit, units, bits, width, tiles, dot, chain);
        if (!w->wide && !w->minimum && !job->x->row) {
            skl__stream_scales_512(acc, isum, s, first * job->unit, units, width, tiles, 0, 0, 0);
        } else {
            skl__stream_scales_512(acc, isum, s, first * job->unit, units, width, tiles, w->wide, w->minimum, job->x->row);
        }
    }
    SKL__UNROLL for (t = 0; t < width; t++) {
        SKL__UNROLL for (j = 0; j < tiles; j++) {
            __m512 y = acc[t * tiles + j];
            if (job->x->row) y = _mm512_mul_ps(y, _mm512_set1_ps(s->x_scales[t][0]));
            if ((size_t)t < s->tokens) skl__store_rows_512(s->y[j] + (size_t)t * job->y_stride, s->rows[j], 0, y);
        }
    }
}

SKL__BODY_512 void skl__stream_each_512(const skl__x86_stream *s, const int bits, skl__dot_512 *dot, const int chain)
{
    if (s->tokens == 1) skl__stream_512(s, bits, 1, 4, dot, chain);
    else if (s->tokens == 2) skl__stream_512(s, bits, 2, 4, dot, chain);
    else skl__stream_512(s, bits, 4, 2, dot, chain);
}

static SKL__TARGET(SKL__AVX512) void skl__block_q4_a8_avx512(const skl__x86_block *b)
{
    skl__block_each_512(b, 4, 4, 4, skl__dot_sign_512, 32);
}

static SKL__TARGET(SKL__AVX512) void skl__stream_q4_a8_avx512(const skl__x86_stream *s)
{
    skl__stream_each_512(s, 4, skl__dot_sign_512, 1);
}

static SKL__TARGET(SKL__AVX512) void skl__block_q4_a4_avx512(const skl__x86_block *b)
{
    skl__block_each_512(b, 4, 4, 4, skl__dot_sign_512, 512);
}

static SKL__TARGET(SKL__AVX512) void skl__block_q8_a8_avx512(const skl__x86_block *b)
{
    skl__block_each_512(b, 8, 4, 4, skl__dot_sign_512, 0);
}

static SKL__TARGET(SKL__AVX512) void skl__stream_q8_a8_avx512(const skl__x86_stream *s)
{
    skl__stream_each_512(s, 8, skl__dot_sign_512, 0);
}

static void skl__matmul_q4_a8_avx512(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin,
                                     size_t tile_end, const skl__acts *x, size_t tokens)
{
    static const skl__x86_way way = {skl__block_q4_a8_avx512, 2, 4, skl__stream_q4_a8_avx512, SKL__STREAM_CELLS_512, 0, 0};
    skl__matmul_x86(y, y_stride, w, tile_begin, tile_end, x, tokens, &way);
}

static void skl__matmul_q4_a4_avx512(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin,
                                     size_t tile_end, const skl__acts *x, size_t tokens)
{
    static const skl__x86_way way = {skl__block_q4_a4_avx512, 2, 4, skl__stream_q4_a8_avx512, SKL__STREAM_CELLS_512, 0, 0};
    skl__matmul_x86(y, y_stride, w, tile_begin, tile_end, x, tokens, &way);
}

static void skl__matmul_q8_a8_avx512(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin,
                                     size_t tile_end, const skl__acts *x, size_t tokens)
{
    static const skl__x86_way way = {skl__block_q8_a8_avx512, 2, 4, skl__stream_q8_a8_avx512, SKL__STREAM_CELLS_512, 0, 0};
    skl__matmul_x86(y, y_stride, w, tile_begin, tile_end, x, tokens, &way);
}

#if SKL__HAS_AVX512VNNI
static SKL__TARGET(SKL__AVX512VNNI) void skl__block_q4_avx512vnni(const skl__x86_block *b)
{
    skl__block_each_512(b, 4, 4, 6, skl__dot_vnni_512, 0);
}

static SKL__TARGET(SKL__AVX512VNNI) void skl__block_q8_avx512vnni(const skl__x86_block *b)
{
    skl__block_each_512(b, 8, 4, 6, skl__dot_vnni_512, 0);
}

static SKL__TARGET(SKL__AVX512VNNI) void skl__stream_avx512vnni(const skl__x86_stream *s)
{
    if (s->job->w->storage == SKL__TILES_4) skl__stream_each_512(s, 4, skl__dot_vnni_512, 0);
    else skl__stream_each_512(s, 8, skl__dot_vnni_512, 0);
}

static void skl__matmul_avx512vnni(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin, size_t tile_end,
                                   const skl__acts *x, size_t tokens)
{
    skl__x86_way way = {skl__block_q4_avx512vnni, 2, 4, skl__stream_avx512vnni, SKL__STREAM_CELLS_512, 128, 0};
    if (w->storage == SKL__TILES_8) way.block = skl__block_q8_avx512vnni;
    if (x->row) way.width = 6;
    skl__matmul_x86(y, y_stride, w, tile_begin, tile_end, x, tokens, &way);
}
#endif

/* --- AMX ---
 * A tile register holds 16 rows of 64 bytes, and a product of two adds 16 x 16 sums of up to 64 terms: for 16 tokens, and the 16
 * rows of a panel's tile, whose lines are what the instruction wants. Sums leave by way of memory only, 1 KB a unit, where they
 * meet their scales; meanwhile the registers make those of the next unit. With a scale per 32 columns a product is half empty.
 * Fewer than 16 tokens are left to VNNI. Registers and their shapes are the caller's to lose, as others are in a call. */

#if SKL__HAS_AMX
#define SKL__AMX_TOKENS 16

/* Shapes of the tile registers: 0 and 3 are sums, 1 and 4 activations of `step` columns, 2 and 5 weights. */
static SKL__TARGET(SKL__AMX) void skl__amx_configure(size_t step)
{
    struct {
        uint8_t palette, start, unused[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shapes;
    int i;

    memset(&shapes, 0, sizeof shapes);
    shapes.palette = 1;
    for (i = 0; i < 6; i++) {
        shapes.row_bytes[i] = (uint16_t)(i % 3 == 1 ? step : 64);
        shapes.rows[i] = (uint8_t)(i % 3 == 2 ? step / 4 : SKL__AMX_TOKENS);
    }
    __asm__ volatile("" : : "r"(&shapes) : "memory"); /* GCC takes the instruction to read eight bytes of them */
    _tile_loadconfig(&shapes);
}

/* Columns of a product, as many as fit and divide a unit. */
static size_t skl__amx_step(size_t unit)
{
    return unit % 64 == 0 ? 64 : unit % 32 == 0 ? 32 : 16;
}

/* Integer sums of a unit by way of the tile registers c, a, w, from `start` on, if any:        sums, start  [tokens][16] */
#define SKL__AMX_UNIT(c, a, w, sums, start) \
    do { \
        if (start) _tile_loadd(c, start, 64); \
        else _tile_zero(c); \
        for (end = k + unit; k < end; k += step) { \
            _tile_loadd(a, x + k, x_stride); \
            _tile_loadd(w, codes + k * 16, 64); \
            _tile_dpbssd(c, a, w); \
        } \
        _tile_stored(c, sums, 64); \
    } while (0)

/* The sums of a unit meet a scale of each row and of each token:        acc  [tokens]    sums  [tokens][16]    scales  [16] */
SKL__INLINE SKL__TARGET(SKL__AMX) void skl__amx_scale(__m512 *acc, const int32_t *sums, const float *scales, const float *x_scales,
                                                      const int row)
{
    const __m512 scale = _mm512_load_ps(scales);
    int t;

    SKL__UNROLL for (t = 0; t < SKL__AMX_TOKENS; t++) {
        const __m512 sum = skl__to_float_512(_mm512_load_si512((const void *)(sums + t * 16)));
        acc[t] = skl__scale_add_512(acc[t], scale, x_scales + t * SKL__PANEL_UNITS, sum, row);
    }
}

/* The minima of a unit:        acc  [tokens]    minima  [16] */
SKL__INLINE SKL__TARGET(SKL__AMX) void skl__amx_minima(__m512 *acc, const float *minima, const float *x_scales,
                                                       const float *x_sums, const int row)
{
    const __m512 least = _mm512_load_ps(minima);
    int t;

    SKL__UNROLL for (t = 0; t < SKL__AMX_TOKENS; t++) {
        const int at = t * SKL__PANEL_UNITS;
        acc[t] = skl__scale_add_512(acc[t], least, x_scales + at, _mm512_set1_ps(x_sums[at]), row);
    }
}

/* Body of the block kernel.        unit, step  columns of a unit, and of a product    row  one activation scale per token */
SKL__INLINE SKL__TARGET(SKL__AMX) void skl__block_units_amx(const skl__x86_block *b, const size_t unit, const size_t step,
                                                            const int row, const int minimum)
{
    __attribute__((aligned(64))) int32_t sums[2][SKL__AMX_TOKENS * 16];
    const int8_t *x = b->x;
    const unsigned char *codes = b->codes;
    const size_t x_stride = b->x_stride, units = b->units;
    const float *scales = b->scales, *x_scales = b->x_scales;
    __m512 acc[SKL__AMX_TOKENS];
    size_t u, k = 0, end;
    int t;

    if (b->split && !b->last) {
        SKL__AMX_UNIT(0, 1, 2, b->acc, b->first ? NULL : b->acc);
        return;
    }
    SKL__UNROLL for (t = 0; t < SKL__AMX_TOKENS; t++) {
        acc[t] = b->first || b->split ? _mm512_setzero_ps() : _mm512_load_ps(b->acc + t * 16);
    }
    SKL__AMX_UNIT(0, 1, 2, sums[0], b->split ? b->acc : NULL);
    for (u = 0; u < units; u++) {
        if (u + 1 < units) {
            if (u % 2) SKL__AMX_UNIT(0, 1, 2, sums[0], NULL);
            else SKL__AMX_UNIT(3, 4, 5, sums[1], NULL);
        }
        skl__amx_scale(acc, sums[u % 2], scales + 16 * u, x_scales + u, row);
        if (minimum) skl__amx_minima(acc, b->minima + 16 * u, x_scales + u, b->x_sums + u, row);
    }
    SKL__UNROLL for (t = 0; t < SKL__AMX_TOKENS; t++) _mm512_store_ps(b->acc + t * 16, acc[t]);
}

/* What inner loops must not ask for becomes a constant here. */
static SKL__TARGET(SKL__AMX) void skl__block_amx(const skl__x86_block *b)
{
    if (b->row) skl__block_units_amx(b, b->quads * 4, skl__amx_step(b->unit), 1, b->minimum);
    else if (b->unit == 32 && !b->minimum) skl__block_units_amx(b, 32, 32, 0, 0);
    else skl__block_units_amx(b, b->unit, b->unit, 0, b->minimum);
}

static SKL__TARGET(SKL__AMX) void skl__matmul_amx(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin,
                                                  size_t tile_end, const skl__acts *x, size_t tokens)
{
    static const skl__x86_way way = {skl__block_amx, 1, SKL__AMX_TOKENS, skl__stream_avx512vnni, SKL__STREAM_CELLS_512, 0, 1};
    const size_t whole = tokens / SKL__AMX_TOKENS * SKL__AMX_TOKENS;
    const skl__acts rest = skl__acts_from(x, whole);

    if (whole) {
        skl__amx_configure(skl__amx_step(skl__matmul_unit(w, x)));
        skl__matmul_x86(y, y_stride, w, tile_begin, tile_end, x, whole, &way);
        _tile_release();
    }
    if (tokens > whole) skl__matmul_avx512vnni(y + whole * y_stride, y_stride, w, tile_begin, tile_end, &rest, tokens - whole);
}
#endif

#endif /* SKL__X86_KERNELS */

/* =====================================================================================================================
 * >>arm                                                                                        Integer kernels for NEON
 *
 * Each line of the packed layout is four registers of 4 rows x 4 columns. Three levels, which differ only in how they
 * make the integer sums of a unit (the columns between two scales); sums of integers are exact in any order, the float
 * chain per output is the one of >>scalar, and so are the bits:
 *
 *     neon            products of 8 rows-and-columns at a time in 16 bits, widened before they can overflow
 *     neon_dotprod    SDOT: 4 rows x 4 columns by 4 columns of one token
 *     neon_i8mm       SMMLA: 2 rows x 8 columns by 8 columns of 2 tokens
 *
 * Two ways through a matrix:
 *     stream    1 or 2 tokens, memory-bound: tile after tile, every line is unpacked in registers and used at once
 *     panel     more tokens, compute-bound: a panel of up to 512 columns of one tile is unpacked into L1 and meets all
 *               tokens, 8 rows x 6 tokens at a time; between two panels of a tile the accumulators rest in y
 *
 * A stream leaves codes of 4 bits unsigned and starts its sums at -8 * (sum of the activations), which is known. A
 * panel is unpacked once for many tokens, so there the 8 is taken off the codes.
 * ================================================================================================================== */
#if SKL__ARM_KERNELS

/* Instructions per function. Clang before 16 (Apple's before 15) hides the intrinsics unless the command line enables
 * the feature, for example with -march=armv8.2-a+dotprod+i8mm; otherwise it goes without these rows. GCC wants ARMv8.2
 * for them; "arch" would take away what else the command line enables, and then nothing could be inlined, so it is only
 * raised from where it is lower. Extensions that no macro betrays, such as +rcpc, need +dotprod beside them. */
#if defined(__apple_build_version__)
#define SKL__ARM_HIDES (__apple_build_version__ < 15000000)
#elif defined(__clang__)
#define SKL__ARM_HIDES (__clang_major__ < 16)
#else
#define SKL__ARM_HIDES 0
#endif

#if defined(__clang__) || defined(__ARM_FEATURE_DOTPROD) || defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC) || \
    defined(__ARM_FEATURE_SVE) || defined(__ARM_FEATURE_COMPLEX) || defined(__ARM_FEATURE_MATMUL_INT8)
#define SKL__ARM_82 ""
#elif defined(__ARM_FEATURE_CRYPTO)
#define SKL__ARM_82 "arch=armv8.2-a+crypto"
#else
#define SKL__ARM_82 "arch=armv8.2-a"
#endif

#if defined(SKL__HAS_NEON_DOTPROD) /* by a test, as 0 */
#elif defined(__ARM_FEATURE_DOTPROD) || (defined(__clang__) && !SKL__ARM_HIDES) || (!defined(__clang__) && __GNUC__ >= 8)
#define SKL__HAS_NEON_DOTPROD 1
#else
#define SKL__HAS_NEON_DOTPROD 0
#endif

#if defined(SKL__HAS_NEON_I8MM)    /* likewise */
#elif !SKL__HAS_NEON_DOTPROD
#define SKL__HAS_NEON_I8MM 0
#elif defined(__ARM_FEATURE_MATMUL_INT8) || (defined(__clang__) && !SKL__ARM_HIDES) || \
    (!defined(__clang__) && __GNUC__ >= 10)
#define SKL__HAS_NEON_I8MM 1
#else
#define SKL__HAS_NEON_I8MM 0
#endif

#if SKL__ARM_HIDES
#define SKL__TARGET_DOTPROD
#define SKL__TARGET_I8MM
#else
#define SKL__TARGET_DOTPROD SKL__TARGET(SKL__ARM_82 "+dotprod")
#define SKL__TARGET_I8MM SKL__TARGET(SKL__ARM_82 "+dotprod+i8mm")
#endif

/* For i below n. Unrolled, so that arrays indexed by i live in registers; the bound is a constant of its own, because
 * Clang unrolls before it knows what a parameter n will be. */
#define SKL__EACH(i, most, n) SKL__UNROLL for ((i) = 0; (i) < (most); (i)++) if ((i) < (n))

#define SKL__PANEL_COLUMNS 512
#define SKL__PANEL_UNITS 16    /* and at most that many units: 256 columns if a unit is 16 */
#define SKL__STRIP_TOKENS 48   /* tokens that meet one unpacked panel */
#define SKL__BLOCK_TOKENS 6    /* tokens in registers, at most; always an even number */

/* What one matmul call shares. */
typedef struct skl__neon_job {
    float *y;                  /* [tokens][y_stride] */
    size_t y_stride;
    const skl__matrix *w;
    const skl__acts *x;
    size_t unit;               /* columns per unit */
    int pairs;                 /* operands in the order of SMMLA */
} skl__neon_job;

/* One tile, up to 512 columns. The two halves of 8 rows stand apart, because a block works on one of them. */
typedef struct skl__neon_panel {
    int8_t codes[2][SKL__PANEL_COLUMNS * 8]; /* [columns / 4][8 rows][4], or, in pairs, [columns / 8][8 rows][8] */
    float scales[2][SKL__PANEL_UNITS * 16];  /* [units][8 rows], or, in pairs, [units][4][2][2]: each pair twice */
    float minima[2][SKL__PANEL_UNITS * 16];
} skl__neon_panel;

/* What a strip of tokens brings to a panel. A last token without a partner is there twice.
 *     codes  [tokens / 2][columns / 16][2][16], or, in pairs, [tokens / 2][columns / 8][2][8] */
typedef struct skl__neon_strip {
    int8_t codes[SKL__STRIP_TOKENS * SKL__PANEL_COLUMNS];
    float scales[SKL__PANEL_UNITS][SKL__STRIP_TOKENS];    /* 1 if there is one per token: times 1 changes nothing */
    float sums[SKL__PANEL_UNITS][SKL__STRIP_TOKENS];
    float row_scales[SKL__STRIP_TOKENS];                  /* 1 if there is one per run */
} skl__neon_strip;

/* A block of tokens against 8 rows of a panel. */
typedef struct skl__neon_block {
    const int8_t *codes;                /* as in the panel */
    const float *scales, *minima;
    const int8_t *x;                    /* as in the strip, */
    size_t x_pair;                      /* bytes from one pair of tokens to the next */
    const float *x_scales, *x_sums;     /* [units][STRIP_TOKENS] */
    const float *x_row_scales;          /* [tokens] */
    float *y;                           /* 8 rows of all tokens of the block, */
    size_t y_stride;                    /* floats from one token to the next */
    size_t units, columns;              /* columns per unit */
    int minimum;
    int first, last;                    /* first, last panel of the tile */
    int split;                          /* the only unit is longer than the panel: y carries integers meanwhile */
} skl__neon_block;

/* width: 2, 4 or 6 tokens */
typedef void skl__neon_block_kernel(const skl__neon_block *block, size_t width);
/* tokens: 1 or 2 */
typedef void skl__neon_stream_kernel(const skl__neon_job *job, size_t tile, size_t token, size_t tokens);

/* How the kernels of a level go through a matrix. */
typedef struct skl__neon_way {
    skl__neon_block_kernel *block;
    size_t widest;             /* tokens of a block, at most */
    skl__neon_stream_kernel *stream;
    int pairs;                 /* operands in the order of SMMLA */
} skl__neon_way;

/* ------------------------------------------------------------------------------------------------ Panels and strips */

SKL__INLINE int8x16_t skl__load_codes_neon(const unsigned char *codes)
{
    return vreinterpretq_s8_u8(vld1q_u8(codes));
}

/* Zeros the compiler knows nothing of. Clang keeps -ffast-math for its intrinsics, in spite of the pragma, and would
 * turn a multiply-add onto zero into a product, which can be -0 where the sum is 0. */
SKL__INLINE float32x4_t skl__zeros_neon(void)
{
    float32x4_t zeros = vdupq_n_f32(0.0f);

    SKL__ROUNDED(zeros);
    return zeros;
}

/* Four scales or minima from `first` on, at any alignment. */
SKL__INLINE float32x4_t skl__load_scales_neon(const unsigned char *scales, size_t first, int wide)
{
    if (wide) return vreinterpretq_f32_u8(vld1q_u8(scales + first * 4));
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(scales + first * 2)));
}

/* Sum of the activations of the unit that begins at `column`. */
SKL__INLINE int32_t skl__unit_sum_neon(const skl__acts *x, size_t token, size_t column, size_t unit)
{
    const int32_t *sums = x->sums + token * (x->columns / 32) + column / 32;
    int32_t sum = 0;
    size_t i;

    if (unit == 16) return vaddlvq_s8(vld1q_s8(x->codes + token * x->stride + column));
    for (i = 0; i < unit / 32; i++) sum += sums[i];
    return sum;
}

/* 4 rows x 8 columns into half (part 0 or 1) of  to  [2][8 rows][4], or, in pairs, [8 rows][8] */
SKL__INLINE void skl__put_codes_neon(int8_t *to, size_t part, int8x16_t even, int8x16_t odd, int pairs)
{
    const int32x4_t a = vreinterpretq_s32_s8(even), b = vreinterpretq_s32_s8(odd);

    if (pairs) {
        vst1q_s8(to + part * 32, vreinterpretq_s8_s32(vzip1q_s32(a, b)));
        vst1q_s8(to + part * 32 + 16, vreinterpretq_s8_s32(vzip2q_s32(a, b)));
    } else {
        vst1q_s8(to + part * 16, even);
        vst1q_s8(to + part * 16 + 32, odd);
    }
}

/* Codes of 8 rows, signed:  to  as in the panel        from  first line, first of the rows */
static void skl__unpack_codes_neon(int8_t *to, const skl__neon_job *job, const unsigned char *from, size_t columns)
{
    const int8x16_t low = vdupq_n_s8(15), offset = vdupq_n_s8(job->w->minimum ? 0 : 8);
    const int four = job->w->storage == SKL__TILES_4;
    size_t k, c, part;

    for (k = 0; k < columns; k += four ? 32 : 8) {
        for (c = 0; c < (four ? 2u : 1u); c++, from += 128) {
            for (part = 0; part < 2; part++) {
                const int8x16_t even = skl__load_codes_neon(from + part * 16);
                const int8x16_t odd = skl__load_codes_neon(from + part * 16 + 64);
                const uint8x16_t high_even = vshrq_n_u8(vreinterpretq_u8_s8(even), 4);
                const uint8x16_t high_odd = vshrq_n_u8(vreinterpretq_u8_s8(odd), 4);
                int8_t *at = to + (k + c * 8) * 8;

                if (!four) {
                    skl__put_codes_neon(at, part, even, odd, job->pairs);
                    continue;
                }
                skl__put_codes_neon(at, part, vsubq_s8(vandq_s8(even, low), offset),
                                    vsubq_s8(vandq_s8(odd, low), offset), job->pairs);
                skl__put_codes_neon(at + 128, part, vsubq_s8(vreinterpretq_s8_u8(high_even), offset),
                                    vsubq_s8(vreinterpretq_s8_u8(high_odd), offset), job->pairs);
            }
        }
    }
}

/* Scales or minima of rows [row, row + 8) of a tile, widened:  to  as in the panel */
static void skl__unpack_scales_neon(float *to, const skl__neon_job *job, const unsigned char *scales, size_t row,
                                    size_t column, size_t units)
{
    size_t u, part;

    for (u = 0; u < units; u++) {
        for (part = 0; part < 2; part++) {
            const size_t group = (column + u * job->unit) / job->w->group;
            const float32x4_t four = skl__load_scales_neon(scales, group * 16 + row + part * 4, job->w->wide);

            if (job->pairs) {
                vst1q_f32(to, vcombine_f32(vget_low_f32(four), vget_low_f32(four)));
                vst1q_f32(to + 4, vcombine_f32(vget_high_f32(four), vget_high_f32(four)));
                to += 8;
            } else {
                vst1q_f32(to, four);
                to += 4;
            }
        }
    }
}

static void skl__fill_panel_neon(skl__neon_panel *panel, const skl__neon_job *job, size_t tile, size_t column,
                                 size_t columns, size_t units)
{
    const skl__tile parts = skl__tile_at(job->w, tile);
    const size_t column_bytes = job->w->storage == SKL__TILES_4 ? 8 : 16;
    size_t half;

    for (half = 0; half < 2; half++) {
        skl__unpack_codes_neon(panel->codes[half], job, parts.codes + column * column_bytes + half * 32, columns);
        skl__unpack_scales_neon(panel->scales[half], job, parts.scales, half * 8, column, units);
        if (job->w->minimum) skl__unpack_scales_neon(panel->minima[half], job, parts.minima, half * 8, column, units);
    }
}

static void skl__fill_strip_codes_neon(skl__neon_strip *strip, const skl__neon_job *job, size_t token, size_t tokens,
                                       size_t column, size_t columns)
{
    int8_t *to = strip->codes;
    size_t t, k;

    for (t = 0; t < tokens; t += 2) {
        const int8_t *x0 = job->x->codes + (token + t) * job->x->stride + column;
        const int8_t *x1 = t + 1 < tokens ? x0 + job->x->stride : x0;

        for (k = 0; k < columns; k += 16, to += 32) {
            const int8x16_t a = vld1q_s8(x0 + k), b = vld1q_s8(x1 + k);

            vst1q_s8(to, job->pairs ? vcombine_s8(vget_low_s8(a), vget_low_s8(b)) : a);
            vst1q_s8(to + 16, job->pairs ? vcombine_s8(vget_high_s8(a), vget_high_s8(b)) : b);
        }
    }
}

/* columns per unit here: `unit`, which is the whole row where panels split it */
static void skl__fill_strip_scales_neon(skl__neon_strip *strip, const skl__neon_job *job, size_t token, size_t tokens,
                                        size_t column, size_t units)
{
    const skl__acts *x = job->x;
    size_t t, u, at;

    for (t = 0; t < tokens + tokens % 2; t++) {
        at = token + (t < tokens ? t : tokens - 1);
        strip->row_scales[t] = x->row ? x->scales[at] : 1.0f;
        for (u = 0; u < units; u++) {
            strip->scales[u][t] = x->row ? 1.0f : x->scales[at * (x->columns / 32) + (column + u * job->unit) / 32];
            strip->sums[u][t] = job->w->minimum ? (float)skl__unit_sum_neon(x, at, column + u * job->unit, job->unit)
                                                : 0.0f;
        }
    }
}

/* Runs a block whose tokens or rows the matrix does not all have: on a copy of what there is. */
static void skl__block_partial_neon(skl__neon_block *b, size_t tokens, size_t rows, size_t width,
                                    skl__neon_block_kernel *kernel)
{
    float part[SKL__BLOCK_TOKENS * 8];
    float *const y = b->y;
    const size_t y_stride = b->y_stride;
    size_t t;

    memset(part, 0, sizeof part);
    for (t = 0; t < tokens && !b->first; t++) memcpy(part + t * 8, y + t * y_stride, rows * sizeof *y);
    b->y = part;
    b->y_stride = 8;
    kernel(b, width);
    for (t = 0; t < tokens; t++) memcpy(y + t * y_stride, part + t * 8, rows * sizeof *y);
    b->y = y;
    b->y_stride = y_stride;
}

/* Tokens of the next block: of those left no more than `widest`, and not 6 and 2 where 4 and 4 do. */
SKL__INLINE size_t skl__block_width_neon(size_t left, size_t widest)
{
    if (left <= 2) return 2;
    return widest == 4 || left <= 4 || left == 7 || left == 8 ? 4 : 6;
}

/* All tiles against one strip of tokens, panel by panel. */
static void skl__matmul_strip_neon(const skl__neon_job *job, size_t tile_begin, size_t tile_end, size_t token,
                                   size_t tokens, const skl__neon_way *way)
{
    __attribute__((aligned(64))) skl__neon_panel panel;
    __attribute__((aligned(64))) skl__neon_strip strip;
    const skl__matrix *w = job->w;
    const size_t units_max = job->unit == 16 ? SKL__PANEL_UNITS : SKL__PANEL_COLUMNS / job->unit; /* 0: unit > panel */
    const size_t step = units_max ? units_max * job->unit : SKL__PANEL_COLUMNS;
    size_t column, columns, tile, half, t, width, rows;
    skl__neon_block block;

    block.y_stride = job->y_stride;
    block.minimum = w->minimum;
    block.split = units_max == 0;
    for (column = 0; column < w->columns; column += step) {
        columns = w->columns - column < step ? w->columns - column : step;
        block.first = column == 0;
        block.last = column + columns == w->columns;
        block.units = block.split ? 1 : columns / job->unit;
        block.columns = columns / block.units;
        block.x_pair = columns * 2;
        skl__fill_strip_codes_neon(&strip, job, token, tokens, column, columns);
        if (!block.split || block.first) skl__fill_strip_scales_neon(&strip, job, token, tokens, column, block.units);
        for (tile = tile_begin; tile < tile_end; tile++) {
            skl__fill_panel_neon(&panel, job, tile, column, columns, block.units);
            for (t = 0; t < tokens; t += width) {
                width = skl__block_width_neon(tokens - t, way->widest);
                block.x = strip.codes + t / 2 * block.x_pair;
                block.x_scales = strip.scales[0] + t;
                block.x_sums = strip.sums[0] + t;
                block.x_row_scales = strip.row_scales + t;
                for (half = 0; half < 2 && tile * 16 + half * 8 < w->rows; half++) {
                    block.codes = panel.codes[half];
                    block.scales = panel.scales[half];
                    block.minima = panel.minima[half];
                    block.y = job->y + (token + t) * job->y_stride + tile * 16 + half * 8;
                    rows = w->rows - tile * 16 - half * 8;
                    if (rows >= 8 && tokens - t >= width) {
                        way->block(&block, width);
                    } else {
                        skl__block_partial_neon(&block, tokens - t < width ? tokens - t : width, rows < 8 ? rows : 8,
                                                width, way->block);
                    }
                }
            }
        }
    }
}

/* One matmul: strips of many tokens through panels, one or two tokens as streams. */
static void skl__matmul_through_neon(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin,
                                     size_t tile_end, const skl__acts *x, size_t tokens, const skl__neon_way *way)
{
    const size_t last = (w->rows + 15) / 16;
    skl__neon_job job;
    size_t token = 0, tile, n;

    job.y = y;
    job.y_stride = y_stride;
    job.w = w;
    job.x = x;
    job.unit = skl__matmul_unit(w, x);
    job.pairs = way->pairs;
    if (tile_end > last) tile_end = last;
    while (token < tokens) {
        n = tokens - token;
        if (n > 2) {
            n = n < SKL__STRIP_TOKENS ? n : SKL__STRIP_TOKENS;
            skl__matmul_strip_neon(&job, tile_begin, tile_end, token, n, way);
        } else {
            for (tile = tile_begin; tile < tile_end; tile++) way->stream(&job, tile, token, n);
        }
        token += n;
    }
}

/* --------------------------------------------------------------------------------------------- Accumulators of a block
 * 8 rows x `tokens` tokens are two registers per token, or, in pairs, four per two tokens: 2 tokens x 2 rows each. */

#define SKL__BLOCK_REGISTERS (2 * SKL__BLOCK_TOKENS)

/* From 1 token x 4 rows to 2 tokens x 2 rows per register, or back:  acc  [tokens / 2][2][2] */
SKL__INLINE void skl__regroup_neon(float32x4_t *acc, const size_t tokens)
{
    size_t i;

    SKL__EACH(i, SKL__BLOCK_TOKENS, tokens) {
        const float32x4_t a = acc[2 * i], b = acc[2 * i + 1];

        acc[2 * i] = vcombine_f32(vget_low_f32(a), vget_low_f32(b));
        acc[2 * i + 1] = vcombine_f32(vget_high_f32(a), vget_high_f32(b));
    }
}

/* Where rows [4 v, 4 v + 4) of token t are before skl__regroup_neon, or after it has taken them back. */
SKL__INLINE size_t skl__acc_neon(size_t t, size_t v, const int pairs)
{
    return pairs ? t / 2 * 4 + v * 2 + t % 2 : t * 2 + v;
}

SKL__INLINE void skl__block_load_neon(float32x4_t *acc, const skl__neon_block *b, const size_t tokens, const int pairs)
{
    size_t t;

    SKL__EACH(t, SKL__BLOCK_TOKENS, tokens) {
        acc[skl__acc_neon(t, 0, pairs)] = b->first ? skl__zeros_neon() : vld1q_f32(b->y + t * b->y_stride);
        acc[skl__acc_neon(t, 1, pairs)] = b->first ? skl__zeros_neon() : vld1q_f32(b->y + t * b->y_stride + 4);
    }
    if (pairs) skl__regroup_neon(acc, tokens);
}

SKL__INLINE void skl__block_store_neon(float32x4_t *acc, const skl__neon_block *b, const size_t tokens, const int pairs)
{
    size_t t, v;

    if (pairs) skl__regroup_neon(acc, tokens);
    SKL__EACH(t, SKL__BLOCK_TOKENS, tokens) SKL__EACH(v, 2, 2) {
        float32x4_t value = acc[skl__acc_neon(t, v, pairs)];

        if (b->last) value = vmulq_n_f32(value, b->x_row_scales[t]);
        vst1q_f32(b->y + t * b->y_stride + 4 * v, value);
    }
}

/* Sums at the beginning of a unit: zero, or, in a unit that panels split, what the panel before has left in acc. */
SKL__INLINE void skl__unit_begin_neon(int32x4_t *sums, float32x4_t *acc, const int split, const size_t tokens)
{
    size_t i;

    SKL__EACH(i, SKL__BLOCK_REGISTERS, 2 * tokens) {
        sums[i] = split ? vreinterpretq_s32_f32(acc[i]) : vdupq_n_s32(0);
        if (split) acc[i] = skl__zeros_neon();
    }
}

/* One number of each token in row i of the accumulators. */
SKL__INLINE float32x4_t skl__spread_neon(const float *tokens, size_t i, const int pairs)
{
    if (pairs) return vcombine_f32(vld1_dup_f32(tokens + 2 * i), vld1_dup_f32(tokens + 2 * i + 1));
    return vld1q_dup_f32(tokens + i);
}

/* acc += scale * x_scale * sum, and the same for minima and sums of activations. */
SKL__INLINE void skl__unit_end_neon(float32x4_t *acc, const int32x4_t *sums, const skl__neon_block *b, size_t u,
                                    const size_t tokens, const int pairs)
{
    const size_t across = pairs ? 4 : 2, down = pairs ? tokens / 2 : tokens;
    const float *x_scales = b->x_scales + u * SKL__STRIP_TOKENS, *x_sums = b->x_sums + u * SKL__STRIP_TOKENS;
    float32x4_t factor[4], x_scale, x_sum;
    size_t i, j, at;

    SKL__EACH(j, 4, across) factor[j] = vld1q_f32(b->scales + (u * across + j) * 4);
    SKL__EACH(i, SKL__BLOCK_TOKENS, down) {
        x_scale = skl__spread_neon(x_scales, i, pairs);
        SKL__EACH(j, 4, across) {
            at = i * across + j;
            acc[at] = vfmaq_f32(acc[at], vmulq_f32(factor[j], x_scale), vcvtq_f32_s32(sums[at]));
        }
    }
    if (!b->minimum) return;
    SKL__EACH(j, 4, across) factor[j] = vld1q_f32(b->minima + (u * across + j) * 4);
    SKL__EACH(i, SKL__BLOCK_TOKENS, down) {
        x_scale = skl__spread_neon(x_scales, i, pairs);
        x_sum = skl__spread_neon(x_sums, i, pairs);
        SKL__EACH(j, 4, across)
            acc[i * across + j] = vfmaq_f32(acc[i * across + j], vmulq_f32(factor[j], x_scale), x_sum);
    }
}

/* A unit longer than a panel carries its sums on in acc, unless this was its last panel. */
SKL__INLINE void skl__split_end_neon(float32x4_t *acc, const int32x4_t *sums, const skl__neon_block *b,
                                     const size_t tokens, const int pairs)
{
    size_t i;

    if (b->last) {
        skl__unit_end_neon(acc, sums, b, 0, tokens, pairs);
    } else {
        SKL__EACH(i, SKL__BLOCK_REGISTERS, 2 * tokens) acc[i] = vreinterpretq_f32_s32(sums[i]);
    }
}

/* -------------------------------------------------------------------------------------------- Accumulators of a stream
 * 16 rows are four registers per token. */

/* Four outputs, as far as the matrix has them. */
SKL__INLINE void skl__store_rows_neon(float *y, size_t rows, float32x4_t value)
{
    float part[4];

    if (rows >= 4) {
        vst1q_f32(y, value);
        return;
    }
    vst1q_f32(part, value);
    memcpy(y, part, rows * sizeof *y);
}

/* What a stream reads next. */
typedef struct skl__neon_stream {
    const unsigned char *codes;
    const int8_t *x[2];
    const float *x_scales[2];
    int32_t x_sums[2];         /* of the unit */
    size_t group;              /* 16 times the number of the group */
    size_t left;               /* columns of it */
} skl__neon_stream;

SKL__INLINE void skl__stream_begin_neon(skl__neon_stream *s, float32x4_t *acc, const skl__neon_job *job,
                                        const unsigned char *codes, size_t token, const float *one, const size_t width)
{
    const skl__acts *x = job->x;
    size_t t, i;

    s->codes = codes;
    s->group = 0;
    s->left = job->w->group;
    SKL__EACH(t, 2, width) {
        s->x[t] = x->codes + (token + t) * x->stride;
        s->x_scales[t] = x->row ? one : x->scales + (token + t) * (x->columns / 32);
    }
    SKL__EACH(i, 8, 4 * width) acc[i] = skl__zeros_neon();
}

/* Sums at the beginning of the unit at `column`. */
SKL__INLINE void skl__stream_unit_neon(skl__neon_stream *s, int32x4_t *sums, const skl__neon_job *job, size_t token,
                                       size_t column, const size_t width, const int bits)
{
    const int32_t offset = job->w->minimum ? 0 : -8;
    size_t t, v;

    SKL__EACH(t, 2, width) {
        s->x_sums[t] = bits == 4 || job->w->minimum ? skl__unit_sum_neon(job->x, token + t, column, job->unit) : 0;
        SKL__EACH(v, 4, 4) sums[t * 4 + v] = vdupq_n_s32(bits == 4 ? offset * s->x_sums[t] : 0);
    }
}

SKL__INLINE void skl__load_tile_scales_neon(float32x4_t *to, const unsigned char *scales, size_t first, int wide)
{
    size_t v;

    if (wide) {
        SKL__EACH(v, 4, 4) to[v] = skl__load_scales_neon(scales, first + 4 * v, 1);
    } else {
        SKL__EACH(v, 4, 4) to[v] = skl__load_scales_neon(scales, first + 4 * v, 0);
    }
}

/* The float chain, and on to the next unit. */
SKL__INLINE void skl__stream_scale_neon(skl__neon_stream *s, float32x4_t *acc, const int32x4_t *sums,
                                        const skl__neon_job *job, const skl__tile *tile, size_t column,
                                        const size_t width, const int bits)
{
    float32x4_t factor[4];
    float x_scale[2];
    size_t t, v;

    SKL__EACH(t, 2, width) x_scale[t] = s->x_scales[t][job->x->row ? 0 : column / 32];

    skl__load_tile_scales_neon(factor, tile->scales, s->group, job->w->wide);
    SKL__EACH(t, 2, width) SKL__EACH(v, 4, 4) {
        acc[t * 4 + v] = vfmaq_f32(acc[t * 4 + v], vmulq_n_f32(factor[v], x_scale[t]), vcvtq_f32_s32(sums[t * 4 + v]));
    }
    if (job->w->minimum) {
        skl__load_tile_scales_neon(factor, tile->minima, s->group, job->w->wide);
        SKL__EACH(t, 2, width) SKL__EACH(v, 4, 4) {
                acc[t * 4 + v] = vfmaq_f32(acc[t * 4 + v], vmulq_n_f32(factor[v], x_scale[t]),
                                           vdupq_n_f32((float)s->x_sums[t]));
        }
    }
    s->codes += job->unit * (bits == 4 ? 8 : 16);
    SKL__EACH(t, 2, width) s->x[t] += job->unit;
    s->left -= job->unit;
    if (s->left == 0) {
        s->left = job->w->group;
        s->group += 16;
    }
}

SKL__INLINE void skl__stream_end_neon(const float32x4_t *acc, const skl__neon_job *job, size_t tile, size_t token,
                                      const size_t width)
{
    const size_t rows = job->w->rows - tile * 16;
    float *y = job->y + token * job->y_stride + tile * 16;
    size_t t, v;

    SKL__EACH(t, 2, width) {
        const float x_scale = job->x->row ? job->x->scales[token + t] : 1.0f;

        SKL__EACH(v, 4, 4) {
            if (4 * v < rows) {
                skl__store_rows_neon(y + t * job->y_stride + 4 * v, rows - 4 * v, vmulq_n_f32(acc[t * 4 + v], x_scale));
            }
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------- Plain NEON
 * 4 columns of a token, in every quarter of a register, meet 2 x 2 rows in SMLAL and SMLAL2: each lane of 16 bits sums
 * over every fourth column of a row. Of codes of 4 bits a lane takes one run: 8 products of at most 15 * 127 make at
 * most 15240, and two lanes of the same row 30480. Of codes of 8 bits it takes two products of at most 128 * 127, which
 * make at most 32512. */

/* Columns 4 i to 4 i + 3 of 16, four times. */
#define SKL__QUAD_NEON(x, i) vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(x), i))

/* A run of 4 rows in 16 bits: lanes of rows 0 and 1, of rows 2 and 3. */
typedef struct skl__chain_neon {
    int16x8_t low, high;
} skl__chain_neon;

SKL__INLINE void skl__chain_add_neon(skl__chain_neon *chain, int8x16_t w, int8x16_t x)
{
    chain->low = vmlal_s8(chain->low, vget_low_s8(w), vget_low_s8(x));
    chain->high = vmlal_high_s8(chain->high, w, x);
}

SKL__INLINE int32x4_t skl__chain_end_neon(int32x4_t sum, const skl__chain_neon *chain)
{
    return vpadalq_s16(sum, vpaddq_s16(chain->low, chain->high));
}

/* 4 rows x 8 columns of 8 bits: low and high collect the lanes of rows 0 and 1, of rows 2 and 3. */
SKL__INLINE void skl__wide_add_neon(int32x4_t *low, int32x4_t *high, int8x16_t w0, int8x16_t w1, int8x16_t x0,
                                    int8x16_t x1)
{
    const int16x8_t a = vmlal_s8(vmull_s8(vget_low_s8(w0), vget_low_s8(x0)), vget_low_s8(w1), vget_low_s8(x1));
    const int16x8_t b = vmlal_high_s8(vmull_high_s8(w0, x0), w1, x1);

    *low = vpadalq_s16(*low, a);
    *high = vpadalq_s16(*high, b);
}

/* Integer sums of a unit, 4 bits. */
SKL__INLINE void skl__sum_q4_neon(int32x4_t *sums, const skl__neon_block *b, size_t u, const size_t tokens)
{
    const int8_t *w = b->codes + u * b->columns * 8, *x = b->x + u * b->columns * 2;
    skl__chain_neon chain[SKL__BLOCK_REGISTERS];
    int8x16_t w0, w1, quad;
    size_t k, half, t, i;

#define SKL__STEP(lane)                                                            \
    w0 = vld1q_s8(w + 32 * (lane));                                                \
    w1 = vld1q_s8(w + 32 * (lane) + 16);                                           \
    SKL__EACH(t, SKL__BLOCK_TOKENS, tokens) {                                      \
        quad = SKL__QUAD_NEON(vld1q_s8(x + t / 2 * b->x_pair + t % 2 * 16), lane); \
        skl__chain_add_neon(&chain[2 * t], w0, quad);                              \
        skl__chain_add_neon(&chain[2 * t + 1], w1, quad);                          \
    }
    for (k = 0; k < b->columns; k += 32) {
        SKL__EACH(i, SKL__BLOCK_REGISTERS, 2 * tokens) chain[i].low = chain[i].high = vdupq_n_s16(0);
        for (half = 0; half < 2; half++, w += 128, x += 32) {
            SKL__STEP(0)
            SKL__STEP(1)
            SKL__STEP(2)
            SKL__STEP(3)
        }
        SKL__EACH(i, SKL__BLOCK_REGISTERS, 2 * tokens) sums[i] = skl__chain_end_neon(sums[i], &chain[i]);
    }
#undef SKL__STEP
}

/* The same with activations of 4 bits and codes from -8 to 7: two products of at most 8 * 7 fit into 8 bits, and pairs
 * of those, at most 224, from all 64 octets of a panel into 16. */
SKL__INLINE void skl__sum_q4_a4_neon(int32x4_t *sums, const skl__neon_block *b, size_t u, const size_t tokens)
{
    const int8_t *w = b->codes + u * b->columns * 8, *x = b->x + u * b->columns * 2;
    int16x8_t pairs[SKL__BLOCK_REGISTERS];
    int8x16_t w0[2], w1[2], x0, x1;
    size_t k, t, i;

#define SKL__STEP(lane)                                                                                               \
    SKL__EACH(i, 2, 2) {                                                                                              \
        w0[i] = vld1q_s8(w + 32 * (lane) + 16 * i);                                                                   \
        w1[i] = vld1q_s8(w + 32 * (lane) + 16 * i + 32);                                                              \
    }                                                                                                                 \
    SKL__EACH(t, SKL__BLOCK_TOKENS, tokens) {                                                                         \
        x0 = SKL__QUAD_NEON(vld1q_s8(x + t / 2 * b->x_pair + t % 2 * 16), lane);                                      \
        x1 = SKL__QUAD_NEON(vld1q_s8(x + t / 2 * b->x_pair + t % 2 * 16), (lane) + 1);                                \
        SKL__EACH(i, 2, 2) pairs[2 * t + i] = vpadalq_s8(pairs[2 * t + i], vmlaq_s8(vmulq_s8(w0[i], x0), w1[i], x1)); \
    }
    SKL__EACH(i, SKL__BLOCK_REGISTERS, 2 * tokens) pairs[i] = vdupq_n_s16(0);
    for (k = 0; k < b->columns; k += 16, w += 128, x += 32) {
        SKL__STEP(0)
        SKL__STEP(2)
    }
    SKL__EACH(i, SKL__BLOCK_REGISTERS, 2 * tokens) sums[i] = vpadalq_s16(sums[i], pairs[i]);
#undef SKL__STEP
}

/* Integer sums of a unit, 8 bits. */
SKL__INLINE void skl__sum_q8_neon(int32x4_t *sums, const skl__neon_block *b, size_t u, const size_t tokens)
{
    const int8_t *w = b->codes + u * b->columns * 8, *x = b->x + u * b->columns * 2;
    int32x4_t low[SKL__BLOCK_REGISTERS], high[SKL__BLOCK_REGISTERS];
    int8x16_t w0[2], w1[2], x0, x1;
    size_t k, t, i;

#define SKL__STEP(lane)                                                                                 \
    SKL__EACH(i, 2, 2) {                                                                                \
        w0[i] = vld1q_s8(w + 32 * (lane) + 16 * i);                                                     \
        w1[i] = vld1q_s8(w + 32 * (lane) + 16 * i + 32);                                                \
    }                                                                                                   \
    SKL__EACH(t, SKL__BLOCK_TOKENS, tokens) {                                                           \
        x0 = SKL__QUAD_NEON(vld1q_s8(x + t / 2 * b->x_pair + t % 2 * 16), lane);                        \
        x1 = SKL__QUAD_NEON(vld1q_s8(x + t / 2 * b->x_pair + t % 2 * 16), (lane) + 1);                  \
        SKL__EACH(i, 2, 2) skl__wide_add_neon(&low[2 * t + i], &high[2 * t + i], w0[i], w1[i], x0, x1); \
    }
    SKL__EACH(i, SKL__BLOCK_REGISTERS, 2 * tokens) low[i] = high[i] = vdupq_n_s32(0);
    for (k = 0; k < b->columns; k += 16, w += 128, x += 32) {
        SKL__STEP(0)
        SKL__STEP(2)
    }
    SKL__EACH(i, SKL__BLOCK_REGISTERS, 2 * tokens) sums[i] = vaddq_s32(sums[i], vpaddq_s32(low[i], high[i]));
#undef SKL__STEP
}

typedef enum skl__neon_kind { SKL__NEON_Q4_A8, SKL__NEON_Q4_A4, SKL__NEON_Q8_A8 } skl__neon_kind;

SKL__INLINE void skl__sum_neon(int32x4_t *sums, const skl__neon_block *b, size_t u, const size_t tokens,
                               const skl__neon_kind kind)
{
    if (kind == SKL__NEON_Q4_A8) skl__sum_q4_neon(sums, b, u, tokens);
    else if (kind == SKL__NEON_Q4_A4) skl__sum_q4_a4_neon(sums, b, u, tokens);
    else skl__sum_q8_neon(sums, b, u, tokens);
}

SKL__INLINE void skl__block_neon(const skl__neon_block *b, const size_t tokens, const skl__neon_kind kind)
{
    float32x4_t acc[SKL__BLOCK_REGISTERS];
    int32x4_t sums[SKL__BLOCK_REGISTERS];
    size_t u;

    skl__block_load_neon(acc, b, tokens, 0);
    for (u = 0; u < b->units && !b->split; u++) {
        skl__unit_begin_neon(sums, acc, 0, tokens);
        skl__sum_neon(sums, b, u, tokens, kind);
        skl__unit_end_neon(acc, sums, b, u, tokens, 0);
    }
    if (b->split) {
        skl__unit_begin_neon(sums, acc, 1, tokens);
        skl__sum_neon(sums, b, 0, tokens, kind);
        skl__split_end_neon(acc, sums, b, tokens, 0);
    }
    skl__block_store_neon(acc, b, tokens, 0);
}

static void skl__block_q4_a8_neon(const skl__neon_block *b, size_t width)
{
    if (width == 2) skl__block_neon(b, 2, SKL__NEON_Q4_A8);
    else skl__block_neon(b, 4, SKL__NEON_Q4_A8);
}

static void skl__block_q4_a4_neon(const skl__neon_block *b, size_t width)
{
    if (width == 2) skl__block_neon(b, 2, SKL__NEON_Q4_A4);
    else if (width == 4) skl__block_neon(b, 4, SKL__NEON_Q4_A4);
    else skl__block_neon(b, 6, SKL__NEON_Q4_A4);
}

static void skl__block_q8_a8_neon(const skl__neon_block *b, size_t width)
{
    if (width == 2) skl__block_neon(b, 2, SKL__NEON_Q8_A8);
    else skl__block_neon(b, 4, SKL__NEON_Q8_A8);
}

/* Integer sums of a unit of 16 rows, straight from the packed codes. */
SKL__INLINE void skl__stream_q4_sum_neon(int32x4_t *sums, const skl__neon_stream *s, size_t columns, const size_t width)
{
    const unsigned char *w = s->codes;
    const int8_t *const *x = s->x;
    skl__chain_neon chain[8];
    int8x16_t line, low, high;
    size_t k, t, v, i;

#define SKL__STEP(lane)                                                                                  \
    SKL__EACH(v, 4, 4) {                                                                                 \
        line = skl__load_codes_neon(w + 64 * (lane) + 16 * v);                                           \
        low = vandq_s8(line, vdupq_n_s8(15));                                                            \
        high = vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(line), 4));                            \
        SKL__EACH(t, 2, width) {                                                                         \
            skl__chain_add_neon(&chain[t * 4 + v], low, SKL__QUAD_NEON(vld1q_s8(x[t] + k), lane));       \
            skl__chain_add_neon(&chain[t * 4 + v], high, SKL__QUAD_NEON(vld1q_s8(x[t] + k + 16), lane)); \
        }                                                                                                \
    }
    for (k = 0; k < columns; k += 32, w += 256) {
        SKL__EACH(i, 8, 4 * width) chain[i].low = chain[i].high = vdupq_n_s16(0);
        SKL__STEP(0)
        SKL__STEP(1)
        SKL__STEP(2)
        SKL__STEP(3)
        SKL__EACH(i, 8, 4 * width) sums[i] = skl__chain_end_neon(sums[i], &chain[i]);
    }
#undef SKL__STEP
}

SKL__INLINE void skl__stream_q8_sum_neon(int32x4_t *sums, const skl__neon_stream *s, size_t columns, const size_t width)
{
    const unsigned char *w = s->codes;
    const int8_t *const *x = s->x;
    int32x4_t low[8], high[8];
    int8x16_t w0, w1;
    size_t k, t, v, i;

#define SKL__STEP(lane)                                                                                \
    SKL__EACH(v, 4, 4) {                                                                               \
        w0 = skl__load_codes_neon(w + 64 * (lane) + 16 * v);                                           \
        w1 = skl__load_codes_neon(w + 64 * (lane) + 16 * v + 64);                                      \
        SKL__EACH(t, 2, width) {                                                                       \
            const int8x16_t codes = vld1q_s8(x[t] + k);                                                \
            skl__wide_add_neon(&low[t * 4 + v], &high[t * 4 + v], w0, w1, SKL__QUAD_NEON(codes, lane), \
                               SKL__QUAD_NEON(codes, (lane) + 1));                                     \
        }                                                                                              \
    }
    SKL__EACH(i, 8, 4 * width) low[i] = high[i] = vdupq_n_s32(0);
    for (k = 0; k < columns; k += 16, w += 256) {
        SKL__STEP(0)
        SKL__STEP(2)
    }
    SKL__EACH(i, 8, 4 * width) sums[i] = vaddq_s32(sums[i], vpaddq_s32(low[i], high[i]));
#undef SKL__STEP
}

SKL__INLINE void skl__stream_neon(const skl__neon_job *job, size_t tile, size_t token, const size_t width,
                                  const int bits)
{
    const skl__tile parts = skl__tile_at(job->w, tile);
    const float one = 1.0f;
    skl__neon_stream s;
    float32x4_t acc[8];
    int32x4_t sums[8];
    size_t column;

    skl__stream_begin_neon(&s, acc, job, parts.codes, token, &one, width);
    for (column = 0; column < job->w->columns; column += job->unit) {
        skl__stream_unit_neon(&s, sums, job, token, column, width, bits);
        if (bits == 4) skl__stream_q4_sum_neon(sums, &s, job->unit, width);
        else skl__stream_q8_sum_neon(sums, &s, job->unit, width);
        skl__stream_scale_neon(&s, acc, sums, job, &parts, column, width, bits);
    }
    skl__stream_end_neon(acc, job, tile, token, width);
}

static void skl__stream_q4_neon(const skl__neon_job *job, size_t tile, size_t token, size_t tokens)
{
    if (tokens == 1) skl__stream_neon(job, tile, token, 1, 4);
    else skl__stream_neon(job, tile, token, 2, 4);
}

static void skl__stream_q8_neon(const skl__neon_job *job, size_t tile, size_t token, size_t tokens)
{
    if (tokens == 1) skl__stream_neon(job, tile, token, 1, 8);
    else skl__stream_neon(job, tile, token, 2, 8);
}

static void skl__matmul_q4_a8_neon(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin, size_t tile_end,
                                   const skl__acts *x, size_t tokens)
{
    static const skl__neon_way way = {skl__block_q4_a8_neon, 4, skl__stream_q4_neon, 0};
    skl__matmul_through_neon(y, y_stride, w, tile_begin, tile_end, x, tokens, &way);
}

/* Codes that come with a minimum are not signed and do not fit the 8-bit sums. */
static void skl__matmul_q4_a4_neon(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin, size_t tile_end,
                                   const skl__acts *x, size_t tokens)
{
    static const skl__neon_way small = {skl__block_q4_a4_neon, SKL__BLOCK_TOKENS, skl__stream_q4_neon, 0};

    if (w->minimum) skl__matmul_q4_a8_neon(y, y_stride, w, tile_begin, tile_end, x, tokens);
    else skl__matmul_through_neon(y, y_stride, w, tile_begin, tile_end, x, tokens, &small);
}

static void skl__matmul_q8_a8_neon(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin, size_t tile_end,
                                   const skl__acts *x, size_t tokens)
{
    static const skl__neon_way way = {skl__block_q8_a8_neon, 4, skl__stream_q8_neon, 0};
    skl__matmul_through_neon(y, y_stride, w, tile_begin, tile_end, x, tokens, &way);
}

/* ---------------------------------------------------------------------------------------------------------------- SDOT
 * Codes of 4 and of 8 bits are the same once unpacked. 12 integer and 12 float accumulators, 6 activations and 2 codes
 * are 32 registers; 16 columns cost 14 loads and 48 SDOT. */
#if SKL__HAS_NEON_DOTPROD

SKL__INLINE SKL__TARGET_DOTPROD void skl__sum_dotprod(int32x4_t *sums, const skl__neon_block *b, size_t u,
                                                      const size_t tokens)
{
    const int8_t *w = b->codes + u * b->columns * 8, *x = b->x + u * b->columns * 2;
    int8x16_t codes[SKL__BLOCK_TOKENS], w0, w1;
    size_t k, t;

#define SKL__STEP(lane)                                                         \
    w0 = vld1q_s8(w + 32 * (lane));                                             \
    w1 = vld1q_s8(w + 32 * (lane) + 16);                                        \
    SKL__EACH(t, SKL__BLOCK_TOKENS, tokens) {                                   \
        sums[2 * t] = vdotq_laneq_s32(sums[2 * t], w0, codes[t], lane);         \
        sums[2 * t + 1] = vdotq_laneq_s32(sums[2 * t + 1], w1, codes[t], lane); \
    }
    for (k = 0; k < b->columns; k += 16, w += 128, x += 32) {
        SKL__EACH(t, SKL__BLOCK_TOKENS, tokens) codes[t] = vld1q_s8(x + t / 2 * b->x_pair + t % 2 * 16);
        SKL__STEP(0)
        SKL__STEP(1)
        SKL__STEP(2)
        SKL__STEP(3)
    }
#undef SKL__STEP
}

SKL__INLINE SKL__TARGET_DOTPROD void skl__block_tokens_dotprod(const skl__neon_block *b, const size_t tokens)
{
    float32x4_t acc[SKL__BLOCK_REGISTERS];
    int32x4_t sums[SKL__BLOCK_REGISTERS];
    size_t u;

    skl__block_load_neon(acc, b, tokens, 0);
    for (u = 0; u < b->units && !b->split; u++) {
        skl__unit_begin_neon(sums, acc, 0, tokens);
        skl__sum_dotprod(sums, b, u, tokens);
        skl__unit_end_neon(acc, sums, b, u, tokens, 0);
    }
    if (b->split) {
        skl__unit_begin_neon(sums, acc, 1, tokens);
        skl__sum_dotprod(sums, b, 0, tokens);
        skl__split_end_neon(acc, sums, b, tokens, 0);
    }
    skl__block_store_neon(acc, b, tokens, 0);
}

static SKL__TARGET_DOTPROD void skl__block_dotprod(const skl__neon_block *b, size_t width)
{
    if (width == 2) skl__block_tokens_dotprod(b, 2);
    else if (width == 4) skl__block_tokens_dotprod(b, 4);
    else skl__block_tokens_dotprod(b, 6);
}

SKL__INLINE SKL__TARGET_DOTPROD void skl__stream_q4_sum_dotprod(int32x4_t *sums, const skl__neon_stream *s,
                                                                size_t columns, const size_t width)
{
    const unsigned char *w = s->codes;
    const int8_t *const *x = s->x;
    int8x16_t x_low[2], x_high[2], line, low, high;
    size_t k, t, v;

#define SKL__STEP(lane)                                                                \
    SKL__EACH(v, 4, 4) {                                                               \
        line = skl__load_codes_neon(w + 64 * (lane) + 16 * v);                         \
        low = vandq_s8(line, vdupq_n_s8(15));                                          \
        high = vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(line), 4));          \
        SKL__EACH(t, 2, width) {                                                       \
            sums[t * 4 + v] = vdotq_laneq_s32(sums[t * 4 + v], low, x_low[t], lane);   \
            sums[t * 4 + v] = vdotq_laneq_s32(sums[t * 4 + v], high, x_high[t], lane); \
        }                                                                              \
    }
    for (k = 0; k < columns; k += 32, w += 256) {
        SKL__EACH(t, 2, width) {
            x_low[t] = vld1q_s8(x[t] + k);
            x_high[t] = vld1q_s8(x[t] + k + 16);
        }
        SKL__STEP(0)
        SKL__STEP(1)
        SKL__STEP(2)
        SKL__STEP(3)
    }
#undef SKL__STEP
}

SKL__INLINE SKL__TARGET_DOTPROD void skl__stream_q8_sum_dotprod(int32x4_t *sums, const skl__neon_stream *s,
                                                                size_t columns, const size_t width)
{
    const unsigned char *w = s->codes;
    const int8_t *const *x = s->x;
    int8x16_t codes[2], line;
    size_t k, t, v;

#define SKL__STEP(lane)                                                                                  \
    SKL__EACH(v, 4, 4) {                                                                                 \
        line = skl__load_codes_neon(w + 64 * (lane) + 16 * v);                                           \
        SKL__EACH(t, 2, width) sums[t * 4 + v] = vdotq_laneq_s32(sums[t * 4 + v], line, codes[t], lane); \
    }
    for (k = 0; k < columns; k += 16, w += 256) {
        SKL__EACH(t, 2, width) codes[t] = vld1q_s8(x[t] + k);
        SKL__STEP(0)
        SKL__STEP(1)
        SKL__STEP(2)
        SKL__STEP(3)
    }
#undef SKL__STEP
}

SKL__INLINE SKL__TARGET_DOTPROD void skl__stream_dotprod(const skl__neon_job *job, size_t tile, size_t token,
                                                         const size_t width, const int bits)
{
    const skl__tile parts = skl__tile_at(job->w, tile);
    const float one = 1.0f;
    skl__neon_stream s;
    float32x4_t acc[8];
    int32x4_t sums[8];
    size_t column;

    skl__stream_begin_neon(&s, acc, job, parts.codes, token, &one, width);
    for (column = 0; column < job->w->columns; column += job->unit) {
        skl__stream_unit_neon(&s, sums, job, token, column, width, bits);
        if (bits == 4) skl__stream_q4_sum_dotprod(sums, &s, job->unit, width);
        else skl__stream_q8_sum_dotprod(sums, &s, job->unit, width);
        skl__stream_scale_neon(&s, acc, sums, job, &parts, column, width, bits);
    }
    skl__stream_end_neon(acc, job, tile, token, width);
}

static SKL__TARGET_DOTPROD void skl__stream_q4_dotprod(const skl__neon_job *job, size_t tile, size_t token,
                                                       size_t tokens)
{
    if (tokens == 1) skl__stream_dotprod(job, tile, token, 1, 4);
    else skl__stream_dotprod(job, tile, token, 2, 4);
}

static SKL__TARGET_DOTPROD void skl__stream_q8_dotprod(const skl__neon_job *job, size_t tile, size_t token,
                                                       size_t tokens)
{
    if (tokens == 1) skl__stream_dotprod(job, tile, token, 1, 8);
    else skl__stream_dotprod(job, tile, token, 2, 8);
}

static void skl__matmul_q4_a8_neon_dotprod(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin,
                                           size_t tile_end, const skl__acts *x, size_t tokens)
{
    static const skl__neon_way way = {skl__block_dotprod, 6, skl__stream_q4_dotprod, 0};
    skl__matmul_through_neon(y, y_stride, w, tile_begin, tile_end, x, tokens, &way);
}

static void skl__matmul_q8_a8_neon_dotprod(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin,
                                           size_t tile_end, const skl__acts *x, size_t tokens)
{
    static const skl__neon_way way = {skl__block_dotprod, 6, skl__stream_q8_dotprod, 0};
    skl__matmul_through_neon(y, y_stride, w, tile_begin, tile_end, x, tokens, &way);
}

#endif

/* --------------------------------------------------------------------------------------------------------------- SMMLA
 * 12 integer and 12 float accumulators, 3 pairs of tokens and 4 pairs of rows; 8 columns cost 7 loads and 12 SMMLA. One
 * token has no use for it. */
#if SKL__HAS_NEON_I8MM

SKL__INLINE SKL__TARGET_I8MM void skl__sum_i8mm(int32x4_t *sums, const skl__neon_block *b, size_t u,
                                                const size_t tokens)
{
    const int8_t *w = b->codes + u * b->columns * 8, *x = b->x + u * b->columns * 2;
    int8x16_t rows[4], pair;
    size_t k, octet, i, j;

    for (k = 0; k < b->columns; k += 16, w += 128, x += 32) {
        SKL__EACH(octet, 2, 2) {
            SKL__EACH(j, 4, 4) rows[j] = vld1q_s8(w + 64 * octet + 16 * j);
            SKL__EACH(i, SKL__BLOCK_TOKENS / 2, tokens / 2) {
                pair = vld1q_s8(x + 16 * octet + i * b->x_pair);
                SKL__EACH(j, 4, 4) sums[4 * i + j] = vmmlaq_s32(sums[4 * i + j], pair, rows[j]);
            }
        }
    }
}

SKL__INLINE SKL__TARGET_I8MM void skl__block_tokens_i8mm(const skl__neon_block *b, const size_t tokens)
{
    float32x4_t acc[SKL__BLOCK_REGISTERS];
    int32x4_t sums[SKL__BLOCK_REGISTERS];
    size_t u;

    skl__block_load_neon(acc, b, tokens, 1);
    for (u = 0; u < b->units && !b->split; u++) {
        skl__unit_begin_neon(sums, acc, 0, tokens);
        skl__sum_i8mm(sums, b, u, tokens);
        skl__unit_end_neon(acc, sums, b, u, tokens, 1);
    }
    if (b->split) {
        skl__unit_begin_neon(sums, acc, 1, tokens);
        skl__sum_i8mm(sums, b, 0, tokens);
        skl__split_end_neon(acc, sums, b, tokens, 1);
    }
    skl__block_store_neon(acc, b, tokens, 1);
}

static SKL__TARGET_I8MM void skl__block_i8mm(const skl__neon_block *b, size_t width)
{
    if (width == 2) skl__block_tokens_i8mm(b, 2);
    else if (width == 4) skl__block_tokens_i8mm(b, 4);
    else skl__block_tokens_i8mm(b, 6);
}

static void skl__matmul_q4_a8_neon_i8mm(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin,
                                        size_t tile_end, const skl__acts *x, size_t tokens)
{
    static const skl__neon_way way = {skl__block_i8mm, 6, skl__stream_q4_dotprod, 1};
    skl__matmul_through_neon(y, y_stride, w, tile_begin, tile_end, x, tokens, &way);
}

static void skl__matmul_q8_a8_neon_i8mm(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin,
                                        size_t tile_end, const skl__acts *x, size_t tokens)
{
    static const skl__neon_way way = {skl__block_i8mm, 6, skl__stream_q8_dotprod, 1};
    skl__matmul_through_neon(y, y_stride, w, tile_begin, tile_end, x, tokens, &way);
}

#endif
#endif

/* =====================================================================================================================
 * >>lanes                                                                                Float kernels on sixteen lanes
 *
 * Everything in float that is worth a vector unit. Each kernel is written once, in a small vocabulary of operations on
 * sixteen floats, and compiled once per instruction set: this part of the file includes itself with SKL__LANES naming the
 * instance (scalar, avx2, avx512, neon). The scalar instance is the reference. All instances perform the same IEEE
 * operations in the same order, lane by lane, so their results are the same bits by construction:
 *
 *     - a reduction runs over sixteen strided partial sums, then over the tree 8, 4, 2, 1 (skl__vsum);
 *     - an attention score or a mixed value lives in one lane and is one chain of fused multiply-adds;
 *     - min, max and select treat NaN like the x86 instructions (the second operand wins).
 * ================================================================================================================== */

#define SKL__PASTE_(a, b) a##_##b
#define SKL__PASTE(a, b) SKL__PASTE_(a, b)
#define SKL__LANE(name) SKL__PASTE(name, SKL__LANES)

/* The vocabulary. v = sixteen floats. */
#define skl__v SKL__LANE(skl__v)                 /* the type                                                            */
#define skl__vset SKL__LANE(skl__vset)           /* all lanes = x                                                       */
#define skl__vload SKL__LANE(skl__vload)         /* sixteen floats, any alignment                                       */
#define skl__vload_f16 SKL__LANE(skl__vload_f16) /* sixteen f16, widened                                                */
#define skl__vload_bf16 SKL__LANE(skl__vload_bf16)
#define skl__vload_i8 SKL__LANE(skl__vload_i8)   /* sixteen int8                                                        */
#define skl__vload_i4 SKL__LANE(skl__vload_i4)   /* nibbles of sixteen bytes, less 8: v[0] = the low ones, v[1] = the high */
#define skl__vload_u32 SKL__LANE(skl__vload_u32) /* sixteen u32: (u >> shift) & 15                                      */
#define skl__vload_s32 SKL__LANE(skl__vload_s32) /* sixteen u32: signed byte number shift / 8                           */
#define skl__vstore SKL__LANE(skl__vstore)
#define skl__vstore_f16 SKL__LANE(skl__vstore_f16) /* rounded to nearest even                                           */
#define skl__vstore_i8 SKL__LANE(skl__vstore_i8)   /* lanes that hold integers in -128 .. 127                           */
#define skl__vadd SKL__LANE(skl__vadd)
#define skl__vsub SKL__LANE(skl__vsub)
#define skl__vmul SKL__LANE(skl__vmul)
#define skl__vdiv SKL__LANE(skl__vdiv)
#define skl__vfma SKL__LANE(skl__vfma)           /* a * b + c, rounded once                                             */
#define skl__vmin SKL__LANE(skl__vmin)           /* a < b ? a : b                                                       */
#define skl__vmax SKL__LANE(skl__vmax)           /* a > b ? a : b                                                       */
#define skl__vabs SKL__LANE(skl__vabs)
#define skl__vldexp SKL__LANE(skl__vldexp)       /* a 2^n, rounded once; n whole, |n| <= 252, |a| in 0.5 .. 2, or NaN    */
#define skl__vless SKL__LANE(skl__vless)         /* a < b ? x : y                                                       */
#define skl__vswap SKL__LANE(skl__vswap)         /* lanes 2j and 2j + 1 change places                                   */
#define skl__vzip_low SKL__LANE(skl__vzip_low)   /* a[0] b[0] a[1] b[1] ... a[7] b[7]                                   */
#define skl__vzip_high SKL__LANE(skl__vzip_high) /* a[8] b[8] ... a[15] b[15]                                           */
#define skl__vsum SKL__LANE(skl__vsum)           /* sum by the tree 8, 4, 2, 1                                          */
#define skl__vlargest SKL__LANE(skl__vlargest)   /* the largest lane; unspecified if one is NaN                          */
#define skl__vsum16 SKL__LANE(skl__vsum16)       /* lane r = skl__vsum(rows[r])                                         */
#define skl__vlargest16 SKL__LANE(skl__vlargest16) /* lane r = skl__vlargest(rows[r])                                   */

/* 1.5 * 2^23: adding it to |x| < 2^22 rounds x to the nearest even integer, which is then in the low mantissa bits. */
#define SKL__MAGIC 12582912.0f

/* ------------------------------------------------------------------------------------------------ scalar vocabulary */

/* The reference need not be fast, but must not be large: nothing of it is inlined by force. */
#define SKL__SCALAR static SKL__UNUSED
#define SKL__LANES_EACH for (i = 0; i < 16; i++)

typedef struct skl__v_scalar { float lane[16]; } skl__v_scalar;

SKL__SCALAR skl__v_scalar skl__vset_scalar(float x)
{
    skl__v_scalar v;
    int i;
    SKL__LANES_EACH v.lane[i] = x;
    return v;
}

SKL__SCALAR skl__v_scalar skl__vload_scalar(const void *p)
{
    skl__v_scalar v;
    memcpy(v.lane, p, sizeof v.lane);
    return v;
}

SKL__SCALAR skl__v_scalar skl__vload_f16_scalar(const void *p)
{
    const unsigned char *bytes = (const unsigned char *)p;
    skl__v_scalar v;
    int i;
    SKL__LANES_EACH v.lane[i] = skl__f16_to_f32(skl__le16(bytes + 2 * i));
    return v;
}

SKL__SCALAR skl__v_scalar skl__vload_bf16_scalar(const void *p)
{
    const unsigned char *bytes = (const unsigned char *)p;
    skl__v_scalar v;
    int i;
    SKL__LANES_EACH v.lane[i] = skl__bf16_to_f32(skl__le16(bytes + 2 * i));
    return v;
}

SKL__SCALAR skl__v_scalar skl__vload_i8_scalar(const void *p)
{
    const signed char *bytes = (const signed char *)p;
    skl__v_scalar v;
    int i;
    SKL__LANES_EACH v.lane[i] = (float)bytes[i];
    return v;
}

SKL__SCALAR void skl__vload_i4_scalar(skl__v_scalar v[2], const void *p)
{
    const unsigned char *bytes = (const unsigned char *)p;
    int i;
    SKL__LANES_EACH v[0].lane[i] = (float)((bytes[i] & 15) - 8);
    SKL__LANES_EACH v[1].lane[i] = (float)((bytes[i] >> 4) - 8);
}

SKL__SCALAR skl__v_scalar skl__vload_u32_scalar(const void *p, int shift)
{
    const unsigned char *bytes = (const unsigned char *)p;
    skl__v_scalar v;
    int i;
    SKL__LANES_EACH v.lane[i] = (float)((bytes[4 * i + shift / 8] >> (shift & 7)) & 15);
    return v;
}

SKL__SCALAR skl__v_scalar skl__vload_s32_scalar(const void *p, int shift)
{
    const signed char *bytes = (const signed char *)p;
    skl__v_scalar v;
    int i;
    SKL__LANES_EACH v.lane[i] = (float)bytes[4 * i + shift / 8];
    return v;
}

SKL__SCALAR void skl__vstore_scalar(float *p, skl__v_scalar v) { memcpy(p, v.lane, sizeof v.lane); }

SKL__SCALAR void skl__vstore_f16_scalar(uint16_t *p, skl__v_scalar v)
{
    int i;
    SKL__LANES_EACH p[i] = skl__f32_to_f16(v.lane[i]);
}

SKL__SCALAR void skl__vstore_i8_scalar(int8_t *p, skl__v_scalar v)
{
    int i;
    SKL__LANES_EACH p[i] = (int8_t)v.lane[i];
}

#define SKL__LANES_SCALAR(name, expression)                                                                                 \
    SKL__SCALAR skl__v_scalar name##_scalar(skl__v_scalar a, skl__v_scalar b)                                               \
    {                                                                                                                       \
        int i;                                                                                                              \
        SKL__LANES_EACH a.lane[i] = (expression);                                                                           \
        return a;                                                                                                           \
    }
SKL__LANES_SCALAR(skl__vadd, a.lane[i] + b.lane[i])
SKL__LANES_SCALAR(skl__vsub, a.lane[i] - b.lane[i])
SKL__LANES_SCALAR(skl__vmul, skl__mul(a.lane[i], b.lane[i]))
SKL__LANES_SCALAR(skl__vdiv, skl__div(a.lane[i], b.lane[i]))
SKL__LANES_SCALAR(skl__vmin, a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i])
SKL__LANES_SCALAR(skl__vmax, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i])
#undef SKL__LANES_SCALAR

SKL__SCALAR skl__v_scalar skl__vfma_scalar(skl__v_scalar a, skl__v_scalar b, skl__v_scalar c)
{
    int i;
    SKL__LANES_EACH c.lane[i] = skl__fma(a.lane[i], b.lane[i], c.lane[i]);
    return c;
}

SKL__SCALAR skl__v_scalar skl__vabs_scalar(skl__v_scalar a)
{
    int i;
    SKL__LANES_EACH a.lane[i] = skl__f32_from_bits(skl__f32_to_bits(a.lane[i]) & 0x7fffffffu);
    return a;
}

/* n + SKL__MAGIC -> 2^n, -126 <= n <= 127 */
SKL__SCALAR float skl__pow2_scalar(float t) { return skl__f32_from_bits((skl__f32_to_bits(t) + 127u) << 23); }

/* In two steps, because 2^n itself may be no float; the first is exact. */
SKL__SCALAR skl__v_scalar skl__vldexp_scalar(skl__v_scalar a, skl__v_scalar n)
{
    int i;
    SKL__LANES_EACH {
        const float half = skl__fma(n.lane[i], 0.5f, SKL__MAGIC), rest = n.lane[i] - (half - SKL__MAGIC);
        a.lane[i] = skl__mul(skl__mul(a.lane[i], skl__pow2_scalar(half)), skl__pow2_scalar(rest + SKL__MAGIC));
    }
    return a;
}

SKL__SCALAR skl__v_scalar skl__vless_scalar(skl__v_scalar a, skl__v_scalar b, skl__v_scalar x, skl__v_scalar y)
{
    int i;
    SKL__LANES_EACH y.lane[i] = a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i];
    return y;
}

SKL__SCALAR skl__v_scalar skl__vswap_scalar(skl__v_scalar a)
{
    skl__v_scalar v;
    int i;
    SKL__LANES_EACH v.lane[i] = a.lane[i ^ 1];
    return v;
}

SKL__SCALAR skl__v_scalar skl__vzip_low_scalar(skl__v_scalar a, skl__v_scalar b)
{
    skl__v_scalar v;
    int i;
    SKL__LANES_EACH v.lane[i] = i % 2 ? b.lane[i / 2] : a.lane[i / 2];
    return v;
}

SKL__SCALAR skl__v_scalar skl__vzip_high_scalar(skl__v_scalar a, skl__v_scalar b)
{
    skl__v_scalar v;
    int i;
    SKL__LANES_EACH v.lane[i] = i % 2 ? b.lane[8 + i / 2] : a.lane[8 + i / 2];
    return v;
}

SKL__SCALAR float skl__vsum_scalar(skl__v_scalar a)
{
    int i, half;
    for (half = 8; half > 0; half /= 2)
        for (i = 0; i < half; i++) a.lane[i] += a.lane[i + half];
    return a.lane[0];
}

SKL__SCALAR float skl__vlargest_scalar(skl__v_scalar a)
{
    float largest = a.lane[0];
    int i;
    SKL__LANES_EACH largest = a.lane[i] > largest ? a.lane[i] : largest;
    return largest;
}

SKL__SCALAR skl__v_scalar skl__vsum16_scalar(const skl__v_scalar rows[16])
{
    skl__v_scalar v;
    int i;
    SKL__LANES_EACH v.lane[i] = skl__vsum_scalar(rows[i]);
    return v;
}

SKL__SCALAR skl__v_scalar skl__vlargest16_scalar(const skl__v_scalar rows[16])
{
    skl__v_scalar v;
    int i;
    SKL__LANES_EACH v.lane[i] = skl__vlargest_scalar(rows[i]);
    return v;
}

#undef SKL__LANES_EACH

/* --------------------------------------------------------------------------------------------------- x86 vocabulary */

#if SKL__X86_KERNELS

#define SKL__TARGET_AVX2 SKL__TARGET(SKL__AVX2)
#define SKL__TARGET_AVX512 SKL__TARGET(SKL__AVX512)
#define SKL__V_AVX2 SKL__TARGET_AVX2 SKL__INLINE
#define SKL__V_AVX512 SKL__TARGET_AVX512 SKL__INLINE

typedef struct skl__v_avx2 { __m256 lo, hi; } skl__v_avx2;
typedef __m512 skl__v_avx512;

SKL__V_AVX2 skl__v_avx2 skl__vpair_avx2(__m256 lo, __m256 hi)
{
    skl__v_avx2 v;
    v.lo = lo;
    v.hi = hi;
    return v;
}

SKL__V_AVX2 __m128i skl__load128_avx2(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
SKL__V_AVX2 __m256i skl__load256_avx2(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
SKL__V_AVX2 skl__v_avx2 skl__vset_avx2(float x) { return skl__vpair_avx2(_mm256_set1_ps(x), _mm256_set1_ps(x)); }

SKL__V_AVX2 skl__v_avx2 skl__vload_avx2(const void *p)
{
    const float *x = (const float *)p;
    return skl__vpair_avx2(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8));
}

SKL__V_AVX2 skl__v_avx2 skl__vload_f16_avx2(const void *p)
{
    const unsigned char *x = (const unsigned char *)p;
    return skl__vpair_avx2(_mm256_cvtph_ps(skl__load128_avx2(x)), _mm256_cvtph_ps(skl__load128_avx2(x + 16)));
}

SKL__V_AVX2 skl__v_avx2 skl__vload_bf16_avx2(const void *p)
{
    const unsigned char *x = (const unsigned char *)p;
    const __m256i lo = _mm256_cvtepu16_epi32(skl__load128_avx2(x)), hi = _mm256_cvtepu16_epi32(skl__load128_avx2(x + 16));
    return skl__vpair_avx2(_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16)));
}

SKL__V_AVX2 skl__v_avx2 skl__vwiden_avx2(__m256i lo, __m256i hi)
{
    return skl__vpair_avx2(_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi));
}

SKL__V_AVX2 skl__v_avx2 skl__vwiden_s8_avx2(__m128i x)
{
    return skl__vwiden_avx2(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)));
}

SKL__V_AVX2 skl__v_avx2 skl__vload_i8_avx2(const void *p) { return skl__vwiden_s8_avx2(skl__load128_avx2(p)); }

SKL__V_AVX2 void skl__vload_i4_avx2(skl__v_avx2 v[2], const void *p)
{
    const __m128i x = skl__load128_avx2(p), low = _mm_set1_epi8(15), eight = _mm_set1_epi8(8);
    v[0] = skl__vwiden_s8_avx2(_mm_sub_epi8(_mm_and_si128(x, low), eight));
    v[1] = skl__vwiden_s8_avx2(_mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(x, 4), low), eight));
}

SKL__V_AVX2 skl__v_avx2 skl__vload_u32_avx2(const void *p, int shift)
{
    const unsigned char *x = (const unsigned char *)p;
    const __m128i count = _mm_cvtsi32_si128(shift);
    const __m256i low = _mm256_set1_epi32(15);
    return skl__vwiden_avx2(_mm256_and_si256(_mm256_srl_epi32(skl__load256_avx2(x), count), low),
                            _mm256_and_si256(_mm256_srl_epi32(skl__load256_avx2(x + 32), count), low));
}

SKL__V_AVX2 skl__v_avx2 skl__vload_s32_avx2(const void *p, int shift)
{
    const unsigned char *x = (const unsigned char *)p;
    const __m128i count = _mm_cvtsi32_si128(24 - shift);
    return skl__vwiden_avx2(_mm256_srai_epi32(_mm256_sll_epi32(skl__load256_avx2(x), count), 24),
                            _mm256_srai_epi32(_mm256_sll_epi32(skl__load256_avx2(x + 32), count), 24));
}

SKL__V_AVX2 void skl__vstore_avx2(float *p, skl__v_avx2 v)
{
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}

SKL__V_AVX2 void skl__vstore_f16_avx2(uint16_t *p, skl__v_avx2 v)
{
    const __m128i lo = _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT), hi = _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT);
    memcpy(p, &lo, sizeof lo);
    memcpy(p + 8, &hi, sizeof hi);
}

SKL__V_AVX2 void skl__vstore_i8_avx2(int8_t *p, skl__v_avx2 v)
{
    const __m256i pairs = _mm256_packs_epi32(_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi)); /* quarters 0 2 1 3 */
    const __m256i ordered = _mm256_permute4x64_epi64(pairs, 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
    memcpy(p, &bytes, sizeof bytes);
}

#define SKL__LANES_AVX2(name, op)                                                                                           \
    SKL__V_AVX2 skl__v_avx2 name##_avx2(skl__v_avx2 a, skl__v_avx2 b)                                                       \
    {                                                                                                                       \
        return skl__vpair_avx2(op(a.lo, b.lo), op(a.hi, b.hi));                                                             \
    }
SKL__LANES_AVX2(skl__vadd, _mm256_add_ps)
SKL__LANES_AVX2(skl__vsub, _mm256_sub_ps)
SKL__LANES_AVX2(skl__vdiv, _mm256_div_ps)
SKL__LANES_AVX2(skl__vmin, _mm256_min_ps)
SKL__LANES_AVX2(skl__vmax, _mm256_max_ps)
#undef SKL__LANES_AVX2

SKL__V_AVX2 skl__v_avx2 skl__vmul_avx2(skl__v_avx2 a, skl__v_avx2 b)
{
    a = skl__vpair_avx2(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
    SKL__ROUNDED(a.lo);
    SKL__ROUNDED(a.hi);
    return a;
}

SKL__V_AVX2 skl__v_avx2 skl__vfma_avx2(skl__v_avx2 a, skl__v_avx2 b, skl__v_avx2 c)
{
    return skl__vpair_avx2(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}

SKL__V_AVX2 skl__v_avx2 skl__vabs_avx2(skl__v_avx2 a)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return skl__vpair_avx2(_mm256_and_ps(a.lo, magnitude), _mm256_and_ps(a.hi, magnitude));
}

/* n + SKL__MAGIC -> 2^n, -126 <= n <= 127 */
SKL__V_AVX2 __m256 skl__pow2_avx2(__m256 t)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127)), 23));
}

/* As in the scalar vocabulary. */
SKL__V_AVX2 __m256 skl__ldexp_avx2(__m256 a, __m256 n)
{
    const __m256 magic = _mm256_set1_ps(SKL__MAGIC), half = _mm256_fmadd_ps(n, _mm256_set1_ps(0.5f), magic);
    const __m256 rest = _mm256_sub_ps(n, _mm256_sub_ps(half, magic));
    return _mm256_mul_ps(_mm256_mul_ps(a, skl__pow2_avx2(half)), skl__pow2_avx2(_mm256_add_ps(rest, magic)));
}

SKL__V_AVX2 skl__v_avx2 skl__vldexp_avx2(skl__v_avx2 a, skl__v_avx2 n)
{
    return skl__vpair_avx2(skl__ldexp_avx2(a.lo, n.lo), skl__ldexp_avx2(a.hi, n.hi));
}

SKL__V_AVX2 skl__v_avx2 skl__vless_avx2(skl__v_avx2 a, skl__v_avx2 b, skl__v_avx2 x, skl__v_avx2 y)
{
    return skl__vpair_avx2(_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                           _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)));
}

SKL__V_AVX2 skl__v_avx2 skl__vswap_avx2(skl__v_avx2 a)
{
    return skl__vpair_avx2(_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1));
}

SKL__V_AVX2 skl__v_avx2 skl__vzip8_avx2(__m256 a, __m256 b)
{
    const __m256 even = _mm256_unpacklo_ps(a, b), odd = _mm256_unpackhi_ps(a, b); /* pairs 0 1 4 5 and 2 3 6 7 */
    return skl__vpair_avx2(_mm256_permute2f128_ps(even, odd, 0x20), _mm256_permute2f128_ps(even, odd, 0x31));
}

SKL__V_AVX2 skl__v_avx2 skl__vzip_low_avx2(skl__v_avx2 a, skl__v_avx2 b) { return skl__vzip8_avx2(a.lo, b.lo); }
SKL__V_AVX2 skl__v_avx2 skl__vzip_high_avx2(skl__v_avx2 a, skl__v_avx2 b) { return skl__vzip8_avx2(a.hi, b.hi); }

SKL__V_AVX2 float skl__vsum8_avx2(__m256 eight)
{
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

SKL__V_AVX2 float skl__vsum_avx2(skl__v_avx2 a) { return skl__vsum8_avx2(_mm256_add_ps(a.lo, a.hi)); }

SKL__V_AVX2 float skl__vlargest_avx2(skl__v_avx2 a)
{
    const __m256 eight = _mm256_max_ps(a.lo, a.hi);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* Eight rows at once: steps 4, 2 and 1 of the tree on pairs of rows, which leaves even rows left of odd ones. */
#define SKL__ROWS_AVX2(name, eight_rows, join)                                                                              \
    SKL__V_AVX2 __m256 eight_rows(const skl__v_avx2 rows[8])                                                                \
    {                                                                                                                       \
        __m256 eight[8], four[4], two[2], one;                                                                              \
        int i;                                                                                                              \
        SKL__UNROLL for (i = 0; i < 8; i++) eight[i] = join(rows[i].lo, rows[i].hi);                                        \
        SKL__UNROLL for (i = 0; i < 4; i++)                                                                                 \
            four[i] = join(_mm256_permute2f128_ps(eight[2 * i], eight[2 * i + 1], 0x20),                                    \
                           _mm256_permute2f128_ps(eight[2 * i], eight[2 * i + 1], 0x31));                                   \
        SKL__UNROLL for (i = 0; i < 2; i++)                                                                                 \
            two[i] = join(_mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),                                            \
                          _mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0xee));                                           \
        one = join(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xdd));                       \
        return _mm256_permutevar8x32_ps(one, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));                                    \
    }                                                                                                                       \
                                                                                                                            \
    SKL__V_AVX2 skl__v_avx2 name(const skl__v_avx2 rows[16])                                                                \
    {                                                                                                                       \
        return skl__vpair_avx2(eight_rows(rows), eight_rows(rows + 8));                                                     \
    }
SKL__ROWS_AVX2(skl__vsum16_avx2, skl__vsum8x8_avx2, _mm256_add_ps)
SKL__ROWS_AVX2(skl__vlargest16_avx2, skl__vlargest8x8_avx2, _mm256_max_ps)
#undef SKL__ROWS_AVX2

SKL__V_AVX512 __m512 skl__vset_avx512(float x) { return _mm512_set1_ps(x); }
SKL__V_AVX512 __m512 skl__vload_avx512(const void *p) { return _mm512_loadu_ps(p); }
SKL__V_AVX512 __m128i skl__load128_avx512(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
SKL__V_AVX512 __m256i skl__load256_avx512(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
SKL__V_AVX512 __m512 skl__vload_f16_avx512(const void *p) { return _mm512_cvtph_ps(skl__load256_avx512(p)); }

SKL__V_AVX512 __m512 skl__vload_bf16_avx512(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(skl__load256_avx512(p)), 16));
}

SKL__V_AVX512 __m512 skl__vload_i8_avx512(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(skl__load128_avx512(p)));
}

/* A table instead of a conversion: the permutation looks at the low four bits of an index alone. */
SKL__V_AVX512 void skl__vload_i4_avx512(__m512 v[2], const void *p)
{
    const __m512 codes = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i x = _mm512_cvtepu8_epi32(skl__load128_avx512(p));
    v[0] = _mm512_permutexvar_ps(x, codes);
    v[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(x, 4), codes);
}

SKL__V_AVX512 __m512 skl__vload_u32_avx512(const void *p, int shift)
{
    const __m512i shifted = _mm512_srl_epi32(_mm512_loadu_si512(p), _mm_cvtsi32_si128(shift));
    return _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(15)));
}

SKL__V_AVX512 __m512 skl__vload_s32_avx512(const void *p, int shift)
{
    const __m512i raised = _mm512_sll_epi32(_mm512_loadu_si512(p), _mm_cvtsi32_si128(24 - shift));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(raised, 24));
}

SKL__V_AVX512 void skl__vstore_avx512(float *p, __m512 v) { _mm512_storeu_ps(p, v); }

SKL__V_AVX512 void skl__vstore_f16_avx512(uint16_t *p, __m512 v)
{
    const __m256i half = _mm512_maskz_cvtps_ph((__mmask16)0xffff, v, _MM_FROUND_TO_NEAREST_INT); /* unmasked, GCC warns */
    memcpy(p, &half, sizeof half);
}

SKL__V_AVX512 void skl__vstore_i8_avx512(int8_t *p, __m512 v)
{
    const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v));
    memcpy(p, &bytes, sizeof bytes);
}

SKL__V_AVX512 __m512 skl__vadd_avx512(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
SKL__V_AVX512 __m512 skl__vsub_avx512(__m512 a, __m512 b) { return _mm512_sub_ps(a, b); }
SKL__V_AVX512 __m512 skl__vdiv_avx512(__m512 a, __m512 b) { return _mm512_div_ps(a, b); }
SKL__V_AVX512 __m512 skl__vmin_avx512(__m512 a, __m512 b) { return _mm512_min_ps(a, b); }
SKL__V_AVX512 __m512 skl__vmax_avx512(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
SKL__V_AVX512 __m512 skl__vfma_avx512(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
SKL__V_AVX512 __m512 skl__vabs_avx512(__m512 a) { return _mm512_abs_ps(a); }
SKL__V_AVX512 __m512 skl__vswap_avx512(__m512 a) { return _mm512_permute_ps(a, 0xb1); }

SKL__V_AVX512 __m512 skl__vmul_avx512(__m512 a, __m512 b)
{
    a = _mm512_mul_ps(a, b);
    SKL__ROUNDED(a);
    return a;
}

SKL__V_AVX512 __m512 skl__vldexp_avx512(__m512 a, __m512 n) { return _mm512_scalef_ps(a, n); }

SKL__V_AVX512 __m512 skl__vless_avx512(__m512 a, __m512 b, __m512 x, __m512 y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

SKL__V_AVX512 __m512 skl__vzip_low_avx512(__m512 a, __m512 b)
{
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), b);
}

SKL__V_AVX512 __m512 skl__vzip_high_avx512(__m512 a, __m512 b)
{
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), b);
}

SKL__V_AVX512 float skl__vsum_avx512(__m512 a)
{
    const __m256 high = _mm512_castps512_ps256(_mm512_shuffle_f32x4(a, a, 0xee));
    return skl__vsum8_avx2(_mm256_add_ps(_mm512_castps512_ps256(a), high));
}

SKL__V_AVX512 float skl__vlargest_avx512(__m512 a)
{
    const __m256 high = _mm512_castps512_ps256(_mm512_shuffle_f32x4(a, a, 0xee));
    return skl__vlargest_avx2(skl__vpair_avx2(_mm512_castps512_ps256(a), high));
}

/* Sixteen rows at once; each step of the tree halves the registers. Rows end up as 0 4 8 12, 1 5 9 13, ... */
#define SKL__ROWS_AVX512(name, join)                                                                                        \
    SKL__V_AVX512 __m512 name(const __m512 rows[16])                                                                        \
    {                                                                                                                       \
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);                      \
        __m512 eight[8], four[4], two[2], one;                                                                              \
        int i;                                                                                                              \
        SKL__UNROLL for (i = 0; i < 8; i++)                                                                                 \
            eight[i] = join(_mm512_shuffle_f32x4(rows[2 * i], rows[2 * i + 1], 0x44),                                       \
                            _mm512_shuffle_f32x4(rows[2 * i], rows[2 * i + 1], 0xee));                                      \
        SKL__UNROLL for (i = 0; i < 4; i++)                                                                                 \
            four[i] = join(_mm512_shuffle_f32x4(eight[2 * i], eight[2 * i + 1], 0x88),                                      \
                           _mm512_shuffle_f32x4(eight[2 * i], eight[2 * i + 1], 0xdd));                                     \
        SKL__UNROLL for (i = 0; i < 2; i++)                                                                                 \
            two[i] = join(_mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),                                            \
                          _mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0xee));                                           \
        one = join(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xdd));                       \
        return _mm512_permutexvar_ps(order, one);                                                                           \
    }
SKL__ROWS_AVX512(skl__vsum16_avx512, _mm512_add_ps)
SKL__ROWS_AVX512(skl__vlargest16_avx512, _mm512_max_ps)
#undef SKL__ROWS_AVX512

#endif /* SKL__X86_KERNELS */

/* -------------------------------------------------------------------------------------------------- NEON vocabulary */

#if SKL__ARM_KERNELS

typedef struct skl__v_neon { float32x4_t part[4]; } skl__v_neon;

SKL__INLINE skl__v_neon skl__vset_neon(float x)
{
    skl__v_neon v;
    int i;
    for (i = 0; i < 4; i++) v.part[i] = vdupq_n_f32(x);
    return v;
}

SKL__INLINE skl__v_neon skl__vload_neon(const void *p)
{
    skl__v_neon v;
    int i;
    for (i = 0; i < 4; i++) v.part[i] = vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)p + 16 * i));
    return v;
}

SKL__INLINE skl__v_neon skl__vload_f16_neon(const void *p)
{
    skl__v_neon v;
    int i;
    for (i = 0; i < 4; i++) v.part[i] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *)p + 8 * i)));
    return v;
}

SKL__INLINE skl__v_neon skl__vload_bf16_neon(const void *p)
{
    skl__v_neon v;
    int i;
    for (i = 0; i < 4; i++)
        v.part[i] = vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8((const uint8_t *)p + 8 * i)), 16));
    return v;
}

SKL__INLINE skl__v_neon skl__vwiden_s8_neon(int8x16_t x)
{
    const int16x8_t lo = vmovl_s8(vget_low_s8(x)), hi = vmovl_s8(vget_high_s8(x));
    skl__v_neon v;
    v.part[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo)));
    v.part[1] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo)));
    v.part[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi)));
    v.part[3] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi)));
    return v;
}

SKL__INLINE skl__v_neon skl__vload_i8_neon(const void *p) { return skl__vwiden_s8_neon(vld1q_s8((const int8_t *)p)); }

SKL__INLINE void skl__vload_i4_neon(skl__v_neon v[2], const void *p)
{
    const uint8x16_t x = vld1q_u8((const uint8_t *)p);
    const int8x16_t eight = vdupq_n_s8(8);
    v[0] = skl__vwiden_s8_neon(vsubq_s8(vreinterpretq_s8_u8(vandq_u8(x, vdupq_n_u8(15))), eight));
    v[1] = skl__vwiden_s8_neon(vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(x, 4)), eight));
}

SKL__INLINE skl__v_neon skl__vload_u32_neon(const void *p, int shift)
{
    const int32x4_t count = vdupq_n_s32(-shift);
    skl__v_neon v;
    int i;
    for (i = 0; i < 4; i++) {
        const uint32x4_t x = vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p + 16 * i));
        v.part[i] = vcvtq_f32_u32(vandq_u32(vshlq_u32(x, count), vdupq_n_u32(15)));
    }
    return v;
}

SKL__INLINE skl__v_neon skl__vload_s32_neon(const void *p, int shift)
{
    const int32x4_t count = vdupq_n_s32(24 - shift);
    skl__v_neon v;
    int i;
    for (i = 0; i < 4; i++) {
        const int32x4_t x = vreinterpretq_s32_u8(vld1q_u8((const uint8_t *)p + 16 * i));
        v.part[i] = vcvtq_f32_s32(vshrq_n_s32(vshlq_s32(x, count), 24));
    }
    return v;
}

SKL__INLINE void skl__vstore_neon(float *p, skl__v_neon v)
{
    int i;
    for (i = 0; i < 4; i++) vst1q_f32(p + 4 * i, v.part[i]);
}

SKL__INLINE void skl__vstore_f16_neon(uint16_t *p, skl__v_neon v)
{
    int i;
    for (i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(v.part[i])));
}

SKL__INLINE void skl__vstore_i8_neon(int8_t *p, skl__v_neon v)
{
    int16x8_t half[2];
    int i;
    for (i = 0; i < 2; i++)
        half[i] = vcombine_s16(vmovn_s32(vcvtq_s32_f32(v.part[2 * i])), vmovn_s32(vcvtq_s32_f32(v.part[2 * i + 1])));
    vst1q_s8(p, vcombine_s8(vmovn_s16(half[0]), vmovn_s16(half[1])));
}

#define SKL__LANES_NEON(name, expression)                                                                                   \
    SKL__INLINE skl__v_neon name##_neon(skl__v_neon a, skl__v_neon b)                                                       \
    {                                                                                                                       \
        int i;                                                                                                              \
        for (i = 0; i < 4; i++) a.part[i] = (expression);                                                                   \
        return a;                                                                                                           \
    }
SKL__LANES_NEON(skl__vadd, vaddq_f32(a.part[i], b.part[i]))
SKL__LANES_NEON(skl__vsub, vsubq_f32(a.part[i], b.part[i]))
SKL__LANES_NEON(skl__vmin, vbslq_f32(vcltq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]))
SKL__LANES_NEON(skl__vmax, vbslq_f32(vcgtq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]))
#undef SKL__LANES_NEON

SKL__INLINE skl__v_neon skl__vmul_neon(skl__v_neon a, skl__v_neon b)
{
    int i;
    for (i = 0; i < 4; i++) {
        a.part[i] = vmulq_f32(a.part[i], b.part[i]);
        SKL__ROUNDED(a.part[i]);
    }
    return a;
}

SKL__INLINE skl__v_neon skl__vdiv_neon(skl__v_neon a, skl__v_neon b)
{
    int i;
    for (i = 0; i < 4; i++) {
        SKL__DIVISOR(b.part[i]);
        a.part[i] = vdivq_f32(a.part[i], b.part[i]);
    }
    return a;
}

SKL__INLINE skl__v_neon skl__vfma_neon(skl__v_neon a, skl__v_neon b, skl__v_neon c)
{
    int i;
    for (i = 0; i < 4; i++) c.part[i] = vfmaq_f32(c.part[i], a.part[i], b.part[i]);
    return c;
}

SKL__INLINE skl__v_neon skl__vabs_neon(skl__v_neon a)
{
    int i;
    for (i = 0; i < 4; i++) a.part[i] = vabsq_f32(a.part[i]);
    return a;
}

/* n + SKL__MAGIC -> 2^n, -126 <= n <= 127 */
SKL__INLINE float32x4_t skl__pow2_neon(float32x4_t t)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vaddq_u32(vreinterpretq_u32_f32(t), vdupq_n_u32(127)), 23));
}

/* As in the scalar vocabulary. */
SKL__INLINE skl__v_neon skl__vldexp_neon(skl__v_neon a, skl__v_neon n)
{
    const float32x4_t magic = vdupq_n_f32(SKL__MAGIC);
    int i;
    for (i = 0; i < 4; i++) {
        const float32x4_t half = vfmaq_f32(magic, n.part[i], vdupq_n_f32(0.5f));
        const float32x4_t rest = vsubq_f32(n.part[i], vsubq_f32(half, magic));
        a.part[i] = vmulq_f32(vmulq_f32(a.part[i], skl__pow2_neon(half)), skl__pow2_neon(vaddq_f32(rest, magic)));
    }
    return a;
}

SKL__INLINE skl__v_neon skl__vless_neon(skl__v_neon a, skl__v_neon b, skl__v_neon x, skl__v_neon y)
{
    int i;
    for (i = 0; i < 4; i++) y.part[i] = vbslq_f32(vcltq_f32(a.part[i], b.part[i]), x.part[i], y.part[i]);
    return y;
}

SKL__INLINE skl__v_neon skl__vswap_neon(skl__v_neon a)
{
    int i;
    for (i = 0; i < 4; i++) a.part[i] = vrev64q_f32(a.part[i]);
    return a;
}

SKL__INLINE skl__v_neon skl__vzip_low_neon(skl__v_neon a, skl__v_neon b)
{
    skl__v_neon v;
    int i;
    for (i = 0; i < 2; i++) {
        v.part[2 * i] = vzip1q_f32(a.part[i], b.part[i]);
        v.part[2 * i + 1] = vzip2q_f32(a.part[i], b.part[i]);
    }
    return v;
}

SKL__INLINE skl__v_neon skl__vzip_high_neon(skl__v_neon a, skl__v_neon b)
{
    a.part[0] = a.part[2];
    a.part[1] = a.part[3];
    b.part[0] = b.part[2];
    b.part[1] = b.part[3];
    return skl__vzip_low_neon(a, b);
}

SKL__INLINE float skl__vsum_neon(skl__v_neon a)
{
    const float32x4_t four = vaddq_f32(vaddq_f32(a.part[0], a.part[2]), vaddq_f32(a.part[1], a.part[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

SKL__INLINE float skl__vlargest_neon(skl__v_neon a)
{
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.part[0], a.part[1]), vmaxq_f32(a.part[2], a.part[3])));
}

SKL__INLINE skl__v_neon skl__vsum16_neon(const skl__v_neon rows[16])
{
    float sums[16];
    int i;
    for (i = 0; i < 16; i++) sums[i] = skl__vsum_neon(rows[i]);
    return skl__vload_neon(sums);
}

SKL__INLINE skl__v_neon skl__vlargest16_neon(const skl__v_neon rows[16])
{
    float largest[16];
    int i;
    for (i = 0; i < 16; i++) largest[i] = skl__vlargest_neon(rows[i]);
    return skl__vload_neon(largest);
}

#endif /* SKL__ARM_KERNELS */

/* ---------------------------------------------------------------------------------------- what the kernels are given */

typedef enum skl__unit { SKL__UNIT_SILU, SKL__UNIT_SIGMOID, SKL__UNIT_GELU } skl__unit;

#define SKL__BLOCK ((size_t)64)        /* keys per block of attention; blocks start at multiples of it                  */
#define SKL__QUERIES 16                /* queries that one call attends with at most: they share a block in L1          */
#define SKL__TOGETHER (SKL__LANES_CHAINS >= 16 ? 8 : 4) /* of them, those that share its loads                         */
#define SKL__AHEAD ((size_t)8192)      /* bytes by which a walk over keys and values asks memory for them in advance      */
#define SKL__STRIP ((size_t)256)       /* bytes that it asks for at once                                                */
#define SKL__NO_NULL (-FLT_MAX)        /* null logit of plain softmax; finite, so that no option can fold tests on it   */

/* The keys and values of one head, in blocks of 64 positions; all parts of a block lie together, so that a walk over the blocks
 * reads memory in one stream. Keys lie dimension by dimension, so that a score is one lane; values lie position by position, so
 * that a mixed dimension is one lane. i4 keeps code + 8, keys two dimensions to a byte (low nibble = the even one), values 32
 * dimensions to 16 bytes (low nibbles = the first 16). Scales with i8 and i4 only. Each pointer is to the part in block 0. */
typedef struct skl__kv_head {
    unsigned char *keys;               /* [head_dim][64 positions]                                                      */
    unsigned char *values;             /* [64 positions][value_stride bytes]                                            */
    float *key_scales;                 /* [64 positions]                                                                */
    float *value_scales;               /* [64 positions]                                                                */
    size_t block;                      /* bytes from a block to the next, a multiple of 64                              */
    size_t value_stride;
} skl__kv_head;

/* Bytes of sixteen values; i4: of two times sixteen. */
SKL__INLINE SKL__UNUSED size_t skl__kv_vector(skl_kv kv)
{
    return kv == SKL_KV_F32 ? 64 : kv == SKL_KV_F16 ? 32 : 16;
}

/* One value of 4, 2 or 1 bytes: a memcpy of constant size is a move, one of variable size a call. */
SKL__INLINE SKL__UNUSED void skl__kv_copy(unsigned char *to, const unsigned char *from, size_t size)
{
    if (size == 4) memcpy(to, from, 4);
    else if (size == 2) memcpy(to, from, 2);
    else *to = *from;
}

/* The same, with the block of a position as block 0. */
SKL__INLINE SKL__UNUSED skl__kv_head skl__kv_block(const skl__kv_head *head, size_t position)
{
    const size_t offset = position / SKL__BLOCK * head->block;
    skl__kv_head moved = *head;

    moved.keys += offset;
    moved.values += offset;
    moved.key_scales += offset / sizeof(float);
    moved.value_scales += offset / sizeof(float);
    return moved;
}

/* A walk over the blocks of a head. Prefetchers of the hardware do not keep up: a stream ends for them with every page, and
 * arithmetic lies between its lines. So a walk over what no cache holds asks for it in advance, in small strips. */
typedef struct skl__kv_walk {
    skl__kv_head block;                /* where it is                                                                   */
    size_t left;                       /* bytes from the keys of this block to the end                                  */
    int asks;                          /* whether it asks: once in a block is enough, and not at all if caches hold it  */
    size_t head_dim;
    skl_kv kv;
} skl__kv_walk;

/* Asks for bytes [begin, end) from the keys of the current block on. */
SKL__INLINE SKL__UNUSED void skl__kv_fetch(const skl__kv_walk *walk, size_t begin, size_t end)
{
    size_t i;

    for (i = begin; i < end && i < walk->left; i += 64) SKL__FETCH(walk->block.keys + i);
}

/* Asks for the lines that keys and values of `count` positions, which are of the same 16, will be written to: every row of the
 * keys is another line, and to wait for them one by one takes longer than all else that is done for a key. */
SKL__INLINE SKL__UNUSED void skl__kv_expect(const skl__kv_head *head, skl_kv kv, size_t head_dim, size_t position, size_t count)
{
    const skl__kv_head block = skl__kv_block(head, position);
    const size_t place = position % SKL__BLOCK, vector = skl__kv_vector(kv);
    const size_t rows = kv == SKL_KV_I4 ? (head_dim + 1) / 2 : head_dim;
    size_t i;

    for (i = 0; i < rows; i++) SKL__FETCH(block.keys + i * 4 * vector + place / 16 * vector);
    for (i = 0; i < count * block.value_stride; i += 64) SKL__FETCH(block.values + place * block.value_stride + i);
}

/* To the next block, which there must be. */
SKL__INLINE SKL__UNUSED void skl__kv_advance(skl__kv_walk *walk)
{
    walk->block = skl__kv_block(&walk->block, SKL__BLOCK);
    walk->left -= walk->left < walk->block.block ? walk->left : walk->block.block;
}

/* Queries of one key/value head, each with the positions it sees. */
typedef struct skl__attend_job {
    skl__kv_head head;
    skl_kv kv;
    size_t head_dim;
    size_t queries;                    /* 1 .. SKL__QUERIES                                                             */
    const float *q[SKL__QUERIES];      /* [head_dim] each, scaled by 1 / sqrt(head_dim)                                 */
    float *out[SKL__QUERIES];          /* [head_dim] each                                                               */
    size_t first[SKL__QUERIES];        /* visible positions: first .. last                                              */
    size_t last[SKL__QUERIES];
    float null_logit[SKL__QUERIES];    /* SKL__NO_NULL = plain softmax                                                  */
    float null_mass[SKL__QUERIES];     /* out: probability of the null class                                            */
    int cold;                          /* no cache is likely to hold the keys and values                                */
    int clipped;                       /* p' = clamp((zeta - gamma) p + gamma, 0, 1)                                    */
    float gamma, zeta;
} skl__attend_job;

#define SKL__HEAD_DIM_MAX 512          /* bounds the stack of an attention call; a larger head is a load error          */

/* One instance. What each does, and the shapes, stand at its definition below. */
typedef struct skl__lane_kernels {
    void (*exp)(float *x, size_t n);
    void (*silu)(float *x, size_t n);
    void (*gate)(float *y, const float *u, size_t n, size_t width);
    void (*gated_unit)(float *h, const float *up, size_t n, skl__unit unit);
    void (*scale)(float *x, float factor, size_t n);
    void (*add)(float *y, const float *x, size_t n);
    float (*dot)(const float *a, const float *b, size_t n);
    void (*rms_norm)(float *y, const float *x, const float *pre, const float *weight, size_t n, float eps);
    void (*dyt)(float *y, const float *x, const float *weight, const float *bias, float alpha, size_t n);
    void (*rope)(float *x, const float *cosine, const float *sine, size_t n_rot, int adjacent);
    void (*quantise)(const float *x, size_t n, float levels, int row, int8_t *codes, float *scales, int32_t *sums);
    float (*softmax)(float *x, size_t n, float null_logit);
    void (*mix)(float *y, const float *sources, size_t stride, const float *weights, size_t count, size_t n);
    void (*store_kv)(const skl__kv_head *head, skl_kv kv, size_t head_dim, size_t position, size_t count, const float *keys,
                     const float *values, size_t stride);
    void (*attend)(skl__attend_job *job);
    void (*gate_product)(float *y, const skl__matrix *w, const float *x, size_t tokens);
    void (*unpack_row)(float *values, const skl__matrix *w, size_t row);
    skl__matmul *matmul_f32_f32, *matmul_f16_f32, *matmul_bf16_f32, *matmul_q4_f32, *matmul_q8_f32;
} skl__lane_kernels;

#endif /* implementation, first part */
#endif /* !SKL__LANES */

/* ------------------------------------------------------------------------------------- kernels, once per instance --- */

#if defined(SKL__LANES)

#define SKL__KERNEL static SKL__LANES_TARGET
#define SKL__HELPER SKL__LANES_TARGET SKL__LANES_INLINE
#define SKL__FUNCTION static SKL__UNUSED SKL__LANES_TARGET

/* n < 16 floats, the other lanes 0. */
SKL__HELPER skl__v SKL__LANE(skl__vload_part)(const float *p, size_t n)
{
    float lanes[16] = {0};
    memcpy(lanes, p, n * sizeof *p);
    return skl__vload(lanes);
}

SKL__HELPER void SKL__LANE(skl__vstore_part)(float *p, skl__v v, size_t n)
{
    float lanes[16];
    skl__vstore(lanes, v);
    memcpy(p, lanes, n * sizeof *p);
}

/* Lanes [0, n) of a full or partial vector at x + i. */
#define skl__vload_at(x, i, n) ((n) - (i) >= 16 ? skl__vload((x) + (i)) : SKL__LANE(skl__vload_part)((x) + (i), (n) - (i)))

SKL__HELPER void SKL__LANE(skl__vstore_at)(float *y, skl__v v, size_t i, size_t n)
{
    if (n - i >= 16) skl__vstore(y + i, v);
    else SKL__LANE(skl__vstore_part)(y + i, v, n - i);
}

/* exp: x = n ln 2 + r, |r| <= ln 2 / 2; a polynomial of degree 7 for exp(r), and 2^n, which may round into the subnormals. 0 below
 * -105, infinity above 88.73; NaN stays NaN. Error below 1.1 ulp. */
SKL__HELPER skl__v SKL__LANE(skl__vexp)(skl__v x)
{
    const skl__v magic = skl__vset(SKL__MAGIC);
    skl__v t, n, r, p;
    x = skl__vmin(skl__vset(89.0f), skl__vmax(skl__vset(-105.0f), x));
    t = skl__vfma(x, skl__vset(1.44269504f), magic);
    n = skl__vsub(t, magic);
    r = skl__vfma(n, skl__vset(-0.693359375f), x);
    r = skl__vfma(n, skl__vset(2.12194440e-4f), r);
    p = skl__vset(1.9875691500e-4f);
    p = skl__vfma(p, r, skl__vset(1.3981999507e-3f));
    p = skl__vfma(p, r, skl__vset(8.3334519073e-3f));
    p = skl__vfma(p, r, skl__vset(4.1665795894e-2f));
    p = skl__vfma(p, r, skl__vset(1.6666665459e-1f));
    p = skl__vfma(p, r, skl__vset(5.0000001201e-1f));
    p = skl__vfma(p, skl__vmul(r, r), r);
    p = skl__vadd(p, skl__vset(1.0f));
    return skl__vldexp(p, n);
}

/* 1 / (1 + exp(-x)), from exp(-|x|) so that nothing overflows and small results keep their digits. Error below 2.5 ulp. */
SKL__HELPER skl__v SKL__LANE(skl__vsigmoid)(skl__v x)
{
    const skl__v zero = skl__vset(0.0f), one = skl__vset(1.0f);
    const skl__v e = SKL__LANE(skl__vexp)(skl__vsub(zero, skl__vabs(x)));
    return skl__vdiv(skl__vless(x, zero, e, one), skl__vadd(one, e));
}

/* Error below 3 ulp; below x = -87, where the sigmoid is subnormal, |x| units of the smallest float more. */
SKL__HELPER skl__v SKL__LANE(skl__vsilu)(skl__v x) { return skl__vmul(x, SKL__LANE(skl__vsigmoid)(x)); }

/* The tanh form, as x sigmoid(2 u): the same value without the cancellation of 1 + tanh(u). Error below 3 ulp; for negative x,
 * where the rounding of u counts, 4 |u| ulp more. */
SKL__HELPER skl__v SKL__LANE(skl__vgelu)(skl__v x)
{
    const skl__v cube = skl__vmul(skl__vmul(x, x), x);
    const skl__v u = skl__vmul(skl__vset(1.59576912f), skl__vfma(skl__vset(0.044715f), cube, x)); /* 2 sqrt(2 / pi) */
    return skl__vmul(x, SKL__LANE(skl__vsigmoid)(u));
}

/* Odd polynomial below 0.625, 1 - 2 / (exp(2|x|) + 1) above. Error below 1.5 ulp. */
SKL__HELPER skl__v SKL__LANE(skl__vtanh)(skl__v x)
{
    const skl__v one = skl__vset(1.0f), zero = skl__vset(0.0f), a = skl__vabs(x), square = skl__vmul(x, x);
    skl__v small, large, p = skl__vset(-5.70498872745e-3f);
    p = skl__vfma(p, square, skl__vset(2.06390887954e-2f));
    p = skl__vfma(p, square, skl__vset(-5.37397155531e-2f));
    p = skl__vfma(p, square, skl__vset(1.33314422036e-1f));
    p = skl__vfma(p, square, skl__vset(-3.33332819422e-1f));
    small = skl__vfma(skl__vmul(p, square), x, x);
    large = skl__vadd(SKL__LANE(skl__vexp)(skl__vadd(a, a)), one);
    large = skl__vsub(one, skl__vdiv(skl__vset(2.0f), large));
    large = skl__vless(x, zero, skl__vsub(zero, large), large);
    return skl__vless(a, skl__vset(0.625f), small, large);
}

SKL__KERNEL void SKL__LANE(skl__exp)(float *x, size_t n)
{
    size_t i;
    for (i = 0; i < n; i += 16) SKL__LANE(skl__vstore_at)(x, SKL__LANE(skl__vexp)(skl__vload_at(x, i, n)), i, n);
}

/* x <- silu(x) */
SKL__KERNEL void SKL__LANE(skl__silu)(float *x, size_t n)
{
    size_t i;
    for (i = 0; i < n; i += 16) SKL__LANE(skl__vstore_at)(x, SKL__LANE(skl__vsilu)(skl__vload_at(x, i, n)), i, n);
}

/* y[i] <- sig(u[i]) y[i]; or, head-wise, y[h][i] <- sig(u[h]) y[h][i] with `width` values to a head.
 *   y  [n]        u  [n], or [n / width] */
SKL__KERNEL void SKL__LANE(skl__gate)(float *y, const float *u, size_t n, size_t width)
{
    size_t i, head;
    if (width == 1) {
        for (i = 0; i < n; i += 16) {
            const skl__v gate = SKL__LANE(skl__vsigmoid)(skl__vload_at(u, i, n));
            SKL__LANE(skl__vstore_at)(y, skl__vmul(gate, skl__vload_at(y, i, n)), i, n);
        }
        return;
    }
    for (head = 0; head < n / width; head++) {
        const skl__v gate = SKL__LANE(skl__vsigmoid)(skl__vset(u[head]));
        float *row = y + head * width;
        for (i = 0; i < width; i += 16)
            SKL__LANE(skl__vstore_at)(row, skl__vmul(gate, skl__vload_at(row, i, width)), i, width);
    }
}

/* h <- act(h) up */
SKL__KERNEL void SKL__LANE(skl__gated_unit)(float *h, const float *up, size_t n, skl__unit unit)
{
    size_t i;
    for (i = 0; i < n; i += 16) {
        const skl__v x = skl__vload_at(h, i, n);
        const skl__v a = unit == SKL__UNIT_SILU ? SKL__LANE(skl__vsilu)(x)
                         : unit == SKL__UNIT_SIGMOID ? SKL__LANE(skl__vsigmoid)(x) : SKL__LANE(skl__vgelu)(x);
        SKL__LANE(skl__vstore_at)(h, skl__vmul(a, skl__vload_at(up, i, n)), i, n);
    }
}

/* x <- factor x */
SKL__KERNEL void SKL__LANE(skl__scale)(float *x, float factor, size_t n)
{
    size_t i;
    for (i = 0; i < n; i += 16) SKL__LANE(skl__vstore_at)(x, skl__vmul(skl__vload_at(x, i, n), skl__vset(factor)), i, n);
}

/* y <- y + x */
SKL__KERNEL void SKL__LANE(skl__add)(float *y, const float *x, size_t n)
{
    size_t i;
    for (i = 0; i < n; i += 16)
        SKL__LANE(skl__vstore_at)(y, skl__vadd(skl__vload_at(y, i, n), skl__vload_at(x, i, n)), i, n);
}

SKL__KERNEL float SKL__LANE(skl__dot_f32)(const float *a, const float *b, size_t n)
{
    skl__v sum = skl__vset(0.0f);
    size_t i;
    for (i = 0; i < n; i += 16) sum = skl__vfma(skl__vload_at(a, i, n), skl__vload_at(b, i, n), sum);
    return skl__vsum(sum);
}

/* y = RMSNorm(pre x) weight (2601.22966, 3.3); pre and weight may be NULL = 1.        x, y, pre, weight  [n]; y may be x */
SKL__KERNEL void SKL__LANE(skl__rms_norm)(float *y, const float *x, const float *pre, const float *weight, size_t n, float eps)
{
    skl__v squares = skl__vset(0.0f), scale;
    size_t i;
    for (i = 0; i < n; i += 16) {
        skl__v v = skl__vload_at(x, i, n);
        if (pre) v = skl__vmul(v, skl__vload_at(pre, i, n));
        squares = skl__vfma(v, v, squares);
    }
    scale = skl__vset(1.0f / skl__sqrt(skl__div(skl__vsum(squares), (float)n) + eps));
    for (i = 0; i < n; i += 16) {
        skl__v v = skl__vload_at(x, i, n);
        if (pre) v = skl__vmul(v, skl__vload_at(pre, i, n));
        v = skl__vmul(v, scale);
        if (weight) v = skl__vmul(v, skl__vload_at(weight, i, n));
        SKL__LANE(skl__vstore_at)(y, v, i, n);
    }
}

/* y = weight tanh(alpha x) + bias */
SKL__KERNEL void SKL__LANE(skl__dyt)(float *y, const float *x, const float *weight, const float *bias, float alpha, size_t n)
{
    size_t i;
    for (i = 0; i < n; i += 16) {
        const skl__v t = SKL__LANE(skl__vtanh)(skl__vmul(skl__vset(alpha), skl__vload_at(x, i, n)));
        SKL__LANE(skl__vstore_at)(y, skl__vfma(skl__vload_at(weight, i, n), t, skl__vload_at(bias, i, n)), i, n);
    }
}

/* Turns the first n_rot values of one head, pairs (j, j + n_rot / 2), or (2j, 2j + 1) if adjacent.
 *   cos, sin  [n_rot / 2]; adjacent: [n_rot], every value twice, the sin of even lanes negated */
SKL__KERNEL void SKL__LANE(skl__rope)(float *x, const float *cosine, const float *sine, size_t n_rot, int adjacent)
{
    const size_t half = n_rot / 2, n = adjacent ? n_rot : half;
    float *y = x + half;
    size_t i;
    for (i = 0; i < n; i += 16) {
        const skl__v c = skl__vload_at(cosine, i, n), s = skl__vload_at(sine, i, n), a = skl__vload_at(x, i, n);
        if (adjacent) {
            SKL__LANE(skl__vstore_at)(x, skl__vfma(a, c, skl__vmul(skl__vswap(a), s)), i, n);
        } else {
            const skl__v b = skl__vload_at(y, i, n);
            SKL__LANE(skl__vstore_at)(x, skl__vsub(skl__vmul(a, c), skl__vmul(b, s)), i, n);
            SKL__LANE(skl__vstore_at)(y, skl__vfma(b, c, skl__vmul(a, s)), i, n);
        }
    }
}

/* 1 / scale, or 0 where remainders of a division would lose bits, and for what is no scale. */
SKL__HELPER skl__v SKL__LANE(skl__vinverse)(skl__v scale)
{
    const skl__v least = skl__vset(7.88860905e-31f); /* 2^-100 */
    return skl__vless(least, scale, skl__vdiv(skl__vset(1.0f), scale), skl__vset(0.0f));
}

/* The quotients where there is no inverse; 0 for a scale of 0. */
SKL__NOINLINE SKL__FUNCTION skl__v SKL__LANE(skl__vdivided)(skl__v x, float scale)
{
    return scale > 0.0f ? skl__vdiv(x, skl__vset(scale)) : skl__vset(0.0f);
}

/* Sixteen codes round(x / scale), to nearest even, within the levels. The quotient is made of the inverse and its remainder, which
 * takes less than a division. Its last bit may be another one, but the code never is: for every scale of a binade, all x within 8
 * steps of the middle between two codes were tried. */
SKL__HELPER skl__v SKL__LANE(skl__vcodes)(skl__v x, float scale, float inverse, float levels)
{
    const skl__v magic = skl__vset(SKL__MAGIC), factor = skl__vset(inverse);
    skl__v q = skl__vmul(x, factor);
    q = skl__vfma(skl__vfma(q, skl__vset(-scale), x), factor, q);
    if (!(inverse > 0.0f)) q = SKL__LANE(skl__vdivided)(x, scale);
    q = skl__vmax(skl__vmin(q, skl__vset(levels)), skl__vset(-levels));
    return skl__vsub(skl__vadd(q, magic), magic);
}

/* Largest magnitude of n values. */
SKL__HELPER float SKL__LANE(skl__magnitude)(const float *x, size_t n)
{
    skl__v largest = skl__vset(0.0f);
    size_t i;
    for (i = 0; i < n; i += 16) largest = skl__vmax(skl__vabs(skl__vload_at(x, i, n)), largest);
    return skl__vlargest(largest);
}

/* Codes of n <= 32 values; returns their strided partial sums.        x, codes  [n] */
SKL__HELPER skl__v SKL__LANE(skl__quantise_group)(const float *x, size_t n, float scale, float inverse, float levels,
                                                  int8_t *codes)
{
    skl__v total = skl__vset(0.0f);
    size_t i;
    SKL__LANES_UNROLL for (i = 0; i < 32; i += 16) {
        skl__v q;
        int8_t bytes[16];
        if (i >= n) continue;
        q = SKL__LANE(skl__vcodes)(skl__vload_at(x, i, n), scale, inverse, levels);
        total = skl__vadd(total, q);
        if (n - i >= 16) {
            skl__vstore_i8(codes + i, q);
        } else {
            skl__vstore_i8(bytes, q);
            memcpy(codes + i, bytes, n - i);
        }
    }
    return total;
}

/* Largest magnitudes of 32 values each, of up to sixteen such groups; 0 beyond n.        x  [n] */
SKL__HELPER skl__v SKL__LANE(skl__vmagnitudes)(const float *x, size_t n)
{
    skl__v largest[16];
    size_t g;
    for (g = 0; g < 16; g++) {
        const size_t begin = g * 32;
        largest[g] = begin < n ? skl__vabs(skl__vload_at(x, begin, n)) : skl__vset(0.0f);
        if (begin + 16 < n) largest[g] = skl__vmax(skl__vabs(skl__vload_at(x, begin + 16, n)), largest[g]);
    }
    return skl__vlargest16(largest);
}

/* Quantises one row of activations: round(x / s) to nearest even, s = max|x| / levels over 32 values or the whole row. Sixteen
 * groups at a time: what crosses lanes, and the divisions, are done once for all of them.
 *   x  [n]    codes  [n]    scales  [ceil(n / 32)] or [1]    sums  [ceil(n / 32)], of the codes of 32 */
SKL__KERNEL void SKL__LANE(skl__quantise)(const float *x, size_t n, float levels, int row, int8_t *codes, float *scales,
                                          int32_t *sums)
{
    skl__v scale = skl__vset(row ? skl__div(SKL__LANE(skl__magnitude)(x, n), levels) : 0.0f);
    float scale_of[16], inverse_of[16], sum_of[16];
    size_t begin, g;
    if (row) SKL__LANE(skl__vstore_at)(scales, scale, 0, 1);
    for (begin = 0; begin < n; begin += 512) {
        const size_t count = n - begin < 512 ? n - begin : 512, groups = (count + 31) / 32;
        skl__v totals[16];
        if (!row) {
            scale = skl__vdiv(SKL__LANE(skl__vmagnitudes)(x + begin, count), skl__vset(levels));
            SKL__LANE(skl__vstore_at)(scales + begin / 32, scale, 0, groups);
        }
        skl__vstore(scale_of, scale);
        skl__vstore(inverse_of, SKL__LANE(skl__vinverse)(scale));
        for (g = 0; g < 16; g++) {
            const size_t at = begin + g * 32, left = at < n ? n - at : 0;
            totals[g] = left >= 32 ? SKL__LANE(skl__quantise_group)(x + at, 32, scale_of[g], inverse_of[g], levels, codes + at)
                                   : SKL__LANE(skl__quantise_group)(x + at, left, scale_of[g], inverse_of[g], levels, codes + at);
        }
        skl__vstore(sum_of, skl__vsum16(totals));
        for (g = 0; g < groups; g++) sums[begin / 32 + g] = (int32_t)sum_of[g]; /* exact: integers below 2^13 */
    }
}

/* Softmax in place over n logits and the null class; returns the null probability.        x  [n] */
SKL__KERNEL float SKL__LANE(skl__softmax)(float *x, size_t n, float null_logit)
{
    const float start[16] = {null_logit == SKL__NO_NULL ? 0.0f : 1.0f};
    float max = null_logit, inverse, lanes[16];
    skl__v sum;
    size_t i;
    for (i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    skl__vstore(lanes, SKL__LANE(skl__vexp)(skl__vset(null_logit - max)));
    sum = skl__vmul(skl__vload(start), skl__vload(lanes));
    for (i = 0; i < n; i += 16) {
        skl__v e = SKL__LANE(skl__vexp)(skl__vsub(skl__vload_at(x, i, n), skl__vset(max)));
        SKL__LANE(skl__vstore_at)(x, e, i, n);
        sum = skl__vadd(sum, skl__vload_at(x, i, n)); /* zero in the lanes beyond n */
    }
    inverse = 1.0f / skl__vsum(sum);
    for (i = 0; i < n; i++) x[i] *= inverse;
    return null_logit == SKL__NO_NULL ? 0.0f : lanes[0] * inverse;
}

/* y = sum of weights[i] sources[i], oldest first.        y  [n]    sources  [count][stride]    weights  [count] */
SKL__KERNEL void SKL__LANE(skl__mix)(float *y, const float *sources, size_t stride, const float *weights, size_t count,
                                     size_t n)
{
    size_t i, s;
    int v;
    for (i = 0; i + 64 <= n; i += 64) { /* four sums, so that no step waits for the one before */
        skl__v sums[4];
        SKL__LANES_UNROLL for (v = 0; v < 4; v++) sums[v] = skl__vset(0.0f);
        for (s = 0; s < count; s++) {
            const float *source = sources + s * stride + i;
            SKL__LANES_UNROLL for (v = 0; v < 4; v++)
                sums[v] = skl__vfma(skl__vset(weights[s]), skl__vload(source + 16 * v), sums[v]);
        }
        SKL__LANES_UNROLL for (v = 0; v < 4; v++) skl__vstore(y + i + 16 * v, sums[v]);
    }
    for (; i < n; i += 16) {
        skl__v sum = skl__vset(0.0f);
        for (s = 0; s < count; s++) sum = skl__vfma(skl__vset(weights[s]), skl__vload_at(sources + s * stride, i, n), sum);
        SKL__LANE(skl__vstore_at)(y, sum, i, n);
    }
}

/* ---- matrices that take float activations */

/* For i below n, unrolled; the bound is a constant of its own, because Clang unrolls before it knows what n will be. */
#define SKL__LANES_FOR(i, most, n) SKL__LANES_UNROLL for ((i) = 0; (i) < (most); (i)++) if ((i) < (n))

/* Sixteen weights of a float matrix. */
SKL__HELPER skl__v SKL__LANE(skl__vload_weights)(const unsigned char *weights, skl__storage storage)
{
    if (storage == SKL__ROWS_F32) return skl__vload(weights);
    return storage == SKL__ROWS_F16 ? skl__vload_f16(weights) : skl__vload_bf16(weights);
}

#define SKL__LANES_ROWS (SKL__LANES_CHAINS >= 16 ? 4 : 2)

/* Rows by one token or by as many tokens: chains enough to hide the latency of the multiply-add, and few enough for the
 * registers. The next rows lie `ahead` bytes further.        sums  [tokens][16 rows] */
SKL__HELPER void SKL__LANE(skl__rows)(skl__v (*sums)[16], size_t first, const unsigned char *const *rows, const float *x,
                                      int tokens, size_t n, size_t ahead, skl__storage storage)
{
    const size_t size = storage == SKL__ROWS_F32 ? 4 : 2;
    skl__v acc[SKL__LANES_ROWS][SKL__LANES_ROWS];
    size_t k;
    int r, t;
    SKL__LANES_UNROLL for (t = 0; t < tokens; t++)
        SKL__LANES_UNROLL for (r = 0; r < SKL__LANES_ROWS; r++) acc[t][r] = skl__vset(0.0f);
    for (k = 0; k + 16 <= n; k += 16) {
        skl__v values[SKL__LANES_ROWS];
        SKL__LANES_UNROLL for (t = 0; t < tokens; t++) values[t] = skl__vload(x + (size_t)t * n + k);
        SKL__LANES_UNROLL for (r = 0; r < SKL__LANES_ROWS; r++) {
            const skl__v w = SKL__LANE(skl__vload_weights)(rows[r] + k * size, storage);
            if (tokens == 1) SKL__FETCH(rows[r] + k * size + ahead); /* rows are too short for a prefetcher to learn */
            SKL__LANES_UNROLL for (t = 0; t < tokens; t++) acc[t][r] = skl__vfma(w, values[t], acc[t][r]);
        }
    }
    SKL__LANES_UNROLL for (t = 0; t < tokens; t++)
        SKL__LANES_UNROLL for (r = 0; r < SKL__LANES_ROWS; r++) sums[t][first + (size_t)r] = acc[t][r];
}

/* The columns from `done` on, fewer than sixteen. */
SKL__FUNCTION void SKL__LANE(skl__rows_rest)(skl__v (*sums)[16], size_t first, const unsigned char *const *rows, const float *x,
                                             int tokens, size_t done, size_t n, skl__storage storage)
{
    const size_t size = storage == SKL__ROWS_F32 ? 4 : 2;
    int r, t;
    for (r = 0; r < SKL__LANES_ROWS; r++) {
        unsigned char lanes[64] = {0};
        memcpy(lanes, rows[r] + done * size, (n - done) * size);
        for (t = 0; t < tokens; t++) {
            const skl__v values = skl__vload_at(x + (size_t)t * n, done, n);
            skl__v *sum = &sums[t][first + (size_t)r];
            *sum = skl__vfma(SKL__LANE(skl__vload_weights)(lanes, storage), values, *sum);
        }
    }
}

SKL__HELPER void SKL__LANE(skl__rows16)(float *y, size_t y_stride, const skl__matrix *w, size_t tile, const float *x, int tokens,
                                        skl__storage storage)
{
    const size_t begin = tile * 16, count = w->rows - begin < 16 ? w->rows - begin : 16, whole = w->columns / 16 * 16;
    const unsigned char *row = w->data + begin * w->stride, *rows[SKL__LANES_ROWS];
    skl__v sums[SKL__LANES_ROWS][16];
    size_t r, i, ahead;
    int t;
    for (r = count; r < 16; r++)
        for (t = 0; t < tokens; t++) sums[t][r] = skl__vset(0.0f);
    for (r = 0; r < count; r += SKL__LANES_ROWS) { /* rows beyond the matrix repeat its last one and are not stored */
        for (i = 0; i < SKL__LANES_ROWS; i++) {
            rows[i] = row;
            if (r + i + 1 < count) row += w->stride;
        }
        ahead = begin + r + SKL__LANES_ROWS < w->rows ? SKL__LANES_ROWS * w->stride : 0;
        SKL__LANE(skl__rows)(sums, r, rows, x, tokens, w->columns, ahead, storage);
        if (whole < w->columns) SKL__LANE(skl__rows_rest)(sums, r, rows, x, tokens, whole, w->columns, storage);
    }
    for (t = 0; t < tokens; t++)
        SKL__LANE(skl__vstore_at)(y + (size_t)t * y_stride + begin, skl__vsum16(sums[t]), 0, count);
}

SKL__HELPER void SKL__LANE(skl__matmul_rows)(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin, size_t tile_end,
                                             const skl__acts *x, size_t tokens, skl__storage storage)
{
    size_t tile, t;
    for (tile = tile_begin; tile < tile_end; tile++) {
        for (t = 0; t + SKL__LANES_ROWS <= tokens; t += SKL__LANES_ROWS)
            SKL__LANE(skl__rows16)(y + t * y_stride, y_stride, w, tile, x->values + t * w->columns, SKL__LANES_ROWS, storage);
        for (; t < tokens; t++)
            SKL__LANE(skl__rows16)(y + t * y_stride, y_stride, w, tile, x->values + t * w->columns, 1, storage);
    }
}

SKL__KERNEL void SKL__LANE(skl__matmul_f32_f32)(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin,
                                                size_t tile_end,
                                                const skl__acts *x, size_t tokens)
{
    SKL__LANE(skl__matmul_rows)(y, y_stride, w, tile_begin, tile_end, x, tokens, SKL__ROWS_F32);
}

SKL__KERNEL void SKL__LANE(skl__matmul_f16_f32)(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin,
                                                size_t tile_end,
                                                const skl__acts *x, size_t tokens)
{
    SKL__LANE(skl__matmul_rows)(y, y_stride, w, tile_begin, tile_end, x, tokens, SKL__ROWS_F16);
}

SKL__KERNEL void SKL__LANE(skl__matmul_bf16_f32)(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin,
                                                 size_t tile_end,
                                                 const skl__acts *x, size_t tokens)
{
    SKL__LANE(skl__matmul_rows)(y, y_stride, w, tile_begin, tile_end, x, tokens, SKL__ROWS_BF16);
}

/* n <= 16 columns of sixteen rows by one token.        sums  [16]    columns  [n][16]    x  [n] */
SKL__HELPER void SKL__LANE(skl__columns)(skl__v *sums, const unsigned char *columns, const float *x, int n, skl__storage storage)
{
    const size_t bytes = storage == SKL__ROWS_F32 ? 64 : 32;
    int i;
    SKL__LANES_FOR(i, 16, n)
        sums[i] = skl__vfma(SKL__LANE(skl__vload_weights)(columns + (size_t)i * bytes, storage), skl__vset(x[i]), sums[i]);
}

/* Sixteen rows by one token. A lane is a row here, and the sixteen partial sums of a row are registers: they are summed in the
 * order of every matrix, but nothing has to cross lanes.        columns  [n][16]    x  [n] */
SKL__HELPER skl__v SKL__LANE(skl__columns16)(const unsigned char *columns, const float *x, size_t n, skl__storage storage)
{
    const size_t bytes = storage == SKL__ROWS_F32 ? 64 : 32;
    skl__v sums[16];
    size_t k;
    int i;
    SKL__LANES_UNROLL for (i = 0; i < 16; i++) sums[i] = skl__vset(0.0f);
    for (k = 0; k + 16 <= n; k += 16) SKL__LANE(skl__columns)(sums, columns + k * bytes, x + k, 16, storage);
    if (k < n) SKL__LANE(skl__columns)(sums, columns + k * bytes, x + k, (int)(n - k), storage);
    SKL__LANES_UNROLL for (i = 0; i < 8; i++) sums[i] = skl__vadd(sums[i], sums[i + 8]);
    SKL__LANES_UNROLL for (i = 0; i < 4; i++) sums[i] = skl__vadd(sums[i], sums[i + 4]);
    SKL__LANES_UNROLL for (i = 0; i < 2; i++) sums[i] = skl__vadd(sums[i], sums[i + 2]);
    return skl__vadd(sums[0], sums[1]);
}

#define SKL__GATE_ROWS ((size_t)256) /* at a time, so that W x stays where it is made */

SKL__HELPER void SKL__LANE(skl__gate_through)(float *y, const skl__matrix *w, const float *x, size_t tokens, skl__storage storage)
{
    const size_t n = w->rows;
    float u[SKL__GATE_ROWS];
    size_t begin, i, t;
    for (begin = 0; begin < n; begin += SKL__GATE_ROWS)
        for (t = 0; t < tokens; t++) {
            const size_t count = n - begin < SKL__GATE_ROWS ? n - begin : SKL__GATE_ROWS;
            for (i = 0; i < count; i += 16) {
                const unsigned char *columns = w->data + (begin + i) * w->stride;
                skl__vstore(u + i, SKL__LANE(skl__columns16)(columns, x + t * w->columns, w->columns, storage));
            }
            SKL__LANE(skl__gate)(y + t * n + begin, u, count, 1);
        }
}

/* y <- sig(W x) y.
 *   y  [tokens][rows]    w  by columns (skl__matrix_by_columns)    x  [tokens][columns] */
SKL__KERNEL void SKL__LANE(skl__gate_product)(float *y, const skl__matrix *w, const float *x, size_t tokens)
{
    if (w->storage == SKL__ROWS_F32) SKL__LANE(skl__gate_through)(y, w, x, tokens, SKL__ROWS_F32);
    else if (w->storage == SKL__ROWS_F16) SKL__LANE(skl__gate_through)(y, w, x, tokens, SKL__ROWS_F16);
    else SKL__LANE(skl__gate_through)(y, w, x, tokens, SKL__ROWS_BF16);
}

/* ---- rows as floats */

/* A float row; what is left of sixteen values takes the way through a full vector. */
SKL__HELPER void SKL__LANE(skl__widen_row)(float *values, const unsigned char *row, size_t n, skl__storage storage)
{
    const size_t size = storage == SKL__ROWS_F32 ? 4 : 2;
    unsigned char lanes[64] = {0};
    size_t i;
    for (i = 0; i + 16 <= n; i += 16) skl__vstore(values + i, SKL__LANE(skl__vload_weights)(row + i * size, storage));
    if (i == n) return;
    memcpy(lanes, row + i * size, (n - i) * size);
    SKL__LANE(skl__vstore_at)(values, SKL__LANE(skl__vload_weights)(lanes, storage), i, n);
}

/* A row of tiles: four lines give four bytes each, which are 32 codes of 4 bits or 16 of 8. */
SKL__HELPER void SKL__LANE(skl__unpack_tile_row)(float *values, const skl__matrix *w, size_t row, const int bits)
{
    const skl__tile tile = skl__tile_at(w, row / SKL__TILE);
    const skl__v offset = skl__vset(w->minimum && bits == 4 ? 8.0f : 0.0f); /* which skl__vload_i4 has taken off */
    const size_t lane = row % SKL__TILE, step = bits == 4 ? 32 : 16;
    skl__v codes[2], scale, minimum = skl__vset(0.0f);
    unsigned char bytes[16];
    size_t g, k, c, i;
    for (g = 0; g < w->columns / w->group; g++) {
        scale = skl__vset(skl__scale_at(w, tile.scales, g, lane));
        if (w->minimum) minimum = skl__vset(skl__scale_at(w, tile.minima, g, lane));
        for (k = g * w->group; k < (g + 1) * w->group; k += step) {
            SKL__LANES_UNROLL for (c = 0; c < 4; c++) memcpy(bytes + 4 * c, tile.codes + k / step * 256 + c * 64 + lane * 4, 4);
            if (bits == 4) skl__vload_i4(codes, bytes);
            else codes[0] = skl__vload_i8(bytes);
            SKL__LANES_FOR(i, 2, step / 16) {
                codes[i] = skl__vmul(scale, skl__vadd(codes[i], offset));
                skl__vstore(values + k + i * 16, w->minimum ? skl__vadd(codes[i], minimum) : codes[i]);
            }
        }
    }
}

/* One row of a matrix.        values  [columns] */
SKL__KERNEL void SKL__LANE(skl__unpack_row)(float *values, const skl__matrix *w, size_t row)
{
    switch (w->storage) {
    case SKL__ROWS_F32: SKL__LANE(skl__widen_row)(values, w->data + row * w->stride, w->columns, SKL__ROWS_F32); break;
    case SKL__ROWS_F16: SKL__LANE(skl__widen_row)(values, w->data + row * w->stride, w->columns, SKL__ROWS_F16); break;
    case SKL__ROWS_BF16: SKL__LANE(skl__widen_row)(values, w->data + row * w->stride, w->columns, SKL__ROWS_BF16); break;
    case SKL__TILES_4: SKL__LANE(skl__unpack_tile_row)(values, w, row, 4); break;
    default: SKL__LANE(skl__unpack_tile_row)(values, w, row, 8); break;
    }
}

/* Sixteen scales or minima of one group. */
SKL__HELPER skl__v SKL__LANE(skl__vload_scales)(const unsigned char *scales, size_t group, int wide)
{
    return wide ? skl__vload(scales + group * 64) : skl__vload_f16(scales + group * 32);
}

/* Integer codes with float activations, the reference format: one row to a lane; a chain over the codes of a group, one over
 * the groups, and one for the minima: acc = fma(scale, sum code x, acc), acc = fma(min, sum x, acc). */
SKL__FUNCTION void SKL__LANE(skl__codes_tile)(float *y, const skl__matrix *w, size_t tile, const float *x, int bits)
{
    const size_t begin = tile * 16, rows = w->rows - begin < 16 ? w->rows - begin : 16, groups = w->columns / w->group;
    const unsigned char *codes = w->data + tile * w->stride, *scales = codes + w->columns * 2 * (size_t)bits;
    const unsigned char *minima = scales + groups * (w->wide ? 64 : 32);
    const skl__v offset = skl__vset(w->minimum || bits == 8 ? 0.0f : 8.0f);
    skl__v acc = skl__vset(0.0f);
    size_t g, k;
    for (g = 0; g < groups; g++) {
        skl__v sum = skl__vset(0.0f), total = skl__vset(0.0f);
        for (k = g * w->group; k < (g + 1) * w->group; k++) {
            const size_t in = k % 32; /* place within a run of 32 */
            const skl__v input = skl__vset(x[k]);
            const skl__v code = bits == 8 ? skl__vload_s32(codes + k / 4 * 64, (int)(k % 4) * 8)
                                          : skl__vload_u32(codes + k / 32 * 256 + in % 16 / 4 * 64,
                                                           (int)(in % 4 * 8 + in / 16 * 4));
            sum = skl__vfma(skl__vsub(code, offset), input, sum);
            total = skl__vadd(total, input);
        }
        acc = skl__vfma(SKL__LANE(skl__vload_scales)(scales, g, w->wide), sum, acc);
        if (w->minimum) acc = skl__vfma(SKL__LANE(skl__vload_scales)(minima, g, w->wide), total, acc);
    }
    SKL__LANE(skl__vstore_at)(y + begin, acc, 0, rows);
}

SKL__KERNEL void SKL__LANE(skl__matmul_q4_f32)(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin,
                                               size_t tile_end,
                                               const skl__acts *x, size_t tokens)
{
    size_t tile, t;
    for (tile = tile_begin; tile < tile_end; tile++)
        for (t = 0; t < tokens; t++) SKL__LANE(skl__codes_tile)(y + t * y_stride, w, tile, x->values + t * x->columns, 4);
}

SKL__KERNEL void SKL__LANE(skl__matmul_q8_f32)(float *y, size_t y_stride, const skl__matrix *w, size_t tile_begin,
                                               size_t tile_end,
                                               const skl__acts *x, size_t tokens)
{
    size_t tile, t;
    for (tile = tile_begin; tile < tile_end; tile++)
        for (t = 0; t < tokens; t++) SKL__LANE(skl__codes_tile)(y + t * y_stride, w, tile, x->values + t * x->columns, 8);
}

/* ---- keys and values */

/* Sixteen values as they lie in the cache; not i4. */
SKL__HELPER skl__v SKL__LANE(skl__vload_kv)(const unsigned char *p, skl_kv kv)
{
    return kv == SKL_KV_F32 ? skl__vload(p) : kv == SKL_KV_F16 ? skl__vload_f16(p) : skl__vload_i8(p);
}

/* Dimensions d and, if dims is 2, d + 1 of sixteen keys; d is even.        keys  of a block, from the first of the sixteen */
SKL__HELPER void SKL__LANE(skl__vload_keys)(skl__v two[2], const unsigned char *keys, size_t d, int dims, skl_kv kv)
{
    const size_t row = 4 * skl__kv_vector(kv);
    if (kv == SKL_KV_I4) {
        skl__vload_i4(two, keys + d / 2 * row);
    } else {
        two[0] = SKL__LANE(skl__vload_kv)(keys + d * row, kv);
        if (dims == 2) two[1] = SKL__LANE(skl__vload_kv)(keys + (d + 1) * row, kv);
    }
}

/* What a float of the cache becomes: itself, or a symmetric code. */
typedef struct SKL__LANE(skl__kv_coder) {
    skl_kv kv;
    float levels;
    float scale[16], inverse[16];      /* of each position, with codes                                                  */
} SKL__LANE(skl__kv_coder);

/* Coder of up to 16 keys or values; leaves the scales in the cache.        x  [count][stride]    scales  [count] */
SKL__FUNCTION SKL__LANE(skl__kv_coder) SKL__LANE(skl__kv_coder_of)(skl_kv kv, const float *x, size_t stride, size_t count,
                                                                   size_t head_dim, float *scales)
{
    SKL__LANE(skl__kv_coder) coder;
    size_t i;
    memset(&coder, 0, sizeof coder);
    coder.kv = kv;
    coder.levels = kv == SKL_KV_I8 ? 127.0f : 7.0f;
    if (kv == SKL_KV_I8 || kv == SKL_KV_I4)
        for (i = 0; i < count; i++)
            scales[i] = coder.scale[i] = skl__div(SKL__LANE(skl__magnitude)(x + i * stride, head_dim), coder.levels);
    skl__vstore(coder.inverse, SKL__LANE(skl__vinverse)(skl__vload(coder.scale)));
    return coder;
}

/* Sixteen dimensions of position i, from d on; zero beyond the head. */
SKL__HELPER skl__v SKL__LANE(skl__vload_coded)(const SKL__LANE(skl__kv_coder) *coder, size_t i, const float *x, size_t d,
                                               size_t head_dim)
{
    const skl__v v = d < head_dim ? skl__vload_at(x, d, head_dim) : skl__vset(0.0f);
    if (coder->kv != SKL_KV_I8 && coder->kv != SKL_KV_I4) return v;
    return SKL__LANE(skl__vcodes)(v, coder->scale[i], coder->inverse[i], coder->levels);
}

/* Sixteen coded values; i4: twice sixteen, code + 8 of `odd` in the high nibbles. A byte is stored as the int8 of its bits. */
SKL__HELPER void SKL__LANE(skl__vstore_kv)(unsigned char *p, skl__v v, skl__v odd, skl_kv kv)
{
    skl__v byte;
    switch (kv) {
    case SKL_KV_F32: skl__vstore((float *)(void *)p, v); break;
    case SKL_KV_F16: skl__vstore_f16((uint16_t *)(void *)p, v); break;
    case SKL_KV_I8: skl__vstore_i8((int8_t *)p, v); break;
    default:
        byte = skl__vfma(odd, skl__vset(16.0f), skl__vadd(v, skl__vset(8.0f)));         /* 8 of the high nibble to come */
        byte = skl__vadd(byte, skl__vless(odd, skl__vset(0.0f), skl__vset(128.0f), skl__vset(-128.0f)));
        skl__vstore_i8((int8_t *)p, byte);
        break;
    }
}

/* One value.        row  [value_stride bytes]    x  [head_dim] */
SKL__HELPER void SKL__LANE(skl__store_value)(unsigned char *row, const SKL__LANE(skl__kv_coder) *coder, size_t i,
                                             const float *x, size_t head_dim)
{
    const size_t step = coder->kv == SKL_KV_I4 ? 32 : 16;
    size_t d;
    for (d = 0; d < head_dim; d += step)
        SKL__LANE(skl__vstore_kv)(row + d / step * skl__kv_vector(coder->kv),
                                  SKL__LANE(skl__vload_coded)(coder, i, x, d, head_dim),
                                  SKL__LANE(skl__vload_coded)(coder, i, x, d + 16, head_dim), coder->kv);
}

/* One key, a cell of every row.        cells  at the place of the key in the first row    x  [head_dim] */
SKL__FUNCTION void SKL__LANE(skl__store_key)(unsigned char *cells, const SKL__LANE(skl__kv_coder) *coder, const float *x,
                                             size_t head_dim)
{
    const size_t size = skl__kv_vector(coder->kv) / 16, row = size * SKL__BLOCK;
    unsigned char packed[64];
    size_t d, i;
    for (d = 0; d < head_dim; d += 16) {
        const skl__v v = SKL__LANE(skl__vload_coded)(coder, 0, x, d, head_dim);
        const size_t n = head_dim - d < 16 ? head_dim - d : 16;
        if (coder->kv == SKL_KV_I4) {
            skl__vstore_i8((int8_t *)packed, skl__vadd(v, skl__vset(8.0f)));
            for (i = 0; i < n; i += 2) cells[(d + i) / 2 * row] = (unsigned char)(packed[i] | packed[i + 1] << 4);
        } else {
            SKL__LANE(skl__vstore_kv)(packed, v, v, coder->kv);
            for (i = 0; i < n; i++) skl__kv_copy(cells + (d + i) * row, packed + i * size, size);
        }
    }
}

/* rows[r][c] <-> rows[c][r]: each round turns the eight bits of a place, row and column, by one. */
SKL__HELPER void SKL__LANE(skl__vtranspose)(skl__v rows[16])
{
    skl__v turned[16];
    int round, i;
    SKL__LANES_UNROLL for (round = 0; round < 4; round++) {
        SKL__LANES_UNROLL for (i = 0; i < 8; i++) {
            turned[2 * i] = skl__vzip_low(rows[i], rows[i + 8]);
            turned[2 * i + 1] = skl__vzip_high(rows[i], rows[i + 8]);
        }
        SKL__LANES_UNROLL for (i = 0; i < 16; i++) rows[i] = turned[i];
    }
}

/* Sixteen keys, a vector of every row.        cells  as above    x  [16][stride] */
SKL__FUNCTION void SKL__LANE(skl__store_keys)(unsigned char *cells, const SKL__LANE(skl__kv_coder) *coder, const float *x,
                                              size_t stride, size_t head_dim)
{
    const size_t row = 4 * skl__kv_vector(coder->kv), dims = coder->kv == SKL_KV_I4 ? 2 : 1;
    size_t d, i;
    for (d = 0; d < head_dim; d += 16) {
        const size_t n = head_dim - d < 16 ? head_dim - d : 16;
        skl__v rows[16];
        for (i = 0; i < 16; i++) rows[i] = SKL__LANE(skl__vload_coded)(coder, i, x + i * stride, d, head_dim);
        SKL__LANE(skl__vtranspose)(rows);
        for (i = 0; i < n; i += dims)
            SKL__LANE(skl__vstore_kv)(cells + (d + i) / dims * row, rows[i], rows[(i + 1) % 16], coder->kv);
    }
}

/* Stores keys and values of one head at `count` positions, which are of the same 16.        keys, values  [count][stride] */
SKL__KERNEL void SKL__LANE(skl__store_kv)(const skl__kv_head *head, skl_kv kv, size_t head_dim, size_t position, size_t count,
                                          const float *keys, const float *values, size_t stride)
{
    const skl__kv_head block = skl__kv_block(head, position);
    const size_t place = position % SKL__BLOCK, size = skl__kv_vector(kv) / 16;
    size_t i;
    SKL__LANE(skl__kv_coder) coder;
    for (i = 0; i < count && count < 16; i++) {
        coder = SKL__LANE(skl__kv_coder_of)(kv, keys + i * stride, stride, 1, head_dim, block.key_scales + place + i);
        SKL__LANE(skl__store_key)(block.keys + (place + i) * size, &coder, keys + i * stride, head_dim);
    }
    if (count == 16) {
        coder = SKL__LANE(skl__kv_coder_of)(kv, keys, stride, count, head_dim, block.key_scales + place);
        SKL__LANE(skl__store_keys)(block.keys + place * size, &coder, keys, stride, head_dim);
    }
    coder = SKL__LANE(skl__kv_coder_of)(kv, values, stride, count, head_dim, block.value_scales + place);
    for (i = 0; i < count; i++)
        SKL__LANE(skl__store_value)(block.values + (place + i) * block.value_stride, &coder, i, values + i * stride, head_dim);
}

/* One or two dimensions of a score: acc[query][tile] += q[query][d] key[d].        acc  [count][4] */
SKL__HELPER void SKL__LANE(skl__score_dims)(skl__v (*acc)[4], const unsigned char *keys, const float *const *q, int count,
                                            int tiles, size_t d, int dims, skl_kv kv)
{
    const size_t step = skl__kv_vector(kv);
    skl__v two[4][2];
    int t, i, j;
    SKL__LANES_FOR(t, 4, tiles) SKL__LANE(skl__vload_keys)(two[t], keys + (size_t)t * step, d, dims, kv);
    SKL__LANES_FOR(j, 2, dims)
        SKL__LANES_FOR(i, SKL__TOGETHER, count) {
            const skl__v input = skl__vset(q[i][d + (size_t)j]);
            SKL__LANES_FOR(t, 4, tiles) acc[i][t] = skl__vfma(two[t][j], input, acc[i][t]);
        }
}

/* Scores of `count` queries against the 64 keys of a block: chains over the dimensions, one score to a lane; as many vectors of
 * keys at a time as leave the chains in registers.        scores  [count][64] */
SKL__HELPER void SKL__LANE(skl__score_block)(float (*scores)[SKL__BLOCK], const skl__kv_walk *walk, const float *const *q,
                                             int count, skl_kv kv)
{
    const int tiles = SKL__LANES_CHAINS / count < 4 ? SKL__LANES_CHAINS / count : 4;
    const size_t vector = skl__kv_vector(kv), pair = vector * (kv == SKL_KV_I4 ? 4 : 8); /* bytes of two dimensions */
    const size_t even = walk->head_dim / 2 * 2;
    size_t first, d;
    int t, i;
    for (first = 0; first < 4; first += (size_t)tiles) {
        const size_t strip = walk->asks && first == 0 ? 2 * (pair < SKL__STRIP ? SKL__STRIP / pair : 1) : even;
        const unsigned char *keys = walk->block.keys + first * vector;
        skl__v acc[SKL__TOGETHER][4];
        SKL__LANES_FOR(i, SKL__TOGETHER, count)
            SKL__LANES_FOR(t, 4, tiles) acc[i][t] = skl__vset(0.0f);
        for (d = 0; d < even;) {
            const size_t stop = strip < even - d ? d + strip : even;
            if (strip < even) skl__kv_fetch(walk, d / 2 * pair + SKL__AHEAD, stop / 2 * pair + SKL__AHEAD);
            for (; d < stop; d += 2) SKL__LANE(skl__score_dims)(acc, keys, q, count, tiles, d, 2, kv);
        }
        if (d < walk->head_dim) SKL__LANE(skl__score_dims)(acc, keys, q, count, tiles, d, 1, kv);
        SKL__LANES_FOR(i, SKL__TOGETHER, count)
            SKL__LANES_FOR(t, 4, tiles) {
                const size_t column = (first + (size_t)t) * 16;
                if (kv == SKL_KV_I8 || kv == SKL_KV_I4)
                    acc[i][t] = skl__vmul(acc[i][t], skl__vload(walk->block.key_scales + column));
                skl__vstore(scores[i] + column, acc[i][t]);
            }
    }
}

/* Sixteen times `width` dimensions, from d on, of one value; one vector of i4 may be either half of its 32 dimensions. */
SKL__HELPER void SKL__LANE(skl__vload_values)(skl__v *vectors, const unsigned char *value, size_t d, int width, skl_kv kv)
{
    const size_t step = skl__kv_vector(kv);
    skl__v two[2];
    int t;
    if (kv == SKL_KV_I4 && width == 1) {
        skl__vload_i4(two, value + d / 32 * 16);
        vectors[0] = two[d / 16 % 2];
    } else if (kv == SKL_KV_I4) {
        SKL__LANES_FOR(t, 8, width) if (t % 2 == 0) skl__vload_i4(vectors + t, value + d / 2 + 8 * (size_t)t);
    } else {
        SKL__LANES_FOR(t, 8, width)
            vectors[t] = SKL__LANE(skl__vload_kv)(value + (d / 16 + (size_t)t) * step, kv);
    }
}

/* mixes[i] += sum over keys [begin, end) of the block of weights[i][key] value[key]: chains over the keys, one dimension to a
 * lane; sixteen times `width` dimensions from d on.        weights  [count][64]        mixes  [count][padded head_dim] */
SKL__HELPER void SKL__LANE(skl__mix_dims)(float *const *mixes, float (*weights)[SKL__BLOCK], const skl__kv_walk *walk,
                                          int count, size_t begin, size_t end, size_t d, int width, skl_kv kv)
{
    const size_t stride = walk->block.value_stride, ahead = (size_t)(walk->block.values - walk->block.keys) + SKL__AHEAD;
    const size_t strip = walk->asks && d == 0 ? (stride < SKL__STRIP ? SKL__STRIP / stride : 1) : SKL__BLOCK;
    skl__v acc[SKL__TOGETHER][8];
    size_t key;
    int t, i;
    SKL__LANES_FOR(i, SKL__TOGETHER, count)
        SKL__LANES_FOR(t, 8, width) acc[i][t] = skl__vload(mixes[i] + d + 16 * (size_t)t);
    for (key = begin; key < end;) {
        const size_t stop = strip < end - key ? key + strip : end;
        if (strip < SKL__BLOCK) skl__kv_fetch(walk, ahead + key * stride, ahead + stop * stride);
        for (; key < stop; key++) {
            skl__v value[8];
            SKL__LANE(skl__vload_values)(value, walk->block.values + key * stride, d, width, kv);
            SKL__LANES_FOR(i, SKL__TOGETHER, count) {
                const skl__v weight = skl__vset(weights[i][key]);
                SKL__LANES_FOR(t, 8, width) acc[i][t] = skl__vfma(weight, value[t], acc[i][t]);
            }
        }
    }
    SKL__LANES_FOR(i, SKL__TOGETHER, count)
        SKL__LANES_FOR(t, 8, width) skl__vstore(mixes[i] + d + 16 * (size_t)t, acc[i][t]);
}

/* All dimensions: as many at a time as leaves the chains in registers, so that long rows are read once and in order. */
SKL__HELPER void SKL__LANE(skl__mix_block)(float *const *mixes, float (*weights)[SKL__BLOCK], const skl__kv_walk *walk,
                                           int count, size_t begin, size_t end, skl_kv kv)
{
    const int width = SKL__LANES_CHAINS / count < 8 ? SKL__LANES_CHAINS / count : 8;
    const size_t wide = 16 * (size_t)width;
    size_t d = 0;
    for (; d + wide <= walk->head_dim; d += wide)
        SKL__LANE(skl__mix_dims)(mixes, weights, walk, count, begin, end, d, width, kv);
    for (; width > 4 && d + 64 <= walk->head_dim; d += 64)
        SKL__LANE(skl__mix_dims)(mixes, weights, walk, count, begin, end, d, 4, kv);
    for (; d < walk->head_dim; d += 16) SKL__LANE(skl__mix_dims)(mixes, weights, walk, count, begin, end, d, 1, kv);
}

/* The running softmax of one query: see >>attention. */
typedef struct SKL__LANE(skl__softmax_state) {
    float max;                             /* largest logit so far, the null logit included                             */
    skl__v sum;                            /* strided partial sums of exp(logit - max), the null class in lane 0        */
    float mix[SKL__HEAD_DIM_MAX];          /* sum of exp(logit - max) value; a multiple of 16 dims is used              */
} SKL__LANE(skl__softmax_state);

SKL__FUNCTION float SKL__LANE(skl__exp1)(float x)
{
    float lanes[16];
    skl__vstore(lanes, SKL__LANE(skl__vexp)(skl__vset(x)));
    return lanes[0];
}

SKL__FUNCTION void SKL__LANE(skl__softmax_begin)(SKL__LANE(skl__softmax_state) *s, float null_logit, size_t head_dim)
{
    const float start[16] = {null_logit == SKL__NO_NULL ? 0.0f : 1.0f};
    s->max = null_logit;
    s->sum = skl__vload(start);
    memset(s->mix, 0, (head_dim + 15) / 16 * 16 * sizeof *s->mix);
}

/* Leaves the logits [begin, end) of a block, hides the others, and returns the largest of them and of `max`. */
SKL__FUNCTION float SKL__LANE(skl__largest_logit)(float *logits, size_t begin, size_t end, float max)
{
    const float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const skl__v hidden = skl__vset(SKL__NO_NULL), from = skl__vset((float)begin), to = skl__vset((float)end);
    skl__v largest = skl__vset(max);
    size_t i;
    if (begin > 0 || end < SKL__BLOCK)
        for (i = 0; i < SKL__BLOCK; i += 16) {
            const skl__v place = skl__vadd(skl__vload(lanes), skl__vset((float)i));
            const skl__v seen = skl__vless(place, from, hidden, skl__vload(logits + i));
            skl__vstore(logits + i, skl__vless(place, to, seen, hidden));
        }
    SKL__LANES_UNROLL for (i = 0; i < SKL__BLOCK; i += 16) largest = skl__vmax(skl__vload(logits + i), largest);
    return skl__vlargest(largest);
}

/* Absorbs the logits [begin, end) of a block for every query and leaves their weights in place, 0 outside; rescales what was
 * there. Step by step for all of them, because each step of one is a long wait.        weights  [queries][64] */
SKL__FUNCTION void SKL__LANE(skl__softmax_absorb)(SKL__LANE(skl__softmax_state) *state, float (*weights)[SKL__BLOCK],
                                                  const size_t *begin, const size_t *end, size_t queries, size_t head_dim)
{
    float rescale[SKL__QUERIES] = {0}; /* logarithm first */
    size_t q, i;
    for (q = 0; q < queries; q++) {
        const float max = begin[q] == end[q] ? state[q].max
                          : SKL__LANE(skl__largest_logit)(weights[q], begin[q], end[q], state[q].max);
        if (!(max > state[q].max)) continue;
        rescale[q] = state[q].max - max;
        state[q].max = max;
    }
    skl__vstore(rescale, SKL__LANE(skl__vexp)(skl__vload(rescale)));
    for (q = 0; q < queries; q++) {
        const skl__v max = skl__vset(state[q].max), factor = skl__vset(rescale[q]);
        skl__v sum = skl__vmul(state[q].sum, factor);
        if (begin[q] == end[q]) continue;
        SKL__LANES_UNROLL for (i = 0; i < SKL__BLOCK; i += 16) {
            const skl__v w = SKL__LANE(skl__vexp)(skl__vsub(skl__vload(weights[q] + i), max));
            skl__vstore(weights[q] + i, w);
            sum = skl__vadd(sum, w);
        }
        state[q].sum = sum;
        if (rescale[q] == 1.0f) continue;
        for (i = 0; i < head_dim; i += 16) skl__vstore(state[q].mix + i, skl__vmul(skl__vload(state[q].mix + i), factor));
    }
}

/* Clipped softmax needs the final maximum and sum before it can weigh: weights of a block in a second walk. */
SKL__FUNCTION void SKL__LANE(skl__clip_block)(const SKL__LANE(skl__softmax_state) *s, float inverse, const skl__attend_job *job,
                                              float *logits)
{
    const skl__v slope = skl__vset(job->zeta - job->gamma), shift = skl__vset(job->gamma);
    size_t i;
    for (i = 0; i < SKL__BLOCK; i += 16) {
        skl__v p = SKL__LANE(skl__vexp)(skl__vsub(skl__vload(logits + i), skl__vset(s->max)));
        p = skl__vfma(slope, skl__vmul(p, skl__vset(inverse)), shift);
        skl__vstore(logits + i, skl__vmin(skl__vset(1.0f), skl__vmax(skl__vset(0.0f), p)));
    }
}

/* Positions [begin, end) of a block that a query sees. */
SKL__INLINE void SKL__LANE(skl__visible)(const skl__attend_job *job, size_t query, size_t block, size_t *begin, size_t *end)
{
    *begin = job->first[query] > block ? job->first[query] - block : 0;
    *end = job->last[query] + 1 > block ? job->last[query] + 1 - block : 0;
    if (*begin > SKL__BLOCK) *begin = SKL__BLOCK;
    if (*end > SKL__BLOCK) *end = SKL__BLOCK;
    if (*end < *begin) *end = *begin;
}

/* One body for each format and number of queries, so that accumulators are registers. */
#if SKL__LANES_CHAINS >= 16
#define SKL__SPECIALISE_8(call)                                           \
    case SKL_KV_F16 * 16 + 8: call(8, SKL_KV_F16); break;                 \
    case SKL_KV_I8 * 16 + 8: call(8, SKL_KV_I8); break;                   \
    case SKL_KV_I4 * 16 + 8: call(8, SKL_KV_I4); break;
#else
#define SKL__SPECIALISE_8(call)
#endif
#define SKL__SPECIALISE(call, kv, count)                                  \
    switch ((int)(kv) * 16 + (count)) {                                   \
    SKL__SPECIALISE_8(call)                                               \
    case SKL_KV_F32 * 16 + 1: call(1, SKL_KV_F32); break;                 \
    case SKL_KV_F32 * 16 + 2: call(2, SKL_KV_F32); break;                 \
    case SKL_KV_F32 * 16 + 4: call(4, SKL_KV_F32); break;                 \
    case SKL_KV_F16 * 16 + 1: call(1, SKL_KV_F16); break;                 \
    case SKL_KV_F16 * 16 + 2: call(2, SKL_KV_F16); break;                 \
    case SKL_KV_F16 * 16 + 4: call(4, SKL_KV_F16); break;                 \
    case SKL_KV_I8 * 16 + 1: call(1, SKL_KV_I8); break;                   \
    case SKL_KV_I8 * 16 + 2: call(2, SKL_KV_I8); break;                   \
    case SKL_KV_I8 * 16 + 4: call(4, SKL_KV_I8); break;                   \
    case SKL_KV_I4 * 16 + 1: call(1, SKL_KV_I4); break;                   \
    case SKL_KV_I4 * 16 + 2: call(2, SKL_KV_I4); break;                   \
    default: call(4, SKL_KV_I4); break;                                   \
    }

SKL__FUNCTION void SKL__LANE(skl__score)(float (*scores)[SKL__BLOCK], const skl__kv_walk *walk, const float *const *q,
                                         int count)
{
#define SKL__CALL(n, format) SKL__LANE(skl__score_block)(scores, walk, q, n, format)
    SKL__SPECIALISE(SKL__CALL, walk->kv, count)
#undef SKL__CALL
}

SKL__FUNCTION void SKL__LANE(skl__mix_values)(float *const *mixes, float (*weights)[SKL__BLOCK], const skl__kv_walk *walk,
                                              int count, size_t begin, size_t end)
{
    if (begin >= end) return;
#define SKL__CALL(n, format) SKL__LANE(skl__mix_block)(mixes, weights, walk, n, begin, end, format)
    SKL__SPECIALISE(SKL__CALL, walk->kv, count)
#undef SKL__CALL
}

/* The same, each query with its own keys [begin, end): those that all see are mixed together, the others for each alone. */
SKL__FUNCTION void SKL__LANE(skl__mix_ranges)(float *const *mixes, float (*weights)[SKL__BLOCK], const skl__kv_walk *walk,
                                              int count, const size_t *begin, const size_t *end)
{
    size_t from = begin[0], to = end[0];
    int i;
    for (i = 1; i < count; i++) {
        from = begin[i] > from ? begin[i] : from;
        to = end[i] < to ? end[i] : to;
    }
    for (i = 0; i < count; i++)
        SKL__LANE(skl__mix_values)(mixes + i, weights + i, walk, 1, begin[i], end[i] < from ? end[i] : from);
    SKL__LANE(skl__mix_values)(mixes, weights, walk, count, from, to);
    if (to < from) to = from;
    for (i = 0; i < count; i++)
        SKL__LANE(skl__mix_values)(mixes + i, weights + i, walk, 1, begin[i] > to ? begin[i] : to, end[i]);
}

/* The walk over positions [low, high] at the block of `low`. */
SKL__FUNCTION skl__kv_walk SKL__LANE(skl__walk_begin)(const skl__attend_job *job, size_t low, size_t high)
{
    const size_t blocks = high / SKL__BLOCK - low / SKL__BLOCK, rows = high % SKL__BLOCK + 1;
    skl__kv_walk walk;
    walk.block = skl__kv_block(&job->head, low);
    walk.left = blocks * walk.block.block + (size_t)(walk.block.values - walk.block.keys) + rows * walk.block.value_stride;
    walk.asks = job->cold;
    walk.head_dim = job->head_dim;
    walk.kv = job->kv;
    if (job->cold) skl__kv_fetch(&walk, 0, SKL__AHEAD);
    return walk;
}

/* How many of the queries that are left go together: eight where sums find room and widening takes the ports that multiply. */
SKL__HELPER int SKL__LANE(skl__together)(size_t left, skl_kv kv)
{
    if (left >= 8 && SKL__TOGETHER == 8 && kv != SKL_KV_F32) return 8;
    return left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* Values that are codes: their scales go to the weights. Beyond what a query sees there may be anything; nobody reads it.
 *   weights  [queries][64] */
SKL__FUNCTION void SKL__LANE(skl__scale_weights)(float (*weights)[SKL__BLOCK], const skl__kv_walk *walk, size_t queries)
{
    size_t q, i;
    for (q = 0; q < queries; q++)
        SKL__LANES_UNROLL for (i = 0; i < SKL__BLOCK; i += 16)
            skl__vstore(weights[q] + i, skl__vmul(skl__vload(weights[q] + i), skl__vload(walk->block.value_scales + i)));
}

/* One block for all queries of a job: scores, weights and, in the last turn, values. A query that sees nothing of the block is
 * left as it is, so company never changes a result. */
SKL__FUNCTION void SKL__LANE(skl__attend_block)(const skl__attend_job *job, SKL__LANE(skl__softmax_state) *state,
                                                skl__kv_walk *walk, size_t block, const float *inverse)
{
    float weights[SKL__QUERIES][SKL__BLOCK], *mixes[SKL__QUERIES];
    size_t begin[SKL__QUERIES], end[SKL__QUERIES], i;
    int count;
    for (i = 0; i < job->queries; i += (size_t)count) {
        count = SKL__LANE(skl__together)(job->queries - i, walk->kv);
        walk->asks = job->cold && i == 0;
        SKL__LANE(skl__score)(weights + i, walk, job->q + i, count);
    }
    for (i = 0; i < job->queries; i++) {
        mixes[i] = state[i].mix;
        SKL__LANE(skl__visible)(job, i, block, &begin[i], &end[i]);
        if (inverse) SKL__LANE(skl__clip_block)(&state[i], inverse[i], job, weights[i]);
    }
    if (!inverse) SKL__LANE(skl__softmax_absorb)(state, weights, begin, end, job->queries, job->head_dim);
    if (job->clipped && !inverse) return;
    if (walk->kv == SKL_KV_I8 || walk->kv == SKL_KV_I4) SKL__LANE(skl__scale_weights)(weights, walk, job->queries);
    for (i = 0; i < job->queries; i += (size_t)count) {
        count = SKL__LANE(skl__together)(job->queries - i, walk->kv);
        walk->asks = job->cold && i == 0;
        SKL__LANE(skl__mix_ranges)(mixes + i, weights + i, walk, count, begin + i, end + i);
    }
}

/* Blocks of keys in ascending position. Clipped softmax walks twice: weights need the final maximum and sum. */
SKL__KERNEL void SKL__LANE(skl__attend)(skl__attend_job *job)
{
    SKL__LANE(skl__softmax_state) state[SKL__QUERIES];
    float inverse[SKL__QUERIES];
    size_t low = SIZE_MAX, high = 0, block, i, d;
    int turn;
    for (i = 0; i < job->queries; i++) {
        low = job->first[i] < low ? job->first[i] : low;
        high = job->last[i] > high ? job->last[i] : high;
        SKL__LANE(skl__softmax_begin)(&state[i], job->null_logit[i], job->head_dim);
    }
    for (turn = 0; turn <= job->clipped; turn++) {
        skl__kv_walk walk = SKL__LANE(skl__walk_begin)(job, low, high);
        for (block = low / SKL__BLOCK * SKL__BLOCK; block <= high; block += SKL__BLOCK) {
            if (block > low) skl__kv_advance(&walk);
            SKL__LANE(skl__attend_block)(job, state, &walk, block, turn ? inverse : NULL);
        }
        for (i = 0; i < job->queries && turn == 0; i++) inverse[i] = 1.0f / skl__vsum(state[i].sum);
    }
    for (i = 0; i < job->queries; i++) {
        const skl__v scale = skl__vset(job->clipped ? 1.0f : inverse[i]);
        for (d = 0; d < job->head_dim; d += 16)
            SKL__LANE(skl__vstore_at)(job->out[i], skl__vmul(scale, skl__vload(state[i].mix + d)), d, job->head_dim);
        job->null_mass[i] = job->null_logit[i] == SKL__NO_NULL
                                ? 0.0f : SKL__LANE(skl__exp1)(job->null_logit[i] - state[i].max) * inverse[i];
    }
}

static const skl__lane_kernels SKL__LANE(skl__lane_kernels) = {
    SKL__LANE(skl__exp), SKL__LANE(skl__silu), SKL__LANE(skl__gate), SKL__LANE(skl__gated_unit), SKL__LANE(skl__scale),
    SKL__LANE(skl__add), SKL__LANE(skl__dot_f32), SKL__LANE(skl__rms_norm), SKL__LANE(skl__dyt), SKL__LANE(skl__rope),
    SKL__LANE(skl__quantise), SKL__LANE(skl__softmax), SKL__LANE(skl__mix), SKL__LANE(skl__store_kv), SKL__LANE(skl__attend),
    SKL__LANE(skl__gate_product), SKL__LANE(skl__unpack_row), SKL__LANE(skl__matmul_f32_f32), SKL__LANE(skl__matmul_f16_f32),
    SKL__LANE(skl__matmul_bf16_f32), SKL__LANE(skl__matmul_q4_f32), SKL__LANE(skl__matmul_q8_f32)
};

#undef SKL__KERNEL
#undef SKL__FUNCTION
#undef SKL__SPECIALISE
#undef SKL__SPECIALISE_8
#undef SKL__LANES_FOR
#undef SKL__HELPER
#undef SKL__LANES_ROWS
#undef SKL__GATE_ROWS
#undef skl__vload_at

#endif /* SKL__LANES */

/* ------------------------------------------------------------------------------------------------- the instances --- */

#if !defined(SKL__LANES) && defined(SKL__IMPLEMENTING)

#if !defined(SINKLESS_FILE)
#define SINKLESS_FILE "sinkless.h"
#endif

#define SKL__LANES scalar
#define SKL__LANES_INLINE static SKL__UNUSED
#define SKL__LANES_UNROLL
#define SKL__LANES_TARGET
#define SKL__LANES_CHAINS 4 /* vectors of sums that fit into registers, beside what they are made of */
#include SINKLESS_FILE
#undef SKL__LANES
#undef SKL__LANES_INLINE
#undef SKL__LANES_UNROLL
#undef SKL__LANES_TARGET
#undef SKL__LANES_CHAINS

#if SKL__X86_KERNELS
#define SKL__LANES avx2
#define SKL__LANES_INLINE SKL__INLINE
#define SKL__LANES_UNROLL SKL__UNROLL
#define SKL__LANES_TARGET SKL__TARGET_AVX2
#define SKL__LANES_CHAINS 4 /* vectors of sums that fit into registers, beside what they are made of */
#include SINKLESS_FILE
#undef SKL__LANES
#undef SKL__LANES_INLINE
#undef SKL__LANES_UNROLL
#undef SKL__LANES_TARGET
#undef SKL__LANES_CHAINS

#define SKL__LANES avx512
#define SKL__LANES_INLINE SKL__INLINE
#define SKL__LANES_UNROLL SKL__UNROLL
#define SKL__LANES_TARGET SKL__TARGET_AVX512
#define SKL__LANES_CHAINS 16
#include SINKLESS_FILE
#undef SKL__LANES
#undef SKL__LANES_INLINE
#undef SKL__LANES_UNROLL
#undef SKL__LANES_TARGET
#undef SKL__LANES_CHAINS
#endif

#if SKL__ARM_KERNELS
#define SKL__LANES neon
#define SKL__LANES_INLINE SKL__INLINE
#define SKL__LANES_UNROLL SKL__UNROLL
#define SKL__LANES_TARGET
#define SKL__LANES_CHAINS 4 /* vectors of sums that fit into registers, beside what they are made of */
#include SINKLESS_FILE
#undef SKL__LANES
#undef SKL__LANES_INLINE
#undef SKL__LANES_UNROLL
#undef SKL__LANES_TARGET
#undef SKL__LANES_CHAINS
#endif

/* --- CPU detection ---------------------------------------------------------------------------------------------------
 * What the CPU and the operating system can run, as bits (1u << skl_isa); whether kernels for it were compiled is
 * another question. Reading the registers and judging them are apart, so that machines can be tested that are not at
 * hand. */

/* "scalar", "avx2", ...; "?" if there is no such level. */
SKL_API const char *skl_isa_name(skl_isa isa)
{
    static const char *const names[SKL_ISA_COUNT] = {
        "default", "scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "amx", "neon", "neon-dotprod", "neon-i8mm"
    };

    return (int)isa > SKL_ISA_DEFAULT && (int)isa < SKL_ISA_COUNT ? names[isa] : "?";
}

/* What CPUID and XGETBV say; all zero where a leaf does not exist. */
typedef struct skl__x86_registers {
    uint32_t leaf1_ecx;
    uint32_t leaf7_ebx, leaf7_ecx, leaf7_edx;
    uint32_t leaf7_1_eax; /* leaf 7, subleaf 1 */
    uint64_t xcr0;        /* register files that the system saves; only valid with OSXSAVE, so 0 without */
} skl__x86_registers;

static SKL__UNUSED uint32_t skl__x86_levels(const skl__x86_registers *r)
{
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;    /* leaf 1 ecx */
    const uint32_t avx2 = 1u << 5, avx512f = 1u << 16, avx512bw = 1u << 30, avx512vl = 1u << 31; /* leaf 7 ebx */
    const uint32_t avx512vnni = 1u << 11;                                                  /* leaf 7 ecx */
    const uint32_t avxvnni = 1u << 4;                                                      /* leaf 7.1 eax */
    const uint32_t base = fma | osxsave | avx | f16c, wide = avx512f | avx512bw | avx512vl;
    const uint32_t amx = 1u << 24 | 1u << 25;                                              /* leaf 7 edx: tile, int8 */
    const uint64_t ymm_state = 0x06, zmm_state = 0xe6, tile_state = 0x60000;
    uint32_t levels = 1u << SKL_ISA_SCALAR;

    if ((r->leaf1_ecx & base) != base || (r->xcr0 & ymm_state) != ymm_state) return levels;
    if ((r->leaf7_ebx & avx2) == 0) return levels;
    levels |= 1u << SKL_ISA_AVX2;
    if ((r->leaf7_1_eax & avxvnni) != 0) levels |= 1u << SKL_ISA_AVXVNNI;
    if ((r->leaf7_ebx & wide) != wide || (r->xcr0 & zmm_state) != zmm_state) return levels;
    levels |= 1u << SKL_ISA_AVX512;
    if ((r->leaf7_ecx & avx512vnni) == 0) return levels;
    levels |= 1u << SKL_ISA_AVX512VNNI;
    if ((r->leaf7_edx & amx) == amx && (r->xcr0 & tile_state) == tile_state) levels |= 1u << SKL_ISA_AMX;
    return levels;
}

/* The two words in which Linux tells an arm64 process what it may use. Levels build on each other. */
static SKL__UNUSED uint32_t skl__arm_levels(uint64_t hwcap, uint64_t hwcap2)
{
    const uint64_t asimddp = (uint64_t)1 << 20; /* HWCAP_ASIMDDP */
    const uint64_t i8mm = (uint64_t)1 << 13;    /* HWCAP2_I8MM */
    uint32_t levels = 1u << SKL_ISA_SCALAR | 1u << SKL_ISA_NEON;

    if ((hwcap & asimddp) == 0) return levels;
    levels |= 1u << SKL_ISA_NEON_DOTPROD;
    if ((hwcap2 & i8mm) != 0) levels |= 1u << SKL_ISA_NEON_I8MM;
    return levels;
}

#if SKL__X86
static void skl__x86_read(skl__x86_registers *r)
{
    uint32_t eax, ebx, ecx, edx, subleaves, low, high;

    memset(r, 0, sizeof *r);
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return;
    r->leaf1_ecx = ecx;
    if ((ecx & 1u << 27) != 0) {
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        r->xcr0 = (uint64_t)high << 32 | low;
    }
    if (!__get_cpuid_count(7, 0, &subleaves, &ebx, &ecx, &edx)) return;
    r->leaf7_ebx = ebx;
    r->leaf7_ecx = ecx;
    r->leaf7_edx = edx;
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) r->leaf7_1_eax = eax;
}
#endif

#if SKL__ARM && defined(__APPLE__)
static int skl__apple_has(const char *name)
{
    int value = 0;
    size_t size = sizeof value;

    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && size == sizeof value && value != 0;
}
#endif

#if SKL__X86_KERNELS && SKL__HAS_AMX
/* Linux saves tile registers for processes that ask for it, which this does (ARCH_REQ_XCOMP_PERM); asking again is allowed. */
static int skl__amx_permitted(void)
{
    long result;

    __asm__ volatile("syscall" : "=a"(result) : "a"(158L), "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
    return result == 0;
}
#endif

/* Levels this CPU and system can run; of those in `wanted`, if the system has to be asked. */
static uint32_t skl__cpu_levels(uint32_t wanted)
{
    (void)wanted;

#if SKL__X86
    skl__x86_registers registers;
    uint32_t levels;

    skl__x86_read(&registers);
    levels = skl__x86_levels(&registers);
#if SKL__X86_KERNELS && SKL__HAS_AMX
    if ((levels & wanted) >> SKL_ISA_AMX & 1 && !skl__amx_permitted()) levels &= ~(1u << SKL_ISA_AMX);
#endif
    return levels;
#elif SKL__ARM && defined(__linux__)
    return skl__arm_levels(getauxval(16), getauxval(26)); /* AT_HWCAP, AT_HWCAP2 */
#elif SKL__ARM && defined(__APPLE__)
    return skl__arm_levels(skl__apple_has("hw.optional.arm.FEAT_DotProd") ? (uint64_t)1 << 20 : 0,
                           skl__apple_has("hw.optional.arm.FEAT_I8MM") ? (uint64_t)1 << 13 : 0);
#elif SKL__ARM
    return skl__arm_levels(0, 0);
#else
    return 1u << SKL_ISA_SCALAR;
#endif
}

/* --- How many threads ------------------------------------------------------------------------------------------------
 * One per physical core: kernels are bound by memory or by the vector units, which the threads of a core share. On
 * Linux all of it is read from files below root ("" or, for a test, a directory): the affinity mask from /proc, because
 * the calls for it are hidden in strict C99; the topology from /sys; the quota from the cgroup files, version 2 and 1.
 * Files that are absent or make no sense count as no restriction. */
#if defined(__linux__)

/* Reads the start of a small text file into text [capacity], NUL-terminated; its length, 0 if it cannot be read. */
static size_t skl__read_text(const char *root, const char *path, char *text, size_t capacity)
{
    char name[1024];
    size_t length = 0;
    ssize_t got = 1;
    int fd;
    const int needed = snprintf(name, sizeof name, "%s%s", root, path);

    text[0] = '\0';
    if (needed < 0 || (size_t)needed >= sizeof name) return 0;
    fd = open(name, O_RDONLY);
    if (fd < 0) return 0;
    while (got > 0 && length < capacity - 1) {
        got = read(fd, text + length, capacity - 1 - length);
        if (got > 0) length += (size_t)got;
    }
    close(fd);
    text[length] = '\0';
    return length;
}

/* Takes a decimal number off the text; 0 if there is none. Large numbers saturate. */
static int skl__take_number(const char **text, uint64_t *number)
{
    const char *at = *text;

    if (*at < '0' || *at > '9') return 0;
    for (*number = 0; *at >= '0' && *at <= '9'; at++) {
        if (*number < UINT64_MAX / 16) *number = *number * 10 + (uint64_t)(*at - '0');
    }
    *text = at;
    return 1;
}

#define SKL__MAX_CPUS 8192 /* what Linux can be configured for */

typedef struct skl__cpu_set {
    uint32_t bits[SKL__MAX_CPUS / 32];
} skl__cpu_set;

/* Parses "0-3,8,10-11"; the number of CPUs in it. */
static size_t skl__parse_cpus(const char *text, skl__cpu_set *set)
{
    size_t count = 0;
    uint64_t first, last, cpu;

    memset(set, 0, sizeof *set);
    while (skl__take_number(&text, &first)) {
        last = first;
        if (*text == '-') {
            text++;
            if (!skl__take_number(&text, &last)) break;
        }
        for (cpu = first; cpu <= last && cpu < SKL__MAX_CPUS; cpu++) {
            if ((set->bits[cpu / 32] >> (cpu % 32) & 1) == 0) count++;
            set->bits[cpu / 32] |= 1u << (cpu % 32);
        }
        if (*text != ',') break;
        text++;
    }
    return count;
}

static int skl__cpu_in(const skl__cpu_set *set, size_t cpu)
{
    return (int)(set->bits[cpu / 32] >> (cpu % 32) & 1);
}

/* The affinity mask of the calling thread; the number of CPUs in it, 0 if unknown. */
static size_t skl__affinity(const char *root, skl__cpu_set *set)
{
    static const char key[] = "\nCpus_allowed_list:";
    char text[16384];
    const char *line;

    if (skl__read_text(root, "/proc/thread-self/status", text, sizeof text) == 0 &&
        skl__read_text(root, "/proc/self/status", text, sizeof text) == 0) return 0;
    line = strstr(text, key);
    if (line == NULL) return 0;
    line += sizeof key - 1;
    while (*line == ' ' || *line == '\t') line++;
    return skl__parse_cpus(line, set);
}

/* Non-zero if no allowed CPU with a lower number is on the same core. Without a topology, each is a core of its own. */
static int skl__first_of_core(const char *root, const skl__cpu_set *allowed, size_t cpu)
{
    char path[96], text[1024];
    skl__cpu_set siblings;
    size_t other;

    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/topology/core_cpus_list", (unsigned)cpu);
    if (skl__read_text(root, path, text, sizeof text) == 0) { /* the name before Linux 5.3 */
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", (unsigned)cpu);
        skl__read_text(root, path, text, sizeof text);
    }
    skl__parse_cpus(text, &siblings);
    if (!skl__cpu_in(&siblings, cpu)) return 1;
    for (other = 0; other < cpu; other++) {
        if (skl__cpu_in(&siblings, other) && skl__cpu_in(allowed, other)) return 0;
    }
    return 1;
}

/* Whole CPUs that one directory of a cgroup grants; SIZE_MAX if it sets no limit. */
static size_t skl__quota_of(const char *root, const char *directory, int v2)
{
    char path[768], text[64];
    const char *at = text;
    uint64_t quota, period;

    snprintf(path, sizeof path, "%s/%s", directory, v2 ? "cpu.max" : "cpu.cfs_quota_us");
    skl__read_text(root, path, text, sizeof text);
    if (!skl__take_number(&at, &quota)) return SIZE_MAX; /* absent, "max" or "-1" */
    if (v2) {
        while (*at == ' ') at++;
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", directory);
        skl__read_text(root, path, text, sizeof text);
        at = text;
    }
    if (!skl__take_number(&at, &period) || period == 0 || quota / period >= SIZE_MAX) return SIZE_MAX;
    return (size_t)(quota / period);
}

/* The smallest quota on the way from a group up to the mount point. */
static size_t skl__quota_above(const char *root, const char *mount, const char *group, size_t group_length, int v2)
{
    char directory[640];
    const size_t mount_length = strlen(mount);
    size_t length = mount_length + group_length, smallest = SIZE_MAX, quota;

    if (length >= sizeof directory) return SIZE_MAX;
    memcpy(directory, mount, mount_length);
    memcpy(directory + mount_length, group, group_length);
    for (;;) {
        directory[length] = '\0';
        quota = skl__quota_of(root, directory, v2);
        if (quota < smallest) smallest = quota;
        if (length <= mount_length) return smallest;
        while (length > mount_length && directory[length - 1] != '/') length--;
        if (length > mount_length) length--;
    }
}

/* Non-zero if "cpu" is one of the comma-separated names between begin and end. */
static int skl__names_cpu(const char *begin, const char *end)
{
    while (begin < end) {
        const char *comma = begin;

        while (comma < end && *comma != ',') comma++;
        if (comma - begin == 3 && memcmp(begin, "cpu", 3) == 0) return 1;
        begin = comma + 1;
    }
    return 0;
}

/* Whole CPUs that the quota of the process's cgroups grants; SIZE_MAX if there is none. Lines are
 * "id:controllers:path", with no controllers for version 2. */
static size_t skl__quota(const char *root)
{
    char text[8192];
    const char *line = text;
    size_t smallest = SIZE_MAX;

    skl__read_text(root, "/proc/self/cgroup", text, sizeof text);
    while (*line != '\0') {
        const char *end = line + strcspn(line, "\n");
        const char *names = (const char *)memchr(line, ':', (size_t)(end - line));
        const char *path = names ? (const char *)memchr(names + 1, ':', (size_t)(end - names - 1)) : NULL;

        if (path != NULL) {
            const int v2 = path == names + 1;

            if (v2 || skl__names_cpu(names + 1, path)) {
                const size_t quota = skl__quota_above(root, v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu", path + 1,
                                                      (size_t)(end - path - 1), v2);
                if (quota < smallest) smallest = quota;
            }
        }
        line = *end == '\n' ? end + 1 : end;
    }
    return smallest;
}

/* Physical cores within affinity mask and quota, at least 1; online is used where the affinity mask cannot be read. */
static size_t skl__linux_threads(const char *root, size_t online)
{
    skl__cpu_set allowed;
    const size_t quota = skl__quota(root);
    size_t cores = 0, cpu;

    if (skl__affinity(root, &allowed) == 0) {
        cores = online;
    } else {
        for (cpu = 0; cpu < SKL__MAX_CPUS; cpu++) {
            if (skl__cpu_in(&allowed, cpu) && skl__first_of_core(root, &allowed, cpu)) cores++;
        }
    }
    if (cores > quota) cores = quota;
    return cores > 0 ? cores : 1;
}
#endif

SKL_API size_t skl_default_threads(void)
{
#if defined(_WIN32)
    SYSTEM_LOGICAL_PROCESSOR_INFORMATION entries[256];
    SYSTEM_INFO system;
    DWORD size = sizeof entries, i;
    DWORD_PTR process_mask = 0, system_mask = 0;
    size_t cores = 0;

    if (GetProcessAffinityMask(GetCurrentProcess(), &process_mask, &system_mask) &&
        GetLogicalProcessorInformation(entries, &size)) {
        for (i = 0; i < size / sizeof entries[0]; i++) {
            if (entries[i].Relationship != RelationProcessorCore) continue;
            if ((entries[i].ProcessorMask & process_mask) != 0) cores++;
        }
    }
    if (cores == 0) {
        GetSystemInfo(&system);
        cores = system.dwNumberOfProcessors;
    }
    return cores > 0 ? cores : 1;
#elif defined(__APPLE__)
    int cores = 0;
    size_t size = sizeof cores;

    /* Work is shared in small pieces, but an efficiency core still ends each round late: performance cores only. */
    if (sysctlbyname("hw.perflevel0.physicalcpu", &cores, &size, NULL, 0) != 0 || cores < 1) {
        size = sizeof cores;
        if (sysctlbyname("hw.physicalcpu", &cores, &size, NULL, 0) != 0 || cores < 1) cores = 1;
    }
    return (size_t)cores;
#else
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const size_t cores = online > 0 ? (size_t)online : 1;

#if defined(__linux__)
    return skl__linux_threads("", cores);
#else
    return cores;
#endif
#endif
}
/* =====================================================================================================================
 * >>kernels                                                                            The kernel table and CPU detection
 *
 * One row per level. Dispatch, tests and bench all walk this table: a kernel that is not in it does not exist, and a row whose
 * instructions the compiler lacks is not in it. The scalar row comes first and is always there.
 * ================================================================================================================== */

typedef struct skl__kernels {
    skl_isa isa;
    skl__matmul *matmul_q4_a8;
    skl__matmul *matmul_q4_a4;
    skl__matmul *matmul_q8_a8;
    const skl__lane_kernels *lanes;
} skl__kernels;

static const skl__kernels skl__kernel_table[] = {
    {SKL_ISA_SCALAR, skl__matmul_scalar, skl__matmul_scalar, skl__matmul_scalar, &skl__lane_kernels_scalar},
#if SKL__X86_KERNELS
    {SKL_ISA_AVX2, skl__matmul_q4_a8_avx2, skl__matmul_q4_a4_avx2, skl__matmul_q8_a8_avx2, &skl__lane_kernels_avx2},
#if SKL__HAS_AVXVNNI
    {SKL_ISA_AVXVNNI, skl__matmul_avxvnni, skl__matmul_avxvnni, skl__matmul_avxvnni, &skl__lane_kernels_avx2},
#endif
    {SKL_ISA_AVX512, skl__matmul_q4_a8_avx512, skl__matmul_q4_a4_avx512, skl__matmul_q8_a8_avx512, &skl__lane_kernels_avx512},
#if SKL__HAS_AVX512VNNI
    {SKL_ISA_AVX512VNNI, skl__matmul_avx512vnni, skl__matmul_avx512vnni, skl__matmul_avx512vnni,
     &skl__lane_kernels_avx512},
#endif
#if SKL__HAS_AMX
    {SKL_ISA_AMX, skl__matmul_amx, skl__matmul_amx, skl__matmul_amx, &skl__lane_kernels_avx512},
#endif
#endif
#if SKL__ARM_KERNELS
    {SKL_ISA_NEON, skl__matmul_q4_a8_neon, skl__matmul_q4_a4_neon, skl__matmul_q8_a8_neon, &skl__lane_kernels_neon},
#if SKL__HAS_NEON_DOTPROD
    {SKL_ISA_NEON_DOTPROD, skl__matmul_q4_a8_neon_dotprod, skl__matmul_q4_a8_neon_dotprod, skl__matmul_q8_a8_neon_dotprod,
     &skl__lane_kernels_neon},
#endif
#if SKL__HAS_NEON_I8MM
    {SKL_ISA_NEON_I8MM, skl__matmul_q4_a8_neon_i8mm, skl__matmul_q4_a8_neon_i8mm, skl__matmul_q8_a8_neon_i8mm,
     &skl__lane_kernels_neon},
#endif
#endif
};

#define SKL__KERNEL_ROWS (sizeof skl__kernel_table / sizeof *skl__kernel_table)

/* By the scalar row: the bits are the same, and to ask the CPU for its level takes longer than a row. */
static SKL__NOINLINE void skl__unpack_row(float *values, const skl__matrix *w, size_t row)
{
    skl__lane_kernels_scalar.unpack_row(values, w, row);
}

SKL_API skl_status skl_unpack_row(const skl_layout *layout, const void *packed, uint64_t row, float *values)
{
    skl__fp_env env;
    skl__matrix w;

    if (!skl_packed_bytes(layout) || !packed || !values || row >= layout->rows) return SKL_BAD_ARGUMENT;
    w = skl__matrix_of(layout, (const unsigned char *)packed);
    env = skl__fp_begin();
    skl__unpack_row(values, &w, (size_t)row);
    skl__fp_end(env);
    return SKL_OK;
}

/* Those of the wanted levels that are compiled and can run. */
static uint32_t skl__levels_of(uint32_t wanted)
{
    uint32_t compiled = 0;
    size_t i;

    for (i = 0; i < SKL__KERNEL_ROWS; i++) compiled |= 1u << skl__kernel_table[i].isa;
    return wanted & compiled & (skl__cpu_levels(wanted) | 1u << SKL_ISA_SCALAR);
}

SKL_API uint32_t skl_isa_available(void)
{
    return skl__levels_of(UINT32_MAX);
}

/* The row of a level, or the best one for SKL_ISA_DEFAULT, of those in the mask (0 = all); NULL if none can run here. */
static const skl__kernels *skl__kernels_for(skl_isa isa, uint32_t mask)
{
    uint32_t wanted = 0, levels;
    size_t i;

    for (i = 0; i < SKL__KERNEL_ROWS; i++) {
        if (isa == SKL_ISA_DEFAULT || isa == skl__kernel_table[i].isa) wanted |= 1u << skl__kernel_table[i].isa;
    }
    levels = skl__levels_of(mask ? wanted & mask : wanted);
    for (i = SKL__KERNEL_ROWS; i-- > 0;) {
        if (levels >> skl__kernel_table[i].isa & 1) return &skl__kernel_table[i];
    }
    return NULL;
}

/* The row to use, or SKL_UNSUPPORTED and whose fault it is: the mask's if there is a row without it. */
static skl_status skl__choose_kernels(const skl__kernels **kernels, skl_isa isa, uint32_t mask, skl_error *error)
{
    *kernels = skl__kernels_for(isa, mask);
    if (*kernels) return SKL_OK;
    if (skl__kernels_for(isa, 0))
        return skl__fail(error, SKL_UNSUPPORTED, SKL_NO_OFFSET, "isa_mask", "it does not allow %s",
                         isa == SKL_ISA_DEFAULT ? "any level that this CPU and build can run" : skl_isa_name(isa));
    return skl__fail(error, SKL_UNSUPPORTED, SKL_NO_OFFSET, "isa", "this CPU or build cannot run level %s", skl_isa_name(isa));
}

/* The kernel for a matrix: float rows take floats, codes take the activations that were asked for. */
static skl__matmul *skl__matmul_for(const skl__kernels *kernels, const skl__matrix *w, skl_activation activation)
{
    switch (w->storage) {
    case SKL__ROWS_F32: return kernels->lanes->matmul_f32_f32;
    case SKL__ROWS_F16: return kernels->lanes->matmul_f16_f32;
    case SKL__ROWS_BF16: return kernels->lanes->matmul_bf16_f32;
    case SKL__TILES_4:
        return activation == SKL_ACT_F32 ? kernels->lanes->matmul_q4_f32
               : activation == SKL_ACT_A4 ? kernels->matmul_q4_a4 : kernels->matmul_q4_a8;
    default: return activation == SKL_ACT_F32 ? kernels->lanes->matmul_q8_f32 : kernels->matmul_q8_a8;
    }
}
/* =====================================================================================================================
 * >>sharing                                                                                Work sharing between threads
 *
 * A session's threads. skl__parallel cuts a step of the forward pass into items that any thread may take. Every thread has a
 * share of them, neighbours in order, and takes those first: from step to step it works on the same data, which its caches then
 * hold. One that is done with its share helps the others, so a slow core takes fewer. Which thread computes an item never
 * changes its result. A decode step makes hundreds of such calls, each worth some microseconds, so the protocol is counters:
 *
 *     left    items nobody has claimed yet. Claiming is an atomic decrement; a positive value before it is a claim.
 *     next    of every share, the item to take next, for those with a claim. There is an item for every claim, so the search
 *             through the shares ends.
 *     done    items that workers have finished. The caller takes items too, and returns when done covers the others.
 *
 * A worker that never woke up holds nobody: it has claimed nothing, and the caller takes everything itself. One that comes late
 * finds no item left, or takes one of the next call, which is as good. The description of the call is read only with a claim in
 * hand, and not changed before all claims are reported, so it needs no lock.
 *
 * Workers and a waiting caller spin for some microseconds, then sleep. Both announce their sleep before they look a last time,
 * and the other side changes the counter before it looks for sleepers, so no wake-up is lost. The caller, who has nobody else to
 * wake it, announces by an atomic addition: emulators of Arm let a load pass the store before it, though both are sequentially
 * consistent.
 * ================================================================================================================== */

typedef void skl__task(void *arg, size_t index);
typedef void skl__parallel_for(void *user, size_t count, void (*task)(void *arg, size_t index), void *arg);

/* One call: what to do, and the items that are left. */
typedef struct skl__job {
    skl__task *task;
    void *arg;
    size_t count, threads; /* items, and the shares they are in */
    skl__count *next;      /* [threads] the next item of each share */
    char apart[64];        /* every thread hammers on left; what they read meanwhile lies in another cache line */
    skl__count left;
} skl__job;

typedef struct skl__pool {
    size_t threads;                  /* that work, the caller included */
    skl__parallel_for *parallel_for; /* the caller's own threads, or NULL */
    void *parallel_user;
    skl__job job;
#if SKL__THREADS
    size_t workers;                  /* threads started here */
    skl__count started;              /* of them, those that run */
    char apart[64];
    skl__count done;
    skl__count caller_sleeps;
    char apart_too[64];
    skl__count sleepers;             /* workers that sleep, or are about to */
    skl__count closing;
    pthread_mutex_t mutex;           /* guards nothing but the two ways to sleep */
    pthread_cond_t work, finished;
    pthread_t *handles;              /* [threads - 1], workers of them running */
#endif
} skl__pool;

#if SKL__THREADS
#define SKL__THREAD_BYTES (sizeof(skl__count) + sizeof(pthread_t)) /* of a pool, for each thread */
#else
#define SKL__THREAD_BYTES sizeof(skl__count)
#endif

/* Bytes of a pool, or 0 if that overflows. */
static size_t skl__pool_size(size_t threads)
{
    if (threads > (SIZE_MAX - sizeof(skl__pool)) / SKL__THREAD_BYTES) return 0;
    return sizeof(skl__pool) + threads * SKL__THREAD_BYTES;
}

#if defined(__GNUC__)
/* First item of a thread's share; of the one after the last, the number of items. */
static skl__count skl__share_begin(const skl__job *job, size_t thread)
{
    const size_t each = job->count / job->threads, more = job->count % job->threads;

    return (skl__count)(thread * each + (thread < more ? thread : more));
}

/* Describes a call; nobody may take items yet. */
static void skl__job_set(skl__job *job, size_t count, size_t threads, skl__task *task, void *arg)
{
    size_t thread;

    job->task = task;
    job->arg = arg;
    job->count = count;
    job->threads = threads;
    for (thread = 0; thread < threads; thread++) job->next[thread] = skl__share_begin(job, thread);
}

/* An item for a thread that holds a claim: the next one of a share, or else of the first share after it that has one, where
 * the thread then stays: what is used up remains so. */
static size_t skl__job_item(skl__job *job, size_t *share)
{
    for (;; ++*share) {
        skl__count end, item;

        if (*share >= job->threads) *share = 0;
        end = skl__share_begin(job, *share + 1);
        if (skl__atomic_load(&job->next[*share]) >= end) continue;
        item = skl__atomic_add(&job->next[*share], 1);
        if (item < end) return (size_t)item;
    }
}

/* Takes and does items until none is left; how many that were. */
static skl__count skl__job_work(skl__job *job, size_t thread)
{
    size_t share = thread;
    skl__count taken = 0;

    while (skl__atomic_load(&job->left) > 0) { /* looking first keeps idle threads from pulling the line to and fro */
        if (skl__atomic_add(&job->left, -1) <= 0) break;
        job->task(job->arg, skl__job_item(job, &share));
        taken++;
    }
    return taken;
}

/* What a caller's parallel_for runs, once per thread. */
static void skl__job_share(void *arg, size_t index)
{
    const skl__fp_env env = skl__fp_begin();

    skl__job_work((skl__job *)arg, index);
    skl__fp_end(env);
}
#endif

#if SKL__THREADS

/* Looks at a counter before a thread sleeps, with a pause between them: 10 to 25 microseconds without leaving the core,
 * then as long again or more while offering it to others now and then, because on a shared core one of those may be the
 * thread that is waited for. Long enough to outlast the serial parts between two calls of a step. */
#define SKL__SPIN_QUIET 512
#if !defined(SKL__SPIN_ALL) /* a test sets it to 1, so that threads sleep at once */
#define SKL__SPIN_ALL 1536
#endif
#define SKL__SPIN_YIELD 32 /* looks per offer */

/* One pause; 0 when it is time to sleep. */
static int skl__spin(unsigned *looks)
{
    if (*looks >= SKL__SPIN_ALL) return 0;
    if (*looks >= SKL__SPIN_QUIET && *looks % SKL__SPIN_YIELD == 0) sched_yield();
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* some ten nanoseconds; yield is none on most cores */
#endif
    ++*looks;
    return 1;
}

/* Waits for items, or the end. */
static void skl__worker_wait(skl__pool *pool)
{
    unsigned looks = 0;

    while (skl__atomic_load(&pool->job.left) <= 0 && !skl__atomic_load(&pool->closing)) {
        if (skl__spin(&looks)) continue;
        pthread_mutex_lock(&pool->mutex);
        skl__atomic_add(&pool->sleepers, 1);
        while (skl__atomic_load(&pool->job.left) <= 0 && !skl__atomic_load(&pool->closing)) {
            pthread_cond_wait(&pool->work, &pool->mutex);
        }
        skl__atomic_add(&pool->sleepers, -1);
        pthread_mutex_unlock(&pool->mutex);
    }
}

static void *skl__worker(void *arg)
{
    skl__pool *pool = (skl__pool *)arg;
    const size_t thread = 1 + (size_t)skl__atomic_add(&pool->started, 1);
    skl__count taken;

    skl__fp_begin(); /* for good: this thread runs nothing but tasks */
    while (!skl__atomic_load(&pool->closing)) {
        taken = skl__job_work(&pool->job, thread);
        if (taken > 0) {
            skl__atomic_add(&pool->done, taken);
            if (skl__atomic_load(&pool->caller_sleeps)) {
                pthread_mutex_lock(&pool->mutex);
                pthread_mutex_unlock(&pool->mutex);
                pthread_cond_signal(&pool->finished);
            }
        }
        skl__worker_wait(pool);
    }
    return NULL;
}

/* Wakes as many sleeping workers as there are items for them. */
static void skl__wake_workers(skl__pool *pool, size_t items)
{
    const skl__count sleepers = skl__atomic_load(&pool->sleepers);
    size_t i;

    if (sleepers <= 0) return;
    pthread_mutex_lock(&pool->mutex); /* whoever announced its sleep before looking at the items does sleep by now */
    pthread_mutex_unlock(&pool->mutex);
    if (items >= (size_t)sleepers) {
        pthread_cond_broadcast(&pool->work);
    } else {
        for (i = 0; i < items; i++) pthread_cond_signal(&pool->work);
    }
}

/* Waits until workers have finished count items. */
static void skl__caller_wait(skl__pool *pool, skl__count count)
{
    unsigned looks = 0;

    while (skl__atomic_load(&pool->done) < count) {
        if (skl__spin(&looks)) continue;
        pthread_mutex_lock(&pool->mutex);
        skl__atomic_add(&pool->caller_sleeps, 1);
        while (skl__atomic_load(&pool->done) < count) pthread_cond_wait(&pool->finished, &pool->mutex);
        skl__atomic_add(&pool->caller_sleeps, -1);
        pthread_mutex_unlock(&pool->mutex);
    }
}

static void skl__pool_share(skl__pool *pool, size_t count, skl__task *task, void *arg)
{
    skl__count taken;

    skl__job_set(&pool->job, count, count < pool->threads ? count : pool->threads, task, arg);
    skl__atomic_store(&pool->done, 0);
    skl__atomic_store(&pool->job.left, (skl__count)count);
    skl__wake_workers(pool, count - 1);
    taken = skl__job_work(&pool->job, 0);
    skl__caller_wait(pool, (skl__count)count - taken);
}

/* More than kernels need without optimisation. Where a system's default is less (musl: 128 KB) it is raised; never lowered,
 * because a program's thread-local data may be taken from it. */
#define SKL__WORKER_STACK ((size_t)1 << 20)

static int skl__worker_start(skl__pool *pool, pthread_t *handle)
{
    pthread_attr_t attributes;
    size_t stack;
    int failed;

    if (pthread_attr_init(&attributes) != 0) return 0;
    if (pthread_attr_getstacksize(&attributes, &stack) == 0 && stack < SKL__WORKER_STACK) {
        pthread_attr_setstacksize(&attributes, SKL__WORKER_STACK); /* if refused, the default */
    }
    failed = pthread_create(handle, &attributes, skl__worker, pool);
    pthread_attr_destroy(&attributes);
    return !failed;
}

/* Starts workers; fewer, or none, if the system refuses. */
static void skl__pool_start(skl__pool *pool)
{
    if (pthread_mutex_init(&pool->mutex, NULL) != 0) return;
    if (pthread_cond_init(&pool->work, NULL) != 0) goto no_work;
    if (pthread_cond_init(&pool->finished, NULL) != 0) goto no_finished;
    while (pool->workers < pool->threads - 1 && skl__worker_start(pool, &pool->handles[pool->workers])) pool->workers++;
    if (pool->workers > 0) return;
    pthread_cond_destroy(&pool->finished);
no_finished:
    pthread_cond_destroy(&pool->work);
no_work:
    pthread_mutex_destroy(&pool->mutex);
}
#endif

/* Makes a pool in memory [skl__pool_size(threads)], aligned for any type. threads includes the caller and is at least
 * 1. With parallel_for no thread is started. pool->threads tells how many will work. */
static skl__pool *skl__pool_open(void *memory, size_t threads, skl__parallel_for *parallel_for, void *parallel_user)
{
    skl__pool *pool = (skl__pool *)memory;

    memset(pool, 0, sizeof *pool);
    pool->threads = threads > 0 ? threads : 1;
    pool->job.next = (skl__count *)(void *)(pool + 1);
#if defined(__GNUC__)
    pool->parallel_for = parallel_for;
    pool->parallel_user = parallel_user;
#else
    (void)parallel_for; /* no atomics: the caller's threads could not share the items */
    (void)parallel_user;
    pool->threads = 1;
#endif
    if (pool->parallel_for != NULL) return pool;
#if SKL__THREADS
    pool->handles = (pthread_t *)(void *)(pool->job.next + pool->threads);
    if (pool->threads > 1) skl__pool_start(pool);
    pool->threads = pool->workers + 1;
#else
    pool->threads = 1;
#endif
    return pool;
}

/* Ends the workers; the memory is the caller's again. */
static void skl__pool_close(skl__pool *pool)
{
#if SKL__THREADS
    size_t i;

    if (pool->workers == 0) return;
    pthread_mutex_lock(&pool->mutex);
    skl__atomic_store(&pool->closing, 1);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (i = 0; i < pool->workers; i++) pthread_join(pool->handles[i], NULL);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->mutex);
    pool->workers = 0;
#else
    (void)pool;
#endif
}

/* Runs task(arg, i) once for every i < count, on all threads of the pool, and returns when all are done. One call at a
 * time; a task must not call it. */
static void skl__parallel(skl__pool *pool, size_t count, skl__task *task, void *arg)
{
    size_t i;

    if (pool->threads < 2 || count < 2) {
        for (i = 0; i < count; i++) task(arg, i);
        return;
    }
#if defined(__GNUC__)
    if (pool->parallel_for != NULL) {
        const size_t threads = count < pool->threads ? count : pool->threads;

        skl__job_set(&pool->job, count, threads, task, arg);
        skl__atomic_store(&pool->job.left, (skl__count)count);
        pool->parallel_for(pool->parallel_user, threads, skl__job_share, &pool->job);
        return;
    }
#endif
#if SKL__THREADS
    skl__pool_share(pool, count, task, arg);
#endif
}
/* =====================================================================================================================
 * >>math                                                                                    Mathematics in double
 *
 * Logarithm, exponential, power, sine and cosine for the few places that need them at full precision: rotary angles and the
 * constants of a model. libm's bits differ between systems; these are the same everywhere. Errors: below 3 ulp of double for
 * log, 1.5 ulp for exp, 1.5 (1 + |y log x|) ulp for pow, 6e-8 relative for softplus; for sine and cosine 4e-16 absolute up to
 * 1.6e6, beyond that 1.2e-16 |x|.
 * ================================================================================================================== */

static double skl__mul64(double a, double b) /* rounded, never fused into a sum */
{
    double product = a * b;
    SKL__ROUNDED(product);
    return product;
}

static double skl__div64(double a, double b) /* as skl__div */
{
    SKL__DIVISOR(b);
    return a / b;
}

/* c[0] + x (c[1] + x (c[2] + ...)).        c  [n] */
static double skl__polynomial(double x, const double *c, int n)
{
    double sum = c[n - 1];
    int i;

    for (i = n - 2; i >= 0; i--) sum = skl__mul64(sum, x) + c[i];
    return sum;
}

/* x = m 2^e with m in [sqrt(1/2), sqrt(2)); log m by atanh series in ((m - 1) / (m + 1))^2. x > 0. */
static double skl__log(double x)
{
    static const double odd[] = {1.0, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19,
                                 1.0 / 21};
    int exponent = 0;
    double m = frexp(x, &exponent), s;

    if (m < 0.70710678118654752) {
        m *= 2.0;
        exponent--;
    }
    s = (m - 1.0) / (m + 1.0);
    s = skl__mul64(2.0 * s, skl__polynomial(skl__mul64(s, s), odd, 11));
    return skl__mul64((double)exponent,
                      0.693147180369123816490) + (skl__mul64((double)exponent, 1.90821492927058770002e-10) + s);
}

/* x = n ln 2 + r; Taylor series of exp(r), |r| <= 0.35. 0 below -708, exp(709) above 709. */
static double skl__exp64(double x)
{
    static const double c[] = {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320,
                               1.0 / 362880,
                               1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};
    double n, r;

    if (x != x) return x;
    if (x > 709.0) x = 709.0;
    if (x < -708.0) return 0.0;
    n = floor(skl__mul64(x, 1.44269504088896340736) + 0.5);
    r = (x - skl__mul64(n, 0.693147180369123816490)) - skl__mul64(n, 1.90821492927058770002e-10);
    return ldexp(skl__polynomial(r, c, 14), (int)n);
}

static double skl__pow(double base, double exponent) /* base > 0 */
{
    return skl__exp64(skl__mul64(exponent, skl__log(base)));
}

/* log(1 + exp(x)) */
static double skl__softplus(double x)
{
    return x < -20.0 ? skl__exp64(x) : x > 40.0 ? x : skl__log(1.0 + skl__exp64(x));
}

/* Quarter turns are taken off with pi / 2 in three parts, of which the first two leave room for n < 2^20; series on [-pi/4, pi/4].
 * |x| < 1e18. */
static void skl__sincos(double x, double *sine, double *cosine)
{
    static const double s[] = {1.0, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800.0,
                               -1.0 / 1307674368000.0};
    static const double c[] = {1.0, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600,
                               -1.0 / 87178291200.0,
                               1.0 / 20922789888000.0};
    const double n = floor(skl__mul64(x, 0.636619772367581343076) + 0.5);
    const double r = ((x - skl__mul64(n, 1.57079632673412561417)) - skl__mul64(n, 6.07710050630396597660e-11)) -
                     skl__mul64(n, 2.02226624879595063154e-21);
    const double square = skl__mul64(r, r);
    const double sin_r = skl__mul64(r, skl__polynomial(square, s, 8)), cos_r = skl__polynomial(square, c, 9);
    const int quarter = (int)((int64_t)n & 3);

    *sine = quarter == 0 ? sin_r : quarter == 1 ? cos_r : quarter == 2 ? -sin_r : -cos_r;
    *cosine = quarter == 0 ? cos_r : quarter == 1 ? -sin_r : quarter == 2 ? -cos_r : sin_r;
}

/* =====================================================================================================================
 * >>model                                                                                 Model binding and validation
 *
 * From a container to a model: the configuration is read and checked, every tensor the architecture calls for is looked up,
 * checked against it and bound, and a tensor that nothing asked for is an error. Binding runs twice over the same code: first
 * on an arena without memory, which only measures, then for real; so memory can be told before it is taken.
 * ================================================================================================================== */

/* Memory handed out in order, all at once given back. Without a base it only counts. */
typedef struct skl__arena {
    unsigned char *base;       /* [capacity], 64-byte aligned, or NULL */
    uint64_t used;
    uint64_t capacity;
    int overflow;              /* a size did not fit 64 bits, or the capacity */
} skl__arena;

/* count elements at a multiple of 64 bytes; NULL while measuring. */
static void *skl__arena_take(skl__arena *arena, uint64_t count, uint64_t element)
{
    uint64_t size, end;

    if (!skl__multiply(count, element, &size) || !skl__round_up(size, 64, &size) || !skl__add(arena->used, size, &end) ||
        !skl__fits_size(end) || (arena->base && end > arena->capacity)) {
        arena->overflow = 1;
        return NULL;
    }
    size = arena->used;
    arena->used = end;
    return arena->base ? arena->base + (size_t)size : NULL;
}

typedef enum skl__softmax_kind { SKL__SOFTMAX, SKL__SOFTMAX1, SKL__SINK } skl__softmax_kind;
typedef enum skl__residual { SKL__ADD, SKL__ATTNRES, SKL__ROUTER } skl__residual;
typedef enum skl__coupling { SKL__UNCOUPLED, SKL__BRANCHES, SKL__ALL } skl__coupling;
typedef enum skl__rope_scaling { SKL__ROPE_NONE, SKL__ROPE_LINEAR, SKL__ROPE_YARN } skl__rope_scaling;
typedef enum skl__presence { SKL__NEVER, SKL__OPTIONAL, SKL__REQUIRED } skl__presence;

/* What differs between architectures; everything else is one configuration, one binding and one forward pass. */
typedef struct skl__architecture {
    const char *name;                 /* general.architecture, and the prefix of its keys */
    int mechanisms;                   /* reads the mechanism keys and tensors of the `sinkless` format */
    int rope_adjacent;                /* rotary pairs (2j, 2j + 1), otherwise (j, j + n / 2) */
    skl__presence qk_norm;
    skl__rope_scaling default_scaling;
} skl__architecture;

static const skl__architecture skl__architectures[] = {
    {"sinkless", 1, 0, SKL__OPTIONAL, SKL__ROPE_NONE},
    {"llama", 0, 1, SKL__NEVER, SKL__ROPE_LINEAR}, /* linear with factor 1 unless said otherwise */
    {"qwen3", 0, 0, SKL__REQUIRED, SKL__ROPE_LINEAR}
};

typedef struct skl__config {
    const skl__architecture *architecture;
    size_t layers, width, ff, heads, kv_heads, head_dim, vocab, context;
    float eps;
    skl__softmax_kind softmax;
    int clipped;
    float gamma, zeta;
    size_t window;                    /* 0 = everything; which layers: skl__layer.window */
    size_t n_rot;
    double rope_base, rope_factor, rope_original, rope_attention, rope_beta_fast, rope_beta_slow;
    skl__rope_scaling rope_scaling;
    int dyt;
    skl__unit unit;
    skl__residual residual;
    size_t block_size;                /* AttnRes: layers per block, 0 = full */
    int depth_softmax1;
    skl__coupling coupling;
    double beta_max;
} skl__config;

/* A norm site: RMSNorm (with PreAffine) or DyT, and its gate. */
typedef struct skl__norm {
    const float *weight;              /* [width] */
    const float *pre;                 /* [width] or NULL */
    const float *bias;                /* [width], DyT */
    float alpha;                      /* DyT */
    skl__matrix gate_a;               /* [rank][width]; rank = gate_a.rows, 0 = no gate */
    skl__matrix gate_b;               /* [width][rank], by columns */
} skl__norm;

/* A depth read: score vector (AttnRes) or projections (router), and the strength of the coupling. */
typedef struct skl__read {
    const float *score;               /* [width] */
    skl__matrix q, k;                 /* [A][width] */
    float recency;
    float beta;
} skl__read;

typedef struct skl__layer {
    skl__norm attn_norm, ffn_norm;
    skl__read attn_read, ffn_read;
    skl__matrix q, k, v, attn_gate, output;
    const float *q_bias, *k_bias, *v_bias, *output_bias; /* NULL if absent */
    const float *q_norm, *k_norm;     /* [head_dim] or NULL */
    const float *sinks;               /* [heads] or NULL */
    size_t window;                    /* 0 = sees everything */
    skl__matrix ffn_gate, ffn_up, ffn_down;
} skl__layer;

/* A matrix of codes in a storage format, to be packed once the memory is there. */
typedef struct skl__repack {
    skl_layout layout;
    int type;
    const unsigned char *rows;
    unsigned char *out;
    size_t size;                      /* bytes of rows */
    char name[68];
} skl__repack;

struct skl_model {
    skl_allocator allocator;
    skl_cancel cancel;
    skl_gguf *gguf;
    skl__config config;
    skl__arena arena;
    void *arena_memory;               /* what the arena lies in */
    skl__layer *layers;               /* [config.layers] */
    skl__norm output_norm;
    skl__read output_read;
    skl__matrix embedding, head;
    const double *frequencies;        /* [n_rot / 2] angle per position */
    float rope_magnitude;             /* cos and sin are multiplied by it */
    size_t gate_rank, read_rank;      /* largest of any site */
    int has_codes;                    /* some matrix takes quantised activations */
    uint64_t bytes_per_token;
};

/* --- the configuration --- */

typedef struct skl__binder {
    skl_model *model;
    skl_error *error;
    unsigned char *used;              /* [tensors] bound by something */
    int64_t *packed;                  /* [tensors] index into the packing lists, -1 = none */
    skl__repack *repacks;             /* [tensors] */
    size_t repack_count;
    skl_value packed_formats, packed_columns, packed_rows, packed_groups;
} skl__binder;

static skl_status skl__model_fail(const skl__binder *b, const char *where, const char *what)
{
    return skl__fail(b->error, SKL_BAD_MODEL, SKL_NO_OFFSET, where, "%s", what);
}

typedef struct skl__key_name { char text[128]; } skl__key_name;

/* "ARCHITECTURE.name" */
static skl__key_name skl__key_of(const skl__binder *b, const char *name)
{
    skl__key_name key;

    snprintf(key.text, sizeof key.text, "%s.%s", b->model->config.architecture->name, name);
    return key;
}

/* A size; 0 in *value stays as the default if the key is absent and not required. */
static skl_status skl__config_size(const skl__binder *b, const char *name, int required, size_t *value)
{
    const skl__key_name key = skl__key_of(b, name);
    skl_value found;
    int64_t number;

    if (skl_gguf_find(b->model->gguf, key.text, &found))
        return required ? skl__model_fail(b, key.text, "this key is missing") : SKL_OK;
    if (found.type == SKL_VALUE_ARRAY || skl_value_int(&found, 0, &number))
        return skl__model_fail(b, key.text, "this key must hold one integer");
    if (number < 0 || number > INT32_MAX) return skl__model_fail(b, key.text, "this value is out of range");
    *value = (size_t)number;
    return SKL_OK;
}

static skl_status skl__config_number(const skl__binder *b, const char *name, int required, double *value)
{
    const skl__key_name key = skl__key_of(b, name);
    skl_value found;
    double number;

    if (skl_gguf_find(b->model->gguf, key.text, &found))
        return required ? skl__model_fail(b, key.text, "this key is missing") : SKL_OK;
    if (found.type == SKL_VALUE_ARRAY || skl_value_float(&found, 0, &number))
        return skl__model_fail(b, key.text, "this key must hold one number");
    if (!skl__is_finite((float)number)) return skl__model_fail(b, key.text, "this value is not finite");
    *value = number;
    return SKL_OK;
}

/* One of the words of a list separated by blanks, as its place in the list; an unknown word is an error that names it. */
static skl_status skl__config_choice(const skl__binder *b, const char *name, const char *words, int *choice)
{
    const skl__key_name key = skl__key_of(b, name);
    const char *text, *word = words;
    size_t length;
    skl_value found;
    char label[40];
    int place;

    if (skl_gguf_find(b->model->gguf, key.text, &found)) return SKL_OK;
    if (skl_value_string(&found, &text, &length)) return skl__model_fail(b, key.text, "this key must hold a string");
    for (place = 0; *word; place++) {
        const size_t size = strcspn(word, " ");
        if (size == length && memcmp(word, text, length) == 0) {
            *choice = place;
            return SKL_OK;
        }
        word += size + (word[size] == ' ');
    }
    skl__label(label, text, length < sizeof label - 1 ? length : sizeof label - 1);
    return skl__fail(b->error, SKL_UNSUPPORTED, SKL_NO_OFFSET, key.text, "\"%s\" is not known here; known are: %s", label,
                     words);
}

static skl_status skl__read_architecture(skl__binder *b)
{
    const char *text;
    size_t length, i;
    skl_value found;
    char label[40];

    if (skl_gguf_find(b->model->gguf, "general.architecture", &found) || skl_value_string(&found, &text, &length))
        return skl__model_fail(b, "general.architecture", "the file does not name its architecture");
    for (i = 0; i < sizeof skl__architectures / sizeof *skl__architectures; i++) {
        const char *name = skl__architectures[i].name;
        if (strlen(name) == length && memcmp(name, text, length) == 0) {
            b->model->config.architecture = &skl__architectures[i];
            return SKL_OK;
        }
    }
    skl__label(label, text, length < sizeof label - 1 ? length : sizeof label - 1);
    return skl__fail(b->error, SKL_UNSUPPORTED, SKL_NO_OFFSET, "general.architecture", "architecture \"%s\" is not supported",
                     label);
}

/* attention.clip: two numbers. */
static skl_status skl__read_clip(skl__binder *b)
{
    const skl__key_name key = skl__key_of(b, "attention.clip");
    double gamma, zeta;
    skl_value found;

    if (skl_gguf_find(b->model->gguf, key.text, &found)) return SKL_OK;
    if (found.type != SKL_VALUE_ARRAY || found.count != 2 || skl_value_float(&found, 0, &gamma) ||
        skl_value_float(&found, 1, &zeta) ||
        !skl__is_finite((float)gamma) || !skl__is_finite((float)zeta))
        return skl__model_fail(b, key.text, "this key must hold two finite numbers");
    b->model->config.clipped = 1;
    b->model->config.gamma = (float)gamma;
    b->model->config.zeta = (float)zeta;
    return SKL_OK;
}

#define SKL__TRY(call)                       \
    do {                                     \
        const skl_status status_ = (call);   \
        if (status_ != SKL_OK) return status_; \
    } while (0)

static skl_status skl__read_mechanisms(skl__binder *b)
{
    skl__config *c = &b->model->config;
    int softmax = 0, norm = 0, unit = 0, residual = 0, depth = 0, coupling = 0;

    if (!c->architecture->mechanisms) return SKL_OK;
    SKL__TRY(skl__config_choice(b, "attention.softmax", "softmax softmax1 sink", &softmax));
    SKL__TRY(skl__read_clip(b));
    SKL__TRY(skl__config_size(b, "attention.sliding_window", 0, &c->window));
    SKL__TRY(skl__config_choice(b, "norm", "rms dyt", &norm));
    SKL__TRY(skl__config_choice(b, "ffn.activation", "silu sigmoid gelu", &unit));
    SKL__TRY(skl__config_choice(b, "residual", "add attnres router", &residual));
    SKL__TRY(skl__config_size(b, "attn_res.block_size", 0, &c->block_size));
    SKL__TRY(skl__config_choice(b, "depth.softmax", "softmax softmax1", &depth));
    SKL__TRY(skl__config_choice(b, "depth.coupling", "none branches all", &coupling));
    SKL__TRY(skl__config_number(b, "depth.beta_max", 0, &c->beta_max));
    c->softmax = (skl__softmax_kind)softmax;
    c->dyt = norm;
    c->unit = (skl__unit)unit;
    c->residual = (skl__residual)residual;
    c->depth_softmax1 = depth;
    c->coupling = (skl__coupling)coupling;
    return SKL_OK;
}

static skl_status skl__read_rope(skl__binder *b)
{
    skl__config *c = &b->model->config;
    int scaling = (int)c->architecture->default_scaling;

    c->n_rot = c->head_dim;
    c->rope_base = 10000.0;
    c->rope_factor = c->rope_attention = c->rope_beta_slow = 1.0;
    c->rope_beta_fast = 32.0;
    c->rope_original = (double)c->context;
    SKL__TRY(skl__config_size(b, "rope.dimension_count", 0, &c->n_rot));
    SKL__TRY(skl__config_number(b, "rope.freq_base", 0, &c->rope_base));
    SKL__TRY(skl__config_choice(b, "rope.scaling.type", "none linear yarn", &scaling));
    SKL__TRY(skl__config_number(b, "rope.scaling.factor", 0, &c->rope_factor));
    SKL__TRY(skl__config_number(b, "rope.scaling.original_context_length", 0, &c->rope_original));
    SKL__TRY(skl__config_number(b, "rope.scaling.attn_factor", 0, &c->rope_attention));
    SKL__TRY(skl__config_number(b, "rope.scaling.yarn_beta_fast", 0, &c->rope_beta_fast));
    SKL__TRY(skl__config_number(b, "rope.scaling.yarn_beta_slow", 0, &c->rope_beta_slow));
    c->rope_scaling = (skl__rope_scaling)scaling;
    if (c->n_rot % 2 || c->n_rot > c->head_dim)
        return skl__model_fail(b, skl__key_of(b, "rope.dimension_count").text,
                               "it must be even and at most the head dimension");
    if (!(c->rope_base > 1e-6) || !(c->rope_factor > 1e-6) || !(c->rope_original > 0.0) || !(c->rope_beta_fast > 0.0) ||
        !(c->rope_beta_slow > 0.0))
        return skl__model_fail(b, skl__key_of(b, "rope").text, "rotary base, factor, length and betas must be positive");
    return SKL_OK;
}

static skl_status skl__read_config(skl__binder *b)
{
    skl__config *c = &b->model->config;
    size_t value_length = 0;
    double eps = 0.0;

    SKL__TRY(skl__read_architecture(b));
    c->beta_max = (double)FLT_MAX;
    SKL__TRY(skl__config_size(b, "block_count", 1, &c->layers));
    SKL__TRY(skl__config_size(b, "embedding_length", 1, &c->width));
    SKL__TRY(skl__config_size(b, "feed_forward_length", 1, &c->ff));
    SKL__TRY(skl__config_size(b, "context_length", 1, &c->context));
    SKL__TRY(skl__config_size(b, "attention.head_count", 1, &c->heads));
    c->kv_heads = c->heads;
    SKL__TRY(skl__config_size(b, "attention.head_count_kv", 0, &c->kv_heads));
    if (!c->layers || !c->width || !c->ff || !c->context || !c->heads || !c->kv_heads)
        return skl__model_fail(b, c->architecture->name, "layers, widths, heads and context length must not be zero");
    if (c->layers > skl_gguf_tensor_count(b->model->gguf)) /* every layer has several */
        return skl__model_fail(b, skl__key_of(b, "block_count").text, "there are more layers than tensors");
    if (c->heads % c->kv_heads)
        return skl__model_fail(b, skl__key_of(b, "attention.head_count_kv").text, "it must divide the number of heads");
    c->head_dim = c->width / c->heads;
    SKL__TRY(skl__config_size(b, "attention.key_length", 0, &c->head_dim));
    value_length = c->head_dim;
    SKL__TRY(skl__config_size(b, "attention.value_length", 0, &value_length));
    if (!c->head_dim || c->head_dim != value_length)
        return skl__model_fail(b, skl__key_of(b, "attention.value_length").text,
                               "key and value length must be equal and not zero");
    if (c->head_dim > SKL__HEAD_DIM_MAX)
        return skl__fail(b->error, SKL_UNSUPPORTED, SKL_NO_OFFSET, skl__key_of(b, "attention.key_length").text,
                         "heads of more than %d dimensions are not supported", SKL__HEAD_DIM_MAX);
    SKL__TRY(skl__config_number(b, "attention.layer_norm_rms_epsilon", 1, &eps));
    if (!(eps >= 0.0))
        return skl__model_fail(b, skl__key_of(b, "attention.layer_norm_rms_epsilon").text, "it must not be negative");
    c->eps = (float)eps;
    SKL__TRY(skl__read_mechanisms(b));
    return skl__read_rope(b);
}

/* --- tensors --- */

typedef struct skl__tensor_name { char text[96]; } skl__tensor_name;

static skl__tensor_name skl__name_of(const char *site, const char *suffix)
{
    skl__tensor_name name;

    snprintf(name.text, sizeof name.text, "%s%s", site, suffix);
    return name;
}

/* Looks a tensor up and marks it as read. SKL_NOT_FOUND, without a message, if it is absent. */
static skl_status skl__bind_find(skl__binder *b, const char *name, skl_tensor *tensor, size_t *index)
{
    const skl_gguf *gguf = b->model->gguf;
    const skl__record *record = (const skl__record *)skl__find_name(gguf->records_by_name, gguf->tensor_count, name);

    if (!record) return SKL_NOT_FOUND;
    *index = (size_t)(record - gguf->records);
    *tensor = record->tensor;
    b->used[*index] = 1;
    return SKL_OK;
}

static skl_status skl__bind_shape(const skl__binder *b, const char *name, const uint64_t have[2], uint64_t columns,
                                  uint64_t rows)
{
    if (have[0] == columns && have[1] == rows) return SKL_OK;
    return skl__fail(b->error, SKL_BAD_MODEL, SKL_NO_OFFSET, name, "its shape is {%llu, %llu}, expected {%llu, %llu}",
                     (unsigned long long)have[0], (unsigned long long)have[1], (unsigned long long)columns,
                     (unsigned long long)rows);
}

static skl_status skl__bind_absent(const skl__binder *b, const char *name, skl__presence presence)
{
    return presence == SKL__REQUIRED ? skl__model_fail(b, name, "this tensor is missing") : SKL_OK;
}

/* A vector of n floats, copied (vectors are small, and files may hold them unaligned or in half precision). NULL if absent. */
static skl_status skl__bind_vector(skl__binder *b, const char *site, const char *suffix, size_t n, skl__presence presence,
                                   const float **vector)
{
    const skl__tensor_name name = skl__name_of(site, suffix);
    skl_tensor tensor;
    size_t index;
    float *values;

    *vector = NULL;
    if (presence == SKL__NEVER) return SKL_OK;
    if (skl__bind_find(b, name.text, &tensor, &index)) return skl__bind_absent(b, name.text, presence);
    if (tensor.dims > 2) return skl__model_fail(b, name.text, "it must have one or two dimensions");
    SKL__TRY(skl__bind_shape(b, name.text, tensor.shape, n, 1));
    if (tensor.type == SKL_TYPE_I8 || skl_type_bytes(tensor.type) == 0)
        return skl__fail(b->error, SKL_UNSUPPORTED, SKL_NO_OFFSET, name.text, "type %s cannot be read",
                         skl_type_name(tensor.type));
    values = (float *)skl__arena_take(&b->model->arena, n, sizeof *values);
    if (values) skl_dequantize(tensor.type, tensor.data, n, values);
    *vector = values;
    return SKL_OK;
}

static skl_status skl__bind_scalar(skl__binder *b, const char *site, const char *suffix, float *value)
{
    const float *vector;

    SKL__TRY(skl__bind_vector(b, site, suffix, 1, SKL__REQUIRED, &vector));
    *value = vector ? *vector : 0.0f;
    return SKL_OK;
}

/* A matrix that the file holds packed: checked against the packing lists, used where it lies. */
static skl_status skl__bind_packed(skl__binder *b, const skl_tensor *tensor, size_t index, skl__matrix *w, uint64_t shape[2])
{
    int64_t format, columns, rows, group;
    skl_layout layout;

    if (b->packed[index] < 0) return skl__model_fail(b, tensor->name, "it is of type I8, but not listed as packed");
    if (skl_value_int(&b->packed_formats, (uint64_t)b->packed[index], &format) ||
        skl_value_int(&b->packed_columns, (uint64_t)b->packed[index], &columns) ||
        skl_value_int(&b->packed_rows, (uint64_t)b->packed[index], &rows) ||
        skl_value_int(&b->packed_groups, (uint64_t)b->packed[index], &group) || columns < 0 || rows < 0 || group < 0)
        return skl__model_fail(b, tensor->name, "its entry in the packing lists is missing or negative");
    layout.bits = (int)(format & 255);
    layout.minimum = (int)(format >> 8 & 1);
    layout.wide = (int)(format >> 9 & 1);
    layout.rows = (uint64_t)rows;
    layout.columns = (uint64_t)columns;
    layout.group = (uint64_t)group;
    if (format >> 10 || skl_packed_bytes(&layout) == 0 || skl_packed_bytes(&layout) != tensor->size)
        return skl__model_fail(b, tensor->name, "its packed layout is not possible, or does not fit its size");
    *w = skl__matrix_of(&layout, tensor->data);
    shape[0] = layout.columns;
    shape[1] = layout.rows;
    return SKL_OK;
}

/* A matrix of an integer format that is not packed: room for it, and a note to pack it. */
static skl_status skl__bind_repack(skl__binder *b, const skl_tensor *tensor, skl__matrix *w)
{
    skl__repack *repack = &b->repacks[b->repack_count];

    if (skl_layout_of(&repack->layout, tensor->type, tensor->shape[1], tensor->shape[0]))
        return skl__fail(b->error, SKL_UNSUPPORTED, SKL_NO_OFFSET, tensor->name, "a matrix of type %s cannot be used",
                         skl_type_name(tensor->type));
    repack->type = tensor->type;
    repack->rows = tensor->data;
    repack->size = (size_t)tensor->size;
    memcpy(repack->name, tensor->name, sizeof repack->name);
    repack->out = (unsigned char *)skl__arena_take(&b->model->arena, skl_packed_bytes(&repack->layout), 1);
    *w = skl__matrix_of(&repack->layout, repack->out);
    if (repack->out) b->repack_count++;
    return SKL_OK;
}

/* A matrix {columns, rows}; rows = 0 accepts any number. Absent and optional: rows of the result are 0. */
static skl_status skl__bind_matrix(skl__binder *b, const char *site, const char *suffix, uint64_t columns, uint64_t rows,
                                   skl__presence presence, skl__matrix *w)
{
    const skl__tensor_name name = skl__name_of(site, suffix);
    uint64_t shape[2];
    skl_tensor tensor;
    size_t index;

    memset(w, 0, sizeof *w);
    if (presence == SKL__NEVER) return SKL_OK;
    if (skl__bind_find(b, name.text, &tensor, &index)) return skl__bind_absent(b, name.text, presence);
    if (tensor.dims > 2) return skl__model_fail(b, name.text, "it must have one or two dimensions");
    shape[0] = tensor.shape[0];
    shape[1] = tensor.shape[1];
    switch (tensor.type) {
    case SKL_TYPE_F32:
    case SKL_TYPE_F16:
    case SKL_TYPE_BF16:
        w->storage = tensor.type == SKL_TYPE_F32 ? SKL__ROWS_F32 : tensor.type == SKL_TYPE_F16 ? SKL__ROWS_F16 : SKL__ROWS_BF16;
        w->stride = (size_t)(shape[0] * skl_type_bytes(tensor.type));
        w->data = tensor.data;
        break;
    case SKL_TYPE_I8: SKL__TRY(skl__bind_packed(b, &tensor, index, w, shape)); break;
    default: SKL__TRY(skl__bind_repack(b, &tensor, w)); break;
    }
    SKL__TRY(skl__bind_shape(b, name.text, shape, columns, rows ? rows : shape[1]));
    w->columns = (size_t)shape[0];
    w->rows = (size_t)shape[1];
    if (w->storage >= SKL__TILES_4) b->model->has_codes = 1;
    return SKL_OK;
}

/* A small matrix that takes float activations whatever its type: gates of norms and projections of depth reads. */
static skl_status skl__bind_float_matrix(skl__binder *b, const char *site, const char *suffix, uint64_t columns, uint64_t rows,
                                         skl__presence presence, skl__matrix *w)
{
    const skl__tensor_name name = skl__name_of(site, suffix);
    skl_tensor tensor;
    size_t index;
    float *values;

    memset(w, 0, sizeof *w);
    if (presence == SKL__NEVER) return SKL_OK;
    if (skl__bind_find(b, name.text, &tensor, &index)) return skl__bind_absent(b, name.text, presence);
    if (tensor.dims > 2) return skl__model_fail(b, name.text, "it must have one or two dimensions");
    if (tensor.type == SKL_TYPE_I8) return skl__model_fail(b, name.text, "it must not be packed");
    SKL__TRY(skl__bind_shape(b, name.text, tensor.shape, columns, rows ? rows : tensor.shape[1]));
    if (!skl__run_format_of(tensor.type)) return skl__bind_matrix(b, site, suffix, columns, rows, presence, w);
    values = (float *)skl__arena_take(&b->model->arena, tensor.shape[0] * tensor.shape[1], sizeof *values);
    if (values) skl_dequantize(tensor.type, tensor.data, (size_t)(tensor.shape[0] * tensor.shape[1]), values);
    w->storage = SKL__ROWS_F32;
    w->columns = (size_t)tensor.shape[0];
    w->rows = (size_t)tensor.shape[1];
    w->stride = w->columns * sizeof *values;
    w->data = (const unsigned char *)values;
    return SKL_OK;
}

/* Copies a float matrix of few columns into the order that skl__gate_product reads: sixteen rows at a time lie by columns,
 * [rows / 16][columns][16], the last ones padded. */
static void skl__matrix_by_columns(skl__arena *arena, skl__matrix *w)
{
    const uint64_t rows = ((uint64_t)w->rows + 15) / 16 * 16;
    unsigned char *out = (unsigned char *)skl__arena_take(arena, rows, w->stride);
    size_t row, k;

    if (!out) return;
    memset(out, 0, (size_t)rows * w->stride);
    for (row = 0; row < w->rows; row++) {
        const unsigned char *from = w->data + row * w->stride;
        unsigned char *to = out + row / 16 * 16 * w->stride;
        for (k = 0; k < w->columns; k++) { /* sizes are constants, because opening a model waits for this */
            if (w->storage == SKL__ROWS_F32) memcpy(to + (k * 16 + row % 16) * 4, from + k * 4, 4);
            else memcpy(to + (k * 16 + row % 16) * 2, from + k * 2, 2);
        }
    }
    w->data = out;
}

static size_t skl__larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static skl_status skl__bind_norm(skl__binder *b, const char *site, skl__norm *norm)
{
    const skl__config *c = &b->model->config;
    const skl__presence optional = c->architecture->mechanisms ? SKL__OPTIONAL : SKL__NEVER;

    memset(&norm->gate_b, 0, sizeof norm->gate_b);
    SKL__TRY(skl__bind_vector(b, site, ".weight", c->width, SKL__REQUIRED, &norm->weight));
    SKL__TRY(skl__bind_vector(b, site, "_pre.weight", c->width, c->dyt ? SKL__NEVER : optional, &norm->pre));
    SKL__TRY(skl__bind_vector(b, site, ".bias", c->width, c->dyt ? SKL__REQUIRED : SKL__NEVER, &norm->bias));
    if (c->dyt) SKL__TRY(skl__bind_scalar(b, site, ".alpha", &norm->alpha));
    SKL__TRY(skl__bind_float_matrix(b, site, "_gate_a.weight", c->width, 0, optional, &norm->gate_a));
    b->model->gate_rank = skl__larger(b->model->gate_rank, norm->gate_a.rows);
    if (!norm->gate_a.rows) return SKL_OK;
    SKL__TRY(skl__bind_float_matrix(b, site, "_gate_b.weight", norm->gate_a.rows, c->width, SKL__REQUIRED, &norm->gate_b));
    skl__matrix_by_columns(&b->model->arena, &norm->gate_b);
    return SKL_OK;
}

static skl_status skl__bind_read(skl__binder *b, const char *site, skl__read *read)
{
    const skl__config *c = &b->model->config;
    const skl__presence attnres = c->residual == SKL__ATTNRES ? SKL__REQUIRED : SKL__NEVER;
    const skl__presence router = c->residual == SKL__ROUTER ? SKL__REQUIRED : SKL__NEVER;
    float theta;

    SKL__TRY(skl__bind_vector(b, site, "_score.weight", c->width, attnres, &read->score));
    SKL__TRY(skl__bind_float_matrix(b, site, "_q.weight", c->width, 0, router, &read->q));
    SKL__TRY(skl__bind_float_matrix(b, site, "_k.weight", c->width, read->q.rows, router, &read->k));
    if (c->residual == SKL__ROUTER) SKL__TRY(skl__bind_scalar(b, site, "_recency", &read->recency));
    b->model->read_rank = skl__larger(b->model->read_rank, read->q.rows);
    if (c->coupling == SKL__UNCOUPLED || c->residual == SKL__ADD) return SKL_OK;
    SKL__TRY(skl__bind_scalar(b, site, "_theta", &theta));
    read->beta = (float)skl__softplus((double)theta);
    if ((double)read->beta > c->beta_max) read->beta = (float)c->beta_max;
    return SKL_OK;
}

/* {d, H D} gates every value, {d, H} every head. */
static skl_status skl__bind_attn_gate(skl__binder *b, const char *site, skl__matrix *gate)
{
    const skl__config *c = &b->model->config;

    SKL__TRY(skl__bind_matrix(b, site, "attn_gate.weight", c->width, 0, c->architecture->mechanisms ? SKL__OPTIONAL : SKL__NEVER,
                              gate));
    if (!gate->rows || gate->rows == c->heads || gate->rows == c->heads * c->head_dim) return SKL_OK;
    return skl__model_fail(b, skl__name_of(site, "attn_gate.weight").text,
                           "it must have a row per head, or a row per head and dimension");
}

static skl_status skl__bind_attention(skl__binder *b, const char *site, skl__layer *layer)
{
    const skl__config *c = &b->model->config;
    const size_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;

    SKL__TRY(skl__bind_matrix(b, site, "attn_q.weight", c->width, q, SKL__REQUIRED, &layer->q));
    SKL__TRY(skl__bind_matrix(b, site, "attn_k.weight", c->width, kv, SKL__REQUIRED, &layer->k));
    SKL__TRY(skl__bind_matrix(b, site, "attn_v.weight", c->width, kv, SKL__REQUIRED, &layer->v));
    SKL__TRY(skl__bind_matrix(b, site, "attn_output.weight", q, c->width, SKL__REQUIRED, &layer->output));
    SKL__TRY(skl__bind_vector(b, site, "attn_q.bias", q, SKL__OPTIONAL, &layer->q_bias));
    SKL__TRY(skl__bind_vector(b, site, "attn_k.bias", kv, SKL__OPTIONAL, &layer->k_bias));
    SKL__TRY(skl__bind_vector(b, site, "attn_v.bias", kv, SKL__OPTIONAL, &layer->v_bias));
    SKL__TRY(skl__bind_vector(b, site, "attn_output.bias", c->width, SKL__OPTIONAL, &layer->output_bias));
    SKL__TRY(skl__bind_vector(b, site, "attn_q_norm.weight", c->head_dim, c->architecture->qk_norm, &layer->q_norm));
    SKL__TRY(skl__bind_vector(b, site, "attn_k_norm.weight", c->head_dim, c->architecture->qk_norm, &layer->k_norm));
    if (c->architecture->qk_norm == SKL__OPTIONAL && b->model->arena.base && !layer->q_norm != !layer->k_norm)
        return skl__model_fail(b, skl__name_of(site, "attn_q_norm.weight").text,
                               "query and key norm come together or not at all");
    SKL__TRY(skl__bind_vector(b, site, "attn_sinks.weight", c->heads, c->softmax == SKL__SINK ? SKL__REQUIRED : SKL__NEVER,
                              &layer->sinks));
    return skl__bind_attn_gate(b, site, &layer->attn_gate);
}

static uint64_t skl__matrix_bytes(const skl__matrix *w)
{
    const size_t unit = w->storage >= SKL__TILES_4 ? SKL__TILE : 1;

    return (uint64_t)(w->rows + unit - 1) / unit * w->stride;
}

static skl_status skl__bind_layer(skl__binder *b, size_t index, skl__layer *layer)
{
    const skl__config *c = &b->model->config;
    const skl__matrix *read[8];
    char site[48];
    size_t i;

    memset(layer, 0, sizeof *layer);
    snprintf(site, sizeof site, "blk.%lu.", (unsigned long)index);
    SKL__TRY(skl__bind_norm(b, skl__name_of(site, "attn_norm").text, &layer->attn_norm));
    SKL__TRY(skl__bind_attention(b, site, layer));
    SKL__TRY(skl__bind_norm(b, skl__name_of(site, "ffn_norm").text, &layer->ffn_norm));
    SKL__TRY(skl__bind_matrix(b, site, "ffn_gate.weight", c->width, c->ff, SKL__REQUIRED, &layer->ffn_gate));
    SKL__TRY(skl__bind_matrix(b, site, "ffn_up.weight", c->width, c->ff, SKL__REQUIRED, &layer->ffn_up));
    SKL__TRY(skl__bind_matrix(b, site, "ffn_down.weight", c->ff, c->width, SKL__REQUIRED, &layer->ffn_down));
    if (c->residual != SKL__ADD) {
        SKL__TRY(skl__bind_read(b, skl__name_of(site, "attn_res").text, &layer->attn_read));
        SKL__TRY(skl__bind_read(b, skl__name_of(site, "ffn_res").text, &layer->ffn_read));
    }
    read[0] = &layer->q;
    read[1] = &layer->k;
    read[2] = &layer->v;
    read[3] = &layer->attn_gate;
    read[4] = &layer->output;
    read[5] = &layer->ffn_gate;
    read[6] = &layer->ffn_up;
    read[7] = &layer->ffn_down;
    for (i = 0; i < 8; i++) b->model->bytes_per_token += skl__matrix_bytes(read[i]);
    return SKL_OK;
}

/* Which layers use the sliding window: all of them, or those the pattern names. */
static skl_status skl__bind_windows(skl__binder *b)
{
    const skl__config *c = &b->model->config;
    const skl__key_name key = skl__key_of(b, "attention.sliding_window_pattern");
    skl_value pattern;
    size_t i;

    const int listed = c->architecture->mechanisms && skl_gguf_find(b->model->gguf, key.text, &pattern) == SKL_OK;
    if (listed && (pattern.type != SKL_VALUE_ARRAY || pattern.element_type != SKL_VALUE_BOOL || pattern.count != c->layers))
        return skl__model_fail(b, key.text, "this key must hold one bool per layer");
    if (!b->model->layers) return SKL_OK;
    for (i = 0; i < c->layers; i++) {
        int64_t windowed = 1;
        if (listed) skl_value_int(&pattern, i, &windowed);
        b->model->layers[i].window = windowed ? c->window : 0;
    }
    return SKL_OK;
}

/* YaRN: the pair, counted in turns over the original context, at which interpolation begins or ends. */
static double skl__yarn_bound(const skl__config *c, double turns)
{
    return skl__mul64((double)c->n_rot, skl__log(c->rope_original / skl__mul64(turns, 6.28318530717958647693))) /
           skl__mul64(2.0, skl__log(c->rope_base));
}

/* Angle per position of every rotary pair: base^(-2j/n), divided by the factors of Llama 3 files, then scaled.
 *   factors  [n_rot / 2] or NULL    frequencies  [n_rot / 2] */
static void skl__rope_frequencies(skl_model *model, const float *factors, double *frequencies)
{
    const skl__config *c = &model->config;
    const double n = (double)c->n_rot;
    double low = 0.0, high = 0.0;
    size_t j;

    if (c->rope_scaling == SKL__ROPE_YARN) {
        low = floor(skl__yarn_bound(c, c->rope_beta_fast));
        high = ceil(skl__yarn_bound(c, c->rope_beta_slow));
        low = low < 0.0 ? 0.0 : low;
        high = high > n - 1.0 ? n - 1.0 : high;
        model->rope_magnitude = (float)(c->rope_attention * (1.0 + skl__mul64(0.1, skl__log(c->rope_factor))));
    }
    for (j = 0; j < c->n_rot / 2; j++) {
        double turn = skl__pow(c->rope_base, skl__div64(-2.0 * (double)j, n)), ramp;
        if (factors) turn = skl__div64(turn, (double)factors[j]);
        if (c->rope_scaling == SKL__ROPE_LINEAR) turn = skl__div64(turn, c->rope_factor);
        if (c->rope_scaling == SKL__ROPE_YARN) {
            ramp = skl__div64((double)j - low, high - low > 0.001 ? high - low : 0.001);
            ramp = 1.0 - (ramp < 0.0 ? 0.0 : ramp > 1.0 ? 1.0 : ramp);
            turn = skl__mul64(skl__div64(turn, c->rope_factor), 1.0 - ramp) + skl__mul64(turn, ramp);
        }
        frequencies[j] = turn;
    }
}

static skl_status skl__bind_rope(skl__binder *b)
{
    skl_model *model = b->model;
    const skl__presence optional = model->config.architecture->mechanisms ? SKL__NEVER : SKL__OPTIONAL;
    const float *factors;
    double *frequencies;
    size_t j;

    SKL__TRY(skl__bind_vector(b, "rope_freqs", ".weight", model->config.n_rot / 2, optional, &factors));
    frequencies = (double *)skl__arena_take(&model->arena, model->config.n_rot / 2, sizeof *frequencies);
    model->rope_magnitude = 1.0f;
    if (!frequencies) return SKL_OK;
    for (j = 0; factors && j < model->config.n_rot / 2; j++)
        if (!(factors[j] > 0.0f)) return skl__model_fail(b, "rope_freqs.weight", "a factor is not positive");
    skl__rope_frequencies(model, factors, frequencies);
    for (j = 0; j < model->config.n_rot / 2; j++) /* skl__sincos has its limit, and no model turns faster than 1 */
        if (!(frequencies[j] >= 0.0 && frequencies[j] <= 1e6))
            return skl__model_fail(b, skl__key_of(b, "rope").text, "a rotary frequency is out of range");
    model->frequencies = frequencies;
    return SKL_OK;
}

static skl_status skl__bind_all_used(const skl__binder *b)
{
    const skl_gguf *gguf = b->model->gguf;
    size_t i;

    for (i = 0; i < gguf->tensor_count; i++)
        if (!b->used[i])
            return skl__model_fail(b, gguf->records[i].tensor.name, "nothing in this architecture reads this tensor");
    return SKL_OK;
}

/* One walk over everything the architecture calls for. */
static skl_status skl__bind(skl__binder *b)
{
    skl_model *model = b->model;
    skl__config *c = &model->config;
    skl__layer scratch;
    size_t i;

    memset(b->used, 0, model->gguf->tensor_count);
    b->repack_count = 0;
    model->bytes_per_token = 0;
    model->layers = (skl__layer *)skl__arena_take(&model->arena, c->layers, sizeof *model->layers);
    SKL__TRY(skl__bind_matrix(b, "token_embd", ".weight", c->width, 0, SKL__REQUIRED, &model->embedding));
    c->vocab = model->embedding.rows;
    if (c->vocab > INT32_MAX) return skl__model_fail(b, "token_embd.weight", "the vocabulary is too large");
    SKL__TRY(skl__bind_matrix(b, "output", ".weight", c->width, c->vocab, SKL__OPTIONAL, &model->head));
    if (!model->head.rows) model->head = model->embedding;
    SKL__TRY(skl__bind_norm(b, "output_norm", &model->output_norm));
    if (c->residual == SKL__ATTNRES) SKL__TRY(skl__bind_read(b, "output_res", &model->output_read));
    SKL__TRY(skl__bind_rope(b));
    for (i = 0; i < c->layers; i++) {
        if (model->cancel.stop && model->cancel.stop(model->cancel.user))
            return skl__fail(b->error, SKL_CANCELLED, SKL_NO_OFFSET, "", "loading was cancelled");
        SKL__TRY(skl__bind_layer(b, i, model->layers ? &model->layers[i] : &scratch));
    }
    SKL__TRY(skl__bind_windows(b));
    model->bytes_per_token += skl__matrix_bytes(&model->head);
    if (model->arena.overflow)
        return skl__fail(b->error, SKL_OUT_OF_MEMORY, SKL_NO_OFFSET, "", "the weights do not fit this address space");
    return skl__bind_all_used(b);
}

/* --- the packing lists: which I8 tensors hold what --- */

static skl_status skl__packing_list(const skl__binder *b, const char *key, uint64_t count, skl_value *list)
{
    if (skl_gguf_find(b->model->gguf, key, list) || list->type != SKL_VALUE_ARRAY || list->count != count ||
        list->element_type == SKL_VALUE_STRING)
        return skl__model_fail(b, key, "this key must hold one integer per packed tensor");
    return SKL_OK;
}

static skl_status skl__read_packing(skl__binder *b)
{
    const skl_gguf *gguf = b->model->gguf;
    const char *text;
    size_t length;
    skl_value version, names;
    int64_t number = 0, place;

    memset(b->packed, 0xff, gguf->tensor_count * sizeof *b->packed);
    if (skl_gguf_find(gguf, "packing.version", &version)) return SKL_OK;
    if (skl_value_int(&version, 0, &number) || number != 1)
        return skl__fail(b->error, SKL_UNSUPPORTED, SKL_NO_OFFSET, "packing.version",
                         "only version 1 of the packed layout is known");
    if (skl_gguf_find(gguf, "packing.names", &names) || names.type != SKL_VALUE_ARRAY || names.element_type != SKL_VALUE_STRING)
        return skl__model_fail(b, "packing.names", "this key must hold the names of the packed tensors");
    SKL__TRY(skl__packing_list(b, "packing.formats", names.count, &b->packed_formats));
    SKL__TRY(skl__packing_list(b, "packing.columns", names.count, &b->packed_columns));
    SKL__TRY(skl__packing_list(b, "packing.rows", names.count, &b->packed_rows));
    SKL__TRY(skl__packing_list(b, "packing.groups", names.count, &b->packed_groups));
    for (place = 0; skl_value_next_string(&names, &text, &length) == SKL_OK; place++) {
        const skl__record *record;
        char name[68];
        if (length >= sizeof name) return skl__model_fail(b, "packing.names", "a name is too long");
        memcpy(name, text, length);
        name[length] = '\0';
        record = (const skl__record *)skl__find_name(gguf->records_by_name, gguf->tensor_count, name);
        if (!record || record->tensor.type != SKL_TYPE_I8)
            return skl__model_fail(b, name, "it is listed as packed, but there is no such I8 tensor");
        if (b->packed[record - gguf->records] >= 0) return skl__model_fail(b, name, "it is listed as packed twice");
        b->packed[record - gguf->records] = place;
    }
    return SKL_OK;
}

/* --- packing at load --- */

#define SKL__REPACK_BYTES ((size_t)128 << 10) /* of an item of work, at least: taking its pages is a call of the system */

typedef struct skl__repack_call {
    const skl__repack *repack;
    size_t tile_bytes, tiles;         /* of the matrix */
    size_t item;                      /* tiles of an item */
    skl__count bad;                   /* tiles with a scale that is not finite */
} skl__repack_call;

/* Takes the pages of memory that is about to be written, in one call instead of a fault for each. Nothing in them changes, so
 * the first and the last may be shared with a neighbour. A system that cannot do it takes them as they are written.
 *   data  [size] */
static void skl__take_pages(void *data, size_t size)
{
#if defined(SKL__MADV_POPULATE_WRITE)
    const uintptr_t page = (uintptr_t)skl__map_unit(), begin = (uintptr_t)data / page * page;

    madvise((void *)begin, (size_t)((uintptr_t)data + size - begin), SKL__MADV_POPULATE_WRITE);
#else
    (void)data, (void)size;
#endif
}

static void skl__repack_task(void *arg, size_t index)
{
    skl__repack_call *call = (skl__repack_call *)arg;
    const skl__repack *repack = call->repack;
    const size_t begin = index * call->item, end = call->tiles - begin < call->item ? call->tiles : begin + call->item;
    size_t tile;

    skl__take_pages(repack->out + begin * call->tile_bytes, (end - begin) * call->tile_bytes);
    for (tile = begin; tile < end; tile++)
        if (!skl__pack_tile(&repack->layout, repack->type, repack->rows, tile, repack->out + tile * call->tile_bytes))
            skl__atomic_add(&call->bad, 1);
}

static skl_status skl__repack_all(skl__binder *b, skl__pool *pool)
{
    const skl_model *model = b->model;
    size_t i;

    for (i = 0; i < b->repack_count; i++) {
        skl__repack_call call;
        call.repack = &b->repacks[i];
        call.tile_bytes = (size_t)skl_packed_tile_bytes(&call.repack->layout);
        call.tiles = (size_t)skl_packed_bytes(&call.repack->layout) / call.tile_bytes;
        call.item = 1 + SKL__REPACK_BYTES / call.tile_bytes;
        call.bad = 0;
        if (model->cancel.stop && model->cancel.stop(model->cancel.user))
            return skl__fail(b->error, SKL_CANCELLED, SKL_NO_OFFSET, "", "loading was cancelled");
        skl__parallel(pool, (call.tiles + call.item - 1) / call.item, skl__repack_task, &call);
        if (call.bad) return skl__model_fail(b, call.repack->name, "a scale is not finite");
        skl__gguf_release_pages(model->gguf, call.repack->rows, call.repack->size);
    }
    return SKL_OK;
}

static skl_status skl__repack_with_threads(skl__binder *b, size_t threads)
{
    const skl_allocator *allocator = &b->model->allocator;
    void *memory;
    skl_status status;
    skl__pool *pool;

    if (b->repack_count == 0) return SKL_OK;
    threads = threads ? threads : skl_default_threads();
    memory = skl__alloc(allocator, skl__pool_size(threads));
    if (!memory)
        return skl__fail(b->error, SKL_OUT_OF_MEMORY, SKL_NO_OFFSET, "", "no memory for the threads that pack weights");
    pool = skl__pool_open(memory, threads, NULL, NULL);
    status = skl__repack_all(b, pool);
    skl__pool_close(pool);
    skl__free(allocator, memory);
    return status;
}

/* --- opening --- */

static int skl__little_endian(void)
{
    const uint16_t one = 1;
    unsigned char first;

    memcpy(&first, &one, 1);
    return first;
}

/* The working lists of a binder, given back before the open call returns. */
static skl_status skl__binder_lists(skl__binder *b)
{
    const size_t n = b->model->gguf->tensor_count;

    b->used = (unsigned char *)skl__alloc_array(&b->model->allocator, n, 1);
    b->packed = (int64_t *)skl__alloc_array(&b->model->allocator, n, sizeof *b->packed);
    b->repacks = (skl__repack *)skl__alloc_array(&b->model->allocator, n, sizeof *b->repacks);
    if (b->used && b->packed && b->repacks) return SKL_OK;
    return skl__fail(b->error, SKL_OUT_OF_MEMORY, SKL_NO_OFFSET, "", "no memory to bind %lu tensors", (unsigned long)n);
}

static void skl__binder_free(skl__binder *b)
{
    skl__free(&b->model->allocator, b->used);
    skl__free(&b->model->allocator, b->packed);
    skl__free(&b->model->allocator, b->repacks);
}

/* Takes the arena that the first walk measured, and walks again. */
static skl_status skl__bind_for_real(skl__binder *b, size_t threads)
{
    skl__arena *arena = &b->model->arena;
    const uint64_t needed = arena->used;

    /* The allocator aligns for any type, not for 64 bytes. */
    b->model->arena_memory = skl__alloc(&b->model->allocator, (size_t)needed + 64);
    if (!b->model->arena_memory)
        return skl__fail(b->error, SKL_OUT_OF_MEMORY, SKL_NO_OFFSET, "", "no memory for %llu bytes of weights",
                         (unsigned long long)needed);
    arena->base = (unsigned char *)b->model->arena_memory + (64 - ((uintptr_t)b->model->arena_memory & 63));
    arena->capacity = needed;
    arena->used = 0;
    SKL__TRY(skl__bind(b));
    return skl__repack_with_threads(b, threads);
}

static skl_status skl__model_prepare(skl__binder *b, const skl_model_desc *desc)
{
    skl_gguf_desc source;

    memset(&source, 0, sizeof source);
    source.source = desc->source;
    source.allocator = desc->allocator;
    SKL__TRY(skl_gguf_open(&b->model->gguf, &source, b->error));
    if (!skl__little_endian())
        return skl__fail(b->error, SKL_UNSUPPORTED, SKL_NO_OFFSET, "", "models cannot be used on a big-endian machine");
    SKL__TRY(skl__binder_lists(b));
    SKL__TRY(skl__read_config(b));
    SKL__TRY(skl__read_packing(b));
    return skl__bind(b); /* measures */
}

/* Opens a model, or with measure only goes as far as knowing its memory. */
static skl_status skl__model_make(skl_model **out, const skl_model_desc *given, int measure, skl_error *error)
{
    skl_model_desc desc;
    skl_allocator allocator;
    skl__binder b;
    skl_status status;
    skl__fp_env env;

    if (!given || skl__take_desc(&desc, sizeof desc, given, given->size))
        return skl__fail(error, SKL_BAD_ARGUMENT, SKL_NO_OFFSET, "desc", "the model desc is missing or of an unknown size");
    SKL__TRY(skl__take_allocator(&allocator, &desc.allocator, error));
    memset(&b, 0, sizeof b);
    b.error = error;
    b.model = (skl_model *)skl__alloc_array(&allocator, 1, sizeof *b.model);
    if (!b.model) return skl__fail(error, SKL_OUT_OF_MEMORY, SKL_NO_OFFSET, "", "no memory for a model");
    b.model->allocator = allocator;
    b.model->cancel = desc.cancel;
    env = skl__fp_begin();
    status = skl__model_prepare(&b, &desc);
    if (status == SKL_OK && !measure) status = skl__bind_for_real(&b, desc.threads);
    skl__fp_end(env);
    skl__binder_free(&b);
    if (status != SKL_OK) skl_model_close(b.model);
    else *out = b.model;
    return status;
}

SKL_API skl_status skl_model_open(skl_model **model, const skl_model_desc *desc, skl_error *error)
{
    if (!model) return skl__fail(error, SKL_BAD_ARGUMENT, SKL_NO_OFFSET, "model", "there is nowhere to put the model");
    return skl__model_make(model, desc, 0, error);
}

SKL_API void skl_model_close(skl_model *model)
{
    skl_allocator allocator;

    if (!model) return;
    allocator = model->allocator;
    skl_gguf_close(model->gguf);
    skl__free(&allocator, model->arena_memory);
    skl__free(&allocator, model);
}

SKL_API const skl_gguf *skl_model_gguf(const skl_model *model) { return model ? model->gguf : NULL; }
SKL_API size_t skl_model_vocab(const skl_model *model) { return model ? model->config.vocab : 0; }
SKL_API size_t skl_model_context(const skl_model *model) { return model ? model->config.context : 0; }
SKL_API size_t skl_model_layers(const skl_model *model) { return model ? model->config.layers : 0; }
SKL_API size_t skl_model_width(const skl_model *model) { return model ? model->config.width : 0; }
SKL_API uint64_t skl_model_bytes_per_token(const skl_model *model) { return model ? model->bytes_per_token : 0; }

/* =====================================================================================================================
 * >>attention                                                                             Token attention and the KV cache
 *
 * Attention over tokens is a running softmax (see skl__attend in >>lanes): largest logit, sum, and mix of values, fed block by
 * block in ascending position, blocks starting at multiples of 64 whatever the chunk or thread count. Plain softmax starts at
 * (lowest, 0), Softmax1 at (0, 1), a learned sink b at (b, 1); what is left on the null class at the end, averaged over the
 * query heads, is psi, which OASIS feeds to the depth routing (2605.17887). This section owns the cache that it walks over.
 * ================================================================================================================== */

/* Bytes of the parts of a block of one head's keys and values, and of all its blocks; the same for every layer. */
typedef struct skl__kv_shape {
    uint64_t keys, values, scales, value_stride, block, head;
} skl__kv_shape;

static skl__kv_shape skl__kv_shape_of(skl_kv kv, uint64_t head_dim, uint64_t context)
{
    const uint64_t padded = (head_dim + 15) / 16 * 16;
    const uint64_t size = kv == SKL_KV_F32 ? 4 : kv == SKL_KV_F16 ? 2 : 1;
    skl__kv_shape shape;

    shape.value_stride = kv == SKL_KV_I4 ? (head_dim + 31) / 32 * 16 : padded * size;
    shape.keys = (kv == SKL_KV_I4 ? (head_dim + 1) / 2 : head_dim * size) * SKL__BLOCK;
    shape.values = shape.value_stride * SKL__BLOCK;
    shape.scales = kv == SKL_KV_I8 || kv == SKL_KV_I4 ? SKL__BLOCK * sizeof(float) : 0;
    shape.block = shape.keys + shape.values + 2 * shape.scales; /* all of them multiples of 64 */
    shape.head = (context + SKL__BLOCK - 1) / SKL__BLOCK * shape.block;
    return shape;
}

/* One head's keys and values at base.        base  [shape.head bytes] */
static skl__kv_head skl__kv_head_at(const skl__kv_shape *shape, unsigned char *base)
{
    skl__kv_head head;

    head.keys = base;
    head.values = base + (size_t)shape->keys;
    head.key_scales = (float *)(void *)(head.values + (size_t)shape->values);
    head.value_scales = head.key_scales + (size_t)shape->scales / sizeof(float);
    head.block = (size_t)shape->block;
    head.value_stride = (size_t)shape->value_stride;
    return head;
}

/* =====================================================================================================================
 * >>session                                                                                               Session memory
 *
 * One allocation holds a session: its struct, the KV cache, the buffers of one chunk and the pool. The same walk measures and
 * places them. Buffers of a chunk are [tokens][...], so that a prompt and a single token go the same way.
 * ================================================================================================================== */

#define SKL__CHUNK 192 /* tokens per pass by default: weights come from memory once per chunk, activations stay in L2 */

/* Sources of the depth routing of every token of the chunk, oldest first, contiguous per token. */
typedef struct skl__depth {
    size_t slots;              /* most candidates of any read */
    size_t count;              /* completed sources */
    size_t summed;             /* AttnRes in blocks: attentions that the open sum holds */
    float *sources;            /* [tokens][slots][width] */
    float *psi;                /* [tokens][slots] null mass that goes with a source */
    float *inverse_rms;        /* [tokens][slots] AttnRes */
    float *weights;            /* [tokens][slots] of the read being done */
    float *null_mass;          /* [tokens] of the read being done */
    float *projected;          /* [tokens][slots + 1][read_rank] router: keys of the candidates, then the query */
} skl__depth;

struct skl_session {
    const skl_model *model;
    skl_session_desc desc;             /* defaults filled in */
    skl_allocator allocator;
    void *memory;                      /* what everything below lies in */
    const skl__kernels *kernels;
    skl__pool *pool;
    skl__kv_shape kv_shape;
    unsigned char *kv;                 /* [layers][kv_heads][kv_shape.head] */
    int32_t *tokens;                   /* [context] held */
    size_t *rows;                      /* [chunk] whose logits are wanted */
    size_t position;
    skl_error error;
    /* one chunk; q_width = heads * head_dim, kv_width = kv_heads * head_dim */
    float *hidden;                     /* [chunk][width] what enters a sub-layer */
    float *normed;                     /* [chunk][width] */
    float *output;                     /* [chunk][width] what leaves it */
    float *q, *k, *v;                  /* [chunk][q_width], [chunk][kv_width] */
    float *attn_gate;                  /* [chunk][q_width] or [chunk][heads] */
    float *mixed;                      /* [chunk][q_width] attention before its output projection */
    float *null_mass;                  /* [chunk][heads] */
    float *psi;                        /* [chunk] */
    float *ffn_gate, *ffn_up;          /* [chunk][ff] */
    float *gate_rank;                  /* [chunk][gate_rank] */
    float *cosine, *sine;              /* [chunk][n_rot]; n_rot / 2 used unless pairs are adjacent */
    int8_t *codes;                     /* [chunk][stride of the widest row] */
    float *scales;                     /* [chunk][widest row / 32] */
    int32_t *sums;                     /* [chunk][widest row / 32] */
    skl__depth depth;
};

static size_t skl__depth_slots(const skl__config *c)
{
    if (c->residual == SKL__ADD) return 0;
    if (c->residual == SKL__ROUTER) return c->layers + 3;      /* history, and two candidates of the layer */
    if (c->block_size == 0) return 2 * c->layers + 1;          /* embedding, and every sub-layer output */
    return (c->layers + c->block_size - 1) / c->block_size + 1; /* embedding or sums, and the open one */
}

static size_t skl__widest(const skl__config *c)
{
    return skl__larger(skl__larger(c->width, c->ff), c->heads * c->head_dim);
}

static float *skl__take_floats(skl__arena *arena, uint64_t rows, uint64_t columns)
{
    uint64_t count = 0;

    if (!skl__multiply(rows, columns, &count)) arena->overflow = 1;
    return (float *)skl__arena_take(arena, count, sizeof(float));
}

/* Places everything a session owns but the cache. What a sub-layer needs from its start to its end only is shared: normed is
 * forgotten when output is made, and all of the attention when the feed-forward begins. */
static void skl__place_scratch(skl_session *s, skl__arena *arena)
{
    const skl_model *model = s->model;
    const skl__config *c = &model->config;
    const uint64_t chunk =
        s->desc.chunk, q_width = (uint64_t)c->heads * c->head_dim, kv_width = (uint64_t)c->kv_heads * c->head_dim;
    const uint64_t widest = skl__widest(c), slots = skl__depth_slots(c);
    uint64_t shared, attention;

    s->tokens = (int32_t *)skl__arena_take(arena, s->desc.context, sizeof *s->tokens);
    s->rows = (size_t *)skl__arena_take(arena, chunk, sizeof *s->rows);
    s->hidden = skl__take_floats(arena, chunk, c->width);
    s->normed = s->output = skl__take_floats(arena, chunk, c->width);
    s->null_mass = skl__take_floats(arena, chunk, c->heads);
    s->psi = skl__take_floats(arena, chunk, 1);
    shared = arena->used;
    s->q = skl__take_floats(arena, chunk, q_width);
    s->k = skl__take_floats(arena, chunk, kv_width);
    s->v = skl__take_floats(arena, chunk, kv_width);
    s->attn_gate = skl__take_floats(arena, chunk, q_width);
    s->mixed = skl__take_floats(arena, chunk, q_width);
    attention = arena->used;
    arena->used = shared;
    s->ffn_gate = skl__take_floats(arena, chunk, c->ff);
    s->ffn_up = skl__take_floats(arena, chunk, c->ff);
    if (arena->used < attention) arena->used = attention;
    s->gate_rank = skl__take_floats(arena, chunk, model->gate_rank);
    s->cosine = skl__take_floats(arena, chunk, c->n_rot);
    s->sine = skl__take_floats(arena, chunk, c->n_rot);
    s->codes = (int8_t *)skl__arena_take(arena, chunk, (widest + 63) / 64 * 64);
    s->scales = skl__take_floats(arena, chunk, (widest + 31) / 32);
    s->sums = (int32_t *)skl__arena_take(arena, chunk * ((widest + 31) / 32), sizeof *s->sums);
    s->depth.slots = (size_t)slots;
    s->depth.sources = skl__take_floats(arena, chunk * slots, c->width);
    s->depth.psi = skl__take_floats(arena, chunk, slots);
    s->depth.inverse_rms = skl__take_floats(arena, chunk, slots);
    s->depth.weights = skl__take_floats(arena, chunk, slots);
    s->depth.null_mass = skl__take_floats(arena, chunk, slots ? 1 : 0);
    s->depth.projected = skl__take_floats(arena, chunk * (slots + 1), model->read_rank);
}

static skl_status skl__session_bad(skl_error *error, const char *where, const char *what)
{
    return skl__fail(error, SKL_BAD_ARGUMENT, SKL_NO_OFFSET, where, "%s", what);
}

/* Fills in defaults and refuses what makes no sense. */
static skl_status skl__session_settle(skl_session *s, const skl_session_desc *given, skl_error *error)
{
    skl_session_desc *desc = &s->desc;
    const skl__config *c = &s->model->config;

    if (skl__take_desc(desc, sizeof *desc, given, given ? given->size : 0))
        return skl__session_bad(error, "desc", "the session desc is of an unknown size");
    if ((unsigned)desc->activation > SKL_ACT_A4)
        return skl__session_bad(error, "activation", "there is no such activation format");
    if ((unsigned)desc->group > SKL_GROUP_ROW) return skl__session_bad(error, "group", "there is no such activation group");
    if ((unsigned)desc->kv > SKL_KV_I4) return skl__session_bad(error, "kv", "there is no such KV format");
    if ((unsigned)desc->isa >= SKL_ISA_COUNT) return skl__session_bad(error, "isa", "there is no such kernel level");
    if (desc->threads > 1024) return skl__session_bad(error, "threads", "more than 1024 threads are not supported");
    if (desc->context > INT32_MAX || desc->chunk > INT32_MAX) return skl__session_bad(error, "context", "it is too large");
    if (!desc->context) desc->context = c->context;
    if (!desc->chunk) desc->chunk = SKL__CHUNK;
    if (desc->chunk > desc->context) desc->chunk = desc->context;
    if (desc->activation == SKL_ACT_DEFAULT) desc->activation = SKL_ACT_A8;
    if (desc->group == SKL_GROUP_DEFAULT) desc->group = SKL_GROUP_32;
    if (desc->kv == SKL_KV_DEFAULT) desc->kv = SKL_KV_F16;
    if (!desc->threads) desc->threads = skl_default_threads();
    s->kv_shape = skl__kv_shape_of(desc->kv, c->head_dim, desc->context);
    return SKL_OK;
}

/* Measures, or with a base places, all memory of a session; *kv receives the bytes of the cache. */
static skl_status skl__session_place(skl_session *s, skl__arena *arena, uint64_t *kv, skl_error *error)
{
    const skl__config *c = &s->model->config;
    uint64_t heads;

    if (!skl__multiply(c->layers, c->kv_heads, &heads) || !skl__multiply(heads, s->kv_shape.head, kv)) arena->overflow = 1;
    s->pool = (skl__pool *)skl__arena_take(arena, skl__pool_size(s->desc.threads), 1);
    skl__place_scratch(s, arena);
    s->kv = (unsigned char *)skl__arena_take(arena, *kv, 1);
    if (arena->overflow)
        return skl__fail(error, SKL_OUT_OF_MEMORY, SKL_NO_OFFSET, "context",
                         "a session of %lu tokens does not fit this address space",
                         (unsigned long)s->desc.context);
    return SKL_OK;
}

SKL_API skl_status skl_model_memory(const skl_model *model, const skl_session_desc *desc, skl_memory *memory, skl_error *error)
{
    skl_session s;
    skl__arena arena;
    uint64_t kv = 0;

    if (!model || !memory) return skl__session_bad(error, "memory", "model and memory must be given");
    memset(&s, 0, sizeof s);
    memset(&arena, 0, sizeof arena);
    s.model = model;
    SKL__TRY(skl__session_settle(&s, desc, error));
    SKL__TRY(skl__session_place(&s, &arena, &kv, error));
    skl__arena_take(&arena, sizeof s, 1);
    memory->mapped = model->gguf->mapping ? model->gguf->mapping_length : 0;
    memory->weights =
        (model->arena.base ? model->arena.capacity : model->arena.used) + 64 +
        (model->gguf->copy ? (uint64_t)model->gguf->length + SKL__LINE : 0);
    memory->tables = sizeof *model + sizeof *model->gguf + skl__list_bytes(model->gguf);
    memory->kv = kv;
    memory->scratch = arena.used + 64 - kv; /* skl__session_make aligns by itself */
    return SKL_OK;
}

SKL_API skl_status skl_memory_needed(skl_memory *memory, const skl_model_desc *model_desc, const skl_session_desc *session_desc,
                                     skl_error *error)
{
    skl_model *model;
    skl_status status;

    SKL__TRY(skl__model_make(&model, model_desc, 1, error));
    status = skl_model_memory(model, session_desc, memory, error);
    skl_model_close(model);
    return status;
}

/* Measures with a session on the stack, allocates once, and places again. */
static skl_status skl__session_make(skl_session **out, const skl_session *settled, skl_error *error)
{
    skl_session measured = *settled, *s;
    skl__arena arena;
    uint64_t kv = 0;
    void *memory;

    memset(&arena, 0, sizeof arena);
    SKL__TRY(skl__session_place(&measured, &arena, &kv, error));
    skl__arena_take(&arena, sizeof *s, 1);
    memory = arena.overflow || !skl__fits_size(arena.used + 64) ? NULL
        : skl__alloc(&settled->allocator, (size_t)arena.used + 64);
    if (!memory)
        return skl__fail(error, SKL_OUT_OF_MEMORY, SKL_NO_OFFSET, "", "no memory for a session of %llu bytes",
                         (unsigned long long)arena.used);
    arena.base = (unsigned char *)memory + (64 - ((uintptr_t)memory & 63));
    arena.capacity = arena.used;
    arena.used = 0;
    s = (skl_session *)skl__arena_take(&arena, sizeof *s, 1);
    *s = *settled;
    s->memory = memory;
    skl__session_place(s, &arena, &kv, NULL); /* was measured: it fits */
    s->pool = skl__pool_open(s->pool, s->desc.threads, s->desc.parallel_for, s->desc.parallel_user);
    *out = s;
    return SKL_OK;
}

SKL_API skl_status skl_session_open(skl_session **session, const skl_model *model, const skl_session_desc *desc,
                                    skl_error *error)
{
    skl_session s;

    if (!session || !model) return skl__session_bad(error, "session", "model and session must be given");
    memset(&s, 0, sizeof s);
    s.model = model;
    SKL__TRY(skl__session_settle(&s, desc, error));
    SKL__TRY(skl__take_allocator(&s.allocator, &s.desc.allocator, error));
    SKL__TRY(skl__choose_kernels(&s.kernels, s.desc.isa, s.desc.isa_mask, error));
    s.error.offset = SKL_NO_OFFSET;
    return skl__session_make(session, &s, error);
}

SKL_API void skl_session_close(skl_session *session)
{
    skl_allocator allocator;

    if (!session) return;
    allocator = session->allocator;
    skl__pool_close(session->pool);
    skl__free(&allocator, session->memory);
}

SKL_API size_t skl_session_position(const skl_session *session) { return session ? session->position : 0; }
SKL_API size_t skl_session_context(const skl_session *session) { return session ? session->desc.context : 0; }
SKL_API const int32_t *skl_session_tokens(const skl_session *session) { return session ? session->tokens : NULL; }
SKL_API size_t skl_session_threads(const skl_session *session) { return session ? session->pool->threads : 0; }
SKL_API skl_isa skl_session_isa(const skl_session *session) { return session ? session->kernels->isa : SKL_ISA_DEFAULT; }

SKL_API const skl_error *skl_session_error(const skl_session *session)
{
    static const skl_error none = {SKL_BAD_ARGUMENT, SKL_NO_OFFSET, "session", "there is no session"};

    return session ? &session->error : &none;
}

SKL_API skl_status skl_session_truncate(skl_session *session, size_t n)
{
    if (!session) return SKL_BAD_ARGUMENT;
    if (n > session->position)
        return skl__fail(&session->error, SKL_BAD_ARGUMENT, SKL_NO_OFFSET, "n", "cannot keep %lu tokens of %lu",
                         (unsigned long)n,
                         (unsigned long)session->position);
    session->position = n;
    return SKL_OK;
}

/* =====================================================================================================================
 * >>forward                                                                                             The forward pass
 *
 * Tokens go through the layers in chunks. Each step is a call of skl__parallel whose items are tokens, heads, tiles of rows, or
 * pairs of these; what an item computes does not depend on which others there are, so chunks and threads leave no trace in the
 * results. With a single token, steps that have one item per token run on the caller without waking anybody.
 *
 * A layer is a token mixer and a feed-forward. Both are f(h), norm included; how h is formed from earlier outputs and where
 * f(h) goes is the business of >>depth.
 * ================================================================================================================== */

/* Where a sub-layer's output goes: nowhere, onto hidden, or into a source, which it sets, adds to, or sets with hidden on top. */
typedef enum skl__deposit { SKL__NO_DEPOSIT, SKL__ADD_TO_HIDDEN, SKL__SET, SKL__ADD_TO, SKL__SET_WITH_HIDDEN } skl__deposit;

/* From one sub-layer to the next. It is noted here and done by the norm that follows, which takes a few tokens through all of
 * it while their data are close. */
typedef struct skl__link {
    skl__deposit deposit;              /* of output */
    size_t slot;                       /* the source that it concerns */
    const skl__read *read;             /* what hidden is formed by then, or NULL: it stays */
    size_t sources;                    /* that are read */
} skl__link;

/* What a pass over one chunk needs to know everywhere. */
typedef struct skl__pass {
    skl_session *s;
    const skl__lane_kernels *lanes;
    size_t n;                          /* tokens of the chunk */
    size_t start;                      /* position of the first */
    size_t layer;
    skl__link link;
} skl__pass;

static void skl__link_token(const skl__pass *pass, size_t t); /* >>depth */
static void skl__link_done(skl__pass *pass);

static void skl__show(const skl__pass *pass, const char *name, size_t layer, const float *data, size_t tokens, size_t width)
{
    const skl_session_desc *desc = &pass->s->desc;
    skl_probe_view view;

    if (!desc->probe) return;
    view.name = name;
    view.layer = layer;
    view.position = pass->start;
    view.tokens = tokens;
    view.width = width;
    view.data = data;
    desc->probe(desc->probe_user, &view);
}

/* One item per token. */
static void skl__each_token(skl__pass *pass, skl__task *task, void *arg)
{
    size_t t;

    if (pass->n > 1) skl__parallel(pass->s->pool, pass->n, task, arg);
    else
        for (t = 0; t < pass->n; t++) task(arg, t);
}

/* --- matrices --- */

/* Activations of the chunk with rows of `columns` values, as the kernels see them. */
static skl__acts skl__acts_of(const skl__pass *pass, const float *values, size_t columns)
{
    const skl_session *s = pass->s;
    skl__acts acts;

    acts.columns = columns;
    acts.stride = (columns + 63) / 64 * 64;
    acts.row = s->desc.group == SKL_GROUP_ROW;
    acts.codes = s->codes;
    acts.scales = s->scales;
    acts.sums = s->sums;
    acts.values = values;
    return acts;
}

/* Quantises row t, if some matrix of the model will want codes. */
static void skl__quantise_row(const skl__pass *pass, const skl__acts *acts, size_t t)
{
    const skl_session *s = pass->s;
    const size_t runs = (acts->columns + 31) / 32;

    if (!s->model->has_codes || s->desc.activation == SKL_ACT_F32) return;
    pass->lanes->quantise(acts->values + t * acts->columns, acts->columns, s->desc.activation == SKL_ACT_A4 ? 7.0f : 127.0f,
                          acts->row,
                          acts->codes + t * acts->stride, acts->scales + t * (acts->row ? 1 : runs), acts->sums + t * runs);
}

typedef struct skl__range {
    size_t begin, end;
} skl__range;

/* The tokens of a pass are cut into runs, the items of norms and attention: a gate reads its matrices once for a run, and its
 * queries fill a job. Runs make up blocks, one for each thread or for a few of them. A thread takes its own share of every step
 * first (>>sharing), so it mostly reads what it wrote; what another one wrote has to come from that one's cache. */
#define SKL__TOKEN_RUN ((size_t)8)
#define SKL__SHARE_TOKENS ((size_t)48) /* of a block, at least: so many make it worth to unpack a panel of weights */

static size_t skl__token_runs(size_t tokens) { return (tokens + SKL__TOKEN_RUN - 1) / SKL__TOKEN_RUN; }

/* How many blocks; a divisor of threads. */
static size_t skl__token_blocks(size_t threads, size_t tokens)
{
    size_t blocks = tokens / SKL__SHARE_TOKENS < threads ? tokens / SKL__SHARE_TOKENS : threads;

    while (blocks > 1 && threads % blocks) blocks--;
    return blocks > 0 ? blocks : 1;
}

/* Tokens of a block; never none. */
static skl__range skl__token_block(size_t tokens, size_t blocks, size_t block)
{
    const size_t runs = skl__token_runs(tokens);
    skl__range range;

    range.begin = runs * block / blocks * SKL__TOKEN_RUN;
    range.end = runs * (block + 1) / blocks * SKL__TOKEN_RUN;
    range.end = range.end < tokens ? range.end : tokens;
    return range;
}

/* How products are cut into items. Every thread has a block of tokens, or shares it with others, each with a part of the tiles.
 * Its items fall in size, from half of its tiles to a few: long runs are read faster, and short ones at the end let all threads
 * finish together, however slow one of them is. */
typedef struct skl__cut {
    size_t threads, tiles;
    size_t blocks, parts;              /* of tokens, of tiles; a thread for each pair, or more threads than pairs */
    size_t part;                       /* tiles of a part, a multiple of 4 if there are several; the last may have fewer */
    size_t items;                      /* of a block and part */
} skl__cut;

#define SKL__ITEM_TILES ((size_t)8) /* of an item, if there are more; else multiples of 4, which stream kernels read at once */

/* Of `left` tiles, those of the next item. */
static size_t skl__item_tiles(size_t left, size_t threads)
{
    const size_t half = threads == 1 ? left : (left / 2 + 3) / 4 * 4, tiles = half < SKL__ITEM_TILES ? SKL__ITEM_TILES : half;

    return tiles < left ? tiles : left;
}

static skl__cut skl__cut_of(size_t threads, size_t tiles, size_t tokens)
{
    const size_t most = (tiles + SKL__ITEM_TILES - 1) / SKL__ITEM_TILES; /* parts that are worth a thread */
    skl__cut cut;
    size_t left;

    cut.threads = threads;
    cut.tiles = tiles;
    cut.blocks = skl__token_blocks(threads, tokens);
    cut.parts = threads / cut.blocks < most ? threads / cut.blocks : most > 0 ? most : 1;
    cut.part = cut.parts == 1 ? tiles : ((tiles + cut.parts - 1) / cut.parts + 3) / 4 * 4;
    cut.items = 0;
    for (left = cut.part; left > 0; left -= skl__item_tiles(left, threads)) cut.items++;
    return cut;
}

/* Tiles of an item; there may be none. */
static skl__range skl__cut_tiles(const skl__cut *cut, size_t item)
{
    size_t begin = item / cut->items % cut->parts * cut->part, left = cut->part, i;
    skl__range range;

    for (i = item % cut->items; i > 0; i--) {
        const size_t tiles = skl__item_tiles(left, cut->threads);
        begin += tiles;
        left -= tiles;
    }
    range.begin = begin < cut->tiles ? begin : cut->tiles;
    range.end = range.begin + skl__item_tiles(left, cut->threads);
    range.end = range.end < cut->tiles ? range.end : cut->tiles;
    return range;
}

/* Up to four matrices that read the same activations, as one step. */
#define SKL__PRODUCTS 4

typedef struct skl__product {
    const skl__matrix *w;
    float *y;                          /* [tokens][stride] */
    size_t stride;
    size_t first, tiles;               /* tiles of the products before it, and its own */
} skl__product;

typedef struct skl__products {
    skl__product list[SKL__PRODUCTS];
    size_t count;
    size_t tiles;                      /* of all */
    const skl__pass *pass;
    const skl__acts *acts;
    size_t tokens;
    skl__cut cut;
} skl__products;

static void skl__products_add(skl__products *p, const skl__matrix *w, float *y, size_t stride)
{
    skl__product *product = &p->list[p->count];

    if (!w->rows) return;
    product->w = w;
    product->y = y;
    product->stride = stride;
    product->first = p->tiles;
    product->tiles = (w->rows + SKL__TILE - 1) / SKL__TILE;
    p->tiles += product->tiles;
    p->count++;
}

static void skl__products_task(void *arg, size_t item)
{
    const skl__products *p = (const skl__products *)arg;
    const skl_session *session = p->pass->s;
    const skl__range tiles = skl__cut_tiles(&p->cut, item);
    const skl__range tokens = skl__token_block(p->tokens, p->cut.blocks, item / p->cut.items / p->cut.parts);
    const skl__acts acts = skl__acts_from(p->acts, tokens.begin);
    const skl__product *product;

    for (product = p->list; product < p->list + p->count; product++) {
        const size_t begin = tiles.begin > product->first ? tiles.begin - product->first : 0;
        const size_t rest = tiles.end > product->first ? tiles.end - product->first : 0;
        const size_t end = rest < product->tiles ? rest : product->tiles;
        skl__matmul *matmul = skl__matmul_for(session->kernels, product->w, session->desc.activation);

        if (begin >= end) continue;
        matmul(product->y + tokens.begin * product->stride, product->stride, product->w, begin, end, &acts,
               tokens.end - tokens.begin);
    }
}

static void skl__products_run(skl__products *p, const skl__pass *pass, const skl__acts *acts, size_t tokens)
{
    p->pass = pass;
    p->acts = acts;
    p->tokens = tokens;
    p->cut = skl__cut_of(pass->s->pool->threads, p->tiles, tokens);
    skl__parallel(pass->s->pool, p->cut.items * p->cut.parts * p->cut.blocks, skl__products_task, p);
}

/* y = W x for one matrix. */
static void skl__product_run(const skl__pass *pass, const skl__acts *acts, const skl__matrix *w, float *y, size_t stride)
{
    skl__products p;

    p.count = p.tiles = 0;
    skl__products_add(&p, w, y, stride);
    skl__products_run(&p, pass, acts, pass->n);
}

/* A small float matrix times one vector, on this thread.        x  [columns]    y  [rows] */
static void skl__small_product(const skl__pass *pass, const skl__matrix *w, const float *x, size_t tokens, float *y)
{
    skl__acts acts;

    memset(&acts, 0, sizeof acts);
    acts.columns = w->columns;
    acts.values = x;
    skl__matmul_for(pass->s->kernels, w, SKL_ACT_F32)(y, w->rows, w, 0, (w->rows + SKL__TILE - 1) / SKL__TILE, &acts, tokens);
}

/* --- norms --- */

/* y = norm(x) of one site and `count` tokens from t on (format: RMSNorm, PreAffine, DyT; GatedNorm, 2601.22966 3.4).
 *   x, y  [count][width] */
static void skl__norm_tokens(const skl__pass *pass, const skl__norm *norm, size_t t, size_t count, const float *x, float *y)
{
    const skl_session *s = pass->s;
    const skl__config *c = &s->model->config;
    float *rank = s->gate_rank + t * s->model->gate_rank;
    size_t i;

    for (i = 0; i < count; i++) {
        const float *from = x + i * c->width;
        float *to = y + i * c->width;
        if (c->dyt) pass->lanes->dyt(to, from, norm->weight, norm->bias, norm->alpha, c->width);
        else pass->lanes->rms_norm(to, from, norm->pre, norm->weight, c->width, c->eps);
    }
    if (!norm->gate_a.rows) return;
    skl__small_product(pass, &norm->gate_a, y, count, rank);
    pass->lanes->silu(rank, count * norm->gate_a.rows);
    pass->lanes->gate_product(y, &norm->gate_b, rank, count);
}

typedef struct skl__norm_call {
    const skl__pass *pass;
    const skl__norm *norm;
    const skl__acts *acts;             /* of normed */
} skl__norm_call;

/* Item: a few tokens, from the output of the last sub-layer to the codes that the next one takes. */
static void skl__norm_task(void *arg, size_t item)
{
    const skl__norm_call *call = (const skl__norm_call *)arg;
    const skl_session *s = call->pass->s;
    const size_t width = s->model->config.width, first = item * SKL__TOKEN_RUN;
    const size_t count = call->pass->n - first < SKL__TOKEN_RUN ? call->pass->n - first : SKL__TOKEN_RUN;
    size_t t;

    for (t = first; t < first + count; t++) skl__link_token(call->pass, t);
    skl__norm_tokens(call->pass, call->norm, first, count, s->hidden + first * width, s->normed + first * width);
    for (t = first; t < first + count; t++) skl__quantise_row(call->pass, call->acts, t);
}

/* Does what is noted, then normed = norm(hidden), quantised; returns it as activations. */
static skl__acts skl__norm_chunk(skl__pass *pass, const skl__norm *norm)
{
    skl__acts acts = skl__acts_of(pass, pass->s->normed, pass->s->model->config.width);
    skl__norm_call call;

    call.pass = pass;
    call.norm = norm;
    call.acts = &acts;
    skl__parallel(pass->s->pool, skl__token_runs(pass->n), skl__norm_task, &call);
    skl__link_done(pass);
    return acts;
}

/* --- attention --- */

static skl__kv_head skl__kv_head_of(const skl_session *s, size_t layer, size_t head)
{
    return skl__kv_head_at(&s->kv_shape, s->kv + (layer * s->model->config.kv_heads + head) * (size_t)s->kv_shape.head);
}

/* Head norm and rotation of one query or key head.        x  [head_dim] */
static void skl__turn_head(const skl__pass *pass, size_t t, const float *norm, float *x)
{
    const skl_session *s = pass->s;
    const skl__config *c = &s->model->config;

    if (norm) pass->lanes->rms_norm(x, x, NULL, norm, c->head_dim, c->eps);
    pass->lanes->rope(x, s->cosine + t * c->n_rot, s->sine + t * c->n_rot, c->n_rot, c->architecture->rope_adjacent);
}

/* Queries of one key/value head and token: bias, norm, rotation, and the scale of the scores. */
static void skl__prepare_queries(const skl__pass *pass, size_t t, size_t kv_head)
{
    const skl_session *s = pass->s;
    const skl__config *c = &s->model->config;
    const skl__layer *layer = &s->model->layers[pass->layer];
    const size_t dim = c->head_dim, group = c->heads / c->kv_heads;
    const float scale = 1.0f / skl__sqrt((float)dim);
    size_t g;

    for (g = 0; g < group; g++) {
        const size_t head = kv_head * group + g;
        float *q = s->q + (t * c->heads + head) * dim;
        if (layer->q_bias) pass->lanes->add(q, layer->q_bias + head * dim, dim);
        skl__turn_head(pass, t, layer->q_norm, q);
        pass->lanes->scale(q, scale, dim);
    }
}

/* One key/value head of tokens [first, last), whose positions are of the same 16, and the queries that read it: bias, norm,
 * rotation; keys and values go into the cache. */
static void skl__prepare_heads(const skl__pass *pass, size_t first, size_t last, size_t kv_head)
{
    const skl_session *s = pass->s;
    const skl__config *c = &s->model->config;
    const skl__layer *layer = &s->model->layers[pass->layer];
    const size_t dim = c->head_dim, width = c->kv_heads * dim, place = first * width + kv_head * dim;
    const skl__kv_head kv = skl__kv_head_of(s, pass->layer, kv_head);
    size_t t;

    skl__kv_expect(&kv, s->desc.kv, dim, pass->start + first, last - first);
    for (t = first; t < last; t++) {
        float *k = s->k + t * width + kv_head * dim, *v = s->v + t * width + kv_head * dim;
        if (layer->k_bias) pass->lanes->add(k, layer->k_bias + kv_head * dim, dim);
        if (layer->v_bias) pass->lanes->add(v, layer->v_bias + kv_head * dim, dim);
        skl__turn_head(pass, t, layer->k_norm, k);
        skl__prepare_queries(pass, t, kv_head);
    }
    pass->lanes->store_kv(&kv, s->desc.kv, dim, pass->start + first, last - first, s->k + place, s->v + place, width);
}

static float skl__null_logit(const skl__config *c, const skl__layer *layer, size_t head)
{
    return c->softmax == SKL__SOFTMAX ? SKL__NO_NULL : c->softmax == SKL__SOFTMAX1 ? 0.0f : layer->sinks[head];
}

/* Adds a query to a job. */
static void skl__attend_add(skl__attend_job *job, const skl__pass *pass, size_t t, size_t head)
{
    skl_session *s = pass->s;
    const skl__config *c = &s->model->config;
    const skl__layer *layer = &s->model->layers[pass->layer];
    const size_t i = job->queries++, place = (t * c->heads + head) * c->head_dim, position = pass->start + t;

    job->q[i] = s->q + place;
    job->out[i] = s->mixed + place;
    job->last[i] = position;
    job->first[i] = layer->window && position + 1 > layer->window ? position + 1 - layer->window : 0;
    job->null_logit[i] = skl__null_logit(c, layer, head);
}

/* Runs a job and takes what it gathered: psi of every query head, and the gate of gated attention (2505.06708). */
static void skl__attend_run(skl__attend_job *job, const skl__pass *pass)
{
    skl_session *s = pass->s;
    const skl__config *c = &s->model->config;
    const size_t gates = s->model->layers[pass->layer].attn_gate.rows;
    size_t i;

    pass->lanes->attend(job);
    job->cold = 0; /* what it read is close for the next one */
    for (i = 0; i < job->queries; i++) {
        const size_t place = (size_t)(job->out[i] - s->mixed) / c->head_dim; /* token * heads + head */
        s->null_mass[place] = job->null_mass[i];
        if (gates == c->heads) pass->lanes->gate(job->out[i], s->attn_gate + place, c->head_dim, c->head_dim);
        else if (gates) pass->lanes->gate(job->out[i], s->attn_gate + place * c->head_dim, c->head_dim, 1);
    }
    job->queries = 0;
}

static void skl__attend_heads(const skl__pass *pass, size_t first, size_t last, size_t kv_head)
{
    const skl__config *c = &pass->s->model->config;
    const size_t group = c->heads / c->kv_heads;
    skl__attend_job job;
    size_t t, g;

    memset(&job, 0, sizeof job);
    job.head = skl__kv_head_of(pass->s, pass->layer, kv_head);
    job.kv = pass->s->desc.kv;
    job.head_dim = c->head_dim;
    job.clipped = c->clipped;
    job.gamma = c->gamma;
    job.zeta = c->zeta;
    job.cold = 1;
    for (t = first; t < last; t++)
        for (g = 0; g < group; g++) {
            skl__attend_add(&job, pass, t, kv_head * group + g);
            if (job.queries == SKL__QUERIES) skl__attend_run(&job, pass);
        }
    if (job.queries) skl__attend_run(&job, pass);
}

/* Item: a key/value head and the tokens of a pass in one run of 16 positions. */
static void skl__prepare_task(void *arg, size_t item)
{
    const skl__pass *pass = (const skl__pass *)arg;
    const size_t kv_heads = pass->s->model->config.kv_heads;
    const size_t run = pass->start / 16 * 16 + item / kv_heads * 16, end = pass->start + pass->n;
    const size_t first = run > pass->start ? run - pass->start : 0;
    const size_t last = (run + 16 < end ? run + 16 : end) - pass->start;

    skl__prepare_heads(pass, first, last, item % kv_heads);
}

/* How attention is cut: blocks of tokens, in each one head after the other, because a cache holds the keys and values of few, and
 * in each head the last tokens first, because they see most. */
typedef struct skl__attend_call {
    const skl__pass *pass;
    size_t blocks, runs;               /* runs of tokens in a block, at most */
} skl__attend_call;

static void skl__attend_task(void *arg, size_t item)
{
    const skl__attend_call *call = (const skl__attend_call *)arg;
    const skl__pass *pass = call->pass;
    const size_t kv_heads = pass->s->model->config.kv_heads, run = item % call->runs, kv_head = item / call->runs % kv_heads;
    const skl__range tokens = skl__token_block(pass->n, call->blocks, item / call->runs / kv_heads);
    const size_t left = skl__token_runs(tokens.end - tokens.begin);
    size_t first;

    if (run >= left) return; /* this block has a run less than others */
    first = tokens.begin + (left - 1 - run) * SKL__TOKEN_RUN;
    if (pass->n == 1) skl__prepare_heads(pass, 0, 1, kv_head);
    skl__attend_heads(pass, first, tokens.end - first < SKL__TOKEN_RUN ? tokens.end : first + SKL__TOKEN_RUN, kv_head);
}

static void skl__attend_chunk(const skl__pass *pass)
{
    skl__attend_call call;

    call.pass = pass;
    call.blocks = skl__token_blocks(pass->s->pool->threads, pass->n);
    call.runs = (skl__token_runs(pass->n) + call.blocks - 1) / call.blocks;
    skl__parallel(pass->s->pool, call.blocks * pass->s->model->config.kv_heads * call.runs, skl__attend_task, &call);
}

/* psi of a token: the mean of the null masses of its query heads (2605.17887). */
static void skl__mean_null_mass(const skl__pass *pass)
{
    skl_session *s = pass->s;
    const size_t heads = s->model->config.heads;
    size_t t, head;

    for (t = 0; t < pass->n; t++) {
        float sum = 0.0f;
        for (head = 0; head < heads; head++) sum += s->null_mass[t * heads + head];
        s->psi[t] = skl__div(sum, (float)heads);
    }
}

typedef struct skl__row_call {
    const skl__pass *pass;
    const skl__acts *acts;
} skl__row_call;

static void skl__quantise_task(void *arg, size_t t)
{
    const skl__row_call *call = (const skl__row_call *)arg;

    skl__quantise_row(call->pass, call->acts, t);
}

/* y <- y + bias, every token.        y  [n][width] */
static void skl__add_bias(const skl__pass *pass, float *y, const float *bias, size_t width)
{
    size_t t;

    for (t = 0; bias && t < pass->n; t++) pass->lanes->add(y + t * width, bias, width);
}

/* output = attention(hidden); psi of every token besides. */
static void skl__attention(skl__pass *pass)
{
    skl_session *s = pass->s;
    const skl__config *c = &s->model->config;
    const skl__layer *layer = &s->model->layers[pass->layer];
    const size_t q_width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
    const size_t runs = (pass->start + pass->n + 15) / 16 - pass->start / 16;
    skl__acts acts = skl__norm_chunk(pass, &layer->attn_norm);
    skl__products products;
    skl__row_call call;

    skl__show(pass, "attn_input", pass->layer, s->hidden, pass->n, c->width);
    products.count = products.tiles = 0;
    skl__products_add(&products, &layer->q, s->q, q_width);
    skl__products_add(&products, &layer->k, s->k, kv_width);
    skl__products_add(&products, &layer->v, s->v, kv_width);
    skl__products_add(&products, &layer->attn_gate, s->attn_gate, layer->attn_gate.rows);
    skl__products_run(&products, pass, &acts, pass->n);
    if (pass->n > 1) skl__parallel(s->pool, c->kv_heads * runs, skl__prepare_task, pass);
    skl__attend_chunk(pass);
    skl__mean_null_mass(pass);
    skl__show(pass, "psi", pass->layer, s->psi, pass->n, 1);
    acts = skl__acts_of(pass, s->mixed, q_width);
    call.pass = pass;
    call.acts = &acts;
    skl__each_token(pass, skl__quantise_task, &call);
    skl__product_run(pass, &acts, &layer->output, s->output, c->width);
    skl__add_bias(pass, s->output, layer->output_bias, c->width);
    skl__show(pass, "attn_output", pass->layer, s->output, pass->n, c->width);
}

/* --- feed-forward --- */

static void skl__unit_task(void *arg, size_t t)
{
    const skl__row_call *call = (const skl__row_call *)arg;
    const skl_session *s = call->pass->s;
    const size_t ff = s->model->config.ff;

    call->pass->lanes->gated_unit(s->ffn_gate + t * ff, s->ffn_up + t * ff, ff, s->model->config.unit);
    skl__quantise_row(call->pass, call->acts, t);
}

/* output = ffn(hidden) */
static void skl__feed_forward(skl__pass *pass)
{
    skl_session *s = pass->s;
    const skl__config *c = &s->model->config;
    const skl__layer *layer = &s->model->layers[pass->layer];
    skl__acts acts = skl__norm_chunk(pass, &layer->ffn_norm);
    skl__products products;
    skl__row_call call;

    skl__show(pass, "ffn_input", pass->layer, s->hidden, pass->n, c->width);
    products.count = products.tiles = 0;
    skl__products_add(&products, &layer->ffn_gate, s->ffn_gate, c->ff);
    skl__products_add(&products, &layer->ffn_up, s->ffn_up, c->ff);
    skl__products_run(&products, pass, &acts, pass->n);
    acts = skl__acts_of(pass, s->ffn_gate, c->ff);
    call.pass = pass;
    call.acts = &acts;
    skl__each_token(pass, skl__unit_task, &call);
    skl__product_run(pass, &acts, &layer->ffn_down, s->output, c->width);
    skl__show(pass, "ffn_output", pass->layer, s->output, pass->n, c->width);
}

/* =====================================================================================================================
 * >>depth                                                                                                  Depth routing
 *
 * How sub-layers are connected. Plain residuals add up. Attention Residuals (2603.15031) keep the outputs, one by one or summed
 * per block, and let every sub-layer read a softmax mix of them; the router of the OASIS code reads a history of states with
 * an input-dependent query. Both reads are the softmax of >>lanes, over sources instead of tokens, with or without its null
 * class, and both may be coupled to the null mass psi of the attentions (2605.17887, 4.3).
 *
 * Sources of a token are contiguous, oldest first; 1 / rms of a source is computed once, when the source is complete. Where an
 * output goes and what the next sub-layer reads is noted here as a link, and done by the norm that follows.
 * ================================================================================================================== */

static float *skl__source(const skl__pass *pass, size_t t, size_t slot)
{
    const skl__depth *depth = &pass->s->depth;

    return depth->sources + (t * depth->slots + slot) * pass->s->model->config.width;
}

/* g_i -= beta (psi_i - mean psi): over all candidates, or over all but the embedding, whose logit stays.
 *   g, psi  [n] */
static void skl__couple(float *g, const float *psi, size_t n, float beta, skl__coupling coupling)
{
    const size_t first = coupling == SKL__BRANCHES ? 1 : 0;
    float mean = 0.0f;
    size_t i;

    if (coupling == SKL__UNCOUPLED || n <= first) return;
    for (i = first; i < n; i++) mean += psi[i];
    mean = skl__div(mean, (float)(n - first));
    for (i = first; i < n; i++) g[i] -= skl__mul(beta, psi[i] - mean);
}

/* AttnRes: g_i = score . c_i / rms(c_i): the sources are the rows of a matrix.        g  [n] */
static void skl__score_sources(const skl__pass *pass, const skl__read *read, size_t t, size_t n, float *g)
{
    const skl__depth *depth = &pass->s->depth;
    skl__matrix sources;
    size_t i;

    memset(&sources, 0, sizeof sources);
    sources.storage = SKL__ROWS_F32;
    sources.rows = n;
    sources.columns = pass->s->model->config.width;
    sources.stride = sources.columns * sizeof(float);
    sources.data = (const unsigned char *)skl__source(pass, t, 0);
    skl__small_product(pass, &sources, read->score, 1, g);
    for (i = 0; i < n; i++) g[i] = skl__mul(g[i], depth->inverse_rms[t * depth->slots + i]);
}

/* Router: g_i = (Q c_newest) . (K c_i) / sqrt(A) + recency i / (n - 1).        g  [n] */
static void skl__route_sources(const skl__pass *pass, const skl__read *read, size_t t, size_t n, float *g)
{
    const skl__depth *depth = &pass->s->depth;
    const size_t rank = read->q.rows;
    float *keys = depth->projected + t * (depth->slots + 1) * pass->s->model->read_rank, *query = keys + n * rank;
    const float scale = 1.0f / skl__sqrt((float)rank);
    size_t i;

    skl__small_product(pass, &read->k, skl__source(pass, t, 0), n, keys);
    skl__small_product(pass, &read->q, skl__source(pass, t, n - 1), 1, query);
    for (i = 0; i < n; i++)
        g[i] = skl__mul(pass->lanes->dot(query, keys + i * rank, rank), scale) +
               skl__mul(read->recency, skl__div((float)i, (float)(n > 1 ? n - 1 : 1)));
}

#define SKL__ROUTER_CLAMP 50.0f /* of router logits, after coupling; part of the format */

/* hidden = READ over the first n sources of a token; a single one is taken as it is. */
static void skl__read_token(const skl__pass *pass, const skl__read *read, size_t t, size_t n)
{
    const skl_session *s = pass->s;
    const skl__config *c = &s->model->config;
    const skl__depth *depth = &s->depth;
    float *g = depth->weights + t * depth->slots;
    size_t i;

    if (n == 1) {
        memcpy(s->hidden + t * c->width, skl__source(pass, t, 0), c->width * sizeof(float));
        return;
    }
    if (c->residual == SKL__ATTNRES) skl__score_sources(pass, read, t, n, g);
    else skl__route_sources(pass, read, t, n, g);
    skl__couple(g, depth->psi + t * depth->slots, n, read->beta, c->coupling);
    for (i = 0; c->residual == SKL__ROUTER && i < n; i++)
        g[i] = g[i] > SKL__ROUTER_CLAMP ? SKL__ROUTER_CLAMP : g[i] < -SKL__ROUTER_CLAMP ? -SKL__ROUTER_CLAMP : g[i];
    depth->null_mass[t] = pass->lanes->softmax(g, n, c->depth_softmax1 ? 0.0f : SKL__NO_NULL);
    pass->lanes->mix(s->hidden + t * c->width, skl__source(pass, t, 0), c->width, g, n, c->width);
}

/* Puts values of a token into a source.        values  [width] */
static void skl__deposit_token(const skl__pass *pass, size_t t, size_t slot, skl__deposit kind, const float *values)
{
    const skl_session *s = pass->s;
    const skl__config *c = &s->model->config;
    float *source = skl__source(pass, t, slot);

    if (kind != SKL__ADD_TO) memcpy(source, values, c->width * sizeof(float));
    else pass->lanes->add(source, values, c->width);
    if (kind == SKL__SET_WITH_HIDDEN) pass->lanes->add(source, s->hidden + t * c->width, c->width);
    if (c->residual == SKL__ATTNRES) {
        const float mean = skl__div(pass->lanes->dot(source, source, c->width), (float)c->width);
        s->depth.inverse_rms[t * s->depth.slots + slot] = 1.0f / skl__sqrt(mean + c->eps);
    }
}

/* What is noted, for one token. */
static void skl__link_token(const skl__pass *pass, size_t t)
{
    const skl__link *link = &pass->link;
    const size_t width = pass->s->model->config.width;
    float *hidden = pass->s->hidden + t * width, *output = pass->s->output + t * width;

    if (link->deposit == SKL__ADD_TO_HIDDEN) pass->lanes->add(hidden, output, width);
    else if (link->deposit != SKL__NO_DEPOSIT) skl__deposit_token(pass, t, link->slot, link->deposit, output);
    if (link->read) skl__read_token(pass, link->read, t, link->sources);
}

static void skl__show_read(const skl__pass *pass, size_t n)
{
    const skl__depth *depth = &pass->s->depth;
    size_t t;

    for (t = 0; t < pass->n; t++) {
        skl__pass one = *pass;
        one.start += t;
        skl__show(&one, "depth_weights", pass->layer, depth->weights + t * depth->slots, 1, n);
    }
    skl__show(pass, "depth_null", pass->layer, depth->null_mass, pass->n, 1);
}

/* What was noted is done for all tokens. */
static void skl__link_done(skl__pass *pass)
{
    if (pass->s->desc.probe && pass->link.read && pass->link.sources > 1) skl__show_read(pass, pass->link.sources);
    pass->link.deposit = SKL__NO_DEPOSIT;
    pass->link.read = NULL;
}

static void skl__note_deposit(skl__pass *pass, skl__deposit deposit, size_t slot)
{
    pass->link.deposit = deposit;
    pass->link.slot = slot;
}

static void skl__note_read(skl__pass *pass, const skl__read *read, size_t sources)
{
    pass->link.read = read;
    pass->link.sources = sources;
}

static void skl__link_task(void *arg, size_t t)
{
    skl__link_token((const skl__pass *)arg, t);
}

/* Does what is noted without a norm behind it. */
static void skl__settle(skl__pass *pass)
{
    skl__each_token(pass, skl__link_task, pass);
    skl__link_done(pass);
}

/* The psi that goes with a slot: that of this layer's attention, or with psi = NULL none (the embedding). */
static void skl__deposit_psi(const skl__pass *pass, size_t slot, const float *psi)
{
    const skl__depth *depth = &pass->s->depth;
    size_t t;

    for (t = 0; t < pass->n; t++) depth->psi[t * depth->slots + slot] = psi ? psi[t] : 0.0f;
}

/* psi of an open block sum: the mean over the attentions in it, kept as a running mean. */
static void skl__average_psi(const skl__pass *pass, size_t slot, size_t held)
{
    const skl__depth *depth = &pass->s->depth;
    size_t t;

    for (t = 0; t < pass->n; t++) {
        float *psi = &depth->psi[t * depth->slots + slot];
        *psi = held ? skl__div(skl__mul(*psi, (float)held) + pass->s->psi[t], (float)(held + 1)) : pass->s->psi[t];
    }
}

static void skl__layer_add(skl__pass *pass)
{
    skl__attention(pass);
    skl__note_deposit(pass, SKL__ADD_TO_HIDDEN, 0);
    skl__feed_forward(pass);
    skl__note_deposit(pass, SKL__ADD_TO_HIDDEN, 0);
}

/* Every output is a source. */
static void skl__layer_full(skl__pass *pass)
{
    const skl__layer *layer = &pass->s->model->layers[pass->layer];
    skl__depth *depth = &pass->s->depth;

    skl__note_read(pass, &layer->attn_read, depth->count);
    skl__attention(pass);
    skl__deposit_psi(pass, depth->count, pass->s->psi);
    skl__note_deposit(pass, SKL__SET, depth->count++);
    skl__note_read(pass, &layer->ffn_read, depth->count);
    skl__feed_forward(pass);
    skl__deposit_psi(pass, depth->count, pass->s->psi);
    skl__note_deposit(pass, SKL__SET, depth->count++);
}

/* The open sum is the last source; it is banked where a block begins. count includes it. */
static void skl__layer_block(skl__pass *pass)
{
    const skl__layer *layer = &pass->s->model->layers[pass->layer];
    skl__depth *depth = &pass->s->depth;
    const int bank = pass->layer % pass->s->model->config.block_size == 0;

    skl__note_read(pass, &layer->attn_read, depth->count);
    skl__attention(pass);
    if (bank) {
        depth->count++;
        depth->summed = 0;
    }
    skl__average_psi(pass, depth->count - 1, depth->summed++);
    skl__note_deposit(pass, bank ? SKL__SET : SKL__ADD_TO, depth->count - 1);
    skl__note_read(pass, &layer->ffn_read, depth->count);
    skl__feed_forward(pass);
    skl__note_deposit(pass, SKL__ADD_TO, depth->count - 1);
}

/* States, not outputs; the two transient candidates are seen by this layer only. hidden is the newest history entry. */
static void skl__layer_router(skl__pass *pass)
{
    const skl__layer *layer = &pass->s->model->layers[pass->layer];
    const size_t width = pass->s->model->config.width, next = pass->s->depth.count++;
    size_t t;

    skl__attention(pass);
    skl__deposit_psi(pass, next, pass->s->psi);
    skl__note_deposit(pass, SKL__SET_WITH_HIDDEN, next);
    skl__note_read(pass, &layer->attn_read, next + 1);
    skl__feed_forward(pass);
    skl__deposit_psi(pass, next + 1, pass->s->psi);
    skl__note_deposit(pass, SKL__SET_WITH_HIDDEN, next + 1);
    skl__note_read(pass, &layer->ffn_read, next + 2);
    skl__settle(pass);
    for (t = 0; t < pass->n; t++) skl__deposit_token(pass, t, next, SKL__SET, pass->s->hidden + t * width);
}

/* --- the whole --- */

/* cos and sin of every rotary pair at a position, in double up to the last rounding. Adjacent pairs want each value twice. */
static void skl__angles(const skl__pass *pass, size_t t)
{
    const skl_session *s = pass->s;
    const skl_model *model = s->model;
    const size_t n_rot = model->config.n_rot;
    float *cosine = s->cosine + t * n_rot, *sine = s->sine + t * n_rot;
    double sin_j, cos_j;
    size_t j;

    for (j = 0; j < n_rot / 2; j++) {
        skl__sincos(skl__mul64((double)(pass->start + t), model->frequencies[j]), &sin_j, &cos_j);
        sin_j *= (double)model->rope_magnitude;
        cos_j *= (double)model->rope_magnitude;
        if (model->config.architecture->rope_adjacent) {
            cosine[2 * j] = cosine[2 * j + 1] = (float)cos_j;
            sine[2 * j] = -(float)sin_j;
            sine[2 * j + 1] = (float)sin_j;
        } else {
            cosine[j] = (float)cos_j;
            sine[j] = (float)sin_j;
        }
    }
}

static void skl__begin_task(void *arg, size_t t)
{
    const skl__pass *pass = (const skl__pass *)arg;
    const skl_session *s = pass->s;

    pass->lanes->unpack_row(s->hidden + t * s->model->config.width, &s->model->embedding, (size_t)s->tokens[pass->start + t]);
    if (s->model->config.residual != SKL__ADD)
        skl__deposit_token(pass, t, 0, SKL__SET, s->hidden + t * s->model->config.width);
    skl__angles(pass, t);
}

/* hidden = what enters output_norm. Returns 0 if it was cancelled. */
static int skl__run_layers(skl__pass *pass)
{
    skl_session *s = pass->s;
    const skl__config *c = &s->model->config;
    skl__depth *depth = &s->depth;

    skl__each_token(pass, skl__begin_task, pass);
    skl__show(pass, "embedding", 0, s->hidden, pass->n, c->width);
    if (c->residual != SKL__ADD) {
        skl__deposit_psi(pass, 0, NULL);
        depth->count = 1;
        depth->summed = 0;
    }
    for (pass->layer = 0; pass->layer < c->layers; pass->layer++) {
        if (s->desc.cancel.stop && s->desc.cancel.stop(s->desc.cancel.user)) return 0;
        if (c->residual == SKL__ADD) skl__layer_add(pass);
        else if (c->residual == SKL__ROUTER) skl__layer_router(pass);
        else if (c->block_size == 0) skl__layer_full(pass);
        else skl__layer_block(pass);
    }
    if (c->residual == SKL__ATTNRES) skl__note_read(pass, &s->model->output_read, depth->count);
    skl__settle(pass);
    skl__show(pass, "output_input", c->layers, s->hidden, pass->n, c->width);
    return 1;
}

/* logits of the rows of the chunk that are wanted.        rows  [n] within the chunk, ascending    logits  [n][vocab] */
static int skl__run_head(skl__pass *pass, const size_t *rows, size_t n, float *logits)
{
    skl_session *s = pass->s;
    const skl__config *c = &s->model->config;
    skl__acts acts;
    size_t i;

    for (i = 0; i < n; i++)
        if (rows[i] != i) memmove(s->hidden + i * c->width, s->hidden + rows[i] * c->width, c->width * sizeof(float));
    pass->n = n;
    acts = skl__norm_chunk(pass, &s->model->output_norm);
    skl__show(pass, "output_norm", c->layers, s->normed, n, c->width);
    skl__product_run(pass, &acts, &s->model->head, logits, c->vocab);
    return skl__all_finite(logits, n * c->vocab);
}

/* A call of skl_eval, as the chunks see it. */
typedef struct skl__eval {
    size_t n;                          /* tokens of the call */
    const size_t *rows;                /* [n_rows] ascending, or NULL: the last n_rows */
    size_t n_rows;
    float *logits;                     /* [n_rows][vocab] */
} skl__eval;

static size_t skl__eval_row(const skl__eval *eval, size_t i)
{
    return eval->rows ? eval->rows[i] : eval->n - eval->n_rows + i;
}

/* One chunk: tokens [begin, begin + n) of the call, already stored; *done rows of logits have been made. */
static SKL__NOINLINE skl_status skl__eval_chunk(skl_session *s, const skl__eval *eval, size_t begin, size_t n, size_t *done)
{
    const size_t vocab = s->model->config.vocab;
    skl__pass pass;
    size_t wanted = 0, row;

    pass.s = s;
    pass.lanes = s->kernels->lanes;
    pass.n = n;
    pass.start = s->position;
    pass.layer = 0;
    pass.link.deposit = SKL__NO_DEPOSIT;
    pass.link.read = NULL;
    if (!skl__run_layers(&pass)) return skl__fail(&s->error, SKL_CANCELLED, SKL_NO_OFFSET, "", "evaluation was cancelled");
    while (*done + wanted < eval->n_rows && (row = skl__eval_row(eval, *done + wanted)) < begin + n)
        s->rows[wanted++] = row - begin;
    if (wanted && !skl__run_head(&pass, s->rows, wanted, eval->logits + *done * vocab))
        return skl__fail(&s->error, SKL_NOT_FINITE, SKL_NO_OFFSET, "logits",
                         "logits of a token between positions %lu and %lu are not finite", (unsigned long)s->position,
                         (unsigned long)(s->position + n - 1));
    *done += wanted;
    return SKL_OK;
}

static skl_status skl__eval_check(skl_session *s, const int32_t *tokens, const skl__eval *eval)
{
    size_t i;

    if (!tokens && eval->n) return skl__session_bad(&s->error, "tokens", "tokens must be given");
    if (eval->n > s->desc.context - s->position)
        return skl__fail(&s->error, SKL_CONTEXT_FULL, SKL_NO_OFFSET, "context",
                         "%lu tokens at position %lu do not fit a context of %lu",
                         (unsigned long)eval->n, (unsigned long)s->position, (unsigned long)s->desc.context);
    for (i = 0; i < eval->n; i++)
        if (tokens[i] < 0 || (size_t)tokens[i] >= s->model->config.vocab)
            return skl__fail(&s->error, SKL_BAD_ARGUMENT, SKL_NO_OFFSET, "tokens",
                             "token %ld for position %lu is not in the vocabulary of %lu", (long)tokens[i],
                             (unsigned long)(s->position + i), (unsigned long)s->model->config.vocab);
    if (eval->n_rows > eval->n || (eval->n_rows && !eval->logits))
        return skl__session_bad(&s->error, "rows", "more rows than tokens, or nowhere to put them");
    for (i = 0; eval->rows && i < eval->n_rows; i++)
        if (eval->rows[i] >= eval->n || (i && eval->rows[i] <= eval->rows[i - 1]))
            return skl__session_bad(&s->error, "rows", "rows must ascend and lie within the tokens");
    return SKL_OK;
}

static skl_status skl__eval_tokens(skl_session *s, const int32_t *tokens, const skl__eval *eval)
{
    const skl__fp_env env = skl__fp_begin();
    skl_status status = skl__eval_check(s, tokens, eval);
    size_t begin = 0, done = 0;

    while (status == SKL_OK && begin < eval->n) {
        const size_t n = eval->n - begin < s->desc.chunk ? eval->n - begin : s->desc.chunk;
        memmove(s->tokens + s->position, tokens + begin, n * sizeof *tokens); /* they may be the session's own */
        status = skl__eval_chunk(s, eval, begin, n, &done);
        if (status != SKL_OK) break;
        s->position += n;
        begin += n;
    }
    skl__fp_end(env);
    return status;
}

SKL_API skl_status skl_eval_rows(skl_session *session, const int32_t *tokens, size_t n, const size_t *rows, size_t n_rows,
                                 float *logits)
{
    skl__eval eval;

    if (!session) return SKL_BAD_ARGUMENT;
    eval.n = n;
    eval.rows = rows;
    eval.n_rows = n_rows;
    eval.logits = logits;
    if (!rows && n_rows && n_rows != n) return skl__session_bad(&session->error, "rows", "without rows, n_rows is n or 0");
    return skl__eval_tokens(session, tokens, &eval);
}

SKL_API skl_status skl_eval(skl_session *session, const int32_t *tokens, size_t n, float *logits)
{
    skl__eval eval;

    if (!session) return SKL_BAD_ARGUMENT;
    eval.n = n;
    eval.rows = NULL;
    eval.n_rows = logits && n ? 1 : 0;
    eval.logits = logits;
    return skl__eval_tokens(session, tokens, &eval);
}

SKL_API skl_status skl_session_sync(skl_session *session, const int32_t *tokens, size_t n, size_t *reused, float *logits)
{
    skl_status status;
    size_t common = 0, held;
    skl__eval eval;

    if (!session) return SKL_BAD_ARGUMENT;
    held = session->position;
    if (!tokens && n) return skl__session_bad(&session->error, "tokens", "tokens must be given");
    if (n > session->desc.context)
        return skl__fail(&session->error, SKL_CONTEXT_FULL, SKL_NO_OFFSET, "context", "%lu tokens do not fit a context of %lu",
                         (unsigned long)n, (unsigned long)session->desc.context);
    while (common < n && common < held && tokens[common] == session->tokens[common]) common++;
    if (common == n && n && logits) common--;
    eval.n = n - common;
    eval.rows = NULL;
    eval.n_rows = logits && n ? 1 : 0;
    eval.logits = logits;
    session->position = common;
    status = skl__eval_tokens(session, n ? tokens + common : tokens, &eval);
    if (status == SKL_BAD_ARGUMENT) session->position = held; /* refused before anything was forgotten */
    if (status == SKL_OK && reused) *reused = common;
    return status;
}

/* =====================================================================================================================
 * >>sampling                                                                                                    Sampling
 *
 * Candidates are kept in a heap by (logit, lower id first), so that top-k and top-p take only as many as they need. The
 * generator is PCG32 (O'Neill 2014), seeded through splitmix64; a draw takes 24 bits, so that it is the same in any float.
 * ================================================================================================================== */

typedef struct skl__candidate {
    float logit;
    int32_t token;
} skl__candidate;

struct skl_sampler {
    skl_sampler_desc desc;
    skl_allocator allocator;
    const skl__lane_kernels *lanes;
    uint64_t state;
    uint64_t stream;
    float *logits;                     /* [vocab] after the penalty, later probabilities of the candidates */
    skl__candidate *candidates;        /* [vocab] */
};

static uint64_t skl__splitmix(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint32_t skl__pcg(skl_sampler *s)
{
    const uint64_t old = s->state;
    const uint32_t shifted = (uint32_t)((old >> 18 ^ old) >> 27), turn = (uint32_t)(old >> 59);

    s->state = old * 6364136223846793005u + s->stream;
    return shifted >> turn | shifted << (-turn & 31u);
}

static skl_status skl__sampler_check(const skl_sampler_desc *desc, skl_error *error)
{
    if (!desc->vocab || desc->vocab > INT32_MAX)
        return skl__session_bad(error, "vocab", "the vocabulary size is missing or out of range");
    if (!skl__is_finite(desc->temperature) || desc->temperature < 0.0f)
        return skl__session_bad(error, "temperature", "it must be finite and not negative");
    if (!skl__is_finite(desc->top_p) || desc->top_p < 0.0f || desc->top_p > 1.0f)
        return skl__session_bad(error, "top_p", "it must lie in 0 .. 1");
    if (!skl__is_finite(desc->min_p) || desc->min_p < 0.0f || desc->min_p > 1.0f)
        return skl__session_bad(error, "min_p", "it must lie in 0 .. 1");
    if (!skl__is_finite(desc->repetition_penalty) || desc->repetition_penalty < 0.0f)
        return skl__session_bad(error, "repetition_penalty", "it must be finite and not negative");
    return SKL_OK;
}

SKL_API skl_status skl_sampler_open(skl_sampler **sampler, const skl_sampler_desc *given, skl_error *error)
{
    skl_sampler_desc desc;
    const skl__kernels *kernels;
    skl_allocator allocator;
    skl_sampler *s;
    uint64_t seed;

    if (!sampler || !given || skl__take_desc(&desc, sizeof desc, given, given->size))
        return skl__session_bad(error, "desc", "the sampler desc is missing or of an unknown size");
    SKL__TRY(skl__sampler_check(&desc, error));
    SKL__TRY(skl__take_allocator(&allocator, &desc.allocator, error));
    SKL__TRY(skl__choose_kernels(&kernels, SKL_ISA_DEFAULT, desc.isa_mask, error));
    s = (skl_sampler *)skl__alloc_array(&allocator, 1, sizeof *s);
    if (!s) return skl__fail(error, SKL_OUT_OF_MEMORY, SKL_NO_OFFSET, "", "no memory for a sampler");
    s->desc = desc;
    s->allocator = allocator;
    s->lanes = kernels->lanes;
    s->logits = (float *)skl__alloc_array(&allocator, desc.vocab, sizeof *s->logits);
    s->candidates = (skl__candidate *)skl__alloc_array(&allocator, desc.vocab, sizeof *s->candidates);
    seed = desc.seed;
    s->state = skl__splitmix(&seed);
    s->stream = skl__splitmix(&seed) | 1u;
    if (!s->logits || !s->candidates) {
        skl_sampler_close(s);
        return skl__fail(error, SKL_OUT_OF_MEMORY, SKL_NO_OFFSET, "", "no memory for a sampler of %lu tokens",
                         (unsigned long)desc.vocab);
    }
    *sampler = s;
    return SKL_OK;
}

SKL_API void skl_sampler_close(skl_sampler *sampler)
{
    skl_allocator allocator;

    if (!sampler) return;
    allocator = sampler->allocator;
    skl__free(&allocator, sampler->logits);
    skl__free(&allocator, sampler->candidates);
    skl__free(&allocator, sampler);
}

static int skl__candidate_above(const skl__candidate *a, const skl__candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->token < b->token);
}

static void skl__heap_sink(skl__candidate *heap, size_t root, size_t n)
{
    const skl__candidate moved = heap[root];
    size_t child;

    while ((child = 2 * root + 1) < n) {
        if (child + 1 < n && skl__candidate_above(&heap[child + 1], &heap[child])) child++;
        if (!skl__candidate_above(&heap[child], &moved)) break;
        heap[root] = heap[child];
        root = child;
    }
    heap[root] = moved;
}

/* Copies the logits, divides or multiplies those of recent tokens, each once, and checks what came out. */
static skl_status skl__penalise(skl_sampler *s, const float *logits, const int32_t *recent, size_t n_recent)
{
    const float penalty = s->desc.repetition_penalty;
    size_t i, finite = 0;

    memcpy(s->logits, logits, s->desc.vocab * sizeof *logits);
    for (i = 0; penalty != 0.0f && penalty != 1.0f && i < n_recent; i++) {
        const size_t token = (size_t)recent[i];
        const float logit = logits[token];
        s->logits[token] = logit > 0.0f ? skl__div(logit, penalty) : logit * penalty; /* from the original: repeats count once */
    }
    for (i = 0; i < s->desc.vocab; i++) {
        if (skl__is_finite(s->logits[i])) finite++;
        else if (skl__f32_to_bits(s->logits[i]) != 0xff800000u) return SKL_NOT_FINITE; /* anything but -infinity */
    }
    return finite ? SKL_OK : SKL_NOT_FINITE;
}

/* The n best candidates in order at the front of the list: how many there are after top-k, top-p and min-p; their probabilities,
 * not normalised, in s->logits. */
static size_t skl__shortlist(skl_sampler *s, float *mass)
{
    const size_t vocab = s->desc.vocab, most = s->desc.top_k && s->desc.top_k < vocab ? s->desc.top_k : vocab;
    skl__candidate *heap = s->candidates;
    size_t n, i, left = 0, kept;
    float total = 0.0f, sum = 0.0f;

    for (i = 0; i < vocab; i++) {
        if (!skl__is_finite(s->logits[i])) continue;
        heap[left].logit = s->logits[i];
        heap[left++].token = (int32_t)i;
    }
    for (i = left / 2; i-- > 0;) skl__heap_sink(heap, i, left);
    /* sort the best ones to the end of the list, best last */
    for (n = 0; n < most && left > 0; n++) {
        const skl__candidate best = heap[0];
        heap[0] = heap[--left];
        if (left) skl__heap_sink(heap, 0, left);
        heap[left] = best;
    }
    memmove(heap, heap + left, n * sizeof *heap); /* ascending: the best is heap[n - 1] */
    /* the difference first: logits over a tiny temperature would all be infinite */
    for (i = 0; i < n; i++) s->logits[i] = skl__div(heap[n - 1 - i].logit - heap[n - 1].logit, s->desc.temperature);
    s->lanes->exp(s->logits, n);
    for (i = 0; i < n; i++) total += s->logits[i];
    for (kept = 0; kept < n; kept++) {
        if (kept && s->logits[kept] < s->desc.min_p) break; /* relative to the best, whose weight is 1 */
        sum += s->logits[kept];
        if (s->desc.top_p > 0.0f && s->desc.top_p < 1.0f && sum >= skl__mul(s->desc.top_p, total)) {
            kept++;
            break;
        }
    }
    *mass = sum;
    for (i = 0; i < n / 2; i++) { /* best first, like the weights */
        const skl__candidate other = heap[i];
        heap[i] = heap[n - 1 - i];
        heap[n - 1 - i] = other;
    }
    return kept;
}

static int32_t skl__greedy(const skl_sampler *s)
{
    size_t best = 0, i;

    for (i = 1; i < s->desc.vocab; i++)
        if (s->logits[i] > s->logits[best]) best = i;
    return (int32_t)best;
}

static SKL__NOINLINE skl_status skl__sample(skl_sampler *s, const float *logits, const int32_t *recent, size_t n_recent,
                                            int32_t *token)
{
    float mass, draw;
    size_t n, i;

    SKL__TRY(skl__penalise(s, logits, recent, n_recent));
    if (s->desc.temperature == 0.0f) {
        *token = skl__greedy(s);
        return SKL_OK;
    }
    n = skl__shortlist(s, &mass);
    draw = skl__mul(skl__mul((float)(skl__pcg(s) >> 8), 1.0f / 16777216.0f), mass);
    for (i = 0; i + 1 < n; i++) {
        draw -= s->logits[i];
        if (draw < 0.0f) break;
    }
    *token = s->candidates[i].token;
    return SKL_OK;
}

SKL_API skl_status skl_sample(skl_sampler *sampler, const float *logits, const int32_t *recent, size_t n_recent, int32_t *token)
{
    skl__fp_env env;
    skl_status status;
    size_t i;

    if (!sampler || !logits || !token || (n_recent && !recent)) return SKL_BAD_ARGUMENT;
    for (i = 0; i < n_recent; i++)
        if (recent[i] < 0 || (size_t)recent[i] >= sampler->desc.vocab) return SKL_BAD_ARGUMENT;
    env = skl__fp_begin();
    status = skl__sample(sampler, logits, recent, n_recent, token);
    skl__fp_end(env);
    return status;
}

/* --- End of the implementation: the caller's own arithmetic options apply again --- */
#if defined(__clang__)
#if SKL__CLANG_PRECISE
#pragma float_control(pop)
#endif
#if SKL__I386
#pragma clang attribute pop
#endif
#elif defined(__GNUC__)
#pragma GCC diagnostic pop
#pragma GCC pop_options
#elif defined(_MSC_VER)
#pragma float_control(pop)
#endif

/* --- The private macros end here; functions and types cannot, but keep their prefix --- */
#undef SKL__IMPLEMENTING
#if !defined(SINKLESS_INTERNAL)
#undef SKL__MADV_DONTNEED
#undef SKL__MADV_POPULATE_WRITE
#undef SKL__THREADS
#undef SKL__X86
#undef SKL__ARM
#undef SKL__X86_KERNELS
#undef SKL__ARM_KERNELS
#undef SKL__TARGET
#undef SKL__INLINE
#undef SKL__UNUSED
#undef SKL__UNROLL
#undef SKL__NOINLINE
#undef SKL__FETCH
#undef SKL__I386
#undef SKL__CLANG_PRECISE
#undef SKL__ROUNDED
#undef SKL__DIVISOR
#undef SKL__HAS_FMA
#undef SKL__PRINTF
#undef SKL__DESC_SLACK
#undef SKL__READ_MAX
#undef SKL__RUN
#undef SKL__TILE
#undef SKL__EACH_BYTE
#undef SKL__UNROLL_4
#undef SKL__SINCE
#undef SKL__HAS_AVXVNNI
#undef SKL__HAS_AVX512VNNI
#undef SKL__HAS_AMX
#undef SKL__IN_ORDER
#undef SKL__AVX2
#undef SKL__AVXVNNI
#undef SKL__AVX512
#undef SKL__AVX512VNNI
#undef SKL__AMX
#undef SKL__BODY_256
#undef SKL__BODY_512
#undef SKL__PANEL_QUADS
#undef SKL__PANEL_UNITS
#undef SKL__STRIP_TOKENS
#undef SKL__STRIP_TILES
#undef SKL__BLOCK_TOKENS
#undef SKL__EACH_TOKEN
#undef SKL__EACH_VECTOR
#undef SKL__EACH_CELL
#undef SKL__STREAM_TILES
#undef SKL__STREAM_TOKENS
#undef SKL__STREAM_CELLS_512
#undef SKL__STREAM_CELLS_256
#undef SKL__STREAM_SUMS
#undef SKL__STREAM_AHEAD
#undef SKL__AMX_TOKENS
#undef SKL__AMX_UNIT
#undef SKL__ARM_HIDES
#undef SKL__ARM_82
#undef SKL__HAS_NEON_DOTPROD
#undef SKL__HAS_NEON_I8MM
#undef SKL__TARGET_DOTPROD
#undef SKL__TARGET_I8MM
#undef SKL__EACH
#undef SKL__PANEL_COLUMNS
#undef SKL__BLOCK_REGISTERS
#undef SKL__QUAD_NEON
#undef SKL__PASTE_
#undef SKL__PASTE
#undef SKL__LANE
#undef skl__v
#undef skl__vset
#undef skl__vload
#undef skl__vload_f16
#undef skl__vload_bf16
#undef skl__vload_i8
#undef skl__vload_i4
#undef skl__vload_u32
#undef skl__vload_s32
#undef skl__vstore
#undef skl__vstore_f16
#undef skl__vstore_i8
#undef skl__vadd
#undef skl__vsub
#undef skl__vmul
#undef skl__vdiv
#undef skl__vfma
#undef skl__vmin
#undef skl__vmax
#undef skl__vabs
#undef skl__vldexp
#undef skl__vless
#undef skl__vswap
#undef skl__vzip_low
#undef skl__vzip_high
#undef skl__vsum
#undef skl__vlargest
#undef skl__vsum16
#undef skl__vlargest16
#undef SKL__MAGIC
#undef SKL__SCALAR
#undef SKL__TARGET_AVX2
#undef SKL__TARGET_AVX512
#undef SKL__V_AVX2
#undef SKL__V_AVX512
#undef SKL__BLOCK
#undef SKL__QUERIES
#undef SKL__TOGETHER
#undef SKL__AHEAD
#undef SKL__STRIP
#undef SKL__NO_NULL
#undef SKL__HEAD_DIM_MAX
#undef SKL__MAX_CPUS
#undef SKL__KERNEL_ROWS
#undef SKL__THREAD_BYTES
#undef SKL__SPIN_QUIET
#undef SKL__SPIN_ALL
#undef SKL__SPIN_YIELD
#undef SKL__WORKER_STACK
#undef SKL__TRY
#undef SKL__REPACK_BYTES
#undef SKL__CHUNK
#undef SKL__TOKEN_RUN
#undef SKL__SHARE_TOKENS
#undef SKL__ITEM_TILES
#undef SKL__PRODUCTS
#undef SKL__ROUTER_CLAMP
#endif

#endif /* SINKLESS_IMPLEMENTATION */

/* =====================================================================================================================
 * >>licence
 *
 * MIT License
 *
 * Copyright (c) 2026 the sinkless authors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
 * files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy,
 * modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the
 * Software is furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
 * Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
 * WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
 * COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE,
 * ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 * ================================================================================================================== */
