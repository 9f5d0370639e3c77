"""Take out what a saved tree must not tell: keys, hardware addresses, serials, names, public addresses.

The same secret becomes the same stand-in everywhere, so that two files can still be compared.
"""

from __future__ import annotations

import ipaddress
import re

MIN_SECRET = 6  # a shorter one would take words apart
_SECRET = re.compile(
    r"((?:api[-_]?key|access[-_]?key|token|secret|passw(?:or)?d|passphrase|credential|authorization)s?"
    r"[\"']?\s*[=:]\s*(?:bearer\s+)?)[^\s\"',}]+",
    re.IGNORECASE,
)
_KEY_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|eyJ[\w-]{20,}\.[\w.-]+)"
)
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
_SERIAL = re.compile(
    r"(\b(?:serial(?:[ _-]?(?:number|no))?|board_serial|product_serial|vpd)\s*[=:]\s*)\S+", re.IGNORECASE
)
_GUID = re.compile(r"((?:node|port|sys_image)_guid\s*:\s*)[0-9a-f:]+", re.IGNORECASE)
_EUI64 = re.compile(r"\bfe80(?::[0-9a-f]{0,4}){2,7}(?:/\d+)?", re.IGNORECASE)
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_HOME = re.compile(r"(/home/)[^/\s:\"']+")


class Redactor:
    """Replace secrets by stand-ins; one object per archive keeps them consistent.

    Args:
        hostnames: names of the machine, long ones first or not.
        secrets: keys that this machine knows: they go wherever they stand, whatever stands before them.
    """

    def __init__(self, hostnames: tuple[str, ...] = (), secrets: tuple[str, ...] = ()) -> None:
        self._secrets = sorted({s for s in secrets if len(s) >= MIN_SECRET}, key=len, reverse=True)
        names = sorted({n for n in hostnames if len(n) > 1 and n != "localhost"}, key=len, reverse=True)
        self._host = (
            re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])") if names else None
        )
        self._known: dict[str, dict[str, str]] = {}

    def text(self, text: str) -> str:
        """`text` without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "REDACTED")
        text = _KEY_SHAPES.sub("REDACTED", text)
        text = _SECRET.sub(r"\1REDACTED", text)
        text = _SERIAL.sub(r"\1REDACTED", text)
        text = _GUID.sub(r"\g<1>0000:0000:0000:0000", text)
        text = _UUID.sub(
            lambda m: self._stand_in("uuid", m[0].lower(), "00000000-0000-0000-0000-{:012x}"), text
        )
        text = _MAC.sub(self._mac, text)
        text = _EUI64.sub(self._link_local, text)
        text = _IPV4.sub(self._ipv4, text)
        text = _HOME.sub(r"\1user", text)
        return self._host.sub("node", text) if self._host else text

    def _stand_in(self, kind: str, secret: str, form: str) -> str:
        known = self._known.setdefault(kind, {})
        return known.setdefault(secret, form.format(len(known) + 1))

    def _mac(self, match: re.Match[str]) -> str:
        value = match[0].lower()
        if value in ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"):
            return value
        return self._stand_in("mac", value, "02:00:00:00:00:{:02x}")

    def _link_local(self, match: re.Match[str]) -> str:
        """A link-local address or GID carries the MAC; it stays link-local and of the same form."""
        address, _, prefix = match[0].partition("/")
        try:
            value = ipaddress.IPv6Address(address)
        except ValueError:
            return match[0]
        if not value.is_link_local:
            return match[0]
        number = int(self._stand_in("link", str(value), "{}"))
        stand_in = ipaddress.IPv6Address((0xFE80 << 112) + number)
        text = stand_in.exploded if len(address) == 39 else str(stand_in)
        return f"{text}/{prefix}" if prefix else text

    def _ipv4(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.IPv4Address(match[0])
        except ValueError:
            return match[0]
        # Private addresses stay: they are what the fabric checks compare. 0.x are version numbers.
        if not address.is_global:
            return match[0]
        number = int(self._stand_in("ipv4", match[0], "{}"))
        return f"203.0.113.{number % 255}"
