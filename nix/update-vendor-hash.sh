#!/bin/sh
# Writes nix/vendor-hash.nix anew: what go mod vendor makes has another hash
# when a module changes, and also when a package of a known module is imported
# for the first time. Needs Go alone: a test knows how to make the hash.
set -eu
cd "$(dirname "$0")/.."
exec go test -count=1 -run '^TestVendorHash$' . -update
