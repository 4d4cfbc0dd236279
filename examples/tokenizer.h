/* tokenizer.h - text to token ids and back, from the metadata of a GGUF file                                        MIT
 *
 * Byte-level BPE (tokenizer.ggml.model "gpt2") and SentencePiece BPE ("llama"). Needs libc and the metadata part of
 * sinkless.h, so a file that holds nothing but a vocabulary is enough. Nothing is printed, nothing aborts, there is no
 * global state; a tokenizer is immutable once set up and any number of threads may use it.
 *
 *     #include "sinkless.h"
 *     #define TOKENIZER_IMPLEMENTATION                     // in one .c file of the program
 *     #include "tokenizer.h"
 *
 *     if (tok_open(&tok, gguf, message, sizeof message)) return puts(message);
 *     tok_encode_text(tok, text, length, TOK_BEGIN, ids, capacity, &count);
 *     tok_token_bytes(tok, id, 0, &bytes, &length);        // then through a tok_stream, to print whole characters only
 *     if (tok_is_stop(tok, id)) break;
 *
 * CONTENTS - every section is found by its tag
 *
 *     >>tok-api        what a program calls                >>tok-merge      merging, for both kinds of vocabulary
 *     >>tok-unicode    UTF-8 and character classes         >>tok-encode     segments, special tokens, BOS
 *     >>tok-words      pre-tokenisers                      >>tok-chat       chat templates
 *     >>tok-lookup     token and merge lookup              >>tok-decode     queries, bytes of tokens, streaming
 *     >>tok-load       reading and checking metadata
 */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#ifndef TOK_API
#if !defined(TOKENIZER_STATIC)
#define TOK_API extern
#elif defined(__GNUC__)
#define TOK_API static __attribute__((unused))
#else
#define TOK_API static
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* =====================================================================================================================
 * >>tok-api                                                                                        What a program calls
 *
 * All text is counted bytes and may contain NUL. Output goes to buffers of the caller; *count is always the full number
 * needed, so that a call with capacity 0 measures.
 * ================================================================================================================== */

typedef enum tok_status {
    TOK_OK = 0,
    TOK_BAD_ARGUMENT,  /* a null pointer, an id beyond the vocabulary, a text of 4 GiB or more */
    TOK_OUT_OF_MEMORY,
    TOK_BAD_FILE,      /* the tokenizer metadata is missing or contradicts itself */
    TOK_UNSUPPORTED,   /* a tokenizer model or pre-tokeniser that is not implemented here */
    TOK_NO_ROOM,       /* capacity is below *count; what fits has been written */
    TOK_NO_TOKEN       /* the text has a byte for which the vocabulary has no token, not even an unknown one */
} tok_status;

/* Short English name of a status; never NULL. */
TOK_API const char *tok_status_string(tok_status status);

typedef struct tok_tokenizer tok_tokenizer;

/* Reads and checks the vocabulary; gguf may be closed afterwards. On failure *tokenizer is NULL and message, if not
 * NULL, holds one sentence. Errors: TOK_BAD_FILE, TOK_UNSUPPORTED, TOK_OUT_OF_MEMORY, TOK_BAD_ARGUMENT. */
TOK_API tok_status tok_open(tok_tokenizer **tokenizer, const struct skl_gguf *gguf, char *message, size_t message_size);
TOK_API void tok_close(tok_tokenizer *tokenizer); /* NULL is fine */

TOK_API size_t tok_vocab_size(const tok_tokenizer *tokenizer); /* tokens in the vocabulary */
TOK_API int32_t tok_bos(const tok_tokenizer *tokenizer);       /* beginning of sequence; -1 if there is none */
TOK_API int32_t tok_eos(const tok_tokenizer *tokenizer);       /* end of sequence; -1 if there is none */
TOK_API int tok_adds_bos(const tok_tokenizer *tokenizer);      /* whether a sequence is expected to begin with BOS */

/* Whether id ends an answer. Stops are a set: the ids that the metadata names (eos, eot, eom), every token whose text
 * is a known end of turn, and what tok_add_stop added. Ids beyond the vocabulary are no stops. */
TOK_API int tok_is_stop(const tok_tokenizer *tokenizer, int32_t id);
/* Adds a stop, before other threads use the tokenizer. Errors: TOK_BAD_ARGUMENT. */
TOK_API tok_status tok_add_stop(tok_tokenizer *tokenizer, int32_t id);
/* Whether id is a control token: it comes from scaffold only, never from content, and renders as nothing. */
TOK_API int tok_is_control(const tok_tokenizer *tokenizer, int32_t id);

/* A piece of a text. Control tokens are recognised in scaffold (what the program or a template writes), never in
 * content (what users, files and models write), and never across the end of a segment. Otherwise the segments are one
 * text: where they meet makes no difference to the ids. */
typedef struct tok_segment {
    const char *text;  /* [length] UTF-8; invalid bytes are kept as they are */
    size_t length;
    int scaffold;      /* non-zero: scaffold; zero: content */
} tok_segment;

typedef enum tok_flags {
    TOK_BEGIN = 1,     /* the ids begin a sequence: BOS first, if the model expects it and the text does not bring it */
    TOK_ANSWER = 2     /* tok_encode_chat: open the turn of the assistant at the end */
} tok_flags;

/* Encodes segments[0..segment_count) into ids [capacity]; flags is 0 or TOK_BEGIN. Time is O(n log n) and working
 * memory O(n), whatever the text. Errors: TOK_NO_ROOM, TOK_NO_TOKEN, TOK_OUT_OF_MEMORY, TOK_BAD_ARGUMENT. */
TOK_API tok_status tok_encode(const tok_tokenizer *tokenizer, const tok_segment *segments, size_t segment_count,
                              int flags, int32_t *ids, size_t capacity, size_t *count);

/* The same for a single piece of content. */
TOK_API tok_status tok_encode_text(const tok_tokenizer *tokenizer, const char *text, size_t length, int flags,
                                   int32_t *ids, size_t capacity, size_t *count);

/* How conversations are written, detected from tokenizer.chat_template. The first two are written plainly: the texts,
 * one below the other, without roles. A program should say so when the template is unknown. */
typedef enum tok_template {
    TOK_TEMPLATE_NONE,     /* the file has no template */
    TOK_TEMPLATE_UNKNOWN,  /* the file has one that is not implemented here */
    TOK_TEMPLATE_CHATML,   /* <|im_start|>role ... <|im_end|> */
    TOK_TEMPLATE_LLAMA3    /* <|start_header_id|>role<|end_header_id|> ... <|eot_id|> */
} tok_template;

TOK_API tok_template tok_template_kind(const tok_tokenizer *tokenizer);
TOK_API const char *tok_template_string(tok_template kind); /* "chatml"; never NULL */

typedef struct tok_message {
    const char *role;  /* "system", "user", "assistant"; NUL-terminated, encoded as content */
    const char *text;  /* [length] encoded as content */
    size_t length;
} tok_message;

/* Encodes a conversation, or a part of one; flags are tok_flags. Errors as for tok_encode. */
TOK_API tok_status tok_encode_chat(const tok_tokenizer *tokenizer, const tok_message *messages, size_t message_count,
                                   int flags, int32_t *ids, size_t capacity, size_t *count);

/* The bytes that a token stands for, often not whole characters; valid until tok_close. Control tokens give no bytes
 * unless show_control is non-zero. Errors: TOK_BAD_ARGUMENT. */
TOK_API tok_status tok_token_bytes(const tok_tokenizer *tokenizer, int32_t id, int show_control, const char **bytes,
                                   size_t *length);

/* The text of ids[0..id_count) into text [capacity], not NUL-terminated: the bytes of all tokens, without the blank
 * that a SentencePiece vocabulary puts before the text. Errors: TOK_NO_ROOM, TOK_BAD_ARGUMENT. */
TOK_API tok_status tok_decode(const tok_tokenizer *tokenizer, const int32_t *ids, size_t id_count, char *text,
                              size_t capacity, size_t *count);

/* Turns a stream of bytes into a stream of whole characters. Begins zero-initialised; holds back at most 3 bytes, the
 * beginning of a character. What can be no part of a character becomes U+FFFD at once. */
typedef struct tok_stream {
    unsigned char held[4]; /* [held_count] used */
    unsigned held_count;
} tok_stream;

/* Room that tok_stream_push never exceeds for this many bytes. */
#define TOK_STREAM_ROOM(length) (((size_t)(length) + 1) * 3)

/* Takes bytes [length], gives whole characters [*count] of valid UTF-8. TOK_NO_ROOM: nothing was taken. */
TOK_API tok_status tok_stream_push(tok_stream *stream, const char *bytes, size_t length, char *text, size_t capacity,
                                   size_t *count);
/* Ends the stream: a character that was never finished becomes U+FFFD (3 bytes at most). The stream is then as new. */
TOK_API tok_status tok_stream_flush(tok_stream *stream, char *text, size_t capacity, size_t *count);

#ifdef __cplusplus
}
#endif

#endif /* TOKENIZER_H */

/* ================================================================================================================== */
#if defined(TOKENIZER_IMPLEMENTATION) && !defined(TOKENIZER_IMPLEMENTED)
#define TOKENIZER_IMPLEMENTED

#include <stdarg.h>
#include <stdio.h> /* vsnprintf */
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* =====================================================================================================================
 * >>tok-unicode                                                                             UTF-8 and character classes
 *
 * Pre-tokenisers ask four things of a character: is it a letter (category L), a number (N), a mark (M) or white space.
 * The table lists the code points at which the answer changes. Bytes that are no UTF-8 count as a character of their
 * own, of class OTHER, so that every byte string has ids and comes back unchanged.
 * ================================================================================================================== */

enum { TOK__OTHER, TOK__LETTER, TOK__NUMBER, TOK__MARK, TOK__SPACE, TOK__END };

