"""Builds the training corpus of the demo model from a folder of public texts.

    python3 data.py prompts CORPUS            writes CORPUS/prompts_{chat,story}.jsonl, the input of teacher.py
    python3 data.py build CORPUS OUT          writes OUT/{train,val}.jsonl, one {"kind", "text"} per document

CORPUS holds (README.md says where they come from; whatever is absent is left out, with a note):
    tinystories_1000.json  tinystories_val.txt  tinystories_10k.txt      TinyStories slices
    chat_val.txt                                                         dialogues from SODA, "User: / Bot:" turns
    chatterbot/*.yml                                                     chatterbot-corpus, English
    gutenberg/*.txt                                                      children's books, headers cut
    teacher_chat.jsonl  teacher_story.jsonl                              output of teacher.py
Hand-written persona.txt and plots.txt are expected beside this script. 2 % of the documents become validation text; the
split goes by a hash of the document's key (first user message, summary or opening), so variants of one source stay
together. Needs PyYAML only where chatterbot/ is present.
"""
import hashlib
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

import prompts

HERE = Path(__file__).parent
SIMPLE_BOOKS = ("McGuffey-s-First", "McGuffey-s-Second", "Raggedy-Ann",            # parts of file names
                "Sleepy-Time", "Tuck-Me-In", "Velveteen-Rabbit", "Stories-to-Tell")
UNWANTED = re.compile(
    r"\b(sex\w*|kill\w*|murder\w*|gun|guns|drugs?|drunk|wine|beer|alcohol|damn|hell|shit|fuck\w*|suicide|died?|dead|"
    r"cigarettes?|god|jesus|hate|stupid|idiot|blood|weapon\w*|rape\w*|nazi|slave\w*|whip\w*|negro\w*|savage\w*)\b",
    re.I)
PLOT_STORIES, PERSONA_CHATS, TEACHER_STORIES = 5500, 7000, 1200
TYPOGRAPHY = str.maketrans({"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u2014": " - ", "\u2013": "-",
                            "\u2026": "...", "\r": ""})


def is_present(path):
    if not path.exists():
        print("absent:", path)
    return path.exists()


def clean(text):
    """ASCII only, no runs of blanks, no blanks at line ends, at most one empty line in a row."""
    text = text.translate(TYPOGRAPHY).encode("ascii", "ignore").decode()
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]*\n[ \t]*", "\n", re.sub(r"[ \t]+", " ", text))).strip()


def chatml(turns):
    """turns: user, assistant, user, assistant, ... -> ChatML text."""
    roles = "user", "assistant"
    return "".join(f"<|im_start|>{roles[n % 2]}\n{turn}<|im_end|>\n" for n, turn in enumerate(turns))


def is_sound_story(text):
    words, sentences = text.split(), re.split(r"(?<=[.!?])\s+", text)
    trigrams = Counter(zip(words, words[1:], words[2:]))
    return (60 <= len(words) <= 330 and text[-1] in '.!?"' and text.count('"') % 2 == 0 and not UNWANTED.search(text)
            and len(set(sentences)) == len(sentences) and max(trigrams.values()) <= 3
            and not any(a == b for a, b in zip(words, words[1:])))


def is_sound_reply(user, reply):
    words = reply.lower().split()
    return (1 <= len(words) <= 40 and reply[-1] in ".!?" and "<" not in reply
            and not UNWANTED.search(reply + " " + user)
            and max(Counter(words).values()) <= 3 and reply.lower() != user.lower()
            and not any(a == b for a, b in zip(words, words[1:])))


def tinystories(corpus):
    """-> list of distinct stories. The .txt slices begin inside a story, which is dropped."""
    stories = []
    for name, separator in (("tinystories_1000.json", None), ("tinystories_val.txt", r"\n\s*\n\s*\n+"),
                        ("tinystories_10k.txt", r"<\|endoftext\|>")):
        if is_present(corpus / name):
            raw = (corpus / name).read_text(encoding="utf-8")
            stories += json.loads(raw) if separator is None else re.split(separator, raw)[1:]
    return list(dict.fromkeys(story for story in map(clean, stories) if len(story) > 200))


