# The machine under the service: memory policy, kernel, clock, driver order, no desktop, no sleep.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib) mkOption types;
  top = config.services.sparkloom;
  cfg = top.host;
  units = import ./lib/units.nix { inherit lib; };
  # The facts name the path of DGX OS.
  here = lib.replaceStrings [ "/usr/bin/nvidia-smi" ] [ "${config.hardware.nvidia.package.bin}/bin/nvidia-smi" ];
  clocks = units.sections {
    name = "sparkloom-clocks.service";
    values = {
      clock_min = cfg.clockCap.minimumMHz;
      clock_max = cfg.clockCap.maximumMHz;
    };
  };
in
{
  imports = [ ./options.nix ];

  options.services.sparkloom.host = {
    enable = mkOption {
      type = types.bool;
      default = top.enable;
      defaultText = lib.literalExpression "config.services.sparkloom.enable";
      description = "Whether to set this machine up for serving.";
    };
    swappiness = mkOption {
      type = types.ints.between 0 200;
      default = 0;
      description = "vm.swappiness. Keep a small swap all the same: it takes what the host side never touches.";
    };
    headless = mkOption {
      type = types.bool;
      default = true;
      description = "Boot to multi-user.target. A desktop session eats the memory margin of the head.";
    };
    clockCap = {
      enable = mkOption {
        type = types.bool;
        default = true;
        description = ''
          Cap the GPU clock.  Published runs at 2,000 to 2,200 MHz were 10 to 26 degrees cooler and no slower in decode.
        '';
      };
      minimumMHz = mkOption {
        type = types.ints.positive;
        default = units.facts.defaults.clock_min;
        description = "Lowest GPU clock in MHz.";
      };
      maximumMHz = mkOption {
        type = types.ints.positive;
        default = units.facts.defaults.clock_max;
        description = "Highest GPU clock in MHz.";
      };
    };
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = cfg.clockCap.minimumMHz <= cfg.clockCap.maximumMHz;
        message = "services.sparkloom.host.clockCap: minimumMHz is above maximumMHz.";
      }
    ];

    boot.kernelParams = [
      # A panic of an unattended machine ends in a reboot, and the agents bring the pair back.
      "panic=30"
    ]
    # Kernels from 7.0 on hang in kexec handover on this machine.
    ++ lib.optional (lib.versionAtLeast config.boot.kernelPackages.kernel.version "7.0") "kho=off";

    boot.kernel.sysctl."vm.swappiness" = cfg.swappiness;
    zramSwap.enable = lib.mkDefault false;
    # A killer that does not know the pair would take one rank of it. The agent watches memory itself.
    systemd.oomd.enable = lib.mkDefault false;

    systemd.defaultUnit = lib.mkIf cfg.headless (lib.mkForce "multi-user.target");
    systemd.targets = lib.genAttrs [ "sleep" "suspend" "hibernate" "hybrid-sleep" ] (_: { enable = false; });
    services.logind.settings.Login = {
      HandlePowerKey = "poweroff";
      IdleAction = "ignore";
      RemoveIPC = false;
    };

    # libcuda reaches the serving process through /run/opengl-driver; Mesa has no use on a machine without a screen.
    hardware.graphics.enable = lib.mkDefault true;
    hardware.graphics.package = lib.mkIf cfg.headless config.hardware.nvidia.package.out;
    hardware.nvidia = {
      open = lib.mkDefault true;
      nvidiaPersistenced = lib.mkDefault true;
    };
    hardware.nvidia-container-toolkit.enable = lib.mkDefault (top.cluster.engine.runtime == "oci");

    environment.systemPackages = [
      pkgs.ethtool
      pkgs.iproute2
      pkgs.rdma-core
    ];

    systemd.services.sparkloom-clocks = lib.mkIf cfg.clockCap.enable {
      description = clocks.Unit.Description;
      after = clocks.Unit.After;
      wantedBy = lib.toList clocks.Install.WantedBy;
      serviceConfig = clocks.Service // {
        ExecStart = map here clocks.Service.ExecStart;
        ExecStop = map here clocks.Service.ExecStop;
      };
    };
  };
}
