# A right configuration of the head of a pair.
{
  services.sparkloom = {
    enable = true;
    cluster.nodes = [
      {
        name = "spark-head";
        role = "head";
        fabric = {
          addresses = [ "192.168.100.1" "192.168.101.1" ];
          interfaces = [ "enp1s0f0np0" "enP2p1s0f0np0" ];
        };
      }
      {
        name = "spark-worker";
        role = "worker";
        fabric = {
          addresses = [ "192.168.100.2" "192.168.101.2" ];
          interfaces = [ "enp1s0f0np0" "enP2p1s0f0np0" ];
        };
      }
    ];
  };
}
