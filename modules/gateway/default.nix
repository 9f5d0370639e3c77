# TLS, keys, a list of allowed paths and rate limits in front of the engine on loopback.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib) mkOption types;
  top = config.services.sparkloom;
  cfg = top.gateway;
  stateDirectory = "/run/sparkloom-gateway";
  text = import ./config.nix { inherit lib; } {
    inherit stateDirectory;
    inherit (cfg)
      serverName
      certificate
      certificateKey
      routes
      requestsPerMinute
      burst
      streamsPerKey
      bodyLimit
      readTimeoutSeconds
      ;
    listen = "${cfg.address}:${toString cfg.port}";
    upstream = "127.0.0.1:${toString top.cluster.api.port}";
    readiness = "127.0.0.1:${
      toString (
        if top.self != null && top.self.status_port != null then top.self.status_port else top.cluster.agent.status_port
      )
    }";
  };
  # One line per key: `NAME KEY`, or `KEY` alone. Writes what nginx includes; no key is ever in an argument.
  keys = pkgs.writeShellApplication {
    name = "sparkloom-gateway-keys";
    runtimeInputs = [ pkgs.coreutils pkgs.gnused ];
    text = builtins.readFile ./keys.sh;
  };
in
{
  imports = [ ../options.nix ];

  options.services.sparkloom.gateway = {
    enable = lib.mkEnableOption "the HTTPS gateway in front of the API on the head";
    serverName = mkOption {
      type = types.str;
      default = config.networking.hostName;
      defaultText = lib.literalExpression "config.networking.hostName";
      description = "Name that clients use, as in the certificate.";
    };
    address = mkOption {
      type = types.str;
      default = "0.0.0.0";
      description = "Address to listen on.";
    };
    port = mkOption {
      type = types.port;
      default = 443;
      description = "HTTPS port.";
    };
    openFirewall = mkOption {
      type = types.bool;
      default = true;
      description = "Whether to open `port`.";
    };
    certificate = mkOption {
      type = types.str;
      example = "/var/lib/acme/spark.example.org/fullchain.pem";
      description = "Certificate chain (PEM), a path on the machine.";
    };
    certificateKey = mkOption {
      type = types.str;
      example = "/var/lib/acme/spark.example.org/key.pem";
      description = "Private key of the certificate, a path on the machine outside the Nix store.";
    };
    keyFile = mkOption {
      type = types.str;
      default = if top.cluster.api.key_file == null then "/etc/sparkloom/gateway.keys" else top.cluster.api.key_file;
      defaultText = lib.literalExpression "config.services.sparkloom.cluster.api.key_file";
      description = ''
        File with the clients' keys, one `NAME KEY` (or `KEY` alone) per line, outside the Nix store.  Rate limits count
        per name.
      '';
    };
    routes = mkOption {
      type = types.attrsOf (
        types.submodule {
          options = {
            methods = mkOption {
              type = types.listOf (types.enum [ "GET" "POST" "DELETE" ]);
              default = [ "POST" ];
              description = "Methods that are passed on.";
            };
            key = mkOption {
              type = types.bool;
              default = true;
              description = "Whether a key is needed.";
            };
          };
        }
      );
      default = {
        "/health" = {
          methods = [ "GET" ];
          key = false;
        };
        "/v1/models" = {
          methods = [ "GET" ];
        };
        "/v1/chat/completions" = { };
        "/v1/completions" = { };
        "/v1/messages" = { };
        "/v1/responses" = { };
      };
      description = "The only paths that exist for clients.";
    };
    requestsPerMinute = mkOption {
      type = types.ints.positive;
      default = 120;
      description = "Requests per minute and key; more get 429 with Retry-After.";
    };
    burst = mkOption {
      type = types.ints.unsigned;
      default = 20;
      description = "Requests that may come at once beyond the rate.";
    };
    streamsPerKey = mkOption {
      type = types.ints.positive;
      default = 16;
      description = "Requests of one key that may run at once.";
    };
    bodyLimit = mkOption {
      type = types.strMatching "[0-9]+[kmg]";
      default = "64m";
      description = "Largest request body, in nginx' notation. Images travel inside it.";
    };
    readTimeoutSeconds = mkOption {
      type = types.ints.positive;
      default = 3600;
      description = "Longest pause of an answer; a long prompt computes for minutes before its first token.";
    };
    text = mkOption {
      type = types.lines;
      internal = true;
      readOnly = true;
      default = text;
      defaultText = lib.literalMD "the text for nginx";
      description = "The rendered configuration.";
    };
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = top.role == "head";
        message = "services.sparkloom.gateway: `${top.node}` is not the head; only the head has an API.";
      }
      {
        assertion = !lib.any (lib.hasPrefix builtins.storeDir) [ cfg.keyFile cfg.certificateKey ];
        message = "services.sparkloom.gateway: a key lies in the Nix store, which everybody can read. Use a path outside it.";
      }
    ];

    services.nginx = {
      enable = true;
      appendHttpConfig = text;
    };
    networking.firewall.allowedTCPPorts = lib.mkIf cfg.openFirewall [ cfg.port ];

    systemd.services.sparkloom-gateway-keys = {
      description = "Sparkloom: keys of the gateway's clients";
      requiredBy = [ "nginx.service" ];
      before = [ "nginx.service" ];
      serviceConfig = {
        Type = "oneshot";
        RemainAfterExit = true;
        ExecStart = "${lib.getExe keys} ${stateDirectory}";
        LoadCredential = [ "clients:${cfg.keyFile}" ] ++ lib.optional (top.cluster.api.key_file != null) "engine:${top.cluster.api.key_file}";
        RuntimeDirectory = baseNameOf stateDirectory;
        RuntimeDirectoryMode = "0750";
        User = "root";
        Group = config.services.nginx.group;
        UMask = "0027";
        CapabilityBoundingSet = "";
        NoNewPrivileges = true;
        PrivateDevices = true;
        PrivateNetwork = true;
        PrivateTmp = true;
        ProtectHome = true;
        ProtectSystem = "strict";
        RestrictNamespaces = true;
      };
    };
  };
}
