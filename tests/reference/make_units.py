"""Write unit_vectors.txt: small input/output vectors for single functions, and check the worked examples of format.md,
section 5, on the way. Record format: README.md.

    python3 make_units.py
"""
import pathlib
import struct

import numpy as np

import gguf
import model

F32 = np.float32
COUPLINGS = ("none", "branches", "all")             # written as 0, 1, 2
SCALINGS = ("none", "linear", "yarn")               # written as 0, 1, 2
NO_SCALING = {"type": "none", "factor": 1, "original_context_length": 128, "attn_factor": 1,
              "yarn_beta_fast": 32, "yarn_beta_slow": 1}
EPS = float(F32(1e-6))

records = []
rng = np.random.default_rng(20)


def single(x):
    """Values that are exact in f32, as float64."""
    return np.asarray(x, F32).astype(np.float64)


def normal(*shape):
    return single(rng.standard_normal(shape))


def record(operation, name, inputs, outputs):
    lines = [f"record {operation} {name}"]
    for direction, arrays in (("in", inputs), ("out", outputs)):
        for key, values in arrays.items():
            flat = np.ravel(values).astype(np.float64)
            assert np.isfinite(flat).all(), (operation, name, key)
            assert direction == "out" or (flat == single(flat)).all(), (operation, name, key)
            text = " ".join(f"{int(v)}" if v == int(v) and abs(v) < 1e9 else f"{v:.12g}" for v in flat.tolist())
            lines.append(f"{direction} {key} {flat.size} {text}")
    records.append("\n".join(lines + ["end"]))


def agree(values, expected, tolerance=2e-6):
    np.testing.assert_allclose(np.ravel(values), expected, rtol=0, atol=tolerance)


# ---------------------------------------------------------------------------------------------- norms and gates

def norm_records():
    x, weight = single([1, 2, -1, 4]), single([1, 1, 0.5, 0.25])
    gate_a, gate_b = single([[1, 0, 0, 1], [0, 1, -1, 0]]), single([[1, 0], [0, 1], [1, 1], [-2, 0]])
    pre = single([1, 1, 1, 4])
    y = model.rms_norm(x, weight, EPS)
    agree(y, [0.426401, 0.852803, -0.213201, 0.426401])
    agree(model.low_rank_gate(y, gate_a, gate_b), [0.275108, 0.587121, -0.170717, 0.099013])
    agree(model.rms_norm(x, weight, EPS, pre), [0.123560, 0.247121, -0.061780, 0.494242])

    wide = single(normal(19) * 3)
    sets = {"worked_example": (x, weight, pre, gate_a, gate_b),
            "width_19": (wide, 1 + 0.3 * normal(19), single(np.exp(normal(19))), normal(3, 19) / 3, normal(19, 3)),
            "outlier": (np.where(np.arange(19) == 7, 4000.0, wide), normal(19), np.ones(19), normal(1, 19) / 3,
                        normal(19, 1)),
            "zeros": (np.zeros(8), np.ones(8), np.ones(8), np.ones((2, 8)), np.ones((8, 2)))}
    for name, arrays in sets.items():
        x, weight, pre, gate_a, gate_b = map(single, arrays)
        base = {"eps": EPS, "x": x, "weight": weight}
        gates = {"rank": len(gate_a), "gate_a": gate_a, "gate_b": gate_b}
        y = model.rms_norm(x, weight, EPS)
        record("rms_norm", name, base, {"y": y})
        record("preaffine", name, {**base, "pre": pre}, {"y": model.rms_norm(x, weight, EPS, pre)})
        record("gated_norm", name, {**base, **gates}, {"y": model.low_rank_gate(y, gate_a, gate_b)})
        alpha, bias = single([0.7]), single(0.1 * pre)
        y = model.dyt(x, weight, alpha, bias)
        inputs = {"alpha": alpha, "x": x, "weight": weight, "bias": bias}
        record("dyt", name, inputs, {"y": y})
        record("gated_dyt", name, {**inputs, **gates}, {"y": model.low_rank_gate(y, gate_a, gate_b)})


# ---------------------------------------------------------------------------------------------- softmax family

