# Packages of the stand-in: everything runs the host's own tools, unsandboxed.
{ lib, system }:
let
  inherit (builtins) attrNames concatStringsSep isAttrs isBool isFunction isList isString toJSON;
  hostPath = "/usr/local/go/bin:/usr/lib/go/bin:/usr/local/bin:/usr/bin:/bin";

  mkDrv = a: script: derivation ({
    inherit system;
    builder = "/bin/bash";
    # bash must outlive the last command: coreutils close stderr before they
    # exit, and Nix kills a builder whose output has closed.
    args = [ "-euo" "pipefail" "-c" "${script}\nexit 0" ];
    PATH = concatStringsSep ":" (map (p: "${p}/bin") (a.nativeBuildInputs or [ ]) ++ [ hostPath ]);
  } // removeAttrs a [ "meta" "passthru" "nativeBuildInputs" ])
  // { meta = a.meta or { }; } // (a.passthru or { });

  # TOML of an attribute set: scalars first, then tables.
  quote = toJSON; # TOML basic strings accept what JSON strings contain
  key = k: if builtins.match "[A-Za-z0-9_-]+" k != null then k else quote k;
  inline = v:
    if isList v then "[${concatStringsSep ", " (map inline v)}]"
    else if isAttrs v && !(v ? outPath) then "{${concatStringsSep ", " (map (k: "${key k} = ${inline v.${k}}") (attrNames v))}}"
    else if isBool v || isString v || builtins.isInt v || builtins.isFloat v then toJSON v
    else quote (toString v);
  table = path: s:
    let
      live = lib.filterAttrs (_: v: v != null) s;
      isTable = v: isAttrs v && !(v ? outPath);
      flat = lib.filterAttrs (_: v: !(isTable v)) live;
      subs = lib.filterAttrs (_: isTable) live;
    in
    lib.optionalString (path != [ ]) "\n[${concatStringsSep "." (map key path)}]\n"
    + concatStringsSep "" (lib.mapAttrsToList (k: v: "${key k} = ${inline v}\n") flat)
    + concatStringsSep "" (lib.mapAttrsToList (k: v: table (path ++ [ k ]) v) subs);

  pkgs = {
    inherit lib system;
    stdenv.hostPlatform = { inherit system; isLinux = true; };
    stdenv.buildPlatform = { inherit system; canExecute = other: other.system == system; };
    unbound-full = mkDrv { name = "unbound-full"; } ''mkdir "$out"'';
    callPackage = f: args:
      let fn = if isFunction f then f else import f;
      in fn (builtins.intersectAttrs (builtins.functionArgs fn) pkgs // args);
    runCommand = name: a: script: mkDrv (a // { inherit name; }) script;
    writeText = name: text: mkDrv { inherit name text; passAsFile = [ "text" ]; } ''cp "$textPath" "$out"'';
    # The host's tools under a store path, so that a module has to name them as
    # it must on NixOS, where /bin and /usr/bin are all but empty.
    coreutils = pkgs.runCommand "coreutils" { } ''mkdir -p "$out/bin"; for t in kill cat install chmod; do ln -s "/usr/bin/$t" "$out/bin/$t"; done'';
    formats.toml = { }: rec {
      type = lib.types.attrsOf value;
      value = lib.types.oneOf [ lib.types.bool lib.types.int lib.types.float lib.types.str lib.types.path
        (lib.types.listOf (value // { name = "TOML value"; })) (lib.types.attrsOf (value // { name = "TOML value"; })) ]
        // { name = "TOML value"; };
      generate = name: v: pkgs.writeText name (table [ ] v);
    };

    # The two steps of nixpkgs' builder: a fixed-output derivation of `go mod
    # vendor`, then an offline build from it.
    buildGoModule = arg:
      let
        a = if isFunction arg then arg final else arg;
        final = a;
        name = "${a.pname}-${a.version}";
        prepare = ''
          cp -r "$src" src; chmod -R u+w src; cd "src/${a.modRoot or "."}"
          # HOME=/dev/null keeps go's telemetry child from writing behind the build's back.
          # /gocache spares compiling again what was compiled outside with the same flags.
          export HOME=/dev/null GOCACHE=$TMPDIR/cache
          if [ -d /gocache ]; then GOCACHE=/gocache; fi
          export GOPATH=$TMPDIR/go GO111MODULE=on GOTOOLCHAIN=local GOENV=off
        '';
        goModules = mkDrv
          {
            name = "${name}-go-modules";
            inherit (a) src;
            outputHashMode = "recursive";
            outputHash = a.vendorHash;
            impureEnvVars = [ "http_proxy" "https_proxy" "no_proxy" "GOPROXY" "GOMODCACHE" "GOSUMDB" "SSL_CERT_FILE" ];
          } ''
          ${prepare}
          if [ -d vendor ]; then echo "vendor folder exists, set vendorHash = null"; exit 10; fi
          go mod vendor
          mkdir -p vendor
          cp -r vendor "$out"
        '';
      in
      mkDrv
        ({
          inherit name;
          inherit (a) src;
          nativeBuildInputs = a.nativeBuildInputs or [ ];
          subPackages = a.subPackages or [ "." ];
          ldflags = concatStringsSep " " (a.ldflags or [ ] ++ [ "-buildid=" ]);
          passthru = { inherit goModules; inherit (a) pname version vendorHash; } // (a.passthru or { });
          meta = a.meta or { };
        } // (a.env or { })) ''
        ${prepare}
        export GOPROXY=off GOSUMDB=off GOFLAGS="-mod=vendor -trimpath -buildvcs=false"
        ${lib.optionalString (a.vendorHash != null) ''rm -rf vendor; cp -r ${goModules} vendor; chmod -R u+w vendor''}
        for p in $subPackages; do go install -p "$NIX_BUILD_CORES" -ldflags "$ldflags" "./$p"; done
        ${lib.optionalString (a.doCheck or true) ''for p in $subPackages; do GOFLAGS=-mod=vendor go test -vet=off "./$p"; done''}
        mkdir -p "$out"; cp -r "$GOPATH/bin" "$out/bin"
        if grep -rqF /usr/local/go "$out/bin"; then echo "output refers to the Go toolchain"; exit 1; fi
        ${a.postInstall or ""}
        ${lib.optionalString (a.doInstallCheck or false) (a.installCheckPhase or "")}
      '';
  };
in
pkgs
