# Completion of dsv in bash.
_dsv() {
  local -a answer
  mapfile -t answer < <(
    _DSV_COMPLETE=bash "${COMP_WORDS[0]}" "$COMP_LINE" "$COMP_POINT" "$COMP_WORDBREAKS" 2>/dev/null
  )
  COMPREPLY=("${answer[@]:1}")
  if ((! ${#COMPREPLY[@]})); then
    case ${answer[0]} in
      files) compopt -o default ;;
      folders) compopt -o dirnames ;;
    esac
  fi
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[/@:=] ]] && compopt -o nospace
  return 0
}
complete -F _dsv dsv