/* Each entry: first code point * 8 + class of the range up to the next entry. */
static const uint32_t tok__class_table[] = {
/* generated by make_unicode.py: begin (UnicodeData-15.1.0) */
0x0,0x4c,0x70,0x104,0x108,0x182,0x1d0,0x209,0x2d8,0x309,0x3d8,0x42c,0x430,0x504,0x508,0x551,0x558,0x592,0x5a0,0x5a9,
0x5b0,0x5ca,0x5d1,0x5d8,0x5e2,0x5f8,0x601,0x6b8,0x6c1,0x7b8,0x7c1,0x1610,0x1631,0x1690,0x1701,0x1728,0x1761,0x1768,
0x1771,0x1778,0x1803,0x1b81,0x1ba8,0x1bb1,0x1bc0,0x1bd1,0x1bf0,0x1bf9,0x1c00,0x1c31,0x1c38,0x1c41,0x1c58,0x1c61,0x1c68,
0x1c71,0x1d10,0x1d19,0x1fb0,0x1fb9,0x2410,0x241b,0x2451,0x2980,0x2989,0x2ab8,0x2ac9,0x2ad0,0x2b01,0x2c48,0x2c8b,0x2df0,
0x2dfb,0x2e00,0x2e0b,0x2e18,0x2e23,0x2e30,0x2e3b,0x2e40,0x2e81,0x2f58,0x2f79,0x2f98,0x3083,0x30d8,0x3101,0x325b,0x3302,
0x3350,0x3371,0x3383,0x3389,0x36a0,0x36a9,0x36b3,0x36e8,0x36fb,0x3729,0x373b,0x3748,0x3753,0x3771,0x3782,0x37d1,0x37e8,
0x37f9,0x3800,0x3881,0x388b,0x3891,0x3983,0x3a58,0x3a69,0x3d33,0x3d89,0x3d90,0x3e02,0x3e51,0x3f5b,0x3fa1,0x3fb0,0x3fd1,
0x3fd8,0x3feb,0x3ff0,0x4001,0x40b3,0x40d1,0x40db,0x4121,0x412b,0x4141,0x414b,0x4170,0x4201,0x42cb,0x42e0,0x4301,0x4358,
0x4381,0x4440,0x4449,0x4478,0x44c3,0x4501,0x4653,0x4710,0x471b,0x4821,0x49d3,0x49e9,0x49f3,0x4a81,0x4a8b,0x4ac1,0x4b13,
0x4b20,0x4b32,0x4b80,0x4b89,0x4c0b,0x4c20,0x4c29,0x4c68,0x4c79,0x4c88,0x4c99,0x4d48,0x4d51,0x4d88,0x4d91,0x4d98,0x4db1,
0x4dd0,0x4de3,0x4de9,0x4df3,0x4e28,0x4e3b,0x4e48,0x4e5b,0x4e71,0x4e78,0x4ebb,0x4ec0,0x4ee1,0x4ef0,0x4ef9,0x4f13,0x4f20,
0x4f32,0x4f81,0x4f90,0x4fa2,0x4fd0,0x4fe1,0x4fe8,0x4ff3,0x4ff8,0x500b,0x5020,0x5029,0x5058,0x5079,0x5088,0x5099,0x5148,
0x5151,0x5188,0x5191,0x51a0,0x51a9,0x51b8,0x51c1,0x51d0,0x51e3,0x51e8,0x51f3,0x5218,0x523b,0x5248,0x525b,0x5270,0x528b,
0x5290,0x52c9,0x52e8,0x52f1,0x52f8,0x5332,0x5383,0x5391,0x53ab,0x53b0,0x540b,0x5420,0x5429,0x5470,0x5479,0x5490,0x5499,
0x5548,0x5551,0x5588,0x5591,0x55a0,0x55a9,0x55d0,0x55e3,0x55e9,0x55f3,0x5630,0x563b,0x5650,0x565b,0x5670,0x5681,0x5688,
0x5701,0x5713,0x5720,0x5732,0x5780,0x57c9,0x57d3,0x5800,0x580b,0x5820,0x5829,0x5868,0x5879,0x5888,0x5899,0x5948,0x5951,
0x5988,0x5991,0x59a0,0x59a9,0x59d0,0x59e3,0x59e9,0x59f3,0x5a28,0x5a3b,0x5a48,0x5a5b,0x5a70,0x5aab,0x5ac0,0x5ae1,0x5af0,
0x5af9,0x5b13,0x5b20,0x5b32,0x5b80,0x5b89,0x5b92,0x5bc0,0x5c13,0x5c19,0x5c20,0x5c29,0x5c58,0x5c71,0x5c88,0x5c91,0x5cb0,
0x5cc9,0x5cd8,0x5ce1,0x5ce8,0x5cf1,0x5d00,0x5d19,0x5d28,0x5d41,0x5d58,0x5d71,0x5dd0,0x5df3,0x5e18,0x5e33,0x5e48,0x5e53,
0x5e70,0x5e81,0x5e88,0x5ebb,0x5ec0,0x5f32,0x5f98,0x6003,0x6029,0x6068,0x6071,0x6088,0x6091,0x6148,0x6151,0x61d0,0x61e3,
0x61e9,0x61f3,0x6228,0x6233,0x6248,0x6253,0x6270,0x62ab,0x62b8,0x62c1,0x62d8,0x62e9,0x62f0,0x6301,0x6313,0x6320,0x6332,
0x6380,0x63c2,0x63f8,0x6401,0x640b,0x6420,0x6429,0x6468,0x6471,0x6488,0x6491,0x6548,0x6551,0x65a0,0x65a9,0x65d0,0x65e3,
0x65e9,0x65f3,0x6628,0x6633,0x6648,0x6653,0x6670,0x66ab,0x66b8,0x66e9,0x66f8,0x6701,0x6713,0x6720,0x6732,0x6780,0x6789,
0x679b,0x67a0,0x6803,0x6821,0x6868,0x6871,0x6888,0x6891,0x69db,0x69e9,0x69f3,0x6a28,0x6a33,0x6a48,0x6a53,0x6a71,0x6a78,
0x6aa1,0x6abb,0x6ac2,0x6af9,0x6b13,0x6b20,0x6b32,0x6bc8,0x6bd1,0x6c00,0x6c0b,0x6c20,0x6c29,0x6cb8,0x6cd1,0x6d90,0x6d99,
0x6de0,0x6de9,0x6df0,0x6e01,0x6e38,0x6e53,0x6e58,0x6e7b,0x6ea8,0x6eb3,0x6eb8,0x6ec3,0x6f00,0x6f32,0x6f80,0x6f93,0x6fa0,
0x7009,0x718b,0x7191,0x71a3,0x71d8,0x7201,0x723b,0x7278,0x7282,0x72d0,0x7409,0x7418,0x7421,0x7428,0x7431,0x7458,0x7461,
0x7520,0x7529,0x7530,0x7539,0x758b,0x7591,0x75a3,0x75e9,0x75f0,0x7601,0x7628,0x7631,0x7638,0x7643,0x7678,0x7682,0x76d0,
0x76e1,0x7700,0x7801,0x7808,0x78c3,0x78d0,0x7902,0x79a0,0x79ab,0x79b0,0x79bb,0x79c0,0x79cb,0x79d0,0x79f3,0x7a01,0x7a40,
0x7a49,0x7b68,0x7b8b,0x7c28,0x7c33,0x7c41,0x7c6b,0x7cc0,0x7ccb,0x7de8,0x7e33,0x7e38,0x8001,0x815b,0x81f9,0x8202,0x8250,
0x8281,0x82b3,0x82d1,0x82f3,0x8309,0x8313,0x8329,0x833b,0x8371,0x838b,0x83a9,0x8413,0x8471,0x847b,0x8482,0x84d3,0x84f0,
0x8501,0x8630,0x8639,0x8640,0x8669,0x8670,0x8681,0x87d8,0x87e1,0x9248,0x9251,0x9270,0x9281,0x92b8,0x92c1,0x92c8,0x92d1,
0x92f0,0x9301,0x9448,0x9451,0x9470,0x9481,0x9588,0x9591,0x95b0,0x95c1,0x95f8,0x9601,0x9608,0x9611,0x9630,0x9641,0x96b8,
0x96c1,0x9888,0x9891,0x98b0,0x98c1,0x9ad8,0x9aeb,0x9b00,0x9b4a,0x9be8,0x9c01,0x9c80,0x9d01,0x9fb0,0x9fc1,0x9ff0,0xa009,
0xb368,0xb379,0xb404,0xb409,0xb4d8,0xb501,0xb758,0xb772,0xb789,0xb7c8,0xb801,0xb893,0xb8b0,0xb8f9,0xb993,0xb9a8,0xba01,
0xba93,0xbaa0,0xbb01,0xbb68,0xbb71,0xbb88,0xbb93,0xbba0,0xbc01,0xbda3,0xbea0,0xbeb9,0xbec0,0xbee1,0xbeeb,0xbef0,0xbf02,
0xbf50,0xbf82,0xbfd0,0xc05b,0xc070,0xc07b,0xc082,0xc0d0,0xc101,0xc3c8,0xc401,0xc42b,0xc439,0xc54b,0xc551,0xc558,0xc581,
0xc7b0,0xc801,0xc8f8,0xc903,0xc960,0xc983,0xc9e0,0xca32,0xca81,0xcb70,0xcb81,0xcba8,0xcc01,0xcd60,0xcd81,0xce50,0xce82,
0xced8,0xd001,0xd0bb,0xd0e0,0xd101,0xd2ab,0xd2f8,0xd303,0xd3e8,0xd3fb,0xd402,0xd450,0xd482,0xd4d0,0xd539,0xd540,0xd583,
0xd678,0xd803,0xd829,0xd9a3,0xda29,0xda68,0xda82,0xdad0,0xdb5b,0xdba0,0xdc03,0xdc19,0xdd0b,0xdd71,0xdd82,0xddd1,0xdf33,
0xdfa0,0xe001,0xe123,0xe1c0,0xe202,0xe250,0xe269,0xe282,0xe2d1,0xe3f0,0xe401,0xe448,0xe481,0xe5d8,0xe5e9,0xe600,0xe683,
0xe698,0xe6a3,0xe749,0xe76b,0xe771,0xe7a3,0xe7a9,0xe7bb,0xe7d1,0xe7d8,0xe801,0xee03,0xf001,0xf8b0,0xf8c1,0xf8f0,0xf901,
0xfa30,0xfa41,0xfa70,0xfa81,0xfac0,0xfac9,0xfad0,0xfad9,0xfae0,0xfae9,0xfaf0,0xfaf9,0xfbf0,0xfc01,0xfda8,0xfdb1,0xfde8,
0xfdf1,0xfdf8,0xfe11,0xfe28,0xfe31,0xfe68,0xfe81,0xfea0,0xfeb1,0xfee0,0xff01,0xff68,0xff91,0xffa8,0xffb1,0xffe8,0x10004,
0x10058,0x10144,0x10150,0x1017c,0x10180,0x102fc,0x10300,0x10382,0x10389,0x10390,0x103a2,0x103d0,0x103f9,0x10402,0x10450,
0x10481,0x104e8,0x10683,0x10788,0x10811,0x10818,0x10839,0x10840,0x10851,0x108a0,0x108a9,0x108b0,0x108c9,0x108f0,0x10921,
0x10928,0x10931,0x10938,0x10941,0x10948,0x10951,0x10970,0x10979,0x109d0,0x109e1,0x10a00,0x10a29,0x10a50,0x10a71,0x10a78,
0x10a82,0x10c19,0x10c2a,0x10c50,0x12302,0x124e0,0x12752,0x12800,0x13bb2,0x13ca0,0x16001,0x16728,0x16759,0x1677b,0x16791,
0x167a0,0x167ea,0x167f0,0x16801,0x16930,0x16939,0x16940,0x16969,0x16970,0x16981,0x16b40,0x16b79,0x16b80,0x16bfb,0x16c01,
0x16cb8,0x16d01,0x16d38,0x16d41,0x16d78,0x16d81,0x16db8,0x16dc1,0x16df8,0x16e01,0x16e38,0x16e41,0x16e78,0x16e81,0x16eb8,
0x16ec1,0x16ef8,0x16f03,0x17000,0x17179,0x17180,0x18004,0x18008,0x18029,0x1803a,0x18040,0x1810a,0x18153,0x18180,0x18189,
0x181b0,0x181c2,0x181d9,0x181e8,0x18209,0x184b8,0x184cb,0x184d8,0x184e9,0x18500,0x18509,0x187d8,0x187e1,0x18800,0x18829,
0x18980,0x18989,0x18c78,0x18c92,0x18cb0,0x18d01,0x18e00,0x18f81,0x19000,0x19102,0x19150,0x19242,0x19280,0x1928a,0x19300,
0x19402,0x19450,0x1958a,0x19600,0x1a001,0x26e00,0x27001,0x52468,0x52681,0x527f0,0x52801,0x53068,0x53081,0x53102,0x53151,
0x53160,0x53201,0x5337b,0x53398,0x533a3,0x533f0,0x533f9,0x534f3,0x53501,0x53732,0x53783,0x53790,0x538b9,0x53900,0x53911,
0x53c48,0x53c59,0x53e58,0x53e81,0x53e90,0x53e99,0x53ea0,0x53ea9,0x53ed0,0x53f91,0x54013,0x54019,0x54033,0x54039,0x5405b,
0x54061,0x5411b,0x54140,0x54163,0x54168,0x54182,0x541b0,0x54201,0x543a0,0x54403,0x54411,0x545a3,0x54630,0x54682,0x546d0,
0x54703,0x54791,0x547c0,0x547d9,0x547e0,0x547e9,0x547fb,0x54802,0x54851,0x54933,0x54970,0x54981,0x54a3b,0x54aa0,0x54b01,
0x54be8,0x54c03,0x54c21,0x54d9b,0x54e08,0x54e79,0x54e82,0x54ed0,0x54f01,0x54f2b,0x54f31,0x54f82,0x54fd1,0x54ff8,0x55001,
0x5514b,0x551b8,0x55201,0x5521b,0x55221,0x55263,0x55270,0x55282,0x552d0,0x55301,0x553b8,0x553d1,0x553db,0x553f1,0x55583,
0x55589,0x55593,0x555a9,0x555bb,0x555c9,0x555f3,0x55601,0x5560b,0x55611,0x55618,0x556d9,0x556f0,0x55701,0x5575b,0x55780,
0x55791,0x557ab,0x557b8,0x55809,0x55838,0x55849,0x55878,0x55889,0x558b8,0x55901,0x55938,0x55941,0x55978,0x55981,0x55ad8,
0x55ae1,0x55b50,0x55b81,0x55f1b,0x55f58,0x55f63,0x55f70,0x55f82,0x55fd0,0x56001,0x6bd20,0x6bd81,0x6be38,0x6be59,0x6bfe0,
0x7c801,0x7d370,0x7d381,0x7d6d0,0x7d801,0x7d838,0x7d899,0x7d8c0,0x7d8e9,0x7d8f3,0x7d8f9,0x7d948,0x7d951,0x7d9b8,0x7d9c1,
0x7d9e8,0x7d9f1,0x7d9f8,0x7da01,0x7da10,0x7da19,0x7da28,0x7da31,0x7dd90,0x7de99,0x7e9f0,0x7ea81,0x7ec80,0x7ec91,0x7ee40,
0x7ef81,0x7efe0,0x7f003,0x7f080,0x7f103,0x7f180,0x7f381,0x7f3a8,0x7f3b1,0x7f7e8,0x7f882,0x7f8d0,0x7f909,0x7f9d8,0x7fa09,
0x7fad8,0x7fb31,0x7fdf8,0x7fe11,0x7fe40,0x7fe51,0x7fe80,0x7fe91,0x7fec0,0x7fed1,0x7fee8,0x80001,0x80060,0x80069,0x80138,
0x80141,0x801d8,0x801e1,0x801f0,0x801f9,0x80270,0x80281,0x802f0,0x80401,0x807d8,0x8083a,0x809a0,0x80a02,0x80bc8,0x80c52,
0x80c60,0x80feb,0x80ff0,0x81401,0x814e8,0x81501,0x81688,0x81703,0x8170a,0x817e0,0x81801,0x81902,0x81920,0x81969,0x81a0a,
0x81a11,0x81a52,0x81a58,0x81a81,0x81bb3,0x81bd8,0x81c01,0x81cf0,0x81d01,0x81e20,0x81e41,0x81e80,0x81e8a,0x81eb0,0x82001,
0x824f0,0x82502,0x82550,0x82581,0x826a0,0x826c1,0x827e0,0x82801,0x82940,0x82981,0x82b20,0x82b81,0x82bd8,0x82be1,0x82c58,
0x82c61,0x82c98,0x82ca1,0x82cb0,0x82cb9,0x82d10,0x82d19,0x82d90,0x82d99,0x82dd0,0x82dd9,0x82de8,0x83001,0x839b8,0x83a01,
0x83ab0,0x83b01,0x83b40,0x83c01,0x83c30,0x83c39,0x83d88,0x83d91,0x83dd8,0x84001,0x84030,0x84041,0x84048,0x84051,0x841b0,
0x841b9,0x841c8,0x841e1,0x841e8,0x841f9,0x842b0,0x842c2,0x84301,0x843b8,0x843ca,0x84401,0x844f8,0x8453a,0x84580,0x84701,
0x84798,0x847a1,0x847b0,0x847da,0x84801,0x848b2,0x848e0,0x84901,0x849d0,0x84c01,0x84dc0,0x84de2,0x84df1,0x84e02,0x84e80,
0x84e92,0x85001,0x8500b,0x85020,0x8502b,0x85038,0x85063,0x85081,0x850a0,0x850a9,0x850c0,0x850c9,0x851b0,0x851c3,0x851d8,
0x851fb,0x85202,0x85248,0x85301,0x853ea,0x853f8,0x85401,0x854ea,0x85500,0x85601,0x85640,0x85649,0x8572b,0x85738,0x8575a,
0x85780,0x85801,0x859b0,0x85a01,0x85ab0,0x85ac2,0x85b01,0x85b98,0x85bc2,0x85c01,0x85c90,0x85d4a,0x85d80,0x86001,0x86248,
0x86401,0x86598,0x86601,0x86798,0x867d2,0x86801,0x86923,0x86940,0x86982,0x869d0,0x87302,0x873f8,0x87401,0x87550,0x8755b,
0x87568,0x87581,0x87590,0x877eb,0x87801,0x878ea,0x87939,0x87940,0x87981,0x87a33,0x87a8a,0x87aa8,0x87b81,0x87c13,0x87c30,
0x87d81,0x87e2a,0x87e60,0x87f01,0x87fb8,0x88003,0x88019,0x881c3,0x88238,0x88292,0x88383,0x88389,0x8839b,0x883a9,0x883b0,
0x883fb,0x88419,0x88583,0x885d8,0x88613,0x88618,0x88681,0x88748,0x88782,0x887d0,0x88803,0x88819,0x8893b,0x889a8,0x889b2,
0x88a00,0x88a21,0x88a2b,0x88a39,0x88a40,0x88a81,0x88b9b,0x88ba0,0x88bb1,0x88bb8,0x88c03,0x88c19,0x88d9b,0x88e09,0x88e28,
0x88e4b,0x88e68,0x88e73,0x88e82,0x88ed1,0x88ed8,0x88ee1,0x88ee8,0x88f0a,0x88fa8,0x89001,0x89090,0x89099,0x89163,0x891c0,
0x891f3,0x891f9,0x8920b,0x89210,0x89401,0x89438,0x89441,0x89448,0x89451,0x89470,0x89479,0x894f0,0x894f9,0x89548,0x89581,
0x896fb,0x89758,0x89782,0x897d0,0x89803,0x89820,0x89829,0x89868,0x89879,0x89888,0x89899,0x89948,0x89951,0x89988,0x89991,
0x899a0,0x899a9,0x899d0,0x899db,0x899e9,0x899f3,0x89a28,0x89a3b,0x89a48,0x89a5b,0x89a70,0x89a81,0x89a88,0x89abb,0x89ac0,
0x89ae9,0x89b13,0x89b20,0x89b33,0x89b68,0x89b83,0x89ba8,0x8a001,0x8a1ab,0x8a239,0x8a258,0x8a282,0x8a2d0,0x8a2f3,0x8a2f9,
0x8a310,0x8a401,0x8a583,0x8a621,0x8a630,0x8a639,0x8a640,0x8a682,0x8a6d0,0x8ac01,0x8ad7b,0x8adb0,0x8adc3,0x8ae08,0x8aec1,
0x8aee3,0x8aef0,0x8b001,0x8b183,0x8b208,0x8b221,0x8b228,0x8b282,0x8b2d0,0x8b401,0x8b55b,0x8b5c1,0x8b5c8,0x8b602,0x8b650,
0x8b801,0x8b8d8,0x8b8eb,0x8b960,0x8b982,0x8b9e0,0x8ba01,0x8ba38,0x8c001,0x8c163,0x8c1d8,0x8c501,0x8c702,0x8c798,0x8c7f9,
0x8c838,0x8c849,0x8c850,0x8c861,0x8c8a0,0x8c8a9,0x8c8b8,0x8c8c1,0x8c983,0x8c9b0,0x8c9bb,0x8c9c8,0x8c9db,0x8c9f9,0x8ca03,
0x8ca09,0x8ca13,0x8ca20,0x8ca82,0x8cad0,0x8cd01,0x8cd40,0x8cd51,0x8ce8b,0x8cec0,0x8ced3,0x8cf09,0x8cf10,0x8cf19,0x8cf23,
0x8cf28,0x8d001,0x8d00b,0x8d059,0x8d19b,0x8d1d1,0x8d1db,0x8d1f8,0x8d23b,0x8d240,0x8d281,0x8d28b,0x8d2e1,0x8d453,0x8d4d0,
0x8d4e9,0x8d4f0,0x8d581,0x8d7c8,0x8e001,0x8e048,0x8e051,0x8e17b,0x8e1b8,0x8e1c3,0x8e201,0x8e208,0x8e282,0x8e368,0x8e391,
0x8e480,0x8e493,0x8e540,0x8e54b,0x8e5b8,0x8e801,0x8e838,0x8e841,0x8e850,0x8e859,0x8e98b,0x8e9b8,0x8e9d3,0x8e9d8,0x8e9e3,
0x8e9f0,0x8e9fb,0x8ea31,0x8ea3b,0x8ea40,0x8ea82,0x8ead0,0x8eb01,0x8eb30,0x8eb39,0x8eb48,0x8eb51,0x8ec53,0x8ec78,0x8ec83,
0x8ec90,0x8ec9b,0x8ecc1,0x8ecc8,0x8ed02,0x8ed50,0x8f701,0x8f79b,0x8f7b8,0x8f803,0x8f811,0x8f81b,0x8f821,0x8f888,0x8f891,
0x8f9a3,0x8f9d8,0x8f9f3,0x8fa18,0x8fa82,0x8fad0,0x8fd81,0x8fd88,0x8fe02,0x8fea8,0x90001,0x91cd0,0x92002,0x92378,0x92401,
0x92a20,0x97c81,0x97f88,0x98001,0x9a180,0x9a203,0x9a209,0x9a23b,0x9a2b0,0xa2001,0xa3238,0xb4001,0xb51c8,0xb5201,0xb52f8,
0xb5302,0xb5350,0xb5381,0xb55f8,0xb5602,0xb5650,0xb5681,0xb5770,0xb5783,0xb57a8,0xb5801,0xb5983,0xb59b8,0xb5a01,0xb5a20,
0xb5a82,0xb5ad0,0xb5ada,0xb5b10,0xb5b19,0xb5bc0,0xb5be9,0xb5c80,0xb7201,0xb7402,0xb74b8,0xb7801,0xb7a58,0xb7a7b,0xb7a81,
0xb7a8b,0xb7c40,0xb7c7b,0xb7c99,0xb7d00,0xb7f01,0xb7f10,0xb7f19,0xb7f23,0xb7f28,0xb7f83,0xb7f90,0xb8001,0xc3fc0,0xc4001,
0xc66b0,0xc6801,0xc6848,0xd7f81,0xd7fa0,0xd7fa9,0xd7fe0,0xd7fe9,0xd7ff8,0xd8001,0xd8918,0xd8991,0xd8998,0xd8a81,0xd8a98,
0xd8aa9,0xd8ab0,0xd8b21,0xd8b40,0xd8b81,0xd97e0,0xde001,0xde358,0xde381,0xde3e8,0xde401,0xde448,0xde481,0xde4d0,0xde4eb,
0xde4f8,0xe7803,0xe7970,0xe7983,0xe7a38,0xe8b2b,0xe8b50,0xe8b6b,0xe8b98,0xe8bdb,0xe8c18,0xe8c2b,0xe8c60,0xe8d53,0xe8d70,
0xe9213,0xe9228,0xe9602,0xe96a0,0xe9702,0xe97a0,0xe9b02,0xe9bc8,0xea001,0xea2a8,0xea2b1,0xea4e8,0xea4f1,0xea500,0xea511,
0xea518,0xea529,0xea538,0xea549,0xea568,0xea571,0xea5d0,0xea5d9,0xea5e0,0xea5e9,0xea620,0xea629,0xea830,0xea839,0xea858,
0xea869,0xea8a8,0xea8b1,0xea8e8,0xea8f1,0xea9d0,0xea9d9,0xea9f8,0xeaa01,0xeaa28,0xeaa31,0xeaa38,0xeaa51,0xeaa88,0xeaa91,
0xeb530,0xeb541,0xeb608,0xeb611,0xeb6d8,0xeb6e1,0xeb7d8,0xeb7e1,0xeb8a8,0xeb8b1,0xeb9a8,0xeb9b1,0xeba78,0xeba81,0xebb78,
0xebb81,0xebc48,0xebc51,0xebd48,0xebd51,0xebe18,0xebe21,0xebe60,0xebe72,0xec000,0xed003,0xed1b8,0xed1db,0xed368,0xed3ab,
0xed3b0,0xed423,0xed428,0xed4db,0xed500,0xed50b,0xed580,0xef801,0xef8f8,0xef929,0xef958,0xf0003,0xf0038,0xf0043,0xf00c8,
0xf00db,0xf0110,0xf011b,0xf0128,0xf0133,0xf0158,0xf0181,0xf0370,0xf047b,0xf0480,0xf0801,0xf0968,0xf0983,0xf09b9,0xf09f0,
0xf0a02,0xf0a50,0xf0a71,0xf0a78,0xf1481,0xf1573,0xf1578,0xf1601,0xf1763,0xf1782,0xf17d0,0xf2681,0xf2763,0xf2782,0xf27d0,
0xf3f01,0xf3f38,0xf3f41,0xf3f60,0xf3f69,0xf3f78,0xf3f81,0xf3ff8,0xf4001,0xf4628,0xf463a,0xf4683,0xf46b8,0xf4801,0xf4a23,
0xf4a59,0xf4a60,0xf4a82,0xf4ad0,0xf638a,0xf6560,0xf656a,0xf6580,0xf658a,0xf65a8,0xf680a,0xf6970,0xf697a,0xf69f0,0xf7001,
0xf7020,0xf7029,0xf7100,0xf7109,0xf7118,0xf7121,0xf7128,0xf7139,0xf7140,0xf7149,0xf7198,0xf71a1,0xf71c0,0xf71c9,0xf71d0,
0xf71d9,0xf71e0,0xf7211,0xf7218,0xf7239,0xf7240,0xf7249,0xf7250,0xf7259,0xf7260,0xf7269,0xf7280,0xf7289,0xf7298,0xf72a1,
0xf72a8,0xf72b9,0xf72c0,0xf72c9,0xf72d0,0xf72d9,0xf72e0,0xf72e9,0xf72f0,0xf72f9,0xf7300,0xf7309,0xf7318,0xf7321,0xf7328,
0xf7339,0xf7358,0xf7361,0xf7398,0xf73a1,0xf73c0,0xf73c9,0xf73e8,0xf73f1,0xf73f8,0xf7401,0xf7450,0xf7459,0xf74e0,0xf7509,
0xf7520,0xf7529,0xf7550,0xf7559,0xf75e0,0xf8802,0xf8868,0xfdf82,0xfdfd0,0x100001,0x153700,0x153801,0x15b9d0,0x15ba01,
0x15c0f0,0x15c101,0x167510,0x167581,0x175f08,0x175f81,0x1772f0,0x17c001,0x17d0f0,0x180001,0x189a58,0x189a81,0x191d80,
0x700803,0x700f80,
/* generated by make_unicode.py: end */
};

