"""Tail-biting Viterbi search: the ring of states whose codebook values come nearest to a tile's weights.

Two passes per tile. The first runs over a window round the ring's seam with a free start and finds the edge
that the best path has there. The second goes once round the ring with that edge at both ends.
Compiled by numba, one module per rate, kept in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
import threading
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom.errors import Exit, SparkloomError
from sparkloom.exl3.codebooks import check_codebook, codebook
from sparkloom.exl3.kernels import place, shape, step_source
from sparkloom.exl3.rates import TILE_SIZE, check_bits, widths

WINDOW = 32
"""Positions on each side of the seam in the first pass; with the whole ring (128) the error is 1 % less."""
CHUNK = 16
"""Tiles that a thread takes at a time: some 50 ms of work, so a slow core holds nobody up."""

Progress = Callable[[int, int], None]
"""Called with (tiles done, tiles in all), from any thread but never from two at once."""

_SOLVE = '''
def relieve(cost):
    """Subtract the least cost, so that the packed branch bits cost no precision."""
    least = cost[0]
    for e in range(1, cost.size):
        least = min(least, cost[e])
    for e in range(cost.size):
        cost[e] -= least


def cheapest(cost):
    edge = 0
    for e in range(1, cost.size):
        if cost[e] < cost[edge]:
            edge = e
    return edge


def solve(even_table, odd_table, weights, out, window):
    """Fill out, uint16[T, 256], with the states for weights, float32[T, 256]; return how many failed."""
    even = np.empty({even}, np.float32)  # costs of the edges before even positions
    odd = np.empty({odd}, np.float32)
    back = np.empty((256, max({even}, {odd})), np.uint8)
    tmp_even, tmp_odd = np.empty(({r0}, {p}), np.int32), np.empty(({r1}, {p}), np.int32)
    spare = np.empty({even}, np.float32)
    failed = 0
    for t in range(weights.shape[0]):
        entry = -1
        for whole in range(2):
            start, steps = (0, 256) if whole else (256 - window, 2 * window)
            if whole:
                even[:] = 1e30
                even[entry] = 0.0
            else:
                even[:] = 0.0
            for i in range(0, steps, 2):
                at = (start + i) & 255
                step_even(even_table, weights[t, at], even, odd.view(np.int32), back[at], tmp_even)
                step_odd(odd_table, weights[t, at + 1], odd, spare.view(np.int32), back[at + 1], tmp_odd)
                even, spare = spare, even
                if (i & {relief}) == 0:
                    relieve(even)
            edge = entry if whole else cheapest(even)
            for i in range(steps - 1, -1, -1):
                at = (start + i) & 255
                if at & 1:
                    state = ((np.int64(back[at, {place_odd}]) & {mask0}) << {carry0}) | edge
                    edge = state >> {b}
                else:
                    state = ((np.int64(back[at, {place_even}]) & {mask1}) << {carry1}) | edge
                    edge = state >> {a}
                if whole:
                    out[t, at] = state
                elif at == 0:
                    break
            if whole:
                failed += edge != entry
            else:
                entry = edge
    return failed
'''


def module_source(bits: int | float) -> str:
    """Python source of `solve` and what it calls, for one rate."""
    a, b = (int(w) for w in widths(bits)[:2])
    even, odd = shape(a, b), shape(b, a)
    solve = _SOLVE.format(
        a=a,
        b=b,
        p=even.p,
        r0=even.r,
        r1=odd.r,
        place_even=place(a, b),
        place_odd=place(b, a),
        even=1 << (16 - a),
        odd=1 << (16 - b),
        carry0=16 - a,
        carry1=16 - b,
        mask0=(1 << a) - 1,
        mask1=(1 << b) - 1,
        relief=31 if bits < 4 else 7,
    )
    steps = [step_source(a, b).replace("def step(", "def step_even(")]
    if a != b:
        steps.append(step_source(b, a).replace("def step(", "def step_odd("))
    return "\n\n".join(["import numpy as np", *steps, solve])


def cache_dir() -> Path:
    """Folder of compiled encoders, below `$SPARKLOOM_CACHE`, `$XDG_CACHE_HOME/sparkloom` or its default."""
    own = os.environ.get("SPARKLOOM_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkloom"
    return (Path(own) if own else base) / "exl3"


def _source_file(name: str, source: str) -> Path | None:
    """The source's file in the cache folder (numba keeps code beside it), or None if that is read-only."""
    path = cache_dir() / f"{name}.py"
    try:
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            part = path.with_suffix(f".{os.getpid()}.part")
            part.write_text(source)
            part.replace(path)
        return path if os.access(path.parent, os.W_OK) else None
    except OSError:
        return None


_compiling = threading.Lock()


