# The gateway on a machine of its own with a stub engine: TLS, keys from a file, closed routes. Needs KVM.
# The walk over every route runs without KVM in tests/nix/test_nix_gateway.py, on the same rendered text.
{ self, lib }:
{
  name = "sparkloom-gateway";
  nodes.head =
    { pkgs, ... }:
    {
      imports = [ self.nixosModules.default ];
      networking.hostName = "head";
      # A package set without the checker can still evaluate this.
      services.nginx.validateConfigFile = pkgs.writers ? writeNginxConfig;
      services.sparkloom = {
        # Only the gateway: the engine is a stub.
        enable = false;
        node = "head";
        cluster.nodes = [
          {
            name = "head";
            role = "head";
            fabric.addresses = [ "127.0.0.1" ];
          }
        ];
        gateway = {
          enable = true;
          certificate = "/etc/tls/chain.pem";
          certificateKey = "/etc/tls/key.pem";
          keyFile = "/etc/sparkloom/gateway.keys";
        };
      };
      environment.etc."sparkloom/gateway.keys".text = "alice alice-key-0123456789\n";
      systemd.services.certificate = {
        requiredBy = [ "nginx.service" ];
        before = [ "nginx.service" ];
        path = [ pkgs.openssl ];
        script = ''
          mkdir -p /etc/tls
          openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=head \
            -keyout /etc/tls/key.pem -out /etc/tls/chain.pem
          chmod 0644 /etc/tls/key.pem
        '';
        serviceConfig.Type = "oneshot";
      };
      systemd.services.engine = {
        wantedBy = [ "multi-user.target" ];
        serviceConfig.ExecStart = "${lib.getExe pkgs.python3} ${./stub_engine.py} --port 8888";
      };
    };
  testScript = ''
    head.wait_for_unit("nginx.service")
    head.wait_for_open_port(443)
    head.wait_for_open_port(8888)

    def code(path, *options):
        return head.succeed(
            "curl --silent --insecure --output /dev/null --write-out '%{http_code}' "
            + " ".join(options) + f" https://127.0.0.1{path}"
        )

    key = "--header 'Authorization: Bearer alice-key-0123456789'"
    assert code("/health") == "200"
    assert code("/v1/models") == "401"
    assert code("/v1/models", key) == "200"
    for path in ("/metrics", "/invocations", "/tokenize", "/docs"):
        assert code(path, key) == "404", path
  '';
}
