"""Minimal GGUF v3 container (reader and writer) and the ggml block formats (quantise and dequantise).

Arrays are NumPy row-major: a GGUF tensor {in, out} is an array of shape (out, in).
Every quantiser takes f32 blocks of shape (n, elements) and returns bytes of shape (n, size); every dequantiser is the
inverse and returns f32. Q8_0, Q4_0, Q4_1 and MXFP4 quantise exactly as ggml's reference rows do. The K-quant quantisers
are plain min/max ones (any quantiser is legal there); their dequantisers are exact.
"""
import struct
from collections import namedtuple

import numpy as np

DEFAULT_ALIGNMENT = 32
F32 = np.float32

BlockFormat = namedtuple("BlockFormat", "type_id elements size quantise dequantise")
Tensor = namedtuple("Tensor", "type values")       # type: key of FORMATS; values: f32 array (out, in) or (n,)


# ---------------------------------------------------------------------------------------------- scalar formats

def _f16_bytes(x):
    """f32 array (...,) -> u8 array (..., 2), little-endian IEEE half, round to nearest even."""
    with np.errstate(over="ignore"):
        half = np.ascontiguousarray(x, F32).astype("<f2")
    return half.view(np.uint8).reshape(x.shape + (2,))


def _f16_values(b):
    """u8 array (..., 2) -> f32 array (...,)."""
    return np.ascontiguousarray(b).view("<f2")[..., 0].astype(F32)


def _quantise_f32(x):
    return np.ascontiguousarray(x, "<f4").view(np.uint8)


def _dequantise_f32(b):
    return np.ascontiguousarray(b).view("<f4").astype(F32)


def _quantise_bf16(x):
    bits = np.ascontiguousarray(x, "<f4").view("<u4").astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")        # nearest, ties to even
    return rounded.view(np.uint8)


def _dequantise_bf16(b):
    return (np.ascontiguousarray(b).view("<u2").astype("<u4") << 16).view("<f4").astype(F32)


# ---------------------------------------------------------------------------------------------- 32-element blocks

def _inverse(d):
    return np.divide(F32(1), d, out=np.zeros_like(d), where=d != 0)


def _pack_nibbles(q):
    """Codes (n, 32) -> bytes (n, 16): element j in the low nibble of byte j, element j + 16 in the high one."""
    return (q[:, :16] | (q[:, 16:] << 4)).astype(np.uint8)


def _unpack_nibbles(b):
    return np.concatenate([b & 15, b >> 4], axis=1).astype(np.int32)


def _quantise_q8_0(x):
    d = (np.abs(x).max(axis=1) / F32(127)).astype(F32)
    scaled = (x * _inverse(d)[:, None]).astype(np.float64)
    q = np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)                        # half away from zero
    return np.concatenate([_f16_bytes(d), q.astype(np.int8).view(np.uint8)], axis=1)


def _dequantise_q8_0(b):
    return _f16_values(b[:, :2])[:, None] * b[:, 2:].view(np.int8).astype(F32)


def _quantise_q4_0(x):
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0]
    d = (extreme / F32(-8)).astype(F32)
    q = np.minimum(15, np.trunc(x * _inverse(d)[:, None] + F32(8.5))).astype(np.int32)
    return np.concatenate([_f16_bytes(d), _pack_nibbles(q)], axis=1)


def _dequantise_q4_0(b):
    return _f16_values(b[:, :2])[:, None] * (_unpack_nibbles(b[:, 2:]) - 8).astype(F32)


def _quantise_q4_1(x):
    low = x.min(axis=1)
    d = ((x.max(axis=1) - low) / F32(15)).astype(F32)
    q = np.minimum(15, np.trunc((x - low[:, None]) * _inverse(d)[:, None] + F32(0.5))).astype(np.int32)
    return np.concatenate([_f16_bytes(d), _f16_bytes(low), _pack_nibbles(q)], axis=1)


