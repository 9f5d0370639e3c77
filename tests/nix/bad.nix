# Bad configurations, each a change of ./pair.nix, and a part of the message that it must give.
{ lib }:
let
  node = name: role: addresses: extra: {
    inherit name role;
    fabric = {
      inherit addresses;
      interfaces = [ "enp1s0f0np0" "enP2p1s0f0np0" ];
    } // extra;
  };
  head = node "spark-head" "head" [ "192.168.100.1" "192.168.101.1" ];
  worker = node "spark-worker" "worker" [ "192.168.100.2" "192.168.101.2" ];
  nodes = list: { services.sparkloom.cluster.nodes = lib.mkForce list; };
  cluster = settings: { services.sparkloom.cluster = settings; };
  case = says: config: { inherit says config; };
  gib = n: n * 1024 * 1024 * 1024;
in
{
  unknown-node = case "is not in `cluster.nodes`" { services.sparkloom.node = "spark-third"; };
  no-head = case "has 0 heads" (nodes [ (node "spark-head" "worker" [ "192.168.100.1" "192.168.101.1" ] { }) (worker { }) ]);
  two-heads = case "has 2 heads" (nodes [ (head { }) (node "spark-worker" "head" [ "192.168.100.2" "192.168.101.2" ] { }) ]);
  same-name = case "uses the name `spark-head` twice" (
    nodes [ (head { }) (node "spark-head" "worker" [ "192.168.100.2" "192.168.101.2" ] { }) ]
  );
  rails-differ = case "different numbers of `fabric.addresses`" (
    nodes [ (head { }) (node "spark-worker" "worker" [ "192.168.100.2" ] { interfaces = [ "enp1s0f0np0" ]; }) ]
  );
  interfaces-differ = case "differ in length" (nodes [ (head { interfaces = [ "enp1s0f0np0" ]; }) (worker { }) ]);
  no-interfaces = case "names no `fabric.interfaces`" (nodes [ (head { interfaces = null; }) (worker { }) ]);
  address-twice = case "is used twice" (
    nodes [ (head { }) (node "spark-worker" "worker" [ "192.168.100.1" "192.168.101.2" ] { }) ]
  );
  other-subnet = case "is not one subnet of /24" (
    nodes [ (head { }) (node "spark-worker" "worker" [ "192.168.100.2" "192.168.102.2" ] { }) ]
  );
  ports-collide = case "port `8888` has several listeners" (cluster { agent.port = 8888; });
  master-port-collides = case "`rendezvous.master_port+2`" (
    cluster {
      rendezvous.master_port = 8768;
      rendezvous.generation_ports = 4;
    }
  );
  exposed-without-word = case "reachable from the network" (
    cluster {
      api.host = "0.0.0.0";
      api.key_file = "/etc/sparkloom/api.key";
    }
  );
  exposed-without-key = case "would answer without a key" (
    cluster {
      api.host = "0.0.0.0";
      api.exposure = "network";
    }
  );
  key-in-store = case "lies in the Nix store" (cluster { api.key_file = "${builtins.storeDir}/xyz-key"; });
  agent-key-in-store = case "lies in the Nix store" (cluster { agent.key_file = "${builtins.storeDir}/xyz-key"; });
  drafter-licence = case "non-commercial" (cluster { drafter.kind = "dflash2"; });
  weight-edit = case "edited weights answer differently" (cluster { ablit.method = "transplant"; });
  drafter-triton = case "cannot use TRITON_ATTN" (
    cluster {
      drafter.kind = "dflash2";
      drafter.accept_non_commercial_licence = true;
      drafter.attention_backend = "TRITON_ATTN";
    }
  );
  marlin = case "cannot read EXL3 experts" (cluster { engine.moe_backend = "marlin"; });
  kv-type = case "has no kernel on sm_12x" (cluster { serving.kv_cache_dtype = "auto"; });
  oci-without-image = case "needs `cluster.engine.image`" (cluster { engine.runtime = "oci"; });
  heartbeat = case "at most a third" (cluster { agent.heartbeat_seconds = 10; });
  kv-too-large = case "the plan does not fit" (cluster { serving.kv_cache_bytes = gib 60; });
  floor-too-large = case "the plan does not fit" (cluster { memory.host_floor_bytes = gib 48; });
  min-free = case "vm.min_free_kbytes" { boot.kernel.sysctl."vm.min_free_kbytes" = 4194304; };
  gateway-on-worker = case "only the head has an API" {
    services.sparkloom.node = "spark-worker";
    services.sparkloom.gateway = {
      enable = true;
      certificate = "/etc/tls/chain.pem";
      certificateKey = "/etc/tls/key.pem";
    };
  };
  gateway-key-in-store = case "a key lies in the Nix store" {
    services.sparkloom.gateway = {
      enable = true;
      certificate = "/etc/tls/chain.pem";
      certificateKey = "/etc/tls/key.pem";
      keyFile = "${builtins.storeDir}/xyz-keys";
    };
  };
}
