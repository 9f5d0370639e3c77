"""Blocker 8: the attention asks for the fused q/kv norm, a Triton kernel.

Upstream: `Glm5NextMLAAttention` passes `fuse_qkv_rmsnorm=True` to the MLA wrapper without asking whether
there is Triton. The wrapper has the two plain norms as well; ask for those.
"""

from __future__ import annotations

from typing import Any


def apply() -> None:
    """Build MLA wrappers with the plain norms."""
    import vllm.models.glm5next.common.attention as upstream

    wrapper = upstream.MultiHeadLatentAttentionWrapper
    build = wrapper.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["fuse_qkv_rmsnorm"] = False
        build(self, *args, **kwargs)

    wrapper.__init__ = init
