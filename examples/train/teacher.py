"""Samples text from a small GPT-Neo chat model with a batched KV-cached decoder.

    python3 teacher.py model_neo_q4.bin tok_neo.bin prompts.jsonl samples.jsonl --seconds 600

The model is "neo3m-chat" of therezor/cardputer-ai. prompts.jsonl holds one {"prompt": ..., "max_new": ..., ...} per
line; every line comes back with "text" added, appended to samples.jsonl. Prompts of MAX_PROMPT tokens or more and
replies that do not end are left out.
"""
import argparse
import json
import re
import struct
import time
from pathlib import Path

import numpy as np
import torch

MAX_PROMPT = 150            # tokens
GPT2_SPLIT = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


class Tokenizer:
    """Byte-level BPE of a CTK2 file.

    Layout: magic, n_tokens, max_len, eos, n_merges; 256 byte ids; merges (a, b, id); tokens (length, bytes).
    """

    def __init__(self, path):
        raw = Path(path).read_bytes()
        _, n_tokens, _, self.eos, n_merges = struct.unpack_from("<Iiiii", raw)
        merges = np.frombuffer(raw, "<u2", 3 * n_merges, 20 + 512).reshape(-1, 3).tolist()
        offset, self.tokens = 20 + 512 + 6 * n_merges, []
        for _ in range(n_tokens):
            length, = struct.unpack_from("<i", raw, offset)
            self.tokens.append(raw[offset + 4:offset + 4 + length])
            offset += 4 + length
        self.ids = {token: i for i, token in enumerate(self.tokens) if i != self.eos}
        self.rank = {(self.tokens[a], self.tokens[b]): rank for a, b, rank in merges}
        self.cache = {}

    def _encode_word(self, word):
        parts = [bytes([b]) for b in word]
        while len(parts) > 1:
            rank, i = min((self.rank.get(pair, 1 << 30), i) for i, pair in enumerate(zip(parts, parts[1:])))
            if rank == 1 << 30:
                break
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        return [self.ids[p] for p in parts if p in self.ids]

    def encode(self, text):
        ids = []
        for n, piece in enumerate(text.split("<|endoftext|>")):
            ids += [self.eos] if n else []
            for word in GPT2_SPLIT.findall(piece):
                if word not in self.cache:
                    self.cache[word] = self._encode_word(word.encode())
                ids += self.cache[word]
        return ids

    def decode(self, ids):
        return b"".join(self.tokens[i] for i in ids).decode("utf-8", "replace")


