# What both Sparks share beside the cluster: hardware, boot, remote access.
{ lib, ... }:
{
  imports = [ ./disk.nix ];

  nixpkgs.hostPlatform = "aarch64-linux";
  hardware.dgx-spark.enable = true;
  # The web dashboard takes memory of the serving process.
  services.dgx-dashboard.enable = lib.mkForce false;

  boot.loader.systemd-boot.enable = true;
  boot.loader.efi.canTouchEfiVariables = true;

  # Management network: DHCP on the 10 GbE port. The fabric has its own addresses.
  systemd.network.networks."30-management" = {
    matchConfig.Name = "enP7s7";
    networkConfig.DHCP = "ipv4";
    linkConfig.RequiredForOnline = "no";
  };
  networking.useDHCP = false;

  services.openssh = {
    enable = true;
    settings.PasswordAuthentication = false;
  };
  nix.settings.experimental-features = [
    "nix-command"
    "flakes"
  ];
  time.timeZone = lib.mkDefault "UTC";
  system.stateVersion = "26.05";
}