def softmax_records():
    agree(np.append(*model.softmax_with_null(single([1, 2, -1]), 0.0)), [0.236883, 0.643914, 0.032059, 0.087144])
    agree(np.append(*model.softmax_with_null(single([1, 2, -1]), -0.5)), [0.245294, 0.666777, 0.033197, 0.054732])
    values = np.array([[1, 0], [0, 2], [4, 4]])
    agree(model.softmax_with_null(single([1, 2, -1]), 0.0)[0] @ values, [0.365117, 1.416063])
    agree(model.softmax_with_null(single([1, 2, -1]))[0] @ values, [0.399973, 1.551245])

    logits = {"worked_example": [1, 2, -1], "one": [0.5], "huge_positive": [10000, 9999, -10000],
              "largest": [1e30, 1e30, 0], "huge_negative": [-10000, -10001, -9999.5], "minus_hundred": [-100, -101],
              "plus_hundred": [100, 99], "equal_zero": [0] * 5, "equal_plus": [60] * 7, "equal_minus": [-60] * 7,
              "exp_edge": [88.5, 89, -88.5], "random_37": normal(37) * 3}
    for name, x in logits.items():
        x = single(x)
        record("softmax", name, {"logits": x}, {"p": model.softmax_with_null(x)[0]})
        p, null = model.softmax_with_null(x, 0.0)
        record("softmax1", name, {"logits": x}, {"p": p, "null": null})
        for label, sink in (("", -0.5), ("_high", 12.0), ("_huge", 2000.0), ("_low", -2000.0)):
            p, null = model.softmax_with_null(x, sink)
            record("sink_softmax", name + label, {"logits": x, "sink": sink}, {"p": p, "null": null})
    p = single([0, 0.01, 0.03, 0.5, 0.96, 1])
    for gamma, zeta in ((-0.03, 1.03), (-0.1, 1.0), (0.0, 1.2), (0.05, 0.9)):
        gamma, zeta = float(F32(gamma)), float(F32(zeta))
        record("clip", f"{gamma:.2f}_{zeta:.2f}", {"gamma": gamma, "zeta": zeta, "p": p},
               {"p": model.clip_probabilities(p, gamma, zeta)})


# ---------------------------------------------------------------------------------------------- depth reads

def depth_read_record(name, candidates, score, psi, beta, coupling, null):
    """null: 1 = softmax1 over depth. -> the read vector."""
    g = model.couple(model.score_logits(candidates, score, EPS), psi, beta, coupling)
    alpha, alpha_null = model.softmax_with_null(g, 0.0 if null else None)
    record("depth_read", name,
           {"n": len(candidates), "d": candidates.shape[1], "eps": EPS, "softmax1": null,
            "coupling": COUPLINGS.index(coupling), "beta": beta, "psi": psi, "score": score, "candidates": candidates},
           {"g": g, "alpha": alpha, "null": alpha_null, "read": alpha @ candidates})
    return alpha, alpha @ candidates


def block_attnres_example():
    """The three-layer block pass of format.md, section 5; every read becomes a record."""
    attn = [np.array(m) for m in ([[0, 1], [1, 0]], [[1, 0], [0, -1]], [[0.5, 0.5], [-0.5, 0.5]])]
    ffn = [np.array(m) for m in ([[0.5, 0], [0, 0.5]], [[0, -1], [1, 0]], [[1, 1], [0, 1]])]
    w_attn, w_ffn = single([[.3, -.2], [.5, .1], [-.4, .6]]), single([[.2, .2], [-.1, .3], [.7, -.5]])
    w_out = single([.25, .75])
    done, total, weights = [], np.array([1.0, 2.0]), []

    def read(name, score):
        if not done:
            return total
        candidates = single(np.stack(done + [total]))
        alpha, h = depth_read_record(f"block_{name}", candidates, score, np.zeros(len(candidates)), 0.0, "none", 0)
        weights.append(alpha)
        return h
    for layer in range(3):
        h = read(f"attn_{layer}", w_attn[layer])
        if layer % 2 == 0:
            done.append(total)
            total = 0
        total = total + attn[layer] @ h
        total = total + ffn[layer] @ read(f"ffn_{layer}", w_ffn[layer])
    out = read("output", w_out)
    agree(total, [5.466418, 1.184505])
    agree(weights[1], [0.442810, 0.557190])
    agree(weights[-1], [0.420156, 0.334176, 0.245668])
    agree(out, [2.945436, 1.907995])


