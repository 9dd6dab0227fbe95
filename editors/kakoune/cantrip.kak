# Recipes and looms of Cantrip: their types, and their language server by kakoune-lsp (18 or later).
# In your kakrc, behind `eval %sh{kak-lsp}`:  source "%val{config}/cantrip.kak"

hook -group cantrip global BufCreate .*[.]cantrip[.]ya?ml %{
    set-option buffer filetype yaml
    set-option buffer indentwidth 2
    cantrip-serve
}
hook -group cantrip global BufCreate .*[.]loom[.]jsonl %{
    set-option buffer filetype json
    cantrip-serve
}

define-command -hidden cantrip-serve -docstring 'give this buffer the language server, whatever its type has' %{
    # Without kakoune-lsp there is no such option, and nothing to do.
    try %{
        set-option buffer lsp_servers %{
            [cantrip]
            command = "cantrip"
            args = ["lsp"]
            root_globs = [".cantrip", ".git"]
        }
    }
}

define-command -hidden cantrip-execute -params 1.. -docstring 'cantrip-execute COMMAND [INTENT]: run a command of the server on this file' %{
    evaluate-commands %sh{
        command=$1
        shift
        # As JSON, and then as a word of Kakoune's.
        text() { printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/\\t/g' | tr '\n' ' '; }
        object="{\"uri\": \"$(text "$kak_buffile")\""
        if [ $# -gt 0 ]; then object="$object, \"intent\": \"$(text "$*")\""; fi
        printf "lsp-execute-command %s '[%s]'\n" "$command" "$(printf '%s}' "$object" | sed "s/'/''/g")"
    }
}

define-command cantrip-cast -params .. -docstring 'cantrip-cast [INTENT]: cast this recipe, without an intent on that of before' %{
    cantrip-execute cantrip.cast %arg{@}
}
define-command cantrip-stop -params 0 -docstring 'end the casts of this recipe' %{
    cantrip-execute cantrip.stop
}
define-command cantrip-last-result -params 0 -docstring 'show what came of the last cast of this recipe' %{
    cantrip-execute cantrip.lastResult
}
define-command cantrip-open-loom -params 0 -docstring 'open the loom of the last cast of this recipe' %{
    cantrip-execute cantrip.openLoom
}
