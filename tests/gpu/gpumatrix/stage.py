"""Build the site archives: vLLM and what it imports, for a machine that has torch and nothing else of it.

Wheels are downloaded by pip (or taken from a folder), CUDA libraries slimmed to one capability, parts that
no row needs cut, and everything packed into pieces under a size limit. `unpack` puts the pieces together,
with a second folder in which `patches/vllm` are applied.
"""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from gpumatrix import fatbin

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[2]
WHEELS = HERE / "wheels.txt"
PLATFORMS = ("2_39", "2_35", "2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
DROPPED = (
    "vllm/vllm-rs",
    "vllm/third_party/fmha_sm100",
    "pycountry/locales",
    "tilelang/3rdparty/composable_kernel",
    "tilelang/3rdparty/tvm/src",
    *(f"flashinfer/data/cutlass/{x}" for x in ("examples", "python", "test", "media", "docs")),
    *(f"flashinfer/data/cccl/{x}" for x in ("python", "docs")),
    *(
        f"flashinfer/data/csrc/{x}"
        for x in ("kda", "gdn", "fused_moe", "experimental", "fmha_v2", "nv_internal")
    ),
)
DROPPED_GLOBS = (
    "vllm/_qutlass_C*",
    "vllm/vllm_flash_attn/_vllm_fa2_C*",
    "mistral_common/data/*",
    "flashinfer/data/csrc/cake_*",
    "flashinfer/data/csrc/blackwell_*",
    "flashinfer/data/csrc/alphamoe*",
    "flashinfer/**/moe_ep/kernel_src",
    "flashinfer/**/experimental/**/*.cu",
    "flashinfer/**/experimental/**/*.cuh",
    "flashinfer/**/experimental/**/*.inc",
    "*.data",
)
EXACT = ("_moe_C",)  # machine code of this very capability or none: drops kernels that no row calls
WHOLE = ("deep_gemm", "_vllm_fa3_C")  # one capability only, or none


def download(target: Path, python: str, machine: str) -> None:
    """All wheels of `wheels.txt` for another interpreter and machine, by pip, without dependencies."""
    target.mkdir(parents=True, exist_ok=True)
    flags = ["--no-deps", "--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    for abi in (f"cp{python.replace('.', '')}", "abi3", "none"):
        flags += ["--abi", abi]
    for name in (*PLATFORMS, "2014", "1"):
        flags += ["--platform", f"manylinux{'_' if '_' in name else ''}{name}_{machine}"]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", *flags, "-d", target, "-r", WHEELS], check=True
    )


def unzip(wheels: Iterable[Path], site: Path) -> None:
    """Unpack wheels side by side."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)


def cut(site: Path) -> None:
    """Remove what no row needs; one of two equal libraries becomes a link."""
    for name in DROPPED:
        remove(site / name)
    for pattern in DROPPED_GLOBS:
        for path in sorted(site.glob(pattern)):
            remove(path)
    lib = site / "z3" / "lib"
    plain, versions = lib / "libz3.so", sorted(lib.glob("libz3.so.*"))
    if plain.is_file() and versions:
        plain.unlink()
        plain.symlink_to(versions[0].name)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def slim_libraries(site: Path, arch: int) -> None:
    """Slim every large library in place."""
    for path in sorted(site.rglob("*.so")):
        if path.is_symlink() or path.stat().st_size < 200_000 or any(name in str(path) for name in WHOLE):
            continue
        data = path.read_bytes()
        if fatbin.MAGIC in data:
            path.write_bytes(fatbin.slim(data, arch, any(name in path.name for name in EXACT)))


def patched_files(site: Path, target: Path) -> list[str]:
    """Copy the files that `patches/vllm` changes to `target` and apply the series there."""
    series = [
        line for line in (REPO / "patches/vllm/series").read_text().split("\n") if line and line[0] != "#"
    ]
    names = set()
    for name in series:
        for line in (REPO / "patches/vllm" / name.strip()).read_text().splitlines():
            if line.startswith(("--- a/", "+++ b/")):
                names.add(line[6:].split("\t")[0])
    for name in names:
        if (site / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(site / name, target / name)
    for name in series:
        with (REPO / "patches/vllm" / name.strip()).open() as patch:
            subprocess.run(["patch", "-p1", "-F0", "-s", "-d", target], stdin=patch, check=True)
    return sorted(names)


def pack(folder: Path, names: Iterable[str], archive: Path) -> int:
    """One xz archive of some of a folder's entries; returns its size."""
    part = archive.with_name(archive.name + ".part")
    with lzma.open(part, "wb", preset=6) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for name in names:
            tar.add(folder / name, name)
    part.rename(archive)
    return archive.stat().st_size


def pieces(sizes: dict[str, int], limit: int) -> list[list[str]]:
    """Group names into pieces of at most `limit` bytes each, largest first, first fit.

    Raises:
        ValueError: one name alone is larger.
    """
    found: list[tuple[int, list[str]]] = []
    for name, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        if size > limit:
            raise ValueError(f"{name} alone has {size} bytes; the limit is {limit}")
        for index, (used, names) in enumerate(found):
            if used + size <= limit:
                found[index] = (used + size, [*names, name])
                break
        else:
            found.append((size, [name]))
    return [names for _, names in found]


def build(
    out: Path,
    arch: int,
    limit: int,
    wheels: Path | None,
    python: str,
    machine: str,
    built: Path | None = None,
) -> list[Path]:
    """The whole way; gives the archives, `piece-N.tar` (of xz archives) and `patched.txz`.

    Args:
        out: output folder; `site/` in it is the unpacked, slimmed site.
        arch: compute capability times ten of the target GPU.
        limit: most bytes of a piece.
        wheels: folder with the wheels; None downloads them.
        built: folder with FlashInfer modules compiled ahead (`NAME/NAME.so`), taken along.
    """
    site, packed = out / "site", out / "packed"
    shutil.rmtree(site, ignore_errors=True)
    shutil.rmtree(packed, ignore_errors=True)
    packed.mkdir(parents=True)
    if wheels is None:
        wheels = out / "wheels"
        download(wheels, python, machine)
    unzip(sorted(wheels.glob("*.whl")), site)
    cut(site)
    slim_libraries(site, arch)
    if built:
        shutil.copytree(built, site / "flashinfer" / "data" / "aot", dirs_exist_ok=True)
    patched = out / "patched"
    shutil.rmtree(patched, ignore_errors=True)
    patched.mkdir()
    patched_files(site, patched)
    pack(patched, sorted(os.listdir(patched)), out / "patched.txz")
    # FA3's library is as large as all the rest of vLLM: a piece of its own.
    own = "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"
    sizes = {}
    if (site / own).exists():
        sizes["fa3.txz"] = pack(site, [own], packed / "fa3.txz")
        (site / own).rename(out / "fa3.so")
    try:
        groups: dict[str, list[str]] = {"vllm.txz": [], "jit.txz": [], "wheels.txz": []}
        for name in sorted(os.listdir(site)):
            large = ("flashinfer", "tilelang", "z3", "tvm_ffi", "apache_tvm")
            where = (
                "vllm.txz"
                if name.startswith("vllm")
                else "jit.txz"
                if name.startswith(large)
                else "wheels.txz"
            )
            groups[where].append(name)
        for archive, names in groups.items():
            if names:
                sizes[archive] = pack(site, names, packed / archive)
    finally:
        if (out / "fa3.so").exists():
            (out / "fa3.so").rename(site / own)
    for old in out.glob("piece-*.tar"):
        old.unlink()
    found = []
    for index, names in enumerate(pieces(sizes, limit), 1):
        piece = out / f"piece-{index}.tar"
        with tarfile.open(piece, "w") as tar:
            for name in names:
                tar.add(packed / name, name)
        found.append(piece)
    return [*found, out / "patched.txz"]


def unpack(archives: Iterable[Path], site: Path) -> None:
    """Unpack pieces into `site`, and `patched.txz` (the changed files) into `site-patched`."""
    site.mkdir(parents=True, exist_ok=True)
    for archive in archives:
        if archive.name == "patched.txz":
            patched = site.with_name(site.name + "-patched")
            patched.mkdir(exist_ok=True)
            with tarfile.open(archive) as tar:
                tar.extractall(patched, filter="tar")
            continue
        with tarfile.open(archive) as outer:
            for member in outer:
                inner = outer.extractfile(member)
                if inner is not None:
                    with tarfile.open(fileobj=inner, mode="r:xz") as tar:
                        tar.extractall(site, filter="tar")


def complete_patched(site: Path) -> Path | None:
    """Fill the packages in `site-patched` with links to the files of `site` that it does not replace.

    Returns:
        The folder, to stand before `site` in the search path; None without one.
    """
    patched = site.with_name(site.name + "-patched")
    if not patched.is_dir():
        return None
    for package in sorted(os.listdir(patched)):
        for path in (site / package).rglob("*"):
            target = patched / path.relative_to(site)
            if path.is_dir() and not path.is_symlink():
                target.mkdir(parents=True, exist_ok=True)
            elif not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, target, follow_symlinks=False)
    return patched
