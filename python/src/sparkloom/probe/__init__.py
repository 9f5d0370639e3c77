"""Readiness by checked answers: the acceptance probe, usable against any OpenAI-compatible server."""

from sparkloom.probe.checks import Check, load_checks, pick
from sparkloom.probe.results import Result, Verdict, exit_code
from sparkloom.probe.runner import Target, canary, probe

__all__ = ["Check", "Result", "Target", "Verdict", "canary", "exit_code", "load_checks", "pick", "probe"]
