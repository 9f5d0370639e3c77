# CUDA 13.0 everywhere in the closure (the default set of nixpkgs is still 12.9), and this project's packages as one
# scope, `sparkloomPackages`.
inputs: final: prev: {
  cudaPackages = final.cudaPackages_13_0;
  sparkloomPackages = final.lib.makeScope final.newScope (import ./scope.nix inputs);
}
