"""Warnings of a valid cluster file: allowed, but somebody should know."""

from __future__ import annotations

from collections.abc import Iterator

from sparkloom.cluster.model import DrafterKind, Geometry
from sparkloom.cluster.operation import Platform
from sparkloom.cluster.settings import settings
from sparkloom.cluster.types import Cluster
from sparkloom.findings import Finding, warn

MTU_RDMA = 4200  # smallest interface MTU that carries RDMA packets of 4096 bytes


def notes(cluster: Cluster) -> list[Finding]:
    """What is unusual in a checked cluster file."""
    return list(_notes(cluster))


def unbuilt() -> dict[str, str]:
    """Switches of `patches` that need a patched vLLM and are refused at start without it, with the reason."""
    from sparkloom.vllm.hooks.install import UNBUILT

    return UNBUILT


def _notes(cluster: Cluster) -> Iterator[Finding]:
    from sparkloom.plan.geometry import GLM_FLASH

    final = settings(cluster)
    cuda = cluster.engine.platform is Platform.cuda
    glm = cluster.model.geometry is Geometry.glm_flash
    if glm and not GLM_FLASH.divides(cluster.world):
        yield warn(
            "cluster.nodes",
            f"the model's {GLM_FLASH.heads} heads do not divide by {cluster.world} ranks",
            "use 1, 2 or 4 nodes; other numbers are planned with padding and are not served by vLLM 0.33",
        )
    if cuda and cluster.world > 1 and cluster.fabric.mtu < MTU_RDMA:
        yield warn(
            "cluster.fabric.mtu",
            f"an MTU of {cluster.fabric.mtu} leaves RDMA packets of 1024 bytes or less: half the bandwidth",
            "set fabric.mtu to 9000 and the same on the interfaces",
        )
    if cuda and cluster.world > 1 and not cluster.fabric.require_rdma:
        yield warn(
            "cluster.fabric.require_rdma",
            "NCCL may fall back to TCP without a word",
            "leave fabric.require_rdma out",
        )
    if any(len(node.fabric.addresses) == 1 for node in cluster.nodes) and cuda and cluster.world > 1:
        yield warn(
            "cluster.rails",
            "one rail: a QSFP port has two halves, and one of them stays unused",
            "give each node one address per half, in a subnet of its own",
        )
    for name, reason in unbuilt().items():
        if getattr(cluster.patches, name, None):
            yield warn(
                f"cluster.patches.{name}",
                f"patches.{name} needs a patched vLLM; without the patch ({reason}) a rank refuses to start",
                f"leave patches.{name} out, unless your vLLM has the patch",
            )
    if cluster.api.key_file is None and cuda:
        yield warn("cluster.api", "the API asks for no key", "name a file in api.key_file")
    if cluster.serving.shutdown_timeout_seconds > cluster.deadlines.stop_seconds / 2:
        yield warn(
            "cluster.deadlines.stop_seconds",
            f"ranks must end within {cluster.deadlines.stop_seconds:g} s, while they may take "
            f"{cluster.serving.shutdown_timeout_seconds} s to let requests end",
            "set deadlines.stop_seconds to at least twice serving.shutdown_timeout_seconds",
        )
    if final.drafter is DrafterKind.dflash2 and not final.cuda_graphs:
        yield warn(
            "cluster.drafter",
            "a drafter without CUDA graphs gains little",
            "leave serving.cuda_graphs out",
        )
    if not cluster.memory.drop_page_cache and cuda:
        yield warn(
            "cluster.memory",
            "cached files count as used memory: a start right after a copy of the weights will fail",
            "leave memory.drop_page_cache out",
        )
