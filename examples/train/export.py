"""Writes GGUF files.

    python3 export.py sinkless OUT/model.pt DATA/tokenizer.json tiny-chat.f16.gguf
    python3 export.py llama2c MODEL.bin TOKENIZER.bin MODEL.gguf
    python3 export.py check OUT/model.pt tiny-chat.f16.gguf ../../tests/reference

sinkless: a checkpoint of train.py. llama2c: llama2.c v0 weights and their tokenizer, as architecture llama in F32.
check: compares the logits of a checkpoint and its exported file, the latter by the NumPy reference.
"""
import argparse
import importlib.util
import struct
from pathlib import Path

import numpy as np

CHAT_TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
                 "'<|im_end|>' + '\n' }}{% endfor %}"
                 "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
ALIGNMENT = 32
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6                     # tokenizer.ggml.token_type
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9           # GGUF value types
TENSOR_TYPES = {"float32": 0, "float16": 1}                     # ggml types


def write_gguf(path, metadata, tensors):
    """metadata: key -> bool, int (u32), float (f32), str, list of str, NumPy array of i32 or f32.
    tensors: name -> f32 or f16 array."""
    def string(text):
        raw = text.encode()
        return struct.pack("<Q", len(raw)) + raw

    def value(v):
        if isinstance(v, bool):
            return struct.pack("<I?", BOOL, v)
        if isinstance(v, int):
            return struct.pack("<II", U32, v)
        if isinstance(v, float):
            return struct.pack("<If", F32, v)
        if isinstance(v, str):
            return struct.pack("<I", STRING) + string(v)
        if isinstance(v, np.ndarray):
            return struct.pack("<IIQ", ARRAY, {"int32": I32, "float32": F32}[v.dtype.name], len(v)) + v.tobytes()
        return struct.pack("<IIQ", ARRAY, STRING, len(v)) + b"".join(map(string, v))

    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    header += b"".join(string(key) + value(v) for key, v in metadata.items())
    offset, blobs = 0, []
    for name, array in tensors.items():
        type_id = TENSOR_TYPES[array.dtype.name]
        header += string(name) + struct.pack(f"<I{array.ndim}QIQ", array.ndim, *array.shape[::-1], type_id, offset)
        raw = np.ascontiguousarray(array).tobytes()
        blobs.append(raw + bytes(-len(raw) % ALIGNMENT))
        offset += len(blobs[-1])
    with open(path, "wb") as out:
        out.write(header + bytes(-len(header) % ALIGNMENT) + b"".join(blobs))


def sinkless_metadata(cfg, name, file_type):
    prefixed = {
        "block_count": cfg["n_layers"], "embedding_length": cfg["d"], "feed_forward_length": cfg["ff"],
        "context_length": cfg["context"], "vocab_size": cfg["vocab"],
        "attention.head_count": cfg["n_heads"], "attention.head_count_kv": cfg["n_kv_heads"],
        "attention.key_length": cfg["head_dim"], "attention.value_length": cfg["head_dim"],
        "attention.layer_norm_rms_epsilon": cfg["eps"], "attention.softmax": cfg["softmax"],
        "rope.dimension_count": cfg["head_dim"], "rope.freq_base": cfg["rope_base"],
        "ffn.activation": cfg["activation"], "residual": cfg["residual"]}
    if cfg["residual"] == "attnres":
        prefixed.update({"attn_res.block_size": cfg["block_size"], "depth.softmax": cfg["depth_softmax"],
                         "depth.coupling": cfg["coupling"]})
    return {"general.architecture": "sinkless", "general.name": name, "general.file_type": file_type,
            **{f"sinkless.{key}": v for key, v in prefixed.items()}}


def bpe_metadata(tokenizer, n_specials):
    types = [CONTROL] * n_specials + [NORMAL] * (len(tokenizer.tokens) - n_specials)
    end_of_text, end_of_turn = tokenizer.ids["<|endoftext|>"], tokenizer.ids["<|im_end|>"]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokenizer.tokens,
            "tokenizer.ggml.token_type": np.array(types, np.int32),
            "tokenizer.ggml.merges": [f"{a} {b}" for a, b in tokenizer.merges], "tokenizer.ggml.add_bos_token": True,
            "tokenizer.ggml.bos_token_id": end_of_text, "tokenizer.ggml.eos_token_id": end_of_text,
            "tokenizer.ggml.eot_token_id": end_of_turn, "tokenizer.chat_template": CHAT_TEMPLATE}


