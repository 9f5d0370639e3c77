# CUDA 13.0 and nothing else: by name while evaluating, by the whole closure when built.
{
  lib,
  pkgs,
  own,
}:
let
  names = map (package: package.pname or package.name) (
    builtins.filter (package: package != null) own.sourcePython.poetryPackages
  );
  old = builtins.filter (name: lib.hasSuffix "-cu12" name || lib.hasSuffix "-cu11" name) names;
in
assert lib.assertMsg (pkgs.cudaPackages.cudaMajorMinorVersion == "13.0") "cudaPackages is not 13.0";
assert lib.assertMsg (old == [ ]) "packages of an older CUDA: ${toString old}";
pkgs.runCommand "sparkloom-check-cuda"
  { closure = pkgs.closureInfo { rootPaths = [ own.python-env ]; }; }
  ''
    if grep --extended-regexp 'cuda_?12|cuda12|cu12|cuda-12|cudatoolkit-12' $closure/store-paths; then
      echo "CUDA 12 in the closure" >&2
      exit 1
    fi
    touch $out
  ''
