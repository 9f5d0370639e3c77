"""systemd units for DGX OS, rendered from the facts that the NixOS module reads too."""

from sparkloom.units.render import UnitNeeds, facts, render, sysusers

__all__ = ["UnitNeeds", "facts", "render", "sysusers"]
