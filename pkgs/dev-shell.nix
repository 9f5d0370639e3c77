# `nix develop`: what the Makefile and the kernels need.
{
  mkShell,
  cmake,
  cudaPackages,
  git,
  gnumake,
  iproute2,
  llvmPackages,
  ninja,
  nixfmt,
  poetry,
  python312,
  shellcheck,
}:
mkShell {
  packages = [
    cmake
    cudaPackages.cuda_cudart
    cudaPackages.cuda_nvcc
    git
    gnumake
    iproute2
    llvmPackages.libclang # clang-format
    ninja
    nixfmt
    poetry
    python312
    shellcheck
  ];
}
