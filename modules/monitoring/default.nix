# Prometheus with alert rules, and a Grafana dashboard, on the head: the agent there knows both nodes.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib) mkOption types;
  top = config.services.sparkloom;
  cfg = top.monitoring;
  inherit (top) cluster;
  statusPort =
    if top.self != null && top.self.status_port != null then top.self.status_port else cluster.agent.status_port;
  dashboards = pkgs.linkFarm "sparkloom-dashboards" { "sparkloom.json" = ./dashboard.json; };
in
{
  imports = [ ../options.nix ];

  options.services.sparkloom.monitoring = {
    enable = lib.mkEnableOption "Prometheus with rules for the pair, on loopback of the head";
    port = mkOption {
      type = types.port;
      default = 9090;
      description = "Port of Prometheus on loopback.";
    };
    interval = mkOption {
      type = types.strMatching "[0-9]+s";
      default = "15s";
      description = "Time between two scrapes.";
    };
    grafana.enable = lib.mkEnableOption "Grafana on loopback with the dashboard for unified memory";
    rules = mkOption {
      type = types.anything;
      internal = true;
      readOnly = true;
      default = import ./rules.nix;
      defaultText = lib.literalMD "the rules";
      description = "The alert rules as data.";
    };
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = top.role == "head";
        message = "services.sparkloom.monitoring: `${top.node}` is not the head; its agent knows only itself.";
      }
    ];

    services.prometheus = {
      enable = true;
      listenAddress = "127.0.0.1";
      inherit (cfg) port;
      globalConfig.scrape_interval = cfg.interval;
      # JSON is YAML.
      ruleFiles = [ (pkgs.writeText "sparkloom-rules.json" (builtins.toJSON cfg.rules)) ];
      scrapeConfigs = [
        {
          job_name = "sparkloom";
          static_configs = [ { targets = [ "127.0.0.1:${toString statusPort}" ]; } ];
        }
        {
          job_name = "vllm";
          static_configs = [ { targets = [ "127.0.0.1:${toString cluster.api.port}" ]; } ];
        }
      ];
    };

    services.grafana = lib.mkIf cfg.grafana.enable {
      enable = true;
      settings.server.http_addr = "127.0.0.1";
      settings.analytics.reporting_enabled = false;
      provision = {
        enable = true;
        datasources.settings.datasources = [
          {
            name = "Prometheus";
            type = "prometheus";
            uid = "sparkloom-prometheus";
            url = "http://127.0.0.1:${toString cfg.port}";
            isDefault = true;
          }
        ];
        dashboards.settings.providers = [
          {
            name = "sparkloom";
            options.path = dashboards;
          }
        ];
      };
    };
  };
}
