"""`sparkloom.vllm.serve` whose engine and worker processes are forks, for chaos tests with real ranks.

On the CPU vLLM starts each of them in a fresh interpreter, which imports everything again: nine tenths of a
small model's start. A fork shares what its parent imported. The processes and their code are the same.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import BaseContext

from sparkloom.vllm import serve


def fork_children() -> None:
    """Make vLLM fork its processes. Call it before the modules that start them are imported."""
    import vllm.utils.system_utils as utils

    def forking() -> BaseContext:
        return multiprocessing.get_context("fork")

    utils.get_mp_context = forking


def main() -> None:
    """Run `vllm serve` with the command line's arguments."""
    serve.answer_for_vllm()
    fork_children()
    serve.main()


if __name__ == "__main__":
    main()
