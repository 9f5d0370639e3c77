"""Fetch vLLM's wheel and unpack its Python files, for the tests that apply the patches."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "0.33.0"
TARGET = Path.home() / ".cache/sparkloom/sources" / f"vllm-{VERSION}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "--dest", folder, f"vllm=={VERSION}"], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".py")]
            wheel.extractall(TARGET, names)
    print(f"{len(names)} files in {TARGET}")


if __name__ == "__main__":
    main()
