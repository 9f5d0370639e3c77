# Head and worker as two machines: real agent, real units, soft RoCE on two rails, a stub in place of vLLM.
# Needs KVM. Cases: start with a checked answer, a dead worker, a deleted address, a reboot, an upgrade, a roll back.
{ self, lib }:
let
  rails = [
    "eth1"
    "eth2"
  ];
  node = name: role: last: {
    inherit name role;
    fabric = {
      addresses = [
        "192.168.1.${last}"
        "192.168.2.${last}"
      ];
      interfaces = rails;
    };
  };
  machine =
    { pkgs, ... }:
    {
      imports = [ self.nixosModules.default ];
      virtualisation = {
        vlans = [
          1
          2
        ];
        memorySize = 2048;
      };
      networking.useDHCP = false;
      # Soft RoCE: an RDMA device on each rail.
      boot.kernelModules = [ "rdma_rxe" ];
      systemd.services.soft-roce = {
        wantedBy = [ "multi-user.target" ];
        before = [ "sparkloom-agent.service" ];
        after = [ "network-online.target" ];
        wants = [ "network-online.target" ];
        path = [ pkgs.iproute2 ];
        script = lib.concatMapStrings (rail: ''
          rdma link add rxe-${rail} type rxe netdev ${rail} || true
        '') rails;
        serviceConfig.Type = "oneshot";
      };
      environment.etc."sparkloom/agent.key" = {
        text = lib.concatStrings (lib.replicate 8 "test-key");
        mode = "0400";
      };
      services.sparkloom = {
        enable = true;
        package = self.packages.${pkgs.stdenv.hostPlatform.system}.sparkloom;
        validator = null;
        weights.enable = false;
        host.enable = false;
        cluster = {
          nodes = [
            (node "head" "head" "1")
            (node "worker" "worker" "2")
          ];
          fabric.mtu = 1500;
          engine = {
            platform = "cpu";
            command = [ "${pkgs.python3}/bin/python3" "${./stub_engine.py}" ];
          };
          serving.kv_cache_dtype = "auto";
          model.geometry = "checkpoint";
          model.quantization = "none";
          memory = {
            host_floor_bytes = 0;
            engine_init_bytes = 0;
          };
          probe.checks = "quick";
        };
      };
      specialisation.next.configuration.services.sparkloom.cluster.serving.max_sequences = 2;
    };
in
{
  name = "sparkloom-pair";
  nodes.head = machine;
  nodes.worker = machine;
  testScript = ''
    import json

    def status():
        return json.loads(head.succeed("sparkloom status --format json"))

    def ready(_last):
        code, out = head.execute("sparkloom status --format json")
        return code == 0 and json.loads(out)["ready"]

    def wait_ready():
        retry(ready, 300)
        head.succeed("curl --fail --silent http://127.0.0.1:8888/v1/models")

    start_all()
    for machine in (head, worker):
        machine.wait_for_unit("network-online.target")
        for rail in (1, 2):
            machine.succeed(f"ip -json address show eth{rail} | grep -q 192.168.{rail}.")
        machine.succeed("ls /sys/class/infiniband | grep -q rxe")

    with subtest("start: the unit is up only after a checked answer"):
        wait_ready()
        head.wait_for_unit("sparkloom-agent.service")
        pid = head.succeed("systemctl show --property MainPID --value sparkloom-agent").strip()
        head.succeed(f"grep 'Max locked memory *unlimited' /proc/{pid}/limits")
        assert head.succeed(f"stat --format %U /proc/{pid}").strip() == "sparkloom"
        first = status()["generation"]

    with subtest("the API is not reachable from outside"):
        worker.fail("curl --fail --max-time 5 http://192.168.1.1:8888/v1/models")

    with subtest("a dead worker takes the pair down and brings it back"):
        worker.crash()
        head.wait_until_fails("curl --fail --max-time 5 http://127.0.0.1:8888/v1/models", 120)
        worker.start()
        wait_ready()
        assert status()["generation"] > first

    with subtest("a deleted address comes back"):
        worker.succeed("ip address flush dev eth2")
        worker.succeed("networkctl reconfigure eth2")
        worker.wait_until_succeeds("ip -json address show eth2 | grep -q 192.168.2.2")
        wait_ready()

    with subtest("a reboot of the head needs nobody"):
        head.shutdown()
        head.start()
        wait_ready()

    with subtest("upgrade: both nodes switch, then roll back"):
        for machine in (worker, head):
            machine.succeed("/run/booted-system/specialisation/next/bin/switch-to-configuration test")
        wait_ready()
        digest = status()["digest"]
        for machine in (worker, head):
            machine.succeed("/run/booted-system/bin/switch-to-configuration test")
        wait_ready()
        assert status()["digest"] != digest
  '';
}
