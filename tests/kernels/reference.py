"""Slow, plain reference of the EXL3 format in torch (any device), written from the format alone."""

from __future__ import annotations

import numpy as np
import torch

MULTIPLIER = {"3inst": 89226354, "mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}


def codebook(name: str) -> np.ndarray:
    """All 65,536 values, float16."""
    s = np.arange(65536, dtype=np.uint64)
    p = ((s * MULTIPLIER[name] + (64248484 if name == "3inst" else 0)) & 0xFFFFFFFF).astype(np.uint32)
    if name == "mul1":
        total = sum((p >> (8 * i)) & 255 for i in range(4))
        scale, shift = np.array([0x1EEE, 0xC931], np.uint16).view(np.float16).astype(np.float64)
        return ((1024.0 + total) * scale + shift).astype(np.float16)
    p = (p & 0x8FFF8FFF) ^ 0x3B603B60
    halves = np.stack([p & 0xFFFF, p >> 16], -1).astype(np.uint16).view(np.float16)
    return (halves[:, 0].astype(np.float32) + halves[:, 1].astype(np.float32)).astype(np.float16)


def decode(trellis: torch.Tensor, name: str) -> torch.Tensor:
    """int16 [..., k/16, n/16, 16 K] -> float16 [..., k, n], rotated basis."""
    bits = trellis.shape[-1] // 16
    device = trellis.device
    words = trellis.to(torch.int64) & 0xFFFF
    words = words.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)  # the high half of each pair first
    position = torch.arange(256, device=device)
    state = torch.zeros(*trellis.shape[:-1], 256, dtype=torch.int64, device=device)
    for b in range(16):
        at = ((position + 1) * bits - 16 + b) % (256 * bits)
        state = state * 2 + ((words[..., at // 16] >> (15 - at % 16)) & 1)
    values = torch.from_numpy(codebook(name)).to(device)[state]
    lane, j = position >> 3, position & 7
    row = 2 * (lane & 3) + (j & 1) + 8 * ((j >> 1) & 1)
    column = (lane >> 2) + 8 * ((j >> 2) & 1)
    tile = torch.empty_like(values)
    tile[..., row * 16 + column] = values
    tile = tile.unflatten(-1, (16, 16)).movedim(-2, -3)
    return tile.flatten(-2).flatten(-3, -2)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Blocks of 128 of the last dimension, float64."""
    h = torch.ones(1, 1, dtype=torch.float64, device=x.device)
    for _ in range(7):
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return (x.double().unflatten(-1, (-1, 128)) @ (h / 128**0.5)).flatten(-2)


def _rotate(x: torch.Tensor, suh: torch.Tensor) -> torch.Tensor:
    return hadamard(x.half() * suh).half().double()


def linear(
    x: torch.Tensor,
    trellis: torch.Tensor,
    suh: torch.Tensor,
    svh: torch.Tensor,
    name: str,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Staged forward with the format's rounding points; float64."""
    y = hadamard(_rotate(x, suh) @ decode(trellis, name).double()) * svh.double()
    return y if bias is None else y + bias.double()


def expert(
    x: torch.Tensor, w: dict[str, torch.Tensor], e: int, names: tuple[str, str], limit: float | None
) -> torch.Tensor:
    """One expert on x [rows, H]; float64."""
    gate, up = (
        linear(x, w["w13_trellis"][e, i], w["w13_suh"][e, i], w["w13_svh"][e, i], names[0]) for i in range(2)
    )
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    act = (gate * torch.sigmoid(gate) * up).half()
    return linear(act, w["w2_trellis"][e], w["w2_suh"][e], w["w2_svh"][e], names[1])


def moe(
    x: torch.Tensor,
    w: dict[str, torch.Tensor],
    weights: torch.Tensor,
    ids: torch.Tensor,
    names: tuple[str, str] = ("mcg", "mcg"),
    limit: float | None = None,
) -> torch.Tensor:
    """Weighted sum over the chosen experts; ids are local, negative ones are skipped. float64 [T, H]."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for e in ids.unique().tolist():
        if e < 0:
            continue
        token, slot = (ids == e).nonzero(as_tuple=True)
        y = expert(x[token], w, e, names, limit) * weights[token, slot, None].double()
        out.index_add_(0, token, y)
    return out


def random_linear(
    k: int, n: int, bits: int, lead: tuple[int, ...] = (), device: str = "cpu"
) -> tuple[torch.Tensor, ...]:
    """Random bits are a valid trellis; scales keep outputs near unit size."""
    trellis = torch.randint(
        -32768, 32768, (*lead, k // 16, n // 16, 16 * bits), dtype=torch.int16, device=device
    )

    def scale(*shape: int, size: float = 1.0) -> torch.Tensor:
        sign = torch.randint(0, 2, shape, device=device) * 2 - 1
        return (sign * (0.5 + torch.rand(shape, device=device)) * size).half()

    return trellis, scale(*lead, k, size=1 / (1.24 * k**0.5)), scale(*lead, n)


def random_experts(
    count: int, hidden: int, inter: int, bits13: int, bits2: int, shared: bool = True, device: str = "cpu"
) -> dict[str, torch.Tensor]:
    """Stacked weights of one MoE layer."""
    t13, u13, v13 = random_linear(hidden, inter, bits13, (count, 2), device)
    t2, u2, v2 = random_linear(inter, hidden, bits2, (count,), device)
    if shared:
        u13[:, 1] = u13[:, 0]
    return {"w13_trellis": t13, "w13_suh": u13, "w13_svh": v13, "w2_trellis": t2, "w2_suh": u2, "w2_svh": v2}


def error(got: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """(relative RMS, largest error in units of the reference's RMS)."""
    d, rms = got.double() - want, want.square().mean().sqrt()
    return float(d.square().mean().sqrt() / rms), float(d.abs().max() / rms)
