"""Compile the FlashInfer modules that serving GLM-5.3-Flash on a GB10 needs, and put them where FlashInfer looks first.

usage: compile.py [NAME...]     (default: all; the target is FLASHINFER_CUDA_ARCH_LIST)

FlashInfer compiles a module when it is first called, in minutes, unless its own package holds it compiled.
"""

import os
import re
import shutil
import sys


MODULES = ("sampling", "sparse_mla_sm120", "topk")
"""What is called on 12.x: top-k and top-p sampling, the sparse attention over the latent cache, the indexer's top-k."""


def spec(name):
    """How FlashInfer compiles a module."""
    from flashinfer.jit.mla import gen_sparse_mla_sm120_module
    from flashinfer.jit.sampling import gen_sampling_module
    from flashinfer.jit.topk import gen_topk_module

    makers = {
        "sampling": gen_sampling_module,
        "sparse_mla_sm120": gen_sparse_mla_sm120_module,
        "topk": gen_topk_module,
    }
    return makers[name]()


def main():
    """Compile, copy, and check that each is found as compiled and holds code for the target."""
    target = os.environ.get("FLASHINFER_CUDA_ARCH_LIST", "")
    code = f"sm_{target.replace('.', '')}".encode()
    if not re.fullmatch(r"\d+\.\d[af]?", target):
        sys.exit(f"compile: FLASHINFER_CUDA_ARCH_LIST is {target!r}; set one target, for instance 12.1a")
    wrong = set(sys.argv[1:]) - set(MODULES)
    if wrong:
        sys.exit(f"compile: no module {sorted(wrong)}; there are {list(MODULES)}")
    from flashinfer.jit import env
    from flashinfer.jit.core import build_jit_specs

    made = [spec(name) for name in sys.argv[1:] or MODULES]
    build_jit_specs(made, verbose=False, skip_prebuilt=False)
    for one in made:
        path = env.FLASHINFER_AOT_DIR / one.name / f"{one.name}.so"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(env.FLASHINFER_JIT_DIR / one.name / f"{one.name}.so", path)
        if not one.is_aot:
            sys.exit(f"compile: FlashInfer does not find {path}")
        if code not in path.read_bytes():
            sys.exit(f"compile: {path} has no code for {code.decode()}")
        print(path)


if __name__ == "__main__":
    main()
