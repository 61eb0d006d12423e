"""JSON that is damaged at random: in what it holds, in its text, or both."""

import copy
import json
import math
import random

# Deeper than what json reads within Python's limit of calls, more digits than Python turns into an int, beyond a float,
# beyond 64 bits, and what no number of a file should be.
DEEP = "[" * 5000 + "]" * 5000
NUMBERS = (0, 1, -1, 7, 255, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, 2**63, 10**400, 0.5, -1.5, 1e308, 5e-324)
STRANGE = (math.nan, math.inf, -math.inf)
THINGS = (
    *NUMBERS,
    *STRANGE,
    None,
    True,
    False,
    "",
    "a",
    "nan",
    "\ud800",
    "f" * 5000,
    "-1",
    [],
    {},
    [[]],
    [None],
    {"": 0},
)
SNIPPETS = (
    "1" * 5000,
    "1e999",
    "NaN",
    "-Infinity",
    DEEP,
    '{"a":' * 3000,
    "\x00",
    "\ufeff",
    '"',
    "}",
    "]",
    ",",
    "null",
    "//",
)


def damaged(content, seed, most=3):
    """The text of a JSON object after up to ``most`` kinds of damage, always the same for a seed."""
    chance = random.Random(seed)
    whole = {"": json.loads(json.dumps(content))}
    for _ in range(chance.randint(0, most)):
        damage_content(whole, chance)
    text = json.dumps(whole[""])
    for _ in range(chance.choice((0, 0, 1, 2))):
        text = damage_text(text, chance)
    return text


def damage_content(whole, chance, things=THINGS):
    """Changes one entry at random, each depth being as likely as another. ``whole`` holds all of it in one."""
    place = whole
    key = ""
    while isinstance(place.get(key) if isinstance(place, dict) else place[key], (dict, list)) and chance.random() < 0.8:
        below = place[key]
        if not below:
            break
        place, key = below, chance.choice(list(below)) if isinstance(below, dict) else chance.randrange(len(below))
    change = chance.choice(("replace", "replace", "near", "remove", "repeat", "rename", "graft"))
    if change == "replace":
        place[key] = copy.deepcopy(chance.choice(things))
    elif change == "near" and type(place[key]) in (int, float):
        place[key] += chance.choice((-1, 1, -0.5, 2**40, -(2**40)))
    elif change == "graft":  # what stands elsewhere
        other = whole.get("")
        while isinstance(other, (dict, list)) and other and chance.random() < 0.7:
            other = chance.choice(list(other.values()) if isinstance(other, dict) else other)
        place[key] = copy.deepcopy(other)
    elif change == "remove" and place is not whole:
        del place[key]
    elif change == "repeat" and isinstance(place, list):
        place.insert(key, place[key])
    elif change == "rename" and isinstance(place, dict) and place is not whole:
        place[f"{key}{chance.choice(('', '_', 's'))}"] = place.pop(key)


def damage_text(text, chance):
    """Cuts the text, puts something into it, or changes a sign."""
    at = chance.randrange(len(text) + 1)
    change = chance.choice(("cut", "insert", "change", "drop"))
    if change == "cut":
        return text[:at]
    if change == "insert":
        return text[:at] + chance.choice(SNIPPETS) + text[at:]
    if change == "change":
        return text[:at] + chr(chance.choice((0, 34, 44, 48, 57, 91, 123, 233, 0x10FFFF))) + text[at + 1 :]
    return text[:at] + text[at + chance.randrange(20) :]
