# The project's own CUDA kernels, compiled for sm_121a by CMake.
{
  lib,
  cmake,
  ninja,
  cudaPackages,
  gpuTarget,
}:
cudaPackages.backendStdenv.mkDerivation {
  pname = "sparkloom-kernels";
  inherit ((lib.importTOML ../python/pyproject.toml).project) version;
  src = lib.cleanSource (if builtins.pathExists ../kernels then ../kernels else ./.);
  nativeBuildInputs = [
    cmake
    ninja
    cudaPackages.cuda_nvcc
  ];
  buildInputs = [ cudaPackages.cuda_cudart ];
  cmakeFlags = [
    (lib.cmakeFeature "CMAKE_CUDA_ARCHITECTURES" "${lib.replaceStrings [ "." ] [ "" ] gpuTarget}-real")
  ];
  meta = {
    description = "EXL3 kernels for the GB10 (sm_121a)";
    license = lib.licenses.mit;
    platforms = lib.platforms.linux;
  };
}