def story_subject(rng, text):
    """A phrase that a user could have used to ask for this story, or None."""
    opening = text[:300]
    found = (re.search(r"(?:was|lived|were) ((?:an?|two) (?:\w+,? ){1,4}?(?:named|called) [A-Z]\w+)", opening)
             or re.search(r"(?:there was|there lived) (an? (?:\w+,? ){0,2}\w+)(?=[.,]| who| in | that| with)", opening))
    nouns = [w for w in prompts.ANIMALS + prompts.THINGS + prompts.PLACES if len(re.findall(rf"\b{w}\b", text)) >= 3]
    names = [w for w, n in Counter(re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,}", text)).most_common(2) if n >= 3]
    options = [found.group(1)] * 2 if found else []
    options += [prompts.article(noun) for noun in nouns[:2]] + ([" and ".join(names)] if names else [])
    return rng.choice(options) if options else None


def story_request(rng, subject):
    if subject is None or rng.random() < 0.08:
        return rng.choice(prompts.PLAIN_STORY_REQUESTS)
    return rng.choice(prompts.STORY_REQUESTS).format(subject)


def soda(corpus):
    """-> list of turn lists: user, assistant, user, assistant, ..."""
    conversations, path = [], corpus / "chat_val.txt"
    for block in path.read_text(encoding="utf-8").split("\n\n") if is_present(path) else ():
        turns = re.findall(r"User: (.*?)\nBot: (.*?)<\|endoftext\|>", block, re.S)
        if turns:
            conversations.append([clean(part) for turn in turns for part in turn])
    return conversations


def chatterbot(corpus):
    """Yields turn lists. In two files a list is a dialogue; in the others its later lines all answer the first."""
    if not is_present(corpus / "chatterbot"):
        return
    import yaml
    for name in ("conversations", "greetings", "emotion", "botprofile", "food", "humor", "ai", "psychology"):
        path = corpus / "chatterbot" / f"{name}.yml"
        for lines in yaml.safe_load(path.read_text(encoding="utf-8"))["conversations"] if is_present(path) else ():
            lines = [clean(str(line)) for line in lines]
            one_dialogue = name in ("conversations", "greetings")
            for turns in [lines] if one_dialogue else [[lines[0], answer] for answer in lines[1:]]:
                turns = turns[:len(turns) // 2 * 2]
                if turns and all(len(t.split()) < 22 for t in turns) and not UNWANTED.search(" ".join(turns)):
                    yield turns


def gutenberg(corpus):
    """Yields passages of 50 to 330 words of simple prose. A passage ends after 160 words, or at what is not prose."""
    for path in sorted((corpus / "gutenberg").glob("*.txt")) if is_present(corpus / "gutenberg") else ():
        if not any(part in path.name for part in SIMPLE_BOOKS):
            continue
        passage = []
        for paragraph in re.split(r"\n\s*\n", clean(path.read_text(encoding="utf-8", errors="ignore"))):
            paragraph = re.sub(r"^\d+\. ", "", paragraph.replace("\n", " ").replace("_", ""))
            prose = (re.search(r"[a-z]{2}.*[.!?\"]$", paragraph)
                     and not re.search(r"[\[\]*|{}=]|[A-Z]{4}|Gutenberg|Copyright|LESSON", paragraph))
            if prose:
                passage.append(paragraph)
            if sum(len(p.split()) for p in passage) > 160 or not prose:
                text = "\n\n".join(passage)
                if 50 <= len(text.split()) <= 330 and not UNWANTED.search(text):
                    yield text
                passage = []


def persona_chat(rng, blocks, plots, stories):
    """A dialogue of one to six exchanges, with a story after some of them. stories: (subject, text) pairs."""
    weights = [weight for weight, _, _ in blocks]
    greeting, goodbye = blocks[0], next(b for b in blocks if b[1][0] == "Goodbye")
    chain = [greeting] if rng.random() < 0.3 else []
    chain += rng.choices(blocks, weights, k=rng.choice((1, 1, 2, 2, 3, 4)))
    turns = []
    for block in chain + ([goodbye] if rng.random() < 0.15 else []):
        turns += prompts.exchange(rng, block)
        if rng.random() < 0.06:
            subject, story = prompts.plot_story(rng, plots) if rng.random() < 0.5 else rng.choice(stories)
            turns += [story_request(rng, subject), story]
    return turns


def documents(corpus, seed=0):
    """Yields (kind, key, text)."""
    rng = random.Random(seed)
    blocks, plots = prompts.read_persona(HERE / "persona.txt"), prompts.read_plots(HERE / "plots.txt")
    stories = tinystories(corpus)
    with_subject = [(story_subject(rng, story), story) for story in stories if len(story.split()) < 300]
    for story in stories:
        yield "story", story[:60], story
    for subject, story in with_subject:
        yield "story-chat", story[:60], chatml([story_request(rng, subject), story])
    for turns in soda(corpus):
        if not UNWANTED.search(" ".join(turns)):
            yield "chat", turns[0], chatml(turns)
    for turns in chatterbot(corpus):
        yield "chat", turns[0], chatml(turns)
    for text in gutenberg(corpus):
        yield "book", text[:60], text
    for name in ("teacher_chat.jsonl", "teacher_story.jsonl"):
        rows = (corpus / name).read_text(encoding="utf-8").splitlines() if is_present(corpus / name) else ()
        stories_left = TEACHER_STORIES
        for row in map(json.loads, reversed(rows)):                 # the latest samples first: teacher.py appends
            text = clean(row["text"])
            if row["kind"] == "chat" and text and is_sound_reply(row["turns"][-1], text):
                yield "teacher-chat", row["key"], chatml([clean(t) for t in row["turns"]] + [text])
            elif (row["kind"] == "story" and stories_left and text and is_sound_story(text)
                  and all(word in text for word in row["must"])):
                stories_left -= 1
                yield "teacher-story", row["key"], chatml([story_request(rng, row["subject"]), text])
    for _ in range(PLOT_STORIES):
        subject, story = prompts.plot_story(rng, plots)
        yield "plot-story", story[:60], chatml([story_request(rng, subject), story])
    short_stories = [(subject, story) for subject, story in with_subject if len(story.split()) < 130]
    short_stories = short_stories or [prompts.plot_story(rng, plots)]
    for _ in range(PERSONA_CHATS):
        turns = persona_chat(rng, blocks, plots, short_stories)
        yield "persona", "".join(turns), chatml(turns)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def build(corpus, out):
    out.mkdir(parents=True, exist_ok=True)
    counts, rows = Counter(), {"train": [], "val": []}
    for kind, key, text in documents(corpus):
        part = "val" if int(hashlib.sha256(key.encode()).hexdigest(), 16) % 50 == 0 else "train"
        rows[part].append({"kind": kind, "text": text})
        counts[part, kind, "documents"] += 1
        counts[part, kind, "bytes"] += len(text)
    for part, part_rows in rows.items():
        random.Random(0).shuffle(part_rows)
        write_lines(out / f"{part}.jsonl", part_rows)
    for key in sorted(counts):
        print(*key, counts[key])


def write_prompts(corpus, seed=1):
    rng, rows = random.Random(seed), []
    for turns in soda(corpus):
        for k in range(0, min(6, len(turns)), 2):
            history = "".join(f"User: {u}\nBot: {b}<|endoftext|>\n" for u, b in zip(turns[:k:2], turns[1:k:2]))
            row = {"prompt": f"{history}User: {turns[k]}\nBot:", "kind": "chat", "key": turns[0],
                   "turns": turns[:k + 1], "max_new": 50}
            rows += [row] * (2 if k == 0 else 1)
    openers = Counter(prompts.opener(rng) for _ in range(20000))
    rows += [{"prompt": f"User: {o}\nBot:", "kind": "chat", "key": o, "turns": [o], "max_new": 50}
             for o, n in openers.items() for _ in range(min(n, 3))]
    rng.shuffle(rows)
    write_lines(corpus / "prompts_chat.jsonl", rows)
    summaries = (prompts.story_prompt(rng) for _ in range(30000))
    write_lines(corpus / "prompts_story.jsonl", (
        {"prompt": f"Summary: {summary}\nStory:", "kind": "story", "key": summary, "subject": subject, "must": must,
         "max_new": 230} for summary, subject, must in summaries))


if __name__ == "__main__":
    if sys.argv[1:2] == ["prompts"] and len(sys.argv) == 3:
        write_prompts(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["build"] and len(sys.argv) == 4:
        build(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(__doc__)
