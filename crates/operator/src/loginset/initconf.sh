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
umask 077
for file in /mnt/wanted/ssh/sshd_config /mnt/wanted/ssh/authorized_keys /mnt/wanted/sssd/sssd.conf; do
  cat "$file" >"/mnt/live/${file##*/}"
done
ls -l /mnt/etc/slurm /mnt/live
