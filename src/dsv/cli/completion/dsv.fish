# Completion of dsv in fish.
function __dsv_complete
    set -l words (commandline -opc)
    set -l answer (_DSV_COMPLETE=fish $words[1] $words[2..-1] (commandline -ct) 2>/dev/null)
    test (count $answer) -gt 1; and printf '%s\n' $answer[2..-1]
    switch "$answer[1]"
        case files
            __fish_complete_path (commandline -ct)
        case folders
            __fish_complete_directories (commandline -ct)
    end
end
complete -c dsv -f -a '(__dsv_complete)'
