"""Templates of the training corpus: story subjects and user messages for the teacher, exchanges of the demo persona
(persona.txt) and grammar stories (plots.txt)."""
from pathlib import Path

NAMES = (
    "Lily Tom Anna Ben Mia Max Sue Tim Lucy Sam Rosie Jack Ella Leo Zoe Finn Amy Bob Daisy Spot Kitty Benny "
    "Coco").split()
GIRLS = "Lily Anna Mia Sue Lucy Rosie Ella Zoe Amy Daisy Emma Olivia Maria Kate Laura Nina Ruby Julia Eva".split()
BOYS = "Tom Ben Max Tim Sam Jack Leo Finn Bob Benny Noah Peter Paul John David Alex Oscar Simon Mark".split()
ANIMALS = (
    "cat dog bear bunny bird fish frog mouse duck fox lion monkey turtle elephant pig cow horse bee butterfly "
    "squirrel owl puppy kitten dragon penguin snail tiger sheep hen goat").split()
THINGS = ("ball kite boat car train book hat doll drum balloon cake cookie apple flower key box toy truck bike robot "
          "shell stone star umbrella map bell puzzle blanket lamp feather").split()
PLACES = "forest park garden beach house farm river zoo school kitchen mountain castle lake store cave meadow".split()
ADJECTIVES = (
    "little big brave happy sad kind funny shy lazy curious clever hungry silly friendly lonely tiny old proud").split()
COLOURS = "red blue green yellow shiny pink golden purple soft new pretty".split()
FOODS = "cake soup pie bread cookies pancakes sandwiches salad pizza".split()
ENDINGS = (
    "and learns to share", "and makes a new friend", "and is very happy", "and learns to be brave",
    "and has a big adventure", "and gets help from {her} mom", "and gives it to {her} friend", "and learns to be kind",
    "and says sorry", "and has fun")
EVENTS = (
    "finds a {colour} {thing} in the {place} {end}", "loses {her} {colour} {thing} and looks for it in the {place}",
    "gets lost in the {place} and a {adj2} {animal2} helps {obj}", "wants a {colour} {thing} and works hard to get it",
    "meets a {adj2} {animal2} in the {place} {end}", "makes a {food} with {her} {kin} {end}",
    "is afraid of the dark but a {animal2} helps {obj}", "plays with a {colour} {thing} in the {place}",
    "helps a {adj2} {animal2} find its mom", "does not want to share {her} {thing} but then changes {her} mind",
    "breaks a {thing} and tells the truth", "goes to the {place} with {her} {kin} and sees a {animal2}",
    "wants to fly like a {animal2} and tries very hard", "has a birthday party and gets a {colour} {thing}",
    "plants a seed and waits for it to grow", "hears a strange noise in the {place} and finds a {animal2}")
PAIR_EVENTS = (
    "become friends", "play together in the {place}", "share a {thing}", "have a race in the {place}",
    "find a {colour} {thing} in the {place}", "have a fight and then say sorry")


def article(phrase):
    return ("an " if phrase[0].lower() in "aeiou" else "a ") + phrase


def capital(text):
    return text[0].upper() + text[1:]


def story_prompt(rng):
    """-> (summary sentence for the teacher, subject phrase for the user message, words that the story must contain)."""
    kind, name, animal = rng.random(), rng.choice(NAMES), rng.choice(ANIMALS)
    adj, colour, thing, place = rng.choice(ADJECTIVES), rng.choice(COLOURS), rng.choice(THINGS), rng.choice(PLACES)
    her, obj = "its", "it"
    if kind < 0.35:
        girl = rng.random() < 0.5
        name = rng.choice(GIRLS if girl else BOYS)
        her, obj = ("her", "her") if girl else ("his", "him")
        hero, must = f"a little {'girl' if girl else 'boy'} named {name}", [name]
    elif kind < 0.6:
        hero, must = f"{article(adj)} {animal} named {name}", [animal, name]
    elif kind < 0.85:
        hero, must = f"{article(adj)} {animal}", [animal]
    else:
        other = rng.choice([a for a in ANIMALS if a != animal])
        hero, must, her, obj = f"{article(animal)} and {article(other)}", [animal, other], "their", "them"
        summary = rng.choice(PAIR_EVENTS).format(colour=colour, thing=thing, place=place)
        return f"{capital(hero)} {summary}.", hero if rng.random() < 0.6 else f"{hero} who {summary}", must
    event = rng.choice(EVENTS).format(
        colour=colour, thing=thing, place=place, her=her, obj=obj, adj2=rng.choice(ADJECTIVES),
        animal2=rng.choice([a for a in ANIMALS if a != animal]), food=rng.choice(FOODS),
        kin=rng.choice("mom dad friend grandma sister brother".split()), end="{end}")
    event = event.format(end=rng.choice(ENDINGS).format(her=her))
    subject = hero
    if rng.random() < 0.35:
        subject = f"{hero} who {event}"
    elif thing in event and rng.random() < 0.3:
        subject, must = f"{article(colour)} {thing}" if colour in event else article(thing), [thing]
    return f"{capital(hero)} {event}.", subject, must


