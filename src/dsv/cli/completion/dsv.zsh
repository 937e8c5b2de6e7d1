#compdef dsv
# Completion of dsv in zsh.
_dsv() {
  local -a answer values shown open_values open_shown
  local line value text
  answer=("${(@f)$(_DSV_COMPLETE=zsh ${words[1]} "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
  for line in "${answer[@]:1}"; do
    value=${line%%$'\x1f'*}
    text=$value
    [[ $line == *$'\x1f'* ]] && text="$value -- ${line#*$'\x1f'}"
    case $value in
      *[/@:=]) open_values+=("$value"); open_shown+=("$text") ;;
      *) values+=("$value"); shown+=("$text") ;;
    esac
  done
  ((${#values})) && compadd -l -d shown -- "${values[@]}"
  ((${#open_values})) && compadd -l -S '' -d open_shown -- "${open_values[@]}"
  case ${answer[1]} in
    files) _files ;;
    folders) _files -/ ;;
  esac
}
if [[ $funcstack[1] == _dsv ]]; then _dsv "$@"; else compdef _dsv dsv; fi
