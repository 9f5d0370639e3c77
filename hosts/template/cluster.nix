# The pair. Three values make it yours: the fabric addresses, the port that the cable is in, and your SSH key.
let
  addresses = {
    spark-head = [
      "192.168.100.1"
      "192.168.101.1"
    ];
    spark-worker = [
      "192.168.100.2"
      "192.168.101.2"
    ];
  };
  # One QSFP port is two interfaces. Port f0: enp1s0f0np0 and enP2p1s0f0np0; port f1: enp1s0f1np1 and enP2p1s0f1np1.
  interfaces = [
    "enp1s0f0np0"
    "enP2p1s0f0np0"
  ];
  sshKeys = [
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAReplaceThisKeyByYourOwnPublicSshKeyAAAAAAA you@example"
  ];
in
{
  services.sparkloom = {
    enable = true;
    cluster = {
      name = "spark";
      nodes = [
        {
          name = "spark-head";
          role = "head";
          fabric = {
            addresses = addresses.spark-head;
            inherit interfaces;
          };
        }
        {
          name = "spark-worker";
          role = "worker";
          fabric = {
            addresses = addresses.spark-worker;
            inherit interfaces;
          };
        }
      ];
    };
  };

  users.users.root.openssh.authorizedKeys.keys = sshKeys;
}
