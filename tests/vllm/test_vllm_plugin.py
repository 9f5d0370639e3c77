"""The plug-in inside a real vLLM process (its import takes seconds, hence heavy): loaders, self-check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparkloom import exl3
from sparkloom.errors import Exit, SparkloomError
from sparkloom.vllm import checkpoint

pytestmark = pytest.mark.heavy
pytest.importorskip("vllm")
torch = pytest.importorskip("torch")

H, WHOLE, E = 256, 256, 3


def linear(rng: np.random.Generator, k: int, n: int) -> exl3.Linear:
    trellis = rng.integers(-32768, 32768, (k // 16, n // 16, 64), dtype=np.int16)
    scales = [rng.choice([-1.0, 1.0], size) * 0.2 for size in (k, n)]
    return exl3.Linear(trellis, *(s.astype(np.float16) for s in scales), "mcg", None)


def tensors(matrix: exl3.Linear) -> dict[str, torch.Tensor]:
    found = {name: torch.from_numpy(getattr(matrix, name)) for name in ("trellis", "suh", "svh")}
    return found | {"mcg": torch.tensor(-877912083, dtype=torch.int32)}


def modules(**change: Any) -> list[checkpoint.Module]:
    shapes = {"gate_proj": (H, WHOLE), "up_proj": (H, WHOLE), "down_proj": (WHOLE, H)}
    return [
        checkpoint.Module(
            f"m.layers.0.mlp.experts.*.{name}", **{"bits": 4, "codebook": "mcg", "k": k, "n": n} | change
        )
        for name, (k, n) in shapes.items()
    ]


class Layer(torch.nn.Module):
    """As much of vLLM's RoutedExperts as the method asks for."""

    def __init__(self, **change: Any) -> None:
        super().__init__()
        from vllm.model_executor.layers.fused_moe import MoEActivation

        self.layer_name, self.activation, self.swiglu_limit = (
            "model.layers.0.mlp.experts",
            MoEActivation.SILU,
            10.0,
        )
        self.top_k, self.expert_map = 2, None
        for name, value in change.items():
            setattr(self, name, value)

    def _map_global_expert_id_to_local_expert_id(self, expert: int) -> int:
        return expert


def built(rank: int, world: int, layer: Layer | None = None, **change: Any) -> tuple[Any, Layer]:
    from sparkloom.vllm.experts import Exl3ExpertsMethod

    moe = SimpleNamespace(tp_rank=rank, tp_size=world)
    method = Exl3ExpertsMethod(moe, *modules(**change), "the checkpoint")
    layer = layer or Layer()
    method.create_weights(layer, E, H, WHOLE // world, torch.float32)
    return method, layer


def fill(layer: Layer, experts: list[list[exl3.Linear]], skip: tuple[int, str, str] | None = None) -> None:
    """Load as vLLM does; `skip` leaves one tensor out."""
    for number, matrices in enumerate(experts):
        for matrix, part, shard in zip(matrices, ("w13", "w13", "w2"), ("w1", "w3", "w2"), strict=True):
            for kind, value in tensors(matrix).items():
                if (number, shard, kind) == skip:
                    continue
                param = getattr(layer, f"{part}_{kind}")
                assert param.weight_loader(
                    param=param,
                    loaded_weight=value,
                    weight_name=f"{part}_{kind}",
                    shard_id=shard,
                    expert_id=number,
                    return_success=True,
                )


def experts() -> list[list[exl3.Linear]]:
    rng = np.random.default_rng(0)
    return [[linear(rng, H, WHOLE), linear(rng, H, WHOLE), linear(rng, WHOLE, H)] for _ in range(E)]


def test_two_ranks_sum_to_one() -> None:
    matrices = experts()
    x, weights = torch.randn(5, H), torch.rand(5, 2)
    ids = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2], [1, 0]], dtype=torch.int32)

    def run(rank: int, world: int) -> torch.Tensor:
        method, layer = built(rank, world)
        fill(layer, matrices)
        method.process_weights_after_loading(layer)
        assert not hasattr(layer, "w13_mcg")
        return method.apply(layer, x, weights, ids, None, None)

    whole = run(0, 1)
    assert float(whole.abs().max()) > 0.1
    assert torch.allclose(run(0, 2) + run(1, 2), whole, rtol=0, atol=2e-5 * float(whole.abs().max()))


