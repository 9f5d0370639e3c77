"""Compile gate: builds a representative part of the kernels for sm_121a and looks at what came out.

    python kernels/tools/gate.py                  # compare with kernels/tools/accepted.json
    python kernels/tools/gate.py --accept         # take what is there as the accepted table

Built: all kernels of K = 4, codebook family `sum` (MCG, 3INST), which is what GLM-5.3-Flash runs, in every
variant; the other rates are the same templates. It fails on more than 99 KB of shared memory for a block, and
on any kernel whose registers, shared memory, local memory, spills or instructions grew beyond the table.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "src"
ACCEPTED = HERE / "accepted.json"
LIMIT = 99 * 1024
BITS, FAMILY, ARCH = 4, "sum", "121a"
STAGES, FAT_ROWS, STAGE_K = 3, 64, 64  # tile.cuh, args.h
TILES = {"thin": 16, "fat": 8}  # tiles of one pass through a main loop
SPILLS = r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
SLACK = 1.03  # instructions per weight may grow this much


def dynamic_shared(kernel: str) -> int:
    """Bytes that the launch asks for on top of what the compiler reports."""
    if not kernel.startswith("fat_"):
        return 0
    stage = FAT_ROWS * STAGE_K * 2 + STAGE_K // 16 * 2 * 256 * BITS
    return max(STAGES * stage, 2 * 32 * 132 * 4)


def short(mangled: str) -> str:
    """thin_gate_up<NB=1>, fat_moe<shared>, ..."""
    found = re.search(r"sparkloom\d+([a-z_]+?)I(.*?)EEv", mangled)
    if not found:
        return mangled
    name, rest = found[1], found[2].rstrip("E")
    if name == "fat_moe":
        return "fat_moe<shared>" if rest.endswith("Lb1") else "fat_moe<separate>"
    blocks = re.search(r"Li(\d+)$", rest)
    return f"{name}<NB={blocks[1]}>" if name in ("thin_gate_up", "thin_down") and blocks else name


def compile_object(folder: Path) -> tuple[Path, str]:
    """Build the object; returns it and ptxas' report."""
    target = folder / "gate.o"
    command = ["nvcc", "-std=c++17", "-O3", f"-gencode=arch=compute_{ARCH},code=sm_{ARCH}"]
    command += [f"-DSPARKLOOM_BITS={BITS}", f"-DSPARKLOOM_FAMILY={FAMILY}", "-Xptxas", "-v"]
    command += ["-c", str(SOURCES / "instances.cu"), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"gate: nvcc failed\n{done.stderr[-3000:]}")
    return target, done.stderr


def resources(report: str) -> dict[str, dict[str, Any]]:
    """Registers, shared memory, stack and spills of every kernel in a ptxas report."""
    kernels: dict[str, dict[str, Any]] = {}
    current: dict[str, Any] = {}
    for line in report.splitlines():
        if found := re.search(r"Compiling entry function '(\S+)'", line):
            name = short(found[1])
            current = kernels.setdefault(name, {"shared": dynamic_shared(name)})
        elif found := re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line
        ):
            current |= {"local": int(found[1]), "spills": int(found[2]) + int(found[3])}
        elif found := re.search(r"Used (\d+) registers", line):
            current["registers"] = int(found[1])
            if static := re.search(r"(\d+) bytes smem", line):
                current["shared"] += int(static[1])
    return kernels


def disassembler() -> str | None:
    """cuobjdump of the toolkit, or the one that the triton package carries."""
    if found := shutil.which("cuobjdump"):
        return found
    for folder in map(Path, sys.path):
        tool = folder / "triton/backends/nvidia/bin/cuobjdump"
        if tool.is_file() and os.access(tool, os.X_OK):
            return str(tool)
    return None


def instructions(target: Path, tool: str) -> dict[str, float]:
    """SASS instructions per decoded weight and lane in each kernel's first main loop."""
    env = os.environ | {"PATH": f"{Path(tool).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([tool, "-sass", str(target)], capture_output=True, text=True, check=False, env=env)
    found: dict[str, float] = {}
    if done.returncode:  # a disassembler older than the architecture
        print(f"gate: {tool} cannot read sm_{ARCH}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return found
    text = done.stdout
    for part in text.split("Function : ")[1:]:
        name = short(part.split("\n", 1)[0])
        code = [(int(a, 16), t) for a, t in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", part)]
        index = {address: i for i, (address, _) in enumerate(code)}
        loops = []
        for i, (address, instruction) in enumerate(code):
            target_of = re.search(r"BRA.* 0x([0-9a-f]+)", instruction)
            if target_of and int(target_of[1], 16) <= address:
                body = [t for _, t in code[index[int(target_of[1], 16)] : i + 1]]
                if any("HMMA" in t for t in body):
                    loops.append(len(body))
        if loops:
            found[name] = round(min(loops) / (TILES[name.split("_")[0]] * 8), 2)
    return found


def measure() -> dict[str, dict[str, Any]]:
    """Everything the table shows, per kernel."""
    with tempfile.TemporaryDirectory() as folder:
        target, report = compile_object(Path(folder))
        kernels = resources(report)
        if tool := disassembler():
            for name, value in instructions(target, tool).items():
                kernels[name]["per_weight"] = value
    return dict(sorted(kernels.items()))


def table(kernels: dict[str, dict[str, Any]]) -> str:
    lines = [f"{'kernel':24} {'registers':>9} {'shared':>7} {'local':>6} {'spills':>7} {'SASS/weight':>12}"]
    for name, k in kernels.items():
        lines.append(
            f"{name:24} {k['registers']:9} {k['shared']:7} {k['local']:6} {k['spills']:7} "
            f"{k.get('per_weight', '-'):>12}"
        )
    return "\n".join(lines)


def complaints(kernels: dict[str, dict[str, Any]], accepted: dict[str, dict[str, Any]]) -> list[str]:
    """What the gate refuses, one line each."""
    wrong = []
    for name, k in kernels.items():
        if k["shared"] > LIMIT:
            wrong.append(f"{name}: {k['shared']} bytes of shared memory, the limit is {LIMIT}")
        before = accepted.get(name)
        if before is None:
            wrong.append(f"{name}: not in the accepted table")
            continue
        for field in ("registers", "shared", "local", "spills"):
            if k[field] > before[field]:
                wrong.append(f"{name}: {field} grew from {before[field]} to {k[field]}")
        old, new = before.get("per_weight"), k.get("per_weight")
        if old and new and new > old * SLACK:
            wrong.append(f"{name}: SASS instructions per weight grew from {old} to {new}")
    wrong += [f"{name}: gone" for name in accepted if name not in kernels]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accept", action="store_true", help="write the accepted table")
    options = parser.parse_args()
    if shutil.which("nvcc") is None:
        print("gate: nvcc is not on the path")
        return 5
    kernels = measure()
    print(table(kernels))
    if options.accept:
        ACCEPTED.write_text(json.dumps(kernels, indent=1) + "\n")
        return 0
    wrong = complaints(kernels, json.loads(ACCEPTED.read_text()))
    for line in wrong:
        print("gate:", line)
    return 3 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
