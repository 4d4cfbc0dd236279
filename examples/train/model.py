"""The `sinkless` transformer in PyTorch, for training. Parameter names are the tensor names of the GGUF file.

Mechanisms (all switches of `Config`): token softmax, Softmax1 or a learned sink; gated attention; RMSNorm, PreAffine or
GatedNorm; plain residual, full or block attention residuals; depth softmax or Softmax1; OASIS coupling of depth and
token sinks. The forward pass is specified in tests/reference/format.md.
"""
import math
from collections import namedtuple
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    vocab: int = 2048
    d: int = 160                    # hidden size
    n_layers: int = 6
    n_heads: int = 5
    n_kv_heads: int = 5
    head_dim: int = 32
    ff: int = 448
    context: int = 512
    eps: float = 1e-5
    rope_base: float = 10000.0
    qk_norm: bool = True
    norm: str = "gated"             # rms, preaffine, gated
    gate_rank: int = 16
    softmax: str = "softmax1"       # softmax, softmax1, sink
    attn_gate: str = "none"         # none, head, element
    activation: str = "silu"        # silu, sigmoid
    residual: str = "attnres"       # add, attnres
    block_size: int = 0             # attnres: 0 = every sub-layer output is a source, B = one source per B layers
    depth_softmax: str = "softmax1"
    coupling: str = "branches"      # none, branches
    theta: float = -5.0             # initial value; beta = softplus(theta)
    init_std: float = 0.05


PLAIN = dict(norm="rms", softmax="softmax", residual="add", depth_softmax="softmax", coupling="none")
PRESETS = {                         # the ladder of the ablation, from the plain transformer to everything
    "plain": PLAIN,
    "attnres": dict(PLAIN, residual="attnres"),
    "aos": dict(PLAIN, residual="attnres", softmax="softmax1", depth_softmax="softmax1"),
    "oasis": dict(PLAIN, residual="attnres", softmax="softmax1", depth_softmax="softmax1", coupling="branches"),
    "full": {},
}


# ------------------------------------------------------------------------------------------------ fused primitives

class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    def backward(ctx, grad):
        normed, scale, weight = ctx.saved_tensors
        grad_weight = (grad * normed).flatten(0, -2).sum(0)
        grad = grad * weight
        grad_x = torch.addcmul(grad, normed, (grad * normed).mean(-1, keepdim=True), value=-1).mul_(scale)
        return grad_x, grad_weight, None


class WeightedSum(torch.autograd.Function):
    """sum_i alpha[..., i] * sources[i], without stacking the sources."""

    @staticmethod
    def forward(ctx, alpha, *sources):
        ctx.save_for_backward(alpha, *sources)
        out = sources[0] * alpha[..., :1]
        for i in range(1, len(sources)):
            out.addcmul_(sources[i], alpha[..., i:i + 1])
        return out

    @staticmethod
    def backward(ctx, grad):
        alpha, *sources = ctx.saved_tensors
        grad_alpha = torch.stack([(grad * s).sum(-1) for s in sources], dim=-1)
        return (grad_alpha, *(grad * alpha[..., i:i + 1] for i in range(len(sources))))