def test_expand_frees_the_packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLOOM_EXL3_EXPAND", "1")
    method, layer = built(0, 1)
    fill(layer, experts())
    method.process_weights_after_loading(layer)
    method.process_weights_after_loading(layer)  # vLLM may call again
    assert layer.w13_trellis.numel() == layer.w2_trellis.numel() == 0
    out = method.apply(
        layer, torch.randn(2, H), torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.int32), None, None
    )
    assert bool(torch.isfinite(out).all())


def test_a_missing_tensor_is_named() -> None:
    method, layer = built(0, 1)
    fill(layer, experts(), skip=(1, "w2", "suh"))
    with pytest.raises(SparkloomError, match=r"1 EXL3 tensors were never loaded.*down_proj.*expert 1.*suh"):
        method.process_weights_after_loading(layer)


@pytest.mark.parametrize(
    ("part", "kind", "value", "says"),
    [
        ("w13", "mcg", torch.tensor(7, dtype=torch.int32), "unknown codebook multiplier"),
        ("w13", "trellis", torch.zeros(16, 8, 64, dtype=torch.int16), "too small for this rank"),
        ("w13", "trellis", torch.zeros(8, 16, 64, dtype=torch.int16), "belongs"),
        ("w13", "suh", torch.zeros(H, dtype=torch.float32), "belongs"),
        ("w13", "svh", torch.full((WHOLE,), float("nan"), dtype=torch.float16), "not finite"),
    ],
)
def test_a_wrong_tensor_is_named(part: str, kind: str, value: torch.Tensor, says: str) -> None:
    _, layer = built(1, 2)
    param = getattr(layer, f"{part}_{kind}")
    with pytest.raises(SparkloomError, match=says) as error:
        param.weight_loader(param, value, f"{part}_{kind}", "w1", 2)
    assert error.value.field == f"m.layers.0.mlp.experts.2.gate_proj.{kind}"


@pytest.mark.parametrize(
    ("change", "world", "says"),
    [
        ({}, 4, "cannot be split over 4 ranks in multiples of 128"),
        ({"k": 512}, 1, "512 x 256 in the checkpoint, 256 x 256 by config.json"),
    ],
)
def test_a_layer_that_does_not_fit(change: dict[str, Any], world: int, says: str) -> None:
    with pytest.raises(SparkloomError, match=says) as error:
        built(0, world, **change)
    assert error.value.field.startswith("m.layers.0.mlp.experts.*.")


def test_a_layer_of_another_kind_is_refused() -> None:
    with pytest.raises(SparkloomError, match="swiglu_alpha"):
        built(0, 1, Layer(swiglu_alpha=1.7))


def test_linear_layers_row_and_column(tmp_path: Path) -> None:
    """gate/up fused and cut by columns, down cut by rows; two ranks against the codec."""
    from vllm.model_executor.layers.linear import RowParallelLinear

    from sparkloom.vllm.linear import Exl3LinearMethod

    rng = np.random.default_rng(1)
    gate, up, down = linear(rng, H, WHOLE), linear(rng, H, WHOLE), linear(rng, WHOLE, H)
    x = torch.randn(3, H)

    def run(
        matrices: list[exl3.Linear], row: bool, rank: int, world: int, given: torch.Tensor
    ) -> torch.Tensor:
        layer = RowParallelLinear.__new__(RowParallelLinear) if row else torch.nn.Module()
        torch.nn.Module.__init__(layer)
        layer.prefix, layer.tp_rank, layer.tp_size = "mlp.x", rank, world
        parts = [checkpoint.Module(f"m{i}", 4, "mcg", m.k, m.n) for i, m in enumerate(matrices)]
        method = Exl3LinearMethod(parts, "the checkpoint")
        k, n = matrices[0].k, [m.n for m in matrices]
        method.create_weights(
            layer, k // world if row else k, n if row else [v // world for v in n], k, sum(n), torch.float32
        )
        for i, matrix in enumerate(matrices):
            for kind, value in tensors(matrix).items():
                param = getattr(layer, kind)
                param.weight_loader(param, value, *([i] if len(matrices) > 1 else []))
        method.process_weights_after_loading(layer)
        return method.apply(layer, given)

    want = x.numpy() @ np.concatenate([exl3.dense_weight(m) for m in (gate, up)], 1)
    whole = run([gate, up], False, 0, 1, x)
    assert np.abs(whole.numpy() - want).max() < 2e-5 * np.abs(want).max()
    halves = [run([gate, up], False, rank, 2, x) for rank in (0, 1)]
    glued = torch.cat([h[:, :128] for h in halves] + [h[:, 128:] for h in halves], 1)
    assert torch.allclose(glued, whole, atol=1e-4)
    inner = torch.randn(3, WHOLE)
    want = inner.numpy() @ exl3.dense_weight(down)
    total = sum(run([down], True, r, 2, inner[:, 128 * r : 128 * (r + 1)]) for r in (0, 1))
    assert np.abs(total.numpy() - want).max() < 2e-5 * np.abs(want).max()


