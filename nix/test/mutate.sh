#!/usr/bin/env bash
# Breaks the module in one place after another, and sees whether a test notices.
# Run by hand, after a change to the module or its tests; needs what run.sh
# needs, and takes a minute. It breaks a copy. Not counted as noticing:
# contrib/, which differs after any change.
set -uo pipefail
cd "$(dirname "$0")/../.."
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
export NIX_STORE_DIR=$t/store NIX_STATE_DIR=$t/state NIX_LOG_DIR=$t/log XDG_CACHE_HOME=$t/cache
export NIX_REMOTE='' NIX_PATH='' NIX_CONF_DIR=$t/conf
mkdir -p "$t/conf"
echo 'build-users-group =' > "$t/conf/nix.conf"
files=(flake.nix nixos-module.nix nix VERSION edm.toml.example)

unit() { # the text of the unit as the module writes it
  nix-instantiate --eval --strict --json nix/test -A contrib | sed 's/.*"systemd\/edm.service":"//; s/","systemd\/edm.socket.*//; s/\\n/\n/g; s/\\"/"/g' |
    sed 's|/usr/bin/edm|/bin/true|' > "$t/edm.service"
}
# Prints what noticed; nothing if nothing did.
noticed() (
  cd "$t/copy" || exit
  failures=$(nix-instantiate --eval --strict --json nix/test -A failures 2>"$t/err") || { echo "evaluation: $(grep -m1 error: "$t/err")"; exit; }
  [ "$failures" = '[]' ] || { echo "module tests: $failures"; exit; }
  unit
  [ -z "$(systemd-analyze verify "$t/edm.service" 2>&1)" ] || { echo "systemd-analyze verify"; exit; }
  systemd-analyze security --offline=true --no-pager --threshold=11 "$t/edm.service" >/dev/null || echo "systemd-analyze security"
)
mutated=0 survived=0
mutate() { # FILE SED-EXPRESSION
  rm -rf "$t/copy" && mkdir "$t/copy" && cp -r "${files[@]}" "$t/copy"
  sed -i "$2" "$t/copy/$1"
  if cmp -s "$1" "$t/copy/$1"; then survived=$((survived + 1)); echo "NOTHING CHANGED BY  $2"; return; fi
  mutated=$((mutated + 1))
  local by; by=$(noticed)
  if [ -n "$by" ]; then echo "noticed   $2   by ${by:0:100}"; else survived=$((survived + 1)); echo "SURVIVED  $2"; fi
}

mkdir "$t/copy" && cp -r "${files[@]}" "$t/copy"
[ -z "$(noticed)" ] || { echo "the tests fail without any change: $(noticed)"; exit 1; }

m=nixos-module.nix
mutate $m 's/Type = "notify"/Type = "simple"/'
mutate $m 's/Restart = "on-failure"/Restart = "no"/'
mutate $m 's/kill -HUP/kill -TERM/'
mutate $m 's/WatchdogSec = lib.mkDefault "2min"/WatchdogSec = lib.mkDefault 0/'
mutate $m 's/MemoryMax = lib.mkDefault "2G"/MemoryMax = "2G"/'
mutate $m '/TasksMax/d'
mutate $m '/LimitCORE/d'
mutate $m '/GOMEMLIMIT/d'
mutate $m 's/User = cfg.user/User = "root"/'
mutate $m 's/Group = cfg.group/Group = "edm"/'
mutate $m '/RuntimeDirectoryPreserve/d'
mutate $m 's/StateDirectoryMode = lib.mkDefault "0750"/StateDirectoryMode = "0755"/'
mutate $m 's/lib.removePrefix "\/var\/lib\/" settings.data_dir/"edm"/'
mutate $m 's/!(inStore path)) (lib.attrValues cfg.credentials)/true) (lib.attrValues cfg.credentials)/'
mutate $m 's/!(inStore path)) (lib.attrValues secretFiles)/true) (lib.attrValues secretFiles)/'
mutate $m 's/builtins.isPath path || //'
mutate $m 's/(settings.cryptopan_key or "") == ""/true/'
mutate $m 's/lib.mkDefault "\/run\/credentials/"\/run\/credentials/'
mutate $m 's/lib.hasSuffix "_file" name) cfg.credentials/true) cfg.credentials/'
mutate $m 's/else if cfg.checkConfig then checked/else if true then checked/'
mutate $m 's/pkgs.stdenv.buildPlatform.canExecute pkgs.stdenv.hostPlatform/true/'
mutate $m 's/ -check-settings$/ -check/'
mutate $m 's/lib.mkIf cfg.openFirewall/lib.mkIf true/'
mutate $m 's/settings.input_tcp settings.input_tls \]/settings.input_tcp ]/'
mutate $m 's/lib.mkIf cfg.socketActivation socketUnits/socketUnits/'
mutate $m 's/FileDescriptorName = setting/FileDescriptorName = "edm"/'
mutate $m 's/lib.removePrefix ":" address/address/'
mutate $m 's/SocketMode = settings.input_unix_mode/SocketMode = "0666"/'
mutate $m 's/SocketGroup = socketGroup/SocketGroup = cfg.group/'
mutate $m '/SocketBindDeny/d'
mutate $m 's/PrivateUsers = !givesSocketAway/PrivateUsers = true/'
mutate $m 's/lib.optional givesSocketAway "@chown"/[ ]/'
mutate $m 's/lib.optional bindsElsewhere socketDir/[ ]/'
mutate $m 's/restartTriggers = \[ configFile \]/restartTriggers = [ ]/'
mutate $m 's/pkgs.unbound-full/pkgs.unbound/'
mutate $m 's/SupplementaryGroups = \[ socketGroup \];/SupplementaryGroups = [ ];/'
mutate $m 's/after = \[ "edm.service" \]/after = [ ]/'
mutate $m 's/dnstap-socket-path = settings.input_unix/dnstap-socket-path = "\/run\/edm\/dnstap.sock"/'
mutate $m 's/(config.services.${name}.enable \&\& settings.input_unix != "")/true/'
mutate $m 's/ProtectSystem = "strict"/ProtectSystem = false/'
mutate $m 's/NoNewPrivileges = true/NoNewPrivileges = false/'
mutate $m 's/ "~@privileged @resources"//'
mutate $m 's/CapabilityBoundingSet = ""/CapabilityBoundingSet = "CAP_SYS_ADMIN"/'
mutate $m 's/ProtectHome = true/ProtectHom = true/'
mutate $m 's/^{ config, lib, pkgs, ... }:$/{ config, lib, pkgs }:/'
mutate flake.nix 's/"x86_64-linux" "aarch64-linux"/"x86_64-linux"/'
mutate flake.nix 's/lib.mkDefault self.packages/self.packages/'
mutate nix/package.nix 's/..\/VERSION/..\/edm.toml.example/'
echo "$mutated mutations, $survived not noticed"
[ $survived = 0 ]
