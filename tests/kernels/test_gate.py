"""The compile gate: its rules on made-up numbers, on kernels that break them, and on the real build."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the path")


@pytest.fixture(scope="module")
def gate(repo: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gate", repo / "kernels/tools/gate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REPORT = """
ptxas info    : Compiling entry function '_ZN9sparkloom12thin_gate_upILi4ELNS_6FamilyE0ELi1EEEvNS_8ThinArgsE' for 'sm_121a'
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 8 bytes cumulative stack size, 33920 bytes smem
ptxas info    : Compiling entry function '_ZN9sparkloom7fat_moeILi4ELNS_6FamilyE0ELb1EEEvNS_7FatArgsE' for 'sm_121a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 120 registers, used 1 barriers, 128 bytes smem
ptxas info    : Compiling entry function '_ZN9sparkloom16fat_shared_bytesILi49152EEEvv' for 'sm_121a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 4 registers, used 0 barriers
"""  # noqa: E501
GOOD = {"k": {"registers": 100, "shared": 1000, "local": 0, "spills": 0, "per_weight": 4.0}}


def test_reads_a_ptxas_report(gate: ModuleType) -> None:
    found = gate.resources(REPORT)
    assert found["thin_gate_up<NB=1>"] == {"shared": 33920, "local": 8, "spills": 16, "registers": 128}
    assert found["fat_moe<shared>"]["shared"] == 128 + 49152
    assert len(found) == 2


@pytest.mark.parametrize(("field", "value"), [("spills", 4), ("local", 8), ("shared", 102400)])
def test_a_broken_limit_is_refused_even_when_accepted(gate: ModuleType, field: str, value: int) -> None:
    bad = {"k": GOOD["k"] | {field: value}}
    assert gate.violations(GOOD) == []
    assert len(gate.violations(bad)) == 1
    assert len(gate.complaints(bad, bad)) == 1


def test_refuses_growth(gate: ModuleType) -> None:
    assert gate.complaints(GOOD, GOOD) == []
    for field, value in (("registers", 101), ("shared", 1001), ("per_weight", 4.5)):
        assert gate.complaints({"k": GOOD["k"] | {field: value}}, GOOD), field
    assert gate.complaints({}, GOOD) == ["k: gone"]
    assert gate.complaints(GOOD, {}) == ["k: not in the accepted table"]


def test_the_accepted_tables_keep_the_limits(gate: ModuleType) -> None:
    accepted = json.loads(gate.ACCEPTED.read_text())
    assert {"thin_gate_up<NB=1>", "thin_down<NB=2>", "fat_moe<shared>", "fat_dense"} <= accepted.keys()
    assert gate.violations(accepted) == []
    every = json.loads(gate.ACCEPTED_ALL.read_text())
    assert {name.rsplit(" ", 1)[0] for name in every} == {
        f"K{k} {f}" for k in gate.RATES for f in gate.FAMILIES
    }
    assert gate.violations(every) == []
    assert {name: every[f"K4 sum {name}"]["registers"] for name in accepted} == {
        name: kernel["registers"] for name, kernel in accepted.items()
    }


SPILLING = """
namespace sparkloom {
template <int N>
__global__ void __launch_bounds__(1024, 2) fat_spiller(float* x) {
  float v[N];
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) x[i * 1024 + threadIdx.x] = v[N - 1 - i] * v[(i * 7) % N];
}
template __global__ void fat_spiller<64>(float*);
}  // namespace sparkloom
"""
LOCAL = """
namespace sparkloom {
template <int N>
__global__ void fat_indexer(int* x, int at) {
  volatile int v[N];
  for (int i = 0; i < N; ++i) v[i] = x[i];
  x[threadIdx.x] = v[(at + threadIdx.x) % N];
}
template __global__ void fat_indexer<1000>(int*, int);
}  // namespace sparkloom
"""
GREEDY = """
namespace sparkloom {
template <int Bytes>
__global__ void fat_shared_bytes() {}
template <int N>
__global__ void fat_greedy(int* x) {
  extern __shared__ int all[];
  all[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = all[N - threadIdx.x];
}
template __global__ void fat_shared_bytes<100 * 1024>();
template __global__ void fat_greedy<64>(int*);
}  // namespace sparkloom
"""


@pytest.mark.heavy
@needs_nvcc
@pytest.mark.parametrize(
    ("text", "words"),
    [(SPILLING, "are spilled"), (LOCAL, "local memory"), (GREEDY, "shared memory, the limit is 101376")],
    ids=["spills", "local", "shared"],
)
def test_a_kernel_that_breaks_a_limit_is_refused(tmp_path: Path, repo: Path, text: str, words: str) -> None:
    source = tmp_path / "control.cu"
    source.write_text(text)
    gate = [sys.executable, str(repo / "kernels/tools/gate.py"), "--source", str(source)]
    done = subprocess.run(gate, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    assert words in done.stdout
    assert done.stdout.strip().endswith("refused")


@pytest.mark.heavy
@needs_nvcc
def test_the_build_matches_the_accepted_table(gate: ModuleType) -> None:
    kernels = gate.measure()
    print(gate.table(kernels))
    assert gate.complaints(kernels, json.loads(gate.ACCEPTED.read_text())) == []
