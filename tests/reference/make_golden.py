"""Generate tiny random models with their reference logits: see README.md.

    python3 make_golden.py                                  # the cases of cases.py, into ../golden
    python3 make_golden.py --cases my_cases.py --out DIR    # other cases
"""
import argparse
import importlib.util
import json
import pathlib
import re
import zlib

import numpy as np

import diagnostics
import gguf
import model

HERE = pathlib.Path(__file__).resolve().parent
BOS = 1
OUTLIER_DIM = 5             # one residual dimension is larger than the others, as in trained models
COMMON = 0.7                # strength of the direction that all embeddings share
MIN_EFFECT = 0.02           # every mechanism must move the logits by this share of their standard deviation

DEFAULTS = {
    "arch": "sinkless", "d": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ff": 64, "vocab": 80, "layers": 2,
    "tokens": 48,
    "metadata": {},         # keys without the architecture prefix; None leaves a key out
    "file_metadata": {},    # keys with their full name, for the container reader
    "gates": (),            # patterns of gated norm sites
    "gate_rank": 6,
    "pre": (),              # patterns of PreAffine norm sites
    "attn_gate": None,      # "head" or "element"
    "qk_norm": False,
    "biases": (),           # of attn_q, attn_k, attn_v, attn_output
    "tied": False,
    "router_width": 24, "recency": 1.5,
    "null_offset": 4.0,     # about how far the mean attention score lies below 0; raises the null mass
    "bos_sink": False,      # give the first token a key that all queries like
    "types": (),            # (pattern, tensor type), first match wins; other matrices are F16, vectors F32
    "quantised_activations": False,
    "unchecked": (),        # patterns of variants that need not show in the logits
}


def random_for(case, name):
    """Independent stream per tensor, so that adding a tensor changes no other one."""
    return np.random.default_rng([case["seed"], zlib.crc32(name.encode())])


def common_direction(case):
    direction = random_for(case, "common").standard_normal(case["d"])
    direction[OUTLIER_DIM] = 0
    return direction / np.linalg.norm(direction)


def matches(patterns, name):
    return any(re.fullmatch(pattern, name) for pattern in patterns)


# ---------------------------------------------------------------------------------------------- random tensors

def make_embedding(case, rng):
    rows = rng.standard_normal((case["vocab"], case["d"]))
    common = COMMON * np.sqrt(case["d"]) * common_direction(case)
    rows += common
    if case["bos_sink"]:
        rows[BOS] -= 3 * common
    rows[:, OUTLIER_DIM] *= 4
    return rows