class CausalAttention(torch.autograd.Function):
    """softmax(q k^T / sqrt(D)) v over (B H, T, D) tensors, in chunks of queries so that masked blocks are skipped.

    With a null logit, (1,) or (H,), the softmax has one more class: NULL_COLUMNS columns of zero keys and values come
    first, of which the mask shows one (several columns only for alignment).
    -> (output (B H, T, D), null mass (B H, T), zeros without a null class).
    """
    CHUNK, NULL_COLUMNS = 64, 8

    @staticmethod
    def forward(ctx, q, k, v, null_logit):
        rows, length, head_dim = q.shape
        pad = 0 if null_logit is None else CausalAttention.NULL_COLUMNS
        k, v = (F.pad(x, (0, 0, pad, 0)) for x in (k, v))
        out, null, weights = torch.empty_like(q), q.new_zeros(rows, length), []
        for start in range(0, length, CausalAttention.CHUNK):
            stop = min(start + CausalAttention.CHUNK, length)
            mask = torch.full((stop - start, stop), -torch.inf).triu(start + 1)
            mask = F.pad(mask, (pad, 0), value=-torch.inf)[None]
            if pad:
                mask = mask.repeat(rows if null_logit.numel() > 1 else 1, 1, 1)
                mask[:, :, 0] = null_logit.repeat(len(mask) // null_logit.numel())[:, None]
            keys = k[:, :stop + pad].transpose(1, 2)
            p = torch.baddbmm(mask, q[:, start:stop], keys, alpha=head_dim ** -0.5).softmax(-1)
            out[:, start:stop] = p @ v[:, :stop + pad]
            if pad:
                null[:, start:stop] = p[:, :, 0]
            weights.append(p)
        ctx.pad, ctx.n_logits = pad, 0 if null_logit is None else null_logit.numel()
        ctx.save_for_backward(q, k, v, out, null, *weights)
        return out, null

    @staticmethod
    def backward(ctx, grad_out, grad_null):
        q, k, v, out, null, *weights = ctx.saved_tensors
        pad, grad_q, grad_k, grad_v = ctx.pad, torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        centre = (grad_out * out).sum(-1) + grad_null * null            # sum over classes of p dL/dp
        for n, p in enumerate(weights):
            chunk = slice(n * CausalAttention.CHUNK, n * CausalAttention.CHUNK + p.shape[1])
            visible = slice(0, p.shape[2])
            grad_v[:, visible].baddbmm_(p.transpose(1, 2), grad_out[:, chunk])
            grad_s = grad_out[:, chunk] @ v[:, visible].transpose(1, 2)
            grad_s.sub_(centre[:, chunk, None]).mul_(p)
            grad_q[:, chunk] = grad_s @ k[:, visible]
            grad_k[:, visible].baddbmm_(grad_s.transpose(1, 2), q[:, chunk])
        scale, grad_logit = q.shape[-1] ** -0.5, None
        if ctx.n_logits:
            grad_logit = (null * (grad_null - centre)).sum(1).view(-1, ctx.n_logits).sum(0)
        return grad_q.mul_(scale), grad_k[:, pad:] * scale, grad_v[:, pad:], grad_logit


def rope(x, cos, sin):
    """x: (..., T, D); half-split pairs (j, j + D/2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


# ------------------------------------------------------------------------------------------------ parameters

class Weight(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.weight = nn.Parameter(values)


def add_norm(owner, site, cfg):
    setattr(owner, site, Weight(torch.ones(cfg.d)))
    if cfg.norm == "preaffine":
        setattr(owner, site + "_pre", Weight(torch.ones(cfg.d)))
    if cfg.norm == "gated":                                     # gate_b = 0: every gate starts at 1/2
        setattr(owner, site + "_gate_a", Weight(torch.randn(cfg.gate_rank, cfg.d) / math.sqrt(cfg.d)))
        setattr(owner, site + "_gate_b", Weight(torch.zeros(cfg.d, cfg.gate_rank)))


def apply_norm(owner, site, x, cfg):
    if cfg.norm == "preaffine":
        x = x * getattr(owner, site + "_pre").weight
    y = RMSNorm.apply(x, getattr(owner, site).weight, cfg.eps)
    if cfg.norm != "gated":
        return y
    z = F.silu(F.linear(y, getattr(owner, site + "_gate_a").weight))
    return torch.sigmoid(F.linear(z, getattr(owner, site + "_gate_b").weight)) * y


def add_read(owner, site, cfg):
    if cfg.residual == "attnres":
        setattr(owner, site + "_score", Weight(torch.zeros(cfg.d)))
        if cfg.coupling != "none":
            setattr(owner, site + "_theta", nn.Parameter(torch.full((1,), cfg.theta)))


# ------------------------------------------------------------------------------------------------ the model

Source = namedtuple("Source", "x scores psi")      # a candidate of the depth reads, with its raw score for every read


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        add_norm(self, "attn_norm", cfg)
        add_norm(self, "ffn_norm", cfg)
        add_read(self, "attn_res", cfg)
        add_read(self, "ffn_res", cfg)
        q_width, kv_width = cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim
        shapes = dict(attn_q=(q_width, cfg.d), attn_k=(kv_width, cfg.d), attn_v=(kv_width, cfg.d),
                      attn_output=(cfg.d, q_width),
                      ffn_gate=(cfg.ff, cfg.d), ffn_up=(cfg.ff, cfg.d), ffn_down=(cfg.d, cfg.ff))
        if cfg.attn_gate != "none":
            shapes["attn_gate"] = (q_width if cfg.attn_gate == "element" else cfg.n_heads, cfg.d)
        for name, shape in shapes.items():
            setattr(self, name, Weight(torch.randn(shape) * cfg.init_std))
        if cfg.qk_norm:
            self.attn_q_norm, self.attn_k_norm = Weight(torch.ones(cfg.head_dim)), Weight(torch.ones(cfg.head_dim))
        if cfg.softmax == "sink":
            self.attn_sinks = Weight(torch.zeros(cfg.n_heads))

    def attend(self, h, tables, trace):
        """h: (B, T, d) -> (output, psi (B, T), or None without a null class)."""
        cfg, (batch, length, _) = self.cfg, h.shape
        y = apply_norm(self, "attn_norm", h, cfg)
        q, k, v = (F.linear(y, w.weight).view(batch, length, -1, cfg.head_dim).transpose(1, 2)
                   for w in (self.attn_q, self.attn_k, self.attn_v))
        if cfg.qk_norm:
            q = RMSNorm.apply(q.contiguous(), self.attn_q_norm.weight, cfg.eps)
            k = RMSNorm.apply(k.contiguous(), self.attn_k_norm.weight, cfg.eps)
        cos, sin = tables
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        repeats = cfg.n_heads // cfg.n_kv_heads
        if repeats > 1:
            k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        if trace is not None:
            self.trace_attention(q, k, trace)
        q, k, v = (x.reshape(batch * cfg.n_heads, length, -1) for x in (q, k, v))
        o, null_mass = CausalAttention.apply(q, k, v, self.null_logit())
        o = o.view(batch, cfg.n_heads, length, -1).transpose(1, 2).reshape(batch, length, -1)
        if cfg.attn_gate != "none":
            gate = torch.sigmoid(F.linear(y, self.attn_gate.weight))
            o = (o.view(batch, length, cfg.n_heads, -1) * gate.view(batch, length, cfg.n_heads, -1)).flatten(2)
        psi = None if cfg.softmax == "softmax" else null_mass.view(batch, cfg.n_heads, length).mean(1)
        return F.linear(o, self.attn_output.weight), psi

    def null_logit(self):
        """(H,) learned sinks, (1,) zero of Softmax1, or None."""
        if self.cfg.softmax == "sink":
            return self.attn_sinks.weight
        return torch.zeros(1) if self.cfg.softmax == "softmax1" else None

    def trace_attention(self, q, k, trace):
        """Mean weight of the first token and of the null class, over queries from position 64 on."""
        length, logit = q.shape[2], self.null_logit()
        scores = q @ k.transpose(-1, -2) * self.cfg.head_dim ** -0.5 + torch.full((length, length), -torch.inf).triu(1)
        logit = torch.tensor(-torch.inf) if logit is None else logit.view(-1, 1, 1)
        p = torch.cat([logit.expand(*scores.shape[:3], 1), scores], dim=-1).softmax(-1)[:, :, 64:].mean((0, 1, 2))
        trace["null_mass"].append(p[0].item())
        trace["bos_mass"].append(p[1].item())

    def feed_forward(self, h):
        y = apply_norm(self, "ffn_norm", h, self.cfg)
        gate = F.linear(y, self.ffn_gate.weight)
        gate = F.silu(gate) if self.cfg.activation == "silu" else torch.sigmoid(gate)
        return F.linear(gate * F.linear(y, self.ffn_up.weight), self.ffn_down.weight)


class Transformer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.token_embd = Weight(torch.randn(cfg.vocab, cfg.d) * cfg.init_std)
        self.blk = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        add_norm(self, "output_norm", cfg)
        add_read(self, "output_res", cfg)
        self.tables = {}

    def _tables(self, length):
        """Cosines and sines of RoPE."""
        if length not in self.tables:
            half = self.cfg.head_dim // 2
            angle = torch.arange(length)[:, None] * self.cfg.rope_base ** (-torch.arange(half) / half)
            self.tables[length] = angle.cos(), angle.sin()
        return self.tables[length]

    def forward(self, tokens, trace=None):
        """tokens: (B, T) -> logits (B, T, V). trace: dict of lists that collects activation statistics."""
        tables, x = self._tables(tokens.shape[1]), self.token_embd.weight[tokens]
        out = self._run_attnres(x, tables, trace) if self.cfg.residual == "attnres" else self._run_add(x, tables, trace)
        return F.linear(apply_norm(self, "output_norm", out, self.cfg), self.token_embd.weight)

    def _run_add(self, h, tables, trace):
        for blk in self.blk:
            h = h + blk.attend(_record(trace, h), tables, trace)[0]
            h = h + blk.feed_forward(_record(trace, h))
        return _record(trace, h)

    def _run_attnres(self, x, tables, trace):
        cfg = self.cfg
        reads = [(blk, site) for blk in self.blk for site in ("attn_res", "ffn_res")] + [(self, "output_res")]
        queries = torch.stack([getattr(owner, site + "_score").weight for owner, site in reads])
        betas = None
        if cfg.coupling != "none":
            betas = [F.softplus(getattr(owner, site + "_theta")) for owner, site in reads]

        def source(x, psi):
            return Source(x, F.linear(x, queries) * torch.rsqrt(x.square().mean(-1, keepdim=True) + cfg.eps), psi)

        def read(index, sources):
            if len(sources) == 1:
                return _record(trace, sources[0].x)
            g = torch.stack([s.scores[..., index] for s in sources], dim=-1)
            if betas is not None and sources[1].psi is not None:
                psi = torch.stack([s.psi for s in sources[1:]], dim=-1)
                g = g - betas[index] * F.pad(psi - psi.mean(-1, keepdim=True), (1, 0))
            if cfg.depth_softmax == "softmax1":
                alpha = F.pad(g, (1, 0)).softmax(-1)[..., 1:]
            else:
                alpha = g.softmax(-1)
            return _record(trace, WeightedSum.apply(alpha, *(s.x for s in sources)))

        if cfg.block_size == 0:
            sources = [source(x, None)]
            for n, blk in enumerate(self.blk):
                o, psi = blk.attend(read(2 * n, sources), tables, trace)
                sources.append(source(o, psi))
                sources.append(source(blk.feed_forward(read(2 * n + 1, sources)), psi))
            return read(2 * cfg.n_layers, sources)
        done, current, psis = [], source(x, None), []
        for n, blk in enumerate(self.blk):
            h = read(2 * n, done + [current])
            if n % cfg.block_size == 0:
                done, current, psis = done + [current], None, []
            o, psi = blk.attend(h, tables, trace)
            psis = psis + [psi] if psi is not None else psis
            mean_psi = torch.stack(psis).mean(0) if psis else None
            current = source(o if current is None else current.x + o, mean_psi)
            current = source(current.x + blk.feed_forward(read(2 * n + 1, done + [current])), mean_psi)
        return read(2 * cfg.n_layers, done + [current])


def _record(trace, h):
    """Mean kurtosis over the hidden dimension (3 = normal) and largest magnitude of a sub-layer input."""
    if trace is not None:
        centred = h - h.mean(-1, keepdim=True)
        kurtosis = centred.pow(4).mean(-1) / centred.square().mean(-1).square()
        trace["kurtosis"].append(kurtosis.mean().item())
        trace["max_abs"].append(h.abs().max().item())
    return h
