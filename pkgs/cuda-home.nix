# One folder with compiler, headers and libraries of CUDA 13.0, as torch's build helpers expect it.
{
  lib,
  symlinkJoin,
  cudaPackages,
}:
symlinkJoin {
  name = "cuda-home-${cudaPackages.cudaMajorMinorVersion}";
  paths = lib.concatMap (package: [ (lib.getBin package) (lib.getDev package) (lib.getLib package) ]) [
    cudaPackages.cuda_nvcc
    cudaPackages.cuda_cudart
    cudaPackages.cuda_cccl
    cudaPackages.cuda_nvrtc
    cudaPackages.cuda_nvtx
    cudaPackages.libcublas
    cudaPackages.libcurand
    cudaPackages.libcusolver
    cudaPackages.libcusparse
  ];
}