class GptNeo:
    """fp32 weights of the CRDP v2 file: norms and biases in f32, matrices in blocks of 32 (bf16 scale, 4-bit codes)."""

    def __init__(self, path):
        raw = Path(path).read_bytes()
        self.d, self.ff, self.n_layers, self.n_heads, _, vocab, self.context = struct.unpack_from("<7i", raw, 8)
        offset, layers, d, ff = 64, self.n_layers, self.d, self.ff

        def floats(*shape):
            nonlocal offset
            values = np.frombuffer(raw, "<f4", int(np.prod(shape)), offset).reshape(shape)
            offset += values.nbytes
            return torch.from_numpy(values.copy())

        def matrix(*shape):
            nonlocal offset
            blocks = np.frombuffer(raw, np.uint8, int(np.prod(shape)) // 32 * 18, offset).reshape(-1, 18)
            offset += blocks.nbytes
            scale = (blocks[:, :2].copy().view("<u2").astype("<u4") << 16).view("<f4")
            codes = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1).astype(np.float32) - 8
            return torch.from_numpy((codes * scale).reshape(shape))
        self.n1w, self.n1b, self.n2w, self.n2b = (floats(layers, d) for _ in range(4))
        self.nfw, self.nfb = floats(d), floats(d)
        self.ob, self.fb, self.pb = floats(layers, d), floats(layers, ff), floats(layers, d)
        self.positions = floats(self.context, d)
        self.embedding = matrix(vocab, d)
        wq, wk, wv, self.wo = (matrix(layers, d, d) for _ in range(4))
        self.wqkv = torch.cat([wq, wk, wv], dim=1)
        self.w1, self.w2 = matrix(layers, ff, d), matrix(layers, d, ff)
        if offset != len(raw):
            raise ValueError(f"{path}: unexpected file layout")

    def new_cache(self, batch, length):
        return torch.zeros(2, self.n_layers, batch, length, self.n_heads, self.d // self.n_heads)

    def step(self, tokens, t, cache):
        """tokens: (batch,) ids at position t. cache: (2, layers, batch, length, heads, head size). -> logits."""
        norm = torch.nn.functional.layer_norm
        x, batch = self.embedding[tokens] + self.positions[t], len(tokens)
        for n in range(self.n_layers):
            y = norm(x, (self.d,), self.n1w[n], self.n1b[n])
            q, k, v = (y @ self.wqkv[n].T).view(batch, 3, self.n_heads, -1).unbind(1)
            cache[0, n, :, t], cache[1, n, :, t] = k, v
            p = (cache[0, n, :, :t + 1] * q[:, None]).sum(-1).softmax(1)        # GPT-Neo does not scale the scores
            o = (cache[1, n, :, :t + 1] * p[..., None]).sum(1)
            x = x + torch.addmm(self.ob[n], o.reshape(batch, -1), self.wo[n].T)
            y = norm(x, (self.d,), self.n2w[n], self.n2b[n])
            u = torch.addmm(self.fb[n], y, self.w1[n].T)
            u = 0.5 * u * (1 + torch.tanh(0.7978845608 * (u + 0.044715 * u ** 3)))
            x = x + torch.addmm(self.pb[n], u, self.w2[n].T)
        return norm(x, (self.d,), self.nfw, self.nfb) @ self.embedding.T


@torch.no_grad()
def sample(model, prompts, eos, max_new, temperature, top_k):
    """prompts: lists of ids. -> list of generated ids without eos, or None where none ended in time."""
    length = min(model.context, max(map(len, prompts)) + max_new)
    cache, alive = model.new_cache(len(prompts), length), torch.arange(len(prompts))
    forced = torch.full((len(prompts), length), -1)
    for i, p in enumerate(prompts):
        forced[i, :len(p)] = torch.tensor(p)
    out, ended = [[] for _ in prompts], [False] * len(prompts)
    tokens = forced[:, 0]
    for t in range(length - 1):
        values, ids = torch.topk(model.step(tokens, t, cache), top_k)
        choice = torch.multinomial((values / temperature).softmax(-1), 1)
        drawn, given = ids.gather(1, choice)[:, 0], forced[alive, t + 1]
        tokens = torch.where(given >= 0, given, drawn)
        for i, token, free in zip(alive.tolist(), tokens.tolist(), (given < 0).tolist()):
            if free and not ended[i]:
                ended[i] = token == eos
                out[i] += [] if ended[i] else [token]
        keep = torch.tensor([not ended[i] for i in alive.tolist()])
        if keep.sum() == 0:
            break
        if keep.sum() < 0.7 * len(keep):                                        # drop finished rows
            alive, tokens, cache = alive[keep], tokens[keep], cache[:, :, keep]
    return [o if e else None for o, e in zip(out, ended)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("weights", "tokenizer", "prompts", "samples"):
        parser.add_argument(name)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--batch", type=int, default=192)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-k", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    tokenizer, model = Tokenizer(args.tokenizer), GptNeo(args.weights)
    rows = [json.loads(line) for line in Path(args.prompts).read_text(encoding="utf-8").splitlines()]
    start, count = time.time(), 0
    with open(args.samples, "a", encoding="utf-8") as out:
        for first in range(0, len(rows), args.batch):
            batch = rows[first:first + args.batch]
            ids = [tokenizer.encode(row["prompt"]) for row in batch]
            fits = [n for n, p in enumerate(ids) if len(p) < MAX_PROMPT]
            max_new = batch[0]["max_new"]                                       # the same in all prompts of a file
            samples = sample(model, [ids[n] for n in fits], tokenizer.eos, max_new, args.temperature, args.top_k)
            for n, generated in zip(fits, samples):
                if generated is not None:
                    count += len(generated)
                    out.write(json.dumps(dict(batch[n], text=tokenizer.decode(generated).strip())) + "\n")
            out.flush()
            speed = count / (time.time() - start)
            print(f"{first + len(batch)} prompts, {count} tokens, {speed:.0f} tok/s", flush=True)
            if time.time() - start > args.seconds:
                break


if __name__ == "__main__":
    main()
