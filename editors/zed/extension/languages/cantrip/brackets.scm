("[" @open "]" @close)
("{" @open "}" @close)
