# Whether sssd could read what it is given: it begins with a section, and all else is a setting, the rest of one, or a comment.
readable() {
  lines=$(printf '%s\n' "$1" | grep -v -e '^[[:space:]]*$' -e '^[#;]')
  case $lines in '['*) ;; *) return 1 ;; esac
  ! printf '%s\n' "$lines" | grep -q -v -e '^\[.*\][[:space:]]*$' -e '^[[:space:]]' -e =
}