static int tok__class(uint32_t code)
{
    size_t low = 0, high = sizeof tok__class_table / sizeof tok__class_table[0];

    if (code < 128) {  /* most text; the table gives the same */
        if ((code | 32) - 'a' < 26) return TOK__LETTER;
        if (code - '0' < 10) return TOK__NUMBER;
        return code == ' ' || code - 9 < 5 ? TOK__SPACE : TOK__OTHER;
    }
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (tok__class_table[middle] >> 3 <= code) low = middle;
        else high = middle;
    }
    return (int)(tok__class_table[low] & 7);
}

/* How many bytes of a character that begins with this byte; 0 if none does. */
static size_t tok__utf8_length(unsigned char first)
{
    if (first < 0x80) return 1;
    if (first < 0xC2) return 0;  /* a continuation, or a lead that would only make overlong forms */
    if (first < 0xE0) return 2;
    if (first < 0xF0) return 3;
    return first < 0xF5 ? 4 : 0;
}

/* Whether next may follow held[0..count), a valid beginning of a character: no overlong forms, surrogates, or beyond
 * 10FFFF. */
static int tok__utf8_follows(const unsigned char *held, size_t count, unsigned char next)
{
    if (next < 0x80 || next > 0xBF) return 0;
    if (count > 1) return 1;
    switch (held[0]) {
    case 0xE0: return next >= 0xA0;
    case 0xED: return next <= 0x9F;
    case 0xF0: return next >= 0x90;
    case 0xF4: return next <= 0x8F;
    default: return 1;
    }
}

