"""Weight edits while vLLM reads a checkpoint: whole tensors are edited before any rank cuts its share.

Off unless `SPARKLOOM_ABLIT` is set (docs/ablit.md). The edit happens in the stream of (name, tensor) that
vLLM's default loader reads, under the checkpoint's own names, so that every rank keeps its slice of the same
edited tensor, however the layer is split. Nothing falls back: a file that is missing, changed or not fitting,
a tensor that never came by, or a loader that reads weights another way ends the rank with the reason.
Upstream (`vllm/model_executor/model_loader`): `DefaultModelLoader.get_all_weights`,
`BaseModelLoader.load_model`.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from sparkloom.ablit import edit, rules, store
from sparkloom.ablit.spec import Spec, from_env
from sparkloom.ablit.verify import apply, refuse
from sparkloom.errors import Exit, SparkloomError

NAMES = {"torch.bfloat16": "BF16", "torch.float16": "F16", "torch.float32": "F32"}


class Editor:
    """One pass over a checkpoint's tensors."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.pieces = {p.tensor: p for p in store.load(spec).pieces}
        self.done: dict[str, float] = {}

    def stream(self, tensors: Iterator[tuple[str, Any]]) -> Generator[tuple[str, Any], None, None]:
        """The same tensors, those of the edit changed.

        Raises:
            SparkloomError: a tensor is EXL3 or does not fit, or the donor's bytes are wrong.
        """
        stems = {name.removesuffix(".weight") + ".trellis": name for name in self.pieces}
        for name, tensor in tensors:
            if (packed := stems.get(name)) is not None:
                problem = rules.target_problem(packed, {name: ("I16", ())})
                refuse([problem] if problem else [], self.spec.model, "weight edit")
            yield name, self.edited(name, tensor) if name in self.pieces else tensor

    def edited(self, name: str, tensor: Any) -> Any:
        """One tensor, edited, in its own type."""
        import torch

        spec, piece = self.spec, self.pieces[name]
        dtype = NAMES.get(str(tensor.dtype), str(tensor.dtype))
        ours = {name: (dtype, tuple(tensor.shape))}
        problem = rules.target_problem(name, ours) or rules.donor_problem(
            spec, name, ours[name], (piece.dtype, piece.shape)
        )
        refuse([problem] if problem else [], spec.folder, "weight edit")
        raw = store.read(Path(spec.folder), piece)
        before = tensor.detach().to("cpu", torch.float32).numpy()
        after = apply(spec, name, before, store.floats(raw, piece.dtype))
        change = edit.relative_change(before, edit.rounded(after, dtype))
        problem = rules.change_problem(spec, name, change)
        refuse([problem] if problem else [], spec.folder, "weight edit")
        self.done[name] = change
        return torch.from_numpy(after).to(tensor.device, tensor.dtype)

    def missing(self) -> list[str]:
        """Tensors that have not come by yet."""
        return [name for name in self.pieces if name not in self.done]

    def finish(self) -> None:
        """Every tensor must have come by.

        Raises:
            SparkloomError: some did not: the model would be served half edited or not at all.
        """
        if missing := self.missing():
            raise SparkloomError(
                f"{len(missing)} of {len(self.pieces)} tensors of the weight edit were never loaded, the "
                f"first is {missing[0]}",
                file=self.spec.model,
                field=missing[0],
                mend="name tensors of this checkpoint, and let vLLM read it by its default loader",
                code=Exit.CHECK,
            )

    def lines(self) -> list[str]:
        """What was changed, for the log."""
        spec = self.spec
        how = spec.method if spec.method == "transplant" else f"projection, strength {spec.strength:g}"
        rows = [f"  {name}: relative change {change:.4f}" for name, change in self.done.items()]
        return [
            f"WEIGHTS EDITED ({how}, manifest {spec.manifest_sha256}): {len(rows)} tensors. Quality and "
            "draft acceptance measured without the edit no longer hold.",
            *rows,
        ]


def install(environ: Any = os.environ) -> Spec | None:
    """Hook the loader if an edit is asked for; otherwise nothing is touched.

    Raises:
        SparkloomError: the variable, or the manifest that it names, is wrong.
        HookRefused: upstream no longer has the form that is changed here.
    """
    spec = from_env(environ)
    if spec is None:
        return None
    from vllm.logger import init_logger
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    from sparkloom.vllm.hooks.shape import expect_parameters

    logger = init_logger("vllm.sparkloom.ablit")
    base: Any = BaseModelLoader
    default: Any = DefaultModelLoader
    load, read = base.load_model, default.get_all_weights
    expect_parameters("ablit", load, "vllm_config", "model_config")
    expect_parameters("ablit", read, "model_config", "model")
    editor: list[Editor] = []  # one for target and drafter: each may read only its own layers
    loading: list[bool] = []

    def load_model(self: Any, vllm_config: Any, model_config: Any, *args: Any, **kwargs: Any) -> Any:
        target = vllm_config.model_config
        if str(model_config.model) != str(target.model):  # a drafter's own checkpoint
            return load(self, vllm_config, model_config, *args, **kwargs)
        if model_config is target or not editor:
            editor[:] = [Editor(spec)]
        loading.append(True)
        try:
            model = load(self, vllm_config, model_config, *args, **kwargs)
        finally:
            loading.pop()
        if model_config is target and drafts_from(vllm_config):
            return model  # complete only with the drafter's layers
        editor[0].finish()
        for line in editor[0].lines():
            logger.info("%s", line)
        return model

    def get_all_weights(self: Any, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
        stream: Iterator[tuple[str, Any]] = read(self, model_config, model)
        if loading:
            return editor[0].stream(stream)
        if editor and str(model_config.model) == spec.model:
            raise SparkloomError(
                "these weights are edited at load, and reloading them in place would take the edit back",
                file=spec.model,
                mend="restart the pair instead of reloading weights",
                code=Exit.CHECK,
            )
        return stream

    base.load_model = load_model
    default.get_all_weights = get_all_weights
    return spec


def drafts_from(vllm_config: Any) -> bool:
    """Whether a drafter of the same checkpoint (MTP) is loaded after the target, with layers to edit."""
    draft = getattr(getattr(vllm_config, "speculative_config", None), "draft_model_config", None)
    return draft is not None and str(draft.model) == str(vllm_config.model_config.model)