def test_native_experts_take_the_clamping_form_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    from sparkloom.vllm.cpu import swiglu

    for name in ("process_weights_after_loading", "apply"):  # restored after the test
        monkeypatch.setattr(UnquantizedFusedMoEMethod, name, getattr(UnquantizedFusedMoEMethod, name))
    swiglu.apply()
    method = object.__new__(UnquantizedFusedMoEMethod)
    gate_up, down = torch.randn(2, 64, 32), torch.randn(2, 32, 32)
    layer = SimpleNamespace(swiglu_limit=1.0, w13_weight=gate_up, w2_weight=down, expert_map=None)
    method.process_weights_after_loading(layer)
    assert layer.w13_weight is gate_up  # not repacked
    x, weights, ids = torch.randn(3, 32), torch.rand(3, 2), torch.tensor([[0, 1]] * 3)
    got = method.apply(layer, x, weights, ids, None, None)
    assert torch.equal(got, swiglu.experts(x, weights, ids, gate_up, down, 1.0))


def config(folder: Path) -> Any:
    from sparkloom.vllm.config import Exl3Config

    found = Exl3Config.from_config(
        {"quant_method": "exl3", "bits": 4, "codebook": "mcg", "tensor_storage": {"a": 1}}
    )
    found.maybe_update_config(str(folder), SimpleNamespace(model_type="glm5_next"))
    return found


def test_config_reads_the_files(tmp_path: Path) -> None:
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    from sparkloom.tiny import write

    write(tmp_path / "tiny")
    found = config(tmp_path / "tiny")
    assert len(found.inventory.modules) == 12
    assert found.parts("model.layers.1.mlp.shared_experts.gate_up_proj") is None
    assert found.inventory.experts("model.layers.4.mlp.experts", [("gate_proj",)]) is not None
    from vllm.model_executor.layers.linear import LinearBase

    layer = LinearBase.__new__(LinearBase)
    assert isinstance(
        found.get_quant_method(layer, "model.layers.0.mlp.gate_up_proj"), UnquantizedLinearMethod
    )


def test_half_encoded_fused_layer_and_attention_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    rng = np.random.default_rng(2)

    def save(name: str) -> None:
        stored = {f"{name}.{kind}": value for kind, value in tensors(linear(rng, 128, 128)).items()}
        save_file(stored, tmp_path / "model.safetensors")

    save("model.layers.0.mlp.gate_proj")
    with pytest.raises(SparkloomError, match=r"native: model\.layers\.0\.mlp\.up_proj"):
        config(tmp_path).parts("model.layers.0.mlp.gate_up_proj")
    save("model.layers.0.self_attn.o_proj")
    with pytest.raises(
        SparkloomError, match=r"attention without quantization unless patches\.dense_quantization is on"
    ):
        config(tmp_path)


def test_with_the_option_parts_of_a_merged_layer_may_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import save_file

    from sparkloom.vllm.fp8_headers import Fp8Module

    rng = np.random.default_rng(2)
    stem = "model.layers.0.self_attn"
    stored = {f"{stem}.q_proj.{kind}": value for kind, value in tensors(linear(rng, 128, 128)).items()}
    stored[f"{stem}.v_proj.weight"] = torch.zeros(128, 128).to(torch.float8_e4m3fn)
    stored[f"{stem}.v_proj.weight_scale"] = torch.ones(128, 1)
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(SparkloomError, match="dense_quantization"):
        config(tmp_path)
    monkeypatch.setenv("SPARKLOOM_PATCHES", '{"dense_quantization": true}')
    q, k, v, *_ = parts = config(tmp_path).parts(f"{stem}.in_proj_qkvbfg_a")
    assert len(parts) == 6
    assert (q.name, k, type(v)) == (f"{stem}.q_proj", f"{stem}.k_proj", Fp8Module)
    stored["model.layers.4.eh_proj.weight"] = torch.zeros(128, 128).to(torch.float8_e4m3fn)
    stored["model.layers.4.eh_proj.weight_scale"] = torch.ones(128, 1)
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(SparkloomError, match=r"eh_proj is FP8, but vLLM builds this layer without"):
        config(tmp_path)


