{ lib, stdenv, buildGoModule }:

let
  version = lib.removeSuffix "\n" (builtins.readFile ../VERSION);
in
buildGoModule {
  pname = "edm";
  inherit version;

  # Without what the Go build does not read, so that editing it rebuilds nothing.
  src = builtins.path {
    name = "edm-src";
    path = ../.;
    filter = path: type:
      let
        rel = lib.removePrefix (toString ../. + "/") (toString path);
        first = builtins.head (builtins.split "/" rel);
      in
      !(builtins.elem first [ "nix" "contrib" "build" "dist" "demo" "vendor" "Makefile" ]
        || lib.hasPrefix "." first || lib.hasPrefix "result" first
        || lib.hasSuffix ".nix" first || lib.hasSuffix ".lock" first || lib.hasSuffix ".md" first);
  };
  vendorHash = import ./vendor-hash.nix;

  subPackages = [ "." ];
  env.CGO_ENABLED = "0";
  ldflags = [ "-s" "-w" "-X main.version=${version}" ];

  # The tests want resolvers and a network of their own: make test.
  doCheck = false;
  doInstallCheck = stdenv.buildPlatform.canExecute stdenv.hostPlatform;
  installCheckPhase = ''
    $out/bin/edm -version | grep -F "edm ${version} "
  '';

  postInstall = ''
    install -Dm644 edm.toml.example "$out/share/edm/edm.toml.example"
    install -Dm644 LICENSE "$out/share/doc/edm/LICENSE"
  '';

  meta = {
    description = "Reads dnstap from DNS resolvers and keeps nothing that identifies a person";
    license = lib.licenses.bsd2;
    mainProgram = "edm";
    platforms = lib.platforms.linux;
    maintainers = [ ];
  };
}
