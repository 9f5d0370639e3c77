"""What is served: the checkpoint and the drafter beside it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from sparkloom.cluster.base import AbsolutePath, Section

Repo = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[\w.-]+$", max_length=200)]
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]

GLM_REPO = "Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw"
GLM_REVISION = "25a44fdbf16862a46b7cc9921142c6c81350af2f"
DRAFT_REPO = "incoai/GLM-5.3-Flash-DFlash2"
DRAFT_REVISION = "dc77ff1c99eeb2df044ee3d4f0094eb033fee410"


class Geometry(StrEnum):
    """Which model geometry the planner computes with."""

    glm_flash = "glm-5.3-flash"
    checkpoint = "checkpoint"


class Model(Section):
    """The checkpoint."""

    repo: Repo = GLM_REPO
    """Repository on the model hub, OWNER/NAME."""
    revision: Revision = GLM_REVISION
    """Commit of the repository, all 40 digits. Branch and tag names move and are refused."""
    fallback_repo: Repo | None = None
    """Repository with the same bytes that is asked when the first one fails."""
    path: AbsolutePath = "/var/lib/sparkloom/models/glm-5.3-flash-exl3"
    """Folder of the checkpoint on every node."""
    manifest: AbsolutePath | None = None
    """Manifest with size and sha256 of every file. null: PATH/sparkloom-manifest.json when it exists."""
    served_name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\w./:-]+$")] = (
        "GLM-5.3-Flash-EXL3"
    )
    """Model id that clients send (--served-model-name)."""
    quantization: Annotated[str, Field(pattern="^(exl3|none)$")] = "exl3"
    """`exl3`: the plug-in's method. `none`: an unquantised checkpoint."""
    geometry: Geometry = Geometry.glm_flash
    """Geometry for the memory plan: `glm-5.3-flash`, or `checkpoint` to read config.json in `path` (other
    models)."""
    chat_template: AbsolutePath | None = None
    """Jinja file that replaces the checkpoint's chat template. null: the checkpoint's own."""


class DrafterKind(StrEnum):
    """Who proposes tokens for the speculative decoding."""

    dflash2 = "dflash2"
    mtp = "mtp"
    none = "none"


class Drafter(Section):
    """Speculative decoding."""

    kind: DrafterKind | None = None
    """`dflash2` (fastest; weights are CC BY-NC-ND 4.0, non-commercial), `mtp` (the model's own block) or
    `none`. null: the profile's, else `mtp`."""
    accept_non_commercial_licence: bool = False
    """Must be true for `dflash2`: you have read CC BY-NC-ND 4.0 and your use is non-commercial."""
    repo: Repo = DRAFT_REPO
    """Repository of the DFlash2 weights."""
    revision: Revision = DRAFT_REVISION
    """Commit of the DFlash2 repository, all 40 digits."""
    path: AbsolutePath = "/var/lib/sparkloom/models/glm-5.3-flash-dflash2"
    """Folder of the DFlash2 weights on every node."""
    tokens: Annotated[int, Field(ge=1, le=15)] | None = None
    """Proposed tokens per step (num_speculative_tokens). null: 7 for dflash2 (what it was trained for), 2
    for mtp."""
    kv_cache_dtype: Annotated[str, Field(pattern="^[a-z0-9_]+$")] = "auto"
    """KV data type of the DFlash2 drafter. Only `auto` works on sm_12x: without its own key it would
    inherit fp8_ds_mla."""
    attention_backend: Annotated[str, Field(pattern="^[A-Z0-9_]+$")] | None = None
    """Attention backend of the drafter. null: vLLM chooses. TRITON_ATTN is refused (causal there,
    acceptance collapses)."""
    probabilistic: bool = True
    """Sample drafts from the drafter's distribution instead of its argmax; better acceptance at
    temperature above 0, costs some memory."""
