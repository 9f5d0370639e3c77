# The project's own CUDA kernels, compiled for sm_121a by CMake, as the library that torch loads.
{
  lib,
  cmake,
  ninja,
  cudaPackages,
  gpuTarget,
  sourcePython,
  # null: only the static library, for a compile check that needs no torch.
  torch ? sourcePython.python.pkgs.torch,
  # Bit rates to build; null: all.
  bits ? null,
}:
cudaPackages.backendStdenv.mkDerivation {
  pname = "sparkloom-kernels";
  inherit ((lib.importTOML ../python/pyproject.toml).project) version;
  src = lib.cleanSource ../kernels;
  nativeBuildInputs = [
    cmake
    ninja
    cudaPackages.cuda_nvcc
  ];
  buildInputs = [ cudaPackages.cuda_cudart ];
  cmakeFlags = [
    (lib.cmakeFeature "CMAKE_CUDA_ARCHITECTURES" "${lib.replaceStrings [ "." ] [ "" ] gpuTarget}-real")
  ]
  ++ lib.optional (torch != null) (
    lib.cmakeFeature "TORCH_INCLUDE" "${torch}/${sourcePython.python.sitePackages}/torch/include"
  )
  ++ lib.optional (bits != null) (lib.cmakeFeature "SPARKLOOM_BITS" (toString bits));
  # Without torch there is no install target: only the torch library is installed.
  ${if torch == null then "installPhase" else null} = ''
    runHook preInstall
    install -Dm644 libexl3.a $out/lib/libexl3.a
    runHook postInstall
  '';
  doInstallCheck = true;
  # The code in it must be for this chip: a build that lost the suffix would run without its matrix instructions.
  installCheckPhase = ''
    runHook preInstallCheck
    find $out/lib -name '*exl3*' -print0 | xargs -0 grep --text --quiet sm_${lib.replaceStrings [ "." ] [ "" ] gpuTarget}
    runHook postInstallCheck
  '';
  meta = {
    description = "EXL3 kernels for the GB10 (sm_121a)";
    license = lib.licenses.mit;
    platforms = lib.platforms.linux;
  };
}
