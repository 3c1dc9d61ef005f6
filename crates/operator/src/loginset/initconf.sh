# Puts files where daemons expect them, with the owners and modes they ask for. `set -e`: a pod without its key is no use.
set -eu
for file in /mnt/slurm/*.conf /mnt/slurm/*.key; do
  [ -f "$file" ] || continue
  copy=/mnt/etc/slurm/${file##*/}
  cp "$file" "$copy"
  chown 401:401 "$copy"
  case $copy in
  *.key | */slurmdbd.conf) chmod 600 "$copy" ;;
  *) chmod 644 "$copy" ;;
  esac
done
# The volume is writable for everybody at first. What lies in it is Slurm's configuration for everyone who logs in.
rm -f /mnt/run/slurm/sack.socket
chown 401:401 /mnt/run/slurm
chmod 755 /mnt/run/slurm
umask 077
# sshd_config includes this directory. sshd cannot read past a pipe that nobody has opened for writing: `reload` does.
mkdir -p /mnt/live/wait.d
rm -f /mnt/live/wait.d/sackd
mkfifo /mnt/live/wait.d/sackd
for file in /mnt/wanted/ssh/sshd_config /mnt/wanted/ssh/authorized_keys /mnt/wanted/sssd/sssd.conf; do
  cat "$file" >"/mnt/live/${file##*/}"
done
ls -l /mnt/etc/slurm /mnt/live
