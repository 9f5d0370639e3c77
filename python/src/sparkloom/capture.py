"""Save what the checks read as a small tree, redacted, so that it can be sent and tested elsewhere."""

from __future__ import annotations

import fnmatch
import io
import platform
import re
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparkloom import fsio
from sparkloom.commands import capture_text
from sparkloom.errors import Exit, SparkloomError
from sparkloom.redact import Redactor
from sparkloom.sysroot import SysRoot

FILES = (
    "proc/version",
    "proc/cmdline",
    "proc/meminfo",
    "proc/swaps",
    "proc/loadavg",
    "proc/modules",
    "proc/self/limits",
    "proc/net/fib_trie",
    "proc/net/route",
    "proc/net/tcp",
    "proc/net/tcp6",
    "proc/sys/kernel/osrelease",
    "proc/sys/kernel/random/boot_id",
    "proc/sys/vm/swappiness",
    "proc/sys/vm/min_free_kbytes",
    "proc/sys/vm/watermark_boost_factor",
    "proc/sys/vm/nr_hugepages",
    "proc/driver/nvidia/version",
    "proc/driver/nvidia/gpus/*/information",
    "proc/[0-9]*/status",
    "proc/[0-9]*/comm",
    "etc/os-release",
    "sys/fs/pstore/dmesg*",
    "etc/cdi/*",
    "run/cdi/*",
    "var/run/cdi/*",
    "sys/module/nvidia/version",
    "sys/module/mlx5_core/version",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/block/nvme*/queue/read_ahead_kb",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "sys/class/net/*/carrier",
    "sys/class/net/*/operstate",
    "sys/class/net/*/mtu",
    "sys/class/net/*/speed",
    "sys/class/net/*/address",
    "sys/class/net/*/phys_port_name",
    "sys/class/infiniband/*/fw_ver",
    "sys/class/infiniband/*/ports/*/state",
    "sys/class/infiniband/*/ports/*/phys_state",
    "sys/class/infiniband/*/ports/*/rate",
    "sys/class/infiniband/*/ports/*/link_layer",
    "sys/class/infiniband/*/ports/*/gids/*",
    "sys/class/infiniband/*/ports/*/gid_attrs/types/*",
    "sys/class/infiniband/*/ports/*/gid_attrs/ndevs/*",
    "sys/class/infiniband/*/ports/*/hw_counters/*",
    "sys/class/infiniband/*/ports/*/counters/*",
)
"""What is read, as paths with wildcards below the root."""

LINKS = ("sys/class/net/*/device", "sys/class/infiniband/*/device")
MAX_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class Captured:
    """What an archive got."""

    path: Path
    files: int
    bytes: int
    skipped: tuple[str, ...]  # command outputs that this machine could not give


def expand(root: SysRoot, pattern: str) -> list[str]:
    """Paths below the root that match `pattern`; only a component with a wildcard is listed."""
    found = [""]
    for part in pattern.split("/"):
        if re.search(r"[*?\[]", part):
            found = [
                f"{base}/{name}" for base in found for name in root.names(base) if fnmatch.fnmatch(name, part)
            ]
        else:
            found = [f"{base}/{part}" for base in found]
    return [path.lstrip("/") for path in found]


def commands() -> dict[str, list[str]]:
    """Programs whose output the checks use, by the name below `commands/`."""
    from sparkloom.preflight import gpu, software, storage

    return {
        "ip-addr.json": ["ip", "-j", "addr"],
        "ibv_devinfo.txt": ["ibv_devinfo", "-v"],
        gpu.GPU_FILE: gpu.GPU_ARGV,
        gpu.APPS_FILE: gpu.APPS_ARGV,
        storage.DF_FILE: storage.DF_ARGV,
        software.NCCL_FILE: [sys.executable, "-c", software.NCCL_CODE],
        software.VLLM_FILE: [sys.executable, "-c", software.VLLM_CODE],
        software.PODMAN_FILE: ["podman", "--version"],
        software.PLUGIN_FILE: software.PLUGIN_ARGV,
    }