def solver(bits: int | float) -> Callable[..., int]:
    """The compiled `solve` of one rate (see its docstring); compiled in seconds, once per machine."""
    with _compiling:
        return _solver(check_bits(bits))


@cache
def _solver(bits: int | float) -> Callable[..., int]:
    source = module_source(bits)
    try:
        return _compiled(bits, source, cached=True)
    except (ImportError, OSError, ValueError, KeyError, AttributeError, EOFError, pickle.UnpicklingError):
        return _compiled(bits, source, cached=False)  # damaged or foreign files in the cache


def _compiled(bits: int | float, source: str, *, cached: bool) -> Callable[..., int]:
    import numba

    digest = hashlib.sha256(f"{numba.__version__}\n{source}".encode()).hexdigest()[:16]
    name = f"viterbi_{str(bits).replace('.', '_')}_{digest}"
    path = _source_file(name, source) if cached else None
    # A module that can be found by name, for numba looks it up when it loads compiled code from its cache.
    module = ModuleType(f"_sparkloom_{name}")
    sys.modules[module.__name__] = module
    namespace = module.__dict__
    exec(compile(source, str(path or "<viterbi>"), "exec"), namespace)
    # No "ninf": the cost that marks an unreachable edge must stay comparable.
    jit = numba.njit(
        fastmath={"nnan", "nsz", "arcp", "contract"},
        nogil=True,
        cache=path is not None,
        error_model="numpy",
    )
    for function in ("relieve", "cheapest", "step_even"):
        namespace[function] = jit(namespace[function])
    namespace["step_odd"] = jit(namespace["step_odd"]) if "step_odd" in namespace else namespace["step_even"]
    solve: Callable[..., int] = jit(namespace["solve"])
    # Compile or load now, in one thread, with arrays as `search` passes them.
    zeros, states = np.zeros((1, TILE_SIZE), np.float32), np.empty((1, TILE_SIZE), np.uint16)
    solve(*tables(bits, "mul1"), zeros, states, WINDOW)
    return solve


def tables(bits: int | float, name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The codebook as float32, laid out for the step from even and from odd positions."""
    a, b = (int(w) for w in widths(bits)[:2])
    values = codebook(name).astype(np.float32)
    laid = []
    for size in (shape(a, b), shape(b, a)):
        natural = values.reshape(size.q, size.p, size.r)
        laid.append(np.ascontiguousarray(natural.transpose(2, 0, 1)) if size.along_p else natural)
    return laid[0], laid[1]


def default_threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def search(
    stream: NDArray[Any],
    bits: int | float,
    name: str,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    window: int = WINDOW,
) -> NDArray[np.uint16]:
    """States for tiles of weights.

    Args:
        stream: floats [T, 256], finite, in ring order, scaled to the codebook.
        bits: the rate.
        name: the codebook.
        threads: how many; all cores of this process if left out.
        progress: called after every chunk of tiles.
        window: positions on each side of the seam in the first pass, even, 2 to 128.

    Returns:
        uint16[T, 256].
    """
    rate = check_bits(bits, check_codebook(name))
    weights = np.ascontiguousarray(stream, np.float32)
    states = np.empty((len(weights), TILE_SIZE), np.uint16)
    solve = solver(rate)
    even, odd = tables(rate, name)
    workers = _threads(threads, len(weights))
    chunks, lock, stop = count(), threading.Lock(), threading.Event()
    done = 0
    errors: list[BaseException] = []

    def work() -> None:
        nonlocal done
        try:
            while not stop.is_set():
                start = next(chunks) * CHUNK
                if start >= len(weights):
                    return
                part = slice(start, min(start + CHUNK, len(weights)))
                if solve(even, odd, weights[part], states[part], window):
                    raise RuntimeError("a tile's path does not close")
                with lock:
                    done += part.stop - part.start
                    if progress is not None:
                        progress(done, len(weights))
        except BaseException as error:
            errors.append(error)
            stop.set()

    pool = [threading.Thread(target=work, name=f"viterbi-{i}", daemon=True) for i in range(workers - 1)]
    for thread in pool:
        thread.start()
    try:
        work()  # this thread works too, so that Ctrl-C arrives here between two chunks
    finally:
        stop_now = bool(errors)
        if stop_now:
            stop.set()
        for thread in pool:
            with contextlib.suppress(RuntimeError):
                thread.join()
    if errors:
        raise errors[0]
    return states


def _threads(threads: int | None, tiles: int) -> int:
    if threads is not None and threads < 1:
        raise SparkloomError(
            "at least one thread is needed",
            field="threads",
            value=threads,
            mend="use 1 or more",
            code=Exit.USAGE,
        )
    return max(1, min(threads or default_threads(), -(-tiles // CHUNK)))
