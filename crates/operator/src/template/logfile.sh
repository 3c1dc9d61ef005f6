set -eu
trap 'exit 0' TERM
trap 'exit 1' INT HUP
pipe="${SOCKET:-/tmp/logfile.log}"
mkdir -p "$(dirname "$pipe")"
if ! [ -p "$pipe" ]; then
	rm -f "$pipe"
	# The daemon's alone: whoever else could write here would write its log.
	mkfifo -m 600 "$pipe"
fi
# Open for reading and writing: a daemon that closes the pipe, as at every reconfigure, ends nothing here, and one that
# opens it never waits. Read in the background: a shell that waits for a command does not hear that it is to end.
exec 3<>"$pipe"
cat <&3 &
wait
