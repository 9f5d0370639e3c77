"""Run every check of a node in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparkloom.errors import SparkloomError
from sparkloom.findings import Finding, fail, from_error
from sparkloom.preflight.ablit import check_ablit
from sparkloom.preflight.boot import check_boot
from sparkloom.preflight.context import Context
from sparkloom.preflight.fabric import check_fabric
from sparkloom.preflight.gpu import check_cdi, check_driver, check_gpu_state, check_gpu_users
from sparkloom.preflight.ledger import check_ledger
from sparkloom.preflight.memory import check_memory
from sparkloom.preflight.processes import check_consumers, check_ports
from sparkloom.preflight.software import check_nccl, check_plugin, check_runtime
from sparkloom.preflight.storage import check_disk, check_read_ahead, check_weights
from sparkloom.preflight.system import (
    check_hugepages,
    check_kernel,
    check_memlock,
    check_min_free,
    check_page_cache,
    check_swap,
)

Check = Callable[[Context], Finding | list[Finding]]

CHECKS: dict[str, Check] = {
    "kernel": check_kernel,
    "boot": check_boot,
    "driver": check_driver,
    "gpu": check_gpu_state,
    "gpu.users": check_gpu_users,
    "nccl": check_nccl,
    "runtime": check_runtime,
    "plugin": check_plugin,
    "cdi": check_cdi,
    "ledger": check_ledger,
    "memlock": check_memlock,
    "hugepages": check_hugepages,
    "swap": check_swap,
    "min_free_kbytes": check_min_free,
    "page_cache": check_page_cache,
    "memory": check_memory,
    "consumers": check_consumers,
    "ports": check_ports,
    "disk": check_disk,
    "weights": check_weights,
    "ablit": check_ablit,
    "read_ahead": check_read_ahead,
    "fabric": check_fabric,
}
"""Every check by the name that `--only` and `--skip` take, in the order of the report."""


def run_checks(ctx: Context, only: Sequence[str] = (), skip: Sequence[str] = ()) -> list[Finding]:
    """All findings of a node; one check's error is a finding and does not stop the others."""
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        if (only and name not in only) or name in skip:
            continue
        try:
            found = check(ctx)
        except SparkloomError as error:
            found = from_error(name, error)
        except Exception as error:
            mend = "a fault of Sparkloom: report it with a tree from `sparkloom capture`"
            found = fail(name, f"the check itself failed: {type(error).__name__}: {error}", mend)
        findings += found if isinstance(found, list) else [found]
    return findings
