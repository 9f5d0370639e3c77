"""Every sub-command: its module (which has a Typer called `app`) and the line that `--help` shows."""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "schema": ("sparkloom.cli.schema", "print the JSON Schema of the cluster file"),
    "validate": ("sparkloom.cli.validate", "check a cluster file, all problems at once"),
    "explain": ("sparkloom.cli.explain", "show every final value and where it came from"),
    "render": ("sparkloom.cli.render", "print flags and environment of one rank"),
    "plan": ("sparkloom.cli.plan", "sum up the memory of every node and say whether it fits"),
    "exl3": ("sparkloom.cli.exl3", "inspect, quantize and make EXL3 checkpoints"),
    "plugin": ("sparkloom.cli.plugin", "prove that vLLM sees the EXL3 plug-in"),
    "demo": ("sparkloom.cli.demo", "a two-node pair on this machine, no GPU needed"),
    "bench": ("sparkloom.cli.bench", "measure a server: receipt, report, verdict"),
    "prefix-diff": ("sparkloom.cli.prefix_diff", "why a request misses the cached prefix of another"),
    "fabric": ("sparkloom.cli.fabric", "rails, GID entries and MTU of the RoCE fabric"),
    "quality": ("sparkloom.cli.quality", "distance of a model from its teacher; gate for long answers"),
    "probe": ("sparkloom.cli.probe", "checked answers from an OpenAI server"),
    "units": ("sparkloom.cli.units", "write the systemd units of one node (DGX OS)"),
    "weights": ("sparkloom.cli.weights", "fetch, verify, bundle and share the pinned weights"),
    "ablit": (
        "sparkloom.cli.ablit",
        "weight edits at load, off by default",
    ),
    "doctor": ("sparkloom.cli.doctor", "every check in order, one verdict, the next step"),
    "preflight": ("sparkloom.cli.preflight", "is this node ready for a rank?"),
    "capture": ("sparkloom.cli.capture", "save what the checks read, redacted, to send or to test with"),
    "import-env": ("sparkloom.cli.import_env", "turn a recipe's environment file into a cluster file"),
    "agent": ("sparkloom.cli.agent", "own this node's rank and keep the pair as one (systemd runs it)"),
    "status": ("sparkloom.cli.status", "both ranks, phase, memory, acceptance; --watch"),
    "start": ("sparkloom.cli.start", "let the pair come up"),
    "stop": ("sparkloom.cli.stop", "take both ranks down and verify it"),
    "restart": ("sparkloom.cli.restart", "validate, drain, stop and start both ranks"),
    "drain": ("sparkloom.cli.drain", "finish running requests, then stop"),
    "logs": ("sparkloom.cli.logs", "logs of both ranks by generation"),
    "bundle": ("sparkloom.cli.bundle", "redacted evidence of both nodes"),
    "chaos": ("sparkloom.cli.chaos", "break a pair on this machine and measure how it comes back"),
}
