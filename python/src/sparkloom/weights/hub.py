"""Resolve a pinned revision on a model hub: which files, how large, with which hashes."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sparkloom.errors import Exit, SparkloomError
from sparkloom.weights.manifest import FileEntry, Manifest, make_manifest, safe_path

DEFAULT_ENDPOINT = "https://huggingface.co"
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Source:
    """One place that files can be fetched from.

    Args:
        endpoint: the hub's address, or the address of another node's `weights serve`.
        repo: OWNER/NAME.
        revision: what to ask for; for a fallback repository a branch is enough, since every byte is hashed.
        peer: whether it is another node's share instead of a hub.
    """

    endpoint: str
    repo: str
    revision: str
    peer: bool = False

    def url(self, path: str) -> str:
        """Address of one file."""
        base = self.endpoint.rstrip("/")
        if self.peer:
            return f"{base}/files/{quote(path)}"
        return f"{base}/{self.repo}/resolve/{quote(self.revision, safe='')}/{quote(path)}"

    @property
    def label(self) -> str:
        """The source in messages."""
        return f"{self.endpoint} {'' if self.peer else self.repo}".strip()


def endpoints(mirror: str | None) -> list[str]:
    """The mirror (given, or HF_ENDPOINT) and then the hub itself."""
    first = mirror or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
    return list(dict.fromkeys([first.rstrip("/"), DEFAULT_ENDPOINT]))


def read_token(file: Path | None) -> str | None:
    """The access token from a file, else from where the hub's own client keeps it; never an argument.

    Raises:
        SparkloomError: the file cannot be read or is empty.
    """
    if file is None:
        from huggingface_hub import get_token

        return get_token()
    try:
        lines = file.read_text("utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise SparkloomError(
            f"cannot read the token file: {reason}", file=file,
            mend="name a file whose first word is the token", code=Exit.RESOURCE,
        ) from None  # fmt: skip
    if not lines:
        raise SparkloomError("the token file is empty", file=file, mend="put the token on its first line")
    return lines[0]


def check_revision(revision: str) -> None:
    """Refuse anything that can move.

    Raises:
        SparkloomError: not a full commit id.
    """
    if not _COMMIT.fullmatch(revision):
        raise SparkloomError(
            "not a pinned revision", field="revision", value=revision,
            mend="give all 40 digits of a commit; branches and tags move", code=Exit.USAGE,
        )  # fmt: skip


def resolve(source: Source, token: str | None, timeout_s: float = 30.0) -> Manifest:
    """The manifest of a pinned revision from the hub's published sizes and ids.

    Raises:
        SparkloomError: the hub can not be reached, has no such revision, wants a login, or answers nonsense.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    check_revision(source.revision)
    api = HfApi(endpoint=source.endpoint, token=token or False)
    where = f"{source.repo} at {source.revision} on {source.endpoint}"
    try:
        info = api.model_info(source.repo, revision=source.revision, files_metadata=True, timeout=timeout_s)
    except GatedRepoError:
        raise _hub(f"{source.repo} is gated", "accept its terms on the hub and give --token-file") from None
    except RevisionNotFoundError:
        raise _hub(
            f"the hub does not have {where}", "correct model.revision; it may have been deleted"
        ) from None
    except RepositoryNotFoundError:
        mend = "correct model.repo, or give --token-file for a private one"
        raise _hub(f"the hub does not have {where}", mend) from None
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "?")
        raise _hub(
            f"the hub answered {status} for {where}", "try again later, or --endpoint MIRROR"
        ) from None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".replace(token or "\0", "TOKEN")
        mend = "check the network, give --endpoint MIRROR, or use an offline bundle"
        raise _hub(f"cannot ask the hub for {where}", mend, reason[:300]) from None
    if info.sha is not None and info.sha != source.revision:
        raise _hub(f"asked for {source.revision}, the hub answered with {info.sha}", "use another endpoint")
    entries = []
    for sibling in info.siblings or []:
        if not safe_path(sibling.rfilename):
            raise _hub(f"the hub lists an unsafe path: {sibling.rfilename!r}", "use another endpoint")
        lfs = sibling.lfs
        size = lfs.size if lfs is not None else sibling.size
        if size is None:
            raise _hub(f"the hub does not tell the size of {sibling.rfilename}", "use another endpoint")
        entries.append(
            FileEntry(
                sibling.rfilename,
                size,
                sha256=lfs.sha256 if lfs is not None else None,
                git_sha1=sibling.blob_id if lfs is None else None,
            )
        )
    if not entries:
        raise _hub(f"the hub lists no file for {where}", "use another endpoint")
    return make_manifest(source.repo, source.revision, entries)


def _hub(summary: str, mend: str, detail: str = "") -> SparkloomError:
    return SparkloomError(summary, mend=mend, detail=detail, code=Exit.NETWORK)
