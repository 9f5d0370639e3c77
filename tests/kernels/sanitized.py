"""One small call of every kernel, for `compute-sanitizer` (test_sanitizer.py). Not a test itself."""

from __future__ import annotations

import reference as ref
import torch

from sparkloom.kernels import ops


def main() -> None:
    torch.manual_seed(20)
    for shared in (True, False):
        w = ref.random_experts(3, 256, 128, 4, 4, shared, "cuda")
        layer = ops.Experts(**w, limit=10.0)
        for tokens, path in ((5, "decode"), (30, "decode"), (30, "prefill"), (150, "prefill")):
            x = torch.randn(tokens, 256, device="cuda").bfloat16()
            ids = torch.randint(-1, 3, (tokens, 2), dtype=torch.int32, device="cuda")
            weights = torch.rand(tokens, 2, device="cuda")
            out = torch.full(x.shape, float("nan"), device="cuda")
            ops.moe(x, layer, weights, ids, path=path, out=out)
            rms, _ = ref.error(out, ref.moe(x, w, weights, ids, limit=10.0))
            assert rms <= 2e-3, (path, tokens, rms)
    trellis, suh, svh = ref.random_linear(256, 384, 4, (), "cuda")
    for rows in (3, 20, 100):
        x = torch.randn(rows, 256, device="cuda").half()
        got = ops.linear(x, trellis, suh, svh, out=torch.full((rows, 384), float("nan"), device="cuda"))
        rms, _ = ref.error(got, ref.linear(x, trellis, suh, svh, "mcg"))
        assert rms <= 2e-3, (rows, rms)
    assert torch.equal(ops.reconstruct(trellis), ref.decode(trellis, "mcg"))
    ops.hadamard(torch.randn(3, 256, device="cuda"))
    torch.cuda.synchronize()
    print("every kernel ran")


if __name__ == "__main__":
    main()