def depth_records():
    block_attnres_example()
    psi = single([0, 0.8, 0.2])
    for coupling, expected in (("branches", [0.244458, 0.181099, 0.329984, 0.244458]),
                               ("all", [0.335054, 0.150550, 0.274319, 0.240077])):
        g = model.couple(np.zeros(3), psi, 1.0, coupling)
        agree(np.append(*model.softmax_with_null(g, 0.0)), expected)
        depth_read_record(f"example_{coupling}", normal(3, 4), np.zeros(4), psi, 1.0, coupling, 1)
    for n in (2, 3, 7):
        candidates, score, psi = normal(n, 10) * 2, normal(10) / 2, single(rng.uniform(0, 0.9, n))
        psi[0] = 0
        for coupling in COUPLINGS:
            for null in (0, 1):
                depth_read_record(f"n{n}_{coupling}_{null}", candidates, score, psi, 2.5, coupling, null)
    for name, gain, recency in (("plain", 0.5, 1.5), ("clamped", 3.0, 120.0)):
        for coupling in COUPLINGS:
            candidates, read_q, read_k = normal(5, 10), single(gain * normal(6, 10)), single(gain * normal(6, 10))
            psi = single([0, 0.1, 0.7, 0.3, 0.3])
            g = model.couple(model.router_logits(candidates, read_q, read_k, recency), psi, 2.0, coupling)
            g = np.clip(g, -model.ROUTER_LOGIT_CLAMP, model.ROUTER_LOGIT_CLAMP)
            alpha, null = model.softmax_with_null(g, 0.0)
            record("router_read", f"{name}_{coupling}",
                   {"n": 5, "d": 10, "width": 6, "softmax1": 1, "coupling": COUPLINGS.index(coupling), "beta": 2.0,
                    "psi": psi, "recency": recency, "read_q": read_q, "read_k": read_k, "candidates": candidates},
                   {"g": g, "alpha": alpha, "null": null, "read": alpha @ candidates})


# ---------------------------------------------------------------------------------------------- rope and activations

def rope_records():
    head = normal(16)
    scalings = {"none": {}, "linear": {"type": "linear", "factor": 4}, "yarn": {"type": "yarn", "factor": 4},
                "yarn_attn": {"type": "yarn", "factor": 8, "attn_factor": 1.25, "yarn_beta_fast": 8,
                              "yarn_beta_slow": 2}}
    for name, changed in scalings.items():
        scaling = {**NO_SCALING, **changed}
        for n_rot, position in ((16, 0), (16, 1), (16, 777), (10, 50)):
            for adjacent in (0, 1):
                y = model.rope(head[None, None], [position], n_rot, 10000.0, scaling, bool(adjacent))
                inputs = {"n_rot": n_rot, "position": position, "base": 10000.0, "adjacent": adjacent, **scaling,
                          "type": SCALINGS.index(scaling["type"]), "x": head}
                record("rope", f"{name}_{n_rot}_{position}_{adjacent}", inputs, {"y": y})


def activation_records():
    x = single([-1000, -90, -20, -5, -1, -0.5, -1e-4, 0, 1e-4, 0.5, 1, 5, 20, 90, 1000])
    for name in ("sigmoid", "silu", "gelu", "softplus"):
        record(name, "range", {"x": x}, {"y": getattr(model, name)(x)})
    agree(model.softplus(-5.0), [0.006715])


# ---------------------------------------------------------------------------------------------- formats

def quantise_records():
    """Quantisers are pinned for the types whose reference quantiser ggml fixes; all types are pinned for decoding."""
    ramp = single(0.1 * (np.arange(32) - 16))
    expected = {"Q4_0": "6632 8091 91a2 a2b3 b3c4 c4d5 d5e6 e6f7 f7f8", "MXFP4": "7d 0f1f2f2f3e4e4e5e5d6d6c6c6b7a7a79"}
    for kind, text in expected.items():
        assert gguf.quantise(kind, ramp).tobytes() == bytes.fromhex(text.replace(" ", "")), kind
    q8 = gguf.quantise("Q8_0", ramp)[0]
    assert q8[:2].tobytes() == bytes.fromhex("7322") and q8[2:5].view(np.int8).tolist() == [-127, -119, -111]
    q4 = gguf.quantise("Q4_0", ramp)
    agree(gguf.dequantise("Q4_0", q4.tobytes(), 32)[0], [-1.599609])
    codes = np.concatenate([q4[0, 2:] & 15, q4[0, 2:] >> 4]).astype(int) - 8
    assert codes @ q8[2:].view(np.int8).astype(int) == 10733
    sc, m = gguf.unpack_scales(np.frombuffer(bytes.fromhex("81828384c5c6c7c811223344"), np.uint8)[None])
    assert sc[0].tolist() == [1, 2, 3, 4, 33, 34, 35, 36] and m[0].tolist() == [5, 6, 7, 8, 49, 50, 51, 52]

    scalars = single([0, 1, -1, 0.1, 1 / 3, 65504, 1e-7, 6e-8, 2049, 2051, 1.00390625, 1.01171875, -3.14159265])
    blocks = {"ramp": ramp, "random": single(normal(32) * 0.05), "zeros": np.zeros(32),
              "one_outlier": np.where(np.arange(32) == 3, -9.0, ramp), "positive": single(np.abs(normal(32)) + 1),
              "halves": single(np.arange(32) / 2 - 8)}
    for kind in ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "MXFP4"):
        for name, x in (blocks.items() if gguf.FORMATS[kind].elements == 32 else [("scalars", scalars)]):
            data = gguf.quantise(kind, x)
            record("quantise", f"{kind}_{name}", {"type": gguf.FORMATS[kind].type_id, "x": x}, {"bytes": data})
            record("dequantise", f"{kind}_{name}", {"type": gguf.FORMATS[kind].type_id, "bytes": data},
                   {"x": gguf.dequantise(kind, data.tobytes(), x.shape)})
    for kind in ("Q4_K", "Q5_K", "Q6_K"):
        encoded = {"normal": gguf.quantise(kind, normal(256) * np.repeat(np.exp(normal(8)), 32))}
        noise = rng.integers(0, 256, encoded["normal"].shape).astype(np.uint8)
        halves = [208] if kind == "Q6_K" else [0, 2]
        for offset in halves:
            noise[0, offset:offset + 2] = gguf.quantise("F16", normal(1) * 0.1)[0]
        encoded["random_bytes"] = noise
        for name, data in encoded.items():
            record("dequantise", f"{kind}_{name}", {"type": gguf.FORMATS[kind].type_id, "bytes": data},
                   {"x": gguf.dequantise(kind, data.tobytes(), 256)})


