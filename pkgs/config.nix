# nixpkgs settings of the packages: CUDA code for the GB10 alone (sm_121a), and the licences that this needs.
{ lib }:
{
  cudaSupport = true;
  cudaCapabilities = [ "12.1a" ];
  cudaForwardCompat = false;
  # NVIDIA's end-user licences, and nothing else that is unfree.
  allowUnfreePredicate =
    package:
    lib.all (
      licence:
      licence.free or true
      || lib.elem (licence.shortName or "") [
        "CUDA EULA"
        "cuDNN EULA"
        "cuSPARSELt EULA"
        "NVidia OptiX EULA"
        "NVSHMEM EULA"
      ]
    ) (lib.toList (package.meta.license or [ ]));
}
