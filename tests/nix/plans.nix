# Settings that move the memory plan.
[
  { }
  { serving.context_tokens = 1048576; }
  { serving.kv_cache_bytes = 8 * 1024 * 1024 * 1024; }
  { serving.loader = "instanttensor"; }
  {
    drafter.kind = "dflash2";
    drafter.accept_non_commercial_licence = true;
  }
  { drafter.kind = "none"; }
  { vision.enabled = false; }
  { profile = "long-context"; }
  {
    profile = "text-only";
    serving.context_tokens = 262144;
    serving.max_sequences = 2;
  }
]