def export_sinkless(checkpoint, tokenizer_path, out, name, file_type):
    """file_type: "f16" or "f32"."""
    import torch
    from tokenizer import SPECIALS, Tokenizer
    saved = torch.load(checkpoint)

    def stored(key, w):
        """Matrices in the file type; vectors and the rank-r gates always in f32."""
        half = file_type == "f16" and w.ndim == 2 and not key.endswith(("_gate_a.weight", "_gate_b.weight"))
        return w.numpy().astype(np.float16 if half else np.float32)
    metadata = sinkless_metadata(saved["config"], name, {"f32": 0, "f16": 1}[file_type])
    metadata.update(bpe_metadata(Tokenizer.load(tokenizer_path), len(SPECIALS)))
    write_gguf(out, metadata, {key: stored(key, w) for key, w in saved["weights"].items()})


def export_llama2c(weights_path, tokenizer_path, out, name):
    raw = Path(weights_path).read_bytes()
    d, ff, layers, heads, kv_heads, vocab, context = struct.unpack_from("<7i", raw)
    values, offset, head_dim = np.frombuffer(raw, "<f4", offset=28), 0, d // heads

    def take(*shape):
        nonlocal offset
        offset += int(np.prod(shape))
        return values[offset - int(np.prod(shape)):offset].reshape(shape)
    tensors = {"token_embd.weight": take(vocab, d)}
    kv = kv_heads * head_dim
    order = (("attn_norm", (d,)), ("attn_q", (d, d)), ("attn_k", (kv, d)), ("attn_v", (kv, d)), ("attn_output", (d, d)),
             ("ffn_norm", (d,)), ("ffn_gate", (ff, d)), ("ffn_down", (d, ff)), ("ffn_up", (ff, d)))
    for kind, shape in order:                                   # the file goes by kind, then by layer
        tensors.update((f"blk.{n}.{kind}.weight", w) for n, w in enumerate(take(layers, *shape)))
    tensors["output_norm.weight"] = take(d)
    if offset + context * head_dim != len(values):              # what is left are the RoPE tables
        raise ValueError(f"{weights_path}: not a llama2.c v0 file with tied embeddings")

    raw, tokens, scores, types = Path(tokenizer_path).read_bytes(), [], [], []
    position = 4                                                # after the longest token length
    for n in range(vocab):
        score, length = struct.unpack_from("<fi", raw, position)
        text = raw[position + 8:position + 8 + length].decode().replace(" ", "\u2581")
        position += 8 + length
        special = {0: ("<unk>", UNKNOWN), 1: ("<s>", CONTROL), 2: ("</s>", CONTROL)}.get(n)
        token, kind = special or (text, BYTE if text.startswith("<0x") and len(text) == 6 else NORMAL)
        tokens.append(token)
        scores.append(score)
        types.append(kind)
    write_gguf(out, {
        "general.architecture": "llama", "general.name": name, "general.file_type": 0,
        "llama.vocab_size": vocab, "llama.context_length": context, "llama.embedding_length": d,
        "llama.feed_forward_length": ff, "llama.block_count": layers, "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads, "llama.rope.dimension_count": head_dim,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32), "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0}, tensors)


def check(checkpoint, gguf_path, reference, n_tokens=200):
    """Prints the largest logit difference between the PyTorch model and the reference, both with the file's weights."""
    import torch
    from model import Config, Transformer

    def load(name):                                             # the reference has a module called `model` as well
        spec = importlib.util.spec_from_file_location("reference_" + name, f"{reference}/{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    gguf, reference_model = load("gguf"), load("model")
    metadata, tensors = gguf.read(gguf_path)
    model = Transformer(Config(**torch.load(checkpoint)["config"])).double()
    model.load_state_dict({name: torch.tensor(t.values).double() for name, t in tensors.items()})
    tokens = np.random.default_rng(0).integers(0, metadata["sinkless.vocab_size"], n_tokens)
    expected, _ = reference_model.Model(metadata, tensors).forward(tokens)
    with torch.no_grad():
        for dtype in (torch.float64, torch.float32):
            logits = model.to(dtype)(torch.from_numpy(tokens)[None])[0].double().numpy()
            print(f"{dtype}: max |difference| {np.abs(logits - expected).max():.2e}, logits std {expected.std():.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sinkless", "llama2c", "check"))
    parser.add_argument("files", nargs=3)
    parser.add_argument("--type", choices=("f32", "f16"), default="f16")
    parser.add_argument("--name", help="general.name; default: the output file name up to its first dot")
    args = parser.parse_args()
    name = args.name or Path(args.files[2]).name.split(".")[0]
    if args.what == "sinkless":
        export_sinkless(*args.files, name, args.type)
    elif args.what == "llama2c":
        export_llama2c(*args.files, name)
    else:
        check(*args.files)
