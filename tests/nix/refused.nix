# Values that a single option's type refuses.
let
  cluster = settings: { services.sparkloom.cluster = settings; };
in
{
  unknown-field = cluster { serving.contextTokens = 1000; };
  port-zero = cluster { api.port = 0; };
  port-too-large = cluster { api.port = 65536; };
  text-for-number = cluster { api.port = "8888"; };
  not-an-address = cluster { api.host = "192.168.1.256"; };
  host-name-for-address = cluster { api.host = "localhost"; };
  profile-unknown = cluster { profile = "fast"; };
  mtu-too-small = cluster { fabric.mtu = 576; };
  image-by-tag = cluster { engine.image = "registry.example.org/sparkloom:latest"; };
  branch-for-revision = cluster { model.revision = "main"; };
  relative-path = cluster { model.path = "models/glm"; };
  fraction-of-one = cluster { memory.start_check_fraction = 1.0; };
  nccl-version = cluster { fabric.minimum_nccl = "2.29"; };
  context-too-long = cluster { serving.context_tokens = 1048577; };
  no-sequences = cluster { serving.max_sequences = 0; };
  environment-name = cluster { engine.extra_env."1BAD" = "x"; };
  empty-command = cluster { engine.command = [ ]; };
  schema-version = cluster { schema_version = 2; };
}
