# `nix flake check`: what can be proven without a Spark.
{
  self,
  lib,
  system,
  pkgs,
}:
let
  own = pkgs.sparkloomPackages;
  text = builtins.unsafeDiscardStringContext;
  # Evaluating is the check; nothing of the hosts is built for it.
  passed = name: said: pkgs.writeText "sparkloom-check-${name}" (text said);

  configurations = import ../../tests/nix/options.nix { inherit lib pkgs; };
  unsaid = lib.filterAttrs (
    name: messages: !lib.any (lib.hasInfix configurations.expected.${name}) messages
  ) configurations.bad;
in
{
  hosts = passed "hosts" (
    lib.concatStringsSep "\n" (
      lib.mapAttrsToList (_: host: host.config.system.build.toplevel.drvPath) self.nixosConfigurations
    )
  );

  rendered = import ./rendered.nix { inherit self lib pkgs; };

  assertions =
    assert lib.assertMsg (configurations.good == [ ]) "a right configuration is refused";
    assert lib.assertMsg (unsaid == { }) "no message for: ${toString (builtins.attrNames unsaid)}";
    assert lib.assertMsg (lib.all lib.id (builtins.attrValues configurations.refused)) "a wrong value is accepted";
    passed "assertions" (builtins.toJSON configurations.bad);

  cuda = import ./cuda.nix { inherit lib pkgs own; };
  kernels = own.sparkloom-kernels;
  python = pkgs.callPackage ./python.nix { inherit (own) cliPython; };
  rules = pkgs.runCommand "sparkloom-check-rules" { nativeBuildInputs = [ pkgs.prometheus.cli or pkgs.prometheus ]; } ''
    promtool check rules ${pkgs.writeText "rules.json" (builtins.toJSON (import ../../modules/monitoring/rules.nix))}
    touch $out
  '';
}
# nixpkgs' driver of machine tests asks for a Nix of 2023 or later; all else here evaluates with older ones too.
// lib.optionalAttrs (builtins ? readFileType) {
  pair = pkgs.testers.runNixOSTest (import ./pair.nix { inherit self lib; });
  gateway = pkgs.testers.runNixOSTest (import ./gateway.nix { inherit self lib; });
}
