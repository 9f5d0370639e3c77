# Rank 1: no API, no port outside the fabric.
{
  imports = [ ./common.nix ];
  networking.hostName = "spark-worker";
}
