# CUDA 13 wheels have new names (nvidia-cublas, without a version in the name) that poetry2nix' own overrides do not
# know. All put their libraries into site-packages/nvidia/cu13/lib and find one another there by torch's preloading, so
# what a single wheel lacks is looked for in its siblings; libcuda.so.1 comes from the driver at run time.
{ lib, autoAddDriverRunpath }:
final: prev:
let
  names = [
    "cuda-bindings"
    "nvidia-cublas"
    "nvidia-cuda-cupti"
    "nvidia-cuda-nvcc"
    "nvidia-cuda-nvrtc"
    "nvidia-cuda-runtime"
    "nvidia-cudnn-cu13"
    "nvidia-cudnn-frontend"
    "nvidia-cufft"
    "nvidia-cufile"
    "nvidia-curand"
    "nvidia-cusolver"
    "nvidia-cusparse"
    "nvidia-cusparselt-cu13"
    "nvidia-cutlass-dsl-libs-base"
    "nvidia-cutlass-dsl-libs-core"
    "nvidia-cutlass-dsl-libs-cu13"
    "nvidia-nccl-cu13"
    "nvidia-nvjitlink"
    "nvidia-nvshmem-cu13"
    "nvidia-nvtx"
  ];
  tolerant =
    name:
    prev.${name}.overridePythonAttrs (old: {
      autoPatchelfIgnoreMissingDeps = [ "*" ];
      nativeBuildInputs = (old.nativeBuildInputs or [ ]) ++ [ autoAddDriverRunpath ];
    });
in
lib.genAttrs (builtins.filter (name: prev ? ${name}) names) tolerant
// lib.optionalAttrs (prev ? nvidia-cutlass-dsl) {
  # Its default libraries are those of CUDA 12; the ones of CUDA 13 are an extra, which vLLM asks for.
  nvidia-cutlass-dsl = prev.nvidia-cutlass-dsl.overridePythonAttrs (old: {
    propagatedBuildInputs =
      builtins.filter (package: package != null && !(lib.hasSuffix "-cu12" (package.pname or ""))) (
        old.propagatedBuildInputs or [ ]
      )
      ++ [ final.nvidia-cutlass-dsl-libs-cu13 ];
  });
}
