"""Words to the service manager, written to its socket without a library."""

from __future__ import annotations

import os
import socket


class Notify:
    """`sd_notify`. Without $NOTIFY_SOCKET every call does nothing."""

    def __init__(self, environ: dict[str, str] | None = None) -> None:
        env = dict(os.environ) if environ is None else environ
        self.address = env.get("NOTIFY_SOCKET", "")
        usec = env.get("WATCHDOG_USEC", "")
        pid = env.get("WATCHDOG_PID", "")
        mine = not pid or pid == str(os.getpid())
        self.watchdog_s = int(usec) / 1e6 if usec.isdigit() and mine else None

    def send(self, *lines: str) -> None:
        """Send assignments such as `READY=1`."""
        if not self.address:
            return
        name = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            try:
                out.sendto("\n".join(lines).encode(), name)
            except OSError:  # the manager is being replaced; its next start asks again
                return

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self.send("STATUS=" + " ".join(text.split()))
