"""Float64 reference forward pass of the GGUF architectures `sinkless` (format.md), `llama` and `qwen3`.

Shapes: T tokens, d hidden size, H query heads, Hkv key/value heads, D head dimension, F feed-forward size,
V vocabulary, n depth candidates. Weights are (out, in). All T positions are computed at once; nothing is cached.
"""
import numpy as np

FLOAT_TYPES = ("F32", "F16", "BF16")
ROUTER_LOGIT_CLAMP = 50.0


# ---------------------------------------------------------------------------------------------- element-wise functions

def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    """Tanh form."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def softplus(x):
    return np.logaddexp(0, x)


ACTIVATIONS = {"silu": silu, "sigmoid": sigmoid, "gelu": gelu}


# ---------------------------------------------------------------------------------------------- norms

def rms_norm(x, weight, eps, pre=None):
    """RMSNorm over the last axis; `pre` is the PreAffine scale, applied before the RMS is taken."""
    if pre is not None:
        x = x * pre
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def dyt(x, weight, alpha, bias):
    return weight * np.tanh(alpha * x) + bias


def low_rank_gate(y, gate_a, gate_b):
    """GatedNorm: sig(B silu(A y)) * y, with A (r, d) and B (d, r)."""
    return sigmoid(silu(y @ gate_a.T) @ gate_b.T) * y


# -------------------------------------------------------------------------------------- softmax family, depth reads

def softmax_with_null(logits, null_logit=None):
    """Softmax over the last axis with an optional extra class that has no value vector.

    null_logit: None = plain softmax, 0 = softmax1, anything that broadcasts against logits[..., :1] = learned sink.
    -> (p of the shape of logits, p_null of shape logits.shape[:-1]).
    """
    largest = logits.max(axis=-1, keepdims=True)
    if null_logit is None:
        null = np.zeros_like(largest)
    else:
        largest = np.maximum(largest, null_logit)
        null = np.exp(null_logit - largest)
    e = np.exp(logits - largest)
    denominator = e.sum(axis=-1, keepdims=True) + null
    return e / denominator, (null / denominator)[..., 0]


def clip_probabilities(p, gamma, zeta):
    return np.clip((zeta - gamma) * p + gamma, 0, 1)


def couple(g, psi, beta, coupling):
    """OASIS coupling of depth logits g with null masses psi, both (..., n); source 0 is the embedding."""
    if coupling == "none":
        return g
    first = 1 if coupling == "branches" else 0
    adjusted = g.copy()
    if g.shape[-1] > first:
        branch_psi = psi[..., first:]
        adjusted[..., first:] -= beta * (branch_psi - branch_psi.mean(axis=-1, keepdims=True))
    return adjusted


def score_logits(candidates, score, eps):
    """AttnRes: candidates (..., n, d), score (d,) -> (..., n)."""
    return candidates @ score / np.sqrt(np.mean(candidates * candidates, axis=-1) + eps)


def router_logits(candidates, read_q, read_k, recency):
    """OASIS router: query from the newest (last) candidate, recency bonus rising from 0 to `recency`; not clamped."""
    n, width = candidates.shape[-2], read_q.shape[0]
    query = candidates[..., -1, :] @ read_q.T
    scores = np.einsum("...a,...na->...n", query, candidates @ read_k.T) / float(np.sqrt(width))
    return scores + recency * np.arange(n, dtype=scores.dtype) / max(n - 1, 1)


# -------------------------------------------------------------------------------------- rotary position embedding

def rope_angles(positions, n_rot, base, scaling):
    """-> (angle (T, n_rot / 2), magnitude).

    scaling: {"type": "none" | "linear" | "yarn", "factor", "original_context_length", "attn_factor", "yarn_beta_fast",
    "yarn_beta_slow"}.
    """
    j = np.arange(n_rot // 2)
    extrapolated = np.asarray(positions)[:, None] * float(base) ** (-2 * j / n_rot)
    if scaling["type"] == "none":
        return extrapolated, 1.0
    interpolated = extrapolated / scaling["factor"]
    if scaling["type"] == "linear":
        return interpolated, 1.0

    def correction(rotations):
        return n_rot * np.log(scaling["original_context_length"] / (rotations * 2 * np.pi)) / (2 * np.log(base))
    low = max(0, np.floor(correction(scaling["yarn_beta_fast"])))
    high = min(n_rot - 1, np.ceil(correction(scaling["yarn_beta_slow"])))
    ramp = 1 - np.clip((j - low) / max(0.001, high - low), 0, 1)
    magnitude = scaling["attn_factor"] * (1 + 0.1 * np.log(scaling["factor"]))
    return interpolated * (1 - ramp) + extrapolated * ramp, magnitude


def rope(x, positions, n_rot, base, scaling, adjacent=False):
    """x (T, heads, D): rotates the first n_rot dims, pairs (j, j + n_rot/2), or (2j, 2j + 1) if `adjacent`."""
    angle, magnitude = rope_angles(positions, n_rot, base, scaling)
    cos, sin = (magnitude * f(angle)[:, None, :].astype(x.dtype) for f in (np.cos, np.sin))
    half = n_rot // 2
    first, second = (slice(0, n_rot, 2), slice(1, n_rot, 2)) if adjacent else (slice(0, half), slice(half, n_rot))
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


# ---------------------------------------------------------------------------------------------- activation quantisation

# name -> (bits, group); group None = the whole row (per token)
ACTIVATION_FORMATS = {"a8g32": (8, 32), "a8tok": (8, None), "a4g32": (4, 32), "a4tok": (4, None)}


def quantise_activations(x, bits, group):
    """Symmetric, round to nearest, ties to even. x (..., n) -> (q (..., groups, group), scale (..., groups, 1)).

    The last group of a row is padded with zeros where n is not a multiple of `group`.
    """
    group = group or x.shape[-1]
    padding = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % group)]
    blocks = np.pad(x, padding).reshape(*x.shape[:-1], -1, group)
    levels = 2 ** (bits - 1) - 1
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / x.dtype.type(levels)
    q = np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)
    return np.clip(np.rint(q), -levels, levels), scale


class IntegerWeight(np.ndarray):
    """A matrix stored as integer codes. Only such weights take quantised activations; float weights take float ones."""


def linear(x, weight, activation_format, bias=None):
    """y = W x (+ bias). With integer weights x is first replaced by its quantised value (None = A32: it is not)."""
    if activation_format is not None and isinstance(weight, IntegerWeight):
        q, scale = quantise_activations(x, *ACTIVATION_FORMATS[activation_format])
        x = (q * scale).reshape(*x.shape[:-1], -1)[..., :x.shape[-1]]
    y = x @ np.asarray(weight).T
    return y if bias is None else y + bias


# -------------------------------------------------------------------------------------- configuration and weights

class Config:
    """Metadata with defaults filled in; unknown string values and impossible sizes are errors."""

    def __init__(self, metadata):
        self.arch = metadata["general.architecture"]
        if self.arch not in ("sinkless", "llama", "qwen3"):
            raise ValueError(f"unknown architecture {self.arch}")
        sinkless, required = self.arch == "sinkless", object()

        def key(name, default=required):
            value = metadata.get(f"{self.arch}.{name}", default)
            if value is required:
                raise ValueError(f"missing key {self.arch}.{name}")
            return value

        def mechanism(name, default):
            return key(name, default) if sinkless else default

        def choice(name, values, lookup=mechanism):
            """The first of the values is the default."""
            value = lookup(name, values[0])
            if value not in values:
                raise ValueError(f"{self.arch}.{name}: unknown value {value}")
            return value

        self.n_layers, self.d, self.n_ff = key("block_count"), key("embedding_length"), key("feed_forward_length")
        self.n_heads = key("attention.head_count")
        self.n_kv_heads = key("attention.head_count_kv", self.n_heads)
        self.head_dim = key("attention.key_length", self.d // self.n_heads)
        if self.n_heads % self.n_kv_heads or key("attention.value_length", self.head_dim) != self.head_dim:
            raise ValueError("head_count must be a multiple of head_count_kv, and key_length equal value_length")
        self.eps = key("attention.layer_norm_rms_epsilon")
        self.softmax = choice("attention.softmax", ("softmax", "softmax1", "sink"))
        self.clip = mechanism("attention.clip", None)
        self.window = mechanism("attention.sliding_window", 0)
        self.window_pattern = mechanism("attention.sliding_window_pattern", [True] * self.n_layers)
        self.n_rot, self.rope_base = key("rope.dimension_count", self.head_dim), key("rope.freq_base", 10000.0)
        # llama.cpp takes an absent scaling type as linear; without a factor that is the same as none
        scaling_types = ("none", "linear", "yarn") if sinkless else ("linear", "none", "yarn")
        self.rope_scaling = {
            "type": choice("rope.scaling.type", scaling_types, key), "factor": key("rope.scaling.factor", 1.0),
            "original_context_length": key("rope.scaling.original_context_length", key("context_length")),
            "attn_factor": key("rope.scaling.attn_factor", 1.0),
            "yarn_beta_fast": key("rope.scaling.yarn_beta_fast", 32.0),
            "yarn_beta_slow": key("rope.scaling.yarn_beta_slow", 1.0)}
        self.rope_adjacent = self.arch == "llama"
        self.norm = choice("norm", ("rms", "dyt"))
        self.activation = choice("ffn.activation", tuple(ACTIVATIONS))
        self.residual = choice("residual", ("add", "attnres", "router"))
        self.block_size = mechanism("attn_res.block_size", 0)
        self.depth_softmax = choice("depth.softmax", ("softmax", "softmax1"))
        self.coupling = choice("depth.coupling", ("none", "branches", "all"))
        self.beta_max = mechanism("depth.beta_max", np.inf)


class Weights:
    """Tensor lookup that knows what was read, so that a missing or a stray tensor is an error."""

    def __init__(self, tensors, dtype, sinkless):
        self.tensors = {name: tensor.values.astype(dtype) if tensor.type in FLOAT_TYPES else
                        tensor.values.astype(dtype).view(IntegerWeight) for name, tensor in tensors.items()}
        self.unread = set(tensors)
        self.sinkless = sinkless

    def required(self, name, *shapes):
        """shapes: the accepted ones; None in a shape accepts any size."""
        if name not in self.tensors:
            raise ValueError(f"missing tensor {name}")
        self.unread.discard(name)
        values = self.tensors[name]
        if not any(len(values.shape) == len(shape)
                   and all(want in (None, have) for want, have in zip(shape, values.shape)) for shape in shapes):
            raise ValueError(f"tensor {name} has shape {values.shape}, expected {shapes}")
        return values

    def optional(self, name, *shapes):
        return self.required(name, *shapes) if name in self.tensors else None

    def mechanism(self, name, *shapes):
        """An optional tensor that only architecture `sinkless` has."""
        return self.optional(name, *shapes) if self.sinkless else None

    def finish(self):
        if self.unread:
            raise ValueError(f"tensors that no rule reads: {sorted(self.unread)}")


# ---------------------------------------------------------------------------------------------- sub-layers

class NormSite:
    """RMSNorm (with optional PreAffine) or DyT, then the optional low-rank gate. `site` as in format.md."""

    def __init__(self, cfg, weights, site):
        d = cfg.d
        self.kind, self.eps = cfg.norm, cfg.eps
        self.weight = weights.required(f"{site}.weight", (d,))
        if self.kind == "dyt":
            self.alpha, self.bias = weights.required(f"{site}.alpha", (1,)), weights.required(f"{site}.bias", (d,))
        else:
            self.pre = weights.mechanism(f"{site}_pre.weight", (d,))
        self.gate_a = weights.mechanism(f"{site}_gate_a.weight", (None, d))
        if self.gate_a is not None:
            self.gate_b = weights.required(f"{site}_gate_b.weight", (d, len(self.gate_a)))

    def __call__(self, x):
        if self.kind == "dyt":
            y = dyt(x, self.weight, self.alpha, self.bias)
        else:
            y = rms_norm(x, self.weight, self.eps, self.pre)
        return y if self.gate_a is None else low_rank_gate(y, self.gate_a, self.gate_b)


class Attention:
    """f(h) of an attention sub-layer, its norm included."""

    def __init__(self, cfg, weights, layer):
        self.cfg, blk = cfg, f"blk.{layer}."
        d, q_width, kv_width = cfg.d, cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim
        self.norm = NormSite(cfg, weights, blk + "attn_norm")
        self.projections = {}
        for name, shape in (("attn_q", (q_width, d)), ("attn_k", (kv_width, d)), ("attn_v", (kv_width, d)),
                            ("attn_output", (d, q_width))):
            self.projections[name] = (weights.required(f"{blk}{name}.weight", shape),
                                      weights.optional(f"{blk}{name}.bias", shape[:1]))
        lookup = {"sinkless": weights.optional, "qwen3": weights.required, "llama": lambda *_: None}[cfg.arch]
        self.q_norm = lookup(blk + "attn_q_norm.weight", (cfg.head_dim,))
        if self.q_norm is not None:
            self.k_norm = weights.required(blk + "attn_k_norm.weight", (cfg.head_dim,))
        self.null_logit = {"softmax": None, "softmax1": 0.0, "sink": None}[cfg.softmax]
        if cfg.softmax == "sink":
            self.null_logit = weights.required(blk + "attn_sinks.weight", (cfg.n_heads,))[:, None, None]
        self.gate = weights.mechanism(blk + "attn_gate.weight", (q_width, d), (cfg.n_heads, d))
        self.window = cfg.window if cfg.window_pattern[layer] else 0

    def __call__(self, h, activation_format):
        """h (T, d) -> (output (T, d), weights p (H, T, T) as they multiply v, null mass (H, T))."""
        cfg, n_tokens = self.cfg, len(h)

        def project(name, x):
            weight, bias = self.projections[name]
            return linear(x, weight, activation_format, bias)
        y = self.norm(h)
        q, k, v = (project(name, y).reshape(n_tokens, -1, cfg.head_dim) for name in ("attn_q", "attn_k", "attn_v"))
        if self.q_norm is not None:
            q, k = rms_norm(q, self.q_norm, cfg.eps), rms_norm(k, self.k_norm, cfg.eps)
        positions = np.arange(n_tokens)
        q, k = (rope(x, positions, cfg.n_rot, cfg.rope_base, cfg.rope_scaling, cfg.rope_adjacent) for x in (q, k))
        queries_per_kv_head = cfg.n_heads // cfg.n_kv_heads                     # query head h reads kv head h // this
        k, v = (np.repeat(x, queries_per_kv_head, axis=1) for x in (k, v))
        scores = np.einsum("thd,jhd->htj", q, k) / float(np.sqrt(cfg.head_dim))
        distance = positions[:, None] - positions                              # t - j
        visible = (distance >= 0) & ((self.window == 0) | (distance < self.window))
        p, p_null = softmax_with_null(np.where(visible, scores, -np.inf), self.null_logit)
        if cfg.clip is not None:
            p = np.where(visible, clip_probabilities(p, *cfg.clip), 0)
        o = np.einsum("htj,jhd->thd", p, v)
        if self.gate is not None:
            o = o * sigmoid(linear(y, self.gate, activation_format)).reshape(n_tokens, cfg.n_heads, -1)
        return project("attn_output", o.reshape(n_tokens, -1)), p, p_null


class FeedForward:
    """f(h) of an FFN sub-layer, its norm included."""

    def __init__(self, cfg, weights, layer):
        blk = f"blk.{layer}."
        self.norm = NormSite(cfg, weights, blk + "ffn_norm")
        self.activation = ACTIVATIONS[cfg.activation]
        self.gate = weights.required(blk + "ffn_gate.weight", (cfg.n_ff, cfg.d))
        self.up = weights.required(blk + "ffn_up.weight", (cfg.n_ff, cfg.d))
        self.down = weights.required(blk + "ffn_down.weight", (cfg.d, cfg.n_ff))

    def __call__(self, h, activation_format):
        y = self.norm(h)
        inner = self.activation(linear(y, self.gate, activation_format)) * linear(y, self.up, activation_format)
        return linear(inner, self.down, activation_format)


class DepthRead:
    """One READ site: depth softmax over candidates, with the coupling to attention null mass."""

    def __init__(self, cfg, weights, site):
        self.cfg, self.site = cfg, site
        if cfg.residual == "attnres":
            self.score = weights.required(f"{site}_score.weight", (cfg.d,))
        else:
            self.read_q = weights.required(f"{site}_q.weight", (None, cfg.d))
            self.read_k = weights.required(f"{site}_k.weight", self.read_q.shape)
            self.recency = weights.required(f"{site}_recency", (1,))
        self.beta = 0.0
        if cfg.coupling != "none":
            self.beta = np.minimum(softplus(weights.required(f"{site}_theta", (1,))), cfg.beta_max)

    def __call__(self, candidates, psis, trace):
        """candidates: n arrays (T, d), oldest first; psis: n arrays (T,). -> (T, d)."""
        if len(candidates) == 1:
            return candidates[0]
        stacked, psi = np.stack(candidates, axis=1), np.stack(psis, axis=1)
        if self.cfg.residual == "attnres":
            g = couple(score_logits(stacked, self.score, self.cfg.eps), psi, self.beta, self.cfg.coupling)
        else:
            g = router_logits(stacked, self.read_q, self.read_k, self.recency)
            g = couple(g, psi, self.beta, self.cfg.coupling)
            g = np.clip(g, -ROUTER_LOGIT_CLAMP, ROUTER_LOGIT_CLAMP)
        alpha, null = softmax_with_null(g, 0.0 if self.cfg.depth_softmax == "softmax1" else None)
        trace["depth"].append({"site": self.site, "alpha": alpha, "null": null})
        return np.einsum("tn,tnd->td", alpha, stacked)


# ---------------------------------------------------------------------------------------------- the model

class Model:
    def __init__(self, metadata, tensors, dtype=np.float64):
        """metadata, tensors: as gguf.read returns them."""
        cfg = self.cfg = Config(metadata)
        weights = Weights(tensors, dtype, cfg.arch == "sinkless")
        self.embedding = weights.required("token_embd.weight", (None, cfg.d))
        head = weights.optional("output.weight", self.embedding.shape)
        self.head = self.embedding if head is None else head
        self.output_norm = NormSite(cfg, weights, "output_norm")
        layers = range(cfg.n_layers)
        self.attention = [Attention(cfg, weights, layer) for layer in layers]
        self.ffn = [FeedForward(cfg, weights, layer) for layer in layers]
        if cfg.residual != "add":
            self.attn_read = [DepthRead(cfg, weights, f"blk.{layer}.attn_res") for layer in layers]
            self.ffn_read = [DepthRead(cfg, weights, f"blk.{layer}.ffn_res") for layer in layers]
        if cfg.residual == "attnres":
            self.output_read = DepthRead(cfg, weights, "output_res")
        weights.finish()

    def forward(self, tokens, activation_format=None):
        """tokens: T ids. activation_format: None or a key of ACTIVATION_FORMATS. -> (logits (T, V), trace).

        trace["attention"]  per layer: (H, T, T) weights as they multiply v (after clipping)
        trace["null"]       per layer: (H, T) null mass
        trace["psi"]        per layer: (T,) null mass averaged over heads
        trace["depth"]      per READ in execution order: {"site", "alpha" (T, n), "null" (T,)}
        trace["inputs"]     per sub-layer input h, before its norm, in execution order, and last the input of
                            output_norm: {"site", "kurtosis" (T,), "max_abs" (T,)}
        """
        trace = {"attention": [], "null": [], "psi": [], "depth": [], "inputs": []}
        embedding = np.asarray(self.embedding)[np.asarray(tokens)]
        if self.cfg.residual == "add":
            out = self._run_add(embedding, activation_format, trace)
        elif self.cfg.residual == "router":
            out = self._run_router(embedding, activation_format, trace)
        elif self.cfg.block_size == 0:
            out = self._run_full_attnres(embedding, activation_format, trace)
        else:
            out = self._run_block_attnres(embedding, activation_format, trace)
        _record_input(trace, "output_norm", out)
        return linear(self.output_norm(out), self.head, activation_format), trace

    def _attend(self, layer, h, activation_format, trace):
        """-> (attention output (T, d), psi (T,))."""
        _record_input(trace, f"blk.{layer}.attn_norm", h)
        output, p, p_null = self.attention[layer](h, activation_format)
        trace["attention"].append(p)
        trace["null"].append(p_null)
        trace["psi"].append(p_null.mean(axis=0))
        return output, trace["psi"][-1]

    def _feed_forward(self, layer, h, activation_format, trace):
        _record_input(trace, f"blk.{layer}.ffn_norm", h)
        return self.ffn[layer](h, activation_format)

    def _run_add(self, h, activation_format, trace):
        for layer in range(self.cfg.n_layers):
            h = h + self._attend(layer, h, activation_format, trace)[0]
            h = h + self._feed_forward(layer, h, activation_format, trace)
        return h

    def _run_full_attnres(self, embedding, activation_format, trace):
        sources, psis = [embedding], [np.zeros(len(embedding), embedding.dtype)]
        for layer in range(self.cfg.n_layers):
            h = self.attn_read[layer](sources, psis, trace)
            output, psi = self._attend(layer, h, activation_format, trace)
            sources, psis = sources + [output], psis + [psi]
            h = self.ffn_read[layer](sources, psis, trace)
            sources, psis = sources + [self._feed_forward(layer, h, activation_format, trace)], psis + [psi]
        return self.output_read(sources, psis, trace)

    def _run_block_attnres(self, embedding, activation_format, trace):
        done, done_psis = [], []
        block_sum = embedding
        block_psis = [np.zeros(len(embedding), embedding.dtype)]                # psi of every attention in block_sum
        for layer in range(self.cfg.n_layers):
            h = self.attn_read[layer](done + [block_sum], done_psis + [np.mean(block_psis, axis=0)], trace)
            if layer % self.cfg.block_size == 0:
                done, done_psis = done + [block_sum], done_psis + [np.mean(block_psis, axis=0)]
                block_sum, block_psis = 0, []
            output, psi = self._attend(layer, h, activation_format, trace)
            block_sum, block_psis = block_sum + output, block_psis + [psi]
            h = self.ffn_read[layer](done + [block_sum], done_psis + [np.mean(block_psis, axis=0)], trace)
            block_sum = block_sum + self._feed_forward(layer, h, activation_format, trace)
        return self.output_read(done + [block_sum], done_psis + [np.mean(block_psis, axis=0)], trace)

    def _run_router(self, embedding, activation_format, trace):
        history, psis = [embedding], [np.zeros(len(embedding), embedding.dtype)]
        for layer in range(self.cfg.n_layers):
            h = history[-1]
            output, psi = self._attend(layer, h, activation_format, trace)
            candidates = history + [h + output]
            h1 = self.attn_read[layer](candidates, psis + [psi], trace)
            candidates = candidates + [h1 + self._feed_forward(layer, h1, activation_format, trace)]
            h2 = self.ffn_read[layer](candidates, psis + [psi, psi], trace)
            history, psis = history + [h2], psis + [psi]
        return history[-1]


def _record_input(trace, site, h):
    centred = h - h.mean(axis=-1, keepdims=True)
    variance = np.mean(centred ** 2, axis=-1)
    trace["inputs"].append({"site": site, "kurtosis": np.mean(centred ** 4, axis=-1) / variance ** 2,
                            "max_abs": np.abs(h).max(axis=-1)})
