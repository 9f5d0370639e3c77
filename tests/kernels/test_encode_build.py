"""The encoder's search compiled for sm_121a: no spills, at most 99 KB of shared memory, at every rate."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

LIMIT = 99 * 1024
SHARED = """
#include <cstdio>
#include "encode.cuh"
int main() {
#define SHOW(A, B) std::printf("%d %d %d\\n", A, B, sparkloom::Search<A, B>::kShared);
  SHOW(2, 2) SHOW(2, 3) SHOW(3, 3) SHOW(3, 4) SHOW(4, 4) SHOW(5, 5) SHOW(6, 6) SHOW(7, 7) SHOW(8, 8)
}
"""


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the path")
def test_no_spills_and_little_shared_memory(repo: Path, tmp_path: Path) -> None:
    sources = repo / "kernels/src"
    command = ["nvcc", "-std=c++17", "-O3", "-gencode=arch=compute_121a,code=sm_121a", "-Xptxas", "-v"]
    command += ["-c", str(sources / "encode.cu"), "-o", str(tmp_path / "encode.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    spills = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr
    )
    assert spills == [("0", "0", "0")] * 9
    static = max(int(n) for n in re.findall(r"(\d+) bytes smem", done.stderr))
    (tmp_path / "shared.cu").write_text(SHARED)
    command = [
        "nvcc",
        "-std=c++17",
        "-I",
        str(sources),
        str(tmp_path / "shared.cu"),
        "-o",
        str(tmp_path / "shared"),
    ]
    subprocess.run(command, check=True)
    shown = subprocess.run([str(tmp_path / "shared")], capture_output=True, text=True, check=True).stdout
    rates = [line.split() for line in shown.splitlines()]
    assert len(rates) == 9
    assert all(int(shared) + static <= LIMIT for _, _, shared in rates), shown