def _dequantise_q4_1(b):
    return _f16_values(b[:, :2])[:, None] * _unpack_nibbles(b[:, 4:]).astype(F32) + _f16_values(b[:, 2:4])[:, None]


E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], F32)


def _e8m0_half(e):
    """2^(e - 128): half of the E8M0 scale, to go with the doubled E2M1 table."""
    return np.ldexp(F32(1), e.astype(np.int32) - 128).astype(F32)


def _quantise_mxfp4(x):
    amax = np.abs(x).max(axis=1)
    exponent = np.frexp(amax)[1] - 1                                            # floor(log2(amax))
    e = np.where(amax > 0, np.clip(exponent - 2 + 127, 0, 254), 0).astype(np.uint8)
    error = np.abs(E2M1_DOUBLED * _e8m0_half(e)[:, None, None] - x[:, :, None])
    return np.concatenate([e[:, None], _pack_nibbles(error.argmin(axis=2).astype(np.int32))], axis=1)


def _dequantise_mxfp4(b):
    return _e8m0_half(b[:, 0])[:, None] * E2M1_DOUBLED[_unpack_nibbles(b[:, 1:])]


# ---------------------------------------------------------------------------------------------- K-quants (256)

def pack_scales(sc, m):
    """Eight 6-bit scales and eight 6-bit minima, each (n, 8), -> (n, 12) bytes."""
    first = sc[:, :4] | ((sc[:, 4:] >> 4) << 6)
    second = m[:, :4] | ((m[:, 4:] >> 4) << 6)
    third = (sc[:, 4:] & 15) | ((m[:, 4:] & 15) << 4)
    return np.concatenate([first, second, third], axis=1).astype(np.uint8)


def unpack_scales(s):
    """The inverse of pack_scales."""
    sc = np.concatenate([s[:, :4] & 63, (s[:, 8:] & 15) | ((s[:, :4] >> 6) << 4)], axis=1)
    m = np.concatenate([s[:, 4:8] & 63, (s[:, 8:] >> 4) | ((s[:, 4:8] >> 6) << 4)], axis=1)
    return sc, m


def _affine_codes(x, levels):
    """Shared part of Q4_K and Q5_K. x (n, 256) -> (header (n, 16), codes (n, 8, 32))."""
    sub = x.reshape(-1, 8, 32)
    minimum = np.maximum(0, -sub.min(axis=2))
    scale = np.maximum(0, sub.max(axis=2) + minimum) / F32(levels)
    d_bytes, dmin_bytes = _f16_bytes(scale.max(axis=1) / F32(63)), _f16_bytes(minimum.max(axis=1) / F32(63))
    d, dmin = _f16_values(d_bytes)[:, None], _f16_values(dmin_bytes)[:, None]
    sc = np.clip(np.rint(scale * _inverse(d)), 0, 63).astype(np.int32)
    m = np.clip(np.rint(minimum * _inverse(dmin)), 0, 63).astype(np.int32)
    codes = np.rint((sub + (dmin * m)[:, :, None]) * _inverse((d * sc).astype(F32))[:, :, None])
    header = np.concatenate([d_bytes, dmin_bytes, pack_scales(sc, m)], axis=1)
    return header, np.clip(codes, 0, levels).astype(np.int32)


def _affine_values(b, codes):
    """w = (d sc) q - (dmin m), one f32 rounding (both products are exact in f32)."""
    sc, m = unpack_scales(b[:, 4:16])
    d, dmin = _f16_values(b[:, :2])[:, None], _f16_values(b[:, 2:4])[:, None]
    return ((d * sc)[:, :, None] * codes.astype(F32) - (dmin * m)[:, :, None]).astype(F32).reshape(-1, 256)


def _quantise_q4_k(x):
    header, codes = _affine_codes(x, 15)
    qs = codes[:, 0::2] | (codes[:, 1::2] << 4)                                 # (n, 4 chunks, 32)
    return np.concatenate([header, qs.reshape(-1, 128).astype(np.uint8)], axis=1)


