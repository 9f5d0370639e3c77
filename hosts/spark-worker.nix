# Rank 1: no API, no port outside the fabric.
{
  imports = [
    ./cluster.nix
    ./common.nix
  ];
  networking.hostName = "spark-worker";
}