def collect(
    root: SysRoot, redactor: Redactor, ask: Callable[[list[str]], str | None] | None = None
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Files and symbolic links of the tree, redacted, and the names of commands without an answer.

    Args:
        ask: runs a program and returns its output; `None` takes no command output but what the tree has.
    """
    files: dict[str, str] = {}
    for pattern in FILES:
        for name in expand(root, pattern):
            data = None if root.is_dir(name) else root.bytes(name)
            if data is not None and len(data) <= MAX_FILE:
                files[name] = redactor.text(_trim(name, data.decode("utf-8", "replace")))
    links = {}
    for pattern in LINKS:
        for name in expand(root, pattern):
            target = root.link(name)
            if target:
                links[name] = f"../../../devices/{target}"
    skipped = []
    for name, argv in commands().items():
        text = root.text(f"commands/{name}")
        if text is None and ask is not None:
            text = ask(argv)
        if text is None:
            skipped.append(name)
        else:
            files[f"commands/{name}"] = redactor.text(text)
    return files, links, skipped


def _trim(name: str, text: str) -> str:
    """Leave out what no check needs and what tells about people: connections, and most of a status file."""
    if name in ("proc/net/tcp", "proc/net/tcp6"):
        lines = text.splitlines(keepends=True)
        return "".join(lines[:1] + [line for line in lines[1:] if line.split()[3:4] == ["0A"]])
    if re.fullmatch(r"proc/\d+/status", name):
        kept = ("Name", "State", "VmRSS", "VmSwap")
        return "".join(line for line in text.splitlines(keepends=True) if line.split(":")[0] in kept)
    return text


def hostnames(root: SysRoot) -> tuple[str, ...]:
    """Names of the machine that the tree belongs to."""
    found = [root.text("etc/hostname"), root.text("proc/sys/kernel/hostname")]
    if root.live:
        found.append(platform.node())
    names = [name for name in found if name]
    return (*names, *(name.split(".")[0] for name in names))


def save(out: Path, root: SysRoot) -> Captured:
    """Write the archive (`.tar`, or compressed by the name's ending) whole or not at all.

    Raises:
        SparkloomError: the place cannot be written.
    """
    kind = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz"}.get(out.suffix, "w")
    ask = (lambda argv: capture_text(argv, timeout_s=180)) if root.live else None
    files, links, skipped = collect(root, Redactor(hostnames(root)), ask)
    try:
        with fsio.replacing(out) as part, tarfile.open(part, kind) as archive:  # type: ignore[call-overload]
            for name, text in sorted(files.items()):
                _add(archive, name, text)
            for name, target in sorted(links.items()):
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                archive.addfile(entry)
    except OSError as error:
        raise SparkloomError(
            f"cannot write the archive: {error.strerror}", file=out, mend="name a place that you may write",
            code=Exit.RESOURCE,
        ) from error  # fmt: skip
    return Captured(out, len(files) + len(links), out.stat().st_size, tuple(skipped))


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    archive.addfile(entry, io.BytesIO(data))


@contextmanager
def opened(path: Path) -> Iterator[SysRoot]:
    """A tree to read: a folder as it is, an archive unpacked for the time being.

    Raises:
        SparkloomError: `path` is neither a folder nor an archive that can be unpacked safely.
    """
    if path.is_dir():
        yield SysRoot(path)
        return
    mend = "give a folder, or an archive from `sparkloom capture`"
    if not path.exists():
        raise SparkloomError("no such folder", field="--root", value=str(path), mend=mend, code=Exit.USAGE)
    with tempfile.TemporaryDirectory(prefix="sparkloom-tree-") as folder:
        try:
            with tarfile.open(path) as archive:
                archive.extractall(folder, members=_small(archive), filter="data")
        except (tarfile.TarError, OSError, EOFError, ValueError) as error:
            raise SparkloomError(f"not a usable archive: {error}", file=path, mend=mend) from None
        yield SysRoot(folder)


def _small(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Members up to a total that a capture never reaches: a bomb stays packed."""
    total = 0
    for count, entry in enumerate(archive):
        total += entry.size
        if count > 200_000 or total > 512 << 20:
            raise tarfile.TarError("it is far larger than a captured tree")
        if entry.issym() or entry.isreg() or entry.isdir():
            yield entry
