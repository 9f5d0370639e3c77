"""`sparkloom demo run` with fake ranks and a model that is there at once; arguments as one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from sparkloom.demo import launch, run
from sparkloom.demo.models import Smol
from sparkloom.demo.view import View
from sparkloom.errors import SparkloomError

FAKE = Path(__file__).with_name("fake_vllm.py")


class Instant(Smol):
    """No preparation."""

    def prepare(self, note: Callable[[str], None]) -> launch.Spec:
        return launch.Spec(Path("/model"), served="smol")


def main(
    nodes: Any, port: int, once: bool, answer: str, behaviour: str, key: str, logs: str, timeout: float
) -> int:
    def argv(spec: Any, rank: int, master: str, master_port: int, api_port: int) -> list[str]:
        return [sys.executable, "-u", str(FAKE), str(rank), str(api_port), answer, behaviour]

    launch.argv = argv  # type: ignore[assignment]
    settings = run.Settings(
        port=port, nodes=nodes, once=once, api_key=key, log_folder=Path(logs), start_timeout=timeout
    )
    try:
        result = run.run(Instant(), settings, View(Console(stderr=True)))
    except SparkloomError as error:
        print(error, flush=True)
        return int(error.code)
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result.as_dict()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
