#!/bin/sh
# mmdebstrap's essential hook: a root with /etc/passwd and dpkg, before the packages that want users and start daemons.
set -eu
root=$1

# Pods written for the stock images say runAsUser 401, and key files are owned by that number.
echo 'slurm:x:401:401:Slurm:/var/lib/slurm:/usr/sbin/nologin' >>"$root/etc/passwd"
echo 'slurm:x:401:' >>"$root/etc/group"
# 999 is the number the usual mariadb image has, so volumes can move between the two.
echo 'mysql:x:999:999:MariaDB:/var/lib/mysql:/usr/sbin/nologin' >>"$root/etc/passwd"
echo 'mysql:x:999:' >>"$root/etc/group"

printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"

# The entrypoint makes the directory from its environment.
echo 'slapd slapd/no_configuration boolean true' | chroot "$root" debconf-set-selections
