# Brings changed files to the running daemons, so that nobody who is logged in is thrown out. What it says is read by the
# operator: `subject: state`, where a state that begins with `refused` or `unreachable` is a complaint.
wanted=/mnt/wanted live=/mnt/live
mkdir -p /run/sshd
refused= unreadable= unreachable= beat=0

# In place: the login container has each file mounted by itself, and would not see a new one of that name.
take() { cat "$wanted/$1" >"$live/${1##*/}"; }
differs() { ! cmp -s "$wanted/$1" "$live/${1##*/}"; }

# tell SIGNAL NAME WORDS: signals processes of this name that have these words in their command line.
tell() {
  for process in /proc/[0-9]*; do
    [ "$(cat "$process/comm" 2>/dev/null)" = "$2" ] || continue
    case $(tr '\0' ' ' <"$process/cmdline") in
    *"$3"*) kill -"$1" "${process#/proc/}" ;;
    esac
  done
}

look_at_sshd() {
  if ! differs ssh/sshd_config; then
    [ -z "$refused" ] || echo "sshd_config: in use"
    refused=
    return
  fi
  sum=$(cksum <"$wanted/ssh/sshd_config")
  [ "$sum" != "$refused" ] || return
  if words=$(/usr/sbin/sshd -t -f "$wanted/ssh/sshd_config" -h /mnt/keys/ssh_host_ed25519_key 2>&1); then
    take ssh/sshd_config
    # It executes itself anew, and leaves sessions alone.
    tell HUP sshd '[listener]'
    refused=
    echo "sshd_config: in use"
  else
    refused=$sum
    echo "sshd_config: refused: $(echo "$words" | tr '\n' ' ')"
  fi
}

look_at_sssd() {
  if ! differs sssd/sssd.conf; then
    [ -z "$unreadable" ] || echo "sssd.conf: in use"
    unreadable=
    return
  fi
  sum=$(cksum <"$wanted/sssd/sssd.conf")
  [ "$sum" != "$unreadable" ] || return
  if readable "$(cat "$wanted/sssd/sssd.conf")"; then
    take sssd/sssd.conf
    # Whoever supervises it starts it again with the new file. An orderly end would be taken for the end by supervisord.
    tell KILL sssd ''
    unreadable=
    echo "sssd.conf: in use"
  else
    unreadable=$sum
    echo "sssd.conf: refused: sssd could not read it"
  fi
}

# The servers that sssd.conf names, as `host port`.
servers() {
  sed -n 's/^[[:space:]]*ldap_uri[[:space:]]*=//p; s/^[[:space:]]*ldap_backup_uri[[:space:]]*=//p' "$live/sssd.conf" |
    tr ', \t' '\n\n\n' | sed -n -e 's|^ldap://\([^]/:[]*\)/*$|\1 389|p' -e 's|^ldaps://\([^]/:[]*\)/*$|\1 636|p' \
      -e 's|^ldaps\{0,1\}://\([^]/:[]*\):\([0-9]*\)/*$|\1 \2|p'
}

look_at_directory() {
  away=$(servers | while read -r host port; do
    timeout 3 bash -c ': <"/dev/tcp/$0/$1"' "$host" "$port" 2>/dev/null || printf ' %s:%s' "$host" "$port"
  done)
  [ "$away" != "$unreachable" ] || return
  unreachable=$away
  # It would wait for a minute before it tries again.
  [ -n "$away" ] || tell USR2 sssd ''
  echo "directory: ${away:+unreachable:}${away:-in reach}"
}

# sshd reads its configuration up to this pipe (initconf.sh) and listens only after that.
wait_for_sackd() {
  pipe=$live/wait.d/sackd
  [ -p "$pipe" ] || return 0
  echo "sshd: waiting for sackd, which waits for slurmctld"
  until [ -S /mnt/run/slurm/sack.socket ]; do sleep 0.2; done
  # Open for reading and writing never blocks. The pipe goes before it is closed, so that an sshd that comes later finds none.
  exec 3<>"$pipe"
  rm "$pipe"
  exec 3>&-
  echo "sshd: started"
  # A signal for changed files would come too early for an sshd that does not listen yet.
  sleep 1
}

wait_for_sackd
while :; do
  if differs ssh/authorized_keys; then
    take ssh/authorized_keys
    echo "authorized_keys: in use"
  fi
  look_at_sshd
  look_at_sssd
  beat=$(((beat + 1) % 5))
  [ "$beat" != 1 ] || look_at_directory
  sleep 1
done
