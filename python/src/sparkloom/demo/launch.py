"""The command lines and environments of the two ranks. Pure: nothing is started here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkloom.ranks import Node

TIMEOUT_S = 120  # of both process groups; vLLM's default for a lost peer is half an hour
KV_BYTES = 256 << 20
PROCESSES = 4  # busy ones on this machine: API server, engine core, two workers


@dataclass(frozen=True)
class Spec:
    """What both ranks serve.

    Args:
        model: checkpoint folder.
        served: model id of the API.
        max_len: context in tokens.
        seqs: sequences at the same time.
        speculative: drafts as vLLM's `--speculative-config`, or None.
        extra: further arguments of both ranks.
    """

    model: Path
    served: str
    max_len: int = 2048
    seqs: int = 4
    speculative: dict[str, object] | None = None
    extra: tuple[str, ...] = ()


def argv(spec: Spec, rank: int, master: str, master_port: int, api_port: int, nodes: int = 2) -> list[str]:
    """The command of one rank.

    Args:
        rank: 0 is the head with the API, 1 the headless worker.
        master: address of the head's node.
        master_port: of the process group's store, on that address.
        api_port: of the API, on the head's loopback only: vLLM guards some of its paths with no key.
        nodes: 1 for a single rank without tensor parallelism (the parity test's reference).
    """
    line = [sys.executable, "-m", "sparkloom.vllm.serve", str(spec.model)]
    line += ["--served-model-name", spec.served, "--dtype", "float32", "--enforce-eager"]
    line += ["--max-model-len", str(spec.max_len), "--max-num-seqs", str(spec.seqs)]
    line += [
        "--max-num-batched-tokens",
        str(max(2048, spec.max_len)),
        "--kv-cache-memory-bytes",
        str(KV_BYTES),
    ]
    if nodes > 1:
        line += ["-tp", str(nodes), "--nnodes", str(nodes), "--node-rank", str(rank)]
        line += ["--distributed-executor-backend", "mp"]
        line += ["--master-addr", master, "--master-port", str(master_port)]
        line += ["--distributed-timeout-seconds", str(TIMEOUT_S)]
        line += ["--cpu-distributed-timeout-seconds", str(TIMEOUT_S)]
    if spec.speculative:
        line += ["--speculative-config", json.dumps(spec.speculative)]
    line += spec.extra
    line += ["--headless"] if rank else ["--host", "127.0.0.1", "--port", str(api_port)]
    return line


def env(rank: int, cores: int, api_key: str = "", nodes: int = 2) -> dict[str, str]:
    """Additions to the environment of one rank; the key goes to the head, and by this way only.

    Args:
        cores: that both ranks share.
    """
    threads = str(max(1, min(8, cores // nodes)))  # a small model gains nothing from more
    return {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # vLLM would want a NUMA node for each rank
        "OMP_NUM_THREADS": threads,
        "NUMBA_NUM_THREADS": threads,
        "SPARKLOOM_PROCESSES": str(PROCESSES if nodes > 1 else PROCESSES - 1),
        "VLLM_PLUGINS": "exl3",
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",
        "VLLM_API_KEY": "" if rank else api_key,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


def ranks(
    spec: Spec, places: Sequence[Node], master_port: int, api_port: int, cores: int, api_key: str = ""
) -> list[tuple[list[str], dict[str, str]]]:
    """Command and environment of head and worker."""
    return [
        (argv(spec, rank, places[0].address, master_port, api_port), env(rank, cores, api_key))
        for rank in range(len(places))
    ]


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
