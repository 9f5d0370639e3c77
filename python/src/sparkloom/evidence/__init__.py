"""Evidence of a failure: what to collect on a node, what class of failure it shows, without secrets."""

from sparkloom.evidence.classify import Class, Finding, classify

__all__ = ["Class", "Finding", "classify"]
