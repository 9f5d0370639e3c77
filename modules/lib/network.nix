# IPv4 arithmetic for the assertions. Addresses are dotted text; numbers are 32 bits.
{ lib }:
rec {
  octets = address: map lib.toIntBase10 (lib.splitString "." address);

  isIpv4 =
    address:
    let
      parts = builtins.match "([0-9]{1,3})\\.([0-9]{1,3})\\.([0-9]{1,3})\\.([0-9]{1,3})" address;
    in
    parts != null && lib.all (part: lib.toIntBase10 part <= 255) parts;

  toNumber = address: lib.foldl' (sum: octet: sum * 256 + octet) 0 (octets address);

  # 2 to the power of n
  power = n: if n == 0 then 1 else 2 * power (n - 1);

  # Number of the network that holds `address`, comparable between addresses of the same prefix length.
  network = prefix: address: toNumber address / power (32 - prefix);

  sameNetwork = prefix: addresses: lib.length (lib.unique (map (network prefix) addresses)) <= 1;

  isLoopback = address: lib.hasPrefix "127." address;
}