def _dequantise_q4_k(b):
    qs = b[:, 16:].reshape(-1, 4, 32)
    return _affine_values(b, np.stack([qs & 15, qs >> 4], axis=2).reshape(-1, 8, 32))


def _quantise_q5_k(x):
    header, codes = _affine_codes(x, 31)
    low, high = codes & 15, codes >> 4
    qh = np.bitwise_or.reduce(high << np.arange(8)[:, None], axis=1)            # bit s = fifth bit of sub-block s
    qs = low[:, 0::2] | (low[:, 1::2] << 4)
    return np.concatenate([header, qh.astype(np.uint8), qs.reshape(-1, 128).astype(np.uint8)], axis=1)


def _dequantise_q5_k(b):
    qs = b[:, 48:].reshape(-1, 4, 32)
    low = np.stack([qs & 15, qs >> 4], axis=2).reshape(-1, 8, 32)
    high = (b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    return _affine_values(b, low | (high << 4))


def _quantise_q6_k(x):
    sub = x.reshape(-1, 16, 16)
    scale = np.abs(sub).max(axis=2) / F32(31)
    d_bytes = _f16_bytes(scale.max(axis=1) / F32(127))
    d = _f16_values(d_bytes)[:, None]
    sc = np.clip(np.rint(scale * _inverse(d)), 0, 127)
    codes = np.clip(np.rint(sub * _inverse((d * sc).astype(F32))[:, :, None]), -32, 31).astype(np.int32) + 32
    codes = codes.reshape(-1, 2, 4, 32)                                         # half, quarter, element
    ql = (codes[:, :, :2] & 15) | ((codes[:, :, 2:] & 15) << 4)
    qh = np.bitwise_or.reduce((codes >> 4) << (2 * np.arange(4)[:, None]), axis=2)
    return np.concatenate([ql.reshape(-1, 128).astype(np.uint8), qh.reshape(-1, 64).astype(np.uint8),
                           sc.astype(np.int8).view(np.uint8), d_bytes], axis=1)


def _dequantise_q6_k(b):
    ql, qh = b[:, :128].reshape(-1, 2, 2, 32), b[:, 128:192].reshape(-1, 2, 1, 32)
    low = np.concatenate([ql & 15, ql >> 4], axis=2)
    high = (qh >> (2 * np.arange(4, dtype=np.uint8)[:, None])) & 3
    codes = (low | (high << 4)).astype(np.int32).reshape(-1, 16, 16) - 32
    scale = _f16_values(b[:, 208:])[:, None] * b[:, 192:208].view(np.int8).astype(F32)
    return (scale[:, :, None] * codes.astype(F32)).reshape(-1, 256)


FORMATS = {
    "F32": BlockFormat(0, 1, 4, _quantise_f32, _dequantise_f32),
    "F16": BlockFormat(1, 1, 2, lambda x: _f16_bytes(x)[:, 0], lambda b: _f16_values(b)[:, None]),
    "BF16": BlockFormat(30, 1, 2, _quantise_bf16, _dequantise_bf16),
    "Q4_0": BlockFormat(2, 32, 18, _quantise_q4_0, _dequantise_q4_0),
    "Q4_1": BlockFormat(3, 32, 20, _quantise_q4_1, _dequantise_q4_1),
    "Q8_0": BlockFormat(8, 32, 34, _quantise_q8_0, _dequantise_q8_0),
    "Q4_K": BlockFormat(12, 256, 144, _quantise_q4_k, _dequantise_q4_k),
    "Q5_K": BlockFormat(13, 256, 176, _quantise_q5_k, _dequantise_q5_k),
    "Q6_K": BlockFormat(14, 256, 210, _quantise_q6_k, _dequantise_q6_k),
    "MXFP4": BlockFormat(39, 32, 17, _quantise_mxfp4, _dequantise_mxfp4),
}
NAME_OF_TYPE_ID = {fmt.type_id: name for name, fmt in FORMATS.items()}


def quantise(type_name, values):
    """f32 array whose last dimension is a multiple of the block -> u8 array (blocks, block size)."""
    fmt = FORMATS[type_name]
    if values.shape[-1] % fmt.elements:
        raise ValueError(f"{type_name}: a row of {values.shape[-1]} is not a multiple of {fmt.elements}")
    return fmt.quantise(np.ascontiguousarray(values, F32).reshape(-1, fmt.elements))


def dequantise(type_name, data, shape):
    """Bytes of whole blocks -> f32 array of the given shape."""
    fmt = FORMATS[type_name]
    return fmt.dequantise(np.frombuffer(data, np.uint8).reshape(-1, fmt.size)).reshape(shape)


# ---------------------------------------------------------------------------------------------- container

U32, F32_VALUE, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
SCALAR_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def _pack_string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value_type(value):
    return {bool: BOOL, int: U32, float: F32_VALUE, str: STRING, list: ARRAY}[type(value)]


def _pack_value(value):
    kind = _value_type(value)
    if kind == ARRAY:
        return struct.pack("<IQ", _value_type(value[0]), len(value)) + b"".join(map(_pack_value, value))
    return _pack_string(value) if kind == STRING else struct.pack("<" + SCALAR_CODES[kind], value)


def write(path, metadata, tensors):
    """metadata: key -> bool / int (u32) / float (f32) / str / list of one of them. tensors: name -> Tensor."""
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        header += _pack_string(key) + struct.pack("<I", _value_type(value)) + _pack_value(value)
    body = b""
    for name, (type_name, values) in tensors.items():
        ne = values.shape[::-1]
        body += bytes(-len(body) % alignment)
        header += _pack_string(name)
        header += struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, FORMATS[type_name].type_id, len(body))
        body += quantise(type_name, values).tobytes()
    with open(path, "wb") as out:
        out.write(header + bytes(-len(header) % alignment) + body)


