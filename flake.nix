{
  description = "edm: reads dnstap from DNS resolvers and keeps nothing that identifies a person";

  # flake.lock names a nixpkgs that has Go 1.26. Use your own instead: in your
  # flake, edm.inputs.nixpkgs.follows = "nixpkgs".
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs = { self, nixpkgs }:
    let
      lib = nixpkgs.lib;
      systems = [ "x86_64-linux" "aarch64-linux" ];
      eachSystem = f: lib.genAttrs systems (system: f nixpkgs.legacyPackages.${system});
    in
    {
      packages = eachSystem (pkgs: rec {
        edm = pkgs.callPackage ./nix/package.nix { };
        default = edm;
      });

      apps = eachSystem (pkgs: rec {
        edm = {
          type = "app";
          program = lib.getExe self.packages.${pkgs.stdenv.hostPlatform.system}.edm;
        };
        default = edm;
      });

      overlays.default = final: prev: {
        edm = final.callPackage ./nix/package.nix { };
      };

      nixosModules.default = { pkgs, lib, ... }: {
        imports = [ ./nixos-module.nix ];
        services.edm.package = lib.mkDefault self.packages.${pkgs.stdenv.hostPlatform.system}.edm;
      };

      checks = eachSystem (pkgs: {
        package = self.packages.${pkgs.stdenv.hostPlatform.system}.edm;
      });
    };
}
