"""The ops as torch sees them: schemas, fakes, refusals."""

from __future__ import annotations

import pytest
import reference as ref
import torch

from sparkloom.errors import SparkloomError
from sparkloom.kernels import ops

pytestmark = pytest.mark.gpu


def small() -> tuple[torch.Tensor, ops.Experts, torch.Tensor, torch.Tensor]:
    w = ref.random_experts(4, 256, 128, 4, 4, device="cuda")
    x = torch.randn(5, 256, device="cuda").bfloat16()
    ids = torch.randint(0, 4, (5, 2), dtype=torch.int32, device="cuda")
    return x, ops.Experts(**w), torch.rand(5, 2, device="cuda"), ids


def test_opcheck() -> None:
    x, w, weights, ids = small()
    op = torch.ops.sparkloom_exl3
    space = torch.zeros(w.workspace_bytes(5, 2), dtype=torch.uint8, device="cuda")
    packed = (w.w13_trellis, w.w13_suh, w.w13_svh, w.w2_trellis, w.w2_suh, w.w2_svh)
    tests = ("test_schema", "test_faketensor")
    arguments = (x, *packed, weights, ids, None, space, torch.empty_like(x), 1, 1, 10.0, True, 0)
    torch.library.opcheck(op.moe.default, arguments, test_utils=tests)
    trellis, suh, svh = w.w2_trellis[0], w.w2_suh[0], w.w2_svh[0]
    y = torch.empty(5, 128, device="cuda").half()
    space = torch.zeros(ops.linear_workspace_bytes(5, 128, 256), dtype=torch.uint8, device="cuda")
    arguments = (y, trellis, suh, svh, None, space, torch.empty(5, 256, device="cuda"), 1, 0)
    torch.library.opcheck(op.linear.default, arguments, test_utils=tests)
    torch.library.opcheck(
        op.reconstruct.default, (trellis, torch.empty(128, 256, device="cuda").half(), 1), test_utils=tests
    )
    torch.library.opcheck(op.hadamard.default, (x, None, None, torch.empty_like(x)), test_utils=tests)
    header, items, slots = (
        torch.empty(shape, dtype=torch.int32, device="cuda") for shape in ((4,), (16, 4), (10,))
    )
    torch.library.opcheck(op.route.default, (ids, None, 4, 16, header, items, slots), test_utils=tests)


def test_refusals_name_the_tensor() -> None:
    x, w, weights, ids = small()
    packed = {
        k: getattr(w, k) for k in ("w13_trellis", "w13_suh", "w13_svh", "w2_trellis", "w2_suh", "w2_svh")
    }
    odd = torch.empty(5 * 256 + 1, dtype=torch.bfloat16, device="cuda")[1:].view(5, 256)
    calls = {
        "x": [
            lambda: ops.moe(x.cpu(), w, weights, ids),
            lambda: ops.moe(x[:, :128].contiguous(), w, weights, ids),
            lambda: ops.moe(x.to(torch.int32), w, weights, ids),
            lambda: ops.moe(odd, w, weights, ids),
            lambda: ops.moe(x.repeat(20, 1), w, weights.repeat(20, 1), ids.repeat(20, 1), path="decode"),
        ],
        "ids": [lambda: ops.moe(x, w, weights, ids.long()), lambda: ops.moe(x, w, weights, ids[:3])],
        "weights": [
            lambda: ops.moe(x, w, weights.half(), ids),
            lambda: ops.moe(x, w, torch.empty(11, device="cuda")[1:].view(5, 2), ids),
        ],
        "workspace": [
            lambda: ops.moe(x, w, weights, ids, workspace=torch.empty(16, dtype=torch.uint8, device="cuda"))
        ],
        "w13_suh": [lambda: ops.Experts(**{**packed, "w13_suh": w.w13_suh.float()})],
        "w2_trellis": [
            lambda: ops.Experts(**{**packed, "w2_trellis": w.w2_trellis[:, :4].contiguous()}),
            lambda: ops.Experts(**{**packed, "w2_trellis": w.w2_trellis[..., :48].contiguous()[..., :40]}),
        ],
        "codebook": [lambda: ops.Experts(**packed, codebook13="mcp")],
    }
    for name, tries in calls.items():
        for call in tries:
            with pytest.raises(SparkloomError) as caught:
                call()
            assert caught.value.field == name
