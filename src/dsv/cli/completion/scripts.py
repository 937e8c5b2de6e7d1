"""What a shell reads to complete the command lines of dsv."""

from __future__ import annotations

BASH = """\
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
"""

ZSH = """\
#compdef dsv
# Completion of dsv in zsh.
_dsv() {
  local -a answer values shown open_values open_shown
  local line value text
  answer=("${(@f)$(_DSV_COMPLETE=zsh ${words[1]} "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
  for line in "${answer[@]:1}"; do
    value=${line%%$'\\x1f'*}
    text=$value
    [[ $line == *$'\\x1f'* ]] && text="$value -- ${line#*$'\\x1f'}"
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
"""

FISH = """\
# Completion of dsv in fish.
function __dsv_complete
    set -l words (commandline -opc)
    set -l answer (_DSV_COMPLETE=fish $words[1] $words[2..-1] (commandline -ct) 2>/dev/null)
    test (count $answer) -gt 1; and printf '%s\\n' $answer[2..-1]
    switch "$answer[1]"
        case files
            __fish_complete_path (commandline -ct)
        case folders
            __fish_complete_directories (commandline -ct)
    end
end
complete -c dsv -f -a '(__dsv_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
