# A lower bound of the memory plan, cheap enough for evaluation: what is surely needed on one node, in bytes.
# `sparkloom plan` counts everything with the numbers of the machine; what fails here cannot fit there.
{ lib }:
cluster:
let
  gib = 1073741824;
  world = lib.length cluster.nodes;
  known = cluster.model.geometry == "glm-5.3-flash";
  or' = default: value: if value == null then default else value;
in
rec {
  items = {
    # 164 GiB in all, split over the ranks; 79.6 GiB per rank was the smallest resident size seen with two.
    weights = if known then 159 * gib / world else 0;
    drafter = if cluster.drafter.kind == "dflash2" then 2 * gib else 0;
    # 7.1 GiB per million tokens and rank was measured for the fp8 cache.
    kv-cache = or' (if known then or' 0 cluster.serving.context_tokens * 7 * gib / 1048576 else 0) cluster.serving.kv_cache_bytes;
    engine = cluster.memory.engine_init_bytes;
    loader = if cluster.serving.loader == "instanttensor" then cluster.memory.loader_ring_bytes else 0;
    activation = or' 0 cluster.memory.activation_reserve_bytes;
    host = cluster.memory.host_floor_bytes;
  };
  need = lib.foldl' builtins.add 0 (lib.attrValues items);
}
