"""Samples answers of a checkpoint.

    python3 sample.py OUT/model.pt DATA/tokenizer.json "Hello // What is your name?" "Tell me a story about a cat."

Each argument is one conversation; " // " separates the user's turns. No cache: the whole text is run again for every
token.
"""
import argparse

import torch

from model import Config, Transformer
from tokenizer import Tokenizer


@torch.no_grad()
def generate(model, ids, stop, max_new, temperature, top_k, generator):
    """-> the new ids, without the stop token. temperature 0: greedy."""
    new = []
    while len(new) < max_new and len(ids) + len(new) < model.cfg.context:
        logits = model(torch.tensor([ids + new]))[0, -1]
        if temperature == 0:
            token = int(logits.argmax())
        else:
            values, candidates = torch.topk(logits / temperature, top_k)
            token = int(candidates[torch.multinomial(values.softmax(-1), 1, generator=generator)])
        if token in stop:
            break
        new.append(token)
    return new


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("tokenizer")
    parser.add_argument("conversations", nargs="+")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-k", type=int, default=40)
    parser.add_argument("--max-new", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    saved, tokenizer = torch.load(args.checkpoint), Tokenizer.load(args.tokenizer)
    model = Transformer(Config(**saved["config"]))
    model.load_state_dict(saved["weights"])
    generator = torch.Generator().manual_seed(args.seed)
    stop = {tokenizer.ids["<|im_end|>"], tokenizer.ids["<|endoftext|>"]}
    for conversation in args.conversations:
        ids = [tokenizer.ids["<|endoftext|>"]]
        for user in conversation.split(" // "):
            ids += tokenizer.encode(f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n")
            answer = generate(model, ids, stop, args.max_new, args.temperature, args.top_k, generator)
            ids += answer + tokenizer.encode("<|im_end|>\n")
            print(f"> {user}\n{tokenizer.decode(answer)}")
        print()


if __name__ == "__main__":
    main()
