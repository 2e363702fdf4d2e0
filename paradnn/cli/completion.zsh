_paradnn() {
  local -a found
  found=("${(@f)$(paradnn completion "$LBUFFER" 2>/dev/null)}")
  compadd -Q -S '' -- ${(M)found:#*=}
  compadd -Q -- ${found:#*=}
}
compdef _paradnn paradnn
