# The option tree of `services.sparkloom` and the messages of bad configurations, without the rest of NixOS.
{
  tree ? null,
  lib ? import (tree + "/nixpkgs-mini/lib"),
  pkgs ? import (tree + "/nixpkgs-mini") { system = "aarch64-linux"; },
}:
let
  # Stands in for every option of NixOS that the modules set or read.
  rest = {
    options = {
      assertions = lib.mkOption {
        type = lib.types.listOf lib.types.unspecified;
        default = [ ];
      };
    }
    // lib.genAttrs [ "boot" "environment" "hardware" "networking" "systemd" "users" "virtualisation" "zramSwap" ] (_: lib.mkOption { type = lib.types.anything; })
    // {
      services.nginx = lib.mkOption { type = lib.types.anything; };
      services.prometheus = lib.mkOption { type = lib.types.anything; };
      services.grafana = lib.mkOption { type = lib.types.anything; };
      services.logind = lib.mkOption { type = lib.types.anything; };
    };
    config = {
      _module.args = {
        inherit pkgs;
        utils.escapeSystemdPath = path: path;
      };
      boot.kernel.sysctl = { };
      services.sparkloom.node = lib.mkDefault "spark-head";
      services.sparkloom.package = pkgs.hello;
      services.sparkloom.validator = null;
    };
  };
  modules = [
    rest
    ../../modules/options.nix
    ../../modules/assertions.nix
    ../../modules/fabric.nix
    ../../modules/gateway
  ];
  good = import ./pair.nix;
  evaluate = extra: (lib.evalModules { modules = modules ++ [ good ] ++ extra; }).config;
  messages = extra: map (a: a.message) (builtins.filter (a: !a.assertion) (evaluate extra).assertions);
  # Only declared, not configured.
  shown = lib.evalModules {
    modules = modules ++ [
      ../../modules/host.nix
      ../../modules/monitoring
      ../../modules/service.nix
    ];
  };
  documented = builtins.filter (o: lib.hasPrefix "services.sparkloom" o.name) (lib.optionAttrSetToDocList shown.options);
in
{
  options = map (o: {
    inherit (o) name type description;
    default = o.default.text or null;
    internal = o.internal or false;
  }) documented;
  good = messages [ ];
  bad = lib.mapAttrs (_: bad: messages [ bad.config ]) (import ./bad.nix { inherit lib; });
  expected = lib.mapAttrs (_: bad: bad.says) (import ./bad.nix { inherit lib; });
  # The lower bound of the memory plan, to be compared with the planner's own sum.
  plans = map (
    settings:
    let
      inherit (evaluate [ { services.sparkloom.cluster = settings; } ]) services;
    in
    {
      cluster = services.sparkloom.clusterData;
      bound = (import ../../modules/lib/plan.nix { inherit lib; } services.sparkloom.cluster).need;
    }
  ) (import ./plans.nix);
  # Free-form settings are laid over the typed ones.
  freeform =
    (evaluate [
      {
        services.sparkloom.cluster.serving.max_sequences = 2;
        services.sparkloom.extraSettings.serving.some_new_field = 1;
      }
    ]).services.sparkloom.clusterData.serving;
  # Values that the type itself refuses: evaluation of that one field must fail.
  refused = lib.mapAttrs (
    _: bad: !(builtins.tryEval (builtins.deepSeq (evaluate [ bad ]).services.sparkloom.cluster true)).success
  ) (import ./refused.nix);
}
