"""Weight edits in vLLM: in the stream of loaded tensors (with torch alone), and on two real ranks."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkloom.ablit import edit, store
from sparkloom.ablit.spec import ENV, Spec, from_env
from sparkloom.errors import Exit, SparkloomError

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="no vLLM is installed")

NAMES = ["layers.0.o_proj.weight", "layers.1.o_proj.weight"]
PATTERN = "model.language_model.layers.{layer}.self_attn.o_proj.weight"


def bits(values: np.ndarray) -> np.ndarray:
    return edit.bf16(values.astype(np.float32))


def donor(folder: Path, model: str, tensors: dict[str, np.ndarray], method: str = "transplant") -> Spec:
    """Write a fetched donor (bfloat16) and return the pinned edit."""
    pieces = []
    (folder / "tensors").mkdir(parents=True)
    for name, values in tensors.items():
        data = bits(values).tobytes()
        (folder / f"tensors/{name}.bin").write_bytes(data)
        sha = hashlib.sha256(data).hexdigest()
        pieces.append(store.Piece(name, name, "BF16", values.shape, sha, "donor.safetensors", 0))
    manifest = store.Manifest("acme/donor", "d" * 40, tuple(pieces))
    (folder / "manifest.json").write_text(manifest.text())
    names = {name: name for name in tensors}
    return Spec(method, names, str(folder), manifest.sha256, 1.0, 0.001, 1.3, model)


def matrices(seed: int, names: list[str] = NAMES, size: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {n: edit.rounded(rng.standard_normal((size, size)).astype(np.float32), "BF16") for n in names}


def near(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {n: edit.rounded((w * 1.1 + 0.05).astype(np.float32), "BF16") for n, w in values.items()}


def stream(values: dict[str, np.ndarray]) -> list[tuple[str, Any]]:
    pairs = [(n, torch.from_numpy(w).to(torch.bfloat16)) for n, w in values.items()]
    return [("embed.weight", torch.ones(2, 2)), *pairs]


@pytest.mark.parametrize("world", [1, 2])
def test_transplant_in_the_stream(tmp_path: Path, world: int) -> None:
    from sparkloom.vllm.ablit import Editor

    ours = matrices(0)
    theirs = near(ours)
    editor = Editor(donor(tmp_path / "e", "/m", theirs))
    out = dict(editor.stream(iter(stream(ours))))
    editor.finish()
    assert torch.equal(out["embed.weight"], torch.ones(2, 2))
    for name, want in theirs.items():
        assert out[name].dtype == torch.bfloat16
        for rank in range(world):  # what a row-parallel layer's loader narrows
            size = want.shape[1] // world
            share = out[name].narrow(1, rank * size, size).float().numpy()
            np.testing.assert_array_equal(share, edit.cut(want, rank, world, 1))
    assert "2 tensors" in editor.lines()[0]
    assert NAMES[0] in editor.lines()[1]


def test_projection_in_the_stream(tmp_path: Path) -> None:
    from sparkloom.vllm.ablit import Editor

    ours = matrices(0)
    rng = np.random.default_rng(5)
    vectors = {n: edit.rounded(rng.standard_normal(8).astype(np.float32), "BF16") for n in ours}
    editor = Editor(donor(tmp_path / "e", "/m", vectors, "projection"))
    out = dict(editor.stream(iter(stream(ours))))
    for name, w in ours.items():
        want = edit.rounded(edit.project(w, vectors[name], 1.0), "BF16")
        np.testing.assert_array_equal(out[name].float().numpy(), want)


def test_nothing_falls_back(tmp_path: Path) -> None:
    """Each way in which an edit cannot be made ends the load with its own reason."""
    from sparkloom.vllm.ablit import Editor

    ours = matrices(0)
    spec = donor(tmp_path / "e", "/m", near(ours))

    def refused(tensors: list[tuple[str, Any]], words: str, edited: Spec = spec) -> None:
        def load() -> None:
            editor = Editor(edited)
            list(editor.stream(iter(tensors)))
            editor.finish()

        with pytest.raises(SparkloomError, match=words) as caught:
            load()
        assert caught.value.code == Exit.CHECK

    refused(stream(ours)[:-1], "1 of 2 tensors of the weight edit were never loaded")
    refused([(n.replace(".weight", ".trellis"), t) for n, t in stream(ours)], "it is EXL3")
    refused([(n, t.float()) for n, t in stream(ours)], "the donor's tensor is BF16, ours is F32")
    refused([(n, t[:4]) for n, t in stream(ours)], "the donor has the shape")
    refused(stream(near(ours)), "below ablit.least_change")
    refused(stream({n: -w for n, w in ours.items()}), "above ablit.most_change")
    path = tmp_path / "e/tensors" / f"{NAMES[1]}.bin"
    sound = path.read_bytes()
    path.write_bytes(sound[:-2])
    refused(stream(ours), "cut short")
    path.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    refused(stream(ours), "another hash")
    path.unlink()
    refused(stream(ours), "cannot read")
    manifest = tmp_path / "e/manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    refused(stream(ours), "another is pinned")
    manifest.unlink()
    refused(stream(ours), "tensors are not here")


def test_environment(tmp_path: Path) -> None:
    spec = donor(tmp_path / "e", "/m", matrices(0))
    assert from_env({ENV: spec.as_env()}) == spec
    assert from_env({}) is None
    for text in ("{", "[]", '{"method": "transplant"}', spec.as_env().replace("transplant", "magic")):
        with pytest.raises(SparkloomError, match="not a weight edit"):
            from_env({ENV: text})
    with pytest.raises(SparkloomError, match="not pinned"):
        from_env({ENV: spec.as_env().replace(f'"{spec.manifest_sha256}"', "null")})


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's loader with a load that only reads; target and MTP block each read their own tensors."""
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    def load_model(self: Any, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        return dict(self.get_all_weights(model_config, None))

    def get_all_weights(self: Any, model_config: Any, model: Any) -> Any:
        yield from stream({n: w for n, w in matrices(0).items() if n in model_config.reads})

    monkeypatch.setattr(BaseModelLoader, "load_model", load_model)
    monkeypatch.setattr(DefaultModelLoader, "get_all_weights", get_all_weights)
    return DefaultModelLoader.__new__(DefaultModelLoader)


def configs(draft: str | None, reads: list[str]) -> tuple[Any, Any, Any]:
    from types import SimpleNamespace as Box

    target = Box(model="/m", reads=reads)
    other = Box(model=draft, reads=NAMES[1:])
    whole = Box(model_config=target, speculative_config=draft and Box(draft_model_config=other))
    return whole, target, other


def test_every_tensor_must_come_by_in_target_or_drafter(tmp_path: Path, loader: Any) -> None:
    from sparkloom.vllm.ablit import install

    theirs = near(matrices(0))
    spec = donor(tmp_path / "e", "/m", theirs)
    assert install({}) is None
    assert install({ENV: spec.as_env()}) == spec

    whole, target, _ = configs(None, NAMES)
    out = loader.load_model(vllm_config=whole, model_config=target)
    for name, want in theirs.items():
        np.testing.assert_array_equal(out[name].float().numpy(), want)

    whole, target, draft = configs("/m", NAMES[:1])  # the MTP block reads the second tensor
    loader.load_model(whole, target)
    out = loader.load_model(whole, draft)
    np.testing.assert_array_equal(out[NAMES[1]].float().numpy(), theirs[NAMES[1]])

    whole, target, draft = configs("/dflash", NAMES[:1])  # a drafter with a checkpoint of its own
    with pytest.raises(SparkloomError, match="1 of 2 tensors of the weight edit were never loaded"):
        loader.load_model(whole, target)
    out = loader.load_model(whole, draft)
    np.testing.assert_array_equal(out[NAMES[1]].float().numpy(), matrices(0)[NAMES[1]])

    whole, target, draft = configs("/m", NAMES[:1])
    draft.reads = []
    loader.load_model(whole, target)
    with pytest.raises(SparkloomError, match="never loaded"):
        loader.load_model(whole, draft)
    with pytest.raises(SparkloomError, match="reloading them in place"):
        loader.get_all_weights(target, None)


INSIDE = """
import json, sys
from vllm import LLM
from vllm.model_executor.model_loader import base_loader

pack = base_loader.process_weights_after_loading

def keep_then_pack(model, *rest):  # vLLM's CPU path packs linear weights and frees them
    named = model.named_parameters()
    model.kept = {n: p.detach().float().tolist() for n, p in named if n.endswith("o_proj.weight")}
    return pack(model, *rest)

base_loader.process_weights_after_loading = keep_then_pack

def shares(worker):
    return worker.rank, worker.model_runner.model.kept

if __name__ == "__main__":
    llm = LLM(
        sys.argv[1], dtype="bfloat16", max_model_len=256, max_num_seqs=2, max_num_batched_tokens=2048,
        enforce_eager=True, enable_prefix_caching=False, kv_cache_memory_bytes=1 << 28,
        tensor_parallel_size=2,
    )
    print("SHARES " + json.dumps(llm.collective_rpc(shares)))
"""


@pytest.mark.heavy
def test_two_real_ranks_hold_their_shares_of_the_edited_tensors(tmp_path: Path) -> None:
    """The tiny GLM-5.3 on two ranks: each o_proj share is the cut of the donor's or of our tensor."""
    from sparkloom.exl3.checkpoint import load
    from sparkloom.exl3.headers import read_floats
    from sparkloom.tiny import write

    model = tmp_path / "model"
    write(model)
    ours = {
        n: read_floats(h, e) for h in load(model).headers.values() for n, e in h.tensors.items()
        if n.endswith("self_attn.o_proj.weight") and ".layers.4." not in n  # 4 is the drafter's block
    }  # fmt: skip
    assert len(ours) == 4
    edited = [PATTERN.replace("{layer}", str(i)) for i in (1, 3)]  # a linear layer and a sparse one
    theirs = near({n: ours[n] for n in edited})
    spec = donor(tmp_path / "e", str(model), theirs)
    env = os.environ | {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_PLUGINS": "exl3",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "SPARKLOOM_PROCESSES": "4", ENV: spec.as_env(),
    }  # fmt: skip
    script = tmp_path / "inside.py"
    script.write_text(INSIDE)
    done = subprocess.run(
        [sys.executable, str(script), str(model)], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("SHARES ")]
    assert (done.stdout + done.stderr).count("WEIGHTS EDITED") == 2  # both ranks say what was changed
    seen = 0
    for rank, found in json.loads(line.removeprefix("SHARES ")):
        for name, values in found.items():
            layer = name.split("layers.")[1].split(".")[0]
            full = PATTERN.replace("{layer}", layer)
            want = edit.cut((theirs if full in theirs else ours)[full], rank, 2, 1)
            np.testing.assert_array_equal(np.float32(values), want)
            seen += 1
    assert seen == 8
