"""Byte-level BPE with GPT-2's byte alphabet and pre-tokenisation: trainer, encoder, decoder.

    python3 tokenizer.py DATA VOCAB_SIZE

reads DATA/{train,val}.jsonl, learns the merges from the training part and writes DATA/tokenizer.json and
DATA/{train,val}.{u16,offsets}. *.u16 holds the token ids of all documents one after the other, each document preceded
by <|endoftext|>; *.offsets (u32) says where each document begins. Vocabulary: special tokens, 256 bytes, merges.
"""
import heapq
import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPECIAL_SPLIT = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")
# GPT-2's pattern without \p{L} and \p{N}: the same pieces for ASCII text
WORDS = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def byte_alphabet():
    """GPT-2's printable character for every byte value."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in kept]
    return {**{b: chr(b) for b in kept}, **{b: chr(256 + n) for n, b in enumerate(others)}}


BYTE_TO_CHAR = byte_alphabet()
CHAR_TO_BYTE = {c: b for b, c in BYTE_TO_CHAR.items()}


class Tokenizer:
    def __init__(self, merges):
        """merges: list of (left, right) strings, best first."""
        self.merges = [tuple(m) for m in merges]
        self.tokens = SPECIALS + [BYTE_TO_CHAR[b] for b in range(256)] + [a + b for a, b in self.merges]
        self.ids = {token: n for n, token in enumerate(self.tokens)}
        self.rank = {pair: n for n, pair in enumerate(self.merges)}
        self.cache = {}

    def _encode_word(self, word):
        if word not in self.cache:
            parts = [BYTE_TO_CHAR[b] for b in word.encode()]
            while len(parts) > 1:
                rank, i = min((self.rank.get(pair, len(self.rank)), i) for i, pair in enumerate(zip(parts, parts[1:])))
                if rank == len(self.rank):
                    break
                parts[i:i + 2] = [parts[i] + parts[i + 1]]
            self.cache[word] = [self.ids[p] for p in parts]
        return self.cache[word]

    def encode(self, text):
        """Special tokens are recognised in the text."""
        ids = []
        for piece in SPECIAL_SPLIT.split(text):
            if piece in SPECIALS:
                ids.append(self.ids[piece])
            else:
                for word in WORDS.findall(piece):
                    ids += self._encode_word(word)
        return ids

    def decode(self, ids):
        pieces = (self.tokens[i].encode() if i < len(SPECIALS) else bytes(CHAR_TO_BYTE[c] for c in self.tokens[i])
                  for i in ids)
        return b"".join(pieces).decode("utf-8", "replace")

    def save(self, path):
        Path(path).write_text(json.dumps({"merges": self.merges}, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path):
        return cls(json.loads(Path(path).read_text(encoding="utf-8"))["merges"])


def train(texts, vocab_size):
    """-> Tokenizer. Merges the most frequent pair again and again; of equals the first in code-point order."""
    pieces = (piece for text in texts for piece in SPECIAL_SPLIT.split(text) if piece not in SPECIALS)
    counts = Counter(word for piece in pieces for word in WORDS.findall(piece))
    words = [([BYTE_TO_CHAR[b] for b in word.encode()], n) for word, n in counts.items()]
    frequency, where = Counter(), defaultdict(set)                  # pair -> count; pair -> words that may hold it
    for index, (parts, n) in enumerate(words):
        for pair in zip(parts, parts[1:]):
            frequency[pair] += n
            where[pair].add(index)
    heap, merges = [(-n, pair) for pair, n in frequency.items()], []
    heapq.heapify(heap)
    while len(merges) < vocab_size - 256 - len(SPECIALS) and heap:
        n, pair = heapq.heappop(heap)
        if -n != frequency[pair]:                                   # stale entry
            continue
        merges.append(pair)
        changed = set()
        for index in where.pop(pair):
            parts, n = words[index]
            for old in zip(parts, parts[1:]):
                frequency[old] -= n
                changed.add(old)
            i = 0
            while i < len(parts) - 1:
                if (parts[i], parts[i + 1]) == pair:
                    parts[i:i + 2] = [parts[i] + parts[i + 1]]
                i += 1
            for new in zip(parts, parts[1:]):
                frequency[new] += n
                where[new].add(index)
                changed.add(new)
        for p in changed:
            if frequency[p] > 0 and p != pair:
                heapq.heappush(heap, (-frequency[p], p))
    return Tokenizer(merges)


def main(data, vocab_size):
    documents = {part: [json.loads(line)["text"] for line in (data / f"{part}.jsonl").open(encoding="utf-8")]
                 for part in ("train", "val")}
    tokenizer = train(documents["train"], vocab_size)
    tokenizer.save(data / "tokenizer.json")
    for part, texts in documents.items():
        encoded = [[tokenizer.ids["<|endoftext|>"]] + tokenizer.encode(text) for text in texts]
        np.concatenate([np.array(ids, "<u2") for ids in encoded]).tofile(data / f"{part}.u16")
        np.cumsum([0] + [len(ids) for ids in encoded[:-1]]).astype("<u4").tofile(data / f"{part}.offsets")
        n_tokens, n_bytes = sum(map(len, encoded)), sum(len(text.encode()) for text in texts)
        print(f"{part}: {len(texts)} documents, {n_tokens} tokens, {n_bytes / n_tokens:.2f} bytes a token")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), int(sys.argv[2]))
