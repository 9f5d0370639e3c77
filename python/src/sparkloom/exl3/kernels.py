"""Source of the encoder's inner step, written out per rate so that the compiler can vectorise it.

A step goes from position i to i + 1 of a tile. Position i adds `a` bits, the next one adds `b`. A path is
carried on by the low 16 - b bits of its state (its *edge*): 2^(16 - b) edges, each reached by 2^b states.
With R = 2^a, Q = 2^b and P = 2^(16 - a - b), a state is q * P * R + p * R + r and comes from edge q * P + p.

Two measures make this quick:

* Packed argmin: a path's cost is a positive float, and those order like their bit patterns. The branch q
  replaces the cost's lowest b bits, so one integer minimum gives both the cost and the branch.
* The innermost loop runs over the longer of p and r, over contiguous memory, with up to 16 branches
  written out in its body, so that the minimum stays in a register.
"""

from __future__ import annotations

from typing import NamedTuple

WHOLE = 16
"""Up to this many branches are written out at once."""
UNROLL = 8
"""Branches written out in a loop's body where there are more."""
NEVER = 0x7F000000
"""Bit pattern of a cost above any other (about 1.7e38)."""


class Shape(NamedTuple):
    """Sizes of one step; see the module's text."""

    r: int
    q: int
    p: int

    @property
    def along_p(self) -> bool:
        """Whether the innermost loop runs over p (codebook stored [r, q, p]) or over r ([q, p, r])."""
        return self.p >= self.r


def shape(a: int, b: int) -> Shape:
    """Sizes of the step from a position of `a` new bits to one of `b`."""
    return Shape(r=1 << a, q=1 << b, p=1 << (16 - a - b))


def place(a: int, b: int) -> str:
    """Python expression of where in `back` the branch into `edge` stands."""
    size = shape(a, b)
    return f"(edge & {size.r - 1}) * {size.p} + (edge >> {a})" if size.along_p else "edge"


def step_source(a: int, b: int) -> str:
    """Python source of `step(table, w, cost, new, back, tmp)`, to be compiled by numba.

    table: float32, the codebook laid out as `Shape.along_p` says; w: float32, the weight to hit;
    cost: float32[2^(16 - a)], of the edges before; new: int32[2^(16 - b)], packed cost and branch of the
    edges after; back: uint8[2^(16 - b)], the branches in the order of `place`; tmp: int32[r, p], scratch.
    """
    size = shape(a, b)
    body = _along_p(size) if size.along_p else _along_r(size)
    return "\n".join(["def step(table, w, cost, new, back, tmp):", *("    " + line for line in body), ""])


def _branches(size: Shape, cost: str, value: str, store: str) -> list[str]:
    """The unrolled body: lower `store` to the best of all branches, or of UNROLL from `first` on."""
    lines = []
    whole = size.q <= WHOLE
    for j in range(size.q if whole else UNROLL):
        q = str(j) if whole else f"first + {j}"
        lines.append(f"d = {value.format(q=q)} - w")
        packed = f"np.float32({cost.format(q=q, j=j)} + d * d).view(np.int32) & np.int32({-size.q})"
        lines.append(f"v = ({packed}) | np.int32({q})")
        if j == 0 and whole:
            lines.append("best = v")
            continue
        if j == 0:
            lines.append(f"best = {store}")
        lines.append("best = v if v < best else best")
    return [*lines, f"{store} = best"]


def _along_p(size: Shape) -> list[str]:
    r, q, p = size
    indent = " " * 4
    body = _branches(size, f"cost[({{q}}) * {p} + p]", "table[r, {q}, p]", "tmp[r, p]")
    body.append(f"back[r * {p} + p] = np.uint8(best & np.int32(255))")
    loop = [f"{indent}for p in range({p}):", *(indent * 2 + line for line in body)]
    lines = [f"for r in range({r}):"]
    if q > WHOLE:
        lines += [f"{indent}for p in range({p}):", f"{indent * 2}tmp[r, p] = {NEVER}"]
        lines += [f"{indent}for first in range(0, {q}, {UNROLL}):", *(indent + line for line in loop)]
    else:
        lines += loop
    # From [r][p] to the natural order of edges, two at a time: costs are positive, so two fit into one word
    # as they are (little-endian).
    return [
        *lines,
        "pairs = new.view(np.int64)",
        f"for p in range({p}):",
        *(
            f"{indent}pairs[p * {r // 2} + {h}] = np.int64(tmp[{2 * h}, p])"
            f" | (np.int64(tmp[{2 * h + 1}, p]) << 32)"
            for h in range(r // 2)
        ),
    ]


def _along_r(size: Shape) -> list[str]:
    r, q, p = size
    indent = " " * 4
    body = _branches(size, "c{j}", "table[{q}, p, r]", f"new[p * {r} + r]")
    return [
        f"for e in range({p * r}):",
        f"{indent}new[e] = {NEVER}",
        f"for p in range({p}):",
        f"{indent}for first in range(0, {q}, {UNROLL}):",
        *(f"{indent * 2}c{j} = cost[(first + {j}) * {p} + p]" for j in range(UNROLL)),
        f"{indent * 2}for r in range({r}):",
        *(indent * 3 + line for line in body),
        f"for e in range({p * r}):",
        f"{indent}back[e] = np.uint8(new[e] & np.int32(255))",
    ]
