"""The fetcher of vLLM's Python files: only what is needed, only what is pinned."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "patches/vllm/fetch.py"


@pytest.fixture
def fetch() -> Any:
    spec = importlib.util.spec_from_file_location("fetch_vllm", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Counting(io.BytesIO):
    """A remote file that counts what is read from it."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def wheel(fetch: Any, files: dict[str, bytes], **wrong: bytes) -> Counting:
    def row(name: str, data: bytes) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(data)}"

    record = "\n".join([row(n, d) for n, d in files.items()] + [f"{fetch.RECORD},,"]).encode()
    fetch.RECORD_SHA256 = hashlib.sha256(record).hexdigest()
    out = Counting()
    with zipfile.ZipFile(out, "w") as zipped:
        for name, data in files.items():
            zipped.writestr(name, wrong.get(name.replace("/", "_").removesuffix(".py"), data))
        zipped.writestr(fetch.RECORD, record)
    out.taken = 0
    return out


FILES = {
    "vllm/a.py": b"a = 1\n",
    "vllm/_C.so": os.urandom(9 << 20),
    "vllm/b/c.py": b"c = 2\n",
    "vllm/d.txt": b"x",
}


def test_only_the_python_files_are_read_and_written(fetch: Any, tmp_path: Path) -> None:
    remote, local = wheel(fetch, FILES), io.BytesIO()
    fetch.gather(remote, local)
    assert remote.taken < 1 << 20  # not the 9 MiB between them
    assert fetch.unpack(zipfile.ZipFile(local), tmp_path) == 2
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.py")} == {"vllm/a.py", "vllm/b/c.py"}
    assert fetch.complete(tmp_path)


def test_a_member_that_differs_from_the_list_is_refused(fetch: Any, tmp_path: Path) -> None:
    remote = wheel(fetch, FILES, vllm_b_c=b"c = 3\n")
    with pytest.raises(fetch.Mismatch, match=r"vllm/b/c\.py"):
        fetch.unpack(zipfile.ZipFile(remote), tmp_path)
    assert not fetch.complete(tmp_path)


def test_another_list_is_refused(fetch: Any, tmp_path: Path) -> None:
    remote = wheel(fetch, FILES)
    fetch.RECORD_SHA256 = "0" * 64
    with pytest.raises(fetch.Mismatch, match="RECORD"):
        fetch.unpack(zipfile.ZipFile(remote), tmp_path)


def test_without_an_index_it_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run([sys.executable, str(PATH)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 6, done.stderr
    assert done.stderr.startswith("fetch: vLLM 0.33.0 could not be fetched: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "sparkloom/sources/vllm-0.33.0").exists()
