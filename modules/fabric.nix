# The fabric as declared state: static addresses on both halves of a port, jumbo frames, nothing automatic, RDMA
# modules, and a firewall that trusts these interfaces and no others.
{ config, lib, ... }:
let
  inherit (lib) mkOption types;
  top = config.services.sparkloom;
  cfg = top.fabric;
  inherit (top.cluster) fabric;
  node = top.self;
  interfaces = if node == null || node.fabric.interfaces == null then [ ] else node.fabric.interfaces;
  rails = lib.zipListsWith (name: address: { inherit name address; }) interfaces (
    if node == null then [ ] else node.fabric.addresses
  );
  # In a dotted sysctl key a dot of the interface name is written as a slash.
  sysctl = name: key: "net.ipv4.conf.${lib.replaceStrings [ "." ] [ "/" ] name}.${key}";
in
{
  imports = [ ./options.nix ];

  options.services.sparkloom.fabric = {
    enable = mkOption {
      type = types.bool;
      default = top.enable;
      defaultText = lib.literalExpression "config.services.sparkloom.enable";
      description = "Whether to declare the fabric interfaces of this node.";
    };
    requiredForOnline = mkOption {
      type = types.str;
      default = "routable";
      example = "no";
      description = ''
        systemd-networkd's RequiredForOnline for each rail: what must hold before network-online.target, which the
        serving unit waits for.
      '';
    };
    trustedInterfaces = mkOption {
      type = types.listOf types.str;
      default = [ ];
      example = [ "tailscale0" ];
      description = ''
        Interfaces beside loopback and the rails that the firewall may trust.  Every other module's additions to
        `networking.firewall.trustedInterfaces` are refused on purpose: the rendezvous ports have no authentication.
      '';
    };
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = node == null || node.fabric.interfaces != null;
        message = "services.sparkloom.fabric: `cluster.nodes` names no `fabric.interfaces` for `${top.node}`. Name one per address, or set `services.sparkloom.fabric.enable = false` and configure the network yourself.";
      }
    ];

    networking.useNetworkd = lib.mkDefault true;
    systemd.network.enable = true;
    systemd.network.networks = lib.listToAttrs (
      lib.imap0 (
        i: rail:
        lib.nameValuePair "40-sparkloom-rail${toString i}" {
          matchConfig.Name = rail.name;
          address = [ "${rail.address}/${toString fabric.prefix_length}" ];
          linkConfig = {
            MTUBytes = toString fabric.mtu;
            RequiredForOnline = cfg.requiredForOnline;
          };
          networkConfig = {
            DHCP = "no";
            IPv6AcceptRA = "no";
            LinkLocalAddressing = "no";
            # The address, and with it the RoCE GID, stays through a link flap.
            ConfigureWithoutCarrier = "yes";
            IgnoreCarrierLoss = "yes";
          };
        }
      ) rails
    );

    # Two interfaces on one cable: each answers ARP for its own address only.
    boot.kernel.sysctl = lib.listToAttrs (
      lib.concatMap (rail: [
        (lib.nameValuePair (sysctl rail.name "arp_ignore") 1)
        (lib.nameValuePair (sysctl rail.name "arp_announce") 2)
      ]) rails
    );

    boot.kernelModules = lib.mkIf (fabric.require_rdma && top.cluster.engine.platform == "cuda") [
      "mlx5_ib"
      "ib_uverbs"
      "rdma_ucm"
    ];

    networking.firewall.enable = lib.mkDefault true;
    networking.firewall.trustedInterfaces = lib.mkForce ([ "lo" ] ++ interfaces ++ cfg.trustedInterfaces);
    networking.networkmanager.unmanaged = interfaces;
  };
}
