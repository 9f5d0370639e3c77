"""Environment of a rank: what all ranks share, and what belongs to one node's fabric."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from sparkloom.cluster.digest import digest
from sparkloom.cluster.flags import compact
from sparkloom.cluster.nodes import Node
from sparkloom.cluster.operation import Platform
from sparkloom.cluster.settings import Settings
from sparkloom.cluster.types import Cluster
from sparkloom.errors import SparkloomError

if TYPE_CHECKING:
    from sparkloom.fabric.model import Rail


def shared_env(cluster: Cluster, final: Settings) -> dict[str, str]:
    """Variables that are equal on all ranks."""
    limits, engine = cluster.deadlines, cluster.engine
    start = (
        limits.rendezvous_seconds
        + limits.load_seconds
        + limits.kv_seconds
        + limits.graphs_seconds
        + limits.warmup_seconds
    )
    env = {
        "VLLM_PLUGINS": "exl3",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(int(start)),
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(max(1, int(limits.execute_seconds))),
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "5",
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "0",
        "VLLM_CACHE_ROOT": f"{engine.cache_directory}/vllm",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "SPARKLOOM_EXL3_BACKEND": cluster.serving.exl3_backend,
        "SPARKLOOM_PATCHES": patches_json(cluster, final),
        "SPARKLOOM_CLUSTER_DIGEST": digest(cluster),
    }
    from sparkloom.ablit.spec import ENV, optional, pinned

    if (edit := optional(cluster)) is not None:
        env[ENV] = pinned(edit).as_env()
    threads = engine.omp_threads
    if engine.platform is Platform.cpu:
        env["OMP_NUM_THREADS"] = str(threads or 1)
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    elif threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    if cluster.rendezvous.rpc_port_base is not None:
        env["VLLM_PORT"] = str(cluster.rendezvous.rpc_port_base)
    if engine.platform is Platform.cuda:
        env |= _cuda(cluster)
        if cluster.world > 1:
            env |= _nccl(cluster)
    return env


def patches_json(cluster: Cluster, final: Settings) -> str:
    """Switches of this project's changes as one JSON object, read by the plug-in in every process."""
    values = cluster.patches.model_dump(mode="json")
    values["spin_window_ms"] = final.spin_window_ms
    values["default_new_tokens"] = final.default_new_tokens
    values["fair_prefill"] = final.fair_prefill.value
    return compact(dict(sorted(values.items())))


def _cuda(cluster: Cluster) -> dict[str, str]:
    engine = cluster.engine
    env = {
        "TRITON_CACHE_DIR": f"{engine.cache_directory}/triton",
        "TILELANG_CACHE_DIR": f"{engine.cache_directory}/tilelang",
        "FLASHINFER_WORKSPACE_BASE": f"{engine.cache_directory}/flashinfer",
    }
    if engine.cuda_home is not None:
        env["CUDA_HOME"] = engine.cuda_home
    if engine.expandable_segments:
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return env


def _nccl(cluster: Cluster) -> dict[str, str]:
    """NCCL over RoCE v2 with IPv4, loudly: NCCL_NET=IB makes a fall-back to TCP an error."""
    fabric = cluster.fabric
    env = {
        "NCCL_DEBUG": fabric.nccl_debug,
        "NCCL_NET_PLUGIN": "none",
        "NCCL_CROSS_NIC": str(int(fabric.nccl_cross_nic)),
        "NCCL_IGNORE_CPU_AFFINITY": "1",
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_IB_DISABLE": "0",
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        "NCCL_IB_ADDR_FAMILY": "AF_INET",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_CUMEM_ENABLE": "0",
    }
    if fabric.require_rdma:
        env["NCCL_NET"] = "IB"
    if fabric.nccl_channels is not None:
        env |= dict.fromkeys(("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), str(fabric.nccl_channels))
    if fabric.nccl_buffer_bytes is not None:
        env["NCCL_BUFFSIZE"] = str(fabric.nccl_buffer_bytes)
    return env


AT_LAUNCH = "read from this node's fabric at launch"


def node_env(
    cluster: Cluster, node: Node, rails: Sequence[Rail] | None, interfaces: Sequence[str] | None
) -> tuple[dict[str, str], dict[str, str]]:
    """Variables of this node alone, and those that its fabric must still tell with the reason.

    What the cluster file names wins over what was found; a contradiction is an error.
    """
    if cluster.world == 1:
        return {}, {}
    env = {"VLLM_HOST_IP": node.fabric.addresses[0]}
    unresolved: dict[str, str] = {}
    used = _matching(cluster, node, rails) if rails is not None else None
    device = _interface(node, used, interfaces)
    names = ["GLOO_SOCKET_IFNAME"]
    if cluster.engine.platform is Platform.cuda:
        names += ["TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]
    for name in names:
        if device is None:
            unresolved[name] = AT_LAUNCH
        else:
            # `=` asks NCCL for exactly this name; without it "eth1" would match "eth10" too.
            env[name] = f"={device}" if name == "NCCL_SOCKET_IFNAME" else device
    if cluster.engine.platform is Platform.cpu or not cluster.fabric.require_rdma:
        return env, unresolved
    devices = node.fabric.rdma_devices or ([rail.rdma for rail in used] if used else None)
    if devices is None:
        unresolved["NCCL_IB_HCA"] = AT_LAUNCH
    else:
        env["NCCL_IB_HCA"] = "=" + ",".join(devices)
    if used is None:
        unresolved["NCCL_IB_GID_INDEX"] = AT_LAUNCH
    elif len(indexes := {rail.gid_index for rail in used}) == 1:
        env["NCCL_IB_GID_INDEX"] = str(indexes.pop())
    # Devices with different indexes: NCCL has one index for all, so it is left out and NCCL selects per
    # device by NCCL_IB_ROCE_VERSION_NUM and NCCL_IB_ADDR_FAMILY.
    return env, unresolved


def _matching(cluster: Cluster, node: Node, rails: Sequence[Rail]) -> list[Rail]:
    """This node's rails in the order of its addresses."""
    by_address = {rail.address: rail for rail in rails}
    used = []
    for i, address in enumerate(node.fabric.addresses):
        rail = by_address.get(address)
        index = [each.name for each in cluster.nodes].index(node.name)
        where = f"nodes[{index}].fabric"
        if rail is None or (rail.gid_index is None and cluster.fabric.require_rdma):
            problem = "no rail has this address" if rail is None else "no RoCE v2 GID maps this address"
            raise SparkloomError(
                f"{problem} on {node.name!r}",
                field=f"{where}.addresses[{i}]",
                value=address,
                mend=f"see `sparkloom fabric show --address {address}` on that node",
            )
        wanted = node.fabric.rdma_devices
        if wanted is not None and wanted[i] != rail.rdma:
            raise SparkloomError(
                f"the file names {wanted[i]}, the address belongs to {rail.rdma}",
                field=f"{where}.rdma_devices[{i}]",
                value=wanted[i],
                mend=f"write {rail.rdma}, or leave rdma_devices out to have it found",
            )
        used.append(rail)
    return used


def _interface(node: Node, rails: Sequence[Rail] | None, interfaces: Sequence[str] | None) -> str | None:
    """Network device of the first fabric address."""
    if node.fabric.interfaces:
        return node.fabric.interfaces[0]
    if interfaces:
        return interfaces[0]
    if rails and rails[0].netdev:
        return rails[0].netdev
    return "lo" if IPv4Address(node.fabric.addresses[0]).is_loopback else None
