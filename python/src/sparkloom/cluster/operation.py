"""How it is run: API, agent, deadlines, restarts, liveness, probe, memory policy, engine."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from sparkloom.cluster.base import GIB, MIB, AbsolutePath, Bytes, EnvName, Ipv4, Port, Seconds, Section


class Exposure(StrEnum):
    """Who may reach the API. The explicit word for anything beyond this machine."""

    loopback = "loopback"
    network = "network"


class Api(Section):
    """The OpenAI-compatible API on the head."""

    host: Ipv4 = "127.0.0.1"
    """Address that the API binds. Anything but loopback needs `exposure: "network"` and `key_file`."""
    port: Port = 8888
    """Port of the API."""
    key_file: AbsolutePath | None = None
    """File on the head whose first line is the API key. It is read at launch and never appears in argv,
    logs or the store."""
    exposure: Exposure = Exposure.loopback
    """`loopback`: this machine only (put a gateway in front). `network`: you mean it; a key file is then
    required."""
    allowed_origins: list[str] = Field(default_factory=list)
    """Origins that browsers may call from (--allowed-origins). Empty: none."""


class Agent(Section):
    """The supervisor on every node."""

    port: Port = 8770
    """Port of the agents' channel on the first fabric address."""
    status_port: Port = 8771
    """Port of the status page and metrics, bound to loopback."""
    key_file: AbsolutePath = "/etc/sparkloom/agent.key"
    """File with the shared secret of the agents (HMAC), the same on all nodes, at least 32 bytes."""
    lease_seconds: Seconds = 15.0
    """A worker that has not heard the head's agent for this long stops its rank."""
    heartbeat_seconds: Seconds = 2.0
    """Time between two messages of the agents. Must be at most a third of the lease."""
    socket: AbsolutePath = "/run/sparkloom/agent.sock"
    """Local socket that `sparkloom status` and its kin talk to."""
    state_directory: AbsolutePath = "/var/lib/sparkloom"
    """Folder for logs of past generations, receipts and bundles."""
    keep_generations: Annotated[int, Field(ge=1, le=100)] = 10
    """Logs of this many launches are kept."""


class Deadlines(Section):
    """How long each phase may take. On expiry of one of a start: stack dump, both ranks stopped, next try."""

    gate_seconds: Seconds = 900.0
    """A hold before a launch that waiting does not mend (files that differ, too little memory, preflight) is
    a failure after this long. A node that does not answer is waited for without limit."""
    rendezvous_seconds: Seconds = 120.0
    """Until all ranks have joined."""
    load_seconds: Seconds = 1200.0
    """Until the weights are loaded."""
    kv_seconds: Seconds = 300.0
    """Profile run and KV allocation."""
    graphs_seconds: Seconds = 600.0
    """Capture of CUDA graphs."""
    warmup_seconds: Seconds = 900.0
    """Warm-up and the first checked answers; kernels may compile here."""
    drain_seconds: Seconds = 300.0
    """`sparkloom drain` and `restart` wait this long for running requests before they stop the ranks."""
    stop_seconds: Seconds = 60.0
    """From the stop signal until a rank is killed."""
    memory_return_seconds: Seconds = 120.0
    """Until a stopped rank's memory is back on its node."""
    execute_seconds: Seconds = 300.0
    """VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: one engine step. A first-request compilation counts against it."""
    collective_seconds: Seconds = 120.0
    """--distributed-timeout-seconds and its CPU twin: a collective that waits for a dead peer."""


class Restart(Section):
    """What happens after the pair broke."""

    start_limit: Annotated[int, Field(ge=1, le=100)] = 5
    """Starts within the interval before the agent stops for good and says why."""
    interval_seconds: Seconds = 3600.0
    """Interval of the start limit."""
    backoff_first_seconds: Seconds = 10.0
    """Wait before the first restart."""
    backoff_factor: Annotated[float, Field(ge=1, le=10)] = 2.0
    """Each further wait is this many times longer."""
    backoff_max_seconds: Seconds = 300.0
    """Longest wait."""
    stable_seconds: Seconds = 600.0
    """Ready for this long, and earlier failures are forgotten by the start limit and the waits."""


class Liveness(Section):
    """How a hang is told from hard work. Progress is a rising token counter, not a green /health."""

    progress_seconds: Seconds = 180.0
    """With requests running: longest time in which no token is computed or generated."""
    idle_probe_seconds: Seconds = 60.0
    """When idle: time between two tiny checked generations."""
    answer_seconds: Seconds = 30.0
    """Deadline of such a generation on an idle server."""
    failures: Annotated[int, Field(ge=1, le=20)] = 2
    """Failures in a row before the pair is restarted."""
    scrape_seconds: Seconds = 5.0
    """Time between two looks at the metrics."""


