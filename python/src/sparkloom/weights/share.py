"""Read-only sharing of verified weights over the fabric: HTTP with ranges, to the fabric's subnet only."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.typedefs import Handler

from sparkloom.errors import Exit, SparkloomError
from sparkloom.weights.hashing import drop_pages
from sparkloom.weights.manifest import Manifest

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Share:
    """One folder to share and the snapshot that it is."""

    name: str
    folder: Path
    manifest: Manifest


def share_address(bind: str | None, fabric: Sequence[str], prefix: int) -> tuple[str, Network]:
    """The address to bind and the network that may read.

    Args:
        bind: address wished for; the first fabric address when absent.
        fabric: fabric addresses of this node, from the cluster file.
        prefix: length of the fabric's subnets.

    Raises:
        SparkloomError: the address is a wildcard, loopback, or none of the node's fabric addresses.
    """
    mend = f"use a fabric address of this node: {', '.join(fabric)}"

    def refuse(summary: str) -> SparkloomError:
        return SparkloomError(summary, field="--bind", value=bind or fabric[0], mend=mend, code=Exit.USAGE)

    try:
        address = ipaddress.ip_address(bind or fabric[0])
    except ValueError:
        raise refuse("not an IP address") from None
    if address.is_unspecified:
        raise refuse("a wildcard address would share the weights with every network")
    if address.is_loopback:
        raise refuse("a loopback address is not reachable from the worker")
    if str(address) not in [str(ipaddress.ip_address(a)) for a in fabric]:
        raise refuse("this is no fabric address: over the management network a load takes all night")
    return str(address), ipaddress.ip_network(f"{address}/{prefix}", strict=False)


class _Sent(web.FileResponse):
    """A file whose pages are handed back once it was sent: on the head they would be GPU memory."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send the file, then advise its pages away."""
        try:
            return await super().prepare(request)
        finally:
            with contextlib.suppress(OSError):
                fd = os.open(self._path, os.O_RDONLY)
                try:
                    drop_pages(fd)
                finally:
                    os.close(fd)


def make_app(shares: Sequence[Share], networks: Sequence[Network]) -> web.Application:
    """The server: the manifest and the files of each share, nothing else, GET and HEAD only."""
    by_name = {share.name: share for share in shares}

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            peer = ipaddress.ip_address(request.remote or "")
        except ValueError:
            raise web.HTTPForbidden(text="unknown peer\n") from None
        if not any(peer in network for network in networks):
            raise web.HTTPForbidden(text="this share is for the fabric only\n")
        return await handler(request)

    def find(request: web.Request) -> Share:
        share = by_name.get(request.match_info["name"])
        if share is None:
            raise web.HTTPNotFound(text="no such share\n")
        return share

    async def manifest(request: web.Request) -> web.StreamResponse:
        return web.json_response(find(request).manifest.as_dict())

    async def file(request: web.Request) -> web.StreamResponse:
        share = find(request)
        entry = share.manifest.entry(request.match_info["path"])
        if entry is None:  # only what the manifest lists exists here, so no path can lead outside
            raise web.HTTPNotFound(text="not part of the snapshot\n")
        path = share.folder / entry.path
        if not path.is_file():
            raise web.HTTPNotFound(text="not fetched yet\n")
        return _Sent(path, chunk_size=1 << 20)

    app = web.Application(middlewares=[guard])
    app.router.add_get("/{name}/manifest.json", manifest)
    app.router.add_get("/{name}/files/{path:.+}", file)
    return app


def run_share(shares: Sequence[Share], address: str, port: int, networks: Sequence[Network]) -> None:
    """Serve until interrupted.

    Raises:
        SparkloomError: the address is not on this machine, or the port is taken.
    """
    try:
        web.run_app(make_app(shares, networks), host=address, port=port, print=None)
    except OSError as error:
        raise SparkloomError(
            f"cannot listen on {address}:{port}: {error.strerror}", field="--bind, --port",
            mend="bring the fabric address up (`sparkloom fabric show`), or choose another port",
            code=Exit.RESOURCE,
        ) from None  # fmt: skip


def nfs_export(folder: Path, address: str, network: Network, mount: Path | None = None) -> dict[str, str]:
    """Lines for a kernel NFS export of the folder to the fabric's subnet, and the worker's mount.

    For sites that want one copy instead of two; the server must listen on `address` only.
    """
    target = mount or folder
    text = f"{address}:{folder} {target} nfs4 ro,nconnect=8,rsize=1048576,wsize=1048576,hard,timeo=600 0 0"
    return {
        "exports": f"{folder} {network}(ro,all_squash,no_subtree_check,async)",
        "nfs_conf": f"[nfsd]\nhost={address}\n",
        "fstab": text,
    }
