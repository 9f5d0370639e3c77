# What the options alone allow and the combination does not, said while the system is evaluated.
# The rules are those of `sparkloom validate`, plus what only a NixOS configuration can get wrong.
{ config, lib, ... }:
let
  cfg = config.services.sparkloom;
  inherit (cfg) cluster;
  net = import ./lib/network.nix { inherit lib; };
  plan = import ./lib/plan.nix { inherit lib; } cluster;

  inherit (cluster) nodes;
  names = map (node: node.name) nodes;
  heads = builtins.filter (node: node.role == "head") nodes;
  first = builtins.head nodes;
  rails = lib.length first.fabric.addresses;
  addresses = lib.concatMap (node: node.fabric.addresses) nodes;
  twice = list: lib.unique (builtins.filter (x: lib.count (y: x == y) list > 1) list);
  quote = lib.concatMapStringsSep ", " (x: "`${toString x}`");

  inStore = path: path != null && lib.hasPrefix builtins.storeDir path;
  exposed = !net.isLoopback cluster.api.host;

  listeners = lib.mapAttrsToList lib.nameValuePair (
    {
      "agent.port" = if cfg.self.agent_port != null then cfg.self.agent_port else cluster.agent.port;
      "agent.status_port" = if cfg.self.status_port != null then cfg.self.status_port else cluster.agent.status_port;
    }
    // lib.optionalAttrs (cfg.role == "head") (
      { "api.port" = cluster.api.port; }
      // lib.listToAttrs (
        lib.genList (
          i: lib.nameValuePair "rendezvous.master_port${lib.optionalString (i > 0) "+${toString i}"}" (cluster.rendezvous.master_port + i)
        ) cluster.rendezvous.generation_ports
      )
    )
  );
  sharedPorts = twice (map (listener: listener.value) listeners);
  usersOf = port: map (listener: listener.name) (builtins.filter (listener: listener.value == port) listeners);

  perRail = lib.genList (
    rail:
    map (node: builtins.elemAt node.fabric.addresses rail) (
      builtins.filter (node: lib.length node.fabric.addresses > rail) nodes
    )
  ) rails;
  straddling = builtins.filter (rail: !net.sameNetwork cluster.fabric.prefix_length (builtins.elemAt perRail rail)) (
    lib.range 0 (rails - 1)
  );

  gib = bytes: "${toString (bytes / 1073741824)}.${toString (lib.mod (bytes * 10 / 1073741824) 10)} GiB";
  rule = assertion: message: { inherit assertion; message = "services.sparkloom: ${message}"; };
in
{
  config = lib.mkIf cfg.enable {
    assertions = [
      (rule (cfg.self != null)
        "node ${quote [ cfg.node ]} is not in `cluster.nodes` (${quote names}). Set `node`, or `networking.hostName`."
      )
      (rule (lib.length heads == 1)
        "`cluster.nodes` has ${toString (lib.length heads)} heads (${quote (map (node: node.name) heads)}). Give exactly one node the role `head`."
      )
      (rule (twice names == [ ]) "`cluster.nodes` uses the name ${quote (twice names)} twice.")
      (rule (lib.all (node: lib.length node.fabric.addresses == rails) nodes)
        "the nodes have different numbers of `fabric.addresses`. Give every node one address per rail, in the same order."
      )
      (rule (lib.all (
        node:
        node.fabric.interfaces == null || lib.length node.fabric.interfaces == lib.length node.fabric.addresses
      ) nodes) "a node's `fabric.interfaces` and `fabric.addresses` differ in length. Name one interface per address.")
      (rule (twice addresses == [ ]) "the fabric address ${quote (twice addresses)} is used twice. Give every rail of every node its own.")
      (rule (straddling == [ ])
        "rail ${quote straddling} is not one subnet of /${toString cluster.fabric.prefix_length}: ${
          quote (lib.concatMap (builtins.elemAt perRail) straddling)
        }. Correct the addresses or `cluster.fabric.prefix_length`."
      )
      (rule (cfg.self == null || sharedPorts == [ ])
        "port ${quote sharedPorts} has several listeners on ${quote [ cfg.node ]}: ${quote (lib.concatMap usersOf sharedPorts)}. Choose different ports."
      )
      (rule (!exposed || cluster.api.exposure == "network")
        "the API would listen on ${quote [ cluster.api.host ]}, reachable from the network. Bind 127.0.0.1 behind `gateway`, or say `cluster.api.exposure = \"network\"`."
      )
      (rule (!exposed || cluster.api.key_file != null)
        "the API on ${quote [ cluster.api.host ]} would answer without a key. Name `cluster.api.key_file`."
      )
      (rule (!inStore cluster.api.key_file && !inStore cluster.agent.key_file)
        "a key file lies in the Nix store, which everybody can read. Use a path outside it, for example `/etc/sparkloom/api.key`."
      )
      (rule (cluster.drafter.kind != "dflash2" || cluster.drafter.accept_non_commercial_licence)
        "the DFlash2 weights are CC BY-NC-ND 4.0 (non-commercial). Set `cluster.drafter.accept_non_commercial_licence = true` if that fits you, or `kind = \"mtp\"`."
      )
      (rule (cluster.ablit.method == "none" || cluster.ablit.accept_behaviour_change)
        "edited weights answer differently. Set `cluster.ablit.accept_behaviour_change = true` if that is what you want, or `cluster.ablit.method = \"none\"`."
      )
      (rule (cluster.drafter.attention_backend != "TRITON_ATTN")
        "the drafter cannot use TRITON_ATTN: it attends causally there and acceptance falls to a third. Leave `cluster.drafter.attention_backend` out."
      )
      (rule (cluster.model.quantization != "exl3" || cluster.engine.moe_backend == "auto")
        "the ${quote [ cluster.engine.moe_backend ]} MoE backend cannot read EXL3 experts. Set `cluster.engine.moe_backend = \"auto\"`."
      )
      (rule (
        cluster.engine.platform != "cuda"
        || cluster.model.geometry != "glm-5.3-flash"
        || lib.elem cluster.serving.kv_cache_dtype [ "fp8" "fp8_e4m3" "fp8_ds_mla" ]
      ) "KV type ${quote [ cluster.serving.kv_cache_dtype ]} has no kernel on sm_12x. Set `cluster.serving.kv_cache_dtype = \"fp8\"`.")
      (rule (cluster.engine.runtime != "oci" || cluster.engine.image != null)
        "the oci runtime needs `cluster.engine.image`, by digest (NAME@sha256:...)."
      )
      (rule (3 * cluster.agent.heartbeat_seconds <= cluster.agent.lease_seconds)
        "`cluster.agent.heartbeat_seconds` must be at most a third of `lease_seconds`: one late message would lose the lease."
      )
      (rule (plan.need <= cluster.memory.total_bytes)
        "the plan does not fit: at least ${gib plan.need} are needed of ${gib cluster.memory.total_bytes} per node (${
          lib.concatStringsSep ", " (lib.mapAttrsToList (what: bytes: "${what} ${gib bytes}") plan.items)
        }). Lower the context, the sequences or `serving.kv_cache_bytes`; `sparkloom plan` proposes what fits."
      )
      (rule (!(config.boot.kernel.sysctl ? "vm.min_free_kbytes") || config.boot.kernel.sysctl."vm.min_free_kbytes" == null)
        "`boot.kernel.sysctl.\"vm.min_free_kbytes\"` lowers MemAvailable by more than it says and makes vLLM's start check fail. Remove it."
      )
    ];
  };
}
