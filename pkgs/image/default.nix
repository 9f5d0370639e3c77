# The serving environment as an OCI image: the same closure as on NixOS, no weights, no root.
#   nix build .#image && ./result | podman load
{
  lib,
  dockerTools,
  cacert,
  coreutils,
  python-env,
  image-report,
}:
let
  inherit (python-env.project) version;
in
dockerTools.streamLayeredImage {
  name = "sparkloom";
  tag = version;
  # Layers that do not change with a new version of ours are not pulled again.
  maxLayers = 120;
  contents = [
    python-env
    image-report
    coreutils
    dockerTools.fakeNss
    dockerTools.binSh
  ];
  fakeRootCommands = ''
    mkdir -p tmp var/lib/sparkloom var/cache/sparkloom run/sparkloom etc/sparkloom
    chmod 1777 tmp
    chown -R 10001:10001 var/lib/sparkloom var/cache/sparkloom run/sparkloom
  '';
  config = {
    Entrypoint = [
      "/bin/sparkloom"
      "agent"
    ];
    User = "10001:10001";
    WorkingDir = "/var/lib/sparkloom";
    StopSignal = "SIGTERM";
    Env = [
      "PATH=/bin"
      "HOME=/var/lib/sparkloom"
      "SSL_CERT_FILE=${cacert}/etc/ssl/certs/ca-bundle.crt"
      # The GPU and its libraries come from the host, by CDI.
      "NVIDIA_VISIBLE_DEVICES=all"
      "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
      "HF_HUB_OFFLINE=1"
      "VLLM_NO_USAGE_STATS=1"
      "DO_NOT_TRACK=1"
    ];
    Labels = {
      "org.opencontainers.image.title" = "sparkloom";
      "org.opencontainers.image.version" = version;
      "org.opencontainers.image.licenses" = "MIT";
      "org.opencontainers.image.description" =
        "vLLM with EXL3 for a pair of DGX Sparks; software bill of materials in /share/sparkloom";
    };
  };
}
