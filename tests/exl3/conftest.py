"""Hypothesis without a time limit per example: the machine may be busy with something else."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