@pytest.mark.parametrize("scales", ["channel", "block"])
@pytest.mark.parametrize("row", [False, True])
def test_fp8_and_native_parts_over_two_ranks(scales: str, row: bool) -> None:
    """A merged layer of EXL3, native and FP8 parts, and a row-parallel FP8 one, against dense weights."""
    from vllm.model_executor.layers.linear import RowParallelLinear

    from sparkloom.exl3 import fp8
    from sparkloom.vllm.fp8_headers import Fp8Module
    from sparkloom.vllm.linear import Exl3LinearMethod

    rng = np.random.default_rng(5)
    coded, eight = linear(rng, H, 256), fp8.encode(rng.standard_normal((256, H)).astype(np.float32), scales)
    plain = torch.randn(32, H)
    name = fp8.SUFFIX[scales]
    known: list[Any] = [Fp8Module("e", H, 256, scales)]
    if not row:
        known = [checkpoint.Module("q", 4, "mcg", H, 256), "b", known[0]]
    whole_n = [256] if row else [256, 32, 256]
    x = torch.randn(3, H)

    def run(rank: int, world: int) -> torch.Tensor:
        layer: Any = RowParallelLinear.__new__(RowParallelLinear) if row else torch.nn.Module()
        torch.nn.Module.__init__(layer)
        layer.prefix, layer.tp_rank, layer.tp_size = "a.in_proj_qkvbfg_a", rank, world
        method = Exl3LinearMethod(known, "the checkpoint")
        k = H // world if row else H
        n = whole_n if row else [v // world for v in whole_n]
        method.create_weights(layer, k, n, H, sum(whole_n), torch.float32)
        at = 0 if row else 2
        codes = torch.from_numpy(eight.codes).view(torch.float8_e4m3fn)
        layer.weight.weight_loader(layer.weight, codes, *([] if row else [at]))
        param = getattr(layer, name)
        param.weight_loader(param, torch.from_numpy(eight.scale), *([] if row else [at]))
        if not row:
            layer.weight.weight_loader(layer.weight, plain, 1)
            for kind, value in tensors(coded).items():
                one = getattr(layer, kind)
                one.weight_loader(one, value, 0)
        method.process_weights_after_loading(layer)
        found: torch.Tensor = method.apply(layer, x[:, k * rank : k * (rank + 1)] if row else x)
        return found

    dense = [fp8.decode(eight)]
    if not row:
        dense = [exl3.dense_weight(coded).T, plain.numpy(), dense[0]]
    want = x.numpy() @ np.concatenate(dense).T
    whole, halves = run(0, 1), [run(rank, 2) for rank in (0, 1)]
    if row:
        glued = halves[0] + halves[1]
    else:
        cut = [half.split([128, 16, 128], -1) for half in halves]
        glued = torch.cat([part for i in range(3) for part in (cut[0][i], cut[1][i])], -1)
    for got in (whole, glued):
        assert np.abs(got.numpy() - want).max() < 3e-5 * np.abs(want).max()


def test_without_files_the_configuration_decides(tmp_path: Path) -> None:
    found = config(tmp_path)
    assert found.inventory.everywhere == (4, "mcg")
    found = config(Path("no-such-owner/no-such-model"))
    assert found.inventory.everywhere == (4, "mcg")


def run_check(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sparkloom", "plugin", "check", *args],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | env,
    )


def test_plugin_check_in_a_fresh_process() -> None:
    done = run_check("--format", "json", VLLM_PLUGINS="exl3")
    assert done.returncode == Exit.OK, done.stderr
    found = json.loads(done.stdout)
    assert found["ok"]
    assert found["verdict"] == "ok"
    assert found["entry_point"] == "sparkloom.vllm:register"
    assert found["backends"]["reference"] is None


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"VLLM_PLUGINS": "other"}, "leaves exl3 out"),
        ({"SPARKLOOM_SPIN_NAP": "often"}, "not a length for the reader's nap"),
    ],
)
def test_plugin_check_says_no(env: dict[str, str], says: str) -> None:
    done = run_check("--format", "json", **env)
    assert done.returncode == Exit.CHECK
    found = json.loads(done.stdout)
    assert found["verdict"] == "fail"
    assert says in found["problem"]
    assert found["findings"][-1]["mend"]
