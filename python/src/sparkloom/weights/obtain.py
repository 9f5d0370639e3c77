"""From a target to a finished folder: find the manifest, choose the sources, fetch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from sparkloom.errors import Exit, SparkloomError
from sparkloom.weights.download import Options
from sparkloom.weights.fetch import Fetched, Reporter, fetch
from sparkloom.weights.hub import Source, check_revision, resolve
from sparkloom.weights.manifest import Manifest, parse_manifest
from sparkloom.weights.targets import Target


def find_manifest(
    target: Target, hubs: Sequence[str], token: str | None, peer: str | None = None, timeout_s: float = 30.0
) -> tuple[Manifest, list[str]]:
    """The manifest of the pinned revision, and what went wrong on the way.

    A complete manifest that is at hand is used as it is: a pinned revision can not change. Otherwise the
    peer, or the hubs in order, are asked.

    Raises:
        SparkloomError: nobody could tell.
    """
    check_revision(target.revision)
    failures: list[str] = []
    if target.place().cache is None:
        known = target.known_manifest()
        if known is not None and all(entry.hashed for entry in known.files):
            return known, failures
    if peer:
        return peer_manifest(peer, target, timeout_s), failures
    for endpoint in hubs:
        try:
            return resolve(Source(endpoint, target.repo, target.revision), token, timeout_s), failures
        except SparkloomError as error:
            failures.append(f"{error.summary}{f' ({error.detail})' if error.detail else ''}")
            last = error
    mend = last.mend
    if target.fallback_repo:
        mend += ". The fallback repository has another revision: it needs a manifest (model.manifest)"
    raise SparkloomError(
        f"nobody could tell which files {target.repo} has", detail="\n".join(failures), mend=mend,
        code=Exit.NETWORK,
    )  # fmt: skip


def peer_manifest(peer: str, target: Target, timeout_s: float) -> Manifest:
    """The manifest that another node shares.

    Raises:
        SparkloomError: it can not be reached, or shares another revision.
    """
    url = f"{peer.rstrip('/')}/{target.name}/manifest.json"
    mend = "start `sparkloom weights serve` on the node that has the weights"
    try:
        response = httpx.get(url, timeout=timeout_s, trust_env=False)
        response.raise_for_status()
        value: Any = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise SparkloomError(f"no manifest from {url}", detail=reason, mend=mend, code=Exit.NETWORK) from None
    manifest = parse_manifest(value, url)
    if manifest.revision != target.revision:
        raise SparkloomError(
            f"the peer shares revision {manifest.revision}, {target.revision} is pinned", file=url,
            mend="use the same cluster file on both nodes", code=Exit.CHECK,
        )  # fmt: skip
    return manifest


def sources_of(target: Target, hubs: Sequence[str], peer: str | None) -> list[Source]:
    """Where to take bytes from, in order: the peer alone, or each hub's repository and then its fallback."""
    if peer:
        return [Source(f"{peer.rstrip('/')}/{target.name}", target.repo, target.revision, peer=True)]
    found = [Source(endpoint, target.repo, target.revision) for endpoint in hubs]
    if target.fallback_repo:
        # Every byte is hashed against the pinned manifest, so the fallback's branch may move without harm.
        found += [Source(endpoint, target.fallback_repo, "main") for endpoint in hubs]
    return found


def obtain(
    target: Target,
    hubs: Sequence[str],
    options: Options,
    *,
    peer: str | None = None,
    jobs: int = 4,
    prune: bool = False,
    reporter: Reporter | None = None,
) -> tuple[Manifest, Fetched]:
    """Fetch a target completely.

    Raises:
        SparkloomError: see `find_manifest` and `fetch`.
    """
    place = target.place()
    if place.cache is not None:
        raise SparkloomError(
            "this is a hub cache: it is verified in place but not written", file=place.cache,
            field="model.path",
            mend="set model.path to a folder of its own; a verified snapshot folder may be named as it is",
        )  # fmt: skip
    manifest, failures = find_manifest(target, hubs, options.token, peer)
    if reporter:
        for failure in failures:
            reporter.note(failure)
    sources = sources_of(target, hubs, peer)
    return manifest, fetch(
        manifest, place.folder, sources, options, jobs=jobs, prune=prune, reporter=reporter
    )
