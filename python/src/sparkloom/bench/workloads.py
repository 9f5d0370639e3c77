"""The prompts, as data. Temperature 0 and thinking off unless a run says otherwise; no prompt is secret."""

from __future__ import annotations

import random

from sparkloom.errors import Exit, SparkloomError

DECODE: dict[str, str] = {
    "structured": "Count from 1 to 200, separated by single spaces, digits only, nothing else.",
    "prose": "Describe, in flowing paragraphs without lists, a walk through an old harbour town in autumn.",
    "code": "Write a Python module with a class for a thread-safe LRU cache, with type hints and doctests.",
    "japanese": "秋の港町を散歩する人の一日を、箇条書きを使わずに、落ち着いた文章で詳しく描いてください。",
}

_SUBJECTS = [
    "the miller",
    "a young surveyor",
    "our neighbour",
    "the night nurse",
    "an old captain",
    "the archivist",
]
_VERBS = [
    "measured",
    "wrote about",
    "repaired",
    "carried",
    "painted",
    "forgot",
    "described",
    "sorted",
]
_OBJECTS = [
    "a wooden bridge",
    "the northern gate",
    "seven letters",
    "an unlit lamp",
    "the river's depth",
    "a box of seeds",
    "two broken clocks",
    "the longest street",
]
_ENDINGS = [
    "before the rain came",
    "while the market closed",
    "without a word",
    "for the third time",
    "in the blue ledger",
    "as winter began",
    "near the old mill",
    "under a pale sky",
]


def filler(words: int, salt: int) -> str:
    """English text of about `words` words that no other salt shares a first sentence with.

    The salt stands in the first words, so that no block of the prompt can come from a prefix cache.
    """
    rng = random.Random(salt)
    out = [f"Report {salt:08x} of the {rng.randrange(1, 10_000)}th day."]
    count = 6
    while count < words:
        sentence = " ".join(
            (
                rng.choice(_SUBJECTS),
                rng.choice(_VERBS),
                rng.choice(_OBJECTS),
                rng.choice(_ENDINGS),
                f"and noted {rng.randrange(10_000)}",
            )
        )
        out.append(sentence[0].upper() + sentence[1:] + ".")
        count += len(sentence.split())
    return " ".join(out)


def prefill_prompt(words: int, salt: int) -> str:
    """A long salted text with a question whose answer is short."""
    return filler(words, salt) + "\n\nAnswer in one short sentence: who or what occurs most often above?"


def edited(text: str, share: float, salt: int) -> str:
    """`text` with one word replaced at `share` (0 to 1) of its length."""
    words = text.split(" ")
    words[min(len(words) - 1, int(len(words) * share))] = f"edit{salt:x}"
    return " ".join(words)


AGENT_TURNS: tuple[str, ...] = (
    "List the files that you would open first to find why a service restarts every ten minutes.",
    "The unit file says Restart=always and RuntimeMaxSec=600. What follows?",
    "Propose the smallest change and say how to verify it.",
    "The change is in. The journal now shows a clean run of an hour. Close the ticket in two sentences.",
)


def real_text(words: int, salt: int) -> str:
    """Real technical English (Python's own language reference), from a salted starting place.

    Raises:
        SparkloomError: this Python was packaged without its reference texts.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise SparkloomError(
            "this Python has no pydoc_data.topics, the source of the real text",
            mend="run with --text salted, or with a Python that carries its documentation",
            code=Exit.RESOURCE,
        ) from error
    names = sorted(topics)
    random.Random(salt).shuffle(names)
    out: list[str] = [f"Extract {salt:08x}."]
    count = 2
    while count < words:
        for name in names:
            part = topics[name].split()
            out.append(" ".join(part[: words - count]))
            count += len(part)
            if count >= words:
                break
    return " ".join(out)
