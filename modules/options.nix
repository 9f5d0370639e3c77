# `services.sparkloom`: the cluster file as typed options, and what belongs to this machine alone.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib) mkOption types;
  cfg = config.services.sparkloom;
  schema = lib.importJSON ../python/src/sparkloom/cluster/cluster.schema.json;
  fromSchema = import ./lib/schema.nix { inherit lib; };
  json = pkgs.formats.json { };

  said = fromSchema.sparse schema schema cfg.cluster;
  plain = json.generate "cluster.json" cfg.clusterData;
  # The file that both ranks read is also checked by the program that reads it, at build time.
  validated = pkgs.runCommand "cluster.json" { nativeBuildInputs = [ cfg.validator ]; } ''
    sparkloom validate ${plain}
    cp ${plain} $out
  '';
in
{
  options.services.sparkloom = {
    enable = lib.mkEnableOption "this node's rank of a Sparkloom cluster";

    cluster = mkOption {
      type = types.submodule { options = fromSchema.optionsOf schema schema; };
      description = ''
        The cluster file, field by field: the same names, types, bounds and defaults as its JSON Schema
        (`sparkloom schema`).  Give the same value to every node of the cluster.
      '';
    };

    extraSettings = mkOption {
      inherit (json) type;
      default = { };
      example = {
        serving.some_new_field = 1;
      };
      description = ''
        Free-form part of the cluster file, laid over `cluster`: for fields of a newer package that these options do
        not know yet.  It is checked by `validator` at build time.
      '';
    };

    node = mkOption {
      type = types.str;
      default = config.networking.hostName;
      defaultText = lib.literalExpression "config.networking.hostName";
      description = "Name of this machine in `cluster.nodes`.";
    };

    role = mkOption {
      type = types.nullOr types.str;
      readOnly = true;
      default = if cfg.self == null then null else cfg.self.role;
      defaultText = lib.literalMD "the role of `node` in `cluster.nodes`";
      description = "What this machine does in the cluster: `head` or `worker`.";
    };

    self = mkOption {
      type = types.nullOr types.anything;
      internal = true;
      readOnly = true;
      default = lib.findFirst (node: node.name == cfg.node) null cfg.cluster.nodes;
      defaultText = lib.literalMD "the entry of `node`";
      description = "The entry of this machine in `cluster.nodes`.";
    };

    package = mkOption {
      type = types.package;
      description = "Package with `bin/sparkloom` and the whole serving environment (vLLM, the plug-in, kernels).";
    };

    validator = mkOption {
      type = types.nullOr types.package;
      description = ''
        Package whose `sparkloom validate` checks the rendered cluster file while the system is built.  It must run on
        the building machine.  null: the file is not checked before the service starts.
      '';
    };

    clusterFile = mkOption {
      type = types.path;
      readOnly = true;
      default = if cfg.validator == null then plain else validated;
      defaultText = lib.literalMD "the rendered cluster file";
      description = "The cluster file as the agent reads it.";
    };

    clusterData = mkOption {
      type = types.anything;
      internal = true;
      readOnly = true;
      default = lib.recursiveUpdate said cfg.extraSettings;
      defaultText = lib.literalMD "what `cluster` and `extraSettings` say";
      description = "Content of the cluster file: what differs from the schema's defaults.";
    };
  };
}
