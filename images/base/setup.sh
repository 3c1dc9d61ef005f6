#!/bin/sh
# mmdebstrap's setup hook: before any package is fetched. $1 is the new root; the working directory is images/base.
set -eu
install -D -m 644 sid.pref "$1/etc/apt/preferences.d/sid.pref"
