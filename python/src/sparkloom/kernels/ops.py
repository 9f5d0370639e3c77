"""The checked Python API. Every function works on the current stream and can be captured into a CUDA graph
as long as the caller passes `out` and `workspace`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from sparkloom.kernels import checks
from sparkloom.kernels.loader import load

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
Path = Literal["auto", "decode", "prefill"]
PATHS = {"auto": 0, "decode": 1, "prefill": 2}
DECODE_ROWS = 64


@dataclass(frozen=True)
class Experts:
    """One MoE layer's stacked weights, checked once at construction. K = bits.

    Args:
        w13_trellis: int16 [E, 2, H/16, I/16, 16*K13], gate at 0 and up at 1.
        w13_suh: float16 [E, 2, H]. w13_svh: float16 [E, 2, I].
        w2_trellis: int16 [E, I/16, H/16, 16*K2]. w2_suh: float16 [E, I]. w2_svh: float16 [E, H].
        codebook13, codebook2: "3inst", "mcg" or "mul1".
        limit: SwiGLU clamp, None for none.
        shared_suh: gate and up have equal input scales; None finds out (synchronises once).

    Raises:
        SparkloomError: a tensor breaks a rule; it names both.
    """

    w13_trellis: torch.Tensor
    w13_suh: torch.Tensor
    w13_svh: torch.Tensor
    w2_trellis: torch.Tensor
    w2_suh: torch.Tensor
    w2_svh: torch.Tensor
    codebook13: str = "mcg"
    codebook2: str = "mcg"
    limit: float | None = None
    shared_suh: bool | None = None
    count: int = field(init=False)
    hidden: int = field(init=False)
    inter: int = field(init=False)
    bits13: int = field(init=False)
    bits2: int = field(init=False)

    def __post_init__(self) -> None:
        hidden, inter, bits13 = checks.trellis("w13_trellis", self.w13_trellis, 2)
        k, n, bits2 = checks.trellis("w2_trellis", self.w2_trellis, 1)
        count = self.w2_trellis.shape[0]
        if tuple(self.w13_trellis.shape[:2]) != (count, 2):
            raise checks.fail("w13_trellis", f"must begin with [{count}, 2]", list(self.w13_trellis.shape))
        if (k, n) != (inter, hidden):
            raise checks.fail("w2_trellis", f"must be {inter} x {hidden}", [k, n])
        if not 0 < count <= 1024:
            raise checks.fail("w2_trellis", "must hold 1 to 1024 experts", count)
        half = (torch.float16,)
        checks.tensor("w13_suh", self.w13_suh, half, (count, 2, hidden))
        checks.tensor("w13_svh", self.w13_svh, half, (count, 2, inter))
        checks.tensor("w2_suh", self.w2_suh, half, (count, inter))
        checks.tensor("w2_svh", self.w2_svh, half, (count, hidden))
        checks.codebook(self.codebook13)
        checks.codebook(self.codebook2)
        shared = self.shared_suh
        if shared is None:
            shared = bool(torch.equal(self.w13_suh[:, 0], self.w13_suh[:, 1]))
        for name, value in {
            "shared_suh": shared,
            "count": count,
            "hidden": hidden,
            "inter": inter,
            "bits13": bits13,
            "bits2": bits2,
        }.items():
            object.__setattr__(self, name, value)

    def workspace_bytes(self, tokens: int, top_k: int) -> int:
        """Scratch for any call with up to `tokens` rows."""
        size = load().sparkloom_exl3_moe_workspace(
            tokens,
            top_k,
            self.count,
            self.hidden,
            self.inter,
            self.bits13,
            self.bits2,
            checks.codebook(self.codebook13),
            checks.codebook(self.codebook2),
            int(bool(self.shared_suh)),
            0,
        )
        return int(size)


def moe(
    x: torch.Tensor,
    experts: Experts,
    weights: torch.Tensor,
    ids: torch.Tensor,
    *,
    expert_map: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    path: Path = "auto",
) -> torch.Tensor:
    """Sum over k of weights[t, k] * expert[ids[t, k]](x[t]).

    Args:
        x: [T, H] float16, bfloat16 or float32.
        weights: float32 [T, top_k]. ids: int32 [T, top_k]; a negative id, or one that `expert_map` sends to
            -1, is served elsewhere.
        expert_map: int32 [global experts] -> local number or -1.
        workspace: uint8, at least `experts.workspace_bytes(T, top_k)`. out: [T, H], any of the three dtypes.
        path: "decode" (T <= 64), "prefill", or "auto" by T alone.

    Raises:
        SparkloomError: a tensor breaks a rule; nothing was launched.
    """
    load()
    checks.tensor("x", x, FLOATS)
    if x.dim() != 2 or x.shape[1] != experts.hidden:
        raise checks.fail("x", f"must be [tokens, {experts.hidden}]", list(x.shape))
    tokens = x.shape[0]
    checks.tensor("ids", ids, (torch.int32,))
    if ids.dim() != 2 or ids.shape[0] != tokens or ids.shape[1] < 1:
        raise checks.fail("ids", f"must be [{tokens}, top_k]", list(ids.shape))
    top_k = ids.shape[1]
    checks.tensor("weights", weights, (torch.float32,), (tokens, top_k))
    if expert_map is not None:
        checks.tensor("expert_map", expert_map, (torch.int32,))
    if path == "decode" and tokens > DECODE_ROWS:
        raise checks.fail("x", f"must have at most {DECODE_ROWS} rows for the decode path", tokens)
    if out is None:
        out = torch.empty_like(x)
    else:
        checks.tensor("out", out, FLOATS, tuple(x.shape))
    need = experts.workspace_bytes(tokens, top_k)
    if workspace is None:
        workspace = torch.empty(need, dtype=torch.uint8, device=x.device)
    else:
        checks.tensor("workspace", workspace, (torch.uint8,))
        if workspace.numel() < need:
            raise checks.fail("workspace", f"must have at least {need} bytes", workspace.numel())
    torch.ops.sparkloom_exl3.moe(
        x,
        experts.w13_trellis,
        experts.w13_suh,
        experts.w13_svh,
        experts.w2_trellis,
        experts.w2_suh,
        experts.w2_svh,
        weights,
        ids,
        expert_map,
        workspace,
        out,
        checks.codebook(experts.codebook13),
        checks.codebook(experts.codebook2),
        0.0 if experts.limit is None else experts.limit,
        bool(experts.shared_suh),
        PATHS[path],
    )
    return out


def linear_workspace_bytes(rows: int, k: int, n: int) -> int:
    """Scratch for any `linear` call with up to `rows` rows."""
    return int(load().sparkloom_exl3_linear_workspace(rows, k, n, 0))


def linear(
    x: torch.Tensor,
    trellis: torch.Tensor,
    suh: torch.Tensor,
    svh: torch.Tensor,
    *,
    codebook: str = "mcg",
    bias: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    path: Path = "auto",
) -> torch.Tensor:
    """x [rows, k] times the EXL3 matrix [k, n]: trellis int16 [k/16, n/16, 16*K], suh, svh, bias float16.

    Raises:
        SparkloomError: a tensor breaks a rule; nothing was launched.
    """
    load()
    k, n, _ = checks.trellis("trellis", trellis, 0)
    checks.tensor("x", x, FLOATS)
    if x.dim() != 2 or x.shape[1] != k:
        raise checks.fail("x", f"must be [rows, {k}]", list(x.shape))
    half = (torch.float16,)
    checks.tensor("suh", suh, half, (k,))
    checks.tensor("svh", svh, half, (n,))
    if bias is not None:
        checks.tensor("bias", bias, half, (n,))
    rows = x.shape[0]
    if path == "decode" and rows > DECODE_ROWS:
        raise checks.fail("x", f"must have at most {DECODE_ROWS} rows for the decode path", rows)
    if out is None:
        out = torch.empty(rows, n, dtype=x.dtype, device=x.device)
    else:
        checks.tensor("out", out, FLOATS, (rows, n))
    need = linear_workspace_bytes(rows, k, n)
    if workspace is None:
        workspace = torch.empty(need, dtype=torch.uint8, device=x.device)
    else:
        checks.tensor("workspace", workspace, (torch.uint8,))
        if workspace.numel() < need:
            raise checks.fail("workspace", f"must have at least {need} bytes", workspace.numel())
    torch.ops.sparkloom_exl3.linear(
        x, trellis, suh, svh, bias, workspace, out, checks.codebook(codebook), PATHS[path]
    )
    return out


def reconstruct(
    trellis: torch.Tensor, codebook: str = "mcg", dtype: torch.dtype = torch.float16
) -> torch.Tensor:
    """Packed [..., k/16, n/16, 16*K] -> weights [..., k, n] in the rotated basis, bit-exact in float16."""
    load()
    stack = trellis.dim() - 3
    if stack < 0:
        raise checks.fail("trellis", "must be [..., k/16, n/16, 16 * bits]", list(trellis.shape))
    k, n, _ = checks.trellis("trellis", trellis, stack)
    if dtype not in FLOATS:
        raise checks.fail("dtype", "must be float16, bfloat16 or float32", str(dtype))
    out = torch.empty(*trellis.shape[:stack], k, n, dtype=dtype, device=trellis.device)
    torch.ops.sparkloom_exl3.reconstruct(trellis, out, checks.codebook(codebook))
    return out


def hadamard(
    x: torch.Tensor,
    before: torch.Tensor | None = None,
    after: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """(x * before) in blocks of 128 times H / sqrt(128), times `after`. Scales are float16 [n]."""
    load()
    checks.tensor("x", x, FLOATS)
    n = x.shape[-1]
    if n % checks.BLOCK:
        raise checks.fail("x", f"must have a last dimension of a multiple of {checks.BLOCK}", n)
    for name, scale in (("before", before), ("after", after)):
        if scale is not None:
            checks.tensor(name, scale, (torch.float16,), (n,))
    out = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    torch.ops.sparkloom_exl3.hadamard(x, before, after, out)
    return out


def encode_tiles(
    weights: torch.Tensor, bits: float, codebook: torch.Tensor, *, window: int = 32
) -> torch.Tensor:
    """Search the nearest ring of states for every tile, as the CPU encoder does, and pack it.

    Args:
        weights: float32 [tiles, 256] in ring order, finite, scaled to the codebook.
        bits: one of `checks.ENCODE_BITS`.
        codebook: float16 [65536], the value of every state.
        window: positions on each side of the seam in the first pass, even, 2 to 128.

    Returns:
        int16 [tiles, 16 * bits].

    Raises:
        SparkloomError: a tensor breaks a rule, or a path did not close (a value is not finite).
    """
    library = load()
    if bits not in checks.ENCODE_BITS:
        raise checks.fail("bits", f"must be one of {list(checks.ENCODE_BITS)}", bits)
    checks.tensor("weights", weights, (torch.float32,))
    if weights.dim() != 2 or weights.shape[1] != 256:
        raise checks.fail("weights", "must be [tiles, 256]", list(weights.shape))
    checks.tensor("codebook", codebook, (torch.float16,), (65536,))
    if window not in range(2, 129, 2):
        raise checks.fail("window", "must be even, 2 to 128", window)
    tiles, half_bits, device = weights.shape[0], round(2 * bits), weights.device
    out = torch.empty(tiles, 8 * half_bits, dtype=torch.int16, device=device)
    failed = torch.zeros(1, dtype=torch.int32, device=device)
    need = int(library.sparkloom_exl3_encode_workspace(half_bits, tiles, 0))
    workspace = torch.empty(need, dtype=torch.uint8, device=device)
    torch.ops.sparkloom_exl3.encode_tiles(weights, codebook, workspace, out, failed, half_bits, window)
    if count := int(failed.item()):
        raise checks.fail("weights", "hold tiles whose path does not close; are they finite?", count)
    return out
