#!/bin/sh
# Makes the files in contrib/ anew from nixos-module.nix. Needs nix-instantiate.
set -eu
cd "$(dirname "$0")/.."
exec go test -count=1 -run '^TestContrib$' . -update
