# The flake's outputs without Nix' flake machinery: inputs come from the evaluation tree, nothing is copied or fetched.
# Arguments: `tree` (folder with nixpkgs-mini, p2n, dgx, disko), the repository is two folders up.
{ tree }:
let
  root = ../..;
  lib0 = import (tree + "/nixpkgs-mini/lib");
  lib = lib0.extend (
    final: _: {
      nixos = import (tree + "/nixpkgs-mini/nixos/lib") { lib = final; };
      nixosSystem =
        arguments:
        import (tree + "/nixpkgs-mini/nixos/lib/eval-config.nix") (
          {
            lib = final;
            system = null;
          }
          // arguments
        );
    }
  );
  nixpkgs = {
    inherit lib;
    outPath = tree + "/nixpkgs-mini";
  };
  # Sources of the vLLM build: never read while evaluating, so any path does.
  placeholder = name: {
    outPath = builtins.toFile name "";
  };
  inputs = lib.genAttrs [
    "cutlass"
    "deepgemm"
    "deepselect"
    "flash-attention"
    "flashkda"
    "flashmla"
    "msa"
    "qutlass"
    "tml-fa4"
  ] placeholder // {
    inherit nixpkgs;
    poetry2nix = tree + "/p2n";
    nixos-dgx-spark = tree + "/dgx";
    disko = tree + "/disko";
  };
  self = (import (root + "/flake.nix")).outputs (inputs // { inherit self; }) // {
    outPath = root;
    inherit inputs;
  };
in
self