class ProbeSet(StrEnum):
    """Which checked answers must pass before the pair is ready."""

    full = "full"
    quick = "quick"
    demo = "demo"


class Probe(Section):
    """Readiness by checked answers."""

    checks: ProbeSet = ProbeSet.full
    """`full`, `quick` (known answer, stream, long prompt) or `demo` (what the demo model can do)."""
    long_prompt_tokens: Annotated[int, Field(ge=64, le=1_048_576)] = 28_672
    """Length of the long-prompt check. A pinned KV size without activation reserve dies here and not in
    service."""
    deadline_seconds: Seconds = 300.0
    """Deadline of all checks together."""


class Memory(Section):
    """Memory policy and the estimates of the plan, in bytes per node. Replace an estimate by what your
    machine's log says."""

    host_floor_bytes: Bytes = 6 * GIB
    """Must stay available for the host: 5.6 GiB of host-side processes were measured on a head, plus
    margin."""
    engine_init_bytes: Bytes = 6 * GIB
    """CUDA context, NCCL and library workspaces. About 9 GiB were measured together with the activation
    peak, which the plan counts apart."""
    activation_reserve_bytes: Bytes | None = None
    """Peak of one engine step. null: computed from max_batched_tokens, context and the model's geometry."""
    cuda_graph_bytes_per_size: Bytes = 128 * MIB
    """Memory of one captured graph size (estimate; vLLM logs the true sum)."""
    loader_ring_bytes: Bytes = 5_733_612_748
    """What the `instanttensor` loader keeps: 5.34 GiB, the upper half of the 4.4 to 5.6 GiB that were
    measured."""
    drop_page_cache: bool = True
    """Drop clean page cache right before a start: CUDA-free is MemFree on this machine, cached files
    count as used."""
    start_check_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.6
    """--gpu-memory-utilization. With KV bytes given it only feeds vLLM's own start check; the plan is the
    real one."""
    total_bytes: Bytes = 130_663_800_832
    """Memory that a node shows (MemTotal), 121.69 GiB on a DGX Spark. Used where no meminfo is given."""
    return_tolerance_bytes: Bytes = 1 * GIB
    """After a stop, memory counts as back when it is within this of the value before the start."""


class Platform(StrEnum):
    """What the ranks compute on."""

    cuda = "cuda"
    cpu = "cpu"


class Runtime(StrEnum):
    """How the rank is run."""

    native = "native"
    oci = "oci"


class Engine(Section):
    """The vLLM process itself."""

    platform: Platform = Platform.cuda
    """`cuda` (the product) or `cpu` (demo and tests: gloo, no NCCL, no CUDA graphs)."""
    dtype: Annotated[str, Field(pattern="^(auto|bfloat16|float16|float32)$")] = "auto"
    """Data type of activations. The CPU platform needs float32 for parity."""
    runtime: Runtime = Runtime.native
    """`native` process or `oci` container."""
    image: Annotated[str, Field(pattern=r"^[^\s@]+@sha256:[0-9a-f]{64}$")] | None = None
    """Image by digest, needed for `oci`. Tags move and are refused."""
    command: Annotated[list[str], Field(min_length=1, max_length=16)] | None = None
    """Program before the flags. null: `python -m sparkloom.vllm.serve`."""
    cuda_home: AbsolutePath | None = None
    """CUDA toolkit 13.0 (CUDA_HOME): DeepGEMM and TileLang compile at run time. null: from the
    environment."""
    cache_directory: AbsolutePath = "/var/cache/sparkloom"
    """Folder of compiled kernels (Triton, TileLang, FlashInfer, vLLM); keep it between starts."""
    expandable_segments: bool = False
    """PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. Kits differ: one saw driver errors with it."""
    omp_threads: Annotated[int, Field(ge=1, le=256)] | None = None
    """OMP_NUM_THREADS. null: 1 on the CPU platform, unset on CUDA."""
    attention_backend: Annotated[str, Field(pattern="^[A-Z0-9_]+$")] | None = None
    """Attention backend of the model (--attention-backend). null: vLLM chooses; right on sm_12x."""
    moe_backend: Annotated[str, Field(pattern="^[a-z0-9_]+$")] = "auto"
    """MoE backend (--moe-backend). Only `auto` with EXL3: its experts have kernels of their own."""
    extra_args: Annotated[list[str], Field(max_length=64)] = Field(default_factory=list)
    """Further flags for vLLM, the same on every rank. Flags that this file owns are refused."""
    extra_env: dict[EnvName, str] = Field(default_factory=dict)
    """Further environment, the same on every rank. Variables that this file owns and secrets are refused."""
