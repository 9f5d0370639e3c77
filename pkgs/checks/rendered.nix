# Rendered units, networks and the cluster file against tests/nix/golden, which a person can read.
{
  self,
  lib,
  pkgs,
}:
let
  golden = ../../tests/nix/golden;
  hosts = [
    "spark-head"
    "spark-worker"
  ];
  files =
    host:
    let
      inherit (self.nixosConfigurations.${host}) config;
      own = lib.filterAttrs (name: _: lib.hasPrefix "sparkloom" name) config.systemd.units;
    in
    lib.mapAttrs' (name: unit: lib.nameValuePair "${host}/${name}" unit.text) (own // config.systemd.network.units)
    // {
      "${host}/cluster.json" = builtins.toJSON config.services.sparkloom.clusterData;
    };
  rendered = pkgs.writeText "rendered.json" (
    builtins.unsafeDiscardStringContext (builtins.toJSON (lib.foldl' (all: host: all // files host) { } hosts))
  );
in
pkgs.runCommand "sparkloom-check-rendered" { nativeBuildInputs = [ pkgs.python3 ]; } ''
  python3 ${../../tests/nix/golden_check.py} ${golden} ${rendered}
  touch $out
''
