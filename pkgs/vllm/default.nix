# vLLM from its source archive, CUDA code for the GB10 only, against the torch wheel of the lock, with patches/vllm.
{
  callPackage,
  cmake,
  ninja,
  which,
  cuda-home,
  cudaPackages,
  autoAddDriverRunpath,
  gpuTarget,
  vllmSources,
}:
final: prev: {
  vllm = prev.vllm.overridePythonAttrs (old: {
    patches = (old.patches or [ ]) ++ callPackage ./patches.nix { };

    nativeBuildInputs = (old.nativeBuildInputs or [ ]) ++ [
      cmake
      ninja
      which
      cudaPackages.cuda_nvcc
      autoAddDriverRunpath
      final.packaging
      final.jinja2
      final.setuptools
      final.setuptools-scm
      final.setuptools-rust
      final.wheel
    ];
    buildInputs = (old.buildInputs or [ ]) ++ [ cuda-home ];
    dontUseCmakeConfigure = true;

    env = (old.env or { }) // vllmSources // {
      CUDA_HOME = cuda-home;
      VLLM_TARGET_DEVICE = "cuda";
      VLLM_VERSION_OVERRIDE = old.version;
      TORCH_CUDA_ARCH_LIST = gpuTarget;
      # The Rust front end is optional and would need a vendored crate tree; the Python one serves.
      VLLM_REQUIRE_RUST_FRONTEND = "0";
    };
    # One nvcc job of these sources takes up to 6 GiB; 120 GiB are there.
    preBuild = ''
      export MAX_JOBS=$(( NIX_BUILD_CORES < 16 ? NIX_BUILD_CORES : 16 )) NVCC_THREADS=1
    '';

    passthru = (old.passthru or { }) // {
      inherit gpuTarget;
      fromSource = true;
    };
  });
}
