# A pair of your own. Change cluster.nix (addresses, port, SSH key) and, where you need it, the two hosts.
#   nixos-rebuild switch --flake .#spark-head --target-host root@spark-head
{
  description = "Two DGX Sparks that serve one model";

  # Where you got Sparkloom from: a checkout (path:/home/you/sparkloom) or its repository.
  inputs.sparkloom.url = "path:/home/you/sparkloom";

  outputs =
    { sparkloom, ... }:
    let
      host =
        path:
        sparkloom.inputs.nixpkgs.lib.nixosSystem {
          modules = [
            sparkloom.nixosModules.default
            sparkloom.nixosModules.dgx-spark
            sparkloom.nixosModules.disko
            path
          ];
        };
    in
    {
      nixosConfigurations = {
        spark-head = host ./spark-head.nix;
        spark-worker = host ./spark-worker.nix;
      };
    };
}
