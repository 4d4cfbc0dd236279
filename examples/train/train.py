"""Trains a `sinkless` transformer on DATA and writes checkpoints and a CSV log to OUT.

    python3 train.py DATA OUT --minutes 45
    python3 train.py DATA OUT --preset plain --set d=96 n_layers=4 n_heads=3 n_kv_heads=3 ff=256 --steps 1500

DATA is made by data.py and tokenizer.py. The learning rate warms up, stays, and falls linearly over the last part of
the budget (--minutes of wall time or --steps, whichever is given). Every sequence begins with a document; a document
cut by the end of a sequence starts the next one again. With OpenBLAS on a recent x86 CPU, OPENBLAS_CORETYPE=SKYLAKEX in
the environment can double the speed.
"""
import argparse
import csv
import json
import math
import time
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from model import PRESETS, Config, Transformer


def load_documents(data, part):
    """-> list of u16 arrays, each beginning with <|endoftext|>."""
    tokens = np.fromfile(data / f"{part}.u16", "<u2")
    return np.split(tokens, np.fromfile(data / f"{part}.offsets", "<u4")[1:])


def sequences(documents, length, rng):
    """Stream of (length + 1,) arrays: endless, in a new random order every epoch, or once in file order (rng None)."""
    while True:
        filled, parts = 0, []
        for index in rng.permutation(len(documents)) if rng else range(len(documents)):
            document = documents[index]
            while len(document):
                part = document[:length + 1 - filled]
                parts.append(part)
                filled += len(part)
                if filled < length + 1:
                    break
                yield np.concatenate(parts)
                # start a cut document again, unless it began this sequence (then go on inside it)
                restart = 0 < len(document) - len(part) and len(parts) > 1
                document, filled, parts = document if restart else document[len(part):], 0, []
        if rng is None:
            return


def batches(documents, length, batch, rng):
    stream = sequences(documents, length, rng)
    while True:
        rows = [row for row, _ in zip(stream, range(batch))]
        if len(rows) < batch and (rng or not rows):
            return
        yield torch.from_numpy(np.stack(rows).astype(np.int64))


def loss_of(model, rows, trace=None):
    logits = model(rows[:, :-1], trace)
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def evaluate(model, documents, length=512, batch=8):
    """-> mean validation loss, and activation statistics of the first batch."""
    model.eval()
    trace, losses = {key: [] for key in ("kurtosis", "max_abs", "bos_mass", "null_mass")}, []
    for rows in batches(documents, length, batch, None):
        losses.append((loss_of(model, rows, None if losses else trace).item(), len(rows)))
    model.train()
    loss = sum(value * n for value, n in losses) / sum(n for _, n in losses)
    statistics = {key: (max if key == "max_abs" else np.mean)(values) for key, values in trace.items() if values}
    return {"val_loss": loss, **statistics}


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates (five Newton-Schulz steps), for matrices."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.mul_(group["momentum"]).add_(p.grad)
                x = p.grad + group["momentum"] * buffer
                x = x / (x.norm() + 1e-7)
                tall = len(x) > x.shape[1]
                x = x.T if tall else x
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                x = x.T if tall else x
                step_size = group["lr"] * 0.2 * math.sqrt(max(p.shape))         # about the RMS of an AdamW update
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(x, alpha=-step_size)


