_paradnn() {
  local line="${COMP_LINE:0:COMP_POINT}" word head
  word="${line##* }"
  head="${word%"${word##*[=:]}"}"  # readline replaces only the text after the last character of COMP_WORDBREAKS
  local IFS=$'\n'
  COMPREPLY=($(paradnn completion "$line" 2>/dev/null))
  COMPREPLY=("${COMPREPLY[@]#"$head"}")
  [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} != *= ]] && COMPREPLY=("${COMPREPLY[0]} ")
}
complete -o nospace -F _paradnn paradnn