/* Bytes of the character at text[0..n), n > 0, and its code point; a byte that begins no valid character is taken
 * alone. */
static size_t tok__utf8_read(const unsigned char *text, size_t n, uint32_t *code)
{
    const size_t length = tok__utf8_length(text[0]);
    size_t i;

    *code = length == 1 ? text[0] : 0xFFFD;
    if (length < 2 || length > n) return 1;
    for (i = 1; i < length; i++)
        if (!tok__utf8_follows(text, i, text[i])) return 1;
    *code = text[0] & (0xFFu >> (length + 1));
    for (i = 1; i < length; i++) *code = *code << 6 | (text[i] & 0x3Fu);
    return length;
}

/* =====================================================================================================================
 * >>tok-words                                                                                            Pre-tokenisers
 *
 * Byte-level vocabularies were trained on words that a regular expression cuts; ids are right only if the same words
 * are cut here. The expressions come in two shapes, written out as code that looks ahead by at most one run of
 * characters:
 *
 *     old     '(s|t|re|ve|m|ll|d) | ?L+ | ?N+ | ?[^ space L N]+ | space+(?!not space) | space+
 *     new     the contractions in any case | [^ \r \n L N]?L+ | N{1,digits} | ?[^ space L N]+[\r\n]* | space*[\r\n]+
 *             | space+(?!not space) | space+
 *
 * Names are those of tokenizer.ggml.pre. A name that is not here is an error: a wrong guess shows as bad answers only.
 * ================================================================================================================== */

typedef struct tok__pre {
    const char *name;
    int new_shape;
    int digits;       /* new: most digits of a word; old: 1 = digits are cut out of the text first, 0 = not limited */
    int marks;        /* marks count as letters, otherwise as OTHER */
    int whole_words;  /* a word that is a token is taken as it is, whatever the merges */
    int bos;          /* a sequence begins with BOS unless the file says otherwise */
} tok__pre;

static const tok__pre tok__pres[] = {
    /* name              new digits marks whole bos */
    {"gpt-2",             0, 0, 0, 0, 0},
    {"phi-2",             0, 0, 0, 0, 0},
    {"mpt",               0, 0, 0, 0, 0},
    {"olmo",              0, 0, 0, 0, 0},
    {"jais",              0, 0, 0, 0, 0},
    {"exaone4",           0, 0, 0, 0, 0},
    {"smollm",            0, 1, 0, 0, 0},
    {"starcoder",         0, 1, 0, 0, 0},
    {"refact",            0, 1, 0, 0, 0},
    {"codeshell",         0, 1, 0, 0, 0},
    {"command-r",         0, 1, 0, 0, 0},
    {"qwen2",             1, 1, 0, 0, 0},
    {"deepseek-r1-qwen",  1, 1, 0, 0, 0},
    {"megrez",            1, 1, 0, 0, 0},
    {"stablelm2",         1, 1, 0, 0, 0},
    {"qwen35",            1, 1, 1, 0, 0},
    {"llama-bpe",         1, 3, 0, 1, 1},
    {"llama3",            1, 3, 0, 1, 1},
    {"llama-v3",          1, 3, 0, 1, 1},
    {"falcon3",           1, 3, 0, 1, 1},
    {"lfm2",              1, 3, 0, 1, 1},
    {"dbrx",              1, 3, 0, 0, 0},
    {"smaug-bpe",         1, 3, 0, 0, 0},
};

/* A character of the text and its class, marks already counted as letters or OTHER; at the end of the text class
 * END. */
typedef struct tok__char {
    uint32_t code;
    int kind;
    size_t end;  /* offset behind it */
} tok__char;

static tok__char tok__char_at(const tok__pre *pre, const unsigned char *text, size_t n, size_t at)
{
    tok__char c;

    c.code = 0;
    c.kind = TOK__END;
    c.end = at;
    if (at == n) return c;
    c.end = at + tok__utf8_read(text + at, n - at, &c.code);
    c.kind = tok__class(c.code);
    if (c.kind == TOK__MARK) c.kind = pre->marks ? TOK__LETTER : TOK__OTHER;
    return c;
}

/* Offset behind the run of one class that starts at `at`. */
static size_t tok__run_end(const tok__pre *pre, const unsigned char *text, size_t n, size_t at, int kind)
{
    for (;;) {
        const tok__char c = tok__char_at(pre, text, n, at);
        if (c.kind != kind) return at;
        at = c.end;
    }
}

