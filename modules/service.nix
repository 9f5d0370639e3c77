# The units of a node: the agent (which owns the rank), the weights before it, and the page-cache helper beside it.
{
  config,
  lib,
  pkgs,
  utils,
  ...
}:
let
  inherit (lib) mkOption types;
  cfg = config.services.sparkloom;
  inherit (cfg) cluster;
  units = import ./lib/units.nix { inherit lib; };
  inherit (units.facts) user;
  container = cluster.engine.runtime == "oci";

  values = {
    inherit (cfg) node;
    cluster = "/etc/sparkloom/cluster.json";
    exec = lib.getExe cfg.package;
    agent_key_file = cluster.agent.key_file;
    api_key_file = cluster.api.key_file;
    user = user.name;
    inherit (user) group;
    runtime_directory = dirOf cluster.agent.socket;
    state_directory = cluster.agent.state_directory;
    cache_directory = cluster.engine.cache_directory;
  };
  drain = "drain --socket ${cluster.agent.socket} --wait 120";
  apiKey = cfg.role == "head" && cluster.api.key_file != null;
  sections = name: variants: units.sections { inherit name values variants; };
  agent = sections "sparkloom-agent.service" (lib.optional apiKey "with_api_key");
  hygiene = sections "sparkloom-hygiene.service" [ ];
  hygienePath = sections "sparkloom-hygiene.path" [ ];

  # Folders that the cluster file puts outside the ones that systemd makes for the unit.
  elsewhere = lib.subtractLists [ "/var/lib/sparkloom" "/var/cache/sparkloom" ] [
    cluster.agent.state_directory
    cluster.engine.cache_directory
  ];
  rails = lib.optionals (cfg.fabric.enable or false && cfg.self != null && cfg.self.fabric.interfaces != null) (
    map (name: "${utils.escapeSystemdPath "/sys/subsystem/net/devices/${name}"}.device") cfg.self.fabric.interfaces
  );
  # With a container runtime the container is the sandbox; the unit keeps what manages the process.
  confines =
    key:
    lib.any (prefix: lib.hasPrefix prefix key) [
      "Ambient"
      "CacheDirectory"
      "Capability"
      "Device"
      "Keyring"
      "Lock"
      "NoNew"
      "Private"
      "Protect"
      "Remove"
      "Restrict"
      "RuntimeDirectory"
      "StateDirectory"
      "Supplementary"
      "SystemCall"
    ]
    && !lib.hasPrefix "RestartPrevent" key;

  podman = lib.getExe config.virtualisation.podman.package;
  # Same agent, same arguments, from the image: no --privileged, the GPU by CDI, the RDMA devices by name.
  contained = pkgs.writeShellApplication {
    name = "sparkloom-contained";
    runtimeInputs = [
      config.virtualisation.podman.package
      pkgs.coreutils
    ];
    text = ''
      uid=$(id -u ${user.name})
      gid=$(id -g ${user.name})
      credentials=/run/sparkloom/credentials
      install -d -m 0500 -o "$uid" -g "$gid" "$credentials"
      install -m 0400 -o "$uid" -g "$gid" "$CREDENTIALS_DIRECTORY"/* "$credentials"/
      devices=()
      for device in /dev/infiniband/*; do
        [[ -e $device ]] && devices+=(--device "$device")
      done
      exec podman run --rm --replace --name sparkloom-agent --cgroups=split --sdnotify=container \
        --network host --ipc host --ulimit memlock=-1:-1 --cap-drop all --cap-add IPC_LOCK \
        --security-opt no-new-privileges --read-only --tmpfs /tmp --user "$uid:$gid" \
        --device nvidia.com/gpu=all "''${devices[@]}" \
        --volume ${values.cluster}:${values.cluster}:ro \
        --volume ${values.runtime_directory}:${values.runtime_directory} \
        --volume ${values.state_directory}:${values.state_directory} \
        --volume ${values.cache_directory}:${values.cache_directory} \
        --volume ${cluster.model.path}:${cluster.model.path}:ro \
        ${lib.optionalString (cluster.ablit.method != "none") "--volume ${cluster.ablit.path}:${cluster.ablit.path}:ro"} \
        --env CREDENTIALS_DIRECTORY="$credentials" --env WATCHDOG_USEC \
        ${lib.escapeShellArg cluster.engine.image} ${values.cluster} --node ${lib.escapeShellArg cfg.node}
    '';
  };
in
{
  imports = [
    ./options.nix
    ./assertions.nix
  ];

  options.services.sparkloom = {
    weights = {
      enable = mkOption {
        type = types.bool;
        default = true;
        description = ''
          Whether a unit fetches and verifies the pinned checkpoint before the agent starts.  A verified checkpoint is
          recognised by its receipt in seconds.  Off: you bring the files yourself.
        '';
      };
    };
    openFirewall = mkOption {
      type = types.bool;
      default = cluster.api.exposure == "network";
      defaultText = lib.literalExpression ''config.services.sparkloom.cluster.api.exposure == "network"'';
      description = "Whether to open the API's port on the head.";
    };
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = cfg.openFirewall -> (cluster.api.exposure == "network" && cluster.api.key_file != null);
        message = "services.sparkloom: `openFirewall` needs `cluster.api.exposure = \"network\"` and `cluster.api.key_file`.";
      }
    ];

    environment.etc."sparkloom/cluster.json".source = cfg.clusterFile;
    environment.systemPackages = [ cfg.package ];

    users.users.${user.name} = {
      isSystemUser = true;
      inherit (user) group;
      extraGroups = user.supplementary_groups;
      home = cluster.agent.state_directory;
    };
    users.groups.${user.group} = { };

    networking.firewall.allowedTCPPorts = lib.mkIf (cfg.openFirewall && cfg.role == "head") [ cluster.api.port ];

    virtualisation.podman.enable = lib.mkIf container true;
    # The unit of the container is root's, its folders are the user's: systemd must not give them to root.
    systemd.tmpfiles.rules = lib.mkIf container (
      map (path: "d ${path} 0750 ${user.name} ${user.group} -") [
        values.runtime_directory
        values.state_directory
        values.cache_directory
      ]
    );

    systemd.services.sparkloom-agent = {
      unitConfig = removeAttrs agent.Unit [ "Wants" "After" "Description" ];
      description = agent.Unit.Description;
      wants = agent.Unit.Wants;
      after =
        agent.Unit.After
        ++ lib.optional cfg.weights.enable "sparkloom-weights.service"
        # The CDI file must be there before a container asks for the GPU.
        ++ lib.optional container "nvidia-container-toolkit-cdi-generator.service"
        ++ rails;
      # A rail that goes away takes the agent with it, and the agent its rank.
      bindsTo = rails;
      requires = lib.optional cfg.weights.enable "sparkloom-weights.service";
      wantedBy = lib.toList agent.Install.WantedBy;
      # A new cluster file means a new pair: the agents restart together and compare digests.
      restartTriggers = [ cfg.clusterFile ];
      serviceConfig =
        (if container then lib.filterAttrs (key: _: !confines key) agent.Service else agent.Service)
        # Running answers end before the head's agent does.  Not on a worker: there it would be an order to the whole
        # pair, which the head would remember after the worker is back.
        // lib.optionalAttrs (cfg.role == "head") { ExecStop = "-${values.exec} ${drain}"; }
        // lib.optionalAttrs (!container && elsewhere != [ ]) { ReadWritePaths = map (path: "-${path}") elsewhere; }
        // lib.optionalAttrs container {
          ExecStart = lib.getExe contained;
          ExecStop = lib.optional (cfg.role == "head") "-${podman} exec sparkloom-agent sparkloom ${drain}" ++ [
            "-${podman} stop --time ${toString (builtins.floor cluster.deadlines.stop_seconds)} sparkloom-agent"
          ];
          NotifyAccess = "all";
          User = "root";
          Group = "root";
        };
    };

    systemd.services.sparkloom-weights = lib.mkIf cfg.weights.enable {
      description = "Sparkloom: fetch and verify the pinned checkpoint";
      wants = [ "network-online.target" ];
      after = [ "network-online.target" ];
      serviceConfig = {
        Type = "oneshot";
        RemainAfterExit = true;
        ExecStart = [
          "${values.exec} weights fetch ${values.cluster}"
          "${values.exec} weights verify ${values.cluster}"
        ];
        User = user.name;
        Group = user.group;
        TimeoutStartSec = "infinity";
        Restart = "on-failure";
        RestartSec = 60;
        # Verification reads 164 GiB; it must not slow what else runs.
        Nice = 10;
        IOSchedulingClass = "idle";
        StateDirectory = agent.Service.StateDirectory;
        StateDirectoryMode = agent.Service.StateDirectoryMode;
        CapabilityBoundingSet = "";
        LockPersonality = true;
        MemoryDenyWriteExecute = true;
        NoNewPrivileges = true;
        PrivateDevices = true;
        PrivateTmp = true;
        ProtectControlGroups = true;
        ProtectHome = true;
        ProtectKernelModules = true;
        ProtectKernelTunables = true;
        ProtectSystem = "strict";
        ReadWritePaths = [ "-${dirOf cluster.model.path}" ];
        RestrictAddressFamilies = "AF_UNIX AF_INET AF_INET6";
        RestrictNamespaces = true;
        RestrictSUIDSGID = true;
        SystemCallArchitectures = "native";
        UMask = "0027";
      };
      unitConfig = {
        StartLimitIntervalSec = 3600;
        StartLimitBurst = 10;
      };
    };

    systemd.services.sparkloom-hygiene = {
      unitConfig = removeAttrs hygiene.Unit [ "Description" ];
      description = hygiene.Unit.Description;
      serviceConfig = hygiene.Service;
    };
    systemd.paths.sparkloom-hygiene = {
      description = hygienePath.Unit.Description;
      wantedBy = lib.toList hygienePath.Install.WantedBy;
      pathConfig = hygienePath.Path;
    };
  };
}
