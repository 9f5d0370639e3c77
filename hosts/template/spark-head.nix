# Rank 0: serves the API on loopback. The gateway below opens it to the network when you have a certificate and keys.
{
  imports = [
    ./cluster.nix
    ./common.nix
  ];
  networking.hostName = "spark-head";

  # Prometheus with alert rules on loopback, and Grafana with a dashboard made for unified memory:
  # services.sparkloom.monitoring.enable = true;
  # services.sparkloom.monitoring.grafana.enable = true;

  # services.sparkloom.gateway = {
  #   enable = true;
  #   serverName = "spark.example.org";
  #   certificate = "/var/lib/acme/spark.example.org/fullchain.pem";
  #   certificateKey = "/var/lib/acme/spark.example.org/key.pem";
  #   keyFile = "/etc/sparkloom/gateway.keys";
  # };
}