/* Bytes of the contraction 's 't 'm 'd 're 've 'll at text[0..n); 0 if there is none. */
static size_t tok__contraction(const tok__pre *pre, const unsigned char *text, size_t n)
{
    unsigned char a, b;

    if (n < 2 || text[0] != '\'') return 0;
    a = text[1];
    b = n > 2 ? text[2] : 0;
    if (pre->new_shape) {
        if (a >= 'A' && a <= 'Z') a = (unsigned char)(a + 32);
        if (b >= 'A' && b <= 'Z') b = (unsigned char)(b + 32);
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* Offset behind a word of white space that starts at `at`. The last blank of a run is left to the word after it. */
static size_t tok__space_end(const tok__pre *pre, const unsigned char *text, size_t n, size_t at)
{
    const size_t start = at;
    size_t last = at, newline = 0;
    tok__char c;

    for (c = tok__char_at(pre, text, n, at); c.kind == TOK__SPACE; c = tok__char_at(pre, text, n, at)) {
        last = at;
        at = c.end;
        if (c.code == '\r' || c.code == '\n') newline = at;
    }
    if (pre->new_shape && newline) return newline;
    if (c.kind == TOK__END || (!pre->new_shape && pre->digits && c.kind == TOK__NUMBER)) return at;
    return last > start ? last : at;
}

static size_t tok__word_end_old(const tok__pre *pre, const unsigned char *text, size_t n, size_t at)
{
    const tok__char c = tok__char_at(pre, text, n, at);
    const tok__char first = c.code == ' ' ? tok__char_at(pre, text, n, c.end) : c;
    const size_t contraction = tok__contraction(pre, text + at, n - at);

    if (contraction) return at + contraction;
    if (first.kind == TOK__SPACE || first.kind == TOK__END) return tok__space_end(pre, text, n, at);
    if (first.kind == TOK__NUMBER && pre->digits) return c.end;
    return tok__run_end(pre, text, n, first.end, first.kind);
}

static size_t tok__word_end_new(const tok__pre *pre, const unsigned char *text, size_t n, size_t at)
{
    const tok__char c = tok__char_at(pre, text, n, at);
    const tok__char next = tok__char_at(pre, text, n, c.end);
    const tok__char first = c.code == ' ' ? next : c;
    const size_t contraction = tok__contraction(pre, text + at, n - at);
    size_t end = c.end;
    int i;

    if (contraction) return at + contraction;
    if (c.kind == TOK__LETTER ||
        (next.kind == TOK__LETTER && c.kind != TOK__NUMBER && c.code != '\r' && c.code != '\n'))
        return tok__run_end(pre, text, n, c.end, TOK__LETTER);
    if (c.kind == TOK__NUMBER) {
        for (i = 1; i < pre->digits; i++) {
            const tok__char digit = tok__char_at(pre, text, n, end);
            if (digit.kind != TOK__NUMBER) break;
            end = digit.end;
        }
        return end;
    }
    if (first.kind == TOK__OTHER) {
        end = tok__run_end(pre, text, n, first.end, TOK__OTHER);
        while (end < n && (text[end] == '\r' || text[end] == '\n')) end++;
        return end;
    }
    return tok__space_end(pre, text, n, at);
}

/* Offset behind the word that starts at text[at], at < n. */
static size_t tok__word_end(const tok__pre *pre, const unsigned char *text, size_t n, size_t at)
{
    return pre->new_shape ? tok__word_end_new(pre, text, n, at) : tok__word_end_old(pre, text, n, at);
}

/* =====================================================================================================================
 * >>tok-lookup                                                                                   Token and merge lookup
 *
 * A token is kept as the bytes it stands for: the printable stand-ins of byte-level vocabularies and the U+2581 of
 * SentencePiece are resolved while loading, so that encoding compares plain bytes and decoding hands them out. The text
 * map finds only tokens that ordinary text may become; control tokens are not in it, whatever merges a file lists.
 * ================================================================================================================== */

enum {
    TOK__TEXT = 1,     /* reachable by merging ordinary text */
    TOK__SPECIAL = 2,  /* recognised as a whole before the text is cut into words */
    TOK__CONTROL = 4,  /* ... but in scaffold only; renders as nothing */
    TOK__STOP = 8
};

#define TOK__NONE UINT32_MAX
#define TOK__MAX_TOKENS ((uint64_t)1 << 26)
#define TOK__MAX_LENGTH 4096 /* bytes of a token as written in the file */

typedef struct tok__token {
    uint32_t offset, length;  /* its bytes in the pool */
    uint32_t rank;            /* SentencePiece: number of higher scores; lower ranks merge first */
    uint32_t flags;
} tok__token;

typedef struct tok__merge {
    uint32_t left, right, token;
} tok__merge;

/* Open addressing with linear probing; slots [mask + 1] hold indices or NONE, and are at most half full. */
typedef struct tok__map {
    uint32_t *slots;
    uint32_t mask;
} tok__map;

struct tok_tokenizer {
    int byte_level;            /* byte-level BPE; otherwise SentencePiece */
    const tok__pre *pre;       /* byte-level only */
    tok__token *tokens;        /* [count] */
    uint32_t count;
    unsigned char *pool;       /* bytes of all tokens */
    uint32_t longest;          /* bytes of the longest token */
    unsigned char joined[8192]; /* bit a * 256 + b: byte b follows byte a in some TEXT token */
    tok__map text_map;         /* bytes -> token, of TEXT tokens */
    tok__merge *merges;        /* [merge_count], best first; byte-level only */
    uint32_t merge_count;
    tok__map pair_map;         /* (left, right) -> merge */
    uint32_t *specials;        /* [special_count] SPECIAL tokens, in the order of their bytes */
    uint32_t special_count;
    unsigned char special_first[256]; /* whether a SPECIAL token begins with this byte */
    uint32_t byte_token[256];  /* token of a single byte, or NONE */
    uint32_t bos, eos, unknown; /* or NONE */
    int add_bos, space_prefix;
    int template_bos;          /* the chat template writes BOS itself */
    tok_template template_kind;
};

static uint32_t tok__hash(const unsigned char *bytes, size_t n)
{
    uint64_t h = 0xCBF29CE484222325u;  /* FNV-1a, 64 bits, folded */
    size_t i;

    for (i = 0; i < n; i++) h = (h ^ bytes[i]) * 0x100000001B3u;
    return (uint32_t)(h ^ h >> 32);
}

static uint32_t tok__hash_pair(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;

    h ^= h >> 29;
    return (uint32_t)(h * 0xBF58476D1CE4E5B9u >> 32);
}

static int tok__map_open(tok__map *map, uint32_t entries)
{
    size_t slots = 16;

    while (slots / 2 < entries) slots *= 2;
    map->slots = (uint32_t *)malloc(slots * sizeof *map->slots);
    if (!map->slots) return 0;
    memset(map->slots, 0xFF, slots * sizeof *map->slots);  /* NONE */
    map->mask = (uint32_t)(slots - 1);
    return 1;
}

/* The slot of these bytes in the text map: of the token that has them, or the empty one where it would go. */
static uint32_t *tok__text_slot(const tok_tokenizer *t, const unsigned char *bytes, size_t n)
{
    uint32_t at = tok__hash(bytes, n) & t->text_map.mask;

    for (; t->text_map.slots[at] != TOK__NONE; at = (at + 1) & t->text_map.mask) {
        const tok__token *token = &t->tokens[t->text_map.slots[at]];
        if (token->length == n && memcmp(t->pool + token->offset, bytes, n) == 0) break;
    }
    return &t->text_map.slots[at];
}

static uint32_t tok__find_text(const tok_tokenizer *t, const unsigned char *bytes, size_t n)
{
    return n == 0 || n > t->longest ? TOK__NONE : *tok__text_slot(t, bytes, n);
}

static uint32_t *tok__pair_slot(const tok_tokenizer *t, uint32_t left, uint32_t right)
{
    uint32_t at = tok__hash_pair(left, right) & t->pair_map.mask;

    for (; t->pair_map.slots[at] != TOK__NONE; at = (at + 1) & t->pair_map.mask) {
        const tok__merge *merge = &t->merges[t->pair_map.slots[at]];
        if (merge->left == left && merge->right == right) break;
    }
    return &t->pair_map.slots[at];
}

/* =====================================================================================================================
 * >>tok-load                                                                             Reading and checking metadata
 *
 * The file is not trusted: types, counts and ids are checked before use, and every allocation is bounded by the bytes
 * that the file really has. The container itself was checked by skl_gguf_open.
 * ================================================================================================================== */

typedef struct tok__load {
    tok_tokenizer *t;
    const skl_gguf *gguf;
    char *message;        /* [message_size], may be NULL */
    size_t message_size;
} tok__load;

static tok_status tok__fail(const tok__load *load, tok_status status, const char *format, ...)
{
    va_list arguments;
    size_t i;

    if (!load->message || !load->message_size) return status;
    va_start(arguments, format);
    vsnprintf(load->message, load->message_size, format, arguments);
    va_end(arguments);
    for (i = 0; load->message[i]; i++)  /* names from the file may hold anything, also what a terminal obeys */
        if ((unsigned char)load->message[i] < 32 || load->message[i] == 127) load->message[i] = '?';
    return status;
}

static tok_status tok__no_memory(const tok__load *load)
{
    return tok__fail(load, TOK_OUT_OF_MEMORY, "not enough memory for the vocabulary");
}

static int tok__same(const char *text, size_t n, const char *word)
{
    return strlen(word) == n && memcmp(text, word, n) == 0;
}

static int tok__contains(const char *text, size_t n, const char *word)
{
    const size_t length = strlen(word);
    size_t i;

    for (i = 0; i + length <= n; i++)
        if (memcmp(text + i, word, length) == 0) return 1;
    return 0;
}

/* A string value; absent gives length 0. */
static tok_status tok__get_string(const tok__load *load, const char *key, const char **text, size_t *length)
{
    skl_value value;

    *text = "";
    *length = 0;
    if (skl_gguf_find(load->gguf, key, &value)) return TOK_OK;
    if (skl_value_string(&value, text, length)) return tok__fail(load, TOK_BAD_FILE, "%s is not a string", key);
    return TOK_OK;
}

/* A flag; absent leaves *flag as it is. */
static tok_status tok__get_flag(const tok__load *load, const char *key, int *flag)
{
    skl_value value;
    int64_t number;

    if (skl_gguf_find(load->gguf, key, &value)) return TOK_OK;
    if (value.type == (int)SKL_VALUE_ARRAY || skl_value_int(&value, 0, &number))
        return tok__fail(load, TOK_BAD_FILE, "%s is not a flag", key);
    *flag = number != 0;
    return TOK_OK;
}

/* A token id; absent leaves *id as it is. */
static tok_status tok__get_id(const tok__load *load, const char *key, uint32_t *id)
{
    skl_value value;
    int64_t number;

    if (skl_gguf_find(load->gguf, key, &value)) return TOK_OK;
    if (value.type == (int)SKL_VALUE_ARRAY || skl_value_int(&value, 0, &number))
        return tok__fail(load, TOK_BAD_FILE, "%s is not a token id", key);
    if (number < 0 || number >= (int64_t)load->t->count)
        return tok__fail(load, TOK_BAD_FILE, "%s is %lld, but the vocabulary has %lu tokens", key, (long long)number,
                         (unsigned long)load->t->count);
    *id = (uint32_t)number;
    return TOK_OK;
}

/* An array with one element per token; absent gives *found = 0. */
static tok_status tok__get_per_token(const tok__load *load, const char *key, skl_value *value, int *found)
{
    *found = 0;
    if (skl_gguf_find(load->gguf, key, value)) return TOK_OK;
    if (value->type != (int)SKL_VALUE_ARRAY) return tok__fail(load, TOK_BAD_FILE, "%s is not an array", key);
    if (value->count != load->t->count)
        return tok__fail(load, TOK_BAD_FILE, "%s has %llu entries for %lu tokens", key,
                         (unsigned long long)value->count, (unsigned long)load->t->count);
    *found = 1;
    return TOK_OK;
}

/* An array of strings; its count is bounded by its size, because each string takes 8 bytes for its length. */
static tok_status tok__get_strings(const tok__load *load, const char *key, skl_value *value)
{
    if (skl_gguf_find(load->gguf, key, value)) return tok__fail(load, TOK_BAD_FILE, "%s is missing", key);
    if (value->type != (int)SKL_VALUE_ARRAY || value->element_type != (int)SKL_VALUE_STRING)
        return tok__fail(load, TOK_BAD_FILE, "%s is not an array of strings", key);
    if (value->count > TOK__MAX_TOKENS || value->count > value->size / 8)
        return tok__fail(load, TOK_BAD_FILE, "%s has an impossible count of %llu", key,
                         (unsigned long long)value->count);
    return TOK_OK;
}

static tok_status tok__load_kind(const tok__load *load)
{
    tok_tokenizer *t = load->t;
    const char *model, *pre;
    size_t model_length, pre_length, i;
    tok_status status;

    if ((status = tok__get_string(load, "tokenizer.ggml.model", &model, &model_length)) != TOK_OK) return status;
    if (!model_length) return tok__fail(load, TOK_BAD_FILE, "the file names no tokenizer (tokenizer.ggml.model)");
    if (tok__same(model, model_length, "llama")) {
        t->add_bos = t->space_prefix = 1;
        return TOK_OK;
    }
    if (!tok__same(model, model_length, "gpt2"))
        return tok__fail(load, TOK_UNSUPPORTED, "tokenizer model '%.*s' is not supported (gpt2 and llama are)",
                         model_length < 60 ? (int)model_length : 60, model);
    t->byte_level = 1;
    if ((status = tok__get_string(load, "tokenizer.ggml.pre", &pre, &pre_length)) != TOK_OK) return status;
    if (!pre_length) return tok__fail(load, TOK_UNSUPPORTED, "the file names no pre-tokeniser (tokenizer.ggml.pre)");
    for (i = 0; i < sizeof tok__pres / sizeof tok__pres[0]; i++)
        if (tok__same(pre, pre_length, tok__pres[i].name)) t->pre = &tok__pres[i];
    if (!t->pre)
        return tok__fail(load, TOK_UNSUPPORTED,
                         "pre-tokeniser '%.*s' is not supported (gpt-2, qwen2, llama-bpe and others are)",
                         pre_length < 60 ? (int)pre_length : 60, pre);
    t->add_bos = t->pre->bos;
    return TOK_OK;
}

/* Texts that end an answer whatever the metadata says; converters often lose all but one of a model's end tokens. */
static int tok__ends_turn(const char *text, size_t n)
{
    static const char *const ends[] = {
        "</s>", "<eos>", "[EOS]", "<EOT>", "_<EOT>", "[EOT]", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>",
        "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<turn|>", "<end_of_turn>", "<end_of_utterance>",
        "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>",
        /* padding and file ends of code models: no answer goes on after them */
        "<PAD>", "[PAD]", "<fim_pad>", "<fim-pad>", "<|fim_pad|>", "<fim-repo>", "<|fim_repo|>", "<REPO>",
        "<reponame>", "<|repo_name|>", "<|file_sep|>",
    };
    size_t i;

    for (i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (tok__same(text, n, ends[i])) return 1;
    return 0;
}

/* Value of a hexadecimal digit, or -1. */
static int tok__hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte that a byte token "<0x0A>" stands for, or -1. */
static int tok__byte_of(const char *text, size_t n)
{
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>' || tok__hex(text[3]) < 0 || tok__hex(text[4]) < 0)
        return -1;
    return tok__hex(text[3]) * 16 + tok__hex(text[4]);
}

/* Byte-level vocabularies write byte b as a printable character: itself where it is one, otherwise the next free from
 * U+0100. The byte for a code point, or -1. */
static int tok__byte_of_code(uint32_t code)
{
    if ((code >= 0x21 && code <= 0x7E) || (code >= 0xA1 && code <= 0xFF && code != 0xAD)) return (int)code;
    if (code >= 0x100 && code <= 0x120) return (int)(code - 0x100);
    if (code >= 0x121 && code <= 0x142) return (int)(code - 0x121 + 0x7F);
    return code == 0x143 ? 0xAD : -1;
}

/* The bytes of a token text into out [n]; returns their number, or SIZE_MAX if a byte-level text is none. */
static size_t tok__resolve(const tok_tokenizer *t, const unsigned char *text, size_t n, unsigned char *out)
{
    size_t i = 0, count = 0;

    while (i < n) {
        if (t->byte_level) {
            uint32_t code;
            int byte;
            i += tok__utf8_read(text + i, n - i, &code);
            byte = tok__byte_of_code(code);
            if (byte < 0) return SIZE_MAX;
            out[count++] = (unsigned char)byte;
        } else if (n - i >= 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0) {
            out[count++] = ' ';
            i += 3;
        } else {
            out[count++] = text[i++];
        }
    }
    return count;
}

/* Files give token types: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. A text of the form <|...|>,
 * or one that ends a turn, is control whatever its type: files that call <|im_start|> user-defined would let users
 * write it. */
static tok_status tok__load_token(const tok__load *load, uint32_t id, int64_t type, const char *text, size_t n,
                                  size_t at)
{
    tok_tokenizer *t = load->t;
    tok__token *token = &t->tokens[id];
    unsigned char *bytes = t->pool + at;
    const int stop = tok__ends_turn(text, n);
    const int untyped = type < 0 && !t->byte_level;  /* old SentencePiece files: known by their texts */
    const int byte = type == 6 || untyped ? tok__byte_of(text, n) : -1;
    size_t length;

    token->offset = (uint32_t)at;
    token->length = (uint32_t)n;
    memcpy(bytes, text, n);
    if (type == 2 || type == 3 || stop || (n > 4 && memcmp(text, "<|", 2) == 0 && memcmp(text + n - 2, "|>", 2) == 0) ||
        (untyped && (tok__same(text, n, "<s>") || tok__same(text, n, "<unk>")))) {
        token->flags = TOK__SPECIAL | TOK__CONTROL | (stop ? (uint32_t)TOK__STOP : 0);
    } else if (byte >= 0) {
        bytes[0] = (unsigned char)byte;
        token->length = 1;
        if (!t->byte_level && t->byte_token[byte] == TOK__NONE) t->byte_token[byte] = id;
    } else if (type == 6) {
        return tok__fail(load, TOK_BAD_FILE, "token %lu is of type byte, but its text is not like <0x0A>",
                         (unsigned long)id);
    } else if (t->byte_level && type == 4) {
        token->flags = TOK__SPECIAL;
    } else {
        length = tok__resolve(t, (const unsigned char *)text, n, bytes);
        if (length == SIZE_MAX) {  /* not in the byte alphabet: no text becomes it, and it renders as it is written */
            memcpy(bytes, text, n);
            return TOK_OK;
        }
        token->length = (uint32_t)length;
        if (!tok__contains(text, n, " ") || t->byte_level) token->flags = TOK__TEXT;
        if (type == 4 && length == n) token->flags |= TOK__SPECIAL;
    }
    if (token->length > t->longest) t->longest = token->length;
    return TOK_OK;
}

static tok_status tok__load_tokens(const tok__load *load)
{
    tok_tokenizer *t = load->t;
    skl_value strings, types, left;
    const char *text;
    size_t n, total = 0;
    uint32_t id;
    int64_t type = -1;
    int typed;
    tok_status status;

    if ((status = tok__get_strings(load, "tokenizer.ggml.tokens", &strings)) != TOK_OK) return status;
    t->count = (uint32_t)strings.count;
    if (!t->count) return tok__fail(load, TOK_BAD_FILE, "tokenizer.ggml.tokens is empty");
    if ((status = tok__get_per_token(load, "tokenizer.ggml.token_type", &types, &typed)) != TOK_OK) return status;

    left = strings;
    for (id = 0; id < t->count; id++) {
        if (skl_value_next_string(&left, &text, &n))
            return tok__fail(load, TOK_BAD_FILE, "token %lu cannot be read", (unsigned long)id);
        if (n > TOK__MAX_LENGTH)
            return tok__fail(load, TOK_BAD_FILE, "token %lu is %llu bytes long", (unsigned long)id,
                             (unsigned long long)n);
        if (n > UINT32_MAX - total) return tok__fail(load, TOK_BAD_FILE, "the vocabulary is larger than 4 GiB");
        total += n;
    }
    t->tokens = (tok__token *)calloc(t->count, sizeof *t->tokens);
    t->pool = (unsigned char *)malloc(total + 1);
    if (!t->tokens || !t->pool || !tok__map_open(&t->text_map, t->count)) return tok__no_memory(load);

    left = strings;
    total = 0;
    for (id = 0; id < t->count; id++) {
        if (skl_value_next_string(&left, &text, &n) || (typed && skl_value_int(&types, id, &type)))
            return tok__fail(load, TOK_BAD_FILE, "token %lu or its type cannot be read", (unsigned long)id);
        if ((status = tok__load_token(load, id, type, text, n, total)) != TOK_OK) return status;
        total += n;
    }
    for (id = 0; id < t->count; id++) {
        const tok__token *token = &t->tokens[id];
        if ((token->flags & TOK__TEXT) && token->length) {
            const unsigned char *bytes = t->pool + token->offset;
            uint32_t *slot = tok__text_slot(t, bytes, token->length), i;
            if (*slot == TOK__NONE) *slot = id;  /* of two equal texts the first counts */
            for (i = 1; i < token->length; i++)
                t->joined[bytes[i - 1] * 32 + bytes[i] / 8] |= (unsigned char)(1 << bytes[i] % 8);
        }
    }
    for (id = 0; id < 256; id++) {
        const unsigned char byte = (unsigned char)id;
        if (t->byte_token[id] == TOK__NONE) t->byte_token[id] = tok__find_text(t, &byte, 1);
    }
    return TOK_OK;
}

static tok_status tok__load_merges(const tok__load *load)
{
    tok_tokenizer *t = load->t;
    unsigned char bytes[2 * TOK__MAX_LENGTH];
    skl_value strings;
    uint64_t i, count;
    tok_status status;

    if ((status = tok__get_strings(load, "tokenizer.ggml.merges", &strings)) != TOK_OK) return status;
    count = strings.count;
    t->merges = (tok__merge *)malloc(((size_t)count + 1) * sizeof *t->merges);
    if (!t->merges || !tok__map_open(&t->pair_map, (uint32_t)count)) return tok__no_memory(load);

    for (i = 0; i < count; i++) {
        tok__merge *merge = &t->merges[t->merge_count];
        const char *text, *blank;
        size_t n, left, right;
        uint32_t *slot;

        if (skl_value_next_string(&strings, &text, &n))
            return tok__fail(load, TOK_BAD_FILE, "merge %llu cannot be read", (unsigned long long)i);
        if (n > sizeof bytes) return tok__fail(load, TOK_BAD_FILE, "merge %llu is too long", (unsigned long long)i);
        blank = n > 2 ? (const char *)memchr(text + 1, ' ', n - 2) : NULL;
        if (!blank)
            return tok__fail(load, TOK_BAD_FILE, "merge %llu is not two texts with a blank between",
                             (unsigned long long)i);

        left = tok__resolve(t, (const unsigned char *)text, (size_t)(blank - text), bytes);
        if (left == SIZE_MAX) continue;
        right = tok__resolve(t, (const unsigned char *)blank + 1, n - (size_t)(blank - text) - 1, bytes + left);
        if (right == SIZE_MAX) continue;
        merge->left = tok__find_text(t, bytes, left);
        merge->right = tok__find_text(t, bytes + left, right);
        merge->token = tok__find_text(t, bytes, left + right);
        /* A merge of or into something that text cannot become never applies. */
        if (merge->left == TOK__NONE || merge->right == TOK__NONE || merge->token == TOK__NONE) continue;
        slot = tok__pair_slot(t, merge->left, merge->right);
        if (*slot == TOK__NONE) *slot = t->merge_count++;
    }
    return TOK_OK;
}

typedef struct tok__score {
    double score;
    uint32_t id;
} tok__score;

static int tok__compare_scores(const void *a, const void *b)
{
    const double x = ((const tok__score *)a)->score, y = ((const tok__score *)b)->score;
    return x > y ? -1 : x < y;
}

/* SentencePiece merges what makes the best scored token first: scores become ranks, equal where the scores are. */
static tok_status tok__load_scores(const tok__load *load)
{
    tok_tokenizer *t = load->t;
    tok__score *scores;
    skl_value value;
    uint32_t i, rank = 0;
    int found;
    tok_status status;

    if ((status = tok__get_per_token(load, "tokenizer.ggml.scores", &value, &found)) != TOK_OK) return status;
    if (!found) return tok__fail(load, TOK_BAD_FILE, "tokenizer.ggml.scores is missing");
    scores = (tok__score *)malloc(t->count * sizeof *scores);
    if (!scores) return tok__no_memory(load);
    for (i = 0; i < t->count && status == TOK_OK; i++) {
        scores[i].id = i;
        if (skl_value_float(&value, i, &scores[i].score) || scores[i].score != scores[i].score)
            status = tok__fail(load, TOK_BAD_FILE, "the score of token %lu is not a number", (unsigned long)i);
    }
    if (status == TOK_OK) {
        qsort(scores, t->count, sizeof *scores, tok__compare_scores);
        for (i = 0; i < t->count; i++) {
            if (i && scores[i].score < scores[i - 1].score) rank = i;
            t->tokens[scores[i].id].rank = rank;
        }
    }
    free(scores);
    return status;
}

static tok_status tok__load_ids(const tok__load *load)
{
    tok_tokenizer *t = load->t;
    uint32_t ends[3];
    int i;
    tok_status status;

    ends[0] = ends[1] = ends[2] = TOK__NONE;
    if (!t->byte_level) {  /* what SentencePiece files mean when they say nothing */
        if (t->count > 0) t->unknown = 0;
        if (t->count > 1) t->bos = 1;
        if (t->count > 2) ends[0] = 2;
    }
    if ((status = tok__get_id(load, "tokenizer.ggml.bos_token_id", &t->bos)) != TOK_OK ||
        (status = tok__get_id(load, "tokenizer.ggml.eos_token_id", &ends[0])) != TOK_OK ||
        (status = tok__get_id(load, "tokenizer.ggml.eot_token_id", &ends[1])) != TOK_OK ||
        (status = tok__get_id(load, "tokenizer.ggml.eom_token_id", &ends[2])) != TOK_OK ||
        (status = tok__get_id(load, "tokenizer.ggml.unknown_token_id", &t->unknown)) != TOK_OK ||
        (status = tok__get_flag(load, "tokenizer.ggml.add_bos_token", &t->add_bos)) != TOK_OK ||
        (status = tok__get_flag(load, "tokenizer.ggml.add_space_prefix", &t->space_prefix)) != TOK_OK) return status;
    t->eos = ends[0];
    for (i = 0; i < 3; i++)
        if (ends[i] != TOK__NONE) t->tokens[ends[i]].flags |= TOK__STOP;
    if (t->bos == TOK__NONE) t->add_bos = 0;
    if (t->byte_level) t->space_prefix = 0;
    return TOK_OK;
}

typedef struct tok__name {
    const unsigned char *bytes;
    uint32_t length, id;
} tok__name;

static int tok__compare_names(const void *a, const void *b)
{
    const tok__name *x = (const tok__name *)a, *y = (const tok__name *)b;
    const int order = memcmp(x->bytes, y->bytes, x->length < y->length ? x->length : y->length);

    if (order) return order;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static tok_status tok__load_specials(const tok__load *load)
{
    tok_tokenizer *t = load->t;
    tok__name *names;
    uint32_t id, n = 0;

    for (id = 0; id < t->count; id++) n += (t->tokens[id].flags & TOK__SPECIAL) && t->tokens[id].length;
    names = (tok__name *)malloc((n + 1) * sizeof *names);
    t->specials = (uint32_t *)malloc((n + 1) * sizeof *t->specials);
    if (!names || !t->specials) {
        free(names);
        return tok__no_memory(load);
    }
    for (id = 0; id < t->count; id++) {
        const tok__token *token = &t->tokens[id];
        if (!(token->flags & TOK__SPECIAL) || !token->length) continue;
        t->special_first[t->pool[token->offset]] = 1;
        names[t->special_count].bytes = t->pool + token->offset;
        names[t->special_count].length = token->length;
        names[t->special_count++].id = id;
    }
    qsort(names, n, sizeof *names, tok__compare_names);
    for (id = 0; id < n; id++) t->specials[id] = names[id].id;
    free(names);
    return TOK_OK;
}

static tok_status tok__load_template(const tok__load *load)
{
    tok_tokenizer *t = load->t;
    const char *text;
    size_t n;
    const tok_status status = tok__get_string(load, "tokenizer.chat_template", &text, &n);

    if (status != TOK_OK || !n) return status;
    t->template_bos = tok__contains(text, n, "bos_token");
    t->template_kind = TOK_TEMPLATE_UNKNOWN;
    if (tok__contains(text, n, "<|im_start|>") && tok__contains(text, n, "<|im_end|>") &&
        !tok__contains(text, n, "<|im_sep|>"))
        t->template_kind = TOK_TEMPLATE_CHATML;
    else if (tok__contains(text, n, "<|start_header_id|>") && tok__contains(text, n, "<|eot_id|>"))
        t->template_kind = TOK_TEMPLATE_LLAMA3;
    return TOK_OK;
}

TOK_API tok_status tok_open(tok_tokenizer **tokenizer, const struct skl_gguf *gguf, char *message, size_t message_size)
{
    tok__load load;
    tok_status status;

    if (message && message_size) message[0] = '\0';
    if (!tokenizer) return TOK_BAD_ARGUMENT;
    *tokenizer = NULL;
    load.gguf = gguf;
    load.message = message;
    load.message_size = message_size;
    if (!gguf) return tok__fail(&load, TOK_BAD_ARGUMENT, "there is no file");
    load.t = (tok_tokenizer *)calloc(1, sizeof *load.t);
    if (!load.t) return tok__no_memory(&load);
    memset(load.t->byte_token, 0xFF, sizeof load.t->byte_token);  /* NONE */
    load.t->bos = load.t->eos = load.t->unknown = TOK__NONE;

    status = tok__load_kind(&load);
    if (status == TOK_OK) status = tok__load_tokens(&load);
    if (status == TOK_OK) status = load.t->byte_level ? tok__load_merges(&load) : tok__load_scores(&load);
    if (status == TOK_OK) status = tok__load_ids(&load);
    if (status == TOK_OK) status = tok__load_specials(&load);
    if (status == TOK_OK) status = tok__load_template(&load);
    if (status != TOK_OK) tok_close(load.t);
    else *tokenizer = load.t;
    return status;
}

TOK_API void tok_close(tok_tokenizer *t)
{
    if (!t) return;
    free(t->tokens);
    free(t->pool);
    free(t->text_map.slots);
    free(t->merges);
    free(t->pair_map.slots);
    free(t->specials);
    free(t);
}

/* =====================================================================================================================
 * >>tok-merge                                                              Merging, for both kinds of vocabulary
 *
 * A text starts as symbols (bytes, or characters for SentencePiece); the pair of neighbours with the lowest rank is
 * merged, the leftmost first among equals, until no pair can be. A symbol is named by the offset of its first byte, so
 * that its end is where its right neighbour starts and no lengths are kept. Candidates wait in a heap as rank << 32 |
 * offset; one that is out of date is recognised when it comes up, because its pair then has another rank or none. n log
 * n in all.
 * ================================================================================================================== */

typedef struct tok__work {
    uint32_t *next, *previous;  /* [capacity] neighbours of the symbol at an offset; n and NONE at the ends */
    uint32_t *token;            /* [capacity] its token, or NONE */
    size_t capacity;
    uint64_t *heap;             /* [heap_capacity], heap_count used: four children each, for fewer cache misses */
    size_t heap_count, heap_capacity;
    unsigned char *text;        /* SentencePiece: the text as the vocabulary writes it */
} tok__work;

/* Where ids go; BOS waits until the first id is known. */
typedef struct tok__sink {
    int32_t *ids;
    size_t capacity, count;
    uint32_t bos;  /* to be put first, or NONE */
} tok__sink;

static void tok__put(tok__sink *sink, uint32_t id)
{
    const uint32_t bos = sink->bos;

    sink->bos = TOK__NONE;
    if (bos != TOK__NONE && bos != id) tok__put(sink, bos);
    if (sink->count < sink->capacity) sink->ids[sink->count] = (int32_t)id;
    sink->count++;
}

static int tok__work_reserve(tok__work *work, size_t n)
{
    uint32_t *all;

    if (n <= work->capacity) return 1;
    if (n < 256) n = 256;
    if (n > SIZE_MAX / (3 * sizeof *all)) return 0;
    all = (uint32_t *)malloc(3 * n * sizeof *all);
    if (!all) return 0;
    free(work->next);
    work->next = all;
    work->previous = all + n;
    work->token = all + 2 * n;
    work->capacity = n;
    return 1;
}

static void tok__work_close(tok__work *work)
{
    free(work->next);
    free(work->heap);
    free(work->text);
}

static int tok__heap_push(tok__work *work, uint64_t key)
{
    size_t at = work->heap_count;

    if (at == work->heap_capacity) {
        const size_t capacity = at ? at * 2 : 256;
        uint64_t *heap =
            capacity > SIZE_MAX / sizeof *heap ? NULL : (uint64_t *)realloc(work->heap, capacity * sizeof *heap);
        if (!heap) return 0;
        work->heap = heap;
        work->heap_capacity = capacity;
    }
    work->heap_count++;
    for (; at > 0 && work->heap[(at - 1) / 4] > key; at = (at - 1) / 4) work->heap[at] = work->heap[(at - 1) / 4];
    work->heap[at] = key;
    return 1;
}

static uint64_t tok__heap_pop(tok__work *work)
{
    const uint64_t least = work->heap[0], key = work->heap[--work->heap_count];
    const size_t n = work->heap_count;
    size_t at = 0, child;

    while ((child = 4 * at + 1) < n) {
        const size_t end = child + 4 < n ? child + 4 : n;
        size_t other;
        for (other = child + 1; other < end; other++)
            if (work->heap[other] < work->heap[child]) child = other;
        if (work->heap[child] >= key) break;
        work->heap[at] = work->heap[child];
        at = child;
    }
    if (n) work->heap[at] = key;
    return least;
}

/* The token that the symbol at `left` and its right neighbour merge into, and the rank of that; NONE if they do not. */
static uint32_t tok__pair(const tok_tokenizer *t, const tok__work *work, const unsigned char *text, size_t n,
                          uint32_t left, uint32_t *rank)
{
    const uint32_t right = work->next[left];
    uint32_t found;

    if (right == n) return TOK__NONE;
    if (t->byte_level) {
        if (work->token[left] == TOK__NONE || work->token[right] == TOK__NONE) return TOK__NONE;
        found = *tok__pair_slot(t, work->token[left], work->token[right]);
        if (found == TOK__NONE) return TOK__NONE;
        *rank = found;
        return t->merges[found].token;
    }
    found = tok__find_text(t, text + left, work->next[right] - left);
    if (found != TOK__NONE) *rank = t->tokens[found].rank;
    return found;
}

static int tok__offer(const tok_tokenizer *t, tok__work *work, const unsigned char *text, size_t n, uint32_t left)
{
    uint32_t rank;

    if (tok__pair(t, work, text, n, left, &rank) == TOK__NONE) return 1;
    return tok__heap_push(work, (uint64_t)rank << 32 | left);
}

/* The initial symbols of text [n]. */
static void tok__split(const tok_tokenizer *t, tok__work *work, const unsigned char *text, size_t n)
{
    uint32_t at = 0, before = TOK__NONE;

    while (at < n) {
        uint32_t code;
        const size_t length = t->byte_level ? 1 : tok__utf8_read(text + at, n - at, &code);
        work->previous[at] = before;
        work->next[at] = (uint32_t)(at + length);
        work->token[at] = t->byte_level ? t->byte_token[text[at]] : tok__find_text(t, text + at, length);
        before = at;
        at += (uint32_t)length;
    }
}

static tok_status tok__put_symbol(const tok_tokenizer *t, tok__sink *sink, uint32_t token, const unsigned char *bytes,
                                  size_t n)
{
    size_t i;

    if (token != TOK__NONE) {
        tok__put(sink, token);
        return TOK_OK;
    }
    for (i = 0; i < n; i++) {
        const uint32_t id = t->byte_token[bytes[i]] != TOK__NONE ? t->byte_token[bytes[i]] : t->unknown;
        if (id == TOK__NONE) return TOK_NO_TOKEN;
        tok__put(sink, id);
    }
    return TOK_OK;
}

/* Encodes text [n], one word of a byte-level vocabulary or a whole text of a SentencePiece one; 0 < n < 2^32 - 1. */
static tok_status tok__merge_text(const tok_tokenizer *t, tok__work *work, const unsigned char *text, size_t n,
                                  tok__sink *sink)
{
    uint32_t at;
    tok_status status = TOK_OK;

    if (!tok__work_reserve(work, n)) return TOK_OUT_OF_MEMORY;
    work->heap_count = 0;
    tok__split(t, work, text, n);
    for (at = 0; at < n; at = work->next[at])
        if (!tok__offer(t, work, text, n, at)) return TOK_OUT_OF_MEMORY;

    while (work->heap_count) {
        const uint64_t key = tok__heap_pop(work);
        const uint32_t left = (uint32_t)key;
        uint32_t rank, right, token;

        if (work->next[left] == 0) continue;  /* merged into its left neighbour */
        token = tok__pair(t, work, text, n, left, &rank);
        if (token == TOK__NONE || rank != key >> 32) continue;
        right = work->next[left];
        work->token[left] = token;
        work->next[left] = work->next[right];
        if (work->next[left] < n) work->previous[work->next[left]] = left;
        work->next[right] = 0;
        if (!tok__offer(t, work, text, n, left)) return TOK_OUT_OF_MEMORY;
        if (work->previous[left] != TOK__NONE && !tok__offer(t, work, text, n, work->previous[left]))
            return TOK_OUT_OF_MEMORY;
    }
    for (at = 0; at < n && status == TOK_OK; at = work->next[at])
        status = tok__put_symbol(t, sink, work->token[at], text + at, work->next[at] - at);
    return status;
}

/* =====================================================================================================================
 * >>tok-encode                                                                        Segments, special tokens, BOS
 *
 * The segments are laid out as one text. Special tokens are found first, leftmost and then longest; control tokens
 * count only where they lie within one scaffold segment. What is between them goes through words and merges.
 * ================================================================================================================== */

/* In specials[low..high), which share their first `depth` bytes and are longer: the first whose next byte is not
 * below. */
static uint32_t tok__narrow(const tok_tokenizer *t, uint32_t low, uint32_t high, size_t depth, unsigned next)
{
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (t->pool[t->tokens[t->specials[middle]].offset + depth] < next) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The longest special token that text [n] begins with, or NONE; control tokens up to `scaffold` bytes only. The sorted
 * names are narrowed byte by byte to those that go on as the text does: a trie without nodes. */
static uint32_t tok__find_special(const tok_tokenizer *t, const unsigned char *text, size_t n, size_t scaffold)
{
    uint32_t low = 0, high = t->special_count, best = TOK__NONE;
    size_t depth = 0;

    while (depth < n) {
        const unsigned next = text[depth];
        low = tok__narrow(t, low, high, depth, next);
        high = tok__narrow(t, low, high, depth, next + 1);
        for (depth++; low < high && t->tokens[t->specials[low]].length == depth; low++)
            if (!(t->tokens[t->specials[low]].flags & TOK__CONTROL) || depth <= scaffold) best = t->specials[low];
        if (low == high) break;
    }
    return best;
}

/* Whether no token spans the boundary before `at`, a place inside the text; merging stops there anyway. Cutting a
 * SentencePiece text at such places (mostly the ends of words) gives the same ids from much smaller heaps. */
static int tok__never_joined(const tok_tokenizer *t, const unsigned char *at)
{
    const unsigned pair = (unsigned)at[-1] << 8 | at[0];
    return (at[0] & 0xC0) != 0x80 && !(t->joined[pair / 8] >> pair % 8 & 1);
}

/* Ordinary text between special tokens; prefix: put the blank of SentencePiece vocabularies before it. */
static tok_status tok__encode_between(const tok_tokenizer *t, tok__work *work, const unsigned char *text, size_t n,
                                      int prefix, tok__sink *sink)
{
    size_t at, end, length = 0;
    tok_status status = TOK_OK;

    if (t->byte_level) {
        for (at = 0; at < n && status == TOK_OK; at = end) {
            uint32_t whole;
            end = tok__word_end(t->pre, text, n, at);
            whole = t->pre->whole_words ? tok__find_text(t, text + at, end - at) : TOK__NONE;
            if (whole != TOK__NONE) tok__put(sink, whole);
            else status = tok__merge_text(t, work, text + at, end - at, sink);
        }
        return status;
    }
    if (prefix) work->text[length++] = ' ';
    length += tok__resolve(t, text, n, work->text + length);
    for (at = 0; at < length && status == TOK_OK; at = end) {
        for (end = at + 1; end < length && !tok__never_joined(t, work->text + end); end++) {
        }
        status = tok__merge_text(t, work, work->text + at, end - at, sink);
    }
    return status;
}

/* text [n]: the segments one after the other */
static tok_status tok__encode_all(const tok_tokenizer *t, tok__work *work, const unsigned char *text, size_t n,
                                  const tok_segment *segments, tok__sink *sink)
{
    size_t at = 0, start = 0, segment = 0, segment_end = segments[0].length;
    int after_special = 1;
    tok_status status = TOK_OK;

    while (at < n) {
        uint32_t special = TOK__NONE;
        while (at >= segment_end) segment_end += segments[++segment].length;
        if (t->special_first[text[at]])
            special = tok__find_special(t, text + at, n - at, segments[segment].scaffold ? segment_end - at : 0);
        if (special == TOK__NONE) {
            at++;
            continue;
        }
        if (at > start)
            status = tok__encode_between(t, work, text + start, at - start, after_special && t->space_prefix, sink);
        if (status != TOK_OK) return status;
        tok__put(sink, special);
        after_special = 1;
        at += t->tokens[special].length;
        start = at;
    }
    if (at > start)
        status = tok__encode_between(t, work, text + start, at - start, after_special && t->space_prefix, sink);
    return status;
}

/* bos: put it first if the text does not; NONE for no BOS */
static tok_status tok__encode(const tok_tokenizer *t, const tok_segment *segments, size_t segment_count, uint32_t bos,
                              int32_t *ids, size_t capacity, size_t *count)
{
    tok__work work;
    tok__sink sink;
    unsigned char *text;
    size_t i, n = 0;
    tok_status status = TOK_OK;

    for (i = 0; i < segment_count; i++) {
        if (segments[i].length && !segments[i].text) return TOK_BAD_ARGUMENT;
        if (segments[i].length >= UINT32_MAX - 1 - n) return TOK_BAD_ARGUMENT;
        n += segments[i].length;
    }
    memset(&work, 0, sizeof work);
    sink.ids = ids;
    sink.capacity = capacity;
    sink.count = 0;
    sink.bos = bos;
    text = (unsigned char *)malloc(n + 1);
    work.text = t->byte_level ? NULL : (unsigned char *)malloc(n + 1);
    if (!text || (!t->byte_level && !work.text)) {
        status = TOK_OUT_OF_MEMORY;
    } else if (n) {
        n = 0;
        for (i = 0; i < segment_count; i++) {
            if (segments[i].length) memcpy(text + n, segments[i].text, segments[i].length);
            n += segments[i].length;
        }
        status = tok__encode_all(t, &work, text, n, segments, &sink);
    }
    if (status == TOK_OK && sink.bos != TOK__NONE && !sink.count) {  /* nothing but BOS */
        sink.bos = TOK__NONE;
        tok__put(&sink, bos);
    }
    tok__work_close(&work);
    free(text);
    *count = status == TOK_OK ? sink.count : 0;
    return status == TOK_OK && sink.count > capacity ? TOK_NO_ROOM : status;
}

TOK_API tok_status tok_encode(const tok_tokenizer *t, const tok_segment *segments, size_t segment_count, int flags,
                              int32_t *ids, size_t capacity, size_t *count)
{
    if (!t || !count || (segment_count && !segments) || (capacity && !ids)) return TOK_BAD_ARGUMENT;
    return tok__encode(t, segments, segment_count, (flags & TOK_BEGIN) && t->add_bos ? t->bos : TOK__NONE, ids,
                       capacity, count);
}

TOK_API tok_status tok_encode_text(const tok_tokenizer *t, const char *text, size_t length, int flags, int32_t *ids,
                                   size_t capacity, size_t *count)
{
    tok_segment segment;

    segment.text = text;
    segment.length = length;
    segment.scaffold = 0;
    return tok_encode(t, &segment, 1, flags, ids, capacity, count);
}

/* =====================================================================================================================
 * >>tok-chat                                                                                             Chat templates
 *
 * Templates in files are programs; running them is not worth the risk, so that the usual ones are built in. Roles and
 * texts are content: whatever they contain, the only control tokens are those that the template places.
 * ================================================================================================================== */

#define TOK__TURN_SEGMENTS 5

static void tok__add(tok_segment *segments, size_t *n, const char *text, size_t length, int scaffold)
{
    segments[*n].text = text;
    segments[*n].length = length;
    segments[*n].scaffold = scaffold;
    ++*n;
}

static int tok__ascii_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The beginning of a turn, up to the text. */
static void tok__add_head(tok_template kind, tok_segment *segments, size_t *n, const char *role)
{
    const char *before = kind == TOK_TEMPLATE_CHATML ? "<|im_start|>" : "<|start_header_id|>";
    const char *after = kind == TOK_TEMPLATE_CHATML ? "\n" : "<|end_header_id|>\n\n";

    tok__add(segments, n, before, strlen(before), 1);
    tok__add(segments, n, role, strlen(role), 0);
    tok__add(segments, n, after, strlen(after), 1);
}

static void tok__add_turn(tok_template kind, tok_segment *segments, size_t *n, const tok_message *message)
{
    const char *after = kind == TOK_TEMPLATE_CHATML ? "<|im_end|>\n" : "<|eot_id|>";
    const char *text = message->text;
    size_t length = message->length;

    tok__add_head(kind, segments, n, message->role);
    if (kind == TOK_TEMPLATE_LLAMA3) {  /* this template trims */
        while (length && tok__ascii_space(text[length - 1])) length--;
        while (length && tok__ascii_space(text[0])) text++, length--;
    }
    tok__add(segments, n, text, length, 0);
    tok__add(segments, n, after, strlen(after), 1);
}

TOK_API tok_status tok_encode_chat(const tok_tokenizer *t, const tok_message *messages, size_t message_count, int flags,
                                   int32_t *ids, size_t capacity, size_t *count)
{
    tok_segment *segments;
    size_t i, n = 0;
    uint32_t bos;
    tok_status status;

    if (!t || !count || (message_count && !messages) || (capacity && !ids)) return TOK_BAD_ARGUMENT;
    for (i = 0; i < message_count; i++)
        if (!messages[i].role || (messages[i].length && !messages[i].text)) return TOK_BAD_ARGUMENT;
    if (message_count > SIZE_MAX / (TOK__TURN_SEGMENTS * sizeof *segments) - 1) return TOK_BAD_ARGUMENT;
    segments = (tok_segment *)malloc((message_count + 1) * TOK__TURN_SEGMENTS * sizeof *segments);
    if (!segments) return TOK_OUT_OF_MEMORY;

    for (i = 0; i < message_count; i++) {
        if (t->template_kind == TOK_TEMPLATE_CHATML || t->template_kind == TOK_TEMPLATE_LLAMA3) {
            tok__add_turn(t->template_kind, segments, &n, &messages[i]);
        } else {
            if (i) tok__add(segments, &n, "\n", 1, 1);
            tok__add(segments, &n, messages[i].text, messages[i].length, 0);
        }
    }
    if ((flags & TOK_ANSWER) && t->template_kind >= TOK_TEMPLATE_CHATML)
        tok__add_head(t->template_kind, segments, &n, "assistant");
    bos = (flags & TOK_BEGIN) && (t->add_bos || t->template_bos) ? t->bos : TOK__NONE;
    status = tok__encode(t, segments, n, bos, ids, capacity, count);
    free(segments);
    return status;
}

TOK_API tok_template tok_template_kind(const tok_tokenizer *t)
{
    return t ? t->template_kind : TOK_TEMPLATE_NONE;
}

TOK_API const char *tok_template_string(tok_template kind)
{
    switch (kind) {
    case TOK_TEMPLATE_NONE: return "none";
    case TOK_TEMPLATE_UNKNOWN: return "unknown";
    case TOK_TEMPLATE_CHATML: return "chatml";
    case TOK_TEMPLATE_LLAMA3: return "llama-3";
    default: return "?";
    }
}

/* =====================================================================================================================
 * >>tok-decode                                                                     Queries, bytes of tokens, streaming
 *
 * Tokens give bytes; only the stream knows characters. It holds the beginning of a character until the rest has come,
 * and replaces as Unicode recommends: one U+FFFD for each longest beginning of a character that goes wrong.
 * ================================================================================================================== */

static const tok__token *tok__token_at(const tok_tokenizer *t, int32_t id)
{
    return t && id >= 0 && (uint32_t)id < t->count ? &t->tokens[id] : NULL;
}

TOK_API const char *tok_status_string(tok_status status)
{
    switch (status) {
    case TOK_OK: return "no error";
    case TOK_BAD_ARGUMENT: return "bad argument";
    case TOK_OUT_OF_MEMORY: return "out of memory";
    case TOK_BAD_FILE: return "bad tokenizer metadata";
    case TOK_UNSUPPORTED: return "tokenizer not supported";
    case TOK_NO_ROOM: return "the buffer is too small";
    case TOK_NO_TOKEN: return "the text has a byte without a token";
    default: return "unknown status";
    }
}

TOK_API size_t tok_vocab_size(const tok_tokenizer *t)
{
    return t ? t->count : 0;
}

TOK_API int32_t tok_bos(const tok_tokenizer *t)
{
    return t && t->bos != TOK__NONE ? (int32_t)t->bos : -1;
}

TOK_API int32_t tok_eos(const tok_tokenizer *t)
{
    return t && t->eos != TOK__NONE ? (int32_t)t->eos : -1;
}

TOK_API int tok_adds_bos(const tok_tokenizer *t)
{
    return t ? t->add_bos : 0;
}

TOK_API int tok_is_stop(const tok_tokenizer *t, int32_t id)
{
    const tok__token *token = tok__token_at(t, id);
    return token && (token->flags & TOK__STOP);
}

TOK_API int tok_is_control(const tok_tokenizer *t, int32_t id)
{
    const tok__token *token = tok__token_at(t, id);
    return token && (token->flags & TOK__CONTROL);
}

TOK_API tok_status tok_add_stop(tok_tokenizer *t, int32_t id)
{
    if (!tok__token_at(t, id)) return TOK_BAD_ARGUMENT;
    t->tokens[id].flags |= TOK__STOP;
    return TOK_OK;
}

TOK_API tok_status tok_token_bytes(const tok_tokenizer *t, int32_t id, int show_control, const char **bytes,
                                   size_t *length)
{
    const tok__token *token = tok__token_at(t, id);

    if (!token || !bytes || !length) return TOK_BAD_ARGUMENT;
    *bytes = (const char *)t->pool + token->offset;
    *length = (token->flags & TOK__CONTROL) && !show_control ? 0 : token->length;
    return TOK_OK;
}

TOK_API tok_status tok_decode(const tok_tokenizer *t, const int32_t *ids, size_t id_count, char *text, size_t capacity,
                              size_t *count)
{
    int prefix;
    size_t i, n = 0;

    if (!t || !count || (id_count && !ids) || (capacity && !text)) return TOK_BAD_ARGUMENT;
    prefix = t->space_prefix;
    for (i = 0; i < id_count; i++) {
        const char *bytes;
        size_t length, room;
        if (tok_token_bytes(t, ids[i], 0, &bytes, &length) != TOK_OK) return TOK_BAD_ARGUMENT;
        if (!length) continue;
        if (prefix && bytes[0] == ' ') bytes++, length--;
        prefix = 0;
        room = n < capacity ? capacity - n : 0;
        if (length < room) room = length;
        if (room) memcpy(text + n, bytes, room);
        n += length;
    }
    *count = n;
    return n > capacity ? TOK_NO_ROOM : TOK_OK;
}

/* Appends what fits; *n counts what was needed. */
static void tok__append(char *text, size_t capacity, size_t *n, const unsigned char *bytes, size_t length)
{
    if (*n <= capacity && length <= capacity - *n) memcpy(text + *n, bytes, length);
    *n += length;
}

static const unsigned char tok__replacement[3] = {0xEF, 0xBF, 0xBD};  /* U+FFFD */

TOK_API tok_status tok_stream_push(tok_stream *stream, const char *bytes, size_t length, char *text, size_t capacity,
                                   size_t *count)
{
    tok_stream s;
    size_t i, n = 0;

    if (!stream || !count || (length && !bytes) || (capacity && !text) || stream->held_count > 3)
        return TOK_BAD_ARGUMENT;
    s = *stream;
    for (i = 0; i < length; i++) {
        const unsigned char byte = (unsigned char)bytes[i];
        if (s.held_count && !tok__utf8_follows(s.held, s.held_count, byte)) {
            tok__append(text, capacity, &n, tok__replacement, 3);
            s.held_count = 0;
        }
        if (!s.held_count && !tok__utf8_length(byte)) {
            tok__append(text, capacity, &n, tok__replacement, 3);
            continue;
        }
        s.held[s.held_count++] = byte;
        if (s.held_count == tok__utf8_length(s.held[0])) {
            tok__append(text, capacity, &n, s.held, s.held_count);
            s.held_count = 0;
        }
    }
    *count = n;
    if (n > capacity) return TOK_NO_ROOM;
    *stream = s;
    return TOK_OK;
}

TOK_API tok_status tok_stream_flush(tok_stream *stream, char *text, size_t capacity, size_t *count)
{
    if (!stream || !count || (capacity && !text)) return TOK_BAD_ARGUMENT;
    *count = stream->held_count ? 3 : 0;
    if (*count > capacity) return TOK_NO_ROOM;
    if (*count) memcpy(text, tok__replacement, 3);
    stream->held_count = 0;
    return TOK_OK;
}

#ifdef __cplusplus
}
#endif

#endif /* TOKENIZER_IMPLEMENTATION */
