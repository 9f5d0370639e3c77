"""The two demo models: how each is made, what it is asked, and which answer proves the pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from sparkloom.demo import smol
from sparkloom.demo.client import Client
from sparkloom.demo.launch import Spec
from sparkloom.errors import Exit, SparkloomError

GIB = 1 << 30
Note = Callable[[str], None]


class DemoModel(Protocol):
    """What `run` needs of a model."""

    name: ClassVar[str]
    question: ClassVar[str]  # asked for the checked answer
    story: ClassVar[str]  # asked for the streamed one
    story_tokens: ClassVar[int]
    memory: ClassVar[int]  # bytes that both ranks need together

    def prepare(self, note: Note) -> Spec:
        """Make the checkpoint, or find it ready."""

    def check(self, client: Client, served: str) -> str:
        """Ask, prove and return the answer. Errors: RANK when it is wrong."""


@dataclass(frozen=True)
class Smol:
    """SmolLM2-135M-Instruct as a Mixtral with EXL3 experts: real language."""

    options: smol.Options = field(default_factory=smol.Options)
    name: ClassVar[str] = "smol"
    question: ClassVar[str] = "What is the capital of France?"
    expected: ClassVar[str] = "Paris"
    story: ClassVar[str] = "Write the beginning of a short story about a dragon."
    story_tokens: ClassVar[int] = 64
    memory: ClassVar[int] = int(4.5 * GIB)

    def prepare(self, note: Note) -> Spec:
        """Fetch, rewrite, encode; seconds when the cache has it."""
        phases = {"fetch": "fetching", "rewrite": "rewriting", "encode": "encoding layer"}

        def progress(phase: str, done: int, total: int) -> None:
            note(f"{phases[phase]} {done} of {total}" if total > 1 else phases[phase])

        made = smol.prepare(self.options, progress)
        note(f"{len(made.encoded)} of {made.layers} layers in EXL3, {made.bits} bit {made.codebook}")
        return Spec(made.folder, served="smol")

    def check(self, client: Client, served: str) -> str:
        """Both ranks must agree on the capital of France."""
        answer = client.chat(served, self.question, 24)
        return expect(self.expected in answer, self.question, answer, f"{self.expected!r} in it")


def expect(right: bool, question: str, answer: str, wanted: str) -> str:
    """The answer, if it is right.

    Errors: RANK when it is not: a pair that answers wrongly is not up.
    """
    if right:
        return answer
    raise SparkloomError(
        "the pair is up, but its answer is wrong",
        field=question,
        value=answer,
        detail=f"expected: {wanted}",
        mend="make the model again with `sparkloom demo prepare --fresh`; if that does not help, report it",
        code=Exit.RANK,
    )
