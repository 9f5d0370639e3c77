# Names of the flake's outputs.
{ tree }:
let
  flake = import ./flake.eval.nix { inherit tree; };
  names = builtins.mapAttrs (_: builtins.attrNames);
in
{
  apps = names flake.apps;
  packages = names flake.packages;
  checks = names flake.checks;
  shells = names flake.devShells;
  modules = builtins.attrNames flake.nixosModules;
  hosts = builtins.attrNames flake.nixosConfigurations;
  templates = builtins.attrNames flake.templates;
  overlays = builtins.attrNames flake.overlays;
}
