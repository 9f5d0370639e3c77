# Everything that the tests look at in the shipped hosts and three variants of the head, in one evaluation.
{ tree }:
let
  flake = import ./flake.eval.nix { inherit tree; };
  lib = import (tree + "/nixpkgs-mini/lib");
  head = flake.nixosConfigurations.spark-head;
  variant = module: head.extendModules { modules = [ module ]; };

  facts =
    system:
    let
      inherit (system) config;
      own = lib.filterAttrs (name: _: lib.hasPrefix "sparkloom" name);
    in
    {
      cluster = config.services.sparkloom.clusterData;
      units = lib.mapAttrs (_: unit: unit.text) (own config.systemd.units);
      networks = lib.mapAttrs (_: unit: unit.text) config.systemd.network.units;
      sysctl = lib.filterAttrs (
        name: value: value != null && (lib.hasPrefix "vm." name || lib.hasInfix "arp_" name)
      ) config.boot.kernel.sysctl;
      kernel_modules = config.boot.kernelModules;
      kernel_params = config.boot.kernelParams;
      default_unit = config.systemd.defaultUnit;
      login = config.services.logind.settings.Login;
      firewall = {
        inherit (config.networking.firewall)
          enable
          allowedTCPPorts
          allowedUDPPorts
          trustedInterfaces
          ;
      };
      user = {
        inherit (config.users.users.sparkloom) isSystemUser group extraGroups;
      };
      scrapes = lib.concatMap (job: lib.concatMap (c: c.targets) job.static_configs) (
        map (job: { inherit (job) static_configs; }) config.services.prometheus.scrapeConfigs
      );
      warnings = config.warnings;
      failed = map (a: a.message) (builtins.filter (a: !a.assertion) config.assertions);
      gateway = lib.optionalString config.services.sparkloom.gateway.enable config.services.sparkloom.gateway.text;
    };
  # The path of the derivation as well: everything of the host was evaluated.
  whole = system: facts system // { toplevel = system.config.system.build.toplevel.drvPath; };
in
{
  spark-head = whole head;
  spark-worker = whole flake.nixosConfigurations.spark-worker;
  with-gateway = facts (variant {
    # The mock package set has no checkers of these files; tests run nginx and promtool themselves.
    services.nginx.validateConfigFile = false;
    services.prometheus.checkConfig = false;
    services.sparkloom.monitoring.enable = true;
    services.sparkloom.monitoring.grafana.enable = true;
    services.sparkloom.cluster.api.key_file = "/etc/sparkloom/api.key";
    services.sparkloom.gateway = {
      enable = true;
      serverName = "spark.example.org";
      certificate = "/etc/sparkloom/tls/chain.pem";
      certificateKey = "/etc/sparkloom/tls/key.pem";
      keyFile = "/etc/sparkloom/gateway.keys";
    };
  });
  with-oci = facts (variant {
    services.sparkloom.cluster.engine = {
      runtime = "oci";
      image = "registry.example.org/sparkloom@sha256:${lib.concatStrings (lib.replicate 64 "0")}";
    };
  });
  # The template in the hands of a user: the same systems.
  template =
    lib.mapAttrs (_: system: system.config.system.build.toplevel.drvPath)
      ((import ../../hosts/template/flake.nix).outputs { sparkloom = flake; }).nixosConfigurations;
  rules = import ../../modules/monitoring/rules.nix;
  exposed = facts (variant {
    services.sparkloom.weights.enable = false;
    services.sparkloom.host.clockCap.enable = false;
    services.sparkloom.host.headless = false;
    services.sparkloom.cluster.api = {
      host = "0.0.0.0";
      exposure = "network";
      key_file = "/etc/sparkloom/api.key";
    };
  });
}
