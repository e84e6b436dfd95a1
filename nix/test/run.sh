#!/usr/bin/env bash
# Tests the packages: flake, NixOS module, units, Debian package. Needs root and
# Debian's nix-bin, systemd, systemd-container, unbound, mosquitto,
# mosquitto-clients, bind9-dnsutils, curl and file; reaches neither nixpkgs nor
# a cache of Nix. nix/test/nixpkgs stands in for nixpkgs.
#
# Prints a line for each check: ok, FAIL, or skip with the reason.
set -uo pipefail
cd "$(dirname "$0")/../.."
if ! why=$(unshare --mount --net true 2>&1); then
  echo "skip all: this machine forbids containers: $why"
  exit
fi
t=$(mktemp -d /var/lib/edm-nix.XXXXXX) # not in /tmp or /home: the unit hides those
trap 'chmod -R u+w "$t" 2>/dev/null; rm -rf "$t"' EXIT
chmod 755 "$t" # the daemon's own user must reach the store
mkdir -p "$t"/{conf,out,source}

# A flake is what git knows. What is not committed yet is tested, too.
git ls-files -z -co --exclude-standard | while IFS= read -rd '' f; do [ -e "$f" ] && printf '%s\0' "$f"; done |
  xargs -0 cp -P --parents -t "$t/source"
cd "$t/source" && git init -q && git add -A || exit 1

# What Go has downloaded and compiled already is there for builders, too.
GOCACHE=$(go env GOCACHE) modules=$(go env GOMODCACHE)/cache/download
export GOCACHE CGO_ENABLED=0 GOFLAGS=-trimpath

# A store of our own: nothing stale, nothing left behind, /nix untouched.
export NIX_STORE_DIR=$t/store NIX_STATE_DIR=$t/state NIX_LOG_DIR=$t/log XDG_CACHE_HOME=$t/cache
export NIX_REMOTE='' NIX_PATH='' NIX_CONF_DIR=$t/conf
cat > "$t/conf/nix.conf" <<C
experimental-features = nix-command flakes
substituters =
flake-registry =
build-users-group =
warn-dirty = false
sandbox = true
sandbox-fallback = false
sandbox-paths = /bin=/usr/bin /usr /lib=/usr/lib /lib64=/usr/lib64 /etc/ssl /modules=$modules /gocache=$GOCACHE
cores = $(nproc)
C
stand_in=(--override-input nixpkgs "path:$PWD/nix/test/nixpkgs" --no-write-lock-file)

failed=0
check() { # NAME COMMAND...
  local name=$1 code=0; shift
  "$@" >"$t/out/log" 2>&1 || code=$?
  case $code in
  0) echo "ok   $name" ;;
  77) echo "skip $name: $(tail -1 "$t/out/log")" ;;
  *) failed=1; echo "FAIL $name"; tail -60 "$t/out/log" | sed 's/^/     | /' ;;
  esac
}
quiet() { local out; out=$("$@" 2>&1) && [ -z "$out" ] || { echo "$out"; return 1; }; } # some only warn of what is wrong

parse() { git ls-files '*.nix' | while read -r f; do nix-instantiate --parse "$f" >/dev/null || exit 1; done; }
lock() { nix flake metadata --json --no-update-lock-file; }
vendor_hash() {
  go mod vendor -o "$t/vendor" || return
  [ "$(nix hash path "$t/vendor")" = "$(nix eval "${stand_in[@]}" --raw .#edm.vendorHash)" ]
}
build() { GOPROXY=file:///modules GONOSUMDB='*' nix build "${stand_in[@]}" -L -o "$t/result"; }
is_static() { file -L "$t/result/bin/edm" | grep 'statically linked'; }
runs() { nix run "${stand_in[@]}" . -- -version | grep "^edm $(cat VERSION) "; }
example() {
  nix run "${stand_in[@]}" . -- -config edm.toml.example -check-settings -input-unix /run/edm/s -cryptopan-key-file /k
}
module() { [ "$(nix-instantiate --eval --strict --json nix/test -A failures | tee /dev/stderr)" = '[]' ]; }
every_key() { nix-build nix/test -A everyKey --no-out-link; }
system() { nix-build nix/test -A system -o "$t/system" && cp "$t"/system/units/edm*.service "$t"/system/units/edm*.socket "$t/out/"; }
refuses_bad() { ! nix-build nix/test -A badConfig --no-out-link 2>"$t/out/bad" && grep 'unknown key pebble-sync, did you mean pebble_sync' "$t/out/bad"; }
valid() { quiet systemd-analyze verify "$t"/out/edm.service "$t"/out/edm.socket "$t"/out/edm-tcp.socket; }
score() { systemd-analyze security --offline=true --no-pager --threshold=11 "$t/out/edm.service" | tail -1; return "${PIPESTATUS[0]}"; }
on_hosts() {
  mkdir -p "$t/host" && cp contrib/systemd/edm.socket "$t/host" &&
    sed "s|/usr/bin/edm|$t/result/bin/edm|" contrib/systemd/edm.service > "$t/host/edm.service" &&
    quiet systemd-analyze verify "$t/host/edm.service" "$t/host/edm.socket" &&
    systemd-analyze security --offline=true --no-pager --threshold=11 "$t/host/edm.service"
}
resolvers() {
  local text
  for r in unbound bind dnsdist; do nix eval --impure --raw -f nix/test resolvers.$r > "$t/out/$r" || return; done
  { echo 'server:'; echo '  directory: ""'; cat "$t/out/unbound"; } > "$t/out/unbound.conf"
  unbound-checkconf "$t/out/unbound.conf" || return
  if command -v named-checkconf; then
    { echo 'options {'; cat "$t/out/bind"; echo '};'; } > "$t/out/named.conf"
    named-checkconf "$t/out/named.conf" || return
  fi
  if command -v dnsdist; then dnsdist --check-config -C "$t/out/dnsdist"; fi
}
deb() { contrib/debian/build.sh "$t/result/bin/edm" amd64 "$t/edm.deb"; }

check "every .nix file parses"                       parse
check "flake.lock agrees with flake.nix"             lock
check "vendorHash is what go.mod needs"              vendor_hash
check "flake show"                                   nix flake show "${stand_in[@]}"
check "build without the network"                    build
check "flake check"                                  nix flake check "${stand_in[@]}"
check "the binary is static"                         is_static
check "nix run"                                      runs
check "edm.toml.example is valid"                    example
check "the module, option by option"                 module
check "the module takes every key of the example"    every_key
check "the module builds units and checked settings" system
check "edm refuses bad settings while they are built" refuses_bad
check "the units are valid"                          valid
check "the unit scores 1.1 or better"                score
check "the units of other hosts, too"                on_hosts
check "resolvers take what the module writes"        resolvers
check "the Debian package is made"                   deb
go build -o "$t/rows" ./nix/test/rows
check "units under systemd, with unbound and a broker" nix/test/boot.sh units "$t/system" "$t/rows"
check "the Debian package under systemd"               nix/test/boot.sh deb "$t/edm.deb" "$t/rows"
exit $failed