def make_optimizers(model, args):
    """Muon, if chosen, takes the matrices of the blocks but for the rank-r gates; AdamW takes everything else."""
    matrices, other_matrices, vectors = [], [], []
    for name, p in model.named_parameters():
        if p.ndim < 2:
            vectors.append(p)
        elif name.startswith("blk.") and not name.endswith(("_gate_a.weight", "_gate_b.weight")):
            matrices.append(p)
        else:
            other_matrices.append(p)
    muon = args.optimizer == "muon"
    groups = [{"params": other_matrices if muon else other_matrices + matrices, "weight_decay": args.weight_decay},
              {"params": vectors, "weight_decay": 0.0}]
    optimizers = [torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))]
    return optimizers + ([Muon(matrices, lr=args.lr, weight_decay=args.weight_decay)] if muon else [])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--preset", choices=PRESETS, default="full")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes to Config")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--decay", type=float, default=0.7, help="fraction of the budget over which the rate falls")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--final-length", type=int, default=512, help="sequence length of the last --final-fraction")
    parser.add_argument("--final-fraction", type=float, default=0.25)
    parser.add_argument("--eval-seconds", type=float, default=150)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from OUT/model.pt")
    args = parser.parse_args()
    if not (args.minutes or args.steps):
        parser.error("give --minutes or --steps")
    return args


def make_config(preset, changes):
    """changes: KEY=VALUE strings, converted to the type of the field."""
    types = {field.name: field.type for field in fields(Config)}
    changed = dict(item.split("=") for item in changes)
    changed = {key: json.loads(value) if types[key] is bool else types[key](value) for key, value in changed.items()}
    return Config(**{**PRESETS[preset], **changed})


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    args.out.mkdir(parents=True, exist_ok=True)

    cfg = make_config(args.preset, args.set)
    model = Transformer(cfg)
    train_documents, val_documents = load_documents(args.data, "train"), load_documents(args.data, "val")
    rng, optimizers = np.random.default_rng(args.seed), make_optimizers(model, args)
    n_parameters, n_tokens = sum(p.numel() for p in model.parameters()), sum(map(len, train_documents))
    print(f"{n_parameters} parameters, {n_tokens} training tokens", flush=True)

    def save():
        torch.save({"config": asdict(cfg), "weights": model.state_dict(), "step": step, "tokens": tokens,
                    "seconds": time.time() - start, "optimizers": [o.state_dict() for o in optimizers]},
                   args.out / "model.tmp")
        (args.out / "model.tmp").replace(args.out / "model.pt")

    start, last_eval, step, tokens, rate, recent = time.time(), time.time(), 0, 0, 0.0, []
    if args.resume:
        saved = torch.load(args.out / "model.pt")
        model.load_state_dict(saved["weights"])
        for optimizer, state in zip(optimizers, saved["optimizers"]):
            optimizer.load_state_dict(state)
        step, tokens, start = saved["step"], saved["tokens"], start - saved["seconds"]
        rng = np.random.default_rng(args.seed + step)
    log = csv.writer((args.out / "log.csv").open("a" if args.resume else "w", newline="", buffering=1))
    if not args.resume:
        log.writerow("step tokens seconds lr train_loss val_loss kurtosis max_abs bos_mass null_mass".split())
    length, stream = args.length, batches(train_documents, args.length, args.batch, rng)
    while True:
        progress = (time.time() - start) / (60 * args.minutes) if args.minutes else step / args.steps
        finished = progress >= 1
        if finished or time.time() - last_eval > args.eval_seconds:
            result = evaluate(model, val_documents)
            seconds, train_loss = round(time.time() - start), np.mean(recent)
            measured = [round(float(value), 5) for value in (train_loss, *result.values())]
            log.writerow([step, tokens, seconds, f"{rate:.2e}", *measured])
            print(f"step {step} tokens {tokens} {seconds} s train {train_loss:.4f}",
                  *(f"{k} {v:.4f}" for k, v in result.items()), flush=True)
            save()
            last_eval, recent = time.time(), []
        if finished:
            return
        if length != args.final_length and progress >= 1 - args.final_fraction:
            length = args.final_length
            stream = batches(train_documents, length, max(1, args.batch * args.length // length), rng)
        rate = args.lr * min(1, (step + 1) / args.warmup, max(0.01, (1 - progress) / args.decay))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        rows = next(stream)
        loss = loss_of(model, rows)
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        recent.append(loss.item())
        step, tokens = step + 1, tokens + rows.numel() - len(rows)


if __name__ == "__main__":
    main()
