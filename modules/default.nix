# All parts; each is off until `services.sparkloom.enable` (gateway and monitoring: until their own switch).
{
  imports = [
    ./options.nix
    ./assertions.nix
    ./service.nix
    ./fabric.nix
    ./host.nix
    ./gateway
    ./monitoring
  ];
}