STORY_REQUESTS = (
    "Tell me a story about {}.", "Can you tell me a story about {}?", "Please tell me a story about {}.",
    "Tell me a short story about {}.", "I want to hear a story about {}.", "Write a story about {}.",
    "Do you know a story about {}?", "tell me a story about {}", "Could you tell a story about {}, please?")
PLAIN_STORY_REQUESTS = (
    "Tell me a story.", "Can you tell me a story?", "Please tell me a story.", "I want to hear a story.",
    "tell me a story", "Tell me a bedtime story.", "Tell me another story.", "Do you know a story?")

OPENERS = (
    "I am {feeling} today.", "I feel {feeling}.", "I'm so {feeling}!", "I went to the {place} today.",
    "I want to go to the {place}.", "I have a {pet}.", "My {pet} is very cute.", "I just got a new {pet}!",
    "I lost my {thing}.", "I got a new {thing}!", "I made a {thing} with my {kin}.", "My {kin} is coming to visit.",
    "My {kin} made {food} for dinner.", "I am going to eat {food}.", "I like {food}. Do you?", "Do you like {food}?",
    "Do you like {pet}s?", "I love the {place}.", "It is raining today.", "It is very cold outside.",
    "The sun is shining!", "I had a bad dream.", "I can't sleep.", "I am bored. What should we do?",
    "Let's play a game.", "I have a test tomorrow.", "I got a good grade at school!", "My friend is mad at me.",
    "I am hungry.", "I miss my {kin}.", "I broke my {thing}.", "Today is my birthday!",
    "I am going on a trip to the {place}.", "What did you do today?", "What do you want to do?",
    "I saw a {pet} at the {place}.", "I am learning to ride a bike.", "I am learning to cook {food}.",
    "I want to be a {job} when I grow up.", "My {kin} is a {job}.", "I don't like {food}.",
    "Can you help me with my homework?", "I played with my {kin} at the {place}.",
    "Hey, guess what? I found a {thing}!", "What do you think about {pet}s?", "I'm scared of {pet}s.",
    "I need some advice.", "I had a fight with my {kin}.", "Thank you for helping me.", "You are nice.",
    "How was your day?", "What are you doing?", "What should I eat for dinner?", "I am so tired.", "My {kin} is sick.",
    "I read a book about a {pet}.", "I can't find my {thing}.", "I want to buy a {thing} for my {kin}.",
    "It's snowing!")
OPENER_WORDS = {
    "feeling": "happy sad tired hungry excited bored angry nervous scared lonely sick worried proud sleepy".split(),
    "place": "park zoo beach school store farm library lake mountains garden museum pool".split(),
    "pet": "dog cat puppy kitten bunny bird hamster turtle horse spider snake".split(),
    "thing": "toy book hat ball bike kite game shirt phone doll car".split(),
    "kin": "mom dad sister brother grandma grandpa friend cousin aunt uncle teacher".split(),
    "food": ["pizza", "soup", "cake", "pancakes", "ice cream", "apples", "spaghetti", "cookies", "chicken", "salad"],
    "job": "doctor teacher pilot firefighter nurse singer farmer painter cook dancer".split()}


def opener(rng):
    return rng.choice(OPENERS).format(**{key: rng.choice(words) for key, words in OPENER_WORDS.items()})


# ------------------------------------------------------------------------------------------ persona.txt, plots.txt

SLOT_WORDS = {
    "name": GIRLS + BOYS,
    "animal": ANIMALS + "rabbit giraffe whale wolf hamster dinosaur unicorn crocodile zebra panda dolphin".split(),
    "pet": OPENER_WORDS["pet"] + ["rabbit", "fish", "goldfish", "mouse"],
    "color": COLOURS[:7] + ["orange", "black", "white", "brown"],
    "food": OPENER_WORDS["food"] + ["bread", "bananas", "rice", "soup", "cheese"],
    "place": OPENER_WORDS["place"] + ["forest", "river"],
    "kin": OPENER_WORDS["kin"], "thing": THINGS, "job": OPENER_WORDS["job"]}
