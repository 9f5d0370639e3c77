"""Decode and prefill of one MoE layer, side by side: own kernels, ExLlamaV3's, dequantise + cuBLAS.

    python kernels/bench/bench.py --exllamav3 exllamav3-1.6.5-py3-none-any.whl --out kernels/receipts

One process, the same weights and routing for every arm, order ours / others / ours, CUDA graphs, weights of
several layers in turn so that nothing stays in L2. Writes NAME.json, NAME.md and NAME.png.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sparkloom.kernels import find_library, ops

HERE = Path(__file__).resolve().parent
HIDDEN, INTER, EXPERTS, TOP_K, LIMIT = 4096, 1024, 288, 8, 10.0
EXPERT_BYTES = 3 * HIDDEN * INTER // 2 + 2 * (3 * HIDDEN + 3 * INTER)
# GB10 against the machine measured: SMs x clock for code bound by instructions, DRAM bytes for the rest.
GB10_SMS, GB10_GHZ, GB10_GBS = 48, 2.42, 231.0
Call = Callable[[int], None]


class Layer:
    """Random bits are valid EXL3 weights; scales keep outputs near unit size."""

    def __init__(self) -> None:
        def trellis(*lead: int, k: int, n: int) -> torch.Tensor:
            return torch.randint(
                -32768, 32768, (*lead, k // 16, n // 16, 64), dtype=torch.int16, device="cuda"
            )

        def scale(*shape: int, size: float = 1.0) -> torch.Tensor:
            sign = torch.randint(0, 2, shape, device="cuda") * 2 - 1
            return (sign * (0.5 + torch.rand(shape, device="cuda")) * size).half()

        suh13 = scale(EXPERTS, 2, HIDDEN, size=1 / (1.24 * HIDDEN**0.5))
        suh13[:, 1] = suh13[:, 0]
        self.experts = ops.Experts(
            trellis(EXPERTS, 2, k=HIDDEN, n=INTER),
            suh13,
            scale(EXPERTS, 2, INTER),
            trellis(EXPERTS, k=INTER, n=HIDDEN),
            scale(EXPERTS, INTER, size=1 / (1.24 * INTER**0.5)),
            scale(EXPERTS, HIDDEN),
            limit=LIMIT,
        )
        w = self.experts
        table = []
        for tensor, which in (
            (w.w13_trellis, 0), (w.w13_suh, 0), (w.w13_svh, 0),
            (w.w13_trellis, 1), (w.w13_suh, 1), (w.w13_svh, 1),
            (w.w2_trellis, None), (w.w2_suh, None), (w.w2_svh, None),
        ):  # fmt: skip
            rows = tensor if which is None else tensor[:, which]
            table.append([rows[e].data_ptr() for e in range(EXPERTS)])
        self.table = torch.tensor(table, dtype=torch.int64, device="cuda")


def routing(tokens: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids int32 and weights float32 [tokens, 8]: uniform, Zipf 1.0, or pools of 24 shared by 8 tokens."""
    g = torch.Generator().manual_seed(77 + tokens)
    if kind == "zipf":
        p = 1.0 / torch.arange(1, EXPERTS + 1, dtype=torch.float64)
        ids = torch.multinomial(p.expand(tokens, -1), TOP_K, generator=g)
    elif kind == "pool24":
        rows = []
        for t in range(tokens):
            if t % 8 == 0:
                pool = torch.randperm(EXPERTS, generator=g)[:24]
            rows.append(pool[torch.randperm(24, generator=g)[:TOP_K]])
        ids = torch.stack(rows)
    else:
        ids = torch.stack([torch.randperm(EXPERTS, generator=g)[:TOP_K] for _ in range(tokens)])
    weights = torch.rand(tokens, TOP_K, generator=g) * 0.2 + 0.05
    return ids.int().cuda(), weights.cuda()


def cuda_has(header: str) -> bool:
    """Whether the toolkit of the nvcc on the path has a header."""
    nvcc = shutil.which("nvcc")
    return nvcc is not None and any(
        (Path(nvcc).resolve().parent.parent / folder / header).exists()
        for folder in ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include")
    )


