"""`sparkloom`: one command, each sub-command in a module of its own, imported only when it is called."""

from sparkloom.cli.main import main

__all__ = ["main"]