OPPOSITES = dict(zip("big hot up happy day fast good light long old wet open full hard loud".split(),
                     "small cold down sad night slow bad dark short new dry closed empty soft quiet".split()))
OPPOSITES.update({v: k for k, v in OPPOSITES.items()})
HEROES = SLOT_WORDS["animal"] + (
    "princess prince king queen robot pirate wizard fairy knight giant snowman farmer mermaid ghost witch baker "
    "train tree cloud star car teacher monster clown").split()
PLACES_IN_STORIES = "forest park garden woods village valley jungle meadow desert castle city zoo field".split()


def read_persona(path):
    """-> list of (weight, user templates, answer templates)."""
    blocks = []
    for block in Path(path).read_text(encoding="utf-8").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if line and line[0] != "#")
        if lines:
            blocks.append((int(lines.get("W", 1)), lines["U"].split(" | "), lines["A"].split(" | ")))
    return blocks


def exchange(rng, block):
    """-> [user message, answer], with the slots of the block filled alike on both sides."""
    slots = {key: rng.choice(words) for key, words in SLOT_WORDS.items()}
    slots["word"] = rng.choice(sorted(OPPOSITES))
    slots["opposite"] = OPPOSITES[slots["word"]]
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    slots.update({key + "_cap": capital(value) for key, value in slots.items()}, a=a, b=b, sum=a + b)
    question, answer = (rng.choice(side).format(**slots) for side in block[1:])
    return [capital(question) if rng.random() < 0.5 else question, capital(answer)]


def read_plots(path):
    """-> list of (themes, sentence groups)."""
    plots = []
    for block in Path(path).read_text(encoding="utf-8").split("\n\n"):
        lines = [line for line in block.splitlines() if line and line[0] != "#"]
        if lines:
            plots.append((lines[0].removeprefix("T: ").split(" | "), [line.split(" | ") for line in lines[1:]]))
    return plots


def plot_story(rng, plots):
    """-> (subject of the request, story)."""
    themes, groups = rng.choice(plots)
    kind, animal, other = rng.random(), rng.choice(HEROES), rng.choice(SLOT_WORDS["animal"])
    adj, boy = rng.choice(ADJECTIVES), rng.random() < 0.5
    if animal in ("princess", "queen", "fairy", "mermaid", "witch", "prince", "king", "wizard", "knight"):
        boy = animal in ("prince", "king", "wizard", "knight")
    name = rng.choice(BOYS if boy else GIRLS)
    if kind < 0.3:
        hero, short = f"a little {'boy' if boy else 'girl'} named {name}", name
    elif kind < 0.65:
        hero, short = f"{article(adj)} {animal} named {name}", name
    else:
        hero, short = f"{article(adj)} {animal}", f"the {animal}"
    friend = f"{article(rng.choice(ADJECTIVES))} {other}"
    he, his, him = ("he", "his", "him") if boy else ("she", "her", "her")
    slots = {"hero": hero, "N": short, "he": he, "his": his, "him": him, "He": capital(he), "His": capital(his),
             "friend": friend, "the_friend": f"the {other}", "thing": rng.choice(THINGS), "color": rng.choice(COLOURS),
             "place": rng.choice(PLACES_IN_STORIES), "food": rng.choice(FOODS)}
    slots.update(Hero_cap=capital(hero), Friend=capital(friend), The_friend=f"The {other}")
    sentences = [capital(rng.choice(group).format(**slots)) for group in groups]
    for i in range(1, len(sentences)):                              # "the bear" at the start of a sentence
        sentences[i] = sentences[i].replace(". the ", ". The ").replace("! the ", "! The ").replace("? the ", "? The ")
    breaks = sorted(rng.sample(range(2, len(sentences) - 1), 2))
    parts = sentences[:breaks[0]], sentences[breaks[0]:breaks[1]], sentences[breaks[1]:]
    story = "\n\n".join(" ".join(part) for part in parts)
    a_thing, place = article(slots["thing"]), slots["place"]
    subject = rng.choice([hero, hero, rng.choice(themes), f"{article(slots['color'])} {slots['thing']}", a_thing,
                          f"{hero} and {friend}", f"{hero} and {article(other)}", f"{hero} in the {place}",
                          f"the {place}", article(animal) if kind >= 0.3 else hero])
    return subject, story