class _Cursor:
    """Little-endian reader. Nothing is validated: for files that this module wrote."""

    def __init__(self, data):
        self.data, self.position = data, 0

    def unpack(self, codes):
        values = struct.unpack_from("<" + codes, self.data, self.position)
        self.position += struct.calcsize("<" + codes)
        return values if len(values) > 1 else values[0]

    def string(self):
        length = self.unpack("Q")
        self.position += length
        return self.data[self.position - length:self.position].decode()

    def value(self, kind):
        if kind == ARRAY:
            element_kind, count = self.unpack("IQ")
            return [self.value(element_kind) for _ in range(count)]
        return self.string() if kind == STRING else self.unpack(SCALAR_CODES[kind])


def read(path):
    """-> (metadata: key -> value, tensors: name -> Tensor)."""
    with open(path, "rb") as source:
        cursor = _Cursor(source.read())
    magic, version, n_tensors, n_keys = cursor.unpack("4sIQQ")
    if magic != b"GGUF" or version != 3:
        raise ValueError(f"{path}: not a GGUF v3 file")
    metadata = {}
    for _ in range(n_keys):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.unpack("I"))
    infos = []
    for _ in range(n_tensors):
        name = cursor.string()
        ne = [cursor.unpack("Q") for _ in range(cursor.unpack("I"))]
        infos.append((name, ne, *cursor.unpack("IQ")))
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    start = cursor.position + -cursor.position % alignment
    tensors = {}
    for name, ne, type_id, offset in infos:
        type_name = NAME_OF_TYPE_ID[type_id]
        fmt = FORMATS[type_name]
        n_bytes = int(np.prod(ne)) // fmt.elements * fmt.size
        data = cursor.data[start + offset:start + offset + n_bytes]
        tensors[name] = Tensor(type_name, dequantise(type_name, data, ne[::-1]))
    return metadata, tensors