def activation_quantisation_records():
    """All arithmetic in f32: scale = max|x| / levels, q = round_half_even(x / scale)."""
    x = np.array([0.7, -1.4, 0.35, 2.8])
    q, scale = model.quantise_activations(x, 4, None)
    agree(scale, [0.4])
    weights, weight_scales = np.array([[4, -2, 7, -5], [2, 4, -5, 7]]), np.array([1 / 7, 0.4 / 7])
    accumulated = weights @ q[0]
    assert q[0].tolist() == [2, -4, 1, 7] and accumulated.tolist() == [-12, 32]
    agree(accumulated * scale[0] * weight_scales, [-0.685714, 0.731429])

    ties = {4: np.resize([7, 0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, -3.5, -7, 6.5, -6.5, 0, 5.5], 32),
            8: np.resize([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 100.5, 101.5, -126.5, -127, 0], 32)}
    rows = {"zeros": np.zeros(32), "tiny": 1e-30 * normal(32),
            "two_groups": np.concatenate([normal(32), 100 * normal(32)]),
            "zero_group": np.concatenate([np.zeros(32), normal(32)]), "short_group": normal(80)}
    for label, (bits, group) in model.ACTIVATION_FORMATS.items():
        for name, x in {"ties": ties[bits], **rows}.items():
            q, scale = model.quantise_activations(np.asarray(x, F32), bits, group)
            inputs = {"bits": bits, "group": group or 0, "x": single(x)}
            record("quantise_activations", f"{label}_{name}", inputs, {"q": q.reshape(-1)[:len(x)], "scale": scale})


def matmul_records():
    """y = W x with Q4_0 rows and quantised activations; acc = integer dot product of every 32-block."""
    for label, (bits, group) in model.ACTIVATION_FORMATS.items():
        n_out, n_in = 3, 96
        data = gguf.quantise("Q4_0", normal(n_out, n_in)).reshape(n_out, -1)
        weight, x = gguf.dequantise("Q4_0", data.tobytes(), (n_out, n_in)).astype(np.float64), normal(n_in)
        blocks = data.reshape(n_out, -1, 18)
        codes = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1).astype(int) - 8
        q, _ = model.quantise_activations(x.astype(F32), bits, group)
        acc = (codes * q.reshape(-1, 32).astype(int)).sum(axis=-1)
        inputs = {"n_out": n_out, "n_in": n_in, "bits": bits, "group": group or 0, "bytes": data, "x": x}
        record("matmul_q4_0", label, inputs, {"acc": acc, "y": model.linear(x, weight, label)})


def check_minimal_container(folder):
    """The 144-byte file of format.md, section 5."""
    path = folder / "minimal.gguf"
    gguf.write(path, {"general.architecture": "llama"}, {"t": gguf.Tensor("F32", np.arange(4, dtype=F32))})
    data = path.read_bytes()
    path.unlink()
    header = ("47475546 03000000 0100000000000000 0100000000000000"
              "1400000000000000 67656e6572616c2e617263686974656374757265 08000000 0500000000000000 6c6c616d61"
              "0100000000000000 74 01000000 0400000000000000 00000000 0000000000000000")
    assert data[:102] == bytes.fromhex(header.replace(" ", "")) and len(data) == 144
    assert data[128:] == struct.pack("<4f", 0, 1, 2, 3)


def main():
    folder = pathlib.Path(__file__).resolve().parent
    check_minimal_container(folder)
    for section in (norm_records, softmax_records, depth_records, rope_records, activation_records, quantise_records,
                    activation_quantisation_records, matmul_records):
        section()
    (folder / "unit_vectors.txt").write_text("\n".join(records) + "\n")
    print(f"{len(records)} records")


if __name__ == "__main__":
    main()