class ExLlama:
    """The exllamav3 wheel's kernels, compiled here against its headers."""

    def __init__(self, wheel: Path, arch: str) -> None:
        self.version = wheel.name.split("-")[1]
        self.folder = tempfile.TemporaryDirectory()
        root = Path(self.folder.name)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(root)
        library = root / "arm.so"
        defines = [f"-D__CUDA_NO_{x}__" for x in (
            "HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS", "HALF2_OPERATORS")]  # fmt: skip
        # the headers name cuBLAS types only: a stand-in will do where the toolkit is without cuBLAS
        cublas = [] if cuda_has("cublas_v2.h") else ["-I", str(HERE / "stubs_cublas")]
        subprocess.run(
            ["nvcc", "-std=c++17", "-O3", "--expt-relaxed-constexpr", "--use_fast_math", *defines,
             f"-gencode=arch=compute_{arch},code=sm_{arch}", "-I", str(HERE / "stubs"),
             "-I", str(root / "exllamav3/exllamav3_ext"), *cublas,
             "-shared", "-Xcompiler", "-fPIC", str(HERE / "exllamav3_arm.cu"), "-o", str(library)],
            check=True,
        )  # fmt: skip
        self.lib = ctypes.CDLL(str(library))
        self.check(self.lib.arm_setup(HIDDEN, INTER, EXPERTS))

    @staticmethod
    def check(code: int) -> None:
        if code:
            raise RuntimeError(f"ExLlamaV3 arm: CUDA error {code}")

    def arms(
        self, layers: list[Layer], x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> dict[str, Call]:
        """exl3_moe always; the cooperative kernel up to 32 rows."""
        half, flat = x.half(), ids.flatten().long()
        order = torch.argsort(flat, stable=True)
        count = torch.bincount(flat, minlength=EXPERTS + 1)
        token, sorted_weights = (order // TOP_K).contiguous(), weights.flatten()[order].half().contiguous()
        out = torch.zeros(x.shape, device="cuda")
        sel, sel_weights = ids.long().contiguous(), weights.half().contiguous()
        pointer = lambda t: ctypes.c_void_p(t.data_ptr())  # noqa: E731
        limit = ctypes.c_float(LIMIT)

        def stream() -> ctypes.c_void_p:
            return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

        def moe(i: int) -> None:
            t = layers[i % len(layers)].table
            rows = (pointer(half), pointer(out), pointer(count), pointer(token), pointer(sorted_weights))
            self.check(self.lib.arm_moe(pointer(t), *rows, limit, stream()))

        def coop(i: int) -> None:
            t = layers[i % len(layers)].table
            rows = (pointer(half), pointer(out), pointer(sel), pointer(sel_weights))
            self.check(self.lib.arm_coop(pointer(t), *rows, len(x), TOP_K, limit, stream()))

        self.out = out
        return {"exl3_moe": moe} | ({"coop": coop} if len(x) <= 32 else {})


def dequantise(layers: list[Layer], x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Call:
    """What one would do without such kernels: weights to bfloat16, grouped matrix products by the library."""
    flat = ids.flatten().long()
    order = torch.argsort(flat, stable=True)
    token, expert = order // TOP_K, flat[order]
    ends = torch.bincount(flat, minlength=EXPERTS).cumsum(0).int()
    scale = weights.flatten()[order][:, None]

    def call(i: int) -> None:
        w = layers[i % len(layers)].experts
        xh = ops.hadamard(x[token].half() * w.w13_suh[:, 0][expert]).bfloat16()
        w13 = ops.reconstruct(w.w13_trellis, dtype=torch.bfloat16)
        gate, up = (
            ops.hadamard(torch._grouped_mm(xh, w13[:, j], offs=ends)) * w.w13_svh[:, j][expert]
            for j in range(2)
        )
        del w13
        act = torch.nn.functional.silu(gate.clamp(max=LIMIT)) * up.clamp(-LIMIT, LIMIT)
        ah = ops.hadamard(act.half() * w.w2_suh[expert]).bfloat16()
        y = ops.hadamard(
            torch._grouped_mm(ah, ops.reconstruct(w.w2_trellis, dtype=torch.bfloat16), offs=ends)
        )
        out = torch.zeros(x.shape, device=x.device)
        out.index_add_(0, token, y * (w.w2_svh[expert] * scale))

    return call


def measure(call: Call, repeats: int, inner: int, graph: bool = True) -> list[float]:
    """Milliseconds per call, one value per repeat."""
    for i in range(3):
        call(i)
    torch.cuda.synchronize()
    run: Callable[[], None]
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for i in range(inner):
                call(i)
        run = captured.replay
    else:

        def run() -> None:
            for i in range(inner):
                call(i)

    run()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / inner)
    return times


def summary(times: list[float]) -> dict[str, float]:
    return {"ms": statistics.median(times), "min": min(times), "max": max(times), "n": len(times)}


def smi() -> dict[str, str]:
    fields = "name,driver_version,clocks.sm,clocks.mem,power.draw"
    text = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", "0"],
                          capture_output=True, text=True, check=False).stdout.strip()  # fmt: skip
    return dict(zip(fields.split(","), [v.strip() for v in text.split(",")], strict=False))


def read_rate() -> float:
    """GB/s of a plain sum over 2 GiB, as the roofline's slope."""
    big = torch.empty(1 << 29, dtype=torch.float32, device="cuda").fill_(1.0)
    return big.numel() * 4 / min(measure(lambda _: big.sum(), 5, 4)) / 1e6


def matmul_rate() -> float:
    """TFLOPS of an 8192-cubed bfloat16 product, as the roofline's roof."""
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    return 2 * 8192**3 / statistics.median(measure(lambda _: a @ b, 5, 4)) / 1e9


def case(name: str, tokens: int, kind: str, layers: list[Layer], other: ExLlama | None, space: torch.Tensor,
         repeats: int, factor: float) -> dict[str, Any]:  # fmt: skip
    ids, weights = routing(tokens, kind)
    x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
    out = torch.empty_like(x)
    decode = tokens <= ops.DECODE_ROWS
    inner = 12 if decode else 3

    def ours(i: int) -> None:
        ops.moe(x, layers[i % len(layers)].experts, weights, ids, workspace=space, out=out)

    arms: dict[str, Call] = {"ours": ours}
    if other:
        arms |= other.arms(layers, x, ids, weights)
    if not decode or tokens in (8, 64):
        arms["dequantise"] = dequantise(layers, x, ids, weights)
    result: dict[str, Any] = {
        "case": name,
        "tokens": tokens,
        "routing": kind,
        "unique": int(ids.unique().numel()),
    }
    first = measure(ours, repeats, inner)
    for arm, call in arms.items():
        if arm != "ours":
            heavy = arm == "dequantise"
            result[arm] = summary(
                measure(call, 3 if heavy else repeats, 2 if heavy else inner, graph=not heavy)
            )
    second = measure(ours, repeats, inner)
    result["ours"] = summary(first + second) | {
        "first": statistics.median(first),
        "second": statistics.median(second),
    }
    if other:
        ours(0)
        other.out.zero_()
        arms["exl3_moe"](0)
        d = (out.float() - other.out).square().mean().sqrt() / other.out.square().mean().sqrt()
        result["difference_to_exl3_moe"] = float(d)  # includes the rounding of the bfloat16 result
    result["weight_bytes"] = result["unique"] * EXPERT_BYTES
    result["flop"] = tokens * TOP_K * 3 * 2 * HIDDEN * INTER
    ms = result["ours"]["ms"]
    result["gbs"], result["tflops"] = result["weight_bytes"] / ms / 1e6, result["flop"] / ms / 1e9
    moved = result["weight_bytes"] + tokens * HIDDEN * 4 + (0 if decode else tokens * TOP_K * HIDDEN * 4)
    result["gb10_estimate_ms"] = max(ms * factor, moved / GB10_GBS / 1e6)
    rivals = {a: result[a]["ms"] / ms for a in ("exl3_moe", "coop", "dequantise") if a in result}
    result["ratio"] = rivals
    return result


def table(receipt: dict[str, Any]) -> str:
    lines = [
        "| case | rows | unique | ours ms | GB/s | TFLOPS | exl3_moe ms | coop ms | dequantise ms | "
        "ratios | GB10 estimate ms |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for c in receipt["cases"]:
        cell = lambda a, c=c: f"{c[a]['ms']:.3f}" if a in c else "-"  # noqa: E731
        ratios = ", ".join(f"{a} {r:.2f}x" for a, r in c["ratio"].items())
        lines.append(
            f"| {c['case']} | {c['tokens']} | {c['unique']} | {cell('ours')} | {c['gbs']:.0f} | "
            f"{c['tflops']:.1f} | {cell('exl3_moe')} | {cell('coop')} | {cell('dequantise')} | {ratios} | "
            f"{c['gb10_estimate_ms']:.2f} |"
        )
    return "\n".join(lines)


def plot(receipt: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5))
    for kind, style in (("uniform", "-"), ("pool24", "--")):
        rows = [c for c in receipt["cases"] if c["routing"] == kind and c["tokens"] <= 64]
        for arm, colour in (("ours", "C0"), ("coop", "C1"), ("exl3_moe", "C2")):
            points = [(c["tokens"], c[arm]["ms"]) for c in rows if arm in c]
            if points:
                left.plot(*zip(*points, strict=True), style, color=colour, marker="o", label=f"{arm}, {kind}")
        floor = [(c["tokens"], c["weight_bytes"] / receipt["read_gbs"] / 1e6) for c in rows]
        if floor:
            left.plot(*zip(*floor, strict=True), style, color="grey", label=f"weights at read rate, {kind}")
    left.set(xscale="log", yscale="log", xlabel="rows", ylabel="ms per layer", title="decode")
    left.legend(fontsize=7)
    low, high = 0.5, 2000.0
    roof = [min(receipt["bf16_tflops"], x * receipt["read_gbs"] / 1e3) for x in (low, high)]
    knee = receipt["bf16_tflops"] / receipt["read_gbs"] * 1e3
    right.plot([low, knee, high], [roof[0], receipt["bf16_tflops"], roof[1]], color="grey", label="roofline")
    for arm, colour in (("ours", "C0"), ("coop", "C1"), ("exl3_moe", "C2"), ("dequantise", "C3")):
        points = [
            (c["flop"] / c["weight_bytes"], c["flop"] / c[arm]["ms"] / 1e9)
            for c in receipt["cases"]
            if arm in c
        ]
        if points:
            right.scatter(*zip(*points, strict=True), color=colour, s=14, label=arm)
    right.set(
        xscale="log", yscale="log", xlabel="FLOP per packed weight byte", ylabel="TFLOPS", title="roofline"
    )
    right.legend(fontsize=7)
    figure.suptitle(f"EXL3 MoE layer, {receipt['gpu']['name']}, {receipt['date']}")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exllamav3", type=Path, help="exllamav3 wheel to measure against")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="few cases")
    options = parser.parse_args()
    torch.manual_seed(1)
    major, minor = torch.cuda.get_device_capability()
    properties = torch.cuda.get_device_properties(0)
    other = ExLlama(options.exllamav3, f"{major}{minor}a") if options.exllamav3 else None
    layers = [Layer() for _ in range(options.layers)]
    space = torch.empty(layers[0].experts.workspace_bytes(7168, TOP_K), dtype=torch.uint8, device="cuda")
    before = smi()
    receipt: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "gpu": before,
        "sms": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "library_sha256": hashlib.sha256((find_library() or Path()).read_bytes()).hexdigest(),
        "exllamav3": other.version if other else None,
        "shape": {
            "hidden": HIDDEN,
            "intermediate": INTER,
            "experts": EXPERTS,
            "top_k": TOP_K,
            "bits": 4,
            "codebook": "mcg",
        },
        "layers_in_turn": options.layers,
        "prefill_scratch_mib_beside_rows": (space.numel() - 7168 * TOP_K * HIDDEN * 2) / 2**20,
        "read_gbs": read_rate(),
        "bf16_tflops": matmul_rate(),
    }
    clock = float(smi().get("clocks.sm", "1755 MHz").split()[0]) / 1000
    factor = properties.multi_processor_count * clock / (GB10_SMS * GB10_GHZ)
    receipt["sm_ghz_under_load"] = clock
    receipt["gb10_estimate"] = (
        f"estimate, not measured: max(ms x {factor:.2f} = SMs x GHz here / ({GB10_SMS} x {GB10_GHZ}), "
        f"bytes / {GB10_GBS:.0f} GB/s)"
    )
    cases = [
        (t, k) for k in ("uniform", "pool24") for t in ((8,) if options.quick else (1, 2, 4, 8, 16, 32, 64))
    ]
    cases += [(t, k) for k in ("uniform", "zipf") for t in ((7168,) if options.quick else (512, 2048, 7168))]
    receipt["cases"] = []
    for tokens, kind in cases:
        name = f"{'decode' if tokens <= 64 else 'prefill'} {kind}"
        found = case(name, tokens, kind, layers, other, space, options.repeats, factor)
        receipt["cases"].append(found)
        ratios = {arm: round(ratio, 2) for arm, ratio in found["ratio"].items()}
        difference = found.get("difference_to_exl3_moe", 0.0)
        print(
            name,
            tokens,
            f"ours {found['ours']['ms']:.4f} ms",
            ratios,
            f"difference {difference:.4f}",
            flush=True,
        )
    receipt["gpu_after"] = smi()
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / f"bench-{before.get('name', 'gpu').lower().replace(' ', '-')}-{receipt['date']}"
    stem.with_suffix(".json").write_text(json.dumps(receipt, indent=1) + "\n")
    stem.with_suffix(".md").write_text(table(receipt) + "\n")
    if importlib.util.find_spec("matplotlib"):
        plot(receipt, stem.with_suffix(".png"))
    else:
        print("no plot: matplotlib is not installed", file=sys.stderr)
    print(table(receipt))
    return 0


if __name__ == "__main__":
    sys.exit(main())
