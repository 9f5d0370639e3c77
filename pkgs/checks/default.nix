{ self, lib, system, pkgs }: { }
