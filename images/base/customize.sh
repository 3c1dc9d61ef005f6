#!/bin/sh
# mmdebstrap's customize hook: everything is installed; put in order what images rely on, drop what they do not need.
set -eu
root=$1

# A root whose Slurm does not run is no use to anybody, whatever its version.
chroot "$root" slurmctld -V

for daemon in slurmctld slurmd; do
    if chroot "$root" update-alternatives --query "$daemon" >/dev/null 2>&1; then
        chroot "$root" update-alternatives --quiet --set "$daemon" "/usr/sbin/$daemon-wlm"
    fi
done

# A user who comes from LDAP has no home in a fresh container.
chroot "$root" pam-auth-update --package --enable mkhomedir

for dir in /etc/slurm /var/spool/slurmctld /var/spool/slurmd /var/log/slurm /var/lib/slurm; do
    install -d -m 755 "$root$dir"
    chroot "$root" chown slurm:slurm "$dir"
done
# Worker pods share slurmd's directory with steps of any user; slurmd runs as root and checks the owner.
chroot "$root" chown root:root /var/spool/slurmd
chroot "$root" install -d -o mysql -g mysql -m 700 /var/lib/mysql

# Debian's plugstack.conf includes by a pattern, which Slurm complains about at every start.
rm -rf "$root"/etc/slurm/plugstack.conf*

# The kernel refuses it in most containers, and a login should not fail of that.
sed -i '/pam_loginuid/s/required/optional/' "$root/etc/pam.d/sshd"

# Each container makes its own keys, or is given some. A worker runs sshd if a pod mounts its configuration.
rm -f "$root"/etc/ssh/ssh_host_* "$root/etc/ssh/sshd_config" "$root/etc/machine-id"

# The builder's own network and name, which mmdebstrap lends the packages.
rm -f "$root/etc/resolv.conf" "$root/etc/hostname"

rm -f "$root/usr/sbin/policy-rc.d" "$root/etc/apt/preferences.d/sid.pref" "$root/etc/apt/sources.list"
rm -rf "$root"/var/cache/debconf/*-old "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/log/*.log \
    "$root"/var/log/apt "$root"/usr/share/lintian "$root"/usr/share/bash-completion
