"""Compile gate: builds the kernels for sm_121a and looks at what came out.

    python kernels/tools/gate.py                 # K = 4, family sum; compare with tools/accepted.json
    python kernels/tools/gate.py --all --jobs 8  # every rate and family, against tools/accepted-all.json
    python kernels/tools/gate.py --arch 90a      # another architecture: limits alone, no comparison
    python kernels/tools/gate.py --accept        # take what is there as the accepted table

Limits, for every kernel: no register spilled, no byte of local memory, at most 99 KB of shared memory for a
block. And against the accepted table: registers, shared memory and instructions per weight may not grow.
K = 4 with the family `sum` (MCG, 3INST) is what GLM-5.3-Flash runs; other rates are the same templates.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src" / "instances.cu"
ACCEPTED, ACCEPTED_ALL = HERE / "accepted.json", HERE / "accepted-all.json"
LIMIT = 99 * 1024
ARCH = "121a"
RATES, FAMILIES = (2, 3, 4, 5, 6, 8), ("sum", "bytes")
TILES = {"thin": 16, "fat": 8}  # tiles of one pass through a main loop
SLACK = 1.03  # instructions per weight may grow this much
Kernels = dict[str, dict[str, Any]]


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


def compile_object(
    folder: Path, bits: int = 4, family: str = "sum", arch: str = ARCH, source: Path = SOURCE
) -> tuple[Path, str]:
    """Build one object; returns it and ptxas' report."""
    target = folder / f"gate_{bits}_{family}.o"
    command = ["nvcc", "-std=c++17", "-O3", f"-gencode=arch=compute_{arch},code=sm_{arch}"]
    command += [
        "-DSPARKLOOM_GATE",
        f"-DSPARKLOOM_BITS={bits}",
        f"-DSPARKLOOM_FAMILY={family}",
        "-Xptxas",
        "-v",
    ]
    command += ["-c", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"gate: nvcc failed\n{done.stderr[-3000:]}")
    return target, done.stderr


def resources(report: str) -> Kernels:
    """Registers, shared memory, stack and spills of every kernel in a ptxas report.

    What a launch asks for on top of static shared memory stands in the name of an empty kernel
    `fat_shared_bytes<N>` that only the gate's build has.
    """
    kernels: Kernels = {}
    current: dict[str, Any] = {}
    dynamic = 0
    for line in report.splitlines():
        if found := re.search(r"Compiling entry function '(\S+)'", line):
            current = {"shared": 0}
            if marker := re.search(r"fat_shared_bytesILi(\d+)E", found[1]):
                dynamic = int(marker[1])
            else:
                kernels[short(found[1])] = current
        elif found := re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line
        ):
            current |= {"local": int(found[1]), "spills": int(found[2]) + int(found[3])}
        elif found := re.search(r"Used (\d+) registers", line):
            current["registers"] = int(found[1])
            if static := re.search(r"(\d+) bytes smem", line):
                current["shared"] += int(static[1])
    for name, kernel in kernels.items():
        if name.startswith("fat_"):
            kernel["shared"] += dynamic
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
    """SASS instructions per decoded weight and lane in each kernel's shortest main loop."""
    env = os.environ | {"PATH": f"{Path(tool).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([tool, "-sass", str(target)], capture_output=True, text=True, check=False, env=env)
    found: dict[str, float] = {}
    if done.returncode:  # a disassembler older than the architecture
        print(f"gate: {tool} cannot read this: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
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
        if loops and (tiles := TILES.get(name.split("_")[0])):
            found[name] = round(min(loops) / (tiles * 8), 2)
    return found


def measure(bits: int = 4, family: str = "sum", arch: str = ARCH, source: Path = SOURCE) -> Kernels:
    """Everything the table shows, per kernel."""
    with tempfile.TemporaryDirectory() as folder:
        target, report = compile_object(Path(folder), bits, family, arch, source)
        kernels = resources(report)
        if tool := disassembler():
            for name, value in instructions(target, tool).items():
                if name in kernels:
                    kernels[name]["per_weight"] = value
    return dict(sorted(kernels.items()))


def measure_all(arch: str, jobs: int) -> Kernels:
    """Every rate and family; names begin with them: `K5 bytes fat_dense`."""
    rates = [(bits, family) for bits in RATES for family in FAMILIES]
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda rate: measure(*rate, arch), rates)
        return {
            f"K{bits} {family} {name}": kernel
            for (bits, family), kernels in zip(rates, found, strict=True)
            for name, kernel in kernels.items()
        }


def table(kernels: Kernels) -> str:
    wide = max([len(name) for name in kernels] + [6])
    head = f"{'registers':>9} {'shared':>7} {'local':>6} {'spills':>7} {'SASS/weight':>12}"
    lines = [f"{'kernel':{wide}} {head}"]
    for name, k in kernels.items():
        lines.append(
            f"{name:{wide}} {k['registers']:9} {k['shared']:7} {k['local']:6} {k['spills']:7} "
            f"{k.get('per_weight', '-'):>12}"
        )
    return "\n".join(lines)


def violations(kernels: Kernels) -> list[str]:
    """What breaks a limit, one line each."""
    wrong = []
    for name, k in kernels.items():
        if k["spills"]:
            wrong.append(f"{name}: {k['spills']} bytes of registers are spilled, none may be")
        if k["local"]:
            wrong.append(f"{name}: {k['local']} bytes of local memory, none may be used")
        if k["shared"] > LIMIT:
            wrong.append(f"{name}: {k['shared']} bytes of shared memory, the limit is {LIMIT}")
    return wrong


def complaints(kernels: Kernels, accepted: Kernels) -> list[str]:
    """What the gate refuses, one line each: broken limits, and growth beyond the accepted table."""
    wrong = violations(kernels)
    for name, k in kernels.items():
        before = accepted.get(name)
        if before is None:
            wrong.append(f"{name}: not in the accepted table")
            continue
        for field in ("registers", "shared"):
            if k[field] > before[field]:
                wrong.append(f"{name}: {field} grew from {before[field]} to {k[field]}")
        old, new = before.get("per_weight"), k.get("per_weight")
        if old and new and new > old * SLACK:
            wrong.append(f"{name}: SASS instructions per weight grew from {old} to {new}")
    wrong += [f"{name}: gone" for name in accepted if name not in kernels]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every rate and codebook family")
    parser.add_argument("--arch", default=ARCH, help="architecture, 121a if not given")
    parser.add_argument("--jobs", type=int, default=2, help="builds at a time with --all")
    parser.add_argument("--source", type=Path, default=SOURCE, help="check another file, by its limits alone")
    parser.add_argument("--accept", action="store_true", help="write the accepted table")
    options = parser.parse_args()
    if shutil.which("nvcc") is None:
        print("gate: nvcc is not on the path")
        return 5
    if options.all:
        kernels = measure_all(options.arch, options.jobs)
    else:
        kernels = measure(arch=options.arch, source=options.source)
    print(table(kernels))
    accepted = ACCEPTED_ALL if options.all else ACCEPTED
    if options.arch != ARCH or options.source != SOURCE:
        wrong = violations(kernels)
    elif options.accept:
        wrong = violations(kernels)
        if not wrong:
            accepted.write_text(json.dumps(kernels, indent=1) + "\n")
    else:
        wrong = complaints(kernels, json.loads(accepted.read_text()))
    for line in wrong:
        print("gate:", line)
    print(f"gate: sm_{options.arch}, {len(kernels)} kernels: {'refused' if wrong else 'accepted'}")
    return 3 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
