# `nix run .#preflight -- CLUSTER --node NAME`
{ writeShellApplication, sparkloom }:
writeShellApplication {
  name = "sparkloom-preflight";
  runtimeInputs = [ sparkloom ];
  text = ''exec sparkloom preflight "$@"'';
}
