"""The doctor: every check that needs no running rank, in order, with one verdict and the next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparkloom.cluster import Cluster
from sparkloom.errors import SparkloomError
from sparkloom.findings import Finding, Level, exit_code, from_error, ok, warn, worst
from sparkloom.preflight.context import context
from sparkloom.preflight.run import CHECKS, run_checks
from sparkloom.sysroot import SysRoot

STEPS = ("validate", "plan", "fabric", "preflight", "weights")
# The other checks of preflight; these three are steps of their own.
_OWN_STEP = ("memory", "fabric", "weights")


@dataclass(frozen=True, slots=True)
class Step:
    """One part of the examination."""

    name: str
    findings: tuple[Finding, ...]
    skipped: bool = False

    @property
    def level(self) -> Level:
        """The worst level of its findings."""
        return worst(self.findings)

    def as_dict(self) -> dict[str, Any]:
        """The step as JSON."""
        return {
            "step": self.name,
            "level": "skipped" if self.skipped else str(self.level),
            "findings": [f.as_dict() for f in self.findings],
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All steps, the verdict and what to do next."""

    steps: tuple[Step, ...]
    next_step: str

    @property
    def findings(self) -> list[Finding]:
        """All findings in order."""
        return [finding for step in self.steps for finding in step.findings]

    @property
    def verdict(self) -> str:
        """`ready`, `ready with warnings` or `not ready`."""
        words = {Level.ok: "ready", Level.warn: "ready with warnings", Level.fail: "not ready"}
        return words[worst(self.findings)]

    def as_dict(self, *, strict: bool = False) -> dict[str, Any]:
        """The diagnosis as `doctor --format json` prints it."""
        return {
            "verdict": self.verdict,
            "exit_code": int(exit_code(self.findings, strict=strict)),
            "next_step": self.next_step,
            "steps": [step.as_dict() for step in self.steps],
        }


def examine(path: Path, node: str, root: SysRoot, skip: Sequence[str] = ()) -> Diagnosis:
    """Run all steps; a cluster file that is wrong ends it after the first.

    Args:
        path: the cluster file.
        node: which node of it this is.
        root: the machine, or a saved tree.
        skip: names of preflight checks to leave out.

    Raises:
        SparkloomError: the cluster file has no such node.
    """
    from sparkloom.cluster import load
    from sparkloom.cluster.notes import notes

    try:
        cluster = load(path)
    except SparkloomError as error:
        rest = tuple(Step(name, (), skipped=True) for name in STEPS[1:])
        return _diagnose((Step("validate", (from_error("validate", error),)), *rest), path)
    good = ok("validate", f"{path.name}: {len(cluster.nodes)} nodes, profile {cluster.profile.value}")
    ctx = context(cluster, node, root)
    steps = (
        Step("validate", (good, *notes(cluster))),
        Step("plan", (*_whole_plan(cluster), *run_checks(ctx, ["memory"]))),
        Step("fabric", tuple(run_checks(ctx, ["fabric"], skip))),
        Step("preflight", tuple(run_checks(ctx, [n for n in CHECKS if n not in _OWN_STEP], skip))),
        Step("weights", tuple(run_checks(ctx, ["weights"], skip))),
    )
    return _diagnose(steps, path)


def _whole_plan(cluster: Cluster) -> list[Finding]:
    """The plan on machines of the assumed size: whether the file can fit anywhere."""
    from sparkloom.plan import plan
    from sparkloom.plan.free import assumed

    try:
        decided = plan(cluster, {n.name: assumed(cluster.memory.total_bytes) for n in cluster.nodes})
    except SparkloomError as error:
        return [replace(from_error("plan", error), level=Level.warn)]
    text = f"context {decided.context} with {decided.sequences} sequences"
    if decided.fits:
        return [ok("plan", f"{text} fits a typical node; the largest context is {decided.largest_context}")]
    mend = "; or ".join(decided.mends)
    return [warn("plan", f"{text} does not fit a typical node ({decided.binding.name} binds)", mend)]


def _diagnose(steps: tuple[Step, ...], path: Path) -> Diagnosis:
    for level, words in ((Level.fail, ""), (Level.warn, "start it, or first: ")):
        for step in steps:
            for finding in step.findings:
                if finding.level is not level or not finding.mend:
                    continue
                if step.name == "weights" and level is Level.fail:
                    return Diagnosis(steps, f"sparkloom weights fetch {path}")
                return Diagnosis(steps, f"{words}{finding.mend} ({finding.check})")
    if any(finding.level is Level.fail for step in steps for finding in step.findings):
        return Diagnosis(steps, "see the failing check above")
    return Diagnosis(steps, "sparkloom start")