def make_projection(case, name, n_heads):
    """Query or key rows: random, plus a component that makes queries and keys disagree along the common direction.

    It sits in the slowest rotary pair, so that the resulting score offset survives RoPE.
    """
    d, head_dim, rng = case["d"], case["head_dim"], random_for(case, name)
    rows = rng.standard_normal((n_heads, head_dim, d)) / np.sqrt(d)
    n_rot = case["metadata"].get("rope.dimension_count", head_dim)
    slow = [n_rot - 2, n_rot - 1] if case["arch"] == "llama" else [n_rot // 2 - 1, n_rot - 1]
    strength = np.sqrt(case["null_offset"] * np.sqrt(head_dim) / 2) / (0.6 * np.sqrt(d))
    layer = int(name.split(".")[1])
    strength *= 1.2 if layer % 2 == 0 else 0.8                                  # so that psi differs between layers
    per_head = rng.uniform(0.4, 1.6, n_heads) * (1 if "attn_q" in name else -1)
    rows[:, slow] += (strength * per_head)[:, None, None] * common_direction(case)
    return rows.reshape(-1, d)


def make_tensors(case):
    """-> name -> gguf.Tensor, in the order of the file."""
    d, width, kv_width = case["d"], case["heads"] * case["head_dim"], case["kv_heads"] * case["head_dim"]
    meta, tensors = case["metadata"], {}

    def add(name, values):
        types = [kind for pattern, kind in case["types"] if re.fullmatch(pattern, name)]
        kind = types[0] if types else "F16" if values.ndim == 2 else "F32"
        tensors[name] = gguf.Tensor(kind, np.asarray(values, np.float32))

    def add_normal(name, shape, gain=1.0, mean=0.0):
        add(name, mean + gain * random_for(case, name).standard_normal(shape))

    def add_matrix(name, n_out, n_in, gain=1.0):
        add_normal(name, (n_out, n_in), gain / np.sqrt(n_in))

    def add_writer(name, n_in, gain):
        """A matrix whose output goes to the residual stream."""
        rows = random_for(case, name).standard_normal((d, n_in)) * gain / np.sqrt(n_in)
        rows[OUTLIER_DIM] *= 4
        add(name, rows)

    def add_norm(site, scale=1.0):
        scale *= 1.6 if matches(case["gates"], site) else 1                     # a gate halves the output
        add_normal(f"{site}.weight", d, 0.3 * scale, scale)
        if meta.get("norm") == "dyt":
            add(f"{site}.alpha", random_for(case, f"{site}.alpha").uniform(0.6, 1.2, 1))
            add_normal(f"{site}.bias", d, 0.3 * scale)
        if matches(case["pre"], site):
            add(f"{site}_pre.weight", np.exp(random_for(case, f"{site}_pre").normal(0, 0.7, d)))
        if matches(case["gates"], site):
            add_matrix(f"{site}_gate_a.weight", case["gate_rank"], d, 1.5)
            add_matrix(f"{site}_gate_b.weight", d, case["gate_rank"], 2.5)

    def add_read(site):
        if meta["residual"] == "attnres":
            add_normal(f"{site}_score.weight", d, 1.3 / np.sqrt(d))
        else:
            add_matrix(f"{site}_q.weight", case["router_width"], d, 0.7)
            add_matrix(f"{site}_k.weight", case["router_width"], d, 0.7)
            add(f"{site}_recency", random_for(case, f"{site}_recency").uniform(0.5, 1, 1) * case["recency"])
        if meta.get("depth.coupling", "none") != "none":
            add(f"{site}_theta", random_for(case, f"{site}_theta").uniform(2, 6, 1))

    add("token_embd.weight", make_embedding(case, random_for(case, "token_embd")))
    for layer in range(case["layers"]):
        blk = f"blk.{layer}."
        add_norm(blk + "attn_norm")
        for name, n_heads in (("attn_q", case["heads"]), ("attn_k", case["kv_heads"])):
            add(f"{blk}{name}.weight", make_projection(case, blk + name, n_heads))
        add_matrix(blk + "attn_v.weight", kv_width, d)
        for name, size in (("attn_q", width), ("attn_k", kv_width), ("attn_v", kv_width), ("attn_output", d)):
            if name in case["biases"]:
                add_normal(f"{blk}{name}.bias", size, 0.5)
        if case["qk_norm"]:
            add_normal(blk + "attn_q_norm.weight", case["head_dim"], 0.3, 1.2)
            add_normal(blk + "attn_k_norm.weight", case["head_dim"], 0.3, 1.2)
        if meta.get("attention.softmax") == "sink":
            add(blk + "attn_sinks.weight", random_for(case, blk + "attn_sinks").uniform(-1, 3, case["heads"]))
        if case["attn_gate"]:
            add_matrix(blk + "attn_gate.weight", width if case["attn_gate"] == "element" else case["heads"], d, 2.0)
        add_writer(blk + "attn_output.weight", width, 2.0)
        add_norm(blk + "ffn_norm")
        add_matrix(blk + "ffn_gate.weight", case["ff"], d, 1.3)
        add_matrix(blk + "ffn_up.weight", case["ff"], d, 1.3)
        add_writer(blk + "ffn_down.weight", case["ff"], 1.5)
        if "residual" in meta:
            add_read(blk + "attn_res")
            add_read(blk + "ffn_res")
    if meta.get("residual") == "attnres":
        add_read("output_res")
    add_norm("output_norm", 0.2 if case["tied"] else 1.0)
    if not case["tied"]:
        add_matrix("output.weight", case["vocab"], d, 2.0)
    return tensors


def make_metadata(case):
    arch = case["arch"]
    keys = {"block_count": case["layers"], "embedding_length": case["d"], "feed_forward_length": case["ff"],
            "context_length": 128, "attention.head_count": case["heads"], "attention.head_count_kv": case["kv_heads"],
            "attention.key_length": case["head_dim"], "attention.value_length": case["head_dim"],
            "attention.layer_norm_rms_epsilon": 1e-5, **case["metadata"]}
    general = {"general.architecture": arch}
    if arch != "sinkless":              # what llama.cpp asks of a file without a tokenizer
        general["tokenizer.ggml.model"] = "none"
        keys["vocab_size"] = case["vocab"]
    own = {f"{arch}.{key}": value for key, value in keys.items() if value is not None}
    return {**general, **case["file_metadata"], **own}


# -------------------------------------------------------------------------------------- variants that must differ

OTHER_VALUES = {            # key -> alternatives to its value; None = without the key
    "attention.softmax": lambda v: {"softmax1": ["softmax"], "sink": ["softmax", "softmax1"]}[v],
    "attention.clip": lambda v: [None],
    "attention.sliding_window": lambda v: [0, v - 1, v + 1],
    "attention.sliding_window_pattern": lambda v: [None, [not flag for flag in v]],
    "rope.dimension_count": lambda v: [None],
    "rope.freq_base": lambda v: [None],
    "rope.scaling.type": lambda v: ["none", "yarn" if v == "linear" else "linear"],
    "norm": lambda v: ["rms"],
    "ffn.activation": lambda v: [name for name in model.ACTIVATIONS if name != v],
    "residual": lambda v: ["add"],
    "attn_res.block_size": lambda v: [0, v + 1],
    "depth.softmax": lambda v: ["softmax"],
    "depth.coupling": lambda v: ["none", "all" if v == "branches" else "branches"],
    "depth.beta_max": lambda v: [None],
}
TENSORS_OF_VALUE = {        # tensors to drop when the key is set away from the value that calls for them
    "attention.softmax": r".*attn_sinks.*", "norm": r".*_norm\.(alpha|bias)", "residual": r".*_res_.*",
}
DROPPED_TENSORS = (         # optional tensors: dropped one by one
    r"(.*)_gate_[ab]\.weight", r"(.*)_pre\.weight", r"(.*attn_gate)\.weight", r"(.*)attn_[qk]_norm\.weight",
    r"blk\.\d+\.(attn_(?:q|k|v|output)\.bias)",
)
ZEROED_TENSORS = (          # required tensors whose use must show
    r"(.*_res_score)\.weight", r"(.*_res_recency)", r"(.*_res_q)\.weight", r"(.*_norm\.bias)",
)


def drop(tensors, pattern):
    return {name: tensor for name, tensor in tensors.items() if not re.fullmatch(pattern, name)}


def groups(tensors, pattern):
    """First capture of the pattern -> names that share it."""
    found = {}
    for name in tensors:
        match = re.fullmatch(pattern, name)
        if match:
            found.setdefault(match[1], []).append(name)
    return found


def variants(case, metadata, tensors):
    """Yield (name, model) for models that lack one mechanism of the case, or have it slightly wrong."""
    for key, value in case["metadata"].items():
        for other in OTHER_VALUES.get(key, lambda v: [])(value):
            changed = {**metadata, f"{case['arch']}.{key}": other}
            if other is None:
                del changed[f"{case['arch']}.{key}"]
            kept = drop(tensors, TENSORS_OF_VALUE[key]) if key in TENSORS_OF_VALUE else tensors
            if key == "depth.coupling" and other == "none":
                kept = drop(tensors, r".*_theta")
            yield f"{key} -> {other}", model.Model(changed, kept)
    for pattern in DROPPED_TENSORS:
        if case["arch"] == "qwen3" and "_norm" in pattern:
            continue                                                    # required there
        for label, names in groups(tensors, pattern).items():
            yield f"no {label} ({names[0]})", model.Model(metadata, drop(tensors, "|".join(map(re.escape, names))))
    unused = "blk.0.attn_res" if case["metadata"].get("residual") == "attnres" else None
    for pattern in ZEROED_TENSORS:
        for label, names in groups(tensors, pattern).items():
            if unused and label.startswith(unused):
                continue                                                # one candidate only: never read
            zeroed = {name: gguf.Tensor(tensors[name].type, 0 * tensors[name].values) for name in names}
            yield f"{label} = 0", model.Model(metadata, {**tensors, **zeroed})
    other_pairs = model.Model(metadata, tensors)
    other_pairs.cfg.rope_adjacent = not other_pairs.cfg.rope_adjacent
    yield "other rope pairing", other_pairs


def relative_rms(difference, reference):
    """RMS of a difference in units of the standard deviation of the reference."""
    return float(np.sqrt(np.mean(difference ** 2)) / reference.std())


def measure_effects(case, metadata, tensors, tokens, logits):
    """-> variant name -> change of the logits; raises if one is too small to be noticed by a test."""
    effects = {name: relative_rms(variant.forward(tokens)[0] - logits, logits)
               for name, variant in variants(case, metadata, tensors)}
    if case["recency"] > model.ROUTER_LOGIT_CLAMP:
        clamp, model.ROUTER_LOGIT_CLAMP = model.ROUTER_LOGIT_CLAMP, np.inf
        effects["no router clamp"] = relative_rms(model.Model(metadata, tensors).forward(tokens)[0] - logits, logits)
        model.ROUTER_LOGIT_CLAMP = clamp
    weak = {name: effect for name, effect in effects.items()
            if effect < MIN_EFFECT and not matches(case["unchecked"], name)}
    if weak:
        raise AssertionError(f"{case['name']}: these do not show in the logits: {weak}")
    return effects


def check_ranges(case, trace, logits):
    """The case must exercise its mechanisms in their useful range."""
    name = case["name"]
    assert 0.5 < logits.std() < 6, (name, "logit spread", logits.std())
    if "attention.softmax" in case["metadata"]:
        null = np.stack(trace["null"])
        assert 0.05 < null.mean() < 0.6 and null.std() > 0.05, (name, "null mass", null.mean(), null.std())
    if trace["depth"] and case["recency"] < model.ROUTER_LOGIT_CLAMP:
        evenness = np.mean([read["alpha"].max(axis=1).mean() for read in trace["depth"]])
        assert 0.35 < evenness < 0.95, (name, "largest depth weight", evenness)


# ---------------------------------------------------------------------------------------------- output

def write_trace(path, trace, numbers, n_tokens):
    """Line formats are documented in README.md."""
    shown = sorted({0, 1, n_tokens // 2, n_tokens - 1})
    lines = [f"number {key} {value:.9g}" for key, value in numbers.items()]
    for layer, psi in enumerate(trace["psi"]):
        lines += [f"psi {layer} {t} {value:.9g}" for t, value in enumerate(psi)]
    for index, read in enumerate(trace["depth"]):
        for t in shown:
            alpha = " ".join(f"{value:.9g}" for value in read["alpha"][t])
            lines.append(f"depth {index} {read['site']} {t} {read['null'][t]:.9g} {read['alpha'].shape[1]} {alpha}")
    for index, entry in enumerate(trace["inputs"]):
        for t in shown:
            lines.append(f"input {index} {entry['site']} {t} {entry['kurtosis'][t]:.9g} {entry['max_abs'][t]:.9g}")
    for layer, (p, null) in enumerate(zip(trace["attention"], trace["null"])):
        for head in range(len(p)):
            for t in shown[2:]:
                row = " ".join(f"{value:.6g}" for value in p[head, t, :t + 1])
                lines.append(f"attention {layer} {head} {t} {null[head, t]:.9g} {t + 1} {row}")
    path.write_text("\n".join(lines) + "\n")


def noisy_models(metadata, tensors):
    """Models whose results differ from the reference by rounding only, as those of any other implementation do."""
    yield model.Model(metadata, tensors, np.float32)
    for seed in range(4):
        kind, values = tensors["token_embd.weight"]
        jitter = 1 + 1e-6 * np.random.default_rng(seed).standard_normal(values.shape)
        yield model.Model(metadata, {**tensors, "token_embd.weight": gguf.Tensor(kind, values * jitter)})


def run_quantised(metadata, tensors, tokens, logits, folder):
    """Write logits with quantised activations -> numbers that a test needs to judge another implementation.

    A value next to a rounding boundary may quantise differently elsewhere, and the change spreads. So these logits are
    to be compared by relative_rms, with a tolerance that still tells each activation format from all others.
    """
    reference, numbers = model.Model(metadata, tensors), {}
    results = {name: reference.forward(tokens, name)[0] for name in model.ACTIVATION_FORMATS}
    for name, quantised in results.items():
        quantised.astype("<f4").tofile(folder / f"logits_{name}.f32")
        others = [other for key, other in results.items() if key != name] + [logits]
        tolerance = min(relative_rms(quantised - other, logits) for other in others) / 2
        noise = max(relative_rms(noisy.forward(tokens, name)[0] - quantised, logits)
                    for noisy in noisy_models(metadata, tensors))
        assert noise < tolerance / 2, (folder.name, name, noise, tolerance)
        numbers.update({f"{name}_effect": relative_rms(quantised - logits, logits), f"{name}_noise": noise,
                        f"{name}_tolerance_rms": tolerance})
    return numbers


def generate(case, out):
    case = {**DEFAULTS, **case}
    folder = out / case["name"]
    folder.mkdir(parents=True, exist_ok=True)
    metadata, tensors = make_metadata(case), make_tensors(case)
    gguf.write(folder / "model.gguf", metadata, tensors)
    metadata, tensors = gguf.read(folder / "model.gguf")                # weights as rounded by their tensor type
    tokens = random_for(case, "tokens").integers(2, case["vocab"], case["tokens"])
    tokens[0] = BOS

    logits, trace = model.Model(metadata, tensors).forward(tokens)
    check_ranges(case, trace, logits)
    effects = measure_effects(case, metadata, tensors, tokens, logits)
    noise = max(np.abs(noisy.forward(tokens)[0] - logits).max() for noisy in noisy_models(metadata, tensors))
    numbers = {"n_tokens": case["tokens"], "n_vocab": case["vocab"], "logits_std": float(logits.std()),
               "noise_max": float(noise), "tolerance_max": max(1e-4, 10 * float(noise)),
               **{key: float(value) for key, value in diagnostics.diagnose(trace).items()}}
    if case["quantised_activations"]:
        numbers.update(run_quantised(metadata, tensors, tokens, logits, folder))

    tokens.astype("<i4").tofile(folder / "tokens.i32")
    logits.astype("<f4").tofile(folder / "logits.f32")
    write_trace(folder / "trace.txt", trace, numbers, case["tokens"])
    summary = {"name": case["name"], "description": case["description"], "seed": case["seed"], "metadata": metadata,
               "tensor_types": sorted({tensor.type for tensor in tensors.values()}), "numbers": numbers,
               "effects": {name: round(effect, 4) for name, effect in effects.items()}}
    (folder / "case.json").write_text(json.dumps(summary, indent=1) + "\n")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{case['name']:22} {size // 1024:4} KiB  std {logits.std():.2f}  noise {noise:.1e}  "
          f"psi {np.min(trace['psi']):.2f} to {np.max(trace['psi']):.2f}  sink rate {numbers['sink_rate']:.2f}  "
          f"weakest of {len(effects)} effects {min(effects.values()):.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=pathlib.Path, default=HERE / "cases.py", help="Python file that defines CASES")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent / "golden")
    parser.add_argument("--only", help="one case by name")
    options = parser.parse_args()
    spec = importlib.util.spec_from_file_location("cases", options.cases)
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
    for case in cases.CASES:
        if options.only in (None, case["name"]):
            generate(case, options.out)


if __name__ == "__main__":
    main()
