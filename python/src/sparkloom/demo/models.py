"""The two demo models: how each is made, what it is asked, and which answer proves the pair."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from sparkloom.demo import smol
from sparkloom.demo.cache import cache_folder, locked
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

    def check(self, client: Client, spec: Spec) -> str:
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

    def check(self, client: Client, spec: Spec) -> str:
        """Both ranks together must know the capital of France."""
        answer = client.chat(spec.served, self.question, 24)
        return expect(self.expected in answer, self.question, answer, f"{self.expected!r} in it")


@dataclass(frozen=True)
class TinyGlm:
    """The true architecture, GLM-5.3-Flash in small: random weights, EXL3 experts, MTP drafts.

    Its words mean nothing. They are right when they are the same that transformers computes from the
    decoded weights, token by token in float32.
    """

    name: ClassVar[str] = "tiny-glm"
    question: ClassVar[str] = "Is every token the one that transformers computes?"
    story: ClassVar[str] = "Say something."
    story_tokens: ClassVar[int] = 64
    memory: ClassVar[int] = int(3.5 * GIB)
    tokens: ClassVar[int] = 32

    def prepare(self, note: Note) -> Spec:
        """Write the checkpoint anew; it takes seconds and no download."""
        from sparkloom import tiny

        base = cache_folder() / self.name
        with locked(base):
            note("writing")
            part, folder = base / ".part", base / "model"
            for old in (part, folder):
                shutil.rmtree(old, ignore_errors=True)
            tiny.write(part)
            part.rename(folder)
        note("random weights: the words mean nothing, but each of them is checked")
        return Spec(
            folder,
            served="GLM-5.3-Flash-tiny",
            max_len=1024,
            speculative={"method": "mtp", "num_speculative_tokens": 3},
            extra=("--no-enable-prefix-caching",),
        )

    def check(self, client: Client, spec: Spec) -> str:
        """The pair's greedy tokens against transformers' own forward pass on the decoded weights."""
        import torch
        from transformers import Glm5NextForConditionalGeneration
        from transformers.utils import logging as chatter

        from sparkloom.vllm.dense import write_dense
        from sparkloom.vllm.sources import from_server, teacher

        chatter.set_verbosity_error()  # it tells of the MTP layer, which it does not know
        chatter.disable_progress_bar()
        prompt = list(range(23, 87))
        headers = client.headers
        (got,) = from_server(client.base, spec.served, [prompt], self.tokens, headers=headers)
        with tempfile.TemporaryDirectory(dir=spec.model.parent) as folder:
            dense = Path(folder) / "dense"
            write_dense(spec.model, dense)
            model = Glm5NextForConditionalGeneration.from_pretrained(dense, dtype=torch.float32).eval()
        want = teacher(model, prompt, got.tokens)
        same = sum(a == b for a, b in zip(want.tokens, got.tokens, strict=True))
        answer = f"{same} of {self.tokens} are"
        return expect(same == self.tokens, self.question, answer, f"all {self.tokens}")


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
